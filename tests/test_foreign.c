/* Writes that a compiled function does not make itself: through older raw pointers behind a flush,
 * by another compiled function in a disabled one, by kernels with effects, by what frees wrapped
 * memory, while others hold pointers to the same memory; and its own, where a value is used late.
 * Each program gives, on both backends and at every call, the bits of the same program uncompiled.
 * Labels: fake. */
#include <pthread.h>
#include <string.h>

#include "core/tensor/tensor.h"
#include "device_support.h"
#include "trace_support.h"

enum { N = 24, CALLS = 6 };

static const char *backend;
static int number;                     /* of the call */
static float *raw;                     /* to the argument's memory, got before the call */
static bool left;                      /* whether something was deferred where nothing may be */
static float user[N];                  /* memory that is wrapped */
static etch_tensor *written, *wrapped; /* the argument; a tensor over `user` */
static etch_function *inner, *disabled;

static double first_of(etch_tensor *t) {
    return etch_item(etch_select(etch_select(t, 0, 0), 0, 0));
}

/* Ends the segment: what is alive stays deferred while no call has used it behind that. */
static void end_segment(void) { etch_graph_break("test"); }
/* y is used late: not by the calls from which plans learn. */
static etch_tensor *late(etch_tensor *y, etch_tensor *rest) {
    return number < 3 ? rest : etch_add(y, rest);
}

typedef struct outcome {
    etch_tensor *result, *argument;
    bool left;
} outcome;

static outcome one_call(etch_function *f) {
    outcome o = {.argument = etch_add_scalar(arange_f32(4, 6), number)};
    float *pointer = test_device() == ETCH_CPU ? etch_data_mut(o.argument) : NULL;
    raw = pointer, written = o.argument, left = false;
    for (int i = 0; i < N; i++) user[i] = (float)(i + number);
    o.result = etch_call(f, o.argument);
    o.left = left;
    return o;
}

static void check_program(etch_fn1 body) {
    etch_function *f = etch_compile(body, .backend = backend),
                  *plain = etch_compile(body, .disable = true);
    for (number = 0; number < CALLS; number++) {
        outcome got = one_call(f), want = one_call(plain);
        assert_non_null(want.result);
        assert_non_null(got.result);
        assert_same(got.result, want.result);
        assert_same(got.argument, want.argument);
        assert_false(got.left);
        assert_int_equal(etch_last_status(), ETCH_OK);
    }
    assert_true(etch_function_counters(f).plan_runs > 0);
    etch_function_free(f);
    etch_function_free(plain);
}

static void on_both(etch_fn1 body, etch_fn1 inner_body) {
    for (int i = 0; i < 2; i++)
        ETCH_SCOPE {
            backend = test_backends[i];
            wrapped = test_device() == ETCH_CPU
                          ? etch_wrap_host(user, ETCH_F32, ETCH_SHAPE(4, 6), NULL, NULL)
                          : NULL;
            if (inner_body) inner = etch_compile(inner_body, .backend = backend);
            check_program(body);
            if (inner_body) etch_function_free(inner);
        }
}
#define PROGRAM(name, body, inner_body)                                                            \
    TEST(name) { on_both(body, inner_body); }
#define CPU_PROGRAM(name, body, inner_body)                                                        \
    TEST(name) {                                                                                   \
        ONLY_ON_CPU();                                                                             \
        on_both(body, inner_body);                                                                 \
    }

/* ---- a flush leaves nothing ---- */

static etch_tensor *writes_behind_a_flush(etch_tensor *x) {
    etch_tensor *y = etch_mul_scalar(x, 2);
    end_segment();
    etch_tensor *z = etch_neg(x), *v = etch_slice(etch_exp(y), 0, 1, 3, 1);
    etch_flush();
    left |= etch_is_deferred(y) || etch_is_deferred(z) || etch_is_deferred(v);
    raw[0] = 1000, raw[7] = -1000;
    return late(y, late(z, late(etch_sum(v), x)));
}
CPU_PROGRAM(flush_produces_earlier_segments, writes_behind_a_flush, NULL)

/* No operator between the break and the flush. */
static etch_tensor *flushes_between_segments(etch_tensor *x) {
    etch_tensor *y = etch_mul_scalar(x, 2);
    end_segment();
    etch_flush();
    left |= etch_is_deferred(y);
    raw[0] = 1000;
    return late(y, x);
}
CPU_PROGRAM(flush_between_segments, flushes_between_segments, NULL)

static etch_tensor *flushes_wrapped(etch_tensor *x) {
    etch_tensor *y = etch_mul(x, wrapped);
    end_segment();
    etch_tensor *z = etch_add(x, wrapped);
    etch_flush();
    left |= etch_is_deferred(y) || etch_is_deferred(z);
    memset(user, 0, N * sizeof *user);
    return late(y, late(z, etch_neg(wrapped)));
}
CPU_PROGRAM(flush_before_wrapped_memory_is_written, flushes_wrapped, NULL)

static void *reads(void *tensor) {
    static double value;
    ETCH_SCOPE { value = etch_last_status() == ETCH_OK ? first_of(tensor) : 0; }
    return &value;
}
static etch_tensor *reads_on_a_thread(etch_tensor *x) {
    etch_tensor *y = etch_mul_scalar(x, 2);
    end_segment();
    etch_flush();
    pthread_t thread;
    void *value = NULL;
    if (pthread_create(&thread, NULL, reads, y) != 0 || pthread_join(thread, &value) != 0)
        return NULL;
    return etch_add_scalar(x, *(double *)value);
}
CPU_PROGRAM(flush_before_another_thread_reads, reads_on_a_thread, NULL)

/* In a function that an outer run has called: nothing of the outer stays deferred either. */
static etch_tensor *flushes_inside(etch_tensor *x) {
    etch_tensor *y = etch_neg(x);
    end_segment();
    etch_flush();
    return etch_exp(y);
}
static etch_tensor *calls_one_that_flushes(etch_tensor *x) {
    etch_tensor *y = etch_mul_scalar(x, 2);
    end_segment();
    etch_tensor *z = etch_call(disabled, x);
    left |= etch_is_deferred(y);
    raw[0] = 1000;
    return late(y, z);
}
CPU_PROGRAM(flush_inside_produces_the_outer_runs, calls_one_that_flushes, flushes_inside)

/* What a flush found is what the plan of the next call produces. */
TEST(flush_teaches_the_plan) {
    ONLY_ON_CPU();
    ETCH_SCOPE {
        etch_function *f = etch_compile(writes_behind_a_flush);
        number = 0;
        for (int i = 0; i < 4; i++) one_call(f);
        assert_int_equal(etch_function_counters(f).late_uses, 0);
        assert_counts(f, 3, 3 * 3);
        etch_function_free(f);
    }
}

/* ---- written by another compiled function ---- */

static etch_tensor *call_inner(etch_tensor *x) { return etch_call(inner, x); }

static etch_tensor *adds_ten(etch_tensor *x) { return etch_add_scalar_(x, 10); }
static etch_tensor *calls_a_writer(etch_tensor *x) {
    etch_tensor *y = etch_mul_scalar(x, 2), *v = etch_slice(x, 0, 1, 3, 1);
    etch_tensor *z = etch_exp(etch_mul_scalar(v, 0.01));
    end_segment();
    etch_call(disabled, x);
    return late(y, late(etch_sum(z), x));
}
PROGRAM(inner_run_writes_an_input, calls_a_writer, adds_ten)

/* Through a view, of what the segment has produced; by a prefix that runs at a divergence. */
static etch_tensor *writes_a_view(etch_tensor *x) {
    etch_fill_(etch_slice(x, 0, 0, 2, 1), number);
    return number % 2 ? etch_neg(x) : etch_exp(x);
}
static etch_tensor *calls_one_that_diverges(etch_tensor *x) {
    etch_tensor *y = etch_mul_scalar(x, 2);
    etch_tensor *z = etch_neg(y);
    first_of(y); /* produces y, z is left, and so is w */
    etch_tensor *w = etch_add_scalar(y, 1);
    end_segment();
    etch_tensor *last = etch_call(disabled, y);
    return late(w, late(z, last));
}
PROGRAM(inner_run_writes_a_view, calls_one_that_diverges, writes_a_view)

/* Two functions further in. */
static etch_tensor *innermost(etch_tensor *x) { return etch_mul_scalar_(x, 3); }
static etch_tensor *call_innermost(etch_tensor *x) {
    static etch_function *f[2];
    int i = !strcmp(backend, "native");
    if (!f[i]) f[i] = etch_compile(innermost, .backend = backend);
    return etch_call(f[i], x);
}
static etch_function *disabled_innermost;
static etch_tensor *goes_deeper(etch_tensor *x) {
    etch_tensor *y = etch_neg(x);
    end_segment();
    etch_tensor *z = etch_call(disabled_innermost, x);
    return late(y, z);
}
static etch_tensor *calls_deep(etch_tensor *x) {
    etch_tensor *y = etch_mul_scalar(x, 2);
    end_segment();
    etch_tensor *z = etch_call(disabled, x);
    return late(y, z);
}
PROGRAM(innermost_run_writes_an_input, calls_deep, goes_deeper)

static etch_tensor *writes_raw(etch_tensor *x) {
    float *p = etch_data_mut(x);
    p[0] = 500;
    etch_data_end(x);
    return etch_neg(x);
}
CPU_PROGRAM(inner_run_writes_raw_memory, calls_deep, writes_raw)

/* ---- kernels with effects, and others ---- */

static etch_status effect(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                          etch_tensor *const *out, int nout) {
    (void)ctx, (void)op, (void)nargs, (void)nout;
    int how = (int)args[1].i;
    if (how == 0) etch_add_scalar_(written, 10);
    if (how == 1) ((float *)etch_data_mut(written))[0] = 500;
    if (how == 2) memset(user, 0, N * sizeof *user);
    if (how == 3) etch_call(inner, written);
    if (how == 4 && etch_flush() == ETCH_OK) raw[0] = 500;
    return etch_copy_(out[0], args[0].tensor) ? ETCH_OK : etch_last_status();
}

static etch_status same_shape(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                              etch_tensor_spec *out, int nout) {
    (void)ctx, (void)op, (void)nargs, (void)nout;
    out->dtype = etch_dtype_of(args[0].tensor);
    out->sizes = etch_sizes(args[0].tensor);
    return ETCH_OK;
}

static etch_tensor *call_effect(etch_tensor *t, int how) {
    const etch_value args[] = {{.tag = ETCH_VALUE_TENSOR, .tensor = t},
                               {.tag = ETCH_VALUE_INT, .i = how}};
    etch_tensor *out = NULL;
    etch_op_call(etch_op_find("foreign::effect"), args, 2, &out, 1);
    return out;
}

static etch_tensor *around_effect(etch_tensor *x, int how) {
    etch_tensor *y = etch_mul_scalar(x, 2), *z = wrapped ? etch_add(wrapped, y) : etch_neg(y);
    etch_tensor *e = call_effect(etch_full(ETCH_F32, ETCH_SHAPE(), 1), how);
    return late(y, late(z, etch_add(e, x)));
}
#define EFFECT(how)                                                                                \
    static etch_tensor *around_effect_##how(etch_tensor *x) { return around_effect(x, how); }
EFFECT(0)
EFFECT(1)
EFFECT(2)
EFFECT(3)
EFFECT(4)
PROGRAM(effect_writes_by_an_operator, around_effect_0, NULL)
CPU_PROGRAM(effect_writes_raw_memory, around_effect_1, NULL)
CPU_PROGRAM(effect_writes_wrapped_memory, around_effect_2, NULL)
PROGRAM(effect_writes_by_a_compiled_function, around_effect_3, adds_ten)
CPU_PROGRAM(effect_flushes, around_effect_4, NULL)

/* What a kernel writes that is nobody's but its own produces nothing. */
TEST(own_writes_produce_nothing) {
    wrapped = NULL;
    ETCH_SCOPE {
        etch_function *f = etch_compile(around_effect_0);
        etch_tensor *other = etch_zeros(ETCH_F32, ETCH_SHAPE(2));
        for (number = 0; number < 4; number++) {
            etch_tensor *x = arange_f32(4, 6);
            written = other;
            etch_call(f, x);
        }
        int64_t before = etch_function_counters(f).late_uses;
        written = other;
        etch_call(f, arange_f32(4, 6));
        assert_int_equal(etch_function_counters(f).late_uses, before);
        etch_function_free(f);
    }
}

/* ---- the segment's own writes ---- */

/* A small part, through a view of an earlier segment, so that its copy is less than the results: of
 * these, which read the base behind the write, one is used late. */
static etch_tensor *writes_rows_of_the_base(etch_tensor *x) {
    etch_tensor *row = etch_slice(x, 0, 1, 2, 1);
    end_segment();
    etch_neg_(row);
    etch_tensor *y = etch_add(x, etch_amax(x, ETCH_DIMS(0), true));
    end_segment();
    return late(y, etch_neg(x));
}
PROGRAM(own_write_through_an_earlier_view, writes_rows_of_the_base, NULL)

/* ---- what frees wrapped memory ---- */

static float scratch[N];
static void writes_when_freed(void *t) { etch_add_scalar_(t, 10); }
static void calls_when_freed(void *t) {
    ETCH_SCOPE { etch_call(inner, t); }
}
static void flushes_when_freed(void *unused) {
    (void)unused;
    if (etch_flush() == ETCH_OK) raw[0] = 500;
}
static void free_wrapped(void (*fn)(void *), void *t) {
    ETCH_SCOPE { etch_wrap_host(scratch, ETCH_F32, ETCH_SHAPE(4), fn, t); }
}

static etch_tensor *frees_behind_a_break(etch_tensor *x) {
    etch_tensor *y = etch_mul_scalar(x, 2);
    end_segment();
    free_wrapped(writes_when_freed, x);
    return late(y, etch_neg(x));
}
CPU_PROGRAM(free_fn_writes_behind_a_break, frees_behind_a_break, NULL)

/* Between two operators of one segment, twice; the segment goes on behind. */
static etch_tensor *frees_inside(etch_tensor *x) {
    etch_tensor *y = etch_mul_scalar(x, 2);
    free_wrapped(writes_when_freed, x);
    etch_tensor *z = etch_add(y, x);
    etch_tensor *w = etch_mul(z, y);
    if (number % 2) free_wrapped(writes_when_freed, x);
    return etch_add(w, x);
}
CPU_PROGRAM(free_fn_writes_inside_a_segment, frees_inside, NULL)

static etch_tensor *calls_inside(etch_tensor *x) {
    etch_tensor *y = etch_mul_scalar(x, 2);
    free_wrapped(calls_when_freed, x);
    return etch_add(etch_add(y, x), y);
}
CPU_PROGRAM(free_fn_calls_inside_a_segment, calls_inside, adds_ten)

/* It finds what the segment has written, by a read, by an operator and in a compiled function. */
static float read_in_free[3][N];
static void copies_when_freed(void *t) { etch_to_host(t, read_in_free[0], sizeof read_in_free[0]); }
static void computes_when_freed(void *t) {
    ETCH_SCOPE {
        etch_to_host(etch_mul_scalar(t, 2), read_in_free[1], sizeof read_in_free[1]);
        etch_to_host(etch_call(inner, t), read_in_free[2], sizeof read_in_free[2]);
    }
}
static etch_tensor *read_back(int i) {
    return etch_from_host(read_in_free[i], ETCH_F32, ETCH_SHAPE(4, 6));
}
static etch_tensor *reads_inside(etch_tensor *x) {
    etch_add_scalar_(x, 3);
    free_wrapped(copies_when_freed, x);
    etch_mul_(x, x);
    free_wrapped(computes_when_freed, x);
    etch_add_(x, read_back(0));
    return etch_add(read_back(1), etch_add(read_back(2), x));
}
CPU_PROGRAM(free_fn_reads_inside_a_segment, reads_inside, adds_ten)

static etch_tensor *flushes_in_free_fn(etch_tensor *x) {
    etch_tensor *y = etch_mul_scalar(x, 2);
    end_segment();
    etch_tensor *z = etch_add_scalar(x, 1);
    free_wrapped(flushes_when_freed, NULL);
    left |= etch_is_deferred(y) || etch_is_deferred(z);
    return late(y, late(z, x));
}
CPU_PROGRAM(free_fn_flushes, flushes_in_free_fn, NULL)

/* One that writes nothing of the segment's does not end it. */
static void frees_nothing(void *other) { etch_add_scalar_(other, 1); }
static etch_tensor *other;
static etch_tensor *frees_aside(etch_tensor *x) {
    etch_tensor *y = etch_mul_scalar(x, 2);
    free_wrapped(frees_nothing, other);
    return etch_add(y, x);
}
TEST(free_fn_aside_is_no_break) {
    ONLY_ON_CPU();
    ETCH_SCOPE {
        other = etch_zeros(ETCH_F32, ETCH_SHAPE(2));
        etch_function *f = etch_compile(frees_aside, .fullgraph = true);
        for (int i = 0; i < 4; i++) assert_non_null(etch_call(f, arange_f32(4, 6)));
        assert_counts(f, 1, 4);
        etch_function_free(f);
    }
}

TEST(free_fn_breaks_fullgraph) {
    ONLY_ON_CPU();
    ETCH_SCOPE {
        etch_function *f = etch_compile(frees_inside, .fullgraph = true);
        assert_null(etch_call(f, arange_f32(4, 6)));
        assert_int_equal(etch_last_status(), ETCH_ERR_GRAPH_BREAK);
        etch_clear_error();
        etch_function_free(f);
    }
}

/* ---- exposure is counted ---- */

static etch_tensor *exposes_for_writing(etch_tensor *x) {
    float *p = etch_data_mut(x);
    p[1] = 7;
    if (number % 2) etch_data_end(x);
    return etch_neg(x);
}
static etch_tensor *exposes_around_a_call(etch_tensor *x) {
    float *p = etch_data_mut(x);
    etch_tensor *z = etch_call(disabled, x);
    etch_tensor *y = etch_mul_scalar(x, 2);
    p[0] = 100;
    etch_tensor *w = etch_add(x, z);
    p[0] = 200;
    return etch_add(y, w);
}
CPU_PROGRAM(inner_exposure_leaves_the_outer, exposes_around_a_call, exposes_for_writing)

static etch_tensor *exposes_for_reading(etch_tensor *x) {
    const float *p = etch_data(x);
    return etch_add_scalar(x, p[0]);
}
CPU_PROGRAM(inner_reader_leaves_the_outer_writer, exposes_around_a_call, exposes_for_reading)

/* Read through the pointer after operators wrote the memory. */
static etch_tensor *reads_around_a_call(etch_tensor *x) {
    const float *p = etch_data(x);
    etch_tensor *z = etch_call(disabled, x);
    etch_add_scalar_(x, 3);
    float now = p[0];
    return etch_add_scalar(z, now);
}
CPU_PROGRAM(inner_reader_leaves_the_outer_reader, reads_around_a_call, exposes_for_reading)

static void *exposes_on_a_thread(void *t) {
    ETCH_SCOPE { etch_call(inner, t); }
    return NULL;
}
static etch_tensor *exposes_around_a_thread(etch_tensor *x) {
    etch_tensor *before = etch_exp(x);
    float *p = etch_data_mut(x);
    pthread_t thread;
    if (pthread_create(&thread, NULL, exposes_on_a_thread, x) != 0 ||
        pthread_join(thread, NULL) != 0)
        return NULL;
    etch_tensor *y = etch_mul_scalar(x, 2);
    p[0] = 100;
    return etch_add(etch_add(y, x), before);
}
CPU_PROGRAM(exposure_on_a_thread_leaves_this_one, exposes_around_a_thread, exposes_for_writing)

/* Twice in one run is once; nothing is left when all have ended. */
static etch_tensor *exposes_twice(etch_tensor *x) {
    etch_data(x);
    etch_data_mut(x);
    etch_data_mut(x);
    return etch_neg(x);
}
TEST(exposure_ends_with_the_call) {
    ONLY_ON_CPU();
    ETCH_SCOPE {
        etch_function *f = etch_compile(exposes_twice);
        etch_tensor *x = arange_f32(4, 6);
        for (int i = 0; i < 3; i++) {
            assert_non_null(etch_call(f, x));
            assert_int_equal(x->storage->exposed, 0);
        }
        etch_function_free(f);
    }
}

/* Another tensor over the memory to which the pointer leads. */
static etch_tensor *second;
static etch_tensor *exposes_beneath(etch_tensor *x) {
    float *p = etch_data_mut(wrapped);
    etch_tensor *y = etch_mul(second, etch_slice(x, 0, 0, 2, 1));
    p[0] = 100;
    etch_tensor *z = etch_add(second, y);
    etch_data_end(wrapped);
    return z;
}
TEST(exposure_of_overlapping_memory) {
    ONLY_ON_CPU();
    for (int i = 0; i < 2; i++)
        ETCH_SCOPE {
            backend = test_backends[i];
            wrapped = etch_wrap_host(user, ETCH_F32, ETCH_SHAPE(4, 6), NULL, NULL);
            second = etch_wrap_host(user, ETCH_F32, ETCH_SHAPE(2, 6), NULL, NULL);
            check_program(exposes_beneath);
        }
}

int main(int argc, char **argv) {
    etch_op_definition d = {
        .struct_size = sizeof d, .cpu = effect, .shape = same_shape, .effects = true};
    if (!etch_op_register("foreign::effect(Tensor self, int how) -> Tensor", &d)) return 1;
    disabled = etch_disable(call_inner, false);
    disabled_innermost = etch_disable(call_innermost, false);
    int failed = run_suite(argc, argv);
    etch_function_free(disabled);
    etch_function_free(disabled_innermost);
    return failed;
}
