/* The loop IR as text for ETCH_LOGS=output_code, one instruction a line:
 *
 *   kernel name: map, 1 + 0 axes
 *     @0: load f32 [1]
 *     %0 = load f32 @0
 *     %1 = add f32 %0, %0
 *     store f32 @1, %1 */
#include "core/base/text.h"
#include "jit/loop/loop.h"

static const char *type_name(const loop_instr *i) { return etch_dtype_name(i->p.type); }

static void put_operands(growing_text *t, const loop_instr *i) {
    for (int n = 0; n < etch__loop_arity(i); n++)
        etch__text_put(t, "%s%%%d", n ? ", " : " ", etch__loop_operand(i, n));
}

static void put_prim(growing_text *t, int v, const loop_instr *i) {
    etch__text_put(t, "%%%d = %s %s", v, etch__prims[i->p.prim].name, type_name(i));
    put_operands(t, i);
    if (i->p.prim == PRIM_CONST && etch__is_float(i->p.type)) etch__text_put(t, " %a", i->p.imm.d);
    else if (i->p.prim == PRIM_CONST) etch__text_put(t, " %lld", (long long)i->p.imm.i);
    else if (i->p.prim == PRIM_SCALAR)
        etch__text_put(t, " $%lld as %s", (long long)i->p.imm.i, etch_dtype_name(i->p.from));
    else if (i->p.prim == PRIM_CONVERT) etch__text_put(t, " from %s", etch_dtype_name(i->p.from));
}

static void put_instr(growing_text *t, int v, const loop_instr *i) {
    etch__text_put(t, "  %d: ", i->stage);
    switch (i->kind) {
    case LOOP_LOAD:
        etch__text_put(t, "%%%d = load %s @%lld", v, type_name(i), (long long)i->p.imm.i);
        break;
    case LOOP_STORE:
        etch__text_put(t, "store %s @%lld,", type_name(i), (long long)i->p.imm.i);
        put_operands(t, i);
        break;
    case LOOP_REDUCE:
        etch__text_put(t, "%%%d = reduce %s %s", v, etch__reduction((reduce_kind)i->p.imm.i)->name,
                       type_name(i));
        put_operands(t, i);
        break;
    default: put_prim(t, v, i);
    }
    etch__text_put(t, "\n");
}

char *etch__loop_text(const loop_kernel *k) {
    static const char *const variants[] = {"map", "row", "column"};
    static const char *const splits[] = {"", ", partial", ", finish"};
    static const char *const tiles[] = {"", ", tiles of rows", ", turned tiles"};
    static const char step[] = "01s";
    growing_text t = {0};
    if (!etch__loop_valid(k, NULL)) return etch__strdup("kernel that is not valid\n");
    etch__text_put(&t, "kernel %.48s: %s%s%s, %d + %d axes%s\n", k->name, variants[k->variant],
                   splits[k->split], tiles[k->tile], k->npar, k->nred,
                   k->any_mode ? ", any mode" : "");
    for (int a = 0; a < k->naccesses; a++) {
        etch__text_put(&t, "  @%d: %s %s [", a, k->access[a].store ? "store" : "load",
                       etch_dtype_name(k->access[a].dtype));
        for (int x = 0; x < k->npar + k->nred; x++)
            etch__text_put(&t, "%s%c", x == k->npar && x ? "|" : "", step[k->access[a].step[x]]);
        etch__text_put(&t, k->access[a].sums ? "] sums\n" : "]\n");
    }
    for (int v = 0; v < k->ncode; v++) put_instr(&t, v, &k->code[v]);
    return etch__text_end(&t);
}

void etch__loop_symbol(const loop_kernel *k, char symbol[LOOP_SYMBOL_MAX]) {
    int n = snprintf(symbol, LOOP_SYMBOL_MAX, "etch_");
    for (const char *p = k->name; *p && n < LOOP_SYMBOL_MAX - 1; p++) {
        bool plain = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') ||
                     (*p >= '0' && *p <= '9') || *p == '_';
        symbol[n++] = plain ? *p : '_';
    }
    symbol[n] = 0;
}
