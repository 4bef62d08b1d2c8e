"""The benchmark's workloads in PyTorch (eager and torch.compile), each beside Etch in the same run.

Usage: python3 bench/peers.py [--threads N | --device cuda] [NAME...]
Needs torch in the Python that runs it (a virtual environment outside this tree) and `./run build`.
Prints the CSV of etch_bench with PyTorch's rows after Etch's; speedup is against Etch's compiled row,
so a value below 1 says how many times slower the peer is.
"""
import csv, itertools, os, statistics, subprocess, sys, tempfile, time

os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", tempfile.mkdtemp())
import torch

DEVICE = "cpu"
SETS = 4  # inputs that memory-bound rows on a GPU go round, as etch_bench does
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def seed(x, w):
    for _ in range(5):
        x = torch.relu(torch.mm(x, w) + torch.mm(torch.sin(x), w))
    return x


def rms(x, y):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * y


BODIES = {
    "seed": seed,
    "cheap": lambda x, y: (x * 2.0 + y) * x - y,
    "chain": lambda x, y: torch.tanh(x * y + 1.0) * torch.sigmoid(x) - torch.exp(-y * y),
    "rms": rms,
    "colsum": lambda x, y: (x * y).sum(0),
    "allsum": lambda x, y: (x * y).sum(),
    "tiny": lambda x, y: torch.relu(x + y),
}
GPU_BODIES = {
    **BODIES,
    "softmax": lambda x, y: torch.softmax(x, -1),
    "layer_norm": lambda x, y: torch.nn.functional.layer_norm(x, x.shape[-1:]),
}


def synchronize():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def median_us(call):
    """Median of five samples of at least 10 ms."""
    call(), call()
    synchronize()
    start = time.perf_counter()
    call()
    synchronize()
    inner = max(1, int(0.01 / max(time.perf_counter() - start, 1e-7)))
    samples = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(inner):
            call()
        synchronize()
        samples.append((time.perf_counter() - start) / inner)
    return statistics.median(samples) * 1e6


def variants():
    yield "torch.compile", {}
    if DEVICE == "cuda":
        yield "torch.compile reduce-overhead", {"mode": "reduce-overhead"}


def peers(name, size, dtype):
    """(variant, median_us, first_call_ms) of PyTorch for one row."""
    shape = [int(n) for n in size.split("x")]
    if name == "tiny":
        shape = [10]
    sets = SETS if DEVICE == "cuda" and name not in ("seed", "tiny") else 1
    scale = shape[0] ** 0.5 if name == "seed" else 1
    inputs = [(torch.randn(shape, device=DEVICE).to(dtype),
               (torch.randn(shape, device=DEVICE) / scale).to(dtype)) for _ in range(sets)]
    turn = itertools.cycle(inputs)
    body = GPU_BODIES[name]
    yield "torch eager", median_us(lambda: body(*next(turn))), None
    for variant, options in variants():
        torch._dynamo.reset()
        compiled = torch.compile(body, dynamic=False, **options)
        start = time.perf_counter()
        compiled(*inputs[0])
        synchronize()
        first = (time.perf_counter() - start) * 1e3
        yield variant, median_us(lambda: compiled(*next(turn))), first


def etch_rows(name, threads):
    program = os.path.join(ROOT, "build", "bench", "etch_bench")
    options = ["--device", "cuda"] if DEVICE == "cuda" else ["--threads", str(threads)]
    text = subprocess.run([program, *options, name], check=True,
                          capture_output=True, text=True).stdout
    return [row for row in csv.DictReader(text.splitlines()) if row["workload"] == name]


def main():
    global DEVICE
    args = sys.argv[1:]
    threads = 1
    if args[:2] == ["--device", "cuda"]:
        DEVICE, args = "cuda", args[2:]
    if args[:1] == ["--threads"]:
        threads, args = int(args[1]), args[2:]
    torch.set_num_threads(threads)
    out = None
    for name in [n for n in (GPU_BODIES if DEVICE == "cuda" else BODIES) if not args or n in args]:
        for row in etch_rows(name, threads):
            if out is None:
                out = csv.DictWriter(sys.stdout, row.keys(), lineterminator="\n")
                out.writeheader()
            out.writerow(row)
            if row["variant"] != "compiled":
                continue
            with torch.no_grad():
                for variant, median, first in peers(name, row["size"], DTYPES[row["dtype"]]):
                    out.writerow({**row, "variant": variant, "median_us": f"{median:.4f}",
                                  "first_call_ms": f"{first:.2f}" if first else "",
                                  "speedup": f"{float(row['median_us']) / median:.2f}"})
            sys.stdout.flush()


main()
