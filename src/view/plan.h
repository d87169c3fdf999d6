/* plan.h - internal to src/view: how a form is laid out in words, and how a base's bytes become another dtype.
 *
 * A plan says: the base (as the view's dtype) is reshaped into factors; each factor is cut to a window of `span` (one
 * start when span < size); inside its window lie zero or more view dimensions, `step` apart. A factor without
 * dimensions is a select. Dimensions of a window are nested (each step spans all of the inner ones) or, in a `take`
 * factor, lie anyhow and are fetched by index.
 *
 *   words[0]        kind, flags, number of factors
 *   a factor        size << 8 | dimensions << 1 | take       innermost factor first
 *   its dimensions  n << 8 | view dimension << 1 | (step != 1), then step if it is not 1; smallest step first
 *
 * A view dimension may lie in several adjacent factors or dimensions (its parts, innermost first). View dimensions that
 * no factor names have size 1 or stride 0.
 */
#ifndef TPU_VIEW_PLAN_H
#define TPU_VIEW_PLAN_H
#include "view/view.h"

enum { PLAN_WHOLE, PLAN_EMPTY, PLAN_FACTORS };
enum { PLAN_START64 = 1 << 4, PLAN_COVERS = 1 << 5, PLAN_FACTOR_SHIFT = 8 };
/* Elements of a base at most: a size must fit beside its flags, and products must not overflow. */
#define PLAN_MAX_ELEMENTS ((int64_t)1 << 47)

typedef enum {
  CAST_SPLIT_COMPLEX, /* complex [...] -> real [..., 2] */
  CAST_BOOL_TO_U8,
  CAST_SAME,         /* equal sizes */
  CAST_DOWN,         /* [..., L] -> [..., L * k] */
  CAST_CUT,          /* [...] -> [M]: flat, without a tail that holds no whole element */
  CAST_UP,           /* [..., L * k] -> [..., L] */
  CAST_JOIN_COMPLEX, /* real [..., 2 * L] -> complex [..., L] */
} cast_kind;

enum { CAST_STEPS = 8, CAST_DIMS = VIEW_MAX_DIMS + 2 };

/* The steps from a base's dtype to the dtype `raw` in which views of `dtype` are cut: dtype itself, or U8 for views as
 * bool, so that a write keeps the bytes around it. dims[i], ndim[i]: before step i; the last ones: the outcome. */
typedef struct {
  int n;
  tpu_dtype raw, dtype;
  cast_kind kind[CAST_STEPS];
  tpu_dtype from[CAST_STEPS], to[CAST_STEPS];
  int ndim[CAST_STEPS + 1];
  int64_t dims[CAST_STEPS + 1][CAST_DIMS];
} view_cast;

/* b->ndim <= VIEW_MAX_DIMS; both dtypes are ours. */
void cast_plan(const view_base *b, tpu_dtype dtype, view_cast *out);
/* base -> dims[n] of raw */
val cast_forward(ir_graph *g, const view_cast *c, val base);
/* dims[n] of raw -> the base's dtype and dims. base: the value before (for the tail of CAST_CUT; else unused). */
val cast_back(ir_graph *g, const view_cast *c, val x, val base);
/* Zero bits of any dtype. */
val view_zeros(ir_graph *g, tpu_dtype dtype, int ndim, const int64_t *dims);
#endif
