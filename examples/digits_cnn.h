/* Small convolutional networks for images of 8 x 8, which the benchmark trains as well: one halves
 * the image by a stride, the other by pooling. */
#ifndef ETCH_EXAMPLES_DIGITS_CNN_H
#define ETCH_EXAMPLES_DIGITS_CNN_H

#include <etch/etch.h>

static inline etch_module *digits_cnn(void) {
    etch_module *layers[] = {
        etch_nn_conv2d(1, 16, ETCH_SHAPE(3, 3), ETCH_F32, .padding = {1}),
        etch_nn_relu(),
        etch_nn_conv2d(16, 32, ETCH_SHAPE(3, 3), ETCH_F32, .padding = {1}, .stride = {2}),
        etch_nn_relu(),
        etch_nn_flatten(1, -1),
        etch_nn_linear(512, 10, ETCH_F32),
    };
    return etch_nn_sequential(layers, 6);
}

static inline etch_module *digits_pool_cnn(void) {
    etch_module *layers[] = {
        etch_nn_conv2d(1, 16, ETCH_SHAPE(3, 3), ETCH_F32, .padding = {1}),
        etch_nn_relu(),
        etch_nn_max_pool2d(ETCH_SHAPE(2, 2)),
        etch_nn_conv2d(16, 32, ETCH_SHAPE(3, 3), ETCH_F32, .padding = {1}),
        etch_nn_relu(),
        etch_nn_flatten(1, -1),
        etch_nn_linear(512, 10, ETCH_F32),
    };
    return etch_nn_sequential(layers, 7);
}

#endif
