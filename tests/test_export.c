/* Exported functions: the same bits in another process, without a compiler; what is refused, and
 * what a damaged file does. ETCH_EXPORT_MUTATIONS: how many damaged files (2,000).
 * Labels: quick device fake. */
#include "export_support.h"

#include <pthread.h>
#include <stdlib.h>

#include "export/file.h"
#include "export/hash.h"
#include "jit/ir/target.h"

static bool have_jit(void) { return !etch__target(0)->absent; }

/* ---- another process ---- */

static bool mapped(const char *library) {
    char line[512];
    bool found = false;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) found |= strstr(line, library) != NULL;
    if (maps) fclose(maps);
    return found;
}

#define CHILD_CHECK(condition)                                                                     \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, etch_last_error()); \
            exit(3);                                                                               \
        }                                                                                          \
    } while (0)

static export_example *named(const char *name, int *i) {
    for (*i = 0; *i < EXPORT_EXAMPLES; ++*i)
        if (!strcmp(export_examples[*i].name, name)) return &export_examples[*i];
    return NULL;
}

/* The arguments are made as in the process that exported: the rest comes from the files. */
static void child_calls(void **state) {
    const char *const *args = *state;
    int number;
    CHILD_CHECK(named(args[0], &number));
    char path[256];
    snprintf(path, sizeof path, "%s/%s.etch", args[1], args[0]);
    ETCH_SCOPE {
        export_example *x = example_arguments(number);
        end_example(x);
        etch_imported *f = etch_import(path);
        CHILD_CHECK(f);
        snprintf(path, sizeof path, "%s/%s.want", args[1], args[0]);
        etch_safetensors *want = must(etch_safetensors_load(path));
        calls_are_the_same(f, x, want, true);
        CHILD_CHECK(etch_counters().kernels_compiled == 0);
        CHILD_CHECK(etch_counters().compile_failures == 0);
        CHILD_CHECK(!mapped("gccjit"));
        etch_safetensors_free(want);
        etch_imported_free(f);
    }
}

static int child(char **args) {
    CHILD_CHECK(test_device_enter());
    struct CMUnitTest test = {.name = args[0], .test_func = child_calls, .initial_state = args};
    return _cmocka_run_group_tests("child", &test, 1, NULL, NULL);
}

/* NAME.etch and NAME.want. */
static void write_example(int i, const char *folder) {
    ETCH_SCOPE {
        export_example *x = begin_example(i);
        char path[256];
        snprintf(path, sizeof path, "%s/%s.etch", folder, x->name);
        export_example_to(x, path);
        expected e = {.n = 0};
        expect_calls(x, &e);
        snprintf(path, sizeof path, "%s/%s.want", folder, x->name);
        assert_int_equal(etch_safetensors_save(path, e.list, e.n, NULL, 0), ETCH_OK);
        end_example(x);
    }
}

TEST(the_same_bits_without_a_compiler) {
    for (int i = 0; i < EXPORT_EXAMPLES; i++) {
        write_example(i, file_folder);
        if (run_without_compiler("--child", export_examples[i].name, file_folder) != 0)
            fail_msg("%s: it is not the same in another process", export_examples[i].name);
    }
}

/* test_export --write FOLDER, and the same program of a build without libgccjit, with the folder in
 * ETCH_EXPORT_FILES: tests/check_export.sh. */
static void write_all(void **state) {
    for (int i = 0; i < EXPORT_EXAMPLES; i++) write_example(i, *state);
}

static int write_files(char *folder) {
    CHILD_CHECK(test_device_enter());
    struct CMUnitTest test = {.name = folder, .test_func = write_all, .initial_state = folder};
    return _cmocka_run_group_tests("write", &test, 1, NULL, NULL);
}

static int files_without_jit(void) {
    char *folder = getenv("ETCH_EXPORT_FILES");
    int failed = 0;
    for (int i = 0; folder && i < EXPORT_EXAMPLES; i++)
        failed += child((char *[]){(char *)export_examples[i].name, folder});
    if (!folder) puts("skipped: ETCH_EXPORT_FILES is to name files of a build with libgccjit");
    return folder ? failed : 77;
}

/* ---- in one process ---- */

/* Exports the example, and imports it in that way. */
static etch_imported *exported_example(int i, export_example **x, etch_import_code code) {
    *x = begin_example(i);
    export_example_to(*x, path_of("f.etch"));
    return must(etch_import(path_of("f.etch"), .code = code));
}

static void ways_agree(int i, etch_import_code code) {
    ETCH_SCOPE {
        export_example *x;
        etch_imported *f = exported_example(i, &x, code);
        expected e = {.n = 0};
        expect_calls(x, &e);
        assert_int_equal(etch_safetensors_save(path_of("want"), e.list, e.n, NULL, 0), ETCH_OK);
        end_example(x);
        x = begin_example(i);
        end_example(x);
        etch_safetensors *want = must(etch_safetensors_load(path_of("want")));
        calls_are_the_same(f, x, want, code != ETCH_CODE_EAGER);
        etch_safetensors_free(want);
        etch_imported_free(f);
    }
}

TEST(all_codes_give_the_same_bits) {
    for (int i = 0; i < EXPORT_EXAMPLES; i++)
        for (int code = ETCH_CODE_OF_FILE; code <= ETCH_CODE_EAGER; code++)
            ways_agree(i, (etch_import_code)code);
}

/* Exporting changes nothing: parameters are as they were, and the function goes on. */
TEST(exporting_computes_nothing) {
    ETCH_SCOPE {
        export_example *x = begin_example(2);
        etch_tensor *weight = etch_module_parameter_at(x->module, 0);
        etch_tensor *before = must(etch_clone(weight));
        export_example_to(x, path_of("f.etch"));
        assert_true(etch_bitwise_equal(before, weight));
        assert_null(etch_grad_of(weight));
        assert_int_equal(etch_function_counters(x->f).calls, 0);
        end_example(x);
    }
}

TEST(a_saved_function_goes_on) {
    ETCH_SCOPE {
        export_example *x;
        etch_imported *f = exported_example(4, &x, ETCH_CODE_OF_FILE), *again;
        etch_tensor *a[4], *b[4];
        end_example(x);
        if (etch_imported_call(f, x->in, 1, a, 1) != ETCH_OK) must(NULL);
        assert_int_equal(etch_imported_save(f, path_of("again.etch")), ETCH_OK);
        again = must(etch_import(path_of("again.etch")));
        assert_true(etch_item(etch_imported_weight(again, 0)) == 1);
        etch_tensor *same = must(etch_clone(x->in[0]));
        if (etch_imported_call(f, x->in, 1, a, 1) != ETCH_OK) must(NULL);
        if (etch_imported_call(again, &same, 1, b, 1) != ETCH_OK) must(NULL);
        assert_true(etch_bitwise_equal(a[0], b[0]));
        etch_imported_free(f);
        etch_imported_free(again);
    }
}

TEST(weights_have_names) {
    ETCH_SCOPE {
        export_example *x;
        etch_imported *f = exported_example(1, &x, ETCH_CODE_OF_FILE);
        assert_int_equal(etch_imported_num_inputs(f), 1);
        assert_int_equal(etch_imported_num_outputs(f), 1);
        assert_int_equal(etch_imported_num_weights(f), etch_module_parameter_count(x->module));
        for (int i = 0; i < etch_imported_num_weights(f); i++) {
            const char *name = etch_imported_weight_name(f, i);
            bool found = false;
            for (int k = 0; k < etch_module_parameter_count(x->module); k++)
                if (!strcmp(name, etch_module_parameter_name(x->module, k)))
                    found = etch_bitwise_equal(etch_imported_weight(f, i),
                                               etch_module_parameter_at(x->module, k));
            assert_true(found);
        }
        FAILED_WITH(!etch_imported_weight(f, 99), ETCH_ERR_INVALID_ARGUMENT, "below 6, got 99");
        FAILED_WITH(!etch_imported_weight_name(NULL, 0), ETCH_ERR_INVALID_ARGUMENT, "below 0");
        end_example(x);
        etch_imported_free(f);
    }
}

/* The saved script of a compiled model: the module's compiled function goes to a file as it is,
 * names and values unchanged by compiling. */
TEST(a_compiled_module) {
    ETCH_SCOPE {
        etch_module *layers[] = {etch_nn_linear(10, 10, ETCH_F32), etch_nn_relu(),
                                 etch_nn_linear(10, 5, ETCH_F32)};
        etch_module *m = must(etch_nn_sequential(layers, 3));
        assert_null(etch_module_is_compiled(m));
        assert_int_equal(etch_module_compile(m), ETCH_OK);
        etch_tensor *x = etch_randn(ETCH_F32, ETCH_SHAPE(1, 10)), *y = must(etch_module_call(m, x));
        FAILED_WITH(etch_export(etch_module_is_compiled(m), &x, 1, path_of("m.etch")) != ETCH_OK,
                    ETCH_ERR_UNSUPPORTED, "export in ETCH_NO_GRAD");
        etch_status status = ETCH_OK;
        ETCH_NO_GRAD
            status = etch_export(etch_module_is_compiled(m), &x, 1, path_of("m.etch"), .module = m);
        if (status != ETCH_OK) must(NULL);
        etch_imported *f = must(etch_import(path_of("m.etch")));
        assert_true(etch_bitwise_equal(must(etch_imported_call_one(f, &x, 1)), y));
        assert_string_equal(etch_imported_weight_name(f, 0), etch_module_parameter_name(m, 0));
        etch_imported_free(f);
        etch_module_free(m);
    }
}

/* Other programs read the weights. */
TEST(the_file_is_one_of_safetensors) {
    ETCH_SCOPE {
        export_example *x = begin_example(1);
        export_example_to(x, path_of("f.etch"));
        etch_safetensors *file = must(etch_safetensors_load(path_of("f.etch")));
        int k = etch_safetensors_find(file, etch_module_parameter_name(x->module, 0));
        assert_true(k >= 0);
        assert_true(etch_bitwise_equal(must(etch_safetensors_tensor(file, k)),
                                       etch_module_parameter_at(x->module, 0)));
        etch_safetensors_free(file);
        end_example(x);
    }
}

/* ---- calls that do not fit ---- */

static bool call_fails(etch_imported *f, etch_tensor *x, etch_tensor *w) {
    etch_tensor *const in[2] = {x, w};
    etch_tensor *out = (etch_tensor *)1;
    return etch_imported_call(f, in, 2, &out, 1) != ETCH_OK && !out;
}

TEST(calls_that_do_not_fit) {
    ETCH_SCOPE {
        export_example *x;
        etch_imported *f = exported_example(0, &x, ETCH_CODE_OF_FILE);
        etch_tensor *w = x->in[1], *out, *other = etch_zeros(ETCH_F32, ETCH_SHAPE(64, 63));
        FAILED_WITH(call_fails(f, other, w), ETCH_ERR_SHAPE,
                    "argument 0: expected sizes [64, 64], got [64, 63]");
        other = etch_zeros(ETCH_F64, ETCH_SHAPE(64, 64));
        FAILED_WITH(call_fails(f, w, other), ETCH_ERR_DTYPE, "argument 1: expected f32, got f64");
        other = etch_zeros(ETCH_F32, ETCH_SHAPE(64));
        FAILED_WITH(call_fails(f, other, w), ETCH_ERR_SHAPE,
                    "argument 0: expected 2 dimensions, got 1");
        other = etch_t(w);
        FAILED_WITH(call_fails(f, w, other), ETCH_ERR_SHAPE,
                    "argument 1: expected strides [64, 1], got [1, 64]");
        FAILED_WITH(call_fails(f, NULL, w), ETCH_ERR_NULL, "an argument");
        FAILED_WITH(call_fails(f, ETCH_NONE, w), ETCH_ERR_INVALID_ARGUMENT,
                    "argument 0: expected a tensor, got ETCH_NONE");
        other = etch_requires_grad_(etch_clone(w), true);
        FAILED_WITH(call_fails(f, other, w), ETCH_ERR_NO_GRAD, "argument 0 requires gradients");
        FAILED_WITH(!etch_imported_call_one(f, &w, 1), ETCH_ERR_INVALID_ARGUMENT,
                    "expected 2 arguments and 1 results, got 1 and 1");
        FAILED_WITH(etch_imported_call(NULL, &w, 1, &out, 1) != ETCH_OK, ETCH_ERR_NULL,
                    "expected a function");
        end_example(x);
        etch_imported_free(f);
    }
    etch_imported_free(NULL);
}

/* What fails on its data says so as eager code does, and nothing was written. */
static etch_tensor *divide(etch_tensor *a, etch_tensor *b) {
    etch_tensor *twice = etch_add(a, a);
    etch_tensor *q = etch_floor_divide(twice, b);
    return q && etch_add_(a, b) ? q : NULL;
}

TEST(errors_on_data) {
    test_set_blocking(true);
    ETCH_SCOPE {
        etch_tensor *a = etch_full(ETCH_I32, ETCH_SHAPE(5), 3);
        etch_tensor *b = etch_zeros(ETCH_I32, ETCH_SHAPE(5));
        etch_tensor *in[2] = {a, b};
        etch_function *f = etch_compile(divide);
        if (etch_export(f, in, 2, path_of("f.etch")) != ETCH_OK) must(NULL);
        etch_function_free(f);
        etch_imported *g = must(etch_import(path_of("f.etch")));
        FAILED_WITH(!etch_imported_call_one(g, in, 2), ETCH_ERR_DIVISION_BY_ZERO, "floor_divide");
        assert_true(etch_item_int(etch_select(a, 0, 2)) == 3);
        etch_add_scalar_(b, 2);
        etch_tensor *q = must(etch_imported_call_one(g, in, 2));
        assert_true(etch_item_int(etch_select(q, 0, 4)) == 3);
        assert_true(etch_item_int(etch_select(a, 0, 2)) == 5);
        etch_imported_free(g);
    }
    test_set_blocking(false);
}

/* ---- who shares memory ---- */

static ETCH_FN_N(add_into, ctx, in, nin, out, nout) {
    if (!etch_add_(in[0], in[1])) return etch_last_status();
    return done(out[0] = etch_mul_scalar(in[1], 2));
}

TEST(shared_storages) {
    ETCH_SCOPE {
        etch_tensor *base =
            etch_arange(ETCH_F32, etch_scalar_int(0), etch_scalar_int(8), etch_scalar_int(1));
        etch_tensor *low = etch_narrow(base, 0, 0, 6), *high = etch_narrow(base, 0, 2, 6);
        etch_tensor *apart = etch_clone(high);
        etch_tensor *over[2] = {low, high}, *two[2] = {low, apart}, *out;
        etch_function *f = etch_compile(add_into);
        if (etch_export(f, two, 2, path_of("apart.etch")) != ETCH_OK) must(NULL);
        if (etch_export(f, over, 2, path_of("over.etch")) != ETCH_OK) must(NULL);
        etch_imported *g = must(etch_import(path_of("apart.etch")));
        etch_imported *h = must(etch_import(path_of("over.etch")));
        FAILED_WITH(etch_imported_call(g, over, 2, &out, 1) != ETCH_OK, ETCH_ERR_INVALID_ARGUMENT,
                    "expected them to lie apart");
        FAILED_WITH(etch_imported_call(h, two, 2, &out, 1) != ETCH_OK, ETCH_ERR_INVALID_ARGUMENT,
                    "expected them to share one");
        etch_tensor *copy = etch_clone(base);
        etch_tensor *there[2] = {etch_narrow(copy, 0, 0, 6), etch_narrow(copy, 0, 2, 6)}, *want;
        assert_int_equal(add_into(NULL, there, 2, &want, 1), ETCH_OK);
        if (etch_imported_call(h, over, 2, &out, 1) != ETCH_OK) must(NULL);
        assert_true(etch_bitwise_equal(want, out) && etch_bitwise_equal(copy, base));
        etch_function_free(f);
        etch_imported_free(g);
        etch_imported_free(h);
    }
}

static etch_tensor *product(etch_tensor *x, etch_tensor *y) { return etch_mul(x, y); }

TEST(one_tensor_twice) {
    ETCH_SCOPE {
        etch_tensor *x = etch_randn(ETCH_F32, ETCH_SHAPE(9)),
                    *y = etch_randn(ETCH_F32, ETCH_SHAPE(9));
        etch_tensor *twice[2] = {x, x}, *two[2] = {x, y};
        etch_function *f = etch_compile(product);
        if (etch_export(f, twice, 2, path_of("f.etch")) != ETCH_OK) must(NULL);
        etch_imported *g = must(etch_import(path_of("f.etch")));
        FAILED_WITH(!etch_imported_call_one(g, two, 2), ETCH_ERR_INVALID_ARGUMENT,
                    "argument 1: expected the same tensor as argument 0");
        assert_true(etch_bitwise_equal(must(etch_imported_call_one(g, twice, 2)), etch_mul(x, x)));
        etch_function_free(f);
        etch_imported_free(g);
    }
}

/* Views of arguments lie over the argument of this call, wherever that begins. */
static etch_tensor *second_row(etch_tensor *x) { return etch_select(x, 0, 1); }

TEST(results_that_are_views) {
    ETCH_SCOPE {
        etch_tensor *x = etch_randn(ETCH_F32, ETCH_SHAPE(4, 3));
        etch_function *f = etch_compile(second_row);
        if (etch_export(f, &x, 1, path_of("f.etch")) != ETCH_OK) must(NULL);
        etch_imported *g = must(etch_import(path_of("f.etch")));
        etch_tensor *later = etch_narrow(etch_randn(ETCH_F32, ETCH_SHAPE(9, 3)), 0, 5, 4);
        etch_tensor *row = must(etch_imported_call_one(g, &later, 1));
        assert_true(etch_shares_storage(row, later));
        assert_true(etch_bitwise_equal(row, etch_select(later, 0, 1)));
        etch_function_free(f);
        etch_imported_free(g);
    }
}

/* ---- inside a compiled function it is a break ---- */

static etch_imported *inner;

static etch_tensor *outer_body(etch_tensor *x, etch_tensor *w) {
    etch_tensor *twice = etch_add(x, x);
    etch_tensor *const in[2] = {twice, w};
    etch_tensor *y = etch_imported_call_one(inner, in, 2);
    return y ? etch_neg(y) : NULL;
}

TEST(a_call_inside_a_compiled_function) {
    ETCH_SCOPE {
        export_example *x;
        inner = exported_example(0, &x, ETCH_CODE_OF_FILE);
        etch_function *f = etch_compile(outer_body);
        etch_tensor *want = must(outer_body(x->in[0], x->in[1]));
        for (int i = 0; i < 3; i++)
            assert_true(etch_bitwise_equal(must(etch_call(f, x->in[0], x->in[1])), want));
        assert_int_equal(etch_function_counters(f).graph_breaks, 3);
        etch_function_free(f);
        end_example(x);
        etch_imported_free(inner);
    }
}

/* ---- mapped functions ---- */

static etch_tensor *calls_imported(etch_tensor *row) {
    return etch_imported_call_one(inner, &row, 1);
}
static etch_tensor *of_row(etch_tensor *row) { return etch_sum(etch_mul(row, row)); }

static etch_function *mapped_rows;
static etch_tensor *of_rows(etch_tensor *x) { return etch_call(mapped_rows, x); }

/* A mapped function is exported as what it does; inside of one there is no row to give away. */
TEST(mapped_functions) {
    ETCH_SCOPE {
        etch_tensor *x = etch_randn(ETCH_F32, ETCH_SHAPE(5, 3));
        etch_tensor *row = etch_contiguous(etch_select(x, 0, 0));
        etch_function *f = etch_compile(of_row), *outer;
        if (etch_export(f, &row, 1, path_of("f.etch")) != ETCH_OK) must(NULL);
        inner = must(etch_import(path_of("f.etch")));
        outer = must(etch_vmap(calls_imported, ETCH_DIMS(0), ETCH_DIMS(0)));
        FAILED_WITH(!etch_call(outer, x), ETCH_ERR_BATCHED, "etch_imported_call");
        etch_tensor *y, *dy;
        FAILED_WITH(etch_jvp(calls_imported, &row, &row, 1, &y, &dy, 1) != ETCH_OK,
                    ETCH_ERR_NO_GRAD, "has a tangent");
        etch_function_free(outer);
        etch_function_free(f);
        etch_imported_free(inner);
        mapped_rows = must(etch_vmap(of_row, ETCH_DIMS(0), ETCH_DIMS(0)));
        f = etch_compile(of_rows);
        if (etch_export(f, &x, 1, path_of("f.etch")) != ETCH_OK) must(NULL);
        inner = must(etch_import(path_of("f.etch")));
        assert_true(etch_bitwise_equal(must(etch_imported_call_one(inner, &x, 1)), of_rows(x)));
        etch_imported_free(inner);
        etch_function_free(f);
        etch_function_free(mapped_rows);
    }
}

/* ---- what cannot be exported ---- */

static etch_tensor *hidden, *other_hidden;
static int calls;

static etch_tensor *breaks(etch_tensor *x) {
    return etch_item(etch_sum(x)) > 0 ? etch_neg(x) : x; /* the line of the break */
}
static etch_tensor *counts(etch_tensor *x) { return etch_mul_scalar(x, ++calls); }
static etch_tensor *alternates(etch_tensor *x) { return ++calls % 2 ? etch_neg(x) : etch_abs(x); }
static etch_tensor *switches(etch_tensor *x) {
    return etch_add(x, ++calls % 2 ? hidden : other_hidden);
}
static etch_tensor *keeps(etch_tensor *x) {
    hidden = etch_retain(etch_neg(x));
    return etch_abs(x);
}
static etch_tensor *makes_anew(etch_tensor *x) {
    float one = 1;
    etch_tensor *t = etch_from_host(&one, ETCH_F32, ETCH_SHAPE(1));
    return etch_add(x, etch_add_(t, t));
}
static etch_tensor *returns_anew(etch_tensor *x) {
    float one = 1;
    etch_tensor *t = etch_from_host(&one, ETCH_F32, ETCH_SHAPE(1));
    return etch_add(x, t) ? t : NULL;
}
static etch_tensor *fails(etch_tensor *x) { return etch_mm(x, x); }
static etch_tensor *with_gradients(etch_tensor *x) { return etch_mul(x, hidden); }
static etch_tensor *accumulates(etch_tensor *x) {
    etch_tensor *loss = etch_sum(etch_mul(x, hidden));
    return etch_backward(loss) == ETCH_OK ? etch_detach(loss) : NULL;
}

static bool refused(etch_fn1 fn, etch_tensor *x) {
    etch_function *f = etch_compile(fn);
    bool failed = etch_export(f, &x, 1, path_of("f.etch")) != ETCH_OK;
    etch_function_free(f);
    return failed;
}

TEST(what_cannot_be_exported) {
    ETCH_SCOPE {
        etch_tensor *x = etch_ones(ETCH_F32, ETCH_SHAPE(3));
        hidden = etch_ones(ETCH_F32, ETCH_SHAPE(3)), other_hidden = etch_clone(hidden);
        FAILED_WITH(refused(breaks, x), ETCH_ERR_GRAPH_BREAK, "it is to be exported");
        assert_false(refused(second_row, etch_ones(ETCH_F32, ETCH_SHAPE(2, 2))));
        FAILED_WITH(refused(counts, x), ETCH_ERR_UNSUPPORTED,
                    "scalar 0 is 1 in one call and 2 in the next");
        calls = 0;
        FAILED_WITH(refused(alternates, x), ETCH_ERR_UNSUPPORTED, "operator 0 is neg");
        FAILED_WITH(refused(switches, x), ETCH_ERR_UNSUPPORTED, "captures other tensors");
        FAILED_WITH(refused(makes_anew, x), ETCH_ERR_UNSUPPORTED, "makes anew in each call");
        FAILED_WITH(refused(returns_anew, x), ETCH_ERR_UNSUPPORTED, "makes anew in each call");
        FAILED_WITH(refused(fails, x), ETCH_ERR_SHAPE, "mm");
        etch_requires_grad_(hidden, true);
        FAILED_WITH(refused(with_gradients, x), ETCH_ERR_UNSUPPORTED,
                    "result 0 requires gradients");
        ETCH_NO_GRAD
            assert_false(refused(with_gradients, x));
        FAILED_WITH(refused(accumulates, x), ETCH_ERR_UNSUPPORTED, "changes from call to call");
        assert_null(etch_grad_of(hidden));
        etch_set_grad(hidden, etch_zeros(ETCH_F32, ETCH_SHAPE(3)));
        assert_false(refused(accumulates, x)); /* what it adds to is a tensor like any other */
        hidden = NULL;
        FAILED_WITH(refused(keeps, x), ETCH_ERR_UNSUPPORTED, "outlives the call");
        etch_release(hidden);
    }
}

/* Exported after `before` steps, goes on as the compiled function does, its count of steps too (in
 * the weights: integers of no dimensions), through a file of its own. */
static void goes_on(export_example *x, int before, bool counts) {
    int counted = 0;
    etch_tensor *have = NULL, *want = NULL;
    for (int i = 0; i < before; i++)
        if (etch_call_n(x->f, x->in, 2, &want, 1) != ETCH_OK) must(NULL);
    export_example_to(x, path_of("f.etch"));
    etch_imported *f = must(etch_import(path_of("f.etch")));
    for (int i = 0; i < 6; i++) {
        if (i == 3) {
            assert_int_equal(etch_imported_save(f, path_of("g.etch")), ETCH_OK);
            etch_imported_free(f);
            f = must(etch_import(path_of("g.etch")));
        }
        if (etch_imported_call(f, x->in, 2, &have, 1) != ETCH_OK) must(NULL);
        if (etch_call_n(x->f, x->in, 2, &want, 1) != ETCH_OK) must(NULL);
        assert_true(etch_bitwise_equal(have, want));
    }
    for (int i = 0; i < etch_imported_num_weights(f); i++) {
        etch_tensor *t = etch_imported_weight(f, i);
        if (etch_dtype_of(t) != ETCH_I64 || etch_ndim(t) || etch_item_int(t) != before + 6)
            continue;
        counted++;
    }
    assert_int_equal(counted, counts ? etch_module_parameter_count(x->module) : 0);
    etch_imported_free(f);
}

/* Adam's corrections are numbers that C computes from a count of steps, or made of a tensor;
 * RMSprop has none, and momentum begins with zeros. */
TEST(optimisers_that_count) {
    const etch_optim_options capturable = {.lr = 0.01, .capturable = true, .amsgrad = true};
    for (int before = 0; before < 4; before += 3)
        ETCH_SCOPE {
            export_example *x = begin_example(2);
            etch_optim *sgd = x->optim;
            x->optim = must(etch_optim_adam(x->module, .lr = 0.01));
            FAILED_WITH(etch_export(x->f, x->in, 2, path_of("f.etch")) != ETCH_OK,
                        ETCH_ERR_UNSUPPORTED, "in one call and");
            for (int kind = 0; kind < 5; kind++) {
                etch_optim_free(x->optim);
                x->optim =
                    must(kind == 0   ? etch_optim_rmsprop(x->module, .lr = 0.01, .momentum = 0.5)
                         : kind == 1 ? etch_optim_adam_with(x->module, &capturable)
                         : kind == 2 ? etch_optim_adamw(x->module, .lr = 0.01, .capturable = true)
                         : kind == 3 ? etch_optim_sgd(x->module, .momentum = 0.5, .dampening = 0.5,
                                                      .capturable = true)
                                     : etch_optim_sgd(x->module, .momentum = 0.5));
                etch_reset(x->f);
                goes_on(x, before, kind > 0 && kind < 4);
            }
            etch_optim_free(sgd);
            end_example(x);
        }
}

/* The error of a break says where it is. */
TEST(a_break_names_its_line) {
    ETCH_SCOPE {
        etch_tensor *x = etch_ones(ETCH_F32, ETCH_SHAPE(3));
        char line[64];
        int number = 0;
        FILE *source = fopen(ETCH_TEST_SOURCE_DIR "/tests/test_export.c", "r");
        if (!source) skip();
        char text[512];
        for (int n = 1; fgets(text, sizeof text, source); n++)
            if (strstr(text, "return etch_item(etch_sum(x)) > 0")) number = number ? number : n;
        fclose(source);
        snprintf(line, sizeof line, "test_export.c:%d", number);
        FAILED_WITH(refused(breaks, x), ETCH_ERR_GRAPH_BREAK, line);
    }
}

static etch_tensor *exports_inside(etch_tensor *x) {
    etch_function *f = etch_compile(second_row);
    etch_status status = etch_export(f, &x, 1, path_of("f.etch"));
    etch_function_free(f);
    return status == ETCH_OK ? etch_neg(x) : NULL;
}

TEST(wrong_calls_of_export) {
    ETCH_SCOPE {
        etch_tensor *x = etch_ones(ETCH_F32, ETCH_SHAPE(3, 3)), *two[2] = {x, x}, *none = NULL;
        etch_function *f = etch_compile(second_row), *off = etch_disable(second_row, true);
        const char *path = path_of("f.etch");
        FAILED_WITH(etch_export(NULL, &x, 1, path) != ETCH_OK, ETCH_ERR_NULL, "got NULL");
        FAILED_WITH(etch_export(f, &x, 1, NULL) != ETCH_OK, ETCH_ERR_NULL, "got NULL");
        FAILED_WITH(etch_export(f, two, 2, path) != ETCH_OK, ETCH_ERR_INVALID_ARGUMENT,
                    "expected 1 arguments, got 2");
        FAILED_WITH(etch_export(f, &none, 1, path) != ETCH_OK, ETCH_ERR_NULL, "an argument");
        FAILED_WITH(etch_export(off, &x, 1, path) != ETCH_OK, ETCH_ERR_UNSUPPORTED,
                    "out of graphs");
        FAILED_WITH(etch_export(f, &x, 1, "/nonexistent/f.etch") != ETCH_OK, ETCH_ERR_IO,
                    "/nonexistent");
        etch_set_stance(ETCH_STANCE_FAIL_ON_RECOMPILE);
        FAILED_WITH(etch_export(f, &x, 1, path) != ETCH_OK, ETCH_ERR_RECOMPILE, "the stance");
        etch_set_stance(ETCH_STANCE_DEFAULT);
        etch_function *inside = etch_compile(exports_inside);
        FAILED_WITH(!etch_call(inside, x), ETCH_ERR_INVALID_ARGUMENT,
                    "outside of compiled functions");
        etch_function_free(inside);
        etch_function_free(off);
        etch_function_free(f);
    }
}

/* ---- run-time sizes ---- */

static etch_tensor *marked(etch_tensor *t, int dim, int64_t min, int64_t max) {
    assert_int_equal(etch_mark_dynamic(must(t), dim, min, max), ETCH_OK);
    return t;
}

TEST(sizes_that_do_not_fit) {
    ETCH_SCOPE {
        export_example *x;
        int number;
        assert_non_null(named("sizes", &number));
        etch_imported *f = exported_example(number, &x, ETCH_CODE_OF_FILE);
        etch_tensor *out[2];
        size_arguments(x, 4, 501);
        FAILED_WITH(etch_imported_call(f, x->in, 2, out, 2) != ETCH_OK, ETCH_ERR_SHAPE,
                    "argument 0: dimension 1: expected a size of 1 to 500, got 501");
        size_arguments(x, 0, 5);
        FAILED_WITH(etch_imported_call(f, x->in, 2, out, 2) != ETCH_OK, ETCH_ERR_SHAPE,
                    "argument 0: dimension 0: expected a size of 1 to any number, got 0");
        size_arguments(x, 4, 5);
        x->in[1] = etch_randn(ETCH_F32, ETCH_SHAPE(3, 1));
        FAILED_WITH(etch_imported_call(f, x->in, 2, out, 2) != ETCH_OK, ETCH_ERR_SHAPE,
                    "argument 1: dimension 0: expected 4, as in dimension 0 of argument 0, got 3");
        x->in[1] = etch_randn(ETCH_F32, ETCH_SHAPE(4, 2));
        FAILED_WITH(etch_imported_call(f, x->in, 2, out, 2) != ETCH_OK, ETCH_ERR_SHAPE,
                    "argument 1: expected sizes");
        end_example(x);
        etch_imported_free(f);
    }
}

/* More sizes than there is room for plans of. */
TEST(many_sizes) {
    ETCH_SCOPE {
        export_example *x;
        int number;
        assert_non_null(named("sizes", &number));
        etch_imported *f = exported_example(number, &x, ETCH_CODE_OF_FILE);
        for (int i = 0; i < 160; i++)
            ETCH_SCOPE {
                etch_tensor *have[2], *want[2];
                size_arguments(x, 1 + i % 80, 1 + i % 7);
                int64_t before = etch_counters().kernel_launches;
                if (etch_imported_call(f, x->in, 2, have, 2) != ETCH_OK) must(NULL);
                assert_true(etch_counters().kernel_launches > before);
                assert_int_equal(sizes_body(x, x->in, 2, want, 2), ETCH_OK);
                assert_true(etch_bitwise_equal(have[0], want[0]));
                assert_true(etch_bitwise_equal(have[1], want[1]));
            }
        end_example(x);
        etch_imported_free(f);
    }
}

/* Several threads call one function, each with sizes of its own. */
static etch_imported *all_threads_call;
static export_example *their_example;

static void *call_with_sizes(void *number) {
    bool ok = test_device_enter();
    for (int64_t i = 0; ok && i < 12; i++)
        ETCH_SCOPE {
            etch_tensor *in[2], *have[2], *want[2];
            int64_t batch = 1 + (i + (intptr_t)number) % 5;
            in[0] = etch_full(ETCH_F32, ETCH_SHAPE(batch, 6, 8), 0.25);
            in[1] = etch_ones(ETCH_F32, ETCH_SHAPE(batch, 1));
            ok = etch_imported_call(all_threads_call, in, 2, have, 2) == ETCH_OK &&
                 sizes_body(their_example, in, 2, want, 2) == ETCH_OK &&
                 etch_bitwise_equal(have[0], want[0]) && etch_bitwise_equal(have[1], want[1]);
        }
    return ok ? number : (void *)-1;
}

TEST(several_threads) {
    enum { THREADS = 4 };
    ETCH_SCOPE {
        pthread_t thread[THREADS];
        int number;
        assert_non_null(named("sizes", &number));
        all_threads_call = exported_example(number, &their_example, ETCH_CODE_OF_FILE);
        for (intptr_t i = 0; i < THREADS; i++)
            assert_int_equal(pthread_create(&thread[i], NULL, call_with_sizes, (void *)i), 0);
        for (intptr_t i = 0; i < THREADS; i++) {
            void *result = NULL;
            pthread_join(thread[i], &result);
            assert_ptr_equal(result, (void *)i);
        }
        end_example(their_example);
        etch_imported_free(all_threads_call);
    }
}

static etch_tensor *by_size(etch_tensor *x) {
    return etch_size(x, 0) > 5 ? etch_neg(x) : etch_abs(x);
}
static etch_tensor *by_logarithm(etch_tensor *x) {
    double bits = 0;
    for (int64_t n = etch_size(x, 0); n > 1; n /= 2) bits++;
    return etch_mul_scalar(x, bits);
}
static etch_tensor *needs_four(etch_tensor *x) { return etch_select(x, 0, 3); }
static etch_tensor *roots(etch_tensor *x) {
    double n = (double)etch_size(x, 0);
    etch_tensor *a = etch_mul_scalar(x, 1 / sqrt(n));
    return etch_add_scalar(a, 3 * n);
}

TEST(what_follows_from_sizes) {
    ETCH_SCOPE {
        etch_tensor *x = marked(etch_ones(ETCH_F32, ETCH_SHAPE(4, 4)), 0, 1, 0);
        FAILED_WITH(refused(by_size, x), ETCH_ERR_UNSUPPORTED, "changes with sizes");
        FAILED_WITH(refused(by_logarithm, x), ETCH_ERR_SPECIALISED, "mul.Scalar: scalar 0");
        FAILED_WITH(refused(needs_four, x), ETCH_ERR_INDEX, "give etch_mark_dynamic bounds");
        marked(x, 0, 4, 0);
        assert_false(refused(needs_four, x));
        assert_false(refused(roots, x));
        etch_imported *f = must(etch_import(path_of("f.etch")));
        for (int64_t n = 4; n < 60; n++) {
            etch_tensor *y = etch_rand(ETCH_F32, ETCH_SHAPE(n, 4));
            assert_true(etch_bitwise_equal(must(etch_imported_call_one(f, &y, 1)), roots(y)));
        }
        etch_imported_free(f);
        x = marked(etch_t(etch_ones(ETCH_F32, ETCH_SHAPE(4, 5))), 0, 1, 0);
        FAILED_WITH(refused(roots, x), ETCH_ERR_UNSUPPORTED, "is not row-major");
    }
}

/* ---- files that are not right ---- */

static void import_fails(const char *path, etch_status code, const char *words) {
    FAILED_WITH(!etch_import(path), code, words);
}

TEST(who_may_have_written_it) {
    ETCH_SCOPE {
        export_example *x = begin_example(0);
        const char *path = path_of("f.etch");
        export_example_to(x, path);
        end_example(x);
        chmod(path, 0666);
        import_fails(path, ETCH_ERR_IO, "others may write it");
        for (int code = ETCH_CODE_COMPILE; code <= ETCH_CODE_EAGER; code++) {
            etch_imported *f = must(etch_import(path, .code = (etch_import_code)code));
            assert_non_null(etch_imported_call_one(f, x->in, 2));
            etch_imported_free(f);
        }
        chmod(path, 0600);
        etch_imported_free(must(etch_import(path)));
        if (geteuid() == 0 && chown(path, 12345, 12345) == 0)
            import_fails(path, ETCH_ERR_IO, "it belongs to another user");
        import_fails(file_folder, ETCH_ERR_IO, "regular file");
        import_fails("/nonexistent", ETCH_ERR_IO, "/nonexistent");
        import_fails(NULL, ETCH_ERR_NULL, "got NULL");
    }
}

/* The umask of some systems lets the group write. */
TEST(files_are_closed_to_others) {
    struct stat s;
    mode_t before = umask(0);
    ETCH_SCOPE {
        export_example *x = begin_example(0);
        export_example_to(x, path_of("f.etch"));
        end_example(x);
    }
    umask(before);
    assert_int_equal(stat(path_of("f.etch"), &s), 0);
    assert_int_equal(s.st_mode & 022, 0);
}

static void replace_in(const char *path, const char *from, const char *to) {
    size_t n, k = strlen(from);
    char *data = read_bytes(path, &n), *at = data;
    assert_int_equal(strlen(to), k);
    while (at + k <= data + n && memcmp(at, from, k)) at++;
    assert_true(at + k <= data + n);
    memcpy(at, to, k);
    write_bytes(path, data, n);
    free(data);
}

TEST(damage_is_refused) {
    ETCH_SCOPE {
        export_example *x = begin_example(1);
        const char *path = path_of("f.etch");
        export_example_to(x, path);
        replace_in(path, "isa ", "isb ");
        import_fails(path, ETCH_ERR_FORMAT, "its hash is another");
        export_example_to(x, path);
        replace_in(path, "convolution", "convolutiom");
        import_fails(path, ETCH_ERR_FORMAT, "its hash is another");
        export_example_to(x, path);
        replace_in(path, "\"etch_export\":\"1\"", "\"etch_export\":\"9\"");
        import_fails(path, ETCH_ERR_FORMAT, "expected a file of version 1 to 1, got '9'");
        etch_named_tensor one = {"x", x->in[0]};
        assert_int_equal(etch_safetensors_save(path, &one, 1, NULL, 0), ETCH_OK);
        import_fails(path, ETCH_ERR_FORMAT, "no file of etch_export");
        end_example(x);
    }
}

/* Writes the file again with another text in it, and the hash that belongs to it. */
static void forge_here(const char *path, const char *name, const char *from, const char *to) {
    etch_safetensors *f = must(etch_safetensors_load(path));
    static const char *const names[] = {"etch_export", "etch_graph",     "etch_program",
                                        "etch_code",   "etch_capture.0", "etch_capture.1"};
    etch_named_text texts[8];
    etch_named_tensor tensors[16];
    int ntexts = 0, n = etch_safetensors_count(f);
    char *changed = calloc(1, 1 << 16), hash[HASH_TEXT];
    assert_true(n <= 16);
    for (int i = 0; i < n; i++)
        tensors[i] =
            (etch_named_tensor){etch_safetensors_name(f, i), must(etch_safetensors_tensor(f, i))};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *text = etch_safetensors_text(f, names[i]);
        if (!text) continue;
        texts[ntexts++] = (etch_named_text){names[i], text};
        if (strcmp(names[i], name) != 0) continue;
        const char *at = strstr(text, from);
        assert_non_null(at);
        snprintf(changed, 1 << 16, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
        texts[ntexts - 1].text = changed;
    }
    assert_true(etch__content_hash(texts, ntexts, tensors, n, hash));
    texts[ntexts++] = (etch_named_text){"etch_hash", hash};
    assert_int_equal(etch_safetensors_save(path, tensors, n, texts, ntexts), ETCH_OK);
    etch_safetensors_free(f);
    free(changed);
}
static void forge(const char *path, const char *name, const char *from, const char *to) {
    ETCH_ON(ETCH_CPU) forge_here(path, name, from, to);
}

static bool has_text(const char *path, const char *name, const char *part) {
    etch_safetensors *f = NULL;
    ETCH_ON(ETCH_CPU)
    f = must(etch_safetensors_load(path));
    const char *text = etch_safetensors_text(f, name);
    bool has = text && strstr(text, part);
    etch_safetensors_free(f);
    return has;
}

/* A file whose hash is right is looked at as closely. On a device values say where they lie, so
 * that some of these are not in its text. */
TEST(forged_programs_are_refused) {
    static const struct {
        const char *text, *from, *to, *words;
    } forged[] = {
        {"etch_code", "isa ", "isb ", "its machine code is for"},
        {"etch_graph", "= sin(", "= cos(", "not among the code of the file"},
        {"etch_graph", "mm(%0, %1)", "mm(%0, %99)", "no such value"},
        {"etch_graph", "mm(%0, %1)", "mn(%0, %1)", "no such operator"},
        {"etch_graph", "f32[64, 64] = mm", "f32[64, 65] = mm", "the value of operator 0"},
        {"etch_graph", "%0: f32[64, 64]", "%0: f32[64, 60]", "mm"},
        {"etch_graph", "%0: f32[64, 64]", "%0: f32[64, 64]@3", "input 0"},
        {"etch_graph", "%0: f32[64, 64]", "%0: f32[9223372036854775807, 64]", "63 bits"},
        {"etch_graph", "%0: f32[64, 64]", "%0: f32[64, 64 : 4611686018427387904, 4]", "input 0"},
        {"etch_graph", "{1}", "{0}", "operator 3"},
        {"etch_graph", "return %26", "return", "result 0"},
        {"etch_graph", "return %26", "return %26, %26", "output 1"},
        {"etch_program", "arguments 2", "arguments 1", "its program, line"},
        {"etch_program", "arguments 2\n0 0", "arguments 2\n1 0", "argument 0"},
        {"etch_program", "results 1\n26", "results 1\n27", "a number in its range"},
        {"etch_program", "results 1\n26", "results 1\n25", "result 0"},
        {"etch_program", "etch program 1", "etch program 2", "a number in its range"},
        {"etch_program", "captures 0", "captures 1\n0", "the number of captures"},
        {"etch_program", "options 0 0", "options 9 0", "a number in its range"},
    };
    if (!have_jit()) skip();
    ETCH_SCOPE {
        export_example *x = begin_example(0);
        for (size_t i = 0; i < sizeof forged / sizeof *forged; i++) {
            export_example_to(x, path_of("f.etch"));
            if (test_device() != ETCH_CPU &&
                !has_text(path_of("f.etch"), forged[i].text, forged[i].from))
                continue;
            forge(path_of("f.etch"), forged[i].text, forged[i].from, forged[i].to);
            etch_clear_error();
            etch_imported *f = etch_import(path_of("f.etch"));
            if (f) fail_msg("%s was taken for %s", forged[i].to, forged[i].from);
            if (!strstr(etch_last_error(), forged[i].words))
                fail_msg("%s: %s", forged[i].to, etch_last_error());
        }
        end_example(x);
    }
}

/* ---- mutations ---- */

static uint64_t random_word(uint64_t *state) {
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return *state;
}

/* One to three bytes changed, or a piece taken out or doubled. */
static size_t mutate(char *data, size_t n, uint64_t *state) {
    size_t at = random_word(state) % n, length = 1 + random_word(state) % 16;
    switch (random_word(state) % 8) {
    case 0:
        if (at + length > n) length = n - at;
        memmove(data + at, data + at + length, n - at - length);
        return n - length;
    case 1:
        if (at + length > n) length = n - at;
        memmove(data + at + length, data + at, n - at);
        return n + length;
    case 2: return at;
    default:
        for (int i = 0; i < 1 + (int)(random_word(state) % 3); i++)
            data[random_word(state) % n] = (char)random_word(state);
        return n;
    }
}

/* A file that is still taken gives the same bits. */
static void taken_is_equal(const char *path, export_example *x, etch_tensor *want) {
    etch_imported *f = etch_import(path);
    etch_clear_error();
    if (!f) return;
    etch_tensor *have = must(etch_imported_call_one(f, x->in, x->nin));
    if (!etch_bitwise_equal(have, want)) fail_msg("a damaged file was taken, and is not equal");
    etch_imported_free(f);
}

enum { HEADER = 2000 }; /* bytes at the start of the file, where the program is */

TEST(mutated_files_are_refused_or_equal) {
    const char *number = getenv("ETCH_EXPORT_MUTATIONS");
    int rounds = number ? atoi(number) : 2000;
    uint64_t state = 88172645463325252u;
    ETCH_SCOPE {
        export_example *x = begin_example(0);
        export_example_to(x, path_of("f.etch"));
        etch_tensor *want = must(etch_call_one(x->f, x->in, x->nin));
        size_t n, m;
        char *whole = read_bytes(path_of("f.etch"), &n), *data = malloc(n + 64);
        for (int i = 0; i < rounds; i++)
            ETCH_SCOPE {
                memcpy(data, whole, n);
                /* Half of them in the header, where the program is. */
                size_t most = i % 2 ? n : HEADER;
                m = mutate(data, most, &state);
                memcpy(data + m, whole + most, n - most);
                m += n - most;
                write_bytes(path_of("mutated.etch"), data, m);
                taken_is_equal(path_of("mutated.etch"), x, want);
            }
        free(whole);
        free(data);
        end_example(x);
    }
}

/* The texts are changed, and the hash is made right again: nothing that is taken may touch memory
 * that is not its own, whatever it computes. */
static void call_what_is_taken(const char *path, etch_import_code code, etch_tensor *const *in) {
    etch_imported *f = etch_import(path, .code = code);
    etch_clear_error();
    if (!f) return;
    etch_tensor *out[EXAMPLE_OUT];
    int nin = etch_imported_num_inputs(f), nout = etch_imported_num_outputs(f);
    if (nin <= EXAMPLE_IN && nout <= EXAMPLE_OUT) (void)!etch_imported_call(f, in, nin, out, nout);
    etch_clear_error();
    etch_imported_free(f);
}

static void mutate_text(const char *path, const char *name, uint64_t *state) {
    etch_safetensors *f = must(etch_safetensors_load(path));
    const char *text = must((void *)etch_safetensors_text(f, name));
    size_t n = strlen(text), length = 1 + random_word(state) % 3, at = random_word(state) % n;
    char from[32], to[32];
    if (at + length > n) length = n - at;
    snprintf(from, sizeof from, "%.*s", (int)length, text + at);
    for (size_t i = 0; i < length; i++)
        to[i] = random_word(state) % 2 ? "0123456789 -,"[random_word(state) % 13]
                                       : text[random_word(state) % n];
    to[length] = 0;
    etch_safetensors_free(f);
    forge(path, name, from, to);
}

/* Formulas that are changed give other sizes, or none. */
TEST(forged_formulas_are_refused) {
    static const char *const forged[][3] = {
        {"dims 3\n0 0", "dims 3\n1 1", "size"},
        {"dims 3\n0 0 0", "dims 3\n0 9 0", "a number in its range"},
        {"formulas ", "formulas 1", "expected"},
    };
    int number;
    ETCH_SCOPE {
        assert_non_null(named("sizes", &number));
        export_example *x = begin_example(number);
        for (int i = 0; i < 3; i++) {
            export_example_to(x, path_of("f.etch"));
            forge(path_of("f.etch"), "etch_program", forged[i][0], forged[i][1]);
            import_fails(path_of("f.etch"), ETCH_ERR_FORMAT, forged[i][2]);
        }
        end_example(x);
    }
}

TEST(forged_files_do_no_harm) {
    const char *number = getenv("ETCH_EXPORT_MUTATIONS");
    int rounds = (number ? atoi(number) : 2000) / 20; /* each waits for the disk */
    uint64_t state = 1234567;
    static const int which[] = {3, 5};
    for (int i = 0; i < rounds; i++)
        ETCH_SCOPE {
            export_example *x = begin_example(which[i % 2]);
            if (i < 2) export_example_to(x, path_of(i ? "b.etch" : "a.etch"));
            etch_imported *good = must(etch_import(path_of(i % 2 ? "b.etch" : "a.etch")));
            assert_int_equal(etch_imported_save(good, path_of("forged.etch")), ETCH_OK);
            etch_imported_free(good);
            mutate_text(path_of("forged.etch"), i % 3 ? "etch_graph" : "etch_program", &state);
            if (i % 3 == 2) size_arguments(x, 2, 7);
            call_what_is_taken(path_of("forged.etch"),
                               i % 4 < 2 ? ETCH_CODE_EAGER : ETCH_CODE_OF_FILE, x->in);
            end_example(x);
        }
}

/* ---- files of earlier versions ---- */

#define VERSION_1 ETCH_TEST_SOURCE_DIR "/tests/data/version1.etch"

static etch_tensor *old_weights, *old_count;

/* What the file of version 1 was made of: a product, a scalar by a size, a weight that is
 * written. */
static etch_tensor *old_body(etch_tensor *x) {
    etch_tensor *count = etch_add_scalar_(old_count, 1);
    etch_tensor *y = etch_relu(etch_mm(x, old_weights));
    etch_tensor *mean = etch_mul_scalar(y, 1.0 / (double)etch_size(x, 0));
    return count ? etch_add(mean, count) : NULL;
}

/* test_export --write-version FILE: for the next version. */
static int write_version(const char *path) {
    etch_status status = ETCH_ERR_USER;
    ETCH_SCOPE {
        etch_function *f = etch_compile(old_body);
        etch_tensor *x = etch_ones(ETCH_F32, ETCH_SHAPE(5, 3));
        float w[6] = {1, -2, 3, -4, 5, 6};
        old_weights = etch_from_host(w, ETCH_F32, ETCH_SHAPE(3, 2));
        old_count = etch_full(ETCH_F32, ETCH_SHAPE(1), 10);
        etch_named_tensor names[2] = {{"weights", old_weights}, {"count", old_count}};
        etch_mark_dynamic(x, 0, 1, 100);
        status = etch_export(f, &x, 1, path, .names = names, .nnames = 2, .no_code = true);
        etch_function_free(f);
    }
    if (status != ETCH_OK) fprintf(stderr, "%s\n", etch_last_error());
    return status != ETCH_OK;
}

static void version_1_works(etch_import_code code) {
    etch_imported *f = must(etch_import(VERSION_1, .code = code));
    assert_string_equal(etch_imported_weight_name(f, 1), "weights");
    for (int rows = 1; rows <= 3; rows++)
        ETCH_SCOPE {
            etch_tensor *x = etch_full(ETCH_F32, ETCH_SHAPE(rows, 3), 2);
            const double *y = values(must(etch_imported_call_one(f, &x, 1)));
            /* 2 (1 + 3 + 5) and 2 (-2 - 4 + 6), by the rows; the count behind it */
            for (int r = 0; r < rows; r++) {
                assert_true(y[2 * r] == (float)(18.0f * (float)(1.0 / rows)) + (10 + rows));
                assert_true(y[2 * r + 1] == 10 + rows);
            }
        }
    etch_imported_free(f);
}

TEST(files_of_version_1_load) {
    ETCH_ON(ETCH_CPU) ETCH_SCOPE {
        version_1_works(ETCH_CODE_EAGER);
        if (have_jit()) version_1_works(ETCH_CODE_COMPILE);
        FAILED_WITH(!etch_import(VERSION_1), ETCH_ERR_UNSUPPORTED, "exported without");
    }
}

/* ---- looking ---- */

TEST(describe) {
    ETCH_SCOPE {
        export_example *x = begin_example(2);
        export_example_to(x, path_of("f.etch"));
        static char text[1 << 16], few[16];
        int64_t n = etch_export_describe(path_of("f.etch"), text, sizeof text);
        assert_int_equal(n, strlen(text));
        assert_non_null(strstr(text, "argument 0: f32[16, 1, 8, 8]"));
        assert_non_null(strstr(text, "argument 1: i64[16]"));
        assert_non_null(strstr(text, "'0.weight' f32[16, 1, 3, 3]"));
        assert_non_null(strstr(text, ", written\n"));
        assert_non_null(strstr(text, "convolution"));
        assert_int_equal(etch_export_describe(path_of("f.etch"), few, sizeof few), n);
        assert_int_equal(strlen(few), sizeof few - 1);
        FAILED_WITH(etch_export_describe("/nonexistent", few, 16) == -1, ETCH_ERR_IO,
                    "nonexistent");
        FAILED_WITH(etch_export_describe(NULL, few, 16) == -1, ETCH_ERR_NULL, "got NULL");
        size_t size;
        char *bytes = read_bytes(path_of("f.etch"), &size);
        bytes[size - 1] ^= 1;
        write_bytes(path_of("bad.etch"), bytes, size);
        free(bytes);
        FAILED_WITH(etch_export_describe(path_of("bad.etch"), few, 16) == -1, ETCH_ERR_FORMAT,
                    "etch_export_describe: ");
        import_fails(path_of("bad.etch"), ETCH_ERR_FORMAT, "etch_import: ");
        if (etch_export(x->f, x->in, x->nin, path_of("f.etch"), .no_code = true) != ETCH_OK)
            must(NULL);
        assert_true(etch_export_describe(path_of("f.etch"), text, sizeof text) > 0);
        assert_non_null(strstr(text, "code: none\n"));
        import_fails(path_of("f.etch"), ETCH_ERR_UNSUPPORTED, "exported without");
        end_example(x);
    }
}

EACH_TEST(.before = fresh_folder)

int main(int argc, char **argv) {
    if (argc > 3 && !strcmp(argv[1], "--child")) return child(argv + 2);
    if (argc > 2 && !strcmp(argv[1], "--write-version")) return write_version(argv[2]);
    if (argc > 2 && !strcmp(argv[1], "--write")) return write_files(argv[2]);
    if (!have_jit()) return files_without_jit();
    int failed = run_suite(argc, argv);
    remove_folder();
    return failed;
}
