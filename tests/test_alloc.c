/* Allocation failure, at every site in turn.
 *
 * A scenario is a small program that leaves bytes behind. It runs with the n-th allocation failing,
 * for n = 0, 1, ... until none is left to fail, each time on a thread of its own (so that what a
 * thread allocates once is allocated again). A run must either report out_of_memory or give the
 * bytes of the same program with compiling off; it must leave nothing behind, and the same program
 * must run right afterwards.
 * Labels: long optimised. */
#include <dirent.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/ops/schema.h"
#include "jit/loop/loop.h"
#include "tests/trace_support.h"
#include "tracer/learn/learn.h"

typedef struct probe {
    bool disable; /* with compiling off: what is expected */
    size_t used;
    uint8_t bytes[16384];
} probe;

typedef bool (*scenario_fn)(probe *p); /* false: some call failed, the error is set */

typedef struct outcome {
    scenario_fn run;
    int64_t fail_at, asked;
    bool done;
    etch_status status;
    char text[512];
    probe p;
} outcome;

/* ---- what scenarios leave behind ---- */

static bool put(probe *p, const etch_tensor *t) {
    if (!t) return false;
    size_t n = (size_t)etch_numel(t) * etch_dtype_size(etch_dtype_of(t));
    if (p->used + n > sizeof p->bytes) return false;
    if (etch_to_host(t, p->bytes + p->used, n) != ETCH_OK) return false;
    p->used += n;
    return true;
}

static bool put_bytes(probe *p, const void *from, size_t n) {
    memcpy(p->bytes + p->used, from, n);
    p->used += n;
    return true;
}

/* 4x4, all positive, so that every operator has a plain value for it. */
static etch_tensor *sample(int64_t rows, int64_t columns) {
    float data[64];
    for (int i = 0; i < 64; i++) data[i] = 0.25f + 0.125f * (float)i;
    return etch_from_host(data, ETCH_F32, ETCH_SHAPE(rows, columns));
}

/* ---- the harness ---- */

static void *run_on_thread(void *arg) {
    outcome *o = arg;
    etch_clear_error();
    etch_manual_seed(5);
    etch__fail_allocation(o->fail_at);
    int64_t scope = etch_scope_begin(); /* without it all else fails, for want of memory as well */
    o->done = o->run(&o->p);
    o->asked = etch__fail_allocation(-1);
    o->status = etch_last_status();
    snprintf(o->text, sizeof o->text, "%s", etch_last_error());
    etch_scope_end(scope);
    return NULL;
}

static void run_scenario(outcome *o, scenario_fn run, int64_t fail_at, bool disable) {
    pthread_t thread;
    memset(o, 0, sizeof *o);
    o->run = run, o->fail_at = fail_at, o->p.disable = disable;
    assert_int_equal(pthread_create(&thread, NULL, run_on_thread, o), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
}

static void assert_expected(const char *name, int64_t n, const outcome *got,
                            const outcome *expected) {
    if (got->p.used != expected->p.used ||
        memcmp(got->p.bytes, expected->p.bytes, got->p.used) != 0)
        fail_msg("%s: wrong bytes (allocation %lld)", name, (long long)n);
}

static void assert_nothing_left(const char *name, int64_t n, const etch_memory_stats *before) {
    etch_memory_stats now = etch_memory();
    if (now.tensors != before->tensors || now.bytes_live != before->bytes_live)
        fail_msg("%s: allocation %lld: %lld tensors and %lld bytes are left", name, (long long)n,
                 (long long)(now.tensors - before->tensors),
                 (long long)(now.bytes_live - before->bytes_live));
}

enum { MOST_SITES = 3000 };

/* Returns how many runs reported the error; at least one must have. */
static int64_t fail_everywhere(const char *name, scenario_fn run) {
    static outcome expected, got;
    int64_t reported = 0;
    etch_memory_stats before = etch_memory();
    run_scenario(&expected, run, -1, true);
    if (!expected.done) fail_msg("%s: %s", name, expected.text);
    run_scenario(&got, run, -1, false); /* what the process allocates once is there now */
    if (!got.done) fail_msg("%s: %s", name, got.text);
    assert_expected(name, -1, &got, &expected);
    assert_nothing_left(name, -1, &before);
    for (int64_t n = 0;; n++) {
        if (n >= MOST_SITES) fail_msg("%s: never ends", name);
        run_scenario(&got, run, n, false);
        bool failed = got.asked > n;
        if (got.done) assert_expected(name, n, &got, &expected);
        else if (!failed) fail_msg("%s: fails without a failing allocation: %s", name, got.text);
        else if (got.status != ETCH_ERR_OUT_OF_MEMORY)
            fail_msg("%s: allocation %lld: %s: %s", name, (long long)n,
                     etch_status_name(got.status), got.text);
        reported += !got.done;
        assert_nothing_left(name, n, &before);
        if (!failed) break;
        run_scenario(&got, run, -1, false);
        if (!got.done)
            fail_msg("%s: after allocation %lld: %s: %s", name, (long long)n,
                     etch_status_name(got.status), got.text);
        assert_expected(name, n, &got, &expected);
        assert_nothing_left(name, n, &before);
    }
    return reported;
}

#define FAIL_EVERYWHERE(scenario) assert_true(fail_everywhere(#scenario, scenario) > 0)

/* ---- tensors ---- */

static bool creates(probe *p) {
    static float memory[4] = {1, 2, 3, 4};
    return put(p, sample(4, 4)) && put(p, etch_zeros(ETCH_F64, ETCH_SHAPE(3))) &&
           put(p, etch_full(ETCH_I32, ETCH_SHAPE(2, 2), 7)) &&
           put(p, etch_arange(ETCH_I64, 0, 5, 1)) && put(p, etch_randn(ETCH_F32, ETCH_SHAPE(8))) &&
           put(p, etch_wrap_host(memory, ETCH_F32, ETCH_SHAPE(4), NULL, NULL));
}

static bool deep_scopes(probe *p, int depth) {
    int64_t scope = etch_scope_begin();
    if (scope < 0) return false;
    etch_tensor *x = sample(2, 2);
    bool ok = x && (depth == 0 || deep_scopes(p, depth - 1)) && put(p, x);
    etch_scope_end(scope);
    return ok;
}

static bool opens_scopes(probe *p) { return deep_scopes(p, 20); }

static bool keeps(probe *p) {
    etch_tensor *kept[20] = {NULL};
    int64_t scope = etch_scope_begin();
    if (scope < 0) return false;
    for (int i = 0; i < 20; i++) {
        etch_tensor *x = sample(2, 2);
        etch_tensor *y = x ? etch_add_scalar(x, i) : NULL;
        kept[i] = y ? etch_keep(y) : NULL;
    }
    etch_scope_end(scope);
    for (int i = 0; i < 20; i++)
        if (!put(p, kept[i])) return false;
    return true;
}

static bool compares(probe *p) {
    etch_tensor *x = sample(4, 4);
    etch_tensor *t = x ? etch_t(x) : NULL;
    etch_tensor *y = t ? etch_clone(t) : NULL;
    if (!y) return false;
    bool same[3] = {etch_equal(t, y), etch_bitwise_equal(t, y),
                    etch_allclose(t, y, 1e-6, 1e-6, false)};
    if (!same[0] || !same[1] || !same[2]) return false;
    return put(p, t) && put_bytes(p, same, sizeof same);
}

static bool formats(probe *p) {
    char text[512];
    etch_tensor *x = sample(4, 4);
    if (!x) return false;
    int64_t n = etch_format(x, text, sizeof text);
    return n > 0 && put_bytes(p, text, (size_t)n);
}

static bool npy(probe *p) {
    char path[] = "/tmp/etch-alloc-XXXXXX";
    int fd = mkstemp(path);
    if (fd < 0) return false;
    close(fd);
    etch_tensor *x = sample(4, 4);
    etch_tensor *t = x ? etch_t(x) : NULL;
    bool ok = t && etch_npy_save(path, t) == ETCH_OK && put(p, etch_npy_load(path));
    unlink(path);
    return ok;
}

static bool takes_lists(probe *p) {
    etch_tensor *list[12];
    for (int i = 0; i < 12; i++)
        if (!(list[i] = sample(2, 2))) return false;
    etch_value args[] = {{.tag = ETCH_VALUE_TENSORS, .tensors = {list, 12}}};
    etch_tensor *out;
    const etch_op *op = etch_op_find("cat");
    return op && etch_op_call(op, args, 1, &out, 1) == ETCH_OK && put(p, out);
}

/* Large enough for the pool; the number of threads before decides whether one has to be made. */
static bool starts_pool(probe *p) {
    if (etch_set_num_threads(1) != ETCH_OK || etch_set_num_threads(2) != ETCH_OK) return false;
    etch_tensor *x = etch_ones(ETCH_F32, ETCH_SHAPE(512, 512));
    etch_tensor *y = x ? etch_exp(x) : NULL;
    etch_tensor *z = y ? etch_mm(y, y) : NULL;
    etch_tensor *m = z ? etch_sum_dim(z, ETCH_DIMS(0, 1), false) : NULL;
    return put(p, m);
}

TEST(tensors) {
    FAIL_EVERYWHERE(creates);
    FAIL_EVERYWHERE(opens_scopes);
    FAIL_EVERYWHERE(keeps);
    FAIL_EVERYWHERE(compares);
    FAIL_EVERYWHERE(formats);
    FAIL_EVERYWHERE(npy);
    FAIL_EVERYWHERE(takes_lists);
    int threads = etch_num_threads();
    FAIL_EVERYWHERE(starts_pool);
    etch_set_num_threads(threads);
}

/* ---- each operator of the table ---- */

static const etch_op *current_op;

static bool is_op(const char *name) { return !strcmp(etch_op_name(current_op), name); }

static bool takes_bits(void) { return !strncmp(etch_op_name(current_op), "bitwise", 7); }

/* An index of zeros: a vector where the operator has one along a dimension. */
static etch_tensor *index_argument(void) {
    bool vector = !strncmp(etch_op_name(current_op), "index", 5);
    return etch_zeros(ETCH_I64, vector ? ETCH_SHAPE(4) : ETCH_SHAPE(4, 4));
}

/* The scales of a weight of 8 bits, and that weight. */
static etch_tensor *quantized(bool scales) {
    etch_tensor *w = sample(4, 4), *s = w ? etch_quantize_scales(w, 8, 0) : NULL;
    return scales || !s ? s : etch_quantize_weight(w, s, 8);
}

static etch_tensor *tensor_argument(const char *name, int i) {
    if (!strcmp(name, "scales")) return quantized(true);
    if (!strcmp(name, "qweight") || is_op("dequantize_weight")) return quantized(false);
    if (!strncmp(name, "ind", 3) || is_op("one_hot")) return index_argument();
    if (is_op("select_scatter") && i == 1) {
        etch_tensor *x = sample(1, 4);
        return x ? etch_view(x, ETCH_SHAPE(4)) : NULL;
    }
    if (takes_bits()) {
        etch_tensor *x = sample(4, 4);
        return x ? etch_to(x, ETCH_I32) : NULL;
    }
    if ((is_op("where.self") && i == 0) || !strcmp(name, "mask")) {
        etch_tensor *x = sample(4, 4);
        return x ? etch_gt_scalar(x, 1) : NULL;
    }
    if (!strcmp(name, "seed")) return etch_full(ETCH_F64, ETCH_SHAPE(1), 0.25);
    if (is_op("dot") || (is_op("mv") && i == 1)) {
        etch_tensor *x = sample(1, 4);
        return x ? etch_view(x, ETCH_SHAPE(4)) : NULL;
    }
    if (is_op("bmm")) {
        etch_tensor *x = sample(8, 4);
        return x ? etch_view(x, ETCH_SHAPE(2, 4, 4)) : NULL;
    }
    if (is_op("convolution") || is_op("conv2d") || is_op("convolution_backward_input") ||
        is_op("convolution_backward_weight") || strstr(current_op->name, "pool2d")) {
        etch_tensor *x = sample(4, 4);
        return x ? etch_view(x, ETCH_SHAPE(1, 1, 4, 4)) : NULL;
    }
    return sample(4, 4);
}

/* false: no memory. */
static bool sample_argument(const schema_arg *a, int i, etch_tensor **t, etch_value *v) {
    bool size = !strcmp(a->name, "size") || !strcmp(a->name, "shape");
    switch (a->type) {
    case ARG_TENSOR:
        *v = (etch_value){
            a->name, ETCH_VALUE_TENSOR, {.tensor = t[i] = tensor_argument(a->name, i)}};
        return t[i] != NULL;
    case ARG_TENSOR_OPT:
        if (is_op("clamp.Tensor")) {
            *v = (etch_value){a->name, ETCH_VALUE_TENSOR, {.tensor = t[i] = sample(4, 4)}};
            return t[i] != NULL;
        }
        *v = (etch_value){a->name, ETCH_VALUE_NONE, {.i = 0}};
        return true;
    case ARG_BOOL: *v = (etch_value){a->name, ETCH_VALUE_BOOL, {.b = false}}; return true;
    case ARG_TENSORS:
        t[0] = sample(4, 4), t[1] = sample(is_op("stack") ? 4 : 2, 4);
        *v = (etch_value){a->name, ETCH_VALUE_TENSORS, {.tensors = {t, 2}}};
        return t[0] && t[1];
    case ARG_SCALAR:
        *v = (etch_value){a->name, ETCH_VALUE_REAL, {.d = 2 + 4 * i}};
        if (!strcmp(a->name, "dropout_p")) v->d = 0.5;
        if (takes_bits()) *v = (etch_value){a->name, ETCH_VALUE_INT, {.i = 3}};
        return true;
    case ARG_INTS:
    case ARG_INTS_OPT:
        *v = (etch_value){a->name, ETCH_VALUE_INTS, {.ints = ETCH_DIMS(1, 0)}};
        if (!strcmp(a->name, "stride") || !strcmp(a->name, "dilation")) v->ints = ETCH_SHAPE(1);
        if (is_op("as_strided")) v->ints = ETCH_SHAPE(8, 1);
        if (!strcmp(a->name, "padding")) v->ints = ETCH_SHAPE(0);
        if (!strcmp(a->name, "normalized_shape")) v->ints = ETCH_SHAPE(4);
        if (!strcmp(a->name, "input_size")) v->ints = ETCH_SHAPE(1, 1, 7, 7);
        if (is_op("avg_pool2d_backward") && a->name[0] == 'i') v->ints = ETCH_SHAPE(1, 1, 4, 4);
        if (!strcmp(a->name, "kernel_size")) v->ints = ETCH_SHAPE(1);
        if (!strcmp(a->name, "weight_size")) v->ints = ETCH_SHAPE(1, 1, 1, 1);
        if (is_op("_attention_kept")) v->ints = ETCH_SHAPE(1, 4, 4);
        else if (size) v->ints = is_op("expand") ? ETCH_SHAPE(4, 4) : ETCH_SHAPE(2, 8);
        return true;
    default: {
        bool one = !strcmp(a->name, "dim1") || !strcmp(a->name, "index") ||
                   !strcmp(a->name, "groups") || !strcmp(a->name, "step") ||
                   !strcmp(a->name, "num_classes");
        *v = (etch_value){a->name, ETCH_VALUE_INT, {.i = one}};
        if (!strcmp(a->name, "bits")) v->i = 8;
        if (!strcmp(a->name, "columns")) v->i = 4;
        return true;
    }
    }
}

static etch_tensor *call_current(etch_tensor *const *given) {
    const op_schema *s = etch__schema(current_op->id);
    etch_tensor *t[SCHEMA_MAX_ARGS] = {NULL}, *out = NULL;
    etch_value v[SCHEMA_MAX_ARGS];
    int n = 0;
    for (int i = 0; i < s->nargs; i++) {
        if (s->args[i].has_default) continue;
        if (!sample_argument(&s->args[i], i, t, &v[n])) return NULL;
        if (given && v[n].tag == ETCH_VALUE_TENSOR) v[n].tensor = given[i];
        if (given && v[n].tag == ETCH_VALUE_TENSORS) v[n].tensors.items = given;
        n++;
    }
    return etch_op_call(current_op, v, n, &out, 1) == ETCH_OK ? out : NULL;
}

static bool calls_operator(probe *p) {
    etch_tensor *out = call_current(NULL);
    return is_op("empty.memory_format") ? out != NULL : put(p, out);
}

static etch_tensor *operator_body(etch_tensor *x) {
    etch_tensor *out = call_current(NULL);
    if (!out) return NULL;
    if (is_op("empty.memory_format")) return etch_neg(x);
    etch_tensor *y = etch_neg(x);
    return y ? out : NULL;
}

static bool calls_compiled_operator(probe *p) {
    etch_function *f = etch_compile(operator_body, .disable = p->disable, .backend = "eager");
    bool ok = f != NULL;
    for (int call = 0; ok && call < 3; call++) {
        etch_tensor *x = sample(2, 2);
        ok = x && put(p, etch_call(f, x));
    }
    etch_function_free(f);
    return ok;
}

TEST(operators) {
    int count;
    const etch_op *const *ops = etch_op_list(&count);
    assert_true(count > 80);
    for (int i = 0; i < count; i++) {
        current_op = ops[i];
        assert_true(fail_everywhere(etch_op_name(current_op), calls_operator) > 0);
    }
}

TEST(compiled_operators) {
    int count;
    const etch_op *const *ops = etch_op_list(&count);
    for (int i = 0; i < count; i += 1) {
        current_op = ops[i];
        assert_true(fail_everywhere(etch_op_name(current_op), calls_compiled_operator) > 0);
    }
}

/* ---- compiled functions ---- */

static const char *backend_name;
static int call_number;
static etch_tensor *kept, *captured;

#define COMPILE(p, fn, ...)                                                                        \
    etch_compile(fn, .disable = (p)->disable, .backend = backend_name, __VA_ARGS__)

/* Calls f on fresh inputs and frees it; f may be NULL. */
static bool call_times(probe *p, etch_function *f, int times) {
    bool ok = f != NULL;
    for (call_number = 0; ok && call_number < times; call_number++) {
        int64_t scope = etch_scope_begin();
        if (scope < 0) {
            ok = false;
            break;
        }
        etch_tensor *x = sample(4, 4);
        ok = x && put(p, etch_call(f, x)) && put(p, x);
        if (ok && kept) ok = put(p, kept);
        etch_release(kept);
        kept = NULL;
        etch_scope_end(scope);
    }
    etch_function_free(f);
    return ok;
}

static etch_tensor *chain_body(etch_tensor *x) {
    etch_tensor *y = etch_mul_scalar(x, 1.5);
    etch_tensor *z = etch_exp(y);
    etch_tensor *t = etch_t(z);
    etch_tensor *m = etch_mm(t, x);
    etch_tensor *s = etch_sum_dim(m, ETCH_DIMS(1), true);
    return etch_sub(m, s);
}
static bool chain(probe *p) { return call_times(p, COMPILE(p, chain_body, .name = "chain"), 4); }

static etch_tensor *break_body(etch_tensor *x) {
    etch_tensor *y = etch_mul(x, x);
    etch_tensor *s = etch_sum(y);
    double v = etch_item(s);
    if (isnan(v)) return NULL;
    etch_tensor *z = etch_add_scalar(y, v);
    if (etch_graph_break("a test") != ETCH_OK) return NULL;
    return etch_sqrt(z);
}
static bool breaks(probe *p) { return call_times(p, COMPILE(p, break_body, .name = "breaks"), 4); }

static etch_tensor *diverge_body(etch_tensor *x) {
    etch_tensor *y = etch_mul_scalar(x, 2);
    etch_tensor *z = call_number % 2 ? etch_neg(y) : etch_abs(y);
    return etch_add(z, x);
}
static bool diverges(probe *p) {
    return call_times(p, COMPILE(p, diverge_body, .name = "diverges"), 6);
}

static etch_tensor *late_body(etch_tensor *x) {
    etch_tensor *y = etch_exp(x);
    etch_tensor *z = etch_neg(y);
    etch_tensor *s = etch_sum(z);
    double v = etch_item(s);
    if (isnan(v)) return NULL;
    return call_number % 2 ? etch_add_scalar(y, v) : etch_mul_scalar(x, v);
}
static bool late_use(probe *p) { return call_times(p, COMPILE(p, late_body, .name = "late"), 6); }

static bool fullgraph(probe *p) {
    return call_times(p, COMPILE(p, chain_body, .name = "full", .fullgraph = true), 4);
}

static etch_tensor *full_diverge_body(etch_tensor *x) { return diverge_body(x); }
static bool fullgraph_diverges(probe *p) {
    return call_times(p, COMPILE(p, full_diverge_body, .name = "full2", .fullgraph = true), 6);
}

static etch_tensor *inplace_body(etch_tensor *x) {
    etch_tensor *y = etch_exp(x);
    if (!etch_add_(x, y)) return NULL;
    etch_tensor *v = etch_slice(x, 0, 0, 2, 1);
    if (!v || !etch_mul_scalar_(v, 3)) return NULL;
    return etch_add(x, y);
}
static bool inplace(probe *p) { return call_times(p, COMPILE(p, inplace_body, .name = "in"), 4); }

static bool replays(probe *p) {
    return call_times(p, COMPILE(p, chain_body, .name = "replays", .replay = true), 4) &&
           call_times(p, COMPILE(p, inplace_body, .name = "replays", .replay = true), 4);
}

/* The thread in the background meets the failing allocation, too: then there is no code yet. */
static bool in_background(probe *p) {
    etch_function *f = COMPILE(p, chain_body, .name = "background", .background = true);
    etch_tensor *x = sample(4, 4);
    bool ok = f && x;
    for (int i = 0; ok && i < 3; i++) {
        ok = put(p, etch_call(f, x));
        etch__background_wait();
    }
    etch_function_free(f);
    return ok;
}

static bool marks(probe *p) {
    etch_function *f = COMPILE(p, chain_body, .name = "marks");
    bool ok = f != NULL;
    for (int i = 0; ok && i < 3; i++) {
        etch_tensor *x = sample(4, 4);
        ok = x && etch_mark_dynamic(x, 0, 2, 9) == ETCH_OK && etch_mark_static(x, 1) == ETCH_OK &&
             put(p, etch_call(f, x));
    }
    etch_function_free(f);
    return ok;
}

/* The product needs copies of its own, after memory of the input was written. */
static etch_tensor *inplace_product_body(etch_tensor *x) {
    etch_tensor *wide = etch_expand(x, ETCH_SHAPE(80, 80));
    if (!wide || !etch_add_scalar_(x, 1)) return NULL;
    etch_tensor *m = etch_mm(wide, wide);
    if (!m || !etch_mul_scalar_(x, 2)) return NULL;
    etch_tensor *s = etch_sum_dim(m, ETCH_DIMS(1), false);
    etch_tensor *y = s ? etch_slice(s, 0, 0, 4, 1) : NULL;
    return y ? etch_add_scalar(y, 1) : NULL;
}
static bool inplace_product(probe *p) {
    etch_function *f = COMPILE(p, inplace_product_body, .name = "product");
    bool ok = f != NULL;
    for (int call = 0; ok && call < 4; call++) {
        etch_tensor *x = etch_full(ETCH_F32, ETCH_SHAPE(80, 1), call + 1);
        ok = x && put(p, etch_call(f, x)) && put(p, x);
    }
    etch_function_free(f);
    return ok;
}

static etch_tensor *loop_body(etch_tensor *x) {
    etch_tensor *y = x;
    for (int i = 0; i < 4; i++) {
        etch_tensor *z = etch_mul_scalar(y, 0.5);
        etch_tensor *s = etch_sum(z);
        if (isnan(etch_item(s))) return NULL;
        y = etch_add(z, s);
    }
    return y;
}
static bool loops(probe *p) { return call_times(p, COMPILE(p, loop_body, .name = "loops"), 3); }

static etch_function *inner;
static etch_tensor *nested_body(etch_tensor *x) {
    etch_tensor *y = etch_add_scalar(x, 1);
    etch_tensor *z = y ? etch_call(inner, y) : NULL;
    return z ? etch_add(z, y) : NULL;
}
static bool nested_with(probe *p, bool disable) {
    inner = etch_compile(chain_body, .name = "inner", .backend = backend_name,
                         .disable = p->disable || disable);
    bool ok = inner && call_times(p, COMPILE(p, nested_body, .name = "outer"), 4);
    etch_function_free(inner);
    return ok;
}
static bool nested(probe *p) { return nested_with(p, false); }
static bool nested_disabled(probe *p) { return nested_with(p, true); }

static etch_function *resetting;
static etch_tensor *reset_body(etch_tensor *x) {
    etch_tensor *y = etch_mul_scalar(x, 2);
    if (call_number == 2) etch_reset(resetting);
    return y ? etch_sin(y) : NULL;
}
static bool resets(probe *p) {
    resetting = COMPILE(p, reset_body, .name = "resets");
    return call_times(p, resetting, 5);
}

static etch_tensor *keep_body(etch_tensor *x) {
    etch_tensor *y = etch_exp(x);
    etch_tensor *z = etch_t(y);
    if (call_number % 3 == 2) kept = etch_retain(z);
    return etch_neg(y);
}
static bool keeps_inside(probe *p) {
    return call_times(p, COMPILE(p, keep_body, .name = "keeps"), 6);
}

static etch_tensor *capture_body(etch_tensor *x) {
    etch_tensor *y = etch_add(x, captured);
    return etch_mul(y, captured);
}
static bool captures(probe *p) {
    captured = sample(4, 4);
    return captured && call_times(p, COMPILE(p, capture_body, .name = "captures"), 4);
}

static etch_tensor *data_body(etch_tensor *x) {
    etch_tensor *y = etch_mul_scalar(x, 2);
    float *at = etch_data_mut(y);
    if (!at) return NULL;
    at[1] = 5;
    etch_tensor *z = etch_add_scalar(y, 1);
    etch_data_end(y);
    return z ? etch_exp(z) : NULL;
}
static bool raw_data(probe *p) { return call_times(p, COMPILE(p, data_body, .name = "data"), 4); }

static etch_tensor *random_body(etch_tensor *x) {
    etch_tensor *r = etch_randn(ETCH_F32, ETCH_SHAPE(4, 4));
    return etch_add(x, r);
}
static bool randoms(probe *p) {
    return call_times(p, COMPILE(p, random_body, .name = "random"), 4);
}

static etch_tensor *scopes_body(etch_tensor *x) {
    etch_tensor *y = x;
    for (int i = 0; i < 12 && y; i++) {
        int64_t scope = etch_scope_begin();
        etch_tensor *z = etch_add_scalar(y, 1);
        y = z ? etch_mul_scalar(z, 0.5) : NULL;
        y = y && scope >= 0 ? etch_keep(y) : NULL;
        etch_scope_end(scope);
    }
    return y;
}
static bool scopes_inside(probe *p) {
    return call_times(p, COMPILE(p, scopes_body, .name = "scopes"), 3);
}

static etch_status general_body(void *ctx, etch_tensor *const *in, int nin, etch_tensor **out,
                                int nout) {
    (void)ctx, (void)nin, (void)nout;
    out[0] = etch_exp(in[0]);
    out[1] = out[0] ? etch_t(out[0]) : NULL;
    out[2] = in[0];
    return out[1] ? ETCH_OK : etch_last_status();
}
static bool general(probe *p) {
    etch_function *f = COMPILE(p, general_body, .name = "general");
    bool ok = f != NULL;
    for (int call = 0; ok && call < 4; call++) {
        etch_tensor *x = sample(4, 4), *out[3];
        ok = x && etch_call_n(f, &x, 1, out, 3) == ETCH_OK && put(p, out[0]) && put(p, out[1]) &&
             put(p, out[2]);
    }
    etch_function_free(f);
    return ok;
}

static bool stable(probe *p) {
    return call_times(p, COMPILE(p, chain_body, .name = "stable", .stable_after = 2), 4);
}

/* Sites live as long as the program, so each run takes another. */
static bool call_site(probe *p) {
    static etch_call_site sites[4 * MOST_SITES];
    static int used;
    etch_call_site *site = &sites[used++ % COUNT_OF(sites)];
    site->file = __FILE__, site->line = __LINE__;
    bool ok = true;
    for (int call = 0; ok && call < 3; call++) {
        etch_function *f = etch_site_fn1(site, random_body);
        etch_tensor *x = sample(4, 4);
        ok = f && x && put(p, p->disable ? random_body(x) : etch_call(f, x));
        /* Twice: the first may be the one without memory. */
        for (int i = 0; f && i < 2 && (call == 2 || !ok); i++) etch_reset(f);
    }
    return ok;
}

/* Sizes that become run-time extents, then more of them. */
static bool dynamic_sizes(probe *p) {
    etch_function *f = COMPILE(p, chain_body, .name = "dynamic");
    bool ok = f != NULL;
    for (int call = 0; ok && call < 6; call++) {
        int64_t n = 2 + call % 4;
        etch_tensor *x = sample(n, n);
        ok = x && put(p, etch_call(f, x));
    }
    etch_function_free(f);
    return ok;
}

static etch_status doubles(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                           etch_tensor **out, int nout) {
    (void)ctx, (void)nargs, (void)nout;
    if (!etch_op_is(op, "exp")) return ETCH_DECLINED;
    out[0] = etch_add(args[0].tensor, args[0].tensor);
    return out[0] ? ETCH_OK : etch_last_status();
}

static etch_mode *mode;
static etch_tensor *mode_body(etch_tensor *x) {
    etch_tensor *y = etch_mul_scalar(x, 2);
    if (!y || etch_mode_push(mode) != ETCH_OK) return NULL;
    etch_tensor *z = etch_exp(y);
    if (etch_mode_pop(mode) != ETCH_OK) return NULL;
    return z ? etch_exp(z) : NULL;
}
static bool modes(probe *p) {
    mode = etch_mode_new(doubles, NULL, .name = "doubles");
    bool ok = mode && call_times(p, COMPILE(p, mode_body, .name = "mode"), 4);
    if (ok && (ok = etch_mode_push(mode) == ETCH_OK)) {
        ok = call_times(p, COMPILE(p, chain_body, .name = "under"), 2);
        etch_mode_pop(mode);
    }
    etch_mode_free(mode);
    return ok;
}

static etch_status nine(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                        etch_tensor *const *out, int nout) {
    (void)ctx, (void)op, (void)args, (void)nargs, (void)nout;
    return etch_fill_(out[0], 9) ? ETCH_OK : etch_last_status();
}

static bool overrides(probe *p) {
    etch_override *o = etch_op_override(etch_op_find("exp"), "cpu", nine, NULL);
    bool ok = o && call_times(p, COMPILE(p, chain_body, .name = "override"), 3);
    etch_op_override_undo(o);
    return ok;
}

static etch_status like_first(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                              etch_tensor_spec *out, int nout) {
    (void)ctx, (void)op, (void)nargs, (void)nout;
    out[0].dtype = etch_dtype_of(args[0].tensor);
    out[0].sizes = etch_sizes(args[0].tensor);
    return ETCH_OK;
}

static etch_tensor *custom_body(etch_tensor *x) {
    etch_tensor *y = etch_neg(x), *z = NULL;
    etch_value args[] = {{NULL, ETCH_VALUE_TENSOR, {.tensor = y}}};
    if (!y || etch_op_call(etch_op_find("alloc::nine"), args, 1, &z, 1) != ETCH_OK) return NULL;
    return etch_add(z, y);
}
static bool custom(probe *p) { return call_times(p, COMPILE(p, custom_body, .name = "custom"), 4); }

static etch_tensor *custom_diverge_body(etch_tensor *x) {
    etch_tensor *y = custom_body(x);
    return call_number % 2 ? etch_neg(y) : etch_abs(y);
}
static bool custom_diverges(probe *p) {
    return call_times(p, COMPILE(p, custom_diverge_body, .name = "custom2"), 5);
}

static void no_callback(void *ctx) { (void)ctx; }
static bool callbacks(probe *p) {
    int64_t start = etch_on_compile_start(no_callback, NULL);
    int64_t end = start ? etch_on_compile_end(no_callback, NULL) : 0;
    bool ok = end && call_times(p, COMPILE(p, random_body, .name = "called"), 3);
    etch_callback_remove(start);
    etch_callback_remove(end);
    return ok;
}

static bool logs(probe *p) {
    if (etch_set_logs("all") != ETCH_OK) return false;
    bool ok = call_times(p, COMPILE(p, late_body, .name = "logged"), 6);
    return etch_set_logs("") == ETCH_OK && ok;
}

static void all_functions(void) {
    FAIL_EVERYWHERE(chain);
    FAIL_EVERYWHERE(breaks);
    FAIL_EVERYWHERE(diverges);
    FAIL_EVERYWHERE(late_use);
    FAIL_EVERYWHERE(fullgraph);
    FAIL_EVERYWHERE(fullgraph_diverges);
    FAIL_EVERYWHERE(inplace);
    FAIL_EVERYWHERE(inplace_product);
    FAIL_EVERYWHERE(loops);
    FAIL_EVERYWHERE(nested);
    FAIL_EVERYWHERE(nested_disabled);
    FAIL_EVERYWHERE(resets);
    FAIL_EVERYWHERE(keeps_inside);
    FAIL_EVERYWHERE(captures);
    FAIL_EVERYWHERE(raw_data);
    FAIL_EVERYWHERE(randoms);
    FAIL_EVERYWHERE(scopes_inside);
    FAIL_EVERYWHERE(general);
    FAIL_EVERYWHERE(stable);
    FAIL_EVERYWHERE(dynamic_sizes);
    FAIL_EVERYWHERE(modes);
    FAIL_EVERYWHERE(overrides);
    FAIL_EVERYWHERE(custom);
    FAIL_EVERYWHERE(custom_diverges);
    FAIL_EVERYWHERE(callbacks);
    FAIL_EVERYWHERE(logs);
    FAIL_EVERYWHERE(replays);
    FAIL_EVERYWHERE(in_background);
    FAIL_EVERYWHERE(marks);
}

TEST(functions) {
    backend_name = "eager";
    all_functions();
    FAIL_EVERYWHERE(call_site);
}

TEST(native_functions) {
    backend_name = "native";
    all_functions();
}

/* ---- kernels from the disk cache and from the helper ---- */

static char cache_folder[] = "/tmp/etch-test-cache-XXXXXX";

static void empty_cache(void) {
    DIR *d = opendir(cache_folder);
    for (struct dirent *e; d && (e = readdir(d));)
        if (strstr(e->d_name, ".so")) unlinkat(dirfd(d), e->d_name, 0);
    if (d) closedir(d);
}

/* Objects that a compile began and did not finish. */
static int unfinished_objects(void) {
    int n = 0;
    DIR *d = opendir(cache_folder);
    for (struct dirent *e; d && (e = readdir(d));)
        n += !strncmp(e->d_name, "tmp-", 4) && strstr(e->d_name, ".so");
    if (d) closedir(d);
    return n;
}

static etch_tensor *one_kernel_body(etch_tensor *x) {
    etch_tensor *y = etch_mul_scalar(x, 0.75);
    return etch_sub(y, x);
}

static bool from_disk(probe *p) {
    etch__kernels_forget();
    return call_times(p, COMPILE(p, chain_body, .name = "disk"), 2);
}

static bool from_helper(probe *p) {
    etch__kernels_forget();
    empty_cache();
    return call_times(p, COMPILE(p, one_kernel_body, .name = "helper"), 2);
}

static bool from_helper_with_logs(probe *p) {
    bool ok = etch_set_logs("output_code,cache,fusion") == ETCH_OK && from_helper(p);
    return etch_set_logs("") == ETCH_OK && ok;
}

TEST(kernels) {
    backend_name = "native";
    int64_t compiled = etch_counters().kernels_compiled, hits = etch_counters().cache_hits;
    FAIL_EVERYWHERE(from_disk);
    assert_true(etch_counters().cache_hits > hits);
    FAIL_EVERYWHERE(from_helper);
    assert_true(etch_counters().kernels_compiled > compiled);
    FAIL_EVERYWHERE(from_helper_with_logs);
    assert_int_equal(unfinished_objects(), 0);
}

/* ---- blocks that are kept ---- */

/* Allocations of a step with twenty results of n x n, once such a step has run. */
static int64_t allocations_of(int64_t n) {
    int64_t asked = 0;
    for (int round = 0; round < 2; round++) {
        ETCH_SCOPE {
            etch_tensor *x = etch_ones(ETCH_F32, ETCH_SHAPE(n, n));
            etch__fail_allocation(INT64_MAX / 2); /* counts */
            for (int i = 0; i < 20; i++) x = etch_sin(x);
            asked = etch__fail_allocation(-1);
        }
    }
    return asked;
}

/* Results from 16 KiB on are in blocks that were freed before: the system is asked for none. */
TEST(kept_blocks) {
#if defined(__SANITIZE_ADDRESS__)
    skip(); /* no block is kept */
#endif
    int64_t small = allocations_of(8);
    assert_true(small >= 20);
    assert_int_equal(allocations_of(64), small - 20);
    assert_int_equal(allocations_of(400), small - 20);
}

/* ---- main ---- */

static void drop_line(void *ctx, const char *line) { (void)ctx, (void)line; }

int main(int argc, char **argv) {
    if (!mkdtemp(cache_folder)) return 1;
    setenv("ETCH_CACHE_DIR", cache_folder, 1);
    etch_set_log_sink(drop_line, NULL);
    etch_op_definition d = {.struct_size = sizeof d, .cpu = nine, .shape = like_first};
    if (!etch_op_register("alloc::nine(Tensor self) -> Tensor", &d)) return 1;
    int failed = run_suite(argc, argv);
    etch_cache_clear();
    rmdir(cache_folder);
    return failed;
}
