/* Every error says what failed and where: wrong calls over the whole operator table, at random, the
 * public functions one by one, calls in tail position, parts of composites.
 * Labels: quick optimised. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/ops/schema.h"
#include "tests/trace_support.h"

static uint64_t random_state = 20261129;

static uint32_t draw(uint32_t n) { /* splitmix64 */
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ z >> 31) >> 32) % n;
}

/* ---- what an error must have ---- */

typedef struct tally {
    int errors, wrong;
} tally;

static bool has_place(const char *text) {
    const char *at = strstr(text, "(test_error_places.c:");
    return at && atoi(at + strlen("(test_error_places.c:")) > 0;
}

/* The name before the text is the operator's. */
static bool has_name(const char *text, const char *name) {
    size_t n = strlen(name);
    return !strncmp(text, name, n) && text[n] == ':';
}

static void count(tally *t, const char *name) {
    const char *text = etch_last_error();
    t->errors++;
    bool ok = etch_last_status() != ETCH_OK && has_name(text, name) && has_place(text);
    if (ok) return;
    if (t->wrong++ < 20)
        print_message("%s: %s: %s\n", name, etch_status_name(etch_last_status()), text);
}

static void assert_named(const tally *t, int least) {
    print_message("%d errors, %d without name or place\n", t->errors, t->wrong);
    assert_true(t->errors >= least);
    assert_true(t->wrong * 100 <= t->errors);
}

/* ---- random calls by name ---- */

enum { POOL = 24 };
static etch_tensor *pool[POOL];

static void fill_pool(void) {
    for (int i = 0; i < POOL; i++) {
        etch_shape s = {.n = (int32_t)draw(5)};
        for (int d = 0; d < s.n; d++) s.v[d] = draw(4);
        pool[i] = etch_full(draw(ETCH_DTYPE_COUNT), s, (int)draw(5) - 1);
        assert_non_null(pool[i]);
    }
}

static etch_tensor *any_tensor(void) {
    uint32_t k = draw(POOL + 2);
    return k < POOL ? pool[k] : k == POOL ? NULL : ETCH_NONE;
}

static int64_t any_int(void) {
    static const int64_t odd[] = {INT64_MAX, INT64_MIN, 1 << 20, -100};
    return draw(8) ? (int64_t)draw(8) - 3 : odd[draw(4)];
}

static etch_dims any_dims(void) {
    etch_dims d = {.n = (int32_t)draw(11) - 1};
    for (int i = 0; i < ETCH_MAX_DIMS; i++) d.v[i] = draw(12) ? (int64_t)draw(5) - 1 : any_int();
    return d;
}

static etch_scalar any_scalar(void) {
    etch_scalar s = draw(2) ? etch_scalar_int(any_int()) : etch_scalar_real(draw(5) - 2.0);
    if (!draw(20)) s.kind = (etch_scalar_kind)any_int();
    return s;
}

static etch_value any_value(const schema_arg *a, etch_tensor **list) {
    etch_value v = {a->name, ETCH_VALUE_INT, {.i = any_int()}};
    switch (a->type) {
    case ARG_TENSOR:
    case ARG_TENSOR_OPT: v.tag = ETCH_VALUE_TENSOR, v.tensor = any_tensor(); break;
    case ARG_TENSORS:
        for (int i = 0; i < 3; i++) list[i] = any_tensor();
        v.tag = ETCH_VALUE_TENSORS, v.tensors.items = list, v.tensors.count = (int)draw(4);
        break;
    case ARG_SCALAR: v.tag = ETCH_VALUE_SCALAR, v.scalar = any_scalar(); break;
    case ARG_INTS:
    case ARG_INTS_OPT: v.tag = ETCH_VALUE_INTS, v.ints = any_dims(); break;
    case ARG_BOOL: v.tag = ETCH_VALUE_BOOL, v.b = draw(2); break;
    case ARG_DTYPE:
    case ARG_DTYPE_OPT: v.tag = ETCH_VALUE_DTYPE, v.dtype = draw(12); break;
    default: break;
    }
    if (!draw(40)) v.tag = (etch_value_tag)draw(12);
    if (v.tag == ETCH_VALUE_BOOL) v.b = draw(2); /* C has no other ones */
    return v;
}

/* Large results would only cost time and memory. */
static bool is_large(const etch_value *v) {
    for (int i = 0; v->tag == ETCH_VALUE_INTS && i < ETCH_MAX_DIMS; i++)
        if (v->ints.v[i] > 4096) return true;
    return (v->tag == ETCH_VALUE_INT && v->i > 4096) ||
           (v->tag == ETCH_VALUE_SCALAR && v->scalar.kind == ETCH_SCALAR_INT && v->scalar.i > 4096);
}

static void call_at_random(const etch_op *op, tally *t) {
    const op_schema *s = etch__schema(op->id);
    etch_value v[SCHEMA_MAX_ARGS + 1];
    etch_tensor *list[3], *out = NULL;
    int n = 0;
    for (int i = 0; i < s->nargs; i++) {
        if (s->args[i].has_default && draw(3)) continue;
        if (!draw(60)) continue;
        v[n] = any_value(&s->args[i], list);
        if (is_large(&v[n])) v[n].i = 3;
        n++;
    }
    etch_clear_error();
    if (!draw(20)) etch__fail_allocation(draw(6));
    etch_status status = etch_op_call(op, v, n, &out, draw(100) ? 1 : 2);
    etch__fail_allocation(-1);
    if (status != ETCH_OK) count(t, etch_op_name(op));
}

TEST(operators_by_name) {
    int nops;
    const etch_op *const *ops = etch_op_list(&nops);
    tally t = {0, 0};
    for (int round = 0; round < 12; round++)
        ETCH_SCOPE {
            fill_pool();
            for (int i = 0; i < nops; i++)
                ETCH_SCOPE
                    call_at_random(ops[i], &t);
        }
    assert_named(&t, 1000);
}

static void *without_scope(void *arg) {
    int nops;
    const etch_op *const *ops = etch_op_list(&nops);
    for (int i = 0; i < nops; i++) call_at_random(ops[i], arg);
    etch_clear_error();
    return NULL;
}

TEST(operators_without_scope) {
    tally t = {0, 0};
    pthread_t thread;
    ETCH_SCOPE {
        fill_pool();
        for (int round = 0; round < 4; round++) {
            assert_int_equal(pthread_create(&thread, NULL, without_scope, &t), 0);
            pthread_join(thread, NULL);
        }
    }
    assert_named(&t, 400);
}

/* ---- random calls of the functions ---- */

#define T any_tensor()
#define D any_dims()
#define I any_int()
#define S any_scalar()
#define TABLE(ROW)                                                                                 \
    ROW("add.Tensor", etch_add(T, T))                                                              \
    ROW("add_.Tensor", etch_add_(T, T))                                                            \
    ROW("mul.Scalar", etch_mul_scalar(T, S))                                                       \
    ROW("where.self", etch_where(T, T, T))                                                         \
    ROW("mm", etch_mm(T, T))                                                                       \
    ROW("bmm", etch_bmm(T, T))                                                                     \
    ROW("addmm", etch_addmm(T, T, T))                                                              \
    ROW("matmul", etch_matmul(T, T))                                                               \
    ROW("linear", etch_linear(T, T, T))                                                            \
    ROW("embedding", etch_embedding(T, T))                                                         \
    ROW("softmax.int", etch_softmax(T, I))                                                         \
    ROW("log_softmax.int", etch_log_softmax(T, I))                                                 \
    ROW("layer_norm", etch_layer_norm(T, D, T, T, S))                                              \
    ROW("view", etch_view(T, D))                                                                   \
    ROW("reshape", etch_reshape(T, D))                                                             \
    ROW("expand", etch_expand(T, D))                                                               \
    ROW("permute", etch_permute(T, D))                                                             \
    ROW("slice.Tensor", etch_slice(T, I, I, I, I))                                                 \
    ROW("select.int", etch_select(T, I, I))                                                        \
    ROW("index_select", etch_index_select(T, I, T))                                                \
    ROW("gather", etch_gather(T, I, T))                                                            \
    ROW("sum.dim_IntList", etch_sum_dim(T, D, true))                                               \
    ROW("logsumexp", etch_logsumexp(T, D, false))                                                  \
    ROW("flip", etch_flip(T, D))                                                                   \
    ROW("roll", etch_roll(T, D, D))                                                                \
    ROW("repeat", etch_repeat(T, D))                                                               \
    ROW("movedim.intlist", etch_movedim(T, D, D))

#define FUNCTION(name, call)                                                                       \
    {                                                                                              \
        etch_clear_error();                                                                        \
        if (!(call)) count(&t, name);                                                              \
    }

TEST(operators_by_function) {
    tally t = {0, 0};
    for (int round = 0; round < 40; round++)
        ETCH_SCOPE {
            fill_pool();
            TABLE(FUNCTION)
        }
    assert_named(&t, 500);
}

/* ---- in tail position ---- */

static etch_tensor *bad_index;

#define TAIL __attribute__((noinline, optimize("O2")))

TAIL static etch_tensor *tail_product(etch_tensor *x) { return etch_mm(x, x); }
TAIL static etch_tensor *tail_linear(etch_tensor *x) {
    return etch_linear(x, bad_index, ETCH_NONE);
}

TAIL static etch_tensor *tail_index(etch_tensor *x) { return etch_index_select(x, 0, bad_index); }

static void check_tail(etch_tensor *(*body)(etch_tensor *), const char *name) {
    for (int k = 0; k < 2; k++) {
        etch_function *f = etch_compile(body, .disable = k, .backend = "eager");
        for (int call = 0; call < 3; call++) {
            etch_tensor *x = etch_ones(ETCH_F32, ETCH_SHAPE(2, 3));
            tally t = {0, 0};
            etch_clear_error();
            assert_null(etch_call(f, x));
            count(&t, name);
            assert_int_equal(t.wrong, 0);
        }
        etch_function_free(f);
    }
}

TEST(tail_calls_name_the_users_lines) {
    ETCH_SCOPE {
        bad_index = etch_full(ETCH_I64, ETCH_SHAPE(1), 7);
        check_tail(tail_product, "mm");
        check_tail(tail_linear, "linear");
        check_tail(tail_index, "index_select");
    }
}

/* Deferred first, so that the failure is found where it is computed. */
TEST(tail_calls_in_compiled_code) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(tail_index);
        etch_tensor *x = etch_ones(ETCH_F32, ETCH_SHAPE(2, 3));
        bad_index = etch_full(ETCH_I64, ETCH_SHAPE(1), 1);
        for (int call = 0; call < 3; call++) assert_non_null(etch_call(f, x));
        bad_index = etch_full(ETCH_I64, ETCH_SHAPE(1), 7);
        tally t = {0, 0};
        etch_clear_error();
        assert_null(etch_call(f, x));
        count(&t, "index_select");
        assert_int_equal(t.wrong, 0);
        etch_function_free(f);
    }
}

/* ---- parts of composites ---- */

static etch_tensor *embeds(etch_tensor *w, etch_tensor *index) {
    etch_tensor *y = etch_embedding(w, index);
    return y;
}

static void composite_names_itself(const char *backend) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(embeds, .backend = backend);
        etch_tensor *w = etch_ones(ETCH_F32, ETCH_SHAPE(4, 3));
        etch_tensor *good = etch_full(ETCH_I64, ETCH_SHAPE(2), 1);
        etch_tensor *bad = etch_full(ETCH_I64, ETCH_SHAPE(2), 9);
        for (int call = 0; call < 5; call++) {
            bool fails = call == 0 || call == 4; /* recording, and deferred */
            etch_clear_error();
            etch_tensor *y = etch_call(f, w, fails ? bad : good);
            assert_int_equal(y == NULL, fails);
            tally t = {0, 0};
            if (fails) count(&t, "embedding");
            assert_int_equal(t.wrong, 0);
        }
        etch_function_free(f);
    }
}

TEST(composites_name_themselves) {
    for (int b = 0; b < 2; b++) composite_names_itself(test_backends[b]);
}

/* A mask of another segment, in whose write the failure comes when masked_select reads it. */
static etch_tensor *selects_what_is_written(etch_tensor *x, etch_tensor *index) {
    etch_tensor *mask = etch_gt_scalar(x, 0);
    etch_graph_break("test");
    etch_index_fill_(mask, 0, index, etch_scalar_int(1));
    return etch_masked_select(x, mask);
}

TEST(composites_do_not_name_what_failed_before) {
    for (int b = 0; b < 2; b++)
        ETCH_SCOPE {
            etch_function *f = etch_compile(selects_what_is_written, .backend = test_backends[b]);
            etch_tensor *x = etch_ones(ETCH_F32, ETCH_SHAPE(4));
            for (int call = 0; call < 6; call++) {
                bool fails = call == 0 || call > 3;
                etch_tensor *index = etch_full(ETCH_I64, ETCH_SHAPE(1), fails ? 9 : 1);
                etch_clear_error();
                assert_int_equal(etch_call(f, x, index) == NULL, fails);
                if (fails) assert_true(has_name(etch_last_error(), "index_fill_.int_Scalar"));
            }
            etch_function_free(f);
        }
    etch_clear_error();
}

/* ---- NULL ---- */

TEST(null_operands_name_their_argument) {
    ETCH_SCOPE {
        etch_tensor *x = etch_ones(ETCH_F32, ETCH_SHAPE(2, 3));
        etch_clear_error();
        assert_null(etch_add(x, NULL));
        assert_non_null(
            strstr(etch_last_error(), "add.Tensor: \"other\": expected a tensor, got NULL"));
        assert_non_null(strstr(etch_last_error(), "ETCH_NONE"));
        assert_true(has_place(etch_last_error()));
        etch_clear_error();
        assert_null(etch_exp(etch_mm(x, x))); /* the first error, and who got what it left */
        assert_int_equal(etch_last_status(), ETCH_ERR_SHAPE);
        assert_true(has_name(etch_last_error(), "mm"));
        assert_non_null(
            strstr(etch_last_error(), "; so exp has no \"self\" (test_error_places.c:"));
    }
    etch_clear_error();
}
