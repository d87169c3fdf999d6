"""Seam: the import. `import torch` brings the device; nothing changes for others; a wrong torch is refused."""

import sys

import pytest
import torch
from tpu_testing import device_only, run_python

pytestmark = device_only


def test_import_torch_is_enough():
    out = run_python(
        "import torch; x = torch.randn(3, device='tpu'); print(x.device, x.is_tpu, torch.utils._pallas.has_torch_tpu() if hasattr(torch.utils, '_pallas') else hasattr(torch, 'tpu'))"
    )
    assert out.stdout.strip() == "tpu:0 True True" and out.stderr == ""


def test_importing_the_package_first_is_the_same():
    for code in (
        "import torch_tpu, torch",
        "import torch, torch_tpu",
        "from torch_tpu import _loader; _loader.load(); _loader.load(); import torch",
        "import torch; import importlib, torch_tpu; importlib.reload(torch_tpu)",
    ):
        assert run_python(
            code + "; print((torch.ones(2, device='tpu') + 1).tolist(), torch_tpu.__version__ if 'torch_tpu' in dir() else '')"
        ).stdout.startswith("[2.0, 2.0]")


def test_autoload_can_be_switched_off():
    out = run_python(
        """
        import sys, torch
        print("torch_tpu" in sys.modules, hasattr(torch, "tpu"), hasattr(torch.Tensor, "tpu"), torch._C._get_privateuse1_backend_name())
        try: torch.device("tpu")
        except RuntimeError: print("unknown")
        """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert out.stdout.split("\n")[:2] == ["False False False privateuseone", "unknown"]
    out = run_python(
        "import torch, torch_tpu; print((torch.ones(2, device='tpu') + 1).tolist())", TORCH_DEVICE_BACKEND_AUTOLOAD="0"
    )
    assert out.stdout.strip() == "[2.0, 2.0]"


FOR_OTHERS = """
import torch, warnings, json
warnings.simplefilter("ignore")
torch.manual_seed(0)
m = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten(), torch.nn.LSTM(18, 3))
y = m[2](m[1](m[0](torch.randn(2, 1, 5, 5))))[0]
y.sum().backward()
errors = []
for f in (lambda: torch.ones(2) + torch.ones(3), lambda: torch.ones(2, device="cuda"), lambda: torch.ones(2).cuda(), lambda: torch.zeros(1, device="nope"),
          lambda: torch.ones(2).view(3), lambda: torch.empty(1 << 60), lambda: torch.ones(3)[5], lambda: torch.compile(lambda x: x, backend="nope")(torch.ones(1))):
    try: f()
    except Exception as e: errors.append([type(e).__name__, str(e).split("\\n")[0][:60]])
    else: errors.append("none")
with torch.autocast("cpu", dtype=torch.bfloat16): d = str((torch.ones(2, 2) @ torch.ones(2, 2)).dtype)
print(json.dumps([y.tolist(), m[0].weight.grad.sum().item(), torch.rand(3).tolist(), torch.randperm(5).tolist(), d, errors, torch.get_default_dtype() == torch.float32,
    str(torch.get_default_device()), torch.ones(1).device.type, torch.cuda.is_available(), torch.get_float32_matmul_precision(), torch.is_grad_enabled(), torch.get_num_threads()]))
"""


def test_nothing_changes_for_cpu_users():
    with_it = run_python(FOR_OTHERS).stdout
    without = run_python(FOR_OTHERS, TORCH_DEVICE_BACKEND_AUTOLOAD="0").stdout
    assert with_it.split() and with_it == without


def test_import_loads_no_plugin_and_starts_no_thread():
    threads = "import os, torch; print(len(os.listdir('/proc/self/task')))\n"
    ask = """
print("pjrt" in open("/proc/self/maps").read().lower(), torch.tpu.is_initialized(), torch.tpu.is_available(), torch.tpu.device_count())
print("pjrt" in open("/proc/self/maps").read().lower(), torch.tpu.is_initialized(), len(os.listdir("/proc/self/task")))
"""
    before = run_python(threads, TORCH_DEVICE_BACKEND_AUTOLOAD="0").stdout.strip()
    assert run_python(threads + ask).stdout.splitlines() == [before, "False False True 1", f"False False {before}"]


OTHER_BUILD = """
import importlib.abc, importlib.util, sys
class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        return importlib.util.spec_from_loader(name, self) if name == "torch_tpu._build" else None
    def exec_module(self, module): module.TORCH_VERSION = "%s"
sys.meta_path.insert(0, Finder())
"""


def test_another_minor_version_of_torch_is_refused():
    code = (
        OTHER_BUILD % "2.99.0"
        + """
import torch
print(torch.ones(2).sum().item(), hasattr(torch, "tpu"))
try: import torch_tpu
except ImportError as e: print(e)
"""
    )
    first, error = run_python(code).stdout.strip().splitlines()
    assert first == "2.0 False"
    assert "2.99" in error and torch.__version__.split("+")[0] in error and "built for" in error, error
    warned = run_python(code).stderr
    assert "2.99" in warned and "torch_tpu" in warned


def test_another_patch_version_is_fine():
    minor = ".".join(torch.__version__.split(".")[:2])
    code = OTHER_BUILD % (minor + ".77") + "import torch; print((torch.ones(2, device='tpu') + 1).tolist())"
    assert run_python(code).stdout.strip() == "[2.0, 2.0]"


def test_another_backend_that_has_the_name_first():
    code = """
    import torch, warnings
    torch.utils.rename_privateuse1_backend("mine")
    try: import torch_tpu
    except ImportError as e: print("mine" in str(e))
    print(torch.ones(2).sum().item())
    """
    assert run_python(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0").stdout.split() == ["True", "2.0"]


def test_a_failed_load_does_not_break_import_torch():
    code = """
    import sys, types
    sys.modules["torch_tpu._core"] = None
    import warnings
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        import torch
    print(torch.ones(2).sum().item(), any("torch_tpu" in str(w.message) for w in seen))
    """
    assert run_python(code).stdout.strip() == "2.0 True"


def test_cold_start_is_printed(capsys):
    code = """
    import time, os
    def rss(): return int(open("/proc/self/statm").read().split()[1]) * 4 // 1024
    import torch
    r, t = rss(), time.perf_counter()
    x = torch.ones(8, 8, device="tpu"); x[0, 0].item()
    a = time.perf_counter() - t
    (x @ x)[0, 0].item()
    print(f"{a:.3f} {time.perf_counter() - t:.3f} {rss() - r}")
    """
    first, matmul, memory = run_python(code).stdout.split()
    with capsys.disabled():
        print(f"\n  cold start beyond torch: first value {first} s, first matmul {matmul} s, memory {memory} MB")
    assert float(first) < 60 and int(memory) < 2000


def test_the_package_has_what_it_says():
    import importlib.metadata

    entry = [e for e in importlib.metadata.entry_points(group="torch.backends") if e.name == "torch_tpu"]
    assert len(entry) == 1 and callable(entry[0].load())
    assert importlib.metadata.version("torch_tpu") == sys.modules["torch_tpu"].__version__


@pytest.mark.parametrize("name", ["torch_tpu", "torch_tpu._loader"])
def test_modules_import(name):
    __import__(name)
