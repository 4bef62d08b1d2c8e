/* The weight of a convolution as panels of output channels, in the order in which they are
 * multiplied: place after place of the kernel, of each all input channels. It is packed once for
 * each version of its storage's contents that is used more than once (core/tensor/forms.h). */
#include "backends/cpu/conv_direct.h"

#include "backends/cpu/program.h"
#include "core/base/counters.h"
#include "core/base/pool.h"
#include "core/tensor/forms.h"

typedef struct pack_job {
    const direct_conv *d;
    const char *from; /* row-major */
    char *to;
    etch_dtype type; /* the compute type, or that of pairs */
    int64_t bytes;
    int64_t panels; /* of a group */
    atomic_int failed;
} pack_job;

/* The weights of two input channels side by side. */
static void pair_up(uint16_t *to, const uint16_t *first, const uint16_t *second, int64_t n) {
    for (int64_t k = 0; k < n; k++) to[2 * k] = first[k], to[2 * k + 1] = second[k];
}

/* [channels of input][places][width] to [places][channels][width], or pairs of channels. */
static void order(const pack_job *j, char *to, const char *from, int64_t width) {
    const conv_sizes *n = &j->d->n;
    int64_t bytes = width * j->bytes, next = n->places * bytes;
    for (int64_t k = 0; k < n->in_channels; k += 1 + j->d->pairs, from += j->d->pairs ? next : 0)
        for (int64_t p = 0; p < n->places; p++, from += bytes) {
            char *at = to + (p * n->in_channels + k) * bytes;
            if (j->d->pairs)
                pair_up((void *)at, (const void *)from, (const void *)(from + next), width);
            else memcpy(at, from, (size_t)bytes);
        }
}

/* Output channels, `count` of them, as a panel of `width`; room: as many terms of them. */
static void pack_panel(const pack_job *j, char *to, const char *from, int64_t count, int64_t width,
                       char *room) {
    const direct_conv *d = j->d;
    int64_t terms = d->n.in_channels * d->n.places;
    char *turned = d->n.places == 1 && !d->pairs ? to : room;
    if (count < width) memset(turned, 0, (size_t)(terms * width * j->bytes));
    etch__direct_turn(d, j->type, turned, width, from, terms, terms, count);
    if (turned == room) order(j, to, room, width);
}

static void pack_task(void *ctx, int64_t begin, int64_t end) {
    pack_job *j = ctx;
    const direct_conv *d = j->d;
    int64_t terms = d->n.in_channels * d->n.places;
    char *room = etch__malloc((size_t)(terms * d->panel * j->bytes));
    for (int64_t k = begin; room && k < end; k++) {
        int64_t group = k / j->panels, first = k % j->panels * d->panel;
        int64_t count = d->n.out_channels - first, width = d->width - first;
        if (count > d->panel) count = d->panel;
        if (width > d->panel) width = d->panel;
        pack_panel(j, j->to + (group * d->width + first) * terms * j->bytes,
                   j->from + (group * d->n.out_channels + first) * terms * j->bytes, count, width,
                   room);
    }
    if (!room) atomic_store(&j->failed, 1);
    etch__free(room);
}

static bool pack(const direct_conv *d, const etch_tensor *w, char *to) {
    void *copy;
    int64_t terms = d->n.in_channels * d->n.places;
    pack_job j = {.d = d,
                  .to = to,
                  .type = d->pairs ? d->dtype : d->type,
                  .panels = (d->width + d->panel - 1) / d->panel};
    j.bytes = (int64_t)etch_dtype_size(j.type);
    if (!(j.from = etch__row_major_elements(w, !d->halves, &copy))) return false;
    if (d->tiles && !etch__tiles_pack(d, j.from, to)) atomic_store(&j.failed, 1);
    if (!d->tiles)
        etch__parallel(d->n.groups * j.panels, 65536 / (terms * d->panel) + 1, pack_task, &j);
    etch__free(copy);
    etch__counters.weights_packed++;
    return !atomic_load(&j.failed);
}

/* What the packed weight depends on beside the storage's contents. */
static form_key key_of(const direct_conv *d, const etch_tensor *w) {
    form_key k = {{FORM_CONV, d->dtype, d->panel, w->offset}};
    memcpy(k.word + 4, w->size, 4 * sizeof *w->size);
    memcpy(k.word + 8, w->stride, 4 * sizeof *w->stride);
    k.word[1] |= d->n.at.groups << 8 | (int64_t)d->pairs << 7 | (int64_t)d->tiles << 6;
    return k;
}

static bool take_weight(direct_conv *d, const etch_tensor *w) {
    form_key key = key_of(d, w);
    bool keep;
    if (!(d->held[1] = etch__form_find(w->storage, &key, &keep))) {
        int64_t columns = d->n.groups * d->width, terms = d->n.in_channels * d->n.places;
        int64_t bytes = d->tiles ? etch__tiles_weight_bytes(d) : columns * terms * d->size;
        d->held[1] = etch__storage_new((size_t)bytes);
        if (!d->held[1] || !pack(d, w, d->held[1]->data)) return false;
        if (keep) etch__form_keep(w->storage, &key, d->held[1]);
    }
    d->w = d->held[1]->data;
    return true;
}

static char *spread_bias(const direct_conv *d, const etch_tensor *bias) {
    void *copy;
    const char *from = etch__row_major_elements(bias, true, &copy);
    int64_t groups = d->n.groups, n = d->n.out_channels * d->size;
    char *to = from ? etch__calloc((size_t)(groups * d->width), (size_t)d->size) : NULL;
    for (int64_t g = 0; to && g < groups; g++)
        memcpy(to + g * d->width * d->size, from + g * n, (size_t)n);
    etch__free(copy);
    return to;
}

bool etch__direct_weights(direct_conv *d, const etch_tensor *w, const etch_tensor *bias) {
    bool has = bias && bias != ETCH_NONE;
    if (has && !(d->bias = d->copies[2] = spread_bias(d, bias))) return false;
    return take_weight(d, w);
}
