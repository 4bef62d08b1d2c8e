/* The CPU as a target of plans: loop kernels compiled by the helper, whose units threads share, or
 * which follow the tiles of a product. */
#include "core/base/pool.h"
#include "core/base/start.h"
#include "core/dispatch/dispatch.h"
#include "backends/cpu/conv_direct.h"
#include "backends/cpu/joined.h"
#include "jit/plan/native_plan.h"

/* ---- making kernels ---- */

/* Whether a reduction is one kernel or two depends on its size. Where sizes are dynamic the other
 * form is compiled along, so that no later size has to start the compiler. Returns how many. */
static int kernels_of_other_sizes(const kernel_order *o, loop_kernel *other) {
    int n = 0;
    for (int i = 0; o->dynamic && i < o->n; i++) {
        const loop_kernel *k = &o->low[i]->k;
        if (!k->nred || k->split == SPLIT_FINISH || etch__loop_last_stage(k) > 1) continue;
        for (int split = SPLIT_NONE; split <= SPLIT_FINISH; split++) {
            if ((k->split == SPLIT_NONE) == (split == SPLIT_NONE)) continue;
            other[n] = *k;
            other[n++].split = (uint8_t)split;
        }
    }
    return n;
}

/* Of one that is not split: two others. */
enum { OTHERS = 2 };

static bool get_kernels(const kernel_order *o, const loop_kernel **k, loop_kernel *other,
                        loaded_kernel **made, const char **why) {
    int others = kernels_of_other_sizes(o, other);
    for (int i = 0; i < o->n; i++) k[i] = &o->low[i]->k;
    for (int i = 0; i < others; i++) k[o->n + i] = &other[i];
    if (!etch__kernels_get(k, o->n + others, made, why)) return false;
    for (int i = 0; i < others; i++) etch__kernel_release(made[o->n + i]);
    return true;
}

static bool fill_step(kernel_step *s, const lowered *low, loaded_kernel *kernel) {
    if (low->nmatmuls && !(s->joined = etch__joined_new(low))) return false;
    s->kernel = kernel, s->fn = etch__kernel_entry(kernel);
    s->units = low->units, s->grain = low->grain;
    s->stack = etch__loop_stack(&low->k);
    return true;
}

/* No memory for step `filled`. */
static bool give_up(const kernel_order *o, kernel_step *const *steps, loaded_kernel **made,
                    int filled) {
    for (int i = 0; i < filled; i++) etch__free(steps[i]->joined), steps[i]->joined = NULL;
    for (int i = 0; i < o->n; i++) etch__kernel_release(made[i]);
    for (int i = 0; i < filled; i++) steps[i]->kernel = NULL;
    return false;
}

static bool prepare(const kernel_order *o, kernel_step *const *steps, const char **why) {
    int most = o->n * (1 + (o->dynamic ? OTHERS : 0));
    const loop_kernel **k = etch__malloc((size_t)most * sizeof *k);
    loop_kernel *other = etch__malloc((size_t)(most - o->n + 1) * sizeof *other);
    loaded_kernel **made = etch__calloc((size_t)most, sizeof *made);
    *why = "";
    bool ok = k && other && made && get_kernels(o, k, other, made, why);
    int filled = 0;
    while (ok && filled < o->n && fill_step(steps[filled], o->low[filled], made[filled])) filled++;
    if (ok && filled < o->n) ok = give_up(o, steps, made, filled);
    etch__free(k);
    etch__free(other);
    etch__free(made);
    return ok;
}

static void release(const kernel_step *k) {
    etch__kernel_release(k->kernel);
    etch__free(k->joined);
}

/* ---- running one ---- */

typedef struct kernel_call {
    const kernel_step *k;
    void *const *args;
    const uint64_t *cells;
} kernel_call;

static void run_range(void *ctx, int64_t begin, int64_t end) {
    const kernel_call *c = ctx;
    c->k->fn(c->args, c->k->dims, c->cells, begin, end);
}

static void run_units(void *ctx) {
    const kernel_call *c = ctx;
    if (c->k->units <= c->k->grain) run_range(ctx, 0, c->k->units);
    else etch__parallel(c->k->units, c->k->grain, run_range, ctx);
}

static etch_status run(const kernel_step *k, void *const *args, const uint64_t *cells) {
    kernel_call c = {k, args, cells};
    if (k->joined) return etch__joined_run(k, args, cells);
    if (unlikely(!etch__stack_ready(k->stack))) return etch__tls.status;
    etch__with_room(k->stack, run_units, &c);
    return ETCH_OK;
}

static bool channels_last(uint16_t op, etch_dtype dtype) {
    return (op == OP_CONVOLUTION || op == OP_CONVOLUTION_BACKWARD_INPUT || op == OP_MAX_POOL2D) &&
           etch__conv_is_direct(dtype);
}

static bool in_planes(const int64_t *attrs, const tensor_meta *x, const tensor_meta *w,
                      const tensor_meta *y) {
    op_call call = {.op = OP_CONVOLUTION, .at = attrs};
    conv_numbers at;
    if (!etch__conv_numbers(&call, &at)) return false;
    conv_sizes n = etch__conv_sizes(&at, x->size, w->size, y->size);
    return etch__conv_by_lines(&n, x->dtype);
}

/* Where sizes are dynamic, they decide nothing. */
static bool makes_norm(uint16_t op, bool dynamic, int64_t rows, int64_t reduced) {
    (void)op;
    return dynamic || !etch__loop_splits(rows, rows, reduced);
}

static const jit_target cpu = {
#ifndef ETCH_HAVE_GCCJIT
    .absent = "it was built with ETCH_GCCJIT=OFF",
#endif
    .run = etch__run_steps,
    .channels_last = channels_last,
    .in_planes = in_planes,
    .makes_norm = makes_norm,
    .compiles_ahead = true,
    .kernels = {prepare, release, run},
    .matmuls = {.wide = true, .joins = etch__cpu_joins},
};

void etch__start_cpu_target(void) { etch__target_register(true, &cpu); }
