/* Which steps of a plan wait for which, for a graph of the device. */
#include "jit/plan/plan_maker.h"

/* Memory that a step reads or writes: a whole input or output, or a range of the arena. */
enum { PLACE_CHECKS = PLACE_NONE + 1 }; /* what says whether a check has failed */
typedef struct touched {
    int64_t from, to; /* bytes of the arena, else 0 and 1 */
    int32_t index, step;
    uint8_t kind;
    bool write;
} touched;

static touched touched_at(const plan_maker *m, const plan_place *at, int number, bool write) {
    touched t = {0, 1, at->index, number, at->kind, write};
    if (at->kind != PLACE_ARENA) {
        /* Inputs of one base share a storage, others share nothing where one of them is written. */
        if (at->kind == PLACE_INPUT) t.index = m->r->g->values[at->index].base;
        return t;
    }
    t.from = t.to = at->offset;
    for (int i = 0; i < m->nintervals; i++) {
        const plan_interval *v = &m->intervals[i];
        if (v->offset <= at->offset && at->offset < v->offset + v->bytes &&
            v->offset + v->bytes > t.to && v->first <= m->step_group[number] &&
            m->step_group[number] <= v->last)
            t.from = v->offset, t.to = v->offset + v->bytes;
    }
    return t;
}

static bool conflict(const touched *a, const touched *b) {
    return (a->write || b->write) && a->kind == b->kind && a->index == b->index &&
           a->from < b->to && b->from < a->to;
}

bool etch__step_writes_input(const native_plan *p, const plan_step *s) {
    if (s->is_call) return p->operands[s->c.result].at.kind == PLACE_INPUT;
    for (int i = 0; i < s->k.nargs - 1; i++) /* the last is scratch, and has no bit */
        if (s->k.stores >> i & 1 && p->args[s->k.arg + i].kind == PLACE_INPUT) return true;
    return false;
}

/* A step that writes an input comes after all checks before it. */
static int touched_checks(const native_plan *p, int number, touched *to) {
    const plan_step *s = &p->steps[number];
    bool fails = s->is_call && etch__ops[s->c.call.op].flags & OPF_MAY_FAIL;
    bool writes = etch__step_writes_input(p, s);
    if (!p->checks || (!fails && !writes)) return 0;
    *to = (touched){0, 1, 0, number, PLACE_CHECKS, writes};
    return 1;
}

static int touched_by(const plan_maker *m, int number, touched *to) {
    const native_plan *p = m->p;
    const plan_step *s = &p->steps[number];
    int n = touched_checks(p, number, to);
    if (s->is_call) {
        int count = etch__call_operands(&s->c);
        for (int i = 0; i < count; i++) {
            const operand_slot *o = &p->operands[s->c.operand + i];
            if (!o->none) to[n++] = touched_at(m, &o->at, number, s->c.operand + i == s->c.result);
        }
        return n;
    }
    for (int i = 0; i < s->k.nargs; i++) {
        bool scratch = i == s->k.nargs - 1;
        if (scratch ? !s->k.scratch : p->args[s->k.arg + i].kind == PLACE_NONE) continue;
        to[n++] = touched_at(m, &p->args[s->k.arg + i], number, scratch || s->k.stores >> i & 1);
    }
    return n;
}

enum { GRAPH_STEPS = 4096, TOUCHED_MAX = UINT8_MAX + LOOP_MAX_ACCESSES + 2 };

/* What makes the lists. A step's bits are those of steps: which it waits for, directly or not. */
typedef struct ordering {
    const plan_maker *m;
    touched *live; /* what a later step may conflict with */
    int64_t nlive, live_cap, after_cap;
    size_t words; /* of a step's bits */
    uint64_t *before, *direct;
    touched mine[TOUCHED_MAX]; /* the step's at hand */
    int nmine;
} ordering;

static bool begin_ordering(ordering *o) {
    native_plan *p = o->m->p;
    size_t n = (size_t)p->nsteps;
    o->words = (n + 63) / 64;
    o->before = etch__arena_zeroed(o->m->r->memory, n * o->words * sizeof *o->before);
    o->direct = etch__arena_zeroed(o->m->r->memory, o->words * sizeof *o->direct);
    p->after_at = etch__calloc(n + 1, sizeof *p->after_at);
    return o->before && o->direct && p->after_at;
}

static void find_direct(ordering *o) {
    memset(o->direct, 0, o->words * sizeof *o->direct);
    for (int a = 0; a < o->nmine; a++)
        for (int64_t b = 0; b < o->nlive; b++) {
            int32_t step = o->live[b].step;
            if (conflict(&o->mine[a], &o->live[b])) o->direct[step / 64] |= 1ull << step % 64;
        }
}

/* A step that another predecessor waits for is left out. */
static bool note_predecessors(ordering *o, int step) {
    native_plan *p = o->m->p;
    uint64_t *before = o->before + (size_t)step * o->words;
    int32_t n = p->after_at[step];
    for (int s = 0; s < step; s++)
        for (size_t w = 0; o->direct[s / 64] >> s % 64 & 1 && w < o->words; w++)
            before[w] |= o->before[(size_t)s * o->words + w];
    for (int s = 0; s < step; s++) {
        if (!(o->direct[s / 64] >> s % 64 & 1) || before[s / 64] >> s % 64 & 1) continue;
        if (!etch__grow(&p->after, &o->after_cap, n + 1, sizeof *p->after)) return false;
        p->after[n++] = s;
    }
    for (size_t w = 0; w < o->words; w++) before[w] |= o->direct[w];
    p->after_at[step + 1] = n;
    return true;
}

static bool covers(const touched *by, const touched *t) {
    return by->write && by->kind == t->kind && by->index == t->index && by->from <= t->from &&
           t->to <= by->to;
}

/* Who conflicts with what the step has written over conflicts with the step, which comes after
 * it. */
static bool keep_live(ordering *o) {
    int64_t kept = 0;
    for (int64_t b = 0; b < o->nlive; b++) {
        bool gone = false;
        for (int a = 0; a < o->nmine && !gone; a++) gone = covers(&o->mine[a], &o->live[b]);
        if (!gone) o->live[kept++] = o->live[b];
    }
    o->nlive = kept + o->nmine;
    if (!etch__arena_grow(o->m->r->memory, &o->live, &o->live_cap, o->nlive, sizeof *o->live))
        return false;
    memcpy(o->live + kept, o->mine, (size_t)o->nmine * sizeof *o->mine);
    return true;
}

bool etch__order_steps(plan_maker *m) {
    ordering *o = etch__arena_zeroed(m->r->memory, sizeof *o);
    if (!o) return false;
    o->m = m;
    bool ok = begin_ordering(o);
    for (int i = 0; ok && i < m->p->nsteps; i++) {
        o->nmine = touched_by(m, i, o->mine);
        find_direct(o);
        ok = note_predecessors(o, i) && keep_live(o);
    }
    return ok;
}

bool etch__fits_graph(const native_plan *p) {
    const target_graphs *t = &p->target->graphs;
    if (!t->make || p->nsteps < 2 || p->nsteps > GRAPH_STEPS) return false;
    for (int i = 0; i < p->nsteps; i++) {
        const call_step *c = &p->steps[i].c;
        if (!p->steps[i].is_call) continue;
        if (!t->can_record(c->call.op) || c->call.nin > UINT8_MAX - 1) return false;
        /* it would have to wait for the checks before it */
        if (p->checks && etch__op_is_users(c->call.op)) return false;
    }
    return true;
}
