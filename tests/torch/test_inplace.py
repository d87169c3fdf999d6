"""Seam: writing. out=, in-place forms, overlap, aliasing, foreach, and what autograd says about it."""

import warnings

import pytest
import torch
from tpu_testing import DEVICE, KIND, agree, close, device_only, same, sample

F = torch.nn.functional
A, B = sample(torch.float32, 3, 4), sample(torch.float32, 3, 4, seed=1)

OUT = {
    "add": lambda out: torch.add(A.to(out.device), B.to(out.device), alpha=2, out=out),
    "mul number": lambda out: torch.mul(A.to(out.device), 3.0, out=out),
    "div": lambda out: torch.div(A.to(out.device), 4, out=out),
    "neg": lambda out: torch.neg(A.to(out.device), out=out),
    "abs": lambda out: torch.abs(A.to(out.device), out=out),
    "clamp": lambda out: torch.clamp(A.to(out.device), -1, 2, out=out),
    "where": lambda out: torch.where(A.to(out.device) > 0, A.to(out.device), B.to(out.device), out=out),
    "addcmul": lambda out: torch.addcmul(A.to(out.device), B.to(out.device), B.to(out.device), value=0.5, out=out),
    "cat": lambda out: torch.cat([A.to(out.device)[:1], B.to(out.device)[1:]], out=out),
    "stack": lambda out: torch.stack([A.to(out.device)[0], B.to(out.device)[1], B.to(out.device)[2]], out=out),
    "mm": lambda out: torch.mm(A.to(out.device), torch.eye(4, device=out.device), out=out),
    "addmm": lambda out: torch.addmm(A.to(out.device), torch.eye(3, device=out.device), B.to(out.device), beta=2, out=out),
    "cumsum": lambda out: torch.cumsum(A.to(out.device), 1, out=out),
    "index_select": lambda out: torch.index_select(A.to(out.device), 0, torch.tensor([2, 0, 1], device=out.device), out=out),
    "gather": lambda out: torch.gather(A.to(out.device), 1, torch.tensor([[3, 2, 1, 0]] * 3, device=out.device), out=out),
    "tril": lambda out: torch.tril(A.to(out.device), out=out),
    "triu": lambda out: torch.triu(A.to(out.device), 1, out=out),
    "full": lambda out: torch.full((3, 4), 2.0, out=out),
    "zeros": lambda out: torch.zeros(3, 4, out=out),
    "ones": lambda out: torch.ones(3, 4, out=out),
    "scatter": lambda out: torch.scatter(A.to(out.device), 1, torch.tensor([[0], [1], [2]], device=out.device), 9.0, out=out),
    "maximum": lambda out: torch.maximum(A.to(out.device), B.to(out.device), out=out),
    "pow": lambda out: torch.pow(A.to(out.device), 2, out=out),
    "relu-like": lambda out: torch.clamp_min(A.to(out.device), 0, out=out),
    "lerp": lambda out: torch.lerp(A.to(out.device), B.to(out.device), 0.5, out=out),
}
by_out = pytest.mark.parametrize("kind", OUT)


@by_out
def test_out(kind):
    want = OUT[kind](torch.empty(3, 4))
    out = torch.full((3, 4), 77.0, device=DEVICE)
    address = out.data_ptr()
    assert OUT[kind](out) is out and out.data_ptr() == address
    same(out, want)
    base = torch.full((6, 10), 77.0, device=DEVICE)  # a strided view: the base has the result, its gaps are untouched
    expected = torch.full((6, 10), 77.0)
    OUT[kind](base[::2, 1:9:2])
    expected[::2, 1:9:2] = want
    same(base, expected)
    turned = torch.full((4, 3), 77.0, device=DEVICE)
    OUT[kind](turned.t())
    same(turned.t(), want)


@pytest.mark.parametrize("kind", ["add", "mm", "cat", "cumsum", "index_select", "where"])
def test_out_is_resized(kind):
    want = OUT[kind](torch.empty(3, 4))
    same(OUT[kind](torch.empty(0, device=DEVICE)), want)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        out = torch.zeros(5, device=DEVICE)
        same(OUT[kind](out), want)
        assert out.shape == (3, 4)
    assert any("resized" in str(w.message) for w in seen)


def test_out_with_several_results():
    c = sample(torch.float32, 3, 5)
    for f in (torch.max, torch.min, torch.sort, torch.kthvalue, torch.mode, torch.median, torch.topk, torch.cummax):
        args = {torch.kthvalue: (2, 1), torch.topk: (2, 1)}.get(f, (1,))
        want = f(c, *args)
        v, i = torch.empty(0, device=DEVICE), torch.empty(0, dtype=torch.int64, device=DEVICE)
        got = f(c.to(DEVICE), *args, out=(v, i))
        assert got[0] is v and got[1] is i
        same(v, want[0])
        if f in (torch.sort, torch.topk, torch.mode, torch.median, torch.kthvalue):  # which of equal elements is open
            same(c.to(DEVICE).gather(1, i if i.dim() == 2 else i[:, None]).reshape(v.shape), want[0])
        else:
            same(i, want[1])


def test_out_of_another_dtype():
    agree(lambda a, b, o: torch.add(a, b, out=o), A, B, torch.empty(3, 4, dtype=torch.float64))
    agree(lambda a, b, o: torch.add(a, b, out=o), A.long(), B.long(), torch.empty(3, 4))
    agree(lambda a, b, o: torch.add(a, b, out=o), A, B, torch.empty(3, 4, dtype=torch.int64))  # an error
    agree(lambda a, b, o: torch.eq(a, b, out=o), A, B, torch.empty(3, 4))
    agree(lambda a, o: torch.sum(a, 1, out=o), A, torch.empty(3, dtype=torch.float64))
    agree(lambda a, o: torch.mm(a, a.t(), out=o), A, torch.empty(3, 3, dtype=torch.float64))  # an error
    agree(lambda a, o: torch.argmax(a, 1, out=o), A, torch.empty(3))  # an error


def test_out_may_be_an_input():
    agree(lambda a, b: torch.add(a, b, out=a), A, B)
    agree(lambda a, b: torch.sub(b, a, out=a), A, B)
    agree(lambda a: torch.mul(a, a, out=a), A)
    a = sample(torch.float32, 3, 3)
    same(torch.mm(a.to(DEVICE), a.to(DEVICE)), a @ a)
    if KIND != "cpu":  # CPU reads what it has written already
        d = a.to(DEVICE)
        same(torch.mm(d, d, out=d), a @ a)
    agree(lambda a: torch.cumsum(a, 0, out=a), A)


# ---- in place ----------------------------------------------------------------------------------------------------------

INPLACE = {
    "add_": lambda x: x.add_(2),
    "sub_": lambda x: x.sub_(x * 0.5),
    "mul_": lambda x: x.mul_(x),
    "div_": lambda x: x.div_(2),
    "neg_": lambda x: x.neg_(),
    "abs_": lambda x: x.abs_(),
    "clamp_": lambda x: x.clamp_(-2, 2),
    "relu_": lambda x: x.relu_(),
    "fill_": lambda x: x.fill_(3),
    "fill_ 0-d": lambda x: x.fill_(x.flatten()[0].clone()),
    "zero_": lambda x: x.zero_(),
    "copy_": lambda x: x.copy_(x + 1),
    "lerp_": lambda x: x.lerp_(x * 2, 0.25),
    "addcmul_": lambda x: x.addcmul_(x, x, value=0.5),
    "addcdiv_": lambda x: x.addcdiv_(x, x * 0 + 4, value=2),
    "masked_fill_": lambda x: x.masked_fill_(x > 1, -5),
    "clamp_min_": lambda x: x.clamp_min_(0),
    "floor_": lambda x: x.div_(2).floor_(),
    "sign_": lambda x: x.sign_(),
    "pow_": lambda x: x.pow_(2),
    "square_": lambda x: x.square_(),
    "ge_": lambda x: x.ge_(1),
    "tril_": lambda x: x.tril_(),
    "cumsum_": lambda x: x.cumsum_(0),
    "index_fill_": lambda x: x.index_fill_(1, torch.tensor([2, 0], device=x.device), 8),
    "index_add_": lambda x: x.index_add_(0, torch.tensor([1, 1], device=x.device), x[:2].clone(), alpha=2),
    "index_copy_": lambda x: x.index_copy_(0, torch.tensor([2, 0], device=x.device), x[:2].clone()),
    "index_put_": lambda x: x.index_put_(
        (torch.tensor([0, 0], device=x.device), torch.tensor([1, 1], device=x.device)), x[0, :2].clone(), accumulate=True
    ),
    "scatter_": lambda x: x.scatter_(1, torch.tensor([[3, 0]], device=x.device), x[1:2, :2].clone()),
    "scatter_ number": lambda x: x.scatter_(0, torch.tensor([[2, 1, 0, 0]], device=x.device), 6.0),
    "scatter_add_": lambda x: x.scatter_add_(1, torch.tensor([[1, 1], [2, 2]], device=x.device), x[:2, :2].clone()),
    "scatter_reduce_": lambda x: x.scatter_reduce_(0, torch.tensor([[1, 1, 0, 2]], device=x.device), x[:1].clone() + 3, "amax"),
    "masked_scatter_": lambda x: x.masked_scatter_(x > 0, torch.arange(12.0, device=x.device) + 50),
    "put_": lambda x: x.put_(torch.tensor([3, -1], device=x.device), x[0, :2].clone()),
    "fill_diagonal_": lambda x: x.fill_diagonal_(4.0),
    "addmm_": lambda x: x.addmm_(x[:, :3].clone(), x.clone(), beta=0.5, alpha=2),
    "swapaxes": lambda x: x.t().add_(torch.arange(3.0, device=x.device)),
    "F.relu inplace": lambda x: F.relu(x, inplace=True),
    "F.hardtanh inplace": lambda x: F.hardtanh(x, inplace=True),
    "copysign_": lambda x: x.copysign_(x * 0 - 1),
    "nan_to_num_": lambda x: x.div_(x * 0).nan_to_num_(1.0, 2.0, 3.0),
    "remainder_": lambda x: x.remainder_(3),
    "renorm_": lambda x: x.renorm_(2, 0, 100.0),
}


@pytest.mark.parametrize("kind", INPLACE)
def test_in_place(kind):
    f = INPLACE[kind]

    def whole(x):
        assert f(x) is not None
        return x

    def through_view(base):
        f(base[1:4, ::2])
        return base

    agree(whole, A, rtol=1e-6, atol=1e-6)
    agree(through_view, sample(torch.float32, 5, 8, seed=2), rtol=1e-6, atol=1e-6)


def test_in_place_returns_itself_and_keeps_its_storage():
    x = A.to(DEVICE)
    address, version = x.data_ptr(), x._version
    assert x.add_(1) is x and x.data_ptr() == address and x._version == version + 1


def test_in_place_keeps_the_dtype():
    agree(lambda x: x.add_(1.5), sample(torch.int64, 4))  # an error
    agree(lambda x: x.add_(1), sample(torch.float16, 4))
    agree(lambda x, y: x.add_(y), sample(torch.float32, 4), sample(torch.float64, 4))
    agree(lambda x, y: x.mul_(y), sample(torch.float32, 4), sample(torch.int32, 4))
    agree(lambda x: x.div_(2), sample(torch.int64, 4))  # an error
    agree(lambda x: x.add_(1j), sample(torch.float32, 4))  # an error
    agree(lambda x: x.eq_(2), sample(torch.int32, 4))


def test_in_place_does_not_broadcast_the_target():
    agree(lambda x, y: x.add_(y), torch.zeros(3), torch.ones(2, 3))  # an error
    agree(lambda x, y: x.add_(y), torch.zeros(2, 3), torch.ones(3))
    agree(lambda x, y: x.copy_(y), torch.zeros(1, 3), torch.ones(2, 3))  # an error


# ---- overlap ---------------------------------------------------------------------------------------------------------

OVERLAP = {
    "shifted": lambda x: x[1:].add_(x[:-1]),
    "shifted copy": lambda x: x[1:].copy_(x[:-1].clone()),
    "itself": lambda x: x.add_(x),
    "same view": lambda x: x[1:5].mul_(x[1:5]),
    "apart": lambda x: x[:4].add_(x[4:]),
    "expanded target": lambda x: x[:1].expand(4).add_(1),
    "expanded source": lambda x: x.add_(x[:1].clone().expand(8)),
    "out= shifted": lambda x: torch.add(x[:-1], 1, out=x[1:]),
    "out= same": lambda x: torch.add(x, 1, out=x),
    "one element of itself": lambda x: x.mul_(x[3]),
    "reversed halves": lambda x: x.view(2, 4).copy_(x.view(2, 4).flip(0)),
    "gather out": lambda x: torch.gather(x, 0, torch.arange(8, device=x.device), out=x),
    "index_add_ itself": lambda x: x.index_add_(0, torch.arange(8, device=x.device), x),
    "cat out": lambda x: torch.cat([x[:2], x[2:4]], out=x[2:6]),
}


@pytest.mark.parametrize("kind", OVERLAP)
def test_overlap_is_as_on_cpu(kind):
    agree(lambda x: OVERLAP[kind](x) is None or x, torch.arange(8.0) + 1)


@device_only
def test_overlap_that_pytorch_does_not_see():
    """CPU multiplies an element as often as it is seen, and reads what it has written; here it is an error, and a clean value."""
    x = torch.arange(8.0, device=DEVICE) + 1
    with pytest.raises(RuntimeError, match="share memory"):
        x.unfold(0, 3, 1).mul_(2)
    same(x, torch.arange(8.0) + 1)
    square = x.view(2, 4)[:, :2]
    want = square.cpu()
    square.add_(square.t())
    same(square, want + want.t())


@pytest.mark.parametrize("turn", range(3))
def test_overlap_is_found_when_the_program_is_known(turn):
    x = torch.arange(8.0, device=DEVICE) + 1
    x[:4].add_(x[4:])  # the same sizes, not overlapping
    with pytest.raises(RuntimeError, match="overlap|single memory location|unsupported operation"):
        x[1:5].add_(x[2:6])
    x[2:6].clone()
    same(x[4:], torch.arange(8.0)[4:] + 1)


# ---- lists of tensors --------------------------------------------------------------------------------------------------

LISTS = {
    "add_ number": lambda a, b: torch._foreach_add_(a, 2.0),
    "add_ lists": lambda a, b: torch._foreach_add_(a, b, alpha=0.5),
    "mul_": lambda a, b: torch._foreach_mul_(a, 3.0),
    "mul_ numbers": lambda a, b: torch._foreach_mul_(a, [1.0, 2.0, 3.0]),
    "mul_ tensor": lambda a, b: torch._foreach_mul_(a, torch.tensor(2.0, device=a[0].device)),
    "div_": lambda a, b: torch._foreach_div_(a, [2.0, 4.0, 8.0]),
    "addcdiv_": lambda a, b: torch._foreach_addcdiv_(a, b, [t.abs() + 1 for t in b], -0.5),
    "addcmul_": lambda a, b: torch._foreach_addcmul_(a, b, b, [1.0, 2.0, 3.0]),
    "lerp_": lambda a, b: torch._foreach_lerp_(a, b, 0.25),
    "sqrt_": lambda a, b: torch._foreach_sqrt_(torch._foreach_abs_(a) or a),
    "neg_": lambda a, b: torch._foreach_neg_(a),
    "zero_": lambda a, b: torch._foreach_zero_(a),
    "copy_": lambda a, b: torch._foreach_copy_(a, b),
    "maximum_": lambda a, b: torch._foreach_maximum_(a, b),
    "clamp_min_": lambda a, b: torch._foreach_clamp_min_(a, 0.5),
    "pow_": lambda a, b: torch._foreach_pow_(a, 2),
    "exp": lambda a, b: torch._foreach_exp(a),
    "norm": lambda a, b: torch._foreach_norm(a),
    "max": lambda a, b: torch._foreach_max(a),
    "sub": lambda a, b: torch._foreach_sub(a, b),
    "reciprocal_": lambda a, b: torch._foreach_reciprocal_(torch._foreach_add_(a, 100.0) or a),
}


@pytest.mark.parametrize("kind", LISTS)
def test_foreach(kind):
    def run(*t):
        a, b = list(t[:3]), list(t[3:])
        out = LISTS[kind](a, b)
        return out if out is not None else a

    shapes = ((2, 3), (), (4,))
    tensors = [sample(torch.float32, *s, seed=i) for i, s in enumerate(shapes * 2)]
    agree(run, *tensors, rtol=1e-6, atol=1e-6)


def test_foreach_with_views_of_one_base():
    def run(x):
        torch._foreach_add_([x[0], x[1], x[2, 1:]], [1.0, 2.0, 3.0])
        torch._foreach_mul_([x[:, 0], x[:, 1]], 2.0)
        return x

    agree(run, A)


# ---- autograd ----------------------------------------------------------------------------------------------------------


def test_changing_what_backward_needs_is_an_error():
    x = torch.ones(3, device=DEVICE, requires_grad=True)
    y = x.exp()
    z = (y * y).sum()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.backward()
    with pytest.raises(RuntimeError, match="leaf"):
        x.add_(1)
    with torch.no_grad():
        x.add_(1)
    close(x, torch.full((3,), 2.0))


def test_gradients_of_in_place_writes():
    def f(w):
        x = w * 1
        x[0] = 0
        x[:, 1] *= 3
        x.masked_fill_(x > 4, 1.0)
        x[2, 2:].copy_(x[1, 2:] * 2)
        return (x * x).sum()

    def grad(w):
        w.requires_grad_()
        f(w).backward()
        return w.grad

    got = grad(A.to(DEVICE, copy=True))
    assert got.device.type == KIND
    close(got, grad(A.clone()))


MASKED = {  # sizes of x, of the mask, where the mask begins, of the values (n: as many as are true)
    "all dims": ((4, 5), (4, 5), 0, ("n",)),
    "rows": ((4, 5), (4,), 0, ("n", 5)),
    "rows, one row": ((4, 5), (4,), 0, (1, 5)),
    "rows, values of a row": ((4, 5), (4,), 0, (5,)),
    "behind a dim": ((3, 4, 5), (4,), 1, (3, "n", 5)),
    "behind a dim, to the end": ((3, 4, 5), (4, 5), 1, (3, "n")),
    "one value": ((4, 5), (4, 5), 0, (1,)),
}


@device_only
@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("kind", MASKED)
def test_values_written_through_a_mask(kind, accumulate):
    sizes, mask_sizes, first, value_sizes = MASKED[kind]
    x, mask = sample(torch.float32, *sizes), sample(torch.float32, *mask_sizes, seed=5) > -0.3
    n = int(mask.sum())
    assert 1 < n < mask.numel()
    v = sample(torch.float32, *[n if s == "n" else s for s in value_sizes], seed=4)
    index = (None,) * first + (mask,)
    want = x.clone()
    torch.ops.aten.index_put_(want, list(index), v, accumulate)
    got = x.to(DEVICE)
    torch.ops.aten.index_put_(got, [i if i is None else i.to(DEVICE) for i in index], v.to(DEVICE), accumulate)
    close(got, want)


@device_only
def test_a_mask_write_reads_nothing_back():
    x, v = torch.zeros(6, device=DEVICE), torch.ones(3, device=DEVICE)
    masks = [torch.tensor(m, dtype=torch.bool, device=DEVICE) for m in ([1, 0, 1, 0, 1, 0], [1, 1, 1, 0, 0, 0])]
    before = torch.tpu.cache_stats()["host_reads"]
    for m in masks:
        x[m] = v
    assert torch.tpu.cache_stats()["host_reads"] == before
    same(x, torch.tensor([1.0, 1, 1, 0, 1, 0]))


@device_only
def test_more_values_than_a_mask_has_room_for():
    x, mask = torch.zeros(5, device=DEVICE), torch.tensor([1, 0, 1, 0, 0], dtype=torch.bool, device=DEVICE)
    with pytest.raises(RuntimeError, match="shape mismatch: value tensor of shape .6. cannot be broadcast"):
        x[mask] = torch.ones(6, device=DEVICE)
    with torch.tpu.set_eager_mode(torch.tpu.EagerMode.DEBUG), pytest.raises(RuntimeError, match="the mask has 2 true"):
        x[mask] = torch.ones(3, device=DEVICE)


# ---- elements that lie on one another ------------------------------------------------------------------------------------

OVERLAPPING = {
    "masked_fill_": lambda x, i: x.masked_fill_(x > 1, 9.0),
    "masked_fill_ of a tensor": lambda x, i: x.masked_fill_(x > 1, torch.tensor(9.0, device=x.device)),
    "index_fill_": lambda x, i: x.index_fill_(1, i, 9.0),
    "index_fill_ of a tensor": lambda x, i: x.index_fill_(0, i, torch.tensor(9.0, device=x.device)),
    "index_put_": lambda x, i: x.index_put_((i,), torch.tensor(9.0, device=x.device)),
    "index_put_ accumulate": lambda x, i: x.index_put_((i,), torch.tensor(9.0, device=x.device), accumulate=True),
    "x[i] =": lambda x, i: x.__setitem__(i, 9.0),
    "x[mask] =": lambda x, i: x.__setitem__(x > 1, 9.0),
    "threshold_": lambda x, i: F.threshold_(x, 5.0, 9.0),
}
VIEWS = {
    "expanded": lambda base: base[:, :1].expand(3, 5),
    "both expanded": lambda base: base[1, 1].expand(3, 5),
    "windows": lambda base: base.view(-1).as_strided((3, 5), (2, 1), 1),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("write", OVERLAPPING)
def test_a_write_to_elements_that_overlap_is_warned_of(write, view):
    def run(device):
        base = torch.arange(12.0).view(3, 4).to(device)
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            OVERLAPPING[write](VIEWS[view](base), torch.tensor([0, 1], device=device))
        return base

    same(run(DEVICE), run("cpu"))


# ---- a write to what is read ------------------------------------------------------------------------------------------------

LYING_ON = {
    "index_fill_": lambda x, i, m: i.index_fill_(0, i, 0),
    "index_put_ index": lambda x, i, m: i.index_put_((i,), i.clone()),
    "index_put_ value": lambda x, i, m: x.index_put_((i,), x[:3]),
    "index_put_ number": lambda x, i, m: x.index_put_((i,), x[0]),
    "index_put_ accumulate": lambda x, i, m: x.index_put_((i,), x[:3], accumulate=True),
    "x[i] =": lambda x, i, m: x.__setitem__(i, x[3:]),
    "x[mask] =": lambda x, i, m: x.__setitem__(m, x[:3]),
    "masked_fill_": lambda x, i, m: m[1:].masked_fill_(m[:-1], False),
    "masked_fill_ tensor": lambda x, i, m: m[1:].masked_fill_(m[:-1], torch.tensor(False)),
    "where": lambda x, i, m: torch.where(m[1:], x[1:], x[:-1], out=x[1:]),
}


@pytest.mark.parametrize("kind", LYING_ON)
def test_a_write_to_what_is_read_is_refused(kind):
    x, i = sample(torch.float32, 6).to(DEVICE), torch.tensor([2, 1, 0], device=DEVICE)
    mask = torch.tensor([True, False, True, True, False, False], device=DEVICE)
    with pytest.raises(RuntimeError, match="unsupported operation: some elements of the input tensor and the written-to"):
        LYING_ON[kind](x, i, mask)


def test_a_mask_may_fill_itself():
    mask = torch.tensor([True, False, True], device=DEVICE)
    mask[mask] = False
    same(mask, torch.zeros(3, dtype=torch.bool))


# ---- out of another dtype -----------------------------------------------------------------------------------------------------

WIDER = {
    "add": lambda x, out: torch.add(x, x, out=out),
    "mul number": lambda x, out: torch.mul(x, 0.3, out=out),
    "div": lambda x, out: torch.div(x, 3, out=out),
    "exp": lambda x, out: torch.exp(x, out=out),
    "sum": lambda x, out: torch.sum(x, 0, out=out),
    "prod": lambda x, out: torch.prod(x, 0, out=out),
    "mean": lambda x, out: torch.mean(x, 0, out=out),
    "cumsum": lambda x, out: torch.cumsum(x, 0, out=out),
    "cumprod": lambda x, out: torch.cumprod(x, 0, out=out),
    "nansum": lambda x, out: torch.nansum(x, 0, out=out),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("wide", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", WIDER)
def test_the_dtype_of_out_and_the_dtype_to_compute_in(kind, wide, dtype):
    x = torch.tensor([5.5, 0.3004, 2.7, 1.3], dtype=dtype)
    mine = WIDER[kind](x.to(DEVICE), torch.empty(0, dtype=wide, device=DEVICE))
    close(mine, WIDER[kind](x, torch.empty(0, dtype=wide)), rtol=1e-6, atol=0)


def test_a_sum_of_integers_into_a_float_out():
    x = torch.tensor([2**62, 2**62, 2**62])  # as int64 it would wrap
    mine = torch.sum(x.to(DEVICE), 0, out=torch.empty((), device=DEVICE))
    same(mine, torch.sum(x, 0, out=torch.empty(())))


m = torch.eye(3) + 1  # positive definite
OUT_DTYPES = {
    "abs": lambda o, d: torch.abs(m.to(d), out=o),
    "addbmm": lambda o, d: torch.addbmm(m.to(d), m[None].to(d), m[None].to(d), out=o),
    "addr": lambda o, d: torch.addr(m.to(d), m[0].to(d), m[0].to(d), out=o),
    "angle": lambda o, d: torch.angle(m.to(d), out=o),
    "angle of int": lambda o, d: torch.angle(m.to(d).long(), out=o),
    "cholesky_inverse": lambda o, d: torch.cholesky_inverse(m.to(d), out=o),
    "conj_physical": lambda o, d: torch.conj_physical(m.to(d), out=o),
    "cummax": lambda o, d: torch.cummax(m.to(d), 0, out=(o, o.new_empty(0).long())),
    "dot": lambda o, d: torch.dot(m[0].to(d), m[0].to(d), out=o),
    "floor_divide": lambda o, d: torch.floor_divide(m.to(d), 2, out=o),
    "floor_divide of int": lambda o, d: torch.floor_divide(m.to(d).long(), m.to(d), out=o),
    "frexp": lambda o, d: torch.frexp(m.to(d), out=(o, o.new_empty(0).int())),
    "geqrf": lambda o, d: torch.geqrf(m.to(d), out=(o, o.new_empty(0))),
    "histc": lambda o, d: torch.histc(m.to(d), 3, 0, 2, out=o),
    "householder_product": lambda o, d: torch.linalg.householder_product(m.to(d), m[0].to(d), out=o),
    "index_select": lambda o, d: torch.index_select(m.to(d), 0, torch.arange(3, device=d), out=o),
    "kthvalue": lambda o, d: torch.kthvalue(m.to(d), 1, out=(o, o.new_empty(0).long())),
    "logsumexp": lambda o, d: torch.logsumexp(m.to(d), 0, out=o),
    "mode": lambda o, d: torch.mode(m.to(d), out=(o, o.new_empty(0).long())),
    "mv": lambda o, d: torch.mv(m.to(d), m[0].to(d), out=o.resize_(3)),
    "nan_to_num": lambda o, d: torch.nan_to_num(m.to(d), out=o),
    "ormqr": lambda o, d: torch.ormqr(m.to(d), m[0].to(d), m.to(d), out=o),
    "searchsorted": lambda o, d: torch.searchsorted(m[0].to(d), m.to(d), out=o),
    "searchsorted int32": lambda o, d: torch.searchsorted(m[0].to(d), m.to(d), out_int32=True, out=o),
    "solve_triangular": lambda o, d: torch.linalg.solve_triangular(m.to(d), m.to(d), upper=True, out=o),
    "sort": lambda o, d: torch.sort(m.to(d), out=(o, o.new_empty(0).long())),
    "take": lambda o, d: torch.take(m.to(d), torch.arange(3, device=d), out=o),
    "rad2deg": lambda o, d: torch.rad2deg(m.to(d), out=o),
    "where": lambda o, d: torch.where(m.to(d) > 1, m.to(d), m.to(d), out=o),
    "frexp exponent": lambda o, d: torch.frexp(m.to(d), out=(o.new_empty(0).float(), o)),
    "kthvalue indices": lambda o, d: torch.kthvalue(m.to(d), 3, out=(o.new_empty(0).float(), o)),
    "mode indices": lambda o, d: torch.mode(m.to(d), out=(o.new_empty(0).float(), o)),
    "sort indices": lambda o, d: torch.sort(m.to(d), out=(o.new_empty(0).float(), o)),
    "cummax indices": lambda o, d: torch.cummax(m.to(d), 0, out=(o.new_empty(0).float(), o)),
    # what the row computes in is not what `out` is
    "gt": lambda o, d: torch.gt(m.to(d), 1, out=o),
    "fmod": lambda o, d: torch.fmod(m.to(d), m.to(d), out=o),
    "digamma": lambda o, d: torch.digamma(m.to(d), out=o),
    "clamp_min": lambda o, d: torch.clamp_min(m.to(d), m.to(d), out=o),
}


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32, torch.float64, torch.complex64], ids=str)
@pytest.mark.parametrize("name", OUT_DTYPES)
def test_out_takes_and_refuses_the_dtypes_of_the_cpu(name, dtype):
    def run(device):
        out = torch.empty(0, dtype=dtype, device=device)
        try:
            r = OUT_DTYPES[name](out, device)
        except RuntimeError as e:
            return str(e)
        assert any(x is out for x in ([r] if isinstance(r, torch.Tensor) else r))
        return out.cpu()

    want, got = run("cpu"), run(DEVICE)
    if isinstance(want, str) or isinstance(got, str):
        assert got == want
    else:
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
