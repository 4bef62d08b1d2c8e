/* A mode that measures each operator: one line a call, and a table of all. */
#include "support.h"

#include <time.h>

static const char name[] = "profiling";

typedef struct profiling {
    etch_line_sink sink;
    op_rows rows;
} profiling;

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int64_t bytes_of(const etch_tensor *t) {
    return t ? etch_numel(t) * (int64_t)etch_dtype_size(etch_dtype_of(t)) : 0;
}

static int64_t bytes_of_call(const etch_value *args, int nargs, etch_tensor **out, int nout) {
    int64_t bytes = 0;
    for (int i = 0; i < nargs; i++)
        for (int k = 0; tensor_of(&args[i], k); k++) bytes += bytes_of(tensor_of(&args[i], k));
    for (int i = 0; i < nout; i++) bytes += bytes_of(out[i]);
    return bytes;
}

static void count(profiling *p, const etch_op *op, double elapsed, int64_t bytes) {
    pthread_mutex_lock(&p->rows.lock);
    op_row *r = row_of(&p->rows, op);
    if (r) {
        r->times.calls++;
        r->times.total += elapsed;
        r->times.bytes += bytes;
    }
    pthread_mutex_unlock(&p->rows.lock);
}

static etch_status measure(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                           etch_tensor **out, int nout) {
    profiling *p = ctx;
    double start = seconds();
    etch_status status = etch_redispatch(op, args, nargs, out, nout);
    double elapsed = seconds() - start;
    if (status != ETCH_OK) return status;
    count(p, op, elapsed, bytes_of_call(args, nargs, out, nout));
    put_line(p->sink, "%s: %.6fs", title_of(op).s, elapsed);
    return ETCH_OK;
}

static void destroy(void *ctx) {
    profiling *p = ctx;
    free_rows(&p->rows);
    free(p);
}

etch_mode *etch_profiling_mode(etch_line_sink sink) {
    profiling *p = new_context(sizeof *p);
    if (!p) return NULL;
    p->sink = sink;
    pthread_mutex_init(&p->rows.lock, NULL);
    return mode_or_free(etch_mode_new(measure, p, .name = name, .destroy = destroy), p, destroy);
}

/* ---- what it has collected ---- */

static int by_total(const void *a, const void *b) {
    const etch_mode_times *x = a, *y = b;
    if (x->total != y->total) return x->total < y->total ? 1 : -1;
    return strcmp(etch_op_name(x->op), etch_op_name(y->op));
}

/* All rows, sorted, in memory to be freed; NULL for none or on lack of memory (*n then is -1). */
static etch_mode_times *sorted(profiling *p, int *n) {
    pthread_mutex_lock(&p->rows.lock);
    *n = 0;
    for (op_row *r = p->rows.first; r; r = r->next) ++*n;
    etch_mode_times *all = *n ? malloc((size_t)*n * sizeof *all) : NULL;
    int at = 0;
    for (op_row *r = p->rows.first; r && all; r = r->next) {
        all[at] = r->times;
        all[at++].mean = r->times.total / (double)r->times.calls;
    }
    pthread_mutex_unlock(&p->rows.lock);
    if (all) qsort(all, (size_t)*n, sizeof *all, by_total);
    if (all || !*n) return all;
    *n = -1;
    etch_set_error(ETCH_ERR_OUT_OF_MEMORY, NULL);
    return NULL;
}

int etch_profiling_mode_times(const etch_mode *mode, etch_mode_times *out, int n) {
    profiling *p = context_of(mode, name);
    int known;
    if (!p) return -1;
    etch_mode_times *all = sorted(p, &known);
    for (int i = 0; out && i < n && i < known; i++) out[i] = all[i];
    free(all);
    return known;
}

int64_t etch_profiling_mode_table(const etch_mode *mode, char *buf, size_t n) {
    profiling *p = context_of(mode, name);
    text_out text = {buf, buf ? n : 0, 0};
    int known;
    if (!p) return -1;
    etch_mode_times *all = sorted(p, &known);
    if (known < 0) return -1;
    put_text(&text, "%-28s %8s %12s %12s %14s\n", "operator", "calls", "total us", "mean us",
             "bytes");
    for (int i = 0; i < known; i++)
        put_text(&text, "%-28s %8lld %12.1f %12.2f %14lld\n", etch_op_name(all[i].op),
                 (long long)all[i].calls, all[i].total * 1e6, all[i].mean * 1e6,
                 (long long)all[i].bytes);
    free(all);
    return text.used;
}
