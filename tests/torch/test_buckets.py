"""Compiled graphs with symbolic sizes: docs/compile.md, "Shapes". The values are those of torch's CPU device at the true
size, and a size in a bucket that was seen compiles nothing."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from tpu_testing import device_only

pytestmark = device_only

SIZES = (5, 9, 16, 12, 20, 32, 17, 6)  # the buckets 2 to 16 and 17 to 32
WARM = {5, 9, 20}  # the first is compiled as it is, or for the first bucket


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def ones(x, *shape):
    return torch.ones(shape, device=x.device)


def table(x, n, m):
    return torch.arange(float(n * m), device=x.device).view(n, m)


FUNCTIONS = {
    "outer dim": (lambda x: (x + 1) * 2, [("n", 4)]),
    "inner dim": (lambda x: (x + 1) * 2, [(3, "n", 4)]),
    "sum, mean, var": (lambda x: (x.sum(1), x.mean(1), x.mean(), x.var(1)), [(3, "n", 4)]),
    "argmax, max, amin": (lambda x: (x.argmax(1), x.max(1)[0], x.amin(1)), [(2, "n")]),
    "softmax": (lambda x: F.softmax(x, 1), [(3, "n")]),
    "logsumexp": (lambda x: x.logsumexp(1), [(3, "n")]),
    "values that are NaN outside": (lambda x: (x.abs() + 1).log().nansum(1) + (1 / x).isnan().sum(1), [(3, "n")]),
    "matmul along it": (lambda x, y: x @ y, [(3, "n"), ("n", 5)]),
    "scores": (lambda x: F.softmax(x @ x.mT, -1) @ x, [(2, "n", 8)]),
    "linear": (lambda x: F.linear(x, ones(x, 6, 8)), [(2, "n", 8)]),
    "attention": (lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True).contiguous(), [(2, 2, "n", 8)]),
    "attention with a mask": (
        lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=ones(x, x.shape[2], x.shape[2]).tril().bool()).contiguous(),
        [(2, 2, "n", 8)],
    ),
    "a part of a flat view": (lambda x: x.flatten()[2:9] + x.flatten()[[0, 5, 7]].sum(), [("n", 3)]),
    "heads": (lambda x: x.view(2, x.shape[1], 2, 4).transpose(1, 2).reshape(4, -1, 4).sum(1), [(2, "n", 8)]),
    "batch and time as one": (lambda x: (x.flatten(0, 1) @ ones(x, 8, 3)).view(2, x.shape[1], 3), [(2, "n", 8)]),
    "last": (lambda x: x[:, -1] * 1, [(2, "n", 8)]),
    "views": (lambda x: (x[:, 1:], x[:, :-1], x[:, 2:4], x[:, -1], x.mT), [(2, "n", 8)]),
    "parts": (lambda x: (x[:, 1:] + 1, x[:, :-1] + 1, x[:, 2:4] + 1), [(2, "n", 8)]),
    "cat": (lambda x, y: torch.cat([y, x, x, y], 1), [(2, "n", 8), (2, 1, 8)]),
    "stack, repeat, roll, flip": (lambda x: (torch.stack([x, x], 1), x.repeat(1, 2), x.roll(1, 1), x.flip(1)), [(2, "n")]),
    "pad": (lambda x: F.pad(x, (1, 2), value=3.0), [(2, "n")]),
    "cumsum, cumprod, cummax": (lambda x: (x.cumsum(1), x.cumprod(1), x.cummax(1)[1], (x * 4).round().cummax(1)[1]), [(2, "n")]),
    "sort, topk": (lambda x: (x.sort(1)[0], x.sort(1, descending=True)[0], x.topk(3, 1)[0]), [(2, "n")]),
    "embedding": (lambda x, i: F.embedding(i.long(), table(i, 10, 4)), [(1, 1), ("n", 2)]),
    "gather": (lambda x: x.gather(1, x.argsort(1)), [(2, "n")]),
    "index": (lambda x: (x[:, [0, 2]], x[[1, 0]]), [(2, "n", 3)]),
    "scatter_add": (lambda x: ones(x, 2, 9).scatter_add(1, x.abs().long(), x), [(2, "n")]),
    "part of a table as large as a bucket": (lambda x: x + table(x, 32, 2)[: x.shape[0]], [("n", 2)]),
    "arange, tril": (lambda x: ones(x, x.shape[1], x.shape[1]).tril() @ x + torch.arange(8, device=x.device), [(2, "n", 8)]),
    "layer_norm, batch_norm": (lambda x: (F.layer_norm(x, (8,)), F.batch_norm(x, None, None, training=True)), [(2, "n", 8)]),
    "conv1d along it": (lambda x: F.conv1d(x, ones(x, 4, 3, 3), padding=1), [(2, 3, "n")]),
    "conv2d, batch": (lambda x: F.conv2d(x, ones(x, 4, 3, 3, 3), padding=1), [("n", 3, 6, 6)]),
    "max_pool2d, batch": (lambda x: F.max_pool2d(x, 2), [("n", 3, 6, 6)]),
    "cross_entropy": (lambda x: F.cross_entropy(x, x.argmax(1)), [("n", 10)]),
    "low precision": (lambda x: x.bfloat16().mean(1).float(), [(2, "n")]),
    "outer difference": (lambda x: x[:, None] - x[None, :], [("n",)]),
    "slice assignment": (lambda x: ones(x, 2, 40).slice_scatter(x, 1, 3, 3 + x.shape[1]), [(2, "n")]),
}


def make(shapes, n):
    g = torch.Generator().manual_seed(n)
    return [torch.randint(1, 9, [n if d == "n" else d for d in s], generator=g).float() for s in shapes]


def marked(tensors, shapes):
    out = [t.to("tpu") for t in tensors]
    for t, s in zip(out, shapes, strict=True):
        for d, n in enumerate(s):
            if n == "n":
                torch._dynamo.mark_dynamic(t, d)
    return out


def leaves(x):
    return torch.utils._pytree.tree_leaves(x)


def same(got, want):
    for a, b in zip(leaves(got), leaves(want), strict=True):
        assert a.shape == b.shape and a.stride() == b.stride() and a.device.type == "tpu"
        torch.testing.assert_close(a.cpu(), b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_true_values_and_no_compile_in_a_warm_bucket(name):
    fn, shapes = FUNCTIONS[name]
    compiled = torch.compile(fn, backend="tpu", fullgraph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for n in SIZES:
            args = make(shapes, n)
            given = marked(args, shapes)
            before = torch.tpu.compile_count()
            got = compiled(*given)
            assert n in WARM or n == 32 and "table" in name or torch.tpu.compile_count() == before, n
            same(got, fn(*args))


def test_nothing_is_compiled_for_reading_a_result():
    f = torch.compile(lambda x: x * 2, backend="tpu", dynamic=True)
    for n in (10, 11):
        f(torch.ones(n, 3).to("tpu")).cpu()
    before = torch.tpu.compile_count()
    for n in (4, 9, 13, 16):
        x = torch.arange(n * 3.0).view(n, 3)
        assert torch.equal(f(x.to("tpu")).cpu(), x * 2)
        assert f(x.to("tpu")).tolist() == (x * 2).tolist()
    assert torch.tpu.compile_count() == before


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(20, 16), nn.Embedding(32, 16)
        self.qkv, self.out, self.norm = nn.Linear(16, 48), nn.Linear(16, 20), nn.LayerNorm(16)

    def forward(self, ids, targets):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        q, k, v = self.qkv(self.norm(x)).view(*ids.shape, 3, 2, 8).permute(2, 0, 3, 1, 4)
        mask = torch.full((ids.shape[1],) * 2, float("-inf"), device=ids.device).triu(1)
        x = x + (F.softmax(q @ k.mT + mask, -1) @ v).transpose(1, 2).flatten(2)
        return F.cross_entropy(self.out(x).flatten(0, 1), targets.flatten())


def test_training_a_model_on_sequences_of_changing_length():
    torch.manual_seed(0)
    ours, theirs = Model(), Model()
    theirs.load_state_dict(ours.state_dict())
    ours = ours.to("tpu")
    step = torch.compile(ours, backend="tpu", options={"fallback": "error"})
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for n in (12, 9, 20, 14, 31, 16, 18):
            ids, targets = torch.randint(20, (3, n)), torch.randint(20, (3, n))
            want = theirs(ids, targets)
            want.backward()
            before = torch.tpu.compile_count()
            got = step(ids.to("tpu"), targets.to("tpu"))
            got.backward()
            assert n in (12, 9, 20) or torch.tpu.compile_count() == before
            torch.testing.assert_close(got.detach().cpu(), want.detach(), rtol=1e-5, atol=1e-5)
            for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
                torch.testing.assert_close(a.grad.cpu(), b.grad, rtol=1e-3, atol=1e-5)
            ours.zero_grad()
            theirs.zero_grad()


def test_gradients_of_inputs_whose_size_changes():
    f = torch.compile(lambda x, w: (x @ w).tanh().mean(1), backend="tpu", dynamic=True)
    for n in (5, 8, 16, 19, 30):
        x, w = torch.randn(2, n, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
        a, b = (t.detach().to("tpu").requires_grad_() for t in (x, w))
        (x @ w).tanh().mean(1).square().sum().backward()
        f(a, b).square().sum().backward()
        torch.testing.assert_close(a.grad.cpu(), x.grad, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(b.grad.cpu(), w.grad, rtol=1e-4, atol=1e-5)


def test_a_cache_that_grows():
    def step(cache, x):
        cache = torch.cat([cache, x], 1)
        return cache, F.softmax(x @ cache.mT, -1) @ cache

    f = torch.compile(step, backend="tpu")
    x = torch.randn(2, 40, 4)
    ours, theirs = x[:, :3].to("tpu"), x[:, :3]
    for i in range(3, 40):
        before = torch.tpu.compile_count()
        ours, a = f(ours, x[:, i : i + 1].to("tpu"))
        theirs, b = step(theirs, x[:, i : i + 1])
        assert i in (3, 4, 5, 17, 18, 33, 34) or torch.tpu.compile_count() == before, i
        torch.testing.assert_close(a.cpu(), b, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.cpu(), theirs)


def test_inputs_without_elements():
    f = torch.compile(lambda x, w: x @ w, backend="tpu")
    for n in (5, 7, 9):
        w = torch.ones(4, n).to("tpu")
        torch._dynamo.mark_dynamic(w, 1)
        assert f(torch.ones(0, 4).to("tpu"), w).shape == (0, n)
        x = torch.ones(n, 0).to("tpu")
        torch._dynamo.mark_dynamic(x, 0)
        same(f(x, torch.ones(0, 3).to("tpu")), torch.zeros(n, 3))


def test_sizes_of_buckets():
    f = torch.compile(lambda x: x.sum(), backend="tpu", dynamic=True, options={"buckets": [8, 24]})
    compiles = []
    for n in (3, 8, 9, 24, 7, 12):
        before = torch.tpu.compile_count()
        assert f(torch.ones(n, device="cpu").to("tpu")).item() == n
        compiles.append(torch.tpu.compile_count() - before > 0)
    assert compiles == [True, False, True, False, False, False]
    with pytest.warns(UserWarning, match=r"the size s\d+ = 25 is larger than all buckets \[8, 24\]"):
        assert f(torch.ones(25).to("tpu")).item() == 25


@pytest.mark.parametrize("bad", ["some", [8, 4], [1, 2], [], 16, ["8"]])
def test_wrong_buckets(bad):
    with pytest.raises(Exception, match=r"option 'buckets': expected \"auto\", \"off\" or a list of sizes above 1, rising"):
        torch.compile(lambda x: x + 1, backend="tpu", options={"buckets": bad})(torch.ones(2, device="tpu"))


def test_off_compiles_for_each_size():
    # a function of its own: a program that another test of this process compiled is not compiled again
    f = torch.compile(lambda x: (x * 8 - 7).sum(), backend="tpu", dynamic=True, options={"buckets": "off"})
    for n in (3, 4, 5):
        before = torch.tpu.compile_count()
        assert f(torch.ones(n).to("tpu")).item() == n
        assert torch.tpu.compile_count() > before


@pytest.mark.parametrize(
    "fn, reason",
    [
        (lambda x: x[::2] + 1, "is no polynomial of the sizes"),
        (lambda x: F.dropout(x, 0.0, True) + torch.rand_like(x) * 0, "draws a number of random numbers that depends on sizes"),
    ],
)
def test_what_cannot_be_padded_is_compiled_for_each_size_and_says_so(fn, reason):
    f = torch.compile(fn, backend="tpu", dynamic=True)
    x = torch.arange(9.0)
    with pytest.warns(UserWarning, match=f"one program for each set of sizes.*{reason}"):
        got = f(x.to("tpu"))
    assert torch.equal(got.cpu(), fn(x))


def test_warmup():
    model = Model().to("tpu")
    f = torch.compile(lambda i, t: model(i, t), backend="tpu")
    with torch.no_grad():
        assert torch.tpu.warmup(f, [((2, n), (2, n)) for n in (10, 20)]) > 0
        before = torch.tpu.compile_count()
        for n in (10, 3, 16, 20, 17, 31):
            ids = torch.randint(20, (2, n))
            torch.testing.assert_close(f(ids.to("tpu"), ids.to("tpu")).cpu(), model.cpu()(ids, ids), rtol=1e-4, atol=1e-5)
            model.to("tpu")
        assert torch.tpu.compile_count() == before


@pytest.mark.parametrize(
    "pick",
    [lambda t: t, lambda t: t.t(), lambda t: t[:, ::2], lambda t: t[1:3], lambda t: t[0].expand(7, -1), lambda t: t.t()[::2]],
)
def test_inputs_that_lie_in_memory_in_any_way(pick):
    f = torch.compile(lambda a: (a @ a.t() + a.sum(), a * 2), backend="tpu", dynamic=True)
    for shape in ((4, 6), (5, 9), (16, 16)):
        x = torch.randn(shape)
        for got, want in zip(f(pick(x.to("tpu"))), (pick(x) @ pick(x).t() + pick(x).sum(), pick(x) * 2), strict=True):
            torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-4)
