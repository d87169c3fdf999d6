/* The exponential of a matrix: halved until its norm is small, a Taylor polynomial, squared as often. */
#include "ops/matrix.h"
#include "ops/pointwise.h"

static val any(op_ctx *c, val mask) { return t_reduce(c, IR_OR, mask, NULL, 0, false); }
static val wide(op_ctx *c, val v, val like) { return t_broadcast_to(c, v, like->ndim, like->dims); }

/* The norm up to which the polynomial is exact in a's dtype: the first term left out is norm^21 / 21!. */
static double limit(val a) { return ir_real_dtype((tpu_dtype)a->dtype) == TPU_F64 ? 1 : 3; }

/* a / 2^s with no column sum above the limit, and s: int32 [.., 1, 1]. Halving is exact. */
static val halved(op_ctx *c, val a, val *s) {
  int rd = a->ndim - 2, cd = a->ndim - 1;
  val norm = t_amax(c, t_sum(c, P_UN(ABS, a), &rd, 1, true), &cd, 1, true);
  norm = P_SEL(P_UN(IS_FINITE, norm), norm, P_NUM(norm, 0)); /* what is not finite comes out as NaN */
  val init[3] = {a, norm, ir_const_i(G, TPU_I32, 0, norm->ndim, norm->dims)}, at[3], out[3];
  if (ir_failed(G)) return a;
  ir_while_begin(G, init, 3, at);
  ir_while_body(G, any(c, P_CMPC(GT, at[1], limit(a))), at);
  val on = P_CMPC(GT, at[1], limit(a));
  const val next[3] = {P_SEL(wide(c, on, a), t_mul(c, at[0], t_like(c, a, 0.5)), at[0]),
                       P_SEL(on, P_MULC(at[1], 0.5), at[1]), P_ADD(at[2], ir_convert(G, on, TPU_I32))};
  ir_while_end(G, next, out);
  *s = out[2];
  return out[0];
}

/* sum of a^k / k!, k to 20, in powers of a^4 */
static val taylor(op_ctx *c, val a) {
  val power[4] = {mat_identity(c, a), a, t_matmul(c, a, a)};
  power[3] = t_matmul(c, power[2], a);
  val a4 = t_matmul(c, power[2], power[2]);
  double factorial[21] = {1};
  for (int k = 1; k <= 20; k++) factorial[k] = k * factorial[k - 1];
  if (ir_failed(G)) return a;
  val sum = t_mul(c, a4, t_like(c, a, 1 / factorial[20]));
  for (int block = 16; block >= 0; block -= 4) {
    for (int k = 3; k >= 0; k--) sum = t_add(c, sum, t_mul(c, power[k], t_like(c, a, 1 / factorial[block + k])));
    if (block) sum = t_matmul(c, a4, sum);
  }
  return sum;
}

OP(linalg_matrix_exp, "aten::linalg_matrix_exp") {
  val a = T(0), s;
  if (!mat_check(c, a)) return;
  /* squaring loses digits where terms cancel; doubles are cheap where they are the hardware's own */
  tpu_dtype d = (tpu_dtype)a->dtype;
  if (ir_is_cpu(G) && ir_is_float(d)) d = TPU_F64;
  a = t_cast(c, a, t_opmath(d));
  if (ir_numel(a) == 0 || mat_rows(a) == 1) {
    RET(P_UN(EXP, a));
    return;
  }
  s = a;
  a = halved(c, a, &s);
  const val init[2] = {taylor(c, a), t_like(c, s, 0)};
  val at[2], out[2];
  if (ir_failed(G)) return;
  ir_while_begin(G, init, 2, at);
  ir_while_body(G, any(c, P_CMP(LT, at[1], s)), at);
  val on = wide(c, P_CMP(LT, at[1], s), a);
  ir_while_end(G, (const val[]){P_SEL(on, t_matmul(c, at[0], at[0]), at[0]), P_ADDC(at[1], 1)}, out);
  RET(out[0]);
}
