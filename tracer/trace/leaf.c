/* Leaves: what a path as a whole says of its values, and the codes that were compiled for it. */
#include "tracer/trace/recipe.h"

/* ---- paths ---- */

bool etch__path_reads(trace_node *const *path, int64_t npath, int32_t value) {
    for (int64_t i = 0; i < npath; i++)
        for (int k = 0; k < path[i]->nin; k++)
            if (path[i]->in[k] == value) return true;
    return false;
}

int etch__path_inputs(trace_node *const *path, int64_t npath, int nargs, int32_t *inputs,
                      int *nread) {
    int n = 0;
    for (int32_t v = 0; v < nargs; v++)
        if (etch__path_reads(path, npath, v)) inputs[n++] = v;
    *nread = n;
    for (int64_t i = 0; i < npath; i++)
        for (int k = 0; k < path[i]->ncaptures; k++) inputs[n++] = path[i]->captures[k].value;
    return n;
}

/* A value is tainted if its own storage, or one it was computed from, is written anywhere in the
 * segment: computing it again later would see other memory. Inputs over one storage (alias) are
 * written together. */
void etch__find_tainted(const trace_leaf *leaf, const int32_t *alias, uint8_t *tainted) {
    for (int v = 0; v < leaf->nvalues; v++)
        if (leaf->written[v]) tainted[leaf->writes_inputs ? alias[v] : v] = 1;
    for (int v = 0; v < leaf->nvalues; v++) {
        int32_t base = leaf->base[v];
        tainted[v] |= tainted[base] | (leaf->writes_inputs && tainted[alias[base]]);
    }
    for (int i = 0; i < leaf->npath; i++) {
        const trace_node *n = leaf->path[i];
        for (int k = 0; k < n->nin; k++)
            if (n->in[k] >= 0) tainted[n->c.out] |= tainted[n->in[k]];
    }
}

/* ---- codes ---- */

bool etch__instance_fits(const trace_leaf *leaf, const segment_code *code, const input_case *seen) {
    size_t bytes = (size_t)seen->nkey * sizeof *seen->key;
    return code->version == atomic_load_explicit(&leaf->version, memory_order_relaxed) &&
           code->nkey == seen->nkey && !memcmp(code->key, seen->key, bytes) &&
           etch__alias_fits(leaf, code, seen->alias);
}

segment_code *etch__find_instance(trace_leaf *leaf, const input_case *seen) {
    segment_code *code = leaf->code;
    while (code && !etch__instance_fits(leaf, code, seen)) code = code->next;
    if (code) atomic_fetch_add(&code->refs, 1);
    return code;
}

void etch__code_release(const trace_leaf *leaf, segment_code *code) {
    if (!leaf->dynamic || !code || atomic_fetch_sub(&code->refs, 1) != 1) return;
    etch__plan_release(code->plan);
    etch__code_free(code);
}

void etch__code_free(segment_code *code) {
    if (code) etch__free(code->key);
    if (code) etch__recipe_release(code->recipe);
    etch__free(code);
}
