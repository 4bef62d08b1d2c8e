/* A mode that counts calls, by packet. */
#include "support.h"

static const char name[] = "statistics";

static etch_status count(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                         etch_tensor **out, int nout) {
    op_rows *rows = ctx;
    (void)args, (void)nargs, (void)out, (void)nout;
    pthread_mutex_lock(&rows->lock);
    op_row *r = row_of(rows, op);
    if (r) r->times.calls++;
    pthread_mutex_unlock(&rows->lock);
    return ETCH_DECLINED;
}

static void destroy(void *ctx) {
    free_rows(ctx);
    free(ctx);
}

etch_mode *etch_statistics_mode(void) {
    op_rows *rows = new_context(sizeof *rows);
    if (!rows) return NULL;
    pthread_mutex_init(&rows->lock, NULL);
    return mode_or_free(etch_mode_new(count, rows, .name = name, .destroy = destroy), rows,
                        destroy);
}

int64_t etch_statistics_mode_count(const etch_mode *mode, const char *op) {
    op_rows *rows = context_of(mode, name);
    int64_t calls = 0;
    if (!rows) return -1;
    pthread_mutex_lock(&rows->lock);
    for (const op_row *r = rows->first; r; r = r->next)
        if (!op || etch_op_is(r->times.op, op)) calls += r->times.calls;
    pthread_mutex_unlock(&rows->lock);
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

static int add_up(const op_rows *rows, line *lines) {
    int n = 0;
    for (const op_row *r = rows->first; r; r = r->next) {
        op_title title = title_of(r->times.op);
        int at = 0;
        while (at < n && strcmp(lines[at].title.s, title.s)) at++;
        if (at == n) lines[n++] = (line){title, 0};
        lines[at].calls += r->times.calls;
    }
    return n;
}

int64_t etch_statistics_mode_text(const etch_mode *mode, char *buf, size_t n) {
    op_rows *rows = context_of(mode, name);
    text_out text = {buf, buf ? n : 0, 0};
    size_t most = 1;
    if (!rows) return -1;
    pthread_mutex_lock(&rows->lock);
    for (const op_row *r = rows->first; r; r = r->next) most++;
    line *lines = malloc(most * sizeof *lines);
    int nlines = lines ? add_up(rows, lines) : 0;
    pthread_mutex_unlock(&rows->lock);
    if (!lines) return etch_set_error(ETCH_ERR_OUT_OF_MEMORY, NULL), -1;
    qsort(lines, (size_t)nlines, sizeof *lines, by_calls);
    put_text(&text, "%s", "");
    for (int i = 0; i < nlines; i++)
        put_text(&text, "%s: %lld calls\n", lines[i].title.s, (long long)lines[i].calls);
    free(lines);
    return text.used;
}
