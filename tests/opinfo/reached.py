"""Which ATen operators reach the device, in which dtypes, from which entries of PyTorch's database, and what serves them: reached.json, from
which tools/gen_docs.py makes docs/ops.md.

    python tests/opinfo/reached.py

Runs the first samples of every OpInfo in each dtype, forward and in float32 backward too, every foreach list and every optimizer, and writes down
what PyTorch's dispatcher hands on below autograd and its own compositions. It compares no values: coverage.py does. Minutes on two cores.
"""

import collections
import ctypes
import json
import pathlib
import sys
import warnings

import torch
from torch.testing._internal import common_methods_invocations as db
from torch.testing._internal.common_optimizers import optim_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tools"))
import gen_docs  # noqa: E402

DTYPES = (
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.complex64,
    torch.int64,
    torch.int32,
    torch.int8,
    torch.uint8,
    torch.bool,
)
SAMPLES = 2


class Seen(TorchDispatchMode):
    """Notes each operator with the dtype of its first tensor."""

    def __init__(self):
        super().__init__()
        self.calls = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        dtype = next((x.dtype for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)), None)
        out = func(*args, **(kwargs or {}))
        self.calls.add((str(func), dtype))
        return out


def run(call):
    """What `call` reaches before it ends or fails: an operator that fails itself is not noted."""
    with Seen() as seen:
        try:
            call()
        except Exception:  # noqa: BLE001  (coverage.py says which samples fail and why)
            pass
    return seen.calls


def differentiate(out):
    outs = [x for x in tree_leaves(out) if isinstance(x, torch.Tensor) and x.requires_grad]
    if outs:
        torch.autograd.backward(outs, [torch.ones_like(x) for x in outs])


def moved(x, grad):
    if not isinstance(x, torch.Tensor):
        return torch.device("tpu") if x == torch.device("cpu") or x == "cpu" else x
    return x.detach().to("tpu").requires_grad_(grad and x.is_floating_point())


def of_op(op, dtype):
    if dtype not in op.dtypes:
        return
    grad = dtype is torch.float32 and op.supports_autograd
    samples = op.sample_inputs("cpu", dtype)
    try:
        for _, s in zip(range(SAMPLES), samples, strict=False):
            s = s.transform(lambda x: moved(x, grad))  # noqa: B023, PLW2901
            yield from run(lambda s=s: differentiate(op(s.input, *s.args, **s.kwargs)))
            if op.inplace_variant and not grad:
                yield from run(lambda s=s: op.inplace_variant(s.input.clone(), *s.args, **s.kwargs))
    except Exception:  # noqa: BLE001  (a sample that cannot be made, in ComplexHalf say)
        return


def of_optimizer(info):
    for o in info.optim_inputs_func("tpu"):
        for way in ({"foreach": False}, {"foreach": True}, {"fused": True}):
            if not info.supported_impls or next(iter(way)) not in (*info.supported_impls, "foreach"):
                continue
            p = [torch.nn.Parameter(torch.ones(4, 4, device="tpu")) for _ in range(2)]
            for x in p:
                x.grad = torch.ones_like(x)

            def step(p=p, kwargs={**o.kwargs, **way}):  # noqa: B006
                info.optim_cls(p, **kwargs).step()

            yield from run(step)


def main():
    warnings.simplefilter("ignore")
    # operators with a kernel before any decomposition is registered
    own = set(torch._C._dispatch_get_registrations_for_dispatch_key("PrivateUse1"))
    rows = set(gen_docs.rows(ctypes.CDLL(gen_docs.find_library(None))))
    found = collections.defaultdict(lambda: {"dtypes": set(), "entries": set(), "overloads": set()})

    def note(entry, calls):
        for func, dtype in calls:
            kind, name, *overload = func.split(".")
            if kind not in ("aten", "tpu") or (dtype is not None and dtype not in DTYPES):
                continue
            base = gen_docs.base_of(name)
            f = found[f"{kind}::{base}"]
            f["overloads"].add(f"{name}.{overload[0]}" if overload and overload[0] != "default" else name)
            f["entries"].add(entry)
            if dtype is not None:
                f["dtypes"].add(str(dtype).removeprefix("torch."))

    foreach = [o for n in dir(db) if n.startswith("foreach_") and n.endswith("_op_db") for o in getattr(db, n)]
    for op in [*db.op_db, *foreach]:
        print(op.full_name, flush=True)
        for dtype in DTYPES:
            note(op.full_name, of_op(op, dtype))
    for info in optim_db:
        note(f"optim:{info.optim_cls.__name__}", of_optimizer(info))

    fallen = {gen_docs.base_of(n.split("::")[1].split(".")[0]) for n in torch.tpu.fallback_counts()}
    for base, f in found.items():
        name = base.split("::")[1]
        if base in rows or any(r.split(".")[0] == base for r in rows):
            f["served"] = "row"
        elif name in fallen:
            f["served"] = "CPU"
        elif any(f"aten::{o}" in own for o in f["overloads"]):
            f["served"] = "adapter"
        else:
            f["served"] = "decomposition"
    (HERE / "reached.json").write_text(
        json.dumps(
            {k: {n: sorted(v) if isinstance(v, set) else v for n, v in f.items()} for k, f in sorted(found.items())}, indent=0
        )
        + "\n"
    )
    print(collections.Counter(f["served"] for f in found.values()))


if __name__ == "__main__":
    main()
