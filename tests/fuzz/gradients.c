/* What a program does with gradients: leaves, backward in the body and behind it, hooks, blocks
 * without gradients. Both worlds do the same at the same statement; errors are events, gradients
 * that live on are compared as tensors. */
#include "harness.h"

#include <math.h>
#include <string.h>

/* ---- leaves ---- */

static bool is_real(const etch_tensor *t) { return t && etch_dtype_of(t) <= ETCH_F16; }

void fuzz_require(fuzz_world *w, int n, bool on) {
    if (!w->v[n]) return;
    if (!on && w->setup->creates) etch_zero_grad(w->v[n]);
    if (!etch_requires_grad_(w->v[n], on)) fuzz_see_error(w);
}

static void require_input(const fuzz_world *w, const fuzz_input *in, etch_tensor *t) {
    bool on = fuzz_when(w, in->leaf);
    if (!is_real(t) || (!on && !in->leaf) || in->base_leaf) return;
    if (!on && !etch_is_leaf(t)) return;
    if (!on) fuzz_let_go(w->setup, t);
    etch_requires_grad_(t, on);
}

void fuzz_require_inputs(fuzz_world *w) {
    const fuzz_setup *s = w->setup;
    for (int i = 0; s->grads && i < s->nin; i++) require_input(w, &s->in[i], w->in[i]);
    for (int i = 0; s->grads && i < s->nglobals; i++) require_input(w, &s->global[i], w->global[i]);
}

void fuzz_let_go(const fuzz_setup *s, etch_tensor *t) {
    if (s->creates && t) etch_zero_grad(t);
}

/* ---- running backward ---- */

static etch_grad_options options_of(int how) {
    return (etch_grad_options){.struct_size = sizeof(etch_grad_options),
                               .retain_graph = (how & FUZZ_RETAIN) != 0,
                               .create_graph = (how & FUZZ_CREATE) != 0,
                               .allow_unused = (how & FUZZ_UNUSED) != 0};
}

/* Of an output of several elements; it may share memory with it. */
static etch_tensor *seed_for(etch_tensor *t, int how) {
    if (how & FUZZ_OWN_SEED) return etch_detach(t);
    return etch_ones(etch_dtype_of(t), etch_sizes(t));
}

static etch_status run_once(etch_tensor *t, int how) {
    const etch_grad_options o = options_of(how);
    if (etch_numel(t) < 0) return etch_last_status();
    bool seeded = etch_numel(t) != 1 || how & FUZZ_OWN_SEED;
    etch_tensor *seed = seeded ? seed_for(t, how) : NULL;
    if (seeded && !seed) return etch_last_status();
    if (!seed && !o.retain_graph && !o.create_graph) return etch_backward(t);
    return etch_backward_from(&t, 1, seed ? &seed : NULL, &o);
}

static etch_status run_backer(void *ctx, etch_tensor *const *in, int nin, etch_tensor **out,
                              int nout) {
    const fuzz_world *w = ctx;
    (void)in, (void)nin, (void)out, (void)nout;
    return run_once(w->back_from, w->back_how);
}

static etch_status run_in_function(fuzz_world *w, etch_tensor *t, int how) {
    if (!w->backer)
        w->backer = etch_compile(run_backer, .backend = w->backend, .disable = w->disable, .ctx = w,
                                 .name = "backer");
    w->back_from = t, w->back_how = how;
    return w->backer ? etch_call_n(w->backer, NULL, 0, NULL, 0) : etch_last_status();
}

static etch_status watched(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                           etch_tensor **out, int nout) {
    fuzz_world *w = ctx;
    (void)args, (void)nargs, (void)out, (void)nout;
    for (const char *at = etch_op_name(op); *at; at++)
        w->mode_seen = (w->mode_seen ^ (unsigned char)*at) * 0x100000001b3u;
    return ETCH_DECLINED;
}

static etch_status run_under_mode(fuzz_world *w, etch_tensor *t, int how) {
    etch_status status = ETCH_OK;
    w->mode_seen = 1;
    ETCH_WITH_MODE (w->mode)
        status = how & FUZZ_OTHER_FUNCTION ? run_in_function(w, t, how) : run_once(t, how);
    fuzz_see(w, w->mode_seen);
    return status;
}

static void run_here(fuzz_world *w, etch_tensor *t, int how) {
    etch_status before = etch_last_status();
    etch_status status = how & FUZZ_UNDER_MODE       ? run_under_mode(w, t, how)
                         : how & FUZZ_OTHER_FUNCTION ? run_in_function(w, t, how)
                                                     : run_once(t, how);
    if (status != ETCH_OK) fuzz_see_error(w);
    else fuzz_see_left(w, before);
    fuzz_see_control(w);
}

/* The leaves that the world has, and the gradients that they had before a backward. */
typedef struct had {
    etch_tensor *leaf[2 * FUZZ_MAX_INPUTS], *grad[2 * FUZZ_MAX_INPUTS];
    int n;
} had;

static had before_backward(const fuzz_world *w) {
    had h = {.n = 0};
    for (int i = 0; i < w->setup->nin; i++) h.leaf[h.n++] = w->in[i];
    for (int i = 0; i < w->setup->nglobals; i++) h.leaf[h.n++] = w->global[i];
    for (int i = 0; i < h.n; i++) h.grad[i] = etch_grad_of(h.leaf[i]);
    return h;
}

/* What was there is written in place, what is new lies row-major over memory of its own. */
static void see_strays(fuzz_world *w, const had *h, const etch_tensor *t, int how) {
    for (int i = 0; i < h->n; i++) {
        etch_tensor *g = etch_grad_of(h->leaf[i]);
        bool moved = h->grad[i] && g != h->grad[i] && !(how & FUZZ_CREATE), shared = false;
        if (g && !h->grad[i])
            shared = !etch_is_contiguous(g) || etch_shares_storage(g, h->leaf[i]) ||
                     etch_shares_storage(g, t);
        if (moved || shared) fuzz_see(w, FUZZ_STRAY_GRAD + (uint64_t)i);
    }
}

static void run(fuzz_world *w, etch_tensor *t, int how) {
    const had before = before_backward(w);
    for (int i = 0; i < 1 + ((how & FUZZ_TWICE) != 0) && !w->stopped; i++) {
        if (how & FUZZ_OTHER_THREAD) fuzz_on_thread(w, run_here, t, how);
        else run_here(w, t, how);
    }
    see_strays(w, &before, t, how);
}

void fuzz_backward(fuzz_world *w, int n, int how) {
    if (w->v[n] && etch_numel(w->v[n]) >= 0) run(w, w->v[n], how);
}

static void keep(fuzz_world *w, etch_tensor *t) {
    if (t && w->nkept < FUZZ_MAX_KEPT) w->kept[w->nkept++] = etch_retain(t);
}

void fuzz_grads(fuzz_world *w, int to, int n, int a, int how) {
    etch_tensor *t = w->v[n], *inputs[] = {w->v[a], w->v[0]}, *grads[2] = {NULL, NULL};
    const etch_grad_options o = options_of(how);
    if (!t || !inputs[0] || etch_numel(t) < 0) return;
    int nin = 1 + (inputs[1] && etch_requires_grad(inputs[1]));
    etch_tensor *seed = etch_numel(t) == 1 ? NULL : seed_for(t, how);
    if (!seed && etch_numel(t) != 1) {
        fuzz_see_error(w);
        return;
    }
    etch_status status = etch_grad(&t, 1, inputs, nin, seed ? &seed : NULL, &o, grads);
    fuzz_see(w, (uint64_t)status << 2 | (uint64_t)(grads[0] != NULL) << 1 | (grads[1] != NULL));
    if (status != ETCH_OK) fuzz_see_error(w);
    keep(w, grads[1]);
    if (grads[0]) fuzz_set(w, to, grads[0]);
}

/* ---- gradients that leaves have ---- */

/* A handle of its own over the same memory: what has gradients is not to be written into the
 * leaf's, as the two would keep each other alive. */
void fuzz_grad_of(fuzz_world *w, int to, int n) {
    etch_tensor *g = w->v[n] ? etch_grad_of(w->v[n]) : NULL;
    if (g) fuzz_set(w, to, etch_detach(g));
}

void fuzz_zero_grad(fuzz_world *w, int n) {
    if (w->v[n] && etch_zero_grad(w->v[n]) != ETCH_OK) fuzz_see_error(w);
}

void fuzz_set_grad(fuzz_world *w, int n, int grad) {
    etch_tensor *g = w->v[n] && w->v[grad] ? etch_detach(w->v[grad]) : NULL;
    if (g && etch_set_grad(w->v[n], g) != ETCH_OK) fuzz_see_error(w);
}

void fuzz_retain_grad(fuzz_world *w, int n) {
    if (w->v[n] && etch_retain_grad(w->v[n]) != ETCH_OK) fuzz_see_error(w);
}

void fuzz_update(fuzz_world *w, int n) {
    etch_tensor *g = w->v[n] ? etch_grad_of(w->v[n]) : NULL;
    if (!g) return;
    ETCH_NO_GRAD
        if (!etch_sub_(w->v[n], etch_mul_scalar(g, 0.125))) fuzz_see_error(w);
}

void fuzz_grad_state(fuzz_world *w, int n) {
    const etch_tensor *t = w->v[n];
    if (!t) return;
    fuzz_see(w, (uint64_t)etch_requires_grad(t) | (uint64_t)etch_is_leaf(t) << 1 |
                    (uint64_t)(etch_grad_of(t) != NULL) << 2 | (uint64_t)etch_grad_enabled() << 3);
}

void fuzz_hold(fuzz_world *w, int n) {
    if (w->v[n] && w->nheld < FUZZ_MAX_KEPT) w->held[w->nheld++] = etch_retain(w->v[n]);
}

void fuzz_choose(fuzz_world *w, int to, int n) {
    if (!w->v[n]) return;
    double d = etch_item(etch_sum(w->v[n]));
    uint64_t bits; /* a comparison might trap */
    memcpy(&bits, &d, sizeof bits);
    bool positive = bits - 1 < 0x7ff0000000000000u;
    if (etch_last_status() != ETCH_OK) fuzz_see_error(w);
    else fuzz_set(w, to, etch_mul_scalar(w->v[n], positive ? 2 : -0.5));
}

void fuzz_no_grad(fuzz_world *w, bool begin) {
    if (begin && w->no_grad < 0) w->no_grad = etch_no_grad_begin();
    if (begin || w->no_grad < 0) return;
    etch_no_grad_end(w->no_grad);
    w->no_grad = -1;
}

/* ---- hooks ---- */

/* Fails in the last call but one. */
static etch_tensor *checked(const fuzz_world *w, etch_tensor *g) {
    int64_t left = w->setup->ncalls - 2 - w->call;
    etch_tensor *one = etch_ones(ETCH_I32, ETCH_SHAPE());
    return etch_mul(g, etch_floor_divide_scalar(one, etch_scalar_int(left ? 1 : 0)));
}

static etch_tensor *hooked(void *ctx, etch_tensor *g) {
    const fuzz_hooked *h = ctx;
    fuzz_world *w = h->w;
    fuzz_see(w, 77 + (uint64_t)h->at);
    switch (h->kind) {
    case FUZZ_HOOK_SEE: fuzz_see_tensor(w, g); return NULL;
    case FUZZ_HOOK_TWICE: return etch_mul_scalar(g, 2);
    case FUZZ_HOOK_FAIL:
        if (w->call % 3 == 1) etch_set_error(ETCH_ERR_UNSUPPORTED, "the hook fails as asked");
        return NULL;
    case FUZZ_HOOK_CHECK: return checked(w, g);
    case FUZZ_HOOK_SUM: return etch_sum(g);
    case FUZZ_HOOK_WRITE: return etch_mul_scalar_(g, 2);
    default: return NULL;
    }
}

void fuzz_hook(fuzz_world *w, int n, int kind) {
    if (!w->v[n] || w->nhooks == FUZZ_MAX_KEPT) return;
    fuzz_hooked *h = &w->hook[w->nhooks];
    *h = (fuzz_hooked){w, (fuzz_hook_kind)kind, w->nhooks};
    if (!etch_add_grad_hook(w->v[n], hooked, h)) fuzz_see_error(w);
    else w->nhooks++;
}

/* ---- around the call ---- */

static void each_given(fuzz_world *w, void (*act)(fuzz_world *w, etch_tensor *t)) {
    for (int i = 0; i < w->setup->nin; i++) act(w, w->in[i]);
    for (int i = 0; i < w->setup->nglobals; i++) act(w, w->global[i]);
}

static void drop_grad(fuzz_world *w, etch_tensor *t) {
    if (etch_zero_grad(t) != ETCH_OK) fuzz_see_error(w);
}

/* The sign of a NaN is what arithmetic leaves it, which need not be the same in compiled code;
 * signbit would show it in the next call, so all get one. */
static void step_down(fuzz_world *w, etch_tensor *t) {
    etch_tensor *g = etch_grad_of(t);
    ETCH_NO_GRAD
        if (g && !(etch_sub_(t, etch_mul_scalar(g, 0.125)) &&
                   etch_masked_fill_(t, etch_isnan(t), (double)NAN)))
            fuzz_see_error(w);
}

static int after(const fuzz_world *w) { return (int)w->setup->after[w->variant]; }

void fuzz_before_call(fuzz_world *w) {
    if (after(w) & FUZZ_BEFORE_ZERO) each_given(w, drop_grad);
    if (after(w) & FUZZ_IN_NO_GRAD) fuzz_no_grad(w, true);
}

static void write_input(fuzz_world *w) {
    ETCH_NO_GRAD
        if (!etch_mul_scalar_(w->in[0], 1.5)) fuzz_see_error(w);
}

/* The function's traces are gone before its tapes are run, or all of it. */
static void end_function(fuzz_world *w) {
    if (after(w) & FUZZ_AFTER_RESET) etch_reset(w->f);
    if (!(after(w) & FUZZ_AFTER_FREE) || w->call + 1 < w->setup->ncalls) return;
    etch_function_free(w->f);
    w->f = NULL;
}

static void run_held(fuzz_world *w) {
    while (w->nheld) {
        etch_tensor *t = w->held[--w->nheld];
        run(w, t, after(w) % FUZZ_WAYS & ~FUZZ_CREATE);
        etch_release(t);
        w->held[w->nheld] = NULL;
    }
}

static void run_results(fuzz_world *w) {
    int how = after(w);
    for (int i = 0; i < w->setup->nout; i++) {
        etch_tensor *t = w->fed[i];
        if (!t || !etch_requires_grad(t)) continue;
        for (int k = 0; how & FUZZ_AFTER_GRADS && k < w->setup->nin; k++)
            if (etch_requires_grad(w->in[k])) {
                w->v[0] = t, w->v[1] = w->in[k], w->v[2] = NULL;
                fuzz_grads(w, 2, 0, 1, how | FUZZ_UNUSED);
                if (w->v[2] && how & FUZZ_CREATE) run(w, w->v[2], FUZZ_RETAIN);
            }
        if (how & FUZZ_AFTER_BACKWARD) run(w, t, how % FUZZ_WAYS);
    }
}

void fuzz_after_call(fuzz_world *w) {
    fuzz_no_grad(w, false);
    if (!w->setup->grads) return;
    w->at = 1000;                 /* no statement */
    memset(w->v, 0, sizeof w->v); /* the call's results have gone */
    end_function(w);
    if (after(w) & FUZZ_AFTER_WRITE) write_input(w);
    if (w->status == ETCH_OK) run_results(w);
    if (after(w) & FUZZ_AFTER_HELD || w->call + 1 == w->setup->ncalls) run_held(w);
    if (after(w) & FUZZ_AFTER_UPDATE) each_given(w, step_down);
    memset(w->v, 0, sizeof w->v);
    etch_clear_error();
}

/* ---- the world ---- */

/* Views know their families from the first leaf of the process on. */
void fuzz_gradients_open(fuzz_world *w) {
    w->no_grad = -1;
    if (!w->setup->grads) return;
    w->mode = etch_mode_new(watched, w, .name = "watching");
    ETCH_SCOPE
        etch_requires_grad_(etch_ones(ETCH_F32, ETCH_SHAPE()), true);
}

void fuzz_gradients_close(fuzz_world *w) {
    etch_function_free(w->backer);
    if (w->mode) etch_mode_free(w->mode);
}
