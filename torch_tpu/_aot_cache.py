"""AOTAutograd with its cache: docs/compile.md, "Caches".

torch.compile's own backend hands AOTAutograd objects that can be pickled (OutputCode); AOTAutograd keeps them with all that it
learned of a graph, and a later process takes both from there instead of tracing. Here they hold a graph of the core as bytes.
The key is AOTAutograd's own too, but for the part that describes Inductor: making that imports Inductor's code
generators, which takes longer than tracing a small model does. What the tracing here depends on stands in its place.
"""

import contextlib
import dataclasses
import functools
import hashlib
import os
import pathlib
import sys
import time

import torch
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd.autograd_cache import (
    AOTAutogradCache,
    AOTAutogradCacheDetails,
    AOTAutogradCachePickler,
    BypassAOTAutogradCache,
    check_cacheable,
    sanitize_gm_for_cache,
    should_use_local_autograd_cache,
)
from torch._functorch._aot_autograd.schemas import AOTAutogradCacheInfo
from torch._inductor.output_code import OutputCode

from torch_tpu import _core

_IRRELEVANT = ("TORCH_TPU_CACHE_", "TORCH_TPU_TIER3_", "TORCH_TPU_LOG")  # environment variables that change no program


class Kept(OutputCode):
    """A compiled graph that AOTAutograd's cache can keep. call: takes a list of arguments, which it empties. state: what
    `load` makes such a call of in another process, or a sentence that says why none can be made."""

    def __init__(self, call, state, direct=False):
        super().__init__()
        self.call, self.state, self.direct = call, state, direct
        self._boxed_call = True  # of the object: what torch._dynamo.disable makes of it has the object's attributes only

    def __call__(self, inputs):
        return self.call(inputs)

    def prepare_for_serialization(self):
        if isinstance(self.state, str):
            raise BypassAOTAutogradCache(self.state)
        self.call = None

    def post_compile(self, example_inputs, constants, graph_kwargs):
        if self.call is None:
            from torch_tpu.compile import load

            self.call = load(self.state)

    def set_triton_bundle(self, triton_bundle):
        pass


# ---- the key ---------------------------------------------------------------------------------------------------------


@functools.cache
def _version():
    """A hash of what makes programs of graphs: this package, PyTorch and Python."""
    root = pathlib.Path(__file__).parent
    out = hashlib.blake2b(repr((torch.__version__, torch.version.git_version, sys.version)).encode())
    for path in sorted([*root.glob("*.py"), *root.glob("lib/*.so")]):
        out.update(path.name.encode() + b"\0" + path.read_bytes())
    return out.hexdigest()


def _target():
    """The device and its plugin, for rows build what suits them."""
    info = torch.tpu.plugin_info()
    stat = os.stat(info["path"])
    return (*sorted((k, str(v)) for k, v in info.items()), stat.st_size, stat.st_mtime_ns, torch.tpu.get_device_name())


def _state():
    """What a graph's operators mean besides what stands in the graph."""
    env = sorted((k, v) for k, v in os.environ.items() if k.startswith("TORCH_TPU_") and not k.startswith(_IRRELEVANT))
    cuda = torch.backends.cuda
    return (
        env,
        torch.get_default_dtype(),
        torch.get_float32_matmul_precision(),
        _core.adapter.tpu_adapter_get_precision(),
        torch.tpu.eager_mode.name,
        torch.is_inference_mode_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        (cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled(), cuda.cudnn_sdp_enabled()),
        torch.compiler.config.cache_key_tag,
    )


class _Details(AOTAutogradCacheDetails):
    """What the key is a hash of."""

    def _init_fx_graph_hash_details(self, gm, example_inputs, fx_config):
        self.gm, self.example_inputs, self.of_tpu = gm, list(example_inputs), fx_config


def _why_not(graph, args):
    """Why the key would not say everything about the graph; None: it does."""
    from torch._subclasses import FakeTensor

    for m in graph.modules():
        if any(isinstance(v, torch.Tensor) for v in (*m.__dict__.values(), *m._parameters.values(), *m._buffers.values())):
            return "a tensor is part of the graph"
        for n in m.graph.nodes if isinstance(m, torch.fx.GraphModule) else ():
            ops = n.target if isinstance(n.target, torch._ops.OpOverload | torch._ops.OpOverloadPacket) else None
            if ops is not None and str(ops).partition(".")[0] not in ("aten", "prims", "tpu"):
                return f"{n.target} is an operator whose code may be another one in another process"
    if not all(type(x) is FakeTensor and all(type(n) is int for n in (*x.shape, *x.stride())) for x in args):
        return "it takes something else than plain tensors of known sizes"
    if len({x.untyped_storage()._cdata for x in args}) < len(args):
        return "inputs share memory"
    return None


def _key(graph, args, config, settings):
    """The name under which AOTAutograd's results for this graph are kept; None when it has none."""
    from torch._dynamo.utils import counters

    ours = (_version(), _target(), _state(), sorted((k, str(v)) for k, v in settings.items()))
    try:
        if why := _why_not(graph, args):
            raise BypassAOTAutogradCache(why)
        with sanitize_gm_for_cache(graph):
            check_cacheable(graph)
            return "t" + AOTAutogradCachePickler(graph).get_hash(_Details(graph, args, config, ours))
    except Exception as error:
        counters["aot_autograd"]["autograd_cache_bypass"] += 1
        if functorch_config.strict_autograd_cache:
            raise
        torch._logging.getArtifactLogger(__name__, "aot_graphs").info("not kept in AOTAutograd's cache: %s", error)
        return None


# ---- AOTAutograd -----------------------------------------------------------------------------------------------------


def usable(graph, inputs):
    """Whether AOTAutograd's cache is on, and this is a call that `compile` can make."""
    return (
        should_use_local_autograd_cache()
        and not os.environ.get("TORCH_TPU_DUMP")  # what is dumped is seen when it is made
        and isinstance(graph, torch.fx.GraphModule)
        and all(isinstance(x, torch.Tensor) and x.layout == torch.strided for x in inputs)
        and not any(isinstance(n, torch.SymInt) for x in inputs for n in (*x.shape, *x.stride()))
    )


def compile(graph, inputs, settings, *, forward, backward, inference, partition):  # noqa: A001
    """What torch._dynamo.backends.common.aot_autograd gives, for a graph that is `usable`; and the Kept of the graph when it
    came from the cache and has no backward graph. The compilers give Kept."""
    from torch._dynamo import disable
    from torch._dynamo.utils import counters
    from torch._functorch import aot_autograd as aot

    counters["aot_autograd"]["total"] += 1
    try:
        with contextlib.ExitStack() as stack:
            prepared = aot.prepare_aot_module_simplified(
                graph, inputs, None, {}, True, False, flatten=False, force_non_lazy_backward_lowering=True
            )
            call, params, _, _, args, descriptions, config, fake_mode, shape_env, _, _, active = prepared
            key = _key(graph, args, config, settings)
            made, kept = _load(key, args, config) if key else (None, None)
            if made is None:
                if key:
                    info = AOTAutogradCacheInfo(key, time.time_ns(), forward_symints=[])
                    config = dataclasses.replace(config, cache_info=info)
                if os.environ.get("TORCH_COMPILE_DEBUG") == "1":
                    from torch._inductor.debug import enable_aot_logging

                    stack.enter_context(enable_aot_logging())
                stack.enter_context(torch._dynamo.compiled_autograd._disable())
                stack.enter_context(functorch_config.patch(bundled_autograd_cache=True))
                state = aot.create_aot_state(stack, call, args, descriptions, config, fake_mode, shape_env)
                state.fw_metadata.act_input_indices = active
                captured = aot.aot_stage1_graph_capture(state, call)
                why = "do not trace the compiler of the backward graph"
                made, _ = aot.aot_stage2_compile(state, captured, partition, forward, disable(backward, reason=why), inference)
    except Exception:
        counters["aot_autograd"]["not_ok"] += 1
        raise
    counters["aot_autograd"]["ok"] += 1
    held = list(params)
    return disable(lambda *given: made([*held, *given]), reason="do not trace AOT-compiled graph"), kept


def _load(key, args, config):
    """What the cache has under this key as a callable, and its Kept when that is all of it; twice None when it has nothing."""
    from torch._dynamo.utils import counters

    count = counters["aot_autograd"]
    found = AOTAutogradCache._lookup(key, True, False, args, {}, config)
    try:
        entry = found and found[0]
        made = entry and entry.wrap_post_compile(args, config, {"cudagraphs": False, "boxed_forward_device_index": None})
    except Exception:
        if functorch_config.strict_autograd_cache:
            raise
        made = None  # a device that is not there, a file that is damaged
    if not made:
        count["autograd_cache_miss"] += 1
        return None, None
    count["autograd_cache_hit"] += 1
    return made, entry.compiled_fw.result if entry.compiled_bw is None else None
