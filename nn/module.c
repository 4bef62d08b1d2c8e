/* Modules: see include/etch/nn.h. Their life, what a type of the user's keeps beside its tensors,
 * settings that go down to the children, and copies. Built on the public headers alone, as a user's
 * own would be. */
#include "nn/module.h"

#include <stdlib.h>
#include <string.h>

/* ---- life ---- */

static etch_module *new_module(const char *type) {
    etch_module *m = calloc(1, sizeof *m);
    if (!m) return etch__nn_no_memory();
    m->type = etch__nn_copy_text(type);
    if (m->type) return m;
    free(m);
    return NULL;
}

etch_module *etch_module_new(const char *type, etch_forward forward) {
    if (!type || !forward)
        return etch__nn_null("etch_module_new", "a type and a forward function"), NULL;
    etch_module *m = new_module(type);
    if (m) m->forward = forward;
    return m;
}

etch_module *etch_module_new_n(const char *type, etch_forward_n forward) {
    if (!type || !forward)
        return etch__nn_null("etch_module_new_n", "a type and a forward function"), NULL;
    etch_module *m = new_module(type);
    if (m) m->forward_n = forward;
    return m;
}

static void free_tensors(name_list *list) {
    for (int i = 0; i < list->n; i++) etch_release(list->list[i].item);
    etch__nn_free_names(list);
}

static void free_module(etch_module *m) {
    etch_function_free(m->compiled);
    m->parent = NULL;
    etch__nn_remove_backward(m, 0);
    etch__nn_changed(m);
    for (int i = 0; i < m->children.n; i++) free_module(m->children.list[i].item);
    free_tensors(&m->parameters);
    free_tensors(&m->buffers);
    etch__nn_free_names(&m->children);
    if (m->free_ctx) m->free_ctx(m->ctx);
    free(m->hooks);
    free(m->config);
    free(m->type);
    free(m);
}

void etch_module_free(etch_module *m) {
    if (m && m->parent)
        etch_set_error(ETCH_ERR_INVALID_ARGUMENT,
                       "etch_module_free: the module belongs to a parent, which frees it");
    else if (m) free_module(m);
}

etch_module *etch__nn_finish(etch_module *m, bool ok) {
    if (ok) return m;
    etch_module_free(m);
    return NULL;
}

/* ---- what a type keeps ---- */

const char *etch_module_type(const etch_module *m) { return m ? m->type : NULL; }
void *etch_module_ctx(const etch_module *m) { return m ? m->ctx : NULL; }
const char *etch_module_config(const etch_module *m) { return m ? m->config : NULL; }

etch_status etch_module_set_ctx(etch_module *m, void *ctx, void *(*copy_fn)(void *ctx),
                                void (*free_fn)(void *ctx)) {
    if (!m) return etch__nn_null("etch_module_set_ctx", "a module");
    if (m->free_ctx && m->ctx != ctx) m->free_ctx(m->ctx);
    m->ctx = ctx, m->copy_ctx = copy_fn, m->free_ctx = free_fn;
    return ETCH_OK;
}

etch_status etch_module_set_config(etch_module *m, const char *config) {
    if (!m) return etch__nn_null("etch_module_set_config", "a module");
    char *copy = config ? etch__nn_copy_text(config) : NULL;
    if (config && !copy) return ETCH_ERR_OUT_OF_MEMORY;
    free(m->config);
    m->config = copy;
    return ETCH_OK;
}

/* ---- settings ---- */

static void set_training(etch_module *m, bool on) {
    m->evaluates = !on;
    for (int i = 0; i < m->children.n; i++) set_training(m->children.list[i].item, on);
}

etch_status etch_module_train(etch_module *m, bool on) {
    if (!m) return etch__nn_null("etch_module_train", "a module");
    set_training(m, on);
    return ETCH_OK;
}

bool etch_module_is_training(const etch_module *m) { return m && !m->evaluates; }

etch_status etch_module_requires_grad_(etch_module *m, bool on) {
    const listing *l = m ? etch__nn_listing(m) : NULL;
    if (!m) return etch__nn_null("etch_module_requires_grad_", "a module");
    if (!l) return ETCH_ERR_OUT_OF_MEMORY;
    for (int i = 0; i < l->nparameters; i++) {
        etch_tensor *t = l->all[l->parameters[i]].tensor;
        if (etch__nn_float(t) && !etch_requires_grad_(t, on)) return etch_last_status();
    }
    return ETCH_OK;
}

etch_status etch_module_zero_grad(etch_module *m) {
    const listing *l = m ? etch__nn_listing(m) : NULL;
    if (!m) return etch__nn_null("etch_module_zero_grad", "a module");
    if (!l) return ETCH_ERR_OUT_OF_MEMORY;
    for (int i = 0; i < l->nparameters; i++) {
        etch_status status = etch_zero_grad(l->all[l->parameters[i]].tensor);
        if (status != ETCH_OK) return status;
    }
    return ETCH_OK;
}

/* ---- other tensors in place of all ---- */

typedef etch_tensor *(*change_fn)(etch_tensor *t, int to);

static etch_tensor *to_dtype(etch_tensor *t, int dtype) {
    return etch__nn_float(t) ? etch__nn_to(t, (etch_dtype)dtype) : t;
}

static etch_tensor *to_device(etch_tensor *t, int device) {
    return etch_device_of(t) == device ? t : etch_to_device(t, device);
}

static etch_tensor *copied(etch_tensor *t, int none) {
    (void)none;
    return etch_clone(t);
}

/* What becomes of t, counted: a leaf becomes a leaf. */
static etch_tensor *changed(etch_tensor *t, change_fn change, int to) {
    etch_tensor *now = NULL;
    ETCH_SCOPE {
        ETCH_NO_GRAD { now = etch_retain(change(t, to)); }
    }
    if (!now || !etch_requires_grad(t) || etch_requires_grad_(now, true)) return now;
    etch_release(now);
    return NULL;
}

/* Every tensor of the list changed, once each and counted; NULL with the error set. */
static etch_tensor **changed_all(const listing *l, change_fn change, int to) {
    etch_tensor **now = calloc((size_t)l->n + 1, sizeof(etch_tensor *));
    if (!now) return etch__nn_no_memory();
    bool ok = true;
    for (int i = 0; ok && i < l->n; i++) {
        etch_tensor *t = l->all[i].first == i ? changed(l->all[i].tensor, change, to)
                                              : etch_retain(now[l->all[i].first]);
        ok = (now[i] = t) != NULL;
    }
    if (ok) return now;
    for (int i = 0; i < l->n; i++) etch_release(now[i]);
    free(now);
    return NULL;
}

/* In the order of the list: own tensors, then those of the children. */
static etch_tensor **put_below(etch_module *m, etch_tensor **now) {
    name_list *lists[2] = {&m->parameters, &m->buffers};
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < lists[k]->n; i++) {
            etch_release(lists[k]->list[i].item);
            lists[k]->list[i].item = *now++;
        }
    for (int i = 0; i < m->children.n; i++) now = put_below(m->children.list[i].item, now);
    etch__nn_forget(m);
    return now;
}

/* All or nothing: the new ones are there before the first is put in its place. */
static etch_status change_all(etch_module *m, change_fn change, int to) {
    const listing *l = etch__nn_listing(m);
    etch_tensor **now = l ? changed_all(l, change, to) : NULL;
    if (!now) return etch_last_status();
    put_below(m, now);
    free(now);
    etch__nn_changed(m);
    return ETCH_OK;
}

etch_status etch_module_to(etch_module *m, etch_dtype dtype) {
    if (!m) return etch__nn_null("etch_module_to", "a module");
    if (!etch__nn_need_float("etch_module_to", dtype)) return ETCH_ERR_DTYPE;
    return change_all(m, to_dtype, (int)dtype);
}

etch_status etch_module_to_device(etch_module *m, etch_device device) {
    if (!m) return etch__nn_null("etch_module_to_device", "a module");
    return change_all(m, to_device, device);
}

/* ---- copies ---- */

/* What is neither tensor nor child. */
static bool copy_settings(etch_module *copy, const etch_module *m) {
    copy->forward = m->forward, copy->forward_n = m->forward_n;
    copy->evaluates = m->evaluates;
    if (etch_module_set_config(copy, m->config) != ETCH_OK) return false;
    void *ctx = m->ctx && m->copy_ctx ? m->copy_ctx(m->ctx) : m->ctx;
    if (m->ctx && !ctx) return false;
    copy->ctx = ctx, copy->copy_ctx = m->copy_ctx, copy->free_ctx = m->free_ctx;
    return true;
}

static etch_module *copy_structure(const etch_module *m) {
    if (m->ctx && m->free_ctx && !m->copy_ctx) {
        etch__nn_fail(ETCH_ERR_UNSUPPORTED,
                      "etch_module_copy: the ctx of %s has a function that frees it and none that "
                      "copies it",
                      m->type);
        return NULL;
    }
    etch_module *copy = new_module(m->type);
    bool ok = copy && copy_settings(copy, m) &&
              etch__nn_share(copy, &m->parameters, false) == ETCH_OK &&
              etch__nn_share(copy, &m->buffers, true) == ETCH_OK;
    for (int i = 0; ok && i < m->children.n; i++) {
        etch_module *child = copy_structure(m->children.list[i].item);
        ok = child && etch_module_add_child(copy, m->children.list[i].name, child) == ETCH_OK;
        if (!ok) etch_module_free(child);
    }
    return etch__nn_finish(copy, ok);
}

etch_module *etch_module_copy(const etch_module *m) {
    if (!m) return etch__nn_null("etch_module_copy", "a module"), NULL;
    etch_module *copy = copy_structure(m);
    return etch__nn_finish(copy, copy && change_all(copy, copied, 0) == ETCH_OK);
}
