"""Kernels (src/ops/flash.c): TPUs' compiler takes them, and tells how long they take. tests/torch/test_kernels.py checks their values."""

import pytest
import torch
import torch.nn.functional as F

aot = torch.tpu.aot
pytestmark = pytest.mark.usefixtures("libtpu")


def compiled(topology, h, kh, s, t, d, e, causal, **more):
    def step(q, k, v, g):
        y = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
        y.backward(g)
        return y, q.grad, k.grad, v.grad

    shapes = (1, h, s, d), (1, kh, t, d), (1, kh, t, e), (1, h, s, e)
    inputs = [torch.empty(n, dtype=torch.bfloat16, device="meta", requires_grad=i < 3) for i, n in enumerate(shapes)]
    return aot.compile(step, tuple(inputs), topology=topology, **more)


def kernels(p):
    return [i for c in p.module().computations.values() for i in c.instructions if i.target == "tpu_custom_call"]


@pytest.mark.parametrize("topology", ["v5e:2x2", "v5p:2x2x1", "v6e:2x2", "tpu7x:2x2x1"])
@pytest.mark.parametrize(
    "shape",
    [
        (4, 1, 4096, 4096, 128, 128, True),  # gradients of all queries in one window: the most memory
        (4, 2, 8192, 8192, 256, 256, True),  # two kernels
        (2, 2, 768, 768, 64, 64, True),  # small blocks
        (2, 1, 2048, 1536, 72, 40, False),  # sizes that fill no lanes
    ],
)
def test_compilers_take_them(topology, shape):
    found = kernels(compiled(topology, *shape))
    assert len(found) == 3 if shape[2] == 8192 else 2
    for i in found:  # what a kernel may use of the core's memory is more than it needs, and not all of it
        used, given = (int(i.config[k][0]["size"]) for k in ("used_scoped_memory_configs", "scoped_memory_configs"))
        assert used < 0.8 * given < 50e6


def test_time():
    p = compiled("v5e:2x2", 8, 2, 4096, 4096, 128, 128, True)
    t = p._time()
    steps = [s for s in t.steps if s.name.startswith("tpu__attention") and s.opcode == "custom-call"]
    assert len(steps) == 2
    assert all(s.source == "compiler" for s in steps)
    assert not any("kernel" in n for n in t.notes)
    # 7 products of 4096^2 / 2 scores, blocks on the diagonal whole
    flops = 2 * 8 * 4096 * (4096 + 1024) / 2 * 128 * 7
    assert p.cost().flops == pytest.approx(flops)
    assert 0.3 < flops / 197e12 / sum(s.seconds for s in steps) < 1  # of the peak


def test_a_kernel_that_is_not_ours_to_cut_is_estimated_from_what_it_says():
    from torch_tpu.aot import _hlo, _time
    from torch_tpu.aot.chips import CHIPS

    shape = _hlo.Shape("bf16", 16, [1024, 1024])
    config = {"custom_call_config": {"body": "AAAA", "cost_estimate": {"flops": "197000000000"}}}
    call = _hlo.Instruction("k", "custom-call", shape, 2, [1], target="tpu_custom_call", config=config)
    comp = _hlo.Computation("main", 9, [_hlo.Instruction("p", "parameter", shape, 1), call], 2)
    t = _time.estimate(_hlo.Module("m", comp, {9: comp}), CHIPS["v5e"], 0, "bfloat16", 0, None, "v5e:2x2")
    assert t.seconds == pytest.approx(1e-3)
    assert t.notes == ["kernel k: time from its operations and bytes at the chip's peaks"]


def test_sharded():
    from torch.distributed.tensor import Shard

    p = compiled(
        "v5e:2x2", 8, 4, 2048, 2048, 128, 128, True, mesh={"data": 1, "model": 4}, placements={"argument *": {"model": Shard(1)}}
    )
    assert len(kernels(p)) == 2
    shapes = sorted(i.shape.leaves()[0].dims for i in kernels(p))  # 2 of 8 heads; the resident gradient of queries has them apart
    assert shapes == [[1, 2, 2048, 128], [1, 2048, 2 * 128]]
    assert not p.collectives()
