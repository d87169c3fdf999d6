"""Operators of special families, against CPU: distances, CTC loss, segments, histograms, least squares, LDL, matrix
exponentials, unique along a dim."""

import pytest
import torch
from torch.autograd import gradcheck
from tpu_testing import DEVICE, agree, check, close, device_only, name_of, to_device

pytestmark = device_only
F = torch.nn.functional
NAN, INF = float("nan"), float("inf")


def rand(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def like_cpu(fn, *args, rtol=1e-5, atol=1e-6):
    """fn on both; gradients of the results' sums too, for the arguments that are floats."""
    here = [a.clone().requires_grad_() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args]
    there = to_device(here)
    want, got = fn(*here), fn(*there)
    close(got, want, rtol, atol)
    leaves = [(g, w) for g, w in zip(there, here, strict=True) if isinstance(w, torch.Tensor) and w.requires_grad]
    weight = rand(*want.shape, dtype=want.dtype, seed=9)
    torch.autograd.backward(want, weight)
    torch.autograd.backward(got, weight.to(DEVICE))
    for g, w in leaves:
        close(g.grad, w.grad, 10 * rtol, 10 * atol)


# ---- distances


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 2.0, 3.0, INF])
def test_distances(p):
    x, y = rand(2, 4, 3, dtype=torch.float64), rand(5, 3, dtype=torch.float64, seed=1)
    y[0] = x[0, 0]
    like_cpu(lambda a, b: torch.cdist(a, b, p, "donot_use_mm_for_euclid_dist"), x, y)
    like_cpu(lambda a: F.pdist(a, p), torch.cat([x[0], x[0, :1]]))


def test_distances_edges():
    for a, b in [((0, 3), (2, 3)), ((2, 0), (3, 0)), ((2, 3, 4), (2, 0, 4)), ((1, 3), (1, 3))]:
        agree(torch.cdist, torch.ones(a), torch.ones(b))
    for n in (0, 1, 2):
        agree(F.pdist, torch.ones(n, 3))
    agree(F.pdist, torch.ones(3, 0))
    nan = torch.tensor([[1.0, NAN], [1.0, 2.0]])
    for p in (0.0, 1.0, 2.0, 3.0):
        agree(lambda x, p=p: torch.cdist(x, x, p), nan)
    assert torch.cdist(nan.to(DEVICE), nan.to(DEVICE), INF).isnan().sum() == 3
    agree(lambda x: torch.cdist(x, x[:1]), torch.ones(3))


def test_euclidean_by_product():
    like_cpu(lambda a, b: torch.cdist(a, b), rand(30, 4), rand(2, 3, 4, seed=1), rtol=1e-4, atol=1e-4)
    direct = torch.cdist(rand(3, 4).to(DEVICE), rand(5, 4, seed=1).to(DEVICE), compute_mode="use_mm_for_euclid_dist")
    close(direct, torch.cdist(rand(3, 4), rand(5, 4, seed=1)), 1e-4, 1e-4)


# ---- CTC loss


@pytest.mark.parametrize("blank", [0, 6])
@pytest.mark.parametrize("flat", [False, True])
def test_ctc_loss(flat, blank):
    x = rand(12, 3, 7, dtype=torch.float64).log_softmax(-1)
    targets = torch.tensor([[1, 1, 2, 5], [3, 2, 2, 4], [1, 2, 3, 4]])
    for lengths, steps in [((4, 2, 0), (12, 9, 5)), ((3, 1, 4), (12, 4, 12)), ((0, 0, 0), (3, 2, 1))]:
        t = torch.cat([row[:n] for row, n in zip(targets, lengths, strict=True)]) if flat else targets
        for reduction in ("none", "mean")[: 1 + (blank == 0)]:
            like_cpu(lambda x, t, s=steps, n=lengths, r=reduction: F.ctc_loss(x, t, s, n, blank, r), x, t)


@pytest.mark.parametrize("zero_infinity", [False, True])
def test_ctc_loss_without_a_way(zero_infinity):
    x, t = rand(4, 2, 5).log_softmax(-1), torch.tensor([[1, 1, 1], [2, 3, 4]])
    n, s = torch.tensor([3, 3]), torch.tensor([4, 4])
    like_cpu(lambda x: F.ctc_loss(x, t.to(x.device), s, n, reduction="none", zero_infinity=zero_infinity), x)


def test_ctc_loss_errors():
    x, t = rand(4, 2, 5).log_softmax(-1), torch.tensor([1, 2, 3])
    for steps, lengths, blank in [((5, 4), (2, 1), 0), ((4, 4), (2, 2), 0), ((4,), (2, 1), 0), ((4, 4), (2, 1), 5)]:
        agree(lambda x, t, s=steps, n=lengths, b=blank: F.ctc_loss(x, t, s, n, b), x, t)


# ---- segments, histograms


@pytest.mark.parametrize("reduce", ["sum", "mean", "prod", "max", "min"])
def test_segment_reduce(reduce):
    lengths, two = torch.tensor([2, 0, 1, 3, 2, 2]), torch.tensor([[2, 3, 0], [1, 0, 4]])
    x = torch.tensor([1.0, 2, NAN, 3, 4, 5, 0, 2, 0, 0])
    like_cpu(lambda x, n: torch.segment_reduce(x, reduce, lengths=n), x, lengths)
    like_cpu(lambda x, n: torch.segment_reduce(x, reduce, lengths=n, initial=0.5), rand(10, 2), lengths)
    like_cpu(lambda x, n: torch.segment_reduce(x, reduce, offsets=n), x, torch.tensor([1, 2, 2, 3, 5]))
    like_cpu(lambda x, n: torch.segment_reduce(x, reduce, lengths=n, axis=1), rand(2, 5, 3), two)
    agree(lambda x, n: torch.segment_reduce(x, reduce, lengths=n), torch.zeros(0, 3), torch.tensor([0, 0]))
    for bad in ([2, 1], [11, -1]):
        agree(lambda x, n: torch.segment_reduce(x, reduce, lengths=n), x, torch.tensor(bad))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=name_of)
def test_histogram(dtype):
    x, w = rand(3, 20, dtype=dtype), rand(3, 20, dtype=dtype, seed=1).abs()
    edges = torch.tensor([-1, 0, 0.5, 2], dtype=dtype)
    tolerance = {"rtol": 1e-5, "atol": 1e-6}
    agree(lambda x: torch.histogram(x, 7), x, **tolerance)
    agree(lambda x, w: torch.histogram(x, 7, range=(-1.0, 1.0), weight=w, density=True), x, w, **tolerance)
    agree(lambda x, e: torch.histogram(x, e), torch.tensor([NAN, 0, 2, 0.5, INF, -1], dtype=dtype), edges)
    agree(lambda x: torch.histogram(x, 3), torch.zeros(0, dtype=dtype))
    agree(lambda x: torch.histogram(x, 3), torch.tensor(2.0, dtype=dtype))
    agree(lambda x: torch.histogram(x, 3), torch.tensor([1, NAN], dtype=dtype))
    agree(lambda x, e: torch.histogram(x, e[:1]), x, edges)
    agree(lambda x: torch.histogramdd(x, [3, 4], range=[-1.0, 1.0, -2.0, 2.0], density=True), rand(5, 6, 2), **tolerance)
    agree(lambda x, e, w: torch.histogramdd(x, (e, e[1:]), weight=w), rand(3, 20, 2, dtype=dtype), edges, w, **tolerance)


# ---- unique, hashes, cross products


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool], ids=name_of)
def test_unique_along_a_dim(dtype):
    x = torch.tensor([[1, 2, 0], [1, 0, 0], [1, 2, 0], [0, 2, 3], [1, 2, 0]]).to(dtype)
    for dim in (0, 1, -1):
        agree(lambda x, d=dim: torch.unique(x, dim=d, return_inverse=True, return_counts=True), x)
        agree(lambda x, d=dim: torch.unique_consecutive(x, dim=d, return_inverse=True, return_counts=True), x)
    agree(lambda x: torch.unique(x, dim=0), x.view(5, 1, 3))
    agree(lambda x: torch.unique(x, dim=0), x[:0])
    agree(lambda x: torch.unique(x, dim=0), x[:, :0])
    agree(lambda x: torch.ops.aten._unique(x, return_inverse=True), x)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int8, torch.uint8, torch.bool], ids=name_of
)
def test_hash(dtype):
    special = [0.0, -0.0, 1.5, INF, -INF, 1e-39, -1.4e-45, 1.17e-38, 3e38]
    x = torch.tensor(special if dtype.is_floating_point else [0, 1, 5, 100]).to(dtype)
    for k in range(x.numel()):  # one by one: they do not hide behind each other
        agree(lambda x, k=k: torch.hash_tensor(x[k : k + 1]).view(torch.int64), x)
    agree(lambda x: torch.hash_tensor(x.view(1, -1), 1, keepdim=True).view(torch.int64), x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.complex64, torch.bool], ids=name_of)
def test_cross(dtype):
    x, y = torch.arange(24).view(2, 3, 4).to(dtype), torch.arange(12, 24).view(1, 3, 4).to(dtype)
    agree(lambda x, y: torch.linalg.cross(x, y, dim=1), x, y)
    agree(lambda x, y: torch.linalg.cross(x, y, dim=1, out=torch.empty_like(x)), x, y)


def test_outputs_of_unknown_size():
    x = torch.tensor([[1.0, 0, 2], [0, 3, 0]])
    agree(lambda x: torch.nonzero(x, out=torch.empty(0, dtype=torch.int64, device=x.device)), x)
    agree(lambda x: torch.masked_select(x, x > 0, out=x.new_empty(0)), x)
    agree(lambda x: torch.masked_select(x, x > 0, out=x.new_empty(0, dtype=torch.int64)), x)
    agree(lambda x: torch.narrow_copy(x, 1, -2, 2), x)
    agree(lambda x: torch.narrow_copy(x, 1, 2, 2), x)
    like_cpu(lambda x: torch.mvlgamma(x, 3), rand(2, 3).abs() + 2)
    agree(lambda x: x.mvlgamma_(2), torch.tensor([3.0, 0.5, NAN, 0.2]), rtol=1e-5)


# ---- linear algebra


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=name_of)
def test_matrix_exp(dtype):
    x = rand(2, 4, 4, dtype=dtype) * torch.tensor([0.01, 8]).view(2, 1, 1)
    agree(torch.linalg.matrix_exp, x, rtol=1e-10, atol=1e-10)
    agree(torch.linalg.matrix_exp, x[:, :1, :1], rtol=1e-10)
    agree(torch.linalg.matrix_exp, x[:, :0, :0])
    agree(torch.linalg.matrix_exp, torch.zeros(3, 3, dtype=dtype))
    assert torch.linalg.matrix_exp((x[0] * NAN).to(DEVICE)).isnan().any()


@pytest.mark.parametrize("driver", ["gels", "gelsy", "gelsd"])
def test_lstsq(driver):
    solve = lambda a, b: tuple(torch.linalg.lstsq(a, b, driver=driver))  # noqa: E731
    for a, b in [((2, 5, 3), (2, 5)), ((3, 5), (3, 2)), ((0, 3), (0, 2)), ((5, 3), (4, 2))]:
        agree(solve, rand(*a, dtype=torch.float64), rand(*b, dtype=torch.float64, seed=1), rtol=1e-8, atol=1e-8)
    agree(solve, rand(4, 2, dtype=torch.complex128), rand(4, 1, dtype=torch.complex128, seed=1), rtol=1e-8, atol=1e-8)
    if driver != "gels":
        deficient = rand(5, 3, dtype=torch.float64)
        deficient[:, 2] = deficient[:, 0]
        solution, residuals, rank, _ = torch.linalg.lstsq(
            deficient.to(DEVICE), torch.ones(5, 1).double().to(DEVICE), driver=driver
        )
        # not the CPU's own gelsy: it is wrong here in a third of the calls (2.13.0), by what lay in its memory
        close(solution, torch.linalg.pinv(deficient) @ torch.ones(5, 1).double())
        assert rank == 2 and residuals.numel() == 0


@pytest.mark.parametrize("dtype, hermitian", [(torch.float64, False), (torch.complex128, False), (torch.complex128, True)])
def test_ldl(dtype, hermitian):
    for n, hollow in [(0, False), (9, True)]:
        a = rand(3, n, n, dtype=dtype, seed=n)
        a = a + (a.mH if hermitian else a.mT)
        if hollow:
            a = a - torch.diag_embed(a.diagonal(dim1=-2, dim2=-1))
        got, want = (torch.linalg.ldl_factor_ex(x, hermitian=hermitian) for x in (a.to(DEVICE), a))
        assert torch.equal(got.pivots.cpu(), want.pivots) and torch.equal(got.info.cpu(), want.info)
        close(got.LD, want.LD, 1e-8, 1e-8)
        b = rand(3, n, 2, dtype=dtype, seed=1)
        x = torch.linalg.ldl_solve(got.LD, got.pivots, b.to(DEVICE), hermitian=hermitian)
        check(a @ x.cpu(), b, 1e-8, 1e-8)
    singular = torch.linalg.ldl_factor_ex(torch.zeros(2, 2, device=DEVICE))
    assert singular.info == 1 and singular.pivots.tolist() == [1, 2]


# ---- gradients


def leaf(*shape, seed=0):
    return rand(*shape, dtype=torch.float64, seed=seed).to(DEVICE).requires_grad_()


GRADIENTS = {
    "cdist": (lambda x, y: torch.cdist(x, y, 3.0) + torch.cdist(x, y), lambda: (leaf(3, 2), leaf(2, 2, seed=1))),
    "pdist": (lambda x: F.pdist(x, 1.5), lambda: (leaf(4, 2),)),
    "ctc": (
        lambda x: F.ctc_loss(x.log_softmax(-1), torch.tensor([[1, 1], [2, 3]], device=DEVICE), (4, 3), (2, 1)),
        lambda: (leaf(4, 2, 4),),
    ),
    "segments": (
        lambda x: sum(torch.segment_reduce(x, r, lengths=torch.tensor([2, 3], device=DEVICE)) for r in ("sum", "mean", "prod")),
        lambda: (leaf(5),),
    ),
    "matrix_exp": (torch.linalg.matrix_exp, lambda: (leaf(3, 3),)),
    "lstsq": (lambda a, b: torch.linalg.lstsq(a, b).solution, lambda: (leaf(4, 2), leaf(4, 2, seed=1))),
    "cross": (torch.linalg.cross, lambda: (leaf(2, 3), leaf(1, 3, seed=1))),
    "mvlgamma": (lambda x: torch.mvlgamma(x.exp() + 1, 2), lambda: (leaf(3),)),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name):
    fn, arguments = GRADIENTS[name]
    assert gradcheck(fn, arguments(), fast_mode=True)


def test_nothing_fell_back():
    torch.tpu.fallback_counts(reset=True)
    x = rand(4, 3).to(DEVICE)
    torch.cdist(x, x).sum(), F.pdist(x), torch.histogram(x, 3), torch.unique(x, dim=0), torch.linalg.lstsq(x, x)
    torch.linalg.matrix_exp(x[:3]), torch.linalg.cross(x, x), torch.hash_tensor(x)
    F.ctc_loss(x[:, None].log_softmax(-1), torch.tensor([[1]], device=DEVICE), (4,), (1,))
    torch.segment_reduce(x, "sum", lengths=torch.tensor([1, 3], device=DEVICE))
    assert torch.tpu.fallback_counts() == {}


# ---- out tensors of a form that the shape functions do not know


@pytest.mark.parametrize(
    "fill",
    [
        lambda out: torch.arange(6, out=out),
        lambda out: torch.arange(1, 13, 2, out=out),
        lambda out: torch.linspace(0, 3, 6, out=out),
        lambda out: torch.logspace(0, 3, 6, out=out),
        lambda out: torch.range(0, 5, out=out),
        lambda out: torch.arange(4, out=out),  # another number of elements
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_sequences_fill_any_shape(fill):
    def run(device, make):
        base = torch.zeros(4, 4).to(device)
        out = make(base)
        fill(out)
        return out, base, out.stride()

    for make in (lambda b: b[:2, :3], lambda b: b[:3, :2].t(), lambda b: torch.zeros(2, 3).to(b.device).t()):
        got, want = run(DEVICE, make), run("cpu", make)
        close(got[0], want[0])
        close(got[1], want[1])
        assert got[2] == want[2]


def test_an_out_tensor_of_another_size_is_warned_of():
    out = torch.zeros(2, 2, device=DEVICE)
    with pytest.warns(UserWarning, match=r"resized to a tensor of shape \(3,\)"):
        torch.arange(3, out=out)
    assert out.tolist() == [0, 1, 2]


def test_bernoulli_into_integers():
    p = torch.tensor([0.0, 1.0, 1.0, 0.0], device=DEVICE)
    for dtype in (torch.int64, torch.uint8, torch.bool):
        out = torch.full((4,), 2, device=DEVICE).to(dtype)
        assert torch.bernoulli(p, out=out) is out
        assert out.tolist() == [0, 1, 1, 0]


def test_isin_of_a_number():
    for values in ([], [1, 2], [2]):
        got = torch.isin(1, torch.tensor(values, dtype=torch.int64, device=DEVICE))
        assert got.shape == () and bool(got) == (1 in values)


def test_flat_empty_tensors_join_along_any_dim():
    x = torch.empty(0, device=DEVICE)
    assert torch.cat([x, x], dim=1).shape == (0,)
    assert torch.cat([x, torch.ones(2, 3, device=DEVICE)], dim=1).shape == (2, 3)


def test_randperm_as_far_as_a_dtype_counts():
    for n, dtype in ((2049, torch.float16), (256, torch.uint8), (258, torch.bfloat16)):
        assert torch.randperm(n, dtype=dtype, device=DEVICE).shape == (n,)


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("padding", [None, 2])
def test_a_bag_may_have_a_sparse_gradient(mode, padding):
    def step(table, index, offsets, weights):
        table = table.detach().requires_grad_()
        weights = weights if mode == "sum" else None
        out = F.embedding_bag(index, table, offsets, mode=mode, sparse=True, padding_idx=padding, per_sample_weights=weights)
        (out * torch.arange(1.0, 1 + out.numel(), device=out.device).view_as(out)).sum().backward()
        assert table.grad.is_sparse
        grad = table.grad.coalesce()
        return out.detach(), grad.indices(), grad.values()

    index, offsets = torch.tensor([1, 2, 2, 4, 5, 2]), torch.tensor([0, 2, 2, 4])
    agree(step, torch.randn(6, 3), index, offsets, torch.rand(6), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_convolution_without_channels(n):
    def step(x, w, b):
        x, w, b = (t.detach().requires_grad_() for t in (x, w, b))
        out = getattr(F, f"conv{n}d")(x, w, b, stride=2)
        out.sum().backward()
        return out.detach(), x.grad, w.grad, b.grad

    agree(step, torch.randn(2, 0, *[9] * n), torch.randn(4, 0, *[2] * n), torch.randn(4))


@pytest.mark.parametrize("batch", [(), (2,)])
def test_max_pool3d_keeps_channels_last(batch):
    def step(x):
        x = x.unsqueeze(0) if not batch else x
        x = x.contiguous(memory_format=torch.channels_last_3d)
        x = x.squeeze(0) if not batch else x
        out = F.max_pool3d(x, 2, return_indices=True)
        return out, [t.stride() for t in out]

    agree(step, torch.randn(*batch, 3, 4, 6, 8))
