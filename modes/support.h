/* What the ready-made modes share: their contexts, an operator's full name, lines and text that
 * grows, tensors of a call one after another, and a row for each operator. */
#ifndef ETCH_MODES_SUPPORT_H
#define ETCH_MODES_SUPPORT_H

#include <etch/etch.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* "aten::add" for add.Tensor; a custom operator brings its own namespace. */
typedef struct op_title {
    char s[96];
} op_title;
static inline op_title title_of(const etch_op *op) {
    op_title t;
    const char *packet = etch_op_packet(op);
    snprintf(t.s, sizeof t.s, "%s%s", strstr(packet, "::") ? "" : "aten::", packet);
    return t;
}

static inline __attribute__((format(printf, 2, 3))) void put_line(etch_line_sink sink,
                                                                  const char *format, ...) {
    char line[512];
    va_list args;
    if (!sink.line) return;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    sink.line(sink.ctx, line);
}

/* Text into a caller's buffer, as snprintf does: `used` is the length it would need. */
typedef struct text_out {
    char *buf;
    size_t n;
    int64_t used;
} text_out;
static inline __attribute__((format(printf, 2, 3))) void put_text(text_out *t, const char *format,
                                                                  ...) {
    va_list args;
    size_t room = (size_t)t->used < t->n ? t->n - (size_t)t->used : 0;
    va_start(args, format);
    t->used += vsnprintf(room ? t->buf + t->used : NULL, room, format, args);
    va_end(args);
}

/* The k-th tensor of one argument (a list has several), or NULL behind the last. */
static inline etch_tensor *tensor_of(const etch_value *v, int k) {
    if (v->tag == ETCH_VALUE_TENSOR && k == 0) return v->tensor == ETCH_NONE ? NULL : v->tensor;
    if (v->tag == ETCH_VALUE_TENSORS && k < v->tensors.count) return v->tensors.items[k];
    return NULL;
}

/* The context of a ready-made mode, told by its name; NULL with the error set for another. */
static inline void *context_of(const etch_mode *mode, const char *name) {
    if (mode && !strcmp(etch_mode_name(mode), name)) return etch_mode_ctx(mode);
    char text[96];
    snprintf(text, sizeof text, "expected a mode of the kind '%s'", name);
    etch_set_error(ETCH_ERR_INVALID_ARGUMENT, text);
    return NULL;
}

/* A zeroed context; NULL with the error set. */
static inline void *new_context(size_t bytes) {
    void *ctx = calloc(1, bytes);
    if (!ctx) etch_set_error(ETCH_ERR_OUT_OF_MEMORY, NULL);
    return ctx;
}

/* The mode, or its context freed and NULL. */
static inline etch_mode *mode_or_free(etch_mode *mode, void *ctx, void (*destroy)(void *)) {
    if (!mode && ctx) destroy(ctx);
    return mode;
}

/* What is counted of each operator, in a context that any thread may use. */
typedef struct op_row {
    etch_mode_times times;
    struct op_row *next;
} op_row;

typedef struct op_rows {
    pthread_mutex_t lock;
    op_row *first;
} op_rows;

/* Under the lock. The operator's row, made at its first call; NULL when memory is short, and it
 * goes uncounted. */
static inline op_row *row_of(op_rows *rows, const etch_op *op) {
    op_row *r = rows->first;
    while (r && r->times.op != op) r = r->next;
    if (r || !(r = calloc(1, sizeof *r))) return r;
    r->times.op = op;
    r->next = rows->first;
    return rows->first = r;
}

static inline void free_rows(op_rows *rows) {
    for (op_row *r = rows->first, *next; r; r = next) next = r->next, free(r);
    pthread_mutex_destroy(&rows->lock);
}

#endif
