/* A mode that calls a handler only where operator and size say so. */
#include "support.h"

static const char name[] = "conditional";

typedef struct conditional {
    char op[96]; /* "": any */
    int64_t min_elements;
    etch_mode_handler handler;
    void *ctx;
} conditional;

static bool applies(const conditional *c, const etch_op *op, const etch_value *args, int nargs) {
    if (*c->op && !etch_op_is(op, c->op)) return false;
    if (c->min_elements < 0) return true;
    const etch_tensor *first = nargs ? tensor_of(&args[0], 0) : NULL;
    return first && etch_numel(first) > c->min_elements;
}

static etch_status choose(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                          etch_tensor **out, int nout) {
    const conditional *c = ctx;
    if (!applies(c, op, args, nargs)) return ETCH_DECLINED;
    return c->handler(c->ctx, op, args, nargs, out, nout);
}

etch_mode *etch_conditional_mode(const char *op, int64_t min_elements, etch_mode_handler handler,
                                 void *ctx) {
    if (!handler)
        return etch_set_error(ETCH_ERR_NULL, "etch_conditional_mode: expected a handler, got NULL"),
               NULL;
    conditional *c = new_context(sizeof *c);
    if (!c) return NULL;
    snprintf(c->op, sizeof c->op, "%s", op ? op : "");
    c->min_elements = min_elements;
    c->handler = handler, c->ctx = ctx;
    return mode_or_free(etch_mode_new(choose, c, .name = name, .destroy = free), c, free);
}
