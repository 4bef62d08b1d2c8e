/* From the text form of a graph to one that can be changed (mini.h).
 *
 * etch_graph_parse reads it; two things that its nodes do not tell are read from the text again:
 * over which input another one lies, and the classes of scalars (whether alpha is 1, how many
 * elements an arange has), which stand as the last attribute of their lines. */
#include <ctype.h>

#include "mini.h"

/* ---- logs ---- */

static const char *line_end(const char *at) {
    const char *end = strchr(at, '\n');
    return end ? end : at + strlen(at);
}

/* A line of a log without "etch: graph: ". */
static const char *without_prefix(const char *line, const char *end) {
    static const char prefix[] = "graph: ";
    const char *at = line;
    if (end - line > 13 && !strncmp(line, "etch: graph: ", 13)) return line + 13;
    return end - line > 7 && !strncmp(at, prefix, 7) ? at + 7 : line;
}

char *mini_next_text(const char **at) {
    char *text = NULL;
    size_t n = 0;
    for (const char *line = *at; *line; line = *line_end(line) ? line_end(line) + 1 : "") {
        const char *end = line_end(line), *from = without_prefix(line, end);
        if (!text && strncmp(from, "graph ", 6)) continue;
        char *more = realloc(text, n + (size_t)(end - from) + 2);
        if (!more) return free(text), NULL;
        text = more;
        memcpy(text + n, from, (size_t)(end - from));
        n += (size_t)(end - from);
        text[n++] = '\n', text[n] = 0;
        if (*from != '}') continue;
        *at = *end ? end + 1 : end;
        return text;
    }
    *at += strlen(*at);
    free(text);
    return NULL;
}

/* ---- finding ---- */

const mini_input *mini_find_input(const mini_graph *g, int value) {
    for (int i = 0; i < g->ninputs; i++)
        if (g->input[i].value == value) return &g->input[i];
    return NULL;
}

const mini_node *mini_find_node(const mini_graph *g, int value) {
    for (int i = 0; i < g->nnodes; i++)
        if (g->node[i].value == value) return &g->node[i];
    return NULL;
}

bool mini_uses(const mini_graph *g, int value) {
    for (int i = 0; i < g->noutputs; i++)
        if (g->output[i] == value) return true;
    for (int i = 0; i < g->ninputs; i++)
        if (g->input[i].base == value && g->input[i].value != value) return true;
    for (int i = 0; i < g->nnodes; i++)
        for (int k = 0; k < g->node[i].nargs; k++) {
            const mini_arg *a = &g->node[i].arg[k];
            bool tensors = a->tag == ETCH_VALUE_TENSOR || a->tag == ETCH_VALUE_TENSORS;
            for (int j = 0; tensors && j < a->n; j++)
                if (g->ref[a->first + j] == value) return true;
        }
    return false;
}

/* ---- nodes ---- */

typedef struct opening {
    const etch_graph *from;
    mini_graph *g;
    const etch_tensor *handle[MINI_MAX_VALUES];
} opening;

static mini_meta meta_of(const etch_tensor *t) {
    mini_meta m = {
        .dtype = (uint8_t)etch_dtype_of(t), .ndim = (uint8_t)etch_ndim(t), .known = true};
    for (int d = 0; d < m.ndim; d++) m.size[d] = etch_size(t, d), m.stride[d] = etch_stride(t, d);
    m.offset = etch_storage_offset(t);
    return m;
}

static int value_of(const opening *o, const etch_tensor *t) {
    for (int v = 0; t != ETCH_NONE && v < o->g->nvalues; v++)
        if (o->handle[v] == t) return v;
    return -1;
}

static bool too_large(const char *what) {
    fprintf(stderr, "etch-minify: the graph has too many %s\n", what);
    return false;
}

static bool add_refs(opening *o, mini_arg *a, etch_tensor *const *t, int n) {
    if (o->g->nrefs + n > MINI_MAX_REFS) return too_large("operands");
    a->first = o->g->nrefs, a->n = n;
    for (int i = 0; i < n; i++) o->g->ref[o->g->nrefs++] = value_of(o, t[i]);
    return true;
}

static bool set_arg(opening *o, mini_arg *a, const etch_value *v) {
    a->tag = (uint8_t)v->tag, a->name = v->name;
    switch (v->tag) {
    case ETCH_VALUE_TENSOR: return add_refs(o, a, &v->tensor, 1);
    case ETCH_VALUE_TENSORS: return add_refs(o, a, v->tensors.items, v->tensors.count);
    case ETCH_VALUE_SCALAR: a->scalar = v->scalar; break;
    case ETCH_VALUE_INT: a->v[0] = v->i; break;
    case ETCH_VALUE_BOOL: a->v[0] = v->b; break;
    case ETCH_VALUE_REAL: a->d = v->d; break;
    case ETCH_VALUE_INTS:
        a->n = v->ints.n;
        memcpy(a->v, v->ints.v, sizeof a->v);
        break;
    case ETCH_VALUE_DTYPE: a->v[0] = v->dtype; break;
    case ETCH_VALUE_PARAM:
        if (v->param.number >= MINI_MAX_SCALARS) return too_large("scalars");
        a->v[0] = v->param.number;
        o->g->scalar[v->param.number].kind = v->param.kind;
        break;
    default: break;
    }
    return true;
}

static bool add_node(opening *o, const etch_node *from) {
    mini_graph *g = o->g;
    etch_value args[ETCH_NODE_MAX_ARGS];
    if (g->nnodes == MINI_MAX_NODES) return too_large("calls");
    mini_node *n = &g->node[g->nnodes++];
    n->op = etch_node_op(from);
    n->nargs = etch_node_args(from, args);
    for (int i = 0; i < n->nargs; i++)
        if (!set_arg(o, &n->arg[i], &args[i])) return false;
    n->value = -1;
    if (value_of(o, etch_node_value(from)) >= 0) return true; /* in place */
    n->value = g->nvalues++;
    o->handle[n->value] = etch_node_value(from);
    g->meta[n->value] = meta_of(etch_node_value(from));
    return true;
}

static bool add_all(opening *o) {
    mini_graph *g = o->g;
    g->ninputs = etch_graph_num_inputs(o->from);
    if (g->ninputs > MINI_MAX_INPUTS) return too_large("inputs");
    for (int i = 0; i < g->ninputs; i++, g->nvalues++) {
        o->handle[i] = etch_node_value(etch_graph_input(o->from, i));
        g->input[i] = (mini_input){i, i, meta_of(o->handle[i])};
    }
    for (etch_node *n = etch_graph_first(o->from); n; n = etch_node_next(n))
        if (!add_node(o, n)) return false;
    g->noutputs = etch_graph_num_outputs(o->from);
    if (g->noutputs > MINI_MAX_OUTPUTS) return too_large("outputs");
    for (int i = 0; i < g->noutputs; i++)
        g->output[i] = value_of(o, etch_node_value(etch_graph_output(o->from, i)));
    g->nscalars = etch_graph_num_params(o->from);
    return g->nscalars <= MINI_MAX_SCALARS || too_large("scalars");
}

/* ---- what only the text tells ---- */

/* "%2: f32[4] over %0" in the first line. */
static void read_bases(mini_graph *g, const char *text) {
    const char *end = line_end(text);
    for (const char *at = text; (at = strstr(at, " over %")) && at < end; at++) {
        const char *from = at;
        while (from > text && *from != '%') from--;
        int value = atoi(from + 1), base = atoi(at + 7);
        if (value < g->ninputs && base < value) g->input[value].base = g->input[base].base;
    }
}

/* The last number in braces; false where there are none. */
static bool last_attribute(const char *line, int64_t *v) {
    const char *end = line_end(line), *at = end;
    while (at > line && *at != '}') at--;
    while (at > line && *at != ' ' && *at != '{') at--;
    if (at <= line) return false;
    *v = strtoll(at + 1, NULL, 10);
    return true;
}

/* The scalar that decides about the class, as a number of that class. */
static void set_class(mini_graph *g, const mini_node *n, const char *line) {
    static const double exponents[] = {1.7, 2, 3, 0.5, -1, 1, 0};
    const char *name = etch_op_name(n->op), *schema = etch_op_schema(n->op);
    const mini_arg *last = NULL;
    bool alpha = strstr(schema, "Scalar alpha") && !strstr(schema, "beta");
    bool exponent = strstr(schema, "Scalar exponent") != NULL;
    bool arange = !strncmp(name, "arange", 6);
    int64_t class;
    for (int i = 0, scalars = 0; i < n->nargs; i++) {
        if (n->arg[i].tag != ETCH_VALUE_PARAM) continue;
        if (!arange || scalars++ == 1) last = &n->arg[i]; /* of an arange: the end */
        if (arange) g->scalar[n->arg[i].v[0]].i = scalars == 1 ? 0 : 1;
        if (arange) g->scalar[n->arg[i].v[0]].d = scalars == 1 ? 0 : 1;
        if (arange) g->varies[n->arg[i].v[0]] = false;
    }
    if (!last || !(alpha || exponent || arange) || !last_attribute(line, &class)) return;
    etch_scalar *s = &g->scalar[last->v[0]];
    double value = arange                    ? (double)class
                   : alpha                   ? (class ? 1 : 2)
                   : class >= 0 && class < 7 ? exponents[class]
                                             : 1.7;
    if (s->kind == ETCH_SCALAR_REAL) s->d = value;
    else s->i = value == 1.7 ? 5 : (int64_t)value;
    g->varies[last->v[0]] = false;
}

static void read_classes(mini_graph *g, const char *text) {
    for (int i = 0; i < g->nscalars; i++) {
        etch_scalar_kind kind = g->scalar[i].kind;
        if (kind == ETCH_SCALAR_REAL) g->scalar[i].d = 0.75 - i % 3;
        else g->scalar[i].i = kind == ETCH_SCALAR_BOOL ? 1 : 3 + i % 2;
        g->varies[i] = true;
    }
    const char *line = text;
    for (int i = 0; i < g->nnodes && *line_end(line); i++) {
        line = line_end(line) + 1;
        set_class(g, &g->node[i], line);
    }
}

/* ---- the whole ---- */

mini_graph *mini_parse(const char *text) {
    opening *o = calloc(1, sizeof *o);
    mini_graph *g = calloc(1, sizeof *g);
    etch_graph *from = o && g ? etch_graph_parse(text) : NULL;
    bool ok = false;
    if (from) {
        o->from = from, o->g = g;
        snprintf(g->name, sizeof g->name, "%s", etch_graph_name(from));
        ok = add_all(o);
        if (ok) read_bases(g, text), read_classes(g, text);
    }
    etch_graph_free(from);
    free(o);
    if (ok) return g;
    free(g);
    return NULL;
}
