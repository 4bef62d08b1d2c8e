/* What convolution and its backward operators share on a device. See conv.c. */
#ifndef ETCH_BACKENDS_CUDA_CONV_H
#define ETCH_BACKENDS_CUDA_CONV_H

#include "backends/cuda/text.h"
#include "core/ops/rules.h"

typedef struct conv {
    cuda_stream *s;
    const void *site;
    etch_tensor *x, *w, *bias, *y; /* w is row-major; bias may be ETCH_NONE */
    conv_numbers at;
    int64_t images, in_channels, out_channels; /* channels of a group */
    int64_t in[2], out[2], kernel[2], rows, positions;
    bool plain; /* a kernel of one element over whole planes: the input is the matrix */
} conv;

/* Bytes of a matrix; more images are taken in parts. */
enum { CONV_WORKSPACE = 128 << 20 };

/* As kernels take it (device/conv.cuh). */
typedef struct conv_window {
    int64_t h, w, out_w, kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, step_h, step_w;
    int64_t x_image, x_channel, x_row, x_column;
} conv_window;
conv_window etch__cuda_conv_window(const conv *c);

/* The sizes, from those of x, w and y; the numbers are there. false with the error set. */
bool etch__cuda_conv_plan(conv *c);
/* Groups of few channels, which are computed element by element. */
bool etch__cuda_conv_few(const conv *c);
/* y, of what has been planned. */
etch_status etch__cuda_conv_run(const conv *c);

/* The matrix of a group for n images from `first` on, into m: [n][rows][positions], or flat,
 * [rows][n * positions]. */
etch_status etch__cuda_conv_matrix(const conv *c, int64_t group, int64_t first, int64_t n,
                                   bool flat, etch_tensor *m);
etch_status etch__cuda_conv_text(const conv *c, const char *symbol, const char *body,
                                 int64_t blocks, void *args);
/* The device's own kernel of an operator, whatever overrides there are. */
etch_status etch__cuda_conv_op(const conv *c, op_id op, int nin, etch_tensor *const *in,
                               etch_tensor *out);

#endif
