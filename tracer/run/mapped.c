/* etch_vmap: functions that are mapped over a batch. A call opens a level, runs the body once on
 * batched tensors, and takes the batch out of what it returns (docs/transforms.md). Inside a run
 * all of it is recorded, on whole batches, as what stands around it. */
#include <etch/transforms.h>

#include "core/autograd/crossing.h"
#include "tracer/run/run.h"

/* Where samples are in arguments and results; the last one of a list goes on. */
struct mapped_dims {
    etch_dims in, out;
    uint8_t randomness;
};

static int64_t dim_of(const etch_dims *dims, int i) {
    return !dims->n ? 0 : dims->v[i < dims->n ? i : dims->n - 1];
}

/* ---- arguments ---- */

/* Which dimension of argument i has the samples, from the front; -1 with an error. */
static int sample_dim(const char *name, const call_io *io, int i, int64_t dim) {
    int ndim = io->in[i]->ndim;
    if (dim >= -ndim && dim < ndim) return (int)(dim < 0 ? dim + ndim : dim);
    etch__error_at(io->site, ETCH_ERR_DIM_RANGE,
                   "%s: argument %d: its samples are said to be in dimension %ld (in_dims of "
                   "etch_vmap), but it has the sizes %s; ETCH_UNMAPPED stands for an argument that "
                   "is the same for all samples",
                   name, i, (long)dim, etch__shape_text(ndim, io->in[i]->size).s);
    return -1;
}

/* The samples, as many in each argument that is mapped; -1 with an error. */
static int64_t count_samples(const char *name, const struct mapped_dims *m, const call_io *io) {
    int64_t size = -1;
    int first = 0;
    for (int i = 0; i < io->nin; i++) {
        int64_t dim = dim_of(&m->in, i);
        if (dim == ETCH_UNMAPPED || io->in[i] == ETCH_NONE) continue;
        int d = sample_dim(name, io, i, dim);
        if (d < 0) return -1;
        if (size < 0) size = io->in[i]->size[d], first = i;
        if (size == io->in[i]->size[d]) continue;
        etch__error_at(io->site, ETCH_ERR_INVALID_ARGUMENT,
                       "%s: argument %d has %ld samples (dimension %d of %s), argument %d has %ld",
                       name, i, (long)io->in[i]->size[d], d,
                       etch__shape_text(io->in[i]->ndim, io->in[i]->size).s, first, (long)size);
        return -1;
    }
    if (size < 0)
        etch__error_at(
            io->site, ETCH_ERR_INVALID_ARGUMENT,
            "%s: expected an argument that has samples, but in_dims of etch_vmap maps none "
            "of %d",
            name, io->nin);
    return size;
}

static bool batch_arguments(const struct mapped_dims *m, const call_io *io, uint32_t level,
                            etch_tensor **in) {
    for (int i = 0; i < io->nin; i++) {
        int64_t dim = dim_of(&m->in, i);
        bool mapped = dim != ETCH_UNMAPPED && io->in[i] != ETCH_NONE;
        if (dim < 0) dim += io->in[i]->ndim;
        in[i] = mapped ? etch__into_batch(io->in[i], (int)dim, level) : io->in[i];
        if (!in[i]) return false;
    }
    return true;
}

/* ---- results ---- */

static bool is_batched_at(const etch_tensor *t, uint32_t level) {
    batch_levels levels = etch__levels_of(t);
    return etch__has_level(&levels, level);
}

/* One that all samples share is repeated in memory of its own, as a stack of samples would be. */
static etch_tensor *repeated(etch_tensor *t, int dim, uint32_t level, int64_t size) {
    etch_tensor *wide = etch__out_of_batch(t, dim, level, size);
    return wide ? etch_clone(wide) : NULL;
}

static etch_tensor *result_of(const char *name, etch_tensor *t, int i, int64_t dim, uint32_t level,
                              int64_t size) {
    bool batched = is_batched_at(t, level);
    int ndim = t->ndim + 1;
    if (dim == ETCH_UNMAPPED && !batched) return t;
    if (dim == ETCH_UNMAPPED)
        return etch__null_at(
            NULL, ETCH_ERR_BATCHED,
            "%s: result %d differs from sample to sample: expected a dimension for "
            "the samples in out_dims of etch_vmap, got ETCH_UNMAPPED",
            name, i);
    if (dim < -ndim || dim >= ndim)
        return etch__null_at(NULL, ETCH_ERR_DIM_RANGE,
                             "%s: result %d: the samples are to be in dimension %ld (out_dims of "
                             "etch_vmap), but it has %d with them",
                             name, i, (long)dim, ndim);
    if (dim < 0) dim += ndim;
    return batched ? etch__out_of_batch(t, (int)dim, level, size)
                   : repeated(t, (int)dim, level, size);
}

static etch_status unbatch_results(const char *name, const struct mapped_dims *m, const call_io *io,
                                   uint32_t level, int64_t size) {
    for (int i = 0; i < io->nout; i++)
        if (!(io->out[i] = result_of(name, io->out[i], i, dim_of(&m->out, i), level, size)))
            return etch__tls.status;
    return ETCH_OK;
}

/* ---- the call ---- */

typedef struct mapped_call {
    const char *name;
    struct mapped_dims dims;
    function_body body;
    const call_io *io;
    int64_t size;
} mapped_call;

/* Between the opening of a level and its end; the body may free the function. */
static etch_status run_level(const mapped_call *c, uint32_t level, int64_t scope,
                             etch_tensor **in) {
    call_io inside = *c->io;
    inside.in = in;
    if (!batch_arguments(&c->dims, c->io, level, in)) return etch__tls.status;
    unsigned errors = etch__tls.errors;
    etch_status status = etch__call_body(&c->body, &inside);
    status = etch__results_in_scope(c->name, scope, errors, status, &inside);
    etch__close_deeper(scope, status, &inside);
    return status == ETCH_OK ? unbatch_results(c->name, &c->dims, &inside, level, c->size) : status;
}

static etch_status run_mapped(const mapped_call *c) {
    etch_tensor *few[8], **in = few;
    if (c->io->nin > COUNT_OF(few) && !(in = etch__malloc((size_t)c->io->nin * sizeof *in)))
        return etch__tls.status;
    int64_t scope = etch_scope_begin();
    uint32_t level = scope < 0 ? 0 : etch__level_open(c->dims.randomness, c->size);
    etch_status status = level ? run_level(c, level, scope, in) : etch__tls.status;
    if (level) etch__level_close(level);
    for (int i = 0; status == ETCH_OK && i < c->io->nout; i++)
        if (!etch_keep(c->io->out[i])) status = etch__tls.status;
    if (scope >= 0 && etch__tls.nscopes > scope) etch_scope_end(scope);
    if (in != few) etch__free(in);
    return status;
}

etch_status etch__call_mapped(etch_function *f, const call_io *io) {
    char name[64];
    snprintf(name, sizeof name, "%s", f->name);
    mapped_call c = {name, *f->mapped, f->body, io, count_samples(f->name, f->mapped, io)};
    return c.size < 0 ? etch__tls.status : run_mapped(&c);
}

/* ---- making ---- */

static struct mapped_dims *dims_of(etch_dims in, etch_dims out, const etch_vmap_options *given) {
    etch_vmap_options o = {.struct_size = sizeof o};
    size_t n = given ? given->struct_size : 0;
    if (given) memcpy(&o, given, n && n < sizeof o ? n : sizeof o);
    bool ok = in.n >= 0 && in.n <= ETCH_MAX_DIMS && out.n >= 0 && out.n <= ETCH_MAX_DIMS &&
              (unsigned)o.randomness <= ETCH_RANDOM_SAME;
    if (!ok)
        return etch__null_at(
            NULL, ETCH_ERR_INVALID_ARGUMENT,
            "etch_vmap: expected lists of at most %d dimensions (the last one stands "
            "for all that follow) and a randomness, got %d, %d and %d",
            ETCH_MAX_DIMS, in.n, out.n, (int)o.randomness);
    struct mapped_dims *m = etch__malloc(sizeof *m);
    if (m) *m = (struct mapped_dims){in, out, (uint8_t)o.randomness};
    return m;
}

etch_function *etch_vmap_n(etch_callable fn, etch_dims in_dims, etch_dims out_dims,
                           const etch_vmap_options *options) {
    struct mapped_dims *m = dims_of(in_dims, out_dims, options);
    etch_function *f = m ? etch__wrap(fn, WRAP_MAPPED, "etch_vmap") : NULL;
    if (f) f->mapped = m;
    else etch__free(m);
    return f;
}
