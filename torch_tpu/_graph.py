"""Programs that the core holds for Python: adapter/graph.cpp."""

import contextlib

import torch


def on_tpu(x):
    return isinstance(x, torch.Tensor) and x.device.type == "tpu"


class Graph:
    """Owns a graph of the core: it lives as long as this object."""

    def __init__(self, handle):
        self.handle = handle

    def run(self, inputs):
        return torch.ops.torch_tpu.run_graph.default._op(self.handle, inputs)

    def __del__(self):
        with contextlib.suppress(Exception):  # at the interpreter's end, or when there is none
            torch.ops.torch_tpu.release_graph.default._op(self.handle)
