#include "bench.h"
#include "models.h"

#include <etch/nn.h>
#include <math.h>

/* ---- weights ---- */

/* mean + std times a normal distribution, in the model's dtype. */
static etch_tensor *weight(net *n, etch_shape sizes, double mean, double std) {
    if (n->next == n->count) {
        if (n->count == MODEL_WEIGHTS) bench_fail("more weights than there is room for");
        etch_tensor *random = etch_mul_scalar(etch_randn(ETCH_F32, sizes), std);
        etch_tensor *w = etch_to(etch_add_scalar(random, mean), n->dtype);
        if (!w) bench_fail("a weight");
        n->weights[n->count++] = etch_retain(w);
    }
    return n->weights[n->next++];
}

static etch_tensor *vector(net *n, int64_t size, double mean) {
    return weight(n, ETCH_SHAPE(size), mean, 0.1);
}

static etch_tensor *matrix(net *n, int64_t out, int64_t in) {
    return weight(n, ETCH_SHAPE(out, in), 0, 1 / sqrt((double)in));
}

/* ---- layers ---- */

static etch_tensor *linear(net *n, etch_tensor *x, int64_t in, int64_t out) {
    etch_tensor *w = matrix(n, out, in), *b = vector(n, out, 0);
    return etch_linear(x, w, b);
}

/* The matrix, of which the peers make theirs, what the product takes of it, and the scales. */
static etch_tensor *linear_q(net *n, etch_tensor *x, int64_t in, int64_t out) {
    etch_tensor *w = matrix(n, out, in), *packed, *scales;
    if (n->next == n->count) {
        int64_t group = n->bits == 4 ? 32 : 0;
        etch_dtype kind = group ? ETCH_BF16 : ETCH_F32;
        if (etch_quantize_with(w, n->bits, group, kind, &packed, &scales) != ETCH_OK)
            bench_fail("etch_quantize_with");
        n->weights[n->count++] = etch_retain(packed);
        n->weights[n->count++] = etch_retain(scales);
    }
    packed = n->weights[n->next++], scales = n->weights[n->next++];
    return etch_linear_q(x, packed, scales, ETCH_NONE);
}

static etch_tensor *plain_linear(net *n, etch_tensor *x, int64_t in, int64_t out) {
    if (n->bits) return linear_q(n, x, in, out);
    return etch_linear(x, matrix(n, out, in), ETCH_NONE);
}

static etch_tensor *layer_norm(net *n, etch_tensor *x) {
    etch_tensor *w = vector(n, n->width, 1), *b = vector(n, n->width, 0);
    return etch_layer_norm(x, ETCH_DIMS(n->width), w, b, 1e-5);
}

static etch_tensor *rms_norm(net *n, etch_tensor *x) {
    etch_tensor *wide = etch_to(x, ETCH_F32), *w = vector(n, n->width, 1);
    etch_tensor *mean = etch_mean_dim(etch_square(wide), ETCH_DIMS(-1), true);
    etch_tensor *factor = etch_rsqrt(etch_add_scalar(mean, 1e-5));
    return etch_mul(etch_to(etch_mul(wide, factor), n->dtype), w);
}

/* [b, t, width] to [b, heads, t, width / heads] and back. */
static etch_tensor *split(const net *n, etch_tensor *x) {
    etch_shape sizes = ETCH_SHAPE(etch_size(x, 0), etch_size(x, 1), n->heads, n->width / n->heads);
    return etch_transpose(etch_view(x, sizes), 1, 2);
}

static etch_tensor *merge(const net *n, etch_tensor *x) {
    etch_shape sizes = ETCH_SHAPE(etch_size(x, 0), etch_size(x, 2), n->width);
    return etch_reshape(etch_transpose(x, 1, 2), sizes);
}

static etch_tensor *attend(etch_tensor *q, etch_tensor *k, etch_tensor *v, bool causal) {
    return etch_scaled_dot_product_attention(q, k, v, ETCH_NONE, 0.0, causal, 0.0);
}

/* ---- encoders ---- */

static etch_tensor *encoder_layer(net *n, etch_tensor *x) {
    etch_tensor *q = split(n, linear(n, x, n->width, n->width));
    etch_tensor *k = split(n, linear(n, x, n->width, n->width));
    etch_tensor *v = split(n, linear(n, x, n->width, n->width));
    etch_tensor *seen = merge(n, attend(q, k, v, false));
    etch_tensor *y = layer_norm(n, etch_add(x, linear(n, seen, n->width, n->width)));
    etch_tensor *inner = etch_gelu(linear(n, y, n->width, n->inner));
    return layer_norm(n, etch_add(y, linear(n, inner, n->inner, n->width)));
}

static etch_tensor *encoder(net *n, etch_tensor *x) {
    for (int64_t i = 0; i < n->layers; i++) x = encoder_layer(n, x);
    return x;
}

/* ---- decoders ---- */

/* cos and sin of place p times 10000^(-2 i / d), [length, d], both halves alike. */
static void angles(net *n, int64_t length, etch_tensor **cos, etch_tensor **sin) {
    int64_t half = n->width / n->heads / 2;
    etch_tensor *place = etch_arange(ETCH_F32, 0, (double)length, 1);
    etch_tensor *i = etch_arange(ETCH_F32, 0, (double)half, 1);
    etch_tensor *rate = etch_exp(etch_mul_scalar(i, -log(10000) / (double)half));
    etch_tensor *angle = etch_mul(etch_unsqueeze(place, 1), rate);
    etch_tensor *both = etch_cat((etch_tensor *[]){angle, angle}, 2, 1);
    *cos = etch_to(etch_cos(both), n->dtype);
    *sin = etch_to(etch_sin(both), n->dtype);
}

static etch_tensor *rotate(etch_tensor *x, etch_tensor *cos, etch_tensor *sin) {
    int64_t d = etch_size(x, 3);
    etch_tensor *low = etch_slice(x, 3, 0, d / 2, 1), *high = etch_slice(x, 3, d / 2, d, 1);
    etch_tensor *turned = etch_cat((etch_tensor *[]){etch_neg(high), low}, 2, 3);
    return etch_add(etch_mul(x, cos), etch_mul(turned, sin));
}

static etch_tensor *gated_unit(net *n, etch_tensor *x) {
    etch_tensor *gate = etch_silu(plain_linear(n, x, n->width, n->inner));
    etch_tensor *up = plain_linear(n, x, n->width, n->inner);
    return plain_linear(n, etch_mul(gate, up), n->inner, n->width);
}

/* The constants of a model are made once, as weights are. */
static etch_tensor *constant(net *n, etch_tensor *value) {
    if (n->next == n->count) n->weights[n->count++] = etch_retain(value);
    return n->weights[n->next++];
}

/* Cosines and sines. */
static void model_constants(net *n, int64_t length, etch_tensor *c[2]) {
    c[0] = c[1] = NULL;
    if (n->next == n->count) angles(n, length, &c[0], &c[1]);
    c[0] = constant(n, c[0]), c[1] = constant(n, c[1]);
}

static etch_tensor *llama_block(net *n, etch_tensor *x, etch_tensor *const c[2]) {
    etch_tensor *y = rms_norm(n, x);
    etch_tensor *q = rotate(split(n, plain_linear(n, y, n->width, n->width)), c[0], c[1]);
    etch_tensor *k = rotate(split(n, plain_linear(n, y, n->width, n->width)), c[0], c[1]);
    etch_tensor *v = split(n, plain_linear(n, y, n->width, n->width));
    etch_tensor *seen = merge(n, attend(q, k, v, true));
    x = etch_add(x, plain_linear(n, seen, n->width, n->width));
    return etch_add(x, gated_unit(n, rms_norm(n, x)));
}

static etch_tensor *llama(net *n, etch_tensor *x) {
    etch_tensor *c[2];
    model_constants(n, etch_size(x, 1), c);
    for (int64_t i = 0; i < n->layers; i++) x = llama_block(n, x, c);
    return x;
}

/* One row of the keys or values so far; the cache is written at the place of the step. */
static etch_tensor *remember(net *n, etch_tensor *row, int64_t most) {
    int64_t at = n->length - 1;
    etch_tensor *cache = weight(n, ETCH_SHAPE(1, n->heads, most, n->width / n->heads), 0, 1);
    etch_copy_(etch_slice(cache, 2, at, at + 1, 1), row);
    return etch_slice(cache, 2, 0, at + 1, 1);
}

static etch_tensor *decode_block(net *n, etch_tensor *x) {
    enum { MOST = 2048 };
    int64_t at = n->length - 1;
    etch_tensor *c[2];
    model_constants(n, MOST, c);
    etch_tensor *cos = etch_slice(c[0], 0, at, at + 1, 1),
                *sin = etch_slice(c[1], 0, at, at + 1, 1);
    etch_tensor *y = rms_norm(n, x);
    etch_tensor *q = rotate(split(n, plain_linear(n, y, n->width, n->width)), cos, sin);
    etch_tensor *k = rotate(split(n, plain_linear(n, y, n->width, n->width)), cos, sin);
    etch_tensor *v = split(n, plain_linear(n, y, n->width, n->width));
    k = remember(n, k, MOST);
    v = remember(n, v, MOST);
    etch_tensor *seen = merge(n, attend(q, k, v, false));
    x = etch_add(x, plain_linear(n, seen, n->width, n->width));
    return etch_add(x, gated_unit(n, rms_norm(n, x)));
}

/* Several layers, with weights of few bits: too many for a cache. */
static etch_tensor *decoder(net *n, etch_tensor *x) {
    for (int64_t i = 0; i < n->layers; i++) x = decode_block(n, x);
    return rms_norm(n, x);
}

/* ---- convolutional networks ---- */

static etch_tensor *for_channels(etch_tensor *t) {
    return etch_view(t, ETCH_SHAPE(1, etch_numel(t), 1, 1));
}

/* Batch norm by its statistics. */
static etch_tensor *batch_norm(net *n, etch_tensor *x) {
    int64_t c = etch_size(x, 1);
    etch_tensor *w = vector(n, c, 1), *b = vector(n, c, 0);
    etch_tensor *mean = vector(n, c, 0), *var = etch_square(vector(n, c, 1));
    etch_tensor *factor = etch_rsqrt(etch_add_scalar(for_channels(var), 1e-5));
    etch_tensor *normal = etch_mul(etch_sub(x, for_channels(mean)), factor);
    return etch_add(etch_mul(normal, for_channels(w)), for_channels(b));
}

static etch_tensor *convolution(net *n, etch_tensor *x, int64_t out, int64_t side, int64_t stride) {
    int64_t in = etch_size(x, 1);
    double std = sqrt(2 / (double)(in * side * side));
    etch_tensor *w = weight(n, ETCH_SHAPE(out, in, side, side), 0, std);
    etch_tensor *y = etch_conv2d(x, w, ETCH_NONE, ETCH_DIMS(stride, stride),
                                 ETCH_DIMS(side / 2, side / 2), ETCH_DIMS(1, 1), 1);
    return batch_norm(n, y);
}

static etch_tensor *bottleneck(net *n, etch_tensor *x, int64_t inner, int64_t stride) {
    etch_tensor *y = etch_relu(convolution(n, x, inner, 1, 1));
    y = etch_relu(convolution(n, y, inner, 3, stride));
    y = convolution(n, y, 4 * inner, 1, 1);
    if (etch_size(x, 1) != 4 * inner) x = convolution(n, x, 4 * inner, 1, stride);
    return etch_relu(etch_add(x, y));
}

static etch_tensor *resnet_block(net *n, etch_tensor *x) { return bottleneck(n, x, n->inner, 1); }

static etch_tensor *resnet50(net *n, etch_tensor *x) {
    static const int blocks[4] = {3, 4, 6, 3};
    x = etch_relu(convolution(n, x, 64, 7, 2));
    x = etch_max_pool2d(x, ETCH_DIMS(3, 3), ETCH_DIMS(2, 2), ETCH_DIMS(1, 1), ETCH_DIMS(1, 1),
                        false);
    for (int stage = 0; stage < 4; stage++)
        for (int i = 0; i < blocks[stage]; i++)
            x = bottleneck(n, x, (int64_t)64 << stage, stage > 0 && i == 0 ? 2 : 1);
    x = etch_mean_dim(x, ETCH_DIMS(2, 3), false);
    return linear(n, x, 2048, 1000);
}

/* ---- a recurrent cell ---- */

/* The new state. The input is x, h and c: a state that was a weight would be folded into constants
 * by some peers, one of the two products with it. */
static etch_tensor *lstm_cell(net *n, etch_tensor *input) {
    int64_t width = n->width;
    etch_tensor *x = etch_select(input, 0, 0), *h = etch_select(input, 0, 1);
    etch_tensor *c = etch_select(input, 0, 2);
    etch_tensor *from_x = linear(n, x, width, 4 * width);
    etch_tensor *gates = etch_add(from_x, linear(n, h, width, 4 * width));
    etch_tensor *part[4];
    for (int i = 0; i < 4; i++) part[i] = etch_slice(gates, 1, i * width, (i + 1) * width, 1);
    etch_tensor *kept = etch_mul(etch_sigmoid(part[1]), c);
    etch_tensor *open = etch_sigmoid(part[0]);
    c = etch_add(kept, etch_mul(open, etch_tanh(part[2])));
    etch_tensor *shown = etch_sigmoid(part[3]);
    return etch_mul(shown, etch_tanh(c));
}

/* ---- parts of models, alone ---- */

static etch_tensor *attention(net *n, etch_tensor *q, bool causal) {
    etch_shape sizes = ETCH_SHAPE(etch_size(q, 0), etch_size(q, 1), etch_size(q, 2), n->width);
    etch_tensor *k = weight(n, sizes, 0, 1), *v = weight(n, sizes, 0, 1);
    return attend(q, k, v, causal);
}
static etch_tensor *full(net *n, etch_tensor *q) { return attention(n, q, false); }
static etch_tensor *causal(net *n, etch_tensor *q) { return attention(n, q, true); }

static etch_tensor *product(net *n, etch_tensor *x) {
    return etch_mm(x, matrix(n, etch_size(x, 1), n->width));
}

/* ---- rows ---- */

#define GPU(type) .gpu = true, .dtype = type

const model_row model_rows[] = {
    {"encoder", encoder, {1, 128, 384}, .layers = 1, .width = 384, .heads = 12, .inner = 1536},
    {"minilm", encoder, {1, 128, 384}, .layers = 6, .width = 384, .heads = 12, .inner = 1536},
    {"minilm", encoder, {8, 128, 384}, .layers = 6, .width = 384, .heads = 12, .inner = 1536},
    {"bert_base", encoder, {1, 128, 768}, .layers = 12, .width = 768, .heads = 12, .inner = 3072},
    {"bert_base", encoder, {8, 128, 768}, .layers = 12, .width = 768, .heads = 12, .inner = 3072},
    {"llama_prefill", llama, {1, 512, 1024}, 1, .width = 1024, .heads = 8, .inner = 2816},
    {"llama_prefill", llama, {1, 2048, 1024}, 1, .width = 1024, .heads = 8, .inner = 2816},
    {"llama_decode", decode_block, {1, 1, 1024}, 0, 1024, 8, 2816, .length = 1},
    {"llama_decode", decode_block, {1, 1, 1024}, 0, 1024, 8, 2816, .length = 128},
    {"llama_decode", decode_block, {1, 1, 1024}, 0, 1024, 8, 2816, .length = 512},
    {"llama_decode", decode_block, {1, 1, 1024}, 0, 1024, 8, 2816, .length = 2048},
    {"decode_int8", decoder, {1, 1, 2048}, 4, 2048, 16, 5632, .length = 1, .bits = 8},
    {"decode_int8", decoder, {1, 1, 2048}, 4, 2048, 16, 5632, .length = 512, .bits = 8},
    {"decode_int4", decoder, {1, 1, 2048}, 4, 2048, 16, 5632, .length = 1, .bits = 4},
    {"decode_int4", decoder, {1, 1, 2048}, 4, 2048, 16, 5632, .length = 512, .bits = 4},
    {"resnet_block", resnet_block, {1, 256, 56, 56}, .inner = 64},
    {"resnet50", resnet50, {1, 3, 224, 224}, .width = 0},
    {"lstm_cell", lstm_cell, {3, 32, 256}, .width = 256},
    {"bert_f32", encoder, {1, 128, 384}, 6, 384, 12, .inner = 1536, GPU(ETCH_F32)},
    {"bert_bf16", encoder, {8, 128, 768}, 12, 768, 12, .inner = 3072, GPU(ETCH_BF16)},
    {"llama_512", llama, {1, 512, 2048}, 4, 2048, 16, .inner = 5632, GPU(ETCH_BF16)},
    {"llama_2048", llama, {4, 2048, 2048}, 2, 2048, 16, .inner = 5632, GPU(ETCH_BF16)},
    {"llama_decode", decode_block, {1, 1, 1024}, 0, 1024, 8, 2816, .length = 1, GPU(ETCH_BF16)},
    {"llama_decode", decode_block, {1, 1, 1024}, 0, 1024, 8, 2816, .length = 128, GPU(ETCH_BF16)},
    {"llama_decode", decode_block, {1, 1, 1024}, 0, 1024, 8, 2816, .length = 512, GPU(ETCH_BF16)},
    {"llama_decode", decode_block, {1, 1, 1024}, 0, 1024, 8, 2816, .length = 2048, GPU(ETCH_BF16)},
    {"sdpa_full", full, {4, 16, 2048, 128}, .width = 128, GPU(ETCH_BF16)},
    {"sdpa_causal", causal, {4, 16, 2048, 128}, .width = 128, GPU(ETCH_BF16)},
    {"product", product, {4096, 4096}, .width = 4096, GPU(ETCH_BF16)},
    {.name = NULL},
};
