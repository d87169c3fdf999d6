/* interp.h - runs a graph naively, one element at a time, as StableHLO's specification says: the oracle for what moves
 * elements.
 *
 * It knows: constant, iota, convert, bitcast_convert, reshape, broadcast_in_dim, transpose, reverse, slice,
 * dynamic_slice, dynamic_update_slice, pad, concatenate, gather, scatter, select, compare, real, imag, complex, add,
 * subtract, multiply, maximum, minimum, and, or, xor, not, negate. Another operation is an error (NOT_IMPLEMENTED). */
#ifndef TPU_TEST_INTERP_H
#define TPU_TEST_INTERP_H
#include "ir/ir.h"

typedef struct {
  tpu_dtype dtype;
  int ndim;
  int64_t dims[64];
  void *data; /* dense, row-major; bool: a byte, 0 or 1 */
} interp_array;

int64_t interp_numel(const interp_array *a);
/* Runs what the graph's outputs need. outs: ir_output_count(g) of them, to be freed with interp_free. A parameter that
 * is not used may have data NULL. An out-of-bounds access or a wrong parameter is an error. */
TPU_MUST tpu_err *interp_run(ir_graph *g, const interp_array *params, int nparams, interp_array *outs);
void interp_free(interp_array *outs, int n);
#endif
