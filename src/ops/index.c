/* Advanced indexing, masks, and the reads along one dim. */
#include <stdio.h>
#include <string.h>

#include "ops/along.h"

/* ---- x[i, None, j, ...] ---------------------------------------------------------------------------------------- */

typedef struct {
  int n, dims[T_MAX_DIMS]; /* the indexed dims of x, ascending */
  val at[T_MAX_DIMS];      /* their indices, wrapped, broadcast to one shape */
  int ndim, place;         /* rank of that shape, and where its dims stand in the result */
} index_plan;

static bool is_mask(val v) { return v->dtype == TPU_BOOL || v->dtype == TPU_U8; }

/* "[2, 3]" */
static const char *sizes_text(op_ctx *c, int ndim, const int64_t *dims) {
  size_t room = 3 + 22 * (size_t)ndim, n = 1;
  char *s = arena_alloc(ir_arena(G), room);
  if (!s) return "";
  s[0] = '[';
  for (int i = 0; i < ndim; i++) n += (size_t)snprintf(s + n, room - n, "%s%lld", i ? ", " : "", (long long)dims[i]);
  snprintf(s + n, room - n, "]");
  return s;
}

/* x's dims, those of leading size 1 left out when they are too many, broadcast to dims. */
static bool expandable(val x, int ndim, const int64_t *dims) {
  int skip = 0;
  while (x->ndim - skip > ndim && x->dims[skip] == 1) skip++;
  if (x->ndim - skip > ndim) return false;
  for (int i = skip; i < x->ndim; i++) {
    int64_t to = dims[ndim - x->ndim + i];
    if (x->dims[i] != 1 && x->dims[i] != to) return false;
  }
  return true;
}

/* PyTorch's error for indices whose shapes do not broadcast. */
static void broadcast_indices(op_ctx *c, val *at, int n) {
  for (int i = 0; i < n; i++)
    for (int j = 0; j < i; j++)
      for (int d = 1; d <= at[i]->ndim && d <= at[j]->ndim; d++) {
        int64_t a = at[i]->dims[at[i]->ndim - d], b = at[j]->dims[at[j]->ndim - d];
        if (a == b || a == 1 || b == 1) continue;
        const char *all = sizes_text(c, at[0]->ndim, at[0]->dims);
        for (int k = 1; k < n; k++) {
          const char *one = sizes_text(c, at[k]->ndim, at[k]->dims);
          size_t room = strlen(all) + strlen(one) + 3;
          char *joined = arena_alloc(ir_arena(G), room);
          if (!joined) break;
          snprintf(joined, room, "%s, %s", all, one);
          all = joined;
        }
        op_fail(c, TPU_ERR_INDEX, "shape mismatch: indexing tensors could not be broadcast together with shapes %s",
                all);
        return;
      }
  t_broadcast(c, at, n);
}

/* Integer indices from Tensor?[] argument i. False (with or without an error) when there is none. */
static bool plan_index(op_ctx *c, val x, int arg, index_plan *p) {
  memset(p, 0, sizeof *p);
  bool adjacent = true;
  for (int k = 0; k < op_list_len(c, arg); k++) {
    if (!op_list_defined(c, arg, k)) continue;
    if (k >= x->ndim) {
      op_fail(c, TPU_ERR_INDEX, "too many indices for tensor of dimension %d", x->ndim);
      return false;
    }
    val v = TL(arg, k);
    if (is_mask(v)) {
      op_fail(c, TPU_ERR_NOT_IMPLEMENTED, "indexing by a mask gives a size that depends on the data");
      return false;
    }
    adjacent &= p->n == 0 || p->dims[p->n - 1] == k - 1;
    p->at[p->n] = t_wrap_index(c, v, x->dims[k]);
    p->dims[p->n++] = k;
  }
  if (p->n == 0 || ir_failed(G)) return false;
  for (int k = 0; k < p->n; k++)
    if (p->at[k]->dtype == TPU_I64)
      for (int j = 0; j < p->n; j++) p->at[j] = ir_convert(G, p->at[j], TPU_I64);
  broadcast_indices(c, p->at, p->n);
  p->ndim = p->at[0]->ndim;
  p->place = adjacent ? p->dims[0] : 0;
  return !ir_failed(G);
}

/* The indices with a last dim that holds one element for each indexed dim. */
static val index_matrix(op_ctx *c, const index_plan *p) {
  val parts[T_MAX_DIMS];
  for (int k = 0; k < p->n; k++) parts[k] = t_unsqueeze(c, p->at[k], p->ndim);
  return t_concat(c, parts, p->n, p->ndim);
}

/* Dims of x[indices]; offset: which of them are x's own. */
static int result_dims(val x, const index_plan *p, int64_t *dims, int *offset, int *noffset) {
  int ndim = 0, k = 0;
  *noffset = 0;
  for (int d = 0; d < x->ndim; d++) {
    if (d == p->place)
      for (int j = 0; j < p->ndim; j++) dims[ndim++] = p->at[0]->dims[j];
    if (k < p->n && p->dims[k] == d) {
      k++;
      continue;
    }
    offset[(*noffset)++] = ndim;
    dims[ndim++] = x->dims[d];
  }
  return ndim;
}

static val index_read(op_ctx *c, val x, int arg) {
  index_plan p;
  if (!plan_index(c, x, arg, &p)) return x;
  int64_t dims[2 * T_MAX_DIMS], slice[T_MAX_DIMS];
  int offset[T_MAX_DIMS], noffset;
  if (x->ndim - p.n + p.ndim > T_MAX_DIMS) return op_fail(c, TPU_ERR_RUNTIME, "more than %d dimensions", T_MAX_DIMS);
  int ndim = result_dims(x, &p, dims, offset, &noffset);
  for (int d = 0; d < ndim; d++)
    if (dims[d] == 0) return t_zeros(c, (tpu_dtype)x->dtype, ndim, dims);
  memcpy(slice, x->dims, (size_t)x->ndim * sizeof *slice);
  for (int k = 0; k < p.n; k++) slice[p.dims[k]] = 1;
  ir_gather_dims g = {.noffset = noffset,
                      .offset_dims = offset,
                      .ncollapsed = p.n,
                      .collapsed_dims = p.dims,
                      .nstart = p.n,
                      .start_index_map = p.dims,
                      .index_vector_dim = p.ndim};
  return ir_gather(G, x, index_matrix(c, &p), &g, slice, false);
}

OP(index, "aten::index.Tensor") { RET(index_read(c, T(0), 1)); }
OP(unsafe_index, "aten::_unsafe_index.Tensor") { RET(index_read(c, T(0), 1)); }

OP(unsafe_masked_index, "aten::_unsafe_masked_index") {
  val x = T(0), v = index_read(c, x, 2);
  RET(t_cast(c, t_where(c, T(1), v, t_cast(c, S(3), (tpu_dtype)x->dtype)), (tpu_dtype)x->dtype));
}

static val index_write(op_ctx *c, val x, int arg, val values, bool accumulate) {
  index_plan p;
  values = t_cast(c, values, (tpu_dtype)x->dtype);
  if (!plan_index(c, x, arg, &p)) { /* only None: all of x */
    values = t_broadcast_to(c, values, x->ndim, x->dims);
    return accumulate ? t_add(c, x, values) : values;
  }
  int64_t dims[2 * T_MAX_DIMS];
  int offset[T_MAX_DIMS], noffset;
  if (x->ndim - p.n + p.ndim > T_MAX_DIMS) return op_fail(c, TPU_ERR_RUNTIME, "more than %d dimensions", T_MAX_DIMS);
  int ndim = result_dims(x, &p, dims, offset, &noffset);
  if (ir_failed(G)) return x;
  if (!expandable(values, ndim, dims))
    return op_fail(c, TPU_ERR_RUNTIME,
                   "shape mismatch: value tensor of shape %s cannot be broadcast to indexing result of shape %s",
                   sizes_text(c, values->ndim, values->dims), sizes_text(c, ndim, dims));
  while (values->ndim > ndim) values = t_squeeze(c, values, 0);
  values = t_broadcast_to(c, values, ndim, dims);
  if (ir_numel(values) == 0 || ir_numel(x) == 0) return x;
  tpu_dtype d = (tpu_dtype)x->dtype, acc = accumulate ? t_opmath(d) : d;
  int body = !accumulate ? T_REPLACE : d == TPU_BOOL ? IR_OR : IR_ADD;
  ir_scatter_dims s = {.nwindow = noffset,
                       .update_window_dims = offset,
                       .ninserted = p.n,
                       .inserted_window_dims = p.dims,
                       .nscatter = p.n,
                       .scatter_dims_to_operand = p.dims,
                       .index_vector_dim = p.ndim};
  return t_cast(
      c, ir_scatter(G, t_cast(c, x, acc), index_matrix(c, &p), t_cast(c, values, acc), &s, body, false, false), d);
}

/* x[..., mask, ...] = values, with one mask that stands for dims [first, first + r): a select of fixed shape. Values
 * that differ from true element to true element are looked up by the element's position among the true ones. */
static val mask_write(op_ctx *c, val x, val mask, int first, val values, bool accumulate) {
  int r = mask->ndim, slices = x->ndim - r + 1, count_dim = values->ndim - (slices - first);
  if (first + r > x->ndim) return op_fail(c, TPU_ERR_INDEX, "too many indices for tensor of dimension %d", x->ndim);
  for (int k = 0; k < r; k++)
    if (mask->dims[k] != x->dims[first + k])
      return op_fail(c, TPU_ERR_INDEX,
                     "The shape of the mask at index %d does not match the shape of the indexed tensor at index %d", k,
                     first + k);
  mask = t_cast(c, mask, TPU_BOOL);
  values = t_cast(c, values, (tpu_dtype)x->dtype);
  while (values->ndim > slices && t_size(values, 0) == 1) {
    values = t_squeeze(c, values, 0);
    count_dim--;
  }
  if (values->ndim > slices)
    return op_fail(c, TPU_ERR_RUNTIME, "shape mismatch: value tensor cannot be broadcast to indexing result");
  int64_t dims[2 * T_MAX_DIMS];
  if (count_dim >= 0) {
    if (t_size(values, count_dim) != 1) {
      if (t_size(values, count_dim) == 0) return x; /* the mask has no true element, or PyTorch would refuse */
      val place = t_mask_positions(c, t_flatten(c, mask));
      values = t_take(c, values, count_dim, ir_binary(G, IR_MAX, place, t_like(c, place, 0)));
    }
    int ndim = 0;
    for (int d = 0; d < values->ndim; d++) {
      if (d != count_dim) dims[ndim++] = values->dims[d];
      else
        for (int k = 0; k < r; k++) dims[ndim++] = values->dims[d] == 1 ? 1 : mask->dims[k];
    }
    values = t_reshape(c, values, ndim, dims);
  }
  for (int d = 0; d < x->ndim; d++) dims[d] = d >= first && d < first + r ? x->dims[d] : 1;
  mask = t_broadcast_to(c, t_reshape(c, mask, x->ndim, dims), x->ndim, x->dims);
  values = t_broadcast_to(c, values, x->ndim, x->dims);
  return ir_select(G, mask, accumulate ? t_add(c, x, values) : values, x);
}

static val put(op_ctx *c) {
  val x = T(0), mask = NULL;
  int first = 0, defined = 0;
  for (int k = 0; k < op_list_len(c, 1); k++)
    if (op_list_defined(c, 1, k)) {
      val v = TL(1, k);
      defined++;
      if (is_mask(v) && v->ndim) {
        mask = v;
        first = k;
      }
    }
  bool accumulate = INT_OR(3, 0);
  return mask && defined == 1 ? mask_write(c, x, mask, first, T(2), accumulate)
                              : index_write(c, x, 1, T(2), accumulate);
}

OP(index_put, "aten::index_put") { RET(put(c)); }
OP(index_put_impl, "aten::_index_put_impl") { RET(put(c)); }
OP(unsafe_index_put, "aten::_unsafe_index_put") { RET(put(c)); }

OP(unsafe_masked_index_put, "aten::_unsafe_masked_index_put_accumulate") {
  val x = T(0), v = T(3);
  RET(index_write(c, x, 2, t_where(c, T(1), v, t_like(c, v, 0)), true));
}

/* ---- masks ----------------------------------------------------------------------------------------------------- */

static void masked_fill(op_ctx *c, val value) {
  val x = T(0);
  RET(t_where(c, T(1), t_cast(c, value, (tpu_dtype)x->dtype), x));
}

OP(masked_fill, "aten::masked_fill.Scalar") { masked_fill(c, S(2)); }
OP(masked_fill_tensor, "aten::masked_fill.Tensor") { masked_fill(c, T(2)); }

OP(masked_scatter, "aten::masked_scatter") {
  val mask = T(1);
  if (!ir_failed(G) && mask->dtype != TPU_BOOL)
    op_fail(c, TPU_ERR_RUNTIME, "masked_scatter_ only supports boolean masks, but got mask with dtype %s",
            tpu_dtype_name(mask->dtype));
  val both[2] = {T(0), T(1)}, source = t_flatten(c, T(2));
  t_broadcast(c, both, 2);
  if (ir_numel(source) == 0 || ir_numel(both[0]) == 0) {
    RET(both[0]);
    return;
  }
  val place = t_mask_positions(c, t_flatten(c, both[1]));
  val v = t_take(c, source, 0, ir_binary(G, IR_MAX, place, t_like(c, place, 0)));
  RET(ir_select(G, t_cast(c, both[1], TPU_BOOL), t_reshape(c, v, both[0]->ndim, both[0]->dims), both[0]));
}

/* The true elements of grad, in order, at the head of zeros of the given sizes. */
OP(masked_scatter_backward, "aten::masked_scatter_backward") {
  val both[2] = {T(0), T(1)};
  int n;
  const int64_t *sizes = op_ints(c, 2, &n);
  t_broadcast(c, both, 2);
  int64_t total = 1;
  for (int i = 0; i < n; i++) total *= sizes[i];
  val mask = t_cast(c, t_flatten(c, both[1]), TPU_BOOL);
  tpu_dtype d = t_index_dtype(total > ir_numel(mask) ? total : ir_numel(mask));
  val place = t_cast(c, t_mask_positions(c, mask), d);
  place = ir_select(G, mask, place, ir_const_i(G, d, total, place->ndim, place->dims)); /* out of range: dropped */
  val zeros = t_zeros(c, (tpu_dtype)both[0]->dtype, 1, &total);
  val out = t_scatter(c, zeros, 0, place, t_flatten(c, both[0]), T_REPLACE);
  RET(t_reshape(c, out, n, sizes));
}

/* Positions of the nonzero elements, as many rows as asked for. */
OP(nonzero_static, "aten::nonzero_static") {
  val x = T(0);
  int64_t size = INT(1), left = ir_numel(x);
  tpu_dtype d = t_index_dtype(left > size ? left : size);
  val mask = t_cast(c, t_flatten(c, x), TPU_BOOL), place = t_cast(c, t_mask_positions(c, mask), d);
  place = ir_select(G, mask, place, ir_const_i(G, d, size, place->ndim, place->dims));
  int64_t n = left;
  val rest = ir_iota(G, d, 1, &n, 0), columns[T_MAX_DIMS], fill = t_cast(c, S(2), TPU_I64);
  for (int k = 0; k < x->ndim; k++) {
    left = x->dims[k] ? left / x->dims[k] : 0;
    val by = ir_const_i(G, d, left ? left : 1, 1, &n), at = ir_binary(G, IR_DIV, rest, by);
    rest = ir_binary(G, IR_REM, rest, by);
    columns[k] = t_scatter(c, t_broadcast_to(c, fill, 1, &size), 0, place, ir_convert(G, at, TPU_I64), T_REPLACE);
    columns[k] = t_unsqueeze(c, columns[k], 1);
  }
  RET(x->ndim ? t_concat(c, columns, x->ndim, 1) : t_zeros(c, TPU_I64, 2, (const int64_t[]){size, 0}));
}

/* ---- along one dim, or flat ------------------------------------------------------------------------------------ */

OP(index_select, "aten::index_select") {
  val i = T(2);
  if (!ir_failed(G) && i->dtype != TPU_I32 && i->dtype != TPU_I64)
    op_fail(c, TPU_ERR_RUNTIME, "index_select(): Expected dtype int32 or int64 for index, got %s",
            tpu_dtype_name(i->dtype));
  val x0 = T(0), x = t_at_least_1d(c, x0), y = t_take(c, x, t_dim(c, INT(1), x->ndim), t_at_least_1d(c, T(2)));
  RET(x0->ndim ? y : t_reshape(c, y, 0, NULL));
}

OP(gather, "aten::gather") {
  val x = t_at_least_1d(c, T(0)), index0 = T(2), index = t_at_least_1d(c, index0);
  RET(t_reshape(c, t_gather(c, x, t_dim(c, INT(1), x->ndim), index), index0->ndim, index0->dims));
}

OP(take, "aten::take") {
  val x = t_flatten(c, T(0));
  RET(t_take(c, x, 0, t_wrap_index(c, T(1), t_size(x, 0))));
}

OP(put, "aten::put") {
  val x0 = T(0), x = t_flatten(c, x0), index = t_wrap_index(c, t_flatten(c, T(1)), t_size(x, 0));
  val source = t_cast(c, t_flatten(c, T(2)), (tpu_dtype)x->dtype);
  RET(t_reshape(c, t_scatter(c, x, 0, index, source, INT_OR(3, 0) ? (int)IR_ADD : T_REPLACE), x0->ndim, x0->dims));
}
