/* view.h - views: (sizes, strides, offset) over a dense base, as a few steps on values.
 *
 * A store keeps its value as a dense row-major array `base` of some dtype and dims; that array's bytes are the first
 * bytes of the storage. A tensor is a view of it: its own dtype, sizes, strides (in elements, never negative) and
 * offset. view_solve is pure: it turns the two into a plan. The plan's *form* (`words`) says which steps to take; where
 * the view starts is kept apart (`starts`), so that two views that differ only in where they start have equal forms
 * and share a program, in which the starts are operands.
 *
 * Reading gives a value of the view's dtype and sizes; writing gives the base's new value. Elements of the base that
 * the view does not cover keep their value. A view that reaches past the base's end (the storage is larger than what
 * was written so far) is not solved: view_needs says how large the base must be, view_rebase makes it so with zeros.
 *
 * The solver prefers, in this order: nothing at all; slices (with steps), transposes, merges and splits of the base's
 * own dimensions; a slice of the flattened base cut into rows; a gather (overlapping windows, anything else).
 */
#ifndef TPU_VIEW_VIEW_H
#define TPU_VIEW_VIEW_H
#include "ir/ir.h"

enum { VIEW_MAX_DIMS = 64, VIEW_WORDS = 1024 };

typedef struct {
  tpu_dtype dtype;
  int ndim;
  const int64_t *dims;
} view_base;

typedef struct {
  tpu_dtype dtype;
  int ndim;
  const int64_t *sizes, *strides;
  int64_t offset; /* elements of dtype */
} view_shape;

typedef struct {
  int nwords, nstarts;
  int64_t starts[VIEW_MAX_DIMS]; /* one a sliced dimension */
  int64_t words[VIEW_WORDS];     /* the form; only the first nwords are set */
  tpu_dtype start_dtype;         /* I32, or I64 when the base is too large for it (part of the form) */
  /* Two elements of the view share memory (expand, unfold): cannot be written. Strange as_strided views of three and
   * more dimensions that overlap only jointly are not found: which element is written last is then up to the plugin. */
  bool overlaps;
} view_plan;

/* True when the view is the base itself: same dtype, sizes, dense strides, offset 0. Fast; the common case. */
bool view_is_whole(const view_base *b, const view_shape *v);

/* Solves; allocates nothing. Fails (RUNTIME) when the view reaches past the base (see view_needs), has a negative size,
 * stride or offset, or when either has too many dimensions or elements. The starts' values never change the form, with
 * one exception: a window that crosses a row of the base has another form than one that does not.
 * A program made by view_read or view_write depends on b's dtype and dims, v's dtype and sizes, and the form: a key of
 * them needs nothing else (strides and offset least of all). */
TPU_MUST tpu_err *view_solve(const view_base *b, const view_shape *v, view_plan *out);

/* Number of elements of b->dtype that the base must hold so that the view fits (0 for an empty view). */
int64_t view_needs(tpu_dtype base_dtype, const view_shape *v);

/* The view has every byte of the base exactly once (the base itself, a permutation, a reshape). Then view_write does
 * not use `base`, which may be NULL. */
bool view_covers(const view_plan *p);

/* Applies the plan. starts: plan->nstarts scalars of plan->start_dtype. */
val view_read(ir_graph *g, const view_plan *p, const view_base *b, const view_shape *v, val base, const val *starts);
/* The base's new value after `value` (the view's dtype and sizes) is written through the view. Fails when the view
 * overlaps. Bytes that are not bool (other than 0 and 1) cannot be kept in a bool base: they become true. */
val view_write(ir_graph *g, const view_plan *p, const view_base *b, const view_shape *v, val base, val value,
               const val *starts);

/* base's value as an array of new dims and dtype over the same bytes, padded with zeros or cut to the new size. */
val view_rebase(ir_graph *g, val base, tpu_dtype dtype, int ndim, const int64_t *dims);
#endif
