/* The loop IR as text for ETCH_LOGS=output_code, one instruction a line:
 *
 *   kernel name: map, 1 + 0 axes
 *     @0: load f32 [1]
 *     %0 = load f32 @0
 *     %1 = add f32 %0, %0
 *     store f32 @1, %1 */
#include "jit/loop/loop.h"

typedef struct kernel_text {
    char *p;
    int64_t n, cap;
    bool failed;
} kernel_text;

static void put(kernel_text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(kernel_text *t, const char *format, ...) {
    char line[160];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (n >= (int)sizeof line) n = (int)sizeof line - 1;
    if (t->failed || !etch__grow(&t->p, &t->cap, t->n + n + 1, 1)) {
        t->failed = true;
        return;
    }
    memcpy(t->p + t->n, line, (size_t)n + 1);
    t->n += n;
}

static const char *type_name(const loop_instr *i) { return etch_dtype_name(i->p.type); }

static void put_operands(kernel_text *t, const loop_instr *i) {
    for (int n = 0; n < etch__loop_arity(i); n++)
        put(t, "%s%%%d", n ? ", " : " ", etch__loop_operand(i, n));
}

static void put_prim(kernel_text *t, int v, const loop_instr *i) {
    put(t, "%%%d = %s %s", v, etch__prims[i->p.prim].name, type_name(i));
    put_operands(t, i);
    if (i->p.prim == PRIM_CONST && etch__is_float(i->p.type)) put(t, " %a", i->p.imm.d);
    else if (i->p.prim == PRIM_CONST) put(t, " %lld", (long long)i->p.imm.i);
    else if (i->p.prim == PRIM_SCALAR)
        put(t, " $%lld as %s", (long long)i->p.imm.i, etch_dtype_name(i->p.from));
    else if (i->p.prim == PRIM_CONVERT) put(t, " from %s", etch_dtype_name(i->p.from));
}

static void put_instr(kernel_text *t, int v, const loop_instr *i) {
    static const char *const reductions[] = {
        [REDUCE_SUM] = "sum", [REDUCE_MAX] = "max", [REDUCE_MIN] = "min", [REDUCE_PROD] = "prod"};
    put(t, "  %d: ", i->stage);
    switch (i->kind) {
    case LOOP_LOAD: put(t, "%%%d = load %s @%lld", v, type_name(i), (long long)i->p.imm.i); break;
    case LOOP_STORE:
        put(t, "store %s @%lld,", type_name(i), (long long)i->p.imm.i);
        put_operands(t, i);
        break;
    case LOOP_REDUCE:
        put(t, "%%%d = reduce %s %s", v, reductions[i->p.imm.i], type_name(i));
        put_operands(t, i);
        break;
    default: put_prim(t, v, i);
    }
    put(t, "\n");
}

char *etch__loop_text(const loop_kernel *k) {
    static const char *const variants[] = {"map", "row", "column"};
    static const char *const splits[] = {"", ", partial", ", finish"};
    static const char step[] = "01s";
    kernel_text t = {0};
    if (!etch__loop_valid(k, NULL)) return etch__strdup("kernel that is not valid\n");
    put(&t, "kernel %.48s: %s%s, %d + %d axes%s\n", k->name, variants[k->variant], splits[k->split],
        k->npar, k->nred, k->any_mode ? ", any mode" : "");
    for (int a = 0; a < k->naccesses; a++) {
        put(&t, "  @%d: %s %s [", a, k->access[a].store ? "store" : "load",
            etch_dtype_name(k->access[a].dtype));
        for (int x = 0; x < k->npar + k->nred; x++)
            put(&t, "%s%c", x == k->npar && x ? "|" : "", step[k->access[a].step[x]]);
        put(&t, "]\n");
    }
    for (int v = 0; v < k->ncode; v++) put_instr(&t, v, &k->code[v]);
    if (!t.failed) return t.p;
    etch__free(t.p);
    return NULL;
}
