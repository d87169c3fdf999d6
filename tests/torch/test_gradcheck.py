"""Numerical against analytical gradients in float64, a sample of each family of rows."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from tpu_testing import DEVICE, KIND

F = torch.nn.functional


def rand(*shape, seed=0, low=-1.5, high=1.5):
    """Distinct values, away from each other and from kinks at whole numbers."""
    g = torch.Generator().manual_seed(seed)
    n = int(torch.Size(shape).numel())
    x = torch.linspace(low, high, n, dtype=torch.float64)[torch.randperm(n, generator=g)] + 0.013
    return x.view(shape).to(DEVICE).requires_grad_()


def index(*values):
    return torch.tensor(values, device=DEVICE)


FAMILIES = {
    "unary": (lambda x: x.sin() + x.exp() * x.tanh() + x.sigmoid() + x.atan(), lambda: (rand(5),)),
    "unary, positive": (
        lambda x: x.log() + x.sqrt() + x.rsqrt() + x.reciprocal() + x.log1p() + x.lgamma(),
        lambda: (rand(5, low=0.5, high=3),),
    ),
    "erf": (lambda x: x.erf() + x.erfc() + (x / 3).erfinv(), lambda: (rand(5),)),
    "binary": (lambda x, y: x * y + x / (y * y + 1) - y, lambda: (rand(3, 2), rand(2, seed=1))),
    "pow": (lambda x, y: x**y + x**2.5 + 2**y, lambda: (rand(4, low=0.5, high=2), rand(4, seed=1))),
    "min max": (lambda x, y: torch.maximum(x, y) * torch.minimum(x, y) + x.clamp(-1, 1), lambda: (rand(6), rand(6, seed=1))),
    "where": (lambda x, y: torch.where(x > 0, x * y, y), lambda: (rand(6), rand(6, seed=1))),
    "ternary": (
        lambda x, y, z: torch.addcmul(x, y, z, value=0.3) + torch.addcdiv(x, y, z * z + 1) + torch.lerp(x, y, z),
        lambda: (rand(4), rand(4, seed=1), rand(4, seed=2)),
    ),
    "sum mean": (lambda x: x.sum(0) * x.mean(0) + x.sum(), lambda: (rand(3, 4),)),
    "var": (lambda x: x.var(1) + x.std(1, correction=0), lambda: (rand(3, 4),)),
    "prod": (lambda x: x.prod(1) + x.prod(), lambda: (rand(2, 3),)),
    "norms": (lambda x: x.norm() + x.norm(1, dim=0) + torch.linalg.vector_norm(x, 3), lambda: (rand(2, 3),)),
    "amax": (lambda x: x.amax(1) + x.amin(1) + x.max(1).values + x.median(1).values, lambda: (rand(3, 5),)),
    "logsumexp": (lambda x: x.logsumexp(1), lambda: (rand(3, 4),)),
    "softmax": (lambda x: x.softmax(1) * x.log_softmax(0), lambda: (rand(3, 4),)),
    "scan": (lambda x: x.cumsum(0) + x.cumprod(1) + x.logcumsumexp(0), lambda: (rand(3, 3),)),
    "sort": (lambda x: x.sort(1).values * x.sort(0, descending=True).values, lambda: (rand(3, 4),)),
    "topk": (lambda x: x.topk(2, 1).values.square() + x.kthvalue(2, 1, keepdim=True).values, lambda: (rand(3, 4),)),
    "index": (lambda x: x[index(0, 2, 0)] * x[:, index(1)] + x.index_select(0, index(1, 1, 2)), lambda: (rand(3, 4),)),
    "gather scatter": (
        lambda x, y: x.gather(1, index([0, 2, 2], [1, 1, 0])) + y.scatter_add(1, index([0, 0], [1, 2]), x[:, :2]).sin(),
        lambda: (rand(2, 3), rand(2, 3, seed=1)),
    ),
    "index_put": (
        lambda x, y: x.index_put((index(0, 0),), y, accumulate=True) * x.index_copy(0, index(2, 1), y),
        lambda: (rand(3, 2), rand(2, 2, seed=1)),
    ),
    "masked": (lambda x: x.masked_fill(x > 0.5, 2.0) * x.masked_select(x < 0.5).sum(), lambda: (rand(6),)),
    "embedding": (lambda w: F.embedding(index(0, 2, 2), w).sin(), lambda: (rand(3, 2),)),
    "views": (lambda x: x.t()[1:].reshape(-1).unfold(0, 3, 2).sin(), lambda: (rand(3, 4),)),
    "as_strided": (lambda x: torch.as_strided(x * 2, (3, 2), (2, 1), 1).sin(), lambda: (rand(12),)),
    "rearrange": (
        lambda x: torch.cat([x.flip(1), x.roll(1, 0), x.repeat(1, 2)[:, :3]]) * F.pad(x, (0, 0, 0, 4)),
        lambda: (rand(2, 3),),
    ),
    "diagonal": (
        lambda x: x.diagonal().exp() + x.tril().sum(1) + x.triu(1).sum(0) + torch.diag_embed(x[0]).sum(0),
        lambda: (rand(3, 3),),
    ),
    "in place": (lambda x: (lambda y: (y[0].mul_(y[1].clone()), y)[1])(x * 2).sin(), lambda: (rand(2, 3),)),
    "pads": (
        lambda x: F.pad(x, (1, 2), mode="reflect") + F.pad(x, (1, 2), mode="replicate") * F.pad(x, (2, 1), mode="circular"),
        lambda: (rand(1, 2, 4),),
    ),
    "matmul": (lambda x, y: x @ y @ x @ y, lambda: (rand(2, 3), rand(3, 2, seed=1))),
    "batched matmul": (lambda x, y: x @ y + torch.einsum("bij,jk->bik", x, y[0]), lambda: (rand(2, 2, 3), rand(2, 3, 2, seed=1))),
    "addmm": (
        lambda x, y, z: torch.addmm(x, y, z, beta=0.5, alpha=2) + F.linear(y, z.t(), x[0]),
        lambda: (rand(2, 2), rand(2, 3, seed=1), rand(3, 2, seed=2)),
    ),
    "conv1d": (
        lambda x, w, b: F.conv1d(x, w, b, padding=1, dilation=2),
        lambda: (rand(1, 2, 6), rand(2, 2, 2, seed=1), rand(2, seed=2)),
    ),
    "conv2d": (lambda x, w: F.conv2d(x, w, stride=2, padding=1, groups=2), lambda: (rand(1, 2, 4, 4), rand(2, 1, 3, 3, seed=1))),
    "conv_transpose2d": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2, output_padding=1),
        lambda: (rand(1, 2, 2, 2), rand(2, 1, 2, 2, seed=1)),
    ),
    "max_pool": (lambda x: F.max_pool2d(x, 2, 1) + F.adaptive_max_pool2d(x, 3)[..., :3, :3], lambda: (rand(1, 1, 4, 4),)),
    "avg_pool": (
        lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False).sum() + F.adaptive_avg_pool2d(x, 3).sin().sum(),
        lambda: (rand(1, 1, 4, 4),),
    ),
    "interpolate": (
        lambda x: F.interpolate(x, scale_factor=2).sum() + F.interpolate(x, size=(5, 3), mode="bilinear").sin().sum(),
        lambda: (rand(1, 1, 3, 3),),
    ),
    "batch_norm": (
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        lambda: (rand(4, 3), rand(3, seed=1), rand(3, seed=2)),
    ),
    "layer_norm": (
        lambda x, w, b: F.layer_norm(x, (4,), w, b) + F.rms_norm(x, (4,)),
        lambda: (rand(3, 4), rand(4, seed=1), rand(4, seed=2)),
    ),
    "group_norm": (lambda x, w: F.group_norm(x, 2, w), lambda: (rand(2, 4, 2), rand(4, seed=1))),
    "activations": (
        lambda x: F.gelu(x) + F.silu(x) * F.elu(x) + F.softplus(x) + F.mish(x) + F.selu(x) + F.logsigmoid(x),
        lambda: (rand(6),),
    ),
    "kinked": (
        lambda x: F.relu(x) + F.leaky_relu(x) + F.hardswish(x) + F.hardtanh(x) + x.abs() + F.softshrink(x),
        lambda: (rand(6),),
    ),
    "glu prelu": (lambda x, w: F.glu(x) + F.prelu(x, w)[:, :2], lambda: (rand(3, 4), rand(1, seed=1))),
    "losses": (
        lambda x, y: F.mse_loss(x, y) + F.smooth_l1_loss(x, y, beta=0.7) + F.huber_loss(x, y) + F.l1_loss(x, y),
        lambda: (rand(3, 2), rand(3, 2, seed=1)),
    ),
    "cross_entropy": (
        lambda x: F.cross_entropy(x, index(0, 2, 1), label_smoothing=0.1) + F.nll_loss(x, index(0, 2, 1), reduction="none"),
        lambda: (rand(3, 3),),
    ),
    "bce": (
        lambda x, y: (
            F.binary_cross_entropy_with_logits(
                x, y.sigmoid(), pos_weight=torch.full((2,), 2.0, dtype=torch.float64, device=DEVICE)
            )
            + F.kl_div(x, y.softmax(1), reduction="sum")
        ),
        lambda: (rand(3, 2), rand(3, 2, seed=1)),
    ),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        lambda: (rand(1, 1, 3, 2), rand(1, 1, 3, 2, seed=1), rand(1, 1, 3, 2, seed=2)),
    ),
    "linalg": (
        lambda x: torch.linalg.inv(x + 3 * torch.eye(2, dtype=torch.float64, device=DEVICE)).sum() + torch.linalg.det(x),
        lambda: (rand(2, 2),),
    ),
    "complex": (
        lambda x: torch.view_as_complex(x).abs() + (torch.view_as_complex(x) ** 2).real + torch.view_as_complex(x).conj().imag,
        lambda: (rand(3, 2),),
    ),
    "fft": (lambda x: torch.fft.rfft(x).abs(), lambda: (rand(6),)),
    "casts and copies": (
        lambda x: torch.zeros(6, dtype=torch.float64, device=DEVICE).copy_(x) * x.to(torch.float64).clone(),
        lambda: (rand(6),),
    ),
    "0-d": (lambda x: x * x.sin() + x.sum(0), lambda: (rand(),)),
}


@pytest.mark.parametrize("kind", FAMILIES)
def test_gradients(kind):
    f, args = FAMILIES[kind]
    x = args()
    assert all(t.device.type == KIND and t.dtype == torch.float64 for t in x)
    assert gradcheck(f, x, eps=1e-6, atol=1e-5)


@pytest.mark.parametrize(
    "kind",
    ["unary", "binary", "softmax", "matmul", "conv2d", "layer_norm", "gather scatter", "views", "batch_norm", "cross_entropy"],
)
def test_second_gradients(kind):
    f, args = FAMILIES[kind]
    assert gradgradcheck(f, args(), eps=1e-6, atol=1e-4, fast_mode=True)
