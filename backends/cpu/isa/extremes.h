/* The larger and the smaller of two values, as the primitives MAX and MIN have it: one definition
 * for strips and reductions. */
#ifndef ETCH_BACKENDS_CPU_ISA_EXTREMES_H
#define ETCH_BACKENDS_CPU_ISA_EXTREMES_H

#include <stdint.h>
#include <string.h>

/* Asked both ways round, which are single instructions each, the two answers differ for zeros of
 * different sign and where one is NaN. Their bits together give the sign wanted and, since those of
 * a NaN's exponent are all ones, a NaN. */
#define FLOAT_EXTREMES(t, T, U, SIGN)                                                              \
    static inline T joined_##t(T p, T q, int least) {                                              \
        U u, v;                                                                                    \
        memcpy(&u, &p, sizeof u);                                                                  \
        memcpy(&v, &q, sizeof v);                                                                  \
        u = least ? u | v : (u & v) | ((u | v) & ~(SIGN));                                         \
        memcpy(&p, &u, sizeof p);                                                                  \
        return p;                                                                                  \
    }                                                                                              \
    static inline T larger_##t(T x, T y) { return joined_##t(x > y ? x : y, y > x ? y : x, 0); }   \
    static inline T smaller_##t(T x, T y) { return joined_##t(x < y ? x : y, y < x ? y : x, 1); }
#define INT_EXTREMES(t, T)                                                                         \
    static inline T larger_##t(T x, T y) { return x > y ? x : y; }                                 \
    static inline T smaller_##t(T x, T y) { return x < y ? x : y; }
FLOAT_EXTREMES(F32, float, uint32_t, 0x80000000u)
FLOAT_EXTREMES(F64, double, uint64_t, 0x8000000000000000u)
INT_EXTREMES(I8, int8_t)
INT_EXTREMES(I16, int16_t)
INT_EXTREMES(I32, int32_t)
INT_EXTREMES(I64, int64_t)
INT_EXTREMES(U8, uint8_t)
INT_EXTREMES(BOOL, uint8_t)

#endif
