/* The hash of a file's contents: of all texts but itself and all tensors, in the order of their
 * names. It is no proof of who made the file: see docs/export.md. */
#ifndef ETCH_EXPORT_HASH_H
#define ETCH_EXPORT_HASH_H

#include <etch/safetensors.h>

enum { HASH_TEXT = 33 };

/* Tensors lie on the CPU, row-major. false: out of memory. */
bool etch__content_hash(const etch_named_text *texts, int ntexts, const etch_named_tensor *tensors,
                        int n, char hash[HASH_TEXT]);

#endif
