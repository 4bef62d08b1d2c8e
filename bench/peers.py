"""The benchmark's workloads in PyTorch (eager and torch.compile) and JAX, beside Etch in the same run.

Usage: python3 bench/peers.py [--processor-time] [--rounds N] [--threads N | --device cuda] [NAME[:SIZE,SIZE...]...]
for example seed:512,1024; a SIZE is the number of a row's rows.
Needs torch in the Python that runs it (a virtual environment outside this tree) and `./run build`. The rows of
training (train_mlp, train_cnn, train_pool, train_transformer, adam, or `training` for all) run where they are named;
they need jax, too. So do whole models (encoder, minilm, ... or `models` for all; they need onnxruntime, openvino,
llama-cpp-python and gguf, too), the programs of many rounds (`programs`), products with weights of few bits
(`linear_q`), and `limits`: what the machine reads, copies and multiplies at most. The weights of models are the same
in all, and every result is compared with Etch's before it is timed; so are those of training, and the losses of their
first steps.

On a GPU `models` are bert_f32, bert_bf16, llama_512, llama_2048, llama_decode, sdpa_full, sdpa_causal and product,
beside PyTorch's; JAX is a peer of training rows where it is installed.

All variants of a row, Etch's and PyTorch's, take turns: ROUNDS rounds, in each a sample of at least 10 ms
of every variant, in an order that changes; medians are printed, and the fastest round, which is what a busy
machine leaves comparable. What is measured one after the other
cannot be compared: a GPU's clock falls within a second of load, and a CPU has other work now and then.
Etch's samples are taken by `etch_bench --serve`, a process beside this one; while one computes, the other
waits. Each sample does some of its work unmeasured first.

With --processor-time that of a process is measured, of all its threads together, in place of the time that passes:
on one thread, that is what other programs' work disturbs least.

A row or variant that fails is reported on standard error and the others go on; the exit status is 1 then.

Prints a CSV: Etch's rows (also those with ETCH_RELAXED, where there are any), then PyTorch's. speedup is
over Etch's eager row for Etch, and against Etch's compiled row for PyTorch: a value below 1 says how many
times slower the peer is.
"""
import argparse, csv, itertools, os, random, statistics, subprocess, sys, tempfile, time, traceback

os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", tempfile.mkdtemp())
os.environ.setdefault("ETCH_BENCH_MODELS", tempfile.mkdtemp())
import torch

from torch_graphs import marked

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


FAILED = []  # what was reported
PROGRAMS = tuple("program_" + name for name in (
    "black-scholes", "attention", "small_cnn", "moving_statistics", "jacobi", "k-means", "logistic_regression", "adam",
    "life", "two_operators", "jacobi_sweep", "mandelbrot", "conjugate_gradient"))
# Rows that run where they are named: one tensor holds query, key and value.
ATTENTION = {"attention": attention, "attention_causal": lambda x, y: attention(x, y, True)}
LIMITS = ("limits", "linear_q")
MODELS = ("encoder", "minilm", "bert_base", "llama_prefill", "llama_decode", "decode_int8", "decode_int4",
          "resnet_block", "resnet50", "lstm_cell")
GPU_MODELS = ("bert_f32", "bert_bf16", "llama_512", "llama_2048", "llama_decode", "sdpa_full", "sdpa_causal", "product")
TRAINING = ("train_mlp", "train_cnn", "train_pool", "train_transformer", "adam")


def import_peers(threads):
    """JAX reads how many threads it has, and how much of the GPU, when it starts."""
    global training, model_peers
    if threads == 1:
        os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
        os.environ.setdefault("NPROC", "1")
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import training, model_peers
    training.DEVICE = model_peers.DEVICE = DEVICE


def report(what):
    """Of the exception that is handled."""
    FAILED.append(what)
    print(f"peers.py: {what}: {traceback.format_exc(limit=-2)}", file=sys.stderr, flush=True)


def synchronize():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


# ---- PyTorch's variants ----


def timed(call, calls):
    """Seconds of so many calls."""
    start = CLOCK()
    for _ in range(calls):
        call()
    getattr(call, "wait", synchronize)()
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
        compiled = marked(torch.compile(body, dynamic=False, mode=mode), mode)
        first = timed(lambda: compiled(*inputs[0]), 1) * 1e3
        label = "torch.compile" if mode == "default" else "torch.compile " + mode
        yield label, first, sampler(lambda compiled=compiled: compiled(*next(turn)))


def attempts(what, makers):
    """Variants of (name, a function that makes the call), but for those that fail."""
    for label, make in makers:
        start = time.perf_counter()
        try:
            call = make()
            timed(call, 1)
            first = (time.perf_counter() - start) * 1e3
            yield label, None if label == "torch eager" else first, sampler(call)
        except Exception:
            report(f"{what}, {label}")


def path_of(fields):
    """What etch_bench has written of a row."""
    file = "-".join(fields[key] for key in ("workload", "size", "dtype")) + ".safetensors"
    return os.path.join(os.environ["ETCH_BENCH_MODELS"], file)


def training_variants(fields):
    torch._dynamo.reset()
    training.begin(path_of(fields))

    def right(label, make):
        def made():
            call = make()
            training.check(label, call)
            return call
        return label, made

    name = fields["workload"]
    yield from attempts(name, itertools.starmap(right, training.steps(name)))


def checked(row, bound, makers):
    """The calls of makers, whose first results are compared with Etch's."""
    for label, make in makers:
        def made(label=label, make=make):
            call = make()
            for _ in range(3 if DEVICE == "cuda" else 1):  # the third one replays a CUDA graph
                row.check(label, call(), bound)
            return call
        yield label, made


def model_variants(fields, threads):
    """Of a model, a program or the limits; results are compared with Etch's first."""
    torch._dynamo.reset()
    if fields["workload"] == "limits":
        yield from ((label, None, sampler(call)) for label, call in model_peers.limits())
        return
    if fields["workload"] == "linear_q":
        yield from ((label, None, sampler(call)) for label, call in model_peers.quantized(fields["size"]))
        return
    row = model_peers.Row(path_of(fields), fields)
    program = fields["workload"] in PROGRAMS
    makers = model_peers.program_ways(row) if program else model_peers.ways(row, threads)
    bound = model_peers.programs.BOUND if program else None
    yield from attempts(f"{row.name} {row.size} {row.dtype}", checked(row, bound, makers))
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
            raise RuntimeError("etch_bench failed")
        return None

    def ask(self, text):
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def sample(self, number):
        self.ask(str(number))
        kind, value = self.read()
        assert kind == "us"
        return float(value)

    def close(self):
        """Its end of input is etch_bench's end."""
        try:
            self.process.stdin.close()
            self.process.wait(30)
        except (OSError, subprocess.TimeoutExpired):
            self.process.kill()

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


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processor-time", action="store_true")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    if given.rounds < 1:
        parser.error(f"--rounds: expected 1 or more, got {given.rounds}")
    return given


def peers_of(fields, threads):
    name = fields["workload"]
    if name in TRAINING:
        return list(training_variants(fields))
    with torch.no_grad():
        if name in MODELS + GPU_MODELS + PROGRAMS + LIMITS:
            return list(model_variants(fields, threads))
        return list(torch_variants(name, fields["size"], DTYPES[fields["dtype"]]))


def run(out, name, sizes, threads):
    """All rows of one name."""
    etch = Etch(name, threads)
    try:
        for fields, variants in etch.rows():
            if fields["workload"] != name or sizes and fields["size"].split("x")[0] not in sizes.split(","):
                continue
            try:
                peers = peers_of(fields, threads)
            except Exception:
                report(f"{name} {fields['size']}, peers")
                peers = []
            with torch.set_grad_enabled(name in TRAINING):
                write_row(out, fields, variants, peers)
    except Exception:
        report(name)
    finally:
        etch.close()


def main():
    global CLOCK, DEVICE, ROUNDS
    given = options()
    CLOCK = time.process_time if given.processor_time else CLOCK
    DEVICE, ROUNDS = given.device, given.rounds
    torch.set_num_threads(given.threads)
    torch.backends.cudnn.allow_tf32 = False  # f32 is f32: convolutions else are rounded to TF32
    columns = ["workload", "size", "dtype", "device", "threads", "variant", "median_us", "min_us",
               "first_call_ms", "speedup"]
    out = csv.DictWriter(sys.stdout, columns, lineterminator="\n")
    out.writeheader()
    gpu = DEVICE == "cuda"
    names, whole = GPU_BODIES if gpu else BODIES, GPU_MODELS if gpu else MODELS + PROGRAMS + LIMITS
    groups = {"models": GPU_MODELS if gpu else MODELS, "programs": PROGRAMS, "training": TRAINING}
    known = (*names, *whole, *TRAINING, *(() if gpu else ATTENTION))
    for arg in itertools.chain.from_iterable(groups.get(arg, (arg,)) for arg in given.names or names):
        name, _, sizes = arg.partition(":")
        if name not in known:
            sys.exit(f"peers.py: expected one of {', '.join([*known, *groups])}, got {name}")
        if name in whole + TRAINING:
            import_peers(given.threads)
        run(out, name, sizes, given.threads)
    if FAILED:
        sys.exit("peers.py: failed: " + "; ".join(FAILED))


main()
