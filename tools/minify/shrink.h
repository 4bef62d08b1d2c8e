/* Making something that fails smaller: one change at a time, kept if it still fails, until no
 * change is kept. What is made smaller is plain memory, so that a change is undone by copying. */
#ifndef ETCH_MINIFY_SHRINK_H
#define ETCH_MINIFY_SHRINK_H

#include <stdbool.h>
#include <stddef.h>

typedef struct shrink {
    void *now, *next; /* of `size` bytes: the smallest so far, and what is tried */
    size_t size;
    bool (*fails)(const void *x, void *ctx); /* asked once a change */
    void *ctx;
    int trials, most; /* changes asked about, and how many may be */
} shrink;

/* Keeps s->next if it differs from s->now and still fails; else makes it s->now again. */
bool shrink_attempt(shrink *s);
#define SHRINK_TRY(s, change) ((change), shrink_attempt(s))

/* Drops runs of elements, long ones first, the last ones first: count(x) of them, and drop(x,
 * first, n) takes n out. True if any was kept. */
bool shrink_ranges(shrink *s, int (*count)(const void *x), void (*drop)(void *x, int first, int n));

/* Runs the passes, each of which says whether it kept a change, until none does. */
typedef bool (*shrink_pass)(shrink *s);
void shrink_run(shrink *s, const shrink_pass *passes, int npasses);

#endif
