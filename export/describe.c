/* What is in a file, for etch-export and whoever looks: as text, and nothing of it is run. */
#include "core/base/text.h"
#include "export/imported.h"
#include "nn/safetensors.h"

static void put_shape(bounded_text *t, const tensor_meta *m) {
    etch__text_add(t, "%s%s%s%s", etch_dtype_name(m->dtype), etch__shape_text(m->ndim, m->size).s,
                   m->device ? " on " : "", m->device ? etch_device_name(m->device) : "");
}

static void put_sizes(bounded_text *t, const program *p) {
    for (int i = 0; i < p->nsymbols; i++) {
        const program_symbol *s = &p->symbols[i];
        etch__text_add(t, "size s%d: %lld to ", i, (long long)s->min);
        if (s->max < INT64_MAX) etch__text_add(t, "%lld", (long long)s->max);
        else etch__text_add(t, "any");
        etch__text_add(t, ", recorded with %lld\n", (long long)s->size);
    }
    for (int i = 0; i < p->ndims; i++)
        etch__text_add(t, "size s%d: dimension %d of argument %d\n", p->dims[i].symbol,
                       p->dims[i].dim, p->dims[i].argument);
    if (p->nformulas) etch__text_add(t, "formulas of sizes: %d\n", p->nformulas);
}

static void put_arguments(bounded_text *t, const program *p) {
    for (int i = 0; i < p->nargs; i++) {
        etch__text_add(t, "argument %d: ", i);
        if (p->args[i].input < 0) etch__text_add(t, "ETCH_NONE");
        else put_shape(t, &p->g->values[p->args[i].input].meta);
        if (p->args[i].same != i) etch__text_add(t, ", the same as argument %d", p->args[i].same);
        etch__text_add(t, "\n");
    }
    for (int i = 0; i < p->nresults; i++) {
        etch__text_add(t, "result %d: %%%d ", i, p->results[i]);
        put_shape(t, &p->g->values[p->results[i]].meta);
        etch__text_add(t, "\n");
    }
}

static void put_weights(bounded_text *t, const program *p, const uint8_t *written) {
    int first = etch__first_capture(p);
    for (int i = 0; i < p->ncaptures; i++) {
        etch__text_add(t, "weight %d: %%%d '%s' ", i, first + i, p->captures[i].name);
        put_shape(t, &p->g->values[first + i].meta);
        etch__text_add(t, "%s\n", written[first + i] ? ", written" : "");
    }
}

static void put_code(bounded_text *t, const exported *e) {
    int64_t n[PACK_KINDS] = {0}, bytes[PACK_KINDS] = {0};
    if (!*e->identity) {
        etch__text_add(t, "code: none\n");
        return;
    }
    for (int64_t i = 0; e->pack && i < etch__pack_count(e->pack); i++) {
        const pack_entry *x = etch__pack_at(e->pack, i);
        n[x->kind]++, bytes[x->kind] += (int64_t)x->code_bytes;
    }
    etch__text_add(t, "code: for %s\n", e->identity);
    etch__text_add(t, "code: %lld kernels of the CPU, %lld bytes; %lld of a device, %lld bytes\n",
                   (long long)n[PACK_KERNEL], (long long)bytes[PACK_KERNEL],
                   (long long)n[PACK_BLOB], (long long)bytes[PACK_BLOB]);
    for (int64_t i = 0; e->pack && i < etch__pack_count(e->pack); i++) {
        const pack_entry *x = etch__pack_at(e->pack, i);
        if (x->kind == PACK_KERNEL)
            etch__text_add(t, "kernel %s: %lld bytes\n", x->symbol, (long long)x->code_bytes);
    }
}

int64_t etch_export_describe(const char *path, char *buf, size_t n) {
    exported e;
    bounded_text t = {buf, buf ? n : 0, 0};
    if (!path)
        return etch__error_at(__builtin_return_address(0), ETCH_ERR_NULL,
                              "etch_export_describe: expected a path, got NULL"),
               -1;
    if (!etch__file_load(path, CODE_TO_SHOW, &e)) return -1;
    char *graph_text = etch__graph_text(e.p->g);
    uint8_t *written = etch__program_written(e.p);
    bool ok = graph_text && written;
    if (ok) {
        etch__text_add(&t, "file: version %d, hash right\n", FILE_VERSION);
        put_arguments(&t, e.p);
        put_sizes(&t, e.p);
        put_weights(&t, e.p, written);
        put_code(&t, &e);
        etch__text_add(&t, "%s", graph_text);
    }
    etch__free(graph_text);
    etch__free(written);
    etch__exported_free(&e);
    return ok ? (int64_t)t.n : -1;
}
