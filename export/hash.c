/* See hash.h. */
#include "export/hash.h"

#include <stdlib.h>
#include <xxhash.h>

#include "core/tensor/tensor.h"
#include "export/file.h"

static int by_text_name(const void *a, const void *b) {
    return strcmp((*(const etch_named_text *const *)a)->name,
                  (*(const etch_named_text *const *)b)->name);
}

static int by_tensor_name(const void *a, const void *b) {
    return strcmp((*(const etch_named_tensor *const *)a)->name,
                  (*(const etch_named_tensor *const *)b)->name);
}

/* Lengths go in, too, so that no two contents are one sequence of bytes. */
static void add(XXH3_state_t *s, const void *bytes, size_t n) {
    uint64_t length = n;
    XXH3_128bits_update(s, &length, sizeof length);
    if (n) XXH3_128bits_update(s, bytes, n);
}

static void add_tensor(XXH3_state_t *s, const etch_named_tensor *e) {
    const etch_tensor *t = e->tensor;
    int64_t head[2 + ETCH_MAX_DIMS] = {t->dtype, t->ndim};
    memcpy(head + 2, t->size, (size_t)t->ndim * sizeof *head);
    add(s, e->name, strlen(e->name));
    add(s, head, sizeof head);
    add(s, etch__ptr(t), (size_t)(t->numel * etch__item_size(t)));
}

bool etch__content_hash(const etch_named_text *texts, int ntexts, const etch_named_tensor *tensors,
                        int n, char hash[HASH_TEXT]) {
    const etch_named_text **text = etch__malloc(((size_t)ntexts + 1) * sizeof *text);
    const etch_named_tensor **tensor = etch__malloc(((size_t)n + 1) * sizeof *tensor);
    XXH3_state_t *s = XXH3_createState();
    bool ok = text && tensor && s;
    for (int i = 0; ok && i < ntexts; i++) text[i] = &texts[i];
    for (int i = 0; ok && i < n; i++) tensor[i] = &tensors[i];
    if (ok) {
        qsort(text, (size_t)ntexts, sizeof *text, by_text_name);
        qsort(tensor, (size_t)n, sizeof *tensor, by_tensor_name);
        XXH3_128bits_reset(s);
    }
    for (int i = 0; ok && i < ntexts; i++) {
        if (!strcmp(text[i]->name, FILE_HASH)) continue;
        add(s, text[i]->name, strlen(text[i]->name));
        add(s, text[i]->text, strlen(text[i]->text));
    }
    for (int i = 0; ok && i < n; i++) add_tensor(s, tensor[i]);
    XXH128_hash_t h = ok ? XXH3_128bits_digest(s) : (XXH128_hash_t){0, 0};
    snprintf(hash, HASH_TEXT, "%016llx%016llx", (unsigned long long)h.high64,
             (unsigned long long)h.low64);
    if (!s) etch__error(ETCH_ERR_OUT_OF_MEMORY, "out of memory");
    XXH3_freeState(s);
    etch__free(text);
    etch__free(tensor);
    return ok;
}
