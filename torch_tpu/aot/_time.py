"""The time model: how long one run of a compiled program takes on one device, from the compiler's own schedule. What it sums
is stated in docs/aot.md. It is an estimate of the device's work alone: the time to launch a program is not in it."""

from dataclasses import dataclass, field

from torch_tpu.aot import _kernels, _links

_FREE = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id", "opt-barrier",
    "add-dependency", "domain", "async-update",
}  # fmt: skip
_NO_WORK = {"ConcatBitcast", "AllocateBuffer"}  # custom calls that only name memory
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
class Collective:
    """A collective of the schedule."""

    name: str
    kind: str  # all-reduce, all-gather, reduce-scatter, all-to-all, collective-permute
    op: str
    where: str
    group: list  # the partitions of the first group
    pairs: list  # of a collective-permute
    bytes: int  # that one device sends in one run
    seconds: float  # of one run on the links
    waited: float  # of them, not hidden behind other work
    count: int  # runs


@dataclass
class Time:
    """seconds: the estimate. parts: {source: seconds}. floor: what no schedule can beat. notes: what the model did not know."""

    seconds: float
    floor: float
    parts: dict
    steps: list
    notes: list = field(default_factory=list)
    collectives: list = field(default_factory=list)


class _Model:
    def __init__(self, module, chip, links, topology):
        self.module, self.chip, self.links, self.topology = module, chip, links, topology
        self.steps, self.notes, self.collectives = [], set(), []
        self.flying = {}  # id of the start of a transfer: seconds that are left of it
        self.queue = []  # collectives on the links, which take turns: [id, seconds left, Collective]

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
            return self.loop(i, known, count)
        if i.opcode == "conditional":
            self.notes.add("a conditional counts as its longest branch")
            return max(
                (self.quietly(self.module.computations[c], count) for c in i.calls if c in self.module.computations),
                default=0.0,
            )
        if i.opcode == "call" and i.calls and i.calls[0] in self.module.computations:
            return self.computation(self.module.computations[i.calls[0]], count)
        moved = self.moved(i, known)
        if i.opcode.endswith("-done"):
            return self.done(i, known, count, moved)
        c = self.collective(i, known, count)
        if i.opcode.endswith("-start"):
            if c:
                self.queue.append([i.id, c.seconds, c])
            else:
                self.flying[i.id] = moved / self.chip.hbm_bandwidth
            return 0.0
        if c:
            cycles = (i.cycles or 0) / self.chip.clock  # a fusion that computes too
            c.waited = max(0.0, c.seconds - cycles)
            if cycles:
                self.add(i, cycles, count, "compiler", moved)
            return cycles + self.add(i, c.waited, count, "link", moved)
        if i.cycles is not None:
            return self.add(i, i.cycles / self.chip.clock, count, "compiler", moved)
        if i.opcode == "custom-call":
            if i.target in _NO_WORK:
                return 0.0
            if i.target == "tpu_custom_call":
                return self.kernel(i, known, count, moved)
            self.notes.add(f"custom call {i.target}: time from its bytes alone")
        return self.add(i, moved / self.chip.hbm_bandwidth, count, "roofline", moved)

    def kernel(self, i, known, count, moved):
        """A kernel: by the compiler's simulation, else by what it says of itself."""
        operands = [known[o].shape for o in i.operands]
        cycles = self.topology and _kernels.cycles(self.topology, i.config, operands, i.shape.leaves())
        if cycles:
            return self.add(i, max(cycles / self.chip.clock, moved / self.chip.hbm_bandwidth), count, "compiler", moved)
        flops, _ = _kernels.operations(i.config)
        self.notes.add(f"kernel {i.name}: time from its operations and bytes at the chip's peaks")
        return self.add(i, max(flops / self.chip.peak("bfloat16"), moved / self.chip.hbm_bandwidth), count, "roofline", moved)

    def done(self, i, known, count, moved):
        """What is left of a transfer at its end; of a collective, also of those that are before it on the links."""
        start = i.operands[0] if i.operands else 0
        while start in known and known[start].opcode == "async-update" and known[start].operands:
            start = known[start].operands[0]
        place = next((k for k, (which, _, _) in enumerate(self.queue) if which == start), None)
        if place is None:
            return self.add(i, max(0.0, self.flying.pop(start, 0.0)), count, "transfer", moved)
        first, self.queue = self.queue[: place + 1], self.queue[place + 1 :]
        waited = 0.0
        for k, (_, left, c) in enumerate(first):
            c.waited += left
            waited += left
            if k < place:
                self.queue.insert(k, [first[k][0], 0.0, c])  # over by now; its own end waits for nothing
        return self.add(i, waited, count, "link", moved, links=False)

    def add(self, i, seconds, count, source, moved, links=True):
        """Time passes: transfers that were started go on meanwhile, and so do collectives unless it is they that are waited
        for."""
        for k in self.flying:
            self.flying[k] -= seconds
        left = seconds if links and source != "link" else 0.0
        for entry in self.queue:
            if left <= 0:
                break
            used = min(left, entry[1])
            entry[1] -= used
            left -= used
        if seconds > 0:
            self.steps.append(Step(i.name, i.opcode, i.op, i.where, seconds * count, count, source, moved))
        return seconds

    def quietly(self, comp, count):
        kept, also = len(self.steps), len(self.collectives)
        out = self.computation(comp, count)
        del self.steps[kept:], self.collectives[also:]
        return out

    def loop(self, i, known, count):
        trips = i.trips if i.trips is not None else self.turns(i, known)
        if trips is None:
            self.notes.add(f"loop {i.name}: the compiler does not know its number of turns; it counts once")
            trips = 1
        bodies = [self.module.computations[c] for c in i.calls if c in self.module.computations]
        return trips * sum(self.computation(c, count * trips) for c in bodies)

    def turns(self, i, known):
        """How often a loop turns that counts with constants: while (k < end) k += step."""
        comps = [self.module.computations.get(c) for c in i.calls]
        if len(comps) != 2 or None in comps:
            return None
        for body, cond in (comps, comps[::-1]):
            inside = {x.id: x for x in cond.instructions}
            test = _through(inside, cond.root)
            if test is None or test.opcode != "compare" or len(test.operands) != 2:
                continue
            k, end = (_through(inside, o) for o in test.operands)
            if k is None or end is None or k.opcode != "get-tuple-element" or end.number is None or test.direction != "LT":
                continue
            inner = {x.id: x for x in body.instructions}
            made = inner.get(body.root)
            start = _through(known, i.operands[0])
            if made is None or start is None or len(made.operands) <= k.index or len(start.operands) <= k.index:
                continue
            begin, step = _through(known, start.operands[k.index]), _step(inner, made.operands[k.index], k.index)
            if begin is not None and begin.number is not None and step:
                return max(0, -(-(end.number - begin.number) // step))
        return None

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

    def collective(self, i, known, count):
        """The Collective that an instruction is, or has inside; None."""
        inner, inside, also = self.inner(i, known)
        if inner is None:
            return None
        kind = inner.opcode.removesuffix("-start")
        operands = sum(x.bytes() for o in inner.operands if o in inside for x in inside[o].shape.leaves())
        whole = operands
        if kind == "all-gather":
            whole *= max(len(inner.group), 1)
        if kind == "all-reduce" and also:  # each device keeps its part of the sum
            kind = "reduce-scatter"
        seconds, sent = self.links.seconds(kind, inner.group, inner.pairs, whole)
        self.notes.add(
            "collectives: by bytes and links (docs/aot.md), one after the other; what else uses the links is not known"
        )
        c = Collective(
            i.name, kind, inner.op or i.op, inner.where or i.where, inner.group, inner.pairs[:1], sent, seconds, 0.0, count
        )
        self.collectives.append(c)
        return c

    def inner(self, i, known):
        """(the collective, the instructions beside it, whether it is in a fusion that slices its result)"""
        if i.opcode.removesuffix("-start") in _links.KINDS:
            return i, known, False
        if i.opcode not in ("fusion", "async-start", "custom-call") or not i.calls:
            return None, None, False
        comp = self.module.computations.get(i.calls[0])
        if comp is None:
            return None, None, False
        inside = {x.id: x for x in comp.instructions}
        for x in comp.instructions:
            found, beside, sliced = self.inner(x, inside)
            if found is not None:
                return found, beside, sliced or any(y.opcode == "dynamic-slice" for y in comp.instructions)
        return None, None, False


def _through(known, which):
    """The instruction, past those that only hand on."""
    i = known.get(which)
    while i is not None and i.opcode in ("copy", "bitcast", "convert", "reshape") and i.operands:
        i = known.get(i.operands[0])
    return i


def _step(known, which, index):
    """By how much a loop's body moves its element `index`; None: not by a constant."""
    i = _through(known, which)
    if i is None or i.opcode != "add" or len(i.operands) != 2:
        return None
    a, b = (_through(known, o) for o in i.operands)
    for k, n in ((a, b), (b, a)):
        if k is not None and n is not None and k.opcode == "get-tuple-element" and k.index == index and n.number:
            return n.number
    return None


def estimate(module, chip, flops, dtype, least_bytes, links=None, topology=None):
    """The Time of one run.

    flops: of the products in the program; dtype: of their operands; least_bytes: the inputs and outputs, which are read and
    written at least once; links: those of the topology, of a sharded program; topology: its name, for which kernels are
    simulated."""
    model = _Model(module, chip, links or _links.Links(chip, None, ()), topology)
    seconds = model.computation(module.entry, 1)
    parts = {}
    for s in model.steps:
        parts[s.source] = parts.get(s.source, 0.0) + s.seconds
    floor = max(flops / chip.peak(dtype), least_bytes / chip.hbm_bandwidth)
    if floor > seconds:
        parts["below the roofline, raised to it"] = floor - seconds
        seconds = floor
    steps = sorted(model.steps, key=lambda s: -s.seconds)
    return Time(seconds, floor, parts, steps, sorted(model.notes), model.collectives)
