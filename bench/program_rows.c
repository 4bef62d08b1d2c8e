/* The programs of bench/programs.h as rows, eager and compiled, on matrices of side 256 and in 20
 * rounds. As of models, input and result are written where ETCH_BENCH_MODELS names a folder. */
#include "bench.h"
#include "programs.h"

#include <stdio.h>
#include <stdlib.h>

enum { SIDE = 256, ROUNDS = 20 };

/* "in-place, breaks" as "program_in-place_breaks", for commas part columns. */
static void name_of(const bench_program *p, char *name, size_t room) {
    size_t at = (size_t)snprintf(name, room, "program_");
    for (const char *c = p->name; *c && at + 1 < room; c++)
        if (*c != ',') name[at++] = *c == ' ' ? '_' : *c;
    name[at] = 0;
}

static void save(const bench_job *j, const char *name, etch_tensor *result) {
    const char *folder = getenv("ETCH_BENCH_MODELS");
    if (!folder) return;
    char path[4200];
    etch_named_tensor all[3] = {{"x", j->x}, {"y", result}, {"0", j->y}};
    snprintf(path, sizeof path, "%s/%s-256x256-f32.safetensors", folder, name);
    if (etch_safetensors_save(path, all, 3, NULL, 0) != ETCH_OK) bench_fail(path);
}

static double first_call(bench_job *j, const char *name) {
    double elapsed = 0;
    ETCH_SCOPE {
        etch_tensor *expected = j->body(j->x, j->y);
        save(j, name, expected);
        double start = bench_now_us();
        etch_tensor *compiled = etch_call(j->f, j->x, j->y);
        elapsed = bench_now_us() - start;
        compiled = compiled ? etch_call(j->f, j->x, j->y) : NULL;
        if (!compiled || !bench_as_expected(expected, compiled, ETCH_STRICT)) bench_fail(name);
    }
    return elapsed * 1e-3;
}

static void measure(const bench_program *p) {
    char name[48];
    name_of(p, name, sizeof name);
    if (!bench_named(name)) return;
    etch_manual_seed(0);
    etch_shape sizes = ETCH_SHAPE(SIDE, SIDE);
    bench_job j = {.body = p->body, .f = etch_compile(p->body, .name = name)};
    j.x = etch_randn(ETCH_F32, sizes), j.y = etch_randn(ETCH_F32, sizes);
    if (!j.f || !j.x || !j.y) bench_fail(name);
    double first = first_call(&j, name);
    bench_row r = {.workload = name, .size = "256x256", .count = 2};
    r.variants[0] = (bench_variant){.name = "eager", .run = bench_run_eager, .ctx = &j};
    r.variants[1] = (bench_variant){
        .name = "compiled", .run = bench_run_compiled, .ctx = &j, .first_call_ms = first};
    r.variants[1].compile_ms = first;
    bench_measure(&r);
    etch_function_free(j.f);
}

void bench_program_rows(void) {
    int before = bench_rounds;
    bench_rounds = ROUNDS;
    for (const bench_program *p = bench_programs; p->name; p++)
        ETCH_SCOPE { measure(p); }
    bench_rounds = before;
}
