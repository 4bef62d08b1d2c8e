/* Aliases among inputs: see alias.h. */
#include "guards/alias.h"

void etch__alias_fill(etch_tensor *const *value, const int32_t *inputs, int ninputs, int32_t *alias,
                      int64_t nvalues) {
    for (int64_t v = 0; v < nvalues; v++) alias[v] = (int32_t)v;
    for (int i = 0; i < ninputs; i++) {
        int32_t v = inputs[i];
        for (int k = 0; k < i; k++) {
            int32_t u = inputs[k];
            if (value[u]->storage == value[v]->storage) {
                alias[v] = alias[u];
                break;
            }
        }
    }
}

/* Two storages can only share memory where the user wrapped it. */
bool etch__alias_overlaps(etch_tensor *const *value, const int32_t *inputs, int ninputs,
                          const uint8_t *written) {
    for (int i = 0; i < ninputs; i++) {
        int32_t v = inputs[i];
        const etch_storage *s = value[v]->storage;
        for (int k = 0; s && !s->block_bytes && k < ninputs; k++) {
            int32_t u = inputs[k];
            const etch_storage *other = value[u]->storage;
            if (other && (written[u] || written[v]) && etch__memory_overlaps(s, other)) return true;
        }
    }
    return false;
}
