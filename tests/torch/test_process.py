"""Seam: processes and threads. spawn, fork, exit with work queued, several threads at once."""

import os
import threading

import pytest
import torch
import torch.multiprocessing as mp
from tpu_testing import DEVICE, device_only, run_python, same

# ---- threads -----------------------------------------------------------------------------------------------------------


def in_threads(n, fn):
    out, errors = {}, []

    def run(i):
        try:
            out[i] = fn(i)
        except BaseException as e:  # noqa: BLE001 - raised again below
            errors.append(e)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(100)
        assert not t.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]
    return out


def test_threads_of_their_own():
    def work(i):
        t = torch.full((100,), float(i), device=DEVICE)
        for _ in range(60):
            t.add_(1)
        return t.sum().item()

    assert in_threads(6, work) == {i: (i + 60) * 100.0 for i in range(6)}


def test_threads_that_compile_at_once():
    def work(i):
        return [torch.arange(float(n + 3), device=DEVICE).mul(i + 1).sum().item() for n in range(12)]

    got = in_threads(4, work)
    for i in range(4):
        assert got[i] == [(n + 3) * (n + 2) / 2 * (i + 1) for n in range(12)]


def test_threads_that_compile_the_same_program():
    start = threading.Barrier(4)

    def work(i):
        start.wait()
        return (torch.full((7, 13), 2.0, device=DEVICE) * 3 + i).sum().item()

    assert in_threads(4, work) == {i: 91 * (6.0 + i) for i in range(4)}


def test_threads_that_share_a_tensor():
    x = torch.arange(1000.0, device=DEVICE)
    assert set(in_threads(4, lambda i: [(x * 2).sum().item() for _ in range(20)][-1]).values()) == {999000.0}
    rows = torch.zeros(8, 50, device=DEVICE)
    lock = threading.Lock()

    def write(i):
        for _ in range(10):
            with lock:
                rows[i] += i

    in_threads(8, write)
    same(rows, (torch.arange(8.0)[:, None] * 10).expand(8, 50))


def test_threads_with_gradients():
    w = [torch.nn.Linear(4, 4).to(DEVICE) for _ in range(3)]

    def work(i):
        for _ in range(5):
            w[i].zero_grad()
            w[i](torch.ones(2, 4, device=DEVICE)).sum().backward()
        return w[i].bias.grad.tolist()

    assert set(map(tuple, in_threads(3, work).values())) == {(2.0,) * 4}


def test_threads_with_random_numbers():
    torch.manual_seed(0)
    got = in_threads(4, lambda i: torch.cat([torch.rand(200, dtype=torch.float64, device=DEVICE) for _ in range(5)]).cpu())
    assert torch.cat(list(got.values())).unique().numel() == 4000  # no number is given to two threads


def test_tensors_made_and_freed_by_different_threads():
    box = [torch.full((64,), float(i), device=DEVICE) for i in range(200)]

    def take(i):
        s = 0.0
        for _ in range(50):
            s += box.pop().mean().item()
        return s

    assert sum(in_threads(4, take).values()) == sum(range(200))


# ---- spawn -------------------------------------------------------------------------------------------------------------


def child_computes(i, queue):
    x = torch.full((3,), float(i), device=DEVICE) * 2
    queue.put((i, x.tolist()))


def child_gets(queue, back):
    back.put((queue.get() * 2).tolist())


def test_spawn():
    context = mp.get_context("spawn")
    queue = context.Queue()
    torch.ones(2, device=DEVICE).add_(1).cpu()
    ps = [context.Process(target=child_computes, args=(i, queue)) for i in range(2)]
    for p in ps:
        p.start()
    got = dict(queue.get(timeout=100) for _ in ps)
    for p in ps:
        p.join(100)
        assert p.exitcode == 0
    assert got == {0: [0.0] * 3, 1: [2.0] * 3}


def test_spawn_by_torch():
    mp.spawn(child_computes, args=(mp.get_context("spawn").SimpleQueue(),), nprocs=2)


@device_only
def test_a_device_tensor_in_a_queue_arrives_or_is_refused_clearly():
    code = f"""
    import sys, torch, torch.multiprocessing as mp
    sys.path.insert(0, {os.path.dirname(__file__)!r})
    from test_process import child_gets
    if __name__ == "__main__":
        c = mp.get_context("spawn"); q, back = c.SimpleQueue(), c.SimpleQueue()
        try: q.put(torch.tensor([1., 2.], device="tpu"))
        except (RuntimeError, NotImplementedError) as e: print("refused:", e)
        else:
            p = c.Process(target=child_gets, args=(q, back)); p.start(); print("arrived:", back.get()); p.join()
    """
    out = run_python(code).stdout.strip()
    assert out == "arrived: [2.0, 4.0]" or (out.startswith("refused:") and len(out) > 30), out


# ---- fork --------------------------------------------------------------------------------------------------------------


def forked(body, before="torch.ones(1, device='tpu').add_(1).cpu()"):
    code = f"""
import os, sys, torch
{before}
pid = os.fork()
if pid == 0:
    try:
{chr(10).join("        " + line for line in body.splitlines())}
    except BaseException as e:
        print(type(e).__name__, e, flush=True); os._exit(3)
    os._exit(0)
status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
assert (torch.ones(1, device="tpu") + 1).item() == 2
print(status)
"""
    return run_python(code).stdout.strip().splitlines()


@device_only
def test_a_forked_child_that_leaves_the_device_alone():
    assert forked("torch.ones(3).sum().item()") == ["0"]
    assert forked("assert torch.tpu._is_in_bad_fork() and not torch.tpu.is_initialized()") == ["0"]


@device_only
@pytest.mark.parametrize(
    "use",
    [
        "torch.zeros(1, device='tpu')",
        "torch.ones(2).tpu()",
        "torch.tpu.synchronize()",
        "x + 1",
        "x.cpu()",
        "x.item()",
        "torch.rand(1, device='tpu')",
    ],
)
def test_a_forked_child_that_uses_the_device(use):
    first, status = forked(use, before="x = torch.ones(1, device='tpu'); x.add_(1).cpu()")
    assert first.startswith("RuntimeError") and "spawn" in first and "fork" in first and status == "3"


@device_only
def test_a_fork_before_the_first_use_is_no_harm():
    assert forked("assert (torch.ones(2, device='tpu') + 1).sum().item() == 4", before="") == ["0"]


@device_only
def test_a_forked_child_may_drop_device_tensors_and_exit():
    code = """
    import os, sys, torch
    x = [torch.ones(100, device="tpu") * i for i in range(20)]
    pid = os.fork()
    if pid == 0:
        del x
        sys.exit(0)  # with all exit hooks
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert x[3].sum().item() == 300
    """
    run_python(code, timeout=60)


# ---- exit --------------------------------------------------------------------------------------------------------------

EXITS = {
    "queued work": "x = torch.ones(256, 256, device='tpu')\nfor _ in range(50): x = (x @ x).clamp(max=1)",
    "after backward": "x = torch.ones(64, 64, device='tpu', requires_grad=True)\n(x @ x).sum().backward()",
    "a training step": "m = torch.nn.Linear(8, 8).to('tpu'); o = torch.optim.AdamW(m.parameters())\nm(torch.ones(4, 8, device='tpu')).sum().backward(); o.step()",
    "a live graph": "x = torch.ones(8, device='tpu', requires_grad=True)\ny = (x * 2).exp().sum()",
    "a thread": "import threading\nt = threading.Thread(target=lambda: (torch.ones(64, 64, device='tpu') @ torch.ones(64, 64, device='tpu')).sum().item()); t.start()",
    "atexit": "import atexit\nx = torch.ones(3, device='tpu')\natexit.register(lambda: print((x + 1).tolist()))",
    "module teardown": "import builtins\nbuiltins.keep = torch.ones(3, device='tpu')\nclass D:\n  def __del__(self): self.t.add_(1)\nd = D(); d.t = torch.ones(2, device='tpu'); builtins.d = d",
    "events and streams": "e = torch.tpu.Event(enable_timing=True); e.record(); s = torch.tpu.Stream(); builtins_keep = (e, s)",
    "a non-blocking copy": "y = torch.ones(1 << 20, pin_memory=True).to('tpu', non_blocking=True)",
    "a reference cycle": "x = [torch.ones(3, device='tpu')]; x.append(x)",
    "nothing": "",
}


@device_only
@pytest.mark.parametrize("kind", EXITS)
def test_exit(kind):
    for _ in range(2):
        done = run_python("import torch\n" + EXITS[kind], timeout=60)
        assert "Traceback" not in done.stderr and "terminate" not in done.stderr, done.stderr[-800:]
    if kind == "atexit":
        assert done.stdout.strip() == "[2.0, 2.0, 2.0]"


@device_only
def test_exit_status_is_the_scripts():
    code = "import torch, sys\nx = torch.ones(64, 64, device='tpu')\nfor _ in range(20): x = x @ x\n"
    assert run_python(code + "sys.exit(7)", check=False).returncode == 7
    done = run_python(code + "raise KeyError('mine')", check=False)
    assert done.returncode == 1 and "KeyError: 'mine'" in done.stderr
    assert run_python(code + "import os; os._exit(5)", check=False).returncode == 5


@device_only
def test_the_interpreter_lock_is_free_while_the_device_works():
    """Another Python thread gets on while this one compiles and waits."""
    ticks, stop = [0], threading.Event()

    def count():
        while not stop.is_set():
            ticks[0] += 1
            stop.wait(0.001)

    t = threading.Thread(target=count)
    t.start()
    try:
        most = 0
        for n in range(10):
            before = ticks[0]
            torch.ones(n + 40, 3, device=DEVICE).cumsum(0).cpu()
            most = max(most, ticks[0] - before)
    finally:
        stop.set()
        t.join()
    assert most >= 4, f"the other thread ran {most} times at most while a program was compiled"
