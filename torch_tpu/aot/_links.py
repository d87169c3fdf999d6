"""How long a collective takes on the links between devices: docs/aot.md says what is counted."""

from dataclasses import dataclass

HOP = 1e-6  # seconds from a chip to the next: https://jax-ml.github.io/scaling-book/sharding ("about 1 us per hop")
# A tpu7x chip's two devices are joined by a link six times as fast as one of those between chips:
# https://docs.cloud.google.com/tpu/docs/tpu7x
ON_CHIP = 6

KINDS = {"all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "ragged-all-to-all"}


@dataclass
class Path:
    """What the links give a group of devices."""

    bandwidth: float  # bytes a second that each device receives, and sends at the same time
    hops: int  # from one end of the group to the other
    widest: int  # devices in its longest direction
    ring: bool  # whether that one is closed


class Links:
    """The links of a topology, and which device each partition of a program is."""

    def __init__(self, chip, places, dims):
        self.chip = chip
        self.places = places  # coordinates of each partition: of the chip, then the number of the device on it
        self.dims = dims  # of the torus, and devices of a chip
        self.cores = dims[-1] if dims else 1
        # Published is the sum over all links of a chip and both directions; chips.py has the share of one device.
        self.one = chip.ici_bandwidth * chip.devices / (4 * chip.directions)

    def wraps(self, d):
        """Whether the links of a direction are closed to a ring: docs/aot.md."""
        n = self.dims[d]
        return n == 16 if self.chip.directions == 2 else n >= 4 and n % 4 == 0

    def path(self, group):
        """The Path of a group of partitions."""
        if not self.places or len(group) < 2:
            return Path(self.chip.ici_bandwidth / 2, len(group) // 2, len(group), True)
        at = [self.places[p] for p in group]
        last = len(self.dims) - 1
        bandwidth, hops, widest, ring = 0.0, 0, 1, True
        for d in range(last):
            here = sorted({c[d] for c in at})
            n = len(here)
            if n < 2:
                continue
            stride = min(b - a for a, b in zip(here, here[1:], strict=False))  # other groups' devices lie between: they share
            closed = self.wraps(d) and n * stride == self.dims[d]
            bandwidth += (2 if closed else 1) * self.one / stride
            hops += n * stride // 2 if closed else (n - 1) * stride
            if n > widest:
                widest, ring = n, closed
        if not bandwidth:  # the devices of one chip
            return Path(ON_CHIP * self.one, 1, len(group), False)
        if self.cores > 1 and len({c[last] for c in at}) < self.cores:
            bandwidth /= self.cores  # the devices of a chip are in different groups, which share its links
        return Path(bandwidth, hops, widest, ring)

    def distance(self, a, b):
        """Hops between two partitions, by the shorter way."""
        if not self.places:
            return 1
        total = 0
        for d in range(len(self.dims) - 1):
            n = abs(self.places[a][d] - self.places[b][d])
            total += min(n, self.dims[d] - n) if self.wraps(d) else n
        return total

    def seconds(self, kind, group, pairs, data):
        """(seconds, bytes that a device sends). data: bytes of the whole that is gathered or reduced; of what one device holds
        for others."""
        n = len(group)
        if kind == "collective-permute":
            far = max((self.distance(a, b) for a, b in pairs[:256]), default=1)
            if far == 0:
                return data / (ON_CHIP * self.one) + HOP, data
            shared = self.cores if self.places else 1
            return data * far * shared / self.one + far * HOP, data
        if n < 2:
            return 0.0, 0
        p = self.path(group)
        sent = data * (n - 1) // n
        if kind in ("all-to-all", "ragged-all-to-all"):  # half of it crosses the middle of the longest direction
            load = data * p.widest / (8 if p.ring else 4)
            return max(load / self.one, sent / p.bandwidth) + p.hops * HOP, sent
        turns = 2 if kind == "all-reduce" else 1
        return turns * (sent / p.bandwidth + p.hops * HOP), turns * sent
