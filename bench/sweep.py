"""The cases of bench/sweep.c (operators x dtypes x layouts) in PyTorch's eager, beside Etch in the same run.

Usage: python3 bench/sweep.py [--every K] [--rounds N] [--wall] [CASE...]
where a CASE is a part of names as of `./run bench sweep --list`, or all of one behind a =. Needs torch and safetensors
in the Python that runs it (a virtual environment outside this tree) and `./run build`.

One thread each, processor time unless --wall is given. The three ways of a case take turns: ROUNDS rounds, in each a
sample of some 0.6 ms of each behind some of the same work unmeasured, and the fastest sample of each counts. --every K
measures each K-th case, in the order of the list: operators outermost, then dtypes, then layouts.

Both work on the same numbers, which Etch has made, in the same layout; results are compared before anything is timed,
and a case whose results differ is reported, counts in no mean and makes the exit status 1. So does none in which
PyTorch gives back the operand itself (a conversion to its own dtype): nothing is computed there.

Prints a CSV, a line a case: microseconds of Etch eager, Etch compiled, torch eager, and torch over compiled. At the end,
on standard error: geometric means over all cases, by dtype, by layout and by operator, of torch eager over Etch
compiled, of torch eager over Etch eager, and of Etch eager over compiled; then the cases that are furthest behind.
"""
import argparse, math, os, subprocess, sys, tempfile, time

import safetensors.torch
import torch
from torch.nn import functional as nn

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SAMPLE = 600e-6  # seconds, as in sweep.c
WORST = 40
# What results may differ by: sums of 16-bit floats are rounded once or often. PyTorch rounds each step of a product.
BOUNDS = {torch.float32: 1e-4, torch.float64: 1e-9, torch.bfloat16: 4e-2, torch.float16: 5e-3}
TARGETS = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16, "i8": torch.int8,
           "i16": torch.int16, "i32": torch.int32, "i64": torch.int64, "u8": torch.uint8, "bool": torch.bool}


def rounds(x, y, n):
    for _ in range(n):
        a = x * y
        b = a + 0.25
        c = torch.maximum(b, x)
        d = c - a
        h = torch.minimum(torch.abs(d * 0.5), y) + d
        x = torch.clamp(h * b, -4.0, 4.0) + torch.neg(c)
    return x


def written_softmax(x, y):
    e = torch.exp(x - x.amax(-1, True))
    return e / e.sum(-1, True)


def written_norm(x, y):
    c = x - x.mean(-1, True)
    return c * torch.rsqrt(torch.square(c).mean(-1, True) + 1e-5)


def into_view(x, y):
    fresh = x.clone()
    fresh[8:264].copy_(y[:256])
    return fresh


def padded(x, y):
    fresh = torch.zeros(514, 514, dtype=x.dtype)
    fresh[1:513, 1:513].copy_(x)
    return fresh


def converter(dtype):
    return lambda x, y: x.to(dtype)


# Those of one operand, as functions of it.
UNARY = {
    "clone": torch.clone, "neg": torch.neg, "abs": torch.abs, "relu": torch.relu, "square": torch.square,
    "sign": torch.sign, "isfinite": torch.isfinite, "isnan": torch.isnan, "logical_not": torch.logical_not,
    "bitwise_not": torch.bitwise_not, "floor": torch.floor, "ceil": torch.ceil, "trunc": torch.trunc,
    "round": torch.round, "frac": torch.frac, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "reciprocal": torch.reciprocal,
    "exp": torch.exp, "log": torch.log, "sin": torch.sin, "tanh": torch.tanh, "sigmoid": torch.sigmoid,
    "erf": torch.erf, "silu": nn.silu, "gelu": nn.gelu, "sum_all": torch.sum, "max_all": torch.max,
    "count_nonzero": torch.count_nonzero, "argmax_all": torch.argmax,
}
BINARY = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "maximum": torch.maximum,
    "fmax": torch.fmax, "copysign": torch.copysign, "fmod": torch.fmod, "remainder": torch.remainder,
    "floor_divide": torch.floor_divide, "lt": torch.lt, "eq": torch.eq, "logical_and": torch.logical_and,
    "bitwise_and": torch.bitwise_and,
    "add_scalar": lambda x, y: x + 2,
    "clamp": lambda x, y: torch.clamp(x, 2, 5),
    "pow_scalar": lambda x, y: torch.pow(x, 3),
    "left_shift": lambda x, y: x << 2,
    "where": lambda x, y: torch.where(x < y, x, y),
    "lerp": lambda x, y: torch.lerp(x, y, 0.25),
    "addcmul": lambda x, y: torch.addcmul(x, x, y, value=0.5),
    "fused3": lambda x, y: (x + y) * x - y,
    "sum_last": lambda x, y: x.sum(-1),
    "amax_last": lambda x, y: x.amax(-1),
    "mean_last": lambda x, y: x.mean(-1),
    "prod_last": lambda x, y: x.prod(-1),
    "argmax_last": lambda x, y: x.argmax(-1),
    "any_last": lambda x, y: x.any(-1),
    "var_last": lambda x, y: x.var(-1),
    "logsumexp_last": lambda x, y: x.logsumexp(-1),
    "softmax_last": lambda x, y: x.softmax(-1),
    "log_softmax_last": lambda x, y: x.log_softmax(-1),
    "layer_norm_last": lambda x, y: nn.layer_norm(x, x.shape[-1:], None, None, 1e-5),
    "written_softmax": written_softmax,
    "written_norm": written_norm,
    "dot_last": lambda x, y: (x * x).sum(-1),
    "cumsum_last": lambda x, y: x.cumsum(-1),
    "sum_first": lambda x, y: x.sum(0),
    "amax_first": lambda x, y: x.amax(0),
    "mean_first": lambda x, y: x.mean(0),
    "argmax_first": lambda x, y: x.argmax(0),
    "var_first": lambda x, y: x.var(0),
    "softmax_first": lambda x, y: x.softmax(0),
    "cumsum_first": lambda x, y: x.cumsum(0),
    "cat0": lambda x, y: torch.cat((x, x), 0),
    "cat1": lambda x, y: torch.cat((x, x), 1),
    "stack0": lambda x, y: torch.stack((x, x), 0),
    "stack2": lambda x, y: torch.stack((x, x), 2),
    "roll1": lambda x, y: torch.roll(x, 3, 1),
    "roll0": lambda x, y: torch.roll(x, 3, 0),
    "flip1": lambda x, y: torch.flip(x, (1,)),
    "repeat": lambda x, y: x.repeat(1, 2),
    "tril": lambda x, y: torch.tril(x),
    "slice_scatter": lambda x, y: torch.slice_scatter(x, y[:256], 0, 8, 264),
    "into_view": into_view,
    "padded": padded,
    "cat_add": lambda x, y: torch.cat((x * y, x * y), 1) + 1.0,
    "roll_add": lambda x, y: torch.roll(x, 1, 1) + y,
    "one_hot": lambda x, y: nn.one_hot(y, 16),
    "index_select": lambda x, y: torch.index_select(x, 0, y[0]),
    "gather": lambda x, y: torch.gather(x, 1, y),
    "rounds2": lambda x, y: rounds(x, y, 2),
    "rounds6": lambda x, y: rounds(x, y, 6),
    "rounds20": lambda x, y: rounds(x, y, 20),
    **{f"to_{name}": converter(dtype) for name, dtype in TARGETS.items()},
}


class Case:
    """What etch_bench says of one: its operands in their layout, and Etch's result."""

    def __init__(self, words, folder):
        self.operator, self.dtype, self.layout = words[:3]
        self.name = "/".join(words[:3])
        tensors = safetensors.torch.load_file(os.path.join(folder, "case.safetensors"))
        self.x, self.y = laid_out(tensors["x"], *map(int, words[3:])), tensors["y"]
        self.result = tensors["result"]

    def call(self):
        if (one := UNARY.get(self.operator)) is not None:
            return one(self.x)
        return BINARY[self.operator](self.x, self.y)


def laid_out(x, space, step, turned):
    """The same numbers cut out of a matrix of so many columns, or the transpose of such a one."""
    if turned:
        return x.t().contiguous().t()
    whole = torch.zeros(x.shape[0], space, dtype=x.dtype)
    part = whole[:, :x.shape[1] * step:step]
    part.copy_(x)
    return part


def differs(case, got):
    """What is wrong with a result, or None."""
    if got.dtype != case.result.dtype or got.shape != case.result.shape:
        return f"{got.dtype} {tuple(got.shape)}, Etch has {case.result.dtype} {tuple(case.result.shape)}"
    if case.operator.startswith("argmax"):  # of equal ones either may be named
        return None if torch.equal(*map(lambda at: largest(case, at), (got, case.result))) else "other elements"
    bound = BOUNDS.get(got.dtype, 0) * (3 if case.operator == "prod_last" else 1)
    near = torch.isclose(*map(finite, (got, case.result)), rtol=bound, atol=bound, equal_nan=True)
    return None if near.all() else f"{(~near).sum().item()} of {near.numel()} elements differ"


def finite(x):
    """As f64, with the largest number for infinity, which is one rounding away from it."""
    most = torch.finfo(x.dtype).max if x.dtype.is_floating_point else math.inf
    return x.double().clamp(-most, most)


def largest(case, at):
    if case.operator == "argmax_all":
        return case.x.reshape(-1)[at]
    dim = -1 if case.operator == "argmax_last" else 0
    return case.x.gather(dim, at.unsqueeze(dim))


# ---- times ----


def timed(clock, case, calls):
    start = clock()
    for _ in range(calls):
        case.call()
    return clock() - start


def sampler(clock, case):
    """A function that gives microseconds a call."""
    timed(clock, case, 2)
    calls = max(1, int(SAMPLE / max(timed(clock, case, 2) / 2, 1e-7)))

    def sample():
        timed(clock, case, calls // 4 + 1)
        return timed(clock, case, calls) / calls * 1e6

    return sample


class Etch:
    """etch_bench sweep --serve: cases in turn, and samples of the present one."""

    def __init__(self, given, folder):
        program = os.path.join(ROOT, "build", "bench", "etch_bench")
        options = [] if given.wall else ["--processor-time"]
        command = [program, "sweep", *options, "--every", str(given.every), "--serve", folder, *given.cases]
        self.process = subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.folder = folder

    def read(self):
        line = self.process.stdout.readline()
        if not line and self.process.wait() != 0:
            raise SystemExit("sweep.py: etch_bench failed")
        return line[1:].rstrip("\n").split(",") if line else None

    def ask(self, text):
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def sample(self, number):
        self.ask(str(number))
        return float(self.read()[1])

    def cases(self):
        while words := self.read():
            assert words[0] == "case" and self.read() == ["ready"]
            yield Case(words[1:], self.folder)
            self.ask("next")


def measure(etch, case, given):
    """Microseconds of the fastest samples: Etch eager, compiled, torch."""
    ways = (lambda: etch.sample(0), lambda: etch.sample(1),
            sampler(time.perf_counter if given.wall else time.process_time, case))
    return [min(times) for times in zip(*([way() for way in ways] for _ in range(given.rounds)))]


# ---- all of them ----


def mean(ratios):
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def line_of(label, rows):
    torch_compiled, torch_eager, own = (mean([of(*times) for _, times in rows]) for of in (
        lambda e, c, t: t / c, lambda e, c, t: t / e, lambda e, c, t: e / c))
    return f"{label:<24}{len(rows):>6}{torch_compiled:>17.3f}{torch_eager:>15.3f}{own:>17.3f}"


def summary(rows, say):
    say(f"{'geometric means':<24}{'cases':>6}{'torch/compiled':>17}{'torch/eager':>15}{'eager/compiled':>17}")
    say(line_of("all", rows))
    for key in ("dtype", "layout", "operator"):
        groups = {}
        for row in rows:
            groups.setdefault(getattr(row[0], key), []).append(row)
        for name, group in groups.items():
            say(line_of(f"{key} {name}", group))
    behind = sorted((t / c, case.name, e, c, t) for case, (e, c, t) in rows)
    say(f"{sum(b[0] < 1 for b in behind)} of {len(rows)} cases in which torch is faster; the worst:")
    for ratio, name, *times in behind[:WORST]:
        if ratio < 1:
            say(f"  {name:<40} eager {times[0]:9.2f}  compiled {times[1]:9.2f}  torch {times[2]:9.2f}  {ratio:.3f}")


def run(given, folder):
    """(case, times) of what was measured, and how many cases differ, how many compute nothing."""
    rows, wrong, nothing = [], 0, 0
    print("case,etch_eager_us,etch_compiled_us,torch_eager_us,torch_over_compiled")
    etch = Etch(given, folder)
    for case in etch.cases():
        got = case.call()
        if got is case.x:
            nothing += 1
        elif what := differs(case, got):
            wrong += 1
            print(f"sweep.py: {case.name}: {what}", file=sys.stderr)
        else:
            e, c, t = measure(etch, case, given)
            print(f"{case.name},{e:.2f},{c:.2f},{t:.2f},{t / c:.3f}", flush=True)
            case.x = case.y = case.result = None
            rows.append((case, (e, c, t)))
    return rows, wrong, nothing


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--wall", action="store_true")
    parser.add_argument("cases", nargs="*")
    given = parser.parse_args()
    if given.rounds < 1 or given.every < 1:
        parser.error("--rounds and --every: expected 1 or more")
    return given


def main():
    given = options()
    torch.set_num_threads(1)
    with torch.no_grad(), tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        rows, wrong, nothing = run(given, folder)
    say = lambda text: print(text, file=sys.stderr)
    if rows:
        summary(rows, say)
    say(f"measured {len(rows)} cases, each {given.every}. of the list; {nothing} compute nothing, {wrong} differ")
    return 1 if wrong else 0


sys.exit(main())
