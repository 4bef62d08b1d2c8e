/* Backend "faulty", for the test of etch-minify: native code, but every sin in the graph becomes a
 * cos.
 *
 * What makes a graph differ is one operator in it; the smallest graph has that one. */
#include <etch/etch.h>

static etch_status compile(void *ctx, etch_graph *g, etch_runnable *out) {
    (void)ctx;
    for (etch_node *n = etch_graph_first(g), *next; n; n = next) {
        etch_value args[ETCH_NODE_MAX_ARGS];
        next = etch_node_next(n);
        if (!etch_op_is(etch_node_op(n), "sin")) continue;
        int nargs = etch_node_args(n, args);
        if (!etch_graph_replace(g, n, etch_op_find("cos"), args, nargs)) return etch_last_status();
    }
    out->backend = "native";
    return ETCH_OK;
}

__attribute__((constructor)) static void register_faulty(void) {
    etch_register_backend("faulty", compile, NULL);
}
