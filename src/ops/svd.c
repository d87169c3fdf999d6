/* Singular values by one-sided Jacobi rotations. Columns meet in pairs as in a tournament, half of them at a time,
 * until all are orthogonal: their lengths are the singular values. Small values come out as accurate as large ones. */
#include <string.h>

#include "ops/matrix.h"
#include "ops/pointwise.h"

enum { SWEEPS = 24 };

static val wide(op_ctx *c, val v, val like) { return t_broadcast_to(c, v, like->ndim, like->dims); }
static val cols(op_ctx *c, val x, int64_t from, int64_t n) { return t_narrow(c, x, x->ndim - 1, from, n, 1); }
static val rows(op_ctx *c, val x, int64_t from, int64_t n) { return t_narrow(c, x, x->ndim - 2, from, n, 1); }

static val square_sum(op_ctx *c, val x) {
  val a = P_UN(ABS, x);
  return ir_failed(G) ? x : t_sum(c, P_MUL(a, a), (int[]){x->ndim - 2}, 1, true);
}

/* Makes each column of the first m rows of *l orthogonal to the one of *r at the same place. Gives the largest cosine.
 */
static val rotate(op_ctx *c, val *l, val *r, int64_t m, double eps) {
  tpu_dtype d = (tpu_dtype)(*l)->dtype;
  val x = rows(c, *l, 0, m), y = rows(c, *r, 0, m), a = square_sum(c, x), b = square_sum(c, y);
  val dot = t_sum(c, t_mul(c, mat_conj(c, x), y), (int[]){x->ndim - 2}, 1, true);
  if (ir_failed(G)) return a;
  val g = P_UN(ABS, dot), size = P_MUL(P_UN(SQRT, a), P_UN(SQRT, b)), one = P_NUM(g, 1);
  val on = P_CMP(GT, g, P_MULC(size, eps)), safe = P_SEL(on, g, one);
  val zeta = P_DIV(P_SUB(b, a), P_ADD(safe, safe)),
      t = P_DIV(one, P_ADD(P_UN(ABS, zeta), P_UN(SQRT, P_ADDC(P_MUL(zeta, zeta), 1))));
  t = P_SEL(on, P_SEL(P_CMPC(LT, zeta, 0), P_UN(NEG, t), t), P_NUM(t, 0));
  val co = P_DIV(one, P_UN(SQRT, P_ADDC(P_MUL(t, t), 1))), si = wide(c, t_cast(c, P_MUL(co, t), d), *l);
  val phase = P_SEL(on, P_DIV(dot, t_cast(c, safe, d)), t_like(c, dot, 1));
  val turned = t_mul(c, *r, wide(c, mat_conj(c, phase), *r)), left = *l;
  co = wide(c, t_cast(c, co, d), *l);
  *l = t_sub(c, t_mul(c, co, left), t_mul(c, si, turned));
  *r = t_add(c, t_mul(c, si, left), t_mul(c, co, turned));
  val cosine = P_SEL(on, P_DIV(g, P_SEL(on, size, one)), P_NUM(g, 0));
  return t_amax(c, cosine, NULL, 0, false);
}

/* a [.., m, n] to a V with orthogonal columns, and V [.., n, n]. */
static void orthogonalize(op_ctx *c, val a, val *av, val *v) {
  int64_t m = mat_rows(a), n = mat_cols(a), even = n + n % 2, half = even / 2, dims[T_MAX_DIMS];
  tpu_dtype d = (tpu_dtype)a->dtype, r = ir_real_dtype(d);
  double eps = r == TPU_F64 ? 0x1p-53 : 0x1p-24;
  int64_t low[T_MAX_DIMS] = {0}, high[T_MAX_DIMS] = {0}, inside[T_MAX_DIMS] = {0};
  high[a->ndim - 1] = even - n;
  memcpy(dims, a->dims, (size_t)a->ndim * sizeof *dims);
  dims[a->ndim - 2] = dims[a->ndim - 1] = even;
  val both[2] = {ir_pad(G, a, t_scalar(c, d, 0), low, high, inside), mat_identity(c, t_zeros(c, d, a->ndim, dims))};
  val w = t_concat(c, both, 2, a->ndim - 2); /* rotations of the columns act on V too */
  if (ir_failed(G)) return;
  val init[5] = {cols(c, w, 0, half), cols(c, w, half, half), t_scalar(c, TPU_I32, 0), t_scalar(c, r, 0),
                 t_scalar(c, TPU_BOOL, 0)};
  val s[5], out[5];
  ir_while_begin(G, init, 5, s);
  val more = ir_compare(G, IR_LT, s[2], ir_const_i(G, TPU_I32, SWEEPS * (even - 1), 0, NULL));
  ir_while_body(G, P_AND(more, P_UN(NOT, s[4])), s);
  val l = s[0], q = s[1], off = t_max(c, s[3], rotate(c, &l, &q, m, eps)),
      step = t_add(c, s[2], t_scalar(c, TPU_I32, 1));
  if (half > 1) { /* the first stays, the others move on by one */
    const val up[3] = {cols(c, l, 0, 1), cols(c, q, 0, 1), cols(c, l, 1, half - 2)},
              down[2] = {cols(c, q, 1, half - 1), cols(c, l, half - 1, 1)};
    l = t_concat(c, up, half > 2 ? 3 : 2, a->ndim - 1);
    q = t_concat(c, down, 2, a->ndim - 1);
  }
  if (ir_failed(G)) return;
  val round = ir_const_i(G, TPU_I32, even - 1, 0, NULL);
  val last = P_CMPC(EQ, ir_binary(G, IR_REM, step, round), 0);
  val done = P_AND(last, P_CMPC(LT, off, 4 * eps));
  ir_while_end(G, (const val[]){l, q, step, P_SEL(last, P_NUM(off, 0), off), done}, out);
  w = t_concat(c, out, 2, a->ndim - 1);
  *av = cols(c, rows(c, w, 0, m), 0, even);
  *v = rows(c, w, m, n);
}

/* x's columns in the given order, [.., n] of them */
static val pick(op_ctx *c, val x, val order) {
  int64_t dims[T_MAX_DIMS];
  if (ir_failed(G)) return x;
  memcpy(dims, x->dims, (size_t)x->ndim * sizeof *dims);
  dims[x->ndim - 1] = t_size(order, order->ndim - 1);
  return t_gather(c, x, x->ndim - 1, t_broadcast_to(c, t_unsqueeze(c, order, order->ndim - 1), x->ndim, dims));
}

/* a = U diag(s) V^H for rows >= columns > 0: U [.., m, full ? m : n], s [.., n] descending, V [.., n, n]. */
static void tall_svd(op_ctx *c, val a, bool full, bool vectors, val *u, val *s, val *v) {
  int nd = a->ndim, last2[2] = {nd - 2, nd - 1};
  int64_t m = mat_rows(a), n = mat_cols(a);
  val av = a, right = a, sorted, order;
  /* brought to 1, so that squares neither overflow nor vanish */
  val largest = t_amax(c, P_UN(ABS, a), last2, 2, true);
  if (ir_failed(G)) return;
  largest = P_SEL(P_CMPC(EQ, largest, 0), P_NUM(largest, 1), largest);
  orthogonalize(c, t_div(c, a, t_cast(c, largest, (tpu_dtype)a->dtype)), &av, &right);
  if (ir_failed(G)) return;
  val length = t_squeeze(c, P_UN(SQRT, square_sum(c, av)), nd - 2);
  t_sort(c, length, nd - 2, true, &sorted, &order);
  order = t_narrow(c, order, nd - 2, 0, n, 1);
  *s = t_mul(c, t_narrow(c, sorted, nd - 2, 0, n, 1), t_squeeze(c, largest, nd - 1));
  if (!vectors) return;
  *v = pick(c, right, order);
  /* QR of orthogonal columns: R is diagonal, and Q stays orthogonal where a singular value is 0 */
  val r, tau;
  mat_geqrf(c, pick(c, av, order), &r, &tau);
  if (ir_failed(G)) return;
  val d = mat_diagonal(c, r), size = P_UN(ABS, d), none = P_CMPC(EQ, size, 0), one = t_like(c, d, 1);
  val phase = P_SEL(none, one, P_DIV(d, t_cast(c, P_SEL(none, P_NUM(size, 1), size), (tpu_dtype)d->dtype)));
  int64_t low[T_MAX_DIMS] = {0}, high[T_MAX_DIMS] = {0}, inside[T_MAX_DIMS] = {0}, k = full ? m : n;
  high[nd - 2] = k - n;
  phase = ir_pad(G, phase, t_scalar(c, (tpu_dtype)d->dtype, 1), low, high, inside);
  *u = t_mul(c, mat_reflections(c, r, tau, k), t_unsqueeze(c, phase, nd - 2));
}

void mat_svd(op_ctx *c, val a, bool full, bool vectors, val *u, val *s, val *vh) {
  bool flip = mat_rows(a) < mat_cols(a);
  val left = a, right = a;
  *s = a;
  tall_svd(c, flip ? mat_adjoint(c, a) : a, full, vectors, &left, s, &right);
  *u = flip ? right : left;
  *vh = mat_adjoint(c, flip ? left : right);
}

/* (A, full_matrices, compute_uv, driver) -> (U, S, Vh) */
OP(linalg_svd, "aten::_linalg_svd") {
  val a = T(0), u, s, vh;
  if (!mat_check(c, a)) return;
  bool full = INT_OR(1, 0), vectors = INT_OR(2, 1);
  tpu_dtype d = (tpu_dtype)a->dtype, r = ir_real_dtype(d);
  int64_t m = mat_rows(a), n = mat_cols(a), k = m < n ? m : n, dims[T_MAX_DIMS], none = 0;
  int nd = a->ndim;
  memcpy(dims, a->dims, (size_t)nd * sizeof *dims);
  if (ir_numel(a) == 0) {
    dims[nd - 2] = k;
    s = t_zeros(c, r, nd - 1, dims);
    dims[nd - 2] = m;
    dims[nd - 1] = full ? m : k;
    u = mat_identity(c, t_zeros(c, d, nd, dims));
    dims[nd - 2] = full ? n : k;
    dims[nd - 1] = n;
    vh = mat_identity(c, t_zeros(c, d, nd, dims));
  } else {
    mat_svd(c, a, full, vectors, &u, &s, &vh);
  }
  RETN(0, vectors ? u : t_zeros(c, d, 1, &none));
  RETN(1, s);
  RETN(2, vectors ? vh : t_zeros(c, d, 1, &none));
}

/* (self, atol, rtol, hermitian: the lower triangle is read): singular values up to max(atol, rtol * the largest) count
 * as 0. */
OP(linalg_pinv, "aten::linalg_pinv.atol_rtol_tensor") {
  val a = T(0), u, s, vh;
  if (!mat_check(c, a)) return;
  int64_t m = mat_rows(a), n = mat_cols(a), dims[T_MAX_DIMS];
  if (ir_numel(a) == 0) {
    memcpy(dims, a->dims, (size_t)a->ndim * sizeof *dims);
    dims[a->ndim - 2] = n;
    dims[a->ndim - 1] = m;
    RET(t_zeros(c, (tpu_dtype)a->dtype, a->ndim, dims));
    return;
  }
  if (INT_OR(3, 0)) { /* only what is below the diagonal counts, and the diagonal's real part, as for eigh */
    val below = mat_triangle(c, a, IR_GT), diagonal = t_sub(c, mat_triangle(c, a, IR_GE), below);
    diagonal = t_mul(c, t_add(c, diagonal, mat_adjoint(c, diagonal)), t_like(c, a, 0.5));
    a = t_add(c, t_add(c, below, mat_adjoint(c, below)), diagonal);
  }
  mat_svd(c, a, false, true, &u, &s, &vh);
  if (ir_failed(G)) return;
  tpu_dtype r = (tpu_dtype)s->dtype;
  double eps = (r == TPU_F64 ? 0x1p-52 : 0x1p-23) * (double)(m > n ? m : n);
  val zero = t_scalar(c, r, 0), atol = HAS(1) ? t_cast(c, T(1), r) : zero, rtol;
  if (HAS(2)) rtol = t_cast(c, T(2), r);
  else rtol = HAS(1) ? t_where(c, t_cmp(c, IR_GT, atol, zero), zero, t_scalar(c, r, eps)) : t_scalar(c, r, eps);
  val top = t_narrow(c, s, s->ndim - 1, 0, 1, 1);
  if (atol->ndim) atol = t_unsqueeze(c, atol, atol->ndim);
  if (rtol->ndim) rtol = t_unsqueeze(c, rtol, rtol->ndim);
  val limit = t_max(c, atol, t_mul(c, rtol, top)), keep = t_cmp(c, IR_GT, s, limit);
  val inverse = t_where(c, keep, t_div(c, t_scalar(c, r, 1), t_where(c, keep, s, t_scalar(c, r, 1))), zero);
  val scaled = t_mul(c, mat_adjoint(c, vh), t_cast(c, t_unsqueeze(c, inverse, inverse->ndim - 1), (tpu_dtype)a->dtype));
  RET(t_matmul(c, scaled, mat_adjoint(c, u)));
}
