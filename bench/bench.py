"""Times operators on `tpu` with torch's CPU device beside it.

    python bench/bench.py [REGEX] [--json OUT] [--repeat 7]
    python bench/bench.py traffic     # bytes moved by a chain of operators, mode by mode (bench/traffic.py)
    python bench/bench.py start       # from the start of a process to its first training step (bench/start.py)
    python bench/bench.py compiled    # whole models compiled, beside inductor and JAX (bench/compiled.py)
    python bench/bench.py ladder      # a Llama-3-style step on TPUs that are not here, mode by mode, beside JAX (bench/ladder.py)
    python bench/bench.py rows        # operators on a TPU that is not here, beside JAX's (bench/rows.py)

One line a row: the least time of one call on each device, and their ratio. `dispatch` is until the call returns; everything else
ends with a read of one value, shared by all calls of a round, so that queued work is part of it. `first` is the first call,
with its compile. Compare figures of one run only.
"""

import argparse
import json
import re
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn


def read(x):
    """Waits for the device by reading one value."""
    while isinstance(x, (tuple, list)):
        x = x[0]
    return x.detach().flatten()[:1].cpu()


def small(d):
    return torch.linspace(-1, 1, 64 * 64).view(64, 64).to(d)


def large(d):
    return torch.linspace(-1, 1, 1 << 20).view(1024, 1024).to(d)


def image(d):
    return torch.linspace(-1, 1, 8 * 16 * 32 * 32).view(8, 16, 32, 32).to(d)


def tokens(d):
    return torch.arange(512).remainder(100).view(8, 64).to(d)


def attention(d):
    return torch.linspace(-1, 1, 4 * 4 * 64 * 32).view(4, 4, 64, 32).to(d)


def step(d):
    torch.manual_seed(0)
    net = nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(64, 64), nn.GELU())]).to(d)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    x = torch.randn(32, 64).to(d)

    def run():
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return run


def values(*sizes):
    """Makes a tensor of these sizes with values in no order, the same on each device."""
    n = 1
    for k in sizes:
        n *= k

    def make(d):
        return (torch.arange(n, dtype=torch.float32).mul_(0.618034).remainder_(1).sub_(0.5)).view(sizes).to(d)

    return make


def backward(make, call):
    """The call with its backward; what `make` gives that floats gets a gradient."""

    def inputs(d):
        made = make(d)
        made = made if isinstance(made, (tuple, list)) else (made,)
        return [x.requires_grad_() if torch.is_tensor(x) and x.is_floating_point() else x for x in made]

    def run(xs):
        leaves = [x for x in xs if torch.is_tensor(x) and x.requires_grad]
        return torch.autograd.grad(call(*xs).sum(), leaves)

    return inputs, run


def several(*makers):
    return lambda d: [m(d) for m in makers]


def resnet_block(d):
    torch.manual_seed(0)
    return (
        values(8, 64, 56, 56)(d),
        *[w(d) for w in (values(64, 64, 3, 3), values(64), values(64), values(64, 64, 3, 3), values(64), values(64))],
    )


def resnet_call(x, w1, g1, b1, w2, g2, b2):
    y = F.relu(F.batch_norm(F.conv2d(x, w1, padding=1), None, None, g1, b1, training=True))
    return F.relu(F.batch_norm(F.conv2d(y, w2, padding=1), None, None, g2, b2, training=True) + x)


def lstm(d):
    torch.manual_seed(0)
    net = nn.LSTM(256, 256, batch_first=True).to(d)
    x = values(32, 64, 256)(d)
    return net, x


def spd(n, k):
    def make(d):
        a = values(n, k, k)("cpu")
        return (a @ a.mT + k * torch.eye(k)).to(d)

    return make


M1, M4 = values(1024, 1024), values(4, 1024, 1024)
ids = several(values(50000, 512), lambda d: torch.arange(8 * 512).mul(7919).remainder(50000).view(8, 512).to(d))
heads = several(*[values(4, 8, 512, 64)] * 3)

# Each family of operators on inputs of a million elements and more: how the program itself compares.
# name: (makes the arguments on a device, the call, calls in a round)
FAMILIES = {
    "big unary": (M4, lambda x: x.exp(), 3),
    "big special": (M1, torch.special.digamma, 2),
    "big binary": (M4, lambda x: x * x, 3),
    "big broadcast": (M4, lambda x: x + x[0, 0], 3),
    "big compare": (M4, lambda x: x > 0, 3),
    "big activation": (M4, F.silu, 3),
    "big cast": (M4, lambda x: x.to(torch.bfloat16), 3),
    "big sum": (M4, lambda x: x.sum(), 3),
    "big sum of columns": (M4, lambda x: x.sum(1), 3),
    "big argmax": (M4, lambda x: x.argmax(-1), 3),
    "big var": (M4, lambda x: x.var(-1), 3),
    "big logsumexp": (M4, lambda x: x.logsumexp(-1), 3),
    "big median": (M1, lambda x: x.median(-1)[0], 2),
    "big softmax": (M4, lambda x: x.softmax(-1), 3),
    "big cumsum": (M4, lambda x: x.view(-1).cumsum(0), 2),
    "big cumsum of rows": (M4, lambda x: x.cumsum(-1), 2),
    "big cummax": (M1, lambda x: x.cummax(0)[0], 2),
    "big sort": (M1, lambda x: x.view(-1).sort()[0], 1),
    "big sort of rows": (M1, lambda x: x.sort(-1)[0], 1),
    "big topk": (M1, lambda x: x.topk(16, -1)[0], 2),
    "big layer_norm": (values(4096, 1024), lambda x: F.layer_norm(x, (1024,)), 3),
    "big layer_norm backward": (*backward(values(4096, 1024), lambda x: F.layer_norm(x, (1024,)).square()), 2),
    "big batch_norm": (values(8, 64, 56, 56), lambda x: F.batch_norm(x, None, None, training=True), 3),
    "big group_norm": (values(8, 64, 56, 56), lambda x: F.group_norm(x, 8), 3),
    "big matmul": (M1, lambda x: x @ x, 2),
    "big matmul transposed": (M1, lambda x: x.t() @ x.t(), 2),
    "big bmm": (M4, lambda x: x @ x.mT, 1),
    "big linear backward": (*backward(several(values(2048, 1024), values(1024, 1024)), lambda x, w: F.linear(x, w)), 1),
    "big conv2d": (several(values(8, 64, 56, 56), values(64, 64, 3, 3)), lambda a: F.conv2d(*a, padding=1), 2),
    "big conv2d of channels": (
        several(values(8, 64, 56, 56), values(64, 1, 3, 3)),
        lambda a: F.conv2d(*a, padding=1, groups=64),
        2,
    ),
    "big conv1d": (several(values(16, 64, 2048), values(64, 64, 5)), lambda a: F.conv1d(*a, padding=2), 2),
    "big conv_transpose2d": (several(values(8, 64, 28, 28), values(64, 64, 2, 2)), lambda a: F.conv_transpose2d(*a, stride=2), 2),
    "ResNet block": (resnet_block, lambda a: resnet_call(*a), 1),
    "ResNet block backward": (*backward(resnet_block, resnet_call), 1),
    "big max_pool2d": (values(8, 64, 56, 56), lambda x: F.max_pool2d(x, 3, 2, 1), 2),
    "big avg_pool2d backward": (*backward(values(8, 64, 56, 56), lambda x: F.avg_pool2d(x, 2)), 2),
    "big interpolate": (values(8, 16, 64, 64), lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), 2),
    "big grid_sample": (
        several(values(4, 16, 128, 128), lambda d: values(4, 128, 128, 2)(d) * 2),
        lambda a: F.grid_sample(*a, align_corners=False),
        2,
    ),
    "big pad": (M4, lambda x: F.pad(x, (1, 1, 1, 1), "reflect"), 3),
    "big transpose": (M4, lambda x: x.mT.contiguous(), 3),
    "big cat": (M4, lambda x: torch.cat([x, x], -1), 2),
    "big roll": (M4, lambda x: x.roll(5, -1), 3),
    "big index": (several(M4, lambda d: torch.arange(1024).flip(0).to(d)), lambda a: a[0][:, a[1]], 2),
    "big gather": (
        several(M1, lambda d: torch.arange(1 << 20).mul(7919).remainder(1024).view(1024, 1024).to(d)),
        lambda a: a[0].gather(1, a[1]),
        2,
    ),
    "big scatter_add": (
        several(M1, lambda d: torch.arange(1 << 20).mul(7919).remainder(1024).view(1024, 1024).to(d)),
        lambda a: a[0].scatter_add(1, a[1], a[0]),
        1,
    ),
    "big index_put": (
        several(M4, lambda d: torch.arange(1024).flip(0).to(d)),
        lambda a: torch.ops.aten.index_put(a[0], [None, a[1]], a[0]),
        1,
    ),
    "big masked write": (M4, lambda x: x.clone().masked_fill_(x > 0, 1), 3),
    "big embedding": (ids, lambda a: F.embedding(a[1], a[0]), 2),
    "big embedding backward": (*backward(ids, lambda w, i: F.embedding(i, w)), 1),
    "big cross_entropy": (several(values(2048, 4096), lambda d: torch.arange(2048).to(d)), lambda a: F.cross_entropy(*a), 2),
    "big attention": (heads, lambda a: F.scaled_dot_product_attention(*a), 1),
    "big attention backward": (*backward(heads, lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)), 1),
    "big fft": (M1, lambda x: torch.fft.rfft(x), 2),
    "big LSTM": (lstm, lambda a: a[0](a[1])[0], 1),
    "big cholesky": (spd(64, 128), torch.linalg.cholesky, 1),
    "big solve": (spd(64, 128), lambda a: torch.linalg.solve(a, a[..., :1]), 1),
    "big randn": (lambda d: d, lambda d: torch.randn(4, 1024, 1024, device=d), 2),
    "big dropout": (M4, lambda x: F.dropout(x, 0.5), 2),
    "big foreach": (lambda d: [M1(d) for _ in range(4)], lambda xs: torch._foreach_add(xs, xs), 2),
    "big unique": (lambda d: torch.arange(1 << 20).mul(7919).remainder(1000).to(d), lambda x: x.unique(), 1),
    "big nonzero": (M1, lambda x: (x > 0).nonzero(), 1),
}

# name: (makes the arguments on a device, the call, calls in a round)
ROWS = {
    "dispatch add": (small, lambda x: x + x, 200),
    "add": (small, lambda x: x + x, 200),
    "add number": (small, lambda x: x + 1.5, 200),
    "add in place": (small, lambda x: x.add_(0), 200),
    "add on a view": (small, lambda x: x[2:10].add_(0), 200),
    "read a view": (small, lambda x: x[3] * 2, 200),
    "write a view": (small, lambda x: x[:, 3].fill_(1), 200),
    "chain of 8": (small, lambda x: ((x * 2 + 1).tanh().exp() - x).abs().sqrt().sigmoid(), 20),
    "gelu": (large, F.gelu, 5),
    "where": (large, lambda x: torch.where(x > 0, x, 0), 5),
    "sum": (large, lambda x: x.sum(), 10),
    "sum of rows": (large, lambda x: x.sum(1), 10),
    "softmax": (large, lambda x: x.softmax(1), 5),
    "layer_norm": (large, lambda x: F.layer_norm(x, (1024,)), 5),
    "cumsum": (large, lambda x: x.cumsum(1), 3),
    "sort": (small, lambda x: x.sort(1), 5),
    "topk": (small, lambda x: x.topk(8, 1), 5),
    "matmul 64": (small, lambda x: x @ x, 50),
    "matmul 1024": (large, lambda x: x @ x, 2),
    "transpose copy": (large, lambda x: x.t().contiguous(), 5),
    "cat": (large, lambda x: torch.cat([x, x]), 5),
    "index": (large, lambda x: x[torch.tensor([3, 1, 4], device=x.device)], 20),
    "mask": (large, lambda x: x.masked_fill(x < 0, 0), 5),
    "embedding": (tokens, lambda t: F.embedding(t, torch.ones(100, 64, device=t.device)), 20),
    "conv2d": (image, lambda x: F.conv2d(x, torch.ones(16, 16, 3, 3, device=x.device), padding=1), 3),
    "max_pool2d": (image, lambda x: F.max_pool2d(x, 2), 10),
    "attention": (attention, lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), 5),
    "cross_entropy": (small, lambda x: F.cross_entropy(x, torch.arange(64, device=x.device)), 20),
    "dropout": (large, lambda x: F.dropout(x, 0.5), 5),
    "randn": (large, lambda x: torch.randn(1024, 1024, device=x.device), 5),
    "item": (small, lambda x: x[0, 0].item(), 50),
    "to the host": (large, lambda x: x.to("cpu", copy=True), 5),
    "from the host": (lambda d: (large("cpu"), d), lambda a: a[0].to(a[1], copy=True), 5),
    "foreach of 50": (lambda d: [small(d) for _ in range(50)], lambda xs: torch._foreach_mul(xs, 0.99), 5),
    "MLP AdamW step": (step, lambda run: run(), 10),
    **FAMILIES,
}


def measure(name, device, repeat):
    """(least seconds a call, seconds of the first call)"""
    make, call, n = ROWS[name]
    x = make(device)
    start = time.perf_counter()
    keep = call(x)
    if torch.is_tensor(keep):
        read(keep)
    first = time.perf_counter() - start
    best = float("inf")
    for _ in range(repeat + 1):  # the first round is a warm-up
        start = time.perf_counter()
        for _ in range(n):
            keep = call(x)
        end = time.perf_counter()
        if not isinstance(keep, (int, float)):
            read(keep)
        if not name.startswith("dispatch"):
            end = time.perf_counter()
        best = min(best, (end - start) / n)
    return best, first


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("only", nargs="?", default=".")
    p.add_argument("--json")
    p.add_argument("--repeat", type=int, default=7)
    a = p.parse_args()
    torch.zeros(1, device="tpu")
    info = torch.tpu.plugin_info()
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, plugin {info['platform']} {info['pjrt_major']}.{info['pjrt_minor']}"
    )
    print(f"{'us a call':24s}{'tpu':>10s}{'cpu':>10s}{'tpu/cpu':>9s}{'first, ms':>11s}")
    out = {}
    for name in ROWS:
        if not re.search(a.only, name):
            continue
        tpu, first = measure(name, "tpu", a.repeat)
        cpu, _ = measure(name, "cpu", a.repeat)
        out[name] = {"tpu_us": tpu * 1e6, "cpu_us": cpu * 1e6, "first_ms": first * 1e3}
        print(f"{name:24s}{tpu * 1e6:10.2f}{cpu * 1e6:10.2f}{tpu / cpu:9.2f}{first * 1e3:11.1f}", flush=True)
    if fallbacks := torch.tpu.fallback_counts():
        print("ran on the CPU:", fallbacks)
    if a.json:
        with open(a.json, "w") as f:
            json.dump(out, f, indent=1)


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] in ("traffic", "start", "compiled", "ladder", "rows"):
        sys.exit(__import__(sys.argv[1]).main(sys.argv[2:]))
    main()
