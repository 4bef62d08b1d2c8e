/* Wrong arguments to every public function: the right code, a text with the words that matter,
 * nothing left behind, and a library that works afterwards.
 * Labels: quick. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/ops/schema.h"
#include "tests/trace_support.h"

/* ---- checking ---- */

static void assert_words(const char *words, const char *what, int line) {
    char copy[256], *rest = copy;
    snprintf(copy, sizeof copy, "%s", words);
    for (char *word; (word = strsep(&rest, "|"));)
        if (!strstr(etch_last_error(), word))
            fail_msg("line %d: %s: no \"%s\" in \"%s\"", line, what, word, etch_last_error());
}

static void assert_failure(bool failed, etch_status code, const char *words, const char *what,
                           int line) {
    if (!failed) fail_msg("line %d: %s does not fail", line, what);
    if (etch_last_status() != code)
        fail_msg("line %d: %s: expected %s, got %s: %s", line, what, etch_status_name(code),
                 etch_status_name(etch_last_status()), etch_last_error());
    assert_words(words, what, line);
    etch_clear_error();
}

/* words: those that the text must have, separated by '|'. */
#define FAILS_IF(failed, code, words)                                                              \
    (etch_clear_error(), assert_failure((failed), code, words, #failed, __LINE__))
#define NO_RESULT(call, code, words) FAILS_IF((call) == NULL, code, words)
#define NO_SUCCESS(call, code, words) FAILS_IF((call) == code, code, words)

static etch_tensor *double_body(etch_tensor *x) { return etch_add(x, x); }

static void assert_usable(void) {
    ETCH_SCOPE {
        etch_tensor *x = etch_arange(ETCH_F32, 0, 6, 1);
        etch_tensor *y = etch_mul_scalar(x, 2);
        etch_function *f = etch_compile(double_body, .backend = "eager");
        for (int call = 0; call < 3; call++) assert_same(etch_call(f, x), y);
        assert_counts(f, 1, 2);
        etch_function_free(f);
    }
    assert_int_equal(etch_last_status(), ETCH_OK);
}

static void leave_nothing(void) {
    assert_usable();
    etch_memory_stats m = etch_memory();
    assert_int_equal(m.tensors, 0);
    assert_int_equal(m.bytes_live, 0);
}
EACH_TEST(.after = leave_nothing)

static etch_tensor *f32(int64_t rows, int64_t columns) {
    return etch_ones(ETCH_F32, ETCH_SHAPE(rows, columns));
}

#define BAD_DTYPE ((etch_dtype)77)

/* ---- base.h ---- */

TEST(base) {
    assert_string_equal(etch_status_name((etch_status)-3), "unknown");
    assert_string_equal(etch_status_name((etch_status)9999), "unknown");
    assert_string_equal(etch_dtype_name(BAD_DTYPE), "unknown");
    assert_string_equal(etch_dtype_name((etch_dtype)-1), "unknown");
    assert_int_equal(etch_dtype_size(BAD_DTYPE), 0);
    assert_int_equal(etch_dtype_size((etch_dtype)-1), 0);
    assert_int_equal(etch_promote_types(ETCH_F32, BAD_DTYPE), ETCH_DTYPE_COUNT);
    assert_int_equal(etch_promote_types((etch_dtype)-1, ETCH_F32), ETCH_DTYPE_COUNT);
    NO_SUCCESS(etch_set_default_dtype(ETCH_I32), ETCH_ERR_DTYPE, "f32|f64|i32");
    NO_SUCCESS(etch_set_default_dtype(BAD_DTYPE), ETCH_ERR_DTYPE, "unknown");
    assert_int_equal(etch_default_dtype(), ETCH_F32);
    assert_string_equal(etch_last_error(), "");
}

/* ---- tensor.h: scopes and ownership ---- */

TEST(scopes) {
    NO_RESULT(etch_keep(NULL), ETCH_ERR_NULL, "NULL");
    etch_scope_end(-1);
    etch_scope_end(12345);
    etch_scope_end(INT64_MIN);
    assert_null(etch_retain(NULL));
    etch_release(NULL);
    etch_release(ETCH_NONE);
    assert_ptr_equal(etch_retain(ETCH_NONE), ETCH_NONE);
    NO_RESULT(f32(1, 1), ETCH_ERR_NO_SCOPE, "scope|ETCH_SCOPE");
    ETCH_SCOPE {
        etch_tensor *x = f32(1, 2);
        NO_RESULT(etch_keep(x), ETCH_ERR_NO_SCOPE, "enclosing|etch_retain");
        ETCH_SCOPE {
            assert_ptr_equal(etch_keep(x), x); /* not owned here: stays */
            etch_tensor *y = etch_neg(x);
            assert_ptr_equal(etch_keep(y), y);
            assert_ptr_equal(etch_keep(y), y); /* no longer owned here */
        }
        assert_int_equal(etch_memory().tensors, 2);
    }
}

TEST(outer_scope_closed_first) {
    int64_t outer = etch_scope_begin(), inner = etch_scope_begin();
    assert_non_null(f32(2, 2));
    etch_scope_end(outer);
    etch_scope_end(inner); /* is gone already */
    etch_scope_end(outer);
    NO_RESULT(f32(2, 2), ETCH_ERR_NO_SCOPE, "scope");
}

/* ---- tensor.h: queries ---- */

TEST(queries) {
    FAILS_IF(etch_dtype_of(NULL) == ETCH_DTYPE_COUNT, ETCH_ERR_NULL, "NULL");
    FAILS_IF(etch_ndim(NULL) == -1, ETCH_ERR_NULL, "NULL");
    FAILS_IF(etch_size(NULL, 0) == -1, ETCH_ERR_NULL, "NULL");
    FAILS_IF(etch_stride(NULL, 0) == -1, ETCH_ERR_NULL, "NULL");
    FAILS_IF(etch_sizes(NULL).n == 0, ETCH_ERR_NULL, "NULL");
    FAILS_IF(etch_numel(NULL) == -1, ETCH_ERR_NULL, "NULL");
    FAILS_IF(etch_storage_offset(NULL) == -1, ETCH_ERR_NULL, "NULL");
    FAILS_IF(!etch_is_contiguous(NULL), ETCH_ERR_NULL, "NULL");
    FAILS_IF(!etch_is_deferred(NULL), ETCH_ERR_NULL, "NULL");
    ETCH_SCOPE {
        etch_tensor *x = f32(2, 3);
        FAILS_IF(!etch_shares_storage(x, NULL), ETCH_ERR_NULL, "NULL");
        FAILS_IF(!etch_shares_storage(NULL, x), ETCH_ERR_NULL, "NULL");
        FAILS_IF(etch_size(x, 2) == -1, ETCH_ERR_DIM_RANGE, "-2|1|got 2");
        FAILS_IF(etch_size(x, -3) == -1, ETCH_ERR_DIM_RANGE, "got -3");
        FAILS_IF(etch_stride(x, INT32_MAX) == -1, ETCH_ERR_DIM_RANGE, "dimension");
        FAILS_IF(etch_stride(x, INT32_MIN) == -1, ETCH_ERR_DIM_RANGE, "dimension");
        etch_tensor *s = etch_sum(x);
        FAILS_IF(etch_size(s, 0) == -1, ETCH_ERR_DIM_RANGE, "dimension");
        assert_false(etch_shares_storage(x, ETCH_NONE));
    }
    etch_clear_error();
}

/* ---- tensor.h: memory in ---- */

static int freed;
static void count_free(void *ctx) { (void)ctx, freed++; }

TEST(memory_in) {
    static float data[8];
    etch_shape nine = {9, {1, 1, 1, 1, 1, 1, 1, 1}}, negative = {-1, {0}};
    int64_t huge = (int64_t)1 << 40;
    freed = 0;
    ETCH_SCOPE {
        const etch_shape two = ETCH_SHAPE(2);
        NO_RESULT(etch_from_host(NULL, ETCH_F32, two), ETCH_ERR_NULL, "etch_from_host|data");
        NO_RESULT(etch_from_host(data, BAD_DTYPE, two), ETCH_ERR_DTYPE, "dtype|77");
        NO_RESULT(etch_from_host(data, ETCH_F32, nine), ETCH_ERR_SHAPE, "8|9");
        NO_RESULT(etch_from_host(data, ETCH_F32, negative), ETCH_ERR_SHAPE, "-1");
        NO_RESULT(etch_from_host(data, ETCH_F32, ETCH_SHAPE(2, -1)), ETCH_ERR_SHAPE, "negative|-1");
        NO_RESULT(etch_from_host(data, ETCH_F32, ETCH_SHAPE(huge, huge)), ETCH_ERR_OVERFLOW, "63");
        NO_RESULT(etch_wrap_host(NULL, ETCH_F32, two, count_free, NULL), ETCH_ERR_NULL, "data");
        NO_RESULT(etch_wrap_host((char *)data + 1, ETCH_F32, two, count_free, NULL),
                  ETCH_ERR_INVALID_ARGUMENT, "aligned|f32");
        NO_RESULT(etch_wrap_host(data, BAD_DTYPE, two, count_free, NULL), ETCH_ERR_DTYPE, "77");
        NO_RESULT(etch_wrap_host(data, ETCH_F32, nine, count_free, NULL), ETCH_ERR_SHAPE, "9");
        NO_RESULT(etch_wrap_host(data, ETCH_F64, ETCH_SHAPE(huge, huge), count_free, NULL),
                  ETCH_ERR_OVERFLOW, "63");
        assert_int_equal(freed, 0); /* what was not taken is not freed */
        etch_tensor *none = etch_from_host(NULL, ETCH_F32, ETCH_SHAPE(0, 3));
        etch_tensor *wrapped = etch_wrap_host(NULL, ETCH_F32, ETCH_SHAPE(0), count_free, NULL);
        assert_int_equal(etch_numel(none), 0);
        assert_int_equal(etch_numel(wrapped), 0);
        assert_null(etch_data(none)); /* an empty tensor has no data, which is no error */
        assert_null(etch_data_mut(none));
        assert_int_equal(etch_last_status(), ETCH_OK);
    }
    assert_int_equal(freed, 1);
    NO_RESULT(etch_wrap_host(data, ETCH_F32, ETCH_SHAPE(2), count_free, NULL), ETCH_ERR_NO_SCOPE,
              "scope");
    NO_RESULT(etch_from_host(data, ETCH_F32, ETCH_SHAPE(2)), ETCH_ERR_NO_SCOPE, "scope");
    assert_int_equal(freed, 1);
}

TEST(npy) {
    char path[] = "/tmp/etch-bad-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, "no numpy file at all", 20) == 20);
    close(fd);
    ETCH_SCOPE {
        etch_tensor *x = f32(2, 2);
        NO_RESULT(etch_npy_load(NULL), ETCH_ERR_NULL, "path");
        NO_RESULT(etch_npy_load("/nowhere/at/all.npy"), ETCH_ERR_IO, "/nowhere/at/all.npy");
        NO_RESULT(etch_npy_load("/"), ETCH_ERR_IO, "/");
        NO_RESULT(etch_npy_load(path), ETCH_ERR_FORMAT, "npy");
        NO_SUCCESS(etch_npy_save(NULL, x), ETCH_ERR_NULL, "path");
        NO_SUCCESS(etch_npy_save(path, NULL), ETCH_ERR_NULL, "NULL");
        NO_SUCCESS(etch_npy_save("/nowhere/at/all.npy", x), ETCH_ERR_IO, "/nowhere/at/all.npy");
        NO_SUCCESS(etch_npy_save(path, etch_to(x, ETCH_BF16)), ETCH_ERR_DTYPE, "bf16|etch_to");
        FAILS_IF(etch_npy_save(path, ETCH_NONE) != ETCH_OK, ETCH_ERR_DTYPE, "npy");
    }
    unlink(path);
}

/* ---- tensor.h: memory out ---- */

TEST(memory_out) {
    float to[8];
    ETCH_SCOPE {
        etch_tensor *x = f32(2, 3), *empty = etch_zeros(ETCH_F32, ETCH_SHAPE(0));
        FAILS_IF(isnan(etch_item(NULL)), ETCH_ERR_NULL, "NULL");
        FAILS_IF(isnan(etch_item(x)), ETCH_ERR_SHAPE, "one element|[2, 3]");
        FAILS_IF(isnan(etch_item(empty)), ETCH_ERR_SHAPE, "one element|[0]");
        FAILS_IF(etch_item_int(NULL) == INT64_MIN, ETCH_ERR_NULL, "NULL");
        FAILS_IF(etch_item_int(x) == INT64_MIN, ETCH_ERR_SHAPE, "etch_item_int");
        NO_SUCCESS(etch_to_host(NULL, to, sizeof to), ETCH_ERR_NULL, "NULL");
        NO_SUCCESS(etch_to_host(x, NULL, 24), ETCH_ERR_NULL, "dst");
        NO_SUCCESS(etch_to_host(x, to, 23), ETCH_ERR_INVALID_ARGUMENT, "24|23");
        assert_int_equal(etch_to_host(empty, NULL, 0), ETCH_OK);
        NO_RESULT(etch_data(NULL), ETCH_ERR_NULL, "NULL");
        NO_RESULT(etch_data_mut(NULL), ETCH_ERR_NULL, "NULL");
        NO_SUCCESS(etch_print(NULL), ETCH_ERR_NULL, "NULL");
        FAILS_IF(etch_format(NULL, NULL, 0) == -1, ETCH_ERR_NULL, "NULL");
        assert_true(etch_format(x, NULL, 0) > 10);
        assert_true(etch_format(x, NULL, 100) > 10); /* no room, whatever n says */
        FAILS_IF(!etch_equal(x, NULL), ETCH_ERR_NULL, "NULL");
        FAILS_IF(!etch_equal(NULL, x), ETCH_ERR_NULL, "NULL");
        FAILS_IF(!etch_allclose(NULL, x, 0, 0, false), ETCH_ERR_NULL, "NULL");
        FAILS_IF(!etch_bitwise_equal(x, NULL), ETCH_ERR_NULL, "NULL");
        etch_data_end(NULL);
        etch_data_end(ETCH_NONE);
        etch_data_end(x); /* never exposed */
    }
    etch_clear_error();
}

/* ETCH_NONE is a tensor only where an argument is optional. */
TEST(none_is_no_tensor) {
    char text[8];
    etch_function *f = etch_compile(double_body);
    ETCH_SCOPE {
        etch_tensor *x = f32(2, 2);
        FAILS_IF(isnan(etch_item(ETCH_NONE)), ETCH_ERR_INVALID_ARGUMENT, "ETCH_NONE");
        FAILS_IF(etch_to_host(ETCH_NONE, text, 8) != ETCH_OK, ETCH_ERR_INVALID_ARGUMENT,
                 "ETCH_NONE");
        NO_RESULT(etch_data(ETCH_NONE), ETCH_ERR_INVALID_ARGUMENT, "ETCH_NONE");
        FAILS_IF(etch_format(ETCH_NONE, text, 8) < 0, ETCH_ERR_INVALID_ARGUMENT, "ETCH_NONE");
        FAILS_IF(!etch_equal(ETCH_NONE, ETCH_NONE), ETCH_ERR_INVALID_ARGUMENT, "ETCH_NONE");
        NO_RESULT(etch_add(x, ETCH_NONE), ETCH_ERR_INVALID_ARGUMENT, "add|ETCH_NONE");
        NO_RESULT(etch_call(f, ETCH_NONE), ETCH_ERR_INVALID_ARGUMENT, "ETCH_NONE");
    }
    etch_function_free(f);
}

TEST(threads_setting) {
    int before = etch_num_threads();
    NO_SUCCESS(etch_set_num_threads(0), ETCH_ERR_INVALID_ARGUMENT, "threads|0");
    NO_SUCCESS(etch_set_num_threads(-4), ETCH_ERR_INVALID_ARGUMENT, "-4");
    NO_SUCCESS(etch_set_num_threads(INT32_MAX), ETCH_ERR_INVALID_ARGUMENT, "1024");
    assert_int_equal(etch_num_threads(), before);
}

/* ---- operators: each of the table ---- */

/* Values by name for the arguments of op that have no default, x for every tensor; list, of two,
 * for a list. Returns how many. */
static int plain_values(const etch_op *op, etch_tensor *x, etch_tensor **list, etch_value *v) {
    const op_schema *s = etch__schema(op->id);
    int n = 0;
    for (int i = 0; i < s->nargs; i++) {
        const schema_arg *a = &s->args[i];
        if (a->has_default) continue;
        v[n] = (etch_value){a->name, ETCH_VALUE_INT, {.i = 0}};
        if (a->type == ARG_TENSOR) v[n] = (etch_value){a->name, ETCH_VALUE_TENSOR, {.tensor = x}};
        if (a->type == ARG_TENSORS)
            v[n] = (etch_value){a->name, ETCH_VALUE_TENSORS, {.tensors = {list, 2}}};
        if (a->type == ARG_BOOL) v[n] = (etch_value){a->name, ETCH_VALUE_BOOL, {.b = false}};
        if (a->type == ARG_DTYPE) v[n] = (etch_value){a->name, ETCH_VALUE_DTYPE, {.dtype = 0}};
        if (a->type == ARG_TENSOR_OPT) v[n] = (etch_value){a->name, ETCH_VALUE_NONE, {.i = 0}};
        if (a->type == ARG_SCALAR) v[n] = (etch_value){a->name, ETCH_VALUE_REAL, {.d = 1 + 3 * i}};
        if (a->type == ARG_INTS || a->type == ARG_INTS_OPT)
            v[n] = (etch_value){a->name, ETCH_VALUE_INTS, {.ints = ETCH_DIMS(1, 0)}};
        n++;
    }
    return n;
}

/* Where the k-th scalar is among plain values, or -1. */
static int scalar_at(const etch_value *v, int n, int k) {
    for (int i = 0; i < n; i++)
        if (v[i].tag == ETCH_VALUE_REAL && k-- == 0) return i;
    return -1;
}

/* Calls op with x for every tensor and plain values for the rest; the tensor argument `bad`
 * (counted from 0) is `instead`. Returns false where op has no such argument. */
static bool call_with(const etch_op *op, etch_tensor *x, int bad, etch_tensor *instead,
                      etch_tensor **out) {
    etch_value v[SCHEMA_MAX_ARGS];
    etch_tensor *list[2] = {x, x};
    int n = plain_values(op, x, list, v), tensors = 0;
    for (int i = 0; i < n; i++) {
        if (v[i].tag == ETCH_VALUE_TENSOR && tensors++ == bad) v[i].tensor = instead;
        if (v[i].tag != ETCH_VALUE_TENSORS) continue;
        if (bad >= 0 && bad < 2) list[bad] = instead;
        tensors = 2;
    }
    if (bad >= tensors) return false;
    *out = NULL;
    etch_op_call(op, v, n, out, 1);
    return true;
}

TEST(every_operator_null) {
    int count, checked = 0;
    const etch_op *const *ops = etch_op_list(&count);
    etch_tensor *out;
    ETCH_SCOPE {
        etch_tensor *x = f32(2, 2);
        for (int i = 0; i < count; i++)
            for (int bad = 0; bad < 3; bad++) {
                etch_clear_error();
                if (!call_with(ops[i], x, bad, NULL, &out)) break;
                assert_failure(out == NULL, ETCH_ERR_NULL, "NULL", etch_op_name(ops[i]), __LINE__);
                call_with(ops[i], x, bad, ETCH_NONE, &out);
                assert_failure(out == NULL, ETCH_ERR_INVALID_ARGUMENT, "ETCH_NONE",
                               etch_op_name(ops[i]), __LINE__);
                checked++;
            }
    }
    assert_true(checked > 100);
}

/* The first error stays the one that is told. */
TEST(first_error_is_kept) {
    ETCH_SCOPE {
        etch_tensor *x = f32(2, 3);
        FAILS_IF(!etch_exp(etch_neg(etch_mm(x, x))), ETCH_ERR_SHAPE, "mm|[2, 3]");
    }
}

static void *without_scope(void *arg) {
    etch_tensor *x = arg;
    int count;
    const etch_op *const *ops = etch_op_list(&count);
    for (int i = 0; i < count; i++) {
        etch_tensor *out;
        const op_schema *s = etch__schema(ops[i]->id);
        etch_clear_error();
        call_with(ops[i], x, -1, NULL, &out);
        bool owns = out != x; /* in place, and contiguous of what is contiguous */
        if (owns && !(out == NULL && (etch_last_status() == ETCH_ERR_NO_SCOPE ||
                                      etch_last_status() == ETCH_ERR_SHAPE ||
                                      etch_last_status() == ETCH_ERR_INVALID_ARGUMENT ||
                                      etch_last_status() == ETCH_ERR_DTYPE)))
            return (void *)etch_op_name(ops[i]);
        if (s->args[0].written && !out && etch_last_status() == ETCH_ERR_NO_SCOPE)
            return (void *)etch_op_name(ops[i]);
    }
    etch_clear_error();
    etch_function *f = etch_compile(double_body);
    if (etch_call(f, x) || etch_last_status() != ETCH_ERR_NO_SCOPE) return (void *)"call";
    etch_function_free(f);
    return NULL;
}

TEST(every_operator_without_scope) {
    pthread_t thread;
    void *wrong;
    ETCH_SCOPE {
        etch_tensor *x = f32(2, 2);
        assert_int_equal(pthread_create(&thread, NULL, without_scope, x), 0);
        assert_int_equal(pthread_join(thread, &wrong), 0);
        if (wrong) fail_msg("%s without a scope", (const char *)wrong);
    }
}

/* ---- operators: shapes, dtypes, dimensions ---- */

TEST(shapes) {
    int64_t huge = (int64_t)1 << 40;
    ETCH_SCOPE {
        etch_tensor *a = f32(2, 3), *b = f32(3, 4), *v = etch_ones(ETCH_F32, ETCH_SHAPE(5));
        etch_tensor *c = etch_ones(ETCH_F32, ETCH_SHAPE(2, 3, 4)), *empty = f32(0, 3);
        etch_tensor *list[] = {a, b};
        NO_RESULT(etch_add(a, b), ETCH_ERR_SHAPE, "add|broadcast|[2, 3]|[3, 4]");
        NO_RESULT(etch_where(etch_gt(a, a), a, b), ETCH_ERR_SHAPE, "where|broadcast");
        NO_RESULT(etch_add_(a, b), ETCH_ERR_SHAPE, "add_|[3, 4]");
        NO_RESULT(etch_add_(v, c), ETCH_ERR_SHAPE, "add_");
        NO_RESULT(etch_copy_(a, v), ETCH_ERR_SHAPE, "copy_");
        NO_RESULT(etch_add_scalar_(etch_expand(v, ETCH_SHAPE(2, 5)), 1), ETCH_ERR_SHAPE,
                  "expanded");
        NO_RESULT(etch_mm(a, a), ETCH_ERR_SHAPE, "mm|3|2");
        NO_RESULT(etch_mm(a, v), ETCH_ERR_SHAPE, "mm|2 dimensions");
        NO_RESULT(etch_addmm(v, a, b), ETCH_ERR_SHAPE, "addmm");
        NO_RESULT(etch_mv(a, v), ETCH_ERR_SHAPE, "mv");
        NO_RESULT(etch_dot(a, v), ETCH_ERR_SHAPE, "dot");
        NO_RESULT(etch_bmm(c, c), ETCH_ERR_SHAPE, "bmm");
        NO_RESULT(etch_matmul(b, c), ETCH_ERR_SHAPE, "matmul|other|4 rows");
        NO_RESULT(etch_matmul(etch_sum(a), a), ETCH_ERR_SHAPE, "matmul|dimension");
        NO_RESULT(etch_view(a, ETCH_SHAPE(5)), ETCH_ERR_SHAPE, "view|6|5");
        NO_RESULT(etch_view(a, ETCH_SHAPE(-1, -1)), ETCH_ERR_SHAPE, "view|-1");
        NO_RESULT(etch_view(etch_t(a), ETCH_SHAPE(6)), ETCH_ERR_SHAPE, "view|reshape");
        NO_RESULT(etch_reshape(a, ETCH_SHAPE(4, -1)), ETCH_ERR_SHAPE, "reshape");
        NO_RESULT(etch_expand(a, ETCH_SHAPE(2, 4)), ETCH_ERR_SHAPE, "expand");
        NO_RESULT(etch_t(c), ETCH_ERR_SHAPE, "t:|2");
        NO_RESULT(etch_cat(list, 2, 0), ETCH_ERR_SHAPE, "cat");
        NO_RESULT(etch_cat(list, 0, 0), ETCH_ERR_INVALID_ARGUMENT, "cat");
        NO_RESULT(etch_cat(NULL, 2, 0), ETCH_ERR_NULL, "NULL");
        NO_RESULT(etch_cat(list, -1, 0), ETCH_ERR_INVALID_ARGUMENT, "cat|-1");
        NO_RESULT(etch_cat(list, 70000, 0), ETCH_ERR_INVALID_ARGUMENT, "cat|70000");
        NO_RESULT(etch_max(empty), ETCH_ERR_EMPTY, "max|element");
        NO_RESULT(etch_amin(empty, ETCH_DIMS(0), false), ETCH_ERR_EMPTY, "amin");
        NO_RESULT(etch_argmax(empty), ETCH_ERR_EMPTY, "argmax");
        NO_RESULT(etch_zeros(ETCH_F32, ETCH_SHAPE(-2)), ETCH_ERR_SHAPE, "zeros|negative");
        NO_RESULT(etch_zeros(ETCH_F32, ((etch_shape){9, {0}})), ETCH_ERR_SHAPE, "zeros|8");
        NO_RESULT(etch_zeros(ETCH_F32, ((etch_shape){-7, {0}})), ETCH_ERR_SHAPE, "zeros");
        NO_RESULT(etch_zeros(ETCH_F32, ETCH_SHAPE(huge, huge)), ETCH_ERR_OVERFLOW, "zeros|63");
        NO_RESULT(etch_randn(ETCH_F32, ETCH_SHAPE(huge, huge)), ETCH_ERR_OVERFLOW, "randn");
        NO_RESULT(etch_zeros(ETCH_U8, ETCH_SHAPE(INT64_MAX)), ETCH_ERR_OVERFLOW, "zeros");
        NO_RESULT(etch_zeros(ETCH_U8, ETCH_SHAPE(INT64_MAX, 0, INT64_MAX)), ETCH_ERR_OVERFLOW,
                  "zeros");
        NO_RESULT(etch_add(etch_expand(etch_sum(a), ETCH_SHAPE(huge, 1)),
                           etch_expand(etch_sum(a), ETCH_SHAPE(1, huge))),
                  ETCH_ERR_OVERFLOW, "63");
        NO_RESULT(etch_arange(ETCH_F32, 0, 5, 0), ETCH_ERR_INVALID_ARGUMENT, "arange|step");
        NO_RESULT(etch_arange(ETCH_F32, 0, 5, -1), ETCH_ERR_INVALID_ARGUMENT, "sign");
        NO_RESULT(etch_arange(ETCH_F32, 0, INFINITY, 1), ETCH_ERR_INVALID_ARGUMENT, "finite");
        NO_RESULT(etch_arange(ETCH_F32, 0, 1e300, 1e-300), ETCH_ERR_OVERFLOW, "arange");
    }
}

/* Operators of three and four lists, each as long as it can be, and longer. */
TEST(long_lists) {
    ETCH_SCOPE {
        etch_tensor *x = etch_ones(ETCH_F32, ETCH_SHAPE(1, 2, 4, 4));
        etch_tensor *w = etch_ones(ETCH_F32, ETCH_SHAPE(2, 2, 3, 3));
        for (int n = 3; n < 12; n++) {
            etch_shape s = {.n = n, .v = {1, 1, 1, 1, 1, 1, 1, 1}}, four = etch_sizes(x);
            const char *words = n > 8 ? "conv|stride|9" : "conv|1 or 2|stride";
            NO_RESULT(etch_conv2d(x, w, ETCH_NONE, s, s, s, 1), ETCH_ERR_INVALID_ARGUMENT, words);
            NO_RESULT(etch_convolution(x, w, ETCH_NONE, s, s, s, 1), ETCH_ERR_INVALID_ARGUMENT,
                      words);
            NO_RESULT(etch_convolution_backward_input(x, w, four, s, s, s, 1),
                      ETCH_ERR_INVALID_ARGUMENT, words);
            NO_RESULT(etch_convolution_backward_weight(x, x, four, s, s, s, 1),
                      ETCH_ERR_INVALID_ARGUMENT, words);
        }
    }
}

TEST(dtypes) {
    ETCH_SCOPE {
        etch_tensor *f = f32(2, 2), *d = etch_to(f, ETCH_F64), *i = etch_to(f, ETCH_I32);
        etch_tensor *z = etch_to(f, ETCH_BOOL);
        NO_RESULT(etch_mm(f, d), ETCH_ERR_DTYPE, "mm|f32|f64");
        NO_RESULT(etch_mm(z, z), ETCH_ERR_DTYPE, "mm|bool");
        NO_RESULT(etch_addmm(f, f, i), ETCH_ERR_DTYPE, "addmm|f32|i32");
        NO_RESULT(etch_sub(z, z), ETCH_ERR_DTYPE, "sub|bool");
        NO_RESULT(etch_neg(z), ETCH_ERR_DTYPE, "neg|bool");
        NO_RESULT(etch_where(f, f, f), ETCH_ERR_DTYPE, "where|bool|f32");
        NO_RESULT(etch_add_(i, f), ETCH_ERR_DTYPE, "add_|i32|f32");
        NO_RESULT(etch_mul_scalar_(i, 0.5), ETCH_ERR_DTYPE, "mul_|i32");
        NO_RESULT(etch_exp_(i), ETCH_ERR_DTYPE, "exp_|i32");
        NO_RESULT(etch_div_(i, i), ETCH_ERR_DTYPE, "div_");
        NO_RESULT(etch_mean(i), ETCH_ERR_DTYPE, "mean|i32");
        NO_RESULT(etch_randn(ETCH_I32, ETCH_SHAPE(2)), ETCH_ERR_DTYPE, "randn|i32");
        NO_RESULT(etch_rand(BAD_DTYPE, ETCH_SHAPE(2)), ETCH_ERR_DTYPE, "77");
        NO_RESULT(etch_zeros(BAD_DTYPE, ETCH_SHAPE(2)), ETCH_ERR_DTYPE, "zeros|77");
        NO_RESULT(etch_full(BAD_DTYPE, ETCH_SHAPE(2), 1), ETCH_ERR_DTYPE, "full|77");
        NO_RESULT(etch_arange(BAD_DTYPE, 0, 3, 1), ETCH_ERR_DTYPE, "arange|77");
        NO_RESULT(etch_to(f, BAD_DTYPE), ETCH_ERR_DTYPE, "77");
        assert_int_equal(etch_item_int(etch_sum(i)), 4); /* nothing was written */
    }
}

TEST(dimensions) {
    ETCH_SCOPE {
        etch_tensor *a = f32(2, 3), *list[] = {a, a};
        NO_RESULT(etch_sum_dim(a, ETCH_DIMS(2), false), ETCH_ERR_DIM_RANGE, "sum|-2|1|got 2");
        NO_RESULT(etch_sum_dim(a, ETCH_DIMS(0, -2), false), ETCH_ERR_INVALID_ARGUMENT, "sum");
        NO_RESULT(etch_amax(a, ETCH_DIMS(-3), false), ETCH_ERR_DIM_RANGE, "amax|-3");
        NO_RESULT(etch_argmax_dim(a, 5, false), ETCH_ERR_DIM_RANGE, "argmax|5");
        NO_RESULT(etch_transpose(a, 0, 2), ETCH_ERR_DIM_RANGE, "transpose|2");
        NO_RESULT(etch_permute(a, ETCH_DIMS(0)), ETCH_ERR_SHAPE, "permute");
        NO_RESULT(etch_permute(a, ETCH_DIMS(0, 0)), ETCH_ERR_INVALID_ARGUMENT, "permute");
        NO_RESULT(etch_slice(a, 3, 0, 1, 1), ETCH_ERR_DIM_RANGE, "slice|3");
        NO_RESULT(etch_slice(a, 0, 0, 1, 0), ETCH_ERR_INVALID_ARGUMENT, "slice|step");
        NO_RESULT(etch_select(a, 0, 2), ETCH_ERR_INDEX, "select|2");
        NO_RESULT(etch_select(a, 0, -3), ETCH_ERR_INDEX, "select|-3");
        NO_RESULT(etch_select(a, 9, 0), ETCH_ERR_DIM_RANGE, "select|9");
        NO_RESULT(etch_squeeze_dim(a, 2), ETCH_ERR_DIM_RANGE, "squeeze|2");
        NO_RESULT(etch_unsqueeze(a, 4), ETCH_ERR_DIM_RANGE, "unsqueeze|4");
        NO_RESULT(etch_cat(list, 2, 2), ETCH_ERR_DIM_RANGE, "cat|2");
        etch_tensor *deep = etch_ones(ETCH_F32, ETCH_SHAPE(1, 1, 1, 1, 1, 1, 1, 1));
        NO_RESULT(etch_unsqueeze(deep, 0), ETCH_ERR_SHAPE, "unsqueeze|dimensions");
    }
}

static etch_graph *one_call(void) {
    return etch_graph_parse("graph g/0(%0: f32[2]) {\n  %1: f32[2] = neg(%0)\n  return %1\n}\n");
}

/* ---- scalars whose kind is none ---- */

static const int bad_kinds[] = {-5, 3, 99, 256, INT32_MIN};

static etch_scalar of_kind(int kind) {
    etch_scalar s = etch_scalar_int(2);
    s.kind = (etch_scalar_kind)kind;
    return s;
}

/* Every scalar argument of every operator, by name. */
TEST(scalar_kinds_boxed) {
    int count, checked = 0;
    const etch_op *const *ops = etch_op_list(&count);
    ETCH_SCOPE {
        etch_tensor *x = f32(2, 2), *list[2] = {x, x}, *out;
        for (int i = 0; i < count; i++)
            for (int bad = 0; bad < 4; bad++) {
                etch_value v[SCHEMA_MAX_ARGS];
                int n = plain_values(ops[i], x, list, v), at = scalar_at(v, n, bad);
                if (at < 0) break;
                v[at].tag = ETCH_VALUE_SCALAR;
                for (int k = 0; k < COUNT_OF(bad_kinds); k++) {
                    v[at].scalar = of_kind(bad_kinds[k]);
                    FAILS_IF(etch_op_call(ops[i], v, n, &out, 1) != ETCH_OK,
                             ETCH_ERR_INVALID_ARGUMENT, v[at].name);
                    checked++;
                }
            }
    }
    assert_true(checked > 100);
}

static etch_scalar body_scalar;
static etch_tensor *scalar_body(etch_tensor *x) {
    etch_tensor *y = etch_exp(x);
    return etch_mul_scalar(y, body_scalar);
}

static etch_status pass_kind(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                             etch_tensor **out, int nout) {
    etch_value changed[SCHEMA_MAX_ARGS];
    memcpy(changed, args, (size_t)nargs * sizeof *args);
    for (int i = 0; i < nargs; i++)
        if (args[i].tag == ETCH_VALUE_SCALAR) changed[i].scalar.kind = *(etch_scalar_kind *)ctx;
    return etch_redispatch(op, changed, nargs, out, nout);
}

/* Through the functions, in compiled code at every call, and from a mode's handler. */
TEST(scalar_kinds_of_calls) {
    for (int k = 0; k < COUNT_OF(bad_kinds); k++)
        ETCH_SCOPE {
            etch_scalar bad = of_kind(bad_kinds[k]);
            etch_tensor *x = f32(2, 2);
            NO_RESULT(etch_add_scalar(x, bad), ETCH_ERR_INVALID_ARGUMENT, "add|other|kind");
            NO_RESULT(etch_add_scalar_(x, bad), ETCH_ERR_INVALID_ARGUMENT, "add_|other|kind");
            NO_RESULT(etch_full(ETCH_F32, ETCH_SHAPE(3), bad), ETCH_ERR_INVALID_ARGUMENT, "full");
            NO_RESULT(etch_arange(ETCH_I64, 0, 3, bad), ETCH_ERR_INVALID_ARGUMENT, "arange|step");
            NO_RESULT(etch_pow_scalar(x, bad), ETCH_ERR_INVALID_ARGUMENT, "pow|exponent");
            etch_function *f = etch_compile(scalar_body, .backend = "eager");
            for (int call = 0; call < 4; call++) {
                body_scalar = etch_scalar_int(3);
                assert_non_null(etch_call(f, x));
                body_scalar = bad;
                NO_RESULT(etch_call(f, x), ETCH_ERR_INVALID_ARGUMENT, "mul|other|kind");
            }
            assert_int_equal(etch_function_counters(f).graphs, 1);
            etch_function_free(f);
            etch_mode *m = etch_mode_new(pass_kind, &bad.kind);
            ETCH_WITH_MODE (m)
                NO_RESULT(etch_add_scalar(x, 2), ETCH_ERR_INVALID_ARGUMENT, "add|other|kind");
            etch_mode_free(m);
        }
}

static int scalar_kernel_calls;
static etch_status scalar_kernel(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                 etch_tensor *const *out, int nout) {
    (void)ctx, (void)op, (void)args, (void)nargs, (void)out, (void)nout;
    scalar_kernel_calls++;
    return ETCH_OK;
}

/* To operators of the user's, and into graphs. */
TEST(scalar_kinds_of_users) {
    etch_op_definition d = {.struct_size = sizeof d, .cpu = scalar_kernel};
    const etch_op *op =
        etch_op_register("bad::kinds(Tensor(a!) x, Scalar factor) -> Tensor(a!)", &d);
    etch_graph *g = one_call();
    for (int k = 0; k < COUNT_OF(bad_kinds); k++)
        ETCH_SCOPE {
            etch_tensor *out;
            etch_value v[] = {{NULL, ETCH_VALUE_TENSOR, {.tensor = f32(2, 2)}},
                              {NULL, ETCH_VALUE_SCALAR, {.scalar = of_kind(bad_kinds[k])}}};
            NO_SUCCESS(etch_op_call(op, v, 2, &out, 1), ETCH_ERR_INVALID_ARGUMENT, "kinds|factor");
            if (!g) continue;
            v[0].tensor = etch_node_value(etch_graph_input(g, 0));
            NO_RESULT(etch_graph_insert(g, NULL, etch_op_find("mul.Scalar"), v, 2),
                      ETCH_ERR_INVALID_ARGUMENT, "mul|other|kind");
        }
    assert_int_equal(scalar_kernel_calls, 0);
    assert_non_null(g);
    etch_graph_free(g);
}

/* ---- released and failed handles ---- */

TEST(released) {
#ifdef NDEBUG
    skip();
#else
    etch_tensor *x = NULL;
    etch_function *f = etch_compile(double_body);
    ETCH_SCOPE
        x = f32(2, 2);
    ETCH_SCOPE {
        NO_RESULT(etch_neg(x), ETCH_ERR_RELEASED, "released|etch_keep");
        FAILS_IF(etch_ndim(x) == -1, ETCH_ERR_RELEASED, "released");
        FAILS_IF(isnan(etch_item(x)), ETCH_ERR_RELEASED, "released");
        NO_RESULT(etch_keep(x), ETCH_ERR_RELEASED, "released");
        NO_RESULT(etch_call(f, x), ETCH_ERR_RELEASED, "released");
    }
    etch_function_free(f);
#endif
}

/* ---- debug.h ---- */

TEST(debug) {
    assert_int_equal(etch_function_counters(NULL).calls, 0);
    NO_SUCCESS(etch_set_logs(NULL), ETCH_ERR_NULL, "etch_set_logs");
    NO_SUCCESS(etch_set_logs("graph,nonsense"), ETCH_ERR_NOT_FOUND, "nonsense|help");
    NO_RESULT(etch_op_find(NULL), ETCH_ERR_NULL, "name");
    NO_RESULT(etch_op_find("no.such"), ETCH_ERR_NOT_FOUND, "no.such");
    NO_RESULT(etch_op_find(""), ETCH_ERR_NOT_FOUND, "");
    assert_null(etch_op_name(NULL));
    assert_null(etch_op_schema(NULL));
    assert_non_null(etch_op_list(NULL));
    etch_clear_error();
}

TEST(boxed_calls) {
    const etch_op *add = etch_op_find("add.Tensor"), *cat = etch_op_find("cat");
    ETCH_SCOPE {
        etch_tensor *x = f32(2, 2), *out[2] = {x, x};
        etch_value two[] = {{NULL, ETCH_VALUE_TENSOR, {.tensor = x}},
                            {NULL, ETCH_VALUE_TENSOR, {.tensor = x}}};
        etch_value twice[] = {two[0], {"self", ETCH_VALUE_TENSOR, {.tensor = x}}};
        etch_value odd[] = {two[0], {NULL, (etch_value_tag)99, {.i = 0}}};
        etch_value wrong[] = {two[0], {NULL, ETCH_VALUE_DTYPE, {.dtype = ETCH_F32}}};
        etch_value unknown[] = {two[0], {"nobody", ETCH_VALUE_TENSOR, {.tensor = x}}};
        etch_value list[] = {{NULL, ETCH_VALUE_TENSORS, {.tensors = {NULL, 3}}}};
        etch_value negative[] = {{NULL, ETCH_VALUE_TENSORS, {.tensors = {out, -3}}}};
        NO_SUCCESS(etch_op_call(NULL, two, 2, out, 1), ETCH_ERR_NULL, "operator");
        NO_SUCCESS(etch_op_call(add, NULL, 2, out, 1), ETCH_ERR_NULL, "values");
        NO_SUCCESS(etch_op_call(add, two, 2, NULL, 1), ETCH_ERR_NULL, "results");
        NO_SUCCESS(etch_op_call(add, two, -1, out, 1), ETCH_ERR_NULL, "");
        NO_SUCCESS(etch_op_call(add, two, 2, out, 2), ETCH_ERR_INVALID_ARGUMENT, "add.Tensor|1|2");
        NO_SUCCESS(etch_op_call(add, two, 2, out, 0), ETCH_ERR_INVALID_ARGUMENT, "add.Tensor");
        NO_SUCCESS(etch_op_call(add, two, 1, out, 1), ETCH_ERR_INVALID_ARGUMENT, "other|missing");
        NO_SUCCESS(etch_op_call(add, twice, 2, out, 1), ETCH_ERR_INVALID_ARGUMENT, "self|twice");
        NO_SUCCESS(etch_op_call(add, odd, 2, out, 1), ETCH_ERR_INVALID_ARGUMENT, "99");
        NO_SUCCESS(etch_op_call(add, wrong, 2, out, 1), ETCH_ERR_INVALID_ARGUMENT, "other|dtype");
        NO_SUCCESS(etch_op_call(add, unknown, 2, out, 1), ETCH_ERR_NOT_FOUND, "nobody|self");
        NO_SUCCESS(etch_op_call(cat, list, 1, out, 1), ETCH_ERR_INVALID_ARGUMENT, "tensors|NULL");
        NO_SUCCESS(etch_op_call(cat, negative, 1, out, 1), ETCH_ERR_INVALID_ARGUMENT, "-3");
    }
}

/* ---- compile.h: making functions ---- */

static etch_status two_body(void *ctx, etch_tensor *const *in, int nin, etch_tensor **out,
                            int nout) {
    (void)ctx;
    for (int i = 0; i < nout; i++)
        out[i] = nin ? etch_neg(in[0]) : etch_zeros(ETCH_F32, ETCH_SHAPE(1));
    return ETCH_OK;
}

TEST(options) {
    NO_RESULT(etch_compile_fn0(NULL, NULL), ETCH_ERR_NULL, "etch_compile|NULL");
    NO_RESULT(etch_compile_fn1(NULL, NULL), ETCH_ERR_NULL, "NULL");
    NO_RESULT(etch_compile_n(NULL, NULL), ETCH_ERR_NULL, "NULL");
    NO_RESULT(etch_compile(double_body, .backend = "quantum"), ETCH_ERR_NOT_FOUND,
              "quantum|etch_list_backends");
    NO_RESULT(etch_compile(double_body, .backend = ""), ETCH_ERR_NOT_FOUND, "backend");
    NO_RESULT(etch_compile(double_body, .mode = (etch_mode_kind)7), ETCH_ERR_INVALID_ARGUMENT,
              "mode|7");
    NO_RESULT(etch_compile(double_body, .mode = (etch_mode_kind)-1), ETCH_ERR_INVALID_ARGUMENT,
              "mode");
    NO_RESULT(etch_compile(double_body, .dynamic = (etch_dynamic)3), ETCH_ERR_INVALID_ARGUMENT,
              "dynamic|3");
    NO_RESULT(etch_compile(double_body, .numerics = (etch_numerics)2), ETCH_ERR_INVALID_ARGUMENT,
              "numerics|2");
    NO_RESULT(etch_compile(double_body, .stable_after = -1), ETCH_ERR_INVALID_ARGUMENT,
              "stable_after|-1");
    NO_RESULT(etch_compile(double_body, .recompile_limit = -8), ETCH_ERR_INVALID_ARGUMENT,
              "recompile_limit|-8");
    /* Of a struct of an older header only what it has is read; of a newer
     * one what is known here. */
    struct {
        etch_compile_options options;
        char more[64];
    } newer = {.options = {.struct_size = sizeof newer, .name = "newer"}};
    etch_compile_options older = {.struct_size = offsetof(etch_compile_options, dynamic),
                                  .dynamic = (etch_dynamic)99};
    etch_function *f = etch_compile_fn1(double_body, &newer.options);
    etch_function *g = etch_compile_fn1(double_body, &older);
    assert_non_null(f);
    assert_non_null(g);
    etch_function_free(f);
    etch_function_free(g);
    etch_function_free(NULL);
    etch_reset(NULL);
}

TEST(arity) {
    etch_function *f = etch_compile(double_body), *n = etch_compile(two_body);
    ETCH_SCOPE {
        etch_tensor *x = f32(2, 2), *in[] = {x, NULL}, *out[2];
        NO_RESULT(etch_call(NULL, x), ETCH_ERR_NULL, "function|NULL");
        NO_SUCCESS(etch_call_n(NULL, in, 1, out, 1), ETCH_ERR_NULL, "function");
        NO_RESULT(etch_call(f, x, x), ETCH_ERR_INVALID_ARGUMENT, "double_body|1|2");
        NO_RESULT(etch_call_one(f, NULL, 0), ETCH_ERR_INVALID_ARGUMENT, "1|0");
        NO_RESULT(etch_call_one(f, NULL, 1), ETCH_ERR_NULL, "arguments");
        NO_SUCCESS(etch_call_n(f, in, 1, NULL, 1), ETCH_ERR_NULL, "results");
        NO_SUCCESS(etch_call_n(f, in, 1, out, 2), ETCH_ERR_INVALID_ARGUMENT, "1 result|2");
        NO_SUCCESS(etch_call_n(f, in, 1, out, 0), ETCH_ERR_INVALID_ARGUMENT, "1 result|0");
        NO_SUCCESS(etch_call_n(n, in, -1, out, 1), ETCH_ERR_INVALID_ARGUMENT, "-1");
        NO_SUCCESS(etch_call_n(n, in, 1, out, -2), ETCH_ERR_INVALID_ARGUMENT, "-2");
        NO_SUCCESS(etch_call_n(n, in, 2, out, 1), ETCH_ERR_NULL, "NULL");
        NO_RESULT(etch_call_one(f, &in[1], 1), ETCH_ERR_NULL, "NULL");
        assert_int_equal(etch_call_n(n, NULL, 0, NULL, 0), ETCH_OK);
        assert_int_equal(etch_call_n(n, in, 1, out, 2), ETCH_OK);
        assert_same(out[0], out[1]);
    }
    etch_function_free(f);
    etch_function_free(n);
}

TEST(sites_and_callbacks) {
    static etch_call_site site = {__FILE__, __LINE__, NULL}, nameless = {NULL, 3, NULL};
    NO_RESULT(etch_site_fn1(&site, NULL), ETCH_ERR_NULL, "NULL");
    NO_RESULT(etch_site_fn1(NULL, double_body), ETCH_ERR_NULL, "site");
    NO_RESULT(etch_site_n(&site, NULL, NULL), ETCH_ERR_NULL, "NULL");
    assert_non_null(etch_site_fn1(&nameless, double_body));
    FAILS_IF(etch_on_compile_start(NULL, NULL) == 0, ETCH_ERR_NULL, "etch_on_compile_start");
    FAILS_IF(etch_on_compile_end(NULL, NULL) == 0, ETCH_ERR_NULL, "etch_on_compile_end");
    etch_callback_remove(0);
    etch_callback_remove(-5);
    etch_callback_remove(INT64_MAX);
    assert_int_equal(etch_graph_break(NULL), ETCH_OK);
    assert_int_equal(etch_flush(), ETCH_OK);
}

/* ---- compile.h: what bodies do wrong ---- */

static int call_number;

static etch_tensor *null_body(etch_tensor *x) {
    etch_tensor *y = etch_neg(x);
    return call_number % 2 ? NULL : y;
}
static etch_tensor *error_body(etch_tensor *x) {
    etch_tensor *y = etch_neg(x);
    return call_number % 2 ? etch_mm(y, etch_sum(y)) : y;
}
static etch_status status_body(void *ctx, etch_tensor *const *in, int nin, etch_tensor **out,
                               int nout) {
    (void)ctx, (void)nin, (void)nout;
    out[0] = etch_neg(in[0]);
    return call_number % 2 ? ETCH_ERR_INDEX : ETCH_OK;
}
static etch_status strange_body(void *ctx, etch_tensor *const *in, int nin, etch_tensor **out,
                                int nout) {
    (void)ctx, (void)nin, (void)nout;
    out[0] = etch_neg(in[0]);
    return call_number % 2 ? (etch_status)4321 : ETCH_OK;
}
static etch_status forgetful_body(void *ctx, etch_tensor *const *in, int nin, etch_tensor **out,
                                  int nout) {
    (void)ctx, (void)nin, (void)nout;
    if (!(call_number % 2)) out[0] = etch_neg(in[0]);
    return ETCH_OK;
}
static etch_tensor *opens_body(etch_tensor *x) {
    etch_scope_begin();
    etch_tensor *y = etch_neg(x);
    etch_keep(y);
    etch_scope_begin();
    return etch_keep(etch_neg(etch_neg(y))) ? y : NULL;
}
static etch_tensor *keeps_body(etch_tensor *x) {
    etch_tensor *y = etch_neg(x);
    etch_keep(x); /* the caller's */
    etch_keep(y); /* goes to the caller's scope */
    return etch_keep(y);
}

/* Odd calls fail with code; even ones go well; on every path. */
static void check_body(etch_function *(*make)(const etch_compile_options *), etch_status code,
                       const char *words) {
    for (int kind = 0; kind < 4; kind++) {
        etch_compile_options o = {.struct_size = sizeof o, .name = "bad", .backend = "eager"};
        o.disable = kind == 1, o.fullgraph = kind == 2;
        if (kind == 3) o.backend = "native";
        etch_function *f = make(&o);
        ETCH_SCOPE {
            etch_tensor *x = f32(2, 2), *expected = etch_neg(x);
            for (call_number = 0; call_number < 6; call_number++) {
                etch_clear_error();
                etch_tensor *y = etch_call(f, x);
                if (call_number % 2 && code) assert_failure(!y, code, words, "call", kind);
                else assert_same(y, expected);
            }
        }
        etch_function_free(f);
        assert_int_equal(etch_memory().tensors, 0);
    }
}

#define MAKE(name, compile, body)                                                                  \
    static etch_function *name(const etch_compile_options *o) { return compile(body, o); }
MAKE(make_null, etch_compile_fn1, null_body)
MAKE(make_error, etch_compile_fn1, error_body)
MAKE(make_status, etch_compile_n, status_body)
MAKE(make_strange, etch_compile_n, strange_body)
MAKE(make_forgetful, etch_compile_n, forgetful_body)
MAKE(make_opens, etch_compile_fn1, opens_body)
MAKE(make_keeps, etch_compile_fn1, keeps_body)

TEST(bodies) {
    check_body(make_null, ETCH_ERR_USER, "bad|NULL");
    check_body(make_error, ETCH_ERR_SHAPE, "mm");
    check_body(make_status, ETCH_ERR_INDEX, "bad|index");
    check_body(make_strange, ETCH_ERR_USER, "bad|4321");
    check_body(make_forgetful, ETCH_ERR_USER, "bad|NULL");
    check_body(make_opens, ETCH_OK, "");
    check_body(make_keeps, ETCH_OK, "");
}

/* A body that closes the scope of its own call, or one outside of it. */
static int64_t closed_scope;

static etch_tensor *closes_body(etch_tensor *x) {
    etch_tensor *y = etch_neg(x);
    if (call_number % 2) etch_scope_end(closed_scope);
    return y;
}
MAKE(make_closes, etch_compile_fn1, closes_body)

TEST(body_closes_scopes) {
    for (int kind = 0; kind < 4; kind++)
        for (int outer = 0; outer < 2; outer++) {
            etch_compile_options o = {
                .struct_size = sizeof o, .name = "closes", .backend = "eager"};
            o.disable = kind == 1, o.fullgraph = kind == 2;
            if (kind == 3) o.backend = "native";
            etch_function *f = make_closes(&o);
            for (call_number = 0; call_number < 6; call_number++)
                ETCH_SCOPE {
                    etch_tensor *x = etch_retain(f32(2, 2));
                    int64_t own = etch_scope_begin();
                    closed_scope = own + !outer; /* the call's own is the next one */
                    etch_clear_error();
                    etch_tensor *y = etch_call(f, x);
                    if (call_number % 2)
                        assert_failure(!y, ETCH_ERR_INVALID_ARGUMENT, "scope", "call", kind);
                    else assert_same(y, etch_neg(x));
                    etch_scope_end(own);
                    etch_release(x);
                }
            etch_function_free(f);
            assert_int_equal(etch_memory().tensors, 0);
        }
}

/* A failed call's arguments and a failed handle. */
static etch_tensor *ignores_body(etch_tensor *x) {
    etch_tensor *y = etch_mm(x, etch_sum(x));
    etch_tensor *z = etch_exp(y);
    return z ? z : etch_neg(x);
}

TEST(errors_inside_that_are_ignored) {
    for (int b = 0; b < 2; b++)
        ETCH_SCOPE {
            etch_function *f = etch_compile(ignores_body, .backend = test_backends[b]);
            etch_tensor *x = f32(2, 2);
            for (int call = 0; call < 4; call++) {
                etch_clear_error();
                assert_same(etch_call(f, x), etch_neg(x));
                assert_int_equal(etch_last_status(), ETCH_ERR_SHAPE);
            }
            assert_counts(f, 1, 3);
            etch_function_free(f);
        }
    etch_clear_error();
}

/* Bad arguments inside a body, where handles are deferred. */
static etch_tensor *misused;

static etch_tensor *misuses_body(etch_tensor *x) {
    etch_tensor *y = etch_exp(x);
    float to[2];
    etch_clear_error();
    if (call_number > 0) assert_true(etch_is_deferred(y));
    assert_int_equal(etch_size(y, 7), -1);
    assert_true(isnan(etch_item(y))); /* several elements */
    assert_int_equal(etch_to_host(y, to, sizeof to), ETCH_ERR_INVALID_ARGUMENT); /* no room */
    assert_null(etch_add(y, misused));
    assert_null(etch_view(y, ETCH_SHAPE(17)));
    assert_null(etch_select(y, 0, 44));
    assert_null(etch_to(y, BAD_DTYPE));
    assert_null(etch_neg(NULL));
    etch_clear_error();
    return etch_neg(y);
}

TEST(misuse_inside_ends_no_segment) {
    for (int b = 0; b < 2; b++)
        ETCH_SCOPE {
            etch_function *f = etch_compile(misuses_body, .backend = test_backends[b]);
            etch_tensor *x = f32(2, 3);
            misused = f32(5, 7);
            for (call_number = 0; call_number < 4; call_number++)
                assert_same(etch_call(f, x), etch_neg(etch_exp(x)));
            assert_counts(f, 1, 3);
            assert_int_equal(etch_function_counters(f).graph_breaks, 0);
            etch_function_free(f);
        }
}

/* ---- mode.h ---- */

static etch_status decline(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                           etch_tensor **out, int nout) {
    (void)ctx, (void)op, (void)args, (void)nargs, (void)out, (void)nout;
    return ETCH_DECLINED;
}

static etch_status nop_kernel(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                              etch_tensor *const *out, int nout) {
    (void)ctx, (void)op, (void)args, (void)nargs, (void)out, (void)nout;
    return ETCH_OK;
}

TEST(modes) {
    NO_RESULT(etch_mode_new(NULL, NULL), ETCH_ERR_NULL, "NULL");
    FAILS_IF(etch_mode_push(NULL) != ETCH_OK, ETCH_ERR_NULL, "NULL");
    FAILS_IF(etch_mode_pop(NULL) != ETCH_OK, ETCH_ERR_NULL, "NULL");
    etch_mode_free(NULL);
    assert_null(etch_mode_ctx(NULL));
    assert_null(etch_mode_name(NULL));
    etch_mode *a = etch_mode_new(decline, NULL, .name = "a"), *b = etch_mode_new(decline, NULL);
    FAILS_IF(etch_mode_pop(a) != ETCH_OK, ETCH_ERR_INVALID_ARGUMENT, "a");
    assert_int_equal(etch_mode_push(a), ETCH_OK);
    assert_int_equal(etch_mode_push(b), ETCH_OK);
    FAILS_IF(etch_mode_pop(a) != ETCH_OK, ETCH_ERR_INVALID_ARGUMENT, "a");
    FAILS_IF((etch_mode_free(a), true), ETCH_ERR_INVALID_ARGUMENT, "a");
    assert_int_equal(etch_mode_pop(b), ETCH_OK);
    assert_int_equal(etch_mode_pop(a), ETCH_OK);
    etch_mode_free(a);
    etch_mode_free(b);
    const etch_op *neg = etch_op_find("neg");
    assert_null(etch_arg(NULL, NULL, 0, "self"));
    assert_null(etch_arg(neg, NULL, 0, NULL));
    assert_false(etch_op_is(NULL, "neg"));
    assert_false(etch_op_is(neg, NULL));
    assert_null(etch_op_packet(NULL));
    etch_clear_error();
}

TEST(custom_operators) {
    etch_op_definition d = {.struct_size = sizeof d, .cpu = nop_kernel};
    NO_RESULT(etch_op_register(NULL, &d), ETCH_ERR_NULL, "NULL");
    NO_RESULT(etch_op_register("bad::a(Tensor x) -> Tensor", NULL), ETCH_ERR_NULL, "NULL");
    NO_RESULT(etch_op_register("bad::a(Tensor x) -> Tensor", &d), ETCH_ERR_NULL, "shape");
    NO_RESULT(etch_op_register("nonsense", &d), ETCH_ERR_FORMAT, "nonsense");
    NO_RESULT(etch_op_register("", &d), ETCH_ERR_FORMAT, "");
    d.cpu = NULL;
    NO_RESULT(etch_op_register("bad::b(Tensor(a!) x) -> Tensor(a!)", &d), ETCH_ERR_NULL, "cpu");
    NO_RESULT(etch_op_override(NULL, "cpu", nop_kernel, NULL), ETCH_ERR_NULL, "NULL");
    NO_RESULT(etch_op_override(etch_op_find("neg"), "cpu", NULL, NULL), ETCH_ERR_NULL, "NULL");
    NO_RESULT(etch_op_override(etch_op_find("neg"), NULL, nop_kernel, NULL), ETCH_ERR_NULL, "NULL");
    NO_RESULT(etch_op_override(etch_op_find("neg"), "tpu", nop_kernel, NULL), ETCH_ERR_DEVICE,
              "tpu");
    NO_RESULT(etch_op_override(etch_op_find("view"), "cpu", nop_kernel, NULL), ETCH_ERR_UNSUPPORTED,
              "view");
    etch_op_override_undo(NULL);
    assert_int_equal(etch_set_error(ETCH_ERR_SHAPE, NULL), ETCH_ERR_SHAPE);
    assert_int_equal(etch_last_status(), ETCH_ERR_SHAPE);
    etch_clear_error();
}

/* ---- buffers: absent whatever their length says ---- */

static int64_t text_length(char *buf, size_t n, int which, const void *thing) {
    switch (which) {
    case 0: return etch_format(thing, buf, n);
    case 1: return etch_explain_text(thing, buf, n);
    case 2: return etch_graph_format(thing, buf, n);
    case 3: return etch_address_text(thing, buf, n);
    case 4: return etch_profiling_mode_table(thing, buf, n);
    case 5: return etch_statistics_mode_text(thing, buf, n);
    default: return etch_profile_table(buf, n);
    }
}

/* Every function that writes a text: as long without a buffer as with one, cut where that ends. */
static void check_text(int which, const void *thing) {
    char text[4096], small[8];
    int64_t n = text_length(text, sizeof text, which, thing);
    assert_in_range(n, 1, sizeof text - 1);
    assert_int_equal(strlen(text), n);
    assert_int_equal(text_length(NULL, 0, which, thing), n);
    assert_int_equal(text_length(NULL, sizeof text, which, thing), n);
    assert_int_equal(text_length(NULL, SIZE_MAX, which, thing), n);
    memset(small, 'x', sizeof small);
    assert_int_equal(text_length(small, 5, which, thing), n);
    assert_memory_equal(small, text, 4);
    assert_memory_equal(small + 4, "\0xxx", 4);
}

TEST(text_without_buffer) {
    etch_function *f = etch_compile(double_body, .backend = "eager");
    etch_graph *g = one_call();
    etch_mode *times = etch_profiling_mode((etch_line_sink){NULL, NULL});
    etch_mode *counts = etch_statistics_mode();
    ETCH_SCOPE {
        etch_tensor *x = f32(2, 2);
        assert_non_null(etch_call(f, x));
        ETCH_WITH_MODE (times) etch_neg(x);
        ETCH_WITH_MODE (counts) etch_neg(x);
        const void *const things[] = {
            x, f, g, (const void *)((const char *)check_text + 1), times, counts, NULL};
        for (int i = 0; i < COUNT_OF(things); i++) check_text(i, things[i]);
        assert_int_equal(etch_profiling_mode_times(times, NULL, 8), 1);
    }
    assert_in_range(etch_profile_entries(NULL, 8), 0, INT32_MAX);
    etch_mode_free(times);
    etch_mode_free(counts);
    etch_graph_free(g);
    etch_function_free(f);
}

TEST(arrays_without_memory) {
    etch_graph *g = one_call();
    etch_value v = {NULL, ETCH_VALUE_TENSOR, {.tensor = etch_node_value(etch_graph_input(g, 0))}};
    etch_node *n = etch_graph_insert(g, NULL, etch_op_find("neg"), &v, 1);
    assert_non_null(n);
    FAILS_IF(etch_node_args(n, NULL) == -1, ETCH_ERR_NULL, "etch_node_args|args");
    assert_int_equal(etch_node_args(NULL, NULL), 0);
    NO_RESULT(etch_graph_insert(g, NULL, etch_op_find("neg"), NULL, 1), ETCH_ERR_INVALID_ARGUMENT,
              "etch_graph_insert");
    NO_RESULT(etch_nn_sequential(NULL, 2), ETCH_ERR_INVALID_ARGUMENT, "etch_nn_sequential");
    NO_SUCCESS(etch_opcheck(etch_op_find("neg"), NULL, 2, NULL, 100), ETCH_ERR_NULL,
               "etch_opcheck");
    etch_op_sample sample = {NULL, 3};
    FAILS_IF(etch_opcheck(etch_op_find("neg"), &sample, 1, NULL, 100) != ETCH_OK,
             ETCH_ERR_INVALID_ARGUMENT, "etch_opcheck");
    etch_graph_free(g);
}

/* ---- backend.h ---- */

static etch_status no_backend(void *ctx, etch_graph *g, etch_runnable *out) {
    (void)ctx, (void)g, (void)out;
    return ETCH_ERR_UNSUPPORTED;
}

TEST(backends_of_users) {
    NO_RESULT(etch_graph_parse(NULL), ETCH_ERR_NULL, "etch_");
    NO_RESULT(etch_graph_parse("nonsense"), ETCH_ERR_FORMAT, "line 1");
    NO_RESULT(etch_graph_parse(""), ETCH_ERR_FORMAT, "");
    etch_graph_free(NULL);
    FAILS_IF(etch_register_backend(NULL, no_backend, NULL) != ETCH_OK, ETCH_ERR_NULL, "etch_");
    FAILS_IF(etch_register_backend("mine", NULL, NULL) != ETCH_OK, ETCH_ERR_NULL, "etch_");
    FAILS_IF(etch_register_backend("native", no_backend, NULL) != ETCH_OK,
             ETCH_ERR_INVALID_ARGUMENT, "native");
    FAILS_IF(etch_register_backend("inductor", no_backend, NULL) != ETCH_OK,
             ETCH_ERR_INVALID_ARGUMENT, "inductor");
    FAILS_IF(etch_unregister_backend(NULL) != ETCH_OK, ETCH_ERR_NULL, "etch_");
    FAILS_IF(etch_unregister_backend("nobody") != ETCH_OK, ETCH_ERR_NOT_FOUND, "nobody");
    FAILS_IF(etch_unregister_backend("native") != ETCH_OK, ETCH_ERR_INVALID_ARGUMENT, "native");
    NO_RESULT(etch_compile_counter(NULL), ETCH_ERR_NULL, "etch_");
    assert_null(etch_graph_first(NULL));
    assert_null(etch_graph_last(NULL));
    assert_null(etch_node_next(NULL));
    assert_null(etch_node_prev(NULL));
    assert_null(etch_node_op(NULL));
    assert_null(etch_node_value(NULL));
    assert_null(etch_graph_name(NULL));
    FAILS_IF(etch_graph_format(NULL, NULL, 0) == -1, ETCH_ERR_NULL, "etch_");
    FAILS_IF(etch_graph_erase(NULL, NULL) != ETCH_OK, ETCH_ERR_INVALID_ARGUMENT,
             "etch_graph_erase");
    FAILS_IF(etch_graph_replace_uses(NULL, NULL, NULL) != ETCH_OK, ETCH_ERR_INVALID_ARGUMENT,
             "etch_graph_replace_uses");
    NO_RESULT(etch_graph_insert(NULL, NULL, etch_op_find("neg"), NULL, 0), ETCH_ERR_NULL, "etch_");
    NO_RESULT(etch_graph_input(NULL, 0), ETCH_ERR_INVALID_ARGUMENT, "etch_graph_input");
    NO_RESULT(etch_graph_node_of(NULL, NULL), ETCH_ERR_NOT_FOUND, "graph");
    etch_clear_error();
}
