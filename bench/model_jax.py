"""The models of bench/model_peers.py in JAX."""
import jax
import jax.numpy as jnp
import torch

import model_peers


class Jax:
    silu, relu, sigmoid, tanh = jax.nn.silu, jax.nn.relu, jax.nn.sigmoid, jnp.tanh

    @staticmethod
    def gelu(x):
        return jax.nn.gelu(x, approximate=False)

    @staticmethod
    def linear(x, w, b=None):
        y = x @ w.T
        return y if b is None else y + b

    @staticmethod
    def layer_norm(x, w, b):
        wide = x.astype(jnp.float32)
        mean, var = wide.mean(-1, keepdims=True), wide.var(-1, keepdims=True)
        return ((wide - mean) * jax.lax.rsqrt(var + 1e-5)).astype(x.dtype) * w + b

    @staticmethod
    def rms_norm(x, w):
        wide = x.astype(jnp.float32)
        return (wide * jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-5)).astype(x.dtype) * w

    @staticmethod
    def split(x, heads):  # what jax.nn.dot_product_attention takes: [b, t, heads, d]
        return x.reshape(*x.shape[:2], heads, -1)

    @staticmethod
    def merge(x):
        return x.reshape(*x.shape[:2], -1)

    @staticmethod
    def attend(q, k, v, causal):
        return jax.nn.dot_product_attention(q, k, v, is_causal=causal)

    @staticmethod
    def rotate(x, cos, sin):
        low, high = jnp.split(x, 2, -1)
        return x * cos[:, None] + jnp.concatenate((-high, low), -1) * sin[:, None]

    @staticmethod
    def conv(x, w, stride):
        pad = w.shape[2] // 2
        return jax.lax.conv_general_dilated(x, w, (stride, stride), ((pad, pad), (pad, pad)))

    @staticmethod
    def batch_norm(x, w, b, mean, root):
        w, b, mean, root = (t[:, None, None] for t in (w, b, mean, root))
        return (x - mean) * jax.lax.rsqrt(root * root + 1e-5) * w + b

    @staticmethod
    def max_pool(x):
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 3, 3), (1, 1, 2, 2),
                                     ((0, 0), (0, 0), (1, 1), (1, 1)))

    @staticmethod
    def mean(x):
        return x.mean((2, 3))


def jax_array(t):
    dtype = jnp.bfloat16 if t.dtype == torch.bfloat16 else t.cpu().numpy().dtype
    return jnp.array(t.float().cpu().numpy()).astype(dtype)


def jax_decode(row):
    """The caches are given away and come back, so that they are written in place."""
    weights = [jax_array(t) for t in row.weights]
    places = [i for i, t in enumerate(row.weights) if t.dim() == 4]
    caches = [weights[i].transpose(0, 2, 1, 3) for i in places]

    def step(x, weights, caches):
        new = []

        class F(Jax):
            @staticmethod
            def remember(cache, r, length):
                new.append(jax.lax.dynamic_update_slice(cache, r, (0, length - 1, 0, 0)))
                return new[-1][:, :length]

        turn = iter(caches)
        w = (next(turn) if i in places else t for i, t in enumerate(weights))
        return model_peers.llama_decode(F, x, w, row.name, row.length), new

    jitted, held = jax.jit(step, donate_argnums=(2,)), [caches]
    x, weights = jax_array(row.x), [None if i in places else t for i, t in enumerate(weights)]

    def call():
        y, held[0] = jitted(x, weights, held[0])
        return y.block_until_ready()

    return call


def jax_way(row):
    if row.name == "llama_decode":
        return jax_decode(row)
    forward = jax.jit(lambda x, w: model_peers.FORWARD[row.name](Jax, x, iter(w), row.name, row.length))
    x, weights = jax_array(row.x), [jax_array(t) for t in row.weights]
    return lambda: forward(x, weights).block_until_ready()
