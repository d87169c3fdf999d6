#!/usr/bin/env bash
# Formatters, linters, the layer check, exported symbols. usage: lint.sh VENV [fix]
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$1/bin mode=${2:-check}
mapfile -t c_files < <(find include src adapter tests fuzz -name '*.[ch]' -o -name '*.cpp' | sort)
if [ "$mode" = fix ]; then
  "$bin/clang-format" -i "${c_files[@]}"
  "$bin/ruff" format -q .
  "$bin/ruff" check -q --fix . || true
fi
status=0
"$bin/clang-format" --dry-run -Werror "${c_files[@]}" || status=1
"$bin/ruff" format -q --check . || { echo "ruff format: run ./dev format"; status=1; }
"$bin/ruff" check -q . || status=1
"$bin/python" tools/check_layers.py || status=1
if [ -d "${TORCH_TPU_BUILD:-.build}" ]; then "$bin/python" tools/check_symbols.py "${TORCH_TPU_BUILD:-.build}" || status=1; fi
exit $status
