/* The operands of the samples of grad_samples.h: numbers in general position, as tensors of several
 * layouts. */
#ifndef ETCH_TESTS_GRAD_VALUES_H
#define ETCH_TESTS_GRAD_VALUES_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "etch_test.h"
#include "grad_samples.h"

/* ---- values ---- */

enum { MOST = 128 };

typedef struct operands {
    const sample *s;
    int n;
    double v[SAMPLE_INPUTS][MOST]; /* of floats */
} operands;

static int64_t numel_of(etch_shape s) {
    int64_t n = 1;
    for (int i = 0; i < s.n; i++) n *= s.v[i];
    return n;
}

static bool is_float_input(const input *in) { return in->kind && strchr("vpuc", in->kind); }
static bool wants_grad(const input *in) { return in->kind && strchr("vpu", in->kind); }

/* Number i of n in a shuffled row, all different. */
static double shuffled(int k, int64_t i, int64_t n, uint64_t seed) {
    static const int64_t steps[] = {17, 19, 23, 29, 31};
    int64_t m = n + 1;
    while (m % 17 == 0 || m % 19 == 0 || m % 23 == 0 || m % 29 == 0 || m % 31 == 0) m++;
    int64_t place = (i * steps[k] + 3 + (int64_t)seed * 5) % m;
    return ((double)place + 0.37 + 0.11 * k) / (double)m;
}

/* Away from 0 and from halves of whole numbers. */
static double value_of(const input *in, int k, int64_t i, uint64_t seed) {
    double u = shuffled(k, i, numel_of(in->size), seed), v = 0;
    if (in->kind == 'p') v = 0.4 + 1.4 * u;
    else if (in->kind == 'u') v = 1.6 * u - 0.8;
    else v = u < 0.5 ? -1.8 + 3 * u : 0.3 + 3 * (u - 0.5);
    double from = v * 2 - nearbyint(v * 2);
    return fabs(from) < 0.05 ? v + 0.06 : v;
}

static void fill(operands *o, const sample *s, uint64_t seed) {
    *o = (operands){.s = s};
    for (int k = 0; k < SAMPLE_INPUTS && s->in[k].kind; k++, o->n++) {
        assert_true(numel_of(s->in[k].size) <= MOST);
        for (int64_t i = 0; i < numel_of(s->in[k].size); i++)
            o->v[k][i] = value_of(&s->in[k], k, i, seed);
    }
}

/* ---- tensors ---- */

typedef enum layout { ROW_MAJOR, COLUMN_MAJOR, BACKWARD, LAYOUTS } layout;

/* Column-major: the dimensions in the other order in memory. Backward: with gaps, and the first
 * dimension from its end. */
static etch_tensor *laid(etch_tensor *t, layout how) {
    etch_dims other = {.n = etch_ndim(t)};
    for (int i = 0; i < other.n; i++) other.v[i] = other.n - 1 - i;
    if (how == COLUMN_MAJOR) return etch_permute(etch_clone(etch_permute(t, other)), other);
    if (how == ROW_MAJOR || !other.n || other.n == ETCH_MAX_DIMS) return t;
    etch_tensor *turned = etch_flip(t, ETCH_DIMS(0));
    etch_tensor *pair[2] = {turned, turned};
    t = etch_select(etch_stack(pair, 2, -1), -1, 0);
    return etch_slice(t, 0, ETCH_ABSENT, ETCH_ABSENT, -1);
}

static etch_tensor *of_numbers(const double *v, etch_shape size, etch_dtype dtype) {
    static const double none;
    etch_tensor *t = etch_from_host(numel_of(size) ? v : &none, ETCH_F64, size);
    return etch_to(t, dtype);
}

static etch_tensor *of_whole_numbers(const input *in) {
    int64_t numbers[MOST] = {0}, n = numel_of(in->size), row = 1;
    if (in->size.n > 1) row = in->size.v[in->size.n - 1];
    for (int64_t i = 0; i < n; i++) {
        int64_t v = row > 1 ? i / row + i % row + 1 : i + 1;
        if (in->kind == 'b') v = i % 3 != 1;
        else if (in->same) v = i % 2;
        else v %= in->below;
        numbers[i] = in->back && i % 2 ? v - in->below : v;
    }
    etch_tensor *t = etch_from_host(numbers, ETCH_I64, in->size);
    return in->kind == 'b' ? etch_to(t, ETCH_BOOL) : t;
}

/* The operands as tensors; leaves where gradients are wanted. */
static void make(const operands *o, etch_dtype dtype, layout how, bool leaves, etch_tensor **x) {
    ETCH_NO_GRAD
        for (int k = 0; k < o->n; k++) {
            const input *in = &o->s->in[k];
            if (in->kind == 'n') {
                x[k] = ETCH_NONE;
                continue;
            }
            x[k] = is_float_input(in) ? of_numbers(o->v[k], in->size, dtype) : of_whole_numbers(in);
            x[k] = laid(x[k], how);
            assert_non_null(x[k]);
        }
    for (int k = 0; leaves && k < o->n; k++)
        if (wants_grad(&o->s->in[k])) assert_non_null(etch_requires_grad_(x[k], true));
}

#endif
