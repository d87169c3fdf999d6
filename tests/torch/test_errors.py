"""Bad input. Each gives PyTorch's own kind of error with a useful sentence, and the process goes on."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
import warnings

import pytest
import torch
from torch import nn
from tpu_testing import DEVICE, KIND, ROOT, agree, check, device_only, run_python, same

F = torch.nn.functional


@pytest.fixture(autouse=True)
def goes_on():
    """Whatever a test provokes, the next computation is right and nothing is left allocated."""
    a = torch.tpu.memory_allocated() if KIND == "tpu" else 0
    yield
    same(torch.arange(4.0, device=DEVICE) * 2 + 1, torch.arange(4.0) * 2 + 1)
    if KIND == "tpu":
        import gc

        gc.collect()
        torch.tpu.synchronize()
        assert torch.tpu.memory_allocated() <= a + 4096, "memory is still held"


# ---- dtypes that are not supported ---------------------------------------------------------------------------------------


@device_only
@pytest.mark.parametrize("dtype", [torch.complex32, torch.quint8, torch.qint32, torch.bits8], ids=str)
def test_unsupported_dtype(dtype):
    with pytest.raises((TypeError, NotImplementedError, RuntimeError), match=r"(?i)dtype|support|complex|quantized|bits"):
        torch.empty(2, dtype=dtype, device=DEVICE)


@device_only
def test_tensors_of_other_layouts_are_refused():
    with pytest.raises((RuntimeError, NotImplementedError)):
        torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8).to(DEVICE)


# ---- shapes, indices, arguments: as on CPU -------------------------------------------------------------------------------

X = torch.arange(12.0).view(3, 4)
CALLS = {
    "add": lambda x: x + torch.ones(3, device=x.device),
    "mul_": lambda x: x.mul_(torch.ones(5, 4, device=x.device)),
    "mm": lambda x: x @ x,
    "mm of vectors": lambda x: torch.mm(x[0], x),
    "bmm": lambda x: torch.bmm(x[None], x[None]),
    "linear": lambda x: F.linear(x, torch.ones(2, 5, device=x.device)),
    "conv": lambda x: F.conv2d(x[None, None], torch.ones(1, 2, 2, 2, device=x.device)),
    "conv too small": lambda x: F.conv2d(x[None, None], torch.ones(1, 1, 9, 9, device=x.device)),
    "cat": lambda x: torch.cat([x, x.t()]),
    "stack": lambda x: torch.stack([x, x.t()]),
    "cat of nothing": lambda x: torch.cat([]),
    "view": lambda x: x.view(5),
    "reshape": lambda x: x.reshape(7, -1),
    "expand": lambda x: x.expand(2, 4),
    "permute": lambda x: x.permute(0, 0),
    "dim of sum": lambda x: x.sum(5),
    "dim of softmax": lambda x: x.softmax(-4),
    "dim twice": lambda x: x.sum((0, 0)),
    "index": lambda x: x[7],
    "negative index": lambda x: x[-4],
    "too many indices": lambda x: x[0, 0, 0],
    "select": lambda x: x.select(1, 4),
    "narrow": lambda x: x.narrow(0, 2, 3),
    "unfold": lambda x: x.unfold(0, 4, 1),
    "diagonal": lambda x: x.diagonal(0, 1, 1),
    "split": lambda x: x.split([1, 1]),
    "as_strided": lambda x: torch.as_strided(x, (2, 2), (1,)),
    "mask shape": lambda x: x[torch.ones(2, dtype=torch.bool, device=x.device)],
    "index dtype": lambda x: x[torch.ones(2, device=x.device)],
    "index_select dtype": lambda x: x.index_select(0, torch.ones(1, device=x.device)),
    "gather dims": lambda x: x.gather(0, torch.zeros(1, dtype=torch.int64, device=x.device)),
    "gather shape": lambda x: x.gather(0, torch.zeros(1, 9, dtype=torch.int64, device=x.device)),
    "scatter dtype": lambda x: x.scatter(
        0, torch.zeros(1, 1, dtype=torch.int64, device=x.device), torch.ones(1, 1, dtype=torch.int64, device=x.device)
    ),
    "index_put values": lambda x: x.index_put_((torch.tensor([0, 1], device=x.device),), torch.ones(3, 4, device=x.device)),
    "topk": lambda x: x.topk(9),
    "kthvalue": lambda x: x.kthvalue(0),
    "max of nothing": lambda x: x[:0].max(),
    "argmax of nothing": lambda x: x[:0].argmax(0),
    "bitwise of floats": lambda x: x & x,
    "shift of floats": lambda x: torch.bitwise_left_shift(x, x),
    "not of floats": lambda x: ~x,
    "minus of bools": lambda x: (x > 1) - (x > 2),
    "neg of bools": lambda x: -(x > 1),
    "mean of ints": lambda x: x.long().mean(),
    "negative power of ints": lambda x: x.long() ** -1,
    "complex compare": lambda x: x.to(torch.complex64) > 1,
    "complex max": lambda x: x.to(torch.complex64).max(),
    "complex clamp": lambda x: x.to(torch.complex64).clamp(0, 1),
    "nothing to clamp": lambda x: x.clamp(),
    "loss shapes": lambda x: F.nll_loss(x, torch.zeros(2, dtype=torch.int64, device=x.device)),
    "loss dtype": lambda x: F.cross_entropy(x, torch.zeros(3, dtype=torch.int32, device=x.device)),
    "embedding dtype": lambda x: F.embedding(torch.ones(2, device=x.device), x),
    "layer_norm": lambda x: F.layer_norm(x, (3,)),
    "batch_norm of one": lambda x: F.batch_norm(
        x[:1], torch.zeros(4, device=x.device), torch.ones(4, device=x.device), training=True
    ),
    "group_norm": lambda x: F.group_norm(x, 3),
    "dropout": lambda x: F.dropout(x, 1.5),
    "pool": lambda x: F.max_pool2d(x[None, None], 2, padding=5),
    "bernoulli": lambda x: torch.empty(3, device=x.device).bernoulli_(2.0),
    "normal": lambda x: torch.empty(3, device=x.device).normal_(0, -1),
    "uniform": lambda x: torch.empty(3, device=x.device).uniform_(2, 1),
    "multinomial": lambda x: torch.multinomial(x[0] * 0 + 1, 9),
    "arange": lambda x: torch.arange(0, 5, -1, device=x.device),
    "negative size": lambda x: torch.zeros(-1, device=x.device),
    "eye": lambda x: torch.eye(-1, device=x.device),
    "triangular": lambda x: x[0].tril(),
    "einsum": lambda x: torch.einsum("ij,jk->ik", x, x),
    "item": lambda x: x.item(),
    "view dtype": lambda x: x[:, :3].view(torch.float64),
    "repeat": lambda x: x.repeat(2),
    "where": lambda x: torch.where(x > 1, x, torch.ones(9, device=x.device)),
    "where condition": lambda x: torch.where(x.long(), x, x),
    "out dtype": lambda x: torch.add(x, x, out=torch.empty(3, 4, dtype=torch.int64, device=x.device)),
    "requires_grad of ints": lambda x: x.long().requires_grad_(),
    "grad of non-scalar": lambda x: (x.clone().requires_grad_() * 2).backward(),
}


@pytest.mark.parametrize("kind", CALLS)
def test_same_kind_of_error_as_on_cpu(kind):
    with pytest.raises(Exception) as want:  # noqa: PT011
        CALLS[kind](X.clone())
    with pytest.raises(Exception) as got:  # noqa: PT011
        out = CALLS[kind](X.to(DEVICE, copy=True))
        [t.cpu() for t in (out if isinstance(out, (tuple, list)) else [out]) if torch.is_tensor(t)]
    assert issubclass(got.type, want.type) or issubclass(want.type, got.type), (
        f"{got.type.__name__}: {got.value} instead of {want.type.__name__}: {want.value}"
    )
    assert len(str(got.value)) > 10


def test_sentences_name_what_is_wrong():
    x = X.to(DEVICE)
    for f, words in (
        (lambda: x + torch.ones(3, device=DEVICE), ("4", "3")),
        (lambda: x @ x, ("3x4",)),
        (lambda: x[9], ("9", "3")),
        (lambda: x.view(5), ("5", "12")),
        (lambda: torch.cat([x, x[0]]), ("dim",)),
    ):
        with pytest.raises((RuntimeError, IndexError)) as e:
            f()
        assert all(w in str(e.value) for w in words), str(e.value)


@pytest.mark.parametrize("turn", range(2))
def test_an_error_does_not_poison_the_same_call(turn):
    x = X.to(DEVICE, copy=True)
    y = torch.ones(3 + turn, device=DEVICE)
    if turn == 0:
        with pytest.raises(RuntimeError):
            x.add_(y)
    else:
        x.add_(y)
    same(x, X + turn)


def test_a_failed_in_place_write_changes_nothing():
    agree(lambda x: x.add_(torch.ones(3, device=x.device)), X.clone())
    x = X.to(DEVICE, copy=True)
    for f in (
        lambda: x.add_(torch.ones(3, device=DEVICE)),
        lambda: x.index_put_((torch.tensor([0, 1], device=DEVICE),), torch.ones(3, 4, device=DEVICE)),
        lambda: torch.mm(x, x, out=x),
    ):
        with pytest.raises((RuntimeError, IndexError)):
            f()
    same(x, X)


# ---- indices in tensors --------------------------------------------------------------------------------------------------

INDEXED = {
    "index": lambda x, i: x[i],
    "index_select": lambda x, i: x.index_select(0, i),
    "gather": lambda x, i: x.gather(0, i[:, None]),
    "embedding": lambda x, i: F.embedding(i, x),
    "take": lambda x, i: x.take(i + 20),
    "index_put": lambda x, i: x.clone().index_put_((i,), torch.zeros((), device=x.device)),
    "index_add": lambda x, i: x.index_add(0, i, x[:2]),
    "index_copy": lambda x, i: x.index_copy(0, i, x[:2]),
    "index_fill": lambda x, i: x.index_fill(0, i, 1.0),
    "scatter": lambda x, i: x.scatter(0, i[:, None], 1.0),
    "scatter_add": lambda x, i: x.scatter_add(0, i[:, None], x[:2, :1]),
    "nll_loss": lambda x, i: F.nll_loss(x[:2], i),
    "cross_entropy": lambda x, i: F.cross_entropy(x[:2], i),
}


@pytest.mark.parametrize("kind", INDEXED)
def test_an_index_out_of_range_survives(kind):
    """In the asynchronous mode the value of such a call is open; an error or a value, never a crash."""
    x, i = X.to(DEVICE), torch.tensor([0, 7], device=DEVICE)
    if KIND == "cpu":
        pytest.raises((IndexError, RuntimeError), lambda: INDEXED[kind](x, i))
        return
    try:
        INDEXED[kind](x, i).cpu()
    except (IndexError, RuntimeError) as e:
        assert "7" in str(e) or "range" in str(e) or "bounds" in str(e)
    same(x, X)


@device_only
@pytest.mark.parametrize("kind", INDEXED)
def test_debug_mode_finds_an_index_out_of_range(kind):
    """The error that the CPU raises, with the value, the bound and the operator."""
    x, shift = X.to(DEVICE), 20 * (kind == "take")  # what the row adds to an index
    with torch.tpu.set_eager_mode(torch.tpu.EagerMode.DEBUG):
        for bad in (27, -99):
            i = torch.tensor([0, bad]) - torch.tensor([shift, 0])
            with pytest.raises((IndexError, RuntimeError)) as expected:
                INDEXED[kind](X, i)
            with pytest.raises(expected.type, match=rf"index {bad + shift} is out of bounds for .*aten::"):
                INDEXED[kind](x, i.to(DEVICE))
        last = torch.tensor([0, 2]) - shift
        check(INDEXED[kind](x, last.to(DEVICE)), INDEXED[kind](X, last), 1e-5, 1e-5)


@device_only
def test_debug_mode_allows_what_the_cpu_allows():
    x, logits = X.to(DEVICE), X[:2].to(DEVICE)
    with torch.tpu.set_eager_mode(torch.tpu.EagerMode.DEBUG):
        same(x[torch.tensor([-1, 0], device=DEVICE)], X[[-1, 0]])
        same(x.take(torch.tensor([-1], device=DEVICE)), X.take(torch.tensor([-1])))
        target = torch.tensor([0, -100])  # ignore_index
        check(F.cross_entropy(logits, target.to(DEVICE)), F.cross_entropy(X[:2], target), 1e-5, 1e-5)
        same(x[torch.zeros(0, dtype=torch.long, device=DEVICE)], X[:0])
        same(x[:, torch.tensor([True, False, False, True], device=DEVICE)], X[:, [0, 3]])


# ---- memory --------------------------------------------------------------------------------------------------------------

HUGE = {
    "empty": lambda: torch.empty(1 << 38, device=DEVICE),
    "1 TB": lambda: torch.empty(1 << 40, dtype=torch.uint8, device=DEVICE),
    "zeros": lambda: torch.zeros(1 << 39, device=DEVICE),
    "full": lambda: torch.full((1 << 20, 1 << 20), 1.0, device=DEVICE),
    "rand": lambda: torch.rand(1 << 19, 1 << 20, device=DEVICE),
    "result of an outer product": lambda: torch.ones(1 << 20, 1, device=DEVICE) * torch.ones(1 << 20, device=DEVICE),
    "expanded clone": lambda: torch.ones(1, device=DEVICE).expand(1 << 40).clone(),
    "resize_": lambda: torch.ones(1, device=DEVICE).resize_(1 << 40),
    "storage": lambda: torch.ones(1, device=DEVICE).untyped_storage().resize_(1 << 41),
    "repeat": lambda: torch.ones(1 << 10, device=DEVICE).repeat(1 << 30),
    "arange": lambda: torch.arange(1 << 38, device=DEVICE),
}


@device_only
@pytest.mark.parametrize("kind", HUGE)
def test_out_of_memory(kind):
    with pytest.raises(torch.OutOfMemoryError, match=r"(?i)memory"):
        HUGE[kind]()
    assert isinstance(torch.OutOfMemoryError("x"), RuntimeError)


@device_only
def test_sizes_that_no_machine_has():
    for size in ((1 << 62,), (1 << 31, 1 << 31), (1 << 40, 1 << 40)):
        with pytest.raises((RuntimeError, ValueError)):
            torch.empty(size, device=DEVICE)


# ---- the plugin ----------------------------------------------------------------------------------------------------------

FIRST_USE = """
import torch
print(torch.ones(2).sum().item(), torch.tpu.is_available(), flush=True)
for _ in range(2):  # the second time the same error
    try: torch.ones(2, device="tpu")
    except RuntimeError as e: print(type(e).__name__, e)
    else: print("no error")
print(torch.ones(2).mul(3).tolist(), isinstance(torch.tpu.plugin_info(), dict), torch.tpu.device_count() in (0, 1))
"""


def first_use(**env):
    lines = run_python(FIRST_USE, **env).stdout.strip().splitlines()
    assert lines[0].startswith("2.0 ") and lines[-1].startswith("[3.0, 3.0] True") and len(lines) == 4, lines
    assert lines[1] == lines[2]
    return lines[1], lines[0].split()[1]


@pytest.fixture
def broken_plugin(tmp_path):
    def make(kind):
        path = tmp_path / (kind.replace(" ", "_") + ".so")
        if kind == "text file":
            path.write_text("I am no library.\n" * 10)
        elif kind == "empty file":
            path.touch()
        elif kind == "folder":
            path.mkdir()
        elif kind == "truncated library":
            path.write_bytes(open(torch._C.__file__, "rb").read()[:200])
        elif kind == "unreadable":
            path.write_text("x")
            path.chmod(0)
        elif kind == "library without GetPjrtApi":
            path = next(
                p for p in (m.split()[-1] for m in open("/proc/self/maps")) if "libm" in os.path.basename(p) and ".so" in p
            )
        return str(path)

    return make


@device_only
@pytest.mark.parametrize(
    "kind", ["missing", "text file", "empty file", "folder", "truncated library", "library without GetPjrtApi"]
)
@pytest.mark.parametrize("variable", ["TORCH_TPU_PJRT_PLUGIN", "TPU_LIBRARY_PATH"])
def test_a_path_that_is_no_plugin(broken_plugin, kind, variable):
    path = broken_plugin(kind)
    text, available = first_use(**{"TORCH_TPU_PJRT_PLUGIN": None, variable: path})
    assert text.startswith("RuntimeError") and path in text, text
    if kind in ("missing", "folder"):
        assert available == "False" and variable in text, text
    if kind == "library without GetPjrtApi":
        assert "GetPjrtApi" in text, text


@device_only
@pytest.mark.parametrize(
    "table",
    [
        "null",
        "tiny",
        "short",
        "major",
        "missing PJRT_Client_Compile",
        "missing PJRT_Client_Create",
        "missing PJRT_LoadedExecutable_Execute",
        "stub PJRT_Client_Create",
    ],
)
def test_a_plugin_that_lacks_something(fake_plugin, table):
    kind, _, name = table.partition(" ")
    if name:
        slot = re.search(rf"X\((\d+), {name},", (ROOT / "src/pjrt/abi.h").read_text())[1]
        kind = f"{kind}:{slot}"
    text, _ = first_use(TORCH_TPU_PJRT_PLUGIN=fake_plugin, FAKE_PJRT_TABLE=kind)
    assert text.startswith("RuntimeError") and len(text) > 40 and name in text, text


@device_only
def test_no_plugin_at_all(tmp_path):
    """The same packages without those that hold a plugin."""
    import sysconfig

    site = sysconfig.get_paths()["purelib"]
    for entry in os.listdir(site):
        if not entry.lower().startswith(("lammps_jax_pjrt", "fastatomstruct", "libtpu", "_virtualenv")) and not entry.endswith(
            ".pth"
        ):
            os.symlink(os.path.join(site, entry), tmp_path / entry)
    import torch_tpu

    if not (tmp_path / "torch_tpu").exists():  # a development install lies elsewhere
        os.symlink(os.path.dirname(torch_tpu.__file__), tmp_path / "torch_tpu")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{FIRST_USE}"
    env = {k: v for k, v in os.environ.items() if k not in ("TORCH_TPU_PJRT_PLUGIN", "TPU_LIBRARY_PATH", "PYTHONPATH")}
    done = subprocess.run([sys.executable, "-S", "-c", code], env=env, capture_output=True, text=True, timeout=100, cwd="/")
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.strip().splitlines()
    assert lines[0] == "2.0 False" and lines[-1] == "[3.0, 3.0] True True"
    assert lines[1].startswith("RuntimeError") and "TORCH_TPU_PJRT_PLUGIN" in lines[1] and "install" in lines[1], lines[1]


@device_only
def test_an_explicit_plugin_is_used_and_named(fake_plugin):
    code = "import torch; torch.zeros(1, device='tpu'); i = torch.tpu.plugin_info(); print(i['path']); print(i['platform']); print(i['why'])"
    path, platform, why = run_python(code, TORCH_TPU_PJRT_PLUGIN=fake_plugin).stdout.strip().splitlines()
    assert path == fake_plugin and platform == "fake" and "TORCH_TPU_PJRT_PLUGIN" in why


# ---- the environment -----------------------------------------------------------------------------------------------------


@device_only
@pytest.mark.parametrize(
    "flag",
    [
        "TORCH_TPU_CPU_DEVICES=lots",
        "TORCH_TPU_CPU_DEVICES=0",
        "TORCH_TPU_CPU_DEVICES=-3",
        "TORCH_TPU_CPU_DEVICES=100000",
        "TORCH_TPU_CPU_DEVICES=2x",
        "TORCH_TPU_CPU_DEVICES=99999999999999999999",
        "TORCH_TPU_FALLBACK=perhaps",
        "TORCH_TPU_LOG=loud",
        "TORCH_TPU_LAUNCH_BLOCKING=maybe",
        "TORCH_TPU_KEY_CACHE=\x01\x02",
        "TORCH_TPU_NUMBER_CACHE=" + "9" * 5000,
    ],
)
def test_a_corrupt_value(flag):
    name, value = flag.split("=", 1)
    code = """
    import torch
    print(torch.ones(2).sum().item(), torch.tpu.is_available() in (True, False))
    try: torch.ones(2, device="tpu")
    except ValueError as e: print(e)
    print(torch.ones(2).mul(3).tolist())
    """
    first, error, last = run_python(code, **{name: value}).stdout.strip().splitlines()
    assert first == "2.0 True" and last == "[3.0, 3.0]"
    assert name in error and (value[:50] in error) and ("must be" in error or "longer" in error or "expected" in error), error


@device_only
def test_an_empty_value_is_the_default():
    assert (
        run_python(
            "import torch; print(torch.tpu.device_count(), torch.ones(2, device='tpu').sum().item())",
            TORCH_TPU_CPU_DEVICES="",
            TORCH_TPU_FALLBACK="",
        ).stdout.strip()
        == "1 2.0"
    )


# ---- exceptions inside of backward ---------------------------------------------------------------------------------------


class Mine(Exception):
    pass


def raise_mine(*_):
    raise Mine("from a hook")


def hook_on_tensor(x):
    y = x * 2
    y.register_hook(raise_mine)
    return y.exp().sum()


def hook_on_leaf(x):
    x.register_post_accumulate_grad_hook(raise_mine)
    return (x * 2).sum()


def hook_on_module(x):
    m = nn.Linear(3, 3, device=x.device)
    m.register_full_backward_hook(raise_mine)
    return m(x).sum()


def custom_backward(x):
    class Bad(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            (g * 3).sum().item()
            raise Mine("from backward")

    return Bad.apply(x).sum()


@pytest.mark.parametrize("make", [hook_on_tensor, hook_on_leaf, hook_on_module, custom_backward])
def test_an_exception_inside_backward(make):
    for _ in range(3):
        x = torch.ones(4, 3, device=DEVICE, requires_grad=True)
        with pytest.raises(Mine):
            make(x).backward()
    y = torch.ones(4, 3, device=DEVICE, requires_grad=True)
    (y * 2).sum().backward()
    same(y.grad, torch.full((4, 3), 2.0))


def test_an_exception_in_a_forward_hook():
    m = nn.Linear(3, 3, device=DEVICE)
    h = m.register_forward_hook(raise_mine)
    with pytest.raises(Mine):
        m(torch.ones(1, 3, device=DEVICE))
    h.remove()
    assert m(torch.ones(1, 3, device=DEVICE)).shape == (1, 3)


def test_anomaly_mode_names_the_operator():
    x = torch.tensor([0.0], device=DEVICE, requires_grad=True)
    with torch.autograd.detect_anomaly(check_nan=True), pytest.raises(RuntimeError, match="nan"):
        (x.sqrt() * 0).backward()


# ---- Ctrl-C --------------------------------------------------------------------------------------------------------------

INTERRUPTED = """
import torch, sys
x = torch.ones(3, device="tpu")
print("go", flush=True)
n = 0
try:
    while True:  # nearly all of the time is spent in compiling
        n += 1
        torch.ones(n, 2, device="tpu").cumsum(0).sin()
except KeyboardInterrupt:
    print("interrupted", flush=True)
for k in range(1, 6):
    assert torch.equal(torch.ones(k, 2, device="tpu").cumsum(0).cpu(), torch.ones(k, 2).cumsum(0)), k
x += 1
print(x.tolist(), flush=True)
"""


@device_only
def test_ctrl_c_during_a_compile():
    for delay in (0.3, 0.47):
        p = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(INTERRUPTED)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd="/",
        )
        try:
            assert p.stdout.readline().strip() == "go"
            time.sleep(delay)
            p.send_signal(signal.SIGINT)
            out, err = p.communicate(timeout=60)
        finally:
            p.kill()
        assert p.returncode == 0 and out.split("\n")[:2] == ["interrupted", "[2.0, 2.0, 2.0]"], (out, err[-1000:])


@device_only
def test_ctrl_c_that_nobody_catches_ends_the_process():
    p = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import torch\nprint('go', flush=True)\nn = 0\nwhile True: n += 1; torch.ones(n, device='tpu').sin()",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd="/",
    )
    try:
        assert p.stdout.readline().strip() == "go"
        time.sleep(0.4)
        p.send_signal(signal.SIGINT)
        _, err = p.communicate(timeout=60)
    finally:
        p.kill()
    assert p.returncode in (-signal.SIGINT, 130, 1) and "KeyboardInterrupt" in err and "terminate" not in err


# ---- asynchronous errors, and a plugin that fails ------------------------------------------------------------------------

CONTROL = """
import ctypes, os, torch
x = torch.ones(3, device="tpu")
(x + 1).cpu()
fake = ctypes.CDLL(os.environ["TORCH_TPU_PJRT_PLUGIN"])
fake.fake_live.restype = fake.fake_fail_count.restype = fake.fake_count.restype = ctypes.c_int64
fake.fake_fail_call.argtypes = [ctypes.c_int64]
fake.fake_fail_execution.argtypes = [ctypes.c_int64, ctypes.c_int]
"""


def with_fake(fake_plugin, body, **env):
    return run_python(CONTROL + textwrap.dedent(body), TORCH_TPU_PJRT_PLUGIN=fake_plugin, **env).stdout.strip().splitlines()


READS = {
    "cpu": "y.cpu()",
    "item": "y[0].item()",
    "tolist": "y.tolist()",
    "print": "repr(y)",
    "of a result": "(y * 2 + 1).cpu()",
    "of a view": "y[1:].cpu()",
    "of an in-place chain": "y.add_(1); y[0].mul_(2); y.cpu()",
    "bool": "bool((y > 0).all())",
    "synchronize": "torch.tpu.synchronize()",
    "of an event": "e = torch.tpu.Event(); e.record(); e.synchronize(); torch.tpu.synchronize()",
    "save": "import io; torch.save(y, io.BytesIO())",
    "copy to a host tensor": "torch.empty(3).copy_(y)",
}


@device_only
@pytest.mark.parametrize("read", READS)
def test_a_failure_comes_at_the_next_read(fake_plugin, read):
    out = with_fake(
        fake_plugin,
        f"""
        x + 1
        fake.fake_fail_execution(1, 13)
        y = x + 1           # succeeds at once, fails later
        fake.fake_fail_execution(0, 0)
        z = x * 2           # no part of it
        try: {READS[read]}
        except RuntimeError as e: print("raised", "aten::{"" if read == "of an in-place chain" else "add"}" in str(e))
        else: print("nothing was raised")
        print(z.cpu().shape[0], (x + 1).cpu().shape[0], torch.ones(2, device="tpu").cpu().numel())
        torch.tpu.synchronize()  # said once
        y = None
        print("goes on")
        """,
    )
    assert out == ["raised True", "3 3 2", "goes on"], out


@device_only
def test_a_failure_that_nobody_reads_is_no_crash(fake_plugin):
    done = run_python(
        CONTROL + "x + 1\nfake.fake_fail_execution(1, 13)\ny = x + 1\nprint('end', flush=True)", TORCH_TPU_PJRT_PLUGIN=fake_plugin
    )
    assert done.stdout.strip() == "end"


@device_only
def test_debug_mode_raises_at_the_call(fake_plugin):
    out = with_fake(
        fake_plugin,
        """
        with torch.tpu.set_eager_mode(torch.tpu.EagerMode.DEBUG):
            x + 1
            fake.fake_fail_execution(1, 13)
            try: y = x + 1
            except RuntimeError as e: print("raised", "aten::add" in str(e))
            fake.fake_fail_execution(0, 0)
            print((x + 1).cpu().shape[0])
        """,
    )
    assert out == ["raised True", "3"], out


@device_only
def test_device_memory_runs_out_while_it_runs(fake_plugin):
    out = with_fake(
        fake_plugin,
        """
        x + 1
        fake.fake_fail_execution(1, 8)  # RESOURCE_EXHAUSTED
        y = x + 1
        try: y.cpu()
        except torch.OutOfMemoryError as e: print("out of memory", "aten::add" in str(e))
        except RuntimeError as e: print("other", e)
        print((x * 2).cpu().shape[0])
        """,
    )
    assert out == ["out of memory True", "3"], out


@device_only
def test_every_plugin_call_may_fail_once(fake_plugin):
    """Call number n fails, for each n: an exception or nothing, then the same work succeeds, and no buffer is lost."""
    out = with_fake(
        fake_plugin,
        """
        import gc
        F = torch.nn.functional
        def work(n):
            a = torch.arange(6.).view(2, 3).to("tpu")
            b = a.t()[1:] * (n + 0.5)
            a[0].add_(b[0, 0])
            c = torch.cat([a, a @ a.t() @ a]).sum(0)
            w = a.clone().requires_grad_()
            (w * c).exp().sum().backward()
            F.dropout(a, 0.5)
            e = torch.tpu.Event(); e.record(); e.synchronize()
            torch.tpu.synchronize()
            return c.cpu(), w.grad.cpu()
        work(0)
        def live():
            gc.collect(); torch.tpu.empty_cache(); torch.tpu.synchronize()
            return {k: fake.fake_live(k) for k in (b"buffer", b"event", b"error", b"executable")}
        before, memory = live(), torch.tpu.memory_allocated()
        raised = 0
        for n in range(1, 400):
            fake.fake_fail_call(n)
            if n % 2: torch.tpu.empty_cache()
            try: work(n % 3)
            except RuntimeError as e:
                raised += 1
                assert len(str(e)) > 15
                del e
            hit = fake.fake_fail_count() >= n
            fake.fake_fail_call(0)
            try: torch.tpu.synchronize()
            except RuntimeError: pass
            work(0)
            if not hit: break
        else: raise AssertionError("work has no end")
        print(raised > 20 and n > 30)
        print(live() == before or (live(), before), torch.tpu.memory_allocated() == memory)
        """,
    )
    assert out == ["True", "True True"], out


@device_only
def test_programs_that_do_not_compile(fake_plugin):
    out = with_fake(
        fake_plugin,
        """
        a = torch.arange(5.).to("tpu"); a.cpu()
        for n in range(1, 12):
            before = fake.fake_count(b"compile")
            fake.fake_fail_call(n)
            try: b = (a.sin() + n)[:3].cpu()
            except RuntimeError as e: text = str(e)
            fake.fake_fail_call(0)
        print((a.sin() + 1).cpu().shape[0], len(text) > 15)
        """,
    )
    assert out == ["5 True"], out


def refused(call, device):
    with pytest.raises(Exception) as e:  # noqa: PT011  (which one is what the caller compares)
        call(lambda *a, **k: torch.ones(*a, **k).to(device))
    return type(e.value), str(e.value).split("\n")[0].rstrip(".")


LIKE_CPU = {
    "indices do not broadcast": lambda t: t(5, 5).__setitem__(([0, 1], [0, 1, 2]), 0),
    "values do not broadcast": lambda t: t(5, 5).__setitem__(([0, 1], [0, 1]), t(3)),
    "values of another dtype do not broadcast": lambda t: t(5, 5).__setitem__(([0, 1], [0, 1]), t(3).long()),
    "no value for a mask, of another dtype": lambda t: t(4).long().__setitem__(t(4).bool(), t(0)),
    "complex of integers": lambda t: torch.complex(t(2).long(), t(2).long()),
    "complex of two dtypes": lambda t: torch.complex(t(2), t(2).double()),
    "complex into a real out": lambda t: torch.complex(t(2), t(2), out=t(2)),
    "polar of integers": lambda t: torch.polar(t(2).int(), t(2).bool()),
    "polar of two dtypes": lambda t: torch.polar(t(2).double(), t(2)),
    "polar into a real out": lambda t: torch.polar(t(2), t(2), out=t(2)),
    "roll: more dims than shifts": lambda t: t(2, 2).roll((1,), (1, 2)),
    "roll: no shifts": lambda t: t(2, 2).roll((), ()),
    "randperm past float16": lambda t: torch.randperm(2050, dtype=torch.float16, device=t(1).device),
    "randperm past float32": lambda t: torch.randperm(2**24 + 2, dtype=torch.float32, device=t(1).device),
    "randperm past uint8": lambda t: torch.randperm(257, dtype=torch.uint8, device=t(1).device),
    "multinomial: negative": lambda t: torch.multinomial(t(3) - t(3) * 2, 2),
    "multinomial: NaN": lambda t: torch.multinomial(t(2, 3) / 0 * 0, 2),
    "multinomial: infinite": lambda t: torch.multinomial(t(3) / 0, 1, replacement=True),
    "multinomial: negative, several": lambda t: torch.multinomial(t(3) - t(3) * 2, 2, replacement=True),
    "multinomial: infinite, several": lambda t: torch.multinomial(t(3) / 0, 2, replacement=True),
    "multinomial: out= of another dtype": lambda t: torch.multinomial(-t(3), 1, out=t(1)),
    "multinomial: too many": lambda t: torch.multinomial(-t(3), 4),
    "multinomial: nothing": lambda t: torch.multinomial(torch.stack([t(3), t(3) * 0]), 1),
    "normal: a negative std": lambda t: torch.normal(t(3), -t(3)),
    "normal: a negative std of a number": lambda t: torch.normal(0.0, t(3) - 2),
    "histc of infinity": lambda t: torch.histc(torch.cat([t(2), t(1) / 0])),
    "fractional: samples for fewer images": lambda t: F.fractional_max_pool2d(t(1, 4, 8, 8), 2, 1, _random_samples=t(0, 4, 2)),
    "fractional: samples for fewer planes": lambda t: F.fractional_max_pool2d(t(1, 4, 8, 8), 2, 1, _random_samples=t(1, 3, 2)),
    "fractional: samples of another rank": lambda t: F.fractional_max_pool3d(t(1, 4, 8, 8, 8), 2, 1, _random_samples=t(4, 3)),
    "fractional: samples for two dims": lambda t: F.fractional_max_pool3d(t(4, 8, 8, 8), 2, 1, _random_samples=t(1, 4, 2)),
    "fractional: samples of another dtype": lambda t: F.fractional_max_pool2d(
        t(1, 4, 8, 8), 2, 1, _random_samples=t(1, 4, 2).double()
    ),
    "adaptive 2d: nothing to pool back": lambda t: torch.ops.aten._adaptive_avg_pool2d_backward(t(1, 4, 0, 0), t(1, 4, 8, 8)),
    "adaptive 3d: nothing to pool back": lambda t: torch.ops.aten._adaptive_avg_pool3d_backward(
        t(1, 4, 2, 0, 0), t(1, 4, 8, 8, 8)
    ),
    "grid 2d: a volume": lambda t: torch.grid_sampler_2d(t(1, 2, 3, 3, 3), t(1, 2, 2, 2, 3), 0, 0, True),
    "grid 3d: an image": lambda t: torch.grid_sampler_3d(t(1, 2, 3, 3), t(1, 2, 2, 2), 0, 0, True),
    "grid: another batch": lambda t: torch.grid_sampler_2d(t(1, 2, 3, 3), t(2, 2, 2, 2), 0, 0, True),
    "grid: an empty dim": lambda t: torch.grid_sampler_2d(t(1, 2, 0, 3), t(1, 2, 2, 2), 0, 0, True),
    "logcumsumexp into another dtype": lambda t: torch.logcumsumexp(t(3).double(), 0, out=t(3)),
    "<<= of numbers that lie on one another": lambda t: (lambda x: x[:-1].__ilshift__(x[1:]))(t(3)),
    ">>= of numbers that lie on one another": lambda t: (lambda x: x[:-1].__irshift__(x[1:]))(t(3).long()),
    ">>= of an expanded tensor": lambda t: t(1).long().expand(3).__irshift__(1),
    "arange to nan": lambda t: torch.arange(-5, float("nan"), device=t(1).device),
    "arange down to minus infinity, upwards": lambda t: torch.arange(0, float("-inf"), device=t(1).device),
    "arange from infinity": lambda t: torch.arange(float("inf"), 1, device=t(1).device),
    "arange by nan": lambda t: torch.arange(0, 1, float("nan"), device=t(1).device),
    "arange of too many": lambda t: torch.arange(1e-38, 3e38, device=t(1).device),
    "arange of too many, in small steps": lambda t: torch.arange(0, -1e30, -1e-30, device=t(1).device),
    "linspace to a complex number": lambda t: torch.linspace(0, 1j, 5, dtype=torch.float32, device=t(1).device),
    "logspace from a complex number": lambda t: torch.logspace(1j, 2, 5, dtype=torch.int64, device=t(1).device),
    "arange the wrong way": lambda t: torch.arange(0.0, 1, -1, device=t(1).device),
    "put_ into its index": lambda t: (lambda i: i.put_(i, i.clone()))(torch.arange(3, device=t(1).device)),
    "put_ of a part of itself": lambda t: (lambda x: x.put_(torch.arange(3, device=x.device), x[:3]))(t(6)),
    "a sparse gradient of a bag, scaled": lambda t: (
        F.embedding_bag(
            torch.arange(3, device=t(1).device),
            t(4, 2).requires_grad_(),
            t(1).long() * 0,
            mode="sum",
            sparse=True,
            scale_grad_by_freq=True,
        )
        .sum()
        .backward()
    ),
    "the number in an empty tensor": lambda t: torch.ops.aten._local_scalar_dense(t(0)),
}


@pytest.mark.parametrize("name", LIKE_CPU)
def test_refused_as_on_cpu(name):
    assert refused(LIKE_CPU[name], DEVICE) == refused(LIKE_CPU[name], "cpu")


DEBUG_ONLY = {
    "bernoulli above 1": lambda t: torch.bernoulli(t(3) * 1.5),
    "bernoulli_ below 0": lambda t: t(3).bernoulli_(-t(3)),
    "poisson below 0": lambda t: torch.poisson(-t(3)),
}


@pytest.mark.parametrize("name", DEBUG_ONLY)
@device_only
def test_refused_in_debug_mode(name):
    with torch.tpu.set_eager_mode(torch.tpu.EagerMode.DEBUG):
        kind, text = refused(DEBUG_ONLY[name], DEVICE)
    want_kind, want = refused(DEBUG_ONLY[name], "cpu")
    assert kind is want_kind
    assert text[:40] in want


def test_a_number_that_its_dtype_does_not_hold():
    with pytest.raises(RuntimeError, match="cannot be converted to type int64"):
        torch.ones(2, dtype=torch.int64, device=DEVICE).fill_(2**63)


@device_only
@pytest.mark.parametrize("make", [lambda x: x.to(torch.complex32), lambda x: torch.view_as_complex(x.half())])
def test_complex_half_is_named(make):
    with pytest.raises(TypeError, match="dtype ComplexHalf are not supported"):
        make(torch.ones(2, 2, device=DEVICE)).cpu()


def test_weights_of_a_bag_have_its_dtype():
    bag, i = torch.ones(5, 3, device=DEVICE), torch.tensor([1, 2], device=DEVICE)
    with pytest.raises(RuntimeError, match="expected scalar type Float but found Double" if KIND == "tpu" else "type"):
        F.embedding_bag(i, bag, i[:1] * 0, mode="sum", per_sample_weights=torch.ones(2, device=DEVICE).double())


def test_every_byte_mask_is_warned_of():
    x, mask = torch.arange(3.0, device=DEVICE), torch.tensor([1, 0, 1], dtype=torch.uint8, device=DEVICE)
    torch.set_warn_always(True)
    try:
        for _ in range(2):
            with pytest.warns(UserWarning, match="torch.uint8 is now deprecated"):
                same(x[mask], torch.tensor([0.0, 2.0]))
    finally:
        torch.set_warn_always(False)


FEW = {
    "one element": (lambda x: x[:1, 0], {}),
    "no elements": (lambda x: x[:0], {"dim": 0}),
    "no results": (lambda x: x[:0], {"dim": 1}),
    "as many as the correction": (lambda x: x, {"dim": 1, "correction": 5}),
    "a fraction more": (lambda x: x, {"dim": 1, "correction": 4.5}),
    "both dims": (lambda x: x, {"dim": (0, -1), "correction": 15}),
    "enough": (lambda x: x, {"dim": (0, -1), "correction": 14}),
}


@pytest.mark.parametrize("fn", [torch.var, torch.std, torch.var_mean, torch.std_mean])
@pytest.mark.parametrize("few", FEW)
def test_too_few_elements_for_a_variance_are_warned_of(fn, few):
    part, options = FEW[few]
    found = []
    for device in (DEVICE, "cpu"):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            fn(part(torch.randn(3, 5, device=device)), **options)
        found.append([str(w.message).split(" (Triggered")[0] for w in seen])
    assert found[0] == found[1]


def test_the_old_aminmax_is_warned_of():
    torch.set_warn_always(True)
    try:
        with pytest.warns(UserWarning, match="_aminmax is deprecated"):
            same(torch._aminmax(torch.arange(3.0, device=DEVICE))[1], torch.tensor(2.0))
        with pytest.warns(UserWarning, match="_aminmax is deprecated"):
            same(torch._aminmax(torch.arange(3.0, device=DEVICE), 0, True)[0], torch.tensor([0.0]))
    finally:
        torch.set_warn_always(False)


@device_only
def test_nested_tensors_end_in_an_error():
    parts = [torch.ones(2, 3, device=DEVICE, requires_grad=True), torch.ones(2, 4, device=DEVICE, requires_grad=True)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nested = torch.nested.as_nested_tensor(parts)
    assert nested._nested_tensor_size().tolist() == [[2, 3], [2, 4]]
    with pytest.raises(NotImplementedError, match="aten::clone"):
        nested.clone()


@device_only
@pytest.mark.parametrize("others", [(), (torch.tensor([0, 1]),)])
def test_indices_of_another_device(others):
    x, there = torch.zeros(2, 2), (torch.tensor([0, 1], device=DEVICE), *others)
    with pytest.raises(
        RuntimeError, match=r"indices should be either on cpu or on the same device as the indexed tensor \(cpu\)"
    ):
        x[there]
    with pytest.raises(RuntimeError, match="indices should be either on cpu"):
        x[there] = torch.ones(2, device=DEVICE)


@pytest.mark.parametrize("kind", ["bilinear", "bicubic", "lanczos"])
def test_antialiased_resizing_of_what_is_no_float(kind):
    forward = getattr(torch.ops.aten, f"_upsample_{kind}2d_aa")
    backward = getattr(torch.ops.aten, f"_upsample_{kind}2d_aa_backward")
    x = torch.ones(1, 1, 4, 4, dtype=torch.int16, device=DEVICE)
    with pytest.raises(NotImplementedError, match="\"compute_index_ranges_weights\" not implemented for 'Short'"):
        forward(x, [6, 6], False)
    with pytest.raises(NotImplementedError, match=f"\"upsample_{kind}2d_aa_backward_cpu\" not implemented for 'Short'"):
        backward(x, [4, 4], [1, 1, 2, 2], False)


BAGS = {  # sizes of weight, indices and offsets
    "indices": ((10, 2), (2, 0, 0), (1,)),
    "offsets": ((10, 2), (2,), (2, 1)),
    "weight": ((10,), (2,), (2,)),
}


@pytest.mark.parametrize("bag", [torch.embedding_bag, torch._embedding_bag, torch._embedding_bag_forward_only])
@pytest.mark.parametrize("kind", BAGS)
def test_ranks_of_an_embedding_bag(kind, bag):
    sizes = BAGS[kind]
    weight, indices, offsets = torch.zeros(sizes[0]), torch.zeros(sizes[1]).long(), torch.zeros(sizes[2]).long()
    with pytest.raises(RuntimeError) as cpu:
        bag(weight, indices, offsets)
    with pytest.raises(RuntimeError) as mine:
        bag(weight.to(DEVICE), indices.to(DEVICE), offsets.to(DEVICE))
    assert str(cpu.value).splitlines()[0] in str(mine.value)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("bad", [-1, 11])
def test_an_index_of_a_bag_out_of_range(bad, mode):
    match = rf"embedding_bag: Expected idx >= 0 && idx < num_embeddings but found idx to be {bad}"
    with pytest.raises(RuntimeError, match=match):
        bag = torch.tensor([[bad, 1]], device=DEVICE)
        F.embedding_bag(bag, torch.ones(10, 2, device=DEVICE), mode=mode, padding_idx=0)


EX = {
    "inv": lambda a: torch.linalg.inv_ex(a, check_errors=True),
    "cholesky": lambda a: torch.linalg.cholesky_ex(a, check_errors=True),
    "lu": lambda a: torch.linalg.lu_factor_ex(a, check_errors=True),
    "solve": lambda a: torch.linalg.solve_ex(a, a, check_errors=True),
}


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("kind", EX)
def test_factorizations_raise_when_asked_to(kind, batched):
    a = torch.eye(3).repeat(2, 1, 1)
    EX[kind](a.to(DEVICE))
    a[1, 2, 2] = 0
    a = a if batched else a[1]
    with pytest.raises(RuntimeError) as cpu:
        EX[kind](a)
    with pytest.raises(type(cpu.value)) as mine:
        EX[kind](a.to(DEVICE))
    assert str(mine.value).split(":")[:2] == str(cpu.value).split(":")[:2]


@pytest.mark.parametrize("sizes", [(3,), (2, 3)])
def test_the_inverse_of_a_cholesky_factor_needs_a_square_matrix(sizes):
    with pytest.raises(RuntimeError) as cpu:
        torch.cholesky_inverse(torch.ones(sizes))
    with pytest.raises(RuntimeError) as mine:
        torch.cholesky_inverse(torch.ones(sizes, device=DEVICE))
    assert str(cpu.value) in str(mine.value)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bool, torch.float32], ids=str)
@pytest.mark.parametrize("numbers", [{"beta": 1.5}, {"alpha": 1.5}, {"beta": 1j}, {"beta": True}, {"alpha": True}], ids=str)
def test_factors_of_addr(dtype, numbers):
    def run(device):
        x = torch.ones(3, dtype=dtype, device=device)
        try:
            return torch.addr(torch.ones(3, 3, dtype=dtype, device=device), x, x, **numbers).cpu().tolist()
        except RuntimeError as e:
            return str(e)

    assert run(DEVICE) == run("cpu")


def test_more_dims_than_a_reduction_takes():
    x = torch.rand([1] * 65, device=DEVICE)  # drawn and filled all the same
    assert 0 <= x.flatten().item() < 1 and x.fill_(3).flatten().tolist() == [3]
    for f in (torch.sum, torch.logsumexp, torch.std, torch.amin):
        with pytest.raises(RuntimeError, match="only tensors with up to 64 dims are supported"):
            f(x, dim=0)
