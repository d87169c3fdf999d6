/* Shape helpers. */
#include <string.h>

#include "ops/op.h"

enum { MAX_DIMS = 64 };

int t_dim(op_ctx *c, int64_t dim, int ndim) {
  int n = ndim ? ndim : 1;
  if (dim < -n || dim >= n) {
    op_fail(c, TPU_ERR_INDEX, "Dimension out of range (expected to be in range of [%d, %d], but got %lld)", -n, n - 1,
            (long long)dim);
    return 0;
  }
  return (int)(dim < 0 ? dim + n : dim);
}

/* False (and an error) unless 0 <= dim < limit: guards the arrays below against a row's mistake. */
static bool check(op_ctx *c, val x, int dim, int limit) {
  if (ir_failed(G)) return false;
  if (dim >= 0 && dim < limit && limit <= MAX_DIMS) return true;
  op_fail(c, TPU_ERR_RUNTIME, "dimension %d of a value with %d dimensions (at most %d)", dim, x->ndim, MAX_DIMS);
  return false;
}

val t_reshape(op_ctx *c, val x, int ndim, const int64_t *dims) {
  return ir_failed(G) ? x : ir_reshape(G, x, ndim, dims);
}

val t_unsqueeze(op_ctx *c, val x, int dim) {
  if (!check(c, x, dim, x->ndim + 1)) return x;
  int64_t dims[MAX_DIMS];
  memcpy(dims, x->dims, (size_t)dim * sizeof *dims);
  dims[dim] = 1;
  memcpy(dims + dim + 1, x->dims + dim, (size_t)(x->ndim - dim) * sizeof *dims);
  return ir_reshape(G, x, x->ndim + 1, dims);
}

val t_squeeze(op_ctx *c, val x, int dim) {
  if (!check(c, x, dim, x->ndim) || x->dims[dim] != 1) return x;
  int64_t dims[MAX_DIMS];
  memcpy(dims, x->dims, (size_t)dim * sizeof *dims);
  memcpy(dims + dim, x->dims + dim + 1, (size_t)(x->ndim - dim - 1) * sizeof *dims);
  return ir_reshape(G, x, x->ndim - 1, dims);
}

val t_flatten(op_ctx *c, val x) {
  if (ir_failed(G)) return x;
  int64_t n = ir_numel(x);
  return ir_reshape(G, x, 1, &n);
}

val t_permute(op_ctx *c, val x, const int *perm) { return ir_failed(G) ? x : ir_transpose(G, x, perm); }

val t_transpose(op_ctx *c, val x, int a, int b) {
  if (!check(c, x, a, x->ndim) || !check(c, x, b, x->ndim)) return x;
  int perm[MAX_DIMS];
  for (int i = 0; i < x->ndim; i++) perm[i] = i;
  perm[a] = b;
  perm[b] = a;
  return ir_transpose(G, x, perm);
}

val t_narrow(op_ctx *c, val x, int dim, int64_t start, int64_t length, int64_t step) {
  if (!check(c, x, dim, x->ndim)) return x;
  if (start == 0 && length == x->dims[dim] && step == 1) return x;
  int64_t s[MAX_DIMS], l[MAX_DIMS], k[MAX_DIMS];
  for (int i = 0; i < x->ndim; i++) {
    s[i] = 0;
    l[i] = x->dims[i];
    k[i] = 1;
  }
  s[dim] = start;
  l[dim] = length ? start + (length - 1) * step + 1 : start;
  k[dim] = step;
  return ir_slice(G, x, s, l, k);
}

val t_concat(op_ctx *c, const val *v, int n, int dim) {
  if (n < 1) return op_fail(c, TPU_ERR_RUNTIME, "expected a non-empty list of Tensors");
  return ir_failed(G) || n == 1 ? v[0] : ir_concat(G, v, n, dim);
}

val t_iota(op_ctx *c, tpu_dtype d, int ndim, const int64_t *dims, int dim) {
  if (ndim == 0) return t_zeros(c, d, 0, NULL);
  return ir_iota(G, d, ndim, dims, dim);
}
