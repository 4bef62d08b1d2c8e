/* Products of halves that fill the device, where B is dense along k, as linear layers have it.
 *
 * The arithmetic is that of the tensor cores' steps of 16 k, in ascending order, summed in f32 and
 * rounded once: so neither the tile nor the way operands are copied shows in the bits, and eager
 * products, those that share a kernel with what follows, and those whose operands lie elsewhere
 * have the same. device/broad_ring.cu says how tiles are computed; device/broad_plain.cu is for
 * operands that are not at multiples of 16. */
#include "backends/cuda/broad.h"

#include <xxhash.h>

#include "backends/cuda/code.h"

#include "embedded/broad_alone.cuh.inc"
#include "embedded/broad_plain.cu.inc"
#include "embedded/broad_ring.cu.inc"

enum { ROWS = 256, DEPTH = 64, DEAL = 32, STAGE = (128 + 256) * DEPTH * 2, STAGES = 4, PARTS = 8 };

int etch__cuda_broad_force = BROAD_RULE;

/* ---- the rule ---- */

static int64_t columns_of(int products) { return 256 / products; }

static int64_t tiles(int64_t m, int64_t n, int products) {
    int64_t columns = columns_of(products);
    return (m + ROWS - 1) / ROWS * ((n + columns - 1) / columns);
}

bool etch__cuda_broad_maps(const cuda_device *d) {
    return d->major == 9 && etch__cuda.cuTensorMapEncodeTiled;
}

/* Rows are copied 16 bytes at a time, and columns dealt; parts of the tile before go with the
 * first steps of the next. */
static bool can_have(const cuda_device *d, const matmul_sizes *s) {
    bool along_k = s->a_col == 1 && s->b_row == 1 && s->a_row % 8 == 0 && s->b_col % 8 == 0 &&
                   s->a_row >= s->k && s->b_col >= s->k;
    return etch__is_half(s->dtype) && along_k && s->k % DEPTH == 0 && s->k >= PARTS * DEPTH &&
           s->n % DEAL == 0 && s->m > 0 && s->n > 0 && s->m < 1 << 24 && s->n < 1 << 24 &&
           s->k < 1 << 24 && d->major == 9;
}

/* Where waves of clusters are full, a product takes 0.85 to 1 of what the library takes (measured
 * on an H200); where the last one leaves more idle, the library's other tiles are better. */
static bool fills(const cuda_device *d, const matmul_sizes *s) {
    int64_t n = tiles(s->m, s->n, 1), clusters = d->multiprocessors / 2;
    int64_t waves = (n + clusters - 1) / clusters, places = waves * clusters;
    return n * 16 >= places * 15 || (waves >= 4 && n * 8 >= places * 7);
}

bool etch__cuda_broad_fits(const cuda_device *d, const matmul_sizes *s) {
    if (etch__cuda_broad_force == BROAD_NEVER || !can_have(d, s)) return false;
    return etch__cuda_broad_force == BROAD_ALWAYS || (etch__cuda_broad_maps(d) && fills(d, s));
}

/* ---- the kernel ---- */

broad_variant etch__cuda_broad_variant(const broad *g, int vector, bool maps) {
    bool whole = g->m % ROWS == 0 && g->n % columns_of(g->products) == 0;
    return (broad_variant){(uint8_t)g->products, g->dtype == ETCH_BF16, (uint8_t)vector, whole,
                           maps};
}

/* `values`: of each product, what after() is given, with its number. */
static void write_text(growing_text *to, const broad_variant *v, const char *before,
                       const char *values) {
    etch__text_put(to,
                   "#define PRODUCTS %d\n#define BF16 %d\n#define VECTOR %d\n#define WHOLE %d\n"
                   "%s\n#define VALUES ",
                   v->products, v->bf16, v->vector, v->whole, before);
    for (int i = 0; i < v->products; i++) {
        etch__text_put(to, "%s", i ? ", " : "");
        etch__text_put(to, values, i);
    }
    etch__text_put(to, "\n%s", v->maps ? broad_ring_text : broad_plain_text);
}

void etch__cuda_broad_text(growing_text *to, const broad_variant *v) {
    write_text(to, v, "", v->vector == 1 ? "value_of(x[%d], j)" : "values_of(x[%d], j)");
}

uint64_t etch__cuda_broad_hash(void) {
    static _Atomic uint64_t kept;
    uint64_t hash = atomic_load_explicit(&kept, memory_order_relaxed);
    if (unlikely(!hash)) {
        hash = XXH3_64bits(broad_ring_text, sizeof broad_ring_text) ^
               XXH3_64bits_withSeed(broad_plain_text, sizeof broad_plain_text, 1) ^
               XXH3_64bits_withSeed(broad_alone_text, sizeof broad_alone_text, 2);
        atomic_store_explicit(&kept, hash, memory_order_relaxed);
    }
    return hash;
}

/* ---- launching ---- */

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Panels begin at multiples of 1024 bytes; behind the stages there are two gates for each. */
cuda_shape etch__cuda_broad_shape(const cuda_device *d, const broad *g, bool maps) {
    int64_t n = tiles(g->m, g->n, g->products);
    uint32_t blocks = (uint32_t)(2 * (maps ? least(n, d->multiprocessors / 2) : n));
    return (cuda_shape){{blocks, 1, 1},
                        {maps ? 384 : 256, 1, 1},
                        (uint32_t)(1024 + (maps ? STAGES * (STAGE + 2 * 8) : STAGE))};
}

/* struct product of device/broad.cuh, with room for two. */
typedef struct broad_words {
    uint64_t word[2 + 2 + 3 * BROAD_MOST + 3];
    size_t n;
} broad_words;

/* So many rows of pairs of tiles that the blocks of one wave share rows and columns alike. */
enum { BAND = 8 };

static broad_words words_of(const broad *g) {
    broad_words w = {.n = 0};
    w.word[w.n++] = (uintptr_t)g->a;
    for (int i = 0; i < g->products; i++) w.word[w.n++] = (uintptr_t)g->b[i];
    w.word[w.n++] = (uint64_t)g->a_row, w.word[w.n++] = (uint64_t)g->a_col;
    for (int i = 0; i < g->products; i++) w.word[w.n++] = (uint64_t)g->b_row[i];
    for (int i = 0; i < g->products; i++) w.word[w.n++] = (uint64_t)g->b_col[i];
    int32_t numbers[6] = {(int32_t)g->m,
                          (int32_t)g->n,
                          (int32_t)g->k,
                          (int32_t)((g->m + ROWS - 1) / ROWS),
                          (int32_t)((g->n + columns_of(g->products) - 1) / columns_of(g->products)),
                          BAND};
    memcpy(&w.word[w.n], numbers, sizeof numbers);
    w.n += sizeof numbers / 8;
    return w;
}

typedef struct tensor_map {
    _Alignas(64) uint8_t bytes[CU_TENSOR_MAP];
} tensor_map;

static etch_status make_map(const broad *g, unsigned rank, const void *at, const uint64_t *size,
                            const uint64_t *stride, const uint32_t *box, void *to) {
    static const uint32_t step[5] = {1, 1, 1, 1, 1};
    int type = g->dtype == ETCH_BF16 ? CU_TENSOR_BF16 : CU_TENSOR_F16;
    tensor_map map = {{0}};
    etch_status s = CU(cuTensorMapEncodeTiled, &map, type, rank, (void *)at, size, stride, box,
                       step, 0, CU_TENSOR_SWIZZLE_128, CU_TENSOR_L2_256, 0);
    memcpy(to, &map, sizeof map);
    return s;
}

static etch_status map_rows(const broad *g, void *to) {
    const uint64_t size[2] = {(uint64_t)g->k, (uint64_t)g->m}, row = (uint64_t)g->a_row * 2;
    return make_map(g, 2, g->a, size, &row, (const uint32_t[2]){DEPTH, 128}, to);
}

/* Of 32 rows of B, row 8 t + 2 j + e comes as number 8 j + 2 t + e. */
static etch_status map_dealt(const broad *g, int i, void *to) {
    const uint64_t row = (uint64_t)g->b_col[i] * 2;
    const uint64_t size[5] = {(uint64_t)g->k, 2, 4, 4, (uint64_t)g->n / DEAL};
    const uint64_t stride[4] = {row, 8 * row, 2 * row, DEAL * row};
    return make_map(g, 5, g->b[i], size, stride, (const uint32_t[5]){DEPTH, 2, 4, 4, 4}, to);
}

size_t etch__cuda_broad_before(const broad_variant *v) {
    return v->maps ? (size_t)(1 + v->products) * CU_TENSOR_MAP : 0;
}

size_t etch__cuda_broad_fill(const broad *g, const broad_variant *v, size_t after, void *to) {
    char *at = to;
    etch_status s = v->maps ? map_rows(g, at) : ETCH_OK;
    for (int i = 0; v->maps && s == ETCH_OK && i < g->products; i++)
        s = map_dealt(g, i, at + (size_t)(1 + i) * CU_TENSOR_MAP);
    if (s != ETCH_OK) return 0;
    broad_words w = words_of(g);
    size_t n = etch__cuda_broad_before(v) + after;
    memcpy(at + n, w.word, w.n * 8);
    return n + w.n * 8;
}

/* ---- alone ---- */

static char *source(const void *ctx) {
    growing_text text = {0};
    write_text(&text, ctx, broad_alone_text, "x[%d], j, VECTOR");
    return etch__text_end(&text);
}

static cuda_code *code_for(cuda_device *d, const broad_variant *v) {
    uint8_t key[64];
    const char *why;
    int n = snprintf((char *)key, sizeof key, "broad 1 %016llx %d %d %d",
                     (unsigned long long)etch__cuda_broad_hash(), v->bf16, v->whole, v->maps);
    cuda_code *code = etch__cuda_code(d, key, (size_t)n, "etch_broad", source, v, &why);
    if (!code) etch__cuda_no_code(why);
    return code;
}

static bool at_sixteens(const broad *g) {
    uintptr_t bits = (uintptr_t)g->a;
    for (int i = 0; i < g->products; i++) bits |= (uintptr_t)g->b[i];
    return bits % 16 == 0;
}

static etch_status launch(cuda_stream *s, const broad *g, void *c, const broad_variant *v,
                          cu_function f) {
    cuda_shape shape = etch__cuda_broad_shape(etch__cuda_stream_device(s), g, v->maps);
    uint64_t parameter[(3 * CU_TENSOR_MAP + sizeof(broad_words)) / 8];
    memcpy((char *)parameter + etch__cuda_broad_before(v), &c, sizeof c);
    etch_status status = etch__cuda_allow_shared(f, shape.shared);
    if (status == ETCH_OK && !etch__cuda_broad_fill(g, v, sizeof c, parameter))
        status = etch__tls.status;
    return status == ETCH_OK ? etch__cuda_launch(s, f, "etch_broad", shape.grid, shape.block,
                                                 shape.shared, parameter)
                             : status;
}

etch_status etch__cuda_broad(cuda_stream *s, const broad *g, void *c) {
    cuda_device *d = etch__cuda_stream_device(s);
    bool maps = etch__cuda_broad_maps(d) && at_sixteens(g) && (uintptr_t)c % 16 == 0;
    broad_variant v = etch__cuda_broad_variant(g, (uintptr_t)c % 16 ? 1 : 8, maps);
    cuda_code *code = code_for(d, &v);
    if (!code) return etch__tls.status;
    etch_status status = launch(s, g, c, &v, etch__cuda_function(code));
    etch__cuda_code_release(code);
    return status;
}
