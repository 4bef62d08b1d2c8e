/* The graph that users read and edit (etch/backend.h): a doubly linked list of calls.
 *
 * The value of a node is a tensor handle without storage that lies in the node. So arguments of an
 * edit are the tagged values of a boxed call, and shape inference, custom shape functions included,
 * sees what it sees elsewhere. The handle counts as deferred by nobody: every use of its data is an
 * error. */
#include <etch/backend.h>

#include "core/base/text.h"
#include "core/dispatch/dispatch.h"
#include "core/graph/graph_public.h"
#include "core/dispatch/mode.h"
#include "core/ops/schema.h"

struct etch_node {
    etch_graph *graph;
    etch_node *prev, *next;
    const op_info *op; /* NULL: an input */
    int nin, nsc, nat;
    etch_tensor **in; /* values of nodes, or ETCH_NONE */
    graph_scalar sc[OP_MAX_SCALARS];
    int64_t at[OP_MAX_ATTRS];
    uint64_t state;
    const void *site;
    etch_tensor value; /* not of one that writes in place */
    int32_t base;      /* of an input: the input over whose storage it lies */
    int32_t number;    /* while the graph is closed */
};

struct etch_graph {
    char *name;
    bool instance, any_mode;
    int ninputs, nnodes, noutputs, nparams;
    etch_node **inputs;
    etch_tensor **outputs;
    uint8_t *kinds; /* of the parameters */
    etch_node *first, *last;
};

/* ---- nodes ---- */

static bool is_inplace(const etch_node *n) { return n->op && n->op->kind == KIND_INPLACE; }

static void set_meta(etch_tensor *t, const tensor_meta *meta) {
    etch__apply_meta(t, meta);
    t->magic = TENSOR_ALIVE;
    t->deferred = 1;
    t->value = -1;
    atomic_store(&t->refs, 1 << 30);
}

static etch_node *new_node(etch_graph *g, const op_info *op, int nin) {
    etch_node *n = etch__calloc(1, sizeof *n + (size_t)nin * sizeof *n->in);
    if (!n) return NULL;
    n->graph = g, n->op = op, n->nin = nin;
    n->in = (etch_tensor **)(n + 1);
    n->value.magic = TENSOR_ALIVE;
    return n;
}

static void link_before(etch_graph *g, etch_node *n, etch_node *before) {
    n->next = before;
    n->prev = before ? before->prev : g->last;
    *(n->prev ? &n->prev->next : &g->first) = n;
    *(before ? &before->prev : &g->last) = n;
    g->nnodes++;
}

static void unlink_node(etch_graph *g, etch_node *n) {
    *(n->prev ? &n->prev->next : &g->first) = n->next;
    *(n->next ? &n->next->prev : &g->last) = n->prev;
    g->nnodes--;
}

etch_node *etch_graph_node_of(const etch_graph *g, const etch_tensor *t) {
    for (int i = 0; g && i < g->ninputs; i++)
        if (&g->inputs[i]->value == t) return g->inputs[i];
    for (etch_node *n = g ? g->first : NULL; n; n = n->next)
        if (&n->value == t && !is_inplace(n)) return n;
    return etch__null_at(NULL, ETCH_ERR_NOT_FOUND,
                         "etch_graph_node_of: the tensor is no value of the graph %s",
                         g ? g->name : "NULL");
}

/* ---- reading ---- */

const char *etch_graph_name(const etch_graph *g) { return g ? g->name : NULL; }
bool etch_graph_is_instance(const etch_graph *g) { return g && g->instance; }
void etch__graph_set_instance(etch_graph *g, bool instance) { g->instance = instance; }
int etch_graph_num_inputs(const etch_graph *g) { return g ? g->ninputs : 0; }
int etch_graph_num_nodes(const etch_graph *g) { return g ? g->nnodes : 0; }
int etch_graph_num_outputs(const etch_graph *g) { return g ? g->noutputs : 0; }
int etch_graph_num_params(const etch_graph *g) { return g ? g->nparams : 0; }
etch_node *etch_graph_first(const etch_graph *g) { return g ? g->first : NULL; }
etch_node *etch_graph_last(const etch_graph *g) { return g ? g->last : NULL; }
etch_node *etch_node_next(const etch_node *n) { return n ? n->next : NULL; }
etch_node *etch_node_prev(const etch_node *n) { return n ? n->prev : NULL; }
const etch_op *etch_node_op(const etch_node *n) { return n ? n->op : NULL; }

static bool in_range(const char *what, int i, int n) {
    if (i >= 0 && i < n) return true;
    return etch__false_at(NULL, ETCH_ERR_INVALID_ARGUMENT, "%s: expected a number below %d, got %d",
                          what, n, i);
}

etch_node *etch_graph_input(const etch_graph *g, int i) {
    return in_range("etch_graph_input", i, etch_graph_num_inputs(g)) ? g->inputs[i] : NULL;
}

etch_node *etch_graph_output(const etch_graph *g, int i) {
    if (!in_range("etch_graph_output", i, etch_graph_num_outputs(g))) return NULL;
    return etch_graph_node_of(g, g->outputs[i]);
}

etch_tensor *etch_node_value(const etch_node *n) {
    if (!n) return NULL;
    return is_inplace(n) ? n->in[0] : (etch_tensor *)&n->value;
}

/* The call in normal form; scalars that are parameters have a value of no special class. */
static op_call call_of(const etch_node *n, etch_scalar *sc) {
    for (int i = 0; i < n->nsc; i++) sc[i] = n->sc[i].value;
    op_call call = {.op = n->op->id,
                    .nin = (uint16_t)n->nin,
                    .nsc = (uint8_t)n->nsc,
                    .nat = (uint8_t)n->nat,
                    .in = n->in,
                    .sc = sc,
                    .at = n->at,
                    .site = n->site};
    return call;
}

int etch_node_args(const etch_node *n, etch_value *args) {
    if (!n || !n->op) return 0;
    if (!args)
        return etch__error_at(__builtin_return_address(0), ETCH_ERR_NULL,
                              "etch_node_args: args is NULL"),
               -1;
    etch_scalar sc[OP_MAX_SCALARS];
    op_call call = call_of(n, sc);
    int count = etch__box(&call, args), k = 0;
    const op_schema *s = etch__schema(n->op->id);
    for (int i = 0; i < count; i++) {
        if (s->args[i].type != ARG_SCALAR) continue;
        const graph_scalar *from = &n->sc[k++];
        if (from->param < 0) continue;
        args[i].tag = ETCH_VALUE_PARAM;
        args[i].param.number = from->param;
        args[i].param.kind = from->value.kind;
    }
    return count;
}

int etch_node_uses(const etch_node *n) {
    if (!n) return 0;
    const etch_tensor *t = etch_node_value(n);
    int uses = 0;
    for (const etch_node *u = n->graph->first; u; u = u->next)
        for (int i = 0; i < u->nin; i++) uses += u->in[i] == t;
    for (int i = 0; i < n->graph->noutputs; i++) uses += n->graph->outputs[i] == t;
    return uses;
}

/* ---- editing ---- */

/* Class and dtype of a parameter's number are those of any other of its kind. */
static etch_scalar any_value(etch_scalar_kind kind) {
    return kind == ETCH_SCALAR_REAL  ? etch_scalar_real(0.7)
           : kind == ETCH_SCALAR_INT ? etch_scalar_int(7)
                                     : etch_scalar_bool(true);
}

typedef struct insertion {
    etch_graph *g;
    uint64_t state;
    etch_node *node; /* the result */
    const etch_value *args;
    int nargs;
} insertion;

/* The value given for the schema's argument number i; NULL: its default. */
static const etch_value *given_for(const insertion *x, const op_schema *s, int i) {
    for (int k = 0; k < x->nargs; k++)
        if (x->args[k].name ? !strcmp(x->args[k].name, s->args[i].name) : k == i)
            return &x->args[k];
    return NULL;
}

static bool set_scalars(insertion *x, const op_call *call) {
    const op_schema *s = etch__schema(call->op);
    etch_node *n = x->node;
    for (int i = 0; i < s->nargs; i++) {
        if (s->args[i].type != ARG_SCALAR) continue;
        const etch_value *v = given_for(x, s, i);
        bool param = v && v->tag == ETCH_VALUE_PARAM;
        n->sc[n->nsc] = (graph_scalar){param ? v->param.number : -1, call->sc[n->nsc]};
        n->nsc++;
    }
    return true;
}

static bool own_operands(const etch_graph *g, const op_call *call) {
    for (int i = 0; i < call->nin; i++) {
        if (call->in[i] == ETCH_NONE) continue;
        if (!call->in[i]) return etch__false(ETCH_ERR_NULL, "operand %d is NULL", i);
        if (!etch_graph_node_of(g, call->in[i])) return false;
    }
    return true;
}

static etch_status make_call(void *ctx, const op_call *call) {
    insertion *x = ctx;
    tensor_meta meta;
    if (!own_operands(x->g, call) || !etch__scalar_kinds_ok(call)) return etch__tls.status;
    etch_status status = etch__infer_under(x->state, call, &meta, NULL);
    if (status != ETCH_OK) return status;
    etch_node *n = x->node = new_node(x->g, &etch__ops[call->op], call->nin);
    if (!n) return ETCH_ERR_OUT_OF_MEMORY;
    if (call->nin) memcpy(n->in, call->in, call->nin * sizeof *n->in);
    if (call->nat) memcpy(n->at, call->at, call->nat * sizeof *n->at);
    n->nat = call->nat;
    set_scalars(x, call);
    if (!is_inplace(n)) set_meta(&n->value, &meta);
    return ETCH_OK;
}

static bool may_insert(const etch_op *op, const etch_value *args, int nargs) {
    const char *why = op->kind == KIND_COMPOSITE ? "it is a composite: insert its parts"
                      : op->flags & OPF_RANDOM   ? "its numbers are reserved by the call"
                      : op->flags & OPF_EFFECTS  ? "it has effects"
                                                 : NULL;
    for (int i = 0; i < nargs; i++)
        if (args[i].tag == ETCH_VALUE_PARAM && op->flags & OPF_CLASS_NUMEL)
            why = "its size would depend on a run-time scalar";
    if (why) etch__error_at(NULL, ETCH_ERR_UNSUPPORTED, "etch_graph_insert: %s: %s", op->name, why);
    return !why;
}

/* Copies of the arguments in which parameters stand as scalars of their kind. */
static bool plain_args(const etch_graph *g, const etch_value *args, int nargs, etch_value *plain) {
    if (nargs < 0 || nargs > SCHEMA_MAX_ARGS || (nargs && !args))
        return etch__false_at(NULL, ETCH_ERR_INVALID_ARGUMENT,
                              "etch_graph_insert: expected at most %d arguments, got %d",
                              SCHEMA_MAX_ARGS, nargs);
    for (int i = 0; i < nargs; i++) {
        plain[i] = args[i];
        if (args[i].tag != ETCH_VALUE_PARAM) continue;
        if (!in_range("etch_graph_insert: a parameter", args[i].param.number, g->nparams))
            return false;
        plain[i].tag = ETCH_VALUE_SCALAR;
        plain[i].scalar = any_value((etch_scalar_kind)g->kinds[args[i].param.number]);
    }
    return true;
}

etch_node *etch_graph_insert(etch_graph *g, etch_node *before, const etch_op *op,
                             const etch_value *args, int nargs) {
    etch_value plain[SCHEMA_MAX_ARGS];
    insertion x = {g, 0, NULL, args, nargs};
    if (!g || !op || (before && (before->graph != g || !before->op)))
        return etch__null_at(NULL, g && op ? ETCH_ERR_INVALID_ARGUMENT : ETCH_ERR_NULL,
                             "etch_graph_insert: expected a graph, a call of it and an operator");
    if (!plain_args(g, args, nargs, plain) || !may_insert(op, args, nargs)) return NULL;
    const void *site = __builtin_return_address(0);
    const etch_node *near = before ? before : g->last;
    x.state = near ? near->state : etch__tls.state;
    if (etch__unbox(op, plain, nargs, site, make_call, &x) != ETCH_OK) return NULL;
    x.node->state = x.state;
    x.node->site = before ? before->site : site;
    link_before(g, x.node, before);
    return x.node;
}

static bool same_shape(const etch_tensor *a, const etch_tensor *b) {
    return a->dtype == b->dtype && SAME_SIZES(a, b);
}

etch_status etch_graph_replace_uses(etch_graph *g, etch_node *old, etch_node *with) {
    if (!g || !old || !with || old->graph != g || with->graph != g)
        return etch__error_at(NULL, ETCH_ERR_INVALID_ARGUMENT,
                              "etch_graph_replace_uses: expected two nodes of the graph");
    const etch_tensor *from = etch_node_value(old);
    etch_tensor *to = etch_node_value(with);
    if (!same_shape(from, to))
        return etch__error_at(NULL, ETCH_ERR_SHAPE,
                              "etch_graph_replace_uses: the two values differ in dtype or sizes");
    for (etch_node *n = g->first; n; n = n->next)
        for (int i = 0; n != with && i < n->nin; i++)
            if (n->in[i] == from) n->in[i] = to;
    for (int i = 0; i < g->noutputs; i++)
        if (g->outputs[i] == from) g->outputs[i] = to;
    return ETCH_OK;
}

etch_status etch_graph_erase(etch_graph *g, etch_node *n) {
    if (!g || !n || n->graph != g || !n->op)
        return etch__error_at(NULL, ETCH_ERR_INVALID_ARGUMENT,
                              "etch_graph_erase: expected a call of the graph");
    int uses = is_inplace(n) ? 0 : etch_node_uses(n);
    if (uses)
        return etch__error_at(NULL, ETCH_ERR_INVALID_ARGUMENT,
                              "etch_graph_erase: the value of %s is used %d times", n->op->name,
                              uses);
    unlink_node(g, n);
    etch__free(n);
    return ETCH_OK;
}

etch_node *etch_graph_replace(etch_graph *g, etch_node *n, const etch_op *op,
                              const etch_value *args, int nargs) {
    if (!n || is_inplace(n))
        return etch__null_at(NULL, ETCH_ERR_INVALID_ARGUMENT,
                             "etch_graph_replace: expected a call that does not write in place");
    etch_node *with = etch_graph_insert(g, n, op, args, nargs);
    if (!with) return NULL;
    if (etch_graph_replace_uses(g, n, with) == ETCH_OK && etch_graph_erase(g, n) == ETCH_OK)
        return with;
    etch_graph_replace_uses(g, with, n);
    etch_graph_erase(g, with);
    return NULL;
}

/* ---- from the compiler's graph ---- */

void etch_graph_free(etch_graph *g) {
    if (!g) return;
    for (etch_node *n = g->first, *next; n; n = next) next = n->next, etch__free(n);
    for (int i = 0; g->inputs && i < g->ninputs; i++) etch__free(g->inputs[i]);
    etch__free(g->inputs);
    etch__free(g->outputs);
    etch__free(g->kinds);
    etch__free(g->name);
    etch__free(g);
}

static bool open_inputs(etch_graph *e, const graph *g) {
    for (; e->ninputs < g->ninputs; e->ninputs++) {
        etch_node *n = e->inputs[e->ninputs] = new_node(e, NULL, 0);
        if (!n) return false;
        set_meta(&n->value, &g->values[e->ninputs].meta);
        n->base = g->values[e->ninputs].base;
    }
    return true;
}

static etch_tensor *value_of(const etch_graph *e, etch_node *const *nodes, const graph *g,
                             int32_t v) {
    if (v < 0) return ETCH_NONE;
    return &(v < e->ninputs ? e->inputs[v] : nodes[g->values[v].node])->value;
}

static etch_node *open_node(etch_graph *e, etch_node *const *nodes, const graph *g, int i) {
    const graph_node *from = &g->nodes[i];
    etch_node *n = new_node(e, &etch__ops[from->op], from->nin);
    if (!n) return NULL;
    n->nsc = from->nsc, n->nat = from->nat;
    n->state = from->state, n->site = from->site;
    for (int k = 0; k < n->nin; k++) n->in[k] = value_of(e, nodes, g, g->operands[from->in + k]);
    for (int k = 0; k < n->nsc; k++) {
        etch_scalar_kind kind = (etch_scalar_kind)g->scalar_kinds[from->sc + k];
        n->sc[k] = (graph_scalar){from->sc + k, any_value(kind)};
    }
    if (n->nat) memcpy(n->at, g->attrs + from->at, (size_t)n->nat * sizeof *n->at);
    if (!is_inplace(n)) set_meta(&n->value, &g->values[from->out].meta);
    link_before(e, n, NULL);
    return n;
}

static bool open_nodes(etch_graph *e, const graph *g) {
    etch_node **nodes = etch__malloc(((size_t)g->nnodes + 1) * sizeof(etch_node *));
    bool ok = nodes != NULL;
    for (int i = 0; ok && i < g->nnodes; i++) ok = (nodes[i] = open_node(e, nodes, g, i)) != NULL;
    for (int i = 0; ok && i < g->noutputs; i++)
        e->outputs[e->noutputs++] = value_of(e, nodes, g, g->outputs[i]);
    etch__free(nodes);
    return ok;
}

etch_graph *etch__graph_open(const graph *g) {
    etch_graph *e = etch__calloc(1, sizeof *e);
    if (!e) return NULL;
    e->name = etch__strdup(g->name);
    e->any_mode = g->any_mode;
    e->inputs = etch__calloc((size_t)g->ninputs + 1, sizeof *e->inputs);
    e->outputs = etch__calloc((size_t)g->noutputs + 1, sizeof *e->outputs);
    e->kinds = etch__malloc((size_t)g->nscalars + 1);
    e->nparams = g->nscalars;
    bool ok = e->name && e->inputs && e->outputs && e->kinds;
    if (ok && g->nscalars) memcpy(e->kinds, g->scalar_kinds, (size_t)g->nscalars);
    if (ok && open_inputs(e, g) && open_nodes(e, g)) return e;
    etch_graph_free(e);
    return NULL;
}

/* ---- and back ---- */

typedef struct closing {
    const etch_graph *e;
    graph *g;
    graph_scalar *scalars;
    int64_t nscalars, cap;
} closing;

static bool close_inputs(closing *c) {
    for (int i = 0; i < c->e->ninputs; i++) {
        etch_node *n = c->e->inputs[i];
        tensor_meta meta = {
            .dtype = n->value.dtype, .ndim = n->value.ndim, .offset = n->value.offset};
        memcpy(meta.size, n->value.size, sizeof meta.size);
        memcpy(meta.stride, n->value.stride, sizeof meta.stride);
        if ((n->number = etch__graph_add_input(c->g, &meta)) < 0) return false;
        c->g->values[i].base = n->base;
    }
    return true;
}

/* The compiler's number of a value that an earlier node gives; -2 with an error for a later one. */
static int32_t number_of(const closing *c, const etch_tensor *t) {
    if (t == ETCH_NONE) return -1;
    const etch_node *n = etch_graph_node_of(c->e, t);
    if (n && n->number >= 0) return n->number;
    if (n)
        etch__error_at(NULL, ETCH_ERR_INVALID_ARGUMENT,
                       "%s: the value of %s is used before it is computed", c->e->name,
                       n->op->name);
    return -2;
}

static bool close_operands(const closing *c, const etch_node *n, int32_t *operands) {
    for (int i = 0; i < n->nin; i++)
        if ((operands[i] = number_of(c, n->in[i])) == -2) return false;
    return true;
}

/* Views of what a replacement gives may have other strides than before: metas are inferred anew. */
static bool infer_again(etch_node *n, const op_call *call, tensor_meta *meta) {
    if (etch__infer_under(n->state, call, meta, NULL) != ETCH_OK) return false;
    if (!is_inplace(n)) set_meta(&n->value, meta);
    return true;
}

static int add_call(closing *c, const etch_node *n, const op_call *call, const int32_t *operands,
                    const tensor_meta *meta) {
    if (!etch__grow(&c->scalars, &c->cap, c->nscalars + n->nsc + 1, sizeof *c->scalars)) return -1;
    int at = etch__graph_add_node(c->g, call, operands, meta);
    if (at < 0) return -1;
    c->g->nodes[at].state = n->state;
    for (int i = 0; i < n->nsc; i++) c->scalars[c->nscalars++] = n->sc[i];
    return at;
}

static bool close_node(closing *c, etch_node *n) {
    etch_scalar sc[OP_MAX_SCALARS];
    tensor_meta meta;
    op_call call = call_of(n, sc);
    int32_t *operands = etch__malloc(((size_t)n->nin + 1) * sizeof *operands);
    bool ok = operands && close_operands(c, n, operands) && infer_again(n, &call, &meta);
    int at = ok ? add_call(c, n, &call, operands, &meta) : -1;
    etch__free(operands);
    if (at >= 0 && !is_inplace(n)) n->number = c->g->nodes[at].out;
    return at >= 0;
}

/* An output must be a result that is no view, each once: else a copy of it. */
static bool close_output(closing *c, const etch_tensor *t) {
    int32_t v = number_of(c, t);
    if (v < 0) return false;
    bool plain = v >= c->g->ninputs && c->g->values[v].base == v;
    for (int i = 0; i < c->g->noutputs; i++) plain &= c->g->outputs[i] != v;
    if (plain) return etch__graph_add_output(c->g, v);
    op_call call = {.op = OP_CLONE, .nin = 1};
    tensor_meta meta = c->g->values[v].meta;
    etch__row_major(meta.ndim, meta.size, meta.stride);
    meta.offset = 0;
    int at = etch__graph_add_node(c->g, &call, &v, &meta);
    return at >= 0 && etch__graph_add_output(c->g, c->g->nodes[at].out);
}

static bool close_all(closing *c) {
    for (etch_node *n = c->e->first; n; n = n->next) n->number = -1;
    if (!close_inputs(c)) return false;
    for (etch_node *n = c->e->first; n; n = n->next)
        if (!close_node(c, n)) return false;
    for (int i = 0; i < c->e->noutputs; i++)
        if (!close_output(c, c->e->outputs[i])) return false;
    return true;
}

graph *etch__graph_close(const etch_graph *e, graph_scalar **scalars) {
    closing c = {e, etch__graph_new(e->name), NULL, 0, 0};
    if (c.g && close_all(&c)) {
        c.g->any_mode = e->any_mode;
        *scalars = c.scalars;
        return c.g;
    }
    etch__graph_free(c.g);
    etch__free(c.scalars);
    return NULL;
}

/* ---- text ---- */

static void put_constants(bounded_text *t, const graph *g, const graph_scalar *scalars) {
    const size_t start = t->n;
    for (int i = 0; i < g->nscalars; i++) {
        const etch_scalar *s = &scalars[i].value;
        if (scalars[i].param >= 0) continue;
        etch__text_add(t, "%s$%d = ", t->n > start ? ", " : "constants ", i);
        if (s->kind == ETCH_SCALAR_REAL) etch__text_add(t, "%.17g", s->d);
        else etch__text_add(t, "%lld", (long long)s->i);
    }
    if (t->n > start) etch__text_add(t, "\n");
}

int64_t etch_graph_format(const etch_graph *e, char *buf, size_t n) {
    if (!e)
        return etch__error_at(NULL, ETCH_ERR_NULL, "etch_graph_format: expected a graph, got NULL"),
               -1;
    graph_scalar *scalars;
    graph *g = etch__graph_close(e, &scalars);
    char *text = g ? etch__graph_text(g) : NULL;
    bounded_text t = {buf, buf ? n : 0, 0};
    if (text) etch__text_add(&t, "%s", text), put_constants(&t, g, scalars);
    if (g) etch__free(scalars);
    etch__graph_free(g);
    etch__free(text);
    return text ? (int64_t)t.n : -1;
}

/* "constants $2 = 0.5, $3 = 1": parameters become the values of edits again. */
static bool read_constants(etch_graph *e, const char *at) {
    int number, length;
    double value;
    if (strncmp(at, "constants ", 10)) return *at == 0;
    for (at += 10; sscanf(at, " $%d = %lf%n", &number, &value, &length) == 2; at += length + 1) {
        if (number < 0 || number >= e->nparams) return false;
        bool real = e->kinds[number] == ETCH_SCALAR_REAL;
        etch_scalar s = real ? etch_scalar_real(value) : etch_scalar_int((int64_t)value);
        s.kind = (etch_scalar_kind)e->kinds[number];
        for (etch_node *n = e->first; n; n = n->next)
            for (int i = 0; i < n->nsc; i++)
                if (n->sc[i].param == number) n->sc[i] = (graph_scalar){-1, s};
        if (at[length] != ',') return at[length] == '\n' || !at[length];
    }
    return false;
}

etch_graph *etch_graph_parse(const char *text) {
    if (!text)
        return etch__null_at(NULL, ETCH_ERR_NULL, "etch_graph_parse: expected a text, got NULL");
    const char *end = strstr(text, "\n}\n");
    size_t length = end ? (size_t)(end - text) + 3 : strlen(text);
    char *body = etch__malloc(length + 1);
    if (!body) return NULL;
    memcpy(body, text, length);
    body[length] = 0;
    graph *g = etch__graph_parse(body);
    etch_graph *e = g ? etch__graph_open(g) : NULL;
    etch__graph_free(g);
    etch__free(body);
    if (!e || read_constants(e, text + length)) return e;
    etch__error(ETCH_ERR_FORMAT, "graph text: expected the end, or \"constants $n = value, ...\"");
    etch_graph_free(e);
    return NULL;
}
