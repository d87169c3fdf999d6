"""AOTAutograd's cache: what one process traced and captured, another loads. A graph that means something else is never taken for it."""

import copy
import pathlib

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint
from tpu_testing import DEVICE, device_only, run_python

pytestmark = device_only


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    with torch._functorch.config.patch(strict_autograd_cache=False):
        yield tmp_path
    torch._dynamo.reset()


def again(fn, *args, **options):
    """Compiles and calls fn as a new process would; its result, and how many graphs were hit, missed and not kept."""
    torch._dynamo.reset()
    counters.clear()
    out = torch.compile(fn, backend="tpu", **options)(*args)
    count = counters["aot_autograd"]
    return out, tuple(count[f"autograd_cache_{what}"] for what in ("hit", "miss", "bypass"))


class Net(nn.Module):
    """Parameters, a buffer that is written, random numbers that are drawn and drawn again, a view as a result."""

    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 6)

    def forward(self, x):
        h = checkpoint(lambda t: nn.functional.dropout(self.up(t).relu(), 0.5), x, use_reentrant=False)
        y = self.down(self.norm(h))
        return y.square().mean(), y.t()


def train(net, x):
    """Two steps; everything that they leave behind."""
    torch.manual_seed(3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    out = []
    for _ in range(2):
        loss, view = net(x)
        loss.backward()
        optimizer.step()
        out += [loss, view, *(p.grad.clone() for p in net.parameters())]
        optimizer.zero_grad()
    return [t.detach().cpu() for t in (*out, *net.state_dict().values())]


def test_training():
    """What is loaded gives the values of what was captured: losses, gradients, buffers, views, random numbers."""
    torch.manual_seed(0)
    first, x = Net(), torch.randn(4, 6)
    results, seen = [], []
    for compiled in (False, True, True):
        net = copy.deepcopy(first).to(DEVICE)
        torch._dynamo.reset()
        counters.clear()
        results.append(train(torch.compile(net, backend="tpu") if compiled else net, x.to(DEVICE)))
        seen.append(counters["aot_autograd"]["autograd_cache_hit"])
    assert seen == [0, 0, 1]
    for eager, captured, loaded in zip(*results, strict=True):
        torch.testing.assert_close(captured, eager, rtol=1e-5, atol=1e-5)
        assert torch.equal(loaded, captured)


def test_inference():
    """Inputs that are written, results that are inputs, numbers and nothing among the results; and without AOTAutograd's wrapper."""

    def writes(x, y):
        x.add_(1)
        return x, y * x, None, 3, y

    def plain(x, y):
        return (x @ y).sin()

    with torch.no_grad():
        for fn in (writes, plain):
            for expected in ((0, 1, 0), (1, 0, 0)):
                x, y = torch.ones(3, 3, device=DEVICE), torch.full((3, 3), 2.0, device=DEVICE)
                out, seen = again(fn, x, y)
                assert seen == expected
                want = fn(torch.ones(3, 3), torch.full((3, 3), 2.0))
                torch.testing.assert_close(torch.utils._pytree.tree_map_only(torch.Tensor, torch.Tensor.cpu, out), want)
                if fn is writes:
                    assert out[0] is x and out[4] is y


SCRIPT = """
import torch
from torch._dynamo.utils import counters
net = torch.nn.Sequential(torch.nn.Linear(5, 5), torch.nn.GELU()).to("tpu")
with torch.no_grad():
    for p in net.parameters():
        p.fill_(0.25)
x = torch.ones(2, 5, device="tpu")
loss = torch.compile(lambda t: net(t).square().sum(), backend="tpu")(x)
loss.backward()
print(loss.item(), net[0].weight.grad.sum().item())
print(torch.tpu.compile_count(), counters["aot_autograd"]["autograd_cache_hit"], counters["aot_autograd"]["autograd_cache_miss"])
"""


def test_a_second_process(tmp_path):
    """It traces nothing and compiles nothing."""
    env = {"TORCH_TPU_CACHE_DIR": str(tmp_path / "programs"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "graphs")}
    first, second = (run_python(SCRIPT, **env).stdout.split("\n") for _ in range(2))
    assert first[0] == second[0]
    assert first[1].split()[1:] == ["0", "1"]
    assert second[1].split() == ["0", "1", "0"]


def test_executables_that_are_gone(tmp_path):
    """A graph whose program is no longer on disk is compiled, not traced."""
    graphs = str(tmp_path / "graphs")
    values = [
        run_python(SCRIPT, TORCH_TPU_CACHE_DIR=str(tmp_path / name), TORCHINDUCTOR_CACHE_DIR=graphs).stdout.split("\n")
        for name in ("one", "two")
    ]
    assert values[0][0] == values[1][0]
    compiled, hits, _ = map(int, values[1][1].split())
    assert compiled >= 2 and hits == 1


def test_what_the_key_says(monkeypatch):
    """Another option, mode, precision, default dtype, flag, device or version: another key. The same again: the same."""
    x = torch.ones(4, 4, device=DEVICE)

    def f(x):
        return x @ x + torch.zeros(4, device=x.device)

    with torch.no_grad():
        assert again(f, x)[1] == (0, 1, 0)
        assert again(f, x)[1] == (1, 0, 0)
        assert again(f, x, options={"partitioner": "default"})[1] == (0, 1, 0)
        assert again(f, x, options={"xla": {"xla_cpu_enable_fast_min_max": True}})[1] == (0, 1, 0)
        with torch.tpu.precision("default"):
            assert again(f, x)[1] == (0, 1, 0)
        with torch.tpu.set_eager_mode(torch.tpu.EagerMode.DEBUG):
            assert again(f, x)[1] == (0, 1, 0)
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            assert again(f, x)[1] == (0, 1, 0)
        with monkeypatch.context() as m:
            m.setenv("TORCH_TPU_FALLBACK", "silent")
            assert again(f, x)[1] == (0, 1, 0)
        for what in ("_version", "_target"):
            with monkeypatch.context() as m:
                m.setattr(f"torch_tpu._aot_cache.{what}", lambda: "another")
                assert again(f, x)[1] == (0, 1, 0)
        torch.set_default_dtype(torch.float64)
        try:
            assert again(f, x)[0].dtype == torch.float64  # zeros of another dtype
        finally:
            torch.set_default_dtype(torch.float32)
        assert again(f, x)[0].dtype == torch.float32
        assert again(f, x)[1] == (1, 0, 0)
        assert again(f, x.double())[1] == (0, 1, 0)
        assert again(f, x.repeat(2, 1).t()[:, :4])[1] == (0, 1, 0)  # other strides


def test_what_is_not_kept():
    """Operators of one's own may have other code the next time; inputs that share memory need guards; so these are traced anew."""
    with torch.library._scoped_library("torch_tpu_aot_cache", "DEF") as lib:
        lib.define("twice(Tensor x) -> Tensor")
        factor = [2]
        lib.impl("twice", lambda x: x * factor[0], "CompositeImplicitAutograd")
        x = torch.ones(3, device=DEVICE)
        for n in (2, 3):
            factor[0] = n
            out, seen = again(lambda t: torch.ops.torch_tpu_aot_cache.twice(t), x)
            assert seen == (0, 0, 1) and out.tolist() == [float(n)] * 3
    base = torch.zeros(4, device=DEVICE)

    def shares(a, b):
        a.add_(1)
        return b * 2

    for expected in ([2.0, 2.0], [4.0, 4.0]):
        out, seen = again(shares, base[:2], base[:2].view(2))
        assert seen[0] == 0 and out.tolist() == expected
    _, seen = again(shares, torch.zeros(2, device=DEVICE), torch.zeros(2, device=DEVICE))
    assert seen == (0, 1, 0)


def test_sparse():
    """A gradient that is sparse has no storage to look at; what takes a sparse tensor is left to PyTorch."""

    def f(x, i):
        return torch.gather(x, 0, i, sparse_grad=True).square().sum()

    grads = []
    for device in ("cpu", DEVICE):
        x, i = torch.arange(4.0).to(device).requires_grad_(), torch.tensor([3, 1, 3], device=device)
        torch._dynamo.reset()
        (f if device == "cpu" else torch.compile(f, backend="tpu"))(x, i).backward()
        grads.append(x.grad.to_dense().cpu())
    assert torch.equal(*grads)


def test_equal_operators_are_shared():
    """One of equal operators is enough, unless it draws, or its result leaves as a tensor of its own."""

    def f(x):
        a, b = x.sin(), x.sin()
        return a * b, torch.rand_like(x) - torch.rand_like(x), x.cos(), x.cos()

    x = torch.arange(3.0, device=DEVICE).requires_grad_()
    product, drawn, one, other = torch.compile(f, backend="tpu")(x)
    torch.testing.assert_close(product, x.sin().square())
    assert (drawn != 0).all()
    assert torch.equal(one, other) and one.untyped_storage()._cdata != other.untyped_storage()._cdata
    product.sum().backward()
    torch.testing.assert_close(x.grad, (2 * x).sin().detach())


def test_switched_off(folder):
    """PyTorch's own switch."""
    with torch._functorch.config.patch(enable_autograd_cache=False):
        for _ in range(2):
            assert again(lambda x: x + 1, torch.ones(2, device=DEVICE))[1] == (0, 0, 0)
    assert not list(folder.rglob("aotautograd/*"))


def test_a_damaged_file(folder):
    """It is traced anew, and the value is right."""
    x = torch.ones(3, device=DEVICE)

    def f(x):
        return x.exp() + 1

    want = again(f, x)[0]
    files = [p for p in (folder / "aotautograd").rglob("*") if p.is_file()]
    assert len(files) == 1
    for data in (b"", files[0].read_bytes()[:-40], b"nonsense"):
        for p in pathlib.Path(folder / "aotautograd").rglob("*"):
            if p.is_file():
                p.write_bytes(data)
        out, seen = again(f, x)
        assert seen == (0, 1, 0) and torch.equal(out, want)


def test_bytes_of_a_graph():
    """Whatever is cut off or changed in them is an error or a graph, never a crash."""
    ops = torch.ops.torch_tpu
    ops.capture_begin(torch.device(DEVICE))
    x = ops.capture_input([2, 3], [3, 1], torch.float32)
    handle = ops.capture_end([x + 1, x.t()], "graph", "a graph", True)
    kept = ops.graph_store(handle)
    ops.release_graph(handle)
    handle = ops.graph_stored(kept, "graph")
    ops.graph_compile(handle)
    out = ops.run_graph(handle, [torch.ones(2, 3, device=DEVICE)])
    assert out[0].tolist() == [[2.0] * 3] * 2 and out[1].shape == (3, 2)
    with pytest.raises(RuntimeError, match="not compiled yet"):
        ops.graph_store(handle)
    ops.release_graph(handle)
    for n in range(0, len(kept), 7):
        with pytest.raises(ValueError, match="no graph that this version kept"):
            ops.graph_stored(kept[:n].clone(), "graph")
    for i in range(0, 400, 3):
        changed = kept.clone()
        changed[i] ^= 0xFF
        try:
            ops.release_graph(ops.graph_stored(changed, "graph"))
        except (ValueError, RuntimeError) as error:
            assert "kept" in str(error)
