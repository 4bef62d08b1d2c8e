/* etch_import: a file becomes a function that can be called. What is asked of a file is in
 * export/load.c; here the program is planned, with the file's code or without. */
#include "core/dispatch/dispatch.h"
#include "export/imported.h"
#include "jit/ir/target.h"
#include "jit/store/cache.h"

#define SITE __builtin_return_address(0)

/* ---- plans ---- */

static bool no_compiler(const program *p) {
    const jit_target *t = etch__target(p->g->nvalues ? p->g->values[0].meta.device : 0);
    if (t && !t->absent) return false;
    etch__error_at(NULL, ETCH_ERR_UNSUPPORTED,
                   "etch_import: %s: ETCH_CODE_COMPILE, but %s; ETCH_CODE_EAGER runs without",
                   p->g->name, t ? t->absent : "there is no compiler for its device");
    return true;
}

static etch_status native_plan_of(etch_imported *f, pack_use use, plan **out) {
    const program *p = f->e.p;
    const backend *native = etch__backend_find("native");
    backend_options options = {.mode = p->mode, .numerics = p->numerics, .strict = true};
    pack_use before = etch__pack_enter(use);
    empty_frame frame = etch__push_frame();
    etch__frame_mode(&frame, 0);
    etch_status status =
        native ? etch__backend_compile(native, p->g, &options, out) : etch__tls.status;
    etch__pop_frame(&frame);
    etch__pack_leave(before);
    return status;
}

/* The code that is compiled here is the file's when it is saved again. */
static bool compile(etch_imported *f) {
    if (no_compiler(f->e.p) || !(f->e.pack = etch__pack_new())) return false;
    etch__cache_identity(f->e.identity, sizeof f->e.identity);
    return native_plan_of(f, (pack_use){.collects = f->e.pack}, &f->plan) == ETCH_OK;
}

static bool make_plans(etch_imported *f) {
    bool ok = etch__eager_plan(f->e.p->g, &f->by_nodes) == ETCH_OK;
    if (f->code == ETCH_CODE_OF_FILE)
        return ok && native_plan_of(f, (pack_use){.gives = f->e.pack}, &f->plan) == ETCH_OK;
    if (f->code == ETCH_CODE_COMPILE) return ok && compile(f);
    if (ok) etch__plan_retain(f->plan = f->by_nodes);
    return ok;
}

static bool note_written(etch_imported *f) {
    const graph *g = f->e.p->g;
    f->written = etch__calloc((size_t)g->ninputs + 1, 1);
    for (int i = 0; f->written && i < g->nnodes; i++) {
        int32_t base = g->values[g->nodes[i].out].base;
        if (etch__ops[g->nodes[i].op].kind != KIND_INPLACE || base >= g->ninputs) continue;
        for (int v = 0; v < g->ninputs; v++) f->written[v] |= g->values[v].base == base;
    }
    return f->written != NULL;
}

/* ---- life ---- */

void etch_imported_free(etch_imported *f) {
    if (!f) return;
    etch__plan_release(f->plan);
    etch__plan_release(f->by_nodes);
    etch__exported_free(&f->e);
    etch__free(f->written);
    etch__free(f);
}

static bool options_of(const etch_import_options *given, etch_import_options *o) {
    size_t n = given ? given->struct_size : 0;
    *o = (etch_import_options){.struct_size = sizeof *o};
    if (given) memcpy(o, given, n && n < sizeof *o ? n : sizeof *o);
    if (o->code >= ETCH_CODE_OF_FILE && o->code <= ETCH_CODE_EAGER) return true;
    return etch__false_at(NULL, ETCH_ERR_INVALID_ARGUMENT,
                          "etch_import: .code: expected 0 to %d, "
                          "got %d",
                          ETCH_CODE_EAGER, o->code);
}

etch_imported *etch_import_with(const char *path, const etch_import_options *options) {
    etch_import_options o;
    if (!path) return etch__null_at(SITE, ETCH_ERR_NULL, "etch_import: expected a path, got NULL");
    if (!options_of(options, &o)) return NULL;
    etch_imported *f = etch__calloc(1, sizeof *f);
    if (!f) return NULL;
    f->code = o.code;
    file_code code = o.code == ETCH_CODE_OF_FILE ? CODE_TO_RUN : CODE_LEFT;
    if (etch__file_load(path, code, &f->e) && note_written(f) && make_plans(f)) return f;
    etch_imported_free(f);
    return NULL;
}

etch_status etch_imported_save(const etch_imported *f, const char *path) {
    if (!f || !path)
        return etch__error_at(SITE, ETCH_ERR_NULL,
                              "etch_imported_save: expected a function and a path, got NULL");
    if (etch__tls.run && etch_flush() != ETCH_OK) return etch__tls.status;
    return etch__file_save(path, &f->e);
}

/* ---- what it takes and holds ---- */

int etch_imported_num_inputs(const etch_imported *f) { return f ? f->e.p->nargs : 0; }
int etch_imported_num_outputs(const etch_imported *f) { return f ? f->e.p->nresults : 0; }
int etch_imported_num_weights(const etch_imported *f) { return f ? f->e.p->ncaptures : 0; }

static bool has_weight(const char *function, const etch_imported *f, int i, const void *site) {
    if (i >= 0 && i < etch_imported_num_weights(f)) return true;
    return etch__false_at(site, ETCH_ERR_INVALID_ARGUMENT, "%s: expected a number below %d, got %d",
                          function, etch_imported_num_weights(f), i);
}

etch_tensor *etch_imported_weight(const etch_imported *f, int i) {
    return has_weight("etch_imported_weight", f, i, SITE) ? f->e.captured[i] : NULL;
}

const char *etch_imported_weight_name(const etch_imported *f, int i) {
    return has_weight("etch_imported_weight_name", f, i, SITE) ? f->e.p->captures[i].name : NULL;
}
