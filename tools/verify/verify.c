/* etch-verify: compares a replacement of an operator with the operator itself; or, with --op
 * functions, the functions of one number with the exact results (functions.h).
 *
 * Over dtypes, shapes and the strides of both operands, the replacement is called directly,
 * through a mode that puts it in the operator's place, and compiled. Printed is the largest
 * distance from the native result on the CPU in ulp (numbers between the two results), and the
 * error that the bound is about. With --device the operands lie there, and the device's own
 * operator is held to the bound, too.
 *
 * The bound. Summing K products in any order, with or without fma, gives each element of A B with
 * an error of at most g S, where S = (|A| |B|) at that element, g = K u / (1 - K u) and u is half
 * an ulp of 1. Two such sums differ by at most 2 g S; as an ulp of S is more than u S, that is less
 * than 2 K / (1 - K u) ulp of S. Distances in ulp of the result itself have no bound: where terms
 * cancel, the result is small and the error is not. A forgotten term of typical size is an error of
 * about S / K, far beyond the bound while K is below 2000 in f32.
 *
 * Exit status: 0 when all is within the bound and all three ways give the same bits, 1 when not, 2
 * for an error. */
#include "cblas_matmul.h"
#include "functions.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what is compared ---- */

typedef etch_tensor *(*binary)(etch_tensor *, etch_tensor *);

/* For the test of this program: a product without its last term. */
static etch_tensor *forgetful(etch_tensor *a, etch_tensor *b) {
    int64_t k = etch_size(a, 1) - 1;
    etch_tensor *most_a = etch_slice(a, 1, 0, k, 1);
    etch_tensor *most_b = etch_slice(b, 0, 0, k, 1);
    return blas_matmul(most_a, most_b);
}

typedef struct replacement {
    const char *name, *op, *help;
    binary native, replaced;
} replacement;

static const replacement replacements[] = {
    {"mm", "mm", "the product through CBLAS", etch_mm, blas_matmul},
    {"mm-forgetful", "mm", "the same without its last term, to see this program fail", etch_mm,
     forgetful},
};

typedef struct options {
    const replacement *what;
    const char *dtypes, *shapes, *device;
    double bound; /* in ulp of S, of functions in ulp of the result; negative: the stated one */
    bool functions;
    int64_t samples;
} options;

/* ---- operands ---- */

static const char *const layouts[] = {"contiguous", "transposed", "sliced", "offset"};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

/* A matrix of normal numbers in that layout. */
static etch_tensor *operand(etch_dtype dtype, int64_t rows, int64_t columns, int layout) {
    if (layout == 1) return etch_t(etch_randn(dtype, ETCH_SHAPE(columns, rows)));
    if (layout == 2)
        return etch_slice(etch_randn(dtype, ETCH_SHAPE(rows, 2 * columns)), 1, 0, 2 * columns, 2);
    if (layout == 0) return etch_randn(dtype, ETCH_SHAPE(rows, columns));
    etch_tensor *larger = etch_randn(dtype, ETCH_SHAPE(rows + 1, columns + 3));
    etch_tensor *lower = etch_slice(larger, 0, 1, rows + 1, 1);
    return etch_slice(lower, 1, 3, columns + 3, 1);
}

/* ---- the three ways ---- */

static etch_status put_in_place(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                etch_tensor **out, int nout) {
    const replacement *r = ctx;
    (void)nargs, (void)nout;
    if (!etch_op_is(op, r->op)) return ETCH_DECLINED;
    out[0] = r->replaced(args[0].tensor, args[1].tensor);
    return out[0] ? ETCH_OK : etch_last_status();
}

static etch_tensor *through_mode(const replacement *r, etch_tensor *a, etch_tensor *b) {
    etch_tensor *y = NULL;
    etch_mode *mode = etch_mode_new(put_in_place, (void *)r, .name = "replacement");
    if (mode)
        ETCH_WITH_MODE (mode) y = r->native(a, b);
    etch_mode_free(mode);
    return y;
}

/* The second call: the first one records. */
static etch_tensor *compiled(const replacement *r, etch_tensor *a, etch_tensor *b) {
    etch_function *f = etch_compile(r->replaced, .fullgraph = true);
    etch_tensor *first = etch_call(f, a, b);
    etch_tensor *y = first ? etch_call(f, a, b) : NULL;
    etch_function_free(f);
    return y;
}

/* ---- errors ---- */

static double *to_doubles(etch_tensor *t) {
    size_t n = (size_t)etch_numel(t);
    double *values = malloc((n + 1) * sizeof *values);
    etch_tensor *wide = etch_to(t, ETCH_F64);
    if (values && wide && etch_to_host(wide, values, n * sizeof *values) == ETCH_OK) return values;
    free(values);
    return NULL;
}

/* Of the dtype, at x. */
static double ulp(etch_dtype dtype, double x) {
    int digits = dtype == ETCH_F32 ? FLT_MANT_DIG : DBL_MANT_DIG;
    int least = dtype == ETCH_F32 ? FLT_MIN_EXP : DBL_MIN_EXP;
    int exponent = least;
    if (x != 0) frexp(x, &exponent);
    if (exponent < least) exponent = least;
    return ldexp(1, exponent - digits);
}

typedef struct errors {
    double distance; /* in ulp of the native result */
    double scaled;   /* in ulp of S */
} errors;

/* false: lack of memory. A NaN on one side only is an infinite error. */
static bool measure(etch_dtype dtype, etch_tensor *got, etch_tensor *known, etch_tensor *scale,
                    errors *e) {
    double *x = to_doubles(got), *y = to_doubles(known), *s = to_doubles(scale);
    bool ok = x && y && s;
    *e = (errors){0, 0};
    for (int64_t i = 0; ok && i < etch_numel(known); i++) {
        double error = isnan(x[i]) && isnan(y[i]) ? 0 : fabs(x[i] - y[i]);
        if (isnan(error)) error = INFINITY;
        e->distance = fmax(e->distance, error / ulp(dtype, y[i]));
        e->scaled = fmax(e->scaled, error / ulp(dtype, s[i]));
    }
    free(x), free(y), free(s);
    return ok;
}

static double stated_bound(etch_dtype dtype, int64_t k) {
    double u = (dtype == ETCH_F32 ? FLT_EPSILON : DBL_EPSILON) / 2;
    return 2 * (double)k / (1 - (double)k * u);
}

/* ---- the table ---- */

/* What is measured: the operator itself where the operands lie, and the replacement three ways. */
enum { NATIVE, DIRECT, THROUGH_MODE, COMPILED, WAYS };

/* Computed on the CPU: the operator's result, and S. */
static bool known_result(const replacement *r, etch_tensor *a, etch_tensor *b, etch_tensor **known,
                         etch_tensor **scale) {
    ETCH_ON(ETCH_CPU) {
        a = etch_to_device(a, ETCH_CPU);
        b = etch_to_device(b, ETCH_CPU);
        *known = r->native(a, b);
        etch_tensor *size_a = etch_abs(a);
        etch_tensor *size_b = etch_abs(b);
        *scale = r->native(size_a, size_b);
    }
    return *known && *scale;
}

/* Failures are counted: 1 for a row beyond the bound, -1 for an error. */
static int row(const options *o, etch_dtype dtype, const int64_t *mkn, int la, int lb) {
    const replacement *r = o->what;
    etch_tensor *a = operand(dtype, mkn[0], mkn[1], la);
    etch_tensor *b = operand(dtype, mkn[1], mkn[2], lb);
    etch_tensor *known = NULL, *scale = NULL;
    if (!known_result(r, a, b, &known, &scale)) return -1;
    etch_tensor *y[WAYS] = {r->native(a, b), r->replaced(a, b), through_mode(r, a, b),
                            compiled(r, a, b)};
    errors e[WAYS];
    double bound = o->bound >= 0 ? o->bound : stated_bound(dtype, mkn[1]), worst = 0;
    for (int i = 0; i < WAYS; i++) {
        if (!y[i] || !measure(dtype, y[i], known, scale, &e[i])) return -1;
        worst = fmax(worst, e[i].scaled);
    }
    bool same = etch_bitwise_equal(y[DIRECT], y[THROUGH_MODE]) &&
                etch_bitwise_equal(y[DIRECT], y[COMPILED]);
    bool ok = worst <= bound && same;
    char shape[48];
    snprintf(shape, sizeof shape, "%lldx%lldx%lld", (long long)mkn[0], (long long)mkn[1],
             (long long)mkn[2]);
    printf("%-6s %-5s %-15s %-11s %-11s %9.4g %9.4g %9.4g %9.4g %9.4g %9.4g  %-5s %s\n",
           etch_device_name(etch_device_of(y[NATIVE])), etch_dtype_name(dtype), shape, layouts[la],
           layouts[lb], e[NATIVE].distance, e[DIRECT].distance, e[THROUGH_MODE].distance,
           e[COMPILED].distance, worst, bound, same ? "yes" : "NO", ok ? "ok" : "BEYOND");
    return !ok;
}

static int rows_of_shape(const options *o, etch_dtype dtype, const int64_t *mkn) {
    int failures = 0;
    for (int la = 0; la < LAYOUTS; la++)
        for (int lb = 0; lb < LAYOUTS; lb++) {
            int failed = 0;
            ETCH_SCOPE
                failed = row(o, dtype, mkn, la, lb);
            if (failed < 0) return -1;
            failures += failed;
        }
    return failures;
}

static bool parse_shape(const char *text, int64_t *mkn) {
    long long m, k, n;
    if (sscanf(text, "%lldx%lldx%lld", &m, &k, &n) != 3 || m < 1 || k < 1 || n < 1) return false;
    mkn[0] = m, mkn[1] = k, mkn[2] = n;
    return true;
}

static const char *next_item(const char *list) {
    const char *comma = strchr(list, ',');
    return comma ? comma + 1 : NULL;
}

static int bad(const char *what, const char *text) {
    fprintf(stderr, "etch-verify: %s: %s\n", what, text);
    return -1;
}

static int rows_of_dtype(const options *o, const char *dtype_name) {
    int failures = 0;
    size_t length = strcspn(dtype_name, ",");
    etch_dtype dtype = length == 3 && !strncmp(dtype_name, "f32", 3)   ? ETCH_F32
                       : length == 3 && !strncmp(dtype_name, "f64", 3) ? ETCH_F64
                                                                       : ETCH_DTYPE_COUNT;
    if (dtype == ETCH_DTYPE_COUNT) return bad("expected dtypes f32 and f64", dtype_name);
    for (const char *shape = o->shapes; shape; shape = next_item(shape)) {
        int64_t mkn[3];
        if (!parse_shape(shape, mkn)) return bad("expected shapes as 64x32x16 (m x k x n)", shape);
        int failed = rows_of_shape(o, dtype, mkn);
        if (failed < 0) return -1;
        failures += failed;
    }
    return failures;
}

static int table(const options *o) {
    int failures = 0;
    printf("%s: %s\n", o->what->name, o->what->help);
    printf("%-6s %-5s %-15s %-11s %-11s %9s %9s %9s %9s %9s %9s  %-5s\n", "device", "dtype",
           "m x k x n", "a", "b", "native", "direct", "mode", "compiled", "scaled", "bound",
           "equal");
    for (const char *dtype = o->dtypes; dtype; dtype = next_item(dtype)) {
        int failed = rows_of_dtype(o, dtype);
        if (failed < 0) return -1;
        failures += failed;
    }
    return failures;
}

/* ---- the program ---- */

static int usage(void) {
    puts("etch-verify [--op NAME] [--dtypes f32,f64] [--shapes MxKxN,...] [--bound ULP]\n"
         "            [--device cpu|cuda|cuda:N]\n"
         "Compares a replacement with the native operator: largest distance in ulp of the native\n"
         "result on the CPU, of the native operator on the device, and of the replacement called\n"
         "directly, through a mode and compiled; `scaled` in ulp of |A| |B|, which must stay "
         "within\n"
         "`bound`, by default 2 K / (1 - K u). `equal`: the three have the same bits.");
    for (size_t i = 0; i < sizeof replacements / sizeof *replacements; i++)
        printf("  --op %-14s %s\n", replacements[i].name, replacements[i].help);
    puts("  --op functions      exp, log, sin, ... and pow: largest error in ulp of the exact "
         "result\n"
         "                      over --samples N operands (200000), and what a tensor costs of "
         "which\n"
         "                      every second number is special, in terms of one of ordinary "
         "numbers");
    return 2;
}

static bool set_option(options *o, const char *name, const char *value) {
    if (!strcmp(name, "--dtypes")) return o->dtypes = value, true;
    if (!strcmp(name, "--shapes")) return o->shapes = value, true;
    if (!strcmp(name, "--device")) return o->device = value, true;
    if (!strcmp(name, "--bound")) return o->bound = strtod(value, NULL), true;
    if (!strcmp(name, "--samples")) return o->samples = atoll(value), o->samples > 0;
    if (strcmp(name, "--op")) return false;
    if (!strcmp(value, "functions")) return o->functions = true;
    for (size_t i = 0; i < sizeof replacements / sizeof *replacements; i++)
        if (!strcmp(value, replacements[i].name)) return o->what = &replacements[i], true;
    return false;
}

int main(int argc, char **argv) {
    options o = {&replacements[0],
                 "f32,f64",
                 "1x1x1,7x5x3,64x64x64,65x130x33,96x512x80",
                 "cpu",
                 -1,
                 false,
                 200000};
    for (int i = 1; i < argc; i += 2)
        if (i + 1 == argc || !set_option(&o, argv[i], argv[i + 1])) return usage();
    etch_device device = etch_device_parse(o.device);
    if (device < 0 || etch_set_device(device) != ETCH_OK)
        return bad("--device", etch_last_error()), 2;
    etch_manual_seed(0);
    if (!blas_op()) return bad("mylib::blas_matmul", etch_last_error()), 2;
    int failures = o.functions ? function_table(o.dtypes, o.samples, o.bound) : table(&o);
    if (failures < 0) return bad("failed", etch_last_error()), 2;
    printf("%d rows beyond the bound\n", failures);
    return failures > 0;
}
