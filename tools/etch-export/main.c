/* etch-export FILE...: what is in files of etch_export. Nothing of them is run. */
#include <etch/etch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int show(const char *path) {
    int64_t n = etch_export_describe(path, NULL, 0);
    char *text = n < 0 ? NULL : malloc((size_t)n + 1);
    if (!text || etch_export_describe(path, text, (size_t)n + 1) < 0) {
        fprintf(stderr, "etch-export: %s\n", n < 0 ? etch_last_error() : "out of memory");
        free(text);
        return 1;
    }
    fputs(text, stdout);
    free(text);
    return 0;
}

int main(int argc, char **argv) {
    int status = 0;
    if (argc < 2 || argv[1][0] == '-') {
        bool help = argc > 1 && !strcmp(argv[1], "--help");
        fputs(
            "usage: etch-export FILE...\n"
            "Shows what is in files that etch_export wrote: arguments, results, weights, for what\n"
            "the machine code is, kernels, and the graph. Checks the hash; runs nothing.\n",
            help ? stdout : stderr);
        return help ? 0 : 2;
    }
    for (int i = 1; i < argc; i++) {
        if (argc > 2) printf("%s%s:\n", i > 1 ? "\n" : "", argv[i]);
        status |= show(argv[i]);
    }
    return status;
}
