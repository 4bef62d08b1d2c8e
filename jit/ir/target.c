/* The targets: the CPU, and the one other kind of device. */
#include "jit/ir/target.h"

static const jit_target *targets[2];

void etch__target_register(bool cpu, const jit_target *t) { targets[!cpu] = t; }
const jit_target *etch__target(int device) { return targets[device > 0]; }
