/* Guards of operator calls: see call.h. */
#include "guards/call.h"
#include "core/ops/schema.h"

static uint64_t key_of(const op_call *call) {
    return etch__call_key(call->op, call->nin, call->nsc, call->nat);
}

static bool same_kinds(const cursor_node *n, const op_call *call) {
    for (int i = 0; i < call->nsc; i++)
        if (n->kind[i] != call->sc[i].kind) return false;
    return true;
}

bool etch__same_call(const cursor_node *n, const op_call *call, uint64_t state) {
    if (n->key != key_of(call) || n->state != state || !same_kinds(n, call)) return false;
    return !call->nat || !memcmp(n->at, call->at, call->nat * sizeof(int64_t));
}

/* The first attribute word that differs and is no run-time value, -1 without one. Nor is the class
 * of a scalar static: it selects other instructions, in code that is made for these values. */
static int static_difference(op_id op, const int64_t *a, const int64_t *b) {
    const op_schema *s = etch__schema(op);
    int k = 0;
    for (int i = 0; i < s->nargs; i++) {
        const schema_arg *arg = &s->args[i];
        if (arg->type == ARG_TENSOR || arg->type == ARG_TENSOR_OPT || arg->type == ARG_TENSORS ||
            arg->type == ARG_SCALAR)
            continue;
        bool list = arg->type == ARG_INTS || arg->type == ARG_INTS_OPT;
        int words = list && a[k] > 0 ? 1 + (int)a[k] : 1;
        if (list && a[k] != b[k]) return k;
        for (int j = 0; !arg->run_time && j < words; j++)
            if (a[k + j] != b[k + j]) return k + j;
        k += words;
    }
    return -1;
}

int etch__static_difference(const cursor_node *n, const op_call *call) {
    if ((n->key ^ key_of(call)) & ~(CURSOR_DYNAMIC | KEY_SCALARS)) return -1;
    return static_difference(call->op, n->at, call->at);
}

bool etch__similar_call(const cursor_node *n, const op_call *call, uint64_t state) {
    if ((n->key & ~CURSOR_DYNAMIC) != key_of(call) || n->state != state) return false;
    return same_kinds(n, call) && static_difference(call->op, n->at, call->at) < 0;
}

bool etch__same_cursor_node(const cursor_node *a, const cursor_node *b) {
    if (a->key != b->key || a->state != b->state) return false;
    if (memcmp(a->kind, b->kind, sizeof a->kind)) return false;
    if (a->key & CURSOR_DYNAMIC) return static_difference(etch__key_op(a->key), a->at, b->at) < 0;
    size_t words = etch__key_attributes(a->key);
    return !words || !memcmp(a->at, b->at, words * sizeof *a->at);
}
