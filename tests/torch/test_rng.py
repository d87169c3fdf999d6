"""Seam: random numbers. Seeds, states, generators, distributions, and that no number is used twice."""

import math

import numpy as np
import pytest
import torch
from tpu_testing import DEVICE, IS_CPU, KIND, device_only, name_of, same

F = torch.nn.functional
N = 20_000

DRAWS = {
    "rand": lambda **k: torch.rand(64, device=DEVICE, **k),
    "randn": lambda **k: torch.randn(64, device=DEVICE, **k),
    "randint": lambda **k: torch.randint(0, 1000, (64,), device=DEVICE, **k),
    "randperm": lambda **k: torch.randperm(64, device=DEVICE, **k),
    "uniform_": lambda **k: torch.empty(64, device=DEVICE).uniform_(-1, 1, **k),
    "normal_": lambda **k: torch.empty(64, device=DEVICE).normal_(1, 2, **k),
    "exponential_": lambda **k: torch.empty(64, device=DEVICE).exponential_(2, **k),
    "log_normal_": lambda **k: torch.empty(64, device=DEVICE).log_normal_(**k),
    "cauchy_": lambda **k: torch.empty(64, device=DEVICE).cauchy_(**k),
    "geometric_": lambda **k: torch.empty(64, device=DEVICE).geometric_(0.05, **k),
    "random_": lambda **k: torch.empty(64, dtype=torch.int64, device=DEVICE).random_(**k),
    "bernoulli_": lambda **k: torch.empty(64, device=DEVICE).bernoulli_(0.5, **k),
    "bernoulli": lambda **k: torch.bernoulli(torch.full((64,), 0.5, device=DEVICE), **k),
    "multinomial": lambda **k: torch.multinomial(torch.ones(100, device=DEVICE), 30, **k),
    "normal": lambda **k: torch.normal(torch.zeros(64, device=DEVICE), 1.0, **k),
    "poisson": lambda **k: torch.poisson(torch.full((64,), 5.0, device=DEVICE), **k),
}
by_draw = pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)


# ---- seeds and states ------------------------------------------------------------------------------------------------


@by_draw
def test_a_seed_repeats_and_the_stream_moves_on(draw):
    torch.manual_seed(3)
    a, b = draw(), draw()
    torch.manual_seed(3)
    same(draw(), a.cpu())
    same(draw(), b.cpu())
    assert not torch.equal(a, b)
    torch.manual_seed(4)
    assert not torch.equal(draw(), a)


@by_draw
def test_a_generator_of_ones_own(draw):
    g = torch.Generator(DEVICE).manual_seed(11)
    torch.manual_seed(0)
    state = g.get_state()
    a = draw(generator=g)
    b = draw(generator=g)
    g.set_state(state)
    same(draw(generator=g), a.cpu())
    same(draw(generator=g), b.cpu())
    after = torch.rand(4, device=DEVICE)
    torch.manual_seed(0)
    same(torch.rand(4, device=DEVICE), after.cpu())  # the default generator was not touched


def test_generator_methods():
    g = torch.Generator(DEVICE)
    assert g.device.type == KIND and g.initial_seed() == torch.Generator(DEVICE).initial_seed()
    g.manual_seed(5)
    assert g.initial_seed() == 5
    assert g.manual_seed(-1).initial_seed() == 2**64 - 1
    s = g.seed()
    assert g.initial_seed() == s
    g.manual_seed(1)
    torch.rand(3, device=DEVICE, generator=g)
    h = g.clone_state()
    same(torch.rand(3, device=DEVICE, generator=g), torch.rand(3, device=DEVICE, generator=h).cpu())


@device_only
def test_offset_of_a_generator():
    g = torch.Generator("tpu").manual_seed(1)
    assert g.get_offset() == 0
    a = torch.rand(100, device="tpu", generator=g)
    n = g.get_offset()
    assert n > 0
    b = torch.rand(100, device="tpu", generator=g)
    g.set_offset(n)
    same(torch.rand(100, device="tpu", generator=g), b.cpu())
    g.set_offset(0)
    same(torch.rand(100, device="tpu", generator=g), a.cpu())


@device_only
def test_state_is_seed_and_offset():
    torch.tpu.manual_seed(2**40 + 3)
    torch.rand(8, device="tpu")
    s = torch.tpu.get_rng_state()
    assert s.dtype == torch.uint8 and s.device.type == "cpu" and s.numel() == 16
    seed, offset = s.view(torch.int64).tolist()
    assert seed == 2**40 + 3 == torch.tpu.initial_seed() and offset > 0
    a = torch.rand(5, device="tpu")
    torch.tpu.set_rng_state(s)
    same(torch.rand(5, device="tpu"), a.cpu())
    torch.tpu.set_rng_state(torch.tensor([7, 0], dtype=torch.int64).view(torch.uint8))
    b = torch.rand(5, device="tpu")
    torch.manual_seed(7)
    same(torch.rand(5, device="tpu"), b.cpu())
    for bad in (torch.zeros(8, dtype=torch.uint8), torch.zeros(16)):
        with pytest.raises((RuntimeError, TypeError)):
            torch.tpu.set_rng_state(bad)


@device_only
def test_default_generator():
    g = torch.tpu.default_generators[0]
    torch.manual_seed(9)
    assert g.initial_seed() == 9
    g.manual_seed(10)
    a = torch.rand(3, device="tpu")
    torch.tpu.manual_seed_all(10)
    same(torch.rand(3, device="tpu"), a.cpu())
    torch.tpu.seed()
    assert not torch.equal(torch.rand(3, device="tpu"), a)


@device_only
def test_fork_rng():
    torch.manual_seed(0)
    a = torch.rand(4, device="tpu")
    torch.manual_seed(0)
    with torch.random.fork_rng(device_type="tpu"):
        torch.manual_seed(99)
        torch.rand(4, device="tpu")
    same(torch.rand(4, device="tpu"), a.cpu())
    state = torch.get_rng_state()
    torch.rand(4, device="tpu")
    assert torch.equal(torch.get_rng_state(), state), "drawing on the device moved the CPU's generator"


@device_only
def test_a_generator_of_another_device_is_an_error():
    with pytest.raises(RuntimeError, match="(?i)generator"):
        torch.rand(3, device="tpu", generator=torch.Generator("cpu"))
    with pytest.raises(RuntimeError, match="(?i)generator"):
        torch.rand(3, generator=torch.Generator("tpu"))


@device_only
def test_modes_draw_the_same_numbers():
    torch.manual_seed(5)
    a = [d() for d in DRAWS.values()]
    torch.manual_seed(5)
    with torch.tpu.set_eager_mode(torch.tpu.EagerMode.DEBUG):
        for x, d in zip(a, DRAWS.values(), strict=True):
            same(d(), x.cpu())


# ---- shapes and targets ------------------------------------------------------------------------------------------------


def test_zero_size_and_0d():
    for shape in ((0,), (5, 0, 1), ()):
        for f in (torch.rand, torch.randn):
            assert f(shape, device=DEVICE).shape == shape
        z = torch.zeros(shape, device=DEVICE)
        assert torch.randn_like(z).shape == torch.randint_like(z, 6).shape == torch.rand_like(z).shape == torch.Size(shape)
        assert F.dropout(z, 0.5).shape == torch.Size(shape)
    assert torch.randperm(0, device=DEVICE).shape == (0,) and torch.randperm(1, device=DEVICE).tolist() == [0]


FILLS = {
    "normal_": lambda t: t.normal_(),
    "uniform_": lambda t: t.uniform_(1, 2),
    "exponential_": lambda t: t.exponential_(),
    "random_": lambda t: t.random_(1, 9),
    "bernoulli_": lambda t: t.bernoulli_(1.0),
    "bernoulli_ tensor": lambda t: t.bernoulli_(torch.ones_like(t)),
    "geometric_": lambda t: t.geometric_(0.5),
    "cauchy_": lambda t: t.cauchy_(),
    "log_normal_": lambda t: t.log_normal_(),
}


@pytest.mark.parametrize("fill", FILLS.values(), ids=FILLS)
def test_fill_of_a_view(fill):
    x = torch.zeros(6, 8, device=DEVICE)
    fill(x.t()[1::2])
    host = x.cpu()
    assert (host[:, 1::2] != 0).all() and (host[:, ::2] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=name_of)
def test_range_of_uniform(dtype):
    x = torch.rand(N, dtype=dtype, device=DEVICE)
    assert x.dtype == dtype and x.min() >= 0 and (x.max() < 1 or dtype in (torch.bfloat16, torch.float16))
    assert abs(x.double().mean().item() - 0.5) < 0.01
    y = torch.empty(N, dtype=dtype, device=DEVICE).uniform_(-3, 5)
    assert y.min() >= -3 and y.max() <= 5 and abs(y.double().mean().item() - 1) < 0.1


def test_bits_of_uniform():
    assert torch.rand(N, device=DEVICE).unique().numel() > 0.99 * N - 30  # about 2**24 different values
    assert torch.rand(N, dtype=torch.float64, device=DEVICE).unique().numel() == N


# ---- distributions -----------------------------------------------------------------------------------------------------


def ks(sample, cdf):
    """Kolmogorov and Smirnov's distance, times the root of the count: above 2.0 once in 1500 trials."""
    x = sample.double().cpu().flatten().sort().values
    n = x.numel()
    f = cdf(x)
    i = torch.arange(1, n + 1, dtype=torch.float64)
    return max((i / n - f).max().item(), (f - (i - 1) / n).max().item()) * math.sqrt(n)


CONTINUOUS = {
    "rand": (lambda: torch.rand(N, device=DEVICE), lambda x: x.clamp(0, 1)),
    "uniform_": (lambda: torch.empty(N, device=DEVICE).uniform_(2, 6), lambda x: ((x - 2) / 4).clamp(0, 1)),
    "randn": (lambda: torch.randn(N, device=DEVICE), lambda x: torch.special.ndtr(x)),
    "randn f64": (lambda: torch.randn(N, dtype=torch.float64, device=DEVICE), lambda x: torch.special.ndtr(x)),
    "normal_": (lambda: torch.empty(N, device=DEVICE).normal_(3, 0.5), lambda x: torch.special.ndtr((x - 3) / 0.5)),
    "normal tensors": (
        lambda: torch.normal(torch.full((N,), 1.0, device=DEVICE), torch.full((N,), 2.0, device=DEVICE)),
        lambda x: torch.special.ndtr((x - 1) / 2),
    ),
    "exponential_": (lambda: torch.empty(N, device=DEVICE).exponential_(2), lambda x: 1 - torch.exp(-2 * x)),
    "log_normal_": (
        lambda: torch.empty(N, device=DEVICE).log_normal_(0.5, 0.25),
        lambda x: torch.special.ndtr((x.log() - 0.5) / 0.25),
    ),
    "cauchy_": (lambda: torch.empty(N, device=DEVICE).cauchy_(1, 2), lambda x: 0.5 + torch.atan((x - 1) / 2) / math.pi),
}


@pytest.mark.parametrize("kind", CONTINUOUS)
def test_distribution(kind):
    torch.manual_seed(1)
    draw, cdf = CONTINUOUS[kind]
    assert ks(draw(), cdf) < 2.0


def test_normal_has_tails():
    x = torch.randn(200_000, device=DEVICE).cpu()
    assert x.isfinite().all() and 3.8 < x.abs().max() < 6.5 and abs(x.pow(4).mean() - 3) < 0.1 and abs(x.pow(3).mean()) < 0.05


def chi2(counts, p):
    n = counts.sum()
    return (((counts - n * p) ** 2) / (n * p)).sum().item()


def test_discrete_distributions():
    torch.manual_seed(2)
    k = torch.arange(8)
    c = torch.bincount(torch.randint(0, 8, (N,), device=DEVICE).cpu(), minlength=8)
    assert len(c) == 8 and chi2(c, torch.full((8,), 1 / 8)) < 26
    c = torch.bincount((torch.empty(N, device=DEVICE).geometric_(0.4).cpu() - 1).long().clamp(max=7), minlength=8)
    p = 0.4 * 0.6 ** k.double()
    p[-1] = 0.6**7
    assert chi2(c, p) < 26
    w = torch.tensor([1.0, 0.0, 3.0, 4.0])
    c = torch.bincount(torch.multinomial(w.to(DEVICE), N, replacement=True).cpu(), minlength=4)
    assert c[1] == 0 and chi2(c[[0, 2, 3]], w[[0, 2, 3]] / 8) < 16
    for p in (0.0, 0.25, 1.0):
        m = torch.full((N,), p, device=DEVICE).bernoulli().mean().item()
        assert abs(m - p) < 0.015 if 0 < p < 1 else m == p


def test_multinomial_without_replacement():
    w = torch.tensor([[1.0, 2, 3, 4, 0], [5, 1, 1, 1, 1]])
    i = torch.stack([torch.multinomial(w.to(DEVICE), 4).cpu() for _ in range(40)])
    assert (i[:, 0] != 4).all() and all(len(set(r)) == 4 for r in i.flatten(0, 1).tolist())


def test_randint_of_wide_and_odd_ranges():
    for low, high in ((0, 2**40), (-(2**62), 2**62), (5, 6), (-3, 4), (0, 3 * 2**30)):
        x = torch.randint(low, high, (4000,), device=DEVICE)
        assert x.dtype == torch.int64 and x.min() >= low and x.max() < high
        assert abs((x.double().mean().item() - (low + high - 1) / 2) / (high - low)) < 0.03
    y = torch.empty(4000, dtype=torch.int32, device=DEVICE).random_()
    assert y.min() >= 0 and y.max() > 2**30
    third = torch.randint(0, 3 * 2**30, (N,), device=DEVICE).cpu() // 2**30  # a remainder of 32 bits would favour the first
    assert chi2(torch.bincount(third, minlength=3), torch.full((3,), 1 / 3)) < 14
    with pytest.raises(RuntimeError):
        torch.randint(5, 5, (3,), device=DEVICE)


def test_randperm_is_a_uniform_permutation():
    torch.manual_seed(0)
    p = torch.stack([torch.randperm(6, device=DEVICE) for _ in range(600)]).cpu()
    assert (p.sort(1).values == torch.arange(6)).all()
    for column in range(6):
        assert chi2(torch.bincount(p[:, column], minlength=6), torch.full((6,), 1 / 6)) < 24
    assert (torch.randperm(10_001, device=DEVICE).sort().values.cpu() == torch.arange(10_001)).all()


def test_dropout():
    x = torch.ones(100, 200, device=DEVICE, requires_grad=True)
    for p in (0.0, 0.3, 0.9, 1.0):
        y = F.dropout(x, p)
        kept = (y != 0).float().mean().item()
        assert abs(kept - (1 - p)) < 0.02
        if p < 1:
            torch.testing.assert_close(y[y != 0].max().item(), 1 / (1 - p), rtol=1e-5, atol=0)
        (g,) = torch.autograd.grad(y.sum(), x)
        torch.testing.assert_close(g.cpu(), y.detach().cpu(), rtol=3e-7, atol=0)  # the same mask both ways
    assert not torch.equal(F.dropout(x, 0.5), F.dropout(x, 0.5))
    same(F.dropout(x, 0.5, training=False), x.detach().cpu())
    z = x.detach().clone()
    F.dropout(z, 0.5, inplace=True)
    assert set(z.unique().tolist()) == {0.0, 2.0}
    for f in (F.feature_alpha_dropout, F.alpha_dropout):
        assert f(torch.randn(8, 4, 5, 5, device=DEVICE), 0.5, training=True).shape == (8, 4, 5, 5)
    channels = F.dropout2d(torch.ones(16, 32, 3, 3, device=DEVICE), 0.5).cpu().flatten(2)
    assert (channels.amin(-1) == channels.amax(-1)).all() and 0.35 < (channels[..., 0] == 0).float().mean() < 0.65


def test_numbers_are_not_used_twice():
    torch.manual_seed(0)
    x = torch.cat([torch.rand(1000, dtype=torch.float64, device=DEVICE) for _ in range(20)]).cpu()
    assert x.unique().numel() == 20_000
    a, b = (torch.randn(N, device=DEVICE).cpu() for _ in "ab")
    assert abs((a * b).mean()) < 0.03 and abs((a[1:] * a[:-1]).mean()) < 0.03
    rows = torch.rand(50, 400, device=DEVICE).cpu()
    assert rows.unique(dim=0).shape[0] == 50


def test_rejection_loops_end():
    t = torch.empty(64, 64, device=DEVICE)
    torch.nn.init.trunc_normal_(t, std=1.0, a=-1.0, b=1.0)
    assert t.min() >= -1 and t.max() <= 1 and t.std() > 0.4
    for f in (torch.nn.init.kaiming_uniform_, torch.nn.init.xavier_normal_, torch.nn.init.orthogonal_):
        f(t)
    torch.testing.assert_close((t @ t.t()).cpu(), torch.eye(64), rtol=1e-4, atol=1e-4)


def test_distributions_package():
    d = torch.distributions
    one = torch.ones(2000, device=DEVICE)
    for dist in (
        d.Normal(one, one),
        d.Exponential(one),
        d.Bernoulli(one * 0.5),
        d.Categorical(torch.ones(2000, 4, device=DEVICE)),
        d.Uniform(one * 0, one),
        d.Laplace(one, one),
        d.Gumbel(one, one),
    ):
        x = dist.sample()
        assert x.device.type == KIND and dist.log_prob(x).isfinite().all()


@pytest.mark.skipif(IS_CPU, reason="torch's CPU device seeds itself")
def test_manual_seed_seeds_every_device():
    torch.manual_seed(123)
    assert torch.tpu.initial_seed() == 123 == torch.initial_seed()


# ---- parameters that are out of range ------------------------------------------------------------------------------------

BAD_PARAMETERS = {
    "bernoulli_": lambda x, good: x.bernoulli_(0.5 if good else 1.5),
    "bernoulli": lambda x, good: torch.bernoulli(x, 0.5 if good else -0.1),
    "native_dropout": lambda x, good: torch.native_dropout(x, 0.5 if good else -0.5, True),
    "normal_": lambda x, good: x.normal_(0, 1 if good else -1),
    "normal of nan": lambda x, good: x.normal_(0, 1 if good else float("nan")),
    "normal": lambda x, good: torch.normal(x, 1.0 if good else -1.0),
    "log_normal_": lambda x, good: x.log_normal_(0, 1 if good else 0),
    "uniform_": lambda x, good: x.uniform_(*((1, 2) if good else (2, 1))),
    "uniform_ too wide": lambda x, good: x.uniform_(*((0, 1) if good else (-3e38, 3e38))),
    "cauchy_": lambda x, good: x.cauchy_(0, 1 if good else 0),
    "geometric_": lambda x, good: x.geometric_(0.5 if good else 1),
    "exponential_": lambda x, good: x.exponential_(1 if good else -1),
    "exponential_ of int": lambda x, good: x.exponential_() if good else x.int().exponential_(),
    "normal_ of int": lambda x, good: x.normal_() if good else x.int().normal_(),
    "random_": lambda x, good: x.random_(*((2, 5) if good else (5, 2))),
    "random_ past the dtype": lambda x, good: x.byte().random_(0, 200 if good else 1000),
    "multinomial": lambda x, good: torch.multinomial(torch.ones_like(x), 2 if good else 5),
    "multinomial of none": lambda x, good: torch.multinomial(torch.ones_like(x), 2 if good else 0),
    "randperm past the dtype": lambda x, good: torch.randperm(100 if good else 300, dtype=torch.uint8, device=x.device),
}


@pytest.mark.parametrize("kind", BAD_PARAMETERS)
def test_parameters_out_of_range_are_refused_after_good_ones_too(kind):
    f = BAD_PARAMETERS[kind]
    here, there = torch.ones(3, device=DEVICE), torch.ones(3)
    with pytest.raises(Exception) as expected:
        f(there, False)
    for _ in range(2):  # parameters are operands: the call that was seen before must refuse them as well
        f(here, True)
        before = torch.get_device_module(DEVICE).get_rng_state() if KIND == "tpu" else None
        with pytest.raises(type(expected.value)):
            f(here, False)
        if before is not None:
            assert torch.equal(torch.tpu.get_rng_state(), before), "a refused call drew numbers"


def philox(seed, blocks):
    """Philox 4x32-10 as published (Salmon et al. 2011): uint32[blocks, 4]; the seed is the key and the counter's upper half."""
    word = [np.arange(blocks, dtype=np.uint64), np.zeros(blocks, np.uint64)] + [
        np.full(blocks, h, np.uint64) for h in divmod(seed, 2**32)[::-1]
    ]
    key = [np.uint64(seed % 2**32), np.uint64(seed >> 32)]
    low, half = np.uint64(2**32 - 1), np.uint64(32)
    for _ in range(10):
        a, b = word[0] * np.uint64(0xD2511F53), word[2] * np.uint64(0xCD9E8D57)
        word = [(b >> half) ^ word[1] ^ key[0], b & low, (a >> half) ^ word[3] ^ key[1], a & low]
        key = [(key[0] + np.uint64(0x9E3779B9)) & low, (key[1] + np.uint64(0xBB67AE85)) & low]
    return np.stack(word, 1).astype(np.uint32)


@device_only
@pytest.mark.parametrize("seed", [0, 7, 2**62 + 12345678901])
def test_numbers_are_those_of_philox(seed):
    bits = philox(seed, 300).reshape(-1)
    torch.manual_seed(seed)
    assert (torch.rand(20, 59, device="tpu").cpu().numpy().reshape(-1) == (bits[:1180] >> 8) * np.float32(2**-24)).all()
    torch.manual_seed(seed)
    wide = bits[0::2].astype(np.uint64) | bits[1::2].astype(np.uint64) << np.uint64(32)
    assert (torch.rand(599, device="tpu", dtype=torch.float64).cpu().numpy() == (wide[:599] >> np.uint64(11)) * 2.0**-53).all()


@pytest.mark.parametrize("device", ["cpu", DEVICE])
@pytest.mark.parametrize("generator", ["cpu", DEVICE])
def test_a_permutation_of_nothing_takes_any_generator(device, generator):
    g = torch.Generator(device=generator)
    assert torch.randperm(0, device=device, generator=g).device.type == torch.device(device).type
    if device != generator:
        with pytest.raises(RuntimeError, match="Expected a .* device type for generator but found"):
            torch.randperm(3, device=device, generator=g)
