/* What the logs and the report say of a plan. */
#include "jit/plan/plan_maker.h"

#include "core/base/text.h"
#include "core/observe/report.h"

/* A line of the schedule, which output_code shows as well. */
static void log_line(const char *line) {
    if (etch__log_on(LOG_SCHEDULE)) etch__log(LOG_SCHEDULE, "%s", line);
    if (etch__log_on(LOG_OUTPUT_CODE)) etch__log(LOG_OUTPUT_CODE, "%s", line);
}

/* Returns where what is said of the step itself begins. */
static size_t begin_step(bounded_text *t, const plan_maker *m, int number) {
    etch__text_add(t, "%s: step %d: ", m->r->g->name, number);
    return t->n;
}

/* "product mm %5 = %2 x the sum in %4, bias" */
static void add_call(bounded_text *t, const plan_maker *m, const ir_node *n) {
    const graph_node *g = &m->r->g->nodes[n->gnode];
    bool product = etch__ops[n->op].kind == KIND_CONTRACTION;
    etch__text_add(t, "%s %s %%%d =", product ? "product" : "call", etch__ops[n->op].name, g->out);
    int first = g->nin > n->nin; /* without self of an addmm that is a product and a kernel */
    for (int i = first; i < g->nin && t->n < t->room - 48; i++) {
        int32_t v = m->r->g->operands[g->in + i];
        const char *times = i > first ? " x" : "";
        if (n->sums >> i & 1)
            etch__text_add(t, "%s the sum in %%%d", times,
                           m->r->versions[sources(m->r, n)[i].version].base);
        else if (v < 0) etch__text_add(t, "%s none", times);
        else etch__text_add(t, "%s %%%d", times, v);
    }
    if (n->epilogue & MATMUL_BIAS) etch__text_add(t, ", bias");
    if (n->epilogue & MATMUL_RELU) etch__text_add(t, ", relu");
    if (n->epilogue & MATMUL_GELU) etch__text_add(t, ", gelu");
}

static void log_call(const plan_maker *m, int number, const ir_node *n) {
    char line[512];
    bool product = etch__ops[n->op].kind == KIND_CONTRACTION;
    bounded_text t = {line, sizeof line, 0};
    const size_t named = begin_step(&t, m, number);
    add_call(&t, m, n);
    log_line(line);
    etch__report_step(product ? STEP_PRODUCT : STEP_CALL, etch__ops[n->op].name, line + named,
                      etch__call_bytes(m, n));
}

static void log_kernel(const plan_maker *m, int number, int32_t group, const lowered *low) {
    static const char *const splits[] = {"", ", first part", ", second part"};
    char line[512];
    const ir_group *g = &m->r->groups[group];
    bounded_text t = {line, sizeof line, 0};
    const size_t named = begin_step(&t, m, number);
    etch__text_add(&t, "kernel %s {", low->k.name);
    for (int i = 0; i < g->nmembers && t.n < sizeof line - 80; i++) {
        const char *op = etch__ops[m->r->nodes[g->members[i]].op].name;
        etch__text_add(&t, "%s%.*s", i ? ", " : "", (int)strcspn(op, "."), op);
    }
    etch__text_add(&t, "}%s, %lld units of work", splits[low->k.split], (long long)low->units);
    for (int i = 0; i < g->nmembers && t.n < sizeof line - 80; i++) {
        const ir_node *n = &m->r->nodes[g->members[i]];
        if (n->kind != IR_CALL) continue;
        etch__text_add(&t, ", after ");
        add_call(&t, m, n);
    }
    log_line(line);
    etch__report_step(STEP_KERNEL, low->k.name, line + named, etch__kernel_bytes(low));
}

void etch__log_steps(const plan_maker *m) {
    if (!etch__log_on(LOG_SCHEDULE) && !etch__log_on(LOG_OUTPUT_CODE) && !etch__report_on()) return;
    int number = 0;
    for (int g = 0; g < m->r->ngroups; g++) {
        const ir_node *first = &m->r->nodes[m->r->groups[g].members[0]];
        if (first->kind == IR_CALL) log_call(m, number++, first);
        if (m->low[g]) log_kernel(m, number++, g, m->low[g]);
        if (m->finish[g]) log_kernel(m, number++, g, m->finish[g]);
    }
    char line[256];
    int named = snprintf(line, sizeof line, "%s: ", m->r->g->name);
    snprintf(line + named, sizeof line - named,
             "%d steps, %d buffers in an arena of %lld bytes, %d outputs", number, m->nintervals,
             (long long)m->p->arena_bytes, m->r->g->noutputs);
    log_line(line);
    etch__report_schedule(line + named, etch__operator_bytes(m->r->g));
}
