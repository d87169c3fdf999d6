"""Seam: when an operator runs. Programs agree in every mode; DeferAndFuse fuses, settles, and flushes when it must; explain
and the compile policy tell the truth."""

import random
import threading
import warnings

import pytest
import torch
from torch import nn
from tpu_testing import DEVICE, check, device_only, run_python, sample

pytestmark = device_only
F = torch.nn.functional
MODES = ["STRICT", "DEBUG", "FUSED"]


def mode(name):
    return torch.tpu.set_eager_mode(torch.tpu.EagerMode[name])


def lines_of(code, **env):
    return run_python(code, **env).stdout.splitlines()


def delta(before):
    after = torch.tpu.cache_stats()
    return {k: after[k] - before[k] for k in after}


# ---- the same numbers in every mode ----------------------------------------------------------------------------------


def pointwise(d):
    x = sample(torch.float32, 8, 8).to(d)
    return [((x * 2 + 1).tanh().exp() - x).abs().sqrt(), x.sum(1)]


def writes(d):
    x = sample(torch.float32, 6, 4).to(d)
    y = x[1:4]
    y.mul_(2)
    x[:, 2] = y[0, 0]
    x.t()[1].add_(x[:, 0])
    torch.add(x, 1, out=y.new_empty(0))
    return [x, y]


def masks(d):
    x = sample(torch.float32, 6, 4).to(d)
    x[x > 3] = 0
    return [x, x.nonzero(), x[x < 0], x.unique()]


def draws(d):
    torch.manual_seed(7)
    x = torch.randn(5, 5, device=d)
    return [x, torch.rand(3, device=d), F.dropout(x, 0.5), torch.randint(0, 9, (4,), device=d), torch.randperm(7, device=d)]


def trains(d):
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Dropout(0.25), nn.Linear(16, 4)).to(d)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    x, y = torch.randn(6, 8).to(d), torch.randn(6, 4).to(d)
    losses = []
    torch.manual_seed(4)
    for _ in range(5):
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *net.state_dict().values()]


def decomposes(d):
    x = sample(torch.float32, 4, 6).to(d)
    return [F.gaussian_nll_loss(x, x * 0.5, x.abs() + 1), torch.special.logit(x.sigmoid()), F.huber_loss(x, x + 2)]


def shares(d):
    x = torch.zeros(4).to(d)
    views = [x[i] for i in range(4)]
    for i, v in enumerate(views):
        v.add_(i)
    z = x.clone()
    x.zero_()
    return [x, z, torch.stack(views), x.view(2, 2)]


PROGRAMS = {f.__name__: f for f in (pointwise, writes, masks, draws, trains, decomposes, shares)}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("other", ["DEBUG", "FUSED"])
def test_modes_agree(name, other):
    with mode("STRICT"):
        want = [t.cpu() for t in PROGRAMS[name](DEVICE)]
    with mode(other):
        for _ in range(3):  # new, then known, then compiled as a whole
            got = PROGRAMS[name](DEVICE)
            for g, w in zip(got, want, strict=True):
                check(g, w, 2e-6, 2e-6) if w.is_floating_point() else check(g, w, 0, 0)


@pytest.mark.parametrize("other", ["DEBUG", "FUSED"])
def test_random_numbers_are_identical(other):
    with mode("STRICT"):
        want = [t.cpu() for t in draws(DEVICE)]
    with mode(other):
        for g, w in zip(draws(DEVICE), want, strict=True):
            assert torch.equal(g.cpu(), w)


def test_a_gradient_is_right_when_it_waits():
    with mode("FUSED"):
        x = sample(torch.float64, 4, 3).to(DEVICE).requires_grad_()
        # the first time calls run one by one, later as one program: the last bits may differ
        assert torch.autograd.gradcheck(lambda v: (v.sin() * v.exp()).sum(0), x, nondet_tol=1e-12)


# ---- what DeferAndFuse does ------------------------------------------------------------------------------------------


def chain(x, n=12):
    for i in range(n):
        x = (x * 1.5 + i).tanh()
    return x


@pytest.mark.parametrize(("n", "size"), [(10, 16), (12, 256), (80, 256)])
def test_a_chain_is_one_program(n, size):
    x = sample(torch.float32, size, size).to(DEVICE)
    with mode("FUSED"):
        for _ in range(3):
            before = torch.tpu.cache_stats()
            chain(x, n).cpu()
        d = delta(before)
    assert (d["calls"], d["executions"], d["compiles"]) == (3 * n, 1, 0), d


def test_small_values_start_before_all_is_recorded():
    x = sample(torch.float32, 16, 16).to(DEVICE)
    with mode("FUSED"):
        for _ in range(4):
            x.cpu()
            before = torch.tpu.cache_stats()
            y = x
            for k in range(31):
                y = (y + k).tanh() if k % 2 else (y * 2).abs()
            waiting = delta(before)
            y.cpu()
    d = delta(before)
    assert waiting["calls"] == 62 and 1 <= waiting["executions"] <= 3, waiting
    assert d["executions"] <= 4 and d["compiles"] == 0, d


def test_calls_mixed_anew_each_time_are_not_compiled_as_a_whole():
    order = random.Random(0)
    x = sample(torch.float32, 16, 16).to(DEVICE)
    calls = [lambda v, i=i: v + i if i % 2 else v * i for i in range(8)] + [torch.sin, torch.abs, torch.tanh, torch.neg]
    with mode("FUSED"):
        before = torch.tpu.cache_stats()
        for _ in range(40):
            y = x
            for f in order.choices(calls, k=12):
                y = f(y)
            y.cpu()
    assert delta(before)["compiles"] <= 3 + 6, delta(before)  # three of the first, and the calls alone


def test_values_that_nobody_holds_are_not_made():
    x = sample(torch.float32, 16, 16).to(DEVICE)
    with mode("FUSED"):
        torch.tpu.synchronize()
        before = torch.tpu.cache_stats()
        for _ in range(5):
            x + 1
        torch.tpu.synchronize()
    assert delta(before)["executions"] == 0


@pytest.mark.parametrize("length", [5, 12, 38, 300])
def test_a_loop_without_reads_settles(length):
    def loop(x):
        for _ in range(1000 // length + 1):
            for i in range(length):
                x = x * 0.5 if i % 5 == 0 else x + i if i % 5 < 3 else x.tanh() if i == length - 2 else x.abs()
        torch.tpu.synchronize()
        return x

    x = sample(torch.float32, 8).to(DEVICE)
    with mode("STRICT"):
        want = loop(x).cpu()
    with mode("FUSED"):
        for _ in range(3):
            loop(x)
        before = torch.tpu.cache_stats()
        got = loop(x)
        d = delta(before)
    assert d["compiles"] == 0 and d["executions"] <= d["calls"] / 10, d
    check(got, want, 1e-5, 1e-6)


def test_a_training_step_is_few_programs():
    torch.manual_seed(0)
    net = nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(32, 32), nn.GELU())]).to(DEVICE)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    x = torch.randn(8, 32).to(DEVICE)
    with mode("FUSED"):
        for _ in range(12):
            before = torch.tpu.cache_stats()
            optimizer.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            optimizer.step()
            loss.item()
        d = delta(before)
    assert d["compiles"] == 0 and d["executions"] <= 3 and d["fused"] > 20, d


def test_code_that_never_repeats_compiles_no_more_than_strict():
    """The same operators in an order that is always new: after the first they are known one by one, and run so."""
    import random

    rng = random.Random(0)
    ops = [lambda x: x + 1, lambda x: x * 2, torch.tanh, torch.abs, lambda x: x - 3, torch.neg]
    x = sample(torch.float32, 7).to(DEVICE)
    with mode("STRICT"):
        for f in ops:
            f(x).cpu()
    with mode("FUSED"):
        for f in ops:
            f(x).cpu()
        before = torch.tpu.cache_stats()
        for _ in range(20):
            y = x
            for _ in range(10):
                y = rng.choice(ops)(y)
            y.cpu()
        assert delta(before)["compiles"] == 0


def test_the_budget_of_bytes(tmp_path):
    out = lines_of(
        """
        import torch
        with torch.tpu.set_eager_mode(torch.tpu.EagerMode.FUSED):
            x = torch.ones(1024, device="tpu")
            kept = [x + i for i in range(100)]
            print(torch.tpu.cache_stats()["flush_bytes"] > 0, sum(float(k[0]) for k in kept))
        """,
        TORCH_TPU_DEFER_BYTES="65536",
    )
    assert out == ["True 5050.0"], out


def test_inputs_that_only_wait_are_counted():
    out = lines_of(
        """
        import torch
        with torch.tpu.set_eager_mode(torch.tpu.EagerMode.FUSED):
            kept = []
            for i in range(100):
                kept.append(torch.full((1024,), float(i)).to("tpu").sum())
            print(torch.tpu.cache_stats()["flush_bytes"] > 0, sum(k.item() for k in kept))
        """,
        TORCH_TPU_DEFER_BYTES="65536",
    )
    assert out == ["True 5068800.0"], out


@pytest.mark.parametrize("way", ["item", "cpu", "print", "numpy", "event", "synchronize", "mode", "thread", "bool", "copy"])
def test_what_makes_it_run(way):
    x = sample(torch.float32, 4, 4).to(DEVICE)
    with mode("FUSED"):
        torch.tpu.synchronize()
        before = torch.tpu.cache_stats()
        y = x.abs() + 1
        assert delta(before)["executions"] == 0
        want = sample(torch.float32, 4, 4).abs() + 1
        if way == "item":
            assert y.sum().item() == want.sum().item()
        elif way == "cpu":
            assert torch.equal(y.cpu(), want)
        elif way == "print":
            assert repr(want)[:-1] in repr(y).replace(", device='tpu:0'", "")
        elif way == "numpy":
            assert (y.cpu().numpy() == want.numpy()).all()
        elif way == "event":
            e = torch.tpu.Event()
            e.record()
            e.synchronize()
            assert e.query()
        elif way == "synchronize":
            torch.tpu.synchronize()
        elif way == "mode":
            with mode("STRICT"):
                assert torch.equal(y.cpu(), want)
        elif way == "thread":
            seen = []
            t = threading.Thread(target=lambda: seen.append((y * 2).cpu()))
            t.start()
            t.join()
            assert torch.equal(seen[0], want * 2)
        elif way == "bool":
            assert bool((y >= 1).all())
        elif way == "copy":
            host = torch.empty(4, 4)
            host.copy_(y)
            assert torch.equal(host, want)
        assert delta(before)["executions"] >= 1


def test_memory_of_an_updated_parameter_is_reused():
    x = torch.zeros(1000, device=DEVICE)
    with mode("FUSED"):
        for _ in range(4):
            x.add_(1).mul_(1)
            torch.tpu.synchronize()
        before = torch.tpu.memory_allocated()
        x.add_(1).mul_(1)
        torch.tpu.synchronize()
        assert torch.tpu.memory_allocated() == before
    check(x, torch.full((1000,), 5.0), 0, 0)


def test_two_devices_wait_apart():
    out = lines_of(
        """
        import torch
        with torch.tpu.set_eager_mode(torch.tpu.EagerMode.FUSED):
            a, b = torch.ones(3, device="tpu:0"), torch.ones(3, device="tpu:1")
            for _ in range(4):
                a, b = a * 2, b * 3
            print((a + b.to("tpu:0")).tolist(), torch.tpu.cache_stats()["executions"] <= 4)
        """,
        TORCH_TPU_CPU_DEVICES="2",
    )
    assert out == ["[97.0, 97.0, 97.0] True"], out


# ---- seeing and steering ---------------------------------------------------------------------------------------------


def test_explain():
    x = sample(torch.float32, 3, 11).to(DEVICE)
    with mode("FUSED"), torch.tpu.explain(quiet=True) as e:
        y = (x * 2).sin().cos()
        y.sum().item()
    (read,) = e.reads
    assert "test_modes.py:" in read.text
    assert sum(p.calls for p in e.programs) >= 4 and e.stats["deferred"] >= 4
    assert [f.calls for f in e.flushes] == [4]
    for event in e.compiles:
        assert "aten::sin" in event.text and event.duration > 0
    page = e.to_html()
    assert "<svg" in page and "http" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "the host read 1 values" in str(e)


def test_explain_says_what_differs(tmp_path):
    out = lines_of(
        """
        import torch
        x = torch.ones(4, 5, device="tpu")
        with torch.tpu.set_eager_mode(torch.tpu.EagerMode.FUSED), torch.tpu.explain(quiet=True) as e:
            (x * 2).sin().cos().abs().cpu()
            (x * 2).sin().exp().abs().cpu()
        print(len(e.compiles), e.why(e.compiles[1]))
        """,
        TORCH_TPU_CACHE_SIZE="0",
    )
    assert out == ["2 like an earlier one but for: aten::cos -> aten::exp"], out


def test_explain_counts_fallbacks():
    with torch.tpu.explain(quiet=True) as e, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.linalg.eigvals(sample(torch.float32, 3, 3).to(DEVICE))
    assert [f.text for f in e.fallbacks] == list(dict.fromkeys(f.text for f in e.fallbacks)) != []


@pytest.mark.parametrize("name", MODES)
def test_a_compile_can_be_forbidden(name):
    out = lines_of(
        f"""
        import torch
        x = torch.ones(4, 6, device="tpu")
        with torch.tpu.set_eager_mode(torch.tpu.EagerMode["{name}"]):
            (x * 2).sum().item()
            with torch.tpu.set_compile_policy("error"):
                print((x * 3).sum().item())
                try: (x[:2] * 3).sum().item()
                except RuntimeError as e: print("set_compile_policy" in str(e), "aten::mul" in str(e))
            print((x[:2] * 3).sum().item())
        """,
        TORCH_TPU_CACHE_SIZE="0",
    )
    assert out == ["72.0", "True True", "36.0"], out


def test_bad_policies():
    with pytest.raises(ValueError, match="expected one of"):
        torch.tpu.set_compile_policy("never")


def test_debug_finds_nan():
    x = torch.tensor([1.0, -1.0, 0.0]).to(DEVICE)
    with mode("DEBUG"):
        assert x.log().isnan().sum().item() == 1
        torch.tpu.set_debug(nan=True)
        try:
            with pytest.raises(
                RuntimeError, match=r"aten::log: of 3 elements .* 1 are NaN and 1 are infinite.*test_modes.py:\d+"
            ):
                x.log()
            assert (1 / x).isinf().sum().item() == 1
            torch.tpu.set_debug(inf=True)
            with pytest.raises(RuntimeError, match="the first is element 2"):
                1 / x
        finally:
            torch.tpu.set_debug(nan=False, inf=False)


def test_debug_errors_name_the_call():
    x = sample(torch.float32, 3, 4).to(DEVICE)
    with mode("DEBUG"):
        with pytest.raises(
            RuntimeError, match=r"must match.*aten::add.Tensor\(Float\[3, 4\], Float\[5\], 1\), called at .*test_modes.py:\d+"
        ):
            x + torch.ones(5, device=DEVICE)
        with pytest.raises(IndexError, match=r"(?s)out of .*called at .*test_modes.py:\d+"):
            x[torch.tensor([7], device=DEVICE)]


def test_traffic_of_a_chain_is_the_least_there_is():
    """Twelve operators on n bytes: one program that reads n and writes n, where Strict moves twelve times that."""
    x = torch.linspace(-1, 1, 1 << 16).to(DEVICE)
    least = 2 * 4 * x.numel()

    def moved(mode):
        with torch.tpu.set_eager_mode(mode):
            for _ in range(3):  # the last time as it is from then on
                with torch.tpu.explain(quiet=True, traffic=True) as e:
                    z = x
                    for _ in range(3):
                        z = (z * 1.01 + 0.5).tanh().abs()
                    torch.tpu.synchronize()
        assert "bytes read and written" in str(e)
        return e.traffic

    numbers = 64 * 12  # the Python numbers are read too
    assert least <= moved(torch.tpu.EagerMode.FUSED) <= least + numbers
    assert 12 * least <= moved(torch.tpu.EagerMode.STRICT) <= 12 * least + numbers
    with torch.tpu.explain(quiet=True) as e:
        (x + 1).cpu()
    assert e.traffic is None and "bytes" not in str(e)
