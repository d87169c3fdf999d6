"""Seam: memory. What is allocated, peaks, limits, and that nothing is lost over many steps."""

import gc
import weakref

import pytest
import torch
from torch import nn
from tpu_testing import DEVICE, IS_CPU, same

pytestmark = pytest.mark.skipif(IS_CPU, reason="torch counts no CPU memory")
MB = 1 << 20


@pytest.fixture(autouse=True)
def settled():
    gc.collect()
    torch.tpu.synchronize()
    torch.tpu.reset_peak_memory_stats()


def allocated():
    return torch.tpu.memory_allocated()


def test_allocated_follows_the_tensors():
    a = allocated()
    x = torch.empty(MB, device="tpu")
    assert allocated() - a == 4 * MB
    y = x[10:].view(-1)
    assert allocated() - a == 4 * MB  # a view costs nothing
    z = x + 1
    assert allocated() - a == 8 * MB
    del x, z
    assert allocated() - a == 4 * MB  # y holds its base
    del y
    assert allocated() == a


def test_peak_and_reset():
    a = allocated()
    x = torch.zeros(2 * MB, device="tpu")
    del x
    assert torch.tpu.max_memory_allocated() >= a + 8 * MB and allocated() == a
    torch.tpu.reset_peak_memory_stats()
    assert torch.tpu.max_memory_allocated() == allocated()
    assert torch.accelerator.max_memory_allocated() == torch.tpu.max_memory_allocated()


def test_mem_get_info_and_stats():
    free, total = torch.tpu.mem_get_info()
    x = torch.zeros(MB, device="tpu")
    assert torch.tpu.mem_get_info()[1] == total and free - torch.tpu.mem_get_info()[0] == 4 * MB
    s = torch.tpu.memory_stats()
    for key in (
        "allocated_bytes.all.current",
        "active_bytes.all.peak",
        "reserved_bytes.all.peak",
        "num_alloc_retries",
        "num_ooms",
    ):
        assert key in s
    assert s["allocated_bytes.all.current"] == allocated() and s["allocated_bytes.all.peak"] >= 4 * MB
    assert torch.accelerator.get_memory_info() == torch.tpu.mem_get_info()
    assert "tpu" in torch.tpu.memory_summary()
    del x


def test_in_place_and_copies_do_not_grow():
    x = torch.zeros(MB, device="tpu")
    a = allocated()
    for i in range(5):
        x.add_(1)
        x[i : i + 100].mul_(2)
        x.copy_(torch.ones(MB))
    assert allocated() == a
    torch.tpu.reset_peak_memory_stats()
    x.mul_(2)
    assert torch.tpu.max_memory_allocated() == a


def test_storage_resize_is_counted():
    a = allocated()
    x = torch.zeros(MB, device="tpu")
    x.untyped_storage().resize_(0)
    assert allocated() == a
    x.untyped_storage().resize_(4 * MB)
    assert allocated() == a + 4 * MB


def test_zero_size_tensors_cost_nothing():
    a = allocated()
    keep = [torch.empty(0, 5, device="tpu") for _ in range(10)]
    assert allocated() == a and len(keep) == 10


def test_out_of_memory():
    a, ooms = allocated(), torch.tpu.memory_stats()["num_ooms"]
    with pytest.raises(torch.OutOfMemoryError, match=r"(?i)memory.*\d"):
        torch.empty(1 << 40, dtype=torch.uint8, device="tpu")
    assert allocated() == a and torch.tpu.memory_stats()["num_ooms"] == ooms + 1
    same(torch.ones(2, device="tpu") + 1, torch.full((2,), 2.0))


def test_tensors_die_with_their_last_reference():
    x = torch.ones(10, device="tpu")
    r = weakref.ref(x)
    y = x * 2
    del x
    assert r() is None
    z = torch.ones(10, device="tpu", requires_grad=True)
    a = allocated()
    loss = (z * 2).exp().sum()
    loss.backward()
    del loss
    z.grad = None
    assert allocated() == a
    del y


def rss():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * 4096


STEPS = {
    "copies": lambda s: torch.ones(256, 256).to(DEVICE).mul(2).cpu(),
    "views": lambda s: s["x"][3:, ::2].t().mul_(1.0).sum().item(),
    "new numbers": lambda s: s["x"].add(torch.rand(()).item()).sum().item(),
    "training": lambda s: train(s),
    "errors": lambda s: error(s),
    "strange sizes": lambda s: [torch.empty(n, device=DEVICE) for n in range(1, 60)],
    "events": lambda s: torch.tpu.Event(enable_timing=True).record(),
    "rng": lambda s: torch.nn.functional.dropout(s["x"], 0.5).sum().item(),
    "lists": lambda s: torch._foreach_add([s["x"]] * 5, 1.0),
}


def train(s):
    s["o"].zero_grad()
    s["net"](s["x"]).square().mean().backward()
    s["o"].step()


def error(s):
    for bad in (lambda: s["x"] + torch.ones(3, device=DEVICE), lambda: torch.empty(1 << 45, device=DEVICE), lambda: s["x"][999]):
        with pytest.raises((RuntimeError, IndexError)):
            bad()


@pytest.mark.parametrize("kind", STEPS)
def test_no_leak_over_300_steps(kind):
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).to(DEVICE)
    s = {"x": torch.ones(32, 64, device=DEVICE), "net": net, "o": torch.optim.AdamW(net.parameters())}
    for _ in range(60):
        STEPS[kind](s)
    gc.collect()
    torch.tpu.synchronize()
    a, r, stores = allocated(), rss(), torch.tpu.memory_stats()["allocation.all.current"]
    for _ in range(300):
        STEPS[kind](s)
    gc.collect()
    torch.tpu.synchronize()
    assert allocated() == a and torch.tpu.memory_stats()["allocation.all.current"] == stores
    assert rss() - r < 24 * MB, f"resident memory grew by {(rss() - r) >> 20} MB"


def test_caches_are_bounded():
    from tpu_testing import run_python

    out = run_python(
        """
        import torch
        x = torch.ones(4, device="tpu")
        for i in range(400): x.add(0.001 * i)
        for n in range(1, 60): torch.ones(n, device="tpu").sum()
        s = torch.tpu.cache_stats()
        assert s["number_entries"] <= 32 and s["program_entries"] <= 16 and s["key_entries"] <= 16, s
        assert x.add(0.5).tolist() == [1.5] * 4 and torch.ones(3, device="tpu").sum().item() == 3
        torch.tpu.empty_cache()
        assert torch.tpu.cache_stats()["number_entries"] == 0
        print(x.add(2).tolist())
        """,
        TORCH_TPU_NUMBER_CACHE="32",
        TORCH_TPU_PROGRAM_CACHE="16",
        TORCH_TPU_KEY_CACHE="16",
    )
    assert out.stdout.strip() == "[3.0, 3.0, 3.0, 3.0]"


def test_programs_that_are_dropped_are_unmapped_and_used_ones_stay():
    """Each program takes mappings of memory, of which a process has a limited number."""
    from tpu_testing import run_python

    run_python(
        """
        import torch
        maps = lambda: len(open("/proc/self/maps").readlines())
        x = torch.ones(4, device="tpu")
        x.mul(3).tolist()
        before = None
        for n in range(2, 300):
            torch.ones(n, device="tpu").sum().item()
            x.mul(3)
            if n == 100: before, compiled = maps(), torch.tpu.compile_count()
        assert torch.tpu.cache_stats()["program_entries"] <= 64
        assert maps() < before + 150, (before, maps())
        hot = torch.tpu.compile_count()
        x.mul(3)
        assert torch.tpu.compile_count() == hot, "the program that is used all the time was dropped"
        """,
        TORCH_TPU_PROGRAM_CACHE="64",
        TORCH_TPU_CACHE_SIZE="0",
    )
