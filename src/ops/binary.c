/* Element-wise operators of two tensors (or a tensor and a number). */
#include <math.h>

#include "ops/pointwise.h"

/* Both operands, wherever the tensor stands; prepared by `prepare`. */
static void operands(op_ctx *c, val v[2], void (*prepare)(op_ctx *, val *, int)) {
  v[0] = op_any(c, 0);
  v[1] = op_any(c, 1);
  prepare(c, v, 2);
}

/* ---- arithmetic ------------------------------------------------------------------------------------------------ */

/* a + alpha * b, or a - alpha * b; alpha is argument 2, and exactly 1 most of the time */
static val add_scaled(op_ctx *c, val a, val b, bool minus) {
  bool plain = op_number_class(c, 2) == 1;
  val v[3] = {a, b, plain ? NULL : S(2)};
  p_math(c, v, plain ? 2 : 3);
  if (ir_failed(G)) return a;
  if (v[0]->dtype == TPU_BOOL) return t_or(c, v[0], plain ? v[1] : t_and(c, v[1], v[2]));
  val step = plain ? v[1] : P_MUL(v[1], v[2]);
  return minus ? P_SUB(v[0], step) : P_ADD(v[0], step);
}

OP(add, "aten::add") { RET(add_scaled(c, T(0), op_any(c, 1), false)); }
OP(sub, "aten::sub") { RET(add_scaled(c, T(0), op_any(c, 1), true)); }
OP(rsub, "aten::rsub") {
  val a = op_any(c, 1), b = T(0);
  if (a->dtype == TPU_BOOL && b->dtype == TPU_BOOL)
    op_fail(c, TPU_ERR_RUNTIME,
            "Subtraction, the `-` operator, with two bool tensors is not supported. Use the `^` or "
            "`logical_xor()` operator instead.");
  else if (a->dtype == TPU_BOOL || b->dtype == TPU_BOOL)
    op_fail(c, TPU_ERR_RUNTIME,
            "Subtraction, the `-` operator, with a bool tensor is not supported. If you are trying to "
            "invert a mask, use the `~` or `logical_not()` operator instead.");
  RET(add_scaled(c, a, b, true));
}

OP(mul, "aten::mul") {
  val v[2];
  operands(c, v, p_math);
  if (ir_failed(G)) return;
  RET(v[0]->dtype == TPU_BOOL ? t_and(c, v[0], v[1]) : P_MUL(v[0], v[1]));
}
OP_BINARY(maximum, "aten::maximum", t_max)
OP_BINARY(minimum, "aten::minimum", t_min)

static val bitwise(op_ctx *c, ir_opcode op, const char *kernel) {
  val v[2];
  operands(c, v, t_prepare);
  if (ir_failed(G)) return v[0];
  return p_is_int(v[0]) ? ir_binary(G, op, v[0], v[1]) : p_no_kernel(c, kernel, v[0]);
}
OP(bitwise_and, "aten::bitwise_and") { RET(bitwise(c, IR_AND, "bitwise_and_cpu")); }
OP(bitwise_or, "aten::bitwise_or") { RET(bitwise(c, IR_OR, "bitwise_or_cpu")); }
OP(bitwise_xor, "aten::bitwise_xor") { RET(bitwise(c, IR_XOR, "bitwise_xor_cpu")); }

static val divided(op_ctx *c, const char *mode) {
  if (!mode[0]) {
    val q[2];
    operands(c, q, p_float);
    return ir_failed(G) ? q[0] : P_DIV(q[0], q[1]);
  }
  val v[2];
  operands(c, v, p_math);
  if (ir_failed(G)) return v[0];
  if (p_is_complex(v[0]))
    return op_fail(c, TPU_ERR_RUNTIME, "div with rounding_mode is not defined for complex tensors");
  bool floors = mode[0] == 'f';
  if (!p_need_no_bool(c, floors ? "div_floor_cpu" : "div_trunc_cpu", v[0])) return v[0];
  if (floors) return p_floor_div(c, v[0], v[1]);
  /* a float quotient is rounded to its dtype before it is cut */
  return p_is_int(v[0]) ? p_trunc_div(c, v[0], v[1]) : p_trunc(c, t_div(c, op_any(c, 0), op_any(c, 1)));
}

OP(div, "aten::div") { RET(divided(c, "")); }
OP(div_tensor_mode, "aten::div.Tensor_mode") { RET(divided(c, op_str(c, 2))); }
OP(div_scalar_mode, "aten::div.Scalar_mode") { RET(divided(c, op_str(c, 2))); }
OP(floor_divide, "aten::floor_divide") { RET(divided(c, "floor")); }

OP(remainder, "aten::remainder") {
  val v[2];
  operands(c, v, p_math);
  if (p_need_no_bool(c, "remainder_cpu", v[0])) RET(p_remainder(c, v[0], v[1]));
}

OP(fmod, "aten::fmod") {
  val v[2];
  operands(c, v, p_math);
  if (p_need_no_bool(c, "fmod_cpu", v[0])) RET(ir_binary(G, IR_REM, v[0], v[1]));
}

/* x^e of integers by squaring, worked out here: e is a constant. */
static val whole_power(op_ctx *c, val x, int64_t e) {
  val r = P_NUM(x, 1), base = x;
  for (bool first = true; e; e >>= 1, first = false) {
    if (!first) base = P_MUL(base, base);
    if (e & 1) r = P_MUL(r, base);
  }
  return r;
}

/* Exponents for which PyTorch has code of its own; the rest is the general power with the exponent as an operand. */
static val power_number(op_ctx *c, val x, double e, bool whole) {
  val v[2] = {x, S(1)};
  if (ir_is_int((tpu_dtype)x->dtype) && whole) {
    if (e < 0) return op_fail(c, TPU_ERR_RUNTIME, "Integers to negative integer powers are not allowed.");
    return e < 0x1p53 ? whole_power(c, x, (int64_t)e) : t_pow(c, v[0], v[1]);
  }
  p_math(c, v, 2);
  if (ir_failed(G)) return x;
  val y = v[0];
  if (e == 1) return y;
  if (e == 0.5) return P_UN(SQRT, y);
  if (e == -0.5) return P_UN(RSQRT, y);
  val base = e < 0 ? P_DIV(P_NUM(y, 1), y) : y;
  switch ((int)fabs(e == floor(e) && fabs(e) < 4 ? e : 0)) {
    case 1: return base;
    case 2: return e < 0 ? P_DIV(P_NUM(y, 1), P_MUL(y, y)) : P_MUL(y, y);
    case 3: return e > 0 ? P_MUL(P_MUL(y, y), y) : P_DIV(P_NUM(y, 1), P_MUL(P_MUL(y, y), y));
    default: return ir_binary(G, IR_POW, v[0], v[1]);
  }
}

OP(pow_tensor_scalar, "aten::pow.Tensor_Scalar") {
  val x = T(0);
  double e = op_const(c, 1);
  val n = S(1);
  if (ir_failed(G)) return;
  bool plain = !p_is_complex(x) && !ir_is_complex((tpu_dtype)n->dtype);
  RET(plain ? power_number(c, x, e, op_const_is_int(c, 1)) : t_pow(c, x, n));
}
OP(pow, "aten::pow") {
  val a = op_any(c, 0), b = op_any(c, 1), v[2] = {a, b};
  if (ir_failed(G)) return;
  if (t_result_type(c, v, 2) == TPU_BOOL) p_no_kernel(c, "pow", a);
  else RET(t_pow(c, a, b));
}

OP(ldexp, "aten::ldexp.Tensor") {
  val x = T(0), n = T(1);
  /* PyTorch: self * pow(2.0, other) */
  val v[2] = {n, n};
  p_float(c, v, 2);
  if (!ir_failed(G)) RET(t_mul(c, x, ir_binary(G, IR_POW, P_NUM(v[0], 2), v[0])));
}

/* ---- floats only ------------------------------------------------------------------------------------------------ */

OP(atan2, "aten::atan2") {
  val v[2];
  operands(c, v, p_float);
  RET(ir_binary(G, IR_ATAN2, v[0], v[1]));
}

OP(hypot, "aten::hypot") {
  val v[2];
  operands(c, v, p_math);
  if (!p_need_float(c, "hypot_cpu", v[0])) return;
  val a = P_UN(ABS, v[0]), b = P_UN(ABS, v[1]), high = P_MAX(a, b), low = P_MIN(a, b), r = P_DIV(low, high);
  r = P_MUL(high, P_UN(SQRT, P_ADDC(P_MUL(r, r), 1)));
  r = P_SEL(P_CMPC(EQ, high, 0), high, r);
  RET(P_SEL(P_OR(p_isinf(c, a), p_isinf(c, b)), P_NUM(r, INFINITY), r));
}

OP(copysign, "aten::copysign") {
  val v[2];
  operands(c, v, p_float);
  if (ir_failed(G)) return;
  val a = P_UN(ABS, v[0]);
  RET(P_SEL(p_signbit(c, v[1]), P_UN(NEG, a), a));
}

/* The neighbours of a bfloat16 or float16 are those of its own format. */
OP(nextafter, "aten::nextafter") {
  val v[2] = {op_any(c, 0), op_any(c, 1)};
  t_prepare(c, v, 2);
  if (p_need_float(c, "nextafter_cpu", v[0])) RET(ir_binary(G, IR_NEXT_AFTER, v[0], v[1]));
}

static val log_add(op_ctx *c, bool base2) {
  val v[2];
  operands(c, v, p_math);
  if (!p_need_float(c, base2 ? "logaddexp2_cpu" : "logaddexp_cpu", v[0])) return v[0];
  if (p_is_complex(v[0])) return base2 ? p_no_kernel(c, "logaddexp2_cpu", v[0]) : p_logaddexp_complex(c, v[1], v[0]);
  val a = v[0], b = v[1], high = P_MAX(a, b), d = P_UN(NEG, P_UN(ABS, P_SUB(a, b)));
  val step = P_UN(LOG1P, P_UN(EXP, base2 ? P_MULC(d, M_LN2) : d));
  if (base2) step = P_MULC(step, M_LOG2E);
  return P_SEL(P_AND(p_isinf(c, a), P_CMP(EQ, a, b)), a, P_ADD(high, step));
}
OP(logaddexp, "aten::logaddexp") { RET(log_add(c, false)); }
OP(logaddexp2, "aten::logaddexp2") { RET(log_add(c, true)); }

static val x_log(op_ctx *c, ir_opcode log_op) {
  val v[2];
  operands(c, v, p_float);
  if (ir_failed(G)) return v[0];
  val x = v[0], y = v[1], r = P_SEL(P_CMPC(EQ, x, 0), P_NUM(x, 0), P_MUL(x, ir_unary(G, log_op, y)));
  return P_SEL(p_isnan(c, y), y, r);
}
OP(xlogy, "aten::xlogy") { RET(x_log(c, IR_LOG)); }
OP(xlog1py, "aten::special_xlog1py") { RET(x_log(c, IR_LOG1P)); }

static val ignoring_nan(op_ctx *c, ir_opcode op) {
  val a = op_any(c, 0), b = op_any(c, 1), v[2] = {a, b};
  t_prepare(c, v, 2);
  if (ir_failed(G)) return a;
  val r = op == IR_MAX ? t_max(c, v[0], v[1]) : t_min(c, v[0], v[1]);
  if (p_is_int(r)) return r;
  return P_SEL(p_isnan(c, v[0]), v[1], P_SEL(p_isnan(c, v[1]), v[0], r));
}
OP(fmax, "aten::fmax") { RET(ignoring_nan(c, IR_MAX)); }
OP(fmin, "aten::fmin") { RET(ignoring_nan(c, IR_MIN)); }

OP(heaviside, "aten::heaviside") {
  val v[2] = {op_any(c, 0), op_any(c, 1)};
  t_prepare(c, v, 2);
  if (ir_failed(G)) return;
  val x = v[0], zero = P_NUM(x, 0);
  RET(P_SEL(P_CMP(EQ, x, zero), v[1], P_SEL(P_CMP(GT, x, zero), P_NUM(x, 1), zero)));
}

OP(complex, "aten::complex") {
  val v[2] = {T(0), T(1)};
  t_prepare(c, v, 2);
  if (!ir_failed(G) && v[0]->dtype == TPU_F16)
    op_fail(c, TPU_ERR_NOT_IMPLEMENTED, "complex tensors of float16 are not supported");
  RET(ir_binary(G, IR_COMPLEX, v[0], v[1]));
}

OP(polar, "aten::polar") {
  val v[2] = {T(0), T(1)};
  t_prepare(c, v, 2);
  RET(ir_binary(G, IR_COMPLEX, P_MUL(v[0], P_UN(COS, v[1])), P_MUL(v[0], P_UN(SIN, v[1]))));
}

/* ---- integers --------------------------------------------------------------------------------------------------- */

/* A shift by a negative number or by the width and more leaves nothing (or the sign). */
static val shifted(op_ctx *c, bool left) {
  val v[2] = {op_any(c, 0), op_any(c, 1)};
  t_prepare(c, v, 2);
  if (ir_failed(G)) return v[0];
  tpu_dtype d = (tpu_dtype)v[0]->dtype;
  if (!ir_is_int(d)) return p_no_kernel(c, left ? "lshift_cpu" : "rshift_cpu", v[0]);
  bool is_signed = !ir_is_unsigned(d);
  int width = (int)tpu_dtype_size(d) * 8;
  val a = v[0], b = v[1], zero = P_NUM(a, 0), far = P_CMPC(GE, b, width);
  if (is_signed) far = P_OR(far, P_CMP(LT, b, zero));
  if (left) return P_SEL(far, zero, ir_binary(G, IR_SHL, a, P_SEL(far, zero, b)));
  ir_opcode op = is_signed ? IR_SHR_A : IR_SHR_L;
  val r = ir_binary(G, op, a, P_SEL(far, P_NUM(b, width - 1), b));
  return is_signed ? r : P_SEL(far, zero, r);
}
OP(bitwise_left_shift, "aten::bitwise_left_shift") { RET(shifted(c, true)); }
OP(bitwise_right_shift, "aten::bitwise_right_shift") { RET(shifted(c, false)); }
OP(lshift, "aten::__lshift__") { RET(shifted(c, true)); }
OP(rshift, "aten::__rshift__") { RET(shifted(c, false)); }
OP(ilshift, "aten::__ilshift__") { RET(shifted(c, true)); }
OP(irshift, "aten::__irshift__") { RET(shifted(c, false)); }

/* Euclid's algorithm on all elements at once, until the last one is done. */
static val gcd(op_ctx *c, val a, val b) {
  val init[2] = {t_abs(c, a), t_abs(c, b)}, at[2], out[2];
  ir_while_begin(G, init, 2, at);
  val more = P_CMPC(NE, at[1], 0);
  ir_while_body(G, t_reduce(c, IR_OR, more, NULL, 0, false), at);
  val zero = P_NUM(at[1], 0), done = P_CMP(EQ, at[1], zero);
  val next[2] = {P_SEL(done, at[0], at[1]),
                 P_SEL(done, zero, ir_binary(G, IR_REM, at[0], P_SEL(done, P_NUM(at[1], 1), at[1])))};
  ir_while_end(G, next, out);
  return t_abs(c, out[0]);
}

OP(gcd, "aten::gcd") {
  val v[2] = {op_any(c, 0), op_any(c, 1)};
  t_prepare(c, v, 2);
  if (!ir_failed(G)) RET(ir_is_int((tpu_dtype)v[0]->dtype) ? gcd(c, v[0], v[1]) : p_no_kernel(c, "gcd_cpu", v[0]));
}

OP(lcm, "aten::lcm") {
  val v[2] = {op_any(c, 0), op_any(c, 1)};
  t_prepare(c, v, 2);
  if (ir_failed(G)) return;
  if (!ir_is_int((tpu_dtype)v[0]->dtype)) {
    p_no_kernel(c, "lcm_cpu", v[0]);
    return;
  }
  if (tpu_dtype_size((tpu_dtype)v[0]->dtype) < 4) /* C's arithmetic of narrow integers is that of int */
    for (int i = 0; i < 2; i++) v[i] = t_cast(c, v[i], TPU_I32);
  val d = gcd(c, v[0], v[1]), none = P_CMPC(EQ, d, 0);
  val q = P_DIV(v[0], P_SEL(none, P_NUM(d, 1), d));
  RET(t_abs(c, P_SEL(none, P_NUM(d, 0), P_MUL(q, v[1]))));
}
