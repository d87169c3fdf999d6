"""Sharded programs: a mesh and placements, one program for all devices of a topology."""

import re

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Partial, Replicate, Shard

aot = torch.tpu.aot
pytestmark = pytest.mark.usefixtures("libtpu")
MESH = {"data": 2, "model": 2}
SPLIT = {"argument *": {"data": Shard(0)}, "a.weight": (Shard(1), Shard(0)), "b.weight": {"model": Shard(1)}}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(256, 512, bias=False), nn.Linear(512, 256, bias=False)

    def forward(self, x):
        return self.b(torch.relu(aot.constrain(self.a(x), {"data": Shard(0), "model": Shard(1)})))


def meta(*shape, dtype=torch.float32):
    return torch.empty(*shape, dtype=dtype, device="meta")


def training(optimizer=torch.optim.AdamW):
    with torch.device("meta"):
        net = Net()
    opt = optimizer(net.parameters(), lr=1e-3)

    def step(x):
        loss = net(x).square().mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
        return loss

    return step


def signature(text):
    """[(type, sharding)] of the arguments, and of the results, of a program's text."""
    head = re.search(r"@main\((.*)\) -> \((.*)\) \{\n", text)
    one = r"(tensor<[^>]*>)(?: \{(?:sdy\.sharding = #sdy\.sharding<@mesh, (\[.*?\])>)?[^}]*\})?"
    return [re.findall(one, part) for part in head.groups()]


def test_a_training_step():
    p = aot.compile(training(), (meta(64, 256),), topology="v5e:2x2", mesh=MESH, placements=SPLIT)
    assert "mhlo.num_partitions = 4" in p.stablehlo
    assert '@mesh = <["data"=2, "model"=2]>' in p.stablehlo
    arguments, results = signature(p.stablehlo)
    weights = [s for t, s in arguments if t == "tensor<512x256xf32>"]
    assert weights == ['[{"model"}, {"data"}]'] * 3  # the parameter, and its two states, which follow it
    assert [s for t, s in results if t == "tensor<512x256xf32>"] == weights  # what is written keeps its place
    assert [s for t, s in arguments if t == "tensor<256x512xf32>"] == ['[{}, {"model"}]'] * 3
    assert arguments[0] == ("tensor<64x256xf32>", '[{"data"}, {}]')
    m = p.memory()
    assert m.by_kind["parameter"] == 512 * 256 * 4 // 4 + 256 * 512 * 4 // 2
    assert m.by_kind["argument"] == 64 * 256 * 4 // 2
    assert m.arguments == pytest.approx(sum(m.by_kind.values()), abs=4096)
    assert m.aliased == pytest.approx(m.by_kind["parameter"] + m.by_kind["optimizer"], abs=4096)  # donated where they are
    c = p.cost()
    assert c.flops == 5 * 2 * 64 * 256 * 512 / 4  # no gradient of the input
    assert {(kind, axes) for kind, axes in c.collectives} >= {("all-gather", ("data",)), ("all-reduce", ("model",))}
    assert c.collective_bytes == sum(x.bytes for x in p.collectives())
    gather = next(x for x in p.collectives() if x.kind == "all-gather")
    assert gather.op == "a.weight"
    assert gather.bytes == 512 * 256 * 4 // 2 // 2  # half of the weight's part along `model`
    assert gather.seconds == pytest.approx(gather.bytes / 50e9 + 1e-6)  # one link of v5e, one hop
    assert c.seconds >= c.parts["link"] == pytest.approx(sum(x.waited for x in p.collectives()))
    assert 0 < p.mfu() < 1


def test_data_parallel_sums_the_gradients():
    p = aot.compile(
        training(torch.optim.SGD),
        (meta(64, 256),),
        topology="v5e:2x2",
        mesh={"data": 4, "model": 1},
        placements={"argument 0": {"data": Shard(0)}},
    )
    sums = [x for x in p.collectives() if x.kind == "all-reduce"]
    assert {x.devices for x in sums} == {4}
    assert sum(x.bytes for x in sums) == pytest.approx(2 * (2 * 512 * 256 * 4) * 3 / 4, rel=0.01)
    assert p.memory().by_kind["parameter"] == 2 * 512 * 256 * 4


@pytest.mark.parametrize("mesh", [((2, 2), ("data", "model")), [[2, 2], ["data", "model"]], MESH])
def test_ways_to_name_a_mesh(mesh):
    p = aot.compile(
        lambda x: x * 2, (meta(8, 8),), topology="v5e:2x2", mesh=mesh, placements={"argument 0": (Shard(-2), Shard(1))}
    )
    assert signature(p.stablehlo)[0] == [("tensor<8x8xf32>", '[{"data"}, {"model"}]')]
    assert p.parameters[0].place == (0, 1)
    assert p.memory().by_kind == {"argument": 64}


def test_a_device_mesh():
    class DeviceMesh:  # what is read of one; a real one wants process groups
        mesh, mesh_dim_names = torch.arange(4).view(2, 2), ("data", "model")

    p = aot.compile(
        lambda x: x * 2, (meta(8, 8),), topology="v5e:2x2", mesh=DeviceMesh(), placements=lambda v: {"model": Shard(0)}
    )
    assert signature(p.stablehlo)[0] == [("tensor<8x8xf32>", '[{"model"}, {}]')]


def test_dims_follow_the_tensor_not_its_memory():
    x = meta(6, 8, 4).permute(2, 0, 1)  # sizes 4, 6, 8; in memory 6, 8, 4
    p = aot.compile(lambda x: x + 1, (x,), topology="v5e:2x2", mesh={"a": 4}, placements={"argument 0": Shard(2)})
    assert signature(p.stablehlo)[0] == [("tensor<6x8x4xf32>", '[{}, {"a"}, {}]')]


def test_dims_of_size_one_have_any_stride():
    x = meta(8).expand(1, 8)  # strides 0, 1
    p = aot.compile(lambda x: x + 1, (x,), topology="v5e:2x2", mesh={"a": 4}, placements={"argument 0": Shard(1)})
    assert signature(p.stablehlo)[0] == [("tensor<1x8xf32>", '[{}, {"a"}]')]


def test_two_axes_on_one_dim():
    p = aot.compile(
        lambda x: x + 1, (meta(8, 3),), topology="v5e:2x2", mesh=MESH, placements={"argument 0": (Shard(0), Shard(0))}
    )
    assert signature(p.stablehlo)[0] == [("tensor<8x3xf32>", '[{"data", "model"}, {}]')]


def test_gradients_that_are_left_are_where_their_parameter_is():
    with torch.device("meta"):
        net = Net()
    p = aot.compile(lambda x: net(x).sum().backward(), (meta(64, 256),), topology="v5e:2x2", mesh=MESH, placements=SPLIT)
    assert [(v.kind, v.place) for v in p.outputs] == [("gradient", (1, 0)), ("gradient", (-1, 1))]
    assert p.memory().outputs == pytest.approx(512 * 256 * 4 // 4 + 256 * 512 * 4 // 2, abs=4096)


def test_constrain_is_nothing_outside_of_a_sharded_program():
    x = torch.ones(3)
    assert aot.constrain(x, {"data": Shard(0)}) is x
    y = torch.ones(3, device="tpu")
    assert aot.constrain(y, (Shard(0),)) is y
    p = aot.compile(Net().to("meta"), (meta(4, 256),), topology="v5e:2x2")
    assert "sdy" not in p.stablehlo


def test_gradients_of_constrain():
    w = nn.Parameter(meta(8, 8))

    def f(x):
        aot.constrain((x @ w).t(), (Shard(0), Replicate())).sin().sum().backward()

    p = aot.compile(f, (meta(4, 8),), topology="v5e:2x2", mesh=MESH, state=w)
    assert p.stablehlo.count('"sdy.sharding_constraint"') == 3  # the value, its gradient, and that of the parameter
    assert p.stablehlo.count('#sdy.sharding<@mesh, [{"data"}, {}]>} : (tensor<8x4xf32>)') == 2


def test_devices_follow_the_links():
    """The innermost axis has neighbours, and every device stands in one place."""
    p = aot.compile(
        lambda x: x + 1, (meta(16),), topology="v5e:4x4", mesh=MESH | {"data": 8}, placements={"argument 0": {"data": Shard(0)}}
    )
    assert sorted(p.devices) == list(range(16))
    places = p.topology.places()
    for k in range(0, 16, 2):
        a, b = (places[d] for d in p.devices[k : k + 2])
        assert sum(abs(i - j) for i, j in zip(a, b, strict=True)) == 1
    p = aot.compile(lambda x: x + 1, (meta(16),), topology="tpu7x:2x2x1", mesh={"data": 4, "model": 2})
    places = p.topology.places()
    assert all(places[p.devices[k]][:-1] == places[p.devices[k + 1]][:-1] for k in range(0, 8, 2))  # the two of one chip


def test_sixteen_thousand_devices():
    p = aot.compile(
        training(torch.optim.SGD), (meta(16384, 256),), topology="tpu7x:16x16x32", mesh={"data": 4096, "model": 4}, placements={
            "argument 0": {"data": Shard(0)}, "a.weight": {"model": Shard(0)}, "b.weight": {"model": Shard(1)}
        },
    )  # fmt: skip
    assert p.topology.device_count == 16384
    assert len(set(p.devices)) == 16384
    assert p.cost().flops == 5 * 2 * 4 * 256 * 128
    assert {x.devices for x in p.collectives()} == {4, 4096}


# ---- bad input -------------------------------------------------------------------------------------------------------


def refused(error, match, mesh=MESH, placements=None, fn=None, x=None):
    with pytest.raises(error, match=match):
        aot.compile(
            fn or Net().to("meta"), (meta(64, 256) if x is None else x,), topology="v5e:2x2", mesh=mesh, placements=placements
        )
    assert (torch.ones(3, device="tpu") + 1).tolist() == [2, 2, 2]


def test_a_mesh_of_another_size():
    refused(ValueError, r"mesh \{data: 4, model: 2\} has 8 devices, but v5e:2x2 has 4", {"data": 4, "model": 2})
    refused(ValueError, r"mesh \{data: 2\} has 2 devices, but v5e:2x2 has 4", {"data": 2})


def test_no_mesh():
    for bad in ({}, {"data": 0}, {"data": "4"}, {"": 4}, ((2, 2), ("a", "a")), ((2, 2), ("a",))):
        refused(ValueError, "expected a mesh with a name of its own and a size", bad)
    refused(TypeError, "expected mesh as", 4)
    refused(ValueError, r"placements are those on a mesh, but mesh=None", None, {"argument 0": Shard(0)})


def test_a_dim_that_does_not_divide():
    refused(
        ValueError,
        r"argument argument 0 \[63, 256\] cannot be placed as \(data: Shard\(0\), model: Replicate\(\)\): dim 0 of "
        r"float32\[63, 256\] has the size 63, which cannot be divided into 2 equal parts \(mesh axes: data\)",
        placements={"argument 0": {"data": Shard(0)}},
        x=meta(63, 256),
    )
    refused(ValueError, r"parameter a\.weight .*into 4 equal parts \(mesh axes: data, model\)", placements={"a.weight": (Shard(1), Shard(1))},
            fn=OneOdd())  # fmt: skip
    refused(ValueError, r"the size 3, which cannot", fn=lambda x: aot.constrain(x[:, :3], {"model": Shard(1)}))


class OneOdd(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(10, 4, device="meta")

    def forward(self, x):
        return self.a(x[:, :10])


def test_unknown_axes_names_and_words():
    refused(
        ValueError,
        r"parameter a\.weight .* placed on the axis 'modle', but the mesh is \{data: 2, model: 2\}",
        placements={"a.*": {"modle": Shard(0)}},
    )
    refused(ValueError, r"placements for 'c\.weight', but nothing has such a name; there are: argument 0, a\.weight, b\.weight",
            placements={"c.weight": {"data": Shard(0)}})  # fmt: skip
    refused(ValueError, r"has 1 placements, expected one for each axis of the mesh", placements={"argument 0": (Shard(0),)})
    refused(
        IndexError, r"placed as .*, but it has 2 dims: expected a dim from -2 to 1", placements={"argument 0": {"data": Shard(2)}}
    )
    refused(
        TypeError,
        r"expected Shard\(dim\) or Replicate\(\) of torch.distributed.tensor, got Partial",
        placements={"argument 0": {"data": Partial()}},
    )
    refused(
        TypeError, r"a tensor float32\[64, 256\] in constrain\(\).*got 'data'", fn=lambda x: aot.constrain(x, {"data": "data"})
    )
