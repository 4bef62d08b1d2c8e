/* Small helpers of the files in this folder: errors, texts, options, dtypes. */
#include "nn/module.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- errors and texts ---- */

etch_status etch__nn_fail(etch_status status, const char *format, ...) {
    char text[600];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return etch_set_error(status, text);
}

etch_status etch__nn_null(const char *function, const char *what) {
    return etch__nn_fail(ETCH_ERR_NULL, "%s: expected %s, got NULL", function, what);
}

void *etch__nn_no_memory(void) {
    etch_set_error(ETCH_ERR_OUT_OF_MEMORY, "out of memory");
    return NULL;
}

char *etch__nn_copy_text(const char *text) {
    size_t n = strlen(text) + 1;
    char *copy = malloc(n);
    return copy ? memcpy(copy, text, n) : etch__nn_no_memory();
}

bool etch__nn_same_sizes(const etch_tensor *a, const etch_tensor *b) {
    bool same = etch_ndim(a) == etch_ndim(b);
    for (int d = 0; same && d < etch_ndim(a); d++) same = etch_size(a, d) == etch_size(b, d);
    return same;
}

const char *etch__nn_sizes(const etch_tensor *t, char text[SIZES_TEXT]) {
    return etch__nn_shape(etch_sizes(t), text);
}

const char *etch__nn_shape(etch_shape sizes, char text[SIZES_TEXT]) {
    int used = 1;
    strcpy(text, "[");
    for (int d = 0; d < sizes.n; d++)
        used += snprintf(text + used, (size_t)(SIZES_TEXT - used), "%s%lld", d ? ", " : "",
                         (long long)sizes.v[d]);
    snprintf(text + used, (size_t)(SIZES_TEXT - used), "]");
    return text;
}

etch_tensor *etch__nn_refuse(const etch_module *m, const char *what, const etch_tensor *x) {
    char sizes[SIZES_TEXT];
    if (!x || x == ETCH_NONE) return etch__nn_null(m->type, "a tensor"), NULL;
    etch__nn_fail(ETCH_ERR_SHAPE, "%s: expected x of sizes %s, got %s", m->type, what,
                  etch__nn_sizes(x, sizes));
    return NULL;
}

void etch__nn_options(void *to, size_t size, const void *from) {
    size_t given = from ? *(const size_t *)from : 0;
    memset(to, 0, size);
    if (from) memcpy(to, from, given && given < size ? given : size);
}

/* ---- dtypes ---- */

static bool is_float(etch_dtype d) {
    return d == ETCH_F32 || d == ETCH_F64 || d == ETCH_BF16 || d == ETCH_F16;
}

bool etch__nn_float(const etch_tensor *t) { return is_float(etch_dtype_of(t)); }

bool etch__nn_need_float(const char *function, etch_dtype dtype) {
    if (is_float(dtype)) return true;
    etch__nn_fail(ETCH_ERR_DTYPE, "%s: expected a floating dtype, got %s", function,
                  etch_dtype_name(dtype));
    return false;
}

etch_dtype etch__nn_wide(etch_dtype dtype) {
    return dtype == ETCH_BF16 || dtype == ETCH_F16 ? ETCH_F32 : dtype;
}

etch_tensor *etch__nn_to(etch_tensor *t, etch_dtype dtype) {
    return !t || etch_dtype_of(t) == dtype ? t : etch_to(t, dtype);
}
