/* Random numbers. All bits come from the call's Philox state, so the same seed gives the same numbers in every mode.
 * Parameters (from, to, mean, std, p, lambda) are operands; only integer ranges are part of the program. */
#include <math.h>

#include "ops/along.h"
#include "ops/pointwise.h"

/* Uniform in the open interval (0, 1): odd multiples of 2^-24 (2^-53), all exact, so that no logarithm is infinite. */
static val open_uniform(op_ctx *c, tpu_dtype m, int ndim, const int64_t *dims) {
  bool wide = m == TPU_F64;
  val k = t_random_bits(c, wide ? TPU_U64 : TPU_U32, ndim, dims);
  if (ir_failed(G)) return k;
  k = ir_binary(G, IR_SHR_L, k, t_like(c, k, wide ? 12 : 9));
  k = ir_convert(G, ir_convert(G, k, wide ? TPU_I64 : TPU_I32), m);
  return P_MULC(P_ADDC(k, 0.5), wide ? 0x1p-52 : 0x1p-23);
}

/* What a distribution of values of dtype d is computed in. */
static tpu_dtype work_dtype(tpu_dtype d) { return d == TPU_F64 ? TPU_F64 : TPU_F32; }

static val param(op_ctx *c, int i, val like) {
  return t_broadcast_to(c, t_cast(c, S(i), (tpu_dtype)like->dtype), like->ndim, like->dims);
}

/* ---- continuous ----------------------------------------------------------------------------------------------------
 */

OP(uniform, "aten::uniform") {
  val x = T(0);
  tpu_dtype d = (tpu_dtype)x->dtype;
  if (ir_failed(G)) return;
  if (ir_is_complex(d)) { /* both parts, as PyTorch fills the real view */
    tpu_dtype r = ir_real_dtype(d);
    val part[2];
    for (int i = 0; i < 2; i++) {
      val u = t_random_uniform(c, r, x->ndim, x->dims), from = param(c, 1, u), to = param(c, 2, u);
      if (ir_failed(G)) return;
      part[i] = P_ADD(P_MUL(u, P_SUB(to, from)), from);
    }
    RET(ir_binary(G, IR_COMPLEX, part[0], part[1]));
    return;
  }
  val u = t_cast(c, t_random_uniform(c, d, x->ndim, x->dims), work_dtype(d));
  if (ir_failed(G)) return;
  val from = param(c, 1, u), to = param(c, 2, u), r = t_cast(c, P_ADD(P_MUL(u, P_SUB(to, from)), from), d);
  /* rounding may reach `to`, which is not in the interval */
  RET(t_where(c, P_CMP(EQ, t_cast(c, r, work_dtype(d)), to), from, t_cast(c, r, work_dtype(d))));
}

/* mean and std may be numbers or tensors that broadcast. */
static void normal(op_ctx *c, val mean, val std) {
  val v[2] = {mean, std};
  bool numbers = mean->weak && std->weak;
  const tpu_meta *meta = op_meta(c, 0);
  tpu_dtype d = numbers || ir_failed(G) ? TPU_F32 : t_float_dtype(c, mean->weak ? std : mean);
  if (meta) d = (tpu_dtype)meta->dtype;
  tpu_dtype m = ir_is_complex(d) ? d : work_dtype(d);
  v[0] = t_cast(c, v[0], m);
  v[1] = t_cast(c, v[1], m);
  t_broadcast(c, v, 2);
  if (ir_failed(G)) return;
  val z = t_random_normal(c, m, v[0]->ndim, v[0]->dims);
  RET(t_add(c, v[0], t_mul(c, v[1], z)));
}
OP(normal_tensor_float, "aten::normal.Tensor_float") { normal(c, T(0), S(1)); }
OP(normal_float_tensor, "aten::normal.float_Tensor") { normal(c, S(0), T(1)); }
OP(normal_tensor_tensor, "aten::normal.Tensor_Tensor") { normal(c, T(0), T(1)); }

/* Normal numbers of x's sizes, in the dtype to compute with. */
static val normal_like(op_ctx *c, val x) {
  tpu_dtype d = (tpu_dtype)x->dtype;
  if (!ir_failed(G) && !t_is_float(x) && !ir_is_complex(d)) {
    op_fail(c, TPU_ERR_NOT_IMPLEMENTED, "normal is not implemented for '%s': a floating or complex dtype is expected",
            tpu_dtype_name(d));
    return x;
  }
  val z = t_random_normal(c, ir_is_complex(d) ? d : work_dtype(d), x->ndim, x->dims), mean = param(c, 1, z);
  if (ir_is_complex(d) && !ir_failed(G)) { /* PyTorch draws both parts with this mean */
    val part = ir_unary(G, IR_REAL, mean);
    mean = ir_binary(G, IR_COMPLEX, part, part);
  }
  return P_ADD(mean, P_MUL(param(c, 2, z), z));
}
OP(normal_functional, "aten::normal_functional") { RET(normal_like(c, T(0))); }
OP(log_normal, "aten::log_normal") { RET(P_UN(EXP, normal_like(c, T(0)))); }

static val uniform_like(op_ctx *c, val x) { return open_uniform(c, work_dtype((tpu_dtype)x->dtype), x->ndim, x->dims); }

OP(exponential, "aten::exponential") {
  val u = uniform_like(c, T(0));
  RET(P_DIV(P_UN(NEG, P_UN(LOG, u)), param(c, 1, u)));
}

OP(cauchy, "aten::cauchy") {
  val u = uniform_like(c, T(0));
  val t = P_UN(TAN, P_MULC(P_ADDC(u, -0.5), M_PI));
  RET(P_ADD(param(c, 1, u), P_MUL(param(c, 2, u), t)));
}

/* The number of trials up to the first success. */
OP(geometric, "aten::geometric") {
  val u = uniform_like(c, T(0));
  val n = P_DIV(P_UN(LOG, u), P_UN(LOG1P, P_UN(NEG, param(c, 1, u))));
  RET(P_MAX(P_UN(CEIL, n), P_NUM(n, 1)));
}

/* ---- bernoulli and dropout ------------------------------------------------------------------------------------------
 */

static void bernoulli(op_ctx *c, val x, val p) {
  tpu_dtype m = p->dtype == TPU_F64 && !p->weak ? TPU_F64 : TPU_F32;
  p = t_broadcast_to(c, t_cast(c, p, m), x->ndim, x->dims);
  if (ir_failed(G)) return;
  RET(t_cast(c, P_CMP(LT, t_random_uniform(c, m, x->ndim, x->dims), p), (tpu_dtype)x->dtype));
}
OP(bernoulli, "aten::bernoulli") { bernoulli(c, T(0), T(0)); }
OP(bernoulli_p, "aten::bernoulli.p") { bernoulli(c, T(0), S(1)); }
OP(bernoulli_tensor, "aten::bernoulli.Tensor") { bernoulli(c, T(0), T(1)); }

/* ---- integers ------------------------------------------------------------------------------------------------------
 */

/* a * b as {low, high} halves of 64 bits */
static void wide_mul(op_ctx *c, val a, val b, val *low, val *high) {
  val s = P_NUM(a, 32), mask = ir_const_i(G, TPU_U64, 0xffffffff, a->ndim, a->dims);
  val al = P_AND(a, mask), ah = ir_binary(G, IR_SHR_L, a, s), bl = P_AND(b, mask), bh = ir_binary(G, IR_SHR_L, b, s);
  val ll = P_MUL(al, bl), mid = P_ADD(P_MUL(ah, bl), ir_binary(G, IR_SHR_L, ll, s));
  val mid2 = P_ADD(P_MUL(al, bh), P_AND(mid, mask));
  *low = P_MUL(a, b);
  *high = P_ADD(P_MUL(ah, bh), P_ADD(ir_binary(G, IR_SHR_L, mid, s), ir_binary(G, IR_SHR_L, mid2, s)));
}

/* Whole numbers in [0, range), uint64; range 0 stands for 2^64. floor(x * range / 2^n) of n random bits: n = 64 for
 * ranges up to 2^32, else 128, so no value is favoured by more than 2^-32 and 2^-64. Powers of two are exact. */
static val below(op_ctx *c, uint64_t range, int ndim, const int64_t *dims) {
  val x = t_random_bits(c, TPU_U64, ndim, dims);
  if (range == 0 || ir_failed(G)) return x;
  val r = ir_const_i(G, TPU_U64, (int64_t)range, ndim, dims), low, high;
  if ((range & (range - 1)) == 0) return P_AND(x, ir_const_i(G, TPU_U64, (int64_t)(range - 1), ndim, dims));
  if (range <= 0x100000000ull) { /* (hi * r + (lo * r >> 32)) >> 32 */
    val s = P_NUM(x, 32), mask = ir_const_i(G, TPU_U64, 0xffffffff, ndim, dims);
    val carry = ir_binary(G, IR_SHR_L, P_MUL(P_AND(x, mask), r), s);
    return ir_binary(G, IR_SHR_L, P_ADD(P_MUL(ir_binary(G, IR_SHR_L, x, s), r), carry), s);
  }
  val y = t_random_bits(c, TPU_U64, ndim, dims), ylow, yhigh;
  if (ir_failed(G)) return y;
  wide_mul(c, x, r, &low, &high);
  wide_mul(c, y, r, &ylow, &yhigh);
  val carry = ir_compare(G, IR_LT, P_ADD(low, yhigh), low);
  return P_ADD(high, ir_convert(G, carry, TPU_U64));
}

static void integers(op_ctx *c, int64_t from, uint64_t range) {
  val x = T(0);
  if (ir_failed(G)) return;
  tpu_dtype d = (tpu_dtype)x->dtype;
  val k = below(c, range, x->ndim, x->dims);
  if (ir_failed(G)) return;
  if (d == TPU_U64) {
    RET(P_ADD(k, ir_const_i(G, TPU_U64, from, k->ndim, k->dims)));
    return;
  }
  RET(t_cast(c, P_ADD(ir_convert(G, k, TPU_I64), ir_const_i(G, TPU_I64, from, k->ndim, k->dims)), d));
}

/* The largest whole number up to which dtype d holds all. */
static uint64_t largest(tpu_dtype d) {
  switch (d) {
    case TPU_BOOL: return 1;
    case TPU_F64: return 1ull << 53;
    case TPU_F32: return 1ull << 24;
    case TPU_F16: return 1ull << 11;
    case TPU_BF16: return 1ull << 8;
    case TPU_U64: return UINT64_MAX;
    case TPU_I64: return INT64_MAX;
    default: return (1ull << (8 * tpu_dtype_size(d) - !ir_is_unsigned(d))) - 1;
  }
}

OP(random, "aten::random") { integers(c, 0, largest((tpu_dtype)T(0)->dtype) + 1); }

static void from_to(op_ctx *c, int64_t from, int to_arg) {
  if (!HAS(to_arg)) {
    integers(c, from, largest((tpu_dtype)T(0)->dtype) - (uint64_t)from + 1);
    return;
  }
  int64_t to = INT(to_arg);
  if (from >= to)
    op_fail(c, TPU_ERR_RUNTIME, "random_ expects 'from' to be less than 'to', but got from=%lld >= to=%lld",
            (long long)from, (long long)to);
  integers(c, from, (uint64_t)to - (uint64_t)from);
}
OP(random_from, "aten::random.from") { from_to(c, INT(1), 2); }
OP(random_to, "aten::random.to") { from_to(c, 0, 1); }

/* A random order: places sorted by 64 random bits each. */
static void randperm(op_ctx *c) {
  int64_t n = INT(0);
  const tpu_meta *meta = op_meta(c, 0);
  tpu_dtype d = meta ? (tpu_dtype)meta->dtype : TPU_I64;
  static const struct {
    tpu_dtype d;
    int64_t most;
    const char *text;
  } limits[] = {{TPU_I8, 1 << 7, "value cannot be converted to type int8_t without overflow"},
                {TPU_U8, 1 << 8, "value cannot be converted to type uint8_t without overflow"},
                {TPU_I16, 1 << 15, "value cannot be converted to type int16_t without overflow"},
                {TPU_F16, (1 << 11) + 1, "n cannot be greater than 2049 for Half type."},
                {TPU_F32, (1 << 24) + 1, "n cannot be greater than 2^24+1 for Float type."},
                {TPU_F64, ((int64_t)1 << 53) + 1, "n cannot be greater than 2^53+1 for Double type."}};
  if (n < 0) op_fail(c, TPU_ERR_RUNTIME, "n must be non-negative, got%lld", (long long)n);
  for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
    if (limits[i].d == d && n > limits[i].most) op_fail(c, TPU_ERR_RUNTIME, "%s", limits[i].text);
  if (n <= 1 || ir_failed(G)) {
    RET(t_zeros(c, TPU_I64, 1, &n));
    return;
  }
  val xs[2] = {t_random_bits(c, TPU_U64, 1, &n), t_iota(c, t_index_dtype(n), 1, &n, 0)}, b[4], out[2];
  if (ir_failed(G)) return;
  ir_sort_begin(G, xs, 2, 0, false, b);
  ir_sort_end(G, ir_compare(G, IR_LT, b[0], b[1]), out);
  RET(t_cast(c, out[1], TPU_I64));
}
OP(randperm, "aten::randperm") { randperm(c); }
OP(randperm_generator, "aten::randperm.generator") { randperm(c); }

/* ---- multinomial ---------------------------------------------------------------------------------------------------
 */

/* The first place of each row of `sums` (ascending along dim 1) that is above x: a binary search over all x at once. */
static val first_above(op_ctx *c, val sums, val x) {
  int64_t n = t_size(sums, 1);
  tpu_dtype d = t_index_dtype(n);
  val lo = ir_const_i(G, d, 0, x->ndim, x->dims), hi = ir_const_i(G, d, n, x->ndim, x->dims);
  for (int64_t left = n; left > 0 && !ir_failed(G); left /= 2) {
    val open = P_CMP(LT, lo, hi), mid = ir_binary(G, IR_SHR_L, P_ADD(lo, hi), P_NUM(lo, 1));
    val below_x = P_CMP(LE, t_gather(c, sums, 1, mid), x), right = P_AND(open, below_x);
    hi = P_SEL(P_AND(open, t_not(c, below_x)), mid, hi);
    lo = P_SEL(right, P_ADDC(mid, 1), lo);
  }
  return lo;
}

/* (self: weights [n] or [rows, n], num_samples, replacement) */
OP(multinomial, "aten::multinomial") {
  val w0 = T(0), w = t_cast(c, w0, work_dtype((tpu_dtype)w0->dtype)), picked;
  int64_t samples = INT(1);
  if (ir_failed(G)) return;
  if (w->ndim == 1) w = t_unsqueeze(c, w, 0);
  if (w->ndim != 2) {
    op_fail(c, TPU_ERR_RUNTIME, "prob_dist must be 1 or 2 dim");
    return;
  }
  if (samples <= 0) op_fail(c, TPU_ERR_RUNTIME, "cannot sample n_sample <= 0 samples");
  else if (!INT_OR(2, 0) && samples > w->dims[1])
    op_fail(c, TPU_ERR_RUNTIME, "cannot sample n_sample > prob_dist.size(-1) samples without replacement");
  if (ir_failed(G)) return;
  const int64_t dims[2] = {w->dims[0], samples};
  if (w->dims[0] == 0) {
    picked = t_zeros(c, TPU_I64, 2, dims);
  } else if (INT_OR(2, 0) && samples > 1) {
    val sums = t_cumsum(c, w, 1), all = t_narrow(c, sums, 1, t_size(w, 1) - 1, 1, 1);
    val x = t_mul(c, t_random_uniform(c, (tpu_dtype)w->dtype, 2, dims), all);
    /* rounding may take x up to the total, past the last weight that is not 0 */
    val last = t_sum(c, t_cast(c, t_cmp(c, IR_LT, sums, all), TPU_I32), (int[]){1}, 1, true);
    picked = t_min(c, first_above(c, sums, x), last);
  } else { /* the largest w / q, q exponential: the first ones of a random order drawn by weight */
    val q = P_UN(NEG, P_UN(LOG, open_uniform(c, (tpu_dtype)w->dtype, 2, w->dims))), value;
    if (ir_failed(G)) return;
    val key = P_DIV(w, q);
    if (samples == 1) t_arg_reduce(c, key, 1, true, true, &value, &picked);
    else {
      t_sort(c, key, 1, true, &value, &picked);
      picked = t_narrow(c, picked, 1, 0, samples, 1);
    }
  }
  picked = t_cast(c, picked, TPU_I64);
  RET(w0->ndim == 1 ? t_reshape(c, picked, 1, &samples) : picked);
}
