/* Distances between the rows of matrices, and their gradients. The differences of all pairs are never kept: XLA makes
 * them inside the sum. */
#include <math.h>

#include "ops/matrix.h"
#include "ops/pointwise.h"

static val last_two(op_ctx *c, val x) { /* an error unless there are two dims */
  if (!ir_failed(G) && x->ndim < 2) op_fail(c, TPU_ERR_RUNTIME, "expected a tensor of at least 2 dimensions");
  return t_cast(c, x, t_opmath((tpu_dtype)x->dtype));
}

/* a [.., p, m], b [.., q, m] -> a - b [.., p, q, m] */
static val differences(op_ctx *c, val a, val b) {
  if (ir_failed(G)) return a;
  return t_sub(c, t_unsqueeze(c, a, a->ndim - 1), t_unsqueeze(c, b, b->ndim - 2));
}

/* p-norm of the last dim. 0: how many are not 0. */
static val length(op_ctx *c, val diff, double p) {
  if (ir_failed(G)) return diff;
  int last = diff->ndim - 1;
  if (t_size(diff, last) == 0) return t_zeros(c, (tpu_dtype)diff->dtype, last, diff->dims);
  if (p == 0) { /* NaN stays */
    val one = P_NUM(diff, 1);
    return t_sum(c, P_SEL(P_CMPC(EQ, diff, 0), diff, P_SEL(P_CMP(EQ, diff, diff), one, diff)), &last, 1, false);
  }
  return t_norm(c, diff, p, &last, 1, false);
}

/* Squares through a matrix product: |a|^2 + |b|^2 - 2 a b. */
static val euclid_by_product(op_ctx *c, val a, val b) {
  int la = a->ndim - 1, lb = b->ndim - 1;
  val na = t_sum(c, P_MUL(a, a), &la, 1, true), nb = t_sum(c, P_MUL(b, b), &lb, 1, true);
  if (ir_failed(G)) return a;
  val left[3] = {P_MULC(a, -2), na, P_NUM(na, 1)}, right[3] = {b, P_NUM(nb, 1), nb};
  val l = t_concat(c, left, 3, la), r = t_concat(c, right, 3, lb);
  mat_share_batch(c, &l, &r);
  val square = t_matmul(c, l, mat_transpose(c, r));
  return P_UN(SQRT, P_MAX(square, P_NUM(square, 0)));
}

/* (x1 [.., r1, m], x2 [.., r2, m], p, compute_mode: 0 a product when it pays, 1 always, 2 never; only for p = 2) */
OP(cdist_forward, "aten::_cdist_forward") {
  val a = last_two(c, T(0)), b = last_two(c, T(1));
  double p = op_const(c, 2);
  int64_t mode = INT_OR(3, 0);
  if (ir_failed(G)) return;
  if (p < 0) op_fail(c, TPU_ERR_RUNTIME, "cdist only supports non-negative p values");
  if (mode < 0 || mode > 2) op_fail(c, TPU_ERR_RUNTIME, "possible modes: 0, 1, 2, but was: %lld", (long long)mode);
  if (mat_cols(a) != mat_cols(b))
    op_fail(c, TPU_ERR_RUNTIME, "X1 and X2 must have the same number of columns. X1: %lld X2: %lld",
            (long long)mat_cols(a), (long long)mat_cols(b));
  bool product = p == 2 && mode != 2 && (mode == 1 || mat_rows(a) > 25 || mat_rows(b) > 25);
  RET(product && mat_cols(a) ? euclid_by_product(c, a, b) : length(c, differences(c, a, b), p));
}

/* The gradient of x1 from that of the distances g and the distances d [.., r1, r2], summed over r2. */
static val distance_gradient(op_ctx *c, val g, val diff, val d, double p) {
  if (ir_failed(G)) return diff;
  int over = diff->ndim - 2;
  val v[3] = {t_unsqueeze(c, g, g->ndim), diff, t_unsqueeze(c, d, d->ndim)};
  t_broadcast(c, v, 3);
  if (ir_failed(G)) return diff;
  g = v[0], diff = v[1], d = v[2];
  val zero = P_NUM(diff, 0), sign = P_UN(SIGN, diff), size = P_UN(ABS, diff), r;
  if (p == 0) {
    r = zero;
  } else if (p == 1) {
    r = P_MUL(g, sign);
  } else if (isinf(p)) {
    r = P_SEL(P_CMP(EQ, size, d), P_MUL(g, sign), zero);
  } else {
    val none = P_CMPC(EQ, d, 0);
    if (p == 2) {
      r = P_DIV(P_MUL(g, diff), d);
    } else {
      val power = ir_binary(G, IR_POW, P_DIV(size, d), P_NUM(size, p - 1)); /* at most 1 */
      if (p < 1) none = P_OR(none, P_CMPC(EQ, size, 0));
      r = P_MUL(P_MUL(g, sign), power);
    }
    r = P_SEL(none, zero, r);
  }
  return t_sum(c, r, &over, 1, false);
}

/* (grad, x1, x2, p, the distances) -> the gradient of x1 with the batch dims of both */
OP(cdist_backward, "aten::_cdist_backward") {
  val a = last_two(c, T(1)), b = last_two(c, T(2));
  tpu_dtype d = (tpu_dtype)a->dtype;
  val diff = differences(c, a, b);
  if (ir_failed(G)) return;
  if (ir_numel(diff) == 0) RET(t_like(c, T(1), 0));
  else RET(distance_gradient(c, t_cast(c, T(0), d), diff, t_cast(c, T(4), d), op_const(c, 3)));
}

/* Where pair k = (i, j), i < j, of n stands in a flat [n, n] matrix. PyTorch's order: by i, then by j. */
static val pair_places(op_ctx *c, int64_t n) {
  int64_t pairs = n * (n - 1) / 2, rows = n - 1;
  tpu_dtype d = t_index_dtype(n * n);
  val i = ir_iota(G, d, 1, &rows, 0), k = ir_iota(G, d, 1, &pairs, 0);
  val last = t_sub(c, t_scalar(c, d, (double)(2 * n - 1)), i);
  val start = ir_binary(G, IR_SHR_A, P_MUL(i, last), t_like(c, i, 1)); /* i (2n - 1 - i) / 2 */
  val first = t_scatter(c, t_zeros(c, d, 1, &pairs), 0, start, t_like(c, i, 1), IR_ADD);
  val row = P_ADDC(t_cumsum(c, first, 0), -1), j = P_ADDC(P_SUB(k, t_take(c, start, 0, row)), 1);
  return P_ADD(P_MULC(row, (double)n), P_ADD(row, j));
}

OP(pdist_forward, "aten::_pdist_forward") {
  val x = last_two(c, T(0));
  double p = op_const_or(c, 1, 2);
  int64_t n = mat_rows(x), none = 0;
  if (ir_failed(G)) return;
  if (n < 2) RET(t_zeros(c, (tpu_dtype)x->dtype, 1, &none));
  else RET(t_take(c, t_flatten(c, length(c, differences(c, x, x), p)), 0, pair_places(c, n)));
}

/* v of the pairs as a symmetric matrix */
static val pair_matrix(op_ctx *c, val v, val places, int64_t n) {
  int64_t all = n * n, dims[2] = {n, n};
  val m = t_scatter(c, t_zeros(c, (tpu_dtype)v->dtype, 1, &all), 0, places, v, T_REPLACE);
  m = t_reshape(c, m, 2, dims);
  return t_add(c, m, mat_transpose(c, m));
}

/* (grad, self, p, the distances) */
OP(pdist_backward, "aten::_pdist_backward") {
  val x = last_two(c, T(1));
  tpu_dtype d = (tpu_dtype)x->dtype;
  int64_t n = mat_rows(x);
  if (ir_failed(G)) return;
  if (n < 2 || ir_numel(x) == 0) {
    RET(t_like(c, x, 0));
    return;
  }
  val places = pair_places(c, n), g = pair_matrix(c, t_cast(c, T(0), d), places, n),
      dist = pair_matrix(c, t_cast(c, T(3), d), places, n);
  RET(distance_gradient(c, g, differences(c, x, x), dist, op_const(c, 2)));
}
