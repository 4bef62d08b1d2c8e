/* A small plan as one kernel of the device, which keeps intermediates in shared memory. */
#include "jit/plan/plan_maker.h"

enum { WHOLE_ELEMENTS = 4096, WHOLE_TERMS = 16384, WHOLE_MAX = 32 };

/* What one block does in about the time of a launch. */
static bool small_step(const plan_maker *m, int i) {
    const plan_step *s = &m->p->steps[i];
    int64_t work = 1;
    if (!s->is_call) {
        const lowered *low = m->low[m->step_group[i]];
        for (int a = 0; a < low->k.npar + low->k.nred; a++) work *= low->dims[a];
        return !low->split && !low->nmatmuls && work <= WHOLE_ELEMENTS;
    }
    const operand_slot *a = &m->p->operands[s->c.operand], *b = a + 1;
    if (etch__op_is_users(s->c.call.op)) return false;
    if (s->c.call.op != OP_MM || s->c.epilogue || !etch__is_float(a->t.dtype)) return false;
    int64_t rows = a->t.size[0], terms = a->t.size[1], columns = b->t.size[1];
    return rows <= MATMUL_SMALL && terms <= MATMUL_SMALL && columns <= MATMUL_SMALL &&
           rows * terms * columns <= WHOLE_TERMS;
}

static int64_t in_arena_at(const plan_place *at) {
    return at->kind == PLACE_ARENA ? at->offset : -1;
}

/* The operands of a product as three more arguments of the plan. */
static void add_matmul_args(plan_maker *m, const call_step *c, whole_step *w) {
    const operand_slot *o = &m->p->operands[c->operand];
    const etch_tensor *a = &o[0].t, *b = &o[1].t;
    int64_t numbers[10] = {1, a->size[0],   b->size[1],  a->size[1], 0, a->stride[0], a->stride[1],
                           0, b->stride[0], b->stride[1]};
    w->dtype = a->dtype, w->nargs = 3, w->arg = m->p->nargs;
    memcpy(w->numbers, numbers, sizeof numbers);
    for (int i = 0; i < 3; i++) {
        plan_place at = o[i].at;
        int64_t size = etch__item_size(&o[i].t);
        at.offset = at.kind == PLACE_INPUT ? at.offset * size : at.offset + o[i].t.offset * size;
        w->arena[i] = in_arena_at(&at);
        m->p->args[m->p->nargs++] = at;
    }
}

void etch__make_whole(plan_maker *m) {
    native_plan *p = m->p;
    if (!p->target->whole.make || p->nsteps < 2 || p->nsteps > WHOLE_MAX) return;
    whole_step *steps = etch__arena_zeroed(m->r->memory, p->nsteps * sizeof *steps);
    bool fits = steps != NULL;
    for (int i = 0; fits && i < p->nsteps; i++) fits = small_step(m, i);
    for (int i = 0; fits && i < p->nsteps; i++) {
        const plan_step *s = &p->steps[i];
        whole_step *w = &steps[i];
        if (s->is_call) {
            add_matmul_args(m, &s->c, w);
            continue;
        }
        w->low = m->low[m->step_group[i]];
        w->arg = s->k.arg, w->cell = s->k.cell, w->nargs = s->k.nargs - 1;
        for (int k = 0; k < w->nargs; k++) w->arena[k] = in_arena_at(&p->args[w->arg + k]);
    }
    if (fits) p->whole = p->target->whole.make(p->device, steps, p->nsteps, p->arena_bytes);
    if (p->whole) p->arena_bytes = 0; /* it lies in the kernel's own memory */
}
