/* Run-time sizes of a program: *symbols* stand for sizes of arguments, and formulas say how
 * attributes and scalars follow from them. There is no body any more that would compute them, so
 * they are found when the function is exported: it is recorded with several sizes, and a formula is
 * what agrees with all recordings. */
#ifndef ETCH_EXPORT_SIZES_H
#define ETCH_EXPORT_SIZES_H

#include "core/base/base.h"
#include "core/ops/op.h"

enum { SYMBOLS_MAX = 8, FACTORS_MAX = 3, TERMS_MAX = 2 };

typedef struct program_symbol {
    int64_t min, max, size; /* within which it may be, and what it was */
} program_symbol;

/* The size of a dimension of an argument. */
typedef struct program_dim {
    int32_t argument, dim, symbol;
} program_dim;

/* A product of symbols; -1: none. */
typedef struct size_product {
    int8_t symbol[FACTORS_MAX];
} size_product;

typedef enum formula_form {
    FORM_WHOLE,   /* floor((sum of factor * product + add) / divisor) */
    FORM_PRODUCT, /* real * product, and so on, in doubles */
    FORM_INVERSE, /* real / product */
    FORM_ROOT,    /* real * sqrt(product) */
    FORM_BY_ROOT, /* real / sqrt(product) */
    FORM_COUNT
} formula_form;

/* Of what a formula is: an attribute word of the graph, or a scalar. */
typedef enum formula_target { TARGET_WORD, TARGET_SCALAR, TARGET_COUNT } formula_target;

typedef struct program_formula {
    formula_target target;
    formula_form form;
    int32_t index;
    int64_t factor[TERMS_MAX], add, divisor;
    double real;
    size_product product[TERMS_MAX];
} program_formula;

/* With these sizes. Bits of a double for the real forms. false: it does not fit in 63 bits. */
bool etch__formula_value(const program_formula *f, const int64_t *sizes, int64_t *value);
/* The simplest formula for what is seen: y[k] with the sizes[k]. false: there is none. */
bool etch__formula_find(program_formula *f, bool real, int nsymbols, int n,
                        const int64_t (*sizes)[SYMBOLS_MAX], const int64_t *y);

#endif
