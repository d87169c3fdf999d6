#include <string.h>

#include "view/plan.h"

static tpu_dtype raw_of(tpu_dtype d) { return d == TPU_BOOL ? TPU_U8 : ir_real_dtype(d); }

static void push(view_cast *c, cast_kind kind, tpu_dtype from, tpu_dtype to) {
  int i = c->n++;
  c->kind[i] = kind;
  c->from[i] = from;
  c->to[i] = to;
  c->ndim[i + 1] = c->ndim[i];
  if (c->ndim[i] > 0) memcpy(c->dims[i + 1], c->dims[i], (size_t)c->ndim[i] * sizeof(int64_t));
}

/* Makes the last dimension a multiple of k: flattens, and drops a tail, where it is not. */
static void make_divisible(view_cast *c, tpu_dtype d, int64_t k) {
  int nd = c->ndim[c->n];
  const int64_t *dims = c->dims[c->n];
  if (nd > 0 && dims[nd - 1] % k == 0) return;
  int64_t n = 1;
  for (int i = 0; i < nd; i++) n *= dims[i];
  push(c, CAST_CUT, d, d);
  c->ndim[c->n] = 1;
  c->dims[c->n][0] = n - n % k;
}

void cast_plan(const view_base *b, tpu_dtype dtype, view_cast *c) {
  c->n = 0;
  c->dtype = dtype;
  c->ndim[0] = b->ndim;
  if (b->ndim > 0) memcpy(c->dims[0], b->dims, (size_t)b->ndim * sizeof(int64_t));
  c->raw = b->dtype;
  if (b->dtype == dtype) return;
  tpu_dtype d = raw_of(b->dtype), to = raw_of(dtype);
  if (b->dtype == TPU_BOOL) push(c, CAST_BOOL_TO_U8, TPU_BOOL, d);
  if (ir_is_complex(b->dtype)) {
    push(c, CAST_SPLIT_COMPLEX, b->dtype, d);
    c->dims[c->n][c->ndim[c->n]++] = 2;
  }
  int64_t have = (int64_t)tpu_dtype_size(d), want = (int64_t)tpu_dtype_size(to);
  if (have > want) {
    push(c, CAST_DOWN, d, to);
    int nd = c->ndim[c->n];
    if (nd == 0) c->dims[c->n][c->ndim[c->n]++] = have / want;
    else c->dims[c->n][nd - 1] *= have / want;
  } else if (have < want) {
    make_divisible(c, d, want / have);
    push(c, CAST_UP, d, to);
    c->dims[c->n][c->ndim[c->n] - 1] /= want / have;
  } else if (d != to) {
    push(c, CAST_SAME, d, to);
  }
  c->raw = to;
  if (ir_is_complex(dtype)) {
    make_divisible(c, to, 2);
    push(c, CAST_JOIN_COMPLEX, to, dtype);
    c->dims[c->n][c->ndim[c->n] - 1] /= 2;
    c->raw = dtype;
  }
}

val view_zeros(ir_graph *g, tpu_dtype dtype, int ndim, const int64_t *dims) {
  if (ir_is_complex(dtype)) return ir_const_c(g, dtype, 0, 0, ndim, dims);
  /* float8_e8m0fnu has no number zero */
  if (dtype == TPU_F8E8M0FNU) return ir_bitcast(g, ir_const_i(g, TPU_U8, 0, ndim, dims), dtype);
  return ir_const_i(g, dtype, 0, ndim, dims);
}

/* x viewed as dims plus a last dimension k */
static val reshape_plus(ir_graph *g, val x, int nd, const int64_t *dims, int64_t k) {
  int64_t d[CAST_DIMS + 1];
  if (nd > 0) memcpy(d, dims, (size_t)nd * sizeof(int64_t));
  d[nd] = k;
  return ir_reshape(g, x, nd + 1, d);
}

/* Wider: x has k times the elements of dims; the result has dims. Narrower: the other way round. */
static val bitcast_up(ir_graph *g, val x, tpu_dtype to, int nd, const int64_t *dims, int64_t k) {
  return ir_bitcast(g, reshape_plus(g, x, nd, dims, k), to);
}
static val bitcast_down(ir_graph *g, val x, tpu_dtype to, int nd, const int64_t *dims) {
  return ir_reshape(g, ir_bitcast(g, x, to), nd, dims);
}

/* complex of dims -> real of rdims (twice the elements) */
static val split_complex(ir_graph *g, val x, int nd, const int64_t *dims, int rnd, const int64_t *rdims) {
  val parts[2] = {reshape_plus(g, ir_unary(g, IR_REAL, x), nd, dims, 1),
                  reshape_plus(g, ir_unary(g, IR_IMAG, x), nd, dims, 1)};
  return ir_reshape(g, ir_concat(g, parts, 2, nd), rnd, rdims);
}

static val join_complex(ir_graph *g, val x, int nd, const int64_t *dims) {
  x = reshape_plus(g, x, nd, dims, 2);
  val part[2];
  for (int k = 0; k < 2; k++) {
    int64_t lo[CAST_DIMS + 1], hi[CAST_DIMS + 1], step[CAST_DIMS + 1];
    for (int i = 0; i < nd; i++) lo[i] = 0, hi[i] = dims[i], step[i] = 1;
    lo[nd] = k, hi[nd] = k + 1, step[nd] = 1;
    part[k] = ir_reshape(g, ir_slice(g, x, lo, hi, step), nd, dims);
  }
  return ir_binary(g, IR_COMPLEX, part[0], part[1]);
}

static int64_t numel(int nd, const int64_t *dims) {
  int64_t n = 1;
  for (int i = 0; i < nd; i++) n *= dims[i];
  return n;
}

static val flat_slice(ir_graph *g, val x, int64_t lo, int64_t hi) {
  int64_t n = ir_numel(x), one = 1;
  x = ir_reshape(g, x, 1, &n);
  return lo == 0 && hi == n ? x : ir_slice(g, x, &lo, &hi, &one);
}

static int64_t ratio(tpu_dtype wide, tpu_dtype narrow) {
  return (int64_t)(tpu_dtype_size(wide) / tpu_dtype_size(narrow));
}

static val step_forward(ir_graph *g, const view_cast *c, int i, val x) {
  int nd = c->ndim[i], rnd = c->ndim[i + 1];
  const int64_t *dims = c->dims[i], *rdims = c->dims[i + 1];
  tpu_dtype to = c->to[i];
  switch (c->kind[i]) {
    case CAST_SPLIT_COMPLEX: return split_complex(g, x, nd, dims, rnd, rdims);
    case CAST_BOOL_TO_U8: return ir_convert(g, x, to);
    case CAST_SAME: return ir_bitcast(g, x, to);
    case CAST_DOWN: return bitcast_down(g, x, to, rnd, rdims);
    case CAST_CUT: return flat_slice(g, x, 0, rdims[0]);
    case CAST_UP: return bitcast_up(g, x, to, rnd, rdims, ratio(to, c->from[i]));
    case CAST_JOIN_COMPLEX: return join_complex(g, x, rnd, rdims);
  }
  return x;
}

val cast_forward(ir_graph *g, const view_cast *c, val x) {
  for (int i = 0; i < c->n; i++) x = step_forward(g, c, i, x);
  return x;
}

val cast_back(ir_graph *g, const view_cast *c, val x, val base) {
  for (int i = c->n - 1; i >= 0; i--) {
    int nd = c->ndim[i], rnd = c->ndim[i + 1];
    const int64_t *dims = c->dims[i], *rdims = c->dims[i + 1];
    tpu_dtype from = c->from[i];
    switch (c->kind[i]) {
      case CAST_SPLIT_COMPLEX: x = join_complex(g, x, nd, dims); break;
      case CAST_BOOL_TO_U8: x = ir_convert(g, x, from); break;
      case CAST_SAME: x = ir_bitcast(g, x, from); break;
      case CAST_DOWN: x = bitcast_up(g, x, from, nd, dims, ratio(from, c->to[i])); break;
      case CAST_CUT: {
        int64_t n = numel(nd, dims);
        if (rdims[0] < n) { /* the tail comes from what was there */
          val parts[2] = {x, base};
          for (int k = 0; k < i; k++) parts[1] = step_forward(g, c, k, parts[1]);
          parts[1] = flat_slice(g, parts[1], rdims[0], n);
          x = ir_concat(g, parts, 2, 0);
        }
        x = ir_reshape(g, x, nd, dims);
        break;
      }
      case CAST_UP: x = bitcast_down(g, x, from, nd, dims); break;
      case CAST_JOIN_COMPLEX: x = split_complex(g, x, rnd, rdims, nd, dims); break;
    }
  }
  return x;
}
