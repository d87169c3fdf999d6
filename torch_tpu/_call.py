"""Calling a program like the function that it was made of: torch_tpu.export and torch_tpu.aot."""

import torch
from torch.utils import _pytree as pytree

from torch_tpu.aot._trace import Value


class Signature:
    """What a program is called with."""

    def __init__(self, name, arguments, in_spec, again):
        self.arguments = arguments  # leaves of (args, kwargs), with Values in place of tensors
        self.in_spec = in_spec  # of (args, kwargs); None: tensors by position
        self._name, self._again = name, again  # of the program; what to do about other sizes
        self.places = [i for i, v in enumerate(arguments) if isinstance(v, Value)]

    def tensors(self, args, kwargs, device):
        """The tensors among the arguments of a call, in order, when they are what the program takes."""
        leaves = self._leaves(args, kwargs)
        for x, want in zip(leaves, self.arguments, strict=True):
            self._check(x, want, device)
        return [leaves[i] for i in self.places]

    def _leaves(self, args, kwargs):
        if self.in_spec is None:
            if kwargs or len(args) != len(self.arguments):
                raise TypeError(
                    f"{self._name}: expected {len(self.arguments)} tensors, got {len(args)} and {len(kwargs)} by name"
                )
            return args
        order = self.in_spec.child(1).context
        if isinstance(order, list) and set(order) == set(kwargs):
            kwargs = {k: kwargs[k] for k in order}
        leaves, spec = pytree.tree_flatten((args, kwargs))
        if spec != self.in_spec:
            raise TypeError(
                f"{self._name}: expected arguments nested as in the example that it was made with, {self.in_spec}, got {spec}; names are "
                f"{', '.join(v.name for v in self.arguments if isinstance(v, Value))}"
            )
        return leaves

    def _check(self, x, want, device):
        if not isinstance(want, Value):
            if type(x) is not type(want) or x != want:
                raise ValueError(f"{self._name}: it was made for the value {want!r}, which is part of the program, got {x!r}")
            return
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{self._name}: {want.name}: expected a tensor, got {type(x).__name__}")
        check_tensor(self._name, want.name, x, want, device, self._again)


def check_tensor(program, name, x, want, device, again):
    """Refuses a tensor that is not of a Value's dtype and sizes, on this device."""
    if x.dtype != want.dtype or tuple(x.shape) != want.shape:
        raise ValueError(
            f"{program}: {name}: expected a {want.dtype} tensor of the sizes {list(want.shape)}, got {x.dtype} and "
            f"{list(x.shape)}; {again}"
        )
    if x.device != device:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {device} (the program's) and "
            f"{x.device} ({name}'s)"
        )


def tpu_device(device, caller):
    """The device with its number."""
    device = torch.device(device)
    if device.type != "tpu":
        raise ValueError(f"{caller}: expected a tpu device, got {device}")
    return torch.device("tpu", torch.tpu.current_device() if device.index is None else device.index)
