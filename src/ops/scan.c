/* Cumulative sums, products, extremes. */
#include "ops/along.h"
#include "ops/pointwise.h"

static val scan_input(op_ctx *c, val x, int dtype_arg) {
  if (HAS(dtype_arg)) return t_cast(c, x, (tpu_dtype)INT(dtype_arg));
  return t_is_float(x) || t_is_complex(x) ? x : t_cast(c, x, TPU_I64);
}

static void ret_shaped(op_ctx *c, int ret, val v, val like) { RETN(ret, t_reshape(c, v, like->ndim, like->dims)); }

static void combine_mul(op_ctx *c, const val *a, const val *b, val *out) { *out = ir_binary(G, IR_MUL, *a, *b); }
static void combine_or(op_ctx *c, const val *a, const val *b, val *out) { *out = ir_binary(G, IR_OR, *a, *b); }
static void combine_and(op_ctx *c, const val *a, const val *b, val *out) { *out = ir_binary(G, IR_AND, *a, *b); }

/* log(exp(a) + exp(b)); equal infinities give themselves, NaN wins. */
static void combine_logaddexp(op_ctx *c, const val *a, const val *b, val *out) {
  val hi = ir_binary(G, IR_MAX, *a, *b), lo = ir_binary(G, IR_MIN, *a, *b);
  val sum = ir_binary(G, IR_ADD, hi, ir_unary(G, IR_LOG1P, ir_unary(G, IR_EXP, ir_binary(G, IR_SUB, lo, hi))));
  val same = ir_compare(G, IR_EQ, hi, lo), infinite = ir_unary(G, IR_NOT, ir_unary(G, IR_IS_FINITE, lo));
  *out = ir_select(G, ir_binary(G, IR_AND, same, infinite), hi, sum);
}

static val scan_in(op_ctx *c, val x, tpu_dtype in, int64_t dim, double identity, t_combine f) {
  tpu_dtype d = (tpu_dtype)x->dtype;
  val y = t_cast(c, t_at_least_1d(c, x), in), start = t_scalar(c, in, identity);
  t_scan(c, &y, &start, 1, t_dim(c, dim, y->ndim), f, f != combine_logaddexp);
  return t_cast(c, t_reshape(c, y, x->ndim, x->dims), d);
}

static val scan_one(op_ctx *c, val x, int64_t dim, double identity, t_combine f) {
  return scan_in(c, x, t_opmath((tpu_dtype)x->dtype), dim, identity, f);
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

/* The later element wins when it is as good or NaN. Which one is later is asked of the places where XLA combines: it
 * does not always do so in order. */
static void better(op_ctx *c, const val *a, const val *b, val *out, ir_cmp k) {
  val later = ir_compare(G, k, b[0], a[0]), an = t_is_nan(c, a[0]), bn = t_is_nan(c, b[0]);
  if (!ir_is_cpu(G) || ir_sizes_vary(G)) {
    val same = ir_compare(G, IR_EQ, b[0], a[0]), behind = ir_compare(G, IR_GE, b[1], a[1]);
    later = ir_compare(G, k == IR_GE ? IR_GT : IR_LT, b[0], a[0]);
    if (an) {
      later = ir_binary(G, IR_OR, later, ir_binary(G, IR_AND, bn, ir_unary(G, IR_NOT, an)));
      later = ir_binary(G, IR_AND, later, ir_unary(G, IR_NOT, ir_binary(G, IR_AND, an, ir_unary(G, IR_NOT, bn))));
      same = ir_binary(G, IR_OR, same, ir_binary(G, IR_AND, an, bn));
    }
    later = ir_binary(G, IR_OR, later, ir_binary(G, IR_AND, same, behind));
  } else if (an) later = ir_binary(G, IR_OR, bn, ir_binary(G, IR_AND, later, ir_unary(G, IR_NOT, an)));
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
  t_scan(c, xs, start, 2, dim, max ? combine_max : combine_min, true);
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

static val complex_logcumsumexp(op_ctx *c, val x, int64_t dim_arg) {
  val y = t_at_least_1d(c, x);
  int dim = t_dim(c, dim_arg, y->ndim);
  if (ir_failed(G) || ir_numel(y) == 0) return x;
  int64_t one[T_MAX_DIMS];
  val start[T_MAX_DIMS], at[3], out[3];
  for (int d = 0; d < y->ndim; d++) one[d] = d == dim ? 1 : y->dims[d];
  val none = ir_const_c(G, (tpu_dtype)y->dtype, -__builtin_inf(), 0, y->ndim, one);
  const val init[3] = {t_scalar(c, TPU_I32, 0), none, y};
  ir_while_begin(G, init, 3, at);
  ir_while_body(G, ir_compare(G, IR_LT, at[0], t_scalar(c, TPU_I32, (double)y->dims[dim])), at);
  for (int d = 0; d < y->ndim; d++) start[d] = d == dim ? at[0] : t_scalar(c, TPU_I32, 0);
  val sum = p_logaddexp_complex(c, at[1], ir_dynamic_slice(G, at[2], start, one));
  const val next[3] = {ir_binary(G, IR_ADD, at[0], t_scalar(c, TPU_I32, 1)), sum,
                       ir_dynamic_update_slice(G, at[2], sum, start)};
  ir_while_end(G, next, out);
  return t_reshape(c, out[2], x->ndim, x->dims);
}

/* Its gradient is a difference of such sums: PyTorch's CPU kernel accumulates in double, and so does this where doubles
 * are the hardware's own. */
static void logcumsumexp(op_ctx *c) {
  val x = T(0);
  tpu_dtype in = ir_is_cpu(G) ? TPU_F64 : t_opmath((tpu_dtype)x->dtype);
  RET(t_is_complex(x) ? complex_logcumsumexp(c, x, INT(1))
                      : scan_in(c, x, in, INT(1), -__builtin_inf(), combine_logaddexp));
}

OP(logcumsumexp, "aten::logcumsumexp") { logcumsumexp(c); }
OP(logcumsumexp_inner, "aten::_logcumsumexp") { logcumsumexp(c); }
