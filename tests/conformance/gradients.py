#!/usr/bin/env python3
"""Etch's gradients against PyTorch's, over the samples of PyTorch's operator database (op_db).

    gradients.py --opinfo FILE --lib PATH/libetch.so [--limit N] [--only REGEX] [--dtypes LIST]
                 [--compiled N] [--inplace] [--reference] [--budget S] [--out FILE.jsonl]

For each OpInfo that supports autograd, the samples for which Etch has every aten call run in Etch,
inputs that require gradients in the sample do so there, and etch_grad runs backward with random
gradients of the results (a fixed seed). A sample passes when all inputs' gradients agree with
PyTorch's in dtype, sizes and values: torch.testing's tolerances of the dtype, NaN equals NaN, no
gradient equals zeros. A failure with arguments of fewer bits than float64 that is as near to the
gradient in float64 as PyTorch is, within a factor of two, is counted as rounding as well. With --compiled N, N samples an OpInfo
and dtype also call a compiled function with inputs that require gradients, three times, the third
with other values, and run backward outside: the results and gradients equal eager's bit for bit.
--inplace takes the in-place variants, of a copy of the input; --reference the reference inputs.

Counted per OpInfo: samples, passed, failed, not differentiable (the error not_differentiable, with
what it names), compiled. Not counted: samples with a call that Etch lacks or whose values are
random, those that PyTorch refuses, and those through which no gradient flows in PyTorch.

FILE is the tool that runs the forward of these samples: it has the classes Etch (the library
through ctypes) and Program (PyTorch's calls as Etch's), trace() and fork_one(). Run by hand, never
by CI: it needs a PyTorch with its test dependencies (expecttest) in the Python that runs it.
"""
import argparse, collections, ctypes as C, importlib.util, itertools, json, random, re, sys, time

PARSER = argparse.ArgumentParser(description=__doc__,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
PARSER.add_argument("--opinfo", required=True, help="the tool of the forward samples")
PARSER.add_argument("--lib", required=True, help="the library")
PARSER.add_argument("--limit", type=int, default=8, help="samples an OpInfo and dtype")
PARSER.add_argument("--only", default="", help="OpInfos whose name matches this expression")
PARSER.add_argument("--dtypes", default="float64,float32")
PARSER.add_argument("--compiled", type=int, default=2, help="of these, samples that run compiled")
PARSER.add_argument("--inplace", action="store_true", help="the in-place variants")
PARSER.add_argument("--reference", action="store_true", help="reference_inputs")
PARSER.add_argument("--budget", type=float, default=30, help="seconds an OpInfo takes samples for")
PARSER.add_argument("--out", help="a JSON line for each sample that failed, and for each OpInfo")
OPTIONS = PARSER.parse_args()
COUNTED = ("pass", "values", "dtype", "sizes", "error", "not_differentiable", "no_gradient")


def forward_tool(path):
    """The module of the forward samples; it reads its own options from the command line."""
    sys.argv = [path, "--lib", OPTIONS.lib, "--timeout", "60"]
    spec = importlib.util.spec_from_file_location("forward", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


forward = forward_tool(OPTIONS.opinfo)
torch = forward.torch
from torch.utils._pytree import tree_map


class GradOptions(C.Structure):
    _fields_ = [("struct_size", C.c_size_t), ("retain_graph", C.c_bool),
                ("create_graph", C.c_bool), ("allow_unused", C.c_bool)]


def pooling(arguments):
    return {name: x for name, x in arguments.items() if name != "stride" or len(x)}


forward.EQUIV["max_pool2d_with_indices"] = ("max_pool2d", pooling)  # indices have no gradient


class Program(forward.Program):
    """As in the forward samples, but detach is a call (gradients end there), and index_add with a
    factor is one without it of a product."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        factor = (kwargs or {}).get("alpha", 1)
        if func.name() == "aten::index_add" and factor != 1:
            with self:
                return args[0].index_add(*args[1:3], args[3] * factor)
        return super().__torch_dispatch__(func, types, args, kwargs)

    def same(self, func, args, kwargs):
        result = super().same(func, args, kwargs)
        if func.name().startswith("aten::detach") and id(args[0]) in self.by_id:
            source = forward.Reg(self.by_id[id(args[0])])
            number = self.new()
            self.calls.append(forward.Call("detach", self.etch.ops["detach"][0],
                                           [("Tensor", "self", False, source)], number))
            self.by_id[id(result)] = number
        return result


forward.Program = Program


class Etch(forward.Etch):
    """With the functions of etch/grad.h."""

    def __init__(self, path):
        super().__init__(path)
        pointers, tensor = C.POINTER(C.c_void_p), C.c_void_p
        self.l.etch_requires_grad_.restype = tensor
        self.l.etch_requires_grad_.argtypes = [tensor, C.c_bool]
        self.l.etch_requires_grad.restype = C.c_bool
        self.l.etch_requires_grad.argtypes = [tensor]
        self.l.etch_grad.restype = C.c_int
        self.l.etch_grad.argtypes = [pointers, C.c_int, pointers, C.c_int, pointers,
                                     C.POINTER(GradOptions), pointers]

    def grad(self, outputs, inputs, seeds):
        """The gradients as PyTorch's tensors: zeros for an input that no output depends on."""
        flows = [k for k, h in enumerate(outputs) if self.l.etch_requires_grad(h)]
        if not flows:
            raise forward.EtchError("no_gradient: no result requires gradients")
        options = GradOptions(C.sizeof(GradOptions), allow_unused=True)
        grads = handles([None] * len(inputs))
        self.l.etch_clear_error()
        if self.l.etch_grad(handles(outputs[k] for k in flows), len(flows), handles(inputs),
                            len(inputs), handles(self.put(seeds[k]) for k in flows),
                            C.byref(options), grads):
            self.fail()
        return [self.get(g) if g else torch.zeros_like(self.get(h))
                for g, h in zip(grads, inputs)]


def handles(items):
    items = list(items)
    return (C.c_void_p * max(1, len(items)))(*items)


class Sample:
    """One sample: PyTorch's gradients, and the calls of its forward for Etch."""

    def __init__(self, etch, op, sample):
        self.etch, self.sample = etch, sample
        self.op = lambda *args, **kwargs: sample.output_process_fn_grad(op(*args, **kwargs))
        memo = {}
        x, args, kwargs = self.inputs(memo, lambda t: t.detach())
        self.program, self.result = forward.trace(etch, self.op, x, args, kwargs)
        numbers = {id(t): n for n, t in self.program.first.items()}
        self.leaves = [numbers.get(id(new)) for old, new in memo.values() if old.requires_grad]

    def inputs(self, memo, change):
        """input, args, kwargs with each tensor changed once; memo: id -> (tensor, changed)."""
        def one(t):
            if not isinstance(t, torch.Tensor):
                return t
            if id(t) not in memo:
                memo[id(t)] = (t, change(t))
            return memo[id(t)][1]
        s = self.sample
        return tree_map(one, (s.input, list(s.args), dict(s.kwargs)))

    def pytorch(self, dtype=None):
        """(results, gradients, seeds) in PyTorch; results through which none flows are None."""
        def leaf(t):
            t = t.detach()
            return t.to(dtype) if dtype and t.is_floating_point() else t
        memo = {}
        x, args, kwargs = self.inputs(memo, leaf)
        leaves = [new.requires_grad_() for old, new in memo.values() if old.requires_grad]
        results = [t if t.requires_grad else None
                   for t in forward.tensors_of(self.op(x, *args, **kwargs))]
        flows = [t for t in results if t is not None]
        random_numbers = torch.Generator().manual_seed(1)
        seeds = [torch.randn(t.shape, generator=random_numbers, dtype=torch.float64).to(t.dtype)
                 for t in flows]
        if not flows:
            return results, None, None
        grads = torch.autograd.grad(flows, leaves, seeds, allow_unused=True)
        return results, [torch.zeros_like(t) if g is None else g.detach()
                         for g, t in zip(grads, leaves)], seeds

    def rounds(self):
        """Whether some of the arguments have fewer bits than float64, as in mixed dtypes."""
        return any(t.is_floating_point() and t.dtype != torch.float64
                   for t in forward.tensors_of((self.sample.input, self.sample.args,
                                                self.sample.kwargs)))

    def outputs(self, results):
        """The registers of the results through which gradients flow, or None for one unknown."""
        p, registers = self.program, []
        for traced, t in zip(forward.tensors_of(self.result), results):
            n = p.by_id.get(id(traced))
            n = p.by_place.get(p.place(traced)) if n is None and p.place(traced) else n
            if t is not None and (n is None or id(traced) in p.extra):
                return None
            if t is not None:
                registers.append(n)
        return registers

    def run(self, registers, seeds, roll=0, function=None):
        """(results, gradients) in Etch, eager or by a compiled function; or the error's text."""
        etch, scope = self.etch, self.etch.l.etch_scope_begin()
        etch.l.etch_manual_seed(7)
        try:
            start = self.program.handles(roll)
            for n in self.leaves:
                etch.l.etch_requires_grad_(start[n], True) or etch.fail()
            outputs = self.call(function, start, len(registers)) if function else \
                self.eager(start, registers, not roll)
            grads = etch.grad(outputs, [start[n] for n in self.leaves], seeds)
            return [etch.get(h) for h in outputs], grads
        except forward.EtchError as error:
            return str(error)
        finally:
            etch.l.etch_scope_end(scope)

    def eager(self, start, registers, check):
        values = self.program.execute(dict(start), check=check)
        return [values[n] for n in registers]

    def call(self, function, start, count):
        outputs = handles([None] * count)
        inputs = handles(start[i[0]] for i in self.program.inputs)
        self.etch.l.etch_clear_error()
        if self.etch.l.etch_call_n(function, inputs, len(start), outputs, count):
            self.etch.fail()
        return list(outputs)[:count]

    def compiled(self, registers, seeds):
        """None, or how the compiled function differs from eager in three calls."""
        numbers = [i[0] for i in self.program.inputs]

        @forward.BODY
        def body(_, inputs, nin, outputs, nout):
            try:
                values = self.program.execute({n: inputs[k] for k, n in enumerate(numbers)})
                for k, n in enumerate(registers):
                    outputs[k] = values[n]
                return 0
            except forward.EtchError:
                return self.etch.l.etch_last_status() or forward.USER_ERROR
        function = self.etch.l.etch_compile_n(body, None) or self.etch.fail()
        try:
            for call in range(3):
                roll = int(call == 2)
                want = self.run(registers, seeds, roll)
                why = difference(want, self.run(registers, seeds, roll, function))
                if why:
                    return f"call {call + 1}: {why}"
        finally:
            self.etch.l.etch_function_free(function)


def difference(eager, compiled):
    """None where results and gradients, or the kinds of the errors, are the same."""
    if isinstance(eager, str) or isinstance(compiled, str):
        same = isinstance(eager, str) and isinstance(compiled, str) and \
            eager.split(":")[0] == compiled.split(":")[0]
        return None if same else f"eager {brief(eager)}, compiled {brief(compiled)}"
    for what, some, others in zip(("result", "gradient"), eager, compiled):
        for k, (x, y) in enumerate(zip(some, others)):
            if not forward.same_bits(x, y):
                return f"{what} {k}: eager {forward.brief(x)}, compiled {forward.brief(y)}"


def brief(outcome):
    return outcome[:300] if isinstance(outcome, str) else "gave results"


def compare(got, want):
    """None, or (kind, text) of the first gradient that is not PyTorch's."""
    for k, (g, w) in enumerate(zip(got, want)):
        if g.dtype != w.dtype:
            return "dtype", f"gradient {k}: expected {w.dtype}, got {g.dtype}"
        if g.shape != w.shape:
            return "sizes", f"gradient {k}: expected {list(w.shape)}, got {list(g.shape)}"
        if w.layout != torch.strided:
            return "values", f"gradient {k}: PyTorch's is {w.layout}"
        try:
            torch.testing.assert_close(g, w, equal_nan=True, check_stride=False)
        except AssertionError:
            rtol, atol = torch.testing._comparison.default_tolerances(w)
            bad = ~torch.isclose(g, w, rtol=rtol, atol=atol, equal_nan=True)
            at = bad.flatten().nonzero().flatten()[:4]
            return "values", (f"gradient {k}: at {at.tolist()} of {w.numel()} expected "
                              f"{w.flatten()[at].tolist()}, got {g.flatten()[at].tolist()}")


def only_rounding(sample, got, want):
    """Whether Etch is as near to the gradient in float64 as PyTorch, within a factor of two."""
    exact = sample.pytorch(torch.float64)[1]
    for g, w, e in zip(got, want, exact):
        eps = torch.finfo(w.dtype).eps
        g, w = g.double(), w.double()
        if not torch.equal(g.isfinite(), w.isfinite()):
            return False
        ok = e.isfinite() & w.isfinite()
        off, allowed = (g - e)[ok].abs(), (w - e)[ok].abs()
        if off.numel() and (off > 2 * allowed.max() + eps * e[ok].abs()).any():
            return False
    return True


def judge(sample, compile_it, counts):
    """(kind, text) of one sample."""
    p = sample.program
    if isinstance(sample.result, Exception):
        return "torch", str(sample.result)
    if p.missing:
        return "skip", sorted(set(p.missing))
    if not p.calls or not sample.leaves:
        return "constant", ""
    if None in sample.leaves:
        return "skip", ["two inputs are one tensor"]
    if p.metadata_only or any(a[1] == "dropout_p" and a[3] for c in p.calls for a in c.args):
        return "skip", ["random"]
    try:
        results, want, seeds = sample.pytorch()
    except Exception as error:
        return "torch", str(error)
    if want is None:
        return "constant", ""
    registers = sample.outputs(results)
    if registers is None:
        return "skip", ["further results"]
    verdict = judge_eager(sample, sample.run(registers, seeds), want, counts)
    if compile_it and verdict[0] in COUNTED:
        counts["compiled"] += 1
        why = sample.compiled(registers, seeds)
        counts["differ"] += why is not None
        if why:
            return verdict[0], verdict[1], why
    return verdict


def judge_eager(sample, got, want, counts):
    if isinstance(got, str):
        kind = got.split(":")[0]
        return (kind if kind in COUNTED else "error"), got
    bad = compare(got[1], want)
    if bad and bad[0] == "values" and sample.rounds():
        counts["rounding"] += only_rounding(sample, got[1], want)
    return bad or ("pass", "")


def samples_of(info, dtype):
    torch.manual_seed(0)
    random.seed(0)
    __import__("numpy").random.seed(0)
    make, n = info.reference_inputs if OPTIONS.reference else info.sample_inputs, OPTIONS.limit
    pool = list(itertools.islice(make("cpu", dtype, requires_grad=True), 4 * n))
    return pool if len(pool) <= n else [pool[k * len(pool) // n] for k in range(n)]


def child(info, op, write, skip):
    """All samples of one OpInfo, in a process of its own; skip: those that ended it before."""
    etch, began = Etch(OPTIONS.lib), time.time()
    counts, missing, used = collections.Counter(), collections.Counter(), {}
    for name in OPTIONS.dtypes.split(","):
        dtype, to_compile = getattr(torch, name), OPTIONS.compiled
        try:
            pool = samples_of(info, dtype) if dtype in info.dtypes else []
        except Exception:
            counts["torch"] += 1
            continue
        for k, s in enumerate(pool):
            if f"{name} {k}" in skip or time.time() - began > OPTIONS.budget:
                counts["late"] += f"{name} {k}" not in skip
                continue
            write({"at": f"{name} {k}"})
            sample = Sample(etch, op, s)
            kind, text, *compiled = judge(sample, to_compile > 0, counts)
            counts[kind] += 1
            if kind == "skip":
                missing.update(text)
            if kind not in COUNTED:
                continue
            to_compile -= 1
            for operator in {c.name for c in sample.program.calls if c.op}:
                row = used.setdefault(operator, [0, 0])
                row[0] += 1
                row[1] += kind == "pass"
            for bad in [(kind, text)] * (kind != "pass") + [("compiled", w) for w in compiled]:
                write({"bad": {**forward.problem(sample.program, bad[1], bad[0]), "dtype": name,
                               "sample": k, "leaves": sample.leaves}})
    write({"done": dict(counts), "missing": dict(missing), "used": used})


forward.child = child


def operator_of(info):
    variant = info.inplace_variant
    if not OPTIONS.inplace:
        return info.op
    return variant and (lambda x, *args, **kwargs: variant(x.clone(), *args, **kwargs))


def one_info(info, name, out):
    """(counts, what is missing, operators, failures) of an OpInfo, its crashes among them."""
    counts, missing, used, bads, skip = collections.Counter(), {}, {}, [], set()

    def on(message):
        if "done" in message:
            counts.update(message["done"])
            missing.update(message["missing"])
            used.update(message["used"])
        if "bad" in message:
            bads.append({"op": name, **message["bad"]})
        if "python" in message:
            print(name, message["python"], file=sys.stderr)
    crashes = []
    for _ in range(4):
        end = forward.fork_one(info, operator_of(info), skip, on)
        if end is None:
            break
        bads.clear()
        crashes.append(dict(op=name, kind="crash", why=end[1], dtype=end[0], calls="",
                            inputs=[], numel=0))
        skip.add(end[0])
    counts["crash"] = len(crashes)
    bads += crashes
    if out:
        for line in bads + [dict(row=name, counts=counts, missing=missing, used=used)]:
            out.write(json.dumps(line) + "\n")
        out.flush()
    return counts, missing, used, bads


def share(passed, samples):
    return f"{100 * passed / max(1, samples):6.2f} %"


def row_text(name, counts):
    samples = sum(counts[k] for k in COUNTED) + counts["crash"]
    none = counts["not_differentiable"]
    text = f"{name:48} {samples:5} {counts['pass']:6} {samples - counts['pass'] - none:6} " \
        f"{none:6} {share(counts['pass'], samples)} {counts['compiled']:5} {counts['differ']:3}"
    notes = [f"{k} {counts[k]}" for k in ("rounding", "skip", "torch", "late", "crash")
             if counts[k]]
    return samples, text + ("   " + ", ".join(notes) if notes else "")


def report(rows, operators, bads):
    """The totals, what is below 98 %, and the failures by cause with the smallest case of each."""
    total = collections.Counter()
    for _, counts in rows:
        total.update(counts)
    samples, text = row_text(f"{len(rows)} OpInfos", total)
    print("\n" + text)
    low = [name for name, c in rows if c["pass"] < 0.98 * row_text(name, c)[0]]
    print(f"OpInfos below 98 %: {len(low)}: {', '.join(low)}")
    print(f"with those of rounding passed: {share(total['pass'] + total['rounding'], samples)}")
    low = [f"{n} {p}/{s}" for n, (s, p) in sorted(operators.items()) if p < 0.98 * s]
    print(f"operators of Etch called: {len(operators)}, below 98 %: {len(low)}: {', '.join(low)}")
    groups = collections.defaultdict(list)
    for bad in bads:
        groups[forward.cause(bad)].append(bad)
    for key, group in sorted(groups.items(), key=lambda g: -len(g[1])):
        bad = min(group, key=lambda b: b["numel"])
        print(f"\n{len(group):4} {key}\n     in {', '.join(sorted({b['op'] for b in group})[:8])}")
        print(f"     {bad['op']} {bad['dtype']}: {bad['why'][:400]}\n     "
              f"{'; '.join(bad['inputs'])[:400]}\n     {bad['calls'][:400]}")


def main():
    began, rows, operators, bads = time.time(), [], {}, []
    out = open(OPTIONS.out, "w") if OPTIONS.out else None
    print(f"{'OpInfo':48} {'smpls':>5} {'passed':>6} {'failed':>6} {'nodiff':>6} {'share':>8} "
          f"{'comp.':>5} {'dif':>3}")
    for info in forward.op_db:
        name = info.name + ("." + info.variant_test_name if info.variant_test_name else "")
        if not info.supports_autograd or not operator_of(info) or not re.search(OPTIONS.only, name):
            continue
        counts, _, used, mine = one_info(info, name, out)
        samples, text = row_text(name, counts)
        if not samples:
            continue
        print(text, flush=True)
        rows.append((name, counts))
        bads += mine
        for operator, (n, passed) in used.items():
            row = operators.setdefault(operator, [0, 0])
            row[0] += n
            row[1] += passed
    report(rows, operators, bads)
    print(f"\n{time.time() - began:.0f} s")


if __name__ == "__main__":
    main()
