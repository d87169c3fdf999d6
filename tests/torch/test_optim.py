"""Every optimizer equals CPU over five steps; gradient clipping, accumulation, schedules, averages."""

import pytest
import torch
from torch import nn
from tpu_testing import DEVICE, IS_CPU, KIND, check, close, same

# class: arguments. Left out: SparseAdam, which needs sparse gradients.
OPTIMIZERS = {
    "Adadelta": {},
    "Adafactor": dict(lr=0.1),
    "Adagrad": dict(lr=0.1, lr_decay=0.1, weight_decay=0.1),
    "Adam": dict(lr=0.1, weight_decay=0.1),
    "Adam amsgrad": dict(lr=0.1, amsgrad=True, maximize=True),
    "AdamW": dict(lr=0.1),
    "AdamW betas": dict(lr=0.1, betas=(0.5, 0.6), eps=1e-3),
    "Adamax": dict(lr=0.1, weight_decay=0.1),
    "ASGD": dict(lr=0.1, t0=1, lambd=0.1),
    "LBFGS": dict(lr=0.1, max_iter=3),
    "LBFGS strong_wolfe": dict(lr=0.5, max_iter=3, line_search_fn="strong_wolfe"),
    "Muon": dict(lr=0.1),
    "NAdam": dict(lr=0.1, momentum_decay=0.01),
    "RAdam": dict(lr=0.1),
    "RMSprop": dict(lr=0.1),
    "RMSprop centered": dict(lr=0.1, centered=True, momentum=0.5, weight_decay=0.1),
    "Rprop": dict(lr=0.1),
    "SGD": dict(lr=0.1),
    "SGD momentum": dict(lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.1),
    "SGD nesterov": dict(lr=0.1, momentum=0.9, nesterov=True, maximize=True),
}
FORMS = {"default": {}, "for": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}


def accepts(name, form):
    import inspect

    return all(k in inspect.signature(getattr(torch.optim, name.split()[0])).parameters for k in FORMS[form])


CASES = [(n, f) for n in OPTIMIZERS for f in FORMS if accepts(n, f)]


def problem(device):
    g = torch.Generator().manual_seed(0)
    ps = [nn.Parameter(torch.randn(s, generator=g).to(device)) for s in ((3, 4), (2, 2), (5, 3))]
    target = [torch.randn(p.shape, generator=g).to(device) for p in ps]

    def loss():
        return sum(((p - t) ** 2 * (i + 1)).sum() for i, (p, t) in enumerate(zip(ps, target, strict=True)))

    return ps, loss


def run(device, name, steps=5, **kw):
    ps, loss = problem(device)
    o = (
        getattr(torch.optim, name.split()[0])([{"params": ps[:1]}, {"params": ps[1:], "lr": 0.05}], **kw)
        if "LBFGS" not in name
        else torch.optim.LBFGS(ps, **kw)
    )
    for _ in range(steps):

        def closure():
            o.zero_grad()
            v = loss()
            v.backward()
            return v

        closure() if "LBFGS" not in name else None
        o.step(closure if "LBFGS" in name else None)
    return ps, o


def test_every_optimizer_is_here():
    known = {n for n, c in vars(torch.optim).items() if isinstance(c, type) and issubclass(c, torch.optim.Optimizer)}
    assert known - {"Optimizer", "SparseAdam"} == {k.split()[0] for k in OPTIMIZERS}


@pytest.mark.parametrize("name,form", CASES, ids=lambda c: str(c))
def test_equals_cpu(name, form):
    kw = {**OPTIMIZERS[name], **FORMS[form]}
    got, o = run(DEVICE, name, **kw)
    want, _ = run("cpu", name, **{k: v for k, v in kw.items() if k not in ("foreach", "fused")})
    tol = 2e-2 if name == "Muon" else 2e-4  # Muon orthogonalises in bfloat16
    for p, q in zip(got, want, strict=True):
        assert p.device.type == KIND
        check(p, q, tol, tol / 10)
    for state in o.state.values():
        for k, v in state.items():
            if torch.is_tensor(v) and v.dim():
                assert v.device.type == KIND, f"state {k} lies on {v.device}"


@pytest.mark.parametrize("name", ["Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adadelta", "RMSprop", "Rprop", "ASGD", "Adagrad"])
def test_state_that_lies_on_the_device(name):
    """capturable or a tensor as lr: the step counter and lr are device tensors."""
    import inspect

    if "capturable" in inspect.signature(getattr(torch.optim, name)).parameters and not IS_CPU:
        try:
            got, _ = run(DEVICE, name, lr=0.1, capturable=True, foreach=False)
        except AssertionError as e:  # PyTorch's own list of devices
            assert "capturable" in str(e) or "capturable=True" in str(e)
        else:
            want, _ = run("cpu", name, lr=0.1)
            for p, q in zip(got, want, strict=True):
                check(p, q, 2e-4, 2e-5)
    if name in ("Adam", "AdamW"):
        p = nn.Parameter(torch.ones(3, device=DEVICE))
        o = getattr(torch.optim, name)([p], lr=torch.tensor(0.1), foreach=False)
        p.grad = torch.ones_like(p)
        o.step()
        assert abs(p.detach().cpu() - 0.9).max() < 1e-2


def test_resume():
    ps, o = run(DEVICE, "AdamW", lr=0.1)
    qs, loss = problem(DEVICE)
    n = torch.optim.AdamW([{"params": qs[:1]}, {"params": qs[1:], "lr": 0.05}], lr=0.1)
    n.load_state_dict(o.state_dict())
    with torch.no_grad():
        for p, q in zip(ps, qs, strict=True):
            q.copy_(p)
    want, _ = run("cpu", "AdamW", steps=6, lr=0.1)
    loss().backward()
    n.step()
    for q, w in zip(qs, want, strict=True):
        check(q, w, 2e-4, 2e-5)


# ---- around them ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("foreach", [None, False, True])
@pytest.mark.parametrize("kind", [2.0, 1.0, float("inf")])
def test_clip_grad_norm(kind, foreach):
    def make(device):
        ps = [nn.Parameter(torch.zeros(s, device=device)) for s in ((2,), (3, 2), ())]
        for i, p in enumerate(ps):
            p.grad = torch.full_like(p, i + 3.0)
        n = nn.utils.clip_grad_norm_(ps, 1.5, norm_type=kind, foreach=foreach)
        return [n, *[p.grad for p in ps]]

    for g, w in zip(make(DEVICE), make("cpu"), strict=True):
        close(g, w, 1e-5, 1e-6)


def test_clipping_of_what_is_not_finite():
    p = nn.Parameter(torch.zeros(2, device=DEVICE))
    p.grad = torch.tensor([float("inf"), 1.0], device=DEVICE)
    with pytest.raises(RuntimeError, match="non-finite"):
        nn.utils.clip_grad_norm_([p], 1.0, error_if_nonfinite=True)
    assert nn.utils.clip_grad_norm_([], 1.0).item() == 0
    p.grad = torch.tensor([5.0, -7.0], device=DEVICE)
    nn.utils.clip_grad_value_([p], 6.0)
    same(p.grad, torch.tensor([5.0, -6.0]))
    close(nn.utils.get_total_norm([p.grad]), torch.tensor(61.0).sqrt())


def test_zero_grad_and_accumulation():
    p = nn.Parameter(torch.ones(2, device=DEVICE))
    o = torch.optim.SGD([p], lr=1.0)
    for _ in range(3):
        (p * 2).sum().backward()
    same(p.grad, torch.full((2,), 6.0))
    g = p.grad
    o.zero_grad(set_to_none=False)
    assert p.grad is g
    same(g, torch.zeros(2))
    (p * 2).sum().backward()
    assert p.grad is g
    o.zero_grad()
    assert p.grad is None


def test_schedules():
    L = torch.optim.lr_scheduler
    makers = [
        lambda o: L.StepLR(o, 2, 0.5),
        lambda o: L.OneCycleLR(o, 0.5, total_steps=8),
        lambda o: L.CosineAnnealingWarmRestarts(o, 3),
        lambda o: L.SequentialLR(o, [L.LinearLR(o), L.ExponentialLR(o, 0.5)], [3]),
    ]
    for make in makers:
        ends = []
        for d in (DEVICE, "cpu"):
            p = nn.Parameter(torch.ones(3, device=d))
            o = torch.optim.SGD([p], lr=0.1, momentum=0.9)
            s = make(o)
            for _ in range(6):
                p.grad = torch.ones_like(p)
                o.step()
                s.step()
            ends.append(p)
        close(*ends, 1e-5, 1e-6)
    p = nn.Parameter(torch.ones(1, device=DEVICE))
    o = torch.optim.SGD([p], lr=0.1)
    r = L.ReduceLROnPlateau(o, patience=0)
    for v in (1.0, 2.0, 3.0):
        r.step(torch.tensor(v, device=DEVICE))
    assert o.param_groups[0]["lr"] < 0.1


@pytest.mark.parametrize("average", ["swa", "ema"])
def test_averaged_models(average):
    ends = []
    for d in (DEVICE, "cpu"):
        torch.manual_seed(0)
        m = nn.Linear(2, 2).to(d)
        kw = {"multi_avg_fn": torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)} if average == "ema" else {}
        a = torch.optim.swa_utils.AveragedModel(m, **kw)
        for i in range(3):
            with torch.no_grad():
                m.weight.add_(i + 1)
            a.update_parameters(m)
        ends.append(a.module.weight)
    close(*ends, 1e-5, 1e-6)
