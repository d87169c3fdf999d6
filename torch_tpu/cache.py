"""The executable cache on disk, for people: python -m torch_tpu.cache {stats,list,verify,prune,clear}

Compiled programs are kept in TORCH_TPU_CACHE_DIR (default: torch_tpu in the user's cache folder), up to
TORCH_TPU_CACHE_SIZE bytes, and in TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT for all hosts of a job. Removing them is always
safe: what is missing is compiled again.
"""

import argparse
import os
import sys
import time

from torch_tpu import _core


def entries(folder: str, verify: bool = False, keep=lambda entry: True) -> list[dict]:
    """The entries of a folder: name, nbytes, used (seconds since 1970), good. `keep` gives False to remove one."""
    found = []

    def see(_, name, nbytes, used, good):
        entry = {"name": name.decode(), "nbytes": nbytes, "used": used, "good": good}
        found.append(entry)
        return bool(keep(entry))

    if os.path.isdir(folder):
        _core.core.tpu_cache_each(os.fsencode(folder), verify, _core.CacheEntry(see), None)
    return found


def folders() -> list[str]:
    """The folders in use by the environment, the user's first."""
    return [os.fsdecode(f) for f in (_core.core.tpu_cache_folder(shared) for shared in (False, True)) if f]


def _size(n):
    for unit in ("bytes", "KiB", "MiB"):
        if n < 1024 or unit == "MiB":
            return f"{n:.1f} {unit}" if unit != "bytes" else f"{n} bytes"
        n /= 1024


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(prog="python -m torch_tpu.cache", description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["stats", "list", "verify", "prune", "clear"])
    parser.add_argument("--dir", help="a folder other than those of the environment")
    parser.add_argument("--size", type=int, help="prune: bytes to leave (default: TORCH_TPU_CACHE_SIZE)")
    a = parser.parse_args(arguments)
    if a.size is not None and (a.what != "prune" or a.size < 0):
        parser.error("--size goes with prune, and is a number of bytes, 0 or more")
    places, bad = [a.dir] if a.dir else folders(), 0
    if not places:
        print("no cache folder: set TORCH_TPU_CACHE_DIR, XDG_CACHE_HOME or HOME")
    for folder in places:
        try:
            bad += _do(a.what, folder, a.size)
        except RuntimeError as error:  # a folder that is refused; the sentence says why
            print(error, file=sys.stderr)
            bad += 1
    return 1 if bad else 0


def _do(what, folder, size) -> int:
    """One word on one folder; how many damaged entries there were."""
    if what == "prune":
        before = sum(e["nbytes"] for e in entries(folder))
        if os.path.isdir(folder):
            _core.core.tpu_cache_prune(os.fsencode(folder), -1 if size is None else size)
        print(f"{folder}: {_size(before)} before, {_size(sum(e['nbytes'] for e in entries(folder)))} now")
        return 0
    keep = {"clear": lambda e: False, "verify": lambda e: e["good"]}.get(what, lambda e: True)
    found = entries(folder, verify=what == "verify", keep=keep)
    if what == "list":
        for e in sorted(found, key=lambda e: -e["used"]):
            print(f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(e['used']))}  {e['nbytes']:>10}  {e['name']}")
    damaged = [e for e in found if not e["good"]]
    for e in damaged:
        print(f"{folder}: {e['name']} is damaged, or not a plain file of yours: removed")
    total = f"{len(found)} programs, {_size(sum(e['nbytes'] for e in found))}"
    print(f"{folder}: {total}{' removed' if what == 'clear' else ''}")
    return len(damaged)


if __name__ == "__main__":
    raise SystemExit(main())
