/* Functions of the user that are called when a compile starts and when it ends. */
#include "core/base/locks.h"
#include "tracer/learn/learn.h"

#include <etch/debug.h>

typedef struct callback {
    void (*fn)(void *ctx);
    void *ctx;
    int64_t handle;
    bool end;
} callback;

static callback *callbacks;
static int64_t ncallbacks, callbacks_cap, last_handle;

static int64_t no_callback(const char *function) {
    etch__error_at(NULL, ETCH_ERR_NULL, "%s: expected a function, got NULL", function);
    return 0;
}

static int64_t add_callback(void (*fn)(void *ctx), void *ctx, bool end) {
    etch__lock(LOCK_CALLBACKS);
    int64_t handle = 0;
    if (etch__grow(&callbacks, &callbacks_cap, ncallbacks + 1, sizeof *callbacks))
        callbacks[ncallbacks++] = (callback){fn, ctx, handle = ++last_handle, end};
    etch__unlock(LOCK_CALLBACKS);
    return handle;
}

int64_t etch_on_compile_start(void (*fn)(void *ctx), void *ctx) {
    return fn ? add_callback(fn, ctx, false) : no_callback("etch_on_compile_start");
}
int64_t etch_on_compile_end(void (*fn)(void *ctx), void *ctx) {
    return fn ? add_callback(fn, ctx, true) : no_callback("etch_on_compile_end");
}

void etch_callback_remove(int64_t handle) {
    etch__lock(LOCK_CALLBACKS);
    for (int64_t i = 0; i < ncallbacks; i++)
        if (callbacks[i].handle == handle) {
            ncallbacks--;
            memmove(&callbacks[i], &callbacks[i + 1], (size_t)(ncallbacks - i) * sizeof *callbacks);
            break;
        }
    if (!ncallbacks) etch__free(callbacks), callbacks = NULL, callbacks_cap = 0;
    etch__unlock(LOCK_CALLBACKS);
}

/* The callback behind c, copied; handles only grow along the list, so callbacks may register and
 * remove any of them, themselves too. */
static bool next_callback(callback *c, int64_t last) {
    etch__lock(LOCK_CALLBACKS);
    int64_t i = 0;
    while (i < ncallbacks && callbacks[i].handle <= c->handle) i++;
    bool there = i < ncallbacks && callbacks[i].handle <= last;
    if (there) *c = callbacks[i];
    etch__unlock(LOCK_CALLBACKS);
    return there;
}

/* What is registered meanwhile waits for its next turn. */
void etch__call_back(bool end) {
    etch__lock(LOCK_CALLBACKS);
    int64_t last = last_handle;
    etch__unlock(LOCK_CALLBACKS);
    for (callback c = {0}; next_callback(&c, last);)
        if (c.end == end) c.fn(c.ctx);
}
