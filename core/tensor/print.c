/* Tensors as text, in NumPy's manner: a line of dtype and sizes, then nested brackets with aligned
 * decimal points. Of more than 1000 elements, dimensions longer than 6 show three at each end.
 *
 *     f32[2, 3]
 *     [[ 0.5, 1.25, 1.0],
 *      [12.0, 2.5 , 3.0]]
 */
#include "core/base/text.h"
#include "core/tensor/device.h"
#include "core/tensor/element.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { SHORTEN_ABOVE = 1000, EDGE = 3, LINE_WIDTH = 90, NUMBER_MAX = 40 };

static void put(bounded_text *w, const char *text) { etch__text_add(w, "%s", text); }

static void put_spaces(bounded_text *w, int n) { etch__text_add(w, "%*s", n > 0 ? n : 0, ""); }

/* ---- one number ---- */

enum { SHORTEST = -1, PRECISION_MAX = 17 };
static atomic_int precision = SHORTEST;

etch_status etch_set_print_precision(int digits) {
    if (digits < SHORTEST || digits > PRECISION_MAX)
        return etch__error(
            ETCH_ERR_INVALID_ARGUMENT,
            "etch_set_print_precision: expected 0 to %d digits, or -1 for as many as "
            "the number needs, got %d",
            PRECISION_MAX, digits);
    atomic_store_explicit(&precision, digits, memory_order_relaxed);
    return ETCH_OK;
}

/* Digits after which more would show noise of the dtype's own rounding. */
static int max_digits(etch_dtype dtype) {
    return dtype == ETCH_BF16 ? 4 : dtype == ETCH_F16 ? 5 : 8;
}

/* So many digits behind the point; with an exponent what would be all zeros, or very long. */
static void format_fixed(double v, int digits, char *text) {
    double size = fabs(v), least = digits ? 0.5 * pow(10, -digits) : 0;
    bool plain = v == 0 || (size < 1e8 && size >= least);
    snprintf(text, NUMBER_MAX, plain ? "%.*f" : "%.*e", digits, v);
}

/* The fewest digits that read back as the same number, up to max_digits. */
static void format_shortest(double v, etch_dtype dtype, char *text) {
    for (int digits = 1; digits <= max_digits(dtype); digits++) {
        snprintf(text, NUMBER_MAX, "%.*g", digits, v);
        double back = strtod(text, NULL);
        if (dtype == ETCH_F64 ? back == v : (float)back == (float)v) break;
    }
    /* 100000.0 rather than 1e+05 */
    if (strchr(text, 'e') && fabs(v) >= 1 && fabs(v) < 1e8 && v == trunc(v))
        snprintf(text, NUMBER_MAX, "%.0f", v);
    if (!strpbrk(text, ".e")) strcat(text, ".0");
}

static void format_real(double v, etch_dtype dtype, char *text) {
    int digits = atomic_load_explicit(&precision, memory_order_relaxed);
    if (isnan(v) || isinf(v)) strcpy(text, isnan(v) ? "nan" : v > 0 ? "inf" : "-inf");
    else if (digits == SHORTEST) format_shortest(v, dtype, text);
    else format_fixed(v, digits, text);
}

static void format_element(etch_dtype dtype, const void *p, char *text) {
    if (dtype == ETCH_BOOL) strcpy(text, etch__element_int(dtype, p) ? "true" : "false");
    else if (!etch__is_float(dtype))
        snprintf(text, NUMBER_MAX, "%lld", (long long)etch__element_int(dtype, p));
    else format_real(etch__element_real(dtype, p), dtype, text);
}

/* ---- the nest of brackets ---- */

typedef struct printer {
    const etch_tensor *t;
    bounded_text *w; /* NULL: only the width of the columns is looked for */
    bool shorten;
    int width;       /* of a column: the points stand one above the other */
    int left, right; /* the most characters before a point, and from it on; */
    int pointless;   /* the most of a number without one, or with an exponent */
} printer;

static bool cuts(const printer *p, int dim) { return p->shorten && p->t->size[dim] > 2 * EDGE; }

static void at_least(int *most, int n) {
    if (n > *most) *most = n;
}

/* Where the point stands in the number's text; its end where the column does not follow it. */
static int point_of(const char *text) {
    const char *point = strchr(text, '.');
    return point && !strchr(text, 'e') ? (int)(point - text) : (int)strlen(text);
}

static void measure(printer *p, const char *text) {
    int n = (int)strlen(text), point = point_of(text);
    if (point == n) {
        at_least(&p->pointless, n);
    } else {
        at_least(&p->left, point);
        at_least(&p->right, n - point);
    }
    p->width = p->left + p->right;
    at_least(&p->width, p->pointless);
}

static void print_number(printer *p, const char *at) {
    char text[NUMBER_MAX];
    format_element(p->t->dtype, at, text);
    if (!p->w) {
        measure(p, text);
        return;
    }
    int n = (int)strlen(text), point = point_of(text);
    int behind = point == n ? 0 : p->right - (n - point);
    put_spaces(p->w, p->width - n - behind);
    put(p->w, text);
    put_spaces(p->w, behind);
}

/* What stands between two entries of dimension dim: numbers stay on a line while they fit, the
 * deeper brackets start new ones. */
static void separate(printer *p, int dim, int *column) {
    if (!p->w) return;
    bool numbers = dim == p->t->ndim - 1;
    *column += p->width + 2;
    if (numbers && *column + p->width + 1 < LINE_WIDTH) {
        put(p->w, ", ");
        return;
    }
    put(p->w, ",\n");
    for (int d = dim + 2; !numbers && d < p->t->ndim; d++) put(p->w, "\n");
    put_spaces(p->w, dim + 1);
    *column = dim + 1;
}

static void print_dim(printer *p, int dim, const char *at);

static void print_entries(printer *p, int dim, const char *at) {
    int64_t step = p->t->stride[dim] * (int64_t)etch_dtype_size(p->t->dtype);
    int64_t n = p->t->size[dim];
    int column = dim + 1;
    for (int64_t i = 0; i < n; i++) {
        if (i) separate(p, dim, &column);
        if (cuts(p, dim) && i == EDGE) {
            if (p->w) put(p->w, "..."), separate(p, dim, &column);
            i = n - EDGE;
        }
        print_dim(p, dim + 1, at + i * step);
    }
}

static void print_dim(printer *p, int dim, const char *at) {
    if (dim == p->t->ndim) {
        print_number(p, at);
        return;
    }
    if (p->w) put(p->w, "[");
    print_entries(p, dim, at);
    if (p->w) put(p->w, "]");
}

/* The digits are those that read as the number again to nearest, denormals included: the program's
 * modes and traps are not for them. */
static void print_elements(const etch_tensor *t, bounded_text *w) {
    unsigned fp = etch__fp_plain();
    printer p = {.t = t, .shorten = t->numel > SHORTEN_ABOVE};
    print_dim(&p, 0, etch__ptr(t)); /* once to measure, once to write */
    p.w = w;
    print_dim(&p, 0, etch__ptr(t));
    etch__fp_control(fp);
}

static void print_tensor(const etch_tensor *t, int device, bounded_text *w) {
    put(w, etch_dtype_name(t->dtype));
    put(w, etch__shape_text(t->ndim, t->size).s);
    if (device) put(w, " on "), put(w, etch_device_name(device));
    put(w, "\n");
    if (!t->numel) {
        put(w, "[]");
        return;
    }
    print_elements(t, w);
}

/* ---- public ---- */

int64_t etch_format(const etch_tensor *t, char *buf, size_t n) {
    if (!etch__read(t, "etch_format", REASON_BREAK_PRINT, __builtin_return_address(0))) return -1;
    host_view v;
    const etch_tensor *h = etch__host_view(t, &v);
    bounded_text w = {buf, buf ? n : 0, 0};
    if (h) print_tensor(h, t->device, &w);
    etch__host_view_end(&v);
    return h ? (int64_t)w.n : -1;
}

etch_status etch_print(const etch_tensor *t) {
    const void *site = __builtin_return_address(0);
    if (!etch__read(t, "etch_print", REASON_BREAK_PRINT, site)) return etch__tls.status;
    bounded_text counter = {0}, w = {0};
    host_view v;
    const etch_tensor *h = etch__host_view(t, &v);
    if (h) print_tensor(h, t->device, &counter);
    char *text = h ? etch__malloc(counter.n + 2) : NULL;
    w.buf = text, w.room = text ? counter.n + 2 : 0;
    if (text) print_tensor(h, t->device, &w);
    etch__host_view_end(&v);
    if (!text) return etch__tls.status;
    put(&w, "\n");
    bool written = fwrite(text, 1, w.n, stdout) == w.n;
    etch__free(text);
    if (written) return ETCH_OK;
    return etch__error_at(site, ETCH_ERR_IO, "etch_print: could not write to standard output: %m");
}
