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


# ---- loading -----------------------------------------------------------------------------------------------------------


def on_device(tree):
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.to("tpu"), tree)


def assert_runs(program, module, args, kwargs, turns=2):
    """The program does what the module does on the CPU: results, and what becomes of arguments and buffers."""
    there, named = on_device(args), on_device(kwargs)
    for _ in range(turns):
        torch.testing.assert_close(
            program(*there, **named), module(*args, **kwargs), rtol=1e-5, atol=1e-6, check_device=False, check_stride=False
        )
        torch.testing.assert_close(there, args, rtol=1e-5, atol=1e-6, check_device=False)
        for name, b in module.named_buffers():
            if name in program.state:
                torch.testing.assert_close(program.state[name].cpu(), b)


@pytest.mark.parametrize("weights", ["arguments", "constants"])
@pytest.mark.parametrize("name", CASES)
def test_round_trip(name, weights, tmp_path):
    from torch_tpu.export import load

    module, args, kwargs, _, made = exported(name, weights)
    made.save_artifact(tmp_path / "made")
    assert_runs(load(tmp_path / "made"), module, args, kwargs)


def test_round_trip_without_a_file():
    from torch_tpu.export import load

    module, args, kwargs, _, made = exported("mlp", "arguments")
    assert_runs(load(made), module, args, kwargs)


@pytest.mark.parametrize("weights", ["beside", "none"])
def test_weights_elsewhere(weights, tmp_path):
    from torch_tpu.export import load

    module, args, kwargs, _, made = exported("conv", "arguments")
    made.save_artifact(tmp_path / "made", weights=weights)
    other = {k: v.clone().add_(0.25) if v.is_floating_point() else v for k, v in module.state_dict().items()}
    if weights == "beside":
        assert_runs(load(tmp_path / "made"), module, args, kwargs)
        (tmp_path / "made.safetensors").unlink()
    with pytest.raises(ValueError, match=r"no value of net.0.weight; give it: load\(..., weights="):
        load(tmp_path / "made")
    program = load(tmp_path / "made", weights=other)
    module.load_state_dict(other)
    assert_runs(program, module, args, kwargs)
    other["net.0.bias"] = torch.ones(5)
    with pytest.raises(ValueError, match=r"net.0.bias: expected torch.float32 and the sizes \[4\], got torch.float32 and \[5\]"):
        load(tmp_path / "made", weights=other)


def test_weights_are_safetensors(tmp_path):
    """The file beside the artifact is what others read."""
    from torch_tpu import _artifact

    held = {
        "a": torch.randn(2, 3).to(torch.bfloat16),
        "b": torch.tensor([True, False]),
        "c": torch.randn(3, dtype=torch.complex64),
        "d": torch.empty(0, 4),
        "e": torch.arange(12).reshape(3, 4).t(),
    }
    with open(tmp_path / "w", "wb") as f:
        _artifact.write_weights(f, held)
    data = (tmp_path / "w").read_bytes()
    got = _artifact.read_weights(data, "w")
    assert got.keys() == held.keys() and all(torch.equal(got[k], held[k]) for k in held)
    with pytest.raises(ValueError, match="w: no whole file of safetensors"):
        _artifact.read_weights(data[:-1], "w")
    safetensors = pytest.importorskip("safetensors.torch")
    got = safetensors.load(data)
    assert all(torch.equal(got[k], held[k]) for k in held)


def test_fresh_process(tmp_path):
    module, args, _, _, made = exported("mlp", "arguments")
    made.save_artifact(tmp_path / "made")
    torch.save((args[0], module(*args).detach()), tmp_path / "data")
    code = (
        "import torch\nfrom torch_tpu.export import load\n"
        f"x, want = torch.load({str(tmp_path / 'data')!r})\n"
        f"p = load({str(tmp_path / 'made')!r})\n"
        "torch.testing.assert_close(p(x.to('tpu')).cpu(), want)\n"
        "print(torch.tpu.compile_count())"
    )
    for _ in range(2):
        out = run_python(code, TORCH_TPU_CACHE_DIR=str(tmp_path / "cache")).stdout
    assert out.split() == ["0"]  # the second process found the executable


class Empty(torch.nn.Module):
    def forward(self, x, y):
        return x[:0], y.sum() + x, y, None


def test_tensors_without_elements(tmp_path):
    from torch_tpu.export import load, to_stablehlo

    args = (torch.ones(2, 3), torch.ones(0, 4))
    made = to_stablehlo(torch.export.export(Empty(), args))
    assert [v.shape for v in made.outputs] == [(2, 3)]
    made.save_artifact(tmp_path / "made")
    assert_runs(load(tmp_path / "made"), Empty(), args, {})


class Random(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.dropout(x, 0.5), torch.rand_like(x)


def test_random_numbers(tmp_path):
    """The same as in eager mode, and the generator moves on."""
    from torch_tpu.export import load, to_stablehlo

    x = torch.ones(3, 4)
    to_stablehlo(torch.export.export(Random(), (x,))).save_artifact(tmp_path / "made")
    x, runs = x.to("tpu"), []
    for run in (load(tmp_path / "made"), Random()):
        torch.tpu.manual_seed(5)
        runs.append([t for _ in range(2) for t in run(x)])
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))
    assert not torch.equal(runs[0][1], runs[0][3])


FOREIGN = """module @other attributes {mhlo.num_partitions = 1 : i32} {
  func.func private @twice(%arg0: tensor<2x3xf32>) -> tensor<2x3xf32> {
    %0 = stablehlo.add %arg0, %arg0 : tensor<2x3xf32>
    return %0 : tensor<2x3xf32>
  }
  func.func public @main(%arg0: tensor<2x3xf32> {tf.aliasing_output = 0 : i32, jax.name = "a(1, {"}, %arg1: tensor<i1>) -> (tensor<2x3xf32> {jax.result_info = "r"}, tensor<i1>) {
    %0 = call @twice(%arg0) : (tensor<2x3xf32>) -> tensor<2x3xf32>
    return %0, %arg1 : tensor<2x3xf32>, tensor<i1>
  }
}
"""


def test_text_of_others(tmp_path):
    """Even where it may put its result into an argument, the argument stays."""
    from torch_tpu.export import load

    (tmp_path / "text").write_text(FOREIGN)
    program = load(tmp_path / "text")
    x, y = torch.randn(2, 3), torch.tensor(True)
    there = x.to("tpu")
    for _ in range(2):
        got = program(there, y.to("tpu"))
        assert torch.equal(got[0].cpu(), x * 2) and got[1].item() is True and torch.equal(there.cpu(), x)
    assert torch.equal(program(x.t().contiguous().to("tpu").t(), y.to("tpu"))[0].cpu(), x * 2)
    with pytest.raises(TypeError, match="expected 2 tensors, got 1 and 0 by name"):
        program(there)


def test_bytecode(tmp_path):
    from torch_tpu.export import load

    jax = pytest.importorskip("jax")
    from jax import export as jax_export

    made = jax_export.export(jax.jit(lambda x: (x * 2, x.sum())))(jax.ShapeDtypeStruct((3,), "float32"))
    (tmp_path / "made").write_bytes(made.mlir_module_serialized)
    with pytest.raises(ValueError, match="is MLIR bytecode: give inputs= and outputs="):
        load(tmp_path / "made")
    program = load(tmp_path / "made", inputs=[torch.empty(3)], outputs=[torch.empty(3), torch.empty(())])
    got = program(torch.tensor([1.0, 2, 3], device="tpu"))
    assert got[0].tolist() == [2, 4, 6] and got[1].item() == 6


def test_bad_arguments(tmp_path):
    from torch_tpu.export import load

    *_, made = exported("counter", "arguments")
    program = load(made)
    x, total, scale = torch.randn(2, 3, device="tpu"), torch.randn(1, device="tpu"), torch.tensor(2.0, device="tpu")
    with pytest.raises(TypeError, match="expected arguments nested as in the example"):
        program(x, total)
    with pytest.raises(TypeError, match="x: expected a tensor, got int"):
        program(1, total, scale=scale)
    with pytest.raises(
        ValueError, match=r"x: expected a torch.float32 tensor of the sizes \[2, 3\], got torch.float32 and \[3, 2\]"
    ):
        program(x.t(), total, scale=scale)
    with pytest.raises(ValueError, match=r"total: expected a torch.float32 .*got torch.float64"):
        program(x, total.double(), scale=scale)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device, .*tpu:0 .*cpu"):
        program(x, total.cpu(), scale=scale)
    program(x, total, scale=scale)


def test_bad_files(tmp_path):
    import json
    import zipfile

    from torch_tpu.export import load

    *_, made = exported("mlp", "arguments")
    path = tmp_path / "made"
    made.save_artifact(path)
    whole = path.read_bytes()
    for n in (len(whole) - 1, len(whole) // 2, 40):
        path.write_bytes(whole[:n])
        with pytest.raises(ValueError, match="is damaged or cut off"):
            load(path)
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 255  # in the weights
    path.write_bytes(flipped)
    with pytest.raises(ValueError, match="is damaged or cut off"):
        load(path)
    path.write_bytes(whole)
    with zipfile.ZipFile(path) as z:
        parts = {n: z.read(n) for n in z.namelist()}

    def changed(edit):
        head = json.loads(parts["torch_tpu_export.json"])
        edit(head)
        with zipfile.ZipFile(path, "w") as z:
            for n, data in parts.items():
                z.writestr(n, json.dumps(head) if n.endswith("json") else data)
        return load(path)

    assert changed(lambda head: None).inputs
    with pytest.raises(ValueError, match="has the format 2; this version of torch_tpu reads the formats up to 1"):
        changed(lambda head: head.update(format=2))
    with pytest.raises(ValueError, match="the header of .* is damaged: KeyError"):
        changed(lambda head: head.pop("in_spec"))
    with pytest.raises(ValueError, match="what @main of the text gives is not what the artifact's header says"):
        changed(lambda head: head["outputs"][0].update(shape=[3, 4]))
    for text, error in (
        (FOREIGN[:250], "cut off"),
        ("module {}", "has no function @main"),
        (FOREIGN.replace("tensor<i1>", "tensor<?xi1>"), "only tensors of known sizes"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=error):
            load(path)
    path.write_text(FOREIGN[:-20])
    with pytest.raises(RuntimeError):  # XLA's parser
        load(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="is no artifact, no StableHLO text and no MLIR bytecode"):
        load(path)
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none")
