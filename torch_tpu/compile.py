"""torch.compile(backend="tpu"): docs/compile.md.

AOTAutograd gives graphs of ATen operators, forward and backward. A graph is run once, operator by operator, with tensors
that have no values, through the kernels of eager mode; the core keeps what they would do as one program (a capture). The
compiled callable hands its arguments to that program. What a program cannot hold (a tensor on the CPU, an operator that
reads its arguments on the host) is cut out: the graph is then a list of parts, some of them programs, run in order.
"""

import contextlib
import operator
import os
import threading
import types
import warnings

import torch
from torch._prims import rng_prims
from torch.fx import Node
from torch.utils import _pytree as pytree

from torch_tpu import _aot_cache, _buckets, _megacache
from torch_tpu._graph import Graph, on_tpu

_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
_OPTIONS = {
    "fallback": ("eager", "error"),
    "partitioner": ("min_cut", "default"),
}
_warned = set()
_compiling = threading.RLock()  # of graphs that are compiled when they are called


def backend(graph, example_inputs, *, mode=None, options=None):
    """The Dynamo backend. Gives a callable for the graph."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import default_partition

    settings = _settings(mode, options)
    partition = _min_cut if settings["partitioner"] == "min_cut" else default_partition
    keep = _aot_cache.usable(graph, example_inputs)
    direct, shared = [], {}

    def compiler(kind):
        def compile_kind(gm, inputs):
            call = compile_graph(gm, kind, settings, shared, keep)
            alone = kind == "graph" and _needs_no_wrapper(gm, example_inputs)
            if alone:
                direct.append(getattr(call, "direct", None))
            if not keep:
                return call
            return _aot_cache.Kept(call, getattr(call, "state", "a part of it has no program of its own"), alone)

        return compile_kind

    if keep:
        out, kept = _aot_cache.compile(
            graph,
            example_inputs,
            settings,
            forward=compiler("forward"),
            backward=compiler("backward"),
            inference=compiler("graph"),
            partition=partition,
        )
        if kept is not None and kept.direct:
            direct.append(getattr(kept.call, "direct", None))
    else:
        out = aot_autograd(
            fw_compiler=compiler("forward"),
            bw_compiler=compiler("backward"),
            inference_compiler=compiler("graph"),
            partition_fn=partition,
            decompositions={},
            keep_inference_input_mutations=True,
        )(graph, example_inputs)
    _forget_streams(graph)
    return direct[0] if len(direct) == 1 and direct[0] is not None else out


def _min_cut(joint, *args, **kwargs):
    """PyTorch's partitioner, which may recompute. That of equal operators one is enough it learns here: its own search for
    them imports Inductor's patterns first, which takes as long as compiling a small model."""
    from torch._functorch import config
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    if not config.cse:
        return min_cut_rematerialization_partition(joint, *args, **kwargs)
    joint.graph.eliminate_dead_code()
    _share(joint.graph)
    with config.patch(cse=False):
        return min_cut_rematerialization_partition(joint, *args, **kwargs)


def _share(graph):
    """Lets users of an operator that was called before with the same arguments use the first call. Not of one that draws or
    writes, nor behind a write, nor of one whose memory is a result's: results stay as many tensors as they were."""

    def storages(nodes):
        return {t.untyped_storage()._cdata for n in nodes for t in _tensors(n) if t.layout == torch.strided}

    given = storages(graph.output_node().all_input_nodes)
    seen = {}
    for n in list(graph.nodes):
        if n.op != "call_function":
            continue
        if _is_mutable(n) or not isinstance(n.target, torch._ops.OpOverload | types.BuiltinFunctionType):
            break
        if _is_random(n) or n.target in (torch.ops.aten.empty.memory_format, torch.ops.aten.empty_strided.default):
            continue
        if not _tensors(n) or any(t.layout != torch.strided for t in _tensors(n)) or storages([n]) & given:
            continue
        leaves, spec = pytree.tree_flatten((n.args, n.kwargs))
        key = (n.target, spec, tuple((type(x), repr(x)) if isinstance(x, float) else (type(x), x) for x in leaves))
        try:
            first = seen.setdefault(key, n)
        except TypeError:  # a size that is a symbol
            continue
        if first is not n:
            n.replace_all_uses_with(first)
            graph.erase_node(n)


def _needs_no_wrapper(gm, example_inputs):
    """Whether AOTAutograd's graph takes what Dynamo's graph takes and gives what it gives: then AOTAutograd's wrapper, which
    costs more than a small program, has nothing to do."""
    from torch._functorch._aot_autograd.schemas import OutputType

    meta = torch._guards.TracingContext.get().fw_metadata
    return (
        len(gm.graph.find_nodes(op="placeholder")) == len(example_inputs)
        and all(type(x) in (torch.Tensor, torch.nn.Parameter, torch._subclasses.FakeTensor) for x in example_inputs)
        and not any(i.mutates_data or i.mutates_metadata or i.mutates_storage_metadata for i in meta.input_info)
        and all(o.output_type in (OutputType.non_alias, OutputType.unsafe_view_alias) for o in meta.output_info)
        and meta.num_intermediate_bases == 0
        and meta.grad_enabled_mutation is None
        and not meta.tokens
    )


def _forget_streams(graph):
    """For a device with streams Dynamo looks up the current one before each call of a graph, for which only operators on
    streams ask. A graph without them is called without."""
    from torch._dynamo import graph_bytecode_inputs

    if len(graph_bytecode_inputs.index_to_bytecode_constructor) == 1 and not any(
        "stream" in str(n.target) for m in graph.modules() if isinstance(m, torch.fx.GraphModule) for n in m.graph.nodes
    ):
        graph_bytecode_inputs.reset_user_object_tracking()


def _settings(mode, options):
    if mode is not None and mode not in _MODES:
        raise ValueError(f'torch.compile(backend="tpu"): unknown mode {mode!r}; expected one of {", ".join(_MODES)}')
    out = {name: values[0] for name, values in _OPTIONS.items()}
    options = dict(options or {})
    out["xla"] = _xla_lines(options.pop("xla", None))
    out["buckets"] = _buckets.check(options.pop("buckets", "auto"))
    for name, value in options.items():
        if name not in _OPTIONS:
            known = ", ".join(sorted([*_OPTIONS, "buckets", "xla"]))
            raise ValueError(f'torch.compile(backend="tpu"): unknown option {name!r}; known are {known}')
        if value not in _OPTIONS[name]:
            known = ", ".join(map(repr, _OPTIONS[name]))
            raise ValueError(f'torch.compile(backend="tpu"): option {name!r}: expected one of {known}, got {value!r}')
        out[name] = value
    return out


def _xla_lines(options):
    """XLA's compile options as the core takes them (tpu_capture_xla)."""
    if options is not None and not isinstance(options, dict):
        raise TypeError(f"torch.compile(backend=\"tpu\"): option 'xla': expected {{name: value}}, got {type(options).__name__}")
    lines = ""
    for name, value in (options or {}).items():
        if not isinstance(name, str) or not name.replace("_", "").isalnum():
            raise ValueError(f"torch.compile(backend=\"tpu\"): option 'xla': {name!r} is no name of an option")
        if type(value) is bool:
            text = "true" if value else "false"
        elif type(value) is int and -(1 << 63) <= value < 1 << 63 or type(value) is float:
            text = repr(value)
        elif type(value) is str and "\n" not in value:
            text = f'"{value}"'
        else:
            raise ValueError(
                f"torch.compile(backend=\"tpu\"): option 'xla': {name}: expected a bool, an int of 64 bits, a float or a line of text, got {value!r}"
            )
        lines += f"// xla: {name} = {text}\n"
    return lines


def compile_graph(gm, kind, settings, shared=None, keep=False):
    """A boxed callable for an ATen graph. kind: "graph", "forward" or "backward". shared: a dict for what the forward graph
    has to tell the backward graph. keep: the callable's `state` is what `load` makes it of in another process, if it has one;
    a backward graph is then compiled when it is called."""
    later = _Later(lambda: compile_graph(gm, kind, settings, shared)) if keep and kind == "backward" else None
    settings = {**settings, "keep": keep and ("later" if later else "now")}
    _prepare_rng(gm)
    nodes = list(gm.graph.nodes)
    inputs = [n for n in nodes if n.op == "placeholder"]
    results = pytree.tree_leaves(nodes[-1].args[0], is_leaf=lambda x: x is None)
    wanted = list(dict.fromkeys(r for r in results if isinstance(r, Node)))
    plan = _Plan(gm, [n for n in nodes if n.op == "call_function"], inputs, wanted, frozenset(), kind, settings)
    if shared is not None:
        plan.shared = shared
    plan.returned = _returned(results, kind)
    if later is not None and not plan.is_one_program():
        return later
    try:
        plan.prepare()
    except Exception:
        if later is None:
            raise
        return later  # which raises it when the backward graph is wanted
    whole = plan.whole()
    where = {n: i for i, n in enumerate(wanted)}
    # of each result: the number of a node of `wanted`, or the value
    gives = [(where[r], None) if isinstance(r, Node) else (None, r) for r in results]
    if whole is not None:
        takes = None if plan.parts[0].inputs == inputs else [inputs.index(n) for n in plan.parts[0].inputs]
        order = (takes, None if results == wanted else gives)
        call = _call_whole(whole, *order)
        if whole.state is not None:
            call.state = (*whole.state, *order)
        return call

    def call(args):
        values = list(args)
        args.clear()
        return _in_order(plan.run(values), gives)

    call._boxed_call = True
    return call


def _in_order(out, gives):
    return [out[i] if i is not None else r for i, r in gives]


def _call_whole(whole, takes, gives):
    """The boxed callable of a graph that is one program. takes: which arguments it takes; gives: what it gives, as for
    _in_order. None: all, in order."""
    run, handle = torch.ops.torch_tpu.run_graph.default._op, whole.handle
    if whole.plain and takes is None and gives is None and not whole.waits:

        def call(args):
            out = run(handle, args)
            args.clear()
            return out

        call.direct = lambda *args, _=whole: run(handle, args)
    else:

        def call(args):
            values = list(args) if takes is None else [args[i] for i in takes]
            args.clear()
            out = whole.run(values)
            return out if gives is None else _in_order(out, gives)

    call.program = whole  # the handle lives as long as the callable
    call._boxed_call = True
    return call


class _Later:
    """The callable of a graph that is compiled when it is called."""

    _boxed_call = True

    def __init__(self, make):
        self.make, self.made, self.lock = make, None, threading.Lock()

    def __call__(self, args):
        with self.lock:
            self.made = self.made or self.make()
        return self.made(args)


def load(state):
    """The boxed callable that another process had such a state of."""
    kept, kind, xla, takes, numbers, outputs, *order = state
    handle = torch.ops.torch_tpu.graph_stored(torch.frombuffer(bytearray(kept), dtype=torch.uint8), kind)
    whole = _Compiled(handle, takes, numbers, outputs, _used, xla)
    if kind != "backward":
        whole.compile()
    return _call_whole(whole, *order)


def _used(handle):
    _megacache.record(torch.ops.torch_tpu.graph_entry(handle))


def _returned(results, kind):
    """Names of the nodes that leave the compiled function; a forward graph also gives what the backward graph needs."""
    context = torch._guards.TracingContext.try_get()
    meta = context.fw_metadata if context is not None else None
    n = meta.num_forward_returns if kind == "forward" and meta is not None else len(results)
    return {r.name for r in results[:n] if isinstance(r, Node)}


# ---- cutting ---------------------------------------------------------------------------------------------------------


def _tensors(node):
    return [v for v in pytree.tree_leaves(node.meta.get("val")) if isinstance(v, torch.Tensor)]


def _is_cpu(node):
    found = _tensors(node)
    return bool(found) and all(t.device.type == "cpu" for t in found)


def _is_random(node):
    target = node.args[0] if node.target is rng_prims.run_and_save_rng_state else node.target
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in target.tags


def _is_mutable(node):
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _uses(node):
    return [n for n in node.all_input_nodes if n.op != "get_attr"]


def _draws_on_tpu(node):
    """Of run_with_rng_state, whose own result is not described."""
    tensors = _tensors(node) or [t for u in node.all_input_nodes if u is not node.args[0] for t in _tensors(u)]
    devices = [t.device for t in tensors] or [torch.device(node.kwargs.get("device") or "cpu")]
    return any(d.type == "tpu" for d in devices)


def _prepare_rng(gm):
    """What activation checkpointing draws twice: AOTAutograd keeps the generator's state of the first time, and describes it
    as that of the CPU's generator. Here it is a tensor of the device."""
    nodes = gm.graph.nodes
    for n in nodes:
        if n.target is rng_prims.run_and_save_rng_state:
            state, drawn = (next((u for u in n.users if u.args[1] == i), None) for i in (0, 1))
            if drawn is not None:
                n.meta["val"] = drawn.meta.get("val")
            if state is not None and _tensors(n) and not _is_cpu(n):
                state.meta["val"] = torch.empty(2, dtype=torch.uint64, device="meta")
        elif n.target is rng_prims.run_with_rng_state and _draws_on_tpu(n):
            n.args[0].meta["val"] = torch.empty(2, dtype=torch.uint64, device="meta")


class _Plan:
    """Nodes of a graph as a list of parts that run one after the other."""

    def __init__(self, gm, nodes, inputs, outputs, eager, kind, settings):
        self.gm, self.nodes, self.inputs, self.outputs = gm, nodes, inputs, outputs
        self.eager, self.kind, self.settings = eager, kind, settings
        self.shared, self.returned = {}, {n.name for n in outputs}
        levels = self._levels()
        self.parts = []
        for level in sorted(set(levels.values())):
            inside = [n for n in nodes if levels[n] == level]
            self.parts.append((_Program if level % 2 else _Host)(self, inside))
        place = {n: i for i, n in enumerate((*inputs, *nodes))}
        needed = set(outputs)
        for part in reversed(self.parts):
            own = set(part.nodes)
            part.outputs = [n for n in (outputs if len(self.parts) == 1 else part.nodes) if n in needed]
            part.inputs = sorted({u for n in part.nodes for u in _uses(n) if u not in own}, key=place.get)
            if len(self.parts) == 1:
                part.inputs = [n for n in inputs if n in outputs or n in part.inputs]
            needed.update(part.inputs)

    def _levels(self):
        """Odd levels are programs, even ones run on the host; a node's level is no lower than that of what it uses."""
        device = {n: self._on_device(n) for n in self.nodes}
        own = set(self.nodes)
        for n in reversed(self.nodes):  # a CPU constant belongs to a program only when nothing else needs it
            if (
                device[n] is None
                and n.target is not operator.getitem
                and _is_cpu(n)
                and (n in self.outputs or any(device.get(u) is False for u in n.users))
            ):
                device[n] = False
        levels, top, drawn = {}, 0, 0
        for n in self.nodes:
            below = [(levels[u], device[u]) for u in _uses(n) if u in own]
            mine = device[n]
            if mine is None:
                level = max((level for level, _ in below), default=1)
                device[n] = mine = level % 2 == 1
            level = max([1 if mine else 0, *(level if level % 2 == mine else level + 1 for level, _ in below)])
            floor = top if _is_mutable(n) else drawn if _is_random(n) else 0  # writes come last, draws keep their order
            level = max(level, floor if floor % 2 == mine else floor + 1)
            levels[n] = level
            top = max(top, level)
            if _is_random(n):
                drawn = level
        return levels

    def _on_device(self, n):
        """True: part of a program; False: on the host; None: where its users are."""
        if n in self.eager or n.target is torch.ops.aten._local_scalar_dense.default:
            return False
        uses = _uses(n)
        if any(t.layout != torch.strided for u in (n, *uses) for t in _tensors(u)):
            return False  # a sparse tensor is several of the device
        if not _tensors(n) or n.target is operator.getitem:
            return None
        if not _is_cpu(n):
            return True
        if any(_tensors(u) and (u.op == "placeholder" or u not in self._free) for u in uses) or _is_random(n):
            return False
        self._free.add(n)
        return None

    @property
    def _free(self):
        return self.__dict__.setdefault("_free_nodes", set())

    def prepare(self):
        for part in self.parts:
            part.prepare()

    def whole(self):
        """The one program that is all of the plan; None when there is none, or one for each shape."""
        part = self.parts[0] if len(self.parts) == 1 else None
        return part.fixed if isinstance(part, _Program) and part.outputs == self.outputs else None

    def is_one_program(self):
        """Whether it is, as far as can be told before it is captured."""
        return len(self.parts) == 1 and isinstance(self.parts[0], _Program) and self.parts[0].is_static()

    def run(self, values):
        env = dict(zip(self.inputs, values, strict=True))
        for part in self.parts:
            env.update(zip(part.outputs, part.run([env[n] for n in part.inputs]), strict=True))
        return [env[n] if n in env else _fresh(_value(self.gm, n, env)) for n in self.outputs]


def _value(gm, x, env):
    if x.op == "get_attr":
        out = gm
        for name in x.target.split("."):
            out = getattr(out, name)
        return out
    return env[x]


def _call(gm, node, env):
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: _value(gm, n, env))
    return node.target(*args, **kwargs)


def _capture_call(gm, node, env):
    ops = torch.ops.torch_tpu
    if node.target in _CONTROL_FLOW:
        return _CONTROL_FLOW[node.target](node, *torch.fx.map_arg(node.args, lambda n: _value(gm, n, env)))
    if node.target is rng_prims.run_and_save_rng_state:
        return ops.capture_rng_state(), _draw(gm, node, env, 0)
    if node.target is rng_prims.run_with_rng_state:
        ops.capture_use_rng(env[node.args[0]])
        out = _draw(gm, node, env, 1)
        ops.capture_use_rng(None)
        return out
    return _call(gm, node, env)


# ---- control flow ----------------------------------------------------------------------------------------------------
# Operators that take graphs. Inside a capture a graph's operators become the regions of one `if` or `while`.


def _inline(gm, args):
    """Runs a graph's operators; its results as a list."""
    env = dict(zip((n for n in gm.graph.nodes if n.op == "placeholder"), args, strict=True))
    for n in gm.graph.nodes:
        if n.op == "call_function":
            env[n] = _capture_call(gm, n, env)
    return [_value(gm, r, env) if isinstance(r, Node) else r for r in pytree.tree_leaves(gm.graph.output_node().args[0])]


def _tensors_only(values):
    if not all(on_tpu(v) for v in values):
        raise NotImplementedError("numbers and tensors on the CPU cannot pass through control flow of a program")
    return list(values)


_IF, _ELSE, _END_IF, _WHILE, _BODY, _END_WHILE = range(6)  # tpu_region_step


def _region(step, values, like):
    """One step of control flow in the capture; tensors like `like`, which the region starts from or which are the results."""
    return torch.ops.torch_tpu.capture_region(step, _tensors_only(values), like)


def _cond(node, pred, true, false, operands=()):
    if not isinstance(pred, torch.Tensor):
        return _inline(true if pred else false, operands)
    _region(_IF, [pred], [])
    _region(_ELSE, _inline(true, operands), [])
    results = _inline(false, operands)
    return _region(_END_IF, results, results)


def _while(condition, body, carried):
    """condition and body: functions of the carried tensors."""
    now = _region(_WHILE, carried, carried)
    now = _region(_BODY, [condition(now)], now)
    results = body(now)
    return _region(_END_WHILE, results, results)


def _while_loop(node, condition, body, carried, additional=()):
    return _while(lambda now: _inline(condition, [*now, *additional])[0], lambda now: _inline(body, [*now, *additional]), carried)


def _for_each(length, step, carried, stacked):
    """carried = step(i, carried)[0] for each i below length; its other results are laid into `stacked` at i."""
    device = stacked[0].device if stacked else carried[0].device
    n = len(carried)

    def body(now):
        at = now[0].reshape(1)
        after, items = step(at, now[1 : n + 1])
        rows = [t.index_copy(0, at, x.unsqueeze(0)) for t, x in zip(now[n + 1 :], items, strict=True)]
        return [now[0] + 1, *after, *rows]

    first = torch.zeros((), dtype=torch.int64, device=device)
    out = _while(lambda now: now[0] < length, body, [first, *carried, *stacked])
    return out[1:]


def _rows(xs, at):
    return [x.index_select(0, at).squeeze(0) for x in xs]


def _like(values):
    """Zeros like the traced values."""
    return [torch.zeros(v.shape, dtype=v.dtype, device=v.device) for v in values]


def _scan(node, combine, init, xs, additional=()):
    init, xs = _tensors_only(init), _tensors_only(xs)

    def step(at, now):
        out = _inline(combine, [*now, *_rows(xs, at), *additional])
        return out[: len(init)], out[len(init) :]

    return _for_each(xs[0].shape[0], step, init, _like(node.meta["val"][len(init) :]))


def _map(node, body, xs, additional=()):
    xs = _tensors_only(xs)
    return _for_each(
        xs[0].shape[0], lambda at, _: ([], _inline(body, [*_rows(xs, at), *additional])), [], _like(node.meta["val"])
    )


def _associative_scan(node, combine, xs, additional=()):
    xs = _tensors_only(xs)
    first = [x[0] for x in xs]

    def step(at, now):
        out = _inline(combine, [*now, *_rows(xs, at + 1), *additional])
        return out, out

    rest = _like([v[1:] for v in node.meta["val"]])
    if not rest[0].shape[0]:
        return [x.clone() for x in xs]
    out = _for_each(rest[0].shape[0], step, first, rest)[len(xs) :]
    return [torch.cat([f.unsqueeze(0), o]) for f, o in zip(first, out, strict=True)]


def _subgraph(node, gm, identifier, *operands):
    return _inline(gm, operands)


def _flex(node, *args):
    """The scores as one matrix: PyTorch's own definition, whose operators XLA fuses."""
    from torch._higher_order_ops.flex_attention import sdpa_dense

    return sdpa_dense(*args)


def _flex_backward(node, *args):
    from torch._higher_order_ops.flex_attention import sdpa_dense_backward

    return sdpa_dense_backward(*args)


_CONTROL_FLOW = {
    torch.ops.higher_order.cond: _cond,
    torch.ops.higher_order.while_loop: _while_loop,
    torch.ops.higher_order.scan: _scan,
    torch.ops.higher_order.map_impl: _map,
    torch.ops.higher_order.associative_scan: _associative_scan,
    torch.ops.higher_order.invoke_subgraph: _subgraph,
    torch.ops.higher_order.flex_attention: _flex,
    torch.ops.higher_order.flex_attention_backward: _flex_backward,
}


def _draw(gm, node, env, at):
    args, kwargs = torch.fx.map_arg((node.args[at + 1 :], node.kwargs), lambda n: _value(gm, n, env))
    return node.args[at](*args, **kwargs)


class _Host:
    """Nodes that run one by one."""

    def __init__(self, plan, nodes):
        self.plan, self.nodes = plan, nodes

    def prepare(self):
        pass

    def run(self, values):
        env = dict(zip(self.inputs, values, strict=True))
        for n in self.nodes:
            env[n] = _call(self.plan.gm, n, env)
        return [_value(self.plan.gm, n, env) for n in self.outputs]


def _fresh(x):
    return x.clone() if isinstance(x, torch.Tensor) else x


def _say_options(error, xla):
    """Raises an error of XLA again, with the options that it was given, if any."""
    if xla:
        given = ", ".join(line.removeprefix("// xla: ") for line in xla.splitlines())
        raise RuntimeError(f'torch.compile(backend="tpu") with the options of XLA {given}: {error}') from error


class _Compiled(Graph):
    """A program, and what its callers need to know."""

    def __init__(self, handle, takes, numbers, outputs, waits=None, xla="", state=None):
        super().__init__(handle)
        self.takes = takes  # numbers of the inputs that it takes, which are tensors
        self.numbers = numbers  # {number of an output: its value} of outputs that are always the same: no tensors of the device
        self.noutputs = outputs
        self.plain = not numbers
        self.waits = waits  # it is not compiled yet; a function of the handle, for when it is
        self.xla = xla
        self.state = state  # for `load`, or None

    def compile(self):
        with _compiling:
            if self.waits is None:
                return
            try:
                torch.ops.torch_tpu.graph_compile(self.handle)
            except RuntimeError as error:
                _say_options(error, self.xla)
                raise
            self.waits(self.handle)
            self.waits = None

    def run(self, values):
        if self.waits is not None:
            self.compile()
        out = super().run([values[i] for i in self.takes])
        if self.plain:
            return out
        tensors = iter(out)
        return [_fresh(self.numbers[i]) if i in self.numbers else next(tensors) for i in range(self.noutputs)]


class _Program:
    """Nodes that run as one program: one for each set of sizes and numbers, or, when those are known, a single one."""

    def __init__(self, plan, nodes):
        self.plan, self.nodes = plan, nodes
        self.fixed = self.split = self.buckets = None
        self.known = {}

    def is_static(self):
        values = [n.meta.get("val") for n in self.inputs]
        return all(isinstance(v, torch.Tensor) and _is_static(v) for v in values)

    def prepare(self):
        if self.is_static():
            self.fixed = self._compile([n.meta.get("val") for n in self.inputs])
        elif len(self.plan.parts) == 1 and self.plan.settings["buckets"] != "off":
            try:
                self.buckets = _buckets.Buckets(self, self.plan.settings, self.plan.shared, self.plan.returned)
            except _buckets.Refused as refused:
                _buckets.say(self.name(), refused)

    def run(self, values):
        if self.split is not None:
            return self.split.run(values)
        if self.buckets is not None:
            try:
                return self.buckets.run(values)
            except _buckets.Refused as refused:
                _buckets.say(self.name(), refused)
                values = self.buckets.true_values(values)
        compiled = self.fixed
        if compiled is None:
            key = tuple(tuple(v.shape) if isinstance(v, torch.Tensor) else (type(v), v) for v in values)
            compiled = self.known.get(key)
            if compiled is None:
                compiled = self._compile(values)
                if compiled is None:
                    return self.split.run(values)
                self.known[key] = compiled
        return compiled.run(values)

    def _compile(self, values):
        """The program for such values; None: it was split."""
        plan = self.plan
        node, error = None, None
        with _plain_kernels():
            try:
                return self._capture(values)
            except _Refused as refused:
                node, error = refused.node, refused.__cause__
        self._warn(node, error)
        self.split = _Plan(plan.gm, self.nodes, self.inputs, self.outputs, plan.eager | {node}, plan.kind, plan.settings)
        self.split.prepare()
        return None

    def capture(self, values, end):
        """Captures for such values; end(outputs, inputs) gives what becomes of it, and ends the capture."""
        with _plain_kernels():
            return self._capture(values, end)

    def _begin(self, device, end):
        torch.ops.torch_tpu.capture_begin(device)
        if self.plan.settings["xla"]:
            torch.ops.torch_tpu.capture_xla(self.plan.settings["xla"])
        if end is not None:
            torch.ops.torch_tpu.capture_sizes_vary()

    def _capture(self, values, end=None):
        ops = torch.ops.torch_tpu
        device = next(t.device for n in (*self.nodes, *self.inputs) for t in _tensors(n) if t.device.type == "tpu")
        last = {u: n for n in self.nodes for u in _uses(n)}
        keep = {*self.outputs, *(self.inputs if end is not None else ())}
        self._begin(device, end)
        node = None
        try:
            env, takes = {}, []
            for i, (n, v) in enumerate(zip(self.inputs, values, strict=True)):
                if isinstance(v, torch.Tensor):
                    takes.append(i)
                    env[n] = ops.capture_input(list(v.shape), list(v.stride()), v.dtype)
                else:
                    env[n] = v
            for node in self.nodes:
                env[node] = _capture_call(self.plan.gm, node, env)
                for u in _uses(node):
                    if last[u] is node and u not in keep:
                        env.pop(u, None)
            node = None
            outputs = [_value(self.plan.gm, n, env) for n in self.outputs]
            if end is not None:
                return end(outputs, [env.get(n) for n in self.inputs])
            tensors = [v for v in outputs if on_tpu(v)]
            keep = self.plan.settings.get("keep", False)
            handle = ops.capture_end(tensors, self.plan.kind, self.name(), bool(keep))
        except BaseException as error:
            refused = ops.capture_drop()
            if node is not None and isinstance(error, Exception) and (refused or not _is_aten(node)):
                raise _Refused(node) from error
            if node is not None and isinstance(error, Exception):
                error.add_note(f'while compiling {node.target} for torch.compile(backend="tpu"){_line(node)}')
            elif isinstance(error, RuntimeError):
                _say_options(error, self.plan.settings["xla"])
            raise
        numbers = {i: v for i, v in enumerate(outputs) if not on_tpu(v)}
        if not keep:
            self.made(handle)
            return _Compiled(handle, takes, numbers, len(outputs))
        try:
            kept = ops.graph_store(handle).numpy().tobytes()
        except RuntimeError:  # it holds tensors
            kept = None
        state = None if kept is None else (kept, self.plan.kind, self.plan.settings["xla"], takes, numbers, len(outputs))
        out = _Compiled(handle, takes, numbers, len(outputs), self.made, self.plan.settings["xla"], state)
        if keep == "now":
            out.compile()
        return out

    def made(self, handle):
        _megacache.record(torch.ops.torch_tpu.graph_entry(handle))
        if os.environ.get("TORCH_TPU_DUMP"):
            _dump(torch.ops.torch_tpu.graph_hash(handle), self)

    def name(self):
        line = next((_line(n) for n in self.nodes if _line(n)), "")
        return f"compiled {self.plan.kind}{line}"

    def _warn(self, node, error):
        policy = "error" if os.environ.get("TORCH_TPU_FALLBACK") == "error" else self.plan.settings["fallback"]
        text = (
            f'torch.compile(backend="tpu"): {node.target}{_line(node)} cannot be part of the compiled program '
            f"({str(error).splitlines()[0] if str(error) else type(error).__name__})"
        )
        if policy == "error":
            raise NotImplementedError(f"{text}; the fallback to eager mode is switched off") from error
        if node.target not in _warned:
            _warned.add(node.target)
            warnings.warn(f"{text}; it runs by itself between two programs", UserWarning, stacklevel=2)


def _dump(name, part):
    """Beside the core's files of a program: its FX graph, and what XLA made of it as text."""
    folder = os.environ["TORCH_TPU_DUMP"]
    stem = next((f.removesuffix(".mlir") for f in sorted(os.listdir(folder)) if f.endswith(f".{name}.mlir")), None)
    if not name or stem is None:
        return
    stem = os.path.join(folder, stem)
    lines = [f"# {part.name()}"]
    if len(part.nodes) != sum(n.op == "call_function" for n in part.plan.gm.graph.nodes):
        lines.append(f"# A part of the graph: {', '.join(n.name for n in part.nodes)}")
    lines.append(part.plan.gm.print_readable(print_output=False, include_stride=True, include_device=True))
    with open(f"{stem}.fx.py", "w", encoding="utf-8") as f:
        f.write("\n".join(lines) + "\n")
    with contextlib.suppress(OSError), open(f"{stem}.hlo_with_config.pb", "rb") as f:
        from torch_tpu.aot import _hlo

        with open(f"{stem}.hlo.txt", "w", encoding="utf-8") as out:
            out.write(_hlo.read(f.read()).text(fused=True))


class _Refused(Exception):
    def __init__(self, node):
        self.node = node


@contextlib.contextmanager
def _plain_kernels():
    """The graph says everything: no mode of the place where it is compiled may change what its operators do."""
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes(), torch.no_grad(), torch._C._DisableAutocast():
        yield


def _is_aten(node):
    return isinstance(node.target, torch._ops.OpOverload) and node.target.namespace in ("aten", "prims", "tpu")


def _is_static(t):
    return all(type(n) is int for n in (*t.shape, *t.stride()))


def _line(node):
    """The place in the user's code that the node comes from, as text to append: at file:line, or nothing."""
    found = ""
    for line in (node.meta.get("stack_trace") or "").splitlines():
        parts = line.strip().split(", ")
        if parts[0].startswith('File "') and len(parts) > 1 and parts[1].startswith("line "):
            found = f" at {parts[0][6:-1]}:{parts[1][5:]}"
    return found
