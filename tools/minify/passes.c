/* The changes that make a graph smaller, the ones that take most away first. */
#include "mini.h"

typedef struct reducing {
    shrink s; /* first */
    const mini_options *o;
    mini_verdict verdict;
    mini_meta tried[MINI_MAX_VALUES], meta[MINI_MAX_VALUES]; /* of results: in s.next, in s.now */
} reducing;

static mini_graph *next_of(shrink *s) { return s->next; }
static const mini_graph *now_of(const shrink *s) { return s->now; }

static bool still_fails(const void *x, void *ctx) {
    reducing *r = ctx;
    if (mini_check(x, r->o, NULL, r->tried) != r->verdict) return false;
    memcpy(r->meta, r->tried, sizeof r->meta);
    if (r->o->verbose) {
        const mini_graph *g = x;
        fprintf(stderr, "etch-minify: %s: %d calls, %d inputs, %d outputs after %d trials\n",
                g->name, g->nnodes, g->ninputs, g->noutputs, r->s.trials);
    }
    return true;
}

/* ---- changes ---- */

static void drop_node(mini_graph *g, int first, int n) {
    memmove(g->node + first, g->node + first + n,
            (size_t)(g->nnodes - first - n) * sizeof *g->node);
    g->nnodes -= n;
    memset(g->node + g->nnodes, 0, (size_t)n * sizeof *g->node);
}

static void drop_input(mini_graph *g, int i) {
    memmove(g->input + i, g->input + i + 1, (size_t)(g->ninputs - i - 1) * sizeof *g->input);
    memset(g->input + --g->ninputs, 0, sizeof *g->input);
}

static void drop_unused_inputs(mini_graph *g) {
    for (int i = g->ninputs - 1; i >= 0; i--)
        if (g->input[i].base == g->input[i].value && !mini_uses(g, g->input[i].value))
            drop_input(g, i);
}

/* Calls whose values nobody uses, writes in place aside. */
static void drop_unused(mini_graph *g) {
    for (int i = g->nnodes - 1; i >= 0; i--)
        if (g->node[i].value >= 0 && !mini_uses(g, g->node[i].value)) drop_node(g, i, 1);
    drop_unused_inputs(g);
}

static void rename_value(mini_graph *g, int from, int to) {
    for (int i = 0; i < g->nrefs; i++)
        if (g->ref[i] == from) g->ref[i] = to;
    for (int i = 0; i < g->noutputs; i++)
        if (g->output[i] == from) g->output[i] = to;
}

static void row_major(mini_meta *m) {
    int64_t step = 1;
    for (int d = m->ndim - 1; d >= 0; d--) {
        m->stride[d] = step;
        step *= m->size[d] > 1 ? m->size[d] : 1;
    }
    m->offset = 0;
}

/* The value becomes an input, contiguous, of the sizes that it had. */
static bool make_input(mini_graph *g, int value, const mini_meta *meta) {
    if (g->ninputs == MINI_MAX_INPUTS || !meta->known) return false;
    mini_input *in = &g->input[g->ninputs++];
    *in = (mini_input){value, value, *meta};
    row_major(&in->meta);
    return true;
}

/* ---- passes: calls ---- */

/* Only calls up to `last`, and what they give: the graph ends there. */
static bool end_at(shrink *s, int last) {
    mini_graph *g = next_of(s);
    const mini_node *n = &g->node[last];
    if (last + 1 < g->nnodes) drop_node(g, last + 1, g->nnodes - last - 1);
    int value = n->value;
    if (value < 0) value = g->ref[n->arg[0].first];
    memset(g->output, 0, sizeof g->output);
    g->output[0] = value, g->noutputs = 1;
    drop_unused(g);
    return shrink_attempt(s);
}

/* The shortest beginning that fails, by halves, then call by call. */
static bool shorten(shrink *s) {
    bool any = false;
    for (int n = now_of(s)->nnodes / 2; n > 0; n /= 2)
        while (now_of(s)->nnodes > n && end_at(s, now_of(s)->nnodes - 1 - n)) any = true;
    if (now_of(s)->nnodes) any |= end_at(s, now_of(s)->nnodes - 1);
    return any;
}

/* Calls before `first` go; what is used of them comes from outside. */
static bool begin_at(shrink *s, int first) {
    reducing *r = s->ctx;
    mini_graph *g = next_of(s);
    int values[MINI_MAX_INPUTS], n = 0;
    for (int i = 0; i < first; i++)
        if (g->node[i].value >= 0 && n < MINI_MAX_INPUTS) values[n++] = g->node[i].value;
    drop_node(g, 0, first);
    for (int i = 0; i < n; i++)
        if (mini_uses(g, values[i]) && !make_input(g, values[i], &r->meta[values[i]])) break;
    drop_unused(g);
    return shrink_attempt(s);
}

static bool behead(shrink *s) {
    bool any = false;
    for (int n = now_of(s)->nnodes / 2; n > 0; n /= 2)
        while (now_of(s)->nnodes > n && begin_at(s, n)) any = true;
    return any;
}

static int count_nodes(const void *g) { return ((const mini_graph *)g)->nnodes; }

static void drop_calls(void *x, int first, int n) {
    drop_node(x, first, n);
    drop_unused_inputs(x);
}

static bool drop_ranges(shrink *s) { return shrink_ranges(s, count_nodes, drop_calls); }

/* A call goes, and its value comes from outside or is one of its operands. */
static bool replace_calls(shrink *s) {
    reducing *r = s->ctx;
    bool any = false;
    for (int i = now_of(s)->nnodes - 1; i >= 0; i--) {
        if (i >= now_of(s)->nnodes) continue;
        mini_node n = now_of(s)->node[i];
        if (n.value < 0) continue;
        bool kept = false;
        for (int k = 0; k < n.nargs && !kept; k++) {
            if (n.arg[k].tag != ETCH_VALUE_TENSOR || now_of(s)->ref[n.arg[k].first] < 0) continue;
            rename_value(next_of(s), n.value, now_of(s)->ref[n.arg[k].first]);
            drop_node(next_of(s), i, 1);
            drop_unused(next_of(s));
            kept = shrink_attempt(s);
        }
        if (!kept && make_input(next_of(s), n.value, &r->meta[n.value])) {
            drop_node(next_of(s), i, 1);
            drop_unused(next_of(s));
            kept = shrink_attempt(s);
        }
        any |= kept;
    }
    return any;
}

static int count_outputs(const void *g) { return ((const mini_graph *)g)->noutputs; }

static void drop_outputs(void *x, int first, int n) {
    mini_graph *g = x;
    memmove(g->output + first, g->output + first + n,
            (size_t)(g->noutputs - first - n) * sizeof *g->output);
    g->noutputs -= n;
    memset(g->output + g->noutputs, 0, (size_t)n * sizeof *g->output);
    if (g->noutputs) drop_unused(g);
}

static bool fewer_outputs(shrink *s) { return shrink_ranges(s, count_outputs, drop_outputs); }

/* ---- passes: inputs ---- */

static bool fewer_inputs(shrink *s) {
    bool any = false;
    for (int i = now_of(s)->ninputs - 1; i > 0; i--)
        for (int k = 0; k < i && i < now_of(s)->ninputs; k++) {
            mini_graph *g = next_of(s);
            rename_value(g, g->input[i].value, g->input[k].value);
            drop_unused_inputs(g);
            if (g->ninputs < now_of(s)->ninputs && shrink_attempt(s)) any = true;
            else memcpy(s->next, s->now, s->size);
        }
    return any;
}

static bool plain_inputs(shrink *s) {
    bool any = false;
    for (int i = 0; i < now_of(s)->ninputs; i++) {
        mini_input *in = &next_of(s)->input[i];
        any |= SHRINK_TRY(s, in->base = in->value);
        any |= SHRINK_TRY(s, row_major(&in->meta));
        any |= SHRINK_TRY(s, in->meta.offset = 0);
    }
    return any;
}

static void set_dtype(mini_graph *g, int from, int to) {
    for (int i = 0; i < g->ninputs; i++)
        if (g->input[i].meta.dtype == from) g->input[i].meta.dtype = (uint8_t)to;
    for (int i = 0; i < g->nnodes; i++)
        for (int k = 0; k < g->node[i].nargs; k++) {
            mini_arg *a = &g->node[i].arg[k];
            if (a->tag == ETCH_VALUE_DTYPE && a->v[0] == from) a->v[0] = to;
        }
}

static bool simple_dtypes(shrink *s) {
    bool any = false;
    for (int d = ETCH_F32 + 1; d < ETCH_DTYPE_COUNT; d++)
        any |= SHRINK_TRY(s, set_dtype(next_of(s), d, ETCH_F32));
    return any;
}

/* ---- passes: sizes ---- */

/* Numbers of views and creations that are this size, too. */
static void set_numbers(mini_graph *g, int64_t from, int64_t to) {
    for (int i = 0; i < g->nnodes; i++)
        for (int k = 0; k < g->node[i].nargs; k++) {
            mini_arg *a = &g->node[i].arg[k];
            int n = a->tag == ETCH_VALUE_INTS ? a->n : a->tag == ETCH_VALUE_INT;
            for (int j = 0; j < n; j++)
                if (a->v[j] == from) a->v[j] = to;
        }
}

static void set_size(mini_graph *g, int64_t from, int64_t to) {
    for (int i = 0; i < g->ninputs; i++) {
        mini_meta *m = &g->input[i].meta, plain = *m;
        row_major(&plain);
        bool contiguous = !memcmp(plain.stride, m->stride, sizeof m->stride);
        for (int d = 0; d < m->ndim; d++)
            if (m->size[d] == from) m->size[d] = to;
        int64_t offset = m->offset;
        if (contiguous) row_major(m), m->offset = offset;
    }
}

static int64_t largest_below(const mini_graph *g, int64_t limit) {
    int64_t most = 1;
    for (int i = 0; i < g->ninputs; i++)
        for (int d = 0; d < g->input[i].meta.ndim; d++) {
            int64_t n = g->input[i].meta.size[d];
            if (n < limit && n > most) most = n;
        }
    return most;
}

/* All dimensions of one size at once, the largest first. */
static bool smaller_sizes(shrink *s) {
    static const int64_t sizes[] = {1,  2,  3,  4,  5,   8,   9,   16,  17,
                                    32, 33, 64, 65, 128, 129, 257, 1025};
    bool any = false;
    for (int64_t n = INT64_MAX; (n = largest_below(now_of(s), n)) > 1;) {
        bool kept = false;
        for (int i = 0; i < (int)(sizeof sizes / sizeof *sizes) && sizes[i] < n && !kept; i++) {
            set_size(next_of(s), n, sizes[i]);
            kept = shrink_attempt(s);
            if (kept) break;
            set_size(next_of(s), n, sizes[i]), set_numbers(next_of(s), n, sizes[i]);
            kept = shrink_attempt(s);
        }
        any |= kept;
    }
    return any;
}

/* ---- passes: arguments ---- */

static bool simple_argument(shrink *s, mini_arg *a) {
    bool any = false;
    if (a->tag == ETCH_VALUE_TENSORS)
        while (a->n > 1 && SHRINK_TRY(s, a->n--)) any = true;
    if (a->tag == ETCH_VALUE_BOOL) any |= SHRINK_TRY(s, a->v[0] = 0);
    if (a->tag != ETCH_VALUE_PARAM) return any;
    etch_scalar_kind kind = now_of(s)->scalar[a->v[0]].kind;
    etch_scalar one = kind == ETCH_SCALAR_REAL  ? etch_scalar_real(1)
                      : kind == ETCH_SCALAR_INT ? etch_scalar_int(1)
                                                : etch_scalar_bool(true);
    mini_arg plain = {.name = a->name, .tag = ETCH_VALUE_SCALAR, .scalar = one};
    return any | SHRINK_TRY(s, *a = plain);
}

static bool simple_arguments(shrink *s) {
    bool any = false;
    for (int i = 0; i < now_of(s)->nnodes; i++)
        for (int k = 0; k < now_of(s)->node[i].nargs; k++)
            any |= simple_argument(s, &next_of(s)->node[i].arg[k]);
    return any;
}

/* ---- the whole ---- */

int mini_reduce(mini_graph *g, const mini_options *o, mini_verdict verdict) {
    static const shrink_pass passes[] = {
        shorten,      fewer_outputs, behead,        drop_ranges,   replace_calls,
        fewer_inputs, plain_inputs,  simple_dtypes, smaller_sizes, simple_arguments};
    reducing *r = calloc(1, sizeof *r);
    mini_graph *next = malloc(sizeof *next);
    int trials = 0;
    if (r && next) {
        r->o = o, r->verdict = verdict;
        memcpy(r->meta, g->meta, sizeof r->meta);
        r->s = (shrink){g, next, sizeof *g, still_fails, r, 0, o->most};
        shrink_run(&r->s, passes, sizeof passes / sizeof *passes);
        trials = r->s.trials;
    }
    free(next), free(r);
    return trials;
}
