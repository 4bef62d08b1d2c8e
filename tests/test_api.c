/* Every exported function has one class (core/ops/api.def, core/ops/ops.def), and behaves as its
 * class says inside a compiled function: reads are graph breaks, queries are not, state gives right
 * values.
 * Labels: quick. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/ops/op.h"
#include "tests/trace_support.h"

/* ---- prototypes that are fixed ---- */

#define FIXED(function, type)                                                                      \
    _Static_assert(__builtin_types_compatible_p(__typeof__(&function), type), #function)

FIXED(etch_reset, void (*)(etch_function *));
FIXED(etch_list_backends, const char *const *(*)(void));
FIXED(etch_on_compile_start, int64_t (*)(void (*)(void *), void *));
FIXED(etch_on_compile_end, int64_t (*)(void (*)(void *), void *));

/* ---- the table against the library ---- */

typedef enum api_class { API_QUERY, API_READ, API_STATE, API_OTHER } api_class;

static const struct {
    const char *name;
    api_class class;
} rows[] = {
#define API(symbol, class) {#symbol, API_##class},
#include "core/ops/api.def"
#undef API
};

enum { MOST = 1024 };
static char exported[MOST][64];
static bool claimed[MOST];
static int nexported;

static void read_symbols(void) {
    char line[256], name[128], type;
    FILE *p = popen("nm -D --defined-only '" ETCH_TEST_BINARY_DIR "/libetch.so'", "r");
    assert_non_null(p);
    nexported = 0;
    while (fgets(line, sizeof line, p)) {
        if (sscanf(line, "%*x %c %127s", &type, name) != 2) continue;
        if (!strncmp(name, "__odr_asan.", 11)) continue; /* the sanitizer adds them */
        assert_true(nexported < MOST);
        snprintf(exported[nexported++], sizeof exported[0], "%s", name);
    }
    assert_int_equal(pclose(p), 0); /* nm is there, and libetch.so built */
    assert_true(nexported > 100);
}

/* Each symbol is in one row of one table. */
static void claim(const char *name) {
    for (int i = 0; i < nexported; i++) {
        if (strcmp(exported[i], name) != 0) continue;
        if (claimed[i]) fail_msg("%s has two classes", name);
        claimed[i] = true;
        return;
    }
    fail_msg("%s has a row, but is not exported", name);
}

/* "etch_add(self, other); etch_add_alpha(...)": the names. */
static void claim_functions_of(const char *cfn) {
    char text[512], *rest = text;
    snprintf(text, sizeof text, "%s", cfn);
    for (char *one; (one = strsep(&rest, ";"));) {
        one += strspn(one, " ");
        one[strcspn(one, "(")] = 0;
        if (*one) claim(one);
    }
}

TEST(every_export_has_a_class) {
    read_symbols();
    for (int i = 0; i < COUNT_OF(rows); i++) claim(rows[i].name);
    for (int i = 0; i < OP_COUNT; i++) claim_functions_of(etch__ops[i].cfn);
    for (int i = 0; i < nexported; i++)
        if (!claimed[i])
            fail_msg("%s is exported, but has no row in core/ops/api.def", exported[i]);
}

/* ---- one call of each read and query ---- */

typedef void (*use_fn)(etch_tensor *y);

typedef struct use {
    const char *name;
    use_fn fn;
} use;

static char npy_path[] = "/tmp/etch-api-XXXXXX";
static const void *sink;
static volatile double number;

static etch_tensor *one_of(etch_tensor *y) { return etch_sum(y); }

static void use_item(etch_tensor *y) { number = etch_item(one_of(y)); }
static void use_item_int(etch_tensor *y) { number = (double)etch_item_int(one_of(y)); }
static void use_to_host(etch_tensor *y) {
    float to[12];
    assert_int_equal(etch_to_host(y, to, sizeof to), ETCH_OK);
    number = to[3];
}
static void use_data(etch_tensor *y) { sink = etch_data(y); }
static void use_data_mut(etch_tensor *y) {
    float *at = etch_data_mut(y);
    assert_non_null(at);
    at[2] = 9;
    etch_data_end(y); /* what touches y before is run at once */
}
static void use_flush(etch_tensor *y) { (void)y, assert_int_equal(etch_flush(), ETCH_OK); }
static void use_synchronize(etch_tensor *y) {
    (void)y;
    etch_synchronize(ETCH_CPU);
}
static void use_to_pinned(etch_tensor *y) { assert_non_null(etch_to_pinned(y)); }

static void use_graph_break(etch_tensor *y) {
    (void)y, assert_int_equal(etch_graph_break("x"), ETCH_OK);
}
static void use_format(etch_tensor *y) {
    char text[400];
    number = (double)etch_format(y, text, sizeof text);
}
static void use_equal(etch_tensor *y) { assert_true(etch_equal(y, y)); }
static void use_allclose(etch_tensor *y) { assert_true(etch_allclose(y, y, 0, 0, false)); }
static void use_bitwise_equal(etch_tensor *y) { assert_true(etch_bitwise_equal(y, y)); }
static void use_npy_save(etch_tensor *y) { assert_int_equal(etch_npy_save(npy_path, y), ETCH_OK); }
static void use_safetensors_save(etch_tensor *y) {
    const etch_named_tensor t = {"y", y};
    assert_int_equal(etch_safetensors_save(npy_path, &t, 1, NULL, 0), ETCH_OK);
}
static void use_module_save(etch_tensor *y) {
    etch_module *m = etch_nn_relu();
    assert_int_equal(etch_module_add_buffer(m, "y", y), ETCH_OK);
    assert_int_equal(etch_module_save(m, npy_path), ETCH_OK);
    etch_module_free(m);
}
/* What it reads is its own count of steps, not y. */
static void use_optim_save(etch_tensor *y) {
    etch_optim *o = etch_optim_sgd_with(NULL, NULL);
    assert_int_equal(etch_optim_add_with(o, &y, 1, NULL), 0);
    assert_int_equal(etch_optim_save(o, npy_path), ETCH_OK);
    etch_optim_free(o);
}

static etch_imported *imported; /* exported from the body below */
static etch_tensor *imported_body(etch_tensor *x) { return etch_abs(x); }

static void import_body(void) {
    ETCH_SCOPE {
        etch_function *f = etch_compile(imported_body);
        etch_tensor *x = arange_f32(3, 4);
        assert_int_equal(etch_export(f, &x, 1, npy_path, .no_code = true), ETCH_OK);
        etch_function_free(f);
    }
    imported = etch_import(npy_path, .code = ETCH_CODE_EAGER);
    assert_non_null(imported);
}

static void use_imported_call(etch_tensor *y) {
    etch_tensor *out;
    assert_int_equal(etch_imported_call(imported, &y, 1, &out, 1), ETCH_OK);
}
static void use_imported_call_one(etch_tensor *y) {
    assert_non_null(etch_imported_call_one(imported, &y, 1));
}
static void use_imported_save(etch_tensor *y) {
    (void)y, assert_int_equal(etch_imported_save(imported, npy_path), ETCH_OK);
}

/* Standard output goes nowhere meanwhile. */
static void use_print(etch_tensor *y) {
    fflush(stdout);
    int kept = dup(STDOUT_FILENO), null = open("/dev/null", O_WRONLY);
    dup2(null, STDOUT_FILENO);
    etch_status status = etch_print(y);
    fflush(stdout);
    dup2(kept, STDOUT_FILENO);
    close(kept), close(null);
    assert_int_equal(status, ETCH_OK);
}

static const use reads[] = {
    {"etch_item", use_item},
    {"etch_item_int", use_item_int},
    {"etch_to_host", use_to_host},
    {"etch_data", use_data},
    {"etch_data_mut", use_data_mut},
    {"etch_flush", use_flush},
    {"etch_print", use_print},
    {"etch_format", use_format},
    {"etch_equal", use_equal},
    {"etch_allclose", use_allclose},
    {"etch_npy_save", use_npy_save},
    {"etch_safetensors_save", use_safetensors_save},
    {"etch_module_save", use_module_save},
    {"etch_optim_save", use_optim_save},
    {"etch_bitwise_equal", use_bitwise_equal},
    {"etch_graph_break", use_graph_break},
    {"etch_synchronize", use_synchronize},
    {"etch_to_pinned", use_to_pinned},
    {"etch_imported_call", use_imported_call},
    {"etch_imported_call_one", use_imported_call_one},
    {"etch_imported_save", use_imported_save},
};

#define QUERY_OF(name, expression)                                                                 \
    static void query_##name(etch_tensor *y) { (void)y, number = (double)(expression); }
QUERY_OF(version, *etch_version())
QUERY_OF(status_name, *etch_status_name(ETCH_OK))
QUERY_OF(last_status, etch_last_status())
QUERY_OF(last_error, *etch_last_error())
QUERY_OF(dtype_name, *etch_dtype_name(ETCH_F32))
QUERY_OF(dtype_size, etch_dtype_size(ETCH_F32))
QUERY_OF(promote_types, etch_promote_types(ETCH_F32, ETCH_F64))
QUERY_OF(default_dtype, etch_default_dtype())
QUERY_OF(get_matmul_precision, etch_get_matmul_precision())
QUERY_OF(device_name, *etch_device_name(ETCH_CPU))
QUERY_OF(device_parse, etch_device_parse("cpu"))
QUERY_OF(device_of, etch_device_of(y))
QUERY_OF(current_device, etch_current_device())
QUERY_OF(dtype_of, etch_dtype_of(y))
QUERY_OF(ndim, etch_ndim(y))
QUERY_OF(size, etch_size(y, 0))
QUERY_OF(stride, etch_stride(y, -1))
QUERY_OF(sizes, etch_sizes(y).v[1])
QUERY_OF(numel, etch_numel(y))
QUERY_OF(storage_offset, etch_storage_offset(y))
QUERY_OF(is_contiguous, etch_is_contiguous(y))
QUERY_OF(shares_storage, etch_shares_storage(y, y))
QUERY_OF(is_deferred, etch_is_deferred(y))
QUERY_OF(is_pinned, etch_is_pinned(y))
QUERY_OF(num_threads, etch_num_threads())
QUERY_OF(memory, etch_memory().bytes_live)
QUERY_OF(list_backends, etch_list_backends()[0] != NULL)
QUERY_OF(counters, etch_counters().calls)
QUERY_OF(function_counters, etch_function_counters(NULL).calls)
QUERY_OF(op_find, etch_op_find("neg") != NULL)
QUERY_OF(op_name, *etch_op_name(etch_op_find("neg")))
QUERY_OF(op_schema, *etch_op_schema(etch_op_find("neg")))
QUERY_OF(op_list, etch_op_list(NULL) != NULL)
QUERY_OF(op_is, etch_op_is(etch_op_find("neg"), "neg"))
QUERY_OF(op_packet, *etch_op_packet(etch_op_find("neg")))
QUERY_OF(arg, etch_arg(etch_op_find("neg"), NULL, 0, "self") == NULL)
QUERY_OF(mode_ctx, etch_mode_ctx(NULL) == NULL)
QUERY_OF(mode_name, etch_mode_name(NULL) == NULL)
QUERY_OF(inference_enabled, etch_inference_enabled())
QUERY_OF(current_stance, etch_current_stance())
QUERY_OF(requires_grad, etch_requires_grad(y))
QUERY_OF(is_leaf, etch_is_leaf(y))
QUERY_OF(grad_of, etch_grad_of(y) == NULL)
QUERY_OF(grad_enabled, etch_grad_enabled())

#define QUERY(name)                                                                                \
    { "etch_" #name, query_##name }
static const use queries[] = {
    QUERY(version),
    QUERY(status_name),
    QUERY(last_status),
    QUERY(last_error),
    QUERY(dtype_name),
    QUERY(dtype_size),
    QUERY(promote_types),
    QUERY(default_dtype),
    QUERY(get_matmul_precision),
    QUERY(device_name),
    QUERY(device_parse),
    QUERY(device_of),
    QUERY(current_device),
    QUERY(dtype_of),
    QUERY(ndim),
    QUERY(size),
    QUERY(stride),
    QUERY(sizes),
    QUERY(numel),
    QUERY(storage_offset),
    QUERY(is_contiguous),
    QUERY(shares_storage),
    QUERY(is_deferred),
    QUERY(is_pinned),
    QUERY(num_threads),
    QUERY(memory),
    QUERY(list_backends),
    QUERY(counters),
    QUERY(function_counters),
    QUERY(op_find),
    QUERY(op_name),
    QUERY(op_schema),
    QUERY(op_list),
    QUERY(op_is),
    QUERY(op_packet),
    QUERY(arg),
    QUERY(mode_ctx),
    QUERY(mode_name),
    QUERY(inference_enabled),
    QUERY(current_stance),
    QUERY(requires_grad),
    QUERY(is_leaf),
    QUERY(grad_of),
    QUERY(grad_enabled),
};

static use_fn find_use(const use *uses, int n, const char *name) {
    for (int i = 0; i < n; i++)
        if (!strcmp(uses[i].name, name)) return uses[i].fn;
    fail_msg("%s: the test has no call of it", name);
    return NULL;
}

static use_fn current;

static etch_tensor *using_body(etch_tensor *x) {
    etch_tensor *y = etch_exp(x);
    current(y);
    return etch_neg(y);
}

enum { CALLS = 5 };

/* Calls the body with fn in its middle; the values are those of the plain body. */
static etch_counters_t count_use(const char *name, use_fn fn, const char *backend) {
    etch_counters_t c;
    current = fn;
    ETCH_SCOPE {
        etch_function *f = etch_compile(using_body, .backend = backend, .name = name);
        etch_tensor *x = arange_f32(3, 4), *expected = using_body(x);
        for (int call = 0; call < CALLS; call++) {
            etch_clear_error();
            etch_tensor *y = etch_call(f, x);
            if (!y || !etch_bitwise_equal(y, expected)) fail_msg("%s: wrong values", name);
        }
        c = etch_function_counters(f);
        etch_function_free(f);
    }
    etch_clear_error();
    assert_int_equal(etch_memory().tensors, 0);
    return c;
}

TEST(reads_break) {
    int fd = mkstemp(npy_path), checked = 0;
    assert_true(fd >= 0);
    close(fd);
    import_body();
    for (int i = 0; i < COUNT_OF(rows); i++) {
        if (rows[i].class != API_READ) continue;
        use_fn fn = find_use(reads, COUNT_OF(reads), rows[i].name);
        for (int b = 0; b < 2; b++) {
            etch_counters_t c = count_use(rows[i].name, fn, test_backends[b]);
            if (c.graph_breaks != CALLS || c.graphs != 2 || c.plan_runs != 2 * (CALLS - 1))
                fail_msg("%s: %lld breaks, %lld graphs, %lld runs", rows[i].name,
                         (long long)c.graph_breaks, (long long)c.graphs, (long long)c.plan_runs);
        }
        checked++;
    }
    assert_int_equal(checked, COUNT_OF(reads));
    etch_imported_free(imported);
    unlink(npy_path);
}

TEST(queries_do_not_break) {
    int checked = 0;
    for (int i = 0; i < COUNT_OF(rows); i++) {
        if (rows[i].class != API_QUERY) continue;
        use_fn fn = find_use(queries, COUNT_OF(queries), rows[i].name);
        etch_counters_t c = count_use(rows[i].name, fn, "eager");
        if (c.graph_breaks || c.graphs != 1 || c.plan_runs != CALLS - 1)
            fail_msg("%s: %lld breaks, %lld graphs, %lld runs", rows[i].name,
                     (long long)c.graph_breaks, (long long)c.graphs, (long long)c.plan_runs);
        checked++;
    }
    assert_int_equal(checked, COUNT_OF(queries));
}

/* ---- state changed inside a body ---- */

static int call_number;

static etch_tensor *default_dtype_body(etch_tensor *x) {
    etch_tensor *i = etch_to(x, ETCH_I32);
    etch_set_default_dtype(call_number % 2 ? ETCH_F64 : ETCH_F32);
    etch_tensor *a = etch_div_scalar(i, 3);
    etch_set_default_dtype(ETCH_F32);
    etch_tensor *b = etch_div_scalar(i, 7);
    return etch_add(a, b);
}

static etch_tensor *threads_body(etch_tensor *x) {
    etch_tensor *y = etch_exp(x);
    etch_set_num_threads(1 + call_number % 3);
    return etch_sum(y);
}

static etch_tensor *seed_body(etch_tensor *x) {
    etch_tensor *r = etch_randn(ETCH_F32, ETCH_SHAPE(3, 4));
    etch_manual_seed((uint64_t)call_number);
    etch_tensor *s = etch_rand(ETCH_F32, ETCH_SHAPE(3, 4));
    etch_tensor *t = etch_mul(r, s);
    return etch_add(t, x);
}

static etch_tensor *inference_body(etch_tensor *x) {
    etch_tensor *y = etch_exp(x);
    int outer = call_number % 2 ? etch_inference_begin() : -1;
    etch_tensor *z = etch_matmul(y, etch_t(y));
    if (call_number % 2) etch_inference_end(outer);
    return etch_neg(z);
}

static etch_status doubling_handler(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                                    etch_tensor **out, int nout) {
    (void)ctx, (void)nargs, (void)nout;
    if (!etch_op_is(op, "neg")) return ETCH_DECLINED;
    out[0] = etch_add(args[0].tensor, args[0].tensor);
    return out[0] ? ETCH_OK : etch_last_status();
}

static etch_mode *mode;

static etch_tensor *mode_body(etch_tensor *x) {
    etch_tensor *y = etch_exp(x);
    if (call_number % 3 == 2) etch_mode_push(mode);
    etch_tensor *z = etch_neg(y);
    if (call_number % 3 == 2) etch_mode_pop(mode);
    return etch_neg(z);
}

static etch_status nine_kernel(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                               etch_tensor *const *out, int nout) {
    (void)ctx, (void)op, (void)args, (void)nargs, (void)nout;
    return etch_fill_(out[0], 9) ? ETCH_OK : etch_last_status();
}

static etch_tensor *override_body(etch_tensor *x) {
    etch_tensor *y = etch_exp(x);
    etch_override *o = NULL;
    if (call_number % 3 == 1) o = etch_op_override(etch_op_find("sin"), "cpu", nine_kernel, NULL);
    etch_tensor *z = etch_sin(y);
    if (o) etch_flush();
    etch_op_override_undo(o);
    etch_tensor *w = etch_sin(z);
    return etch_add(w, y);
}

/* The same calls, compiled and with compiling off, in lockstep of their call numbers. */
static void check_state(etch_fn1 body, const char *backend) {
    enum { TIMES = 8 };
    ETCH_SCOPE {
        etch_tensor *x = arange_f32(3, 4), *expected[TIMES];
        etch_function *plain = etch_compile(body, .disable = true);
        etch_function *f = etch_compile(body, .backend = backend);
        etch_manual_seed(3);
        for (call_number = 0; call_number < TIMES; call_number++)
            assert_non_null(expected[call_number] = etch_call(plain, x));
        etch_manual_seed(3);
        for (call_number = 0; call_number < TIMES; call_number++) {
            etch_tensor *y = etch_call(f, x);
            if (!y || !etch_bitwise_equal(y, expected[call_number]))
                fail_msg("call %d: wrong values", call_number);
        }
        assert_true(etch_function_counters(f).plan_runs > 0);
        assert_int_equal(etch_default_dtype(), ETCH_F32);
        etch_function_free(f);
        etch_function_free(plain);
    }
    assert_int_equal(etch_memory().tensors, 0);
}

TEST(state_inside) {
    static const etch_fn1 bodies[] = {default_dtype_body, threads_body, seed_body,
                                      inference_body,     mode_body,    override_body};
    int threads = etch_num_threads();
    mode = etch_mode_new(doubling_handler, NULL, .name = "doubling");
    for (int i = 0; i < COUNT_OF(bodies); i++)
        for (int b = 0; b < 2; b++) check_state(bodies[i], test_backends[b]);
    etch_mode_free(mode);
    etch_set_num_threads(threads);
}
