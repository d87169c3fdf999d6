"""Runs programs that hold kernels for a TPU's core, on the CPU and slowly: a small interpreter of the StableHLO and Mosaic operations
that our kernels and what is around them consist of. No plugin here executes kernels, so this is how their values are checked.

It is strict where a TPU would be silent: blocks of results hold NaN until they are written, and a block that is named again
after another one was in its place is an error, for it would be lost."""

import base64
import itertools
import json
import re

import torch

_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "i32": torch.int32, "i1": torch.bool, "index": torch.int64}
_LINE = re.compile(r'(?:(%\w+)(?::(\d+))? = )?"([\w.]+)"\(([^)]*)\)(.*)')
_COMPARE = [torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge]
_BINARY = {
    "add": torch.add, "addf": torch.add, "addi": torch.add, "subf": torch.sub, "subi": torch.sub, "mulf": torch.mul, "muli": torch.mul,
    "multiply": torch.mul, "divf": torch.div, "divsi": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "maximumf": torch.maximum, "andi": torch.logical_and,
}  # fmt: skip


def _type(text):
    """(dtype, dims) of "tensor<1x4xf32>", "vector<4xi32>", "memref<1x1xf32, ...>", "i32"."""
    inner = re.match(r"(?:tensor|vector|memref)<([^,>]*)", text)
    *dims, dtype = (inner[1] if inner else text).split("x") if inner or "x" not in text else [text]
    return _DTYPES[dtype], [int(d) for d in dims]


def _list(attrs, name):
    found = re.search(name + r" = array<i\d+(?:: ([-\d, ]+))?>", attrs)
    return [int(x) for x in found[1].split(",")] if found[1] else []


def _constant(attrs):
    text, dtype = re.search(r"value = (?:dense<)?([^>:]*?)>? : (.*?)}", attrs).groups()
    dtype, dims = _type(dtype)
    if text.startswith("0x"):
        return torch.tensor(int(text, 16), dtype=torch.int64).to(torch.int32).view(torch.float32).expand(dims)
    return torch.tensor(float(text) if dtype.is_floating_point else int(text), dtype=dtype).expand(dims)


class _Block:
    """The lines of a function or region."""

    def __init__(self, lines):
        self.lines = iter(lines)

    def region(self):
        out, depth = [], 0
        for line in self.lines:
            if line.startswith("}") and depth == 0:
                return out, line
            depth += line.endswith("({") - line.startswith("})")
            out.append(line)
        raise AssertionError("a region without an end")


def _run(lines, values):
    """Runs operations; gives what the last one returns."""
    block = _Block(lines)
    for line in block.lines:
        if line.startswith("return "):
            return [values[v.strip()] for v in line[7:].split(" : ")[0].split(",")]
        result, count, op, args, rest = _LINE.match(line).groups()
        args = [values[a.strip()] for a in args.split(",") if a.strip()]
        regions = []
        while rest.endswith("{") and (not regions or rest.startswith("}, {")):
            body, rest = block.region()
            regions.append(body)
        if op.endswith(("func.return", "scf.yield")):
            return args
        if op == "stablehlo.custom_call":
            out = _kernel(args, rest)
            values.update({f"{result}#{i}": x for i, x in enumerate(out)} if count else {result: out[0]})
            continue
        if op.endswith("scf.if"):
            _run(regions[0] if args[0].item() else regions[1], values)
            continue
        out = _operation(op.split(".")[-1], args, rest)
        if result:
            dtype, dims = _type(re.sub(r" loc\(.*", "", rest.rsplit(" -> ", 1)[1]))
            assert out.dtype == dtype, line
            assert list(out.shape) == dims, line
            values[result] = out
    return []


def _at(ref, starts, dims):
    for start, size, whole in zip(starts, dims, ref.shape, strict=True):
        assert 0 <= start <= whole - size, "outside of the core's memory"
    return tuple(slice(int(s), int(s) + n) for s, n in zip(starts, dims, strict=True))


def _operation(op, args, rest):
    attrs, out = rest.rsplit(" : ", 1)[0], re.sub(r" loc\(.*", "", rest.rsplit(" -> ", 1)[1])
    if op == "constant":
        return _constant(rest)
    if op in _BINARY:
        return _BINARY[op](*args)
    if op == "cmpi":
        return _COMPARE[int(re.search(r"predicate = (\d)", attrs)[1])](*args)
    if op == "load":
        dims = _type(out)[1]
        return args[0][_at(args[0], args[1:], dims or [1] * args[0].ndim)].reshape(dims).clone()
    if op == "vector_store":
        args[1][_at(args[1], args[2:], args[0].shape)] = args[0]
        return None
    dtype, dims = _type(out)
    if op == "select":
        return torch.where(*args)
    if op in ("exp2", "log2"):
        return getattr(torch, op)(args[0])
    if op in ("truncf", "convert", "index_cast"):
        return args[0].to(dtype)
    if op in ("shape_cast", "reshape"):
        return args[0].reshape(dims)
    if op == "broadcast":
        return args[0].expand(dims)
    if op == "broadcast_in_dim":
        keep = _list(attrs, "broadcast_dimensions")
        return args[0].reshape([n if i in keep else 1 for i, n in enumerate(dims)]).expand(dims)
    if op == "transpose":
        return args[0].permute(_list(attrs, "permutation"))
    if op == "iota":
        (dim,) = _list(attrs, "dimensions")
        return torch.arange(dims[dim], dtype=dtype).view([-1 if i == dim else 1 for i in range(len(dims))]).expand(dims)
    if op == "multi_reduction":
        assert _list(attrs, "reduction_dims") == [0]
        return torch.maximum(args[0].amax(0), args[1]) if "maximumf" in attrs else args[0].sum(0) + args[1]
    if op == "reduce":  # a sum: the only body here
        return args[0].sum(_list(attrs, "dimensions")) + args[1]
    if op == "matmul":
        ka, kb = map(int, re.search(r"numbers<\[(\d)\], \[(\d)\]", attrs).groups())
        a, b, c = args
        return (a if ka == 1 else a.T).float() @ (b if kb == 0 else b.T).float() + c
    raise AssertionError(f"no operation {op}")


def _functions(text):
    """{name: (names of arguments, lines, what is said of it)}"""
    out, lines = {}, []
    for line in map(str.strip, text.splitlines()):
        if line.startswith("^bb0("):
            names, lines = re.findall(r"(%\w+):", line), []
        elif line.startswith("}) {") and "sym_name" in line:
            out[re.search(r'sym_name = "(\w+)"', line)[1]] = names, lines, line
        else:
            lines.append(line)
    return out


def _kernel(operands, rest):
    config = json.loads(re.search(r'backend_config = "(.*?)", kernel_name', rest)[1].replace("\\22", '"'))
    functions = _functions(base64.b64decode(config["custom_call_config"]["body"]).decode())
    names, lines, about = functions[re.search(r'kernel_name = "(\w+)"', rest)[1]]
    grid = _list(about, "iteration_bounds")
    blocks = [[int(x) for x in b.split(",")] for b in re.findall(r"window_bounds = array<i64: ([\d, ]+)>", about)]
    types = re.sub(r" loc\(.*", "", rest.rsplit(" -> ", 1)[1]).strip("()").split(", ")
    results = [torch.full(d, float("nan"), dtype=t) for t, d in map(_type, types)]
    arrays = [*operands, *results]
    assert len(arrays) == len(blocks)
    kinds = [_type(t) for t in re.findall(r"memref<[^>]*>", about.split("function_type = ")[1].split("->")[0])]
    assert [d for _, d in kinds[: len(blocks)]] == blocks
    memory = [torch.full(d, float("nan"), dtype=t) for t, d in kinds]
    now, seen = [None] * len(arrays), [set() for _ in arrays]

    def place(i, at):
        return tuple(slice(a * n, a * n + n) for a, n in zip(at, blocks[i], strict=True))

    def take_out(i):
        if i >= len(operands) and now[i] is not None:
            arrays[i][place(i, now[i])] = memory[i]

    for point in itertools.product(*map(range, grid)):
        values = {f"%g{k}": torch.tensor(x, dtype=torch.int32) for k, x in enumerate(point)}
        for i, block in enumerate(blocks):
            at = tuple(int(x) for x in _run(functions[f"window_{i}"][1], dict(values)))
            for a, n, whole in zip(at, block, arrays[i].shape, strict=True):
                assert 0 <= a and a * n + n <= whole, f"window {i} at {at}, outside of {list(arrays[i].shape)}"
            if at == now[i]:
                continue
            take_out(i)
            if i < len(operands):
                memory[i] = arrays[i][place(i, at)].clone()
            else:
                assert at not in seen[i], f"window {i} comes back to {at}"
                memory[i].fill_(float("nan"))
            seen[i].add(at)
            now[i] = at
        values |= dict(zip(names[len(grid) :], memory, strict=True))
        _run(lines, values)
    for i in range(len(operands), len(arrays)):
        take_out(i)
    return results


def run(text, inputs):
    """The results of a program, given as StableHLO text, for inputs on the CPU."""
    lines = [line.strip() for line in text.splitlines()]
    first = next(i for i, line in enumerate(lines) if line.startswith("func.func public @main"))
    names = re.findall(r"(%arg\d+):", lines[first])
    return _run(lines[first + 1 :], dict(zip(names, inputs, strict=True)))
