/* Orthogonal polynomials P_n(x), n an operand: the three-term recurrence for all elements at once, as far as the
 * largest n asks; elements that are done, or no longer finite, stand still. */
#include <math.h>

#include "ops/pointwise.h"

typedef enum { CHEBYSHEV_T, CHEBYSHEV_U, CHEBYSHEV_V, CHEBYSHEV_W, HERMITE_H, HERMITE_HE, LAGUERRE, LEGENDRE } kind;

/* P_(k+1) from q = P_k and p = P_(k-1). */
static val next_of(op_ctx *c, kind k, val x, val n, val q, val p) {
  switch (k) {
    case HERMITE_H: return P_MULC(P_SUB(P_MUL(x, q), P_MUL(n, p)), 2);
    case HERMITE_HE: return P_SUB(P_MUL(x, q), P_MUL(n, p));
    case LAGUERRE: {
      val first = P_MUL(P_SUB(P_ADDC(P_ADD(n, n), 1), x), q);
      return P_DIV(P_SUB(first, P_MUL(n, p)), P_ADDC(n, 1));
    }
    case LEGENDRE: {
      val first = P_MUL(P_MUL(P_ADDC(P_ADD(n, n), 1), x), q);
      return P_DIV(P_SUB(first, P_MUL(n, p)), P_ADDC(n, 1));
    }
    default: return P_SUB(P_MUL(P_ADD(x, x), q), p);
  }
}

static val first_of(op_ctx *c, kind k, val x) {
  switch (k) {
    case CHEBYSHEV_U:
    case HERMITE_H: return P_ADD(x, x);
    case CHEBYSHEV_V: return P_ADDC(P_ADD(x, x), -1);
    case CHEBYSHEV_W: return P_ADDC(P_ADD(x, x), 1);
    case LAGUERRE: return P_SUB(P_NUM(x, 1), x);
    default: return x;
  }
}

/* Chebyshev polynomials inside (-1, 1), by angles: for large n better and shorter than the recurrence. */
static val by_angle(op_ctx *c, kind k, val x, val n) {
  val angle = P_UN(ACOS, x), half = P_MULC(angle, 0.5), mid = P_MUL(P_ADDC(n, 0.5), angle);
  switch (k) {
    case CHEBYSHEV_T: return P_UN(COS, P_MUL(n, angle));
    case CHEBYSHEV_U: return P_DIV(P_UN(SIN, P_MUL(P_ADDC(n, 1), angle)), P_UN(SIN, angle));
    case CHEBYSHEV_V: return P_DIV(P_UN(COS, mid), P_UN(COS, half));
    default: return P_DIV(P_UN(SIN, mid), P_UN(SIN, half));
  }
}

/* At x = 1 and x = -1, from n. */
static val at_ends(op_ctx *c, kind k, val x, val n) {
  val whole = P_MULC(n, 0.5), even = P_CMP(EQ, whole, P_UN(FLOOR, whole)), one = P_NUM(x, 1);
  val sign = P_SEL(even, one, P_NUM(x, -1)), high = one, low = one, positive = P_CMPC(GT, x, 0);
  if (k == CHEBYSHEV_U) high = low = P_ADDC(n, 1);
  if (k == CHEBYSHEV_W) high = P_ADDC(P_ADD(n, n), 1);
  if (k == CHEBYSHEV_V) low = P_ADDC(P_ADD(n, n), 1);
  return P_SEL(positive, high, P_MUL(sign, low));
}

static val polynomial(op_ctx *c, kind k, bool shifted) {
  val v[2] = {op_any(c, 0), op_any(c, 1)};
  p_float(c, v, 2);
  if (ir_failed(G)) return v[0];
  val x = v[0], n = p_trunc(c, v[1]), zero = P_NUM(x, 0), one = P_NUM(x, 1);
  if (shifted) x = P_ADDC(P_ADD(x, x), -1);
  bool angular = k <= CHEBYSHEV_W;
  val inside = P_AND(P_CMPC(GT, n, k == CHEBYSHEV_T ? 6 : 8), P_CMPC(LT, P_UN(ABS, x), 1));
  val steps = angular ? P_SEL(inside, zero, n) : n;

  val q0 = P_SEL(P_CMPC(GE, n, 1), first_of(c, k, x), one);
  val init[3] = {t_scalar(c, (tpu_dtype)x->dtype, 1), one, q0}, at[3], out[3]; /* index of q; p; q */
  ir_while_begin(G, init, 3, at);
  val i = t_broadcast_to(c, at[0], x->ndim, x->dims);
  val going = P_AND(P_CMP(LT, i, steps), P_UN(IS_FINITE, at[2]));
  ir_while_body(G, t_reduce(c, IR_OR, going, NULL, 0, false), at);
  i = t_broadcast_to(c, at[0], x->ndim, x->dims);
  going = P_AND(P_CMP(LT, i, steps), P_UN(IS_FINITE, at[2]));
  val r = next_of(c, k, x, i, at[2], at[1]);
  val next[3] = {P_ADDC(at[0], 1), P_SEL(going, at[2], at[1]), P_SEL(going, r, at[2])};
  ir_while_end(G, next, out);

  val res = out[2];
  if (angular) res = P_SEL(inside, by_angle(c, k, P_SEL(inside, x, zero), n), res);
  if (angular || k == LEGENDRE) res = P_SEL(P_CMPC(EQ, P_UN(ABS, x), 1), at_ends(c, k, x, n), res);
  if (k == HERMITE_H || k == HERMITE_HE) { /* PyTorch gives up there */
    double limit = x->dtype == TPU_F64 ? 512 : 128;
    res = P_SEL(P_CMPC(GT, n, limit), P_NUM(x, NAN), res);
  }
  return P_SEL(P_CMPC(LT, n, 0), zero, res);
}

#define POLYNOMIAL(id, aten, k, shifted) \
  OP(id, aten) { RET(polynomial(c, k, shifted)); }

POLYNOMIAL(t, "aten::special_chebyshev_polynomial_t", CHEBYSHEV_T, false)
POLYNOMIAL(u, "aten::special_chebyshev_polynomial_u", CHEBYSHEV_U, false)
POLYNOMIAL(v, "aten::special_chebyshev_polynomial_v", CHEBYSHEV_V, false)
POLYNOMIAL(w, "aten::special_chebyshev_polynomial_w", CHEBYSHEV_W, false)
POLYNOMIAL(shifted_t, "aten::special_shifted_chebyshev_polynomial_t", CHEBYSHEV_T, true)
POLYNOMIAL(shifted_u, "aten::special_shifted_chebyshev_polynomial_u", CHEBYSHEV_U, true)
POLYNOMIAL(shifted_v, "aten::special_shifted_chebyshev_polynomial_v", CHEBYSHEV_V, true)
POLYNOMIAL(shifted_w, "aten::special_shifted_chebyshev_polynomial_w", CHEBYSHEV_W, true)
POLYNOMIAL(h, "aten::special_hermite_polynomial_h", HERMITE_H, false)
POLYNOMIAL(he, "aten::special_hermite_polynomial_he", HERMITE_HE, false)
POLYNOMIAL(laguerre, "aten::special_laguerre_polynomial_l", LAGUERRE, false)
POLYNOMIAL(legendre, "aten::special_legendre_polynomial_p", LEGENDRE, false)
