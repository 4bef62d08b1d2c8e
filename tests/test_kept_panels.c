/* Panels of a weight that is multiplied by again are kept with the version of its contents: the
 * same bits as those of another tensor of the same numbers, of which none are kept, whoever writes
 * the weight in between. Where the processor has no AMX none are kept; the bits are the same.
 * Labels: optimised. */
#include "core/base/isa.h"
#include "cpu_support.h"

#define S ETCH_SHAPE

static etch_tensor *must(etch_tensor *t) {
    if (!t) fail_msg("%s", etch_last_error());
    return t;
}

static int64_t packed(void) { return etch_counters().weights_packed; }

static bool are_kept(void) { return etch__cpu_level() == CPU_LEVEL_AMX; }

/* x times w' of [n, k], and the same with a weight that nobody has multiplied by. */
static etch_tensor *times(etch_tensor *x, etch_tensor *w) { return must(etch_mm(x, etch_t(w))); }
static etch_tensor *fresh_times(etch_tensor *x, etch_tensor *w) {
    return times(x, must(etch_clone(w)));
}

static etch_tensor *numbers(etch_dtype dtype, int64_t rows, int64_t cols) {
    return must(etch_to(must(etch_randn(ETCH_F32, S(rows, cols))), dtype));
}

static const struct kept_case {
    int64_t m, n, k;
} cases[] = {
    {17, 16, 65},   {33, 80, 64},   {128, 96, 384}, {200, 272, 31}, {65, 300, 100},
    {600, 96, 256}, {64, 40, 4200}, {31, 17, 1},    {70, 257, 33},  {1030, 33, 70},
};

/* Chains, not panels. */
static bool is_small(const struct kept_case *c) { return c->m <= 64 && c->n <= 64 && c->k <= 64; }

TEST(kept_panels_give_the_same_bits) {
    const etch_dtype dtypes[] = {ETCH_F32, ETCH_BF16, ETCH_F16};
    for (int d = 0; d < 3; d++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            ETCH_SCOPE {
                const struct kept_case *c = &cases[i];
                etch_tensor *x = numbers(dtypes[d], c->m, c->k),
                            *w = numbers(dtypes[d], c->n, c->k);
                etch_tensor *want = fresh_times(x, w);
                int64_t before = packed();
                for (int k = 0; k < 4; k++) assert_true(same_tensor(times(x, w), want));
                assert_int_equal(packed() - before, are_kept() && !is_small(c));
                /* other rows by the same panels, on another number of threads */
                etch_tensor *some = must(etch_slice(x, 0, 3, c->m, 2));
                etch_set_num_threads(3);
                assert_true(same_tensor(times(some, w), fresh_times(some, w)));
                etch_set_num_threads(1);
                assert_true(same_tensor(times(x, w), want));
                etch_set_num_threads(2);
            }
}

TEST(a_write_packs_again) {
    ETCH_SCOPE {
        etch_tensor *x = numbers(ETCH_BF16, 40, 96), *w = numbers(ETCH_BF16, 80, 96);
        for (int i = 0; i < 3; i++) times(x, w);
        must(etch_add_scalar_(must(etch_select(w, 0, 7)), 1.0));
        etch_tensor *want = fresh_times(x, w);
        int64_t before = packed();
        for (int i = 0; i < 3; i++) assert_true(same_tensor(times(x, w), want));
        assert_int_equal(packed() - before, are_kept());
        /* whoever has a pointer may write at any time */
        uint16_t *p = etch_data_mut(w);
        before = packed();
        for (int i = 0; i < 3; i++) {
            p[i] = 0x3f80;
            assert_true(same_tensor(times(x, w), fresh_times(x, w)));
        }
        assert_int_equal(packed() - before, 0);
    }
}

/* Parts of one storage, and the same numbers by rows and by columns, are weights of their own. */
TEST(parts_of_a_weight_are_weights) {
    ETCH_SCOPE {
        etch_tensor *x = numbers(ETCH_BF16, 48, 96), *w = numbers(ETCH_BF16, 96, 96);
        for (int i = 0; i < 3; i++) {
            for (int64_t from = 0; from < 64; from += 16) {
                etch_tensor *part = must(etch_slice(w, 0, from, from + 32, 1));
                assert_true(same_tensor(times(x, part), fresh_times(x, part)));
            }
            assert_true(same_tensor(must(etch_mm(x, w)), must(etch_mm(x, must(etch_clone(w))))));
            etch_tensor *steps = must(etch_slice(etch_slice(w, 0, 0, 96, 2), 1, 0, 96, 3));
            etch_tensor *less = must(etch_slice(x, 1, 0, 32, 1));
            assert_true(same_tensor(times(less, steps), fresh_times(less, steps)));
        }
    }
}

/* What follows the product in its kernel, an activation or a norm of its rows. */
static etch_tensor *activated(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    return etch_relu(etch_linear(x, w, b));
}
static etch_tensor *normed(etch_tensor *x, etch_tensor *w, etch_tensor *b) {
    return etch_softmax(etch_linear(x, w, b), -1);
}

static void follow(etch_fn3 body, etch_dtype dtype) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(body, .fullgraph = true);
        etch_tensor *x = numbers(dtype, 70, 128), *w = numbers(dtype, 272, 128);
        etch_tensor *b = must(etch_to(must(etch_randn(ETCH_F32, S(272))), dtype));
        for (int i = 0; i < 6; i++) {
            if (i == 4) must(etch_mul_scalar_(w, 0.5));
            etch_tensor *want = must(body(x, must(etch_clone(w)), b));
            assert_true(same_tensor(must(etch_call(f, x, w, b)), want));
        }
        etch_function_free(f);
    }
}

TEST(what_follows_finds_the_same_tiles) {
    follow(activated, ETCH_F32), follow(activated, ETCH_BF16);
    follow(normed, ETCH_F32), follow(normed, ETCH_BF16);
}

/* A step of training: each run multiplies by what the run before has written. */
static ETCH_FN_N(use_then_write, ctx, in, nin, out, nout) {
    out[0] = etch_mm(in[0], in[1]);
    out[1] = etch_mm(out[0], in[1]);
    etch_mul_scalar_(in[1], 0.75);
    out[2] = etch_mm(in[0], in[1]);
    return out[2] ? ETCH_OK : etch_last_status();
}

TEST(a_plan_that_writes_its_weight) {
    ETCH_SCOPE {
        etch_tensor *x = numbers(ETCH_BF16, 64, 96), *w = numbers(ETCH_BF16, 96, 96);
        etch_tensor *mine[2] = {x, w}, *plain[2] = {x, must(etch_clone(w))}, *want[3], *have[3];
        etch_function *f = etch_compile(use_then_write, .fullgraph = true);
        for (int i = 0; i < 5; i++) {
            assert_int_equal(use_then_write(NULL, plain, 2, want, 3), ETCH_OK);
            assert_int_equal(etch_call_n(f, mine, 2, have, 3), ETCH_OK);
            for (int k = 0; k < 3; k++) assert_true(same_tensor(want[k], have[k]));
        }
        etch_function_free(f);
    }
}

TEST(panels_go_with_their_weight) {
    int64_t before = etch_memory().bytes_live;
    ETCH_SCOPE {
        etch_tensor *x = numbers(ETCH_F32, 32, 256), *w = numbers(ETCH_F32, 512, 256);
        for (int i = 0; i < 3; i++) times(x, w);
    }
    assert_int_equal(etch_memory().bytes_live, before);
}

int main(int argc, char **argv) { return run_suite(argc, argv) + run_under_lower_isas(argv); }
