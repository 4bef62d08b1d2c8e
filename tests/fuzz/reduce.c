/* Makes a failing program smaller: the changes; the loop is etch-minify's. Whether it still fails
 * is asked in another process each time, so a crash is an answer too. */
#include "program.h"
#include "tools/minify/shrink.h"

#include <string.h>

static program *next_of(shrink *s) { return s->next; }
static const program *now_of(const shrink *s) { return s->now; }
#define TRY(s, change) SHRINK_TRY(s, change)

static int count_statements(const void *p) { return ((const program *)p)->nstatements; }

static void drop_range(void *x, int first, int n) {
    program *p = x;
    memmove(p->statement + first, p->statement + first + n,
            (size_t)(p->nstatements - first - n) * sizeof *p->statement);
    p->nstatements -= n;
    memset(p->statement + p->nstatements, 0, (size_t)n * sizeof *p->statement);
}

static bool drop_statements(shrink *s) { return shrink_ranges(s, count_statements, drop_range); }

/* All uses of tensor `from` become uses of `to`. */
static void rename_tensor(program *p, int from, int to) {
    for (int i = 0; i < p->nstatements; i++) {
        statement *s = &p->statement[i];
        int operands[8], n = s->kind == ST_OP ? 0 : fuzz_operands(s, operands);
        if (n > 0 && s->a == from) s->a = to;
        if (n > 1 && s->b == from) s->b = to;
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
static bool bypass_statements(shrink *r) {
    bool any = false;
    for (int i = now_of(r)->nstatements - 1; i >= 0; i--) {
        if (i >= now_of(r)->nstatements || now_of(r)->statement[i].out < 0) continue;
        int operands[8], n = fuzz_operands(&now_of(r)->statement[i], operands);
        bool kept = false;
        for (int k = 0; k < n && !kept; k++) {
            rename_tensor(next_of(r), now_of(r)->statement[i].out, operands[k]);
            drop_range(r->next, i, 1);
            any |= kept = shrink_attempt(r);
        }
    }
    return any;
}

static bool simplify_statement(shrink *r, int i) {
    statement *s = &next_of(r)->statement[i];
    bool any = TRY(r, s->when = (uint8_t)((1u << now_of(r)->setup.period) - 1));
    for (int k = 0; k < SCHEMA_MAX_ARGS; k++) {
        any |= TRY(r, s->arg[k].varies = false);
        if (s->kind == ST_OP && etch__schema(s->op)->args[k].type == ARG_SCALAR)
            any |= TRY(r, s->arg[k].scalar = etch_scalar_int(1));
        if (s->arg[k].n > 1 && etch__schema(s->op)->args[k].type == ARG_TENSORS)
            any |= TRY(r, s->arg[k].n--);
    }
    return any;
}

/* How a backward runs, one by one plainly. */
static bool simplify_backward(shrink *r, int i) {
    statement *s = &next_of(r)->statement[i];
    bool any = false;
    for (int bit = 1; bit < FUZZ_WAYS; bit <<= 1) {
        if (s->kind == ST_BACKWARD && s->b & bit) any |= TRY(r, s->b &= ~bit);
        if (s->kind == ST_GRADS && s->way & bit) any |= TRY(r, s->way &= (uint16_t)~bit);
    }
    return any;
}

static bool simplify_statements(shrink *r) {
    bool any = false;
    for (int i = 0; i < now_of(r)->nstatements; i++)
        any |= simplify_statement(r, i) | simplify_backward(r, i);
    return any;
}

static bool simplify_input(shrink *r, fuzz_input *in) {
    bool any = TRY(r, (in->feed = -1));
    if (!now_of(r)->setup.replay) any |= TRY(r, in->persistent = 0);
    any |= TRY(r, in->base_leaf = 0);
    any |= TRY(r, in->leaf = 0);
    any |= TRY(r, in->plain = 0);
    any |= TRY(r, (in->other = 0, in->other_dtype = 0));
    any |= TRY(r, in->wild = 0);
    any |= TRY(r, in->layout = FUZZ_CONTIGUOUS);
    any |= TRY(r, in->dtype = ETCH_F32);
    any |= TRY(r, in->ndim = 1);
    for (int i = 0; i < 4; i++) any |= TRY(r, in->size[i] = 3);
    return any;
}

static bool simplify_sizes(shrink *r) {
    fuzz_setup *s = &next_of(r)->setup;
    bool any = false;
    for (int i = 0; i < FUZZ_MAX_VARIANTS; i++) any |= TRY(r, s->set[i] = 0);
    for (int set = 0; set < FUZZ_MAX_SETS; set++)
        for (int i = 0; i < 4; i++) {
            if (s->size[set][i] > s->size[0][i]) any |= TRY(r, s->size[set][i] = s->size[0][i]);
            for (int64_t n = 1; n < now_of(r)->setup.size[set][i] && n <= 4; n++)
                if (TRY(r, s->size[set][i] = n)) any = true;
            if (s->size[set][i] > 66) any |= TRY(r, s->size[set][i] = 65);
        }
    return any;
}

static bool simplify_after(shrink *r) {
    fuzz_setup *s = &next_of(r)->setup;
    bool any = false;
    for (int i = 0; i < FUZZ_MAX_VARIANTS; i++)
        for (uint32_t bit = 1; bit <= FUZZ_IN_NO_GRAD; bit <<= 1)
            if (now_of(r)->setup.after[i] & bit) any |= TRY(r, s->after[i] &= ~bit);
    return any;
}

static bool simplify_setup(shrink *r) {
    fuzz_setup *s = &next_of(r)->setup;
    bool any = TRY(r, s->fails = 0);
    any |= TRY(r, s->dynamic = 0);
    any |= TRY(r, s->fullgraph = 0);
    any |= TRY(r, s->stable_after = 0);
    any |= TRY(r, s->recompile_limit = 0);
    any |= TRY(r, s->careful = 0);
    any |= TRY(r, s->replay = 0);
    any |= TRY(r, s->starve_from = 0);
    any |= TRY(r, memset(s->numerics, 0, sizeof s->numerics));
    any |= simplify_after(r);
    while (s->nout > 1 && TRY(r, s->nout--)) any = true;
    for (int i = 0; i < s->nout; i++) any |= TRY(r, s->out[i] = 0);
    if (s->nout > 1) any |= TRY(r, (s->out[0] = s->out[s->nout - 1], s->nout--));
    for (int i = 1; i < s->period; i++) any |= TRY(r, s->period = i);
    for (int i = 1; i < now_of(r)->setup.ncalls; i++)
        if (TRY(r, s->ncalls = i)) any = true;
    for (int i = 0; i < s->nin; i++) any |= simplify_input(r, &s->in[i]);
    for (int i = 0; i < s->nglobals; i++) any |= simplify_input(r, &s->global[i]);
    return any;
}

static bool (*asked)(const program *p);
static bool still_fails(const void *x, void *ctx) {
    (void)ctx;
    return asked(x);
}

void fuzz_reduce(program *p, bool (*fails)(const program *p), int trials) {
    static const shrink_pass passes[] = {drop_statements, bypass_statements, simplify_setup,
                                         simplify_sizes, simplify_statements};
    static program next;
    asked = fails;
    shrink s = {p, &next, sizeof *p, still_fails, NULL, 0, trials};
    shrink_run(&s, passes, COUNT_OF(passes));
}
