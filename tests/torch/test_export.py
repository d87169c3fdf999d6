"""torch_tpu.export: the text, its names, and its values where JAX can run it."""

import numpy as np
import pytest
import torch
from tpu_testing import device_only, run_python

pytestmark = device_only


class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(5, 8), torch.nn.Linear(8, 3)

    def forward(self, x):
        return self.down(torch.nn.functional.gelu(self.up(x)))


class Conv(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Conv2d(2, 4, 3, padding=1), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.MaxPool2d(2)
        )
        self.net[1].running_mean.normal_()
        self.net[1].running_var.uniform_(0.5, 2)

    def forward(self, x):
        return self.net(x).mean((2, 3))


class Counter(torch.nn.Module):
    """A mutated buffer, a mutated argument, an argument, a view and one tensor twice as results, a mask, a kwarg, a number."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.tensor([1, 2]))
        self.register_buffer("mask", torch.tensor([[True, False, True], [False, False, True]]))

    def forward(self, x, total, *, scale):
        self.seen.add_(1)
        total.add_(x.sum())
        y = torch.where(self.mask, x, torch.zeros(3)) * scale + self.seen.sum()
        return {"y": y, "again": y, "x": x, "column": y[:, 1], "turned": y.t(), "number": 7}


def case(name):
    if name == "mlp":
        return Mlp(), (torch.randn(4, 5),), {}
    if name == "conv":
        return Conv(), (torch.randn(2, 2, 6, 6),), {}
    if name == "channels_last":
        return (
            Conv().to(memory_format=torch.channels_last),
            (torch.randn(2, 2, 6, 6).contiguous(memory_format=torch.channels_last),),
            {},
        )
    return Counter(), (torch.randn(2, 3), torch.randn(1)), {"scale": torch.tensor(2.0)}


CASES = ["mlp", "conv", "channels_last", "counter"]


def exported(name, weights):
    from torch_tpu.export import to_stablehlo

    module, args, kwargs = case(name)
    ep = torch.export.export(module.eval(), args, kwargs)
    return module, args, kwargs, ep, to_stablehlo(ep, weights=weights)


@pytest.mark.parametrize("weights", ["arguments", "constants"])
def test_names(weights):
    _, _, _, ep, mlp = exported("mlp", weights)
    held = ["up.weight", "up.bias", "down.weight", "down.bias"] if weights == "arguments" else []
    assert mlp.input_names == [*held, "x"]
    assert [v.kind for v in mlp.inputs] == ["parameter"] * len(held) + ["argument"]
    assert [(v.kind, v.shape, v.dtype) for v in mlp.outputs] == [("result", (4, 3), torch.float32)]
    assert (mlp.in_spec, mlp.out_spec) == (ep.call_spec.in_spec, ep.call_spec.out_spec)
    assert mlp.text.count("%arg0: ") == (weights == "arguments")


@pytest.mark.parametrize("weights", ["arguments", "constants"])
def test_what_is_mutated_is_an_output(weights):
    *_, made = exported("counter", weights)
    mask = ["mask"] if weights == "arguments" else []
    assert made.input_names == ["seen", *mask, "x", "total", "scale"]
    assert [(v.kind, v.name) for v in made.outputs[:2]] == [("buffer", "seen"), ("argument", "total")]
    assert [v.kind for v in made.outputs[2:]] == ["result"] * 5
    assert made.result["number"] == 7
    assert made.result["turned"].shape == (3, 2)
    assert [made.result[k] for k in ("y", "again", "x", "column", "turned")] == made.outputs[2:]


def test_nothing_is_written():
    module, *_ = exported("counter", "arguments")
    assert module.seen.tolist() == [1, 2]


def test_save(tmp_path):
    *_, made = exported("mlp", "constants")
    made.save(tmp_path / "mlp.mlir")
    assert (tmp_path / "mlp.mlir").read_text() == made.text


def test_memory_format_is_no_part_of_the_text():
    """Inputs are taken contiguous, as PyTorch says their sizes, however the example lay in memory."""
    *_, made = exported("channels_last", "arguments")
    assert "tensor<4x2x3x3xf32>" in made.text.partition(") -> ")[0]
    assert "tensor<2x2x6x6xf32>" in made.text.partition(") -> ")[0]


@pytest.mark.parametrize("weights", ["arguments", "constants"])
@pytest.mark.parametrize("name", CASES)
def test_values_under_jax(name, weights):
    """Another parser and another runtime."""
    pytest.importorskip("jax")
    module, args, kwargs, _, made = exported(name, weights)
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    given = dict(zip(("x", "total"), args, strict=False)) | kwargs
    values = [(given if v.kind == "argument" else state)[v.name].detach().numpy().copy() for v in made.inputs]
    got = run_jax(made.text, values)
    result = module(*args, **kwargs)  # writes to the buffer and to the argument
    leaves = [v for v in torch.utils._pytree.tree_leaves(result) if isinstance(v, torch.Tensor)]
    after = [(given if v.kind == "argument" else state)[v.name] for v in made.outputs if v.kind != "result"]
    assert len(got) == len(after + leaves)
    for value, want in zip(got, after + leaves, strict=True):
        want = want.detach().numpy()
        assert (value.dtype, value.shape) == (want.dtype, want.shape)
        np.testing.assert_allclose(value, want, rtol=1e-5, atol=1e-6)


def run_jax(text, values):
    """Runs the text on JAX's CPU backend, which parses it with jaxlib's MLIR."""
    import jax
    from jaxlib import xla_client

    jax.config.update("jax_enable_x64", True)
    client = jax.devices("cpu")[0].client
    devices = xla_client.DeviceList((client.local_devices()[0],))
    program = client.compile_and_load(text, devices, xla_client.CompileOptions())
    out = program.execute_sharded([jax.device_put(v, jax.devices("cpu")[0]) for v in values])
    return [np.asarray(x[0]) for x in out.disassemble_into_single_device_arrays()]


@pytest.mark.parametrize("weights", ["arguments", "constants"])
def test_compiled_for_a_topology(fake_plugin, weights):
    code = (
        "import torch, torch_tpu.export as e\n"
        "m = torch.export.export(torch.nn.Linear(3, 2), (torch.ones(4, 3),))\n"
        f"p = torch.tpu.aot.compile_text(e.to_stablehlo(m, weights={weights!r}).text, 'fake:2x2')\n"
        "print(p.memory().arguments)"
    )
    out = run_python(code, TORCH_TPU_AOT_LIBRARY=fake_plugin).stdout
    assert out.split() == [str(4 * (12 + 8 * (weights == "arguments")))]


def test_bad_input():
    from torch_tpu.export import to_stablehlo

    module, x = Mlp(), torch.randn(4, 5)
    with pytest.raises(TypeError, match="expected a torch.export.ExportedProgram .* got Mlp"):
        to_stablehlo(module)
    ep = torch.export.export(module, (x,))
    with pytest.raises(ValueError, match="expected 'arguments' or 'constants', got 'files'"):
        to_stablehlo(ep, weights="files")
    dynamic = torch.export.export(module, (x,), dynamic_shapes={"x": {0: torch.export.Dim("batch")}})
    with pytest.raises(NotImplementedError, match="input x has the sizes .*without dynamic_shapes"):
        to_stablehlo(dynamic)
    with torch.device("meta"):
        empty = Mlp()
    with pytest.raises(ValueError, match=r"up\.weight has no value"):
        to_stablehlo(torch.export.export(empty, (x.to("meta"),)), weights="constants")
    assert (torch.ones(2, device="tpu") + 1).tolist() == [2, 2]  # no capture was left open


def test_as_strided_of_an_input_with_gaps():
    from torch_tpu.export import to_stablehlo

    class Strided(torch.nn.Module):
        def forward(self, x):
            return x.as_strided((2,), (3,))

    to_stablehlo(torch.export.export(Strided(), (torch.ones(6),)))
    with pytest.raises(NotImplementedError, match=r"input x has the strides \[2\], .*as_strided"):
        to_stablehlo(torch.export.export(Strided(), (torch.ones(6)[::2],)))


def test_an_operator_of_the_host():
    from torch_tpu.export import to_stablehlo

    class Read(torch.nn.Module):
        def forward(self, x):
            return torch.nonzero(x)

    with pytest.raises(NotImplementedError, match=r"aten.nonzero.default at .*test_export.py:\d+ cannot be part"):
        to_stablehlo(torch.export.export(Read(), (torch.ones(3),)))
