"""One Python function as one program: it is run once with tensors that have no values, through the kernels of eager mode,
while the core captures what they would do. Parameters, buffers, gradients and optimizer states become inputs of the program;
what the function writes to them becomes outputs."""

import contextlib
import functools
import gc
import itertools
import types
from dataclasses import dataclass

import torch
from torch.utils import _pytree as pytree

from torch_tpu import _core
from torch_tpu.aot import _mesh


@dataclass
class Value:
    """An input or an output of a program."""

    name: str  # "layers.0.weight", "argument 0", "layers.0.weight exp_avg", "result 0"
    kind: str  # argument, parameter, buffer, gradient, optimizer, tensor, result, random
    shape: tuple
    dtype: torch.dtype
    place: tuple | None = None  # for each axis of the mesh the dim that is split over it, or -1; None: no mesh, or not known

    @property
    def nbytes(self):
        """Bytes of its elements."""
        n = self.dtype.itemsize
        for d in self.shape:
            n *= d
        return n

    def __str__(self):
        return f"{self.kind} {self.name} {str(self.dtype)[6:]}[{', '.join(map(str, self.shape))}]"


RANDOM_STATE = Value("the generator's state", "random", (2,), torch.uint64)


@dataclass
class Captured:
    """A captured program."""

    text: str  # StableHLO
    parameters: list  # of the program, as Value
    outputs: list
    result: object  # what the function returned, with Values in place of tensors
    form: object  # _form.Form


# ---- what a function holds -------------------------------------------------------------------------------------------


def _holders(fn, args, extra):
    """Modules, optimizers and tensors that the function can reach: itself, what it is bound to, its closure, the globals that
    its code names, and what it is given."""
    found, seen = [], set()

    def visit(x, name, depth):
        if id(x) in seen or depth > 4:
            return
        if isinstance(x, (torch.nn.Module, torch.optim.Optimizer, torch.Tensor)):
            seen.add(id(x))
            found.append((name, x))
        elif isinstance(x, types.MethodType):
            visit(x.__self__, name, depth + 1)
            visit(x.__func__, name, depth + 1)
        elif isinstance(x, types.FunctionType):
            seen.add(id(x))
            for cell, n in zip(x.__closure__ or (), x.__code__.co_freevars, strict=True):
                with contextlib.suppress(ValueError):  # an empty cell
                    visit(cell.cell_contents, n, depth + 1)
            for n in _names(x.__code__):
                if n in x.__globals__:
                    visit(x.__globals__[n], n, depth + 1)
            for v in x.__defaults__ or ():
                visit(v, "default", depth + 1)
            for n, v in (x.__kwdefaults__ or {}).items():
                visit(v, n, depth + 1)
            visit(getattr(x, "__wrapped__", None), name, depth + 1)
        elif isinstance(x, functools.partial):
            seen.add(id(x))
            for v in (x.func, *x.args, *x.keywords.values()):
                visit(v, name, depth + 1)
        elif isinstance(x, dict):
            seen.add(id(x))
            for k, v in x.items():
                visit(v, f"{name}.{k}", depth + 1)
        elif isinstance(x, (list, tuple)):
            seen.add(id(x))
            for k, v in enumerate(x):
                visit(v, f"{name}.{k}", depth + 1)
        elif hasattr(x, "_optimizer") and isinstance(x._optimizer, torch.optim.Optimizer):
            visit(x._optimizer, name, depth + 1)
        elif hasattr(x, "__dict__") and not isinstance(x, (types.ModuleType, type)) and depth < 3:
            seen.add(id(x))
            for k, v in list(vars(x).items()):
                visit(v, f"{name}.{k}", depth + 1)

    visit(args, "argument", 0)
    visit(extra, "state", 0)
    visit(fn, "", 0)
    return found


def _names(code):
    out = list(code.co_names)
    for c in code.co_consts:
        if isinstance(c, types.CodeType):
            out += _names(c)
    return out


def _is_number(t):
    """A CPU scalar with a value, such as the step of an optimizer: it is read on the host, so it stays."""
    return t.dim() == 0 and t.device.type == "cpu" and type(t) is torch.Tensor


class _State:
    """The tensors that become inputs."""

    def __init__(self, fn, args, kwargs, extra):
        self.items, self.owners, self.ids = [], {}, {}
        self.optimizers, modules = [], []
        arguments = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        for i, t in enumerate(arguments):
            self._add(t, f"argument {i}", "argument")
        for name, x in _holders(fn, (args, kwargs), extra):
            if isinstance(x, torch.nn.Module):
                modules.append((name, x))
            elif isinstance(x, torch.optim.Optimizer):
                self.optimizers.append(x)
        self.modules = [m for _, m in modules]
        for name, m in modules:
            prefix = f"{name}." if name and len(modules) > 1 else ""
            for n, p in m.named_parameters():
                self._add(p, prefix + n, "parameter")
            for n, b in m.named_buffers():
                self._add(b, prefix + n, "buffer")
        for name, x in _holders(fn, (args, kwargs), extra):
            if isinstance(x, torch.Tensor):
                self._add(x, name, "parameter" if isinstance(x, torch.nn.Parameter) else "tensor")
        for k, o in enumerate(self.optimizers):
            for g, group in enumerate(o.param_groups):
                for i, p in enumerate(group["params"]):
                    self._add(p, f"optimizer {k} group {g} parameter {i}", "parameter")
        for t, name, kind in list(self.items):
            if kind in ("parameter", "argument", "tensor") and t.is_leaf and t.grad is not None:
                self._add(t.grad, name, "gradient", t)
        self.grads = [(t, t.grad) for t, _, _ in self.items if t.is_leaf and t.requires_grad]

    def _add(self, t, name, kind, owner=None):
        if id(t) in self.ids:
            return
        if owner is not None and id(owner) in self.ids and owner.shape == t.shape:
            self.owners[len(self.items)] = self.ids[id(owner)]
        if t.layout != torch.strided:
            raise NotImplementedError(
                f"torch.tpu.aot.compile: {kind} {name} is a {t.layout} tensor; only dense ones can be compiled ahead of time"
            )
        self.ids[id(t)] = len(self.items)
        self.items.append((t, name, kind))

    def add_optimizer_state(self):
        """What the optimizers keep for each parameter; numbers that they read on the host stay."""
        for o in self.optimizers:
            for p, state in o.state.items():
                name = self.items[self.ids[id(p)]][1] if id(p) in self.ids else "?"
                for key, t in state.items():
                    if isinstance(t, torch.Tensor) and not _is_number(t):
                        self._add(t, f"{name} {key}", "optimizer", p)

    def values(self):
        """What the inputs are."""
        return [Value(name, kind, tuple(t.shape), t.dtype) for t, name, kind in self.items]

    def place(self, placing):
        """The place of each input on the mesh: gradients and states of optimizers are where their parameter is."""
        out = []
        for i, v in enumerate(self.values()):
            owner = self.owners.get(i)
            out.append(tuple(placing.of(v, None if owner is None else list(out[owner]))))
        placing.check([name for _, name, _ in self.items])
        return out

    def incomplete(self):
        """Whether an optimizer has yet to make its state."""
        return any(p.requires_grad and not o.state.get(p) for o in self.optimizers for g in o.param_groups for p in g["params"])


@contextlib.contextmanager
def _restored(optimizers):
    """Gives the optimizers' states back as they were, host numbers included."""
    saved = [
        (
            o,
            {
                p: {k: (v, v.clone() if isinstance(v, torch.Tensor) and _is_number(v) else None) for k, v in s.items()}
                for p, s in o.state.items()
            },
        )
        for o in optimizers
    ]
    groups = [[dict(g) for g in o.param_groups] for o in optimizers]
    try:
        yield
    finally:
        for (o, states), old in zip(saved, groups, strict=True):
            o.state.clear()
            for p, s in states.items():
                o.state[p] = {k: v for k, (v, _) in s.items()}
                for v, copy in s.values():
                    if copy is not None:
                        v.copy_(copy)
            for g, was in zip(o.param_groups, old, strict=True):
                g.update({k: v for k, v in was.items() if k != "params"})


# ---- capturing -------------------------------------------------------------------------------------------------------


def _stand_in(t):
    made = torch.ops.torch_tpu.capture_input(list(t.shape), list(t.stride()), t.dtype)
    if isinstance(t, torch.nn.Parameter):
        return torch.nn.Parameter(made, requires_grad=t.requires_grad)
    return made.requires_grad_(t.requires_grad and t.is_leaf)


def _where_line():
    """file:line of the user's code: of the forward operator while its gradient is computed."""
    node = torch._C._current_autograd_node()
    if node is None:
        return None
    for entry in reversed(node.metadata.get("traceback_") or ()):
        head = entry.strip().splitlines()[0] if entry.strip() else ""
        if head.startswith('File "') and ", line " in head:
            file, _, rest = head[6:].partition('", line ')
            if "/torch/" not in file and "/torch_tpu/" not in file:
                return f"{file}:{rest.split(',')[0]}"
    return None


@contextlib.contextmanager
def _conditions():
    """No threads for the backward pass (a capture belongs to one), autograd's nodes know their lines, and what torch.compile
    would make runs as plain operators, for a program cannot call another."""
    with (
        torch.autograd.set_multithreading_enabled(False),
        torch.autograd.set_detect_anomaly(True, check_nan=False),
        torch.compiler.set_stance("force_eager"),
        _core.lines_from(_where_line),
    ):
        yield


def _exchange(t, other):
    """Gives two tensors each other's content; whoever holds one of the objects holds the other content now. What
    torch.utils.swap_tensors does, without its wish that no graph of autograd is left."""
    t.__class__, other.__class__ = other.__class__, t.__class__
    t.__dict__, other.__dict__ = other.__dict__, t.__dict__
    torch._C._swap_tensor_impl(t, other)


class _Run:
    """One capture of a function."""

    def __init__(self, state, name, mesh=None, places=None):
        self.state, self.name, self.pairs = state, name, []
        self.given = ()  # (args, kwargs) of the call
        self.mesh, self.places = mesh, places

    def __enter__(self):
        ops = torch.ops.torch_tpu
        ops.capture_begin(torch.device("tpu", torch.tpu.current_device()), True)
        try:
            if self.mesh:
                ops.capture_mesh(list(self.mesh.names), list(self.mesh.sizes))
            for t, _ in self.state.grads:
                t.grad = None
            for i, (t, _, _) in enumerate(self.state.items):
                other = _stand_in(t)
                if self.places:
                    self._place(i)
                _exchange(t, other)
                self.pairs.append((t, other))
            for t, g in self.state.grads:
                t.grad = g  # the Python object, which stands for an input by now
        except BaseException:
            self._leave()
            raise
        return self

    def _place(self, i):
        try:
            torch.ops.torch_tpu.capture_place(i, list(self.places[i]))
        except (ValueError, IndexError, RuntimeError) as error:
            t, name, kind = self.state.items[i]
            raise ValueError(
                f"torch.tpu.aot.compile: {kind} {name} {list(t.shape)} cannot be placed as "
                f"({_mesh.words(self.mesh, self.places[i])}): {str(error).splitlines()[0]}"
            ) from None

    def _leave(self):
        torch.ops.torch_tpu.capture_drop()
        for t, _ in self.state.grads:
            t.grad = None
        gc.collect()  # graphs of autograd hold on to the stand-ins
        while self.pairs:
            t, other = self.pairs.pop()
            _exchange(t, other)
        for t, g in self.state.grads:
            t.grad = g

    def __exit__(self, *_):
        self._leave()

    def call(self, fn, args, kwargs):
        self.given = (args, kwargs)
        try:
            with _conditions(), _mesh.current(self.mesh):
                return fn(*args, **kwargs)
        except Exception as error:
            if torch.ops.torch_tpu.capture_drop():
                raise RuntimeError(
                    f"torch.tpu.aot.compile: {self.name} cannot be one program: {str(error).splitlines()[0]}{_line(error)}. "
                    "Keep reads (.item(), .cpu(), print, if on a tensor) out of it: return the tensor instead"
                ) from error
            raise

    def end(self, result):
        from torch_tpu.aot import _form  # which imports this

        ops = torch.ops.torch_tpu
        leaves, spec = pytree.tree_flatten(result)
        stand = {id(t): i for i, (t, _) in enumerate(self.pairs)}
        outputs, values = [], []
        for i, x in enumerate(leaves):
            if isinstance(x, torch.Tensor) and x.device.type == "tpu":
                outputs.append(x.detach())
                values.append(Value(f"result {i}", "result", tuple(x.shape), x.dtype))
                leaves[i] = values[-1]
        at_of = self.places or [None] * len(self.state.items)
        known = {id(g) for _, g in self.state.grads if g is not None}
        for t, _ in self.state.grads:
            g = t.grad
            if g is not None and id(g) not in known and g.device.type == "tpu":
                at = at_of[stand[id(t)]]
                outputs.append(g.detach() if at is None else ops.capture_constrain(g.detach(), list(at)))
                values.append(Value(self.state.items[stand[id(t)]][1], "gradient", tuple(g.shape), g.dtype, at))
        for name, t in self._new_state(stand):
            outputs.append(t.detach())
            values.append(Value(name, "optimizer" if " " in name else "buffer", tuple(t.shape), t.dtype))
        handle = ops.capture_end(outputs, "graph", self.name, True)
        del outputs
        try:
            text, parameters, places, blocks = ops.graph_text(handle)
            takes, gives, results, of, empty, donated = ops.graph_parts(handle)
        finally:
            ops.release_graph(handle)
        inputs = self.state.values()
        for v, at in zip(inputs, at_of, strict=True):
            v.place = at
        constant = Value("a tensor of the function", "tensor", (), torch.uint8)
        given, in_spec = pytree.tree_flatten(self.given)
        form = _form.Form(
            list(zip(inputs, takes, strict=True)), parameters, [bool(d) for d in donated], gives, places,
            list(zip(values, results, strict=True)), of, empty, blocks,
            [inputs[self.state.ids[id(x)]] if isinstance(x, torch.Tensor) else x for x in given], in_spec, leaves, spec,
        )  # fmt: skip
        first = {}  # of each new store, what the function calls it
        for v, store in zip(values, of, strict=True):
            first.setdefault(store, v)
        new = itertools.count()
        return Captured(
            text,
            [inputs[p] if p >= 0 else RANDOM_STATE if p == -1 else constant for p in parameters],
            [inputs[p] if p >= 0 else first[next(new)] for p in places],
            pytree.tree_unflatten(leaves, spec),
            form,
        )

    def _new_state(self, stand):
        for o in self.state.optimizers:
            for p, s in o.state.items():
                for k, t in s.items():
                    if isinstance(t, torch.Tensor) and t.device.type == "tpu" and id(t) not in stand:
                        yield f"{self.state.items[stand[id(p)]][1] if id(p) in stand else '?'} {k}", t
        for m in self.state.modules:
            for n, b in m.named_buffers():
                if b.device.type == "tpu" and id(b) not in stand:
                    yield n, b


def _line(error):
    """The last place of the traceback outside of torch and of this package."""
    found, tb = "", error.__traceback__
    while tb is not None:
        if tb.tb_frame.f_globals.get("__name__", "").partition(".")[0] not in ("torch", "torch_tpu"):
            found = f" (at {tb.tb_frame.f_code.co_filename}:{tb.tb_lineno})"
        tb = tb.tb_next
    return found


def capture(fn, args, kwargs, extra, name, placing=None):
    """Captures fn(*args, **kwargs). The function is run once, and once before when an optimizer has no state yet. placing: the
    mesh and the places of a sharded program (_mesh.Placing)."""
    torch.tpu.init()
    state = _State(fn, args, kwargs, extra)
    with _restored(state.optimizers):
        if state.incomplete():
            with _Run(state, name) as run:
                run.call(fn, args, kwargs)
            gc.collect()
        state.add_optimizer_state()
        places = state.place(placing) if placing else None
        with _Run(state, name, placing and placing.mesh, places) as run:
            out = run.end(run.call(fn, args, kwargs))
    return out
