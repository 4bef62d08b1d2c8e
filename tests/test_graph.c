/* The graph container, its text form, and the registry of backends.
 * Labels: quick. */
#include "etch_test.h"
#include "core/graph/backend.h"

static void round_trip(const char *text) {
    graph *g = etch__graph_parse(text);
    if (!g) fail_msg("%s", etch_last_error());
    char *out = etch__graph_text(g);
    assert_string_equal(out, text);
    graph *again = etch__graph_parse(out), *copy = etch__graph_copy(g);
    assert_non_null(again);
    assert_true(etch__graph_equal(g, again));
    assert_true(etch__graph_equal(g, copy));
    etch__graph_free(copy);
    etch__graph_free(again);
    etch__graph_free(g);
    etch__free(out);
}

TEST(text_round_trips) {
    round_trip("graph step/0(%0: f32[256, 256], %1: f32[256, 256]) {\n"
               "  %2: f32[256, 256] = mm(%0, %1)\n"
               "  %3: f32[256, 256] = add.Scalar(%2, $0: real, $1: int) {1}\n"
               "  return %3\n}\n");
    round_trip("graph empty() {\n  return\n}\n");
    round_trip("graph strides(%0: f32[4, 8 : 1, 4]@16, %1: i64[], %2: bf16[3] over %0) !101 {\n"
               "  %3: f32[8, 4]@16 = t(%0)\n"
               "  relu_(%3) !201\n"
               "  %4: f32[4, 2 : 1, 4]@20 = slice.Tensor(%0) {1, none, 2, 1}\n"
               "  %5: bool[8, 4] = eq.Scalar(%3, $0: bool)\n"
               "  return %5\n}\n");
}

static void bad_text(const char *text, const char *message) {
    etch_clear_error();
    graph *g = etch__graph_parse(text);
    assert_null(g);
    assert_int_equal(etch_last_status(), ETCH_ERR_FORMAT);
    if (!strstr(etch_last_error(), message))
        fail_msg("'%s' lacks '%s'", etch_last_error(), message);
}

/* Inference and kernels trust the counts and words of a call, so a text has to have them. */
TEST(calls_have_the_form_of_their_schema) {
    static const char *const calls[] = {
        "mm(%0)",
        "mm(%0, %0, %0)",
        "relu(%0, $0: real)",
        "relu(%0) {1}",
        "add.Tensor(%0, %0, $0: int)",
        "add.Tensor(%0, %0, $0: int) {2}",
        "sum.dim_IntList(%0) {9, 0, 0, -1}",
        "sum.dim_IntList(%0) {1, 0}",
        "sum.dim_IntList(%0) {1, 0, 2, -1}",
        "sum.dim_IntList(%0) {1, 0, 0, 77}",
        "pow.Tensor_Scalar(%0, $0: real) {8}",
    };
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        char text[256];
        snprintf(text, sizeof text,
                 "graph x(%%0: f32[2, 2]) {\n  %%1: f32[2, 2] = %s\n  return %%1\n}\n", calls[i]);
        bad_text(text, "takes other operands, scalars or attributes");
    }
}

TEST(errors_name_line_and_column) {
    bad_text("grph", "line 1, column 1");
    bad_text("graph x(%0: f32[2]) {\n  %1: f32[2] = nosuch(%0)\n  return %1\n}\n",
             "line 2, column 16");
    bad_text("graph x(%0: f32[2]) {\n  %1: f32[2] = relu(%7)\n  return %1\n}\n", "no such value");
    bad_text("graph x(%0: f32[2]) {\n  %2: f32[2] = relu(%0)\n  return %2\n}\n", "in order");
    bad_text("graph x(%0: f99[2]) {\n  return\n}\n", "dtype");
    bad_text("graph x(%0: f32[2, 3 : 1]) {\n  return\n}\n", "as many strides");
    bad_text("graph x(%0: f32[2]) {\n  return %0\n}\n", "computed value");
    bad_text("graph x(%0: f32[2]) {\n  %1: f32[2] = relu_(%0)\n  return\n}\n", "in-place");
    bad_text("graph x(%0: f32[2]) {\n  relu(%0)\n  return\n}\n", "expected '%n");
    bad_text("graph x(%0: f32[2]) {\n  %1: f32[2] = matmul(%0, %0)\n  return\n}\n", "composites");
    bad_text("graph x(%0: f32[-2]) {\n  return\n}\n", "not negative");
    bad_text("graph x(%0: f32[9223372036854775807, 2]) {\n  return\n}\n", "63 bits");
    bad_text("graph x(%0: f32[2]) {\n  return\n} x", "expected the end");
    bad_text("graph x(%0: f32[2]) {\n  %1: f32[2] = t()\n  return\n}\n", "first operand");
}

TEST(equality_sees_each_part) {
    static const char *const texts[] = {
        "graph a(%0: f32[2]) {\n %1: f32[2] = relu(%0)\n return %1\n}",
        "graph a(%0: f64[2]) {\n %1: f32[2] = relu(%0)\n return %1\n}",
        "graph a(%0: f32[2]) {\n %1: f32[2] = neg(%0)\n return %1\n}",
        "graph a(%0: f32[2]) {\n %1: f32[2] = add.Scalar(%0, $0: int, $1: int) {1}\n return %1\n}",
        "graph a(%0: f32[2]) {\n %1: f32[2] = add.Scalar(%0, $0: int, $1: int) {0}\n return %1\n}",
        "graph a(%0: f32[2]) {\n %1: f32[2] = relu(%0)\n return\n}",
        "graph a(%0: f32[2]) {\n %1: f32[2] = add.Scalar(%0, $0: real, $1: int) {1}\n return %1\n}",
        "graph a(%0: f32[2]) !3 {\n %1: f32[2] = relu(%0)\n return %1\n}",
    };
    graph *g[COUNT_OF(texts)];
    for (int i = 0; i < COUNT_OF(texts); i++) assert_non_null(g[i] = etch__graph_parse(texts[i]));
    for (int i = 0; i < COUNT_OF(texts); i++)
        for (int j = 0; j < COUNT_OF(texts); j++)
            assert_int_equal(etch__graph_equal(g[i], g[j]), i == j);
    for (int i = 0; i < COUNT_OF(texts); i++) etch__graph_free(g[i]);
}

TEST(parsing_survives_failed_allocations) {
    const char *text =
        "graph a(%0: f32[2]) {\n %1: f32[2] = add.Scalar(%0, $0: real, $1: int) {1}\n"
        " return %1\n}";
    for (int n = 0;; n++) {
        assert_true(n < 1000);
        etch__fail_allocation(n);
        graph *g = etch__graph_parse(text);
        char *out = g ? etch__graph_text(g) : NULL;
        graph *copy = out ? etch__graph_copy(g) : NULL;
        etch__fail_allocation(-1);
        bool done = copy != NULL;
        if (!done) assert_int_equal(etch_last_status(), ETCH_ERR_OUT_OF_MEMORY);
        etch__graph_free(copy);
        etch__free(out);
        etch__graph_free(g);
        if (done) break;
    }
}

TEST(registry_finds_names_and_aliases) {
    assert_non_null(etch__backend_find("eager"));
    assert_non_null(etch__backend_find("native"));
    assert_ptr_equal(etch__backend_find("inductor"), etch__backend_find("native"));
    assert_null(etch__backend_find("nosuch"));
    assert_int_equal(etch_last_status(), ETCH_ERR_NOT_FOUND);
    int found = 0;
    for (const char *const *name = etch_list_backends(); *name; name++)
        found += !strcmp(*name, "eager") || !strcmp(*name, "native");
    assert_int_equal(found, 2);
}
