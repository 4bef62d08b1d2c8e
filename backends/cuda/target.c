/* Loop kernels on a device: the launchers of native plans. */
#include "backends/cuda/faults.h"
#include "backends/cuda/join.h"
#include "backends/cuda/launch.h"
#include "backends/cuda/product.h"
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

typedef struct source_ctx {
    const loop_kernel *k;
    const cuda_variant *v;
} source_ctx;

static char *source_of(const void *ctx) {
    const source_ctx *c = ctx;
    return etch__cuda_source(c->k, c->v);
}

enum { KERNEL_BYTES = 8192 };

cuda_code *etch__cuda_kernel_code(cuda_device *d, const loop_kernel *k, const cuda_variant *v,
                                  const char **why) {
    uint8_t key[KERNEL_BYTES + sizeof *v];
    char symbol[CUDA_SYMBOL_MAX];
    size_t n = etch__loop_serialise(k, key, KERNEL_BYTES);
    if (n > KERNEL_BYTES) {
        *why = "a kernel is too large";
        return NULL;
    }
    memcpy(key + n, v, sizeof *v);
    /* The name is not among the kernel's bytes: equal kernels of other names share code. */
    loop_kernel plain = *k;
    snprintf(plain.name, sizeof plain.name, "kernel");
    etch__cuda_symbol(&plain, symbol);
    source_ctx ctx = {&plain, v};
    return etch__cuda_code(d, key, n + sizeof *v, symbol, source_of, &ctx, why);
}

static void free_form(launch_form *f) {
    if (f) etch__cuda_code_release(f->code);
    etch__free(f);
}

static void release(launcher *l) {
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
    l->variant = layout.variant;
    l->form.shape = etch__cuda_tuned_shape(&l->k, &layout, l->dims);
    if (l->variant.vector > 1)
        for (int i = 0; i < l->k.naccesses; i++) l->wide |= 1u << i;
    return (l->form.code = etch__cuda_kernel_code(d, &l->k, &l->variant, why)) != NULL;
}

static launcher *prepare_one(cuda_device *d, const lowered *low, uint32_t aligned, bool tune,
                             const char **why) {
    launcher *l = etch__calloc(1, sizeof *l);
    if (!l) return NULL;
    l->device = d->index, l->k = low->k;
    if (low->nproducts ? (l->join = etch__cuda_join_new(d, low, aligned, why)) != NULL
                       : make_form(l, d, low, aligned, tune, why))
        return l;
    release(l);
    return NULL;
}

static bool ready(int device, const lowered *low, uint32_t aligned) {
    const char *why;
    saved_error before;
    cuda_join *j = NULL;
    etch__error_save(&before);
    bool looked = etch__cuda_look(true);
    cuda_device *d = etch__cuda_enter(etch__device_index(device));
    if (d) j = etch__cuda_join_new(d, low, aligned, &why);
    etch__cuda_look(looked);
    etch__error_restore(&before);
    etch__cuda_join_free(j);
    return j || !d; /* what is wrong with the device is found again */
}

typedef struct preparation {
    cuda_device *d;
    const lowered *const *low;
    const uint32_t *aligned;
    bool tune;
    launcher **out;
    int *missing; /* those whose code is to be compiled */
} preparation;

static void prepare_missing(void *ctx, int i) {
    const preparation *p = ctx;
    const char *why;
    saved_error before;
    int k = p->missing[i];
    etch__error_save(&before);
    if (etch__cuda_enter(p->d->index))
        p->out[k] = prepare_one(p->d, p->low[k], p->aligned[k], p->tune, &why);
    etch__error_restore(&before);
}

/* What is there already; then the others, several at once. A failure is left to the caller, who
 * makes that one again. */
static void prepare_at_once(preparation *p, int n) {
    const char *why;
    int count = 0;
    saved_error before;
    etch__error_save(&before);
    bool looked = etch__cuda_look(true);
    for (int i = 0; i < n; i++)
        if (!(p->out[i] = prepare_one(p->d, p->low[i], p->aligned[i], p->tune, &why)))
            p->missing[count++] = i;
    etch__cuda_look(looked);
    etch__error_restore(&before);
    if (count > 1) etch__cuda_at_once(count, prepare_missing, p);
}

static bool prepare(int device, const lowered *const *low, const uint32_t *aligned, int n,
                    etch_mode_kind mode, launcher **out, const char **why) {
    preparation p = {.low = low, .aligned = aligned, .out = out};
    p.tune = mode == ETCH_MODE_MAX_AUTOTUNE;
    bool ok = (p.d = etch__cuda_enter(etch__device_index(device))) != NULL;
    *why = "";
    for (int i = 0; i < n; i++) out[i] = NULL;
    if (ok && n > 1 && (p.missing = etch__quiet_malloc((size_t)n * sizeof *p.missing)))
        prepare_at_once(&p, n);
    etch__free(p.missing);
    for (int i = 0; ok && i < n; i++)
        ok = out[i] || (out[i] = prepare_one(p.d, low[i], aligned[i], p.tune, why));
    for (int i = 0; !ok && i < n; i++) release(out[i]), out[i] = NULL;
    if (ok) etch__counters.kernels += n;
    return ok;
}

/* The form of this layout, published in the slot; another thread may have been first. */
static etch_status add_form(launcher *l, launch_form *_Atomic *slot, const tuned_layout *layout) {
    const char *why = "";
    cuda_device *d = etch__cuda_enter(l->device);
    launch_form *f = d ? etch__calloc(1, sizeof *f) : NULL, *none = NULL;
    if (f) f->code = etch__cuda_kernel_code(d, &l->k, &layout->variant, &why);
    if (!f || !f->code) {
        etch__free(f);
        return etch__cuda_no_code(why);
    }
    f->shape = etch__cuda_tuned_shape(&l->k, layout, l->dims);
    if (!atomic_compare_exchange_strong(slot, &none, f)) free_form(f);
    return ETCH_OK;
}

static bool all_aligned(const launcher *l, void *const *args) {
    uintptr_t bits = 0;
    for (uint32_t wide = l->wide; wide; wide &= wide - 1)
        bits |= (uintptr_t)args[__builtin_ctz(wide)];
    return bits % 16 == 0;
}

etch_status etch__cuda_resolve(launcher *l, void *const *args, const uint64_t *cells,
                               cuda_launch *out) {
    if (l->join) return etch__cuda_join_resolve(l->join, args, cells, out);
    const launch_form *f = l->tuned ? l->tuned : &l->form;
    if (unlikely(!all_aligned(l, args))) {
        tuned_layout narrow = {.variant = l->variant};
        narrow.variant.vector = 1, narrow.variant.hold = 0, narrow.variant.even = EVEN_NOT;
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
    if (!all_aligned(l, args) || !etch__cuda_can_time(s)) return;
    if (!atomic_exchange(&l->untuned, false)) return;
    if (!etch__cuda_layout_tune(s, &l->k, l->dims, &l->variant, args, cells, &best)) return;
    saved_error before;
    etch__error_save(&before);
    add_form(l, &l->tuned, &best);
    etch__error_restore(&before);
}

static etch_status launch(launcher *l, void *const *args, const uint64_t *cells) {
    cuda_launch to;
    cuda_stream *s = etch__cuda_stream(l->device);
    if (unlikely(s && l->untuned)) tune(l, s, args, cells);
    if (unlikely(!s || etch__cuda_resolve(l, args, cells, &to) != ETCH_OK)) return etch__tls.status;
    return etch__cuda_launch(s, to.function, l->k.name, to.shape->grid, to.shape->block,
                             to.shape->shared, to.parameter);
}

static etch_status use(int device, etch_storage *storage) {
    int index = etch__device_index(device);
    cuda_stream *s = NULL;
    if (likely(etch__cuda_may_issue(index, "a compiled function", NULL) == ETCH_OK))
        s = etch__cuda_stream(index);
    return s ? etch__cuda_use(s, storage) : etch__tls.status;
}

static const jit_target target = {
    .whole_new = etch__cuda_whole_new,
    .whole_free = etch__cuda_whole_free,
    .whole_launch = etch__cuda_whole_launch,
    .joins = etch__cuda_joins,
    .ready = ready,
    .prepare = prepare,
    .release = release,
    .launch = launch,
    .product = etch__cuda_product,
    .can_record = etch__cuda_issues,
    .graph_new = etch__cuda_graph_new,
    .graph_free = etch__cuda_graph_free,
    .graph_begin = etch__cuda_graph_begin,
    .graph_end = etch__cuda_graph_end,
    .graph_fits = etch__cuda_graph_fits,
    .graph_kernel = etch__cuda_graph_kernel,
    .graph_call_begin = etch__cuda_graph_call_begin,
    .graph_call_end = etch__cuda_graph_call_end,
    .graph_launch = etch__cuda_graph_launch,
    .checks_open = etch__cuda_checks_open,
    .checks_close = etch__cuda_checks_close,
    .issued = etch__cuda_issued,
    .use = use,
};

__attribute__((constructor)) static void register_target(void) { etch__target_register(&target); }
