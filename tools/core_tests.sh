#!/usr/bin/env bash
# Builds and runs the C core's tests without torch.
# usage: core_tests.sh BUILD_DIR "CMAKE_OPTIONS" [all|quick|plugin|fuzz|threads]; RUN is put before each program (valgrind).
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p "$1"
build=$1 options=${2:-} what=${3:-all}
venv=${TORCH_TPU_VENV:-$PWD/.venv}
export PATH=$venv/bin:$PATH
# shellcheck disable=SC2086
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DTPU_ADAPTER=OFF -DTPU_TESTS=ON $options > "$build.log" 2>&1 \
  || { cat "$build.log"; exit 1; }
targets=all
[ "$what" = threads ] && targets="fake_pjrt test_exec_threads test_exec_faults"
# shellcheck disable=SC2086
ninja -C "$build" $targets > "$build.log" 2>&1 || { cat "$build.log"; exit 1; }
fake=$(find "$build" -name 'libfake_pjrt.so')
export TORCH_TPU_CACHE_SIZE=0 # a test of the cache on disk says where it is
passed=0 failed=0
run() { # program, arguments
  local out
  # shellcheck disable=SC2086
  if out=$(${RUN:-} "$@" 2>&1); then
    echo "ok    $(basename "$1") ${*:2}: $(tail -n 1 <<< "$out")"
    passed=$((passed + 1))
  else
    echo "FAIL  $*"
    tail -n 40 <<< "$out"
    failed=$((failed + 1))
  fi
}
plugins() {
  "$venv/bin/python" - <<'P'
import glob, site
for d in site.getsitepackages():
    for p in glob.glob(d + "/*pjrt_cpu*/*.so") + glob.glob(d + "/fastatomstruct_xla_cpu/**/*.so", recursive=True):
        print(p)
P
}
case $what in
  all | quick) for t in "$build"/test_*; do
      [ -x "$t" ] && [ -f "$t" ] || continue
      case $t in *_plugin) ;; *) run "$t" "$fake" ;; esac
    done ;;
esac
case $what in
  threads) for t in "$build"/test_exec_threads "$build"/test_exec_faults; do run "$t" "$fake"; done ;;
esac
case $what in
  all | plugin) for t in "$build"/test_*_plugin; do
      [ -x "$t" ] || continue
      # what a plugin keeps for itself is not our leak
      for p in $(plugins); do ASAN_OPTIONS=detect_leaks=0 run "$t" "$p"; done
    done ;;
esac
case $what in
  all) for t in "$build"/fuzz_*; do [ -x "$t" ] && run "$t" "${FUZZ_CASES:-20000}"; done ;;
  fuzz) for t in "$build"/fuzz_*; do [ -x "$t" ] && run "$t" "${FUZZ_CASES:-200000}"; done ;;
esac
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
