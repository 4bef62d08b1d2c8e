/* From a loop kernel to a shared object: options, the libraries it needs, libgccjit's own dump. */
#include "gen.h"

#include <stdio.h>
#include <stdlib.h>

/* Results have the same bits at each level: builds under sanitizers, which look at the helper and
 * not at what GCC makes, take a lower one. */
#ifndef ETCH_JIT_LEVEL
#define ETCH_JIT_LEVEL 3
#endif

static const char *const isa_options[CPU_ISA_COUNT][3] = {
    {"-march=x86-64", "-mtune=generic", NULL},
    {"-march=x86-64-v3", "-mtune=generic", NULL},
    {"-march=x86-64-v4", "-mprefer-vector-width=512", NULL},
};

/* Nothing here may change a bit: no fast-math of any kind, not even -fno-trapping-math. Sinking,
 * threading of jumps and partial redundancies would move arithmetic into the branches that choose()
 * makes, where it may trap and is not vectorised. A loop of many arguments is vectorised as well:
 * of 10 pairs that may overlap GCC gives up, as two results of five operands have. */
static const char *const options[] = {"-fno-math-errno",
                                      "-ffp-contract=off",
                                      "-fwrapv",
                                      "-fno-strict-aliasing",
                                      "-fno-semantic-interposition",
                                      "-fno-tree-sink",
                                      "-fno-thread-jumps",
                                      "-fno-tree-pre",
                                      "--param=vect-max-version-for-alias-checks=64"};

/* No start files: a kernel needs none, and none may touch the floating-point mode. */
static const char *const driver_options[] = {"-nostdlib", "-Wl,-z,noexecstack",
                                             "-Wl,--build-id=none", "-Wl,--as-needed", "-lm"};

static void set_options(emitter *g) {
    gcc_jit_context_set_int_option(g->c, GCC_JIT_INT_OPTION_OPTIMIZATION_LEVEL, ETCH_JIT_LEVEL);
    gcc_jit_context_set_str_option(g->c, GCC_JIT_STR_OPTION_PROGNAME, "etch-jit");
    gcc_jit_context_set_bool_print_errors_to_stderr(g->c, 0);
    for (int i = 0; isa_options[g->isa][i]; i++)
        gcc_jit_context_add_command_line_option(g->c, isa_options[g->isa][i]);
    for (int i = 0; i < COUNT_OF(options); i++)
        gcc_jit_context_add_command_line_option(g->c, options[i]);
    if (g->k->any_mode) gcc_jit_context_add_command_line_option(g->c, "-frounding-math");
    gcc_jit_context_add_driver_option(g->c, "-B" ETCH_BINUTILS_DIR "/");
    for (int i = 0; i < COUNT_OF(driver_options); i++)
        gcc_jit_context_add_driver_option(g->c, driver_options[i]);
}

static char *read_all(const char *path) {
    FILE *f = fopen(path, "rb");
    if (!f) return NULL;
    char *text = NULL;
    long n = fseek(f, 0, SEEK_END) == 0 ? ftell(f) : -1;
    if (n >= 0 && fseek(f, 0, SEEK_SET) == 0) text = malloc((size_t)n + 1);
    if (text) text[fread(text, 1, (size_t)n, f)] = 0;
    fclose(f);
    return text;
}

/* The context as C-like text. */
static char *dump_of(emitter *g, const char *object) {
    char path[4096 + 8];
    snprintf(path, sizeof path, "%s.txt", object);
    gcc_jit_context_dump_to_file(g->c, path, 0);
    char *text = read_all(path);
    remove(path);
    return text;
}

const char *compile_kernel(const compile_request *r, char **dump) {
    static char message[512];
    emitter *g = calloc(1, sizeof *g);
    if (!g) return "out of memory";
    g->k = r->kernel, g->isa = r->isa;
    g->c = gcc_jit_context_acquire();
    if (!g->c) return free(g), "libgccjit gave no context";
    set_options(g);
    gen_kernel(g, r->symbol);
    if (g->array_bytes > LOOP_STACK_MAX)
        return gcc_jit_context_release(g->c), free(g), "the kernel takes too much stack";
    if (r->dump && !gcc_jit_context_get_first_error(g->c)) *dump = dump_of(g, r->path);
    if (!gcc_jit_context_get_first_error(g->c))
        gcc_jit_context_compile_to_file(g->c, GCC_JIT_OUTPUT_KIND_DYNAMIC_LIBRARY, r->path);
    const char *error = gcc_jit_context_get_first_error(g->c);
    if (error) snprintf(message, sizeof message, "%s", error);
    gcc_jit_context_release(g->c);
    free(g);
    return error ? message : NULL;
}
