"""torch_tpu.export: a torch.export.ExportedProgram as StableHLO, and StableHLO as a program that runs: docs/export.md."""

import os
import re
from dataclasses import dataclass

import torch
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree as pytree

from torch_tpu import _artifact, _core
from torch_tpu import compile as _compile
from torch_tpu._call import Signature, tpu_device
from torch_tpu._graph import Graph
from torch_tpu.aot._trace import RANDOM_STATE, Value

__all__ = ["Program", "StableHLO", "Value", "load", "to_stablehlo"]

_INPUTS = {
    InputKind.USER_INPUT: "argument",
    InputKind.PARAMETER: "parameter",
    InputKind.BUFFER: "buffer",
    InputKind.CONSTANT_TENSOR: "constant",
}
_WEIGHTS = ("parameter", "buffer", "constant")
_OUTPUTS = {
    OutputKind.USER_OUTPUT: "result",
    OutputKind.BUFFER_MUTATION: "buffer",
    OutputKind.PARAMETER_MUTATION: "parameter",
    OutputKind.USER_INPUT_MUTATION: "argument",
}
_CHECKS = (  # what torch.export asserts about sizes, dtypes and devices: known here, or not so any more
    torch.ops.aten._assert_tensor_metadata.default,
    torch.ops.aten._assert_scalar.default,
    torch.ops.aten.sym_constrain_range.default,
    torch.ops.aten.sym_constrain_range_for_size.default,
)
_ARGUMENT = re.compile(r"%arg(\d+): (tensor<(?:[^<>]|<[^<>]*>)*>)(?: \{[^}]*\})?")


@dataclass
class StableHLO:
    """An exported program as StableHLO."""

    text: str
    inputs: list  # of @main in order, as Value (name, kind, shape, dtype); what the program does not read is left out
    outputs: list  # of @main in order: first what is mutated (kind buffer, parameter, argument), then kind result; none without elements
    in_spec: pytree.TreeSpec  # of (args, kwargs) of the exported program
    out_spec: pytree.TreeSpec  # of what the module returns
    result: object  # what the module returns, with Values in place of tensors
    arguments: list  # leaves of (args, kwargs) in order, with Values in place of tensors
    weights: dict  # {name: tensor}: the parameters, buffers and constants among the inputs, as they were exported
    random_blocks: int  # by how much a run moves the generator on

    @property
    def input_names(self):
        """Names of the inputs."""
        return [v.name for v in self.inputs]

    @property
    def output_names(self):
        """Names of the outputs."""
        return [v.name for v in self.outputs]

    def save(self, path):
        """Writes the text."""
        with open(path, "w", encoding="utf-8") as f:
            f.write(self.text)

    def save_artifact(self, path, *, weights="inside"):
        """Writes one file that `load` makes a program of: the text, names, types, and how arguments and results are nested.

        weights: "inside" the file; "beside" it, in PATH.safetensors; or "none": they are given to `load`."""
        if weights not in ("inside", "beside", "none"):
            raise ValueError(f"torch_tpu.export: save_artifact: weights: expected 'inside', 'beside' or 'none', got {weights!r}")
        if weights != "none":
            for name, t in self.weights.items():
                _with_value(t, name, "written", "weights='none'")
        _artifact.write(path, self, weights)


def to_stablehlo(exported_program, *, weights="arguments"):
    """Gives the StableHLO of a torch.export.ExportedProgram. Nothing is executed.

    weights: "arguments": parameters, buffers and constants are inputs of the program; "constants": their values are in the
    text, except for what the program mutates, which stays an input."""
    if not isinstance(exported_program, torch.export.ExportedProgram):
        raise TypeError(
            "torch_tpu.export.to_stablehlo: expected a torch.export.ExportedProgram (torch.export.export makes one), got "
            f"{type(exported_program).__name__}"
        )
    if weights not in ("arguments", "constants"):
        raise ValueError(f"torch_tpu.export.to_stablehlo: weights: expected 'arguments' or 'constants', got {weights!r}")
    torch.tpu.init()
    ep = exported_program.run_decompositions({})  # every write becomes an output
    device = torch.device("tpu", torch.tpu.current_device())
    _to_device(ep.graph_module, device)
    inputs = [(_input(spec), spec) for spec in ep.graph_signature.input_specs]
    with _compile._plain_kernels():
        text, parameters, values, leaves, blocks = _capture(ep, inputs, device)
    if not text:
        raise ValueError("torch_tpu.export.to_stablehlo: the program returns no tensor and mutates none")
    taken = [inputs[p][0] if p >= 0 else RANDOM_STATE for p in parameters]
    if weights == "constants":
        mutated = {v.name for v in values if v.kind in ("buffer", "parameter")}
        baked = {}
        for i, (p, v) in enumerate(zip(parameters, taken, strict=True)):
            if v.kind in _WEIGHTS and v.name not in mutated:
                t = _held(exported_program, inputs[p][1].target)
                baked[i] = _with_value(t, v.name, "a constant", "weights='arguments'")
        text = _with_constants(text, baked)
        taken = [v for i, v in enumerate(taken) if i not in baked]
    spec = ep.call_spec.out_spec
    held = {v.name: s for v, s in inputs if v.kind in _WEIGHTS and any(v is t for t in taken)}
    return StableHLO(
        text,
        taken,
        values,
        ep.call_spec.in_spec,
        spec,
        pytree.tree_unflatten(leaves, spec),
        [v if v.dtype is not None else s.arg.value for v, s in inputs if s.kind == InputKind.USER_INPUT],
        {name: _held(exported_program, s.target) for name, s in held.items()},
        blocks,
    )


def _input(spec):
    if spec.kind not in _INPUTS:
        raise NotImplementedError(
            f"torch_tpu.export.to_stablehlo: input {spec.arg.name} is a {spec.kind.name}; a StableHLO program takes tensors"
        )
    return Value(spec.target or spec.arg.name, _INPUTS[spec.kind], (), None)


def _to_device(gm, device):
    """Devices that the graph names become the tpu, in the graphs of control flow too."""
    for m in gm.modules():
        if not isinstance(m, torch.fx.GraphModule):
            continue
        for n in m.graph.nodes:
            move = lambda x: device if isinstance(x, torch.device) else x  # noqa: E731
            n.args = torch.fx.node.map_aggregate(n.args, move)
            n.kwargs = torch.fx.node.map_aggregate(n.kwargs, move)
            if n.target in _compile._CONTROL_FLOW:  # results are made like these
                n.meta["val"] = pytree.tree_map_only(torch.Tensor, lambda t: t.to(device), n.meta["val"])


def _stand_in(value, name, device):
    """The input as the program takes it (contiguous), laid out as the graph expects it."""
    shape, stride = tuple(value.shape), tuple(value.stride())
    if not all(type(n) is int for n in (*shape, *stride)):
        raise NotImplementedError(
            f"torch_tpu.export.to_stablehlo: input {name} has the sizes {list(shape)}; only known sizes can be exported: export "
            "without dynamic_shapes, once for each size"
        )
    if value.layout != torch.strided:
        raise NotImplementedError(
            f"torch_tpu.export.to_stablehlo: input {name} is a {value.layout} tensor; only dense ones can be exported"
        )
    usual = torch.empty(shape, device="meta").stride()
    made = torch.ops.torch_tpu.capture_input(list(shape), list(usual), value.dtype)
    if stride != usual and torch._prims_common.is_non_overlapping_and_dense_or_false(value):
        made = torch.empty_strided(shape, stride, dtype=value.dtype, device=device).copy_(made)
    return made


def _capture(ep, inputs, device):
    """The text, which input each of its parameters is, its outputs, the leaves of what the module returns, and by how much the
    generator moves on."""
    ops, nodes, node = torch.ops.torch_tpu, list(ep.graph_module.graph.nodes), None
    place = lambda: _compile._line(node).removeprefix(" at ") or None if node is not None else None  # noqa: E731
    ops.capture_begin(device, True)
    try:
        env, order = {}, []
        reads_storage = any("as_strided" in str(n.target) for n in nodes)
        placeholders = [n for n in nodes if n.op == "placeholder"]
        for i, (n, (v, _)) in enumerate(zip(placeholders, inputs, strict=True)):
            value = n.meta.get("val")
            if isinstance(value, torch.Tensor):
                env[n] = _stand_in(value, v.name, device)
                if env[n].stride() != value.stride() and reads_storage:
                    raise NotImplementedError(
                        f"torch_tpu.export.to_stablehlo: input {v.name} has the strides {list(value.stride())}, which leave gaps or "
                        "overlap, and the program uses as_strided, which counts in them; export with .contiguous() inputs"
                    )
                v.shape, v.dtype = tuple(value.shape), value.dtype
                order.append(i)
            else:
                env[n] = value
        with _core.lines_from(place):
            for node in nodes:
                if node.op == "call_function" and node.target not in _CHECKS:
                    env[node] = _compile._capture_call(ep.graph_module, node, env)
        node = None
        outputs, values, leaves = [], [], []
        found = nodes[-1].args[0]
        for x, spec in zip(found, ep.graph_signature.output_specs, strict=True):
            if spec.kind not in _OUTPUTS:
                raise NotImplementedError(
                    f"torch_tpu.export.to_stablehlo: output {spec.arg.name} is a {spec.kind.name}; only results and what the "
                    "module mutates can be exported"
                )
            leaf = _compile._value(ep.graph_module, x, env) if isinstance(x, torch.fx.Node) else x
            if isinstance(leaf, torch.Tensor):
                # Each output is a tensor of its own: not an input, a view or another output.
                t = leaf.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
                leaf = Value(spec.target or spec.arg.name, _OUTPUTS[spec.kind], tuple(t.shape), t.dtype)
                if t.numel():
                    outputs.append(t)
                    values.append(leaf)
            if spec.kind == OutputKind.USER_OUTPUT:
                leaves.append(leaf)
        handle = ops.capture_end(outputs, "graph", "exported program", True)
    except BaseException as error:
        refused = ops.capture_drop()
        if node is not None and isinstance(error, Exception) and (refused or not _compile._is_aten(node)):
            raise NotImplementedError(
                f"torch_tpu.export.to_stablehlo: {node.target}{_compile._line(node)} cannot be part of a StableHLO program "
                f"({str(error).splitlines()[0] if str(error) else type(error).__name__})"
            ) from error
        raise
    try:
        text, parameters, places, blocks = ops.graph_text(handle)
    finally:
        ops.release_graph(handle)
    if len(places) != len(values) or -2 in parameters:
        raise RuntimeError(
            f"torch_tpu.export.to_stablehlo: the program has {len(places)} outputs and the parameters {parameters}, expected "
            f"{len(values)} outputs, and only inputs; please report this"
        )
    return text, [order[p] if p >= 0 else p for p in parameters], values, leaves, blocks


def _held(ep, name):
    """A weight."""
    return (ep.state_dict if name in ep.state_dict else ep.constants)[name].detach()


def _with_value(t, name, what, instead):
    if t.device.type == "meta" or isinstance(t, torch._subclasses.FakeTensor):
        raise ValueError(
            f"torch_tpu.export: {name} has no value (it is on the meta device or fake), so it cannot be {what}; give it one, or use "
            f"{instead}"
        )
    return t


def _literal(t):
    """A tensor as MLIR's dense attribute."""
    t = t.cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    if not t.numel():
        return "dense<>"
    if t.dtype == torch.bool:  # one bit or one byte each, as the version of MLIR has it: spelled out
        words = ["true" if x else "false" for x in t.tolist()]
        return f"dense<{words[0]}>" if len(set(words)) == 1 else words
    return f'dense<"0x{t.view(torch.uint8).numpy().tobytes().hex().upper()}">'


def _nested(words, shape):
    """Words in nested brackets."""
    for n in reversed(shape):
        words = [f"[{', '.join(words[i : i + n])}]" for i in range(0, len(words), n)]
    return f"dense<{words[0]}>"


def _with_constants(text, baked):
    """The text with constants {number of a parameter: tensor} in place of parameters of @main."""
    start = text.index("@main(") + len("@main(")
    end = text.index(") -> ", start)
    body = text.index("\n", end) + 1
    kept, lines = [], []
    for m in _ARGUMENT.finditer(text, start, end):
        i, kind = int(m[1]), m[2]
        if i not in baked:
            kept.append(m[0])
            continue
        literal = _literal(baked[i])
        if isinstance(literal, list):
            literal = _nested(literal, baked[i].shape)
        lines.append(f'    %arg{i} = "stablehlo.constant"() {{value = {literal} : {kind}}} : () -> {kind}\n')
    return "".join((text[:start], ", ".join(kept), text[end:body], *lines, text[body:]))


# ---- loading -----------------------------------------------------------------------------------------------------------


class Program:
    """A program that runs on a tpu. One of an artifact is called like the module that was exported; one of a plain text
    takes tensors and gives a list."""

    def __init__(self, text, inputs, outputs, arguments, in_spec, out_spec, result, blocks, weights, device, name):
        self.inputs, self.outputs = inputs, outputs
        self.in_spec, self.out_spec = in_spec, out_spec
        self._result, self._device = result, device
        self._signature = Signature(name, arguments, in_spec, "export the module once for each size")
        self.state = {v.name: _weight(v, weights, device, name) for v in inputs if v.kind in _WEIGHTS}
        named = [v for v in arguments if isinstance(v, Value)]
        known = {id(v): i for i, v in enumerate(named)}
        taken = [*named, *(v for v in inputs if v.kind in _WEIGHTS)]
        known |= {id(v): i for i, v in enumerate(taken)}
        by_name = {(v.kind, v.name): i for i, v in enumerate(taken)}
        handle = torch.ops.torch_tpu.graph_given(
            device,
            torch.frombuffer(bytearray(text), dtype=torch.uint8),
            [-1 if v.kind == "random" else known[id(v)] for v in inputs],
            [torch.empty(v.shape, dtype=v.dtype, device="meta") for v in taken],
            [torch.empty(v.shape, dtype=v.dtype, device="meta") for v in outputs],
            [-1 if v.kind == "result" else by_name[v.kind, v.name] for v in outputs],
            blocks,
            f"exported program {name}",
            False,
            [],
            [],
            [],
        )
        self._graph = Graph(handle)

    def __call__(self, *args, **kwargs):
        tensors = self._signature.tensors(args, kwargs, self._device)
        with torch.no_grad():
            out = self._graph.run([*tensors, *self.state.values()])
        if self.out_spec is None:
            return out
        return pytree.tree_unflatten([self._value(x, out) for x in self._result], self.out_spec)

    def _value(self, x, out):
        if isinstance(x, _Result):
            return out[x.at]
        return torch.empty(x.shape, dtype=x.dtype, device=self._device) if isinstance(x, Value) else x


@dataclass
class _Result:
    at: int  # in what the program returns


def _weight(v, weights, device, name):
    if weights is None or v.name not in weights:
        raise ValueError(
            f"torch_tpu.export.load: {name} has no value of {v.name}; give it: load(..., weights={{{v.name!r}: tensor, ...}}), the state_dict of "
            "the module"
        )
    t = weights[v.name].detach()
    if t.dtype != v.dtype or tuple(t.shape) != v.shape:
        raise ValueError(
            f"torch_tpu.export.load: {name}: {v.name}: expected {v.dtype} and the sizes {list(v.shape)}, got {t.dtype} and {list(t.shape)}"
        )
    copied = torch.empty(v.shape, dtype=v.dtype, device=device)
    return copied.copy_(_with_value(t, v.name, "loaded", "one that has"))


def load(source, *, weights=None, device="tpu", inputs=None, outputs=None):
    """Makes a Program of what `save_artifact` or `save` wrote, of a StableHLO, or of a file of StableHLO that somebody else wrote.

    weights: {name: tensor} in place of those that the artifact holds. They are copied. inputs, outputs: tensors (on the meta
    device, say) like what @main takes and gives: needed when the file is MLIR bytecode, which does not show it as a text does."""
    torch.tpu.init()
    device = tpu_device(device, "torch_tpu.export.load")
    if isinstance(source, StableHLO):
        leaves = pytree.tree_leaves(source.result, is_leaf=lambda x: x is None)
        return _make(source.text.encode(), source, leaves, weights or source.weights, device, "StableHLO")
    name = os.fspath(source)
    with open(source, "rb") as f:
        begin = f.read(4)
        if begin != b"PK\3\4":
            text = begin + f.read()
    if begin == b"PK\3\4":
        head, text, held = _artifact.read(source)
        try:
            made, leaves = _of_header(head, text)
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise ValueError(f"torch_tpu.export.load: the header of {name} is damaged: {error!r}") from error
        return _make(text.encode(), made, leaves, weights or held, device, name)
    if begin == b"ML\xefR":
        if inputs is None or outputs is None:
            raise ValueError(
                f"torch_tpu.export.load: {name} is MLIR bytecode: give inputs= and outputs=, tensors like what it takes and gives"
            )
    else:
        try:
            inputs, outputs = _artifact.signature(text.decode())
        except UnicodeDecodeError:
            raise ValueError(f"torch_tpu.export.load: {name} is no artifact, no StableHLO text and no MLIR bytecode") from None
    takes = [Value(f"argument {i}", "argument", tuple(t.shape), t.dtype) for i, t in enumerate(inputs)]
    gives = [Value(f"result {i}", "result", tuple(t.shape), t.dtype) for i, t in enumerate(outputs)]
    return Program(text, takes, gives, takes, None, None, None, 0, None, device, name)


def _make(text, made, leaves, weights, device, name):
    results = [v for v in made.outputs if v.kind == "result"]
    at = {id(v): i for i, v in enumerate(results)}
    result = [_Result(at[id(x)]) if id(x) in at else x for x in leaves]
    return Program(
        text,
        made.inputs,
        made.outputs,
        made.arguments,
        made.in_spec,
        made.out_spec,
        result,
        made.random_blocks,
        weights,
        device,
        name,
    )


def _of_header(head, text):
    """A StableHLO of an artifact, and the leaves of its result."""
    arguments = [_artifact.values([a])[0] if "value" in a else a["constant"] for a in head["arguments"]]
    named = {v.name: v for v in arguments if isinstance(v, Value)}
    inputs = [named[v.name] if v.kind == "argument" else v for v in _artifact.values(head["inputs"])]
    outputs = _artifact.values(head["outputs"])
    for what, said, found in zip(("takes", "gives"), (inputs, outputs), _artifact.signature(text), strict=True):
        if [(v.shape, v.dtype) for v in said] != [(tuple(t.shape), t.dtype) for t in found]:
            raise ValueError(f"torch_tpu.export.load: what @main of the text {what} is not what the artifact's header says")
    empty = lambda x: _artifact.values([x])[0] if "dtype" in x else x["constant"]  # noqa: E731
    leaves = [outputs[x["value"]] if "value" in x else empty(x) for x in head["result"]]
    specs = [pytree.treespec_loads(head[k]) for k in ("in_spec", "out_spec")]
    return StableHLO(text, inputs, outputs, *specs, None, arguments, {}, head["random_blocks"]), leaves
