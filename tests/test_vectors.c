/* Kernels of many arguments, which are compiled to vectors all the same: bit for bit as eager here;
 * tests/check_vectors.sh looks at their instructions. Each function has one kernel.
 * Labels: quick. */
#include "cpu_support.h"

#define S ETCH_SHAPE

enum { MOST = 10 };

typedef struct body {
    etch_fn_n run;
    int nin, nout;
    int heads; /* of how many operands */
} body;

/* A turn of two halves by tables, as rotary embeddings have it. */
static ETCH_FN_N(turn, ctx, in, nin, out, nout) {
    etch_tensor *x = in[0], *y = in[1];
    out[0] = etch_sub(etch_mul(x, in[2]), etch_mul(y, in[3]));
    out[1] = etch_add(etch_mul(x, in[4]), etch_mul(y, in[5]));
    return out[1] ? ETCH_OK : etch_last_status();
}

/* The same of heads whose rows lie among those of others. */
static ETCH_FN_N(turn_heads, ctx, in, nin, out, nout) {
    etch_tensor *x[6];
    for (int i = 0; i < 6; i++) x[i] = i < 2 ? etch_transpose(in[i], 0, 1) : in[i];
    return turn(ctx, x, nin, out, nout);
}

/* Three results that all operands go into. */
static ETCH_FN_N(mix, ctx, in, nin, out, nout) {
    etch_tensor *sum = in[0];
    for (int i = 1; i < nin; i++) sum = etch_add(etch_mul_scalar(sum, 0.5), in[i]);
    for (int i = 0; i < nout; i++) out[i] = etch_mul(sum, in[i]);
    return out[nout - 1] ? ETCH_OK : etch_last_status();
}

static const body bodies[] = {
    {turn, 6, 2, 0}, {turn_heads, 6, 2, 2}, {mix, 7, 3, 0}, {mix, 10, 2, 0}};

static void compare(const body *b, etch_dtype dtype) {
    ETCH_SCOPE {
        etch_tensor *in[MOST], *want[MOST], *have[MOST];
        etch_function *f = etch_compile(b->run, .fullgraph = true);
        for (int i = 0; i < b->nin; i++) {
            etch_tensor *x = etch_randn(ETCH_F32, i < b->heads ? S(33, 7, 40) : S(33, 40));
            in[i] = etch_to(x, dtype);
        }
        assert_int_equal(b->run(NULL, in, b->nin, want, b->nout), ETCH_OK);
        for (int call = 0; call < 4; call++) {
            assert_int_equal(etch_call_n(f, in, b->nin, have, b->nout), ETCH_OK);
            for (int i = 0; i < b->nout; i++) assert_true(same_tensor(want[i], have[i]));
        }
        etch_function_free(f);
    }
}

TEST(kernels_of_many_arguments) {
    const etch_dtype dtypes[] = {ETCH_F32, ETCH_F64, ETCH_BF16};
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++)
        for (int d = 0; d < 3; d++) compare(&bodies[i], dtypes[d]);
}

int main(int argc, char **argv) { return run_suite(argc, argv); }
