"""Whole models compiled: torch.compile(backend="tpu") beside eager `tpu`, torch's CPU device eager and with inductor, and the same
models written in plain jax.numpy under jax.jit on JAX's CPU backend.

    python bench/bench.py compiled [REGEX] [--peers tpu,eager,cpu,inductor,jax] [--jax PYTHON] [--repeat 7] [--json OUT]

Each peer runs in a process of its own, one after the other, twice (`--rounds`), and the least time counts. All start from the same
weights and inputs, and what they compute (the loss after two steps, a sum of the outputs) must agree to 1e-3, else the row says so.
PYTHON is one that has jax (its figures are left out when there is none). `first` is the first call: trace and compile.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import numpy as np

HERE = pathlib.Path(__file__).parent
ROWS = ["small call", "block2 SGD step", "GPT AdamW step", "ResNet-18 inference", "encoder inference", "decode a token"]
VOCAB, LAYERS, WIDTH, HEADS, LENGTH, BATCH = 1000, 4, 256, 4, 128, 8
PROMPT, NEW = 16, 64


def make_data(folder):
    """Weights and inputs of all rows, by name of the parameter in the torch modules, as .npz files."""
    import torch
    from compiled_torch import modules

    torch.manual_seed(0)
    for name, net in modules().items():
        np.savez(folder / f"{name}.npz", **{k: v.numpy() for k, v in net.state_dict().items()})
    r = np.random.default_rng(0)
    np.savez(
        folder / "inputs.npz",
        small=r.standard_normal((64, 64), dtype=np.float32),
        block=r.standard_normal((4, 64, 256), dtype=np.float32),
        tokens=r.integers(0, VOCAB, (BATCH, LENGTH + 1)).astype(np.int32),
        image=r.standard_normal((8, 3, 224, 224), dtype=np.float32),
        words=r.standard_normal((4, 128, 768), dtype=np.float32),
    )


def clock(call, wait, repeat, inner=1):
    """(least seconds a call, seconds of the first)"""
    start = time.perf_counter()
    wait(call())
    first = time.perf_counter() - start
    wait(call())
    best = float("inf")
    for _ in range(repeat):
        start = time.perf_counter()
        for _ in range(inner):
            out = call()
        wait(out)
        best = min(best, (time.perf_counter() - start) / inner)
    return best, first


def main(argv=None):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("only", nargs="?", default=".")
    p.add_argument("--peers", default="tpu,eager,cpu,inductor,jax")
    p.add_argument("--jax", default=sys.executable, help="a Python that has jax")
    p.add_argument("--repeat", type=int, default=7)
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--json")
    a = p.parse_args(argv)
    rows = [r for r in ROWS if re.search(a.only, r)]
    peers = a.peers.split(",")
    if "jax" in peers and subprocess.run([a.jax, "-c", "import jax"], capture_output=True).returncode:
        print("no jax in that Python: left out (--jax PYTHON)")
        peers.remove("jax")
    out = {r: {} for r in rows}
    with tempfile.TemporaryDirectory() as d:
        make_data(pathlib.Path(d))
        for turn in range(a.rounds):
            for peer in peers:
                python, script = (a.jax, "compiled_jax.py") if peer == "jax" else (sys.executable, "compiled_torch.py")
                env = {
                    **os.environ,
                    "TORCH_TPU_CACHE_DIR": f"{d}/cache-{peer}-{turn}",
                    "TORCHINDUCTOR_CACHE_DIR": f"{d}/inductor-{turn}",
                }
                command = [python, str(HERE / script), peer, d, str(a.repeat), *rows]
                done = subprocess.run(command, env=env, capture_output=True, text=True)
                if done.returncode:
                    print(f"{peer} ended with {done.returncode}:\n{done.stderr[-2000:]}")
                for line in done.stdout.splitlines():
                    if line.startswith("{"):
                        got = json.loads(line)
                        old = out[got["row"]].get(peer, {"s": float("inf")})
                        out[got["row"]][peer] = {**got, "s": min(got["s"], old["s"])}
    print(f"{'ms a call':22s}" + "".join(f"{p:>12s}" for p in peers) + f"{'first s:':>12s}" + "".join(f"{p:>10s}" for p in peers))
    for row, got in out.items():
        line = f"{row:22s}" + "".join(f"{got[p]['s'] * 1e3:12.3f}" if p in got else f"{'-':>12s}" for p in peers)
        line += " " * 12 + "".join(f"{got[p]['first']:10.2f}" if p in got else f"{'-':>10s}" for p in peers)
        if "tpu" in got:
            line += f"   (tpu: {got['tpu']['xla']:.2f} of it XLA's)"
        values = [g["value"] for g in got.values()]
        if values and max(values) - min(values) > 1e-3 * max(abs(v) for v in values):
            line += f"   the values differ: {values}"
        print(line)
    for row, got in out.items():
        if "jax" in got and "tpu" in got:
            print(f"{row:22s} compiled over JAX: {got['tpu']['s'] / got['jax']['s']:.2f} of its time")
    if a.json:
        with open(a.json, "w") as f:
            json.dump(out, f, indent=1)


if __name__ == "__main__":
    main()
