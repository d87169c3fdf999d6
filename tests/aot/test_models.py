"""The training steps of the two example models, whole, for each generation of TPU."""

import importlib
import pathlib
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

aot = torch.tpu.aot
pytestmark = pytest.mark.usefixtures("libtpu")
EXAMPLES = str(pathlib.Path(__file__).resolve().parents[2] / "examples")
TOPOLOGIES = ("v5e:2x2", "v5p:2x2x1", "v6e:2x2", "tpu7x:2x2x1")


def example(name):
    sys.path.insert(0, EXAMPLES)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(EXAMPLES)


def cnn():
    pytest.importorskip("sklearn", reason="scikit-learn is not installed: the example takes its images from it")
    with torch.device("meta"):
        model = example("digits_cnn").make_model()
        batch = (torch.empty(64, 1, 8, 8), torch.empty(64, dtype=torch.long))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    def step(x, y):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step, batch


def gpt():
    with torch.device("meta"):
        model = example("tiny_gpt").GPT()
        batch = (torch.empty(16, 64, dtype=torch.long), torch.empty(16, 64, dtype=torch.long))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)

    def step(x, y):
        loss = F.cross_entropy(model(x).view(-1, 256), y.view(-1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    return step, batch


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("model", [cnn, gpt], ids=["cnn", "gpt"])
def test_training_step(model, topology):
    step, batch = model()
    p = aot.compile(step, batch, topology=topology)
    m, c = p.memory(), p.cost()
    trained = sum(1 for v in p.parameters if v.kind == "parameter")
    assert sum(1 for v in p.outputs if v.kind == "parameter") == trained > 5
    assert sum(1 for v in p.outputs if v.kind == "optimizer") == 2 * trained
    assert m.fits and 0 < m.arguments < m.limit
    assert c.seconds >= c.floor > 0
    assert 0 < p.mfu() < 1
    lines = [w for w in p.by_line() if w]
    assert any("tiny_gpt.py" in w or "digits_cnn.py" in w or "test_models.py" in w for w in lines)
