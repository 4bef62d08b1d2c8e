/* Lines of modes to a file. */
#include "support.h"

static void to_file(void *ctx, const char *text) { fprintf(ctx, "%s\n", text); }

etch_line_sink etch_file_sink(FILE *file) { return (etch_line_sink){file ? to_file : NULL, file}; }
