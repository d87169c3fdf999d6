/* A = P L D L^T P^T of symmetric matrices, or L^H of Hermitian ones, with Bunch and Kaufman's pivots, as LAPACK's sytrf
 * and hetrf with the lower triangle: D has blocks of one and of two. A loop over columns that updates all of the matrix
 * at once; each matrix of a batch goes on by the size of its own blocks. */
#include <string.h>

#include "ops/matrix.h"
#include "ops/pointwise.h"

static val wide(op_ctx *c, val v, val like) { return t_broadcast_to(c, v, like->ndim, like->dims); }
static val as(op_ctx *c, val real, val like) { return t_cast(c, real, (tpu_dtype)like->dtype); }
static val one_of(op_ctx *c, val v, val mask, int dim) { /* v where mask is true, once along dim */
  val m = wide(c, mask, v);
  return ir_failed(G) ? v : t_sum(c, P_SEL(m, v, t_like(c, v, 0)), &dim, 1, true);
}
/* LAPACK's cheap size of a complex number */
static val size_of(op_ctx *c, val x) {
  return t_is_complex(x) ? P_ADD(P_UN(ABS, P_UN(REAL, x)), P_UN(ABS, P_UN(IMAG, x))) : P_UN(ABS, x);
}
static val largest(op_ctx *c, val size, val where, int dim) {
  val w = wide(c, where, size);
  return ir_failed(G) ? size : t_amax(c, P_SEL(w, size, P_NUM(size, 0)), &dim, 1, true);
}

/* x with places i and j (int32, [.., 1, 1]) along dim exchanged where `where` is true */
static val exchanged(op_ctx *c, val x, int dim, val i, val j, val where) {
  val at = t_iota_dim(c, TPU_I32, x->ndim, dim, t_size(x, dim)), is_i = t_cmp(c, IR_EQ, at, i),
      is_j = t_cmp(c, IR_EQ, at, j);
  val xi = one_of(c, x, is_i, dim), xj = one_of(c, x, is_j, dim);
  if (ir_failed(G)) return x;
  val y = t_where(c, is_i, xj, t_where(c, is_j, xi, x));
  return t_where(c, where, y, x);
}

typedef struct {
  bool hermitian;
  int rd, cd;
  val row, col; /* int32 [.., n, 1], [.., 1, n] */
} shape;

static val conj_if(op_ctx *c, const shape *s, val x) { return s->hermitian ? mat_conj(c, x) : x; }
/* x's transpose: the row of the same elements in the other triangle */
static val across(op_ctx *c, const shape *s, val x) { return conj_if(c, s, mat_transpose(c, x)); }

/* Without the imaginary parts that a Hermitian matrix does not have. */
static val real_diagonal(op_ctx *c, val a) {
  if (!t_is_complex(a) || ir_failed(G)) return a;
  val re = P_UN(REAL, a), strict = t_sub(c, a, mat_triangle(c, a, IR_EQ));
  return t_add(c, strict, mat_triangle(c, t_cast(c, re, (tpu_dtype)a->dtype), IR_EQ));
}

/* The state: the matrix (columns before k hold L, the rest is still full), pivots [.., n], info [..], k [.., 1, 1]. */
static void ldl_step(op_ctx *c, const shape *s, val *st) {
  val a = st[0], k = st[3], one = t_like(c, k, 1), k1 = P_ADD(k, one);
  int64_t n = mat_rows(a);
  int rd = s->rd, cd = s->cd;
  val below = t_cmp(c, IR_GT, s->row, k), is_k = t_cmp(c, IR_EQ, s->row, k);
  val column = one_of(c, a, t_cmp(c, IR_EQ, s->col, k), cd), akk = one_of(c, column, is_k, rd), sizes, colmax, imax;
  sizes = size_of(c, column);
  if (ir_failed(G)) return;
  t_arg_reduce(c, P_SEL(wide(c, below, sizes), sizes, P_NUM(sizes, -1)), rd, true, true, &colmax, &imax);
  imax = t_cast(c, imax, TPU_I32);
  colmax = P_MAX(colmax, P_NUM(colmax, 0));
  val is_m = t_cmp(c, IR_EQ, s->row, imax), other = one_of(c, a, t_cmp(c, IR_EQ, s->col, imax), cd);
  val rest = t_and(c, t_cmp(c, IR_GE, s->row, k), t_not(c, is_m));
  val rowmax = largest(c, size_of(c, other), rest, rd), amm = one_of(c, other, is_m, rd);
  if (ir_failed(G)) return;
  val absk = s->hermitian && t_is_complex(akk) ? P_UN(ABS, P_UN(REAL, akk)) : size_of(c, akk);
  val absm = s->hermitian && t_is_complex(amm) ? P_UN(ABS, P_UN(REAL, amm)) : size_of(c, amm);
  const double alpha = 0.64038820320220756872767623199676; /* (1 + sqrt(17)) / 8 */
  val active = P_CMPC(LT, k, (double)n), singular = P_AND(P_CMPC(EQ, absk, 0), P_CMPC(EQ, colmax, 0));
  val stay = P_CMP(GE, absk, P_MULC(colmax, alpha));
  stay = P_OR(stay, P_CMP(GE, absk, P_MUL(P_MULC(colmax, alpha), P_DIV(colmax, rowmax))));
  stay = P_OR(stay, singular);
  val single = P_OR(stay, P_CMP(GE, absm, P_MULC(rowmax, alpha)));
  val kp = P_SEL(stay, k, imax), kk = P_SEL(single, k, k1);
  /* exchange in what is left */
  val moved = exchanged(c, a, rd, kk, kp, t_and(c, active, t_cmp(c, IR_GE, s->col, k)));
  moved = exchanged(c, moved, cd, kk, kp, t_and(c, active, t_cmp(c, IR_GE, s->row, k)));
  val x = one_of(c, moved, t_cmp(c, IR_EQ, s->col, k), cd), y = one_of(c, moved, t_cmp(c, IR_EQ, s->col, k1), cd);
  val is_1 = t_cmp(c, IR_EQ, s->row, k1), d = one_of(c, x, is_k, rd), e = one_of(c, x, is_1, rd),
      f = one_of(c, y, is_1, rd);
  if (ir_failed(G)) return;
  /* a block of one: l = x / d */
  val bad = wide(c, as(c, singular, d), d), unit = t_like(c, d, 1);
  val l = t_div(c, x, P_SEL(t_cast(c, bad, TPU_BOOL), unit, d));
  /* a block of two, [d, e*; e, f]: its inverse by way of quotients by e */
  val es = conj_if(c, s, e), p = P_DIV(f, e), q = P_DIV(d, es), t = P_DIV(unit, P_SUB(P_MUL(p, q), unit));
  val u = t_mul(c, t, t_div(c, t_sub(c, t_mul(c, p, x), y), es));
  val v = t_mul(c, t, t_div(c, t_sub(c, t_mul(c, q, y), x), e));
  val after1 = t_and(c, below, t_cmp(c, IR_GT, s->col, k)),
      after2 = t_and(c, t_cmp(c, IR_GT, s->row, k1), t_cmp(c, IR_GT, s->col, k1));
  val down1 = t_sub(c, moved, t_mul(c, l, across(c, s, x)));
  val down2 = t_sub(c, moved, t_add(c, t_mul(c, u, across(c, s, x)), t_mul(c, v, across(c, s, y))));
  val col_k = t_cmp(c, IR_EQ, s->col, k), col_1 = t_cmp(c, IR_EQ, s->col, k1), past = t_cmp(c, IR_GT, s->row, k1);
  val r1 = t_where(c, after1, down1, t_where(c, t_and(c, below, col_k), l, moved));
  r1 = t_where(c, singular, moved, r1);
  val r2 = t_where(c, t_and(c, past, col_k), u, t_where(c, t_and(c, past, col_1), v, moved));
  r2 = t_where(c, after2, down2, r2);
  val next = t_where(c, active, t_where(c, single, r1, r2), a);
  val place = t_iota_dim(c, TPU_I32, cd, rd, n), ks = t_squeeze(c, k, cd), kps = t_squeeze(c, P_ADDC(kp, 1), cd),
      one_block = t_squeeze(c, single, cd);
  val number = t_where(c, one_block, kps, P_UN(NEG, kps));
  val mine = t_or(c, t_cmp(c, IR_EQ, place, ks), t_and(c, t_not(c, one_block), t_cmp(c, IR_EQ, place, P_ADDC(ks, 1))));
  st[1] = t_where(c, mine, number, st[1]); /* k = n is no place */
  val failed = t_reshape(c, P_AND(active, singular), st[2]->ndim, st[2]->dims), at = st[2];
  failed = t_and(c, failed, t_cmp(c, IR_EQ, at, t_scalar(c, TPU_I32, 0)));
  st[2] = t_where(c, failed, t_reshape(c, k1, at->ndim, at->dims), at);
  st[3] = P_SEL(active, P_SEL(single, k1, P_ADDC(k, 2)), k);
  st[0] = s->hermitian ? real_diagonal(c, next) : next;
}

static shape shape_of(op_ctx *c, val a, bool hermitian) {
  return (shape){hermitian && t_is_complex(a), a->ndim - 2, a->ndim - 1,
                 t_iota_dim(c, TPU_I32, a->ndim, a->ndim - 2, mat_rows(a)),
                 t_iota_dim(c, TPU_I32, a->ndim, a->ndim - 1, mat_rows(a))};
}

/* (self, hermitian, check_errors) -> (LD, pivots from 1, negative in pairs for blocks of two, info) */
OP(linalg_ldl_factor_ex, "aten::linalg_ldl_factor_ex") {
  val in = T(0);
  if (!mat_check(c, in)) return;
  shape s = shape_of(c, in, INT_OR(1, 0));
  val a = mat_triangle(c, in, IR_GE), pivots = t_zeros(c, TPU_I32, s.cd, in->dims),
      info = t_zeros(c, TPU_I32, s.rd, in->dims);
  if (s.hermitian) a = real_diagonal(c, a);
  if (ir_numel(in)) {
    int64_t dims[T_MAX_DIMS];
    memcpy(dims, in->dims, (size_t)in->ndim * sizeof *dims);
    dims[s.rd] = dims[s.cd] = 1;
    a = t_add(c, a, across(c, &s, t_sub(c, a, mat_triangle(c, a, IR_EQ))));
    const val init[4] = {a, pivots, info, t_zeros(c, TPU_I32, in->ndim, dims)};
    val st[4], out[4];
    if (ir_failed(G)) return;
    ir_while_begin(G, init, 4, st);
    val more = P_CMPC(LT, st[3], (double)mat_rows(in));
    ir_while_body(G, t_reduce(c, IR_OR, more, NULL, 0, false), st);
    ldl_step(c, &s, st);
    ir_while_end(G, st, out);
    a = mat_triangle(c, out[0], IR_GE);
    pivots = out[1];
    info = out[2];
  }
  RETN(0, s.hermitian ? real_diagonal(c, a) : a);
  RETN(1, pivots);
  RETN(2, info);
}

/* One column of bringing L to a form without exchanges in between: LAPACK leaves the rows of earlier columns where they
 * were. State: L, the rows' order [.., n, 1], where blocks of two begin [.., n, 1], k. */
static void settle_step(op_ctx *c, const shape *s, val pivots, val *st) {
  val k = st[3], pk = mat_at(c, pivots, s->rd, k), zero = t_like(c, pk, 0), before = P_ADDC(k, -1);
  val had = t_or(c, t_cmp(c, IR_LT, before, t_scalar(c, TPU_I32, 0)), t_not(c, mat_at(c, st[2], s->rd, before)));
  if (ir_failed(G)) return; /* at k = 0 the slice is clamped: not asked then */
  val pair = P_CMP(LT, pk, zero), begins = t_and(c, pair, had), kk = t_add(c, k, ir_convert(G, begins, TPU_I32));
  val other = P_ADDC(P_UN(ABS, pk), -1), turn = t_or(c, begins, t_not(c, pair));
  val cols = t_cmp(c, IR_LT, s->col, k);
  st[0] = exchanged(c, st[0], s->rd, kk, other, t_and(c, turn, cols));
  st[1] = exchanged(c, st[1], s->rd, kk, other, turn);
  st[2] = t_or(c, st[2], t_and(c, begins, t_cmp(c, IR_EQ, s->row, k)));
  st[3] = P_ADDC(k, 1);
}

/* x moved down by k rows; zeros come in */
static val rows_moved(op_ctx *c, val x, int dim, int64_t k) {
  int64_t low[T_MAX_DIMS] = {0}, high[T_MAX_DIMS] = {0}, zero[T_MAX_DIMS] = {0};
  low[dim] = k;
  high[dim] = -k;
  return ir_pad(G, x, t_scalar(c, (tpu_dtype)x->dtype, 0), low, high, zero);
}

/* D x = b: d the diagonal, e below it (where a block of two begins), [.., n, 1] */
static val solve_blocks(op_ctx *c, const shape *s, val d, val e, val begins, val b) {
  int rd = s->rd;
  val one = t_like(c, e, 1), safe = t_where(c, begins, e, one), es = conj_if(c, s, safe);
  val next = rows_moved(c, d, rd, -1), p = t_div(c, next, safe), q = t_div(c, d, es), b1 = rows_moved(c, b, rd, -1);
  val t = t_sub(c, t_mul(c, p, q), one), y0 = t_div(c, b, es), y1 = t_div(c, b1, safe);
  val x0 = t_div(c, t_sub(c, t_mul(c, p, y0), y1), t), x1 = t_div(c, t_sub(c, t_mul(c, q, y1), y0), t);
  val ends = rows_moved(c, begins, rd, 1);
  return t_where(c, begins, x0, t_where(c, ends, rows_moved(c, x1, rd, 1), t_div(c, b, d)));
}

/* (LD, pivots, B, hermitian) */
OP(linalg_ldl_solve, "aten::linalg_ldl_solve") {
  val ld = T(0), pivots = T(1), b = T(2);
  if (!mat_check(c, ld) || !mat_check(c, b)) return;
  val columns = t_cast(c, pivots, TPU_I32), ignored = b;
  mat_share_batch(c, &ld, &b);
  if (ir_failed(G)) return;
  if (ir_numel(b) == 0 || ir_numel(ld) == 0) {
    RET(b);
    return;
  }
  shape s = shape_of(c, ld, INT_OR(3, 0));
  columns = t_unsqueeze(c, columns, columns->ndim);
  mat_share_batch(c, &columns, &ignored);
  int64_t dims[T_MAX_DIMS];
  memcpy(dims, ld->dims, (size_t)ld->ndim * sizeof *dims);
  dims[s.cd] = 1;
  columns = t_broadcast_to(c, columns, ld->ndim, dims);
  const val init[4] = {mat_triangle(c, ld, IR_GT), ir_iota(G, TPU_I32, ld->ndim, dims, s.rd),
                       t_zeros(c, TPU_BOOL, ld->ndim, dims), t_scalar(c, TPU_I32, 0)};
  val st[4], out[4];
  if (ir_failed(G)) return;
  ir_while_begin(G, init, 4, st);
  ir_while_body(G, P_CMPC(LT, st[3], (double)mat_rows(ld)), st);
  settle_step(c, &s, columns, st);
  ir_while_end(G, st, out);
  val begins = out[2], sub = t_cmp(c, IR_EQ, t_sub(c, s.row, s.col), t_scalar(c, TPU_I32, 1));
  val e = mat_transpose(c, one_of(c, ld, sub, s.rd)), d = t_unsqueeze(c, mat_diagonal(c, ld), s.cd);
  val inside = t_and(c, sub, mat_transpose(c, begins)), l = t_where(c, inside, t_like(c, ld, 0), out[0]);
  val y = mat_solve_triangle(c, l, mat_order_rows(c, b, t_squeeze(c, out[1], s.cd), false), true, true, true, 0);
  y = solve_blocks(c, &s, d, e, begins, y);
  y = mat_solve_triangle(c, l, y, true, true, true, s.hermitian ? 2 : 1);
  RET(mat_order_rows(c, y, t_squeeze(c, out[1], s.cd), true));
}
