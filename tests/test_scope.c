/* Scopes and variables: what etch_assign moves, what it lets go, and what stays with its owner.
 * Labels: quick optimised. */
#include <etch/etch.h>

#include "trace_support.h"

static etch_tensor *number(double v) { return etch_full(ETCH_F32, ETCH_SHAPE(256), v); }

static double value_of(const etch_tensor *t) {
    float all[256];
    return etch_to_host(t, all, sizeof all) == ETCH_OK ? all[255] : -1;
}

/* ---- one variable ---- */

TEST(a_loop_holds_one_tensor) {
    ETCH_SCOPE {
        etch_tensor *x = number(1);
        int64_t before = etch_memory().tensors;
        for (int i = 0; i < 100; i++) {
            ETCH_SCOPE {
                etch_tensor *twice = etch_add(x, x);
                etch_tensor *half = etch_mul_scalar(twice, 0.5);
                assert_int_equal(etch_assign(&x, etch_add_scalar(half, 1)), ETCH_OK);
            }
            assert_int_equal(etch_memory().tensors, before + 1); /* and the first one */
        }
        assert_float_equal(value_of(x), 101, 0);
    }
    assert_int_equal(etch_memory().tensors, 0);
}

static etch_tensor *count_up(etch_tensor *x) {
    for (int i = 0; i < 5; i++)
        ETCH_SCOPE { etch_assign(&x, etch_add_scalar(x, 1)); }
    return x;
}

/* Of a plain function the first value is the caller's. */
TEST(the_first_tensor_stays_with_its_owner) {
    ETCH_SCOPE {
        etch_tensor *x = number(1), *y = count_up(x);
        assert_float_equal(value_of(x), 1, 0);
        assert_float_equal(value_of(y), 6, 0);
    }
    assert_int_equal(etch_memory().tensors, 0);
}

TEST(a_variable_that_was_null) {
    ETCH_SCOPE {
        etch_tensor *x = NULL;
        for (int i = 0; i < 3; i++)
            ETCH_SCOPE { assert_int_equal(etch_assign(&x, number(i)), ETCH_OK); }
        assert_float_equal(value_of(x), 2, 0);
        assert_int_equal(etch_memory().tensors, 1);
    }
    assert_int_equal(etch_memory().tensors, 0);
}

/* From the second time on it is known where the variable lives. */
TEST(from_a_deeper_scope) {
    ETCH_SCOPE {
        etch_tensor *x = number(0);
        for (int i = 1; i < 5; i++)
            ETCH_SCOPE {
                ETCH_SCOPE {
                    ETCH_SCOPE { etch_assign(&x, number(i)); }
                }
            }
        assert_float_equal(value_of(x), 4, 0);
        assert_int_equal(etch_memory().tensors, 2);
    }
    assert_int_equal(etch_memory().tensors, 0);
}

TEST(without_an_inner_scope) {
    ETCH_SCOPE {
        etch_tensor *x = number(1);
        for (int i = 0; i < 3; i++) {
            etch_tensor *next = etch_add(x, x);
            assert_int_equal(etch_assign(&x, next), ETCH_OK);
            assert_ptr_equal(x, next);
        }
        assert_float_equal(value_of(x), 8, 0);
    }
    assert_int_equal(etch_memory().tensors, 0);
}

/* ---- several ---- */

TEST(two_variables_of_a_recurrence) {
    ETCH_SCOPE {
        etch_tensor *a = number(0), *b = number(1);
        for (int i = 0; i < 10; i++)
            ETCH_SCOPE {
                etch_tensor *next = etch_add(a, b);
                etch_assign(&a, b);
                etch_assign(&b, next);
            }
        assert_float_equal(value_of(a), 55, 0);
        assert_float_equal(value_of(b), 89, 0);
        assert_int_equal(etch_memory().tensors, 4);
    }
    assert_int_equal(etch_memory().tensors, 0);
}

TEST(one_tensor_in_two_variables) {
    ETCH_SCOPE {
        etch_tensor *x = NULL, *y = NULL;
        ETCH_SCOPE {
            etch_tensor *t = number(7);
            etch_assign(&x, t);
            etch_assign(&y, t);
        }
        ETCH_SCOPE { etch_assign(&x, number(8)); }
        assert_float_equal(value_of(y), 7, 0);
        ETCH_SCOPE { etch_assign(&y, x); }
        assert_int_equal(etch_memory().tensors, 1);
        assert_float_equal(value_of(y), 8, 0);
    }
    assert_int_equal(etch_memory().tensors, 0);
}

/* What an outer scope owns has other users. */
TEST(an_outer_tensor_keeps_its_owner) {
    ETCH_SCOPE {
        etch_tensor *x = NULL, *t = number(3);
        ETCH_SCOPE { etch_assign(&x, t); }
        ETCH_SCOPE { etch_assign(&x, number(4)); }
        assert_float_equal(value_of(t), 3, 0);
    }
    assert_int_equal(etch_memory().tensors, 0);
}

TEST(a_kept_tensor_outlives_the_variable) {
    ETCH_SCOPE {
        etch_tensor *kept = NULL;
        ETCH_SCOPE {
            etch_tensor *x = NULL;
            ETCH_SCOPE { etch_assign(&x, number(5)); }
            kept = etch_keep(x);
            ETCH_SCOPE { etch_assign(&x, number(6)); }
        }
        assert_float_equal(value_of(kept), 5, 0);
    }
    assert_int_equal(etch_memory().tensors, 0);
}

/* ---- any order of it, against a model ---- */

enum { VARIABLES = 6, DEPTH = 6 };

typedef struct model {
    etch_tensor *variable[VARIABLES];
    double value[VARIABLES];
    int depth[VARIABLES]; /* of the scope in which it was declared */
    int64_t mark[DEPTH];
    int open;
    uint32_t seed;
} model;

static int draw(model *m, int n) {
    m->seed = m->seed * 1664525u + 1013904223u;
    return (int)((m->seed >> 8) % (uint32_t)n);
}

static void close_one(model *m) {
    etch_scope_end(m->mark[--m->open]);
    for (int i = 0; i < VARIABLES; i++)
        if (m->depth[i] > m->open) m->variable[i] = NULL, m->depth[i] = m->open;
}

static void assign_one(model *m, int step) {
    int to = draw(m, VARIABLES), from = draw(m, VARIABLES);
    bool copy = m->variable[from] && draw(m, 3) == 0;
    if (!m->variable[to]) m->depth[to] = m->open - 1; /* moves one scope out */
    double v = copy ? m->value[from] : step;
    etch_tensor *t = copy ? m->variable[from] : number(v);
    assert_int_equal(etch_assign(&m->variable[to], t), ETCH_OK);
    m->value[to] = v;
}

TEST(any_order) {
    model m = {.seed = 1};
    for (int step = 0; step < 20000; step++) {
        int what = draw(&m, 8);
        if (m.open < 2 || (what == 0 && m.open < DEPTH)) m.mark[m.open++] = etch_scope_begin();
        else if (what == 1) close_one(&m);
        else assign_one(&m, step);
        for (int i = 0; i < VARIABLES; i++)
            if (m.variable[i]) assert_float_equal(value_of(m.variable[i]), m.value[i], 0);
    }
    while (m.open) close_one(&m);
    assert_int_equal(etch_memory().tensors, 0);
}

/* ---- in compiled functions ---- */

static etch_tensor *recurrence(etch_tensor *x, etch_tensor *w) {
    etch_tensor *before = x;
    for (int i = 0; i < 20; i++)
        ETCH_SCOPE {
            etch_tensor *product = etch_mul(x, w);
            etch_tensor *next = etch_sub(product, before);
            etch_assign(&before, x);
            etch_assign(&x, next);
            if (i == 10) etch_graph_break("in the middle");
        }
    return x;
}

TEST(compiled_equals_eager) {
    etch_function *f = etch_compile(recurrence);
    ETCH_SCOPE {
        etch_tensor *x = number(0.25), *w = number(1.5);
        for (int call = 0; call < 4; call++)
            ETCH_SCOPE {
                int64_t before = etch_memory().bytes_live;
                etch_tensor *y = etch_call(f, x, w);
                assert_int_equal(etch_memory().bytes_live, before + 1024); /* the result */
                etch_tensor *right = recurrence(x, w);
                assert_int_equal(etch_memory().bytes_live, before + 3 * 1024);
                assert_true(etch_bitwise_equal(y, right));
            }
    }
    assert_int_equal(etch_function_counters(f).graphs, 2);
    etch_function_free(f);
    assert_int_equal(etch_memory().tensors, 0);
}

static etch_tensor *first_in_the_body(etch_tensor *x) {
    ETCH_SCOPE { etch_assign(&x, etch_add_scalar(x, 1)); }
    etch_tensor *unused = etch_mul(x, x);
    return unused ? x : NULL;
}

/* A variable of the body that held an argument: its tensors are the body's all the same. */
TEST(nothing_is_left_with_the_caller) {
    const bool disable[] = {false, true};
    for (int i = 0; i < 2; i++) {
        etch_function *f = etch_compile(first_in_the_body, .disable = disable[i]);
        ETCH_SCOPE {
            etch_tensor *x = number(1);
            for (int call = 0; call < 3; call++) {
                ETCH_SCOPE { assert_float_equal(value_of(etch_call(f, x)), 2, 0); }
                assert_int_equal(etch_memory().bytes_live, 1024);
            }
        }
        etch_function_free(f);
    }
}

/* ---- bad input ---- */

TEST(errors_leave_the_variable) {
    etch_tensor *x = NULL;
    assert_int_equal(etch_assign(NULL, NULL), ETCH_ERR_NULL);
    etch_clear_error();
    ETCH_SCOPE {
        x = number(1);
        etch_tensor *before = x;
        assert_int_equal(etch_assign(&x, NULL), ETCH_ERR_NULL);
        assert_ptr_equal(x, before);
        etch_clear_error();
        etch_tensor *wrong = etch_mm(x, x);
        assert_int_equal(etch_assign(&x, wrong), etch_last_status());
        assert_ptr_equal(x, before);
        etch_retain(x);
    }
    etch_clear_error();
    etch_tensor *y = NULL;
    assert_int_equal(etch_assign(&y, x), ETCH_ERR_NO_SCOPE);
    etch_release(x);
    etch_clear_error();
    assert_int_equal(etch_memory().tensors, 0);
}
