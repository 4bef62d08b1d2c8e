/* See sizes.h. What is tried, simplest first: a product of up to three symbols times a number plus
 * another; a size divided by a number, rounded down; two products. Real scalars are a number times
 * or by a product or its root, to the last bit. */
#include "export/sizes.h"

#include <math.h>

/* ---- values ---- */

static bool product_of(size_product p, const int64_t *sizes, int64_t *value) {
    *value = 1;
    for (int i = 0; i < FACTORS_MAX && p.symbol[i] >= 0; i++)
        if (__builtin_mul_overflow(*value, sizes[p.symbol[i]], value)) return false;
    return true;
}

static int64_t floor_divide(int64_t a, int64_t b) { return a / b - (a % b < 0); }

static bool whole_value(const program_formula *f, const int64_t *sizes, int64_t *value) {
    int64_t sum = f->add;
    for (int t = 0; t < TERMS_MAX && f->factor[t]; t++) {
        int64_t term;
        if (!product_of(f->product[t], sizes, &term) ||
            __builtin_mul_overflow(term, f->factor[t], &term) ||
            __builtin_add_overflow(sum, term, &sum))
            return false;
    }
    *value = floor_divide(sum, f->divisor);
    return true;
}

static double real_value(formula_form form, double real, double product) {
    switch (form) {
    case FORM_PRODUCT: return real * product;
    case FORM_INVERSE: return real / product;
    case FORM_ROOT: return real * sqrt(product);
    default: return real / sqrt(product);
    }
}

bool etch__formula_value(const program_formula *f, const int64_t *sizes, int64_t *value) {
    int64_t product;
    if (f->form == FORM_WHOLE) return whole_value(f, sizes, value);
    if (!product_of(f->product[0], sizes, &product)) return false;
    unsigned before = etch__fp_plain();
    double real = real_value(f->form, f->real, (double)product);
    etch__fp_control(before);
    memcpy(value, &real, sizeof real);
    return true;
}

/* ---- finding ---- */

typedef struct search {
    program_formula *f;
    int nsymbols, n;
    const int64_t (*sizes)[SYMBOLS_MAX];
    const int64_t *y;
} search;

static bool agrees(const search *s) {
    int64_t value;
    for (int k = 0; k < s->n; k++)
        if (!etch__formula_value(s->f, s->sizes[k], &value) || value != s->y[k]) return false;
    return true;
}

/* Goes over the products of one, then two, then three symbols. false: that was the last. */
static bool next_product(const search *s, size_product *p) {
    int used = 0;
    while (used < FACTORS_MAX && p->symbol[used] >= 0) used++;
    int i = used - 1;
    while (i >= 0 && p->symbol[i] == s->nsymbols - 1) i--;
    if (i >= 0) {
        int8_t next = (int8_t)(p->symbol[i] + 1);
        for (; i < used; i++) p->symbol[i] = next;
        return true;
    }
    if (used == FACTORS_MAX) return false;
    for (i = 0; i <= used; i++) p->symbol[i] = 0;
    return true;
}

static const size_product no_product = {{-1, -1, -1}};

/* Two recordings in which the product differs, with the differences of both. */
static bool slope(const search *s, size_product p, int64_t *dy, int64_t *dm, int64_t *m0) {
    int64_t m;
    if (!product_of(p, s->sizes[0], m0)) return false;
    for (int k = 1; k < s->n; k++) {
        if (!product_of(p, s->sizes[k], &m) || m == *m0) continue;
        *dy = s->y[k] - s->y[0], *dm = m - *m0;
        return true;
    }
    return false;
}

static bool by_one_product(const search *s) {
    for (size_product p = no_product; next_product(s, &p);) {
        int64_t dy, dm, m0;
        if (!slope(s, p, &dy, &dm, &m0) || dy % dm) continue;
        *s->f = (program_formula){.factor = {dy / dm}, .divisor = 1, .product = {p, no_product}};
        s->f->add = s->y[0] - dy / dm * m0;
        if (s->f->factor[0] && agrees(s)) return true;
    }
    return false;
}

enum { DIVISOR_MAX = 64 };

static bool by_division(const search *s) {
    for (int8_t i = 0; i < s->nsymbols; i++)
        for (int64_t d = 2; d <= DIVISOR_MAX; d++)
            for (int64_t add = -d; add < d; add++) {
                *s->f = (program_formula){
                    .factor = {1}, .divisor = d, .product = {{{i, -1, -1}}, no_product}};
                s->f->add = add + d * (s->y[0] - floor_divide(s->sizes[0][i] + add, d));
                if (agrees(s)) return true;
            }
    return false;
}

/* From the first recording and two others, by Cramer's rule. */
static bool solve_two(const search *s, size_product p, size_product q, int k, int l) {
    int64_t m[3], n[3];
    const int at[3] = {0, k, l};
    for (int i = 0; i < 3; i++)
        if (!product_of(p, s->sizes[at[i]], &m[i]) || !product_of(q, s->sizes[at[i]], &n[i]))
            return false;
    __int128 a = m[1] - m[0], b = n[1] - n[0], c = m[2] - m[0], d = n[2] - n[0];
    __int128 y = s->y[k] - s->y[0], z = s->y[l] - s->y[0], det = a * d - b * c;
    if (!det || (y * d - b * z) % det || (a * z - y * c) % det) return false;
    int64_t first = (int64_t)((y * d - b * z) / det), second = (int64_t)((a * z - y * c) / det);
    *s->f = (program_formula){.factor = {first, second}, .divisor = 1, .product = {p, q}};
    s->f->add = s->y[0] - first * m[0] - second * n[0];
    return first && second && agrees(s);
}

static bool by_two_products(const search *s) {
    for (size_product p = no_product; next_product(s, &p);)
        for (size_product q = p; next_product(s, &q);)
            for (int l = 2; l < s->n; l++)
                if (solve_two(s, p, q, 1, l)) return true;
    return false;
}

static bool by_real(const search *s) {
    for (size_product p = no_product; next_product(s, &p);)
        for (int form = FORM_PRODUCT; form < FORM_COUNT; form++) {
            int64_t m0;
            double y0;
            memcpy(&y0, &s->y[0], sizeof y0);
            if (!product_of(p, s->sizes[0], &m0) || !m0) continue;
            double unit = real_value((formula_form)form, 1, (double)m0), real = y0 / unit;
            *s->f = (program_formula){
                .form = (formula_form)form, .divisor = 1, .product = {p, no_product}};
            const double near[] = {round(real), real, nextafter(real, 0),
                                   nextafter(real, 2 * real)};
            for (int i = 0; i < COUNT_OF(near); i++) {
                s->f->real = near[i];
                if (near[i] != 0 && agrees(s)) return true;
            }
        }
    return false;
}

bool etch__formula_find(program_formula *f, bool real, int nsymbols, int n,
                        const int64_t (*sizes)[SYMBOLS_MAX], const int64_t *y) {
    const search s = {f, nsymbols, n, sizes, y};
    program_formula kept = *f;
    bool found = real ? by_real(&s) : by_one_product(&s) || by_division(&s) || by_two_products(&s);
    f->target = kept.target, f->index = kept.index;
    return found;
}
