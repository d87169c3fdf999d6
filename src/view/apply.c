/* apply.c - a plan as operations. Reading is a chain of steps; writing goes the chain backwards, each step putting its
 * new outcome into what it was cut from. */
#include <string.h>

#include "view/plan.h"

enum { MAX_FACTORS = 64, MAX_PARTS = 160 };

typedef struct {
  int64_t n, m;
  int dim;
} part;

typedef struct {
  int64_t size, span;
  int first, nparts; /* parts, outermost first */
  int start;         /* which start, or -1 */
  bool take;
} factor;

/* A decoded form, outermost first. */
typedef struct {
  int nfactors, nparts;
  factor f[MAX_FACTORS];
  part p[MAX_PARTS];
} form;

static void decode(const view_plan *p, form *out) {
  int nf = (int)(p->words[0] >> PLAN_FACTOR_SHIFT), start = 0, np = 0;
  const int64_t *w = p->words + 1;
  for (int i = 0; i < nf; i++, start++) { /* innermost first; turned round below */
    factor *f = &out->f[nf - 1 - i];
    f->size = *w >> 8;
    f->nparts = (int)(*w >> 1 & 127);
    f->take = *w & 1;
    f->span = 1;
    w++;
    for (int k = 0; k < f->nparts; k++) {
      part *t = &out->p[np++];
      t->n = *w >> 8;
      t->dim = (int)(*w >> 1 & 127);
      t->m = *w++ & 1 ? *w++ : 1;
      f->span += (t->n - 1) * t->m;
    }
    f->start = f->span < f->size ? start : -1;
    if (f->start < 0) start--;
  }
  for (int i = 0; i < np / 2; i++) {
    part t = out->p[i];
    out->p[i] = out->p[np - 1 - i];
    out->p[np - 1 - i] = t;
  }
  np = 0;
  for (int i = 0; i < nf; i++) {
    out->f[i].first = np;
    np += out->f[i].nparts;
  }
  out->nfactors = nf;
  out->nparts = np;
}

/* ---- the chain of steps ------------------------------------------------------------------------------------------ */

typedef enum { RESHAPE, WINDOW, STEP, ROWS, TAKE } step_kind;

typedef struct {
  step_kind kind;
  int axis;
  int64_t rows, stride, span; /* ROWS: rows of the axis begin every `stride` and hold `span` */
  val index;                  /* TAKE: what is taken from the axis */
  int nindex;                 /* dims of index */
  bool unique;                /* no index twice */
  val before;
} step;

typedef struct {
  ir_graph *g;
  val x;
  int nd; /* the dims that x shall have; it gets them when an operation needs them */
  int64_t d[MAX_PARTS];
  val at[MAX_FACTORS];     /* of the one WINDOW step */
  int64_t by[MAX_FACTORS]; /* of the one STEP step */
  int nsteps;
  step *steps; /* in the graph's arena */
} chain;

static step *add(chain *c, step_kind kind) {
  step *s = &c->steps[c->nsteps++];
  s->kind = kind;
  s->before = c->x;
  return s;
}

static void settle(chain *c) {
  val x = ir_reshape(c->g, c->x, c->nd, c->d);
  if (x == c->x) return;
  add(c, RESHAPE);
  c->x = x;
}

/* Replaces axis by n dims. */
static void replace_axis(chain *c, int axis, int n, const int64_t *dims) {
  memmove(c->d + axis + n, c->d + axis + 1, (size_t)(c->nd - axis - 1) * sizeof(int64_t));
  if (n > 0) memcpy(c->d + axis, dims, (size_t)n * sizeof(int64_t));
  c->nd += n - 1;
}

static val slice_axis(ir_graph *g, val x, int axis, int64_t limit) {
  int64_t lo[MAX_PARTS], hi[MAX_PARTS], by[MAX_PARTS];
  if (ir_failed(g) || x->dims[axis] == limit) return x;
  for (int i = 0; i < x->ndim; i++) lo[i] = 0, hi[i] = i == axis ? limit : x->dims[i], by[i] = 1;
  return ir_slice(g, x, lo, hi, by);
}

/* Zeros (false) after the end of axis. */
static val pad_axis(ir_graph *g, val x, int axis, int64_t high) {
  int64_t zero[MAX_PARTS], hi[MAX_PARTS];
  if (ir_failed(g) || high == 0) return x;
  for (int i = 0; i < x->ndim; i++) zero[i] = 0, hi[i] = i == axis ? high : 0;
  return ir_pad(g, x, view_zeros(g, x->dtype, 0, NULL), zero, hi, zero);
}

/* x's axis as [rows, size / rows], and back */
static val split_axis(ir_graph *g, val x, int axis, int64_t rows) {
  int64_t d[MAX_PARTS + 1];
  if (ir_failed(g)) return x;
  for (int i = 0, o = 0; i < x->ndim; i++) {
    if (i == axis) d[o++] = rows, d[o++] = x->dims[i] / rows;
    else d[o++] = x->dims[i];
  }
  return ir_reshape(g, x, x->ndim + 1, d);
}
static val join_axis(ir_graph *g, val x, int axis) {
  int64_t d[MAX_PARTS];
  if (ir_failed(g)) return x;
  for (int i = 0, o = 0; i < x->ndim; i++) {
    if (i == axis) d[o++] = x->dims[i] * x->dims[i + 1], i++;
    else d[o++] = x->dims[i];
  }
  return ir_reshape(g, x, x->ndim - 1, d);
}

static val rows_read(ir_graph *g, const step *s) {
  if (ir_failed(g)) return s->before;
  val x = pad_axis(g, s->before, s->axis, s->rows * s->stride - s->before->dims[s->axis]);
  return slice_axis(g, split_axis(g, x, s->axis, s->rows), s->axis + 1, s->span);
}

/* The way back, without what lies between the rows: zeros there. */
static val rows_spread(ir_graph *g, const step *s, val x, int axis, int64_t size) {
  x = join_axis(g, pad_axis(g, x, axis + 1, s->stride - s->span), axis);
  return slice_axis(g, x, axis, size);
}

static val take_index(ir_graph *g, const part *p, int n, int64_t step_by, tpu_dtype dtype) {
  int64_t d[MAX_PARTS];
  for (int i = 0; i < n; i++) d[i] = p[i].n;
  val sum = NULL;
  for (int i = 0; i < n; i++) {
    val t = ir_iota(g, dtype, n, d, i);
    if (p[i].m != step_by) t = ir_binary(g, IR_MUL, t, ir_const_i(g, dtype, p[i].m / step_by, n, d));
    sum = sum ? ir_binary(g, IR_ADD, sum, t) : t;
  }
  return sum;
}

/* TAKE: x's axis becomes the index's dims. */
static val take_read(ir_graph *g, const step *s) {
  val x = s->before;
  if (ir_failed(g)) return x;
  int offset[MAX_PARTS], noffset = 0;
  int64_t sizes[MAX_PARTS];
  for (int i = 0; i < x->ndim; i++) {
    sizes[i] = i == s->axis ? 1 : x->dims[i];
    if (i < s->axis) offset[noffset++] = i;
    else if (i > s->axis) offset[noffset++] = i - 1 + s->nindex;
  }
  ir_gather_dims gd = {.noffset = noffset,
                       .offset_dims = offset,
                       .ncollapsed = 1,
                       .collapsed_dims = &s->axis,
                       .nstart = 1,
                       .start_index_map = &s->axis,
                       .index_vector_dim = s->nindex};
  return ir_gather(g, x, s->index, &gd, sizes, false);
}

static val take_put(ir_graph *g, const step *s, val update) {
  val x = s->before;
  if (ir_failed(g)) return x;
  int window[MAX_PARTS], nwindow = 0;
  for (int i = 0; i < x->ndim; i++) {
    if (i < s->axis) window[nwindow++] = i;
    else if (i > s->axis) window[nwindow++] = i - 1 + s->nindex;
  }
  ir_scatter_dims sd = {.nwindow = nwindow,
                        .update_window_dims = window,
                        .ninserted = 1,
                        .inserted_window_dims = &s->axis,
                        .nscatter = 1,
                        .scatter_dims_to_operand = &s->axis,
                        .index_vector_dim = s->nindex};
  return ir_scatter(g, x, s->index, update, &sd, -1, false, s->unique);
}

static val step_put(ir_graph *g, const chain *c, const step *s, val x) {
  val before = s->before;
  int nd = before->ndim;
  switch (s->kind) {
    case RESHAPE: return ir_reshape(g, x, nd, before->dims);
    case WINDOW: return ir_dynamic_update_slice(g, before, x, c->at);
    case TAKE: return take_put(g, s, x);
    case STEP: {
      int64_t zero[MAX_PARTS], in[MAX_PARTS], one;
      val mask = NULL;
      for (int i = 0; i < nd; i++) {
        zero[i] = 0;
        in[i] = c->by[i] - 1;
        if (c->by[i] == 1) continue;
        one = x->dims[i];
        val m = ir_const_i(g, TPU_BOOL, 1, 1, &one);
        m = ir_pad(g, m, ir_const_i(g, TPU_BOOL, 0, 0, NULL), zero, zero, &in[i]);
        m = ir_broadcast(g, m, nd, before->dims, &i);
        mask = mask ? ir_binary(g, IR_AND, mask, m) : m;
      }
      x = ir_pad(g, x, view_zeros(g, x->dtype, 0, NULL), zero, zero, in);
      return ir_select(g, mask, x, before);
    }
    case ROWS: {
      int64_t size = before->dims[s->axis], d[2] = {s->rows, s->span};
      x = rows_spread(g, s, x, s->axis, size);
      if (s->span == s->stride) return x;
      val m = rows_spread(g, s, ir_const_i(g, TPU_BOOL, 1, 2, d), 0, size);
      return ir_select(g, ir_broadcast(g, m, nd, before->dims, &s->axis), x, before);
    }
  }
  return x;
}

static int64_t gcd(int64_t a, int64_t b) { return b ? gcd(b, a % b) : a; }

/* The view's dimensions that the form names, as they lie in the base: parts joined, outermost first. */
typedef struct {
  int n;
  int dim[MAX_PARTS];
  int64_t size[MAX_PARTS];
} lying;

static void lying_dims(const form *f, lying *out) {
  out->n = 0;
  for (int i = 0; i < f->nparts; i++) {
    int k = out->n;
    if (k && out->dim[k - 1] == f->p[i].dim) {
      out->size[k - 1] *= f->p[i].n;
    } else {
      out->dim[k] = f->p[i].dim;
      out->size[k] = f->p[i].n;
      out->n++;
    }
  }
}

/* base (of the view's raw dtype) -> the parts' dims, in c->x and c->d; steps recorded. False: failed. */
static bool run(chain *c, const form *f, const view_plan *p, val base, const val *starts) {
  ir_graph *g = c->g;
  int nf = f->nfactors;
  c->x = base;
  c->nd = nf;
  c->nsteps = 0;
  c->steps = arena_alloc(ir_arena(g), sizeof(step) * (size_t)(2 * nf + 2 * f->nparts + 8));
  if (!c->steps) {
    ir_fail(g, TPU_ERR_OOM, "out of host memory while building a view");
    return false;
  }
  int64_t lo[MAX_FACTORS];
  bool window = false, stepped = false;
  for (int i = 0; i < nf; i++) {
    const factor *t = &f->f[i];
    c->d[i] = t->size;
    window |= t->start >= 0;
    lo[i] = 0;
    c->by[i] = 0;
    for (int k = 0; k < t->nparts; k++) c->by[i] = gcd(c->by[i], f->p[t->first + k].m);
    if (c->by[i] == 0) c->by[i] = 1;
    stepped |= c->by[i] > 1;
  }
  if (window) {
    settle(c);
    val zero = NULL;
    for (int i = 0; i < nf; i++) {
      c->at[i] = f->f[i].start >= 0 ? starts[f->f[i].start]
                 : zero             ? zero
                                    : (zero = ir_const_i(g, p->start_dtype, 0, 0, NULL));
      c->d[i] = f->f[i].span;
    }
    add(c, WINDOW);
    c->x = ir_dynamic_slice(g, c->x, c->at, c->d);
  }
  if (stepped) {
    settle(c);
    add(c, STEP);
    c->x = ir_slice(g, c->x, lo, c->d, c->by);
    for (int i = 0; i < nf; i++) c->d[i] = (c->d[i] - 1) / c->by[i] + 1;
  }
  int axis = 0;
  for (int i = 0; i < nf; i++) {
    const factor *t = &f->f[i];
    const part *q = f->p + t->first;
    if (t->nparts == 0) { /* select */
      replace_axis(c, axis, 0, NULL);
    } else if (t->take) {
      settle(c);
      step *s = add(c, TAKE);
      s->axis = axis;
      s->index = take_index(g, q, t->nparts, c->by[i], c->d[axis] > INT32_MAX ? TPU_I64 : TPU_I32);
      s->nindex = t->nparts;
      s->unique = t->nparts == 2 && !p->overlaps;
      c->x = take_read(g, s);
      int64_t d[MAX_PARTS];
      for (int k = 0; k < t->nparts; k++) d[k] = q[k].n;
      replace_axis(c, axis, t->nparts, d);
      axis += t->nparts;
    } else { /* nested: rows of rows */
      for (int k = 0; k < t->nparts; k++, axis++) {
        int64_t stride = q[k].m / c->by[i], span = c->d[axis] - (q[k].n - 1) * stride, d[2] = {q[k].n, span};
        bool last = k + 1 == t->nparts;
        if (last && stride == 1) break;
        if (span < stride) {
          settle(c);
          step *s = add(c, ROWS);
          s->axis = axis;
          s->rows = q[k].n;
          s->stride = stride;
          s->span = span;
          c->x = rows_read(g, s);
        }
        replace_axis(c, axis, 2, d);
        if (!last) continue;
        replace_axis(c, axis + 1, 0, NULL); /* rows of one element */
        break;
      }
      axis++;
    }
  }
  return !ir_failed(g);
}

/* perm[i]: place among l of the i-th of its dimensions in the view's order. */
static void view_order(const lying *l, int *perm) {
  int n = 0;
  for (int dim = 0; dim < VIEW_MAX_DIMS; dim++) {
    for (int i = 0; i < l->n; i++) {
      if (l->dim[i] == dim) perm[n++] = i;
    }
  }
}

/* Dimensions of size 1 join the others before these are put in order. After a transpose they would be a reshape of its
 * own, and XLA's simplifier takes minutes over two differing chains of reshape, transpose, reshape that meet. */
static void with_ones(lying *l, const view_shape *v) {
  for (int dim = v->ndim - 1; dim >= 0; dim--) {
    if (v->sizes[dim] != 1) continue;
    int at = l->n; /* before the dimension that follows it in the view */
    for (int i = 0; i < l->n; i++)
      if (l->dim[i] > dim && (at == l->n || l->dim[i] < l->dim[at])) at = i;
    memmove(l->dim + at + 1, l->dim + at, (size_t)(l->n - at) * sizeof *l->dim);
    memmove(l->size + at + 1, l->size + at, (size_t)(l->n - at) * sizeof *l->size);
    l->dim[at] = dim;
    l->size[at] = 1;
    l->n++;
  }
}

/* Some dimension of more than one element does not move: what is read is broadcast. */
static bool stands_still(const view_shape *v) {
  for (int i = 0; i < v->ndim; i++)
    if (v->sizes[i] > 1 && v->strides[i] == 0) return true;
  return false;
}

val view_read(ir_graph *g, const view_plan *p, const view_base *b, const view_shape *v, val base, const val *starts) {
  int kind = (int)(p->words[0] & 15);
  if (kind == PLAN_WHOLE) return base;
  if (kind == PLAN_EMPTY) return view_zeros(g, v->dtype, v->ndim, v->sizes);
  view_cast cast;
  form f;
  lying l;
  chain c = {.g = g};
  cast_plan(b, v->dtype, &cast);
  decode(p, &f);
  lying_dims(&f, &l);
  val x = cast_forward(g, &cast, base);
  if (!run(&c, &f, p, x, starts)) return c.x;
  if (!stands_still(v)) with_ones(&l, v);
  x = ir_reshape(g, c.x, l.n, l.size);
  int perm[MAX_PARTS], map[MAX_PARTS];
  view_order(&l, perm);
  x = ir_convert(g, ir_transpose(g, x, perm), v->dtype); /* raw to bool; else nothing */
  int64_t missing = 1;
  for (int i = 0, k = 0; i < v->ndim; i++) {
    if (k < l.n && l.dim[perm[k]] == i) map[k++] = i;
    else missing *= v->sizes[i];
  }
  if (missing == 1) return ir_reshape(g, x, v->ndim, v->sizes);
  return ir_broadcast(g, x, v->ndim, v->sizes, map);
}

val view_write(ir_graph *g, const view_plan *p, const view_base *b, const view_shape *v, val base, val value,
               const val *starts) {
  int kind = (int)(p->words[0] & 15);
  if (kind == PLAN_WHOLE) return value;
  if (kind == PLAN_EMPTY) return base;
  if (p->overlaps)
    return ir_fail(g, TPU_ERR_RUNTIME,
                   "cannot write through a view whose elements share memory (made by expand, unfold "
                   "or as_strided): write to a clone() of it");
  view_cast cast;
  form f;
  lying l;
  chain c = {.g = g};
  cast_plan(b, v->dtype, &cast);
  decode(p, &f);
  lying_dims(&f, &l);

  int perm[MAX_PARTS], back[MAX_PARTS];
  int64_t d[MAX_PARTS];
  with_ones(&l, v);
  view_order(&l, perm);
  for (int i = 0; i < l.n; i++) {
    d[i] = l.size[perm[i]];
    back[perm[i]] = i;
  }
  if (cast.raw != v->dtype) value = ir_convert(g, value, cast.raw);
  value = ir_transpose(g, ir_reshape(g, value, l.n, d), back);
  if (view_covers(p)) {
    if (ir_failed(g)) return value;
    value = ir_reshape(g, value, cast.ndim[cast.n], cast.dims[cast.n]);
    return cast_back(g, &cast, value, NULL);
  }
  val x = cast_forward(g, &cast, base);
  if (!run(&c, &f, p, x, starts)) return c.x;
  value = ir_reshape(g, value, c.x->ndim, c.x->dims); /* a reshape to the parts' dims was never made */
  for (int i = c.nsteps - 1; i >= 0 && !ir_failed(g); i--) value = step_put(g, &c, &c.steps[i], value);
  return cast_back(g, &cast, value, base);
}

val view_rebase(ir_graph *g, val base, tpu_dtype dtype, int ndim, const int64_t *dims) {
  view_base b = {.dtype = (tpu_dtype)base->dtype, .ndim = base->ndim, .dims = base->dims};
  if (ir_failed(g)) return base;
  int64_t want = 1, have = ir_numel(base);
  for (int i = 0; i < ndim; i++) want *= dims[i];
  int64_t k = (int64_t)tpu_dtype_size(dtype) / (int64_t)tpu_dtype_size(b.dtype);
  int64_t flat[1];
  if (k > 1 && have % k) { /* the last element of the new dtype is there in part */
    base = pad_axis(g, ir_reshape(g, base, 1, &have), 0, k - have % k);
    have += k - have % k;
    flat[0] = have;
    b.ndim = 1;
    b.dims = flat;
  }
  view_cast cast;
  cast_plan(&b, dtype, &cast);
  val x = cast_forward(g, &cast, base);
  if (ir_failed(g)) return x;
  have = ir_numel(x);
  if (have != want) {
    bool rows = x->ndim == ndim && ndim > 0;
    for (int i = 1; rows && i < ndim; i++) rows = x->dims[i] == dims[i];
    if (!rows) x = ir_reshape(g, x, 1, &have);
    if (ir_failed(g)) return x;
    int64_t to = rows ? dims[0] : want;
    x = to > x->dims[0] ? pad_axis(g, x, 0, to - x->dims[0]) : slice_axis(g, x, 0, to);
  }
  return ir_convert(g, ir_reshape(g, x, ndim, dims), dtype);
}
