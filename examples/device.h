/* What the examples share: --device cpu, cuda or cuda:N among a program's arguments. New tensors
 * are made there, and operators follow their operands, so the rest of a program says nothing of
 * devices. */
#ifndef ETCH_EXAMPLES_DEVICE_H
#define ETCH_EXAMPLES_DEVICE_H

#include <etch/etch.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Takes the two words off the arguments. false: there is no such device; it has been said why. */
static inline bool use_device(int *argc, char **argv) {
    int at = 1;
    while (at < *argc && strcmp(argv[at], "--device") != 0) at++;
    if (at >= *argc) return true;
    etch_device device = etch_device_parse(argv[at + 1]); /* NULL is no device, either */
    bool ok = device >= 0 && etch_set_device(device) == ETCH_OK;
    if (!ok) fprintf(stderr, "%s: --device: %s\n", argv[0], etch_last_error());
    for (int i = at; ok && i + 2 <= *argc; i++) argv[i] = argv[i + 2]; /* the closing NULL, too */
    *argc -= ok ? 2 : 0;
    return ok;
}

#endif
