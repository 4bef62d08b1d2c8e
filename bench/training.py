"""The training rows in PyTorch and (training_jax.py) JAX, for bench/peers.py: whole steps, forward, backward and
update."""
import os, sys

import torch
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy

import models
from torch_graphs import captured, marked

SYMBOLS = 96
DEVICE = "cpu"  # set by peers.py
BOUND = 1e-4
START = {}  # parameters, batch and losses of Etch's first steps, by name; empty: random ones


def begin(path):
    """From here on models begin as Etch's did, where etch_bench has written that."""
    START.clear()
    if os.path.exists(path):
        START.update(load_file(path, DEVICE))
        os.remove(path)


def check(label, call):
    """The losses of the next steps are Etch's; call.done: the steps that were made."""
    losses, done = START.get("losses", ()), getattr(call, "done", 0)
    for i in range(done, done + 3 if len(losses) else done):
        loss, wanted = float(call()), float(losses[i])
        if not abs(loss - wanted) <= BOUND * abs(wanted):
            raise ValueError(f"{label}: the loss of step {i + 1} is {loss:.9g}, Etch's {wanted:.9g}")


def batch(name):
    if START:
        return START["x"], START["y"]
    if name == "train_mlp":
        return torch.randn(128, 784), torch.randint(10, (128,))
    if name in ("train_cnn", "train_pool"):
        return torch.randn(64, 1, 8, 8), torch.randint(10, (64,))
    return torch.randint(SYMBOLS, (16, models.CONTEXT)), torch.randint(SYMBOLS, (16 * models.CONTEXT,))


def new_model(name):
    if name == "train_mlp":
        return models.mlp(784, 512, 10)
    images = {"train_cnn": models.cnn, "train_pool": models.pool_cnn}
    return images[name]() if name in images else models.Transformer(SYMBOLS)


def model(name):
    m = new_model(name)
    if START:
        m.load_state_dict({key: START[key] for key in START if key not in ("x", "y", "losses")})
    return m


def optimiser(name, parameters, **options):
    """Fused unless the options say foreach; capturable ones keep the step's number on the GPU."""
    options = options or {"fused": True}
    if name == "adam":
        return torch.optim.Adam(parameters, lr=1e-4, **options)
    if name == "train_transformer":
        return torch.optim.AdamW(parameters, lr=1e-4, weight_decay=1e-2, **options)
    options.pop("capturable", None)  # SGD's is, always
    return torch.optim.SGD(parameters, lr=0.01, **options)


# ---- PyTorch ----


def new_step(name, mode, options):
    """(forward and backward, the optimiser); mode: torch.compile's, None: eager."""
    with torch.device(DEVICE):
        m, (x, y) = model(name), batch(name)

    def loss_of(x, y):
        scores = m(x)
        return cross_entropy(scores.flatten(0, 1) if scores.dim() == 3 else scores, y)

    forward = torch.compile(loss_of, dynamic=False, mode=mode) if mode else loss_of
    def gradients():
        loss = forward(x, y)
        loss.backward()
        return loss.detach()

    return gradients, optimiser(name, m.parameters(), **options)


def torch_step(name, mode=None, update_mode=None, **options):
    gradients, optim = new_step(name, mode, options)
    update = torch.compile(optim.step, mode=update_mode) if update_mode else optim.step

    def step():
        optim.zero_grad()
        loss = gradients()
        update()
        return loss

    return marked(step, mode)


def new_update(**options):
    with torch.device(DEVICE):
        parameters = [torch.randn(625, 250, requires_grad=True) for _ in range(64)]
        for p in parameters:
            p.grad = torch.randn(625, 250)
    return optimiser("adam", parameters, **options)


def torch_update(mode=None, **options):
    optim = new_update(**options)
    return marked(torch.compile(optim.step, mode=mode), mode) if mode else optim.step


# ---- PyTorch on a GPU ----


def gpu_steps(name):
    graphs, fused = {"foreach": True, "capturable": True}, {"fused": True, "capturable": True}
    yield "torch eager", lambda: torch_step(name)
    yield "torch.compile", lambda: torch_step(name, "default")
    yield "torch.compile update too", lambda: torch_step(name, "default", "default", foreach=True)
    yield "torch.compile reduce-overhead", lambda: torch_step(name, "reduce-overhead")
    yield ("torch.compile reduce-overhead update too",
           lambda: torch_step(name, "reduce-overhead", "reduce-overhead", **graphs))
    yield "torch.compile in one CUDA graph", lambda: captured(torch_step(name, "default", **fused))


def gpu_updates():
    graphs, fused = {"foreach": True, "capturable": True}, {"fused": True, "capturable": True}
    yield "torch eager", torch_update
    yield "torch.compile", lambda: torch_update("default", foreach=True)
    yield "torch.compile reduce-overhead", lambda: torch_update("reduce-overhead", **graphs)
    yield "torch in one CUDA graph", lambda: captured(torch_update(**fused))


def gpu_jax(name):
    """JAX's steps where it is installed and has a GPU."""
    try:
        import jax
        if jax.default_backend() == "gpu":
            jax.config.update("jax_default_matmul_precision", "highest")  # f32, as the others compute
            import training_jax
            yield "jax.jit", lambda: training_jax.jax_step(name)
            return
        why = "it has no GPU"
    except ImportError as error:
        why = str(error)
    print(f"{name} jax.jit: left out: {why}", file=sys.stderr)


# ---- all of a row ----


def steps(name):
    """(name, a function that makes the step) of each way to run a row."""
    if DEVICE == "cuda":
        yield from gpu_updates() if name == "adam" else gpu_steps(name)
        yield from gpu_jax(name)
        return
    import training_jax
    if name == "adam":
        yield "torch eager", torch_update
        yield "torch.compile", lambda: torch_update("default", foreach=True)
    else:
        yield "torch eager", lambda: torch_step(name)
        yield "torch.compile", lambda: torch_step(name, "default")
        yield "torch.compile update too", lambda: torch_step(name, "default", "default")
    yield "jax.jit", lambda: training_jax.jax_step(name)
