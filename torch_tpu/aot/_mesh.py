"""Sharded programs in the user's words: a mesh, and placements in those of torch.distributed.tensor (Shard(dim), Replicate())
for what a program takes, gives, and makes in between."""

import contextlib
import fnmatch

import torch

_current = []  # the mesh of the capture that is going on


class Mesh:
    """Axes with names and sizes, outermost first."""

    def __init__(self, names, sizes):
        self.names, self.sizes = tuple(names), tuple(sizes)
        self.devices = 1
        for n in self.sizes:
            self.devices *= n

    def position(self, partition):
        """The place of a partition along each axis."""
        out = []
        for n in reversed(self.sizes):
            out.append(partition % n)
            partition //= n
        return tuple(reversed(out))

    def __str__(self):
        return "{" + ", ".join(f"{n}: {s}" for n, s in zip(self.names, self.sizes, strict=True)) + "}"


def mesh_of(given):
    """A Mesh: of a dict {"data": 4, "model": 4}, of (shape, names), or of a DeviceMesh."""
    if isinstance(given, Mesh):
        return given
    if isinstance(given, dict):
        names, sizes = list(given), list(given.values())
    elif isinstance(given, (tuple, list)) and len(given) == 2 and isinstance(given[0], (tuple, list)):
        sizes, names = map(list, given)
    elif hasattr(given, "mesh_dim_names") and hasattr(given, "mesh"):
        sizes, names = list(given.mesh.shape), list(given.mesh_dim_names or ())
    else:
        raise TypeError(
            "torch.tpu.aot.compile: expected mesh as {'data': 4, 'model': 4}, ((4, 4), ('data', 'model')) or a DeviceMesh, got "
            f"{given!r}"
        )
    bad = [n for n in names if not isinstance(n, str) or not n] + [s for s in sizes if not isinstance(s, int) or s < 1]
    if bad or len(names) != len(sizes) or len(set(names)) != len(names) or not names:
        raise ValueError(
            f"torch.tpu.aot.compile: expected a mesh with a name of its own and a size of at least 1 for each axis, got {given!r}"
        )
    return Mesh(names, sizes)


def _dim(placement, ndim, what):
    """The dim that a placement splits; -1: none."""
    if getattr(placement, "is_replicate", lambda: False)():
        return -1
    if getattr(placement, "is_shard", lambda: False)() and type(placement).__name__ == "Shard":
        d = placement.dim
        if not -ndim <= d < ndim:
            raise IndexError(
                f"torch.tpu.aot: {what} is placed as {placement}, but it has {ndim} dims: expected a dim from {-ndim} to {ndim - 1}"
            )
        return d % ndim
    raise TypeError(
        f"torch.tpu.aot: the placement of {what}: expected Shard(dim) or Replicate() of torch.distributed.tensor, got {placement!r}"
    )


def place(mesh, placements, ndim, what):
    """For each axis of the mesh the dim that is split over it, or -1. placements: one for each axis, or {axis: placement}, where
    axes that are not named replicate."""
    if isinstance(placements, dict):
        for axis in placements:
            if axis not in mesh.names:
                raise ValueError(f"torch.tpu.aot: {what} is placed on the axis {axis!r}, but the mesh is {mesh}")
        out = [_dim(placements[n], ndim, what) if n in placements else -1 for n in mesh.names]
    else:
        given = placements if isinstance(placements, (tuple, list)) else (placements,)
        if len(given) != len(mesh.names):
            raise ValueError(
                f"torch.tpu.aot: {what} has {len(given)} placements, expected one for each axis of the mesh {mesh}, or a dict "
                "{axis: placement}"
            )
        out = [_dim(p, ndim, what) for p in given]
    return out


class Placing:
    """Which value is where. rules: {pattern of names: placements}, or a function (Value) -> placements or None."""

    def __init__(self, mesh, rules):
        self.mesh, self.rules = mesh, rules
        self.used = set()

    def _rule(self, value):
        if callable(self.rules):
            return self.rules(value)
        if value.name in self.rules and value.kind != "gradient":
            self.used.add(value.name)
            return self.rules[value.name]
        follows = value.kind in ("optimizer", "gradient")  # its parameter, unless a pattern speaks of "weight exp_avg"
        for pattern, placements in self.rules.items():
            if fnmatch.fnmatchcase(value.name, pattern) and (not follows or " " in pattern):
                self.used.add(pattern)
                return placements
        return None

    def of(self, value, owner=None):
        """The place of an input; owner: the place of the parameter that it belongs to, when it has the same shape."""
        rule = self._rule(value)
        if rule is None:
            return owner or [-1] * len(self.mesh.names)
        return place(self.mesh, rule, len(value.shape), f"{value}")

    def check(self, names):
        """Refuses patterns that met no name."""
        if callable(self.rules):
            return
        unknown = [p for p in self.rules if p not in self.used]
        if unknown:
            known = ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
            raise ValueError(
                f"torch.tpu.aot.compile: placements for {', '.join(map(repr, unknown))}, but nothing has such a name; there are: "
                f"{known}"
            )


def parts(mesh, where):
    """Into how many pieces a tensor at this place is cut."""
    n = 1
    for size, d in zip(mesh.sizes, where, strict=True):
        if d >= 0:
            n *= size
    return n


def words(mesh, where):
    """A place as text: "data: Shard(0), model: Replicate()"."""
    text = [f"{n}: {f'Shard({d})' if d >= 0 else 'Replicate()'}" for n, d in zip(mesh.names, where, strict=True)]
    return ", ".join(text)


@contextlib.contextmanager
def current(mesh):
    """The mesh that constrain() speaks of."""
    _current.append(mesh)
    try:
        yield
    finally:
        _current.pop()


class _Constrain(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, where):
        ctx.where = where
        return torch.ops.torch_tpu.capture_constrain(x, where)

    @staticmethod
    def backward(ctx, grad):
        return torch.ops.torch_tpu.capture_constrain(grad, ctx.where), None


def constrain(x, placements):
    """x, which is to be at these placements of the mesh while a sharded program is captured; elsewhere x itself. Its gradient is
    to be there too.

    placements: one for each axis of the mesh, or {axis: placement}: those of torch.distributed.tensor."""
    if not _current or _current[-1] is None or x.device.type != "tpu":
        return x
    mesh = _current[-1]
    where = place(mesh, placements, x.dim(), f"a tensor {str(x.dtype)[6:]}{list(x.shape)} in constrain()")
    return _Constrain.apply(x, where)
