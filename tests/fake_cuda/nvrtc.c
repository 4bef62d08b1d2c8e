/* The fake of NVRTC: options are checked against those that NVRTC knows and translated for g++. */
#include "api_types.h"
#include "api_calls.h"
#include "control.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct _nvrtcProgram {
    char *source, *name;
    char *cubin, *log;
    size_t cubin_size;
    bool compiled;
};

#define ENTER(name)                                                                                \
    if (fake_cuda_enter(#name)) return NVRTC_ERROR_INTERNAL_ERROR

#define CHECK(condition, error)                                                                    \
    do {                                                                                           \
        if (!(condition)) return error;                                                            \
    } while (0)

nvrtcResult nvrtcVersion(int *major, int *minor) {
    ENTER(nvrtcVersion);
    CHECK(major && minor, NVRTC_ERROR_INVALID_INPUT);
    *major = fake_cuda_version() / 1000;
    *minor = fake_cuda_version() % 1000 / 10;
    return NVRTC_SUCCESS;
}

static const int archs[] = {75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121};
enum { ARCHS = sizeof archs / sizeof *archs };

/* Sources that bring headers along are refused. */
nvrtcResult nvrtcCreateProgram(nvrtcProgram *program, const char *source, const char *name,
                               int headers, const char *const *texts, const char *const *names) {
    ENTER(nvrtcCreateProgram);
    (void)texts;
    (void)names;
    CHECK(program && source && headers == 0, NVRTC_ERROR_INVALID_INPUT);
    nvrtcProgram made = calloc(1, sizeof *made);
    CHECK(made, NVRTC_ERROR_OUT_OF_MEMORY);
    made->source = strdup(source);
    made->name = strdup(name ? name : "default_program");
    made->log = strdup("");
    fake_cuda_object("program", 1);
    *program = made;
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcDestroyProgram(nvrtcProgram *program) {
    const int fails = fake_cuda_enter("nvrtcDestroyProgram");
    CHECK(program && *program, NVRTC_ERROR_INVALID_PROGRAM);
    nvrtcProgram p = *program;
    free(p->source);
    free(p->name);
    free(p->cubin);
    free(p->log);
    free(p);
    fake_cuda_object("program", -1);
    *program = NULL;
    return fails ? NVRTC_ERROR_INTERNAL_ERROR : NVRTC_SUCCESS;
}

/* ---- options ---- */

typedef struct options {
    char flags[1024];
    int arch;
    bool real; /* sm_XX, not compute_XX */
    const char *bad;
} options;

/* Options that change nothing here; those that end in = take any value. */
static const char *const ignored[] = {"device-debug",
                                      "generate-line-info",
                                      "dopt=",
                                      "dopt",
                                      "ptxas-options=",
                                      "maxrregcount=",
                                      "ftz=",
                                      "prec-sqrt=",
                                      "prec-div=",
                                      "extra-device-vectorization",
                                      "modify-stack-limit=",
                                      "builtin-move-forward=",
                                      "builtin-initializer-list=",
                                      "disable-warnings",
                                      "restrict",
                                      "device-as-default-execution-space",
                                      "default-device",
                                      "device-int128",
                                      "optimization-info=",
                                      "display-error-number",
                                      "no-display-error-number",
                                      "diag-suppress=",
                                      "diag-error=",
                                      "diag-warn=",
                                      "minimal",
                                      "brief-diagnostics=",
                                      "time=",
                                      "split-compile=",
                                      "relocatable-device-code=",
                                      "lineinfo",
                                      "G",
                                      "w",
                                      "no-source-include",
                                      "no-cache",
                                      "dlink-time-opt",
                                      "fdevice-time-trace="};

static bool is_ignored(const char *option) {
    for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++) {
        const size_t length = strlen(ignored[i]);
        const bool prefix = ignored[i][length - 1] == '=';
        if (!strncmp(option, ignored[i], length) && (prefix || !option[length])) return true;
    }
    return false;
}

static void add_flag(options *o, const char *flag) {
    const size_t used = strlen(o->flags);
    snprintf(o->flags + used, sizeof o->flags - used, " '%s'", flag);
}

static const char *value_of(const char *option, const char *name) {
    const size_t length = strlen(name);
    if (strncmp(option, name, length) || option[length] != '=') return NULL;
    return option + length + 1;
}

static void read_arch(options *o, const char *value) {
    const char *number = strchr(value, '_');
    o->arch = number ? atoi(number + 1) : 0;
    o->real = !strncmp(value, "sm_", 3);
    bool known = false;
    for (int i = 0; i < ARCHS; i++) known |= archs[i] == o->arch;
    if (!known || (!o->real && strncmp(value, "compute_", 8))) o->bad = value;
}

static void read_option(options *o, const char *given) {
    const char *option = given + strspn(given, "-"), *value;
    if ((value = value_of(option, "gpu-architecture")) || (value = value_of(option, "arch")))
        read_arch(o, value);
    else if ((value = value_of(option, "fmad"))) {
        if (!strcmp(value, "false")) add_flag(o, "-ffp-contract=off");
    } else if (value_of(option, "std") || !strncmp(option, "D", 1) || !strncmp(option, "U", 1) ||
               !strncmp(option, "I", 1))
        add_flag(o, given[1] == '-' ? given + 1 : given);
    else if ((value = value_of(option, "define-macro"))) {
        char flag[256];
        snprintf(flag, sizeof flag, "-D%s", value);
        add_flag(o, flag);
    } else if (!strcmp(option, "use_fast_math")) add_flag(o, "-ffp-contract=fast");
    else if (*given != '-' || !is_ignored(option)) o->bad = given;
}

static void set_log(nvrtcProgram program, const char *format, const char *word) {
    free(program->log);
    program->log = NULL;
    if (asprintf(&program->log, format, word) < 0) abort();
}

nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int count, const char *const *given) {
    ENTER(nvrtcCompileProgram);
    CHECK(program, NVRTC_ERROR_INVALID_PROGRAM);
    CHECK(count == 0 || given, NVRTC_ERROR_INVALID_INPUT);
    options o = {.arch = 75};
    for (int i = 0; i < count && !o.bad; i++) read_option(&o, given[i]);
    if (o.bad) {
        set_log(program, "nvrtc: error: invalid option: %s\n", o.bad);
        return NVRTC_ERROR_INVALID_OPTION;
    }
    const struct fake_source source = {
        .text = program->source, .name = program->name, .flags = o.flags, .arch = o.arch};
    free(program->log);
    program->log = NULL;
    fake_cuda_compile_begins();
    program->cubin = fake_cuda_compile(&source, &program->cubin_size, &program->log);
    fake_cuda_compile_ends();
    program->compiled = program->cubin;
    CHECK(program->compiled, NVRTC_ERROR_COMPILATION);
    if (!o.real) program->cubin_size = 0;
    return NVRTC_SUCCESS;
}

/* ---- results ---- */

#define RESULT(name)                                                                               \
    ENTER(name);                                                                                   \
    CHECK(program, NVRTC_ERROR_INVALID_PROGRAM)

nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, size_t *size) {
    RESULT(nvrtcGetCUBINSize);
    CHECK(size, NVRTC_ERROR_INVALID_INPUT);
    CHECK(program->compiled, NVRTC_ERROR_INVALID_PROGRAM);
    *size = program->cubin_size;
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char *bytes) {
    RESULT(nvrtcGetCUBIN);
    CHECK(bytes, NVRTC_ERROR_INVALID_INPUT);
    CHECK(program->compiled && program->cubin_size, NVRTC_ERROR_INVALID_PROGRAM);
    memcpy(bytes, program->cubin, program->cubin_size);
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, size_t *size) {
    RESULT(nvrtcGetProgramLogSize);
    CHECK(size, NVRTC_ERROR_INVALID_INPUT);
    *size = strlen(program->log) + 1;
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char *text) {
    RESULT(nvrtcGetProgramLog);
    CHECK(text, NVRTC_ERROR_INVALID_INPUT);
    strcpy(text, program->log);
    return NVRTC_SUCCESS;
}
