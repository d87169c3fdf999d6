"""The rows of bench/rows.py in jax.numpy, jax.lax and jax.nn, the plain way. Reads {name: inputs} and writes {name: StableHLO}, as JSON.

Inputs and results have PyTorch's dtypes: indices come and go as int64 and are int32 in between, as JAX has them."""

import json
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

jax.config.update("jax_default_matmul_precision", "highest")  # float32 products are float32, as in PyTorch
I32, I64, F32, BF16 = jnp.int32, jnp.int64, jnp.float32, jnp.bfloat16
NAMES = {
    "f32": F32,
    "bf16": BF16,
    "i64": I64,
    "i32": I32,
    "i8": jnp.int8,
    "b": jnp.bool_,
    "c64": jnp.complex64,
    "u32": jnp.uint32,
}


def shape(spec):
    dtype, dims = re.fullmatch(r"(\w+)\[([\d, ]*)\]", spec).groups()
    return jax.ShapeDtypeStruct([int(d) for d in dims.split(",") if d], NAMES[dtype])


def narrow(x):
    return x.astype(I32)


class Wide(Exception):
    """The row has int64 in its results."""


def wide(x):
    if not jax.config.jax_enable_x64:
        raise Wide
    return x.astype(I64)


def vjp(f):
    def run(dy, *inputs):
        floats = [k for k, x in enumerate(inputs) if jnp.issubdtype(x.dtype, jnp.floating)]

        def of(*some):
            every = list(inputs)
            for k, x in zip(floats, some, strict=True):
                every[k] = x
            return f(*every)

        y, back = jax.vjp(of, *(inputs[k] for k in floats))
        return back(dy.astype(y.dtype))

    return run


def conv(spatial="HW", stride=1, pad=0, dilation=1, groups=1, grow=1, transposed=False):
    def run(x, w):
        n = len(spatial)
        numbers = ("NC" + spatial, ("IO" if transposed else "OI") + spatial, "NC" + spatial)
        if transposed:
            w = jnp.flip(w, range(2, 2 + n))
        return lax.conv_general_dilated(
            x, w, (stride,) * n, [(pad, pad)] * n, (grow,) * n, (dilation,) * n, numbers, feature_group_count=groups
        )

    return run


def pool(x, start, f, k, s, p):
    return lax.reduce_window(x, np.array(start, x.dtype), f, (1, 1, k, k), (1, 1, s, s), [(0, 0), (0, 0), (p, p), (p, p)])


def max_pool(k, s, p=0):
    return lambda x: pool(x, -jnp.inf, lax.max, k, s, p)


def avg_pool(k, s, p=0):
    return lambda x: (pool(x.astype(F32), 0, lax.add, k, s, p) / (k * k)).astype(x.dtype)


def max_pool_places(x):
    n, c, h, w = x.shape
    y = x.reshape(n, c, h // 2, 2, w // 2, 2).transpose(0, 1, 2, 4, 3, 5).reshape(n, c, h // 2, w // 2, 4)
    k = lax.argmax(y, 4, I32)
    row, column = lax.broadcasted_iota(I32, k.shape, 2) * 2 + k // 2, lax.broadcasted_iota(I32, k.shape, 3) * 2 + k % 2
    return y.max(4), wide(row * w + column)


def normed(x, axes, eps):
    x = x.astype(F32)
    mean = x.mean(axes, keepdims=True)
    d = x - mean
    return d * lax.rsqrt((d * d).mean(axes, keepdims=True) + eps)


def layer_norm(x, w, b):
    return (normed(x, -1, 1e-5) * w.astype(F32) + b.astype(F32)).astype(x.dtype)


def rms_norm(x, w):
    y = x.astype(F32)
    eps = jnp.finfo(F32).eps
    return (y * lax.rsqrt((y * y).mean(-1, keepdims=True) + eps) * w.astype(F32)).astype(x.dtype)


def batch_norm(x, w, b):
    return (normed(x, (0, 2, 3), 1e-5) * w.astype(F32)[:, None, None] + b.astype(F32)[:, None, None]).astype(x.dtype)


def group_norm(x, w, b):
    n, c, h, k = x.shape
    y = normed(x.reshape(n, 8, c // 8, h, k), (2, 3, 4), 1e-5).reshape(x.shape)
    return (y * w.astype(F32)[:, None, None] + b.astype(F32)[:, None, None]).astype(x.dtype)


def sort_with_places(x, dim=-1):
    dim %= x.ndim
    return lax.sort((x, lax.broadcasted_iota(I32, x.shape, dim)), dimension=dim, num_keys=1, is_stable=True)


def sorted_at(k):
    def run(x):
        v, i = sort_with_places(x)
        return v[..., k], wide(i[..., k])

    return run


def top_k(k, dim=-1):
    def run(x):
        v, i = lax.top_k(jnp.moveaxis(x, dim, -1), k)
        return jnp.moveaxis(v, -1, dim), wide(jnp.moveaxis(i, -1, dim))

    return run


def runs_of_equals(x):
    x = jnp.sort(x)
    return x, wide(jnp.cumsum((x[:, 1:] != x[:, :-1]).astype(I32), -1, dtype=I32))


def cummax(x):
    def later(a, b):
        take = b[0] >= a[0]
        return jnp.where(take, b[0], a[0]), jnp.where(take, b[1], a[1])

    v, i = lax.associative_scan(later, (x, lax.broadcasted_iota(I32, x.shape, 1)), axis=1)
    return v, wide(i)


def cross_entropy(x, t):
    return -jnp.take_along_axis(jax.nn.log_softmax(x), narrow(t)[:, None], 1).mean()


def rows_of(x, i):
    return jnp.take(x, narrow(i), axis=0)


def scatter_add(x, i, y):
    return x.at[jnp.arange(x.shape[0], dtype=I32)[:, None], narrow(i)].add(y)


def grid_sample(x, g):
    n, c, h, w = x.shape
    at = [((g[..., 1] + 1) * h - 1) / 2, ((g[..., 0] + 1) * w - 1) / 2]
    one = lambda image, *q: jax.scipy.ndimage.map_coordinates(image, q, 1, mode="constant")  # noqa: E731
    return jax.vmap(jax.vmap(one, (0, None, None)))(x, *at)


def resize(how):
    return lambda x: jax.image.resize(x, (*x.shape[:2], 2 * x.shape[2], 2 * x.shape[3]), how, antialias=False)


def solve_triangular(a, b):
    return lax.linalg.triangular_solve(a, b, left_side=True, lower=True)


def unfold(x):
    n, c, h, w = x.shape
    y = lax.conv_general_dilated_patches(x, (3, 3), (1, 1), [(1, 1), (1, 1)], precision=lax.Precision.HIGHEST)
    return y.reshape(n, c * 9, h * w)


def pixel_shuffle(x):
    n, c, h, w = x.shape
    return x.reshape(n, c // 4, 2, 2, h, w).transpose(0, 1, 4, 2, 5, 3).reshape(n, c // 4, 2 * h, 2 * w)


def dropout(key, x):
    return jnp.where(jax.random.bernoulli(key, 0.9, x.shape), x / 0.9, 0).astype(x.dtype)


def adamw(*t):
    n = len(t) // 5
    p, g, m, v, s = (list(t[k * n : k * n + n]) for k in range(5))
    m = [0.9 * a + 0.1 * d for a, d in zip(m, g, strict=True)]
    v = [0.999 * a + 0.001 * d * d for a, d in zip(v, g, strict=True)]
    p = [
        w * (1 - 1e-3 * 1e-2) - 1e-3 / (1 - 0.9**k) * a / (jnp.sqrt(b) / jnp.sqrt(1 - 0.999**k) + 1e-8)
        for w, a, b, k in zip(p, m, v, s, strict=True)
    ]
    return p, m, v


def clip(*g):
    norms = jnp.stack([jnp.sqrt((x * x).sum()) for x in g])
    scale = 1 / jnp.sqrt((norms * norms).sum())
    return [x * scale for x in g]


def gelu(x):
    return jax.nn.gelu(x.astype(F32), approximate=False).astype(x.dtype)


def softmax(x):
    return jax.nn.softmax(x.astype(F32), -1).astype(x.dtype)


def silu_times(x, y):
    return (jax.nn.silu(x.astype(F32))).astype(x.dtype) * y


def multinomial(key, p):
    return wide(jax.random.categorical(key, jnp.log(p)[:, None], -1, shape=(p.shape[0], 8)))


def draw(f):
    """A draw takes a key, where PyTorch's takes the generator's state."""
    f.key = True
    return f


BIG = (4096, 4096)
ROWS = {
    "add": jnp.add,
    "add of a row": jnp.add,
    "gelu": gelu,
    "gelu backward": vjp(gelu),
    "silu times": silu_times,
    "lgamma": lax.lgamma,
    "erfinv": lax.erf_inv,
    "pow": jnp.power,
    "remainder of int32": jnp.remainder,
    "add of int64": jnp.add,
    "to bfloat16": lambda x: x.astype(BF16),
    "where": jnp.where,
    "masked_fill": lambda x, m: jnp.where(m, -1e9, x),
    "transpose": lambda x: x.T,
    "sum": jnp.sum,
    "sum of rows": lambda x: x.sum(1),
    "sum of columns": lambda x: x.sum(0),
    "mean of bfloat16": lambda x: x.mean(-1),
    "var": lambda x: x.var(-1, ddof=1),
    "amax": lambda x: x.max(0),
    "argmax": lambda x: wide(lax.argmax(x, 1, I32)),
    "argmax of all": lambda x: wide(lax.argmax(x.reshape(-1), 0, I32)),
    "max with places": lambda x: (x.max(0), wide(lax.argmax(x, 0, I32))),
    "logsumexp": lambda x: jax.nn.logsumexp(x, -1),
    "norm": lambda x: jnp.linalg.norm(x, axis=-1),
    "mm": jnp.matmul,
    "mm bfloat16": jnp.matmul,
    "mm transposed": lambda a, b: a.T @ b.T,
    "mm int8": lambda a, b: lax.dot(a, b, preferred_element_type=I32),
    "bmm": jnp.matmul,
    "matmul transposed batch": lambda a, b: jnp.einsum("bqhd,bkhd->bhqk", a, b),
    "mv": jnp.matmul,
    "linear backward": vjp(lambda x, w, b: x @ w.T + b),
    "conv2d": conv(pad=1),
    "conv2d float32": conv(pad=1),
    "conv2d backward": vjp(conv(pad=1)),
    "conv2d of stride 2 backward": vjp(conv(stride=2, pad=3)),
    "conv2d of 32 groups": conv(pad=1, groups=32),
    "conv2d of 32 groups backward": vjp(conv(pad=1, groups=32)),
    "conv2d of channels": conv(pad=1, groups=64),
    "conv2d of channels backward": vjp(conv(pad=1, groups=64)),
    "conv2d of dilation 2 backward": vjp(conv(pad=2, dilation=2)),
    "conv_transpose2d": conv(pad=1, grow=2, transposed=True),
    "conv_transpose2d backward": vjp(conv(pad=1, grow=2, transposed=True)),
    "conv1d": conv("W", pad=2),
    "conv3d": conv("DHW", pad=1),
    "max_pool2d": max_pool(3, 2, 1),
    "max_pool2d with places": max_pool_places,
    "max_pool2d backward": vjp(max_pool(3, 2, 1)),
    "max_pool2d of 2 backward": vjp(max_pool(2, 2)),
    "avg_pool2d": avg_pool(3, 2, 1),
    "avg_pool2d backward": vjp(avg_pool(3, 2, 1)),
    "adaptive_avg_pool2d": avg_pool(8, 8),
    "adaptive_avg_pool2d backward": vjp(avg_pool(8, 8)),
    "adaptive_max_pool2d": max_pool(8, 8),
    "layer_norm": layer_norm,
    "layer_norm backward": vjp(layer_norm),
    "batch_norm": batch_norm,
    "batch_norm backward": vjp(batch_norm),
    "group_norm": group_norm,
    "group_norm backward": vjp(group_norm),
    "rms_norm": rms_norm,
    "rms_norm backward": vjp(rms_norm),
    "embedding": lambda i, w: rows_of(w, i),
    "embedding backward": vjp(rows_of),
    "index_select": rows_of,
    "index of columns": lambda x, i: jnp.take(x, narrow(i), axis=1),
    "gather": lambda x, i: jnp.take_along_axis(x, narrow(i), 1),
    "scatter_add": scatter_add,
    "scatter_add of rows": lambda x, i, y: x.at[narrow(i)].add(y),
    "index_put accumulate": lambda x, i, y: x.at[narrow(i)].add(y),
    "index_put": lambda x, i, y: x.at[narrow(i)].set(y),
    "sort": lambda x: (lambda v, i: (v, wide(i)))(*sort_with_places(x)),
    "sort of 1 M": jnp.sort,
    "argsort": lambda x: wide(sort_with_places(x)[1]),
    "topk": top_k(16),
    "topk of a vocabulary": top_k(50),
    "topk of experts": top_k(8),
    "topk of columns": top_k(16, 0),
    "median": sorted_at(511),
    "kthvalue": sorted_at(2),
    "runs of equals": runs_of_equals,
    "cumsum": lambda x: jnp.cumsum(x, -1),
    "cumsum of columns": lambda x: jnp.cumsum(x, 0),
    "cumsum of 4 M": lambda x: jnp.cumsum(x, 0),
    "cumprod": lambda x: jnp.cumprod(x, -1),
    "logcumsumexp": lambda x: lax.cumlogsumexp(x, 1),
    "cummax": cummax,
    "softmax": softmax,
    "softmax backward": vjp(softmax),
    "log_softmax": lambda x: jax.nn.log_softmax(x, -1),
    "log_softmax backward": vjp(lambda x: jax.nn.log_softmax(x, -1)),
    "cross_entropy": cross_entropy,
    "cross_entropy backward": vjp(cross_entropy),
    "one_hot": lambda i: jax.nn.one_hot(narrow(i), 1024, dtype=I64),
    "histc": lambda x: jnp.histogram(x, 256, (0, 1))[0].astype(F32),
    "searchsorted": lambda a, v: wide(jnp.searchsorted(a, v, method="scan_unrolled")),
    "bucketize": lambda v, a: wide(jnp.searchsorted(a, v, method="scan_unrolled")),
    "roll": lambda x: jnp.roll(x, 5, -1),
    "roll of two dims": lambda x: jnp.roll(x, (5, 7), (0, 1)),
    "flip": lambda x: jnp.flip(x, -1),
    "cat": lambda x, y: jnp.concatenate((x, y), -1),
    "stack": lambda x, y: jnp.stack((x, y), -1),
    "pad": lambda x: jnp.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))),
    "pad reflect": lambda x: jnp.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), mode="reflect"),
    "tril": jnp.tril,
    "repeat_interleave": lambda x: jnp.repeat(x, 4, 1),
    "unfold": unfold,
    "pixel_shuffle": pixel_shuffle,
    "upsample nearest": resize("nearest"),
    "upsample nearest backward": vjp(resize("nearest")),
    "upsample bilinear": resize("linear"),
    "upsample bilinear backward": vjp(resize("linear")),
    "grid_sample": grid_sample,
    "rfft": jnp.fft.rfft,
    "fft2": jnp.fft.fft2,
    "cholesky": jnp.linalg.cholesky,
    "qr": jnp.linalg.qr,
    "triangular_solve": solve_triangular,
    "eigh": jnp.linalg.eigh,
    "solve": jnp.linalg.solve,
    "rand": draw(lambda key: jax.random.uniform(key, BIG, F32)),
    "randn": draw(lambda key: jax.random.normal(key, BIG, F32)),
    "randint": draw(lambda key: jax.random.randint(key, BIG, 0, 1000, I32)),
    "dropout": draw(dropout),
    "multinomial": draw(multinomial),
    "bernoulli": draw(lambda key, p: jax.random.bernoulli(key, p).astype(F32)),
    "exponential": draw(lambda key: jax.random.exponential(key, BIG, F32)),
    "randperm": draw(lambda key: wide(jax.random.permutation(key, jnp.arange(1 << 20, dtype=I32)))),
    "AdamW": adamw,
    "clip_grad_norm": clip,
}
DONATED = {"AdamW": tuple(range(8)) + tuple(range(16, 32))}


def lower(name, specs):
    f = ROWS[name]
    inputs = [shape(s) for s in (["u32[2]"] if getattr(f, "key", False) else []) + specs]
    lowered = jax.jit(f, donate_argnums=DONATED.get(name, ())).trace(*inputs).lower(lowering_platforms=("tpu",))
    return lowered.compiler_ir("stablehlo").operation.get_asm(print_generic_op_form=True)  # torch.tpu.aot counts products in it


def main():
    out = {}
    for name, specs in json.load(sys.stdin).items():
        jax.config.update("jax_enable_x64", any("i64" in s for s in specs))
        try:
            out[name] = lower(name, specs)
        except Wide:
            jax.config.update("jax_enable_x64", True)
            out[name] = lower(name, specs)
    json.dump(out, sys.stdout)


if __name__ == "__main__":
    main()
