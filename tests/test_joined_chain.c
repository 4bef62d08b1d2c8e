/* What follows a product of bf16 as a chain of operations (backends/cpu/joined_chain.c,
 * isa/chain.c): each rounding of all kinds of bits as scalars round, parts of vectors and of groups
 * of rows; convolutions with batch norm, residuals, two branches and relu compiled bit for bit as
 * eager, with NaN and infinities, and which of them are chains. And what a tile of a convolution is
 * made of: runs of terms, and whole sets of rows where those are few.
 * Labels: optimised. */
#include "backends/cpu/conv_direct.h"
#include "core/base/counters.h"
#include "cpu_support.h"

#define S ETCH_SHAPE

static bool has_chains(void) {
    return etch__isa_table()->chain->run && etch__cpu_level() >= CPU_LEVEL_DOTS;
}

/* ---- one tile ---- */

enum { COLS_MOST = 70, ROWS_MOST = 9, PITCH = 80 };

static float from_bits(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static uint32_t bits_of(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

/* All ties and their neighbours, denormals, the largest ones; NaNs quiet with a low half of 0. */
static float any_sum(uint32_t *seed) {
    static const uint32_t low[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff, 0x18000, 0x17fff};
    *seed = *seed * 1664525 + 1013904223;
    uint32_t u = (*seed & 0xffff0000u) + low[*seed >> 8 & 7];
    if (isnan(from_bits(u))) u = (u & 0xffff0000u) | 0x400000;
    return from_bits(u);
}

static uint16_t scalar_bf16(float x) {
    uint32_t u = bits_of(x);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static float widened(uint16_t h) { return from_bits((uint32_t)h << 16); }

typedef struct operand {
    uint16_t row[PITCH], all[ROWS_MOST * PITCH];
} operand;

/* relu(bf16(bf16(all - bf16(bf16(x * row)))) + bf16(bf16(x2) + row))), where x2 is `all` */
static uint16_t reference(const operand *o, float x, int r, int c) {
    float row = widened(o->row[c]), all = widened(o->all[r * PITCH + c]);
    float y = widened(scalar_bf16(widened(scalar_bf16(x)) * row));
    y = widened(scalar_bf16(all - y));
    float z = widened(scalar_bf16(all + row));
    float sum = widened(scalar_bf16(y + z));
    return (uint16_t)(bits_of(sum < 0 ? 0 : sum) >> 16);
}

static void check_tile(int rows, int cols, uint32_t seed) {
    static float c[ROWS_MOST * PITCH];
    static uint16_t y[(ROWS_MOST + 1) * PITCH];
    static operand o;
    for (int k = 0; k < PITCH; k++) o.row[k] = scalar_bf16(any_sum(&seed));
    for (int k = 0; k < ROWS_MOST * PITCH; k++) {
        c[k] = any_sum(&seed), o.all[k] = scalar_bf16(any_sum(&seed));
    }
    memset(y, 0x55, sizeof y);
    chain_args a = {.step = {{.op = CHAIN_TILE, .data = y},
                             {.op = CHAIN_ROUND, .data = y},
                             {.op = CHAIN_MUL, .data = o.row},
                             {.op = CHAIN_ROUND, .data = y},
                             {.op = CHAIN_SUB_FROM, .data = o.all, .pitch = PITCH},
                             {.op = CHAIN_ROUND, .data = y},
                             {.op = CHAIN_LOAD, .data = o.all, .pitch = PITCH},
                             {.op = CHAIN_ADD, .data = o.row},
                             {.op = CHAIN_ROUND, .data = y},
                             {.op = CHAIN_BOTH, .data = y},
                             {.op = CHAIN_ROUND, .data = y},
                             {.op = CHAIN_RELU, .data = y}},
                    .n = 12,
                    .c = c,
                    .ldc = PITCH,
                    .rows = rows,
                    .cols = cols,
                    .y = y,
                    .y_pitch = PITCH};
    etch__isa_table()->chain->run(&a);
    for (int r = 0; r <= rows; r++)
        for (int k = 0; k < PITCH; k++) {
            uint16_t got = y[r * PITCH + k];
            bool inside = r < rows && k < cols;
            uint16_t want = inside ? reference(&o, c[r * PITCH + k], r, k) : 0x5555;
            if (inside && isnan(widened(want)) && isnan(widened(got))) continue; /* which of two */
            if (got != want) fail_msg("%d x %d at %d, %d: %x, not %x", rows, cols, r, k, got, want);
        }
}

TEST(chains_round_as_scalars) {
    for (int rows = 1; has_chains() && rows <= ROWS_MOST; rows++)
        for (int cols = 1; cols <= COLS_MOST; cols += 1 + cols % 3)
            for (uint32_t k = 0; k < 4; k++)
                check_tile(rows, cols, (uint32_t)(rows * 1000 + cols) + k * 77777);
}

/* ---- compiled ---- */

static etch_tensor *must(etch_tensor *t) {
    if (!t) fail_msg("%s", etch_last_error());
    return t;
}

static etch_tensor *numbers(etch_shape s) {
    return must(etch_to(must(etch_randn(ETCH_F32, s)), ETCH_BF16));
}

static etch_tensor *conv(etch_tensor *x, etch_tensor *w) {
    return etch_conv2d(x, w, ETCH_NONE, ETCH_DIMS(1, 1), ETCH_DIMS(1, 1), ETCH_DIMS(1, 1), 1);
}

static etch_tensor *batch_norm(etch_tensor *x, etch_tensor *p) {
    etch_tensor *y = etch_mul(etch_sub(x, etch_select(p, 0, 0)), etch_select(p, 0, 1));
    return etch_add(etch_mul(y, etch_select(p, 0, 2)), etch_select(p, 0, 3));
}

/* What a network goes on with: alone, results would lie in planes. */
static etch_tensor *next(etch_tensor *y, etch_tensor *p) {
    etch_tensor *w = etch_reshape(p, S(4, etch_size(p, 2), 1, 1));
    etch_tensor *all[4] = {w, w, w, w}, *two = etch_cat(all, 4, 0);
    return etch_conv2d(y, two, ETCH_NONE, ETCH_DIMS(1, 1), ETCH_DIMS(0, 0), ETCH_DIMS(1, 1), 1);
}

typedef etch_tensor *(*body)(etch_tensor *x, etch_tensor *w, etch_tensor *p, etch_tensor *r);

static etch_tensor *plain(etch_tensor *x, etch_tensor *w, etch_tensor *p, etch_tensor *r) {
    (void)r;
    return next(etch_relu(batch_norm(conv(x, w), p)), p);
}
static etch_tensor *residual(etch_tensor *x, etch_tensor *w, etch_tensor *p, etch_tensor *r) {
    return next(etch_relu(etch_add(r, batch_norm(conv(x, w), p))), p);
}
/* The plan computes the second branch and the sum in a kernel behind the convolution: no chain. */
static etch_tensor *branches(etch_tensor *x, etch_tensor *w, etch_tensor *p, etch_tensor *r) {
    return next(etch_relu(etch_add(batch_norm(conv(x, w), p), batch_norm(r, p))), p);
}
static etch_tensor *subtracted(etch_tensor *x, etch_tensor *w, etch_tensor *p, etch_tensor *r) {
    return next(etch_sub(r, conv(x, w)), p);
}
/* By generated kernels: a function, a value that is read twice. */
static etch_tensor *smooth(etch_tensor *x, etch_tensor *w, etch_tensor *p, etch_tensor *r) {
    (void)r;
    return next(etch_tanh(batch_norm(conv(x, w), p)), p);
}
static etch_tensor *squared(etch_tensor *x, etch_tensor *w, etch_tensor *p, etch_tensor *r) {
    etch_tensor *y = batch_norm(conv(x, w), p);
    return next(etch_add(etch_mul(y, y), r), p);
}

static void spoil(etch_tensor *t) {
    uint16_t *v = etch_data_mut(t);
    int64_t n = etch_numel(t);
    v[n / 2] = 0x7fc1, v[n / 3] = 0x7f80, v[n / 4] = 0xff80, v[n / 5] = 1, v[n / 6] = 0x8000;
}

/* By images, rows, columns, channels in memory. */
static etch_tensor *innermost(etch_shape s) {
    etch_tensor *t = numbers(S(s.v[0], s.v[2], s.v[3], s.v[1]));
    return must(etch_permute(t, ETCH_DIMS(0, 3, 1, 2)));
}

static void check_body(body f, int64_t channels, int64_t out, bool chain) {
    etch_function *g = etch_compile(f);
    assert_non_null(g);
    int64_t before = etch_counters().kernels_chained;
    for (int k = 0; k < 4; k++)
        ETCH_SCOPE {
            etch_set_num_threads(1 + k % 3);
            etch_tensor *x = innermost(S(2, channels, 9, 7)), *w = numbers(S(out, channels, 3, 3));
            etch_tensor *p = numbers(S(4, 1, out, 1, 1)), *r = innermost(S(2, out, 9, 7));
            if (k > 1) spoil(x), spoil(r);
            etch_tensor *want = must(f(x, w, p, r));
            if (!same_tensor(want, must(etch_call(g, x, w, p, r))))
                fail_msg("compiled differs from eager: %lld to %lld channels, call %d",
                         (long long)channels, (long long)out, k);
        }
    etch_set_num_threads(2);
    int64_t chained = etch_counters().kernels_chained - before;
    /* without AMX such results may lie in planes, which are no chains */
    if ((etch__cpu_level() == CPU_LEVEL_AMX || !chain) && (chained > 0) != chain)
        fail_msg("%lld to %lld channels: %lld chains", (long long)channels, (long long)out,
                 (long long)chained);
    if (!has_chains()) assert_int_equal(chained, 0);
    etch_function_free(g);
}

TEST(chains_compiled_as_eager) {
    static const struct {
        body f;
        bool chain;
    } all[] = {{plain, true},      {residual, true}, {branches, false},
               {subtracted, true}, {smooth, false},  {squared, false}};
    static const int64_t sizes[][2] = {{64, 64}, {32, 40}, {24, 33}, {16, 300}};
    for (int i = 0; i < COUNT_OF(all); i++)
        for (int k = 0; k < COUNT_OF(sizes); k++)
            check_body(all[i].f, sizes[k][0], sizes[k][1], all[i].chain);
}

/* ---- tiles of convolutions ---- */

TEST(runs_are_copied_one_behind_the_other) {
    static char from[4096], to[4096], want[4096];
    for (int k = 0; k < 4096; k++) from[k] = (char)(k * 7 + k / 256);
    for (int64_t bytes = 1; bytes < 200; bytes += 1 + bytes / 9)
        for (int64_t count = 1; count < 8; count++) {
            memset(to, 0x55, sizeof to), memset(want, 0x55, sizeof want);
            for (int64_t k = 0; k < count; k++)
                memcpy(want + k * bytes, from + k * 300, (size_t)bytes);
            etch__isa_table()->conv->copy_runs(to, from, 300, count, bytes);
            assert_memory_equal(to, want, sizeof to);
        }
}

/* Of 7 x 7 positions and 512 channels each weight is multiplied in one tile of rows. */
TEST(few_rows_are_not_cut) {
    conv_numbers at = {.stride = {1, 1}, .padding = {1, 1}, .dilation = {1, 1}, .groups = 1};
    const int64_t x[] = {1, 512, 7, 7}, w[] = {512, 512, 3, 3}, y[] = {1, 512, 7, 7};
    direct_conv d = {.n = etch__conv_sizes(&at, x, w, y), .width = 512};
    for (int threads = 1; threads <= 3; threads++) {
        etch_set_num_threads(threads);
        etch__tiles_plan(&d);
        assert_int_equal(d.row_tiles, 1);
        assert_true(d.column_tiles >= (threads > 1 ? threads : 1));
    }
    etch_set_num_threads(2);
}

int main(int argc, char **argv) { return run_suite(argc, argv) + run_under_lower_isas(argv); }
