/* Random bits and numbers from the call's generator. */
#include "ops/op.h"

static int64_t count(int ndim, const int64_t *dims) {
  int64_t n = 1;
  for (int i = 0; i < ndim; i++) n *= dims[i];
  return n;
}

val t_random_bits(op_ctx *c, tpu_dtype bits, int ndim, const int64_t *dims) {
  if (bits != TPU_U32 && bits != TPU_U64)
    return op_fail(c, TPU_ERR_RUNTIME, "random bits come as uint32 or uint64, not %s", tpu_dtype_name(bits));
  int64_t n = count(ndim, dims);
  if (n == 0) return t_zeros(c, bits, ndim, dims);
  val state = op_rng(c, bits == TPU_U64 ? 2 * n : n), next, out;
  if (ir_failed(G)) return state;
  ir_rng_philox(G, state, bits, ndim, dims, &next, &out);
  return out;
}

/* The top `keep` of `width` random bits, as a number of dtype d (exact: keep is at most d's mantissa). */
static val top_bits(op_ctx *c, tpu_dtype bits, int keep, tpu_dtype d, int ndim, const int64_t *dims) {
  val r = t_random_bits(c, bits, ndim, dims);
  if (ir_failed(G)) return r;
  int width = bits == TPU_U64 ? 64 : 32;
  r = ir_binary(G, IR_SHR_L, r, t_like(c, r, width - keep));
  return ir_convert(G, ir_convert(G, r, bits == TPU_U64 ? TPU_I64 : TPU_I32), d);
}

/* As many bits as the dtype's mantissa holds, so that 1 never comes out and every value is equally likely. */
val t_random_uniform(op_ctx *c, tpu_dtype d, int ndim, const int64_t *dims) {
  if (ir_is_complex(d)) {
    tpu_dtype r = ir_real_dtype(d);
    val re = t_random_uniform(c, r, ndim, dims), im = t_random_uniform(c, r, ndim, dims);
    return ir_binary(G, IR_COMPLEX, re, im);
  }
  int keep = d == TPU_F64 ? 53 : d == TPU_F16 ? 11 : d == TPU_BF16 ? 8 : 24;
  tpu_dtype m = d == TPU_F64 ? TPU_F64 : TPU_F32;
  val k = top_bits(c, d == TPU_F64 ? TPU_U64 : TPU_U32, keep, m, ndim, dims);
  if (ir_failed(G)) return k;
  return t_cast(c, ir_binary(G, IR_MUL, k, t_like(c, k, 1.0 / (double)(1ll << keep))), d);
}

/* Inverse transform: sqrt(2) * erfinv(u), u an odd multiple of 2^-24 (2^-53) in (-1, 1), so the result is finite. */
val t_random_normal(op_ctx *c, tpu_dtype d, int ndim, const int64_t *dims) {
  if (ir_is_complex(d)) {
    tpu_dtype r = ir_real_dtype(d);
    val re = t_random_normal(c, r, ndim, dims), im = t_random_normal(c, r, ndim, dims);
    if (ir_failed(G)) return re;
    val s = t_like(c, re, 0.70710678118654752440);
    return ir_binary(G, IR_COMPLEX, ir_binary(G, IR_MUL, re, s), ir_binary(G, IR_MUL, im, s));
  }
  bool wide = d == TPU_F64;
  tpu_dtype m = wide ? TPU_F64 : TPU_F32;
  int keep = wide ? 53 : 24;
  val k = top_bits(c, wide ? TPU_U64 : TPU_U32, keep, m, ndim, dims);
  if (ir_failed(G)) return k;
  double half = (double)(1ll << keep);
  /* u = (2k + 1 - half) / half; every step is exact */
  val u = ir_binary(G, IR_SUB, k, t_like(c, k, half / 2));
  u = ir_binary(G, IR_ADD, u, t_like(c, k, 0.5));
  u = ir_binary(G, IR_MUL, u, t_like(c, k, 2 / half));
  val z = ir_binary(G, IR_MUL, ir_unary(G, IR_ERFINV, u), t_like(c, k, 1.41421356237309504880));
  return t_cast(c, z, d);
}
