"""What a forward pass keeps for backward, in MiB: Etch's compiled functions beside PyTorch, eager and compiled.

Usage: python3 bench/saved.py [NAME...], a NAME one of train_mlp, train_cnn, train_transformer.
Needs what bench/peers.py needs. Counted is every storage once that is neither a parameter nor the batch;
"whole" is Etch with .memory_budget = 1, where nothing is computed again in backward.
"""
import os, subprocess, sys, tempfile

os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", tempfile.mkdtemp())
import torch
from torch.nn.functional import cross_entropy

import training

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
NAMES = ("train_mlp", "train_cnn", "train_transformer")


def saved_mib(name, compiled):
    m, (x, y) = training.model(name), training.batch(name)
    own = {t.untyped_storage().data_ptr() for t in (x, y, *m.parameters())}
    kept = {}

    def keep(t):
        s = t.untyped_storage()
        if s.data_ptr() not in own:
            kept[s.data_ptr()] = (s.nbytes(), s)  # held, so that no address comes twice
        return t

    def loss_of(x, y):
        scores = m(x)
        return cross_entropy(scores.flatten(0, 1) if scores.dim() == 3 else scores, y)

    forward = torch.compile(loss_of, dynamic=False) if compiled else loss_of
    forward(x, y).backward()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        loss = forward(x, y)
    loss.backward()
    return sum(n for n, _ in kept.values()) / 2**20


def main():
    names = sys.argv[1:] or NAMES
    program = os.path.join(ROOT, "build", "bench", "etch_bench")
    ours = subprocess.run([program, "saved"], capture_output=True, text=True, check=True).stdout
    print("workload,size,variant,saved_mib")
    for name in names:
        if name not in NAMES:
            sys.exit(f"saved.py: expected one of {', '.join(NAMES)}, got {name}")
        lines = [line for line in ours.splitlines() if line.startswith(f"saved {name},")]
        print("\n".join(lines))
        size = lines[0].split(",")[1]
        for label, compiled in (("torch eager", False), ("torch.compile", True)):
            print(f"saved {name},{size},{label},{saved_mib(name, compiled):.3f}", flush=True)


main()
