/* Losses and their gradients. reduction: 0 none, 1 mean, 2 sum. */
#include "ops/along.h"

static val number_like(op_ctx *c, int arg, val x) { return t_cast(c, S(arg), (tpu_dtype)x->dtype); }

/* The gradient of a loss of `count` elements, spread by its reduction. */
static val spread(op_ctx *c, val g, int64_t reduction, double count) {
  return reduction == 1 ? t_div(c, g, t_like(c, g, count)) : g;
}

/* ---- element by element ---------------------------------------------------------------------------------------- */

OP(mse_loss, "aten::mse_loss") {
  val d = t_sub(c, t_float(c, T(0)), t_float(c, T(1)));
  RET(t_loss(c, t_mul(c, d, d), INT_OR(2, 1)));
}

OP(mse_loss_backward, "aten::mse_loss_backward") {
  val g = t_float(c, T(0)), d = t_sub(c, t_float(c, T(1)), t_float(c, T(2)));
  RET(t_mul(c, t_mul(c, t_like(c, g, 2), spread(c, g, INT(3), (double)ir_numel(d))), d));
}

OP(smooth_l1_loss, "aten::smooth_l1_loss") {
  val d = t_sub(c, t_float(c, T(0)), t_float(c, T(1))), beta = number_like(c, 3, d);
  val a = ir_unary(G, IR_ABS, d), half = t_like(c, beta, 0.5);
  val square = t_div(c, t_mul(c, half, t_mul(c, a, a)), beta), line = t_sub(c, a, t_mul(c, half, beta));
  RET(t_loss(c, t_where(c, t_cmp(c, IR_LT, a, beta), square, line), INT_OR(2, 1)));
}

OP(smooth_l1_loss_backward, "aten::smooth_l1_loss_backward") {
  val g = t_float(c, T(0)), d = t_sub(c, t_float(c, T(1)), t_float(c, T(2))), beta = number_like(c, 4, d);
  val inside = t_cmp(c, IR_LT, ir_unary(G, IR_ABS, d), beta);
  val slope = t_where(c, inside, t_div(c, d, beta), ir_unary(G, IR_SIGN, d));
  RET(t_mul(c, spread(c, g, INT(3), (double)ir_numel(d)), slope));
}

OP(huber_loss, "aten::huber_loss") {
  val d = t_sub(c, t_float(c, T(0)), t_float(c, T(1))), delta = number_like(c, 3, d);
  val a = ir_unary(G, IR_ABS, d), half = t_like(c, delta, 0.5);
  val square = t_mul(c, half, t_mul(c, a, a)), line = t_mul(c, delta, t_sub(c, a, t_mul(c, half, delta)));
  RET(t_loss(c, t_where(c, t_cmp(c, IR_LE, a, delta), square, line), INT_OR(2, 1)));
}

OP(huber_loss_backward, "aten::huber_loss_backward") {
  val g = t_float(c, T(0)), d = t_sub(c, t_float(c, T(1)), t_float(c, T(2))), delta = number_like(c, 4, d);
  val inside = t_cmp(c, IR_LE, ir_unary(G, IR_ABS, d), delta);
  val slope = t_where(c, inside, d, t_mul(c, ir_unary(G, IR_SIGN, d), delta));
  RET(t_mul(c, spread(c, g, INT(3), (double)ir_numel(d)), slope));
}

/* ---- binary cross entropy -------------------------------------------------------------------------------------- */

OP(bce, "aten::binary_cross_entropy") {
  val x = t_float(c, T(0)), t = t_float(c, T(1)), floor = t_like(c, x, -100);
  val yes = t_max(c, ir_unary(G, IR_LOG, x), floor),
      no = t_max(c, ir_unary(G, IR_LOG1P, ir_unary(G, IR_NEG, x)), floor);
  val loss = t_sub(c, t_mul(c, t_sub(c, t, t_like(c, t, 1)), no), t_mul(c, t, yes));
  if (HAS(2)) loss = t_mul(c, loss, t_float(c, T(2)));
  RET(t_loss(c, loss, INT_OR(3, 1)));
}

OP(bce_backward, "aten::binary_cross_entropy_backward") {
  val g = t_float(c, T(0)), x = t_float(c, T(1)), t = t_float(c, T(2));
  val slope = t_max(c, t_mul(c, t_sub(c, t_like(c, x, 1), x), x), t_like(c, x, 1e-12));
  val r = t_mul(c, spread(c, g, INT_OR(4, 1), (double)ir_numel(x)), t_div(c, t_sub(c, x, t), slope));
  RET(HAS(3) ? t_mul(c, r, t_float(c, T(3))) : r);
}

OP(bce_logits, "aten::binary_cross_entropy_with_logits") {
  val x = t_float(c, T(0)), t = t_float(c, T(1)), one = t_like(c, t, 1);
  val softplus = ir_unary(G, IR_LOG1P, ir_unary(G, IR_EXP, ir_unary(G, IR_NEG, ir_unary(G, IR_ABS, x))));
  val minus_log_sigmoid = t_add(c, softplus, t_max(c, ir_unary(G, IR_NEG, x), t_like(c, x, 0)));
  if (HAS(3)) {
    val weight = t_add(c, t_mul(c, t_sub(c, t_float(c, T(3)), t_scalar(c, (tpu_dtype)t->dtype, 1)), t), one);
    minus_log_sigmoid = t_mul(c, minus_log_sigmoid, weight);
  }
  val loss = t_add(c, t_mul(c, t_sub(c, one, t), x), minus_log_sigmoid);
  if (HAS(2)) loss = t_mul(c, loss, t_float(c, T(2)));
  RET(t_loss(c, loss, INT_OR(4, 1)));
}

/* ---- negative log likelihood ----------------------------------------------------------------------------------- */

enum { ONE_HOT_CLASSES = 128 }; /* up to here reading all classes is cheaper than looking one up */

typedef struct {
  val x, target, weight; /* x [N, C, ...], target [N, 1, ...] with ignored ones as class 0, weight as target */
  val ignored;
  int64_t classes;
} nll;

static val on_class(op_ctx *c, val target, int64_t classes, int ndim, const int64_t *dims) {
  tpu_dtype d = t_index_dtype(classes);
  return ir_compare(G, IR_EQ, ir_iota(G, d, ndim, dims, 1), t_broadcast_to(c, t_cast(c, target, d), ndim, dims));
}

/* x's element of the target class: [N, 1, ...]. */
static val pick_class(op_ctx *c, val x, val target) {
  int dim = 1;
  int64_t classes = t_size(x, 1);
  if (classes > ONE_HOT_CLASSES) return t_gather(c, x, 1, target);
  return t_sum(c, t_where(c, on_class(c, target, classes, x->ndim, x->dims), x, t_like(c, x, 0)), &dim, 1, true);
}

static nll read_nll(op_ctx *c, int first, int ignore_arg) {
  nll a = {.x = t_float(c, T(first)), .target = T(first + 1)};
  if (a.x->ndim == 1) {
    a.x = t_unsqueeze(c, a.x, 0);
    a.target = t_at_least_1d(c, a.target);
  }
  if (a.x->ndim != a.target->ndim + 1 && !ir_failed(G))
    op_fail(c, TPU_ERR_RUNTIME, "nll_loss: input has %d dims and target %d", a.x->ndim, a.target->ndim);
  a.classes = t_size(a.x, 1);
  a.target = t_unsqueeze(c, t_cast(c, a.target, TPU_I64), 1);
  a.ignored = t_cmp(c, IR_EQ, a.target, t_cast(c, S(ignore_arg), TPU_I64));
  a.target = t_where(c, a.ignored, t_like(c, a.target, 0), a.target);
  tpu_dtype d = (tpu_dtype)a.x->dtype;
  val one = t_zeros(c, d, a.target->ndim, a.target->dims);
  if (HAS(first + 2)) {
    a.weight = t_take(c, t_cast(c, T(first + 2), d), 0, a.target);
    a.weight = t_where(c, a.ignored, one, a.weight);
  } else {
    a.weight = t_where(c, a.ignored, one, t_like(c, one, 1));
  }
  return a;
}

static void nll_forward(op_ctx *c) {
  nll a = read_nll(c, 0, 4);
  int64_t reduction = INT(3);
  val zero = t_scalar(c, (tpu_dtype)a.x->dtype, 0);
  val picked = t_where(c, a.ignored, t_like(c, a.weight, 0), pick_class(c, a.x, a.target));
  val loss = t_neg(c, t_mul(c, picked, a.weight)), total = reduction ? t_sum(c, a.weight, NULL, 0, false) : zero;
  if (reduction) {
    loss = t_sum(c, loss, NULL, 0, false);
    if (reduction == 1) loss = t_div(c, loss, total);
  } else {
    loss = t_reshape_meta(c, 0, t_squeeze(c, loss, 1));
  }
  RETN(0, loss);
  RETN(1, total);
}

static void nll_backward(op_ctx *c) {
  nll a = read_nll(c, 1, 5);
  int64_t reduction = INT(4);
  val x = T(1), g = t_float(c, T(0)), zero = t_like(c, a.x, 0);
  if (reduction == 1) g = t_div(c, g, t_float(c, T(6)));
  if (g->ndim) g = t_reshape(c, g, a.target->ndim, a.target->dims);
  val r = t_neg(c, t_mul(c, g, a.weight));
  r = t_where(c, on_class(c, a.target, a.classes, a.x->ndim, a.x->dims),
              t_where(c, a.ignored, t_like(c, a.weight, 0), r), zero);
  RET(t_reshape(c, r, x->ndim, x->dims));
}

OP(nll_loss, "aten::nll_loss_forward") { nll_forward(c); }
OP(nll_loss2d, "aten::nll_loss2d_forward") { nll_forward(c); }
OP(nll_loss_backward, "aten::nll_loss_backward") { nll_backward(c); }
OP(nll_loss2d_backward, "aten::nll_loss2d_backward") { nll_backward(c); }

/* ---- margins --------------------------------------------------------------------------------------------------- */

typedef struct {
  val x, z, target, other, weight; /* x, z [N, C]; z = max(0, margin - x[target] + x) for other classes */
  double p;
} margins;

static margins read_margins(op_ctx *c, int first, int weight_arg) {
  margins m = {.x = t_float(c, T(first)), .p = op_const_or(c, first + 2, 1)};
  if (m.x->ndim < 2) m.x = t_reshape(c, m.x, 2, (const int64_t[]){1, ir_numel(m.x)});
  val target = t_at_least_1d(c, T(first + 1));
  m.target = t_unsqueeze(c, t_cast(c, target, TPU_I64), 1);
  m.other = t_not(c, on_class(c, m.target, t_size(m.x, 1), m.x->ndim, m.x->dims));
  val margin = HAS(first + 3) ? number_like(c, first + 3, m.x) : t_scalar(c, (tpu_dtype)m.x->dtype, 1);
  m.z = t_max(c, t_add(c, t_sub(c, margin, pick_class(c, m.x, m.target)), m.x), t_like(c, m.x, 0));
  m.z = t_where(c, m.other, m.z, t_like(c, m.z, 0));
  m.weight = HAS(weight_arg) ? t_take(c, t_cast(c, T(weight_arg), (tpu_dtype)m.x->dtype), 0, m.target) : NULL;
  return m;
}

OP(multi_margin_loss, "aten::multi_margin_loss") {
  margins m = read_margins(c, 0, 4);
  int dim = 1;
  val z = m.p == 2 ? t_mul(c, m.z, m.z) : m.z;
  val loss = t_div(c, t_sum(c, z, &dim, 1, true), t_scalar(c, (tpu_dtype)z->dtype, (double)t_size(z, 1)));
  if (m.weight) loss = t_mul(c, loss, m.weight);
  int64_t reduction = INT_OR(5, 1);
  RET(reduction ? t_loss(c, loss, reduction) : t_reshape_meta(c, 0, t_squeeze(c, loss, 1)));
}

OP(multi_margin_loss_backward, "aten::multi_margin_loss_backward") {
  margins m = read_margins(c, 1, 5);
  int dim = 1;
  val in = T(1), g = t_float(c, T(0)), zero = t_like(c, m.z, 0);
  val slope =
      m.p == 2 ? t_mul(c, m.z, t_like(c, m.z, 2)) : t_where(c, t_cmp(c, IR_GT, m.z, zero), t_like(c, m.z, 1), zero);
  slope = t_div(c, slope, t_like(c, slope, (double)t_size(m.z, 1)));
  if (m.weight) slope = t_mul(c, slope, m.weight);
  val r = t_where(c, m.other, slope, t_neg(c, t_sum(c, slope, &dim, 1, true)));
  if (g->ndim) g = t_reshape(c, g, 2, (const int64_t[]){ir_numel(g), 1});
  r = t_mul(c, r, spread(c, g, INT_OR(6, 1), (double)t_size(m.z, 0)));
  RET(t_cast(c, t_reshape(c, r, in->ndim, in->dims), (tpu_dtype)in->dtype));
}

/* Targets of a row stand before the first -1. named [N, target place, class]: the place names the class. */
static val named_targets(op_ctx *c, val target, val *valid) {
  tpu_dtype d = t_index_dtype(t_size(target, 1));
  int dim = 1;
  val place = ir_iota(G, d, target->ndim, target->dims, 1), end = t_like(c, place, (double)t_size(target, 1));
  end = t_amin(c, t_where(c, t_cmp(c, IR_LT, target, t_like(c, target, 0)), place, end), &dim, 1, true);
  *valid = t_cmp(c, IR_LT, place, end);
  int64_t dims[3] = {t_size(target, 0), t_size(target, 1), t_size(target, 1)};
  val named = t_cmp(c, IR_EQ, ir_iota(G, TPU_I64, 3, dims, 2), t_unsqueeze(c, t_cast(c, target, TPU_I64), 2));
  return t_and(c, named, t_unsqueeze(c, *valid, 2));
}

/* max(0, 1 - x[target] + x[class]) for every target place and every class that is no target: [N, place, class]. */
static val label_margins(op_ctx *c, val x, val named, val valid, val *is_target) {
  int place = 1, class = 2;
  *is_target = t_reduce(c, IR_OR, named, &place, 1, false);
  val row = t_unsqueeze(c, x, 1), zero = t_scalar(c, (tpu_dtype)x->dtype, 0);
  val at = t_sum(c, t_where(c, named, row, zero), &class, 1, true);
  val z = t_max(c, t_add(c, t_sub(c, t_scalar(c, (tpu_dtype)x->dtype, 1), at), row), zero);
  return t_where(c, t_and(c, t_unsqueeze(c, valid, 2), t_not(c, t_unsqueeze(c, *is_target, 1))), z, zero);
}

static val as_rows(op_ctx *c, val x) { return x->ndim < 2 ? t_reshape(c, x, 2, (const int64_t[]){1, ir_numel(x)}) : x; }

OP(multilabel_margin_loss, "aten::multilabel_margin_loss_forward") {
  val in = T(0), x = as_rows(c, t_float(c, in)), target = as_rows(c, T(1)), valid, is_target;
  val named = named_targets(c, target, &valid), z = label_margins(c, x, named, valid, &is_target);
  int64_t reduction = INT(2);
  val loss =
      t_div(c, t_sum(c, z, (const int[]){1, 2}, 2, false), t_scalar(c, (tpu_dtype)x->dtype, (double)t_size(x, 1)));
  RETN(0, reduction ? t_loss(c, loss, reduction) : t_reshape_meta(c, 0, loss));
  RETN(1, t_cast(c, t_reshape_meta(c, 1, is_target), (tpu_dtype)in->dtype));
}

OP(multilabel_margin_loss_backward, "aten::multilabel_margin_loss_backward") {
  val in = T(1), x = as_rows(c, t_float(c, in)), target = as_rows(c, T(2)), g = t_float(c, T(0)), valid, is_target;
  val named = named_targets(c, target, &valid), z = label_margins(c, x, named, valid, &is_target);
  int place = 1, class = 2;
  val active = t_cast(c, t_cmp(c, IR_GT, z, t_like(c, z, 0)), (tpu_dtype)x->dtype);
  val pushed = t_sum(c, active, &place, 1, false),
      pulled = t_mul(c, t_cast(c, named, (tpu_dtype)x->dtype), t_sum(c, active, &class, 1, true));
  val r = t_sub(c, pushed, t_sum(c, pulled, &place, 1, false));
  r = t_div(c, r, t_like(c, r, (double)t_size(x, 1)));
  if (g->ndim) g = t_reshape(c, g, 2, (const int64_t[]){ir_numel(g), 1});
  r = t_mul(c, r, spread(c, g, INT(3), (double)t_size(x, 0)));
  RET(t_cast(c, t_reshape(c, r, in->ndim, in->dims), (tpu_dtype)in->dtype));
}
