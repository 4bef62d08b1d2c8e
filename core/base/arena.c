/* See arena.h: blocks from etch__malloc, larger than what is asked of them, dealt out in order. */
#include "core/base/arena.h"

enum { BLOCK_BYTES = 32 << 10, ALIGNMENT = 16 };

struct arena_block {
    arena_block *older;
    size_t used, size;
    _Alignas(ALIGNMENT) char bytes[];
};

static arena_block *add_block(arena *a, size_t bytes) {
    size_t size = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;
    arena_block *b = etch__malloc(sizeof *b + size);
    if (!b) return NULL;
    b->older = a->newest, b->used = 0, b->size = size;
    return a->newest = b;
}

void *etch__arena_new(arena *a, size_t bytes) {
    arena_block *b = a->newest;
    bytes = (bytes + ALIGNMENT - 1) & ~(size_t)(ALIGNMENT - 1);
    if (!b || b->size - b->used < bytes) b = add_block(a, bytes);
    if (!b) return NULL;
    void *p = b->bytes + b->used;
    b->used += bytes;
    return p;
}

void *etch__arena_zeroed(arena *a, size_t bytes) {
    void *p = etch__arena_new(a, bytes);
    return p ? memset(p, 0, bytes) : NULL;
}

bool etch__arena_grow(arena *a, void *items, int64_t *cap, int64_t need, size_t size) {
    if (need <= *cap) return true;
    int64_t wanted = *cap < 8 ? 8 : *cap * 2;
    if (wanted < need) wanted = need;
    void *old, *grown = etch__arena_new(a, (size_t)wanted * size);
    if (!grown) return false;
    memcpy(&old, items, sizeof old); /* items points at some T*; its type does not matter here */
    if (*cap) memcpy(grown, old, (size_t)*cap * size);
    memcpy(items, &grown, sizeof grown);
    *cap = wanted;
    return true;
}

void etch__arena_free(arena *a) {
    while (a->newest) {
        arena_block *older = a->newest->older;
        etch__free(a->newest);
        a->newest = older;
    }
}
