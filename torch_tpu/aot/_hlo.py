"""Reads a compiled program as libtpu gives it: a serialized HloModuleProtoWithConfig (openxla/xla, xla/service/hlo.proto and
xla/xla_data.proto). Only the fields below are read; the numbers are those of the proto files."""

import json
from dataclasses import dataclass, field

_TYPES = {  # xla_data.proto, PrimitiveType: name, bits
    1: ("pred", 8), 2: ("s8", 8), 3: ("s16", 16), 4: ("s32", 32), 5: ("s64", 64), 6: ("u8", 8), 7: ("u16", 16),
    8: ("u32", 32), 9: ("u64", 64), 10: ("f16", 16), 11: ("f32", 32), 12: ("f64", 64), 15: ("c64", 64), 16: ("bf16", 16),
    17: ("token", 0), 18: ("c128", 128), 19: ("f8e5m2", 8), 20: ("f8e4m3fn", 8), 21: ("s4", 4), 22: ("u4", 4),
    24: ("f8e5m2fnuz", 8), 25: ("f8e4m3fnuz", 8), 26: ("s2", 2), 27: ("u2", 2), 30: ("s1", 1), 31: ("u1", 1),
    32: ("f4e2m1fn", 4), 33: ("f8e8m0fnu", 8),
}  # fmt: skip


def _varint(b, i):
    v = s = 0
    while True:
        c = b[i]
        i += 1
        v |= (c & 127) << s
        if c < 128:
            return v, i
        s += 7


def _fields(b):
    """(number, value) of a message: int for numbers, bytes for what has a length."""
    i, n = 0, len(b)
    while i < n:
        key, i = _varint(b, i)
        kind = key & 7
        if kind == 0:
            v, i = _varint(b, i)
        elif kind == 2:
            size, i = _varint(b, i)
            v, i = b[i : i + size], i + size
            if len(v) != size:
                raise ValueError("a compiled program is cut off")
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
            v, i = b[i : i + size], i + size
        else:
            raise ValueError(f"a compiled program has an unknown field of kind {kind}")
        yield key >> 3, v


def _numbers(v):
    """A repeated number: one, or packed."""
    if isinstance(v, int):
        return [v]
    out, i = [], 0
    while i < len(v):
        x, i = _varint(v, i)
        out.append(x)
    return out


@dataclass
class Shape:
    """A type. dims and tiles in elements; space 0 is HBM, others are on the chip."""

    dtype: str = "?"
    bits: int = 0
    dims: list = field(default_factory=list)
    parts: list = field(default_factory=list)  # of a tuple
    order: list = field(default_factory=list)  # minor to major
    tiles: list = field(default_factory=list)
    space: int = 0

    def leaves(self):
        return [x for p in self.parts for x in p.leaves()] if self.dtype == "tuple" else [self]

    def bytes(self):
        """Bytes in memory, with what the tiles of the layout pad."""
        if self.dtype == "tuple":
            return sum(p.bytes() for p in self.parts)
        return self._elements(True) * self.bits // 8

    def unpadded(self):
        """Bytes of the elements alone."""
        if self.dtype == "tuple":
            return sum(p.unpadded() for p in self.parts)
        return self._elements(False) * self.bits // 8

    def hbm(self):
        """Bytes of what lies in HBM."""
        return sum(x.bytes() for x in self.leaves() if x.space == 0)

    def _elements(self, padded):
        dims = list(self.dims)
        if padded and self.tiles and len(self.order) == len(dims):
            tile = self.tiles[0]
            for k, size in enumerate(reversed(tile)):
                if k < len(dims) and size > 0:
                    d = self.order[k]
                    dims[d] = -(-dims[d] // size) * size
        n = 1
        for d in dims:
            n *= d
        return n

    def __str__(self):
        if self.dtype == "tuple":
            return f"({', '.join(map(str, self.parts))})"
        return f"{self.dtype}[{','.join(map(str, self.dims))}]" + (f"{{space {self.space}}}" if self.space else "")


@dataclass
class Instruction:
    name: str = ""
    opcode: str = ""
    shape: Shape = None
    id: int = 0
    operands: list = field(default_factory=list)  # ids
    calls: list = field(default_factory=list)  # ids of computations
    op: str = ""  # "aten::mm"
    frame: int = 0
    target: str = ""  # of a custom call
    fusion: str = ""
    config: dict = field(default_factory=dict)
    where: str = ""  # file:line
    group: list = field(default_factory=list)  # of a collective: the first of its groups of partitions, as wide as the others
    pairs: list = field(default_factory=list)  # of a collective-permute: (from, to)
    index: int = 0  # of get-tuple-element
    number: int | None = None  # of a constant: an integer of rank 0
    direction: str = ""  # of a comparison

    @property
    def cycles(self):
        """The compiler's estimate, None when it gives none."""
        for part in ("window_config", "custom_call_config"):
            text = (self.config.get(part) or {}).get("estimated_cycles")
            if text is not None and int(text) > 0:
                return int(text)
        text = self.config.get("estimated_cycles")
        return int(text) if text is not None and int(text) > 0 else None

    @property
    def trips(self):
        """How often a loop runs; None: the compiler does not know."""
        n = (self.config.get("known_trip_count") or {}).get("n")
        return int(n) if n is not None else None


@dataclass
class Computation:
    name: str
    id: int
    instructions: list  # in the order of the schedule
    root: int = 0  # id of the instruction that is its result


@dataclass
class Module:
    name: str
    entry: Computation
    computations: dict  # {id: Computation}

    def text(self, fused=False):
        """The program as text, one instruction a line, in the order of the schedule. fused: with the bodies of fusions."""
        called = {c for comp in self.computations.values() for i in comp.instructions if i.opcode == "fusion" for c in i.calls}
        out = []
        for comp in self.computations.values():
            if not fused and comp.id in called:
                continue
            names = {i.id: i.name for i in comp.instructions}
            out.append(f"{'ENTRY ' if comp is self.entry else ''}{comp.name} {{")
            for i in comp.instructions:
                notes = [i.op, i.where, f"{i.cycles} cycles" if i.cycles else "", i.target]
                calls = "".join(f", calls={self.computations[c].name}" for c in i.calls if c in self.computations)
                tail = ", ".join(n for n in notes if n)
                args = ", ".join(names.get(o, "?") for o in i.operands)
                out.append(f"  {i.name} = {i.shape} {i.opcode}({args}){calls}" + (f"  // {tail}" if tail else ""))
            out.append("}")
        return "\n".join(out) + "\n"


def _integers(b):
    """The integer of a literal of rank 0 (LiteralProto); None: it is something else."""
    found = None
    for n, v in _fields(b):
        if n == 1 and _shape(v).dims:
            return None
        if n in (4, 5, 6, 7):
            x = (_numbers(v) or [0])[0]
            found = x - (1 << 64) if n in (4, 5) and x >> 63 else x
    return found


def _groups(field_number, b):
    """The first group of partitions. Three ways of writing: all groups; numbers in the order of a transposed grid; axes of a
    mesh."""
    fields = list(_fields(b))
    if field_number == 87:  # CollectiveDeviceListProto
        for n, v in fields:
            if n == 1:
                return [x for k, y in _fields(v) if k == 1 for x in _numbers(y)]
            if n == 2:
                return _groups(92, v)
        return []
    if field_number == 92:  # IotaReplicaGroupListProto
        each, dims, order = 0, [], []
        for n, v in fields:
            if n == 2:
                each = v
            elif n == 3:
                dims += _numbers(v)
            elif n == 4:
                order += _numbers(v)
        return [_iota(dims, order or list(range(len(dims))), i) for i in range(each)]
    sizes, chosen = [], []  # MeshAxesReplicaGroupListProto
    for n, v in fields:
        if n == 1:
            sizes = [dict(_fields(x)).get(2, 1) for k, x in _fields(v) if k == 1]
        elif n == 2:
            a = dict(_fields(v))
            part = dict(_fields(a[2])) if 2 in a else None
            chosen.append((a.get(1, 0), part))
    strides = [1] * len(sizes)
    for i in range(len(sizes) - 2, -1, -1):
        strides[i] = strides[i + 1] * sizes[i + 1]
    group = [0]
    for axis, part in chosen:
        n, stride = sizes[axis], strides[axis]
        if part:  # a part of the axis: after pre_size, of size
            n = part.get(2, 1)
            stride *= sizes[axis] // (part.get(1, 1) * n)
        group = [g + i * stride for g in group for i in range(n)]
    return group


def _iota(dims, order, i):
    """Element i of a grid of numbers in row-major order, transposed and read in row-major order again."""
    at = [0] * len(dims)
    for k in reversed(order):
        at[k] = i % dims[k]
        i //= dims[k]
    out = 0
    for d, x in zip(dims, at, strict=True):
        out = out * d + x
    return out


def _layout(shape, b):
    for n, v in _fields(b):
        if n == 1:
            shape.order += _numbers(v)
        elif n == 6:
            shape.tiles.append([x if x < 1 << 62 else -1 for k, y in _fields(v) if k == 1 for x in _numbers(y)])
        elif n == 8:
            shape.space = v


def _shape(b):
    out = Shape()
    for n, v in _fields(b):
        if n == 2:
            out.dtype, out.bits = ("tuple", 0) if v == 13 else _TYPES.get(v, ("?", 0))
        elif n == 3:
            out.dims += _numbers(v)
        elif n == 4:
            out.parts.append(_shape(v))
        elif n == 5:
            _layout(out, v)
    return out


def _instruction(b):
    out = Instruction(shape=Shape())
    for n, v in _fields(b):
        if n == 1:
            out.name = v.decode()
        elif n == 2:
            out.opcode = v.decode()
        elif n == 3:
            out.shape = _shape(v)
        elif n == 7:
            for k, x in _fields(v):
                if k == 2:
                    out.op = x.decode("utf-8", "replace")
                elif k == 15:
                    out.frame = x
        elif n == 8:
            out.number = _integers(v)
        elif n == 11:
            out.fusion = v.decode()
        elif n == 13:
            out.index = v
        elif n == 28:
            out.target = v.decode("utf-8", "replace")
        elif n == 35:
            out.id = v
        elif n == 36:
            out.operands += _numbers(v)
        elif n == 38:
            out.calls += _numbers(v)
        elif n == 43 and v[:1] == b"{":
            try:
                out.config = json.loads(v)
            except ValueError:
                out.config = {}
        elif n == 49 and not out.group:
            out.group = [x for k, y in _fields(v) if k == 1 for x in _numbers(y)]
        elif n == 52:
            pair = dict(_fields(v))
            out.pairs.append((pair.get(1, 0), pair.get(2, 0)))
        elif n == 63:
            out.direction = v.decode()
        elif n in (87, 92, 93) and v:
            out.group = _groups(n, v)
    return out


def _frames(b):
    """{frame number: "file:line"}."""
    files, places, frames = [], [], []
    for n, v in _fields(b):
        if n == 1:
            files.append(v.decode("utf-8", "replace"))
        elif n == 3:
            places.append(dict(_fields(v)))
        elif n == 4:
            frames.append(dict(_fields(v)))
    out = {}
    for i, f in enumerate(frames, 1):
        at = f.get(1, 0)
        place = places[at - 1] if 0 < at <= len(places) else {}
        file = place.get(1, 0)
        if 0 < file <= len(files) and place.get(3):
            out[i] = f"{files[file - 1]}:{place[3]}"
    return out


def read(data):
    """The module of a serialized HloModuleProtoWithConfig."""
    module = next((v for n, v in _fields(data) if n == 1), None)
    if module is None:
        raise ValueError("a compiled program holds no module")
    name, entry, comps, order, frames = "", 0, {}, {}, {}
    for n, v in _fields(module):
        if n == 1:
            name = v.decode()
        elif n == 3:
            c = Computation("", 0, [])
            for k, x in _fields(v):
                if k == 1:
                    c.name = x.decode()
                elif k == 2:
                    c.instructions.append(_instruction(x))
                elif k == 5:
                    c.id = x
                elif k == 6:
                    c.root = x
            comps[c.id] = c
        elif n == 6:
            entry = v
        elif n == 7:  # schedule: {computation: sequence}
            for k, x in _fields(v):
                pair = dict(_fields(x))
                if k == 1:
                    order[pair.get(1, 0)] = [y for j, z in _fields(pair.get(2, b"")) if j == 1 for y in _numbers(z)]
        elif n == 17:
            frames = _frames(v)
    for c in comps.values():
        for i in c.instructions:
            i.where = frames.get(i.frame, "")
        if c.id in order:
            place = {x: k for k, x in enumerate(order[c.id])}
            c.instructions.sort(key=lambda i: place.get(i.id, len(place)))
    for c in comps.values():  # a fusion without a line has that of what it computes
        for i in c.instructions:
            if i.opcode == "fusion" and i.calls and not (i.where and i.op):
                body = comps.get(i.calls[0])
                inner = [x for x in (body.instructions if body else ()) if x.where or x.op]
                if inner:
                    i.op, i.where = i.op or inner[-1].op, i.where or inner[-1].where
    if entry not in comps:
        raise ValueError("a compiled program has no entry")
    return Module(name, comps[entry], comps)
