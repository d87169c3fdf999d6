/* shape.c - conversions, and operations that move elements. */
#include "ir/node.h"

val ir_convert(ir_graph *g, val x, tpu_dtype dtype) {
  USABLE_OR_POISON("stablehlo.convert", &x, 1);
  if (x->dtype == dtype) return x;
  CHECK_OR(tpu_dtype_size(dtype), "stablehlo.convert: %d is no dtype", (int)dtype);
  if (dtype == TPU_BOOL) return ir_compare(g, IR_NE, x, ir_const_i(g, x->dtype, 0, x->ndim, x->dims));
  if (ir_is_complex(x->dtype) && !ir_is_complex(dtype)) return ir_convert(g, ir_unary(g, IR_REAL, x), dtype);
  /* XLA takes a product with a converted predicate for a selection, so false * NaN would be 0. */
  if (x->dtype == TPU_BOOL && ir_is_float(dtype))
    return ir_select(g, x, ir_const_f(g, dtype, 1, x->ndim, x->dims), ir_const_f(g, dtype, 0, x->ndim, x->dims));
  return node_make(g, "stablehlo.convert", "", &x, 1, dtype, x->ndim, x->dims);
}

val ir_bitcast(ir_graph *g, val x, tpu_dtype dtype) {
  const char *name = "stablehlo.bitcast_convert";
  USABLE_OR_POISON(name, &x, 1);
  if (x->dtype == dtype) return x;
  CHECK_OR(tpu_dtype_size(dtype), "%s: %d is no dtype", name, (int)dtype);
  CHECK_OR(x->dtype != TPU_BOOL && dtype != TPU_BOOL, "%s: bool has one bit and cannot be viewed as %s", name,
           tpu_dtype_name(x->dtype == TPU_BOOL ? dtype : x->dtype));
  CHECK_OR(ir_is_complex(x->dtype) == ir_is_complex(dtype), "%s (C2): expected both or neither complex, got %s to %s",
           name, tpu_dtype_name(x->dtype), tpu_dtype_name(dtype));
  int64_t from = (int64_t)tpu_dtype_size(x->dtype), to = (int64_t)tpu_dtype_size(dtype), dims[IR_MAX_RANK + 1];
  int n = x->ndim;
  if (from == to) return node_make(g, name, "", &x, 1, dtype, n, x->dims);
  memcpy(dims, x->dims, (size_t)n * sizeof *dims);
  if (from > to) {
    dims[n++] = from / to;
  } else {
    CHECK_OR(n && dims[n - 1] == to / from, "%s (C1): expected a last dim of size %d to make %s, got %s", name,
             (int)(to / from), tpu_dtype_name(dtype), node_text(g, x));
    n--;
  }
  return node_make(g, name, "", &x, 1, dtype, n, dims);
}

val ir_reshape(ir_graph *g, val x, int ndim, const int64_t *dims) {
  const char *name = "stablehlo.reshape";
  USABLE_OR_POISON(name, &x, 1);
  if (!node_type_ok(g, name, x->dtype, ndim, dims)) return node_poison(g);
  ir_value r = {.ndim = (int16_t)ndim, .dims = dims};
  if (ir_same_dims(x, &r)) return x;
  CHECK_OR(ir_numel(x) == ir_numel(&r), "%s (C2): expected the number of elements of %s, got shape %s", name,
           node_text(g, x), node_dims_text(g, ndim, dims));
  return node_make(g, name, "", &x, 1, x->dtype, ndim, dims);
}

val ir_broadcast(ir_graph *g, val x, int ndim, const int64_t *dims, const int *map) {
  const char *name = "stablehlo.broadcast_in_dim";
  USABLE_OR_POISON(name, &x, 1);
  if (!node_type_ok(g, name, x->dtype, ndim, dims)) return node_poison(g);
  bool used[IR_MAX_RANK] = {false}, same = x->ndim == ndim;
  for (int i = 0; i < x->ndim; i++) {
    int d = map[i];
    CHECK_OR(d >= 0 && d < ndim, "%s (C3): expected 0 <= broadcast_dimensions[%d] < %d, got %d", name, i, ndim, d);
    CHECK_OR(!used[d], "%s (C4): dim %d is named twice in broadcast_dimensions", name, d);
    used[d] = true;
    CHECK_OR(x->dims[i] == 1 || x->dims[i] == dims[d], "%s (C5): expected dim %d of %s to be 1 or %lld, for shape %s",
             name, i, node_text(g, x), (long long)dims[d], node_dims_text(g, ndim, dims));
    same = same && d == i && x->dims[i] == dims[d];
  }
  if (same) return x;
  buf *b = attr_begin(g);
  attr_ints(b, "broadcast_dimensions", map, x->ndim);
  return node_make(g, name, attr_end(g), &x, 1, x->dtype, ndim, dims);
}

val ir_splat(ir_graph *g, val scalar, int ndim, const int64_t *dims) {
  USABLE_OR_POISON("stablehlo.broadcast_in_dim", &scalar, 1);
  CHECK_OR(!scalar->ndim, "ir_splat: expected a scalar, got %s", node_text(g, scalar));
  return ir_broadcast(g, scalar, ndim, dims, NULL);
}

val ir_transpose(ir_graph *g, val x, const int *perm) {
  const char *name = "stablehlo.transpose";
  USABLE_OR_POISON(name, &x, 1);
  bool used[IR_MAX_RANK] = {false}, same = true;
  int64_t dims[IR_MAX_RANK];
  for (int i = 0; i < x->ndim; i++) {
    int p = perm[i];
    CHECK_OR(p >= 0 && p < x->ndim && !used[p], "%s (C2): expected a permutation of %d dims, got %d at place %d", name,
             x->ndim, p, i);
    used[p] = true;
    dims[i] = x->dims[p];
    same = same && p == i;
  }
  if (same) return x;
  buf *b = attr_begin(g);
  attr_ints(b, "permutation", perm, x->ndim);
  return node_make(g, name, attr_end(g), &x, 1, x->dtype, x->ndim, dims);
}

val ir_reverse(ir_graph *g, val x, int n, const int *rev) {
  const char *name = "stablehlo.reverse";
  USABLE_OR_POISON(name, &x, 1);
  if (!n) return x;
  bool used[IR_MAX_RANK] = {false};
  for (int i = 0; i < n; i++) {
    CHECK_OR(rev[i] >= 0 && rev[i] < x->ndim && !used[rev[i]],
             "%s (C2, C3): expected different dims of %s, got %d at place %d", name, node_text(g, x), rev[i], i);
    used[rev[i]] = true;
  }
  buf *b = attr_begin(g);
  attr_ints(b, "dimensions", rev, n);
  return node_make(g, name, attr_end(g), &x, 1, x->dtype, x->ndim, x->dims);
}

val ir_slice(ir_graph *g, val x, const int64_t *start, const int64_t *limit, const int64_t *step) {
  const char *name = "stablehlo.slice";
  USABLE_OR_POISON(name, &x, 1);
  int64_t dims[IR_MAX_RANK], ones[IR_MAX_RANK];
  bool same = true;
  for (int i = 0; i < x->ndim; i++) {
    int64_t s = ones[i] = step ? step[i] : 1;
    CHECK_OR(start[i] >= 0 && start[i] <= limit[i] && limit[i] <= x->dims[i],
             "%s (C3): expected 0 <= start <= limit <= %lld in dim %d, got %lld and %lld", name, (long long)x->dims[i],
             i, (long long)start[i], (long long)limit[i]);
    CHECK_OR(s > 0, "%s (C4): expected a stride > 0 in dim %d, got %lld", name, i, (long long)s);
    int64_t span = limit[i] - start[i];
    dims[i] = span / s + (span % s != 0);
    same = same && dims[i] == x->dims[i];
  }
  if (same) return x;
  buf *b = attr_begin(g);
  attr_i64s(b, "start_indices", start, x->ndim);
  attr_i64s(b, ", limit_indices", limit, x->ndim);
  attr_i64s(b, ", strides", ones, x->ndim);
  return node_make(g, name, attr_end(g), &x, 1, x->dtype, x->ndim, dims);
}

/* Start indices: scalars of one integer dtype. */
static bool starts_ok(ir_graph *g, const char *name, const val *starts, int n) {
  if (!node_usable(g, name, starts, n)) return false;
  for (int i = 0; i < n; i++) {
    if (!starts[i]->ndim && ir_is_int(starts[i]->dtype) && starts[i]->dtype == starts[0]->dtype) continue;
    ir_fail(g, TPU_ERR_RUNTIME, "%s (C3): expected start indices to be scalars of one integer dtype, got %s", name,
            node_text(g, starts[i]));
    return false;
  }
  return true;
}

val ir_dynamic_slice(ir_graph *g, val x, const val *starts, const int64_t *sizes) {
  const char *name = "stablehlo.dynamic_slice";
  USABLE_OR_POISON(name, &x, 1);
  if (!starts_ok(g, name, starts, x->ndim)) return node_poison(g);
  for (int i = 0; i < x->ndim; i++)
    CHECK_OR(sizes[i] >= 0 && sizes[i] <= x->dims[i], "%s (C4): expected 0 <= size <= %lld in dim %d, got %lld", name,
             (long long)x->dims[i], i, (long long)sizes[i]);
  if (!x->ndim) return x;
  val in[IR_MAX_RANK + 1] = {x};
  memcpy(in + 1, starts, (size_t)x->ndim * sizeof *starts);
  buf *b = attr_begin(g);
  attr_i64s(b, "slice_sizes", sizes, x->ndim);
  return node_make(g, name, attr_end(g), in, 1 + x->ndim, x->dtype, x->ndim, sizes);
}

val ir_dynamic_update_slice(ir_graph *g, val x, val update, const val *starts) {
  const char *name = "stablehlo.dynamic_update_slice";
  val in[IR_MAX_RANK + 2] = {x, update};
  USABLE_OR_POISON(name, in, 2);
  if (!starts_ok(g, name, starts, x->ndim)) return node_poison(g);
  CHECK_OR(x->dtype == update->dtype, "%s (C2): expected an update of dtype %s, got %s", name, tpu_dtype_name(x->dtype),
           tpu_dtype_name(update->dtype));
  CHECK_OR(x->ndim == update->ndim, "%s (C3): expected an update of rank %d, got %s", name, x->ndim,
           node_text(g, update));
  for (int i = 0; i < x->ndim; i++)
    CHECK_OR(update->dims[i] <= x->dims[i], "%s (C6): update %s is larger than %s in dim %d", name,
             node_text(g, update), node_text(g, x), i);
  if (!x->ndim) return update;
  memcpy(in + 2, starts, (size_t)x->ndim * sizeof *starts);
  return node_make(g, name, "", in, 2 + x->ndim, x->dtype, x->ndim, x->dims);
}

val ir_pad(ir_graph *g, val x, val scalar, const int64_t *low, const int64_t *high, const int64_t *interior) {
  const char *name = "stablehlo.pad";
  val in[2] = {x, scalar};
  USABLE_OR_POISON(name, in, 2);
  CHECK_OR(!scalar->ndim && scalar->dtype == x->dtype, "%s (C1): expected a scalar of dtype %s, got %s", name,
           tpu_dtype_name(x->dtype), node_text(g, scalar));
  int64_t dims[IR_MAX_RANK], zeros[IR_MAX_RANK] = {0};
  bool same = true;
  if (!interior) interior = zeros;
  for (int i = 0; i < x->ndim; i++) {
    int64_t d = x->dims[i], gaps = 0, r = 0;
    CHECK_OR(interior[i] >= 0, "%s (C3): expected interior padding >= 0 in dim %d, got %lld", name, i,
             (long long)interior[i]);
    bool over = __builtin_mul_overflow(d > 1 ? d - 1 : 0, interior[i], &gaps);
    over = over || __builtin_add_overflow(d, gaps, &r) || __builtin_add_overflow(r, low[i], &r) ||
           __builtin_add_overflow(r, high[i], &r);
    CHECK_OR(!over && r >= 0, "%s (C4): padding %lld, %lld, %lld does not fit dim %d of %s", name, (long long)low[i],
             (long long)high[i], (long long)interior[i], i, node_text(g, x));
    dims[i] = r;
    same = same && !low[i] && !high[i] && r == d;
  }
  if (same) return x;
  buf *b = attr_begin(g);
  attr_i64s(b, "edge_padding_low", low, x->ndim);
  attr_i64s(b, ", edge_padding_high", high, x->ndim);
  attr_i64s(b, ", interior_padding", interior, x->ndim);
  return node_make(g, name, attr_end(g), in, 2, x->dtype, x->ndim, dims);
}

val ir_concat(ir_graph *g, const val *xs, int n, int dim) {
  const char *name = "stablehlo.concatenate";
  CHECK_OR(n > 0, "%s (C3): expected at least one operand, got %d", name, n);
  USABLE_OR_POISON(name, xs, n);
  val x = xs[0];
  CHECK_OR(dim >= 0 && dim < x->ndim, "%s (C4): expected 0 <= dimension < %d, got %d", name, x->ndim, dim);
  int64_t dims[IR_MAX_RANK];
  memcpy(dims, x->dims, (size_t)x->ndim * sizeof *dims);
  for (int i = 1; i < n; i++) {
    val y = xs[i];
    bool fits = y->dtype == x->dtype && y->ndim == x->ndim;
    for (int k = 0; fits && k < x->ndim; k++) fits = k == dim || y->dims[k] == x->dims[k];
    CHECK_OR(fits, "%s (C1, C2): operand %d is %s, expected %s but for dim %d", name, i, node_text(g, y),
             node_text(g, x), dim);
    CHECK_OR(!__builtin_add_overflow(dims[dim], y->dims[dim], &dims[dim]),
             "%s (C6): the sum of sizes in dim %d is too large", name, dim);
  }
  if (n == 1) return x;
  return node_make(g, name, arena_printf(&g->mem, "dimension = %d : i64", dim), xs, n, x->dtype, x->ndim, dims);
}
