"""Kernels for a TPU's core (src/ops/flash.c), by the interpreter of tests/torch/mosaic.py, against attention in float32 on the CPU; and
where they are used and where not. tests/aot compiles them."""

import mosaic
import pytest
import torch
import torch.nn.functional as F
from tpu_testing import device_only, run_python

pytestmark = device_only


@pytest.fixture(autouse=True)
def one_thread():
    """Many small operations: threads that wait for each other, where others use the machine too, take ten times as long."""
    n = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n)


def program(f, *inputs):
    from torch_tpu.aot import _trace

    metas = [torch.empty(x.shape, dtype=x.dtype, device="meta", requires_grad=x.requires_grad) for x in inputs]
    return _trace.capture(f, tuple(metas), {}, (), "test").text


def attend(causal, scale=None):
    def f(q, k, v, g):
        y = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True, scale=scale)
        y.backward(g)
        return y, q.grad, k.grad, v.grad

    return f


def tensors(b, h, kh, s, t, d, e):
    torch.manual_seed(s + d)
    shapes = (b, h, s, d), (b, kh, t, d), (b, kh, t, e), (b, h, s, e)
    return [torch.randn(n).to(torch.bfloat16).requires_grad_(i < 3) for i, n in enumerate(shapes)]


def compare(f, inputs, kernels):
    text = program(f, *inputs)
    assert text.count('"tpu_custom_call"') == kernels
    got = mosaic.run(text, [x.detach() for x in inputs])
    want = f(*(x.detach().float().requires_grad_(x.requires_grad) for x in inputs))
    for name, a, b in zip(("output", "query", "key", "value"), got, want, strict=True):
        assert a.dtype == torch.bfloat16, name
        error = (a.float() - b.detach()).norm() / b.detach().norm()
        assert error < 6e-3, (name, error)  # bfloat16 keeps 8 bits
        assert (a.float() - b.detach()).abs().max() < 0.03 * b.detach().abs().max(), name


@pytest.mark.parametrize(
    "shape, causal",
    [
        ((1, 4, 2, 1536, 1536, 64, 64), True),  # 6 blocks of 256; two query heads a key head
        ((2, 2, 2, 512, 512, 128, 128), True),  # one pair of blocks
        ((1, 3, 1, 512, 1536, 64, 32), False),  # sizes all different
        ((1, 2, 2, 1280, 768, 40, 72), False),
    ],
)
def test_values(shape, causal):
    compare(attend(causal), tensors(*shape), 2)


def test_a_scale_of_its_own():
    compare(attend(True, 0.5), tensors(1, 2, 1, 768, 768, 64, 64), 2)


@pytest.mark.parametrize("causal, t", [(True, 4096), (False, 512)])
def test_many_queries_take_two_kernels(causal, t):
    """Gradients of all queries of a key head do not fit into the core's memory together."""
    f, inputs = attend(causal), tensors(1, 4, 1, 4096, t, 256, 32)
    text = program(f, *inputs)
    assert 'kernel_name = "attention_backward_keys"' in text
    assert 'kernel_name = "attention_backward_queries"' in text
    compare(f, inputs, 3)


def test_scores_without_end():
    """Keys that no query may weigh (-inf) have the weight 0, where the others are finite."""
    q, k, v, g = tensors(1, 1, 1, 512, 512, 32, 32)
    with torch.no_grad():
        q[..., 0], k[..., 0] = 1, 0
        k[..., :256, 0] = -float("inf")  # a whole block of keys

    def f(q, k, v):
        return (F.scaled_dot_product_attention(q, k, v),)

    inputs = [x.detach() for x in (q, k, v)]
    (got,) = mosaic.run(program(f, *inputs), inputs)
    (want,) = f(*(x.float() for x in inputs))
    torch.testing.assert_close(got.float(), want, rtol=0.02, atol=0.02)


@pytest.mark.parametrize(
    "change, why",
    [
        (dict(dtype=torch.float32), "float32 is to be exact"),
        (dict(s=500, t=500), "sizes that are no whole blocks"),
        (dict(s=256, t=256), "small"),
        (dict(mask=True), "a mask"),
        (dict(s=640, t=640), "an odd number of blocks, causal"),
    ],
)
def test_plain_programs_serve_the_rest(change, why):
    c = dict(dtype=torch.bfloat16, s=1024, t=1024, mask=False) | change
    q, k, v = (torch.empty(1, 2, n, 64, dtype=c["dtype"], device="meta") for n in (c["s"], c["t"], c["t"]))
    mask = torch.empty(c["s"], c["t"], dtype=torch.bool, device="meta") if c["mask"] else None
    f = lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m, is_causal=m is None)  # noqa: E731
    from torch_tpu.aot import _trace

    text = _trace.capture(f, (q, k, v, mask), {}, (), "test").text
    assert "tpu_custom_call" not in text, why


@pytest.mark.parametrize(
    "places, parts",
    [
        ({"data": 0, "model": 2}, "tensor<2x2x1024x64xbf16>"),  # batch by 2, heads by 4
        ({"data": 0}, None),  # the other axis: nothing says what it divides
        ({"data": 1, "model": 2}, None),  # the sequence
        (None, None),
    ],
)
def test_sharded_programs(places, parts):
    """Kernels run on the parts of batch and heads; where something else is divided, or nothing is known, the plain program serves."""
    from torch.distributed.tensor import Shard

    from torch_tpu import aot
    from torch_tpu.aot import _mesh, _trace

    def f(x):
        x = aot.constrain(x, {k: Shard(d) for k, d in places.items()}) if places else x
        y = x.view(4, 1024, 8, 64).transpose(1, 2)
        return F.scaled_dot_product_attention(y * 2, y, y, is_causal=True)

    x = torch.empty(4, 1024, 8 * 64, dtype=torch.bfloat16, device="meta")
    mesh = _mesh.mesh_of({"data": 2, "model": 4})
    text = _trace.capture(f, (x,), {}, (), "test", _mesh.Placing(mesh, {})).text
    assert text.count("sdy.manual_computation") == text.count("tpu_custom_call") == (parts is not None)
    if parts:
        inside = text[text.index("sdy.manual_computation") :]
        assert inside[: inside.index("sdy.return")].count(parts) >= 3
        assert '<@mesh, [{"data"}, {"model"}, {}, {}]>' in inside


def test_switch():
    run_python(
        """
        import torch, torch.nn.functional as F
        from torch_tpu.aot import _trace
        q = torch.empty(1, 2, 1024, 64, dtype=torch.bfloat16, device="meta")
        f = lambda q: F.scaled_dot_product_attention(q, q, q)
        assert "tpu_custom_call" not in _trace.capture(f, (q,), {}, (), "test").text
        """,
        TORCH_TPU_KERNELS="0",
    )


def test_the_device_here_gets_none():
    """Only a TPU's compiler takes kernels: the plugin in use runs the plain program."""
    q, k, v = (torch.randn(1, 2, 1024, 64, dtype=torch.bfloat16) for _ in range(3))
    want = F.scaled_dot_product_attention(q.float(), k.float(), v.float(), is_causal=True)
    got = F.scaled_dot_product_attention(q.to("tpu"), k.to("tpu"), v.to("tpu"), is_causal=True)
    torch.testing.assert_close(got.cpu().float(), want, rtol=0.02, atol=0.02)
