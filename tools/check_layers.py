"""Fails when a room includes a later one (docs/architecture.md), or when pjrt and ir know each other."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# room -> the rooms that it may include
MAY = {
    "base": {"base"},
    "pjrt": {"base", "pjrt"},
    "ir": {"base", "ir"},
    "view": {"base", "ir", "view"},
    "ops": {"base", "ir", "ops"},
    "exec": {"base", "pjrt", "ir", "view", "ops", "exec"},
}


def main():
    bad = 0
    for room, allowed in MAY.items():
        for f in sorted((ROOT / "src" / room).glob("*.[ch]")):
            for n, line in enumerate(f.read_text().splitlines(), 1):
                m = re.match(r'#include "([a-z_]+)/', line)
                if m and m.group(1) not in allowed:
                    print(f"{f.relative_to(ROOT)}:{n}: room {room} may not include {m.group(1)}/")
                    bad += 1
                if re.match(r"#include <(torch|ATen|c10)/", line):
                    print(f"{f.relative_to(ROOT)}:{n}: the core knows nothing of torch")
                    bad += 1
    for f in sorted((ROOT / "adapter").glob("*.[ch]*")):
        for n, line in enumerate(f.read_text().splitlines(), 1):
            m = re.match(r'#include "(base|pjrt|ir|view|ops|exec)/', line)
            if m:
                print(f"{f.relative_to(ROOT)}:{n}: the adapter sees only include/tpu.h, not {m.group(1)}/")
                bad += 1
    print(f"layers: {bad} violations")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
