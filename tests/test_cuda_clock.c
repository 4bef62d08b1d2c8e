/* The GPU's own clock: what ETCH_TRACE and profiles say of how long steps took there. On the fakes,
 * whose clock goes on by what it is told of each kernel and each product, so that every time is
 * known; the host's own times are in none of them.
 * Labels: driver long. */
#include "cuda_failing.h"

#include <pthread.h>
#include <sys/stat.h>

#include "core/base/profile.h"
#include "tracer/tell/report.h"

enum { MS = 1000000, SIZE = 96 };

static void set_clock(double kernel, double library, double gap) {
    ((void (*)(double, double, double))control("fake_cuda_set_clock"))(kernel, library, gap);
}

/* ---- programs ---- */

/* Kernels and products, none of which can be one with its neighbour. */
static etch_tensor *steps_body(etch_tensor *x, etch_tensor *w) {
    etch_tensor *a = etch_softmax(etch_mm(x, w), 1);
    etch_tensor *b = etch_mm(etch_sin(a), w);
    return etch_sum_dim(etch_exp(b), ETCH_DIMS(1), false);
}
/* A plan that is one kernel. */
static etch_tensor *small_body(etch_tensor *x, etch_tensor *w) {
    return etch_sum_dim(etch_sin(etch_mm(etch_exp(x), w)), ETCH_DIMS(1), false);
}

static etch_tensor *operand(int64_t n) {
    etch_tensor *line = etch_arange(ETCH_F32, 0, (double)(n * n), 1);
    etch_tensor *x = line ? etch_div_scalar(line, (double)(n * n)) : NULL;
    return x ? on_gpu(etch_view(x, ETCH_SHAPE(n, n))) : NULL;
}

/* As ETCH_TRACE would; the clock goes from here on. */
static void begin_report(void) {
    CHECK(etch__report_begin("/tmp"));
    set_clock(2, 5, 0.25);
}

static report_graph *newest_graph(void) {
    CHECK(etch__report_ngraphs > 0);
    return etch__report_graphs[etch__report_ngraphs - 1];
}

static void calls(etch_function *f, int n, int64_t size) {
    for (int i = 0; i < n; i++) {
        ETCH_SCOPE {
            etch_tensor *x = operand(size);
            CHECK(x && etch_call(f, x, x) && etch_synchronize(gpu) == ETCH_OK);
        }
    }
}

/* Compiled, and run n times behind the first; what was recorded of it. */
static report_graph *run_reported(etch_function *f, int n, int64_t size) {
    calls(f, n + 1, size);
    etch__clock_settle();
    report_graph *g = newest_graph();
    CHECK(g->device == gpu && g->outcome == OUTCOME_COMPILED && g->run.count == n);
    return g;
}

static int64_t step_ms(const report_step *s) { return s->kind == STEP_PRODUCT ? 5 : 2; }

/* The times of events are floats of milliseconds. */
static bool about(int64_t ns, double ms) {
    double off = (double)ns - ms * MS;
    return off > -0.01 * MS && off < 0.01 * MS;
}

/* ---- the report ---- */

TEST(steps_have_the_devices_times, .only_on_fakes = true) {
    begin_report();
    etch_function *f = etch_compile(steps_body);
    report_graph *g = run_reported(f, 4, SIZE);
    int kinds[3] = {0};
    double sum = 0;
    CHECK(g->nsteps > 2 && g->issue == ISSUE_STEPS);
    for (int64_t i = 0; i < g->nsteps; i++) {
        report_step *s = &g->steps[i];
        CHECK(s->device.count == 4 && s->time.count == 4);
        CHECK(about(s->device.min, (double)step_ms(s)) && about(s->device.max, (double)step_ms(s)));
        CHECK(about(s->device.total, 4.0 * (double)step_ms(s)));
        kinds[s->kind]++, sum += (double)step_ms(s);
    }
    CHECK(kinds[STEP_KERNEL] && kinds[STEP_PRODUCT]);
    /* The device waited a quarter of a millisecond before each step but the first. */
    double idle = 0.25 * (double)(g->nsteps - 1);
    CHECK(g->device_idle.count == 4 && about(g->device_idle.min, idle));
    CHECK(g->device_run.count == 4 && about(g->device_run.max, sum + idle));
    CHECK(!etch__report_dropped);
    etch_function_free(f);
    etch__report_end();
}
TEST_AGAIN(steps_have_the_devices_times, .only_on_fakes = true, .setting = "FAKE_CUDA_LAZY=1")

/* On any GPU: a run is no shorter than its steps, and each step took its time. */
TEST(steps_are_within_their_run) {
    CHECK(etch__report_begin("/tmp"));
    etch_function *f = etch_compile(steps_body);
    report_graph *g = run_reported(f, 4, 4 * SIZE);
    int64_t sum = g->device_idle.total;
    CHECK(g->issue == ISSUE_STEPS && g->device_run.count == 4 && g->device_idle.count == 4);
    for (int64_t i = 0; i < g->nsteps; i++) {
        CHECK(g->steps[i].device.count == 4 && g->steps[i].device.min > 500);
        sum += g->steps[i].device.total;
    }
    CHECK(g->device_run.total > sum - sum / 20 && g->device_run.total < sum + sum / 20);
    etch_function_free(f);
    etch__report_end();
}

TEST(without_gaps_none_are_counted, .only_on_fakes = true) {
    begin_report();
    set_clock(2, 5, 0);
    etch_function *f = etch_compile(steps_body);
    report_graph *g = run_reported(f, 3, SIZE);
    CHECK(g->device_idle.count == 3 && about(g->device_idle.max, 0));
    etch_function_free(f);
    etch__report_end();
}

/* A run that is one graph has the graph's time. The second of them is issued step by step, so that
 * steps have times, and is not counted among the others. */
TEST(graphs_have_times_of_their_own, .only_on_fakes = true) {
    begin_report();
    etch_function *f = etch_compile(steps_body, .mode = ETCH_MODE_REDUCE_OVERHEAD);
    int64_t before = etch_device_stats(gpu).graph_launches;
    report_graph *g = run_reported(f, 5, SIZE);
    double sum = 0;
    CHECK(g->issue == ISSUE_GRAPH && etch_device_stats(gpu).graph_launches == before + 4);
    for (int64_t i = 0; i < g->nsteps; i++) {
        CHECK(g->steps[i].device.count == 1 && g->steps[i].time.count == 1);
        CHECK(about(g->steps[i].device.total, (double)step_ms(&g->steps[i])));
        sum += (double)step_ms(&g->steps[i]);
    }
    CHECK(g->device_run.count == 4 && about(g->device_run.min, sum) &&
          about(g->device_run.max, sum));
    CHECK(g->device_idle.count == 1);
    etch_function_free(f);
    etch__report_end();
}

TEST(a_plan_of_one_kernel_has_the_runs_time, .only_on_fakes = true) {
    begin_report();
    etch_function *f = etch_compile(small_body);
    report_graph *g = run_reported(f, 3, 8);
    CHECK(g->issue == ISSUE_KERNEL && g->nsteps > 1);
    CHECK(g->device_run.count == 3 && about(g->device_run.min, 2) && about(g->device_run.max, 2));
    for (int64_t i = 0; i < g->nsteps; i++) CHECK(!g->steps[i].device.count);
    etch_function_free(f);
    etch__report_end();
}

/* Times are there as soon as somebody has waited for the device, and no event is left behind. */
TEST(waiting_brings_times, .only_on_fakes = true, .setting = "FAKE_CUDA_LAZY=1") {
    begin_report();
    etch_function *f = etch_compile(steps_body);
    ETCH_SCOPE {
        etch_tensor *x = operand(SIZE);
        CHECK(etch_call(f, x, x) && etch_synchronize(gpu) == ETCH_OK);
        unsigned long events = live("event");
        CHECK(etch_call(f, x, x));
        report_graph *g = newest_graph();
        CHECK(g->device_run.count == 0);
        CHECK(etch_synchronize(gpu) == ETCH_OK && g->device_run.count == 1);
        CHECK(live("event") == events + 2 * (unsigned long)g->nsteps);
        etch_function_free(f);
        etch__report_end();
        CHECK(live("event") == events);
    }
}

static char *read_json(const char *path) {
    FILE *file = fopen(path, "rb");
    CHECK(file);
    char *text = calloc(1, 1 << 22);
    CHECK(fread(text, 1, (1 << 22) - 1, file) > 0);
    fclose(file);
    return text;
}

/* The document, written while runs are on their way. */
TEST(the_document_has_them, .only_on_fakes = true, .setting = "FAKE_CUDA_LAZY=1") {
    char folder[] = "/tmp/etch-clock-XXXXXX", path[256], html[256];
    CHECK(mkdtemp(folder) && etch__report_begin(folder));
    set_clock(2, 5, 0.25);
    etch_function *f = etch_compile(steps_body);
    ETCH_SCOPE {
        etch_tensor *x = operand(SIZE);
        CHECK(etch_call(f, x, x) && etch_call(f, x, x));
        CHECK(etch_trace_write() == ETCH_OK);
    }
    etch__report_path("json", path, sizeof path);
    etch__report_path("html", html, sizeof html);
    char *text = read_json(path);
    CHECK(says(text, "\"device\":\"cuda:0\",\"issued_as\":\"steps\",\"device_run\":{\"count\":1,"));
    CHECK(says(text, "\"device_idle\":{\"count\":1,"));
    CHECK(says(text, "\"device\":{\"count\":1,\"total_ns\":5000000,\"min_ns\":5000000,"
                     "\"max_ns\":5000000,\"first_ns\":5000000},\"bytes\":"));
    free(text);
    CHECK(!unlink(path) && !unlink(html) && !rmdir(folder));
    etch_function_free(f);
    etch__report_end();
}

/* ---- profiles ---- */

static etch_profile_entry entry(const char *name) {
    etch_profile_entry all[64], none = {.kind = ETCH_PROFILE_KINDS};
    int n = etch_profile_entries(all, 64);
    for (int i = 0; i < n && i < 64; i++)
        if (all[i].kind == ETCH_PROFILE_DEVICE && !strcmp(all[i].name, name)) return all[i];
    return none;
}

TEST(profiles_have_the_devices_times, .only_on_fakes = true) {
    etch_function *f = etch_compile(steps_body);
    calls(f, 2, SIZE);
    unsigned long events = live("event"), streams = live("stream");
    set_clock(2, 5, 0.25);
    ETCH_SCOPE {
        etch_tensor *x = operand(SIZE);
        ETCH_PROFILE (NULL) {
            for (int i = 0; i < 3; i++) CHECK(etch_call(f, x, x));
        }
    }
    etch_profile_entry product = entry("aten::mm");
    CHECK(product.count == 6 && about(product.total_ns, 30) && about(product.max_ns, 5));
    CHECK(etch_profile_count(ETCH_PROFILE_DEVICE) == etch_profile_count(ETCH_PROFILE_KERNEL) +
                                                         etch_profile_count(ETCH_PROFILE_PRODUCT) +
                                                         etch_profile_count(ETCH_PROFILE_OPERATOR));
    CHECK(live("event") == events && live("stream") == streams);
    etch_function_free(f);
}
TEST_AGAIN(profiles_have_the_devices_times, .only_on_fakes = true, .setting = "FAKE_CUDA_LAZY=1")

/* A profile changes nothing of how runs are issued. */
TEST(profiles_time_a_graph_as_one, .only_on_fakes = true) {
    etch_function *f = etch_compile(steps_body, .mode = ETCH_MODE_REDUCE_OVERHEAD, .name = "graph");
    calls(f, 2, SIZE);
    int64_t before = etch_device_stats(gpu).graph_launches;
    set_clock(2, 5, 0.25);
    ETCH_PROFILE (NULL) { calls(f, 3, SIZE); }
    CHECK(etch_device_stats(gpu).graph_launches == before + 3);
    etch_profile_entry all[64];
    int n = etch_profile_entries(all, 64), runs = 0;
    for (int i = 0; i < n; i++)
        runs += all[i].kind == ETCH_PROFILE_DEVICE && !strncmp(all[i].name, "graph", 5);
    CHECK(runs == 1);
    etch_function_free(f);
}

/* An operator that is run by a plan of its own has that one's events inside its own. */
TEST(profiles_have_operators, .only_on_fakes = true) {
    ETCH_SCOPE {
        etch_tensor *x = operand(SIZE);
        CHECK(etch_sin(x));
        set_clock(2, 5, 0.25);
        ETCH_PROFILE (NULL) {
            for (int i = 0; i < 4; i++) CHECK(etch_sin(x));
        }
        CHECK(entry("aten::sin").count == 4 && about(entry("aten::sin").total_ns, 10));
    }
}

/* In the file the device has a row of its own. */
TEST(files_have_a_row_of_the_device, .only_on_fakes = true) {
    char path[] = "/tmp/etch-clock-XXXXXX";
    int file = mkstemp(path);
    CHECK(file >= 0 && !close(file));
    ETCH_SCOPE {
        etch_tensor *x = operand(SIZE);
        ETCH_PROFILE (path) { CHECK(etch_sin(x)); }
    }
    char *text = read_json(path);
    CHECK(says(text, "\"tid\":4194305,\"args\":{\"name\":\"cuda:0\"}"));
    CHECK(says(text, "{\"name\":\"aten::sin\",\"cat\":\"device\""));
    CHECK(says(text, "\"tid\":4194305,\"ts\":"));
    free(text);
    CHECK(!unlink(path));
}

/* ---- what it costs, and bounds ---- */

/* Where nothing records, there are no events beside those that the streams have. */
TEST(off_is_off, .only_on_fakes = true) {
    etch_function *f = etch_compile(steps_body), *g = etch_compile(small_body),
                  *h = etch_compile(steps_body, .mode = ETCH_MODE_REDUCE_OVERHEAD);
    calls(f, 2, SIZE), calls(g, 2, 8), calls(h, 2, SIZE);
    unsigned long made = calls_of("cuEventCreate");
    ETCH_SCOPE {
        etch_tensor *x = operand(SIZE), *y = operand(8);
        unsigned long recorded = calls_of("cuEventRecord"), asked = calls_of("cuEventQuery");
        for (int i = 0; i < 3; i++)
            CHECK(etch_call(f, x, x) && etch_call(g, y, y) && etch_call(h, x, x) && etch_sin(x));
        CHECK(calls_of("cuEventRecord") == recorded && calls_of("cuEventQuery") == asked);
    }
    CHECK(calls_of("cuEventCreate") == made && !calls_of("cuEventElapsedTime"));
    etch_function_free(f), etch_function_free(g), etch_function_free(h);
}

/* Work that nobody waits for: the events come to an end, and what has none is counted. */
TEST(events_are_bounded, .only_on_fakes = true, .setting = "FAKE_CUDA_LAZY=1") {
    begin_report();
    etch_function *f = etch_compile(small_body);
    calls(f, 1, 8);
    clock_order order = {.device = gpu, .nspans = 1000};
    clock_run *runs[6];
    int there = 0;
    for (int i = 0; i < 6; i++) there += (runs[i] = etch__device_clock->begin(&order)) != NULL;
    CHECK(there == 2 && live("event") <= 4096 + 16);
    order.nspans = 5000;
    CHECK(!etch__device_clock->begin(&order));
    for (int i = 0; i < 6; i++)
        if (runs[i]) etch__device_clock->end(runs[i], false);
    order.nspans = 1000;
    CHECK((runs[0] = etch__device_clock->begin(&order)));
    etch__device_clock->end(runs[0], false);
    etch_function_free(f);
    etch__report_end();
}

/* ---- recordings and threads ---- */

/* What a user records is no run: it has no times, and the recording is whole. */
TEST(recordings_are_left_alone, .only_on_fakes = true) {
    begin_report();
    etch_function *f = etch_compile(steps_body);
    report_graph *g = run_reported(f, 2, SIZE);
    int64_t before = g->device_run.count;
    ETCH_SCOPE {
        etch_tensor *x = operand(SIZE), *y = NULL;
        etch_tensor *expected = etch_call(f, x, x);
        etch_cuda_graph *recorded = NULL;
        ETCH_ON(gpu) ETCH_CUDA_GRAPH(recorded) { y = etch_call(f, x, x); }
        CHECK(recorded && y && etch_cuda_graph_replay(recorded) == ETCH_OK);
        CHECK(etch_bitwise_equal(y, expected));
        etch_cuda_graph_free(recorded);
    }
    etch__clock_settle();
    CHECK(g->device_run.count == before + 1);
    etch_function_free(f);
    etch__report_end();
}

static void *calls_there(void *f) {
    calls(f, 8, SIZE);
    return NULL;
}

TEST(threads_are_timed_together, .only_on_fakes = true) {
    begin_report();
    etch_function *f = etch_compile(steps_body);
    report_graph *g = run_reported(f, 1, SIZE);
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) CHECK(!pthread_create(&threads[i], NULL, calls_there, f));
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    etch__clock_settle();
    CHECK(g->device_run.count + etch__report_dropped == 25 && g->run.count == 25);
    CHECK(g->steps[0].device.count == g->device_run.count);
    etch_function_free(f);
    etch__report_end();
}

/* ---- failing calls ---- */

static etch_function *failing_f, *failing_graph;

static bool program(float *to) {
    bool ok = false;
    ETCH_SCOPE {
        etch_tensor *x = operand(SIZE), *y = NULL, *z = NULL;
        bool profiled = etch_profile_begin(NULL) == ETCH_OK;
        y = x ? etch_call(failing_f, x, x) : NULL;
        /* Twice: one of them may be issued step by step, and the graph has memory of its own. */
        z = y && etch_call(failing_graph, x, x) ? etch_call(failing_graph, x, x) : NULL;
        for (int i = 0; z && i < 8; i++) z = etch_neg(z); /* at once: their failures are errors */
        z = z ? etch_narrow(etch_add(y, z), 0, 0, 16) : NULL;
        saved_error error;
        etch__error_save(&error);
        if (profiled) etch_profile_end();
        etch__error_restore(&error);
        ok = z && etch_to_host(z, to, 16 * sizeof *to) == ETCH_OK;
    }
    return ok;
}

static void unheard(void *ctx, const char *line) { (void)ctx, (void)line; }

static void compile_failing(void) {
    etch_set_log_sink(unheard, NULL); /* events that were lost are a warning each */
    failing_f = etch_compile(steps_body);
    failing_graph = etch_compile(steps_body, .mode = ETCH_MODE_REDUCE_OVERHEAD);
}
static void free_failing(void) { etch_function_free(failing_f), etch_function_free(failing_graph); }

TEST(each_call_fails_once, .only_on_fakes = true) {
    CHECK(etch__report_begin("/tmp"));
    compile_failing();
    each_call_fails(program);
    free_failing();
    etch__report_end();
}

TEST(each_allocation_fails_once, .only_on_fakes = true) {
    CHECK(etch__report_begin("/tmp"));
    compile_failing();
    CHECK(each_allocation_fails(program) > 20);
    free_failing();
    etch__report_end();
}

/* Calls that only time something are missed by no result: the run is right, and its time lost. */
TEST(failing_events_lose_times_only, .only_on_fakes = true) {
    static const char *const symbols[] = {"cuEventRecord", "cuEventElapsedTime", "cuEventQuery",
                                          "cuStreamIsCapturing"};
    begin_report();
    etch_function *f = etch_compile(steps_body);
    report_graph *g = run_reported(f, 2, SIZE);
    for (int k = 0; k < 4; k++) {
        ETCH_SCOPE {
            etch_tensor *x = operand(SIZE), *expected = etch_call(f, x, x);
            CHECK(etch_synchronize(gpu) == ETCH_OK);
            int64_t timed = g->device_run.count, lost = etch__report_dropped;
            unsigned long before = failed();
            fail_symbol(symbols[k], 1);
            etch_tensor *y = etch_call(f, x, x);
            CHECK(y && etch_last_status() == ETCH_OK && etch_synchronize(gpu) == ETCH_OK);
            etch__clock_settle();
            CHECK(failed() == before + 1);
            fail_symbol(NULL, 0);
            CHECK(etch_bitwise_equal(y, expected) && g->device_run.count == timed);
            CHECK(etch__report_dropped == lost + (k < 3));
        }
    }
    etch_function_free(f);
    etch__report_end();
}

/* ---- */

int main(int argc, char **argv) { return run_in_children(argc, argv); }
