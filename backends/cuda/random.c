/* rand and randn on a device: the same Philox words as on the CPU, element i from (seed, offset +
 * i), so the uniform numbers have the same bits. randn takes the device's own log and cos. */
#include "backends/cuda/text.h"

static const char body[] =
    "struct etch_args {\n"
    "    ETCH_0 *out;\n"
    "    i64 n;\n"
    "    u64 seed, offset;\n"
    "};\n"
    "__device__ inline void philox(u64 seed, u64 number, unsigned w[4]) {\n"
    "    unsigned c0 = (unsigned)number, c1 = (unsigned)(number >> 32), c2 = 0, c3 = 0;\n"
    "    unsigned k0 = (unsigned)seed, k1 = (unsigned)(seed >> 32);\n"
    "    #pragma unroll\n"
    "    for (int round = 0; round < 10; round++) {\n"
    "        const u64 p0 = (u64)0xD2511F53u * c0, p1 = (u64)0xCD9E8D57u * c2;\n"
    "        c0 = (unsigned)(p1 >> 32) ^ c1 ^ k0, c2 = (unsigned)(p0 >> 32) ^ c3 ^ k1;\n"
    "        c1 = (unsigned)p1, c3 = (unsigned)p0;\n"
    "        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;\n"
    "    }\n"
    "    w[0] = c0, w[1] = c1, w[2] = c2, w[3] = c3;\n"
    "}\n"
    "__device__ inline VALUE_0 uniform(unsigned high, unsigned low) {\n"
    "#if BITS == 53\n"
    "    return (double)(i64)(((u64)high << 32 | low) >> 11) * 0x1p-53;\n"
    "#else\n"
    "    return (float)(int)(high >> (32 - BITS)) * (1.0f / (float)(1 << BITS));\n"
    "#endif\n"
    "}\n"
    "extern \"C\" __global__ void etch_random(const __grid_constant__ etch_args a) {\n"
    "    i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x;\n"
    "    for (; i < a.n; i += (i64)gridDim.x * blockDim.x) {\n"
    "        unsigned w[4];\n"
    "        philox(a.seed, a.offset + (u64)i, w);\n"
    "        VALUE_0 u = uniform(w[0], w[1]);\n"
    "#if NORMAL\n"
    "        const VALUE_0 v = uniform(w[2], w[3]);\n"
    "        u = sqrt((VALUE_0)-2 * log((VALUE_0)1 - u));\n"
    "        u = u * cos((VALUE_0)6.283185307179586476925 * v);\n"
    "#endif\n"
    "        put(a.out + i, u);\n"
    "    }\n"
    "}\n";

static etch_status random_kernel(const op_call *call, etch_tensor *const *outs) {
    etch_tensor *out = outs[0];
    if (!out->numel) return ETCH_OK;
    cuda_stream *s = etch__cuda_begin(call, out);
    if (!s) return etch__tls.status;
    etch_dtype d = out->dtype;
    bool normal = call->op == OP_RANDN;
    int bits = d == ETCH_F64 ? 53 : normal || d == ETCH_F32 ? 24 : d == ETCH_BF16 ? 8 : 11;
    kernel_text k = {.symbol = "etch_random", .body = body, .ndtypes = 1, .dtype = {d}};
    snprintf(k.defines, sizeof k.defines, "#define BITS %d\n#define NORMAL %d\n", bits, normal);
    struct {
        void *out;
        int64_t n;
        uint64_t seed, offset;
    } args = {etch__ptr(out), out->numel, (uint64_t)call->sc[call->nsc - 2].i,
              (uint64_t)call->sc[call->nsc - 1].i};
    return etch__cuda_run_text(s, &k, (out->numel + 255) / 256, 256, &args);
}

__attribute__((constructor)) static void register_random(void) {
    etch__cuda_register(OP_RAND, random_kernel);
    etch__cuda_register(OP_RANDN, random_kernel);
}
