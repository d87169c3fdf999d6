#!/usr/bin/env bash
# Instructions of one torch.add on tpu: a figure without noise, to judge a change by.
#
#   bench/instructions.sh [PYTHON] [perf|callgrind]
#
# The difference between two loop counts, divided by the difference of the counts, so that start-up drops out. perf counts user-level
# instructions of the real run, the plugin's threads included. callgrind needs valgrind, runs with tests/fake as the plugin (a real
# one uses instructions that valgrind may not know), and so counts PyTorch, the adapter and the core alone.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python=${1:-$root/.venv/bin/python}
tool=${2:-}
export TORCH_TPU_FALLBACK=error

loop='
import sys, torch
torch.set_num_threads(1)
x, y = (torch.ones(8, 8, device=sys.argv[2]) for _ in "xy")
for _ in range(50): z = torch.add(x, y)
z.cpu()
for _ in range(int(sys.argv[1])): z = torch.add(x, y)
z.cpu()
'
if [ -z "$tool" ]; then
  tool=callgrind
  if command -v perf > /dev/null && perf stat -x, -e instructions:u true 2>&1 | grep -q '^[0-9]'; then tool=perf; fi
fi

count() { # loops, device
  case $tool in
    perf)
      # the least of several: a thread that looks for work counts too
      for _ in 1 2 3 4 5; do
        perf stat -x, -e instructions:u -o "$tmp/perf" "$python" -c "$loop" "$1" "$2"
        grep instructions "$tmp/perf" | cut -d, -f1
      done | sort -n | head -n 1 ;;
    callgrind)
      valgrind --tool=callgrind --callgrind-out-file=/dev/null "$python" -c "$loop" "$1" "$2" 2>&1 |
        sed -n 's/.*Collected : *\([0-9]*\).*/\1/p' ;;
    *) echo "no such tool: $tool" >&2; exit 2 ;;
  esac
}

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
few=1000 many=11000
if [ "$tool" = callgrind ]; then
  command -v valgrind > /dev/null || { echo "neither perf's counter nor valgrind is there" >&2; exit 1; }
  few=100 many=1100
  ${CC:-cc} -std=gnu11 -O2 -shared -fPIC -fvisibility=hidden -I"$root/include" -I"$root/src" -o "$tmp/libfake_pjrt.so" "$root"/tests/fake/fake*.c -lpthread -lm
  export TORCH_TPU_PJRT_PLUGIN=$tmp/libfake_pjrt.so
fi
for device in tpu cpu; do
  a=$(count $few $device)
  b=$(count $many $device)
  echo "torch.add on $device: $(((b - a) / (many - few))) instructions per op ($tool, $few and $many calls)"
done
