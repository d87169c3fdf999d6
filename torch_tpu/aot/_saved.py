"""The file of a compiled program, for torch.tpu.aot.load: docs/aot.md. A zip file: a header in JSON, the executable, the StableHLO
it was compiled from, and the program as the compiler left it."""

import ctypes
import hashlib
import io
import json
import os
import zipfile

import torch
from torch.utils import _pytree as pytree

from torch_tpu import _artifact, _core
from torch_tpu.aot import _form

FORMAT = 1
_HEADER, _EXECUTABLE, _TEXT, _OPTIMIZED = "torch_tpu_aot.json", "executable", "program.mlir", "optimized"
_CALLER = "torch.tpu.aot.load"
_KINDS = ("argument", "parameter", "buffer", "gradient", "optimizer", "tensor", "result", "random")


def _tensor(t):
    return {"dtype": str(t.dtype)[6:], "shape": list(t.shape), "strides": list(t.stride()), "offset": t.storage_offset()}


def _meta(v):
    """A tensor on the meta device, of its description."""
    sizes, strides, offset = v["shape"], v["strides"], v["offset"]
    if len(sizes) != len(strides) or not all(isinstance(n, int) and n >= 0 for n in (*sizes, *strides, offset)):
        raise ValueError(f"{_CALLER}: a tensor of the sizes {sizes} and the strides {strides}")
    last = 1 + offset + sum(max(n - 1, 0) * s for n, s in zip(sizes, strides, strict=True))
    dtype = _artifact.values([v | {"name": "a tensor", "kind": "tensor"}], _KINDS, _CALLER)[0].dtype
    return torch.empty(last, dtype=dtype, device="meta").as_strided(sizes, strides, offset)


def _value(v):
    return None if v is None else _artifact.described(v) | {"place": v.place}


class _Table:
    """Values by number: one that stands in several places stays one."""

    def __init__(self):
        self.values, self.ids = [], {}

    def __call__(self, v):
        if id(v) not in self.ids:
            self.ids[id(v)] = len(self.values)
            self.values.append(v)
        return self.ids[id(v)]


def _refusal(x):
    return (
        f"torch.tpu.aot: a {type(x).__name__} that the function takes or returns cannot be kept in a file: only tensors, numbers and text "
        "can. A module or an optimizer that it uses need not be an argument: it is found in its closure, or by compile(..., state=)"
    )


def _told(ask):
    """What the compiler says, or None: a plugin need not know, and the file has less to tell then."""
    try:
        return ask()
    except NotImplementedError:
        return None


def write(program):
    """The file's bytes."""
    form, t, number = program.form().used(), program.topology, _Table()
    leaves = lambda xs: [_artifact.leaf(x, lambda v: {"value": number(v)}, _refusal) for x in xs]  # noqa: E731
    head = {
        "format": FORMAT,
        "torch": torch.__version__,
        "name": program.name,
        "topology": {
            "name": t.name,
            "kind": t.kind,
            "devices": t.device_count,
            "chip": t.chip and t.chip.name,
            "compiler": t.platform_version,
            "places": [[i, list(at)] for i, at in t.places().items()],
        },
        "host": program.source.host(),
        "mesh": program.mesh and [program.mesh.names, program.mesh.sizes],
        "mesh_devices": program.devices,
        "memory": _told(program.source.memory),
        "figures": _told(program.source.figures),
        "parameters": [number(v) for v in program.parameters],
        "results": [number(v) for v in program.outputs],
        "form": {
            "inputs": [[number(v), _tensor(x)] for v, x in form.inputs],
            "parameters": form.parameters,
            "donated": form.donated,
            "outputs": [_tensor(x) for x in form.outputs],
            "places": form.places,
            "results": [[number(v), _tensor(x)] for v, x in form.results],
            "of": form.of,
            "empty": form.empty,
            "blocks": form.blocks,
            "arguments": leaves(form.arguments),
            "in_spec": form.in_spec and _artifact.spec_text(form.in_spec),
            "returns": leaves(form.returns),
            "out_spec": form.out_spec and _artifact.spec_text(form.out_spec),
        },
    }
    head["values"] = [_value(v) for v in number.values]
    parts = {_EXECUTABLE: program.executable(), _TEXT: program.stablehlo.encode()}
    head["optimized"], optimized = _told(program.source.optimized) or (None, None)
    if optimized is not None:
        parts[_OPTIMIZED] = optimized
    head["sha256"] = {n: hashlib.sha256(data).hexdigest() for n, data in parts.items()}
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as z:
        z.writestr(_HEADER, json.dumps(head, indent=1))
        for n, data in parts.items():
            z.writestr(n, data)
    return out.getvalue()


class Stored:
    """What a file says of a program: the same questions as _Compiled's of torch_tpu.aot."""

    def __init__(self, head, parts):
        self._head, self._parts = head, parts

    def _said(self, what):
        if self._head[what] is None:
            raise NotImplementedError(f"torch.tpu.aot: the file does not tell the program's {what}: its compiler did not say")
        return self._head[what]

    def memory(self):
        said = self._said("memory")
        return {n: int(said[n]) for n, _ in _core.AotMemoryStats._fields_}

    def figures(self):
        return dict(self._said("figures"))

    def optimized(self):
        return self._said("optimized"), self._parts[_OPTIMIZED]

    def executable(self):
        return self._parts[_EXECUTABLE]

    def host(self):
        return self._head["host"]


def read(source):
    """(name, header, {name: bytes of a part}, Values, Form) of a path or of bytes."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        name, data = "the program", bytes(source)
    else:
        name = os.fspath(source)
        os.stat(source)  # that there is no such file is Python's own error
        fd = ctypes.c_int()
        _core.core.tpu_cache_open_file(os.fsencode(source), ctypes.byref(fd))
        with open(fd.value, "rb") as f:
            data = f.read()
    if data[:4] != b"PK\3\4":
        raise ValueError(
            f"{_CALLER}: {name} is no file of a compiled program, or its beginning is damaged: Program.save writes one"
        )
    head, parts = _artifact.parts_of(io.BytesIO(data), name, _HEADER, FORMAT, _CALLER, "torch.tpu.aot.Program.save")
    try:
        for n, said in head["sha256"].items():
            if hashlib.sha256(parts[n]).hexdigest() != said:
                raise ValueError(f"{_CALLER}: {name} is damaged: its part {n} has not the checksum that its header says")
        if not {_EXECUTABLE, _TEXT} <= head["sha256"].keys():
            raise ValueError(f"{_CALLER}: {name} is damaged: it holds {', '.join(parts)}, and no {_EXECUTABLE} or no {_TEXT}")
        values = _artifact.values(head["values"], _KINDS, _CALLER)
        for v, said in zip(values, head["values"], strict=True):
            v.place = said["place"] and tuple(said["place"])
        return name, head, parts, values, _form_of(head["form"], values)
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ValueError(f"{_CALLER}: the header of {name} is damaged: {error!r}") from error


def _form_of(f, values):
    leaf = lambda x: values[x["value"]] if "value" in x else x["constant"]  # noqa: E731
    spec = lambda text: text and pytree.treespec_loads(text)  # noqa: E731
    return _form.Form(
        [(values[v], _meta(t)) for v, t in f["inputs"]],
        list(f["parameters"]),
        list(f["donated"]),
        [_meta(t) for t in f["outputs"]],
        list(f["places"]),
        [(values[v], _meta(t)) for v, t in f["results"]],
        list(f["of"]),
        list(f["empty"]),
        f["blocks"],
        [leaf(x) for x in f["arguments"]],
        spec(f["in_spec"]),
        [leaf(x) for x in f["returns"]],
        spec(f["out_spec"]),
    )


def nested(form):
    """What the function returned, with Values in place of tensors."""
    return pytree.tree_unflatten(form.returns, form.out_spec)
