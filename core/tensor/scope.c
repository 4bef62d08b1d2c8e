/* Scopes: a stack of handles per thread; each scope owns the handles above its start.
 *
 * A variable (etch_assign) is its address, the tensor that it was given, and the scope that has a
 * count of that tensor for it: one item there, like any other, until the variable gets another
 * tensor. A record whose variable holds something else by now is of a variable that is gone. */
#include "core/tensor/tensor.h"
#include "core/base/hooks.h"
#include "core/base/start.h"

int64_t etch_scope_begin(void) {
    etch_thread *t = &etch__tls;
    if (unlikely(!t->registered)) etch__thread_register();
    if (unlikely(t->nscopes == t->scopes_cap) &&
        !etch__grow_lines(&t->scope_start, &t->scopes_cap, t->nscopes + 1,
                          sizeof *t->scope_start)) {
        t->lost_scopes += t->lost_scopes < UINT8_MAX;
        return -1;
    }
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

/* Those whose tensors live in scope `mark` or one inside it. */
static void forget_variables(scope_variables *list, int64_t mark) {
    int64_t n = 0;
    for (int64_t i = 0; i < list->n; i++)
        if (list->v[i].scope < mark) list->v[n++] = list->v[i];
    list->n = n;
}

void etch_scope_end(int64_t mark) {
    etch_thread *t = &etch__tls;
    if (unlikely(mark < 0)) t->lost_scopes -= t->lost_scopes > 0;
    if (mark < 0 || mark >= t->nscopes) return;
    if (unlikely(mark <= t->guard_scope)) etch__trace_hooks.abandon(mark);
    if (unlikely(mark <= t->body_scope)) t->body_scope = t->guard_scope; /* left by longjmp */
    if (unlikely(t->variables != NULL)) forget_variables(t->variables, mark);
    int64_t start = t->scope_start[mark];
    while (t->nitems > start) give_up(t->items[--t->nitems]);
    t->nscopes = mark;
}

bool etch__scope_lost(const void *site) {
    etch_thread *t = &etch__tls;
    if (!t->lost_scopes) return false;
    if (t->status == ETCH_ERR_OUT_OF_MEMORY) t->errors++, etch__error_of_before();
    else etch__error_at(site, ETCH_ERR_OUT_OF_MEMORY, "there was no memory to open the scope");
    return true;
}

bool etch__scope_push(etch_tensor *h) {
    etch_thread *t = &etch__tls;
    if (unlikely(t->nscopes == 0)) {
        if (!etch__scope_lost(NULL))
            etch__error(ETCH_ERR_NO_SCOPE, "no scope is open on this thread to own the result: put "
                                           "the code into ETCH_SCOPE { ... }");
        return false;
    }
    if (unlikely(t->nitems == t->items_cap) &&
        !etch__grow_lines(&t->items, &t->items_cap, t->nitems + 1, sizeof *t->items))
        return false;
    t->items[t->nitems++] = h;
    return true;
}

/* ---- moving items between scopes ---- */

/* The newest item of h from items[from] on, before items[to]; -1 without one. */
static int64_t find_item(const etch_thread *t, const etch_tensor *h, int64_t from, int64_t to) {
    int64_t at = to - 1;
    while (at >= from && t->items[at] != h) at--;
    return at >= from ? at : -1;
}

/* Where the items of the scope inside this one begin. */
static int64_t end_of_scope(const etch_thread *t, int64_t scope) {
    return scope + 1 < t->nscopes ? t->scope_start[scope + 1] : t->nitems;
}

static int64_t scope_of(const etch_thread *t, int64_t at) {
    int64_t scope = t->nscopes - 1;
    while (t->scope_start[scope] > at) scope--;
    return scope;
}

/* Moves items[at] out to `scope`: at each border it changes places with the first item of the scope
 * that it leaves. */
static void move_out(etch_thread *t, int64_t at, int64_t scope) {
    for (int64_t s = scope_of(t, at); s > scope; s--) {
        int64_t first = t->scope_start[s]++;
        etch_tensor *moved = t->items[at];
        t->items[at] = t->items[first];
        t->items[first] = moved;
        at = first;
    }
}

/* Takes items[at] off the stack: the last item of each scope above fills the gap below it. */
static void take_off(etch_thread *t, int64_t at) {
    for (int64_t s = scope_of(t, at) + 1; s < t->nscopes; s++) {
        int64_t last = --t->scope_start[s];
        t->items[at] = t->items[last];
        at = last;
    }
    t->items[at] = t->items[--t->nitems];
}

/* A tensor that is kept outlives the variable that had it. */
static void forget_held(scope_variables *list, const etch_tensor *h) {
    int64_t n = 0;
    for (int64_t i = 0; i < list->n; i++)
        if (list->v[i].held != h) list->v[n++] = list->v[i];
    list->n = n;
}

etch_tensor *etch_keep(etch_tensor *h) {
    etch_thread *t = &etch__tls;
    const void *site = __builtin_return_address(0);
    if (!etch__handle_ok(h, "etch_keep", "t", site)) return NULL;
    if (t->nscopes < 2) {
        if (!etch__scope_lost(site))
            etch__error_at(site, ETCH_ERR_NO_SCOPE,
                           "etch_keep: expected an enclosing scope (to hold a tensor beyond the "
                           "outermost scope use etch_retain)");
        return NULL;
    }
    if (unlikely(t->variables != NULL)) forget_held(t->variables, h);
    int64_t at = find_item(t, h, t->scope_start[t->nscopes - 1], t->nitems);
    if (at >= 0) move_out(t, at, t->nscopes - 2);
    return h;
}

/* ---- variables ---- */

static void free_variables(etch_thread *t) {
    if (t->variables) etch__free(t->variables->v);
    etch__free(t->variables);
    t->variables = NULL;
}

/* The variable's record, a new one behind the last if it has none; NULL: out_of_memory. What it was
 * given before it had this tensor stays with the scope. */
static scope_variable *record_of(etch_thread *t, etch_tensor **variable) {
    if (!t->variables && !(t->variables = etch__calloc(1, sizeof *t->variables))) return NULL;
    scope_variables *list = t->variables;
    for (scope_variable *v = list->v; v < list->v + list->n; v++) {
        if (v->variable != variable) continue;
        if (v->held != *variable) v->held = NULL;
        return v;
    }
    if (!etch__grow(&list->v, &list->cap, list->n + 1, sizeof *list->v)) return NULL;
    list->v[list->n] = (scope_variable){variable, NULL, -1};
    return &list->v[list->n];
}

/* Where a variable's tensor is to live: where the one lives that it has, if that is further out
 * than the enclosing scope, but within the running function's body. */
static int64_t scope_for(const etch_thread *t, const scope_variable *v) {
    if (v->held) return v->scope;
    const etch_tensor *had = *v->variable;
    int64_t scope = t->nscopes - 2, at = had ? find_item(t, had, 0, t->nitems) : -1;
    if (at >= 0 && scope_of(t, at) < scope) scope = scope_of(t, at);
    if (scope < t->body_scope) scope = t->body_scope;
    return scope < 0 ? 0 : scope;
}

/* A count of `value` in `scope`: the one that an inner scope has, or one of its own. */
static bool give_to_scope(etch_thread *t, etch_tensor *value, int64_t scope) {
    int64_t at = find_item(t, value, end_of_scope(t, scope), t->nitems);
    if (at < 0) {
        if (!etch__scope_push(value)) return false;
        etch_retain(value);
        at = t->nitems - 1;
    }
    move_out(t, at, scope);
    return true;
}

static void release_held(etch_thread *t, const scope_variable *v) {
    int64_t at = find_item(t, v->held, t->scope_start[v->scope], end_of_scope(t, v->scope));
    if (at < 0) return;
    take_off(t, at);
    give_up(v->held);
}

etch_status etch_assign(etch_tensor **variable, etch_tensor *value) {
    etch_thread *t = &etch__tls;
    const void *site = __builtin_return_address(0);
    if (!variable)
        return etch__error_at(site, ETCH_ERR_NULL,
                              "etch_assign: expected the address of a variable, got NULL");
    if (!etch__handle_ok(value, "etch_assign", "t", site)) return t->status;
    if (*variable == value || value == ETCH_NONE) return *variable = value, ETCH_OK;
    if (t->nscopes == 0 && etch__scope_lost(site)) return t->status;
    if (t->nscopes == 0)
        return etch__error_at(site, ETCH_ERR_NO_SCOPE,
                              "etch_assign: no scope is open on this thread: put the code into "
                              "ETCH_SCOPE { ... }");
    scope_variable *v = record_of(t, variable);
    int64_t scope = v ? scope_for(t, v) : -1;
    if (!v || !give_to_scope(t, value, scope)) return t->status;
    if (v->held) release_held(t, v);
    t->variables->n += v == t->variables->v + t->variables->n;
    *v = (scope_variable){variable, value, scope};
    *variable = value;
    return ETCH_OK;
}

/* ---- the end of a thread ---- */

/* What its scopes still own dies with it. */
static void end_scopes(etch_thread *t) {
    etch_scope_end(0);
    free_variables(t);
    etch__free(t->items);
    etch__free(t->scope_start);
    t->items = NULL, t->scope_start = NULL;
    t->items_cap = t->scopes_cap = 0;
}

void etch__start_scopes(void) { etch__at_thread_end(end_scopes); }
