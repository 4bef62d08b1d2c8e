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
    conditional *c = handler ? calloc(1, sizeof *c) : NULL;
    if (!c) {
        etch_set_error(handler ? ETCH_ERR_OUT_OF_MEMORY : ETCH_ERR_NULL,
                       handler ? NULL : "etch_conditional_mode: expected a handler, got NULL");
        return NULL;
    }
    snprintf(c->op, sizeof c->op, "%s", op ? op : "");
    c->min_elements = min_elements;
    c->handler = handler, c->ctx = ctx;
    return mode_or_free(etch_mode_new(choose, c, .name = name, .destroy = free), c, free);
}
