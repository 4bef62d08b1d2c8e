/* Parses the schema strings of the operator table, all of them, once, at first need. The strings
 * are our own, so a bad one is a fault of the table: it gets no arguments and a test finds it. */
#include "core/ops/schema.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

/* Longer names before their prefixes. */
static const struct {
    const char *name;
    arg_type type;
} types[] = {
    {"Tensor[]", ARG_TENSORS}, {"Tensor?", ARG_TENSOR_OPT},
    {"Tensor", ARG_TENSOR},    {"ScalarType?", ARG_DTYPE_OPT},
    {"ScalarType", ARG_DTYPE}, {"Scalar", ARG_SCALAR},
    {"int[]?", ARG_INTS_OPT},  {"int[]", ARG_INTS},
    {"int?", ARG_INT_OPT},     {"int", ARG_INT},
    {"bool", ARG_BOOL},        {"float", ARG_SCALAR},
};

static op_schema schemas[OP_CAPACITY];
static pthread_once_t once = PTHREAD_ONCE_INIT;

const char *etch__arg_type_name(arg_type type) {
    for (int i = 0; i < COUNT_OF(types); i++)
        if (types[i].type == type) return types[i].name;
    return "?";
}

static const char *parse_type(const char *at, schema_arg *a) {
    for (int i = 0; i < COUNT_OF(types); i++) {
        size_t n = strlen(types[i].name);
        if (strncmp(at, types[i].name, n)) continue;
        a->type = (uint8_t)types[i].type;
        at += n;
        if (*at == '(') a->written = at[2] == '!', at += strcspn(at, ")"), at += *at == ')';
        return *at == ' ' ? at + 1 : NULL;
    }
    return NULL;
}

static bool parse_number(const char *text, size_t n, schema_arg *a) {
    char *end;
    errno = 0;
    if (memchr(text, '.', n) || memchr(text, 'e', n))
        a->value = etch_scalar_real(strtod(text, &end));
    else a->value = etch_scalar_int(strtoll(text, &end, 10));
    return end == text + n && !errno && (a->type == ARG_SCALAR || a->value.kind == ETCH_SCALAR_INT);
}

/* n characters, "1", "0.5", "True", "None", as the argument's type has them. */
static bool parse_default(const char *text, size_t n, schema_arg *a) {
    bool yes = n == 4 && !memcmp(text, "True", 4), none = n == 4 && !memcmp(text, "None", 4);
    a->has_default = true;
    a->value = etch_scalar_int(none ? a->type == ARG_INT_OPT ? ETCH_NO_INT : -1 : yes);
    switch (a->type) {
    case ARG_TENSOR:
    case ARG_TENSORS: return false;
    case ARG_TENSOR_OPT:
    case ARG_INTS_OPT: return none;
    case ARG_BOOL: return yes || (n == 5 && !memcmp(text, "False", 5));
    case ARG_INT_OPT: return none || parse_number(text, n, a);
    case ARG_DTYPE_OPT:
        if (none) return true;
        /* fall through */
    case ARG_DTYPE: return parse_number(text, n, a) && (uint64_t)a->value.i < ETCH_DTYPE_COUNT;
    default: return parse_number(text, n, a);
    }
}

/* Integers but for those that say which axis or device: these shape the code. */
static bool is_run_time(const schema_arg *a) {
    static const char *const fixed[] = {"dim",    "dims",        "dim0",      "dim1",
                                        "dim2",   "dimension",   "start_dim", "end_dim",
                                        "source", "destination", "device"};
    if (a->type != ARG_INT && a->type != ARG_INT_OPT && a->type != ARG_INTS &&
        a->type != ARG_INTS_OPT)
        return false;
    for (int i = 0; i < COUNT_OF(fixed); i++)
        if (!strcmp(a->name, fixed[i])) return false;
    return true;
}

/* One argument of n characters, "Tensor(a!) self" or "int dim=0". */
static bool parse_arg(const char *text, size_t n, schema_arg *a) {
    const char *name = parse_type(text, a);
    if (!name) return false;
    size_t length = strcspn(name, "=,)");
    if (!length || name + length > text + n || length >= sizeof a->name) return false;
    memcpy(a->name, name, length);
    a->run_time = is_run_time(a);
    const char *value = name + length + 1;
    return name[length] != '=' || parse_default(value, (size_t)(text + n - value), a);
}

/* The end of the argument that starts at `at`: a comma or parenthesis outside of "(a!)". */
static size_t arg_length(const char *at) {
    size_t n = 0;
    for (int depth = 0; at[n]; n++) {
        if (at[n] == '(') depth++;
        if (at[n] == ')' && depth-- == 0) break;
        if (at[n] == ',' && depth == 0) break;
    }
    return n;
}

static bool has_name(const op_schema *s, const char *name) {
    for (int i = 0; i < s->nargs; i++)
        if (!strcmp(s->args[i].name, name)) return true;
    return false;
}

static bool parse_args(const char *at, op_schema *s) {
    bool keyword_only = false;
    for (size_t n; *at != ')'; at += n + (at[n] == ',' ? 2 : 0)) {
        n = arg_length(at);
        if (!at[n]) return false;
        if (n == 1 && *at == '*') {
            keyword_only = true;
            continue;
        }
        if (s->nargs == SCHEMA_MAX_ARGS) return false;
        schema_arg *a = &s->args[s->nargs];
        if (!parse_arg(at, n, a) || has_name(s, a->name)) return false;
        a->keyword_only = keyword_only;
        s->nargs++;
    }
    return true;
}

bool etch__schema_parse(const char *schema, op_schema *s) {
    const char *open = strchr(schema, '(');
    return open && parse_args(open + 1, s);
}

static void parse_all(void) {
    for (int i = 0; i < OP_COUNT; i++)
        if (!etch__schema_parse(etch__ops[i].schema, &schemas[i])) schemas[i].nargs = 0;
}

void etch__schema_set(op_id op, const op_schema *s) { schemas[op] = *s; }

const op_schema *etch__schema(op_id op) {
    pthread_once(&once, parse_all);
    return &schemas[op];
}
