"""torch.tpu.aot.compile: whole functions as programs for TPUs that are not here."""

import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F

aot = torch.tpu.aot
pytestmark = pytest.mark.usefixtures("libtpu")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.bn, self.b, self.drop = nn.Linear(64, 128), nn.BatchNorm1d(128), nn.Linear(128, 10), nn.Dropout(0.1)

    def forward(self, x):
        return self.b(self.drop(F.gelu(self.bn(self.a(x)))))


def meta(*shape, dtype=torch.float32):
    return torch.empty(*shape, dtype=dtype, device="meta")


def kinds(values):
    out = {}
    for v in values:
        out[v.kind] = out.get(v.kind, 0) + 1
    return out


def test_a_product():
    x, y = (meta(1024, 1024, dtype=torch.bfloat16) for _ in range(2))
    p = aot.compile(lambda a, b: torch.tanh(a @ b), (x, y), topology="v5e:2x2")
    m, c = p.memory(), p.cost()
    assert m.arguments == 2 * 1024 * 1024 * 2
    assert m.outputs == 1024 * 1024 * 2
    assert m.fits and m.limit == 16911433728
    assert c.flops == 2 * 1024**3
    assert c.flops_by_dtype == {"bfloat16": 2 * 1024**3}
    assert c.transcendentals == 1024 * 1024
    assert c.floor == pytest.approx(2 * 1024**3 / 197e12)
    assert c.floor <= c.seconds < 4 * c.floor
    assert p.mfu() == pytest.approx(c.floor / c.seconds)
    assert p.result.shape == (1024, 1024)
    top = p.bottlenecks()[0]
    assert "mm" in top.op or "tanh" in top.op
    assert re.fullmatch(r".*test_compile\.py:\d+", top.where)
    assert top.source == "compiler"
    assert "fusion" in p.hlo()
    assert len(p.executable()) > 10000
    q = aot.load(p.serialize())  # tells the same, and says why it cannot run here
    assert (q.memory(), q.cost(), q.mfu(), q.hlo(), q.bottlenecks()) == (m, c, p.mfu(), p.hlo(), p.bottlenecks())
    if torch.tpu.plugin_info()["platform"] != "tpu":
        with pytest.raises(RuntimeError, match="was compiled for TPU v5 lite .* the platform has to be tpu, and is"):
            q(x, y)


@pytest.mark.parametrize("device", ["meta", "cpu", "tpu", "fake"])
def test_a_training_step(device):
    """Parameters of any kind; nothing is written to them, and the optimizer is as it was."""
    if device == "fake":
        from torch._subclasses.fake_tensor import FakeTensorMode

        with FakeTensorMode():
            net = Net()
    else:
        net = Net().to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    names = [n for n, _ in net.named_parameters()]
    before = [p.detach().clone() for p in net.parameters()]
    objects = list(map(id, net.parameters()))

    def step(x, y):
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    p = aot.compile(step, (meta(32, 64), meta(32, dtype=torch.long)), topology="v5e:2x2")
    assert kinds(p.parameters) == {"argument": 2, "parameter": 6, "buffer": 3, "optimizer": 12, "random": 1}
    assert kinds(p.outputs) == {"result": 1, "parameter": 6, "buffer": 3, "optimizer": 12}
    assert {v.name for v in p.parameters if v.kind == "parameter"} == set(names)
    assert p.memory().aliased > 0
    assert objects == list(map(id, net.parameters()))
    assert [q.device.type for q in net.parameters()] == [q.device.type for q in before]
    assert not optimizer.state
    assert all(q.grad is None for q in net.parameters())
    if device in ("cpu", "tpu"):
        assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
        x, y = torch.randn(32, 64, device=device), torch.randint(10, (32,), device=device)
        assert step(x, y).item() > 0  # still trains
        assert not torch.equal(before[0], next(net.parameters()))


def test_gradients_that_are_left_are_outputs():
    net = nn.Linear(8, 4, device="meta")
    p = aot.compile(lambda x: net(x).sum().backward(), (meta(2, 8),), topology="v5e:2x2")
    assert kinds(p.outputs) == {"gradient": 2}
    net.weight.grad, net.bias.grad = meta(4, 8), meta(4)  # and those that were there are inputs that are written
    p = aot.compile(lambda x: net(x).sum().backward(), (meta(2, 8),), topology="v5e:2x2")
    assert kinds(p.outputs) == {"gradient": 2}
    assert kinds(p.parameters)["gradient"] == 2


def test_an_optimizer_with_a_state_keeps_it():
    net = nn.Linear(8, 4)
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.randn(3, 8)).sum().backward()
    optimizer.step()
    state = {k: v.clone() for k, v in optimizer.state[net.weight].items()}

    def step(x):
        optimizer.zero_grad()
        net(x).sum().backward()
        optimizer.step()

    p = aot.compile(step, (torch.randn(3, 8),), topology="v5e:2x2")
    assert kinds(p.parameters)["optimizer"] == 4
    assert all(torch.equal(v, state[k]) for k, v in optimizer.state[net.weight].items())


def test_lines_of_the_backward_pass():
    """An operator of the backward pass has the line of the forward operator that it belongs to."""
    w = nn.Parameter(meta(256, 256))

    def f(x):
        y = x @ w
        z = torch.tanh(y)
        z.sum().backward()

    first = f.__code__.co_firstlineno
    p = aot.compile(f, (meta(64, 256),), topology="v5e:2x2", state=w)
    assert re.search(rf'"aten::tanh_backward"\(".*test_compile\.py":{first + 2}:0', p.stablehlo)
    assert re.search(rf'"aten::mm"\(".*test_compile\.py":{first + 1}:0', p.stablehlo)


def test_every_generation():
    x = meta(512, 512, dtype=torch.bfloat16)
    for name, devices in (("v5e:2x2", 4), ("v5p:2x2x1", 4), ("v6e:2x2", 4), ("tpu7x:2x2x1", 8)):
        p = aot.compile(lambda a: a @ a, (x,), topology=name)
        assert p.topology.device_count == devices
        assert p.cost().seconds >= p.cost().floor > 0


def test_eager_programs_hold_no_lines(tmp_path):
    """What a program's text holds is its cache key."""
    from tpu_testing import run_python

    run_python("import torch; print((torch.ones(3, device='tpu') * 2).sum().item())", TORCH_TPU_DUMP=str(tmp_path))
    texts = [f.read_text() for f in tmp_path.glob("*.mlir")]
    assert texts
    assert not any("loc(" in t for t in texts)


# ---- bad input -------------------------------------------------------------------------------------------------------


def test_unknown_topologies():
    for name in ("v9:2x2", "v5e", "nonsense", "v5e:3x3"):
        with pytest.raises(ValueError, match=r"unknown topology .*Known forms: v3:2x2, .*tpu7x:2x2x1"):
            aot.topology(name)
    with pytest.raises(TypeError, match="expected a name such as"):
        aot.topology(5)


def test_reads_are_refused():
    with pytest.raises(RuntimeError, match=r"cannot be one program: .*reads a value on the host \(at .*test_compile\.py:\d+\)"):
        aot.compile(lambda x: x.sum().item(), (meta(3),), topology="v5e:2x2")
    assert (torch.ones(3, device="tpu") + 1).tolist() == [2, 2, 2]


def test_nothing_to_compile():
    with pytest.raises(ValueError, match="nothing to compile"):
        aot.compile(lambda x: None, (meta(3),), topology="v5e:2x2")
    with pytest.raises(TypeError, match="expected a function or a module"):
        aot.compile(3, (meta(3),), topology="v5e:2x2")


def test_a_program_that_does_not_fit():
    x = meta(1 << 17, 1 << 17)  # 69 GB
    with pytest.raises(
        torch.OutOfMemoryError, match=r"does not fit into a device of v5e:2x2(.|\n)*argument 0 float32\[131072, 131072\]"
    ):
        aot.compile(lambda a: a.t() @ a, (x,), topology="v5e:2x2")


def test_an_error_of_the_function_is_its_own():
    net = nn.Linear(8, 4, device="meta")
    with pytest.raises(RuntimeError, match=r"mat1 and mat2 shapes cannot be multiplied"):
        aot.compile(net, (meta(2, 9),), topology="v5e:2x2")
    assert net.weight.device.type == "meta"
    aot.compile(net, (meta(2, 8),), topology="v5e:2x2")


def test_a_page_with_pictures(tmp_path):
    import html
    from xml.etree import ElementTree

    x, y = (meta(1024, 1024, dtype=torch.bfloat16) for _ in range(2))
    p = aot.compile(lambda a, b: torch.tanh(a @ b).sum(1), (x, y), topology="v5e:2x2")
    path = tmp_path / "page.html"
    p.report(path, "A product <of two>")
    text = path.read_text()
    assert "<title>A product &lt;of two&gt;</title>" in text and "http://" not in text.replace("http://www.w3.org", "")
    pictures = [ElementTree.fromstring(s) for s in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]
    assert len(pictures) == 5  # memory, what the time rests on, instructions, lines, bytes and time
    said = "\n".join(pictures[0].itertext())
    m, c = p.memory(), p.cost()
    assert f"argument: {2 * 1024 * 1024 * 2 / 1e6:,.1f} MB" in said and f"code: {m.code / 1e6:,.1f} MB" in said
    assert f"{c.seconds * 1e3:,.3f} ms estimated" in text and f"MFU {100 * p.mfu():.1f} %" in text
    said = "\n".join(pictures[2].itertext())
    for f in p.bottlenecks(3):
        assert html.unescape(f"{f.seconds * 1e6:,.1f} us") in said and f.op in said
