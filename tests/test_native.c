/* The native backend against the eager plan: same bits, for every shape of graph that fusion, view
 * folding, writes and the memory plan treat in their own way; and how many kernels come out.
 * Labels: long optimised. */
#include "core/base/text.h"
#include "plan_util.h"

#include <limits.h>
#include <pthread.h>
#include <unistd.h>

static void check(const char *text, int kernels, int products) {
    graph *g = etch__graph_parse(text);
    if (!g) fail_msg("%s\n%s", etch_last_error(), text);
    check_graph(g, kernels, products);
    etch__graph_free(g);
}

/* ---- counts ---- */

/* Updates as of an optimiser, of parameters of `n` elements each. */
static void check_updates(int64_t n, int count, int kernels) {
    static char text[16384];
    bounded_text t = {text, sizeof text, 0};
    etch__text_add(&t, "graph updates(");
    for (int i = 0; i < 4 * count; i++)
        etch__text_add(&t, "%s%%%d: f32[%lld]", i ? ", " : "", i, (long long)n);
    etch__text_add(&t, ") {\n");
    for (int i = 0; i < count; i++) {
        int w = 4 * i, g = w + 1, m = w + 2, v = w + 3, y = 4 * count + 3 * i, s = 8 * i;
        etch__text_add(&t, "lerp_.Scalar(%%%d, %%%d, $%d: real)\n", m, g, s);
        etch__text_add(&t, "mul_.Scalar(%%%d, $%d: real)\n", v, s + 1);
        etch__text_add(&t, "addcmul_(%%%d, %%%d, %%%d, $%d: real)\n", v, g, g, s + 2);
        etch__text_add(&t, "%%%d: f32[%lld] = sqrt(%%%d)\n", y, (long long)n, v);
        etch__text_add(&t, "%%%d: f32[%lld] = div.Scalar(%%%d, $%d: real)\n", y + 1, (long long)n,
                       y, s + 3);
        etch__text_add(&t, "%%%d: f32[%lld] = add.Scalar(%%%d, $%d: real, $%d: int) {1}\n", y + 2,
                       (long long)n, y + 1, s + 4, s + 5);
        etch__text_add(&t, "addcdiv_(%%%d, %%%d, %%%d, $%d: real)\n", w, m, y + 2, s + 6);
    }
    for (int i = 0; i < count; i++)
        etch__text_add(&t, "%s%%%d", i ? ", " : "return ", 4 * count + 3 * i + 2);
    etch__text_add(&t, "\n}");
    check(text, kernels, 0);
}

/* Each is one kernel and none is cut in two; large ones have a kernel of their own. */
TEST(updates_are_whole) {
    check_updates(70000, 5, 5);
    check_updates(100, 5, 3);
}

TEST(seed_program_becomes_ten_products_and_six_kernels) {
    char text[4096];
    int n = snprintf(text, sizeof text, "graph step/0(%%0: f32[256, 256], %%1: f32[256, 256]) {\n");
    int x = 0, v = 2;
    for (int i = 0; i < 5; i++, x = v, v++) {
        n += snprintf(text + n, sizeof text - n,
                      "%%%d: f32[256, 256] = mm(%%%d, %%1)\n%%%d: f32[256, 256] = sin(%%%d)\n"
                      "%%%d: f32[256, 256] = mm(%%%d, %%1)\n"
                      "%%%d: f32[256, 256] = add.Tensor(%%%d, %%%d, $%d: int) {1}\n"
                      "%%%d: f32[256, 256] = relu(%%%d)\n",
                      v, x, v + 1, x, v + 2, v + 1, v + 3, v, v + 2, i, v + 4, v + 3);
        v += 4;
    }
    snprintf(text + n, sizeof text - n, "return %%%d\n}", x);
    graph *g = etch__graph_parse(text);
    if (!g) fail_msg("%s\n%s", etch_last_error(), text);
    assert_int_equal(g->nnodes, 25);
    check_graph(g, 6, 10);
    etch__graph_free(g);
}

TEST(chains_are_one_kernel) {
    check("graph c(%0: f32[37, 19], %1: f32[37, 19]) {\n"
          "%2: f32[37, 19] = mul.Tensor(%0, %1)\n"
          "%3: f32[37, 19] = add.Scalar(%2, $0: real, $1: int) {1}\n"
          "%4: f32[37, 19] = tanh(%3)\n"
          "%5: f32[37, 19] = exp(%4)\n"
          "return %5\n}",
          1, 0);
    check("graph empty(%0: f32[3]) {\n return\n}", 0, 0);
    check("graph dead(%0: f32[3]) {\n %1: f32[3] = sin(%0)\n %2: f32[3] = cos(%0)\n return %2\n}",
          1, 0);
}

TEST(several_outputs_and_siblings_share_a_kernel) {
    check("graph m(%0: f32[1000], %1: f32[1000]) {\n"
          "%2: f32[1000] = sin(%0)\n"
          "%3: f32[1000] = cos(%1)\n"
          "%4: f32[1000] = mul.Tensor(%2, %3)\n"
          "%5: bool[1000] = lt.Tensor(%2, %3)\n"
          "%6: f32[1000] = where.self(%5, %4, %0)\n"
          "return %2, %6, %5\n}",
          1, 0);
}

TEST(broadcasts_and_views_are_read_in_place) {
    check("graph b(%0: f32[8, 5], %1: f32[5], %2: f32[8, 1], %3: f32[]) {\n"
          "%4: f32[8, 5] = add.Tensor(%0, %1, $0: int) {1}\n"
          "%5: f32[8, 5] = mul.Tensor(%4, %2)\n"
          "%6: f32[8, 5] = sub.Tensor(%5, %3, $1: int) {0}\n"
          "return %6\n}",
          1, 0);
    check("graph t(%0: f32[40, 70], %1: f32[70, 40]) {\n"
          "%2: f32[70, 40 : 1, 70] = t(%0)\n"
          "%3: f32[70, 40] = mul.Tensor(%2, %1)\n"
          "return %3\n}",
          1, 0);
    check("graph s(%0: f32[6, 10], %1: f32[4, 5]) {\n"
          "%2: f32[4, 10]@10 = slice.Tensor(%0) {0, 1, 5, 1}\n"
          "%3: f32[4, 5 : 10, 2]@11 = slice.Tensor(%2) {1, 1, 10, 2}\n"
          "%4: f32[10]@20 = select.int(%0) {0, 2}\n"
          "%5: f32[5 : 2]@20 = slice.Tensor(%4) {0, 0, 10, 2}\n"
          "%6: f32[4, 5 : 0, 2]@20 = expand(%5) {2, 4, 5}\n"
          "%7: f32[4, 5] = add.Tensor(%3, %6, $0: int) {1}\n"
          "%8: f32[4, 5] = mul.Tensor(%7, %1)\n"
          "return %8\n}",
          1, 0);
    check("graph i(%0: f32[6, 10]) {\n" /* squeezing keeps the value in a register */
          "%1: f32[6, 10] = sin(%0)\n"
          "%2: f32[6, 1, 10 : 10, 10, 1] = unsqueeze(%1) {1}\n"
          "%3: f32[6, 1, 10] = relu(%2)\n"
          "return %3\n}",
          1, 0);
    check("graph v(%0: f32[6, 10]) {\n" /* a transposed intermediate needs memory */
          "%1: f32[6, 10] = sin(%0)\n"
          "%2: f32[10, 6 : 1, 10] = t(%1)\n"
          "%3: f32[10, 6] = relu(%2)\n"
          "return %3\n}",
          2, 0);
}

TEST(producers_wait_for_products) {
    check("graph d(%0: f32[30, 30], %1: f32[30, 30]) {\n"
          "%2: f32[30, 30] = sin(%0)\n"
          "%3: f32[30, 30] = mm(%0, %1)\n"
          "%4: f32[30, 30] = add.Tensor(%2, %3, $0: int) {1}\n"
          "return %4\n}",
          1, 1);
    check("graph c(%0: f32[30, 30], %1: f32[30, 30]) {\n" /* not where the product needs them */
          "%2: f32[30, 30] = sin(%0)\n"
          "%3: f32[30, 30] = mm(%2, %1)\n"
          "%4: f32[30, 30] = add.Tensor(%2, %3, $0: int) {1}\n"
          "return %4\n}",
          2, 1);
    check("graph w(%0: f32[30, 30], %1: f32[30, 30]) {\n" /* nor past a write to what they read */
          "%2: f32[30, 30] = sin(%0)\n"
          "%3: f32[30]@30 = select.int(%0) {0, 1}\n"
          "zero_(%3)\n"
          "%4: f32[30, 30] = mm(%0, %1)\n"
          "%5: f32[30, 30] = add.Tensor(%2, %4, $0: int) {1}\n"
          "return %5\n}",
          3, 1);
}

#define THREE "%0: f32[30, 30], %1: f32[30, 30], %2: f32[30, 30]"
#define GATES                                                                                      \
    "%3: f32[30, 30] = mm(%0, %1)\n"                                                               \
    "%4: f32[30, 30] = sigmoid(%3)\n"                                                              \
    "%5: f32[30, 30] = mm(%0, %2)\n"                                                               \
    "%6: f32[30, 30] = tanh(%5)\n"

/* Begun before the next product was there, yet they need nothing of one another but registers. */
TEST(pointwise_groups_become_one) {
    check("graph two(" THREE ") {\n" GATES "%7: f32[30, 30] = mul.Tensor(%4, %6)\n"
          "return %7\n}",
          1, 2);
    check("graph kept(" THREE ") {\n" GATES "%7: f32[30, 30] = mul.Tensor(%4, %6)\n"
          "return %4, %7\n}",
          1, 2);
    check("graph three(" THREE ") {\n" GATES "%7: f32[30, 30] = mm(%1, %2)\n"
          "%8: f32[30, 30] = sigmoid(%7)\n"
          "%9: f32[30, 30] = mul.Tensor(%4, %6)\n"
          "%10: f32[30, 30] = tanh(%9)\n"
          "%11: f32[30, 30] = mul.Tensor(%8, %10)\n"
          "return %9, %11\n}",
          1, 3);
}

TEST(groups_with_something_between_stay_apart) {
    check("graph product(" THREE ") {\n"
          "%3: f32[30, 30] = sigmoid(%0)\n"
          "%4: f32[30, 30] = mm(%3, %1)\n"
          "%5: f32[30, 30] = tanh(%4)\n"
          "%6: f32[30, 30] = mul.Tensor(%3, %5)\n"
          "return %6\n}",
          2, 1);
    check("graph turned(" THREE ") {\n" /* by way of a kernel that reads it in another order */
          "%3: f32[30, 30] = mm(%0, %1)\n"
          "%4: f32[30, 30] = sigmoid(%3)\n"
          "%5: f32[30, 30 : 1, 30] = t(%4)\n"
          "%6: f32[30, 30] = mm(%0, %2)\n"
          "%7: f32[30, 30] = add.Tensor(%5, %6, $0: int) {1}\n"
          "%8: f32[30, 30] = mul.Tensor(%4, %7)\n"
          "return %8\n}",
          2, 2);
    check("graph written(" THREE ") {\n" /* what is written in the meantime is another value */
          "%3: f32[30, 30] = mm(%0, %1)\n"
          "%4: f32[30, 30] = sigmoid(%3)\n"
          "%5: f32[30] = select.int(%4) {0, 2}\n"
          "fill_.Scalar(%5, $0: real)\n"
          "%6: f32[30, 30] = mm(%0, %2)\n"
          "%7: f32[30, 30] = tanh(%6)\n"
          "%8: f32[30, 30] = mul.Tensor(%4, %7)\n"
          "return %8\n}",
          -1, 2);
}

TEST(strided_and_expanded_inputs) {
    check("graph e(%0: f32[300, 7 : 0, 1], %1: f32[300, 7 : 1, 300]@5, %2: f32[4, 3, 5 : 5, 20, "
          "1]) {\n"
          "%3: f32[300, 7] = mul.Tensor(%0, %1)\n"
          "%4: f32[4, 3, 5] = exp(%2)\n"
          "return %3, %4\n}",
          2, 0);
}

TEST(empty_and_zero_dimensional) {
    check("graph z(%0: f32[0, 5], %1: f32[], %2: f32[5, 0]) {\n"
          "%3: f32[0, 5] = sin(%0)\n"
          "%4: f32[] = sin(%1)\n"
          "%5: f32[] = mul.Tensor(%4, %1)\n"
          "%6: f32[5] = sum.dim_IntList(%0) {1, 0, 0, -1}\n"
          "%7: f32[5] = mean.dim(%0) {1, 0, 0, -1}\n"
          "%8: f32[] = sum(%2) {-1}\n"
          "%9: f32[5, 5] = mm(%2, %0)\n"
          "return %3, %5, %6, %7, %8, %9\n}",
          -1, -1);
}

/* ---- dtypes ---- */

TEST(every_dtype_runs_a_chain) {
    for (int d = 0; d < ETCH_DTYPE_COUNT; d++) {
        const char *t = etch_dtype_name(d);
        char text[1024];
        snprintf(text, sizeof text,
                 "graph d(%%0: %s[700], %%1: %s[700]) {\n"
                 "%%2: %s[700] = mul.Tensor(%%0, %%1)\n"
                 "%%3: %s[700] = add.Tensor(%%2, %%1, $0: int) {0}\n"
                 "%%4: %s[700] = maximum(%%3, %%0)\n"
                 "%%5: bool[700] = le.Tensor(%%4, %%1)\n"
                 "%%6: f32[700] = _to_copy(%%4) {0}\n"
                 "return %%4, %%5, %%6\n}",
                 t, t, t, t, t);
        check(text, 1, 0);
    }
}

TEST(half_types_round_after_each_operator) {
    check("graph h(%0: bf16[33, 65], %1: f16[33, 65]) {\n"
          "%2: bf16[33, 65] = exp(%0)\n"
          "%3: bf16[33, 65] = mul.Tensor(%2, %0)\n"
          "%4: f32[33, 65] = add.Tensor(%3, %1, $0: int) {1}\n"
          "%5: f16[33, 65] = _to_copy(%4) {3}\n"
          "%6: f16[33, 65] = div.Tensor(%5, %1)\n"
          "%7: bf16[33] = sum.dim_IntList(%3) {1, 1, 0, -1}\n"
          "%8: f16[65] = mean.dim(%6) {1, 0, 0, -1}\n"
          "return %3, %6, %7, %8\n}",
          -1, 0);
}

TEST(integer_powers_are_calls) {
    check("graph p(%0: i32[50], %1: f32[50]) {\n"
          "%2: i32[50] = pow.Tensor_Tensor(%0, %0)\n"
          "%3: i32[50] = add.Scalar(%2, $0: int, $1: int) {1}\n"
          "%4: f32[50] = pow.Tensor_Scalar(%1, $2: real) {0}\n"
          "%5: f32[50] = pow.Tensor_Scalar(%1, $3: int) {1}\n"
          "return %3, %4, %5\n}",
          -1, 0);
}

/* ---- reductions ---- */

TEST(reductions_over_each_set_of_axes) {
    static const char *const sizes[] = {"5, 67, 9", "1, 1, 9000", "300, 1, 3", "2, 5000, 2",
                                        "70, 3, 300"};
    for (int i = 0; i < COUNT_OF(sizes); i++)
        for (int mask = 1; mask < 8; mask++) {
            long n[3];
            char text[1024], axes[32] = "", kept[64] = "";
            sscanf(sizes[i], "%ld, %ld, %ld", &n[0], &n[1], &n[2]);
            int count = 0;
            for (int d = 0; d < 3; d++) {
                char *to = mask >> d & 1 ? axes : kept;
                count += mask >> d & 1;
                sprintf(to + strlen(to),
                        mask >> d & 1 ? ", %ld"
                        : *kept       ? ", %ld"
                                      : "%ld",
                        mask >> d & 1 ? (long)d : n[d]);
            }
            snprintf(text, sizeof text,
                     "graph r(%%0: f32[%s]) {\n"
                     "%%1: f32[%s] = sin(%%0)\n"
                     "%%2: f32[%s] = sum.dim_IntList(%%1) {%d%s, 0, -1}\n"
                     "%%3: f32[%s] = amax(%%1) {%d%s, 0}\n"
                     "%%4: f32[%s] = mean.dim(%%0) {%d%s, 0, -1}\n"
                     "%%5: f32[%s] = amin(%%0) {%d%s, 0}\n"
                     "%%6: f32[%s] = mul.Tensor(%%2, %%4)\n"
                     "return %%2, %%3, %%4, %%5, %%6\n}",
                     sizes[i], sizes[i], kept, count, axes, kept, count, axes, kept, count, axes,
                     kept, count, axes, kept);
            check(text, -1, 0);
        }
}

TEST(a_reduction_takes_prologue_siblings_and_epilogue) {
    check("graph e(%0: f32[50, 300], %1: f32[50]) {\n"
          "%2: f32[50, 300] = mul.Tensor(%0, %0)\n"
          "%3: f32[50] = mean.dim(%2) {1, 1, 0, -1}\n"
          "%4: f32[50] = amax(%0) {1, 1, 0}\n"
          "%5: f32[50] = add.Scalar(%3, $0: real, $1: int) {1}\n"
          "%6: f32[50] = rsqrt(%5)\n"
          "%7: f32[50] = mul.Tensor(%6, %1)\n"
          "return %4, %7\n}",
          1, 0);
    check("graph t(%0: f32[300, 40]) {\n"
          "%1: f32[40, 300 : 1, 40] = t(%0)\n"
          "%2: f32[40] = sum.dim_IntList(%1) {1, 1, 0, -1}\n"
          "%3: f32[300] = sum.dim_IntList(%1) {1, 0, 0, -1}\n"
          "%4: i64[300] = argmax(%1) {0, 0}\n"
          "return %2, %3, %4\n}",
          2, 0);
    check("graph w(%0: f32[300, 400]) {\n" /* few results of many blocks: in two parts */
          "%1: f32[300, 400] = exp(%0)\n"
          "%2: f32[] = sum(%1) {-1}\n"
          "%3: f32[] = max(%0)\n"
          "%4: f64[] = sum(%0) {1}\n"
          "%5: f32[] = div.Tensor(%2, %3)\n"
          "return %5, %1, %4\n}",
          2, 0);
}

/* Parts of a cat are copied by the kernels that make them, and by one that has as many elements. */
TEST(a_cat_of_what_is_made_is_copies) {
    check("graph r(%0: f32[50, 60], %1: f32[50, 60]) {\n"
          "%2: f32[50, 30 : 60, 1] = slice.Tensor(%0) {1, 0, 30, 1}\n"
          "%3: f32[50, 30 : 60, 1]@30 = slice.Tensor(%0) {1, 30, 60, 1}\n"
          "%4: f32[50, 30] = neg(%3)\n"
          "%5: f32[50, 60] = cat(%4, %2) {1}\n"
          "%6: f32[50, 60] = mul.Tensor(%5, %1)\n"
          "return %6\n}",
          2, 0);
    check("graph s(%0: f32[7, 3], %1: f32[2, 3]) {\n" /* written and read again */
          "%2: f32[7, 3] = exp(%0)\n"
          "%3: f32[2, 3] = sin(%1)\n"
          "%4: f32[11, 3] = cat(%2, %3, %3) {-2}\n"
          "relu_(%4)\n"
          "%5: f32[11, 3] = mul.Tensor(%4, %4)\n"
          "return %5, %3\n}",
          -1, 0);
    check("graph c(%0: f32[7, 3], %1: f32[2, 3]) {\n" /* of what nobody makes: a call */
          "%2: f32[9, 3] = cat(%0, %1) {0}\n"
          "return %2\n}",
          0, 0);
}

/* What computes element by element of equal parts is done part by part, in one kernel: the whole is
 * never made, but where something else needs it. */
#define TURNED                                                                                     \
    "%3: f32[50, 40 : 80, 1] = slice.Tensor(%0) {1, 0, 40, 1}\n"                                   \
    "%4: f32[50, 40 : 80, 1]@40 = slice.Tensor(%0) {1, 40, 80, 1}\n"                               \
    "%5: f32[50, 40] = neg(%4)\n"                                                                  \
    "%6: f32[50, 80] = cat(%5, %3) {1}\n"                                                          \
    "%7: f32[50, 80] = mul.Tensor(%0, %1)\n"                                                       \
    "%8: f32[50, 80] = mul.Tensor(%6, %2)\n"                                                       \
    "%9: f32[50, 80] = add.Tensor(%7, %8, $0: int) {1}\n"

TEST(what_reads_a_cat_comes_apart) {
    check("graph rotary(%0: f32[50, 80], %1: f32[50, 80], %2: f32[80]) {\n" TURNED "return %9\n}",
          1, 0);
    check("graph between(%0: f32[50, 80], %1: f32[50, 80], %2: f32[80]) {\n" TURNED
          "%10: f32[50, 1] = sum.dim_IntList(%7) {1, 1, 1, -1}\n"
          "return %9, %8, %10\n}",
          2, 0);
    check("graph through(%0: bf16[6, 64, 5], %1: bf16[6, 64, 5], %2: f64[64, 1]) {\n"
          "%3: bf16[6, 128, 5] = cat(%0, %1) {-2}\n"
          "%4: bf16[6, 128, 5] = exp(%3)\n"
          "%5: f32[6, 128, 5] = _to_copy(%4) {0}\n"
          "%6: f32[6, 128, 5] = mul.Tensor(%5, %5)\n"
          "return %6\n}",
          1, 0);
    check("graph three(%0: f32[2, 50], %1: f32[2, 50], %2: f32[1, 50], %3: f32[6, 1]) {\n"
          "%4: f32[6, 50] = cat(%0, %1, %0) {0}\n"
          "%5: f32[6, 50] = mul.Tensor(%4, %2)\n"
          "%6: f32[6, 50] = add.Tensor(%5, %3, $0: int) {1}\n"
          "return %6\n}",
          1, 0);
    check("graph two(%0: f32[9, 40], %1: f32[9, 40]) {\n" /* both in the same parts */
          "%2: f32[9, 80] = cat(%0, %1) {1}\n"
          "%3: f32[9, 80] = cat(%1, %0) {1}\n"
          "%4: f32[9, 80] = sub.Tensor(%2, %3, $0: int) {1}\n"
          "return %4\n}",
          1, 0);
}

TEST(what_reads_a_cat_as_a_whole) {
    check("graph output(%0: f32[50, 80], %1: f32[50, 80], %2: f32[80]) {\n" TURNED
          "return %9, %6\n}",
          -1, 0);
    check("graph view(%0: f32[50, 80], %1: f32[50, 80], %2: f32[80]) {\n" TURNED
          "%10: f32[80, 50 : 1, 80] = t(%6)\n"
          "%11: f32[80, 50] = exp(%10)\n"
          "return %9, %11\n}",
          -1, 0);
    check("graph rows(%0: f32[50, 80], %1: f32[50, 80], %2: f32[80]) {\n" TURNED
          "%10: f32[50] = sum.dim_IntList(%6) {1, 1, 0, -1}\n"
          "return %9, %10\n}",
          -1, 0);
    check("graph changed(%0: f32[50, 80], %1: f32[50, 80], %2: f32[80]) {\n" TURNED "relu_(%5)\n"
          "%10: f32[50, 80] = mul.Tensor(%9, %6)\n"
          "return %10, %5\n}",
          -1, 0);
    check("graph apart(%0: f32[40, 40], %1: f32[40, 40], %2: f32[20, 80]) {\n"
          "%3: f32[40, 80] = cat(%0, %1) {1}\n" /* in different parts */
          "%4: f32[40, 80] = cat(%2, %2) {0}\n"
          "%5: f32[40, 80] = mul.Tensor(%3, %4)\n"
          "%6: f32[40, 80] = exp(%5)\n"
          "return %6\n}",
          -1, -1);
    check("graph again(%0: f32[50, 40], %1: f32[50, 40], %2: f32[50, 80]) {\n"
          "%3: f32[50, 80] = cat(%0, %1) {1}\n" /* its parts in other parts */
          "%4: f32[50, 80] = exp(%3)\n"
          "%5: f32[100, 80] = cat(%4, %2) {0}\n"
          "%6: f32[100, 80] = neg(%5)\n"
          "return %6\n}",
          2, 0);
}

/* What gives a row's value back to its elements stays with them, while the rows are whole. */
TEST(normalisations_are_one_kernel) {
    check("graph rms(%0: f32[50, 300], %1: f32[300]) {\n"
          "%2: f32[50, 300] = square(%0)\n"
          "%3: f32[50, 1] = mean.dim(%2) {1, 1, 1, -1}\n"
          "%4: f32[50, 1] = rsqrt(%3)\n"
          "%5: f32[50, 300] = mul.Tensor(%0, %4)\n"
          "%6: f32[50, 300] = mul.Tensor(%5, %1)\n"
          "return %6\n}",
          1, 0);
    check(
        "graph softmax(%0: bf16[7, 3, 4099]) {\n" /* five stages; three axes; results in between */
        "%1: bf16[7, 3, 1] = amax(%0) {1, 2, 1}\n"
        "%2: bf16[7, 3, 4099] = sub.Tensor(%0, %1, $0: int) {1}\n"
        "%3: bf16[7, 3, 4099] = exp(%2)\n"
        "%4: bf16[7, 3, 1] = sum.dim_IntList(%3) {1, 2, 1, -1}\n"
        "%5: bf16[7, 3, 4099] = div.Tensor(%3, %4)\n"
        "return %1, %3, %5\n}",
        1, 0);
    check("graph layer_norm(%0: f64[20, 5, 60]) {\n" /* over two axes */
          "%1: f64[20, 1, 1] = mean.dim(%0) {2, 1, 2, 1, -1}\n"
          "%2: f64[20, 5, 60] = sub.Tensor(%0, %1, $0: int) {1}\n"
          "%3: f64[20, 5, 60] = square(%2)\n"
          "%4: f64[20, 1, 1] = mean.dim(%3) {2, 1, 2, 1, -1}\n"
          "%5: f64[20, 1, 1] = rsqrt(%4)\n"
          "%6: f64[20, 5, 60] = mul.Tensor(%2, %5)\n"
          "return %6, %5\n}",
          1, 0);
    check("graph every(%0: f32[300, 200]) {\n" /* all of few elements: one row */
          "%1: f32[] = sum(%0) {-1}\n"
          "%2: f32[300, 200] = div.Tensor(%0, %1)\n"
          "return %2\n}",
          1, 0);
}

/* The operators themselves are the same, with what is before and behind them. */
TEST(operators_of_normalisations_are_one_kernel) {
    check("graph masked(%0: f32[4, 33, 65], %1: bool[33, 65]) {\n"
          "%2: f32[4, 33, 65] = masked_fill.Scalar(%0, %1, $0: real)\n"
          "%3: f32[4, 33, 65] = _softmax(%2) {-1, 0}\n"
          "%4: f32[4, 33, 65] = neg(%3)\n"
          "return %3, %4\n}",
          1, 0);
    check("graph wide(%0: bf16[7, 4099]) {\n"
          "%1: f32[7, 4099] = _softmax(%0) {1, 1}\n"
          "%2: bf16[7, 4099] = _softmax(%0) {1, 0}\n"
          "return %1, %2\n}",
          1, 0);
    check("graph norm(%0: f16[9, 5, 60], %1: f32[5, 60], %2: f16[5, 60]) {\n" /* over two axes */
          "%3: f16[9, 5, 60] = native_layer_norm(%0, %1, %2, $0: real) {2, 5, 60}\n"
          "%4: f16[9, 5, 60] = relu(%3)\n"
          "return %3, %4\n}",
          1, 0);
    check("graph plain(%0: f32[100, 1000]) {\n"
          "%1: f32[100, 1000] = native_layer_norm(%0, none, none, $0: real) {1, 1000}\n"
          "return %1\n}",
          1, 0);
}

/* Rows that are no units of work stay with the kernel that reads them once. */
TEST(normalisations_that_stay_calls) {
    check("graph across(%0: f32[40, 50, 60]) {\n"
          "%1: f32[40, 50, 60] = _softmax(%0) {1, 0}\n"
          "return %1\n}",
          0, 0);
    check("graph few(%0: f32[2, 50000]) {\n"
          "%1: f32[2, 50000] = _log_softmax(%0) {1, 0}\n"
          "return %1\n}",
          0, 0);
    check("graph ones(%0: f32[5, 1], %1: f32[1]) {\n"
          "%2: f32[5, 1] = native_layer_norm(%0, %1, none, $0: real) {1, 1}\n"
          "%3: f32[5, 1] = _softmax(%2) {1, 0}\n"
          "return %3\n}",
          0, 0);
    check("graph none(%0: f32[5, 0]) {\n"
          "%1: f32[5, 0] = _softmax(%0) {1, 0}\n"
          "return %1\n}",
          0, 0);
}

/* What a row has once, as the value of each of its elements: stored, and reduced again. */
TEST(row_values_of_elements) {
    check("graph stored(%0: f32[9, 70]) {\n"
          "%1: f32[9, 1] = mean.dim(%0) {1, 1, 1, -1}\n"
          "copy_(%0, %1) {0}\n"
          "%2: f32[9, 1] = sum.dim_IntList(%0) {1, 1, 1, -1}\n"
          "return %2\n}",
          -1, 0);
    check("graph reduced(%0: f64[9, 600]) {\n"
          "%1: f64[9, 1] = sum.dim_IntList(%0) {1, 1, 1, -1}\n"
          "%2: f64[9, 600 : 1, 0] = expand(%1) {2, 9, 600}\n"
          "%3: f64[9, 1] = mean.dim(%2) {1, 1, 1, -1}\n"
          "return %3\n}",
          1, 0);
    check("graph of_a_function(%0: f32[9, 70]) {\n" /* whose strip has one element */
          "%1: f32[9, 1] = mean.dim(%0) {1, 1, 1, -1}\n"
          "%2: f32[9, 1] = exp(%1)\n"
          "copy_(%0, %2) {0}\n"
          "%3: f32[9, 1] = amax(%0) {1, 1, 1}\n"
          "return %3\n}",
          -1, 0);
    check("graph halves(%0: bf16[9, 5, 11]) {\n"
          "%1: bf16[1, 1, 1] = mean.dim(%0) {3, 0, 1, 2, 1, -1}\n"
          "copy_(%0, %1) {0}\n"
          "%2: bf16[1, 1, 1] = mean.dim(%0) {3, 0, 1, 2, 1, -1}\n"
          "return %2\n}",
          -1, 0);
}

/* Many short rows are reduced side by side, by one kernel for each sweep. */
TEST(short_rows_are_no_units) {
    check("graph short(%0: f64[300, 7]) {\n"
          "%1: f64[300, 7] = _log_softmax(%0) {-1, 0}\n"
          "return %1\n}",
          3, 0);
}

/* Kernels of columns, one a sweep; the operators stay calls. */
TEST(rows_across_memory_are_gone_over_once) {
    check("graph n(%0: i32[50, 300 : 1, 50]) {\n"
          "%1: i64[50, 1] = sum.dim_IntList(%0) {1, 1, 1, -1}\n"
          "%2: i64[50, 300] = sub.Tensor(%0, %1, $0: int) {1}\n"
          "return %2\n}",
          2, 0);
    check("graph softmax(%0: f32[200, 300 : 1, 200]) {\n"
          "%1: f32[200, 1] = amax(%0) {1, 1, 1}\n"
          "%2: f32[200, 300] = sub.Tensor(%0, %1, $0: int) {1}\n"
          "%3: f32[200, 300] = exp(%2)\n"
          "%4: f32[200, 1] = sum.dim_IntList(%3) {1, 1, 1, -1}\n"
          "%5: f32[200, 300] = div.Tensor(%3, %4)\n"
          "return %5\n}",
          3, 0);
    check("graph mostly(%0: f32[200, 300], %1: bf16[200, 300 : 1, 200]) {\n"
          "%2: f32[200, 300] = add.Tensor(%0, %1, $0: int) {1}\n"
          "%3: f32[200, 1] = sum.dim_IntList(%2) {1, 1, 1, -1}\n"
          "%4: f32[200, 300] = div.Tensor(%2, %3)\n"
          "return %4\n}",
          1, 0);
    check("graph logs(%0: f64[300, 70 : 1, 300]) {\n"
          "%1: f64[300, 70] = _log_softmax(%0) {-1, 0}\n"
          "return %1\n}",
          0, 0);
}

TEST(what_normalises_in_two_kernels) {
    check("graph columns(%0: f32[300, 50]) {\n"
          "%1: f32[1, 50] = sum.dim_IntList(%0) {1, 0, 1, -1}\n"
          "%2: f32[300, 50] = div.Tensor(%0, %1)\n"
          "return %2\n}",
          2, 0);
    check("graph many(%0: f32[2, 40000]) {\n" /* few long rows: the reduction is split */
          "%1: f32[2, 1] = sum.dim_IntList(%0) {1, 1, 1, -1}\n"
          "%2: f32[2, 40000] = div.Tensor(%0, %1)\n"
          "return %2\n}",
          3, 0);
    check("graph written(%0: f32[50, 300]) {\n" /* in place: rows would be loaded again */
          "%1: f32[50, 1] = sum.dim_IntList(%0) {1, 1, 1, -1}\n"
          "div_.Tensor(%0, %1)\n"
          "return %1\n}",
          -1, 0);
    check("graph other(%0: f32[50, 50]) {\n" /* the sums of rows given back along columns */
          "%1: f32[50] = sum.dim_IntList(%0) {1, 1, 0, -1}\n"
          "%2: f32[50, 50] = div.Tensor(%0, %1)\n"
          "return %2\n}",
          2, 0);
}

TEST(integer_reductions) {
    check("graph i(%0: i32[60, 70], %1: bool[60, 70], %2: u8[60, 70], %3: i64[60, 70]) {\n"
          "%4: i64[60] = sum.dim_IntList(%0) {1, 1, 0, -1}\n"
          "%5: i64[] = sum(%1) {-1}\n"
          "%6: u8[70] = amax(%2) {1, 0, 0}\n"
          "%7: i64[] = min(%3)\n"
          "%8: i64[60] = argmax(%0) {1, 0}\n"
          "%9: bool[60] = amax(%1) {1, 1, 0}\n"
          "return %4, %5, %6, %7, %8, %9\n}",
          -1, 0);
}

/* ---- constants, merging, random numbers ---- */

TEST(constants_are_computed_where_they_are_used) {
    check("graph k(%0: f32[8, 4]) {\n"
          "%1: i64[4] = arange.start_step($0: int, $1: int, $2: int) {-1, 4}\n"
          "%2: f32[8, 4] = zeros() {2, 8, 4, 0}\n"
          "%3: f32[] = full($3: real) {0, 0}\n"
          "%4: f32[4] = ones() {1, 4, 0}\n"
          "%5: f32[8, 4] = add.Tensor(%0, %3, $4: int) {1}\n"
          "%6: f32[8, 4] = mul.Tensor(%5, %4)\n"
          "%7: f32[8, 4] = maximum(%6, %2)\n"
          "%8: f32[8, 4] = mul.Tensor(%7, %1)\n"
          "return %8\n}",
          2, 0);
    check("graph o(%0: f32[8, 4]) {\n"
          "%1: f32[4, 3] = ones() {2, 4, 3, 0}\n"
          "%2: f32[8, 3] = mm(%0, %1)\n"
          "%3: f32[8, 3] = zeros() {2, 8, 3, 0}\n"
          "%4: f32[8, 3] = add.Tensor(%2, %3, $0: int) {1}\n"
          "return %4, %1, %3\n}",
          -1, 1);
}

TEST(merged_outputs_are_separate_memory) {
    check("graph m(%0: f32[9, 4], %1: f32[4, 9]) {\n"
          "%2: f32[9, 4] = sin(%0)\n"
          "%3: f32[9, 4] = sin(%0)\n"
          "%4: f32[9, 9] = mm(%0, %1)\n"
          "%5: f32[9, 9] = mm(%0, %1)\n"
          "%6: f32[9, 4] = exp(%2)\n"
          "%7: f32[9, 4] = exp(%3)\n"
          "return %2, %3, %4, %5, %7, %6\n}",
          -1, 1);
    check("graph w(%0: f32[9, 4]) {\n" /* equal, then one is written */
          "%1: f32[9, 4] = sin(%0)\n"
          "%2: f32[9, 4] = sin(%0)\n"
          "%3: f32[4]@8 = select.int(%2) {0, 2}\n"
          "add_.Scalar(%3, $0: real, $1: int) {1}\n"
          "relu_(%1)\n"
          "return %1, %2\n}",
          -1, 0);
    check("graph s(%0: f32[9]) {\n" /* run-time scalars never merge */
          "%1: f32[9] = mul.Scalar(%0, $0: real)\n"
          "%2: f32[9] = mul.Scalar(%0, $1: real)\n"
          "%3: f32[9] = sub.Tensor(%1, %2, $2: int) {1}\n"
          "return %3\n}",
          1, 0);
}

TEST(random_numbers_and_cat_are_calls) {
    check("graph r(%0: f32[6, 3]) {\n"
          "%1: f32[6, 3] = rand($0: int, $1: int) {2, 6, 3, 0}\n"
          "%2: f32[6, 3] = randn($2: int, $3: int) {2, 6, 3, 0}\n"
          "%3: f32[6, 3] = mul.Tensor(%1, %0)\n"
          "%4: f32[12, 3] = cat(%3, %2) {0}\n"
          "%5: f32[12, 3] = neg(%4)\n"
          "return %5\n}",
          -1, 0);
}

/* ---- writes ---- */

TEST(inputs_written_as_a_whole) {
    check("graph w(%0: f32[70, 30], %1: f32[70, 30]) {\n"
          "%2: f32[70, 30] = sin(%0)\n"
          "add_.Tensor(%0, %1, $0: int) {1}\n"
          "mul_.Scalar(%0, $1: real)\n"
          "%3: f32[70, 30] = sub.Tensor(%0, %2, $2: int) {1}\n"
          "return %3\n}",
          1, 0);
    check("graph t(%0: f32[70, 30 : 1, 70], %1: f32[70, 30]) {\n" /* a transposed input */
          "add_.Tensor(%0, %1, $0: int) {1}\n"
          "%2: f32[30, 70] = t(%0)\n"
          "%3: f32[30, 70] = exp(%2)\n"
          "relu_(%0)\n"
          "return %3\n}",
          -1, 0);
    check("graph z(%0: f32[10], %1: f32[10]) {\n"
          "zero_(%0)\n"
          "copy_(%1, %0) {0}\n"
          "fill_.Scalar(%0, $0: real)\n"
          "return\n}",
          1, 0);
    check("graph s(%0: f32[10], %1: f32[10]) {\n" /* swap */
          "%2: f32[10] = clone(%0)\n"
          "copy_(%0, %1) {0}\n"
          "copy_(%1, %2) {0}\n"
          "return\n}",
          -1, 0);
    check("graph p(%0: f32[40, 40], %1: f32[40, 40]) {\n" /* a product reads it before and after */
          "%2: f32[40, 40] = mm(%0, %1)\n"
          "add_.Tensor(%0, %2, $0: int) {1}\n"
          "%3: f32[40, 40] = mm(%0, %1)\n"
          "mul_.Tensor(%0, %3)\n"
          "return %3\n}",
          -1, 2);
}

/* Of whole strips, where a result may take the place of an operand: where there is but one, whose
 * elements are all loaded before they are stored. */
TEST(results_in_place_of_operands) {
    const char *dtypes[] = {"f32", "f64", "bf16", "i8", "i64"};
    const char *bodies[] = {
        "add_.Tensor(%0, %1, $0: int) {1}\nmul_.Tensor(%1, %0)\nreturn\n}",
        "%2: T[4096] = mul.Tensor(%0, %0)\n%3: T[4096] = mul.Tensor(%1, %1)\n" /* a swap */
        "copy_(%0, %3) {0}\ncopy_(%1, %2) {0}\nreturn\n}",
        "%2: T[4096] = clone(%0)\ncopy_(%0, %1) {0}\ncopy_(%1, %2) {0}\n"
        "%3: T[4096] = neg(%0)\nreturn %3\n}",
        "%2: T[4096] = sub.Tensor(%0, %1, $0: int) {1}\nrelu_(%0)\nreturn %2\n}",
        "%2: T[4096] = sub.Tensor(%0, %1, $0: int) {1}\nmul_.Tensor(%0, %2)\nreturn\n}",
    };
    for (int d = 0; d < COUNT_OF(dtypes); d++)
        for (int i = 0; i < COUNT_OF(bodies); i++) {
            char text[512];
            bounded_text t = {text, sizeof text, 0};
            etch__text_add(&t, "graph p(%%0: %s[4096], %%1: %s[4096]) {\n", dtypes[d], dtypes[d]);
            for (const char *c = bodies[i]; *c; c++)
                etch__text_add(&t, *c == 'T' && c[1] == '[' ? "%s" : "%.1s",
                               *c == 'T' && c[1] == '[' ? dtypes[d] : c);
            check(text, -1, 0);
        }
}

/* On the CPU: a gradient of weights is computed in the kernel that adds it to them. */
TEST(products_join_updates) {
    const char *inputs = "(%0: f32[130, 200], %1: f32[130, 200], %2: f32[200, 200], %3: f32[200])";
    const char *steps[] = {
        "%6: f32[200, 200] = mm(%5, %0)\nadd_.Tensor(%2, %6, $2: int) {1}\n",
        "%6: f32[200, 200] = mm(%5, %0)\n%7: f32[200, 200] = mul.Tensor(%6, %2)\n"
        "copy_(%2, %7) {0}\n",
        "%6: f32[200, 200] = mm(%2, %2)\nadd_.Tensor(%2, %6, $2: int) {1}\n", /* reads it */
        "%6: f32[200, 200] = mm(%5, %0)\nzero_(%0)\nadd_.Tensor(%2, %6, $2: int) {1}\n",
    };
    for (int first = 0; first < 2; first++) /* whether an input is written before */
        for (int i = 0; i < COUNT_OF(steps); i++) {
            char text[1024];
            bounded_text t = {text, sizeof text, 0};
            etch__text_add(&t, "graph u%s {\n%%4: f32[200] = sum.dim_IntList(%%1) {1, 0, 0, -1}\n",
                           inputs);
            if (first) etch__text_add(&t, "add_.Tensor(%%3, %%4, $0: int) {1}\n");
            etch__text_add(&t, "%%5: f32[200, 130 : 1, 200] = t(%%1)\n%sreturn\n}", steps[i]);
            check(text, -1, -1);
        }
}

TEST(inputs_written_through_views) {
    check("graph v(%0: f32[6, 8], %1: f32[8]) {\n"
          "%2: f32[8]@16 = select.int(%0) {0, 2}\n"
          "%3: f32[6, 8] = exp(%0)\n"
          "add_.Tensor(%2, %1, $0: int) {1}\n"
          "%4: f32[6, 8] = sub.Tensor(%0, %3, $1: int) {1}\n"
          "%5: f32[6 : 8]@3 = select.int(%0) {1, 3}\n"
          "zero_(%5)\n"
          "%6: f32[8] = sum.dim_IntList(%0) {1, 0, 0, -1}\n"
          "relu_(%0)\n"
          "return %4, %6\n}",
          -1, 0);
    check("graph o(%0: f32[40]) {\n" /* overlapping shift */
          "%1: f32[39]@1 = slice.Tensor(%0) {0, 1, 40, 1}\n"
          "%2: f32[39] = slice.Tensor(%0) {0, 0, 39, 1}\n"
          "%3: f32[39] = clone(%2)\n"
          "add_.Tensor(%1, %3, $0: int) {1}\n"
          "%4: f32[40] = neg(%0)\n"
          "return %4\n}",
          -1, 0);
    check("graph h(%0: f32[6, 6]) {\n" /* two halves, then the whole */
          "%1: f32[3, 6] = slice.Tensor(%0) {0, 0, 3, 1}\n"
          "%2: f32[3, 6]@18 = slice.Tensor(%0) {0, 3, 6, 1}\n"
          "mul_.Tensor(%1, %2)\n"
          "mul_.Tensor(%2, %1)\n"
          "%3: f32[6, 6] = mm(%0, %0)\n"
          "%4: f32[6, 6 : 1, 6] = t(%0)\n"
          "add_.Tensor(%4, %3, $0: int) {1}\n"
          "return %3\n}",
          -1, 1);
}

TEST(inputs_that_share_a_storage) {
    check("graph a(%0: f32[30], %1: f32[20]@5 over %0, %2: f32[30]) {\n"
          "%3: f32[30] = sin(%0)\n"
          "add_.Scalar(%1, $0: real, $1: int) {1}\n"
          "%4: f32[30] = sub.Tensor(%0, %3, $2: int) {1}\n"
          "mul_.Tensor(%0, %2)\n"
          "%5: f32[20] = exp(%1)\n"
          "return %4, %5\n}",
          -1, 0);
}

TEST(intermediates_written) {
    check("graph f(%0: f32[20, 20], %1: f32[20, 20]) {\n" /* as a whole: one kernel after the
                                                             product */
          "%2: f32[20, 20] = mm(%0, %1)\n"
          "add_.Tensor(%2, %0, $0: int) {1}\n"
          "relu_(%2)\n"
          "return %2\n}",
          1, 1);
    check("graph p(%0: f32[20, 20]) {\n" /* parts of zeros */
          "%1: f32[20, 20] = zeros() {2, 20, 20, 0}\n"
          "%2: f32[10, 20] = slice.Tensor(%1) {0, 0, 10, 1}\n"
          "%3: f32[10, 20]@200 = slice.Tensor(%0) {0, 10, 20, 1}\n"
          "copy_(%2, %3) {0}\n"
          "%4: f32[20]@19 = select.int(%1) {0, 0}\n"
          "%5: f32[20, 20] = add.Tensor(%1, %0, $0: int) {1}\n"
          "mul_.Scalar(%2, $1: real)\n"
          "return %1, %5\n}",
          -1, 0);
    check("graph x(%0: f32[20, 20]) {\n" /* written, read, written, read */
          "%1: f32[20, 20] = exp(%0)\n"
          "%2: f32[20 : 20] = select.int(%1) {1, 0}\n"
          "%3: f32[] = sum(%1) {-1}\n"
          "mul_.Scalar(%2, $0: real)\n"
          "%4: f32[] = sum(%1) {-1}\n"
          "add_.Tensor(%2, %3, $1: int) {1}\n"
          "%5: f32[20, 20] = neg(%1)\n"
          "%6: f32[] = sub.Tensor(%4, %3, $2: int) {1}\n"
          "return %5, %6\n}",
          -1, 0);
    check("graph i(%0: i32[20], %1: f32[20]) {\n" /* converted to the dtype of what is written */
          "%2: i32[20] = clone(%0)\n"
          "copy_(%2, %1) {0}\n"
          "mul_.Tensor(%2, %0)\n"
          "return %2\n}",
          1, 0);
}

/* A plan that can no longer be evaluated in another way tells by itself what the user called. */
TEST(a_part_of_a_composite_has_its_name) {
    graph *g = etch__graph_parse("graph e(%0: f32[4, 3], %1: i64[2]) {\n"
                                 "%2: f32[2, 3] = index_select(%0, %1) {0}\n"
                                 "return %2\n}");
    g->nodes[0].part_of = OP_EMBEDDING + 1;
    for (int b = 0; b < 2; b++) {
        plan *p = compile_with(b ? "native" : "eager", g);
        test_io t = make_io(g, 5, 0);
        memcpy(t.inputs[1]->storage->data, ((int64_t[]){1, 9}), 16);
        etch_clear_error();
        assert_int_equal(p->run(p, &t.io), ETCH_ERR_INDEX);
        assert_non_null(
            strstr(etch_last_error(), "embedding: expected indices from 0 to 3, got 9"));
        free_io(&t);
        etch__plan_release(p);
    }
    etch__graph_free(g);
    etch_clear_error();
}

TEST(failed_allocations_change_nothing) {
    graph *g = etch__graph_parse("graph w(%0: f32[40, 40], %1: f32[40, 40]) {\n"
                                 "%2: f32[40, 40] = sin(%0)\n"
                                 "add_.Tensor(%0, %1, $0: int) {1}\n"
                                 "%3: f32[40] = sum.dim_IntList(%0) {1, 0, 0, -1}\n"
                                 "%4: f32[40, 40] = mm(%0, %2)\n"
                                 "return %3, %4\n}");
    plan *eager = compile_with("eager", g);
    backend_options options = {0};
    for (int n = 0;; n++) { /* compiling */
        plan *p = NULL;
        etch__fail_allocation(n);
        etch_status status = etch__backend_find("native")->compile(g, &options, &p);
        etch__fail_allocation(-1);
        if (status == ETCH_OK) {
            run_and_compare(g, eager, p, 5, 0);
            bool native = p->nkernels > 0;
            etch__plan_release(p);
            if (native) break;
        } else {
            assert_int_equal(status, ETCH_ERR_OUT_OF_MEMORY);
        }
        assert_true(n < 10000);
    }
    for (int n = 0; n < 3; n++) { /* the block and the outputs of a first run */
        plan *p = compile_with("native", g);
        test_io a = make_io(g, 9, 0), before = make_io(g, 9, 0);
        etch__fail_allocation(n);
        etch_status status = p->run(p, &a.io);
        etch__fail_allocation(-1);
        assert_int_equal(status, ETCH_ERR_OUT_OF_MEMORY);
        for (int k = 0; k < g->noutputs; k++) assert_null(a.outputs[k]);
        assert_int_equal(
            first_difference(ETCH_F32, a.inputs[0]->storage, before.inputs[0]->storage), -1);
        run_and_compare(g, eager, p, 9, 0);
        free_io(&a);
        free_io(&before);
        etch__plan_release(p);
    }
    etch__plan_release(eager);
    etch__graph_free(g);
}

TEST(a_steady_run_allocates_its_outputs_only) {
    graph *g = etch__graph_parse("graph s(%0: f32[40, 40]) {\n"
                                 "%1: f32[40, 40] = sin(%0)\n"
                                 "%2: f32[40] = sum.dim_IntList(%1) {1, 0, 0, -1}\n"
                                 "%3: f32[40, 40] = exp(%2)\n"
                                 "return %2\n}");
    plan *p = compile_with("native", g);
    for (int i = 0; i < 3; i++) {
        test_io a = make_io(g, 9, 0);
        etch__fail_allocation(1000000);
        assert_int_equal(p->run(p, &a.io), ETCH_OK);
        int64_t asked = etch__fail_allocation(-1);
        if (i) assert_int_equal(asked, 1);
        free_io(&a);
    }
    etch__plan_release(p);
    etch__graph_free(g);
}

enum { THREADS = 4, RUNS = 40 };

typedef struct thread_job {
    const graph *g;
    plan *p;
    test_io io, expected;
    bool ok;
} thread_job;

static void *run_many(void *ctx) {
    thread_job *job = ctx;
    job->ok = true;
    for (int i = 0; i < RUNS && job->ok; i++) {
        for (int k = 0; k < job->g->noutputs; k++) {
            etch__storage_release(job->io.outputs[k]);
            job->io.outputs[k] = NULL;
        }
        job->ok = job->p->run(job->p, &job->io.io) == ETCH_OK &&
                  compare_io(&job->io, &job->expected) == NULL;
    }
    return NULL;
}

TEST(one_plan_runs_on_several_threads) {
    graph *g = etch__graph_parse("graph s(%0: f32[90, 70], %1: f32[70, 90]) {\n"
                                 "%2: f32[90, 70] = mul.Scalar(%0, $0: real)\n"
                                 "%3: f32[90, 90] = mm(%2, %1)\n"
                                 "%4: f32[90, 90] = exp(%3)\n"
                                 "%5: f32[90] = amax(%4) {1, 1, 0}\n"
                                 "return %4, %5\n}");
    plan *eager = compile_with("eager", g), *native = compile_with("native", g);
    thread_job job[THREADS];
    pthread_t thread[THREADS];
    for (int t = 0; t < THREADS; t++) {
        job[t] = (thread_job){g, native, make_io(g, 100 + t, 0), make_io(g, 100 + t, 0), false};
        job[t].io.scalars[0].d = job[t].expected.scalars[0].d = t;
        assert_int_equal(eager->run(eager, &job[t].expected.io), ETCH_OK);
    }
    for (int t = 0; t < THREADS; t++)
        assert_int_equal(pthread_create(&thread[t], NULL, run_many, &job[t]), 0);
    for (int t = 0; t < THREADS; t++) pthread_join(thread[t], NULL);
    for (int t = 0; t < THREADS; t++) {
        assert_true(job[t].ok);
        free_io(&job[t].io);
        free_io(&job[t].expected);
    }
    etch__plan_release(eager);
    etch__plan_release(native);
    etch__graph_free(g);
}

TEST(long_chains_are_cut) {
    graph *g = etch__graph_new("long/0");
    tensor_meta m = {.dtype = ETCH_F32, .ndim = 1, .size = {100}, .stride = {1}};
    for (int i = 0; i < 40; i++) etch__graph_add_input(g, &m);
    op_call sine = {.op = OP_SIN, .nin = 1}, mul = {.op = OP_MUL_TENSOR, .nin = 2};
    int32_t last = 0;
    for (int i = 0; i < 120; i++) {
        int32_t in[2] = {last, i % 40};
        last = g->nvalues;
        etch__graph_add_node(g, i % 3 ? &mul : &sine, in, &m);
        if (i % 7 == 0) etch__graph_add_output(g, last);
    }
    etch__graph_add_output(g, last);
    check_graph(g, -1, 0);
    etch__graph_free(g);
}

/* Rounds of two chains, each of which reads the other: neither runs ahead into kernels of its own,
 * and of what a kernel computes only what is read behind it takes its room. */
static void check_rounds(int rounds, int kernels) {
    graph *g = etch__graph_new("rounds/0");
    tensor_meta m = {.dtype = ETCH_F32, .ndim = 1, .size = {300}, .stride = {1}};
    for (int i = 0; i < 2; i++) etch__graph_add_input(g, &m);
    op_call mul = {.op = OP_MUL_TENSOR, .nin = 2}, most = {.op = OP_MAXIMUM, .nin = 2};
    int32_t re = 0, im = 1;
    for (int i = 0; i < rounds; i++) {
        int32_t first = g->nvalues, rr[2] = {re, re}, ii[2] = {im, im}, product[2] = {re, im};
        int32_t next_re[2] = {first, first + 1}, next_im[2] = {first + 2, 1};
        etch__graph_add_node(g, &mul, rr, &m);
        etch__graph_add_node(g, &mul, ii, &m);
        etch__graph_add_node(g, &mul, product, &m);
        etch__graph_add_node(g, &most, next_re, &m);
        etch__graph_add_node(g, &most, next_im, &m);
        re = first + 3, im = first + 4;
    }
    etch__graph_add_output(g, re);
    etch__graph_add_output(g, im);
    check_graph(g, kernels, 0);
    etch__graph_free(g);
}

TEST(chains_that_meet_share_kernels) {
    check_rounds(20, 1);
    check_rounds(40, 2);
}

/* What a child process with a broken helper does: exit status 0 when all is as it should be. */
static int run_with_broken_helper(void) {
    graph *g = etch__graph_parse("graph b(%0: f32[50]) {\n %1: f32[50] = sin(%0)\n return %1\n}");
    plan *eager = compile_with("eager", g), *native = compile_with("native", g);
    test_io a = make_io(g, 1, 0), b = make_io(g, 1, 0);
    bool ok = etch_counters().compile_failures == 1 && native->nkernels == 0 &&
              etch__reason_counts[REASON_EAGER_COMPILE] == 1 &&
              eager->run(eager, &a.io) == ETCH_OK && native->run(native, &b.io) == ETCH_OK &&
              !compare_io(&a, &b);
    free_io(&a);
    free_io(&b);
    etch__plan_release(eager);
    etch__plan_release(native);
    etch__graph_free(g);
    return ok ? 0 : 1;
}

TEST(a_broken_helper_means_an_eager_plan) {
    char cache[] = "/tmp/etch-native-XXXXXX", command[PATH_MAX + 256], self[PATH_MAX] = "";
    assert_non_null(mkdtemp(cache));
    assert_true(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    snprintf(command, sizeof command,
             "ETCH_CACHE_DIR=%s/c ETCH_JIT=/proc/none/etch-jit '%s' broken 2>%s/log", cache, self,
             cache);
    assert_int_equal(system(command), 0);
    snprintf(command, sizeof command, "test $(grep -c 'warning: b: ' %s/log) = 1", cache);
    assert_int_equal(system(command), 0);
    snprintf(command, sizeof command, "rm -rf %s", cache);
    assert_int_equal(system(command), 0);
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "broken")) return run_with_broken_helper();
    return run_suite(argc, argv);
}
