"""Rows that build otherwise for a TPU than for a CPU: what they build for a TPU, run by the plugin that is here, against torch's CPU
device. The process is told of a topology after torch was imported: too late for its programs to be compiled for a TPU as well, but
rows ask later."""

import textwrap

import pytest
from tpu_testing import device_only, run_python

pytestmark = device_only

HEAD = """
import os, torch
import torch.nn.functional as F
os.environ["TORCH_TPU_TOPOLOGY"] = "v5e:2x2"
torch.manual_seed(0)
nan, inf = float("nan"), float("inf")

def check(f, *inputs, tol=0.0, grad=False):
    def results(device):
        xs = [x.to(device) if torch.is_tensor(x) else x for x in inputs]
        if grad:
            xs = [x.detach().requires_grad_() if x.is_floating_point() else x for x in xs]
        y = f(*xs)
        y = list(y) if isinstance(y, tuple) else [y]
        if grad:
            w = torch.linspace(-1, 1, y[0].numel()).view(y[0].shape).to(y[0].dtype).to(device)
            y += torch.autograd.grad(y[0], [x for x in xs if x.requires_grad], w)
        return y
    for got, want in zip(results("tpu"), results("cpu"), strict=True):
        assert got.device.type == "tpu"
        torch.testing.assert_close(got.cpu(), want, rtol=tol, atol=tol, equal_nan=True)
"""

CASES = {
    "extremes": """
        x = torch.randn(7, 33).round(decimals=1)
        x[1, 4] = x[1, 30] = nan
        x[2, :] = -inf
        x[3, 5:20] = 9
        for v in (x, x.bfloat16(), (x.nan_to_num(0, 0, 0) * 10).to(torch.int64)):
            for dim in (0, 1):
                for name in ("amax", "amin", "argmax", "argmin"):
                    check(lambda t: getattr(t, name)(dim), v)
                check(lambda t: tuple(t.max(dim, keepdim=True)), v)
                check(lambda t: tuple(t.min(dim)), v)
            check(lambda t: t.argmax(), v)
            check(lambda t: t.max(), v)
        check(lambda t: t.logsumexp(1), x, tol=1e-6)
        check(lambda t: tuple(t.max(1)), x > 0)
        """,
    "scans": """
        x = torch.randn(3, 200)
        for dim in (0, 1):
            check(lambda t: t.cumsum(dim), x, tol=1e-5)
            check(lambda t: t.cumprod(dim), x, tol=1e-5)
            check(lambda t: t.logcumsumexp(dim), x, tol=1e-5)
            check(lambda t: tuple(t.cummax(dim)), x.round(decimals=1))
            check(lambda t: t.cumsum(dim), (x * 100).to(torch.int64))
            check(lambda t: t.cumsum(dim), x > 0)
        """,
    "pooling": """
        x = torch.randn(2, 3, 12, 13).round(decimals=1)  # with ties
        x[0, 0, 3, 3] = x[0, 0, 4, 4] = x[1, 2, 0, 0] = nan
        x[1, 1, 5, 5] = inf
        x[0, 1] = -inf
        for k in (dict(kernel_size=3, stride=2, padding=1), dict(kernel_size=2), dict(kernel_size=3, stride=2, ceil_mode=True),
                  dict(kernel_size=2, dilation=2), dict(kernel_size=9, stride=2, padding=3), dict(kernel_size=2, stride=3)):
            check(lambda t: F.max_pool2d(t, return_indices=True, **k), x, grad=True, tol=1e-6)
        check(lambda t: F.max_pool2d(t, 3, 2, 1, return_indices=True), x.bfloat16(), grad=True, tol=1e-2)
        check(lambda t: F.max_pool3d(t, 2, return_indices=True), x, grad=True, tol=1e-6)
        x = torch.randn(2, 3, 12, 16).round(decimals=1)
        x[0, 0, 3, 3] = nan
        for out in ((3, 4), (12, 8), 1, (5, 4)):
            check(lambda t: F.adaptive_max_pool2d(t, out, return_indices=True), x, grad=True, tol=1e-6)
            check(lambda t: F.adaptive_avg_pool2d(t, out), x, grad=True, tol=1e-6)
        check(lambda t: F.avg_pool2d(t, 3, 2, 1, count_include_pad=False), x, grad=True, tol=1e-6)
        """,
    "resizing": """
        x = torch.randn(2, 3, 5, 7)
        x[0, 0, 0, 0], x[0, 1, 2, 2], x[1, 1, 1, 1] = nan, inf, -0.0
        check(lambda t: 1 / F.interpolate(t, scale_factor=2), x)  # 1 / -0 tells it from 0
        for size in ((10, 14), (15, 7), (5, 21), (9, 20)):
            check(lambda t: F.interpolate(t, size=size), x, grad=True, tol=1e-6)
        check(lambda t: F.interpolate(t, scale_factor=3), (x.nan_to_num(0, 0, 0) * 100).to(torch.uint8))
        check(lambda t: F.interpolate(t, scale_factor=2), x.bfloat16())
        """,
    "unfold": """
        x = torch.randn(2, 3, 6, 7)
        x[0, 0, 2, 6] = inf
        for k in (dict(kernel_size=3, padding=1), dict(kernel_size=(5, 3), padding=(0, 1)), dict(kernel_size=3, padding=2, dilation=2),
                  dict(kernel_size=(1, 3), padding=(2, 1)), dict(kernel_size=3, stride=2, padding=1), dict(kernel_size=2)):
            check(lambda t: F.unfold(t, **k), x)
        check(lambda t: F.unfold(t, 3, padding=1), x[0])
        """,
    "embedding": """
        i = torch.randint(0, 500, (4, 60))
        i[:, :30] = i[:, 30:]
        i[0, :7] = 3
        def rows(**k):  # summed in float32, rounded once
            return lambda w: F.embedding(i.to(w.device), w.float() if w.is_cpu else w, **k).to(w.dtype)
        check(rows(padding_idx=3), torch.randn(500, 8).bfloat16(), grad=True)
        check(rows(), torch.randn(500, 8).half(), grad=True)
        check(rows(scale_grad_by_freq=True), torch.randn(500, 8).bfloat16(), grad=True, tol=1e-2)
        """,
    "qr": """
        for shape in ((5, 3), (3, 5), (4, 4), (2, 6, 4)):
            a = torch.randn(shape)
            for mode in ("reduced", "complete"):
                check(lambda t: tuple(torch.linalg.qr(t, mode)), a, tol=1e-5)
            check(lambda t: tuple(torch.geqrf(t)), a, tol=1e-5)
        a = torch.randn(6, 4)
        check(lambda t: torch.linalg.householder_product(*torch.geqrf(t)), a, tol=1e-5)
        check(lambda t: torch.linalg.qr(torch.zeros_like(t))[1], a)
        """,
}


@pytest.mark.parametrize("name", CASES)
def test_values(name):
    run_python(HEAD + textwrap.dedent(CASES[name]))
