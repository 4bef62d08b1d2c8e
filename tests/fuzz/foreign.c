/* What a program does beside calling operators: kernels of the user's that fail, and the
 * floating-point state. Both worlds do the same at the same statement. */
#include "harness.h"

#include <immintrin.h>
#include <string.h>

/* ---- operators ---- */

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

void fuzz_spoil(fuzz_world *w, int to, int n, int64_t at) {
    static const etch_op_definition definition = {sizeof definition, .cpu = spoil};
    static const etch_op *op;
    etch_tensor *out = NULL;
    if (!w->v[n]) return;
    if (!op)
        op =
            etch_op_register("fuzz::spoil_(Tensor(a!) self, Scalar at) -> Tensor(a!)", &definition);
    etch_value args[] = {
        {NULL, ETCH_VALUE_TENSOR, {w->v[n]}},
        {.tag = ETCH_VALUE_SCALAR, .scalar = etch_scalar_int(at + w->call)},
    };
    etch_op_call(op, args, 2, &out, 1);
    fuzz_set(w, to, out);
}

/* ---- the floating-point state ---- */

void fuzz_numerics(int how) {
    unsigned csr = _mm_getcsr() & ~(_MM_ROUND_MASK | _MM_FLUSH_ZERO_MASK | 0x40u);
    csr |= (unsigned)(how & FUZZ_ROUNDING) << 13;
    if (how & FUZZ_FLUSH_RESULTS) csr |= _MM_FLUSH_ZERO_ON;
    if (how & FUZZ_FLUSH_OPERANDS) csr |= 0x40u; /* denormals are zeros */
    _mm_setcsr(csr);
}
