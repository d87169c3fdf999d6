/* Element-wise operators of one tensor. */
#include <math.h>

#include "ops/pointwise.h"

#define FLOAT_UNARY(id, aten, op) \
  OP(id, aten) { RET(P_UN(op, t_float(c, T(0)))); }

FLOAT_UNARY(acos, "aten::acos", ACOS)
FLOAT_UNARY(acosh, "aten::acosh", ACOSH)
FLOAT_UNARY(asin, "aten::asin", ASIN)
FLOAT_UNARY(asinh, "aten::asinh", ASINH)
FLOAT_UNARY(atanh, "aten::atanh", ATANH)
FLOAT_UNARY(cos, "aten::cos", COS)
FLOAT_UNARY(erf, "aten::erf", ERF)
FLOAT_UNARY(erfc, "aten::erfc", ERFC)
FLOAT_UNARY(erfinv, "aten::erfinv", ERFINV)
FLOAT_UNARY(exp, "aten::exp", EXP)
FLOAT_UNARY(expm1, "aten::expm1", EXPM1)
FLOAT_UNARY(log, "aten::log", LOG)
FLOAT_UNARY(log1p, "aten::log1p", LOG1P)
FLOAT_UNARY(rsqrt, "aten::rsqrt", RSQRT)
FLOAT_UNARY(sigmoid, "aten::sigmoid", LOGISTIC)
FLOAT_UNARY(sin, "aten::sin", SIN)
FLOAT_UNARY(sqrt, "aten::sqrt", SQRT)
FLOAT_UNARY(tan, "aten::tan", TAN)
FLOAT_UNARY(tanh, "aten::tanh", TANH)

/* e^|x| / 2 -+ e^-|x| / 2 through e^(|x|/2), which is exact in its argument and does not overflow before the result:
 * XLA takes e^(x - log 2), whose argument is rounded, at 1e-6 for large float32. */
static val half_exponentials(op_ctx *c, val x, bool minus) {
  val e = P_UN(EXP, P_MULC(P_UN(ABS, x), 0.5)), rise = P_MUL(P_MULC(e, 0.5), e),
      fall = P_DIV(P_NUM(x, 0.5), P_MUL(e, e));
  return minus ? P_SUB(rise, fall) : P_ADD(rise, fall);
}
OP(cosh, "aten::cosh") {
  val x = t_float(c, T(0));
  RET(p_is_complex(x) ? P_UN(COSH, x) : half_exponentials(c, x, false));
}
OP(sinh, "aten::sinh") {
  val x = t_float(c, T(0));
  val y = P_UN(SINH, x); /* near 0 the two would cancel */
  if (p_is_complex(x)) RET(y);
  else RET(P_SEL(P_CMPC(LT, P_UN(ABS, x), 1), y, P_MUL(P_UN(SIGN, x), half_exponentials(c, x, true))));
}

OP(abs, "aten::abs") {
  val x = T(0);
  if (p_need_no_bool(c, "abs_cpu", x)) RET(t_abs(c, x));
}
OP_UNARY(neg, "aten::neg", t_neg)
OP(bitwise_not, "aten::bitwise_not") {
  val x = T(0);
  RET(p_is_int(x) ? t_not(c, x) : p_no_kernel(c, "bitwise_not_cpu", x));
}

/* The compiler of one CPU plugin makes wrong code of atan2(x, 1), which is how atan is lowered, when it sees the 1. */
OP(atan, "aten::atan") {
  val x = t_float(c, T(0));
  RET(p_is_complex(x) ? P_UN(ATAN, x) : ir_binary(G, IR_ATAN2, x, P_SEL(p_isnan(c, x), x, P_NUM(x, 1))));
}

OP(exp2, "aten::exp2") {
  val x = t_float(c, T(0));
  RET(p_is_complex(x) ? P_UN(EXP, P_MULC(x, M_LN2)) : ir_binary(G, IR_POW, P_NUM(x, 2), x));
}

/* log(x) / log(base), with whole results for whole powers of the base. */
static val log_base(op_ctx *c, val x, double base) {
  val r = P_DIV(P_UN(LOG, x), P_NUM(x, log(base)));
  if (p_is_complex(x)) return r;
  val n = P_UN(ROUND_EVEN, r), power;
  if (base == 2 && x->dtype == TPU_F32) { /* 2^n by its exponent field */
    val e = P_ADDC(ir_convert(G, n, TPU_I32), 127);
    power = ir_bitcast(G, ir_binary(G, IR_SHL, e, P_NUM(e, 23)), TPU_F32);
  } else {
    power = ir_binary(G, IR_POW, P_NUM(x, base), n);
  }
  return P_SEL(P_CMP(EQ, power, x), n, r);
}
OP(log2, "aten::log2") { RET(log_base(c, t_float(c, T(0)), 2)); }
OP(log10, "aten::log10") { RET(log_base(c, t_float(c, T(0)), 10)); }

OP(reciprocal, "aten::reciprocal") {
  val x = t_float(c, T(0));
  RET(P_DIV(P_NUM(x, 1), x));
}

OP(square, "aten::square") {
  val x = T(0);
  RET(t_mul(c, x, x));
}

OP(sinc, "aten::sinc") {
  val x = t_float(c, T(0)), y = P_MULC(x, M_PI);
  RET(P_SEL(P_CMPC(EQ, x, 0), P_NUM(x, 1), P_DIV(P_UN(SIN, y), y)));
}

OP(deg2rad, "aten::deg2rad") {
  val x = t_float(c, T(0));
  RET(P_MULC(x, M_PI / 180));
}
OP(rad2deg, "aten::rad2deg") {
  val x = t_float(c, T(0));
  RET(P_MULC(x, 180 / M_PI));
}

/* ---- rounding and sign ----------------------------------------------------------------------------------------- */

static val rounded(op_ctx *c, const char *kernel, ir_opcode op, val x) {
  return !p_need_no_bool(c, kernel, x) || p_is_int(x) ? x : t_unary(c, op, x);
}
OP(ceil, "aten::ceil") { RET(rounded(c, "ceil_vml_cpu", IR_CEIL, T(0))); }
OP(floor, "aten::floor") { RET(rounded(c, "floor_vml_cpu", IR_FLOOR, T(0))); }
OP(round, "aten::round") { RET(rounded(c, "round_vml_cpu", IR_ROUND_EVEN, T(0))); }
OP(trunc, "aten::trunc") {
  val x = T(0);
  if (p_need_no_bool(c, "trunc_vml_cpu", x)) RET(p_trunc(c, x));
}

OP(round_decimals, "aten::round.decimals") {
  val x = T(0);
  int64_t n = INT(1);
  if (p_is_int(x)) { /* whole already, and PyTorch refuses decimals for them */
    if (n) op_fail(c, TPU_ERR_NOT_IMPLEMENTED, "round with decimals = %lld of an integer tensor", (long long)n);
    RET(x);
    return;
  }
  x = t_float(c, x);
  val scale = P_NUM(x, pow(10, (double)(n < 0 ? -n : n)));
  val y = P_UN(ROUND_EVEN, n < 0 ? P_DIV(x, scale) : P_MUL(x, scale));
  RET(n == 0 ? y : n < 0 ? P_MUL(y, scale) : P_DIV(y, scale));
}

OP(frac, "aten::frac") {
  val x = T(0);
  if (p_need_float(c, "frac_cpu", x)) RET(t_sub(c, x, p_trunc(c, x)));
}

static val sign(op_ctx *c, val x) { /* NaN has sign 0 */
  if (x->dtype == TPU_BOOL) return x;
  val zero = P_NUM(x, 0);
  val positive = t_cast(c, P_CMP(GT, x, zero), (tpu_dtype)x->dtype);
  if (ir_is_unsigned((tpu_dtype)x->dtype)) return positive;
  return P_SUB(positive, t_cast(c, P_CMP(LT, x, zero), (tpu_dtype)x->dtype));
}
OP(sign, "aten::sign") { RET(sign(c, T(0))); }

OP(sgn, "aten::sgn") {
  val x = T(0);
  RET(p_is_complex(x) ? P_UN(SIGN, x) : sign(c, x));
}

OP(signbit, "aten::signbit") { RET(p_signbit(c, T(0))); }

/* ---- tests ----------------------------------------------------------------------------------------------------- */

OP(isnan, "aten::isnan") { RET(p_isnan(c, T(0))); }
OP(isinf, "aten::isinf") { RET(p_isinf(c, T(0))); }

static val is_value(op_ctx *c, val x, double v) {
  return p_is_int(x) ? t_zeros(c, TPU_BOOL, x->ndim, x->dims) : P_CMPC(EQ, x, v);
}
OP(isposinf, "aten::isposinf") { RET(is_value(c, T(0), INFINITY)); }
OP(isneginf, "aten::isneginf") { RET(is_value(c, T(0), -INFINITY)); }

OP(logical_not, "aten::logical_not") { RET(t_not(c, t_cast(c, T(0), TPU_BOOL))); }

static double max_finite(tpu_dtype d) {
  switch (d) {
    case TPU_F64: return 0x1.fffffffffffffp1023;
    case TPU_F16: return 65504;
    case TPU_BF16: return 0x1.fep127;
    case TPU_F8E5M2:
    case TPU_F8E5M2FNUZ: return 57344;
    case TPU_F8E4M3FN: return 448;
    case TPU_F8E4M3FNUZ: return 240;
    case TPU_F8E8M0FNU: return 0x1p127;
    default: return 0x1.fffffep127;
  }
}

static val nan_to_num(op_ctx *c, val x) {
  if (p_is_int(x)) return x;
  tpu_dtype d = (tpu_dtype)x->dtype;
  if (ir_is_complex(d)) return ir_binary(G, IR_COMPLEX, nan_to_num(c, P_UN(REAL, x)), nan_to_num(c, P_UN(IMAG, x)));
  val nan = HAS(1) ? t_cast(c, S(1), d) : t_scalar(c, d, 0);
  val high = HAS(2) ? t_cast(c, S(2), d) : t_scalar(c, d, max_finite(d));
  val low = HAS(3) ? t_cast(c, S(3), d) : t_scalar(c, d, -max_finite(d));
  val v[3] = {nan, high, low};
  for (int i = 0; i < 3; i++) v[i] = t_broadcast_to(c, v[i], x->ndim, x->dims);
  val r = P_SEL(P_CMPC(EQ, x, INFINITY), v[1], P_SEL(P_CMPC(EQ, x, -INFINITY), v[2], x));
  return P_SEL(p_isnan(c, x), v[0], r);
}
OP(nan_to_num, "aten::nan_to_num") { RET(nan_to_num(c, T(0))); }

/* ---- complex --------------------------------------------------------------------------------------------------- */

static val conj_physical(op_ctx *c, val x) {
  return p_is_complex(x) ? ir_binary(G, IR_COMPLEX, P_UN(REAL, x), P_UN(NEG, P_UN(IMAG, x))) : x;
}
OP_UNARY(conj_physical, "aten::_conj_physical", conj_physical)
OP_UNARY(conj_physical_out, "aten::conj_physical", conj_physical) /* its in-place and out= forms arrive */

OP(angle, "aten::angle") {
  val x = T(0);
  if (p_is_complex(x)) {
    RET(ir_binary(G, IR_ATAN2, P_UN(IMAG, x), P_UN(REAL, x)));
    return;
  }
  x = t_float(c, x);
  RET(P_SEL(p_isnan(c, x), x, P_SEL(P_CMPC(LT, x, 0), P_NUM(x, M_PI), P_NUM(x, 0))));
}

/* ---- parts of a float ------------------------------------------------------------------------------------------ */

/* x = mantissa * 2^exponent, 0.5 <= |mantissa| < 1 */
OP(frexp, "aten::frexp.Tensor") {
  val x = t_float(c, T(0));
  bool wide = x->dtype == TPU_F64;
  tpu_dtype bits = wide ? TPU_I64 : TPU_I32;
  int fraction = wide ? 52 : 23, bias = wide ? 1022 : 126;
  double smallest = wide ? 0x1p-1022 : 0x1p-126;
  val tiny = P_CMPC(LT, P_UN(ABS, x), smallest); /* subnormals are scaled up by an exact power of two */
  val scaled = P_SEL(tiny, P_MULC(x, wide ? 0x1p54 : 0x1p24), x);
  val word = ir_bitcast(G, scaled, bits);
  val field = P_AND(ir_binary(G, IR_SHR_L, word, P_NUM(word, fraction)), P_NUM(word, wide ? 2047 : 255));
  val e = P_SUB(P_ADDC(field, -bias), P_SEL(tiny, P_NUM(word, wide ? 54 : 24), P_NUM(word, 0)));
  val low =
      P_AND(word, ir_binary(G, IR_OR, ir_const_i(G, bits, (int64_t)(wide ? 1ull << 63 : 1ull << 31), x->ndim, x->dims),
                            ir_const_i(G, bits, ((int64_t)1 << fraction) - 1, x->ndim, x->dims)));
  val m =
      ir_bitcast(G, P_OR(low, ir_const_i(G, bits, (int64_t)bias << fraction, x->ndim, x->dims)), (tpu_dtype)x->dtype);
  val same = P_OR(P_CMPC(EQ, x, 0), t_not(c, P_UN(IS_FINITE, x)));
  RETN(0, P_SEL(same, x, m));
  RETN(1, t_cast(c, P_SEL(same, P_NUM(e, 0), e), TPU_I32));
}
