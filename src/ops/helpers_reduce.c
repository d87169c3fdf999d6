/* Reductions and matmul. */
#include <string.h>

#include "ops/op.h"

enum { MAX_DIMS = 64 };

static val identity(op_ctx *c, ir_opcode body, tpu_dtype d) {
  switch (body) {
    case IR_MUL: return t_scalar(c, d, 1);
    case IR_MAX: return ir_const_min(G, d, 0, NULL);
    case IR_MIN: return ir_const_max(G, d, 0, NULL);
    case IR_AND: return d == TPU_BOOL ? t_scalar(c, d, 1) : ir_const_i(G, d, -1, 0, NULL);
    case IR_ADD:
    case IR_OR:
    case IR_XOR: return t_scalar(c, d, 0);
    default: return op_fail(c, TPU_ERR_RUNTIME, "no reduction has body number %d", (int)body);
  }
}

/* Keeps the first operand when it is the larger (smaller) one or NaN: so a NaN wins, whatever a maximum does with it.
 */
static val reduce_compared(op_ctx *c, ir_opcode body, val x, val start, int n, const int *dims) {
  val b[2], out;
  ir_reduce_begin(G, &x, &start, 1, n, dims, b);
  val first = ir_compare(G, body == IR_MAX ? IR_GT : IR_LT, b[0], b[1]), nan = ir_compare(G, IR_NE, b[0], b[0]);
  val best = ir_select(G, ir_binary(G, IR_OR, first, nan), b[0], b[1]);
  ir_reduce_end(G, &best, &out);
  return out;
}

static val reduce(op_ctx *c, ir_opcode body, val x, const int *dims, int n, bool keep, bool compare) {
  int all[MAX_DIMS];
  int64_t kept[MAX_DIMS];
  if (ir_failed(G)) return x;
  if (n == 0) {
    for (n = 0; n < x->ndim; n++) all[n] = n;
    dims = all;
  }
  if (n == 0) return x; /* rank 0 */
  tpu_dtype d = (tpu_dtype)x->dtype, m = body == IR_ADD || body == IR_MUL ? t_opmath(d) : d;
  if (d == TPU_BOOL) body = body == IR_MAX || body == IR_ADD ? IR_OR : body == IR_MIN || body == IR_MUL ? IR_AND : body;
  memcpy(kept, x->dims, (size_t)x->ndim * sizeof *kept);
  for (int i = 0; i < n; i++) {
    if (dims[i] < 0 || dims[i] >= x->ndim)
      return op_fail(c, TPU_ERR_RUNTIME, "dimension %d of a value with %d dimensions", dims[i], x->ndim);
    kept[dims[i]] = 1;
  }
  val r = compare ? reduce_compared(c, body, x, identity(c, body, d), n, dims)
                  : t_cast(c, ir_reduce(G, body, t_cast(c, x, m), identity(c, body, m), n, dims), d);
  return keep ? t_reshape(c, r, x->ndim, kept) : r;
}

val t_reduce(op_ctx *c, ir_opcode body, val x, const int *dims, int n, bool keep) {
  return reduce(c, body, x, dims, n, keep, false);
}

val t_sum(op_ctx *c, val x, const int *dims, int n, bool keep) { return t_reduce(c, IR_ADD, x, dims, n, keep); }

/* XLA's CPU compiler drops a NaN in max and min reductions: a reduction of its own says where one was. On a TPU that
 * would read x a second time; there the body says it. */
static val extreme(op_ctx *c, ir_opcode body, val x, const int *dims, int n, bool keep) {
  if (op_for_tpu(c) && ir_is_float((tpu_dtype)x->dtype)) return reduce(c, body, x, dims, n, keep, true);
  val r = t_reduce(c, body, x, dims, n, keep);
  if (!ir_is_float((tpu_dtype)x->dtype) || ir_failed(G)) return r;
  val nan = t_reduce(c, IR_OR, ir_compare(G, IR_NE, x, x), dims, n, keep);
  return ir_select(G, nan, t_like(c, r, __builtin_nan("")), r);
}
val t_amax(op_ctx *c, val x, const int *dims, int n, bool keep) { return extreme(c, IR_MAX, x, dims, n, keep); }
val t_amin(op_ctx *c, val x, const int *dims, int n, bool keep) { return extreme(c, IR_MIN, x, dims, n, keep); }

val t_mean(op_ctx *c, val x, const int *dims, int n, bool keep) {
  tpu_dtype d = t_float_dtype(c, x);
  val s = t_reduce(c, IR_ADD, t_cast(c, x, t_opmath(d)), dims, n, keep);
  double count = 1;
  if (n == 0) count = (double)ir_numel(x);
  else
    for (int i = 0; i < n && !ir_failed(G); i++) count *= (double)x->dims[dims[i]];
  return t_cast(c, t_div(c, s, t_like(c, s, count)), d);
}

int t_dims_arg(op_ctx *c, int arg, int ndim, int *out) {
  int n;
  const int64_t *dims = op_ints(c, arg, &n);
  bool seen[MAX_DIMS] = {false};
  for (int i = 0; i < n; i++) {
    int d = t_dim(c, dims[i], ndim);
    if (seen[d]) {
      op_fail(c, TPU_ERR_RUNTIME, "dim %d appears multiple times in the list of dims", d);
      return 0;
    }
    seen[d] = true;
  }
  int count = 0;
  for (int d = 0; d < ndim; d++)
    if (n == 0 || seen[d]) out[count++] = d;
  return count;
}

val t_matmul(op_ctx *c, val a, val b) {
  if (ir_failed(G)) return a;
  if (a->ndim < 2 || a->ndim != b->ndim || a->ndim > MAX_DIMS)
    return op_fail(c, TPU_ERR_RUNTIME, "a matmul needs two values of the same rank >= 2, not %d and %d", a->ndim,
                   b->ndim);
  int batch[MAX_DIMS], n = a->ndim - 2, ka = n + 1, kb = n;
  for (int i = 0; i < n; i++) batch[i] = i;
  tpu_dtype d = (tpu_dtype)a->dtype;
  val r = ir_dot(G, a, b, n, batch, batch, 1, &ka, &kb, t_opmath(d), op_precision(c, d));
  return t_cast(c, r, d);
}
