/* Reasons: why something was not fused, not compiled, compiled again or run eagerly, and how often.
 */
#include "core/base/base.h"

const reason_info etch__reasons[REASON_COUNT] = {
#define REASON(id, reason_name, reason_text, reason_hint)                                          \
    [REASON_##id] = {.name = reason_name, .text = reason_text, .hint = reason_hint},
#include "core/base/reasons.def"
#undef REASON
};

_Atomic int64_t etch__reason_counts[REASON_COUNT];
