/* Sums, means, extremes, moments and norms over dims. */
#include "ops/along.h"

typedef struct {
  int d[T_MAX_DIMS], n;
  bool keep;
} dim_list;

static dim_list all_dims(val x) {
  dim_list l = {.n = x->ndim};
  for (int i = 0; i < x->ndim; i++) l.d[i] = i;
  return l;
}

/* dims from argument `arg` (None or empty: all), keepdim from `keep_arg` (-1: false). */
static dim_list read_dims(op_ctx *c, val x, int arg, int keep_arg) {
  dim_list l = {.keep = keep_arg >= 0 && INT_OR(keep_arg, 0)};
  l.n = t_dims_arg(c, arg, x->ndim, l.d);
  return l;
}

static double count_of(val x, const dim_list *l) {
  double n = 1;
  for (int i = 0; i < l->n; i++) n *= (double)t_size(x, l->d[i]);
  return n;
}

static val as_dtype(op_ctx *c, val x, int dtype_arg) {
  return HAS(dtype_arg) ? t_cast(c, x, (tpu_dtype)INT(dtype_arg)) : x;
}

/* What sums and products are made of: integers and bool become int64 unless another dtype is asked for. */
static val summand(op_ctx *c, val x, int dtype_arg) {
  if (HAS(dtype_arg)) return as_dtype(c, x, dtype_arg);
  return t_is_float(x) || t_is_complex(x) ? x : t_cast(c, x, TPU_I64);
}

/* ---- sum, mean, prod ------------------------------------------------------------------------------------------- */

static val without_nan(op_ctx *c, val x) {
  val nan = t_is_nan(c, x);
  return nan ? ir_select(G, nan, t_like(c, x, 0), x) : x;
}

OP(sum, "aten::sum") { RET(t_sum(c, summand(c, T(0), 1), NULL, 0, false)); }

OP(sum_dim, "aten::sum.dim_IntList") {
  val x = T(0);
  dim_list l = read_dims(c, x, 1, 2);
  RET(t_sum(c, summand(c, x, 3), l.d, l.n, l.keep));
}

OP(nansum, "aten::nansum") {
  val x = T(0);
  dim_list l = read_dims(c, x, 1, 2);
  RET(t_sum(c, without_nan(c, summand(c, x, 3)), l.d, l.n, l.keep));
}

OP(mean, "aten::mean") { RET(t_mean(c, as_dtype(c, T(0), 1), NULL, 0, false)); }

OP(mean_dim, "aten::mean.dim") {
  val x = T(0);
  dim_list l = read_dims(c, x, 1, 2);
  RET(t_mean(c, as_dtype(c, x, 3), l.d, l.n, l.keep));
}

OP(prod, "aten::prod") { RET(t_reduce(c, IR_MUL, summand(c, T(0), 1), NULL, 0, false)); }

OP(prod_dim, "aten::prod.dim_int") {
  val x = T(0);
  dim_list l = read_dims(c, x, 1, 2);
  RET(t_reduce(c, IR_MUL, summand(c, x, 3), l.d, l.n, l.keep));
}

static void count_nonzero(op_ctx *c) {
  val x = T(0);
  dim_list l = read_dims(c, x, 1, -1);
  RET(t_sum(c, t_cast(c, t_cast(c, x, TPU_BOOL), TPU_I64), l.d, l.n, false));
}

OP(count_nonzero, "aten::count_nonzero") { count_nonzero(c); }

OP(trace, "aten::trace") {
  val x = T(0);
  tpu_dtype d = t_index_dtype(ir_numel(x));
  val row = ir_iota(G, d, x->ndim, x->dims, 0), col = ir_iota(G, d, x->ndim, x->dims, x->ndim > 1);
  RET(t_sum(c, summand(c, ir_select(G, ir_compare(G, IR_EQ, row, col), x, t_like(c, x, 0)), -1), NULL, 0, false));
}

/* ---- all, any -------------------------------------------------------------------------------------------------- */

static void all_any(op_ctx *c, ir_opcode body, bool with_dims) {
  val x = T(0), truth = t_cast(c, x, TPU_BOOL);
  dim_list l = with_dims ? read_dims(c, x, 1, 2) : all_dims(x);
  if (with_dims && op_tag(c, 1) == TPU_INTS && op_list_len(c, 1) == 0)
    RET(truth); /* dim=(): every element for itself */
  else RET(t_reduce(c, body, truth, l.d, l.n, l.keep));
}

OP(all_all, "aten::all") { all_any(c, IR_AND, false); }
OP(all_dim, "aten::all.dim") { all_any(c, IR_AND, true); }
OP(all_dims, "aten::all.dims") { all_any(c, IR_AND, true); }
OP(any_all, "aten::any") { all_any(c, IR_OR, false); }
OP(any_dim, "aten::any.dim") { all_any(c, IR_OR, true); }
OP(any_dims, "aten::any.dims") { all_any(c, IR_OR, true); }

/* ---- extremes -------------------------------------------------------------------------------------------------- */

OP(amax, "aten::amax") {
  val x = T(0);
  dim_list l = read_dims(c, x, 1, 2);
  RET(t_amax(c, x, l.d, l.n, l.keep));
}

OP(amin, "aten::amin") {
  val x = T(0);
  dim_list l = read_dims(c, x, 1, 2);
  RET(t_amin(c, x, l.d, l.n, l.keep));
}

static void aminmax(op_ctx *c, bool has_dim) {
  val x = T(0);
  dim_list l = has_dim ? read_dims(c, x, 1, 2) : all_dims(x);
  if (!has_dim && op_nargs(c) > 2) l.keep = INT_OR(2, 0);
  RETN(0, t_amin(c, x, l.d, l.n, l.keep));
  RETN(1, t_amax(c, x, l.d, l.n, l.keep));
}

OP(aminmax, "aten::aminmax") { aminmax(c, HAS(1)); }
OP(aminmax_old, "aten::_aminmax") { aminmax(c, HAS(1)); }

static void extreme(op_ctx *c, bool max) {
  val x = T(0);
  if (!ir_failed(G) && ir_numel(x) == 0)
    op_fail(c, TPU_ERR_RUNTIME,
            "%s(): Expected reduction dim to be specified for input.numel() == 0. Specify the reduction dim with the "
            "'dim' argument.",
            max ? "max" : "min");
  RET(max ? t_amax(c, x, NULL, 0, false) : t_amin(c, x, NULL, 0, false));
}
OP(max, "aten::max") { extreme(c, true); }
OP(min, "aten::min") { extreme(c, false); }

static void extreme_dim(op_ctx *c, bool max) {
  val x0 = T(0), x = t_at_least_1d(c, x0), value, index;
  t_arg_reduce(c, x, t_dim(c, INT(1), x->ndim), max, INT(2) && x0->ndim, &value, &index);
  RETN(0, value);
  RETN(1, t_cast(c, index, TPU_I64));
}

OP(max_dim, "aten::max.dim") { extreme_dim(c, true); }
OP(min_dim, "aten::min.dim") { extreme_dim(c, false); }

static void arg_extreme(op_ctx *c, bool max) {
  val x0 = T(0), x = HAS(1) ? t_at_least_1d(c, x0) : t_flatten(c, x0), value, index;
  int dim = HAS(1) ? t_dim(c, INT(1), x->ndim) : 0;
  t_arg_reduce(c, x, dim, max, HAS(1) && INT(2) && x0->ndim, &value, &index);
  RET(t_cast(c, t_reshape_meta(c, 0, index), TPU_I64));
}

OP(argmax, "aten::argmax") { arg_extreme(c, true); }
OP(argmin, "aten::argmin") { arg_extreme(c, false); }

/* ---- variance -------------------------------------------------------------------------------------------------- */

/* Sum of squared deviations from the mean (which has the dims of x, reduced ones as size 1). */
static val deviations(op_ctx *c, val x, const dim_list *l, val *mean) {
  *mean = t_mean(c, x, l->d, l->n, true);
  val d = t_sub(c, x, *mean);
  return t_sum(c, t_mul(c, d, d), l->d, l->n, l->keep);
}

static void variance(op_ctx *c, bool root, bool with_mean) {
  val x = t_float(c, T(0)), mean, sum;
  dim_list l = read_dims(c, x, 1, 3);
  if (t_is_complex(x)) {
    val re, im;
    sum = t_add(c, deviations(c, ir_unary(G, IR_REAL, x), &l, &re), deviations(c, ir_unary(G, IR_IMAG, x), &l, &im));
    mean = ir_binary(G, IR_COMPLEX, re, im);
  } else {
    sum = deviations(c, x, &l, &mean);
  }
  val n = t_scalar(c, (tpu_dtype)sum->dtype, count_of(x, &l));
  val correction = HAS(2) ? t_cast(c, S(2), (tpu_dtype)sum->dtype) : t_scalar(c, (tpu_dtype)sum->dtype, 1);
  val left = ir_binary(G, IR_MAX, ir_binary(G, IR_SUB, n, correction), t_like(c, n, 0));
  val v = t_div(c, sum, left);
  RETN(0, root ? ir_unary(G, IR_SQRT, v) : v);
  if (with_mean) RETN(1, t_reshape(c, mean, sum->ndim, sum->dims));
}

OP(var, "aten::var.correction") { variance(c, false, false); }
OP(std, "aten::std.correction") { variance(c, true, false); }
OP(var_mean, "aten::var_mean.correction") { variance(c, false, true); }
OP(std_mean, "aten::std_mean.correction") { variance(c, true, true); }

/* ---- norms ----------------------------------------------------------------------------------------------------- */

OP(vector_norm, "aten::linalg_vector_norm") {
  val x = T(0);
  dim_list l = read_dims(c, x, 2, 3);
  RET(t_norm(c, t_float(c, as_dtype(c, x, 4)), op_const(c, 1), l.d, l.n, l.keep));
}

OP(norm_scalar, "aten::norm.Scalar") { RET(t_norm(c, t_float(c, T(0)), op_const_or(c, 1, 2), NULL, 0, false)); }

OP(norm_dtype, "aten::norm.ScalarOpt_dtype") {
  RET(t_norm(c, t_float(c, as_dtype(c, T(0), 2)), op_const_or(c, 1, 2), NULL, 0, false));
}

OP(norm_dim, "aten::norm.ScalarOpt_dim") {
  val x = T(0);
  dim_list l = read_dims(c, x, 2, 3);
  RET(t_norm(c, t_float(c, x), op_const_or(c, 1, 2), l.d, l.n, l.keep));
}

OP(norm_dim_dtype, "aten::norm.ScalarOpt_dim_dtype") {
  val x = T(0);
  dim_list l = read_dims(c, x, 2, 3);
  RET(t_norm(c, t_float(c, as_dtype(c, x, 4)), op_const_or(c, 1, 2), l.d, l.n, l.keep));
}

OP(dist, "aten::dist") { RET(t_norm(c, t_float(c, t_sub(c, T(0), T(1))), op_const_or(c, 2, 2), NULL, 0, false)); }

/* Every slice along dim whose p-norm is above maxnorm is scaled down to it. */
OP(renorm, "aten::renorm") {
  val x = T(0), y = t_float(c, x);
  int dim = t_dim(c, INT(2), x->ndim), others[T_MAX_DIMS], n = 0;
  for (int d = 0; d < x->ndim; d++)
    if (d != dim) others[n++] = d;
  val norm = n ? t_norm(c, y, op_const(c, 1), others, n, true) : ir_unary(G, IR_ABS, y);
  val max = t_cast(c, S(3), (tpu_dtype)norm->dtype);
  val factor = t_div(c, max, t_add(c, norm, t_like(c, norm, 1e-7)));
  RET(t_mul(c, y, t_where(c, t_cmp(c, IR_GT, norm, max), factor, t_like(c, norm, 1))));
}

OP(logsumexp, "aten::logsumexp") {
  val x = t_float(c, T(0));
  dim_list l = read_dims(c, x, 1, 2);
  val real = t_is_complex(x) ? ir_unary(G, IR_REAL, x) : x;
  val m = t_amax(c, real, l.d, l.n, true);
  m = ir_select(G, ir_unary(G, IR_IS_FINITE, m), m, t_like(c, m, 0));
  val sum = t_sum(c, ir_unary(G, IR_EXP, t_sub(c, x, m)), l.d, l.n, l.keep);
  RET(t_add(c, ir_unary(G, IR_LOG, sum), t_reshape(c, m, sum->ndim, sum->dims)));
}
