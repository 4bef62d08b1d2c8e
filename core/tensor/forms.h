/* Forms of a storage's contents: what was made of them and is worth keeping while they stay, such
 * as a weight in the order in which a kernel multiplies it. A form is a storage of its own, counted
 * by whoever uses it; the table lets go of it when the contents have another version, and when
 * their storage goes.
 *
 * What may be written without a count of it has none: memory that the caller wrapped, that a raw
 * pointer for writing was ever given out to, or that is another storage's. */
#ifndef ETCH_CORE_TENSOR_FORMS_H
#define ETCH_CORE_TENSOR_FORMS_H

#include "core/tensor/tensor.h"

/* What was made, of which part: numbers of the maker's own, the first of them a FORM_. */
enum { FORM_CONV = 1, FORM_PANELS };
enum { FORM_WORDS = 12 };
typedef struct form_key {
    int64_t word[FORM_WORDS];
} form_key;

/* The form of the present contents, with a count for the caller; NULL: there is none. Then *keep
 * says whether one that is made now should be kept: when the same contents are asked for again. */
etch_storage *etch__form_find(etch_storage *s, const form_key *key, bool *keep);
/* Keeps what was made of the contents that were there when find said so. */
void etch__form_keep(etch_storage *s, const form_key *key, etch_storage *form);
/* Of a storage that goes. */
void etch__forms_drop(etch_storage *s);

/* While a plan that writes inputs runs on this thread: it counts its writes at its end. Returns
 * what was before, to be set again. */
bool etch__forms_hold(bool held);

#endif
