/* What every ready-made layer does when it is made: a module with a config and what it remembers,
 * then its parameters, which are no larger than a file that it is made from. */
#include "nn/module.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
