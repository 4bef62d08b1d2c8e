/* Elements with a stride between them, side by side: d[i] = s[i * stride], i < n.
 *
 * Where the stride is a number that the compiler knows it loads whole vectors and shuffles them:
 * every second to fourth element, and elements in reverse. Of any other stride it would make gather
 * instructions, which take longer than single loads do, so that loop is kept scalar. */
#ifndef ETCH_BACKENDS_CPU_ISA_PICK_H
#define ETCH_BACKENDS_CPU_ISA_PICK_H

#include <stdint.h>

#define PICK_EACH(bits, name, stride)                                                              \
    static __attribute__((noinline)) void pick_##bits##_##name(                                    \
        uint##bits##_t *restrict d, const uint##bits##_t *restrict s, int64_t n) {                 \
        for (int64_t i = 0; i < n; i++) d[i] = s[i * (stride)];                                    \
    }
#define PICK(bits)                                                                                 \
    PICK_EACH(bits, second, 2)                                                                     \
    PICK_EACH(bits, third, 3)                                                                      \
    PICK_EACH(bits, fourth, 4)                                                                     \
    PICK_EACH(bits, reverse, -1)                                                                   \
    static __attribute__((noinline, optimize("no-tree-vectorize"))) void pick_##bits##_any(        \
        uint##bits##_t *restrict d, const uint##bits##_t *restrict s, int64_t stride, int64_t n) { \
        for (int64_t i = 0; i < n; i++) d[i] = s[i * stride];                                      \
    }                                                                                              \
    static void pick_##bits(uint##bits##_t *d, const uint##bits##_t *s, int64_t stride,            \
                            int64_t n) {                                                           \
        if (stride == 2) pick_##bits##_second(d, s, n);                                            \
        else if (stride == 3) pick_##bits##_third(d, s, n);                                        \
        else if (stride == 4) pick_##bits##_fourth(d, s, n);                                       \
        else if (stride == -1) pick_##bits##_reverse(d, s, n);                                     \
        else pick_##bits##_any(d, s, stride, n);                                                   \
    }

PICK(8)
PICK(16)
PICK(32)
PICK(64)

#endif
