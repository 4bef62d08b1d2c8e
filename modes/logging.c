/* A mode that writes what is called: operator, dtypes, shapes and devices of tensors in and out. */
#include "support.h"

static const char name[] = "logging";

typedef struct logging {
    etch_line_sink sink;
} logging;

/* "f32[2, 3] on cpu" */
typedef struct tensor_text {
    char s[224];
} tensor_text;
static tensor_text describe(const etch_tensor *t) {
    tensor_text text;
    text_out out = {text.s, sizeof text.s, 0};
    put_text(&out, "%s[", etch_dtype_name(etch_dtype_of(t)));
    for (int d = 0; d < etch_ndim(t); d++)
        put_text(&out, "%s%lld", d ? ", " : "", (long long)etch_size(t, d));
    put_text(&out, "] on %s", etch_device_name(etch_device_of(t)));
    return text;
}

static etch_status log_call(void *ctx, const etch_op *op, const etch_value *args, int nargs,
                            etch_tensor **out, int nout) {
    const logging *l = ctx;
    put_line(l->sink, "Called: %s", title_of(op).s);
    for (int i = 0; i < nargs; i++)
        for (int k = 0; tensor_of(&args[i], k); k++)
            put_line(l->sink, "  argument %d: %s", i, describe(tensor_of(&args[i], k)).s);
    etch_status status = etch_redispatch(op, args, nargs, out, nout);
    for (int i = 0; status == ETCH_OK && i < nout; i++)
        put_line(l->sink, "  result: %s", describe(out[i]).s);
    if (status != ETCH_OK) put_line(l->sink, "  failed: %s", etch_last_error());
    return status;
}

etch_mode *etch_logging_mode(etch_line_sink sink) {
    logging *l = new_context(sizeof *l);
    if (!l) return NULL;
    l->sink = sink;
    return mode_or_free(etch_mode_new(log_call, l, .name = name, .destroy = free), l, free);
}
