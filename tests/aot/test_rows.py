"""Samples of PyTorch's database of operators, as eager mode builds them for a TPU, compiled for TPUs that are not here. All of
it: python tests/aot/sweep.py."""

import pytest
import torch
from sweep import sweep

pytestmark = pytest.mark.usefixtures("libtpu")

# What a TPU's compiler does not take, with its reason.
REFUSED = {}


@pytest.mark.parametrize("topology,dtype,every", [("v5e:2x2", "float32", 8), ("tpu7x:2x2x1", "bfloat16", 16)])
def test_a_sample_is_accepted(topology, dtype, every):
    r = sweep(topology, getattr(torch, dtype), every=every)
    assert {k: v for k, v in r["refused"].items() if k not in REFUSED} == {}
    assert r["accepted"] > 200 / every
    assert len(r["rows"]) > 200 / every
