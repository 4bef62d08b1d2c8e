/* How kernels lay out what they hand on where they read across rows: as they read, where nobody but
 * kernels sees it, and row-major where somebody does; and that bits stay those of eager.
 * Labels: quick. */
#include "cpu_support.h"
#include "log_support.h"

#define S ETCH_SHAPE
#define D ETCH_DIMS

static const etch_dtype types[] = {ETCH_F32, ETCH_BF16, ETCH_F16, ETCH_F64};

static etch_tensor *must(etch_tensor *t) {
    if (!t) fail_msg("%s", etch_last_error());
    return t;
}

/* Calls f until it is compiled: what it logs holds `has`, and not `lacks`. */
static void check(etch_fn1 body, etch_tensor *x, const char *has, const char *lacks) {
    etch_tensor *want = must(body(x)), *have = NULL;
    etch_function *f = etch_compile(body, .fullgraph = true, .dynamic = ETCH_DYNAMIC_OFF);
    begin_log("output_code");
    for (int i = 0; i < 3; i++) have = must(etch_call(f, x));
    end_log();
    if (!strstr(logged, has)) fail_msg("no \"%s\":\n%.4000s", has, logged);
    if (strstr(logged, lacks)) fail_msg("\"%s\":\n%.4000s", lacks, logged);
    assert_true(same_tensor(want, have));
    etch_function_free(f);
}

/* ---- what only kernels see ---- */

static etch_tensor *softmax(etch_tensor *x) {
    etch_tensor *e = etch_exp(etch_sub(x, etch_amax(x, D(-1), true)));
    return etch_div(e, etch_sum_dim(e, D(-1), true));
}

static etch_tensor *norm(etch_tensor *x) {
    etch_tensor *c = etch_sub(x, etch_mean_dim(x, D(-1), true));
    etch_tensor *v = etch_mean_dim(etch_square(c), D(-1), true);
    return etch_mul(c, etch_rsqrt(etch_add_scalar(v, 1e-5)));
}

/* Three dimensions, whose memory has the first one in the middle. */
static etch_tensor *of_three(etch_tensor *x) {
    return softmax(etch_permute(etch_view(x, S(7, 10, -1)), D(1, 2, 0)));
}

TEST(what_kernels_hand_on_lies_as_they_read) {
    for (int k = 0; k < COUNT_OF(types); k++)
        ETCH_SCOPE {
            etch_tensor *x = make(types[k], S(70, 130), LAYOUT_ROW, true);
            check(softmax, etch_t(x), "[1|s]\netch: output_code:   @3: store", " [s|1]");
            check(norm, etch_t(x), "[1|s]\netch: output_code:   @3: store", " [s|1]");
            check(of_three, x, "store", "store f32 [ss|1]");
        }
}

/* ---- what stays row-major ---- */

/* The elements are a result as well. */
static etch_tensor *with_elements(etch_tensor *x) {
    etch_tensor *e = etch_exp(etch_sub(x, etch_amax(x, D(-1), true)));
    return etch_cat((etch_tensor *const[]){e, etch_div(e, etch_sum_dim(e, D(-1), true))}, 2, 0);
}

/* A view of them is read. */
static etch_tensor *with_view(etch_tensor *x) {
    etch_tensor *e = etch_exp(etch_sub(x, etch_amax(x, D(-1), true)));
    etch_tensor *y = etch_div(e, etch_sum_dim(e, D(-1), true));
    return etch_add(y, etch_sum_dim(etch_slice(e, 0, 1, 3, 1), D(0), true));
}

/* A call reads them. */
static etch_tensor *with_call(etch_tensor *x) {
    etch_tensor *e = etch_exp(etch_sub(x, etch_amax(x, D(-1), true)));
    return etch_div(etch_cumsum(e, 1), etch_sum_dim(e, D(-1), true));
}

TEST(what_others_see_is_row_major) {
    for (int k = 0; k < COUNT_OF(types); k++)
        ETCH_SCOPE {
            etch_tensor *x = etch_t(make(types[k], S(70, 130), LAYOUT_ROW, true));
            check(with_elements, x, "store", "nothing");
            check(with_view, x, "[s|1]", "nothing");
            check(with_call, x, "[s|1]", "nothing");
        }
}

int main(int argc, char **argv) { return run_suite(argc, argv); }
