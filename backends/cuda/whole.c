/* A small plan as one kernel: one block does all steps, with barriers between them; the arena lies
 * in shared memory. The steps are the same generated kernels, as device functions: equal ones are
 * one function. Their bits do not depend on the launch shape, so they are those of separate
 * launches.
 *
 * The block goes through a table of steps and calls the function of each: so the code, and the
 * time that NVRTC takes for it, grow with the functions and not with the steps. The kernel's one
 * argument has an array of arguments for each function, in the order of its steps. */
#include "backends/cuda/launcher.h"
#include "core/base/text.h"

enum { WHOLE_THREADS = 256, WHOLE_TILE = 3, WHOLE_STEPS = 32, WHOLE_ARENA = 32 << 10 };
enum { PRODUCT_WORDS = 13 };
enum { WHOLE_DEPTH = 4 }; /* elements of a map that a thread has in flight, where it has several */

_Static_assert(LOOP_MAX_ACCESSES <= 32, "a word has a bit for each argument of a step");

/* What a step does: a loop kernel, or a product. */
typedef struct whole_function {
    const loop_kernel *k; /* NULL: a product of this dtype */
    etch_dtype dtype;
    int64_t k_most;        /* of products, the largest K */
    int calls;             /* steps that do it */
    uint32_t always, ever; /* arguments that lie in the arena in all of them, in some */
    size_t at, bytes;      /* its array in the parameter, and an element of that */
} whole_function;

typedef struct launcher_step {
    bool matmul;
    int32_t arg, cell;
    size_t at;                            /* in the parameter */
    uint32_t local;                       /* arguments that lie in the arena */
    int64_t arena[LOOP_MAX_ACCESSES + 1]; /* where */
    loop_kernel k;
    int64_t dims[LOOP_MAX_AXES * (LOOP_MAX_ACCESSES + 1)]; /* product: its ten numbers */
} launcher_step;

struct whole_launcher {
    int device, nsteps;
    cuda_code *code;
    unsigned shared;
    launcher_step steps[];
};

static const cuda_variant variant = {.index_bits = 32, .vector = 1, .tile = WHOLE_TILE, .hold = 0};

/* ---- source ---- */

#include "embedded/small.cuh.inc"

typedef struct whole_ctx {
    const whole_step *steps;
    int n, nfunctions, depth;
    whole_function functions[WHOLE_STEPS];
    /* Per step: its function, the place among those that do it, arguments in the arena. */
    int number[WHOLE_STEPS], place[WHOLE_STEPS];
    uint32_t local[WHOLE_STEPS];
} whole_ctx;

static void put_function(growing_text *t, const whole_ctx *c, int number) {
    const whole_function *f = &c->functions[number];
    matmul_text product = {.dtype = f->dtype, .body = small_text};
    product.k_most = f->k_most <= 16 ? 16 : MATMUL_SMALL;
    char *source =
        f->k ? etch__cuda_run_source(f->k, &variant, c->depth) : etch__cuda_matmul_text(&product);
    etch__text_put(t, "namespace f%d {\n", number);
    if (source) etch__text_bytes(t, source, strlen(source));
    else t->failed = true;
    etch__text_put(t, "}\n%s",
                   f->k ? "" : "#undef LOAD\n#undef STORE\n#undef CHAIN\n#undef K_MOST\n");
    etch__free(source);
}

static void put_declarations(growing_text *t, const whole_ctx *c) {
    etch__text_put(t, "struct etch_whole_args {\n");
    for (int f = 0; f < c->nfunctions; f++)
        etch__text_put(t, "    f%d::etch_args a%d[%d];\n", f, f, c->functions[f].calls);
    etch__text_put(t, "};\n"
                      "struct etch_step {\n"
                      "    unsigned char function, at; // its arguments are a<function>[at]\n"
                      "    unsigned local; // those that are offsets in the arena\n"
                      "};\n"
                      "static __constant__ const etch_step etch_steps[] = {\n");
    for (int i = 0; i < c->n; i++)
        etch__text_put(t, "    {%d, %d, 0x%x},\n", c->number[i], c->place[i], c->local[i]);
    etch__text_put(t, "};\n"
                      "template <class T>\n"
                      "__device__ __forceinline__ void locate(T *&p, void *arena) {\n"
                      "    p = (T *)((char *)arena + (size_t)p);\n"
                      "}\n");
}

static void put_case(growing_text *t, const whole_function *f, int number) {
    static const char *const operands[3] = {"a", "b", "c"};
    etch__text_put(t, "        case %d: {\n            f%d::etch_args a = p.a%d[s.at];\n", number,
                   number, number);
    for (int k = 0; k < LOOP_MAX_ACCESSES; k++) {
        if (!(f->ever >> k & 1)) continue;
        etch__text_put(t, "            ");
        if (!(f->always >> k & 1)) etch__text_put(t, "if (s.local & 0x%x) ", 1u << k);
        if (f->k) etch__text_put(t, "locate(a.ptr[%d], arena);\n", k);
        else etch__text_put(t, "locate(a.%s, arena);\n", operands[k]);
    }
    etch__text_put(t, "            f%d::run(a%s);\n            break;\n        }\n", number,
                   f->k ? "" : ", 0, 1");
}

static char *source_of(const void *ctx) {
    const whole_ctx *c = ctx;
    growing_text t = {0};
    for (int f = 0; f < c->nfunctions; f++) put_function(&t, c, f);
    put_declarations(&t, c);
    etch__text_put(&t,
                   "extern \"C\" __global__ void __launch_bounds__(%d)\n"
                   "    etch_whole(const __grid_constant__ struct etch_whole_args p) {\n"
                   "    extern __shared__ unsigned long long arena[];\n"
                   "    #pragma unroll 1\n"
                   "    for (int i = 0; i < %d; i++) {\n"
                   "        const etch_step s = etch_steps[i];\n"
                   "        switch (s.function) {\n",
                   WHOLE_THREADS, c->n);
    for (int f = 0; f < c->nfunctions; f++) put_case(&t, &c->functions[f], f);
    etch__text_put(&t, "        }\n        __syncthreads();\n    }\n}\n");
    return etch__text_end(&t);
}

/* ---- which function a step is ---- */

static bool same_kernel(const loop_kernel *a, const loop_kernel *b) {
    uint8_t x[8192], y[8192];
    size_t n = etch__loop_serialise(a, x, sizeof x);
    return n <= sizeof x && etch__loop_serialise(b, y, sizeof y) == n && !memcmp(x, y, n);
}

static int function_of(whole_ctx *c, const whole_step *s) {
    whole_function f = {.k = s->low ? &s->low->k : NULL, .dtype = s->dtype, .always = ~0u};
    for (int at = 0; at < c->nfunctions; at++) {
        const whole_function *g = &c->functions[at];
        if (!f.k && !g->k && f.dtype == g->dtype) return at;
        if (f.k && g->k && same_kernel(f.k, g->k)) return at;
    }
    f.bytes = f.k ? etch__cuda_args_size(f.k) : PRODUCT_WORDS * 8;
    c->functions[c->nfunctions] = f;
    return c->nfunctions++;
}

/* Which function each step is, and where the functions' arguments lie. Returns the parameter's
 * bytes. */
static size_t number_steps(whole_ctx *c) {
    size_t bytes = 0;
    for (int i = 0; i < c->n; i++) {
        const whole_step *s = &c->steps[i];
        whole_function *f = &c->functions[c->number[i] = function_of(c, s)];
        for (int k = 0; k < s->nargs; k++) c->local[i] |= (uint32_t)(s->arena[k] >= 0) << k;
        f->always &= c->local[i], f->ever |= c->local[i];
        if (!s->low && s->numbers[3] > f->k_most) f->k_most = s->numbers[3];
        c->place[i] = f->calls++;
    }
    for (int f = 0; f < c->nfunctions; f++) {
        c->functions[f].at = bytes;
        bytes += (size_t)c->functions[f].calls * c->functions[f].bytes;
    }
    return bytes;
}

/* ---- making one ---- */

/* Few elements may lie far apart: the code has 32-bit offsets. */
static bool fits(const whole_step *s) {
    if (!s->low) return true;
    if (etch__cuda_choose(&s->low->k, s->low->dims, 0).index_bits != variant.index_bits)
        return false;
    cuda_shape shape = etch__cuda_shape(&s->low->k, &variant, s->low->dims);
    return !s->low->split && s->low->k.split == SPLIT_NONE && shape.block[0] == WHOLE_THREADS &&
           !shape.shared;
}

/* The key is the source's own text: it says all. */
static cuda_code *code_of(int device, const whole_ctx *c, const char **why) {
    cuda_device *d = etch__cuda_enter(etch__device_index(device));
    char *source = d ? source_of(c) : NULL;
    if (!source) return NULL;
    uint8_t key[40];
    etch__cuda_text_key(source, key);
    cuda_code *code = etch__cuda_code(d, key, sizeof key, "etch_whole", source_of, c, why);
    etch__free(source);
    return code;
}

void etch__cuda_whole_free(whole_launcher *l) {
    if (!l) return;
    etch__cuda_code_release(l->code);
    etch__free(l);
}

/* Elements of the largest map. */
static int64_t largest_map(const whole_ctx *c) {
    int64_t most = 0;
    for (int i = 0; i < c->n; i++) {
        const lowered *low = c->steps[i].low;
        int64_t n = low && low->k.variant == LOOP_MAP;
        for (int x = 0; n && x < low->k.npar; x++) n *= low->dims[x];
        if (n > most) most = n;
    }
    return most;
}

static void fill_step(launcher_step *to, const whole_ctx *c, int i) {
    const whole_step *s = &c->steps[i];
    const whole_function *f = &c->functions[c->number[i]];
    to->matmul = !s->low, to->arg = s->arg, to->cell = s->cell;
    to->at = f->at + (size_t)c->place[i] * f->bytes;
    to->local = c->local[i];
    memcpy(to->arena, s->arena, sizeof to->arena);
    if (s->low) to->k = s->low->k, memcpy(to->dims, s->low->dims, sizeof s->low->dims);
    else memcpy(to->dims, s->numbers, sizeof s->numbers);
}

whole_launcher *etch__cuda_whole_new(int device, const whole_step *steps, int n,
                                     int64_t arena_bytes) {
    whole_ctx c = {.steps = steps, .n = n};
    const char *why = "";
    if (n > WHOLE_STEPS || arena_bytes > WHOLE_ARENA) return NULL;
    for (int i = 0; i < n; i++)
        if (!fits(&steps[i])) return NULL;
    if (number_steps(&c) > PARAMETER_MAX) return NULL;
    whole_launcher *l = etch__calloc(1, sizeof *l + (size_t)n * sizeof l->steps[0]);
    if (!l) return NULL;
    c.depth = largest_map(&c) > WHOLE_THREADS ? WHOLE_DEPTH : 1;
    l->device = etch__device_index(device), l->nsteps = n, l->shared = (unsigned)arena_bytes;
    for (int i = 0; i < n; i++) fill_step(&l->steps[i], &c, i);
    if ((l->code = code_of(device, &c, &why))) return l;
    if (*why) etch__log(LOG_CACHE, "a plan as one kernel: %s", why);
    etch__cuda_whole_free(l);
    return NULL;
}

static void fill_parameter(const launcher_step *s, void *const *args, const uint64_t *cells,
                           uint64_t *to) {
    if (s->matmul) {
        memcpy(to, args, 3 * sizeof *args);
        memcpy(to + 3, s->dims, 10 * sizeof *to);
    } else {
        etch__cuda_args_fill(&s->k, args, s->dims, cells, to);
    }
    for (uint32_t local = s->local; local; local &= local - 1) {
        int k = __builtin_ctz(local);
        to[k] = (uint64_t)s->arena[k];
    }
}

etch_status etch__cuda_whole_launch(whole_launcher *l, void *const *args, const uint64_t *cells) {
    static const unsigned grid[3] = {1, 1, 1}, block[3] = {WHOLE_THREADS, 1, 1};
    uint64_t parameter[PARAMETER_MAX / 8];
    cuda_stream *s = etch__cuda_stream(l->device);
    if (unlikely(!s)) return etch__tls.status;
    for (int i = 0; i < l->nsteps; i++) {
        const launcher_step *step = &l->steps[i];
        fill_parameter(step, args + step->arg, cells + step->cell, parameter + step->at / 8);
    }
    return etch__cuda_launch(s, etch__cuda_function(l->code), "etch_whole", grid, block, l->shared,
                             parameter);
}
