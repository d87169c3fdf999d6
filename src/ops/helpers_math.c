/* Element-wise helpers: promote, broadcast, compute float16 and bfloat16 in float32. */
#include "ops/op.h"

static val weaken(op_ctx *c, val r, bool weak) {
  if (weak && !ir_failed(G)) r->weak = 1;
  return r;
}

static val apply(op_ctx *c, ir_opcode op, const val *v, int n) {
  tpu_dtype d = (tpu_dtype)v[0]->dtype, m = t_opmath(d);
  val x[2];
  for (int i = 0; i < n; i++) x[i] = t_cast(c, v[i], m);
  val r = n == 1 ? ir_unary(G, op, x[0]) : ir_binary(G, op, x[0], x[1]);
  if (m != d && r->dtype == m) r = t_cast(c, r, d);
  return r;
}

val t_binary(op_ctx *c, ir_opcode op, val a, val b) {
  val v[2] = {a, b};
  t_prepare(c, v, 2);
  return weaken(c, apply(c, op, v, 2), a->weak && b->weak);
}

val t_unary(op_ctx *c, ir_opcode op, val x) { return weaken(c, apply(c, op, &x, 1), x->weak); }

val t_unary_float(op_ctx *c, ir_opcode op, val x) {
  if (!ir_is_float((tpu_dtype)x->dtype) && !ir_is_complex((tpu_dtype)x->dtype)) x = t_cast(c, x, op_default_dtype(c));
  return t_unary(c, op, x);
}

/* For bool operands `logical` stands for `op`. */
static val binary_or_bool(op_ctx *c, ir_opcode op, ir_opcode logical, val a, val b) {
  val v[2] = {a, b};
  t_prepare(c, v, 2);
  return weaken(c, apply(c, v[0]->dtype == TPU_BOOL ? logical : op, v, 2), a->weak && b->weak);
}

val t_add(op_ctx *c, val a, val b) { return binary_or_bool(c, IR_ADD, IR_OR, a, b); }
val t_sub(op_ctx *c, val a, val b) { return binary_or_bool(c, IR_SUB, IR_XOR, a, b); }
val t_mul(op_ctx *c, val a, val b) { return binary_or_bool(c, IR_MUL, IR_AND, a, b); }

/* XLA's CPU compiler drops a NaN in its maximum and minimum, so for floats the choice is spelt out. */
static val extreme(op_ctx *c, bool max, val a, val b) {
  val v[2] = {a, b};
  t_prepare(c, v, 2);
  if (ir_failed(G)) return a;
  if (!ir_is_float((tpu_dtype)v[0]->dtype))
    return binary_or_bool(c, max ? IR_MAX : IR_MIN, max ? IR_OR : IR_AND, v[0], v[1]);
  val first = ir_compare(G, max ? IR_GT : IR_LT, v[0], v[1]);
  return ir_select(G, ir_binary(G, IR_OR, first, ir_compare(G, IR_NE, v[0], v[0])), v[0], v[1]);
}
val t_max(op_ctx *c, val a, val b) { return weaken(c, extreme(c, true, a, b), a->weak && b->weak); }
val t_min(op_ctx *c, val a, val b) { return weaken(c, extreme(c, false, a, b), a->weak && b->weak); }

val t_and(op_ctx *c, val a, val b) { return t_binary(c, IR_AND, a, b); }
val t_or(op_ctx *c, val a, val b) { return t_binary(c, IR_OR, a, b); }
val t_xor(op_ctx *c, val a, val b) { return t_binary(c, IR_XOR, a, b); }
val t_not(op_ctx *c, val a) { return t_unary(c, IR_NOT, a); }

/* Integers become floats before anything else, so that a negative number is not wrapped to an unsigned dtype. */
val t_div(op_ctx *c, val a, val b) {
  val v[2] = {a, b};
  bool weak = a->weak && b->weak;
  if (ir_failed(G)) return a;
  tpu_dtype d = t_result_type(c, v, 2);
  if (!ir_is_float(d) && !ir_is_complex(d)) {
    d = weak ? TPU_F64 : op_default_dtype(c);
    for (int i = 0; i < 2; i++) v[i] = t_cast(c, v[i], d);
  }
  t_prepare(c, v, 2);
  return weaken(c, apply(c, IR_DIV, v, 2), weak);
}

/* x^e by squaring, as long as some exponent has bits left: XLA's integer power looks at six bits only. */
static val whole_power(op_ctx *c, val x, val e) {
  val init[3] = {t_like(c, x, 1), x, e}, at[3], out[3];
  ir_while_begin(G, init, 3, at);
  ir_while_body(G, t_reduce(c, IR_OR, ir_compare(G, IR_NE, at[2], t_like(c, e, 0)), NULL, 0, false), at);
  val one = t_like(c, e, 1), odd = ir_compare(G, IR_NE, ir_binary(G, IR_AND, at[2], one), t_like(c, e, 0));
  val next[3] = {ir_select(G, odd, ir_binary(G, IR_MUL, at[0], at[1]), at[0]), ir_binary(G, IR_MUL, at[1], at[1]),
                 ir_binary(G, IR_SHR_L, at[2], one)};
  ir_while_end(G, next, out);
  return out[0];
}

val t_pow(op_ctx *c, val a, val b) {
  val v[2] = {a, b};
  t_prepare(c, v, 2);
  tpu_dtype d = (tpu_dtype)v[0]->dtype;
  if (ir_failed(G)) return v[0];
  if (d == TPU_BOOL) return t_or(c, v[0], t_not(c, v[1]));
  if (!ir_is_int(d)) return weaken(c, apply(c, IR_POW, v, 2), a->weak && b->weak);
  if (ir_is_unsigned(d)) return whole_power(c, v[0], v[1]);
  /* x^-n is 0, but 1 for 1 and -1 or 1 for -1 */
  val zero = t_like(c, v[1], 0), one = t_like(c, v[0], 1), minus = t_like(c, v[0], -1);
  val negative = ir_compare(G, IR_LT, v[1], zero);
  val r = whole_power(c, v[0], ir_select(G, negative, zero, v[1]));
  val odd = ir_compare(G, IR_NE, ir_binary(G, IR_AND, v[1], t_like(c, v[1], 1)), zero);
  val of_minus = ir_select(G, odd, minus, one);
  val inverse = ir_select(G, ir_compare(G, IR_EQ, v[0], one), one,
                          ir_select(G, ir_compare(G, IR_EQ, v[0], minus), of_minus, t_like(c, v[0], 0)));
  return ir_select(G, negative, inverse, r);
}

val t_neg(op_ctx *c, val a) { return a->dtype == TPU_BOOL ? a : t_unary(c, IR_NEG, a); }

val t_abs(op_ctx *c, val a) {
  tpu_dtype d = (tpu_dtype)a->dtype;
  return d == TPU_BOOL || ir_is_unsigned(d) ? a : weaken(c, ir_unary(G, IR_ABS, a), a->weak);
}

val t_cmp(op_ctx *c, ir_cmp k, val a, val b) {
  val v[2] = {a, b};
  t_prepare(c, v, 2);
  return ir_compare(G, k, v[0], v[1]);
}

val t_where(op_ctx *c, val cond, val a, val b) {
  val v[3] = {a, b, NULL};
  t_prepare(c, v, 2);
  v[2] = t_cast(c, cond, TPU_BOOL);
  t_broadcast(c, v, 3);
  return ir_select(G, v[2], v[0], v[1]);
}
