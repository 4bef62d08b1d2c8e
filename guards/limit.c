/* The recompile limit, and that of graphs: see limit.h. */
#include "guards/limit.h"

atomic_int etch__live_graphs;

static bool too_many_graphs(void) {
    return etch__live_graphs >= etch__param_int(PARAM_GRAPH_LIMIT);
}

/* Once a process: it is nobody's fault in particular. */
static bool first_without_graphs(void) {
    static atomic_bool told;
    return !atomic_exchange(&told, true);
}

bool etch__at_limit(root_limit *l, int most, atomic_bool *warned, limit_warning *warning) {
    if (!l->reached && l->leaves < most && !too_many_graphs()) return false;
    warning->graphs = l->leaves < most;
    if (!l->reached && !atomic_exchange(warned, true))
        warning->due = !warning->graphs || first_without_graphs();
    return l->reached = true;
}
