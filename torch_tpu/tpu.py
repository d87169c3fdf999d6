"""torch.tpu: the device's module, with what torch.cuda offers for CUDA."""

import ctypes
import enum
import functools
import os
import sys
import types
import warnings
from collections import OrderedDict

import torch

from torch_tpu import _core

_core_lib = _core.core


# ---- devices ---------------------------------------------------------------------------------------------------------


def is_available() -> bool:
    """Whether a PJRT plugin was found. Loads nothing. A plugin or a setting that was asked for and is no good is told once."""
    found = _core_lib.tpu_is_available() and _core_lib.tpu_device_count() > 0
    if not found:
        _tell_why_not()
    return found


@functools.cache
def _tell_why_not():
    """Programs ask is_available() and go on with the CPU: what the user set and does not work must not pass in silence."""
    try:
        _core_lib.tpu_check_environment()
        if any(os.environ.get(n) for n in ("TORCH_TPU_PJRT_PLUGIN", "TPU_LIBRARY_PATH")) and not _core_lib.tpu_in_bad_fork():
            _core_lib.tpu_init()
    except Exception as error:
        warnings.warn(f"torch.tpu is not available: {error}", RuntimeWarning, stacklevel=3)


def device_count() -> int:
    return _core_lib.tpu_device_count()


def is_initialized() -> bool:
    return _core_lib.tpu_is_initialized() and not _core_lib.tpu_in_bad_fork()


def __getattr__(name):
    if name == "aot":  # loaded when it is asked for
        import importlib

        return importlib.import_module("torch_tpu.aot")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def init() -> None:
    """Loads the plugin and opens the devices; otherwise done at the first use."""
    _lazy_init()


def _lazy_init() -> None:
    _core_lib.tpu_init()


def _is_in_bad_fork() -> bool:
    return _core_lib.tpu_in_bad_fork()


def _index(device=None, optional=True) -> int:
    """The index that a device argument means: None is the current one."""
    if device is None:
        if optional:
            return current_device()
        raise ValueError("expected a tpu device, got None")
    if isinstance(device, int) and not isinstance(device, bool):
        return current_device() if device < 0 else device
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device):
        if device.type != "tpu":
            raise ValueError(f"Expected a tpu device, but got: {device}")
        return current_device() if device.index is None else device.index
    raise TypeError(f"expected a device, an index, a string or None, got {type(device).__name__}")


def _checked(device=None) -> int:
    index = _index(device)
    count = device_count()
    if index >= count:
        raise RuntimeError(f"tpu device index {index} is out of range: there are {count} device(s)")
    return index


def current_device() -> int:
    if torch.compiler.is_compiling():  # Dynamo knows this one, and guards on what it gives
        return torch.accelerator.current_device_index()
    return _core_lib.tpu_get_device()


def set_device(device) -> None:
    _core_lib.tpu_set_device(_checked(device))


class device:
    """Context manager: the current device inside it. None or a negative index changes nothing."""

    def __init__(self, device):
        self.idx = -1 if device is None else _index(device)
        self.prev_idx = -1

    def __enter__(self):
        self.prev_idx = current_device()
        if self.idx >= 0 and self.idx != self.prev_idx:
            set_device(self.idx)
        return self

    def __exit__(self, *exc):
        if self.idx >= 0:
            _core_lib.tpu_set_device(self.prev_idx)
        return False


class device_of(device):
    """Context manager: the device of a tensor or storage; of another device's one it changes nothing."""

    def __init__(self, obj):
        super().__init__(obj.device.index if obj.device.type == "tpu" else None)


def _exchange_device(index: int) -> int:
    old = current_device()
    if index >= 0:
        set_device(index)
    return old


_maybe_exchange_device = _exchange_device


def synchronize(device=None) -> None:
    """Waits until all work queued on the device is done, and raises what failed in it."""
    _lazy_init()
    _core_lib.tpu_synchronize(_checked(device))


# What libtpu calls a device, where the product has another name (which other packages look for).
_PRODUCT_NAMES = {"TPU v5 lite": "TPU v5e", "TPU v5": "TPU v5p", "TPU v6 lite": "TPU v6e", "TPU7x": "TPU v7", "TPU v7x": "TPU v7"}


def get_device_name(device=None) -> str:
    """The kind of the device, starting with "TPU" ("TPU v5e"); "TPU emulated (cpu)" on a CPU plugin."""
    _lazy_init()
    kind = _core_lib.tpu_device_kind(_checked(device)).decode("utf-8", "replace")
    kind = _PRODUCT_NAMES.get(kind, kind)
    return kind if kind.upper().startswith("TPU") else f"TPU emulated ({kind})"


class _Properties(types.SimpleNamespace):
    pass


def get_device_properties(device=None):
    """An object with name, total_memory (bytes), platform, platform_version and multi_processor_count."""
    index = _checked(device)
    name = get_device_name(index)
    info = _core.plugin_info()
    return _Properties(
        name=name,
        total_memory=_core.memory_stats(index).limit,
        platform=info["platform"],
        platform_version=info["platform_version"],
        multi_processor_count=1,
        major=info["pjrt_major"],
        minor=info["pjrt_minor"],
    )


def get_device_capability(device=None):
    """The PJRT C API version of the plugin, as (major, minor)."""
    _lazy_init()
    _checked(device)
    info = _core.plugin_info()
    return info["pjrt_major"], info["pjrt_minor"]


def can_device_access_peer(device, peer_device) -> bool:
    return 0 <= _index(device) < device_count() and 0 <= _index(peer_device) < device_count()


def get_arch_list():
    return []


def plugin_info() -> dict:
    """Which plugin is used and why, its platform and versions. Before the first use: what would be used."""
    is_available()
    return _core.plugin_info()


# ---- streams and events ----------------------------------------------------------------------------------------------


class Stream(torch.Stream):
    """A stream of a tpu device. All streams of a device run in order."""

    def __new__(cls, device=None, priority=0, **kwargs):
        if "stream_id" in kwargs:
            return super().__new__(cls, priority=priority, **kwargs)
        return super().__new__(cls, torch.device("tpu", _checked(device)), priority=priority, **kwargs)

    def __repr__(self):
        return f"torch.tpu.Stream(device={self.device}, stream_id={self.stream_id})"


class Event(torch.Event):
    """An event of a tpu device."""

    def __new__(cls, enable_timing=False, blocking=False, interprocess=False, device=None):
        return super().__new__(
            cls, torch.device("tpu", _index(device)), enable_timing=enable_timing, blocking=blocking, interprocess=interprocess
        )

    def elapsed_time(self, end_event) -> float:
        """Milliseconds from this event to end_event."""
        if not isinstance(end_event, torch.Event):
            raise TypeError(f"expected a torch.Event, got {type(end_event).__name__}")
        ms = ctypes.c_double()
        _core.adapter.tpu_adapter_event_elapsed(self.event_id, end_event.event_id, ctypes.byref(ms))
        return ms.value


class StreamContext:
    """Context manager: the current stream, and its device, inside it. None changes nothing."""

    def __init__(self, stream):
        self.stream = stream

    def __enter__(self):
        if self.stream is None:
            return
        self._device = current_device()
        self._stream = current_stream(self.stream.device)
        set_stream(self.stream)

    def __exit__(self, *exc):
        if self.stream is not None:
            set_stream(self._stream)
            _core_lib.tpu_set_device(self._device)


_TYPE = int(torch._C._autograd.DeviceType.PrivateUse1)


def stream(stream) -> StreamContext:
    return StreamContext(stream)


def _wrap(s):
    return Stream(stream_id=s.stream_id, device_index=s.device_index, device_type=s.device_type)


def current_stream(device=None):
    if torch.compiler.is_compiling():
        return torch.accelerator.current_stream() if device is None else torch.accelerator.current_stream(device)
    return _wrap(torch._C._accelerator_getStream(_checked(device)))


def default_stream(device=None):
    index = _checked(device)
    return Stream(stream_id=0, device_index=index, device_type=_TYPE)


def set_stream(stream) -> None:
    if stream is not None:
        torch._C._accelerator_setStream(stream)


# ---- memory ----------------------------------------------------------------------------------------------------------


def memory_stats(device=None):
    """Counters by name, as torch.cuda.memory_stats gives them. Memory is not cached by PyTorch, so reserved is allocated."""
    m = _core.memory_stats(_index(device))
    out = {"num_alloc_retries": 0, "num_ooms": m.ooms, "max_split_size": -1}
    for key in ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes"):
        _put_stat(out, key, m.allocated, m.allocated_peak, m.total_allocated)
    for key in ("allocation", "active", "segment"):
        _put_stat(out, key, m.stores, m.stores_peak, m.stores)
    return OrderedDict(sorted(out.items()))


def _put_stat(out, key, now, peak, total):
    for name, value in (("current", now), ("peak", peak), ("allocated", total), ("freed", total - now)):
        out[f"{key}.all.{name}"] = value


def memory_allocated(device=None) -> int:
    return _core.memory_stats(_index(device)).allocated


def max_memory_allocated(device=None) -> int:
    return _core.memory_stats(_index(device)).allocated_peak


def memory_reserved(device=None) -> int:
    return memory_allocated(device)


def max_memory_reserved(device=None) -> int:
    return max_memory_allocated(device)


def reset_peak_memory_stats(device=None) -> None:
    _core_lib.tpu_reset_peak_memory(_index(device))


def reset_max_memory_allocated(device=None) -> None:
    reset_peak_memory_stats(device)


def reset_accumulated_memory_stats(device=None) -> None:
    """Only the peaks can be reset."""


def mem_get_info(device=None):
    """(free, total) bytes of the device."""
    _lazy_init()
    m = _core.memory_stats(_checked(device))
    return max(m.limit - m.allocated, 0), m.limit


get_memory_info = mem_get_info


def empty_cache() -> None:
    """Drops the cached buffers of Python numbers; compiled programs stay."""
    _core_lib.tpu_empty_cache()


def memory_summary(device=None, abbreviated=False) -> str:
    m = _core.memory_stats(_index(device))
    return (
        f"tpu:{_index(device)}: {m.allocated} bytes in {m.stores} storages (peak {m.allocated_peak} in {m.stores_peak}), "
        f"limit {m.limit}, {m.ooms} out-of-memory errors"
    )


# ---- random numbers --------------------------------------------------------------------------------------------------


class _Generators:
    """torch.tpu.default_generators: the device's own generators, by index."""

    def __len__(self):
        return device_count()

    def __getitem__(self, index):
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(f"there is no tpu device {index}")
        return _core.default_generator(index)


default_generators = _Generators()


def get_rng_state(device="tpu"):
    """16 bytes on the CPU: seed and offset, 64 bits each."""
    seed, offset = _get_rng(_checked(device))
    return torch.tensor([_signed(seed), _signed(offset)], dtype=torch.int64, device="cpu").view(torch.uint8)


def set_rng_state(new_state, device="tpu") -> None:
    if not isinstance(new_state, torch.Tensor) or new_state.dtype != torch.uint8 or new_state.device.type != "cpu":
        raise TypeError("RNG state must be a torch.ByteTensor")
    if new_state.numel() != 16:
        raise RuntimeError(f"RNG state is wrong size: expected 16 bytes (seed and offset), got {new_state.numel()}")
    seed, offset = new_state.contiguous().view(torch.int64).tolist()
    _set_rng(_index(device), seed & _MASK, offset & _MASK)


def get_rng_state_all():
    return [get_rng_state(i) for i in range(device_count())]


def set_rng_state_all(new_states) -> None:
    for i, state in enumerate(new_states):
        set_rng_state(state, i)


def manual_seed(seed: int) -> None:
    _set_rng(current_device(), int(seed) & _MASK, 0)


def manual_seed_all(seed: int) -> None:
    for i in range(max(device_count(), 1)):
        _set_rng(i, int(seed) & _MASK, 0)


def seed() -> int:
    value = torch.Generator().seed()
    manual_seed(value)
    return value


def seed_all() -> None:
    manual_seed_all(torch.Generator().seed())


def initial_seed() -> int:
    return _get_rng(current_device())[0]


_MASK = (1 << 64) - 1


def _signed(v):
    return v - (1 << 64) if v >> 63 else v


def _get_rng(index):
    out = (ctypes.c_uint64 * 2)()
    _core.adapter.tpu_adapter_get_rng(index, out)
    return int(out[0]), int(out[1])


def _set_rng(index, seed, offset):
    _core.adapter.tpu_adapter_set_rng(index, seed, offset)


# ---- dtypes ----------------------------------------------------------------------------------------------------------


def get_amp_supported_dtype():
    return [torch.bfloat16, torch.float16]


def is_bf16_supported(including_emulation=True) -> bool:
    return True


def is_tf32_supported() -> bool:
    return False


# ---- modes -----------------------------------------------------------------------------------------------------------


class EagerMode(enum.Enum):
    """When an operator runs: at once and asynchronously; at once, waited for; or recorded and fused."""

    DEFER_NEVER = 0
    DEFER_NEVER_AND_LAUNCH_BLOCKING = 1
    DEFER_AND_FUSE = 2
    STRICT = 0
    DEBUG = 1
    FUSED = 2


class _SetEagerMode:
    """What set_eager_mode returns: the mode is set already; as a context manager it comes back at the end."""

    def __init__(self, mode):
        self._old = EagerMode(_core_lib.tpu_get_eager_mode())
        _set_mode(mode)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        _set_mode(self._old)


def _set_mode(mode):
    if not isinstance(mode, EagerMode):
        raise TypeError(f"expected a torch.tpu.EagerMode, got {mode!r}")
    _core_lib.tpu_set_eager_mode(mode.value)


def set_eager_mode(mode):
    """Sets the mode of the process, as a call or as a context manager."""
    return _SetEagerMode(mode)


def set_debug(nan=None, inf=None):
    """What Debug mode looks for in every floating result: NaN, and infinities too. An error names the operator and the line."""
    level = _core_lib.tpu_get_debug_nan()
    nan = level >= 1 if nan is None else bool(nan)
    inf = level >= 2 if inf is None else bool(inf)
    _core_lib.tpu_set_debug_nan(2 if inf else 1 if nan else 0)


_POLICIES = ("allow", "warn", "error")


class _SetCompilePolicy:
    def __init__(self, policy):
        if policy not in _POLICIES:
            raise ValueError(f"expected one of {_POLICIES}, got {policy!r}")
        self._old = _core_lib.tpu_get_compile_policy()
        _core_lib.tpu_set_compile_policy(_POLICIES.index(policy))

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        _core_lib.tpu_set_compile_policy(self._old)


def set_compile_policy(policy):
    """What it is when a program has to be compiled: "allow", "warn" (a line on stderr) or "error" (RuntimeError, which in the
    asynchronous DeferAndFuse mode comes where the value is read). Programs that come from the cache on disk are none.
    As a call, or as a context manager."""
    return _SetCompilePolicy(policy)


def warmup(fn, inputs, *, dtype=torch.int64, device="tpu", threads=None) -> int:
    """Calls fn once with each of `inputs`, so that what it needs is compiled before it serves; see docs/compile.md, "Shapes".

    inputs: argument lists, each a tuple of arguments; an argument that is a tuple of ints (a shape) stands for zeros of this
    `dtype` on this `device`. One size of each bucket is enough. The first two are called one after the other, for at the
    second Dynamo learns which sizes change; then the first again, and the others, on `threads` threads (default: as many
    as CPUs), for XLA compiles side by side. Waits for the device. Returns how many programs were compiled. An exception of
    a call is raised.
    """
    from concurrent.futures import ThreadPoolExecutor

    def fill(x):
        is_shape = isinstance(x, tuple) and all(type(n) is int for n in x)
        return torch.zeros(x, dtype=dtype, device=device) if is_shape else x

    calls = [tuple(fill(x) for x in (args if isinstance(args, list | tuple) else (args,))) for args in inputs]
    before = compile_count()
    for args in calls[:2]:
        fn(*args)
    if len(calls) > 1:
        grad = torch.is_grad_enabled()

        def call(args):
            with torch.set_grad_enabled(grad):
                fn(*args)

        with ThreadPoolExecutor(threads or os.cpu_count()) as pool:
            for done in [pool.submit(call, args) for args in (calls[0], *calls[2:])]:
                done.result()
    synchronize()
    return compile_count() - before


def explain(quiet=False, file=None, traffic=False):
    """A context manager that tells what the device did for a block of code; see torch_tpu.explain.Explain."""
    from torch_tpu.explain import Explain

    return Explain(quiet=quiet, file=file, traffic=traffic)


class Precision(enum.Enum):
    """Passes of a float32 product: one in bfloat16, three in bfloat16, or float32."""

    DEFAULT = 2
    HIGH = 1
    HIGHEST = 0


class precision:
    """Context manager and call: how float32 matrix products and convolutions are computed. It goes before
    torch.set_float32_matmul_precision, which holds outside."""

    def __init__(self, precision):
        if isinstance(precision, str):
            precision = Precision[precision.upper()]
        if not isinstance(precision, Precision):
            raise TypeError(f"expected a torch.tpu.Precision, got {precision!r}")
        self._old = _core.adapter.tpu_adapter_get_precision()
        _core.adapter.tpu_adapter_set_precision(precision.value)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        _core.adapter.tpu_adapter_set_precision(self._old)


# ---- counters --------------------------------------------------------------------------------------------------------


def compile_count() -> int:
    """Programs that the plugin has compiled so far."""
    return _core.stats()["compiles"]


def cache_stats() -> dict:
    """Counters of calls, compiles, executions and caches."""
    return _core.stats()


def fallback_counts(reset=False) -> dict:
    """How often each operator ran on the CPU because the device has no kernel for it."""
    counts = _core.fallback_counts()
    if reset:
        _core.adapter.tpu_adapter_fallback_reset()
    return counts


# ---- the module ------------------------------------------------------------------------------------------------------


class _Module(types.ModuleType):
    @property
    def _initialized(self):  # torch.utils.checkpoint keeps the random state only of a device that says so
        return is_initialized()

    @property
    def eager_mode(self):
        return EagerMode(_core_lib.tpu_get_eager_mode())


sys.modules[__name__].__class__ = _Module


# ---- torch.compile ---------------------------------------------------------------------------------------------------


def _hide_from_dynamo():
    """What these functions do is a call into a C library. Dynamo would trace it, and take what it gives for a constant: the
    state of a generator above all. So they are graph breaks, and run as they are. (torch.compiler.disable says the same, but
    imports Dynamo.)"""
    frames = torch._C._dynamo.eval_frame
    skip = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.SKIP)
    states = get_rng_state, set_rng_state, get_rng_state_all, set_rng_state_all
    for function in (*states, manual_seed, manual_seed_all, seed, seed_all, initial_seed, set_device, synchronize):
        function._torchdynamo_disable = True
        frames.set_code_exec_strategy(function.__code__, skip)


_hide_from_dynamo()
