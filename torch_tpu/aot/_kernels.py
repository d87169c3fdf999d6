"""How long kernels take: custom calls of Mosaic, to which the compiler's schedule gives no cycles.

libtpu simulates a program when a flag, read once as it is loaded, asks for a profile; that also gives the cycles of a kernel. A process of
its own therefore compiles a program of one kernel. It simulates every point of the kernel's grid, so the grid is cut first: the
outer dims that the kernel declares parallel, whose points do the same work, count one each, and the cycles are multiplied.

    python -c "from torch_tpu.aot._kernels import main; main()" TOPOLOGY < PROGRAM"""

import base64
import functools
import glob
import json
import os
import re
import subprocess
import sys
import tempfile

_FLAG = "--xla_jf_dump_static_llo_profile_to="
_DTYPES = {
    "s8": "i8",
    "s16": "i16",
    "s32": "i32",
    "s64": "i64",
    "u8": "ui8",
    "u16": "ui16",
    "u32": "ui32",
    "u64": "ui64",
    "pred": "i1",
}
_POINTS = 64  # of the grid, that are simulated; more where the dims that are not parallel have more
_SECONDS = 300
_MEMORY = 56 << 20, 100 << 20  # bytes for the kernel, when the profile's compile does not fit operands into the core beside fewer


def _cut(body):
    """(the kernel with a smaller grid, by how much it is smaller); None: it is no text of ours to cut."""
    if not body.startswith(b"module"):
        return None
    text = body.decode()
    grid = re.search(r"iteration_bounds = array<i64: ([\d, ]+)>", text)
    meanings = re.search(r"dimension_semantics = \[([^\]]*)\]", text)
    if not grid or not meanings:
        return None
    dims = [int(n) for n in grid[1].split(",")]
    parallel = [("parallel" in m) for m in meanings[1].split(",")]
    points, times = functools.reduce(lambda a, b: a * b, dims, 1), 1
    for k, n in enumerate(dims):
        if not parallel[k] or points <= _POINTS:
            break
        dims[k], points, times = 1, points // n, times * n
    return text.replace(grid[0], f"iteration_bounds = array<i64: {', '.join(map(str, dims))}>").encode(), times


def _program(body, memory, operands, results):
    """A program of the kernel alone."""
    config = {
        "custom_call_config": {"body": base64.b64encode(body).decode(), "serialization_format": 1, "needs_layout_passes": True}
    }
    if memory:
        config["scoped_memory_configs"] = memory
    text = json.dumps(config).replace('"', "\\22")

    def layouts(types):
        one = [f"dense<[{', '.join(map(str, reversed(range(t.count('x')))))}]> : tensor<{t.count('x')}xindex>" for t in types]
        return ", ".join(one)

    names = [f"%a{i}" for i in range(len(operands))]
    out = [f"%r#{i}" for i in range(len(results))] if len(results) > 1 else ["%r"]
    args = ", ".join(f"{n}: {t}" for n, t in zip(names, operands, strict=True))
    return f"""module @kernel {{
  func.func public @main({args}) -> ({", ".join(results)}) {{
    %r{f":{len(results)}" if len(results) > 1 else ""} = stablehlo.custom_call @tpu_custom_call({", ".join(names)}) {{
      backend_config = "{text}", kernel_name = "kernel", operand_layouts = [{layouts(operands)}],
      result_layouts = [{layouts(results)}]}} : ({", ".join(operands)}) -> ({", ".join(results)})
    return {", ".join(out)} : {", ".join(results)}
  }}
}}
"""


def _type(shape):
    return "tensor<" + "".join(f"{d}x" for d in shape.dims) + _DTYPES.get(shape.dtype, shape.dtype) + ">"


@functools.lru_cache(maxsize=256)
def _simulated(topology, program):
    """Cycles of the one kernel of a program; None: it could not be told."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", "from torch_tpu.aot._kernels import main; main()", topology], input=program, capture_output=True,
            text=True, timeout=_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None
    found = re.search(r"^cycles (\d+)$", done.stdout, re.M)
    return int(found[1]) if found else None


def cycles(topology, config, operands, results):
    """Cycles that libtpu estimates for a kernel; None: it is not known.

    config: the configuration of the custom call, as the compiled program has it; operands, results: its _hlo.Shapes."""
    body = config.get("custom_call_config", {}).get("body")
    cut = body and _cut(base64.b64decode(body))
    if not cut:
        return None
    types = [_type(x) for x in operands], [_type(x) for x in results]
    memory = [{k: int(v) for k, v in m.items()} for m in config.get("scoped_memory_configs", [])]
    for size in (0, *_MEMORY):
        if not size or (memory and memory[0]["size"] < size):
            found = _simulated(topology, _program(cut[0], [m | {"size": size or m["size"]} for m in memory], *types))
            if found:
                return found * cut[1]
    return None


def operations(config):
    """(operations, bytes) that a kernel says it needs; zeros where it says nothing."""
    said = config.get("custom_call_config", {}).get("cost_estimate", {})
    return float(said.get("flops", 0)), float(said.get("bytes_accessed", 0))


def main():
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LIBTPU_INIT_ARGS"] = os.environ.get("LIBTPU_INIT_ARGS", "") + " " + _FLAG + folder
        from torch_tpu import aot

        aot.compile_text(sys.stdin.read(), sys.argv[1])
        found = []
        for file in glob.glob(os.path.join(folder, "*")):
            with open(file) as f:
                found += [int(n) for n in re.findall(r"estimated_cycles: (\d+)", f.read())]
    print("cycles", sum(found))
