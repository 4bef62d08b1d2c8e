/* A mode that turns calls of one operator into calls of another with the same arguments. What the
 * other returns must look like what the replaced one returns: the library checks it. */
#include "support.h"

#include <stdatomic.h>

static const char name[] = "replacement";

typedef struct replacement {
    char op[96];
    const etch_op *by;
    atomic_llong replaced;
} replacement;

static etch_status replace(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                           etch_tensor **out, int nout) {
    replacement *r = ctx;
    if (!etch_op_is(op, r->op)) return ETCH_DECLINED;
    etch_status status = etch_op_call(r->by, args, nargs, out, nout);
    if (status == ETCH_OK) atomic_fetch_add(&r->replaced, 1);
    return status;
}

etch_mode *etch_replacement_mode(const char *op, const etch_op *by) {
    if (!op || !by)
        return etch_set_error(ETCH_ERR_NULL,
                              "etch_replacement_mode: expected two operators, got NULL"),
               NULL;
    if (!etch_op_find(op)) return NULL;
    replacement *r = new_context(sizeof *r);
    if (!r) return NULL;
    snprintf(r->op, sizeof r->op, "%s", op);
    r->by = by;
    return mode_or_free(etch_mode_new(replace, r, .name = name, .destroy = free), r, free);
}

int64_t etch_replacement_mode_count(const etch_mode *mode) {
    replacement *r = context_of(mode, name);
    return r ? atomic_load(&r->replaced) : -1;
}
