/* What the parts of fusion share. The rules: fuse.c. */
#ifndef ETCH_JIT_FUSE_FUSE_H
#define ETCH_JIT_FUSE_FUSE_H

#include "jit/ir/ir.h"

static inline uint64_t *needs_of(const ir *r, int32_t group) {
    return r->needs + (int64_t)group * r->words;
}

static inline bool is_loop(const ir_node *n) { return n->kind == IR_POINT || n->kind == IR_REDUCE; }

/* Whether the source has to come from a group at all. */
static inline bool from_group(const ir *r, const ir_node *n, const ir_source *s) {
    if (s->version < 0) return false;
    const ir_version *v = &r->versions[s->version];
    return v->group >= 0 && !(v->constant && is_loop(n));
}

/* Dependences between groups, transitive. */
static inline bool depends(const ir *r, int32_t group, int32_t on) {
    return needs_of(r, group)[on / 64] >> (on % 64) & 1;
}

/* Whether group `first` can run before `group` (they differ). */
static inline bool can_precede(const ir *r, int32_t first, int32_t group) {
    return r->words ? !depends(r, first, group) : first < group;
}

/* ---- fuse_rules.c ---- */

/* The axes of a node's domain that have more than one element. */
typedef struct space {
    int n;
    int64_t size[ETCH_MAX_DIMS];
    uint32_t mask; /* reduced axes */
} space;

space etch__space_of(const ir_node *n);
bool etch__same_space(const ir_group *g, const space *s);

/* Notes that `group`, and what depends on it, needs `first` and all that it needs; the same of all
 * that a node needs, for its group. */
void etch__add_need(ir *r, int32_t group, int32_t first);
void etch__note_needs(ir *r, const ir_node *n);

/* Whether the source can stay in a register of its maker's group. */
bool etch__fusable(const ir *r, const ir_node *n, const space *sp, const ir_source *s);
/* The stage in which a member of the group uses its operands. */
int etch__stage_in(const ir *r, const ir_node *n, int32_t group, const space *sp);
/* Whether all that the node needs can be there when the group runs; whether
 * the group was begun after all of it. */
bool etch__ready(const ir *r, const ir_node *n, const space *sp, int32_t group, int stage);
bool etch__late_enough(const ir *r, const ir_node *n, int32_t group);
bool etch__writes_an_input(const ir *r, const ir_node *n);
/* Whether a write may share a kernel with what made the version that it overwrites. */
bool etch__beside(const ir *r, const ir_node *w, const ir_version *old);
bool etch__good_rows(const ir_group *g, int device);

enum { ACCESS_BUDGET = LOOP_MAX_ACCESSES - 6, CODE_BUDGET = LOOP_MAX_CODE - 16 };
/* Whether the group loads something that the node reads. */
bool etch__shares_load(const ir *r, const ir_node *n, const ir_group *g);
/* What the node adds to a group: loads, and instructions without stores. */
void etch__group_cost(const ir *r, const ir_node *n, int32_t group, int *loads, int *code);
/* How often the node reads the version. */
int etch__reads_of(const ir *r, const ir_node *n, int32_t version);
/* What a group stores if nothing more joins it; whether there is room in it, for the node. */
int etch__group_stores(const ir *r, const ir_group *g);
bool etch__has_room(const ir *r, int members, int loads, int code, int stores);
bool etch__fits(const ir *r, const ir_node *n, int32_t group);
/* Notes that the node, a member by now, has its operands inside its group. */
void etch__note_inside(ir *r, const ir_node *n, int32_t made_in);

/* ---- fuse_merge.c, fuse_order.c, fuse_lie.c, fuse_log.c ---- */

/* Makes the group of the node's operand one with `then`, which the node is in or is to join, where
 * that can be. false: out of memory. */
bool etch__merge_into_reader(ir *r, const ir_source *s, const space *sp, const ir_node *n,
                             int32_t then);
/* false: out of memory. */
bool etch__merge_groups(ir *r);
/* Numbers the groups in the order of their steps. false: out of memory. */
bool etch__order_groups(ir *r);
/* Says how what the kernels hand on lies in memory. false: out of memory. */
bool etch__lay_out(ir *r);
void etch__explain_groups(const ir *r);

#endif
