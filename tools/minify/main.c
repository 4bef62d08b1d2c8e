/* etch-minify: cuts a graph whose compiled code differs from eager code to the smallest one that
 * still differs, and writes a C test.
 *
 *     ETCH_LOGS=graph ETCH_LOGS_OUT=log program      (or what a failing check has logged)
 *     etch-minify log > test.c
 *
 * The input has one or more graphs in their text form, alone or among the lines of a log. Each
 * runs eagerly and compiled, several times with other random numbers, special values among them;
 * the first one that differs (or makes the program crash or hang) is made smaller: calls,
 * operands, outputs, inputs, sizes, strides, dtypes, scalars. Exit status: 0 no graph differs, 1
 * the test was written, 2 an error. */
#include <dlfcn.h>
#include <ftw.h>
#include <unistd.h>

#include "mini.h"

static const char help[] =
    "usage: etch-minify [OPTION VALUE]... [FILE]\n"
    "\n"
    "Reads graphs in their text form (as ETCH_LOGS=graph logs them) from FILE or standard input. "
    "The\n"
    "first one that compiled code computes differently from eager code is made smaller and "
    "written\n"
    "to standard output as a cmocka test.\n"
    "\n"
    "  --backend NAME   backend that is tested (default: native)\n"
    "  --load FILE      shared object that registers backends or operators, loaded first\n"
    "  --graph NAME     only graphs of this name, such as step/0\n"
    "  --calls N        calls of each graph, with other numbers each (default: 4)\n"
    "  --seed N         seed of the numbers (default: 1)\n"
    "  --trials N       most graphs to try (default: 2000)\n"
    "  --seconds N      after which a run counts as hanging (default: 20)\n"
    "  --output FILE    where the test goes (default: standard output)\n"
    "  --verbose 0|1    a line for each smaller graph, on standard error\n"
    "\n"
    "Exit status: 0 no graph differs, 1 one does and the test was written, 2 an error.\n"
    "Not kept: values of run-time scalars (other numbers of their kind and class take their "
    "place),\n"
    "state words, and strides of inputs that views of a buffer cannot make.\n";

typedef struct command {
    mini_options o;
    const char *file, *graph, *output;
    bool help;
} command;

static bool set_option(command *c, const char *name, const char *value) {
    if (!strcmp(name, "--backend")) c->o.backend = value;
    else if (!strcmp(name, "--load")) c->o.plugin = value;
    else if (!strcmp(name, "--graph")) c->graph = value;
    else if (!strcmp(name, "--output")) c->output = value;
    else if (!strcmp(name, "--calls")) c->o.calls = atoi(value);
    else if (!strcmp(name, "--seed")) c->o.seed = strtoull(value, NULL, 10);
    else if (!strcmp(name, "--trials")) c->o.most = atoi(value);
    else if (!strcmp(name, "--seconds")) c->o.seconds = atoi(value);
    else if (!strcmp(name, "--verbose")) c->o.verbose = atoi(value);
    else return false;
    return true;
}

static bool parse(command *c, int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        bool option = !strncmp(argv[i], "--", 2);
        if (!strcmp(argv[i], "--help")) c->help = true;
        else if (option && (i + 1 == argc || !set_option(c, argv[i], argv[i + 1]))) return false;
        else if (option) i++;
        else if (c->file) return false;
        else c->file = argv[i];
    }
    return c->o.calls > 0 && c->o.most >= 0 && c->o.seconds > 0;
}

static char *read_all(FILE *from) {
    char *text = NULL;
    size_t n = 0, got;
    do {
        char *more = realloc(text, n + 65537);
        if (!more) return free(text), NULL;
        text = more;
        got = fread(text + n, 1, 65536, from);
        n += got;
        text[n] = 0;
    } while (got);
    return text;
}

static char *read_input(const char *file) {
    FILE *from = file && strcmp(file, "-") ? fopen(file, "r") : stdin;
    char *text = from ? read_all(from) : NULL;
    if (!text) fprintf(stderr, "etch-minify: %s cannot be read\n", file ? file : "the input");
    if (from && from != stdin) fclose(from);
    return text;
}

/* ---- one graph ---- */

static int write_test(const command *c, const mini_graph *g, const char *difference) {
    FILE *to = c->output ? fopen(c->output, "w") : stdout;
    if (to) mini_print(to, g, &c->o, difference);
    bool ok = to && !ferror(to) && (to == stdout ? fflush(to) : fclose(to)) == 0;
    if (!ok) fprintf(stderr, "etch-minify: %s cannot be written\n", c->output ? c->output : "-");
    return ok ? 1 : 2;
}

static int minify(const command *c, mini_graph *g) {
    char difference[MINI_TEXT];
    mini_verdict v = mini_check(g, &c->o, difference, NULL);
    if (v == MINI_INVALID)
        fprintf(stderr,
                "etch-minify: %s does not run eagerly, or has inputs that cannot be made: %s\n",
                g->name, difference);
    if (v == MINI_INVALID || v == MINI_SAME) return 0;
    fprintf(stderr, "etch-minify: %s, %d calls: %s\n", g->name, g->nnodes, difference);
    int trials = mini_reduce(g, &c->o, v);
    mini_check(g, &c->o, difference, NULL);
    fprintf(stderr, "etch-minify: %s: %d call%s and %d input%s are left after %d trials\n", g->name,
            g->nnodes, g->nnodes == 1 ? "" : "s", g->ninputs, g->ninputs == 1 ? "" : "s", trials);
    return write_test(c, g, difference);
}

static int minify_all(const command *c, const char *text) {
    int status = 0, graphs = 0;
    char *one;
    for (const char *at = text; !status && (one = mini_next_text(&at)); free(one)) {
        size_t n = strcspn(one + 6, "(");
        if (c->graph && (strlen(c->graph) != n || strncmp(one + 6, c->graph, n))) continue;
        graphs++;
        mini_graph *g = mini_parse(one);
        if (!g) fprintf(stderr, "etch-minify: %s\n", etch_last_error());
        status = g ? minify(c, g) : 2;
        free(g);
    }
    if (!graphs)
        fprintf(stderr, "etch-minify: no graph%s in the input\n", c->graph ? " of that name" : "");
    else if (!status) fprintf(stderr, "etch-minify: %d graphs, no difference\n", graphs);
    return graphs ? status : 2;
}

/* ---- the command ---- */

static int remove_one(const char *path, const struct stat *s, int type, struct FTW *at) {
    (void)s, (void)type, (void)at;
    return remove(path);
}

int main(int argc, char **argv) {
    command c = {.o = {.backend = "native", .calls = 4, .most = 2000, .seconds = 20, .seed = 1}};
    if (!parse(&c, argc, argv) || c.help) {
        fputs(help, c.help ? stdout : stderr);
        return c.help ? 0 : 2;
    }
    char *text = read_input(c.file), cache[] = "/tmp/etch-minify-XXXXXX";
    if (!text || !mkdtemp(cache)) return free(text), 2;
    setenv("ETCH_CACHE_DIR", cache,
           1); /* a bad kernel in the user's cache is not to hide a fault */
    unsetenv("ETCH_LOGS");
    unsetenv("ETCH_COMPILE_DISABLE");
    int status = 2;
    char *plugin = c.o.plugin ? realpath(c.o.plugin, NULL) : NULL; /* the test runs elsewhere */
    if (plugin) c.o.plugin = plugin;
    if (c.o.plugin && !dlopen(c.o.plugin, RTLD_NOW))
        fprintf(stderr, "etch-minify: %s\n", dlerror());
    else status = minify_all(&c, text);
    nftw(cache, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    free(text), free(plugin);
    return status;
}
