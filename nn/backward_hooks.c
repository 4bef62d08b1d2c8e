/* Hooks on the gradients of modules: at each call the inputs, or the results, of a module that has
 * some become aliases, on which a hook of the tape's is put. The tape may outlive the module, and a
 * hook be removed before its gradient comes: so what the tape has is a number, by which a list of
 * the whole process knows the hook while it is there. */
#include "nn/module.h"

#include <pthread.h>
#include <stdlib.h>

typedef struct backward_hook {
    int64_t number, handle; /* the process's, and the module's */
    etch_module *module;
    etch_backward_hook hook;
    void *ctx;
    bool results;
} backward_hook;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static backward_hook *hooks; /* in the order of adding */
static int nhooks, room;
static int64_t last_number;

/* ---- the list ---- */

static bool add_row(backward_hook h) {
    pthread_mutex_lock(&lock);
    if (nhooks == room) {
        backward_hook *grown = realloc(hooks, ((size_t)room * 2 + 4) * sizeof *grown);
        if (grown) hooks = grown, room = room * 2 + 4;
    }
    bool ok = nhooks < room;
    if (ok) h.number = ++last_number, hooks[nhooks++] = h;
    pthread_mutex_unlock(&lock);
    return ok || etch__nn_no_memory();
}

void etch__nn_remove_backward(etch_module *m, int64_t handle) {
    if (!m->nbackward) return;
    pthread_mutex_lock(&lock);
    int n = 0;
    for (int i = 0; i < nhooks; i++) {
        bool goes = hooks[i].module == m && (!handle || hooks[i].handle == handle);
        if (goes) m->nbackward--;
        else hooks[n++] = hooks[i];
    }
    nhooks = n;
    pthread_mutex_unlock(&lock);
}

/* The n-th of a module's hooks of one kind. */
static bool nth_of(const etch_module *m, bool results, int n, backward_hook *h) {
    bool found = false;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < nhooks && !found; i++) {
        if (hooks[i].module != m || hooks[i].results != results || n--) continue;
        found = true, *h = hooks[i];
    }
    pthread_mutex_unlock(&lock);
    return found;
}

static bool by_number(int64_t number, backward_hook *h) {
    bool found = false;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < nhooks && !found; i++)
        if (hooks[i].number == number) found = true, *h = hooks[i];
    pthread_mutex_unlock(&lock);
    return found;
}

/* ---- adding ---- */

static int64_t add(etch_module *m, etch_backward_hook hook, void *ctx, bool results) {
    backward_hook h = {.module = m, .hook = hook, .ctx = ctx, .results = results};
    h.handle = ++m->last_handle;
    if (!add_row(h)) return 0;
    m->nbackward++;
    return h.handle;
}

int64_t etch_module_backward_hook(etch_module *m, etch_backward_hook hook, void *ctx) {
    if (m && hook) return add(m, hook, ctx, false);
    return etch__nn_null("etch_module_backward_hook", "a module and a hook"), 0;
}

int64_t etch_module_backward_pre_hook(etch_module *m, etch_backward_hook hook, void *ctx) {
    if (m && hook) return add(m, hook, ctx, true);
    return etch__nn_null("etch_module_backward_pre_hook", "a module and a hook"), 0;
}

/* ---- running ---- */

/* What the tape keeps: the hook's number, and which of the module's tensors it is. */
static void *encode(int64_t number, int i) {
    return (void *)(intptr_t)(number * ETCH_MODULE_TENSORS + i);
}

static etch_tensor *run(void *ctx, etch_tensor *grad) {
    backward_hook h;
    intptr_t code = (intptr_t)ctx;
    if (!by_number(code / ETCH_MODULE_TENSORS, &h)) return NULL; /* removed: the gradient stays */
    return h.hook(h.ctx, h.module, (int)(code % ETCH_MODULE_TENSORS), grad);
}

bool etch__nn_watch(const etch_module *m, bool results, etch_tensor **t, int n) {
    backward_hook h;
    if (!m->nbackward || !etch_grad_enabled() || !nth_of(m, results, 0, &h)) return true;
    for (int i = 0; i < n; i++) {
        if (!etch_requires_grad(t[i])) continue;
        if (!(t[i] = etch_view(t[i], etch_sizes(t[i])))) return false;
        for (int k = 0; nth_of(m, results, k, &h); k++)
            if (!etch_add_grad_hook(t[i], run, encode(h.number, i))) return false;
    }
    return true;
}
