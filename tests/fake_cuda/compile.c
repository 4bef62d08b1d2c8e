/* CUDA C to an image for the host: the kernels are found in the source, g++ compiles prelude,
 * source and a table of the kernels to a shared object, and a header goes before its bytes. A suite
 * compiles hundreds of small kernels, so what each of them costs is kept low: see the options. */
#include "control.h"
#include "image.h"

#include <ctype.h>
#include <pthread.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

__asm__(".section .rodata\n"
        "fake__prelude:\n"
        "    .incbin \"" FAKE_PRELUDE "\"\n"
        "fake__prelude_end:\n"
        "    .byte 0\n"
        ".text\n");
extern const char fake__prelude[] __attribute__((visibility("hidden")));

typedef struct text {
    char *bytes;
    size_t size;
    FILE *file;
} text;

static void text_open(text *t) {
    t->file = open_memstream(&t->bytes, &t->size);
    if (!t->file) abort();
}

/* ---- the source ---- */

/* Comments and strings, blanked, so that only code is searched. Same length as the source. */
static char *only_code(const char *source) {
    char *code = strdup(source);
    if (!code) abort();
    for (char *c = code; *c; c++) {
        char *end = NULL;
        if (!strncmp(c, "//", 2)) end = c + strcspn(c, "\n");
        else if (!strncmp(c, "/*", 2)) end = strstr(c + 2, "*/") ? strstr(c + 2, "*/") + 2 : NULL;
        else if (*c == '"' || *c == '\'') {
            for (end = c + 1; *end && *end != *c; end++) end += *end == '\\' && end[1];
            end += *end != 0;
        }
        if (!end) continue;
        for (; c < end; c++)
            if (*c != '\n') *c = ' ';
        c--;
    }
    return code;
}

static bool is_word(char c) { return isalnum((unsigned char)c) || c == '_'; }

/* The next place where a word stands alone. */
static char *find_word(char *code, const char *word) {
    const size_t length = strlen(word);
    for (char *c = code; (c = strstr(c, word)); c += length)
        if ((c == code || !is_word(c[-1])) && !is_word(c[length])) return c;
    return NULL;
}

/* "extern __shared__ T name[]" becomes "extern T name[]"; all such names are one buffer, which the
 * table at the end makes them. */
static void find_dynamic(char *code, char *source, FILE *table) {
    for (char *c = code; (c = find_word(c, "__shared__")); c += 10) {
        char *before = c;
        while (before > code && isspace((unsigned char)before[-1])) before--;
        if (before - code < 6 || strncmp(before - 6, "extern", 6)) continue;
        char *bracket = c + strcspn(c, "[;");
        if (*bracket != '[') continue;
        memset(source + (c - code), ' ', 10);
        char *end = bracket;
        while (end > c && isspace((unsigned char)end[-1])) end--;
        char *start = end;
        while (start > c && is_word(start[-1])) start--;
        const int length = (int)(end - start);
        fprintf(table, "__asm__(\".globl %.*s\\n.set %.*s, fake_dynamic_shared\");\n", length,
                start, length, start);
    }
}

static char *after_parens(char *c) {
    int depth = 0;
    for (; *c; c++) {
        depth += (*c == '(') - (*c == ')');
        if (*c == ')' && !depth) return c + 1;
    }
    return c;
}

typedef struct found {
    char name[128], bound[128];
} found;

/* From behind "__global__" to the name before the parameters; the first
 * bound on the way is kept. */
static bool read_kernel(char *c, found *kernel) {
    snprintf(kernel->bound, sizeof kernel->bound, "0");
    while (*c && *c != ';' && *c != '{') {
        if (!is_word(*c)) {
            c++;
            continue;
        }
        char *word = c;
        while (is_word(*c)) c++;
        const int length = (int)(c - word);
        char *next = c + strspn(c, " \t\r\n");
        if (*next != '(') continue;
        if (length == 17 && !strncmp(word, "__launch_bounds__", 17)) {
            snprintf(kernel->bound, sizeof kernel->bound, "%.*s", (int)strcspn(next + 1, ",)"),
                     next + 1);
            c = after_parens(next);
        } else if (!strncmp(word, "__attribute__", 13) || !strncmp(word, "__align__", 9)) {
            c = after_parens(next);
        } else {
            snprintf(kernel->name, sizeof kernel->name, "%.*s", length, word);
            return true;
        }
    }
    return false;
}

static int find_kernels(char *code, found *kernels, int room) {
    int count = 0;
    for (char *c = code; (c = find_word(c, "__global__")); c += 10) {
        found kernel;
        if (count == room || !read_kernel(c + 10, &kernel)) continue;
        bool known = false;
        for (int i = 0; i < count; i++) known |= !strcmp(kernels[i].name, kernel.name);
        if (!known) kernels[count++] = kernel;
    }
    return count;
}

enum { MAX_KERNELS = 512 };

/* All but the prelude, which the compiler reads first. */
static char *whole_source(const struct fake_source *source) {
    char *copy = strdup(source->text), *code = only_code(source->text);
    found *kernels = calloc(MAX_KERNELS, sizeof *kernels);
    if (!copy || !kernels) abort();
    text all = {0}, table = {0};
    text_open(&all);
    text_open(&table);
    find_dynamic(code, copy, table.file);
    const int count = find_kernels(code, kernels, MAX_KERNELS);
    fprintf(table.file, "static const fake_kernel fake_kernel_list[] = {\n");
    for (int i = 0; i < count; i++)
        fprintf(table.file, "FAKE_KERNEL(%s, \"%s\", %s),\n", kernels[i].bound, kernels[i].name,
                kernels[i].name);
    fprintf(table.file, "{}};\nFAKE_IMAGE(%d, %d)\n", FAKE_IMAGE_VERSION, count);
    fclose(table.file);
    fprintf(all.file, "#define FAKE_CUDA_ARCH %d\n#line 1 \"%s\"\n%s\n#line 1 \"kernels\"\n%s",
            source->arch, source->name, copy, table.bytes);
    fclose(all.file);
    free(table.bytes);
    free(kernels);
    free(copy);
    free(code);
    return all.bytes;
}

/* ---- the compiler ---- */

static char *read_file(const char *path, size_t before, size_t *size) {
    struct stat status;
    FILE *file = fopen(path, "rb");
    if (!file) return NULL;
    if (fstat(fileno(file), &status)) status.st_size = 0;
    const size_t bytes = (size_t)status.st_size;
    char *data = calloc(1, before + bytes + 1);
    if (data && fread(data + before, 1, bytes, file) != bytes) {
        free(data);
        data = NULL;
    }
    fclose(file);
    if (size) *size = before + bytes;
    return data;
}

static bool write_text(const char *path, const char *bytes) {
    FILE *file = fopen(path, "w");
    if (!file) return false;
    const bool written = fputs(bytes, file) >= 0;
    return fclose(file) == 0 && written;
}

static uint64_t hash(const char *c, uint64_t seed) {
    for (; *c; c++) seed = (seed ^ (unsigned char)*c) * 0x100000001b3u;
    return seed;
}

enum { OPTIONS = 2048 };
static const uint64_t first_hash = 0xcbf29ce484222325u;

/* What is written as one instruction (fmaf) is one, where the machine can, and no call of libm. */
static const char *machine(void) { return __builtin_cpu_supports("fma") ? "-mfma" : ""; }

/* Multiplications and additions contract by default, as NVRTC's do, where the machine can. */
static const char *contraction(const char *flags) {
    return strstr(flags, "-ffp-contract=off") || !*machine() ? "" : "-ffp-contract=fast";
}

/* A kernel with shared memory does much for what it takes to compile (products, tiles), and nothing
 * contracts without optimising. All others are compiled in less time than -O1 would save. */
static const char *strength(const struct fake_source *source) {
    return strstr(source->text, "__shared__") || *contraction(source->flags) ? "-O1" : "-O0";
}

/* The compiler and all that a compiled prelude has to agree with. No symbol may be shared between
 * modules: without -fno-gnu-unique those of templates would be. */
static void compiler_options(char *to, const struct fake_source *source) {
    const char *compiler = getenv("FAKE_CUDA_CXX");
    snprintf(to, OPTIONS,
             "%s -std=c++17 %s -w -fPIC -pipe -fno-exceptions -fno-rtti -fno-math-errno -fwrapv "
             "-fno-strict-aliasing -fno-gnu-unique -fno-asynchronous-unwind-tables "
             "-fstack-clash-protection %s %s %s",
             compiler && *compiler ? compiler : "g++", strength(source), machine(),
             contraction(source->flags), source->flags);
}

static bool run_shell(char *command) {
    char *const arguments[] = {"sh", "-c", command, NULL};
    pid_t pid;
    int status;
    if (posix_spawn(&pid, "/bin/sh", NULL, NULL, arguments, environ)) return false;
    while (waitpid(pid, &status, 0) < 0) continue;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* Kernels need no library of C++, and linking is a third of the time. */
static bool run_compiler(const char *folder, const char *options, const char *prelude) {
    char command[2 * OPTIONS];
    snprintf(command, sizeof command,
             "cd '%s' && exec %s -include '%s' -x c++ -shared -Wl,-Bsymbolic -Wl,--build-id=none "
             "-nostdlib -o k.so k.cpp -lm >log 2>&1",
             folder, options, prelude);
    return run_shell(command);
}

/* ---- the prelude, compiled: to read it is most of a small kernel's time ---- */

/* To names of this process first: several may do it at once. */
static void compile_prelude(const char *path, const char *options) {
    char made[1024], compiled[1024], there[1024], command[2 * OPTIONS];
    snprintf(made, sizeof made, "%s.%d.hpp", path, (int)getpid());
    snprintf(compiled, sizeof compiled, "%s.gch", made);
    snprintf(there, sizeof there, "%s.gch", path);
    snprintf(command, sizeof command, "%s -x c++-header '%s' -o '%s' >/dev/null 2>&1", options,
             made, compiled);
    if (!write_text(made, fake__prelude)) return;
    const bool done = run_shell(command);
    rename(made, path);
    if (done) rename(compiled, there);
}

/* Where the compiler finds the prelude: beside the images that are kept, with its compiled form, or
 * as it is in the folder of this compile. */
static void find_prelude(char *path, size_t n, const char *folder, const char *options) {
    static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
    const char *kept = getenv("FAKE_CUDA_CACHE");
    if (kept && *kept) {
        snprintf(path, n, "%s/prelude-%016llx.hpp", kept,
                 (unsigned long long)hash(options, hash(fake__prelude, first_hash)));
        pthread_mutex_lock(&one);
        if (access(path, R_OK)) compile_prelude(path, options);
        pthread_mutex_unlock(&one);
        if (!access(path, R_OK)) return;
    }
    snprintf(path, n, "%s/prelude.hpp", folder);
    if (!write_text(path, fake__prelude)) abort();
}

static char *join(const char *folder, const char *name) {
    char *path = NULL;
    if (asprintf(&path, "%s/%s", folder, name) < 0) abort();
    return path;
}

static char *read_image(const char *path, size_t *size, int arch) {
    char *image = read_file(path, sizeof(fake_header), size);
    if (!image) return NULL;
    const fake_header header = {
        .magic = FAKE_MAGIC, .arch = (unsigned)arch, .size = *size - sizeof header};
    memcpy(image, &header, sizeof header);
    return image;
}

static void *compile_in(const char *folder, const struct fake_source *source, const char *whole,
                        size_t *size, char **log) {
    static const char *const names[] = {"k.cpp", "k.so", "log", "prelude.hpp"};
    char *path[4], options[OPTIONS], prelude[1024];
    void *image = NULL;
    for (int i = 0; i < 4; i++) path[i] = join(folder, names[i]);
    compiler_options(options, source);
    find_prelude(prelude, sizeof prelude, folder, options);
    if (write_text(path[0], whole) && run_compiler(folder, options, prelude))
        image = read_image(path[1], size, source->arch);
    *log = read_file(path[2], 0, NULL);
    if (!*log) *log = strdup("");
    for (int i = 0; i < 4; i++) {
        unlink(path[i]);
        free(path[i]);
    }
    return image;
}

static void *compile_anew(const struct fake_source *source, const char *whole, size_t *size,
                          char **log) {
    const char *temporary = getenv("TMPDIR");
    char folder[512];
    snprintf(folder, sizeof folder, "%s/fake_nvrtc_XXXXXX",
             temporary && *temporary ? temporary : "/tmp");
    if (!mkdtemp(folder)) {
        *log = strdup("no temporary folder");
        return NULL;
    }
    void *image = compile_in(folder, source, whole, size, log);
    rmdir(folder);
    return image;
}

/* ---- images kept between runs: in the folder FAKE_CUDA_CACHE, if it is set ---- */

static char *cache_path(const struct fake_source *source, const char *whole) {
    const char *folder = getenv("FAKE_CUDA_CACHE");
    char *path = NULL;
    if (!folder || !*folder) return NULL;
    const uint64_t before = hash(source->flags, hash(fake__prelude, first_hash));
    const uint64_t a = hash(whole, before), b = hash(whole, a ^ 0x9e3779b97f4a7c15u);
    if (asprintf(&path, "%s/%016llx%016llx.img", folder, (unsigned long long)a,
                 (unsigned long long)b) < 0)
        abort();
    return path;
}

static void keep(const char *path, const void *image, size_t size) {
    char *temporary = NULL;
    if (asprintf(&temporary, "%s.%d", path, (int)getpid()) < 0) abort();
    FILE *file = fopen(temporary, "wb");
    const bool written = file && fwrite(image, 1, size, file) == size;
    if (file && fclose(file) == 0 && written) rename(temporary, path);
    else unlink(temporary);
    free(temporary);
}

void *fake_cuda_compile(const struct fake_source *source, size_t *size, char **log) {
    char *whole = whole_source(source), *path = cache_path(source, whole);
    *size = 0;
    void *image = path ? read_file(path, 0, size) : NULL;
    if (image) *log = strdup("");
    else {
        image = compile_anew(source, whole, size, log);
        if (image && path) keep(path, image, *size);
    }
    free(whole);
    free(path);
    return image;
}
