/* What a body has done past its own operators: by functions that compiled code does not look into,
 * by other threads, by kernels and free functions, through pointers of before a flush; and the
 * floating-point state that it sets. Both worlds do the same at the same statement. */
#include "harness.h"

#include <immintrin.h>
#include <pthread.h>
#include <string.h>

/* The world whose statement is running: kernels and free functions have no other way to it. */
static fuzz_world *acting;

/* ---- actions ---- */

/* One element through a pointer; wherever raw memory is not used only the pointer is asked for. */
static void poke(fuzz_world *w, etch_tensor *x, bool write) {
    if (etch_numel(x) < 1) return;
    void *p = write ? etch_data_mut(x) : (void *)(uintptr_t)etch_data(x);
    if (!p) fuzz_see_error(w);
    else if (w->no_raw || w->overlaid) return;
    else if (write) fuzz_write_element(p, etch_dtype_of(x), 40 + w->call + w->actions);
    else fuzz_see(w, fuzz_element_bits(p, etch_dtype_of(x)));
}

static etch_tensor *act_on(fuzz_world *w, fuzz_action action, etch_tensor *x) {
    switch (action) {
    case FUZZ_WRITE:
    case FUZZ_WRITE_READ:
    case FUZZ_WRITE_FAIL: x = etch_mul_scalar_(x, 3); break;
    case FUZZ_FLUSH_WRITE: fuzz_flush(w); return etch_fill_(x, etch_scalar_int(2 + w->call));
    case FUZZ_POKE:
    case FUZZ_POKE_END: poke(w, x, true); break;
    case FUZZ_PEEK: poke(w, x, false); break;
    default: return etch_add_scalar(x, 1);
    }
    if (x && action == FUZZ_POKE_END) etch_data_end(x);
    if (x && action == FUZZ_WRITE_READ) fuzz_see_tensor(w, x);
    if (!w->in_kernel) fuzz_see_control(w);
    return x;
}

static etch_status run_actor(void *ctx, etch_tensor *const *in, int nin, etch_tensor **out,
                             int nout) {
    const fuzz_actor *a = ctx;
    (void)nin, (void)nout;
    out[0] = act_on(a->w, a->action, in[0]);
    if (!out[0]) return etch_last_status();
    if (a->action != FUZZ_WRITE_FAIL) return ETCH_OK;
    return etch_set_error(ETCH_ERR_UNSUPPORTED, "the action fails as asked");
}

static etch_tensor *call_actor(fuzz_world *w, int how, etch_tensor *x) {
    fuzz_actor *a = &w->actor[how % FUZZ_ACTIONS];
    bool plain = how / FUZZ_ACTIONS / FUZZ_PLACES;
    if (plain) return act_on(w, (fuzz_action)(how % FUZZ_ACTIONS), x);
    a->w = w, a->action = (fuzz_action)(how % FUZZ_ACTIONS);
    if (!a->f)
        a->f = etch_compile(run_actor, .backend = w->backend, .disable = w->disable, .ctx = a,
                            .name = "actor");
    return a->f ? etch_call(a->f, x) : NULL;
}

/* ---- places ---- */

static etch_status run_off(void *ctx, etch_tensor *const *in, int nin, etch_tensor **out,
                           int nout) {
    fuzz_world *w = ctx;
    (void)nin, (void)nout;
    out[0] = call_actor(w, w->acting, in[0]);
    return out[0] ? ETCH_OK : etch_last_status();
}

static etch_tensor *act_in_disabled(fuzz_world *w, int how, etch_tensor *x) {
    w->acting = how;
    if (!w->off) w->off = etch_compile(run_off, .backend = w->backend, .disable = true, .ctx = w);
    return w->off ? etch_call(w->off, x) : NULL;
}

/* Its results die on the thread, its errors are the caller's: that of the scope, too, for which
 * there may be no memory, or which has begun without. */
typedef struct job {
    fuzz_world *w;
    fuzz_work work;
    etch_tensor *t;
    int how;
} job;

static void *run_job(void *arg) {
    const job *j = arg;
    bool begun = false;
    ETCH_ON(j->w->device)
    ETCH_SCOPE {
        begun = true;
        fuzz_see_left(j->w, ETCH_OK);
        j->work(j->w, j->t, j->how);
        etch_clear_error();
    }
    if (!begun) fuzz_see_error(j->w);
    return NULL;
}

void fuzz_on_thread(fuzz_world *w, fuzz_work work, etch_tensor *t, int how) {
    pthread_t thread;
    job j = {w, work, t, how};
    fuzz_flush(w);
    if (!pthread_create(&thread, NULL, run_job, &j)) pthread_join(thread, NULL);
}

static void act(fuzz_world *w, etch_tensor *x, int how) {
    if (!call_actor(w, how, x)) fuzz_see_error(w);
}

static void read_there(fuzz_world *w, etch_tensor *x, int how) {
    (void)how;
    fuzz_see_tensor(w, x);
}

static etch_tensor *target; /* of the kernel, of the free function */

static void *target_memory; /* the caller's, if the target is wrapped */

static void act_on_target(void) {
    fuzz_world *w = acting;
    w->in_kernel = true;
    ETCH_SCOPE {
        etch_tensor *t = call_actor(w, w->acting, target);
        if (!t) fuzz_see_error(w);
        else if (w->acting % FUZZ_ACTIONS == FUZZ_COMPUTE) fuzz_see_tensor(w, t);
    }
    w->in_kernel = false;
}

static etch_status copy_to(const etch_tensor *from, etch_tensor *to) {
    return etch_copy_(to, (etch_tensor *)(uintptr_t)from) ? ETCH_OK : etch_last_status();
}

static etch_status acting_kernel(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                 etch_tensor *const *out, int nout) {
    (void)ctx, (void)op, (void)nargs, (void)nout;
    /* What a kernel with effects writes into memory of the caller's, asking nobody. */
    bool past = target_memory && acting->acting % FUZZ_ACTIONS == FUZZ_POKE;
    if (past) fuzz_write_element(target_memory, etch_dtype_of(target), 60 + acting->call);
    else act_on_target();
    return copy_to(args[0].tensor, out[0]);
}

static etch_status same_as_first(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                 etch_tensor_spec *out, int nout) {
    (void)ctx, (void)op, (void)nargs, (void)nout;
    out[0] = (etch_tensor_spec){etch_dtype_of(args[0].tensor), etch_sizes(args[0].tensor)};
    return ETCH_OK;
}

/* The first half becomes zeros, whether it then fails or not. */
static etch_status spoil(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                         etch_tensor *const *out, int nout) {
    (void)ctx, (void)op, (void)nargs, (void)nout;
    int64_t n = etch_numel(out[0]);
    size_t size = etch_dtype_size(etch_dtype_of(out[0]));
    char *data = n > 0 ? etch_data_mut(out[0]) : NULL;
    for (int64_t i = 0; i < (n + 1) / 2; i++) memset(fuzz_element(out[0], data, i), 0, size);
    if (args[1].scalar.i) return ETCH_OK;
    return etch_set_error(ETCH_ERR_USER, "fuzz::spoil_: fails as asked");
}

static etch_status remember(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                            etch_tensor *const *out, int nout) {
    (void)ctx, (void)op, (void)nargs, (void)nout;
    etch_tensor **slot = &acting->remembered[args[1].i];
    etch_release(*slot);
    *slot = etch_retain(args[0].tensor);
    return copy_to(args[0].tensor, out[0]);
}

typedef enum foreign_op { OP_ACT, OP_REVERSE, OP_SPOIL, OP_REMEMBER, FOREIGN_OPS } foreign_op;

static const struct {
    const char *schema;
    etch_op_definition definition;
} table[FOREIGN_OPS] = {
    [OP_ACT] = {"fuzz::act(Tensor a) -> Tensor",
                {sizeof(etch_op_definition), acting_kernel, same_as_first, .effects = true}},
    [OP_REVERSE] = {"fuzz::effects_reverse_(Tensor(a!) self) -> Tensor(a!)",
                    {sizeof(etch_op_definition), fuzz_reverse, .effects = true}},
    [OP_SPOIL] = {"fuzz::spoil_(Tensor(a!) self, Scalar at) -> Tensor(a!)",
                  {sizeof(etch_op_definition), spoil}},
    [OP_REMEMBER] = {"fuzz::remember(Tensor a, int slot) -> Tensor",
                     {sizeof(etch_op_definition), remember, same_as_first}},
};

static const etch_op *ops[FOREIGN_OPS];

void fuzz_foreign_open(void) {
    for (int i = 0; i < FOREIGN_OPS && !ops[i]; i++)
        ops[i] = etch_op_register(table[i].schema, &table[i].definition);
}

static void call_op(fuzz_world *w, int to, foreign_op which, etch_tensor *a, etch_value second) {
    etch_tensor *out = NULL;
    etch_value args[] = {{NULL, ETCH_VALUE_TENSOR, {a}}, second};
    etch_op_call(ops[which], args, second.tag == ETCH_VALUE_NONE ? 1 : 2, &out, 1);
    fuzz_set(w, to, out);
}

static const etch_value nothing = {.tag = ETCH_VALUE_NONE};

static void act_in_kernel(fuzz_world *w, int to, int how, int n) {
    bool is_wrapped = n < w->setup->nin && w->wrapped[n];
    w->acting = how, target = w->v[n];
    target_memory = is_wrapped ? w->old[n] : NULL;
    call_op(w, to, OP_ACT, etch_zeros(ETCH_F32, ETCH_SHAPE(2)), nothing);
}

static void free_fn(void *ctx) {
    (void)ctx;
    act_on_target();
}

static void act_in_free(fuzz_world *w, int how, etch_tensor *x) {
    static float memory[1];
    etch_tensor *t = NULL;
    w->acting = how, target = x;
    ETCH_SCOPE {
        t = etch_retain(etch_wrap_host(memory, ETCH_F32, ETCH_SHAPE(1), free_fn, NULL));
        if (!t) fuzz_see_error(w);
    }
    etch_release(t);
}

/* ---- statements ---- */

/* Pointers into the storage are no longer good: the run has given them back. */
static void end_pointers(fuzz_world *w, int n, int how) {
    int place = how / FUZZ_ACTIONS % FUZZ_PLACES;
    bool plain = how / FUZZ_ACTIONS / FUZZ_PLACES;
    bool own_run = place == FUZZ_ON_THREAD || place == FUZZ_IN_KERNEL || !plain;
    if (how % FUZZ_ACTIONS != FUZZ_POKE_END) return;
    if (own_run && place != FUZZ_INLINE && place != FUZZ_IN_FREE) return;
    for (int i = 0; i < FUZZ_MAX_VARS; i++)
        if (w->raw[i] && w->v[i] && (w->v[n] == w->v[i] || etch_shares_storage(w->v[i], w->v[n])))
            w->raw[i] = NULL;
}

void fuzz_foreign(fuzz_world *w, int to, int n, int how) {
    etch_tensor *x = w->v[n];
    int place = how / FUZZ_ACTIONS % FUZZ_PLACES;
    bool given = n < w->setup->nin + w->setup->nglobals;
    if (!x || (!given && (place == FUZZ_IN_KERNEL || place == FUZZ_IN_FREE))) return;
    acting = w, w->actions++;
    switch ((fuzz_place)place) {
    case FUZZ_IN_DISABLED: fuzz_set(w, to, act_in_disabled(w, how, x)); break;
    case FUZZ_ON_THREAD: fuzz_on_thread(w, act, x, how); break;
    case FUZZ_IN_KERNEL: act_in_kernel(w, to, how, n); break;
    case FUZZ_IN_FREE: act_in_free(w, how, x); break;
    default: fuzz_set(w, to, call_actor(w, how, x));
    }
    end_pointers(w, n, how);
}

void fuzz_flushed_write(fuzz_world *w, int n, int64_t value) {
    if (!w->v[n] || !w->old[n]) return;
    fuzz_flush(w);
    fuzz_write_element(w->old[n], etch_dtype_of(w->v[n]), value + w->call);
}

void fuzz_flushed_read(fuzz_world *w, int n) {
    if (!w->v[n] || !w->old[n]) return;
    fuzz_flush(w);
    fuzz_see(w, fuzz_element_bits(w->old[n], etch_dtype_of(w->v[n])));
}

void fuzz_thread_read(fuzz_world *w, int n) {
    if (w->v[n]) fuzz_on_thread(w, read_there, w->v[n], 0);
}

void fuzz_used(fuzz_world *w, int n, int written) {
    bool missed = w->missed;
    int first = w->nevents;
    if (!w->v[written] && w->lost[written]) fuzz_see(w, FUZZ_LOST);
    if (!w->v[written] || !w->v[n]) return;
    ETCH_SCOPE {
        etch_tensor *y = etch_clone(w->v[n]); /* an operator finds out, beside who reads memory */
        if (y) fuzz_see_tensor(w, y);
        else fuzz_see_error(w);
    }
    if (first < w->nevents) w->sure[first] = !missed;
    w->missed = missed;
}

void fuzz_effects_write(fuzz_world *w, int to, int n) {
    if (w->v[n]) call_op(w, to, OP_REVERSE, w->v[n], nothing);
}

void fuzz_spoil(fuzz_world *w, int to, int n, int64_t at) {
    etch_value value = {.tag = ETCH_VALUE_SCALAR, .scalar = etch_scalar_int(at + w->call)};
    if (w->v[n]) call_op(w, to, OP_SPOIL, w->v[n], value);
}

void fuzz_remember(fuzz_world *w, int to, int n, int slot) {
    etch_value value = {.tag = ETCH_VALUE_INT, .i = slot % FUZZ_MAX_KEPT};
    acting = w;
    if (!w->v[n]) return;
    call_op(w, to, OP_REMEMBER, w->v[n], value);
    etch_release(w->result[value.i]);
    w->result[value.i] = etch_retain(w->v[to]);
}

void fuzz_recall(fuzz_world *w, int slot) {
    fuzz_flush(w);
    if (w->remembered[slot % FUZZ_MAX_KEPT])
        fuzz_see_tensor(w, w->remembered[slot % FUZZ_MAX_KEPT]);
}

/* One round: what it makes dies with it, but for the result. */
static etch_tensor *one_round(fuzz_world *w, etch_tensor *x, int how) {
    etch_tensor *z = NULL;
    ETCH_SCOPE {
        etch_tensor *y = etch_mul_scalar(x, 0.75);
        if (how & FUZZ_ROUNDS_BREAK) fuzz_break(w);
        if (how & FUZZ_ROUNDS_WRITE) y = etch_mul_(y, x);
        z = etch_retain(etch_add_scalar(y, 1));
    }
    etch_release(x);
    return z;
}

void fuzz_rounds(fuzz_world *w, int to, int n, int how) {
    if (!w->v[n]) return;
    etch_tensor *x = etch_retain(etch_full(ETCH_F32, ETCH_SHAPE(1 << 14), 0.5));
    for (int i = 0; i < 40 && x; i++) x = one_round(w, x, how);
    fuzz_set(w, to, x ? etch_sum(x) : NULL);
    etch_release(x);
}

void fuzz_numerics(fuzz_world *w, int how) {
    enum { DENORMALS_ZERO = 0x40 };
    const unsigned traps = _MM_MASK_INVALID | _MM_MASK_DIV_ZERO | _MM_MASK_OVERFLOW;
    unsigned csr = _mm_getcsr() & ~(_MM_ROUND_MASK | _MM_FLUSH_ZERO_MASK | DENORMALS_ZERO);
    csr |= _MM_MASK_MASK | (unsigned)(how & FUZZ_ROUNDING) << 13;
    if (how & FUZZ_FLUSH_RESULTS) csr |= _MM_FLUSH_ZERO_ON;
    if (how & FUZZ_FLUSH_OPERANDS) csr |= DENORMALS_ZERO;
    if (how & FUZZ_TRAPS) csr &= ~traps;
    _mm_setcsr(csr);
    w->control = csr & FUZZ_CONTROL;
}

void fuzz_foreign_close(fuzz_world *w) {
    for (int i = 0; i < FUZZ_ACTIONS; i++) etch_function_free(w->actor[i].f);
    etch_function_free(w->off);
}
