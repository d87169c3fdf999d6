"""Right numbers: integers to the last bit, promotion, low precision, NaN and infinity, complex."""

import itertools
import math

import pytest
import torch
from tpu_testing import (
    COMPLEX,
    DEVICE,
    DTYPES,
    FLOATS,
    INTS,
    KIND,
    SIGNED,
    WIDE_UNSIGNED,
    agree,
    check,
    close,
    name_of,
    same,
    sample,
)

inf, nan = float("inf"), float("nan")
F = torch.nn.functional

# ---- int64 ---------------------------------------------------------------------------------------------------------------

BIG = torch.tensor(
    [2**62, -(2**62), 2**53 + 1, -(2**53) - 1, 2**31, -(2**31) - 1, 16777217, 3, -7, 0, 1, -1, 2**63 - 1, -(2**63)]
)
SMALL = torch.tensor([1, 3, -2, 7, 5, -5, 16777216, 2, 3, 4, 10, -10, 1, 2])

INT64 = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "wraps": lambda a, b: (a + a, a * a, -a, a.abs()),
    "floor div": lambda a, b: a // b,
    "trunc div": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "remainder": lambda a, b: a % b,
    "fmod": lambda a, b: torch.fmod(a, b),
    "and or xor not": lambda a, b: (a & b, a | b, a ^ b, ~a),
    "shifts": lambda a, b: (a << (b.abs() % 64), a >> (b.abs() % 64)),
    "compare": lambda a, b: (a == b, a != b, a < b, a <= b, a > b, a >= b, a == a, a != a - 1),
    "minimum": lambda a, b: (torch.minimum(a, b), torch.maximum(a, b)),
    "number": lambda a, b: (a + (2**53 + 1), a - 1, a * 3, a // 3, a % 1000, a & 255, 2**62 - a, a ^ -1),
    "sum": lambda a, b: (a.sum(), a.view(2, 7).sum(0), a.cumsum(0), a.cumprod(0)),
    "prod": lambda a, b: (b.prod(), b.view(2, 7).prod(1)),
    "extremes": lambda a, b: (a.max(), a.min(), a.argmax(), a.argmin(), a.view(2, 7).max(1), torch.aminmax(a)),
    "sort": lambda a, b: (a.sort(), a.sort(descending=True), a.argsort(), a.topk(3), a.msort()),
    "cummax": lambda a, b: (a.cummax(0), a.cummin(0)),
    "where": lambda a, b: torch.where(a > b, a, b),
    "clamp": lambda a, b: (a.clamp(-(2**53) - 1, 2**53 + 1), a.clamp(min=b), a.clamp(max=2**62 - 1)),
    "pow": lambda a, b: (b**3, b.pow(5), torch.pow(3, b.abs() % 5)),
    "sign": lambda a, b: (a.sign(), a.square(), torch.signbit(a)),
    "index": lambda a, b: (a[b.abs() % 14], a.gather(0, b.abs() % 14), a.take(b.abs() % 14), a.flip(0), a.roll(3)),
    "index_add": lambda a, b: a.index_add(0, torch.tensor([0, 0, 2], device=a.device), a[:3]),
    "scatter_add": lambda a, b: a.scatter_add(0, b.abs() % 14, b),
    "unique": lambda a, b: torch.unique(torch.cat([a, a, b])),
    "cat": lambda a, b: (torch.cat([a, b]), torch.stack([a, b], 1)),
    "matmul": lambda a, b: a.view(2, 7) @ b.view(7, 2),
    "casts": lambda a, b: (a.to(torch.int32), a.to(torch.float64), a.to(torch.float32), a.to(torch.bool), a.to(torch.int8)),
    "true div": lambda a, b: a / b,
    "gcd": lambda a, b: (torch.gcd(b, b + 6), torch.lcm(b.abs() % 50, b.abs() % 20)),
    "isin": lambda a, b: torch.isin(a, b),
    "bincount": lambda a, b: torch.bincount(b.abs() % 9),
    "bucketize": lambda a, b: torch.bucketize(a, b.sort().values),
    "any all": lambda a, b: (a.any(), a.all(), (a != 0).sum(), torch.count_nonzero(a)),
    "median": lambda a, b: (a.median(), a.kthvalue(4).values, a.view(2, 7).mode().values),
    "diff": lambda a, b: (a.diff(), torch.trace(a[:9].view(3, 3)), a.view(2, 7).tril()),
    "repeat": lambda a, b: (a.repeat(2), a.repeat_interleave(2), torch.tile(a, (2,))),
    "masked": lambda a, b: (a.masked_fill(b > 2, 2**62 + 1), a.masked_select(b > 2), a[b > 2]),
    "alpha": lambda a, b: (torch.add(a, b, alpha=2**40 + 1), torch.sub(a, b, alpha=3)),
    "einsum": lambda a, b: torch.einsum("i,i->", a, b),
}


@pytest.mark.parametrize("kind", INT64)
def test_int64_is_exact(kind):
    agree(INT64[kind], BIG, SMALL)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32], ids=name_of)
@pytest.mark.parametrize(
    "kind",
    [
        "add",
        "mul",
        "wraps",
        "floor div",
        "remainder",
        "fmod",
        "and or xor not",
        "compare",
        "minimum",
        "sum",
        "extremes",
        "sort",
        "where",
        "casts",
        "true div",
        "sign",
        "matmul",
    ],
)
def test_narrow_integers_wrap(kind, dtype):
    a, b = (
        (torch.arange(14) * 37 % 251 - (0 if dtype == torch.uint8 else 120)).to(dtype),
        (torch.arange(14) * 11 % 7 + 1).to(dtype),
    )
    agree(INT64[kind], a, b, rtol=1e-6 if kind == "true div" else 0)


def test_wide_unsigned_integers():
    for dtype, top in zip(WIDE_UNSIGNED, (2**16, 2**32, 2**64), strict=True):
        c = torch.tensor([0, 1, top - 1, top // 2], dtype=dtype)
        d = c.to(DEVICE)
        same(d, c)
        same(d == d, torch.tensor([True] * 4))
        same(d[2:], c[2:])
        assert d.tolist() == c.tolist()


def test_bools():
    a, b = torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False])
    for f in (
        lambda a, b: (a & b, a | b, a ^ b, ~a, a + b, a * b, a == b, a < b, a.sum(), a.cumsum(0), a.any(), a.all(), a.prod()),
        lambda a, b: (
            a.long(),
            a.float() + 1,
            a + 1,
            a * 2.5,
            torch.where(a, b, ~b),
            a.logical_xor(b),
            a.argmax(),
            a.sort(stable=True),
            a.max(),
        ),
        lambda a, b: (
            torch.logical_not(torch.tensor([0, 2, -1], device=a.device)),
            torch.logical_and(a.long() * 2, b),
            a.float().bool(),
        ),
        lambda a, b: a.to(torch.uint8).mul_(255).add_(b),
    ):
        agree(f, a, b)


def test_division_by_zero():
    x = torch.tensor([1.0, -1.0, 0.0])
    agree(lambda x: (x / 0, x / (x * 0), x % 0, x // 0, torch.fmod(x, 0), 1 / x), x)
    i = torch.tensor([1, 2], device=DEVICE)
    try:  # the CPU raises; an asynchronous device has an open value, but no crash
        (i // torch.zeros(2, dtype=torch.int64, device=DEVICE)).cpu()
    except RuntimeError as e:
        assert "Zero" in str(e)


# ---- promotion -----------------------------------------------------------------------------------------------------------

OPERANDS = {
    "dims": lambda d: torch.ones(3, dtype=d),
    "0-d": lambda d: torch.ones((), dtype=d),
}
NUMBERS = [True, 2, 2.5, 1 + 2j]


def promoted(fn, *args):
    """dtype and values agree; what PyTorch refuses is refused (what only CPU lacks is not)."""
    there = [a.to(DEVICE) if torch.is_tensor(a) else a for a in args]
    try:
        want = fn(*args)
    except NotImplementedError:
        return
    except (RuntimeError, TypeError) as e:
        with pytest.raises(type(e)):
            fn(*there)
        return
    if want.dtype == torch.complex32 and KIND != "cpu":  # not supported: a clear error, never another dtype
        with pytest.raises((TypeError, NotImplementedError, RuntimeError), match=r"(?i)complex"):
            fn(*there)
        return
    got = fn(*there)
    assert got.dtype == want.dtype and got.device.type == KIND, f"{args}: {got.dtype}, expected {want.dtype}"
    check(got, want, 1e-3 if want.dtype in (torch.float16, torch.bfloat16) else 1e-6, 0)


@pytest.mark.parametrize("first", DTYPES, ids=name_of)
@pytest.mark.parametrize("kinds", [("dims", "dims"), ("dims", "0-d"), ("0-d", "dims")], ids="-".join)
def test_promotion_of_tensors(first, kinds):
    for second in (
        DTYPES if kinds[0] == "dims" else (torch.bool, torch.int16, torch.int64, torch.bfloat16, torch.float32, torch.complex64)
    ):
        promoted(torch.add, OPERANDS[kinds[0]](first), OPERANDS[kinds[1]](second))


@pytest.mark.parametrize("op", [torch.mul, torch.true_divide, torch.eq, torch.maximum, torch.pow], ids=lambda f: f.__name__)
def test_promotion_of_other_operators(op):
    for a, b in itertools.product(
        (torch.bool, torch.uint8, torch.int64, torch.float16, torch.float32, torch.complex64), repeat=2
    ):
        promoted(op, torch.ones(3, dtype=a), torch.ones((), dtype=b))


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_promotion_of_numbers(dtype):
    x = torch.ones(3, dtype=dtype)
    for n in NUMBERS:
        for op in (torch.add, torch.mul, torch.true_divide, torch.eq, torch.sub):
            promoted(op, x, n)
        promoted(lambda t, n=n: torch.rsub(t, n) if t.dtype != torch.bool else n + t, x)
        promoted(lambda t, n=n: torch.where(t == t, t, n), x)
        promoted(torch.add, x[0], n)


def test_promotion_of_a_host_number():
    for d in DTYPES:
        got = torch.ones(3, dtype=d, device=DEVICE) * torch.tensor(2.0, dtype=torch.float64)  # 0-d on the CPU may mix
        assert got.dtype == (torch.ones(3, dtype=d) * torch.tensor(2.0, dtype=torch.float64)).dtype
    assert torch.result_type(torch.ones(2, dtype=torch.int32, device=DEVICE), 1.0) == torch.float32


def test_promotion_in_lists():
    for a, b in (
        (torch.int32, torch.float32),
        (torch.float16, torch.float32),
        (torch.bool, torch.uint8),
        (torch.int64, torch.bfloat16),
        (torch.float32, torch.complex64),
    ):
        promoted(lambda x, y: torch.cat([x, y]), torch.ones(2, dtype=a), torch.ones(2, dtype=b))
        promoted(lambda x, y: torch.stack([x, y]), torch.ones(2, dtype=a), torch.ones(2, dtype=b))


@pytest.mark.parametrize("dtype", [torch.bool, *INTS, *FLOATS], ids=name_of)
def test_result_dtype_of_reductions(dtype):
    x = sample(dtype, 3, 4)
    for f in (
        lambda t: t.sum(),
        lambda t: t.prod(1),
        lambda t: t.cumsum(0),
        lambda t: t.any(),
        lambda t: t.amax(1),
        lambda t: t.argmax(1),
        lambda t: t.sum(0, dtype=torch.float64),
        lambda t: t.sqrt(),
        lambda t: t.mean(0),
        lambda t: torch.count_nonzero(t, 0),
        lambda t: t.mean(1, dtype=torch.float32),
    ):
        promoted(f, x)


# ---- floats --------------------------------------------------------------------------------------------------------------

ODD = torch.tensor([1.0, -1.0, 0.0, -0.0, 2.5, -2.5, 0.5, 1e30, -1e30, 1e-30, inf, -inf, nan, 3.0])
SPECIAL = {
    "max min": lambda x: (
        torch.maximum(x, x.flip(0)),
        torch.minimum(x, x.flip(0)),
        x.max(),
        x.min(),
        x.amax(),
        x.view(2, 7).max(1),
    ),
    "fmax": lambda x: (torch.fmax(x, x.flip(0)), torch.fmin(x, x.flip(0))),
    "clamp": lambda x: (x.clamp(-1, 1), x.clamp(min=0), x.clamp_max(2), x.clamp(torch.full_like(x, -2), torch.full_like(x, nan))),
    "relu": lambda x: (F.relu(x), F.relu6(x), F.leaky_relu(x), F.hardtanh(x), F.threshold(x, 0.0, 5.0)),
    "order": lambda x: (
        x.sort().values,
        x.sort(descending=True).values,
        x.topk(4).values,
        x.topk(4, largest=False).values,
        x.argmax(),
        x.argmin(),
    ),
    "stable order": lambda x: (x.sort(stable=True), torch.sort(x, stable=True, descending=True)),
    "compare": lambda x: (x == x, x != x, x < x.flip(0), x >= 0, x == -0.0),
    "classes": lambda x: (x.isnan(), x.isinf(), x.isfinite(), x.isposinf(), x.isneginf(), x.signbit(), x.sign(), torch.sgn(x)),
    "nan_to_num": lambda x: (x.nan_to_num(), x.nan_to_num(1, 2, 3)),
    "rounding": lambda x: (x.round(), x.floor(), x.ceil(), x.trunc(), x.frac(), torch.round(x * 1.25, decimals=1)),
    "remainder": lambda x: (
        x % 3,
        torch.fmod(x, 3),
        x.remainder(-2.5),
        torch.div(x, 2.5, rounding_mode="floor"),
        torch.div(x, 2.5, rounding_mode="trunc"),
    ),
    "where": lambda x: torch.where(x.isnan(), x * 0, x),
    "cumulative": lambda x: (x[:11].cumsum(0)[:7], x.cummax(0).values, torch.logcumsumexp(x[:7], 0)),
    "nan sums": lambda x: (x.nansum(), x.nanmean(), x[:10].nanmedian(), x.median()),
    "copysign": lambda x: (torch.copysign(x, x.flip(0)), x.abs(), -x),
    "logical": lambda x: (x.bool(), x.logical_not(), torch.logical_and(x, x.flip(0))),
    "heaviside": lambda x: torch.heaviside(x, torch.full_like(x, 0.5)),
    "softmax": lambda x: (F.softmax(x[:8], 0), F.softmax(torch.stack([x[:2] * inf, x[:2]]), 1), x[:12].logsumexp(0)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=name_of)
@pytest.mark.parametrize("kind", SPECIAL)
def test_nan_infinity_and_zeros(kind, dtype):
    agree(SPECIAL[kind], ODD.to(dtype), rtol=1e-5 if dtype == torch.float32 else 2e-2)


MATH = "sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sigmoid erf erfc erfinv lgamma digamma sinc square".split()


@pytest.mark.parametrize("name", MATH)
def test_functions_over_their_range(name):
    x = torch.cat(
        [torch.linspace(-4, 4, 61), torch.linspace(-1, 1, 41), ODD, torch.tensor([1e-6, -1e-6, 40.0, -40.0, 88.0, -103.0])]
    )
    agree(lambda t: getattr(torch, name)(t), x, rtol=2e-5, atol=2e-6)
    agree(lambda t: getattr(torch, name)(t), x.double(), rtol=1e-9, atol=1e-10)
    agree(lambda t: getattr(torch, name)(t), torch.tensor([1, 2, 3]), rtol=2e-5, atol=2e-6)


def test_powers():
    base = torch.tensor([0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, inf, -inf, nan])
    for e in (0, 1, 2, 3, -1, -2, 0.5, -0.5, 2.5, 0.0, inf, -inf, nan):
        agree(lambda b, e=e: b**e, base, rtol=1e-5)
        agree(lambda b, e=e: torch.pow(b, torch.full_like(b, e)), base, rtol=1e-5)
    agree(lambda b: torch.pow(2.0, b), base, rtol=1e-5)
    agree(lambda b: torch.pow(0, b.abs().nan_to_num(1)), base)
    agree(lambda b: torch.float_power(b, 3), base, rtol=1e-6)


def test_atan2_has_all_quadrants_and_signed_zeros():
    v = torch.tensor([0.0, -0.0, 1.0, -1.0, inf, -inf, nan])
    agree(lambda a, b: torch.atan2(a[:, None], b[None, :]), v, v, rtol=1e-6)
    agree(lambda a: torch.hypot(a[:, None], a[None, :]), v, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=name_of)
def test_low_precision_rounds_once(dtype):
    g = torch.Generator().manual_seed(0)
    a, b = (torch.randn(500, generator=g).to(dtype) for _ in "ab")
    agree(lambda a, b: (a + b, a - b, a * b, a / b, a * 1.1, torch.sqrt(a.abs())), a, b)
    # A Python number is not rounded to the tensor's dtype first, as on CUDA; torch's CPU rounds it for add, not for mul.
    same((a.to(DEVICE) + 0.1), (a.float() + 0.1).to(dtype))
    agree(lambda a, b: (a.float() * 3).to(a.dtype), a, b)
    agree(lambda a, b: (a.exp(), torch.sigmoid(a), a.tanh(), F.gelu(a)), a, b, rtol=1e-2, atol=1e-3)
    ones = torch.ones(4096, dtype=dtype, device=DEVICE)
    assert ones.mean().item() == 1 and (dtype == torch.float16 or ones.sum().item() == 4096)
    assert ones.view(2, 2048).sum(1).tolist() == [2048, 2048]
    m = torch.full((64, 300), 0.01, dtype=dtype)
    close(m.to(DEVICE) @ m.t().to(DEVICE), (m.float() @ m.t().float()).to(dtype), 1e-2, 1e-4)
    agree(lambda a, b: (a.max(), a.sort(stable=True), a.argmax(), a == a, a < b), a, b)


def test_float16_range():
    x = torch.tensor([65504.0, 65519.0, 65520.0, 6e-8, 1e-9, -7e4])
    agree(lambda x: x.half(), x)
    agree(lambda x: (x * 2, x + x, x + 16), torch.tensor([60000.0, 65504.0]).half())


def test_float64_is_float64():
    x = torch.tensor([1.0, 1e-290, 1e300, math.pi], dtype=torch.float64)  # nothing below the normal numbers: XLA's CPU flushes it
    agree(lambda x: (x + 1e-12, x * 1e-8, x - 1e-15, x / 3), x)
    agree(torch.sqrt, x, rtol=2.3e-16)  # one unit in the last place
    agree(lambda x: (x.exp() - 1, x.sin(), x.log(), x.sum(), x.cumsum(0)), x[[0, 1, 3]], rtol=1e-14, atol=1e-15)
    a = torch.linspace(0, 1, 900, dtype=torch.float64).view(30, 30)
    close(a.to(DEVICE) @ a.to(DEVICE), a @ a, 1e-13, 1e-13)
    assert (torch.ones(1, dtype=torch.float64, device=DEVICE) + 2**-52).item() == 1 + 2**-52
    agree(lambda x: torch.atan(x), torch.linspace(-5, 5, 300, dtype=torch.float64), rtol=1e-13)


def test_float32_matmul_is_float32():
    g = torch.Generator().manual_seed(0)
    for shape in ((64, 64), (3, 17, 33)):
        a = torch.rand(shape, generator=g)
        close(a.to(DEVICE) @ a.mT.to(DEVICE), (a.double() @ a.mT.double()).float(), 5e-6, 0)
    x, w = torch.rand(2, 8, 12, 12, generator=g), torch.rand(4, 8, 3, 3, generator=g)
    close(F.conv2d(x.to(DEVICE), w.to(DEVICE)), F.conv2d(x.double(), w.double()).float(), 5e-6, 0)


def test_long_reductions_keep_their_precision():
    x = torch.full((1 << 20,), 0.1)
    close(x.to(DEVICE).sum(), x.double().sum().float(), 1e-5, 0)
    close(x.to(DEVICE).mean(), x.double().mean().float(), 1e-5, 0)
    y = torch.arange(100_000.0) + 1e5
    close(y.to(DEVICE).var(), y.double().var().float(), 1e-4, 0)
    same(torch.ones(300_001, dtype=torch.int32, device=DEVICE).cumsum(0)[-1], torch.tensor(300_001))


# ---- complex -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", COMPLEX, ids=name_of)
def test_complex(dtype):
    a, b = sample(dtype, 3, 4), sample(dtype, 3, 4, seed=1) + 0.5
    tol = dict(rtol=1e-5, atol=1e-5) if dtype == torch.complex64 else dict(rtol=1e-12, atol=1e-12)
    for f in (
        lambda a, b: (a + b, a - b, a * b, a / b, a * 2j, a + 1, 1 - a, a == b),
        lambda a, b: (a.abs(), a.angle(), a.conj() * b, a.real + b.imag, a.sgn(), a.sum(), a.mean(), a.prod(1)),
        lambda a, b: (
            a @ b.mH,
            a.cumsum(0),
            torch.cat([a, b]),
            a.t().contiguous(),
            a.square(),
            a.reciprocal() if False else b.reciprocal(),
        ),
        lambda a, b: ((a * 0.1).exp(), b.log(), b.sqrt(), (a * 0.1).sin(), (a * 0.1).cos(), (a * 0.1).tanh()),
        lambda a, b: (torch.view_as_real(a * b), torch.complex(a.real, b.imag), torch.polar(a.abs(), b.angle())),
        lambda a, b: (torch.where(a == b, a, b), a[1:, ::2], a.index_select(0, torch.tensor([2, 0], device=a.device)), b**2),
    ):
        agree(f, a, b, **tol)


def test_rotary_embedding():
    q = torch.randn(2, 3, 4, 6, generator=torch.Generator().manual_seed(0))

    def rotate(q):
        angle = torch.arange(3.0, device=q.device)[:, None] * torch.tensor([1.0, 0.1, 0.01], device=q.device)
        f = torch.polar(torch.ones_like(angle), angle)
        return torch.view_as_real(torch.view_as_complex(q.transpose(1, 2).unflatten(-1, (3, 2)).contiguous()) * f).flatten(-2)

    agree(rotate, q, rtol=1e-5, atol=1e-6)


def test_fourier_transforms():
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    for f in (
        lambda x: torch.fft.fft(x),
        lambda x: torch.fft.rfft(x, norm="ortho"),
        lambda x: torch.fft.irfft(torch.fft.rfft(x), 8),
        lambda x: torch.fft.ifft2(torch.fft.fft2(x)),
        lambda x: torch.fft.fftshift(x),
    ):
        agree(f, x, rtol=1e-4, atol=1e-5)


# ---- one program for another layout, one key for another call ------------------------------------------------------------


def test_calls_that_look_alike_are_told_apart():
    """The same operator and sizes, where only one thing differs."""
    x = torch.arange(1.0, 17.0).view(4, 4)
    for f in (
        lambda x: (x[1].pow(2), x[:, 1].pow(2), x.diagonal().pow(2)),
        lambda x: (x + x, x + x.t(), x.t() + x, x.t() + x.t()),
        lambda x: (x.sum(0), x.sum(1), x.sum(0, keepdim=True), x.t().sum(0)),
        lambda x: (torch.sub(x, x.t()), torch.sub(x.t(), x), torch.sub(x, x)),
        lambda x: (x.softmax(0), x.softmax(1)),
        lambda x: (x.std(0), x.std(0, correction=0), x.var(1)),
        lambda x: (x.cumsum(0), x.cumsum(1), x.flip(0), x.flip(1), x.roll(1, 0), x.roll(1, 1), x.roll(2, 0)),
        lambda x: (x.topk(2, 0), x.topk(2, 1), x.topk(2, 1, largest=False), x.sort(0), x.sort(1, descending=True)),
        lambda x: (F.pad(x, (1, 0)), F.pad(x, (0, 1)), F.pad(x, (1, 0), value=3.0)),
        lambda x: (torch.div(x, 3), torch.div(x, 3, rounding_mode="floor"), torch.div(x, 3, rounding_mode="trunc")),
        lambda x: (x.unfold(0, 2, 1), x.unfold(1, 2, 1), x.unfold(0, 2, 2)),
        lambda x: (x.gather(0, x.long() % 4), x.gather(1, x.long() % 4)),
        lambda x: (x.to(torch.int32) // 2, x // 2, x.to(torch.int64) // 2),
        lambda x: (torch.round(x / 7, decimals=1), torch.round(x / 7, decimals=2)),
        lambda x: (x.clamp(2, None), x.clamp(None, 2), x.clamp(2, 2)),
        lambda x: (F.gelu(x), F.gelu(x, approximate="tanh")),
        lambda x: (torch.where(x > 4, x, 0), torch.where(x > 4, 0, x)),
        lambda x: (x.expand(2, 4, 4).sum(0), x[None].repeat(2, 1, 1).sum(0)),
        lambda x: (torch.cat([x, x.t()]), torch.cat([x.t(), x]), torch.cat([x, x.t()], 1)),
        lambda x: (x @ x, x @ x.t(), x.t() @ x, x.t() @ x.t()),
    ):
        agree(f, x, rtol=1e-5, atol=1e-6)
        agree(f, x.t().contiguous(), rtol=1e-5, atol=1e-6)


def test_convolutions_that_look_alike():
    def f(x, w):
        x = x.clone().requires_grad_()
        out = []
        for kw in (
            {},
            {"dilation": 2},
            {"stride": 3},
            {"stride": 3, "dilation": 2},
            {"padding": 1},
            {"padding": 1, "dilation": 2},
            {"groups": 2},
        ):
            y = F.conv2d(x, w[:, : 4 // kw.get("groups", 1)], **kw)
            (g,) = torch.autograd.grad((y * y).sum(), x)
            out += [y.detach(), g]
        return out

    agree(f, sample(torch.float32, 1, 4, 9, 9), sample(torch.float32, 4, 4, 2, 2, seed=1), rtol=1e-5, atol=1e-4)


# ---- indexing ------------------------------------------------------------------------------------------------------------

INDEX = {
    "rows": lambda x, i, m: x[i],
    "columns": lambda x, i, m: x[:, i],
    "rows and columns": lambda x, i, m: x[i, i.flip(0) % 4],
    "apart": lambda x, i, m: x[i, :, i % 2],
    "broadcast": lambda x, i, m: x[i[:, None], i[None, :] % 4],
    "list": lambda x, i, m: x[[0, -1, 0]],
    "negative": lambda x, i, m: x[-i - 1],
    "mixed": lambda x, i, m: x[1:, i % 4, 0],
    "none": lambda x, i, m: x[None, i, ..., 1],
    "mask": lambda x, i, m: x[m],
    "mask of one dim": lambda x, i, m: x[m[:, 0]],
    "mask on the second": lambda x, i, m: x[:, m[0]],
    "mask of all": lambda x, i, m: x[x > 3],
    "empty mask": lambda x, i, m: x[m & False],
    "mask and index": lambda x, i, m: x[m[:, 0], 1],
    "empty index": lambda x, i, m: x[i[:0]],
    "0-d index": lambda x, i, m: x[i[1]],
    "bool": lambda x, i, m: (x[True], x[False]),
    "nonzero": lambda x, i, m: (m.nonzero(), torch.nonzero(x > 3, as_tuple=True), torch.argwhere(m)),
    "take_along_dim": lambda x, i, m: torch.take_along_dim(x, x.argsort(0), 0),
    "take": lambda x, i, m: x.take(torch.tensor([[0, -1], [5, 7]], device=x.device)),
    "index_put": lambda x, i, m: x.index_put((i, i % 4), torch.ones(3, 2, device=x.device).to(x.dtype)),
    "index_put accumulate": lambda x, i, m: x.index_put(
        (i * 0,), torch.ones(3, 4, 2, device=x.device).to(x.dtype), accumulate=True
    ),
    "set by mask": lambda x, i, m: x.clone().masked_fill_(m[..., None], 7),
    "set by mask of values": lambda x, i, m: x.clone().index_put_((m,), torch.arange(2, device=x.device).to(x.dtype)),
    "scatter_reduce": lambda x, i, m: [x.scatter_reduce(0, x.long().abs() % 3, x, r) for r in ("sum", "amax", "amin")],
    "index_reduce": lambda x, i, m: x.index_reduce(0, i, x, "amax"),
    "searchsorted": lambda x, i, m: torch.searchsorted(x.flatten().sort().values, x[0]),
    "unique": lambda x, i, m: torch.unique(x, return_inverse=True, return_counts=True),
    "unique_consecutive": lambda x, i, m: torch.unique_consecutive(x.flatten()),
    "repeat_interleave": lambda x, i, m: x.repeat_interleave(i, 0),
    "tril and triu": lambda x, i, m: (x[..., 0].tril(-1), x[..., 0].triu(1)),
    "select_scatter": lambda x, i, m: (
        x.select_scatter(x[0] + 1, 0, 2),
        x.slice_scatter(x[:1], 0, 1, 2),
        x.diagonal_scatter(x.diagonal() * 0),
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8, torch.bfloat16], ids=name_of)
@pytest.mark.parametrize("kind", INDEX)
def test_indexing(kind, dtype):
    m = torch.tensor([[True, False, True, True], [False] * 4, [True, True, False, False]])
    agree(INDEX[kind], sample(dtype, 3, 4, 2), torch.tensor([2, 0, 1]), m)


def test_large_indices_are_exact():
    x = torch.arange(100_003)
    i = torch.tensor([0, 255, 256, 257, 4097, 65_537, 99_991, 100_002])
    agree(
        lambda x, i: (
            x[i],
            x.gather(0, i),
            x.index_select(0, i),
            x.take(i),
            F.embedding(i, x[:, None].float()),
            x.index_fill(0, i, -1)[i],
        ),
        x,
        i,
    )
    agree(lambda x, i: (x == 65_537).nonzero(), x, i)
    agree(
        lambda x, i: torch.zeros(2, dtype=torch.float32, device=x.device).index_put(
            (i * 0,), torch.ones(8, device=x.device), accumulate=True
        ),
        x,
        i,
    )


@pytest.mark.parametrize("n", [1, 7, 255, 256, 257, 4097])
def test_results_whose_size_depends_on_values(n):
    v = torch.arange(n) * 7 % 17
    agree(lambda v: ((v % 3 == 0).nonzero(), torch.unique(v), v[v > 5], v.masked_select(v < 4), torch.bincount(v)), v)


def test_zero_size_operands():
    e, z = torch.zeros(0, 3), torch.zeros(2, 0)
    for f in (
        lambda e, z: (e + 1, e.sum(), e.sum(0), e.prod(), e.mean(), e.t() @ e, z @ z.t(), torch.cat([e, e + 1])),
        lambda e, z: (
            e.cumsum(0),
            e.sort(0),
            e.any(),
            e.all(),
            e.max(1),
            e.softmax(1),
            e.argsort(),
            e.flip(0),
            e.unfold(1, 2, 1),
        ),
        lambda e, z: (
            e[:, 1],
            e.nonzero(),
            e[e > 0],
            e.gather(0, e.long()),
            torch.stack([e, e]),
            e.repeat(2, 2),
            e.expand(4, 0, 3),
        ),
        lambda e, z: (
            F.linear(e, torch.ones(4, 3, device=e.device)),
            F.layer_norm(e, (3,)),
            F.relu(e),
            F.mse_loss(e, e),
            F.one_hot(e[:, 0].long(), 3),
        ),
        lambda e, z: (z.var(), z.std(1), z.norm(), torch.logsumexp(z, 1), z.amax(0)),
        lambda e, z: (e.view(torch.int32), e.clone(), e.contiguous(), e.to(torch.float64), torch.einsum("ij,kj->ik", e, e)),
    ):
        agree(f, e, z)


def test_0d_operands():
    s = torch.tensor(-2.5)
    for f in (
        lambda s: (
            s.sum(0),
            s.max(0),
            s.softmax(0),
            s.cumsum(0),
            s.sort(0),
            s.argmax(0),
            s.flip(0),
            s.unsqueeze(0),
            s.t(),
            s.expand(2),
        ),
        lambda s: (
            s.prod(),
            s.mean(),
            s.var(correction=0),
            s.norm(),
            s.topk(1, 0),
            s.gather(0, (s * 0).long()),
            s.index_select(0, (s * 0).long()),
        ),
        lambda s: (s.view(1, 1), s.reshape(-1), s.repeat(2), s.any(), s.nonzero(), s[None], s[...], s.logsumexp(0), s.sum(-1)),
    ):
        agree(f, s)


def test_sorting_is_stable_where_asked():
    x = torch.tensor([3, 1, 3, 1, 2, 2, 3, 1] * 40)
    agree(lambda x: (torch.sort(x, stable=True), torch.sort(x, stable=True, descending=True), torch.argsort(x, stable=True)), x)
    agree(lambda x: torch.sort(x.float() * torch.tensor([1.0, -0.0] * 160, device=x.device), stable=True), x)


def test_dtypes_that_are_tried():
    assert set(SIGNED) < set(INTS) < set(DTYPES)


# ---- what must not be lost ------------------------------------------------------------------------------------------------


def test_false_times_nan_is_nan():
    """Compilers like to take a product with a mask for a selection."""
    mask = torch.tensor([True, False])
    for bad in (float("nan"), float("inf")):
        x = torch.full((2,), bad)
        agree(lambda m, x: m * x, mask, x)
        agree(lambda m, bad=bad: (m * bad, m / bad), mask)
        agree(lambda m, x: m.float() * x, mask, x)
        agree(lambda m, x: torch.mul(x, m, out=torch.empty_like(x)), mask, x)


FITS = {
    "fill_": lambda x, v: x.fill_(v),
    "full_like": lambda x, v: torch.full_like(x, v),
    "masked_fill": lambda x, v: x.masked_fill(x > 1, v),
    "clamp": lambda x, v: x.clamp(max=v),
    "index_fill": lambda x, v: x.index_fill(0, torch.zeros(1, dtype=torch.long, device=x.device), v),
    "scatter": lambda x, v: x.scatter(0, torch.zeros(1, dtype=torch.long, device=x.device), v),
    "alpha": lambda x, v: torch.add(x, x, alpha=v),
    "add": lambda x, v: x + v,  # a second operand wraps around
    "bitwise_and": lambda x, v: x & v if not x.is_floating_point() else x,
    "lt": lambda x, v: x < v,
    "foreach": lambda x, v: torch._foreach_mul([x], v),
}


@pytest.mark.parametrize("kind", FITS)
def test_a_scalar_that_the_dtype_cannot_hold(kind):
    for dtype, numbers in {
        torch.int8: (300, -300, 127, -128),
        torch.uint8: (300, -1, -300, 255),
        torch.int32: (2**40, 2**31 - 1, -(2**31)),
        torch.float32: (1e300, 3e38, float("inf"), float("nan")),
    }.items():
        for v in numbers:
            if isinstance(v, float) and kind == "bitwise_and":
                continue
            agree(lambda x, v=v: FITS[kind](x, v), torch.tensor([1, 3], dtype=dtype))
    if kind in ("fill_", "full_like"):
        agree(lambda x: FITS[kind](x, 1j), torch.tensor([1.0, 3.0]))
        agree(lambda x: FITS[kind](x, float("nan")), torch.tensor([1, 3]))


def test_nan_in_decompositions():
    a = torch.eye(3).repeat(2, 1, 1)
    a[1, 2, 0] = float("nan")
    vectors = torch.linalg.eigh(a.to(DEVICE)).eigenvectors.cpu()
    assert vectors[1].isnan().all() and not vectors[0].isnan().any()


def test_pinv_of_one_triangle():
    a = torch.randn(5, 5)
    want = torch.linalg.pinv(a, hermitian=True)
    check(torch.linalg.pinv(a.to(DEVICE), hermitian=True), want, 1e-3, 1e-4)


# ---- numbers above INT64_MAX ---------------------------------------------------------------------------------------------

UNSIGNED = {
    "add": lambda d: torch.ones(2, device=d) + 2**63,
    "mul of doubles": lambda d: torch.ones(2, device=d, dtype=torch.float64) * (2**64 - 1),
    "full": lambda d: torch.full((2,), 2**64 - 1, dtype=torch.uint64, device=d),
    "full of floats": lambda d: torch.full((2,), 2**63 + 2**40, dtype=torch.float32, device=d),
    "fill_": lambda d: torch.ones(2, device=d, dtype=torch.uint64).fill_(2**63 + 1),
    "eq": lambda d: torch.tensor([2**63, 5], device=d, dtype=torch.uint64) == 2**63,
    "clamp": lambda d: torch.tensor([2.0, 1e30], device=d).clamp(max=2**63),
}


@pytest.mark.parametrize("name", UNSIGNED)
def test_a_number_above_int64(name):
    same(UNSIGNED[name](DEVICE), UNSIGNED[name]("cpu"))


# ---- images of bytes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(8, 9), (33, 61), (17, 23), (5, 90)], ids=str)
@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_bytes_are_resized_in_whole_numbers(mode, antialias, size):
    x = torch.randint(0, 256, (2, 3, 17, 23), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    for corners in (False, True):
        agree(lambda x, c=corners: F.interpolate(x, size=size, mode=mode, antialias=antialias, align_corners=c), x)


def test_logaddexp_of_complex_numbers():
    parts = [0.0, -1.5, 2.0, 40.0, inf]
    x = torch.tensor([complex(a, b) for a in parts for b in (0.0, 3.0, -2.0)])
    a, b = x.repeat(len(x)), x.repeat_interleave(len(x))
    close(torch.logaddexp(a.to(DEVICE), b.to(DEVICE)), torch.logaddexp(a, b), 1e-5, 1e-5)


# ---- a few of many -------------------------------------------------------------------------------------------------------


def ranked(dtype):
    """[7, 300, 5] with every kind of number, equal ones among them."""
    g = torch.Generator().manual_seed(0)
    if dtype is torch.int64:
        return torch.randint(-(2**63), 2**63 - 1, (7, 300, 5), generator=g)
    x = torch.randn(7, 300, 5, dtype=torch.float64, generator=g).mul(100).to(dtype)
    if dtype.is_floating_point:
        x[0, 5, 0], x[1, 3, 1], x[2, 7], x[3, 8] = nan, -nan, inf, -inf
        x[4, :200, 2], x[5, :100], x[5, 100:150] = nan, 0.0, -0.0
    return x


def agree_on_places(x, got, want, dim):
    """Values as CPU; places may be others of equal elements."""
    close(got[0], want[0], 0, 0)
    at = got[1].cpu() if got[1].dim() == x.dim() else got[1].cpu().unsqueeze(dim)
    check(x.gather(dim, at).view(want[0].shape), want[0], 0, 0)


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d is not torch.bool and not d.is_complex], ids=name_of)
def test_topk(dtype):
    x = ranked(dtype)
    for dim, k, largest in itertools.product((0, 1), (1, 7), (True, False)):
        agree_on_places(x, x.to(DEVICE).topk(k, dim, largest), x.topk(k, dim, largest), dim)


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d is not torch.bool and not d.is_complex], ids=name_of)
def test_order_statistics_of_many(dtype):
    x = ranked(dtype)
    for k in (1, 2, 150, 300):
        agree_on_places(x, x.to(DEVICE).kthvalue(k, 1), x.kthvalue(k, 1), 1)
    for f in (torch.median, torch.nanmedian):
        agree_on_places(x, f(x.to(DEVICE), 1, True), f(x, 1, True), 1)
        close(f(x.to(DEVICE)), f(x), 0, 0)


@pytest.mark.parametrize("include_self", [False, True])
@pytest.mark.parametrize("reduce", ["sum", "mean", "prod"])
def test_complex_numbers_are_scattered(reduce, include_self):
    x, source = torch.tensor([1 + 2j, 3 - 1j, 2j]), torch.tensor([2 + 1j, 1j, 4.0, 1 - 1j])
    index = torch.tensor([0, 0, 2, 0])
    agree(lambda x, i, s: x.scatter_reduce(0, i, s, reduce, include_self=include_self), x, index, source)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_hermitian_matrices_are_read_as_lapack_reads_them(dtype):
    x = torch.randn(2, 3, 3, dtype=dtype, generator=torch.Generator().manual_seed(3))
    definite = x @ x.mH + torch.diag_embed(1j * torch.ones(2, 3, dtype=dtype))  # the diagonal's imaginary part is ignored
    for upper in (False, True):
        want = torch.linalg.cholesky(definite, upper=upper)
        torch.testing.assert_close(torch.linalg.cholesky(definite.to(DEVICE), upper=upper).cpu(), want)
    for uplo in "uUlL":  # x has two different triangles
        want = torch.linalg.eigvalsh(x, UPLO=uplo)
        torch.testing.assert_close(torch.linalg.eigvalsh(x.to(DEVICE), UPLO=uplo).cpu(), want, rtol=1e-5, atol=1e-5)
        want = torch.linalg.eigh(x, UPLO=uplo)[1].abs()
        torch.testing.assert_close(torch.linalg.eigh(x.to(DEVICE), UPLO=uplo)[1].cpu().abs(), want, rtol=1e-4, atol=1e-4)


def test_factors_with_columns_first_in_memory():
    a = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(3))
    b = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(4))
    for f in (lambda d: torch.geqrf(a.to(d))[0], lambda d: torch.linalg.lstsq(a.to(d), b.to(d))[0]):
        got, want = f(DEVICE), f("cpu")
        assert got.stride()[-2:] == (1, got.size(-2)) and want.stride(-2) == 1
        torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("fn", [torch.sinh, torch.cosh])
def test_hyperbolic_functions_of_large_numbers(fn, dtype):
    x = torch.tensor([0.0, -0.0, 1e-3, -0.3, 0.999, 1.0, -1.001, 20.0, 54.0, -80.0, 200.0, math.inf, -math.inf, math.nan])
    if dtype == torch.float64:
        x[-4] = 700
    want = fn(x.double()).to(dtype)
    got = fn(x.to(dtype).to(DEVICE)).cpu()
    torch.testing.assert_close(got, want, rtol=4 * torch.finfo(dtype).eps, atol=0, equal_nan=True)
    assert torch.equal(got.signbit()[:-1], want.signbit()[:-1])


# ---- scans of many elements, which have a form of their own on CPU plugins ----------------------------------------------------


@pytest.mark.parametrize("shape, dim", [((70001,), 0), ((9, 8001), 1), ((3, 1024, 32), 1)], ids=str)
def test_long_scans(shape, dim):
    n = math.prod(shape)
    x = (torch.arange(n) * 7919 % 1009 - 500).view(shape)
    agree(lambda a: ((a * 2**40).cumsum(dim), a.cumprod(dim), *(a % 50).cummax(dim)), x)
    f = x / 500
    close(f.to(DEVICE).cumsum(dim), f.double().cumsum(dim).float(), 1e-5, 1e-3)
    close((1 + f / 1000).to(DEVICE).cumprod(dim), (1 + f.double() / 1000).cumprod(dim).float(), 1e-3, 1e-3)
    at = shape[dim] // 2
    for value in (inf, -inf, nan):
        y = f.clone()
        y.select(dim, at).fill_(value)
        want, got = y.cumsum(dim), y.to(DEVICE).cumsum(dim).cpu()
        assert torch.equal(want.isfinite(), got.isfinite()) and torch.equal(want.isnan(), got.isnan())
    agree(lambda a: a.cummin(dim), y)


# ---- factorisations in blocks ----------------------------------------------------------------------------------------------


def waves(*shape, dtype=torch.float64):
    a = torch.arange(math.prod(shape), dtype=torch.float64).mul_(0.731).sin_().mul_(1e4).sin_().view(shape)
    return a + 1j * a.flip(-1) if dtype.is_complex else a.to(dtype)


def positive(batch, n, dtype=torch.float64):
    a = waves(batch, n, n, dtype=dtype)
    return a @ a.mH + n * torch.eye(n, dtype=dtype)


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("batch, n", [(3, 5), (3, 32), (4, 41)])
def test_cholesky(batch, n, upper):
    for dtype in (torch.float64, torch.complex128):
        a = positive(batch, n, dtype)
        a = a.triu() if upper else a.tril()  # the other triangle is not read
        agree(lambda x: torch.linalg.cholesky(x, upper=upper), a, rtol=1e-12, atol=1e-12)
    bad = positive(batch, n, torch.float32)
    bad[0, n // 2, n // 2], bad[1, 0, 0], bad[2, n - 1, n - 1] = -1, 0, nan
    agree(lambda x: torch.linalg.cholesky_ex(x, upper=upper)[1], bad)


@pytest.mark.parametrize("shape", [(3, 7, 5), (128, 32, 32), (80, 40, 50), (50, 66, 37)], ids=str)
def test_lu(shape):  # all but the first in blocks on CPU plugins
    for dtype in (torch.float64, torch.complex128):
        agree(lambda x: tuple(torch.linalg.lu_factor(x)), waves(*shape, dtype=dtype), rtol=1e-9, atol=1e-9)
    singular = waves(*shape, dtype=torch.float64)
    singular[1, :, 4] = 0
    agree(lambda x: torch.linalg.lu_factor_ex(x)[1:], singular)
    if shape[1] == shape[2]:
        agree(lambda x: (torch.linalg.solve(x, x[..., :3]), torch.linalg.det(x)), waves(*shape) / 8, rtol=1e-6, atol=1e-6)
