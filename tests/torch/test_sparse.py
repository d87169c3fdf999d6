"""COO and compressed tensors: every case gives on the device what it gives on the CPU, elements and all."""

import copy
import io

import pytest
import torch
from tpu_testing import DEVICE, device_only

pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse CSR tensor support"),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks"),
]


def matrix(rows, cols, seed=0, density=0.4):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(rows, cols, generator=g) * (torch.rand(rows, cols, generator=g) < density)


def repeated(sparse_dim=2):  # some places twice
    g = torch.Generator().manual_seed(3)
    sizes = (4, 5)
    indices = torch.stack([torch.randint(0, n, (12,), generator=g) for n in sizes[:sparse_dim]])
    return torch.sparse_coo_tensor(indices, torch.randn(12, *sizes[sparse_dim:], generator=g), sizes)


A, B, M, N = matrix(4, 5), matrix(4, 5, 1), matrix(5, 3, 2, 1.0), matrix(4, 3, 4, 1.0)
S, T, U, H = A.to_sparse(), B.to_sparse(), repeated(), repeated(1)
C, D = A.to_sparse_csr(), B.to_sparse_csr()
BATCH = torch.stack([matrix(3, 4, 5), matrix(3, 4, 6)])
EMPTY = torch.zeros(4, 5).to_sparse()


def parts(t):
    if not isinstance(t, torch.Tensor):
        return [t]
    t = t.detach()
    if t.layout == torch.sparse_coo:
        return [t.layout, t.shape, t._indices().cpu(), t._values().cpu()]
    if t.layout == torch.strided:
        return [t.cpu()]
    by_row = t.layout in (torch.sparse_csr, torch.sparse_bsr)
    indices = (t.crow_indices(), t.col_indices()) if by_row else (t.ccol_indices(), t.row_indices())
    return [t.layout, t.shape, *(i.cpu() for i in indices), t.values().cpu()]


def check(f, *args):
    want, got = f(*args), f(*(a.to(DEVICE) for a in args))
    for w, g in zip(want if isinstance(want, tuple) else (want,), got if isinstance(got, tuple) else (got,), strict=True):
        if isinstance(w, torch.Tensor):
            assert g.device.type == torch.device(DEVICE).type
        for x, y in zip(parts(w), parts(g), strict=True):
            if isinstance(x, torch.Tensor):
                torch.testing.assert_close(y, x)
            else:
                assert x == y


CASES = {
    "to the device": (lambda x: x, U),
    "csr to the device": (lambda x: x, C),
    "coalesce": (lambda x: x.coalesce(), U),
    "coalesce hybrid": (lambda x: x.coalesce(), H),
    "coalesce bool": (lambda x: x.bool().coalesce(), U),
    "coalesce bfloat16": (lambda x: x.bfloat16().coalesce(), S),
    "to_dense": (lambda x: x.to_dense(), U),
    "to_dense hybrid": (lambda x: x.to_dense(), H),
    "to_dense csr": (lambda x: x.to_dense(), C),
    "to_sparse": (lambda x: x.to_sparse(), A),
    "to_sparse hybrid": (lambda x: x.to_sparse(1), A),
    "to_sparse_csr": (lambda x: x.to_sparse_csr(), A),
    "to_sparse_bsr": (lambda x: x.to_sparse_bsr((2, 5)), A),
    "coo to csr": (lambda x: x.to_sparse_csr(), U),
    "csr to coo": (lambda x: x.to_sparse(), C),
    "csr to csc": (lambda x: x.to_sparse_csc(), C),
    "csc to csr": (lambda x: x.to_sparse_csc().to_sparse_csr(), A),
    "bsr to bsc": (lambda x: x.to_sparse_bsr((2, 1)).to_sparse_bsc((2, 1)), A),
    "batch of csr to coo": (lambda x: x.to_sparse_csr().to_sparse(), torch.ones(2, 3, 4)),
    "batch of csr to csc": (lambda x: x.to_sparse_csr().to_sparse_csc(), torch.ones(2, 3, 4)),
    "dense + sparse": (lambda a, b: torch.add(a, b, alpha=2), A, U),
    "dense += sparse": (lambda a, b: a.clone().add_(b, alpha=0.5), A, H),
    "dense += sparse, a view": (lambda a, b: a.clone().t().add_(b.t()), A, U),
    "dense + csr": (lambda a, b: a + b, A, C),
    "sparse + sparse": (lambda a, b: a + b, S, T),
    "sparse + sparse, repeated": (lambda a, b: (a + b).coalesce(), S, U),
    "sparse + none": (lambda a, b: a + b, S, EMPTY),
    "sparse - sparse": (lambda a, b: a - b, S, T),
    "csr + csr": (lambda a, b: a + b, C, D),
    "sparse * number": (lambda a: a * 3 / 2, U),
    "-csr * number": (lambda a: -a * 3, C),
    "sparse * dense": (lambda a, b: a * b, S, B),
    "sparse * row": (lambda a, b: a * b, S, M[:, 0]),
    "sparse * column": (lambda a, b: a * b, S, N[:, :1]),
    "sparse * more dims": (lambda a, b: (a * b).coalesce(), S, torch.stack([A, B])),
    "sparse * sparse": (lambda a, b: a * b, S, T),
    "sparse * none": (lambda a, b: a * b, S, EMPTY),
    "sum": (lambda a: (a.sum(), torch.sparse.sum(a, 0), torch.sparse.sum(a, 1)), S),
    "sum of csr": (lambda a: (a.sum(0, keepdim=True), a.sum(1, keepdim=True)), C),
    "norm": (lambda a: a.norm(), U),
    "unary": (lambda a: (a.abs().sqrt(), a.sin(), a.tanh(), a.relu(), a.isnan()), S),
    "unary of csr": (lambda a: (a.abs().sqrt(), a.sin(), a.tanh(), a.relu()), C),
    "sparse @ dense": (lambda a, b: a @ b, U, M),
    "none @ dense": (lambda a, b: a @ b, EMPTY, M),
    "csr @ dense": (lambda a, b: a @ b, C, M),
    "csc @ dense": (lambda a, b: a.to_sparse_csc() @ b, C, M),
    "dense @ csr": (lambda a, b: a.t() @ b, N, C),
    "sparse @ sparse": (lambda a, b: a @ b.t(), S, T),
    "sparse @ vector": (lambda a, b: a @ b, S, M[:, 0]),
    "addmm": (lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2), N, S, M),
    "addmm csr": (lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2), N, C, M),
    "bmm": (lambda a, b: torch.bmm(a, b), BATCH.to_sparse(), BATCH.transpose(1, 2).contiguous()),
    "hspmm": (lambda a, b: torch.hspmm(a, b), S, M),
    "sampled_addmm": (lambda c, a, b: torch.sparse.sampled_addmm(c, a, b, beta=0.5, alpha=2), C, N, M.t()),
    "sampled_addmm of no columns": (lambda c, a, b: torch.sparse.sampled_addmm(c, a, b), C, N[:, :0], M.t()[:0]),
    "mask": (lambda a, b: a.sparse_mask(b), B, U),
    "mask csr": (lambda a, b: a.sparse_mask(b), B, C),
    "mask of sparse": (lambda a, b: a.sparse_mask(b), U, S),
    "softmax": (lambda a: torch.sparse.softmax(a, 1), U),
    "log_softmax of dense dim": (lambda a: torch.sparse.log_softmax(a, 1), H),
    "softmax of hybrid": (lambda a: torch.sparse.softmax(a, 0), H),
    "index_select": (lambda a, i: a.index_select(0, i), S, torch.tensor([1, 1, 3, 0])),
    "index_select of the second dim": (lambda a, i: a.index_select(1, i).coalesce(), S, torch.tensor([1, 1, 3, 0])),
    "select": (lambda a: a[1], S),
    "select csr": (lambda a: a[1], C),
    "cat and transpose": (lambda a, b: torch.cat([a, b], 1).t(), S, T),
    "copy_": (lambda a, b: a.clone().copy_(b), S, T),
    "zeros_like": (lambda a: torch.zeros_like(a), S),
    "deepcopy": (copy.deepcopy, S),
    "half": (lambda a: a.bfloat16(), S),
    "crow_indices": (lambda a: (a.crow_indices(), a.col_indices(), a.values()), C),
    "complex": (lambda a, b: (a * (1 + 2j)) @ (b * 1j), S, M),
} | {f"mm, {r}": (lambda a, b, r=r: torch.sparse.mm(a, b, r), C, M) for r in ("sum", "mean", "amax", "amin")}


@pytest.mark.parametrize("name", CASES)
def test_case(name):
    check(*CASES[name])


GRADS = {
    "to_dense": (lambda x: x.to_dense(), S),
    "to_dense csr": (lambda x: x.to_dense(), C),
    "to_sparse": (lambda x: x.to_sparse(), A),
    "to_sparse_csr": (lambda x: x.to_sparse_csr(), A),
    "mm": (lambda a, b: torch.sparse.mm(a, b), S, M),
    "mm csr": (lambda a, b: a @ b, C, M),
    "mm of sparse": (lambda a, b: torch.sparse.mm(a, b), S, M.to_sparse()),
    "addmm": (lambda c, a, b: torch.sparse.addmm(c, a, b), N, S, M),
    "add": (lambda a, b: a + b, B, S),
    "mul": (lambda a, b: a * b, S, T),
    "sum": (lambda a: torch.sparse.sum(a, 0), U),
    "softmax": (lambda a: torch.sparse.softmax(a, 1), S),
    "log_softmax": (lambda a: torch.sparse.log_softmax(a, 0), S),
    "values": (lambda a: a.coalesce().values(), S),
    "mask": (lambda a: a.sparse_mask(S.to(a.device)), B),
    "sampled_addmm": (lambda c, a, b: torch.sparse.sampled_addmm(c, a, b), C, N, M.t()),
    "bmm": (lambda a, b: torch.bmm(a, b), BATCH.to_sparse(), BATCH.transpose(1, 2).contiguous()),
} | {f"mm, {r}": (lambda a, b, r=r: torch.sparse.mm(a, b, r), C, M) for r in ("sum", "mean", "amax", "amin")}


@pytest.mark.parametrize("name", GRADS)
def test_gradient(name):
    f, *args = GRADS[name]

    def gradients(*xs):
        xs = [x.detach().clone().requires_grad_() for x in xs]
        y = f(*xs)
        y = y if y.layout == torch.strided else y.to_dense()
        weight = torch.arange(1.0, y.numel() + 1, device=y.device).view(y.shape)
        return torch.autograd.grad((y * weight).sum(), xs)

    check(gradients, *args)


ERRORS = {
    "add of sizes": lambda d: S.to(d) + T.t().to(d),
    "dense + sparse of sizes": lambda d: A.t().to(d) + T.to(d),
    "sparse + dense": lambda d: S.to(d).add_(A.to(d)),
    "result type": lambda d: S.to(d).long().add_(S.to(d)),
    "mm of sizes": lambda d: S.to(d) @ N.to(d),
    "mm csr of sizes": lambda d: C.to(d) @ N.to(d),
    "mm of dtypes": lambda d: S.to(d) @ M.to(d).bfloat16(),
    "mask of sizes": lambda d: A.to(d).sparse_mask(S.to(d).t()),
    "values": lambda d: U.to(d).values(),
    "index_select": lambda d: S.to(d).index_select(0, torch.tensor([9], device=d)),
    "softmax of integers": lambda d: torch.sparse.softmax(S.to(d).long(), 1),
    "reduce of sizes": lambda d: torch.sparse.mm(C.to(d), N.to(d), "mean"),
    "index of coo": lambda d: torch.sparse_coo_tensor(
        torch.tensor([[0, 5]], device=d), torch.ones(2, device=d), (3,), check_invariants=True
    ),
    "negative index of coo": lambda d: torch.sparse_coo_tensor(torch.tensor([[0, -5]], device=d), torch.ones(2, device=d)),
}
CSR = [([1, 1, 3], [2, 0, 1]), ([0, 1, 2], [2, 0, 1]), ([0, 4, 3], [2, 0, 1]), ([0, 1, 3], [5, 0, 1]), ([0, 1, 3], [2, 1, 1])]
for number, (crow, col) in enumerate(CSR):
    ERRORS[f"invariant {number} of csr"] = lambda d, r=crow, c=col: torch.sparse_csr_tensor(
        torch.tensor(r, device=d), torch.tensor(c, device=d), torch.ones(3, device=d), (2, 3), check_invariants=True
    )


@pytest.mark.parametrize("name", ERRORS)
def test_error(name):
    said = []
    for d in ("cpu", DEVICE):
        with pytest.raises(Exception) as e:  # noqa: PT011 - whatever the CPU raises
            ERRORS[name](d)
        said.append((type(e.value), str(e.value).split("\n")[0]))
    assert said[0] == said[1]


def test_index_add_of_no_slice():
    for f in (
        lambda x, i, s: x.index_add(0, i, s),
        lambda x, i, s: x.clone().index_add_(0, i, s, alpha=2),
        lambda x, i, s: x.index_reduce(0, i, s, "amax"),
    ):
        check(f, N, torch.zeros(0, dtype=torch.long), N[:0])


@device_only
def test_two_devices_are_refused():
    for f in (lambda: A.to(DEVICE) + S, lambda: S.to(DEVICE) @ M, lambda: torch.eye(3, device=DEVICE) @ torch.eye(3).to_sparse()):
        with pytest.raises(RuntimeError, match="same device"):
            f()


def test_print_and_pickle():
    for t in (S, C):
        assert str(t.to(DEVICE).cpu()) == str(t)
        assert f"layout={t.layout}" in str(t.to(DEVICE))
        buffer = io.BytesIO()
        torch.save(t.to(DEVICE), buffer)
        buffer.seek(0)
        loaded = torch.load(buffer)
        assert loaded.device == t.to(DEVICE).device
        torch.testing.assert_close(loaded.cpu(), t)


def test_module_with_a_sparse_buffer_moves():
    m = torch.nn.Module()
    m.register_buffer("s", S)
    torch.testing.assert_close(m.to(DEVICE).s.cpu(), S)
    t = S.to(DEVICE)
    t.data = t * 2
    torch.testing.assert_close(t.cpu(), S * 2)


@pytest.mark.parametrize("optimizer", ["SGD", "SparseAdam", "Adagrad"])
def test_sparse_embedding_trains(optimizer):
    def weights(device):
        torch.manual_seed(0)
        e = torch.nn.Embedding(10, 4, sparse=True).to(device)
        o = getattr(torch.optim, optimizer)(e.parameters(), lr=0.1)
        losses = []
        for step in range(3):
            o.zero_grad()
            loss = (e(torch.tensor([[1, 2, 2], [step, 7, 1]], device=device)) ** 2).sum()
            loss.backward()
            assert e.weight.grad.layout == torch.sparse_coo
            o.step()
            losses.append(loss.item())
        assert losses[-1] < losses[0]
        return e.weight.detach()

    torch.testing.assert_close(weights(DEVICE).cpu(), weights("cpu"))
