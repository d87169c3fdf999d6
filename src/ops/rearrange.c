/* Moving elements about: cat, flip, roll, repeat, diagonals, and the gradients of slices, windows and diagonals. */
#include <string.h>

#include "ops/along.h"

static int64_t wrap(int64_t i, int64_t n) { return n ? ((i % n) + n) % n : 0; }

/* ---- cat, stack, repeat ---------------------------------------------------------------------------------------- */

static void join(op_ctx *c, bool stack) {
  int n = op_list_len(c, 0), used = 0, rank = 0, flat_empty = 0;
  val *v = arena_alloc(ir_arena(G), (size_t)(n ? n : 1) * sizeof *v);
  if (!v) {
    op_fail(c, TPU_ERR_OOM, "out of host memory");
    return;
  }
  for (int i = 0; i < n; i++) {
    v[i] = TL(0, i);
    if (v[i]->ndim > rank) rank = v[i]->ndim;
    flat_empty += v[i]->ndim == 1 && v[i]->dims[0] == 0;
  }
  if (n == 0) {
    op_fail(c, TPU_ERR_RUNTIME, "expected a non-empty list of Tensors");
    return;
  }
  tpu_dtype d = t_result_type(c, v, n);
  if (!stack && flat_empty == n) { /* whatever the dim is */
    RET(t_cast(c, v[0], d));
    return;
  }
  int dim = t_dim(c, INT_OR(1, 0), rank + stack);
  for (int i = 0; i < n; i++) {
    val x = t_cast(c, v[i], d);
    if (stack) x = t_unsqueeze(c, x, dim);
    else if (rank > 1 && x->ndim == 1 && x->dims[0] == 0) continue; /* PyTorch lets a flat empty tensor join anything */
    v[used++] = x;
  }
  RET(t_concat(c, v, used, dim));
}

OP(cat, "aten::cat") { join(c, false); }
OP(stack, "aten::stack") { join(c, true); }

OP(repeat, "aten::repeat") {
  val x = T(0);
  int n;
  const int64_t *repeats = op_ints(c, 1, &n);
  int64_t wide[2 * T_MAX_DIMS], dims[T_MAX_DIMS];
  int map[T_MAX_DIMS], rank = 0, lead = n - x->ndim;
  if (lead < 0 || n > T_MAX_DIMS) {
    op_fail(c, TPU_ERR_RUNTIME,
            "Number of dimensions of repeat dims can not be smaller than number of dimensions of tensor");
    return;
  }
  for (int d = 0; d < n; d++) {
    int64_t size = d < lead ? 1 : x->dims[d - lead];
    dims[d] = size * repeats[d];
    if (d < lead || (size != 1 && repeats[d] != 1)) wide[rank++] = repeats[d];
    if (d < lead) continue;
    map[d - lead] = rank;
    wide[rank++] = size == 1 ? repeats[d] : size;
  }
  RET(t_reshape(c, ir_broadcast(G, x, rank, wide, map), n, dims));
}

/* Output i is the first j whose repeats, summed up to j, exceed i. */
OP(repeat_interleave, "aten::repeat_interleave.Tensor") {
  val repeats = T(0);
  if (!HAS(1))
    op_fail(c, TPU_ERR_NOT_IMPLEMENTED, "repeat_interleave without output_size gives a size that depends on the data");
  int64_t n = INT_OR(1, 0), count = t_size(repeats, 0);
  val ends = t_cumsum(c, t_cast(c, repeats, TPU_I64), 0);
  val begins = t_scatter(c, t_zeros(c, TPU_I64, 1, &n), 0, ends, ir_const_i(G, TPU_I64, 1, 1, &count), IR_ADD);
  RET(t_cumsum(c, begins, 0));
}

/* ---- flip, roll, rot90 ----------------------------------------------------------------------------------------- */

/* (self, dim, start, length) */
OP(narrow_copy, "aten::narrow_copy") {
  val x = T(0);
  int dim = t_dim(c, INT(1), x->ndim);
  int64_t n = t_size(x, dim), start = INT(2), length = INT(3);
  if (ir_failed(G)) return;
  if (x->ndim == 0) op_fail(c, TPU_ERR_RUNTIME, "narrow() cannot be applied to a 0-dim tensor.");
  else if (length < 0) op_fail(c, TPU_ERR_RUNTIME, "narrow(): length must be non-negative.");
  else if (start < -n || start > n)
    op_fail(c, TPU_ERR_INDEX, "start out of range (expected to be in range of [%lld, %lld], but got %lld)",
            (long long)-n, (long long)n, (long long)start);
  if (start < 0) start += n;
  if (start > n - length)
    op_fail(c, TPU_ERR_RUNTIME, "start (%lld) + length (%lld) exceeds dimension size (%lld).", (long long)start,
            (long long)length, (long long)n);
  RET(t_narrow(c, x, dim, start, length, 1));
}

OP(flip, "aten::flip") {
  val x = T(0);
  int n, dims[T_MAX_DIMS];
  const int64_t *list = op_ints(c, 1, &n);
  for (int i = 0; i < n && i < T_MAX_DIMS; i++) dims[i] = t_dim(c, list[i], x->ndim);
  RET(x->ndim && n ? ir_reverse(G, x, n, dims) : x);
}

static val roll(op_ctx *c, val x, int dim, int64_t shift) {
  int64_t n = t_size(x, dim), s = wrap(shift, n);
  if (s == 0) return x;
  val parts[2] = {t_narrow(c, x, dim, n - s, s, 1), t_narrow(c, x, dim, 0, n - s, 1)};
  return t_concat(c, parts, 2, dim);
}

OP(roll, "aten::roll") {
  val x = T(0);
  int n, ndims;
  const int64_t *shifts = op_ints(c, 1, &n), *dims = op_ints(c, 2, &ndims);
  if (ndims == 0) {
    RET(t_reshape(c, roll(c, t_flatten(c, x), 0, n ? shifts[0] : 0), x->ndim, x->dims));
    return;
  }
  val y = t_at_least_1d(c, x);
  for (int i = 0; i < n && i < ndims; i++) y = roll(c, y, t_dim(c, dims[i], y->ndim), shifts[i]);
  RET(t_reshape(c, y, x->ndim, x->dims));
}

OP(rot90, "aten::rot90") {
  val x = T(0);
  int n;
  const int64_t *dims = op_ints(c, 2, &n);
  int64_t k = wrap(INT_OR(1, 1), 4);
  int d[2] = {t_dim(c, n == 2 ? dims[0] : 0, x->ndim), t_dim(c, n == 2 ? dims[1] : 1, x->ndim)};
  if (k == 1) x = ir_reverse(G, x, 1, &d[1]);
  if (k == 2) x = ir_reverse(G, x, 2, d);
  if (k == 3) x = ir_reverse(G, x, 1, &d[0]);
  RET(k & 1 ? t_transpose(c, x, d[0], d[1]) : x);
}

/* ---- writing a slice into a whole ------------------------------------------------------------------------------ */

/* base with src at start (a runtime operand, PyTorch's wrap), start + step, ... along dim. src has base's rank. */
static val put_slice(op_ctx *c, val base, val src, int dim, val start, int64_t step) {
  int64_t n = t_size(base, dim), len = t_size(src, dim);
  if (ir_failed(G) || ir_numel(src) == 0 || ir_numel(base) == 0) return base;
  val zero = t_scalar(c, TPU_I64, 0), size = t_scalar(c, TPU_I64, (double)n), starts[T_MAX_DIMS];
  start = start ? t_cast(c, start, TPU_I64) : zero;
  start = ir_select(G, ir_compare(G, IR_LT, start, zero), ir_binary(G, IR_ADD, start, size), start);
  start = ir_clamp(G, zero, start, size);
  for (int d = 0; d < base->ndim; d++) starts[d] = d == dim ? start : zero;
  if (step > 1 && len > 1) {
    int64_t none[T_MAX_DIMS] = {0}, interior[T_MAX_DIMS] = {0}, dims[T_MAX_DIMS];
    interior[dim] = step - 1;
    val spread = ir_pad(G, src, t_scalar(c, (tpu_dtype)src->dtype, 0), none, none, interior);
    memcpy(dims, base->dims, (size_t)base->ndim * sizeof *dims);
    dims[dim] = t_size(spread, dim);
    val old = ir_dynamic_slice(G, base, starts, dims);
    tpu_dtype di = t_index_dtype(n);
    val phase = ir_iota(G, di, base->ndim, dims, dim);
    phase = ir_binary(G, IR_REM, phase, ir_const_i(G, di, step, base->ndim, dims));
    src = ir_select(G, ir_compare(G, IR_EQ, phase, t_like(c, phase, 0)), spread, old);
  }
  return ir_dynamic_update_slice(G, base, src, starts);
}

static val zeros_arg(op_ctx *c, int arg, val like) {
  int n;
  const int64_t *sizes = op_ints(c, arg, &n);
  return t_zeros(c, (tpu_dtype)like->dtype, n, sizes);
}

OP(select_backward, "aten::select_backward") {
  val grad = T(0), base = zeros_arg(c, 1, grad);
  int dim = t_dim(c, INT(2), base->ndim);
  RET(put_slice(c, base, t_unsqueeze(c, grad, dim), dim, S(3), 1));
}

OP(slice_backward, "aten::slice_backward") {
  val grad = T(0), base = zeros_arg(c, 1, grad);
  RET(put_slice(c, base, grad, t_dim(c, INT(2), base->ndim), S(3), INT(5)));
}

OP(select_scatter, "aten::select_scatter") {
  val base = T(0), src = t_cast(c, T(1), (tpu_dtype)base->dtype);
  int dim = t_dim(c, INT(2), base->ndim);
  RET(put_slice(c, base, t_unsqueeze(c, src, dim), dim, S(3), 1));
}

OP(slice_scatter, "aten::slice_scatter") {
  val base = T(0), src = t_cast(c, T(1), (tpu_dtype)base->dtype);
  RET(put_slice(c, base, src, t_dim(c, INT_OR(2, 0), base->ndim), HAS(3) ? S(3) : NULL, INT_OR(5, 1)));
}

/* ---- diagonals ------------------------------------------------------------------------------------------------- */

/* base (NULL: zeros) of the given dims with src [..., diagonal] on the diagonal j = i + offset of dims (d1, d2). */
static val put_diagonal(op_ctx *c, val base, val src, int ndim, const int64_t *dims, int64_t offset, int d1, int d2) {
  if (ir_failed(G) || d1 == d2 || ndim != src->ndim + 1 || ndim < 2)
    return op_fail(c, TPU_ERR_RUNTIME, "diagonal dimensions cannot be identical %d, %d", d1, d2);
  int back[T_MAX_DIMS], there[T_MAX_DIMS], k = 0;
  int64_t low[T_MAX_DIMS] = {0}, high[T_MAX_DIMS] = {0}, none[T_MAX_DIMS] = {0}, moved[T_MAX_DIMS];
  for (int d = 0; d < ndim; d++)
    if (d != d1 && d != d2) {
      back[d] = k;
      there[k++] = d;
    }
  back[d1] = ndim - 2;
  there[ndim - 2] = d1;
  back[d2] = ndim - 1;
  there[ndim - 1] = d2;
  for (int d = 0; d < ndim; d++) moved[d] = dims[there[d]];
  tpu_dtype dt = (tpu_dtype)src->dtype, di = TPU_I64;
  low[k] = offset < 0 ? -offset : 0;
  high[k] = dims[d1] - low[k] - t_size(src, k);
  val rows = t_unsqueeze(c, ir_pad(G, src, t_scalar(c, dt, 0), low, high, none), ndim - 1);
  rows = t_broadcast_to(c, rows, ndim, moved);
  val i = ir_iota(G, di, ndim, moved, ndim - 2), j = ir_iota(G, di, ndim, moved, ndim - 1);
  val on = ir_compare(G, IR_EQ, j, ir_binary(G, IR_ADD, i, ir_const_i(G, di, offset, ndim, moved)));
  val rest = base ? t_permute(c, base, there) : t_zeros(c, dt, ndim, moved);
  return t_permute(c, ir_select(G, on, rows, rest), back);
}

OP(diag_embed, "aten::diag_embed") {
  val x = T(0);
  int ndim = x->ndim + 1, d1 = t_dim(c, INT_OR(2, -2), ndim), d2 = t_dim(c, INT_OR(3, -1), ndim), k = 0;
  int64_t offset = INT_OR(1, 0), dims[T_MAX_DIMS], n = t_size(x, x->ndim - 1) + (offset < 0 ? -offset : offset);
  if (ndim > T_MAX_DIMS) op_fail(c, TPU_ERR_RUNTIME, "more than %d dimensions", T_MAX_DIMS);
  else
    for (int d = 0; d < ndim; d++) dims[d] = d == d1 || d == d2 ? n : t_size(x, k++);
  RET(put_diagonal(c, NULL, x, ndim, dims, offset, d1, d2));
}

OP(diagonal_backward, "aten::diagonal_backward") {
  int n;
  const int64_t *dims = op_ints(c, 1, &n);
  RET(put_diagonal(c, NULL, T(0), n, dims, INT(2), t_dim(c, INT(3), n), t_dim(c, INT(4), n)));
}

OP(diagonal_scatter, "aten::diagonal_scatter") {
  val x = T(0), src = t_cast(c, T(1), (tpu_dtype)x->dtype);
  int d1 = t_dim(c, INT_OR(3, 0), x->ndim), d2 = t_dim(c, INT_OR(4, 1), x->ndim);
  RET(put_diagonal(c, x, src, x->ndim, x->dims, INT_OR(2, 0), d1, d2));
}

/* ---- windows --------------------------------------------------------------------------------------------------- */

enum { UNROLLED_WINDOWS = 64 };

/* Sum of overlapping windows: grad [.., windows, .., size]. Each window is cut into pieces of `step`; the pieces of
 * one number, put end to end, are one contiguous summand. */
static val overlap_add(op_ctx *c, val grad, int ndim, const int64_t *sizes, int dim, int64_t size, int64_t step) {
  tpu_dtype d = (tpu_dtype)grad->dtype, m = t_opmath(d);
  int64_t pieces = (size + step - 1) / step, windows = t_size(grad, dim), total = sizes[dim];
  int64_t low[T_MAX_DIMS] = {0}, high[T_MAX_DIMS] = {0}, none[T_MAX_DIMS] = {0}, dims[T_MAX_DIMS];
  int perm[T_MAX_DIMS];
  for (int k = 0; k <= ndim; k++) perm[k] = k <= dim ? k : k == dim + 1 ? ndim : k - 1;
  val g = t_cast(c, t_permute(c, grad, perm), m), zero = t_scalar(c, m, 0), sum = NULL;
  high[dim + 1] = pieces * step - size;
  g = ir_pad(G, g, zero, low, high, none);
  memcpy(dims, sizes, (size_t)ndim * sizeof *dims);
  dims[dim] = windows * step;
  high[dim + 1] = 0;
  for (int64_t k = 0; k < pieces; k++) {
    val piece = t_reshape(c, t_narrow(c, g, dim + 1, k * step, step, 1), ndim, dims);
    low[dim] = k * step;
    high[dim] = total - low[dim] - dims[dim];
    piece = ir_pad(G, piece, zero, low, high, none);
    sum = sum ? ir_binary(G, IR_ADD, sum, piece) : piece;
  }
  return sum ? t_cast(c, sum, d) : t_zeros(c, d, ndim, sizes);
}

OP(unfold_backward, "aten::unfold_backward") {
  val grad = T(0);
  int ndim;
  const int64_t *sizes = op_ints(c, 1, &ndim);
  int dim = t_dim(c, INT(2), ndim);
  int64_t size = INT(3), step = INT(4);
  if (ndim == 0) {
    RET(t_reshape(c, t_sum(c, grad, NULL, 0, false), 0, NULL));
    return;
  }
  if (ir_failed(G) || grad->ndim != ndim + 1 || ndim + 1 > T_MAX_DIMS) {
    op_fail(c, TPU_ERR_RUNTIME, "unfold_backward: the gradient has %d dimensions, expected %d", grad->ndim, ndim + 1);
    return;
  }
  if (step > 0 && size <= step * UNROLLED_WINDOWS) {
    RET(ir_numel(grad) ? overlap_add(c, grad, ndim, sizes, dim, size, step)
                       : t_zeros(c, (tpu_dtype)grad->dtype, ndim, sizes));
    return;
  }
  /* many windows over each element: one scatter */
  int64_t windows = t_size(grad, dim), flat[2] = {windows, size}, one = windows * size, dims[T_MAX_DIMS];
  int perm[T_MAX_DIMS];
  for (int k = 0; k <= ndim; k++) perm[k] = k <= dim ? k : k == dim + 1 ? ndim : k - 1;
  memcpy(dims, sizes, (size_t)ndim * sizeof *dims);
  dims[dim] = one;
  tpu_dtype di = t_index_dtype(sizes[dim]);
  val at = ir_binary(G, IR_MUL, ir_iota(G, di, 2, flat, 0), ir_const_i(G, di, step, 2, flat));
  at = t_reshape(c, ir_binary(G, IR_ADD, at, ir_iota(G, di, 2, flat, 1)), 1, &one);
  val g = t_reshape(c, t_permute(c, grad, perm), ndim, dims);
  RET(t_scatter_slices(c, t_zeros(c, (tpu_dtype)grad->dtype, ndim, sizes), dim, at, g, IR_ADD));
}

typedef struct {
  int64_t kernel[2], dilation[2], pad[2], stride[2];
} patch;

static void read_pairs(op_ctx *c, int arg, int64_t *out) {
  int n;
  const int64_t *v = op_ints(c, arg, &n);
  for (int i = 0; i < 2; i++) out[i] = n == 2 ? v[i] : n == 1 ? v[0] : 1;
}

static patch read_patch(op_ctx *c, int first) {
  patch p;
  read_pairs(c, first, p.kernel);
  read_pairs(c, first + 1, p.dilation);
  read_pairs(c, first + 2, p.pad);
  read_pairs(c, first + 3, p.stride);
  return p;
}

/* Places of the kernel along each side. */
static void patch_places(const patch *p, const int64_t *image, int64_t *out) {
  for (int i = 0; i < 2; i++)
    out[i] = (image[i] + 2 * p->pad[i] - p->dilation[i] * (p->kernel[i] - 1) - 1) / p->stride[i] + 1;
}

/* Place (i, j) of the kernel for every place of the image, [n, channels, 1, places], of an x that has its rows joined
 * to one dim: a slice of that dim. Where the slice runs over the end of a row it is outside of the image. */
static val joined_patch(op_ctx *c, val flat, const patch *p, int64_t width, int64_t count, int64_t i, int64_t j) {
  int64_t right = j * p->dilation[1] - p->pad[1], from = (i * p->dilation[0] - p->pad[0]) * width + right;
  int64_t low[3] = {0, 0, -from}, high[3] = {0, 0, from + count - t_size(flat, 2)}, none[3] = {0};
  const int64_t one[3] = {1, 1, count};
  val zero = t_scalar(c, (tpu_dtype)flat->dtype, 0), y = ir_pad(G, flat, zero, low, high, none);
  if (right && !ir_failed(G)) {
    val column = ir_iota(G, TPU_I32, 3, one, 2), w = ir_const_i(G, TPU_I32, width, 3, one);
    column = ir_binary(G, IR_ADD, ir_binary(G, IR_REM, column, w), ir_const_i(G, TPU_I32, right, 3, one));
    val inside =
        ir_binary(G, IR_AND, ir_compare(G, IR_GE, column, t_like(c, column, 0)), ir_compare(G, IR_LT, column, w));
    y = t_where(c, inside, y, zero);
  }
  return t_unsqueeze(c, y, 2);
}

OP(im2col, "aten::im2col") {
  val x0 = T(0), x = x0->ndim == 3 ? t_unsqueeze(c, x0, 0) : x0;
  patch p = read_patch(c, 1);
  int64_t n = t_size(x, 0), ch = t_size(x, 1), image[2] = {t_size(x, 2), t_size(x, 3)}, places[2];
  patch_places(&p, image, places);
  int64_t pads[4] = {0, 0, p.pad[0], p.pad[1]}, none[4] = {0}, k = p.kernel[0] * p.kernel[1];
  val *parts = arena_alloc(ir_arena(G), (size_t)(k > 0 ? k : 1) * sizeof *parts);
  if (ir_failed(G) || x->ndim != 4 || k < 1 || !parts) {
    op_fail(c, TPU_ERR_RUNTIME, "im2col: expected a 3-d or 4-d input and a kernel of at least 1x1");
    return;
  }
  /* On a TPU joining rows is a copy, so it is done once and not for every place of the kernel. */
  bool joined = op_for_tpu(c) && p.stride[0] == 1 && p.stride[1] == 1 && places[1] == image[1] && places[0] > 0 &&
                ir_numel(x) > 0;
  if (joined) x = t_reshape(c, x, 3, (const int64_t[]){n, ch, image[0] * image[1]});
  else x = ir_pad(G, x, t_scalar(c, (tpu_dtype)x->dtype, 0), pads, pads, none);
  for (int64_t i = 0; i < p.kernel[0] && !ir_failed(G); i++)
    for (int64_t j = 0; j < p.kernel[1]; j++) {
      val *part = &parts[i * p.kernel[1] + j];
      if (joined) {
        *part = joined_patch(c, x, &p, image[1], places[0] * image[1], i, j);
        continue;
      }
      val rows = t_narrow(c, x, 2, i * p.dilation[0], places[0], p.stride[0]);
      *part = t_unsqueeze(c, t_narrow(c, rows, 3, j * p.dilation[1], places[1], p.stride[1]), 2);
    }
  if (ir_failed(G)) return;
  int64_t dims[3] = {n, ch * k, places[0] * places[1]};
  val r = t_concat(c, parts, (int)k, 2);
  RET(t_reshape(c, r, x0->ndim == 3 ? 2 : 3, x0->ndim == 3 ? dims + 1 : dims));
}

OP(col2im, "aten::col2im") {
  val x0 = T(0), x = x0->ndim == 2 ? t_unsqueeze(c, x0, 0) : x0;
  int64_t image[2], places[2];
  read_pairs(c, 1, image);
  patch p = read_patch(c, 2);
  patch_places(&p, image, places);
  int64_t k = p.kernel[0] * p.kernel[1], ch = k > 0 ? t_size(x, 1) / k : 0, n = t_size(x, 0);
  if (ir_failed(G) || x->ndim != 3 || k < 1) {
    op_fail(c, TPU_ERR_RUNTIME, "col2im: expected a 2-d or 3-d input and a kernel of at least 1x1");
    return;
  }
  tpu_dtype d = t_opmath((tpu_dtype)x->dtype);
  x = t_reshape(c, t_cast(c, x, d), 5, (const int64_t[]){n, ch, k, places[0], places[1]});
  val sum = t_zeros(c, d, 4, (const int64_t[]){n, ch, image[0], image[1]}), zero = t_scalar(c, d, 0);
  if (ir_numel(x))
    for (int64_t i = 0; i < k; i++) {
      int64_t at[2] = {i / p.kernel[1], i % p.kernel[1]}, low[4] = {0}, high[4] = {0}, interior[4] = {0};
      for (int s = 0; s < 2; s++) {
        low[2 + s] = at[s] * p.dilation[s] - p.pad[s];
        interior[2 + s] = p.stride[s] - 1;
        high[2 + s] = image[s] - low[2 + s] - ((places[s] - 1) * p.stride[s] + 1);
      }
      val part = ir_pad(G, t_squeeze(c, t_narrow(c, x, 2, i, 1, 1), 2), zero, low, high, interior);
      sum = ir_binary(G, IR_ADD, sum, part);
    }
  RET(x0->ndim == 2 ? t_squeeze(c, sum, 0) : sum);
}
