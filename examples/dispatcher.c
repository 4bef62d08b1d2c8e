/* One call on its way through the dispatcher: composite -> mode -> tracer -> kernel.
 *
 * matmul of a batch is a composite: it calls reshape, expand, view and bmm. At each layer somebody
 * steps in and says so: a mode that is offered composites, a mode that is not, the log of the
 * tracer, and an override of bmm's kernel. Nothing is printed but by who is called. */
#include <etch/etch.h>
#include <stdio.h>
#include <string.h>

/* ---- who steps in ---- */

/* A mode made with composite = true meets matmul itself; declining has its parts offered. */
static etch_status composite_layer(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                   etch_tensor **out, int nout) {
    (void)ctx, (void)args, (void)nargs, (void)out, (void)nout;
    if (etch_op_is(op, "matmul")) printf("  composite layer: %s\n", etch_op_schema(op));
    return ETCH_DECLINED;
}

/* Any other mode meets the operators that matmul consists of. */
static etch_status mode_layer(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                              etch_tensor **out, int nout) {
    (void)ctx, (void)args, (void)nargs, (void)out, (void)nout;
    printf("  mode layer:      %s\n", etch_op_name(op));
    return ETCH_DECLINED;
}

/* The override stands in for bmm's kernel: the innermost step. It computes the product itself. */
static etch_status kernel_layer(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                etch_tensor *const *out, int nout) {
    const etch_tensor *a = args[0].tensor, *b = args[1].tensor;
    const float *pa = etch_data(a), *pb = etch_data(b);
    float *pc = etch_data_mut(out[0]);
    (void)ctx, (void)nargs, (void)nout;
    printf("  kernel:          %s\n", etch_op_name(op));
    if (!pa || !pb || !pc) return etch_last_status();
    for (int64_t i = 0; i < etch_size(a, 0); i++)
        for (int64_t m = 0; m < etch_size(a, 1); m++)
            for (int64_t n = 0; n < etch_size(b, 2); n++) {
                float sum = 0;
                for (int64_t k = 0; k < etch_size(a, 2); k++)
                    sum +=
                        pa[i * etch_stride(a, 0) + m * etch_stride(a, 1) + k * etch_stride(a, 2)] *
                        pb[i * etch_stride(b, 0) + k * etch_stride(b, 1) + n * etch_stride(b, 2)];
                *pc++ = sum;
            }
    return ETCH_OK;
}

/* The tracer says what it records in its log. */
static void tracer_layer(void *ctx, const char *line) {
    (void)ctx;
    printf("  tracer:          %s\n", line);
}

/* ---- the call ---- */

static etch_tensor *product(etch_tensor *a, etch_tensor *b) { return etch_matmul(a, b); }

/* The compiled body: asking whether a result is deferred computes nothing. */
static etch_tensor *watched_product(etch_tensor *a, etch_tensor *b) {
    etch_tensor *c = etch_matmul(a, b);
    printf("  body:            matmul has returned a tensor that is %s\n",
           etch_is_deferred(c) ? "deferred" : "computed");
    return c;
}

static void eager_call(etch_tensor *a, etch_tensor *b) {
    etch_mode *outer = etch_mode_new(mode_layer, NULL, .name = "operators");
    etch_mode *inner =
        etch_mode_new(composite_layer, NULL, .name = "composites", .composite = true);
    ETCH_WITH_MODE (outer) {
        ETCH_WITH_MODE (inner) { product(a, b); }
    }
    etch_mode_free(inner);
    etch_mode_free(outer);
}

/* A mode that allows compiled code sees none of what is compiled; the tracer is the layer here. */
static bool compiled_call(etch_function *f, etch_tensor *a, etch_tensor *b,
                          const etch_tensor *expected) {
    etch_mode *mode = etch_mode_new(mode_layer, NULL, .name = "operators", .allow_compiled = true);
    bool ok = false;
    ETCH_WITH_MODE (mode) {
        const etch_tensor *c = etch_call(f, a, b);
        ok = c && etch_allclose(c, expected, 1e-5, 1e-6, false);
    }
    etch_mode_free(mode);
    return ok;
}

int main(void) {
    bool ok = true;
    ETCH_SCOPE {
        etch_tensor *a = etch_randn(ETCH_F32, ETCH_SHAPE(2, 3, 4));
        etch_tensor *b = etch_randn(ETCH_F32, ETCH_SHAPE(2, 4, 5));
        etch_tensor *expected = product(a, b);
        etch_override *kernel = etch_op_override(etch_op_find("bmm"), "cpu", kernel_layer, NULL);
        if (!kernel) return 1;

        printf("matmul of [2, 3, 4] and [2, 4, 5], eagerly under two modes:\n");
        eager_call(a, b);
        printf("the same compiled, its first call, which the tracer records:\n");
        etch_function *f = etch_compile(watched_product);
        etch_set_log_sink(tracer_layer, NULL);
        etch_set_logs("trace,graph");
        ok = compiled_call(f, a, b, expected);
        printf("its second call, which the tracer answers and a plan computes:\n");
        ok = compiled_call(f, a, b, expected) && ok;
        etch_set_logs("");
        etch_set_log_sink(NULL, NULL);
        etch_function_free(f);
        etch_op_override_undo(kernel);
    }
    return ok ? 0 : 1;
}
