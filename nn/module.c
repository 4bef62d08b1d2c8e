/* Modules: see include/etch/nn.h. Built on the public headers alone, as a user's own would be.
 *
 * Hooks are counted entries of a list: one that is removed while its call walks the list stays in
 * its place, empty, until the outermost walk has ended. */
#include <etch/etch.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct named {
    char *name;
    void *item;
} named;

typedef struct hook {
    etch_pre_hook before;
    etch_hook after;
    void *ctx;
    int64_t handle; /* 0: removed */
} hook;

struct etch_module {
    char *type;
    etch_forward forward;
    bool owned; /* by a parent */
    named *parameters, *children;
    int nparameters, nchildren;
    hook *hooks;
    int nhooks, walking;
    int64_t last_handle;
    etch_function *compiled;
};

static void *no_memory(void) {
    etch_set_error(ETCH_ERR_OUT_OF_MEMORY, "out of memory");
    return NULL;
}

static char *copy_text(const char *text) {
    size_t n = strlen(text) + 1;
    char *copy = malloc(n);
    return copy ? memcpy(copy, text, n) : no_memory();
}

/* ---- life ---- */

etch_module *etch_module_new(const char *type, etch_forward forward) {
    if (!type || !forward) {
        etch_set_error(ETCH_ERR_NULL, "etch_module_new: expected a type and a forward function");
        return NULL;
    }
    etch_module *m = calloc(1, sizeof *m);
    if (!m) return no_memory();
    m->forward = forward;
    m->type = copy_text(type);
    if (m->type) return m;
    free(m);
    return NULL;
}

static void free_module(etch_module *m) {
    etch_function_free(m->compiled);
    for (int i = 0; i < m->nparameters; i++) {
        etch_release(m->parameters[i].item);
        free(m->parameters[i].name);
    }
    for (int i = 0; i < m->nchildren; i++) {
        free_module(m->children[i].item);
        free(m->children[i].name);
    }
    free(m->parameters);
    free(m->children);
    free(m->hooks);
    free(m->type);
    free(m);
}

void etch_module_free(etch_module *m) {
    if (m && m->owned)
        etch_set_error(ETCH_ERR_INVALID_ARGUMENT,
                       "etch_module_free: the module belongs to a parent, which frees it");
    else if (m) free_module(m);
}

/* ---- parameters and children ---- */

static void *find(const named *list, int n, const char *name, size_t length) {
    for (int i = 0; i < n; i++)
        if (strlen(list[i].name) == length && !memcmp(list[i].name, name, length))
            return list[i].item;
    return NULL;
}

static etch_status add(etch_module *m, named **list, int *n, const char *name, void *item) {
    if (!m || !name || !item)
        return etch_set_error(ETCH_ERR_NULL, "expected a module, a name and what to add, got NULL");
    size_t length = strlen(name);
    if (!length || strchr(name, '.') || find(m->parameters, m->nparameters, name, length) ||
        find(m->children, m->nchildren, name, length))
        return etch_set_error(ETCH_ERR_INVALID_ARGUMENT,
                              "expected a name without '.' that is not taken");
    named *grown = realloc(*list, (size_t)(*n + 1) * sizeof **list);
    if (grown) *list = grown;
    char *copy = grown ? copy_text(name) : no_memory();
    if (!copy) return ETCH_ERR_OUT_OF_MEMORY;
    grown[(*n)++] = (named){copy, item};
    return ETCH_OK;
}

etch_status etch_module_add_parameter(etch_module *m, const char *name, etch_tensor *t) {
    etch_status status = add(m, m ? &m->parameters : NULL, m ? &m->nparameters : NULL, name, t);
    if (status == ETCH_OK) etch_retain(t);
    return status;
}

static bool contains(const etch_module *m, const etch_module *wanted) {
    bool found = m == wanted;
    for (int i = 0; !found && i < m->nchildren; i++) found = contains(m->children[i].item, wanted);
    return found;
}

etch_status etch_module_add_child(etch_module *m, const char *name, etch_module *child) {
    if (child && (child->owned || contains(child, m)))
        return etch_set_error(ETCH_ERR_INVALID_ARGUMENT,
                              "etch_module_add_child: expected a module without a parent that is "
                              "not the new parent itself, nor one above it");
    etch_status status = add(m, m ? &m->children : NULL, m ? &m->nchildren : NULL, name, child);
    if (status == ETCH_OK) child->owned = true;
    return status;
}

etch_tensor *etch_module_parameter(const etch_module *m, const char *name) {
    for (const char *at = name; m && at;) {
        size_t n = strcspn(at, ".");
        if (!at[n]) {
            etch_tensor *t = find(m->parameters, m->nparameters, at, n);
            if (t) return t;
            break;
        }
        m = find(m->children, m->nchildren, at, n);
        at += n + 1;
    }
    etch_set_error(ETCH_ERR_NOT_FOUND, "etch_module_parameter: no parameter has that name");
    return NULL;
}

etch_module *etch_module_child(const etch_module *m, int i) {
    return m && i >= 0 && i < m->nchildren ? m->children[i].item : NULL;
}

int etch_module_parameter_count(const etch_module *m) {
    int n = m ? m->nparameters : 0;
    for (int i = 0; m && i < m->nchildren; i++)
        n += etch_module_parameter_count(m->children[i].item);
    return n;
}

const char *etch_module_type(const etch_module *m) { return m ? m->type : NULL; }

/* ---- hooks ---- */

/* 0 with the error set. */
static int64_t add_hook(etch_module *m, hook h) {
    hook *grown = realloc(m->hooks, (size_t)(m->nhooks + 1) * sizeof *grown);
    if (!grown) return no_memory(), 0;
    h.handle = ++m->last_handle;
    m->hooks = grown;
    m->hooks[m->nhooks++] = h;
    return h.handle;
}

int64_t etch_module_forward_pre_hook(etch_module *m, etch_pre_hook before, void *ctx) {
    if (m && before) return add_hook(m, (hook){.before = before, .ctx = ctx});
    etch_set_error(ETCH_ERR_NULL,
                   "etch_module_forward_pre_hook: expected a module and a hook, got NULL");
    return 0;
}

int64_t etch_module_forward_hook(etch_module *m, etch_hook after, void *ctx) {
    if (m && after) return add_hook(m, (hook){.after = after, .ctx = ctx});
    etch_set_error(ETCH_ERR_NULL,
                   "etch_module_forward_hook: expected a module and a hook, got NULL");
    return 0;
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
}

/* NULL is a failure only with an error of the hook's own, which is told from an older one by its
 * text. */
static bool call_hook(const hook *h, etch_module *m, etch_tensor *x, etch_tensor *value,
                      etch_tensor **result) {
    char older[1024];
    snprintf(older, sizeof older, "%s", etch_last_error());
    *result = h->after ? h->after(h->ctx, m, x, value) : h->before(h->ctx, m, value);
    return *result || etch_last_status() == ETCH_OK || !strcmp(older, etch_last_error());
}

/* Walks the hooks of one kind. *value is the input (before) or the result; false: a hook failed. */
static bool run_hooks(etch_module *m, bool after, etch_tensor *x, etch_tensor **value) {
    bool ok = true;
    if (!m->nhooks) return true;
    m->walking++;
    for (int i = 0; ok && i < m->nhooks; i++) {
        hook h = m->hooks[i]; /* the list may move */
        if (!h.handle || (h.after != NULL) != after) continue;
        etch_tensor *t;
        ok = call_hook(&h, m, x, *value, &t);
        if (t) *value = t;
    }
    if (--m->walking == 0) sweep_hooks(m);
    return ok;
}

/* ---- calling ---- */

static etch_tensor *call_plain(etch_module *m, etch_tensor *x) {
    if (!run_hooks(m, false, x, &x)) return NULL;
    etch_tensor *y = m->forward(m, x);
    return y && run_hooks(m, true, x, &y) ? y : NULL;
}

static etch_status compiled_body(void *ctx, etch_tensor *const *in, int nin, etch_tensor **out,
                                 int nout) {
    (void)nin, (void)nout;
    out[0] = call_plain(ctx, in[0]);
    return out[0] ? ETCH_OK : etch_last_status();
}

etch_tensor *etch_module_call(etch_module *m, etch_tensor *x) {
    if (!m) {
        etch_set_error(ETCH_ERR_NULL, "etch_module_call: expected a module, got NULL");
        return NULL;
    }
    return m->compiled ? etch_call_one(m->compiled, &x, 1) : call_plain(m, x);
}

etch_status etch_module_compile_with(etch_module *m, const etch_compile_options *options) {
    if (!m) return etch_set_error(ETCH_ERR_NULL, "etch_module_compile: expected a module");
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
