"""The estimate of docs/aot.md beside published step times of language models on TPUs. Compiles one layer of each on the chips that
were measured; nothing is executed, no TPU is needed, libtpu is.

    python bench/published.py [NAME ...]

A step is the layers times one layer's (forward, backward, optimizer; bfloat16), and the head's products at the rate of the layer's
other products. Three estimates: with our attention as it is, which writes its scores; as if it ran at that rate too, which is what
the measured runs' kernel is for; and as if, besides, nothing waited for links, which is what their compiler flags are for. Each
without and with a second forward pass (rematerialization)."""

import pathlib
import sys
import time
from dataclasses import dataclass

import torch
from sharded import FullySharded, Shape, TensorParallel, block_step, rotation
from torch import nn

aot = torch.tpu.aot


@dataclass(frozen=True)
class Measured:
    """A published figure and its configuration."""

    shape: Shape
    topology: str
    each: float  # sequences on a device
    length: int
    seconds: float  # of a step, published; 0: from tflops
    tflops: float  # a device and second, published, counted with all of the attention's square
    model: int = 1  # devices that share each tensor; the rest is fully sharded
    part: int = 1  # only each / part sequences are compiled: scores of all do not fit; times part
    again: str = ""  # what was computed twice, as far as published


def llama(layers, width, hidden, heads, kv_heads, vocabulary):
    return Shape(layers, width, hidden, heads, kv_heads, 128, vocabulary)


PUBLISHED = {
    # AI-Hypercomputer/maxtext, MaxText/configs/v5e/README.md and 16b.sh (global_parameter_scale=16 of base.yml)
    "MaxText 16B, v5e-256": Measured(
        llama(32, 4096, 28672, 64, 64, 32000), "v5e:16x16", 6, 2048, 0, 120e12, again="everything (remat_policy=full)"
    ),
    # MaxText/configs/v5p/README.md and 32b.sh
    "MaxText 32B, v5p-128": Measured(
        llama(32, 8192, 28672, 64, 64, 32000),
        "v5p:4x4x4",
        7,
        2048,
        0,
        328e12,
        model=4,
        again="no products (remat_policy=minimal)",
    ),
    # AI-Hypercomputer/tpu-recipes, training/trillium/Llama3.1-8B-MaxText/v6e-8/README.md
    "Llama 3.1 8B, v6e-8": Measured(
        llama(32, 4096, 14336, 32, 8, 128256), "v6e:2x4", 3, 8192, 3.443, 0, part=3, again="all but the four projections"
    ),
    # tpu-recipes, training/ironwood/README.md (global batch 256 on 64 chips)
    "Llama 3.1 70B, tpu7x-64": Measured(
        llama(80, 8192, 28672, 64, 8, 128256), "tpu7x:4x4x4", 2, 8192, 12.20, 0, part=2, again="not stated there"
    ),
}


def forward_of(shape, layout, batch, sequence):
    from sharded import Layer

    with torch.device("meta"):
        net = Layer(shape).to(torch.bfloat16)
        x = torch.empty(batch, sequence, shape.width, dtype=torch.bfloat16)

    class Forward(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x):
            with torch.no_grad():
                return self.net(layout.tokens(x), *rotation(x, shape.head), layout)

    return Forward(), (x,)


def attention_of(program):
    """Seconds of the instructions that come from the call of attention, in forward and backward."""
    lines = pathlib.Path(sys.modules["sharded"].__file__).read_text().splitlines()
    first = next(i for i, line in enumerate(lines, 1) if "F.scaled_dot_product_attention(" in line)
    return sum(s for where, s in program.by_line().items() if any(where.endswith(f"sharded.py:{first + k}") for k in range(3)))


def compiled(name, m):
    """{"step": (seconds of a layer, of them attention, of them waited for links), "forward": ...}, of a device."""
    n = aot.topology(m.topology).device_count
    layout = TensorParallel(n, m.model) if m.model > 1 else FullySharded(n)
    out = {}
    for what, make in (("step", block_step), ("forward", forward_of)):
        fn, inputs = make(m.shape, layout, round(m.each * n / m.part), m.length)
        begin = time.perf_counter()
        p = aot.compile(fn, inputs, topology=m.topology, mesh=layout.mesh, placements=layout.placements)
        cost = p.cost()
        links = cost.parts.get("link", 0.0)  # parameters and their gradients: the same for any batch
        out[what] = ((cost.seconds - links) * m.part + links, attention_of(p) * m.part, links)
        print(
            f"  {name}: {what} of a layer: {', '.join(f'{x * 1e3:.1f}' for x in out[what])} ms (all, attention, links); "
            f"{p.memory().total / 1e9:.1f} GB; compiled in {time.perf_counter() - begin:.0f} s",
            flush=True,
        )
    return out


def row(name, m, found):
    """A row of the table: published, and three estimates of a step, each without and with a second forward pass."""
    s, peak = m.shape, aot.topology(m.topology).chip.peak("bfloat16")
    tokens = m.each * m.length  # of a device
    projections = s.width * s.head * (2 * s.heads + 2 * s.kv_heads) + 3 * s.width * s.hidden
    square = 4 * m.each * m.length**2 * s.heads * s.head  # operations of one forward pass
    head = 2 * s.vocabulary * s.width * tokens
    flops = 3 * (s.layers * (2 * projections * tokens + square) + head)
    measured = m.seconds or flops / m.tflops
    estimates = []
    for hidden in (None, False, True):  # attention as it is; at the rate of the rest; the same, and no wait for links
        passes = []
        for (seconds, attention, links), times in ((found["step"], 3), (found["forward"], 1)):
            rest = seconds - attention - (links if hidden else 0)
            rate = rest / (2 * times * projections * tokens)
            passes.append((seconds if hidden is None else rest + rate * times * square, rate))
        (step, rate), (forward, _) = passes
        one = s.layers * step + 3 * head * rate
        estimates += [one, one + s.layers * forward]
    cells = "".join(f" {e:.2f} ({100 * (e / measured - 1):+.0f} %) |" for e in estimates)
    return f"| {name} | {measured:.2f} ({100 * flops / peak / measured:.0f} %) | {m.again} |{cells}"


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name, m in PUBLISHED.items():
        if not sys.argv[1:] or any(a in name for a in sys.argv[1:]):
            try:
                print(row(name, m, compiled(name, m)), flush=True)
            except (RuntimeError, torch.OutOfMemoryError) as error:
                print(f"| {name} | {str(error)[:300]!r}", flush=True)
