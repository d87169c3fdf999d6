"""Seam: operators without a row. Counted, said once, refused when asked; values as on CPU."""

import warnings

import pytest
import torch
from tpu_testing import DEVICE, ROOT, device_only, run_python, same

pytestmark = device_only

# Operators that no row can serve: our own, with a kernel for the CPU only.
DEFINE = """
import torch
lib = torch.library.Library("tpu_test_fallback", "DEF")
lib.define("twice(Tensor x) -> Tensor")
lib.define("bump_(Tensor(a!) x, int n) -> Tensor(a!)")
lib.define("pair(Tensor x, Tensor[] more) -> (Tensor, Tensor)")
lib.define("noise(Tensor x, *, Generator? generator=None) -> Tensor")
lib.impl("twice", lambda x: x * 2, "CPU")
lib.impl("bump_", lambda x, n: x.add_(n), "CPU")
lib.impl("pair", lambda x, more: (x + 1, torch.stack(more).sum(0)), "CPU")
lib.impl("noise", lambda x, generator=None: torch.rand(x.shape, generator=generator), "CPU")
ops = torch.ops.tpu_test_fallback
"""


@pytest.fixture(scope="module")
def ops():
    scope = {}
    exec(DEFINE, scope)  # noqa: S102 - the same text runs in fresh processes below
    yield scope["ops"]
    scope["lib"]._destroy()


def count(name):
    return torch.tpu.fallback_counts().get("tpu_test_fallback::" + name, 0)


def test_values_and_counts(ops):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        n = count("twice")
        x = torch.arange(3.0, device=DEVICE)
        same(ops.twice(x), torch.arange(3.0) * 2)
        same(ops.twice(x[1:]), torch.arange(3.0)[1:] * 2)
        assert count("twice") == n + 2
        a, b = ops.pair(x, [x, x * 2])
        same(a, torch.arange(3.0) + 1)
        same(b, torch.arange(3.0) * 3)


def test_written_arguments_are_written_back(ops):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = torch.zeros(4, 3, device=DEVICE)
        v = x[1:, ::2]
        assert ops.bump_(v, 5) is v
        want = torch.zeros(4, 3)
        want[1:, ::2] = 5
        same(x, want)


def test_random_operators_draw_from_the_device(ops):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = torch.zeros(5, device=DEVICE)
        torch.manual_seed(1)
        a, b = ops.noise(x), ops.noise(x)
        torch.manual_seed(1)
        same(ops.noise(x), a.cpu())
        assert not torch.equal(a, b)
        g = torch.Generator(DEVICE).manual_seed(4)
        c = ops.noise(x, generator=g)
        same(ops.noise(x, generator=g.manual_seed(4)), c.cpu())


def test_counts_can_be_reset(ops):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ops.twice(torch.ones(1, device=DEVICE))
    assert count("twice") > 0
    assert torch.tpu.fallback_counts(reset=True)["tpu_test_fallback::twice"] > 0
    assert torch.tpu.fallback_counts() == {}


USE = (
    DEFINE
    + "x = torch.arange(3., device='tpu')\nfor _ in range(3): ops.twice(x)\nops.pair(x, [x])\nprint(torch.tpu.fallback_counts())\n"
)


def test_warns_once_an_operator():
    for env in (None, "warn"):
        done = run_python(USE, TORCH_TPU_FALLBACK=env)
        assert done.stderr.count("'tpu_test_fallback::twice'") == 1 and done.stderr.count("'tpu_test_fallback::pair'") == 1
        assert done.stdout.strip() == "{'tpu_test_fallback::pair': 1, 'tpu_test_fallback::twice': 3}"


def test_silent():
    done = run_python(USE, TORCH_TPU_FALLBACK="silent")
    assert "tpu_test_fallback" not in done.stderr
    assert done.stdout.strip() == "{'tpu_test_fallback::pair': 1, 'tpu_test_fallback::twice': 3}"


def test_error():
    code = DEFINE + (
        "x = torch.arange(3., device='tpu')\n"
        "try: ops.twice(x)\n"
        "except NotImplementedError as e: print(e)\n"
        "print((x + 1).tolist())\n"
    )
    first, second = run_python(code, TORCH_TPU_FALLBACK="error").stdout.strip().splitlines()
    assert "tpu_test_fallback::twice" in first and "TORCH_TPU_FALLBACK" in first and second == "[1.0, 2.0, 3.0]"


def test_both_models_train_without_a_fallback():
    code = f"""
    import sys, torch
    sys.path.insert(0, {str(ROOT / "examples")!r})
    import tiny_gpt, digits_cnn
    losses, accuracy, seconds = tiny_gpt.train("tpu", steps=3, batch=2, context=16)
    assert len(losses) == 3
    images, labels = torch.rand(16, 1, 8, 8).tpu(), torch.arange(16).remainder(10).tpu()
    net = digits_cnn.make_model().to("tpu")
    o = torch.optim.AdamW(net.parameters())
    for _ in range(2):
        loss = torch.nn.functional.cross_entropy(net(images), labels)
        o.zero_grad(); loss.backward(); o.step()
    print(torch.tpu.fallback_counts())
    """
    assert run_python(code, TORCH_TPU_FALLBACK="error").stdout.strip() == "{}"


def test_no_fallback_in_the_optimizers():
    code = """
    import torch
    for name in "Adadelta Adagrad Adam AdamW Adamax ASGD NAdam RAdam RMSprop Rprop SGD Adafactor Muon LBFGS".split():
        for foreach in ({}, {"foreach": True}, {"fused": True}):
            p = torch.nn.Parameter(torch.arange(1., 7., device="tpu").view(2, 3))
            try: o = getattr(torch.optim, name)([p], **foreach)
            except TypeError: continue
            for _ in range(2):
                p.grad = torch.ones_like(p)
                o.step((lambda: (p.square().sum()).detach()) if name == "LBFGS" else None)
    print(torch.tpu.fallback_counts())
    """
    assert run_python(code, TORCH_TPU_FALLBACK="error").stdout.strip() == "{}"
