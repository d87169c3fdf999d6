/* Special functions: gamma and zeta functions, Bessel functions, and relatives of erf. */
#include <math.h>

#include "ops/pointwise.h"
#include "ops/special_tables.h"

/* sum of c[k] T_k(t): the coefficients that matter in x's dtype. */
static val series(op_ctx *c, val t, const double *coef, int n) {
  double size = 0, eps = t->dtype == TPU_F64 ? 1e-17 : 1e-9;
  for (int i = 0; i < n; i++) size = fmax(size, fabs(coef[i]));
  while (n > 1 && fabs(coef[n - 1]) < eps * size) n--;
  return p_chebyshev(c, t, coef, n);
}
#define SERIES(t, table) series(c, t, table, (int)(sizeof table / sizeof *table))

static val inverse(op_ctx *c, val x) { return P_DIV(P_NUM(x, 1), x); }
/* v / x * scale - 1: the variable of a table that reaches to infinity */
static val far_variable(op_ctx *c, val x, double twice_low) { return P_ADDC(P_DIV(P_NUM(x, twice_low), x), -1); }

/* ---- gamma functions --------------------------------------------------------------------------------------------- */

OP(lgamma, "aten::lgamma") {
  val x = t_float(c, T(0));
  RET(P_UN(LGAMMA, x));
}

/* (self, p): the sum of lgamma(x - i / 2), i < p, and log(pi) p (p - 1) / 4 */
OP(mvlgamma, "aten::mvlgamma") {
  int64_t p = INT(1);
  val x = t_float(c, T(0)), sum = P_NUM(x, 0.25 * log(M_PI) * (double)(p * (p - 1)));
  if (p < 1) op_fail(c, TPU_ERR_RUNTIME, "p has to be greater than or equal to 1");
  for (int64_t i = 0; i < p && !ir_failed(G); i++) sum = P_ADD(sum, P_UN(LGAMMA, P_ADDC(x, -0.5 * (double)i)));
  RET(sum);
}

static val digamma(op_ctx *c, val x) {
  val pole = P_SEL(p_signbit(c, x), P_NUM(x, INFINITY), P_NUM(x, -INFINITY));
  return P_SEL(P_CMPC(EQ, x, 0), pole, P_UN(DIGAMMA, x));
}
OP(digamma, "aten::digamma") { RET(digamma(c, t_float(c, T(0)))); }

static val trigamma(op_ctx *c, val x) {
  val mirrored = P_CMPC(LT, x, 0.5), s = P_UN(SIN, P_MULC(x, M_PI));
  val y = P_SEL(mirrored, P_SUB(P_NUM(x, 1), x), x), sum = P_NUM(x, 0);
  for (int i = 0; i < 9; i++) {
    sum = P_ADD(sum, inverse(c, P_MUL(y, y)));
    y = P_ADDC(y, 1);
  }
  static const double bernoulli[] = {1.0 / 6, -1.0 / 30, 1.0 / 42, -1.0 / 30, 5.0 / 66, -691.0 / 2730, 7.0 / 6};
  val i2 = inverse(c, P_MUL(y, y));
  val tail = P_ADD(P_ADDC(P_DIV(P_NUM(y, 0.5), y), 1), P_MUL(i2, p_poly(c, i2, bernoulli, 7)));
  sum = P_ADD(sum, P_DIV(tail, y));
  return P_SEL(mirrored, P_SUB(P_DIV(P_NUM(x, M_PI * M_PI), P_MUL(s, s)), sum), sum);
}

/* Hurwitz zeta for s > 1, q > 0: nine terms, then the Euler-Maclaurin formula. */
static val zeta_positive(op_ctx *c, val s, val q) {
  val neg = P_UN(NEG, s), sum = ir_binary(G, IR_POW, q, neg), a = q;
  for (int i = 0; i < 9; i++) {
    a = P_ADDC(a, 1);
    sum = P_ADD(sum, ir_binary(G, IR_POW, a, neg));
  }
  val last = ir_binary(G, IR_POW, a, neg); /* counted in full above: the formula takes half of it */
  sum = P_ADD(sum, P_SUB(P_DIV(P_MUL(last, a), P_ADDC(s, -1)), P_MULC(last, 0.5)));
  /* B_2j / (2j)! */
  static const double coef[] = {
      1.0 / 12, -1.0 / 720, 1.0 / 30240, -1.0 / 1209600, 1.0 / 47900160, -691.0 / 1307674368000.0, 1.0 / 74724249600.0};
  val term = P_DIV(P_MUL(last, s), a), i2 = inverse(c, P_MUL(a, a)), tail = P_NUM(s, 0);
  for (int j = 0; j < 7; j++) {
    tail = P_ADD(tail, P_MULC(term, coef[j]));
    term = P_MUL(P_MUL(term, i2), P_MUL(P_ADDC(s, 2 * j + 1), P_ADDC(s, 2 * j + 2)));
  }
  /* where the terms are nothing beside the sum, the formula's corrections may overflow: leave them out */
  val small = P_CMP(LE, last, P_MULC(sum, 1e-20));
  return P_SEL(small, sum, P_ADD(sum, tail));
}

static val zeta(op_ctx *c, val s, val q) {
  /* q = f - n with 0 < f < 1, s whole: the n terms before f are (-1)^s times those of 1 - f to n - f */
  val down = P_UN(FLOOR, q), f = P_SUB(q, down), zero = P_NUM(q, 0), one = P_NUM(q, 1);
  val negative = P_CMP(LT, q, zero), rest = P_SUB(P_UN(CEIL, q), q); /* 1 - f, exact beside a pole */
  val half = P_MULC(s, 0.5), odd = P_CMP(NE, half, P_UN(FLOOR, half));
  val before =
      P_SUB(zeta_positive(c, s, P_SEL(negative, rest, one)), zeta_positive(c, s, P_SEL(negative, P_SUB(one, q), one)));
  val r = zeta_positive(c, s, P_SEL(negative, f, q));
  r = P_SEL(negative, P_ADD(r, P_SEL(odd, P_UN(NEG, before), before)), r);
  val pole = P_AND(P_CMP(LE, q, zero), P_CMP(EQ, q, down));
  val undefined = P_AND(negative, P_CMP(NE, s, P_UN(FLOOR, s)));
  undefined = P_OR(undefined, P_OR(p_isnan(c, s), p_isnan(c, q)));
  r = P_SEL(undefined, P_NUM(q, NAN), r);
  r = P_SEL(pole, P_NUM(q, INFINITY), r);
  r = P_SEL(P_CMPC(EQ, s, 1), P_NUM(q, INFINITY), r);
  return P_SEL(P_CMPC(LT, s, 1), P_NUM(q, NAN), r);
}

OP(zeta, "aten::special_zeta") {
  val v[2] = {op_any(c, 0), op_any(c, 1)};
  p_float(c, v, 2);
  if (!ir_failed(G)) RET(zeta(c, v[0], v[1]));
}

OP(polygamma, "aten::polygamma") {
  int64_t n = INT(0);
  val x = t_float(c, T(1));
  if (n < 0) op_fail(c, TPU_ERR_RUNTIME, "polygamma(n, x) does not support negative n.");
  if (ir_failed(G)) return;
  if (n == 0) RET(digamma(c, x));
  else if (n == 1) RET(trigamma(c, x));
  else RET(P_MULC(zeta(c, P_NUM(x, (double)n + 1), x), (n % 2 ? 1 : -1) * tgamma((double)n + 1)));
}

/* Regularised incomplete gamma functions P(a, x) and Q(a, x) = 1 - P, in float64: the prefactor
 * exp(a log x - x - lgamma a) needs it. Where x <= max(a, 1) P by its power series, elsewhere Q by its continued
 * fraction; for large a Temme's uniform expansion gives both. */
enum { GAMMA_LARGE = 2000, GAMMA_STEPS = 10000 };

static val gamma_series(op_ctx *c, val a, val x, val active) {
  val one = P_NUM(x, 1), init[4] = {t_scalar(c, TPU_I32, 0), a, one, one}, at[4],
      out[4]; /* count, denominator, term, sum */
  ir_while_begin(G, init, 4, at);
  val going = P_AND(active, P_CMP(GT, at[2], P_MULC(at[3], 0x1p-54)));
  ir_while_body(G, P_AND(P_CMPC(LT, at[0], GAMMA_STEPS), t_reduce(c, IR_OR, going, NULL, 0, false)), at);
  val r = P_ADDC(at[1], 1), term = P_MUL(at[2], P_DIV(x, r));
  val next[4] = {P_ADDC(at[0], 1), r, term, P_ADD(at[3], term)};
  ir_while_end(G, next, out);
  return P_DIV(out[3], a);
}

static val gamma_fraction(op_ctx *c, val a, val x, val active) { /* Lentz's method */
  val b0 = P_SUB(P_ADDC(x, 1), a), d0 = inverse(c, b0);          /* b0 >= 1 where active */
  val init[6] = {
      t_scalar(c, TPU_I32, 1), b0, P_NUM(x, 1e300), d0, d0, P_NUM(x, 2)}; /* i, b, c, d, value, last factor */
  val at[6], out[6];
  ir_while_begin(G, init, 6, at);
  val going = P_AND(active, P_CMPC(GT, P_UN(ABS, P_ADDC(at[5], -1)), 0x1p-52));
  ir_while_body(G, P_AND(P_CMPC(LT, at[0], GAMMA_STEPS), t_reduce(c, IR_OR, going, NULL, 0, false)), at);
  val i = t_broadcast_to(c, t_cast(c, at[0], TPU_F64), x->ndim, x->dims);
  val an = P_MUL(i, P_SUB(a, i)), b = P_ADDC(at[1], 2);
  val d = P_ADD(P_MUL(an, at[3]), b), q = P_ADD(b, P_DIV(an, at[2]));
  d = inverse(c, P_SEL(P_CMPC(EQ, d, 0), P_NUM(d, 1e-300), d));
  q = P_SEL(P_CMPC(EQ, q, 0), P_NUM(q, 1e-300), q);
  val step = P_MUL(d, q), next[6] = {P_ADDC(at[0], 1), b, q, d, P_MUL(at[4], step), step};
  ir_while_end(G, next, out);
  return out[4];
}

/* Q (upper) or P for a > GAMMA_LARGE: erfc(+-eta sqrt(a / 2)) / 2 +- the first two terms of the remainder. */
static val gamma_temme(op_ctx *c, val a, val x, bool upper) {
  static const double c0[] = {-1.0 / 3, 1.0 / 12, -2.0 / 135, 1.0 / 864, 1.0 / 2835, -139.0 / 777600};
  static const double c1[] = {-1.0 / 540, -1.0 / 288, 1.0 / 378, -77.0 / 77760, 1.0 / 4860};
  val mu = P_SUB(P_DIV(x, a), P_NUM(a, 1)), phi = P_SUB(mu, P_UN(LOG1P, mu));
  val eta = P_UN(SQRT, P_MULC(t_max(c, phi, P_NUM(phi, 0)), 2));
  eta = P_SEL(P_CMPC(LT, mu, 0), P_UN(NEG, eta), eta);
  val near = P_CMPC(LT, P_UN(ABS, eta), 0.1), im = inverse(c, mu), ie = inverse(c, eta);
  val k0 = P_SEL(near, p_poly(c, eta, c0, 6), P_SUB(im, ie));
  /* 1/eta^3 - 1/mu^3 - 1/mu^2 - 1/(12 mu) */
  val far1 = P_SUB(P_MUL(ie, P_MUL(ie, ie)), P_MUL(im, P_ADDC(P_MUL(im, P_ADDC(im, 1)), 1.0 / 12)));
  val k1 = P_SEL(near, p_poly(c, eta, c1, 5), far1);
  val r = P_MUL(P_ADD(k0, P_DIV(k1, a)), P_DIV(P_UN(EXP, P_UN(NEG, P_MUL(a, phi))), P_UN(SQRT, P_MULC(a, 2 * M_PI))));
  val z = P_MUL(eta, P_UN(SQRT, P_MULC(a, 0.5)));
  val half = P_MULC(P_UN(ERFC, upper ? z : P_UN(NEG, z)), 0.5);
  return upper ? P_ADD(half, r) : P_SUB(half, r);
}

static void incomplete_gamma(op_ctx *c, bool upper) {
  val v[2] = {op_any(c, 0), op_any(c, 1)};
  p_math(c, v, 2);
  if (!p_need_float(c, upper ? "igammac_cpu" : "igamma_cpu", v[0])) return;
  val a0 = t_cast(c, v[0], TPU_F64), x0 = t_cast(c, v[1], TPU_F64), zero = P_NUM(a0, 0), one = P_NUM(a0, 1);
  val regular = P_AND(P_AND(P_CMP(GT, a0, zero), P_CMP(GT, x0, zero)), P_AND(P_UN(IS_FINITE, a0), P_UN(IS_FINITE, x0)));
  val large = P_AND(regular, P_CMPC(GT, a0, GAMMA_LARGE)), small = P_AND(regular, t_not(c, large));
  val a = P_SEL(small, a0, one), x = P_SEL(small, x0, one);
  val by_series = P_OR(P_CMP(LE, x, one), P_CMP(LE, x, a));
  val factor = P_UN(EXP, P_SUB(P_SUB(P_MUL(a, P_UN(LOG, x)), x), P_UN(LGAMMA, a)));
  val lower = P_MUL(factor, gamma_series(c, a, x, by_series));
  val rest = P_MUL(factor, gamma_fraction(c, a, x, t_not(c, by_series)));
  val res = upper ? P_SEL(by_series, P_SUB(one, lower), rest) : P_SEL(by_series, lower, P_SUB(one, rest));
  res = P_SEL(large, gamma_temme(c, P_SEL(large, a0, one), P_SEL(large, x0, one), upper), res);

  val at_zero = upper ? one : zero, at_inf = upper ? zero : one, nan = P_NUM(a0, NAN);
  val inf_a = p_isinf(c, a0), inf_x = p_isinf(c, x0);
  res = P_SEL(inf_x, at_inf, res);
  res = P_SEL(inf_a, P_SEL(inf_x, nan, at_zero), res);
  res = P_SEL(P_CMP(EQ, x0, zero), at_zero, res);
  res = P_SEL(P_CMP(EQ, a0, zero), P_SEL(P_CMP(GT, x0, zero), at_inf, nan), res);
  val bad = P_OR(P_OR(P_CMP(LT, a0, zero), P_CMP(LT, x0, zero)), P_OR(p_isnan(c, a0), p_isnan(c, x0)));
  RET(t_cast(c, P_SEL(bad, nan, res), (tpu_dtype)v[0]->dtype));
}
OP(igamma, "aten::igamma") { incomplete_gamma(c, false); }
OP(igammac, "aten::igammac") { incomplete_gamma(c, true); }

/* ---- relatives of erf and log ------------------------------------------------------------------------------------ */

static val erfcx(op_ctx *c, val x) {
  val a = P_UN(ABS, x), t = P_DIV(P_ADDC(a, -3.75), P_ADDC(a, 3.75));
  val y = P_DIV(SERIES(P_SEL(p_isinf(c, a), P_NUM(x, 1), t), ERFCX), P_ADDC(P_MULC(a, 2), 1));
  return P_SEL(P_CMPC(LT, x, 0), P_SUB(P_MULC(P_UN(EXP, P_MUL(x, x)), 2), y), y);
}
OP(erfcx, "aten::special_erfcx") { RET(erfcx(c, t_float(c, T(0)))); }

OP(log_ndtr, "aten::special_log_ndtr") {
  val x = t_float(c, T(0)), t = P_MULC(x, M_SQRT1_2);
  val far = P_SUB(P_UN(LOG, P_MULC(erfcx(c, P_UN(NEG, t)), 0.5)), P_MUL(t, t));
  val near = P_UN(LOG1P, P_MULC(P_UN(ERFC, t), -0.5));
  RET(P_SEL(P_CMPC(LT, x, -1), far, near));
}

OP(ndtri, "aten::special_ndtri") {
  val p = t_float(c, T(0)), q = P_SUB(P_NUM(p, 1), p), low = P_MIN(p, q);
  val middle = P_MULC(P_UN(ERFINV, P_ADDC(P_MULC(p, 2), -1)), M_SQRT2);
  val s = P_UN(SQRT, P_MULC(P_UN(LOG, low), -2)), u = P_DIV(P_ADDC(inverse(c, s), -0.2625), P_NUM(p, 0.2375));
  val tail = P_ADD(s, SERIES(u, NDTRI_TAIL));
  tail = P_SEL(P_CMPC(LT, p, 0.5), P_UN(NEG, tail), tail);
  val r = P_SEL(P_CMPC(LT, low, 0.13), tail, middle);
  r = P_SEL(P_CMPC(EQ, p, 0), P_NUM(p, -INFINITY), P_SEL(P_CMPC(EQ, p, 1), P_NUM(p, INFINITY), r));
  RET(P_SEL(P_AND(P_CMPC(GE, p, 0), P_CMPC(LE, p, 1)), r, P_NUM(p, NAN)));
}

OP(entr, "aten::special_entr") {
  val x = t_float(c, T(0)), r = P_UN(NEG, P_MUL(x, P_UN(LOG, x)));
  r = P_SEL(P_CMPC(EQ, x, 0), P_NUM(x, 0), r);
  RET(P_SEL(P_CMPC(LT, x, 0), P_NUM(x, -INFINITY), r));
}

/* ---- modified Bessel functions ------------------------------------------------------------------------------------
 */

/* exp(-|x|) I_order(x) */
static val scaled_i(op_ctx *c, val x, int order) {
  val a = P_UN(ABS, x), near_t = P_ADDC(P_MULC(a, 0.25), -1), far_t = far_variable(c, a, 16);
  val near = order ? P_MUL(SERIES(near_t, I1E_NEAR), a) : SERIES(near_t, I0E_NEAR);
  val far = P_DIV(order ? SERIES(far_t, I1E_FAR) : SERIES(far_t, I0E_FAR), P_UN(SQRT, a));
  val r = P_SEL(P_CMPC(LE, a, 8), near, far);
  return order ? P_SEL(P_CMPC(LT, x, 0), P_UN(NEG, r), r) : r;
}

static val unscaled_i(op_ctx *c, val x, int order) { return P_MUL(P_UN(EXP, P_UN(ABS, x)), scaled_i(c, x, order)); }
OP(i0, "aten::i0") { RET(unscaled_i(c, t_float(c, T(0)), 0)); }
OP(i0e, "aten::special_i0e") { RET(scaled_i(c, t_float(c, T(0)), 0)); }
OP(i1, "aten::special_i1") { RET(unscaled_i(c, t_float(c, T(0)), 1)); }
OP(i1e, "aten::special_i1e") { RET(scaled_i(c, t_float(c, T(0)), 1)); }
OP(modified_i0, "aten::special_modified_bessel_i0") { RET(unscaled_i(c, t_float(c, T(0)), 0)); }
OP(modified_i1, "aten::special_modified_bessel_i1") { RET(unscaled_i(c, t_float(c, T(0)), 1)); }

/* K_order(x), or exp(x) K_order(x) */
static val bessel_k(op_ctx *c, val x, int order, bool scaled) {
  val t = P_ADDC(P_MULC(P_MUL(x, x), 0.5), -1), l = P_UN(LOG, P_MULC(x, 0.5)), near;
  if (order) near = P_ADD(P_DIV(SERIES(t, K1_NEAR), x), P_MUL(P_MUL(l, x), SERIES(t, I1_SMALL)));
  else near = P_SUB(SERIES(t, K0_NEAR), P_MUL(l, SERIES(t, I0_SMALL)));
  val far_t = far_variable(c, x, 4), far = P_DIV(order ? SERIES(far_t, K1_FAR) : SERIES(far_t, K0_FAR), P_UN(SQRT, x));
  if (scaled) near = P_MUL(near, P_UN(EXP, x));
  else far = P_MUL(far, P_UN(EXP, P_UN(NEG, x)));
  val r = P_SEL(P_CMPC(LE, x, 2), near, far);
  r = P_SEL(P_CMPC(EQ, x, 0), P_NUM(x, INFINITY), r);
  return P_SEL(P_CMPC(LT, x, 0), P_NUM(x, NAN), r);
}
OP(k0, "aten::special_modified_bessel_k0") { RET(bessel_k(c, t_float(c, T(0)), 0, false)); }
OP(k1, "aten::special_modified_bessel_k1") { RET(bessel_k(c, t_float(c, T(0)), 1, false)); }
OP(k0e, "aten::special_scaled_modified_bessel_k0") { RET(bessel_k(c, t_float(c, T(0)), 0, true)); }
OP(k1e, "aten::special_scaled_modified_bessel_k1") { RET(bessel_k(c, t_float(c, T(0)), 1, true)); }

/* ---- Bessel functions ---------------------------------------------------------------------------------------------
 */

/* J or Y of order 0 or 1 for x > 8, by Hankel's expansion; the phase's shift is taken out by sin and cos of x itself,
 * so that nothing is lost where x is large. */
static val hankel(op_ctx *c, val x, int order, bool second) {
  val t = P_ADDC(P_DIV(P_NUM(x, 128), P_MUL(x, x)), -1);
  val p = order ? SERIES(t, BESSEL1_P) : SERIES(t, BESSEL0_P);
  val q = P_DIV(order ? SERIES(t, BESSEL1_Q) : SERIES(t, BESSEL0_Q), x);
  val s = P_UN(SIN, x), k = P_UN(COS, x), sum = P_ADD(k, s), dif = P_SUB(s, k);
  /* sqrt(2) times cos and sin of x - pi/4, or of x - 3 pi/4 */
  val co = order ? dif : sum, si = order ? P_UN(NEG, sum) : dif;
  val w = second ? P_ADD(P_MUL(p, si), P_MUL(q, co)) : P_SUB(P_MUL(p, co), P_MUL(q, si));
  return P_MUL(w, P_UN(SQRT, P_DIV(P_NUM(x, 1 / M_PI), x)));
}

static val near_variable(op_ctx *c, val x) { return P_ADDC(P_MULC(P_MUL(x, x), 1.0 / 32), -1); }

static val bessel_j(op_ctx *c, val x, int order) {
  val a = P_UN(ABS, x), t = near_variable(c, a);
  val near = order ? P_MUL(a, SERIES(t, J1_NEAR)) : SERIES(t, J0_NEAR);
  val r = P_SEL(P_CMPC(LE, a, 8), near, hankel(c, a, order, false));
  return order ? P_SEL(P_CMPC(LT, x, 0), P_UN(NEG, r), r) : r;
}

static val bessel_y(op_ctx *c, val x, int order) {
  val t = near_variable(c, x), l = P_MULC(P_UN(LOG, x), M_2_PI), near;
  if (order) {
    near = P_ADD(P_MUL(x, SERIES(t, Y1_NEAR)), P_MUL(l, P_MUL(x, SERIES(t, J1_NEAR))));
    near = P_SUB(near, P_DIV(P_NUM(x, M_2_PI), x));
  } else {
    near = P_ADD(SERIES(t, Y0_NEAR), P_MUL(l, SERIES(t, J0_NEAR)));
  }
  val r = P_SEL(P_CMPC(LE, x, 8), near, hankel(c, x, order, true));
  r = P_SEL(P_CMPC(EQ, x, 0), P_NUM(x, -INFINITY), r);
  return P_SEL(P_CMPC(LT, x, 0), P_NUM(x, NAN), r);
}
OP(j0, "aten::special_bessel_j0") { RET(bessel_j(c, t_float(c, T(0)), 0)); }
OP(j1, "aten::special_bessel_j1") { RET(bessel_j(c, t_float(c, T(0)), 1)); }
OP(y0, "aten::special_bessel_y0") { RET(bessel_y(c, t_float(c, T(0)), 0)); }
OP(y1, "aten::special_bessel_y1") { RET(bessel_y(c, t_float(c, T(0)), 1)); }

OP(spherical_j0, "aten::special_spherical_bessel_j0") {
  val x = t_float(c, T(0)), r = P_SEL(P_CMPC(EQ, x, 0), P_NUM(x, 1), P_DIV(P_UN(SIN, x), x));
  RET(P_SEL(p_isinf(c, x), P_NUM(x, 0), r));
}

OP(airy_ai, "aten::special_airy_ai") {
  val x = t_float(c, T(0)), a = P_UN(ABS, x), root = P_UN(SQRT, a), fourth = P_UN(SQRT, root);
  val z = P_MULC(P_MUL(a, root), 2.0 / 3);
  val far = P_DIV(P_MUL(P_UN(EXP, P_UN(NEG, z)), SERIES(far_variable(c, z, 3.7712361663282534634), AIRY_FAR)), fourth);
  val near = SERIES(P_DIV(P_ADDC(x, 1), P_NUM(x, 3)), AIRY_NEAR);
  val t = P_ADDC(P_DIV(P_NUM(z, 512.0 / 9), P_MUL(z, z)), -1);
  val f = SERIES(t, AIRY_F), g = P_DIV(SERIES(t, AIRY_G), z);
  val s = P_UN(SIN, z), k = P_UN(COS, z); /* sin(z + pi/4) = (s + k) / sqrt(2), cos = (k - s) / sqrt(2) */
  val wave = P_SUB(P_MUL(f, P_ADD(s, k)), P_MUL(g, P_SUB(k, s)));
  wave = P_DIV(P_MULC(wave, M_SQRT1_2), fourth);
  val r = P_SEL(P_CMPC(GE, x, 2), far, P_SEL(P_CMPC(LT, x, -4), wave, near));
  RET(P_SEL(P_OR(p_isnan(c, x), p_isinf(c, x)), P_NUM(x, NAN), r));
}
