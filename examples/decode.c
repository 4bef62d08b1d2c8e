/* Decoding with a cache of keys and values: a transformer of random weights writes one token after
 * the other. Each step adds a row to the caches, in place, at a place that moves on, and attends
 * over what is filled. One compiled function serves all lengths: the position is an integer that
 * operators take, so it becomes a run-time value after it was seen to change, once.
 *
 * Shown by counters: after the first steps nothing is compiled any more, no step needs memory of
 * the size of a cache, and steps give the bits of eager ones and the numbers of a pass over the
 * whole text. decode [TOKENS] */
#include <etch/etch.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SYMBOLS = 64, WIDTH = 128, HEADS = 4, LAYERS = 4, CONTEXT = 512, TOP = 8 };

typedef struct layer {
    etch_tensor *norm[2], *qkv, *out, *up, *down; /* weights */
    etch_tensor *keys, *values;                   /* [1, HEADS, CONTEXT, WIDTH / HEADS] */
} layer;

typedef struct decoder {
    etch_tensor *symbols, *places, *head;
    layer layers[LAYERS];
    int64_t at; /* the place of the step */
} decoder;

/* ---- the model ---- */

static etch_tensor *random_of(int64_t rows, int64_t columns, double std) {
    etch_tensor *t = etch_randn(ETCH_F32, ETCH_SHAPE(rows, columns));
    return etch_retain(etch_mul_scalar(t, std));
}

static void begin(decoder *d) {
    double std = 1 / sqrt(WIDTH);
    etch_shape cache = ETCH_SHAPE(1, HEADS, CONTEXT, WIDTH / HEADS);
    etch_manual_seed(7);
    ETCH_SCOPE {
        d->symbols = random_of(SYMBOLS, WIDTH, 1), d->places = random_of(CONTEXT, WIDTH, 1);
        d->head = random_of(SYMBOLS, WIDTH, std);
        for (int i = 0; i < LAYERS; i++) {
            layer *l = &d->layers[i];
            for (int k = 0; k < 2; k++)
                l->norm[k] = etch_retain(etch_ones(ETCH_F32, ETCH_SHAPE(WIDTH)));
            l->qkv = random_of(3L * WIDTH, WIDTH, std), l->out = random_of(WIDTH, WIDTH, std);
            l->up = random_of(4L * WIDTH, WIDTH, std),
            l->down = random_of(WIDTH, 4L * WIDTH, std / 2);
            l->keys = etch_retain(etch_zeros(ETCH_F32, cache));
            l->values = etch_retain(etch_zeros(ETCH_F32, cache));
        }
    }
}

static void end(decoder *d) {
    etch_release(d->symbols), etch_release(d->places), etch_release(d->head);
    for (int i = 0; i < LAYERS; i++) {
        layer *l = &d->layers[i];
        etch_tensor *all[] = {l->norm[0], l->norm[1], l->qkv,  l->out,
                              l->up,      l->down,    l->keys, l->values};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++) etch_release(all[k]);
    }
}

/* Part 0, 1 or 2 of [1, n, 3 WIDTH], as heads: [1, HEADS, n, WIDTH / HEADS]. */
static etch_tensor *heads(etch_tensor *qkv, int part) {
    int64_t n = etch_size(qkv, 1);
    etch_tensor *t = etch_slice(qkv, 2, part * WIDTH, (part + 1) * WIDTH, 1);
    etch_tensor *split = etch_reshape(t, ETCH_SHAPE(1, n, HEADS, WIDTH / HEADS));
    return etch_transpose(split, 1, 2);
}

/* Writes rows into a cache from place `at` on, and gives what is filled by now. */
static etch_tensor *remember(etch_tensor *cache, etch_tensor *rows, int64_t at) {
    int64_t end = at + etch_size(rows, 2);
    etch_tensor *place = etch_slice(cache, 2, at, end, 1);
    etch_copy_(place, rows);
    return etch_slice(cache, 2, 0, end, 1);
}

static etch_tensor *normal(etch_tensor *x, etch_tensor *w) {
    return etch_layer_norm(x, ETCH_DIMS(WIDTH), w, ETCH_NONE, 1e-5);
}

static etch_tensor *block(const decoder *d, const layer *l, etch_tensor *x) {
    etch_tensor *qkv = etch_linear(normal(x, l->norm[0]), l->qkv, ETCH_NONE);
    etch_tensor *q = heads(qkv, 0), *new_k = heads(qkv, 1), *new_v = heads(qkv, 2);
    etch_tensor *k = remember(l->keys, new_k, d->at);
    etch_tensor *v = remember(l->values, new_v, d->at);
    bool causal = etch_size(x, 1) > 1; /* a whole text; one token sees all that is filled */
    etch_tensor *seen = etch_scaled_dot_product_attention(q, k, v, ETCH_NONE, 0.0, causal, 0.0);
    etch_tensor *merged =
        etch_reshape(etch_transpose(seen, 1, 2), ETCH_SHAPE(1, etch_size(x, 1), WIDTH));
    x = etch_add(x, etch_linear(merged, l->out, ETCH_NONE));
    etch_tensor *inner = etch_linear(normal(x, l->norm[1]), l->up, ETCH_NONE);
    return etch_add(x, etch_linear(etch_gelu(inner), l->down, ETCH_NONE));
}

/* Tokens [n] from place d->at on; the scores of what comes after each, [n, SYMBOLS]. */
static etch_tensor *forward(const decoder *d, etch_tensor *tokens) {
    int64_t n = etch_size(tokens, 0);
    etch_tensor *what = etch_embedding(d->symbols, tokens);
    etch_tensor *where = etch_slice(d->places, 0, d->at, d->at + n, 1);
    etch_tensor *x = etch_unsqueeze(etch_add(what, where), 0);
    for (int i = 0; i < LAYERS; i++) x = block(d, &d->layers[i], x);
    return etch_linear(etch_squeeze_dim(x, 0), d->head, ETCH_NONE);
}

static ETCH_FN_N(step, ctx, in, nin, out, nout) {
    out[0] = forward(ctx, in[0]);
    return out[0] ? ETCH_OK : etch_last_status();
}

/* ---- what comes next ---- */

/* 0 to 1, by a generator of the example's own. */
static double chance(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 11) * 0x1p-53;
}

static int largest(const float *scores) {
    int best = 0;
    for (int i = 1; i < SYMBOLS; i++) best = scores[i] > scores[best] ? i : best;
    return best;
}

/* One of the TOP best, each by its share of their exponentials. */
static int sampled(const float *scores, uint64_t *state) {
    float left[SYMBOLS], weight[TOP], sum = 0;
    int best[TOP];
    memcpy(left, scores, sizeof left);
    for (int k = 0; k < TOP; k++) {
        best[k] = largest(left);
        weight[k] = expf(scores[best[k]] - scores[best[0]]), sum += weight[k];
        left[best[k]] = -INFINITY;
    }
    double at = chance(state) * sum;
    int k = 0;
    while (k < TOP - 1 && (at -= weight[k]) >= 0) k++;
    return best[k];
}

/* ---- a text ---- */

typedef struct text {
    int64_t tokens[CONTEXT];
    float scores[CONTEXT][SYMBOLS]; /* behind each token */
    int64_t most;              /* bytes that a step has needed at most, but for the first few */
    int64_t graphs, instances; /* compiled after these, and plans made for other sizes */
} text;

static bool write_token(decoder *d, etch_function *f, int64_t token, float *scores) {
    etch_tensor *in = etch_from_host(&token, ETCH_I64, ETCH_SHAPE(1)), *out = NULL;
    if (!in) return false;
    if (f ? etch_call_n(f, &in, 1, &out, 1) != ETCH_OK : !(out = forward(d, in))) return false;
    return etch_to_host(out, scores, SYMBOLS * sizeof *scores) == ETCH_OK;
}

/* n tokens, from token 1 on; f: NULL for eager. */
static bool decode(decoder *d, etch_function *f, int64_t n, bool greedy, text *t) {
    enum { FIRST = 4 };
    uint64_t state = 1;
    bool ok = true;
    int64_t token = 1;
    t->most = 0;
    for (d->at = 0; ok && d->at < n; d->at++) {
        if (d->at == FIRST)
            t->graphs = etch_counters().graphs, t->instances = etch_counters().instances;
        ETCH_SCOPE {
            etch_memory_reset_peak();
            int64_t before = etch_memory().bytes_live;
            t->tokens[d->at] = token;
            ok = write_token(d, f, token, t->scores[d->at]);
            int64_t needed = etch_memory().bytes_peak - before;
            if (d->at >= FIRST && needed > t->most) t->most = needed;
            token = greedy ? largest(t->scores[d->at]) : sampled(t->scores[d->at], &state);
        }
    }
    t->graphs = etch_counters().graphs - t->graphs;
    t->instances = etch_counters().instances - t->instances;
    return ok;
}

/* The largest difference to the scores of one pass over the whole text. */
static double against_whole(decoder *d, const text *t, int64_t n) {
    static float scores[CONTEXT][SYMBOLS];
    double worst = 0;
    d->at = 0;
    ETCH_SCOPE {
        etch_tensor *in = etch_from_host(t->tokens, ETCH_I64, ETCH_SHAPE(n));
        etch_tensor *out = in ? forward(d, in) : NULL;
        if (etch_to_host(out, scores, (size_t)n * sizeof *scores) != ETCH_OK) return INFINITY;
    }
    for (int64_t i = 0; i < n; i++)
        for (int k = 0; k < SYMBOLS; k++) worst = fmax(worst, fabs(scores[i][k] - t->scores[i][k]));
    return worst;
}

static void print_text(const char *name, const text *t, int64_t n) {
    printf("%-8s", name);
    for (int64_t i = 0; i < n && i < 64; i++) putchar((int)(' ' + 1 + t->tokens[i]));
    printf("%s\n", n > 64 ? " ..." : "");
}

/* Whether all is as the head of this file says. */
static bool run(decoder *d, etch_function *f, int64_t n, bool greedy) {
    static text compiled, eager;
    const int64_t cache = etch_numel(d->layers[0].keys) * (int64_t)sizeof(float);
    if (!decode(d, f, n, greedy, &compiled) || !decode(d, NULL, n, greedy, &eager)) {
        fprintf(stderr, "decode: %s\n", etch_last_error());
        return false;
    }
    bool same = !memcmp(compiled.tokens, eager.tokens, (size_t)n * sizeof *eager.tokens) &&
                !memcmp(compiled.scores, eager.scores, (size_t)n * sizeof *eager.scores);
    double off = against_whole(d, &compiled, n);
    print_text(greedy ? "greedy" : "top-8", &compiled, n);
    printf("  %lld lengths: %lld graphs and %lld plans after the first steps, bits of eager %s, "
           "off the whole "
           "pass by %.1g\n  memory of a step: at most %lld bytes (one cache has %lld)\n",
           (long long)n, (long long)compiled.graphs, (long long)compiled.instances,
           same ? "yes" : "NO", off, (long long)compiled.most, (long long)cache);
    return same && off < 1e-3 && compiled.graphs == 0 && compiled.most < cache;
}

int main(int argc, char **argv) {
    int64_t n = argc > 1 ? atoll(argv[1]) : CONTEXT;
    decoder d = {NULL};
    if (n < 8 || n > CONTEXT) return fprintf(stderr, "decode: 8 to %d tokens\n", CONTEXT), 2;
    begin(&d);
    etch_function *f = etch_compile(step, .fullgraph = true, .name = "decode", .ctx = &d);
    bool ok = f != NULL;
    ok = ok && run(&d, f, n, true);
    ok = ok && run(&d, f, n, false);
    printf("decode: %s\n", ok ? "ok" : "FAILED");
    etch_function_free(f);
    end(&d);
    return !ok;
}
