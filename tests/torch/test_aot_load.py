"""torch.tpu.aot.load: compiled programs as files. For the plugin in use they run; for others they tell what they know."""

import hashlib
import io
import json
import os
import shutil
import zipfile

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from tpu_testing import device_only, run_python

pytestmark = device_only
aot = torch.tpu.aot


def trained():
    """A step with random numbers, an optimizer, a keyword, a number, and an argument that is returned as a view."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16, bias=False), nn.BatchNorm1d(16), nn.GELU(), nn.Dropout(0.2), nn.Linear(16, 4)).to("tpu")
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, capturable=True)

    def step(x, y, *, scale):
        loss = F.cross_entropy(net(x), y) * scale
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss, "number": 3, "turned": x.t()}

    return net, optimizer, step


def state_of(net, optimizer):
    out = dict(net.state_dict())
    for name, p in net.named_parameters():
        for k in ("step", "exp_avg", "exp_avg_sq"):
            empty = torch.tensor(0.0) if k == "step" else torch.zeros_like(p)
            out[f"{name} {k}"] = optimizer.state[p].get(k, empty)
    return out


@pytest.mark.parametrize("how", ["file", "bytes", "not saved"])
def test_a_training_step_runs(how, tmp_path):
    """The values of eager mode, step by step; the plugin compiles nothing for it."""
    net, optimizer, step = trained()
    x, y = torch.randn(5, 8, device="tpu"), torch.randint(4, (5,), device="tpu")
    p = aot.compile(step, (x, y), kwargs={"scale": 2.0}, topology="here")
    if how == "file":
        p.save(tmp_path / "step")
        assert os.stat(tmp_path / "step").st_mode & 0o777 == 0o600
        p = aot.load(tmp_path / "step")
    elif how == "bytes":
        p = aot.load(p.serialize())
    p.load_state(state_of(net, optimizer))
    for i in range(3):
        torch.tpu.manual_seed(i)
        before = torch.tpu.compile_count()
        got = p(x, y, scale=2.0)
        assert torch.tpu.compile_count() == before
        torch.tpu.manual_seed(i)
        want = step(x, y, scale=2.0)
        torch.testing.assert_close(got, want)
        assert got["number"] == 3 and got["turned"].data_ptr() == x.data_ptr()
    for name, t in state_of(net, optimizer).items():
        torch.testing.assert_close(p.state[name], t, rtol=1e-4, atol=1e-5, check_device=False)


def test_what_a_loaded_program_tells():
    net, _, step = trained()
    x, y = torch.randn(5, 8, device="tpu"), torch.randint(4, (5,), device="tpu")
    p = aot.compile(step, (x, y), kwargs={"scale": 2.0}, topology="here")
    q = aot.load(p.serialize())
    assert q.name == p.name and q.topology.kind == p.topology.kind
    assert q.parameters == p.parameters and q.outputs == p.outputs and q.result == p.result
    assert q.memory() == p.memory() and q.hlo() == p.hlo() and q.stablehlo == p.stablehlo and q.executable() == p.executable()
    assert "1.weight" in [v.name for v in q.parameters]
    with pytest.raises(NotImplementedError):  # a CPU has no published figures
        q.cost()
    assert aot.load(q.serialize()).hlo() == p.hlo()
    again = aot.compile(lambda a: a + 1, (x,), topology=q.topology)  # a topology of a file is found by its name
    assert torch.equal(again(x), x + 1)


def test_views_layouts_gradients_and_what_is_not_read():
    """Results that share a storage; inputs in another order of memory; gradients that stay; an argument that is not read."""
    w = nn.Parameter(torch.randn(4, 3, device="tpu"))

    def f(x, unused, twice):
        y = x * 2
        (y.sum((2, 3)) @ w).square().sum().backward()
        return y, (y[:, 1:], [y.transpose(1, 3), twice, unused]), twice + twice

    def case():
        x = torch.randn(2, 4, 3, 5, device="tpu").contiguous(memory_format=torch.channels_last)
        return x, torch.ones(0, 3, device="tpu"), torch.randn(7, device="tpu")[::2]

    a = case()
    p = aot.compile(f, a, topology="here")
    assert [v.name for v in p.outputs if v.kind == "result"] == ["result 0", "result 5"]
    q = aot.load(p.serialize(), state={"w": w, "of no use": a[0]})
    for args in (case(), a, [t.contiguous() for t in case()]):
        w.grad = None
        want = f(*args)
        got = q(*args)
        torch.testing.assert_close(got, want)
        assert got[1][0].untyped_storage().data_ptr() == got[0].untyped_storage().data_ptr()
        torch.testing.assert_close(q.state["w grad"], w.grad)


def test_outputs_are_named_when_results_are_inputs():
    """The program has one output, the second result; the first is an input and the third a view of the second."""
    p = aot.compile(lambda x: (x, x + 1, (x + 1)[0]), (torch.ones(2),), topology="here")
    assert [v.name for v in p.outputs][0] == "result 1"


def test_a_text():
    text = aot.compile(lambda a, b: (a @ b, b * 2), (torch.ones(2, 3), torch.ones(3, 4)), topology="here").stablehlo
    q = aot.load(aot.compile_text(text, "here").serialize())
    a, b = torch.randn(2, 3, device="tpu"), torch.randn(4, 3, device="tpu").t()
    torch.testing.assert_close(q(a, b), [a @ b, b * 2])
    with pytest.raises(TypeError, match="expected 2 tensors, got 1"):
        q(a)


def test_bad_calls():
    net, optimizer, step = trained()
    x, y = torch.randn(5, 8, device="tpu"), torch.randint(4, (5,), device="tpu")
    p = aot.load(aot.compile(step, (x, y), kwargs={"scale": 2.0}, topology="here").serialize())
    with pytest.raises(ValueError, match=r"step: it has no value of .*0.weight.* and others; give them: program.load_state"):
        p(x, y, scale=2.0)
    p.load_state(state_of(net, optimizer))
    with pytest.raises(TypeError, match="expected arguments nested as in the example"):
        p(x, y)
    with pytest.raises(ValueError, match="made for the value 2.0, which is part of the program, got 3.0"):
        p(x, y, scale=3.0)
    with pytest.raises(
        ValueError, match=r"argument 0: expected a torch.float32 tensor of the sizes \[5, 8\], got torch.float32 and \[6, 8\]"
    ):
        p(torch.ones(6, 8, device="tpu"), y, scale=2.0)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device, .*cpu"):
        p(x.cpu(), y, scale=2.0)
    with pytest.raises(ValueError, match=r"0.weight: expected a torch.float32 tensor of the sizes \[16, 8\], got torch.float64"):
        p.load_state({"0.weight": torch.ones(16, 8, dtype=torch.float64)})
    p.state["4.bias"] = torch.ones(5, device="tpu")
    with pytest.raises(ValueError, match=r"4.bias: expected .*\[4\], got torch.float32 and \[5\]"):
        p(x, y, scale=2.0)
    with pytest.raises(ValueError, match="expected a tpu device, got cpu"):
        aot.load(p.serialize(), device="cpu", state={})

    constant = torch.ones(8, device="tpu")
    held = [constant]
    q = aot.compile(lambda a: a + held[0].clone(), (x,), topology="here", state=held)
    torch.testing.assert_close(aot.load(q.serialize(), state={"state.0": constant})(x), x + 1)
    q = aot.compile(lambda a, m: m(a), (x, nn.Tanh()), topology="here")
    with pytest.raises(ValueError, match="a Tanh that the function takes or returns cannot be kept in a file"):
        q.serialize()


def parts_of(data):
    with zipfile.ZipFile(io.BytesIO(data)) as z:
        return {n: z.read(n) for n in z.namelist()}


def file_of(parts):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as z:
        for n, data in parts.items():
            z.writestr(n, data)
    return out.getvalue()


@pytest.fixture(scope="module")
def saved():
    return aot.compile(lambda x: x * 2 + 1, (torch.ones(2, 3),), topology="here").serialize()


def test_cut_off_files(saved, tmp_path):
    path = tmp_path / "made"
    for n in (0, 3, 40, len(saved) // 2, len(saved) - 1):
        path.write_bytes(saved[:n])
        path.chmod(0o600)
        with pytest.raises(ValueError, match=r"torch.tpu.aot.load: .*made is (damaged or cut off|no file of a compiled program)"):
            aot.load(path)
    with pytest.raises(FileNotFoundError):
        aot.load(tmp_path / "none")


def test_flipped_bits(saved):
    """Each is an error, or nothing that matters (a date): what is loaded is what was saved."""
    want = parts_of(saved)
    refused = 0
    for at in range(0, len(saved), 13):
        bad = bytearray(saved)
        bad[at] ^= 1 << at % 8
        try:
            p = aot.load(bytes(bad))
        except ValueError as error:
            assert "torch.tpu.aot.load" in str(error)
            refused += 1
        else:
            assert p.executable() == want["executable"] and p.stablehlo.encode() == want["program.mlir"]
    assert refused > len(saved) / 13 * 0.9


def test_headers_that_are_not_right(saved):
    def changed(edit, **others):
        parts = parts_of(saved) | others
        head = json.loads(parts["torch_tpu_aot.json"])
        edit(head)
        parts["torch_tpu_aot.json"] = json.dumps(head).encode()
        return aot.load(file_of(parts))

    assert changed(lambda h: None).memory()
    with pytest.raises(ValueError, match="has the format 2; this version of torch_tpu reads the formats up to 1"):
        changed(lambda h: h.update(format=2))
    with pytest.raises(ValueError, match="its part executable has not the checksum that its header says"):
        changed(lambda h: None, executable=b"other code")
    with pytest.raises(ValueError, match="the header of .* is damaged: KeyError"):
        changed(lambda h: h["form"].pop("places"))
    with pytest.raises(ValueError, match="the header of .* is damaged: "):
        changed(lambda h: h["topology"].pop("kind"))
    with pytest.raises(ValueError, match="unknown kind 'parameter' or dtype 'float33'"):
        changed(lambda h: h["values"][0].update(kind="parameter", dtype="float33"))
    x = torch.ones(2, 3, device="tpu")
    with pytest.raises(ValueError, match="does not lie in its storage of 24 bytes"):
        changed(lambda h: h["form"]["results"][0][1].update(offset=1))(x)
    with pytest.raises(ValueError, match="is a view of nothing"):
        changed(lambda h: h["form"].update(of=[3]))(x)
    with pytest.raises(ValueError, match="input 0 of a given program is not dense"):
        changed(lambda h: h["form"]["inputs"][0][1].update(strides=[4, 1]))(x)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as z:
        z.writestr("a", "b")
    with pytest.raises(ValueError, match="is a zip file, but not one that torch.tpu.aot.Program.save wrote"):
        aot.load(out.getvalue())


def test_whom_a_file_belongs_to(saved, tmp_path, monkeypatch):
    """An executable is code: the rules of the cache."""
    path = tmp_path / "made"
    path.write_bytes(saved)
    path.chmod(0o600)
    assert aot.load(path).memory()
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(RuntimeError, match="link: it is a symbolic link"):
        aot.load(tmp_path / "link")
    with pytest.raises(RuntimeError, match="it is no plain file"):
        aot.load(tmp_path)
    path.chmod(0o620)
    with pytest.raises(
        RuntimeError, match=r"somebody else can write it \(mode 0620\), and an executable is code.*TORCH_TPU_CACHE_TRUST=1"
    ):
        aot.load(path)
    path.chmod(0o600)
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
        with pytest.raises(RuntimeError, match=r"somebody else owns it \(user 12345; you are 0\)"):
            aot.load(path)
    code = f"import torch; print(torch.tpu.aot.load({str(tmp_path / 'link')!r})(torch.ones(2, 3, device='tpu'))[0, 0].item())"
    path.chmod(0o622)
    assert run_python(code, TORCH_TPU_CACHE_TRUST="1").stdout.split() == ["3.0"]


# ---- other plugins -----------------------------------------------------------------------------------------------------

MAKE = (
    "import torch\n"
    "p = torch.tpu.aot.compile(lambda x: (x + 1, x), (torch.empty(4, 3, device='meta'),), topology='fake:2x2', name='added')\n"
    "p.save({path!r})\n"
)
RUN = (
    "import torch\n"
    "p = torch.tpu.aot.load({path!r})\n"
    "print(p.memory().arguments, p.topology.name, p.topology.places()[11])\n"
    "try:\n"
    "    a, b = p({x})\n"
    "    print('ran', tuple(a.shape), a.sum().item(), torch.tpu.compile_count())\n"
    "except Exception as e:\n"
    "    print(type(e).__name__, e)\n"
)


@pytest.fixture(scope="module")
def for_a_fake_tpu(fake_plugin, tmp_path_factory):
    path = str(tmp_path_factory.mktemp("made") / "added")
    run_python(MAKE.format(path=path), TORCH_TPU_AOT_LIBRARY=fake_plugin, FAKE_PJRT_PLATFORM="tpu")
    return path


def run(path, x="torch.ones(4, 3, device='tpu')", **env):
    first, _, rest = run_python(RUN.format(path=path, x=x), **env).stdout.partition("\n")
    assert first == "48 fake:2x2 (1, 0, 0)"  # the report needs no device
    return rest


def test_it_runs_where_such_devices_are(fake_plugin, for_a_fake_tpu):
    """Compiled beside another plugin for a topology; run by a process that has its devices. The fake gives zeros."""
    env = {
        "TORCH_TPU_PJRT_PLUGIN": fake_plugin,
        "FAKE_PJRT_PLATFORM": "tpu",
        "FAKE_PJRT_KIND": "fake chip",
        "TORCH_TPU_CACHE_SIZE": "0",
    }
    out = run(for_a_fake_tpu, **env)
    assert out.startswith("ran (4, 3) 0.0 ")


def test_what_the_plugin_does_not_load(fake_plugin, for_a_fake_tpu, tmp_path):
    """Whole, for these devices, and still refused: the plugin's own error."""
    parts = parts_of(open(for_a_fake_tpu, "rb").read())
    head = json.loads(parts["torch_tpu_aot.json"])
    parts["executable"] = b"nonsense"
    head["sha256"]["executable"] = hashlib.sha256(b"nonsense").hexdigest()
    parts["torch_tpu_aot.json"] = json.dumps(head).encode()
    path = tmp_path / "made"
    path.write_bytes(file_of(parts))
    path.chmod(0o600)
    env = {"TORCH_TPU_PJRT_PLUGIN": fake_plugin, "FAKE_PJRT_PLATFORM": "tpu", "FAKE_PJRT_KIND": "fake chip"}
    assert "these bytes are no serialized executable" in run(str(path), **env)


def test_other_devices(fake_plugin, for_a_fake_tpu):
    out = run(for_a_fake_tpu, TORCH_TPU_PJRT_PLUGIN=fake_plugin, FAKE_PJRT_PLATFORM="tpu", FAKE_PJRT_KIND="fake chip 2")
    assert "RuntimeError torch.tpu.aot: added was compiled for fake chip (tpu) by fake 1, and cannot run in this process" in out
    assert "the device has to be fake chip, and is fake chip 2." in out


def test_another_platform(for_a_fake_tpu):
    out = run(for_a_fake_tpu)
    assert "cannot run in this process" in out and "the platform has to be tpu, and is cpu. Load it where that is so" in out


def test_another_version_of_the_plugin(fake_plugin, for_a_fake_tpu, tmp_path):
    other = tmp_path / "libfake_pjrt.so"
    shutil.copy(fake_plugin, other)
    with open(other, "ab") as f:
        f.write(b"a newer one")
    out = run(for_a_fake_tpu, TORCH_TPU_PJRT_PLUGIN=str(other), FAKE_PJRT_PLATFORM="tpu", FAKE_PJRT_KIND="fake chip")
    assert "the contents of the plugin's library, as a hash, has to be " in out


def test_no_plugin(for_a_fake_tpu, tmp_path):
    out = run(for_a_fake_tpu, "torch.ones(4, 3)", TORCH_TPU_PJRT_PLUGIN=str(tmp_path / "none.so"))
    assert "added was compiled for fake chip (tpu) by fake 1, and no such device is here: " in out


def test_here_has_no_mesh():
    with pytest.raises(NotImplementedError, match="compiled for a topology that is named"):
        aot.compile(lambda x: x + 1, (torch.ones(2, 3),), topology="here", mesh={"data": torch.tpu.device_count()})


def test_a_program_of_many_devices_tells_but_does_not_run(fake_plugin, tmp_path):
    code = (
        "import torch\n"
        "from torch.distributed.tensor import Shard\n"
        "p = torch.tpu.aot.compile(lambda x: x + 1, (torch.empty(4, 3, device='meta'),), topology='fake:2x2', mesh={'data': 4},\n"
        "                          placements={'argument *': {'data': Shard(0)}})\n"
        f"p.save({str(tmp_path / 'made')!r})\n"
        f"q = torch.tpu.aot.load({str(tmp_path / 'made')!r})\n"
        "print(q.devices == p.devices, str(q.mesh), q.memory() == p.memory(), q.parameters[0].place)\n"
        "try:\n"
        "    q(torch.ones(4, 3, device='tpu'))\n"
        "except NotImplementedError as e:\n"
        "    print(e)\n"
    )
    out = run_python(code, TORCH_TPU_AOT_LIBRARY=fake_plugin).stdout
    assert out.startswith("True {data: 4} True (0,)\n") and "is one program for 4 devices" in out
