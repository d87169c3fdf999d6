/* Sorting and what follows from it: topk, order statistics, searches, histograms. */
#include "ops/along.h"

/* x as at least 1-d and its dim from argument i. */
static val with_dim(op_ctx *c, val x, int i, int64_t absent, int *dim) {
  val y = t_at_least_1d(c, x);
  *dim = t_dim(c, INT_OR(i, absent), y->ndim);
  return y;
}

static void ret_pair(op_ctx *c, val values, val indices) {
  RETN(0, t_reshape_meta(c, 0, values));
  RETN(1, t_cast(c, t_reshape_meta(c, 1, indices), TPU_I64));
}

static void sort(op_ctx *c, int dim_arg, int descending_arg) {
  int dim;
  val x = T(0), y = with_dim(c, x, dim_arg, -1, &dim), values, indices;
  t_sort(c, y, dim, INT_OR(descending_arg, 0), &values, &indices);
  RETN(0, t_reshape(c, values, x->ndim, x->dims));
  RETN(1, t_cast(c, t_reshape(c, indices, x->ndim, x->dims), TPU_I64));
}

OP(sort, "aten::sort") { sort(c, 1, 2); }
OP(sort_stable, "aten::sort.stable") { sort(c, 2, 3); }

/* x with its dims dim and last exchanged */
static val last_dim(op_ctx *c, val x, int dim) {
  int perm[T_MAX_DIMS];
  if (dim == x->ndim - 1) return x;
  for (int i = 0; i < x->ndim; i++) perm[i] = i;
  perm[dim] = x->ndim - 1;
  perm[x->ndim - 1] = dim;
  return t_permute(c, x, perm);
}

/* Dtypes that float32 holds exactly: XLA's backends select in float32 without sorting. */
static bool in_f32(tpu_dtype d) {
  return d == TPU_F32 || d == TPU_F16 || d == TPU_BF16 || d == TPU_I8 || d == TPU_U8 || d == TPU_I16 || d == TPU_U16;
}

/* A few of many, without sorting all. The smallest are the largest of -x; NaN counts as the largest number. */
static void select_top(op_ctx *c, val x, int dim, int64_t k, bool largest, val *values, val *indices) {
  val y = t_cast(c, last_dim(c, x, dim), TPU_F32), nan = t_is_nan(c, y);
  y = ir_select(G, nan, t_like(c, y, __builtin_nan("")), y);
  if (!largest) y = ir_unary(G, IR_NEG, y);
  ir_top_k(G, y, k, values, indices);
  if (!largest) *values = ir_unary(G, IR_NEG, *values);
  *values = t_cast(c, last_dim(c, *values, dim), (tpu_dtype)x->dtype);
  *indices = last_dim(c, *indices, dim);
}

OP(topk, "aten::topk") {
  int dim;
  val x = with_dim(c, T(0), 2, -1, &dim), values, indices;
  int64_t k = INT(1), n = t_size(x, dim);
  if (k < 0 || k > n) op_fail(c, TPU_ERR_RUNTIME, "selected index k out of range");
  if (!ir_failed(G) && in_f32((tpu_dtype)x->dtype) && k > 0 && (k <= n / 4 || ir_sizes_vary(G)) && ir_numel(x)) {
    select_top(c, x, dim, k, INT(3), &values, &indices);
    ret_pair(c, values, indices);
    return;
  }
  t_sort(c, x, dim, INT(3), &values, &indices);
  ret_pair(c, t_narrow(c, values, dim, 0, k, 1), t_narrow(c, indices, dim, 0, k, 1));
}

/* ---- order statistics ------------------------------------------------------------------------------------------ */

/* Element at (a size-1 value along dim) of the sorted values and their indices, with or without dim. */
static void ret_one(op_ctx *c, val v, val i, int dim, bool keep) {
  ret_pair(c, keep ? v : t_squeeze(c, v, dim), keep ? i : t_squeeze(c, i, dim));
}
static void pick(op_ctx *c, val values, val indices, val at, int dim, bool keep) {
  ret_one(c, t_gather(c, values, dim, at), t_gather(c, indices, dim, at), dim, keep);
}

/* The bits of floats as integers of the same order, or back: those of negative ones are turned around. */
static val turned(op_ctx *c, val b) {
  val sign = ir_binary(G, IR_SHR_A, b, t_like(c, b, b->dtype == TPU_I64 ? 63 : 31));
  return ir_binary(G, IR_XOR, b, ir_binary(G, IR_AND, sign, ir_const_max(G, (tpu_dtype)b->dtype, b->ndim, b->dims)));
}

/* Signed integers in the order of x, NaN last; and back. */
static val to_keys(op_ctx *c, val x) {
  tpu_dtype d = (tpu_dtype)x->dtype;
  if (!ir_is_float(d)) return t_cast(c, x, TPU_I64);
  x = ir_select(G, t_is_nan(c, x), t_like(c, x, __builtin_nan("")), x);
  return turned(c, ir_bitcast(G, x, d == TPU_F64 ? TPU_I64 : TPU_I32));
}
static val from_keys(op_ctx *c, val keys, tpu_dtype d) {
  return ir_is_float(d) ? ir_bitcast(G, turned(c, keys), d) : t_cast(c, keys, d);
}

/* The element at place `at` (size 1 along dim) of x in order and its first index, without sorting: its key is found bit
 * by bit, each by counting the keys below a bound. 20 times faster than XLA's sort of a million floats on a CPU. */
static void select_place(op_ctx *c, val x0, int dim, val at, val *value, val *index) {
  tpu_dtype d0 = (tpu_dtype)x0->dtype, d = ir_is_float(d0) ? t_opmath(d0) : d0;
  val keys = to_keys(c, t_cast(c, x0, d)),
      iota = ir_iota(G, t_index_dtype(t_size(keys, dim)), keys->ndim, keys->dims, dim);
  if (ir_failed(G)) return;
  tpu_dtype dk = (tpu_dtype)keys->dtype;
  int bits = dk == TPU_I64 ? 64 : 32;
  val low = ir_const_min(G, dk, at->ndim, at->dims), bit = ir_const_min(G, dk, 0, NULL); /* the sign bit */
  val init[5] = {t_scalar(c, TPU_I32, 0), bit, low, keys, t_cast(c, at, (tpu_dtype)iota->dtype)}, v[5], out[5];
  ir_while_begin(G, init, 5, v);
  ir_while_body(G, ir_compare(G, IR_LT, v[0], t_scalar(c, TPU_I32, bits)), v);
  val bound =
      ir_binary(G, IR_ADD, v[2], t_broadcast_to(c, v[1], at->ndim, at->dims)); /* from the least key: wraps to 0 */
  val below = ir_compare(G, IR_LT, v[3], t_broadcast_to(c, bound, keys->ndim, keys->dims));
  val count = t_sum(c, ir_convert(G, below, (tpu_dtype)iota->dtype), &dim, 1, true);
  val next[5] = {ir_binary(G, IR_ADD, v[0], t_scalar(c, TPU_I32, 1)), ir_binary(G, IR_SHR_L, v[1], t_like(c, v[1], 1)),
                 ir_select(G, ir_compare(G, IR_LE, count, v[4]), bound, v[2]), v[3], v[4]};
  ir_while_end(G, next, out);
  val found = ir_compare(G, IR_EQ, keys, t_broadcast_to(c, out[2], keys->ndim, keys->dims));
  val none = ir_const_max(G, (tpu_dtype)iota->dtype, iota->ndim, iota->dims);
  *index = t_amin(c, ir_select(G, found, iota, none), &dim, 1, true);
  *value = t_cast(c, from_keys(c, out[2], d), d0);
}
enum { SELECT_FROM = 256 }; /* elements; fewer are sorted */
static bool selects(val x, int dim) { return t_size(x, dim) >= SELECT_FROM && x->dtype != TPU_U64 && !t_is_complex(x); }

/* The same place for all: size 1 along dim. */
static val place_const(op_ctx *c, val x, int dim, int64_t place) {
  int64_t dims[T_MAX_DIMS];
  for (int i = 0; i < x->ndim; i++) dims[i] = i == dim ? 1 : x->dims[i];
  return ir_const_i(G, t_index_dtype(t_size(x, dim)), place, x->ndim, dims);
}

OP(kthvalue, "aten::kthvalue") {
  int dim;
  val x = with_dim(c, T(0), 2, -1, &dim), values, indices;
  int64_t k = INT(1), n = t_size(x, dim);
  if (t_refuse_empty_dim(c, x, dim, "kthvalue")) return;
  if (k < 1 || k > n) op_fail(c, TPU_ERR_INDEX, "kthvalue(): selected number k out of range for dimension %d", dim);
  if (ir_failed(G)) return;
  if (selects(x, dim)) {
    select_place(c, x, dim, place_const(c, x, dim, k - 1), &values, &indices);
  } else {
    t_sort(c, x, dim, false, &values, &indices);
    values = t_narrow(c, values, dim, k - 1, 1, 1);
    indices = t_narrow(c, indices, dim, k - 1, 1, 1);
  }
  if (!ir_failed(G)) ret_one(c, values, indices, dim, INT_OR(3, 0));
}

/* Place of the median of x in order, as a value with size 1 along dim: of all elements, or the first NaN if there is
 * one, or (ignore_nan) of those that are not NaN. */
static val median_place(op_ctx *c, val x, int dim, bool ignore_nan) {
  int64_t n = t_size(x, dim);
  tpu_dtype d = t_index_dtype(n);
  val nan = t_is_nan(c, x);
  if (!nan) return place_const(c, x, dim, (n - 1) / 2);
  val numbers = t_sum(c, ir_convert(G, ir_unary(G, IR_NOT, nan), d), &dim, 1, true);
  if (ignore_nan) {
    val last = ir_binary(G, IR_MAX, ir_binary(G, IR_SUB, numbers, t_like(c, numbers, 1)), t_like(c, numbers, 0));
    return ir_binary(G, IR_DIV, last, t_like(c, numbers, 2));
  }
  val clean = ir_compare(G, IR_EQ, numbers, t_like(c, numbers, (double)n));
  return ir_select(G, clean, t_like(c, numbers, (double)((n - 1) / 2)), numbers);
}

static void median_dim(op_ctx *c, bool ignore_nan) {
  int dim;
  val x0 = T(0), x = with_dim(c, x0, 1, 0, &dim), values, indices;
  if (t_refuse_empty_dim(c, x, dim, "median")) return;
  bool keep = INT_OR(2, 0) && x0->ndim;
  if (selects(x, dim)) {
    select_place(c, x, dim, median_place(c, x, dim, ignore_nan), &values, &indices);
    if (!ir_failed(G)) ret_one(c, values, indices, dim, keep);
    return;
  }
  t_sort(c, x, dim, false, &values, &indices);
  pick(c, values, indices, median_place(c, values, dim, ignore_nan), dim, keep);
}

static void median_all(op_ctx *c, bool ignore_nan) {
  val x = t_flatten(c, T(0)), values, indices;
  if (t_size(x, 0) == 0) {
    RET(t_scalar(c, t_float_dtype(c, x), __builtin_nan("")));
    return;
  }
  if (selects(x, 0)) {
    select_place(c, x, 0, median_place(c, x, 0, ignore_nan), &values, &indices);
    if (!ir_failed(G)) RET(t_squeeze(c, values, 0));
    return;
  }
  t_sort(c, x, 0, false, &values, &indices);
  RET(t_squeeze(c, t_gather(c, values, 0, median_place(c, values, 0, ignore_nan)), 0));
}

OP(median, "aten::median") { median_all(c, false); }
OP(nanmedian, "aten::nanmedian") { median_all(c, true); }
OP(median_dim, "aten::median.dim") { median_dim(c, false); }
OP(nanmedian_dim, "aten::nanmedian.dim") { median_dim(c, true); }

static void later_start(op_ctx *c, const val *a, const val *b, val *out) { *out = ir_binary(G, IR_MAX, *a, *b); }

/* The most frequent value, the smallest of them; its last index. */
OP(mode, "aten::mode") {
  int dim;
  val x0 = T(0), x = with_dim(c, x0, 1, -1, &dim), values, indices, best, at;
  int64_t n = t_size(x, dim);
  if (t_refuse_empty_dim(c, x, dim, "mode")) return;
  t_sort(c, x, dim, false, &values, &indices);
  tpu_dtype d = t_index_dtype(n);
  val place = ir_iota(G, d, x->ndim, x->dims, dim);
  val before = t_narrow(c, values, dim, 0, n - 1, 1), after = t_narrow(c, values, dim, 1, n - 1, 1);
  int64_t low[T_MAX_DIMS] = {0}, zero[T_MAX_DIMS] = {0};
  low[dim] = 1;
  val starts = ir_pad(G, ir_compare(G, IR_NE, before, after), t_scalar(c, TPU_BOOL, 1), low, zero, zero);
  val start = ir_select(G, starts, place, t_like(c, place, 0)), none = t_scalar(c, d, 0);
  t_scan(c, &start, &none, 1, dim, later_start, true);
  t_arg_reduce(c, ir_binary(G, IR_SUB, place, start), dim, true, true, &best, &at);
  pick(c, values, indices, at, dim, INT_OR(2, 0) && x0->ndim);
}

/* ---- searches and histograms ----------------------------------------------------------------------------------- */

val t_search(op_ctx *c, val seq, val v, bool right) {
  val both[2] = {seq, v};
  tpu_dtype dt = t_result_type(c, both, 2);
  seq = t_cast(c, seq, dt);
  v = t_cast(c, v, dt);
  int last = seq->ndim - 1;
  int64_t n = t_size(seq, last);
  tpu_dtype d = t_index_dtype(n);
  val lo = t_zeros(c, d, v->ndim, v->dims), hi = ir_const_i(G, d, n, v->ndim, v->dims), one = t_like(c, lo, 1);
  int steps = 0;
  for (int64_t span = n; span > 0; span /= 2) steps++;
  for (int i = 0; i < steps && !ir_failed(G) && ir_numel(v); i++) {
    val open = ir_compare(G, IR_LT, lo, hi);
    val mid = ir_binary(G, IR_ADD, lo, ir_binary(G, IR_SHR_A, ir_binary(G, IR_SUB, hi, lo), one));
    val at = ir_binary(G, IR_MIN, mid, ir_const_i(G, d, n - 1, v->ndim, v->dims));
    val m = seq->ndim == 1 ? t_take(c, seq, 0, at) : t_gather(c, seq, last, at);
    val up = ir_unary(G, IR_NOT, ir_compare(G, right ? IR_GT : IR_GE, m, v));
    lo = ir_select(G, ir_binary(G, IR_AND, open, up), ir_binary(G, IR_ADD, mid, one), lo);
    hi = ir_select(G, ir_binary(G, IR_AND, open, ir_unary(G, IR_NOT, up)), mid, hi);
  }
  return lo;
}

static void searchsorted(op_ctx *c, val v) {
  val seq = T(0);
  if (HAS(5)) seq = t_gather(c, seq, seq->ndim - 1, T(5));
  const char *side = op_str(c, 4);
  bool right = INT_OR(3, 0) || side[0] == 'r';
  bool scalar = v->ndim == 0 && seq->ndim > 1;
  val r = t_search(c, seq, scalar ? t_reshape(c, v, 1, (const int64_t[]){1}) : v, right);
  RET(t_cast(c, t_reshape_meta(c, 0, r), INT_OR(2, 0) ? TPU_I32 : TPU_I64));
}

OP(searchsorted, "aten::searchsorted.Tensor") { searchsorted(c, T(1)); }
OP(searchsorted_scalar, "aten::searchsorted.Scalar") { searchsorted(c, S(1)); }

static void bucketize(op_ctx *c, val v) {
  val edges = T(1);
  if (!ir_failed(G) && edges->ndim != 1)
    op_fail(c, TPU_ERR_RUNTIME, "boundaries tensor must be 1 dimension, but got dim(%d)", edges->ndim);
  RET(t_cast(c, t_search(c, T(1), v, INT_OR(3, 0)), INT_OR(2, 0) ? TPU_I32 : TPU_I64));
}

OP(bucketize, "aten::bucketize.Tensor") { bucketize(c, T(0)); }
OP(bucketize_scalar, "aten::bucketize.Scalar") { bucketize(c, S(0)); }

/* Elements that are also in the test values. */
static void isin(op_ctx *c, val x, val test) {
  val both[2] = {x, t_flatten(c, test)}, sorted, indices;
  tpu_dtype d = t_result_type(c, both, 2);
  if (d == TPU_BOOL) d = TPU_U8;
  x = t_cast(c, x, d);
  test = t_cast(c, both[1], d);
  val found = t_zeros(c, TPU_BOOL, x->ndim, x->dims);
  if (ir_numel(test) && ir_numel(x)) {
    t_sort(c, test, 0, false, &sorted, &indices);
    val at = t_search(c, sorted, x, false);
    found = ir_compare(G, IR_EQ, t_take(c, sorted, 0, at), x); /* past the end: the last one, which is smaller */
  }
  RET(INT_OR(3, 0) ? ir_unary(G, IR_NOT, found) : found);
}

OP(isin, "aten::isin.Tensor_Tensor") { isin(c, T(0), T(1)); }
OP(isin_scalar, "aten::isin.Tensor_Scalar") { isin(c, T(0), S(1)); }

/* Equal bins over [min, max], or over the range of the data when the two are equal; what lies outside is
 * not counted. */
OP(histc, "aten::histc") {
  val in = T(0), x = t_flatten(c, t_float(c, in));
  int64_t bins = INT_OR(1, 100);
  tpu_dtype d = (tpu_dtype)x->dtype;
  val lo = t_cast(c, S(2), d), hi = t_cast(c, S(3), d), zero = t_scalar(c, d, 0), one = t_scalar(c, d, 1);
  if (ir_numel(x)) {
    val same = ir_compare(G, IR_EQ, lo, hi);
    lo = ir_select(G, same, t_amin(c, x, NULL, 0, false), lo);
    hi = ir_select(G, same, t_amax(c, x, NULL, 0, false), hi);
  }
  val same = ir_compare(G, IR_EQ, lo, hi);
  lo = ir_binary(G, IR_SUB, lo, ir_select(G, same, one, zero));
  hi = ir_binary(G, IR_ADD, hi, ir_select(G, same, one, zero));
  val inside = t_and(c, t_cmp(c, IR_GE, x, lo), t_cmp(c, IR_LE, x, hi));
  val place = t_div(c, t_mul(c, t_sub(c, x, lo), t_scalar(c, d, (double)bins)), t_sub(c, hi, lo));
  tpu_dtype di = t_index_dtype(bins);
  val bin = ir_convert(G, ir_select(G, inside, place, t_like(c, place, 0)), di);
  bin = ir_binary(G, IR_MIN, bin, t_like(c, bin, (double)(bins - 1)));
  val counts = t_zeros(c, d, 1, &bins);
  counts = t_scatter(c, counts, 0, bin, ir_convert(G, inside, d), IR_ADD);
  RET(t_cast(c, counts, (tpu_dtype)in->dtype));
}
