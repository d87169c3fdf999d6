/* Least squares, by QR for matrices of full rank and by singular values for others. */
#include <string.h>

#include "ops/matrix.h"
#include "ops/pointwise.h"

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* A of full rank: the solution, or the shortest one of m < n. rank: how many diagonal elements of R are not 0. */
static val by_qr(op_ctx *c, val a, val b, val *rank) {
  int64_t m = mat_rows(a), n = mat_cols(a), k = least(m, n);
  val r = a, tau = a, x;
  mat_geqrf(c, m < n ? mat_adjoint(c, a) : a, &r, &tau);
  val q = mat_reflections(c, r, tau, k);
  r = t_narrow(c, r, r->ndim - 2, 0, k, 1);
  if (ir_failed(G)) return b;
  val d = mat_diagonal(c, r);
  *rank = t_sum(c, t_cast(c, t_cmp(c, IR_NE, d, t_like(c, d, 0)), TPU_I64), (int[]){d->ndim - 1}, 1, false);
  if (m < n) x = t_matmul(c, q, mat_solve_triangle(c, r, b, true, false, false, 2));
  else x = mat_solve_triangle(c, r, t_matmul(c, mat_adjoint(c, q), b), true, false, false, 0);
  return x;
}

/* The shortest solution; singular values up to rcond times the largest count as 0. */
static val by_svd(op_ctx *c, val a, val b, val rcond, val *s, val *rank) {
  val u = a, vh = a;
  *s = a;
  mat_svd(c, a, false, true, &u, s, &vh);
  if (ir_failed(G)) return b;
  int last = (*s)->ndim - 1;
  val zero = P_NUM(*s, 0), top = t_narrow(c, *s, last, 0, 1, 1);
  val keep = t_cmp(c, IR_GT, *s, t_mul(c, top, t_cast(c, rcond, (tpu_dtype)top->dtype)));
  keep = t_or(c, keep, p_isnan(c, *s));
  *rank = t_sum(c, t_cast(c, keep, TPU_I64), &last, 1, false);
  if (ir_failed(G)) return b;
  val inverse = P_SEL(keep, P_DIV(P_NUM(*s, 1), P_SEL(keep, *s, P_NUM(*s, 1))), zero);
  val y = t_matmul(c, mat_adjoint(c, u), b);
  y = t_mul(c, y, t_cast(c, t_unsqueeze(c, inverse, last + 1), (tpu_dtype)y->dtype));
  return t_matmul(c, mat_adjoint(c, vh), y);
}

/* (self [.., m, n], b [.., m, k], rcond, driver) -> (solution, sums of squares of A x - b [.., k], rank [..], singular
 * values [.., min(m, n)]; empty when the driver is gels). The adapter gives what PyTorch returns of it. */
OP(linalg_lstsq, "aten::linalg_lstsq") {
  val a = T(0), b = T(1), s, rank, x;
  if (!mat_check(c, a) || !mat_check(c, b)) return;
  mat_share_batch(c, &a, &b);
  if (ir_failed(G)) return;
  const char *driver = op_str(c, 3);
  bool qr = !strcmp(driver, "gels");
  int64_t m = mat_rows(a), n = mat_cols(a), k = least(m, n), dims[T_MAX_DIMS], none = 0;
  tpu_dtype d = (tpu_dtype)a->dtype, real = ir_real_dtype(d);
  int nd = a->ndim;
  memcpy(dims, b->dims, (size_t)nd * sizeof *dims);
  rank = t_zeros(c, TPU_I64, nd - 2, dims);
  if (ir_numel(a) == 0 || ir_numel(b) == 0) {
    dims[nd - 2] = k;
    s = t_zeros(c, real, nd - 1, dims);
    dims[nd - 2] = n;
    x = t_zeros(c, d, nd, dims);
    if (ir_numel(a) && qr) x = by_qr(c, a, b, &rank);
    else if (ir_numel(a)) x = by_svd(c, a, b, HAS(2) ? S(2) : t_scalar(c, real, 0), &s, &rank);
  } else if (qr) {
    s = t_zeros(c, real, 1, &none);
    x = by_qr(c, a, b, &rank);
  } else {
    double eps = (real == TPU_F64 ? 0x1p-52 : 0x1p-23) * (double)(m > n ? m : n);
    x = by_svd(c, a, b, HAS(2) ? S(2) : t_scalar(c, real, eps), &s, &rank);
  }
  val off = P_UN(ABS, n ? P_SUB(t_matmul(c, a, x), b) : qr ? t_like(c, b, 0) : b); /* gels does not look then */
  if (ir_failed(G)) return;
  RETN(0, x);
  RETN(1, t_sum(c, P_MUL(off, off), (int[]){nd - 2}, 1, false));
  RETN(2, rank);
  RETN(3, qr ? t_zeros(c, real, 1, &none) : s);
}
