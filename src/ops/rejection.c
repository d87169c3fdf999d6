/* Distributions drawn by rejection: rounds in a loop, each with bits of its own, until every element has accepted. */
#include "ops/along.h"
#include "ops/pointwise.h"

/* Each round accepts far more than half of what is left, so ROUNDS of them never fail in practice; what is drawn counts
 * as used in any case, so that the generator's offset is known before. */
enum { ROUNDS = 64, SMALL_RATE = 10, LONGEST_WALK = 80 };

static tpu_dtype work_dtype(tpu_dtype d) { return d == TPU_F64 ? TPU_F64 : TPU_F32; }

/* Odd multiples of 2^-24 (2^-53) in (0, 1); *state moves on. */
static val next_uniform(op_ctx *c, val *state, val like) {
  bool wide = like->dtype == TPU_F64;
  val bits = t_philox(c, *state, wide ? TPU_U64 : TPU_U32, like->ndim, like->dims);
  double blocks = (double)((ir_numel(like) * (wide ? 2 : 1) + 3) / 4);
  if (ir_failed(G)) return like;
  *state = P_ADD(*state, P_MULC(t_iota(c, TPU_U64, 1, (*state)->dims, 0), blocks)); /* [0, blocks] */
  bits = ir_binary(G, IR_SHR_L, bits, t_like(c, bits, wide ? 12 : 9));
  val k = ir_convert(G, ir_convert(G, bits, wide ? TPU_I64 : TPU_I32), (tpu_dtype)like->dtype);
  return P_MULC(P_ADDC(k, 0.5), wide ? 0x1p-52 : 0x1p-23);
}

/* The state for `numbers` uniform numbers like x in each round. */
static val rounds_state(op_ctx *c, val x, int numbers) {
  return op_rng(c, (int64_t)ROUNDS * numbers * ((x->dtype == TPU_F64 ? 2 : 1) * ir_numel(x) + 4));
}

static val any(op_ctx *c, val mask) {
  return ir_reduce(G, IR_OR, t_flatten(c, mask), t_scalar(c, TPU_BOOL, 0), 1, (int[]){0});
}

/* ---- Poisson
 * --------------------------------------------------------------------------------------------------------- */

/* Small rates: one uniform number u, and the sum of the probabilities walked up to it. */
static val poisson_small(op_ctx *c, val rate) {
  if (ir_failed(G)) return rate;
  val state = op_rng(c, (rate->dtype == TPU_F64 ? 2 : 1) * ir_numel(rate) + 4), u = next_uniform(c, &state, rate);
  val k = P_NUM(rate, 0), p = P_UN(EXP, P_UN(NEG, rate)), zero = ir_const_i(G, TPU_I32, 0, 0, NULL);
  val init[4] = {k, p, p, zero}, a[4], out[4];
  ir_while_begin(G, init, 4, a);
  ir_while_body(G, P_AND(any(c, P_CMP(GT, u, a[2])), P_CMPC(LT, a[3], LONGEST_WALK)), a);
  val on = P_CMP(GT, u, a[2]), k1 = P_SEL(on, P_ADDC(a[0], 1), a[0]),
      p1 = P_SEL(on, P_DIV(P_MUL(a[1], rate), k1), a[1]);
  ir_while_end(G, (const val[]){k1, p1, P_SEL(on, P_ADD(a[2], p1), a[2]), P_ADDC(a[3], 1)}, out);
  return out[0];
}

/* Large ones: Hormann's transformed rejection (PTRS). */
static val poisson_large(op_ctx *c, val rate, val wanted) {
  val slam = P_UN(SQRT, rate), loglam = P_UN(LOG, rate), b = P_ADDC(P_MULC(slam, 2.53), 0.931);
  val a = P_ADDC(P_MULC(b, 0.02483), -0.059), inv = P_ADDC(P_DIV(P_NUM(b, 1.1328), P_ADDC(b, -3.4)), 1.1239);
  val vr = P_SUB(P_NUM(b, 0.9277), P_DIV(P_NUM(b, 3.6224), P_ADDC(b, -2)));
  val init[4] = {P_NUM(rate, 0), wanted, rounds_state(c, rate, 2), ir_const_i(G, TPU_I32, 0, 0, NULL)}, s[4], out[4];
  if (ir_failed(G)) return rate;
  ir_while_begin(G, init, 4, s);
  ir_while_body(G, P_AND(any(c, s[1]), P_CMPC(LT, s[3], ROUNDS)), s);
  val next = s[2], un[2];
  for (int i = 0; i < 2; i++) un[i] = next_uniform(c, &next, rate);
  val u = P_ADDC(un[0], -0.5), v = un[1], us = P_SUB(P_NUM(u, 0.5), P_UN(ABS, u));
  val k = P_UN(FLOOR, P_ADDC(P_ADD(P_MUL(P_ADD(P_DIV(P_ADD(a, a), us), b), u), rate), 0.43));
  val quick = P_AND(P_CMPC(GE, us, 0.07), P_CMP(LE, v, vr));
  val refuse = P_OR(P_CMPC(LT, k, 0), P_AND(P_CMPC(LT, us, 0.013), P_CMP(GT, v, us)));
  val left = P_SUB(P_ADD(P_UN(LOG, v), P_UN(LOG, inv)), P_UN(LOG, P_ADD(P_DIV(a, P_MUL(us, us)), b)));
  val right = P_SUB(P_SUB(P_MUL(k, loglam), rate), P_UN(LGAMMA, P_ADDC(P_MAX(k, P_NUM(k, 0)), 1)));
  val accept = P_OR(quick, P_AND(P_UN(NOT, refuse), P_CMP(LE, left, right)));
  val now = P_AND(s[1], accept);
  ir_while_end(G, (const val[]){P_SEL(now, k, s[0]), P_AND(s[1], P_UN(NOT, accept)), next, P_ADDC(s[3], 1)}, out);
  return out[0];
}

OP(poisson, "aten::poisson") {
  val x = T(0), rate = t_cast(c, x, work_dtype((tpu_dtype)x->dtype));
  if (ir_failed(G) || ir_numel(x) == 0) {
    RET(x);
    return;
  }
  val large = P_CMPC(GE, rate, SMALL_RATE), ten = P_NUM(rate, SMALL_RATE);
  val few = poisson_small(c, P_MIN(rate, ten)), many = poisson_large(c, P_MAX(rate, ten), large);
  if (ir_failed(G)) return;
  RET(P_SEL(large, many, few));
}

/* ---- gamma
 * ----------------------------------------------------------------------------------------------------------- */

/* Marsaglia and Tsang for a >= 1; below, a gamma of a + 1 times u^(1/a). */
static val gamma_numbers(op_ctx *c, val a) {
  if (ir_failed(G) || ir_numel(a) == 0) return a;
  val first = op_rng(c, (a->dtype == TPU_F64 ? 2 : 1) * ir_numel(a) + 4), boost = next_uniform(c, &first, a);
  val small = P_CMPC(LT, a, 1), d = P_ADDC(P_SEL(small, P_ADDC(a, 1), a), -1.0 / 3);
  val k = P_DIV(P_NUM(d, 1), P_UN(SQRT, P_MULC(d, 9))), zero = ir_const_i(G, TPU_I32, 0, 0, NULL);
  val init[4] = {P_NUM(a, 1), t_like(c, small, 1), rounds_state(c, a, 2), zero}, s[4], out[4];
  if (ir_failed(G)) return a;
  ir_while_begin(G, init, 4, s);
  ir_while_body(G, P_AND(any(c, s[1]), P_CMPC(LT, s[3], ROUNDS)), s);
  val next = s[2], w = next_uniform(c, &next, a), u = next_uniform(c, &next, a);
  val x = P_MULC(P_UN(ERFINV, P_ADDC(P_ADD(w, w), -1)), 1.41421356237309504880), y = P_ADDC(P_MUL(k, x), 1),
      v = P_MUL(P_MUL(y, y), y);
  val positive = P_CMPC(GT, y, 0), safe = P_SEL(positive, v, P_NUM(v, 1));
  val bound = P_ADD(P_MULC(P_MUL(x, x), 0.5), P_MUL(d, P_ADD(P_SUB(P_NUM(v, 1), safe), P_UN(LOG, safe))));
  val now = P_AND(s[1], P_AND(positive, P_CMP(LT, P_UN(LOG, u), bound)));
  ir_while_end(G, (const val[]){P_SEL(now, v, s[0]), P_AND(s[1], P_UN(NOT, now)), next, P_ADDC(s[3], 1)}, out);
  if (ir_failed(G)) return a;
  val g = P_MUL(d, out[0]), scaled = P_MUL(g, P_UN(EXP, P_DIV(P_UN(LOG, boost), a)));
  return P_SEL(small, scaled, g);
}

/* The smallest normal number instead of 0, as PyTorch has it. */
static val above_zero(op_ctx *c, val g) {
  return ir_failed(G) ? g : P_MAX(g, P_NUM(g, g->dtype == TPU_F64 ? 0x1p-1022 : 0x1p-126));
}

OP(standard_gamma, "aten::_standard_gamma") {
  val a = T(0);
  RET(above_zero(c, gamma_numbers(c, t_cast(c, a, work_dtype((tpu_dtype)a->dtype)))));
}

OP(sample_dirichlet, "aten::_sample_dirichlet") {
  val a = T(0), g = above_zero(c, gamma_numbers(c, t_cast(c, a, work_dtype((tpu_dtype)a->dtype))));
  RET(a->ndim ? t_div(c, g, t_sum(c, g, (int[]){a->ndim - 1}, 1, true)) : t_like(c, g, 1));
}

/* ---- binomial
 * ---------------------------------------------------------------------------------------------------------- */

/* Few successes expected: the probabilities walked up to u. q <= 1/2. */
static val binomial_small(op_ctx *c, val n, val q) {
  if (ir_failed(G)) return n;
  val state = op_rng(c, (n->dtype == TPU_F64 ? 2 : 1) * ir_numel(n) + 4), u = next_uniform(c, &state, n);
  val odds = P_DIV(q, P_SUB(P_NUM(q, 1), q)), p = P_UN(EXP, P_MUL(n, P_UN(LOG1P, P_UN(NEG, q))));
  val init[4] = {P_NUM(n, 0), p, p, ir_const_i(G, TPU_I32, 0, 0, NULL)}, a[4], out[4];
  if (ir_failed(G)) return n;
  ir_while_begin(G, init, 4, a);
  ir_while_body(G, P_AND(any(c, P_AND(P_CMP(GT, u, a[2]), P_CMP(LT, a[0], n))), P_CMPC(LT, a[3], LONGEST_WALK)), a);
  val on = P_AND(P_CMP(GT, u, a[2]), P_CMP(LT, a[0], n)), k1 = P_ADDC(a[0], 1);
  val p1 = P_MUL(P_MUL(a[1], P_DIV(P_SUB(n, a[0]), k1)), odds);
  ir_while_end(
      G, (const val[]){P_SEL(on, k1, a[0]), P_SEL(on, p1, a[1]), P_SEL(on, P_ADD(a[2], p1), a[2]), P_ADDC(a[3], 1)},
      out);
  return out[0];
}

/* Many: Hormann's BTRS. The logarithm of f(k) / f(m) decides, m the mode. */
static val binomial_large(op_ctx *c, val n, val q, val wanted) {
  val one = P_NUM(q, 1), deviation = P_UN(SQRT, P_MUL(P_MUL(n, q), P_SUB(one, q))),
      b = P_ADDC(P_MULC(deviation, 2.53), 1.15);
  val a = P_ADDC(P_ADD(P_MULC(b, 0.0248), P_MULC(q, 0.01)), -0.0873), center = P_ADDC(P_MUL(n, q), 0.5);
  val vr = P_SUB(P_NUM(b, 0.92), P_DIV(P_NUM(b, 4.2), b)), log_odds = P_UN(LOG, P_DIV(q, P_SUB(one, q)));
  val alpha = P_MUL(P_ADDC(P_DIV(P_NUM(b, 5.1), b), 2.83), deviation), m = P_UN(FLOOR, P_MUL(P_ADDC(n, 1), q));
  val at_mode = P_ADD(P_UN(LGAMMA, P_ADDC(m, 1)), P_UN(LGAMMA, P_ADDC(P_SUB(n, m), 1)));
  val init[4] = {P_NUM(n, 0), wanted, rounds_state(c, n, 2), ir_const_i(G, TPU_I32, 0, 0, NULL)}, s[4], out[4];
  if (ir_failed(G)) return n;
  ir_while_begin(G, init, 4, s);
  ir_while_body(G, P_AND(any(c, s[1]), P_CMPC(LT, s[3], ROUNDS)), s);
  val next = s[2], u = P_ADDC(next_uniform(c, &next, n), -0.5), v = next_uniform(c, &next, n),
      us = P_SUB(P_NUM(u, 0.5), P_UN(ABS, u));
  val k = P_UN(FLOOR, P_ADD(P_MUL(P_ADD(P_DIV(P_ADD(a, a), us), b), u), center));
  val possible = P_AND(P_CMPC(GE, k, 0), P_CMP(LE, k, n)), kk = P_SEL(possible, k, m);
  val left = P_UN(LOG, P_DIV(P_MUL(v, alpha), P_ADD(P_DIV(a, P_MUL(us, us)), b)));
  val at_k = P_ADD(P_UN(LGAMMA, P_ADDC(kk, 1)), P_UN(LGAMMA, P_ADDC(P_SUB(n, kk), 1)));
  val right = P_ADD(P_SUB(at_mode, at_k), P_MUL(P_SUB(kk, m), log_odds));
  val quick = P_AND(P_CMPC(GE, us, 0.07), P_CMP(LE, v, vr));
  val now = P_AND(s[1], P_AND(possible, P_OR(quick, P_CMP(LE, left, right))));
  ir_while_end(G, (const val[]){P_SEL(now, kk, s[0]), P_AND(s[1], P_UN(NOT, now)), next, P_ADDC(s[3], 1)}, out);
  return out[0];
}

/* (count, prob) */
OP(binomial, "aten::binomial") {
  val x = T(0), v[2] = {x, T(1)};
  tpu_dtype m = work_dtype((tpu_dtype)x->dtype);
  for (int i = 0; i < 2; i++) v[i] = t_cast(c, v[i], m);
  t_broadcast(c, v, 2);
  if (ir_failed(G)) return;
  if (ir_numel(v[0]) == 0) {
    RET(v[0]);
    return;
  }
  val n = v[0], p = v[1], flip = P_CMPC(GT, p, 0.5), q = P_SEL(flip, P_SUB(P_NUM(p, 1), p), p);
  val large = P_CMPC(GE, P_MUL(n, q), SMALL_RATE);
  /* what the other way serves gets harmless numbers */
  val few = binomial_small(c, P_SEL(large, P_NUM(n, 1), n), P_SEL(large, P_NUM(q, 0), q));
  val many = binomial_large(c, P_SEL(large, n, P_NUM(n, 40)), P_SEL(large, q, P_NUM(q, 0.5)), large);
  if (ir_failed(G)) return;
  val k = P_SEL(large, many, few);
  RET(P_SEL(flip, P_SUB(n, k), k));
}
