/* Makes, from core/ops/ops.def, the table of all operators, the public header etch/ops.h and the
 * functions behind it.
 *
 *     gen_ops TABLE HEADER SOURCE
 *
 * The table has the rows of ops.def and those in place that they imply. For each C function of a
 * row: its parameters take their types from the schema's arguments of the same name; arguments that
 * it leaves out get the schema's default. Runs at build time only. */
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ARGS = 12, TEXT = 64, LINE = 512 };

/* plain: of an operator in place, the one that it derives from, else COUNT. */
typedef struct op_row {
    const char *id, *name, *schema, *cfn, *kind, *drule, *srule, *impl, *flags, *plain, *rules;
} op_row;

static const op_row rows[] = {
#define OP(id, name, schema, cfn, kind, drule, srule, impl, flags, derivative, vmap)               \
    {#id, name, schema, cfn, #kind, #drule, #srule, #impl, #flags, "COUNT", #derivative ", " #vmap},
#include "core/ops/ops.def"
#undef OP
};

/* Lines that the header has behind the schema. */
static const struct {
    const char *id, *line[32];
} notes[] = {
#define NOTE(id, ...) {#id, {__VA_ARGS__}},
#include "core/ops/notes.def"
};

typedef enum type {
    TENSOR,
    TENSOR_OPT,
    TENSORS,
    SCALAR,
    INT,
    INT_OPT,
    INTS,
    INTS_OPT,
    BOOL,
    DTYPE,
    DTYPE_OPT
} type;

/* How each schema type looks in C, how it enters the attributes, and how an absent one does. */
static const struct {
    const char *schema, *c;
    type type;
} types[] = {
    {"Tensor[]", "etch_tensor *const *%s, int n%s", TENSORS},
    {"ScalarType?", "etch_dtype %s", DTYPE_OPT},
    {"ScalarType", "etch_dtype %s", DTYPE},
    {"Scalar", "etch_scalar %s", SCALAR},
    {"float", "etch_scalar %s", SCALAR},
    {"Tensor?", "etch_tensor *%s", TENSOR_OPT},
    {"Tensor", "etch_tensor *%s", TENSOR},
    {"int[]?", "etch_dims %s", INTS_OPT},
    {"int[]", "etch_dims %s", INTS},
    {"int?", "int64_t %s", INT_OPT},
    {"int", "int64_t %s", INT},
    {"bool", "bool %s", BOOL},
};

typedef struct arg {
    type type;
    char name[TEXT], value[TEXT]; /* value: the default, "" when there is none */
} arg;

static void fail(const char *what, const char *where) {
    fprintf(stderr, "gen_ops: %s: %s\n", what, where);
    exit(1);
}

/* One argument, "Tensor(a!) self" or "int dim=0". */
static arg parse_arg(char *text) {
    arg a = {0};
    char *alias = strchr(text, '(');
    if (alias) {
        char *close = strchr(alias, ')');
        if (!close) fail("unclosed alias", text);
        memmove(alias, close + 1, strlen(close + 1) + 1);
    }
    char *name = strchr(text, ' ');
    if (!name) fail("argument without a name", text);
    *name++ = 0;
    char *value = strchr(name, '=');
    if (value) *value++ = 0;
    snprintf(a.name, TEXT, "%s", name);
    snprintf(a.value, TEXT, "%s", value ? value : "");
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (!strcmp(text, types[i].schema)) {
            a.type = types[i].type;
            return a;
        }
    fail("unknown type", text);
    return a;
}

/* The arguments between the outer parentheses of a schema; the keyword marker "*" is left out. */
static int parse_schema(const char *schema, arg *args) {
    char text[512];
    const char *end = strstr(schema, ") ->");
    if (schema[0] != '(' || !end || (size_t)(end - schema) >= sizeof text)
        fail("bad schema", schema);
    memcpy(text, schema + 1, (size_t)(end - schema - 1));
    text[end - schema - 1] = 0;
    int n = 0;
    for (char *p = text; *p;) {
        char *comma = strstr(p, ", ");
        if (comma) *comma = 0;
        if (strcmp(p, "*") && n < MAX_ARGS) args[n++] = parse_arg(p);
        p = comma ? comma + 2 : p + strlen(p);
    }
    return n;
}

static const arg *find(const arg *args, int n, const char *name) {
    for (int i = 0; i < n; i++)
        if (!strcmp(args[i].name, name)) return &args[i];
    fail("no such argument in the schema", name);
    return NULL;
}

/* "etch_add(self, other)": name and, in C's order, the schema's arguments. */
typedef struct function {
    char name[TEXT];
    const arg *param[MAX_ARGS];
    int nparams;
} function;

static function parse_function(const char *text, size_t length, const arg *args, int nargs) {
    function f = {0};
    char copy[256];
    if (length >= sizeof copy) fail("function too long", text);
    memcpy(copy, text, length);
    copy[length] = 0;
    char *open = strchr(copy, '('), *close = strrchr(copy, ')');
    if (!open || !close) fail("bad function", copy);
    *open = *close = 0;
    snprintf(f.name, TEXT, "%.63s", copy);
    for (char *p = strtok(open + 1, ", "); p; p = strtok(NULL, ", "))
        f.param[f.nparams++] = find(args, nargs, p);
    return f;
}

static bool given(const function *f, const arg *a) {
    for (int i = 0; i < f->nparams; i++)
        if (f->param[i] == a) return true;
    return false;
}

static void print_prototype(FILE *out, const function *f) {
    fprintf(out, "etch_tensor *%s(", f->name);
    for (int i = 0; i < f->nparams; i++) {
        const arg *a = f->param[i];
        if (i) fputs(", ", out);
        for (size_t k = 0; k < sizeof types / sizeof *types; k++)
            if (types[k].type == a->type) {
                char text[3 * TEXT];
                /* Only TENSORS has two places. */
                snprintf(text, sizeof text, types[k].c, a->name, a->name);
                fputs(text, out);
                break; /* Scalar and float look the same in C */
            }
    }
    fputs(f->nparams ? ")" : "void)", out);
}

/* Lets a plain C number stand for each scalar argument. */
static void print_scalar_macro(FILE *out, const function *f) {
    bool any = false;
    for (int i = 0; i < f->nparams; i++) any |= f->param[i]->type == SCALAR;
    if (!any) return;
    for (int pass = 0; pass < 2; pass++) {
        fprintf(out, pass ? " %s(" : "#define %s(", f->name);
        for (int i = 0; i < f->nparams; i++) {
            const arg *a = f->param[i];
            const char *format = pass && a->type == SCALAR ? "%sETCH_SCALAR(%s)" : "%s%s";
            fprintf(out, format, i ? ", " : "", a->name);
            if (a->type == TENSORS) fprintf(out, ", n%s", a->name);
        }
        fputs(")", out);
    }
    fputs("\n", out);
}

static int count(const arg *args, int n, type t) {
    int k = 0;
    for (int i = 0; i < n; i++) k += args[i].type == t;
    return k;
}

static bool is_tensor(const arg *a) { return a->type == TENSOR || a->type == TENSOR_OPT; }

static int count_tensors(const arg *args, int n) {
    return count(args, n, TENSOR) + count(args, n, TENSOR_OPT);
}

static void print_inputs(FILE *out, const arg *args, int n, const function *f) {
    if (count(args, n, TENSORS)) return;
    if (!count_tensors(args, n)) {
        fputs("    etch_tensor *const *in = NULL;\n", out);
        return;
    }
    fputs("    etch_tensor *const in[] = {", out);
    const char *separator = "";
    for (int i = 0; i < n; i++)
        if (is_tensor(&args[i])) {
            bool absent = args[i].type == TENSOR_OPT && !given(f, &args[i]);
            fprintf(out, "%s%s", separator, absent ? "ETCH_NONE" : args[i].name);
            separator = ", ";
        }
    fputs("};\n", out);
}

/* Returns the number of scalars. */
static int print_scalars(FILE *out, const op_row *r, const arg *args, int n, const function *f) {
    if (strstr(r->flags, "RANDOM")) {
        fputs("    etch_scalar sc[2];\n    etch__put_random(sc, &size);\n", out);
        return 2;
    }
    int scalars = count(args, n, SCALAR);
    if (!scalars) {
        fputs("    const etch_scalar *sc = NULL;\n", out);
        return 0;
    }
    fputs("    const etch_scalar sc[] = {", out);
    const char *separator = "";
    for (int i = 0; i < n; i++) {
        if (args[i].type != SCALAR) continue;
        if (given(f, &args[i])) fprintf(out, "%s%s", separator, args[i].name);
        else
            fprintf(out, "%setch_scalar_%s(%s)", separator,
                    strpbrk(args[i].value, ".e") ? "real" : "int", args[i].value);
        separator = ", ";
    }
    fputs("};\n", out);
    return scalars;
}

static void print_default(FILE *out, const arg *a) {
    switch (a->type) {
    case INT_OPT: fputs("    at[nat++] = ETCH_NO_INT;\n", out); break;
    case INTS_OPT:
    case DTYPE_OPT: fputs("    at[nat++] = -1;\n", out); break;
    case BOOL: fprintf(out, "    at[nat++] = %d;\n", !strcmp(a->value, "True")); break;
    case INT: fprintf(out, "    at[nat++] = %s;\n", a->value); break;
    case INTS: fprintf(out, "    at[nat++] = 1, at[nat++] = %s;\n", a->value); break;
    default: fail("argument needs a value", a->name);
    }
}

static bool is_attribute(const arg *a) {
    return !is_tensor(a) && a->type != TENSORS && a->type != SCALAR;
}

static void print_attributes(FILE *out, const op_row *r, const arg *args, int n, const function *f,
                             int scalars) {
    int attributes = strstr(r->flags, "CLASS") != NULL;
    for (int i = 0; i < n; i++) attributes += is_attribute(&args[i]);
    if (!attributes) {
        fputs("    const int64_t *at = NULL;\n    const int nat = 0;\n", out);
        return;
    }
    fputs("    int64_t at[OP_MAX_ATTRS];\n    int nat = 0;\n", out);
    for (int i = 0; i < n; i++) {
        const arg *a = &args[i];
        if (!is_attribute(a)) continue;
        if (!given(f, a)) print_default(out, a);
        else if (a->type == INTS || a->type == INTS_OPT)
            fprintf(out, "    nat = etch__put_dims(at, nat, &%s);\n", a->name);
        else fprintf(out, "    at[nat++] = (int64_t)%s;\n", a->name);
    }
    if (!strstr(r->flags, "CLASS")) return;
    bool alpha_left_out = strstr(r->flags, "ALPHA") && !given(f, find(args, n, "alpha"));
    if (alpha_left_out) fputs("    at[nat++] = 1;\n", out);
    else
        fprintf(out, "    at[nat] = etch__op_class(&etch__ops[OP_%s], sc, %d, %s);\n    nat++;\n",
                r->id, scalars, strstr(r->flags, "NUMEL") ? "at" : "NULL");
}

static void print_function(FILE *out, const op_row *r, const arg *args, int n, const function *f) {
    /* The macros of etch/ops.h have the functions' names. */
    fprintf(out, "#undef %s\n", f->name);
    print_prototype(out, f);
    fputs(" {\n", out);
    print_inputs(out, args, n, f);
    int scalars = print_scalars(out, r, args, n, f);
    print_attributes(out, r, args, n, f, scalars);
    char list[TEXT + 8] = "", length[TEXT + 8];
    for (int i = 0; i < n; i++)
        if (args[i].type == TENSORS) snprintf(list, sizeof list, "%s", args[i].name);
    snprintf(length, sizeof length, list[0] ? "n%s" : "%s", list);
    if (!list[0]) snprintf(length, sizeof length, "%d", count_tensors(args, n));
    if (list[0])
        fprintf(
            out,
            "    if (!etch__list_ok(OP_%s, %s, %s, __builtin_return_address(0))) return NULL;\n",
            r->id, list, length);
    fprintf(out,
            "    return etch__operator(OP_%s, %s, %s, sc, %d, at, nat, "
            "__builtin_return_address(0));\n}\n\n",
            r->id, list[0] ? list : "in", length, scalars);
}

/* ---- operators in place ---- */

static const char *text_of(const char *format, ...) __attribute__((format(printf, 1, 2)));
static const char *text_of(const char *format, ...) {
    static char all[1 << 17]; /* of all rows */
    static size_t used;
    char *text = all + used;
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof all - used, format, args);
    va_end(args);
    if (n < 0 || (size_t)n >= sizeof all - used) fail("no room for a row", format);
    used += (size_t)n + 1;
    return text;
}

/* The text with an underscore before the character: at its end where that is not there. */
static const char *underscored(const char *text, char before) {
    int n = (int)strcspn(text, (char[]){before, 0});
    return text_of("%.*s_%s", n, text, text + n);
}

static const char *written_schema(const op_row *r) {
    static const char from[] = "(Tensor self";
    size_t n = strlen(r->schema), start = sizeof from - 1;
    if (strncmp(r->schema, from, start) || n < 9 || strcmp(r->schema + n - 9, "-> Tensor"))
        fail("an operator that is IN_PLACE takes and returns a tensor", r->id);
    return text_of("(Tensor(a!) self%s(a!)", r->schema + start);
}

/* The flags that the operator in place has as well. */
static const char *kept_flags(const char *flags) {
    char copy[LINE], kept[LINE] = "0";
    snprintf(copy, sizeof copy, "%s", flags);
    for (char *p = strtok(copy, " |"); p; p = strtok(NULL, " |"))
        if (strcmp(p, "IN_PLACE") && strcmp(p, "COMMUTES"))
            snprintf(kept + strlen(kept), sizeof kept - strlen(kept), " | %s", p);
    return text_of("%s", kept);
}

/* "etch_mul" takes all arguments. */
static const char *whole_function(const op_row *r) {
    arg args[MAX_ARGS];
    int n = parse_schema(r->schema, args);
    const char *text = r->cfn;
    if (strchr(text, '(')) return text;
    for (int i = 0; i < n; i++) text = text_of("%s%s%s", text, i ? ", " : "(", args[i].name);
    return text_of("%s)", text);
}

static op_row in_place(const op_row *r) {
    op_row w = *r;
    int first = (int)strcspn(r->cfn, ";");
    if (strcmp(r->kind, "POINTWISE") && strcmp(r->kind, "OTHER"))
        fail("an operator that is IN_PLACE is POINTWISE or OTHER", r->id);
    w.id = text_of("%s_", r->id);
    w.plain = r->id;
    w.name = underscored(r->name, '.');
    w.schema = written_schema(r);
    w.cfn = underscored(text_of("%.*s", first, r->cfn), '(');
    w.kind = "INPLACE";
    if (!strcmp(r->srule, "BROADCAST")) w.srule = "INPLACE";
    w.flags = kept_flags(r->flags);
    return w;
}

/* ---- what is written ---- */

static const char *const kinds[] = {"POINTWISE",   "INPLACE",  "REDUCTION", "VIEW",
                                    "CONTRACTION", "CREATION", "COMPOSITE", "OTHER"};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* Rows are called by their kind, so that who wants one kind defines that alone. */
static void begin_table(FILE *out) {
    fputs("/* All operators. Generated from core/ops/ops.def: its rows, and those in place. Who\n"
          " * includes this defines OP, or <KIND>_OP for a kind that is something else to it. */\n",
          out);
    for (int k = 0; k < KINDS; k++)
        fprintf(out, "#ifndef %s_OP\n#define %s_OP OP\n#endif\n", kinds[k], kinds[k]);
}

static void end_table(FILE *out) {
    for (int k = 0; k < KINDS; k++) fprintf(out, "#undef %s_OP\n", kinds[k]);
    fputs("#undef OP\n", out);
}

static void print_row(FILE *out, const op_row *r) {
    int known = 0;
    for (int k = 0; k < KINDS; k++) known += !strcmp(r->kind, kinds[k]);
    if (!known) fail("no such kind", r->id);
    fprintf(out, "%s_OP(%s, \"%s\", \"%s\", \"%s\", %s, %s, %s, %s, %s, %s, %s)\n", r->kind, r->id,
            r->name, r->schema, r->cfn, r->kind, r->drule, r->srule, r->impl, r->flags, r->plain,
            r->rules);
}

static const char header_top[] =
    "/* The operators. Generated from core/ops/ops.def: one function a row, the schema above it.\n"
    " *\n"
    " * Each returns a new tensor that the innermost scope owns (VIEW: over the storage of its "
    "first\n"
    " * argument; IN PLACE: the first argument itself), or NULL with the thread's error set. An\n"
    " * argument that is NULL gives NULL and keeps the first error. Sizes broadcast and dtypes "
    "promote\n"
    " * as in ATen. Scalars are plain C numbers. Any thread may call any of them. */\n"
    "#ifndef ETCH_OPS_H\n#define ETCH_OPS_H\n\n#include <etch/tensor.h>\n\n"
    "#ifdef __cplusplus\nextern \"C\" {\n#endif\n\n"
    "/* An absent int? argument, e.g. the end of a slice. */\n#define ETCH_ABSENT INT64_MIN\n"
    "/* An absent int[]? argument: all dimensions. */\n"
    "static inline etch_dims etch_all_dims(void) {\n    etch_dims d;\n    d.n = -1;\n"
    "    for (int i = 0; i < ETCH_MAX_DIMS; i++) d.v[i] = 0;\n    return d;\n}\n"
    "#define ETCH_ALL_DIMS etch_all_dims()\n\n";

static void print_note(FILE *header, const op_row *r) {
    for (size_t i = 0; i < sizeof notes / sizeof *notes; i++) {
        if (strcmp(notes[i].id, r->id) != 0) continue;
        fputs("\n *", header);
        for (const char *const *line = notes[i].line; *line; line++)
            fprintf(header, "\n *%s%s", **line ? " " : "", *line);
    }
}

static void print_operator(FILE *table, FILE *header, FILE *source, const op_row *r) {
    arg args[MAX_ARGS];
    int n = parse_schema(r->schema, args);
    print_row(table, r);
    fprintf(header, "/* %s%s%s", r->name, r->schema,
            !strcmp(r->kind, "VIEW")      ? "; VIEW"
            : !strcmp(r->kind, "INPLACE") ? "; IN PLACE"
                                          : "");
    print_note(header, r);
    fputs(" */\n", header);
    for (const char *p = r->cfn; *p;) {
        size_t length = strcspn(p, ";");
        function f = parse_function(p, length, args, n);
        fputs("ETCH_API ", header);
        print_prototype(header, &f);
        fputs(";\n", header);
        print_scalar_macro(header, &f);
        print_function(source, r, args, n, &f);
        p += length;
        p += strspn(p, "; ");
    }
}

int main(int argc, char **argv) {
    if (argc != 4) fail("usage", "gen_ops TABLE HEADER SOURCE");
    FILE *table = fopen(argv[1], "w"), *header = fopen(argv[2], "w"), *source = fopen(argv[3], "w");
    if (!table || !header || !source) fail("cannot write", argv[1]);
    begin_table(table);
    fputs(header_top, header);
    fputs("/* The operator functions. Generated from core/ops/ops.def. */\n"
          "#include \"core/dispatch/call.h\"\n\n",
          source);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        op_row row = rows[i];
        row.cfn = whole_function(&row);
        print_operator(table, header, source, &row);
        if (!strstr(row.flags, "IN_PLACE")) continue;
        op_row written = in_place(&row);
        print_operator(table, header, source, &written);
    }
    end_table(table);
    fputs("\n#ifdef __cplusplus\n}\n#endif\n#endif\n", header);
    return fclose(table) || fclose(header) || fclose(source);
}
