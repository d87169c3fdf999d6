/* Fused optimizers: a whole step over all parameters is one program. Computed in float32 (float64 for float64
 * parameters). */
#include "ops/along.h"

typedef struct {
  tpu_dtype m;      /* dtype of the computation */
  val scale, found; /* grad_scale and found_inf as numbers, NULL when not given */
  bool maximize;
} step_ctx;

static val one(op_ctx *c, val x) { return t_reshape(c, x, 0, NULL); }

static step_ctx begin(op_ctx *c, val param, int scale_arg, bool maximize) {
  step_ctx s = {.m = t_opmath((tpu_dtype)param->dtype), .maximize = maximize};
  if (HAS(scale_arg)) s.scale = t_cast(c, one(c, T(scale_arg)), s.m);
  if (HAS(scale_arg + 1)) s.found = t_cmp(c, IR_EQ, one(c, T(scale_arg + 1)), t_scalar(c, TPU_F32, 1));
  return s;
}

/* A float argument, or the learning rate as a tensor of one element. */
static val number(op_ctx *c, const step_ctx *s, int i) {
  if (op_tag(c, i) == TPU_TENSOR && T(i)->ndim) return t_cast(c, one(c, T(i)), s->m);
  return t_cast(c, op_any(c, i), s->m);
}

/* 1 - x for a Python number, rounded once: 1 - 0.999 in float32 would lose four digits. */
static val one_minus(op_ctx *c, const step_ctx *s, int i) {
  return t_cast(c, ir_binary(G, IR_SUB, t_scalar(c, TPU_F64, 1), t_cast(c, S(i), TPU_F64)), s->m);
}

/* 1 - beta^step without cancellation. */
static val bias_correction(op_ctx *c, val om, val step) {
  val log_beta = ir_unary(G, IR_LOG1P, t_neg(c, om));
  return t_neg(c, ir_unary(G, IR_EXPM1, t_mul(c, log_beta, step)));
}

/* Argument `arg`, element k gets v unless an infinity was found. */
static void put(op_ctx *c, const step_ctx *s, int arg, int k, val v) {
  if (s->found) v = t_where(c, s->found, t_cast(c, TL(arg, k), s->m), v);
  op_ret_list(c, arg, k, v);
}

/* The gradient (argument 1) to step along; what is left in the list afterwards is unscaled, not negated. */
static val gradient(op_ctx *c, const step_ctx *s, int k, bool in_place) {
  val g = t_cast(c, TL(1, k), s->m);
  if (s->scale) g = t_div(c, g, s->scale);
  if (s->scale || !in_place) put(c, s, 1, k, g);
  return s->maximize ? t_neg(c, g) : g;
}

/* (self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, lr, beta1, beta2, weight_decay, eps, amsgrad,
 * maximize, grad_scale, found_inf) */
static void adam(op_ctx *c, bool decoupled, bool in_place) {
  bool amsgrad = INT(11);
  for (int k = 0; k < op_list_len(c, 0) && !ir_failed(G); k++) {
    step_ctx s = begin(c, TL(0, k), 13, INT(12));
    val p = t_cast(c, TL(0, k), s.m), m = t_cast(c, TL(2, k), s.m), v = t_cast(c, TL(3, k), s.m);
    val step = t_cast(c, one(c, TL(5, k)), s.m), lr = number(c, &s, 6), decay = number(c, &s, 9),
        eps = number(c, &s, 10);
    val om1 = one_minus(c, &s, 7), om2 = one_minus(c, &s, 8), g = gradient(c, &s, k, in_place);
    if (ir_failed(G)) return;
    if (decoupled) p = t_mul(c, p, t_sub(c, t_scalar(c, s.m, 1), t_mul(c, lr, decay)));
    else g = t_add(c, g, t_mul(c, p, decay));
    m = t_add(c, m, t_mul(c, t_sub(c, g, m), om1));
    v = t_add(c, t_mul(c, v, number(c, &s, 8)), t_mul(c, om2, t_mul(c, g, g)));
    put(c, &s, 2, k, m);
    put(c, &s, 3, k, v);
    if (amsgrad) {
      v = t_max(c, t_cast(c, TL(4, k), s.m), v);
      put(c, &s, 4, k, v);
    }
    val bc1 = bias_correction(c, om1, step), bc2 = ir_unary(G, IR_SQRT, bias_correction(c, om2, step));
    val denom = t_add(c, t_div(c, ir_unary(G, IR_SQRT, v), bc2), eps);
    put(c, &s, 0, k, t_sub(c, p, t_mul(c, t_div(c, lr, bc1), t_div(c, m, denom))));
  }
}

/* (self, grads, momentum_buffer_list, weight_decay, momentum, lr, dampening, nesterov, maximize, is_first_step,
 * grad_scale, found_inf) */
static void sgd(op_ctx *c, bool in_place) {
  bool nesterov = INT(7), first = INT(9), with_momentum = op_list_len(c, 2) > 0;
  for (int k = 0; k < op_list_len(c, 0) && !ir_failed(G); k++) {
    step_ctx s = begin(c, TL(0, k), 10, INT(8));
    val p = t_cast(c, TL(0, k), s.m), g = gradient(c, &s, k, in_place);
    g = t_add(c, g, t_mul(c, p, number(c, &s, 3)));
    if (with_momentum) {
      val b = g, momentum = number(c, &s, 4);
      if (!first) b = t_add(c, t_mul(c, t_cast(c, TL(2, k), s.m), momentum), t_mul(c, g, one_minus(c, &s, 6)));
      put(c, &s, 2, k, b);
      g = nesterov ? t_add(c, g, t_mul(c, b, momentum)) : b;
    }
    put(c, &s, 0, k, t_sub(c, p, t_mul(c, number(c, &s, 5), g)));
  }
}

/* (self, grads, state_sums, state_steps, lr, lr_decay, weight_decay, eps, maximize, grad_scale, found_inf) */
static void adagrad(op_ctx *c, bool in_place) {
  for (int k = 0; k < op_list_len(c, 0) && !ir_failed(G); k++) {
    step_ctx s = begin(c, TL(0, k), 9, INT(8));
    val p = t_cast(c, TL(0, k), s.m), g = gradient(c, &s, k, in_place), step = t_cast(c, one(c, TL(3, k)), s.m);
    g = t_add(c, g, t_mul(c, p, number(c, &s, 6)));
    val sum = t_add(c, t_cast(c, TL(2, k), s.m), t_mul(c, g, g));
    put(c, &s, 2, k, sum);
    val slower = t_add(c, t_scalar(c, s.m, 1), t_mul(c, t_sub(c, step, t_scalar(c, s.m, 1)), number(c, &s, 5)));
    if (ir_failed(G)) return;
    val denom = t_add(c, ir_unary(G, IR_SQRT, sum), number(c, &s, 7));
    put(c, &s, 0, k, t_sub(c, p, t_mul(c, t_div(c, number(c, &s, 4), slower), t_div(c, g, denom))));
    if (!in_place) op_ret_list(c, 3, k, TL(3, k));
  }
}

/* The in-place overloads are rows of their own: what they leave unwritten costs no output. */
#define FUSED(id, name, call)                       \
  OP(id, "aten::_fused_" name) {                    \
    bool in_place = false;                          \
    call;                                           \
  }                                                 \
  OP(id##_, "aten::_fused_" name "_") {             \
    bool in_place = true;                           \
    call;                                           \
  }                                                 \
  OP(id##_lr, "aten::_fused_" name "_.tensor_lr") { \
    bool in_place = true;                           \
    call;                                           \
  }

FUSED(fused_adam, "adam", adam(c, false, in_place))
FUSED(fused_adamw, "adamw", adam(c, true, in_place))
FUSED(fused_sgd, "sgd", sgd(c, in_place))
FUSED(fused_adagrad, "adagrad", adagrad(c, in_place))
