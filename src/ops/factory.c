/* Operators that make values: fills, ranges, identity, triangles. Sizes come from PyTorch's meta kernel. */
#include <math.h>

#include "ops/pointwise.h"

static val filled(op_ctx *c, val v) {
  val x = T(0);
  return t_broadcast_to(c, t_cast(c, v, (tpu_dtype)x->dtype), x->ndim, x->dims);
}
OP(fill, "aten::fill") { RET(filled(c, op_any(c, 1))); }
OP(zero, "aten::zero") { RET(t_like(c, T(0), 0)); }

OP(full, "aten::full") {
  const tpu_meta *m = op_meta(c, 0);
  if (m) RET(t_broadcast_to(c, t_cast(c, S(1), (tpu_dtype)m->dtype), m->ndim, m->sizes));
  else op_fail(c, TPU_ERR_RUNTIME, "aten::full needs the metadata of its result");
}

OP(efficientzerotensor, "aten::_efficientzerotensor") { /* a gradient that is zero; autograd asks for it */
  const tpu_meta *m = op_meta(c, 0);
  if (m) RET(t_zeros(c, (tpu_dtype)m->dtype, m->ndim, m->sizes));
  else op_fail(c, TPU_ERR_RUNTIME, "aten::_efficientzerotensor needs the metadata of its result");
}

/* The dtype in which PyTorch steps through a range of dtype d: integers in int64, floats in double, reduced floats in
 * float. */
static tpu_dtype step_dtype(tpu_dtype d) {
  if (ir_is_int(d) || d == TPU_BOOL) return TPU_I64;
  return d == TPU_F32 || d == TPU_F64 ? TPU_F64 : TPU_F32;
}

/* start + i * step; argument -1 is the default (0 or 1). The numbers decide the size, so they are part of the key. */
static void range(op_ctx *c, int start, int end, int step) {
  const tpu_meta *m = op_meta(c, 0);
  if (start >= 0) op_const(c, start);
  if (step >= 0) op_const_or(c, step, 1);
  op_const(c, end);
  if (!m) {
    op_fail(c, TPU_ERR_RUNTIME, "a range needs the metadata of its result");
    return;
  }
  tpu_dtype d = step_dtype((tpu_dtype)m->dtype);
  val i = t_iota(c, TPU_I64, m->ndim, m->sizes, 0);
  if (ir_failed(G)) return;
  i = t_cast(c, i, d);
  if (step >= 0 && HAS(step)) i = P_MUL(i, t_broadcast_to(c, t_cast(c, S(step), d), i->ndim, i->dims));
  if (start >= 0) i = P_ADD(i, t_broadcast_to(c, t_cast(c, S(start), d), i->ndim, i->dims));
  RET(t_cast(c, i, (tpu_dtype)m->dtype));
}
OP(arange, "aten::arange") { range(c, -1, 0, -1); }
OP(arange_start, "aten::arange.start") { range(c, 0, 1, -1); }
OP(arange_start_step, "aten::arange.start_step") { range(c, 0, 1, 2); }
OP(range, "aten::range") { range(c, 0, 1, -1); }
OP(range_step, "aten::range.step") { range(c, 0, 1, 2); }

/* The points between start and end, counted from the nearer end as PyTorch does, in floats of `d`. For integers both
 * ends are cut to integers first. */
static val points(op_ctx *c, tpu_dtype d, tpu_dtype result, int64_t n) {
  val start = op_any(c, 0), end = op_any(c, 1);
  if (!ir_is_float(result) && !ir_is_complex(result)) {
    start = ir_convert(G, t_cast(c, start, result), d); /* t_cast would ask for the number anew, in d */
    end = ir_convert(G, t_cast(c, end, result), d);
  }
  start = t_cast(c, start, d);
  end = t_cast(c, end, d);
  val i = t_iota(c, TPU_I64, 1, &n, 0);
  if (ir_failed(G)) return i;
  val f = t_cast(c, i, d);
  start = t_broadcast_to(c, start, 1, &n);
  end = t_broadcast_to(c, end, 1, &n);
  if (n == 1) return start;
  /* behind a barrier: a quotient by a constant becomes a product with its reciprocal, which is not exact */
  val steps = P_NUM(f, (double)(n - 1));
  ir_barrier(G, &steps, 1, &steps);
  val step = P_DIV(P_SUB(end, start), steps);
  val back = P_SUB(P_NUM(f, (double)(n - 1)), f);
  return P_SEL(P_CMPC(LT, i, (double)(n / 2)), P_ADD(start, P_MUL(step, f)), P_SUB(end, P_MUL(step, back)));
}

static tpu_dtype points_dtype(const tpu_meta *m) {
  tpu_dtype d = (tpu_dtype)m->dtype;
  return ir_is_complex(d) ? d : ir_is_float(d) && d != TPU_F64 ? TPU_F32 : TPU_F64;
}

static void spaced(op_ctx *c, int base) {
  const tpu_meta *m = op_meta(c, 0);
  if (!m) {
    op_fail(c, TPU_ERR_RUNTIME, "a range needs the metadata of its result");
    return;
  }
  tpu_dtype d = points_dtype(m);
  val p = points(c, d, (tpu_dtype)m->dtype, INT(2));
  if (ir_failed(G)) return;
  if (base) p = ir_binary(G, IR_POW, t_broadcast_to(c, t_cast(c, S(base), d), p->ndim, p->dims), p);
  RET(t_cast(c, p, (tpu_dtype)m->dtype));
}
OP(linspace, "aten::linspace") { spaced(c, 0); }
OP(logspace, "aten::logspace") { spaced(c, 3); }

/* ---- matrices ---------------------------------------------------------------------------------------------------- */

/* row - column, int64, of the last two dims */
static val row_minus_column(op_ctx *c, int ndim, const int64_t *dims) {
  return P_SUB(t_iota(c, TPU_I64, ndim, dims, ndim - 2), t_iota(c, TPU_I64, ndim, dims, ndim - 1));
}

static void eye(op_ctx *c, int64_t n, int64_t m) {
  const tpu_meta *meta = op_meta(c, 0);
  int64_t dims[2] = {n, m};
  val on = P_CMPC(EQ, row_minus_column(c, 2, dims), 0);
  RET(t_cast(c, on, meta ? (tpu_dtype)meta->dtype : op_default_dtype(c)));
}
OP(eye, "aten::eye") { eye(c, INT(0), INT(0)); }
OP(eye_m, "aten::eye.m") { eye(c, INT(0), INT(1)); }

static void triangle(op_ctx *c, bool lower) {
  val x = T(0);
  if (ir_failed(G)) return;
  if (x->ndim < 2) {
    op_fail(c, TPU_ERR_RUNTIME, "%s: input tensor must have at least 2 dimensions", lower ? "tril" : "triu");
    return;
  }
  val d = row_minus_column(c, 2, x->dims + x->ndim - 2);
  val k = ir_const_i(G, TPU_I64, -INT_OR(1, 0), 2, d->dims);
  val keep = ir_compare(G, lower ? IR_GE : IR_LE, d, k);
  RET(P_SEL(t_broadcast_to(c, keep, x->ndim, x->dims), x, P_NUM(x, 0)));
}
OP(tril, "aten::tril") { triangle(c, true); }
OP(triu, "aten::triu") { triangle(c, false); }

/* The row and column of every element of a triangle, in row-major order: the sums of the row lengths say where each
 * row starts, and a binary search finds the row of each position. */
static void triangle_indices(op_ctx *c, bool lower) {
  int64_t rows = INT(0), cols = INT(1), offset = INT_OR(2, 0);
  const tpu_meta *m = op_meta(c, 0);
  if (!m || m->ndim != 2) {
    op_fail(c, TPU_ERR_RUNTIME, "triangle indices need the metadata of their result");
    return;
  }
  int64_t n = m->sizes[1];
  if (n == 0) {
    RET(t_zeros(c, (tpu_dtype)m->dtype, 2, m->sizes));
    return;
  }
  /* Row i holds columns [first(i), last(i)): start(i) is the sum of the counts before it. */
  int64_t shape[1] = {rows};
  val i = t_iota(c, TPU_I64, 1, shape, 0);
  val zero = P_NUM(i, 0), all = ir_const_i(G, TPU_I64, cols, 1, shape);
  val edge = P_ADD(i, ir_const_i(G, TPU_I64, lower ? offset + 1 : offset, 1, shape));
  edge = P_MIN(P_MAX(edge, zero), all);
  val first = lower ? zero : edge, count = lower ? edge : P_SUB(all, edge);
  /* exclusive sum, by doubling steps */
  val total = count;
  for (int64_t step = 1; step < rows; step *= 2) {
    int64_t low = step, high = -step, none = 0;
    total = P_ADD(total, ir_pad(G, total, t_scalar(c, TPU_I64, 0), &low, &high, &none));
  }
  val start = P_SUB(total, count);
  int64_t pos[1] = {n};
  val p = t_iota(c, TPU_I64, 1, pos, 0);
  val lo = P_NUM(p, 0), hi = ir_const_i(G, TPU_I64, rows, 1, pos);
  ir_gather_dims g = {
      .ncollapsed = 1, .collapsed_dims = (int[]){0}, .nstart = 1, .start_index_map = (int[]){0}, .index_vector_dim = 1};
  int64_t one = 1;
  for (int64_t left = rows; left > 0; left /= 2) { /* binary search: total[lo - 1] <= p < total[hi] */
    val mid = P_DIV(P_ADD(lo, hi), P_NUM(lo, 2));
    val at = ir_gather(G, total, t_unsqueeze(c, mid, 1), &g, &one, false);
    val right = P_AND(P_CMP(LE, at, p), P_CMP(LT, lo, hi));
    val open = P_CMP(LT, lo, hi);
    lo = P_SEL(right, P_ADDC(mid, 1), lo);
    hi = P_SEL(P_AND(open, t_not(c, right)), mid, hi);
  }
  val at_row = t_unsqueeze(c, lo, 1);
  val col = P_ADD(P_SUB(p, ir_gather(G, start, at_row, &g, &one, false)), ir_gather(G, first, at_row, &g, &one, false));
  val out[2] = {t_unsqueeze(c, lo, 0), t_unsqueeze(c, col, 0)};
  RET(t_cast(c, t_concat(c, out, 2, 0), (tpu_dtype)m->dtype));
}
OP(tril_indices, "aten::tril_indices") { triangle_indices(c, true); }
OP(triu_indices, "aten::triu_indices") { triangle_indices(c, false); }
