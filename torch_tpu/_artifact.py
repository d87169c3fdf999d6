"""The file that torch_tpu.export.StableHLO.save_artifact writes, and what StableHLO text says of itself: docs/export.md."""

import json
import math
import os
import re
import struct
import warnings
import zipfile
import zlib

import torch
from torch.utils import _pytree as pytree

from torch_tpu.aot._trace import Value

FORMAT = 1
_HEADER, _TEXT, _WEIGHTS = "torch_tpu_export.json", "program.mlir", "weights.safetensors"
_STORED = ("argument", "parameter", "buffer", "constant", "random", "result")
_DAMAGED = (  # what reading a zip file with wrong bytes raises; ValueError: text that is no UTF-8 or no JSON, too
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, KeyError, NotImplementedError, RuntimeError, OSError, ValueError),
    OverflowError,
)
_NAMES = {  # of safetensors
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}


# ---- weights: the format of safetensors --------------------------------------------------------------------------------


def write_weights(file, weights):
    """{name: tensor} as safetensors."""
    table, at = {}, 0
    for name, t in weights.items():
        if t.dtype not in _NAMES:
            raise ValueError(f"torch_tpu.export: {name} has the dtype {t.dtype}, which a file of safetensors cannot hold")
        table[name] = {"dtype": _NAMES[t.dtype], "shape": list(t.shape), "data_offsets": [at, at + t.nbytes]}
        at += t.nbytes
    head = json.dumps(table).encode()
    head += b" " * (-len(head) % 8)
    file.write(len(head).to_bytes(8, "little") + head)
    for t in weights.values():
        t = t.detach().cpu().resolve_conj().resolve_neg().contiguous()
        if t.numel():
            file.write(t.reshape(-1).view(torch.uint8).numpy().data)


def read_weights(data, where):
    """{name: tensor on the CPU} of the bytes of a file of safetensors."""
    dtypes = {name: d for d, name in _NAMES.items()}
    try:
        size = int.from_bytes(data[:8], "little")
        table = json.loads(bytes(data[8 : 8 + size]))
        out = {}
        for name, v in table.items():
            if name == "__metadata__":
                continue
            begin, end = v["data_offsets"]
            dtype, shape = dtypes[v["dtype"]], v["shape"]
            if not 0 <= begin <= end <= len(data) - 8 - size or math.prod(shape) * dtype.itemsize != end - begin:
                raise ValueError(f"{name} is not whole")
            raw = bytearray(data[8 + size + begin : 8 + size + end])
            out[name] = torch.frombuffer(raw, dtype=dtype).reshape(shape) if raw else torch.empty(shape, dtype=dtype)
        return out
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"torch_tpu.export.load: {where}: no whole file of safetensors: {error}") from error


# ---- the artifact ------------------------------------------------------------------------------------------------------


def described(v):
    return {"name": v.name, "kind": v.kind, "shape": list(v.shape), "dtype": str(v.dtype)[6:]}


def leaf(x, of_value, refusal):
    """A leaf of what goes in or comes out: what of_value gives for a Value, or a constant. refusal: of anything else, what to say."""
    if isinstance(x, Value):
        return of_value(x)
    if x is None or isinstance(x, bool | int | float | str):
        return {"constant": x}
    raise ValueError(refusal(x))


def _refusal(x):
    return f"torch_tpu.export: {x!r} ({type(x).__name__}) cannot be kept in an artifact: only tensors, numbers and text can"


def _numbered(table):
    """For `leaf`: a Value by its number in a table; one that is not there has no elements."""
    at = {id(v): i for i, v in enumerate(table)}
    return lambda v: {"value": at[id(v)]} if id(v) in at else described(v)


def spec_text(spec):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PyTorch's own use of what it deprecates
        return pytree.treespec_dumps(spec)


def beside(path):
    """The file of weights that lies beside an artifact."""
    return f"{os.fspath(path)}.safetensors"


def write(path, made, weights):
    """made: a StableHLO; weights: "inside", "beside" or "none"."""
    arguments = _numbered([v for v in made.arguments if isinstance(v, Value)])
    outputs = _numbered(made.outputs)
    head = {
        "format": FORMAT,
        "stablehlo": torch.tpu.plugin_info()["stablehlo_version"],
        "torch": torch.__version__,
        "inputs": [described(v) for v in made.inputs],
        "outputs": [described(v) for v in made.outputs],
        "arguments": [leaf(x, arguments, _refusal) | (described(x) if isinstance(x, Value) else {}) for x in made.arguments],
        "in_spec": spec_text(made.in_spec),
        "out_spec": spec_text(made.out_spec),
        "result": [leaf(x, outputs, _refusal) for x in pytree.tree_leaves(made.result, is_leaf=lambda x: x is None)],
        "random_blocks": made.random_blocks,
        "weights": weights,
    }
    if weights == "beside":
        with open(beside(path), "wb") as f:
            write_weights(f, made.weights)
    with zipfile.ZipFile(path, "w") as z:
        z.writestr(_HEADER, json.dumps(head, indent=1))
        z.writestr(_TEXT, made.text, zipfile.ZIP_DEFLATED)
        if weights == "inside":
            with z.open(_WEIGHTS, "w", force_zip64=True) as f:
                write_weights(f, made.weights)


def parts_of(file, name, header, newest, caller, writer):
    """A zip file of ours: what its header says, and {name: bytes} of what it holds. file: a path or an open file; newest: the newest
    format that is known."""
    try:
        with zipfile.ZipFile(file) as z:
            parts = {n: z.read(n) for n in z.namelist()}
        head = json.loads(parts[header]) if header in parts else None
    except _DAMAGED as error:
        raise ValueError(f"{caller}: {name} is damaged or cut off: {error}") from error
    if head is None:
        raise ValueError(f"{caller}: {name} is a zip file, but not one that {writer} wrote")
    found = head.get("format") if isinstance(head, dict) else None
    if not isinstance(found, int) or not 1 <= found <= newest:
        raise ValueError(
            f"{caller}: {name} has the format {found}; this version of torch_tpu reads the formats up to {newest}. "
            "Load it with the torch_tpu that wrote it, or a newer one"
        )
    return head, parts


def read(path):
    """(header, text, weights or None)."""
    name, weights = os.fspath(path), None
    head, parts = parts_of(path, name, _HEADER, FORMAT, "torch_tpu.export.load", "save_artifact")
    try:
        text, where = parts[_TEXT].decode(), head["weights"]
        if where == "inside":
            weights = read_weights(parts[_WEIGHTS], name)
    except (KeyError, UnicodeDecodeError) as error:
        raise ValueError(f"torch_tpu.export.load: {name} is damaged or cut off: {error}") from error
    if where == "beside":
        try:
            with open(beside(path), "rb") as f:
                weights = read_weights(f.read(), beside(path))
        except FileNotFoundError:
            weights = None
    return head, text, weights


def values(given, kinds=_STORED, caller="torch_tpu.export.load"):
    """Descriptions of the header as Value."""
    out = []
    for v in given:
        if v["kind"] not in kinds or v["dtype"] not in _DTYPES:
            raise ValueError(f"{caller}: {v['name']}: unknown kind {v['kind']!r} or dtype {v['dtype']!r}")
        out.append(Value(v["name"], v["kind"], tuple(v["shape"]), _DTYPES[v["dtype"]]))
    return out


# ---- what a text says --------------------------------------------------------------------------------------------------

_MLIR = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "i1": torch.bool,
    "ui64": torch.uint64,
    "ui32": torch.uint32,
    "ui16": torch.uint16,
    "ui8": torch.uint8,
    "complex<f32>": torch.complex64,
    "complex<f64>": torch.complex128,
    "f8E4M3FN": torch.float8_e4m3fn,
    "f8E5M2": torch.float8_e5m2,
    "f8E4M3FNUZ": torch.float8_e4m3fnuz,
    "f8E5M2FNUZ": torch.float8_e5m2fnuz,
}
_DTYPES = {str(d)[6:]: d for d in _MLIR.values()}
_TYPE = re.compile(r"tensor<((?:\d+x)*)([^<>,]+(?:<[^<>]*>)?)>")


def _parts(text, at):
    """The parts of a list in brackets that opens before `at`, and where it ends."""
    parts, begin, depth, i = [], at, 0, at
    while i < len(text):
        c = text[i]
        if c == '"':
            i = text.index('"', i + 1)
            while text[i - 1] == "\\":
                i = text.index('"', i + 1)
        elif c in "([{<":
            depth += 1
        elif c in ")]}" or (c == ">" and text[i - 1] != "-"):
            depth -= 1
        if depth < 0 or (c == "," and not depth):
            parts.append(text[begin:i].strip())
            begin = i + 1
            if depth < 0:
                return [p for p in parts if p], i
        i += 1
    raise ValueError("torch_tpu.export.load: the text ends inside of what @main takes and gives: it is cut off")


def _tensor(part):
    found = _TYPE.match(part)
    if not found or found[2] not in _MLIR:
        raise ValueError(
            f"torch_tpu.export.load: @main has a value of the type {part.partition(' ')[0]}; only tensors of known sizes and of PyTorch's "
            "dtypes can be taken and given"
        )
    return torch.empty([int(n) for n in found[1].split("x")[:-1]], dtype=_MLIR[found[2]], device="meta")


def signature(text):
    """What @main of a text takes and gives: tensors on the meta device."""
    main = re.search(r"func\.func(?: public)? @main\(", text)
    if not main:
        raise ValueError("torch_tpu.export.load: the text has no function @main")
    takes, end = _parts(text, main.end())
    arrow = re.compile(r"\)\s*->\s*(\(?)").match(text, end)
    if not arrow:
        raise ValueError("torch_tpu.export.load: @main of the text gives nothing")
    gives = _parts(text, arrow.end())[0] if arrow[1] else [text[arrow.end() :]]
    return [_tensor(p.partition(":")[2].strip()) for p in takes], [_tensor(p) for p in gives]
