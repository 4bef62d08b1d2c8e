/* etch_opcheck: the ways of include/etch/opcheck.h, a function each.
 *
 * Every way works on copies of the sample's tensors, so that an operator that breaks its promises
 * cannot spoil the next way. What is compared is the plain eager call. */
#include <etch/device.h>
#include <etch/opcheck.h>

#include "core/ops/schema.h"

enum { MAX_TENSORS = 32 };

typedef struct check {
    const etch_op *op;
    const op_schema *schema;
    char *report;
    size_t room, used;
    int sample;
    int faults;
    char first[256]; /* the first fault, for the error */
} check;

/* ---- the report ---- */

static void put_line(check *c, const char *line) {
    if (c->report && c->used < c->room)
        snprintf(c->report + c->used, c->room - c->used, "%s\n", line);
    c->used += strlen(line) + 1;
}

__attribute__((format(printf, 3, 4))) static void fault(check *c, const char *way,
                                                        const char *format, ...) {
    char text[512], line[640];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    snprintf(line, sizeof line, "sample %d: %s: %s", c->sample, way, text);
    if (!c->faults++) snprintf(c->first, sizeof c->first, "%s", line);
    put_line(c, line);
}

static void failed_call(check *c, const char *way, const char *what) {
    fault(c, way, "%s failed: %s", what, etch_last_error());
}

/* ---- copies of a sample ---- */

typedef struct inputs {
    etch_value args[SCHEMA_MAX_ARGS];
    int nargs;
    etch_tensor *t[MAX_TENSORS];
    int nt;
} inputs;

typedef etch_tensor *(*remade_fn)(etch_tensor *t, void *ctx);

static etch_tensor *same(etch_tensor *t, void *ctx) { return (void)ctx, t; }
static etch_tensor *copy(etch_tensor *t, void *ctx) { return (void)ctx, etch_clone(t); }
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
static bool remake(inputs *to, const etch_value *args, int nargs, remade_fn remade, void *ctx) {
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
            if (to->nt == MAX_TENSORS) return false;
            if (!(to->t[to->nt] = t == ETCH_NONE ? t : remade(t, ctx))) return false;
            to->nt++;
        }
        if (list) v->tensors.items = to->t + first;
        else v->tensor = to->t[first];
    }
    return true;
}

static bool written(const check *c, int tensor) {
    return tensor == 0 && c->schema->nargs && c->schema->args[0].written;
}

static etch_tensor *call(const check *c, const inputs *in) {
    etch_tensor *out = NULL;
    return etch_op_call(c->op, in->args, in->nargs, &out, 1) == ETCH_OK ? out : NULL;
}

/* ---- the ways ---- */

static void check_mutation(check *c, const inputs *before, const inputs *after) {
    for (int i = 0; i < after->nt; i++)
        if (!written(c, i) && after->t[i] != ETCH_NONE &&
            !etch_bitwise_equal(before->t[i], after->t[i]))
            fault(c, "mutation", "tensor %d was changed, but the schema does not say \"(a!)\"", i);
}

static void check_aliasing(check *c, const inputs *in, const etch_tensor *out) {
    bool declared = strstr(c->op->schema, "-> Tensor(a") != NULL;
    for (int i = 0; i < in->nt; i++)
        if (!(declared && i == 0) && etch_shares_storage(in->t[i], out))
            fault(c, "aliasing", "the result shares storage with tensor %d", i);
    if (written(c, 0) && !etch_shares_storage(in->t[0], out))
        fault(c, "aliasing", "the result is not the argument that the schema says is written");
}

static void expect_same(check *c, const char *way, const char *what, const etch_tensor *got,
                        const etch_tensor *expected) {
    if (!got) failed_call(c, way, what);
    else if (!etch_bitwise_equal(got, expected)) fault(c, way, "%s gives other bits", what);
}

static void check_purity(check *c, const etch_op_sample *s, const etch_tensor *expected) {
    inputs in;
    if (c->op->flags & (OPF_RANDOM | OPF_EFFECTS)) return;
    if (!remake(&in, s->args, s->nargs, copy, NULL)) return failed_call(c, "purity", "copying");
    expect_same(c, "purity", "a second call with the same arguments", call(c, &in), expected);
}

/* Sums may follow the strides: floats need to agree to half their digits only. */
static bool nearly_same(const etch_tensor *a, const etch_tensor *b) {
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

static void check_strides(check *c, const etch_op_sample *s, const etch_tensor *expected) {
    inputs in;
    if (c->op->flags & OPF_RANDOM) return;
    if (!remake(&in, s->args, s->nargs, strided, NULL)) return failed_call(c, "strides", "copying");
    etch_tensor *y = call(c, &in);
    if (!y) failed_call(c, "strides", "a call with arguments that are not contiguous");
    else if (!nearly_same(y, expected))
        fault(c, "strides", "arguments that are not contiguous give other values");
}

/* Values that a kernel does not take are no fault here. */
static void check_shape(check *c, const etch_op_sample *s, const etch_tensor *expected) {
    inputs in;
    saved_error error;
    etch__error_save(&error);
    if (!remake(&in, s->args, s->nargs, zeros, NULL)) return failed_call(c, "shape", "copying");
    for (int i = 0; i < in.nargs; i++)
        if (in.args[i].tag == ETCH_VALUE_SCALAR && in.args[i].scalar.kind == ETCH_SCALAR_INT)
            in.args[i].scalar.i++;
        else if (in.args[i].tag == ETCH_VALUE_SCALAR && in.args[i].scalar.kind == ETCH_SCALAR_REAL)
            in.args[i].scalar.d++;
    etch_tensor *out = call(c, &in);
    etch__error_restore(&error);
    if (!out) return;
    etch_shape a = etch_sizes(out), b = etch_sizes(expected);
    if (etch_dtype_of(out) != etch_dtype_of(expected) || a.n != b.n ||
        memcmp(a.v, b.v, a.n * sizeof *a.v))
        fault(c, "shape",
              "the result's dtype or sizes change with values (they may depend on "
              "dtypes, sizes and plain arguments only)");
}

/* What the compiled body does: copies in, the operator, a copy out. */
typedef struct body_ctx {
    const check *c;
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
    inputs args;
    (void)nin, (void)nout;
    b.in = in, b.used = 0;
    if (!remake(&args, b.s->args, b.s->nargs, next_input, &b)) return etch_last_status();
    etch_tensor *y = call(b.c, &args);
    return (out[0] = etch_clone(y)) ? ETCH_OK : etch_last_status();
}

static void check_counts(check *c, const char *backend, const etch_function *f, bool breaks) {
    etch_counters_t n = etch_function_counters(f);
    bool disabled = n.graphs == 0 && n.plan_runs == 0; /* ETCH_COMPILE_DISABLE */
    if (!breaks && !disabled && n.graphs != 1)
        fault(c, backend, "%lld graphs instead of 1", (long long)n.graphs);
    if (!breaks && n.graph_breaks)
        fault(c, backend, "%lld graph breaks", (long long)n.graph_breaks);
}

static void check_compiled(check *c, const etch_op_sample *s, const char *backend,
                           const etch_tensor *expected) {
    static const char *const when[] = {"the recording call", "the compiled call",
                                       "the second compiled call"};
    bool breaks = c->op->flags & OPF_EFFECTS;
    body_ctx ctx = {.c = c, .s = s};
    etch_function *f = etch_compile(body, .backend = backend, .fullgraph = !breaks, .ctx = &ctx,
                                    .name = "opcheck");
    if (!f) return failed_call(c, backend, "etch_compile");
    for (int i = 0; i < COUNT_OF(when); i++)
        ETCH_SCOPE {
            inputs in;
            etch_tensor *y = NULL, *tensors[MAX_TENSORS];
            int n = 0;
            if (!remake(&in, s->args, s->nargs, copy, NULL)) break;
            for (int k = 0; k < in.nt; k++)
                if (in.t[k] != ETCH_NONE) tensors[n++] = in.t[k];
            if (etch_call_n(f, tensors, n, &y, 1) != ETCH_OK) y = NULL;
            expect_same(c, backend, when[i], y, expected);
        }
    check_counts(c, backend, f, breaks);
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

static void check_mode(check *c, const etch_op_sample *s, const etch_tensor *expected) {
    inputs in;
    seen count = {c->op, 0};
    if (!remake(&in, s->args, s->nargs, copy, NULL)) return failed_call(c, "mode", "copying");
    etch_mode *mode = etch_mode_new(see, &count, .name = "opcheck", .composite = true);
    if (!mode) return failed_call(c, "mode", "etch_mode_new");
    etch_tensor *y = NULL;
    ETCH_WITH_MODE (mode) y = call(c, &in);
    etch_mode_free(mode);
    if (!(c->op->flags & OPF_RANDOM)) expect_same(c, "mode", "a call under a mode", y, expected);
    if (y && count.calls != 1) fault(c, "mode", "the mode saw %d calls instead of 1", count.calls);
}

/* ---- the whole ---- */

/* The plain call, and what it did to its operands. NULL: it cannot be made. */
static etch_tensor *check_plain(check *c, const etch_op_sample *s) {
    inputs before, in;
    if (!remake(&before, s->args, s->nargs, same, NULL) ||
        !remake(&in, s->args, s->nargs, copy, NULL))
        return failed_call(c, "sample", "copying the tensors"), NULL;
    etch_tensor *out = call(c, &in);
    if (!out) return failed_call(c, "sample", "the plain call"), NULL;
    check_mutation(c, &before, &in);
    check_aliasing(c, &in, out);
    return out;
}

static void check_sample(check *c, const etch_op_sample *s) {
    if (s->nargs < 0 || s->nargs > SCHEMA_MAX_ARGS || (s->nargs && !s->args))
        return fault(c, "sample", "expected 0 to %d arguments, got %d", SCHEMA_MAX_ARGS, s->nargs);
    etch_tensor *out = check_plain(c, s);
    if (!out) return;
    check_shape(c, s, out);
    check_purity(c, s, out);
    check_strides(c, s, out);
    check_mode(c, s, out);
    if (c->op->flags & OPF_RANDOM) return;
    check_compiled(c, s, "eager", out);
    check_compiled(c, s, "native", out);
}

etch_status etch_opcheck(const etch_op *op, const etch_op_sample *samples, int nsamples,
                         char *report, size_t n) {
    if (report && n) report[0] = 0;
    if (!op || !samples || nsamples <= 0)
        return etch__error_at(NULL, ETCH_ERR_NULL,
                              "etch_opcheck: expected an operator and at least one sample");
    check c = {.op = op, .schema = etch__schema(op->id), .report = report, .room = n};
    for (c.sample = 0; c.sample < nsamples; c.sample++)
        ETCH_SCOPE
            check_sample(&c, &samples[c.sample]);
    char line[128];
    snprintf(line, sizeof line, "%s: %d samples, %d faults", op->name, nsamples, c.faults);
    put_line(&c, line);
    put_line(&c, "derivative: not checked, there are no gradients yet");
    if (!c.faults) return ETCH_OK;
    return etch__error_at(NULL, ETCH_ERR_INVALID_ARGUMENT, "etch_opcheck: %s: %s", op->name,
                          c.first);
}
