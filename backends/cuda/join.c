/* Products and what is computed of them, as one kernel: jit/fuse/pass_join.c says which.
 *
 * A block computes the tile of one product after the other by the code of gemm.c, or of all at once
 * by that of broad.c, keeps the sums in registers, and goes through the tile once with the code
 * that is generated for the other members. So the bits are those of separate kernels. */
#include "backends/cuda/join.h"

#include "backends/cuda/broad.h"
#include "backends/cuda/gemm.h"
#include "core/base/text.h"

struct cuda_join {
    int device, nmatmuls;
    bool tall, broad;
    /* The code for arguments that are aligned as the plan says; and for any,
     * made where it is needed. */
    cuda_code *code, *_Atomic unaligned;
    uint32_t wide; /* arguments that must be aligned for the first */
    cuda_variant after;
    unsigned variant[JOIN_MAX];
    cuda_shape shape, unaligned_shape;
    joined_matmul matmul[JOIN_MAX];
    loop_kernel k;
    int64_t dims[LOOP_MAX_AXES * (LOOP_MAX_ACCESSES + 1)];
};

/* ---- which products ---- */

static gemm gemm_of(int64_t m, int64_t n, int64_t k) {
    return (gemm){.batch = 1, .m = m, .n = n, .k = k};
}

static bool is_small(const matmul_sizes *s) {
    return s->m <= MATMUL_SMALL && s->n <= MATMUL_SMALL && s->k <= MATMUL_SMALL;
}

/* Of several, one follows the other where each would have the whole device for itself; smaller ones
 * run side by side as kernels of their own. */
bool etch__cuda_joins(int device, const matmul_sizes *s, bool alone) {
    cuda_device *d = etch__cuda_enter(etch__device_index(device));
    if (!d || s->k == 0 || is_small(s)) return false;
    if (etch__is_half(s->dtype)) return etch__cuda_broad_fits(d, s);
    gemm g = gemm_of(s->m, s->n, s->k);
    int tile = etch__cuda_gemm_tile(d, &g);
    return tile == GEMM_TALL || (tile == GEMM_LOW && alone);
}

/* ---- source ---- */

typedef struct join_source {
    const loop_kernel *k;
    const cuda_variant *after;
    const joined_matmul *matmul;
    int nmatmuls;
    unsigned variant[JOIN_MAX];
    broad_variant broad; /* of no products: tiles of gemm.c */
} join_source;

#include "embedded/join.cu.inc"

/* The elements of product i from column j of the four on. */
static void put_values(growing_text *to, const join_source *t, int i) {
    etch__text_put(to, "%s", i ? ", " : "");
    if (t->after->vector == 1) etch__text_put(to, "((const float *)&sums[%d][i])[j]", i);
    else etch__text_put(to, "((const vec<float, VECTOR> *)&sums[%d][i])[j / VECTOR]", i);
}

static uint32_t given(const joined_matmul *p, int n) {
    uint32_t mask = 0;
    for (int i = 0; i < n; i++) mask |= 1u << p[i].access;
    return mask;
}

static void write_kernel(growing_text *to, const join_source *t) {
    etch__text_put(
        to, "#define HEIGHT %d\n#define WHOLE %d\n#define PRODUCTS %d\n#define VECTOR %d\n%s",
        t->variant[0] & GEMM_ROWS_64 ? 8 : 4, (t->variant[0] & GEMM_WHOLE) != 0, t->nmatmuls,
        t->after->vector, etch__cuda_tile_text);
    etch__text_put(to, "#define VALUES ");
    for (int i = 0; i < t->nmatmuls; i++) put_values(to, t, i);
    etch__text_put(to, "\n#define MULTIPLY");
    for (int i = 0; i < t->nmatmuls; i++)
        etch__text_put(
            to, "%s tile::sums_of<%u>(a.product[%d], 0, row, col, (float *)quads, sums[%d]);",
            i ? " __syncthreads();" : "", t->variant[i], i, i);
    etch__text_put(to, "\n%s", join_text);
}

static char *source(const void *ctx) {
    const join_source *t = ctx;
    char *after = etch__cuda_after_source(t->k, t->after, given(t->matmul, t->nmatmuls));
    growing_text text = {.failed = !after};
    if (after) etch__text_bytes(&text, after, strlen(after));
    if (t->broad.products) etch__cuda_broad_text(&text, &t->broad);
    else write_kernel(&text, t);
    etch__free(after);
    return etch__text_end(&text);
}

/* ---- code ---- */

enum { KERNEL_BYTES = 8192, JOIN_REVISION = 3 };

/* All that the source depends on. */
typedef struct join_key {
    char name[8];
    uint64_t text;
    uint32_t revision, nmatmuls, given, variant[JOIN_MAX];
    cuda_variant after;
    broad_variant broad;
    uint8_t kernel[KERNEL_BYTES];
} join_key;

static cuda_code *code_of(cuda_device *d, const join_source *t, const char **why) {
    join_key key;
    const size_t before = offsetof(join_key, kernel);
    memset(&key, 0, before);
    memcpy(key.name, "join", 4);
    key.text = t->broad.products ? etch__cuda_broad_hash() : etch__cuda_tile_hash();
    key.revision = JOIN_REVISION, key.broad = t->broad;
    key.nmatmuls = (uint32_t)t->nmatmuls, key.given = given(t->matmul, t->nmatmuls);
    memcpy(key.variant, t->variant, sizeof key.variant);
    key.after = *t->after;
    size_t n = etch__loop_serialise(t->k, key.kernel, KERNEL_BYTES);
    if (n <= KERNEL_BYTES)
        return etch__cuda_code(d, (const uint8_t *)&key, before + n,
                               t->broad.products ? "etch_broad" : "etch_join", source, t, why);
    *why = "a kernel is too large";
    return NULL;
}

/* ---- of broad products ---- */

/* All products have the left operand of the first. */
static broad broad_of(const cuda_join *j) {
    const joined_matmul *p = &j->matmul[0];
    broad g = {.dtype = p->dtype,
               .products = j->nmatmuls,
               .m = p->m,
               .n = p->n,
               .k = p->k,
               .a_row = p->a_row,
               .a_col = p->a_col};
    for (int i = 0; i < j->nmatmuls; i++)
        g.b_row[i] = j->matmul[i].b_row, g.b_col[i] = j->matmul[i].b_col;
    return g;
}

static broad_variant broad_for(const cuda_join *j, const cuda_device *d, bool wide) {
    const broad g = broad_of(j);
    return etch__cuda_broad_variant(&g, wide ? j->after.vector : 1,
                                    wide && etch__cuda_broad_maps(d));
}

static etch_status fill_broad(const cuda_join *j, void *const *args, const uint64_t *cells,
                              bool wide, cuda_launch *out) {
    broad g = broad_of(j);
    const cuda_device *d = etch__cuda_enter(j->device);
    if (!d) return etch__tls.status;
    const broad_variant v = broad_for(j, d, wide);
    g.a = args[j->k.naccesses];
    for (int i = 0; i < j->nmatmuls; i++) g.b[i] = args[j->k.naccesses + 2 * i + 1];
    char *after = (char *)out->parameter + etch__cuda_broad_before(&v);
    etch__cuda_args_fill(&j->k, args, j->dims, cells, after);
    out->bytes = etch__cuda_broad_fill(&g, &v, etch__cuda_args_size(&j->k), out->parameter);
    return out->bytes ? ETCH_OK : etch__tls.status;
}

/* ---- the code of a launcher ---- */

/* For arguments that are aligned, or for any. */
static cuda_code *make_code(const cuda_join *j, bool wide, const char **why) {
    cuda_device *d = etch__cuda_enter(j->device);
    cuda_variant after = j->after;
    if (!wide) after.vector = 1;
    join_source t = {&j->k, &after, j->matmul, j->nmatmuls, {0}, {0}};
    for (int i = 0; i < j->nmatmuls; i++)
        t.variant[i] = wide ? j->variant[i] : j->variant[i] & ~(GEMM_A_WIDE | GEMM_B_WIDE);
    if (d && j->broad) t.broad = broad_for(j, d, wide);
    *why = "";
    cuda_code *code = d ? code_of(d, &t, why) : NULL;
    const cuda_shape *shape = wide ? &j->shape : &j->unaligned_shape;
    if (!code || etch__cuda_allow_shared(etch__cuda_function(code), shape->shared) == ETCH_OK)
        return code;
    etch__cuda_code_release(code);
    return NULL;
}

/* ---- launchers ---- */

static gemm sizes_of(const joined_matmul *p) {
    gemm g = gemm_of(p->m, p->n, p->k);
    g.a_row = p->a_row, g.a_col = p->a_col, g.b_row = p->b_row, g.b_col = p->b_col;
    return g;
}

/* Neighbours that a thread takes at once: no more than it has of a row. */
static cuda_variant after_for(const lowered *low, uint32_t aligned) {
    cuda_variant v = etch__cuda_choose(&low->k, low->dims, aligned);
    int most = etch__is_half(low->matmul[0].dtype) ? 8 : 4;
    if (v.vector > most) v.vector = (uint8_t)most;
    if (low->matmul[0].n % v.vector) v.vector = 1;
    v.tile = 3, v.hold = v.warps = 0, v.even = EVEN_NOT, v.tested = 0;
    return v;
}

/* The layout of each product, and which arguments have to be aligned for it. */
static void lay_out(cuda_join *j, uint32_t aligned) {
    for (int a = 0; a < j->k.naccesses && j->after.vector > 1; a++) j->wide |= 1u << a;
    for (int i = 0; j->broad && i < 2 * j->nmatmuls; i++) j->wide |= 1u << (j->k.naccesses + i);
    for (int i = 0; !j->broad && i < j->nmatmuls; i++) {
        gemm g = sizes_of(&j->matmul[i]);
        int at = j->k.naccesses + 2 * i;
        j->variant[i] = etch__cuda_gemm_variant(&g, j->tall);
        if (!(aligned >> at & 1)) j->variant[i] &= ~GEMM_A_WIDE;
        if (!(aligned >> at & 2)) j->variant[i] &= ~GEMM_B_WIDE;
        if (j->variant[i] & GEMM_A_WIDE) j->wide |= 1u << at;
        if (j->variant[i] & GEMM_B_WIDE) j->wide |= 2u << at;
    }
}

static void set_shapes(cuda_join *j, const cuda_device *d, const gemm *g) {
    const broad b = broad_of(j);
    j->shape = j->unaligned_shape = etch__cuda_gemm_shape(g, j->tall);
    if (!j->broad) return;
    j->shape = etch__cuda_broad_shape(d, &b, etch__cuda_broad_maps(d));
    j->unaligned_shape = etch__cuda_broad_shape(d, &b, false);
}

cuda_join *etch__cuda_join_new(cuda_device *d, const lowered *low, uint32_t aligned,
                               const char **why) {
    cuda_join *j = etch__calloc(1, sizeof *j);
    if (!j) return NULL;
    int naxes = low->k.npar;
    gemm g = sizes_of(&low->matmul[0]);
    j->device = d->index, j->nmatmuls = low->nmatmuls, j->k = low->k;
    snprintf(j->k.name, sizeof j->k.name, "kernel"); /* no part of the code */
    memcpy(j->matmul, low->matmul, sizeof j->matmul);
    memcpy(j->dims, low->dims, sizeof *j->dims * (size_t)(naxes * (low->k.naccesses + 1)));
    j->broad = etch__is_half(low->matmul[0].dtype);
    j->tall = etch__cuda_gemm_tile(d, &g) == GEMM_TALL;
    j->after = after_for(low, aligned);
    set_shapes(j, d, &g);
    lay_out(j, aligned);
    if ((j->code = make_code(j, true, why))) return j;
    etch__free(j);
    return NULL;
}

void etch__cuda_join_free(cuda_join *j) {
    if (!j) return;
    etch__cuda_code_release(j->code);
    if (j->unaligned) etch__cuda_code_release(j->unaligned);
    etch__free(j);
}

/* Another thread may have been first. */
static cuda_code *unaligned_code(cuda_join *j) {
    const char *why;
    cuda_code *code = atomic_load(&j->unaligned), *none = NULL;
    if (code) return code;
    if (!(code = make_code(j, false, &why))) return etch__cuda_no_code(why), NULL;
    if (atomic_compare_exchange_strong(&j->unaligned, &none, code)) return code;
    etch__cuda_code_release(code);
    return none;
}

etch_status etch__cuda_join_resolve(cuda_join *j, void *const *args, const uint64_t *cells,
                                    cuda_launch *out) {
    const bool wide = likely(etch__cuda_aligned(j->wide, args));
    cuda_code *code = wide ? j->code : unaligned_code(j);
    if (unlikely(!code)) return etch__tls.status;
    out->shape = wide ? &j->shape : &j->unaligned_shape;
    out->function = etch__cuda_function(code);
    if (j->broad) return fill_broad(j, args, cells, wide, out);
    out->bytes = etch__cuda_args_size(&j->k);
    etch__cuda_args_fill(&j->k, args, j->dims, cells, out->parameter);
    for (int i = 0; i < j->nmatmuls; i++) {
        gemm g = sizes_of(&j->matmul[i]);
        g.a = args[j->k.naccesses + 2 * i], g.b = args[j->k.naccesses + 2 * i + 1];
        gemm_words words = etch__cuda_gemm_words(&g, j->tall);
        memcpy((char *)out->parameter + out->bytes, &words, sizeof words);
        out->bytes += sizeof words;
    }
    return ETCH_OK;
}
