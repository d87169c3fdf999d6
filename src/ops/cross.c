/* Products of vectors. */
#include "ops/pointwise.h"

/* x moved down by k along dim, around the end. */
static val rolled(op_ctx *c, val x, int dim, int64_t k) {
  val parts[2] = {t_narrow(c, x, dim, k, x->dims[dim] - k, 1), t_narrow(c, x, dim, 0, k, 1)};
  return t_concat(c, parts, 2, dim);
}

/* (a x b)[i] = a[i+1] b[i+2] - a[i+2] b[i+1] */
OP(linalg_cross, "aten::linalg_cross") {
  val v[2] = {T(0), T(1)};
  t_prepare(c, v, 2);
  if (!p_need_no_bool(c, "cross", v[0])) return;
  int dim = t_dim(c, INT_OR(2, -1), v[0]->ndim);
  if (ir_failed(G)) return;
  RET(t_sub(c, t_mul(c, rolled(c, v[0], dim, 1), rolled(c, v[1], dim, 2)),
            t_mul(c, rolled(c, v[0], dim, 2), rolled(c, v[1], dim, 1))));
}
