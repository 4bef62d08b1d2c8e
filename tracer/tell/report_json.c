/* ETCH_TRACE: the records as one JSON document; docs/trace.md says what is in it.
 *
 * The page holds the same document inside a script element, so strings never have a raw '<', and
 * bytes that are no UTF-8 become U+FFFD: names may hold anything. */
#include "tracer/tell/report.h"

#include <errno.h>
#include <unistd.h>

#include "core/base/isa.h"

/* ---- values ---- */

/* Bytes of the UTF-8 sequence at s, 0 where there is none. */
static int sequence(const unsigned char *s) {
    int n = s[0] < 0x80 ? 1 : s[0] >= 0xc2 && s[0] < 0xe0 ? 2 : (s[0] & 0xf0) == 0xe0 ? 3 : 0;
    if (s[0] >= 0xf0 && s[0] <= 0xf4) n = 4;
    for (int i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    bool wide = (s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xf0 && s[1] < 0x90);
    bool surrogate = s[0] == 0xed && s[1] >= 0xa0, beyond = s[0] == 0xf4 && s[1] >= 0x90;
    return wide || surrogate || beyond ? 0 : n;
}

static void put_text(FILE *f, const char *text) {
    putc('"', f);
    for (const unsigned char *s = (const unsigned char *)(text ? text : ""); *s;) {
        int n = sequence(s);
        if (!n) fputs("\\ufffd", f);
        else if (n == 3 && s[0] == 0xe2 && s[1] == 0x80 && (s[2] | 1) == 0xa9)
            fprintf(f, "\\u20%02x", s[2] - 0x80); /* line ends to a script */
        else if (n > 1) fwrite(s, 1, (size_t)n, f);
        else if (*s == '\n') fputs("\\n", f);
        else if (*s < 0x20 || strchr("\"\\<>&\x7f", *s)) fprintf(f, "\\u%04x", *s);
        else putc(*s, f);
        s += n ? n : 1;
    }
    putc('"', f);
}

static void put_field(FILE *f, const char *name, const char *text) {
    fprintf(f, "\"%s\":", name);
    put_text(f, text);
    putc(',', f);
}

static void put_number(FILE *f, const char *name, int64_t value) {
    fprintf(f, "\"%s\":%lld,", name, (long long)value);
}

static void put_flag(FILE *f, const char *name, bool value) {
    fprintf(f, "\"%s\":%s,", name, value ? "true" : "false");
}

static void put_time(FILE *f, const char *name, report_time *t) {
    fprintf(f,
            "\"%s\":{\"count\":%lld,\"total_ns\":%lld,\"min_ns\":%lld,\"max_ns\":%lld,"
            "\"first_ns\":%lld},",
            name, (long long)t->count, (long long)t->total, (long long)t->min, (long long)t->max,
            (long long)t->first);
}

/* Between the elements of an array. */
static void put_comma(FILE *f, bool *first) {
    if (!*first) fputs(",\n", f);
    *first = false;
}

static void put_counters(FILE *f, const etch_counters_t *c) {
    fputs("\"counters\":{", f);
#define COUNTER(name) put_number(f, #name, c->name);
#include "core/base/counters.def"
#undef COUNTER
    put_number(f, "kernel_launches", c->kernel_launches);
    put_number(f, "library_calls", c->library_calls);
    fprintf(f, "\"operators\":%lld},\n", (long long)c->operators);
}

/* ---- graphs ---- */

static void put_step(FILE *f, report_step *s) {
    static const char *const kinds[] = {"kernel", "product", "call"};
    putc('{', f);
    put_field(f, "kind", kinds[s->kind]);
    put_field(f, "name", s->name);
    put_field(f, "text", s->text);
    put_time(f, "time", &s->time);
    put_time(f, "device", &s->device);
    put_number(f, "bytes", s->bytes);
    fprintf(f, "\"kernel\":%d}", s->kernel);
}

static void put_device(FILE *f, report_graph *g) {
    static const char *const ways[] = {"steps", "graph", "kernel"};
    char name[24] = "";
    if (g->nsteps) snprintf(name, sizeof name, "cpu");
    if (g->device) snprintf(name, sizeof name, "cuda:%d", g->device - 1);
    put_field(f, "device", name);
    put_field(f, "issued_as", ways[g->issue]);
    put_time(f, "device_run", &g->device_run);
    put_time(f, "device_idle", &g->device_idle);
}

static void put_graph(FILE *f, report_graph *g) {
    static const char *const outcomes[] = {"compiled", "fallback", "failed"};
    putc('{', f);
    put_number(f, "id", g->number);
    put_field(f, "name", g->name);
    put_field(f, "outcome", outcomes[g->outcome]);
    put_field(f, "why", g->why);
    put_number(f, "operators", g->operators);
    put_flag(f, "other_sizes", g->instance);
    put_number(f, "instances", g->instances);
    put_flag(f, "provisional", g->provisional);
    put_number(f, "saved_bytes", g->saved_bytes);
    put_number(f, "operator_bytes", g->operator_bytes);
    put_number(f, "start_ns", g->start);
    put_number(f, "compile_ns", g->compile_ns);
    put_time(f, "run", &g->run);
    put_device(f, g);
    put_field(f, "guards", g->guards);
    put_field(f, "text", g->text);
    put_field(f, "schedule", g->schedule);
    put_field(f, "fusion", g->notes);
    fputs("\"steps\":[", f);
    bool first = true;
    for (int64_t i = 0; i < g->nsteps; i++) put_comma(f, &first), put_step(f, &g->steps[i]);
    fputs("]}", f);
}

static void put_kernel(FILE *f, const report_kernel *k, int64_t number) {
    putc('{', f);
    put_number(f, "id", number);
    put_field(f, "name", k->symbol);
    put_field(f, "origin", k->compiled ? "compiled" : "cache");
    put_field(f, "loop_ir", k->loop);
    put_field(f, "code", k->dump);
    fprintf(f, "\"compile_ns\":%lld}", (long long)(k->ms * 1e6));
}

/* ---- functions ---- */

static const char *reason_name(reason_id r) {
    return r < REASON_COUNT ? etch__reasons[r].name : "return";
}

static void put_event(FILE *f, const report_event *e) {
    static const char *const kinds[] = {"break", "recompile", "mode", "limit", "reset"};
    const reason_info *r = e->why < REASON_COUNT ? &etch__reasons[e->why] : NULL;
    putc('{', f);
    put_field(f, "kind", kinds[e->kind]);
    put_field(f, "reason", r ? r->name : "");
    put_field(f, "text", r ? r->text : "");
    put_field(f, "hint", r ? r->hint : "");
    put_field(f, "where", e->where);
    put_field(f, "source", e->source);
    put_field(f, "detail", e->detail);
    put_number(f, "first_ns", e->first);
    fprintf(f, "\"count\":%lld}", (long long)e->count);
}

static void put_leaf(FILE *f, const report_leaf *l) {
    putc('{', f);
    put_number(f, "node", l->node);
    put_field(f, "end", reason_name(l->end));
    put_field(f, "where", l->where);
    put_number(f, "recorded", l->recorded);
    put_number(f, "first_ns", l->first);
    put_number(f, "eager_runs", l->eager);
    fputs("\"graphs\":[", f);
    bool first = true;
    for (const report_graph *g = l->graphs; g; g = g->next) {
        if (g->number < 0) continue;
        put_comma(f, &first);
        fprintf(f, "%d", g->number);
    }
    fputs("]}", f);
}

static void put_limit(FILE *f, const report_limit *l) {
    putc('{', f);
    put_number(f, "node", l->node);
    put_field(f, "op", l->op);
    put_field(f, "where", l->where);
    put_number(f, "first_ns", l->first);
    fprintf(f, "\"count\":%lld}", (long long)l->count);
}

static void put_node(FILE *f, const report_node *n) {
    putc('{', f);
    put_number(f, "parent", n->parent);
    put_field(f, "op", n->op);
    put_field(f, "where", n->where);
    fputs("\"text\":", f);
    put_text(f, n->text);
    putc('}', f);
}

static void put_tree(FILE *f, const report_tree *t) {
    bool first = true;
    putc('{', f);
    put_number(f, "number", t->number);
    put_number(f, "generation", t->generation);
    put_flag(f, "entry", t->entry);
    put_flag(f, "dynamic", t->dynamic);
    put_field(f, "guards", t->guards);
    fputs("\"nodes\":[", f);
    for (int64_t i = 0; i < t->nnodes; i++) put_comma(f, &first), put_node(f, &t->nodes[i]);
    fputs("],\"leaves\":[", f);
    first = true;
    for (const report_leaf *l = t->leaves; l; l = l->next) put_comma(f, &first), put_leaf(f, l);
    fputs("],\"limits\":[", f);
    first = true;
    for (int64_t i = 0; i < t->nlimits; i++) put_comma(f, &first), put_limit(f, &t->limits[i]);
    fputs("]}", f);
}

static void put_function(FILE *f, report_function *r) {
    bool first = true;
    if (r->f) r->counts = etch_function_counters(r->f);
    putc('{', f);
    put_number(f, "id", r->number);
    put_field(f, "name", r->name);
    put_field(f, "backend", r->backend);
    put_field(f, "options", r->options);
    put_flag(f, "freed", !r->f);
    put_time(f, "calls", &r->calls);
    put_counters(f, &r->counts);
    fputs("\"events\":[", f);
    for (int64_t i = 0; i < r->nevents; i++) put_comma(f, &first), put_event(f, &r->events[i]);
    fputs("],\n\"trees\":[", f);
    first = true;
    for (const report_tree *t = r->trees; t; t = t->next) put_comma(f, &first), put_tree(f, t);
    fputs("]}", f);
}

/* ---- the whole ---- */

static void put_process(FILE *f, const report_totals *t) {
    fputs("\"process\":{", f);
    put_field(f, "program", program_invocation_short_name);
    put_number(f, "pid", getpid());
    put_number(f, "parent", etch__report_parent);
    put_field(f, "etch", etch_version());
    put_field(f, "isa", etch__cpu_isa_name(etch__cpu_isa()));
    put_number(f, "threads", t->threads);
    put_number(f, "dropped", __atomic_load_n(&etch__report_dropped, __ATOMIC_RELAXED));
    fprintf(f, "\"ns\":%lld},\n", (long long)(etch__now() - etch__report_began));
}

bool etch__report_json(FILE *f, const report_totals *totals) {
    bool first = true;
    fputs("{\"format\":\"etch-trace\",\"version\":1,\n", f);
    put_process(f, totals);
    put_counters(f, &totals->counts);
    fputs("\"functions\":[", f);
    for (report_function *r = etch__report_functions; r; r = r->next)
        put_comma(f, &first), put_function(f, r);
    fputs("],\n\"graphs\":[", f);
    first = true;
    for (int64_t i = 0; i < etch__report_ngraphs; i++)
        put_comma(f, &first), put_graph(f, etch__report_graphs[i]);
    fputs("],\n\"kernels\":[", f);
    first = true;
    for (int64_t i = 0; i < etch__report_nkernels; i++)
        put_comma(f, &first), put_kernel(f, &etch__report_kernels[i], i);
    fputs("]}\n", f);
    return !ferror(f);
}
