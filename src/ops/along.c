#include "ops/along.h"

#include <string.h>

val t_at_least_1d(op_ctx *c, val x) { return x->ndim ? x : t_reshape(c, x, 1, (const int64_t[]){1}); }

val t_reshape_meta(op_ctx *c, int ret, val v) {
  const tpu_meta *m = op_meta(c, ret);
  return m && m->defined ? t_reshape(c, v, m->ndim, m->sizes) : v;
}

val t_is_nan(op_ctx *c, val x) { return t_is_float(x) || t_is_complex(x) ? ir_compare(G, IR_NE, x, x) : NULL; }

tpu_dtype t_index_dtype(int64_t n) { return n < INT32_MAX ? TPU_I32 : TPU_I64; }

val t_wrap_index(op_ctx *c, val index, int64_t n) {
  tpu_dtype d = t_index_dtype(n);
  val i = ir_convert(G, index, d);
  if (index->dtype == TPU_BOOL || ir_is_unsigned((tpu_dtype)index->dtype)) return i;
  val negative = ir_compare(G, IR_LT, i, ir_const_i(G, d, 0, i->ndim, i->dims));
  return ir_select(G, negative, ir_binary(G, IR_ADD, i, ir_const_i(G, d, n, i->ndim, i->dims)), i);
}

val t_iota_dim(op_ctx *c, tpu_dtype d, int ndim, int dim, int64_t n) {
  int64_t dims[T_MAX_DIMS];
  for (int i = 0; i < ndim; i++) dims[i] = i == dim ? n : 1;
  return ir_iota(G, d, ndim, dims, dim);
}

static val index_value(op_ctx *c, val index, int64_t n) { return ir_convert(G, index, t_index_dtype(n)); }

val t_take(op_ctx *c, val x, int dim, val index) {
  int64_t out[T_MAX_DIMS], slice[T_MAX_DIMS];
  int offset[T_MAX_DIMS], noffset = 0, ndim = 0;
  for (int d = 0; d < x->ndim; d++) {
    slice[d] = d == dim ? 1 : x->dims[d];
    if (d == dim) {
      for (int k = 0; k < index->ndim && ndim < T_MAX_DIMS; k++) out[ndim++] = index->dims[k];
    } else if (ndim < T_MAX_DIMS) {
      offset[noffset++] = ndim;
      out[ndim++] = x->dims[d];
    }
  }
  for (int d = 0; d < ndim; d++)
    if (out[d] == 0) return t_zeros(c, (tpu_dtype)x->dtype, ndim, out);
  ir_gather_dims g = {.noffset = noffset,
                      .offset_dims = offset,
                      .ncollapsed = 1,
                      .collapsed_dims = &dim,
                      .nstart = 1,
                      .start_index_map = &dim,
                      .index_vector_dim = index->ndim};
  return ir_gather(G, x, index_value(c, index, t_size(x, dim)), &g, slice, false);
}

static int other_dims(int ndim, int dim, int *out) {
  int n = 0;
  for (int d = 0; d < ndim; d++)
    if (d != dim) out[n++] = d;
  return n;
}

val t_gather(op_ctx *c, val x, int dim, val index) {
  if (ir_numel(index) == 0) return t_zeros(c, (tpu_dtype)x->dtype, index->ndim, index->dims);
  for (int d = 0; d < x->ndim; d++)
    if (d != dim && t_size(index, d) < x->dims[d]) x = t_narrow(c, x, d, 0, t_size(index, d), 1);
  if (x->ndim == 1) return t_take(c, x, 0, index);
  int others[T_MAX_DIMS], n = other_dims(x->ndim, dim, others);
  int64_t slice[T_MAX_DIMS];
  for (int d = 0; d < x->ndim; d++) slice[d] = 1;
  ir_gather_dims g = {.ncollapsed = 1,
                      .collapsed_dims = &dim,
                      .nbatching = n,
                      .operand_batching = others,
                      .indices_batching = others,
                      .nstart = 1,
                      .start_index_map = &dim,
                      .index_vector_dim = index->ndim};
  return ir_gather(G, x, index_value(c, index, t_size(x, dim)), &g, slice, false);
}

/* Joins indices of several dims to one tensor with a last dim. */
static val index_vectors(op_ctx *c, int dim, val index, tpu_dtype d) {
  val parts[T_MAX_DIMS];
  int64_t dims[T_MAX_DIMS + 1];
  memcpy(dims, index->dims, (size_t)index->ndim * sizeof *dims);
  dims[index->ndim] = 1;
  for (int k = 0; k < index->ndim; k++)
    parts[k] = k == dim ? ir_reshape(G, ir_convert(G, index, d), index->ndim + 1, dims)
                        : ir_iota(G, d, index->ndim + 1, dims, k);
  return ir_concat(G, parts, index->ndim, index->ndim);
}

static tpu_dtype accumulator(val x, int body) {
  return body == IR_ADD || body == IR_MUL ? t_opmath((tpu_dtype)x->dtype) : (tpu_dtype)x->dtype;
}

val t_scatter(op_ctx *c, val x, int dim, val index, val src, int body) {
  if (ir_numel(index) == 0 || ir_numel(x) == 0) return x;
  for (int d = 0; d < src->ndim; d++)
    if (t_size(index, d) < src->dims[d]) src = t_narrow(c, src, d, 0, t_size(index, d), 1);
  if (body == IR_ADD && x->dtype == TPU_BOOL) body = IR_OR;
  if (body == IR_MUL && x->dtype == TPU_BOOL) body = IR_AND;
  tpu_dtype d = (tpu_dtype)x->dtype, acc = accumulator(x, body);
  bool equal = true;
  for (int k = 0; k < x->ndim; k++) equal &= k == dim || x->dims[k] == t_size(index, k);
  x = t_cast(c, x, acc);
  src = t_cast(c, src, acc);
  int others[T_MAX_DIMS], n = other_dims(x->ndim, dim, others), all[T_MAX_DIMS];
  for (int k = 0; k < x->ndim; k++) all[k] = k;
  val out;
  if (equal) {
    ir_scatter_dims s = {.ninserted = 1,
                         .inserted_window_dims = &dim,
                         .nbatching = n,
                         .operand_batching = others,
                         .indices_batching = others,
                         .nscatter = 1,
                         .scatter_dims_to_operand = &dim,
                         .index_vector_dim = index->ndim};
    out = ir_scatter(G, x, index_value(c, index, t_size(x, dim)), src, &s, body, false, false);
  } else {
    int64_t largest = 0;
    for (int k = 0; k < x->ndim; k++) largest = x->dims[k] > largest ? x->dims[k] : largest;
    ir_scatter_dims s = {.ninserted = x->ndim,
                         .inserted_window_dims = all,
                         .nscatter = x->ndim,
                         .scatter_dims_to_operand = all,
                         .index_vector_dim = index->ndim};
    out = ir_scatter(G, x, index_vectors(c, dim, index, t_index_dtype(largest)), src, &s, body, false, false);
  }
  return t_cast(c, out, d);
}

val t_scatter_slices(op_ctx *c, val x, int dim, val index, val src, int body) {
  if (ir_numel(src) == 0 || ir_numel(x) == 0) return x;
  if (body == IR_ADD && x->dtype == TPU_BOOL) body = IR_OR;
  if (body == IR_MUL && x->dtype == TPU_BOOL) body = IR_AND;
  tpu_dtype d = (tpu_dtype)x->dtype, acc = accumulator(x, body);
  int others[T_MAX_DIMS], n = other_dims(x->ndim, dim, others);
  ir_scatter_dims s = {.nwindow = n,
                       .update_window_dims = others,
                       .ninserted = 1,
                       .inserted_window_dims = &dim,
                       .nscatter = 1,
                       .scatter_dims_to_operand = &dim,
                       .index_vector_dim = 1};
  val out = ir_scatter(G, t_cast(c, x, acc), index_value(c, index, t_size(x, dim)), t_cast(c, src, acc), &s, body,
                       false, false);
  return t_cast(c, out, d);
}

void t_sort(op_ctx *c, val x, int dim, bool descending, val *values, val *indices) {
  if (t_is_complex(x)) op_fail(c, TPU_ERR_NOT_IMPLEMENTED, "sort: complex numbers have no order");
  int64_t n = t_size(x, dim);
  val iota = ir_iota(G, t_index_dtype(n), x->ndim, x->dims, dim);
  if (n <= 1) {
    *values = x;
    *indices = iota;
    return;
  }
  val xs[2] = {x, iota}, a[4], out[2];
  ir_sort_begin(G, xs, 2, dim, true, a);
  val first = descending ? a[1] : a[0], second = descending ? a[0] : a[1];
  val less = ir_compare(G, IR_LT, first, second);
  val first_nan = t_is_nan(c, first), second_nan = t_is_nan(c, second);
  if (first_nan) less = ir_binary(G, IR_OR, less, ir_binary(G, IR_AND, second_nan, ir_unary(G, IR_NOT, first_nan)));
  ir_sort_end(G, less, out);
  *values = out[0];
  *indices = out[1];
}

/* Value and place in one reduction, which a TPU reads x once for: the first of the best, the first NaN before all. */
static void arg_reduce_pairs(op_ctx *c, val x, int dim, bool max, bool keep, val *value, val *index) {
  tpu_dtype d = (tpu_dtype)x->dtype, di = t_index_dtype(t_size(x, dim));
  const val xs[2] = {x, ir_iota(G, di, x->ndim, x->dims, dim)};
  const val start[2] = {max ? ir_const_min(G, d, 0, NULL) : ir_const_max(G, d, 0, NULL), ir_const_max(G, di, 0, NULL)};
  val b[4], out[2];
  int64_t dims[T_MAX_DIMS];
  if (ir_failed(G)) return;
  for (int i = 0; i < x->ndim; i++) dims[i] = i == dim ? 1 : x->dims[i];
  ir_reduce_begin(G, xs, start, 2, 1, &dim, b);
  val first = ir_compare(G, max ? IR_GT : IR_LT, b[0], b[2]), same = ir_compare(G, IR_EQ, b[0], b[2]);
  val nan0 = t_is_nan(c, b[0]), nan2 = t_is_nan(c, b[2]);
  if (nan0) {
    first = ir_binary(G, IR_OR, first, ir_binary(G, IR_AND, nan0, ir_unary(G, IR_NOT, nan2)));
    same = ir_binary(G, IR_OR, same, ir_binary(G, IR_AND, nan0, nan2));
  }
  val take = ir_binary(G, IR_OR, first, ir_binary(G, IR_AND, same, ir_compare(G, IR_LT, b[1], b[3])));
  ir_reduce_end(G, (const val[]){ir_select(G, take, b[0], b[2]), ir_select(G, take, b[1], b[3])}, out);
  *value = keep ? t_reshape(c, out[0], x->ndim, dims) : out[0];
  *index = keep ? t_reshape(c, out[1], x->ndim, dims) : out[1];
}

void t_arg_reduce(op_ctx *c, val x, int dim, bool max, bool keep, val *value, val *index) {
  int64_t n = t_size(x, dim);
  if (op_for_tpu(c) && x->dtype != TPU_BOOL) {
    arg_reduce_pairs(c, x, dim, max, keep, value, index);
    return;
  }
  val best = max ? t_amax(c, x, &dim, 1, true) : t_amin(c, x, &dim, 1, true);
  val hit = ir_compare(G, IR_EQ, x, t_broadcast_to(c, best, x->ndim, x->dims)), nan = t_is_nan(c, x);
  if (nan) hit = ir_binary(G, IR_OR, hit, nan);
  tpu_dtype d = t_index_dtype(n);
  val at = ir_select(G, hit, ir_iota(G, d, x->ndim, x->dims, dim), ir_const_i(G, d, n, x->ndim, x->dims));
  *index = t_amin(c, at, &dim, 1, keep);
  *value = keep ? best : t_squeeze(c, best, dim);
}

/* ---- scans ----------------------------------------------------------------------------------------------------- */

enum { SCAN_BLOCK = 32, SCAN_UNROLLED = 8 };

/* x moved on by s places along dim; the identity comes in, the last s go. */
static val shifted(op_ctx *c, val x, val identity, int dim, int64_t low, int64_t high) {
  int64_t lows[T_MAX_DIMS] = {0}, highs[T_MAX_DIMS] = {0}, interior[T_MAX_DIMS] = {0};
  lows[dim] = low;
  highs[dim] = high;
  return ir_pad(G, x, identity, lows, highs, interior);
}

static void scan_unrolled(op_ctx *c, val *xs, const val *identity, int n, int dim, t_combine f) {
  int64_t size = t_size(xs[0], dim);
  for (int64_t s = 1; s < size; s *= 2) {
    val before[2], out[2];
    for (int i = 0; i < n; i++) before[i] = shifted(c, xs[i], identity[i], dim, s, -s);
    f(c, before, xs, out);
    for (int i = 0; i < n; i++) xs[i] = out[i];
  }
}

/* One step for every place of a block, all blocks at a time: a loop, because XLA would fuse a chain of steps into one
 * computation that repeats the early ones again and again. */
static void scan_block(op_ctx *c, val *xs, const val *identity, int n, int dim, t_combine f) {
  int64_t size = t_size(xs[0], dim), one[T_MAX_DIMS];
  int ndim = xs[0]->ndim;
  if (ir_failed(G)) return;
  if (size <= SCAN_UNROLLED) {
    scan_unrolled(c, xs, identity, n, dim, f);
    return;
  }
  val init[5], cond[5], body[5], next[5], at[T_MAX_DIMS];
  for (int d = 0; d < ndim; d++) one[d] = d == dim ? 1 : xs[0]->dims[d];
  init[0] = t_scalar(c, TPU_I32, 0);
  for (int i = 0; i < n; i++) {
    init[1 + i] = ir_splat(G, identity[i], ndim, one);
    init[1 + n + i] = xs[i];
  }
  ir_while_begin(G, init, 1 + 2 * n, cond);
  ir_while_body(G, ir_compare(G, IR_LT, cond[0], t_scalar(c, TPU_I32, (double)size)), body);
  for (int d = 0; d < ndim; d++) at[d] = d == dim ? body[0] : t_scalar(c, TPU_I32, 0);
  val element[2];
  for (int i = 0; i < n; i++) element[i] = ir_dynamic_slice(G, body[1 + n + i], at, one);
  f(c, body + 1, element, next + 1);
  for (int i = 0; i < n; i++) next[1 + n + i] = ir_dynamic_update_slice(G, body[1 + n + i], next[1 + i], at);
  next[0] = ir_binary(G, IR_ADD, body[0], t_scalar(c, TPU_I32, 1));
  val out[5];
  ir_while_end(G, next, out);
  for (int i = 0; i < n; i++) xs[i] = out[1 + n + i];
}

/* One window for each place, which begins before all elements and ends there. */
static void scan_windows(op_ctx *c, val *xs, const val *identity, int n, int dim, t_combine f) {
  int64_t size[T_MAX_DIMS], low[T_MAX_DIMS] = {0};
  val args[4], out[2];
  for (int d = 0; d < xs[0]->ndim; d++) size[d] = d == dim ? t_size(xs[0], dim) : 1;
  low[dim] = size[dim] - 1;
  ir_reduce_window_begin(G, xs, identity, n, &(ir_window){.size = size, .pad_low = low}, args);
  f(c, args, args + n, out);
  ir_reduce_window_end(G, out, xs);
}

/* Blocks of LANES on a CPU: the combination of each place with those before it in its block is one expression of as
 * many leaves, slices of x that are moved on by 0, 1, ... places. XLA makes one loop of vectors of it, which all cores
 * share. The loop of scan_block goes over all of the memory in each step when a block lies along the last dim. */
enum { LANES = 8, LANES_FROM = 1 << 16 /* elements; it has more to compile */ };

static bool by_lanes(op_ctx *c, val x, int n, int dim) {
  int64_t after = 1;
  if (ir_failed(G) || !ir_is_cpu(G) || x->ndim + 1 > T_MAX_DIMS || ir_numel(x) < LANES_FROM || x->dims[dim] == 1)
    return false;
  for (int d = dim + 1; d < x->ndim; d++) after *= x->dims[d];
  return n > 1 || after < SCAN_BLOCK; /* else the loop's steps are made of vectors, too */
}

static void scan_lanes(op_ctx *c, val *xs, const val *identity, int n, int dim, t_combine f) {
  val leaf[LANES][2], padded[2];
  int ndim = xs[0]->ndim;
  int64_t size = t_size(xs[0], dim), whole = (size + LANES - 1) / LANES * LANES, dims[T_MAX_DIMS], split[T_MAX_DIMS];
  if (ir_failed(G)) return;
  for (int d = 0; d < ndim; d++) split[d + (d > dim)] = dims[d] = xs[0]->dims[d];
  dims[dim] = whole;
  split[dim] = whole / LANES;
  split[dim + 1] = LANES;
  val lane = ir_binary(G, IR_AND, ir_iota(G, TPU_I32, ndim, dims, dim), ir_const_i(G, TPU_I32, LANES - 1, ndim, dims));
  for (int i = 0; i < n; i++) padded[i] = shifted(c, xs[i], identity[i], dim, LANES - 1, whole - size);
  ir_barrier(G, padded, n, padded); /* else each leaf pads for itself */
  for (int s = 0; s < LANES; s++) {
    val inside = ir_compare(G, IR_GE, lane, ir_const_i(G, TPU_I32, s, ndim, dims));
    for (int i = 0; i < n; i++) {
      val moved = t_narrow(c, padded[i], dim, LANES - 1 - s, whole, 1);
      leaf[LANES - 1 - s][i] = s ? ir_select(G, inside, moved, ir_splat(G, identity[i], ndim, dims)) : moved;
    }
  }
  for (int step = 1; step < LANES; step *= 2)
    for (int k = 0; k < LANES; k += 2 * step) {
      val out[2];
      f(c, leaf[k], leaf[k + step], out);
      for (int i = 0; i < n; i++) leaf[k][i] = out[i];
    }
  val total[2], out[2], carry[2];
  if (ir_failed(G)) return;
  if (whole == LANES) { /* one block */
    for (int i = 0; i < n; i++) xs[i] = t_narrow(c, leaf[0][i], dim, 0, size, 1);
    return;
  }
  for (int i = 0; i < n; i++) total[i] = t_narrow(c, leaf[0][i], dim, LANES - 1, whole / LANES, LANES);
  ir_barrier(G, total, n, total); /* XLA would make one expression of all levels */
  t_scan(c, total, identity, n, dim, f, true);
  ir_barrier(G, total, n, total);
  for (int i = 0; i < n; i++) {
    carry[i] =
        t_broadcast_to(c, t_unsqueeze(c, shifted(c, total[i], identity[i], dim, 1, -1), dim + 1), ndim + 1, split);
    carry[i] = t_reshape(c, carry[i], ndim, dims);
  }
  f(c, carry, leaf[0], out);
  for (int i = 0; i < n; i++) xs[i] = t_narrow(c, out[i], dim, 0, size, 1);
}

void t_scan(op_ctx *c, val *xs, const val *identity, int n, int dim, t_combine f, bool cheap) {
  /* XLA makes blocks of such windows by itself; on a TPU they take half of what our loop over blocks does, and of a
   * million elements and more in a row a hundredth. */
  /* Only for bodies of one operation: libtpu 0.0.52 aborts on others that it wants to fuse. */
  if (ir_sizes_vary(G) || (!ir_is_cpu(G) && n == 1 && cheap)) {
    if (!ir_failed(G) && ir_numel(xs[0])) scan_windows(c, xs, identity, n, dim, f);
    return;
  }
  if (cheap && by_lanes(c, xs[0], n, dim)) {
    scan_lanes(c, xs, identity, n, dim, f);
    return;
  }
  int64_t size = t_size(xs[0], dim), blocks = (size + SCAN_BLOCK - 1) / SCAN_BLOCK;
  int ndim = xs[0]->ndim;
  if (ir_failed(G) || ir_numel(xs[0]) == 0) return;
  if (size <= SCAN_BLOCK || ndim + 1 > T_MAX_DIMS) {
    scan_block(c, xs, identity, n, dim, f);
    return;
  }
  int64_t split[T_MAX_DIMS], joined[T_MAX_DIMS];
  val total[2], out[2];
  for (int i = 0; i < n; i++) {
    for (int d = 0; d < ndim; d++) split[d + (d > dim)] = joined[d] = xs[0]->dims[d];
    split[dim] = blocks;
    split[dim + 1] = SCAN_BLOCK;
    joined[dim] = blocks * SCAN_BLOCK;
    val x = shifted(c, xs[i], identity[i], dim, 0, joined[dim] - size);
    out[i] = ir_reshape(G, x, ndim + 1, split);
  }
  scan_block(c, out, identity, n, dim + 1, f);
  for (int i = 0; i < n; i++) {
    xs[i] = out[i];
    total[i] = t_squeeze(c, t_narrow(c, out[i], dim + 1, SCAN_BLOCK - 1, 1, 1), dim + 1);
  }
  t_scan(c, total, identity, n, dim, f, cheap);
  for (int i = 0; i < n; i++)
    total[i] =
        t_broadcast_to(c, t_unsqueeze(c, shifted(c, total[i], identity[i], dim, 1, -1), dim + 1), ndim + 1, split);
  f(c, total, xs, out);
  for (int i = 0; i < n; i++) xs[i] = t_narrow(c, ir_reshape(G, out[i], ndim, joined), dim, 0, size, 1);
}

static void combine_add(op_ctx *c, const val *a, const val *b, val *out) { *out = ir_binary(G, IR_ADD, *a, *b); }

val t_cumsum(op_ctx *c, val x, int dim) {
  tpu_dtype d = (tpu_dtype)x->dtype;
  val y = t_cast(c, x, t_opmath(d)), zero = t_scalar(c, t_opmath(d), 0);
  t_scan(c, &y, &zero, 1, dim, combine_add, true);
  return t_cast(c, y, d);
}

val t_mask_positions(op_ctx *c, val flat_mask) {
  tpu_dtype d = t_index_dtype(ir_numel(flat_mask));
  val sum = t_cumsum(c, ir_convert(G, ir_convert(G, flat_mask, TPU_BOOL), d), 0);
  return ir_binary(G, IR_SUB, sum, ir_const_i(G, d, 1, sum->ndim, sum->dims));
}

/* ---- shared by reductions, norms and losses -------------------------------------------------------------------- */

val t_unreduce(op_ctx *c, val v, val x, const int *dims, int n) {
  int64_t out[T_MAX_DIMS];
  for (int d = 0; d < x->ndim; d++) out[d] = x->dims[d];
  for (int i = 0; i < n; i++)
    if (dims[i] < x->ndim) out[dims[i]] = 1;
  return t_reshape(c, v, x->ndim, out);
}

val t_loss(op_ctx *c, val loss, int64_t reduction) {
  if (reduction == 1) return t_mean(c, loss, NULL, 0, false);
  return reduction == 2 ? t_sum(c, loss, NULL, 0, false) : loss;
}

val t_norm(op_ctx *c, val x, double p, const int *dims, int n, bool keep) {
  if (p == 2 && t_is_complex(x)) {
    val re = ir_unary(G, IR_REAL, x), im = ir_unary(G, IR_IMAG, x);
    x = t_add(c, t_mul(c, re, re), t_mul(c, im, im));
    return ir_unary(G, IR_SQRT, t_sum(c, x, dims, n, keep));
  }
  if (p == 2) return ir_unary(G, IR_SQRT, t_sum(c, t_mul(c, x, x), dims, n, keep));
  val a = ir_unary(G, IR_ABS, x);
  if (p == 1) return t_sum(c, a, dims, n, keep);
  if (p == 0) return t_sum(c, ir_convert(G, ir_convert(G, a, TPU_BOOL), (tpu_dtype)a->dtype), dims, n, keep);
  if (p == __builtin_inf()) return t_amax(c, a, dims, n, keep);
  if (p == -__builtin_inf()) return t_amin(c, a, dims, n, keep);
  val sum = t_sum(c, ir_binary(G, IR_POW, a, t_like(c, a, p)), dims, n, keep);
  return ir_binary(G, IR_POW, sum, t_like(c, sum, 1 / p));
}

bool t_refuse_empty_dim(op_ctx *c, val x, int dim, const char *name) {
  if (ir_failed(G) || x->ndim == 0 || x->dims[dim] != 0) return false;
  op_fail(c, TPU_ERR_INDEX, "%s(): Expected reduction dim %d to have non-zero size.", name, dim);
  return true;
}
