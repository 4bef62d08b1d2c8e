#include "core/base/base.h"
#include "harness.h"

#include <immintrin.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- data ---- */

/* splitmix64 */
uint64_t fuzz_random(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static double some_real(uint64_t *state, bool wild) {
    static const double special[] = {NAN,     INFINITY, -INFINITY, -0.0,     0.0,    1e-40,
                                     -3e-42,  5e-324,   3.4e38,    -1.7e308, 1e-8,   65504,
                                     -65520., 88.8,     -104,      0x1p-24,  1 / 3., 1e10};
    uint64_t r = fuzz_random(state);
    if (wild && r % 5 == 0) return special[(r >> 8) % (sizeof special / sizeof *special)];
    if (r % 7 == 0) return (double)((r >> 8) % 9) - 4;
    return ((double)((r >> 8) % 200001) - 1e5) / 4e4;
}

static int64_t some_int(uint64_t *state, etch_dtype dtype, bool wild) {
    uint64_t r = fuzz_random(state);
    int bits = 8 * (int)etch_dtype_size(dtype);
    if (dtype == ETCH_BOOL) return (r >> 8) & 1;
    if (wild && r % 5 == 0) {
        uint64_t top = (uint64_t)1 << (bits - 1);
        uint64_t extreme[] = {top, top - 1, top + 1, ~(uint64_t)0, 0, top >> 1};
        return (int64_t)extreme[(r >> 8) % 6];
    }
    return (int64_t)((r >> 8) % 14) - (dtype == ETCH_U8 ? 0 : 5);
}

static etch_tensor *host_data(etch_dtype dtype, etch_shape shape, uint64_t seed, bool wild) {
    int64_t n = 1;
    for (int i = 0; i < shape.n; i++) n *= shape.v[i];
    bool real = dtype <= ETCH_F16;
    size_t size = real ? 8 : etch_dtype_size(dtype);
    char *data = calloc((size_t)n + 1, size);
    for (int64_t i = 0; data && i < n; i++) {
        double d = real ? some_real(&seed, wild) : 0;
        int64_t k = real ? 0 : some_int(&seed, dtype, wild);
        if (real) memcpy(data + (size_t)i * size, &d, size);
        else memcpy(data + (size_t)i * size, &k, size); /* little endian */
    }
    etch_tensor *t = data ? etch_from_host(data, real ? ETCH_F64 : dtype, shape) : NULL;
    free(data);
    return real && dtype != ETCH_F64 ? etch_to(t, dtype) : t;
}

etch_tensor *fuzz_data(etch_dtype dtype, etch_shape shape, uint64_t seed, bool wild) {
    etch_tensor *t = NULL;
    ETCH_ON(ETCH_CPU) t = host_data(dtype, shape, seed, wild);
    return etch_current_device() == ETCH_CPU ? t : etch_to_device(t, etch_current_device());
}

/* ---- events ---- */

void fuzz_see(fuzz_world *w, uint64_t what) {
    if (w->nevents == FUZZ_MAX_EVENTS) return;
    w->event_at[w->nevents] = w->at, w->sure[w->nevents] = false;
    w->event[w->nevents++] = what;
}

static uint64_t hash(const void *data, size_t n) {
    const unsigned char *p = data;
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) h = (h ^ p[i]) * 0x100000001b3u;
    return h;
}

/* A kernel of the user's that fails is one more check of data. */
static bool is_of_data(etch_status s) {
    return s == ETCH_ERR_DIVISION_BY_ZERO || s == ETCH_ERR_INDEX || s == ETCH_ERR_USER;
}

static bool is_error(uint64_t event) { return event >> 16 == FUZZ_NO_STATUS >> 16; }

static void note_failure(fuzz_world *w) {
    const char *said = etch_last_error();
    bool at_call = !strncmp(said, "select", 6) || !strncmp(said, "narrow", 6); /* of attributes */
    if (!is_of_data(etch_last_status()) || at_call || w->nfailures == FUZZ_MAX_KEPT) return;
    char *text = w->failure[w->nfailures++], *more;
    snprintf(text, sizeof *w->failure, "%s", said);
    if ((more = strstr(text, "; so "))) *more = 0; /* what came upon it next */
}

/* What is compared of the error's text: who wrote what a derivative reads is not known for ever. */
static uint64_t text_of_error(void) {
    const char *text = etch_last_error();
    const char *writer = etch_last_status() == ETCH_ERR_MODIFIED ? strstr(text, "meanwhile") : NULL;
    return hash(text, writer ? (size_t)(writer - text) : strlen(text));
}

/* Those that depend on data come at another place when compiled. Texts may name the device. */
void fuzz_see_error(fuzz_world *w) {
    etch_status status = etch_last_status();
    w->missed = true;
    fuzz_see(w, FUZZ_NO_STATUS + (uint64_t)status);
    if (is_of_data(status)) note_failure(w);
    else if (!w->setup->beside_cpu) fuzz_see(w, text_of_error());
    if (!w->setup->careful || w->stopped) etch_clear_error();
    else w->stopped = true, w->first_error = status ? status : ETCH_ERR_INTERNAL;
}

/* The bits of a number; any NaN is one. */
static uint64_t bits_of(double d) {
    uint64_t bits;
    memcpy(&bits, &d, sizeof bits);
    return d == d ? bits : 0x7ff8000000000000u;
}

static bool is_nan(uint64_t bits, etch_dtype dtype) {
    static const uint64_t sign[] = {0x7fffffff, INT64_MAX, 0x7fff, 0x7fff};
    static const uint64_t inf[] = {0x7f800000, 0x7ff0000000000000, 0x7f80, 0x7c00};
    return dtype <= ETCH_F16 && (bits & sign[dtype]) > inf[dtype];
}

uint64_t fuzz_element_bits(const void *p, etch_dtype dtype) {
    uint64_t bits = 0;
    memcpy(&bits, p, etch_dtype_size(dtype));
    return is_nan(bits, dtype) ? 0x7ff : bits;
}

void fuzz_see_tensor(fuzz_world *w, const etch_tensor *t) {
    static __thread char buffer[FUZZ_MAX_NUMEL * sizeof(double)];
    int64_t n = etch_numel(t);
    uint64_t seen = (uint64_t)n;
    if (n < 0 || n > FUZZ_MAX_NUMEL) return;
    if (etch_to_host(t, buffer, sizeof buffer) != ETCH_OK) {
        fuzz_see_error(w);
        return;
    }
    etch_dtype dtype = etch_dtype_of(t);
    for (int64_t i = 0; i < n; i++) {
        uint64_t bits = fuzz_element_bits(buffer + (size_t)i * etch_dtype_size(dtype), dtype);
        seen = (seen ^ bits) * 0x9e3779b97f4a7c15u, seen ^= seen >> 29;
    }
    fuzz_see(w, seen);
}

/* What is ok leaves an error only of something else that has failed meanwhile: the one place where
 * that is told. */
void fuzz_see_left(fuzz_world *w, etch_status before) {
    if (etch_last_status() != before) fuzz_see_error(w);
}

void fuzz_see_control(fuzz_world *w) {
    if ((_mm_getcsr() & FUZZ_CONTROL) != w->control) w->disturbed = true;
}

/* ---- what bodies call ---- */

bool fuzz_when(const fuzz_world *w, unsigned variants) { return variants >> w->variant & 1; }

void fuzz_set(fuzz_world *w, int n, etch_tensor *t) {
    w->v[n] = t && etch_numel(t) <= FUZZ_MAX_NUMEL ? t : NULL;
    w->raw[n] = w->old[n] = NULL;
    w->lost[n] = !t && !w->guessed && is_of_data(etch_last_status());
    if (w->scope >= 0) w->scope_made[n] = true;
    /* An operator may end a segment, and what fails there for want of memory is not its own. */
    if (!t || etch_last_status() == ETCH_ERR_OUT_OF_MEMORY) fuzz_see_error(w);
    fuzz_see_control(w);
}

/* Whether the tensor is there; one that has failed is an error to see, not a size of -1. */
static bool is_there(fuzz_world *w, int n) {
    if (!w->v[n]) return false;
    if (etch_numel(w->v[n]) >= 0) return true;
    fuzz_see_error(w);
    return false;
}

int64_t fuzz_size(fuzz_world *w, int n, int dim, int64_t more) {
    if (is_there(w, n)) return etch_size(w->v[n], dim) + more;
    w->guessed = true;
    return 1 + more;
}

etch_scalar fuzz_vary(const fuzz_world *w, etch_scalar s) {
    if (w->variant == 2) return etch_scalar_int(w->call); /* another kind */
    if (s.kind == ETCH_SCALAR_REAL) return etch_scalar_real(s.d + 0.5 * w->call);
    if (s.kind == ETCH_SCALAR_INT)
        return etch_scalar_int((int64_t)((uint64_t)s.i + (unsigned)w->call));
    return etch_scalar_bool((s.i + w->call) & 1);
}

void fuzz_item(fuzz_world *w, int n) {
    if (!w->v[n]) return;
    double d = etch_item(w->v[n]);
    fuzz_see(w, bits_of(d));
    if (etch_last_status() != ETCH_OK) fuzz_see_error(w);
}

void fuzz_item_int(fuzz_world *w, int n) {
    if (!w->v[n]) return;
    fuzz_see(w, (uint64_t)etch_item_int(w->v[n]));
    if (etch_last_status() != ETCH_OK) fuzz_see_error(w);
}

/* The text without " on cuda:0". */
static void drop_device(char *text) {
    char *at = strstr(text, " on cuda:");
    if (!at) return;
    size_t n = 9 + strspn(at + 9, "0123456789");
    memmove(at, at + n, strlen(at + n) + 1);
}

void fuzz_format(fuzz_world *w, int n) {
    static char text[1 << 16];
    etch_status before = etch_last_status();
    if (!w->v[n]) return;
    int64_t length = etch_format(w->v[n], text, sizeof text);
    if (length >= 0 && w->setup->beside_cpu) drop_device(text), length = 0;
    if (length < 0) {
        fuzz_see_error(w);
        return;
    }
    fuzz_see(w, hash(text, strlen(text)) + (uint64_t)length);
    fuzz_see_left(w, before);
}

void fuzz_host(fuzz_world *w, int to, int n) {
    static double buffer[FUZZ_MAX_NUMEL];
    etch_tensor *t = w->v[n];
    etch_status before = etch_last_status();
    if (!is_there(w, n)) return;
    size_t bytes = (size_t)etch_numel(t) * etch_dtype_size(etch_dtype_of(t));
    if (etch_to_host(t, buffer, bytes) != ETCH_OK) {
        fuzz_see_error(w);
        return;
    }
    fuzz_see_left(w, before);
    fuzz_set(w, to, etch_from_host(buffer, etch_dtype_of(t), etch_sizes(t)));
}

void fuzz_query(fuzz_world *w, int a, int b) {
    const etch_tensor *t = w->v[a], *u = w->v[b];
    if (!is_there(w, a) || !is_there(w, b)) return;
    for (int i = 0; i < etch_ndim(t); i++)
        fuzz_see(w, (uint64_t)etch_size(t, i)), fuzz_see(w, (uint64_t)etch_stride(t, i));
    fuzz_see(w, (uint64_t)etch_storage_offset(t) << 4 | (uint64_t)etch_shares_storage(t, u) << 1 |
                    etch_is_contiguous(t));
}

/* An empty tensor has no address, which is no error to compare. */
void fuzz_expose(fuzz_world *w, int n, bool mut) {
    etch_status before = etch_last_status();
    if (!is_there(w, n) || etch_numel(w->v[n]) < 1) return;
    w->writable[n] = mut;
    w->raw[n] = mut ? etch_data_mut(w->v[n]) : (void *)(uintptr_t)etch_data(w->v[n]);
    if (w->raw[n]) fuzz_see_left(w, before);
    else fuzz_see_error(w);
    if (w->no_raw || w->overlaid) w->raw[n] = NULL;
    if (mut && w->raw[n]) w->old[n] = w->raw[n];
}

void fuzz_write_element(void *p, etch_dtype dtype, int64_t value) {
    float f = (float)value;
    double d = (double)value;
    int16_t half = (int16_t)(0x3c00 + value % 128);
    uint8_t bit = value & 1;
    switch (dtype) {
    case ETCH_F32: memcpy(p, &f, sizeof f); break;
    case ETCH_F64: memcpy(p, &d, sizeof d); break;
    case ETCH_BF16:
    case ETCH_F16: memcpy(p, &half, sizeof half); break;
    case ETCH_BOOL: memcpy(p, &bit, sizeof bit); break;
    default: memcpy(p, &value, etch_dtype_size(dtype));
    }
}

void fuzz_raw_write(fuzz_world *w, int n, int64_t value) {
    if (w->v[n] && w->raw[n] && w->writable[n])
        fuzz_write_element(w->raw[n], etch_dtype_of(w->v[n]), value + w->call);
}

/* NaN bits may differ, so only whether it is one is seen. */
void fuzz_raw_read(fuzz_world *w, int n) {
    if (w->v[n] && w->raw[n]) fuzz_see(w, fuzz_element_bits(w->raw[n], etch_dtype_of(w->v[n])));
}

void fuzz_data_end(fuzz_world *w, int n) {
    if (!w->v[n] || !w->raw[n]) return;
    etch_data_end(w->v[n]);
    /* Other tensors over the same storage lose their exposure with it. */
    bool shared = n < w->setup->nin && w->setup->in[n].layout == FUZZ_WRAPPED;
    for (int i = 0; i < FUZZ_MAX_VARS; i++)
        if (w->raw[i] && w->v[i] && (shared || etch_shares_storage(w->v[i], w->v[n])))
            w->raw[i] = NULL;
}

void fuzz_keep(fuzz_world *w, int n) {
    if (w->v[n] && w->nkept < FUZZ_MAX_KEPT) w->kept[w->nkept++] = etch_retain(w->v[n]);
}

void fuzz_drop(fuzz_world *w, int n) { w->v[n] = NULL, w->raw[n] = w->old[n] = NULL; }

/* What says ok leaves no error that was not there. */
static void see_computed(fuzz_world *w, etch_status before, etch_status status) {
    bool missed = w->missed; /* the tensors are there */
    if (status != ETCH_OK) fuzz_see_error(w);
    else if (etch_last_status() != before) fuzz_see(w, FUZZ_NO_STATUS);
    w->missed = missed;
}

void fuzz_break(fuzz_world *w) {
    etch_status before = etch_last_status();
    see_computed(w, before, etch_graph_break("fuzz"));
}

/* Nothing is deferred afterwards. */
void fuzz_flush(fuzz_world *w) {
    etch_status before = etch_last_status();
    see_computed(w, before, etch_flush());
    for (int i = 0; i < FUZZ_MAX_VARS; i++)
        if (w->v[i] && etch_is_deferred(w->v[i])) fuzz_see(w, FUZZ_STILL_DEFERRED + (uint64_t)i);
}

void fuzz_default_dtype(etch_dtype dtype) { etch_set_default_dtype(dtype); }

void fuzz_scope(fuzz_world *w) {
    if (w->scope >= 0) return;
    w->scope = etch_scope_begin();
    memset(w->scope_made, 0, sizeof w->scope_made);
}

/* Results of in-place operators stand for tensors of outside, but a number is a number. */
void fuzz_scope_end(fuzz_world *w, int keep) {
    if (w->scope < 0) return;
    etch_tensor *t = keep >= 0 && w->scope_made[keep] ? w->v[keep] : NULL;
    if (t) etch_keep(t);
    etch_scope_end(w->scope);
    w->scope = -1;
    for (int i = 0; i < FUZZ_MAX_VARS; i++)
        if (w->scope_made[i] && !(t && i == keep)) fuzz_drop(w, i);
}

static etch_tensor *inner_body(etch_tensor *x) {
    etch_tensor *y = etch_mul(x, x);
    etch_tensor *z = etch_add_scalar(y, 1);
    return etch_maximum(z, x);
}

void fuzz_inner(fuzz_world *w, int to, int n, bool disabled) {
    if (w->v[n]) fuzz_set(w, to, etch_call(disabled ? w->inner_disabled : w->inner, w->v[n]));
}

/* ---- operators of the user's ---- */

char *fuzz_element(const etch_tensor *t, char *data, int64_t index) {
    int64_t at = 0;
    for (int d = etch_ndim(t) - 1; d >= 0; d--) {
        at += index % etch_size(t, d) * etch_stride(t, d);
        index /= etch_size(t, d);
    }
    return data + at * (int64_t)etch_dtype_size(etch_dtype_of(t));
}

static etch_status interleave(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                              etch_tensor *const *out, int nout) {
    (void)ctx, (void)op, (void)nargs, (void)nout;
    const etch_tensor *in[] = {args[0].tensor, args[1].tensor};
    int64_t n = etch_numel(out[0]);
    size_t size = etch_dtype_size(etch_dtype_of(out[0]));
    char *to = n ? etch_data_mut(out[0]) : NULL;
    for (int64_t i = 0; i < n; i++) {
        char *from = (char *)(uintptr_t)etch_data(in[i & 1]);
        memcpy(fuzz_element(out[0], to, i), fuzz_element(in[i & 1], from, i), size);
    }
    return ETCH_OK;
}

static etch_status interleaved(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                               etch_tensor_spec *out, int nout) {
    (void)ctx, (void)op, (void)nargs, (void)nout;
    const etch_tensor *a = args[0].tensor, *b = args[1].tensor;
    etch_shape s = etch_sizes(a), t = etch_sizes(b);
    if (etch_dtype_of(a) != etch_dtype_of(b) || s.n != t.n ||
        memcmp(s.v, t.v, (size_t)s.n * sizeof *s.v))
        return etch_set_error(ETCH_ERR_SHAPE, "fuzz::interleave: two tensors of one kind");
    out[0] = (etch_tensor_spec){etch_dtype_of(a), s};
    return ETCH_OK;
}

etch_status fuzz_reverse(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                         etch_tensor *const *out, int nout) {
    (void)ctx, (void)op, (void)args, (void)nargs, (void)nout;
    int64_t n = etch_numel(out[0]);
    size_t size = etch_dtype_size(etch_dtype_of(out[0]));
    char *data = n > 0 ? etch_data_mut(out[0]) : NULL, held[8];
    for (int64_t i = 0; i < n / 2; i++) {
        char *x = fuzz_element(out[0], data, i), *y = fuzz_element(out[0], data, n - 1 - i);
        memcpy(held, x, size), memcpy(x, y, size), memcpy(y, held, size);
    }
    return ETCH_OK;
}

static const etch_op *custom_op(bool writes) {
    static const etch_op *ops[2];
    if (ops[0]) return ops[writes];
    etch_op_definition pure = {sizeof pure, .cpu = interleave, .shape = interleaved};
    etch_op_definition writing = {sizeof writing, .cpu = fuzz_reverse};
    ops[1] = etch_op_register("fuzz::reverse_(Tensor(a!) self) -> Tensor(a!)", &writing);
    ops[0] = etch_op_register("fuzz::interleave(Tensor a, Tensor b) -> Tensor", &pure);
    return ops[writes];
}

static void call_custom(fuzz_world *w, int to, bool writes, etch_tensor *a, etch_tensor *b) {
    etch_tensor *out = NULL;
    etch_value args[] = {{NULL, ETCH_VALUE_TENSOR, {a}}, {NULL, ETCH_VALUE_TENSOR, {b}}};
    etch_op_call(custom_op(writes), args, writes ? 1 : 2, &out, 1);
    fuzz_set(w, to, out);
}

void fuzz_custom(fuzz_world *w, int to, int a, int b) {
    if (w->v[a] && w->v[b]) call_custom(w, to, false, w->v[a], w->v[b]);
}

void fuzz_custom_write(fuzz_world *w, int to, int n) {
    if (w->v[n]) call_custom(w, to, true, w->v[n], NULL);
}

/* One statement, as nobody else may see the undefined elements. */
void fuzz_filled(fuzz_world *w, int to, int n, int64_t value) {
    if (!is_there(w, n)) return;
    etch_tensor *t = etch_empty(etch_dtype_of(w->v[n]), etch_sizes(w->v[n]));
    fuzz_set(w, to, value ? etch_fill_(t, etch_scalar_int(value)) : etch_copy_(t, w->v[n]));
}

/* Of integers it has the default dtype. Operators are called by name otherwise; the typed function
 * compares the call where the cursor stands. */
void fuzz_half(fuzz_world *w, int to, int n) {
    if (w->v[n]) fuzz_set(w, to, etch_mul_scalar(w->v[n], 0.5));
}

void fuzz_inference(fuzz_world *w, bool begin) {
    if (begin && w->inference < 0) w->inference = etch_inference_begin();
    if (begin || w->inference < 0) return;
    etch_inference_end(w->inference);
    w->inference = -1;
}

/* ---- the function ---- */

static etch_status run_body(void *ctx, etch_tensor *const *in, int nin, etch_tensor **out,
                            int nout) {
    fuzz_world *w = ctx;
    for (int i = 0; i < nin; i++) w->v[i] = in[i];
    w->ran = true;
    int no_grad = w->no_grad;
    w->scope = -1, w->inference = -1, w->no_grad = -1;
    etch_dtype dtype = etch_default_dtype();
    w->body(w, w->program);
    fuzz_no_grad(w, false);
    w->no_grad = no_grad;
    fuzz_inference(w, false);
    fuzz_scope_end(w, -1);
    etch_set_default_dtype(dtype);
    if (w->stopped) return w->first_error;
    if (fuzz_when(w, w->setup->fails)) return ETCH_ERR_USER;
    for (int i = 0; i < nout; i++) {
        etch_tensor *t = w->v[w->setup->out[i]];
        out[i] = t ? t : in[0];
    }
    return ETCH_OK;
}

void fuzz_world_open(fuzz_world *w, const fuzz_setup *setup, fuzz_body body, const void *program,
                     const char *backend, bool disable) {
    memset(w, 0, sizeof *w);
    w->setup = setup, w->body = body, w->program = program;
    w->backend = backend, w->disable = disable;
    custom_op(false);
    fuzz_foreign_open();
    w->device = etch_current_device();
    w->no_raw = setup->beside_cpu || w->device != ETCH_CPU;
    w->f =
        etch_compile(run_body, .backend = backend, .disable = disable, .ctx = w, .name = "fuzz",
                     .mode = (etch_mode_kind)setup->mode, .dynamic = (etch_dynamic)setup->dynamic,
                     .fullgraph = setup->fullgraph, .stable_after = setup->stable_after,
                     .replay = setup->replay, .recompile_limit = setup->recompile_limit);
    w->inner = etch_compile(inner_body, .backend = backend, .disable = disable);
    w->inner_disabled = etch_compile(inner_body, .backend = backend, .disable = true);
    w->inference = -1;
    fuzz_gradients_open(w);
}

static void release_all(etch_tensor **t, int n) {
    for (int i = 0; i < n; i++) etch_release(t[i]), t[i] = NULL;
}

static void release_results(fuzz_world *w) {
    release_all(w->kept, FUZZ_MAX_KEPT);
    release_all(w->fed, FUZZ_MAX_OUTPUTS);
    release_all(w->remembered, FUZZ_MAX_KEPT);
    release_all(w->result, FUZZ_MAX_KEPT);
    w->nkept = 0;
}

static void release_inputs(fuzz_world *w) {
    for (int i = 0; i < FUZZ_MAX_INPUTS; i++) {
        fuzz_let_go(w->setup, w->in[i]);
        fuzz_let_go(w->setup, w->global[i]);
    }
    release_all(w->held, FUZZ_MAX_KEPT);
    w->nheld = 0;
    release_all(w->in, FUZZ_MAX_INPUTS);
    release_all(w->in_base, FUZZ_MAX_INPUTS);
    release_all(w->global, FUZZ_MAX_INPUTS);
}

void fuzz_world_close(fuzz_world *w) {
    release_results(w);
    release_inputs(w);
    fuzz_foreign_close(w);
    fuzz_gradients_close(w);
    etch_function_free(w->f);
    etch_function_free(w->inner);
    etch_function_free(w->inner_disabled);
}

/* ---- arguments ---- */

static etch_shape shape_of(const fuzz_world *w, const fuzz_input *in) {
    etch_shape s = {.n = in->ndim};
    for (int i = 0; i < s.n; i++) s.v[i] = w->setup->size[w->setup->set[w->variant]][in->size[i]];
    return s;
}

static etch_dtype dtype_of(const fuzz_world *w, const fuzz_input *in) {
    return (fuzz_when(w, in->other) ? in->other_dtype : in->dtype);
}

static etch_tensor *transposed(const fuzz_world *w, const fuzz_input *in, etch_shape s,
                               uint64_t seed) {
    int64_t last = s.v[s.n - 1];
    s.v[s.n - 1] = s.v[s.n - 2], s.v[s.n - 2] = last;
    return etch_transpose(fuzz_data(dtype_of(w, in), s, seed, in->wild), -1, -2);
}

static bool of_leaf(const fuzz_world *w, const fuzz_input *in) {
    return in->base_leaf && fuzz_when(w, in->leaf) && dtype_of(w, in) <= ETCH_F16;
}

/* Memory of ours, with room for a tensor that lies a row further on. */
static etch_tensor *wrapped(etch_tensor *t) {
    size_t bytes = (size_t)etch_numel(t) * etch_dtype_size(etch_dtype_of(t));
    void *data = calloc(2, bytes + 1);
    if (!data || etch_to_host(t, data, bytes) != ETCH_OK) return NULL;
    return etch_wrap_host(data, etch_dtype_of(t), etch_sizes(t), free, data);
}

/* The tensor, and in *base what SHIFTED inputs slice. */
static etch_tensor *build(const fuzz_world *w, const fuzz_input *in, uint64_t seed,
                          etch_tensor **base) {
    etch_shape s = shape_of(w, in), larger = s;
    int layout = in->ndim && !fuzz_when(w, in->plain) ? in->layout : FUZZ_CONTIGUOUS;
    if (layout == FUZZ_WRAPPED && w->no_raw) layout = FUZZ_CONTIGUOUS;
    int64_t n = s.n ? s.v[0] : 0;
    if (layout == FUZZ_TRANSPOSED && s.n >= 2) return *base = transposed(w, in, s, seed);
    if (layout == FUZZ_STEPPED) larger.v[0] = 2 * n;
    if (layout == FUZZ_OFFSET) larger.v[0] = n + 3;
    if (layout == FUZZ_EXPANDED) larger.v[0] = 1;
    etch_tensor *t = *base = fuzz_data(dtype_of(w, in), larger, seed, in->wild);
    if (of_leaf(w, in)) etch_requires_grad_(t, true);
    if (layout == FUZZ_STEPPED) return etch_slice(t, 0, 0, 2 * n, 2);
    if (layout == FUZZ_REVERSED) return etch_slice(t, 0, ETCH_ABSENT, ETCH_ABSENT, -1);
    if (layout == FUZZ_OFFSET) return etch_slice(t, 0, 2, n + 2, 1);
    if (layout == FUZZ_EXPANDED) return etch_expand(t, s);
    if (layout == FUZZ_WRAPPED) return *base = wrapped(t);
    return t;
}

static void release_owner(void *t) { etch_release(t); }

/* A count of t's memory, without the history of t, in which this very memory may be. */
static etch_tensor *owner_of(etch_tensor *t) { return etch_retain(etch_detach(t)); }

/* Over the wrapped memory of t, a row further on: another storage. */
static etch_tensor *wrapped_again(etch_tensor *t) {
    size_t row = (size_t)(etch_numel(t) / etch_size(t, 0)) * etch_dtype_size(etch_dtype_of(t));
    char *data = (char *)(uintptr_t)etch_data(t);
    return etch_wrap_host(data + row, etch_dtype_of(t), etch_sizes(t), release_owner, owner_of(t));
}

static etch_tensor *shifted(const fuzz_world *w, int of) {
    etch_tensor *t = w->in[of], *base = w->in_base[of];
    int64_t n = etch_ndim(t) ? etch_size(t, 0) : 0;
    if (w->wrapped[of] && n && etch_numel(t)) return wrapped_again(t);
    if (!n || etch_ndim(base) != etch_ndim(t) || etch_size(base, 0) != n + 3) return t;
    return etch_slice(base, 0, 1, n + 1, 1);
}

/* The memory of t, if that has no gaps; a row before where it has one, in what OFFSET slices. */
static etch_tensor *laid_over(fuzz_world *w, const fuzz_input *in) {
    etch_tensor *t = w->in[in->of];
    if (w->no_raw || !etch_is_contiguous(t) || !etch_ndim(t) || !etch_numel(t)) return t;
    size_t row = (size_t)(etch_numel(t) / etch_size(t, 0)) * etch_dtype_size(etch_dtype_of(t));
    char *data = (char *)(uintptr_t)etch_data(t);
    bool offset = w->in_base[in->of] != t && w->setup->in[in->of].layout == FUZZ_OFFSET;
    w->overlaid = true;
    return etch_wrap_host(data - (offset ? row : 0), etch_dtype_of(t), etch_sizes(t), release_owner,
                          owner_of(t));
}

static bool fits(const fuzz_world *w, const fuzz_input *in, const etch_tensor *t) {
    etch_shape s = shape_of(w, in);
    if (!t || etch_dtype_of(t) != dtype_of(w, in) || etch_ndim(t) != s.n) return false;
    for (int i = 0; i < s.n; i++)
        if (etch_size(t, i) != s.v[i]) return false;
    return true;
}

static void replace(const fuzz_world *w, etch_tensor **slot, etch_tensor *t) {
    etch_retain(t);
    fuzz_let_go(w->setup, *slot);
    etch_release(*slot);
    *slot = t;
}

static void prepare_input(fuzz_world *w, int i, uint64_t seed) {
    const fuzz_input *in = &w->setup->in[i];
    etch_tensor *base = NULL, *t = NULL;
    int layout = fuzz_when(w, in->plain) ? FUZZ_CONTIGUOUS : in->layout;
    bool fed = in->feed >= 0 && fits(w, in, w->fed[in->feed]);
    if (fed) t = base = w->fed[in->feed];
    else if (layout == FUZZ_SAME) t = w->in[in->of], base = w->in_base[in->of];
    else if (layout == FUZZ_SHIFTED) t = shifted(w, in->of), base = w->in_base[in->of];
    else if (layout == FUZZ_OVER) t = base = laid_over(w, in);
    else if (in->persistent && fits(w, in, w->in[i])) return;
    else t = build(w, in, seed, &base);
    w->wrapped[i] = !fed && layout == FUZZ_WRAPPED && in->ndim && !w->no_raw;
    replace(w, &w->in[i], t);
    replace(w, &w->in_base[i], base);
}

static void prepare_global(fuzz_world *w, int i, uint64_t seed) {
    const fuzz_input *in = &w->setup->global[i];
    etch_tensor *base, *t = NULL;
    if (in->feed >= 0 && fits(w, in, w->fed[in->feed])) t = w->fed[in->feed];
    else if (in->persistent && fits(w, in, w->global[i])) return;
    else if (in->layout == FUZZ_SAME && !fuzz_when(w, in->plain)) t = w->in[in->of];
    else t = build(w, in, seed, &base);
    replace(w, &w->global[i], t);
}

/* The pointer to wrapped memory is there without asking for it. */
static void expose_wrapped(fuzz_world *w, int i) {
    int nin = w->setup->nin;
    const fuzz_input *in = i < nin ? &w->setup->in[i] : &w->setup->global[i - nin];
    bool is = in->layout == FUZZ_WRAPPED && in->ndim && in->feed < 0 && !in->persistent;
    is &= !w->no_raw;
    if (is && !fuzz_when(w, in->plain) && etch_numel(w->v[i]))
        w->raw[i] = (void *)(uintptr_t)etch_data(w->v[i]);
}

void fuzz_prepare(fuzz_world *w, int call) {
    uint64_t seed = w->setup->seed + (uint64_t)call * 1000;
    w->call = call;
    w->variant = call % w->setup->period;
    w->nevents = w->at = 0;
    w->overlaid = false;
    memset(w->v, 0, sizeof w->v);
    memset(w->raw, 0, sizeof w->raw);
    memset(w->writable, 0, sizeof w->writable);
    memset(w->old, 0, sizeof w->old);
    memset(w->lost, 0, sizeof w->lost);
    w->stopped = w->missed = w->guessed = w->ran = false, w->actions = 0;
    w->disturbed = false, w->control = _mm_getcsr() & FUZZ_CONTROL;
    w->nfailures = 0;
    w->nhooks = 0;
    for (int i = 0; i < w->setup->nin; i++) prepare_input(w, i, seed + (uint64_t)i);
    for (int i = 0; i < w->setup->nglobals; i++) {
        prepare_global(w, i, seed + 100 + (uint64_t)i);
        w->v[w->setup->nin + i] = w->global[i];
    }
    fuzz_require_inputs(w);
    for (int i = 0; i < w->setup->nin; i++) w->v[i] = w->in[i];
    for (int i = 0; i < w->setup->nin + w->setup->nglobals; i++) expose_wrapped(w, i);
    for (int i = 0; i < w->setup->nin + w->setup->nglobals; i++)
        if (!w->no_raw && !w->overlaid) w->old[i] = etch_data_mut(w->v[i]);
}

/* Whether allocations were made to fail. */
static bool starve(fuzz_world *w, bool begin) {
    const fuzz_setup *s = w->setup;
    if (w->disable || !s->starve_from || w->call != s->starve_call) return false;
    return etch__fail_allocations(begin ? s->starve_from - 1 : -1, s->starve_for) >= s->starve_from;
}

static void call_under_state(fuzz_world *w) {
    unsigned numerics = _mm_getcsr();
    etch_memory_reset_peak();
    int64_t live = etch_memory().bytes_live;
    fuzz_before_call(w);
    starve(w, true);
    fuzz_numerics(w, w->setup->numerics[w->variant]);
    w->status = etch_call_n(w->f, w->in, w->setup->nin, w->out, w->setup->nout);
    fuzz_see_control(w); /* that of the body, which has put back nothing */
    _mm_setcsr(numerics);
    w->control = numerics & FUZZ_CONTROL;
    w->peak = etch_memory().bytes_peak - live;
}

static void call_on_device(fuzz_world *w, int call) {
    fuzz_prepare(w, call);
    release_results(w);
    etch_manual_seed(w->setup->seed + (uint64_t)call);
    etch_clear_error();
    call_under_state(w);
    w->left = w->status == ETCH_OK ? etch_last_status() : ETCH_OK;
    w->status_text = text_of_error();
    if (w->status && !fuzz_when(w, w->setup->fails)) note_failure(w);
    w->late = w->device == ETCH_CPU ? ETCH_OK : etch_synchronize(w->device);
    for (int i = 0; i < w->setup->nout; i++)
        w->fed[i] = w->status == ETCH_OK ? etch_retain(w->out[i]) : NULL;
    etch_clear_error();
    fuzz_after_call(w);
    w->starved = starve(w, false);
}

static void call_function(fuzz_world *w, int call) { ETCH_ON(w->device) call_on_device(w, call); }

/* ---- comparing ---- */

typedef struct comparison {
    fuzz_world a, b; /* eager, compiled */
    bool planned;    /* a plan ran in this call */
    fuzz_result *r;
} comparison;

__attribute__((format(printf, 2, 3))) static bool differ(comparison *c, const char *format, ...) {
    va_list args;
    int n = snprintf(c->r->difference, sizeof c->r->difference, "call %d: ", c->a.call);
    va_start(args, format);
    vsnprintf(c->r->difference + n, sizeof c->r->difference - (size_t)n, format, args);
    va_end(args);
    return false;
}

static bool same_layout(const etch_tensor *x, const etch_tensor *y) {
    if (etch_ndim(x) != etch_ndim(y) || etch_storage_offset(x) != etch_storage_offset(y))
        return false;
    for (int i = 0; i < etch_ndim(x); i++)
        if (etch_stride(x, i) != etch_stride(y, i)) return false;
    return true;
}

static bool same_tensors(comparison *c, const char *what, int i, const etch_tensor *x,
                         const etch_tensor *y) {
    if (!x && !y) return true;
    if (!x || !y) return differ(c, "%s %d is there only %s", what, i, x ? "eagerly" : "compiled");
    if (etch_dtype_of(x) != etch_dtype_of(y)) return differ(c, "%s %d: dtype", what, i);
    if (!etch_bitwise_equal(x, y)) return differ(c, "%s %d: sizes or elements", what, i);
    if (!same_layout(x, y)) return differ(c, "%s %d: strides or offset", what, i);
    if (etch_requires_grad(x) != etch_requires_grad(y) || etch_is_leaf(x) != etch_is_leaf(y))
        return differ(c, "%s %d requires gradients, or is a leaf, on one side", what, i);
    return true;
}

/* Everything that outlives the call, in one order. */
static int visible(fuzz_world *w, etch_tensor **t, int *kinds) {
    int n = 0;
    for (int i = 0; i < w->setup->nin; i++) kinds[n] = 0, t[n++] = w->in[i];
    for (int i = 0; i < w->setup->nin; i++) kinds[n] = 1, t[n++] = w->in_base[i];
    for (int i = 0; i < w->setup->nglobals; i++) kinds[n] = 2, t[n++] = w->global[i];
    for (int i = 0; i < w->nkept; i++) kinds[n] = 3, t[n++] = w->kept[i];
    for (int i = 0; i < w->setup->nout; i++) kinds[n] = 4, t[n++] = w->fed[i];
    for (int i = 0, of = n; w->setup->grads && i < of; i++)
        kinds[n] = 5 + kinds[i], t[n++] = t[i] ? etch_grad_of(t[i]) : NULL;
    return n;
}

static bool compare_tensors(comparison *c) {
    static const char *const names[] = {
        "input",
        "base of input",
        "global",
        "kept",
        "output",
        "gradient of input",
        "gradient of base of input",
        "gradient of global",
        "gradient of kept",
        "gradient of output",
    };
    etch_tensor *x[64], *y[64];
    int kind[64], first = 0;
    int n = visible(&c->a, x, kind);
    if (visible(&c->b, y, kind) != n) return differ(c, "number of tensors kept");
    for (int i = 0; i < n; i++) {
        if (i && kind[i] != kind[i - 1]) first = i;
        if (!same_tensors(c, names[kind[i]], i - first, x[i], y[i])) return false;
    }
    for (int i = 0; i < n; i++)
        for (int k = 0; k < i; k++)
            if (etch_shares_storage(x[i], x[k]) != etch_shares_storage(y[i], y[k]) ||
                (x[i] == x[k]) != (y[i] == y[k]))
                return differ(c, "sharing of %s and %s (%d, %d)", names[kind[i]], names[kind[k]], i,
                              k);
    return true;
}

/* What kernels have kept; the strides of what they get are not said. Compiled code calls none for
 * what nobody uses. */
static bool compare_remembered(comparison *c) {
    for (int i = 0; i < FUZZ_MAX_KEPT; i++)
        if (c->b.remembered[i] && !etch_bitwise_equal(c->a.remembered[i], c->b.remembered[i]))
            return differ(c, "remembered %d", i);
    return true;
}

/* A compiled call, the first one too, holds about what eager code holds. Plans of the backend eager
 * hold what they make where they write an input. */
static bool compare_peaks(comparison *c) {
    enum { SLACK = 1 << 20 };
    int64_t most = c->a.peak + c->a.peak / 5 + SLACK;
    if (c->b.peak <= most || c->a.device != ETCH_CPU || c->b.device != ETCH_CPU) return true;
    if (c->planned && strcmp(c->b.backend, "native")) return true;
    return differ(c, "holds %lld bytes, compiled %lld", (long long)c->a.peak, (long long)c->b.peak);
}

/* A body that is not run sees nothing. */
static bool compare_events(comparison *c) {
    fuzz_world *a = &c->a, *b = &c->b;
    for (int i = 0; i < a->nevents; i++)
        if (a->event[i] >> 16 == FUZZ_STRAY_GRAD >> 16)
            return differ(c, "statement %d: a gradient is not where it was, or shares memory",
                          a->event_at[i]);
    if (a->setup->replay && !b->ran) return true;
    for (int i = 0; i < a->nevents && i < b->nevents; i++)
        if (a->event[i] != b->event[i] || a->event_at[i] != b->event_at[i])
            return differ(c, "statement %d sees %llx, compiled statement %d sees %llx",
                          a->event_at[i], (unsigned long long)a->event[i], b->event_at[i],
                          (unsigned long long)b->event[i]);
    if (a->nevents != b->nevents)
        return differ(c, "%d events, compiled %d", a->nevents, b->nevents);
    return true;
}

static bool compare_worlds(comparison *c) {
    fuzz_world *a = &c->a, *b = &c->b;
    if (a->disturbed || b->disturbed)
        return differ(c, "%s code leaves another mode of the processor, or other traps",
                      a->disturbed ? "eager" : "compiled");
    if (!compare_events(c)) return false;
    if (a->status != b->status)
        return differ(c, "status %s, compiled %s", etch_status_name(a->status),
                      etch_status_name(b->status));
    if (a->left != b->left) return differ(c, "an error is left by a call that is ok");
    if (a->status && a->status_text != b->status_text && !a->setup->beside_cpu)
        return differ(c, "the text of the error");
    return compare_tensors(c) && compare_remembered(c) && compare_peaks(c);
}

/* Errors that depend on data appear at the flush when compiled, and what depends on them fails
 * later; on a device they appear when it is waited for: from there on the two sides see different
 * things. */
static bool failed_on_data(const fuzz_world *w) {
    if (is_of_data(w->late)) return true;
    for (int i = 0; i < w->nevents; i++)
        if (is_error(w->event[i]) && is_of_data((etch_status)(w->event[i] & 0xffff))) return true;
    return false;
}

/* Calls that are meant to stay eager are not counted, nor, below, those that end in an error. */
static bool is_later(const fuzz_world *w) {
    const fuzz_setup *s = w->setup;
    bool eager = s->stable_after > 1 || s->recompile_limit < 8 || fuzz_when(w, s->fails);
    for (int i = 0; i < s->period; i++) eager |= (s->after[i] & FUZZ_AFTER_RESET) != 0;
    return !eager && w->call >= 2 * s->period;
}

static void count_call(comparison *c, etch_counters_t before) {
    etch_counters_t now = c->b.f ? etch_function_counters(c->b.f) : before;
    bool failed = failed_on_data(&c->a) || c->a.status || c->b.starved;
    bool later = c->b.f && is_later(&c->b) && !failed, any = now.plan_runs > before.plan_runs;
    c->planned = any;
    c->r->calls++;
    c->r->replayed += c->a.setup->replay && !c->b.ran;
    c->r->later += later;
    c->r->compiled += later && any;
    c->r->compiled_only += later && any && now.eager_runs == before.eager_runs &&
                           now.divergences == before.divergences && now.graphs == before.graphs;
}

/* Whether somebody was told that something failed: the body, at once or at the flush, the caller by
 * the status, or who waited for the device. */
static bool told_of_failure(const fuzz_world *w) {
    for (int i = 0; i < w->nevents; i++)
        if (is_error(w->event[i])) return true;
    return w->status != ETCH_OK || w->late != ETCH_OK;
}

/* Of an operator that writes: its name ends with "_", before an overload perhaps. */
static bool is_of_write(const char *text) {
    const char *end = strstr(text, ": ");
    const char *overload = memchr(text, '.', end ? (size_t)(end - text) : 0);
    if (overload) end = overload;
    return end && end > text && end[-1] == '_';
}

static bool same_operator(const char *a, const char *b) {
    size_t n = strcspn(a, ":");
    return n == strcspn(b, ":") && !strncmp(a, b, n);
}

/* Whether both say the same of their data. */
static bool same_reason(const char *a, const char *b) {
    const char *x = strstr(a, ": "), *y = strstr(b, ": ");
    size_t n = x && y ? strcspn(x, "(") : 0;
    return n && n == strcspn(y, "(") && !strncmp(x, y, n);
}

/* Compiled code fails at another place, perhaps not for what nobody uses, but with a text of eager
 * code: the operator, the line of its call, and the value. Behind the first failure, which gave
 * NULL in eager code alone, operators have met operands of other sizes. A careful body's eager code
 * has seen no more than the first one; behind a write that failed at once, other operators have
 * been called, while compiled code checks the data of all operators before it writes. A derivative
 * checks the indices of its operator once more, which nobody may have used. */
static bool same_failure(comparison *c) {
    const fuzz_world *a = &c->a, *b = &c->b;
    bool all = !a->setup->careful && a->nfailures < FUZZ_MAX_KEPT, found = !b->nfailures || !all;
    found |= a->nfailures && is_of_write(a->failure[0]);
    for (int i = 0; i < a->nfailures && !found; i++)
        found = i == 0 ? !strcmp(a->failure[0], b->failure[0])
                       : same_operator(a->failure[i], b->failure[0]);
    for (int i = 0; a->setup->grads && i < a->nfailures && !found; i++)
        found = same_reason(a->failure[i], b->failure[0]);
    return found || differ(c, "compiled fails with another text: \"%.180s\", not \"%.180s\"",
                           b->failure[0], a->failure[0]);
}

/* The first event of the statement, -1: none. */
static int event_of(const fuzz_world *w, int statement) {
    for (int i = 0; i < w->nevents; i++)
        if (w->event_at[i] == statement) return i;
    return -1;
}

/* Where eager code has not got what a failed write was to make, compiled code has taken the write
 * for done: what it reads from there on over that memory is an error. */
static bool reads_lost(comparison *c) {
    const fuzz_world *a = &c->a, *b = &c->b;
    for (int i = 0; i < a->nevents; i++) {
        int k = a->event[i] == FUZZ_LOST ? event_of(b, a->event_at[i]) : -1;
        if (k >= 0 && b->event[k] != FUZZ_LOST && !is_error(b->event[k]))
            return differ(c, "statement %d: a value is read of what a failed write was to write",
                          a->event_at[i]),
                   true;
    }
    return false;
}

/* After a check of data has failed the two sides see different things. But the compiled side tells:
 * the body or by its status if a write failed, else perhaps only by an error that is left; and no
 * failure says ok of itself. */
static bool failed_alike(comparison *c) {
    const fuzz_world *a = &c->a, *b = &c->b;
    for (int i = 0; i < b->nevents; i++)
        if (b->event[i] == FUZZ_NO_STATUS) return false;
    bool told = told_of_failure(b);
    if (!failed_on_data(a) || (!told && b->left == ETCH_OK)) return false;
    if (a->device != ETCH_CPU || b->device != ETCH_CPU) return true;
    if (reads_lost(c)) return false;
    if (!told && is_of_write(a->failure[0]))
        return differ(c, "is ok although this failed: \"%.200s\"", a->failure[0]);
    return same_failure(c);
}

/* No operator of the body was told of a failure, and a write of its that has not happened is an
 * error to read: each value is eager's. */
static bool reads_unwritten(comparison *c) {
    const fuzz_world *a = &c->a, *b = &c->b;
    for (int i = 0; i < b->nevents; i++) {
        int k = b->sure[i] && !is_error(b->event[i]) ? event_of(a, b->event_at[i]) : -1;
        if (k >= 0 && a->sure[k] && !is_error(a->event[k]) && a->event[k] != b->event[i])
            return differ(c,
                          "statement %d: a value is read of what was not written for want of "
                          "memory",
                          b->event_at[i]),
                   true;
    }
    return false;
}

/* An allocation that fails is an error of its call, or none at all, or it has cost what nobody
 * returns, or what a call did that fails anyway; the next call is as any. */
static bool starved_well(comparison *c) {
    const fuzz_world *a = &c->a, *b = &c->b;
    int i = 0;
    if (!b->starved) return false;
    while (i < a->nevents && i < b->nevents && a->event[i] == b->event[i]) i++;
    bool seen = false; /* at once or later: where the error appears is not said */
    for (int k = i; k < b->nevents; k++)
        seen |= b->event[k] == FUZZ_NO_STATUS + ETCH_ERR_OUT_OF_MEMORY;
    bool lost = b->left == ETCH_ERR_OUT_OF_MEMORY;
    if (reads_unwritten(c)) return false;
    return seen || lost || b->status != ETCH_OK;
}

static void forget(fuzz_world *w) {
    release_results(w);
    release_inputs(w);
}

static bool run_calls(comparison *c) {
    bool same = true, over = false;
    for (int call = 0; same && !over && call < c->a.setup->ncalls; call++)
        ETCH_SCOPE {
            etch_counters_t before = etch_function_counters(c->b.f);
            call_function(&c->a, call);
            call_function(&c->b, call);
            count_call(c, before);
            same = compare_worlds(c);
            bool excused = !same && !c->a.disturbed && !c->b.disturbed;
            bool starved = excused && starved_well(c);
            if (starved) same = true, forget(&c->a), forget(&c->b);
            over = excused && !same && failed_alike(c);
            same = same || over;
            /* Tapes of before may have gradients that have failed on one side. */
            over |= c->a.setup->grads && failed_on_data(&c->a);
            if (same) c->r->difference[0] = 0;
        }
    return same;
}

static etch_counters_t counters_since(const etch_counters_t *before) {
    etch_counters_t c = etch_counters();
    c.graphs -= before->graphs;
    c.kernels -= before->kernels;
    c.kernel_launches -= before->kernel_launches;
    c.compile_failures -= before->compile_failures;
    return c;
}

bool fuzz_compare(const fuzz_setup *setup, fuzz_body body, const void *program, const char *backend,
                  fuzz_result *result) {
    static comparison c;
    etch_memory_stats before = etch_memory();
    etch_counters_t counted = etch_counters();
    memset(result, 0, sizeof *result);
    c.r = result;
    ETCH_ON(setup->beside_cpu ? ETCH_CPU : etch_current_device())
    fuzz_world_open(&c.a, setup, body, program, "eager", true);
    fuzz_world_open(&c.b, setup, body, program, backend, false);
    bool same = run_calls(&c);
    result->counters = counters_since(&counted);
    /* Without memory a compile may fail, and the plan runs eagerly. */
    if (same && !setup->starve_from && result->counters.compile_failures)
        same = differ(&c, "a kernel could not be compiled, or its code not be loaded");
    fuzz_world_close(&c.a);
    fuzz_world_close(&c.b);
    etch_clear_error();
    etch_memory_stats after = etch_memory();
    if (same && (after.tensors != before.tensors || after.bytes_live != before.bytes_live))
        same = differ(&c, "leaks %lld tensors, %lld bytes",
                      (long long)(after.tensors - before.tensors),
                      (long long)(after.bytes_live - before.bytes_live));
    return same;
}
