/* Data in and out: copies, wrapped memory, single elements, raw pointers, text, .npy, comparing.
 * Labels: quick. */
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "etch_test.h"
#include "core/ops/op.h"
#include "core/tensor/element.h"

#define assert_error(code, words)                                                                  \
    do {                                                                                           \
        assert_int_equal(etch_last_status(), code);                                                \
        if (!strstr(etch_last_error(), words))                                                     \
            fail_msg("expected \"%s\" in \"%s\"", words, etch_last_error());                       \
        etch_clear_error();                                                                        \
    } while (0)

#define HOST(type, dtype, sizes, ...) etch_from_host((type[]){__VA_ARGS__}, dtype, sizes)
#define S ETCH_SHAPE

static int64_t live(void) { return etch_memory().tensors; }

/* ---- in and out ---- */

TEST(copies_in_and_out) {
    ETCH_SCOPE {
        float data[6] = {1, 2, 3, 4, 5, 6}, out[6];
        etch_tensor *t = etch_from_host(data, ETCH_F32, S(2, 3));
        data[0] = 99;
        assert_int_equal(etch_to_host(t, out, sizeof out), ETCH_OK);
        assert_true(out[0] == 1 && out[5] == 6);
        etch_tensor *u = etch_t(t);
        assert_int_equal(etch_to_host(u, out, sizeof out), ETCH_OK);
        assert_memory_equal(out, ((float[]){1, 4, 2, 5, 3, 6}), sizeof out);
        etch_tensor *back = etch_slice(t, 1, ETCH_NO_INT, ETCH_NO_INT, -2);
        assert_int_equal(etch_to_host(back, out, sizeof out), ETCH_OK);
        assert_memory_equal(out, ((float[]){3, 1, 6, 4}), 4 * sizeof(float));
        assert_int_equal(etch_to_host(t, out, 23), ETCH_ERR_INVALID_ARGUMENT);
        assert_error(ETCH_ERR_INVALID_ARGUMENT, "room for 24 bytes, got 23");
        assert_int_equal(etch_to_host(t, NULL, 24), ETCH_ERR_NULL);
        etch_clear_error();
        etch_tensor *none = etch_from_host(NULL, ETCH_F32, S(0, 3));
        assert_int_equal(etch_to_host(none, NULL, 0), ETCH_OK);
        etch_tensor *b = HOST(uint8_t, ETCH_BOOL, S(3), 0, 7, 1);
        assert_int_equal(etch_to_host(b, out, sizeof out), ETCH_OK);
        assert_memory_equal(out, ((uint8_t[]){0, 1, 1}), 3);
    }
}

TEST(bad_memory_is_refused) {
    float f[2] = {0};
    const int64_t big = INT64_C(1) << 40;
    int64_t before = live();
    ETCH_SCOPE {
        assert_null(etch_from_host(f, (etch_dtype)10, S(2)));
        assert_error(ETCH_ERR_DTYPE, "got the number 10");
        assert_null(etch_from_host(f, ETCH_F32, S(-1)));
        assert_error(ETCH_ERR_SHAPE, "not negative, got [-1]");
        assert_null(etch_from_host(f, ETCH_F32, (etch_shape){.n = 9}));
        assert_error(ETCH_ERR_SHAPE, "0 to 8 dimensions, got 9");
        assert_null(etch_from_host(f, ETCH_F32, S(big, big)));
        assert_error(ETCH_ERR_OVERFLOW, "63 bits");
        assert_null(etch_from_host(NULL, ETCH_F32, S(2)));
        assert_error(ETCH_ERR_NULL, "etch_from_host: data is NULL");
        assert_null(etch_wrap_host((char *)f + 1, ETCH_F32, S(1), NULL, NULL));
        assert_error(ETCH_ERR_INVALID_ARGUMENT, "not aligned for f32");
    }
    assert_null(etch_from_host(f, ETCH_F32, S(2)));
    assert_error(ETCH_ERR_NO_SCOPE, "scope");
    assert_int_equal(live(), before);
}

static void count_free(void *ctx) { ++*(int *)ctx; }

TEST(wraps_memory) {
    int freed = 0;
    double data[4] = {1, 2, 3, 4};
    int64_t bytes = etch_memory().bytes_live;
    ETCH_SCOPE {
        etch_tensor *t = etch_wrap_host(data, ETCH_F64, S(2, 2), count_free, &freed);
        etch_tensor *row = etch_select(t, 0, 1);
        data[2] = 30;
        assert_true(etch_item(etch_select(row, 0, 0)) == 30);
        assert_ptr_equal(etch_data(t), data);
        assert_int_equal(freed, 0);
    }
    assert_int_equal(freed, 1);
    assert_int_equal(etch_memory().bytes_live, bytes);
    /* where it fails the memory stays the user's */
    for (int64_t n = 0; n < 2; n++)
        ETCH_SCOPE {
            etch__fail_allocation(n);
            etch_tensor *t = etch_wrap_host(data, ETCH_F64, S(4), count_free, &freed);
            etch__fail_allocation(-1);
            assert_null(t);
            assert_error(ETCH_ERR_OUT_OF_MEMORY, "bytes");
        }
    assert_null(etch_wrap_host(data, ETCH_F64, S(4), count_free, &freed));
    assert_error(ETCH_ERR_NO_SCOPE, "scope");
    assert_int_equal(freed, 1);
    assert_int_equal(etch_memory().bytes_live, bytes);
}

TEST(items) {
    ETCH_SCOPE {
        assert_true(etch_item(HOST(float, ETCH_F32, S(), 2.5f)) == 2.5);
        assert_true(etch_item(HOST(int64_t, ETCH_I64, S(1, 1), -7)) == -7);
        assert_true(etch_item(HOST(uint16_t, ETCH_BF16, S(), 0x3fc0)) == 1.5);
        assert_true(etch_item(HOST(uint16_t, ETCH_F16, S(), 0x3e00)) == 1.5);
        assert_true(etch_item(HOST(uint16_t, ETCH_F16, S(), 0x0001)) == 0x1p-24);
        assert_true(etch_item(HOST(uint16_t, ETCH_F16, S(), 0xfbff)) == -65504);
        assert_true(etch_item(HOST(uint16_t, ETCH_F16, S(), 0xfc00)) == -INFINITY);
        assert_true(isnan(etch_item(HOST(uint16_t, ETCH_F16, S(), 0x7e00))));
        assert_int_equal(etch_item_int(HOST(int64_t, ETCH_I64, S(), INT64_MIN + 1)), INT64_MIN + 1);
        assert_int_equal(etch_item_int(HOST(double, ETCH_F64, S(), 1e30)), INT64_MAX);
        assert_int_equal(etch_item_int(HOST(double, ETCH_F64, S(), -1e30)), INT64_MIN);
        assert_int_equal(etch_item_int(HOST(double, ETCH_F64, S(), NAN)), 0);
        assert_int_equal(etch_item_int(HOST(double, ETCH_F64, S(), -2.9)), -2);
        assert_int_equal(etch_item_int(HOST(bool, ETCH_BOOL, S(), true)), 1);
        assert_true(isnan(etch_item(HOST(float, ETCH_F32, S(2), 1, 2))));
        assert_error(ETCH_ERR_SHAPE, "etch_item: expected one element, got sizes [2]");
        assert_int_equal(etch_item_int(NULL), INT64_MIN);
        assert_error(ETCH_ERR_NULL, "NULL");
        assert_true(isnan(etch_item(ETCH_NONE)));
        assert_error(ETCH_ERR_INVALID_ARGUMENT, "got ETCH_NONE");
    }
}

TEST(raw_pointers) {
    ETCH_SCOPE {
        etch_tensor *t = HOST(float, ETCH_F32, S(2, 2), 1, 2, 3, 4);
        etch_tensor *row = etch_select(t, 0, 1);
        unsigned version = t->storage->version;
        assert_true(((const float *)etch_data(row))[1] == 4);
        assert_int_equal(t->storage->version, version);
        float *p = etch_data_mut(row);
        p[0] = 9;
        assert_int_equal(t->storage->version, version + 1);
        assert_true(etch_item(etch_select(row, 0, 0)) == 9);
        etch_data_end(t);
        assert_null(etch_data(etch_from_host(NULL, ETCH_F32, S(0))));
        assert_int_equal(etch_last_status(), ETCH_OK);
        assert_null(etch_data_mut(NULL));
        assert_error(ETCH_ERR_NULL, "NULL");
    }
}

/* ---- comparing ---- */

TEST(compares) {
    ETCH_SCOPE {
        etch_tensor *a = HOST(float, ETCH_F32, S(2, 2), 1, 2, 3, 4);
        etch_tensor *same = etch_t(HOST(float, ETCH_F32, S(2, 2), 1, 3, 2, 4));
        etch_tensor *off = HOST(float, ETCH_F32, S(2, 2), 1, 2, 3, 4.5f);
        etch_tensor *flat = HOST(float, ETCH_F32, S(4), 1, 2, 3, 4);
        etch_tensor *wide = HOST(double, ETCH_F64, S(2, 2), 1, 2, 3, 4);
        assert_true(etch_equal(a, same) && etch_bitwise_equal(a, same));
        assert_false(etch_equal(a, off) || etch_bitwise_equal(a, off));
        assert_false(etch_equal(a, flat) || etch_bitwise_equal(a, flat));
        assert_false(etch_equal(a, wide) || etch_bitwise_equal(a, wide));
        assert_false(etch_allclose(a, flat, 1, 1, true));
        assert_true(etch_allclose(a, wide, 0, 0, false));
        assert_true(etch_allclose(a, off, 0, 0.5, false));
        assert_false(etch_allclose(a, off, 0, 0.4, false));
        assert_true(etch_allclose(a, off, 0.12, 0, false));
        assert_int_equal(etch_last_status(), ETCH_OK);
        assert_false(etch_equal(a, NULL));
        assert_error(ETCH_ERR_NULL, "NULL");
        etch_tensor *i = HOST(int64_t, ETCH_I64, S(1), INT64_MAX);
        etch_tensor *j = HOST(int64_t, ETCH_I64, S(1), INT64_MAX - 1);
        assert_false(etch_equal(i, j)); /* they are one double */
    }
}

TEST(nan_zero_and_infinity) {
    ETCH_SCOPE {
        uint32_t nan1 = 0x7fc00000, nan2 = 0xffc00123;
        etch_tensor *a = etch_from_host(&nan1, ETCH_F32, S(1));
        etch_tensor *b = etch_from_host(&nan2, ETCH_F32, S(1));
        assert_true(etch_bitwise_equal(a, b));
        assert_false(etch_equal(a, a));
        assert_true(etch_allclose(a, b, 0, 0, true));
        assert_false(etch_allclose(a, b, 0, 0, false));
        etch_tensor *h = HOST(uint16_t, ETCH_F16, S(1), 0x7e00);
        etch_tensor *k = HOST(uint16_t, ETCH_F16, S(1), 0xfe01);
        etch_tensor *inf = HOST(uint16_t, ETCH_F16, S(1), 0x7c00);
        assert_true(etch_bitwise_equal(h, k));
        assert_false(etch_bitwise_equal(h, inf));
        etch_tensor *zero = HOST(float, ETCH_F32, S(1), 0.0f);
        etch_tensor *minus = HOST(float, ETCH_F32, S(1), -0.0f);
        assert_true(etch_equal(zero, minus));
        assert_false(etch_bitwise_equal(zero, minus));
        etch_tensor *up = HOST(float, ETCH_F32, S(1), INFINITY);
        etch_tensor *down = HOST(float, ETCH_F32, S(1), -INFINITY);
        assert_true(etch_allclose(up, up, 0, 0, false));
        assert_false(etch_allclose(up, down, 1, 1, false));
        assert_false(etch_allclose(zero, up, 1, 1, false));
        etch_tensor *empty = etch_from_host(NULL, ETCH_F32, S(0, 2));
        assert_true(etch_equal(empty, empty) && etch_bitwise_equal(empty, empty));
    }
}

/* ---- text ---- */

static void assert_format(const etch_tensor *t, const char *expected) {
    char text[4096];
    int64_t n = etch_format(t, text, sizeof text);
    assert_string_equal(text, expected);
    assert_int_equal(n, strlen(expected));
}

TEST(formats) {
    ETCH_SCOPE {
        assert_format(HOST(float, ETCH_F32, S(2, 3), 0.5f, 1, -1.25f, 1e10f, 100000, 0.1f),
                      "f32[2, 3]\n"
                      "[[     0.5 ,      1.0 ,     -1.25],\n"
                      " [    1e+10, 100000.0 ,      0.1 ]]");
        assert_format(HOST(float, ETCH_F32, S(3), NAN, INFINITY, -INFINITY),
                      "f32[3]\n[ nan,  inf, -inf]");
        assert_format(HOST(double, ETCH_F64, S(), 1.0 / 3), "f64[]\n0.33333333");
        assert_format(HOST(int32_t, ETCH_I32, S(2, 1, 2), 1, -20, 3, 4),
                      "i32[2, 1, 2]\n[[[  1, -20]],\n\n [[  3,   4]]]");
        assert_format(HOST(bool, ETCH_BOOL, S(2), true, false), "bool[2]\n[ true, false]");
        assert_format(HOST(uint16_t, ETCH_BF16, S(2), 0x3f80, 0x3dcd), "bf16[2]\n[1.0   , 0.1001]");
        assert_format(etch_from_host(NULL, ETCH_F32, S(2, 0)), "f32[2, 0]\n[]");
        assert_format(etch_t(HOST(int8_t, ETCH_I8, S(2, 2), 1, 2, 3, 4)),
                      "i8[2, 2]\n[[1, 3],\n [2, 4]]");
    }
}

TEST(formats_with_a_precision) {
    ETCH_SCOPE {
        etch_tensor *t = HOST(float, ETCH_F32, S(2, 2), 0.5f, 10, -1.25f, 1.0f / 3);
        assert_int_equal(etch_set_print_precision(3), ETCH_OK);
        assert_format(t, "f32[2, 2]\n[[ 0.500, 10.000],\n [-1.250,  0.333]]");
        assert_format(HOST(double, ETCH_F64, S(3), 1e-9, 0, INFINITY),
                      "f64[3]\n[1.000e-09,     0.000,       inf]");
        assert_format(HOST(int32_t, ETCH_I32, S(2), 1, -20), "i32[2]\n[  1, -20]");
        assert_int_equal(etch_set_print_precision(0), ETCH_OK);
        assert_format(t, "f32[2, 2]\n[[ 0, 10],\n [-1,  0]]");
        assert_int_equal(etch_set_print_precision(18), ETCH_ERR_INVALID_ARGUMENT);
        assert_int_equal(etch_set_print_precision(-2), ETCH_ERR_INVALID_ARGUMENT);
        assert_int_equal(etch_set_print_precision(-1), ETCH_OK);
        assert_format(t, "f32[2, 2]\n[[ 0.5       , 10.0       ],\n [-1.25      ,  0.33333334]]");
        etch_clear_error();
    }
}

TEST(shortens_and_wraps) {
    static int32_t many[2000];
    for (int i = 0; i < 2000; i++) many[i] = i;
    ETCH_SCOPE {
        assert_format(etch_from_host(many, ETCH_I32, S(2000)),
                      "i32[2000]\n[   0,    1,    2, ..., 1997, 1998, 1999]");
        assert_format(etch_from_host(many, ETCH_I32, S(1000, 2)),
                      "i32[1000, 2]\n[[   0,    1],\n [   2,    3],\n [   4,    5],\n ...,\n"
                      " [1994, 1995],\n [1996, 1997],\n [1998, 1999]]");
        char text[4096];
        etch_format(etch_from_host(many, ETCH_I32, S(100)), text, sizeof text);
        for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
            assert_in_range(strlen(line), 1, 90);
    }
}

TEST(format_is_bounded) {
    char text[8] = "#######";
    ETCH_SCOPE {
        etch_tensor *t = HOST(int32_t, ETCH_I32, S(2), 1, 2);
        assert_int_equal(etch_format(t, NULL, 0), 13);
        assert_int_equal(etch_format(t, text, 5), 13);
        assert_memory_equal(text, "i32[\0##", 8);
        assert_int_equal(etch_format(NULL, text, 5), -1);
        assert_error(ETCH_ERR_NULL, "NULL");
    }
}

/* ---- .npy ---- */

static char npy_path[64];

static void make_path(void) {
    strcpy(npy_path, "/tmp/etch_test_XXXXXX");
    int fd = mkstemp(npy_path);
    assert_true(fd >= 0);
    close(fd);
}

static void remove_path(void) { assert_int_equal(unlink(npy_path), 0); }
#define NPY .before = make_path, .after = remove_path

TEST(npy_keeps_everything, NPY) {
    static const etch_dtype dtypes[] = {ETCH_F32, ETCH_F64, ETCH_F16, ETCH_I8,  ETCH_I16,
                                        ETCH_I32, ETCH_I64, ETCH_U8,  ETCH_BOOL};
    uint8_t bytes[6 * 8];
    for (int i = 0; i < COUNT_OF(bytes); i++) bytes[i] = (uint8_t)(i * 5 + 1);
    for (int i = 0; i < COUNT_OF(dtypes); i++)
        ETCH_SCOPE {
            etch_tensor *t = etch_from_host(bytes, dtypes[i], S(2, 3));
            etch_tensor *u = etch_t(t);
            assert_int_equal(etch_npy_save(npy_path, u), ETCH_OK);
            etch_tensor *back = etch_npy_load(npy_path);
            assert_true(etch_bitwise_equal(u, back));
            assert_true(etch_is_contiguous(back));
        }
    static const etch_shape shapes[] = {{0}, {1, {3}}, {2, {0, 4}}, {8, {1, 1, 1, 2, 1, 1, 1, 1}}};
    for (int i = 0; i < COUNT_OF(shapes); i++)
        ETCH_SCOPE {
            etch_tensor *t = etch_from_host(bytes, ETCH_I32, shapes[i]);
            assert_int_equal(etch_npy_save(npy_path, t), ETCH_OK);
            assert_true(etch_bitwise_equal(t, etch_npy_load(npy_path)));
        }
}

/* A file with this header text (padding and newline are added) and these data bytes. */
static void write_npy(int version, const char *dict, const void *data, size_t n) {
    FILE *f = fopen(npy_path, "wb");
    size_t length = strlen(dict) + 1;
    uint8_t prefix[12] = {0x93, 'N', 'U', 'M', 'P', 'Y', (uint8_t)version, 0, (uint8_t)length, 0};
    fwrite(prefix, 1, version == 1 ? 10 : 12, f);
    fprintf(f, "%s\n", dict);
    if (n) fwrite(data, 1, n, f);
    fclose(f);
}

TEST(npy_reads_what_numpy_writes, NPY) {
    float data[3] = {1, 2, 3};
    ETCH_SCOPE {
        etch_tensor *expected = etch_from_host(data, ETCH_F32, S(3));
        for (int version = 1; version <= 3; version++) {
            write_npy(version, "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }   ", data,
                      sizeof data);
            assert_true(etch_bitwise_equal(expected, etch_npy_load(npy_path)));
        }
        write_npy(1, "{\"shape\":(3L,),\"fortran_order\":True,\"descr\":\"<f4\"}", data,
                  sizeof data);
        assert_true(etch_bitwise_equal(expected, etch_npy_load(npy_path)));
    }
}

TEST(bad_npy_files, NPY) {
    static const struct {
        const char *dict, *words;
        etch_status code;
    } cases[] = {
        {"{'descr': '>f4', 'fortran_order': False, 'shape': (3,)}", "\">f4\"",
         ETCH_ERR_UNSUPPORTED},
        {"{'descr': '<c8', 'fortran_order': False, 'shape': (1,)}", "\"<c8\"",
         ETCH_ERR_UNSUPPORTED},
        {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", "little endian",
         ETCH_ERR_UNSUPPORTED},
        {"{'descr': '<f4', 'fortran_order': True, 'shape': (1, 3)}", "C order",
         ETCH_ERR_UNSUPPORTED},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4,)}",
         "expected 16 bytes of data, got 12", ETCH_ERR_FORMAT},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (9999999999, 9999999999)}", "63 bits",
         ETCH_ERR_OVERFLOW},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (-3,)}", "bad shape", ETCH_ERR_FORMAT},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,1)}", "bad shape",
         ETCH_ERR_FORMAT},
        {"{'descr': '<f4', 'fortran_order': Maybe, 'shape': (3,)}", "bad fortran_order",
         ETCH_ERR_FORMAT},
        {"{'descr': '<f4', 'fortran_order': False}", "lacks shape", ETCH_ERR_FORMAT},
        {"{'descr': '<f4', 'shape': (3,)}", "lacks fortran_order", ETCH_ERR_FORMAT},
        {"{'descr': '<f4', 'what': 3}", "bad what", ETCH_ERR_FORMAT},
        {"hello", "expected a dict", ETCH_ERR_FORMAT},
        {"{descr", "expected a key", ETCH_ERR_FORMAT},
        {"{'descr", "expected a key", ETCH_ERR_FORMAT},
    };
    float data[3] = {1, 2, 3};
    ETCH_SCOPE {
        for (int i = 0; i < COUNT_OF(cases); i++) {
            write_npy(1, cases[i].dict, data, sizeof data);
            assert_null(etch_npy_load(npy_path));
            assert_error(cases[i].code, cases[i].words);
        }
        write_npy(4, cases[0].dict, data, sizeof data);
        assert_null(etch_npy_load(npy_path));
        assert_error(ETCH_ERR_UNSUPPORTED, "version 1 to 3, got 4");
        assert_int_equal(truncate(npy_path, 7), 0);
        assert_null(etch_npy_load(npy_path));
        assert_error(ETCH_ERR_FORMAT, "ends early");
        FILE *f = fopen(npy_path, "wb");
        fputs("this is no array", f);
        fclose(f);
        assert_null(etch_npy_load(npy_path));
        assert_error(ETCH_ERR_FORMAT, "is no .npy file");
        assert_null(etch_npy_load("/proc/none/x.npy"));
        assert_error(ETCH_ERR_IO, "No such file");
        assert_null(etch_npy_load(NULL));
        assert_error(ETCH_ERR_NULL, "path");
        etch_tensor *t = HOST(uint16_t, ETCH_BF16, S(1), 0);
        assert_int_equal(etch_npy_save(npy_path, t), ETCH_ERR_DTYPE);
        assert_error(ETCH_ERR_DTYPE, "no bf16");
        etch_tensor *u = HOST(float, ETCH_F32, S(1), 0);
        assert_int_equal(etch_npy_save("/proc/none/x.npy", u), ETCH_ERR_IO);
        assert_error(ETCH_ERR_IO, "could not be written: No such file");
    }
}

/* Each allocation of a round trip fails in turn: an error, nothing left behind. */
TEST(allocations_may_fail, NPY) {
    float data[4] = {1, 2, 3, 4};
    int64_t before = live(), bytes = etch_memory().bytes_live;
    ETCH_SCOPE {
        etch_tensor *t = etch_t(etch_from_host(data, ETCH_F32, S(2, 2)));
        assert_int_equal(etch_npy_save(npy_path, t), ETCH_OK);
        bool done = false;
        for (int64_t n = 0; !done && n < 100; n++)
            ETCH_SCOPE {
                etch_clear_error();
                etch__fail_allocation(n);
                etch_tensor *u = etch_from_host(data, ETCH_F32, S(4));
                bool saved = etch_npy_save(npy_path, t) == ETCH_OK;
                etch_tensor *v = etch_npy_load(npy_path);
                bool failed = etch__fail_allocation(-1) > n;
                done = !failed;
                if (failed) assert_int_equal(etch_last_status(), ETCH_ERR_OUT_OF_MEMORY);
                assert_true(failed == (!u || !saved || !v));
            }
        assert_true(done);
    }
    assert_int_equal(live(), before);
    assert_int_equal(etch_memory().bytes_live, bytes);
}
