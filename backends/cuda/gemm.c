/* f32 products of middle size, where the library's tiles leave multiprocessors idle.
 *
 * The arithmetic is a function of K alone: k is dealt out in runs of 8 to 8 slices (slice s has
 * those with k / 8 % 8 == s), each slice is a chain acc = +0, k ascending, acc = fma(a, b, acc),
 * with K filled up to a multiple of 64 by zeros, and the slices are added in ascending order. So
 * the tile, the layout of the operands and the way they are loaded do not show in the bits.
 *
 * A block of 256 threads computes a tile of 32 or 64 rows by 32 columns, each of its warps one
 * slice of the whole tile, and folds the slices in shared memory: 512 x 512 x 512 keeps 128
 * blocks of 8 warps busy. Operands go through two buffers of 64 k each; the next one is on its
 * way in registers while one is computed, and what the first products of the next read is
 * fetched before the last products of this one, so that the barrier between them is hidden.
 * Operands are loaded in quads along the axis on which they are dense, by one access of 16 bytes
 * where address and strides allow. What a thread has of the tile in the end goes to memory, or
 * (join.c) to what is computed of it. */
#include "backends/cuda/gemm.h"

#include <xxhash.h>

#include "backends/cuda/code.h"

enum { THREADS = 256, COLUMNS = 32, DEPTH = 64, SLICES = 8 };

int etch__cuda_gemm_force = GEMM_RULE;

/* ---- the kernel ---- */

/* A tile of a product. Before it stands the definition of HEIGHT (rows of a thread, 4 or 8); the
 * template parameter is a variant, see gemm.h. Rows of A in shared memory have a pitch of 68, those
 * of B 36, so that no more than two lanes of a warp's access meet in a bank. What edges need is a
 * third of the code, and of the time that NVRTC takes, so it is left out where there are none. */
const char etch__cuda_tile_text[] =
    "namespace tile {\n"
    "struct product {\n"
    "    const float *a, *b;\n"
    "    long long a_batch, a_row, a_col, b_batch, b_row, b_col;\n"
    "    int m, n, k, tiles;\n"
    "};\n"
    "enum {\n"
    "    DEPTH = 64, RUN = 8, ROWS = 8 * HEIGHT, COLUMNS = 32, A_PITCH = DEPTH + 4,\n"
    "    B_PITCH = COLUMNS + 4, B_AT = ROWS * A_PITCH, BUFFER = B_AT + DEPTH * B_PITCH,\n"
    "    A_QUADS = ROWS / 16, B_QUADS = COLUMNS / 16, TILE = ROWS * COLUMNS, SUMS = TILE / 1024\n"
    "};\n"
    "/* Where a quad begins: on the axis of its own operand and along k. */\n"
    "struct spot {\n"
    "    int at, k;\n"
    "};\n"
    "template <bool along_k>\n"
    "__device__ __forceinline__ spot a_spot(int i) {\n"
    "    const int w = i / 32, lane = i % 32;\n"
    "    if (along_k) return {i / (DEPTH / 4), i % (DEPTH / 4) * 4};\n"
    "    return {w % (ROWS / 16) * 16 + lane % 4 * 4, w / (ROWS / 16) * 8 + lane / 4};\n"
    "}\n"
    "template <bool along_k>\n"
    "__device__ __forceinline__ spot b_spot(int i) {\n"
    "    const int w = i / 32, lane = i % 32;\n"
    "    if (!along_k) return {i % (COLUMNS / 4) * 4, i / (COLUMNS / 4)};\n"
    "    return {w % (COLUMNS / 16) * 16 + lane / 2, w / (COLUMNS / 16) * 8 + lane % 2 * 4};\n"
    "}\n"
    "template <bool wide>\n"
    "__device__ __forceinline__ float4 quad(const float *p, long long step) {\n"
    "    if (wide) return *(const float4 *)p;\n"
    "    return make_float4(p[0], p[step], p[2 * step], p[3 * step]);\n"
    "}\n"
    "/* One of which only the first `left` elements are there. */\n"
    "__device__ __forceinline__ float4 part(const float *p, long long step, int left) {\n"
    "    return make_float4(left > 0 ? p[0] : 0.0f, left > 1 ? p[step] : 0.0f,\n"
    "                       left > 2 ? p[2 * step] : 0.0f, left > 3 ? p[3 * step] : 0.0f);\n"
    "}\n"
    "__device__ __forceinline__ void spread(float *to, int pitch, float4 v) {\n"
    "    to[0] = v.x, to[pitch] = v.y, to[2 * pitch] = v.z, to[3 * pitch] = v.w;\n"
    "}\n"
    "__device__ __forceinline__ void keep(float *to, const float *v) {\n"
    "    *(float4 *)to = make_float4(v[0], v[1], v[2], v[3]);\n"
    "}\n"
    "/* The sums at rows place_row(i), columns place_col(i) + 0..3 of the tile that begins at\n"
    " * (row, col). All threads of the block take part, and may not use `space` until all have\n"
    " * come back. */\n"
    "template <int V>\n"
    "__device__ __forceinline__ void sums_of(const product &p, int batch, int row, int col,\n"
    "                                        float *space, float4 (&sums)[SUMS]) {\n"
    "    const bool A_ALONG_K = V & 2, B_ALONG_K = V & 4, A_WIDE = V & 8, B_WIDE = V & 16;\n"
    "    const bool NO_EDGES = V & 32;\n"
    "    const int t = threadIdx.x, slice = t / 32, down = t % 32 / 4, across = t % 4;\n"
    "    const bool inside = NO_EDGES || (row + ROWS <= p.m && col + COLUMNS <= p.n);\n"
    "    const spot a0 = a_spot<A_ALONG_K>(t), a1 = a_spot<A_ALONG_K>(t + 256);\n"
    "    const spot b0 = b_spot<B_ALONG_K>(t), b1 = b_spot<B_ALONG_K>(t + 256);\n"
    "    const long long a_step = A_ALONG_K ? p.a_col : p.a_row;\n"
    "    const long long b_step = B_ALONG_K ? p.b_row : p.b_col;\n"
    "    const long long a_next = (a1.at - a0.at) * p.a_row + (a1.k - a0.k) * p.a_col;\n"
    "    const long long b_next = (b1.at - b0.at) * p.b_col + (b1.k - b0.k) * p.b_row;\n"
    "    const float *a = p.a + batch * p.a_batch + (row + a0.at) * p.a_row + a0.k * p.a_col;\n"
    "    const float *b = p.b + batch * p.b_batch + (col + b0.at) * p.b_col + b0.k * p.b_row;\n"
    "    float4 left[A_QUADS], right[B_QUADS];\n"
    "    auto load = [&](int k) {\n"
    "        const bool whole = NO_EDGES || (inside && k + DEPTH <= p.k);\n"
    "        #pragma unroll\n"
    "        for (int i = 0; i < A_QUADS; i++) {\n"
    "            const spot s = a_spot<A_ALONG_K>(i * 256 + t);\n"
    "            const int rows = p.m - row - s.at, ks = p.k - k - s.k;\n"
    "            left[i] = whole       ? quad<A_WIDE>(a + i * a_next, a_step)\n"
    "                      : A_ALONG_K ? part(a + i * a_next, a_step, rows > 0 ? ks : 0)\n"
    "                                  : part(a + i * a_next, a_step, ks > 0 ? rows : 0);\n"
    "        }\n"
    "        #pragma unroll\n"
    "        for (int i = 0; i < B_QUADS; i++) {\n"
    "            const spot s = b_spot<B_ALONG_K>(i * 256 + t);\n"
    "            const int cols = p.n - col - s.at, ks = p.k - k - s.k;\n"
    "            right[i] = whole       ? quad<B_WIDE>(b + i * b_next, b_step)\n"
    "                       : B_ALONG_K ? part(b + i * b_next, b_step, cols > 0 ? ks : 0)\n"
    "                                   : part(b + i * b_next, b_step, ks > 0 ? cols : 0);\n"
    "        }\n"
    "        a += DEPTH * p.a_col, b += DEPTH * p.b_row;\n"
    "    };\n"
    "    auto store = [&](float *to) {\n"
    "        #pragma unroll\n"
    "        for (int i = 0; i < A_QUADS; i++) {\n"
    "            const spot s = a_spot<A_ALONG_K>(i * 256 + t);\n"
    "            float *const at = to + s.at * A_PITCH + s.k;\n"
    "            if (A_ALONG_K) *(float4 *)at = left[i];\n"
    "            else spread(at, A_PITCH, left[i]);\n"
    "        }\n"
    "        #pragma unroll\n"
    "        for (int i = 0; i < B_QUADS; i++) {\n"
    "            const spot s = b_spot<B_ALONG_K>(i * 256 + t);\n"
    "            float *const at = to + B_AT + s.k * B_PITCH + s.at;\n"
    "            if (!B_ALONG_K) *(float4 *)at = right[i];\n"
    "            else spread(at, B_PITCH, right[i]);\n"
    "        }\n"
    "    };\n"
    "    /* The thread's rows are down + 8 i, its columns 4 across + 0..3 and 16 more. */\n"
    "    float acc[HEIGHT][8];\n"
    "    #pragma unroll\n"
    "    for (int i = 0; i < HEIGHT; i++)\n"
    "        #pragma unroll\n"
    "        for (int j = 0; j < 8; j++) acc[i][j] = 0;\n"
    "    /* What is multiplied now and next: of A four k of the rows, of B one of the columns. */\n"
    "    float l[2][HEIGHT][4], r[2][8];\n"
    "    const float *const x = space + down * A_PITCH + slice * RUN;\n"
    "    const float *const y = space + B_AT + slice * RUN * B_PITCH + across * 4;\n"
    "    auto fetch_a = [&](int at, int k) {\n"
    "        #pragma unroll\n"
    "        for (int i = 0; i < HEIGHT; i++) {\n"
    "            const float4 v = *(const float4 *)(x + at + i * 8 * A_PITCH + k);\n"
    "            float *const to = l[k / 4 % 2][i];\n"
    "            to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;\n"
    "        }\n"
    "    };\n"
    "    auto fetch_b = [&](int at, int k) {\n"
    "        const float4 u = *(const float4 *)(y + at + k * B_PITCH);\n"
    "        const float4 v = *(const float4 *)(y + at + k * B_PITCH + 16);\n"
    "        float *const to = r[k % 2];\n"
    "        to[0] = u.x, to[1] = u.y, to[2] = u.z, to[3] = u.w;\n"
    "        to[4] = v.x, to[5] = v.y, to[6] = v.z, to[7] = v.w;\n"
    "    };\n"
    "    auto multiply = [&](int k) {\n"
    "        #pragma unroll\n"
    "        for (int i = 0; i < HEIGHT; i++)\n"
    "            #pragma unroll\n"
    "            for (int j = 0; j < 8; j++)\n"
    "                acc[i][j] = fmaf(l[k / 4 % 2][i][k % 4], r[k % 2][j], acc[i][j]);\n"
    "    };\n"
    "    load(0);\n"
    "    store(space);\n"
    "    __syncthreads();\n"
    "    fetch_a(0, 0), fetch_b(0, 0);\n"
    "    int now = 0;\n"
    "    for (int k = 0; k < p.k; k += DEPTH) {\n"
    "        const bool more = k + DEPTH < p.k;\n"
    "        if (more) load(k + DEPTH);\n"
    "        fetch_a(now, 4);\n"
    "        #pragma unroll\n"
    "        for (int q = 0; q < RUN - 2; q++) fetch_b(now, q + 1), multiply(q);\n"
    "        fetch_b(now, RUN - 1);\n"
    "        now = BUFFER - now;\n"
    "        if (more) {\n"
    "            store(space + now);\n"
    "            __syncthreads();\n"
    "            fetch_a(now, 0);\n"
    "        }\n"
    "        multiply(RUN - 2);\n"
    "        if (more) fetch_b(now, 0);\n"
    "        multiply(RUN - 1);\n"
    "    }\n"
    "    __syncthreads();\n"
    "    /* Odd rows have their halves exchanged, so that pairs of rows fill the banks. */\n"
    "    #pragma unroll\n"
    "    for (int i = 0; i < HEIGHT; i++) {\n"
    "        float *const to = space + slice * TILE + (down + 8 * i) * COLUMNS + across * 4;\n"
    "        const int half = down % 2 * 16;\n"
    "        keep(to + half, acc[i]), keep(to + (16 - half), acc[i] + 4);\n"
    "    }\n"
    "    __syncthreads();\n"
    "    #pragma unroll\n"
    "    for (int i = 0; i < SUMS; i++) {\n"
    "        float4 sum = *(const float4 *)(space + i * 1024 + t * 4);\n"
    "        #pragma unroll\n"
    "        for (int s = 1; s < 8; s++) {\n"
    "            const float4 v = *(const float4 *)(space + s * TILE + i * 1024 + t * 4);\n"
    "            sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;\n"
    "        }\n"
    "        sums[i] = sum;\n"
    "    }\n"
    "}\n"
    "__device__ __forceinline__ int place_row(int i) { return i * 32 + threadIdx.x / 8; }\n"
    "__device__ __forceinline__ int place_col(int i) {\n"
    "    return threadIdx.x % 8 * 4 ^ place_row(i) % 2 * 16;\n"
    "}\n"
    "}\n";

/* A product alone. Before it stands the definition of VARIANT. */
static const char body_text[] =
    "using namespace tile;\n"
    "struct etch_args {\n"
    "    product of;\n"
    "    float *c;\n"
    "};\n"
    "extern \"C\" __global__ void __launch_bounds__(256, HEIGHT == 4 ? 2 : 1)\n"
    "    etch_gemm(const __grid_constant__ struct etch_args a) {\n"
    "    extern __shared__ float4 quads[];\n"
    "    const product &p = a.of;\n"
    "    const int batch = blockIdx.x / p.tiles, tile = blockIdx.x % p.tiles;\n"
    "    const int wide = (p.n + COLUMNS - 1) / COLUMNS;\n"
    "    const int row = tile / wide * ROWS, col = tile % wide * COLUMNS;\n"
    "    float4 sums[SUMS];\n"
    "    sums_of<VARIANT>(p, batch, row, col, (float *)quads, sums);\n"
    "    float *const c = a.c + (long long)batch * p.m * p.n;\n"
    "    const bool aligned = p.n % 4 == 0 && (unsigned long long)a.c % 16 == 0;\n"
    "    #pragma unroll\n"
    "    for (int i = 0; i < SUMS; i++) {\n"
    "        const int r = row + place_row(i), q = col + place_col(i);\n"
    "        if (!(VARIANT & 32) && r >= p.m) continue;\n"
    "        float *const to = c + (long long)r * p.n + q;\n"
    "        if (aligned && (VARIANT & 32 || q < p.n)) {\n"
    "            *(float4 *)to = sums[i];\n"
    "            continue;\n"
    "        }\n"
    "        if (q < p.n) to[0] = sums[i].x;\n"
    "        if (q + 1 < p.n) to[1] = sums[i].y;\n"
    "        if (q + 2 < p.n) to[2] = sums[i].z;\n"
    "        if (q + 3 < p.n) to[3] = sums[i].w;\n"
    "    }\n"
    "}\n";

static char *source(const void *ctx) {
    unsigned v = *(const unsigned *)ctx;
    size_t room = strlen(etch__cuda_tile_text) + sizeof body_text + 64;
    char *text = etch__malloc(room);
    if (!text) return NULL;
    snprintf(text, room, "#define HEIGHT %d\n#define VARIANT %u\n%s%s", v & GEMM_ROWS_64 ? 8 : 4, v,
             etch__cuda_tile_text, body_text);
    return text;
}

/* Of a text, kept: eager products ask for it at each call. */
static uint64_t kept_hash(_Atomic uint64_t *kept, const char *text) {
    uint64_t hash = atomic_load_explicit(kept, memory_order_relaxed);
    if (unlikely(!hash)) {
        hash = XXH3_64bits(text, strlen(text));
        atomic_store_explicit(kept, hash, memory_order_relaxed);
    }
    return hash;
}

uint64_t etch__cuda_tile_hash(void) {
    static _Atomic uint64_t kept;
    return kept_hash(&kept, etch__cuda_tile_text);
}

static cuda_code *code_for(cuda_device *d, unsigned variant) {
    static _Atomic uint64_t body;
    uint8_t key[64];
    const char *why;
    int n = snprintf((char *)key, sizeof key, "gemm %016llx %016llx %u",
                     (unsigned long long)etch__cuda_tile_hash(),
                     (unsigned long long)kept_hash(&body, body_text), variant);
    cuda_code *code = etch__cuda_code(d, key, (size_t)n, "etch_gemm", source, &variant, &why);
    if (!code) etch__cuda_no_code(why);
    return code;
}

/* Bytes of shared memory: two buffers of both operands, or the slices of a tile. */
static unsigned shared_bytes(bool tall) {
    unsigned rows = tall ? 64 : 32;
    unsigned buffers = 2 * (rows * (DEPTH + 4) + DEPTH * (COLUMNS + 4));
    unsigned fold = SLICES * rows * COLUMNS;
    return 4 * (buffers > fold ? buffers : fold);
}

/* ---- the rule ---- */

static int64_t tiles(const gemm *g, bool tall) {
    int rows = tall ? 64 : 32;
    return (g->m + rows - 1) / rows * ((g->n + COLUMNS - 1) / COLUMNS);
}

/* The tile for the sizes; GEMM_NEVER: the library has it. Blocks are all to run at once, and long
 * chains only on a device that is full, since the library splits k there. */
static int tile_for(const cuda_device *d, const gemm *g) {
    const int64_t most = d->multiprocessors;
    if (g->m < 32 || g->n < 32 || g->batch > most || g->m > 1 << 16 || g->n > 1 << 16)
        return GEMM_NEVER;
    int tile = g->batch * tiles(g, false) <= most ? GEMM_LOW : GEMM_TALL;
    int64_t blocks = g->batch * tiles(g, tile == GEMM_TALL);
    if (blocks > most || shared_bytes(tile == GEMM_TALL) > (unsigned)d->shared) return GEMM_NEVER;
    return g->k <= 512 || (g->k <= 1024 && 2 * blocks > most) ? tile : GEMM_NEVER;
}

int etch__cuda_gemm_tile(const cuda_device *d, const gemm *g) {
    return etch__cuda_gemm_force == GEMM_RULE ? tile_for(d, g) : etch__cuda_gemm_force;
}

/* ---- a launch ---- */

/* Whether quads along the axis of stride `along` can be loaded at once. */
static bool aligned(const void *p, int64_t along, int64_t other, int64_t batch) {
    return along == 1 && other % 4 == 0 && batch % 4 == 0 && (uintptr_t)p % 16 == 0;
}

unsigned etch__cuda_gemm_variant(const gemm *g, bool tall) {
    bool a = g->a_col <= g->a_row, b = g->b_row < g->b_col;
    unsigned v = (tall ? GEMM_ROWS_64 : 0) | (a ? GEMM_A_ALONG_K : 0) | (b ? GEMM_B_ALONG_K : 0);
    if (aligned(g->a, a ? g->a_col : g->a_row, a ? g->a_row : g->a_col, g->a_batch))
        v |= GEMM_A_WIDE;
    if (aligned(g->b, b ? g->b_row : g->b_col, b ? g->b_col : g->b_row, g->b_batch))
        v |= GEMM_B_WIDE;
    if (g->m % (tall ? 64 : 32) == 0 && g->n % COLUMNS == 0 && g->k % DEPTH == 0) v |= GEMM_WHOLE;
    return v;
}

gemm_words etch__cuda_gemm_words(const gemm *g, bool tall) {
    return (gemm_words){g->a,     g->b,     g->a_batch, g->a_row,  g->a_col,  g->b_batch,
                        g->b_row, g->b_col, (int)g->m,  (int)g->n, (int)g->k, (int)tiles(g, tall)};
}

cuda_shape etch__cuda_gemm_shape(const gemm *g, bool tall) {
    return (cuda_shape){
        {(uint32_t)(tiles(g, tall) * g->batch), 1, 1}, {THREADS, 1, 1}, shared_bytes(tall)};
}

etch_status etch__cuda_gemm_prepare(cu_function f, const cuda_shape *shape) {
    if (shape->shared <= 48 << 10) return ETCH_OK;
    return CU(cuFuncSetAttribute, f, CU_FUNCTION_DYNAMIC_SHARED, (int)shape->shared);
}

etch_status etch__cuda_gemm(cuda_stream *s, const gemm *g) {
    cuda_device *d = etch__cuda_stream_device(s);
    const bool tall = etch__cuda_gemm_tile(d, g) == GEMM_TALL;
    struct {
        gemm_words of;
        void *c;
    } args = {etch__cuda_gemm_words(g, tall), g->c};
    cuda_code *code = code_for(d, etch__cuda_gemm_variant(g, tall));
    if (!code) return etch__tls.status;
    cuda_shape shape = etch__cuda_gemm_shape(g, tall);
    cu_function f = etch__cuda_function(code);
    etch_status status = etch__cuda_gemm_prepare(f, &shape);
    if (status == ETCH_OK)
        status = etch__cuda_launch(s, f, "etch_gemm", shape.grid, shape.block, shape.shared, &args);
    etch__cuda_code_release(code);
    return status;
}
