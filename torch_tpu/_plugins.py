"""Where PJRT plugins may lie: paths inside installed packages, found without importing them."""

import importlib.util
import os

# (package, file in it), best first. The XLA CPU plugin with the newer C API comes first.
_FILES = (
    ("libtpu", "libtpu.so"),
    ("lammps_jax_pjrt_cpu", "pjrt_c_api_cpu_plugin.so"),
    ("fastatomstruct_xla_cpu", "libpjrt_cpu.so"),
)


def candidates():
    """Paths of plugins in installed packages, best first."""
    found = []
    for package, name in _FILES:
        try:
            spec = importlib.util.find_spec(package)
        except (ImportError, ValueError):
            continue
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            path = os.path.join(folder, name)
            if os.path.isfile(path):
                found.append(path)
    return found
