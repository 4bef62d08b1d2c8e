/* Calling modules: hooks around forward, and the compiled function in place of both.
 *
 * Hooks are counted entries of a list: one that is removed while its call walks the list stays in
 * its place, empty, until the outermost walk has ended. */
#include "nn/module.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- hooks ---- */

/* 0 with the error set. */
static int64_t add_hook(etch_module *m, module_hook h) {
    module_hook *grown = realloc(m->hooks, (size_t)(m->nhooks + 1) * sizeof *grown);
    if (!grown) return etch__nn_no_memory(), 0;
    h.handle = ++m->last_handle;
    m->hooks = grown;
    m->hooks[m->nhooks++] = h;
    return h.handle;
}

int64_t etch_module_forward_pre_hook(etch_module *m, etch_pre_hook before, void *ctx) {
    if (m && before) return add_hook(m, (module_hook){.before = before, .ctx = ctx});
    return etch__nn_null("etch_module_forward_pre_hook", "a module and a hook"), 0;
}

int64_t etch_module_forward_hook(etch_module *m, etch_hook after, void *ctx) {
    if (m && after) return add_hook(m, (module_hook){.after = after, .ctx = ctx});
    return etch__nn_null("etch_module_forward_hook", "a module and a hook"), 0;
}

int64_t etch_module_forward_pre_hook_n(etch_module *m, etch_pre_hook_n before, void *ctx) {
    if (m && before) return add_hook(m, (module_hook){.before_n = before, .ctx = ctx});
    return etch__nn_null("etch_module_forward_pre_hook_n", "a module and a hook"), 0;
}

int64_t etch_module_forward_hook_n(etch_module *m, etch_hook_n after, void *ctx) {
    if (m && after) return add_hook(m, (module_hook){.after_n = after, .ctx = ctx});
    return etch__nn_null("etch_module_forward_hook_n", "a module and a hook"), 0;
}

static void sweep_hooks(etch_module *m) {
    int n = 0;
    for (int i = 0; i < m->nhooks; i++)
        if (m->hooks[i].handle) m->hooks[n++] = m->hooks[i];
    m->nhooks = n;
}

void etch_hook_remove(etch_module *m, int64_t handle) {
    for (int i = 0; m && handle && i < m->nhooks; i++)
        if (m->hooks[i].handle == handle) m->hooks[i].handle = 0;
    if (m && !m->walking) sweep_hooks(m);
    if (m && handle) etch__nn_remove_backward(m, handle);
}

/* The tensors of one call. */
typedef struct tensors {
    etch_tensor **in, **out;
    int nin, nout;
} tensors;

/* NULL is a failure only with an error of the hook's own, which is told from an older one by its
 * text. */
static bool call_hook_of_one(const module_hook *h, etch_module *m, tensors t) {
    char older[1024];
    snprintf(older, sizeof older, "%s", etch_last_error());
    etch_tensor *x = t.nin ? t.in[0] : NULL, **value = h->after ? t.out : t.in;
    if (!(h->after ? t.nout : t.nin)) return true;
    etch_tensor *result = h->after ? h->after(h->ctx, m, x, *value) : h->before(h->ctx, m, *value);
    if (result) *value = result;
    return result || etch_last_status() == ETCH_OK || !strcmp(older, etch_last_error());
}

static bool call_hook(const module_hook *h, etch_module *m, tensors t) {
    if (h->before_n) return h->before_n(h->ctx, m, t.in, t.nin) == ETCH_OK;
    if (h->after_n) return h->after_n(h->ctx, m, t.in, t.nin, t.out, t.nout) == ETCH_OK;
    return call_hook_of_one(h, m, t);
}

/* Walks the hooks of one kind; false: a hook failed. */
static bool run_hooks(etch_module *m, bool after, tensors t) {
    bool ok = true;
    if (!m->nhooks) return true;
    m->walking++;
    for (int i = 0; ok && i < m->nhooks; i++) {
        module_hook h = m->hooks[i]; /* the list may move */
        if (!h.handle || (h.after || h.after_n) != after) continue;
        ok = call_hook(&h, m, t);
    }
    if (--m->walking == 0) sweep_hooks(m);
    return ok;
}

/* ---- calling ---- */

static etch_status run_forward(etch_module *m, tensors t) {
    if (m->forward_n) return m->forward_n(m, t.in, t.nin, t.out, t.nout);
    if (t.nin != 1 || t.nout != 1)
        return etch__nn_fail(ETCH_ERR_INVALID_ARGUMENT,
                             "etch_module_call_n: %s takes one tensor and gives one, got %d and "
                             "room for %d",
                             m->type, t.nin, t.nout);
    t.out[0] = m->forward(m, t.in[0]);
    return t.out[0] ? ETCH_OK : etch_last_status();
}

/* A forward that gives nothing and sets no error has failed all the same. */
static etch_status completed(const etch_module *m, etch_status status, tensors t) {
    for (int i = 0; i < t.nout; i++)
        if (status == ETCH_OK && !t.out[i])
            status =
                etch__nn_fail(ETCH_ERR_USER, "etch_module_call: %s gave no tensor %d", m->type, i);
    for (int i = 0; status != ETCH_OK && i < t.nout; i++) t.out[i] = NULL;
    return status;
}

static etch_status call_plain(etch_module *m, etch_tensor *const *in, int nin, etch_tensor **out,
                              int nout) {
    etch_tensor *changed[ETCH_MODULE_TENSORS]; /* hooks may put others in their places */
    tensors t = {changed, out, nin, nout};
    for (int i = 0; i < nin; i++) changed[i] = in[i];
    for (int i = 0; i < nout; i++) out[i] = NULL;
    if (!run_hooks(m, false, t) || !etch__nn_watch(m, false, t.in, nin))
        return completed(m, etch_last_status(), t);
    etch_status status = completed(m, run_forward(m, t), t);
    if (status == ETCH_OK && (!run_hooks(m, true, t) || !etch__nn_watch(m, true, out, nout)))
        status = etch_last_status();
    return completed(m, status, t);
}

static etch_status compiled_body(void *ctx, etch_tensor *const *in, int nin, etch_tensor **out,
                                 int nout) {
    return call_plain(ctx, in, nin, out, nout);
}

static etch_status call_module(etch_module *m, etch_tensor *const *in, int nin, etch_tensor **out,
                               int nout) {
    return m->compiled ? etch_call_n(m->compiled, in, nin, out, nout)
                       : call_plain(m, in, nin, out, nout);
}

etch_tensor *etch_module_call(etch_module *m, etch_tensor *x) {
    if (!m) return etch__nn_null("etch_module_call", "a module"), NULL;
    etch_tensor *y = NULL;
    return call_module(m, &x, 1, &y, 1) == ETCH_OK ? y : NULL;
}

etch_status etch_module_call_n(etch_module *m, etch_tensor *const *in, int nin, etch_tensor **out,
                               int nout) {
    if (!m || (nin > 0 && !in) || (nout > 0 && !out))
        return etch__nn_null("etch_module_call_n", "a module and arrays of tensors");
    if (nin < 0 || nout < 0 || nin > ETCH_MODULE_TENSORS || nout > ETCH_MODULE_TENSORS)
        return etch__nn_fail(ETCH_ERR_INVALID_ARGUMENT,
                             "etch_module_call_n: expected up to %d tensors, got %d and room for "
                             "%d",
                             ETCH_MODULE_TENSORS, nin, nout);
    return call_module(m, in, nin, out, nout);
}

/* ---- compiling ---- */

etch_status etch_module_compile_with(etch_module *m, const etch_compile_options *options) {
    if (!m) return etch__nn_null("etch_module_compile", "a module");
    etch_compile_options own = {.struct_size = sizeof own};
    if (options) {
        size_t given = options->struct_size;
        memcpy(&own, options, given && given < sizeof own ? given : sizeof own);
    }
    own.struct_size = sizeof own;
    own.ctx = m;
    if (!own.name) own.name = m->type;
    etch_function *f = etch_compile_n(compiled_body, &own);
    if (!f) return etch_last_status();
    etch_function_free(m->compiled);
    m->compiled = f;
    return ETCH_OK;
}

etch_function *etch_module_is_compiled(const etch_module *m) { return m ? m->compiled : NULL; }
