"""What the test files share: the device under test, comparisons with CPU, programs in a fresh process.

TPU_TEST_DEVICE=cpu runs the suite against torch's own CPU device: a check of the tests themselves.
"""

import copy
import ctypes
import os
import pathlib
import shutil
import subprocess
import sys
import textwrap

import pytest
import torch
from torch.utils import _pytree as pytree

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEVICE = os.environ.get("TPU_TEST_DEVICE", "tpu")
KIND = torch.device(DEVICE).type
IS_CPU = KIND == "cpu"
device_only = pytest.mark.skipif(IS_CPU, reason="about the device itself; torch's CPU device has nothing of the kind")

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
SIGNED = [torch.int8, torch.int16, torch.int32, torch.int64]
INTS = [torch.uint8, *SIGNED]
COMPLEX = [torch.complex64, torch.complex128]
DTYPES = [torch.bool, *INTS, *FLOATS, *COMPLEX]
WIDE_UNSIGNED = [torch.uint16, torch.uint32, torch.uint64]
FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2]


def name_of(dtype):
    return str(dtype).removeprefix("torch.")


def sample(dtype, *shape, seed=0):
    """Values that the dtype holds exactly, the same on each call."""
    g = torch.Generator().manual_seed(seed + 1)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=g).bool()
    if dtype.is_complex:
        return torch.complex(*(torch.randint(-9, 10, shape, generator=g).double() for _ in "ab")).to(dtype)
    low = 0 if dtype in (torch.uint8, *WIDE_UNSIGNED) else -9
    return torch.randint(low, 10, shape, generator=g).to(dtype)


def to_device(tree):
    """Copies of the tensors in a tree on the device under test; tensors that share a storage keep sharing."""
    memo = {}

    def move(t):
        if not isinstance(t, torch.Tensor):
            return t
        if t._is_view() or t.untyped_storage().nbytes() != t.numel() * t.element_size():
            key = t.untyped_storage().data_ptr()
            if key not in memo:
                whole = torch.empty(0, dtype=t.dtype).set_(t.untyped_storage())
                memo[key] = whole.to(DEVICE, copy=True)
            out = memo[key].view(t.dtype).as_strided(t.shape, t.stride(), t.storage_offset())
        else:
            out = t.detach().to(DEVICE, copy=True)
        return out.detach().requires_grad_(t.requires_grad)

    return pytree.tree_map(move, tree)


def same(got, want):
    """Equal bit for bit, NaN in the same places, same shape and dtype; `got` lies on the device under test."""
    want = want if isinstance(want, torch.Tensor) else torch.tensor(want, dtype=got.dtype)
    assert got.device.type == KIND, f"expected a result on {KIND}, got one on {got.device}"
    check(got, want, 0, 0)


def close(got, want, rtol=1e-5, atol=1e-5):
    assert got.device.type == KIND, f"expected a result on {KIND}, got one on {got.device}"
    check(got, want, rtol, atol)


def check(got, want, rtol, atol):
    got, want = got.detach().cpu(), want.detach().cpu()
    assert got.dtype == want.dtype, f"dtype {got.dtype}, expected {want.dtype}"
    assert got.shape == want.shape, f"shape {tuple(got.shape)}, expected {tuple(want.shape)}"
    if got.dtype.itemsize == 1 and got.is_floating_point():
        got, want = got.float(), want.float()
    if got.dtype in WIDE_UNSIGNED:
        got, want = (t.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[t.element_size()]) for t in (got, want))
    torch.testing.assert_close(got, want, rtol=rtol, atol=atol, equal_nan=True)


def agree(fn, *args, rtol=0, atol=0):
    """fn(*args) on CPU and on the device: equal results (or the same kind of error), and equal arguments afterwards."""
    here, there = copy.deepcopy(args), to_device(args)
    try:
        want = fn(*here)
    except Exception as e:  # noqa: BLE001 - whatever PyTorch raises here is what the device has to raise
        with pytest.raises(type(e)):
            fn(*there)
        return None
    got = fn(*there)
    for g, w in zip(pytree.tree_leaves((got, there)), pytree.tree_leaves((want, here)), strict=True):
        if isinstance(w, torch.Tensor):
            assert g.device.type == KIND, f"expected a result on {KIND}, got one on {g.device}"
            check(g, w, rtol, atol)
        else:
            assert g == w
    return got


def compiles():
    return 0 if IS_CPU else torch.get_device_module(KIND).compile_count()


def synchronize():
    if not IS_CPU:
        torch.get_device_module(KIND).synchronize()


def steady(fn, warm=1, turns=6):
    """fn(i) compiles nothing after its first `warm` turns."""
    for i in range(warm):
        fn(i)
    synchronize()
    before = compiles()
    for i in range(warm, warm + turns):
        fn(i)
    synchronize()
    new = compiles() - before
    assert new == 0, f"{new} programs were compiled in turns {warm} to {warm + turns - 1}"


def run_python(code, timeout=100, check=True, **env):
    """Runs code in a fresh process outside of this repository. env: None unsets a variable."""
    full = {k: v for k, v in {**os.environ, **env}.items() if v is not None}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=full, cwd="/", capture_output=True, text=True, timeout=timeout
    )
    if check:
        assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done


def build_fake_plugin(folder):
    """Compiles tests/fake, our PJRT plugin that runs nothing (tests/fake/fake.h); skips without a C compiler."""
    cc = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if cc is None:
        pytest.skip("there is no C compiler to build tests/fake with")
    out = pathlib.Path(folder) / "libfake_pjrt.so"
    subprocess.run(
        [cc, "-std=gnu11", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", f"-I{ROOT}/include", f"-I{ROOT}/src", "-o", str(out)]
        + [str(p) for p in sorted((ROOT / "tests/fake").glob("fake*.c"))]
        + ["-lpthread", "-lm"],
        check=True,
        capture_output=True,
    )
    ctypes.CDLL(str(out)).GetPjrtApi  # noqa: B018 - it loads and has its entry
    return str(out)
