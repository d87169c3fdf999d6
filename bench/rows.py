"""Operators compiled for a TPU that is not here, ours beside JAX's, by the TPU compiler's own figures: docs/rows.md.

    python bench/bench.py rows [REGEX] [--topology v5e:2x2] [--jax PYTHON] [--write] [--slow] [--json OUT]

One line a row: the estimated time, the temporaries and the bytes accessed of the call of PyTorch, as torch.tpu.aot compiles it, and of its
equivalent in jax.numpy, jax.lax or jax.nn (bench/rows_jax.py), lowered by a Python that has jax and compiled here by the same
compiler, with inputs and results of the same dtypes and sizes. --write puts the table into docs/rows.md; --slow prints the
costliest instructions of rows that are more than 10 % behind. Nothing is executed; no TPU is needed, libtpu is.
"""

import argparse
import json
import math
import pathlib
import re
import subprocess
import sys
import warnings

import torch
import torch.nn.functional as F

HERE = pathlib.Path(__file__).parent
DOC = HERE.parent / "docs" / "rows.md"
NAMES = {"f32": torch.float32, "bf16": torch.bfloat16, "i64": torch.int64, "i32": torch.int32, "i8": torch.int8, "b": torch.bool,
         "c64": torch.complex64, "u32": torch.uint32}  # fmt: skip
LIMIT = 1.1


def tensor(spec):
    """A tensor without values: "f32[8, 64]"."""
    dtype, dims = re.fullmatch(r"(\w+)\[([\d, ]*)\]", spec).groups()
    return torch.empty([int(d) for d in dims.split(",") if d], dtype=NAMES[dtype], device="meta")


def vjp(f):
    """The gradients of f with respect to its inputs that have one, for a gradient of its result."""

    def run(dy, *inputs):
        inputs = [x.detach().requires_grad_() if x.is_floating_point() else x for x in inputs]
        return torch.autograd.grad(f(*inputs), [x for x in inputs if x.requires_grad], dy)

    return run


def adamw(*t):
    n = len(t) // 5
    p, g, m, v, steps = (list(t[k * n : k * n + n]) for k in range(5))
    torch._fused_adamw_(p, g, m, v, [], steps, lr=1e-3, beta1=0.9, beta2=0.999, weight_decay=1e-2, eps=1e-8, amsgrad=False, maximize=False)  # fmt: skip


def counts(x):
    """The runs of equal values in sorted rows: what unique() is before its size is known."""
    x = x.sort(-1)[0]
    return x, (x[:, 1:] != x[:, :-1]).cumsum(-1)


IMAGE = "bf16[32, 64, 56, 56]"
BIG = "f32[4096, 4096]"
ROW = "bf16[8192, 4096]"
P8 = ["f32[1048576]"] * 8

bn = lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True)  # noqa: E731
ln = lambda x, w, b: F.layer_norm(x, (4096,), w, b)  # noqa: E731
rms = lambda x, w: F.rms_norm(x, (4096,), w)  # noqa: E731
gn = lambda x, w, b: F.group_norm(x, 8, w, b)  # noqa: E731
conv = lambda **k: lambda x, w: F.conv2d(x, w, **k)  # noqa: E731
BN = [IMAGE, "bf16[64]", "bf16[64]"]
LN = [ROW, "bf16[4096]", "bf16[4096]"]

# name: (the call, its inputs)
ROWS = {
    "add": (torch.add, [BIG, BIG]),
    "add of a row": (torch.add, [BIG, "f32[4096]"]),
    "gelu": (F.gelu, [ROW]),
    "gelu backward": (vjp(F.gelu), [ROW, ROW]),
    "silu times": (lambda x, y: F.silu(x) * y, [ROW, ROW]),
    "lgamma": (torch.lgamma, ["f32[2048, 2048]"]),
    "erfinv": (torch.erfinv, ["f32[2048, 2048]"]),
    "pow": (torch.pow, [BIG, BIG]),
    "remainder of int32": (torch.remainder, ["i32[4096, 4096]", "i32[4096, 4096]"]),
    "add of int64": (torch.add, ["i64[2048, 2048]", "i64[2048, 2048]"]),
    "to bfloat16": (lambda x: x.to(torch.bfloat16), [BIG]),
    "where": (torch.where, ["b[4096, 4096]", BIG, BIG]),
    "masked_fill": (lambda x, m: x.masked_fill(m, -1e9), [BIG, "b[4096, 4096]"]),
    "transpose": (lambda x: x.t().contiguous(), [BIG]),
    "sum": (torch.sum, [BIG]),
    "sum of rows": (lambda x: x.sum(1), [BIG]),
    "sum of columns": (lambda x: x.sum(0), [BIG]),
    "mean of bfloat16": (lambda x: x.mean(-1), [ROW]),
    "var": (lambda x: x.var(-1), [BIG]),
    "amax": (lambda x: x.amax(0), [BIG]),
    "argmax": (lambda x: x.argmax(-1), [BIG]),
    "argmax of all": (lambda x: x.argmax(), [BIG]),
    "max with places": (lambda x: x.max(0), [BIG]),
    "logsumexp": (lambda x: x.logsumexp(-1), [BIG]),
    "norm": (lambda x: torch.linalg.vector_norm(x, dim=-1), [BIG]),
    "mm": (torch.mm, ["f32[2048, 2048]", "f32[2048, 2048]"]),
    "mm bfloat16": (torch.mm, ["bf16[4096, 4096]", "bf16[4096, 4096]"]),
    "mm transposed": (lambda a, b: a.t() @ b.t(), ["bf16[4096, 4096]", "bf16[4096, 4096]"]),
    "mm int8": (torch._int_mm, ["i8[4096, 4096]", "i8[4096, 4096]"]),
    "bmm": (torch.bmm, ["bf16[64, 512, 512]", "bf16[64, 512, 512]"]),
    "matmul transposed batch": (lambda a, b: a.transpose(1, 2) @ b.transpose(1, 2).mT, ["bf16[8, 1024, 16, 64]"] * 2),
    "mv": (torch.mv, [BIG, "f32[4096]"]),
    "linear backward": (vjp(F.linear), ["bf16[8192, 2048]", "bf16[8192, 1024]", "bf16[2048, 1024]", "bf16[2048]"]),
    "conv2d": (conv(padding=1), [IMAGE, "bf16[64, 64, 3, 3]"]),
    "conv2d float32": (conv(padding=1), ["f32[16, 64, 56, 56]", "f32[64, 64, 3, 3]"]),
    "conv2d backward": (vjp(conv(padding=1)), [IMAGE, IMAGE, "bf16[64, 64, 3, 3]"]),
    "conv2d of stride 2 backward": (
        vjp(conv(stride=2, padding=3)),
        ["bf16[32, 64, 112, 112]", "bf16[32, 3, 224, 224]", "bf16[64, 3, 7, 7]"],
    ),
    "conv2d of 32 groups": (conv(padding=1, groups=32), ["bf16[32, 128, 56, 56]", "bf16[128, 4, 3, 3]"]),
    "conv2d of 32 groups backward": (
        vjp(conv(padding=1, groups=32)),
        ["bf16[32, 128, 56, 56]", "bf16[32, 128, 56, 56]", "bf16[128, 4, 3, 3]"],
    ),
    "conv2d of channels": (conv(padding=1, groups=64), [IMAGE, "bf16[64, 1, 3, 3]"]),
    "conv2d of channels backward": (vjp(conv(padding=1, groups=64)), [IMAGE, IMAGE, "bf16[64, 1, 3, 3]"]),
    "conv2d of dilation 2 backward": (vjp(conv(padding=2, dilation=2)), [IMAGE, IMAGE, "bf16[64, 64, 3, 3]"]),
    "conv_transpose2d": (lambda x, w: F.conv_transpose2d(x, w, stride=2), ["bf16[32, 64, 28, 28]", "bf16[64, 64, 2, 2]"]),
    "conv_transpose2d backward": (
        vjp(lambda x, w: F.conv_transpose2d(x, w, stride=2)),
        [IMAGE, "bf16[32, 64, 28, 28]", "bf16[64, 64, 2, 2]"],
    ),
    "conv1d": (lambda x, w: F.conv1d(x, w, padding=2), ["bf16[32, 128, 4096]", "bf16[128, 128, 5]"]),
    "conv3d": (lambda x, w: F.conv3d(x, w, padding=1), ["bf16[4, 32, 16, 56, 56]", "bf16[32, 32, 3, 3, 3]"]),
    "max_pool2d": (lambda x: F.max_pool2d(x, 3, 2, 1), [IMAGE]),
    "max_pool2d with places": (lambda x: F.max_pool2d(x, 2, return_indices=True), [IMAGE]),
    "max_pool2d backward": (vjp(lambda x: F.max_pool2d(x, 3, 2, 1)), ["bf16[32, 64, 28, 28]", IMAGE]),
    "max_pool2d of 2 backward": (vjp(lambda x: F.max_pool2d(x, 2)), ["bf16[32, 64, 28, 28]", IMAGE]),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 3, 2, 1), [IMAGE]),
    "avg_pool2d backward": (vjp(lambda x: F.avg_pool2d(x, 3, 2, 1)), ["bf16[32, 64, 28, 28]", IMAGE]),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, 7), [IMAGE]),
    "adaptive_avg_pool2d backward": (vjp(lambda x: F.adaptive_avg_pool2d(x, 7)), ["bf16[32, 64, 7, 7]", IMAGE]),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, 7), [IMAGE]),
    "layer_norm": (ln, LN),
    "layer_norm backward": (vjp(ln), [ROW, *LN]),
    "batch_norm": (bn, BN),
    "batch_norm backward": (vjp(bn), [IMAGE, *BN]),
    "group_norm": (gn, BN),
    "group_norm backward": (vjp(gn), [IMAGE, *BN]),
    "rms_norm": (rms, LN[:2]),
    "rms_norm backward": (vjp(rms), [ROW, *LN[:2]]),
    "embedding": (F.embedding, ["i64[8, 1024]", "bf16[50304, 1024]"]),
    "embedding backward": (vjp(lambda w, i: F.embedding(i, w)), ["bf16[8, 1024, 1024]", "bf16[50304, 1024]", "i64[8, 1024]"]),
    "index_select": (lambda x, i: x.index_select(0, i), ["f32[65536, 256]", "i64[16384]"]),
    "index of columns": (lambda x, i: x[:, i], ["f32[1024, 4096]", "i64[4096]"]),
    "gather": (lambda x, i: x.gather(1, i), ["f32[1024, 4096]", "i64[1024, 4096]"]),
    "scatter_add": (lambda x, i, y: x.scatter_add(1, i, y), ["f32[1024, 1024]", "i64[1024, 1024]", "f32[1024, 1024]"]),
    "scatter_add of rows": (lambda x, i, y: x.index_add(0, i, y), ["f32[65536, 256]", "i64[16384]", "f32[16384, 256]"]),
    "index_put accumulate": (
        lambda x, i, y: x.index_put((i,), y, accumulate=True),
        ["f32[65536, 256]", "i64[16384]", "f32[16384, 256]"],
    ),
    "index_put": (lambda x, i, y: x.index_put((i,), y), ["f32[65536, 256]", "i64[16384]", "f32[16384, 256]"]),
    "sort": (lambda x: x.sort(-1), ["f32[1024, 1024]"]),
    "sort of 1 M": (lambda x: x.sort()[0], ["f32[1048576]"]),
    "argsort": (lambda x: x.argsort(-1), ["f32[1024, 1024]"]),
    "topk": (lambda x: x.topk(16), ["f32[1024, 8192]"]),
    "topk of a vocabulary": (lambda x: x.topk(50), ["f32[32, 50304]"]),
    "topk of experts": (lambda x: x.topk(8), ["f32[16384, 128]"]),
    "topk of columns": (lambda x: x.topk(16, 0), ["f32[8192, 1024]"]),
    "median": (lambda x: x.median(-1), ["f32[1024, 1024]"]),
    "kthvalue": (lambda x: x.kthvalue(3), ["f32[1024, 1024]"]),
    "runs of equals": (counts, ["f32[1024, 1024]"]),
    "cumsum": (lambda x: x.cumsum(-1), [BIG]),
    "cumsum of columns": (lambda x: x.cumsum(0), [BIG]),
    "cumsum of 4 M": (lambda x: x.cumsum(0), ["f32[4194304]"]),
    "cumprod": (lambda x: x.cumprod(-1), [BIG]),
    "logcumsumexp": (lambda x: x.logcumsumexp(-1), ["f32[2048, 2048]"]),
    "cummax": (lambda x: x.cummax(-1), ["f32[2048, 2048]"]),
    "softmax": (lambda x: x.softmax(-1), [ROW]),
    "softmax backward": (vjp(lambda x: x.softmax(-1)), [ROW, ROW]),
    "log_softmax": (lambda x: x.log_softmax(-1), [BIG]),
    "log_softmax backward": (vjp(lambda x: x.log_softmax(-1)), [BIG, BIG]),
    "cross_entropy": (F.cross_entropy, ["f32[2048, 32768]", "i64[2048]"]),
    "cross_entropy backward": (vjp(F.cross_entropy), ["f32[]", "f32[2048, 32768]", "i64[2048]"]),
    "one_hot": (lambda i: F.one_hot(i, 1024), ["i64[4096]"]),
    "histc": (lambda x: torch.histc(x, 256, 0, 1), ["f32[1048576]"]),
    "searchsorted": (torch.searchsorted, ["f32[65536]", "f32[1048576]"]),
    "bucketize": (lambda x, b: torch.bucketize(x, b), ["f32[1048576]", "f32[256]"]),
    "roll": (lambda x: x.roll(5, -1), [BIG]),
    "roll of two dims": (lambda x: x.roll((5, 7), (0, 1)), [BIG]),
    "flip": (lambda x: x.flip(-1), [BIG]),
    "cat": (lambda x, y: torch.cat([x, y], -1), [BIG, BIG]),
    "stack": (lambda x, y: torch.stack([x, y], -1), ["f32[2048, 2048]"] * 2),
    "pad": (lambda x: F.pad(x, (1, 1, 1, 1)), [IMAGE]),
    "pad reflect": (lambda x: F.pad(x, (1, 1, 1, 1), "reflect"), [IMAGE]),
    "tril": (torch.tril, [BIG]),
    "repeat_interleave": (lambda x: x.repeat_interleave(4, 1), ["bf16[8, 8, 1024, 128]"]),
    "unfold": (lambda x: F.unfold(x, 3, padding=1), ["f32[8, 64, 56, 56]"]),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), ["bf16[32, 256, 56, 56]"]),
    "upsample nearest": (lambda x: F.interpolate(x, scale_factor=2), [IMAGE]),
    "upsample nearest backward": (vjp(lambda x: F.interpolate(x, scale_factor=2)), ["bf16[32, 64, 112, 112]", IMAGE]),
    "upsample bilinear": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), [IMAGE]),
    "upsample bilinear backward": (
        vjp(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear")),
        ["bf16[32, 64, 112, 112]", IMAGE],
    ),
    "grid_sample": (lambda x, g: F.grid_sample(x, g, align_corners=False), ["f32[4, 16, 128, 128]", "f32[4, 128, 128, 2]"]),
    "rfft": (torch.fft.rfft, ["f32[1024, 4096]"]),
    "fft2": (torch.fft.fft2, ["c64[16, 256, 256]"]),
    "cholesky": (lambda a: torch.linalg.cholesky_ex(a)[0], ["f32[16, 256, 256]"]),
    "qr": (torch.linalg.qr, ["f32[16, 256, 256]"]),
    "triangular_solve": (
        lambda a, b: torch.linalg.solve_triangular(a, b, upper=False),
        ["f32[16, 256, 256]", "f32[16, 256, 256]"],
    ),
    "eigh": (torch.linalg.eigh, ["f32[4, 128, 128]"]),
    "solve": (lambda a, b: torch.linalg.solve_ex(a, b)[0], ["f32[16, 256, 256]", "f32[16, 256, 16]"]),
    "rand": (lambda: torch.rand(4096, 4096, device="tpu"), []),
    "randn": (lambda: torch.randn(4096, 4096, device="tpu"), []),
    "randint": (lambda: torch.randint(0, 1000, (4096, 4096), device="tpu", dtype=torch.int32), []),
    "dropout": (lambda x: F.dropout(x, 0.1), [ROW]),
    "multinomial": (lambda p: torch.multinomial(p, 8, replacement=True), ["f32[256, 4096]"]),
    "bernoulli": (torch.bernoulli, [BIG]),
    "exponential": (lambda: torch.empty(4096, 4096, device="tpu").exponential_(), []),
    "randperm": (lambda: torch.randperm(1 << 20, device="tpu"), []),
    "AdamW": (adamw, P8 * 4 + ["f32[]"] * 8),
    "clip_grad_norm": (lambda *g: torch._foreach_mul(g, 1 / torch.stack(torch._foreach_norm(g)).norm()), P8),
}

# Why a row is more than 10 % behind.
REASONS = {
    "embedding backward": "gradients of one row are summed in float32 and rounded once, as on PyTorch's GPU; JAX's rounds each sum to bfloat16. "
    "A table of float32 for all rows, which it was before, took 2,460 us and 206 MB.",
    "median": "not comparable: JAX's is a full sort, which the model takes for nothing (the compiler gives no cycles and the operands are on the chip). Ours "
    "finds the place bit by bit: 32 counts, each with cycles.",
    "kthvalue": "as median.",
    "logcumsumexp": "JAX's is a window (112 us). Ours is a loop over blocks: libtpu 0.0.52 aborts on a window whose body is more than one operation when it "
    "fuses it with a conversion, as of bfloat16.",
    "unfold": "JAX's is a convolution with filters of ones and zeros, in which one infinity makes all of its neighbours NaN. Ours copies: 9 slices of "
    "joined rows (before: 1,158 us and 248 MB).",
    "upsample bilinear": "JAX's is a product of all rows and columns with mostly zero weights, in which one infinity makes its whole row and column NaN. Ours "
    "reads two elements for each, as PyTorch does. In phases (interior padding, or repeated by windows) it is 1,900 to 2,800 us.",
    "solve": "not comparable: JAX's is XLA's LuDecomposition, whose kernels for blocks the compiler gives no cycles, so that the model takes only their "
    "bytes; ours is a loop over 256 columns. Only a TPU's compiler has that call, and `aot run` executes the same program on a CPU.",
    "qr": "XLA's own steps in both (kernels for blocks, of unknown time).",
    "rand": "Philox multiplies 32 by 32 bits to 64, twice in each of its 10 rounds, where JAX's threefry has 20 rounds of additions and rotations. PyTorch's "
    "generator state is a seed and an offset of Philox.",
    "dropout": "as rand.",
    "bernoulli": "as rand.",
    "exponential": "as rand.",
    "multinomial": "4 MB: the running sums of the weights, which are searched. JAX draws one number for each weight and sample instead, and takes 3 times as long.",
}  # fmt: skip
UNTIMED = {"sort", "reduce-window", "select-and-scatter"}


def untimed(program):
    """What the model takes for nothing, or too little: instructions without the compiler's cycles on operands that are on the
    chip, kernels of which it knows the bytes alone, and loops that count once."""
    module, out, seen = program.module(), set(), set()

    def visit(comp):
        if id(comp) in seen:
            return
        seen.add(id(comp))
        for i in comp.instructions:
            if i.opcode in UNTIMED and i.cycles is None:
                out.add(i.opcode)
            if i.opcode in ("while", "conditional", "call"):
                for c in i.calls:
                    visit(module.computations[c])

    visit(module.entry)
    for note in program.cost().notes:
        if call := re.match(r"custom call (?!X64|GatherScatterIndices)(\w+)", note):
            out.add(call[1])
        if note.startswith("loop"):
            out.add("loop")
    return sorted(out)


def figures(program):
    cost, m = program.cost(), program.memory()
    return {
        "seconds": cost.seconds,
        "temporaries": m.temporaries,
        "bytes": cost.bytes,
        "memory": m.total - m.code,
        "untimed": untimed(program),
    }


def jax_texts(python, names):
    asked = json.dumps({n: ROWS[n][1] for n in names})
    done = subprocess.run([python, str(HERE / "rows_jax.py")], input=asked, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{python} could not lower the rows (--jax: a Python that has jax):\n{done.stderr[-3000:]}")
    return json.loads(done.stdout)


def types(text):
    """Elements and dtypes of a program's results; in memory ours may have other dims, of which PyTorch's tensor is a view."""
    signature = re.search(r"@main\(.*?\) -> (.*?) \{\n|function_type = \(.*?\) -> (.*?), (?:arg|res|sym)_", text)
    found = re.findall(r"tensor<((?:\d+x)*)(complex<\w+|\w+)>", signature[1] or signature[2])
    return [(math.prod(int(d) for d in dims.split("x") if d), dtype) for dims, dtype in found]


def ratio(a, b):
    return a / b if b else math.inf if a else 1.0


def line(name, a, b):
    us, mb = lambda s: f"{s * 1e6:,.1f}", lambda n: f"{n / 1e6:,.1f}"  # noqa: E731
    time, memory = ratio(a["seconds"], b["seconds"]), ratio(a["memory"], b["memory"])
    cells = [us(a["seconds"]), us(b["seconds"]), f"{time:.2f}", mb(a["temporaries"]), mb(b["temporaries"]), f"{memory:.2f}"]
    words = [", ".join(f["untimed"]) for f in (a, b)]
    words = words[0] if words[0] == words[1] else " / ".join(w or "none" for w in words)
    return [name, *cells, mb(a["bytes"]), mb(b["bytes"]), words], max(time, memory) > LIMIT


def table(out, topology):
    lines = ["| | us | JAX, us | time | temporaries, MB | JAX's | memory | bytes, MB | JAX's | not timed |", "|" + "---|" * 10]
    behind, within = [], 0
    for name, (a, b) in out.items():
        cells, slow = line(name, a, b)
        lines.append("| " + " | ".join([f"**{c}**" if slow and k == 0 else c for k, c in enumerate(cells)]) + " |")
        within += not slow
        if slow:
            behind.append(f"- **{name}**: {REASONS.get(name, 'not looked into yet')}")
    head = f"## {topology}\n\n{within} of {len(out)} rows are at most 10 % behind in time and in memory (arguments, results, temporaries)."
    return "\n".join([head, "", *lines, "", *(["Behind, and why:", "", *behind, ""] if behind else [])])


def write(text, topology):
    """Puts a topology's section in place of the one that is there."""
    old = DOC.read_text()
    section = re.compile(rf"^## {re.escape(topology)}\n.*?(?=^## |\Z)", re.M | re.S)
    DOC.write_text(section.sub(lambda _: text + "\n", old) if section.search(old) else old.rstrip() + "\n\n" + text)
    DOC.write_text(DOC.read_text().rstrip() + "\n")


def main(argv=None):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("only", nargs="?", default=".")
    p.add_argument("--topology", default="v5e:2x2")
    p.add_argument("--jax", default=sys.executable, help="a Python that has jax")
    p.add_argument("--write", action="store_true")
    p.add_argument("--slow", action="store_true")
    p.add_argument("--json")
    a = p.parse_args(argv)
    warnings.filterwarnings("ignore")
    names = [n for n in ROWS if re.search(a.only, n)]
    if a.write and len(names) < len(ROWS):
        p.error("--write wants all rows, so no REGEX")
    texts = jax_texts(a.jax, names)
    topology, out = torch.tpu.aot.topology(a.topology), {}
    heads = ("", "us", "JAX, us", "time", "temp, MB", "JAX", "memory", "bytes, MB", "JAX", "not timed")
    widths = (32, 10, 10, 7, 9, 8, 7, 10, 10, 2)
    print(" ", *(f"{h:>{w}s}" for h, w in zip(heads, widths, strict=True)))
    for name in names:
        call, specs = ROWS[name]
        ours = torch.tpu.aot.compile(call, tuple(tensor(s) for s in specs), topology=topology, name=name)
        theirs = torch.tpu.aot.compile_text(texts[name], topology)
        if (got := types(ours.stablehlo)) != (want := types(texts[name])):
            sys.exit(f"{name}: the results are not those of JAX's: {got} and {want}")
        out[name] = figures(ours), figures(theirs)
        cells, slow = line(name, *out[name])
        print(
            "*" if slow else " ",
            *(f"{c:{'<' if k in (0, 9) else '>'}{w}s}" for k, (c, w) in enumerate(zip(cells, widths, strict=True))),
            flush=True,
        )
        if slow and a.slow:
            for program in (ours, theirs):
                print("\n".join(f"    {f}" for f in program.bottlenecks(6)), "\n")
    if a.json:
        with open(a.json, "w") as f:
            json.dump(out, f, indent=1)
    if a.write:
        write(table(out, a.topology), a.topology)


if __name__ == "__main__":
    main()
