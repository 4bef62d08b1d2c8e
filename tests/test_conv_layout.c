/* Convolutions and their gradients of operands whose channels lie innermost, as plans lay them: the
 * bits are those of planes, of every float dtype, with sizes that leave rests, groups, dilation and
 * strides; steps of training compiled as eager; and which layout a plan takes.
 * Labels: optimised. */
#include <etch/etch.h>

#include "cpu_support.h"
#include "log_support.h"

#define S ETCH_SHAPE

static etch_tensor *must(etch_tensor *t) {
    if (!t) fail_msg("%s", etch_last_error());
    return t;
}

typedef struct conv_case {
    etch_shape x, w, stride, padding, dilation;
    int64_t groups;
} conv_case;

static const conv_case cases[] = {
    {S(2, 16, 8, 8), S(32, 16, 3, 3), S(2, 2), S(1, 1), S(1, 1), 1},
    {S(5, 3, 7, 9), S(6, 3, 3, 3), S(1, 1), S(1, 1), S(1, 1), 1},
    {S(2, 3, 6, 40), S(4, 3, 3, 3), S(1, 1), S(1, 1), S(1, 1), 1}, /* lines of the matrix */
    {S(2, 4, 9, 16), S(8, 4, 1, 1), S(1, 1), S(0, 0), S(1, 1), 1}, /* the matrix itself */
    {S(3, 2, 5, 4), S(70, 2, 5, 3), S(1, 2), S(2, 0), S(1, 1), 1},
    {S(2, 6, 9, 8), S(4, 3, 3, 2), S(1, 1), S(2, 1), S(2, 3), 2},
    {S(2, 5, 6, 7), S(5, 1, 3, 3), S(1, 1), S(1, 1), S(1, 1), 5},
    {S(1, 70, 3, 5), S(9, 70, 3, 3), S(1, 1), S(1, 1), S(1, 1), 1}, /* blocks of channels */
};

static const etch_dtype types[] = {ETCH_F32, ETCH_F64, ETCH_BF16, ETCH_F16};

/* The same elements with channels innermost. */
static etch_tensor *innermost(etch_tensor *t) {
    etch_tensor *last = etch_contiguous(etch_permute(t, ETCH_DIMS(0, 2, 3, 1)));
    return must(etch_permute(last, ETCH_DIMS(0, 3, 1, 2)));
}

static etch_tensor *forward(const conv_case *c, etch_tensor *x, etch_tensor *w) {
    return must(etch_convolution(x, w, ETCH_NONE, c->stride, c->padding, c->dilation, c->groups));
}

static etch_tensor *to_input(const conv_case *c, etch_tensor *g, etch_tensor *w) {
    return must(
        etch_convolution_backward_input(g, w, c->x, c->stride, c->padding, c->dilation, c->groups));
}

static etch_tensor *to_weight(const conv_case *c, etch_tensor *g, etch_tensor *x) {
    return must(etch_convolution_backward_weight(g, x, c->w, c->stride, c->padding, c->dilation,
                                                 c->groups));
}

TEST(gradients_do_not_depend_on_where_channels_lie) {
    for (int k = 0; k < 4 * COUNT_OF(cases); k++)
        ETCH_SCOPE {
            const conv_case *c = &cases[k / 4];
            etch_tensor *x = make(types[k % 4], c->x, LAYOUT_ROW, true);
            etch_tensor *w = make(types[k % 4], c->w, LAYOUT_ROW, true);
            etch_tensor *g = etch_mul_scalar(forward(c, x, w), 0.125);
            etch_tensor *input = to_input(c, g, w), *weight = to_weight(c, g, x);
            assert_true(same_tensor(input, to_input(c, innermost(g), w)));
            assert_true(same_tensor(weight, to_weight(c, innermost(g), x)));
            assert_true(same_tensor(weight, to_weight(c, g, innermost(x))));
            assert_true(same_tensor(weight, to_weight(c, innermost(g), innermost(x))));
        }
}

/* ---- compiled ---- */

/* x, w, bias, a square weight of one place: what loss passes back to all of them. The gradient of
 * the layer between is made and read by convolutions alone. */
static ETCH_FN_N(step, ctx, in, nin, out, nout) {
    const conv_case *c = ctx;
    etch_tensor *to[4];
    for (int k = 0; k < 4; k++) to[k] = etch_requires_grad_(etch_detach(in[k]), true);
    etch_tensor *y = etch_relu(etch_convolution(etch_relu(to[0]), to[1], to[2], c->stride,
                                                c->padding, c->dilation, c->groups));
    etch_tensor *z = etch_convolution(y, to[3], ETCH_NONE, S(1, 1), S(0, 0), S(1, 1), 1);
    etch_tensor *loss = etch_sum(etch_mul(z, z));
    return loss ? etch_grad(&loss, 1, to, 4, NULL, NULL, out) : etch_last_status();
}

static void check_step(const conv_case *c, etch_dtype t) {
    int64_t channels = c->w.v[0];
    etch_tensor *in[4] = {make(t, c->x, LAYOUT_ROW, true), make(t, c->w, LAYOUT_ROW, true),
                          make(t, S(channels), LAYOUT_ROW, true),
                          make(t, S(channels, channels, 1, 1), LAYOUT_ROW, true)};
    etch_tensor *want[4], *have[4];
    if (step((void *)c, in, 4, want, 4) != ETCH_OK) fail_msg("%s", etch_last_error());
    etch_function *f = etch_compile(step, .fullgraph = true, .ctx = (void *)c);
    for (int i = 0; i < 3; i++) {
        etch_set_num_threads(1 + i % 2);
        if (etch_call_n(f, in, 4, have, 4) != ETCH_OK) fail_msg("%s", etch_last_error());
        for (int k = 0; k < 4; k++)
            if (!same_tensor(want[k], have[k]))
                fail_msg("case %d of %s: gradient %d", (int)(c - cases), etch_dtype_name(t), k);
    }
    etch_function_free(f);
    etch_set_num_threads(2);
}

TEST(steps_of_training_compiled_equal_eager) {
    for (int k = 0; k < 4 * COUNT_OF(cases); k++)
        ETCH_SCOPE { check_step(&cases[k / 4], types[k % 4]); }
}

/* ---- which layout ---- */

/* x, w and v: a layer, and the convolution that reads it. */
static ETCH_FN_N(two_layers, ctx, in, nin, out, nout) {
    etch_tensor *y =
        etch_relu(etch_convolution(in[0], in[1], ETCH_NONE, S(1, 1), S(1, 1), S(1, 1), 1));
    out[0] = etch_convolution(y, in[2], ETCH_NONE, S(1, 1), S(1, 1), S(1, 1), 1);
    return out[0] ? ETCH_OK : etch_last_status();
}

/* Axes of the first layer's kernel: images, rows, columns and channels of tiles that lie so, or
 * channels and positions of planes. */
static void check_axes(etch_shape x, int64_t channels, const char *axes) {
    ETCH_SCOPE {
        etch_tensor *in[3] = {make(ETCH_F32, x, LAYOUT_ROW, true),
                              make(ETCH_F32, S(channels, x.v[1], 3, 3), LAYOUT_ROW, true),
                              make(ETCH_F32, S(24, channels, 3, 3), LAYOUT_ROW, true)};
        etch_tensor *want, *have;
        assert_int_equal(two_layers(NULL, in, 3, &want, 1), ETCH_OK);
        etch_function *f = etch_compile(two_layers, .fullgraph = true);
        begin_log("output_code");
        for (int i = 0; i < 2; i++) assert_int_equal(etch_call_n(f, in, 3, &have, 1), ETCH_OK);
        end_log();
        assert_true(same_tensor(want, have));
        if (!strstr(logged, axes) || !strstr(logged, "after call convolution"))
            fail_msg("no kernel of a convolution with \"%s\":\n%.900s", axes, logged);
        etch_function_free(f);
    }
}

TEST(many_channels_lie_innermost_few_in_planes) {
    check_axes(S(2, 1, 8, 8), 16, "map, 4 + 0 axes");
    check_axes(S(2, 1, 8, 40), 16, "map, 4 + 0 axes");
    check_axes(S(2, 3, 8, 40), 2, "map, 3 + 0 axes");
    check_axes(S(1, 3, 8, 40), 2, "map, 2 + 0 axes");
}

/* ---- pooling between two ---- */

/* Windows that leave rests, overlap, are apart, and lie in the padding. */
static const struct pooling {
    etch_dims kernel, stride, padding, dilation;
} poolings[] = {
    {ETCH_DIMS(3, 3), ETCH_DIMS(2, 2), ETCH_DIMS(1, 1), ETCH_DIMS(1, 1)},
    {ETCH_DIMS(2, 3), ETCH_DIMS(3, 1), ETCH_DIMS(0, 1), ETCH_DIMS(2, 3)},
    {ETCH_DIMS(4, 2), ETCH_DIMS(1, 2), ETCH_DIMS(2, 0), ETCH_DIMS(1, 1)},
};

static ETCH_FN_N(pooled, ctx, in, nin, out, nout) {
    const struct pooling *p = ctx;
    etch_tensor *y =
        etch_add(etch_convolution(in[0], in[1], ETCH_NONE, S(1, 1), S(1, 1), S(1, 1), 1), in[3]);
    etch_tensor *z = etch_max_pool2d(y, p->kernel, p->stride, p->padding, p->dilation, false);
    out[0] = etch_convolution(z, in[2], ETCH_NONE, S(1, 1), S(0, 0), S(1, 1), 1);
    out[1] = etch_amax(z, ETCH_DIMS(2, 3), false);
    return out[0] && out[1] ? ETCH_OK : etch_last_status();
}

TEST(pooling_does_not_depend_on_where_channels_lie) {
    for (int k = 0; k < 4 * COUNT_OF(poolings); k++)
        ETCH_SCOPE {
            etch_dtype t = types[k % 4];
            etch_tensor *in[4] = {make(t, S(2, 3, 9, 10), LAYOUT_ROW, true),
                                  make(t, S(20, 3, 3, 3), LAYOUT_ROW, true),
                                  make(t, S(24, 20, 1, 1), LAYOUT_ROW, true),
                                  make(t, S(1, 20, 1, 1), LAYOUT_ROW, false)};
            etch_tensor *want[2], *have[2];
            void *ctx = (void *)&poolings[k / 4];
            if (pooled(ctx, in, 4, want, 2) != ETCH_OK) fail_msg("%s", etch_last_error());
            etch_function *f = etch_compile(pooled, .fullgraph = true, .ctx = ctx);
            begin_log("output_code");
            for (int i = 0; i < 2; i++) assert_int_equal(etch_call_n(f, in, 4, have, 2), ETCH_OK);
            end_log();
            if (!strstr(logged, "map, 4 + 0 axes")) fail_msg("%.900s", logged);
            for (int i = 0; i < 2; i++) assert_true(same_tensor(want[i], have[i]));
            etch_function_free(f);
        }
}

int main(int argc, char **argv) { return run_suite(argc, argv) + run_under_lower_isas(argv); }
