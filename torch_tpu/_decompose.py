"""Operators without a row of their own: PyTorch's decomposition, recorded and run as one program.

The adapter asks `resolve` once for each such operator, at its first use. What is found becomes the operator's kernel on
the device; when a decomposition cannot run there, its operator runs on the CPU, counted like every fallback.
"""

import threading

_active = threading.local()
_library = None


def _register(name, op, decomposition):
    global _library
    import torch
    from torch.utils._pytree import tree_map

    from torch_tpu import _core

    if _library is None:
        _library = torch.library.Library("aten", "IMPL")

    def on_cpu(args, kwargs):
        if _core.adapter.tpu_adapter_report_fallback(name.encode()):
            raise NotImplementedError(
                f"The operator '{name}' has no kernel for the tpu device, and TORCH_TPU_FALLBACK=error forbids running it on the CPU."
            )
        device = None

        def down(x):
            nonlocal device
            if isinstance(x, torch.Tensor) and x.device.type == "tpu":
                device = x.device
                return x.cpu()
            if isinstance(x, torch.device) and x.type == "tpu":
                device = x
                return torch.device("cpu")
            return x

        args, kwargs = tree_map(down, (args, kwargs))
        result = op(*args, **kwargs)
        return tree_map(lambda x: x.to(device) if isinstance(x, torch.Tensor) and device is not None else x, result)

    def kernel(*args, **kwargs):
        running = getattr(_active, "names", None)
        if running is None:
            running = _active.names = set()
        if name in running:  # the decomposition is made of itself
            return on_cpu(args, kwargs)
        running.add(name)
        try:
            with _core.record():
                return decomposition(*args, **kwargs)
        except Exception:
            pass  # the CPU kernel decides: it gives the result, or PyTorch's own error
        finally:
            running.discard(name)
        return on_cpu(args, kwargs)

    _library.impl(name.removeprefix("aten::"), kernel, "PrivateUse1")


def resolve(name):
    """name: "aten::op.overload", a functional operator. True when a kernel was registered for it."""
    import torch
    from torch._decomp import decomposition_table

    base, _, overload = name.removeprefix("aten::").partition(".")
    op = getattr(getattr(torch.ops.aten, base), overload or "default")
    decomposition = decomposition_table.get(op)
    if decomposition is None:
        from torch_tpu import _compositions

        decomposition = _compositions.TABLE.get(name)
    if decomposition is None:
        return False
    _register(name, op, decomposition)
    return True
