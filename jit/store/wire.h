/* What crosses the socket between libetch and etch-jit: fixed headers in the machine's own order
 * (both run on one machine), each followed by its parts. */
#ifndef ETCH_JIT_STORE_WIRE_H
#define ETCH_JIT_STORE_WIRE_H

#include <stdint.h>

enum { WIRE_MAGIC = 0x4a544531, WIRE_FD = 3, WIRE_MAX_PART = 1 << 26 };
enum { WIRE_DUMP = 1 };

/* Followed by: kernel (bytes of loop.c), path of the object to write, symbol; texts without a zero.
 */
typedef struct wire_request {
    uint32_t magic, isa, flags;
    uint32_t kernel_bytes, path_bytes, symbol_bytes;
} wire_request;

/* Followed by: message (why it failed), dump. */
typedef struct wire_reply {
    uint32_t magic, ok;
    uint32_t message_bytes, dump_bytes;
} wire_reply;

#endif
