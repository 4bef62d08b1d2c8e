/* etch_bench sweep [--threads N] [--floor F] [--list] [--every K] [--processor-time]
 * [--serve FOLDER] [CASE...]: operators x dtypes x layouts, each case eager and compiled. It is how
 * a kernel that is slower compiled than eager is found, and nothing else; bench/sweep.py sets
 * PyTorch beside it.
 *
 * A case is OPERATOR/DTYPE/LAYOUT and works on some 2^18 elements. Its two ways take turns in short
 * rounds, the fastest of each counts; a case under the floor is measured again, twice as long,
 * before it is called one. Cases are chosen by substrings of their names, or all of a name with '='
 * before it; with --every each K-th of them is measured. --processor-time measures what the process
 * worked, which other programs' work lengthens less. A line a case, then a summary on standard
 * error: how many cases are under the floor (0.9), the geometric mean, and the worst cases. With
 * --floor the status says whether one was under it.
 *
 * With --serve operands and result of each case are written to FOLDER/case.safetensors, then
 * samples are asked for by number, as of rows (measure.c):
 *
 *   > @case,add,f32,stepped,1024,2,0    < 1       a sample of the compiled one, 0: of the eager one
 *   > @ready                            > @us,46.1
 *                                       < next    the next case
 * A case has the columns of the matrix that x is cut out of, the step, and whether it is turned. */
#include "bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ELEMENTS = 1 << 18, ROUNDS = 12, WORST = 30, MAX_CASES = 8192 };
static const double round_us = 600;

/* ---- operators ---- */

#define BODY(name, expression)                                                                     \
    static etch_tensor *body_##name(etch_tensor *x, etch_tensor *y) {                              \
        (void)x, (void)y;                                                                          \
        return expression;                                                                         \
    }
#define D(...) ETCH_DIMS(__VA_ARGS__)
#define X2(t, dim) (etch_tensor *const[]){t, t}, 2, dim

static etch_tensor *rounds(etch_tensor *x, etch_tensor *y, int n) {
    for (int i = 0; i < n; i++) {
        etch_tensor *a = etch_mul(x, y), *b = etch_add_scalar(a, 0.25);
        etch_tensor *c = etch_maximum(b, x), *d = etch_sub(c, a);
        etch_tensor *e = etch_mul_scalar(d, 0.5), *f = etch_abs(e);
        etch_tensor *g = etch_minimum(f, y), *h = etch_add(g, d);
        etch_tensor *k = etch_mul(h, b), *l = etch_clamp(k, -4.0, 4.0);
        x = etch_add(l, etch_neg(c));
    }
    return x;
}

static etch_tensor *written_softmax(etch_tensor *x) {
    etch_tensor *top = etch_amax(x, D(-1), true), *e = etch_exp(etch_sub(x, top));
    return etch_div(e, etch_sum_dim(e, D(-1), true));
}

static etch_tensor *written_norm(etch_tensor *x) {
    etch_tensor *c = etch_sub(x, etch_mean_dim(x, D(-1), true));
    etch_tensor *v = etch_mean_dim(etch_square(c), D(-1), true);
    return etch_mul(c, etch_rsqrt(etch_add_scalar(v, 1e-5)));
}

static etch_tensor *into_view(etch_tensor *x, etch_tensor *y) {
    etch_tensor *fresh = etch_clone(x);
    etch_copy_(etch_slice(fresh, 0, 8, 264, 1), etch_slice(y, 0, 0, 256, 1));
    return fresh;
}

static etch_tensor *padded(etch_tensor *x) {
    etch_tensor *fresh = etch_zeros(etch_dtype_of(x), D(514, 514));
    etch_copy_(etch_slice(etch_slice(fresh, 0, 1, 513, 1), 1, 1, 513, 1), x);
    return fresh;
}

enum { FLT = 1 << ETCH_F32 | 1 << ETCH_F64 | 1 << ETCH_BF16 | 1 << ETCH_F16 };
enum { INTS = 1 << ETCH_I8 | 1 << ETCH_I16 | 1 << ETCH_I32 | 1 << ETCH_I64 | 1 << ETCH_U8 };
enum { NUM = FLT | INTS, BOOLS = 1 << ETCH_BOOL, ALL = NUM | BOOLS };
enum { FEW = 1 << ETCH_F32 | 1 << ETCH_BF16 | 1 << ETCH_I8 | 1 << ETCH_I64 };
enum { SOME = 1 << ETCH_F32 | 1 << ETCH_F64 | 1 << ETCH_BF16 | 1 << ETCH_I32 | 1 << ETCH_U8 };
enum { TWO = 1 << ETCH_F32 | 1 << ETCH_BF16, ONE = 1 << ETCH_F32 };

/* Layouts of a row: which of the table below, by their kind. */
enum {
    MAPS1 = 1,
    MAPS2 = 2,
    ROWS = 4,
    COLUMNS = 8,
    PLAIN = 16,
    SQUARE = 32,
    LONG = 64,
    INDEX = 128
};

/* OPERATOR(name, dtypes, layouts, expression of x and y) */
#define OPERATORS(O)                                                                               \
    O(clone, ALL, MAPS1, etch_clone(x))                                                            \
    O(neg, NUM, MAPS1, etch_neg(x))                                                                \
    O(abs, NUM, MAPS1, etch_abs(x))                                                                \
    O(relu, NUM, PLAIN, etch_relu(x))                                                              \
    O(square, NUM, PLAIN, etch_square(x))                                                          \
    O(sign, NUM, PLAIN, etch_sign(x))                                                              \
    O(isfinite, ALL, MAPS1, etch_isfinite(x))                                                      \
    O(isnan, FLT, PLAIN, etch_isnan(x))                                                            \
    O(logical_not, ALL, PLAIN, etch_logical_not(x))                                                \
    O(bitwise_not, INTS, PLAIN, etch_bitwise_not(x))                                               \
    O(floor, FLT, MAPS1, etch_floor(x))                                                            \
    O(ceil, FLT, PLAIN, etch_ceil(x))                                                              \
    O(trunc, FLT, PLAIN, etch_trunc(x))                                                            \
    O(round, FLT, MAPS1, etch_round(x))                                                            \
    O(frac, FLT, MAPS1, etch_frac(x))                                                              \
    O(sqrt, FLT, PLAIN, etch_sqrt(x))                                                              \
    O(rsqrt, FLT, PLAIN, etch_rsqrt(x))                                                            \
    O(reciprocal, FLT, PLAIN, etch_reciprocal(x))                                                  \
    O(exp, FLT, MAPS1, etch_exp(x))                                                                \
    O(log, FLT, PLAIN, etch_log(x))                                                                \
    O(sin, FLT, PLAIN, etch_sin(x))                                                                \
    O(tanh, FLT, PLAIN, etch_tanh(x))                                                              \
    O(sigmoid, FLT, PLAIN, etch_sigmoid(x))                                                        \
    O(erf, FLT, PLAIN, etch_erf(x))                                                                \
    O(silu, FLT, PLAIN, etch_silu(x))                                                              \
    O(gelu, FLT, PLAIN, etch_gelu(x))                                                              \
    O(add_scalar, NUM, MAPS1, etch_add_scalar(x, 2))                                               \
    O(clamp, NUM, PLAIN, etch_clamp(x, 2, 5))                                                      \
    O(pow_scalar, FLT, PLAIN, etch_pow_scalar(x, 3))                                               \
    O(add, ALL, MAPS2, etch_add(x, y))                                                             \
    O(sub, NUM, PLAIN, etch_sub(x, y))                                                             \
    O(mul, NUM, MAPS2, etch_mul(x, y))                                                             \
    O(div, NUM, MAPS2, etch_div(x, y))                                                             \
    O(maximum, ALL, PLAIN, etch_maximum(x, y))                                                     \
    O(fmax, FLT, PLAIN, etch_fmax(x, y))                                                           \
    O(copysign, FLT, PLAIN, etch_copysign(x, y))                                                   \
    O(fmod, FLT, PLAIN, etch_fmod(x, y))                                                           \
    O(remainder, NUM, PLAIN, etch_remainder(x, y))                                                 \
    O(floor_divide, NUM, PLAIN, etch_floor_divide(x, y))                                           \
    O(lt, ALL, MAPS2, etch_lt(x, y))                                                               \
    O(eq, ALL, PLAIN, etch_eq(x, y))                                                               \
    O(logical_and, ALL, PLAIN, etch_logical_and(x, y))                                             \
    O(bitwise_and, INTS, PLAIN, etch_bitwise_and(x, y))                                            \
    O(left_shift, INTS, PLAIN, etch_left_shift_scalar(x, 2))                                       \
    O(where, ALL, PLAIN, etch_where(etch_lt(x, y), x, y))                                          \
    O(lerp, FLT, PLAIN, etch_lerp(x, y, 0.25))                                                     \
    O(addcmul, FLT, PLAIN, etch_addcmul(x, x, y, 0.5))                                             \
    O(fused3, FLT, MAPS2, etch_sub(etch_mul(etch_add(x, y), x), y))                                \
    O(to_f32, ALL, MAPS1, etch_to(x, ETCH_F32))                                                    \
    O(to_f64, ALL, MAPS1, etch_to(x, ETCH_F64))                                                    \
    O(to_bf16, ALL, MAPS1, etch_to(x, ETCH_BF16))                                                  \
    O(to_f16, ALL, MAPS1, etch_to(x, ETCH_F16))                                                    \
    O(to_i8, ALL, MAPS1, etch_to(x, ETCH_I8))                                                      \
    O(to_i16, ALL, MAPS1, etch_to(x, ETCH_I16))                                                    \
    O(to_i32, ALL, MAPS1, etch_to(x, ETCH_I32))                                                    \
    O(to_i64, ALL, MAPS1, etch_to(x, ETCH_I64))                                                    \
    O(to_u8, ALL, MAPS1, etch_to(x, ETCH_U8))                                                      \
    O(to_bool, ALL, MAPS1, etch_to(x, ETCH_BOOL))                                                  \
    O(sum_last, ALL, ROWS, etch_sum_dim(x, D(-1), false))                                          \
    O(amax_last, ALL, ROWS, etch_amax(x, D(-1), false))                                            \
    O(mean_last, FLT, ROWS, etch_mean_dim(x, D(-1), false))                                        \
    O(prod_last, TWO, ROWS, etch_prod_dim(x, -1, false))                                           \
    O(argmax_last, SOME, ROWS, etch_argmax_dim(x, -1, false))                                      \
    O(any_last, SOME | BOOLS, ROWS, etch_any_dim(x, D(-1), false))                                 \
    O(var_last, FLT, ROWS, etch_var_dim(x, D(-1), 1, false))                                       \
    O(logsumexp_last, TWO, ROWS, etch_logsumexp(x, D(-1), false))                                  \
    O(softmax_last, TWO, ROWS, etch_softmax(x, -1))                                                \
    O(log_softmax_last, TWO, ROWS, etch_log_softmax(x, -1))                                        \
    O(layer_norm_last, TWO, ROWS,                                                                  \
      etch_layer_norm(x, D(etch_size(x, -1)), ETCH_NONE, ETCH_NONE, 1e-5))                         \
    O(written_softmax, TWO, ROWS, written_softmax(x))                                              \
    O(written_norm, TWO, ROWS, written_norm(x))                                                    \
    O(dot_last, TWO, ROWS, etch_sum_dim(etch_mul(x, x), D(-1), false))                             \
    O(cumsum_last, SOME, ROWS, etch_cumsum(x, -1))                                                 \
    O(sum_first, ALL, COLUMNS, etch_sum_dim(x, D(0), false))                                       \
    O(amax_first, ALL, COLUMNS, etch_amax(x, D(0), false))                                         \
    O(mean_first, FLT, COLUMNS, etch_mean_dim(x, D(0), false))                                     \
    O(argmax_first, SOME, COLUMNS, etch_argmax_dim(x, 0, false))                                   \
    O(var_first, TWO, COLUMNS, etch_var_dim(x, D(0), 1, false))                                    \
    O(softmax_first, TWO, COLUMNS, etch_softmax(x, 0))                                             \
    O(cumsum_first, SOME, COLUMNS, etch_cumsum(x, 0))                                              \
    O(sum_all, ALL, MAPS1, etch_sum(x))                                                            \
    O(max_all, NUM, MAPS1, etch_max(x))                                                            \
    O(count_nonzero, SOME, PLAIN, etch_count_nonzero(x))                                           \
    O(argmax_all, SOME, PLAIN, etch_argmax(x))                                                     \
    O(cat0, FEW, SQUARE, etch_cat(X2(x, 0)))                                                       \
    O(cat1, FEW, SQUARE, etch_cat(X2(x, 1)))                                                       \
    O(stack0, FEW, SQUARE, etch_stack(X2(x, 0)))                                                   \
    O(stack2, FEW, SQUARE, etch_stack(X2(x, 2)))                                                   \
    O(roll1, FEW, SQUARE, etch_roll(x, D(3), D(1)))                                                \
    O(roll0, FEW, SQUARE, etch_roll(x, D(3), D(0)))                                                \
    O(flip1, FEW, SQUARE, etch_flip(x, D(1)))                                                      \
    O(repeat, FEW, SQUARE, etch_repeat(x, D(1, 2)))                                                \
    O(tril, FEW, SQUARE, etch_tril(x, 0))                                                          \
    O(slice_scatter, FEW, SQUARE,                                                                  \
      etch_slice_scatter(x, etch_slice(y, 0, 0, 256, 1), 0, 8, 264, 1))                            \
    O(into_view, FEW, SQUARE, into_view(x, y))                                                     \
    O(padded, FEW, SQUARE, padded(x))                                                              \
    O(cat_add, TWO, SQUARE, etch_add_scalar(etch_cat(X2(etch_mul(x, y), 1)), 1.0))                 \
    O(roll_add, TWO, SQUARE, etch_add(etch_roll(x, D(1), D(1)), y))                                \
    O(one_hot, ONE, INDEX, etch_one_hot(y, 16))                                                    \
    O(index_select, FEW, INDEX, etch_index_select(x, 0, etch_select(y, 0, 0)))                     \
    O(gather, FEW, INDEX, etch_gather(x, 1, y))                                                    \
    O(rounds2, ONE, LONG, rounds(x, y, 2))                                                         \
    O(rounds6, ONE, LONG, rounds(x, y, 6))                                                         \
    O(rounds20, ONE, LONG, rounds(x, y, 20))

#define DEFINE(name, dtypes, layouts, expression) BODY(name, expression)
OPERATORS(DEFINE)

typedef struct operator_row {
    const char *name;
    etch_fn2 body;
    int dtypes, layouts;
} operator_row;
static const operator_row operators[] = {
#define ROW(name, dtypes, layouts, expression) {#name, body_##name, dtypes, layouts},
    OPERATORS(ROW)};

/* ---- layouts ---- */

/* x is [rows, cols] of a [rows, space] one in which every step-th column counts, or the transpose
 * of such a one; y is [y_rows, y_cols], contiguous. */
typedef struct layout_row {
    const char *name;
    int kinds;
    int64_t rows, cols, space, step;
    bool turned;
    int64_t y_rows, y_cols;
} layout_row;

#define CONTIGUOUS(name, kinds, rows, cols)                                                        \
    { name, kinds, rows, cols, cols, 1, false, rows, cols }
static const layout_row layouts[] = {
    CONTIGUOUS("flat", MAPS1 | MAPS2 | PLAIN | SQUARE | LONG | INDEX | COLUMNS, 512, 512),
    {"turned", MAPS1 | MAPS2 | SQUARE | COLUMNS | ROWS, 512, 512, 512, 1, true, 512, 512},
    {"stepped", MAPS1 | MAPS2, 512, 512, 1024, 2, false, 512, 512},
    {"narrow8", MAPS1, 32768, 8, 16, 1, false, 32768, 8},
    {"narrow3", MAPS1, 87381, 3, 4, 1, false, 87381, 3},
    {"by_row", MAPS2, 512, 512, 512, 1, false, 512, 1},
    {"by_column", MAPS2, 512, 512, 512, 1, false, 1, 512},
    {"by_row2", MAPS2, 131072, 2, 2, 1, false, 131072, 1},
    {"by_row8", MAPS2, 32768, 8, 8, 1, false, 32768, 1},
    {"by_column3", MAPS2, 87381, 3, 3, 1, false, 1, 3},
    {"by_column20", MAPS2, 13107, 20, 20, 1, false, 1, 20},
    CONTIGUOUS("n2", ROWS | COLUMNS, 131072, 2),
    CONTIGUOUS("n3", ROWS | COLUMNS, 87381, 3),
    CONTIGUOUS("n4", ROWS, 65536, 4),
    CONTIGUOUS("n8", ROWS | COLUMNS, 32768, 8),
    CONTIGUOUS("n13", ROWS, 20165, 13),
    CONTIGUOUS("n16", ROWS, 16384, 16),
    CONTIGUOUS("n20", ROWS | COLUMNS, 13107, 20),
    CONTIGUOUS("n32", ROWS | COLUMNS, 8192, 32),
    CONTIGUOUS("n64", ROWS, 4096, 64),
    CONTIGUOUS("n100", ROWS, 2621, 100),
    CONTIGUOUS("n256", ROWS, 1024, 256),
    CONTIGUOUS("n1000", ROWS, 262, 1000),
    CONTIGUOUS("n8192", ROWS | COLUMNS, 32, 8192),
    {"stepped_n32", ROWS | COLUMNS, 8192, 32, 64, 2, false, 8192, 32},
};

/* Numbers that every operator takes: none is 0 or negative. */
static etch_tensor *numbers(etch_dtype dtype, int64_t rows, int64_t cols) {
    etch_tensor *r = etch_rand(ETCH_F32, D(rows, cols));
    if (dtype == ETCH_BOOL) return etch_lt_scalar(r, 0.5);
    return etch_to(etch_add_scalar(etch_mul_scalar(r, 6.0), 1.0), dtype);
}

static etch_tensor *first_operand(const layout_row *l, etch_dtype dtype) {
    if (l->turned) return etch_t(numbers(dtype, l->cols, l->rows));
    return etch_slice(numbers(dtype, l->rows, l->space), 1, 0, l->cols * l->step, l->step);
}

/* ---- a case ---- */

typedef struct sweep_options {
    double floor;
    bool strict, list;
    int threads, every;
    const char *folder; /* NULL: not served */
} sweep_options;

typedef struct sweep_case {
    char name[64];
    const operator_row *op;
    const layout_row *layout;
    etch_dtype dtype;
    double eager_us, compiled_us;
} sweep_case;

static double once(void (*run)(void *, int64_t), bench_job *j, int64_t calls) {
    double start = bench_now_us();
    run(j, calls);
    return (bench_now_us() - start) / (double)calls;
}

static int64_t calls_of(void (*run)(void *, int64_t), bench_job *j) {
    once(run, j, 1);
    double us = once(run, j, 2);
    int64_t calls = (int64_t)(round_us / (us > 0.1 ? us : 0.1));
    return calls < 1 ? 1 : calls;
}

static void take_turns(sweep_case *c, bench_job *j, int rounds_each) {
    int64_t eager = calls_of(bench_run_eager, j), compiled = calls_of(bench_run_compiled, j);
    for (int r = 0; r < rounds_each; r++) {
        double e = once(bench_run_eager, j, eager), k = once(bench_run_compiled, j, compiled);
        if (c->eager_us <= 0 || e < c->eager_us) c->eager_us = e;
        if (c->compiled_us <= 0 || k < c->compiled_us) c->compiled_us = k;
    }
}

static double ratio(const sweep_case *c) { return c->eager_us / c->compiled_us; }

static void check_result(const sweep_case *c, bench_job *j) {
    etch_tensor *expected = j->body(j->x, j->y), *got = etch_call(j->f, j->x, j->y);
    if (!expected || !got) bench_fail(c->name);
    if (!etch_bitwise_equal(expected, got)) bench_fail(c->name);
}

/* ---- served ---- */

static void describe(const sweep_case *c, bench_job *j, const char *folder) {
    char path[4200];
    const layout_row *l = c->layout;
    etch_named_tensor all[3] = {{"x", j->x}, {"y", j->y}, {"result", j->body(j->x, j->y)}};
    snprintf(path, sizeof path, "%s/case.safetensors", folder);
    if (etch_safetensors_save(path, all, 3, NULL, 0) != ETCH_OK) bench_fail(path);
    printf("@case,%s,%s,%s,%lld,%lld,%d\n@ready\n", c->op->name, etch_dtype_name(c->dtype), l->name,
           (long long)l->space, (long long)l->step, l->turned);
    fflush(stdout);
}

/* Some of the same work first: another program ran just before. */
static void serve(const sweep_case *c, bench_job *j, const char *folder) {
    void (*const runs[])(void *, int64_t) = {bench_run_eager, bench_run_compiled};
    int64_t calls[] = {calls_of(runs[0], j), calls_of(runs[1], j)};
    char line[64];
    ETCH_SCOPE { describe(c, j, folder); }
    while (fgets(line, sizeof line, stdin)) {
        int v = atoi(line);
        if (strcmp(line, "next\n") == 0) return;
        if (v < 0 || v > 1) break;
        once(runs[v], j, calls[v] / 4 + 1);
        printf("@us,%.4f\n", once(runs[v], j, calls[v]));
        fflush(stdout);
    }
    exit(0);
}

/* The operands and the function, called before and its result compared. */
static bench_job job_of(const sweep_case *c) {
    const layout_row *l = c->layout;
    bench_job j = {.body = c->op->body, .x = first_operand(l, c->dtype)};
    j.y = numbers(c->op->layouts & INDEX ? ETCH_I64 : c->dtype, l->y_rows, l->y_cols);
    j.f = etch_compile(j.body, .name = c->op->name);
    if (!j.x || !j.y || !j.f) bench_fail(c->name);
    ETCH_SCOPE { etch_call(j.f, j.x, j.y); }
    ETCH_SCOPE { check_result(c, &j); }
    return j;
}

static void measure_case(sweep_case *c, const sweep_options *o) {
    ETCH_SCOPE {
        bench_job j = job_of(c);
        if (o->folder) serve(c, &j, o->folder);
        else take_turns(c, &j, ROUNDS);
        for (int again = 0; !o->folder && again < 3 && ratio(c) < o->floor; again++)
            take_turns(c, &j, ROUNDS);
        etch_function_free(j.f);
    }
    if (o->folder) return;
    printf("%s,%.2f,%.2f,%.3f\n", c->name, c->eager_us, c->compiled_us, ratio(c));
    fflush(stdout);
}

/* ---- all of them ---- */

static bool chosen(const char *name, char **names, int count) {
    for (int i = 0; i < count; i++)
        if (names[i][0] == '=' ? !strcmp(name, names[i] + 1) : strstr(name, names[i]) != NULL)
            return true;
    return count == 0;
}

static int collect(sweep_case *cases, char **names, int count, int every) {
    int n = 0, fit = 0;
    for (size_t o = 0; o < sizeof operators / sizeof *operators; o++)
        for (int d = 0; d < ETCH_DTYPE_COUNT; d++)
            for (size_t l = 0; l < sizeof layouts / sizeof *layouts; l++) {
                const operator_row *op = &operators[o];
                if (!(op->dtypes >> d & 1) || !(op->layouts & layouts[l].kinds)) continue;
                sweep_case c = {.op = op, .layout = &layouts[l], .dtype = (etch_dtype)d};
                snprintf(c.name, sizeof c.name, "%s/%s/%s", op->name, etch_dtype_name(c.dtype),
                         layouts[l].name);
                if (!chosen(c.name, names, count) || fit++ % every || n == MAX_CASES) continue;
                cases[n++] = c;
            }
    return n;
}

static int by_ratio(const void *a, const void *b) {
    double x = ratio(a), y = ratio(b);
    return (x > y) - (x < y);
}

static int summary(sweep_case *cases, int n, double floor) {
    int under = 0;
    double logs = 0;
    for (int i = 0; i < n; i++) under += ratio(&cases[i]) < floor, logs += log(ratio(&cases[i]));
    qsort(cases, (size_t)n, sizeof *cases, by_ratio);
    fprintf(stderr, "%d of %d cases under %.2f; geometric mean %.3f\n", under, n, floor,
            n ? exp(logs / n) : 1.0);
    for (int i = 0; i < n && i < WORST && ratio(&cases[i]) < floor; i++)
        fprintf(stderr, "  %-40s eager %9.2f  compiled %9.2f  %.3f\n", cases[i].name,
                cases[i].eager_us, cases[i].compiled_us, ratio(&cases[i]));
    return under;
}

/* How many arguments were options. */
static int read_options(sweep_options *o, int argc, char **argv) {
    int i = 0;
    for (; i < argc && argv[i][0] == '-'; i++) {
        bool last = i + 1 == argc;
        if (!strcmp(argv[i], "--list")) o->list = true;
        else if (!strcmp(argv[i], "--processor-time")) bench_use_processor_time();
        else if (last) bench_fail("sweep: no such option, or without its value");
        else if (!strcmp(argv[i], "--floor")) o->strict = true, o->floor = atof(argv[++i]);
        else if (!strcmp(argv[i], "--threads")) o->threads = atoi(argv[++i]);
        else if (!strcmp(argv[i], "--every")) o->every = atoi(argv[++i]);
        else if (!strcmp(argv[i], "--serve")) o->folder = argv[++i];
        else bench_fail("sweep: no such option");
    }
    if (o->every < 1) bench_fail("--every");
    return i;
}

int bench_sweep(int argc, char **argv) {
    static sweep_case cases[MAX_CASES];
    sweep_options o = {.floor = 0.9, .threads = 1, .every = 1};
    int first = read_options(&o, argc, argv);
    if (etch_set_num_threads(o.threads) != ETCH_OK) bench_fail("--threads");
    etch_manual_seed(1);
    int n = collect(cases, argv + first, argc - first, o.every);
    if (!o.list && !o.folder) printf("case,eager_us,compiled_us,ratio\n");
    for (int i = 0; i < n; i++) {
        if (o.list) printf("%s\n", cases[i].name);
        else measure_case(&cases[i], &o);
    }
    return !o.list && !o.folder && summary(cases, n, o.floor) > 0 && o.strict ? 1 : 0;
}
