/* The program and its libraries as files: which one holds an address, its sections, its symbols.
 *
 * Nothing here calls a library of debug information: those end the program where memory is short
 * and take more stack than a thread may have. Everything is read by pread, so that a file that
 * becomes shorter meanwhile is no fault. */
#ifndef ETCH_CORE_BASE_MODULES_H
#define ETCH_CORE_BASE_MODULES_H

#include <elf.h>

#include "core/base/base.h"

typedef struct module {
    const void *headers; /* its program headers in memory, which tell it from others */
    uint64_t bias;       /* what the loader has added to the file's addresses */
    uint64_t inode;      /* of the file */
    int fd;              /* -1 when there is no file that fits what is loaded */
    uint64_t sections, names;
    int nsections;
} module;

/* The module that holds the address. False: none, or its file is not there, or is another one by
 * now. True: *m is to be closed. */
bool etch__module_open(const void *address, module *m);
void etch__module_close(module *m);

bool etch__module_read(const module *m, uint64_t at, void *to, size_t n);
/* A section by its name; false where there is none, or it is compressed. */
bool etch__module_section(const module *m, const char *name, Elf64_Shdr *s);
/* The text at an offset of a section, cut to n. */
bool etch__module_text(const module *m, const Elf64_Shdr *s, uint64_t at, char *text, size_t n);
/* The function that the address lies in; false: not known. */
bool etch__module_symbol(const module *m, const void *address, char *text, size_t n);

#endif
