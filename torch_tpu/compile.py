"""torch.compile(backend="tpu").

Today Dynamo and AOTAutograd trace the function, and the graph then runs operator by operator with the kernels of eager
mode: results are those of eager mode, and so is the speed. One program for the whole graph is not there yet.
"""

import warnings

_warned = False


def backend(graph, example_inputs, **kwargs):
    """The Dynamo backend. Gives a callable for the graph."""
    global _warned
    from torch._dynamo.backends.debugging import aot_eager

    if not _warned:
        _warned = True
        warnings.warn(
            'torch.compile(backend="tpu") runs the traced graph operator by operator for now, at the speed of eager mode',
            UserWarning,
            stacklevel=2,
        )
    return aot_eager(graph, example_inputs)
