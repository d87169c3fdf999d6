/* pointwise.h - what the element-wise rows share. A row brings its operands to one dtype and shape first (p_math or
 * p_float), then builds with the P_* macros, which do no promotion; the result is rounded once, at the end. */
#ifndef TPU_OPS_POINTWISE_H
#define TPU_OPS_POINTWISE_H
#include "ops/op.h"

/* Common dtype as PyTorch promotes, one shape, float16 and bfloat16 widened to float32. Numbers keep full precision. */
void p_math(op_ctx *c, val *v, int n);
/* The same; integers and bool become the default dtype. */
void p_float(op_ctx *c, val *v, int n);

#define P_ADD(a, b) ir_binary(G, IR_ADD, a, b)
#define P_SUB(a, b) ir_binary(G, IR_SUB, a, b)
#define P_MUL(a, b) ir_binary(G, IR_MUL, a, b)
#define P_DIV(a, b) ir_binary(G, IR_DIV, a, b)
#define P_MAX(a, b) t_max(c, a, b) /* NaN wins */
#define P_MIN(a, b) t_min(c, a, b)
#define P_AND(a, b) ir_binary(G, IR_AND, a, b)
#define P_OR(a, b) ir_binary(G, IR_OR, a, b)
#define P_UN(op, x) ir_unary(G, IR_##op, x)
#define P_CMP(k, a, b) ir_compare(G, IR_##k, a, b)
#define P_SEL(p, a, b) ir_select(G, p, a, b)
#define P_NUM(x, v) t_like(c, x, v)
/* x <op> a constant */
#define P_ADDC(x, v) p_addc(c, x, v)
#define P_MULC(x, v) p_mulc(c, x, v)
#define P_CMPC(k, x, v) p_cmpc(c, IR_##k, x, v)
static inline val p_addc(op_ctx *c, val x, double v) { return P_ADD(x, P_NUM(x, v)); }
static inline val p_mulc(op_ctx *c, val x, double v) { return P_MUL(x, P_NUM(x, v)); }
static inline val p_cmpc(op_ctx *c, ir_cmp k, val x, double v) { return ir_compare(G, k, x, P_NUM(x, v)); }

static inline bool p_is_float(val x) { return ir_is_float((tpu_dtype)x->dtype); }
static inline bool p_is_complex(val x) { return ir_is_complex((tpu_dtype)x->dtype); }
static inline bool p_is_int(val x) { return !p_is_float(x) && !p_is_complex(x); } /* or bool */

/* c[0] + c[1] x + ... + c[n-1] x^(n-1) */
val p_poly(op_ctx *c, val x, const double *coef, int n);
/* sum of c[k] T_k(x), |x| <= 1 */
val p_chebyshev(op_ctx *c, val x, const double *coef, int n);
/* log(exp(a) + exp(b)) of complex a and b of one shape; of equal real parts a counts as the smaller */
val p_logaddexp_complex(op_ctx *c, val a, val b);
val p_isnan(op_ctx *c, val x);
val p_isinf(op_ctx *c, val x);
val p_signbit(op_ctx *c, val x); /* floats; of zeros and NaN too */
val p_trunc(op_ctx *c, val x);
val p_sin_pi(op_ctx *c, val x); /* sin(pi x), exact zeros at integers */

/* PyTorch's error for a dtype that its CPU kernel `kernel` has no code for. */
val p_no_kernel(op_ctx *c, const char *kernel, val x);
/* x in float32 or wider; that error for an integer or bool one. */
val p_only_float(op_ctx *c, const char *kernel, val x);
/* That error when the prepared operands are integers (bool: when they are bool); false after an error. */
bool p_need_float(op_ctx *c, const char *kernel, val x);
bool p_need_no_bool(op_ctx *c, const char *kernel, val x);

/* Division with rounding and its remainder as PyTorch's kernels define them; operands prepared with p_math. */
val p_floor_div(op_ctx *c, val a, val b);
val p_trunc_div(op_ctx *c, val a, val b);
val p_remainder(op_ctx *c, val a, val b);
#endif
