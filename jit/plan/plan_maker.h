/* What the parts of making a plan share: plan.c, plan_waits.c, plan_whole.c, plan_bytes.c,
 * plan_log.c. */
#ifndef ETCH_JIT_PLAN_PLAN_MAKER_H
#define ETCH_JIT_PLAN_PLAN_MAKER_H

#include "jit/plan/native_plan.h"

typedef struct plan_maker {
    const ir *r;
    native_plan *p;
    lowered **low;     /* per group: NULL for calls and empty spaces */
    lowered **finish;  /* per group: the second kernel of a split reduction */
    int32_t *output;   /* per version: output number or -1 */
    int32_t *interval; /* per version, then per group for scratch: number or -1 */
    plan_interval *intervals;
    int nintervals, nkernels;
    int32_t *step_group; /* per step: the group whose it is */
} plan_maker;

bool etch__step_writes_input(const native_plan *p, const plan_step *s);

/* Whether the plan can be a graph of the device; for each step its direct predecessors, where one
 * that another predecessor waits for is left out. false: out of memory. */
bool etch__fits_graph(const native_plan *p);
bool etch__order_steps(plan_maker *m);
/* Makes p->whole where the plan is small enough for one block. */
void etch__make_whole(plan_maker *m);
/* Bytes that a kernel with its products, a call of an operator's own kernel read and write; those
 * of all operators of the graph, each by itself. */
int64_t etch__kernel_bytes(const lowered *low);
int64_t etch__call_bytes(const plan_maker *m, const ir_node *n);
int64_t etch__operator_bytes(const graph *g);
void etch__log_steps(const plan_maker *m);

#endif
