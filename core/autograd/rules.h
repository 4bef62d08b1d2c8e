/* The rules of derivatives, one function a row of derivatives.def, and what they share. */
#ifndef ETCH_CORE_AUTOGRAD_RULES_H
#define ETCH_CORE_AUTOGRAD_RULES_H

#include <etch/etch.h>

#include "core/autograd/derivative.h"

#define DERIVATIVE(name, ...) void etch__derivative_##name(const derivative_call *d);
#include "core/autograd/derivatives.def"
#undef DERIVATIVE

/* RULE(name) { ... } is the function of a row. */
#define RULE(name) void etch__derivative_##name(const derivative_call *d)

#endif
