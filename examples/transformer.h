/* A decoder-only transformer of about a million parameters, as modules of the user's around
 * ready-made ones. */
#ifndef ETCH_EXAMPLES_TRANSFORMER_H
#define ETCH_EXAMPLES_TRANSFORMER_H

#include <etch/etch.h>
#include <stdio.h>

enum { WIDTH = 128, HEADS = 4, LAYERS = 5, CONTEXT = 64 };

static inline etch_tensor *call_child(etch_module *m, const char *name, etch_tensor *x) {
    return etch_module_call(etch_module_find(m, name), x);
}

/* x + attention(norm(x)), then the same with a perceptron. */
static inline etch_tensor *block_forward(etch_module *m, etch_tensor *x) {
    etch_tensor *before = call_child(m, "norm1", x);
    etch_tensor *seen = call_child(m, "attention", before);
    etch_tensor *y = etch_add(x, seen);
    etch_tensor *normal = call_child(m, "norm2", y);
    etch_tensor *thought = call_child(m, "perceptron", normal);
    return etch_add(y, thought);
}

static inline etch_module *new_block(void) {
    etch_module *layers[] = {etch_nn_linear(WIDTH, 4 * WIDTH, ETCH_F32), etch_nn_gelu(true),
                             etch_nn_linear(4 * WIDTH, WIDTH, ETCH_F32)};
    etch_module *m = etch_module_new("Block", block_forward);
    etch_module_add_child(m, "norm1", etch_nn_layer_norm(ETCH_SHAPE(WIDTH), ETCH_F32));
    etch_module_add_child(m, "attention",
                          etch_nn_multihead_attention(WIDTH, HEADS, ETCH_F32, .causal = true));
    etch_module_add_child(m, "norm2", etch_nn_layer_norm(ETCH_SHAPE(WIDTH), ETCH_F32));
    etch_module_add_child(m, "perceptron", etch_nn_sequential(layers, 3));
    return m;
}

/* Numbers of characters [batch, length] to scores of what comes next, [batch, length, symbols]. */
static inline etch_tensor *transformer_forward(etch_module *m, etch_tensor *x) {
    etch_tensor *places = etch_arange(ETCH_I64, 0, etch_size(x, 1), 1);
    etch_tensor *what = call_child(m, "symbols", x);
    etch_tensor *where = call_child(m, "places", places);
    etch_tensor *h = etch_add(what, where);
    for (int i = 0; i < LAYERS; i++) {
        char name[16];
        snprintf(name, sizeof name, "block%d", i);
        h = call_child(m, name, h);
    }
    return call_child(m, "head", call_child(m, "norm", h));
}

static inline etch_module *new_transformer(int nsymbols) {
    etch_module *m = etch_module_new("Transformer", transformer_forward);
    etch_module_add_child(m, "symbols", etch_nn_embedding(nsymbols, WIDTH, ETCH_F32));
    etch_module_add_child(m, "places", etch_nn_embedding(CONTEXT, WIDTH, ETCH_F32));
    for (int i = 0; i < LAYERS; i++) {
        char name[16];
        snprintf(name, sizeof name, "block%d", i);
        etch_module_add_child(m, name, new_block());
    }
    etch_module_add_child(m, "norm", etch_nn_layer_norm(ETCH_SHAPE(WIDTH), ETCH_F32));
    etch_module_add_child(m, "head", etch_nn_linear(WIDTH, nsymbols, ETCH_F32));
    etch_nn_init(etch_module_parameter(m, "symbols.weight"), "normal", .std = 0.05);
    etch_nn_init(etch_module_parameter(m, "places.weight"), "normal", .std = 0.05);
    return m;
}

#endif
