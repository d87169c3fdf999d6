/* Element-wise operators of three operands. */
#include "ops/pointwise.h"

OP(where, "aten::where.self") { RET(t_where(c, T(0), T(1), T(2))); }

/* The mask may be the larger one; the value takes self's dtype. */
static val masked_fill(op_ctx *c) {
  val x = T(0);
  return t_where(c, T(1), t_cast(c, op_any(c, 2), (tpu_dtype)x->dtype), x);
}
OP(masked_fill, "aten::masked_fill") { RET(masked_fill(c)); }

/* min(max(x, low), high); NaN in any of them wins, and high wins over low. */
static val clamped(op_ctx *c, int low, int high) {
  val v[3] = {T(0)};
  int n = 1, at_low = 0, at_high = 0;
  if (low && HAS(low)) v[at_low = n++] = op_any(c, low);
  if (high && HAS(high)) v[at_high = n++] = op_any(c, high);
  t_prepare(c, v, n);
  if (at_low) v[0] = t_max(c, v[0], v[at_low]);
  if (at_high) v[0] = t_min(c, v[0], v[at_high]);
  return v[0];
}
OP(clamp, "aten::clamp") { RET(clamped(c, 1, 2)); }
OP(clamp_min, "aten::clamp_min") { RET(clamped(c, 1, 0)); }
OP(clamp_max, "aten::clamp_max") { RET(clamped(c, 0, 1)); }
OP(hardtanh, "aten::hardtanh") {
  val x = T(0);
  tpu_dtype d = (tpu_dtype)x->dtype;
  RET(t_min(c, t_max(c, x, t_cast(c, S(1), d)), t_cast(c, S(2), d)));
}

OP(lerp, "aten::lerp") {
  val v[3] = {T(0), T(1), op_any(c, 2)};
  if (!p_need_float(c, op_tag(c, 2) == TPU_TENSOR ? "lerp_kernel_tensor" : "lerp_kernel_scalar", v[0])) return;
  p_math(c, v, 3);
  val a = v[0], b = v[1], w = v[2], d = P_SUB(b, a), one = P_NUM(w, 1);
  val near = P_CMPC(LT, P_UN(ABS, w), 0.5);
  RET(P_SEL(near, P_ADD(a, P_MUL(w, d)), P_SUB(b, P_MUL(d, P_SUB(one, w)))));
}

/* Among integers the value is truncated to one first. */
OP(addcmul, "aten::addcmul") {
  val v[4] = {T(0), T(1), T(2), S(3)};
  tpu_dtype d = t_result_type(c, v, 3);
  if (!ir_failed(G) && ir_is_int(d)) v[3] = t_cast(c, v[3], d);
  p_math(c, v, 4);
  if (!p_need_no_bool(c, "addcmul_cpu_out", v[0])) return;
  val step = op_number_class(c, 3) == 1 ? v[1] : t_mul(c, v[3], v[1]);
  RET(t_add(c, v[0], t_mul(c, step, v[2])));
}

OP(addcdiv, "aten::addcdiv") {
  val v[4] = {T(0), T(1), T(2), S(3)};
  p_float(c, v, 4);
  val step = op_number_class(c, 3) == 1 ? v[1] : P_MUL(v[3], v[1]);
  RET(P_ADD(v[0], P_DIV(step, v[2])));
}

OP(native_dropout_backward, "aten::native_dropout_backward") {
  val v[3] = {T(0), T(1), S(2)};
  p_math(c, v, 3);
  RET(t_mul(c, t_mul(c, v[0], v[1]), v[2]));
}
