"""How much of PyTorch's own operator database works, as docs/conformance.md and tests/opinfo/baseline.json.

    python tests/opinfo/conformance.py run [--only NAME]    runs tests/opinfo/coverage.py (hours on two cores without a warm cache) and
                                                            keeps what it found in baseline.json
    python tests/opinfo/conformance.py docs                 writes docs/conformance.md from baseline.json and upstream.json
    python tests/opinfo/conformance.py sample               one sample an operator and dtype, against baseline.json: exit 1 when an
                                                            operator that passed no longer does

baseline.json holds, for each entry of the database, its verdict, its first failure and which ATen operators fell back to the CPU.
reasons.py says why an entry fails or falls back; an entry without a reason is an error of `docs`.
"""

import argparse
import collections
import json
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BASELINE = HERE / "baseline.json"
DEFAULT = "float32,bfloat16,int64,bool"

# name: (arguments of coverage.py, what it is)
RUNS = {
    "ops": (["--suite", "ops", "--grad", "--variants", "all"], f"OpInfo, {DEFAULT}; gradients, in-place, out=, views, errors"),
    "modules": (["--suite", "modules", "--grad", "--variants", "all"], "torch.nn modules, training and evaluation"),
    "optim": (["--suite", "optim", "--grad", "--variants", "all"], "torch.optim optimizers"),
    "foreach": (["--suite", "foreach", "--grad", "--variants", "all"], "_foreach_* and _fused_* lists"),
    "float32": (["--dtypes", "float32", "--grad", "--variants"], "OpInfo, float32; gradients, in-place, out="),
    "compiled": (["--dtypes", "float32", "--grad", "--compile"], "OpInfo through torch.compile, float32; gradients"),
    "float64": (["--dtypes", "float64"], "OpInfo forward, float64"),
    "complex64": (["--dtypes", "complex64"], "OpInfo forward, complex64"),
    "float16": (["--dtypes", "float16"], "OpInfo forward, float16"),
    "int32": (["--dtypes", "int32"], "OpInfo forward, int32"),
    "int8": (["--dtypes", "int8"], "OpInfo forward, int8"),
    "uint8": (["--dtypes", "uint8"], "OpInfo forward, uint8"),
}
WHOLE = ("ops", "modules", "optim", "foreach")


def coverage(arguments):
    """Runs coverage.py; its JSON."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "out.json"
        subprocess.run([sys.executable, HERE / "coverage.py", "--device", "tpu", "--json", out, *arguments], check=False)
        return json.loads(out.read_text())


def slim(found):
    """What baseline.json keeps of a run."""
    ops = {}
    for name, op in sorted(found["ops"].items()):
        kept = {"status": op["status"]}
        if op["first_failure"] and op["status"] not in ("pass", "skip"):
            f = op["first_failure"]
            kept["failure"] = f"{f['check']}: {f['text'][:200]}"
        if op["fell_back"]:
            kept["fell_back"] = op["fell_back_ops"] or ["?"]
        ops[name] = kept
    meta = {k: found["meta"][k] for k in ("torch", "dtypes", "max_samples", "seed", "grad", "variants")}
    return {"meta": meta, "samples": [found["summary"]["samples_passed"], found["summary"]["samples_failed"]], "ops": ops}


def load():
    return json.loads(BASELINE.read_text()) if BASELINE.exists() else {}


def keep(name, found):
    all_runs = load()
    all_runs[name] = slim(found)
    BASELINE.write_text(json.dumps({k: all_runs[k] for k in RUNS if k in all_runs}, indent=0, sort_keys=False) + "\n")


def reason(name, table):
    return next((text for pattern, text in table if re.fullmatch(pattern, name)), None)


def write_docs():
    import reasons

    runs = load()
    lines = [
        "<!-- Written by tests/opinfo/conformance.py. Do not edit. -->",
        "",
        "# Conformance",
        "",
        "PyTorch's own operator database (OpInfo, modules, optimizers, foreach lists; it ships in the wheel), each sample run on `tpu` and on",
        "CPU and compared: type, dtype, shape, values, what was written, exceptions. An entry passes when all its samples do, in all dtypes",
        "and forms. `./dev conformance` measures, and writes this page. On the embedded XLA CPU plugin, Strict mode, 10 samples an operator and dtype;",
        "entries that failed were run again after they were mended.",
        "",
        "| what | passed | of | without falling back to the CPU | samples passed |",
        "|---|---|---|---|---|",
    ]
    missing = []

    def row(title, ops, samples):
        judged = {k: o for k, o in ops.items() if o["status"] != "skip"}
        passed = [k for k, o in judged.items() if o["status"] == "pass"]
        alone = [k for k in passed if "fell_back" not in judged[k]]
        lines.append(f"| {title} | {len(passed)} | {len(judged)} | {len(alone)} | {samples[0]} of {sum(samples)} |")

    whole = {k: o for name in WHOLE if name in runs for k, o in runs[name]["ops"].items()}
    sums = [sum(runs[n]["samples"][i] for n in WHOLE if n in runs) for i in (0, 1)]
    row("all of it, " + DEFAULT, whole, sums)
    for name, run in runs.items():
        row(RUNS[name][1], run["ops"], run["samples"])
    lines += ["", "## What does not pass", "", "| entry | found in | first failure | why |", "|---|---|---|---|"]
    failed = collections.defaultdict(list)
    for name, run in runs.items():
        for k, o in run["ops"].items():
            if o["status"] not in ("pass", "skip"):
                failed[k].append((name, o))
    for k, found in sorted(failed.items()):
        why = reason(k, reasons.FAILURES)
        if why is None:
            missing.append(k)
        text = (found[0][1].get("failure") or found[0][1]["status"]).replace("|", "\\|").replace("\n", " ")[:110]
        lines.append(f"| {k} | {', '.join(n for n, _ in found)} | {text} | {why} |")
    lines += ["", "## What falls back to the CPU", "", "| ATen operator | entries | why |", "|---|---|---|"]
    fell = collections.defaultdict(set)
    for run in runs.values():
        for k, o in run["ops"].items():
            for name in o.get("fell_back", []):
                fell[name].add(k)
    for name, entries in sorted(fell.items()):
        why = reason(name, reasons.FALLBACKS)
        if why is None:
            missing.append(name)
        lines.append(f"| `{name}` | {len(entries)} | {why} |")
    upstream = HERE / "upstream.json"
    if upstream.exists():
        lines += upstream_lines(json.loads(upstream.read_text()))
    models = ROOT / "tests/models/found.json"
    if models.exists():
        lines += model_lines(json.loads(models.read_text()))
    (ROOT / "docs/conformance.md").write_text("\n".join(lines) + "\n")
    if missing:
        sys.exit(f"without a reason in tests/opinfo/reasons.py: {' '.join(sorted(set(missing)))}")


def model_lines(found):
    """What tests/models/models.py found: a row for each model, a cell for eager and compiled."""
    cells = list(next(iter(found["models"].values()))["cells"])
    lines = [
        "",
        "## Models of transformers",
        "",
        f'Models of `transformers` {found["transformers"]} with tiny configurations and random weights, eager / compiled (`torch.compile(backend="tpu")`,',
        "the optimizer's step too), float32, against torch's CPU device: the largest difference, relative to the largest value of the tensor; above",
        f"{found['limit']:g} it is a failure. `generate` has to give the same tokens; with a static cache it must also make no program when it generates the same",
        "again. With a dynamic cache the compiled forward pass has symbolic sizes. `./dev models` measures, and writes this table.",
        "",
        f"| model | {' | '.join(cells)} |",
        f"|---|{'---|' * len(cells)}",
    ]

    def text(v):
        if not isinstance(v, float):
            return "FAILS: " + str(v).replace("|", "\\|").replace("\n", " ")[:100]
        return ("same" if v == 0 else f"{v:.0e}") + ("" if v <= found["limit"] else " FAILS")

    good = total = 0
    for name, model in found["models"].items():
        row = []
        for cell in cells:
            kinds = model["cells"][cell]
            good += sum(isinstance(v, float) and v <= found["limit"] for v in kinds.values())
            total += len(kinds)
            row.append(" / ".join(text(v) for v in kinds.values()) or "does not generate")
        fell = f" (fell back: {', '.join(model['fell_back'])})" if model["fell_back"] else ""
        lines.append(f"| {name}{fell} | {' | '.join(row)} |")
    return [*lines, "", f"{good} of {total} cells pass."]


def upstream_lines(found):
    """Of the failed tests, those that are ours to mend and those that passed apply; the others' reasons are not the device's."""
    lines = ["", "## PyTorch's own test files", "", *found["about"], ""]
    lines += [
        "| file | tests run | passed | failed | skipped | apply | of these passed | failed: ours | failed: not ours |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    total = [0, 0]
    for f in found["files"]:
        ours, others = (sum(x["count"] for x in f["failures"] if x["ours"] is mine) for mine in (True, False))
        apply = f["passed"] + ours
        assert ours + others == f["failed"], f"{f['file']}: {f['failed']} tests failed, and {ours + others} have a reason"
        total[0] += f["passed"]
        total[1] += apply
        cells = (f["file"], f["run"], f["passed"], f["failed"], f["skipped"], apply, share(f["passed"], apply), ours, others)
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    lines += ["", f"Of {total[1]} tests that apply {total[0]} passed: {share(*total)}.", "", "Every test that failed:", ""]
    lines += ["| file | tests | whose | why |", "|---|---|---|---|"]
    for f in found["files"]:
        by_reason = {}
        for x in f["failures"]:
            by_reason.setdefault((x["ours"], x["why"]), []).append(
                f"`{x['test']}`" + (f" ({x['count']})" if x["count"] > 1 else "")
            )
        for (ours, why), tests in sorted(by_reason.items(), key=lambda r: not r[0][0]):
            lines.append(f"| {f['file']} | {', '.join(tests)} | {'ours' if ours else 'not ours'} | {why} |")
    return [*lines, "", *found["rest"]]


def share(part, whole):
    return f"{100 * part // whole if part == whole else int(1000 * part / whole) / 10} %" if whole else "-"


def sample():
    runs = load()
    ops = {k: o for name in WHOLE if name in runs for k, o in runs[name]["ops"].items()}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        json.dump({"ops": ops}, f)
        f.flush()
        command = [sys.executable, HERE / "coverage.py", "--device", "tpu", "--max-samples", "1", "--dtypes", "float32,int64"]
        sys.exit(subprocess.run([*command, "--list", "--baseline", f.name], check=False).returncode)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=("run", "docs", "sample"))
    p.add_argument("--only", action="append", choices=RUNS, help="of `run`: this run; may be repeated")
    p.add_argument("--from", dest="source", help="of `run`: take coverage.py's JSON instead of running it (with one --only)")
    a = p.parse_args()
    if a.what == "run":
        for name in a.only or RUNS:
            keep(name, json.loads(pathlib.Path(a.source).read_text()) if a.source else coverage(RUNS[name][0]))
        write_docs()
    elif a.what == "docs":
        write_docs()
    else:
        sample()


if __name__ == "__main__":
    main()
