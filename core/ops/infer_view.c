/* Shape rules of views: sizes, strides and offset over the storage of the viewed tensor. */
#include "core/ops/rules.h"

#define FAIL(...) return etch__infer_fail(call, __VA_ARGS__)
#define TEXT(t) etch__shape_text((t)->ndim, (t)->size).s

/* Starts from the viewed tensor itself. */
static const etch_tensor *begin(const op_call *call, tensor_meta *out) {
    const etch_tensor *t = call->in[0];
    out->ndim = t->ndim, out->offset = t->offset;
    memcpy(out->size, t->size, sizeof out->size);
    memcpy(out->stride, t->stride, sizeof out->stride);
    return t;
}

static bool drop_dim(tensor_meta *out, int dim) {
    out->ndim--;
    for (int i = dim; i < out->ndim; i++)
        out->size[i] = out->size[i + 1], out->stride[i] = out->stride[i + 1];
    return true;
}

/* ---- view ---- */

bool etch__infer_size(const void *site, const char *what, int64_t numel, int n,
                      const int64_t *wanted, int64_t *size) {
    int64_t product = 1;
    int open = -1;
    for (int i = 0; i < n; i++) {
        size[i] = wanted[i];
        bool bad = wanted[i] < -1 || (wanted[i] == -1 && open >= 0);
        if (bad || (wanted[i] >= 0 && __builtin_mul_overflow(product, wanted[i], &product)))
            return etch__false_at(site, bad ? ETCH_ERR_SHAPE : ETCH_ERR_OVERFLOW,
                                  "%s: expected sizes with at most one -1, got %s", what,
                                  etch__shape_text(n, wanted).s);
        if (wanted[i] == -1) open = i;
    }
    if (open >= 0 && product > 0 && numel % product == 0) {
        size[open] = numel / product;
        return true;
    }
    if (open < 0 && product == numel) return true;
    return etch__false_at(site, ETCH_ERR_SHAPE, "%s: %lld elements do not fit sizes %s%s", what,
                          (long long)numel, etch__shape_text(n, wanted).s,
                          open >= 0 && product == 0 ? " (-1 could be anything)" : "");
}

/* Dimensions of the old tensor that lie in one piece form a chunk; the new dimensions are laid over
 * the chunks from the last to the first, and each chunk must come out even. */
bool etch__view_strides(int ndim, const int64_t *size, const int64_t *stride, int n,
                        const int64_t *to, int64_t *to_stride) {
    int64_t numel = 1;
    for (int i = 0; i < ndim; i++) numel *= size[i];
    if (numel <= 1 || ndim == 0) {
        etch__row_major(n, to, to_stride);
        return true;
    }
    int at = n - 1;
    int64_t chunk_stride = stride[ndim - 1], chunk = 1, laid = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        chunk *= size[i];
        bool ends = i == 0 || (size[i - 1] != 1 && stride[i - 1] != chunk * chunk_stride);
        if (!ends) continue;
        for (; at >= 0 && (laid < chunk || to[at] == 1); at--) {
            to_stride[at] = laid * chunk_stride;
            laid *= to[at];
        }
        if (laid != chunk) return false;
        if (i > 0) chunk_stride = stride[i - 1], chunk = laid = 1;
    }
    return at < 0;
}

static bool view_rule(const op_call *call, tensor_meta *out) {
    const etch_tensor *t = begin(call, out);
    int64_t n = call->at[0], size[ETCH_MAX_DIMS];
    if (n < 0 || n > ETCH_MAX_DIMS)
        FAIL(ETCH_ERR_SHAPE, "expected 0 to %d dimensions, got %lld", ETCH_MAX_DIMS, (long long)n);
    const char *name = etch__ops[call->op].name;
    if (!etch__infer_size(call->site, name, t->numel, (int)n, call->at + 1, size)) return false;
    out->ndim = (uint8_t)n;
    memcpy(out->size, size, sizeof *size * (size_t)n);
    if (etch__row_major((int)n, size, out->stride) < 0)
        FAIL(ETCH_ERR_OVERFLOW, "sizes %s do not fit in 63 bits", etch__shape_text((int)n, size).s);
    if (t->contiguous || etch__view_strides(t->ndim, t->size, t->stride, (int)n, size, out->stride))
        return true;
    FAIL(ETCH_ERR_SHAPE,
         "sizes %s with strides %s cannot be seen as %s without a copy: use etch_reshape", TEXT(t),
         etch__shape_text(t->ndim, t->stride).s, etch__shape_text((int)n, size).s);
}

/* ---- reordering ---- */

static void swap_dims(tensor_meta *out, int a, int b) {
    int64_t size = out->size[a], stride = out->stride[a];
    out->size[a] = out->size[b], out->stride[a] = out->stride[b];
    out->size[b] = size, out->stride[b] = stride;
}

static bool transpose_rule(const op_call *call, tensor_meta *out) {
    const etch_tensor *t = begin(call, out);
    int a = 0, b = 0;
    if (!etch__wrap_dim(call, call->at[0], t->ndim, &a)) return false;
    if (!etch__wrap_dim(call, call->at[1], t->ndim, &b)) return false;
    if (a != b) swap_dims(out, a, b);
    return true;
}

static bool detach_rule(const op_call *call, tensor_meta *out) { return begin(call, out) != NULL; }

static bool t_rule(const op_call *call, tensor_meta *out) {
    const etch_tensor *t = begin(call, out);
    if (t->ndim > 2)
        FAIL(ETCH_ERR_SHAPE, "expected at most 2 dimensions, got %d: %s (use etch_transpose)",
             t->ndim, TEXT(t));
    if (t->ndim == 2) swap_dims(out, 0, 1);
    return true;
}

static bool permute_rule(const op_call *call, tensor_meta *out) {
    const etch_tensor *t = begin(call, out);
    uint32_t seen = 0;
    int dim = 0;
    if (call->at[0] != t->ndim)
        FAIL(ETCH_ERR_SHAPE, "expected %d dimension numbers for sizes %s, got %lld", t->ndim,
             TEXT(t), (long long)call->at[0]);
    for (int i = 0; i < t->ndim; i++) {
        if (!etch__wrap_dim(call, call->at[1 + i], t->ndim, &dim)) return false;
        if (seen >> dim & 1)
            FAIL(ETCH_ERR_INVALID_ARGUMENT, "expected each dimension once, got %d twice", dim);
        seen |= 1u << dim;
        out->size[i] = t->size[dim], out->stride[i] = t->stride[dim];
    }
    return true;
}

/* ---- parts ---- */

/* Python's rule for one bound: absent, from the end, clamped to where a walk may begin or stop. */
static int64_t clamp_bound(int64_t v, int64_t n, bool down, int64_t absent) {
    if (v == ETCH_NO_INT) return absent;
    if (v < 0) v += n;
    int64_t low = down ? -1 : 0, high = down ? n - 1 : n;
    return v < low ? low : v > high ? high : v;
}

static bool slice_rule(const op_call *call, tensor_meta *out) {
    const etch_tensor *t = begin(call, out);
    int64_t step = call->at[3];
    int dim = 0;
    if (!t->ndim) FAIL(ETCH_ERR_SHAPE, "expected a tensor with a dimension, got a 0-d one");
    if (!etch__wrap_dim(call, call->at[0], t->ndim, &dim)) return false;
    if (!step) FAIL(ETCH_ERR_INVALID_ARGUMENT, "expected a step other than 0");
    int64_t n = t->size[dim];
    bool down = step < 0;
    int64_t first = clamp_bound(call->at[1], n, down, down ? n - 1 : 0);
    int64_t stop = clamp_bound(call->at[2], n, down, down ? -1 : n);
    uint64_t span = down ? (uint64_t)(first - stop) : (uint64_t)(stop - first);
    uint64_t pace = down ? -(uint64_t)step : (uint64_t)step;
    bool empty = down ? first <= stop : stop <= first;
    out->size[dim] = empty ? 0 : (int64_t)((span - 1) / pace + 1);
    /* Where no second element is reached the product may not fit, and does not matter. */
    if (__builtin_mul_overflow(t->stride[dim], step, &out->stride[dim]))
        out->stride[dim] = t->stride[dim];
    if (first > 0) out->offset += first * t->stride[dim];
    return true;
}

static bool select_rule(const op_call *call, tensor_meta *out) {
    const etch_tensor *t = begin(call, out);
    int64_t index = call->at[1];
    int dim = 0;
    if (!t->ndim) FAIL(ETCH_ERR_SHAPE, "expected a tensor with a dimension, got a 0-d one");
    if (!etch__wrap_dim(call, call->at[0], t->ndim, &dim)) return false;
    int64_t n = t->size[dim];
    if (!n)
        FAIL(ETCH_ERR_INDEX, "dimension %d is empty, got the index %lld", dim, (long long)index);
    if (index < -n || index >= n)
        FAIL(ETCH_ERR_INDEX, "expected an index from %lld to %lld, got %lld", (long long)-n,
             (long long)n - 1, (long long)index);
    out->offset += (index < 0 ? index + n : index) * t->stride[dim];
    return drop_dim(out, dim);
}

/* ---- windows, diagonals, any strides ---- */

/* A 0-d tensor counts as one of a single element. */
static bool unfold_rule(const op_call *call, tensor_meta *out) {
    const etch_tensor *t = begin(call, out);
    int64_t size = call->at[1], step = call->at[2];
    int dim = 0;
    if (!etch__wrap_dim(call, call->at[0], t->ndim, &dim)) return false;
    int64_t n = t->ndim ? t->size[dim] : 1, stride = t->ndim ? t->stride[dim] : 1;
    if (t->ndim == ETCH_MAX_DIMS)
        FAIL(ETCH_ERR_SHAPE, "expected at most %d dimensions before, got %s", ETCH_MAX_DIMS - 1,
             TEXT(t));
    if (size < 0 || size > n)
        FAIL(ETCH_ERR_INVALID_ARGUMENT, "expected a window of 0 to %lld elements, got %lld",
             (long long)n, (long long)size);
    if (step < 1)
        FAIL(ETCH_ERR_INVALID_ARGUMENT, "expected a step of at least 1, got %lld", (long long)step);
    if (t->ndim) {
        out->size[dim] = (n - size) / step + 1;
        /* Where there is no second window the product may not fit, and does not matter. */
        if (__builtin_mul_overflow(stride, step, &out->stride[dim])) out->stride[dim] = stride;
    }
    out->size[t->ndim] = size, out->stride[t->ndim] = stride;
    out->ndim++;
    return true;
}

static bool diagonal_rule(const op_call *call, tensor_meta *out) {
    const etch_tensor *t = begin(call, out);
    int64_t offset = call->at[0];
    int a = 0, b = 0;
    if (!etch__wrap_dim(call, call->at[1], t->ndim, &a)) return false;
    if (!etch__wrap_dim(call, call->at[2], t->ndim, &b)) return false;
    if (a == b) FAIL(ETCH_ERR_INVALID_ARGUMENT, "expected two dimensions, got %d twice", a);
    int64_t n = t->size[a], m = t->size[b], stride = t->stride[a] + t->stride[b];
    if (offset >= 0) m = offset < m ? m - offset : 0;
    else n = -(n + offset) < 0 ? n + offset : 0;
    int64_t size = n < m ? n : m;
    if (size > 0) out->offset += offset >= 0 ? offset * t->stride[b] : -offset * t->stride[a];
    drop_dim(out, a > b ? a : b);
    drop_dim(out, a > b ? b : a);
    out->size[out->ndim] = size, out->stride[out->ndim] = stride;
    out->ndim++;
    return true;
}

/* The lowest and highest place of an element, relative to the first; false on overflow. */
static bool reach_of(int ndim, const int64_t *size, const int64_t *stride, int64_t *low,
                     int64_t *high) {
    *low = *high = 0;
    for (int d = 0; d < ndim; d++) {
        int64_t reach;
        if (size[d] == 0) return *low = *high = 0, true;
        if (__builtin_mul_overflow(size[d] - 1, stride[d], &reach)) return false;
        int64_t *end = reach < 0 ? low : high;
        if (__builtin_add_overflow(*end, reach, end)) return false;
    }
    return true;
}

static bool as_strided_rule(const op_call *call, tensor_meta *out) {
    const etch_tensor *t = begin(call, out);
    int64_t n = call->at[0], low, high, least, most, numel = 1;
    if (n < 0 || n > ETCH_MAX_DIMS)
        FAIL(ETCH_ERR_SHAPE, "expected 0 to %d dimensions, got %lld", ETCH_MAX_DIMS, (long long)n);
    const int64_t *size = call->at + 1, *stride = call->at + 2 + n;
    if (stride[-1] != n)
        FAIL(ETCH_ERR_SHAPE, "expected a stride for each of %lld sizes, got %lld", (long long)n,
             (long long)stride[-1]);
    for (int d = 0; d < n; d++)
        if (size[d] < 0 || __builtin_mul_overflow(numel, size[d], &numel))
            FAIL(ETCH_ERR_SHAPE, "expected sizes that are not negative and fit, got %s",
                 etch__shape_text((int)n, size).s);
    reach_of(t->ndim, t->size, t->stride, &least, &most);
    bool inside = reach_of((int)n, size, stride, &low, &high) && low >= least && high <= most;
    if (numel && (!t->numel || !inside))
        FAIL(ETCH_ERR_SHAPE, "sizes %s with strides %s reach beyond the elements of self, %s",
             etch__shape_text((int)n, size).s, etch__shape_text((int)n, stride).s, TEXT(t));
    out->ndim = (uint8_t)n;
    memcpy(out->size, size, sizeof *size * (size_t)n);
    memcpy(out->stride, stride, sizeof *stride * (size_t)n);
    return true;
}

/* ---- dimensions of size one ---- */

static bool expand_fail(const op_call *call, int64_t n) {
    FAIL(ETCH_ERR_SHAPE, "sizes %s do not expand to %s", TEXT(call->in[0]),
         etch__shape_text((int)n, call->at + 1).s);
}

/* From the last dimension to the first, as a new leading dimension takes its stride from the next.
 */
static bool expand_rule(const op_call *call, tensor_meta *out) {
    const etch_tensor *t = begin(call, out);
    int64_t n = call->at[0], unused[ETCH_MAX_DIMS];
    if (n < 0 || n > ETCH_MAX_DIMS)
        FAIL(ETCH_ERR_SHAPE, "expected 0 to %d dimensions, got %lld", ETCH_MAX_DIMS, (long long)n);
    if (n < t->ndim) return expand_fail(call, n);
    out->ndim = (uint8_t)n;
    for (int i = (int)n - 1; i >= 0; i--) {
        int from = i - (int)n + t->ndim;
        int64_t to = call->at[1 + i], size = from >= 0 ? t->size[from] : 1;
        int64_t new_stride = i + 1 < n ? out->size[i + 1] * out->stride[i + 1] : 1;
        int64_t stride = from >= 0 ? t->stride[from] : new_stride;
        if (to == -1 && from >= 0) to = size;
        if (to < 0 || (to != size && size != 1)) return expand_fail(call, n);
        out->size[i] = to, out->stride[i] = to == size ? stride : 0;
    }
    if (etch__row_major((int)n, out->size, unused) < 0)
        FAIL(ETCH_ERR_OVERFLOW, "sizes %s do not fit in 63 bits",
             etch__shape_text((int)n, out->size).s);
    return true;
}

static bool squeeze_rule(const op_call *call, tensor_meta *out) {
    const etch_tensor *t = begin(call, out);
    for (int i = t->ndim - 1; i >= 0; i--)
        if (t->size[i] == 1) drop_dim(out, i);
    return true;
}

static bool squeeze_dim_rule(const op_call *call, tensor_meta *out) {
    const etch_tensor *t = begin(call, out);
    int dim = 0;
    if (!etch__wrap_dim(call, call->at[0], t->ndim, &dim)) return false;
    return t->ndim && t->size[dim] == 1 ? drop_dim(out, dim) : true;
}

static bool unsqueeze_rule(const op_call *call, tensor_meta *out) {
    const etch_tensor *t = begin(call, out);
    int dim = 0;
    if (t->ndim == ETCH_MAX_DIMS)
        FAIL(ETCH_ERR_SHAPE, "expected at most %d dimensions before, got %s", ETCH_MAX_DIMS - 1,
             TEXT(t));
    if (!etch__wrap_dim(call, call->at[0], t->ndim + 1, &dim)) return false;
    for (int i = t->ndim; i > dim; i--)
        out->size[i] = out->size[i - 1], out->stride[i] = out->stride[i - 1];
    out->ndim++;
    out->size[dim] = 1;
    out->stride[dim] = dim < t->ndim ? t->size[dim] * t->stride[dim] : 1;
    return true;
}

const shape_fn etch__view_rules[SRULE_COUNT] = {
#define VIEW_RULE(id, function) [SRULE_##id] = function,
#include "core/ops/rules.def"
};
