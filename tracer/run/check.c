/* ETCH_CHECK=1 (rule 19 of docs/architecture.md): each operator of a compiled function is computed
 * twice more by its eager kernel, and everything is compared, bit for bit.
 *
 *   at the call    on shadows of its operands        what eager code would have seen
 *   at the flush   on the operands as they are then  differs: memory was written past the API
 *   by the plan                                      differs: the compiled code is wrong
 *
 * A shadow lies over memory of its own, and views over that of their base, so aliases are kept. The
 * shadow of an input is the input, until the segment writes it: then it gets a copy, into which
 * bytes that change in the input meanwhile are carried over. Where there is no memory for a shadow,
 * or its kernel fails, what depends on it is not compared. The first difference of a call is kept
 * by the run, whose call then fails with it. */
#include "core/tensor/device.h"
#include "core/tensor/element.h"
#include "core/ops/schema.h"
#include "guards/alias.h"
#include "tracer/run/run.h"

#include <math.h>

/* The memory that stands for an input which the segment writes. */
typedef struct own_copy {
    etch_storage *real, *copy;
    char *seen; /* the input's bytes when they were last looked at */
} own_copy;

typedef struct shadow_set {
    etch_tensor **value; /* per value; NULL: unknown, or the input itself */
    int64_t cap;
    etch_tensor **in; /* room for the operands of a node */
    int64_t in_cap;
    own_copy *copies;
    int64_t ncopies, copies_cap;
    bool off; /* nothing can be said any more */
} shadow_set;

struct shadow {
    shadow_set at_call;
};

bool etch__checking(void) {
    static atomic_schar on = -1; /* ETCH_CHECK, asked for once */
    signed char value = atomic_load_explicit(&on, memory_order_relaxed);
    if (unlikely(value < 0)) {
        value = etch__param_int(PARAM_CHECK) != 0;
        atomic_store_explicit(&on, value, memory_order_relaxed);
    }
    return value;
}

/* ---- sets of shadows ---- */

static void free_copy(own_copy *c) {
    etch__storage_release(c->real);
    etch__storage_release(c->copy);
    etch__free(c->seen);
}

static void clear_set(shadow_set *s) {
    for (int64_t v = 0; v < s->cap; v++) etch_release(s->value[v]);
    for (int64_t i = 0; i < s->ncopies; i++) free_copy(&s->copies[i]);
    etch__free(s->value);
    etch__free(s->in);
    etch__free(s->copies);
    memset(s, 0, sizeof *s);
}

void etch__shadow_free(struct shadow *s) {
    if (!s) return;
    clear_set(&s->at_call);
    etch__free(s);
}

static bool room_for(shadow_set *s, int64_t nvalues) {
    int64_t before = s->cap;
    if (!etch__grow(&s->value, &s->cap, nvalues, sizeof *s->value)) return false;
    memset(s->value + before, 0, (size_t)(s->cap - before) * sizeof *s->value);
    return true;
}

/* ---- inputs that are written ---- */

static own_copy *find_copy(const shadow_set *s, const etch_storage *real) {
    for (int64_t i = 0; i < s->ncopies; i++)
        if (s->copies[i].real == real) return &s->copies[i];
    return NULL;
}

/* Whether the storage is one of the walk's inputs; *shared: memory that two of them have in common
 * can have no copies of its own. */
static bool is_input(const trace_walk *w, int64_t nvalues, const etch_storage *s, bool *shared) {
    bool found = false;
    for (int64_t v = 0; v < nvalues; v++) {
        const etch_tensor *t = w->c.value[v];
        if (!t || !t->storage) continue;
        found |= t->storage == s;
        *shared |= etch__memory_overlaps(t->storage, s);
    }
    return found;
}

static bool copy_on_host(own_copy *c) {
    size_t n = c->real->bytes;
    if (!(c->seen = etch__malloc(n + 1))) return false;
    if (n) memcpy(c->copy->data, c->real->data, n), memcpy(c->seen, c->real->data, n);
    return true;
}

/* C code of the host cannot write there past the API, so nothing is kept to compare with. */
static bool copy_on_device(own_copy *c) {
    size_t n = c->real->bytes;
    return !n || etch__device_kind(c->real->device)->copy(c->copy, 0, c->real, 0, n) == ETCH_OK;
}

static own_copy *add_copy(shadow_set *s, etch_storage *real) {
    if (!etch__grow(&s->copies, &s->copies_cap, s->ncopies + 1, sizeof *s->copies)) return NULL;
    own_copy c = {real, etch__storage_new_on(real->device, real->bytes), NULL};
    bool ok = c.copy && (real->device ? copy_on_device(&c) : copy_on_host(&c));
    if (!ok) {
        etch__storage_release(c.copy);
        etch__free(c.seen);
        return NULL;
    }
    etch__storage_retain(real);
    s->copies[s->ncopies] = c;
    return &s->copies[s->ncopies++];
}

/* Shadows that lay over the input now lie over its copy. */
static void move_shadows(shadow_set *s, const own_copy *c) {
    for (int64_t v = 0; v < s->cap; v++) {
        etch_tensor *h = s->value[v];
        if (!h || h->storage != c->real) continue;
        etch__storage_retain(c->copy);
        etch__storage_release(h->storage);
        h->storage = c->copy;
    }
}

/* What was written into inputs past the API since the last look. */
static void carry_over(shadow_set *s) {
    for (int64_t i = 0; i < s->ncopies; i++) {
        own_copy *c = &s->copies[i];
        const char *real = c->real->data;
        char *copy = c->copy->data;
        if (!c->seen || !c->real->bytes || !memcmp(real, c->seen, c->real->bytes)) continue;
        for (size_t k = 0; k < c->real->bytes; k++)
            if (real[k] != c->seen[k]) copy[k] = c->seen[k] = real[k];
    }
}

/* ---- computing one node ---- */

/* The shadow of an operand, borrowed; NULL: unknown. */
static etch_tensor *operand(shadow_set *s, const trace_walk *w, int32_t v) {
    etch_tensor *t = w->c.value[v];
    if (s->value[v] || !t || t == ETCH_NONE) return s->value[v] ? s->value[v] : t;
    if (t->deferred || t->failed || !t->storage) return NULL;
    const own_copy *c = find_copy(s, t->storage);
    if (!c) return t;
    return s->value[v] = etch__handle_like(t, c->copy, t->offset);
}

/* The shadow that an in-place operator writes: never the input itself. */
static etch_tensor *written_operand(shadow_set *s, const trace_walk *w, const trace_node *n,
                                    etch_tensor *self) {
    int32_t v = n->in[0];
    bool shared = false;
    if (!is_input(w, n->nvalues, self->storage, &shared)) return self;
    own_copy *c = shared ? NULL : add_copy(s, self->storage);
    if (!c) return NULL;
    move_shadows(s, c);
    return operand(s, w, v);
}

static etch_status run_kernel(const trace_walk *w, const trace_node *n, etch_tensor *const *in,
                              etch_tensor *out) {
    op_call call = etch__node_call(w->seen.ints, n);
    call.in = in, call.sc = w->c.scalar + n->c.sc;
    empty_frame frame = etch__push_frame();
    frame.fp_changed = true;
    etch__state_enter(n->c.state);
    etch_status status = n->op == OP_EMPTY ? ETCH_OK : etch__run_kernel(&call, out);
    etch__pop_frame(&frame);
    return status;
}

static void compute_new(shadow_set *s, const trace_walk *w, const trace_node *n,
                        etch_tensor *const *in) {
    const etch_tensor *h = w->c.value[n->c.out];
    bool view = etch__ops[n->op].kind == KIND_VIEW;
    etch_storage *storage =
        view ? in[0]->storage
             : etch__storage_new_on(h->device, (size_t)(h->numel * etch__item_size(h)));
    if (!storage) return;
    etch_tensor *t = etch__handle_like(
        h, storage, view ? in[0]->offset + etch__view_offset(w->seen.ints, n) : 0);
    if (!view) etch__storage_release(storage);
    if (t && !view && run_kernel(w, n, in, t) != ETCH_OK) {
        etch_release(t);
        t = NULL;
    }
    etch_release(s->value[n->c.out]);
    s->value[n->c.out] = t;
}

/* At the call: then the compiled call has to fail as well. */
static void note_lost(const shadow_set *s, const trace_walk *w, const trace_node *n,
                      etch_status status) {
    trace_run *r = w->run;
    if (s != &w->shadow->at_call || r->check.lost || status == ETCH_ERR_OUT_OF_MEMORY) return;
    r->check.lost = n->op + 1, r->check.lost_site = n->site;
}

static bool write_shadow(const shadow_set *s, const trace_walk *w, const trace_node *n,
                         etch_tensor *const *in) {
    etch_status status = run_kernel(w, n, in, in[0]);
    if (status != ETCH_OK) note_lost(s, w, n, status);
    return status == ETCH_OK;
}

static void compute(shadow_set *s, const trace_walk *w, const trace_node *n) {
    s->off |= !room_for(s, n->nvalues) || !etch__grow(&s->in, &s->in_cap, n->nin, sizeof *s->in);
    if (s->off) return;
    etch_tensor **in = s->in;
    bool known = true;
    for (int i = 0; i < n->nin; i++) known &= (in[i] = operand(s, w, n->in[i])) != NULL;
    if (known && n->c.inplace) {
        etch_tensor *before = in[0];
        in[0] = written_operand(s, w, n, before);
        for (int i = 1; i < n->nin; i++)
            if ((in[i] = operand(s, w, n->in[i])) == NULL) in[0] = NULL;
        known = in[0] && write_shadow(s, w, n, in);
    } else if (known) {
        compute_new(s, w, n, in);
    }
    s->off |= !known && n->c.inplace; /* whatever lies there is unknown */
}

void etch__check_call(trace_walk *w, const trace_node *n) {
    saved_error error;
    etch__error_save(&error);
    if (!w->shadow) w->shadow = etch__calloc(1, sizeof *w->shadow);
    if (!w->shadow) {
        w->run->check.on = false; /* a later shadow would not know of this node */
        etch__error_restore(&error);
        return;
    }
    carry_over(&w->shadow->at_call);
    compute(&w->shadow->at_call, w, n);
    etch__error_restore(&error);
}

/* ---- comparing ---- */

typedef struct comparison {
    etch_dtype dtype;
    int64_t index; /* of the first difference, row-major */
    bool unread;   /* one of them could not be read from its device */
    char expected[40], got[40];
} comparison;

static void element_text(etch_dtype dtype, const char *p, char *buf, size_t n) {
    if (!etch__is_float(dtype)) snprintf(buf, n, "%lld", (long long)etch__element_int(dtype, p));
    else snprintf(buf, n, "%.17g", etch__element_real(dtype, p));
}

static bool same_element(etch_dtype dtype, const char *a, const char *b) {
    if (!memcmp(a, b, etch_dtype_size(dtype))) return true;
    return etch__is_float(dtype) && isnan(etch__element_real(dtype, a)) &&
           isnan(etch__element_real(dtype, b));
}

static bool compare_row(void *ctx, const char *const *p, const int64_t *step, int64_t n) {
    comparison *c = ctx;
    for (int64_t i = 0; i < n; i++, c->index++) {
        const char *a = p[0] + i * step[0], *b = p[1] + i * step[1];
        if (same_element(c->dtype, a, b)) continue;
        element_text(c->dtype, a, c->expected, sizeof c->expected);
        element_text(c->dtype, b, c->got, sizeof c->got);
        return false;
    }
    return true;
}

/* Two tensors of one look. What cannot be read from its device is not said to differ. */
static bool same_bits(const etch_tensor *expected, const etch_tensor *got, comparison *c) {
    host_view a, b;
    const etch_tensor *pair[] = {etch__host_view(expected, &a), etch__host_view(got, &b)};
    *c = (comparison){.dtype = expected->dtype};
    c->unread = !pair[0] || !pair[1];
    bool same = c->unread || etch__each_row(pair, 2, compare_row, c);
    etch__host_view_end(&a);
    etch__host_view_end(&b);
    return same;
}

bool etch__same_values(const etch_tensor *a, const etch_tensor *b) {
    comparison c;
    return SAME_SIZES(a, b) && same_bits(a, b, &c) && !c.unread;
}

/* "[1, 2]" of the index-th element. */
static shape_text index_text(const etch_tensor *t, int64_t index) {
    int64_t at[ETCH_MAX_DIMS];
    for (int d = t->ndim - 1; d >= 0; d--) {
        at[d] = index % t->size[d];
        index /= t->size[d];
    }
    return etch__shape_text(t->ndim, at);
}

/* ---- differences ---- */

void etch__check_failed(trace_run *r, const void *site, const char *format, ...) {
    if (r->check.text) return;
    char text[768];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    const char *line = site ? etch__site_line(site) : "";
    etch__warn("%s: %s: %s%s%s", r->f->name, etch_status_name(ETCH_ERR_CHECK), text,
               line[0] ? " at " : "", line);
    r->check.text = etch__strdup(text);
    r->check.site = site;
    r->check.differs = true;
}

void etch__check_lost(trace_run *r) {
    if (!r->check.lost) return;
    etch__check_failed(r, r->check.lost_site,
                       "%s: failed at its call, but the call of the compiled function did not",
                       etch__ops[r->check.lost - 1].name);
}

etch_status etch__check_report(const trace_run *r) {
    return etch__error_at(r->check.site, ETCH_ERR_CHECK, "%s: %s", r->f->name,
                          r->check.text ? r->check.text : "a compiled result differs");
}

static void report(const trace_walk *w, const trace_node *n, const etch_tensor *t,
                   const comparison *c, bool memory) {
    etch__check_failed(w->run, n->site, "%s: element %s: expected %s, got %s%s",
                       etch__ops[n->op].name, index_text(t, c->index).s, c->expected, c->got,
                       memory ? ": an operand was written between the operator's call and its "
                                "computation, through a pointer got before the call; call "
                                "etch_flush before writing, or take the pointer inside the function"
                              : "; ETCH_LOGS=graph and etch-minify make a small test of it");
}

/* The path, and per value the base over which it lies. */
typedef struct path_view {
    trace_node *const *node;
    int64_t n;
    int32_t *base;
} path_view;

static bool view_path(const trace_walk *w, const trace_leaf *leaf, path_view *p) {
    p->node = leaf ? leaf->path : w->path;
    p->n = leaf ? leaf->npath : w->npath;
    int32_t nvalues = p->n ? p->node[p->n - 1]->nvalues : 0;
    p->base = etch__quiet_malloc(((size_t)nvalues + 1) * sizeof *p->base);
    if (!p->base) return false;
    for (int32_t v = 0; v < nvalues; v++) p->base[v] = v;
    for (int64_t i = 0; i < p->n; i++)
        if (etch__ops[p->node[i]->op].kind == KIND_VIEW)
            p->base[p->node[i]->c.out] = p->base[p->node[i]->in[0]];
    return true;
}

/* What is written later is compared where it was written last. */
static bool written_later(const path_view *p, int64_t i) {
    for (int64_t k = i + 1; k < p->n; k++)
        if (p->node[k]->c.inplace && p->base[p->node[k]->in[0]] == p->base[p->node[i]->c.out])
            return true;
    return false;
}

/* Elements of an empty tensor are undefined until it is written as a whole. */
static bool is_undefined(const path_view *p, int64_t i) {
    int32_t base = p->base[p->node[i]->c.out];
    bool undefined = false;
    for (int64_t k = 0; k <= i; k++) {
        const trace_node *n = p->node[k];
        if (n->op == OP_EMPTY && n->c.out == base) undefined = true;
        else if (n->c.inplace && n->in[0] == base) undefined = false;
    }
    return undefined;
}

/* Computes the path on the operands as they are now, and compares with what
 * it gave at the calls. */
static void check_memory(trace_walk *w, const path_view *p) {
    shadow_set now = {0}, *then = &w->shadow->at_call;
    for (int64_t i = 0; i < p->n; i++) compute(&now, w, p->node[i]);
    bool found = now.off || then->off;
    for (int64_t i = 0; i < p->n && !found; i++) {
        int32_t v = p->node[i]->c.out;
        comparison c;
        if (v >= now.cap || v >= then->cap || !now.value[v] || !then->value[v]) continue;
        if (written_later(p, i) || is_undefined(p, i)) continue;
        found = !same_bits(then->value[v], now.value[v], &c);
        if (found) report(w, p->node[i], then->value[v], &c, true);
    }
    clear_set(&now);
}

static bool is_there(const etch_tensor *t) { return !t->deferred && !t->failed && t->storage; }

/* A write through a view is seen in the input below it. */
static int32_t compared_value(const trace_walk *w, const path_view *p, const trace_node *n) {
    int32_t base = p->base[n->c.out];
    const etch_tensor *t = w->c.value[base];
    bool input = n->c.inplace && t && is_there(t) && find_copy(&w->shadow->at_call, t->storage);
    return input ? base : n->c.out;
}

/* A view has computed nothing: the operator that its base was made by, or written by last. */
static const trace_node *maker_of(const path_view *p, int64_t i) {
    const trace_node *maker = p->node[i];
    for (int64_t k = 0; k < i && etch__ops[p->node[i]->op].kind == KIND_VIEW; k++) {
        const trace_node *n = p->node[k];
        bool makes = n->c.inplace || etch__ops[n->op].kind != KIND_VIEW;
        if (makes && p->base[n->c.out] == p->base[p->node[i]->c.out]) maker = n;
    }
    return maker;
}

/* Compares what has become real with its shadow, each value once. */
static void check_values(trace_walk *w, const path_view *p) {
    shadow_set *s = &w->shadow->at_call;
    for (int64_t i = 0; i < p->n && !s->off; i++) {
        int32_t v = compared_value(w, p, p->node[i]);
        const etch_tensor *got = w->c.value[v];
        comparison c;
        if (v >= s->cap || !is_there(got) || written_later(p, i) || is_undefined(p, i)) continue;
        const etch_tensor *expected = p->node[i]->c.inplace ? operand(s, w, v) : s->value[v];
        if (!expected || same_bits(expected, got, &c)) continue;
        report(w, maker_of(p, i), got, &c, false);
    }
}

/* Inputs that were written, seen as a whole. */
static void check_inputs(trace_walk *w, const path_view *p) {
    shadow_set *s = &w->shadow->at_call;
    const trace_node *writer = NULL;
    for (int64_t i = 0; i < p->n; i++)
        if (p->node[i]->c.inplace) writer = p->node[i];
    for (int64_t v = 0; writer && v < s->cap && !s->off; v++) {
        const etch_tensor *got = v < writer->nvalues ? w->c.value[v] : NULL;
        comparison c;
        if (!got || got == ETCH_NONE || !is_there(got) || !find_copy(s, got->storage)) continue;
        const etch_tensor *expected = operand(s, w, (int32_t)v);
        if (expected && !same_bits(expected, got, &c)) report(w, writer, got, &c, false);
    }
}

void etch__check_before(trace_walk *w, const trace_leaf *leaf) {
    path_view p;
    saved_error error;
    if (!w->shadow || w->run->check.text || !view_path(w, leaf, &p)) return;
    etch__error_save(&error);
    carry_over(&w->shadow->at_call);
    check_memory(w, &p);
    etch__error_restore(&error);
    etch__free(p.base);
}

/* The results that are there now have been looked at; those that come late still have shadows. */
static void drop_compared(trace_walk *w, const path_view *p) {
    shadow_set *s = &w->shadow->at_call;
    for (int64_t i = 0; i < p->n; i++) {
        int32_t v = p->node[i]->c.out;
        if (v >= s->cap || w->c.value[v]->deferred) continue;
        etch_release(s->value[v]);
        s->value[v] = NULL;
    }
    for (int64_t i = 0; i < s->ncopies; i++) free_copy(&s->copies[i]);
    s->ncopies = 0;
}

/* A node that failed here though its shadow did not: what depends on it is not there to compare. */
static bool failed_for_want_of_memory(const trace_walk *w, const path_view *p) {
    bool failed = w->run->write_failed;
    const shadow_set *s = &w->shadow->at_call;
    for (int64_t i = 0; i < p->n; i++) {
        int32_t v = p->node[i]->c.out;
        failed |= w->c.value[v]->failed && v < s->cap && s->value[v];
    }
    return failed;
}

void etch__check_after(trace_walk *w, const trace_leaf *leaf) {
    path_view p;
    saved_error error;
    if (!w->shadow || !view_path(w, leaf, &p)) return;
    etch__error_save(&error);
    w->shadow->at_call.off |= failed_for_want_of_memory(w, &p);
    check_values(w, &p);
    check_inputs(w, &p);
    drop_compared(w, &p);
    etch__error_restore(&error);
    etch__free(p.base);
}
