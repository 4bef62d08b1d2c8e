/* The seed program: five rounds of mm, sin, mm, add, relu, run eagerly and compiled.
 *
 * One operator stands on a line: nested calls would leave their order to the C compiler. */
#include "device.h"
#include "table.h"

static etch_tensor *step(etch_tensor *x, etch_tensor *w) {
    for (int i = 0; i < 5; i++) {
        etch_tensor *a = etch_mm(x, w);
        etch_tensor *s = etch_sin(x);
        etch_tensor *b = etch_mm(s, w);
        etch_tensor *c = etch_add(a, b);
        x = etch_relu(c);
    }
    return x;
}

typedef struct inputs {
    etch_tensor *x, *w;
} inputs;

static inputs make_inputs(int64_t n) {
    etch_manual_seed(0);
    etch_tensor *x = etch_randn(ETCH_F32, ETCH_SHAPE(n, n));
    etch_tensor *w = etch_randn(ETCH_F32, ETCH_SHAPE(n, n));
    etch_tensor *size = etch_full(ETCH_F32, ETCH_SHAPE(), n);
    etch_tensor *root = etch_sqrt(size);
    w = etch_div(w, root); /* keeps the rounds from growing */
    return (inputs){x, w};
}

/* Milliseconds a call of the body (f NULL) or of the compiled function. */
static double time_call(etch_function *f, inputs in) {
    double start = now_ms(), elapsed;
    int calls = 0;
    do {
        ETCH_SCOPE {
            if (f) etch_call(f, in.x, in.w);
            else step(in.x, in.w);
        }
        calls++;
        etch_synchronize(etch_current_device()); /* a GPU works on its own */
        elapsed = now_ms() - start;
    } while (elapsed < 5);
    return elapsed / calls;
}

static bool run_size(int64_t n) {
    char name[32];
    snprintf(name, sizeof name, "seed %lldx%lld", (long long)n, (long long)n);
    table_row row = {.name = name, .equal = true};
    etch_function *f = etch_compile(step);
    ETCH_SCOPE {
        inputs in = make_inputs(n);
        etch_tensor *expected = step(in.x, in.w);
        int64_t kernels_before = etch_counters().kernels;
        double start = now_ms();
        etch_tensor *recorded = etch_call(f, in.x, in.w);
        row.first_call_ms = now_ms() - start;
        row.kernels = etch_counters().kernels - kernels_before;
        etch_tensor *compiled = etch_call(f, in.x, in.w);
        row.equal =
            etch_bitwise_equal(expected, recorded) && etch_bitwise_equal(expected, compiled);

        double eager[5], fast[5];
        for (int i = 0; i < 5; i++) eager[i] = time_call(NULL, in), fast[i] = time_call(f, in);
        row.eager_ms = median_of_5(eager), row.compiled_ms = median_of_5(fast);
    }
    row.f = f;
    row.breaks = etch_function_counters(f).graph_breaks;
    table_print(&row);
    bool ok = table_check(&row);
    etch_function_free(f);
    return ok;
}

int main(int argc, char **argv) {
    static const int64_t sizes[] = {10, 64, 256, 512};
    bool ok = true;
    if (!use_device(&argc, argv)) return 2;
    table_head();
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) ok = run_size(sizes[i]) && ok;
    return ok ? 0 : 1;
}
