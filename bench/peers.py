"""The benchmark's workloads in PyTorch (eager and torch.compile), each beside Etch in the same run.

Usage: python3 bench/peers.py [--threads N] [NAME...]
Needs torch in the Python that runs it (a virtual environment outside this tree) and `./run build`.
Prints the CSV of etch_bench with PyTorch's rows after Etch's; speedup is against Etch's compiled row,
so a value below 1 says how many times slower the peer is.
"""
import csv, os, statistics, subprocess, sys, tempfile, time

os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", tempfile.mkdtemp())
import torch

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


def median_us(call):
    """Median of five samples of at least 10 ms."""
    call(), call()
    start = time.perf_counter()
    call()
    inner = max(1, int(0.01 / max(time.perf_counter() - start, 1e-7)))
    samples = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(inner):
            call()
        samples.append((time.perf_counter() - start) / inner)
    return statistics.median(samples) * 1e6


def peers(name, size):
    """(variant, median_us, first_call_ms) of PyTorch for one row."""
    shape = [int(n) for n in size.split("x")]
    x = torch.randn(shape)
    y = torch.randn(shape) / (shape[0] ** 0.5 if name == "seed" else 1)
    body = BODIES[name]
    yield "torch eager", median_us(lambda: body(x, y)), None
    torch._dynamo.reset()
    compiled = torch.compile(body, dynamic=False)
    start = time.perf_counter()
    compiled(x, y)
    first = (time.perf_counter() - start) * 1e3
    yield "torch.compile", median_us(lambda: compiled(x, y)), first


def etch_rows(name, threads):
    program = os.path.join(ROOT, "build", "bench", "etch_bench")
    text = subprocess.run([program, "--threads", str(threads), name], check=True,
                          capture_output=True, text=True).stdout
    return [row for row in csv.DictReader(text.splitlines()) if row["workload"] == name]


def main():
    args = sys.argv[1:]
    threads = 1
    if args[:1] == ["--threads"]:
        threads, args = int(args[1]), args[2:]
    torch.set_num_threads(threads)
    out = None
    for name in [n for n in BODIES if not args or n in args]:
        for row in etch_rows(name, threads):
            if out is None:
                out = csv.DictWriter(sys.stdout, row.keys(), lineterminator="\n")
                out.writeheader()
            out.writerow(row)
            if row["variant"] != "compiled":
                continue
            with torch.no_grad():
                for variant, median, first in peers(name, row["size"]):
                    out.writerow({**row, "variant": variant, "median_us": f"{median:.4f}",
                                  "first_call_ms": f"{first:.2f}" if first else "",
                                  "speedup": f"{float(row['median_us']) / median:.2f}"})
            sys.stdout.flush()


main()
