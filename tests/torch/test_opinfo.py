"""A sample of PyTorch's own database of operators: forward, against CPU. bench in /bench measures all of it."""

import pytest
import torch
from torch.utils import _pytree as pytree
from tpu_testing import DEVICE, IS_CPU, check, device_only, name_of, to_device

pytestmark = device_only

NAMES = """
abs acos add addbmm addcdiv addcmul addmm addmv all amax amin any arange argmax argmin argsort as_strided asin atan atan2 baddbmm bitwise_and
bitwise_left_shift bmm broadcast_to bucketize cat ceil chunk clamp clamp_min column_stack complex constant_pad_nd conj copysign cos cosh count_nonzero cov
cross cummax cumprod cumsum diag diag_embed diagonal diff dist div dot einsum eq erf exp expand expm1 eye fill flip floor floor_divide fmod frac full gather
ge gt heaviside hypot index_add index_copy index_fill index_put index_select isclose isfinite isin kron kthvalue lerp linspace log log1p log2 log_softmax
logaddexp logical_and logsumexp lt masked_fill masked_scatter masked_select matmul max maximum mean median meshgrid min minimum mm movedim mul mv nan_to_num
nansum narrow native_layer_norm ne neg nonzero norm ones outer permute polar pow prod put reciprocal remainder renorm repeat repeat_interleave reshape roll
rot90 round rsqrt rsub scatter scatter_add scatter_reduce searchsorted select sigmoid sign sin sinc slice softmax sort split sqrt square squeeze stack std
std_mean sub sum t take take_along_dim tan tanh tile topk trace transpose trapezoid tril triu true_divide trunc unbind unfold unflatten unique
unsqueeze var var_mean vdot view view_as_complex vstack where xlogy zero_ zeros
nn.functional.adaptive_avg_pool2d nn.functional.avg_pool1d nn.functional.avg_pool2d nn.functional.batch_norm nn.functional.binary_cross_entropy
nn.functional.conv1d nn.functional.conv2d nn.functional.conv_transpose2d nn.functional.cosine_similarity nn.functional.cross_entropy nn.functional.elu
nn.functional.embedding nn.functional.gelu nn.functional.glu nn.functional.group_norm nn.functional.hardswish nn.functional.huber_loss
nn.functional.interpolate nn.functional.layer_norm nn.functional.leaky_relu nn.functional.linear nn.functional.max_pool2d nn.functional.mse_loss
nn.functional.nll_loss nn.functional.normalize nn.functional.one_hot nn.functional.pad nn.functional.pixel_shuffle nn.functional.relu
nn.functional.scaled_dot_product_attention nn.functional.silu nn.functional.smooth_l1_loss nn.functional.softplus nn.functional.unfold
""".split()
SAMPLES = 3
ANY_OF_EQUALS = {"topk", "kthvalue"}  # which of equal elements is named is open: only the values count
TOLERANCE = {torch.float32: (1e-4, 1e-5), torch.bfloat16: (2e-2, 2e-2), torch.int64: (0, 0), torch.bool: (0, 0)}


def database():
    from torch.testing._internal.common_methods_invocations import op_db

    found = {}
    for op in op_db:
        found.setdefault(op.name, []).append(op)
    return found


DATABASE = {} if IS_CPU else database()


def test_names_are_in_the_database():
    missing = [n for n in NAMES if n not in DATABASE]
    assert not missing, missing


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=name_of)
@pytest.mark.parametrize("name", NAMES)
def test_forward(name, dtype):
    bad, tried = [], 0
    for op in DATABASE.get(name, []):
        if dtype not in op.supported_dtypes("cpu"):
            continue
        torch.manual_seed(1)
        samples = list(op.sample_inputs("cpu", dtype, requires_grad=False))
        step = max(1, len(samples) // SAMPLES)
        for s in samples[::step][:SAMPLES]:
            here = (s.input, s.args, s.kwargs)
            there = pytree.tree_map(lambda v: DEVICE if v == "cpu" or v == torch.device("cpu") else v, to_device(here))
            try:
                want = op(here[0], *here[1], **here[2])
            except Exception:  # noqa: BLE001, S112 - a sample that is an error on CPU says nothing
                continue
            tried += 1
            try:
                got = op(there[0], *there[1], **there[2])
                leaves = list(zip(pytree.tree_leaves(got), pytree.tree_leaves(want), strict=True))
                for g, w in leaves[:1] if name in ANY_OF_EQUALS else leaves:
                    if torch.is_tensor(w):
                        check(g, w, *TOLERANCE.get(w.dtype, (1e-4, 1e-5)))
                    else:
                        assert g == w
            except Exception as e:  # noqa: BLE001 - all samples are reported
                shapes = pytree.tree_map(lambda v: (tuple(v.shape), name_of(v.dtype)) if torch.is_tensor(v) else v, here)
                bad.append(f"{op.full_name} {shapes}: {type(e).__name__}: {str(e)[:200]}")
    if not tried:
        pytest.skip(f"no sample of {name} in {name_of(dtype)}")
    assert not bad, "\n".join(bad)
