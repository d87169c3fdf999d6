"""Tests that compile for TPUs that are not here. They need libtpu, and no TPU."""

import importlib.util
import os
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "torch"))


@pytest.fixture(scope="session")
def libtpu():
    """Skips, with the reason, where libtpu is not installed."""
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("libtpu is not installed: pip install --no-deps libtpu==0.0.52")
