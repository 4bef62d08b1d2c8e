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

static grad_origin *no_origin(void) { return NULL; }
static void no_drop_origin(grad_origin *o) { (void)o; }
static etch_status no_backward(grad_origin *o, etch_status (*backward)(void *ctx), void *ctx) {
    return (void)o, backward(ctx);
}
static etch_tensor *no_recompute(const etch_tensor *t) { return (void)t, NULL; }
static void no_drop_recipe(recipe_run *r) { (void)r; }
static void no_own_borrowed(const etch_tensor *t) { (void)t; }
static void no_add_counts(counters *sum) { (void)sum; }
static void no_reset_counts(void) {}

trace_hooks etch__trace_hooks = {
    .read = no_read,
    .expose = no_expose,
    .before_write = no_before,
    .before_read = no_before,
    .same_storage = no_same_storage,
    .offset = no_offset,
    .version = no_version,
    .abandon = no_abandon,
    .own_borrowed = no_own_borrowed,
    .origin = no_origin,
    .drop_origin = no_drop_origin,
    .backward = no_backward,
    .recompute = no_recompute,
    .drop_recipe = no_drop_recipe,
    .add_counts = no_add_counts,
    .reset_counts = no_reset_counts,
};
