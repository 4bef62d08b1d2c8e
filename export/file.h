/* Files of exported functions: what is in one, written and read. */
#ifndef ETCH_EXPORT_FILE_H
#define ETCH_EXPORT_FILE_H

#include "export/program.h"
#include "jit/store/pack.h"

/* The texts and the tensor of a file that are no weights. */
#define FILE_FORMAT "etch_export"   /* the version of the form */
#define FILE_GRAPH "etch_graph"     /* the graph's text */
#define FILE_PROGRAM "etch_program" /* the rest of the program */
#define FILE_IDENTITY "etch_code"   /* for what the machine code is; absent where there is none */
#define FILE_CAPTURE "etch_capture" /* with .0 and so on: over which stored tensor it lies */
#define FILE_HASH "etch_hash"       /* of all else */
#define FILE_CODE "etch.code"       /* the pack, as bytes */

enum { FILE_VERSION = 1 };

/* An exported function, in memory. */
typedef struct exported {
    program *p;
    etch_tensor **captured; /* counted, in the program's order */
    code_pack *pack;        /* NULL: none, or it is not for this process */
    char identity[256];     /* for what its code is; "": there is none */
} exported;

void etch__exported_free(exported *e);

/* Gives the captures their names in the file: those of the options, else numbers. */
bool etch__name_captures(const exported *e, const etch_export_options *options);
/* Writes the file, all or nothing; captured tensors that share memory share it in the file. */
etch_status etch__file_save(const char *path, const exported *e);
/* What is done with the file's code: nothing; shown, whoever it is from and for; made ready to be
 * run, which asks for its origin and for what it is. */
typedef enum file_code { CODE_LEFT, CODE_TO_SHOW, CODE_TO_RUN } file_code;

/* Reads all of it, checks hash and program. Runs nothing. false with the error set. */
bool etch__file_load(const char *path, file_code code, exported *e);

#endif
