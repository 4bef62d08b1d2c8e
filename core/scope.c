/* Scopes: a stack of handles per thread; each scope owns the handles above its start. */
#include "core/tensor.h"
#include "core/dispatch.h"

int64_t etch_scope_begin(void) {
    etch_thread *t = &etch__tls;
    if (unlikely(!t->registered)) etch__thread_register();
    if (unlikely(t->nscopes == t->scopes_cap) &&
        !etch__grow_lines(&t->scope_start, &t->scopes_cap, t->nscopes + 1, sizeof *t->scope_start))
        return -1;
    t->scope_start[t->nscopes] = t->nitems;
    return t->nscopes++;
}

/* Gives up a scope's count. A count of 2 on a walk's own handle is the scope's and the walk's, both
 * of this thread, so no locked instruction is needed. */
static inline void give_up(etch_tensor *t) {
    int refs = atomic_load_explicit(&t->refs, memory_order_acquire);
    if (refs == 2 && t->owner) atomic_store_explicit(&t->refs, 1, memory_order_release);
    else if (refs == 1 || atomic_fetch_sub_explicit(&t->refs, 1, memory_order_acq_rel) == 1)
        etch__tensor_destroy(t);
}

void etch_scope_end(int64_t mark) {
    etch_thread *t = &etch__tls;
    if (mark < 0 || mark >= t->nscopes) return;
    if (unlikely(mark <= t->guard_scope)) etch__trace_hooks.abandon(mark);
    int64_t start = t->scope_start[mark];
    while (t->nitems > start) give_up(t->items[--t->nitems]);
    t->nscopes = mark;
}

bool etch__scope_push(etch_tensor *h) {
    etch_thread *t = &etch__tls;
    if (unlikely(t->nscopes == 0)) {
        etch__error(ETCH_ERR_NO_SCOPE, "no scope is open on this thread to own the result: put the "
                                       "code into ETCH_SCOPE { ... }");
        return false;
    }
    if (unlikely(t->nitems == t->items_cap) &&
        !etch__grow_lines(&t->items, &t->items_cap, t->nitems + 1, sizeof *t->items))
        return false;
    t->items[t->nitems++] = h;
    return true;
}

/* Moves items[at], owned by the innermost scope, below that scope's start. */
static void move_out(etch_thread *t, int64_t at) {
    int64_t *start = &t->scope_start[t->nscopes - 1];
    etch_tensor *kept = t->items[at];
    t->items[at] = t->items[*start];
    t->items[*start] = kept;
    *start += 1;
}

etch_tensor *etch_keep(etch_tensor *h) {
    etch_thread *t = &etch__tls;
    const void *site = __builtin_return_address(0);
    if (!etch__handle_ok(h, "etch_keep", "t", site)) return NULL;
    if (t->nscopes < 2) {
        etch__error_at(site, ETCH_ERR_NO_SCOPE,
                       "etch_keep: expected an enclosing scope (to hold a tensor beyond the "
                       "outermost scope use etch_retain)");
        return NULL;
    }
    for (int64_t i = t->nitems - 1; i >= t->scope_start[t->nscopes - 1]; i--)
        if (t->items[i] == h) {
            move_out(t, i);
            break;
        }
    return h;
}
