/* Launchers: loop kernels of plans on a device, made, launched, and resolved for graphs. */
#include "backends/cuda/faults.h"
#include "backends/cuda/join.h"
#include "backends/cuda/launcher.h"
#include "backends/cuda/matmul.h"
#include "backends/cuda/tune.h"

typedef struct launch_form {
    cuda_code *code;
    cuda_shape shape;
} launch_form;

/* The kernel, and how it is launched. A second form is made and kept where an argument turns out
 * not to be aligned; a third one where timing at the first launch finds a better layout. */
struct launcher {
    int device;
    cuda_join *join; /* in place of the forms: a kernel with products */
    launch_form form, *_Atomic unaligned, *_Atomic tuned;
    cuda_variant variant;
    atomic_bool untuned; /* the first launch is to time layouts */
    uint32_t wide;       /* arguments that must be aligned for the first variant */
    loop_kernel k;
    int64_t dims[LOOP_MAX_AXES * (LOOP_MAX_ACCESSES + 1)];
};

static void free_form(launch_form *f) {
    if (f) etch__cuda_code_release(f->code);
    etch__free(f);
}

static void free_launcher(launcher *l) {
    if (!l) return;
    etch__cuda_join_free(l->join);
    etch__cuda_code_release(l->form.code);
    free_form(l->unaligned);
    free_form(l->tuned);
    etch__free(l);
}

static bool make_form(launcher *l, cuda_device *d, const lowered *low, uint32_t aligned, bool tune,
                      const char **why) {
    int naxes = low->k.npar + low->k.nred;
    memcpy(l->dims, low->dims, sizeof *l->dims * (size_t)(naxes * (low->k.naccesses + 1)));
    tuned_layout layout = {.variant = etch__cuda_choose(&l->k, l->dims, aligned)};
    layout.variant.tested = low->tested;
    cuda_variant first = layout.variant;
    if (tune && !low->tested)
        l->untuned = !etch__cuda_layout_find(d, &l->k, l->dims, &first, &layout);
    if (l->untuned) layout = (tuned_layout){.variant = first};
    l->form.code = etch__cuda_kernel_code(d, &l->k, &layout.variant, why);
    l->variant = layout.variant;
    l->form.shape = etch__cuda_tuned_shape(&l->k, &layout, l->dims);
    if (l->variant.vector > 1)
        for (int i = 0; i < l->k.naccesses; i++) l->wide |= 1u << i;
    return l->form.code != NULL;
}

static launcher *prepare_one(cuda_device *d, const lowered *low, uint32_t aligned, bool tune,
                             const char **why) {
    launcher *l = etch__calloc(1, sizeof *l);
    if (!l) return NULL;
    l->device = d->index, l->k = low->k;
    if (low->nmatmuls ? (l->join = etch__cuda_join_new(d, low, aligned, why)) != NULL
                      : make_form(l, d, low, aligned, tune, why))
        return l;
    free_launcher(l);
    return NULL;
}

bool etch__cuda_ready(int device, const lowered *low, uint32_t aligned) {
    const char *why;
    cuda_join *j = NULL;
    KEEP_ERROR;
    bool looked = etch__cuda_look(true);
    cuda_device *d = etch__cuda_enter(etch__device_index(device));
    if (d) j = etch__cuda_join_new(d, low, aligned, &why);
    etch__cuda_look(looked);
    etch__cuda_join_free(j);
    return j || !d; /* what is wrong with the device is found again */
}

typedef struct preparation {
    cuda_device *d;
    const kernel_order *o;
    kernel_step *const *steps;
    int *missing; /* those whose code is to be compiled */
} preparation;

static bool prepare_step(const preparation *p, int i, const char **why) {
    const kernel_order *o = p->o;
    bool tune = o->mode == ETCH_MODE_MAX_AUTOTUNE;
    return (p->steps[i]->launcher = prepare_one(p->d, o->low[i], o->aligned[i], tune, why));
}

static void prepare_missing(void *ctx, int i) {
    const preparation *p = ctx;
    const char *why;
    KEEP_ERROR;
    if (etch__cuda_enter(p->d->index)) prepare_step(p, p->missing[i], &why);
}

/* What is there already; then the others, several at once. A failure is left to the caller, who
 * makes that one again. */
static void prepare_at_once(preparation *p) {
    const char *why;
    int count = 0;
    KEEP_ERROR;
    bool looked = etch__cuda_look(true);
    for (int i = 0; i < p->o->n; i++)
        if (!prepare_step(p, i, &why)) p->missing[count++] = i;
    etch__cuda_look(looked);
    if (count > 1) etch__cuda_at_once(count, prepare_missing, p);
}

void etch__cuda_release(const kernel_step *k) { free_launcher(k->launcher); }

bool etch__cuda_prepare(const kernel_order *o, kernel_step *const *steps, const char **why) {
    preparation p = {etch__cuda_enter(etch__device_index(o->device)), o, steps, NULL};
    bool ok = p.d != NULL;
    *why = "";
    if (ok && o->n > 1 && (p.missing = etch__quiet_malloc((size_t)o->n * sizeof *p.missing)))
        prepare_at_once(&p);
    etch__free(p.missing);
    for (int i = 0; ok && i < o->n; i++) ok = steps[i]->launcher || prepare_step(&p, i, why);
    for (int i = 0; !ok && i < o->n; i++) etch__cuda_release(steps[i]), steps[i]->launcher = NULL;
    if (ok) etch__counters.kernels += o->n;
    return ok;
}

/* The form of this layout, published in the slot; another thread may have been first. */
static etch_status add_form(launcher *l, launch_form *_Atomic *slot, const tuned_layout *layout) {
    const char *why = "";
    cuda_device *d = etch__cuda_enter(l->device);
    launch_form *f = d ? etch__calloc(1, sizeof *f) : NULL, *none = NULL;
    tuned_layout given = *layout;
    if (f) f->code = etch__cuda_kernel_code(d, &l->k, &given.variant, &why);
    if (!f || !f->code) {
        etch__free(f);
        return etch__cuda_no_code(why);
    }
    f->shape = etch__cuda_tuned_shape(&l->k, &given, l->dims);
    if (!atomic_compare_exchange_strong(slot, &none, f)) free_form(f);
    return ETCH_OK;
}

etch_status etch__cuda_resolve(launcher *l, void *const *args, const uint64_t *cells,
                               cuda_launch *out) {
    if (l->join) return etch__cuda_join_resolve(l->join, args, cells, out);
    const launch_form *f = l->tuned ? l->tuned : &l->form;
    if (unlikely(!etch__cuda_aligned(l->wide, args))) {
        tuned_layout narrow = {.variant = l->variant};
        narrow.variant.vector = 1, narrow.variant.hold = 0, narrow.variant.even = EVEN_NOT;
        narrow.variant.warps = 0;
        if (!l->unaligned && add_form(l, &l->unaligned, &narrow) != ETCH_OK)
            return etch__tls.status;
        f = l->unaligned;
    }
    out->shape = &f->shape;
    out->function = etch__cuda_function(f->code);
    out->bytes = etch__cuda_args_size(&l->k);
    etch__cuda_args_fill(&l->k, args, l->dims, cells, out->parameter);
    if (unlikely(l->variant.tested)) {
        out->parameter[out->bytes / 8] = (uint64_t)(uintptr_t)etch__cuda_checks_word();
        out->bytes += 8;
    }
    return ETCH_OK;
}

/* One thread times; others go on with what there is. Failing leaves that too. */
static void tune(launcher *l, cuda_stream *s, void *const *args, const uint64_t *cells) {
    tuned_layout best;
    if (!etch__cuda_aligned(l->wide, args) || !etch__cuda_can_time(s)) return;
    if (!atomic_exchange(&l->untuned, false)) return;
    if (!etch__cuda_layout_tune(s, &l->k, l->dims, &l->variant, args, cells, &best)) return;
    KEEP_ERROR;
    add_form(l, &l->tuned, &best);
}

etch_status etch__cuda_run(const kernel_step *k, void *const *args, const uint64_t *cells) {
    launcher *l = k->launcher;
    cuda_launch to;
    cuda_stream *s = etch__cuda_stream(l->device);
    if (unlikely(s && l->untuned)) tune(l, s, args, cells);
    if (unlikely(!s || etch__cuda_resolve(l, args, cells, &to) != ETCH_OK)) return etch__tls.status;
    return etch__cuda_launch(s, to.function, l->k.name, to.shape->grid, to.shape->block,
                             to.shape->shared, to.parameter);
}
