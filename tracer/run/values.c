/* The numbers of a recording's values: found by the tensor's address, in constant time however long
 * the recording is.
 *
 * A table with open addressing; a slot holds a value's number + 1, the walk's value table has the
 * address. A number that was taken back is a slot whose value is another tensor by now. */
#include "tracer/run/walk.h"

static size_t hash_of(const etch_tensor *t) {
    return (size_t)((uint64_t)(uintptr_t)t * 0x9e3779b97f4a7c15u >> 32);
}

static void put(value_numbers *n, const etch_tensor *t, int32_t value) {
    size_t at = hash_of(t) & n->mask;
    while (n->slots[at]) at = (at + 1) & n->mask;
    n->slots[at] = value + 1;
    n->used++;
}

/* Of several values that are one tensor: what was met later goes before arguments, of those the
 * first. */
static bool goes_before(const trace_walk *w, int32_t value, int32_t other) {
    bool argument = value < w->nargs;
    if (other < 0 || argument != (other < w->nargs)) return other < 0 || !argument;
    return argument ? value < other : value > other;
}

int32_t etch__walk_find(const trace_walk *w, const etch_tensor *t) {
    const value_numbers *n = &w->rec.numbers;
    int32_t found = -1;
    if (!n->slots) return found;
    for (size_t at = hash_of(t) & n->mask; n->slots[at]; at = (at + 1) & n->mask) {
        int32_t v = n->slots[at] - 1;
        if (v >= w->nvalues || w->c.value[v] != t || etch__walk_hides(w, v)) continue;
        if (goes_before(w, v, found)) found = v;
    }
    return found;
}

void etch__walk_number(trace_walk *w, int32_t value) {
    put(&w->rec.numbers, w->c.value[value], value);
}

bool etch__walk_room_for_numbers(trace_walk *w, int64_t more) {
    value_numbers *n = &w->rec.numbers;
    int64_t need = n->used + more, size = 16;
    if (n->slots && 2 * need <= (int64_t)n->mask) return true;
    while (size < 4 * (w->nvalues + more)) size *= 2;
    int32_t *slots = etch__calloc((size_t)size, sizeof *slots);
    if (!slots) return false;
    etch__free(n->slots);
    *n = (value_numbers){slots, (size_t)size - 1, 0};
    for (int32_t v = 0; v < w->nvalues; v++) etch__walk_number(w, v);
    return true;
}

void etch__walk_forget_numbers(trace_walk *w) {
    etch__free(w->rec.numbers.slots);
    memset(&w->rec.numbers, 0, sizeof w->rec.numbers);
}
