/* One interception, three ways: a mode, a hook on a module, an override of a kernel. Each doubles
 * what the products of a small program give, and counts what it saw. The table at the end is
 * measured: the length of each example, what it reaches, what compiling does to it, what it costs.
 */
#include "table.h"

/* ---- the program: a linear layer and relu, then a product outside of any module ---- */

static etch_module *model;

static etch_tensor *program(etch_tensor *x) {
    etch_tensor *y = etch_module_call(model, x);
    etch_tensor *w = etch_module_parameter(model, "0.weight");
    etch_tensor *turned = etch_t(w);
    return etch_addmm(y, y, turned);
}
enum { OPERATORS = 5, PRODUCTS = 2 }; /* t, addmm, relu, t, addmm */

typedef struct count {
    int seen, changed;
} count;

/* ---- 1. a mode: sees every operator of the thread ---- */

enum { MODE_BEGIN = __LINE__ };
static etch_status double_products(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                   etch_tensor **out, int nout) {
    count *c = ctx;
    c->seen++;
    if (!etch_op_is(op, "addmm")) return ETCH_DECLINED;
    c->changed++;
    if (etch_redispatch(op, args, nargs, out, nout) != ETCH_OK) return etch_last_status();
    out[0] = etch_mul_scalar(out[0], 2.0);
    return out[0] ? ETCH_OK : etch_last_status();
}
enum { MODE_LINES = __LINE__ - MODE_BEGIN - 1 };

/* ---- 2. a hook: sees the calls of one module ---- */

enum { HOOK_BEGIN = __LINE__ };
static etch_tensor *double_result(void *ctx, etch_module *m, etch_tensor *x, etch_tensor *y) {
    count *c = ctx;
    (void)m, (void)x;
    c->seen++, c->changed++;
    return etch_mul_scalar(y, 2.0);
}
enum { HOOK_LINES = __LINE__ - HOOK_BEGIN - 1 };

/* ---- 3. an override: is the kernel of one operator, in the whole process ---- */

enum { OVERRIDE_BEGIN = __LINE__ };
static etch_status doubled_addmm(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                 etch_tensor *const *out, int nout) {
    count *c = ctx;
    const etch_value *beta = etch_arg(op, args, nargs, "beta");
    const etch_value *alpha = etch_arg(op, args, nargs, "alpha");
    (void)nout;
    c->seen++, c->changed++;
    etch_tensor *product = etch_mm(args[1].tensor, args[2].tensor);
    etch_tensor *scaled = etch_mul_scalar(product, alpha->scalar);
    etch_tensor *bias = etch_mul_scalar(args[0].tensor, beta->scalar);
    etch_tensor *sum = etch_add(scaled, bias);
    etch_tensor *twice = etch_mul_scalar(sum, 2.0);
    return etch_copy_(out[0], twice) ? ETCH_OK : etch_last_status();
}
enum { OVERRIDE_LINES = __LINE__ - OVERRIDE_BEGIN - 1 };

/* ---- running a way ---- */

typedef enum way { MODE, HOOK, OVERRIDE, WAYS } way;

typedef struct way_state {
    etch_mode *mode;
    int64_t hook;
    etch_override *override;
} way_state;

static way_state begin(way w, etch_mode_handler handler, etch_module *m, etch_hook hook,
                       const char *op, etch_kernel kernel, count *c) {
    way_state s = {0};
    if (w == MODE) {
        s.mode = etch_mode_new(handler, c, .name = "double");
        etch_mode_push(s.mode);
    }
    if (w == HOOK) s.hook = etch_module_forward_hook(m, hook, c);
    if (w == OVERRIDE) s.override = etch_op_override(etch_op_find(op), "cpu", kernel, c);
    return s;
}

static void end(way_state *s, etch_module *m) {
    if (s->mode) etch_mode_pop(s->mode);
    etch_mode_free(s->mode);
    etch_hook_remove(m, s->hook);
    etch_op_override_undo(s->override);
}

typedef struct measured {
    count eager, compiled; /* of one call */
    int64_t graphs;
    bool equal; /* compiled and eager */
    bool right; /* what the program should give */
    double cost;
} measured;

/* What doubling gives, written by hand. A hook does not reach the second product. */
static etch_tensor *expected(etch_tensor *x, bool both) {
    etch_tensor *w = etch_module_parameter(model, "0.weight");
    etch_tensor *turned = etch_t(w);
    etch_tensor *y = etch_addmm(etch_module_parameter(model, "0.bias"), x, turned);
    y = etch_mul_scalar(y, 2.0);
    y = etch_relu(y);
    etch_tensor *z = etch_addmm(y, y, turned);
    return both ? etch_mul_scalar(z, 2.0) : etch_clone(z);
}

static measured run_way(way w, etch_tensor *x) {
    measured r = {0};
    count c = {0};
    etch_tensor *wanted = expected(x, w != HOOK);
    etch_function *f = etch_compile(program);
    etch_module *linear = etch_module_child(model, 0);
    way_state s = begin(w, double_products, linear, double_result, "addmm", doubled_addmm, &c);
    etch_tensor *eager = program(x);
    r.eager = c;
    etch_call(f, x);
    c = (count){0};
    etch_tensor *compiled = etch_call(f, x);
    r.compiled = c;
    end(&s, linear);
    r.graphs = etch_function_counters(f).graphs;
    r.equal = etch_bitwise_equal(eager, compiled);
    r.right = etch_allclose(eager, wanted, 1e-4, 1e-4, false);
    etch_function_free(f);
    return r;
}

/* ---- the cost of an interception that changes nothing: relu of ten numbers ---- */

static etch_status pass_on(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                           etch_tensor **out, int nout) {
    (void)ctx, (void)op, (void)args, (void)nargs, (void)out, (void)nout;
    return ETCH_DECLINED;
}

static etch_tensor *leave_as_is(void *ctx, etch_module *m, etch_tensor *x, etch_tensor *y) {
    (void)ctx, (void)m, (void)x, (void)y;
    return NULL;
}

static etch_status own_relu(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                            etch_tensor *const *out, int nout) {
    const float *from = etch_data(args[0].tensor);
    float *to = etch_data_mut(out[0]);
    (void)ctx, (void)op, (void)nargs, (void)nout;
    for (int64_t i = 0; i < etch_numel(out[0]); i++) to[i] = from[i] > 0 ? from[i] : 0;
    return ETCH_OK;
}

/* Nanoseconds a call, the best of several rounds. */
static double relu_ns(etch_module *m, etch_tensor *x) {
    double best = 1e30;
    for (int round = 0; round < 20; round++) {
        double start = now_ms();
        for (int i = 0; i < 500; i++)
            ETCH_SCOPE
                etch_module_call(m, x);
        double ns = (now_ms() - start) * 1e6 / 500;
        if (ns < best) best = ns;
    }
    return best;
}

static double cost(way w) {
    double ns = 0;
    ETCH_SCOPE {
        etch_module *m = etch_nn_relu();
        etch_tensor *x = etch_randn(ETCH_F32, ETCH_SHAPE(10));
        double without = relu_ns(m, x);
        way_state s = begin(w, pass_on, m, leave_as_is, "relu", own_relu, NULL);
        ns = relu_ns(m, x) - without;
        end(&s, m);
        etch_module_free(m);
    }
    return ns;
}

/* ---- the table ---- */

static void describe_compile(const measured *r, char *text, size_t n) {
    if (!r->graphs) snprintf(text, n, "runs uncompiled, %d seen", r->compiled.seen);
    else snprintf(text, n, "%lld graph, %d seen", (long long)r->graphs, r->compiled.seen);
}

static void print_table(const measured *r) {
    static const int lines[WAYS] = {MODE_LINES, HOOK_LINES, OVERRIDE_LINES};
    char cells[4][WAYS][40];
    for (int w = 0; w < WAYS; w++) {
        snprintf(cells[0][w], sizeof cells[0][w], "%d", lines[w]);
        describe_compile(&r[w], cells[2][w], sizeof cells[2][w]);
        snprintf(cells[3][w], sizeof cells[3][w], "%.0f ns a call", r[w].cost);
    }
    snprintf(cells[1][MODE], 40, "%d of %d operators", r[MODE].eager.seen, OPERATORS);
    snprintf(cells[1][HOOK], 40, "1 module: %d of %d products", r[HOOK].eager.seen, PRODUCTS);
    snprintf(cells[1][OVERRIDE], 40, "%d of %d products", r[OVERRIDE].eager.seen, PRODUCTS);
    static const char *const names[] = {"lines", "reach", "under compile", "cost"};
    static const char *const uses[WAYS] = {"any operator, a while", "one layer of a model",
                                           "one kernel, everywhere"};
    printf("| %-13s | %-26s | %-28s | %-24s |\n", "", "mode", "module hook", "kernel override");
    printf("|---|---|---|---|\n");
    for (int i = 0; i < 4; i++)
        printf("| %-13s | %-26s | %-28s | %-24s |\n", names[i], cells[i][MODE], cells[i][HOOK],
               cells[i][OVERRIDE]);
    printf("| %-13s | %-26s | %-28s | %-24s |\n", "use", uses[MODE], uses[HOOK], uses[OVERRIDE]);
}

int main(void) {
    measured r[WAYS];
    bool ok = true;
    etch_manual_seed(0);
    model =
        etch_nn_sequential((etch_module *[]){etch_nn_linear(64, 64, ETCH_F32), etch_nn_relu()}, 2);
    for (way w = MODE; model && w < WAYS; w++) {
        ETCH_SCOPE
            r[w] = run_way(w, etch_randn(ETCH_F32, ETCH_SHAPE(64, 64)));
        r[w].cost = cost(w);
        ok = ok && r[w].equal && r[w].right;
    }
    if (model) print_table(r);
    else fprintf(stderr, "%s\n", etch_last_error());
    etch_module_free(model);
    printf("hooks: %s\n", model && ok ? "ok" : "FAILED");
    return !(model && ok);
}
