/* etch_import: a file becomes a function that can be called. What is asked of a file is in
 * export/load.c; export/instance.c plans its program, with the file's code or without. */
#include "core/dispatch/dispatch.h"
#include "export/imported.h"

#define SITE __builtin_return_address(0)

/* ---- life ---- */

void etch_imported_free(etch_imported *f) {
    if (!f) return;
    for (int i = 0; i < f->ninstances; i++) etch__instance_release(f->instances[i]);
    etch__exported_free(&f->e);
    pthread_mutex_destroy(&f->lock);
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

static bool begin(etch_imported *f, const char *path) {
    file_code code = f->code == ETCH_CODE_OF_FILE ? CODE_TO_RUN : CODE_LEFT;
    return etch__file_load(path, code, &f->e) && (f->written = etch__program_written(f->e.p)) &&
           etch__instance_first(f);
}

etch_imported *etch_import_with(const char *path, const etch_import_options *options) {
    etch_import_options o;
    if (!path) return etch__null_at(SITE, ETCH_ERR_NULL, "etch_import: expected a path, got NULL");
    if (!options_of(options, &o)) return NULL;
    etch_imported *f = etch__calloc(1, sizeof *f);
    if (!f) return NULL;
    pthread_mutex_init(&f->lock, NULL);
    f->code = o.code, f->cold = o.cold;
    if (begin(f, path)) return f;
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
