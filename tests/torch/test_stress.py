"""Random programs, the same on `tpu` and on CPU: views, writes through views, reductions, errors in the middle, modes that change,
several threads. Seeded. TPU_STRESS says how many programs a test runs (default 25; thousands for a long run)."""

import os
import random
import threading

import pytest
import torch
from tpu_testing import DEVICE, device_only

pytestmark = device_only
PROGRAMS = int(os.environ.get("TPU_STRESS", "25"))
STEPS = 30
SIZES = [(4, 4), (2, 4), (4,), (4, 2)]


class Pair:
    """A value on both devices."""

    def __init__(self, cpu, tpu):
        self.cpu, self.tpu = cpu, tpu


class Program:
    def __init__(self, seed, modes):
        self.rng, self.seed, self.modes, self.text = random.Random(seed), seed, modes, []
        self.pool = []
        for k, size in enumerate(SIZES):
            x = torch.randn(size, generator=torch.Generator().manual_seed(seed * 10 + k))
            self.pool.append(Pair(x, x.to(DEVICE)))

    def pick(self, like=None):
        fits = [p for p in self.pool if like is None or p.cpu.shape == like.cpu.shape]
        return self.rng.choice(fits)

    def both(self, text, f, *pairs, keep=True):
        """Runs f on both; the same exception type on both counts as agreement."""
        self.text.append(text)
        results = []
        for side in ("cpu", "tpu"):
            try:
                results.append(f(*(getattr(p, side) for p in pairs)))
            except (RuntimeError, IndexError) as e:
                results.append(type(e))
        failed = [isinstance(r, type) for r in results]
        assert failed[0] == failed[1], f"seed {self.seed}, {text}: {results}"
        if not failed[0] and keep:
            self.pool.append(Pair(*results))
            if len(self.pool) > 12:
                del self.pool[self.rng.randrange(len(self.pool))]

    def step(self):
        r, x = self.rng, self.pick()
        kind, d, c = r.randrange(14), r.randrange(-2, 2), r.choice([0.5, 2.0, -1.0, 3])
        if kind == 0:
            f = r.choice([torch.tanh, torch.abs, torch.neg, torch.sigmoid, torch.sin])
            self.both(f.__name__, f, x)
        elif kind == 1:
            f = r.choice(
                [torch.add, torch.sub, torch.maximum, lambda a, b: (a * b).tanh(), lambda a, b: torch.where(a > b, a, b)]
            )
            self.both("binary", f, x, self.pick())  # sizes may not fit: an error on both
        elif kind == 2:
            self.both("number", lambda a: (a * c + 1).tanh(), x)
        elif kind == 3:
            self.both(f"select {d}", lambda a: a.select(d, 1), x)
        elif kind == 4:
            i = r.randrange(3)
            self.both(f"slice {d} {i}", lambda a: a.narrow(d, i, 2), x)
        elif kind == 5:
            self.both("transpose", lambda a: a.t(), x)
        elif kind == 6:
            self.both("reshape", lambda a: a.reshape(-1)[:4], x)
        elif kind == 7:
            self.both("expand", lambda a: a.unsqueeze(0).expand(2, *a.shape)[1], x)
        elif kind in (8, 9):
            y = self.pick(x)
            f = r.choice(
                [
                    lambda a, b: a.add_(c),
                    lambda a, b: a.mul_(0.5),
                    lambda a, b: a.copy_(b.clone()),
                    lambda a, b: a.fill_(c),
                    lambda a, b: a.masked_fill_(b > 0, c),
                    lambda a, b: a.add_(b.tanh()),
                    lambda a, b: a.zero_() if c == 3 else a.neg_(),
                ]
            )
            self.both("write", f, x, y, keep=False)
        elif kind == 10:
            f = r.choice([lambda a: a.mean(d), lambda a: a.amax(d), lambda a: a.cumsum(d).tanh(), lambda a: a.softmax(d)])
            self.both("reduce", f, x)
        elif kind == 11:
            self.both("matmul", lambda a, b: (a @ b).tanh(), x, self.pick())
        elif kind == 12:
            self.both("cat", lambda a, b: torch.cat([a, b])[:4], x, self.pick())
        elif kind == 13:
            if self.modes and r.random() < 0.5:
                torch.tpu.set_eager_mode(r.choice(list(torch.tpu.EagerMode)))
            else:
                self.compare(x)

    def compare(self, p):
        got = p.tpu.cpu()
        assert got.shape == p.cpu.shape and torch.allclose(got, p.cpu, rtol=1e-4, atol=1e-4, equal_nan=True), (
            f"seed {self.seed}: {self.text}\n{got}\n{p.cpu}"
        )

    def run(self):
        for _ in range(STEPS):
            self.step()
        for p in self.pool:
            self.compare(p)


@pytest.fixture(autouse=True)
def strict_again():
    yield
    torch.tpu.set_eager_mode(torch.tpu.EagerMode.STRICT)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ["STRICT", "DEBUG", "FUSED", "changing"])
def test_random_programs(name):
    if name != "changing":
        torch.tpu.set_eager_mode(torch.tpu.EagerMode[name])
    for seed in range(PROGRAMS):
        Program(seed, modes=name == "changing").run()


@pytest.mark.timeout(3600)
def test_random_programs_in_threads():
    errors = []

    def work(k):
        try:
            for seed in range(PROGRAMS // 2):
                Program(1000 * k + seed, modes=True).run()
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors, errors[0]
