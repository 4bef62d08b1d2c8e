/* etch_opcheck: does a registered operator do what its registration says? */
#ifndef ETCH_OPCHECK_H
#define ETCH_OPCHECK_H

#include <etch/mode.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One call to try: the operator's arguments as for etch_op_call. */
typedef struct etch_op_sample {
    const etch_value *args;
    int nargs;
} etch_op_sample;

/* Calls op with each sample in these ways, never with the sample's own tensors but with copies:
 *
 *   mutation   arguments that the schema does not mark "(a!)" keep their bits; the marked one is
 *              the result
 *   aliasing   the result shares no storage with an argument that is not marked
 *   shape      the shape function gives the results' dtype and sizes, for other values of the same
 *              sizes and other values of Scalars too
 *   purity     the same arguments give the same bits twice
 *   strides    arguments that are not contiguous (transposed in memory, at an offset) give what
 *              contiguous ones do; floats may differ in the lower half of their digits, since sums
 *              may follow the strides
 *   eager, native   a compiled function that calls the operator (between operators that fuse) gives
 *              the bits of the call, recorded and compiled, in one graph (an operator with
 *              `effects` breaks the graph instead)
 *   mode       a mode sees the call once, as this operator, and passes it on
 *
 *   mapped     over a batch of two samples (etch_vmap; by the operator's rule, or one by one): what
 *              each of them gives by itself, but for the rounding of another order of sums. An
 *              operator with `effects` is left out
 *   tangent    in forward mode, where the operator has a jvp, for each tensor of floats: what
 *              differences of results give along one direction that moves all elements
 *
 * Where the operator has a derivative and the sample gradients:
 *
 *   gradient   of a weighted sum of the result, for each tensor of f64 or (loosely) f32: what
 *              differences of results give, along some elements and one direction that moves all.
 *              A kink within 1e-3 (f32: 1e-2) of the sample, and values there that the operator
 *              does not take, are passed over
 *   gradient of gradient   the same of the gradients, where the derivative's operators have
 *              derivatives. What a derivative computes from numbers that it read has none
 *   gradient strides   a gradient that is expanded gives what a contiguous one does
 *   gradient wanted    for one tensor alone: the same bits, and none for others
 *   gradient writes    the derivative changes neither arguments, nor result, nor gradient
 *   gradient eager, gradient native   a compiled function that calls the operator and etch_grad
 *              gives the bits of eager ones, recorded and compiled, in one graph
 *
 * ETCH_OK where all hold. ETCH_ERR_INVALID_ARGUMENT where one does not: report (n bytes, may
 * be NULL) then tells each, one a line, "sample 0: mutation: argument 1 was changed". A sample
 * whose plain call fails is reported with its error, and fails the check. The report ends with
 * "derivative: checked"; "none" in its place where the operator has none, and "not compared with
 * differences" where no sample has gradients, or only those of half types. Other errors: NULL
 * arguments, lack of memory. */
ETCH_API etch_status etch_opcheck(const etch_op *op, const etch_op_sample *samples, int nsamples,
                                  char *report, size_t n);

#ifdef __cplusplus
}
#endif
#endif
