"""The time model: how long one run of a compiled program takes on one device, from the compiler's own schedule. What it sums
is stated in docs/aot.md. It is an estimate of the device's work alone: the time to launch a program is not in it."""

from dataclasses import dataclass, field

_FREE = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id", "opt-barrier",
    "add-dependency", "domain",
}  # fmt: skip
_COLLECTIVES = {"all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "ragged-all-to-all"}
_SLICES = {"dynamic-slice", "dynamic-update-slice", "slice", "gather", "scatter"}


@dataclass
class Step:
    """One instruction of the schedule (or a loop, with all of its turns)."""

    name: str
    opcode: str
    op: str  # the operator of PyTorch that it comes from
    where: str  # file:line
    seconds: float
    count: int  # how often it runs
    source: str  # what the time rests on: compiler, roofline, link, overlap
    bytes: int  # read and written in HBM, by one run


@dataclass
class Time:
    """seconds: the estimate. parts: {source: seconds}. floor: what no schedule can beat. notes: what the model did not know."""

    seconds: float
    floor: float
    parts: dict
    steps: list
    notes: list = field(default_factory=list)


class _Model:
    def __init__(self, module, chip):
        self.module, self.chip = module, chip
        self.steps, self.notes = [], set()
        self.flying = {}  # id of a start: [seconds left of the transfer]

    def computation(self, comp, count):
        total = 0.0
        known = {i.id: i for i in comp.instructions}
        for i in comp.instructions:
            total += self.instruction(i, known, count)
        return total

    def instruction(self, i, known, count):
        if i.opcode in _FREE:
            return 0.0
        if i.opcode == "while":
            return self.loop(i, count)
        if i.opcode == "conditional":
            self.notes.add("a conditional counts as its longest branch")
            return max(
                (self.quietly(self.module.computations[c], count) for c in i.calls if c in self.module.computations),
                default=0.0,
            )
        if i.opcode in ("call", "async-start") and i.calls:
            body = self.module.computations.get(i.calls[0])
            if i.opcode == "call" and body is not None:
                return self.computation(body, count)
        base = i.opcode.removesuffix("-start").removesuffix("-done")
        moved = self.moved(i, known)
        if i.opcode.endswith("-start"):
            self.flying[i.id] = self.link(i, base, moved) if base in _COLLECTIVES else moved / self.chip.hbm_bandwidth
            return 0.0
        if i.opcode.endswith("-done"):
            left = max(0.0, self.flying.pop(i.operands[0] if i.operands else 0, 0.0))
            return self.add(i, left, count, "link" if base in _COLLECTIVES else "transfer", moved, hide=False)
        if base in _COLLECTIVES:
            return self.add(i, self.link(i, base, moved), count, "link", moved)
        if i.cycles is not None:
            return self.add(i, i.cycles / self.chip.clock, count, "compiler", moved)
        if i.opcode == "custom-call":
            self.notes.add(f"custom call {i.target}: time from its bytes alone")
        return self.add(i, moved / self.chip.hbm_bandwidth, count, "roofline", moved)

    def add(self, i, seconds, count, source, moved, hide=True):
        if hide:  # transfers that were started go on meanwhile
            for k in self.flying:
                self.flying[k] -= seconds
        if seconds > 0:
            self.steps.append(Step(i.name, i.opcode, i.op, i.where, seconds * count, count, source, moved))
        return seconds

    def quietly(self, comp, count):
        kept = len(self.steps)
        out = self.computation(comp, count)
        del self.steps[kept:]
        return out

    def loop(self, i, count):
        trips = i.trips
        if trips is None:
            self.notes.add(f"loop {i.name}: the compiler does not know its number of turns; it counts once")
            trips = 1
        bodies = [self.module.computations[c] for c in i.calls if c in self.module.computations]
        return trips * sum(self.computation(c, count * trips) for c in bodies)

    def moved(self, i, known):
        """Bytes in HBM that the instruction reads and writes."""
        out = i.shape.hbm()
        if i.opcode in _SLICES:
            return 2 * out
        if i.opcode.endswith("-start") and i.shape.parts:  # its result holds its operand too
            return sum(x.bytes() for x in i.shape.parts[0].leaves())
        if i.opcode.endswith("-done"):
            return 0
        return out + sum(known[o].shape.hbm() for o in i.operands if o in known)

    def link(self, i, base, moved):
        """A ring over the group: each device sends (n - 1) / n of the data, twice for an all-reduce, over half of the published
        bandwidth, which counts both directions."""
        n = len(i.groups[0]) if i.groups else 2
        data = max((x.bytes() for x in i.shape.leaves()), default=0)
        share = (n - 1) / n if n > 1 else 0.0
        if base == "all-reduce":
            share *= 2
        if base == "reduce-scatter":
            data *= n
        if base == "collective-permute":
            share = 1.0
        self.notes.add("collectives: a ring at half of the published link bandwidth")
        return data * share / (self.chip.ici_bandwidth / 2)


def estimate(module, chip, flops, dtype, least_bytes):
    """The Time of one run.

    flops: of the products in the program; dtype: of their operands; least_bytes: the inputs and outputs, which are read and
    written at least once."""
    model = _Model(module, chip)
    seconds = model.computation(module.entry, 1)
    parts = {}
    for s in model.steps:
        parts[s.source] = parts.get(s.source, 0.0) + s.seconds
    floor = max(flops / chip.peak(dtype), least_bytes / chip.hbm_bandwidth)
    if floor > seconds:
        parts["below the roofline, raised to it"] = floor - seconds
        seconds = floor
    return Time(seconds, floor, parts, sorted(model.steps, key=lambda s: -s.seconds), sorted(model.notes))
