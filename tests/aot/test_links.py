"""The time of collectives on the links, and how groups of partitions and turns of loops are read. No compiler is needed."""

import pytest
import torch  # noqa: F401

from torch_tpu.aot import CHIPS, _hlo, _links, _time


def links(chip, *dims):
    """The links of a torus; the last of dims: devices on a chip. Partitions are in row-major order of their coordinates."""
    places = [()]
    for n in dims:
        places = [(*p, i) for p in places for i in range(n)]
    return _links.Links(CHIPS[chip], places, dims)


def test_one_link():
    assert links("v5e", 4, 4, 1).one == 50e9  # 400 GB/s in both directions of 4 links
    assert links("v5p", 4, 4, 4, 1).one == 100e9  # 6 links
    assert links("tpu7x", 4, 4, 4, 2).one == 100e9  # 6 links of a chip, whose figure is given for one of its two devices


@pytest.mark.parametrize(
    "chip,dims,group,bandwidth,hops",
    [
        ("v5e", (4, 4, 1), range(4), 50e9, 3),  # a line: its ends have one link
        ("v5e", (16, 16, 1), range(16), 100e9, 8),  # a ring, both ways
        ("v5e", (16, 16, 1), range(256), 200e9, 16),  # rings in both directions
        ("v5e", (16, 16, 1), range(0, 16, 2), 50e9, 8),  # every other chip: two groups share the ring
        ("v5e", (16, 16, 1), range(8), 50e9, 7),  # half of a ring is a line
        ("v5p", (4, 4, 4, 1), range(4), 200e9, 2),
        ("v5p", (4, 4, 4, 1), range(64), 600e9, 6),
        ("v5p", (2, 2, 1, 1), range(4), 200e9, 2),
        ("tpu7x", (4, 4, 4, 2), range(2), 600e9, 1),  # the devices of one chip
        ("tpu7x", (4, 4, 4, 2), range(0, 8, 2), 100e9, 2),  # one of each chip: the others' groups share the links
        ("tpu7x", (4, 4, 4, 2), range(8), 200e9, 2),
        ("tpu7x", (4, 4, 4, 2), range(128), 600e9, 6),
    ],
)
def test_what_a_group_gets(chip, dims, group, bandwidth, hops):
    p = links(chip, *dims).path(list(group))
    assert (p.bandwidth, p.hops) == (bandwidth, hops)


def test_seconds():
    x = links("v5e", 16, 16, 1)
    ring = list(range(16))
    assert x.seconds("all-gather", ring, [], 16e6) == (pytest.approx(15e6 / 100e9 + 8e-6), 15e6)
    assert x.seconds("reduce-scatter", ring, [], 16e6) == (pytest.approx(15e6 / 100e9 + 8e-6), 15e6)
    assert x.seconds("all-reduce", ring, [], 16e6) == (pytest.approx(30e6 / 100e9 + 16e-6), 30e6)
    assert x.seconds("all-to-all", ring, [], 16e6) == (pytest.approx(32e6 / 50e9 + 8e-6), 15e6)
    assert x.seconds("collective-permute", [], [(0, 1), (15, 0)], 1e6) == (pytest.approx(1e6 / 50e9 + 1e-6), 1e6)
    assert x.seconds("collective-permute", [], [(0, 8 * 16 + 8)], 1e6) == (pytest.approx(16e6 / 50e9 + 16e-6), 1e6)
    assert x.seconds("all-reduce", [3], [], 1e6) == (0.0, 0)
    two = links("tpu7x", 2, 2, 1, 2)
    assert two.seconds("collective-permute", [], [(0, 1), (1, 0)], 6e5) == (pytest.approx(6e5 / 600e9 + 1e-6), 6e5)


# The first four as libtpu 0.0.52 wrote them for a 4 x 4 mesh.
@pytest.mark.parametrize(
    "field,data,group",
    [
        (87, b"\n\x06\n\x04\x00\x04\x08\x0c\n\x06\n\x04\x01\x05\t\r", [0, 4, 8, 12]),
        (92, b'\x08\x04\x10\x04\x1a\x02\x04\x04"\x02\x01\x00', [0, 4, 8, 12]),
        (92, b'\x08\x04\x10\x04\x1a\x01\x10"\x01\x00', [0, 1, 2, 3]),
        (93, b"\n\x18\n\n\n\x06axis_0\x10\x04\n\n\n\x06axis_1\x10\x04\x12\x00", [0, 4, 8, 12]),
        (93, b"\n\x18\n\n\n\x06axis_0\x10\x04\n\n\n\x06axis_1\x10\x04\x12\x02\x08\x01", [0, 1, 2, 3]),
    ],
)
def test_groups(field, data, group):
    assert _hlo._groups(field, data) == group


def instruction(which, opcode, operands=(), **more):
    return _hlo.Instruction(
        name=f"i{which}", opcode=opcode, shape=_hlo.Shape("f32", 32, []), id=which, operands=list(operands), **more
    )


def counting_loop(begin, end, step, trips=None):
    """while (k < end) k += step, with work of 1000 cycles in it."""
    work = instruction(12, "fusion", config={"estimated_cycles": "1000"})
    body = [
        instruction(10, "parameter"), instruction(11, "get-tuple-element", [10], index=1), work, instruction(13, "constant", number=step),
        instruction(14, "add", [11, 13], config={"estimated_cycles": "1"}), instruction(15, "tuple", [12, 14]),
    ]  # fmt: skip
    cond = [
        instruction(20, "parameter"), instruction(21, "get-tuple-element", [20], index=1), instruction(22, "constant", number=end),
        instruction(23, "compare", [21, 22], direction="LT", config={"estimated_cycles": "1"}),
    ]  # fmt: skip
    config = {"known_trip_count": {"n": str(trips)}} if trips else {}
    main = [
        instruction(1, "constant", number=begin), instruction(2, "copy", [1], config={"estimated_cycles": "1"}), instruction(3, "tuple", [1, 2]),
        instruction(4, "while", [3], calls=[100, 101], config=config),
    ]  # fmt: skip
    comps = {
        99: _hlo.Computation("main", 99, main, 4), 100: _hlo.Computation("body", 100, body, 15),
        101: _hlo.Computation("cond", 101, cond, 23),
    }  # fmt: skip
    return _hlo.Module("m", comps[99], comps)


@pytest.mark.parametrize("args,turns", [((0, 8, 1), 8), ((2, 9, 3), 3), ((0, 8, 1, 5), 5), ((9, 8, 1), 0)])
def test_turns_of_a_loop(args, turns):
    chip = CHIPS["v5e"]
    t = _time.estimate(counting_loop(*args), chip, 0, "bfloat16", 0)
    assert t.seconds == pytest.approx((1 + turns * 1002) / chip.clock)
    assert not any("loop" in n for n in t.notes)


def test_collectives_take_turns_and_hide_behind_work():
    shape = _hlo.Shape("f32", 32, [25_000_000])  # 100 MB
    group = list(range(16))

    def made(which, opcode, operands=(), **more):
        return _hlo.Instruction(name=opcode, opcode=opcode, shape=shape, id=which, operands=list(operands), **more)

    chip, net = CHIPS["v5e"], links("v5e", 16, 16, 1)
    one = net.seconds("reduce-scatter", group, [], 100_000_000)[0]
    cycles = int(1.5 * one * chip.clock)
    main = [
        made(1, "parameter"), made(2, "reduce-scatter-start", [1], group=group), made(3, "reduce-scatter-start", [1], group=group),
        made(4, "fusion", [1], config={"estimated_cycles": str(cycles)}), made(5, "reduce-scatter-done", [3]),
        made(6, "reduce-scatter-done", [2]),
    ]  # fmt: skip
    comp = _hlo.Computation("main", 9, main, 6)
    t = _time.estimate(_hlo.Module("m", comp, {9: comp}), chip, 0, "bfloat16", 0, net)
    assert t.seconds == pytest.approx(2 * one)  # the work covers one of them and a half
    assert [c.kind for c in t.collectives] == ["reduce-scatter"] * 2
    assert [c.waited for c in t.collectives] == pytest.approx([0, one / 2], abs=one / 1e4)
    assert t.parts["link"] == pytest.approx(one / 2, rel=1e-3)
