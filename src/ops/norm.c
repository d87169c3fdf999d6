/* Layer, batch, group, RMS and weight normalisation; dropout. Statistics and sums are in float32 or wider. */
#include "ops/along.h"

typedef struct {
  int d[T_MAX_DIMS], n;
} dim_set;

static dim_set dims_from(int first, int ndim) {
  dim_set s = {.n = 0};
  for (int d = first; d < ndim; d++) s.d[s.n++] = d;
  return s;
}

static dim_set dims_before(int last) {
  dim_set s = {.n = 0};
  for (int d = 0; d < last; d++) s.d[s.n++] = d;
  return s;
}

static dim_set dims_without(int dim, int ndim) {
  dim_set s = {.n = 0};
  for (int d = 0; d < ndim; d++)
    if (d != dim) s.d[s.n++] = d;
  return s;
}

static val sum_over(op_ctx *c, val x, const dim_set *s, bool keep) { return s->n ? t_sum(c, x, s->d, s->n, keep) : x; }
static val mean_over(op_ctx *c, val x, const dim_set *s) { return s->n ? t_mean(c, x, s->d, s->n, true) : x; }

static double count_over(val x, const dim_set *s) {
  double n = 1;
  for (int i = 0; i < s->n; i++) n *= (double)t_size(x, s->d[i]);
  return n;
}

static bool wanted(op_ctx *c, int mask_arg, int i) {
  int n;
  const int64_t *mask = op_ints(c, mask_arg, &n);
  return i < n && mask[i];
}

static val rstd_of(op_ctx *c, val var, val eps) {
  return ir_unary(G, IR_RSQRT, t_add(c, var, t_cast(c, eps, (tpu_dtype)var->dtype)));
}

/* Mean and biased variance over s, with size-1 dims. */
static void moments(op_ctx *c, val x, const dim_set *s, val *mean, val *var) {
  *mean = mean_over(c, x, s);
  val d = t_sub(c, x, *mean);
  *var = mean_over(c, t_mul(c, d, d), s);
}

/* Gradient of (x - mean) * rstd for statistics over s. xhat: the normalised x. */
static val normalized_backward(op_ctx *c, val g, val xhat, val rstd, const dim_set *s) {
  val projection = mean_over(c, t_mul(c, g, xhat), s);
  val centred = t_sub(c, g, mean_over(c, g, s));
  return t_mul(c, rstd, t_sub(c, centred, t_mul(c, xhat, projection)));
}

static val scaled(op_ctx *c, val x, val weight, val bias) {
  if (weight) x = t_mul(c, x, weight);
  return bias ? t_add(c, x, bias) : x;
}

static val optional_float(op_ctx *c, int i) { return HAS(i) ? t_float(c, T(i)) : NULL; }

/* ---- layer norm, RMS norm -------------------------------------------------------------------------------------- */

static int first_normalized(op_ctx *c, int arg, val x) {
  int n;
  op_ints(c, arg, &n);
  if (n > x->ndim) op_fail(c, TPU_ERR_RUNTIME, "normalized_shape has %d dims, the input %d", n, x->ndim);
  return n > x->ndim ? 0 : x->ndim - n;
}

OP(layer_norm, "aten::native_layer_norm") {
  val x = t_float(c, T(0)), mean, var;
  dim_set s = dims_from(first_normalized(c, 1, x), x->ndim);
  moments(c, x, &s, &mean, &var);
  val rstd = rstd_of(c, var, S(4));
  RETN(0, scaled(c, t_mul(c, t_sub(c, x, mean), rstd), optional_float(c, 2), optional_float(c, 3)));
  RETN(1, mean);
  RETN(2, rstd);
}

OP(layer_norm_backward, "aten::native_layer_norm_backward") {
  val g = t_float(c, T(0)), x = t_float(c, T(1)), mean = t_float(c, T(3)), rstd = t_float(c, T(4));
  int first = first_normalized(c, 2, x);
  dim_set s = dims_from(first, x->ndim), rows = dims_before(first);
  val xhat = t_mul(c, t_sub(c, x, mean), rstd);
  if (wanted(c, 7, 0)) RETN(0, normalized_backward(c, scaled(c, g, optional_float(c, 5), NULL), xhat, rstd, &s));
  if (wanted(c, 7, 1) && HAS(5)) RETN(1, sum_over(c, t_mul(c, g, xhat), &rows, false));
  if (wanted(c, 7, 2) && HAS(6)) RETN(2, sum_over(c, g, &rows, false));
}

static double epsilon_of(tpu_dtype d) {
  return d == TPU_F64 ? 0x1p-52 : d == TPU_F16 ? 0x1p-10 : d == TPU_BF16 ? 0x1p-7 : 0x1p-23;
}

OP(rms_norm, "aten::_fused_rms_norm") {
  val in = T(0), x = t_float(c, in);
  dim_set s = dims_from(first_normalized(c, 1, x), x->ndim);
  val eps = HAS(3) ? S(3) : t_scalar(c, (tpu_dtype)x->dtype, epsilon_of((tpu_dtype)x->dtype));
  val rstd = rstd_of(c, mean_over(c, t_mul(c, x, x), &s), eps);
  RETN(0, t_cast(c, scaled(c, t_mul(c, x, rstd), optional_float(c, 2), NULL), (tpu_dtype)in->dtype));
  RETN(1, rstd);
}

OP(rms_norm_backward, "aten::_fused_rms_norm_backward") {
  val in = T(1), g = t_float(c, T(0)), x = t_float(c, in), rstd = t_float(c, T(3));
  int first = first_normalized(c, 2, x);
  dim_set s = dims_from(first, x->ndim), rows = dims_before(first);
  val xhat = t_mul(c, x, rstd), a = scaled(c, g, optional_float(c, 4), NULL);
  val projection = mean_over(c, t_mul(c, a, xhat), &s);
  if (wanted(c, 5, 0))
    RETN(0, t_cast(c, t_mul(c, rstd, t_sub(c, a, t_mul(c, xhat, projection))), (tpu_dtype)in->dtype));
  if (wanted(c, 5, 1) && HAS(4)) RETN(1, sum_over(c, t_mul(c, g, xhat), &rows, false));
}

/* ---- batch norm ------------------------------------------------------------------------------------------------ */

/* A value of C numbers as [1, C, 1, ...]. */
static val per_channel(op_ctx *c, val v, int ndim) {
  int64_t dims[T_MAX_DIMS];
  for (int d = 0; d < ndim; d++) dims[d] = d == 1 ? ir_numel(v) : 1;
  return t_reshape(c, v, ndim, dims);
}

static val channel_arg(op_ctx *c, int i, int ndim) { return HAS(i) ? per_channel(c, t_float(c, T(i)), ndim) : NULL; }

static val flat_channels(op_ctx *c, val v) { return t_flatten(c, v); }

typedef struct {
  int weight, bias, mean, var; /* argument numbers; mean < 0: no running statistics */
  val momentum, eps;           /* momentum NULL: no update */
  bool training;
  int updated; /* result number of the new running mean (the variance follows); -1: written to the arguments */
} batch_norm_args;

static void batch_norm(op_ctx *c, batch_norm_args a) {
  val x = t_float(c, T(0)), mean, var, rstd;
  if (x->ndim < 2 && !ir_failed(G))
    op_fail(c, TPU_ERR_RUNTIME, "batch norm: expected at least 2 dims, got %d", x->ndim);
  dim_set s = dims_without(1, x->ndim);
  bool running = a.mean >= 0 && HAS(a.mean);
  if (a.training) {
    moments(c, x, &s, &mean, &var);
  } else {
    mean = running ? channel_arg(c, a.mean, x->ndim)
                   : op_fail(c, TPU_ERR_RUNTIME, "batch norm in eval mode needs running statistics");
    var = running ? channel_arg(c, a.var, x->ndim) : mean;
  }
  rstd = rstd_of(c, var, a.eps);
  val y = t_mul(c, t_sub(c, x, mean), rstd);
  RETN(0, scaled(c, y, channel_arg(c, a.weight, x->ndim), channel_arg(c, a.bias, x->ndim)));
  const tpu_meta *saved = op_meta(c, 1);
  bool save = saved && saved->defined ? saved->ndim != 1 || saved->sizes[0] != 0 || t_size(x, 1) == 0 : a.training;
  int64_t none = 0;
  RETN(1, save ? flat_channels(c, mean) : t_zeros(c, (tpu_dtype)x->dtype, 1, &none));
  RETN(2, save ? flat_channels(c, rstd) : t_zeros(c, (tpu_dtype)x->dtype, 1, &none));
  if (!running) return;
  for (int i = 0; i < 2; i++) {
    val old = T(i ? a.var : a.mean), now = flat_channels(c, i ? var : mean);
    if (a.training && a.momentum) {
      double n = count_over(x, &s);
      if (i) now = t_mul(c, now, t_like(c, now, n / (n - 1)));
      val m = t_cast(c, a.momentum, (tpu_dtype)now->dtype), o = t_cast(c, old, (tpu_dtype)now->dtype);
      now = t_add(c, t_mul(c, m, now), t_mul(c, t_sub(c, t_like(c, m, 1), m), o));
      now = t_cast(c, now, (tpu_dtype)old->dtype);
      if (a.updated < 0) op_write(c, i ? a.var : a.mean, 0, now);
    } else {
      now = old;
    }
    if (a.updated >= 0) RETN(a.updated + i, now);
  }
}

OP(batch_norm, "aten::native_batch_norm") { batch_norm(c, (batch_norm_args){1, 2, 3, 4, S(6), S(7), INT(5), -1}); }
OP(batch_norm_legit, "aten::_native_batch_norm_legit") {
  batch_norm(c, (batch_norm_args){1, 2, 3, 4, S(6), S(7), INT(5), -1});
}
OP(batch_norm_functional, "aten::_native_batch_norm_legit_functional") {
  batch_norm(c, (batch_norm_args){1, 2, 3, 4, S(6), S(7), INT(5), 3});
}
OP(batch_norm_no_stats, "aten::_native_batch_norm_legit.no_stats") {
  batch_norm(c, (batch_norm_args){1, 2, -1, -1, NULL, S(5), INT(3), -1});
}
OP(batch_norm_no_training, "aten::_native_batch_norm_legit_no_training") {
  batch_norm(c, (batch_norm_args){1, 2, 3, 4, NULL, S(6), false, -1});
}
OP(batch_norm_update, "aten::_batch_norm_with_update") {
  int64_t none = 0;
  batch_norm(c, (batch_norm_args){1, 2, 3, 4, S(5), S(6), true, -1});
  RETN(3, t_zeros(c, TPU_U8, 1, &none));
}

static void batch_norm_backward(op_ctx *c, bool training, int eps_arg, int mask_arg) {
  val g = t_float(c, T(0)), x = t_float(c, T(1)), mean, rstd;
  dim_set s = dims_without(1, x->ndim);
  if (training) {
    mean = channel_arg(c, 5, x->ndim);
    rstd = channel_arg(c, 6, x->ndim);
    if (!mean || !rstd) {
      op_fail(c, TPU_ERR_RUNTIME, "batch norm backward in training needs the saved statistics");
      return;
    }
  } else {
    mean = channel_arg(c, 3, x->ndim);
    val var = channel_arg(c, 4, x->ndim);
    if (!mean || !var) {
      op_fail(c, TPU_ERR_RUNTIME, "batch norm backward in eval mode needs running statistics");
      return;
    }
    rstd = rstd_of(c, var, S(eps_arg));
  }
  val xhat = t_mul(c, t_sub(c, x, mean), rstd), gw = scaled(c, g, channel_arg(c, 2, x->ndim), NULL);
  if (wanted(c, mask_arg, 0)) RETN(0, training ? normalized_backward(c, gw, xhat, rstd, &s) : t_mul(c, gw, rstd));
  if (wanted(c, mask_arg, 1)) RETN(1, flat_channels(c, sum_over(c, t_mul(c, g, xhat), &s, false)));
  if (wanted(c, mask_arg, 2)) RETN(2, flat_channels(c, sum_over(c, g, &s, false)));
}

OP(batch_norm_backward_native, "aten::native_batch_norm_backward") { batch_norm_backward(c, INT(7), 8, 9); }
OP(batch_norm_backward_new, "aten::batch_norm_backward") { batch_norm_backward(c, INT(7), 8, 9); }

/* ---- group norm ------------------------------------------------------------------------------------------------ */

typedef struct {
  int64_t n, c, space, groups;
} group_dims;

static group_dims read_groups(op_ctx *c, int first) {
  group_dims d = {INT(first), INT(first + 1), INT(first + 2), INT(first + 3)};
  if (d.groups < 1 || d.c % d.groups) {
    op_fail(c, TPU_ERR_RUNTIME, "Expected number of channels in input to be divisible by num_groups");
    d.groups = 1;
  }
  return d;
}

static val in_groups(op_ctx *c, val v, const group_dims *d) {
  return t_reshape(c, v, 3, (const int64_t[]){d->n, d->groups, d->c / d->groups * d->space});
}
static val in_channels(op_ctx *c, val v, const group_dims *d) {
  return t_reshape(c, v, 3, (const int64_t[]){d->n, d->c, d->space});
}
static val group_stat(op_ctx *c, val v, const group_dims *d) {
  return t_reshape(c, v, 3, (const int64_t[]){d->n, d->groups, 1});
}

OP(group_norm, "aten::native_group_norm") {
  val in = T(0), mean, var;
  group_dims d = read_groups(c, 3);
  val x = in_groups(c, t_float(c, in), &d);
  dim_set s = dims_from(2, 3);
  moments(c, x, &s, &mean, &var);
  val rstd = rstd_of(c, var, S(7)), y = in_channels(c, t_mul(c, t_sub(c, x, mean), rstd), &d);
  y = scaled(c, y, channel_arg(c, 1, 3), channel_arg(c, 2, 3));
  RETN(0, t_reshape(c, y, in->ndim, in->dims));
  RETN(1, t_squeeze(c, mean, 2));
  RETN(2, t_squeeze(c, rstd, 2));
}

OP(group_norm_backward, "aten::native_group_norm_backward") {
  val in = T(1);
  group_dims d = read_groups(c, 5);
  val g = in_channels(c, t_float(c, T(0)), &d), x = in_groups(c, t_float(c, in), &d);
  val mean = group_stat(c, t_float(c, T(2)), &d), rstd = group_stat(c, t_float(c, T(3)), &d);
  dim_set s = dims_from(2, 3), channels = dims_without(1, 3);
  val xhat = t_mul(c, t_sub(c, x, mean), rstd), a = in_groups(c, scaled(c, g, channel_arg(c, 4, 3), NULL), &d);
  if (wanted(c, 9, 0)) RETN(0, t_reshape(c, normalized_backward(c, a, xhat, rstd, &s), in->ndim, in->dims));
  if (wanted(c, 9, 1)) RETN(1, sum_over(c, t_mul(c, g, in_channels(c, xhat, &d)), &channels, false));
  if (wanted(c, 9, 2)) RETN(2, sum_over(c, g, &channels, false));
}

/* ---- weight norm ----------------------------------------------------------------------------------------------- */

OP(weight_norm, "aten::_weight_norm_interface") {
  val v = t_float(c, T(0)), g = t_float(c, T(1));
  dim_set s = dims_without(t_dim(c, INT_OR(2, 0), v->ndim), v->ndim);
  val norm = ir_unary(G, IR_SQRT, sum_over(c, t_mul(c, v, v), &s, true));
  RETN(0, t_mul(c, v, t_div(c, g, norm)));
  RETN(1, norm);
}

OP(weight_norm_backward, "aten::_weight_norm_interface_backward") {
  val gw = t_float(c, T(0)), v = t_float(c, T(1)), g = t_float(c, T(2)), norm = t_float(c, T(3));
  dim_set s = dims_without(t_dim(c, INT(4), v->ndim), v->ndim);
  val along = t_div(c, sum_over(c, t_mul(c, gw, v), &s, true), norm);
  RETN(0, t_mul(c, t_div(c, g, norm), t_sub(c, gw, t_mul(c, v, t_div(c, along, norm)))));
  RETN(1, along);
}

/* ---- dropout --------------------------------------------------------------------------------------------------- */

OP(dropout, "aten::native_dropout") {
  val in = T(0);
  if (!INT_OR(2, 1)) {
    RETN(0, in);
    RETN(1, ir_const_i(G, TPU_BOOL, 1, in->ndim, in->dims));
    return;
  }
  val x = t_float(c, in);
  tpu_dtype d = (tpu_dtype)x->dtype;
  val keep = t_sub(c, t_scalar(c, TPU_F32, 1), t_cast(c, S(1), TPU_F32));
  val mask = t_cmp(c, IR_LT, t_random_uniform(c, TPU_F32, x->ndim, x->dims), keep);
  val scale =
      t_where(c, t_cmp(c, IR_GT, keep, t_like(c, keep, 0)), t_div(c, t_like(c, keep, 1), keep), t_like(c, keep, 0));
  RETN(0, t_mul(c, t_mul(c, x, t_cast(c, mask, d)), t_cast(c, scale, d)));
  RETN(1, mask);
}
