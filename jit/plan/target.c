/* The one target beside the CPU. */
#include "jit/plan/target.h"

static const jit_target *the_target;

void etch__target_register(const jit_target *t) { the_target = t; }
const jit_target *etch__target(void) { return the_target; }
