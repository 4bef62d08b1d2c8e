/* A mode that writes who calls an operator: the C stack, with symbols and source lines. */
#include "support.h"

#include <execinfo.h>

static const char name[] = "call stack";

enum { MAX_FRAMES = 64 };

typedef struct call_stack {
    etch_line_sink sink;
    char op[96]; /* "": any */
} call_stack;

/* Functions of the library's surface, such as etch_mm, start with "etch_"; internal ones with
 * "etch__". */
static bool is_surface(const char *text) {
    return !strncmp(text, "etch_", 5) && strncmp(text, "etch__", 6) != 0;
}

/* The frame of the operator's own function: what lies inside it is the way to this mode. */
static int first_frame(void *const *frames, int n) {
    char text[256];
    for (int i = 0; i < n; i++) {
        etch_address_text(frames[i], text, sizeof text);
        if (is_surface(text)) return i;
    }
    return 0;
}

static etch_status show_stack(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                              etch_tensor **out, int nout) {
    const call_stack *s = ctx;
    void *frames[MAX_FRAMES];
    char text[256];
    (void)args, (void)nargs, (void)out, (void)nout;
    if (*s->op && !etch_op_is(op, s->op)) return ETCH_DECLINED;
    int n = backtrace(frames, MAX_FRAMES), first = first_frame(frames, n);
    put_line(s->sink, "Call stack of %s:", title_of(op).s);
    for (int i = first; i < n; i++) {
        etch_address_text(frames[i], text, sizeof text);
        put_line(s->sink, "  #%d %s", i - first, text);
    }
    return ETCH_DECLINED;
}

etch_mode *etch_call_stack_mode(const char *op, etch_line_sink sink) {
    call_stack *s = new_context(sizeof *s);
    if (!s) return NULL;
    s->sink = sink;
    snprintf(s->op, sizeof s->op, "%s", op ? op : "");
    return mode_or_free(etch_mode_new(show_stack, s, .name = name, .destroy = free), s, free);
}
