/* Starts the library's parts, one after the other, when it is loaded. The one constructor: nothing
 * else runs before a program's own code, and the order is that of the table. */
#include "core/base/start.h"

/* Of the constructors of a program that has the static library in it, the first. */
__attribute__((constructor(101))) static void start(void) {
#define PART(name, what) etch__start_##name();
#include "core/base/parts.def"
#undef PART
}
