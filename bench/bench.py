"""Times operators on `tpu` with torch's CPU device beside it.

    python bench/bench.py [REGEX] [--json OUT] [--repeat 7]

One line a row: the least time of one call on each device, and their ratio. `dispatch` is until the call returns; everything else
ends with a read of one value, shared by all calls of a round, so that queued work is part of it. `first` is the first call,
with its compile. Compare figures of one run only.
"""

import argparse
import json
import re
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
    main()
