/* Softmax, its logarithm, its masked forms, and the gradients. Computed in float32 or wider. */
#include "ops/along.h"

/* x as at least 1-d in its opmath, and the dim. */
static val softmax_input(op_ctx *c, int arg, int dim_arg, int *dim) {
  val x = t_at_least_1d(c, t_float(c, T(arg)));
  *dim = t_dim(c, INT_OR(dim_arg, -1), x->ndim);
  return x;
}

static void ret_like(op_ctx *c, val v, int arg) {
  val x = T(arg);
  RET(t_reshape(c, v, x->ndim, x->dims));
}

/* exp(x - max) and its sum along dim. Not t_amax: where there is a NaN, all becomes NaN by the sum. */
static val exponentials(op_ctx *c, val x, int dim, val *centred, val *sum) {
  *sum = x;
  if (ir_failed(G)) return *centred = x;
  val top = ir_reduce(G, IR_MAX, x, t_scalar(c, (tpu_dtype)x->dtype, -__builtin_inf()), 1, &dim);
  *centred = t_sub(c, x, t_unsqueeze(c, top, dim));
  val e = ir_unary(G, IR_EXP, *centred);
  *sum = t_sum(c, e, &dim, 1, true);
  return e;
}

static val softmax(op_ctx *c, val x, int dim) {
  val centred, sum, e = exponentials(c, x, dim, &centred, &sum);
  return t_div(c, e, sum);
}

OP(softmax, "aten::_softmax") {
  int dim;
  val x = softmax_input(c, 0, 1, &dim);
  ret_like(c, softmax(c, x, dim), 0);
}

OP(log_softmax, "aten::_log_softmax") {
  int dim;
  val x = softmax_input(c, 0, 1, &dim), centred, sum;
  exponentials(c, x, dim, &centred, &sum);
  ret_like(c, t_sub(c, centred, ir_unary(G, IR_LOG, sum)), 0);
}

static val softmax_gradient(op_ctx *c, val g, val y, int dim) {
  return t_mul(c, y, t_sub(c, g, t_sum(c, t_mul(c, g, y), &dim, 1, true)));
}

OP(softmax_backward, "aten::_softmax_backward_data") {
  int dim;
  val g = softmax_input(c, 0, 2, &dim), y = softmax_input(c, 1, 2, &dim);
  ret_like(c, softmax_gradient(c, g, y, dim), 0);
}

OP(log_softmax_backward, "aten::_log_softmax_backward_data") {
  int dim;
  val g = softmax_input(c, 0, 2, &dim), y = softmax_input(c, 1, 2, &dim);
  ret_like(c, t_sub(c, g, t_mul(c, ir_unary(G, IR_EXP, y), t_sum(c, g, &dim, 1, true))), 0);
}

/* Rows of nothing but -inf give 0, not NaN. */
OP(safe_softmax, "aten::_safe_softmax") {
  val in = T(0), x = t_at_least_1d(c, t_float(c, HAS(2) ? t_cast(c, in, (tpu_dtype)INT(2)) : in));
  int dim = t_dim(c, INT(1), x->ndim);
  val infinite = ir_compare(G, IR_EQ, x, t_like(c, x, -__builtin_inf()));
  val empty = t_reduce(c, IR_AND, infinite, &dim, 1, true), y = softmax(c, x, dim);
  ret_like(c, t_where(c, empty, t_like(c, y, 0), y), 0);
}

/* mask_type 0: mask [L, L] of x [B, H, L, L]; 1: [B, L]; 2: x's own shape. True elements take no part. */
static val mask_of(op_ctx *c, int arg, int64_t type, val x) {
  val mask = t_cast(c, T(arg), TPU_BOOL);
  if (type == 1 && mask->ndim == 2 && x->ndim == 4)
    mask = t_reshape(c, mask, 4, (const int64_t[]){t_size(mask, 0), 1, 1, t_size(mask, 1)});
  else mask = t_at_least_1d(c, mask);
  return t_broadcast_to(c, mask, x->ndim, x->dims);
}

OP(masked_softmax, "aten::_masked_softmax") {
  int dim;
  val in = T(0), x = softmax_input(c, 0, 2, &dim), mask = mask_of(c, 1, INT_OR(3, 2), x);
  val low = t_like(c, x, -__builtin_inf()), zero = t_like(c, x, 0);
  val seen = ir_select(G, mask, low, x), m = t_amax(c, seen, &dim, 1, true);
  m = ir_select(G, ir_compare(G, IR_EQ, m, t_like(c, m, -__builtin_inf())), t_like(c, m, 0), m);
  val e = ir_select(G, mask, zero, ir_unary(G, IR_EXP, t_sub(c, x, m))), sum = t_sum(c, e, &dim, 1, true);
  ret_like(c, t_cast(c, t_div(c, e, sum), (tpu_dtype)in->dtype), 0);
}

OP(masked_softmax_backward, "aten::_masked_softmax_backward") {
  int dim;
  val in = T(0), g = softmax_input(c, 0, 3, &dim), y = softmax_input(c, 1, 3, &dim);
  val mask = mask_of(c, 2, 2, g), zero = t_like(c, g, 0);
  val r = softmax_gradient(c, ir_select(G, mask, zero, g), ir_select(G, mask, zero, y), dim);
  ret_like(c, t_cast(c, ir_select(G, mask, zero, r), (tpu_dtype)in->dtype), 0);
}
