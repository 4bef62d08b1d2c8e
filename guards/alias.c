/* Aliases among inputs: see alias.h. */
#include "guards/alias.h"

int64_t etch__alias_room(int64_t nvalues, int ninputs) {
    int64_t slots = 2;
    while (slots < 2 * (int64_t)ninputs) slots *= 2;
    return nvalues + slots;
}

/* Fibonacci hashing (Knuth, The Art of Computer Programming 3, 6.4); headers of storages lie 64
 * bytes apart. */
static size_t slot_of(const etch_storage *s, int64_t slots) {
    return (size_t)(((uintptr_t)s >> 6) * 0x9e3779b97f4a7c15u >> 32) & (size_t)(slots - 1);
}

/* The lowest input over the storage, from a table of those so far; -1 in slots without one. */
void etch__alias_fill(etch_tensor *const *value, const int32_t *inputs, int ninputs, int32_t *alias,
                      int64_t nvalues) {
    int32_t *table = alias + nvalues;
    int64_t slots = etch__alias_room(0, ninputs);
    for (int64_t v = 0; v < nvalues; v++) alias[v] = (int32_t)v;
    memset(table, -1, (size_t)slots * sizeof *table);
    for (int i = 0; i < ninputs; i++) {
        const etch_storage *s = value[inputs[i]]->storage;
        size_t at = slot_of(s, slots);
        while (table[at] >= 0 && value[table[at]]->storage != s) at = (at + 1) & (slots - 1);
        if (table[at] < 0) table[at] = inputs[i];
        alias[inputs[i]] = table[at];
    }
}

/* Two storages can only share memory where that was allocated for none of the two, or for one. */
bool etch__alias_overlaps(etch_tensor *const *value, const int32_t *inputs, int ninputs,
                          const uint8_t *written) {
    for (int i = 0; i < ninputs; i++) {
        int32_t v = inputs[i];
        const etch_storage *s = value[v]->storage;
        for (int k = 0; s && !s->own && k < ninputs; k++) {
            int32_t u = inputs[k];
            const etch_storage *other = value[u]->storage;
            if (other && (written[u] || written[v]) && etch__memory_overlaps(s, other)) return true;
        }
    }
    return false;
}
