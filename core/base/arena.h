/* Memory that is freed all at once, as what a compile needs while it runs. One thread's. */
#ifndef ETCH_CORE_BASE_ARENA_H
#define ETCH_CORE_BASE_ARENA_H

#include "core/base/base.h"

typedef struct arena_block arena_block;
typedef struct arena {
    arena_block *newest; /* a zeroed arena is an empty one */
} arena;

/* NULL sets out_of_memory. For any object; no block is freed on its own. */
void *etch__arena_new(arena *a, size_t bytes);
void *etch__arena_zeroed(arena *a, size_t bytes);
/* As etch__grow; what was there before stays taken until the end. */
bool etch__arena_grow(arena *a, void *items, int64_t *cap, int64_t need, size_t size);
void etch__arena_free(arena *a);

#endif
