"""What torch.tpu.aot says where libtpu is missing, too old or too new; and that it costs nothing when it is not used."""

import pytest
from tpu_testing import device_only, run_python

pytestmark = device_only


def say(code, **env):
    return run_python(f"import torch\ntry:\n    {code}\nexcept Exception as e:\n    print(type(e).__name__, e)", **env).stdout


def test_importing_torch_loads_neither():
    out = run_python(
        "import sys, torch; torch.ones(1, device='tpu'); print('torch_tpu.aot' in sys.modules, 'libtpu.so' in open('/proc/self/maps').read())"
    )
    assert "False False" in out.stdout


def test_no_libtpu(tmp_path):
    out = say("torch.tpu.aot.topology('v5e:2x2')", TORCH_TPU_AOT_LIBRARY=str(tmp_path / "libtpu.so"))
    assert "RuntimeError" in out
    assert "pip install libtpu==0.0.52" in out
    code = "import importlib.util as u; find = u.find_spec; u.find_spec = lambda n, *a: None if n == 'libtpu' else find(n, *a); "
    out = say(code + "torch.tpu.aot.topology('v5e:2x2')")
    assert "no libtpu was found" in out
    assert "pip install libtpu==0.0.52" in out


def test_a_file_that_is_no_plugin(tmp_path):
    (tmp_path / "libtpu.so").write_text("no library")
    out = say("torch.tpu.aot.topology('v5e:2x2')", TORCH_TPU_AOT_LIBRARY=str(tmp_path / "libtpu.so"))
    assert "is not a shared library" in out
    assert "pip install libtpu" in out


@pytest.mark.parametrize("slot", [82, 86])
def test_one_that_is_too_old(fake_plugin, slot):
    """A plugin that lacks a function for topologies."""
    out = say("torch.tpu.aot.topology('fake:2x2')", TORCH_TPU_AOT_LIBRARY=fake_plugin, FAKE_PJRT_TABLE=f"missing:{slot}")
    assert "RuntimeError" in out
    assert "too old" in out


def test_another_abi(fake_plugin):
    out = say("torch.tpu.aot.topology('fake:2x2')", TORCH_TPU_AOT_LIBRARY=fake_plugin, FAKE_PJRT_TABLE="major")
    assert "ABI version 7.1, expected 0.106 to 0.117" in out


def test_unknown_topology(fake_plugin):
    out = say("torch.tpu.aot.topology('v5e:2x2')", TORCH_TPU_AOT_LIBRARY=fake_plugin)
    assert "ValueError" in out
    assert "Known forms: v3:2x2" in out


def test_compiling_beside_the_plugin_in_use(fake_plugin):
    """A second plugin in one process; the first goes on."""
    out = say(
        "p = torch.tpu.aot.compile(lambda x: x + 1, (torch.empty(4, 3, device='meta'),), topology='fake:2x2'); "
        "print(p.memory().arguments, p.topology.kind, (torch.ones(2, device='tpu') + 1).tolist())",
        TORCH_TPU_AOT_LIBRARY=fake_plugin,
    )
    assert "48 fake chip [2.0, 2.0]" in out


def test_a_program_with_an_operator_of_the_host(fake_plugin):
    out = say(
        "torch.tpu.aot.compile(lambda x: torch.from_numpy(x.cpu().numpy()), (torch.empty(3),), topology='fake:2x2')",
        TORCH_TPU_AOT_LIBRARY=fake_plugin,
    )
    assert "cannot be one program" in out


def test_a_script_is_watched(fake_plugin, tmp_path):
    """TORCH_TPU_TOPOLOGY with a topology of the fake plugin: the report, and what it counts."""
    script, report = tmp_path / "script.py", tmp_path / "report.txt"
    script.write_text("import torch\nx = torch.ones(2, device='tpu')\nfor _ in range(3):\n    print((x + 1).sum().item())\n")
    done = run_python(
        f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')",
        TORCH_TPU_AOT_LIBRARY=fake_plugin,
        TORCH_TPU_TOPOLOGY="fake:2x2",
        TORCH_TPU_AOT_REPORT=str(report),
    )
    assert done.stdout.split() == ["4.0"] * 3
    text = report.read_text()
    assert "the script on fake:2x2 (fake chip), which is not here" in text
    assert "host reads       3 " in text
    assert f"3  {script}:4" in text
    assert "refused" not in text


def test_a_dry_script_executes_nothing(fake_plugin, tmp_path):
    """Tensors that no machine here could hold; what is read is zeros, and the report says so."""
    report = tmp_path / "report.txt"
    done = run_python(
        "import torch\n"
        "x = torch.ones(300_000, 1_000_000, device='tpu')\n"
        "y = (x @ x.t()).sum()\n"
        "print(y.item(), torch.nonzero(x).shape, torch.tpu.memory_allocated() > 10**12)\n",
        TORCH_TPU_AOT_LIBRARY=fake_plugin,
        TORCH_TPU_TOPOLOGY="fake:2x2",
        TORCH_TPU_AOT_DRY="1",
        TORCH_TPU_AOT_REPORT=str(report),
    )
    assert done.stdout.split() == ["0.0", "torch.Size([0,", "2])", "True"]
    text = report.read_text()
    assert "nothing was executed" in text and "they gave zeros" in text


def test_a_dry_script_needs_a_topology():
    done = run_python("import torch; torch.ones(2, device='tpu')", TORCH_TPU_AOT_DRY="1", check=False)
    assert "TORCH_TPU_TOPOLOGY, which is not set" in done.stderr and done.returncode
