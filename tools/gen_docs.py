"""Writes docs/ops.md and docs/environment.md from the tables inside the core, read through ctypes.

    python tools/gen_docs.py [--check] [--lib PATH]

--check writes nothing and exits 1 when a document is out of date. Needs the built core (libtorchtpu.so), not torch.
"""

import argparse
import ctypes
import functools
import json
import os
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
MADE = "<!-- Written by tools/gen_docs.py (./dev docs). Do not edit. -->\n"

# src/ops/<file>.c: what its rows are about, in the order of docs/ops.md; files that are not here come last.
FAMILIES = {
    "unary": "element-wise functions of one tensor",
    "special": "special functions",
    "polynomial": "orthogonal polynomials",
    "binary": "element-wise functions of two tensors",
    "ternary": "element-wise functions of three tensors",
    "compare": "comparisons",
    "pointwise": "other element-wise functions",
    "activation": "activations",
    "cast": "conversions",
    "reduce": "reductions",
    "softmax": "softmax",
    "scan": "cumulative functions",
    "sort": "order",
    "norm": "normalisations",
    "matmul": "products of matrices",
    "conv": "convolutions",
    "pool": "pooling",
    "upsample": "interpolation",
    "pad": "padding",
    "index": "reading by index",
    "scatter": "writing by index",
    "along": "along a dimension",
    "bag": "embedding bags",
    "rearrange": "rearrangements",
    "shuffle": "pixels and channels",
    "factory": "factories",
    "random": "random numbers",
    "loss": "losses",
    "foreach": "lists of tensors",
    "optim": "optimizers",
    "amp": "mixed precision",
    "fft": "Fourier transforms",
}


def find_library(path):
    """The core: the given path, that of the installed package, or that of a build folder."""
    places = [path] if path else []
    places += [os.path.join(p or ".", "torch_tpu/lib/libtorchtpu.so") for p in [str(ROOT), *sys.path]]
    build = pathlib.Path(os.environ.get("TORCH_TPU_BUILD", ROOT / ".build"))
    places += map(str, sorted(build.glob("**/libtorchtpu.so")))
    for p in places:
        if p and os.path.exists(p):
            return p
    sys.exit("gen_docs.py: libtorchtpu.so was not found; run ./dev build, or give --lib PATH")


def rows(lib):
    lib.tpu_row_name.restype = ctypes.c_char_p
    names, i = [], 0
    while (name := lib.tpu_row_name(i)) is not None:
        names.append(name.decode())
        i += 1
    return sorted(set(names))


def flags(lib):
    lib.tpu_env_describe.restype = ctypes.c_bool
    found, i = [], 0
    while True:
        texts = [ctypes.c_char_p() for _ in range(4)]
        if not lib.tpu_env_describe(i, *(ctypes.byref(t) for t in texts)):
            return found
        found.append([t.value.decode() for t in texts])
        i += 1


def family_of_rows(names):
    """{row: name of the file in src/ops that holds it}"""
    found = {}
    for path in sorted((ROOT / "src/ops").glob("*.c")):
        for name in re.findall(r'"(aten::[\w.]+)"', path.read_text()):
            found.setdefault(name, path.stem)
    heads = [
        (h, p.stem) for p in sorted((ROOT / "src/ops").glob("*.c")) for h in re.findall(r'"(aten::\w*)" *#?\w', p.read_text())
    ]
    for name in names:  # the others are put together by a macro: "aten::_foreach_" #id, "aten::_fused_" name
        if name not in found:
            fits = [(len(h), stem) for h, stem in heads if name.startswith(h)]
            found[name] = max(fits)[1] if fits else "other"
    return found


def base_of(name):
    """The operator of which `name` (no overload) is the in-place form."""
    if name.endswith("__"):
        return "__" + name[3:] if name.startswith("__i") else name
    return name.removesuffix("_")


SHORT = {"float": "f", "bfloat": "bf", "complex": "c", "uint": "u", "int": "i"}


def dtypes_text(names):
    """float32 and int8 as f32 and i8, floats first."""
    order = ["float", "bfloat", "complex", "int", "uint", "bool"]
    parts = sorted(
        (re.fullmatch(r"([a-z]+)(\d*)", n).groups() for n in names), key=lambda p: (order.index(p[0]), -int(p[1] or 0))
    )
    return " ".join(SHORT.get(kind, kind) + size for kind, size in parts)


@functools.cache
def text_of_tests():
    return "\n".join(p.read_text() for p in sorted((ROOT / "tests/torch").glob("test_*.py")))


def tested_text(name, found):
    entries = sorted(found.get("entries", ()), key=lambda e: (name.split("::")[1].split(".")[0].strip("_") not in e, len(e), e))
    if entries:
        return ", ".join(entries[:3]) + (f" and {len(entries) - 3} more" if len(entries) > 3 else "")
    # As an attribute or a quoted name, else Python's own range() would count; which files is left out, or each new test would
    # make this document out of date.
    word = re.compile(r"[.\"']" + re.escape(name.split("::")[1].split(".")[0]) + r"(?![a-z0-9_])")
    return "tests/torch" if word.search(text_of_tests()) else "not by name"


def table(names, reached):
    out = ["| operator | dtypes | tested by |", "|---|---|---|"]
    for n in names:
        found = reached.get(n.split(".")[0], {})
        out.append(f"| `{n}` | {dtypes_text(found.get('dtypes', ()))} | {tested_text(n, found)} |")
    return out


def ops_text(lib):
    names = rows(lib)
    reached = json.loads((ROOT / "tests/opinfo/reached.json").read_text())
    where = family_of_rows(names)
    order = {f: i for i, f in enumerate(FAMILIES)}
    families = {}
    for name in names:
        families.setdefault(where[name], []).append(name)
    out = [MADE, "# Operators with a row\n"]
    out.append(
        f"{len(names)} rows, each of which serves the functional, in-place and `out=` forms of an ATen operator, and all overloads when it\n"
        "is named without one. Operators that PyTorch composes of these need none. What else arrives runs as PyTorch's\n"
        "decomposition, or on the CPU, counted (`torch.tpu.fallback_counts()`). How to write a row: [add-an-op.md](add-an-op.md).\n\n"
        "Dtypes are those of its first tensor in which PyTorch's database, of the ten dtypes that it is run in here, brought the operator to the\n"
        "device and it ran (`tests/opinfo/reached.py`; f32 is float32, bf16 bfloat16, c64 complex64, i8 int8, u8 uint8); `tested by` names entries\n"
        "of the database, whose values [conformance.md](conformance.md) reports, else says whether the\n"
        "tests in `tests/torch` name it.\n"
    )
    for family in sorted(families, key=lambda f: (order.get(f, len(order)), f)):
        title = FAMILIES.get(family, family)
        out.append(f"\n## {title[0].upper()}{title[1:]}\n" + ("" if family == "other" else f"\n`src/ops/{family}.c`\n"))
        out += table(families[family], reached)
    for served, title, text in (
        (
            "adapter",
            "Served by the adapter",
            "Views, storages, copies and operators whose result's shape depends on data: `adapter/`.",
        ),
        (
            "decomposition",
            "Served by PyTorch's decomposition",
            "Recorded and run as one program each: `torch_tpu/_decompose.py`.",
        ),
        ("CPU", "On the CPU", "Counted and warned of; why is in [conformance.md](conformance.md)."),
    ):
        found = [n for n, f in reached.items() if f["served"] == served]
        out += [f"\n## {title}\n\n{text}\n", *(table(found, reached) if found else ["None."])]
    return "\n".join(out) + "\n"


def environment_text(lib):
    out = [MADE, "# Environment variables\n"]
    out.append(
        "Read once, at the first use of the device. A value that cannot be read is an error then; it names the variable, the value, and\n"
        "what is accepted. An empty value counts as not set.\n"
    )
    out += ["| variable | value | default | meaning |", "|---|---|---|---|"]
    for name, kind, default, text in flags(lib):
        cells = (f"`{name}`", kind.replace("|", ", "), f"`{default}`" if default else "", text.replace("|", "\\|"))
        out.append("| " + " | ".join(cells) + " |")
    out.append(
        "\nPyTorch's own: `TORCH_DEVICE_BACKEND_AUTOLOAD=0` keeps `import torch` from loading this package. Read by the Python package:\n"
        "`TORCH_TPU_HOOKS=0` switches off its hooks on other packages (`torch_tpu/_hooks.py`)."
    )
    return "\n".join(out) + "\n"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--check", action="store_true")
    p.add_argument("--lib")
    a = p.parse_args()
    lib = ctypes.CDLL(find_library(a.lib))
    stale = []
    for name, text in (("docs/ops.md", ops_text(lib)), ("docs/environment.md", environment_text(lib))):
        path = ROOT / name
        if path.exists() and path.read_text() == text:
            continue
        stale.append(name)
        if not a.check:
            path.write_text(text)
            print(f"wrote {name}")
    if a.check and stale:
        sys.exit(f"out of date: {', '.join(stale)}; run ./dev docs")


if __name__ == "__main__":
    main()
