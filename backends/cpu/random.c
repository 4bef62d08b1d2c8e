/* rand and randn: element i is a function of (seed, offset + i) alone, through one Philox block, so
 * any split over threads gives the same numbers.
 *
 * rand takes 24 bits for f32, 53 for f64, and for the half types as many as they hold (8, 11), so
 * that rounding never reaches 1. randn is the cosine half of Box-Muller: sqrt(-2 log(1 - u)) cos(2
 * pi v). */
#include <math.h>

#include "backends/cpu/program.h"
#include "core/base/start.h"
#include "core/dispatch/dispatch.h"
#include "core/base/pool.h"

enum { STRIP_RANDOM = 256, RANDOM_GRAIN = 8192 };

typedef struct random_job {
    const isa_table *isa;
    uint64_t seed, offset;
    etch_dtype dtype;
    bool normal;
    char *out;
} random_job;

/* values[] = 24- (or fewer-) bit or 53-bit uniform numbers from words 2 * pair and 2 * pair + 1. */
static void uniform(const random_job *j, void *values, uint32_t *const w[4], int pair, int64_t n) {
    int bits = j->normal || j->dtype == ETCH_F32 ? 24 : j->dtype == ETCH_BF16 ? 8 : 11;
    if (j->dtype == ETCH_F64) j->isa->random->uniform_f64(values, w[2 * pair], w[2 * pair + 1], n);
    else j->isa->random->uniform_f32(values, w[2 * pair], bits, n);
}

static void box_muller(const random_job *j, etch_dtype type, void *u, void *v, void *constant,
                       int64_t n) {
    const strip_table *table = j->isa->strips;
    const strip_fn *mul = table->prim[PRIM_MUL];
    const double constants[3] = {1, -2, 2 * 3.14159265358979323846};
    void *const of[3] = {u, u, v};
    for (int k = 0; k < 3; k++) {
        uint64_t cell = etch__scalar_cell(etch_scalar_real(constants[k]), type);
        table->fill[etch__size_log2(type)](constant, &cell, n);
        if (k == 0) { /* 1 - u lies in (0, 1] */
            table->prim[PRIM_SUB][type](u, constant, u, NULL, n);
            table->prim[PRIM_LOG][type](u, u, NULL, NULL, n);
        } else {
            mul[type](of[k], constant, of[k], NULL, n);
        }
    }
    table->prim[PRIM_SQRT][type](u, u, NULL, NULL, n);
    table->prim[PRIM_COS][type](v, v, NULL, NULL, n);
    mul[type](u, u, v, NULL, n);
}

static void random_task(void *ctx, int64_t begin, int64_t end) {
    const random_job *j = ctx;
    etch_dtype type = etch__compute_type(j->dtype);
    uint32_t words[4][STRIP_RANDOM];
    double u[STRIP_RANDOM], v[STRIP_RANDOM], constant[STRIP_RANDOM];
    uint32_t *const w[4] = {words[0], words[1], words[2], words[3]};
    for (int64_t i = begin; i < end; i += STRIP_RANDOM) {
        int64_t n = end - i < STRIP_RANDOM ? end - i : STRIP_RANDOM;
        j->isa->random->philox(j->seed, j->offset + (uint64_t)i, w, n);
        uniform(j, u, w, 0, n);
        if (j->normal) {
            uniform(j, v, w, 1, n);
            box_muller(j, type, u, v, constant, n);
        }
        etch__store_rounded(j->dtype, j->out + (i << etch__size_log2(j->dtype)), u, n);
    }
}

static etch_status random_kernel(const op_call *call, etch_tensor *const *outs) {
    etch_tensor *out = outs[0];
    if (out->numel == 0) return ETCH_OK;
    random_job j = {.isa = etch__isa_table(),
                    .seed = (uint64_t)call->sc[call->nsc - 2].i,
                    .offset = (uint64_t)call->sc[call->nsc - 1].i,
                    .dtype = out->dtype,
                    .normal = call->op == OP_RANDN,
                    .out = etch__ptr(out)};
    etch__parallel(out->numel, RANDOM_GRAIN, random_task, &j);
    return ETCH_OK;
}

void etch__start_cpu_random(void) {
    etch__register_kernel(OP_RAND, random_kernel);
    etch__register_kernel(OP_RANDN, random_kernel);
}
