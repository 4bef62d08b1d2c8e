/* See hooks.h. */
#include "core/base/hooks.h"

/* Without a tracer linked in, nothing is ever deferred and the hooks do nothing. */
static etch_status no_read(const etch_tensor *t, reason_id why, const void *site) {
    (void)t, (void)why, (void)site;
    return ETCH_OK;
}
static etch_status no_expose(const etch_tensor *t, unsigned counts, const void *site) {
    (void)t, (void)counts, (void)site;
    return ETCH_OK;
}
static void no_before(const etch_storage *s) { (void)s; }
static bool no_same_storage(const etch_tensor *a, const etch_tensor *b) { return a == b; }
static int64_t no_offset(const etch_tensor *t) { return (void)t, 0; }
static void no_abandon(int64_t mark) { (void)mark; }

static void no_own_borrowed(const etch_tensor *t) { (void)t; }
static void no_add_counts(counters *sum) { (void)sum; }
static void no_reset_counts(void) {}

trace_hooks etch__trace_hooks = {no_read,         no_expose,      no_before,  no_before,
                                 no_same_storage, no_offset,      no_abandon, no_own_borrowed,
                                 no_add_counts,   no_reset_counts};

user_frame etch__enter_user(void) {
    etch_thread *t = &etch__tls;
    user_frame f = {t->cursor, t->run, t->state, t->layers, t->in_flush, NULL};
    t->in_flush |= t->run != NULL;
    t->cursor = NULL, t->run = NULL;
    t->layers &= ~(1u << LAYER_TRACER);
    return f;
}

void etch__leave_user(const user_frame *f) {
    etch_thread *t = &etch__tls;
    t->cursor = f->cursor, t->run = f->run, t->state = f->state;
    t->layers = f->layers, t->in_flush = f->in_flush;
}

void etch__interrupt(user_frame *f) {
    etch_thread *t = &etch__tls;
    *f = etch__enter_user();
    f->outer = t->interrupted;
    t->interrupted = f;
    t->watches++;
}

void etch__end_interrupt(const user_frame *f) {
    etch__tls.watches--;
    etch__tls.interrupted = f->outer;
    etch__leave_user(f);
}
