"""scaled_dot_product_attention: one program forward, one backward."""

import copy

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from tpu_testing import DEVICE, check, device_only, name_of

F = torch.nn.functional
TOLERANCE = {
    torch.float32: (1e-5, 1e-5),
    torch.float64: (1e-10, 1e-10),
    torch.bfloat16: (3e-2, 6e-2),
    torch.float16: (1e-2, 1e-2),
}


def both(shape, dtype=torch.float32, mask=None, **kw):
    b, h, k, s, t, d, e = shape
    g = torch.Generator().manual_seed(0)
    make = [torch.randn(b, n, m, w, generator=g, dtype=torch.float64).to(dtype) for n, m, w in ((h, s, d), (k, t, d), (k, t, e))]
    m = None
    if mask is not None:
        m = torch.rand(*mask[1:], generator=g) > 0.4 if mask[0] == "bool" else torch.randn(*mask[1:], generator=g).to(dtype)
        if mask[0] == "bool":
            m[..., 0, :] = False  # a query that sees nothing
    results = []
    for device in ("cpu", DEVICE):
        xs = [x.to(device, copy=True).requires_grad_() for x in make]
        y = F.scaled_dot_product_attention(*xs, attn_mask=None if m is None else m.to(device), enable_gqa=h != k, **kw)
        (y.double() * torch.arange(1.0, 1 + e, dtype=torch.float64, device=device)).sum().backward()
        results.append([y, *(x.grad for x in xs)])
    return results


SHAPES = {
    "square": (2, 4, 4, 6, 6, 8, 8),
    "cross": (2, 4, 4, 5, 9, 8, 8),
    "grouped": (2, 6, 2, 5, 5, 4, 4),
    "other values": (1, 3, 3, 5, 5, 4, 6),
}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=name_of)
@pytest.mark.parametrize("shape", SHAPES)
def test_forward_and_backward(shape, dtype):
    for want, got in zip(*both(SHAPES[shape], dtype), strict=True):
        check(got, want, *TOLERANCE[dtype])


@pytest.mark.parametrize("kind", ["causal", "bool", "bool of one head", "float", "float of two dims", "scale"])
def test_masks(kind):
    b, h, _, s, t, *_ = shape = SHAPES["cross"]
    options = {
        "causal": {"is_causal": True},
        "bool": {"mask": ("bool", b, h, s, t)},
        "bool of one head": {"mask": ("bool", b, 1, s, t)},
        "float": {"mask": ("float", b, h, s, t)},
        "float of two dims": {"mask": ("float", s, t)},
        "scale": {"scale": 0.3},
    }[kind]
    for want, got in zip(*both(shape, **options), strict=True):
        check(got, want, 1e-5, 1e-5)


def test_nan_and_infinity_reach_the_result():
    q = torch.randn(1, 1, 3, 4)
    k, v = torch.randn(2, 1, 1, 5, 4)
    for bad in (float("nan"), float("inf")):
        broken = q.clone()
        broken[0, 0, 1, 2] = bad
        with sdpa_kernel(SDPBackend.MATH):
            want = F.scaled_dot_product_attention(broken, k, v)
        check(F.scaled_dot_product_attention(broken.to(DEVICE), k.to(DEVICE), v.to(DEVICE)), want, 1e-5, 1e-5)


@device_only
def test_which_kernel():
    x = torch.randn(2, 6, 4, 8, device=DEVICE, requires_grad=True).transpose(1, 2)  # as models make it
    y = F.scaled_dot_product_attention(x, x, x)
    assert "Overrideable" in y.grad_fn.name()
    assert y.transpose(1, 2).is_contiguous(), "what follows in a model needs no copy"
    with sdpa_kernel(SDPBackend.MATH):
        z = F.scaled_dot_product_attention(x, x, x)
    assert "Overrideable" not in z.grad_fn.name()
    check(y, z, 1e-5, 1e-5)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), pytest.raises(RuntimeError, match="MATH"):
        F.scaled_dot_product_attention(x, x, x)
    bias = torch.zeros(6, 6, device=DEVICE, requires_grad=True)  # its gradient comes from the composition
    F.scaled_dot_product_attention(x, x, x, attn_mask=bias).sum().backward()
    assert bias.grad is not None
    torch.manual_seed(0)
    dropped = F.scaled_dot_product_attention(x, x, torch.ones_like(x), dropout_p=0.5)
    assert dropped.std() > 0.1


@device_only
def test_two_programs_a_step():
    x = torch.randn(2, 4, 6, 8, device=DEVICE, requires_grad=True)
    g = torch.ones(2, 4, 6, 8, device=DEVICE)

    def step():
        y = F.scaled_dot_product_attention(x, x, x, is_causal=True)
        return torch.autograd.grad(y, x, g)

    step()
    before = torch.tpu.cache_stats()
    step()
    after = torch.tpu.cache_stats()
    assert after["compiles"] == before["compiles"]
    assert after["executions"] - before["executions"] == 4  # forward, backward, and the sum of three gradients


def test_shapes_that_do_not_fit_are_pytorch_s_error():
    q, k = torch.randn(2, 4, 5, 8), torch.randn(2, 4, 5, 6)
    with pytest.raises(RuntimeError):
        F.scaled_dot_product_attention(q, k, k)
    with pytest.raises(RuntimeError):
        F.scaled_dot_product_attention(q.to(DEVICE), k.to(DEVICE), k.to(DEVICE))


@pytest.mark.parametrize("norm_first", [False, True])
def test_transformer_layers(norm_first):
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, dropout=0.0, norm_first=norm_first, activation="gelu")
    mine = copy.deepcopy(layer).to(DEVICE)
    x, padding = torch.randn(2, 5, 16), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    causal = torch.nn.Transformer.generate_square_subsequent_mask(5)
    for kw in (
        {},
        {"src_key_padding_mask": padding},
        {"src_mask": causal, "is_causal": True},
        {"src_mask": torch.rand(5, 5) > 0.7},
    ):
        there = {k: v.to(DEVICE) if isinstance(v, torch.Tensor) else v for k, v in kw.items()}
        for train in (True, False):
            with torch.set_grad_enabled(train):  # without gradients PyTorch takes its fused operator
                want, got = layer.train(train)(x, **kw), mine.train(train)(x.to(DEVICE), **there)
            check(got, want, 1e-4, 1e-5)
    if DEVICE.startswith("tpu"):
        assert not torch.tpu.fallback_counts().get("aten::_transformer_encoder_layer_fwd")


def test_multi_head_attention():
    layer = torch.nn.MultiheadAttention(16, 4, batch_first=True).eval()
    mine = copy.deepcopy(layer).to(DEVICE)
    x, y = torch.randn(2, 5, 16), torch.randn(2, 7, 16)
    for args in ((x, x, x), (x, y, y)):
        for weights, average in ((False, True), (True, True), (True, False)):
            with torch.no_grad():
                want = layer(*args, need_weights=weights, average_attn_weights=average)
                got = mine(*(a.to(DEVICE) for a in args), need_weights=weights, average_attn_weights=average)
            check(got[0], want[0], 1e-4, 1e-5)
            assert (got[1] is None) == (want[1] is None)
            if weights:
                check(got[1], want[1], 1e-4, 1e-5)


def test_transformer_encoder_with_a_padding_mask():
    """For inference PyTorch would make nested tensors here."""
    encoder = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, dropout=0.0), 2).eval()
    x, padding = torch.randn(2, 5, 16), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    with torch.no_grad():
        want = encoder(x, src_key_padding_mask=padding)
        got = copy.deepcopy(encoder).to(DEVICE)(x.to(DEVICE), src_key_padding_mask=padding.to(DEVICE))
    check(got[~padding], want[~padding], 1e-4, 1e-5)


def test_native_attention_without_weights_gives_none():
    x, w, b = torch.randn(2, 3, 4), torch.randn(12, 4), torch.randn(12)
    args = (x, x, x, 4, 2, w, b, torch.eye(4), torch.zeros(4))
    want = torch._native_multi_head_attention(*args, need_weights=False)
    y = x.to(DEVICE)
    there = (y, y, y, 4, 2) + tuple(t.to(DEVICE) for t in args[5:])
    got = torch._native_multi_head_attention(*there, need_weights=False)
    check(got[0], want[0], 1e-4, 1e-5)
    assert got[1] is None
    assert want[1] is None


@pytest.mark.parametrize("dims", [(0, 1, 2, 3), (0, 2, 1, 3), (3, 2, 1, 0), (1, 0, 2, 3)], ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 5, 8), (2, 1, 5, 8), (1, 3, 1, 8)], ids=str)
def test_results_lie_in_memory_as_shape_functions_say(dims, shape):
    """torch.compile decides by them what is contiguous."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    x = torch.randn([shape[d] for d in dims]).permute([dims.index(d) for d in range(4)])
    a, b = x.to("tpu").requires_grad_(), x.clone().requires_grad_()
    got, want = (F.scaled_dot_product_attention(t, t, t, is_causal=True) for t in (a, b))
    torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-5)
    g = torch.randn(shape)
    grads = torch.autograd.grad(got, a, g.to("tpu"))[0].cpu(), torch.autograd.grad(want, b, g)[0]
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-5)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = mode.from_tensor(a.detach())
        said = F.scaled_dot_product_attention(fake, fake, fake, is_causal=True)
    assert all(n == 1 or s == t for n, s, t in zip(shape, said.stride(), got.stride(), strict=True))
