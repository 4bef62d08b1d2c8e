/* The text form of a graph: written for logs, read back for tests and tools.
 *
 * One grammar serves both directions (core/graph/graph.h shows it). Beside what stands there: an
 * input that lies over the storage of another one says `over %n`; a state word of the first node
 * that is not 0 stands before the brace, `!hex`; absent operands and absent int attributes are
 * `none`. */
#include <ctype.h>
#include <stdlib.h>

#include "core/graph/graph.h"
#include "core/base/text.h"
#include "core/ops/schema.h"

/* ---- writing ---- */

static void put_words(growing_text *t, int n, const int64_t *v) {
    for (int i = 0; i < n; i++)
        if (v[i] == ETCH_NO_INT) etch__text_put(t, "%snone", i ? ", " : "");
        else etch__text_put(t, "%s%lld", i ? ", " : "", (long long)v[i]);
}

static bool row_major(const tensor_meta *m) {
    int64_t stride[ETCH_MAX_DIMS];
    etch__row_major(m->ndim, m->size, stride);
    return !memcmp(stride, m->stride, m->ndim * sizeof *stride);
}

static void put_value(growing_text *t, const graph *g, int v) {
    const tensor_meta *m = &g->values[v].meta;
    etch__text_put(t, "%%%d: %s[", v, etch_dtype_name(m->dtype));
    put_words(t, m->ndim, m->size);
    if (!row_major(m)) {
        etch__text_put(t, " : ");
        put_words(t, m->ndim, m->stride);
    }
    etch__text_put(t, "]");
    if (m->offset) etch__text_put(t, "@%lld", (long long)m->offset);
    if (m->device) etch__text_put(t, " on %s", etch_device_name(m->device));
    if (v < g->ninputs && g->values[v].base != v)
        etch__text_put(t, " over %%%d", g->values[v].base);
}

static const char *const kind_names[] = {"bool", "int", "real"};

static void put_node(growing_text *t, const graph *g, const graph_node *n) {
    etch__text_put(t, "  ");
    if (etch__ops[n->op].kind != KIND_INPLACE) {
        put_value(t, g, n->out);
        etch__text_put(t, " = ");
    }
    etch__text_put(t, "%s(", etch__ops[n->op].name);
    for (int i = 0; i < n->nin; i++) {
        int32_t v = g->operands[n->in + i];
        if (v < 0) etch__text_put(t, "%snone", i ? ", " : "");
        else etch__text_put(t, "%s%%%d", i ? ", " : "", v);
    }
    for (int i = 0; i < n->nsc; i++)
        etch__text_put(t, "%s$%d: %s", i + n->nin ? ", " : "", n->sc + i,
                       kind_names[g->scalar_kinds[n->sc + i]]);
    etch__text_put(t, ")");
    if (n->nat) {
        etch__text_put(t, " {");
        put_words(t, n->nat, g->attrs + n->at);
        etch__text_put(t, "}");
    }
    if (n->state != g->nodes[0].state) etch__text_put(t, " !%llx", (unsigned long long)n->state);
    etch__text_put(t, "\n");
}

char *etch__graph_text(const graph *g) {
    growing_text t = {0};
    etch__text_put(&t, "graph %s(", g->name);
    for (int i = 0; i < g->ninputs; i++) {
        if (i) etch__text_put(&t, ", ");
        put_value(&t, g, i);
    }
    etch__text_put(&t, ")");
    if (g->nnodes && g->nodes[0].state)
        etch__text_put(&t, " !%llx", (unsigned long long)g->nodes[0].state);
    etch__text_put(&t, " {\n");
    for (int i = 0; i < g->nnodes; i++) put_node(&t, g, &g->nodes[i]);
    etch__text_put(&t, "  return");
    for (int i = 0; i < g->noutputs; i++)
        etch__text_put(&t, "%s%%%d", i ? ", " : " ", g->outputs[i]);
    etch__text_put(&t, "\n}\n");
    return etch__text_end(&t);
}

/* ---- reading ---- */

typedef struct reader {
    const char *start, *at;
    graph *g;
    uint64_t state; /* the first node's */
} reader;

static bool fail(reader *r, const char *what) {
    int line = 1, column = 1;
    for (const char *p = r->start; p < r->at; p++)
        if (*p == '\n') line++, column = 1;
        else column++;
    return etch__false(ETCH_ERR_FORMAT, "graph text, line %d, column %d: %s", line, column, what);
}

static void skip(reader *r) {
    while (isspace((unsigned char)*r->at)) r->at++;
}

/* Takes the token s if it comes next. */
static bool take(reader *r, const char *s) {
    skip(r);
    size_t n = strlen(s);
    if (strncmp(r->at, s, n)) return false;
    if (isalnum((unsigned char)s[n - 1]) && (isalnum((unsigned char)r->at[n]) || r->at[n] == '_'))
        return false;
    r->at += n;
    return true;
}

static bool expect(reader *r, const char *s) {
    char what[64];
    if (take(r, s)) return true;
    snprintf(what, sizeof what, "expected '%s'", s);
    return fail(r, what);
}

static bool read_number(reader *r, int64_t *v) {
    if (take(r, "none")) return *v = ETCH_NO_INT, true;
    skip(r);
    char *end;
    *v = strtoll(r->at, &end, 10);
    if (end == r->at) return fail(r, "expected a number");
    r->at = end;
    return true;
}

/* Numbers up to `close`, which is taken; at most max. */
static bool read_numbers(reader *r, const char *close, int max, int64_t *v, int *n) {
    *n = 0;
    if (take(r, close)) return true;
    for (;;) {
        if (*n == max) return fail(r, "too many numbers");
        if (!read_number(r, &v[(*n)++])) return false;
        if (take(r, close)) return true;
        if (!take(r, ",")) return fail(r, "expected ',' or the end of the list");
    }
}

static bool read_word(reader *r, char *word, size_t cap) {
    skip(r);
    size_t n = 0;
    while (isalnum((unsigned char)r->at[n]) || r->at[n] == '_' || r->at[n] == '.') n++;
    if (n == 0 || n >= cap) return fail(r, "expected a name");
    memcpy(word, r->at, n);
    word[n] = 0;
    r->at += n;
    return true;
}

/* "%12" of a value that exists. */
static bool read_ref(reader *r, int32_t *v) {
    int64_t n;
    if (!expect(r, "%") || !read_number(r, &n)) return false;
    if (n < 0 || n >= r->g->nvalues) return fail(r, "no such value");
    *v = (int32_t)n;
    return true;
}

static bool read_dtype(reader *r, uint8_t *dtype) {
    char word[16];
    if (!read_word(r, word, sizeof word)) return false;
    for (int d = 0; d < ETCH_DTYPE_COUNT; d++)
        if (!strcmp(word, etch_dtype_name(d))) return *dtype = (uint8_t)d, true;
    return fail(r, "expected a dtype");
}

static bool read_device(reader *r, tensor_meta *m) {
    int64_t index;
    if (!read_number(r, &index)) return false;
    if (index < 0 || index > UINT8_MAX - 1) return fail(r, "expected the number of a device");
    m->device = (uint8_t)ETCH_CUDA(index);
    return true;
}

/* "f32[4, 8 : 1, 4]@16 on cuda:0" */
static bool read_meta(reader *r, tensor_meta *m) {
    int64_t words[2 * ETCH_MAX_DIMS + 1];
    int n = 0, sizes = -1;
    memset(m, 0, sizeof *m);
    if (!read_dtype(r, &m->dtype) || !expect(r, "[")) return false;
    while (!take(r, "]")) {
        if (n == 2 * ETCH_MAX_DIMS) return fail(r, "too many dimensions");
        if (n && sizes < 0 && take(r, ":")) sizes = n;
        else if (n && !expect(r, ",")) return false;
        if (!read_number(r, &words[n++])) return false;
    }
    m->ndim = (uint8_t)(sizes < 0 ? n : sizes);
    if (m->ndim > ETCH_MAX_DIMS || (sizes >= 0 && n != 2 * sizes))
        return fail(r, "as many strides as sizes, at most eight");
    memcpy(m->size, words, m->ndim * sizeof *words);
    for (int d = 0; d < m->ndim; d++)
        if (m->size[d] < 0) return fail(r, "expected sizes that are not negative");
    if (etch__row_major(m->ndim, m->size, m->stride) < 0)
        return fail(r, "the sizes do not fit in 63 bits of bytes");
    if (sizes >= 0) memcpy(m->stride, words + sizes, m->ndim * sizeof *words);
    if (take(r, "@") && !read_number(r, &m->offset)) return false;
    return !take(r, "on cuda:") || read_device(r, m);
}

/* "%3: meta", where 3 must be the next number. */
static bool read_definition(reader *r, tensor_meta *m) {
    int64_t n;
    if (!expect(r, "%") || !read_number(r, &n)) return false;
    if (n != r->g->nvalues) return fail(r, "values must be numbered in order");
    return expect(r, ":") && read_meta(r, m);
}

static bool read_inputs(reader *r) {
    if (!expect(r, "(")) return false;
    while (!take(r, ")")) {
        tensor_meta m;
        int32_t base;
        if (r->g->ninputs && !expect(r, ",")) return false;
        if (!read_definition(r, &m)) return false;
        int v = etch__graph_add_input(r->g, &m);
        if (v < 0) return false;
        if (!take(r, "over")) continue;
        if (!read_ref(r, &base)) return false;
        r->g->values[v].base = base;
    }
    return true;
}

static bool read_scalar(reader *r, etch_scalar *s) {
    int64_t n;
    char word[16];
    if (!read_number(r, &n) || !expect(r, ":") || !read_word(r, word, sizeof word)) return false;
    memset(s, 0, sizeof *s);
    for (int k = 0; k < COUNT_OF(kind_names); k++)
        if (!strcmp(word, kind_names[k])) return s->kind = (etch_scalar_kind)k, true;
    return fail(r, "expected bool, int or real");
}

typedef struct reading {
    op_call call;
    int64_t noperands, operands_cap;
    int32_t *operands;
    etch_scalar sc[OP_MAX_SCALARS];
    int64_t at[OP_MAX_ATTRS];
} reading;

static bool read_arguments(reader *r, reading *x) {
    if (!expect(r, "(")) return false;
    while (!take(r, ")")) {
        if (x->noperands + x->call.nsc && !expect(r, ",")) return false;
        if (take(r, "$")) {
            if (x->call.nsc == OP_MAX_SCALARS) return fail(r, "too many scalars");
            if (!read_scalar(r, &x->sc[x->call.nsc++])) return false;
            continue;
        }
        if (x->noperands == UINT16_MAX) return fail(r, "too many operands");
        if (!etch__grow(&x->operands, &x->operands_cap, x->noperands + 1, sizeof *x->operands))
            return false;
        x->operands[x->noperands] = -1;
        if (!take(r, "none") && !read_ref(r, &x->operands[x->noperands])) return false;
        x->noperands++;
    }
    return true;
}

/* Names of custom operators have colons. */
static bool read_op(reader *r, uint16_t *op) {
    char word[128];
    skip(r);
    const char *at = r->at;
    size_t n = strcspn(at, "(%{} \t\n");
    if (n >= sizeof word) return fail(r, "no such operator");
    memcpy(word, at, n);
    word[n] = 0;
    r->at += n;
    for (int i = 0; i < etch__op_count; i++)
        if (!strcmp(word, etch__ops[i].name)) return *op = (uint16_t)i, true;
    r->at = at;
    return fail(r, "no such operator");
}

static bool read_state(reader *r, uint64_t *state) {
    if (!take(r, "!")) return true;
    char *end;
    *state = strtoull(r->at, &end, 16);
    if (end == r->at) return fail(r, "expected a hexadecimal number");
    r->at = end;
    return true;
}

static bool word_fits(arg_type type, int64_t v) {
    switch (type) {
    case ARG_INTS: return v >= 0 && v <= ETCH_MAX_DIMS;
    case ARG_INTS_OPT: return v >= -1 && v <= ETCH_MAX_DIMS;
    case ARG_DTYPE: return v >= 0 && v < ETCH_DTYPE_COUNT;
    case ARG_DTYPE_OPT: return v >= -1 && v < ETCH_DTYPE_COUNT;
    case ARG_BOOL: return v == 0 || v == 1;
    default: return true;
    }
}

static bool class_fits(const op_info *op, int64_t v) {
    if (op->flags & (OPF_CLASS_ALPHA | OPF_CLASS_FACTORS)) return v == 0 || v == 1;
    return !(op->flags & OPF_CLASS_EXPONENT) || (v >= EXPONENT_ANY && v <= EXPONENT_DOUBLE);
}

bool etch__normal_form(const op_call *call) {
    const op_info *op = &etch__ops[call->op];
    const op_schema *s = etch__schema(call->op);
    int64_t in = 0;
    int nsc = op->flags & OPF_RANDOM ? 2 : 0, at = 0;
    for (int i = 0; i < s->nargs; i++) {
        arg_type type = (arg_type)s->args[i].type;
        bool list = type == ARG_INTS || type == ARG_INTS_OPT;
        if (type == ARG_TENSOR || type == ARG_TENSOR_OPT) in++;
        else if (type == ARG_TENSORS) in = call->nin;
        else if (type == ARG_SCALAR) nsc++;
        else if (at >= call->nat || !word_fits(type, call->at[at])) return false;
        else at += list && call->at[at] > 0 ? 1 + (int)call->at[at] : 1;
    }
    if (op->flags & OPF_CLASS) {
        if (at >= call->nat || !class_fits(op, call->at[at])) return false;
        at++;
    }
    return in == call->nin && nsc == call->nsc && at == call->nat;
}

static bool read_call(reader *r, reading *x, bool defines, const tensor_meta *m) {
    int nat = 0;
    uint64_t state = r->state;
    if (!read_op(r, &x->call.op)) return false;
    const op_info *op = &etch__ops[x->call.op];
    if (op->kind == KIND_COMPOSITE) return fail(r, "a graph holds no composites");
    if (defines == (op->kind == KIND_INPLACE))
        return fail(r, defines ? "an in-place operator defines no value" : "expected '%n: meta ='");
    if (!read_arguments(r, x)) return false;
    if ((op->kind == KIND_INPLACE || op->kind == KIND_VIEW) &&
        (!x->noperands || x->operands[0] < 0))
        return fail(r, "the operator needs a first operand");
    if (take(r, "{") && !read_numbers(r, "}", OP_MAX_ATTRS, x->at, &nat)) return false;
    if (!read_state(r, &state)) return false;
    x->call.nin = (uint16_t)x->noperands, x->call.nat = (uint8_t)nat;
    x->call.sc = x->sc, x->call.at = x->at;
    if (!etch__normal_form(&x->call))
        return fail(r, "the operator takes other operands, scalars or attributes");
    int n = etch__graph_add_node(r->g, &x->call, x->operands, m);
    if (n < 0) return false;
    r->g->nodes[n].state = state;
    return true;
}

static bool read_node(reader *r) {
    reading x = {0};
    tensor_meta m;
    bool defines = *r->at == '%';
    bool ok =
        (!defines || (read_definition(r, &m) && expect(r, "="))) && read_call(r, &x, defines, &m);
    etch__free(x.operands);
    return ok;
}

static bool read_outputs(reader *r) {
    skip(r);
    while (!take(r, "}")) {
        int32_t v;
        if (r->g->noutputs && !expect(r, ",")) return false;
        if (!read_ref(r, &v)) return false;
        if (v < r->g->ninputs || r->g->values[v].base != v)
            return fail(r, "an output must be a computed value that is no view");
        if (!etch__graph_add_output(r->g, v)) return false;
    }
    return true;
}

static bool read_body(reader *r) {
    if (!read_inputs(r) || !read_state(r, &r->state) || !expect(r, "{")) return false;
    while (!take(r, "return"))
        if (!read_node(r)) return false;
    if (!read_outputs(r)) return false;
    skip(r);
    return *r->at ? fail(r, "expected the end") : true;
}

graph *etch__graph_parse(const char *text_) {
    reader r = {text_, text_, NULL, 0};
    if (!expect(&r, "graph")) return NULL;
    skip(&r);
    size_t n = strcspn(r.at, "(\n");
    char *name = etch__malloc(n + 1);
    if (!name) return NULL;
    memcpy(name, r.at, n);
    name[n] = 0;
    r.at += n;
    r.g = etch__graph_new(name);
    etch__free(name);
    if (!r.g) return NULL;
    if (read_body(&r)) return r.g;
    etch__graph_free(r.g);
    return NULL;
}
