/* Products and what is computed of them, as one kernel: jit/fuse/pass_join.c says which.
 *
 * A block computes the tile of one product after the other by the code of gemm.c, keeps the sums in
 * registers, and goes through the tile once with the generated code of the other members. So the
 * bits are those of separate kernels. */
#include "backends/cuda/join.h"

#include "backends/cuda/gemm.h"
#include "core/base/text.h"

struct cuda_join {
    int device, nmatmuls;
    bool tall;
    /* The code for arguments that are aligned as the plan says; and for any,
     * made where it is needed. */
    cuda_code *code, *_Atomic unaligned;
    uint32_t wide; /* arguments that must be aligned for the first */
    cuda_variant after;
    unsigned variant[JOIN_MAX];
    cuda_shape shape;
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
    write_kernel(&text, t);
    etch__free(after);
    return etch__text_end(&text);
}

/* ---- code ---- */

enum { KERNEL_BYTES = 8192, JOIN_REVISION = 2 };

/* All that the source depends on. */
typedef struct join_key {
    char name[8];
    uint64_t tile;
    uint32_t revision, nmatmuls, given, variant[JOIN_MAX];
    cuda_variant after;
    uint8_t kernel[KERNEL_BYTES];
} join_key;

static cuda_code *code_of(cuda_device *d, const join_source *t, const char **why) {
    join_key key;
    const size_t before = offsetof(join_key, kernel);
    memset(&key, 0, before);
    memcpy(key.name, "join", 4);
    key.tile = etch__cuda_tile_hash(), key.revision = JOIN_REVISION;
    key.nmatmuls = (uint32_t)t->nmatmuls, key.given = given(t->matmul, t->nmatmuls);
    memcpy(key.variant, t->variant, sizeof key.variant);
    key.after = *t->after;
    size_t n = etch__loop_serialise(t->k, key.kernel, KERNEL_BYTES);
    if (n <= KERNEL_BYTES)
        return etch__cuda_code(d, (const uint8_t *)&key, before + n, "etch_join", source, t, why);
    *why = "a kernel is too large";
    return NULL;
}

/* For arguments that are aligned, or for any. */
static cuda_code *make_code(const cuda_join *j, bool wide, const char **why) {
    cuda_device *d = etch__cuda_enter(j->device);
    cuda_variant after = j->after;
    if (!wide) after.vector = 1;
    join_source t = {&j->k, &after, j->matmul, j->nmatmuls, {0}};
    for (int i = 0; i < j->nmatmuls; i++)
        t.variant[i] = wide ? j->variant[i] : j->variant[i] & ~(GEMM_A_WIDE | GEMM_B_WIDE);
    *why = "";
    cuda_code *code = d ? code_of(d, &t, why) : NULL;
    if (!code || etch__cuda_allow_shared(etch__cuda_function(code), j->shape.shared) == ETCH_OK)
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

/* Neighbours that a thread takes at once: no more than the sums that it has of a row. */
static cuda_variant after_for(const lowered *low, uint32_t aligned) {
    cuda_variant v = etch__cuda_choose(&low->k, low->dims, aligned);
    if (v.vector > 4) v.vector = 4;
    if (low->matmul[0].n % v.vector) v.vector = 1;
    v.tile = 3, v.hold = v.warps = 0, v.even = EVEN_NOT, v.tested = 0;
    return v;
}

/* The layout of each product, and which arguments have to be aligned for it. */
static void lay_out(cuda_join *j, uint32_t aligned) {
    for (int a = 0; a < j->k.naccesses && j->after.vector > 1; a++) j->wide |= 1u << a;
    for (int i = 0; i < j->nmatmuls; i++) {
        gemm g = sizes_of(&j->matmul[i]);
        int at = j->k.naccesses + 2 * i;
        j->variant[i] = etch__cuda_gemm_variant(&g, j->tall);
        if (!(aligned >> at & 1)) j->variant[i] &= ~GEMM_A_WIDE;
        if (!(aligned >> at & 2)) j->variant[i] &= ~GEMM_B_WIDE;
        if (j->variant[i] & GEMM_A_WIDE) j->wide |= 1u << at;
        if (j->variant[i] & GEMM_B_WIDE) j->wide |= 2u << at;
    }
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
    j->tall = etch__cuda_gemm_tile(d, &g) == GEMM_TALL;
    j->shape = etch__cuda_gemm_shape(&g, j->tall);
    j->after = after_for(low, aligned);
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
    cuda_code *code = likely(etch__cuda_aligned(j->wide, args)) ? j->code : unaligned_code(j);
    if (unlikely(!code)) return etch__tls.status;
    out->shape = &j->shape, out->function = etch__cuda_function(code);
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
