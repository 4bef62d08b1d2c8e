/* How modules are made from their configs: a row for each ready-made type, and those that the user
 * has registered. */
#include "nn/types.h"
#include "nn/json.h"
#include "nn/module.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* ---- configs: one JSON object of numbers, truth, texts and lists ---- */

enum { MOST_FIELDS = 16, KEY = 16 };

typedef struct field {
    char key[KEY], text[KEY];
    double real;
    bool truth;
    etch_shape list;
} field;

typedef struct config {
    field fields[MOST_FIELDS];
    int n;
    bool wrong; /* something that was asked for is not there */
} config;

static bool read_text(json *j, char to[KEY]) {
    char *s = etch__json_string(j);
    bool fits = s && strlen(s) < KEY;
    if (fits) strcpy(to, s);
    else if (s) etch__json_fault(j, "a text is too long");
    free(s);
    return fits;
}

static bool read_list(json *j, etch_shape *list) {
    bool any = false;
    for (etch__json_take(j, '['); etch__json_more(j, ']', &any);) {
        if (list->n == ETCH_MAX_DIMS) return etch__json_fault(j, "a list of more than 8");
        if (!etch__json_whole(j, &list->v[list->n++])) return false;
    }
    return !j->fault;
}

static bool read_value(json *j, field *f) {
    if (etch__json_is(j, '"')) return read_text(j, f->text);
    if (etch__json_is(j, '[')) return read_list(j, &f->list);
    if (etch__json_is(j, 't') || etch__json_is(j, 'f')) return etch__json_bool(j, &f->truth);
    return etch__json_real(j, &f->real);
}

static bool read_config(const char *text, config *c) {
    json j = {text, text, text + strlen(text), NULL};
    bool any = false;
    c->n = 0, c->wrong = false;
    for (etch__json_take(&j, '{'); etch__json_more(&j, '}', &any);) {
        if (c->n == MOST_FIELDS) return false;
        field *f = &c->fields[c->n++];
        *f = (field){.truth = false};
        char *key = etch__json_key(&j);
        bool fits = key && strlen(key) < KEY;
        if (fits) strcpy(f->key, key);
        free(key);
        if (!fits || !read_value(&j, f)) return false;
    }
    return etch__json_ends(&j);
}

static const field *find(const config *c, const char *key) {
    for (int i = 0; i < c->n; i++)
        if (!strcmp(c->fields[i].key, key)) return &c->fields[i];
    return NULL;
}

static const field *get(config *c, const char *key) {
    static const field none;
    const field *f = find(c, key);
    c->wrong |= !f;
    return f ? f : &none;
}

static double real(config *c, const char *key) { return get(c, key)->real; }
static bool truth(config *c, const char *key) { return get(c, key)->truth; }

/* A whole number that a double holds. */
static int64_t whole(config *c, const char *key) {
    double v = get(c, key)->real;
    bool fits = v >= -0x1p53 && v <= 0x1p53 && v == (double)(int64_t)v;
    c->wrong |= !fits;
    return fits ? (int64_t)v : 0;
}

static etch_shape list(config *c, const char *key, int n) {
    etch_shape s = get(c, key)->list;
    if (n ? s.n != n : !s.n) c->wrong = true, s = ETCH_SHAPE(0, 0);
    return s;
}

static etch_dtype dtype(config *c) {
    const char *name = get(c, "dtype")->text;
    for (int d = 0; d < ETCH_DTYPE_COUNT; d++)
        if (!strcmp(etch_dtype_name((etch_dtype)d), name)) return (etch_dtype)d;
    c->wrong = true;
    return ETCH_F32;
}

/* ---- the rows ---- */

typedef etch_module *(*make_fn)(config *c);

static etch_module *linear(config *c) {
    int64_t in = whole(c, "in"), out = whole(c, "out");
    etch_dtype d = dtype(c);
    bool bias = truth(c, "bias");
    return c->wrong ? NULL : etch_nn_linear_with(in, out, d, bias);
}

static etch_module *relu(config *c) { return (void)c, etch_nn_relu(); }
static etch_module *silu(config *c) { return (void)c, etch_nn_silu(); }
static etch_module *tanh_layer(config *c) { return (void)c, etch_nn_tanh(); }
static etch_module *sigmoid(config *c) { return (void)c, etch_nn_sigmoid(); }
static etch_module *sequential(config *c) { return (void)c, etch_nn_sequential(NULL, 0); }

static etch_module *gelu(config *c) {
    bool approximate = truth(c, "tanh");
    return c->wrong ? NULL : etch_nn_gelu(approximate);
}

static etch_module *dropout(config *c) {
    double p = real(c, "p");
    return c->wrong ? NULL : etch_nn_dropout(p);
}

static etch_module *flatten(config *c) {
    int64_t start = whole(c, "start"), end = whole(c, "end");
    if (start != (int)start || end != (int)end) return NULL;
    return c->wrong ? NULL : etch_nn_flatten((int)start, (int)end);
}

static etch_module *embedding(config *c) {
    int64_t count = whole(c, "count"), width = whole(c, "width");
    etch_dtype d = dtype(c);
    return c->wrong ? NULL : etch_nn_embedding(count, width, d);
}

/* 0 stands for what is not said, so no padding of the width is -1. */
static void put_pair(int64_t to[2], etch_shape from) {
    to[0] = from.v[0], to[1] = from.v[1] ? from.v[1] : -1;
}

static etch_conv_options conv_options(config *c) {
    etch_conv_options o = {.struct_size = sizeof o};
    put_pair(o.stride, list(c, "stride", 2));
    put_pair(o.padding, list(c, "padding", 2));
    put_pair(o.dilation, list(c, "dilation", 2));
    o.groups = whole(c, "groups");
    o.no_bias = !truth(c, "bias");
    return o;
}

static etch_module *conv2d(config *c) {
    int64_t in = whole(c, "in"), out = whole(c, "out");
    etch_shape kernel = list(c, "kernel", 2);
    etch_dtype d = dtype(c);
    etch_conv_options o = conv_options(c);
    return c->wrong ? NULL : etch_nn_conv2d_with(in, out, kernel, d, &o);
}

static etch_module *conv1d(config *c) {
    int64_t in = whole(c, "in"), out = whole(c, "out");
    etch_shape kernel = list(c, "kernel", 2);
    etch_dtype d = dtype(c);
    etch_conv_options o = conv_options(c);
    o.stride[0] = o.stride[1], o.padding[0] = o.padding[1], o.dilation[0] = o.dilation[1];
    return c->wrong ? NULL : etch_nn_conv1d_with(in, out, kernel.v[0], d, &o);
}

static etch_module *pool(config *c, bool max) {
    etch_pool_options o = {.struct_size = sizeof o};
    etch_shape kernel = list(c, "kernel", 2);
    put_pair(o.stride, list(c, "stride", 2));
    put_pair(o.padding, list(c, "padding", 2));
    if (find(c, "dilation")) { /* files of the first versions have none of these */
        put_pair(o.dilation, list(c, "dilation", 2));
        o.ceil_mode = truth(c, "ceil_mode"), o.exclude_padding = truth(c, "exclude_padding");
        o.divisor = whole(c, "divisor");
    }
    if (c->wrong) return NULL;
    return max ? etch_nn_max_pool2d_with(kernel, &o) : etch_nn_avg_pool2d_with(kernel, &o);
}
static etch_module *max_pool(config *c) { return pool(c, true); }
static etch_module *avg_pool(config *c) { return pool(c, false); }

static etch_norm_options norm_options(config *c) {
    return (etch_norm_options){.struct_size = sizeof(etch_norm_options),
                               .eps = real(c, "eps"),
                               .momentum = real(c, "momentum"),
                               .no_affine = !truth(c, "affine"),
                               .no_bias = !truth(c, "bias"),
                               .no_statistics = !truth(c, "statistics")};
}

static etch_module *norm(config *c,
                         etch_module *(*make)(etch_shape, etch_dtype, const etch_norm_options *)) {
    etch_shape sizes = list(c, "sizes", 0);
    etch_norm_options o = norm_options(c);
    etch_dtype d = dtype(c);
    return c->wrong ? NULL : make(sizes, d, &o);
}
static etch_module *layer_norm(config *c) { return norm(c, etch_nn_layer_norm_with); }
static etch_module *rms_norm(config *c) { return norm(c, etch_nn_rms_norm_with); }

static etch_module *batch1(etch_shape s, etch_dtype d, const etch_norm_options *o) {
    return etch_nn_batch_norm1d_with(s.v[0], d, o);
}
static etch_module *batch2(etch_shape s, etch_dtype d, const etch_norm_options *o) {
    return etch_nn_batch_norm2d_with(s.v[0], d, o);
}
static etch_module *batch_norm1d(config *c) { return norm(c, batch1); }
static etch_module *batch_norm2d(config *c) { return norm(c, batch2); }

static etch_module *group_norm(config *c) {
    etch_shape sizes = list(c, "sizes", 1);
    etch_norm_options o = norm_options(c);
    int64_t groups = whole(c, "groups");
    etch_dtype d = dtype(c);
    return c->wrong ? NULL : etch_nn_group_norm_with(groups, sizes.v[0], d, &o);
}

static etch_module *attention(config *c) {
    int64_t width = whole(c, "width"), heads = whole(c, "heads");
    etch_attention_options o = {.struct_size = sizeof o,
                                .no_bias = !truth(c, "bias"),
                                .causal = truth(c, "causal"),
                                .dropout = real(c, "dropout")};
    etch_dtype d = dtype(c);
    return c->wrong ? NULL : etch_nn_multihead_attention_with(width, heads, d, &o);
}

static etch_module *lstm(config *c) {
    int64_t in = whole(c, "in"), hidden = whole(c, "hidden");
    etch_dtype d = dtype(c);
    return c->wrong ? NULL : etch_nn_lstm_cell(in, hidden, d);
}

static etch_module *gru(config *c) {
    int64_t in = whole(c, "in"), hidden = whole(c, "hidden");
    etch_dtype d = dtype(c);
    return c->wrong ? NULL : etch_nn_gru_cell(in, hidden, d);
}

#define TYPES(TYPE)                                                                                \
    TYPE("Linear", linear)                                                                         \
    TYPE("ReLU", relu)                                                                             \
    TYPE("SiLU", silu)                                                                             \
    TYPE("Tanh", tanh_layer)                                                                       \
    TYPE("Sigmoid", sigmoid)                                                                       \
    TYPE("GELU", gelu)                                                                             \
    TYPE("Sequential", sequential)                                                                 \
    TYPE("Dropout", dropout)                                                                       \
    TYPE("Flatten", flatten)                                                                       \
    TYPE("Embedding", embedding)                                                                   \
    TYPE("Conv1d", conv1d)                                                                         \
    TYPE("Conv2d", conv2d)                                                                         \
    TYPE("MaxPool2d", max_pool)                                                                    \
    TYPE("AvgPool2d", avg_pool)                                                                    \
    TYPE("LayerNorm", layer_norm)                                                                  \
    TYPE("RMSNorm", rms_norm)                                                                      \
    TYPE("BatchNorm1d", batch_norm1d)                                                              \
    TYPE("BatchNorm2d", batch_norm2d)                                                              \
    TYPE("GroupNorm", group_norm)                                                                  \
    TYPE("MultiheadAttention", attention)                                                          \
    TYPE("LSTMCell", lstm)                                                                         \
    TYPE("GRUCell", gru)

/* A maker of the public form for each row. */
static etch_module *make_ready(const char *type, make_fn make, const char *text) {
    config c;
    bool read = text && read_config(text, &c);
    etch_module *m = read ? make(&c) : NULL;
    if (!m && (!read || c.wrong))
        etch__nn_fail(ETCH_ERR_FORMAT,
                      "etch_module_from_file: a config of %s does not fit: '%.100s'", type,
                      text ? text : "none");
    return m;
}
#define MAKER(type, fn)                                                                            \
    static etch_module *make_##fn(const char *text) { return make_ready(type, fn, text); }
TYPES(MAKER)

/* ---- the registry ---- */

typedef struct type_row {
    const char *type;
    etch_module_maker make;
} type_row;

#define ROW(type, fn) {type, make_##fn},
static const type_row ready[] = {TYPES(ROW)};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static type_row *users; /* names are copies; kept for ever */
static int nusers;

static etch_module_maker find_maker(const char *type) {
    for (size_t i = 0; i < sizeof ready / sizeof *ready; i++)
        if (!strcmp(ready[i].type, type)) return ready[i].make;
    for (int i = 0; i < nusers; i++)
        if (!strcmp(users[i].type, type)) return users[i].make;
    return NULL;
}

etch_module_maker etch__maker_of(const char *type) {
    pthread_mutex_lock(&lock);
    etch_module_maker make = find_maker(type);
    pthread_mutex_unlock(&lock);
    if (!make)
        etch__nn_fail(ETCH_ERR_NOT_FOUND,
                      "etch_module_from_file: the type '%.100s' is not registered (use "
                      "etch_module_register_type)",
                      type);
    return make;
}

static etch_status add_row(const char *type, etch_module_maker make) {
    type_row *grown = realloc(users, ((size_t)nusers + 1) * sizeof *grown);
    if (grown) users = grown;
    char *copy = grown ? etch__nn_copy_text(type) : etch__nn_no_memory();
    if (!copy) return ETCH_ERR_OUT_OF_MEMORY;
    users[nusers++] = (type_row){copy, make};
    return ETCH_OK;
}

etch_status etch_module_register_type(const char *type, etch_module_maker make) {
    if (!type || !make) return etch__nn_null("etch_module_register_type", "a type and a maker");
    pthread_mutex_lock(&lock);
    etch_module_maker there = find_maker(type);
    etch_status status = there ? ETCH_OK : add_row(type, make);
    pthread_mutex_unlock(&lock);
    if (there && there != make)
        return etch__nn_fail(ETCH_ERR_INVALID_ARGUMENT,
                             "etch_module_register_type: '%.100s' has another maker already", type);
    return status;
}
