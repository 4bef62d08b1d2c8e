/* Bytes that steps read and write, for the report: what goes through memory or a cache between one
 * step and the next. A kernel's are those of the elements that its loads and stores go over, each
 * counted once (an element that is read again and again, along an axis where it does not move, is
 * one); a call's are its operands and results. What a product hands to the kernel behind it in
 * the same step, and what stays in registers, is none of them. */
#include "jit/plan/plan_maker.h"

static int64_t bytes_of(const tensor_meta *m) {
    return etch__meta_numel(m) * (int64_t)etch_dtype_size(m->dtype);
}

/* Of one access: the axes along which it moves. */
static int64_t elements(const lowered *low, int access) {
    int naxes = low->k.npar + low->k.nred;
    const int64_t *stride = low->dims + naxes * (access + 1);
    int64_t n = 1;
    for (int a = 0; a < naxes; a++) n *= stride[a] ? low->dims[a] : 1;
    return n;
}

static bool is_tile(const lowered *low, int access) {
    for (int i = 0; i < low->nmatmuls; i++)
        if (low->matmul[i].access == access) return true;
    return false;
}

static int64_t matmul_bytes(const joined_matmul *p) {
    if (p->conv)
        return bytes_of(&p->a_meta) + bytes_of(&p->b_meta) +
               (p->bias.version < 0 ? 0 : bytes_of(&p->bias_meta));
    return (p->m * p->k + p->k * p->n) * (int64_t)etch_dtype_size(p->dtype);
}

int64_t etch__kernel_bytes(const lowered *low) {
    int64_t bytes = 0;
    for (int i = 0; i < low->k.naccesses; i++)
        if (!is_tile(low, i))
            bytes += elements(low, i) * (int64_t)etch_dtype_size(low->k.access[i].dtype);
    for (int i = 0; i < low->nmatmuls; i++) bytes += matmul_bytes(&low->matmul[i]);
    return bytes;
}

int64_t etch__call_bytes(const plan_maker *m, const ir_node *n) {
    int64_t bytes = bytes_of(&m->r->versions[n->out].meta);
    for (int i = 0; i < n->nin; i++) {
        const ir_source *s = &sources(m->r, n)[i];
        if (s->version >= 0) bytes += bytes_of(&s->meta);
    }
    return bytes;
}

int64_t etch__operator_bytes(const graph *g) {
    int64_t bytes = 0;
    for (int i = 0; i < g->nnodes; i++) {
        const graph_node *n = &g->nodes[i];
        if (etch__ops[n->op].kind == KIND_VIEW) continue;
        bytes += bytes_of(&g->values[n->out].meta);
        for (int k = 0; k < n->nin; k++)
            if (g->operands[n->in + k] >= 0)
                bytes += bytes_of(&g->values[g->operands[n->in + k]].meta);
    }
    return bytes;
}
