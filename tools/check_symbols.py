"""Fails when the core's library exports a symbol without our prefixes, or needs one of torch's."""

import pathlib
import re
import subprocess
import sys

# The linker makes the bounds of the table of rows visible, whatever the compiler is told.
ALLOWED = re.compile(r"^(tpu_|mem_fault_|mem_live$|env_reset$|pjrt_fault_|__(start|stop)_tpu_rows$)")


def names(lib, flag):
    out = subprocess.run(["nm", "-D", flag, str(lib)], capture_output=True, text=True, check=True).stdout
    return [line.split()[-1].split("@")[0] for line in out.splitlines() if line.split()]


def main():
    libs = [p for p in pathlib.Path(sys.argv[1]).rglob("libtorchtpu.so") if "asan" not in p.parts]
    if not libs:
        print("symbols: no libtorchtpu.so found")
        return 1
    bad = [n for n in names(libs[0], "--defined-only") if not ALLOWED.match(n)]
    bad += [n for n in names(libs[0], "--undefined-only") if re.search(r"(torch|c10|_ZN2at)", n)]
    for n in bad:
        print(f"{libs[0].name}: unexpected symbol {n}")
    print(f"symbols: {len(bad)} unexpected")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
