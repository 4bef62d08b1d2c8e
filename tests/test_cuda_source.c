/* CUDA C from loop IR. Its text runs on the host (cuda_host.hpp, g++ with its checks of undefined
 * behaviour) and is compared bit for bit with the interpreter of the IR: every primitive and dtype,
 * the variants and splits, strides, in-place outputs, each under several launch shapes, vector and
 * index widths. Where NVRTC is there, it compiles all of it too; no GPU is needed.
 * Labels: long optimised. */
#include <stdlib.h>
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <etch/debug.h>

#include "etch_test.h"
#include "jit/store/client.h"
#include "jit/cuda/cuda_source.h"
#include "loop_build.h"
#include "jit/cuda/cuda_gen.h"

static char dir[] = "/tmp/etch-test-XXXXXX";

/* ---- cases: collected, then compiled together, then run ---- */

enum { MAX_CASES = 400, MAX_PROGRAMS = 1200, MAX_LAUNCHES = 6 };

typedef struct launch {
    cuda_variant v;
    int program[2]; /* of SPLIT_PARTIAL and SPLIT_FINISH, or one */
    uint32_t most;  /* blocks that the grid may have */
} launch;

typedef struct test_case {
    loop_kernel k;
    buffers b;
    bool split, close; /* close: functions of libm, not the interpreter's */
    int in_place, nlaunches;
    uint64_t scalars[4];
    launch launches[MAX_LAUNCHES];
} test_case;

static test_case *cases[MAX_CASES];
static int ncases, nprograms;
static struct {
    char *source, symbol[LOOP_SYMBOL_MAX];
    void (*run)(const void *);
} programs[MAX_PROGRAMS];

static int program_of(const loop_kernel *k, const cuda_variant *v) {
    char *source = etch__cuda_source(k, v);
    assert_non_null(source);
    for (int p = 0; p < nprograms; p++) {
        if (strcmp(programs[p].source, source) != 0) continue;
        etch__free(source);
        return p;
    }
    assert_true(nprograms < MAX_PROGRAMS);
    programs[nprograms].source = source;
    etch__loop_symbol(k, programs[nprograms].symbol);
    return nprograms++;
}

/* The variant with its programs; most: 0 for as many blocks as the shape says. */
static void add_launch(test_case *c, cuda_variant v, uint32_t most) {
    launch *l = &c->launches[c->nlaunches++];
    loop_kernel k = c->k;
    l->v = v, l->most = most;
    for (int s = 0; s < 1 + c->split; s++) {
        k.split = (uint8_t)(c->split ? SPLIT_PARTIAL + s : SPLIT_NONE);
        l->program[s] = program_of(&k, &v);
    }
}

static uint32_t aligned_mask(const buffers *b) {
    uint32_t mask = 0;
    for (int a = 0; a < K.naccesses; a++)
        if (b->at[a].first * (int64_t)etch_dtype_size((etch_dtype)K.access[a].dtype) % 16 == 0)
            mask |= 1u << a;
    return mask;
}

static bool has_math(void) {
    for (int v = 0; v < K.ncode; v++)
        if (K.code[v].kind == LOOP_PRIM && K.code[v].p.prim >= PRIM_EXP &&
            K.code[v].p.prim <= PRIM_POW && etch__is_float((etch_dtype)K.code[v].p.type))
            return true;
    return false;
}

static int64_t vectors_seen, column_vectors_seen;
static int64_t even_seen[4][EVEN_BLOCKS + 1]; /* of each loop_variant; last: of several passes */
static bool quick;                            /* one launch less */
static int widest; /* a vector that the choice may find too wide for so few columns; 0: none */

/* As the kernel is chosen; half the vector, other blocks; 64-bit indices, a grid that strides. */
static void check_run(const int64_t *extent, bool split) {
    assert_true(ncases < MAX_CASES);
    test_case *c = cases[ncases++] = calloc(1, sizeof *c);
    c->split = split, c->in_place = in_place, c->close = has_math();
    memcpy(c->scalars, scalars, sizeof scalars);
    make_buffers(&c->b, extent);
    c->k = K;
    if (split) c->k.split = SPLIT_PARTIAL; /* what it is chosen for */
    cuda_variant v = etch__cuda_choose(&c->k, c->b.dims, aligned_mask(&c->b));
    assert_int_equal(v.index_bits, 32);
    vectors_seen += v.vector > 1;
    column_vectors_seen += v.vector > 1 && K.variant == LOOP_COLUMN;
    even_seen[etch__loop_last_stage(&K) > 1 ? 3 : K.variant][v.even]++;
    add_launch(c, v, 0);
    if (widest) add_launch(c, (cuda_variant){32, (uint8_t)widest, 3 + ncases % 2, 0, 0, 0, 0}, 0);
    v.tile = (uint8_t)(random_bits() % 6);
    if (v.vector > 1 && !quick && !split)
        add_launch(c, (cuda_variant){32, v.vector / 2, v.tile, 0, 0, 0, 0}, 0);
    etch__cuda_fit_rows(&c->k, &v, c->b.dims);
    if (v.hold) add_launch(c, v, 0);
    add_launch(c, (cuda_variant){64, 1, (uint8_t)(random_bits() % 6), 0, 0, 0, 0}, 2);
}

/* ---- compiling them ---- */

static void write_program(FILE *f, int p) {
    const char *s = programs[p].symbol;
    fprintf(f, "#define %s %s_%d\nnamespace n%d {\n%s}\n#undef %s\n", s, s, p, p,
            programs[p].source, s);
    fprintf(f,
            "extern \"C\" __attribute__((visibility(\"default\"))) void run_%d(const void *a) {\n"
            "    n%d::%s_%d(*(const n%d::etch_args *)a);\n}\n",
            p, p, s, p, p);
}

static bool (*host_launch)(void (*)(const void *), const void *, unsigned, unsigned);

/* The file's bytes, behind what f holds. */
static void append_file(FILE *f, const char *path) {
    char buffer[4096];
    FILE *in = fopen(path, "r");
    if (!in) fail_msg("%s is not there", path);
    for (size_t n; (n = fread(buffer, 1, sizeof buffer, in)) > 0;) fwrite(buffer, 1, n, f);
    fclose(in);
}

/* What g++ gets. */
static char *all_programs(size_t *n) {
    char *text = NULL;
    FILE *f = open_memstream(&text, n);
    assert_non_null(f);
    append_file(f, ETCH_TEST_SOURCE_DIR "/tests/cuda_host.hpp");
    for (int p = 0; p < nprograms; p++) write_program(f, p);
    fclose(f);
    return text;
}

/* Checked is what would go unseen: arithmetic, shifts, conversions, alignment, bounds of arrays. A
 * pointer that is null or wraps leads to no memory of a case (see guarded), and to look at each of
 * them takes most of the compiler's time. */
static const char gxx_options[] =
    "-std=c++17 -O0 -shared -fPIC -fvisibility=hidden -ffp-contract=off -w "
    "-fsanitize=undefined,float-cast-overflow -fsanitize-undefined-trap-on-error "
    "-fno-sanitize=null,pointer-overflow,object-size";

/* Under a name of this process first: several builds may share the folder. */
static void compile_to(const char *object, const char *text, size_t n) {
    char path[64], made[sizeof ETCH_HOST_KERNELS + 32], command[sizeof made + 600];
    snprintf(path, sizeof path, "%s/programs.cpp", dir);
    snprintf(made, sizeof made, "%s/%d", ETCH_HOST_KERNELS, (int)getpid());
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    snprintf(command, sizeof command, "g++ %s %s -o %s -lm", gxx_options, path, made);
    if (system(command) != 0) fail_msg("%s", command);
    assert_int_equal(rename(made, object), 0);
}

/* Compiled once: the object's name is a hash of all that goes in. */
static void *compile_all(void) {
    size_t n = 0;
    char *text = all_programs(&n), object[sizeof ETCH_HOST_KERNELS + 64];
    XXH128_hash_t h = XXH3_128bits_withSeed(text, n,
                                            XXH3_64bits(gxx_options, sizeof gxx_options) ^
                                                XXH3_64bits(__VERSION__, sizeof __VERSION__));
    snprintf(object, sizeof object, "%s/source-%016llx%016llx.so", ETCH_HOST_KERNELS,
             (unsigned long long)h.high64, (unsigned long long)h.low64);
    if (access(object, R_OK) != 0) compile_to(object, text, n);
    free(text);
    void *so = dlopen(object, RTLD_NOW | RTLD_LOCAL);
    if (!so) fail_msg("%s", dlerror());
    for (int p = 0; p < nprograms; p++) {
        char symbol[32];
        snprintf(symbol, sizeof symbol, "run_%d", p);
        *(void **)&programs[p].run = dlsym(so, symbol);
        assert_non_null(programs[p].run);
    }
    *(void **)&host_launch = dlsym(so, "host_launch");
    return so;
}

/* ---- running them ---- */

/* n bytes that end where the program may not read, but for what aligns their beginning. */
static char *guarded(size_t n, void **map, size_t *length) {
    size_t page = 4096, room = (n + 15) / 16 * 16, whole = (room + page - 1) / page * page;
    *length = whole + page;
    *map = mmap(NULL, *length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(*map != MAP_FAILED);
    assert_int_equal(mprotect((char *)*map + whole, page, PROT_NONE), 0);
    return (char *)*map + whole - room;
}

typedef struct memory {
    void *map[LOOP_MAX_ACCESSES + 1];
    size_t length[LOOP_MAX_ACCESSES + 1];
    char *at[LOOP_MAX_ACCESSES];
    void *args[LOOP_MAX_ACCESSES + 1];
} memory;

static int first_store(const test_case *c) {
    for (int a = 0; a < c->k.naccesses; a++)
        if (c->k.access[a].store) return a;
    return -1;
}

static size_t bytes_of(const test_case *c, int a) {
    return (size_t)c->b.at[a].elements * etch_dtype_size(c->k.access[a].dtype);
}

static void make_memory(const test_case *c, memory *m) {
    size_t cells = (size_t)etch__loop_scratch_cells(&c->k, c->b.dims);
    memset(m, 0, sizeof *m);
    for (int a = 0; a < c->k.naccesses; a++) {
        int64_t first = c->b.at[a].first * (int64_t)etch_dtype_size(c->k.access[a].dtype);
        m->at[a] = guarded(bytes_of(c, a), &m->map[a], &m->length[a]);
        memcpy(m->at[a], c->b.memory[a], bytes_of(c, a));
        m->args[a] = m->at[a] + first;
    }
    if (c->in_place >= 0) m->args[c->in_place] = m->args[first_store(c)];
    if (c->split)
        m->args[c->k.naccesses] =
            guarded(8 * cells, &m->map[c->k.naccesses], &m->length[c->k.naccesses]);
}

static void free_memory(memory *m) {
    for (int a = 0; a <= LOOP_MAX_ACCESSES; a++)
        if (m->map[a]) munmap(m->map[a], m->length[a]);
}

static bool nearly(etch_dtype d, const void *a, const void *b) {
    cell x = ref_load(d, a), y = ref_load(d, b);
    if (equal(d, a, b) || !etch__is_float(d)) return equal(d, a, b);
    double p = ref_wide(etch__compute_type(d), x), q = ref_wide(etch__compute_type(d), y);
    return fabs(p - q) <= (d == ETCH_F64 ? 1e-14 : 1e-6) * fabs(q) + 1e-42;
}

static void compare(const test_case *c, const launch *l, const memory *m) {
    for (int a = 0; a < c->k.naccesses; a++) {
        etch_dtype d = c->k.access[a].dtype;
        for (int64_t e = 0; c->k.access[a].store && e < c->b.at[a].elements; e++) {
            int64_t at = e * (int64_t)etch_dtype_size(d);
            const char *got = m->at[a] + at, *want = (char *)c->b.expected[a] + at;
            if (c->close ? nearly(d, got, want) : equal(d, got, want)) continue;
            uint64_t x = 0, y = 0;
            memcpy(&x, got, etch_dtype_size(d)), memcpy(&y, want, etch_dtype_size(d));
            fail_msg("%s (split %d, vector %d, tile %d, %d bits, extents %ld %ld): access %d, %s "
                     "element %ld: %lx, expected %lx\n%s",
                     c->k.name, c->split, l->v.vector, l->v.tile, l->v.index_bits,
                     (long)c->b.dims[0], (long)c->b.dims[1], a, etch_dtype_name(d), (long)e, x, y,
                     programs[l->program[0]].source);
        }
    }
}

static void run_launch(const test_case *c, const launch *l) {
    static char args[4096];
    static memory m;
    loop_kernel k = c->k;
    make_memory(c, &m);
    for (int s = 0; s < 1 + c->split; s++) {
        k.split = (uint8_t)(c->split ? SPLIT_PARTIAL + s : SPLIT_NONE);
        cuda_shape shape = etch__cuda_shape(&k, &l->v, c->b.dims);
        uint32_t grid = l->most && shape.grid[0] > l->most ? l->most : shape.grid[0];
        assert_true(etch__cuda_args_size(&k) <= sizeof args);
        etch__cuda_args_fill(&k, m.args, c->b.dims, c->scalars, args);
        if (!host_launch(programs[l->program[s]].run, args, grid, shape.block[0]))
            fail_msg("%s: threads part\n%s", k.name, programs[l->program[s]].source);
    }
    compare(c, l, &m);
    free_memory(&m);
}

static void run_case(test_case *c) {
    K = c->k, K.split = SPLIT_NONE;
    ref_kernel(&K, c->b.load, c->b.store, c->b.dims, c->scalars);
    for (int l = 0; l < c->nlaunches; l++) run_launch(c, &c->launches[l]);
    for (int a = 0; a < K.naccesses; a++) free(c->b.memory[a]), free(c->b.expected[a]);
    free(c);
}

static void nvrtc_all(void);

static void run_cases(void) {
    void *so = compile_all();
    nvrtc_all();
    for (int c = 0; c < ncases; c++) run_case(cases[c]);
    dlclose(so);
}

/* After each test, failed ones too. */
static void forget(void) {
    for (int p = 0; p < nprograms; p++) etch__free(programs[p].source);
    ncases = nprograms = 0;
}
EACH_TEST(.after = forget)

static void check_1(int64_t n) { check_run(&n, false); }

static const int64_t sizes[] = {1, 7, 63, 64, 65, 255, 256, 257, 1000, 4096, 4097, 10000};

/* ---- NVRTC ---- */

static struct {
    void *lib;
    int (*create)(void **, const char *, const char *, int, const char *const *,
                  const char *const *);
    int (*compile)(void *, int, const char *const *);
    int (*log_size)(void *, size_t *);
    int (*log)(void *, char *);
    int (*destroy)(void **);
} nvrtc;

static bool find_nvrtc(void) {
    static const char *const names[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so",
                                        "/usr/local/cuda/lib64/libnvrtc.so",
                                        "/usr/local/cuda/lib/libnvrtc.so"};
    for (int i = 0; !nvrtc.lib && i < COUNT_OF(names); i++)
        nvrtc.lib = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!nvrtc.lib) return false;
    *(void **)&nvrtc.create = dlsym(nvrtc.lib, "nvrtcCreateProgram");
    *(void **)&nvrtc.compile = dlsym(nvrtc.lib, "nvrtcCompileProgram");
    *(void **)&nvrtc.log_size = dlsym(nvrtc.lib, "nvrtcGetProgramLogSize");
    *(void **)&nvrtc.log = dlsym(nvrtc.lib, "nvrtcGetProgramLog");
    *(void **)&nvrtc.destroy = dlsym(nvrtc.lib, "nvrtcDestroyProgram");
    return nvrtc.create && nvrtc.compile && nvrtc.log_size && nvrtc.log && nvrtc.destroy;
}

static void nvrtc_one(const char *source, const char *arch) {
    char target[32], log[4000] = "";
    snprintf(target, sizeof target, "--gpu-architecture=%s", arch);
    const char *options[] = {"-std=c++17",      "-fmad=false", "-prec-div=true",
                             "-prec-sqrt=true", "-ftz=false",  target};
    void *p = NULL;
    size_t n = 0;
    assert_int_equal(nvrtc.create(&p, source, "kernel.cu", 0, NULL, NULL), 0);
    int status = nvrtc.compile(p, COUNT_OF(options), options);
    nvrtc.log_size(p, &n);
    if (n > 1 && n < sizeof log) nvrtc.log(p, log);
    nvrtc.destroy(&p);
    if (status || n > 1) fail_msg("NVRTC for %s: %d\n%s\n%s", arch, status, log, source);
}

/* A sample of the programs, each for one of two architectures (all take minutes). */
static void nvrtc_all(void) {
    static int turn;
    int step = getenv("ETCH_TEST_NVRTC_ALL") ? 1 : 24;
    if (!nvrtc.lib) return;
    for (int p = turn % step; p < nprograms; p += step)
        nvrtc_one(programs[p].source, turn++ % 2 ? "sm_90" : "sm_80");
}

/* ---- maps ---- */

TEST(map_sizes) {
    begin(LOOP_MAP, 1, 0);
    int x = load(0, ETCH_F32, "1"), y = load(0, ETCH_F32, "1");
    int v = op2(0, PRIM_MUL, ETCH_F32, x, real(2));
    v = op2(0, PRIM_ADD, ETCH_F32, v, y);
    store(0, ETCH_F32, "1", op2(0, PRIM_SUB, ETCH_F32, v, x));
    for (int i = 0; i < COUNT_OF(sizes); i++) check_1(sizes[i]);
    run_cases();
}

static const etch_dtype compute_types[] = {ETCH_F32, ETCH_F64, ETCH_I8, ETCH_I16,
                                           ETCH_I32, ETCH_I64, ETCH_U8, ETCH_BOOL};

static bool is_math(int p, etch_dtype t) {
    return etch__prim_is_function(p) && p != PRIM_REM && etch__is_float(t);
}

/* The divisor of integers is not 0. */
static int divisor(int p, etch_dtype t, int b) {
    if ((p != PRIM_QUOT && p != PRIM_REM) || etch__is_float(t)) return b;
    int one = op1(0, PRIM_CONST, t, 0);
    K.code[one].p.imm.i = 1;
    return op2(0, PRIM_BITOR, t, b, one);
}

/* Of one type, those that are (not) functions of libm, from first_prim on; where it stopped. */
static int map_primitives(etch_dtype t, bool math, int first_prim) {
    begin(LOOP_MAP, 1, 0);
    int a = load(0, t, "1"), b = load(0, t, "1"), c = load(0, t, "1");
    int truth = load(0, ETCH_BOOL, "1"), p = first_prim;
    for (; p < PRIM_COUNT && K.naccesses < 16; p++) {
        etch_dtype r = etch__prim_compares(p) ? ETCH_BOOL : t;
        if (p == PRIM_CONVERT || !etch__prim_gives((prim_id)p, r) || is_math(p, t) != math)
            continue;
        int first = p == PRIM_SELECT ? truth : a;
        int second = p == PRIM_SELECT ? a : divisor(p, t, b);
        int v = prim_of(0, (prim_id)p, r, t, first, second, p == PRIM_SELECT ? b : c);
        store(0, r, "1", v);
    }
    if (K.naccesses > 4) check_1(2501);
    return p;
}

TEST(map_primitives) {
    for (int i = 0; i < COUNT_OF(compute_types); i++)
        for (int p = PRIM_ROUND_BF16; p < PRIM_COUNT;)
            p = map_primitives(compute_types[i], false, p);
    run_cases();
}

TEST(map_functions) {
    for (int i = 0; i < 2; i++)
        for (int p = 0; p < PRIM_COUNT;) p = map_primitives(compute_types[i], true, p);
    run_cases();
}

/* From each storage dtype to all others. */
TEST(map_conversions) {
    for (int d = 0; d < ETCH_DTYPE_COUNT; d++) {
        etch_dtype from = etch__compute_type(d);
        begin(LOOP_MAP, 1, 0);
        int x = load(0, d, "1");
        for (int to = 0; to < ETCH_DTYPE_COUNT; to++) {
            int v = convert(0, from, etch__compute_type(to), x);
            if (to == ETCH_BF16) v = op1(0, PRIM_ROUND_BF16, ETCH_F32, v);
            if (to == ETCH_F16) v = op1(0, PRIM_ROUND_F16, ETCH_F32, v);
            store(0, to, "1", v);
        }
        check_1(3000);
    }
    run_cases();
}

/* All patterns of the half types, f32 values around their grid. */
TEST(map_halves) {
    for (int d = ETCH_BF16; d <= ETCH_F16; d++) {
        begin(LOOP_MAP, 1, 0);
        int x = load(0, d, "1");
        store(0, ETCH_F32, "1", x), store(0, d, "1", x);
        check_1(65536);
        for (int i = 0; i < 65536; i++)
            ((uint16_t *)cases[ncases - 1]->b.memory[0])[i] = (uint16_t)i;
    }
    begin(LOOP_MAP, 1, 0);
    int x = load(0, ETCH_F32, "1");
    store(0, ETCH_F32, "1", op1(0, PRIM_ROUND_F16, ETCH_F32, x));
    store(0, ETCH_F32, "1", op1(0, PRIM_ROUND_BF16, ETCH_F32, x));
    check_1(1 << 17);
    for (int i = 0; i < 1 << 17; i++) {
        uint32_t u = (uint32_t)random_bits();
        if (i % 2) u = (u & 0x8fffe000u) | 0x30000000u | (i % 4 == 1 ? 0x1000 : u & 0x1fff);
        ((uint32_t *)cases[ncases - 1]->b.memory[0])[i] = u;
    }
    run_cases();
}

/* Scalars of every dtype as cells, constants (what has no decimal text too), the index. */
TEST(map_scalars) {
    static const double numbers[] = {0.1, -0.0, 1e-42, INFINITY, 16777216, NAN};
    static const int64_t whole[] = {1, -1, INT64_MIN, INT64_MAX, 0, 77};
    scalars[0] = 0x0102030405060708, scalars[1] = 0x3ff0000000000001;
    for (int d = 0; d < ETCH_DTYPE_COUNT; d++) {
        etch_dtype t = etch__compute_type(d);
        begin(LOOP_MAP, 2, 0);
        K.nscalars = 2;
        int x = load(0, t, "s1"), v = x;
        for (int i = 0; i < 2; i++) {
            int s = prim_of(0, PRIM_SCALAR, t, d, 0, 0, 0);
            K.code[s].p.imm.i = i;
            v = op2(0, PRIM_ADD, t, v, s);
        }
        for (int i = 0; i < COUNT_OF(whole); i++) {
            int c = op1(0, PRIM_CONST, t, 0);
            if (etch__is_float(t)) K.code[c].p.imm.d = numbers[i];
            else K.code[c].p.imm.i = whole[i];
            store(0, t, "s1", op2(0, PRIM_MUL, t, v, c));
        }
        int i = op1(0, PRIM_INDEX, ETCH_I64, 0);
        store(0, ETCH_I64, "s1", i);
        check_run((int64_t[]){3, 1001}, false);
        check_run((int64_t[]){3, 1000}, false);
    }
    run_cases();
}

TEST(map_strides) {
    static const char *const x[] = {"s1", "1s", "ss", "01", "10", "0s", "s0", "00"};
    static const int64_t extents[][2] = {{3, 500}, {65, 64}, {300, 5}, {1, 1}, {5, 257}};
    for (int i = 0; i < COUNT_OF(x); i++) {
        begin(LOOP_MAP, 2, 0);
        int a = load(0, ETCH_F32, x[i]), b = load(0, ETCH_F16, x[(i + 3) % COUNT_OF(x)]);
        int v = op2(0, PRIM_SUB, ETCH_F32, a, b);
        store(0, ETCH_F32, i % 2 ? "s1" : i % 4 ? "1s" : "ss", op2(0, PRIM_ADD, ETCH_F32, v, a));
        for (int e = 0; e < COUNT_OF(extents); e++) check_run(extents[e], false);
    }
    run_cases();
}

TEST(map_many_axes) {
    begin(LOOP_MAP, 8, 0);
    int a = load(0, ETCH_I32, "ssssssss"), b = load(0, ETCH_I32, "0s0s0s01");
    store(0, ETCH_I32, "sssssss1", op2(0, PRIM_MUL, ETCH_I32, a, b));
    check_run((int64_t[]){2, 3, 1, 2, 3, 2, 2, 67}, false);
    check_run((int64_t[]){2, 3, 1, 2, 3, 2, 2, 64}, false);
    begin(LOOP_MAP, 0, 0);
    a = load(0, ETCH_F64, "");
    store(0, ETCH_F64, "", op1(0, PRIM_NEG, ETCH_F64, a));
    store(0, ETCH_I64, "", op1(0, PRIM_INDEX, ETCH_I64, 0));
    check_run((int64_t[]){0}, false);
    run_cases();
}

TEST(map_in_place) {
    begin(LOOP_MAP, 2, 0);
    int x = load(0, ETCH_F32, "s1"), y = load(0, ETCH_F32, "01");
    int v = op2(0, PRIM_ADD, ETCH_F32, op2(0, PRIM_MUL, ETCH_F32, x, y), y);
    store(0, ETCH_F32, "s1", op2(0, PRIM_MUL, ETCH_F32, v, x));
    in_place = 0;
    check_run((int64_t[]){5, 1000}, false);
    check_run((int64_t[]){9, 33}, false);
    in_place = -1;
    run_cases();
}

/* ---- reductions ---- */

/* Sums, a maximum, a wide sum over an expression, a full-space store, an epilogue. */
static void rich(loop_variant variant, int npar, int nred, const char *in, const char *row,
                 const char *full, const char *out) {
    begin(variant, npar, nred);
    int x = load(0, ETCH_F32, in), r = load(0, ETCH_F32, row);
    int e = op2(0, PRIM_MUL, ETCH_F32, op2(0, PRIM_SUB, ETCH_F32, x, r), x);
    store(0, ETCH_F32, full, e);
    int s = reduce(REDUCE_SUM, ETCH_F32, e), plain = reduce(REDUCE_SUM, ETCH_F32, x);
    int m = reduce(REDUCE_MAX, ETCH_F32, x);
    int wide = reduce(REDUCE_SUM, ETCH_F64, convert(0, ETCH_F32, ETCH_F64, x));
    int last = reduce(REDUCE_MAX, ETCH_I64, op1(0, PRIM_INDEX, ETCH_I64, 0));
    int n = op1(1, PRIM_NREDUCED, ETCH_F32, 0);
    int mean = op2(1, PRIM_DIV, ETCH_F32, plain, n);
    int again = load(1, ETCH_F32, out);
    int root = op1(1, PRIM_SQRT, ETCH_F32, op1(1, PRIM_ABS, ETCH_F32, s));
    store(1, ETCH_F32, out, op2(1, PRIM_ADD, ETCH_F32, root, again));
    store(1, ETCH_F32, out, mean);
    store(1, ETCH_F32, out, m);
    store(1, ETCH_F64, out, wide);
    store(1, ETCH_I64, out, last);
    store(1, ETCH_I64, out, op1(1, PRIM_INDEX, ETCH_I64, 0));
}

/* Numbers whose sums tell any other order; NaN and infinities (which swallow it) in the first. */
static void both_ways(const int64_t *extent) {
    wild = ncases == 0;
    check_run(extent, false);
    wild = false;
    check_run(extent, true);
    wild = true;
}

TEST(row_sizes) {
    rich(LOOP_ROW, 1, 1, "s1", "s0", "s1", "1s");
    for (int i = 0; i < COUNT_OF(sizes); i++)
        both_ways((int64_t[]){sizes[i] > 300 ? 2 : 37, sizes[i]});
    both_ways((int64_t[]){1, 40000});
    both_ways((int64_t[]){3, 4096 * 37 + 5});
    both_ways((int64_t[]){1, 4096 * 70});
    both_ways((int64_t[]){3, 8192});
    both_ways((int64_t[]){5000, 20});
    run_cases();
}

TEST(row_shapes) {
    rich(LOOP_ROW, 2, 1, "s1s", "0s0", "ss1", "sss");
    both_ways((int64_t[]){3, 4, 100});
    rich(LOOP_ROW, 1, 2, "ss1", "s00", "ss1", "1ss");
    both_ways((int64_t[]){3, 7, 100});
    both_ways((int64_t[]){2, 100, 3});
    both_ways((int64_t[]){2, 5, 256});
    both_ways((int64_t[]){1, 3, 4099});
    both_ways((int64_t[]){1, 3, 4104});
    both_ways((int64_t[]){2, 4, 1024});
    rich(LOOP_ROW, 1, 3, "1sss", "s0s0", "sss1", "ssss");
    both_ways((int64_t[]){2, 3, 11, 13});
    rich(LOOP_ROW, 0, 1, "1", "0", "1", "0");
    both_ways((int64_t[]){9000});
    rich(LOOP_ROW, 0, 2, "1s", "s0", "ss", "00");
    both_ways((int64_t[]){65, 127});
    run_cases();
}

/* Rows kept in registers, loaded again; of one block, of several. */
TEST(row_passes) {
    for (int math = 0; math < 2; math++) {
        passes(math, 1, 1, "s1", "s0", "s1", "1s");
        for (int i = 0; i < COUNT_OF(sizes); i++)
            check_run((int64_t[]){sizes[i] > 300 ? 2 : 5, sizes[i]}, false);
        check_run((int64_t[]){3, 4096 * 3 + 5}, false);
        check_run((int64_t[]){2, 8192}, false);
        check_run((int64_t[]){3, 1024}, false);
        check_run((int64_t[]){2, 1000}, false);
    }
    passes(false, 2, 1, "s1s", "0s1", "ss1", "sss");
    check_run((int64_t[]){3, 4, 100}, false);
    passes(false, 1, 2, "ss1", "s0s", "ss1", "1ss");
    check_run((int64_t[]){3, 7, 100}, false);
    check_run((int64_t[]){2, 5, 1000}, false);
    passes(false, 0, 1, "1", "0", "1", "0");
    check_run((int64_t[]){9000}, false);
    run_cases();
}

TEST(column_sizes) {
    rich(LOOP_COLUMN, 1, 1, "1s", "1s", "1s", "1s");
    for (int i = 0; i < COUNT_OF(sizes) - 1; i++) both_ways((int64_t[]){sizes[i], 5});
    for (int i = 0; i < COUNT_OF(sizes); i++) both_ways((int64_t[]){3, sizes[i]});
    both_ways((int64_t[]){40, 4096 * 9 + 100});
    both_ways((int64_t[]){40, 8192});
    run_cases();
}

TEST(column_shapes) {
    rich(LOOP_COLUMN, 2, 1, "s1s", "0ss", "sss", "s10");
    both_ways((int64_t[]){3, 70, 65});
    rich(LOOP_COLUMN, 1, 2, "1ss", "10s", "1ss", "1ss");
    both_ways((int64_t[]){300, 7, 11});
    both_ways((int64_t[]){3, 70, 70});
    rich(LOOP_COLUMN, 1, 1, "0s", "00", "1s", "10");
    both_ways((int64_t[]){300, 100});
    run_cases();
}

/* All ways in which elements of neighbouring columns come: as neighbours, at a stride, one for all;
 * with the row, or before it. No operator gives a value that the dtype lacks. */
static void column_ways(etch_dtype d) {
    etch_dtype t = etch__compute_type(d), acc = etch__is_float(t) ? t : ETCH_I64;
    begin(LOOP_COLUMN, 2, 1);
    int a = load(0, d, "s1s"), b = load(0, d, "s10"), c = load(0, d, "0ss"), e = load(0, d, "ss0");
    int f = load(0, d, "s0s"), g = load(0, d, "s00"), h = load(0, d, "s1s");
    int x = op2(0, PRIM_MAX, t, op2(0, PRIM_MIN, t, a, b), op2(0, PRIM_MIN, t, c, f));
    int y = op2(0, PRIM_MIN, t, op2(0, PRIM_MAX, t, h, e), op2(0, PRIM_MAX, t, x, g));
    store(0, d, "s1s", x);
    store(0, d, "sss", y);
    int s = reduce(REDUCE_SUM, acc, convert(0, t, acc, x)), m = reduce(REDUCE_MIN, t, y);
    int last = reduce(REDUCE_MAX, ETCH_I64, op1(0, PRIM_INDEX, ETCH_I64, 0));
    int late = load(1, acc, "s10");
    store(1, acc, "s10", op2(1, PRIM_MAX, acc, s, late));
    store(1, t, "ss0", m);
    store(1, ETCH_I64, "s10", last);
    store(1, ETCH_I64, "1s0", op1(1, PRIM_INDEX, ETCH_I64, 0));
}

TEST(column_vectors) {
    static const etch_dtype types[] = {ETCH_F32, ETCH_BF16, ETCH_U8, ETCH_F64};
    static const int64_t extents[][3] = {
        {2, 64, 100}, {3, 72, 64}, {1, 8, 700}, {1, 16, 4096 * 3 + 70}};
    quick = true;
    for (int d = 0; d < COUNT_OF(types); d++) {
        column_ways(types[d]);
        int n = 16 / (int)etch_dtype_size(types[d]);
        widest = n > 8 ? 8 : n;
        for (int i = 0; i < COUNT_OF(extents); i++) check_run(extents[i], i % 2 == 1);
        check_run(extents[3], false);
    }
    quick = false, widest = 0;
    run_cases();
}

/* Many partial results, more of them than a block of threads folds at once,
 * and the few of many rows. */
TEST(finish) {
    static const int64_t columns[] = {4096ll * 1100 + 3, 4096 * 128, 4096 * 129, 4096 * 258 + 1};
    for (int i = 0; i < COUNT_OF(columns); i++) {
        begin(LOOP_ROW, 0, 1);
        int x = load(0, ETCH_F32, "1");
        store(1, ETCH_F32, "0", reduce(REDUCE_SUM, ETCH_F32, x));
        store(1, ETCH_F32, "0", reduce(REDUCE_MAX, ETCH_F32, x));
        wild = false;
        check_run(&columns[i], true);
        add_launch(cases[ncases - 1], (cuda_variant){32, 1, 0, 0, 0, 0, 0}, 0);
        add_launch(cases[ncases - 1], (cuda_variant){32, 1, 5, 0, 0, 0, 0}, 0);
    }
    rich(LOOP_COLUMN, 1, 1, "1s", "1s", "1s", "1s");
    check_run((int64_t[]){40, 4096 * 5 + 1}, true);
    rich(LOOP_ROW, 1, 1, "s1", "s0", "s1", "1s");
    check_run((int64_t[]){7, 4096 * 33}, true);
    wild = true;
    run_cases();
}

/* Each kind and accumulator type, from integers, halves and bool too; ROW and COLUMN. */
TEST(reduce_types) {
    quick = true;
    for (int variant = LOOP_ROW; variant <= LOOP_COLUMN; variant++) {
        const char *in = variant == LOOP_ROW ? "s1" : "1s";
        for (int d = 0; d < ETCH_DTYPE_COUNT; d++) {
            etch_dtype t = etch__compute_type(d);
            etch_dtype acc = etch__is_float(t) ? t : ETCH_I64;
            begin((loop_variant)variant, 1, 1);
            int x = load(0, d, in);
            int wide = convert(0, t, acc, x);
            int s = reduce(REDUCE_SUM, acc, wide), p = reduce(REDUCE_PROD, acc, wide);
            int hi = reduce(REDUCE_MAX, t, x), lo = reduce(REDUCE_MIN, t, x);
            store(1, acc, "10", s), store(1, acc, "10", p), store(1, t, "10", hi),
                store(1, t, "10", lo);
            both_ways((int64_t[]){4, 5000});
            check_run((int64_t[]){4, 5008}, d % 2);
            wild = false;
            check_run((int64_t[]){200, 33}, d % 2);
            wild = true;
        }
    }
    quick = false;
    run_cases();
}

/* A sum of nothing but negative zeros is +0. */
TEST(signed_zero) {
    for (int n = 1; n <= 70; n += 69) {
        begin(LOOP_ROW, 0, 1);
        store(1, ETCH_F32, "0", reduce(REDUCE_SUM, ETCH_F32, load(0, ETCH_F32, "1")));
        both_ways((int64_t[]){n});
        for (int c = ncases - 2; c < ncases; c++)
            for (int i = 0; i < n; i++) ((float *)cases[c]->b.memory[0])[i] = -0.0f;
    }
    run_cases();
}

/* ---- the choice, the arguments, the text ---- */

static cuda_variant chosen(const int64_t *dims, uint32_t aligned) {
    return etch__cuda_choose(&K, dims, aligned);
}

TEST(choice) {
    begin(LOOP_MAP, 2, 0);
    store(0, ETCH_F32, "s1", load(0, ETCH_F32, "s1"));
    int64_t plain[] = {4096, 4096, 4096, 1, 4096, 1}, odd[] = {8, 100, 101, 1, 100, 1};
    int64_t wide[] = {4, 1 << 29, 1 << 29, 1, 1 << 29, 1};
    assert_int_equal(chosen(plain, 3).vector, 4);
    assert_int_equal(chosen(plain, 3).index_bits, 32);
    assert_int_equal(chosen(plain, 2).vector, 1);
    assert_int_equal(chosen(odd, 3).vector, 1);
    assert_int_equal(chosen(wide, 3).index_bits, 64);
    int64_t far[] = {2, 100, 1ll << 40, 1, -(1ll << 40), 1};
    assert_int_equal(chosen(far, 3).index_bits, 64);
    begin(LOOP_MAP, 1, 0);
    store(0, ETCH_BF16, "1", load(0, ETCH_BF16, "1"));
    assert_int_equal(chosen((int64_t[]){4096, 1, 1}, 3).vector, 8);
    begin(LOOP_MAP, 1, 0);
    store(0, ETCH_F64, "1", load(0, ETCH_F64, "1"));
    assert_int_equal(chosen((int64_t[]){4096, 1, 1}, 3).vector, 2);
}

/* Columns come side by side where the tiles are whole, and wide ones where there are enough. */
TEST(choice_of_columns) {
    for (int i = 0; i < 2; i++) {
        etch_dtype d = i ? ETCH_BF16 : ETCH_F32;
        begin(LOOP_COLUMN, 1, 1);
        store(1, ETCH_F32, "10", reduce(REDUCE_SUM, ETCH_F32, load(0, d, "1s")));
        assert_int_equal(chosen((int64_t[]){4096, 4096, 1, 4096, 1, 0}, 3).vector, i ? 8 : 4);
        assert_int_equal(chosen((int64_t[]){2048, 4096, 1, 2048, 1, 0}, 3).vector, 4);
        assert_int_equal(chosen((int64_t[]){4096, 4096, 1, 4096, 1, 0}, 2).vector, 1);
        assert_int_equal(chosen((int64_t[]){4095, 4096, 1, 4096, 1, 0}, 3).vector, 1);
        assert_int_equal(chosen((int64_t[]){4096, 4096, 1, 4097, 1, 0}, 3).vector, 1);
    }
    begin(LOOP_COLUMN, 1, 1); /* more lanes than a thread should have */
    for (int i = 0; i < 9; i++)
        store(1, ETCH_F64, "10", reduce(REDUCE_SUM, ETCH_F64, load(0, ETCH_F64, "1s")));
    int64_t dims[2 + 2 * 18] = {4096, 64};
    for (int a = 0; a < 18; a++) dims[2 + 2 * a] = 1, dims[3 + 2 * a] = a % 2 ? 0 : 4096;
    assert_int_equal(chosen(dims, ~0u).vector, 1);
}

/* Any size gives a grid that a device takes and that has threads for all the work. */
TEST(shape) {
    begin(LOOP_MAP, 1, 0);
    store(0, ETCH_I8, "1", load(0, ETCH_I8, "s"));
    cuda_variant v = {64, 1, 0, 0, 0, 0, 0};
    cuda_shape s = etch__cuda_shape(&K, &v, (int64_t[]){1ll << 50, 1, 1});
    assert_int_equal(s.grid[0], INT32_MAX);
    assert_int_equal(s.block[0], 32);
    s = etch__cuda_shape(&K, &v, (int64_t[]){1, 1, 1});
    assert_int_equal(s.grid[0], 1);
    assert_true(s.grid[1] == 1 && s.grid[2] == 1 && s.block[1] == 1 && s.block[2] == 1);
}

TEST(args) {
    begin(LOOP_ROW, 1, 1);
    K.nscalars = 2;
    load(0, ETCH_F32, "s1");
    void *args[] = {(void *)16, (void *)32};
    int64_t dims[] = {3, 4, 5, 1};
    uint64_t cells[] = {7, 8}, out[9], want[] = {16, 0, 3, 4, 5, 1, 7, 8, 99};
    assert_int_equal(etch__cuda_args_size(&K), 64);
    out[8] = 99;
    etch__cuda_args_fill(&K, args, dims, cells, out);
    assert_memory_equal(out, want, sizeof want);
    K.split = SPLIT_FINISH, want[1] = 32;
    etch__cuda_args_fill(&K, args, dims, cells, out);
    assert_memory_equal(out, want, sizeof want);
    K.naccesses = LOOP_MAX_ACCESSES, K.npar = 4, K.nred = 4, K.nscalars = LOOP_MAX_CODE;
    assert_true(etch__cuda_args_size(&K) < 4096);
}

TEST(can_emit) {
    assert_true(etch__prim_gives(PRIM_POW, ETCH_I32));
    assert_true(etch__prim_gives(PRIM_QUOT, ETCH_U8));
    assert_false(etch__prim_gives(PRIM_QUOT, ETCH_F32));
    assert_false(etch__prim_gives(PRIM_INPUT, ETCH_F32));
    assert_false(etch__prim_gives(PRIM_ADD, ETCH_BF16));
    for (int p = PRIM_ROUND_BF16; p < PRIM_COUNT; p++)
        for (int t = 0; t < ETCH_DTYPE_COUNT; t++) {
            prim_instr i = {.prim = (uint8_t)p, .type = (uint8_t)t};
            growing_text text = {0};
            etch__cuda_prim(&text, &i, "a", "b", "c");
            if (etch__prim_gives((prim_id)p, t)) assert_non_null(text.p);
            if (etch__loop_can_emit((prim_id)p, t)) assert_non_null(text.p);
            etch__free(text.p);
        }
}

TEST(text) {
    begin(LOOP_MAP, 1, 0);
    strcpy(K.name, "mul/relu 2");
    int x = load(0, ETCH_BF16, "1"), v = op2(0, PRIM_MUL, ETCH_F32, x, x);
    store(0, ETCH_BF16, "1", op1(0, PRIM_ROUND_BF16, ETCH_F32, v));
    cuda_variant variant = {32, 8, 3, 0, 0, 0, 0};
    char *s = etch__cuda_source(&K, &variant);
    assert_non_null(s);
    assert_non_null(strstr(s, " etch_mul_relu_2(const __grid_constant__ struct etch_args a)"));
    assert_non_null(strstr(s, "const float v1 = v0 * v0; // mul f32\n"));
    assert_non_null(strstr(s, "vec<u16, 8>"));
    assert_null(strstr(s, "f16_value(u16 h) {\n    const u32 m")); /* not used, not there */
    assert_null(strstr(s, "$"));
    etch__free(s);
}

/* What keeps the loads of a thread together, and the cache clean, where that is right. */
TEST(text_of_sums) {
    cuda_variant v = {32, 4, 3, 0, 0, 0, 0};
    for (int i = 0; i < 4; i++) {
        begin(LOOP_ROW, 0, 1);
        int x = load(0, ETCH_F32, "1");
        if (i == 2) store(0, ETCH_F32, "1", op1(0, PRIM_NEG, ETCH_F32, x));
        store(1, ETCH_F32, "0", reduce(REDUCE_SUM, ETCH_F32, x));
        K.split = i ? SPLIT_PARTIAL : SPLIT_NONE, v.vector = i == 3 ? 2 : 4;
        char *s = etch__cuda_source(&K, &v);
        assert_non_null(s);
        assert_true(!!strstr(s, "__launch_bounds__(256, 1)") == (i > 0));
        assert_true(!!strstr(s, "= read_once(") == (i == 1));
        etch__free(s);
    }
}

/* Every allocation fails once: NULL, nothing lost (the sanitizers look). */
TEST(out_of_memory) {
    rich(LOOP_ROW, 1, 1, "s1", "s0", "s1", "1s");
    cuda_variant v = {32, 4, 3, 0, 0, 0, 0};
    int64_t sites = 0;
    etch__fail_allocation(1 << 20);
    etch__free(etch__cuda_source(&K, &v));
    sites = etch__fail_allocation(-1);
    assert_true(sites > 20);
    for (int64_t n = 0; n < sites; n++) {
        etch__fail_allocation(n);
        char *s = etch__cuda_source(&K, &v);
        etch__fail_allocation(-1);
        assert_null(s);
        etch_clear_error();
    }
}

/* The vectors were met often enough to mean something. */
TEST(vectors_were_met) {
    assert_true(vectors_seen > 60);
    assert_true(column_vectors_seen >= 12);
    for (int i = 0; i < COUNT_OF(even_seen); i++)
        for (int e = EVEN_NOT; e <= EVEN_BLOCKS; e++) {
            bool can = e == EVEN_NOT || (e == EVEN_VECTORS && i != LOOP_COLUMN) ||
                       (e == EVEN_BLOCKS && i != LOOP_MAP);
            assert_true(can == (even_seen[i][e] > 0));
        }
}

int main(int argc, char **argv) {
    if (system("g++ --version >/dev/null 2>&1") != 0) {
        puts("cuda_source: skipped, there is no g++ to stand in for a device");
        return 0;
    }
    if (!find_nvrtc()) puts("cuda_source: NVRTC is not there, its part is skipped");
    if (!mkdtemp(dir)) return 1;
    int failed = run_suite(argc, argv);
    etch__remove_tree(dir);
    return failed;
}
