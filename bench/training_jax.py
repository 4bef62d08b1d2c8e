"""The training rows of bench/training.py in JAX."""
import jax
import jax.numpy as jnp
import torch

import models, training


def linear(p, name, x):
    return x @ p[name + ".weight"].T + p[name + ".bias"]


def normal(p, name, x):
    mean = x.mean(-1, keepdims=True)
    var = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(var + 1e-5) * p[name + ".weight"] + p[name + ".bias"]


def jax_mlp(p, x):
    return linear(p, "3", jax.nn.relu(linear(p, "1", x)))


def jax_cnn(p, x):
    for name, stride in (("0", 1), ("2", 2)):
        x = jax.lax.conv_general_dilated(x, p[name + ".weight"], (stride, stride), ((1, 1), (1, 1)))
        x = jax.nn.relu(x + p[name + ".bias"][:, None, None])
    return linear(p, "5", x.reshape(x.shape[0], -1))


def jax_pool(p, x):
    for name in ("0", "3"):
        x = jax.lax.conv_general_dilated(x, p[name + ".weight"], (1, 1), ((1, 1), (1, 1)))
        x = jax.nn.relu(x + p[name + ".bias"][:, None, None])
        if name == "0":
            x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    return linear(p, "6", x.reshape(x.shape[0], -1))


def jax_attention(p, name, x):
    n, length, width = x.shape
    qkv = x @ p[name + ".in_proj_weight"].T + p[name + ".in_proj_bias"]
    q, k, v = qkv.reshape(n, length, 3, models.HEADS, -1).transpose(2, 0, 3, 1, 4)
    scores = q @ k.transpose(0, 1, 3, 2) / q.shape[-1] ** 0.5
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -jnp.inf)
    y = jax.nn.softmax(scores, -1) @ v
    return linear(p, name + ".out_proj", y.transpose(0, 2, 1, 3).reshape(n, length, width))


def jax_transformer(p, x):
    h = p["symbols.weight"][x] + p["places.weight"]
    for i in range(models.LAYERS):
        b = f"block{i}"
        h = h + jax_attention(p, b + ".attention", normal(p, b + ".norm1", h))
        wide = jax.nn.gelu(linear(p, b + ".perceptron.0", normal(p, b + ".norm2", h)), approximate=True)
        h = h + linear(p, b + ".perceptron.2", wide)
    h = linear(p, "head", normal(p, "norm", h))
    return h.reshape(-1, h.shape[-1])


def jax_loss(forward):
    def loss(p, x, y):
        scores = jax.nn.log_softmax(forward(p, x))
        return -jnp.take_along_axis(scores, y[:, None], 1).mean()
    return loss


# ---- optimisers, by the formulas of torch.optim ----


def sgd(p, g, state):
    return jax.tree.map(lambda p, g: p - 0.01 * g, p, g), state


def adam(p, g, state, decay=0.0):
    m, v, t = state
    t = t + 1
    m = jax.tree.map(lambda m, g: m + 0.1 * (g - m), m, g)
    v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, g)
    rate, root = 1e-4 / (1 - 0.9 ** t), jnp.sqrt(1 - 0.999 ** t)
    move = lambda p, m, v: p * (1 - 1e-4 * decay) - rate * m / (jnp.sqrt(v) / root + 1e-8)
    return jax.tree.map(move, p, m, v), (m, v, t)


def adamw(p, g, state):
    return adam(p, g, state, 1e-2)


def moments(p):
    zeros = lambda: jax.tree.map(jnp.zeros_like, p)
    return zeros(), zeros(), jnp.float32(0)


# ---- steps ----


def array(t):
    return jnp.array(t.detach().cpu().numpy())


def jax_step(name):
    """A call that moves parameters and state on."""
    forward = {"train_mlp": jax_mlp, "train_cnn": jax_cnn, "train_pool": jax_pool,
               "train_transformer": jax_transformer}
    if name == "adam":
        p = {str(i): array(torch.randn(625, 250)) for i in range(64)}
        rest, gradients = ({key: array(torch.randn(625, 250)) for key in p},), lambda p, g: (jnp.float32(0), g)
    else:
        p = {key: array(value) for key, value in training.model(name).named_parameters()}
        rest, gradients = tuple(array(t) for t in training.batch(name)), jax.value_and_grad(jax_loss(forward[name]))
    update = {"adam": adam, "train_transformer": adamw}.get(name, sgd)

    def step(p, state, *rest):
        loss, g = gradients(p, *rest)
        return update(p, g, state), loss

    step = jax.jit(step, donate_argnums=(0, 1))
    held = [p, () if update is sgd else moments(p)]

    def call():
        held[:], loss = step(*held, *rest)
        if training.DEVICE == "cpu":
            call.wait()
        return loss

    call.wait = lambda: jax.block_until_ready(held)
    return call
