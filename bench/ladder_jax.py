"""The model of ladder_torch.py in plain jax.numpy; writes its training step as StableHLO: python ladder_jax.py LAYERS FILE"""

import functools
import sys

import jax
import jax.numpy as jnp
from jax import lax
from ladder import BATCH, HEADS, HIDDEN, KV_HEADS, LENGTH, THETA, VOCAB, WIDTH

HEAD = WIDTH // HEADS


def shapes(layers):
    one = {"n1": (WIDTH,), "n2": (WIDTH,), "q": (WIDTH, WIDTH), "o": (WIDTH, WIDTH), "k": (KV_HEADS * HEAD, WIDTH)}
    one |= {"v": (KV_HEADS * HEAD, WIDTH), "gate": (HIDDEN, WIDTH), "up": (HIDDEN, WIDTH), "down": (WIDTH, HIDDEN)}
    return {"tokens": (VOCAB, WIDTH), "norm": (WIDTH,), "head": (VOCAB, WIDTH), "layers": [one] * layers}


def norm(w, x):
    y = x.astype(jnp.float32)
    return (y * lax.rsqrt((y * y).mean(-1, keepdims=True) + 1e-5)).astype(x.dtype) * w


def rotate(x, cos, sin):
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate((a * cos - b * sin, b * cos + a * sin), -1)


def attention(q, k, v):  # [batch, heads, length, HEAD]; each key serves HEADS / KV_HEADS queries
    b, _, s, _ = q.shape
    q = q.reshape(b, KV_HEADS, HEADS // KV_HEADS, s, HEAD)
    scores = jnp.einsum("bkgqd,bksd->bkgqs", q, k, preferred_element_type=jnp.float32) * HEAD**-0.5
    scores = jnp.where(jnp.tril(jnp.ones((s, s), bool)), scores, -jnp.inf)
    p = jax.nn.softmax(scores, -1).astype(q.dtype)
    return jnp.einsum("bkgqs,bksd->bkgqd", p, v).reshape(b, HEADS, s, HEAD)


def layer(p, x, cos, sin):
    b, s, _ = x.shape
    y = norm(p["n1"], x)
    q, k, v = (
        (y @ p[f].T).reshape(b, s, n, HEAD).transpose(0, 2, 1, 3) for f, n in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS))
    )
    y = attention(rotate(q, cos, sin), rotate(k, cos, sin), v)
    x = x + y.transpose(0, 2, 1, 3).reshape(b, s, WIDTH) @ p["o"].T
    y = norm(p["n2"], x)
    return x + (jax.nn.silu(y @ p["gate"].T) * (y @ p["up"].T)) @ p["down"].T


def loss_of(p, t):
    x = p["tokens"][t[:, :-1]]
    rate = THETA ** (-jnp.arange(0, HEAD, 2, dtype=jnp.float32) / HEAD)
    angle = jnp.outer(jnp.arange(LENGTH, dtype=jnp.float32), rate)
    cos, sin = jnp.cos(angle).astype(x.dtype), jnp.sin(angle).astype(x.dtype)
    for one in p["layers"]:
        x = layer(one, x, cos, sin)
    logits = jax.nn.log_softmax((norm(p["norm"], x) @ p["head"].T).astype(jnp.float32), -1)
    return -jnp.take_along_axis(logits, t[:, 1:, None], -1).mean()


@functools.partial(jax.jit, donate_argnums=0)
def step(state, t):
    p, m, v, n = state
    loss, g = jax.value_and_grad(loss_of)(p, t)
    n = n + 1
    m = jax.tree.map(lambda a, d: (0.9 * a + 0.1 * d).astype(a.dtype), m, g)
    v = jax.tree.map(lambda a, d: (0.999 * a + 0.001 * d * d).astype(a.dtype), v, g)
    rate, scale = 1e-4 / (1 - 0.9**n), jnp.sqrt(1 - 0.999**n)
    p = jax.tree.map(lambda w, a, b: (w * (1 - 1e-4 * 1e-2) - rate * a / (jnp.sqrt(b) / scale + 1e-8)).astype(w.dtype), p, m, v)
    return (p, m, v, n), loss


def main():
    make = lambda s: jax.ShapeDtypeStruct(s, jnp.bfloat16)  # noqa: E731
    p = jax.tree.map(make, shapes(int(sys.argv[1])), is_leaf=lambda s: isinstance(s, tuple))
    tokens = jax.ShapeDtypeStruct((BATCH, LENGTH + 1), jnp.int32)
    lowered = step.trace((p, p, p, jax.ShapeDtypeStruct((), jnp.float32)), tokens).lower(lowering_platforms=("tpu",))
    with open(sys.argv[2], "w") as f:
        f.write(lowered.as_text())


if __name__ == "__main__":
    main()
