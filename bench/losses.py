"""Training as in PyTorch: the models of the examples, from the same weights on the same batches.

Usage: python3 bench/losses.py
Needs torch and safetensors in the Python that runs it (a virtual environment outside this tree) and `./run build`.

Runs the examples digits and charlm for some steps, which write the weights that they begin with and their losses;
trains the same models in PyTorch from these weights; and compares the first 20 losses. Ends with 1 where one
differs by more than 1e-4.
"""
import csv, glob, gzip, math, os, subprocess, sys, tempfile

import torch
from safetensors.torch import load_file

import models

STEPS, BOUND = 20, 1e-4
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DIGITS = os.path.join(ROOT, "examples", "data", "digits.csv.gz")
TEXTS = [os.path.join(ROOT, "LICENSE"), os.path.join(ROOT, "README.md"),
         *sorted(glob.glob(os.path.join(ROOT, "docs", "*.md")))]


def splitmix(state):
    """The numbers of examples/training.h."""
    mask = (1 << 64) - 1
    while True:
        state = (state + 0x9E3779B97F4A7C15) & mask
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        yield z ^ (z >> 31)


def example(name, *arguments):
    subprocess.run([os.path.join(ROOT, "build", "examples", name), *arguments], check=True,
                   stdout=subprocess.DEVNULL)


def losses_of(folder, name):
    with open(os.path.join(folder, name + ".csv")) as file:
        return [float(row["compiled"]) for row in csv.DictReader(file)][:STEPS]


# ---- digits ----


def digit_batches():
    rows = [[float(v) for v in line.split(b",")] for line in gzip.open(DIGITS)]
    rows = torch.tensor([row for i, row in enumerate(rows) if i % 5])
    images, labels = (rows[:, :64] / 16).view(-1, 1, 8, 8), rows[:, 64].long()
    chance = splitmix(0)
    order = list(range(len(rows)))
    for i in range(len(order) - 1, 0, -1):
        j = next(chance) % (i + 1)
        order[i], order[j] = order[j], order[i]
    for b in range(STEPS):
        batch = torch.tensor(order[b * 64:b * 64 + 64])
        yield images[batch], labels[batch]


def one_cycle(step, total):
    """The factor of ETCH_SCHEDULE_ONE_CYCLE."""
    start, end, rising = 1 / 25, 1 / 25e4, 0.3 * total - 1
    wave = lambda a, b, part: b + (a - b) / 2 * (1 + math.cos(math.pi * part))
    if step <= rising:
        return wave(start, 1, step / rising)
    return wave(1, end, (step - rising) / (total - 1 - rising))


def train_digits(model, epochs):
    optim = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=1e-2)
    for step, (images, labels) in enumerate(digit_batches()):
        optim.param_groups[0]["lr"] = 1e-2 * one_cycle(step, epochs * 22)
        loss = torch.nn.functional.cross_entropy(model(images), labels, label_smoothing=0.1)
        optim.zero_grad()
        loss.backward()
        optim.step()
        yield loss.item()


# ---- charlm ----


def text_batches():
    text = b"".join(open(path, "rb").read() for path in TEXTS)
    numbers = {byte: i for i, byte in enumerate(sorted(set(text)))}
    codes = torch.tensor([numbers[byte] for byte in text])
    end, length, chance = len(codes) - len(codes) // 20, models.CONTEXT, splitmix(0)
    for _ in range(STEPS):
        at = [next(chance) % (end - length - 1) for _ in range(16)]
        yield torch.stack([codes[a:a + length] for a in at]), torch.stack([codes[a + 1:a + 1 + length] for a in at])


def train_charlm(model):
    optim = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.99), weight_decay=1e-2)
    for step, (x, y) in enumerate(text_batches()):
        done = step - 20
        optim.param_groups[0]["lr"] = 2e-3 * ((step + 1) / 20 if done < 0 else 1)
        loss = torch.nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optim.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optim.step()
        yield loss.item()


# ---- comparison ----


def compare(name, folder, model, train):
    model.load_state_dict(load_file(os.path.join(folder, name + ".initial.safetensors")))
    etch, peer = losses_of(folder, name), list(train(model))
    worst = max(abs(a - b) for a, b in zip(etch, peer, strict=True))
    print(f"{name}: {len(etch)} losses, {etch[0]:.6f} to {etch[-1]:.6f}, PyTorch {peer[0]:.6f} to {peer[-1]:.6f}, "
          f"largest difference {worst:.2e}")
    return worst <= BOUND


def main():
    with tempfile.TemporaryDirectory() as folder:
        example("digits", DIGITS, "--epochs", "2", "--out", folder)
        example("charlm", "--steps", str(STEPS), "--twin", "1", "--sample", "1", "--out", folder, *TEXTS)
        symbols = len(load_file(os.path.join(folder, "charlm.initial.safetensors"))["symbols.weight"])
        ok = [compare("mlp", folder, models.mlp(64, 128, 10), lambda m: train_digits(m, 2)),
              compare("cnn", folder, models.pool_cnn(), lambda m: train_digits(m, 2)),
              compare("charlm", folder, models.Transformer(symbols), train_charlm)]
    print("losses:", "as in PyTorch" if all(ok) else "DIFFERENT")
    return 0 if all(ok) else 1


sys.exit(main())
