"""Compiles samples of PyTorch's database of operators for TPUs that are not here, and says what their compiler refuses.

    python tests/aot/sweep.py --topology v5e:2x2 --dtypes float32,int64 [--every 4] [--out results.json]

One line an operator that is not accepted, then a summary: which rows (src/ops) were in the programs. What is compiled is what
eager mode runs: the same rows, built for a TPU."""

import argparse
import hashlib
import json
import re
import sys
import time
import warnings

import torch
from torch.utils import _pytree as pytree

from torch_tpu import _core


def rows():
    """ATen names of the rows."""
    name = _core.core.tpu_row_name
    name.restype = __import__("ctypes").c_char_p
    out, i = [], 0
    while (text := name(i)) is not None:
        out.append(text.decode())
        i += 1
    return out


def samples(dtype, most=1, every=1):
    """(operator's name, function, arguments, keyword arguments) of PyTorch's database."""
    from torch.testing._internal.common_methods_invocations import op_db

    for number, op in enumerate(op_db):
        if number % every or dtype not in op.supported_dtypes("cpu"):
            continue
        torch.manual_seed(1)
        try:
            found = list(op.sample_inputs("cpu", dtype, requires_grad=False))
        except Exception:  # noqa: BLE001, S112 - a database entry that cannot make its own samples
            continue
        for s in found[:: max(1, len(found) // most)][:most]:
            yield op.full_name, op, (s.input, *s.args), s.kwargs


def on_tpu(tree):
    """Device arguments name the device that the capture is made for."""
    return pytree.tree_map(lambda v: "tpu" if v == "cpu" or v == torch.device("cpu") else v, tree)


def sweep(topology, dtype, most=1, every=1, names=None, report=None):
    """{"accepted": n, "refused": {name: reason}, "host": {...}, "other": {...}, "rows": set of names, "programs": n}."""
    from torch_tpu import aot
    from torch_tpu.aot import _trace

    where = aot.topology(topology)
    out = {"accepted": 0, "programs": 0, "refused": {}, "host": {}, "other": {}, "rows": set()}
    known = {}
    for name, op, args, kwargs in samples(dtype, most, every):
        if names is not None and name not in names:
            continue
        if report:
            report(name)
        try:
            kwargs = on_tpu(kwargs)
            args = tuple(on_tpu(a) for a in args)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                captured = _trace.capture(lambda *a, op=op, **k: op(*a, **k), args, kwargs, (), name)
        except Exception as e:  # noqa: BLE001
            kind = "host" if "cannot be one program" in str(e) else "other"
            out[kind][name] = f"{type(e).__name__}: {str(e).splitlines()[0][:300] if str(e) else ''}"
            continue
        if not captured.text:
            continue
        out["rows"] |= set(re.findall(r'loc\("(aten::[^"]*)"', captured.text))
        plain = re.sub(r" loc\(.*\)$", "", captured.text, flags=re.M)
        key = hashlib.sha256(plain.encode()).hexdigest()
        if key not in known:
            out["programs"] += 1
            try:
                aot.compile_text(captured.text, where)
                known[key] = None
            except Exception as e:  # noqa: BLE001
                known[key] = f"{type(e).__name__}: {str(e).splitlines()[0][:600]}"
        if known[key]:
            out["refused"][name] = known[key]
        else:
            out["accepted"] += 1
    return out


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--topology", default="v5e:2x2")
    p.add_argument("--dtypes", default="float32")
    p.add_argument("--most", type=int, default=1)
    p.add_argument("--every", type=int, default=1)
    p.add_argument("--names")
    p.add_argument("--out")
    p.add_argument("--verbose", action="store_true")
    a = p.parse_args()
    results, covered = {}, set()
    for dtype in a.dtypes.split(","):
        start = time.time()
        names = set(a.names.split(",")) if a.names else None
        r = sweep(
            a.topology, getattr(torch, dtype), a.most, a.every, names, (lambda n: print(n, flush=True)) if a.verbose else None
        )
        covered |= r["rows"]
        for kind in ("refused", "other", "host"):
            for name, why in r[kind].items():
                print(f"{a.topology} {dtype} {name}: {kind}: {why}")
        print(
            f"{a.topology} {dtype}: {r['accepted']} accepted, {len(r['refused'])} refused, {len(r['host'])} read on the host, "
            f"{len(r['other'])} not captured; {r['programs']} programs in {time.time() - start:.0f} s",
            flush=True,
        )
        results[dtype] = {**r, "rows": sorted(r["rows"])}
    every = rows()
    print(f"{len([x for x in every if x in covered])} of {len(every)} rows were in a program")
    if a.out:
        with open(a.out, "w") as f:
            json.dump(results, f, indent=1)
    return 1 if any(r["refused"] for r in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
