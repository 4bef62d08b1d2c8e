/* Before the library reads a tensor for its user: its data has to be there. */
#include "core/base/hooks.h"
#include "core/tensor/tensor.h"

/* Every sample has another value: the program cannot go on with one of them, nor can it be let go
 * on with none, so the call that maps fails in any case. */
static etch_status is_batched(const char *function, const void *site) {
    etch__error_at(
        site, ETCH_ERR_BATCHED,
        "%s: expected a tensor whose values can be read, got one that etch_vmap maps, which "
        "has a value for each sample; choose with etch_where or etch_masked_fill in place "
        "of a branch, or return it and read it outside",
        function);
    etch__tls.lost = etch__tls.errors;
    return ETCH_ERR_BATCHED;
}

etch_status etch__materialise(const etch_tensor *t, const char *function, reason_id why,
                              const void *site) {
    if (!etch__handle_ok(t, function, "t", site)) return etch__tls.status;
    if (unlikely(t->notes && t->notes->inner)) return is_batched(function, site);
    if (likely(!t->deferred && !etch__tls.run)) {
        etch__before_read(t->storage);
        return etch__await_copy(t);
    }
    etch_status status = etch__trace_hooks.read(t, why, site);
    if (status != ETCH_OK) return status;
    return etch__handle_ok(t, function, "t", site) ? etch__await_copy(t) : etch__tls.status;
}

etch_status etch_flush(void) {
    if (!etch__tls.run && !etch__tls.watches) return ETCH_OK;
    return etch__trace_hooks.read(NULL, REASON_BREAK_FLUSH, __builtin_return_address(0));
}
