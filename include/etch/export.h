/* Exported functions: graph, weights and machine code of a compiled function in one file, which is
 * loaded and called where there is no compiler.
 *
 *     etch_export(f, &x, 1, "model.etch", .module = m);                 (on one machine)
 *
 *     etch_imported *f = etch_import("model.etch");                     (in another process)
 *     ETCH_SCOPE { etch_tensor *y = etch_imported_call_one(f, &x, 1); }
 *     etch_imported_free(f);
 *
 * docs/export.md has the form of a file, what is checked in which order, and what is promised. A
 * file is a safetensors file: its weights can be read by any program that reads those. */
#ifndef ETCH_EXPORT_H
#define ETCH_EXPORT_H

#include <etch/compile.h>
#include <etch/nn.h>
#include <etch/safetensors.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- writing ---- */

/* All zero is the default. */
typedef struct etch_export_options {
    size_t struct_size;             /* set by the macro */
    int nout;                       /* results of a function of the general form; 0: one */
    bool no_code;                   /* graph and weights alone: who imports it compiles */
    const etch_module *module;      /* its parameters and buffers have their names in the file */
    const etch_named_tensor *names; /* names for other captured tensors */
    int nnames;
} etch_export_options;

/* Writes what f does with tensors like in[0..nin) to path, all or nothing.
 *
 * The body runs twice, on shapes alone: no tensor is read or changed, but what the body changes of
 * its own (a counter, a file) changes, and gradients (etch_grad_of) that it drops are gone. It is
 * exported as it went: branches that it took, scalars, sizes. Where arguments have dimensions that
 * are marked (etch_mark_dynamic) it runs eight times more, with other sizes, and what follows from
 * those is kept as formulas. Tensors that it captured are stored with the values that they have
 * now; those that it writes (parameters, moments of an optimiser, running means) are the imported
 * function's own, and go on from there.
 *
 * The error unsupported says what cannot be kept: what changes from call to call (a scalar that is
 * computed from a counter, as the corrections of etch_optim_adam without .capturable; of
 * etch_optim_sgd without dampening and of etch_optim_rmsprop there are none); a tensor that
 * outlives the call and is no result; results that require gradients (export in ETCH_NO_GRAD);
 * gradients that each call adds to; what changes with marked sizes in other ways than as a product,
 * sum or quotient of them (specialised, where it is an attribute or a scalar); functions of
 * etch_allow_in_graph, and those of etch_disable and its like. graph_break names the line that
 * breaks the graph; device: a captured tensor on another device; mode_active; recompile: a stance
 * forbids compiling; compile: a kernel does not build; io. Not inside of a compiled function. Any
 * thread; one at a time for a function whose body is not for several. */
ETCH_API etch_status etch_export_with(etch_function *f, etch_tensor *const *in, int nin,
                                      const char *path, const etch_export_options *options);

/* ---- reading ---- */

typedef struct etch_imported etch_imported;

/* Where the code comes from. */
typedef enum etch_import_code {
    ETCH_CODE_OF_FILE, /* the file's, and nothing else: no compiler is started */
    ETCH_CODE_COMPILE, /* the file's is not looked at: it is compiled here, as etch_compile does */
    ETCH_CODE_EAGER    /* no code: the operators' own kernels, with the same bits */
} etch_import_code;

typedef struct etch_import_options {
    size_t struct_size; /* set by the macro */
    etch_import_code code;
    bool cold; /* do not run it: see below */
} etch_import_options;

/* Loads a file; NULL with the error set. Machine code of a file is loaded only if
 *   - the file is a regular one that belongs to this user or to root, and nobody else may write it,
 *   - its hash is right,
 *   - it was made by this version of the library, built by this compiler, for this instruction set.
 * These are the rules of the kernel cache (of which every file belongs to its user). They keep out
 * damage, other machines and other users; they do not tell whether a file that *you* have copied
 * from elsewhere deserves trust: loading its code is running a program of whoever made it. With
 * ETCH_CODE_COMPILE and ETCH_CODE_EAGER nothing of the file is ever run: its graph is data, and is
 * checked operator by operator.
 *
 * What is loaded is run once, with zeros as arguments and in place of the weights that it writes,
 * so that the first call does not wait for what libraries and devices prepare at theirs (which may
 * take a tenth of a second; not with .cold, nor where it has operators of the user's).
 *
 * Errors: io (no file, or not one whose code may be loaded: what to do is said), format (damaged,
 * or of a version that is not known; an operator that is not registered here), unsupported (code of
 * another machine or library), compile, device, out_of_memory. Any thread. */
ETCH_API etch_imported *etch_import_with(const char *path, const etch_import_options *options);
/* No call of it may be running. NULL is a no-op. */
ETCH_API void etch_imported_free(etch_imported *f);

ETCH_API int etch_imported_num_inputs(const etch_imported *f);
ETCH_API int etch_imported_num_outputs(const etch_imported *f);
/* The captured tensors. They belong to f: what is written into them is what calls read from then
 * on. NULL with the error set for a number that is out of range; names live as long as f. */
ETCH_API int etch_imported_num_weights(const etch_imported *f);
ETCH_API etch_tensor *etch_imported_weight(const etch_imported *f, int i);
ETCH_API const char *etch_imported_weight_name(const etch_imported *f, int i);

/* Sizes are those of the export, but for dimensions that were marked dynamic then: of these any
 * size within the bounds of the mark serves, the same wherever it was the same at the export; and a
 * first call with new ones makes a plan for them.
 *
 * Calls f: the bits are those that the exported function would have given. Results belong to the
 * innermost scope, except a returned argument or weight, which stays with its owner. On an error,
 * out holds NULLs. Arguments have the dtypes, sizes and strides of those that f was exported with,
 * else the error dtype, shape or device says of which one what was expected and what came. Inside a
 * compiled function it is a graph break; modes do not see it; no gradients flow through it (an
 * argument that requires them outside of ETCH_NO_GRAD, or has a tangent, is the error no_grad; a
 * batched one, batched). Any thread; functions that write weights one call at a time. */
ETCH_API etch_status etch_imported_call(etch_imported *f, etch_tensor *const *in, int nin,
                                        etch_tensor **out, int nout);
/* The same for a function with one result: NULL on error. */
ETCH_API etch_tensor *etch_imported_call_one(etch_imported *f, etch_tensor *const *in, int nin);

/* Writes f with its weights as they are now to path: a file like the one that it came from. */
ETCH_API etch_status etch_imported_save(const etch_imported *f, const char *path);

/* ---- looking ---- */

/* What is in a file, as text, into buf (at most n bytes with the final NUL); returns the length it
 * needs without the NUL, or -1 with an error. Nothing of the file is run. The program etch-export
 * prints it. */
ETCH_API int64_t etch_export_describe(const char *path, char *buf, size_t n);

#ifdef __cplusplus
}
#endif

#ifndef __cplusplus
/* etch_export(f, in, nin, path), etch_export(f, in, nin, path, .module = m) and the like. */
#define etch_export(f, in, nin, path, ...)                                                         \
    etch_export_with(                                                                              \
        f, in, nin, path,                                                                          \
        &(etch_export_options){.struct_size = sizeof(etch_export_options), __VA_ARGS__})
#define etch_import(path, ...)                                                                     \
    etch_import_with(                                                                              \
        path, &(etch_import_options){.struct_size = sizeof(etch_import_options), __VA_ARGS__})
#endif
#endif
