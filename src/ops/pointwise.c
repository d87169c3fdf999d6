#include "ops/pointwise.h"

#include "ops/accept.h"

#include <math.h>

static void prepare(op_ctx *c, val *v, int n, bool to_float) {
  if (ir_failed(G)) return;
  tpu_dtype d = t_result_type(c, v, n);
  if (to_float && !ir_is_float(d) && !ir_is_complex(d)) d = op_default_dtype(c);
  tpu_dtype m = t_opmath(d);
  for (int i = 0; i < n; i++) v[i] = t_cast(c, v[i]->weak ? v[i] : t_cast(c, v[i], d), m);
  t_broadcast(c, v, n);
}

void p_math(op_ctx *c, val *v, int n) { prepare(c, v, n, false); }
void p_float(op_ctx *c, val *v, int n) { prepare(c, v, n, true); }

val p_no_kernel(op_ctx *c, const char *kernel, val x) {
  return op_fail(c, TPU_ERR_NOT_IMPLEMENTED, "\"%s\" not implemented for '%s'", kernel,
                 accept_dtype_name((tpu_dtype)x->dtype));
}

bool p_need_float(op_ctx *c, const char *kernel, val x) {
  if (!ir_failed(G) && p_is_int(x)) p_no_kernel(c, kernel, x);
  return !ir_failed(G);
}

bool p_need_no_bool(op_ctx *c, const char *kernel, val x) {
  if (!ir_failed(G) && x->dtype == TPU_BOOL) p_no_kernel(c, kernel, x);
  return !ir_failed(G);
}

val p_only_float(op_ctx *c, const char *kernel, val x) { return p_need_float(c, kernel, x) ? t_float(c, x) : x; }

/* The imaginary part of the sum is one of many, 2 pi apart: which one depends on the order
 * of the additions, so PyTorch's is kept. In a running sum a is the sum so far. */
val p_logaddexp_complex(op_ctx *c, val a, val b) {
  val ar = ir_unary(G, IR_REAL, a), br = ir_unary(G, IR_REAL, b), below = ir_compare(G, IR_LT, br, ar);
  val lo = ir_select(G, below, b, a), hi = ir_select(G, below, a, b), hr = ir_select(G, below, ar, br);
  val sum = ir_binary(G, IR_ADD, hi, ir_unary(G, IR_LOG1P, ir_unary(G, IR_EXP, ir_binary(G, IR_SUB, lo, hi))));
  val up = ir_unary(G, IR_LOG, ir_binary(G, IR_ADD, ir_unary(G, IR_EXP, lo), ir_unary(G, IR_EXP, hi)));
  val zero = t_like(c, ar, 0), infinite = ir_unary(G, IR_NOT, ir_unary(G, IR_IS_FINITE, ar));
  val same = ir_binary(G, IR_AND, infinite, ir_compare(G, IR_EQ, ar, br));
  sum = ir_select(G, same, ir_select(G, ir_compare(G, IR_LT, hr, zero), lo, up), sum);
  /* one is infinitely more: the other adds nothing, whatever its angle is */
  val apart = ir_binary(G, IR_SUB, ir_select(G, below, br, ar), hr);
  sum = ir_select(G, ir_compare(G, IR_EQ, apart, t_like(c, ar, -__builtin_inf())), hi, sum);
  val nan = ir_binary(G, IR_OR, ir_compare(G, IR_NE, a, a), ir_compare(G, IR_NE, b, b)),
      bad = t_like(c, ar, __builtin_nan(""));
  return ir_select(G, nan, ir_binary(G, IR_COMPLEX, bad, bad), sum);
}

val p_poly(op_ctx *c, val x, const double *coef, int n) {
  val r = P_NUM(x, coef[n - 1]);
  for (int i = n - 2; i >= 0; i--) r = P_ADDC(P_MUL(r, x), coef[i]);
  return r;
}

val p_chebyshev(op_ctx *c, val x, const double *coef, int n) {
  val twice = P_ADD(x, x), b1 = P_NUM(x, 0), b2 = b1;
  for (int i = n - 1; i > 0; i--) {
    val b = P_SUB(P_ADDC(P_MUL(twice, b1), coef[i]), b2);
    b2 = b1;
    b1 = b;
  }
  return P_SUB(P_ADDC(P_MUL(x, b1), coef[0]), b2);
}

val p_isnan(op_ctx *c, val x) {
  if (p_is_int(x)) return t_zeros(c, TPU_BOOL, x->ndim, x->dims);
  return P_CMP(NE, x, x);
}

val p_isinf(op_ctx *c, val x) {
  if (p_is_int(x)) return t_zeros(c, TPU_BOOL, x->ndim, x->dims);
  if (p_is_complex(x)) return P_OR(p_isinf(c, P_UN(REAL, x)), p_isinf(c, P_UN(IMAG, x)));
  return P_CMPC(EQ, P_UN(ABS, x), INFINITY);
}

/* Through float32, which keeps the sign: not every device can look at the bits of a float64. */
val p_signbit(op_ctx *c, val x) {
  if (x->dtype == TPU_BOOL || ir_is_unsigned((tpu_dtype)x->dtype)) return t_zeros(c, TPU_BOOL, x->ndim, x->dims);
  if (p_is_float(x)) x = ir_bitcast(G, ir_convert(G, x, TPU_F32), TPU_I32);
  return P_CMPC(LT, x, 0);
}

val p_trunc(op_ctx *c, val x) {
  if (p_is_int(x)) return x;
  return P_SEL(P_CMPC(LT, x, 0), P_UN(CEIL, x), P_UN(FLOOR, x));
}

val p_sin_pi(op_ctx *c, val x) {
  /* x = n + r, |r| <= 1/2: sin(pi x) = (-1)^n sin(pi r) */
  val n = P_UN(ROUND_EVEN, x), r = P_SUB(x, n);
  val half = P_MULC(n, 0.5), odd = P_CMP(NE, half, P_UN(FLOOR, half));
  val s = P_UN(SIN, P_MULC(r, M_PI));
  return P_SEL(odd, P_UN(NEG, s), s);
}

/* ---- division with rounding ------------------------------------------------------------------------------------ */

/* A nonzero remainder of the other sign than the divisor's. */
static val wrong_sign(op_ctx *c, val rem, val b) {
  val zero = P_NUM(b, 0);
  val differ = P_CMP(NE, P_CMP(LT, rem, zero), P_CMP(LT, b, zero));
  return P_AND(P_CMP(NE, rem, zero), differ);
}

val p_trunc_div(op_ctx *c, val a, val b) { return p_trunc(c, P_DIV(a, b)); }

val p_floor_div(op_ctx *c, val a, val b) {
  tpu_dtype d = (tpu_dtype)a->dtype;
  if (ir_is_unsigned(d)) return p_trunc_div(c, a, b);
  val rem = ir_binary(G, IR_REM, a, b), wrong = wrong_sign(c, rem, b), zero = P_NUM(a, 0);
  if (p_is_int(a)) {
    val q = P_DIV(a, b);
    return P_SEL(wrong, P_ADDC(q, -1), q);
  }
  val q = P_DIV(P_SUB(a, rem), b), exact = P_DIV(a, b);
  q = P_SEL(wrong, P_ADDC(q, -1), q);
  val down = P_UN(FLOOR, q);
  down = P_SEL(P_CMPC(GT, P_SUB(q, down), 0.5), P_ADDC(down, 1), down);
  val signed_zero = P_SEL(p_signbit(c, exact), P_NUM(a, -0.0), zero);
  val r = P_SEL(P_CMP(EQ, q, zero), signed_zero, down);
  return P_SEL(P_CMP(EQ, b, zero), exact, r);
}

val p_remainder(op_ctx *c, val a, val b) {
  val rem = ir_binary(G, IR_REM, a, b);
  if (ir_is_unsigned((tpu_dtype)a->dtype)) return rem;
  return P_SEL(wrong_sign(c, rem, b), P_ADD(rem, b), rem);
}
