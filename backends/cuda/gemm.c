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
#include "core/base/text.h"

enum { THREADS = 256, COLUMNS = 32, DEPTH = 64, SLICES = 8 };

int etch__cuda_gemm_force = GEMM_RULE;

/* ---- the kernel ---- */

#include "embedded/tile.cuh.inc"
const char *const etch__cuda_tile_text = tile_text;
#include "embedded/gemm.cu.inc"

static char *source(const void *ctx) {
    unsigned v = *(const unsigned *)ctx;
    growing_text text = {0};
    etch__text_put(&text, "#define HEIGHT %d\n#define VARIANT %u\n%s", v & GEMM_ROWS_64 ? 8 : 4, v,
                   gemm_text);
    return etch__text_end(&text);
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
                     (unsigned long long)kept_hash(&body, gemm_text), variant);
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
    etch_status status = etch__cuda_allow_shared(f, shape.shared);
    if (status == ETCH_OK)
        status = etch__cuda_launch(s, f, "etch_gemm", shape.grid, shape.block, shape.shared, &args);
    etch__cuda_code_release(code);
    return status;
}
