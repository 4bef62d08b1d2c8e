/* Allocation: one place, so that tests can make each allocation fail in turn. */
#include "core/base/base.h"

#include <stdatomic.h>
#include <stdlib.h>

/* Allocations until one fails; NEVER switches counting and failing off. */
#define NEVER INT64_MIN
static _Atomic int64_t countdown = NEVER;
static _Atomic int64_t failing = 1; /* how many fail then */
static _Atomic int64_t asked;

bool etch__allocation_fails(void) {
    if (likely(atomic_load_explicit(&countdown, memory_order_relaxed) == NEVER)) return false;
    atomic_fetch_add(&asked, 1);
    int64_t before = atomic_fetch_sub(&countdown, 1);
    return before <= 0 && before > -atomic_load_explicit(&failing, memory_order_relaxed);
}

bool etch__allocations_counted(void) {
    return atomic_load_explicit(&countdown, memory_order_relaxed) != NEVER;
}

int64_t etch__fail_allocations(int64_t n, int64_t count) {
    atomic_store(&failing, count);
    atomic_store(&countdown, n < 0 ? NEVER : n);
    return atomic_exchange(&asked, 0);
}

int64_t etch__fail_allocation(int64_t n) { return etch__fail_allocations(n, 1); }

static void *checked(void *p, size_t bytes) {
    if (unlikely(!p)) etch__error(ETCH_ERR_OUT_OF_MEMORY, "could not allocate %zu bytes", bytes);
    return p;
}

bool (*etch__give_back)(void);

/* Asked for again while somebody gives memory back. A failure that a test asks for is final. */
static bool ask_again(const void *p) {
    return unlikely(!p) && etch__give_back && etch__give_back();
}

void *etch__malloc(size_t bytes) {
    void *p = NULL;
    if (etch__allocation_fails()) return checked(p, bytes);
    do { p = malloc(bytes ? bytes : 1); } while (ask_again(p));
    return checked(p, bytes);
}

void *etch__quiet_malloc(size_t bytes) { return malloc(bytes ? bytes : 1); }

void *etch__quiet_lines(size_t bytes) {
    void *p = NULL;
    return posix_memalign(&p, 64, (bytes + 63) & ~(size_t)63) ? NULL : p;
}

void *etch__calloc(size_t count, size_t size) {
    void *p = NULL;
    if (etch__allocation_fails()) return checked(p, count * size);
    do { p = calloc(count ? count : 1, size ? size : 1); } while (ask_again(p));
    return checked(p, count * size);
}

void *etch__realloc(void *p, size_t bytes) {
    void *grown = NULL;
    if (etch__allocation_fails()) return checked(grown, bytes);
    do { grown = realloc(p, bytes ? bytes : 1); } while (ask_again(grown));
    return checked(grown, bytes);
}

void *etch__aligned(size_t bytes) {
    void *p = NULL;
    size_t whole = (bytes + 63) & ~(size_t)63;
    if (etch__allocation_fails()) return checked(p, bytes);
    do {
        if (posix_memalign(&p, 64, whole ? whole : 64)) p = NULL;
    } while (ask_again(p));
    return checked(p, bytes);
}

void *etch__aligned_zeroed(size_t bytes) {
    void *p = etch__aligned(bytes);
    return p ? memset(p, 0, bytes) : NULL;
}

void etch__free(void *p) { free(p); }

char *etch__strdup(const char *s) {
    size_t n = strlen(s) + 1;
    char *copy = etch__malloc(n);
    return copy ? memcpy(copy, s, n) : NULL;
}

static int64_t grown_cap(int64_t cap, int64_t need) {
    int64_t wanted = cap < 8 ? 8 : cap * 2;
    return wanted < need ? need : wanted;
}

bool etch__grow(void *items, int64_t *cap, int64_t need, size_t size) {
    if (need <= *cap) return true;
    int64_t wanted = grown_cap(*cap, need);
    void *old;
    memcpy(&old, items, sizeof old); /* items points at some T*; its type does not matter here */
    void *grown = etch__realloc(old, (size_t)wanted * size);
    if (!grown) return false;
    memcpy(items, &grown, sizeof grown);
    *cap = wanted;
    return true;
}

bool etch__grow_lines(void *items, int64_t *cap, int64_t need, size_t size) {
    if (need <= *cap) return true;
    int64_t wanted = grown_cap(*cap, need);
    void *old, *grown = etch__aligned_zeroed((size_t)wanted * size);
    if (!grown) return false;
    memcpy(&old, items, sizeof old);
    if (*cap) memcpy(grown, old, (size_t)*cap * size);
    etch__free(old);
    memcpy(items, &grown, sizeof grown);
    *cap = wanted;
    return true;
}
