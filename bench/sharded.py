"""Sharded training steps compiled for TPUs that are not here: how memory, time and what the devices send to each other change
with the number of devices, for three layouts of a Llama-style model; and Qwen3-8B on tpu7x. docs/aot.md has the figures.

    python bench/sharded.py scaling > TABLE
    python bench/sharded.py picture TABLE > PICTURE.svg
    python bench/sharded.py qwen3 [--topology tpu7x:4x4x4] [--layers 0,2] [--sequence 4096] [--batch 1]"""

import argparse
import math
import pathlib
import time
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import Shard
from torch.utils.checkpoint import checkpoint

aot = torch.tpu.aot


@dataclass(frozen=True)
class Shape:
    """Sizes of a model. Its layers are alike."""

    layers: int
    width: int
    hidden: int
    heads: int
    kv_heads: int
    head: int
    vocabulary: int
    qk_norm: bool = False
    recompute: bool = False  # each layer's forward pass again in the backward pass


BLOCK = Shape(1, 512, 1024, 4, 4, 128, 0)  # a layer alone
QWEN3_8B = Shape(36, 4096, 12288, 32, 8, 128, 151936, True)


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def rotation(x, head):
    """Cosines and sines for the positions of x [batch, sequence, width]."""
    rate = 1e6 ** (-torch.arange(0, head, 2, dtype=torch.float32, device=x.device) / head)
    angle = torch.outer(torch.arange(x.shape[1], dtype=torch.float32, device=x.device), rate)
    return angle.cos().to(x.dtype), angle.sin().to(x.dtype)


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.n1, self.n2 = nn.RMSNorm(c.width, eps=1e-6), nn.RMSNorm(c.width, eps=1e-6)
        self.q, self.o = nn.Linear(c.width, c.heads * c.head, bias=False), nn.Linear(c.heads * c.head, c.width, bias=False)
        self.k, self.v = (nn.Linear(c.width, c.kv_heads * c.head, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(c.width, c.hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(c.hidden, c.width, bias=False)
        if c.qk_norm:
            self.qn, self.kn = nn.RMSNorm(c.head, eps=1e-6), nn.RMSNorm(c.head, eps=1e-6)

    def forward(self, x, cos, sin, at):
        c, (b, s, _) = self.c, x.shape
        y = self.n1(x)
        q, k, v = at.heads(self.q(y)), at.heads(self.k(y)), at.heads(self.v(y))
        q, k, v = (z.view(b, s, -1, c.head) for z in (q, k, v))
        if c.qk_norm:
            q, k = self.qn(q), self.kn(k)
        q, k, v = (z.transpose(1, 2) for z in (q, k, v))
        y = F.scaled_dot_product_attention(
            rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True, enable_gqa=c.heads != c.kv_heads
        )
        x = at.tokens(x + at.tokens(self.o(at.heads(y.transpose(1, 2).reshape(b, s, -1)))))
        y = self.n2(x)
        return at.tokens(x + at.tokens(self.down(F.silu(at.heads(self.gate(y))) * at.heads(self.up(y)))))


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.tokens, self.norm = nn.Embedding(c.vocabulary, c.width), nn.RMSNorm(c.width, eps=1e-6)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.layers))
        self.head = nn.Linear(c.width, c.vocabulary, bias=False)

    def forward(self, t, at):
        x = at.tokens(self.tokens(t))
        cos, sin = rotation(x, self.c.head)
        for layer in self.layers:
            x = checkpoint(layer, x, cos, sin, at, use_reentrant=False) if self.c.recompute else layer(x, cos, sin, at)
        return at.heads(self.head(self.norm(x)))


# ---- layouts ---------------------------------------------------------------------------------------------------------


class Layout:
    """Where parameters, inputs and what lies between the layers are. The batch is split over `replica` and `data`, parameters over
    `data` and `model`."""

    def __init__(self, replica, data=1, model=1):
        self.mesh = {"replica": replica, "data": data, "model": model}
        self.batch = {"replica": Shard(0), "data": Shard(0)}

    def placements(self, value):
        if value.kind == "argument":
            return self.batch
        return self.parameter(value.name) if value.kind == "parameter" else None

    def parameter(self, name):
        """Of a parameter; its states follow."""

    def tokens(self, x):  # [batch, sequence, width]
        return aot.constrain(x, self.batch)

    def heads(self, x):  # [batch, sequence, what is split over `model`]
        return aot.constrain(x, self.batch | {"model": Shard(2)})


class DataParallel(Layout):
    """Each device has all parameters."""

    def __init__(self, n):
        super().__init__(n)


class FullySharded(Layout):
    """Parameters and optimizer states are split, over at most 256 devices, and gathered where they are used."""

    def __init__(self, n):
        super().__init__(max(1, n // 256), min(n, 256))

    def parameter(self, name):
        return {"data": Shard(0)}


class TensorParallel(Layout):
    """Heads and hidden units are split over `model`, and the parameters, besides, over `data`."""

    def __init__(self, n, model=4):
        super().__init__(max(1, n // model // 64), min(n // model, 64), model)

    def parameter(self, name):
        which = name.split(".")[-2]
        if which in ("q", "k", "v", "gate", "up", "head"):
            return {"model": Shard(0), "data": Shard(1)}
        if which in ("o", "down"):
            return {"model": Shard(1), "data": Shard(0)}
        return {"data": Shard(1)} if which == "tokens" else None


def training_step(shape, layout, batch, sequence):
    """(step, its inputs), with parameters that take no memory."""
    if not shape.vocabulary:
        return block_step(shape, layout, batch, sequence)
    with torch.device("meta"):
        net = Model(shape).to(torch.bfloat16)
        tokens = torch.empty(batch, sequence, dtype=torch.int32)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)

    def step(tokens, targets):
        logits = net(tokens, layout)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten().long())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step, (tokens, tokens)


def block_step(shape, layout, batch, sequence):
    """The same of one layer, which is to give what it is told."""
    with torch.device("meta"):
        net = Layer(shape).to(torch.bfloat16)
        x = torch.empty(batch, sequence, shape.width, dtype=torch.bfloat16)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)

    def step(x, y):
        cos, sin = rotation(x, shape.head)
        loss = (net(layout.tokens(x), cos, sin, layout) - y).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step, (x, x)


def compiled(shape, layout, topology, batch, sequence):
    """The Program, and seconds that capturing and compiling took."""
    step, inputs = training_step(shape, layout, batch, sequence)
    begin = time.perf_counter()
    p = aot.compile(step, inputs, topology=topology, mesh=layout.mesh, placements=layout.placements)
    return p, time.perf_counter() - begin


# ---- reports ---------------------------------------------------------------------------------------------------------

TOPOLOGIES = {4: "tpu7x:2x1x1", 8: "tpu7x:2x2x1", 256: "tpu7x:4x4x8", 1024: "tpu7x:8x8x8", 16384: "tpu7x:16x16x32"}


def row(name, n, p, seconds):
    m, c = p.memory(), p.cost()
    kinds = {}
    for (kind, axes), (b, _, _) in c.collectives.items():
        kinds[kind, axes] = b
    sent = ", ".join(f"{k} over {'+'.join(a)} {b / 1e6:,.1f}" for (k, a), b in sorted(kinds.items(), key=lambda kv: -kv[1]))
    return (
        f"| {name} | {n} | {p.topology.name} | {m.total / 1e9:.2f} | {c.seconds * 1e3:.2f} | {c.collective_seconds * 1e3:.2f} | "
        f"{c.parts.get('link', 0) * 1e3:.2f} | {c.collective_bytes / 1e6:,.1f} | {100 * p.mfu():.1f} | {seconds:.0f} | {sent} |"
    )


HEAD = (
    "| layout | devices | topology | memory, GB | step, ms | links, ms | waited, ms | sent, MB | MFU, % | compile, s | sent, MB, by kind |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|"
)


def scaling(shape, each, sequence, counts):
    print(HEAD, flush=True)
    for n in counts:
        for name, layout in (
            ("data parallel", DataParallel(n)),
            ("fully sharded", FullySharded(n)),
            ("tensor parallel", TensorParallel(n)),
        ):
            batch = each * n
            p, seconds = compiled(shape, layout, TOPOLOGIES[n], batch, sequence)
            print(row(name, n, p, seconds), flush=True)


COLOURS = {"data parallel": "#b3541e", "fully sharded": "#1f6f8b", "tensor parallel": "#4a7c2c"}


def picture(table):
    """An SVG of a table that `scaling` printed: memory, time, and bytes sent, by the number of devices (both logarithmic)."""
    found = {}
    for line in table.splitlines():
        cells = [c.strip() for c in line.split("|")[1:-1]]
        if len(cells) == 11 and cells[0] in COLOURS:
            found.setdefault(cells[0], []).append((int(cells[1]), *(float(cells[i].replace(",", "")) for i in (3, 4, 7))))
    counts = sorted({r[0] for rows in found.values() for r in rows})
    across = lambda n: 40 + 200 * (math.log(n / counts[0]) / math.log(counts[-1] / counts[0]) if len(counts) > 1 else 0.5)  # noqa: E731
    out = ['<svg xmlns="http://www.w3.org/2000/svg" width="900" height="300" font-family="sans-serif" font-size="11">']
    out.append('<rect width="900" height="300" fill="white"/>')
    for k, title in enumerate(("memory of a device, GB", "step, ms", "sent by a device, MB"), 1):
        values = [r[k] for rows in found.values() for r in rows]
        low, high = min(values) / 1.2, max(values) * 1.2
        up = lambda v, low=low, high=high: 240 - 190 * math.log(v / low) / math.log(high / low)  # noqa: E731
        out.append(f'<g transform="translate({(k - 1) * 300},0)"><text x="40" y="30" font-size="13">{title}</text>')
        out.append('<path d="M40 45V240H250" fill="none" stroke="#888"/>')
        for n in counts:
            out.append(f'<text x="{across(n):.1f}" y="256" text-anchor="middle">{n:,}</text>')
        for v in (min(values), max(values)):
            out.append(f'<text x="36" y="{up(v) + 4:.1f}" text-anchor="end">{v:g}</text>')
        for name, rows in found.items():
            points = " ".join(f"{across(r[0]):.1f},{up(r[k]):.1f}" for r in rows)
            out.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[name]}" stroke-width="2"/>')
            for r in rows:
                out.append(
                    f'<circle cx="{across(r[0]):.1f}" cy="{up(r[k]):.1f}" r="3" fill="{COLOURS[name]}"><title>{name}, {r[0]:,} devices: {r[k]:g}</title></circle>'
                )
        out.append("</g>")
    for i, name in enumerate(found):
        out.append(
            f'<rect x="{40 + 150 * i}" y="272" width="12" height="12" fill="{COLOURS[name]}"/><text x="{57 + 150 * i}" y="282">{name}</text>'
        )
    return "\n".join([*out, "</svg>"])


def model_flops(c, tokens, sequence):
    """Operations of a training step, as torchtitan counts: 6 for each parameter but the embedding and token, and all of attention's
    square, whether a causal mask lets a program leave half of it out or not."""
    layer = c.width * (2 * c.heads + 2 * c.kv_heads) * c.head + 3 * c.width * c.hidden
    return tokens * (6 * (c.layers * layer + c.vocabulary * c.width) + 12 * c.layers * c.heads * c.head * sequence)


def qwen3(topology, model, layers, sequence, each, recompute):
    """Qwen3-8B: some layers are compiled, and the rest is taken to be like them. layers: two numbers, or 0 and one: a layer alone,
    and the model with so many."""
    n, peak = aot.topology(topology).device_count, aot.topology(topology).chip.peak("bfloat16")
    found = []
    for k in layers:
        layout = TensorParallel(n, model) if model > 1 else FullySharded(n)
        shape = replace(QWEN3_8B, layers=k or 1, recompute=recompute, vocabulary=QWEN3_8B.vocabulary if k else 0)
        p, seconds = compiled(shape, layout, topology, each * n // model, sequence)
        m, c = p.memory(), p.cost()
        flops = model_flops(shape, each * sequence / model, sequence)  # of one device
        found.append((k, c.seconds, flops, m.total, c.collective_bytes, c.collective_seconds, c.parts.get("link", 0.0)))
        print(
            f"{k or 'one'} layer{'s' if k else ' alone'}, compiled in {seconds:.0f} s: {m}\n  {c}\n  MFU {100 * flops / peak / c.seconds:.1f} %",
            flush=True,
        )
        print("  what is in use on the links:")
        for x in p.collectives()[:12]:
            print("   ", x)
        print("  costliest:")
        for x in p.bottlenecks(30):
            print("   ", x)
        print(flush=True)
    if len(found) < 2:
        return
    (k0, *a), (k1, *b) = found[0], found[-1]
    if k0:  # a straight line
        more, how = [(y - x) / (k1 - k0) for x, y in zip(a, b, strict=True)], f"on a line through {k0} and {k1}"
    else:  # what one layer takes, with its optimizer
        (k0, *a), more, how = found[-1], found[0][1:], f"{k1} and {QWEN3_8B.layers - k1} times one that was compiled alone"
    seconds, flops, memory, sent, links, waited = (x + (QWEN3_8B.layers - k0) * m for x, m in zip(a, more, strict=True))
    print(
        f"{QWEN3_8B.layers} layers, {how}: step {seconds * 1e3:.1f} ms, {flops / 1e12:.1f} TFLOP, MFU "
        f"{100 * flops / peak / seconds:.1f} %, memory {memory / 1e9:.1f} GB, sent {sent / 1e9:.2f} GB, links {links * 1e3:.1f} ms, "
        f"of which waited {waited * 1e3:.1f} ms"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["scaling", "picture", "qwen3"])
    parser.add_argument("file", nargs="?")
    parser.add_argument("--devices", default="4,256,16384")
    parser.add_argument("--topology", default="tpu7x:4x4x4")
    parser.add_argument("--layers", default="0,2")
    parser.add_argument("--sequence", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--model", type=int, default=1)
    parser.add_argument("--recompute", action="store_true")
    a = parser.parse_args()
    torch.set_num_threads(1)
    if a.what == "picture":
        print(picture(pathlib.Path(a.file).read_text()))
    elif a.what == "scaling":
        scaling(BLOCK, a.batch, a.sequence, [int(n) for n in a.devices.split(",")])
    else:
        qwen3(a.topology, a.model, [int(k) for k in a.layers.split(",")], a.sequence, a.batch, a.recompute)
