"""Bytes that a chain of 12 pointwise operators on 64 MiB moves in a step, mode by mode, beside the least that is possible:
to read the input once and to write the result once. The bytes are the plugin's own analysis of the programs that ran.

    python bench/bench.py traffic [--json OUT] [--repeat 7] [--check]

--check: exit status 1 unless DeferAndFuse moves at most 1.1 times the least, and Strict more than 5 times.
"""

import argparse
import json
import time

import torch

N = 16 << 20
LEAST = 2 * 4 * N


def chain(x):
    for _ in range(3):
        x = (x * 1.01 + 0.5).tanh().abs()
    return x


def measure(device, repeat):
    """(seconds a step, bytes a step or None, programs a step)"""
    x = torch.linspace(-1, 1, N).to(device)
    wait = torch.tpu.synchronize if device == "tpu" else lambda: None

    def step():
        z = chain(x)
        wait()
        return z

    for _ in range(3):
        want = step()
    best = float("inf")
    for _ in range(repeat):
        start = time.perf_counter()
        step()
        best = min(best, time.perf_counter() - start)
    if device == "cpu":
        return best, None, None
    assert torch.allclose(want[:1000].cpu(), chain(x[:1000].cpu())), "the chain gives wrong values"
    with torch.tpu.explain(quiet=True, traffic=True) as e:
        step()
    assert not e.compiles
    return best, e.traffic, len(e.programs)


def main(arguments):
    p = argparse.ArgumentParser(
        prog="bench.py traffic", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--json")
    p.add_argument("--repeat", type=int, default=7)
    p.add_argument("--check", action="store_true")
    a = p.parse_args(arguments)
    out = {"least_bytes": LEAST}
    print(f"{'':14s}{'programs':>9s}{'MB a step':>11s}{'of least':>10s}{'ms':>9s}{'GB/s':>8s}")
    print(f"{'least':14s}{1:9d}{LEAST / 1e6:11.1f}{1:10.2f}")
    for mode in ("STRICT", "FUSED"):
        with torch.tpu.set_eager_mode(torch.tpu.EagerMode[mode]):
            seconds, moved, programs = measure("tpu", a.repeat)
        out[mode.lower()] = {"seconds": seconds, "bytes": moved, "programs": programs}
        said = "unknown" if moved is None else f"{moved / 1e6:.1f}"
        ratio, rate = (0.0, 0.0) if moved is None else (moved / LEAST, moved / seconds / 1e9)
        print(f"{mode.lower():14s}{programs:9d}{said:>11s}{ratio:10.2f}{seconds * 1e3:9.2f}{rate:8.1f}", flush=True)
    seconds, _, _ = measure("cpu", a.repeat)
    out["cpu"] = {"seconds": seconds}
    print(f"{'torch cpu':14s}{'':39s}{seconds * 1e3:.2f}")
    if a.json:
        with open(a.json, "w") as f:
            json.dump(out, f, indent=1)
    if a.check:
        fused, strict = out["fused"]["bytes"] or 0, out["strict"]["bytes"] or 0
        return 0 if 0 < fused <= 1.1 * LEAST and strict > 5 * LEAST else 1
    return 0
