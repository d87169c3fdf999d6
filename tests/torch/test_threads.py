"""Several Python threads on one device: each computes its own values; some share a tensor."""

import random
import threading

import pytest
import torch
from tpu_testing import DEVICE, close, device_only, same

pytestmark = device_only
THREADS, TURNS = 4, 60


def all_threads(work):
    errors = []

    def guarded(i):
        try:
            work(i)
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=guarded, args=(i,), daemon=True) for i in range(THREADS)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(240)
    assert not any(t.is_alive() for t in threads), "a thread hangs"
    if errors:
        raise errors[0]


def test_each_thread_gets_its_own_values():
    def work(i):
        rng = random.Random(i)
        x = torch.arange(12.0).view(3, 4) + i
        y = x.to(DEVICE)
        for _ in range(TURNS):
            k, row, kind = rng.randrange(1, 5), rng.randrange(3), rng.randrange(7)
            if kind == 0:
                x, y = x * k - 1, y * k - 1
            elif kind == 1:
                x[row] += k
                y[row] += k
            elif kind == 2:
                x, y = x.t().reshape(3, 4), y.t().reshape(3, 4)
            elif kind == 3:  # a decomposition, recorded as one program
                x, y = torch.heaviside(x, x + k), torch.heaviside(y, y + k)
                x, y = x.addr(x[:, 0], x[0], alpha=k), y.addr(y[:, 0], y[0], alpha=k)
            elif kind == 4:
                assert y.sum().item() == pytest.approx(x.sum().item(), rel=1e-5, abs=1e-4)
            elif kind == 5:
                torch.nn.functional.dropout(y, 0.5)
                torch.randperm(7, device=DEVICE)
            else:
                torch.tpu.set_eager_mode(rng.choice(list(torch.tpu.EagerMode)))
            x, y = x.remainder(7), y.remainder(7)
        close(y, x, rtol=1e-4, atol=1e-3)

    try:
        all_threads(work)
    finally:
        torch.tpu.set_eager_mode(torch.tpu.EagerMode.STRICT)


def test_threads_write_and_read_one_tensor():
    """In-place decompositions of one thread, read by the others: a value that is being recorded is waited for."""
    shared = torch.zeros(4, 4, device=DEVICE)

    def work(i):
        for _ in range(TURNS):
            if i % 2:
                shared.copysign_(shared).addcdiv_(shared, shared + 1).lerp_(shared, 0.5).nan_to_num_()
                torch.nn.functional.softplus(shared)
            else:
                (shared + 1).sum().item()
                torch.tpu.Event().record()
                torch.tpu.synchronize()

    all_threads(work)
    same(shared, torch.zeros(4, 4))


def test_train_in_two_threads():
    results = {}

    def work(i):
        g = torch.Generator().manual_seed(i)
        w0 = torch.randn(8, 4, generator=g)
        data = torch.randn(16, 8, generator=g)
        for device in ("cpu", DEVICE):
            w = w0.to(device, copy=True).requires_grad_()
            opt = torch.optim.AdamW([w], lr=0.1)
            for _ in range(20):
                opt.zero_grad()
                (data.to(device) @ w).tanh().square().mean().backward()
                opt.step()
            results[i, device] = w.detach().cpu()

    all_threads(work)
    for i in range(THREADS):
        close(results[i, DEVICE].to(DEVICE), results[i, "cpu"], rtol=1e-3, atol=1e-4)
