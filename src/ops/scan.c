/* Cumulative sums, products, extremes. */
#include "ops/along.h"

static val scan_input(op_ctx *c, val x, int dtype_arg) {
  if (HAS(dtype_arg)) return t_cast(c, x, (tpu_dtype)INT(dtype_arg));
  return t_is_float(x) || t_is_complex(x) ? x : t_cast(c, x, TPU_I64);
}

static void ret_shaped(op_ctx *c, int ret, val v, val like) { RETN(ret, t_reshape(c, v, like->ndim, like->dims)); }

static void combine_mul(op_ctx *c, const val *a, const val *b, val *out) { *out = ir_binary(G, IR_MUL, *a, *b); }
static void combine_or(op_ctx *c, const val *a, const val *b, val *out) { *out = ir_binary(G, IR_OR, *a, *b); }
static void combine_and(op_ctx *c, const val *a, const val *b, val *out) { *out = ir_binary(G, IR_AND, *a, *b); }

static val scan_one(op_ctx *c, val x, int64_t dim, double identity, t_combine f) {
  tpu_dtype d = (tpu_dtype)x->dtype;
  val y = t_cast(c, t_at_least_1d(c, x), t_opmath(d)), start = t_scalar(c, t_opmath(d), identity);
  t_scan(c, &y, &start, 1, t_dim(c, dim, y->ndim), f);
  return t_cast(c, t_reshape(c, y, x->ndim, x->dims), d);
}

OP(cumsum, "aten::cumsum") {
  val x = scan_input(c, T(0), 2);
  if (x->dtype == TPU_BOOL) {
    RET(scan_one(c, x, INT(1), 0, combine_or));
  } else {
    val y = t_at_least_1d(c, x);
    ret_shaped(c, 0, t_cumsum(c, y, t_dim(c, INT(1), y->ndim)), x);
  }
}

OP(cumprod, "aten::cumprod") {
  val x = scan_input(c, T(0), 2);
  RET(scan_one(c, x, INT(1), 1, x->dtype == TPU_BOOL ? combine_and : combine_mul));
}

/* The later element wins when it is as good or NaN. */
static void better(op_ctx *c, const val *a, const val *b, val *out, ir_cmp k) {
  val later = ir_compare(G, k, b[0], a[0]), an = t_is_nan(c, a[0]), bn = t_is_nan(c, b[0]);
  if (an) later = ir_binary(G, IR_OR, bn, ir_binary(G, IR_AND, later, ir_unary(G, IR_NOT, an)));
  for (int i = 0; i < 2; i++) out[i] = ir_select(G, later, b[i], a[i]);
}

static void combine_max(op_ctx *c, const val *a, const val *b, val *out) { better(c, a, b, out, IR_GE); }
static void combine_min(op_ctx *c, const val *a, const val *b, val *out) { better(c, a, b, out, IR_LE); }

static void cumulative_extreme(op_ctx *c, bool max, int dim_arg, val *values, val *indices) {
  val x0 = T(0), x = t_at_least_1d(c, x0);
  int dim = t_dim(c, INT(dim_arg), x->ndim);
  tpu_dtype d = (tpu_dtype)x->dtype, di = t_index_dtype(t_size(x, dim));
  val xs[2] = {x, ir_iota(G, di, x->ndim, x->dims, dim)};
  val start[2] = {max ? ir_const_min(G, d, 0, NULL) : ir_const_max(G, d, 0, NULL), ir_const_i(G, di, 0, 0, NULL)};
  t_scan(c, xs, start, 2, dim, max ? combine_max : combine_min);
  *values = t_reshape(c, xs[0], x0->ndim, x0->dims);
  *indices = t_cast(c, t_reshape(c, xs[1], x0->ndim, x0->dims), TPU_I64);
}

static void cummaxmin(op_ctx *c, bool max) {
  val values, indices;
  cumulative_extreme(c, max, 1, &values, &indices);
  RETN(0, values);
  RETN(1, indices);
}

static void cummaxmin_helper(op_ctx *c, bool max) {
  val values, indices;
  cumulative_extreme(c, max, 3, &values, &indices);
  op_write(c, 1, 0, values);
  op_write(c, 2, 0, indices);
}

OP(cummax, "aten::cummax") { cummaxmin(c, true); }
OP(cummin, "aten::cummin") { cummaxmin(c, false); }
OP(cummax_helper, "aten::_cummax_helper") { cummaxmin_helper(c, true); }
OP(cummin_helper, "aten::_cummin_helper") { cummaxmin_helper(c, false); }

/* log(exp(a) + exp(b)); equal infinities give themselves, NaN wins. */
static void combine_logaddexp(op_ctx *c, const val *a, const val *b, val *out) {
  val hi = ir_binary(G, IR_MAX, *a, *b), lo = ir_binary(G, IR_MIN, *a, *b);
  val sum = ir_binary(G, IR_ADD, hi, ir_unary(G, IR_LOG1P, ir_unary(G, IR_EXP, ir_binary(G, IR_SUB, lo, hi))));
  val same = ir_compare(G, IR_EQ, hi, lo), infinite = ir_unary(G, IR_NOT, ir_unary(G, IR_IS_FINITE, lo));
  *out = ir_select(G, ir_binary(G, IR_AND, same, infinite), hi, sum);
}

static void logcumsumexp(op_ctx *c) {
  val x = T(0);
  if (t_is_complex(x)) op_fail(c, TPU_ERR_NOT_IMPLEMENTED, "logcumsumexp of complex numbers is not implemented on tpu");
  RET(scan_one(c, x, INT(1), -__builtin_inf(), combine_logaddexp));
}

OP(logcumsumexp, "aten::logcumsumexp") { logcumsumexp(c); }
OP(logcumsumexp_inner, "aten::_logcumsumexp") { logcumsumexp(c); }
