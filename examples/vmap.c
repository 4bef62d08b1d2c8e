/* etch_vmap: first made by hand, on a mode (mini_vmap.h), then the library's own, from a pointwise
 * function to the gradients of each sample of a batch.
 *
 * A function is written for one sample. The loop calls it for each and stacks what comes back;
 * etch_vmap calls it once, on tensors that show one sample and hold all of them. Each row of the
 * table is one such function: what is mapped, in which dimensions of its arguments the samples are
 * (- stands for ETCH_UNMAPPED), what comes out, by how much it differs from what the loop gives,
 * and how long a loop, a mapped call and a compiled mapped call take on this machine.
 *
 * vmap [digits.csv.gz] */
#include "digits_data.h"
#include "mini_vmap.h"
#include "table.h"

#include <math.h>
#include <string.h>

enum { MOST = 8, SAMPLES = 256, MODELS = 16, HIDDEN = 128 };

/* ---- one sample ---- */

static ETCH_FN_N(wave, ctx, in, nin, out, nout) {
    etch_tensor *s = etch_sin(in[0]);
    etch_tensor *p = etch_mul(s, in[1]);
    out[0] = etch_tanh(p);
    return out[0] ? ETCH_OK : etch_last_status();
}

static ETCH_FN_N(product, ctx, in, nin, out, nout) {
    out[0] = etch_mm(in[0], in[1]);
    return out[0] ? ETCH_OK : etch_last_status();
}

/* Of two points. */
static ETCH_FN_N(distance, ctx, in, nin, out, nout) {
    etch_tensor *between = etch_sub(in[0], in[1]);
    etch_tensor *squares = etch_square(between);
    out[0] = etch_sqrt(etch_sum(squares));
    return out[0] ? ETCH_OK : etch_last_status();
}

/* in: the four parameters of a perceptron, one row of x. */
static ETCH_FN_N(model, ctx, in, nin, out, nout) {
    return etch_functional_call(ctx, in, 4, in + 4, 1, out, nout);
}

/* Of the parameters, which all samples share, by one sample: its pixels and its digit. */
static ETCH_FN_N(gradients, ctx, in, nin, out, nout) {
    etch_module *m = ctx;
    etch_tensor *params[4];
    for (int i = 0; i < 4; i++) params[i] = etch_module_parameter_at(m, i);
    etch_tensor *scores = etch_module_call(m, etch_unsqueeze(in[0], 0));
    etch_tensor *loss = etch_nn_cross_entropy(scores, etch_unsqueeze(in[1], 0));
    return loss ? etch_grad(&loss, 1, params, 4, NULL, NULL, out) : etch_last_status();
}

/* ---- all samples ---- */

/* A function of one sample, and where the samples are. */
typedef struct mapping {
    etch_fn_n one;
    void *ctx;
    etch_dims in_dims;
    etch_function *mapped; /* of the same function */
} mapping;

static bool is_mapped(const mapping *m, int i) { return m->in_dims.v[i] != ETCH_UNMAPPED; }

static int64_t count_samples(const mapping *m, etch_tensor *const *in) {
    int i = 0;
    while (!is_mapped(m, i)) i++;
    return etch_size(in[i], (int)m->in_dims.v[i]);
}

/* What etch_vmap stands for. */
static ETCH_FN_N(loop, ctx, in, nin, out, nout) {
    const mapping *m = ctx;
    int64_t n = count_samples(m, in);
    etch_tensor *sample[MOST], *result[MOST], **all = calloc((size_t)(n * nout), sizeof *all);
    etch_status status = all ? ETCH_OK : ETCH_ERR_OUT_OF_MEMORY;
    for (int64_t k = 0; status == ETCH_OK && k < n; k++) {
        for (int i = 0; i < nin; i++)
            sample[i] = is_mapped(m, i) ? etch_select(in[i], (int)m->in_dims.v[i], k) : in[i];
        status = m->one(m->ctx, sample, nin, result, nout);
        for (int i = 0; status == ETCH_OK && i < nout; i++) all[i * n + k] = result[i];
    }
    for (int i = 0; status == ETCH_OK && i < nout; i++)
        if (!(out[i] = etch_stack(all + i * n, (int)n, 0))) status = etch_last_status();
    free(all);
    return status;
}

static ETCH_FN_N(at_once, ctx, in, nin, out, nout) {
    return etch_call_n(((const mapping *)ctx)->mapped, in, nin, out, nout);
}

static mapping map(etch_fn_n one, void *ctx, etch_dims in_dims) {
    return (mapping){one, ctx, in_dims, etch_vmap(ETCH_CALLABLE(one, ctx), in_dims, ETCH_DIMS(0))};
}

static ETCH_FN_N(by_hand, ctx, in, nin, out, nout) {
    const mapping *m = ctx;
    return mini_vmap(m->one, &m->in_dims, in, out);
}

/* ---- one row ---- */

typedef struct row {
    const char *what;
    etch_fn_n loop, mapped; /* what is compared */
    void *loop_ctx, *ctx;
    const etch_dims *in_dims; /* for show; NULL: none */
    etch_tensor *in[MOST];
    int nin, nout;
    bool bits; /* it must have those of the loop; others sum in another order */
    bool compiles;
} row;

static int failures;

static void say_failure(const char *what, const char *why) {
    printf("%s: %s\n", what, why);
    failures++;
}

/* "[2, 3]" or, of dimensions, "(2, -)". */
static const char *list_text(char text[64], char open, const int64_t *v, int n, char close) {
    int at = snprintf(text, 64, "%c", open);
    for (int i = 0; i < n && at < 50; i++) {
        if (v[i] == ETCH_UNMAPPED) at += snprintf(text + at, 64 - (size_t)at, i ? ", -" : "-");
        else at += snprintf(text + at, 64 - (size_t)at, i ? ", %d" : "%d", (int)v[i]);
    }
    snprintf(text + at, 64 - (size_t)at, "%c", close);
    return text;
}

/* The largest difference, in units of the largest element. */
static double difference(etch_tensor *a, etch_tensor *b) {
    double d = NAN;
    ETCH_SCOPE {
        etch_tensor *apart = etch_max(etch_abs(etch_sub(a, b)));
        d = etch_item(apart) / fmax(etch_item(etch_max(etch_abs(b))), 1e-30);
    }
    return d;
}

typedef struct variant {
    etch_fn_n fn;
    void *ctx;
    etch_function *compiled; /* in place of fn */
    double us[5];
} variant;

static bool run(const variant *v, const row *r, etch_tensor **out) {
    etch_status status = v->compiled ? etch_call_n(v->compiled, r->in, r->nin, out, r->nout)
                                     : v->fn(v->ctx, r->in, r->nin, out, r->nout);
    if (status != ETCH_OK) say_failure(r->what, etch_last_error());
    return status == ETCH_OK;
}

/* Microseconds of one of `calls`. */
static double time_of(const variant *v, const row *r, int calls) {
    double start = now_ms();
    for (int i = 0; i < calls; i++)
        ETCH_SCOPE {
            etch_tensor *out[MOST];
            run(v, r, out);
        }
    return (now_ms() - start) * 1e3 / calls;
}

/* What the table says of the results, and whether they are as they must be. */
typedef struct verdict {
    double apart;
    char sizes[64];
} verdict;

static void judge(const row *r, int i, etch_tensor *(*out)[MOST], verdict *seen) {
    double apart = difference(out[1][i], out[0][i]);
    seen->apart = fmax(seen->apart, apart);
    if (!(apart < 1e-5)) /* NaN, too */
        say_failure(r->what, "the results differ from the loop's");
    if (r->bits && !etch_bitwise_equal(out[1][i], out[0][i]))
        say_failure(r->what, "the results have other bits than the loop's");
    if (r->compiles && !etch_bitwise_equal(out[2][i], out[1][i]))
        say_failure(r->what, "compiled results differ from those that are not");
}

/* false: something could not be called. */
static bool compare(const row *r, const variant *v, verdict *seen) {
    etch_tensor *out[3][MOST];
    for (int k = 0; k < 2 + r->compiles; k++)
        for (int turn = 0; turn < (k == 2 ? 2 : 1); turn++) /* the second one runs the plan */
            if (!run(&v[k], r, out[k])) return false;
    for (int i = 0; i < r->nout; i++) judge(r, i, out, seen);
    const etch_shape size = etch_sizes(out[1][0]);
    list_text(seen->sizes, '[', size.v, size.n, ']');
    return true;
}

static void print_row(const row *r, variant *v, const verdict *seen) {
    char dims[64] = "", differs[32], compiled[32] = "-";
    if (r->in_dims) list_text(dims, '(', r->in_dims->v, r->in_dims->n, ')');
    snprintf(differs, sizeof differs, seen->apart > 0 ? "%.0e" : "equal", seen->apart);
    if (r->compiles) snprintf(compiled, sizeof compiled, "%.0f", median_of_5(v[2].us));
    printf("%-31s %-18s %-14s %7s %9.0f %9.0f %9s\n", r->what, dims, seen->sizes, differs,
           median_of_5(v[0].us), median_of_5(v[1].us), compiled);
    fflush(stdout);
}

static void show(const row *r) {
    verdict seen = {0};
    variant v[3] = {{r->loop, r->loop_ctx, NULL, {0}}, {r->mapped, r->ctx, NULL, {0}}};
    if (r->compiles)
        v[2].compiled = etch_compile(r->mapped, .ctx = r->ctx, .fullgraph = true, .name = r->what);
    ETCH_SCOPE {
        if (compare(r, v, &seen)) {
            for (int turn = 0; turn < 5; turn++)
                for (int k = 0; k < 2 + r->compiles; k++)
                    v[k].us[turn] = time_of(&v[k], r, k ? 5 : 1);
            print_row(r, v, &seen);
        }
    }
    etch_function_free(v[2].compiled);
}

/* ---- the rows ---- */

static void show_mapping(const char *what, mapping *m, etch_tensor *const *in, int nout,
                         bool bits) {
    row r = {what, loop, at_once, m, m, &m->in_dims, {0}, m->in_dims.n, nout, bits, true};
    memcpy(r.in, in, (size_t)r.nin * sizeof *in);
    show(&r);
    etch_function_free(m->mapped);
}

static etch_tensor *random_of(etch_shape sizes) { return etch_randn(ETCH_F32, sizes); }

static void show_pointwise(void) {
    mapping m = map(wave, NULL, ETCH_DIMS(0, 1));
    etch_tensor *in[] = {random_of(ETCH_SHAPE(SAMPLES, 64)), random_of(ETCH_SHAPE(64, SAMPLES))};
    show_mapping("tanh(sin(x) y)", &m, in, 1, true);
}

/* The same by the mode of mini_vmap.h: fifty lines, for those operators. */
static void show_by_hand(void) {
    mapping m = {wave, NULL, ETCH_DIMS(0, 1), NULL}, p = {product, NULL, ETCH_DIMS(1, -1), NULL};
    row r = {
        .what = "tanh(sin(x) y), by hand", .loop = loop, .mapped = by_hand, .nin = 2, .nout = 1};
    r.loop_ctx = r.ctx = &m, r.in_dims = &m.in_dims, r.bits = true;
    r.in[0] = random_of(ETCH_SHAPE(SAMPLES, 64)), r.in[1] = random_of(ETCH_SHAPE(64, SAMPLES));
    show(&r);
    r.what = "a b, by hand", r.loop_ctx = r.ctx = &p, r.in_dims = &p.in_dims, r.bits = false;
    r.in[0] = random_of(ETCH_SHAPE(8, SAMPLES, 16)),
    r.in[1] = random_of(ETCH_SHAPE(16, 8, SAMPLES));
    show(&r);
}

/* The batch may be in any dimension, or missing. */
static void show_products(void) {
    etch_tensor *first = random_of(ETCH_SHAPE(SAMPLES, 8, 16));
    etch_tensor *middle = random_of(ETCH_SHAPE(8, SAMPLES, 16));
    etch_tensor *last = random_of(ETCH_SHAPE(16, 8, SAMPLES));
    etch_tensor *shared = random_of(ETCH_SHAPE(16, 8)), *one = random_of(ETCH_SHAPE(8, 16));
    mapping m = map(product, NULL, ETCH_DIMS(1, -1));
    show_mapping("a b, both of each sample", &m, (etch_tensor *[]){middle, last}, 1, false);
    m = map(product, NULL, ETCH_DIMS(0, ETCH_UNMAPPED));
    show_mapping("a b, one b for all", &m, (etch_tensor *[]){first, shared}, 1, false);
    m = map(product, NULL, ETCH_DIMS(ETCH_UNMAPPED, 2));
    show_mapping("a b, one a for all", &m, (etch_tensor *[]){one, last}, 1, false);
}

/* All distances between two sets of points: a map of a map, beside two loops. */
static void show_nested(void) {
    mapping inner = map(distance, NULL, ETCH_DIMS(ETCH_UNMAPPED, 0));
    mapping outer = map(at_once, &inner, ETCH_DIMS(0, ETCH_UNMAPPED)), loops = outer;
    loops.one = loop;
    row r = {
        .what = "distances, nested twice", .loop = loop, .mapped = at_once, .nin = 2, .nout = 1};
    r.loop_ctx = &loops, r.ctx = &outer, r.in_dims = &outer.in_dims, r.compiles = true;
    r.in[0] = random_of(ETCH_SHAPE(24, 3)), r.in[1] = random_of(ETCH_SHAPE(16, 3));
    show(&r);
    etch_function_free(outer.mapped), etch_function_free(inner.mapped);
}

static etch_module *perceptron(int64_t in, int64_t hidden, int64_t out) {
    etch_module *layers[] = {etch_nn_linear(in, hidden, ETCH_F32), etch_nn_relu(),
                             etch_nn_linear(hidden, out, ETCH_F32)};
    return etch_nn_sequential(layers, 3);
}

/* The rows that examples/digits keeps for its test. */
static bool read_digits(const char *path, etch_tensor **in) {
    static double pixels[DIGITS_ROWS * DIGITS_PIXELS];
    static float chosen[DIGITS_ROWS * DIGITS_PIXELS];
    static int64_t digits[DIGITS_ROWS], answers[DIGITS_ROWS];
    if (!digits_read(path, pixels, digits)) return false;
    int64_t n = digits_choose(pixels, digits, true, chosen, answers);
    in[0] = etch_from_host(chosen, ETCH_F32, ETCH_SHAPE(n, DIGITS_PIXELS));
    in[1] = etch_from_host(answers, ETCH_I64, ETCH_SHAPE(n));
    return in[0] && in[1];
}

/* Beside as many backward passes as there are samples. */
static void show_gradients(const char *path) {
    etch_tensor *in[2];
    etch_module *m = perceptron(DIGITS_PIXELS, HIDDEN, 10);
    if (!m) say_failure("gradients", etch_last_error());
    else if (!read_digits(path, in)) say_failure("gradients", "no digits");
    else {
        mapping per_sample = map(gradients, m, ETCH_DIMS(0, 0));
        show_mapping("gradients of digits, 4 results", &per_sample, in, 4, false);
    }
    etch_module_free(m);
}

/* One module, the parameters of many: each is stacked, and mapped with the others. */
static void show_ensemble(void) {
    etch_module *m[MODELS];
    etch_tensor *in[5] = {0}, *column[MODELS];
    for (int k = 0; k < MODELS; k++) m[k] = perceptron(8, 32, 4);
    ETCH_NO_GRAD {
        for (int i = 0; i < 4; i++) {
            for (int k = 0; k < MODELS; k++) column[k] = etch_module_parameter_at(m[k], i);
            in[i] = etch_stack(column, MODELS, 0);
        }
    }
    in[4] = random_of(ETCH_SHAPE(20, 8));
    mapping models = map(model, m[0], ETCH_DIMS(0, 0, 0, 0, ETCH_UNMAPPED));
    show_mapping("an ensemble of perceptrons", &models, in, 1, false);
    for (int k = 0; k < MODELS; k++) etch_module_free(m[k]);
}

/* ---- a jacobian: tangents of all directions at once, beside one after the other ---- */

/* tanh(w x) */
static ETCH_FN_N(layer, ctx, in, nin, out, nout) {
    out[0] = etch_tanh(etch_mv(in[1], in[0]));
    return out[0] ? ETCH_OK : etch_last_status();
}

static ETCH_FN_N(columns, ctx, in, nin, out, nout) {
    int64_t n = etch_size(in[0], 0);
    etch_tensor *number = etch_arange(ETCH_I64, 0, (double)n, 1), *column[64], *y;
    etch_tensor *unit = etch_to(etch_eq(number, etch_unsqueeze(number, 1)), ETCH_F32);
    for (int64_t i = 0; i < n; i++) {
        etch_tensor *along[] = {etch_select(unit, 0, i), NULL};
        etch_status status = etch_jvp(layer, in, along, nin, &y, &column[i], 1);
        if (status != ETCH_OK) return status;
    }
    out[0] = etch_stack(column, (int)n, 1);
    return out[0] ? ETCH_OK : etch_last_status();
}

static ETCH_FN_N(jacobian, ctx, in, nin, out, nout) {
    out[0] = etch_jacobian(layer, in, nin);
    return out[0] ? ETCH_OK : etch_last_status();
}

static void show_jacobian(void) {
    row r = {.what = "a jacobian", .loop = columns, .mapped = jacobian, .nin = 2, .nout = 1};
    r.compiles = true;
    r.in[0] = random_of(ETCH_SHAPE(48)), r.in[1] = random_of(ETCH_SHAPE(64, 48));
    show(&r);
}

int main(int argc, char **argv) {
    etch_manual_seed(7);
    printf("%-31s %-18s %-14s %7s %9s %9s %9s\n", "", "in_dims", "result", "differs", "loop us",
           "vmap us", "compiled");
    ETCH_SCOPE {
        show_by_hand();
        show_pointwise();
        show_products();
        show_nested();
        show_gradients(argc > 1 ? argv[1] : "examples/data/digits.csv.gz");
        show_ensemble();
        show_jacobian();
    }
    if (failures) return 1;
    printf("vmap: ok\n");
    return 0;
}
