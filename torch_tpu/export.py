"""torch_tpu.export: a torch.export.ExportedProgram as StableHLO text: docs/export.md."""

import re
from dataclasses import dataclass

import torch
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree as pytree

from torch_tpu import _core
from torch_tpu import compile as _compile
from torch_tpu.aot._trace import RANDOM_STATE, Value

__all__ = ["StableHLO", "Value", "to_stablehlo"]

_INPUTS = {
    InputKind.USER_INPUT: "argument",
    InputKind.PARAMETER: "parameter",
    InputKind.BUFFER: "buffer",
    InputKind.CONSTANT_TENSOR: "constant",
}
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
    outputs: list  # of @main in order: first what is mutated (kind buffer, parameter, argument), then kind result
    in_spec: pytree.TreeSpec  # of (args, kwargs) of the exported program
    out_spec: pytree.TreeSpec  # of what the module returns
    result: object  # what the module returns, with Values in place of tensors

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
        text, parameters, values, leaves = _capture(ep, inputs, device)
    if not text:
        raise ValueError("torch_tpu.export.to_stablehlo: the program returns no tensor and mutates none")
    taken = [inputs[p][0] if p >= 0 else RANDOM_STATE for p in parameters]
    if weights == "constants":
        mutated = {v.name for v in values if v.kind in ("buffer", "parameter")}
        baked = {}
        for i, (p, v) in enumerate(zip(parameters, taken, strict=True)):
            if v.kind in ("parameter", "buffer", "constant") and v.name not in mutated:
                baked[i] = _tensor(exported_program, inputs[p][1])
        text = _with_constants(text, baked)
        taken = [v for i, v in enumerate(taken) if i not in baked]
    spec = ep.call_spec.out_spec
    return StableHLO(text, taken, values, ep.call_spec.in_spec, spec, pytree.tree_unflatten(leaves, spec))


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
    """The text, which input each of its parameters is, its outputs, and the leaves of what the module returns."""
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
                outputs.append(t)
                leaf = Value(spec.target or spec.arg.name, _OUTPUTS[spec.kind], tuple(t.shape), t.dtype)
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
        text, parameters, places = ops.graph_text(handle)
    finally:
        ops.release_graph(handle)
    if len(places) != len(values) or -2 in parameters:
        raise RuntimeError(
            f"torch_tpu.export.to_stablehlo: the program has {len(places)} outputs and the parameters {parameters}, expected "
            f"{len(values)} outputs, and only inputs; please report this"
        )
    return text, [order[p] if p >= 0 else p for p in parameters], values, leaves


def _tensor(ep, spec):
    """The value of a weight."""
    held = ep.state_dict if spec.target in ep.state_dict else ep.constants
    t = held[spec.target].detach()
    if t.device.type == "meta" or isinstance(t, torch._subclasses.FakeTensor):
        raise ValueError(
            f"torch_tpu.export.to_stablehlo: {spec.target} has no value (it is on the meta device or fake), so it cannot be a "
            "constant; give it one, or use weights='arguments'"
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
