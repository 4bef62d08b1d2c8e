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
static unsigned no_version(const etch_tensor *t) { return (void)t, 0; }
static void no_abandon(int64_t mark) { (void)mark; }

static void no_own_borrowed(const etch_tensor *t) { (void)t; }
static void no_add_counts(counters *sum) { (void)sum; }
static void no_reset_counts(void) {}

trace_hooks etch__trace_hooks = {no_read,         no_expose,     no_before,      no_before,
                                 no_same_storage, no_offset,     no_version,     no_abandon,
                                 no_own_borrowed, no_add_counts, no_reset_counts};
