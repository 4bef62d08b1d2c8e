/* The fake of cuBLASLt: plain loops. It has three algorithms that differ, as real ones do, in the
 * bits of their sums, the workspace they need and the alignment they demand, so that code which
 * mixes them up is found out: algorithm n adds 4 << n interleaved partial sums. */
#include "api_types.h"
#include "api_calls.h"
#include "control.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct cublasLtContext {
    int unused;
};

#define ENTER(name)                                                                                \
    if (fake_cuda_enter(#name)) return CUBLAS_STATUS_INTERNAL_ERROR

#define CHECK(condition, error)                                                                    \
    do {                                                                                           \
        if (!(condition)) return error;                                                            \
    } while (0)

#define BAD CUBLAS_STATUS_INVALID_VALUE

enum { ALGORITHMS = 3, ALIGNMENT = 16 };
static const size_t workspaces[ALGORITHMS] = {0, 4096, 1 << 20};
enum { COUNTS = 2, COUNTS_SIZE = 256 }; /* the algorithm whose workspace begins with zeros */

/* ---- descriptors: each attribute is one word ---- */

typedef struct attribute {
    int id, size;
} attribute;

static const attribute layout_attributes[] = {
    {CUBLASLT_MATRIX_LAYOUT_TYPE, 4},
    {CUBLASLT_MATRIX_LAYOUT_ORDER, 4},
    {CUBLASLT_MATRIX_LAYOUT_ROWS, 8},
    {CUBLASLT_MATRIX_LAYOUT_COLS, 8},
    {CUBLASLT_MATRIX_LAYOUT_LD, 8},
    {CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, 4},
    {CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, 8},
};
static const attribute desc_attributes[] = {
    {CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, 4},    {CUBLASLT_MATMUL_DESC_SCALE_TYPE, 4},
    {CUBLASLT_MATMUL_DESC_POINTER_MODE, 4},    {CUBLASLT_MATMUL_DESC_TRANSA, 4},
    {CUBLASLT_MATMUL_DESC_TRANSB, 4},          {CUBLASLT_MATMUL_DESC_TRANSC, 4},
    {CUBLASLT_MATMUL_DESC_FILL_MODE, 4},       {CUBLASLT_MATMUL_DESC_EPILOGUE, 4},
    {CUBLASLT_MATMUL_DESC_BIAS_POINTER, 8},    {CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, 8},
    {CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, 4}, {CUBLASLT_MATMUL_DESC_FAST_ACCUM, 1},
    {CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, 4},
};
static const attribute preference_attributes[] = {
    {CUBLASLT_MATMUL_PREF_SEARCH_MODE, 4},
    {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, 8},
    {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, 4},
    {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, 4},
    {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, 4},
    {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, 4},
    {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, 4},
    {CUBLASLT_MATMUL_PREF_MAX_WAVES_COUNT, 4},
};
#define TABLE(name) name, (int)(sizeof name / sizeof *name)

static int find(const attribute *table, int count, int id) {
    for (int i = 0; i < count; i++)
        if (table[i].id == id) return i;
    return -1;
}

static cublasStatus_t set(uint64_t *data, const attribute *table, int count, int id,
                          const void *value, size_t size) {
    const int i = find(table, count, id);
    CHECK(data && value && i >= 0 && size == (size_t)table[i].size, BAD);
    data[i] = 0;
    memcpy(&data[i], value, size);
    return CUBLAS_STATUS_SUCCESS;
}

static uint64_t layout_word(cublasLtMatrixLayout_t layout, int id) {
    return layout->data[find(TABLE(layout_attributes), id)];
}

static uint64_t desc_word(cublasLtMatmulDesc_t desc, int id) {
    return desc->data[find(TABLE(desc_attributes), id)];
}

static void *make(size_t size) {
    void *made = calloc(1, size);
    if (made) fake_cuda_object("descriptor", 1);
    return made;
}

static cublasStatus_t destroy(void *made, int fails) {
    if (made) fake_cuda_object("descriptor", -1);
    free(made);
    return fails ? CUBLAS_STATUS_INTERNAL_ERROR : CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType_t type,
                                          uint64_t rows, uint64_t cols, int64_t ld) {
    ENTER(cublasLtMatrixLayoutCreate);
    CHECK(layout, BAD);
    *layout = make(sizeof **layout);
    CHECK(*layout, CUBLAS_STATUS_ALLOC_FAILED);
    const uint64_t words[] = {(uint64_t)type, CUBLASLT_ORDER_COL, rows, cols, (uint64_t)ld, 1, 0};
    memcpy((*layout)->data, words, sizeof words);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
    return destroy(layout, fake_cuda_enter("cublasLtMatrixLayoutDestroy"));
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t id,
                                                const void *value, size_t size) {
    ENTER(cublasLtMatrixLayoutSetAttribute);
    return set(layout ? layout->data : NULL, TABLE(layout_attributes), id, value, size);
}

static void init_desc(cublasLtMatmulDesc_t desc, cublasComputeType_t compute,
                      cudaDataType_t scale) {
    memset(desc, 0, sizeof *desc);
    desc->data[find(TABLE(desc_attributes), CUBLASLT_MATMUL_DESC_COMPUTE_TYPE)] = (uint64_t)compute;
    desc->data[find(TABLE(desc_attributes), CUBLASLT_MATMUL_DESC_SCALE_TYPE)] = (uint64_t)scale;
    desc->data[find(TABLE(desc_attributes), CUBLASLT_MATMUL_DESC_EPILOGUE)] =
        CUBLASLT_EPILOGUE_DEFAULT;
    desc->data[find(TABLE(desc_attributes), CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE)] = 0xffffffffu;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
    ENTER(cublasLtMatmulDescCreate);
    CHECK(desc, BAD);
    *desc = make(sizeof **desc);
    CHECK(*desc, CUBLAS_STATUS_ALLOC_FAILED);
    init_desc(*desc, compute, scale);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
    return destroy(desc, fake_cuda_enter("cublasLtMatmulDescDestroy"));
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t id, const void *value,
                                              size_t size) {
    ENTER(cublasLtMatmulDescSetAttribute);
    return set(desc ? desc->data : NULL, TABLE(desc_attributes), id, value, size);
}

static void init_preference(cublasLtMatmulPreference_t preference) {
    memset(preference, 0, sizeof *preference);
    for (int i = 3; i < 7; i++) preference->data[i] = 256; /* the alignments */
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference) {
    ENTER(cublasLtMatmulPreferenceCreate);
    CHECK(preference, BAD);
    *preference = make(sizeof **preference);
    CHECK(*preference, CUBLAS_STATUS_ALLOC_FAILED);
    init_preference(*preference);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
    return destroy(preference, fake_cuda_enter("cublasLtMatmulPreferenceDestroy"));
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t id,
                                                    const void *value, size_t size) {
    ENTER(cublasLtMatmulPreferenceSetAttribute);
    return set(preference ? preference->data : NULL, TABLE(preference_attributes), id, value, size);
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
    ENTER(cublasLtCreate);
    CHECK(handle, BAD);
    *handle = calloc(1, sizeof **handle);
    CHECK(*handle, CUBLAS_STATUS_ALLOC_FAILED);
    fake_cuda_object("cublas", 1);
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- one product, resolved ---- */

typedef struct matrix {
    int type;
    bool row_order, transposed;
    uint64_t rows, cols; /* as stored */
    int64_t ld, batch_stride;
    int batches;
    char *at;
} matrix;

typedef struct product {
    matrix a, b, c, d;
    uint64_t m, n, k;
    int compute, scale, algorithm, epilogue, bias_type, pointer_mode;
    int64_t bias_stride;
    char *bias;
    char alpha[8], beta[8];
    const void *device_alpha, *device_beta;
    unsigned char *counts; /* or NULL */
} product;

static size_t type_size(int type) { return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2; }

static bool known_type(int type) {
    return type == CUDA_R_32F || type == CUDA_R_64F || type == CUDA_R_16F || type == CUDA_R_16BF;
}

static cublasStatus_t read_matrix(matrix *out, cublasLtMatrixLayout_t layout, bool transposed) {
    CHECK(layout, BAD);
    *out = (matrix){
        .type = (int)layout_word(layout, CUBLASLT_MATRIX_LAYOUT_TYPE),
        .row_order = layout_word(layout, CUBLASLT_MATRIX_LAYOUT_ORDER) == CUBLASLT_ORDER_ROW,
        .transposed = transposed,
        .rows = layout_word(layout, CUBLASLT_MATRIX_LAYOUT_ROWS),
        .cols = layout_word(layout, CUBLASLT_MATRIX_LAYOUT_COLS),
        .ld = (int64_t)layout_word(layout, CUBLASLT_MATRIX_LAYOUT_LD),
        .batches = (int)layout_word(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT),
        .batch_stride = (int64_t)layout_word(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET)};
    CHECK(known_type(out->type), CUBLAS_STATUS_NOT_SUPPORTED);
    CHECK(layout_word(layout, CUBLASLT_MATRIX_LAYOUT_ORDER) <= CUBLASLT_ORDER_ROW,
          CUBLAS_STATUS_NOT_SUPPORTED);
    const uint64_t least = out->row_order ? out->cols : out->rows;
    CHECK(out->rows && out->cols && out->ld >= (int64_t)least, BAD);
    return CUBLAS_STATUS_SUCCESS;
}

static uint64_t height(const matrix *x) { return x->transposed ? x->cols : x->rows; }
static uint64_t width(const matrix *x) { return x->transposed ? x->rows : x->cols; }

static bool wide(const product *p) {
    return p->compute == CUBLAS_COMPUTE_64F || p->compute == CUBLAS_COMPUTE_64F_PEDANTIC;
}

static bool known_compute(int compute) {
    switch (compute) {
    case CUBLAS_COMPUTE_32F:
    case CUBLAS_COMPUTE_32F_PEDANTIC:
    case CUBLAS_COMPUTE_32F_FAST_16F:
    case CUBLAS_COMPUTE_32F_FAST_16BF:
    case CUBLAS_COMPUTE_32F_FAST_TF32:
    case CUBLAS_COMPUTE_64F:
    case CUBLAS_COMPUTE_64F_PEDANTIC: return true;
    default: return false;
    }
}

static cublasStatus_t check_types(const product *p) {
    CHECK(known_compute(p->compute), CUBLAS_STATUS_NOT_SUPPORTED);
    const int needed = wide(p) ? CUDA_R_64F : CUDA_R_32F;
    CHECK(p->scale == needed, CUBLAS_STATUS_NOT_SUPPORTED);
    CHECK(p->a.type == p->b.type && p->c.type == p->d.type, CUBLAS_STATUS_NOT_SUPPORTED);
    CHECK((p->a.type == CUDA_R_64F) == wide(p) && (p->d.type == CUDA_R_64F) == wide(p),
          CUBLAS_STATUS_NOT_SUPPORTED);
    CHECK(p->d.type == p->a.type || p->d.type == CUDA_R_32F, CUBLAS_STATUS_NOT_SUPPORTED);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t check_shapes(const product *p) {
    CHECK(height(&p->a) == p->m && width(&p->b) == p->n && height(&p->b) == p->k, BAD);
    CHECK(p->c.rows == p->m && p->c.cols == p->n, BAD);
    CHECK(p->a.batches == p->d.batches && p->b.batches == p->d.batches &&
              p->c.batches == p->d.batches && p->d.batches > 0,
          BAD);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t check_epilogue(const product *p) {
    switch (p->epilogue) {
    case CUBLASLT_EPILOGUE_DEFAULT:
    case CUBLASLT_EPILOGUE_RELU:
    case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_RELU_BIAS: return CUBLAS_STATUS_SUCCESS;
    case CUBLASLT_EPILOGUE_GELU:
    case CUBLASLT_EPILOGUE_GELU_BIAS:
        return wide(p) ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
    default: return CUBLAS_STATUS_NOT_SUPPORTED;
    }
}

#define TRY(call)                                                                                  \
    do {                                                                                           \
        const cublasStatus_t tried_ = (call);                                                      \
        if (tried_) return tried_;                                                                 \
    } while (0)

static cublasStatus_t read_product(product *p, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                   cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                   cublasLtMatrixLayout_t d) {
    memset(p, 0, sizeof *p);
    CHECK(desc, BAD);
    CHECK(!desc_word(desc, CUBLASLT_MATMUL_DESC_TRANSC), CUBLAS_STATUS_NOT_SUPPORTED);
    TRY(read_matrix(&p->a, a, desc_word(desc, CUBLASLT_MATMUL_DESC_TRANSA) != CUBLAS_OP_N));
    TRY(read_matrix(&p->b, b, desc_word(desc, CUBLASLT_MATMUL_DESC_TRANSB) != CUBLAS_OP_N));
    TRY(read_matrix(&p->c, c, false));
    TRY(read_matrix(&p->d, d, false));
    p->m = p->d.rows;
    p->n = p->d.cols;
    p->k = width(&p->a);
    p->compute = (int)desc_word(desc, CUBLASLT_MATMUL_DESC_COMPUTE_TYPE);
    p->scale = (int)desc_word(desc, CUBLASLT_MATMUL_DESC_SCALE_TYPE);
    p->epilogue = (int)desc_word(desc, CUBLASLT_MATMUL_DESC_EPILOGUE);
    p->pointer_mode = (int)desc_word(desc, CUBLASLT_MATMUL_DESC_POINTER_MODE);
    p->bias = (char *)(uintptr_t)desc_word(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER);
    p->bias_stride = (int64_t)desc_word(desc, CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE);
    p->bias_type = (int)desc_word(desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE);
    if (p->bias_type == -1) p->bias_type = p->d.type;
    TRY(check_types(p));
    TRY(check_shapes(p));
    return check_epilogue(p);
}

/* ---- arithmetic ---- */

static double half_to_double(unsigned h) {
    const int exponent = h >> 10 & 31;
    const double fraction = h & 1023, sign = h >> 15 ? -1 : 1;
    if (exponent == 31) return fraction ? NAN : sign * INFINITY;
    if (!exponent) return sign * ldexp(fraction, -24);
    return sign * ldexp(1024 + fraction, exponent - 25);
}

static uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float from_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint16_t float_to_half(float x) {
    const uint16_t sign = (uint16_t)(bits_of(x) >> 16 & 0x8000);
    const double size = fabs((double)x);
    if (isnan(x)) return 0x7fff;
    if (size >= 65520) return sign | 0x7c00;
    int exponent;
    frexp(size, &exponent);
    if (size == 0 || exponent < -13) return sign | (uint16_t)rint(ldexp(size, 24));
    const double scaled = rint(ldexp(size, 11 - exponent)); /* 1024 to 2048 */
    return sign | (uint16_t)((exponent + 13) * 1024 + (int)scaled);
}

/* To nearest, ties to even, at a bit of the fraction. */
static float round_at(float x, int dropped) {
    if (isnan(x) || isinf(x)) return x;
    const uint32_t bits = bits_of(x);
    const uint32_t half = (1u << (dropped - 1)) - 1 + (bits >> dropped & 1);
    return from_bits((bits + half) & ~((1u << dropped) - 1));
}

static double load(const char *at, int type) {
    switch (type) {
    case CUDA_R_64F: return *(const double *)at;
    case CUDA_R_32F: return *(const float *)at;
    case CUDA_R_16BF: return from_bits((uint32_t) * (const uint16_t *)at << 16);
    default: return half_to_double(*(const uint16_t *)at);
    }
}

static void store(char *at, int type, double x) {
    switch (type) {
    case CUDA_R_64F: *(double *)at = x; break;
    case CUDA_R_32F: *(float *)at = (float)x; break;
    case CUDA_R_16BF:
        *(uint16_t *)at = isnan(x) ? 0x7fff : (uint16_t)(bits_of(round_at((float)x, 16)) >> 16);
        break;
    default: *(uint16_t *)at = float_to_half((float)x);
    }
}

static char *element(const matrix *x, int batch, uint64_t i, uint64_t j) {
    const uint64_t row = x->transposed ? j : i, col = x->transposed ? i : j;
    const int64_t at =
        x->row_order ? (int64_t)row * x->ld + (int64_t)col : (int64_t)col * x->ld + (int64_t)row;
    return x->at + (at + batch * x->batch_stride) * (int64_t)type_size(x->type);
}

/* The precision in which a product of f32 is allowed to look at its operands. */
static double operand(const product *p, const matrix *x, int batch, uint64_t i, uint64_t j) {
    const double value = load(element(x, batch, i, j), x->type);
    if (x->type != CUDA_R_32F) return value;
    if (p->compute == CUBLAS_COMPUTE_32F_FAST_TF32) return round_at((float)value, 13);
    if (p->compute == CUBLAS_COMPUTE_32F_FAST_16BF) return round_at((float)value, 16);
    return value;
}

enum { MAX_LANES = 4 << (ALGORITHMS - 1) };

/* A's rows or B's columns of a batch, one after the other, as they are multiplied. */
static void read_lines(const product *p, int batch, bool columns, double *to) {
    const uint64_t lines = columns ? p->n : p->m;
    for (uint64_t i = 0; i < lines; i++)
        for (uint64_t k = 0; k < p->k; k++)
            *to++ = columns ? operand(p, &p->b, batch, k, i) : operand(p, &p->a, batch, i, k);
}

/* fma is one instruction where the machine has it. */
#define WITH_FMA __attribute__((target_clones("default", "fma")))

WITH_FMA static double wide_dot(uint64_t lanes, uint64_t n, const double *a, const double *b) {
    double sum[MAX_LANES] = {0};
    for (uint64_t k = 0; k < n; k += lanes)
        for (uint64_t lane = 0; lane < lanes && k + lane < n; lane++)
            sum[lane] = fma(a[k + lane], b[k + lane], sum[lane]);
    for (uint64_t half = lanes / 2; half; half /= 2)
        for (uint64_t lane = 0; lane < half; lane++) sum[lane] += sum[lane + half];
    return sum[0];
}

WITH_FMA static float narrow_dot(uint64_t lanes, uint64_t n, const double *a, const double *b) {
    float sum[MAX_LANES] = {0};
    for (uint64_t k = 0; k < n; k += lanes)
        for (uint64_t lane = 0; lane < lanes && k + lane < n; lane++)
            sum[lane] = fmaf((float)a[k + lane], (float)b[k + lane], sum[lane]);
    for (uint64_t half = lanes / 2; half; half /= 2)
        for (uint64_t lane = 0; lane < half; lane++) sum[lane] += sum[lane + half];
    return sum[0];
}

static double dot(const product *p, const double *a, const double *b) {
    const uint64_t lanes = (uint64_t)4 << p->algorithm;
    return wide(p) ? wide_dot(lanes, p->k, a, b) : narrow_dot(lanes, p->k, a, b);
}

static double finish(const product *p, int batch, uint64_t i, double x) {
    if (p->epilogue & CUBLASLT_EPILOGUE_BIAS) {
        const int64_t at = batch * p->bias_stride + (int64_t)i;
        x += load(p->bias + at * (int64_t)type_size(p->bias_type), p->bias_type);
        if (!wide(p)) x = (float)x;
    }
    if ((p->epilogue & CUBLASLT_EPILOGUE_RELU) && x < 0) x = 0;
    if (p->epilogue & CUBLASLT_EPILOGUE_GELU) {
        const float f = (float)x;
        x = 0.5f * f * (1 + tanhf(0.7978845608f * (f + 0.044715f * f * f * f)));
    }
    return x;
}

static double scaled(const product *p, double alpha, double sum, double beta, double c) {
    if (wide(p)) return beta == 0 ? alpha * sum : alpha * sum + beta * c;
    const float first = (float)alpha * (float)sum;
    return beta == 0 ? first : first + (float)beta * (float)c;
}

/* D may be C: every element of C is read before the one of D at its place is written. */
static void run_batch(const product *p, int batch, const double *rows, const double *columns) {
    const double alpha = load(p->device_alpha ? p->device_alpha : p->alpha, p->scale);
    const double beta = load(p->device_beta ? p->device_beta : p->beta, p->scale);
    for (uint64_t i = 0; i < p->m; i++)
        for (uint64_t j = 0; j < p->n; j++) {
            const double sum = alpha == 0 ? 0 : dot(p, rows + i * p->k, columns + j * p->k);
            const double c = beta == 0 ? 0 : load(element(&p->c, batch, i, j), p->c.type);
            const double x = scaled(p, alpha, sum, beta, c);
            store(element(&p->d, batch, i, j), p->d.type, finish(p, batch, i, x));
        }
}

/* What should be cleared before each run; if it is not, the result is no product. */
static bool counts_are_clear(const product *p) {
    bool clear = true;
    for (int i = 0; p->counts && i < COUNTS_SIZE; i++) {
        clear &= !p->counts[i];
        p->counts[i] = 0xa5;
    }
    return clear;
}

static void run_product(const void *data) {
    const product *p = data;
    if (!counts_are_clear(p)) return;
    double *rows = malloc((p->m + p->n) * p->k * sizeof *rows + 1), *columns = rows + p->m * p->k;
    if (!rows) abort();
    for (int batch = 0; batch < p->d.batches; batch++) {
        read_lines(p, batch, false, rows);
        read_lines(p, batch, true, columns);
        run_batch(p, batch, rows, columns);
    }
    free(rows);
}

/* ---- memory ---- */

static size_t extent(const matrix *x) {
    const uint64_t lines = x->row_order ? x->rows : x->cols;
    const uint64_t line = x->row_order ? x->cols : x->rows;
    const int64_t last =
        (int64_t)(lines - 1) * x->ld + (int64_t)line + (int64_t)(x->batches - 1) * x->batch_stride;
    return (size_t)last * type_size(x->type);
}

static bool inside(const matrix *x) { return fake_cuda_is_device((uintptr_t)x->at, extent(x)); }

static cublasStatus_t check_memory(const product *p, const void *workspace, size_t size) {
    const bool bias = p->epilogue & CUBLASLT_EPILOGUE_BIAS;
    CHECK(inside(&p->a) && inside(&p->b) && inside(&p->d), CUBLAS_STATUS_EXECUTION_FAILED);
    CHECK(!p->c.at || inside(&p->c), CUBLAS_STATUS_EXECUTION_FAILED);
    CHECK(!bias || fake_cuda_is_device((uintptr_t)p->bias, p->m * type_size(p->bias_type)),
          CUBLAS_STATUS_EXECUTION_FAILED);
    CHECK(!size || !workspace || fake_cuda_is_device((uintptr_t)workspace, size),
          CUBLAS_STATUS_EXECUTION_FAILED);
    return CUBLAS_STATUS_SUCCESS;
}

static bool line_aligned(const matrix *x, size_t alignment) {
    return alignment % ALIGNMENT == 0 && (size_t)x->ld * type_size(x->type) % ALIGNMENT == 0 &&
           (size_t)x->batch_stride * type_size(x->type) % ALIGNMENT == 0;
}

/* Algorithms after the first want rows that start at multiples of 16 bytes. */
static bool fits(const product *p, int algorithm, const size_t alignment[4]) {
    if (!algorithm) return true;
    return line_aligned(&p->a, alignment[0]) && line_aligned(&p->b, alignment[1]) &&
           line_aligned(&p->c, alignment[2]) && line_aligned(&p->d, alignment[3]);
}

static size_t alignment_of(const void *at) {
    const uintptr_t bits = (uintptr_t)at | 256;
    return (size_t)(bits & -bits);
}

static void alignments(const product *p, size_t out[4]) {
    out[0] = alignment_of(p->a.at);
    out[1] = alignment_of(p->b.at);
    out[2] = alignment_of(p->c.at);
    out[3] = alignment_of(p->d.at);
}

/* ---- algorithms ---- */

enum { WORD_ID, WORD_MAGIC, WORD_CONFIG, ALGO_MAGIC = 0xa190 };

static void make_algo(cublasLtMatmulAlgo_t *algo, int id) {
    memset(algo, 0, sizeof *algo);
    algo->data[WORD_ID] = (uint64_t)id;
    algo->data[WORD_MAGIC] = ALGO_MAGIC;
}

static int algo_id(const cublasLtMatmulAlgo_t *algo) {
    const bool good = algo->data[WORD_MAGIC] == ALGO_MAGIC && algo->data[WORD_ID] < ALGORITHMS;
    return good ? (int)algo->data[WORD_ID] : -1;
}

static cublasLtMatmulHeuristicResult_t result_for(int id) {
    cublasLtMatmulHeuristicResult_t result = {.workspaceSize = workspaces[id], .wavesCount = 1};
    make_algo(&result.algo, id);
    return result;
}

cublasStatus_t
cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                               cublasLtMatrixLayout_t a_layout, cublasLtMatrixLayout_t b_layout,
                               cublasLtMatrixLayout_t c_layout, cublasLtMatrixLayout_t d_layout,
                               cublasLtMatmulPreference_t preference, int wanted,
                               cublasLtMatmulHeuristicResult_t results[], int *count) {
    ENTER(cublasLtMatmulAlgoGetHeuristic);
    CHECK(handle, CUBLAS_STATUS_NOT_INITIALIZED);
    CHECK(preference && wanted > 0 && results && count, BAD);
    product p;
    TRY(read_product(&p, desc, a_layout, b_layout, c_layout, d_layout));
    const size_t alignment[4] = {preference->data[3], preference->data[4], preference->data[5],
                                 preference->data[6]};
    *count = 0;
    for (int id = ALGORITHMS - 1; id >= 0 && *count < wanted; id--)
        if (workspaces[id] <= preference->data[1] && fits(&p, id, alignment))
            results[(*count)++] = result_for(id);
    return *count ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

static cublasStatus_t choose(product *p, const cublasLtMatmulAlgo_t *algo, size_t workspace) {
    size_t alignment[4];
    alignments(p, alignment);
    if (algo) {
        p->algorithm = algo_id(algo);
        CHECK(p->algorithm >= 0 && workspaces[p->algorithm] <= workspace, BAD);
        CHECK(fits(p, p->algorithm, alignment), CUBLAS_STATUS_NOT_SUPPORTED);
        return CUBLAS_STATUS_SUCCESS;
    }
    for (int id = 0; id < ALGORITHMS; id++)
        if (workspaces[id] <= workspace && fits(p, id, alignment)) p->algorithm = id;
    return CUBLAS_STATUS_SUCCESS;
}

static void read_scalars(product *p, const void *alpha, const void *beta) {
    if (p->pointer_mode == CUBLASLT_POINTER_MODE_DEVICE) {
        p->device_alpha = alpha;
        p->device_beta = beta;
        return;
    }
    memcpy(p->alpha, alpha, type_size(p->scale));
    memcpy(p->beta, beta, type_size(p->scale));
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                              cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                              cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo,
                              void *workspace, size_t workspace_size, cudaStream_t stream) {
    ENTER(cublasLtMatmul);
    CHECK(handle, CUBLAS_STATUS_NOT_INITIALIZED);
    CHECK(alpha && beta && a && b && d, BAD);
    product p;
    TRY(read_product(&p, desc, a_layout, b_layout, c_layout, d_layout));
    CHECK(p.pointer_mode <= CUBLASLT_POINTER_MODE_DEVICE, CUBLAS_STATUS_NOT_SUPPORTED);
    p.a.at = (char *)(uintptr_t)a;
    p.b.at = (char *)(uintptr_t)b;
    p.c.at = (char *)(uintptr_t)c;
    p.d.at = d;
    read_scalars(&p, alpha, beta);
    if (p.pointer_mode == CUBLASLT_POINTER_MODE_HOST) CHECK(c || load(p.beta, p.scale) == 0, BAD);
    TRY(choose(&p, algo, workspace_size));
    TRY(check_memory(&p, workspace, workspace_size));
    if (p.algorithm == COUNTS && workspace) {
        p.counts = workspace;
        CHECK(!cuMemsetD8Async((uintptr_t)workspace, 0, COUNTS_SIZE, stream),
              CUBLAS_STATUS_EXECUTION_FAILED);
    }
    const CUresult result = fake_cuda_submit(stream, "cublasLtMatmul", run_product, &p, sizeof p);
    return result ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}
