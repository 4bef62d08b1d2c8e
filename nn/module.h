/* What the files of this folder share: the module itself, and small helpers. All of it is built on
 * the public headers alone, as a user's own would be. */
#ifndef ETCH_NN_MODULE_H
#define ETCH_NN_MODULE_H

#include <etch/etch.h>

#include <stdatomic.h>

typedef struct named {
    char *name;
    void *item;
} named;

typedef struct name_list {
    named *list;
    int n;
} name_list;

/* A hook of one kind: the member that is set says which. */
typedef struct module_hook {
    etch_pre_hook before;
    etch_hook after;
    etch_pre_hook_n before_n;
    etch_hook_n after_n;
    void *ctx;
    int64_t handle; /* 0: removed */
} module_hook;

/* All tensors of a module and of those below it, own ones first, in the order of adding. */
typedef struct listing {
    int n, nparameters, nbuffers;
    struct listed {
        char *name; /* dotted */
        etch_tensor *tensor;
        bool buffer;
        int first; /* the first entry with this tensor: itself, unless it is tied */
    } * all;
    int *parameters, *buffers; /* into all: each tensor once */
} listing;

struct etch_module {
    char *type, *config;
    etch_forward forward;
    etch_forward_n forward_n; /* either */
    etch_module *parent;      /* frees it */
    bool evaluates;           /* not training */
    name_list parameters, buffers, children;
    _Atomic(listing *) listed; /* NULL: not made since the last change */
    module_hook *hooks;
    int nhooks, walking;
    int nbackward; /* hooks on gradients: nn/backward_hooks.c */
    int64_t last_handle;
    void *ctx;
    void *(*copy_ctx)(void *ctx);
    void (*free_ctx)(void *ctx);
    etch_function *compiled;
};

/* ---- nn/common.c ---- */

/* Sets the error with a text as printf makes it; returns the status. */
etch_status etch__nn_fail(etch_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* "FUNCTION: expected WHAT, got NULL". */
etch_status etch__nn_null(const char *function, const char *what);
void *etch__nn_no_memory(void);
/* NULL with the error set. */
char *etch__nn_copy_text(const char *text);
/* "[2, 3]" into text, which is returned. */
enum { SIZES_TEXT = 200 };
const char *etch__nn_sizes(const etch_tensor *t, char text[SIZES_TEXT]);
bool etch__nn_same_sizes(const etch_tensor *a, const etch_tensor *b);
const char *etch__nn_shape(etch_shape sizes, char text[SIZES_TEXT]);
/* The error shape of a layer: "TYPE: expected x of sizes WHAT, got [2]". NULL. */
etch_tensor *etch__nn_refuse(const etch_module *m, const char *what, const etch_tensor *x);
/* *to = the fields that the caller's version of the options has, from their struct_size on; the
 * others are zero. */
void etch__nn_options(void *to, size_t size, const void *from);
/* Whether the tensor's dtype is floating point. */
bool etch__nn_float(const etch_tensor *t);
/* f32 for the half types, else the dtype itself: what statistics are computed in. */
etch_dtype etch__nn_wide(etch_dtype dtype);
/* t itself where it has the dtype; NULL for NULL. */
etch_tensor *etch__nn_to(etch_tensor *t, etch_dtype dtype);

/* ---- nn/layers.c ---- */

/* x with each element dropped with probability p, the others divided by 1 - p. NULL for NULL. */
etch_tensor *etch__nn_drop(etch_tensor *x, double p);

/* ---- nn/module.c ---- */

/* m, or NULL after freeing it where ok is false. */
etch_module *etch__nn_finish(etch_module *m, bool ok);

/* ---- nn/names.c ---- */

/* Of m itself, by a name without dots; no error where there is none. */
void *etch__nn_find(const name_list *list, const char *name, size_t length);
/* The module's own parameter or buffer, or ETCH_NONE. */
etch_tensor *etch__nn_own(const etch_module *m, const char *name);
/* Adds the same tensors under the same names, as they are. */
etch_status etch__nn_share(etch_module *m, const name_list *from, bool buffers);
/* The list of all tensors, made anew where something has changed; NULL with the error set. Lives
 * until the next change. */
const listing *etch__nn_listing(const etch_module *m);
/* After a change of m: the lists of it and of those above it are no more. */
void etch__nn_changed(etch_module *m);
/* The same of m alone. */
void etch__nn_forget(etch_module *m);
void etch__nn_free_names(name_list *list);

/* ---- nn/backward_hooks.c ---- */

/* Removes a hook of m, or all of them (0); one that is not there is a no-op. */
void etch__nn_remove_backward(etch_module *m, int64_t handle);
/* Where m has hooks on the gradients of its inputs, or its results: puts aliases in the places of
 * those that require gradients, with the hooks on them. */
bool etch__nn_watch(const etch_module *m, bool results, etch_tensor **t, int n);

/* ---- nn/make_layer.c ---- */

/* A layer whose ctx is a copy of size bytes at data (copied and freed with it), with a config as
 * printf makes it. NULL with the error set. */
etch_module *etch__nn_layer(const char *type, etch_forward forward, const void *data, size_t size,
                            const char *config, ...) __attribute__((format(printf, 5, 6)));
etch_module *etch__nn_layer_n(const char *type, etch_forward_n forward, const void *data,
                              size_t size, const char *config, ...)
    __attribute__((format(printf, 5, 6)));
/* The most bytes that one parameter of a ready-made layer may have on this thread: of a layer that
 * is made from a file, as many as the file. */
extern _Thread_local int64_t etch__nn_limit;
/* Whether a tensor of these sizes is within it; else the error format. */
bool etch__nn_within(etch_dtype dtype, etch_shape sizes);
/* A parameter uniform in +-bound. Needs no open scope. */
bool etch__nn_add_uniform(etch_module *m, const char *name, etch_dtype dtype, etch_shape sizes,
                          double bound);
/* A parameter, or a buffer, full of a value. */
bool etch__nn_add_full(etch_module *m, const char *name, etch_dtype dtype, etch_shape sizes,
                       double value, bool buffer);
/* Whether the dtype is floating point; else the error dtype of that function. */
bool etch__nn_need_float(const char *function, etch_dtype dtype);

#endif
