/* A small plan as one kernel: one block does all steps, with barriers between them; the
 * arena lies in shared memory. The steps are the same generated kernels, as device
 * functions: equal ones are one function. Their bits do not depend on the launch shape, so
 * they are those of separate launches. */
#include "backends/cuda/launch.h"

enum { WHOLE_THREADS = 256, WHOLE_TILE = 3, WHOLE_STEPS = 32, WHOLE_ARENA = 32 << 10 };
enum { PRODUCT_WORDS = 13 };

/* What a step does: a loop kernel, or a product. */
typedef struct whole_function {
    const loop_kernel *k; /* NULL: a product of this dtype */
    etch_dtype dtype;
} whole_function;

struct whole_launcher {
    int device, nsteps;
    cuda_code *code;
    unsigned shared;
    size_t bytes; /* of the parameter */
    struct {
        bool product;
        int32_t arg, cell;
        size_t at; /* in the parameter */
        loop_kernel k;
        int64_t dims[LOOP_MAX_AXES * (LOOP_MAX_ACCESSES + 1)]; /* product: its ten numbers */
    } steps[];
};

static const cuda_variant variant = {.index_bits = 32, .vector = 1, .tile = WHOLE_TILE, .hold = 0};

/* ---- source ---- */

typedef struct whole_ctx {
    const whole_step *steps;
    int n, nfunctions;
    whole_function functions[WHOLE_STEPS];
    int number[WHOLE_STEPS]; /* per step: its function */
} whole_ctx;

typedef struct text {
    char *p;
    int64_t n, cap;
    bool failed;
} text;

static void put_bytes(text *t, const char *s, size_t n) {
    if (t->failed || !etch__grow(&t->p, &t->cap, t->n + (int64_t)n + 1, 1)) {
        t->failed = true;
        return;
    }
    memcpy(t->p + t->n, s, n);
    t->p[t->n += (int64_t)n] = 0;
}

static void put(text *t, const char *format, ...) {
    char line[512];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    put_bytes(t, line, n < (int)sizeof line ? (size_t)n : sizeof line - 1);
}

/* The text as it reads where there is one block. */
static void put_one_block(text *t, const char *s) {
    static const char *const from[] = {"blockIdx.x", "gridDim.x"}, *const to[] = {"0u", "1u"};
    while (*s) {
        const char *first = NULL;
        int which = 0;
        for (int i = 0; i < 2; i++) {
            const char *at = strstr(s, from[i]);
            if (at && (!first || at < first)) first = at, which = i;
        }
        if (!first) break;
        put_bytes(t, s, (size_t)(first - s));
        put(t, "%s", to[which]);
        s = first + strlen(from[which]);
    }
    put_bytes(t, s, strlen(s));
}

/* Turns the kernel's head, `extern "C" __global__ ... (const __grid_constant__ struct etch_args X)
 * {`, into that of a device function `run`. */
static void put_as_function(text *t, const char *source, int number, bool often) {
    const char *head = strstr(source, "extern \"C\" __global__");
    const char *open = head ? strstr(head, "etch_args ") : NULL;
    if (!open) {
        t->failed = true;
        return;
    }
    put(t, "namespace f%d {\n", number);
    put_bytes(t, source, (size_t)(head - source));
    /* Its name and the rest follow. A copy at each call would take seconds to compile. */
    put(t, "__device__ %svoid run(const etch_args &", often ? "__noinline__ " : "");
    put_one_block(t, open + strlen("etch_args "));
    put(t, "}\n");
}

static void put_function(text *t, const whole_ctx *c, int number) {
    const whole_function *f = &c->functions[number];
    int calls = 0;
    for (int i = 0; i < c->n; i++) calls += c->number[i] == number;
    product_text product = {f->dtype, false, etch__cuda_small_text};
    char *source = f->k ? etch__cuda_source(f->k, &variant) : etch__cuda_product_text(&product);
    if (source) put_as_function(t, source, number, calls > 2);
    else t->failed = true;
    if (!f->k) put(t, "#undef LOAD\n#undef STORE\n#undef CHAIN\n");
    etch__free(source);
}

static void put_step(text *t, const whole_ctx *c, int i) {
    static const char *const fields[3] = {"a", "b", "c"};
    const whole_step *s = &c->steps[i];
    put(t, "    {\n        f%d::etch_args s = a.s%d;\n", c->number[i], i);
    for (int k = 0; k < s->nargs; k++) {
        if (s->arena[k] < 0) continue;
        if (s->low) put(t, "        s.ptr[%d] = arena + %lld;\n", k, (long long)s->arena[k]);
        else
            put(t, "        s.%s = (f%d::ETCH_T *)(arena + %lld);\n", fields[k], c->number[i],
                (long long)s->arena[k]);
    }
    put(t, "        f%d::run(s);\n    }\n", c->number[i]);
    if (i + 1 < c->n) put(t, "    __syncthreads();\n");
}

static char *source_of(const void *ctx) {
    const whole_ctx *c = ctx;
    text t = {0};
    for (int f = 0; f < c->nfunctions; f++) put_function(&t, c, f);
    put(&t, "struct etch_whole_args {\n");
    for (int i = 0; i < c->n; i++) put(&t, "    f%d::etch_args s%d;\n", c->number[i], i);
    put(&t,
        "};\nextern \"C\" __global__ void __launch_bounds__(%d)\n"
        "    etch_whole(const __grid_constant__ struct etch_whole_args a) {\n"
        "    extern __shared__ unsigned long long arena_words[];\n"
        "    unsigned char *const arena = (unsigned char *)arena_words;\n",
        WHOLE_THREADS);
    for (int i = 0; i < c->n; i++) put_step(&t, c, i);
    put(&t, "}\n");
    if (!t.failed) return t.p;
    etch__free(t.p);
    return NULL;
}

/* ---- which function a step is ---- */

static bool same_kernel(const loop_kernel *a, const loop_kernel *b) {
    uint8_t x[8192], y[8192];
    size_t n = etch__loop_serialise(a, x, sizeof x);
    return n <= sizeof x && etch__loop_serialise(b, y, sizeof y) == n && !memcmp(x, y, n);
}

static void number_steps(whole_ctx *c) {
    for (int i = 0; i < c->n; i++) {
        const whole_step *s = &c->steps[i];
        whole_function f = {s->low ? &s->low->k : NULL, s->dtype};
        int at = 0;
        for (; at < c->nfunctions; at++) {
            const whole_function *g = &c->functions[at];
            if (!f.k && !g->k && f.dtype == g->dtype) break;
            if (f.k && g->k && same_kernel(f.k, g->k)) break;
        }
        if (at == c->nfunctions) c->functions[c->nfunctions++] = f;
        c->number[i] = at;
    }
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

whole_launcher *etch__cuda_whole_new(int device, const whole_step *steps, int n,
                                     int64_t arena_bytes) {
    whole_ctx c = {.steps = steps, .n = n};
    const char *why = "";
    if (n > WHOLE_STEPS || arena_bytes > WHOLE_ARENA) return NULL;
    for (int i = 0; i < n; i++)
        if (!fits(&steps[i])) return NULL;
    whole_launcher *l = etch__calloc(1, sizeof *l + (size_t)n * sizeof l->steps[0]);
    if (!l) return NULL;
    number_steps(&c);
    l->device = etch__device_index(device), l->nsteps = n, l->shared = (unsigned)arena_bytes;
    for (int i = 0; i < n; i++) {
        const whole_step *s = &steps[i];
        l->steps[i].product = !s->low;
        l->steps[i].arg = s->arg, l->steps[i].cell = s->cell, l->steps[i].at = l->bytes;
        if (s->low) {
            l->steps[i].k = s->low->k;
            memcpy(l->steps[i].dims, s->low->dims, sizeof s->low->dims);
        } else {
            memcpy(l->steps[i].dims, s->numbers, sizeof s->numbers);
        }
        l->bytes += s->low ? etch__cuda_args_size(&s->low->k) : PRODUCT_WORDS * 8;
    }
    if (l->bytes <= PARAMETER_MAX) l->code = code_of(device, &c, &why);
    if (l->code) return l;
    if (*why) etch__log(LOG_CACHE, "a plan as one kernel: %s", why);
    etch__cuda_whole_free(l);
    return NULL;
}

etch_status etch__cuda_whole_launch(whole_launcher *l, void *const *args, const uint64_t *cells) {
    static const unsigned grid[3] = {1, 1, 1}, block[3] = {WHOLE_THREADS, 1, 1};
    uint64_t parameter[PARAMETER_MAX / 8];
    cuda_stream *s = etch__cuda_stream(l->device);
    if (unlikely(!s)) return etch__tls.status;
    for (int i = 0; i < l->nsteps; i++) {
        uint64_t *to = parameter + l->steps[i].at / 8;
        void *const *from = args + l->steps[i].arg;
        if (l->steps[i].product) {
            memcpy(to, from, 3 * sizeof *from);
            memcpy(to + 3, l->steps[i].dims, 10 * sizeof *to);
        } else {
            etch__cuda_args_fill(&l->steps[i].k, from, l->steps[i].dims, cells + l->steps[i].cell,
                                 to);
        }
    }
    return etch__cuda_launch(s, etch__cuda_function(l->code), "etch_whole", grid, block, l->shared,
                             parameter);
}
