/* Ready-made recurrent cells: one step of LSTM and of GRU. */
#include "nn/module.h"

#include <math.h>

typedef struct cell {
    int64_t in, hidden;
} cell;

static etch_tensor *gate(const etch_module *m, etch_tensor *all, int k) {
    const cell *c = etch_module_ctx(m);
    return all ? etch_narrow(all, -1, k * c->hidden, c->hidden) : NULL;
}

static etch_tensor *from_input(const etch_module *m, etch_tensor *x) {
    return etch_linear(x, etch__nn_own(m, "weight_ih"), etch__nn_own(m, "bias_ih"));
}

static etch_tensor *from_state(const etch_module *m, etch_tensor *h) {
    return etch_linear(h, etch__nn_own(m, "weight_hh"), etch__nn_own(m, "bias_hh"));
}

/* ---- input and state ---- */

static bool fits(const etch_tensor *t, const etch_tensor *x, int64_t width) {
    int n = etch_ndim(x);
    return (n == 1 || n == 2) && etch_ndim(t) == n && etch_size(t, -1) == width &&
           (n == 1 || etch_size(t, 0) == etch_size(x, 0));
}

static etch_tensor *zero_state(const etch_module *m, etch_tensor *x) {
    const cell *c = etch_module_ctx(m);
    etch_shape sizes = etch_sizes(x);
    sizes.v[sizes.n - 1] = c->hidden;
    etch_tensor *zero = NULL;
    ETCH_ON(etch_device_of(x)) { zero = etch_zeros(etch_dtype_of(x), sizes); }
    return zero;
}

/* state[0..n): given, or zeros. */
static bool take_state(const etch_module *m, etch_tensor *const *in, int nin, etch_tensor **state,
                       int n) {
    const cell *c = etch_module_ctx(m);
    if (!fits(in[0], in[0], c->in)) return etch__nn_refuse(m, "[N, in] or [in]", in[0]), false;
    for (int k = 0; k < n; k++) {
        if (nin > 1 && !fits(in[1 + k], in[0], c->hidden))
            return etch__nn_refuse(m, "[N, hidden] or [hidden] for the state, N as of the input",
                                   in[1 + k]),
                   false;
        state[k] = nin > 1 ? in[1 + k] : zero_state(m, in[0]);
        if (!state[k]) return false;
    }
    return true;
}

static etch_status refuse_counts(const etch_module *m, int nin, int nout, int n) {
    return etch__nn_fail(ETCH_ERR_INVALID_ARGUMENT,
                         "%s: expected 1 or %d tensors and room for 1 to %d, got %d and %d",
                         etch_module_type(m), 1 + n, n, nin, nout);
}

/* ---- steps ---- */

/* c' = sigmoid(f) c + sigmoid(i) tanh(g) */
static etch_tensor *next_cell(const etch_module *m, etch_tensor *gates, etch_tensor *c) {
    etch_tensor *i = gate(m, gates, 0), *f = gate(m, gates, 1), *g = gate(m, gates, 2);
    if (!i || !f || !g) return NULL;
    etch_tensor *open = etch_sigmoid(i), *keep = etch_sigmoid(f), *value = etch_tanh(g);
    etch_tensor *kept = keep ? etch_mul(keep, c) : NULL;
    etch_tensor *taken = open && value ? etch_mul(open, value) : NULL;
    return kept && taken ? etch_add(kept, taken) : NULL;
}

static etch_status lstm_forward(etch_module *m, etch_tensor *const *in, int nin, etch_tensor **out,
                                int nout) {
    etch_tensor *state[2];
    if ((nin != 1 && nin != 3) || nout < 1 || nout > 2) return refuse_counts(m, nin, nout, 2);
    if (!take_state(m, in, nin, state, 2)) return etch_last_status();
    etch_tensor *a = from_input(m, in[0]), *b = a ? from_state(m, state[0]) : NULL;
    etch_tensor *gates = b ? etch_add(a, b) : NULL;
    etch_tensor *c = next_cell(m, gates, state[1]), *o = c ? gate(m, gates, 3) : NULL;
    etch_tensor *shown = o ? etch_sigmoid(o) : NULL, *bounded = shown ? etch_tanh(c) : NULL;
    out[0] = bounded ? etch_mul(shown, bounded) : NULL;
    if (out[0] && nout == 2) out[1] = c;
    return out[0] ? ETCH_OK : etch_last_status();
}

/* h' = n + z (h - n), n = tanh(a_n + r b_n), with r and z of the sums of both sides. */
static etch_status gru_forward(etch_module *m, etch_tensor *const *in, int nin, etch_tensor **out,
                               int nout) {
    etch_tensor *h, *part[2];
    if ((nin != 1 && nin != 2) || nout != 1) return refuse_counts(m, nin, nout, 1);
    if (!take_state(m, in, nin, &h, 1)) return etch_last_status();
    etch_tensor *a = from_input(m, in[0]), *b = a ? from_state(m, h) : NULL;
    for (int k = 0; k < 2; k++) {
        etch_tensor *left = b ? gate(m, a, k) : NULL, *right = left ? gate(m, b, k) : NULL;
        etch_tensor *sum = right ? etch_add(left, right) : NULL;
        if (!(part[k] = sum ? etch_sigmoid(sum) : NULL)) return etch_last_status();
    }
    etch_tensor *left = gate(m, a, 2), *right = left ? gate(m, b, 2) : NULL;
    etch_tensor *reset = right ? etch_mul(part[0], right) : NULL;
    etch_tensor *sum = reset ? etch_add(left, reset) : NULL, *n = sum ? etch_tanh(sum) : NULL;
    etch_tensor *off = n ? etch_sub(h, n) : NULL, *moved = off ? etch_mul(part[1], off) : NULL;
    out[0] = moved ? etch_add(n, moved) : NULL;
    return out[0] ? ETCH_OK : etch_last_status();
}

/* ---- making them ---- */

static etch_module *make_cell(const char *function, const char *type, etch_forward_n forward,
                              int gates, cell c, etch_dtype dtype) {
    if (c.in <= 0 || c.hidden <= 0) {
        etch__nn_fail(ETCH_ERR_SHAPE, "%s: expected positive sizes, got in = %lld, hidden = %lld",
                      function, (long long)c.in, (long long)c.hidden);
        return NULL;
    }
    if (!etch__nn_need_float(function, dtype)) return NULL;
    etch_module *m = etch__nn_layer_n(type, forward, &c, sizeof c,
                                      "{\"in\": %lld, \"hidden\": %lld, \"dtype\": \"%s\"}",
                                      (long long)c.in, (long long)c.hidden, etch_dtype_name(dtype));
    int64_t rows = gates * c.hidden;
    double bound = 1 / sqrt((double)c.hidden);
    bool ok = m && etch__nn_add_uniform(m, "weight_ih", dtype, ETCH_SHAPE(rows, c.in), bound) &&
              etch__nn_add_uniform(m, "weight_hh", dtype, ETCH_SHAPE(rows, c.hidden), bound) &&
              etch__nn_add_uniform(m, "bias_ih", dtype, ETCH_SHAPE(rows), bound) &&
              etch__nn_add_uniform(m, "bias_hh", dtype, ETCH_SHAPE(rows), bound);
    return etch__nn_finish(m, ok);
}

etch_module *etch_nn_lstm_cell(int64_t in, int64_t hidden, etch_dtype dtype) {
    return make_cell("etch_nn_lstm_cell", "LSTMCell", lstm_forward, 4, (cell){in, hidden}, dtype);
}

etch_module *etch_nn_gru_cell(int64_t in, int64_t hidden, etch_dtype dtype) {
    return make_cell("etch_nn_gru_cell", "GRUCell", gru_forward, 3, (cell){in, hidden}, dtype);
}
