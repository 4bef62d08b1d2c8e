/* Guards on a tensor's metadata, and what to say when one fails. */
#include "guards/guard.h"

void etch__guard_make(const etch_tensor *t, tensor_meta *g) {
    memset(g, 0, sizeof *g);
    g->dtype = t->dtype, g->ndim = t->ndim, g->device = t->device;
    for (int d = 0; d < t->ndim; d++) g->size[d] = t->size[d], g->stride[d] = t->stride[d];
}

static bool agree_where(uint8_t dims, const tensor_meta *g, const etch_tensor *t) {
    for (int d = 0; d < t->ndim; d++)
        if (dims >> d & 1 && g->size[d] != t->size[d]) return false;
    return true;
}

static bool within(const dim_marks *m, const etch_tensor *t, int d) {
    return !(m->dynamic >> d & 1) || (t->size[d] >= m->min[d] && t->size[d] <= m->max[d]);
}

bool etch__marks_hold(const dim_marks *m, const tensor_meta *g, const etch_tensor *t) {
    uint8_t fixed = m ? m->fixed : 0;
    const dim_marks *marks = etch__marks(t);
    if (marks && marks->fixed & ~fixed) return false;
    if (!agree_where(fixed, g, t)) return false;
    for (int d = 0; m && d < t->ndim; d++)
        if (!within(m, t, d)) return false;
    return true;
}

bool etch__fixed_sizes_agree(const tensor_meta *g, const etch_tensor *t) {
    const dim_marks *marks = etch__marks(t);
    return !marks || agree_where(marks->fixed, g, t);
}

void etch__marks_explain(const dim_marks *m, const tensor_meta *g, const etch_tensor *t, int index,
                         char *buf, size_t n) {
    for (int d = 0; d < t->ndim && d < g->ndim; d++)
        if (!within(m, t, d))
            snprintf(buf, n,
                     "tensor %d: size out of bounds at dim %d, marked dynamic: expected %lld to "
                     "%lld, got %lld",
                     index, d, (long long)m->min[d], (long long)m->max[d], (long long)t->size[d]);
}

static bool explain_dims(const char *what, const int64_t *expected, const int64_t *got, int ndim,
                         int index, char *buf, size_t n) {
    for (int d = 0; d < ndim; d++) {
        if (expected[d] == got[d]) continue;
        snprintf(buf, n, "tensor %d: %s mismatch at dim %d: expected %lld, got %lld", index, what,
                 d, (long long)expected[d], (long long)got[d]);
        return true;
    }
    return false;
}

void etch__guard_explain(const tensor_meta *g, const etch_tensor *t, int index, char *buf,
                         size_t n) {
    if (n) buf[0] = 0;
    if (g->dtype != t->dtype)
        snprintf(buf, n, "tensor %d: dtype mismatch: expected %s, got %s", index,
                 etch_dtype_name(g->dtype), etch_dtype_name(t->dtype));
    else if (g->ndim != t->ndim)
        snprintf(buf, n, "tensor %d: rank mismatch: expected %d, got %d", index, g->ndim, t->ndim);
    else if (g->device != t->device)
        snprintf(buf, n, "tensor %d: device mismatch: expected %s, got %s", index,
                 etch_device_name(g->device), etch_device_name(t->device));
    else if (!explain_dims("size", g->size, t->size, g->ndim, index, buf, n))
        explain_dims("stride", g->stride, t->stride, g->ndim, index, buf, n);
}

void etch__guard_text(const tensor_meta *g, char *buf, size_t n) {
    snprintf(buf, n, g->device ? "%s%s on %s" : "%s%s", etch_dtype_name(g->dtype),
             etch__shape_text(g->ndim, g->size).s, etch_device_name(g->device));
}
