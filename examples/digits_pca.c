/* Principal components of handwritten digits: the three leading eigenvalues of the covariance of 64
 * pixel columns, by power iteration with deflation in f64. The loop ends when the vector stands
 * still, which reads a value: a graph break in every round, and the rounds run compiled anyway.
 *
 * digits_pca [digits.csv.gz] [--device cuda] */
#include "device.h"
#include "digits_data.h"
#include "table.h"

#include <math.h>
#include <string.h>

enum { ROWS = DIGITS_ROWS, PIXELS = DIGITS_PIXELS, COMPONENTS = 3, MAX_ROUNDS = 2000 };

static const double known[COMPONENTS] = {179.00693010, 163.71774688, 141.78843909};

static etch_tensor *covariance(etch_tensor *x) {
    etch_tensor *mean = etch_mean_dim(x, ETCH_DIMS(0), true);
    etch_tensor *centred = etch_sub(x, mean);
    etch_tensor *transposed = etch_t(centred);
    etch_tensor *products = etch_mm(transposed, centred);
    return etch_div_scalar(products, ROWS - 1);
}

/* One round of the power method on c: the next unit vector. */
static etch_tensor *power_round(etch_tensor *c, etch_tensor *v, bool *done) {
    etch_tensor *image = etch_mv(c, v);
    etch_tensor *square = etch_dot(image, image);
    etch_tensor *norm = etch_sqrt(square);
    etch_tensor *next = etch_div(image, norm);
    etch_tensor *step = etch_sub(next, v);
    etch_tensor *change = etch_dot(step, step);
    *done = etch_item(change) < 1e-24;
    return next;
}

static etch_tensor *leading_vector(etch_tensor *c, etch_tensor *v) {
    bool done = false;
    for (int round = 0; round < MAX_ROUNDS && !done; round++) {
        ETCH_SCOPE {
            etch_tensor *next = power_round(c, v, &done);
            etch_assign(&v, next);
        }
    }
    return v;
}

static etch_tensor *eigenvalue(etch_tensor *c, etch_tensor *v) {
    etch_tensor *image = etch_mv(c, v);
    return etch_dot(v, image);
}

/* c without the component (value, v). */
static etch_tensor *without(etch_tensor *c, etch_tensor *value, etch_tensor *v) {
    etch_tensor *column = etch_unsqueeze(v, 1);
    etch_tensor *row = etch_unsqueeze(v, 0);
    etch_tensor *outer = etch_mul(column, row);
    etch_tensor *part = etch_mul(outer, value);
    return etch_sub(c, part);
}

/* in: the pixels and a start vector; out: the eigenvalues, largest first. */
static ETCH_FN_N(pca, ctx, in, nin, out, nout) {
    etch_tensor *c = covariance(in[0]);
    for (int k = 0; k < nout; k++) {
        etch_tensor *v = leading_vector(c, in[1]);
        out[k] = eigenvalue(c, v);
        if (!out[k]) return etch_last_status();
        c = without(c, out[k], v);
    }
    return ETCH_OK;
}

/* One run into values; f NULL: eager. Returns milliseconds, or a negative number on error. */
static double run_once(etch_function *f, etch_tensor *const in[2], double values[COMPONENTS]) {
    double start = now_ms(), elapsed = 0;
    ETCH_SCOPE {
        etch_tensor *out[COMPONENTS];
        etch_status status =
            f ? etch_call_n(f, in, 2, out, COMPONENTS) : pca(NULL, in, 2, out, COMPONENTS);
        elapsed = status == ETCH_OK ? now_ms() - start : -1;
        for (int k = 0; k < COMPONENTS; k++)
            values[k] = status == ETCH_OK ? etch_item(out[k]) : NAN;
    }
    return elapsed;
}

static bool same(const double *a, const double *b) {
    return memcmp(a, b, COMPONENTS * sizeof *a) == 0;
}

static bool check_values(const double *values) {
    bool ok = true;
    for (int k = 0; k < COMPONENTS; k++) {
        bool right = fabs(values[k] - known[k]) < 1e-6;
        printf("eigenvalue %d: %.8f, known %.8f: %s\n", k + 1, values[k], known[k],
               right ? "right" : "WRONG");
        ok = ok && right;
    }
    return ok;
}

static bool run(etch_function *f, const double *pixels, table_row *row) {
    double expected[COMPONENTS], values[COMPONENTS], eager[5], fast[5];
    ETCH_SCOPE {
        etch_tensor *x = etch_from_host(pixels, ETCH_F64, ETCH_SHAPE(ROWS, PIXELS));
        etch_tensor *start = etch_full(ETCH_F64, ETCH_SHAPE(PIXELS), 0.125);
        etch_tensor *const in[2] = {x, start};
        run_once(NULL, in, expected);
        int64_t kernels_before = etch_counters().kernels;
        row->first_call_ms = run_once(f, in, values);
        row->equal = same(expected, values);
        for (int i = 0; i < 5; i++) {
            eager[i] = run_once(NULL, in, expected);
            int64_t before = etch_function_counters(f).graph_breaks;
            fast[i] = run_once(f, in, values);
            row->breaks = etch_function_counters(f).graph_breaks - before;
            row->equal = row->equal && same(expected, values);
        }
        row->kernels = etch_counters().kernels - kernels_before;
    }
    row->eager_ms = median_of_5(eager), row->compiled_ms = median_of_5(fast);
    table_print(row);
    bool ok = check_values(values);
    return table_check(row) && ok;
}

int main(int argc, char **argv) {
    static double pixels[ROWS * PIXELS];
    static int64_t digits[ROWS]; /* not used */
    if (!use_device(&argc, argv)) return 2;
    const char *path = argc > 1 ? argv[1] : "examples/data/digits.csv.gz";
    if (!digits_read(path, pixels, digits)) return 1;
    etch_function *f = etch_compile(pca);
    table_row row = {.name = "digits_pca 1797x64", .f = f};
    table_head();
    bool ok = run(f, pixels, &row);
    etch_function_free(f);
    return ok ? 0 : 1;
}
