import os
import tempfile

import pytest
import torch
from tpu_testing import DEVICE, IS_CPU, KIND, build_fake_plugin

SECONDS_A_TEST = 120  # a guard against hangs, far above what any test needs


def pytest_configure(config):
    if "PYTEST_XDIST_WORKER" not in os.environ and "TORCH_TPU_CACHE_DIR" not in os.environ:
        # one folder of compiled programs for all workers of this run, and nothing left in the user's
        folder = tempfile.TemporaryDirectory(prefix="torch_tpu_cache.")
        os.environ["TORCH_TPU_CACHE_DIR"] = folder.name
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.join(folder.name, "graphs"))  # AOTAutograd's cache
        config.add_cleanup(folder.cleanup)
    config.addinivalue_line("markers", "timeout(seconds): from pytest-timeout")


def pytest_collection_modifyitems(config, items):
    if config.pluginmanager.hasplugin("timeout"):
        for item in items:
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(SECONDS_A_TEST, method="thread"))


def pytest_report_header():
    if IS_CPU:
        return "device under test: torch's own cpu"
    torch.zeros(1, device=DEVICE)
    return f"device under test: {DEVICE}, {torch.get_device_module(KIND).plugin_info()}"


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def fake_plugin(tmp_path_factory):
    """Path of tests/fake built as a shared library."""
    return build_fake_plugin(tmp_path_factory.mktemp("fake"))
