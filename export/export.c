/* etch_export: recorded on shapes, compiled with its code collected, written. */
#include <etch/export.h>

#include "core/dispatch/mode.h"
#include "core/tensor/device.h"
#include "export/file.h"
#include "export/probe.h"
#include "export/warm.h"
#include "jit/ir/target.h"
#include "jit/store/cache.h"
#include "tracer/run/run.h"

#define SITE __builtin_return_address(0)

/* ---- what can be exported ---- */

static bool arguments_ok(etch_tensor *const *in, int nin, const void *site) {
    if (nin < 0 || nin > PROGRAM_ARGS_MAX || (nin && !in))
        return etch__false_at(site, ETCH_ERR_INVALID_ARGUMENT,
                              "etch_export: expected 0 to %d arguments, got %d", PROGRAM_ARGS_MAX,
                              nin);
    for (int i = 0; i < nin; i++) {
        if (!etch__handle_ok(in[i], "etch_export", "an argument", site)) return false;
        if (in[i] != ETCH_NONE && !in[i]->storage &&
            etch__materialise(in[i], "etch_export", REASON_BREAK_SAVE, site) != ETCH_OK)
            return false;
    }
    return true;
}

/* Backends of the user's run graphs in ways that no file can hold. */
static bool backend_ok(const etch_function *f, const void *site) {
    static const char *const own[] = {"native", "eager", "aot_eager"};
    for (int i = 0; i < COUNT_OF(own); i++)
        if (!strcmp(f->backend->name, own[i])) return true;
    return etch__false_at(site, ETCH_ERR_UNSUPPORTED,
                          "etch_export: %s: its backend \"%s\" is no part of the library", f->name,
                          f->backend->name);
}

static bool function_ok(const etch_function *f, int nin, const void *site) {
    int takes = f->body.kind == FN_N ? nin : (int)f->body.kind;
    if (f->wrap)
        return etch__false_at(
            site, ETCH_ERR_UNSUPPORTED,
            "etch_export: expected a function of etch_compile, got one that stays "
            "out of graphs");
    if (takes != nin)
        return etch__false_at(site, ETCH_ERR_INVALID_ARGUMENT,
                              "etch_export: %s: expected %d arguments, got %d", f->name, takes,
                              nin);
    return backend_ok(f, site);
}

static bool moment_ok(const etch_function *f, const void *site) {
    if (etch__current_run())
        return etch__false_at(site, ETCH_ERR_INVALID_ARGUMENT,
                              "etch_export: %s: expected a call outside of compiled functions",
                              f->name);
    if (etch__tls.mode_level && etch__blocking_mode())
        return etch__false_at(site, ETCH_ERR_MODE_ACTIVE,
                              "etch_export: %s: an interceptor mode is active; leave it first",
                              f->name);
    if (etch__may_compile()) return true;
    return etch__false_at(site, ETCH_ERR_RECOMPILE, "etch_export: %s: the stance forbids compiling",
                          f->name);
}

static etch_export_options settled(const etch_export_options *given) {
    etch_export_options o = {.struct_size = sizeof o};
    size_t n = given ? given->struct_size : 0;
    if (given) memcpy(&o, given, n && n < sizeof o ? n : sizeof o);
    return o;
}

/* ---- code ---- */

static bool target_ok(const program *p) {
    const jit_target *t = etch__target(etch__program_device(p));
    const char *why = t ? t->absent : "there is no compiler for its device";
    if (!why) return true;
    return etch__false_at(NULL, ETCH_ERR_UNSUPPORTED,
                          "etch_export: %s: %s; with .no_code the file has graph and weights only",
                          p->g->name, why);
}

enum { WARM_BYTES = 256 << 20 };

/* Of all values that the program makes or reads. */
static bool is_small(const program *p) {
    double bytes = 0;
    for (int v = 0; v < p->g->nvalues; v++) {
        const tensor_meta *m = &p->g->values[v].meta;
        bytes += (double)etch__meta_numel(m) * (double)etch_dtype_size(m->dtype);
    }
    return bytes <= WARM_BYTES;
}

/* On a device the operators' own kernels are code as well, which is made at their first call. */
static bool compile(const exported *e, const program *p, bool instance) {
    const backend *native = etch__backend_find("native");
    backend_options options = {
        .mode = p->mode, .numerics = p->numerics, .instance = instance, .strict = true};
    plan *made = NULL;
    bool ok = native && etch__backend_compile(native, p->g, &options, &made) == ETCH_OK;
    bool runs = ok && etch__program_device(p) && (!instance || is_small(p));
    if (runs) etch__warm_up(p, made, e->captured);
    etch__plan_release(made);
    return ok;
}

/* Where sizes are run-time, with some of them, too: one may ask for a kernel of its own. */
static bool compile_all(const exported *e) {
    const program *p = e->p;
    int64_t sizes[SYMBOLS_MAX];
    bool ok = compile(e, p, false);
    for (int k = 1; ok && etch__sizes_with_code(p, k, sizes); k++) {
        program *other = etch__program_resize(p, sizes);
        ok = other && compile(e, other, true);
        etch__program_free(other);
    }
    return ok;
}

/* Compiles the program as it will be when it is imported, and keeps what code that takes. */
static bool collect_code(exported *e) {
    if (!target_ok(e->p) || !(e->pack = etch__pack_new())) return false;
    pack_use use = {.pack = e->pack, .collects = true, .sizes = e->p->nsymbols > 0};
    pack_use before = etch__pack_enter(use);
    empty_frame frame = etch__push_frame();
    etch__frame_mode(&frame, 0);
    bool ok = compile_all(e);
    etch__pop_frame(&frame);
    etch__pack_leave(before);
    etch__cache_identity(e->identity, sizeof e->identity);
    if (ok && etch__pack_whole(e->pack)) return true;
    if (ok) etch__error(ETCH_ERR_OUT_OF_MEMORY, "out of memory");
    return false;
}

/* ---- all of it ---- */

/* The program and what it captures pass from the recording to e. */
static bool take_recorded(recorded *r, exported *e) {
    int n = r->p->ncaptures, first = etch__first_capture(r->p);
    e->captured = etch__calloc((size_t)n + 1, sizeof *e->captured);
    if (!e->captured) return false;
    for (int i = 0; i < n; i++) e->captured[i] = etch_retain(r->tensors[first + i]);
    e->p = r->p;
    for (int v = 0; v < e->p->g->ninputs; v++) etch_release(r->tensors[v]);
    etch__free(r->tensors), r->tensors = NULL;
    r->p = NULL;
    return true;
}

/* An argument and a captured tensor that share memory do so no more in the file. */
static bool apart(const recorded *r) {
    int first = etch__first_capture(r->p);
    for (int v = first; r->p->writes && v < r->p->g->ninputs; v++)
        for (int a = 0; a < first; a++)
            if (r->tensors[v]->storage == r->tensors[a]->storage)
                return etch__false_at(NULL, ETCH_ERR_UNSUPPORTED,
                                      "etch_export: %s: argument %d shares its storage with a "
                                      "captured tensor, and storages are written: pass both as "
                                      "arguments",
                                      r->p->g->name, a);
    return true;
}

static bool export_function(etch_function *f, etch_tensor *const *in, int nin, const char *path,
                            const etch_export_options *o) {
    recorded r = {NULL, NULL, NULL};
    exported e = {0};
    int nout = f->body.kind != FN_N || !o->nout ? 1 : o->nout < 0 ? 0 : o->nout;
    bool ok = etch__record(f, in, nin, nout, &r) && apart(&r) &&
              etch__probe_sizes(f, in, nin, nout, &r) && take_recorded(&r, &e) &&
              etch__name_captures(&e, o) && (o->no_code || collect_code(&e)) &&
              etch__file_save(path, &e) == ETCH_OK;
    etch__exported_free(&e);
    etch__recorded_free(&r);
    return ok;
}

etch_status etch_export_with(etch_function *f, etch_tensor *const *in, int nin, const char *path,
                             const etch_export_options *options) {
    const void *site = SITE;
    etch_export_options o = settled(options);
    if (!f || !path || (o.nnames && !o.names))
        return etch__error_at(site, ETCH_ERR_NULL,
                              "etch_export: expected a function, a path and names, got NULL");
    bool ok = moment_ok(f, site) && function_ok(f, nin, site) && arguments_ok(in, nin, site) &&
              export_function(f, in, nin, path, &o);
    return ok ? ETCH_OK : etch__tls.status;
}
