/* A mode that counts calls, by packet. */
#include "support.h"

#include <pthread.h>

static const char name[] = "statistics";

typedef struct row {
    const etch_op *op;
    int64_t calls;
    struct row *next;
} row;

typedef struct statistics {
    pthread_mutex_t lock;
    row *rows;
} statistics;

static etch_status count(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                         etch_tensor **out, int nout) {
    statistics *s = ctx;
    (void)args, (void)nargs, (void)out, (void)nout;
    pthread_mutex_lock(&s->lock);
    row *r = s->rows;
    while (r && r->op != op) r = r->next;
    if (!r && (r = calloc(1, sizeof *r))) {
        r->op = op;
        r->next = s->rows;
        s->rows = r;
    }
    if (r) r->calls++;
    pthread_mutex_unlock(&s->lock);
    return ETCH_DECLINED;
}

static void destroy(void *ctx) {
    statistics *s = ctx;
    while (s->rows) {
        row *next = s->rows->next;
        free(s->rows);
        s->rows = next;
    }
    pthread_mutex_destroy(&s->lock);
    free(s);
}

etch_mode *etch_statistics_mode(void) {
    statistics *s = calloc(1, sizeof *s);
    if (!s) {
        etch_set_error(ETCH_ERR_OUT_OF_MEMORY, NULL);
        return NULL;
    }
    pthread_mutex_init(&s->lock, NULL);
    return mode_or_free(etch_mode_new(count, s, .name = name, .destroy = destroy), s, destroy);
}

int64_t etch_statistics_mode_count(const etch_mode *mode, const char *op) {
    statistics *s = context_of(mode, name);
    int64_t calls = 0;
    if (!s) return -1;
    pthread_mutex_lock(&s->lock);
    for (const row *r = s->rows; r; r = r->next)
        if (!op || etch_op_is(r->op, op)) calls += r->calls;
    pthread_mutex_unlock(&s->lock);
    return calls;
}

/* One packet's calls; overloads are added up. */
typedef struct line {
    op_title title;
    int64_t calls;
} line;

static int by_calls(const void *a, const void *b) {
    const line *x = a, *y = b;
    if (x->calls != y->calls) return x->calls < y->calls ? 1 : -1;
    return strcmp(x->title.s, y->title.s);
}

static int add_up(const statistics *s, line *lines) {
    int n = 0;
    for (const row *r = s->rows; r; r = r->next) {
        op_title title = title_of(r->op);
        int at = 0;
        while (at < n && strcmp(lines[at].title.s, title.s)) at++;
        if (at == n) lines[n++] = (line){title, 0};
        lines[at].calls += r->calls;
    }
    return n;
}

int64_t etch_statistics_mode_text(const etch_mode *mode, char *buf, size_t n) {
    statistics *s = context_of(mode, name);
    text_out text = {buf, buf ? n : 0, 0};
    size_t rows = 1;
    if (!s) return -1;
    pthread_mutex_lock(&s->lock);
    for (const row *r = s->rows; r; r = r->next) rows++;
    line *lines = malloc(rows * sizeof *lines);
    int nlines = lines ? add_up(s, lines) : 0;
    pthread_mutex_unlock(&s->lock);
    if (!lines) {
        etch_set_error(ETCH_ERR_OUT_OF_MEMORY, NULL);
        return -1;
    }
    qsort(lines, (size_t)nlines, sizeof *lines, by_calls);
    put_text(&text, "%s", "");
    for (int i = 0; i < nlines; i++)
        put_text(&text, "%s: %lld calls\n", lines[i].title.s, (long long)lines[i].calls);
    free(lines);
    return text.used;
}
