"""ctypes bindings of the core (include/tpu.h) and of the adapter's exported functions."""

import contextlib
import ctypes
import json
import os
import sys
from ctypes import POINTER, Structure, c_bool, c_char_p, c_double, c_int, c_int64, c_size_t, c_uint64, c_void_p

_folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib")
core = None
adapter = None


class PluginInfo(Structure):
    _fields_ = [
        ("path", c_char_p),
        ("why", c_char_p),
        ("platform", c_char_p),
        ("platform_version", c_char_p),
        ("pjrt_major", c_int),
        ("pjrt_minor", c_int),
        ("stablehlo_version", c_char_p),
        ("device_count", c_int),
    ]


class Stats(Structure):
    _fields_ = [
        (name, c_int64)
        for name in (
            "calls compiles compile_ns executions key_hits key_misses program_hits number_hits number_misses host_reads "
            "key_entries program_entries number_entries build_ns disk_hits disk_misses disk_ns "
            "deferred fused flush_read flush_sync flush_event flush_mode flush_ops flush_bytes flush_repeat"
        ).split()
    ]


class MemoryStats(Structure):
    _fields_ = [(name, c_int64) for name in "allocated allocated_peak stores stores_peak total_allocated limit ooms".split()]


class Explained(Structure):
    _fields_ = [
        ("kind", c_int),
        ("detail", c_int),
        ("calls", c_int64),
        ("start", c_int64),
        ("duration", c_int64),
        ("bytes", c_int64),
        ("text", c_char_p),
    ]


ExplainReceiver = ctypes.CFUNCTYPE(None, c_void_p, POINTER(Explained))


class TopologyInfo(Structure):
    _fields_ = [
        ("name", c_char_p),
        ("platform", c_char_p),
        ("platform_version", c_char_p),
        ("kind", c_char_p),
        ("device_count", c_int),
        ("pjrt_major", c_int),
        ("pjrt_minor", c_int),
        ("stablehlo_version", c_char_p),
    ]


class TopologyPlace(Structure):
    _fields_ = [("id", c_int), ("ncoords", c_int), ("coords", c_int64 * 6)]


class AotMemoryStats(Structure):
    _fields_ = [(name, c_int64) for name in "arguments outputs aliased temporaries code peak".split()]


class Watched(Structure):
    _fields_ = [("text", c_void_p), ("len", c_size_t), ("op", c_char_p), ("where", c_char_p), ("runs", c_int64)]


AotCost = ctypes.CFUNCTYPE(None, c_void_p, c_char_p, c_double)
Where = ctypes.CFUNCTYPE(None, POINTER(ctypes.c_char), ctypes.c_size_t)
CacheEntry = ctypes.CFUNCTYPE(c_bool, c_void_p, c_char_p, c_int64, c_int64, c_bool)

# name: (result type, argument types); "error" results are checked and raised.
_FUNCTIONS = {
    "tpu_init": ("error",),
    "tpu_check_environment": ("error",),
    "tpu_is_initialized": (c_bool,),
    "tpu_is_available": (c_bool,),
    "tpu_device_count": (c_int,),
    "tpu_get_device": (c_int,),
    "tpu_set_device": (None, c_int),
    "tpu_device_kind": (c_char_p, c_int),
    "tpu_get_plugin_info": (POINTER(PluginInfo),),
    "tpu_set_plugin_candidates": (None, c_char_p),
    "tpu_synchronize": ("error", c_int),
    "tpu_mark_forked": (None,),
    "tpu_in_bad_fork": (c_bool,),
    "tpu_get_eager_mode": (c_int,),
    "tpu_set_eager_mode": (None, c_int),
    "tpu_get_stats": (None, POINTER(Stats)),
    "tpu_get_memory_stats": (None, c_int, POINTER(MemoryStats)),
    "tpu_reset_peak_memory": (None, c_int),
    "tpu_empty_cache": (None,),
    "tpu_cache_folder": (c_char_p, c_bool),
    "tpu_cache_each": ("error", c_char_p, c_bool, CacheEntry, c_void_p),
    "tpu_cache_prune": ("error", c_char_p, c_int64),
    "tpu_cache_open_file": ("error", c_char_p, POINTER(c_int)),
    "tpu_explain_begin": (None, c_bool),
    "tpu_explain_end": (None, c_bool, ExplainReceiver, c_void_p),
    "tpu_set_where": (None, Where),
    "tpu_set_compile_policy": (None, c_int),
    "tpu_get_compile_policy": (c_int,),
    "tpu_set_debug_nan": (None, c_int),
    "tpu_get_debug_nan": (c_int,),
    "tpu_record_begin": ("error", c_int),
    "tpu_record_end": ("error",),
    "tpu_topology_get": ("error", c_char_p, c_char_p, POINTER(c_void_p)),
    "tpu_topology_here": ("error", POINTER(c_void_p)),
    "tpu_topology_describe": (None, c_void_p, POINTER(TopologyInfo)),
    "tpu_aot_compile": ("error", c_void_p, c_char_p, c_size_t, c_char_p, c_size_t, POINTER(c_void_p)),
    "tpu_topology_device": ("error", c_void_p, c_int, POINTER(TopologyPlace)),
    "tpu_topology_assign": ("error", c_void_p, c_int, POINTER(c_int64), POINTER(c_int)),
    "tpu_aot_compile_partitions": ("error", c_void_p, c_char_p, c_size_t, POINTER(c_int), POINTER(c_void_p)),
    "tpu_aot_memory": ("error", c_void_p, POINTER(AotMemoryStats)),
    "tpu_aot_cost": ("error", c_void_p, AotCost, c_void_p),
    "tpu_aot_program": ("error", c_void_p, POINTER(c_void_p), POINTER(c_size_t), POINTER(c_char_p)),
    "tpu_aot_serialize": ("error", c_void_p, POINTER(c_void_p), POINTER(c_size_t)),
    "tpu_aot_host": ("error", c_void_p, POINTER(c_char_p)),
    "tpu_aot_host_here": ("error", POINTER(c_char_p)),
    "tpu_aot_release": (None, c_void_p),
    "tpu_aot_keep": ("error", c_void_p, c_char_p, c_size_t, c_char_p),
    "tpu_watch_begin": (None,),
    "tpu_watch_each": (None, c_int, c_void_p, c_void_p),
    "tpu_err_get_kind": (c_int, c_void_p),
    "tpu_err_message": (c_char_p, c_void_p),
    "tpu_err_free": (None, c_void_p),
}
_ADAPTER_FUNCTIONS = {
    "tpu_adapter_load": ("error",),
    "tpu_adapter_fallback_counts": (c_void_p,),
    "tpu_adapter_fallback_reset": (None,),
    "tpu_adapter_free": (None, c_void_p),
    "tpu_adapter_set_resolver": (None, c_void_p),
    "tpu_adapter_report_fallback": (c_int, c_char_p),
    "tpu_adapter_set_precision": (None, c_int),
    "tpu_adapter_get_precision": (c_int,),
    "tpu_adapter_event_elapsed": ("error", c_int64, c_int64, POINTER(c_double)),
    "tpu_adapter_default_generator": (c_void_p, c_int),
    "tpu_adapter_get_rng": ("error", c_int, POINTER(c_uint64)),
    "tpu_adapter_set_rng": ("error", c_int, c_uint64, c_uint64),
}


def _exception(kind, text):
    import torch

    types = (RuntimeError, NotImplementedError, torch.OutOfMemoryError, IndexError, ValueError, TypeError)
    return types[kind if 0 <= kind < len(types) else 0](text)


def _check(error, function, arguments):
    if error:
        kind = core.tpu_err_get_kind(error)
        text = core.tpu_err_message(error).decode("utf-8", "replace")
        core.tpu_err_free(error)
        raise _exception(kind, text)


def _bind(library, functions):
    for name, (result, *arguments) in functions.items():
        function = getattr(library, name)
        function.argtypes = arguments
        if result == "error":
            function.restype, function.errcheck = c_void_p, _check
        else:
            function.restype = result


@ctypes.CFUNCTYPE(c_int, c_char_p)
def _resolver(name):
    """Called by the adapter, once for each operator that has no row."""
    try:
        from torch_tpu import _decompose

        return int(_decompose.resolve(name.decode()))
    except Exception as error:
        import warnings

        warnings.warn(f"torch_tpu: looking for a decomposition of {name.decode()} failed: {error}", RuntimeWarning, stacklevel=2)
        return 0


_line_source = None


@contextlib.contextmanager
def lines_from(source):
    """Asks source() for "file:line" first; None: it does not know."""
    global _line_source
    before, _line_source = _line_source, source
    try:
        yield
    finally:
        _line_source = before


@Where
def _where(out, n):
    """Writes file:line of the innermost Python frame outside of torch and of this package."""
    text = _line_source() if _line_source is not None else None
    if text:
        text = text.encode()[-(n - 1) :]
        ctypes.memmove(out, text + b"\0", len(text) + 1)
        return
    frame = sys._getframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("torch", "torch_tpu"):
        frame = frame.f_back
    if frame is not None:
        text = f"{frame.f_code.co_filename}:{frame.f_lineno}".encode()[-(n - 1) :]
        ctypes.memmove(out, text + b"\0", len(text) + 1)


class record:
    """From enter to exit the thread's operators are recorded and run as one program at the end."""

    def __enter__(self):
        core.tpu_record_begin(core.tpu_get_device())

    def __exit__(self, kind, value, trace):
        if kind is None:
            core.tpu_record_end()
            return
        try:  # the first error is the one to show
            core.tpu_record_end()
        except Exception:
            pass


def open_libraries():
    """Loads both shared libraries. Loads no plugin."""
    global core, adapter
    if adapter is not None:
        return
    core = ctypes.CDLL(os.path.join(_folder, "libtorchtpu.so"))
    _bind(core, _FUNCTIONS)
    core.tpu_set_where(_where)
    library = ctypes.CDLL(os.path.join(_folder, "libtorchtpu_adapter.so"))
    _bind(library, _ADAPTER_FUNCTIONS)
    library.tpu_adapter_set_resolver(_resolver)
    adapter = library


def default_generator(device):
    """The torch.Generator of the device's own state. PyTorch makes such Python objects in libtorch_python, which the adapter
    does not link, so its function is called by name."""
    import torch

    library = ctypes.PyDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_python.so"))
    wrap = library["_Z17THPGenerator_WrapRKN2at9GeneratorE"]
    wrap.restype, wrap.argtypes = ctypes.py_object, [c_void_p]
    return wrap(adapter.tpu_adapter_default_generator(device))


def stats():
    out = Stats()
    core.tpu_get_stats(ctypes.byref(out))
    return {name: getattr(out, name) for name, _ in Stats._fields_}


def memory_stats(device):
    out = MemoryStats()
    core.tpu_get_memory_stats(device, ctypes.byref(out))
    return out


def plugin_info():
    info = core.tpu_get_plugin_info().contents
    return {
        name: value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        for name, value in ((n, getattr(info, n)) for n, _ in PluginInfo._fields_)
    }


def fallback_counts():
    text = adapter.tpu_adapter_fallback_counts()
    try:
        return json.loads(ctypes.string_at(text))
    finally:
        adapter.tpu_adapter_free(text)
