/* Running sums and products of numbers in the accumulator's type: many lines side by
 * side, each from its first element on, since the elements of one wait for each other. */
#include "backends/cpu/table.h"

#define IVDEP _Pragma("GCC ivdep") /* the same memory, or apart */

/* So many lines at a time, whose elements are all read before one is written: memory that may be
 * the same would be waited for. */
enum { SIDE_BY_SIDE = 8 };

/* Putting elements of several lines into one vector takes longer than adding them one by one. */
#define SCALAR __attribute__((optimize("no-tree-vectorize", "no-tree-slp-vectorize")))

#define LINE_LOOP(T, op, LINES)                                                                    \
    do {                                                                                           \
        for (int64_t i = 0; i < n; i++) {                                                          \
            T x[LINES];                                                                            \
            for (int k = 0; k < LINES; k++) x[k] = so_far[k] op from[k * pitch + i];               \
            for (int k = 0; k < LINES; k++) to[k * pitch + i] = so_far[k] = x[k];                  \
        }                                                                                          \
        to += LINES * pitch, from += LINES * pitch;                                                \
    } while (0)

/* WIDTH columns, each in a register. */
#define ROW_LOOP(T, op, WIDTH)                                                                     \
    do {                                                                                           \
        T so_far[WIDTH];                                                                           \
        memcpy(so_far, carry, sizeof so_far);                                                      \
        for (; rows > 0; rows--, p += WIDTH)                                                       \
            for (int k = 0; k < WIDTH; k++) p[k] = so_far[k] = so_far[k] op p[k];                  \
        memcpy(carry, so_far, sizeof so_far);                                                      \
    } while (0)

#define SCAN(name, T, start, op)                                                                   \
    static SCALAR void name##_lines(void *dst, const void *src, int64_t pitch, int64_t n,          \
                                    int64_t lines, void *carried) {                                \
        T *to = dst, *carry = carried;                                                             \
        const T *from = src;                                                                       \
        for (; lines >= SIDE_BY_SIDE; lines -= SIDE_BY_SIDE) {                                     \
            T so_far[SIDE_BY_SIDE];                                                                \
            for (int k = 0; k < SIDE_BY_SIDE; k++) so_far[k] = carry ? carry[k] : (T)start;        \
            LINE_LOOP(T, op, SIDE_BY_SIDE);                                                        \
            for (int k = 0; carry && k < SIDE_BY_SIDE; k++) *carry++ = so_far[k];                  \
        }                                                                                          \
        for (; lines > 0; lines--) {                                                               \
            T so_far[1] = {carry ? *carry : (T)start};                                             \
            LINE_LOOP(T, op, 1);                                                                   \
            if (carry) *carry++ = so_far[0];                                                       \
        }                                                                                          \
    }                                                                                              \
    static void name##_few(void *dst, const void *src, int64_t n, int64_t lines) {                 \
        T *to = dst;                                                                               \
        const T *p = src;                                                                          \
        if (n == 2) IVDEP for (int64_t i = 0; i < 2 * lines; i += 2) {                             \
                T a = (T)start op p[i], b = a op p[i + 1];                                         \
                to[i] = a, to[i + 1] = b;                                                          \
            }                                                                                      \
        else if (n == 3) IVDEP for (int64_t i = 0; i < 3 * lines; i += 3) {                        \
                T a = (T)start op p[i], b = a op p[i + 1], c = b op p[i + 2];                      \
                to[i] = a, to[i + 1] = b, to[i + 2] = c;                                           \
            }                                                                                      \
        else name##_lines(dst, src, n, n, lines, NULL);                                            \
    }                                                                                              \
    static void name##_columns(T *p, int64_t rows, int64_t width, T *restrict carry) {             \
        for (int64_t r = 0; r < rows; r++, p += width)                                             \
            for (int64_t c = 0; c < width; c++) p[c] = carry[c] = carry[c] op p[c];                \
    }                                                                                              \
    static SCALAR void name##_rows(void *at, int64_t rows, int64_t width, void *carried) {         \
        T *p = at, *carry = carried;                                                               \
        if (width == 2) ROW_LOOP(T, op, 2);                                                        \
        else if (width == 3) ROW_LOOP(T, op, 3);                                                   \
        else name##_columns(p, rows, width, carry);                                                \
    }
SCAN(sum_reals, double, 0, +)
SCAN(multiply_reals, double, 1, *)
SCAN(sum_integers, uint64_t, 0, +)
SCAN(multiply_integers, uint64_t, 1, *)

const scan_table ISA_NAME(scan) = {
    .lines = {{sum_integers_lines, multiply_integers_lines},
              {sum_reals_lines, multiply_reals_lines}},
    .few = {{sum_integers_few, multiply_integers_few}, {sum_reals_few, multiply_reals_few}},
    .rows = {{sum_integers_rows, multiply_integers_rows}, {sum_reals_rows, multiply_reals_rows}},
};
