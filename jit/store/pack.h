/* Packs: machine code that travels in a file of the program's (export/), under the keys of the disk
 * cache. Around a compile a thread says what is to be done with one: code that the compile finds or
 * makes is collected in it, or the pack gives code in place of disk and compiler. */
#ifndef ETCH_JIT_STORE_PACK_H
#define ETCH_JIT_STORE_PACK_H

#include "core/base/base.h"

/* KERNEL: a shared object of the CPU, under the kernel's bytes. BLOB: what a device's driver loads,
 * under the key of the disk cache but for its beginning (blob_key). */
typedef enum pack_kind { PACK_KERNEL, PACK_BLOB, PACK_KINDS } pack_kind;

enum { PACK_SYMBOL = 64 };

typedef struct pack_entry {
    uint8_t *key; /* and, behind it in one block, the code */
    uint8_t *code;
    size_t key_bytes, code_bytes;
    uint8_t kind;
    char symbol[PACK_SYMBOL]; /* of a kernel */
} pack_entry;

typedef struct code_pack code_pack;

code_pack *etch__pack_new(void);
void etch__pack_free(code_pack *p);
/* Copies; what is there under the key stays. Lack of memory is noted: see etch__pack_whole. */
void etch__pack_add(code_pack *p, const pack_entry *e);
/* Whether nothing that was to be added is missing. */
bool etch__pack_whole(const code_pack *p);
/* NULL: not there. Lives as long as the pack. */
const pack_entry *etch__pack_find(code_pack *p, pack_kind kind, const void *key, size_t n);
int64_t etch__pack_count(const code_pack *p);
const pack_entry *etch__pack_at(const code_pack *p, int64_t i);

/* As bytes, to be freed; NULL without memory. And back: NULL, with the error format, for bytes that
 * are no pack. */
uint8_t *etch__pack_bytes(const code_pack *p, size_t *n);
code_pack *etch__pack_read(const uint8_t *bytes, size_t n);

/* ---- what this thread's compiles do with it ---- */

typedef struct pack_use {
    code_pack *pack; /* NULL: none */
    bool collects;   /* in it; else it gives */
    bool only;       /* what it lacks is an error; else that is looked for and made as without it */
    bool sizes;      /* collects for sizes that are not known */
} pack_use;
extern __thread pack_use etch__pack
    __attribute__((tls_model("initial-exec"), visibility("hidden")));

/* Between the two, until the use that enter has returned is put back. */
static inline pack_use etch__pack_enter(pack_use use) {
    pack_use before = etch__pack;
    etch__pack = use;
    return before;
}
static inline void etch__pack_leave(pack_use before) { etch__pack = before; }

static inline bool etch__pack_collects(void) { return etch__pack.collects; }
/* NULL: none gives. */
static inline code_pack *etch__pack_given(void) {
    return etch__pack.collects ? NULL : etch__pack.pack;
}

/* Code that a compile has found or made. */
static inline void etch__pack_collect(const pack_entry *e) {
    if (unlikely(etch__pack.collects)) etch__pack_add(etch__pack.pack, e);
}

#endif
