#!/usr/bin/env python3
"""How much of PyTorch's own operator database a device runs correctly.

Inputs come from the databases that ship in the torch wheel (torch.testing._internal):
  ops      op_db, PyTorch's OpInfo database            foreach  the _foreach_* databases
  modules  module_db, nn.Module classes                optim    optim_db, torch.optim classes
Each sample is made on the CPU, copied to the device, run on both, and the results compared.
Needs torch, numpy, expecttest, hypothesis. Every worker is a process of its own, so a crash or a hang
costs one op x dtype. Examples:
  op_coverage.py --device cpu                                     # must print 0 failed
  op_coverage.py --device meta                                    # nearly all must fail
  op_coverage.py --device tpu --preload torch_tpu --grad --variants --json out.json
  op_coverage.py --device tpu --baseline old.json                 # exit 1 when an op that passed no longer does
"""

import argparse
import collections
import copy
import faulthandler
import hashlib
import itertools
import json
import math
import os
import random
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
import warnings

DTYPES = ("float32", "bfloat16", "int64", "bool")
SUITES = ("ops", "foreach", "modules", "optim")
VARIANTS = ("inplace", "out", "noncontig", "method", "errors")
# rtol, atol. The CPU's own result or, where that differs, a result computed one precision up is accepted.
TOL = {"float16": (2e-3, 1e-3), "bfloat16": (2e-2, 1e-2), "float32": (1e-4, 1e-5), "float64": (1e-7, 1e-7)}
TOL_GRAD = {"float16": (1e-2, 1e-2), "bfloat16": (5e-2, 5e-2), "float32": (1e-3, 1e-4), "float64": (1e-6, 1e-6)}
UP = {"bfloat16": "float32", "float16": "float32", "float32": "float64", "complex64": "complex128"}
# Uninitialised memory by design: shape, dtype and device are compared, values are not.
UNINIT = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided", "resize_", "resize_as_"}
# Entries of the database that no device but CUDA can run.
NOT_PORTABLE = re.compile(r"jiterator|_scaled_mm|_flash_attention|_efficient_attention|without_cudnn")
# Tensors that PyTorch itself wants on the CPU, whatever the device: the arguments after the input.
ON_CPU = {"tensor_split"}
# Statistics that the CPU returns in the input's reduced precision and CUDA in float32: both are right.
WIDE_OK = re.compile(r"native_(layer|batch|group)_norm|_native_batch_norm|_batch_norm_with_update")
COUNTERS = {"step", "eta", "mu", "mu_product"}  # what optimizers keep as tensors of one element and use as numbers
SEEDS = 6  # other seeds that are tried before a result counts as not random
RUNS = 16  # runs pooled for the statistics of a random op
PASS, MISMATCH, UNSUPPORTED, ERROR, TIMEOUT, CRASH = "pass", "mismatch", "unsupported", "error", "timeout", "crash"
BAD = (CRASH, TIMEOUT, MISMATCH, ERROR, UNSUPPORTED)
NO_KERNEL = re.compile(
    r"not implemented for|could not run '|not implemented|not (currently |yet )?supported|"
    r"unsupported|unimplemented|no kernel|does(n't| not) support|only supports|have no support",
    re.I,
)


# ---------------------------------------------------------------- worker: trees, copies, comparison
class Bad(Exception):
    def __init__(self, kind, text):
        super().__init__(text)
        self.kind = kind


def tmap(f, x):
    import torch

    if isinstance(x, (torch.Tensor, torch.device, torch.Generator)):
        return f(x)
    if isinstance(x, slice):
        return slice(tmap(f, x.start), tmap(f, x.stop), tmap(f, x.step))
    if isinstance(x, tuple):
        y = [tmap(f, v) for v in x]
        return type(x)(*y) if hasattr(x, "_fields") else tuple(y) if type(x) is tuple else type(x)(y)
    if isinstance(x, list):
        return [tmap(f, v) for v in x]
    if isinstance(x, dict):
        return {k: tmap(f, v) for k, v in x.items()}
    if isinstance(x, str) and x == "cpu":
        return f(torch.device(x))
    return x


def leaves(x):
    import torch

    if isinstance(x, torch.Tensor):
        return [x]
    if isinstance(x, dict):
        x = list(x.values())
    if isinstance(x, (list, tuple)):
        return [y for v in x for y in leaves(v)]
    return []


def dense(t):
    """Non-overlapping and without gaps, in whatever order of the dimensions."""
    n = 1
    for stride, size in sorted((st, sz) for st, sz in zip(t.stride(), t.shape) if sz != 1):
        if stride != n:
            return False
        n *= size
    return True


def copier(device):
    """A function that copies a tree of CPU values to a device; strides, and who shares memory with whom, are kept."""
    import torch

    dev, memo, bases = torch.device(device), {}, {}

    def base_of(s):
        """The copy of the whole storage that s looks into, as a vector of its dtype."""
        key = (s.untyped_storage().data_ptr(), s.dtype)
        if key not in bases:
            n = s.untyped_storage().nbytes() // s.element_size()
            flat = torch.empty(0, dtype=s.dtype).set_(s.untyped_storage(), 0, (n,), (1,))
            bases[key] = (s, flat.clone().to(dev))
        return bases[key][1]

    def one(t, shared):
        if isinstance(t, torch.device):
            return dev if t.type == "cpu" else t
        if isinstance(t, torch.Generator):
            return torch.Generator(dev).manual_seed(t.initial_seed())
        if id(t) in memo:
            return memo[id(t)][1]
        with torch.no_grad():
            s = t.detach()
            plain = s.layout is not torch.strided or s.numel() == 0 or s.is_conj() or s.is_neg()
            if plain or (dense(s) and s.untyped_storage().data_ptr() not in shared):
                r = s.clone().to(dev)
            else:
                try:
                    r = base_of(s).as_strided(s.size(), s.stride(), s.storage_offset())
                except Exception:
                    r = s.clone().to(dev)
        r.requires_grad_(t.requires_grad)
        if isinstance(t, torch.nn.Parameter):
            r = torch.nn.Parameter(r, requires_grad=t.requires_grad)
        memo[id(t)] = (t, r)  # t is held so that its id stays its own
        return r

    def copy_tree(x):
        n = collections.Counter(
            p for p, _ in {(t.untyped_storage().data_ptr(), id(t)) for t in leaves(x) if t.layout is torch.strided and t.numel()}
        )
        shared = {p for p, k in n.items() if k > 1}
        return tmap(lambda t: one(t, shared), x)

    return copy_tree


def host(t):
    import torch

    with torch.no_grad():
        t = t.detach().cpu().resolve_conj().resolve_neg()
        return t.to(torch.complex64) if t.dtype is torch.complex32 else t  # the CPU has no ComplexHalf comparison


def to_host(t):
    import torch

    return host(t) if isinstance(t, torch.Tensor) and t.layout is torch.strided else t


def same(a, b):
    """Bitwise equal trees on the CPU (NaN equals NaN)."""
    import torch

    if isinstance(a, torch.Tensor):
        if not isinstance(b, torch.Tensor) or a.shape != b.shape or a.dtype != b.dtype or a.layout != b.layout:
            return False
        if a.layout is not torch.strided:
            return same(a.to_dense(), b.to_dense())
        a, b = host(a), host(b)
        return bool(torch.equal(a, b) or ((a == b) | ((a != a) & (b != b))).all())
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return isinstance(b, (list, tuple)) and len(a) == len(b) and all(map(same, a, b))
    return a is b or a == b or (a != a and b != b)


def alike(a, b):
    """Equal but for rounding: what tells a random or nondeterministic op from one that merely rounds otherwise."""
    if same(a, b):
        return True
    try:
        Checker("cpu").compare(a, b, TOL_GRAD)
        return True
    except Bad:
        return False


class Checker:
    def __init__(self, device, scale=1.0):
        self.device, self.scale = device, scale
        self.strides = 0  # outputs whose strides differ from the CPU's: reported, not failed

    wide_ok = False

    def compare(self, act, exp, tol, own_tol=None, values=True, on_device=True, where="output"):
        import torch

        if (
            self.wide_ok
            and isinstance(act, torch.Tensor)
            and isinstance(exp, torch.Tensor)
            and act.dtype is torch.float32
            and exp.dtype in (torch.bfloat16, torch.float16)
        ):
            act = act.to(exp.dtype)
        if isinstance(exp, torch.Tensor):
            if not isinstance(act, torch.Tensor):
                raise Bad(MISMATCH, f"{where}: {type(act).__name__} instead of a tensor")
            want = torch.device(self.device).type
            if on_device and exp.device.type == "cpu" and act.device.type != want:
                raise Bad(MISMATCH, f"{where}: on device {act.device} instead of {want}")
            for what in ("dtype", "shape", "layout"):
                if getattr(act, what) != getattr(exp, what):
                    raise Bad(MISMATCH, f"{where}: {what} {getattr(act, what)} instead of {getattr(exp, what)}")
            if (
                exp.layout is torch.strided
                and exp.numel()
                and any(n > 1 and a != b for n, a, b in zip(exp.shape, act.stride(), exp.stride()))
            ):
                self.strides += 1
            if not values:
                return
            if exp.layout is not torch.strided:
                act, exp = act.to_dense(), exp.to_dense()
            name = str(exp.dtype).removeprefix("torch.").replace("complex64", "float32").replace("complex128", "float64")
            rtol, atol = (max(p) for p in zip(tol.get(name, (0, 0)), (own_tol or {}).get(name, (0, 0))))
            if name in ("bfloat16", "float16") and exp.numel():  # one unit in the last place of the largest value
                top = host(exp).float().nan_to_num(0, 0, 0).abs().max()
                atol += float(top) * torch.finfo(exp.dtype).eps
            try:
                torch.testing.assert_close(
                    host(act), host(exp), rtol=rtol * self.scale, atol=atol * self.scale, equal_nan=True, check_stride=False
                )
            except AssertionError as e:
                text = " ".join(str(e).split())
                raise Bad(MISMATCH, f"{where}: {text}") from None
        elif isinstance(exp, dict):
            if not isinstance(act, dict) or set(act) != set(exp):
                raise Bad(MISMATCH, f"{where}: keys differ")
            for k in exp:
                self.compare(act[k], exp[k], tol, own_tol, values, on_device, f"{where}[{k}]")
        elif isinstance(exp, (list, tuple)):
            if not isinstance(act, (list, tuple)) or len(act) != len(exp):
                raise Bad(MISMATCH, f"{where}: {len(exp)} results expected")
            for i, (a, e) in enumerate(zip(act, exp)):
                self.compare(a, e, tol, own_tol, values, on_device, f"{where}[{i}]")
        elif isinstance(exp, float) and isinstance(act, float):
            if values and not (math.isclose(act, exp, rel_tol=1e-3, abs_tol=1e-4) or (act != act and exp != exp)):
                raise Bad(MISMATCH, f"{where}: {act} instead of {exp}")
        elif values and type(act) is type(exp) and isinstance(exp, (bool, int, str, complex)) and act != exp:
            raise Bad(MISMATCH, f"{where}: {act} instead of {exp}")
        elif type(act) is not type(exp):
            raise Bad(MISMATCH, f"{where}: {type(act).__name__} instead of {type(exp).__name__}")


def pooled(outs):
    """One float64 vector per tensor position, over several runs."""
    import torch

    cols = zip(*[[host(t.to_dense() if t.layout is not torch.strided else t).flatten() for t in leaves(o)] for o in outs])
    res = []
    for col in cols:
        v = torch.cat(list(col))
        v = torch.view_as_real(v).flatten() if v.is_complex() else v
        res.append((v.double(), len(col[0])))
    return res


def compare_random(checker, dev_outs, cpu_outs):
    import torch

    for d in dev_outs:
        checker.compare(d, cpu_outs[0], TOL, values=False)
    if not alike(tmap(to_host, dev_outs[0]), tmap(to_host, dev_outs[1])):
        raise Bad(MISMATCH, "random: the same seed gives another result")
    if all(same(dev_outs[0], d) for d in dev_outs[2:]):
        raise Bad(MISMATCH, "random: every seed gives the same result")
    for i, ((d, _), (c, numel)) in enumerate(zip(pooled(dev_outs[1:]), pooled(cpu_outs[1:]))):
        if not c.numel():
            continue
        if bool(torch.isfinite(c).all()) and not bool(torch.isfinite(d).all()):
            raise Bad(MISMATCH, f"random: output {i} is not finite")
        # Kolmogorov-Smirnov distance; elements of one run may depend on one another, hence sqrt(numel).
        bound = 2.69 * math.sqrt(2 / (RUNS * math.sqrt(numel)))
        if bound < 1:
            c, d = c.sort().values, d.sort().values
            grid = torch.cat([c, d]).sort().values
            f = [torch.searchsorted(v, grid, right=True).double() / len(v) for v in (c, d)]
            ks = float((f[0] - f[1]).abs().max())
            if ks > bound:
                raise Bad(
                    MISMATCH,
                    f"random: output {i} is distributed otherwise (KS distance {ks:.2f} > {bound:.2f}; "
                    f"mean {d.mean():.4g} for {c.mean():.4g})",
                )


# Results that are right in more than one form are brought to one form, on the host, before comparison.
def canon(name, sample_input, out):
    import torch

    outs = [host(t) for t in leaves(out)]
    if name in ("svd", "linalg.svd") and len(outs) == 3:
        u, s, v = outs
        k = s.shape[-1]
        vh = v.mH if name == "svd" else v
        return [s, (u[..., :k] * s.unsqueeze(-2)) @ vh[..., :k, :]]
    if name in ("linalg.eigh", "symeig") and len(outs) == 2:
        w, v = outs
        return [w, (v * w.unsqueeze(-2).to(v.dtype)) @ v.mH]
    if name in ("linalg.eig", "linalg.eigvals"):
        w = outs[0]
        key = torch.round(w.real * 1e3) * 1e6 + w.imag
        ws = torch.gather(w, -1, key.argsort(-1))
        return [ws] if len(outs) == 1 else [ws, outs[1] @ torch.diag_embed(w) @ torch.linalg.pinv(outs[1])]
    if name in ("qr", "linalg.qr") and len(outs) == 2 and outs[0].numel():
        q, r = outs
        return [q @ r, r.abs()]
    return None


TIES = {
    "sort",
    "argsort",
    "topk",
    "kthvalue",
    "median",
    "nanmedian",
    "mode",
    "msort",
    "max.reduction_with_dim",
    "min.reduction_with_dim",
    "nn.functional.max_pool1d",
    "nn.functional.max_pool2d",
    "nn.functional.max_pool3d",
    "nn.functional.adaptive_max_pool1d",
    "nn.functional.adaptive_max_pool2d",
    "nn.functional.adaptive_max_pool3d",
    "nn.functional.fractional_max_pool2d",
    "nn.functional.fractional_max_pool3d",
}


def tie_values(name, inp, args, kwargs, out):
    """Indices among equal elements may be any of them: the values that they point at are compared instead."""
    import torch

    if name not in TIES or not isinstance(inp, torch.Tensor):
        return None
    res = []
    for i, t in enumerate(leaves(out)):
        t = host(t)
        if t.dtype is not torch.int64 or (len(leaves(out)) == 2 and i == 0):
            res.append(t)
        elif "pool" in name:
            n = {"1": 1, "2": 2, "3": 3}[name[-2]]
            res.append(host(inp).flatten(-n).gather(-1, t.flatten(-n)))
        else:
            dim = kwargs.get(
                "dim",
                next((a for a in args[(name in ("topk", "kthvalue")) :] if isinstance(a, int) and not isinstance(a, bool)), -1),
            )
            x, nd = host(inp), inp.dim()
            if nd == 0:
                res.append(x)
                continue
            idx = t if t.dim() == nd else t.unsqueeze(dim)
            res.append(x.gather(dim, idx))
    return res


# ---------------------------------------------------------------- worker: units
class Sample:
    """What one call needs: args[0] is the op's input."""

    def __init__(self, args, kwargs, broadcasts=False, post=None, text=""):
        self.args, self.kwargs, self.broadcasts, self.post, self.text = tuple(args), dict(kwargs), broadcasts, post, text


def short(sample):
    import torch

    def d(x):
        if isinstance(x, torch.Tensor):
            return f"{str(x.dtype)[6:]}{list(x.shape)}" + ("" if x.layout is torch.strided and x.is_contiguous() else "'")
        if isinstance(x, dict):
            return "{" + ", ".join(f"{k}={d(v)}" for k, v in x.items()) + "}"
        if isinstance(x, (list, tuple)):
            return "(" + ", ".join(d(v) for v in x) + ")"
        return repr(x)

    return (
        (sample.text + " " if sample.text else "")
        + d(sample.args)[1:-1]
        + "".join(f", {k}={d(v)}" for k, v in sample.kwargs.items())
    )


class OpUnit:
    def __init__(self, op, foreach=False):
        self.op, self.foreach, self.name = op, foreach, op.full_name
        self.inplace = op.inplace_variant
        self.call = op if not foreach else op.method_variant or op.inplace_variant
        self.method = None if foreach else op.method_variant
        self.own_tol = own_tolerances(op)

    def dtypes(self):
        return {str(d).removeprefix("torch.") for d in self.op.supported_dtypes("cpu")}

    def grad_ok(self):
        return self.op.supports_autograd and not (self.foreach and not self.op.method_variant)

    def has_out(self):
        return bool(self.op.supports_out) and not self.foreach

    def samples(self, dtype, grad, reference=False):
        make = self.op.reference_inputs if reference else self.op.sample_inputs
        for s in make("cpu", dtype, requires_grad=grad):
            yield Sample((s.input, *s.args), s.kwargs, s.broadcasts_input, s.output_process_fn_grad, s.name or "")

    def errors(self):
        if self.op.error_inputs_func is None:
            return
        for e in self.op.error_inputs("cpu"):
            s = e.sample_input
            yield Sample((s.input, *s.args), s.kwargs), e.error_type, e.error_regex


class ModuleUnit:
    inplace = method = None
    own_tol = {}

    def __init__(self, info, training):
        self.info, self.training = info, training
        self.name = info.name + (".train" if training else ".eval")

    def dtypes(self):
        return {str(d).removeprefix("torch.") for d in self.info.supported_dtypes("cpu")} | {"bfloat16"}

    def grad_ok(self):
        return True

    def has_out(self):
        return False

    def errors(self):
        return ()

    def samples(self, dtype, grad, reference=False):
        for mi in self.info.module_inputs_func(self.info, device="cpu", dtype=dtype, requires_grad=grad, training=self.training):
            if mi.forward_input is None:
                continue
            c = mi.constructor_input
            m = self.info.module_cls(*c.args, **c.kwargs).to(dtype)
            m.train(self.training)
            state = dict(itertools.chain(m.named_parameters(), m.named_buffers()))
            s = Sample((state, *mi.forward_input.args), mi.forward_input.kwargs, text=mi.desc)
            s.module = m
            yield s

    @staticmethod
    def call(*args, _module, **kwargs):
        m = copy.deepcopy(_module).to(device=next((t.device for t in leaves(args)), None))
        out = torch_functional_call(m, args[0], args[1:], kwargs)
        return out


def torch_functional_call(m, state, args, kwargs):
    from torch.func import functional_call

    return functional_call(m, state, args, kwargs)


class OptimUnit:
    inplace = method = None
    own_tol = {}

    def __init__(self, info, impl):
        self.info, self.impl = info, impl
        self.name = info.optim_cls.__name__ + "." + impl

    def dtypes(self):
        return {"float32", "bfloat16"}

    def grad_ok(self):
        return False

    def has_out(self):
        return False

    def errors(self):
        return ()

    def samples(self, dtype, grad, reference=False):
        import torch

        for oi in self.info.optim_inputs_func("cpu"):
            kw = dict(oi.kwargs)
            if any(kw.get(k) for k in ("differentiable", "capturable", "fused")):
                continue
            shapes = ((4, 5), (5, 3)) if self.info.optim_cls.__name__ == "Muon" else ((4, 5), (5,), (5, 3), ())
            params = [torch.randn(s).to(dtype) for s in shapes]
            grads = [[torch.randn(s).to(dtype) for s in shapes] for _ in range(4)]
            if self.info.only_supports_sparse_grads:
                grads = [[g.to_sparse() for g in gs[:1]] for gs in grads]
                params = params[:1]
            yield Sample((params, grads), kw, text=oi.desc)

    def call(self, params, grads, **kw):
        import torch

        ps = [torch.nn.Parameter(p) for p in params]
        if self.impl != "default" or "foreach" in self.info.supported_impls:
            kw["foreach"] = self.impl == "foreach"
        opt = self.info.optim_cls(ps, **kw)
        for gs in grads:

            def closure():
                loss = sum((p * p).sum() for p in ps)
                for p, g in zip(ps, gs):
                    p.grad = g.clone()
                return loss.detach()

            closure()
            opt.step(closure) if self.info.step_requires_closure else opt.step()
        state = (
            {
                str(i): {k: v.item() if k in COUNTERS else v for k, v in opt.state[p].items() if isinstance(v, torch.Tensor)}
                for i, p in enumerate(ps)
            }
            if not self.info.step_requires_closure
            else {}
        )
        return [[p.detach() for p in ps], state]  # counters that an optimizer keeps on the CPU are plain numbers here


def own_tolerances(op):
    """The tolerances that PyTorch's own tests use for this op on any device or on the CPU."""
    from torch.testing._internal.common_device_type import toleranceOverride

    res = {}
    for d in op.decorators or ():
        if getattr(d, "device_type", None) not in (None, "cpu") or getattr(d, "cls_name", None) in (
            "TestConsistency",
            "TestInductorOpInfo",
            "TestMasked",
            "TestJit",
        ):
            continue
        for o in getattr(d, "decorators", [d]):
            if isinstance(o, toleranceOverride):
                for dt, t in o.d.items():
                    k = str(dt).removeprefix("torch.")
                    cap = TOL_GRAD.get(k, (0, 0))[0] * 5
                    r = res.get(k, (0, 0))
                    res[k] = (max(r[0], min(t.rtol, cap)), max(r[1], min(t.atol, cap)))
    return res


def make_units(suites):
    units = []
    if "ops" in suites or "foreach" in suites:
        from torch.testing._internal import common_methods_invocations as cmi

        # The database seeds random ops within the call; here the seed is the harness's, so that they are told apart.
        cmi.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)
        if "ops" in suites:
            units += [("ops", OpUnit(o)) for o in cmi.op_db]
        if "foreach" in suites:
            dbs = (
                cmi.foreach_unary_op_db,
                cmi.foreach_binary_op_db,
                cmi.foreach_pointwise_op_db,
                cmi.foreach_reduce_op_db,
                cmi.foreach_other_op_db,
            )
            units += [("foreach", OpUnit(o, True)) for db in dbs for o in db]
    if "modules" in suites:
        from torch.testing._internal.common_modules import module_db

        units += [
            ("modules", ModuleUnit(m, t))
            for m in module_db
            for t in ((True, False) if m.train_and_eval_differ else (True,))
            if not m.is_lazy
        ]
    if "optim" in suites:
        from torch.testing._internal.common_optimizers import optim_db

        units += [
            ("optim", OptimUnit(o, i))
            for o in optim_db
            for i in (("forloop", "foreach") if "foreach" in o.supported_impls else ("default",))
        ]
    seen, res = collections.Counter(), []
    for suite, u in units:
        u.suite = suite
        key = u.name if suite == "ops" else f"{suite}:{u.name}"
        seen[key] += 1
        u.key = key if seen[key] == 1 else f"{key}#{seen[key]}"
        res.append(u)
    return res


# ---------------------------------------------------------------- worker: did the backend fall back to the CPU?
class Fallback:
    """Which ATen operators go through at::native::cpu_fallback on a PrivateUse1 device: that function, and nothing else
    in PyTorch, moves its arguments with aten::_to_cpu. It is overridden only in a run of its own, whose result isn't
    judged. A backend with another fallback names a counter (--fallback-counter module:function, an int or a dict)."""

    def __init__(self, device, counter):
        import torch

        self.counter, self.names, self.current = None, set(), "?"
        if counter:
            mod, fn = counter.split(":")
            f = getattr(__import__(mod, fromlist=["x"]), fn)
            self.counter = lambda: sum(v.values()) if isinstance(v := f(), dict) else int(v)
        self.on = torch.device(device).type == torch._C._get_privateuse1_backend_name()

    def count(self):
        return self.counter() if self.counter else 0

    def trace(self, f):
        import torch
        from torch.utils._python_dispatch import TorchDispatchMode

        me = self

        def to_cpu(ts):
            me.names.add(me.current)
            return [t.cpu() if isinstance(t, torch.Tensor) else torch.tensor(t) for t in ts]

        class Mode(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                prev, me.current = me.current, str(func)
                try:
                    return func(*args, **(kwargs or {}))
                finally:
                    me.current = prev

        self.names, self.current = set(), "?"
        lib = torch.library.Library("aten", "IMPL")
        try:
            lib.impl("_to_cpu", to_cpu, "PrivateUse1")
            with Mode():
                f()
        except Exception:
            pass
        finally:
            lib._destroy()
        return self.names


# ---------------------------------------------------------------- worker: the checks
class Skip(Exception):
    pass


def compiled(f, backend):
    """The call as a graph of its own."""
    import torch

    def call(*args, **kwargs):
        return f(*args, **kwargs)

    torch._dynamo.reset()
    return torch.compile(call, backend=backend, dynamic=False)


class Runner:
    def __init__(self, a):
        import torch

        self.a, self.dev = a, a.device
        self.chk = Checker(a.device, a.tol_scale)
        self.fb = Fallback(a.device, a.fallback_counter)
        self.is_cpu = torch.device(a.device).type == "cpu"
        self.device_kw = {}

    def seed(self, s):
        import torch

        torch.manual_seed(s)
        random.seed(s)
        import numpy

        numpy.random.seed(s % 2**32)

    def bind(self, unit, sample, device, seed, fn=None, tr=None):
        """Fresh copies of the sample on a device, and the call on them."""
        import torch

        cp = copier(device)
        args, kwargs = cp((sample.args, sample.kwargs))
        if unit.name in ON_CPU:
            cp = copier("cpu")
            args = (args[0], *cp(sample.args[1:]))
            kwargs = cp(sample.kwargs)
        if not leaves((args, kwargs)) and "device" not in kwargs and self.takes_device(unit, sample):
            kwargs["device"] = torch.device(device)
        if tr:
            args, kwargs = tr(args), tr(kwargs)
        if hasattr(sample, "module"):
            kwargs["_module"] = sample.module
        f = fn or unit.call
        if self.a.compile and torch.device(device).type != "cpu":
            f = compiled(f, self.a.compile)

        def go():
            self.seed(seed)
            return f(*args, **kwargs)

        return go, args, {k: v for k, v in kwargs.items() if k != "_module"}

    def takes_device(self, unit, sample):
        if unit.name not in self.device_kw:
            try:
                unit.call(*sample.args, **sample.kwargs, device="cpu")
                self.device_kw[unit.name] = True
            except Exception:
                self.device_kw[unit.name] = False
        return self.device_kw[unit.name]

    def on_cpu(self, unit, sample, seed, fn=None):
        go, args, kw = self.bind(unit, sample, "cpu", seed, fn)  # a failure here is the harness's own: not skipped
        try:
            return go(), args, kw
        except Exception as e:
            raise Skip(f"the CPU itself raises {type(e).__name__}") from None

    def upcast(self, unit, sample, seed, out, fn=None):
        """The expected output from inputs one precision up, cast to the dtypes of out. None where that can't be had."""
        import torch

        try:

            def up(t):
                if not isinstance(t, torch.Tensor) or str(t.dtype)[6:] not in UP:
                    return t
                return t.detach().to(getattr(torch, UP[str(t.dtype)[6:]]))

            go, _, _ = self.bind(unit, sample, "cpu", seed, fn, tr=lambda x: tmap(up, x))
            ref = go()
            cast = iter([t.dtype for t in leaves(out)])
            return tmap(lambda t: t.to(next(cast)) if isinstance(t, torch.Tensor) else t, ref)
        except Exception:
            return None

    def match(self, unit, sample, act, exp, args_dev, args_cpu, tol, seed, fn=None):
        values = unit.name not in UNINIT
        own = unit.own_tol
        try:
            self.chk.compare(act, exp, tol, own, values)
        except Bad as first:
            if not values or self.is_cpu:
                raise
            up = self.upcast(unit, sample, seed, exp, fn)
            inp, rest = sample.args[0], sample.args[1:]
            for form in (lambda o: canon(unit.name, inp, o), lambda o: tie_values(unit.name, inp, rest, sample.kwargs, o), None):
                try:
                    if form is None:
                        if up is None:
                            raise first
                        self.chk.compare(act, up, tol, own, values)
                    else:
                        try:
                            self.chk.compare(act, exp, tol, own, values=False)
                            a, e = form(act), form(exp)
                        except Exception:
                            continue
                        if e is None:
                            continue
                        self.chk.compare(a, e, {k: (r * 10, t * 10) for k, (r, t) in tol.items()}, own, on_device=False)
                    return
                except Bad:
                    continue
            raise first
        if values:  # what the call did to its arguments
            self.chk.compare(args_dev, args_cpu, tol, own, on_device=False, where="argument after the call")

    # each check returns nothing, raises Skip, or raises what the device did wrong
    def forward(self, unit, sample, seed, fn=None):
        exp, acpu, kcpu = self.on_cpu(unit, sample, seed, fn)
        again, aagain, _ = self.on_cpu(unit, sample, seed, fn)
        if unit.name not in UNINIT:
            if not alike(exp, again) or not alike(acpu, aagain):
                raise Skip("the CPU is not deterministic here")
            for k in range(1, 1 + SEEDS):  # a single random number may be the same by chance
                other, aother, _ = self.on_cpu(unit, sample, seed + k, fn)
                if not alike(exp, other) or not alike(acpu, aother):
                    break
            if not alike(exp, other) or not alike(acpu, aother):
                outs = [exp] + [self.on_cpu(unit, sample, seed + i, fn)[0] for i in range(RUNS)]
                if alike(exp, other):  # only an argument was changed
                    raise Skip("random change of an argument")
                devs = []
                for i in [0] + list(range(RUNS)):
                    devs.append(self.bind(unit, sample, self.dev, seed + i, fn)[0]())
                compare_random(self.chk, devs, outs)
                return
        go, adev, kdev = self.bind(unit, sample, self.dev, seed, fn)
        act = go()
        self.match(unit, sample, act, exp, [adev, kdev], [acpu, kcpu], TOL, seed, fn)

    def inplace(self, unit, sample, seed):
        if unit.inplace is None or sample.broadcasts:
            raise Skip("no inplace variant for this sample")
        fn = unit.inplace
        exp, acpu, kcpu = self.on_cpu(unit, sample, seed, fn)
        for k in range(1, 1 + SEEDS):
            if not alike(acpu[0], self.on_cpu(unit, sample, seed + k, fn)[1][0]):
                raise Skip("random")
        go, adev, kdev = self.bind(unit, sample, self.dev, seed, fn)
        act = go()
        if not unit.foreach and act is not adev[0]:
            raise Bad(MISMATCH, "inplace: the result is not the input tensor")
        self.match(
            unit, sample, adev[0], acpu[0], [adev[1:], kdev], [acpu[1:], kcpu], TOL, seed, lambda *a, **k: (fn(*a, **k), a[0])[1]
        )

    def out(self, unit, sample, seed):
        import torch

        if not unit.has_out():
            raise Skip("no out= variant")
        exp, _, _ = self.on_cpu(unit, sample, seed)
        ts = leaves(exp)
        if not ts or len(ts) != len(exp if isinstance(exp, (list, tuple)) else [exp]):
            raise Skip("no out= for this sample")
        form = (lambda b: b[0]) if isinstance(exp, torch.Tensor) else tuple

        def fill(dev):
            return [torch.full_like(t, 1, device=dev) if t.layout is torch.strided else None for t in ts]

        bufs = fill("cpu")
        if any(b is None for b in bufs):
            raise Skip("no out= for this layout")
        res, _, _ = self.on_cpu(unit, sample, seed, lambda *a, **k: unit.call(*a, out=form(bufs), **k))
        if not alike([host(b) for b in bufs], [host(t) for t in ts]) and unit.name not in UNINIT:
            raise Skip("random or out= differs on the CPU")
        for k in range(1, 1 + SEEDS):
            if not alike(self.on_cpu(unit, sample, seed + k)[0], exp):
                raise Skip("random: another device has numbers of its own")
        devb = [b.to(self.dev) for b in fill("cpu")]
        go, adev, kdev = self.bind(unit, sample, self.dev, seed, lambda *a, **k: unit.call(*a, out=form(devb), **k))
        act = go()
        if any(a is not b for a, b in zip(leaves(act), devb)):
            raise Bad(MISMATCH, "out: the result is not the out= tensor")
        self.match(unit, sample, form(devb), form(bufs), [], [], TOL, seed)

    def noncontig(self, unit, sample, seed):
        import torch
        from torch.testing._internal.common_utils import noncontiguous_like

        def nc(t):
            return (
                noncontiguous_like(t)
                if isinstance(t, torch.Tensor) and t.layout is torch.strided and t.dim() and t.numel() > 1
                else t
            )

        with torch.no_grad():
            s = Sample(tmap(nc, sample.args), tmap(nc, sample.kwargs), sample.broadcasts, sample.post, sample.text)
        if hasattr(sample, "module"):
            raise Skip("not for modules")
        self.forward(unit, s, seed)

    def method(self, unit, sample, seed):
        import torch

        if unit.method is None or not isinstance(sample.args[0], torch.Tensor):
            raise Skip("no method variant")
        self.forward(unit, sample, seed, unit.method)

    def grad(self, unit, sample, seed):
        import torch

        def run(device, bound=None):
            go, args, kwargs = bound or self.bind(unit, sample, device, seed)
            leaf = [t for t in leaves((args, kwargs)) if t.requires_grad]
            out = go()
            if sample.post:
                out = sample.post(out)
            outs = [t for t in leaves(out) if t.requires_grad]
            if not outs or not leaf:
                return None
            g = torch.Generator().manual_seed(seed)
            gs = [torch.randn(t.shape, generator=g, dtype=torch.float32).to(t.dtype).to(device) for t in outs]
            res = torch.autograd.grad(outs, leaf, gs, allow_unused=True)
            # clone: comparing a tensor that PyTorch keeps as "all zeros" crashes the CPU under a dispatch mode
            return [[t.detach() for t in outs], [r if r is None else r.clone() for r in res]]

        bound = self.bind(unit, sample, "cpu", seed)
        try:
            exp, again = run("cpu", bound), run("cpu")
            first, others = seed, []
            for k in range(1, 1 + SEEDS):
                seed = first + k
                others.append(run("cpu"))
            seed = first
        except Exception as e:
            raise Skip(f"the CPU itself raises {type(e).__name__}") from None
        if exp is None:
            raise Skip("nothing to differentiate")
        if not alike(exp, again):
            raise Skip("the CPU is not deterministic here")
        if not all(alike(exp[0], other[0]) for other in others):
            raise Skip("random")
        act = run(self.dev)
        if act is None:
            raise Bad(MISMATCH, "grad: the device's result does not require grad")
        for i, (a, e) in enumerate(zip(act[1], exp[1])):
            self.chk.compare(a, e, TOL_GRAD, unit.own_tol, where=f"grad[{i}]")

    def error(self, unit, sample, kind, regex, seed):
        def call(device):
            try:
                self.bind(unit, sample, device, seed)[0]()
            except Exception as e:
                return e

        e = call("cpu")
        if e is None or not isinstance(e, kind) or not re.search(regex, str(e)):
            raise Skip("the CPU does not raise that here")
        e = call(self.dev)
        if e is None:
            raise Bad(MISMATCH, f"errors: {kind.__name__} expected, nothing raised")
        if not isinstance(e, kind) or not re.search(regex, str(e)):
            raise Bad(MISMATCH, f"errors: {kind.__name__} /{regex}/ expected, got {type(e).__name__}: {str(e)[:120]}")

    def check(self, rec, what, unit, sample, i, f, probe):
        """Runs one check, and adds its outcome to the record."""
        r = rec["checks"].setdefault(what, {"pass": 0})
        n = self.fb.count()
        try:
            f()
            kind, text = PASS, ""
        except Skip as e:
            kind, text = "skip", str(e)
        except Bad as e:
            kind, text = e.kind, str(e)
        except KeyboardInterrupt:
            raise
        except BaseException as e:
            line = next((x for x in str(e).splitlines() if x.strip()), "")
            kind = UNSUPPORTED if isinstance(e, NotImplementedError) or NO_KERNEL.search(line) else ERROR
            text = f"{type(e).__name__}: {line}"
        r[kind] = r.get(kind, 0) + 1
        if kind == "skip":
            rec["skips"][text] = rec["skips"].get(text, 0) + 1
        elif kind != PASS and not any(x["kind"] == kind and x["check"] == what for x in rec["failures"]):
            rec["failures"].append({"check": what, "kind": kind, "text": text[:300], "sample": i, "inputs": short(sample)[:300]})
        fell = self.fb.count() > n
        if self.fb.on and kind != "skip" and probe:
            names = self.fb.trace(f)
            rec["fell_back_ops"] = sorted({*rec["fell_back_ops"], *names})
            fell = fell or bool(names)
        if fell and kind != "skip":
            r["fell_back"] = r.get("fell_back", 0) + 1

    def run(self, unit, dtype_name, emit):
        import torch

        a, dtype = self.a, getattr(torch, dtype_name)
        seed = a.seed + int(hashlib.sha1(f"{unit.key}/{dtype_name}".encode()).hexdigest()[:6], 16)
        rec = {"checks": {}, "failures": [], "skips": {}, "fell_back_ops": [], "samples_total": 0}
        t0 = time.time()
        soft = t0 + a.timeout * 0.8
        self.chk.strides, self.chk.wide_ok = 0, bool(WIDE_OK.search(unit.name))

        def pick(grad=False):
            self.seed(seed)
            try:
                ss = list(unit.samples(dtype, grad, a.reference))
            except Exception as e:
                rec["skips"][f"no samples: {type(e).__name__}"] = 1
                return []
            rec["samples_total"] = max(rec["samples_total"], len(ss))
            k = a.max_samples
            if not k or len(ss) <= k:
                return list(enumerate(ss))
            ids = sorted({round(j * (len(ss) - 1) / max(k - 1, 1)) for j in range(k)})
            return [(j, ss[j]) for j in ids]

        plan = []
        chosen = pick()
        plan += [("forward", i, s, lambda s=s: self.forward(unit, s, seed)) for i, s in chosen]
        for v in a.variants:
            if v == "errors":
                self.seed(seed)
                try:
                    errs = list(unit.errors()) if dtype_name == a.dtypes[0] else []
                except Exception:
                    errs = []
                plan += [
                    ("errors", i, s, lambda s=s, k=k, x=x: self.error(unit, s, k, x, seed)) for i, (s, k, x) in enumerate(errs)
                ]
            else:
                plan += [(v, i, s, lambda s=s, v=v: getattr(self, v)(unit, s, seed)) for i, s in chosen]
        if a.grad and dtype_name == "float32" and unit.grad_ok():
            plan += [("grad", i, s, lambda s=s: self.grad(unit, s, seed)) for i, s in pick(True)]
        probes = collections.Counter()  # whether an op falls back is asked of its first two samples only
        for n, (what, i, s, f) in enumerate(plan):
            if time.time() > soft:
                rec["cut_short"] = len(plan) - n
                break
            emit({"at": [what, i]}) if a.trace_samples else None
            self.check(rec, what, unit, s, i, f, a.fallback and what != "errors" and probes[what] < 2)
            probes[what] += 1
        rec["strides_differ"] = self.chk.strides
        rec["seconds"] = round(time.time() - t0, 3)
        return rec


def worker(a):
    proto = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever ops print goes to the log

    def emit(x):
        proto.write(json.dumps(x) + "\n")
        proto.flush()

    warnings.simplefilter("ignore")
    faulthandler.enable(sys.stderr)
    import torch

    for m in a.preload:
        __import__(m)
    torch.set_num_threads(1)
    units = {u.key: u for u in make_units(a.suite)}
    if a.warm:
        try:
            torch.ones(2, device=a.device) + 1
        except Exception as e:
            print(f"op_coverage: the first operation failed: {type(e).__name__}: {e}", file=sys.stderr)
    runner = Runner(a)
    emit({"ready": os.getpid()})
    for line in sys.stdin:
        key, dtypes = json.loads(line)
        for d in dtypes:
            emit({"start": d})
            warnings.simplefilter("ignore")
            emit({"result": d, "rec": runner.run(units[key], d, emit)})
        emit({"done": key})
    proto.flush()
    os._exit(0)


# ---------------------------------------------------------------- master
class Proc:
    def __init__(self, a, n):
        self.log = os.path.join(a.logs, f"worker{n}.log")
        self.f = open(self.log, "ab")
        self.p = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), "--worker", *sys.argv[1:]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.f,
        )
        self.task = self.dtype = None
        self.ready, self.since, self.buf, self.at = False, time.time(), b"", None

    def give(self, key, dtypes):
        self.task, self.todo, self.dtype, self.since = key, list(dtypes), None, time.time()
        self.p.stdin.write((json.dumps([key, dtypes]) + "\n").encode())
        self.p.stdin.flush()

    def kill(self):
        try:
            self.p.kill()
        except OSError:
            pass
        self.p.wait()
        for f in (self.p.stdin, self.p.stdout, self.f):
            try:
                f.close()
            except OSError:
                pass

    def last_line(self):
        try:
            with open(self.log, "rb") as f:
                f.seek(max(0, os.path.getsize(self.log) - 4000))
                ls = [x for x in f.read().decode(errors="replace").splitlines() if x.strip()]
            for rx in (r"what\(\)|assertion .*failed|Check failed", r"^Fatal Python error", r"^\w*(Error|Exception)\b"):
                for x in reversed(ls):
                    if re.search(rx, x):
                        return x.strip()[:200]
            return ls[-1].strip()[:200] if ls else ""
        except OSError:
            return ""


def verdict(unit_recs):
    """pass, skip, or the worst thing that happened, for one op over its dtypes."""
    c = collections.Counter()
    for r in unit_recs.values():
        for k in r["checks"].values():
            c.update({x: n for x, n in k.items() if x not in ("fell_back",)})
    for kind in BAD:
        if c[kind]:
            return kind
    return PASS if c[PASS] else "skip"


def master(a):
    os.makedirs(a.logs, exist_ok=True)
    warnings.simplefilter("ignore")
    import torch

    t0 = time.time()
    rx = re.compile(a.ops)
    tasks, off = collections.deque(), 0
    for u in make_units(a.suite):
        if not rx.search(u.key):
            continue
        have = u.dtypes()
        ds = [d for d in a.dtypes if d in have]
        if NOT_PORTABLE.search(u.name) or not ds:
            off += 1
            continue
        tasks.append((u.key, ds))
    total = len(tasks)
    results = {k: {} for k, _ in tasks}
    sel = selectors.DefaultSelector()
    procs, counter, bad_starts = [], itertools.count(), 0

    def spawn():
        p = Proc(a, next(counter))
        os.set_blocking(p.p.stdout.fileno(), False)
        sel.register(p.p.stdout, selectors.EVENT_READ, p)
        procs.append(p)

    def drop(p):
        sel.unregister(p.p.stdout)
        p.kill()
        procs.remove(p)

    def failed(p, kind, text):
        nonlocal bad_starts
        if p.task is None:
            if not p.ready:
                bad_starts += 1
                if bad_starts >= 3:
                    sys.exit(f"op_coverage: workers do not start ({text}); see {p.log}")
            return
        d = p.dtype or p.todo[0]
        what, i = p.at or ("forward", None)
        results[p.task][d] = {
            "checks": {what: {"pass": 0, kind: 1}},
            "skips": {},
            "fell_back_ops": [],
            "samples_total": 0,
            "strides_differ": 0,
            "seconds": round(time.time() - p.since, 1),
            "failures": [{"check": what, "kind": kind, "text": text, "sample": i, "inputs": ""}],
        }
        rest = [x for x in p.todo if x != d]
        if rest:
            tasks.appendleft((p.task, rest))

    for _ in range(min(a.jobs, max(total, 1))):
        spawn()
    last = 0
    while tasks or any(p.task for p in procs):
        for p in list(procs):
            if p.ready and p.task is None and tasks:
                try:
                    p.give(*tasks.popleft())
                except OSError:
                    tasks.appendleft((p.task, p.todo))
                    p.task = None
        for key, _ in sel.select(0.5):
            p = key.data
            try:
                data = os.read(p.p.stdout.fileno(), 1 << 20)
            except BlockingIOError:
                continue
            if not data:
                rc = p.p.wait()
                text = f"worker died: {signal.Signals(-rc).name if rc < 0 else 'exit ' + str(rc)}; {p.last_line()}"
                failed(p, CRASH, text)
                drop(p)
                if tasks:
                    spawn()
                continue
            p.buf += data
            *lines, p.buf = p.buf.split(b"\n")
            for line in lines:
                m = json.loads(line)
                if "ready" in m:
                    p.ready = True
                elif "start" in m:
                    p.dtype, p.since, p.at = m["start"], time.time(), None
                elif "at" in m:
                    p.at = m["at"]
                elif "result" in m:
                    results[p.task][m["result"]] = m["rec"]
                    p.todo.remove(m["result"])
                    p.since, p.dtype = time.time(), None
                elif "done" in m:
                    p.task = None
        for p in list(procs):
            limit = a.timeout if p.task else a.start_timeout if not p.ready else None
            if limit and time.time() - p.since > limit:
                failed(p, TIMEOUT, f"no answer in {limit:g} s")
                drop(p)
                if tasks:
                    spawn()
        n = total - len(tasks) - sum(1 for p in procs if p.task)
        if not a.quiet and n >= last + 50:
            last = n
            print(f"  {n}/{total} after {time.time() - t0:.0f} s", file=sys.stderr, flush=True)
    for p in list(procs):
        drop(p)
    return report(a, results, off, time.time() - t0, torch.__version__)


def report(a, results, off, seconds, version):
    ops, by_dtype, by_check, kinds = {}, {}, collections.defaultdict(collections.Counter), collections.Counter()
    samples, fell = collections.Counter(), []
    aten_fell = collections.Counter()
    for key, recs in sorted(results.items()):
        v = verdict(recs)
        kinds[v] += 1
        first = next((f for k in BAD for r in recs.values() for f in r["failures"] if f["kind"] == k), None)
        fb = sorted({x for r in recs.values() for x in r["fell_back_ops"]})
        aten_fell.update(fb)
        any_fb = any(k.get("fell_back") for r in recs.values() for k in r["checks"].values())
        if any_fb:
            fell.append(key)
        for d, r in recs.items():
            dv = verdict({d: r})
            by_dtype.setdefault(d, collections.Counter())[
                "passed" if dv == PASS else "skipped" if dv == "skip" else "failed"
            ] += 1
            for what, c in r["checks"].items():
                by_check[what].update(c)
                samples.update({x: n for x, n in c.items() if x != "fell_back"})
        ops[key] = {
            "status": v,
            "first_failure": first,
            "fell_back": any_fb,
            "fell_back_ops": fb,
            "seconds": round(sum(r["seconds"] for r in recs.values()), 3),
            "dtypes": recs,
        }
    passed, skipped = kinds[PASS], kinds["skip"]
    bad = sum(kinds[k] for k in BAD)
    ran = sum(n for k, n in samples.items() if k != "skip")
    cut = [k for k, o in ops.items() if any(r.get("cut_short") for r in o["dtypes"].values())]
    strides = sum(1 for o in ops.values() if any(r["strides_differ"] for r in o["dtypes"].values()))
    if a.list:
        for k, o in ops.items():
            if o["status"] not in (PASS, "skip"):
                f = o["first_failure"]
                d = next(d for d, r in o["dtypes"].items() if f in r["failures"])
                print(f"{o['status']:11} {k} [{d} {f['check']} #{f['sample']}] {f['text'][:160]}")
    if a.list_skips:
        why = collections.Counter()
        for k, o in ops.items():
            for d, r in o["dtypes"].items():
                why.update({(k, t): n for t, n in r["skips"].items()} if o["status"] == "skip" else {})
        for (k, t), n in why.items():
            print(f"skipped {k}: {t} x{n}")
    if a.list_fallback and aten_fell:
        print("fell back (ATen operator, in how many ops):", ", ".join(f"{k} {n}" for k, n in aten_fell.most_common()))
    print(
        f"device {a.device}, torch {version}, suites {','.join(a.suite)}, dtypes {','.join(a.dtypes)}, "
        f"max-samples {a.max_samples or 'all'}, seed {a.seed}, grad {'on' if a.grad else 'off'}, "
        f"variants {','.join(a.variants) or 'off'}, {a.jobs} jobs, {seconds:.0f} s"
    )
    print("by dtype:", "; ".join(f"{d} {c['passed']} passed, {c['failed']} failed" for d, c in by_dtype.items()))
    print(
        "by check:",
        "; ".join(
            f"{w} {c[PASS]} of {sum(n for k, n in c.items() if k not in ('skip', 'fell_back'))}" for w, c in by_check.items()
        ),
    )
    print("failed ops by worst cause:", ", ".join(f"{k} {kinds[k]}" for k in BAD))
    print(
        f"skipped {skipped} (no sample could be compared), not applicable {off}, cut short by the time limit {len(cut)}, "
        f"strides other than the CPU's {strides}, fell back to the CPU {len(fell)}, "
        f"passed without falling back {sum(1 for k, o in ops.items() if o['status'] == PASS and not o['fell_back'])}"
    )
    summary = {
        "ops_passed": passed,
        "ops_failed": bad,
        "ops_skipped": skipped,
        "ops_total": passed + bad,
        "not_applicable": off,
        "samples_passed": samples[PASS],
        "samples_failed": ran - samples[PASS],
        "samples_skipped": samples["skip"],
        "causes": {k: kinds[k] for k in BAD},
        "fell_back": len(fell),
        "strides_differ": strides,
        "cut_short": len(cut),
        "by_dtype": by_dtype,
        "by_check": by_check,
        "aten_fell_back": aten_fell,
    }
    rc = 0
    if a.json:
        with open(a.json, "w") as f:
            json.dump(
                {
                    "meta": {
                        "device": a.device,
                        "torch": str(version),
                        "suites": a.suite,
                        "dtypes": a.dtypes,
                        "max_samples": a.max_samples,
                        "seed": a.seed,
                        "grad": a.grad,
                        "variants": a.variants,
                        "ops": a.ops,
                        "seconds": round(seconds, 1),
                        "argv": sys.argv[1:],
                    },
                    "summary": summary,
                    "ops": ops,
                },
                f,
                indent=1,
            )
    if a.baseline:
        with open(a.baseline) as f:
            old = json.load(f)["ops"]
        both = [k for k in ops if k in old]
        worse = [k for k in both if old[k]["status"] == PASS and ops[k]["status"] not in (PASS, "skip")]
        better = [k for k in both if old[k]["status"] not in (PASS, "skip") and ops[k]["status"] == PASS]
        print(f"against {a.baseline}: {len(better)} newly pass, {len(worse)} no longer pass: {' '.join(worse)}")
        rc = 1 if worse else 0
    if a.strict and bad:
        rc = 1
    print(
        f"ops: {passed} passed, {bad} failed of {passed + bad}; samples {samples[PASS]} passed, "
        f"{ran - samples[PASS]} failed of {ran}; {len(fell)} ops fell back to the CPU"
    )
    print(f"ops: {passed} passed, {bad} failed, {skipped} skipped")
    return rc or (3 if not ran else 0)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--device", default="cpu")
    p.add_argument("--preload", action="append", default=[], metavar="MODULE", help="import this first; may be repeated")
    p.add_argument("--suite", default="ops", help=f"comma list of {','.join(SUITES)}, or all (default ops)")
    p.add_argument("--ops", default="", metavar="REGEX", help="only names that match")
    p.add_argument("--dtypes", default=",".join(DTYPES))
    p.add_argument("--max-samples", type=int, default=10, help="per op and dtype, spread over the list; 0 is all (default 10)")
    p.add_argument("--reference", action="store_true", help="reference_inputs (more and larger) instead of sample_inputs")
    p.add_argument("--grad", action="store_true", help="backward too, for float32")
    p.add_argument(
        "--variants",
        nargs="?",
        const="inplace,out",
        default="",
        help=f"comma list of {','.join(VARIANTS)}, or all; given bare: inplace,out",
    )
    p.add_argument(
        "--compile", nargs="?", const="tpu", default="", metavar="BACKEND", help="each call by torch.compile (backend tpu)"
    )
    p.add_argument("--timeout", type=float, default=60, help="seconds per op x dtype (default 60)")
    p.add_argument("--start-timeout", type=float, default=180)
    p.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--tol-scale", type=float, default=1.0)
    p.add_argument("--json", metavar="FILE")
    p.add_argument("--baseline", metavar="FILE", help="an earlier --json; exit 1 when an op that passed there fails here")
    p.add_argument("--strict", action="store_true", help="exit 1 when any op fails")
    p.add_argument("--list", action="store_true", help="print each failed op with its first failure")
    p.add_argument("--list-skips", action="store_true", help="print why each skipped op was skipped")
    p.add_argument("--list-fallback", action="store_true", help="print the ATen operators that fell back")
    p.add_argument("--fallback-counter", metavar="MODULE:FUNCTION")
    p.add_argument("--no-fallback", dest="fallback", action="store_false", help="do not look for CPU fallbacks")
    p.add_argument("--no-warm", dest="warm", action="store_false", help="no device call before the first op")
    p.add_argument("--no-trace-samples", dest="trace_samples", action="store_false")
    p.add_argument(
        "--logs", default=os.path.join(tempfile.gettempdir(), f"op_coverage.{os.getuid()}"), help="folder of the workers' logs"
    )
    p.add_argument("--quiet", action="store_true")
    p.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    a = p.parse_args()
    a.suite = list(SUITES) if a.suite == "all" else a.suite.split(",")
    a.dtypes = a.dtypes.split(",")
    a.variants = list(VARIANTS) if a.variants == "all" else [v for v in a.variants.split(",") if v]
    for given, known in ((a.suite, SUITES), (a.variants, VARIANTS)):
        if set(given) - set(known):
            p.error(f"unknown: {', '.join(set(given) - set(known))}")
    if a.worker:
        return worker(a)
    sys.exit(master(a))


if __name__ == "__main__":
    main()
