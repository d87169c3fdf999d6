/* Activations and their gradients. */
#include <math.h>
#include <string.h>

#include "ops/pointwise.h"

static const double SQRT1_2 = M_SQRT1_2, SQRT_2_PI = 0.79788456080286535588, INV_SQRT_2PI = 0.39894228040143267794;

OP(relu, "aten::relu") {
  val x = T(0), zero = t_like(c, x, 0);
  if (x->dtype == TPU_BOOL) op_fail(c, TPU_ERR_RUNTIME, "Boolean inputs not supported for relu");
  RET(P_SEL(P_CMP(LE, x, zero), zero, x));
}

OP(threshold, "aten::threshold") {
  val v[3] = {T(0), S(1), S(2)};
  tpu_dtype d = (tpu_dtype)v[0]->dtype;
  for (int i = 1; i < 3; i++) v[i] = t_cast(c, v[i], d);
  t_prepare(c, v, 3);
  if (p_need_no_bool(c, "threshold_cpu", v[0])) RET(P_SEL(P_CMP(LE, v[0], v[1]), v[2], v[0]));
}

OP(threshold_backward, "aten::threshold_backward") {
  val v[2] = {T(0), T(1)};
  t_prepare(c, v, 2);
  if (!p_need_no_bool(c, "threshold_cpu", v[1])) return;
  val limit = t_broadcast_to(c, t_cast(c, S(2), (tpu_dtype)v[1]->dtype), v[1]->ndim, v[1]->dims);
  RET(P_SEL(P_CMP(LE, v[1], limit), P_NUM(v[0], 0), v[0]));
}

/* ---- gelu, silu, mish ------------------------------------------------------------------------------------------- */

static bool gelu_by_tanh(op_ctx *c, int arg) {
  const char *s = op_str(c, arg);
  if (strcmp(s, "none") && strcmp(s, "tanh"))
    op_fail(c, TPU_ERR_RUNTIME, "approximate argument must be either none or tanh.");
  return s[0] == 't';
}

OP(gelu, "aten::gelu") {
  val x = p_only_float(c, "GeluKernelImpl", T(0)), half = P_MULC(x, 0.5);
  if (gelu_by_tanh(c, 1)) {
    val cube = P_MUL(P_MUL(x, x), x), inner = P_MULC(P_ADD(x, P_MULC(cube, 0.044715)), SQRT_2_PI);
    RET(P_MUL(half, P_ADDC(P_UN(TANH, inner), 1)));
    return;
  }
  RET(P_MUL(half, P_ADDC(P_UN(ERF, P_MULC(x, SQRT1_2)), 1)));
}

OP(gelu_backward, "aten::gelu_backward") {
  val v[2] = {T(0), T(1)};
  if (!p_need_float(c, "GeluBackwardKernelImpl", v[0])) return;
  p_math(c, v, 2);
  val g = v[0], x = v[1], x2 = P_MUL(x, x);
  if (gelu_by_tanh(c, 2)) {
    val t = P_UN(TANH, P_MULC(P_ADD(x, P_MULC(P_MUL(x2, x), 0.044715)), SQRT_2_PI));
    val left = P_MULC(P_ADDC(t, 1), 0.5);
    val dt = P_SUB(P_NUM(t, 1), P_MUL(t, t)), di = P_MULC(P_ADDC(P_MULC(x2, 3 * 0.044715), 1), SQRT_2_PI);
    RET(P_MUL(g, P_ADD(left, P_MUL(P_MULC(x, 0.5), P_MUL(dt, di)))));
    return;
  }
  val cdf = P_MULC(P_ADDC(P_UN(ERF, P_MULC(x, SQRT1_2)), 1), 0.5);
  val pdf = P_MULC(P_UN(EXP, P_MULC(x2, -0.5)), INV_SQRT_2PI);
  RET(P_MUL(g, P_ADD(cdf, P_MUL(x, pdf))));
}

OP(silu, "aten::silu") {
  val x = p_only_float(c, "silu_cpu", T(0));
  RET(P_DIV(x, P_ADDC(P_UN(EXP, P_UN(NEG, x)), 1)));
}

OP(silu_backward, "aten::silu_backward") {
  val v[2] = {T(0), T(1)};
  if (!p_need_float(c, "silu_backward_cpu", v[0])) return;
  p_math(c, v, 2);
  val x = v[1], s = P_UN(LOGISTIC, x), rest = P_SUB(P_NUM(s, 1), s);
  RET(P_MUL(v[0], P_MUL(s, P_ADDC(P_MUL(x, rest), 1))));
}

static val tanh_softplus(op_ctx *c, val x) { return P_UN(TANH, P_UN(LOG1P, P_UN(EXP, x))); }

OP(mish, "aten::mish") {
  val x = p_only_float(c, "mish_cpu", T(0));
  RET(P_MUL(x, tanh_softplus(c, x)));
}

OP(mish_backward, "aten::mish_backward") {
  val v[2] = {T(0), T(1)};
  if (!p_need_float(c, "mish_backward_cpu", v[0])) return;
  p_math(c, v, 2);
  val x = v[1], t = tanh_softplus(c, x), s = P_UN(LOGISTIC, x);
  RET(P_MUL(v[0], P_ADD(t, P_MUL(P_MUL(x, s), P_SUB(P_NUM(t, 1), P_MUL(t, t))))));
}

/* ---- sigmoid, tanh, logit ---------------------------------------------------------------------------------------- */

static val conj_of(op_ctx *c, val x) {
  return p_is_complex(x) ? ir_binary(G, IR_COMPLEX, P_UN(REAL, x), P_UN(NEG, P_UN(IMAG, x))) : x;
}

OP(sigmoid_backward, "aten::sigmoid_backward") {
  val v[2] = {T(0), T(1)};
  if (!p_need_float(c, "sigmoid_backward_cpu", v[0])) return;
  p_math(c, v, 2);
  val y = v[1];
  RET(P_MUL(v[0], conj_of(c, P_MUL(P_SUB(P_NUM(y, 1), y), y))));
}

OP(tanh_backward, "aten::tanh_backward") {
  val v[2] = {T(0), T(1)};
  if (!p_need_float(c, "tanh_backward_cpu", v[0])) return;
  p_math(c, v, 2);
  val y = v[1];
  RET(P_MUL(v[0], conj_of(c, P_SUB(P_NUM(y, 1), P_MUL(y, y)))));
}

OP(log_sigmoid_forward, "aten::log_sigmoid_forward") {
  val x = p_only_float(c, "log_sigmoid_cpu", T(0)), z = P_UN(EXP, P_UN(NEG, P_UN(ABS, x)));
  RETN(0, P_SUB(P_MIN(x, P_NUM(x, 0)), P_UN(LOG1P, z)));
  const tpu_meta *m = op_meta(c, 1); /* PyTorch keeps exp(-|x|) on some devices, and nothing on others */
  bool none = m && m->ndim == 1 && m->sizes[0] == 0;
  RETN(1, none ? t_zeros(c, (tpu_dtype)m->dtype, 1, m->sizes) : z);
}

OP(log_sigmoid_backward, "aten::log_sigmoid_backward") {
  val v[2] = {T(0), T(1)};
  if (!p_need_float(c, "log_sigmoid_backward_cpu", v[0])) return;
  p_math(c, v, 2);
  val x = v[1], z = P_UN(EXP, P_UN(NEG, P_UN(ABS, x))), part = P_DIV(z, P_ADDC(z, 1));
  val slope = P_SEL(P_CMPC(LT, x, 0), P_SUB(P_NUM(x, 1), part), part);
  RET(P_MUL(v[0], slope));
}

/* eps in the dtype of the argument `like`, then of x; NULL when it is None. */
static val logit_eps(op_ctx *c, int arg, val like, val x) {
  if (!HAS(arg)) return NULL;
  tpu_dtype d = t_float_dtype(c, like);
  return t_broadcast_to(c, t_cast(c, t_cast(c, S(arg), d), (tpu_dtype)x->dtype), x->ndim, x->dims);
}

OP(logit, "aten::logit") {
  val x = t_float(c, T(0)), eps = logit_eps(c, 1, T(0), x);
  if (eps) {
    val high = P_SUB(P_NUM(x, 1), eps);
    x = P_SEL(P_CMP(LT, x, eps), eps, P_SEL(P_CMP(GT, x, high), high, x));
  }
  RET(P_UN(LOG, P_DIV(x, P_SUB(P_NUM(x, 1), x))));
}

OP(logit_backward, "aten::logit_backward") {
  val v[2] = {T(0), T(1)};
  if (!p_need_float(c, "logit_backward_cpu", v[0])) return;
  p_math(c, v, 2);
  val g = v[0], x = v[1], eps = logit_eps(c, 2, T(1), x), zero = P_NUM(x, 0), one = P_NUM(x, 1);
  val low = eps ? eps : zero, high = eps ? P_SUB(one, eps) : one;
  val r = P_DIV(g, P_MUL(x, P_SUB(one, x)));
  val inside = P_AND(P_CMP(GE, x, low), P_CMP(LE, x, high));
  RET(P_SEL(inside, r, P_NUM(x, eps ? 0 : NAN)));
}

/* ---- piecewise --------------------------------------------------------------------------------------------------- */

OP(leaky_relu, "aten::leaky_relu") {
  val v[2] = {T(0), S(1)};
  if (!p_need_float(c, "leaky_relu_cpu", v[0])) return;
  p_math(c, v, 2);
  RET(P_SEL(P_CMPC(GT, v[0], 0), v[0], P_MUL(v[0], v[1])));
}

OP(leaky_relu_backward, "aten::leaky_relu_backward") {
  val v[3] = {T(0), T(1), S(2)};
  if (!p_need_float(c, "leaky_relu_backward_cpu", v[0])) return;
  p_math(c, v, 3);
  RET(P_SEL(P_CMPC(GT, v[1], 0), v[0], P_MUL(v[0], v[2])));
}

OP(elu, "aten::elu") { /* self, alpha, scale, input_scale */
  val v[4] = {T(0), S(1), S(2), S(3)};
  if (!p_need_float(c, "elu_cpu", v[0])) return;
  p_math(c, v, 4);
  val x = v[0], low = P_MUL(P_UN(EXPM1, P_MUL(x, v[3])), P_MUL(v[1], v[2]));
  RET(P_SEL(P_CMPC(LT, x, 0), low, P_MUL(x, v[2])));
}

OP(elu_backward, "aten::elu_backward") { /* grad, alpha, scale, input_scale, is_result, self or result */
  val v[5] = {T(0), T(5), S(1), S(2), S(3)};
  if (!p_need_float(c, "elu_backward_cpu", v[0])) return;
  p_math(c, v, 5);
  val g = v[0], x = v[1], coef = P_MUL(v[2], v[3]), low;
  if (INT(4)) low = P_MUL(P_MUL(g, v[4]), P_ADD(x, coef));
  else low = P_MUL(P_MUL(g, v[4]), P_MUL(coef, P_UN(EXP, P_MUL(x, v[4]))));
  RET(P_SEL(P_CMPC(GT, x, 0), P_MUL(g, v[3]), low));
}

OP(hardtanh_backward, "aten::hardtanh_backward") {
  val v[4] = {T(0), T(1), S(2), S(3)};
  if (!p_need_float(c, "hardtanh_backward_cpu", v[0])) return;
  p_math(c, v, 4);
  RET(P_SEL(P_AND(P_CMP(GT, v[1], v[2]), P_CMP(LT, v[1], v[3])), v[0], P_NUM(v[0], 0)));
}

/* min(max(x + 3, 0), 6) */
static val relu6_of_x_plus_3(op_ctx *c, val x) {
  val y = P_ADDC(x, 3);
  return P_MIN(P_MAX(y, P_NUM(x, 0)), P_NUM(x, 6));
}

OP(hardsigmoid, "aten::hardsigmoid") {
  val x = p_only_float(c, "hardsigmoid_cpu", T(0));
  RET(P_DIV(relu6_of_x_plus_3(c, x), P_NUM(x, 6)));
}

OP(hardsigmoid_backward, "aten::hardsigmoid_backward") {
  val v[2] = {T(0), T(1)};
  if (!p_need_float(c, "hardsigmoid_backward", v[0])) return;
  p_math(c, v, 2);
  val inside = P_AND(P_CMPC(GT, v[1], -3), P_CMPC(LT, v[1], 3));
  RET(P_SEL(inside, P_DIV(v[0], P_NUM(v[0], 6)), P_NUM(v[0], 0)));
}

OP(hardswish, "aten::hardswish") {
  val x = p_only_float(c, "hardswish_cpu", T(0));
  RET(P_DIV(P_MUL(x, relu6_of_x_plus_3(c, x)), P_NUM(x, 6)));
}

OP(hardswish_backward, "aten::hardswish_backward") {
  val v[2] = {T(0), T(1)};
  if (!p_need_float(c, "hardswish_backward_cpu", v[0])) return;
  p_math(c, v, 2);
  val g = v[0], x = v[1], middle = P_MUL(g, P_ADDC(P_DIV(x, P_NUM(x, 3)), 0.5));
  val high = P_SEL(P_CMPC(GE, x, 3), g, middle);
  RET(P_SEL(P_CMPC(LE, x, -3), P_NUM(g, 0), high));
}

OP(softplus, "aten::softplus") {
  val v[3] = {T(0), S(1), S(2)};
  if (!p_need_float(c, "softplus_cpu", v[0])) return;
  p_math(c, v, 3);
  val x = v[0], xb = P_MUL(x, v[1]);
  RET(P_SEL(P_CMP(GT, xb, v[2]), x, P_DIV(P_UN(LOG1P, P_UN(EXP, xb)), v[1])));
}

OP(softplus_backward, "aten::softplus_backward") {
  val v[4] = {T(0), T(1), S(2), S(3)};
  if (!p_need_float(c, "softplus_backward_cpu", v[0])) return;
  p_math(c, v, 4);
  val xb = P_MUL(v[1], v[2]), z = P_UN(EXP, xb);
  RET(P_SEL(P_CMP(GT, xb, v[3]), v[0], P_DIV(P_MUL(v[0], z), P_ADDC(z, 1))));
}

/* |x| <= lambd; false for NaN */
static val is_shrunk(op_ctx *c, val x, val lambd) { return P_AND(P_CMP(GE, x, P_UN(NEG, lambd)), P_CMP(LE, x, lambd)); }

OP(hardshrink, "aten::hardshrink") {
  val v[2] = {T(0), S(1)};
  if (!p_need_float(c, "hardshrink_cpu", v[0])) return;
  p_math(c, v, 2);
  RET(P_SEL(is_shrunk(c, v[0], v[1]), P_NUM(v[0], 0), v[0]));
}

OP(softshrink, "aten::softshrink") {
  val v[2] = {T(0), S(1)};
  if (!p_need_float(c, "softshrink_cpu", v[0])) return;
  p_math(c, v, 2);
  val x = v[0], l = v[1];
  val outer = P_SEL(P_CMP(GT, x, l), P_SUB(x, l), P_SEL(P_CMP(LT, x, P_UN(NEG, l)), P_ADD(x, l), P_NUM(x, 0)));
  RET(P_SEL(p_isnan(c, x), x, outer));
}

static val shrink_backward(op_ctx *c) {
  val v[3] = {T(0), T(1), S(2)};
  if (!p_need_float(c, "shrink_backward_cpu", v[0])) return v[0];
  p_math(c, v, 3);
  val outside = P_OR(P_CMP(LT, v[1], P_UN(NEG, v[2])), P_CMP(GT, v[1], v[2]));
  return P_SEL(outside, v[0], P_NUM(v[0], 0));
}
OP(hardshrink_backward, "aten::hardshrink_backward") { RET(shrink_backward(c)); }
OP(softshrink_backward, "aten::softshrink_backward") { RET(shrink_backward(c)); }

OP(prelu, "aten::_prelu_kernel") {
  val v[2] = {T(0), T(1)};
  if (!p_need_float(c, "prelu_cpu", v[0])) return;
  p_math(c, v, 2);
  RET(P_SEL(P_CMPC(GT, v[0], 0), v[0], P_MUL(v[0], v[1])));
}

OP(prelu_backward, "aten::_prelu_kernel_backward") {
  val v[3] = {T(0), T(1), T(2)};
  if (!p_need_float(c, "prelu_backward_cpu", v[0])) return;
  p_math(c, v, 3);
  val positive = P_CMPC(GT, v[1], 0);
  RETN(0, P_SEL(positive, v[0], P_MUL(v[2], v[0])));
  RETN(1, P_SEL(positive, P_NUM(v[0], 0), P_MUL(v[1], v[0])));
}

/* ---- rrelu ------------------------------------------------------------------------------------------------------- */

/* self, noise, lower, upper, training: the output; *noise is the new noise, NULL when it stays. */
static val rrelu(op_ctx *c, val *noise) {
  val v[3] = {T(0), S(2), S(3)};
  p_math(c, v, 3);
  *noise = NULL;
  if (ir_failed(G)) return v[0];
  val x = v[0], lower = v[1], upper = v[2];
  if (!INT_OR(4, 0)) {
    val slope = P_MULC(P_ADD(lower, upper), 0.5);
    return P_SEL(P_CMPC(GT, x, 0), x, P_MUL(x, slope));
  }
  val u = t_random_uniform(c, (tpu_dtype)x->dtype, x->ndim, x->dims);
  val r = P_ADD(lower, P_MUL(u, P_SUB(upper, lower)));
  *noise = P_SEL(P_CMPC(LE, x, 0), r, P_NUM(x, 1));
  return P_MUL(x, *noise);
}

static void rrelu_writing(op_ctx *c) {
  val noise;
  RET(rrelu(c, &noise));
  if (noise) op_write(c, 1, 0, noise);
}
OP(rrelu_with_noise, "aten::rrelu_with_noise") { rrelu_writing(c); }
OP(rrelu_with_noise_, "aten::rrelu_with_noise_") { rrelu_writing(c); } /* no functional twin: noise is written */

OP(rrelu_with_noise_functional, "aten::rrelu_with_noise_functional") {
  val noise;
  RET(rrelu(c, &noise));
  RETN(1, noise ? noise : T(1));
}

/* ---- glu --------------------------------------------------------------------------------------------------------- */

/* The two halves of x along the dim that argument `arg` names. */
static int halves(op_ctx *c, val x, int arg, val *a, val *b) {
  int dim = t_dim(c, INT_OR(arg, -1), x->ndim);
  *a = *b = x;
  if (ir_failed(G)) return dim;
  if (x->ndim == 0) {
    op_fail(c, TPU_ERR_RUNTIME, "glu does not support 0-dimensional tensors");
    return dim;
  }
  int64_t n = x->dims[dim] / 2;
  if (x->dims[dim] % 2)
    op_fail(c, TPU_ERR_RUNTIME, "Halving dimension must be even, but dimension %d is size %lld", dim,
            (long long)x->dims[dim]);
  *a = t_narrow(c, x, dim, 0, n, 1);
  *b = t_narrow(c, x, dim, n, n, 1);
  return dim;
}

OP(glu, "aten::glu") {
  val a, b;
  halves(c, t_float(c, T(0)), 1, &a, &b);
  RET(P_MUL(a, P_UN(LOGISTIC, b)));
}

OP(glu_backward, "aten::glu_backward") {
  val a, b, g = t_float(c, T(0));
  int dim = halves(c, t_float(c, T(1)), 2, &a, &b);
  val s = P_UN(LOGISTIC, b);
  val out[2] = {P_MUL(s, g), P_MUL(P_MUL(P_MUL(P_SUB(P_NUM(s, 1), s), s), g), a)};
  RET(t_concat(c, out, 2, dim));
}

OP(glu_jvp, "aten::glu_jvp") { /* glu, x, dx, dim */
  val a, b, da, db, y = t_float(c, T(0));
  halves(c, t_float(c, T(1)), 3, &a, &b);
  halves(c, t_float(c, T(2)), 3, &da, &db);
  val s = P_UN(LOGISTIC, b);
  RET(P_ADD(P_MUL(da, s), P_MUL(y, P_SUB(db, P_MUL(s, db)))));
}
