/* etch_opcheck: the ways of include/etch/opcheck.h, a function each; those of derivatives stand in
 * opcheck/derivative.c.
 *
 * Every way works on copies of the sample's tensors, so that an operator that breaks its promises
 * cannot spoil the next way. What is compared is the plain eager call. */
#include <etch/device.h>
#include <etch/opcheck.h>

#include "opcheck/check.h"

/* ---- the report ---- */

static void put_line(opcheck *c, const char *line) {
    if (c->report && c->used < c->room)
        snprintf(c->report + c->used, c->room - c->used, "%s\n", line);
    c->used += strlen(line) + 1;
}

void etch__opcheck_fault(opcheck *c, const char *way, const char *format, ...) {
    char text[512], line[640];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    snprintf(line, sizeof line, "sample %d: %s: %s", c->sample, way, text);
    if (!c->faults++) snprintf(c->first, sizeof c->first, "%s", line);
    put_line(c, line);
}

void etch__opcheck_failed(opcheck *c, const char *way, const char *what) {
    etch__opcheck_fault(c, way, "%s failed: %s", what, etch_last_error());
}

/* ---- copies of a sample ---- */

static etch_tensor *same(etch_tensor *t, void *ctx) { return (void)ctx, t; }
etch_tensor *etch__opcheck_copy(etch_tensor *t, void *ctx) { return (void)ctx, etch_clone(t); }
static etch_tensor *zeros(etch_tensor *t, void *ctx) {
    (void)ctx;
    etch_tensor *made = NULL;
    ETCH_ON(etch_device_of(t)) made = etch_zeros(etch_dtype_of(t), etch_sizes(t));
    return made;
}

/* The same values: transposed in memory and at an offset, or (fewer than two dimensions) every
 * other element of a buffer. */
static etch_tensor *strided(etch_tensor *t, void *ctx) {
    (void)ctx;
    int ndim = etch_ndim(t);
    if (ndim < 2) {
        etch_tensor *column = etch_unsqueeze(t, ndim);
        etch_tensor *pair = etch_cat((etch_tensor *const[]){column, column}, 2, ndim);
        return etch_select(pair, ndim, 1);
    }
    etch_tensor *turned = etch_transpose(t, ndim - 1, 0);
    etch_tensor *twice = etch_cat((etch_tensor *const[]){turned, turned}, 2, 0);
    int64_t n = etch_size(turned, 0);
    etch_tensor *half = etch_slice(twice, 0, n, 2 * n, 1);
    return etch_transpose(half, ndim - 1, 0);
}

/* The arguments with each tensor replaced by remade(tensor, ctx), in order; false on an error. */
bool etch__opcheck_remake(opcheck_inputs *to, const etch_value *args, int nargs, remade_fn remade,
                          void *ctx) {
    memset(to, 0, sizeof *to);
    to->nargs = nargs;
    for (int i = 0; i < nargs; i++) {
        etch_value *v = &to->args[i];
        *v = args[i];
        bool list = v->tag == ETCH_VALUE_TENSORS;
        if (!list && v->tag != ETCH_VALUE_TENSOR) continue;
        int n = list ? v->tensors.count : 1, first = to->nt;
        for (int k = 0; k < n; k++) {
            etch_tensor *t = list ? args[i].tensors.items[k] : args[i].tensor;
            if (to->nt == OPCHECK_TENSORS) return false;
            if (!(to->t[to->nt] = t == ETCH_NONE ? t : remade(t, ctx))) return false;
            to->nt++;
        }
        if (list) v->tensors.items = to->t + first;
        else v->tensor = to->t[first];
    }
    return true;
}

static bool written(const opcheck *c, int tensor) {
    return tensor == 0 && c->schema->nargs && c->schema->args[0].written;
}

etch_tensor *etch__opcheck_call(const opcheck *c, const opcheck_inputs *in) {
    etch_tensor *out = NULL;
    return etch_op_call(c->op, in->args, in->nargs, &out, 1) == ETCH_OK ? out : NULL;
}

/* ---- the ways ---- */

static void check_mutation(opcheck *c, const opcheck_inputs *before, const opcheck_inputs *after) {
    for (int i = 0; i < after->nt; i++)
        if (!written(c, i) && after->t[i] != ETCH_NONE &&
            !etch_bitwise_equal(before->t[i], after->t[i]))
            etch__opcheck_fault(c, "mutation",
                                "tensor %d was changed, but the schema does not say \"(a!)\"", i);
}

static void check_aliasing(opcheck *c, const opcheck_inputs *in, const etch_tensor *out) {
    bool declared = strstr(c->op->schema, "-> Tensor(a") != NULL;
    for (int i = 0; i < in->nt; i++)
        if (!(declared && i == 0) && etch_shares_storage(in->t[i], out))
            etch__opcheck_fault(c, "aliasing", "the result shares storage with tensor %d", i);
    if (written(c, 0) && !etch_shares_storage(in->t[0], out))
        etch__opcheck_fault(c, "aliasing",
                            "the result is not the argument that the schema says is written");
}

void etch__opcheck_same(opcheck *c, const char *way, const char *what, const etch_tensor *got,
                        const etch_tensor *expected) {
    if (!got) etch__opcheck_failed(c, way, what);
    else if (!etch_bitwise_equal(got, expected))
        etch__opcheck_fault(c, way, "%s gives other bits", what);
}

static void check_purity(opcheck *c, const etch_op_sample *s, const etch_tensor *expected) {
    opcheck_inputs in;
    if (c->op->flags & (OPF_RANDOM | OPF_EFFECTS)) return;
    if (!etch__opcheck_remake(&in, s->args, s->nargs, etch__opcheck_copy, NULL))
        return etch__opcheck_failed(c, "purity", "copying");
    etch__opcheck_same(c, "purity", "a second call with the same arguments",
                       etch__opcheck_call(c, &in), expected);
}

bool etch__opcheck_near(const etch_tensor *a, const etch_tensor *b) {
    static const double tolerance[ETCH_DTYPE_COUNT] = {
        [ETCH_F32] = 3e-4, [ETCH_F64] = 1e-8, [ETCH_BF16] = 0.1, [ETCH_F16] = 0.03};
    double relative = tolerance[etch_dtype_of(b)];
    if (etch_bitwise_equal(a, b)) return true;
    if (relative == 0) return false;
    etch_tensor *size = etch_abs((etch_tensor *)b);
    etch_tensor *largest = etch_max(size);
    double scale = largest ? etch_item(largest) : 0;
    return etch_allclose(a, b, 0, relative * scale, true);
}

static void check_strides(opcheck *c, const etch_op_sample *s, const etch_tensor *expected) {
    opcheck_inputs in;
    if (c->op->flags & OPF_RANDOM) return;
    if (!etch__opcheck_remake(&in, s->args, s->nargs, strided, NULL))
        return etch__opcheck_failed(c, "strides", "copying");
    etch_tensor *y = etch__opcheck_call(c, &in);
    if (!y) etch__opcheck_failed(c, "strides", "a call with arguments that are not contiguous");
    else if (!etch__opcheck_near(y, expected))
        etch__opcheck_fault(c, "strides", "arguments that are not contiguous give other values");
}

/* Values that a kernel does not take are no fault here. */
static void check_shape(opcheck *c, const etch_op_sample *s, const etch_tensor *expected) {
    opcheck_inputs in;
    saved_error error;
    etch__error_save(&error);
    if (!etch__opcheck_remake(&in, s->args, s->nargs, zeros, NULL))
        return etch__opcheck_failed(c, "shape", "copying");
    for (int i = 0; i < in.nargs; i++)
        if (in.args[i].tag == ETCH_VALUE_SCALAR && in.args[i].scalar.kind == ETCH_SCALAR_INT)
            in.args[i].scalar.i++;
        else if (in.args[i].tag == ETCH_VALUE_SCALAR && in.args[i].scalar.kind == ETCH_SCALAR_REAL)
            in.args[i].scalar.d++;
    etch_tensor *out = etch__opcheck_call(c, &in);
    etch__error_restore(&error);
    if (!out) return;
    etch_shape a = etch_sizes(out), b = etch_sizes(expected);
    if (etch_dtype_of(out) != etch_dtype_of(expected) || a.n != b.n ||
        memcmp(a.v, b.v, a.n * sizeof *a.v))
        etch__opcheck_fault(c, "shape",
                            "the result's dtype or sizes change with values (they may depend on "
                            "dtypes, sizes and plain arguments only)");
}

/* What the compiled body does: copies in, the operator, a copy out. */
typedef struct body_ctx {
    const opcheck *c;
    const etch_op_sample *s;
    etch_tensor *const *in;
    int used;
} body_ctx;

static etch_tensor *next_input(etch_tensor *t, void *ctx) {
    body_ctx *b = ctx;
    return (void)t, etch_clone(b->in[b->used++]);
}

static etch_status body(void *ctx, etch_tensor *const *in, int nin, etch_tensor **out, int nout) {
    body_ctx b = *(body_ctx *)ctx;
    opcheck_inputs args;
    (void)nin, (void)nout;
    b.in = in, b.used = 0;
    if (!etch__opcheck_remake(&args, b.s->args, b.s->nargs, next_input, &b))
        return etch_last_status();
    etch_tensor *y = etch__opcheck_call(b.c, &args);
    return (out[0] = etch_clone(y)) ? ETCH_OK : etch_last_status();
}

void etch__opcheck_counts(opcheck *c, const char *backend, const etch_function *f, bool breaks) {
    etch_counters_t n = etch_function_counters(f);
    bool disabled = n.graphs == 0 && n.plan_runs == 0; /* ETCH_COMPILE_DISABLE */
    if (!breaks && !disabled && n.graphs != 1)
        etch__opcheck_fault(c, backend, "%lld graphs instead of 1", (long long)n.graphs);
    if (!breaks && n.graph_breaks)
        etch__opcheck_fault(c, backend, "%lld graph breaks", (long long)n.graph_breaks);
}

static void check_compiled(opcheck *c, const etch_op_sample *s, const char *backend,
                           const etch_tensor *expected) {
    static const char *const when[] = {"the recording call", "the compiled call",
                                       "the second compiled call"};
    bool breaks = c->op->flags & OPF_EFFECTS;
    body_ctx ctx = {.c = c, .s = s};
    etch_function *f = etch_compile(body, .backend = backend, .fullgraph = !breaks, .ctx = &ctx,
                                    .name = "opcheck");
    if (!f) return etch__opcheck_failed(c, backend, "etch_compile");
    for (int i = 0; i < COUNT_OF(when); i++)
        ETCH_SCOPE {
            opcheck_inputs in;
            etch_tensor *y = NULL, *tensors[OPCHECK_TENSORS];
            int n = 0;
            if (!etch__opcheck_remake(&in, s->args, s->nargs, etch__opcheck_copy, NULL)) break;
            for (int k = 0; k < in.nt; k++)
                if (in.t[k] != ETCH_NONE) tensors[n++] = in.t[k];
            if (etch_call_n(f, tensors, n, &y, 1) != ETCH_OK) y = NULL;
            etch__opcheck_same(c, backend, when[i], y, expected);
        }
    etch__opcheck_counts(c, backend, f, breaks);
    etch_function_free(f);
}

typedef struct seen {
    const etch_op *op;
    int calls;
} seen;

static etch_status see(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                       etch_tensor **out, int nout) {
    seen *s = ctx;
    s->calls += op == s->op;
    return etch_redispatch(op, args, nargs, out, nout);
}

static void check_mode(opcheck *c, const etch_op_sample *s, const etch_tensor *expected) {
    opcheck_inputs in;
    seen count = {c->op, 0};
    if (!etch__opcheck_remake(&in, s->args, s->nargs, etch__opcheck_copy, NULL))
        return etch__opcheck_failed(c, "mode", "copying");
    etch_mode *mode = etch_mode_new(see, &count, .name = "opcheck", .composite = true);
    if (!mode) return etch__opcheck_failed(c, "mode", "etch_mode_new");
    etch_tensor *y = NULL;
    ETCH_WITH_MODE (mode) y = etch__opcheck_call(c, &in);
    etch_mode_free(mode);
    if (!(c->op->flags & OPF_RANDOM))
        etch__opcheck_same(c, "mode", "a call under a mode", y, expected);
    if (y && count.calls != 1)
        etch__opcheck_fault(c, "mode", "the mode saw %d calls instead of 1", count.calls);
}

/* ---- the whole ---- */

/* The plain call, and what it did to its operands. NULL: it cannot be made. */
static etch_tensor *check_plain(opcheck *c, const etch_op_sample *s) {
    opcheck_inputs before, in;
    if (!etch__opcheck_remake(&before, s->args, s->nargs, same, NULL) ||
        !etch__opcheck_remake(&in, s->args, s->nargs, etch__opcheck_copy, NULL))
        return etch__opcheck_failed(c, "sample", "copying the tensors"), NULL;
    etch_tensor *out = etch__opcheck_call(c, &in);
    if (!out) return etch__opcheck_failed(c, "sample", "the plain call"), NULL;
    check_mutation(c, &before, &in);
    check_aliasing(c, &in, out);
    return out;
}

static void check_sample(opcheck *c, const etch_op_sample *s) {
    if (s->nargs < 0 || s->nargs > SCHEMA_MAX_ARGS || (s->nargs && !s->args))
        return etch__opcheck_fault(c, "sample", "expected 0 to %d arguments, got %d",
                                   SCHEMA_MAX_ARGS, s->nargs);
    etch_tensor *out = check_plain(c, s);
    if (!out) return;
    check_shape(c, s, out);
    check_purity(c, s, out);
    check_strides(c, s, out);
    check_mode(c, s, out);
    if (c->op->flags & OPF_RANDOM) return;
    check_compiled(c, s, "eager", out);
    check_compiled(c, s, "native", out);
    etch__opcheck_derivative(c, s, out);
    etch__opcheck_mapped(c, s);
    etch__opcheck_forward(c, s, out);
}

static const char *what_of_derivatives(const opcheck *c) {
    if (!c->derivable) return "derivative: none";
    return c->derived ? "derivative: checked" : "derivative: not compared with differences";
}

etch_status etch_opcheck(const etch_op *op, const etch_op_sample *samples, int nsamples,
                         char *report, size_t n) {
    if (report && n) report[0] = 0;
    if (!op || !samples || nsamples <= 0)
        return etch__error_at(NULL, ETCH_ERR_NULL,
                              "etch_opcheck: expected an operator and at least one sample");
    opcheck c = {.op = op, .schema = etch__schema(op->id), .report = report, .room = n};
    for (c.sample = 0; c.sample < nsamples; c.sample++)
        ETCH_SCOPE
            check_sample(&c, &samples[c.sample]);
    char line[128];
    snprintf(line, sizeof line, "%s: %d samples, %d faults", op->name, nsamples, c.faults);
    put_line(&c, line);
    put_line(&c, what_of_derivatives(&c));
    if (!c.faults) return ETCH_OK;
    return etch__error_at(NULL, ETCH_ERR_INVALID_ARGUMENT, "etch_opcheck: %s: %s", op->name,
                          c.first);
}
