"""How a compiled program is fed: what a run takes and gives, where that comes from and goes to; and running it where the plugin
in use can load its executable."""

import contextlib
import ctypes
from dataclasses import dataclass, replace

import torch
from torch.utils import _pytree as pytree

from torch_tpu import _core
from torch_tpu._call import Signature, check_tensor, tpu_device
from torch_tpu._graph import Graph
from torch_tpu.aot._trace import Value

_AGAIN = "a program is for one size: compile it once for each"


@dataclass
class Form:
    """Tensors are on the meta device: sizes, strides, dtype, offset."""

    inputs: list  # what a run takes, in order: (Value, tensor); dense in some order
    parameters: list  # of the program: numbers of inputs; -1: the generator's state; -2: a tensor that was a constant
    donated: list  # of each parameter: whether an output may take its place
    outputs: list  # of the program, as it lies in memory: tensors
    places: list  # of each output: the number of the input that it is written to; -1: a new store
    results: list  # what a run gives: (Value, tensor); first what the function returns
    of: list  # of each result: the number of the new store that it is a view of; -1 - n: of input n
    empty: list  # bytes of new stores without a value, numbered behind the others
    blocks: int  # by how much a run moves the generator on
    arguments: list  # leaves of (args, kwargs), with Values in place of tensors
    in_spec: object  # of (args, kwargs); None: tensors by position, and a list of results
    returns: list  # leaves of what the function returns, with Values in place of tensors
    out_spec: object

    def used(self):
        """The same without the inputs that the program neither reads nor writes nor returns."""
        kept = sorted({n for n in (*self.parameters, *self.places, *(-1 - o for o in self.of)) if n >= 0})
        at = {n: i for i, n in enumerate(kept)}
        return replace(
            self,
            inputs=[self.inputs[n] for n in kept],
            parameters=[at.get(p, p) for p in self.parameters],
            places=[at.get(p, p) for p in self.places],
            of=[o if o >= 0 else -1 - at[-1 - o] for o in self.of],
        )

    def keys(self):
        """Names of what is kept between runs: {name: Value} of inputs, then the same of results."""
        taken, given = {}, {}
        for values, out in ((self.inputs, taken), (self.results, given)):
            for v, _ in values:
                if v.kind not in ("argument", "result"):
                    base = f"{v.name} grad" if v.kind == "gradient" else v.name
                    n, key = 1, base
                    while key in taken or key in given:
                        n += 1
                        key = f"{base} ({n})"
                    out[key] = v
        return taken, given


def of_text(takes, gives):
    """The form of a program of which only the types are known: tensors, on the meta device."""
    values = [Value(f"argument {i}", "argument", tuple(t.shape), t.dtype) for i, t in enumerate(takes)]
    results = [Value(f"result {i}", "result", tuple(t.shape), t.dtype) for i, t in enumerate(gives)]
    return Form(
        list(zip(values, takes, strict=True)), list(range(len(takes))), [False] * len(takes), list(gives), [-1] * len(gives),
        list(zip(results, gives, strict=True)), list(range(len(gives))), [], 0, values, None, results, None,
    )  # fmt: skip


_LINES = {  # of tpu_aot_host
    "platform": "the platform",
    "version": "the version of the plugin",
    "pjrt": "the version of the PJRT C API",
    "plugin": "the contents of the plugin's library, as a hash,",
    "device": "the device",
    "devices": "the devices",
    "cpu": "the CPU's model and instruction set, as a hash,",
}


def _lines(text):
    return dict(line.split(" ", 1) for line in text.splitlines()[1:] if " " in line)


def _words(compiler):
    return " ".join(compiler.split())


def check_host(name, want, made_by):
    """Refuses an executable that the plugin in use cannot load. want: lines of tpu_aot_host; made_by: the compiler in words."""
    wanted = _lines(want)
    needs = (
        f"{name} was compiled for {wanted.get('device') or wanted.get('devices')} ({wanted.get('platform')}) by {_words(made_by)}"
    )
    try:
        torch.tpu.init()
        text = ctypes.c_char_p()
        _core.core.tpu_aot_host_here(ctypes.byref(text))
    except RuntimeError as error:
        raise RuntimeError(f"torch.tpu.aot: {needs}, and no such device is here: {error}") from error
    found = _lines(text.value.decode("utf-8", "replace"))
    other = [n for n in wanted | found if wanted.get(n) != found.get(n)]
    if not other:
        return
    if "platform" in other:  # then all else differs too
        other = ["platform"]
    said = "; ".join(f"{_LINES.get(n, n)} has to be {wanted.get(n)}, and is {found.get(n)}" for n in other)
    raise RuntimeError(
        f"torch.tpu.aot: {needs}, and cannot run in this process, whose plugin is {_words(torch.tpu.plugin_info()['platform_version'])}: "
        f"{said}. Load it where that is so, or compile it again "
        "(torch.tpu.aot.compile(..., topology='here') for the device in use)"
    )


class Runner:
    """A program with its executable loaded into the plugin in use."""

    def __init__(self, form, executable, device, name):
        if -2 in form.parameters:
            raise NotImplementedError(
                f"torch.tpu.aot: {name} reads a tensor that was on the device when it was compiled, and whose value is not part of "
                "it: give that tensor to compile(..., state=), so that it is an input"
            )
        self.form, self.device, self.name = form, tpu_device(device, "torch.tpu.aot.load"), name
        self.signature = Signature(name, form.arguments, form.in_spec, _AGAIN)
        taken, given = form.keys()
        of_value = {id(v): k for k, v in (taken | given).items()}
        named = [v for v in form.arguments if isinstance(v, Value)]
        at = {id(v): i for i, v in enumerate(named)}
        # of each input: the number of an argument, or the key of a state
        self.sources = [at[id(v)] if id(v) in at else of_value[id(v)] for v, _ in form.inputs]
        self.kept = [(i, of_value[id(v)]) for i, (v, _) in enumerate(form.results) if v.kind != "result"]
        self.returned = {id(v): i for i, (v, _) in enumerate(form.results) if v.kind == "result"}
        self.taken = taken
        handle = torch.ops.torch_tpu.graph_given(
            self.device,
            torch.frombuffer(bytearray(executable), dtype=torch.uint8),
            form.parameters,
            [t for _, t in form.inputs],
            form.outputs,
            form.places,
            form.blocks,
            name,
            True,
            [t for _, t in form.results],
            form.of,
            form.empty,
        )
        self.graph = Graph(handle)

    def __call__(self, state, args, kwargs):
        tensors = self.signature.tensors(args, kwargs, self.device)
        missing = [k for k in self.taken if k not in state]
        if missing:
            raise ValueError(
                f"{self.name}: it has no value of {', '.join(missing[:8])}{' and others' if len(missing) > 8 else ''}; give them: "
                "program.load_state({name: tensor, ...})"
            )
        for key, v in self.taken.items():
            check_tensor(self.name, key, state[key], v, self.device, _AGAIN)
        with torch.no_grad():
            out = self.graph.run([tensors[s] if isinstance(s, int) else state[s] for s in self.sources])
        for i, key in self.kept:
            state[key] = out[i]
        form = self.form
        leaves = [out[self.returned[id(x)]] if id(x) in self.returned else x for x in form.returns]
        return leaves if form.out_spec is None else pytree.tree_unflatten(leaves, form.out_spec)


def fill(form, state, given, device, name):
    """Copies given tensors into a program's state."""
    device = tpu_device(device, "torch.tpu.aot.load")
    taken, _ = form.keys()
    for key, v in taken.items():
        if key not in given:
            continue
        t = given[key]
        if not isinstance(t, torch.Tensor):
            raise TypeError(f"{name}: {key}: expected a tensor, got {type(t).__name__}")
        t = t.detach()
        with contextlib.suppress(NotImplementedError):  # a tensor without a value is told of below
            t = t.to(device)
        check_tensor(name, key, t, v, device, _AGAIN)
        state[key] = t.clone(memory_format=torch.preserve_format)
