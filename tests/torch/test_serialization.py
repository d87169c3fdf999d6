"""Seam: tensors that leave the process. save and load, pickle, deepcopy, DLPack, NumPy."""

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from torch import nn
from tpu_testing import DEVICE, DTYPES, FLOAT8, KIND, WIDE_UNSIGNED, device_only, name_of, run_python, same, sample


def save(obj):
    b = io.BytesIO()
    torch.save(obj, b)
    b.seek(0)
    return b


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize("where", ["cpu", DEVICE, torch.device(DEVICE), None, "function", "dict"])
def test_load(where, weights_only):
    c = sample(torch.float32, 3, 4)
    data = {"w": c.to(DEVICE), "p": nn.Parameter(c.to(DEVICE)), "n": 3, "l": [c.to(DEVICE).long()]}
    target = {"function": lambda storage, location: storage, "dict": {f"{KIND}:0": "cpu", KIND: "cpu"}}.get(where, where)
    back = torch.load(save(data), map_location=target, weights_only=weights_only)
    on = {"cpu": "cpu", "function": "cpu", "dict": "cpu"}.get(where, KIND)
    for t in (back["w"], back["p"], back["l"][0]):
        assert t.device.type == on, (where, t.device)
    assert (
        torch.equal(back["w"].cpu(), c) and torch.equal(back["p"].detach().cpu(), c) and torch.equal(back["l"][0].cpu(), c.long())
    )
    assert isinstance(back["p"], nn.Parameter) and back["p"].requires_grad and back["n"] == 3


def test_a_cpu_checkpoint_loads_onto_the_device():
    c = sample(torch.float32, 5)
    same(torch.load(save(c), map_location=DEVICE), c)


@pytest.mark.parametrize("dtype", [*DTYPES, *WIDE_UNSIGNED, *FLOAT8], ids=name_of)
def test_every_dtype(dtype):
    c = sample(dtype, 3, 2)
    same(torch.load(save(c.to(DEVICE))), c)
    if dtype in DTYPES:  # PyTorch's plain pickle knows no others
        same(pickle.loads(pickle.dumps(c.to(DEVICE))), c)
    same(copy.deepcopy(c.to(DEVICE)), c)


@pytest.mark.parametrize("through", ["save", "pickle", "deepcopy"])
def test_views_keep_sharing(through):
    base = torch.arange(12.0).to(DEVICE)
    data = {"base": base, "view": base.view(3, 4).t()[1:], "same": base}
    if through == "save":
        back = torch.load(save(data))
    elif through == "deepcopy":
        back = copy.deepcopy(data)
    else:
        back = pickle.loads(pickle.dumps(data))
    same(back["view"], torch.arange(12.0).view(3, 4).t()[1:])
    assert back["same"] is back["base"] and back["view"].stride() == (1, 4)
    if through != "pickle":  # plain pickle writes each tensor's storage alone, on CPU too
        back["base"].fill_(7)
        same(back["view"], torch.full((3, 3), 7.0))
    same(base, torch.arange(12.0))


def test_file_and_mmap(tmp_path):
    c = torch.arange(1000.0)
    torch.save({"x": c.to(DEVICE)}, tmp_path / "f.pt")
    same(torch.load(tmp_path / "f.pt")["x"], c)
    assert torch.equal(torch.load(tmp_path / "f.pt", map_location="cpu", mmap=True)["x"], c)


def test_modules_and_optimizers():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).to(DEVICE)
    o = torch.optim.AdamW(net.parameters(), lr=0.1)

    def step(m, opt):
        opt.zero_grad()
        m(torch.arange(12.0, device=DEVICE).view(4, 3)).square().mean().backward()
        opt.step()

    step(net, o)
    b = save({"net": net.state_dict(), "opt": o.state_dict()})
    step(net, o)
    for where in ("cpu", DEVICE):
        b.seek(0)
        d = torch.load(b, map_location=where)
        other = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).to(DEVICE)
        other.load_state_dict(d["net"])
        p = torch.optim.AdamW(other.parameters(), lr=0.1)
        p.load_state_dict(d["opt"])
        assert all(v.device.type == KIND for s in p.state.values() for k, v in s.items() if torch.is_tensor(v) and k != "step")
        step(other, p)
        for u, v in zip(other.state_dict().values(), net.state_dict().values(), strict=True):
            torch.testing.assert_close(u.cpu(), v.cpu(), rtol=1e-6, atol=1e-6)
    whole = torch.load(save(net), weights_only=False)
    assert next(whole.parameters()).device.type == KIND
    torch.testing.assert_close(
        whole.eval()(torch.ones(2, 3, device=DEVICE)).cpu(), net.eval()(torch.ones(2, 3, device=DEVICE)).cpu()
    )


def test_deepcopy():
    a, b = nn.Embedding(4, 3), nn.Linear(3, 4, bias=False)
    b.weight = a.weight
    m = nn.ModuleDict({"a": a, "b": b}).to(DEVICE)
    n = copy.deepcopy(m)
    assert n["a"].weight is n["b"].weight and n["a"].weight is not m["a"].weight
    with torch.no_grad():
        m["a"].weight.zero_()
    assert n["a"].weight.abs().sum() > 0
    x = torch.ones(2, device=DEVICE, requires_grad=True)
    x.grad = torch.full_like(x, 3.0)
    y = copy.deepcopy(x)
    assert y.requires_grad and y.data_ptr() != x.data_ptr()
    same(y.grad, torch.full((2,), 3.0))
    s = copy.copy(x)
    assert s.data_ptr() == x.data_ptr()


def test_pickle_keeps_device_and_kind():
    p = pickle.loads(pickle.dumps(nn.Parameter(torch.tensor([1.0, 2.0], device=DEVICE), requires_grad=False)))
    assert isinstance(p, nn.Parameter) and not p.requires_grad and p.device.type == KIND
    same(p, torch.tensor([1.0, 2.0]))
    g = torch.tensor([3.0], device=DEVICE, requires_grad=True)
    assert pickle.loads(pickle.dumps(g)).requires_grad
    d = pickle.loads(pickle.dumps(torch.device(DEVICE)))
    assert d == torch.device(DEVICE)


@device_only
def test_checkpoints_are_readable_where_the_backend_is_not_loaded(tmp_path):
    f = tmp_path / "x.pt"
    torch.save(
        {
            "w": torch.tensor([1.0, 2.0], device="tpu"),
            "b": torch.ones(2, device="tpu").bfloat16(),
            "p": nn.Parameter(torch.tensor([3.0], device="tpu")),
        },
        f,
    )
    code = f"""
    import torch, sys
    assert "torch_tpu" not in sys.modules
    for w in (True, False):
        d = torch.load({str(f)!r}, map_location="cpu", weights_only=w)
        print(d["w"].tolist(), d["b"].tolist(), d["p"].tolist())
    """
    out = run_python(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0").stdout
    assert out.splitlines() == ["[1.0, 2.0] [1.0, 1.0] [3.0]"] * 2


@device_only
def test_map_location_needs_no_plugin(tmp_path):
    f = tmp_path / "x.pt"
    torch.save(torch.tensor([1.0, 2.0], device="tpu"), f)
    code = f"""
    import torch
    print(torch.load({str(f)!r}, map_location="cpu").tolist())
    try: torch.load({str(f)!r})
    except RuntimeError as e: print("map_location" in str(e))
    """
    assert run_python(code, TORCH_TPU_PJRT_PLUGIN="/nowhere/plugin.so").stdout.splitlines() == ["[1.0, 2.0]", "True"]


@device_only
def test_an_index_of_a_larger_machine(tmp_path):
    f = tmp_path / "x.pt"
    run_python(f"import torch; torch.save(torch.ones(2, device='tpu:2'), {str(f)!r})", TORCH_TPU_CPU_DEVICES="3")
    with pytest.raises(RuntimeError, match="map_location|device"):
        torch.load(f)
    same(torch.load(f, map_location="tpu"), torch.ones(2))
    same(torch.load(f, map_location={"tpu:2": "tpu:0"}), torch.ones(2))


# ---- NumPy and DLPack ----------------------------------------------------------------------------------------------------


@device_only
def test_numpy_asks_for_a_host_copy():
    x = torch.ones(2, device="tpu")
    for f in (lambda: x.numpy(), lambda: np.asarray(x), lambda: np.array(x)):
        with pytest.raises(TypeError, match=r"(?i)cpu"):
            f()


def test_numpy_through_the_host():
    x = torch.arange(6.0).view(2, 3).to(DEVICE)
    assert np.array_equal(x.cpu().numpy(), np.arange(6.0, dtype=np.float32).reshape(2, 3))
    assert np.array_equal(x.t().numpy(force=True), np.arange(6.0).reshape(2, 3).T)
    a = np.arange(4)[::2].copy()
    same(torch.from_numpy(a).to(DEVICE), torch.tensor([0, 2]))
    same(torch.as_tensor(a, device=DEVICE), torch.tensor([0, 2]))
    same(torch.tensor(a, device=DEVICE), torch.tensor([0, 2]))
    same(x * np.float32(2), torch.arange(6.0).view(2, 3) * 2)
    same(x + np.float64(0.5), torch.arange(6.0).view(2, 3) + 0.5)
    same(x[np.array([1, 0])], torch.arange(6.0).view(2, 3)[[1, 0]])


def test_dlpack():
    c = torch.arange(6.0).view(2, 3)
    x = c.to(DEVICE, copy=True)
    same(torch.from_dlpack(x.cpu()).to(DEVICE), c)
    assert np.array_equal(np.from_dlpack(x.cpu()), c.numpy())
    y = torch.from_dlpack(x)  # the same memory, as for every device
    same(y, c)
    y.add_(1)
    same(x, c + 1)
    same(torch.from_dlpack(x.t()), (c + 1).t())
    same(torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x[1])), c[1] + 1)
    kind, index = x.__dlpack_device__()
    assert index == 0 and int(kind) == (1 if KIND == "cpu" else 12)  # kDLCPU, kDLExtDev
    del x
    same(y, c + 1)


@device_only
def test_dlpack_is_refused_by_those_who_cannot_read_it():
    with pytest.raises((BufferError, RuntimeError, TypeError, ValueError)):
        np.from_dlpack(torch.ones(2, device="tpu"))
