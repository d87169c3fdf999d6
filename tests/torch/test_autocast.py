"""Seam: mixed precision. Autocast with CUDA's lists, GradScaler, custom functions."""

import threading

import pytest
import torch
from torch import nn
from tpu_testing import DEVICE, IS_CPU, KIND, close, device_only, same

F = torch.nn.functional
pytestmark = device_only
HALVES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])


def lists():
    from torch.testing._internal.autocast_test_lists import AutocastTestLists

    return AutocastTestLists(torch.device(DEVICE))


def has_kernel(op, key):
    return torch._C._dispatch_has_kernel_for_dispatch_key(op, key)


def test_operators_are_cudas():
    names = [n for n in torch._C._dispatch_get_all_op_names() if n.startswith("aten::")]
    # a build of PyTorch for CUDA registers one more, which only cuDNN serves
    cuda = {n for n in names if has_kernel(n, "AutocastCUDA")} - {"aten::_cudnn_rnn"}
    ours = {n for n in names if has_kernel(n, "AutocastPrivateUse1")}
    assert len(cuda) > 100
    assert ours == cuda, f"missing {sorted(cuda - ours)}, too many {sorted(ours - cuda)}"


def flatten(out):
    return [t for t in (out if isinstance(out, (tuple, list)) else [out]) if torch.is_tensor(t) and t.is_floating_point()]


@HALVES
@pytest.mark.parametrize(
    "policy",
    [
        "torch_fp16",
        "torch_fp32",
        "torch_need_autocast_promote",
        "nn_fp16",
        "nn_fp32",
        "methods_fp32",
        "torch_expect_builtin_promote",
    ],
)
def test_dtype_of_each_listed_operator(policy, dtype):
    bad, seen = [], 0
    for entry in getattr(lists() if not IS_CPU else None, policy):
        name, args = entry[0], entry[1]
        kwargs = entry[2] if len(entry) > 2 and isinstance(entry[2], dict) else {}
        if name in ("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell", "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell"):
            continue  # covered by test_cells
        if name in ("cudnn_convolution", "cudnn_convolution_transpose", "einsum"):
            continue  # CUDA's own; and einsum, in test_effect_and_nesting
        owner = F if policy.startswith("nn_") else torch
        fn = (
            (lambda *a, n=name, **k: getattr(a[0], n)(*a[1:], **k))
            if policy.startswith("methods")
            else getattr(owner, name, None) or getattr(torch._C._nn, name)
        )
        if dtype == torch.bfloat16:
            args = tuple(a.bfloat16() if torch.is_tensor(a) and a.dtype == torch.float16 else a for a in args)
        with torch.autocast("tpu", dtype=dtype):
            try:
                outs = flatten(fn(*args, **kwargs))
            except Exception as e:  # noqa: BLE001 - all are reported together
                bad.append(f"{name}: {type(e).__name__}: {str(e)[:90]}")
                continue
        seen += 1
        if policy.endswith("fp16"):
            want = dtype
        elif policy.endswith("fp32"):
            want = torch.float32
        elif policy == "torch_expect_builtin_promote":
            want = entry[-1] if isinstance(entry[-1], torch.dtype) else None
            if want in (torch.float16, torch.bfloat16):
                want = dtype
        else:
            tensors = [
                t
                for a in args
                for t in (a if isinstance(a, (list, tuple)) else [a])
                if torch.is_tensor(t) and t.is_floating_point()
            ]
            want = torch.float32 if any(t.dtype == torch.float32 for t in tensors) else dtype
        if want is not None and want.is_floating_point and any(o.dtype != want for o in outs):
            bad.append(f"{name}: {[o.dtype for o in outs]}, expected {want}")
    assert not bad, "\n".join(bad)
    assert seen > 0


def test_cells():
    x, h = torch.randn(2, 3, device=DEVICE), torch.randn(2, 4, device=DEVICE)
    lstm, gru = nn.LSTMCell(3, 4).to(DEVICE), nn.GRUCell(3, 4).to(DEVICE)
    with torch.autocast("tpu", dtype=torch.bfloat16):
        assert lstm(x, (h, h))[0].dtype == torch.bfloat16 and gru(x, h).dtype == torch.bfloat16


@HALVES
def test_effect_and_nesting(dtype):
    a = torch.ones(2, 2, device=DEVICE)
    assert not torch.is_autocast_enabled("tpu")
    with torch.autocast("tpu", dtype=dtype):
        assert torch.is_autocast_enabled("tpu") and torch.get_autocast_dtype("tpu") == dtype
        assert not torch.is_autocast_enabled("cpu")
        assert (a @ a).dtype == F.linear(a, a).dtype == dtype
        assert torch.einsum("ij,jk->ik", a, a).dtype == dtype
        assert F.softmax(a, 1).dtype == F.mse_loss(a @ a, (a @ a)).dtype == torch.float32
        assert (a + a).dtype == torch.float32 and torch.cat([a @ a, a]).dtype == torch.float32
        assert (a @ a).sum().dtype == torch.float32 and (a.double() @ a.double()).dtype == torch.float64
        with torch.autocast("tpu", enabled=False):
            assert (a @ a).dtype == torch.float32
        assert (a @ a).dtype == dtype
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32  # a CPU tensor is not its business
    assert (a @ a).dtype == torch.float32
    same(a @ a, torch.full((2, 2), 2.0))


def test_default_dtype_and_availability():
    assert torch.amp.autocast_mode.is_autocast_available("tpu")
    with torch.autocast("tpu"):
        assert (torch.ones(2, 2, device=DEVICE) @ torch.ones(2, 2, device=DEVICE)).dtype == torch.get_autocast_dtype("tpu")


def test_as_a_decorator_and_in_other_threads():
    @torch.autocast("tpu", dtype=torch.bfloat16)
    def f(x):
        return x @ x

    a = torch.ones(2, 2, device=DEVICE)
    assert f(a).dtype == torch.bfloat16
    seen = []
    with torch.autocast("tpu", dtype=torch.bfloat16):
        t = threading.Thread(target=lambda: seen.append((a @ a).dtype))
        t.start()
        t.join()
    assert seen == [torch.float32]


def test_an_unsafe_loss_is_refused():
    a = torch.full((2,), 0.5, device=DEVICE)
    with torch.autocast("tpu", dtype=torch.bfloat16), pytest.raises(RuntimeError, match="unsafe to autocast"):
        F.binary_cross_entropy(a, a)


@HALVES
def test_gradients_are_in_the_parameters_dtype_and_near_float32(dtype):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
    x, y = torch.randn(6, 8), torch.randint(0, 4, (6,))
    F.cross_entropy(net(x), y).backward()
    want = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    net.to(DEVICE)
    with torch.autocast("tpu", dtype=dtype):
        loss = F.cross_entropy(net(x.to(DEVICE)), y.to(DEVICE))
    assert loss.dtype == torch.float32
    loss.backward()
    for p, w in zip(net.parameters(), want, strict=True):
        assert p.grad.dtype == torch.float32
        assert (p.grad.cpu() - w).norm() < 0.03 * w.norm() + 1e-3


def test_cached_weights_are_not_stale():
    w = nn.Parameter(torch.ones(2, 2, device=DEVICE))
    x = torch.ones(1, 2, device=DEVICE)
    with torch.autocast("tpu", dtype=torch.bfloat16):
        same((x @ w).detach(), torch.full((1, 2), 2.0).bfloat16())
    with torch.no_grad():
        w.mul_(3)
    with torch.autocast("tpu", dtype=torch.bfloat16):
        same((x @ w).detach(), torch.full((1, 2), 6.0).bfloat16())


def test_custom_functions():
    class Twice(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="tpu", cast_inputs=torch.float32)
        def forward(ctx, x):
            Twice.forward_dtype = x.dtype
            assert not torch.is_autocast_enabled("tpu")
            return x * 2

        @staticmethod
        @torch.amp.custom_bwd(device_type="tpu")
        def backward(ctx, g):
            return g * 2

    x = torch.ones(3, dtype=torch.bfloat16, device=DEVICE, requires_grad=True)
    with torch.autocast("tpu", dtype=torch.bfloat16):
        Twice.apply(x).sum().backward()
    assert Twice.forward_dtype == torch.float32
    same(x.grad, torch.full((3,), 2.0).bfloat16())


# ---- GradScaler ------------------------------------------------------------------------------------------------------


def run_scaler(device, grads, **optimizer):
    """Steps with given gradients of the unscaled loss; gives the parameter and the scale after each."""
    p = nn.Parameter(torch.tensor([1.0, -2.0]).to(device))
    o = torch.optim.SGD([p], 0.5, **optimizer)
    s = torch.amp.GradScaler(device, init_scale=8.0, growth_interval=2, growth_factor=4.0, backoff_factor=0.25)
    seen = []
    for g in grads:
        s.scale((p * torch.tensor(g, device=device)).sum()).backward()
        s.step(o)
        s.update()
        o.zero_grad()
        seen.append((p.detach().cpu().clone(), s.get_scale()))
    return seen, s


@pytest.mark.parametrize("foreach", [False, True])
def test_scaler_as_on_cpu(foreach):
    inf, nan = float("inf"), float("nan")
    grads = [[1.0, 2.0], [inf, 1.0], [0.5, 0.5], [1.0, 1.0], [nan, 0.0], [0.25, -1.0], [1.0, 1.0]]
    got, a = run_scaler(DEVICE, grads, foreach=foreach)
    want, b = run_scaler("cpu", grads, foreach=foreach)
    assert KIND == "tpu" and [s for _, s in got] == [s for _, s in want]
    for (p, _), (q, _) in zip(got, want, strict=True):
        assert torch.equal(p, q)
    assert a.state_dict() == b.state_dict()


def test_scaler_unscales_before_clipping():
    p = nn.Parameter(torch.ones(2, device=DEVICE))
    o = torch.optim.SGD([p], 1.0)
    s = torch.amp.GradScaler("tpu", init_scale=1024.0)
    s.scale((p * torch.tensor([3.0, 4.0], device=DEVICE)).sum()).backward()
    same(p.grad, torch.tensor([3072.0, 4096.0]))
    s.unscale_(o)
    same(p.grad, torch.tensor([3.0, 4.0]))
    assert abs(nn.utils.clip_grad_norm_([p], 1.0).item() - 5) < 1e-5
    s.step(o)
    s.update()
    close(p, torch.tensor([0.4, 0.2]))
    with pytest.raises(RuntimeError):
        s.unscale_(o)
        s.unscale_(o)


def test_scaler_state_and_switch():
    s = torch.amp.GradScaler("tpu", init_scale=2.0)
    t = torch.amp.GradScaler("tpu")
    t.load_state_dict(s.state_dict())
    assert t.get_scale() == 2.0
    off = torch.amp.GradScaler("tpu", enabled=False)
    x = torch.ones(2, device=DEVICE)
    assert off.scale(x) is x
    with pytest.raises(AssertionError, match="No inf checks"):
        p = nn.Parameter(torch.ones(1, device=DEVICE))
        s.scale(x)
        s.step(torch.optim.SGD([p], 0.1))


@pytest.mark.parametrize("fused", [False, True])
def test_half_precision_training_with_a_scaler(fused):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1)).to(DEVICE)
    o = torch.optim.AdamW(net.parameters(), lr=1e-2, fused=fused)
    s = torch.amp.GradScaler("tpu")
    x = torch.randn(64, 4, device=DEVICE)
    y = x.sum(1, keepdim=True)
    losses = []
    for _ in range(30):
        o.zero_grad()
        with torch.autocast("tpu", dtype=torch.float16):
            loss = F.mse_loss(net(x), y)
        s.scale(loss).backward()
        s.step(o)
        s.update()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0] and s.get_scale() > 0
