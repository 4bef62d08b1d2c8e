/* Which steps of a plan wait for which, for a graph of the device. */
#include "jit/plan/plan_maker.h"

/* Memory that a step reads or writes: a whole input or output, or a range of the arena. */
enum { PLACE_CHECKS = PLACE_NONE + 1 }; /* what says whether a check has failed */
typedef struct touched {
    int64_t from, to; /* bytes of the arena, else 0 and 1 */
    int32_t index;
    uint8_t kind, step;
    bool write;
} touched;

static touched touched_at(const plan_maker *m, const plan_place *at, int number, bool write) {
    touched t = {0, 1, at->index, at->kind, (uint8_t)number, write};
    if (at->kind != PLACE_ARENA) {
        /* Inputs may share memory; where none is written that does not matter. */
        if (at->kind == PLACE_INPUT) t.index = 0;
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
    *to = (touched){0, 1, 0, PLACE_CHECKS, (uint8_t)number, writes};
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

enum { GRAPH_STEPS = 64, TOUCHED_MAX = 4096 };

/* Masks of direct predecessors; a step that another predecessor waits for is left out. */
bool etch__order_steps(plan_maker *m) {
    native_plan *p = m->p;
    touched *all = etch__arena_new(m->r->memory, TOUCHED_MAX * sizeof *all);
    p->after = etch__calloc((size_t)p->nsteps + 1, sizeof *p->after);
    uint64_t before[GRAPH_STEPS]; /* all that a step waits for, directly or not */
    int n = 0;
    bool ok = all && p->after;
    for (int i = 0; ok && i < p->nsteps; i++) {
        int old = n;
        if (n + LOOP_MAX_ACCESSES + UINT8_MAX > TOUCHED_MAX) {
            ok = false;
            break;
        }
        n += touched_by(m, i, all + n);
        uint64_t direct = 0, known = 0;
        for (int a = old; a < n; a++)
            for (int b = 0; b < old; b++)
                if (conflict(&all[a], &all[b])) direct |= 1ull << all[b].step;
        for (uint64_t d = direct; d; d &= d - 1) known |= before[__builtin_ctzll(d)];
        p->after[i] = direct & ~known;
        before[i] = direct | known;
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
