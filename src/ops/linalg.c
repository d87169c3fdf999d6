/* Factorisations and solves of batches of matrices. Cholesky and triangular solves are StableHLO's own; LU with partial
 * pivoting and products of Householder reflections are loops over columns that update all of the matrix at once. On a
 * CPU, Cholesky and LU of larger ones go by blocks of columns, and a matrix product updates the rest. */
#include <ctype.h>
#include <string.h>

#include "ops/ctx.h" /* for the strides that decide which of A and its transpose PyTorch factors */
#include "ops/matrix.h"
#include "ops/pointwise.h"

bool mat_check(op_ctx *c, val x) {
  if (ir_failed(G)) return false;
  if (x->ndim >= 2) return true;
  op_fail(c, TPU_ERR_RUNTIME, "linalg: The input tensor must have at least 2 dimensions.");
  return false;
}

val mat_transpose(op_ctx *c, val x) { return ir_failed(G) ? x : t_transpose(c, x, x->ndim - 2, x->ndim - 1); }

val mat_conj(op_ctx *c, val x) {
  return t_is_complex(x) ? ir_binary(G, IR_COMPLEX, P_UN(REAL, x), P_UN(NEG, P_UN(IMAG, x))) : x;
}
val mat_adjoint(op_ctx *c, val x) { return mat_conj(c, mat_transpose(c, x)); }

/* row - column of each element of x, int32 [rows, cols] broadcast to x's dims */
static val row_minus_column(op_ctx *c, val x) {
  val r = t_iota_dim(c, TPU_I32, x->ndim, x->ndim - 2, mat_rows(x)),
      k = t_iota_dim(c, TPU_I32, x->ndim, x->ndim - 1, mat_cols(x));
  return t_broadcast_to(c, t_sub(c, r, k), x->ndim, x->dims);
}

val mat_triangle(op_ctx *c, val x, ir_cmp k) {
  return ir_failed(G) ? x
                      : ir_select(G, t_cmp(c, k, row_minus_column(c, x), t_scalar(c, TPU_I32, 0)), x, t_like(c, x, 0));
}
static val with_unit_diagonal(op_ctx *c, val x) {
  return ir_failed(G)
             ? x
             : ir_select(G, t_cmp(c, IR_EQ, row_minus_column(c, x), t_scalar(c, TPU_I32, 0)), t_like(c, x, 1), x);
}
val mat_identity(op_ctx *c, val like) { return with_unit_diagonal(c, t_like(c, like, 0)); }

val mat_diagonal(op_ctx *c, val x) {
  int64_t n = mat_rows(x) < mat_cols(x) ? mat_rows(x) : mat_cols(x);
  x = t_narrow(c, t_narrow(c, x, x->ndim - 2, 0, n, 1), x->ndim - 1, 0, n, 1);
  return t_sum(c, mat_triangle(c, x, IR_EQ), (int[]){x->ndim - 2}, 1, false);
}

void mat_share_batch(op_ctx *c, val *a, val *b) {
  if (ir_failed(G)) return;
  int64_t dims[T_MAX_DIMS];
  int n = (*a)->ndim > (*b)->ndim ? (*a)->ndim : (*b)->ndim;
  val *v[2] = {a, b};
  for (int i = 0; i < n - 2; i++) {
    dims[i] = 1;
    for (int j = 0; j < 2; j++) {
      int at = i - (n - (*v[j])->ndim);
      if (at >= 0 && (*v[j])->dims[at] != 1) dims[i] = (*v[j])->dims[at];
    }
  }
  for (int j = 0; j < 2; j++) {
    memcpy(dims + n - 2, (*v[j])->dims + (*v[j])->ndim - 2, 2 * sizeof *dims);
    *v[j] = t_broadcast_to(c, *v[j], n, dims);
  }
}

val mat_solve_triangle(op_ctx *c, val a, val b, bool left, bool lower, bool unit, int transpose) {
  mat_share_batch(c, &a, &b);
  if (ir_failed(G) || ir_numel(b) == 0) return b;
  return ir_triangular_solve(G, a, b, left, lower, unit, transpose);
}

/* ---- triangles and Cholesky -----------------------------------------------------------------------------------------
 */

/* (self, B, upper, left, unitriangular) */
OP(linalg_solve_triangular, "aten::linalg_solve_triangular") {
  val a = T(0), b = T(1);
  if (mat_check(c, a) && mat_check(c, b)) RET(mat_solve_triangle(c, a, b, INT_OR(3, 1), !INT(2), INT_OR(4, 0), 0));
}

/* (self: b, A, upper, transpose, unitriangular) -> (solution, A as it was, batch dims shared) */
OP(triangular_solve, "aten::triangular_solve") {
  val b = T(0), a = T(1);
  if (!mat_check(c, a) || !mat_check(c, b)) return;
  mat_share_batch(c, &a, &b);
  RETN(0, mat_solve_triangle(c, a, b, true, !INT_OR(2, 1), INT_OR(4, 0), INT_OR(3, 0)));
  RETN(1, a);
}

/* LAPACK does not look at the imaginary part of the diagonal, which a Hermitian matrix does not have. */
static val with_real_diagonal(op_ctx *c, val x) {
  if (ir_failed(G) || !t_is_complex(x)) return x;
  return t_where(c, t_cmp(c, IR_EQ, row_minus_column(c, x), t_scalar(c, TPU_I32, 0)),
                 t_cast(c, P_UN(REAL, x), (tpu_dtype)x->dtype), x);
}

static val wide(op_ctx *c, val v, val like) { return t_broadcast_to(c, v, like->ndim, like->dims); }

/* A whole number of blocks: x with 1 on the diagonal of what is added. */
static val pad_blocks(op_ctx *c, val x, int64_t rows, int64_t cols) {
  int64_t low[T_MAX_DIMS] = {0}, high[T_MAX_DIMS] = {0}, between[T_MAX_DIMS] = {0};
  if (ir_failed(G) || x->ndim < 2 || (rows == mat_rows(x) && cols == mat_cols(x))) return x;
  high[x->ndim - 2] = rows - mat_rows(x);
  high[x->ndim - 1] = cols - mat_cols(x);
  val added = ir_pad(G, t_like(c, x, 1), t_scalar(c, (tpu_dtype)x->dtype, 0), low, high, between);
  val wide = ir_pad(G, x, t_scalar(c, (tpu_dtype)x->dtype, 0), low, high, between);
  val on = P_AND(t_cmp(c, IR_EQ, row_minus_column(c, wide), t_scalar(c, TPU_I32, 0)),
                 ir_compare(G, IR_EQ, added, t_like(c, added, 0)));
  return ir_failed(G) ? x : ir_select(G, on, t_like(c, wide, 1), wide);
}

/* Rows (d = 2 from the end) or columns (1) [from, from + n) of x, and x with them replaced. */
static val mat_part(op_ctx *c, val x, int d, val from, int64_t n) {
  val start[T_MAX_DIMS];
  int64_t size[T_MAX_DIMS];
  if (ir_failed(G)) return x;
  for (int k = 0; k < x->ndim; k++) {
    start[k] = k == x->ndim - d ? from : t_scalar(c, TPU_I32, 0);
    size[k] = k == x->ndim - d ? n : x->dims[k];
  }
  return ir_dynamic_slice(G, x, start, size);
}
static val mat_replace(op_ctx *c, val x, int d, val from, val part) {
  val start[T_MAX_DIMS];
  if (ir_failed(G)) return x;
  for (int k = 0; k < x->ndim; k++) start[k] = k == x->ndim - d ? from : t_scalar(c, TPU_I32, 0);
  return ir_dynamic_update_slice(G, x, part, start);
}

/* a b, batched, in full precision */
static val mat_product(op_ctx *c, val a, val b) {
  int batch[T_MAX_DIMS], n = a->ndim;
  if (ir_failed(G)) return a;
  for (int i = 0; i < n; i++) batch[i] = i;
  return ir_dot(G, a, b, n - 2, batch, batch, 1, (int[]){n - 1}, (int[]){n - 2}, (tpu_dtype)a->dtype, 0);
}

enum { FACTOR_BLOCK = 16, CHOLESKY_UP_TO = 512 /* rows; of more XLA's is the faster one */ };

/* One row of U in its block r of rows that begins at k: row j by the root of its diagonal element, and what it takes
 * from the rows below. */
static val cholesky_row(op_ctx *c, val r, val k, val j, int64_t block) {
  int rd = r->ndim - 2, cd = r->ndim - 1;
  if (ir_failed(G)) return r;
  val row = t_iota_dim(c, TPU_I32, r->ndim, rd, block), col = t_iota_dim(c, TPU_I32, r->ndim, cd, mat_cols(r));
  val at = P_ADD(k, j), u = mat_at(c, r, rd, j), d = mat_at(c, u, cd, at);
  if (t_is_complex(d)) d = P_UN(REAL, d);
  if (ir_failed(G)) return r;
  d = ir_select(G, P_CMP(GT, d, t_like(c, d, 0)), P_UN(SQRT, d), t_like(c, d, __builtin_nan("")));
  u = P_DIV(u, wide(c, t_cast(c, d, (tpu_dtype)u->dtype), u));
  u = ir_failed(G) ? u : ir_select(G, wide(c, t_cmp(c, IR_GE, col, at), u), u, t_like(c, u, 0));
  val factor = mat_conj(c, mat_transpose(c, mat_part(c, u, 1, k, block))); /* [.., block, 1] */
  if (ir_failed(G)) return r;
  val rest = P_SUB(r, P_MUL(wide(c, factor, r), wide(c, u, r)));
  return ir_select(G, wide(c, t_cmp(c, IR_GT, row, j), r), rest,
                   ir_select(G, wide(c, t_cmp(c, IR_EQ, row, j), r), wide(c, u, r), r));
}

/* Rows [k, k + block) of U from those of what is left of A. */
static val cholesky_block(op_ctx *c, val r, val k, int64_t block) {
  const val init[2] = {t_scalar(c, TPU_I32, 0), r};
  val v[2], out[2];
  ir_while_begin(G, init, 2, v);
  ir_while_body(G, ir_compare(G, IR_LT, v[0], t_scalar(c, TPU_I32, (double)block)), v);
  val next = cholesky_row(c, v[1], k, v[0], block);
  ir_while_end(G, (const val[]){P_ADD(v[0], t_scalar(c, TPU_I32, 1)), next}, out);
  return out[1];
}

/* U with A = U^H U, from the upper triangle of a: a block of rows at a time, then one product that takes it from all
 * rows below. For CPUs, where XLA's own goes through all of 128 columns for each column, and makes all of a matrix NaN
 * that is not positive definite: here the rows are NaN from the first one on without a positive diagonal element, which
 * is the one that PyTorch names. */
static val cholesky_blocks(op_ctx *c, val a) {
  int64_t n = mat_rows(a), block = FACTOR_BLOCK, whole = (n + block - 1) / block * block;
  const val zero = t_scalar(c, TPU_I32, 0);
  if (n <= block) return cholesky_block(c, a, zero, n);
  const val init[2] = {zero, pad_blocks(c, a, whole, whole)};
  val s[2], out[2];
  ir_while_begin(G, init, 2, s);
  ir_while_body(G, ir_compare(G, IR_LT, s[0], t_scalar(c, TPU_I32, (double)n)), s);
  val rows = cholesky_block(c, mat_part(c, s[1], 2, s[0], block), s[0], block);
  val rest = P_SUB(s[1], mat_product(c, mat_adjoint(c, rows), rows));
  ir_while_end(G, (const val[]){P_ADD(s[0], t_scalar(c, TPU_I32, (double)block)), mat_replace(c, rest, 2, s[0], rows)},
               out);
  return t_narrow(c, t_narrow(c, out[1], a->ndim - 2, 0, n, 1), a->ndim - 1, 0, n, 1);
}

static val cholesky(op_ctx *c, val x, bool upper) {
  if (ir_failed(G) || ir_numel(x) == 0) return x;
  x = with_real_diagonal(c, x);
  if (ir_is_cpu(G) && mat_rows(x) <= CHOLESKY_UP_TO) {
    val u = mat_triangle(c, cholesky_blocks(c, upper ? x : mat_adjoint(c, x)), IR_LE);
    return upper ? u : mat_adjoint(c, u);
  }
  return mat_triangle(c, ir_cholesky(G, x, !upper), upper ? IR_LE : IR_GE);
}

OP(cholesky, "aten::cholesky") {
  val x = T(0);
  if (mat_check(c, x)) RET(cholesky(c, x, INT_OR(1, 0)));
}

/* The number of the first diagonal element that `bad` marks, from 1; 0 for none. int32 [..] */
static val first_bad(op_ctx *c, val bad) {
  int64_t n = t_size(bad, bad->ndim - 1);
  val i = t_broadcast_to(c, t_iota_dim(c, TPU_I32, bad->ndim, bad->ndim - 1, n), bad->ndim, bad->dims);
  val none = ir_const_i(G, TPU_I32, n, bad->ndim, bad->dims);
  if (ir_failed(G)) return bad;
  val first = t_amin(c, ir_select(G, bad, i, none), (int[]){bad->ndim - 1}, 1, false);
  return t_where(c, t_cmp(c, IR_EQ, first, ir_const_i(G, TPU_I32, n, 0, NULL)), t_scalar(c, TPU_I32, 0),
                 t_add(c, first, t_scalar(c, TPU_I32, 1)));
}

/* (self, upper, check_errors) -> (L, info); what fails comes out as NaN */
OP(linalg_cholesky_ex, "aten::linalg_cholesky_ex") {
  val x = T(0);
  if (!mat_check(c, x)) return;
  val l = cholesky(c, x, INT_OR(1, 0));
  RETN(0, l);
  RETN(1, ir_numel(x) ? first_bad(c, p_isnan(c, mat_diagonal(c, l))) : t_zeros(c, TPU_I32, x->ndim - 2, x->dims));
}

/* x with (L L^H) x = b */
static val cholesky_solve(op_ctx *c, val b, val l, bool upper) {
  val y = mat_solve_triangle(c, l, b, true, !upper, false, upper ? 2 : 0);
  return mat_solve_triangle(c, l, y, true, !upper, false, upper ? 0 : 2);
}
OP(cholesky_solve, "aten::_cholesky_solve_helper") {
  val b = T(0), l = T(1);
  if (mat_check(c, b) && mat_check(c, l)) RET(cholesky_solve(c, b, l, INT(2)));
}
OP(cholesky_inverse, "aten::cholesky_inverse") {
  val l = T(0);
  if (mat_check(c, l)) RET(cholesky_solve(c, mat_identity(c, l), l, INT_OR(1, 0)));
}

/* ---- LU ------------------------------------------------------------------------------------------------------------
 */

typedef struct {
  val lu, pivots, info; /* pivots: int32 [.., k], from 1; info: int32 [..] */
} factors;

val mat_at(op_ctx *c, val x, int d, val i) {
  val start[T_MAX_DIMS];
  int64_t size[T_MAX_DIMS];
  for (int k = 0; k < x->ndim; k++) {
    start[k] = k == d ? i : t_scalar(c, TPU_I32, 0);
    size[k] = k == d ? 1 : x->dims[k];
  }
  return ir_dynamic_slice(G, x, start, size);
}

/* Column i: find the pivot, swap its row up, clear what is below it. s[0] has all rows and the columns from `first` on.
 */
static void lu_step(op_ctx *c, val *s, bool pivot, val first) {
  val a = s[0], i = s[3];
  int rd = a->ndim - 2, cd = a->ndim - 1;
  if (ir_failed(G)) return;
  val here = first ? P_SUB(i, first) : i;
  val row = t_iota_dim(c, TPU_I32, a->ndim, rd, mat_rows(a)), col = t_iota_dim(c, TPU_I32, a->ndim, cd, mat_cols(a));
  val below = wide(c, t_cmp(c, IR_GT, row, i), a), row_i = mat_at(c, a, rd, i), p = i;
  if (pivot) {
    val at_i = mat_at(c, a, cd, here), value, index;                                             /* [.., m, 1] */
    val size = t_is_complex(a) ? P_ADD(P_UN(ABS, P_UN(REAL, at_i)), P_UN(ABS, P_UN(IMAG, at_i))) /* as LAPACK */
                               : P_UN(ABS, at_i);
    if (ir_failed(G)) return;
    size = ir_select(G, wide(c, t_cmp(c, IR_GE, row, i), size), size, t_like(c, size, -1));
    t_arg_reduce(c, size, rd, true, true, &value, &index);
    p = t_cast(c, index, TPU_I32); /* [.., 1, 1] */
    val is_p = wide(c, t_cmp(c, IR_EQ, row, p), a);
    if (ir_failed(G)) return;
    val row_p = t_sum(c, ir_select(G, is_p, a, t_like(c, a, 0)), &rd, 1, true);
    a = ir_select(G, is_p, wide(c, row_i, a), a);
    a = ir_select(G, wide(c, t_cmp(c, IR_EQ, row, i), a), wide(c, row_p, a), a);
    row_i = row_p;
  }
  val d = mat_at(c, row_i, cd, here), zero = t_like(c, d, 0); /* [.., 1, 1] */
  if (ir_failed(G)) return;
  val singular = P_CMP(EQ, d, zero), column = mat_at(c, a, cd, here);
  val l = ir_select(G, wide(c, singular, column), column, P_DIV(column, wide(c, d, column)));
  val update = P_SUB(a, P_MUL(wide(c, l, a), wide(c, row_i, a)));
  a = ir_select(G, P_AND(below, wide(c, t_cmp(c, IR_GT, col, here), a)), update, a);
  s[0] = ir_select(G, P_AND(below, wide(c, t_cmp(c, IR_EQ, col, here), a)), wide(c, l, a), a);
  val k = t_iota_dim(c, TPU_I32, s[1]->ndim, s[1]->ndim - 1, mat_cols(s[1]));
  val number = t_add(c, p, t_scalar(c, TPU_I32, 1));
  if (pivot) number = t_squeeze(c, number, number->ndim - 1);
  s[1] = ir_select(G, wide(c, t_cmp(c, IR_EQ, k, i), s[1]), wide(c, number, s[1]), s[1]);
  val bad = t_reshape(c, singular, s[2]->ndim, s[2]->dims);
  s[2] = t_where(c, t_and(c, bad, t_cmp(c, IR_EQ, s[2], t_scalar(c, TPU_I32, 0))), t_add(c, i, t_scalar(c, TPU_I32, 1)),
                 s[2]);
  s[3] = t_add(c, i, t_scalar(c, TPU_I32, 1));
}

/* So many pivots from a first one on, as an order of m rows: row i of the permuted matrix is row order[i], int32 [..,
 * m].
 */
static val row_order_of(op_ctx *c, val pivots, int64_t m, val first, int64_t count) {
  int64_t dims[T_MAX_DIMS];
  if (ir_failed(G)) return pivots;
  int last = pivots->ndim - 1;
  memcpy(dims, pivots->dims, (size_t)pivots->ndim * sizeof *dims);
  dims[last] = m;
  val place = ir_iota(G, TPU_I32, pivots->ndim, dims, last);
  pivots = t_cast(c, pivots, TPU_I32);
  val init[2] = {place, first}, s[2], out[2], end = t_add(c, first, t_scalar(c, TPU_I32, (double)count));
  if (ir_numel(pivots) == 0 || ir_failed(G)) return place;
  ir_while_begin(G, init, 2, s);
  ir_while_body(G, ir_compare(G, IR_LT, s[1], end), s);
  val p = t_sub(c, mat_at(c, pivots, last, s[1]), t_scalar(c, TPU_I32, 1)), is_p = t_cmp(c, IR_EQ, place, p),
      zero = t_like(c, place, 0);
  if (ir_failed(G)) return place;
  val here = mat_at(c, s[0], last, s[1]), there = t_sum(c, ir_select(G, is_p, s[0], zero), &last, 1, true);
  val o = ir_select(G, is_p, wide(c, here, place), s[0]);
  o = ir_select(G, t_cmp(c, IR_EQ, place, s[1]), wide(c, there, place), o);
  ir_while_end(G, (const val[]){o, t_add(c, s[1], t_scalar(c, TPU_I32, 1))}, out);
  return out[0];
}

static val row_order(op_ctx *c, val pivots, int64_t m) {
  return ir_failed(G) ? pivots : row_order_of(c, pivots, m, t_scalar(c, TPU_I32, 0), mat_cols(pivots));
}

/* x's rows in the given order, whole rows at a time */
static val gather_rows(op_ctx *c, val x, val order) {
  int nb = x->ndim - 2, batch[T_MAX_DIMS];
  int64_t size[T_MAX_DIMS];
  if (ir_failed(G)) return x;
  for (int i = 0; i < x->ndim; i++) {
    batch[i] = i;
    size[i] = i == x->ndim - 1 ? x->dims[i] : 1;
  }
  ir_gather_dims g = {.noffset = 1,
                      .offset_dims = (int[]){nb + 1},
                      .ncollapsed = 1,
                      .collapsed_dims = (int[]){nb},
                      .nbatching = nb,
                      .operand_batching = batch,
                      .indices_batching = batch,
                      .nstart = 1,
                      .start_index_map = (int[]){nb},
                      .index_vector_dim = nb + 1};
  return ir_gather(G, x, t_unsqueeze(c, order, nb + 1), &g, size, false);
}

/* Rows r of U from rows of A: what l, unit lower [.., block, block], leaves, in the columns where `right`. */
static val substitute_rows(op_ctx *c, val l, val r, val right, int64_t block) {
  int rd = r->ndim - 2, cd = r->ndim - 1;
  if (ir_failed(G)) return r;
  const val init[2] = {t_scalar(c, TPU_I32, 0), r};
  val v[2], out[2];
  ir_while_begin(G, init, 2, v);
  ir_while_body(G, ir_compare(G, IR_LT, v[0], t_scalar(c, TPU_I32, (double)(block - 1))), v);
  val row = t_iota_dim(c, TPU_I32, r->ndim, rd, block), factor = mat_at(c, l, cd, v[0]),
      from = mat_at(c, v[1], rd, v[0]);
  val open = P_AND(wide(c, t_cmp(c, IR_GT, row, v[0]), r), wide(c, right, r));
  val less = P_SUB(v[1], P_MUL(wide(c, factor, r), wide(c, from, r)));
  const val next[2] = {P_ADD(v[0], t_scalar(c, TPU_I32, 1)), ir_failed(G) ? r : ir_select(G, open, less, v[1])};
  ir_while_end(G, next, out);
  return out[1];
}

/* s (a, pivots, info, column) of as many columns as stand in whole blocks: the columns of a block by lu_step, then the
 * other columns' rows in the new order, the block's rows of U, and one product that takes them from the rest. */
static void lu_blocks(op_ctx *c, val *s, int64_t count, bool pivot) {
  enum { block = FACTOR_BLOCK };
  val v[4], in[4], panel[4], cond[4];
  int64_t m = mat_rows(s[0]), n = mat_cols(s[0]);
  int rd = s[0]->ndim - 2, cd = rd + 1;
  ir_while_begin(G, s, 4, v);
  ir_while_body(G, ir_compare(G, IR_LT, v[3], ir_const_i(G, TPU_I32, count, 0, NULL)), v);
  val k = v[3], end = P_ADD(k, t_scalar(c, TPU_I32, block)), a = v[0];
  const val inner[4] = {mat_part(c, a, 1, k, block), v[1], v[2], k};
  ir_while_begin(G, inner, 4, cond);
  ir_while_body(G, ir_compare(G, IR_LT, cond[3], end), in);
  lu_step(c, in, pivot, k);
  ir_while_end(G, in, panel);
  val p = panel[0], l = mat_part(c, p, 2, k, block);
  if (pivot) a = gather_rows(c, a, row_order_of(c, panel[1], m, k, block));
  if (ir_failed(G)) return;
  val right = t_cmp(c, IR_GE, t_iota_dim(c, TPU_I32, a->ndim, cd, n), end),
      below = t_cmp(c, IR_GE, t_iota_dim(c, TPU_I32, a->ndim, rd, m), end);
  val u = substitute_rows(c, l, mat_part(c, a, 2, k, block), right, block);
  if (ir_failed(G)) return;
  val lower = ir_select(G, wide(c, below, p), p, t_like(c, p, 0)),
      upper = ir_select(G, wide(c, right, u), u, t_like(c, u, 0));
  a = mat_replace(c, P_SUB(a, mat_product(c, lower, upper)), 2, k, u);
  const val next[4] = {mat_replace(c, a, 1, k, p), panel[1], panel[2], end};
  ir_while_end(G, next, s);
}

enum { LU_BLOCKS_FROM = 4000000 /* products on a CPU; blocks take longer to compile */ };

static factors lu(op_ctx *c, val a, bool pivot) {
  int64_t k = mat_rows(a) < mat_cols(a) ? mat_rows(a) : mat_cols(a), dims[T_MAX_DIMS];
  memcpy(dims, a->dims, (size_t)(a->ndim - 2) * sizeof *dims);
  dims[a->ndim - 2] = k;
  val init[4] = {a, t_zeros(c, TPU_I32, a->ndim - 1, dims), t_zeros(c, TPU_I32, a->ndim - 2, dims),
                 t_scalar(c, TPU_I32, 0)},
      s[4], out[4];
  if (ir_failed(G) || ir_numel(a) == 0) return (factors){a, init[1], init[2]};
  if (ir_is_cpu(G) && k >= 2 * FACTOR_BLOCK && (double)ir_numel(a) * (double)k >= LU_BLOCKS_FROM)
    lu_blocks(c, init, k / FACTOR_BLOCK * FACTOR_BLOCK, pivot);
  if (ir_failed(G)) return (factors){a, init[1], init[2]};
  ir_while_begin(G, init, 4, s);
  ir_while_body(G, ir_compare(G, IR_LT, s[3], ir_const_i(G, TPU_I32, k, 0, NULL)), s);
  lu_step(c, s, pivot, NULL);
  ir_while_end(G, s, out);
  return (factors){out[0], out[1], out[2]};
}

val mat_order_rows(op_ctx *c, val b, val order, bool inverse) {
  if (ir_failed(G) || ir_numel(b) == 0) return b;
  int64_t dims[T_MAX_DIMS];
  memcpy(dims, b->dims, (size_t)b->ndim * sizeof *dims);
  dims[b->ndim - 1] = 1;
  val at = t_broadcast_to(c, t_broadcast_to(c, t_unsqueeze(c, order, order->ndim), b->ndim, dims), b->ndim, b->dims);
  return inverse ? t_scatter(c, b, b->ndim - 2, at, b, T_REPLACE) : t_gather(c, b, b->ndim - 2, at);
}

/* x with A x = b or A^H x = b (left), x A = b or x A^H = b, from A's factors. */
static val lu_solve(op_ctx *c, val f, val pivots, val b, bool left, bool adj) {
  if (!left) return mat_adjoint(c, lu_solve(c, f, pivots, mat_adjoint(c, b), true, !adj));
  mat_share_batch(c, &f, &b);
  val order = row_order(c, pivots, mat_rows(f));
  if (adj) {
    val y = mat_solve_triangle(c, f, b, true, false, false, 2);
    return mat_order_rows(c, mat_solve_triangle(c, f, y, true, true, true, 2), order, true);
  }
  val y = mat_solve_triangle(c, f, mat_order_rows(c, b, order, false), true, true, true, 0);
  return mat_solve_triangle(c, f, y, true, false, false, 0);
}

/* (A, pivot, check_errors) -> (LU, pivots, info) */
OP(linalg_lu_factor_ex, "aten::linalg_lu_factor_ex") {
  val a = T(0);
  if (!mat_check(c, a)) return;
  factors f = lu(c, a, INT_OR(1, 1));
  RETN(0, f.lu);
  RETN(1, f.pivots);
  RETN(2, f.info);
}

static void ret_plu(op_ctx *c, val f, val pivots, bool triangles, bool permutation) {
  int64_t m = mat_rows(f), n = mat_cols(f), k = m < n ? m : n, dims[T_MAX_DIMS], none = 0;
  if (ir_failed(G)) return;
  tpu_dtype d = (tpu_dtype)f->dtype;
  if (permutation) {
    memcpy(dims, f->dims, (size_t)f->ndim * sizeof *dims);
    dims[f->ndim - 1] = m;
    val order = t_broadcast_to(c, t_unsqueeze(c, row_order(c, pivots, m), f->ndim - 2), f->ndim, dims);
    val row = t_broadcast_to(c, t_iota_dim(c, TPU_I32, f->ndim, f->ndim - 2, m), f->ndim, dims);
    RETN(0, t_cast(c, t_cmp(c, IR_EQ, row, order), d)); /* P[order[i], i] = 1 */
  } else {
    RETN(0, t_zeros(c, d, 1, &none));
  }
  if (triangles) {
    RETN(1, with_unit_diagonal(c, mat_triangle(c, t_narrow(c, f, f->ndim - 1, 0, k, 1), IR_GT)));
    RETN(2, mat_triangle(c, t_narrow(c, f, f->ndim - 2, 0, k, 1), IR_LE));
  } else {
    RETN(1, t_zeros(c, d, 1, &none));
    RETN(2, t_zeros(c, d, 1, &none));
  }
}

/* (LU_data, LU_pivots, unpack_data, unpack_pivots) -> (P, L, U) */
OP(lu_unpack, "aten::lu_unpack") {
  val f = T(0);
  if (mat_check(c, f)) ret_plu(c, f, T(1), INT_OR(2, 1), INT_OR(3, 1));
}

/* (A, pivot) -> (P, L, U) */
OP(linalg_lu, "aten::linalg_lu") {
  val a = T(0);
  if (!mat_check(c, a)) return;
  factors f = lu(c, a, INT_OR(1, 1));
  ret_plu(c, f.lu, f.pivots, true, INT_OR(1, 1));
}

/* (LU, pivots, B, left, adjoint) */
OP(linalg_lu_solve, "aten::linalg_lu_solve") {
  val f = T(0), b = T(2);
  if (mat_check(c, f) && mat_check(c, b)) RET(lu_solve(c, f, T(1), b, INT_OR(3, 1), INT_OR(4, 0)));
}

OP(linalg_inv_ex, "aten::linalg_inv_ex") {
  val a = T(0);
  if (!mat_check(c, a)) return;
  factors f = lu(c, a, true);
  RETN(0, lu_solve(c, f.lu, f.pivots, mat_identity(c, a), true, false));
  RETN(1, f.info);
}

/* (A, B, left, check_errors) -> (result, LU, pivots, info) */
OP(linalg_solve_ex, "aten::_linalg_solve_ex") {
  val a = T(0), b = T(1);
  if (!mat_check(c, a)) return;
  bool vector =
      b->ndim == 1 || (b->ndim == a->ndim - 1 && !memcmp(b->dims, a->dims, (size_t)b->ndim * sizeof *b->dims));
  factors f = lu(c, a, true);
  val x = lu_solve(c, f.lu, f.pivots, vector ? t_unsqueeze(c, b, b->ndim) : b, INT_OR(2, 1), false);
  RETN(0, vector && !ir_failed(G) ? t_squeeze(c, x, x->ndim - 1) : x);
  RETN(1, f.lu);
  RETN(2, f.pivots);
  RETN(3, f.info);
}

/* For determinants PyTorch factors the transpose of a contiguous real matrix, and its gradient formulas count on that.
 */
static bool factors_transpose(op_ctx *c, val a) {
  if (c->args[0].tag != TPU_TENSOR || t_is_complex(a)) return false;
  const tpu_tensor *t = c->args[0].u.tensor;
  int64_t dense = 1;
  for (int i = t->ndim - 1; i >= 0; i--) {
    if (t->sizes[i] != 1 && t->strides[i] != dense) return false;
    dense *= t->sizes[i];
  }
  return true;
}

/* -1 for an odd number of swaps, else 1: [..] in a's dtype */
static val parity(op_ctx *c, val pivots, tpu_dtype d) {
  int last = pivots->ndim - 1;
  val k = t_add(c, t_iota_dim(c, TPU_I32, pivots->ndim, last, mat_cols(pivots)), t_scalar(c, TPU_I32, 1));
  val swaps = t_sum(c, t_cast(c, t_cmp(c, IR_NE, pivots, k), TPU_I32), &last, 1, false);
  val odd = t_and(c, swaps, t_scalar(c, TPU_I32, 1));
  return t_sub(c, t_scalar(c, d, 1), t_cast(c, t_add(c, odd, odd), d));
}

OP(linalg_det, "aten::_linalg_det") {
  val a = T(0);
  if (!mat_check(c, a)) return;
  factors f = lu(c, factors_transpose(c, a) ? mat_transpose(c, a) : a, true);
  val d = mat_diagonal(c, f.lu);
  if (ir_failed(G)) return;
  RETN(0, t_mul(c, t_reduce(c, IR_MUL, d, (int[]){d->ndim - 1}, 1, false), parity(c, f.pivots, (tpu_dtype)a->dtype)));
  RETN(1, f.lu);
  RETN(2, f.pivots);
}

OP(linalg_slogdet, "aten::_linalg_slogdet") {
  val a = T(0);
  if (!mat_check(c, a)) return;
  factors f = lu(c, factors_transpose(c, a) ? mat_transpose(c, a) : a, true);
  val d = mat_diagonal(c, f.lu);
  if (ir_failed(G)) return;
  int last = d->ndim - 1;
  RETN(0, t_mul(c, t_reduce(c, IR_MUL, P_UN(SIGN, d), &last, 1, false), parity(c, f.pivots, (tpu_dtype)a->dtype)));
  RETN(1, t_sum(c, P_UN(LOG, P_UN(ABS, d)), &last, 1, false));
  RETN(2, f.lu);
  RETN(3, f.pivots);
}

/* ---- Householder reflections
 * ------------------------------------------------------------------------------------------ */

/* XLA has both steps, in blocks whose updates are products; ours change the whole matrix for each column, which on a
 * TPU takes as many passes over HBM. On CPUs ours is kept. */
static bool by_expander(op_ctx *c, val a) { return op_for_tpu(c) && a->dtype == TPU_F32; }

val mat_reflections(op_ctx *c, val a, val tau, int64_t n) {
  int rd = a->ndim - 2, cd = a->ndim - 1;
  int64_t k = t_size(tau, tau->ndim - 1), dims[T_MAX_DIMS];
  memcpy(dims, a->dims, (size_t)a->ndim * sizeof *dims);
  dims[cd] = n;
  val start = mat_identity(c, t_zeros(c, (tpu_dtype)a->dtype, a->ndim, dims));
  if (ir_failed(G) || ir_numel(start) == 0 || k == 0) return start;
  if (by_expander(c, a) && n >= k && mat_rows(a) >= n) {
    int64_t low[T_MAX_DIMS] = {0}, high[T_MAX_DIMS] = {0}, inside[T_MAX_DIMS] = {0};
    high[cd] = n - mat_cols(a);
    a = ir_pad(G, a, t_scalar(c, TPU_F32, 0), low, high, inside);
    val out, in[2] = {a, tau};
    ir_custom_call(G, "ProductOfElementaryHouseholderReflectors", NULL, in, 2, 1, (const tpu_dtype[]){TPU_F32},
                   (const int[]){a->ndim}, (const int64_t *const[]){a->dims}, &out);
    return out;
  }
  val init[2] = {start, ir_const_i(G, TPU_I32, k - 1, 0, NULL)}, s[2], out[2];
  ir_while_begin(G, init, 2, s);
  ir_while_body(G, ir_compare(G, IR_GE, s[1], t_scalar(c, TPU_I32, 0)), s);
  val row = t_iota_dim(c, TPU_I32, a->ndim, rd, mat_rows(a)), v = mat_at(c, a, cd, s[1]);
  v = t_where(c, t_cmp(c, IR_GT, row, s[1]), v, t_scalar(c, (tpu_dtype)a->dtype, 0));
  v = t_where(c, t_cmp(c, IR_EQ, row, s[1]), t_scalar(c, (tpu_dtype)a->dtype, 1), v);
  val t = t_unsqueeze(c, mat_at(c, tau, tau->ndim - 1, s[1]), tau->ndim);
  val q = t_sub(c, s[0], t_mul(c, t, t_matmul(c, v, t_matmul(c, mat_adjoint(c, v), s[0]))));
  ir_while_end(G, (const val[]){q, t_sub(c, s[1], t_scalar(c, TPU_I32, 1))}, out);
  return out[0];
}

OP(householder_product, "aten::linalg_householder_product") {
  val a = T(0), tau = T(1);
  if (mat_check(c, a)) RET(mat_reflections(c, a, tau, mat_cols(a)));
}

void mat_geqrf(op_ctx *c, val a, val *r, val *tau) {
  int rd = a->ndim - 2, cd = a->ndim - 1;
  int64_t m = mat_rows(a), n = mat_cols(a), k = m < n ? m : n, dims[T_MAX_DIMS];
  tpu_dtype d = (tpu_dtype)a->dtype;
  memcpy(dims, a->dims, (size_t)rd * sizeof *dims);
  dims[rd] = k;
  val init[3] = {a, t_zeros(c, d, cd, dims), t_scalar(c, TPU_I32, 0)}, s[3], out[3];
  *r = a;
  *tau = init[1];
  if (ir_failed(G) || ir_numel(a) == 0) return;
  if (by_expander(c, a)) {
    val both[2];
    ir_custom_call(G, "Qr", NULL, &a, 1, 2, (const tpu_dtype[]){d, d}, (const int[]){a->ndim, cd},
                   (const int64_t *const[]){a->dims, init[1]->dims}, both);
    *r = both[0];
    *tau = both[1];
    return;
  }
  ir_while_begin(G, init, 3, s);
  ir_while_body(G, ir_compare(G, IR_LT, s[2], ir_const_i(G, TPU_I32, k, 0, NULL)), s);
  val x = s[0], i = s[2], row = t_iota_dim(c, TPU_I32, a->ndim, rd, m), col = t_iota_dim(c, TPU_I32, a->ndim, cd, n);
  val column = mat_at(c, x, cd, i), alpha = mat_at(c, column, rd, i),
      zero = t_scalar(c, d, 0); /* [.., m, 1], [.., 1, 1] */
  val tail = t_where(c, t_cmp(c, IR_GT, row, i), column, zero);
  if (ir_failed(G)) return;
  val size = P_UN(ABS, tail), rest = t_sum(c, t_mul(c, size, size), &rd, 1, true);
  bool complex = ir_is_complex(d);
  val re = complex ? P_UN(REAL, alpha) : alpha, aa = P_UN(ABS, alpha), none = t_cmp(c, IR_EQ, rest, t_like(c, rest, 0));
  if (complex) none = t_and(c, none, t_cmp(c, IR_EQ, P_UN(IMAG, alpha), t_like(c, re, 0)));
  val norm = P_UN(SQRT, P_ADD(P_MUL(aa, aa), rest));
  val beta = P_SEL(P_CMPC(GE, re, 0), P_UN(NEG, norm), norm), b = t_cast(c, beta, d); /* away from alpha */
  val safe = P_SEL(none, P_NUM(b, 1), b);
  val t = P_SEL(none, P_NUM(b, 0), P_DIV(P_SUB(safe, alpha), safe));
  val scale = P_SEL(none, P_NUM(b, 0), P_DIV(P_NUM(b, 1), P_SEL(none, P_NUM(b, 1), P_SUB(alpha, b))));
  val v = t_where(c, t_cmp(c, IR_EQ, row, i), t_scalar(c, d, 1), t_mul(c, tail, scale));
  /* columns to the right: x - conj(tau) v (v^H x) */
  val update = t_sub(c, x, t_mul(c, mat_conj(c, t), t_matmul(c, v, t_matmul(c, mat_adjoint(c, v), x))));
  x = t_where(c, t_cmp(c, IR_GT, col, i), update, x);
  val mine = t_where(c, t_cmp(c, IR_GT, row, i), v, column);
  mine = t_where(c, t_cmp(c, IR_EQ, row, i), P_SEL(none, alpha, b), mine);
  x = t_where(c, t_cmp(c, IR_EQ, col, i), mine, x);
  val place = t_iota_dim(c, TPU_I32, cd, rd, k);
  val taus = t_where(c, t_cmp(c, IR_EQ, place, i), t_squeeze(c, t, cd), s[1]);
  ir_while_end(G, (const val[]){x, taus, t_add(c, i, t_scalar(c, TPU_I32, 1))}, out);
  *r = out[0];
  *tau = out[1];
}

OP(geqrf, "aten::geqrf") {
  val a = T(0), r, tau;
  if (!mat_check(c, a)) return;
  mat_geqrf(c, a, &r, &tau);
  RETN(0, r);
  RETN(1, tau);
}

/* (A, mode: "reduced", "complete" or "r") -> (Q, R) */
OP(linalg_qr, "aten::linalg_qr") {
  val a = T(0), r, tau;
  if (!mat_check(c, a)) return;
  const char *mode = op_str(c, 1);
  bool complete = mode[0] == 'c', with_q = mode[0] != 'r' || mode[1] == 'e';
  int64_t m = mat_rows(a), k = m < mat_cols(a) ? m : mat_cols(a), none = 0;
  mat_geqrf(c, a, &r, &tau);
  if (ir_failed(G)) return;
  if (with_q) RETN(0, mat_reflections(c, r, tau, complete ? m : k));
  else RETN(0, t_zeros(c, (tpu_dtype)a->dtype, 1, &none));
  RETN(1, mat_triangle(c, complete ? r : t_narrow(c, r, r->ndim - 2, 0, k, 1), IR_LE));
}

/* (self: reflections, tau, other, left, transpose): other times Q or its adjoint */
OP(ormqr, "aten::ormqr") {
  val a = T(0), tau = T(1), b = T(2);
  if (!mat_check(c, a) || !mat_check(c, b)) return;
  val q = mat_reflections(c, a, tau, mat_rows(a));
  if (INT_OR(4, 0)) q = mat_adjoint(c, q);
  mat_share_batch(c, &q, &b);
  RET(INT_OR(3, 1) ? t_matmul(c, q, b) : t_matmul(c, b, q));
}

/* ---- eigenvalues of Hermitian matrices
 * ---------------------------------------------------------------------------------- */

/* XLA stops at about half the digits of a float64. One step of Ogita and Aishima's refinement gives the rest. */
static val refined(op_ctx *c, val a, val v) {
  int rd = a->ndim - 2, cd = a->ndim - 1, both[2] = {rd, cd};
  val vh = mat_adjoint(c, v), r = t_sub(c, mat_identity(c, a), t_matmul(c, vh, v)),
      s = t_matmul(c, vh, t_matmul(c, a, v));
  if (ir_failed(G)) return v;
  val d = t_div(c, mat_diagonal(c, s), t_sub(c, t_scalar(c, (tpu_dtype)a->dtype, 1), mat_diagonal(c, r)));
  if (t_is_complex(d)) d = P_UN(REAL, d);
  val row = t_unsqueeze(c, d, cd), col = t_unsqueeze(c, d, rd), gap = t_sub(c, col, row);
  val rest = t_amax(c, P_UN(ABS, t_sub(c, s, mat_triangle(c, s, IR_EQ))), both, 2, true);
  val size = t_amax(c, P_UN(ABS, d), (int[]){d->ndim - 1}, 1, true);
  val noise = t_mul(c, t_unsqueeze(c, size, cd), t_amax(c, P_UN(ABS, r), both, 2, true));
  val limit = t_mul(c, t_add(c, rest, noise), t_scalar(c, (tpu_dtype)d->dtype, 2 * (double)mat_rows(a)));
  val apart = t_cmp(c, IR_GT, t_abs(c, gap), limit), half = t_mul(c, r, t_like(c, r, 0.5));
  val x = t_div(c, t_add(c, s, t_mul(c, r, t_cast(c, col, (tpu_dtype)a->dtype))),
                t_cast(c, t_where(c, apart, gap, t_scalar(c, (tpu_dtype)d->dtype, 1)), (tpu_dtype)a->dtype));
  return t_add(c, v, t_matmul(c, v, t_where(c, apart, x, half)));
}

/* (A, UPLO, compute_v) -> (eigenvalues, eigenvectors). XLA's Jacobi iteration; one triangle is read. */
OP(linalg_eigh, "aten::_linalg_eigh") {
  val a = T(0);
  if (!mat_check(c, a)) return;
  a = with_real_diagonal(c, a);
  tpu_dtype d = (tpu_dtype)a->dtype, r = ir_real_dtype(d);
  bool lower = toupper((unsigned char)op_str(c, 1)[0]) != 'U', with_v = INT_OR(2, 1);
  int64_t dims[T_MAX_DIMS], none = 0;
  memcpy(dims, a->dims, (size_t)a->ndim * sizeof *dims);
  val out[2] = {a, t_zeros(c, r, a->ndim - 1, dims)};
  if (ir_numel(a) && !ir_failed(G)) {
    const char *attrs =
        arena_printf(ir_arena(G), "backend_config = \"%d,1,100,%s\"", lower, r == TPU_F64 ? "1e-13" : "1e-6");
    ir_custom_call(G, "Eigh", attrs, &a, 1, 2, (const tpu_dtype[]){d, r}, (const int[]){a->ndim, a->ndim - 1},
                   (const int64_t *const[]){a->dims, dims}, out);
  }
  if (with_v && r == TPU_F64 && ir_numel(a)) {
    val t = mat_triangle(c, a, lower ? IR_GE : IR_LE), strict = mat_triangle(c, a, lower ? IR_GT : IR_LT);
    out[0] = refined(c, t_add(c, t, mat_adjoint(c, strict)), out[0]);
  }
  if (with_v && ir_numel(a) && !ir_failed(G)) { /* the iteration loses NaN in what it was given */
    val l = out[1], bad = t_reduce(c, IR_OR, ir_compare(G, IR_NE, l, l), (int[]){l->ndim - 1}, 1, true);
    out[0] = t_where(c, t_unsqueeze(c, bad, l->ndim), t_like(c, out[0], __builtin_nan("")), out[0]);
  }
  RETN(0, out[1]);
  RETN(1, with_v ? out[0] : t_zeros(c, d, 1, &none));
}
