"""Hooks on code that knows no device but its own list. Each acts on tpu tensors or devices only, and says why it is here.
TORCH_TPU_HOOKS=0 switches all of them off. A hook on another package is installed when that package is imported.
The list is _PACKAGES below.
"""

import functools
import importlib.abc
import importlib.machinery
import os
import sys
import warnings


def _is_tpu(device):
    """Whether a device argument of any kind means tpu."""
    return str(device).split(":")[0] == "tpu"


# ---- PyTorch itself --------------------------------------------------------------------------------------------------


def _hook_dlpack_device():
    """torch.Tensor.__dlpack_device__ compares the device's name with the literal "privateuse1", which a renamed device never
    has. The C++ side exports such tensors as kDLExtDev, so this says the same.
    Upstream: torch/_tensor.py, __dlpack_device__."""
    import torch

    original = torch.Tensor.__dlpack_device__

    @functools.wraps(original)
    def __dlpack_device__(self):
        if self.device.type != "tpu":
            return original(self)
        from torch.utils.dlpack import DLDeviceType

        return DLDeviceType.kDLExtDev, self.device.index or 0

    torch.Tensor.__dlpack_device__ = __dlpack_device__


def _hook_fake_impls(module):
    """Shapes of _grouped_mm under torch.compile: PyTorch has the function of its CUDA kernel, which takes bfloat16 alone, with
    strides of whole 16 bytes. Upstream: torch/_meta_registrations.py, meta_grouped_mm."""
    import torch

    @module.register_op_impl(torch.ops.aten._grouped_mm.default)
    def grouped_mm(fake_mode, func, a, b, offs=None, bias=None, out_dtype=None):
        if a.device.type != "tpu":
            return NotImplemented
        sizes = [a.shape[0] if a.dim() == 3 else offs.shape[0]] if a.dim() == b.dim() else []
        with fake_mode:
            return a.new_empty([*sizes, a.shape[-2], b.shape[-1]], dtype=out_dtype)


def _hook_cache_artifacts(module):
    """Executables among the artifacts of torch.compiler.save_cache_artifacts; a process that loads some has to know the kind."""
    from torch_tpu import _megacache  # noqa: F401


# ---- other packages --------------------------------------------------------------------------------------------------


def _hook_safetensors(module):
    """safetensors reads device names in Rust from a fixed list without "tpu"; an integer means the current accelerator's
    device. Upstream: https://github.com/huggingface/safetensors (bindings/python/src/lib.rs, Device)."""
    original = module.safe_open

    def opener(filename, framework, device="cpu", *args, **kwargs):
        return original(filename, framework, _accelerator_index(device), *args, **kwargs)

    functools.update_wrapper(opener, original, updated=())
    module.safe_open = opener


def _accelerator_index(device):
    if isinstance(device, int) or not _is_tpu(device):
        return device
    import torch

    index = torch.device(str(device)).index
    return torch.tpu.current_device() if index is None else index


def _hook_safetensors_torch(module):
    """safetensors.torch has taken safe_open by name before the hook above could replace it."""
    import safetensors

    module.safe_open = safetensors.safe_open


def _hook_accelerate_state(module):
    """accelerate chooses its device from a list without tpu, unless this variable names one; and its PartialState knows no
    backend for tpu, so that several processes would each train alone.
    Upstream: https://github.com/huggingface/accelerate (src/accelerate/state.py, PartialState._prepare_backend)."""
    import torch

    if torch.tpu.is_available():
        os.environ.setdefault("ACCELERATE_TORCH_DEVICE", "tpu")
    original = module.PartialState._prepare_backend

    @functools.wraps(original)
    def _prepare_backend(self, cpu=False, sagemaker_dp=False, backend=None):
        if cpu or sagemaker_dp or int(os.environ.get("LOCAL_RANK", "-1")) < 0:
            return original(self, cpu, sagemaker_dp, backend)
        if not _is_tpu(os.environ.get("ACCELERATE_TORCH_DEVICE", "")):
            return original(self, cpu, sagemaker_dp, backend)
        return backend or "tpu_dist", module.DistributedType.MULTI_XPU

    module.PartialState._prepare_backend = _prepare_backend


def _hook_flex_attention(module):
    """flex_attention refuses devices outside of its own list, though what it is made of runs anywhere.
    Upstream: torch/nn/attention/flex_attention.py, _validate_device."""
    original = module._validate_device

    def _validate_device(query, key, value):
        if query.device.type != "tpu":
            original(query, key, value)

    module._validate_device = _validate_device


_PACKAGES = {
    "torch.compiler._cache": _hook_cache_artifacts,
    "torch._subclasses.fake_impls": _hook_fake_impls,
    "torch.nn.attention.flex_attention": _hook_flex_attention,
    "safetensors": _hook_safetensors,
    "safetensors.torch": _hook_safetensors_torch,
    "accelerate.state": _hook_accelerate_state,
}


class _Loader(importlib.abc.Loader):
    """Runs the module's own loader, then the hook."""

    def __init__(self, loader, hook):
        self._loader, self._hook = loader, hook

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        self._loader.exec_module(module)
        module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._hook(module)

    def __getattr__(self, name):
        return getattr(self._loader, name)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules of _PACKAGES as Python does, and has the hook run once each is imported."""

    def find_spec(self, name, path, target=None):
        hook = _PACKAGES.get(name)
        if hook is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        spec.loader = _Loader(spec.loader, hook)
        return spec


def install():
    value = os.environ.get("TORCH_TPU_HOOKS") or "1"
    if value not in ("0", "1"):
        warnings.warn(f"TORCH_TPU_HOOKS is {value!r}: expected 0 or 1; it is taken as 1", RuntimeWarning, stacklevel=2)
    if value == "0":
        return
    _hook_dlpack_device()
    for name, hook in _PACKAGES.items():
        if name in sys.modules:
            hook(sys.modules[name])
    sys.meta_path.insert(0, _Finder())
