/* The input of a convolution with its channels innermost: as it lies, or as a copy.
 *
 * Where channels are few, the copy has the padding of its columns: then the values under a row of
 * the kernel are neighbours, and count as the channels of one place. The sums have the same terms
 * in the same order. */
#include "backends/cpu/conv_direct.h"
#include "backends/cpu/program.h"
#include "core/base/pool.h"

/* ---- as it lies ---- */

etch_tensor etch__channels_last(const etch_tensor *x) {
    static const int order[4] = {0, 2, 3, 1};
    etch_tensor t = *x;
    for (int k = 0; k < 4; k++) t.size[k] = x->size[order[k]], t.stride[k] = x->stride[order[k]];
    t.contiguous = etch__sizes_contiguous(4, t.size, t.stride);
    return t;
}

bool etch__lies_innermost(const etch_tensor *x) { return x->size[1] > 1 && x->stride[1] == 1; }

/* The input's elements as sums read them. */
static etch_dtype type_of(const direct_conv *d) { return d->halves ? d->dtype : d->type; }

static void lie_as(direct_conv *d, const void *data, const int64_t *stride) {
    int64_t size = (int64_t)etch_dtype_size(type_of(d));
    d->x = data, d->x_image = stride[0] * size;
    d->x_row = stride[1] * size, d->x_column = stride[2] * size;
}

/* ---- a copy ---- */

void etch__direct_turn(const direct_conv *d, etch_dtype dtype, char *to, int64_t to_pitch,
                       const char *from, int64_t from_pitch, int64_t rows, int64_t columns) {
    strip_shape shape = {rows, to_pitch, 1, 1, from_pitch};
    d->isa->strips->prim[STRIP_MOVE][dtype](to, from, &shape, NULL, columns);
}

typedef struct turn_job {
    const direct_conv *d;
    const char *from; /* planes, or channels innermost, as sums read them */
    char *to;
    int64_t channels, height, width, padding;
    bool planes;
    int64_t chunk, chunks; /* pixels that are done at once: rows, where there is padding */
} turn_job;

enum { TURN_PIXELS = 64 };

/* Pixels first .. + n of an image, with zeros on both sides. */
static void turn_chunk(const turn_job *j, int64_t image, int64_t first, int64_t n) {
    int64_t size = (int64_t)etch_dtype_size(type_of(j->d)), padded = j->width + 2 * j->padding;
    int64_t row = image * j->height + first / j->width, pixels = j->height * j->width;
    int64_t pixel = j->channels * size;
    char *to = j->to + (row * padded + j->padding + first % j->width) * pixel;
    const char *from = j->from + image * pixels * pixel;
    if (j->planes)
        etch__direct_turn(j->d, type_of(j->d), to, j->channels, from + first * size, pixels, n,
                          j->channels);
    else memcpy(to, from + first * pixel, (size_t)(n * pixel));
    size_t pad = (size_t)(j->padding * pixel);
    if (!pad) return;
    memset(to - pad, 0, pad);
    memset(to + n * pixel, 0, pad);
}

static void turn_task(void *ctx, int64_t begin, int64_t end) {
    const turn_job *j = ctx;
    int64_t pixels = j->height * j->width;
    for (int64_t k = begin; k < end; k++) {
        int64_t first = k % j->chunks * j->chunk;
        turn_chunk(j, k / j->chunks, first, at_most(pixels - first, j->chunk));
    }
}

/* With so many columns of zeros on both sides. Of an input without elements nothing is read. */
static bool turn_input(direct_conv *d, const etch_tensor *x, int64_t padding) {
    if (!x->numel) return lie_as(d, d->zeros, (int64_t[]){0, 0, 0}), true;
    turn_job j = {.d = d, .channels = x->size[1], .height = x->size[2], .width = x->size[3]};
    int64_t padded = j.width + 2 * padding, pixels = j.height * j.width;
    int64_t elements = x->size[0] * j.height * padded * j.channels;
    j.padding = padding, j.chunk = padding ? j.width : at_most(TURN_PIXELS, pixels);
    j.chunks = (pixels + j.chunk - 1) / j.chunk;
    etch_tensor t = etch__channels_last(x);
    j.planes = j.channels > 1 && !etch__lies_innermost(x);
    j.from = etch__row_major_elements(j.planes ? x : &t, !d->halves, &d->copies[0]);
    if (!j.from) return false;
    if (!(d->held[0] = etch__storage_new((size_t)elements * etch_dtype_size(type_of(d)))))
        return false;
    j.to = d->held[0]->data;
    etch__parallel(x->size[0] * j.chunks, 65536 / (j.chunk * j.channels) + 1, turn_task, &j);
    int64_t row = padded * j.channels;
    lie_as(d, j.to, (int64_t[]){j.height * row, row, j.channels});
    return true;
}

/* ---- rows of the kernel as places ---- */

enum { RUN = 64 };

bool etch__conv_has_runs(const conv_sizes *n) {
    return n->groups == 1 && !n->apart && n->kernel[1] > 1 && n->at.dilation[1] == 1 &&
           n->kernel[1] * n->in_channels <= RUN && n->at.padding[1] <= n->in[1];
}

static bool take_runs(direct_conv *d, const etch_tensor *x) {
    conv_sizes *n = &d->n;
    etch_tensor t = etch__channels_last(x);
    bool lies = x->numel && !n->at.padding[1] && t.stride[2] == t.size[3] &&
                type_of(d) == d->dtype && (t.size[3] == 1 || t.stride[3] == 1);
    if (lies) lie_as(d, etch__ptr(x), t.stride);
    else if (!turn_input(d, x, n->at.padding[1])) return false;
    n->in_channels *= n->kernel[1], n->places = n->kernel[0];
    n->in[1] += 2 * n->at.padding[1];
    n->kernel[1] = 1, n->at.padding[1] = 0;
    return true;
}

/* ---- the whole ---- */

bool etch__direct_input(direct_conv *d, const etch_tensor *x) {
    int64_t zeros = d->n.channels > RUN ? d->n.channels : RUN;
    if (!(d->zeros = d->copies[1] = etch__calloc((size_t)zeros, (size_t)d->size))) return false;
    etch_tensor t = etch__channels_last(x);
    bool innermost = t.size[3] == 1 || t.stride[3] == 1;
    if (etch__conv_has_runs(&d->n)) return take_runs(d, x);
    if (innermost && type_of(d) == d->dtype) return lie_as(d, etch__ptr(x), t.stride), true;
    if (!innermost) return turn_input(d, x, 0);
    const void *elements = etch__row_major_elements(&t, true, &d->copies[0]);
    int64_t row = t.size[2] * t.size[3];
    lie_as(d, elements, (int64_t[]){t.size[1] * row, row, t.size[3]});
    return elements != NULL;
}
