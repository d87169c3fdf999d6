"""torch.compile(backend="tpu"): each program against the same one on the CPU without compiling, or against eager mode."""

import copy
import math
import os
import uuid
import warnings
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as control_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint
from tpu_testing import (
    DEVICE,
    IS_CPU,
    agree,
    check,
    close,
    compiles,
    device_only,
    run_python,
    same,
    steady,
    synchronize,
    to_device,
)

BACKEND = "aot_eager" if IS_CPU else "tpu"
compiled = partial(torch.compile, backend=BACKEND)


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*cannot be part of the compiled program.*")
        yield


def follows(fn, *args, rtol=1e-5, atol=1e-5, turns=2, **options):
    """The compiled function on the device does what fn does on the CPU: results and what becomes of the arguments."""
    options.setdefault("fullgraph", True)
    there = compiled(fn, **options)
    for turn in range(turns):
        torch.manual_seed(turn)
        agree(lambda *a: (fn if pytree.tree_leaves(a)[0].device.type == "cpu" else there)(*a), *args, rtol=rtol, atol=atol)


def train(module, make, steps=2, rtol=1e-4, atol=1e-5, seed=0, **options):
    """Losses, gradients and buffers of compiled training steps equal those of the CPU."""
    other = copy.deepcopy(module).to(DEVICE)
    there = compiled(other, fullgraph=True, **options)
    for step in range(steps):
        torch.manual_seed(seed + step)
        args = make()
        module.zero_grad()
        other.zero_grad()
        want, got = module(*args), there(*to_device(args))
        want.square().mean().backward()
        got.square().mean().backward()
        close(got, want, rtol, atol)
        for p, q in zip(module.parameters(), other.parameters(), strict=True):
            close(q.grad, p.grad, rtol, atol)
        for p, q in zip(module.buffers(), other.buffers(), strict=True):
            close(q, p, rtol, atol)


# ---- functions ---------------------------------------------------------------------------------------------------------


def test_function():
    follows(lambda u, v: (u @ v).relu() + u, torch.randn(8, 8), torch.randn(8, 8))


def test_kwargs_closure_and_nested_outputs():
    scale = torch.tensor(3.0)
    here, there = scale, scale.to(DEVICE)

    def fn(x, *, y=None, table=None):
        s = here if x.device.type == "cpu" else there
        return {"a": (x * s, [y + 1, None, 7]), "b": table["k"].sum(), "x": x}

    x, y, k = torch.randn(3), torch.randn(3), torch.randn(2, 2)
    want = fn(x, y=y, table={"k": k})
    dx, dy, dk = to_device((x, y, k))
    got = compiled(fn, fullgraph=True)(dx, y=dy, table={"k": dk})
    assert got["x"] is dx
    a, b = pytree.tree_flatten(got), pytree.tree_flatten(want)
    assert a[1] == b[1]
    for g, w in zip(a[0], b[0], strict=True):
        close(g, w) if isinstance(w, torch.Tensor) else None


def test_graph_breaks():
    def fn(x):
        y = x.sin()
        if y.sum() > 0:
            return y + 1
        torch._dynamo.graph_break()
        return y - y.max().item()

    follows(fn, torch.tensor([0.1, 0.2]), fullgraph=False)
    follows(fn, torch.tensor([-0.1, -0.2]), fullgraph=False)


def test_python_scalars_are_constants_and_exact():
    follows(lambda x: (x + 0.1, x * 3, x.pow(2.5), x // 2, x.to(torch.int64) + (1 << 40)), torch.rand(5) + 1, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8, torch.bool])
def test_integers(dtype):
    x = torch.randint(0, 2, (4, 5)).to(dtype)
    follows(lambda a: (a.sum(1), a.long().cumsum(0), a.bitwise_xor(a.flip(0)), a.argmax(), a == 1), x, rtol=0, atol=0)


def test_complex():
    x = torch.randn(4, 4, dtype=torch.complex64)
    follows(lambda a: (a @ a.mH, a.conj() + 1, torch.view_as_real(a), a.abs(), torch.fft.fft(a)), x, rtol=1e-4, atol=1e-4)


def test_constants_of_the_function():
    def fn(x):
        table = torch.tensor([[1.0, 2.0], [3.0, 4.0]], device=x.device)
        return x @ table + torch.arange(2, device=x.device) + torch.full((2,), 0.5, device=x.device)

    follows(fn, torch.randn(3, 2))


def test_indexing_by_a_cpu_tensor():
    index = torch.tensor([2, 0])
    follows(lambda x: x[index] + x[torch.tensor([1, 1], device=x.device)], torch.randn(3, 4), fullgraph=False)


def test_numbers_on_the_cpu_mix_with_the_device():
    fn = compiled(lambda x, c: (x * c, c + 1, x.sum().cpu() + c), fullgraph=True)
    x = torch.randn(3)
    for value in (2.0, 5.0):
        a, b, c = fn(x.to(DEVICE), torch.tensor(value))
        close(a, x * value)
        assert b.device.type == c.device.type == "cpu"
        check(b, torch.tensor(value + 1), 0, 0)
        check(c, x.sum() + value, 1e-5, 1e-5)


def test_empty_tensors():
    follows(lambda x, y: (x + 1, y.sum() + x.sum(), torch.cat([x, y])), torch.randn(0, 3), torch.randn(2, 3))
    follows(lambda x: x * 2, torch.randn(0))


# ---- writes and aliases ------------------------------------------------------------------------------------------------


def test_inputs_are_written():
    def fn(x, y):
        x.mul_(2)
        y[1:3] = x[:2]
        return x + y

    follows(fn, torch.randn(4), torch.randn(4))


def test_a_written_input_that_is_a_view():
    def fn(x):
        x.add_(1)
        return x * 2

    whole = torch.randn(6, 4)
    there = whole.to(DEVICE)
    f = compiled(fn, fullgraph=True)
    for pick in (lambda t: t[1:3], lambda t: t[2:4], lambda t: t[:, 1], lambda t: t.t(), lambda t: t[::2, 1:]):
        want = fn(pick(whole))
        close(f(pick(there)), want)
        close(there, whole)


def test_views_as_inputs():
    x = torch.randn(4, 6)
    there = x.to(DEVICE)
    f = compiled(lambda a: a @ a.t() + a.sum(), fullgraph=True)
    for pick in (lambda t: t, lambda t: t.t(), lambda t: t[:, ::2], lambda t: t[1:3], lambda t: t[0].expand(3, 6)):
        close(f(pick(there)), pick(x) @ pick(x).t() + pick(x).sum(), 1e-4, 1e-4)


def test_an_input_without_a_value_is_zeros():
    f = compiled(lambda a: a + 1, fullgraph=True)
    same(f(torch.empty(3, device=DEVICE).zero_()), torch.ones(3))


def test_two_inputs_of_one_storage():
    def fn(a, b):
        a.add_(1)
        return b * 2

    x = torch.randn(4)
    there = x.to(DEVICE)
    want = fn(x, x[1:])
    close(compiled(fn)(there, there[1:]), want)
    close(there, x)


def test_buffers_are_written():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("n", torch.zeros((), dtype=torch.int64))
            self.register_buffer("cache", torch.zeros(5, 3))

        def forward(self, x, at):
            self.n += 1
            self.cache.index_copy_(0, at, x)
            self.cache[4] = x[0] * self.n
            return self.cache.sum() + self.n

    m = Counter()
    other = copy.deepcopy(m).to(DEVICE)
    f = compiled(other, fullgraph=True)
    for i in range(3):
        x, at = torch.randn(1, 3), torch.tensor([i])
        close(f(x.to(DEVICE), at.to(DEVICE)), m(x, at))
        close(other.cache, m.cache)
        same(other.n, m.n)


def test_a_cache_that_grows_compiles_once():
    def fn(cache, x, at):
        cache.index_copy_(1, at, x)
        return (cache * (torch.arange(8, device=x.device)[None, :, None] <= at)).sum(1)

    cache = torch.zeros(2, 8, 4)
    there = cache.to(DEVICE)
    f = compiled(fn, fullgraph=True)

    def step(i):
        torch.manual_seed(i)
        x, at = torch.randn(2, 1, 4), torch.tensor([i])
        close(f(there, x.to(DEVICE), at.to(DEVICE)), fn(cache, x, at))
        close(there, cache)

    steady(step)


def test_returned_views_and_inputs():
    def fn(x, y):
        z = x * 2
        x.add_(1)
        return x, x[1:], y.t(), z, z.view(-1), z[0]

    x, y = torch.randn(3, 2), torch.randn(2, 2)
    there, y2 = to_device((x, y))
    want, got = fn(x, y), compiled(fn, fullgraph=True)(there, y2)
    assert got[0] is there
    for g, w in zip(got, want, strict=True):
        close(g, w)
        assert g.stride() == w.stride()
    got[1].mul_(3)
    want[1].mul_(3)
    close(there, x)
    got[4].add_(1)
    want[4].add_(1)
    close(got[3], want[3])
    close(got[5], want[5])


def test_tied_weights():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(7, 4)
            self.out = nn.Linear(4, 7, bias=False)
            self.out.weight = self.emb.weight

        def forward(self, i):
            return self.out(self.emb(i).tanh())

    train(Tied(), lambda: (torch.randint(0, 7, (3, 2)),))


# ---- grad modes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_grad_modes(context):
    m = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    other = copy.deepcopy(m).to(DEVICE)
    f = compiled(other, fullgraph=True)
    x = torch.randn(2, 4)
    with context():
        for _ in range(2):
            got = f(x.to(DEVICE))
            close(got, m(x))
            assert got.requires_grad == (context is torch.enable_grad)
            assert got.is_inference() == (context is torch.inference_mode)


def test_some_inputs_require_grad():
    def fn(a, b, c):
        return (a * b).sum() + (b.detach() * c).sum(), a * 2, c.cos()

    a, b, c = torch.randn(3, requires_grad=True), torch.randn(3), torch.randn(3, requires_grad=True)
    there = to_device((a, b, c))
    want, got = fn(a, b, c), compiled(fn, fullgraph=True)(*there)
    for g, w in zip(got, want, strict=True):
        close(g, w)
        assert g.requires_grad == w.requires_grad
    (want[0] + want[2].sum()).backward()
    (got[0] + got[2].sum()).backward()
    close(there[0].grad, a.grad)
    close(there[2].grad, c.grad)


def test_gradient_accumulation_and_retain_graph():
    fn = compiled(lambda w, x: (w * x).tanh(), fullgraph=True)
    w, x = torch.randn(3, requires_grad=True), torch.randn(3)
    v = to_device(w)
    for _ in range(2):
        want, got = (w * x).tanh().sum(), fn(v, x.to(DEVICE)).sum()
        for keep in (True, False):
            want.backward(retain_graph=keep)
            got.backward(retain_graph=keep)
        close(v.grad, w.grad)


def test_autocast():
    m = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 4))
    other = copy.deepcopy(m).to(DEVICE)

    def fn(x):
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            return (m if x.device.type == "cpu" else other)(x)

    x = torch.randn(3, 8)
    want, got = fn(x), compiled(fn, fullgraph=True)(x.to(DEVICE))
    close(got, want, 2e-2, 2e-2)
    want.float().sum().backward()
    got.float().sum().backward()
    for p, q in zip(m.parameters(), other.parameters(), strict=True):
        close(q.grad, p.grad, 3e-2, 3e-2)
    outside = compiled(other)
    with torch.autocast(x.to(DEVICE).device.type, dtype=torch.bfloat16):
        assert outside(x.to(DEVICE)).dtype == torch.bfloat16


# ---- modules -----------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, d=16, h=2):
        super().__init__()
        self.h, self.n1, self.n2 = h, nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.o, self.up, self.down = nn.Linear(d, 3 * d), nn.Linear(d, d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        b, s, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, s, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, s, d))
        return x + self.down(F.gelu(self.up(self.n2(x))))


def test_transformer_block():
    train(Block(), lambda: (torch.randn(2, 5, 16),))


def test_convolution_and_batch_norm():
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 3)
    )
    train(net, lambda: (torch.randn(4, 3, 8, 8),), rtol=1e-3, atol=1e-4)
    train(net.eval(), lambda: (torch.randn(4, 3, 8, 8),), rtol=1e-3, atol=1e-4)


def test_embedding_and_loss():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.e, self.l = nn.Embedding(11, 8), nn.Linear(8, 11)

        def forward(self, i, y):
            return F.cross_entropy(self.l(self.e(i)).flatten(0, 1), y.flatten())

    train(Net(), lambda: (torch.randint(0, 11, (3, 4)), torch.randint(0, 11, (3, 4))))


@pytest.mark.parametrize("causal", [False, True])
def test_attention(causal):
    q, k, v = (torch.randn(2, 2, 5, 4) for _ in range(3))
    mask = torch.rand(5, 5) > 0.3
    follows(partial(F.scaled_dot_product_attention, is_causal=causal), q, k, v)
    follows(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m), q, k, v, mask)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.AdamW(p, lr=0.1),
        lambda p: torch.optim.Adam(p, lr=torch.tensor(0.1), foreach=False),
    ],
    ids=["sgd", "adamw", "adam_tensor_lr"],
)
def test_optimizer_step(make):
    m = nn.Linear(4, 3)
    other = copy.deepcopy(m).to(DEVICE)
    a, b = make(m.parameters()), make(other.parameters())
    step = compiled(b.step)

    def turn(i):
        torch.manual_seed(i)
        x = torch.randn(2, 4)
        for module, arg in ((m, x), (other, x.to(DEVICE))):
            module.zero_grad()
            module(arg).square().sum().backward()
        a.step()
        step()
        for p, q in zip(m.parameters(), other.parameters(), strict=True):
            close(q, p, 1e-4, 1e-4)

    steady(turn, warm=3)


def test_whole_training_step():
    m = Block()
    other = copy.deepcopy(m).to(DEVICE)

    def step(net, opt, x):
        loss = net(x).square().mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
        return loss.detach()

    a, b = (torch.optim.SGD(n.parameters(), lr=0.1) for n in (m, other))
    f = compiled(step)
    for i in range(3):
        torch.manual_seed(i)
        x = torch.randn(2, 5, 16)
        close(f(other, b, x.to(DEVICE)), step(m, a, x), 1e-4, 1e-5)


# ---- random numbers ----------------------------------------------------------------------------------------------------


def test_random_numbers_are_those_of_eager_mode():
    def fn(x):
        a = F.dropout(x, 0.5)
        b = torch.randn_like(x) + torch.rand(3, 5, device=x.device)
        return a, b, torch.randint(0, 100, (4,), device=x.device), torch.bernoulli(x.sigmoid()), F.dropout(a, 0.1)

    x = torch.randn(3, 5, device=DEVICE)
    f = compiled(fn, fullgraph=True)
    for seed in (0, 0, 7):
        torch.manual_seed(seed)
        first, second = fn(x), fn(x)
        torch.manual_seed(seed)
        for want in (first, second):
            for g, w in zip(f(x), want, strict=True):
                close(g, w, 1e-6, 1e-6)
        after = torch.rand(3, device=DEVICE)
        torch.manual_seed(seed)
        fn(x), fn(x)
        same(after, torch.rand(3, device=DEVICE).cpu())


def test_seeds_and_states_are_not_constants():
    def fn(x):
        state = torch.get_device_module(x.device).get_rng_state() if x.device.type != "cpu" else torch.get_rng_state()
        return x + torch.rand(3, device=x.device), state

    x = torch.zeros(3, device=DEVICE)
    f = compiled(fn)
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        want = fn(x)
        torch.manual_seed(seed)
        got = f(x)
        same(got[0], want[0].cpu())
        assert torch.equal(got[1], want[1])


def test_a_tensor_made_of_python_numbers_is_a_result():
    f = compiled(lambda x: (x + 1, torch.tensor([1.0, 2.0]), torch.tensor(3, device=x.device)), fullgraph=True)
    for _ in range(2):
        a, b, c = f(torch.ones(2, device=DEVICE))
        same(a, torch.full((2,), 2.0))
        check(b, torch.tensor([1.0, 2.0]), 0, 0)
        same(c, torch.tensor(3))
        b.add_(1), c.add_(1)  # no constant of the program


def test_streams():
    module = torch.get_device_module(DEVICE)
    f = compiled(lambda x: (module.current_stream(), x * 2 + (x.device.index or 0))[1], fullgraph=True)
    same(f(torch.ones(2, device=DEVICE)), torch.full((2,), 2.0))


def test_dropout_in_training():
    m = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.Linear(6, 2), nn.Dropout(0.2)).to(DEVICE)
    f = compiled(m, fullgraph=True)
    x = torch.randn(4, 6, device=DEVICE)
    grads = []
    for net in (m, f):
        m.zero_grad()
        torch.manual_seed(5)
        net(x).square().sum().backward()
        grads.append([p.grad.clone() for p in m.parameters()])
    for g, w in zip(grads[1], grads[0], strict=True):
        close(g, w.cpu())


@pytest.mark.parametrize("p", [0.0, 0.4])
def test_activation_checkpointing(p):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)

        def part(self, x):
            return F.dropout(self.b(self.a(x).tanh()).tanh(), p)

        def forward(self, x):
            return checkpoint(self.part, checkpoint(self.part, x, use_reentrant=False), use_reentrant=False)

    m = Net().to(DEVICE)
    f = compiled(m, fullgraph=True)
    x = torch.randn(4, 6, device=DEVICE)
    grads = []
    for net in (m, f):
        m.zero_grad()
        torch.manual_seed(5)
        y = net(x)
        y.square().sum().backward()
        grads.append([y.detach(), *(q.grad.clone() for q in m.parameters())])
    for g, w in zip(grads[1], grads[0], strict=True):
        close(g, w.cpu())


# ---- transforms, custom operators, control flow -------------------------------------------------------------------------


def test_func_transforms():
    def loss(w, x):
        return (x @ w).tanh().sum()

    w, x = torch.randn(3, 2), torch.randn(4, 3)
    follows(lambda w, x: torch.func.grad(loss)(w, x), w, x)
    follows(lambda w, x: torch.func.vmap(torch.func.grad(loss), (None, 0))(w, x), w, x)
    follows(lambda w, x: torch.func.jacrev(loss)(w, x), w, x)


@torch.library.custom_op("tpu_test_compile::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.custom_op("tpu_test_compile::by_numpy", mutates_args=())
def by_numpy(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.cpu().numpy() + 1).to(x.device)


@by_numpy.register_fake
def _(x):
    return torch.empty_like(x)


@device_only
def test_an_operator_that_is_cut_out_may_give_a_list():
    @torch.library.custom_op("tpu_test_compile::halves", mutates_args=())
    def halves(x: torch.Tensor) -> list[torch.Tensor]:
        n = int(x.cpu().shape[0]) // 2
        return [x[:n].clone(), x[n:].clone()]

    halves.register_fake(lambda x: [x.new_empty(x.shape[0] // 2, *x.shape[1:]) for _ in range(2)])
    x = torch.randn(4, 2)
    with pytest.warns(UserWarning, match="tpu_test_compile.halves"):
        a, b = compiled(lambda x: [t * 2 for t in halves(x.sin())], fullgraph=True)(x.to(DEVICE))
    close(a, x[:2].sin() * 2)
    close(b, x[2:].sin() * 2)


# ---- control flow and attention inside of the program --------------------------------------------------------------------


def _state(x, w):
    def step(h, v):
        h = torch.tanh(h @ w + v)
        return h, h * 2

    carry, out = scan(step, torch.zeros_like(x[0]), x)
    return carry.sum() + out.sum()


CONTROL = {
    "cond": lambda x, w: torch.cond(x.sum() > 0, lambda a, b: (a.sin(), a * 2), lambda a, b: (a.cos(), a @ b), (x, w)),
    "cond in cond": lambda x, w: torch.cond(
        x.sum() > 0,
        lambda a, b: a @ b,
        lambda a, b: torch.cond(a.max() > -2, lambda c: c + 1, lambda c: c - 1, (a @ b,)),
        (x * 2, w),
    ).relu(),
    "while_loop": lambda x, w: while_loop(
        lambda i, a: i < 5, lambda i, a: (i + 1, a * 1.5 + i), (torch.tensor(0, device=x.device), x)
    ),
    "while_loop of values": lambda x, w: while_loop(lambda a: a.norm() > 1e-2, lambda a: (a * 0.5,), (x,)),
    "scan": lambda x, w: scan(lambda h, v: (h + v, h * v), torch.zeros_like(x[0]), x),
    "scan of products": _state,
    "map": lambda x, w: control_map(lambda a, b: a.sin() + b.sum(), x, w),
    "associative_scan": lambda x, w: associative_scan(lambda a, b: a + b, x, 0, combine_mode="generic"),
}


@device_only
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("name", CONTROL)
def test_control_flow(name, sign):
    x, w = sign * torch.rand(4, 3, 3), torch.randn(4, 3, 3) if name != "scan of products" else torch.randn(3, 3)
    run = compiled(CONTROL[name], fullgraph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a part outside of the program would warn
        warnings.filterwarnings("default", category=DeprecationWarning)
        got = run(x.to(DEVICE), w.to(DEVICE))
    n = torch.tpu.compile_count()
    again = run(x.to(DEVICE), w.to(DEVICE))
    assert torch.tpu.compile_count() == n
    for result in (got, again):
        for g, want in zip(pytree.tree_leaves(result), pytree.tree_leaves(CONTROL[name](x, w)), strict=True):
            close(g, want, 1e-4, 1e-5)


@device_only
@pytest.mark.parametrize("name", ["cond", "scan of products"])
def test_control_flow_has_gradients(name):
    def gradients(device, backend):
        torch._dynamo.reset()
        x = torch.rand(4, 3, 3, generator=torch.Generator().manual_seed(0)).to(device).requires_grad_()
        w = torch.rand(3, 3, generator=torch.Generator().manual_seed(1)).to(device).requires_grad_()
        out = torch.compile(CONTROL[name], backend=backend, fullgraph=True)(x, w)
        sum(t.sum() for t in pytree.tree_leaves(out)).backward()
        return x.grad, w.grad if w.grad is not None else torch.zeros_like(w)

    for g, want in zip(gradients(DEVICE, "tpu"), gradients("cpu", "aot_eager"), strict=True):
        close(g, want, 1e-4, 1e-5)


@device_only
def test_random_numbers_inside_of_control_flow_are_cut_out():
    def branch(x):
        return torch.cond(x.sum() > 0, lambda y: y + torch.rand_like(y), lambda y: y * 1, (x,)) * 2

    with pytest.warns(UserWarning, match="random numbers inside of control flow"):
        got = compiled(branch)(torch.ones(100, device=DEVICE)).cpu()
    assert ((got >= 2) & (got < 4)).all() and got.unique().numel() > 50


FLEX = {
    "plain": (None, None),
    "score": (lambda s, b, h, i, j: s * 0.5 - (i - j).abs() * 0.01, None),
    "mask": (None, lambda b, h, i, j: i >= j),
    "both": (lambda s, b, h, i, j: s + h, lambda b, h, i, j: (i - j).abs() < 20),
}


@device_only
@pytest.mark.parametrize("name", FLEX)
def test_flex_attention(name):
    score, mask = FLEX[name]
    x = [torch.randn(2, 4, 128, 16, generator=torch.Generator().manual_seed(k)) for k in range(3)]

    def explicit(q, k, v):
        s = q @ k.mT / 4
        i, j, h = torch.arange(128)[:, None], torch.arange(128)[None], torch.arange(4)[:, None, None]
        s = score(s, None, h, i, j) if score else s
        s = s.masked_fill(~mask(None, h, i, j), -math.inf) if mask else s
        return s.softmax(-1) @ v

    block = create_block_mask(mask, None, None, 128, 128, device=DEVICE) if mask else None
    run = compiled(lambda q, k, v: flex_attention(q, k, v, score_mod=score, block_mask=block), fullgraph=True)
    here, there = ([t.clone().to(d).requires_grad_() for t in x] for d in ("cpu", DEVICE))
    want, got = explicit(*here), run(*there)
    close(got, want, 1e-4, 1e-4)
    want.square().sum().backward()
    got.square().sum().backward()
    for g, w in zip(there, here, strict=True):
        close(g.grad, w.grad, 1e-4, 1e-4)


def test_an_operator_that_asks_twice():
    x, y = torch.randn(3, 4), torch.randn(3, 4).sign()
    follows(
        lambda x, y: F.soft_margin_loss(x, y) + torch.linalg.tensorinv(x[:, :3].reshape(3, 1, 3), ind=1).sum(), x, y, rtol=1e-3
    )


def test_custom_op():
    follows(lambda x: twice(x + 1).sin(), torch.randn(3))


@device_only
def test_custom_op_that_reads_its_argument():
    x = torch.randn(3)
    f = compiled(lambda x: by_numpy(x.sin()).cos() * 2, fullgraph=True)
    with pytest.warns(UserWarning, match="tpu_test_compile.by_numpy.*cannot be part of the compiled program"):
        got = f(x.to(DEVICE))
    want = (x.sin() + 1).cos() * 2
    close(got, want)
    close(f(x.to(DEVICE)), want)
    torch._dynamo.reset()
    strict = compiled(lambda x: by_numpy(x.sin()).cos() * 2, fullgraph=True, options={"fallback": "error"})
    with pytest.raises(Exception, match="tpu_test_compile.by_numpy"):
        strict(x.to(DEVICE))


# ---- shapes and compiles -----------------------------------------------------------------------------------------------


@device_only
def test_a_second_call_compiles_nothing():
    f = compiled(lambda x, k: (x @ x).tanh() * k.sum(), fullgraph=True)
    steady(lambda i: f(torch.full((4, 4), float(i), device=DEVICE), torch.ones(3, device=DEVICE)))
    before = compiles()
    f(torch.ones(4, 4, device=DEVICE), torch.ones(3, device=DEVICE))
    synchronize()
    assert compiles() == before


@device_only
def test_one_program_a_graph():
    torch._dynamo.reset()
    x = torch.randn(9, 9, device=DEVICE)
    synchronize()
    before = compiles()
    f = compiled(lambda x: ((x.sin() @ x.cos()).softmax(-1) + torch.arange(9, device=x.device)).sum(0).tanh(), fullgraph=True)
    f(x)
    synchronize()
    assert compiles() - before <= 1  # none when an earlier run left it on disk


def test_dynamic_shapes():
    f = compiled(lambda x: ((x * 2).sum(0), x.shape[0]), dynamic=True)
    for n in (3, 4, 5, 3, 1):
        y, m = f(torch.ones(n, 3, device=DEVICE))
        same(y, torch.full((3,), 2.0 * n))
        assert m == n
    if not IS_CPU:
        before = compiles()
        for n in (3, 4, 5, 3, 1):
            f(torch.ones(n, 3, device=DEVICE))
        synchronize()
        assert compiles() == before


def test_dynamic_training():
    m = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    other = copy.deepcopy(m).to(DEVICE)
    f = compiled(other, dynamic=True)
    for n in (3, 5, 3):
        x = torch.randn(n, 4)
        m.zero_grad()
        other.zero_grad()
        m(x).sum().backward()
        f(x.to(DEVICE)).sum().backward()
        for p, q in zip(m.parameters(), other.parameters(), strict=True):
            close(q.grad, p.grad)


@pytest.mark.parametrize("mask_sizes", [(2, 1), (1, 1), None])
def test_dynamic_attention(mask_sizes):
    """What attention is made of is chosen while its sizes are symbols."""
    f = compiled(F.scaled_dot_product_attention, dynamic=True, fullgraph=True)
    for n in (5, 7):
        torch.manual_seed(n)
        here = [torch.randn(2, 4, 3, 8), torch.randn(2, 4, n, 8), torch.randn(2, 4, n, 8)]
        there = [x.to(DEVICE).requires_grad_() for x in here]
        mask = None if mask_sizes is None else (torch.rand(*mask_sizes, 3, n) > 0.4).index_fill(-1, torch.tensor([0]), True)
        want = F.scaled_dot_product_attention(*(x.requires_grad_() for x in here), mask)
        got = f(*there, to_device(mask) if mask is not None else None)
        close(got, want)
        want.square().sum().backward()
        got.square().sum().backward()
        for x, y in zip(here, there, strict=True):
            close(y.grad, x.grad)


GROUPED = {
    "rows": ((8, 40), (3, 40, 16)),
    "columns": ((3, 40, 16), (16, 8)),
    "summed": ((16, 8), (8, 24)),
    "batch": ((3, 8, 16), (3, 16, 8)),
}


@device_only
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", GROUPED)
def test_grouped_mm(name, dtype):
    """One program, for PyTorch reads the offsets on the host; eager and compiled, with gradients, in any floating dtype. The last
    group is empty; a place that is in no group gives zeros."""
    a, b = (torch.randn(*sizes, generator=torch.Generator().manual_seed(i)).to(dtype) for i, sizes in enumerate(GROUPED[name]))
    offs = None if name == "batch" else torch.tensor([3, 8, 8], dtype=torch.int32)
    tol = 1e-5 if dtype == torch.float32 else 2e-2
    here = [x.clone().requires_grad_() for x in (a, b)]
    want = F.grouped_mm(*here, offs=offs)
    want.float().square().sum().backward()
    for call in (F.grouped_mm, compiled(F.grouped_mm, fullgraph=True)):
        there = [x.to(DEVICE).requires_grad_() for x in (a, b)]
        got = call(*there, offs=None if offs is None else offs.to(DEVICE))
        close(got, want, tol, tol)
        got.float().square().sum().backward()
        for x, y in zip(here, there, strict=True):
            close(y.grad, x.grad, tol, tol * float(x.grad.abs().max()))


@device_only
def test_grouped_mm_checks():
    a, b = torch.ones(5, 8, device=DEVICE), torch.ones(2, 8, 4, device=DEVICE)
    ends = torch.tensor([2, 3], dtype=torch.int32, device=DEVICE)
    same(F.grouped_mm(a, b, offs=ends), torch.tensor([8.0, 8, 8, 0, 0]).unsqueeze(1).expand(5, 4))
    b[1] = float("inf")  # of another group
    same(F.grouped_mm(a, b, offs=ends)[:2], torch.full((2, 4), 8.0))
    for args, error in (
        ((a, b, None), "Offsets tensor not provided"),
        ((b.transpose(1, 2), b, ends), "Offsets tensor provided, but is not needed"),
        ((a, b, ends[:1]), "batch sizes have to match"),
        ((a, b, ends.long()), "Offsets have to be 1-D and int32"),
        ((a, b.double(), ends), "Expected inputs of one dtype"),
        ((a[:, :4], b, ends), "contraction dimension"),
    ):
        with pytest.raises(RuntimeError, match=error):
            F.grouped_mm(args[0], args[1], offs=args[2])


def test_data_dependent_sizes():
    def fn(x):
        return x.nonzero() * 2, x[x > 0].sum(), (x > 0).sum().item() + 1

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        follows(fn, torch.tensor([1.0, -1, 2, 0]), fullgraph=False)
        with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
            torch._dynamo.reset()
            follows(fn, torch.tensor([1.0, -1, 2, 0]), fullgraph=False)


# ---- modes, options, errors --------------------------------------------------------------------------------------------


@device_only
def test_options():
    x = torch.ones(2, device=DEVICE)
    for mode in ("default", "reduce-overhead", "max-autotune"):
        torch._dynamo.reset()
        same(compiled(lambda x: x + 1, mode=mode)(x), torch.full((2,), 2.0))
    same(compiled(lambda x: x + 2, options={"fallback": "error", "partitioner": "default"})(x), torch.full((2,), 3.0))
    with pytest.raises(Exception, match="unknown option 'fast'; known are buckets, fallback, partitioner, xla"):
        compiled(lambda x: x + 3, options={"fast": True})(x)
    with pytest.raises(Exception, match="option 'fallback': expected one of 'eager', 'error', got 3"):
        compiled(lambda x: x + 3, options={"fallback": 3})(x)
    with pytest.raises(Exception, match="unknown mode 'quick'"):
        compiled(lambda x: x + 3, mode="quick")(x)


@device_only
def test_xla_options(tmp_path):
    """They reach XLA, each kind of value, and make another program."""
    x = torch.randn(5, 5)

    def fn(x):
        return (x @ x).sin() + 2

    folder = tmp_path / uuid.uuid4().hex  # a name that no cache knows
    close(compiled(fn, options={"xla": {"xla_dump_to": str(folder)}})(x.to(DEVICE)), fn(x))
    assert any(folder.iterdir())
    before = torch.tpu.cache_stats()
    plain = {
        "xla_backend_optimization_level": 1,
        "xla_llvm_disable_expensive_passes": True,
        "xla_multiheap_size_constraint_per_heap": -1,
    }
    close(compiled(fn, options={"xla": plain})(x.to(DEVICE)), fn(x))
    synchronize()
    after = torch.tpu.cache_stats()
    assert after["disk_hits"] + after["disk_misses"] > before["disk_hits"] + before["disk_misses"]  # another key


@device_only
@pytest.mark.parametrize(
    "options, error",
    [
        ({"xla_no_such": 1}, r"with the options of XLA xla_no_such = 1: .*No such compile option: 'xla_no_such'"),
        ({"xla_backend_optimization_level": "much"}, "'much' is not a valid int32 value"),
        ({"xla_backend_optimization_level": 0.5}, "xla_backend_optimization_level"),
        ({"a b": 1}, "'a b' is no name of an option"),
        ({"x": None}, "x: expected a bool, an int of 64 bits, a float or a line of text, got None"),
        ({"x": "two\nlines"}, "x: expected a bool"),
        ({"x": 1 << 63}, "x: expected a bool"),
        (3, "option 'xla': expected {name: value}, got int"),
    ],
)
def test_bad_xla_options(options, error):
    with pytest.raises(Exception, match=error):
        compiled(lambda x: x * 5, options={"xla": options})(torch.ones(2, device=DEVICE))
    same(compiled(lambda x: x * 5)(torch.ones(2, device=DEVICE)), torch.full((2,), 5.0))


DUMPS = """
import torch
f = torch.compile(lambda x: (x @ x).sin(), backend="tpu")
f(torch.ones(3, 3, device="tpu"))
"""


@device_only
def test_dump(tmp_path):
    """Each program's StableHLO, what XLA made of it, and the FX graph of a compiled one; also when it comes from the disk."""
    for turn in ("first", "again"):
        folder = tmp_path / turn
        folder.mkdir()
        run_python(DUMPS, TORCH_TPU_DUMP=str(folder), TORCH_TPU_CACHE_DIR=str(tmp_path / "cache"))
        (fx,) = folder.glob("compiled_graph*.fx.py")
        stem = fx.name.removesuffix(".fx.py")
        assert "torch.ops.aten.mm.default" in fx.read_text()
        assert "stablehlo.dot_general" in (folder / f"{stem}.mlir").read_text()
        assert " dot(" in (folder / f"{stem}.hlo.txt").read_text()
        for f in folder.glob("*.mlir"):
            assert f.with_suffix(".hlo_with_config.pb").stat().st_size > 0


@device_only
@pytest.mark.parametrize("mode", ["DEBUG", "FUSED"])
def test_eager_modes(mode):
    f = compiled(lambda x, w: (x @ w).tanh().sum(0), fullgraph=True)
    x, w = torch.randn(3, 4), torch.randn(4, 2)
    with torch.tpu.set_eager_mode(getattr(torch.tpu.EagerMode, mode)):
        u = x.to(DEVICE) * 2 + 1
        got = f(u, w.to(DEVICE)) - 1
    close(got, ((x * 2 + 1) @ w).tanh().sum(0) - 1)


@device_only
def test_a_wrong_shape_is_pytorchs_error():
    with pytest.raises(Exception, match="mat1 and mat2 shapes cannot be multiplied|a and b must have same reduction dim"):
        compiled(lambda a, b: a @ b)(torch.ones(2, 3, device=DEVICE), torch.ones(2, 3, device=DEVICE))


@device_only
def test_nothing_but_the_result_stays_in_memory():
    x = torch.randn(64, 64, device=DEVICE)
    f = compiled(lambda x: ((x @ x).sin() @ x).sum(), fullgraph=True)
    f(x)
    before = torch.tpu.memory_allocated()
    torch.tpu.reset_peak_memory_stats()
    y = f(x)
    assert torch.tpu.memory_allocated() == before + 4
    assert torch.tpu.max_memory_allocated() == before + 4
    del y
    assert torch.tpu.memory_allocated() == before


@device_only
def test_another_process_compiles_nothing(tmp_path):
    code = """
        import torch
        f = torch.compile(lambda x: (x @ x).tanh().sum(), backend="tpu")
        print(f(torch.ones(3, 3, device="tpu")).item(), torch.tpu.compile_count())
    """
    first, second = (run_python(code, TORCH_TPU_CACHE_DIR=str(tmp_path)).stdout.split() for _ in range(2))
    assert first[0] == second[0] and int(first[1]) > 0 and int(second[1]) == 0


@device_only
def test_the_package_leaves_other_backends_alone():
    x = torch.randn(3)
    close_cpu = torch.compile(lambda x: x.sin(), backend="aot_eager")(x)
    assert torch.equal(close_cpu, x.sin())
    assert os.environ.get("TORCHDYNAMO_DISABLE") is None


# ---- torch.compiler and torch._dynamo ----------------------------------------------------------------------------------


@device_only
def test_set_stance():
    torch._dynamo.utils.counters.clear()
    x = torch.ones(3, device=DEVICE)
    f = compiled(lambda x: x * 2 + 1)
    with torch.compiler.set_stance("force_eager"):
        same(f(x), torch.full((3,), 3.0))
    assert not torch._dynamo.utils.counters["stats"]["unique_graphs"]
    same(f(x), torch.full((3,), 3.0))
    with torch.compiler.set_stance("fail_on_recompile"):
        same(f(x), torch.full((3,), 3.0))
        with pytest.raises(RuntimeError, match="Detected recompile when torch.compile stance is 'fail_on_recompile'"):
            f(torch.ones(2, 3, device=DEVICE))
    with torch.compiler.set_stance("eager_on_recompile"):
        same(f(torch.ones(2, 3, device=DEVICE)), torch.full((2, 3), 3.0))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@device_only
def test_dynamo_explain():
    def fn(x):
        y = x + 1
        torch._dynamo.graph_break()
        return y * 2

    found = torch._dynamo.explain(fn)(torch.ones(3, device=DEVICE))
    assert (found.graph_count, found.graph_break_count) == (2, 1)


LOGGED = """
import torch
f = torch.compile(lambda x: (x * 2).sum(), backend="tpu")
x = torch.ones(3, device="tpu", requires_grad=True)
f(x).backward()
f(torch.ones(2, 3, device="tpu", requires_grad=True))
"""


@device_only
def test_torch_logs():
    """PyTorch's own logs show what is compiled and why again."""
    said = run_python(LOGGED, TORCH_LOGS="graph_code,aot_graphs,recompiles").stderr
    for text in ("TRACED GRAPH", "Forward graph", "Backward graph", "torch.ops.aten.mul.Tensor", "Recompiling function", "tpu:0"):
        assert text in said, text


SAVES = """
import sys, torch
f = torch.compile(lambda x: (x @ x).sin().sum(), backend="tpu")
x = torch.ones(4, 4, requires_grad=True, device="tpu")
if "load" in sys.argv:
    info = torch.compiler.load_cache_artifacts(open(sys.argv[1], "rb").read())
    assert len(info.artifacts["tpu"]) == 2, info
    torch.tpu.set_compile_policy("warn")
f(x).backward()
torch.tpu.synchronize()
if "load" not in sys.argv:
    data, info = torch.compiler.save_cache_artifacts()
    assert len(info.artifacts["tpu"]) == 2, info
    open(sys.argv[1], "wb").write(data)
    torch.compiler.load_cache_artifacts(data)  # they are there: nothing to do
print(torch.tpu.compile_count(), torch.tpu.cache_stats()["disk_hits"])
"""


@device_only
def test_cache_artifacts(tmp_path):
    """Forward and backward executables go where torch.compiler.load_cache_artifacts takes them."""
    script = tmp_path / "script.py"
    script.write_text(SAVES)

    def run(cache, *args):
        code = f"import sys, runpy; sys.argv = ['', {str(tmp_path / 'artifacts')!r}, *{args!r}]; runpy.run_path({str(script)!r}, run_name='__main__')"
        return run_python(code, TORCH_TPU_CACHE_DIR=str(tmp_path / cache))

    run("one")
    loaded = run("two", "load")
    assert "compiled forward" not in loaded.stderr and "compiled backward" not in loaded.stderr
    assert int(loaded.stdout.split()[1]) >= 2


@device_only
def test_second_process_compiles_nothing(tmp_path):
    for _ in range(2):
        out = run_python(
            LOGGED + "torch.tpu.synchronize(); print(torch.tpu.compile_count())", TORCH_TPU_CACHE_DIR=str(tmp_path)
        ).stdout
    assert out.split() == ["0"]
