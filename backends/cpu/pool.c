/* Pooling: plane by plane, each of which one thread computes; or row by row of the windows, where a
 * plan has laid channels innermost. Half types are computed in f32, and what has to be rounded is
 * rounded once. */
#include "backends/cpu/conv_direct.h"
#include "backends/cpu/program.h"
#include "core/base/pool.h"
#include "core/base/start.h"
#include "core/dispatch/dispatch.h"

typedef struct pool_job {
    pool_plane plane;
    const pool_table *kernels;
    op_id op;
    etch_dtype dtype, type;       /* of the operand, and its compute type */
    const char *from;             /* planes, row-major, in the compute type */
    char *to;                     /* likewise, or i64 for indices */
    int64_t from_bytes, to_bytes; /* of a plane, or of an image */
    int64_t channels;             /* of pixels whose channels lie innermost */
} pool_job;

static void planes_task(void *ctx, int64_t begin, int64_t end) {
    const pool_job *j = ctx;
    for (int64_t k = begin; k < end; k++) {
        const char *from = j->from + k * j->from_bytes;
        char *to = j->to + k * j->to_bytes;
        switch (j->op) {
        case OP_MAX_POOL2D: j->kernels->largest[j->type](&j->plane, from, to); break;
        case OP_MAX_POOL2D_INDICES:
            j->kernels->place[j->type](&j->plane, from, (int64_t *)to);
            break;
        case OP_AVG_POOL2D: j->kernels->mean[j->type](&j->plane, from, to); break;
        default: j->kernels->spread[j->type](&j->plane, from, to);
        }
    }
}

static void plan(pool_job *j, const etch_tensor *x, const etch_tensor *y, bool back) {
    const etch_tensor *in = back ? y : x, *out = back ? x : y;
    int64_t size = (int64_t)etch_dtype_size(j->type);
    for (int d = 0; d < 2; d++) {
        j->plane.in[d] = in->size[in->ndim - 2 + d];
        j->plane.out[d] = out->size[out->ndim - 2 + d];
    }
    int64_t pixels = j->plane.in[0] * j->plane.in[1], windows = j->plane.out[0] * j->plane.out[1];
    j->from_bytes = (back ? windows : pixels) * size;
    j->to_bytes = back ? pixels * size : windows * (j->op == OP_MAX_POOL2D_INDICES ? 8 : size);
}

static void run_planes(pool_job *j, const etch_tensor *y) {
    const pool_plane *p = &j->plane;
    double work =
        (double)(p->out[0] * p->out[1]) * (double)p->at.kernel[0] * (double)p->at.kernel[1];
    int64_t planes = 1;
    for (int d = 0; d < y->ndim - 2; d++) planes *= y->size[d];
    etch__parallel(planes, work > 32768 ? 1 : (int64_t)(32768 / (work + 1)) + 1, planes_task, j);
}

/* ---- channels innermost ---- */

static void rows_task(void *ctx, int64_t begin, int64_t end) {
    const pool_job *j = ctx;
    for (int64_t k = begin; k < end; k++) {
        int64_t image = k / j->plane.out[0], oh = k % j->plane.out[0];
        char *to = j->to + image * j->to_bytes + oh * (j->to_bytes / j->plane.out[0]);
        j->kernels->pixels[j->type](&j->plane, j->from + image * j->from_bytes, to, j->channels,
                                    oh);
    }
}

/* Elements as the kernel takes them: of bf16 as they are, since none is rounded. */
static etch_dtype type_of_pixels(etch_dtype dtype) {
    return dtype == ETCH_BF16 ? dtype : etch__compute_type(dtype);
}

/* y's channels lie innermost: a plan asks for that. */
static etch_status pool_pixels(pool_job *j, const etch_tensor *x, const etch_tensor *y) {
    void *copy = NULL, *wide = NULL;
    etch_tensor t = etch__channels_last(x);
    j->type = type_of_pixels(j->dtype), j->channels = x->size[1];
    plan(j, x, y, false);
    j->from_bytes *= j->channels, j->to_bytes *= j->channels;
    bool rounds = j->type != j->dtype;
    bool ok = (j->from = etch__row_major_elements(&t, rounds, &copy)) &&
              (!rounds || (wide = etch__malloc((size_t)y->numel * etch_dtype_size(j->type))));
    j->to = rounds ? wide : etch__ptr(y);
    double work = (double)j->to_bytes * (double)j->plane.at.kernel[0] *
                  (double)j->plane.at.kernel[1] / (double)j->plane.out[0];
    if (ok)
        etch__parallel(x->size[0] * j->plane.out[0],
                       work > 65536 ? 1 : (int64_t)(65536 / (work + 1)) + 1, rows_task, j);
    if (ok && rounds) etch__store_rounded(y->dtype, etch__ptr(y), wide, y->numel);
    etch__free(copy);
    etch__free(wide);
    return ok ? ETCH_OK : ETCH_ERR_OUT_OF_MEMORY;
}

/* ---- the kernels ---- */

static etch_status pool_kernel(const op_call *call, etch_tensor *const *outs) {
    const etch_tensor *x = call->in[0], *y = outs[0];
    pool_job j = {.kernels = etch__isa_table()->pool, .op = (op_id)call->op, .dtype = x->dtype};
    void *copy = NULL, *wide = NULL;
    if (!y->numel) return ETCH_OK;
    if (!etch__pool_numbers(call, &j.plane.at)) return etch__tls.status;
    if (!y->contiguous) return pool_pixels(&j, x, y);
    j.type = etch__compute_type(j.dtype);
    plan(&j, x, y, call->op == OP_AVG_POOL2D_BACKWARD);
    bool rounds = j.type != j.dtype && y->dtype == j.dtype;
    bool ok = (j.from = etch__row_major_elements(x, true, &copy)) &&
              (!rounds || (wide = etch__malloc((size_t)y->numel * etch_dtype_size(j.type))));
    j.to = rounds ? wide : etch__ptr(y);
    if (ok) run_planes(&j, y);
    if (ok && rounds) etch__store_rounded(y->dtype, etch__ptr(y), wide, y->numel);
    etch__free(copy);
    etch__free(wide);
    return ok ? ETCH_OK : ETCH_ERR_OUT_OF_MEMORY;
}

void etch__start_cpu_pools(void) {
    etch__register_kernel(OP_MAX_POOL2D, pool_kernel);
    etch__register_kernel(OP_MAX_POOL2D_INDICES, pool_kernel);
    etch__register_kernel(OP_AVG_POOL2D, pool_kernel);
    etch__register_kernel(OP_AVG_POOL2D_BACKWARD, pool_kernel);
}
