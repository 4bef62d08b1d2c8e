/* See pack.h. As bytes a pack is a number of entries, then for each kind, lengths, symbol, key and
 * code, each part filled up to eight bytes; integers are little endian, as the machine's are. */
#include "jit/store/pack.h"

#include <pthread.h>

__thread pack_use etch__pack;

struct code_pack {
    pthread_mutex_t lock; /* several threads compile for one plan */
    pack_entry *entries;
    int64_t n, cap;
    bool short_of_memory;
};

enum { MAGIC = 0x6b636170 }; /* "pack" */
/* More than the disk cache and the table in memory would ever hold. */
enum { ENTRIES_MAX = 1 << 20, PART_MAX = 1 << 28 };

code_pack *etch__pack_new(void) {
    code_pack *p = etch__calloc(1, sizeof *p);
    if (p) pthread_mutex_init(&p->lock, NULL);
    return p;
}

void etch__pack_free(code_pack *p) {
    if (!p) return;
    for (int64_t i = 0; i < p->n; i++) etch__free(p->entries[i].key);
    etch__free(p->entries);
    pthread_mutex_destroy(&p->lock);
    etch__free(p);
}

bool etch__pack_whole(const code_pack *p) { return !p->short_of_memory; }
int64_t etch__pack_count(const code_pack *p) { return p->n; }
const pack_entry *etch__pack_at(const code_pack *p, int64_t i) { return &p->entries[i]; }

static pack_entry *find(const code_pack *p, pack_kind kind, const void *key, size_t n) {
    for (int64_t i = 0; i < p->n; i++) {
        pack_entry *e = &p->entries[i];
        if (e->kind == kind && e->key_bytes == n && !memcmp(e->key, key, n)) return e;
    }
    return NULL;
}

const pack_entry *etch__pack_find(code_pack *p, pack_kind kind, const void *key, size_t n) {
    pthread_mutex_lock(&p->lock);
    const pack_entry *e = find(p, kind, key, n);
    pthread_mutex_unlock(&p->lock);
    return e;
}

static bool append(code_pack *p, const pack_entry *e) {
    uint8_t *block = etch__malloc(e->key_bytes + e->code_bytes + 1);
    if (!block || !etch__grow(&p->entries, &p->cap, p->n + 1, sizeof *p->entries)) {
        etch__free(block);
        return false;
    }
    pack_entry *own = &p->entries[p->n++];
    *own = *e;
    own->key = block, own->code = block + e->key_bytes;
    memcpy(own->key, e->key, e->key_bytes);
    memcpy(own->code, e->code, e->code_bytes);
    return true;
}

void etch__pack_add(code_pack *p, const pack_entry *e) {
    pthread_mutex_lock(&p->lock);
    if (!find(p, e->kind, e->key, e->key_bytes) && !append(p, e)) p->short_of_memory = true;
    pthread_mutex_unlock(&p->lock);
}

/* ---- as bytes ---- */

typedef struct entry_head {
    uint32_t kind, key_bytes;
    uint64_t code_bytes;
    char symbol[PACK_SYMBOL];
} entry_head;

static size_t filled(size_t n) { return (n + 7) & ~(size_t)7; }

static size_t bytes_of(const pack_entry *e) {
    return sizeof(entry_head) + filled(e->key_bytes) + filled(e->code_bytes);
}

uint8_t *etch__pack_bytes(const code_pack *p, size_t *n) {
    *n = 16;
    for (int64_t i = 0; i < p->n; i++) *n += bytes_of(&p->entries[i]);
    uint8_t *bytes = etch__calloc(1, *n), *at = bytes;
    if (!bytes) return NULL;
    uint64_t head[2] = {MAGIC, (uint64_t)p->n};
    memcpy(at, head, sizeof head), at += sizeof head;
    for (int64_t i = 0; i < p->n; i++) {
        const pack_entry *e = &p->entries[i];
        entry_head h = {e->kind, (uint32_t)e->key_bytes, e->code_bytes, ""};
        memcpy(h.symbol, e->symbol, sizeof h.symbol);
        memcpy(at, &h, sizeof h), at += sizeof h;
        memcpy(at, e->key, e->key_bytes), at += filled(e->key_bytes);
        memcpy(at, e->code, e->code_bytes), at += filled(e->code_bytes);
    }
    return bytes;
}

/* One entry of the n bytes that are left; 0: there is none. */
static size_t read_entry(code_pack *p, const uint8_t *at, size_t n) {
    entry_head h;
    if (n < sizeof h) return 0;
    memcpy(&h, at, sizeof h);
    if (h.kind >= PACK_KINDS || !memchr(h.symbol, 0, sizeof h.symbol)) return 0;
    if (h.key_bytes > PART_MAX || h.code_bytes > PART_MAX) return 0;
    pack_entry e = {.kind = (uint8_t)h.kind, .key_bytes = h.key_bytes, .code_bytes = h.code_bytes};
    if (bytes_of(&e) > n) return 0;
    e.key = (uint8_t *)at + sizeof h;
    e.code = e.key + filled(h.key_bytes);
    memcpy(e.symbol, h.symbol, sizeof e.symbol);
    etch__pack_add(p, &e);
    return bytes_of(&e);
}

code_pack *etch__pack_read(const uint8_t *bytes, size_t n) {
    uint64_t head[2] = {0};
    if (n >= sizeof head) memcpy(head, bytes, sizeof head);
    if (head[0] != MAGIC || head[1] > ENTRIES_MAX)
        return etch__null(ETCH_ERR_FORMAT, "its machine code is damaged");
    code_pack *p = etch__pack_new();
    size_t at = sizeof head, taken = 1;
    for (uint64_t i = 0; p && taken && i < head[1]; i++) {
        taken = read_entry(p, bytes + at, n - at);
        at += taken;
    }
    if (p && taken && at == n && etch__pack_whole(p)) return p;
    if (p && etch__pack_whole(p)) etch__error(ETCH_ERR_FORMAT, "its machine code is damaged");
    etch__pack_free(p);
    return NULL;
}
