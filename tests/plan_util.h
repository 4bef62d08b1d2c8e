/* Running one graph through two plans on equal inputs, and comparing every byte that they leave. */
#ifndef ETCH_TESTS_PLAN_UTIL_H
#define ETCH_TESTS_PLAN_UTIL_H

#include <math.h>
#include <stdlib.h>

#include "core/graph/backend.h"
#include "core/dispatch/dispatch.h"
#include "etch_test.h"

/* ---- data ---- */

static uint64_t test_random_state = 1;

static inline uint32_t test_random(void) {
    test_random_state = test_random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(test_random_state >> 33);
}

static inline int test_below(int n) { return (int)(test_random() % (unsigned)n); }

static uint16_t half_of(etch_dtype dtype, float f) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    if (dtype == ETCH_BF16) return (uint16_t)(bits >> 16);
    int e = (int)(bits >> 23 & 255) - 112;
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    if (e <= 0) return sign;
    return (uint16_t)(e >= 31 ? sign | 0x7c00 : sign | e << 10 | (bits >> 13 & 0x3ff));
}

static void put_element(etch_dtype dtype, void *data, int64_t i) {
    static const float special[] = {0.0f, -0.0f, 1.0f, INFINITY, -INFINITY, NAN, 3e38f, 1e-40f};
    float f = test_below(24) ? (float)test_below(4001) / 1000.0f - 2.0f : special[test_below(8)];
    int64_t n = test_below(15) - 7;
    switch (dtype) {
    case ETCH_F32: ((float *)data)[i] = f; break;
    case ETCH_F64: ((double *)data)[i] = f; break;
    case ETCH_BF16:
    case ETCH_F16: ((uint16_t *)data)[i] = half_of(dtype, f); break;
    case ETCH_I8: ((int8_t *)data)[i] = (int8_t)n; break;
    case ETCH_I16: ((int16_t *)data)[i] = (int16_t)n; break;
    case ETCH_I32: ((int32_t *)data)[i] = (int32_t)n; break;
    case ETCH_I64: ((int64_t *)data)[i] = n; break;
    case ETCH_U8: ((uint8_t *)data)[i] = (uint8_t)n; break;
    default: ((uint8_t *)data)[i] = n > 0; break;
    }
}

static bool is_nan(etch_dtype dtype, const void *data, int64_t i) {
    switch (dtype) {
    case ETCH_F32: return isnan(((const float *)data)[i]);
    case ETCH_F64: return isnan(((const double *)data)[i]);
    case ETCH_BF16: return (((const uint16_t *)data)[i] & 0x7fff) > 0x7f80;
    case ETCH_F16: return (((const uint16_t *)data)[i] & 0x7fff) > 0x7c00;
    default: return false;
    }
}

/* Any NaN equals any NaN; the rest by bits. The first differing element, or -1. */
static int64_t first_difference(etch_dtype dtype, const etch_storage *a, const etch_storage *b) {
    size_t size = etch_dtype_size(dtype);
    assert_int_equal(a->bytes, b->bytes);
    for (int64_t i = 0; i < (int64_t)(a->bytes / size); i++) {
        if (!memcmp((char *)a->data + i * size, (char *)b->data + i * size, size)) continue;
        if (is_nan(dtype, a->data, i) && is_nan(dtype, b->data, i)) continue;
        return i;
    }
    return -1;
}

/* ---- inputs ---- */

typedef struct test_io {
    const graph *g;
    etch_tensor **inputs;
    etch_scalar *scalars;
    etch_storage **outputs;
    plan_io io;
} test_io;

static int64_t reach_of(const tensor_meta *m) {
    int64_t last = m->offset;
    for (int d = 0; d < m->ndim; d++) {
        if (m->size[d] == 0) return 0;
        last += (m->size[d] - 1) * m->stride[d];
    }
    return (last + 1) * (int64_t)etch_dtype_size(m->dtype);
}

/* Numbers that fit the static classes of the operators which take them. */
static void fill_scalars(const graph *g, etch_scalar *sc) {
    static const double exponent[] = {1.7, 2, 3, 0.5, -1, 1, 0};
    for (int i = 0; i < g->nscalars; i++) {
        sc[i].kind = (etch_scalar_kind)g->scalar_kinds[i];
        if (sc[i].kind == ETCH_SCALAR_REAL) sc[i].d = 0.75 - i % 3;
        else sc[i].i = sc[i].kind == ETCH_SCALAR_BOOL ? 1 : 3 + i % 2;
    }
    for (int i = 0; i < g->nnodes; i++) {
        const graph_node *n = &g->nodes[i];
        etch_scalar *last = &sc[n->sc + n->nsc - 1];
        int flags = etch__ops[n->op].flags;
        if (!n->nsc || !n->nat) continue;
        int64_t class = g->attrs[n->at + n->nat - 1];
        double value = flags & OPF_CLASS_ALPHA      ? (class ? 1 : 2)
                       : flags & OPF_CLASS_EXPONENT ? exponent[class]
                                                    : 0;
        if (flags & (OPF_CLASS_ALPHA | OPF_CLASS_EXPONENT)) {
            if (last->kind == ETCH_SCALAR_REAL) last->d = value;
            else last->i = value == 1.7 ? 5 : (int64_t)value;
        }
        if (flags & OPF_CLASS_FACTORS && class)
            for (int k = 0; k < n->nsc; k++) sc[n->sc + k] = etch_scalar_int(1);
        if (!(flags & OPF_CLASS_NUMEL)) continue;
        for (int k = 0; k < 3; k++) {
            double v = k == 0 ? 2 : k == 1 ? 2 + (double)class : 1;
            if (sc[n->sc + k].kind == ETCH_SCALAR_REAL) sc[n->sc + k].d = v;
            else sc[n->sc + k].i = (int64_t)v;
        }
    }
}

/* Inputs with pseudo-random contents, the same for the same seed. shift: extra run-time offset. */
static test_io make_io(const graph *g, uint64_t seed, int shift) {
    test_io t = {.g = g};
    t.inputs = calloc(g->ninputs + 1, sizeof *t.inputs);
    t.scalars = calloc(g->nscalars + 1, sizeof *t.scalars);
    t.outputs = calloc(g->noutputs + 1, sizeof *t.outputs);
    test_random_state = seed;
    for (int v = 0; v < g->ninputs; v++) {
        etch_tensor *x = t.inputs[v] = etch__tensor_alloc();
        int32_t base = g->values[v].base;
        etch_dtype dtype = g->values[v].meta.dtype;
        etch__apply_meta(x, &g->values[v].meta);
        x->offset += shift;
        if (base != v) {
            x->storage = t.inputs[base]->storage;
            etch__storage_retain(x->storage);
            continue;
        }
        int64_t bytes = 0;
        for (int w = 0; w < g->ninputs; w++)
            if (g->values[w].base == v && reach_of(&g->values[w].meta) > bytes)
                bytes = reach_of(&g->values[w].meta);
        int64_t size = (int64_t)etch_dtype_size(dtype);
        bytes += shift * size;
        x->storage = etch__storage_new(bytes);
        for (int64_t i = 0; i < bytes / size; i++) put_element(dtype, x->storage->data, i);
    }
    fill_scalars(g, t.scalars);
    t.io = (plan_io){t.inputs, t.scalars, t.outputs, NULL, false};
    return t;
}

static void free_io(test_io *t) {
    for (int v = 0; v < t->g->ninputs; v++) etch_release(t->inputs[v]);
    for (int k = 0; k < t->g->noutputs; k++) etch__storage_release(t->outputs[k]);
    free(t->inputs);
    free(t->scalars);
    free(t->outputs);
}

/* NULL, or what differs. */
static const char *compare_io(const test_io *a, const test_io *b) {
    static char text[128];
    const graph *g = a->g;
    for (int k = 0; k < g->noutputs; k++) {
        etch_dtype dtype = g->values[g->outputs[k]].meta.dtype;
        int64_t i = first_difference(dtype, a->outputs[k], b->outputs[k]);
        if (i < 0) continue;
        unsigned long long x = 0, y = 0;
        size_t size = etch_dtype_size(dtype);
        memcpy(&x, (char *)a->outputs[k]->data + i * size, size);
        memcpy(&y, (char *)b->outputs[k]->data + i * size, size);
        snprintf(text, sizeof text, "output %d (%%%d) element %ld: %llx, native %llx", k,
                 g->outputs[k], (long)i, x, y);
        return text;
    }
    for (int v = 0; v < g->ninputs; v++) {
        etch_dtype dtype = g->values[v].meta.dtype;
        int64_t i = first_difference(dtype, a->inputs[v]->storage, b->inputs[v]->storage);
        snprintf(text, sizeof text, "input %d element %ld", v, (long)i);
        if (i >= 0) return text;
    }
    return NULL;
}

static plan *compile_with(const char *backend_name, const graph *g) {
    backend_options options = {0};
    plan *p = NULL;
    etch_status status = etch__backend_find(backend_name)->compile(g, &options, &p);
    if (status != ETCH_OK) {
        char *text = etch__graph_text(g);
        fail_msg("%s: %s\n%s", backend_name, etch_last_error(), text);
    }
    return p;
}

static void run_and_compare(const graph *g, plan *eager, plan *native, uint64_t seed, int shift) {
    test_io a = make_io(g, seed, shift), b = make_io(g, seed, shift);
    if (eager->run(eager, &a.io) != ETCH_OK) fail_msg("eager: %s", etch_last_error());
    if (native->run(native, &b.io) != ETCH_OK) fail_msg("native: %s", etch_last_error());
    const char *what = compare_io(&a, &b);
    if (what) {
        char *text = etch__graph_text(g);
        fail_msg("%s differs in\n%s", what, text);
    }
    free_io(&a);
    free_io(&b);
}

/* Compares native with eager, on several inputs and thread counts; counts of kernels and products
 * where they are not negative (with one thread). */
static void check_graph(const graph *g, int kernels, int products) {
    plan *eager = compile_with("eager", g);
    for (int threads = 1; threads <= 3; threads += 2) {
        assert_int_equal(etch_set_num_threads(threads), ETCH_OK);
        int64_t failures = etch_counters().compile_failures;
        plan *native = compile_with("native", g);
        assert_int_equal(etch_counters().compile_failures, failures);
        if (threads == 1 && kernels >= 0) assert_int_equal(native->nkernels, kernels);
        if (products >= 0) assert_int_equal(native->nmatmuls, products);
        for (int i = 0; i < 3; i++) run_and_compare(g, eager, native, 17 + i, i);
        etch__plan_release(native);
    }
    etch__plan_release(eager);
}

#endif
