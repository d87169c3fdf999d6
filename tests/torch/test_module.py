"""Seam: modules. Moves keep identity and ties; a zoo of layers equals CPU, forward and backward."""

import copy

import pytest
import torch
from torch import nn
from tpu_testing import DEVICE, IS_CPU, KIND, check, close, same, sample

F = torch.nn.functional


# ---- moves -------------------------------------------------------------------------------------------------------------


def test_to_keeps_the_parameter_objects():
    m = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    before = list(m.parameters())
    o = torch.optim.SGD(m.parameters(), lr=0.1)
    assert m.to(DEVICE) is m
    assert all(a is b for a, b in zip(before, m.parameters(), strict=True))
    assert all(t.device.type == KIND for t in (*m.parameters(), *m.buffers()))
    m(torch.ones(4, 3, device=DEVICE) * torch.arange(4.0, device=DEVICE)[:, None]).square().sum().backward()
    old = m[0].weight.detach().cpu().clone()
    o.step()  # it was made before the move
    assert not torch.equal(m[0].weight.cpu(), old)
    m.cpu()
    assert all(a is b for a, b in zip(before, m.parameters(), strict=True)) and m[0].weight.device.type == "cpu"


@pytest.mark.skipif(IS_CPU, reason="the method is the device's")
def test_tpu_methods():
    m = nn.Linear(2, 2)
    w = m.weight
    assert m.tpu() is m and m.weight is w and w.is_tpu
    assert nn.Linear(2, 2).tpu(0).bias.device == torch.device("tpu:0")
    p = nn.utils.rnn.pack_sequence([torch.ones(2), torch.ones(1)])
    assert p.tpu().data.is_tpu and p.tpu().is_tpu


def test_ties_hold():
    m = nn.ModuleDict({"a": nn.Embedding(4, 3), "b": nn.Linear(3, 4, bias=False)})
    m["b"].weight = m["a"].weight
    for where in (DEVICE, "cpu", DEVICE):
        m.to(where)
        assert m["a"].weight is m["b"].weight and len(list(m.parameters())) == 1
    m["b"](m["a"](torch.tensor([0, 1], device=DEVICE))).sum().backward()
    g = m["a"].weight.grad
    assert g.device.type == KIND and g.abs().sum() > 0
    m.bfloat16()
    assert m["a"].weight is m["b"].weight and m["b"].weight.dtype == torch.bfloat16


def test_gradients_and_buffers_move():
    m = nn.BatchNorm1d(3)
    m(torch.randn(4, 3)).sum().backward()
    m.register_buffer("scratch", torch.ones(2), persistent=False)
    g = m.bias.grad.clone()
    m.to(DEVICE)
    assert m.bias.grad.device.type == KIND and m.scratch.device.type == KIND and m.num_batches_tracked.item() == 1
    same(m.bias.grad, g)
    m.to(torch.float64)
    assert m.running_mean.dtype == torch.float64 and m.num_batches_tracked.dtype == torch.int64
    m.to(DEVICE, torch.bfloat16, non_blocking=True)
    assert m.weight.dtype == torch.bfloat16


def test_meta_then_to_empty():
    with torch.device("meta"):
        m = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    m.to_empty(device=DEVICE)
    assert all(t.device.type == KIND for t in (*m.parameters(), *m.buffers()))
    state = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).state_dict()
    m.load_state_dict(state)
    same(m[0].weight, state["0.weight"])
    with torch.device("meta"):
        n = nn.Linear(2, 3)
    n.load_state_dict({"weight": torch.ones(3, 2, device=DEVICE), "bias": torch.zeros(3, device=DEVICE)}, assign=True)
    same(n(torch.ones(1, 2, device=DEVICE)), torch.full((1, 3), 2.0))
    k = nn.utils.skip_init(nn.Linear, 2, 2, device=DEVICE)
    assert k.weight.device.type == KIND
    with pytest.raises(NotImplementedError, match="meta"):
        nn.Linear(2, 2, device="meta").to(DEVICE)


def test_load_state_dict_crosses_devices():
    m, n = nn.Linear(3, 2).to(DEVICE), nn.Linear(3, 2)
    w = m.weight
    m.load_state_dict(n.state_dict())
    assert m.weight is w
    same(m.weight, n.weight)
    n.load_state_dict({k: v + 1 for k, v in m.state_dict().items()})
    same(m.weight + 1, n.weight)


def test_parametrizations_hooks_and_vectors():
    torch.manual_seed(0)
    for wrap in (
        nn.utils.parametrizations.weight_norm,
        nn.utils.parametrizations.spectral_norm,
        nn.utils.parametrizations.orthogonal,
    ):
        m = wrap(nn.Linear(3, 3)).eval()
        c = copy.deepcopy(m).to(DEVICE)
        close(c.weight, m.weight, 1e-4, 1e-4)
        c(torch.ones(1, 3, device=DEVICE)).sum().backward()
    seen = []
    m = nn.Linear(2, 2).to(DEVICE)
    m.register_forward_hook(lambda mod, i, o: seen.append(o.device.type))
    m.register_full_backward_hook(lambda mod, gi, go: seen.append(go[0].device.type))
    m(torch.ones(1, 2, device=DEVICE)).sum().backward()
    assert seen == [KIND, KIND]
    v = nn.utils.parameters_to_vector(m.parameters())
    nn.utils.vector_to_parameters(v * 2, m.parameters())
    same(nn.utils.parameters_to_vector(m.parameters()), v.detach().cpu() * 2)


def test_functional_transforms():
    m = nn.Linear(3, 2).to(DEVICE)
    params = {k: v.detach() * 2 for k, v in m.named_parameters()}
    x = torch.arange(6.0, device=DEVICE).view(2, 3)
    close(torch.func.functional_call(m, params, (x,)), 2 * (m(x)).detach().cpu())
    f = lambda w, v: (w * v).sin().sum()  # noqa: E731
    w = torch.tensor([0.1, 0.2, 0.3], device=DEVICE)
    close(torch.func.grad(f)(w, x[0]), (x[0] * (w * x[0]).cos()).cpu())
    close(torch.func.vmap(torch.func.grad(f), (None, 0))(w, x), (x * (w * x).cos()).cpu())
    close(torch.func.jacrev(lambda u: u**2)(w), torch.diag(2 * w.cpu()))
    close(torch.func.jacfwd(lambda u: u**2)(w), torch.diag(2 * w.cpu()))
    close(torch.func.hessian(lambda u: (u**3).sum())(w), torch.diag(6 * w.cpu()))


def test_custom_function_and_checkpoint():
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            return 2 * ctx.saved_tensors[0] * g

    x = torch.tensor([3.0], device=DEVICE, requires_grad=True)
    Square.apply(x).backward()
    same(x.grad, torch.tensor([6.0]))
    m = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.Tanh()).to(DEVICE)
    y = torch.ones(2, 3, device=DEVICE, requires_grad=True)
    torch.manual_seed(1)
    m(y).sum().backward()
    want = y.grad.cpu()
    y.grad = None
    torch.manual_seed(1)
    torch.utils.checkpoint.checkpoint(m, y, use_reentrant=False).sum().backward()  # replays the random state
    close(y.grad, want)


def test_library_operator():
    lib = torch.library.Library("tpu_test_module", "DEF")
    lib.define("cube(Tensor x) -> Tensor")
    lib.impl("cube", lambda x: x * x * x, "CompositeImplicitAutograd")
    x = torch.tensor([2.0], device=DEVICE, requires_grad=True)
    torch.ops.tpu_test_module.cube(x).backward()
    same(x.grad, torch.tensor([12.0]))


# ---- the zoo -------------------------------------------------------------------------------------------------------------

R = torch.randn
ZOO = {
    "Linear": (lambda: nn.Linear(4, 3), lambda: (R(5, 4),)),
    "Linear 3-d, no bias": (lambda: nn.Linear(4, 3, bias=False), lambda: (R(2, 5, 4),)),
    "Bilinear": (lambda: nn.Bilinear(3, 4, 2), lambda: (R(5, 3), R(5, 4))),
    "Conv1d": (lambda: nn.Conv1d(3, 4, 3, padding=1), lambda: (R(2, 3, 7),)),
    "Conv2d": (lambda: nn.Conv2d(3, 4, 3, stride=2, padding=1), lambda: (R(2, 3, 8, 8),)),
    "Conv2d groups": (lambda: nn.Conv2d(4, 8, 3, groups=4, dilation=2), lambda: (R(2, 4, 9, 9),)),
    "Conv2d reflect": (lambda: nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"), lambda: (R(1, 2, 5, 5),)),
    "Conv3d": (lambda: nn.Conv3d(1, 2, 2, stride=(1, 2, 2)), lambda: (R(1, 1, 3, 4, 4),)),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1, output_padding=1), lambda: (R(1, 2, 4, 4),)),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(3), lambda: (R(6, 3),)),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(3, momentum=0.3), lambda: (R(4, 3, 5, 5),)),
    "BatchNorm2d eval": (lambda: nn.BatchNorm2d(3).eval(), lambda: (R(4, 3, 5, 5),)),
    "InstanceNorm2d": (lambda: nn.InstanceNorm2d(3, affine=True, track_running_stats=True), lambda: (R(2, 3, 5, 5),)),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), lambda: (R(2, 4, 5),)),
    "LayerNorm": (lambda: nn.LayerNorm([3, 4]), lambda: (R(2, 3, 4),)),
    "RMSNorm": (lambda: nn.RMSNorm(4), lambda: (R(2, 3, 4),)),
    "LocalResponseNorm": (lambda: nn.LocalResponseNorm(2), lambda: (R(1, 4, 3, 3),)),
    "MaxPool2d": (lambda: nn.MaxPool2d(3, 2, 1, ceil_mode=True), lambda: (R(1, 2, 7, 7),)),
    "AvgPool1d": (lambda: nn.AvgPool1d(3, 2), lambda: (R(1, 2, 9),)),
    "AvgPool2d": (lambda: nn.AvgPool2d(3, 2, 1, count_include_pad=False), lambda: (R(1, 2, 7, 7),)),
    "AdaptiveAvgPool2d": (lambda: nn.AdaptiveAvgPool2d((3, 2)), lambda: (R(1, 2, 7, 5),)),
    "AdaptiveMaxPool1d": (lambda: nn.AdaptiveMaxPool1d(3), lambda: (R(1, 2, 7),)),
    "Upsample nearest": (lambda: nn.Upsample(scale_factor=2), lambda: (R(1, 2, 3, 3),)),
    "Upsample bilinear": (lambda: nn.Upsample(size=(5, 7), mode="bilinear"), lambda: (R(1, 2, 3, 4),)),
    "Pads": (lambda: nn.Sequential(nn.ReflectionPad2d(1), nn.ReplicationPad2d(1), nn.ZeroPad2d(1)), lambda: (R(1, 1, 4, 4),)),
    "PixelShuffle": (lambda: nn.PixelShuffle(2), lambda: (R(1, 4, 2, 2),)),
    "Unfold and Fold": (lambda: nn.Sequential(nn.Unfold(2), nn.Fold((4, 4), 2)), lambda: (R(1, 2, 4, 4),)),
    "Embedding": (lambda: nn.Embedding(7, 3, padding_idx=0), lambda: (torch.tensor([[0, 3, 3], [6, 1, 0]]),)),
    "EmbeddingBag": (
        lambda: nn.EmbeddingBag(7, 3, mode="mean"),
        lambda: (torch.tensor([0, 3, 3, 6, 1]), torch.tensor([0, 2, 2])),
    ),
    "RNN": (lambda: nn.RNN(3, 4, 2, batch_first=True), lambda: (R(2, 5, 3),)),
    "GRU": (lambda: nn.GRU(3, 4, bidirectional=True), lambda: (R(5, 2, 3),)),
    "LSTM": (lambda: nn.LSTM(3, 4, 2, proj_size=2), lambda: (R(5, 2, 3),)),
    "LSTMCell": (lambda: nn.LSTMCell(3, 4), lambda: (R(2, 3),)),
    "GRUCell": (lambda: nn.GRUCell(3, 4), lambda: (R(2, 3),)),
    "MultiheadAttention": (lambda: nn.MultiheadAttention(8, 2, batch_first=True), lambda: (R(2, 3, 8), R(2, 4, 8), R(2, 4, 8))),
    "TransformerEncoderLayer": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
        lambda: (R(2, 4, 8),),
    ),
    "TransformerDecoderLayer": (lambda: nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0), lambda: (R(4, 2, 8), R(3, 2, 8))),
    "activations": (
        lambda: nn.ModuleList(
            [
                getattr(nn, n)()
                for n in "ELU GELU SELU SiLU Mish ReLU6 Hardswish Softplus Tanhshrink LogSigmoid Softsign Hardsigmoid CELU PReLU".split()
            ]
        ),
        lambda: (R(4, 5),),
    ),
    "Softmax": (lambda: nn.Sequential(nn.LogSoftmax(1), nn.Softmin(0)), lambda: (R(3, 4),)),
    "CosineSimilarity": (lambda: nn.CosineSimilarity(), lambda: (R(3, 4), R(3, 4))),
    "CrossEntropyLoss": (
        lambda: nn.CrossEntropyLoss(torch.tensor([1.0, 2, 3]), label_smoothing=0.1, ignore_index=1),
        lambda: (R(4, 3), torch.tensor([0, 2, 1, 2])),
    ),
    "BCEWithLogitsLoss": (lambda: nn.BCEWithLogitsLoss(pos_weight=torch.tensor([2.0])), lambda: (R(4, 3), torch.rand(4, 3))),
    "KLDivLoss": (lambda: nn.KLDivLoss(reduction="batchmean"), lambda: (R(4, 3), torch.rand(4, 3))),
    "HuberLoss": (lambda: nn.HuberLoss(delta=0.5), lambda: (R(4, 3), R(4, 3))),
    "CTCLoss": (
        lambda: nn.CTCLoss(),
        lambda: (R(6, 2, 5).log_softmax(2), torch.tensor([[1, 2], [3, 4]]), torch.tensor([6, 6]), torch.tensor([2, 2])),
    ),
    "TripletMarginLoss": (lambda: nn.TripletMarginLoss(), lambda: (R(4, 3), R(4, 3), R(4, 3))),
}


def run_zoo(make, inputs, device):
    m = copy.deepcopy(make).to(device)
    xs = [x.to(device, copy=True).requires_grad_() if x.is_floating_point() else x.to(device) for x in inputs]
    if isinstance(m, nn.ModuleList):
        out = sum(layer(xs[0]) for layer in m)
    else:
        out = m(*xs)
    leaves = [t for t in torch.utils._pytree.tree_leaves(out) if torch.is_tensor(t)]
    sum((t * torch.linspace(0.5, 1.5, t.numel(), device=device).view(t.shape)).sum() for t in leaves).backward()
    return leaves, [x.grad for x in xs if x.grad is not None], [p.grad for p in m.parameters()], list(m.buffers())


@pytest.mark.parametrize("kind", ZOO)
def test_zoo(kind):
    torch.manual_seed(0)
    make, inputs = ZOO[kind][0](), ZOO[kind][1]()
    if kind == "KLDivLoss":
        inputs = (inputs[0].log_softmax(1), inputs[1].softmax(1))
    got, want = run_zoo(make, inputs, DEVICE), run_zoo(make, inputs, "cpu")
    for what, g, w in zip(("result", "gradient of an input", "gradient of a parameter", "buffer"), got, want, strict=True):
        assert len(g) == len(w), what
        for i, (a, b) in enumerate(zip(g, w, strict=True)):
            if b is None:
                assert a is None, f"{what} {i}"
                continue
            assert a is not None and a.device.type == KIND, f"{what} {i}"
            try:
                check(a, b, 2e-4, 2e-5)
            except AssertionError as e:
                raise AssertionError(f"{what} {i}: {e}") from None


def test_packed_sequences():
    torch.manual_seed(0)
    m = nn.LSTM(3, 4, bidirectional=True, batch_first=True)
    x = R(3, 5, 3)

    def run(m, x):
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 2, 3]), batch_first=True, enforce_sorted=False)
        return nn.utils.rnn.pad_packed_sequence(m(packed)[0], batch_first=True)[0]

    close(run(copy.deepcopy(m).to(DEVICE), x.to(DEVICE)), run(m, x), 1e-4, 1e-5)


def test_attention_masks():
    torch.manual_seed(0)
    q, k, v = R(2, 2, 3, 4), R(2, 2, 5, 4), R(2, 2, 5, 4)
    mask = torch.rand(2, 1, 3, 5) > 0.3
    mask[0, 0, 1] = False  # a row that sees nothing is zero
    mask[..., 0, 0] = True
    for kw in ({}, {"attn_mask": mask}, {"attn_mask": R(2, 2, 3, 5)}, {"is_causal": True}, {"scale": 0.3}):
        there = {n: a.to(DEVICE) if torch.is_tensor(a) else a for n, a in kw.items()}
        got = F.scaled_dot_product_attention(q.to(DEVICE), k.to(DEVICE), v.to(DEVICE), **there)
        close(got, F.scaled_dot_product_attention(q, k, v, **kw), 1e-4, 1e-5)
        assert not got.isnan().any()
    g = F.scaled_dot_product_attention(R(1, 8, 3, 4).to(DEVICE), k[:1].to(DEVICE), v[:1].to(DEVICE), enable_gqa=True)
    assert g.shape == (1, 8, 3, 4)


def test_normalisation_in_low_precision():
    x = R(4, 6).bfloat16()
    for f in (
        lambda t: F.layer_norm(t, (6,)),
        lambda t: F.softmax(t, 1),
        lambda t: F.gelu(t),
        lambda t: F.silu(t),
        lambda t: F.rms_norm(t, (6,)),
    ):
        close(f(x.to(DEVICE)), f(x), 2e-2, 2e-2)


CHANNELS_LAST = {
    "conv2d": lambda x: F.conv2d(x, torch.ones(6, 4, 3, 3, device=x.device), padding=1),
    "conv2d, its weight alone": lambda x: F.conv2d(
        x.contiguous(), torch.ones(6, 4, 3, 3, device=x.device).to(memory_format=torch.channels_last)
    ),
    "conv_transpose2d": lambda x: F.conv_transpose2d(x, torch.ones(4, 6, 3, 3, device=x.device)),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "group_norm": lambda x: F.group_norm(x, 2),
    "relu": F.relu,
    "add": lambda x: x + x,
    "broadcast": lambda x: x + x[0, :, :1, :1],
    "number": lambda x: x * 2,
    "max_pool2d": lambda x: F.max_pool2d(x, 2),
    "avg_pool2d": lambda x: F.avg_pool2d(x, 2),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, 2),
    "interpolate": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False),
    "pad": lambda x: F.pad(x, (1, 1, 1, 1)),
    "cat": lambda x: torch.cat([x, x], 1),
    "clone": lambda x: x.clone(),
    "zeros_like": torch.zeros_like,
    "to": lambda x: x.to(torch.bfloat16),
    "where": lambda x: torch.where(x > 0, x, x),
}


@pytest.mark.parametrize("name", CHANNELS_LAST)
def test_channels_last_in_channels_last_out(name):
    x = sample(torch.float32, 2, 4, 8, 8).to(memory_format=torch.channels_last)
    want, got = CHANNELS_LAST[name](x), CHANNELS_LAST[name](x.to(DEVICE))
    assert got.stride() == want.stride() and got.is_contiguous(memory_format=torch.channels_last)
    close(got, want, 1e-4, 1e-4)
    assert CHANNELS_LAST[name](x.contiguous().to(DEVICE)).is_contiguous() or "weight" in name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kwargs", [{}, {"stride": 2, "padding": 1}, {"padding": 2, "dilation": 2}, {"stride": 3}], ids=str)
@pytest.mark.parametrize("function", ["conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d"])
@pytest.mark.parametrize("group", [(1, 1), (1, 3), (2, 3)], ids=str)
def test_grouped_convolution(function, kwargs, dtype, group):
    """Convolutions in groups of so many channels and filters, which have forms of their own on CPU plugins, and their gradients."""
    n, (channels, filters) = int(function[-2]), group
    x = sample(dtype, 2, 5 * (filters if "transpose" in function else channels), *(9, 8, 7)[:n])
    w = sample(dtype, 5 * filters, channels, *(3, 2, 3)[:n])

    def run(device):
        a, b = (v.to(device).requires_grad_() for v in (x, w))
        y = getattr(torch.nn.functional, function)(a, b, groups=5, **kwargs)
        y.backward(torch.linspace(-1, 1, y.numel()).view_as(y).to(dtype).to(a))
        return y.detach(), a.grad, b.grad

    tolerance = 1e-5 if dtype == torch.float32 else 3e-2
    got = run(DEVICE)
    x, w = x.float(), w.float()  # PyTorch's sums in bfloat16 are less exact than ours
    for g, want in zip(got, run("cpu"), strict=True):
        check(g, want.to(dtype), tolerance, tolerance * 4)


@pytest.mark.parametrize("name", ["ReflectionPad2d", "ReplicationPad2d", "ReflectionPad3d", "ReplicationPad3d"])
def test_padding_keeps_the_order_of_an_image(name):
    pad = getattr(nn, name)(1)
    x = torch.randn((2, 3, 4, 5, 6) if "3d" in name else (2, 3, 5, 6))
    for y in (x, x[0], x.to(memory_format=torch.channels_last_3d if "3d" in name else torch.channels_last)):
        a, b = y.to(DEVICE).requires_grad_(), y.clone().requires_grad_()
        got, want = pad(a), pad(b)
        assert got.stride() == want.stride() and torch.equal(got.cpu(), want)
        g = torch.rand_like(want)
        got, want = torch.autograd.grad(got, a, g.to(DEVICE))[0], torch.autograd.grad(want, b, g)[0]
        assert got.stride() == want.stride()
        torch.testing.assert_close(got.cpu(), want)


@pytest.mark.parametrize("n", [0, 2])
@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_keeps_the_order_of_a_batch_of_none_too(n, affine):
    x = torch.randn(n, 5, 2, 2, 2).to(memory_format=torch.channels_last_3d)
    for training in (True, False):
        m = nn.BatchNorm3d(5, affine=affine).train(training)
        want, got = m(x), copy.deepcopy(m).to(DEVICE)(x.to(DEVICE))
        assert got.stride() == want.stride() and got.shape == want.shape
