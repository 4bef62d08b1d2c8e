/* Which code is the library's own, and so which frame of the stack is the user's. */
#include <dlfcn.h>
#include <unwind.h>

#include "core/base/base.h"

/* In the static library all code lies in one section, of which the linker knows the ends (cmake/
 * library.cmake); in the shared one, which has no such section, the code is all that is mapped. */
extern const char __start_etch_text[] __attribute__((weak, visibility("hidden")));
extern const char __stop_etch_text[] __attribute__((weak, visibility("hidden")));

bool etch__is_own_code(const void *address) {
    const char *at = address;
    if (__start_etch_text) return at >= __start_etch_text && at < __stop_etch_text;
    struct dl_find_object o;
    if (_dl_find_object((void *)etch__is_own_code, &o)) return false;
    return at >= (const char *)o.dlfo_map_start && at < (const char *)o.dlfo_map_end;
}

typedef struct stack_search {
    const void *site, *function;
} stack_search;

/* Frames come innermost first; the address is one of return, whose call lies before it. */
static _Unwind_Reason_Code look_at_frame(struct _Unwind_Context *frame, void *ctx) {
    stack_search *s = ctx;
    const char *at = (const char *)_Unwind_GetIP(frame);
    if (!at) return _URC_END_OF_STACK;
    if (etch__is_own_code(at - 1)) {
        s->function = (const void *)_Unwind_GetRegionStart(frame);
        return _URC_NO_REASON;
    }
    s->site = at;
    return _URC_NORMAL_STOP;
}

const void *etch__user_site(const void *site, const void **function) {
    stack_search s = {NULL, NULL};
    if (site && !etch__is_own_code((const char *)site - 1)) return site;
    _Unwind_Backtrace(look_at_frame, &s);
    if (function) *function = s.function;
    return s.site;
}
