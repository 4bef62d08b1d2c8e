/* Where windows meet a line of elements, for convolutions and pooling: the kernel's places under
 * one window, and the windows that have one place of the kernel over an element. */
#ifndef ETCH_BACKENDS_CPU_REACH_H
#define ETCH_BACKENDS_CPU_REACH_H

#include <stdint.h>

/* Of the places at, at + step, ... those from begin to end lie inside of the line. */
typedef struct reach {
    int64_t begin, end, at;
} reach;

/* The first k with at + k * step >= edge, or most. */
static inline int64_t first_from(int64_t at, int64_t edge, int64_t step, int64_t most) {
    if (at >= edge) return 0;
    int64_t k = step == 1 ? edge - at : (edge - at + step - 1) / step;
    return k < most ? k : most;
}

/* Of n places, on a line of `length` elements. Most windows lie inside as wholes. */
static inline reach reach_of(int64_t at, int64_t step, int64_t n, int64_t length) {
    if (at >= 0 && at + (n - 1) * step < length) return (reach){0, n, at};
    return (reach){first_from(at, 0, step, n), first_from(at, length, step, n), at};
}

#endif
