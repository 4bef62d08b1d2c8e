"""The training rows in PyTorch and JAX, for bench/peers.py: whole steps, forward, backward and update."""
import jax
import jax.numpy as jnp
import optax
import torch
from torch.nn.functional import cross_entropy

import models

SYMBOLS = 96


def batch(name):
    if name == "train_mlp":
        return torch.randn(128, 784), torch.randint(10, (128,))
    if name in ("train_cnn", "train_pool"):
        return torch.randn(64, 1, 8, 8), torch.randint(10, (64,))
    return torch.randint(SYMBOLS, (16, models.CONTEXT)), torch.randint(SYMBOLS, (16 * models.CONTEXT,))


def model(name):
    if name == "train_mlp":
        return models.mlp(784, 512, 10)
    images = {"train_cnn": models.cnn, "train_pool": models.pool_cnn}
    return images[name]() if name in images else models.Transformer(SYMBOLS)


def optimiser(name, parameters):
    if name == "adam":
        return torch.optim.Adam(parameters, lr=1e-4, fused=True)
    if name == "train_transformer":
        return torch.optim.AdamW(parameters, lr=1e-4, weight_decay=1e-2, fused=True)
    return torch.optim.SGD(parameters, lr=0.01, fused=True)


# ---- PyTorch ----


def torch_step(name, compiled, compiled_update):
    m, (x, y) = model(name), batch(name)
    optim = optimiser(name, m.parameters())

    def loss_of(x, y):
        scores = m(x)
        return cross_entropy(scores.flatten(0, 1) if scores.dim() == 3 else scores, y)

    forward = torch.compile(loss_of, dynamic=False) if compiled else loss_of
    update = torch.compile(optim.step) if compiled_update else optim.step

    def step():
        optim.zero_grad()
        forward(x, y).backward()
        update()

    return step


def torch_update(compiled):
    parameters = [torch.randn(625, 250, requires_grad=True) for _ in range(64)]
    for p in parameters:
        p.grad = torch.randn(625, 250)
    if compiled:
        optim = torch.optim.Adam(parameters, lr=1e-4, foreach=True)
        return torch.compile(optim.step)
    return optimiser("adam", parameters).step


# ---- JAX ----


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


def jax_stepper(optim, gradients):
    """A call that moves parameters and state on; gradients: of (parameters, batch)."""
    def step(p, state, *rest):
        change, state = optim.update(gradients(p, *rest), state, p)
        return optax.apply_updates(p, change), state
    return jax.jit(step, donate_argnums=(0, 1))


def jax_step(name):
    forward = {"train_mlp": jax_mlp, "train_cnn": jax_cnn, "train_pool": jax_pool,
               "train_transformer": jax_transformer}
    if name == "adam":
        p = {str(i): jnp.array(torch.randn(625, 250).numpy()) for i in range(64)}
        rest = ({key: jnp.array(torch.randn(625, 250).numpy()) for key in p},)
        gradients, optim = (lambda p, g: g), optax.adam(1e-4)
    else:
        p = {key: jnp.array(value.detach().numpy()) for key, value in model(name).named_parameters()}
        rest = tuple(jnp.array(t.numpy()) for t in batch(name))
        gradients = jax.grad(jax_loss(forward[name]))
        optim = optax.adamw(1e-4, weight_decay=1e-2) if name == "train_transformer" else optax.sgd(0.01)
    step, held = jax_stepper(optim, gradients), [p, optim.init(p)]

    def call():
        held[:] = step(*held, *rest)
        jax.block_until_ready(held)

    return call


# ---- all of a row ----


def steps(name):
    """(name, a function that makes the step) of each way to run a row."""
    if name == "adam":
        yield "torch eager", lambda: torch_update(False)
        yield "torch.compile", lambda: torch_update(True)
    else:
        yield "torch eager", lambda: torch_step(name, False, False)
        yield "torch.compile", lambda: torch_step(name, True, False)
        yield "torch.compile update too", lambda: torch_step(name, True, True)
    yield "jax.jit", lambda: jax_step(name)
