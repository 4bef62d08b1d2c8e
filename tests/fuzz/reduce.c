/* Makes a failing program smaller: one change at a time, kept if the program still fails, until no
 * change is. Whether it fails is asked in another process each time, so a crash is an answer too. */
#include "program.h"

#include <string.h>

enum { MAX_TRIALS = 4000 };

typedef struct reduction {
    program *p, next;
    int trials;
    bool (*fails)(const program *p);
} reduction;

/* Keeps r->next if it still fails. */
static bool attempt(reduction *r) {
    bool same = !memcmp(r->p, &r->next, sizeof r->next);
    if (same || r->trials++ > MAX_TRIALS || !r->fails(&r->next)) {
        r->next = *r->p;
        return false;
    }
    *r->p = r->next;
    return true;
}

#define TRY(r, change) ((change), attempt(r))

static bool drop_range(reduction *r, int first, int n) {
    program *p = &r->next;
    memmove(p->statement + first, p->statement + first + n,
            (size_t)(p->nstatements - first - n) * sizeof *p->statement);
    p->nstatements -= n;
    memset(p->statement + p->nstatements, 0, (size_t)n * sizeof *p->statement);
    return attempt(r);
}

static bool drop_statements(reduction *r) {
    bool any = false;
    for (int n = r->p->nstatements / 2; n > 0; n /= 2)
        for (int i = r->p->nstatements - n; i >= 0; i--)
            if (i + n <= r->p->nstatements) any |= drop_range(r, i, n);
    return any;
}

/* All uses of tensor `from` become uses of `to`. */
static void rename_tensor(program *p, int from, int to) {
    for (int i = 0; i < p->nstatements; i++) {
        statement *s = &p->statement[i];
        if (s->a == from && s->kind != ST_OP) s->a = to;
        if (s->b == from && s->kind == ST_QUERY) s->b = to;
        for (int k = 0; s->kind == ST_OP && k < SCHEMA_MAX_ARGS; k++) {
            for (int j = 0; j < 4; j++)
                if (s->arg[k].n > j && s->arg[k].tensor[j] == from) s->arg[k].tensor[j] = to;
            for (int j = 0; j < ETCH_MAX_DIMS; j++)
                if (s->arg[k].number[j].of == from && s->arg[k].number[j].of >= 0)
                    s->arg[k].number[j].of = (int8_t)to;
        }
    }
    for (int i = 0; i < p->setup.nout; i++)
        if (p->setup.out[i] == from) p->setup.out[i] = to;
}

/* A statement goes, and what used its result uses one of its operands. */
static bool bypass_statements(reduction *r) {
    bool any = false;
    for (int i = r->p->nstatements - 1; i >= 0; i--) {
        if (i >= r->p->nstatements || r->p->statement[i].out < 0) continue;
        int operands[8], n = fuzz_operands(&r->p->statement[i], operands);
        for (int k = 0; k < n; k++) {
            rename_tensor(&r->next, r->p->statement[i].out, operands[k]);
            if (drop_range(r, i, 1)) {
                any = true;
                break;
            }
        }
    }
    return any;
}

static bool simplify_statement(reduction *r, int i) {
    statement *s = &r->next.statement[i];
    bool any = TRY(r, s->when = (uint8_t)((1u << r->p->setup.period) - 1));
    for (int k = 0; k < SCHEMA_MAX_ARGS; k++) {
        any |= TRY(r, s->arg[k].varies = false);
        if (s->kind == ST_OP && etch__schema((op_id)s->op)->args[k].type == ARG_SCALAR)
            any |= TRY(r, s->arg[k].scalar = etch_scalar_int(1));
        if (s->arg[k].n > 1 && etch__schema((op_id)s->op)->args[k].type == ARG_TENSORS)
            any |= TRY(r, s->arg[k].n--);
    }
    return any;
}

static bool simplify_input(reduction *r, fuzz_input *in) {
    bool any = TRY(r, (in->feed = -1));
    any |= TRY(r, in->persistent = 0);
    any |= TRY(r, in->plain = 0);
    any |= TRY(r, in->wild = 0);
    any |= TRY(r, in->layout = FUZZ_CONTIGUOUS);
    any |= TRY(r, in->dtype = ETCH_F32);
    any |= TRY(r, in->ndim = 1);
    for (int i = 0; i < 4; i++) any |= TRY(r, in->size[i] = 3);
    return any;
}

static bool simplify_sizes(reduction *r) {
    fuzz_setup *s = &r->next.setup;
    bool any = false;
    for (int i = 0; i < FUZZ_MAX_VARIANTS; i++) any |= TRY(r, s->set[i] = 0);
    for (int set = 0; set < FUZZ_MAX_SETS; set++)
        for (int i = 0; i < 4; i++) {
            if (s->size[set][i] > s->size[0][i]) any |= TRY(r, s->size[set][i] = s->size[0][i]);
            for (int64_t n = 1; n < r->p->setup.size[set][i] && n <= 4; n++)
                if (TRY(r, s->size[set][i] = n)) any = true;
            if (s->size[set][i] > 66) any |= TRY(r, s->size[set][i] = 65);
        }
    return any;
}

static bool simplify_setup(reduction *r) {
    fuzz_setup *s = &r->next.setup;
    bool any = TRY(r, s->fails = 0);
    any |= TRY(r, s->dynamic = 0);
    any |= TRY(r, s->fullgraph = 0);
    any |= TRY(r, s->stable_after = 0);
    any |= TRY(r, s->recompile_limit = 0);
    while (s->nout > 1 && TRY(r, s->nout--)) any = true;
    for (int i = 0; i < s->nout; i++) any |= TRY(r, s->out[i] = 0);
    if (s->nout > 1) any |= TRY(r, (s->out[0] = s->out[s->nout - 1], s->nout--));
    for (int i = 1; i < s->period; i++) any |= TRY(r, s->period = i);
    for (int i = 1; i < r->p->setup.ncalls; i++)
        if (TRY(r, s->ncalls = i)) any = true;
    for (int i = 0; i < s->nin; i++) any |= simplify_input(r, &s->in[i]);
    for (int i = 0; i < s->nglobals; i++) any |= simplify_input(r, &s->global[i]);
    return any | simplify_sizes(r);
}

void fuzz_reduce(program *p, bool (*fails)(const program *p)) {
    static reduction r;
    r.p = p, r.next = *p, r.fails = fails, r.trials = 0;
    for (bool any = true; any;) {
        any = drop_statements(&r);
        any |= bypass_statements(&r);
        any |= simplify_setup(&r);
        for (int i = 0; i < r.p->nstatements; i++) any |= simplify_statement(&r, i);
    }
}
