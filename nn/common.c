/* Small helpers of the files in this folder: errors, texts, and what every ready-made layer does
 * when it is made. */
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

const char *etch__nn_sizes(const etch_tensor *t, char text[SIZES_TEXT]) {
    int n = etch_ndim(t), used = 1;
    strcpy(text, "[");
    for (int d = 0; d < n; d++)
        used += snprintf(text + used, (size_t)(SIZES_TEXT - used), "%s%lld", d ? ", " : "",
                         (long long)etch_size(t, d));
    snprintf(text + used, (size_t)(SIZES_TEXT - used), "]");
    return text;
}

etch_tensor *etch__nn_refuse(const etch_module *m, const char *what, const etch_tensor *x) {
    char sizes[SIZES_TEXT];
    if (!x || x == ETCH_NONE) return etch__nn_null(etch_module_type(m), "a tensor"), NULL;
    etch__nn_fail(ETCH_ERR_SHAPE, "%s: expected x of sizes %s, got %s", etch_module_type(m), what,
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

/* ---- layers ---- */

/* What a layer remembers beside its tensors: its ctx points behind the size. */
typedef struct blob {
    size_t size;
    max_align_t data[];
} blob;

static void *new_blob(const void *data, size_t size) {
    blob *b = malloc(sizeof *b + size);
    if (!b) return etch__nn_no_memory();
    b->size = size;
    return memcpy(b->data, data, size);
}

static blob *blob_of(void *ctx) { return (blob *)((char *)ctx - offsetof(blob, data)); }
static void *copy_blob(void *ctx) { return new_blob(ctx, blob_of(ctx)->size); }
static void free_blob(void *ctx) { free(blob_of(ctx)); }

static etch_module *furnish(etch_module *m, const void *data, size_t size, const char *config,
                            va_list args) {
    char text[400];
    vsnprintf(text, sizeof text, config, args);
    bool ok = m && etch_module_set_config(m, text) == ETCH_OK;
    void *ctx = ok && size ? new_blob(data, size) : NULL;
    if (ctx) etch_module_set_ctx(m, ctx, copy_blob, free_blob);
    return etch__nn_finish(m, ok && (ctx || !size));
}

etch_module *etch__nn_layer(const char *type, etch_forward forward, const void *data, size_t size,
                            const char *config, ...) {
    va_list args;
    va_start(args, config);
    etch_module *m = furnish(etch_module_new(type, forward), data, size, config, args);
    va_end(args);
    return m;
}

etch_module *etch__nn_layer_n(const char *type, etch_forward_n forward, const void *data,
                              size_t size, const char *config, ...) {
    va_list args;
    va_start(args, config);
    etch_module *m = furnish(etch_module_new_n(type, forward), data, size, config, args);
    va_end(args);
    return m;
}

etch_module *etch__nn_finish(etch_module *m, bool ok) {
    if (ok) return m;
    etch_module_free(m);
    return NULL;
}

_Thread_local int64_t etch__nn_limit = INT64_MAX;

bool etch__nn_within(etch_dtype dtype, etch_shape sizes) {
    int64_t bytes = (int64_t)etch_dtype_size(dtype);
    bool fits = true;
    for (int d = 0; fits && d < sizes.n; d++)
        fits = !__builtin_mul_overflow(bytes, sizes.v[d], &bytes);
    if (etch__nn_limit == INT64_MAX || (fits && bytes <= etch__nn_limit)) return true;
    etch_set_error(ETCH_ERR_FORMAT,
                   "etch_module_from_file: a layer is larger than the file that it stands in");
    return false;
}

bool etch__nn_add_uniform(etch_module *m, const char *name, etch_dtype dtype, etch_shape sizes,
                          double bound) {
    bool ok = false;
    if (!etch__nn_within(dtype, sizes)) return false;
    ETCH_SCOPE {
        etch_tensor *u = etch_rand(dtype, sizes);
        etch_tensor *wide = u ? etch_mul_scalar(u, 2 * bound) : NULL;
        etch_tensor *t = wide ? etch_sub_scalar(wide, bound) : NULL;
        ok = t && etch_module_add_parameter(m, name, t) == ETCH_OK;
    }
    return ok;
}

bool etch__nn_add_full(etch_module *m, const char *name, etch_dtype dtype, etch_shape sizes,
                       double value, bool buffer) {
    bool ok = false;
    if (!etch__nn_within(dtype, sizes)) return false;
    ETCH_SCOPE {
        etch_tensor *t = etch_full(dtype, sizes, value);
        ok = t && (buffer ? etch_module_add_buffer(m, name, t)
                          : etch_module_add_parameter(m, name, t)) == ETCH_OK;
    }
    return ok;
}
