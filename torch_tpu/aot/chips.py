"""What is published about each TPU, and the topologies that a libtpu knows. All figures are for one device as JAX, XLA and
this package count them: a chip of v3, v4, v5p and tpu7x has two cores; v3 and tpu7x show them as two devices, v4 and v5p as
one."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Chip:
    """One device of a TPU generation. Every figure stands with its source in `sources`."""

    name: str  # as in topology names
    peak_flops: dict  # {dtype name: operations a second}, dense products
    hbm_bandwidth: float  # bytes a second
    hbm_bytes: int  # bytes that a program may use: what libtpu's compiler gives as the limit
    hbm_published: float  # bytes, as published
    ici_bandwidth: float  # bytes a second over all links between chips, both directions together
    directions: int  # of the torus that those links make
    devices: int  # on one chip
    clock: float  # cycles a second, in which the compiler's estimated_cycles are counted
    sources: tuple

    def peak(self, dtype):
        """Peak operations a second for products of this dtype (a name: "bfloat16"). float32 products that are made of bfloat16
        passes are counted at the bfloat16 peak, as published MFU figures do."""
        return self.peak_flops.get(dtype, self.peak_flops["bfloat16"])


_DOCS = "https://docs.cloud.google.com/tpu/docs/"
# No clock is published. It is taken as peak / operations a cycle, where operations a cycle is the power of two next above what
# libtpu's own estimated_cycles give for a bfloat16 product of 8192 x 8192 x 8192 (v5e 115,044, v5p 236,349, v6e 369,231, tpu7x
# 422,142 a device).
_CLOCK = "clock: peak / {} operations a cycle (inferred from libtpu 0.0.52's cycles for a large product)"


def _chip(name, bf16, int8, bandwidth, hbm_limit, hbm, ici, directions, devices, per_cycle, page, fp8=None):
    flops = {"bfloat16": bf16, "float16": bf16, "float32": bf16, "int8": int8, "uint8": int8}
    for d in ("float8_e5m2", "float8_e4m3fn"):
        flops[d] = fp8 or bf16
    return Chip(
        name,
        flops,
        bandwidth,
        hbm_limit,
        hbm,
        ici,
        directions,
        devices,
        bf16 / per_cycle,
        (
            f"peak operations, HBM size and bandwidth, inter-chip bandwidth: {_DOCS}{page}",
            "hbm_bytes: the limit that libtpu's compiler was seen to work with",
            _CLOCK.format(per_cycle),
        ),
    )


GIB = 1 << 30

# name, bfloat16 peak, int8 peak, HBM bytes a second, usable bytes, published bytes, ICI bytes a second, directions of the torus, devices a chip,
# operations a cycle
CHIPS = {
    c.name: c
    for c in (
        _chip("v5e", 197e12, 393e12, 819e9, int(15.75 * GIB), 16e9, 400e9, 2, 1, 1 << 17, "v5e"),
        _chip("v5p", 459e12, 918e12, 2765e9, int(95.74 * GIB), 95 * GIB, 1200e9, 3, 1, 1 << 18, "v5p"),
        _chip("v6e", 918e12, 1836e12, 1638e9, int(31.25 * GIB), 32e9, 800e9, 2, 1, 1 << 19, "v6e"),
        # v5p's int8 peak is not on Google's page: https://aiwiki.ai/wiki/google_tpu_v5p gives it.
        # Two devices a chip, each with half of it. No int8 peak is published: it counts as bfloat16.
        _chip("tpu7x", 1153.5e12, 1153.5e12, 3690e9, int(94.75 * GIB), 96 * GIB, 600e9, 3, 2, 1 << 19, "tpu7x", fp8=2307e12),
    )
}

# What a client calls such a device.
KINDS = {
    "TPU v5 lite": "v5e",
    "TPU v5e": "v5e",
    "TPU v5": "v5p",
    "TPU v5p": "v5p",
    "TPU v6 lite": "v6e",
    "TPU v6e": "v6e",
    "TPU7x": "tpu7x",
}

# Names that libtpu 0.0.52 takes, smallest and largest tried.
FORMS = {
    "v3": ("v3:2x2",),
    "v4": ("v4:2x2x1",),
    "v5e": ("v5e:2x2", "v5e:16x16"),
    "v5p": ("v5p:2x2x1", "v5p:16x20x28"),
    "v6e": ("v6e:2x2", "v6e:16x16"),
    "tpu7x": ("tpu7x:2x2x1", "tpu7x:16x16x32"),
}


def known_forms():
    """The known forms of topology names, as text for messages."""
    return ", ".join(f"{a[0]} to {a[1]}" if len(a) > 1 else a[0] for a in FORMS.values()) + ", here"
