/* Instances: the plans of an imported function, one for each set of sizes. The first is made when
 * the function is imported; those of further sizes at their first call, from kernels that the file
 * has. Where it lacks one that some size asks for, that size runs by the operators' own kernels,
 * which give the same bits. */
#include "core/dispatch/dispatch.h"
#include "export/imported.h"
#include "export/warm.h"
#include "jit/ir/target.h"
#include "jit/store/cache.h"

void etch__instance_release(instance *x) {
    if (!x || atomic_fetch_sub(&x->refs, 1) != 1) return;
    etch__plan_release(x->plan);
    etch__plan_release(x->by_nodes);
    if (x->own) etch__program_free(x->p);
    etch__free(x);
}

/* ---- plans ---- */

static bool no_compiler(const program *p) {
    const jit_target *t = etch__target(etch__program_device(p));
    if (t && !t->absent) return false;
    etch__error_at(NULL, ETCH_ERR_UNSUPPORTED,
                   "etch_import: %s: ETCH_CODE_COMPILE, but %s; ETCH_CODE_EAGER runs without",
                   p->g->name, t ? t->absent : "there is no compiler for its device");
    return true;
}

static etch_status compiled_plan(const etch_imported *f, instance *x, bool first) {
    const backend *native = etch__backend_find("native");
    backend_options options = {
        .mode = f->e.p->mode, .numerics = f->e.p->numerics, .instance = !first, .strict = true};
    bool given = f->code == ETCH_CODE_OF_FILE;
    pack_use use = {.pack = f->e.pack, .collects = !given && f->e.pack, .only = given};
    pack_use before = etch__pack_enter(use);
    empty_frame frame = etch__push_frame();
    etch__frame_mode(&frame, 0);
    etch_status status =
        native ? etch__backend_compile(native, x->p->g, &options, &x->plan) : etch__tls.status;
    etch__pop_frame(&frame);
    etch__pack_leave(before);
    return status;
}

static void warn_uncompiled(etch_imported *f) {
    if (atomic_exchange(&f->warned, true)) return;
    etch__warn("%s: some sizes run without compiled code: %s", f->e.p->g->name, etch_last_error());
}

static bool make_plans(etch_imported *f, instance *x, bool first) {
    if (etch__eager_plan(x->p->g, &x->by_nodes) != ETCH_OK) return false;
    bool eager = f->code == ETCH_CODE_EAGER;
    saved_error before;
    etch__error_save(&before);
    etch_status status = eager ? ETCH_OK : compiled_plan(f, x, first);
    if (status == ETCH_ERR_COMPILE && !first) {
        warn_uncompiled(f);
        etch__error_restore(&before);
        eager = true, status = ETCH_OK;
    }
    if (eager) etch__plan_retain(x->plan = x->by_nodes);
    return status == ETCH_OK;
}

/* With the file's code for a device, which operators' own kernels ask for at their first call. */
static void warm_up(const etch_imported *f, const instance *x) {
    bool given = f->code == ETCH_CODE_OF_FILE;
    pack_use before = etch__pack_enter((pack_use){.pack = given ? f->e.pack : NULL});
    etch__warm_up(x->p, x->plan, f->e.captured);
    etch__pack_leave(before);
}

/* first: with the sizes of the file. */
static instance *make(etch_imported *f, const int64_t *sizes, bool first) {
    instance *x = etch__calloc(1, sizeof *x);
    if (!x) return NULL;
    atomic_init(&x->refs, 1);
    x->own = !first;
    if (f->e.p->nsymbols) memcpy(x->sizes, sizes, (size_t)f->e.p->nsymbols * sizeof *sizes);
    x->p = first ? f->e.p : etch__program_resize(f->e.p, sizes);
    if (x->p && make_plans(f, x, first)) {
        if (first && !f->cold) warm_up(f, x);
        return x;
    }
    etch__instance_release(x);
    return NULL;
}

/* ---- the list ---- */

static instance *find(const etch_imported *f, const int64_t *sizes) {
    size_t bytes = (size_t)f->e.p->nsymbols * sizeof *sizes;
    for (int i = 0; i < f->ninstances; i++) {
        instance *x = f->instances[i];
        if (bytes && memcmp(x->sizes, sizes, bytes) != 0) continue;
        atomic_fetch_add(&x->refs, 1);
        return x;
    }
    return NULL;
}

/* Two threads may have made the same: both serve. The one that the list lets go of is returned. */
static instance *add(etch_imported *f, instance *x) {
    instance *gone = NULL;
    atomic_fetch_add(&x->refs, 1);
    if (f->ninstances < INSTANCES_MAX) {
        f->instances[f->ninstances++] = x;
        return NULL;
    }
    gone = f->instances[f->oldest];
    f->instances[f->oldest] = x;
    f->oldest = (f->oldest + 1) % INSTANCES_MAX;
    return gone;
}

bool etch__instance_first(etch_imported *f) {
    int64_t sizes[SYMBOLS_MAX] = {0};
    for (int s = 0; s < f->e.p->nsymbols; s++) sizes[s] = f->e.p->symbols[s].size;
    if (f->code == ETCH_CODE_COMPILE) {
        if (no_compiler(f->e.p) || !(f->e.pack = etch__pack_new())) return false;
        etch__cache_identity(f->e.identity, sizeof f->e.identity);
    }
    instance *x = make(f, sizes, true);
    if (x) f->instances[f->ninstances++] = x;
    return x != NULL;
}

instance *etch__instance_get(etch_imported *f, const int64_t *sizes) {
    pthread_mutex_lock(&f->lock);
    instance *x = find(f, sizes), *gone;
    pthread_mutex_unlock(&f->lock);
    if (x || !(x = make(f, sizes, false))) return x;
    pthread_mutex_lock(&f->lock);
    gone = add(f, x);
    pthread_mutex_unlock(&f->lock);
    etch__instance_release(gone);
    return x;
}
