"""How long a new process takes to its first training step of a small transformer, with an empty folder of compiled programs and
with the one that the process before it left.

    python bench/bench.py start [--json OUT] [--repeat 3] [--check]

Much of the whole is PyTorch's own and the same in both: `import torch`, and what the first optimizer of a process imports.
--check: exit status 1 unless the warm process compiled nothing, and its step was three times as fast.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

CODE = """
import json, os, sys, time
import torch
t_import = time.monotonic()
import torch.nn.functional as F
from torch import nn

class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads, self.n1, self.n2 = heads, nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        b, s, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, s, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        mask = torch.full((s, s), -1e9, device=x.device).triu(1)
        p = (q @ k.transpose(-1, -2) * (d // self.heads) ** -0.5 + mask).softmax(-1)
        x = x + self.out((p @ v).transpose(1, 2).reshape(b, s, d))
        return x + self.down(F.gelu(self.up(self.n2(x))))

torch.manual_seed(0)
net = nn.Sequential(Block(256, 4), Block(256, 4)).to("tpu")
x = torch.randn(4, 64, 256).to("tpu")
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
torch.tpu.synchronize()
t_model = time.monotonic()
loss = net(x).square().mean()
loss.backward()
optimizer.step()
torch.tpu.synchronize()
value = loss.item()
t_step = time.monotonic()
s = torch.tpu.cache_stats()
print(json.dumps([t_import, t_model, t_step, torch.tpu.compile_count(), s["disk_hits"], s["compile_ns"], s["disk_ns"], value]))
"""


def run(folder, mode):
    """Seconds from the start of the process, and counts, of one process."""
    env = {**os.environ, **mode, "TORCH_TPU_CACHE_DIR": folder, "TORCH_TPU_CACHE_SIZE": str(4 << 30)}
    env["PYTHONPATH"] = os.pathsep.join([str(pathlib.Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")])
    begin = time.monotonic()
    done = subprocess.run([sys.executable, "-c", CODE], env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    t_import, t_model, t_step, compiles, hits, compile_ns, disk_ns, value = json.loads(done.stdout)
    return {
        "import_s": t_import - begin,
        "model_s": t_model - begin,
        "step_s": t_step - begin,
        "compiles": compiles,
        "disk_hits": hits,
        "compile_s": compile_ns * 1e-9,
        "disk_s": disk_ns * 1e-9,
        "loss": value,
    }


def main(arguments):
    p = argparse.ArgumentParser(prog="bench.py start", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--json")
    p.add_argument("--repeat", type=int, default=3)
    p.add_argument("--check", action="store_true")
    a = p.parse_args(arguments)
    out, good = {}, True
    print(
        f"{'s from start':20s}{'import':>9s}{'model':>9s}{'1st step':>10s}{'compiled':>10s}{'loaded':>8s}{'compiling':>11s}{'loading':>9s}"
    )
    for name, mode in (("strict", {}), ("fused", {"TORCH_TPU_DEFER_AND_FUSE": "1"})):
        rows = {"cold": [], "warm": []}
        for _ in range(a.repeat):
            with tempfile.TemporaryDirectory(prefix="torch_tpu_start.") as folder:
                rows["cold"].append(run(folder, mode))
                rows["warm"].append(run(folder, mode))
        for kind, runs in rows.items():
            r = out[f"{name} {kind}"] = min(runs, key=lambda r: r["step_s"])
            print(
                f"{name + ', ' + kind:20s}{r['import_s']:9.2f}{r['model_s']:9.2f}{r['step_s']:10.2f}{r['compiles']:10d}"
                f"{r['disk_hits']:8d}{r['compile_s']:11.2f}{r['disk_s']:9.2f}",
                flush=True,
            )
        cold, warm = out[f"{name} cold"], out[f"{name} warm"]
        assert warm["loss"] == cold["loss"], (warm, cold)
        ratio = {
            what: (cold["step_s"] - cold.get(since, 0)) / (warm["step_s"] - warm.get(since, 0))
            for what, since in (("process", ""), ("import", "import_s"), ("step", "model_s"))
        }
        print(
            f"{'':20s}warm is {ratio['process']:.2f}x as fast from the start of the process, {ratio['import']:.2f}x from the end of "
            f"`import torch`, {ratio['step']:.2f}x from the start of the step"
        )
        good &= all(r["compiles"] == 0 for r in rows["warm"]) and ratio["step"] >= 3
    if a.json:
        with open(a.json, "w") as f:
            json.dump(out, f, indent=1)
    return 0 if good or not a.check else 1
