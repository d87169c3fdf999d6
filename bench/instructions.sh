#!/usr/bin/env bash
# Instructions of one torch.add on tpu and on torch's CPU device: a figure without noise, to judge a change by.
#
#   bench/instructions.sh [PYTHON] [perf|callgrind]
#
# The difference between two loop counts, divided by the difference of the counts, so that all that happens once drops out.
# perf counts user-level instructions of the real run, the plugin's own included. callgrind is for machines without that counter: it
# needs valgrind and its headers, and runs with tests/fake as the plugin (a real one uses instructions that valgrind may not know), so it
# counts PyTorch, the adapter and the core; of these the calling thread only, since the queue's thread spins while it looks for work.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python=${1:-$root/.venv/bin/python}
tool=${2:-}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

if [ -z "$tool" ]; then
  tool=callgrind
  if command -v perf > /dev/null && perf stat -x, -e instructions:u true 2>&1 | grep -q '^[0-9]'; then tool=perf; fi
fi

cat > "$tmp/loop.py" << 'P'
import ctypes, sys, torch
count, device, switch = int(sys.argv[1]), sys.argv[2], ctypes.CDLL(sys.argv[3]) if len(sys.argv) > 3 else None
torch.set_num_threads(1)
x, y = (torch.ones(8, 8, device=device) for _ in "xy")
for _ in range(50): z = torch.add(x, y)
z.cpu()
if switch: switch.start()
for _ in range(count): z = torch.add(x, y)
z.cpu()
if switch: switch.stop()
P

count() { # loops, device
  case $tool in
    perf) # the least of several: a thread that looks for work counts too
      for _ in 1 2 3 4 5; do
        perf stat -x, -e instructions:u -o "$tmp/perf" "$python" "$tmp/loop.py" "$1" "$2"
        grep instructions "$tmp/perf" | cut -d, -f1
      done | sort -n | head -n 1 ;;
    callgrind) # counts only between start and stop, else the import alone takes minutes
      valgrind --tool=callgrind --instr-atstart=no --separate-threads=yes --callgrind-out-file="$tmp/callgrind.out" "$python" "$tmp/loop.py" "$1" "$2" "$tmp/switch.so" > "$tmp/log" 2>&1 ||
        { tail -n 20 "$tmp/log" >&2; exit 1; }
      sed -n 's/^\(totals\|summary\): \([0-9]*\).*/\2/p' "$tmp/callgrind.out-01" | sort -n | tail -n 1 ;;
    *) echo "no such tool: $tool" >&2; exit 2 ;;
  esac
}

few=1000 many=11000
if [ "$tool" = callgrind ]; then
  command -v valgrind > /dev/null || { echo "neither perf's counter nor valgrind is there" >&2; exit 1; }
  few=200 many=1200
  cc=${CC:-cc}
  printf '#include <valgrind/callgrind.h>\nvoid start(void) { CALLGRIND_START_INSTRUMENTATION; }\nvoid stop(void) { CALLGRIND_STOP_INSTRUMENTATION; }\n' > "$tmp/switch.c"
  $cc -shared -fPIC -o "$tmp/switch.so" "$tmp/switch.c"
  $cc -std=gnu11 -O2 -shared -fPIC -fvisibility=hidden -I"$root/include" -I"$root/src" -o "$tmp/libfake_pjrt.so" "$root"/tests/fake/fake*.c -lpthread -lm
  export TORCH_TPU_PJRT_PLUGIN=$tmp/libfake_pjrt.so
fi
for device in tpu cpu; do
  a=$(count $few $device)
  b=$(count $many $device)
  echo "torch.add on $device: $(((b - a) / (many - few))) instructions per op ($tool, $few and $many calls)"
done
