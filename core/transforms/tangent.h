/* Tangents: the derivatives of tensors along a direction, which forward mode carries beside their
 * values (docs/transforms.md). Notes on handles, one a level, the highest first. A level counts on
 * a thread while the call that opened it runs there, and not for what is computed on behalf of a
 * lower one. */
#ifndef ETCH_CORE_TRANSFORMS_TANGENT_H
#define ETCH_CORE_TRANSFORMS_TANGENT_H

#include "core/ops/op.h"

/* The one of t at a level, or NULL. */
tangent *etch__tangent_at(const etch_tensor *t, uint32_t level);
/* Puts value (counted) there. own: its memory is nobody else's. false: out of memory. */
bool etch__set_tangent(etch_tensor *t, uint32_t level, etch_tensor *value, bool own);
void etch__remove_tangent(etch_tensor *t, uint32_t level);
/* What `from` has at levels that are open on this thread, `to` has too: it is another handle of the
 * same value. false: out of memory. */
bool etch__carry_tangents(etch_tensor *to, const etch_tensor *from);
/* A tensor goes. */
void etch__drop_tangents(tensor_notes *notes);

/* ---- levels ---- */

/* 0 with an error where too many are open; it ends with the innermost scope at the latest. With a
 * level all of its tangents go, whoever has their tensors: a tape that has saved a result and its
 * tangent, which was computed from that result, would keep itself alive. */
uint32_t etch__tangents_open(void);
void etch__tangents_close(uint32_t level);
/* A thread ends in the middle of some. */
void etch__tangents_end(etch_thread *t);
/* Whether it counts here and now. */
bool etch__tangents_count(uint32_t level);
/* The highest level of t that counts and is below `limit` (0: any), or 0. */
uint32_t etch__tangent_level(const etch_tensor *t, uint32_t limit);

/* What is called until etch__tangent_limit(outer) has tangents of levels below this one only; 1:
 * none. Returns what was so before. */
static inline uint32_t etch__tangent_limit(uint32_t level) {
    uint32_t outer = etch__tls.tangent_limit;
    etch__tls.tangent_limit = level;
    return outer;
}

#endif
