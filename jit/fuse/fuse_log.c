/* Fusion: what the logs and the report say of it; where an operand does not stay in a register, the
 * reason is counted as well. */
#include "jit/fuse/fuse.h"

#include "core/dispatch/dispatch.h"
#include "core/base/text.h"
#include "core/observe/report.h"

static reason_id why_apart(const ir *r, const ir_node *n, const ir_source *s, bool full) {
    const ir_version *v = &r->versions[s->version];
    const ir_group *g = &r->groups[v->group];
    if (n->kind == IR_CALL)
        return etch__ops[n->op].kind == KIND_CONTRACTION ? REASON_FUSION_LIBRARY
                                                         : REASON_FUSION_OPAQUE;
    if (g->call) {
        int kind = etch__ops[r->nodes[g->members[0]].op].kind;
        return kind == KIND_CONTRACTION ? REASON_FUSION_LIBRARY : REASON_FUSION_OPAQUE;
    }
    if (v->memory || v->tied >= 0 || n->write) return REASON_FUSION_WRITE;
    if (!s->whole) return REASON_FUSION_VIEW;
    if (full) return REASON_FUSION_LIMIT;
    return v->stage % 2 ? REASON_FUSION_REDUCED : REASON_FUSION_DOMAIN;
}

/* Whether the node's kernel was begun because another one could not take more: then whatever is
 * read of that one is apart for the same reason. */
static bool after_full(const ir *r, const ir_node *n) {
    const ir_group *g = &r->groups[n->group];
    bool full = n->no_room;
    for (int i = 0; i < g->nmembers && !full; i++) full = r->nodes[g->members[i]].no_room;
    return full;
}

static void explain(const ir *r, const ir_node *n) {
    space sp = etch__space_of(n);
    for (int i = 0; i < n->nin; i++) {
        const ir_source *s = &sources(r, n)[i];
        if (!from_group(r, n, s)) continue;
        const ir_version *v = &r->versions[s->version];
        if (v->group == n->group || r->nodes[v->node].kind == IR_EMPTY) continue;
        reason_id why = why_apart(r, n, s, after_full(r, n) && etch__fusable(r, n, &sp, s));
        etch__count_reason(why);
        if (etch__log_on(LOG_FUSION))
            etch__log(LOG_FUSION, "%s: %s (step %d) reads %%%d of %s (step %d) from memory: %s: %s",
                      r->g->name, etch__ops[n->op].name, n->group, v->base,
                      etch__ops[r->nodes[v->node].op].name, v->group, etch__reasons[why].name,
                      etch__reasons[why].text);
        if (etch__report_on())
            etch__report_note("%s (step %d) reads %%%d of %s (step %d) from memory: %s",
                              etch__ops[n->op].name, n->group, v->base,
                              etch__ops[r->nodes[v->node].op].name, v->group,
                              etch__reasons[why].text);
    }
}

/* What pass_sums.c has made of the call of a step. */
static void note_sum(const ir *r, int32_t group, const ir_node *n) {
    char text[160];
    const ir_source *sum = &sources(r, n)[n->sums & 1 ? 0 : 1];
    snprintf(
        text, sizeof text,
        "%s (step %d) stands for %d products with one %s operand: the others are added in %%%d",
        etch__ops[n->op].name, group, n->merged + 1, n->sums & 1 ? "right" : "left",
        r->versions[sum->version].base);
    if (etch__log_on(LOG_FUSION)) etch__log(LOG_FUSION, "%s: %s", r->g->name, text);
    if (etch__report_on()) etch__report_note("%s", text);
}

static void note_sums(const ir *r, int32_t group) {
    const ir_group *g = &r->groups[group];
    for (int i = 0; i < g->nmembers; i++)
        if (r->nodes[g->members[i]].merged) note_sum(r, group, &r->nodes[g->members[i]]);
}

static void log_groups(const ir *r) {
    if (!etch__log_on(LOG_FUSION)) return;
    for (int32_t g = 0; g < r->ngroups; g++) {
        char text[512];
        bounded_text t = {text, sizeof text, 0};
        if (r->groups[g].call) continue;
        for (int i = 0; i < r->groups[g].nmembers && t.n < sizeof text - 40; i++)
            etch__text_add(&t, "%s%s", i ? ", " : "",
                           etch__ops[r->nodes[r->groups[g].members[i]].op].name);
        etch__log(LOG_FUSION, "%s: kernel of step %d: {%s}", r->g->name, g, text);
    }
}

void etch__explain_groups(const ir *r) {
    etch__report_restart_steps();
    for (int i = 0; i < r->nnodes; i++)
        if (r->nodes[i].group >= 0) explain(r, &r->nodes[i]);
    for (int32_t g = 0; g < r->ngroups; g++) note_sums(r, g);
    log_groups(r);
}
