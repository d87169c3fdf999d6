"""The JAX side of bench/compiled.py: the same models in plain jax.numpy. python compiled_jax.py jax FOLDER REPEAT ROW..."""

import functools
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
from compiled import HEADS, LAYERS, LENGTH, NEW, PROMPT, WIDTH, clock
from jax import lax


def linear(p, name, x):
    return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]


def norm(p, name, x):
    c = x - x.mean(-1, keepdims=True)
    return c * lax.rsqrt((c * c).mean(-1, keepdims=True) + 1e-5) * p[f"{name}.weight"] + p[f"{name}.bias"]


def attention(q, k, v, mask=None):
    s = jnp.einsum("bhqd,bhkd->bhqk", q, k) * q.shape[-1] ** -0.5
    return jax.nn.softmax(s if mask is None else jnp.where(mask, s, -jnp.inf), -1) @ v


def block(p, at, x, heads, causal=True, cache=None, place=None):
    b, s, d = x.shape
    q, k, v = linear(p, f"{at}qkv", norm(p, f"{at}n1", x)).reshape(b, s, 3, heads, d // heads).transpose(2, 0, 3, 1, 4)
    if cache is not None:
        k, v = cache = [lax.dynamic_update_slice(c, n, (0, 0, place, 0)) for c, n in zip(cache, (k, v), strict=True)]
        mask = jnp.arange(k.shape[2]) <= place
    else:
        mask = jnp.tril(jnp.ones((s, s), bool)) if causal else None
    y = attention(q, k, v, mask).transpose(0, 2, 1, 3).reshape(b, s, d)
    x = x + linear(p, f"{at}o", y)
    x = x + linear(p, f"{at}down", jax.nn.gelu(linear(p, f"{at}up", norm(p, f"{at}n2", x)), approximate=False))
    return (x, cache) if cache is not None else x


def gpt(p, t):
    x = p["tokens.weight"][t] + p["places.weight"][: t.shape[1]]
    for i in range(LAYERS):
        x = block(p, f"blocks.{i}.", x, HEADS)
    return norm(p, "norm", x) @ p["tokens.weight"].T


def gpt_loss(p, t):
    logits = jax.nn.log_softmax(gpt(p, t[:, :-1]), -1)
    return -jnp.take_along_axis(logits, t[:, 1:, None], -1).mean()


def block_loss(p, x):
    for i in range(2):
        x = block(p, f"{i}.", x, 4)
    return (x * x).mean()


@functools.partial(jax.jit, donate_argnums=0)
def sgd_step(p, x):
    loss, g = jax.value_and_grad(block_loss)(p, x)
    return jax.tree.map(lambda w, d: w - 1e-3 * d, p, g), loss


@functools.partial(jax.jit, donate_argnums=0)
def adamw_step(state, t):
    p, m, v, n = state
    loss, g = jax.value_and_grad(gpt_loss)(p, t)
    n = n + 1
    m = jax.tree.map(lambda a, d: 0.9 * a + 0.1 * d, m, g)
    v = jax.tree.map(lambda a, d: 0.999 * a + 0.001 * d * d, v, g)
    rate, scale = 1e-3 / (1 - 0.9**n), jnp.sqrt(1 - 0.999**n)
    p = jax.tree.map(lambda w, a, b: w * (1 - 1e-3 * 1e-2) - rate * a / (jnp.sqrt(b) / scale + 1e-8), p, m, v)
    return (p, m, v, n), loss


def conv(x, w, stride, pad):
    return lax.conv_general_dilated(x, w, (stride, stride), [(pad, pad)] * 2, dimension_numbers=("NCHW", "OIHW", "NCHW"))


def batch_norm(p, name, x):
    scale = p[f"{name}.weight"] * lax.rsqrt(p[f"{name}.running_var"] + 1e-5)
    return x * scale[:, None, None] + (p[f"{name}.bias"] - p[f"{name}.running_mean"] * scale)[:, None, None]


@jax.jit
def resnet(p, x):
    x = jax.nn.relu(batch_norm(p, "b", conv(x, p["c.weight"], 2, 3)))
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 3, 3), (1, 1, 2, 2), [(0, 0), (0, 0), (1, 1), (1, 1)])
    for i, stride in enumerate((1, 1, 2, 1, 2, 1, 2, 1)):
        at = f"blocks.{i}."
        y = jax.nn.relu(batch_norm(p, f"{at}b1", conv(x, p[f"{at}c1.weight"], stride, 1)))
        y = batch_norm(p, f"{at}b2", conv(y, p[f"{at}c2.weight"], 1, 1))
        if f"{at}short.0.weight" in p:
            x = batch_norm(p, f"{at}short.1", conv(x, p[f"{at}short.0.weight"], stride, 0))
        x = jax.nn.relu(x + y)
    return linear(p, "out", x.mean((2, 3)))


@jax.jit
def encoder(p, x):
    for i in range(4):
        x = block(p, f"{i}.", x, 12, causal=False)
    return x


@functools.partial(jax.jit, donate_argnums=2)
def decode_one(p, t, caches, at):
    x = p["tokens.weight"][t] + p["places.weight"][at]
    for i in range(LAYERS):
        x, caches[i] = block(p, f"blocks.{i}.", x, HEADS, cache=caches[i], place=at)
    return (norm(p, "norm", x) @ p["tokens.weight"].T)[:, -1].argmax(-1, keepdims=True), caches


def run(folder, repeat, row):
    def load(name):
        return {k: jnp.asarray(v) for k, v in np.load(f"{folder}/{name}.npz").items() if v.dtype == np.float32}

    inputs = {k: jnp.asarray(v) for k, v in np.load(f"{folder}/inputs.npz").items()}

    def wait(x):
        return float(x.ravel()[0])

    if row == "small call":
        u = inputs["small"]
        f = jax.jit(lambda u, v: jax.nn.relu(u @ v) + u)
        best, first = clock(lambda: f(u, u), wait, repeat, 300)
        return best, first, float(np.asarray(f(u, u), np.float64).sum())
    if row in ("block2 SGD step", "GPT AdamW step"):
        is_gpt = row[0] == "G"
        p = load("gpt" if is_gpt else "block")
        zeros = jax.tree.map(jnp.zeros_like, p)
        state, x = ((p, zeros, jax.tree.map(jnp.copy, zeros), 0.0), inputs["tokens"]) if is_gpt else (p, inputs["block"])
        one, losses = adamw_step if is_gpt else sgd_step, []

        def step():
            nonlocal state
            state, loss = one(state, x)
            return loss

        best, first = clock(step, lambda v: losses.append(wait(v)), repeat)
        return best, first, losses[1]
    if row in ("ResNet-18 inference", "encoder inference"):
        f, p, x = (resnet, load("resnet"), inputs["image"]) if row[0] == "R" else (encoder, load("encoder"), inputs["words"])
        best, first = clock(lambda: f(p, x), wait, repeat)
        return best, first, float(np.abs(np.asarray(f(p, x), np.float64)).sum())
    if row == "decode a token":
        p, prompt = load("gpt"), inputs["tokens"][:1, :PROMPT]
        pieces = [prompt[:, i : i + 1] for i in range(PROMPT)]
        caches = [[jnp.zeros((1, HEADS, LENGTH, WIDTH // HEADS)) for _ in "kv"] for _ in range(LAYERS)]
        places = [jnp.int32(i) for i in range(LENGTH)]

        def decode():
            nonlocal caches
            for at in range(PROMPT + NEW):
                t, caches = decode_one(p, pieces[at] if at < PROMPT else t, caches, places[at])  # noqa: F821
            return t

        best, first = clock(decode, wait, repeat)
        return best / (PROMPT + NEW), first, float(wait(decode()))
    raise ValueError(row)


def main():
    _, folder, repeat, *rows = sys.argv[1:]
    for row in rows:
        s, first, value = run(folder, int(repeat), row)
        print(json.dumps({"row": row, "s": s, "first": first, "value": value}), flush=True)


if __name__ == "__main__":
    main()
