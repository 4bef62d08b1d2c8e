/* The batching rule of operators that the user registered with one. */
#include "core/dispatch/mode.h"
#include "core/transforms/rules.h"

static bool result_ok(const batched_call *b, const etch_tensor *t) {
    const char *name = etch__ops[b->call->op].name;
    etch_shape want = BATCH_AND(b, b->one);
    if (!t && etch__tls.status == ETCH_OK)
        return etch__false_at(b->call->site, ETCH_ERR_USER,
                              "%s: its function for batches returned NULL", name);
    if (!t) return false;
    if (t->dtype == b->one->dtype && etch__same_dims(t->ndim, t->size, want.n, want.v)) return true;
    return etch__false_at(b->call->site, ETCH_ERR_SHAPE,
                          "%s: its function for batches is to return %s %s (the samples first), "
                          "but returned %s %s",
                          name, etch_dtype_name((etch_dtype)b->one->dtype),
                          etch__shape_text(want.n, want.v).s, etch_dtype_name(t->dtype),
                          etch__shape_text(t->ndim, t->size).s);
}

BATCHING(of_users) {
    const custom_rules *rules = etch__custom_rules(b->call->op);
    if (!rules->vmap) return etch__batching_each_sample(b);
    etch_value values[SCHEMA_MAX_ARGS];
    op_call below = *b->call;
    below.in = b->in;
    const op_call *outer = etch__tls.handled;
    const etch_vmap_call given = {values, etch__box(&below, values), b->call->nin, b->batched,
                                  b->size};
    unsigned errors = etch__tls.errors;
    etch__tls.handled = b->call;
    etch_tensor *t = rules->vmap(rules->ctx, &etch__ops[b->call->op], &given);
    etch__tls.handled = outer;
    if (!t && etch__tls.errors == errors) etch__tls.status = ETCH_OK;
    return result_ok(b, t) ? t : NULL;
}
