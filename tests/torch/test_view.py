"""Seam: views. Reads and writes through every kind of view, chains of views, 0-size and 0-d."""

import random

import pytest
import torch
from tpu_testing import COMPLEX, DEVICE, KIND, agree, check, name_of, same, sample, steady

# name: (shape of the base, the view)
VIEWS = {
    "whole": ((3, 4), lambda x: x[:]),
    "slice": ((5, 4), lambda x: x[1:4]),
    "slice inner": ((3, 8), lambda x: x[:, 2:7]),
    "slice both": ((6, 7), lambda x: x[2:5, 1:6]),
    "step": ((9,), lambda x: x[::2]),
    "step and start": ((11, 3), lambda x: x[1::3]),
    "step inner": ((3, 11), lambda x: x[:, 2:9:3]),
    "select": ((4, 5), lambda x: x[2]),
    "select inner": ((4, 5), lambda x: x[:, -2]),
    "select all": ((4, 5), lambda x: x[3, 1]),
    "select middle": ((2, 3, 4), lambda x: x[:, 1]),
    "t": ((3, 5), lambda x: x.t()),
    "mT": ((2, 3, 5), lambda x: x.mT),
    "permute": ((2, 3, 4), lambda x: x.permute(2, 0, 1)),
    "movedim": ((2, 3, 4, 2), lambda x: x.movedim(0, 2)),
    "transpose of slice": ((6, 7), lambda x: x[1:5, ::2].transpose(0, 1)),
    "reshape": ((4, 6), lambda x: x.view(2, 2, 3, 2)),
    "reshape of slice": ((4, 6), lambda x: x[1:3].view(-1)),
    "flatten part": ((2, 3, 4), lambda x: x.flatten(1)),
    "unflatten": ((2, 12), lambda x: x.unflatten(1, (3, 4))),
    "unsqueeze": ((3, 4), lambda x: x.unsqueeze(1)),
    "squeeze": ((3, 1, 4, 1), lambda x: x.squeeze()),
    "squeeze one": ((3, 1, 4), lambda x: x.squeeze(1)),
    "narrow": ((3, 8), lambda x: x.narrow(1, 3, 4)),
    "diagonal": ((4, 5), lambda x: x.diagonal()),
    "diagonal above": ((4, 5), lambda x: x.diagonal(2)),
    "diagonal below": ((5, 4), lambda x: x.diagonal(-3)),
    "diagonal of a batch": ((2, 4, 3), lambda x: x.diagonal(1, 1, 2)),
    "unfold, apart": ((10,), lambda x: x.unfold(0, 2, 3)),
    "unfold, touching": ((3, 8), lambda x: x.unfold(1, 4, 4)),
    "split": ((7, 3), lambda x: x.split(3)[1]),
    "chunk": ((7, 3), lambda x: x.chunk(3)[2]),
    "unbind": ((3, 4), lambda x: x.unbind(1)[2]),
    "tensor_split": ((7,), lambda x: torch.tensor_split(x, 3)[1]),
    "hsplit": ((4, 6), lambda x: torch.hsplit(x, 3)[1]),
    "as_strided": ((20,), lambda x: torch.as_strided(x, (3, 2), (6, 2), 1)),
    "as_strided, transposed": ((20,), lambda x: torch.as_strided(x, (2, 3), (2, 6), 5)),
    "as_strided over dims": ((4, 5), lambda x: torch.as_strided(x, (2, 2, 2), (10, 3, 1), 2)),
    "as_strided across rows": ((4, 5), lambda x: torch.as_strided(x, (7,), (1,), 3)),
    "as_strided, gcd steps": ((40,), lambda x: torch.as_strided(x, (3, 4), (12, 3), 2)),
    "swapaxes": ((2, 3, 4), lambda x: x.swapaxes(0, 2)),
    "none index": ((3, 4), lambda x: x[None, 1:, None, ::3]),
    "ellipsis": ((2, 3, 4), lambda x: x[..., 1]),
    "view_as": ((2, 6), lambda x: x.view_as(torch.empty(3, 4))),
    "detach": ((3,), lambda x: x.detach()),
    "alias": ((3, 2), lambda x: torch.ops.aten.alias(x)),
    "0-d view": ((), lambda x: x.view(1)),
    "0-d unsqueeze": ((), lambda x: x[None, None]),
    "element as 0-d": ((3,), lambda x: x[1]),
    "empty slice": ((3, 4), lambda x: x[2:2]),
    "empty base": ((0, 4), lambda x: x.t()),
    "empty reshape": ((2, 0, 3), lambda x: x.view(0, 5)),
    "empty select": ((2, 0), lambda x: x[1]),
    "past the end": ((3, 4), lambda x: x[5:9]),
    "big stop": ((6,), lambda x: torch.ops.aten.slice.Tensor(x, 0, 2, 2**63 - 1)),
    "negative start": ((6,), lambda x: torch.ops.aten.slice.Tensor(x, 0, -4, 2**63 - 1, 2)),
}
READ_ONLY = {  # two elements share memory
    "expand": ((3, 1), lambda x: x.expand(3, 4)),
    "expand new dim": ((3,), lambda x: x.expand(2, -1)),
    "expand of select": ((3, 4), lambda x: x[1].expand(2, 2, 4)),
    "expand 0-d": ((), lambda x: x.expand(2, 3)),
    "expand to empty": ((1, 3), lambda x: x.expand(0, 3)),
    "broadcast_to": ((1, 4), lambda x: torch.broadcast_to(x, (2, 3, 4))),
    "unfold, overlapping": ((9,), lambda x: x.unfold(0, 4, 1)),
    "unfold 2-d": ((4, 7), lambda x: x.unfold(1, 3, 2).unfold(0, 2, 1)),
    "as_strided, overlapping": ((12,), lambda x: torch.as_strided(x, (3, 4), (2, 1), 1)),
    "as_strided, one element": ((12,), lambda x: torch.as_strided(x, (2, 3), (0, 0), 5)),
    "as_strided, toeplitz": ((7,), lambda x: torch.as_strided(x, (4, 4), (1, 1))),
}
KINDS = {**VIEWS, **READ_ONLY}
by_kind = pytest.mark.parametrize("kind", KINDS)
by_written = pytest.mark.parametrize("kind", VIEWS)


@by_kind
def test_read(kind):
    shape, f = KINDS[kind]
    c = sample(torch.float32, *shape)
    d = c.to(DEVICE, copy=True)
    v, w = f(d), f(c)
    same(v, w)
    assert v.stride() == w.stride() and v.storage_offset() == w.storage_offset() and v.is_contiguous() == w.is_contiguous()
    if v.numel():
        assert v.untyped_storage().data_ptr() == d.untyped_storage().data_ptr()
    same(v * 2 + 1, w * 2 + 1)
    same(v.sum(), w.sum())


@by_kind
@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.complex64], ids=name_of)
def test_read_other_dtypes(kind, dtype):
    shape, f = KINDS[kind]
    c = sample(dtype, *shape)
    same(f(c.to(DEVICE)), f(c))


@by_written
def test_write(kind):
    shape, f = VIEWS[kind]
    for write in (
        lambda v: v.fill_(7),
        lambda v: v.copy_(torch.arange(float(v.numel())).reshape(v.shape).to(v.device)),
        lambda v: v.mul_(3).add_(v),
    ):
        c = sample(torch.float32, *shape)
        d = c.to(DEVICE, copy=True)
        write(f(d))
        write(f(c))
        same(d, c)


@by_written
@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.complex64], ids=name_of)
def test_write_other_dtypes(kind, dtype):
    shape, f = VIEWS[kind]
    c = sample(dtype, *shape)
    d = c.to(DEVICE, copy=True)
    new = sample(dtype, *f(c).shape, seed=5)
    f(d).copy_(new)
    f(c).copy_(new)
    same(d, c)


@pytest.mark.parametrize("kind", READ_ONLY)
def test_writing_where_elements_share_memory_is_as_on_cpu(kind):
    shape, f = READ_ONLY[kind]
    agree(lambda x: f(x).add_(1) and x, sample(torch.float32, *shape))


@pytest.mark.parametrize("kind", ["slice both", "t", "diagonal", "as_strided", "unfold, touching", "select inner"])
def test_views_stay_views_when_the_base_is_written(kind):
    shape, f = VIEWS[kind]
    c = sample(torch.float32, *shape)
    d = c.to(DEVICE, copy=True)
    v, w = f(d), f(c)
    d.add_(10)
    c.add_(10)
    same(v, w)
    v.mul_(2)
    w.mul_(2)
    d.sub_(1)
    c.sub_(1)
    same(v, w)
    same(d, c)


def test_two_views_of_one_base_see_each_other():
    d = torch.zeros(4, 6, device=DEVICE)
    rows, columns = d[1:3], d[:, ::2]
    rows.fill_(1)
    columns.add_(1)
    same(rows, torch.tensor([[2.0, 1] * 3] * 2))
    rows.t().copy_(torch.arange(12.0).reshape(6, 2))
    same(columns[1:3], torch.arange(12.0).reshape(6, 2).t()[:, ::2])


def test_metadata_of_views():
    x = torch.zeros(3, 4, device=DEVICE, requires_grad=True) * 1
    v = x.t()[1:]
    assert v._is_view() and v._base is x and not x._is_view()
    n = x._version
    v.add_(1)
    assert x._version == n + 1 == v._version
    assert x.detach()._base is None or True
    y = torch.arange(6.0, device=DEVICE)
    assert (
        y.reshape(2, 3).data_ptr() == y.data_ptr()
        and y.view(2, 3).t().reshape(-1).untyped_storage().data_ptr() != y.untyped_storage().data_ptr()
    )
    with pytest.raises(RuntimeError, match="view"):
        y.view(2, 3).t().view(-1)
    with pytest.raises(RuntimeError, match="invalid"):
        y.view(4)


# ---- another dtype over the same bytes ---------------------------------------------------------------------------------

CASTS = [
    (torch.float32, torch.int32),
    (torch.int32, torch.float32),
    (torch.float32, torch.uint8),
    (torch.uint8, torch.float32),
    (torch.int64, torch.int16),
    (torch.int16, torch.int64),
    (torch.bfloat16, torch.int16),
    (torch.float16, torch.bfloat16),
    (torch.float64, torch.int64),
    (torch.int8, torch.uint8),
    (torch.complex64, torch.float32),
    (torch.float32, torch.complex64),
    (torch.complex64, torch.int64),
    (torch.bool, torch.uint8),
    (torch.int32, torch.int32),
    (torch.int64, torch.complex64),
    (torch.float8_e4m3fn, torch.uint8),
]


@pytest.mark.parametrize("pair", CASTS, ids=lambda p: f"{name_of(p[0])}-{name_of(p[1])}")
def test_view_as_another_dtype(pair):
    a, b = pair
    c = sample(a, 3, 16)
    d = c.to(DEVICE, copy=True)
    same(d.view(b), c.view(b))
    same(d[1:].view(b), c[1:].view(b))
    same(d.view(b)[:, 1:], c.view(b)[:, 1:])
    new = sample(b, *c.view(b)[1].shape, seed=4)
    d.view(b)[1].copy_(new)
    c.view(b)[1].copy_(new)
    same(d, c)
    back = d.view(b).view(a)
    same(back, c)
    same(d[:, :8], c[:, :8])


def test_view_as_another_dtype_needs_fitting_strides():
    agree(lambda x: x.t().view(torch.int16), torch.zeros(4, 6, dtype=torch.int32))
    agree(lambda x: x[:, :3].view(torch.int64), torch.zeros(4, 6, dtype=torch.int32))
    agree(lambda x: x.view(torch.int64), torch.zeros(4, 3, dtype=torch.int32))


@pytest.mark.parametrize("dtype", COMPLEX, ids=name_of)
def test_complex_as_real(dtype):
    c = sample(dtype, 3, 4)
    d = c.to(DEVICE, copy=True)
    same(torch.view_as_real(d), torch.view_as_real(c))
    same(d.real, c.real)
    same(d.imag, c.imag)
    same(d.t().imag[1:], c.t().imag[1:])
    for x in (d, c):
        x.imag[1].fill_(5)
        torch.view_as_real(x)[:, 0, 0] += 1
        x[2].real.copy_(x[2].imag)
    same(d, c)
    r = torch.view_as_real(c).clone()
    e = r.to(DEVICE, copy=True)
    same(torch.view_as_complex(e), torch.view_as_complex(r))
    torch.view_as_complex(e)[0] = 1 + 2j
    torch.view_as_complex(r)[0] = 1 + 2j
    same(e, r)


# ---- assignment ----------------------------------------------------------------------------------------------------------

ASSIGN = {
    "element": lambda x, v: x.__setitem__((1, 2), 9.0),
    "row": lambda x, v: x.__setitem__(1, v(6)),
    "column": lambda x, v: x.__setitem__((slice(None), 2), v(4)),
    "block": lambda x, v: x.__setitem__((slice(1, 3), slice(0, 6, 2)), v(2, 3)),
    "broadcast": lambda x, v: x.__setitem__((slice(None), slice(1, 4)), v(3)),
    "number": lambda x, v: x.__setitem__((Ellipsis, slice(3, None)), -2),
    "other dtype": lambda x, v: x.__setitem__(2, v(6).long()),
    "0-d": lambda x, v: x.__setitem__((0, slice(None)), v()),
    "from itself": lambda x, v: x.__setitem__((slice(0, 2),), x[2:4]),
    "overlapping clone": lambda x, v: x.__setitem__((slice(1, None),), x[:-1].clone()),
    "swap": lambda x, v: (lambda a, b: (x.__setitem__(0, b), x.__setitem__(1, a)))(x[0].clone(), x[1].clone()),
    "add": lambda x, v: x[1:3].__iadd__(v(6)),
    "transposed": lambda x, v: x.t().__setitem__(slice(1, 3), v(2, 4)),
    "list": lambda x, v: x.__setitem__([0, 2], v(2, 6)),
    "tensor": lambda x, v: x.__setitem__((torch.tensor([3, -1], device=x.device)[:1], slice(1, 3)), v(1, 2)),
    "mask": lambda x, v: x.__setitem__(x > 2, -1.0),
    "mask with values": lambda x, v: x.__setitem__(torch.tensor([True, False, False, True], device=x.device), v(2, 6)),
    "true": lambda x, v: x.__setitem__(True, 4.0),
    "nothing": lambda x, v: x.__setitem__(slice(2, 2), 4.0),
}


@pytest.mark.parametrize("kind", ASSIGN)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.bfloat16], ids=name_of)
def test_assign(kind, dtype):
    def run(x):
        ASSIGN[kind](x, lambda *s: (torch.arange(float(max(1, torch.Size(s).numel()))).reshape(s) + 20).to(x.device, dtype))
        return x

    agree(run, sample(dtype, 4, 6))


@pytest.mark.parametrize("kind", ["block", "transposed", "mask", "list"])
def test_assign_through_a_view(kind):
    def run(base):
        x = base.t()[1:5, ::2].contiguous().clone() if False else base.view(6, 8)[2:6, 1:7]
        ASSIGN[kind](x, lambda *s: torch.arange(float(max(1, torch.Size(s).numel()))).reshape(s).to(x.device) + 20)
        return base

    agree(run, sample(torch.float32, 48))


# ---- chains --------------------------------------------------------------------------------------------------------------


def random_step(rng, x):
    """(text, view) of one random view of x; the text alone replays it on another device."""
    options = ["t0"]
    if x.dim():
        options += ["select", "slice", "step", "permute", "unsqueeze", "expand1", "flatten", "split", "narrow", "squeeze"]
    if x.dim() >= 2:
        options += ["diagonal", "transpose"]
    if x.dim() and max(x.shape) >= 3:
        options += ["unfold"]
    kind = rng.choice(options)
    d = rng.randrange(x.dim()) if x.dim() else 0
    n = x.shape[d] if x.dim() else 1
    if kind == "t0":
        return "x.unsqueeze(0)"
    if kind == "select" and n:
        return f"x.select({d}, {rng.randrange(-n, n)})"
    if kind == "slice":
        a = rng.randrange(n + 1)
        return f"x.narrow({d}, {a}, {rng.randrange(n - a + 1)})"
    if kind in ("step", "narrow"):
        return f"torch.ops.aten.slice.Tensor(x, {d}, {rng.randrange(n + 1)}, {n}, {rng.randint(1, 3)})"
    if kind == "permute":
        p = list(range(x.dim()))
        rng.shuffle(p)
        return f"x.permute({p})"
    if kind == "transpose":
        return f"x.transpose({d}, {rng.randrange(x.dim())})"
    if kind == "unsqueeze":
        return f"x.unsqueeze({d})"
    if kind == "squeeze":
        return "x.squeeze()"
    if kind == "diagonal":
        a, b = rng.sample(range(x.dim()), 2)
        return f"x.diagonal({rng.randint(-1, 1)}, {a}, {b})"
    if kind == "flatten" and x.is_contiguous():
        return "x.view(-1)"
    if kind == "split" and n % 2 == 0 and n:
        return f"x.unflatten({d}, (2, {n // 2}))"
    if kind == "unfold" and n >= 3:
        return f"x.unfold({d}, {rng.randint(1, 3)}, 3)"
    return "x"


@pytest.mark.parametrize("seed", range(48))
def test_random_chain(seed):
    rng = random.Random(seed)
    shape = [rng.randint(1, 6) for _ in range(rng.randint(1, 4))]
    dtype = rng.choice([torch.float32, torch.int64, torch.bool, torch.float16, torch.complex64])
    c = sample(dtype, *shape, seed=seed)
    d = c.to(DEVICE, copy=True)
    x, steps = c, []
    for _ in range(rng.randint(2, 5)):
        steps.append(random_step(rng, x))
        x = eval(steps[-1], {"torch": torch, "x": x})
    y = d
    for s in steps:
        y = eval(s, {"torch": torch, "x": y})
    note = f"{shape} {dtype}: {' ; '.join(steps)}"
    assert y.shape == x.shape and y.stride() == x.stride() and y.device.type == KIND, note
    try:
        check(y, x, 0, 0)
        new = sample(dtype, *x.shape, seed=seed + 1)
        y.copy_(new)
        x.copy_(new)
        check(d, c, 0, 0)
        if dtype != torch.bool:
            y.add_(y)
            x.add_(x)
        check(d, c, 0, 0)
        check(y, x, 0, 0)
    except AssertionError as e:
        raise AssertionError(f"{note}\n{e}") from None


def test_where_a_view_starts_compiles_nothing():
    x = torch.arange(120.0, device=DEVICE).view(10, 12)
    steady(lambda i: x[i])
    steady(lambda i: x[i] + 1)
    steady(lambda i: x[:, i].add_(1))
    steady(lambda i: x[1:9, i : i + 4].mul_(2))
    steady(lambda i: x.diagonal()[i : i + 2].sum())
    steady(lambda i: torch.as_strided(x, (3, 2), (24, 2), i) + 0)


def test_views_of_outputs_that_were_never_written():
    x = torch.empty(4, 4, device=DEVICE)
    x.t()[1].fill_(3)
    same(x[:, 1], torch.full((4,), 3.0))
    x[0].zero_()
    x[1:].fill_(1)
    want = torch.ones(4, 4)
    want[0] = 0
    same(x, want)


def test_gradients_flow_through_views():
    def f(w):
        x = w * 2
        x[:, :2] = 0
        y = x.t()[1:].reshape(-1).unfold(0, 2, 1).sum(1)
        z = x.diagonal() * 3
        return (y * y).sum() + z.sum() + x.expand(2, 3, 4).sum() + torch.as_strided(x, (2, 2), (4, 2), 1).prod()

    def grad(w):
        w = w.requires_grad_()
        f(w).backward()
        return w.grad

    got, want = grad(sample(torch.float32, 3, 4).to(DEVICE)), grad(sample(torch.float32, 3, 4))
    check(got, want, 1e-5, 1e-5)


def test_sizes_of_one_among_transposed_dimensions():
    """Two such views over bases of differing form took XLA's compiler minutes."""
    base = torch.arange(4 * 2 * 5 * 6 * 2 * 9 * 3.0).reshape(4, 2, 5, 1, 6, 2, 9, 3)
    sizes = (8, 1, 3, 3, 3, 4, 1, 3, 5)
    want = base.transpose(-1, 2).transpose(-2, 3)
    got = base.to(DEVICE).transpose(-1, 2).transpose(-2, 3)
    same(got.view(sizes) + got.clone().view(sizes), 2 * want.view(sizes))
    got.view(sizes)[:, :, 1] = -1.0
    want.view(sizes)[:, :, 1] = -1.0
    same(got, want)


def test_the_order_of_a_tensor_without_elements_is_that_of_this_call():
    x = torch.empty(0, 5, 2, 3, device=DEVICE)
    for fmt in (torch.contiguous_format, torch.channels_last, torch.contiguous_format):
        y = x.to(memory_format=fmt)
        got, want = (torch.nn.functional.batch_norm(z, None, None, training=True) for z in (y, y.cpu()))
        assert got.stride() == want.stride() == y.stride()
