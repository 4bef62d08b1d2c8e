"""The benchmark's workloads in PyTorch (eager and torch.compile) and JAX, beside Etch in the same run.

Usage: python3 bench/peers.py [--processor-time] [--threads N | --device cuda] [NAME[:SIZE,SIZE...]...]
for example seed:512,1024; a SIZE is the number of a row's rows.
Needs torch in the Python that runs it (a virtual environment outside this tree) and `./run build`. The rows of
training (train_mlp, train_cnn, train_pool, train_transformer, adam) run where they are named; they need jax and
optax, too. So do whole models (encoder, minilm, ... or `models` for all; they need onnxruntime and openvino, too), the
programs of many rounds (`programs`), products with weights of few bits (`linear_q`), and `limits`: what the machine reads, copies and
multiplies at most. The weights
of models are the same in all, and every result is compared with Etch's before it is timed.

All variants of a row, Etch's and PyTorch's, take turns: ROUNDS rounds, in each a sample of at least 10 ms
of every variant, in an order that changes; medians are printed, and the fastest round, which is what a busy
machine leaves comparable. What is measured one after the other
cannot be compared: a GPU's clock falls within a second of load, and a CPU has other work now and then.
Etch's samples are taken by `etch_bench --serve`, a process beside this one; while one computes, the other
waits. Each sample does some of its work unmeasured first.

With --processor-time that of a process is measured, of all its threads together, in place of the time that passes:
on one thread, that is what other programs' work disturbs least.

Prints a CSV: Etch's rows (also those with ETCH_RELAXED, where there are any), then PyTorch's. speedup is
over Etch's eager row for Etch, and against Etch's compiled row for PyTorch: a value below 1 says how many
times slower the peer is.
"""
import csv, itertools, os, random, statistics, subprocess, sys, tempfile, time

os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", tempfile.mkdtemp())
os.environ.setdefault("ETCH_BENCH_MODELS", tempfile.mkdtemp())
import torch

DEVICE = "cpu"
CLOCK = time.perf_counter
ROUNDS = 11
SETS = 4  # inputs that memory-bound rows on a GPU go round, as etch_bench does
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def seed(x, w):
    for _ in range(5):
        x = torch.relu(torch.mm(x, w) + torch.mm(torch.sin(x), w))
    return x


def rms(x, y):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * y


def attention(x, y, causal=False):
    return torch.nn.functional.scaled_dot_product_attention(x[0], x[1], x[2], is_causal=causal)


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


PROGRAMS = tuple("program_" + name for name in (
    "black-scholes", "attention", "small_cnn", "moving_statistics", "jacobi", "k-means", "logistic_regression", "adam",
    "life", "two_operators", "jacobi_sweep", "mandelbrot", "conjugate_gradient"))
# Rows that run where they are named: one tensor holds query, key and value.
ATTENTION = {"attention": attention, "attention_causal": lambda x, y: attention(x, y, True)}
LIMITS = ("limits", "linear_q")
MODELS = ("encoder", "minilm", "bert_base", "llama_prefill", "llama_decode", "resnet_block", "resnet50", "lstm_cell")
TRAINING = ("train_mlp", "train_cnn", "train_pool", "train_transformer", "adam")


def import_jax(threads):
    """JAX reads how many threads it has when it starts."""
    global training, model_peers
    if threads == 1:
        os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
        os.environ.setdefault("NPROC", "1")
    import training, model_peers


def synchronize():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


# ---- PyTorch's variants ----


def timed(call, calls):
    """Seconds of so many calls."""
    start = CLOCK()
    for _ in range(calls):
        call()
    synchronize()
    return CLOCK() - start


def sampler(call):
    """A function that gives microseconds a call, from a sample of at least 10 ms."""
    timed(call, 2)
    calls = max(1, int(0.012 / max(timed(call, 1), 1e-7)))
    calls = max(1, int(0.012 * calls / timed(call, calls)))

    def sample():
        timed(call, calls // 16 + 1)
        return timed(call, calls) / calls * 1e6

    return sample


def torch_variants(name, size, dtype):
    """(name, milliseconds of the first call or None, sample) of each way to run a row."""
    shape = [int(n) for n in size.split("x")]
    if name == "tiny":
        shape = [10]
    if name in ATTENTION:
        shape = [3, 1, *shape]
    sets = SETS if DEVICE == "cuda" and name not in ("seed", "tiny") else 1
    scale = shape[0] ** 0.5 if name == "seed" else 1
    inputs = [(torch.randn(shape, device=DEVICE).to(dtype),
               (torch.randn(shape, device=DEVICE) / scale).to(dtype)) for _ in range(sets)]
    turn = itertools.cycle(inputs)
    body = {**GPU_BODIES, **ATTENTION}[name]
    torch._dynamo.reset()
    yield "torch eager", None, sampler(lambda: body(*next(turn)))
    modes = ["default", "reduce-overhead"] if DEVICE == "cuda" else ["default"]
    for mode in modes:
        compiled = torch.compile(body, dynamic=False, mode=mode)
        first = timed(lambda: compiled(*inputs[0]), 1) * 1e3
        label = "torch.compile" if mode == "default" else "torch.compile " + mode
        yield label, first, sampler(lambda compiled=compiled: compiled(*next(turn)))


def training_variants(name):
    torch._dynamo.reset()
    for label, make in training.steps(name):
        call = make()
        first = timed(call, 1) * 1e3
        yield label, None if label == "torch eager" else first, sampler(call)


def model_variants(fields, threads):
    """Of a model, a program or the limits; results are compared with Etch's first."""
    torch._dynamo.reset()
    if fields["workload"] == "limits":
        yield from ((label, None, sampler(call)) for label, call in model_peers.limits())
        return
    if fields["workload"] == "linear_q":
        yield from ((label, None, sampler(call)) for label, call in model_peers.quantized(fields["size"]))
        return
    row = model_peers.Row(os.environ["ETCH_BENCH_MODELS"], fields)
    program = fields["workload"] in PROGRAMS
    for label, call in model_peers.program_ways(row) if program else model_peers.ways(row, threads):
        start = time.perf_counter()
        row.check(label, call(), model_peers.programs.BOUND if program else None)
        first = (time.perf_counter() - start) * 1e3
        yield label, None if label == "torch eager" else first, sampler(call)
    os.remove(row.path)


# ---- Etch's ----


class Etch:
    """etch_bench --serve: rows in turn, and samples of the variants of the present one."""

    def __init__(self, name, threads):
        program = os.path.join(ROOT, "build", "bench", "etch_bench")
        serve = "--serve" if CLOCK is time.perf_counter else "--serve-processor-time"
        options = ["--device", "cuda"] if DEVICE == "cuda" else ["--threads", str(threads)]
        self.process = subprocess.Popen([program, serve, *options, name], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def read(self):
        """The next message, a list of words; None at the end."""
        for line in self.process.stdout:
            if line.startswith("@"):
                return line[1:].rstrip("\n").split(",")
        if self.process.wait() != 0:
            sys.exit("etch_bench failed")
        return None

    def ask(self, text):
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def sample(self, number):
        self.ask(str(number))
        kind, value = self.read()
        assert kind == "us"
        return float(value)

    def rows(self):
        """(row, variants) as of torch_variants; the next one begins when this one is done."""
        while row := self.read():
            fields = dict(zip(("workload", "size", "dtype", "device"), row[1:]))
            variants = []
            while (words := self.read())[0] == "variant":
                fields["threads"], first, number = words[1], float(words[3]), len(variants)
                variants.append((words[2], first or None, lambda n=number: self.sample(n)))
            yield fields, variants
            self.ask("next")


# ---- rows ----


def rounds(variants):
    """Microseconds a call of each, by rounds in which every variant has a sample: a list of each."""
    times = [[] for _ in variants]
    order = list(range(len(variants)))
    chance = random.Random(0)
    for _ in range(ROUNDS):
        chance.shuffle(order)
        for i in order:
            if DEVICE == "cpu":
                time.sleep(0.02)  # the other program's idle threads spin for a while
            times[i].append(variants[i][2]())
    return times


def write_row(out, fields, etch, peers):
    variants = etch + peers
    times = rounds(variants)
    figures = [statistics.median(t) for t in times]
    of = {variant[0]: figure for variant, figure in zip(variants, figures)}
    for i, (name, first, _) in enumerate(variants):
        base = of.get("eager" if i < len(etch) else "compiled", figures[0])
        out.writerow({**fields, "variant": name, "median_us": f"{figures[i]:.4f}",
                      "min_us": f"{min(times[i]):.4f}",
                      "first_call_ms": f"{first:.2f}" if first else "",
                      "speedup": f"{base / figures[i]:.2f}"})
    sys.stdout.flush()


def main():
    global CLOCK, DEVICE
    args = sys.argv[1:]
    if args[:1] == ["--processor-time"]:
        CLOCK, args = time.process_time, args[1:]
    threads = 1
    if args[:2] == ["--device", "cuda"]:
        DEVICE, args = "cuda", args[2:]
    if args[:1] == ["--threads"]:
        threads, args = int(args[1]), args[2:]
    torch.set_num_threads(threads)
    columns = ["workload", "size", "dtype", "device", "threads", "variant", "median_us", "min_us",
               "first_call_ms", "speedup"]
    out = csv.DictWriter(sys.stdout, columns, lineterminator="\n")
    out.writeheader()
    names = GPU_BODIES if DEVICE == "cuda" else BODIES
    named = {"models": MODELS, "programs": PROGRAMS}
    for arg in itertools.chain.from_iterable(named.get(arg, (arg,)) for arg in args or names):
        name, _, sizes = arg.partition(":")
        if name in TRAINING + MODELS + PROGRAMS + LIMITS and DEVICE == "cpu":
            import_jax(threads)
        elif name not in names and not (name in ATTENTION and DEVICE == "cpu"):
            sys.exit(f"peers.py: expected one of {', '.join([*names, *ATTENTION, *TRAINING, *MODELS, *named, *LIMITS])}, got {name}")
        for fields, etch in Etch(name, threads).rows():
            wanted = not sizes or fields["size"].split("x")[0] in sizes.split(",")
            if fields["workload"] == name and name in TRAINING:
                write_row(out, fields, etch, list(training_variants(name)))
            elif fields["workload"] == name and name in MODELS + PROGRAMS + LIMITS:
                with torch.no_grad():
                    write_row(out, fields, etch, list(model_variants(fields, threads)))
            elif fields["workload"] == name and wanted:
                with torch.no_grad():
                    dtype = DTYPES[fields["dtype"]]
                    write_row(out, fields, etch, list(torch_variants(name, fields["size"], dtype)))


main()
