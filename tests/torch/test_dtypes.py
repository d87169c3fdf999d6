"""Dtypes that PyTorch's kernels refuse are refused here, with the same kind of exception: never garbage, never a crash."""

import pytest
import torch
import torch.nn.functional as F
from tpu_testing import DEVICE, agree, sample

I64, U8, I32, BOOL, C64, F32 = torch.int64, torch.uint8, torch.int32, torch.bool, torch.complex64, torch.float32
ALL = (I64, U8, BOOL, C64)
INTS = (I64, U8, BOOL)
aten = torch.ops.aten


def labels(n, device):
    return torch.zeros(n, dtype=I64, device=device)


# What each is called with: a tensor of that shape. Then the dtypes that CPU refuses.
REFUSED = {
    "softmax": (lambda x: x.softmax(-1), (3, 4), ALL),
    "softmax first dim": (lambda x: x.softmax(0), (3, 4), ALL),
    "log_softmax": (lambda x: x.log_softmax(-1), (3, 4), ALL),
    "softmax backward": (lambda x: aten._softmax_backward_data(x, x, 1, F32), (3, 4), ALL),
    "logcumsumexp": (lambda x: x.logcumsumexp(0), (3,), INTS),
    "var": (lambda x: x.var(), (3, 4), INTS),
    "std": (lambda x: x.std(0), (3, 4), INTS),
    "std_mean": (lambda x: torch.std_mean(x), (3, 4), INTS),
    "cross_entropy": (lambda x: F.cross_entropy(x, labels(3, x.device)), (3, 4), ALL),
    "nll_loss": (lambda x: F.nll_loss(x, labels(3, x.device)), (3, 4), ALL),
    "nll_loss2d": (lambda x: F.nll_loss(x, torch.zeros(2, 2, 2, dtype=I64, device=x.device)), (2, 3, 2, 2), ALL),
    "mse_loss": (lambda x: F.mse_loss(x, x), (3, 4), ALL),
    "smooth_l1_loss": (lambda x: F.smooth_l1_loss(x, x), (3, 4), (I64, U8, C64)),
    "huber_loss": (lambda x: F.huber_loss(x, x), (3, 4), (I64, U8, C64)),
    "binary_cross_entropy": (lambda x: F.binary_cross_entropy(x, x), (3, 4), (I64, U8, C64)),
    "multi_margin_loss": (lambda x: F.multi_margin_loss(x, labels(3, x.device)), (3, 4), ALL),
    "multilabel_margin_loss": (lambda x: aten.multilabel_margin_loss_forward(x, labels((3, 4), x.device), 1), (3, 4), ALL),
    "max_pool1d": (lambda x: F.max_pool1d(x, 2), (1, 2, 4), (BOOL, C64)),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2), (1, 2, 4, 4), (BOOL, C64)),
    "max_pool3d": (lambda x: F.max_pool3d(x, 2), (1, 2, 4, 4, 4), (BOOL, C64)),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 2), (1, 2, 4, 4), (U8, I32, BOOL, C64)),
    "adaptive_avg_pool1d": (lambda x: F.adaptive_avg_pool1d(x, 2), (1, 2, 4), ALL),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, 3), (1, 2, 4, 4), ALL),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, 3), (1, 2, 4, 4), ALL),
    "max_unpool2d": (lambda x: aten.max_unpool2d(x, labels((1, 2, 2), x.device), [4, 4]), (1, 2, 2), ALL),
    "nearest": (lambda x: F.interpolate(x, size=5), (1, 1, 3), (I64, BOOL, C64)),
    "linear": (lambda x: F.interpolate(x, size=5, mode="linear"), (1, 1, 3), ALL),
    "bilinear": (lambda x: F.interpolate(x, size=5, mode="bilinear"), (1, 1, 3, 3), (I64, BOOL, C64)),
    "bicubic": (lambda x: F.interpolate(x, size=5, mode="bicubic"), (1, 1, 3, 3), (I64, BOOL, C64)),
    "trilinear": (lambda x: F.interpolate(x, size=5, mode="trilinear"), (1, 1, 3, 3, 3), ALL),
    "conv1d": (lambda x: F.conv1d(x, x), (1, 2, 4), (BOOL,)),
    "conv_transpose2d": (lambda x: F.conv_transpose2d(x, x), (1, 1, 4, 4), (U8, I32, BOOL)),
    "reflection pad": (lambda x: F.pad(x, (1, 1), mode="reflect"), (1, 1, 4), (BOOL,)),
    "replication pad": (lambda x: F.pad(x, (1, 1, 1, 1), mode="replicate"), (1, 1, 4, 4), (BOOL,)),
    "unfold": (lambda x: F.unfold(x, 2), (1, 1, 4, 4), (I64, U8)),
    "fold": (lambda x: F.fold(x, (3, 3), 2), (1, 4, 4), (I64, U8)),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, training=True), (3, 4), ALL),
    "layer_norm": (lambda x: F.layer_norm(x, (4,)), (3, 4), ALL),
    "group_norm": (lambda x: F.group_norm(x, 2), (1, 4, 3), ALL),
    "grid_sample": (lambda x: aten.grid_sampler_2d(x, x, 0, 0, True), (1, 2, 2, 2), ALL),
    "glu": (lambda x: F.glu(x), (3, 4), ALL),
    "gelu": (lambda x: F.gelu(x), (3, 4), ALL),
    "mish": (lambda x: F.mish(x), (3, 4), ALL),
    "relu": (lambda x: x.relu(), (3, 4), (BOOL, C64)),
    "hardtanh": (lambda x: F.hardtanh(x), (3, 4), (BOOL, C64)),
    "rrelu": (lambda x: F.rrelu(x), (3, 4), ALL),
    "renorm": (lambda x: x.renorm(2, 0, 1), (3, 4), INTS),
    "multinomial": (lambda x: x.multinomial(1), (3, 4), ALL),
    "bernoulli": (lambda x: x.bernoulli(), (3, 4), ALL),
    "log_normal_": (lambda x: x.log_normal_(), (3, 4), ALL),
    "geometric_": (lambda x: x.geometric_(0.5), (3, 4), (BOOL, C64)),
    "normal": (lambda x: torch.normal(x, 1.0), (3, 4), INTS),
    "histc": (lambda x: x.histc(4), (3, 4), (BOOL, C64)),
    "cumprod_": (lambda x: x.cumprod_(0), (3, 4), (BOOL,)),
    "cumsum_": (lambda x: x.cumsum_(0), (3, 4), (BOOL,)),
    "logit_": (lambda x: x.logit_(), (3, 4), (*INTS, C64)),
    "mul_.Scalar": (lambda x: aten.mul_.Scalar(x, 2.5), (3, 4), INTS),
    "round decimals": (lambda x: x.round(decimals=1), (3, 4), ALL),
    "cummax": (lambda x: x.cummax(0), (3, 4), (C64,)),
    "amax": (lambda x: x.amax(), (3, 4), (C64,)),
    "max": (lambda x: x.max(), (3, 4), (C64,)),
    "aminmax": (lambda x: x.aminmax(), (3, 4), (C64,)),
    "sort": (lambda x: x.sort(), (3, 4), (C64,)),
    "unique": (lambda x: x.unique(), (3, 4), (C64,)),
    "unique_consecutive": (lambda x: x.unique_consecutive(), (3, 4), (C64,)),
    "median": (lambda x: x.median(), (3, 4), (BOOL, C64)),
    "kthvalue": (lambda x: x.kthvalue(1), (3, 4), (BOOL, C64)),
    "bucketize": (lambda x: torch.bucketize(x, x.flatten()), (4,), (BOOL, C64)),
    "bincount": (lambda x: x.bincount(), (4,), (F32, BOOL, C64)),
    "repeat_interleave": (lambda x: torch.repeat_interleave(x), (4,), (F32, U8, BOOL, C64)),
    "index_reduce": (lambda x: x.index_reduce(0, labels(3, x.device), x, "amax"), (3,), (BOOL, C64)),
    "ge": (lambda x: x >= x, (3, 4), (C64,)),
    "lt number": (lambda x: x < 2, (3, 4), (C64,)),
    "atan2": (lambda x: torch.atan2(x, x), (3, 4), (C64,)),
    "xlogy": (lambda x: torch.xlogy(x, x), (3, 4), (C64,)),
    "fmod": (lambda x: torch.fmod(x, x), (3, 4), (BOOL, C64)),
    "remainder": (lambda x: torch.remainder(x, x), (3, 4), (BOOL, C64)),
    "clamp": (lambda x: x.clamp(x, x), (3, 4), (BOOL, C64)),
    "addcmul": (lambda x: torch.addcmul(x, x, x), (3, 4), (BOOL,)),
    "erf": (lambda x: x.erf(), (3, 4), (C64,)),
    "lgamma": (lambda x: x.lgamma(), (3, 4), (C64,)),
    "bessel": (lambda x: torch.special.bessel_j0(x), (3, 4), (C64,)),
    "lu_factor": (lambda x: torch.linalg.lu_factor_ex(x), (3, 3), INTS),
    "cholesky_inverse": (lambda x: torch.cholesky_inverse(x), (3, 3), INTS),
    "solve_triangular": (lambda x: aten.linalg_solve_triangular(x, x, upper=True), (3, 3), INTS),
    "linspace": (lambda x: torch.linspace(x[0], x[1], 3, dtype=F32, device=x.device), (3,), (C64,)),
    "shift": (lambda x: x << x, (3,), (BOOL, F32, C64)),
    "shift in place": (lambda x: x.__ilshift__(1), (3,), (BOOL,)),
    "index_put_": (lambda x: x.index_put_((labels(1, x.device),), torch.ones(1, device=x.device)), (3,), ALL),
    "index_put mask": (
        lambda x: x.index_put((torch.ones(3, device=x.device) > 0,), torch.ones(3, device=x.device)),
        (3,),
        ALL,
    ),
    "where": (lambda x: torch.where(x, x, x), (3,), (I64, F32)),
}


def exception_of(fn, x):
    with pytest.raises(Exception) as e:
        fn(x)
    return e.value


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    fn, shape, dtypes = REFUSED[name]
    for dtype in dtypes:
        x = sample(dtype, *shape)
        want, got = exception_of(fn, x.clone()), exception_of(fn, x.to(DEVICE, copy=True))
        assert type(got) is type(want), f"{dtype}: {got!r}; CPU raises {want!r}"


def test_message_says_what_is_taken():
    got = exception_of(lambda x: x.softmax(0), torch.ones(3, dtype=I64, device=DEVICE))
    assert "not implemented for 'Long'" in str(got) and (DEVICE == "cpu" or "takes floating-point tensors" in str(got))


def test_gradient_of_a_refused_dtype():
    """The operators of the backward pass refuse what those of the forward pass do."""
    x = torch.ones(1, 2, 4, 4, dtype=C64, device=DEVICE)
    for call in (
        lambda: aten._adaptive_avg_pool2d_backward(x, x),
        lambda: aten.upsample_bilinear2d_backward(x, [4, 4], [1, 2, 4, 4], False),
        lambda: aten._log_softmax_backward_data(x, x, 1, F32),
    ):
        with pytest.raises(NotImplementedError, match="not implemented for 'ComplexFloat'"):
            call()


TAKEN = {
    "empty softmax": (lambda x: x[:0].softmax(-1), (3, 4), I64),
    "softmax to float": (lambda x: x.softmax(-1, dtype=F32), (3, 4), I64),
    "mse_loss of mixed dtypes": (lambda x: F.mse_loss(x, x.float() + 1), (3, 4), I64),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2), (1, 2, 4, 4), I64),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 2), (1, 2, 4, 4), I64),
    "conv_transpose1d": (lambda x: F.conv_transpose1d(x, x), (1, 1, 4), I64),
    "nearest": (lambda x: F.interpolate(x, size=5), (1, 1, 3), U8),
    "var": (lambda x: x.var(), (3, 4), C64),
    "cumprod": (lambda x: x.cumprod(0), (3, 4), BOOL),
    "bernoulli_ p": (lambda x: x.bernoulli_(1.0), (3, 4), I64),
    "bool shifted left": (lambda x: x << 1, (3,), BOOL),
    "bool shifted right": (lambda x: x >> 1, (3,), BOOL),
    "addcmul of a fraction": (lambda x: torch.addcmul(x, x, x, value=0.5), (3, 4), I64),
    "addcmul of a truncated number": (lambda x: torch.addcmul(x, x, x, value=2.7), (3, 4), I64),
    "index_reduce of rows": (lambda x: x.index_reduce(0, labels(3, x.device), x, "amax"), (3, 4), BOOL),
    "where": (lambda x: torch.where(x, x + 1, x), (3, 4), U8),
    "masked fill by index_put": (lambda x: x.index_put_((x > 0,), torch.ones((), device=x.device)), (3, 4), I64),
    "masked fill of one element": (lambda x: x.index_put_((x > 0,), torch.ones(1, device=x.device)), (3, 4), I64),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TAKEN)
def test_taken(name):
    fn, shape, dtype = TAKEN[name]
    x = sample(dtype, *shape)
    fn(x.clone())
    agree(fn, x, rtol=1e-5, atol=1e-5)


def test_taken_by_cuda():
    """CUDA has kernels for these, the CPU has not."""
    x = torch.tensor([1, 2, 2, 5], device=DEVICE)
    if DEVICE == "cpu":
        pytest.skip("CPU refuses them")
    assert x.histc(4, 1, 5).tolist() == [1, 2, 0, 1]
    assert torch.eye(3, dtype=BOOL, device=DEVICE).trace().item() == 3
    assert torch.full((2,), 1 + 2j, device=DEVICE).nansum().item() == 2 + 4j
