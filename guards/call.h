/* What an operator call must be for a node of a trace: operator, attributes, kinds of its scalars,
 * the state word. Operands are looked at elsewhere. */
#ifndef ETCH_GUARDS_CALL_H
#define ETCH_GUARDS_CALL_H

#include "core/dispatch/cursor.h"

bool etch__same_call(const cursor_node *n, const op_call *call, uint64_t state);
/* The same but for sizes and positions among the attributes. */
bool etch__similar_call(const cursor_node *n, const op_call *call, uint64_t state);
/* The first static attribute in which a call like the node's differs; -1 if there is none. */
int etch__static_difference(const cursor_node *n, const op_call *call);
/* Whether two nodes stand for the same calls. */
bool etch__same_cursor_node(const cursor_node *a, const cursor_node *b);

#endif
