"""torch_tpu: a native PyTorch device `tpu`.

`import torch` is enough: PyTorch loads this package through its entry point (group torch.backends) and the device is
there as torch.device("tpu"), with its module at torch.tpu. TORCH_DEVICE_BACKEND_AUTOLOAD=0 switches that off.
"""

import sys as _sys

__version__ = "0.1.0"


def _autoload():
    """PyTorch calls this at the end of `import torch`. It must not break that import: a failure is a warning."""
    try:
        from torch_tpu import _loader

        _loader.load()
    except Exception as error:
        import warnings

        warnings.warn(f"torch_tpu could not be loaded, so there is no tpu device: {error}", RuntimeWarning, stacklevel=2)
        for name in [m for m in _sys.modules if m == "torch_tpu" or m.startswith("torch_tpu.")]:
            del _sys.modules[name]  # so that `import torch_tpu` tries again and raises


import torch as _torch  # noqa: E402  (_autoload must exist first: importing torch calls it)

if not getattr(_torch.__spec__, "_initializing", False):
    from torch_tpu import _loader as _loader

    _loader.load()
