/* matrix.h - what the rows of linear algebra share. All take batches [.., rows, columns], rank 2 or more. */
#ifndef TPU_OPS_MATRIX_H
#define TPU_OPS_MATRIX_H
#include "ops/along.h"

/* An error unless x has two dims. */
bool mat_check(op_ctx *c, val x);
static inline int64_t mat_rows(val x) { return t_size(x, x->ndim - 2); }
static inline int64_t mat_cols(val x) { return t_size(x, x->ndim - 1); }
/* Broadcasts the batch dims of both. */
void mat_share_batch(op_ctx *c, val *a, val *b);
val mat_transpose(op_ctx *c, val x);
val mat_adjoint(op_ctx *c, val x);
val mat_conj(op_ctx *c, val x); /* element by element */
/* x where row - column <k> 0, else 0 */
val mat_triangle(op_ctx *c, val x, ir_cmp k);
val mat_identity(op_ctx *c, val like);
val mat_diagonal(op_ctx *c, val x); /* [.., min(rows, columns)] */
/* x[.., i, ..] along dim d for a scalar i (int32), kept as size 1 */
val mat_at(op_ctx *c, val x, int d, val i);
/* Householder's QR: R in and above the diagonal of *r, the reflections below it; tau [.., min(rows, columns)]. */
void mat_geqrf(op_ctx *c, val a, val *r, val *tau);
/* The first n columns of H_0 H_1 .. H_{k-1}, H_j = I - tau_j v_j v_j^H; v_j stands below the diagonal of column j of a.
 */
val mat_reflections(op_ctx *c, val a, val tau, int64_t n);
/* x with op(a) x = b (left) or x op(a) = b; transpose: 0 none, 1 T, 2 adjoint. */
val mat_solve_triangle(op_ctx *c, val a, val b, bool left, bool lower, bool unit, int transpose);
/* b's rows in the given order (int32 [.., rows]); inverse: put back. */
val mat_order_rows(op_ctx *c, val b, val order, bool inverse);
/* Of any sizes above 0; vh is V^H. full: all columns of U and V. Without vectors only s is set. */
void mat_svd(op_ctx *c, val a, bool full, bool vectors, val *u, val *s, val *vh);
#endif
