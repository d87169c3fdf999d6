"""torch.tpu.aot: compiles for TPUs that are not here, and says what the program needs: docs/aot.md.

    program = torch.tpu.aot.compile(step, (x, y), topology="v5e:2x2")
    print(program.memory(), program.cost(), program.mfu())

libtpu's compiler does the work, on any machine; nothing is executed. The figures of memory are the compiler's, those of time are
an estimate made from its schedule (docs/aot.md says how)."""

import ctypes
import functools
import importlib.util
import os
from ctypes import byref, c_char_p, c_size_t, c_void_p
from dataclasses import dataclass, field

from torch_tpu import _core
from torch_tpu.aot import _flops, _hlo, _links, _mesh, _report, _time
from torch_tpu.aot._report import megabytes
from torch_tpu.aot.chips import CHIPS, KINDS, Chip, known_forms

__all__ = [
    "CHIPS", "Chip", "Collective", "Cost", "Fusion", "Memory", "Program", "Topology", "compile", "compile_text", "constrain", "load",
    "topology",
]  # fmt: skip

_OLDEST, _NEWEST = (0, 106), (0, 117)  # PJRT C API versions that were tried; src/pjrt/abi.h
_INSTALL = (
    "Compiling for a TPU needs Google's package libtpu (its compiler works without a TPU): pip install libtpu==0.0.52, or set "
    "TORCH_TPU_AOT_LIBRARY to the path of a libtpu.so"
)


def _library():
    """The path of libtpu.so. The package is not imported: that would change which plugin the process runs on."""
    named = os.environ.get("TORCH_TPU_AOT_LIBRARY") or os.environ.get("TPU_LIBRARY_PATH")
    if named:
        if not os.path.isfile(named):
            raise RuntimeError(f"torch.tpu.aot: there is no file {named}. {_INSTALL}")
        return named
    spec = importlib.util.find_spec("libtpu")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = os.path.join(folder, "libtpu.so")
        if os.path.isfile(path):
            return path
    raise RuntimeError(f"torch.tpu.aot: no libtpu was found. {_INSTALL}")


@dataclass(frozen=True)
class Topology:
    """TPU devices that need not be here."""

    name: str  # "v5e:2x2"; "here": the devices of the plugin in use
    kind: str  # "TPU v5 lite"
    device_count: int
    chip: Chip | None  # what is published about a device; None for a generation without an entry in chips.py
    platform_version: str  # of the compiler
    handle: int | None = field(repr=False)  # None: that of a file; what it says is all that is known
    saved: dict = field(default_factory=dict, repr=False)

    def places(self):
        """{id of a device: its coordinates: of its chip in the torus, then its number on the chip}; () where they are not known"""
        if self.handle is None:
            return dict(self.saved)
        out, p = {}, _core.TopologyPlace()
        for i in range(self.device_count):
            _core.core.tpu_topology_device(self.handle, i, byref(p))
            out[p.id] = tuple(p.coords[: p.ncoords])
        return out


def topology(name):
    """The topology of this name, such as "v5e:2x2" (generation : chips in each direction), or "here": one of the devices of the
    plugin in use, for which no libtpu is needed.

    Raises ValueError for a name that libtpu does not know, RuntimeError when there is no libtpu, or when it is too old."""
    if not isinstance(name, str):
        raise TypeError(f"torch.tpu.aot.topology: expected a name such as 'v5e:2x2', got {type(name).__name__}")
    handle = c_void_p()
    if name == "here":
        _core.core.tpu_topology_here(byref(handle))
        return _described(name, handle)[0]
    path = _library()
    try:
        _core.core.tpu_topology_get(path.encode(), name.encode(), byref(handle))
    except NotImplementedError as error:
        raise RuntimeError(
            f"torch.tpu.aot: {path} cannot compile for a topology ({error}); it is too old or no libtpu. {_INSTALL}"
        ) from None
    except RuntimeError as error:
        text = str(error)
        if "TopologyDescription_Create" not in text:
            raise RuntimeError(f"torch.tpu.aot: {text}. {_INSTALL}") from None
        reason = text.rpartition("PJRT_TopologyDescription_Create: ")[2]
        raise ValueError(f"torch.tpu.aot: unknown topology {name!r}: {reason}. Known forms: {known_forms()}") from None
    out, version = _described(name, handle)
    if version > _NEWEST:
        import warnings

        warnings.warn(
            f"torch.tpu.aot: {path} speaks PJRT C API {version[0]}.{version[1]}; tried are {_OLDEST[0]}.{_OLDEST[1]} to "
            f"{_NEWEST[0]}.{_NEWEST[1]}. What it says may be read wrongly",
            RuntimeWarning,
            stacklevel=2,
        )
    return out


def _described(name, handle):
    """(the Topology, the version of the PJRT C API)"""
    info = _core.TopologyInfo()
    _core.core.tpu_topology_describe(handle, byref(info))
    kind = info.kind.decode()
    chip = CHIPS.get(KINDS.get(kind, "") if name == "here" else name.partition(":")[0])
    compiler = info.platform_version.decode("utf-8", "replace")
    return Topology(name, kind, info.device_count, chip, compiler, handle.value), (info.pjrt_major, info.pjrt_minor)


def _topology(given):
    """A topology that can be compiled for."""
    if isinstance(given, Topology):
        return given if given.handle is not None else topology(given.name)
    return topology(given)


@dataclass(frozen=True)
class Memory:
    """Bytes on one device, as the compiler says. `peak` is its own figure of the most that is needed at once."""

    arguments: int
    outputs: int
    aliased: int  # outputs that take the place of arguments
    temporaries: int
    code: int
    peak: int
    limit: int | None  # what a program may use on this device; None: not known
    by_kind: dict  # {"parameter": bytes, "optimizer": ..., ...} of the arguments, without what layouts pad

    @property
    def total(self):
        """Arguments, new outputs, temporaries and code together."""
        return self.arguments + self.outputs - self.aliased + self.temporaries + self.code

    @property
    def fits(self):
        """Whether it fits into the device; None: the limit is not known."""
        return None if self.limit is None else self.total <= self.limit

    def __str__(self):
        kinds = ", ".join(f"{k} {megabytes(n)}" for k, n in self.by_kind.items())
        limit = f" of {megabytes(self.limit)} ({100 * self.total / self.limit:.1f} %)" if self.limit else ""
        return (
            f"{megabytes(self.total)}{limit}: arguments {megabytes(self.arguments)} ({kinds}), outputs {megabytes(self.outputs)} of which "
            f"{megabytes(self.aliased)} in place, temporaries {megabytes(self.temporaries)}, code {megabytes(self.code)}; peak {megabytes(self.peak)}"
        )


@dataclass(frozen=True)
class Fusion:
    """An instruction of the schedule: usually a fusion of many operations."""

    name: str
    op: str  # the operator of PyTorch that it comes from
    where: str  # file:line of the user's program
    seconds: float  # of all its runs together
    share: float  # of the whole time
    count: int  # runs
    source: str  # what the time rests on: compiler, roofline, link, transfer
    bytes: int  # read and written in HBM by one run

    def __str__(self):
        return f"{self.seconds * 1e6:10.1f} us {100 * self.share:5.1f} %  {self.op or '-':28} {self.where or '-'}  ({self.name}, {self.source})"


@dataclass(frozen=True)
class Collective:
    """A collective of a sharded program, on one device."""

    name: str
    kind: str  # all-reduce, all-gather, reduce-scatter, all-to-all, collective-permute
    axes: tuple  # of the mesh, over which it goes
    devices: int  # in a group
    bytes: int  # that the device sends, in all runs
    seconds: float  # on the links, in all runs
    waited: float  # of them, not hidden behind other work
    count: int  # runs
    op: str  # the operator of PyTorch that it comes from
    where: str  # file:line of the user's program

    def __str__(self):
        return (
            f"{self.seconds * 1e6:10.1f} us ({self.waited * 1e6:.1f} waited) {self.bytes / 1e6:10.3f} MB  {self.kind} over "
            f"{', '.join(self.axes) or '-'} ({self.devices})  {self.op or '-'}  {self.where or '-'}"
        )


@dataclass(frozen=True)
class Cost:
    """What one run takes on one device."""

    flops: int  # of the products (matmul, convolution) of the program as it was captured
    flops_by_dtype: dict
    compiler_flops: float  # all operations that the compiler counts in what it made; bodies of loops once
    bytes: float  # accessed, as the compiler counts
    transcendentals: float
    seconds: float  # the estimate of docs/aot.md, without launch
    floor: float  # seconds: flops / peak, or inputs and outputs / bandwidth
    parts: dict  # {what it rests on: seconds}
    notes: list  # what the model did not know
    collectives: dict  # {(kind, axes of the mesh): (bytes that the device sends, seconds on the links, seconds waited)}

    @property
    def collective_bytes(self):
        """Bytes that one device sends to others."""
        return sum(b for b, _, _ in self.collectives.values())

    @property
    def collective_seconds(self):
        """Seconds that the links are in use; part "link" of the estimate is what of them is not hidden behind other work."""
        return sum(s for _, s, _ in self.collectives.values())

    def __str__(self):
        parts = ", ".join(f"{k} {v * 1e3:.3f} ms" for k, v in self.parts.items())
        return (
            f"estimated {self.seconds * 1e3:.3f} ms ({parts}; at least {self.floor * 1e3:.3f} ms), "
            f"{self.flops / 1e9:,.3f} GFLOP in products, {self.bytes / 1e6:,.1f} MB accessed"
            + (f", {self.collective_bytes / 1e6:,.1f} MB sent" if self.collectives else "")
        )


class _Compiled:
    """An executable of the core, and what its compiler says of it."""

    def __init__(self, handle):
        self.handle = handle

    def __del__(self):
        if self.handle and _core is not None and _core.core is not None:
            _core.core.tpu_aot_release(self.handle)
            self.handle = None

    def _bytes_of(self, function, *more):
        data, n = c_void_p(), c_size_t()
        function(self.handle, byref(data), byref(n), *more)
        return ctypes.string_at(data, n.value)

    def memory(self):
        """{name of a field of AotMemoryStats: bytes}"""
        s = _core.AotMemoryStats()
        _core.core.tpu_aot_memory(self.handle, byref(s))
        return {n: getattr(s, n) for n, _ in s._fields_}

    def figures(self):
        """{name: number}"""
        found = {}
        _core.core.tpu_aot_cost(self.handle, _core.AotCost(lambda _, name, value: found.__setitem__(name.decode(), value)), None)
        return found

    def optimized(self):
        """(format, bytes) of what the compiler made."""
        format_ = c_char_p()
        data = self._bytes_of(_core.core.tpu_aot_program, byref(format_))
        return format_.value.decode(), data

    def executable(self):
        return self._bytes_of(_core.core.tpu_aot_serialize)

    def host(self):
        """Which processes can load it: lines "NAME VALUE"."""
        text = c_char_p()
        _core.core.tpu_aot_host(self.handle, byref(text))
        return text.value.decode("utf-8", "replace")


class Program:
    """A program compiled for one device of a topology, or, with a mesh, for all of them: figures are then of one device. Where
    the plugin in use is the one that it was compiled for, it can be called like the function that it was made of."""

    def __init__(
        self,
        source,
        topology,
        text,
        name,
        parameters=(),
        outputs=(),
        result=None,
        mesh=None,
        devices=None,
        form=None,
        device="tpu",
    ):
        self.source = source  # _Compiled, or _saved.Stored
        self.name = name
        self.topology = topology
        self.mesh = mesh  # of a sharded program: _mesh.Mesh
        self.devices = devices  # of a sharded program: the id of the device at each position of the mesh, row-major
        self.stablehlo = text  # what was compiled
        self.parameters = list(parameters)  # what each of its inputs is, as Value
        self.outputs = list(outputs)  # the same of its outputs
        self.result = result  # what the function returned, with Values in place of tensors
        self.state = {}  # {name: tensor}: what runs read and write besides arguments; load_state fills it
        self._form, self._device = form, device
        self._module = self._cost = self._figures = self._times = self._runner = None

    def __repr__(self):
        return f"<program for {self.topology.name}: {len(self.parameters)} inputs, {len(self.outputs)} outputs, {self.memory()}>"

    def memory(self):
        """Memory on one device, in bytes."""
        s = self.source.memory()
        kinds = {}
        for p in self.parameters:
            n = _mesh.parts(self.mesh, p.place) if self.mesh and p.place else 1
            kinds[p.kind] = kinds.get(p.kind, 0) + p.nbytes // n
        chip = self.topology.chip
        return Memory(**s, limit=chip.hbm_bytes if chip else None, by_kind=kinds)

    def compiler_figures(self):
        """The compiler's own cost analysis, as it is: {"flops": ..., "bytes accessed": ..., "optimal_seconds": ...}. Its
        optimal_seconds is wrong (negative) on large programs and is used nowhere here."""
        if self._figures is None:
            self._figures = self.source.figures()
        return self._figures

    def module(self):
        """The optimized program (torch_tpu.aot._hlo.Module): instructions in the order of the schedule."""
        if self._module is None:
            format_, data = self.source.optimized()
            if format_ != "hlo_with_config":
                raise RuntimeError(f"torch.tpu.aot: the compiler gives its program as {format_!r}, expected hlo_with_config")
            self._module = _hlo.read(data)
        return self._module

    def hlo(self, fused=False):
        """The optimized program as text, one instruction a line, in the order of the schedule; fused: with the bodies of
        fusions."""
        return self.module().text(fused)

    @functools.cached_property
    def _products(self):
        """{dtype: operations of the products}, the share of one device"""
        n = self.mesh.devices if self.mesh else 1
        return {d: flops / n if flops % n else flops // n for d, flops in _flops.count(self.stablehlo).items()}

    def _time(self):
        chip = self.topology.chip
        if chip is None:
            raise NotImplementedError(
                f"torch.tpu.aot: no published figures for {self.topology.name} in torch_tpu/aot/chips.py, so no time can be "
                f"estimated; there are for {', '.join(CHIPS)}"
            )
        if self._times is None:
            flops = self._products
            m = self.memory()
            # Each dtype's products run at their own peak, one after the other.
            slowest = sum(n / chip.peak(d) for d, n in flops.items()) * chip.peak("bfloat16")
            self._times = _time.estimate(
                self.module(),
                chip,
                slowest,
                "bfloat16",
                m.arguments + m.outputs - m.aliased,
                self._links(chip),
                self.topology.name,
            )
        return self._times

    def _links(self, chip):
        if not self.mesh:
            return None
        places = self.topology.places()
        at = [places[d] for d in self.devices]
        dims = tuple(max(c) + 1 for c in zip(*at, strict=True))
        return _links.Links(chip, at if dims else None, dims)

    def _op(self, text):
        """The operator that an instruction comes from; the compiler calls inputs of the program Arg_0.1."""
        head, _, number = text.partition("_")
        number = number.partition(".")[0]
        if head == "Arg" and number.isdigit() and int(number) < len(self.parameters):
            return self.parameters[int(number)].name
        return text

    def _axes(self, c):
        """The axes of the mesh over which a collective goes."""
        members = c.group or [p for pair in c.pairs for p in pair]
        if not self.mesh:
            return ()
        at = [self.mesh.position(p) for p in members]
        return tuple(n for k, n in enumerate(self.mesh.names) if len({a[k] for a in at}) > 1)

    def collectives(self):
        """What the devices send to each other, costliest first."""
        out = [
            Collective(
                c.name, c.kind, self._axes(c), len(c.group) or 2, c.bytes * c.count, c.seconds * c.count, c.waited * c.count, c.count,
                self._op(c.op), c.where,
            )
            for c in self._time().collectives
        ]  # fmt: skip
        return sorted(out, key=lambda c: -c.seconds)

    def cost(self):
        """Cost of one run on one device: operations, bytes, and the estimated time in seconds."""
        f, t, flops = self.compiler_figures(), self._time(), self._products
        return Cost(
            sum(flops.values()),
            flops,
            f.get("flops", 0.0),
            f.get("bytes accessed", 0.0),
            f.get("transcendentals", 0.0),
            t.seconds,
            t.floor,
            t.parts,
            t.notes,
            self._sent(),
        )

    def _sent(self):
        out = {}
        for c in self.collectives():
            b, s, w = out.get((c.kind, c.axes), (0, 0.0, 0.0))
            out[c.kind, c.axes] = (b + c.bytes, s + c.seconds, w + c.waited)
        return out

    def mfu(self):
        """Model FLOPs utilization, 0 to 1: the time that the program's products would take at the chip's published peak for
        their dtype, as a share of the estimated time. What the compiler recomputes does not count as work."""
        chip, t = self.topology.chip, self._time()
        ideal = sum(n / chip.peak(d) for d, n in self._products.items())
        return ideal / t.seconds if t.seconds else 0.0

    def bottlenecks(self, n=10):
        """The n costliest instructions, costliest first, with the operator and line that they come from."""
        t = self._time()
        return [
            Fusion(
                s.name,
                self._op(s.op),
                s.where,
                s.seconds,
                s.seconds / t.seconds if t.seconds else 0.0,
                s.count,
                s.source,
                s.bytes,
            )
            for s in t.steps[:n]
        ]

    def by_line(self):
        """{"file:line": seconds}, costliest first; "" is what has no line."""
        out = {}
        for s in self._time().steps:
            out[s.where] = out.get(s.where, 0.0) + s.seconds
        return dict(sorted(out.items(), key=lambda kv: -kv[1]))

    def report(self, path, title=None):
        """Writes a page about the program to this file: memory by what it is for against the limit, time by instruction and by
        line, bytes and time of each instruction. HTML with pictures in one file; needs no network."""
        text = _report.program_page(self, title or f"A program on {self.topology.name}")
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)

    def executable(self):
        """The executable alone, as bytes that a PJRT client of the same libtpu on such TPUs can load."""
        return self.source.executable()

    def serialize(self):
        """All of it as bytes, for load(): executable, names, types, and what this object tells."""
        return _files().write(self)

    def save(self, path):
        """Writes serialize() to a file that its owner alone can read and write."""
        data, path = self.serialize(), os.fspath(path)
        made = f"{path}.{os.getpid()}.tmp"
        fd = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(fd, "wb") as f:
                f.write(data)
            os.replace(made, path)
        except BaseException:
            os.unlink(made)
            raise

    def form(self):
        """What a run takes and gives (_form.Form)."""
        if self._form is None:
            from torch_tpu import _artifact
            from torch_tpu.aot import _form

            self._form = _form.of_text(*_artifact.signature(self.stablehlo))
            self.parameters = self.parameters or [v for v, _ in self._form.inputs]
            self.outputs = self.outputs or [v for v, _ in self._form.results]
        return self._form

    def load_state(self, values):
        """Copies tensors to the device as the program's state: {name: tensor}, such as a module's state_dict(); names that the
        program does not know are left out. Names are those of program.parameters, with " grad" behind that of a gradient."""
        from torch_tpu.aot import _form

        _form.fill(self.form(), self.state, values, self._device, self.name)

    def __call__(self, *args, **kwargs):
        """Runs it like the function that was compiled, where the plugin in use can load it. Arguments are tensors on the device,
        of the dtypes and sizes of the example; what else it reads and writes is in `state`."""
        if self._runner is None:
            from torch_tpu.aot import _form

            if self.mesh is not None:
                raise NotImplementedError(
                    f"torch.tpu.aot: {self.name} is one program for {self.mesh.devices} devices; a process runs programs of one device "
                    "so far. executable() is for a PJRT client that has all of them"
                )
            _form.check_host(self.name, self.source.host(), self.topology.platform_version)
            self._runner = _form.Runner(self.form().used(), self.source.executable(), self._device, self.name)
        return self._runner(self.state, args, kwargs)


def compile_text(text, topology, *, options=None):
    """Compiles StableHLO text for one device of a topology (a name, or a Topology). options: a serialized
    CompileOptionsProto. Raises RuntimeError when the compiler refuses the program, torch.OutOfMemoryError when it does not fit."""
    t = _topology(topology)
    return Program(_compile(text, t, options), t, text, "the program")


def load(source, *, state=None, device="tpu"):
    """What Program.save or Program.serialize wrote, as a Program. It tells what the compiled one told; called, it runs where the
    plugin in use is the one that it was compiled for, and compiles nothing.

    source: a path, or the bytes. An executable is code: load none of which you do not know who made it. A file that somebody else
        owns or can write is refused, unless TORCH_TPU_CACHE_TRUST=1 (docs/cache.md).
    state: {name: tensor}, as for Program.load_state.
    device: where it runs."""
    saved = _files()
    name, head, parts, values, form = saved.read(source)
    try:
        t, mesh = head["topology"], head["mesh"] and _mesh.Mesh(*head["mesh"])
        places = {i: tuple(at) for i, at in t["places"]}
        top = Topology(t["name"], t["kind"], t["devices"], CHIPS.get(t["chip"]), t["compiler"], None, places)
        numbers = [[values[i] for i in head[k]] for k in ("parameters", "results")]
        program = Program(
            saved.Stored(head, parts), top, parts["program.mlir"].decode(), head["name"], *numbers, None, mesh, head["mesh_devices"], form,
            device,
        )  # fmt: skip
    except (KeyError, IndexError, TypeError, AttributeError, UnicodeDecodeError) as error:
        raise ValueError(f"torch.tpu.aot.load: the header of {name} is damaged: {error!r}") from error
    if form.out_spec is not None:
        program.result = saved.nested(form)
    if state is not None:
        program.load_state(state)
    return program


def _files():
    from torch_tpu.aot import _saved

    return _saved


def _compile(text, t, options=None):
    handle, data = c_void_p(), text.encode()
    _core.core.tpu_aot_compile(t.handle, data, len(data), options, len(options or b""), byref(handle))
    return _Compiled(handle.value)


def _partitioned(text, t, mesh):
    """(the program, ids of the devices by position in the mesh)"""
    ids, data, handle = (ctypes.c_int * mesh.devices)(), text.encode(), c_void_p()
    _core.core.tpu_topology_assign(t.handle, len(mesh.sizes), (ctypes.c_int64 * len(mesh.sizes))(*mesh.sizes), ids)
    _core.core.tpu_aot_compile_partitions(t.handle, data, len(data), ids, byref(handle))
    return _Compiled(handle.value), list(ids)


def _placing(t, mesh, placements):
    if mesh is None:
        if placements is not None:
            raise ValueError("torch.tpu.aot.compile: placements are those on a mesh, but mesh=None")
        return None
    mesh = _mesh.mesh_of(mesh)
    if mesh.devices != t.device_count:
        raise ValueError(
            f"torch.tpu.aot.compile: the mesh {mesh} has {mesh.devices} devices, but {t.name} has {t.device_count}: a program is "
            "compiled for all devices of a topology, so make them equal"
        )
    return _mesh.Placing(mesh, placements or {})


constrain = _mesh.constrain


def compile(fn, example_inputs=(), *, topology, mesh=None, placements=None, kwargs=None, state=(), name=None):
    """Compiles fn(*example_inputs, **kwargs) as one program for one device of a TPU topology, or for all of them, and executes
    nothing on it.

    fn: a module or any function: a forward pass, a loss with backward(), a whole training step with an optimizer. It is run
        once with tensors that have no values (twice when an optimizer has no state yet), so reading a value in it is an error.
    example_inputs: a tuple of what it is called with. Tensors give shape and dtype only: they may be real, on the meta device,
        or fake; parameters and buffers of modules likewise. Nothing is written to them.
    topology: a name such as "v5e:2x2", or a Topology; "here": a device of the plugin in use.
    mesh: of a sharded program: the axes over which the devices of the topology are laid, {"data": 4, "model": 4}, or
        ((4, 4), ("data", "model")), or a DeviceMesh. The compiler divides the program among them.
    placements: where parameters and inputs are on the mesh: {name or pattern of names: placements}, or a function that gives
        them for a Value, or None. Names are those of program.parameters ("layers.*.weight", "argument 0"); placements those of
        torch.distributed.tensor, one for each axis, (Shard(0), Replicate()), or {"data": Shard(0)}. What is not named
        replicates; gradients and optimizer states are where their parameter is. See also constrain().
    state: modules, optimizers and tensors that the function uses; needed only for those that are not found from the function
        itself (its closure, the globals that it names, and what it is bound to).

    Gradients that are left on the parameters are outputs of the program; what the function writes (parameters, buffers,
    optimizer states) replaces the input that it was. Numbers, such as the learning rate, are constants of the program."""
    import torch

    from torch_tpu.aot import _trace

    if not callable(fn):
        raise TypeError(f"torch.tpu.aot.compile: expected a function or a module, got {type(fn).__name__}")
    if isinstance(example_inputs, torch.Tensor):
        example_inputs = (example_inputs,)
    t = _topology(topology)
    name = name or getattr(fn, "__qualname__", type(fn).__name__)
    placing = _placing(t, mesh, placements)
    captured = _trace.capture(fn, tuple(example_inputs), kwargs or {}, state, name, placing)
    if not captured.text:
        raise ValueError(f"torch.tpu.aot.compile: {name} returns no tensor and writes to none, so there is nothing to compile")
    mesh, devices = placing and placing.mesh, None
    try:
        if mesh:
            made, devices = _partitioned(captured.text, t, mesh)
        else:
            made = _compile(captured.text, t)
    except torch.OutOfMemoryError as error:
        raise torch.OutOfMemoryError(_out_of_memory(error, t, captured)) from None
    return Program(
        made, t, captured.text, name, captured.parameters, captured.outputs, captured.result, mesh, devices, captured.form
    )


def _out_of_memory(error, t, captured):
    largest = sorted(captured.parameters, key=lambda p: -p.nbytes)[:5]
    lines = "\n".join(f"  {p.nbytes / 1e6:12,.1f} MB  {p}" for p in largest)
    return (
        f"torch.tpu.aot.compile: the program does not fit into a device of {t.name}. The largest inputs:\n{lines}\n"
        "Use smaller batches, bfloat16 parameters or states, activation checkpointing, or shard it over devices. The compiler "
        f"says: {error}"
    )
