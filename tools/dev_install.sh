#!/bin/sh
# Builds the checkout and makes `import torch` in a virtual environment load it from here.
#   tools/dev_install.sh VENV [BUILD_DIR]
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
venv=${1:?usage: tools/dev_install.sh VENV [BUILD_DIR]}
build=${2:-${TPU_BUILD_DIR:-$root/../build-torch_tpu}}
build=$(mkdir -p "$build" && cd "$build" && pwd)
venv=$(cd "$venv" && pwd)
python=$venv/bin/python
site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
PATH=$venv/bin:$PATH
export PATH
cmake -G Ninja -S "$root" -B "$build" -DPython_EXECUTABLE="$python" -DTPU_TESTS="${TPU_TESTS:-OFF}" >/dev/null
ninja -C "$build" ${TPU_JOBS:+-j$TPU_JOBS} torchtpu torchtpu_adapter
# The package reads its libraries from torch_tpu/lib, so a rebuild needs no second install.
mkdir -p "$root/torch_tpu/lib"
ln -sf "$build/libtorchtpu.so" "$build/libtorchtpu_adapter.so" "$root/torch_tpu/lib/"
ln -sf "$build/_build.py" "$root/torch_tpu/_build.py"
echo "$root" > "$site/torch_tpu_dev.pth"
info=$site/torch_tpu-0.1.0.dist-info
mkdir -p "$info"
printf 'Metadata-Version: 2.1\nName: torch_tpu\nVersion: 0.1.0\n' > "$info/METADATA"
printf '[torch.backends]\ntorch_tpu = torch_tpu:_autoload\n\n[torch_dynamo_backends]\ntpu = torch_tpu.compile:backend\n' > "$info/entry_points.txt"
printf 'dev_install\n' > "$info/INSTALLER"
: > "$info/RECORD"
