/* rand and randn on a device: the same Philox words as on the CPU, element i from (seed, offset +
 * i), so the uniform numbers have the same bits. randn takes the device's own log and cos. */
#include "backends/cuda/text.h"
#include "core/base/start.h"

#include "embedded/random.cu.inc"

static etch_status random_kernel(cuda_stream *s, const op_call *call, etch_tensor *out) {
    etch_dtype d = out->dtype;
    bool normal = call->op == OP_RANDN;
    int bits = d == ETCH_F64 ? 53 : normal || d == ETCH_F32 ? 24 : d == ETCH_BF16 ? 8 : 11;
    kernel_text k = {.symbol = "etch_random", .body = random_text, .ndtypes = 1, .dtype = {d}};
    snprintf(k.defines, sizeof k.defines, "#define BITS %d\n#define NORMAL %d\n", bits, normal);
    struct {
        void *out;
        int64_t n;
        uint64_t seed, offset;
    } args = {etch__ptr(out), out->numel, (uint64_t)call->sc[call->nsc - 2].i,
              (uint64_t)call->sc[call->nsc - 1].i};
    return etch__cuda_run_text(s, &k, (out->numel + 255) / 256, 256, &args);
}

void etch__start_cuda_random(void) {
    etch__cuda_register_text(OP_RAND, random_kernel);
    etch__cuda_register_text(OP_RANDN, random_kernel);
}
