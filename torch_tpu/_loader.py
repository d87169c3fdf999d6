"""Joins the device with PyTorch: checks the version, opens the libraries, registers the device and torch.tpu."""

import atexit
import os
import sys
import threading

_lock = threading.RLock()
_loaded = False


def _check_version():
    import torch

    from torch_tpu import __version__, _build

    built, running = _build.TORCH_VERSION, torch.__version__
    if built.split(".")[:2] != running.split(".")[:2]:
        raise ImportError(
            f"torch_tpu {__version__} was built for torch {'.'.join(built.split('.')[:2])}, but torch {running} is installed. "
            f"Install torch {'.'.join(built.split('.')[:2])}, or build torch_tpu again for this one: "
            "PyTorch's C++ interfaces differ between minor versions."
        )


def _wait_for_autograd():
    """Waits until autograd's device threads are idle. One that still drops its last graph when the interpreter finalizes
    would touch Python objects and abort the process."""
    import time

    tasks = f"/proc/{os.getpid()}/task"

    def snapshot():
        seen = {}
        for task in os.listdir(tasks):
            try:
                with open(f"{tasks}/{task}/comm") as f:
                    if not f.read().startswith("pt_autograd"):
                        continue
                with open(f"{tasks}/{task}/stat") as f:
                    fields = f.read().rpartition(")")[2].split()
                seen[task] = (fields[0], fields[11], fields[12])  # state, user time, system time
            except OSError:
                continue
        return seen

    try:
        before = snapshot()
        if not before:
            return
        deadline = time.monotonic() + 2
        quiet = 0
        while quiet < 3 and time.monotonic() < deadline:
            time.sleep(0.002)  # without the interpreter lock, which the thread may be waiting for
            now = snapshot()
            quiet = quiet + 1 if now == before and all(v[0] == "S" for v in now.values()) else 0
            before = now
    except OSError:
        return  # no /proc: nothing to ask


def _at_exit():
    from torch_tpu import _core

    if _core.core.tpu_in_bad_fork():
        return
    if "torch" in sys.modules:
        _wait_for_autograd()
    if _core.core.tpu_is_initialized():
        try:
            _core.core.tpu_synchronize(-1)
        except Exception as error:  # an error that nobody asked for must not turn into a crash at exit
            print(f"torch_tpu: work still queued at exit failed: {error}", file=sys.stderr)


def load():
    """Makes the tpu device known to PyTorch. Does nothing the second time. Loads no plugin: that waits for the first use."""
    global _loaded
    with _lock:
        if _loaded:
            return
        import torch

        _check_version()
        from torch_tpu import _core, _plugins

        name = torch._C._get_privateuse1_backend_name()
        if name not in ("privateuseone", "tpu"):
            raise ImportError(f"torch_tpu needs PyTorch's PrivateUse1 device, but another package has named it {name!r}")
        _core.open_libraries()
        _core.core.tpu_set_plugin_candidates(":".join(_plugins.candidates()).encode())
        if name != "tpu":
            torch.utils.rename_privateuse1_backend("tpu")
        _core.adapter.tpu_adapter_load()
        from torch_tpu import _hooks, tpu

        torch._register_device_module("tpu", tpu)
        torch.utils.generate_methods_for_privateuse1_backend(
            for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=True
        )
        _hooks.install()
        os.register_at_fork(after_in_child=_core.core.tpu_mark_forked)
        atexit.register(_at_exit)
        _loaded = True
        if os.environ.get("TORCH_TPU_TOPOLOGY"):
            from torch_tpu.aot import _watch

            _watch.start(os.environ["TORCH_TPU_TOPOLOGY"])
