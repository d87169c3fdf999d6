"""The tuning ladder: one training step of a Llama-3-style model on TPUs that are not here, by the TPU compiler's own figures.

    python bench/bench.py ladder [--topologies v5e:2x2,v6e:2x2,tpu7x:2x2x1] [--jax PYTHON] [--launch-us 5] [--layers 4] [--json OUT]

Four ways to run the same step (forward, loss, backward, AdamW; bfloat16; one device): Strict, op by op; DeferAndFuse; one compiled
program (what torch.compile makes of a whole step); and the same model in plain jax.numpy under jax.jit, lowered by a Python
that has jax and compiled here. Time, bytes and memory are estimates: the model of docs/aot.md over what libtpu's compiler
made of each program, plus a stated cost for each launch. Nothing is executed; no TPU is needed, libtpu is.

MFU counts the operations of the model, not of the program: 6 for each parameter but the embedding and token, and 12 * layers * width *
length for each token of attention, whether a causal mask lets a program leave half of that out or not (as torchtitan counts).
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
VOCAB, WIDTH, HEADS, KV_HEADS, HIDDEN, LENGTH, BATCH, THETA = 32768, 4096, 32, 8, 14336, 4096, 1, 500000.0


def watched_step(a, topology, fused):
    """Sums over the programs that one step of eager mode runs, after two steps to warm up."""
    code = f"""
import json, sys
sys.path.insert(0, {str(HERE)!r})
import torch
from ladder_torch import make_step
from torch_tpu import _core
from torch_tpu.aot import _watch

step = make_step({a.layers}, "tpu")
w = _watch._watch
def runs():
    torch.tpu.synchronize()
    w._drain()
    return [p.runs for p in w.programs]
step(); step()
before = runs()
step()
after = runs()
before += [0] * (len(after) - len(before))
ran = [(b - a, p) for a, b, p in zip(before, after, w.programs, strict=True) if b > a]
print("FIGURES", json.dumps(dict(
    launches=sum(n for n, _ in ran), seconds=sum(n * (p.seconds or 0) for n, p in ran), bytes=sum(n * p.bytes for n, p in ran),
    unknown=[p.op + ": " + p.error for _, p in ran if p.seconds is None],
    peak=_core.memory_stats(0).allocated_peak + max(p.temporaries for _, p in ran))))
"""
    env = {
        **os.environ,
        "TORCH_TPU_TOPOLOGY": topology,
        "TORCH_TPU_AOT_DRY": "1",
        "TORCH_TPU_DEFER_AND_FUSE": str(int(fused)),
        "TORCH_TPU_AOT_REPORT": os.devnull,
    }
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    for line in done.stdout.splitlines():
        if line.startswith("FIGURES"):
            return json.loads(line[7:])
    raise RuntimeError(done.stderr[-3000:])


def figures(program):
    cost, memory = program.cost(), program.memory()
    peak = memory.arguments + memory.outputs - memory.aliased + memory.temporaries
    return {"launches": 1, "seconds": cost.seconds, "bytes": cost.bytes, "peak": peak, "flops": cost.flops}


def compiled_step(a, topology):
    import torch
    from ladder_torch import make_step

    step = make_step(a.layers, "meta")
    return figures(torch.tpu.aot.compile(step, (), topology=topology))


def model_flops(layers):
    """Of one training step; see above."""
    head = WIDTH // HEADS
    layer = 2 * WIDTH * WIDTH + 2 * WIDTH * KV_HEADS * head + 3 * WIDTH * HIDDEN + 2 * WIDTH
    parameters = layers * layer + VOCAB * WIDTH + WIDTH
    return BATCH * LENGTH * (6 * parameters + 12 * layers * WIDTH * LENGTH)


def main(argv=None):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--topologies", default="v5e:2x2,v6e:2x2,tpu7x:2x2x1")
    p.add_argument("--jax", default=sys.executable, help="a Python that has jax")
    p.add_argument("--launch-us", type=float, default=5.0)
    p.add_argument("--layers", type=int, default=4)
    p.add_argument("--json")
    a = p.parse_args(argv)
    import torch

    with tempfile.TemporaryDirectory() as d:
        text = pathlib.Path(d) / "step.mlir"
        done = subprocess.run([a.jax, str(HERE / "ladder_jax.py"), str(a.layers), str(text)], capture_output=True, text=True)
        jax_text = text.read_text() if done.returncode == 0 else None
        if jax_text is None:
            print("no jax in that Python: left out (--jax PYTHON)\n", done.stderr[-500:])
    out = {}
    print(f"{'':34s}{'step, ms':>10s}{'launches':>10s}{'GB moved':>10s}{'memory, GB':>12s}{'MFU, %':>8s}{'over Strict':>13s}")
    for name in a.topologies.split(","):
        topology = torch.tpu.aot.topology(name)
        rows = {
            "Strict": watched_step(a, name, False),
            "DeferAndFuse": watched_step(a, name, True),
            "compiled": compiled_step(a, name),
        }
        if jax_text is not None:
            rows["JAX"] = figures(torch.tpu.aot.compile_text(jax_text, name))
        flops = model_flops(a.layers)
        for r in rows.values():
            r["step"] = r["seconds"] + r["launches"] * a.launch_us * 1e-6
            r["mfu"] = flops / topology.chip.peak("bfloat16") / r["step"]
        for way, r in rows.items():
            print(
                f"{name:14s}{way:20s}{r['step'] * 1e3:10.1f}{r['launches']:10d}{r['bytes'] / 1e9:10.1f}{r['peak'] / 1e9:12.1f}"
                f"{r['mfu'] * 100:8.1f}{rows['Strict']['step'] / r['step']:12.2f}x",
                flush=True,
            )
            if r.get("unknown"):
                print("   without an estimate:", "; ".join(r["unknown"]))
        out[name] = rows
    if a.json:
        with open(a.json, "w") as f:
            json.dump(out, f, indent=1)


if __name__ == "__main__":
    main()
