/* Random bits and numbers from the call's generator. */
#include "ops/op.h"

static int64_t count(int ndim, const int64_t *dims) {
  int64_t n = 1;
  for (int i = 0; i < ndim; i++) n *= dims[i];
  return n;
}

/* Both words of the product of a word (as uint64) and a constant. */
static void product(op_ctx *c, val x, double by, val *high, val *low) {
  val p = ir_binary(G, IR_MUL, x, t_like(c, x, by)), mask = t_like(c, x, 0xFFFFFFFF);
  if (ir_failed(G)) return;
  *high = ir_binary(G, IR_SHR_L, p, t_like(c, x, 32));
  *low = ir_binary(G, IR_AND, p, mask);
}

static val xor3(op_ctx *c, val a, val b, val k) { return ir_binary(G, IR_XOR, ir_binary(G, IR_XOR, a, b), k); }

/* Philox 4x32-10 (Salmon et al. 2011), as stablehlo.rng_bit_generator draws it: element i is word i % 4 of block i / 4;
 * state[0] is the key and the upper half of the counter, state[1] the lower half. Written out, because XLA expands that
 * operation into a concatenation of the four words as an array [blocks, 4]. On a TPU such an array is padded to 128
 * lanes (58 M numbers: 7.9 GB of temporaries and 36 ms on v5e by its compiler's estimate, here 0.1 MB and 1.4 ms); the
 * CPU compiler emits the ten rounds four times. Words are kept in uint64 for the products. */
static val philox(op_ctx *c, val state, tpu_dtype bits, int64_t n) {
  bool wide = bits == TPU_U64;
  val part[2], word[4], key[2];
  for (int i = 0; i < 2; i++) {
    val x = ir_reshape(G, ir_slice(G, state, (int64_t[]){i}, (int64_t[]){i + 1}, (int64_t[]){1}), 0, NULL);
    part[i] = t_broadcast_to(c, x, 1, &n);
  }
  if (ir_failed(G)) return state;
  val i = t_iota(c, TPU_U64, 1, &n, 0), low32 = t_like(c, i, 0xFFFFFFFF), s32 = t_like(c, i, 32);
  val low = ir_binary(G, IR_ADD, part[1], ir_binary(G, IR_SHR_L, i, t_like(c, i, wide ? 1 : 2)));
  if (ir_failed(G)) return state;
  val carry = ir_convert(G, ir_compare(G, IR_LT, low, part[1]), TPU_U64), high = ir_binary(G, IR_ADD, part[0], carry);
  word[0] = ir_binary(G, IR_AND, low, low32);
  word[1] = ir_binary(G, IR_SHR_L, low, s32);
  word[2] = ir_binary(G, IR_AND, high, low32);
  word[3] = ir_binary(G, IR_SHR_L, high, s32);
  key[0] = ir_binary(G, IR_AND, part[0], low32);
  key[1] = ir_binary(G, IR_SHR_L, part[0], s32);
  for (int round = 0; round < 10 && !ir_failed(G); round++) {
    val h0 = NULL, l0 = NULL, h1 = NULL, l1 = NULL;
    product(c, word[0], 0xD2511F53, &h0, &l0);
    product(c, word[2], 0xCD9E8D57, &h1, &l1);
    if (ir_failed(G)) break;
    word[0] = xor3(c, h1, word[1], key[0]);
    word[1] = l1;
    word[2] = xor3(c, h0, word[3], key[1]);
    word[3] = l0;
    key[0] = ir_binary(G, IR_AND, ir_binary(G, IR_ADD, key[0], t_like(c, i, 0x9E3779B9)), low32);
    key[1] = ir_binary(G, IR_AND, ir_binary(G, IR_ADD, key[1], t_like(c, i, 0xBB67AE85)), low32);
  }
  if (ir_failed(G)) return state;
  val zero = t_like(c, i, 0), odd = ir_compare(G, IR_NE, ir_binary(G, IR_AND, i, t_like(c, i, 1)), zero);
  if (wide) {
    for (int k = 0; k < 2; k++) part[k] = ir_binary(G, IR_OR, word[2 * k], ir_binary(G, IR_SHL, word[2 * k + 1], s32));
    return ir_select(G, odd, part[1], part[0]);
  }
  val upper = ir_compare(G, IR_NE, ir_binary(G, IR_AND, i, t_like(c, i, 2)), zero);
  for (int k = 0; k < 2; k++) part[k] = ir_select(G, odd, word[2 * k + 1], word[2 * k]);
  return ir_convert(G, ir_select(G, upper, part[1], part[0]), TPU_U32);
}

val t_philox(op_ctx *c, val state, tpu_dtype bits, int ndim, const int64_t *dims) {
  if (ir_failed(G)) return state;
  return t_reshape(c, philox(c, state, bits, count(ndim, dims)), ndim, dims);
}

val t_random_bits(op_ctx *c, tpu_dtype bits, int ndim, const int64_t *dims) {
  if (bits != TPU_U32 && bits != TPU_U64)
    return op_fail(c, TPU_ERR_RUNTIME, "random bits come as uint32 or uint64, not %s", tpu_dtype_name(bits));
  int64_t n = count(ndim, dims);
  if (n == 0) return t_zeros(c, bits, ndim, dims);
  return t_philox(c, op_rng(c, bits == TPU_U64 ? 2 * n : n), bits, ndim, dims);
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
