"""Seam: the device. Availability, guards, streams, events, torch.accelerator, eager modes, several devices."""

import threading

import pytest
import torch
from tpu_testing import device_only, run_python, same

pytestmark = device_only


# ---- what the device says of itself ----------------------------------------------------------------------------------


def test_available():
    assert torch.tpu.is_available() is True
    assert torch.tpu.device_count() >= 1
    assert torch.accelerator.is_available()
    assert torch.accelerator.device_count() == torch.tpu.device_count()
    assert torch.accelerator.current_accelerator().type == "tpu"


def test_name_and_properties():
    assert isinstance(torch.tpu.get_device_name(), str) and torch.tpu.get_device_name()
    p = torch.tpu.get_device_properties(0)
    assert p.name == torch.tpu.get_device_name(0)
    assert p.total_memory == torch.tpu.mem_get_info()[1] > 0


def test_plugin_info_names_the_plugin_and_the_reason():
    torch.zeros(1, device="tpu")
    info = torch.tpu.plugin_info()
    assert info["path"].endswith(".so") and info["why"] and info["platform"]
    assert info["device_count"] == torch.tpu.device_count()


def test_a_new_tensor_lies_on_the_current_device():
    x = torch.zeros(2, device="tpu")
    assert x.device == torch.device("tpu", torch.tpu.current_device()) == torch.device("tpu:0")
    assert x.is_tpu and not x.is_cpu and not torch.zeros(1).is_tpu
    assert x.get_device() == 0


def test_moves_by_method():
    x = torch.arange(3.0)
    same(x.tpu(), x)
    same(x.tpu(0), x)
    same(x.to("tpu:0"), x)
    same(x.to(torch.device("tpu")), x)
    y = x.tpu()
    assert y.tpu() is y and y.to("tpu") is y


@pytest.mark.parametrize("bad", ["tpu:1", "tpu:99"])
def test_an_index_past_the_last_device_is_an_error(bad):
    if torch.tpu.device_count() > 1:
        pytest.skip("several devices are shown in this run")
    with pytest.raises(RuntimeError, match="device"):
        torch.zeros(1, device=bad)
    with pytest.raises((RuntimeError, ValueError, AssertionError)):
        torch.tpu.set_device(int(bad.split(":")[1]))
    assert torch.tpu.current_device() == 0
    assert torch.zeros(1, device="tpu").item() == 0


def test_default_device():
    with torch.device("tpu"):
        a, layer = torch.zeros(2), torch.nn.Linear(2, 2)
    assert a.is_tpu and layer.weight.is_tpu and torch.zeros(1).is_cpu
    torch.set_default_device("tpu")
    try:
        made = [torch.arange(3), torch.tensor([1.0]), torch.randn(2), torch.eye(2), torch.randperm(4)]
    finally:
        torch.set_default_device(None)
    assert all(t.is_tpu for t in made)


def test_guards_restore_the_device():
    with torch.tpu.device(0):
        assert torch.tpu.current_device() == 0
    with torch.tpu.device(torch.device("tpu:0")):
        assert torch.zeros(1, device="tpu").device.index == 0
    with pytest.raises(ZeroDivisionError), torch.tpu.device(0):
        1 / 0  # noqa: B018
    assert torch.tpu.current_device() == 0


def test_attributes_that_libraries_read():
    for (
        name
    ) in """is_available is_initialized _is_in_bad_fork _lazy_init device device_count current_device set_device synchronize
        manual_seed manual_seed_all get_rng_state set_rng_state get_amp_supported_dtype get_device_name get_device_properties
        memory_stats reset_peak_memory_stats empty_cache memory_allocated max_memory_allocated mem_get_info Stream Event stream
        StreamContext set_stream current_stream initial_seed seed default_generators compile_count fallback_counts cache_stats
        plugin_info EagerMode set_eager_mode eager_mode Precision precision""".split():
        assert hasattr(torch.tpu, name), f"torch.tpu.{name} is missing"
    assert torch.tpu.is_initialized() in (True, False) and torch.tpu._is_in_bad_fork() is False
    assert torch.bfloat16 in torch.tpu.get_amp_supported_dtype() and torch.float16 in torch.tpu.get_amp_supported_dtype()


# ---- torch.accelerator -------------------------------------------------------------------------------------------------


def test_accelerator_api():
    torch.accelerator.set_device_index(0)
    assert torch.accelerator.current_device_index() == 0
    x = torch.ones(256, device="tpu")
    torch.accelerator.synchronize()
    assert torch.accelerator.current_stream().device == x.device
    assert torch.accelerator.memory_allocated() >= 1024
    assert torch.accelerator.max_memory_allocated() >= torch.accelerator.memory_allocated()
    torch.accelerator.reset_peak_memory_stats()
    torch.accelerator.empty_cache()
    free, total = torch.accelerator.get_memory_info()
    assert 0 < free <= total
    assert torch.accelerator.memory_stats()["allocated_bytes.all.current"] >= 1024
    with torch.accelerator.device_index(0):
        assert torch.accelerator.current_device_index() == 0


# ---- streams and events --------------------------------------------------------------------------------------------------


def test_streams():
    default = torch.tpu.current_stream()
    s = torch.tpu.Stream()
    assert s.device.type == "tpu"
    x = torch.arange(8.0, device="tpu")
    with torch.tpu.stream(s):
        assert torch.tpu.current_stream() == s
        y = x * 2
        s.wait_stream(default)
    assert torch.tpu.current_stream() == default
    default.wait_stream(s)
    same(y + 1, torch.arange(8.0) * 2 + 1)
    s.synchronize()
    assert s.query() is True
    with torch.tpu.StreamContext(s):
        assert torch.tpu.current_stream() == s
    torch.tpu.set_stream(s)
    try:
        assert torch.tpu.current_stream() == s
    finally:
        torch.tpu.set_stream(default)
    assert isinstance(torch.Stream(device="tpu"), torch.Stream)
    y.record_stream(s)


def test_stream_context_with_none_changes_nothing():
    before = torch.tpu.current_stream()
    with torch.tpu.stream(None):
        assert torch.tpu.current_stream() == before


def test_events_measure_time():
    a, b = (torch.tpu.Event(enable_timing=True) for _ in "ab")
    x = torch.ones(512, 512, device="tpu")
    (x @ x).sum().item()
    a.record()
    for _ in range(8):
        x = (x @ x).clamp(max=1)
    b.record()
    b.synchronize()
    assert a.query() and b.query()
    assert 0 < a.elapsed_time(b) < 60_000
    assert b.elapsed_time(a) == pytest.approx(-a.elapsed_time(b))


def test_events_order_streams():
    s, e = torch.tpu.Stream(), torch.tpu.Event()
    x = torch.ones(4, device="tpu") + 1
    e.record()
    s.wait_event(e)
    e.wait(s)
    assert s.record_event() is not None
    e.synchronize()
    same(x, torch.full((4,), 2.0))


def test_time_between_events_that_keep_none_is_an_error():
    a, b = torch.tpu.Event(), torch.tpu.Event()
    a.record()
    b.record()
    with pytest.raises((RuntimeError, ValueError)):
        a.elapsed_time(b)


def test_an_event_that_was_not_recorded_has_no_time():
    a, b = (torch.tpu.Event(enable_timing=True) for _ in "ab")
    a.record()
    with pytest.raises((RuntimeError, ValueError)):
        a.elapsed_time(b)


# ---- modes -----------------------------------------------------------------------------------------------------------


def test_names_of_the_eager_modes():
    e = torch.tpu.EagerMode
    assert (e.STRICT, e.DEBUG, e.FUSED) == (e.DEFER_NEVER, e.DEFER_NEVER_AND_LAUNCH_BLOCKING, e.DEFER_AND_FUSE)
    assert torch.tpu.eager_mode == e.STRICT


def test_eager_mode_as_context_and_as_call():
    e = torch.tpu.EagerMode
    x = torch.arange(6.0, device="tpu")
    with torch.tpu.set_eager_mode(e.DEBUG):
        assert torch.tpu.eager_mode == e.DEBUG
        same((x * 2).sum(), torch.tensor(30.0))
    assert torch.tpu.eager_mode == e.STRICT
    torch.tpu.set_eager_mode(e.DEBUG)
    try:
        assert torch.tpu.eager_mode == e.DEBUG
    finally:
        torch.tpu.set_eager_mode(e.STRICT)
    assert torch.tpu.eager_mode == e.STRICT


def test_eager_mode_survives_an_exception():
    with pytest.raises(KeyError), torch.tpu.set_eager_mode(torch.tpu.EagerMode.DEBUG):
        raise KeyError("mine")
    assert torch.tpu.eager_mode == torch.tpu.EagerMode.STRICT


def test_launch_blocking_from_the_environment():
    out = run_python(
        "import torch; print(torch.tpu.eager_mode == torch.tpu.EagerMode.DEBUG, (torch.ones(2, device='tpu') + 1).tolist())",
        TORCH_TPU_LAUNCH_BLOCKING="1",
    )
    assert out.stdout.strip() == "True [2.0, 2.0]"


def test_matmul_precision_is_float32_by_default_and_can_be_chosen():
    a = torch.linspace(0, 1, 64 * 64).reshape(64, 64)
    d = a.tpu()
    exact = a.double() @ a.double()
    assert ((d @ d).cpu() - exact).abs().max() < 2e-5 * exact.abs().max()
    for p in (torch.tpu.Precision.DEFAULT, torch.tpu.Precision.HIGH, torch.tpu.Precision.HIGHEST):
        with torch.tpu.precision(p):
            assert ((d @ d).cpu() - exact).abs().max() < 2e-2 * exact.abs().max()
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        assert ((d @ d).cpu() - exact).abs().max() < 2e-2 * exact.abs().max()
    finally:
        torch.set_float32_matmul_precision(before)


def test_counters():
    x = torch.ones(37, 11, device="tpu")
    before, stats = torch.tpu.compile_count(), torch.tpu.cache_stats()
    (x + x).sum().item()
    assert torch.tpu.compile_count() > before
    now = torch.tpu.cache_stats()
    assert isinstance(now, dict) and now != stats and now["key_misses"] > stats["key_misses"]
    (x + x).sum().item()
    again = torch.tpu.cache_stats()
    assert again["key_misses"] == now["key_misses"] and again["key_hits"] > now["key_hits"]
    assert isinstance(torch.tpu.fallback_counts(), dict)


def test_each_thread_starts_on_the_first_device():
    seen = []
    t = threading.Thread(target=lambda: seen.append((torch.tpu.current_device(), torch.ones(2, device="tpu").sum().item())))
    t.start()
    t.join()
    assert seen == [(0, 2.0)]


# ---- several devices ---------------------------------------------------------------------------------------------------

SEVERAL = """
import torch, threading
assert torch.tpu.device_count() == 3 == torch.accelerator.device_count()
"""


def several(body, **env):
    import textwrap

    return run_python(SEVERAL + textwrap.dedent(body), TORCH_TPU_CPU_DEVICES="3", **env)


def test_copies_between_devices():
    several("""
    c = torch.arange(24.).reshape(4, 6)
    for a in range(3):
        for b in range(3):
            x = c.to(f"tpu:{a}")
            for f in (lambda t: t, lambda t: t.t(), lambda t: t[1:, ::2], lambda t: t[0, 0], lambda t: t[:0], lambda t: t.expand(2, 4, 6)):
                y = f(x).to(f"tpu:{b}")
                assert y.device == torch.device("tpu", b), y.device
                assert torch.equal(y.cpu(), f(c))
            y = x.to(f"tpu:{b}", torch.int64)
            assert y.dtype == torch.int64 and torch.equal(y.cpu(), c.long())
            z = torch.zeros(8, 6, device=f"tpu:{b}")
            z[::2].copy_(x, non_blocking=True)
            e = torch.zeros(8, 6); e[::2] = c
            assert torch.equal(z.cpu(), e)
            q = (torch.view_as_complex(c.view(4, 3, 2)).to(f"tpu:{a}").conj()).to(f"tpu:{b}")
            assert torch.equal(q.cpu(), torch.view_as_complex(c.view(4, 3, 2)).conj().resolve_conj())
    x = c.to("tpu:1"); x.add_(1); y = x.to("tpu:2"); x.add_(1)
    assert torch.equal(y.cpu(), c + 1) and torch.equal(x.cpu(), c + 2)
    """)


def test_the_current_device_is_where_tensors_are_made():
    several("""
    torch.tpu.set_device(2)
    assert torch.tpu.current_device() == 2 and torch.ones(1, device="tpu").device.index == 2
    with torch.tpu.device(1):
        assert torch.zeros(1, device="tpu").device.index == 1
        assert torch.arange(3, device="tpu:0").device.index == 0
    assert torch.tpu.current_device() == 2
    x = torch.ones(2, device="tpu:1")
    assert (x + 1).device.index == 1 and torch.zeros_like(x).device.index == 1 and x.new_ones(2).device.index == 1 and torch.rand_like(x).device.index == 1
    assert torch.tpu.current_device() == 2
    seen = []
    t = threading.Thread(target=lambda: (seen.append(torch.tpu.current_device()), torch.tpu.set_device(1), seen.append(torch.ones(1, device="tpu").device.index)))
    t.start(); t.join()
    assert seen == [0, 1] and torch.tpu.current_device() == 2
    torch.accelerator.set_device_index(0)
    assert torch.tpu.current_device() == 0
    """)


def test_devices_do_not_mix():
    several("""
    a, b = torch.ones(2, device="tpu:0"), torch.ones(2, device="tpu:1")
    for f in (lambda: a + b, lambda: a.add_(b), lambda: torch.cat([a, b]), lambda: a @ b, lambda: torch.add(a, a, out=b)):
        try: f()
        except RuntimeError as e: assert "tpu:0" in str(e) and "tpu:1" in str(e), e
        else: raise AssertionError("no error")
    assert a.tolist() == b.tolist() == [1, 1]
    for bad in ("tpu:3", "tpu:-1" if False else "tpu:7"):
        try: torch.ones(1, device=bad)
        except RuntimeError as e: assert "3" in str(e) or "7" in str(e)
        else: raise AssertionError("no error")
    """)


def test_each_device_has_its_memory_its_random_numbers_and_its_stream():
    several("""
    x = torch.zeros(1000, device="tpu:1"); x.add_(1)
    assert torch.tpu.memory_allocated(1) >= 4000 and torch.tpu.memory_allocated(2) == 0
    torch.tpu.manual_seed_all(7)
    a = [torch.rand(4, device=f"tpu:{i}").cpu() for i in range(3)]
    assert torch.equal(a[0], a[1]) and torch.equal(a[1], a[2])
    torch.rand(4, device="tpu:1")
    assert not torch.equal(torch.rand(4, device="tpu:1").cpu(), torch.rand(4, device="tpu:2").cpu())
    s = torch.tpu.get_rng_state(1); r = torch.rand(3, device="tpu:1").cpu(); torch.tpu.set_rng_state(s, 1)
    assert torch.equal(torch.rand(3, device="tpu:1").cpu(), r)
    for i in range(3): torch.tpu.synchronize(i)
    torch.tpu.synchronize()
    assert torch.tpu.current_stream(2).device.index == 2
    assert len(torch.tpu.default_generators) >= 3
    """)


def test_gradients_cross_devices():
    several("""
    w = torch.tensor([1., 2., 3.], device="tpu:0", requires_grad=True)
    y = (w * 2).to("tpu:1"); z = (y * y).to("tpu:2").sum(); z.backward()
    assert w.grad.device.index == 0 and w.grad.tolist() == [8, 16, 24]
    m = torch.nn.Sequential(torch.nn.Linear(3, 4).to("tpu:1"), torch.nn.Tanh(), torch.nn.Linear(4, 2).to("tpu:1"))
    m(torch.ones(5, 3, device="tpu:1")).sum().backward()
    assert all(p.grad.device.index == 1 for p in m.parameters())
    assert torch.tpu.current_device() == 0
    """)
