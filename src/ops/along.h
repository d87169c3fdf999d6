/* along.h - gathers, scatters, sorts and scans along one dim, shared by the rows of several families.
 *
 * All take values whose dim exists (rank >= 1; see t_at_least_1d) and work for zero sizes. Index values may be of any
 * integer dtype. An index outside a gather's range is clamped by XLA, outside a scatter's range it is dropped.
 */
#ifndef TPU_OPS_ALONG_H
#define TPU_OPS_ALONG_H
#include "ops/op.h"

enum { T_MAX_DIMS = 64 };
enum { T_REPLACE = -1 }; /* scatter body: the update replaces */

/* x's size along d; 1 when d is no dim of x (0-d values, and the poison after an error). */
static inline int64_t t_size(val x, int d) { return d >= 0 && d < x->ndim ? x->dims[d] : 1; }
static inline bool t_is_float(val x) { return ir_is_float((tpu_dtype)x->dtype); }
static inline bool t_is_complex(val x) { return ir_is_complex((tpu_dtype)x->dtype); }

val t_at_least_1d(op_ctx *c, val x);
/* v with the sizes that PyTorch's meta kernel gives result `ret` (same number of elements), or v when it gives none. */
val t_reshape_meta(op_ctx *c, int ret, val v);
/* x != x for floats and complex numbers, else NULL. */
val t_is_nan(op_ctx *c, val x);
/* The integer dtype to index n elements with: int32 when it is enough. */
tpu_dtype t_index_dtype(int64_t n);
/* index in t_index_dtype(n), negative ones counted from n. */
val t_wrap_index(op_ctx *c, val index, int64_t n);
/* 0, 1, 2, ... along dim, with size 1 in the other dims of a value of rank ndim. */
val t_iota_dim(op_ctx *c, tpu_dtype d, int ndim, int dim, int64_t n);

/* x[..., index, ...]: dims are x's before dim, index's, x's after dim. */
val t_take(op_ctx *c, val x, int dim, val index);
/* torch.gather: index has x's rank and at most its sizes in the other dims. */
val t_gather(op_ctx *c, val x, int dim, val index);
/* torch.scatter: x[.., index[i], ..] = or body= src[i]; index and src have x's rank; src is at least as large as index.
 * Sums and products of reduced floats accumulate in float32. body: an ir_opcode or T_REPLACE. */
val t_scatter(op_ctx *c, val x, int dim, val index, val src, int body);
/* Slices: index has rank 1 and src has x's dims but as many along dim as index. */
val t_scatter_slices(op_ctx *c, val x, int dim, val index, val src, int body);

/* Stable sort, NaN largest. indices: t_index_dtype. */
void t_sort(op_ctx *c, val x, int dim, bool descending, val *values, val *indices);
/* For every v: how many places of the sorted last dim of seq lie before it (right: not after it). seq has the leading
 * dims of v, or rank 1. The binary search of PyTorch, step by step: so NaN and unsorted sequences agree too. */
val t_search(op_ctx *c, val seq, val v, bool right);
/* Value and first index of the largest (max) or smallest element; NaN wins. keep: dim stays as size 1. */
void t_arg_reduce(op_ctx *c, val x, int dim, bool max, bool keep, val *value, val *index);

/* Inclusive scan in place of n values of equal dims. f joins an earlier and a later part and must be associative; f of
 * identity (n scalars) and b is b. Work is O(size), in O(log size) loops of 32 steps; exact for integers. cheap: f
 * costs no more than reading its arguments, and may be applied several times an element. */
typedef void (*t_combine)(op_ctx *c, const val *earlier, const val *later, val *out);
void t_scan(op_ctx *c, val *xs, const val *identity, int n, int dim, t_combine f, bool cheap);
/* Sums along dim; x's dtype (reduced floats in float32 inside). */
val t_cumsum(op_ctx *c, val x, int dim);
/* Position of each true element of a flat mask among the true ones, as t_index_dtype; -1 before the first. */
val t_mask_positions(op_ctx *c, val flat_mask);

/* dims (sorted) of x reduced to size-1 dims again: gives v (whose dims lack them) the rank of x. */
val t_unreduce(op_ctx *c, val v, val x, const int *dims, int n);
/* A loss with PyTorch's reduction: 0 none, 1 mean, 2 sum. */
val t_loss(op_ctx *c, val loss, int64_t reduction);
/* p-norm of x (float or complex, in its opmath) over dims. */
val t_norm(op_ctx *c, val x, double p, const int *dims, int n, bool keep);

/* PyTorch's IndexError for a reduction of no elements that has no identity; true when it was recorded. */
bool t_refuse_empty_dim(op_ctx *c, val x, int dim, const char *name);
#endif
