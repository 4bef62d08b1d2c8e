/* Generated kernels against an interpreter of the loop IR, bit for bit (a NaN equals a NaN): every
 * primitive and dtype, the variants and splits, odd extents, stride classes, in-place outputs;
 * under each instruction set that the processor has. Also the IR's bytes and its validity.
 * Labels: long optimised. */
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xmmintrin.h>

#include <etch/debug.h>

#include "etch_test.h"
#include "loop_build.h"
#include "backends/cpu/table.h"
#include "jit/store/client.h"

/* ---- running ---- */

/* In pieces of uneven length, as threads would take it. */
static void run_units(loop_fn f, const buffers *b, int64_t units) {
    for (int64_t u = 0; u < units;) {
        int64_t n = 1 + (int64_t)(random_bits() % (uint64_t)(units < 9 ? units : units / 3));
        int64_t to = u + n < units ? u + n : units;
        f(b->args, b->dims, scalars, u, to);
        u = to;
    }
}

static loaded_kernel *get(const loop_kernel *k) {
    loaded_kernel *l = NULL;
    const char *why = NULL;
    if (!etch__kernels_get(&k, 1, &l, &why)) fail_msg("%s: %s", k->name, why);
    return l;
}

static void run_whole(const buffers *b) {
    loaded_kernel *l = get(&K);
    run_units(etch__kernel_entry(l), b, etch__loop_units(&K, b->dims));
    etch__kernel_release(l);
}

static void run_split(buffers *b) {
    loop_kernel part = K;
    for (int split = SPLIT_PARTIAL; split <= SPLIT_FINISH; split++) {
        part.split = (uint8_t)split;
        if (split == SPLIT_PARTIAL)
            b->args[K.naccesses] = calloc((size_t)etch__loop_scratch_cells(&part, b->dims) + 1, 8);
        loaded_kernel *l = get(&part);
        run_units(etch__kernel_entry(l), b, etch__loop_units(&part, b->dims));
        etch__kernel_release(l);
    }
    free(b->args[K.naccesses]);
}

static void compare(const buffers *b, const int64_t *extent) {
    for (int a = 0; a < K.naccesses; a++) {
        etch_dtype d = (etch_dtype)K.access[a].dtype;
        for (int64_t e = 0; K.access[a].store && e < b->at[a].elements; e++) {
            int64_t at = e * (int64_t)etch_dtype_size(d);
            const char *got = (char *)b->memory[a] + at, *want = (char *)b->expected[a] + at;
            if (equal(d, got, want)) continue;
            uint64_t x = 0, y = 0;
            memcpy(&x, got, etch_dtype_size(d)), memcpy(&y, want, etch_dtype_size(d));
            fail_msg(
                "%s (%s, split %d, extents %ld %ld): access %d, %s element %ld: %lx, expected %lx",
                K.name, etch__cpu_isa_name(etch__cpu_isa()), K.split, (long)extent[0],
                (long)(K.npar + K.nred > 1 ? extent[1] : 0), a, etch_dtype_name(d), (long)e, x, y);
        }
    }
}

static void check_run(const int64_t *extent, bool split) {
    static buffers b;
    const char *why;
    if (!etch__loop_valid(&K, &why)) fail_msg("%s: %s", K.name, why);
    memset(&b, 0, sizeof b);
    make_buffers(&b, extent);
    ref_kernel(&K, b.load, b.store, b.dims, scalars);
    if (split) run_split(&b);
    else run_whole(&b);
    compare(&b, extent);
    for (int a = 0; a < K.naccesses; a++) free(b.memory[a]), free(b.expected[a]);
}

static void check_1(int64_t n) { check_run(&n, false); }

static const int64_t sizes[] = {0, 1, 7, 63, 64, 65, 255, 256, 257, 1000, 4096, 4097, 10000};

/* ---- maps ---- */

TEST(map_sizes) {
    begin(LOOP_MAP, 1, 0);
    int x = load(0, ETCH_F32, "1"), y = load(0, ETCH_F32, "1");
    int v = op2(0, PRIM_MUL, ETCH_F32, x, real(2));
    v = op2(0, PRIM_ADD, ETCH_F32, v, y);
    v = op2(0, PRIM_MUL, ETCH_F32, v, x);
    v = op2(0, PRIM_SUB, ETCH_F32, v, y);
    store(0, ETCH_F32, "1", v);
    for (int i = 0; i < COUNT_OF(sizes); i++) check_1(sizes[i]);
}

/* ---- tiles ---- */

static const int64_t tile_extents[][2] = {{1, 1},   {2, 3},   {5, 1},    {64, 16}, {100, 7},
                                          {700, 2}, {33, 64}, {130, 65}, {7, 130}, {70, 67},
                                          {0, 5},   {5, 0},   {3, 2500}};

/* Loads and stores of every way to lie. */
static void map_tile(loop_tile kind, etch_dtype d, bool math) {
    etch_dtype t = etch__compute_type(d);
    begin(LOOP_MAP, 2, 0);
    K.tile = (uint8_t)kind;
    static const char *const ways[] = {"s1", "1s", "s0", "01", "00", "ss", "10", "0s"};
    int v = load(0, d, ways[0]);
    for (int i = 1; i < COUNT_OF(ways); i++) v = op2(0, PRIM_MAX, t, v, load(0, d, ways[i]));
    if (math) v = op1(0, PRIM_EXP, t, v);
    store(0, t, "s1", v), store(0, t, "1s", v), store(0, t, "ss", v);
    if (kind == TILE_ROWS) store(0, ETCH_I64, "s1", op1(0, PRIM_INDEX, ETCH_I64, 0));
    for (int i = 0; i < COUNT_OF(tile_extents); i++) check_run(tile_extents[i], false);
}

TEST(map_tiles) {
    static const etch_dtype dtypes[] = {ETCH_F32, ETCH_I8,  ETCH_BF16,
                                        ETCH_I64, ETCH_F16, ETCH_BOOL};
    for (int i = 0; i < COUNT_OF(dtypes); i++)
        for (int kind = TILE_ROWS; kind <= TILE_TURNED; kind++)
            map_tile((loop_tile)kind, dtypes[i], dtypes[i] == ETCH_F32);
}

/* However many strips a kernel keeps: those of conversions by calls take room in the cache. */
TEST(turned_tiles_move_whole_cache_lines) {
    static const etch_dtype dtypes[] = {ETCH_F32, ETCH_I8, ETCH_BF16, ETCH_F16, ETCH_I64};
    static const int64_t large[] = {512, 512}, low[] = {8, 512};
    for (int i = 0; i < COUNT_OF(dtypes); i++) {
        etch_dtype d = dtypes[i];
        int64_t rows, columns;
        begin(LOOP_MAP, 2, 0);
        K.tile = TILE_TURNED;
        int x = convert(0, etch__compute_type(d), ETCH_F32, load(0, d, "1s"));
        int v = op2(0, PRIM_ADD, ETCH_F32, x, load(0, ETCH_F16, "1s"));
        store(0, ETCH_F16, "s1", op1(0, PRIM_ROUND_F16, ETCH_F32, op1(0, PRIM_EXP, ETCH_F32, v)));
        etch__loop_tile(&K, large, &rows, &columns);
        assert_true(rows * (int64_t)etch_dtype_size(d) >= 64);
        assert_in_range(columns, 16, TILE_COLUMNS);
        etch__loop_tile(&K, low, &rows, &columns);
        assert_int_equal(columns, TILE_COLUMNS);
    }
}

/* Memory is copied as it is where a kernel does nothing else. */
TEST(copies) {
    static const etch_dtype dtypes[] = {ETCH_F32, ETCH_I8, ETCH_BF16, ETCH_F16, ETCH_I64};
    static const char *const ways[][2] = {{"s1", "s1"}, {"1s", "s1"}, {"s1", "1s"}, {"ss", "ss"}};
    for (int i = 0; i < COUNT_OF(dtypes) * COUNT_OF(ways); i++) {
        etch_dtype d = dtypes[i / COUNT_OF(ways)];
        for (int kind = TILE_NONE; kind <= TILE_TURNED; kind++) {
            begin(LOOP_MAP, 2, 0);
            K.tile = (uint8_t)kind;
            store(0, d, ways[i % COUNT_OF(ways)][1], load(0, d, ways[i % COUNT_OF(ways)][0]));
            for (int e = 0; e < COUNT_OF(tile_extents); e++) check_run(tile_extents[e], false);
        }
    }
}

TEST(outer_tiles) {
    static const int64_t extents[][4] = {{3, 70, 5, 2}, {2, 1, 9, 40}, {5, 33, 2, 70}};
    for (int kind = TILE_ROWS; kind <= TILE_TURNED; kind++) {
        begin(LOOP_MAP, 4, 0);
        K.tile = (uint8_t)kind;
        int x = load(0, ETCH_F32, "sss1"), y = load(0, ETCH_F32, "ss1s");
        store(0, ETCH_F32, "sss1", op2(0, PRIM_ADD, ETCH_F32, x, y));
        for (int i = 0; i < COUNT_OF(extents); i++) check_run(extents[i], false);
    }
}

static const etch_dtype compute_types[] = {ETCH_F32, ETCH_F64, ETCH_I8, ETCH_I16,
                                           ETCH_I32, ETCH_I64, ETCH_U8, ETCH_BOOL};

static bool has_room(void) { return K.naccesses < LOOP_MAX_ACCESSES; }

/* The primitives of one type from `first_prim` on, one output each; where
 * the next kernel begins. */
static int map_primitives(etch_dtype t, int first_prim) {
    begin(LOOP_MAP, 1, 0);
    int a = load(0, t, "1"), b = load(0, t, "1"), c = load(0, t, "1");
    int truth = load(0, ETCH_BOOL, "1"), p = first_prim, stored = 0;
    for (; p < PRIM_COUNT && has_room(); p++) {
        bool compares = etch__prim_compares(p);
        etch_dtype r = compares ? ETCH_BOOL : t;
        if (!etch__loop_can_emit((prim_id)p, r)) continue;
        int first = p == PRIM_SELECT ? truth : a, second = p == PRIM_SELECT ? a : b;
        int v = prim_of(0, (prim_id)p, r, t, first, second, p == PRIM_SELECT ? b : c);
        store(0, r, "1", v);
        stored++;
    }
    assert_true(stored >= 3);
    check_1(2500);
    return p;
}

TEST(map_primitives) {
    for (int i = 0; i < COUNT_OF(compute_types); i++)
        for (int p = PRIM_ROUND_BF16; p < PRIM_COUNT;) p = map_primitives(compute_types[i], p);
}

/* From each storage dtype to all others. */
TEST(map_conversions) {
    for (int d = 0; d < ETCH_DTYPE_COUNT; d++) {
        etch_dtype from = etch__compute_type(d);
        begin(LOOP_MAP, 1, 0);
        int x = load(0, d, "1");
        for (int to = 0; to < ETCH_DTYPE_COUNT; to++) {
            int v = convert(0, from, etch__compute_type(to), x);
            if (to == ETCH_BF16) v = op1(0, PRIM_ROUND_BF16, ETCH_F32, v);
            if (to == ETCH_F16) v = op1(0, PRIM_ROUND_F16, ETCH_F32, v);
            store(0, to, "1", v);
        }
        check_1(3000);
    }
}

/* All bit patterns of the half types, and f32 values around their grid. */
TEST(map_halves) {
    for (int d = ETCH_BF16; d <= ETCH_F16; d++) {
        static uint16_t all[65536], out[65536], want[65536];
        static float wide[65536], wide_want[65536];
        begin(LOOP_MAP, 1, 0);
        int x = load(0, d, "1");
        store(0, ETCH_F32, "1", x);
        store(0, d, "1", x);
        int64_t dims[4] = {65536, 1, 1, 1};
        void *args[3] = {all, wide, out}, *expected[3] = {all, wide_want, want};
        for (int i = 0; i < 65536; i++) all[i] = (uint16_t)i;
        loaded_kernel *l = get(&K);
        etch__kernel_entry(l)(args, dims, NULL, 0, 256);
        etch__kernel_release(l);
        ref_kernel(&K, args, expected, dims, NULL);
        for (int i = 0; i < 65536; i++) {
            assert_true(equal(ETCH_F32, &wide[i], &wide_want[i]));
            assert_true(equal(d, &out[i], &want[i]));
        }
    }
}

TEST(round_f16_bits) {
    enum { N = 1 << 16 };
    static float in[N], half[N], brain[N];
    begin(LOOP_MAP, 1, 0);
    int x = load(0, ETCH_F32, "1");
    store(0, ETCH_F32, "1", op1(0, PRIM_ROUND_F16, ETCH_F32, x));
    store(0, ETCH_F32, "1", op1(0, PRIM_ROUND_BF16, ETCH_F32, x));
    loaded_kernel *l = get(&K);
    int64_t dims[4] = {N, 1, 1, 1};
    void *args[3] = {in, half, brain};
    for (int round = 0; round < 8; round++) {
        for (int i = 0; i < N; i++) {
            uint32_t u = (uint32_t)random_bits();
            if (i % 2) u = (u & 0x8fffe000u) | 0x30000000u | (i % 4 == 1 ? 0x1000 : u & 0x1fff);
            memcpy(&in[i], &u, 4);
        }
        etch__kernel_entry(l)(args, dims, NULL, 0, N / STRIP);
        for (int i = 0; i < N; i++) {
            float h = (float)(_Float16)in[i], b = ref_bf16(in[i]);
            assert_true(equal(ETCH_F32, &half[i], &h));
            assert_true(equal(ETCH_F32, &brain[i], &b));
        }
    }
    etch__kernel_release(l);
}

/* Vector calls between loops, their operands spilled, broadcast, converted, or read in place. */
TEST(map_vector_calls) {
    begin(LOOP_MAP, 1, 0);
    K.nscalars = 1;
    int x = load(0, ETCH_F32, "1"), h = load(0, ETCH_F16, "1"), u = load(0, ETCH_F32, "0");
    int s = prim_of(0, PRIM_SCALAR, ETCH_F32, ETCH_F32, 0, 0, 0);
    int e = op1(0, PRIM_EXP, ETCH_F32, op1(0, PRIM_SIN, ETCH_F32, x));
    int t = op1(0, PRIM_TANH, ETCH_F32, op2(0, PRIM_ADD, ETCH_F32, h, x));
    int p = op2(0, PRIM_POW, ETCH_F32, op1(0, PRIM_ABS, ETCH_F32, x), s);
    int m =
        op2(0, PRIM_MUL, ETCH_F32, op2(0, PRIM_ADD, ETCH_F32, e, t), op1(0, PRIM_COS, ETCH_F32, u));
    int w =
        op1(0, PRIM_LOG, ETCH_F64, convert(0, ETCH_F32, ETCH_F64, op1(0, PRIM_ABS, ETCH_F32, m)));
    int lt = prim_of(0, PRIM_LT, ETCH_BOOL, ETCH_F32, x, p, 0);
    store(0, ETCH_F32, "1", e);
    store(0, ETCH_F16, "1", op1(0, PRIM_ROUND_F16, ETCH_F32, m));
    store(0, ETCH_F64, "1", w);
    store(0, ETCH_BOOL, "1", lt);
    store(0, ETCH_F32, "1", prim_of(0, PRIM_SELECT, ETCH_F32, ETCH_F32, lt, m, p));
    float value = 1.5f;
    memcpy(scalars, &value, 4);
    for (int i = 0; i < COUNT_OF(sizes); i++) check_1(sizes[i]);
}

/* Scalars of every dtype as cells, constants, the index. */
TEST(map_scalars) {
    for (int d = 0; d < ETCH_DTYPE_COUNT; d++) {
        etch_dtype t = etch__compute_type(d);
        begin(LOOP_MAP, 2, 0);
        K.nscalars = 2;
        int x = load(0, t, "11"), s = prim_of(0, PRIM_SCALAR, t, d, 0, 0, 0);
        K.code[s].p.imm.i = 1;
        int c = op1(0, PRIM_CONST, t, 0);
        if (etch__is_float(t)) K.code[c].p.imm.d = 0.1;
        else K.code[c].p.imm.i = 1;
        int v = op2(0, PRIM_MUL, t, op2(0, PRIM_ADD, t, x, s), c);
        store(0, t, "11", v);
        int i = op1(0, PRIM_INDEX, ETCH_I64, 0);
        store(0, ETCH_I64, "s1", i);
        store(0, t, "s1", s);
        K.access[0].step[0] = STEP_VAR, K.access[1].step[0] = STEP_VAR;
        fill(t, &scalars[1], 1, false);
        check_run((int64_t[]){5, 300}, false);
    }
}

TEST(map_strides) {
    static const char *const x[] = {"s1", "s0", "01", "00", "1s", "ss", "0s", "10"};
    static const int64_t extents[][2] = {{3, 257}, {1, 64}, {7, 5},   {300, 1},
                                         {0, 5},   {5, 0},  {40, 64}, {37, 600}};
    for (int i = 0; i < COUNT_OF(x); i++) {
        begin(LOOP_MAP, 2, 0);
        int a = load(0, ETCH_F32, x[i]), b = load(0, ETCH_F32, x[(i + 3) % COUNT_OF(x)]);
        int v = op1(0, PRIM_EXP, ETCH_F32, op2(0, PRIM_SUB, ETCH_F32, a, b));
        store(0, ETCH_F32, i % 2 ? "s1" : i % 4 ? "1s" : "ss", op2(0, PRIM_ADD, ETCH_F32, v, a));
        for (int e = 0; e < COUNT_OF(extents); e++) check_run(extents[e], false);
    }
}

TEST(map_many_axes) {
    begin(LOOP_MAP, 8, 0);
    int a = load(0, ETCH_I32, "ssssssss"), b = load(0, ETCH_I32, "0s0s0s01");
    store(0, ETCH_I32, "sssssss1", op2(0, PRIM_MUL, ETCH_I32, a, b));
    check_run((int64_t[]){2, 3, 1, 2, 3, 2, 2, 67}, false);
    begin(LOOP_MAP, 0, 0);
    a = load(0, ETCH_F64, "");
    store(0, ETCH_F64, "", op1(0, PRIM_TANH, ETCH_F64, a));
    check_run((int64_t[]){0}, false);
}

TEST(map_in_place) {
    begin(LOOP_MAP, 2, 0);
    int x = load(0, ETCH_F32, "s1"), y = load(0, ETCH_F32, "01");
    int v = op2(0, PRIM_ADD, ETCH_F32, op1(0, PRIM_EXP, ETCH_F32, x), y);
    store(0, ETCH_F32, "s1", op2(0, PRIM_MUL, ETCH_F32, v, x));
    in_place = 0;
    check_run((int64_t[]){5, 1000}, false);
    check_run((int64_t[]){9, 33}, false);
    in_place = -1;
}

/* ---- reductions ---- */

/* Two sums and a maximum over an expression, a full-space store, an epilogue with a vector call. */
static void rich(loop_variant variant, int npar, int nred, const char *in, const char *row,
                 const char *full, const char *out) {
    begin(variant, npar, nred);
    int x = load(0, ETCH_F32, in), r = load(0, ETCH_F32, row);
    int e = op1(0, PRIM_EXP, ETCH_F32, op2(0, PRIM_SUB, ETCH_F32, x, r));
    store(0, ETCH_F32, full, e);
    int s = reduce(REDUCE_SUM, ETCH_F32, e), plain = reduce(REDUCE_SUM, ETCH_F32, x);
    int m = reduce(REDUCE_MAX, ETCH_F32, x);
    int wide = reduce(REDUCE_SUM, ETCH_F64, convert(0, ETCH_F32, ETCH_F64, x));
    int n = op1(1, PRIM_NREDUCED, ETCH_F32, 0);
    int mean = op2(1, PRIM_DIV, ETCH_F32, plain, n);
    int again = load(1, ETCH_F32, out);
    int l = op1(1, PRIM_LOG, ETCH_F32, op1(1, PRIM_ABS, ETCH_F32, s));
    store(1, ETCH_F32, out, op2(1, PRIM_ADD, ETCH_F32, l, again));
    store(1, ETCH_F32, out, mean);
    store(1, ETCH_F32, out, m);
    store(1, ETCH_F64, out, wide);
    store(1, ETCH_I64, out, op1(1, PRIM_INDEX, ETCH_I64, 0));
}

static void both_ways(const int64_t *extent) {
    check_run(extent, false);
    check_run(extent, true);
}

TEST(row_sizes) {
    rich(LOOP_ROW, 1, 1, "s1", "s0", "s1", "1s");
    for (int i = 0; i < COUNT_OF(sizes); i++)
        both_ways((int64_t[]){sizes[i] > 300 ? 2 : 5, sizes[i]});
    wild = false;
    both_ways((int64_t[]){1, 40000});
    wild = true;
    both_ways((int64_t[]){0, 10});
}

TEST(row_shapes) {
    rich(LOOP_ROW, 2, 1, "s1s", "0s0", "ss1", "sss");
    both_ways((int64_t[]){3, 4, 100});
    rich(LOOP_ROW, 1, 2, "ss1", "s00", "ss1", "1ss");
    both_ways((int64_t[]){3, 7, 100});
    both_ways((int64_t[]){2, 100, 3});
    both_ways((int64_t[]){2, 5, 256});
    both_ways((int64_t[]){1, 3, 4099});
    both_ways((int64_t[]){2, 0, 4});
    rich(LOOP_ROW, 1, 3, "1sss", "s0s0", "sss1", "ssss");
    both_ways((int64_t[]){2, 3, 11, 13});
    rich(LOOP_ROW, 0, 1, "1", "0", "1", "0");
    both_ways((int64_t[]){9000});
    rich(LOOP_ROW, 0, 2, "1s", "s0", "ss", "00");
    both_ways((int64_t[]){65, 127});
}

TEST(row_passes) {
    passes(true, 1, 1, "s1", "s0", "s1", "1s");
    for (int i = 0; i < COUNT_OF(sizes); i++)
        check_run((int64_t[]){sizes[i] > 300 ? 2 : 5, sizes[i]}, false);
    passes(true, 2, 1, "s1s", "0s1", "ss1", "sss");
    check_run((int64_t[]){3, 4, 100}, false);
    passes(true, 1, 2, "ss1", "s0s", "ss1", "1ss");
    check_run((int64_t[]){3, 7, 100}, false);
    check_run((int64_t[]){2, 5, 1000}, false);
    check_run((int64_t[]){2, 0, 4}, false);
    passes(true, 0, 1, "1", "0", "1", "0");
    check_run((int64_t[]){9000}, false);
}

/* ---- what is called once ---- */

static const strip_table *in_front; /* of these the strips are counted */
static int64_t exponentials;

static void counted_exp(void *to, const void *a, const void *b, const void *c, int64_t n) {
    exponentials += n;
    in_front->prim[PRIM_EXP][ETCH_F32](to, a, b, c, n);
}
static const void *counting(void) {
    static strip_table table;
    table = *in_front;
    table.prim[PRIM_EXP][ETCH_F32] = counted_exp;
    return table.prim;
}
static const void *plain(void) { return in_front->prim; }

static int64_t exponentials_of(int64_t reduced) {
    const int64_t extents[] = {1, reduced};
    exponentials = 0;
    check_run(extents, false);
    return exponentials;
}

/* A later sweep finds the results of an earlier one, and computes no operands for them. */
TEST(long_rows_are_kept) {
    in_front = etch__isa_table()->strips;
    etch__register_functions(counting);
    passes(true, 1, 1, "s1", "ss", "s1", "1s"); /* no other test's, which is loaded already */
    assert_int_equal(exponentials_of(300), 320);
    assert_int_equal(exponentials_of(ROW_KEPT), ROW_KEPT);
    assert_int_equal(exponentials_of(ROW_KEPT + 64), 2 * (ROW_KEPT + 64));
    etch__register_functions(plain);
}

TEST(column_sizes) {
    rich(LOOP_COLUMN, 1, 1, "1s", "1s", "1s", "1s");
    for (int i = 0; i < COUNT_OF(sizes); i++) both_ways((int64_t[]){sizes[i], 5});
    for (int i = 0; i < COUNT_OF(sizes); i++) both_ways((int64_t[]){3, sizes[i]});
    both_ways((int64_t[]){130, 8200});
}

TEST(column_shapes) {
    rich(LOOP_COLUMN, 2, 1, "s1s", "0ss", "sss", "s10");
    both_ways((int64_t[]){3, 70, 65});
    rich(LOOP_COLUMN, 1, 2, "1ss", "10s", "1ss", "1ss");
    both_ways((int64_t[]){300, 7, 11});
    both_ways((int64_t[]){3, 70, 70});
    rich(LOOP_COLUMN, 1, 1, "0s", "00", "1s", "10");
    both_ways((int64_t[]){300, 100});
}

/* A sum of products and a maximum, a store in each stage. */
static void tiles(int npar, int nred, const char *in, const char *row, const char *full,
                  const char *out) {
    begin(LOOP_COLUMN, npar, nred);
    K.tile = TILE_ROWS;
    int x = load(0, ETCH_F32, in), r = load(0, ETCH_BF16, row);
    int e = op2(0, PRIM_MUL, ETCH_F32, x, r);
    store(0, ETCH_F32, full, e);
    int s = reduce(REDUCE_SUM, ETCH_F32, e), m = reduce(REDUCE_MAX, ETCH_F32, x);
    store(1, ETCH_F32, out, op2(1, PRIM_ADD, ETCH_F32, s, load(1, ETCH_F32, out)));
    store(1, ETCH_F32, out, op2(1, PRIM_ADD, ETCH_F32, m, s));
}

/* Few columns, and rows that lie along what is reduced. */
TEST(column_tiles) {
    tiles(1, 1, "1s", "1s", "1s", "1s");
    for (int i = 0; i < COUNT_OF(sizes); i++) both_ways((int64_t[]){3, sizes[i]});
    tiles(1, 1, "s1", "s0", "s1", "1s");
    for (int i = 0; i < COUNT_OF(sizes); i++) both_ways((int64_t[]){sizes[i], 5});
    both_ways((int64_t[]){300, 2}), both_ways((int64_t[]){300, 64}), both_ways((int64_t[]){70, 65});
    both_ways((int64_t[]){20, 8200}), both_ways((int64_t[]){0, 10});
    tiles(2, 1, "ss1", "0s0", "sss", "s10");
    both_ways((int64_t[]){3, 70, 13});
    tiles(1, 2, "ss1", "1s0", "s1s", "1ss");
    both_ways((int64_t[]){300, 7, 11}), both_ways((int64_t[]){3, 70, 70});
    both_ways((int64_t[]){9, 0, 4});
    tiles(1, 1, "0s", "00", "1s", "10");
    both_ways((int64_t[]){30, 100});
}

/* Each kind and accumulator type, from integers, halves and bool too; ROW and COLUMN. */
TEST(reduce_types) {
    for (int variant = LOOP_ROW; variant <= LOOP_COLUMN; variant++) {
        const char *in = variant == LOOP_ROW ? "s1" : "1s";
        for (int d = 0; d < ETCH_DTYPE_COUNT; d++) {
            etch_dtype t = etch__compute_type(d);
            etch_dtype acc = etch__is_float(t) ? t : ETCH_I64;
            begin((loop_variant)variant, 1, 1);
            int x = load(0, d, in);
            int wide = convert(0, t, acc, x);
            int s = reduce(REDUCE_SUM, acc, wide), p = reduce(REDUCE_PROD, acc, wide);
            int hi = reduce(REDUCE_MAX, t, x), lo = reduce(REDUCE_MIN, t, x);
            int product = reduce(REDUCE_PROD, acc, convert(0, t, acc, x));
            int index = op1(0, PRIM_INDEX, ETCH_I64, 0);
            int last = reduce(REDUCE_MAX, ETCH_I64, index);
            store(1, acc, "10", s);
            store(1, acc, "10", p);
            store(1, t, "10", hi);
            store(1, t, "10", lo);
            store(1, acc, "10", product);
            store(1, ETCH_I64, "10", last);
            bool split = d == ETCH_F16 || d == ETCH_I64 || d == ETCH_U8;
            check_run((int64_t[]){4, 5000}, split);
            check_run((int64_t[]){200, 33}, split);
        }
    }
}

/* A sum begins with a positive zero, which negative ones do not change. */
TEST(signed_zero) {
    for (int n = 0; n < 3; n++) {
        float in[2] = {-0.0f, -0.0f}, out = 1;
        int64_t dims[3] = {n, 1, 0};
        void *args[2] = {in, &out};
        begin(LOOP_ROW, 0, 1);
        store(1, ETCH_F32, "0", reduce(REDUCE_SUM, ETCH_F32, load(0, ETCH_F32, "1")));
        loaded_kernel *l = get(&K);
        etch__kernel_entry(l)(args, dims, NULL, 0, 1);
        etch__kernel_release(l);
        assert_true(out == 0 && !signbit(out));
    }
}

/* ---- the process's state, the bytes ---- */

TEST(floating_point_mode) {
    unsigned before = _mm_getcsr() & ~0x3fu; /* but for the sticky flags */
    begin(LOOP_MAP, 1, 0);
    int x = load(0, ETCH_F64, "1");
    store(0, ETCH_F64, "1", op1(0, PRIM_COS, ETCH_F64, op1(0, PRIM_EXP, ETCH_F64, x)));
    check_1(1000);
    assert_int_equal(_mm_getcsr() & ~0x3fu, before);
    volatile float tiny = 1e-40f;
    assert_true(tiny * 0.5f != 0);
}

TEST(bytes) {
    static uint8_t bytes[8192], again[8192];
    static loop_kernel parsed;
    rich(LOOP_COLUMN, 2, 2, "s1ss", "0s0s", "ssss", "s100");
    size_t n = etch__loop_serialise(&K, bytes, sizeof bytes);
    assert_true(n < sizeof bytes);
    assert_int_equal(etch__loop_serialise(&K, NULL, 0), n);
    assert_true(etch__loop_parse(bytes, n, &parsed));
    assert_int_equal(etch__loop_serialise(&parsed, again, sizeof again), n);
    assert_memory_equal(bytes, again, n);
    for (size_t cut = 0; cut < n; cut++) assert_false(etch__loop_parse(bytes, cut, &parsed));
    assert_false(etch__loop_parse(bytes, n + 1, &parsed));
    int refused = 0;
    for (int i = 0; i < 20000; i++) {
        memcpy(again, bytes, n);
        again[random_bits() % n] ^= (uint8_t)(1u << random_bits() % 8);
        if (!etch__loop_parse(again, n, &parsed)) refused++;
        else assert_true(etch__loop_valid(&parsed, NULL));
    }
    assert_true(refused > 1000);
    K.code[3].p.c = 77; /* an unused field is no part of the identity, the name neither */
    K.name[0] = 'x';
    assert_int_equal(etch__loop_serialise(&K, again, sizeof again), n);
    assert_memory_equal(bytes, again, n);
}

static void refused(const char *word) {
    const char *why = "";
    assert_false(etch__loop_valid(&K, &why));
    if (!strstr(why, word)) fail_msg("'%s' does not say '%s'", why, word);
}

TEST(validity) {
    begin(LOOP_MAP, 1, 0);
    int x = load(0, ETCH_I32, "1");
    assert_true(etch__loop_valid(&K, NULL));
    op2(0, PRIM_POW, ETCH_I32, x, x), refused("primitive"), K.ncode--;
    op2(0, PRIM_ADD, ETCH_F32, x, x), refused("type"), K.ncode--;
    op2(0, PRIM_ADD, ETCH_I32, x, 1), refused("earlier"), K.ncode--;
    reduce(REDUCE_SUM, ETCH_I32, x), refused("reduced axes"), K.ncode--;
    instr_of(LOOP_LOAD, 0, ETCH_I32, 0, 9), refused("range"), K.ncode--;
    instr_of(LOOP_STORE, 0, ETCH_I32, x, 0), refused("kind"), K.ncode--;
    prim_of(0, PRIM_SCALAR, ETCH_F32, ETCH_F32, 0, 0, 0), refused("scalar"), K.ncode--;
    K.npar = 9, refused("axes"), K.npar = 1;
    K.variant = LOOP_COLUMN, refused("disagree");
    begin(LOOP_MAP, 2, 0);
    store(0, ETCH_I64, "s1", op1(0, PRIM_INDEX, ETCH_I64, 0));
    K.tile = TILE_ROWS, assert_true(etch__loop_valid(&K, NULL));
    K.tile = TILE_TURNED, refused("no index");
    K.tile = TILE_TURNED + 1, refused("no such tile");
    K.tile = TILE_ROWS, K.npar = 1, refused("two axes");
    begin(LOOP_ROW, 1, 1);
    x = load(0, ETCH_F32, "s1");
    int s = reduce(REDUCE_SUM, ETCH_F32, x);
    op2(2, PRIM_SUB, ETCH_F32, x, s);
    assert_true(etch__loop_valid(&K, NULL));
    op2(1, PRIM_ADD, ETCH_F32, s, x), refused("no value of this stage"), K.ncode--;
    op2(0, PRIM_ADD, ETCH_F32, s, x), refused("no value of this stage"), K.ncode--;
    op2(LOOP_STAGES, PRIM_ADD, ETCH_F32, s, s), refused("range"), K.ncode--;
    reduce_to(2, REDUCE_SUM, ETCH_F32, x), refused("odd stage"), K.ncode--;
    K.split = SPLIT_PARTIAL, refused("whole rows");
    assert_false(etch__loop_can_emit(PRIM_POW, ETCH_I64));
    assert_true(etch__loop_can_emit(PRIM_POW, ETCH_F64));
}

TEST(text_of_tiles) {
    begin(LOOP_MAP, 2, 0);
    store(0, ETCH_F32, "s1", load(0, ETCH_F32, "1s"));
    K.tile = TILE_TURNED;
    char *text = etch__loop_text(&K);
    assert_non_null(text);
    assert_non_null(strstr(text, ": map, turned tiles, 2 + 0 axes\n"));
    etch__free(text);
}

TEST(text) {
    rich(LOOP_ROW, 1, 1, "s1", "s0", "s1", "1s");
    char *text = etch__loop_text(&K);
    assert_non_null(text);
    assert_non_null(strstr(text, ": row, 1 + 1 axes\n"));
    assert_non_null(strstr(text, "  @0: load f32 [s|1]\n"));
    assert_non_null(strstr(text, "reduce sum f32 %"));
    etch__free(text);
    begin(LOOP_ROW, 0, 1);
    store(1, ETCH_I64, "0", reduce(REDUCE_PROD, ETCH_I64, load(0, ETCH_I64, "1")));
    text = etch__loop_text(&K);
    assert_non_null(strstr(text, "reduce prod i64 %"));
    etch__free(text);
}

/* Of the helper's own code an instruction set is a row of three tables: instrumented, it makes the
 * narrowest and the widest code only. */
static const char *const sets[] = {
    "baseline",
    "avx512",
#ifndef __SANITIZE_ADDRESS__
    "avx2",
#endif
};

/* Each instruction set in a process of its own (it is chosen once), side by side. */
int main(int argc, char **argv) {
    char dir[] = "/tmp/etch-test-XXXXXX";
    int failed = 0;
    if (!mkdtemp(dir)) return 1;
    setenv("ETCH_CACHE_DIR", dir, 1);
    unsetenv("ETCH_JIT"); /* the helper of this build, instrumented as it is */
    pid_t child[COUNT_OF(sets)];
    for (int i = 0; i < COUNT_OF(sets); i++) {
        child[i] = fork();
        if (child[i] != 0) continue;
        setenv("ETCH_CPU_ISA", sets[i], 1);
        int bad = run_suite(argc, argv);
        etch__jit_shutdown();
        exit(bad);
    }
    for (int i = 0; i < COUNT_OF(sets); i++) {
        int status = 1;
        waitpid(child[i], &status, 0);
        failed += status != 0;
    }
    etch__remove_tree(dir);
    return failed != 0;
}
