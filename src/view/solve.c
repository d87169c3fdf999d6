/* solve.c - from (sizes, strides, offset) to a plan. Runs on every eager call that has a view: no allocation, few
 * divisions, nothing is written but what the plan uses. */
#include "view/plan.h"

/* 32-bit division is several times cheaper than 64-bit on most CPUs, and most numbers are small. None is negative. */
static inline int64_t quo(int64_t a, int64_t b) { return (a | b) >> 32 ? a / b : (int64_t)((uint32_t)a / (uint32_t)b); }
static inline int64_t rem(int64_t a, int64_t b) { return (a | b) >> 32 ? a % b : (int64_t)((uint32_t)a % (uint32_t)b); }

bool view_is_whole(const view_base *b, const view_shape *v) {
  if (b->dtype != v->dtype || b->ndim != v->ndim || v->offset != 0) return false;
  int64_t dense = 1;
  bool strided = true;
  for (int i = v->ndim - 1; i >= 0; i--) {
    int64_t n = v->sizes[i];
    if (n != b->dims[i]) return false;
    if (n != 1 && v->strides[i] != dense) strided = false;
    dense *= n;
  }
  return strided || dense == 0;
}

int64_t view_needs(tpu_dtype base_dtype, const view_shape *v) {
  int64_t reach = v->offset, size = (int64_t)tpu_dtype_size(v->dtype), base = (int64_t)tpu_dtype_size(base_dtype);
  for (int i = 0; i < v->ndim; i++) {
    int64_t n = v->sizes[i], far;
    if (n == 0) return 0;
    if (__builtin_mul_overflow(n - 1, v->strides[i], &far) || __builtin_add_overflow(reach, far, &reach))
      return INT64_MAX;
  }
  int64_t bytes;
  if (base == 0 || __builtin_add_overflow(reach, 1, &reach) || __builtin_mul_overflow(reach, size, &bytes))
    return INT64_MAX;
  return bytes / base + (bytes % base != 0);
}

/* What matching works on. Everything innermost first, sizes of 1 and strides of 0 left out. */
typedef struct {
  view_plan *out;
  int nb, nv, nfactors;
  int64_t total; /* elements of the base, in the view's dtype */
  int64_t b[VIEW_MAX_DIMS];
  int64_t n[VIEW_MAX_DIMS], s[VIEW_MAX_DIMS];
  uint8_t dim[VIEW_MAX_DIMS];
  bool take;
} matching;

/* A group: the view dimensions inside one factor, in units of the factor's own stride. */
typedef struct {
  int at, ndims;        /* place of the factor's word; dimensions so far */
  int64_t top_n, top_m; /* the outermost dimension */
  int64_t below;        /* span of the others */
  int64_t span;
  bool take;
} group;

static inline void put_dim(view_plan *p, int64_t n, int64_t m, int dim) {
  p->words[p->nwords++] = n << 8 | (int64_t)dim << 1 | (m != 1);
  if (m != 1) p->words[p->nwords++] = m;
}

static inline void group_open(group *g, view_plan *p) {
  g->at = p->nwords++;
  g->ndims = 0;
  g->top_n = g->top_m = g->below = g->span = 1;
  g->take = false;
}

static inline void group_push(group *g, int64_t n, int64_t m) {
  if (g->ndims && m < g->span) g->take = true;
  g->ndims++;
  g->below = g->span;
  g->top_n = n;
  g->top_m = m;
  g->span += (n - 1) * m;
}

/* Ends the factor of size f. *q: the offset in units of the factor's stride, then of the next one's. False: the window
 * crosses the factor's end. */
static inline bool group_close(matching *k, group *g, int64_t f, int64_t *q) {
  view_plan *p = k->out;
  int64_t start = *q;
  if (start >= f) {
    *q = quo(start, f);
    start -= *q * f;
  } else {
    *q = 0;
  }
  if (start + g->span > f) return false;
  p->words[g->at] = f << 8 | (int64_t)g->ndims << 1 | g->take;
  if (g->span < f) p->starts[p->nstarts++] = start;
  if (g->take) k->take = true;
  k->nfactors++;
  return true;
}

static inline void put_select(matching *k, int64_t f, int64_t *q) {
  group g;
  group_open(&g, k->out);
  (void)group_close(k, &g, f, q); /* one element always fits */
}

/* Steps of at least this many elements that divide a dimension split it; smaller ones are strided slices (a last
 * dimension of a few elements is padded to 128 by TPUs). */
enum { SPLIT_STEP = 32 };

/* Walks the view's dimensions from the innermost outwards along the base's. False: no match. */
static bool match(matching *k, int64_t offset) {
  view_plan *p = k->out;
  int i = 0, j = 0;                                  /* next dimension of the view, of the base */
  int64_t cur = 1, left = j < k->nb ? k->b[j++] : 1; /* stride of the next factor, what is left of its dimension */
  int64_t q = offset;                                /* in units of cur */
  int64_t n = k->nv ? k->n[0] : 0, s = k->nv ? k->s[0] : 0;
  while (i < k->nv) {
    for (;;) { /* dimensions of the base in which the view does not move */
      int64_t up = cur * left;
      if (s < up || (s != up && rem(s, up))) break;
      if (left > 1) put_select(k, left, &q);
      cur = up;
      if (j == k->nb) return false;
      left = k->b[j++];
    }
    int64_t m = 1;
    if (s != cur) {
      m = quo(s, cur);
      if (m * cur != s) return false;
      if (m >= SPLIT_STEP && m < left && rem(left, m) == 0) {
        put_select(k, m, &q);
        left = quo(left, m);
        cur = s;
        m = 1;
      }
    }
    group g;
    group_open(&g, p);
    group_push(&g, n, m);
    int64_t f = left, close = 0, rest_n = 0, rest_s = 0;
    while (!close) {
      if (g.span > f) {
        /* rows that are full: what fits here, and the rest of the dimension in the next factor */
        int64_t per = g.take ? 0 : quo(f, g.top_m);
        if (per > 1 && per * g.top_m == f && rem(g.top_n, per) == 0 && rem(q, f) + (per - 1) * g.top_m + g.below <= f &&
            (i + 1 == k->nv || k->s[i + 1] >= n * s)) {
          rest_n = quo(g.top_n, per);
          rest_s = cur * f;
          g.top_n = per;
          g.span = (per - 1) * g.top_m + g.below;
          close = f;
          continue;
        }
        while (g.span > f) { /* merge */
          if (j == k->nb) return false;
          f *= k->b[j++];
        }
      }
      if (i + 1 == k->nv) {
        close = f;
        continue;
      }
      int64_t s2 = k->s[i + 1], up = cur * f;
      if (s2 >= up && (s2 == up || rem(s2, up) == 0)) {
        close = f;
        continue;
      }
      int64_t m2 = quo(s2, cur);
      if (m2 * cur != s2) return false;
      if (!g.take && s2 < up && m2 != g.top_n * g.top_m && g.span <= m2 && rem(f, m2) == 0 &&
          rem(q, m2) + g.span <= m2) {
        close = m2; /* split */
        continue;
      }
      put_dim(p, g.top_n, g.top_m, k->dim[i]);
      i++;
      n = k->n[i];
      s = s2;
      group_push(&g, n, m2);
    }
    put_dim(p, g.top_n, g.top_m, k->dim[i]);
    if (!group_close(k, &g, close, &q)) return false;
    cur *= close;
    if (close == f) left = j < k->nb ? k->b[j++] : 1;
    else left = quo(f, close);
    if (rest_n) {
      n = rest_n;
      s = rest_s;
    } else if (++i < k->nv) {
      n = k->n[i];
      s = k->s[i];
    }
  }
  if (left > 1) put_select(k, left, &q);
  while (j < k->nb) put_select(k, k->b[j++], &q);
  return true;
}

/* One factor: the flat base. Always works. */
static void match_flat(matching *k, int64_t offset) {
  group g;
  group_open(&g, k->out);
  for (int i = 0; i < k->nv; i++) {
    put_dim(k->out, k->n[i], k->s[i], k->dim[i]);
    group_push(&g, k->n[i], k->s[i]);
  }
  (void)group_close(k, &g, k->total, &offset); /* the caller checked the reach */
}

static int64_t gcd(int64_t a, int64_t b) {
  while (b) {
    int64_t t = a % b;
    a = b;
    b = t;
  }
  return a;
}

/* Two dimensions reach the same element by different steps. */
static bool pair_overlaps(const matching *k) {
  for (int i = 0; i < k->nv; i++) {
    for (int j = i + 1; j < k->nv; j++) {
      int64_t d = gcd(k->s[i], k->s[j]);
      if (k->s[j] / d < k->n[i] && k->s[i] / d < k->n[j]) return true;
    }
  }
  return false;
}

static tpu_err *bad_shape(const view_shape *v) {
  if (v->ndim < 0 || v->ndim > VIEW_MAX_DIMS)
    return err_new(TPU_ERR_RUNTIME, "only tensors with up to %d dims are supported, got one of %d", VIEW_MAX_DIMS,
                   v->ndim);
  if (v->offset < 0)
    return err_new(TPU_ERR_RUNTIME, "a view's storage offset is %lld: it must not be negative", (long long)v->offset);
  for (int i = 0; i < v->ndim; i++) {
    if (v->sizes[i] < 0 || v->strides[i] < 0)
      return err_new(TPU_ERR_RUNTIME, "a view's dimension %d has size %lld and stride %lld: neither may be negative", i,
                     (long long)v->sizes[i], (long long)v->strides[i]);
  }
  return NULL;
}

static tpu_err *past_end(const view_base *b, const view_shape *v, int64_t total) {
  int64_t needs = view_needs(v->dtype, v);
  return err_new(TPU_ERR_RUNTIME,
                 "a view reaches element %lld of its storage, which holds %lld elements of %s (kept as %s)",
                 (long long)(needs - 1), (long long)total, tpu_dtype_name(v->dtype), tpu_dtype_name(b->dtype));
}

/* The base's dimensions after a change of dtype, innermost first. Out of line: needs a big frame. */
static __attribute__((noinline)) void base_cast_dims(const view_base *b, const view_shape *v, matching *k) {
  view_cast c;
  cast_plan(b, v->dtype, &c);
  k->total = 1;
  k->nb = 0;
  for (int i = c.ndim[c.n] - 1; i >= 0; i--) {
    int64_t d = c.dims[c.n][i];
    k->total *= d;
    if (d != 1 && k->nb < VIEW_MAX_DIMS) k->b[k->nb++] = d;
  }
}

tpu_err *view_solve(const view_base *b, const view_shape *v, view_plan *out) {
  out->nwords = 1;
  out->nstarts = 0;
  out->start_dtype = TPU_I32;
  out->overlaps = false;
  if (view_is_whole(b, v)) {
    out->words[0] = PLAN_WHOLE | PLAN_COVERS;
    return NULL;
  }
  if (b->ndim < 0 || b->ndim > VIEW_MAX_DIMS)
    return err_new(TPU_ERR_RUNTIME, "a storage's value has %d dimensions: at most %d are supported", b->ndim,
                   VIEW_MAX_DIMS);
  size_t base_size = tpu_dtype_size(b->dtype), size = tpu_dtype_size(v->dtype);
  if (!base_size || !size)
    return err_new(TPU_ERR_RUNTIME,
                   "a view as dtype number %d of a value of dtype number %d: not dtypes of this device", (int)v->dtype,
                   (int)b->dtype);
  matching k;
  k.out = out;
  k.nb = k.nv = k.nfactors = 0;
  k.take = false;
  k.total = 1;
  int64_t base_total = 1;
  for (int i = b->ndim - 1; i >= 0; i--) {
    int64_t d = b->dims[i];
    if (d != 1) k.b[k.nb++] = d;
    if (d < 0 || __builtin_mul_overflow(base_total, d, &base_total) || base_total > PLAN_MAX_ELEMENTS / 16)
      return err_new(TPU_ERR_RUNTIME, "a storage's value has dimension %d of size %lld: negative or too large", i,
                     (long long)d);
  }
  k.total = base_total;
  if (b->dtype != v->dtype) base_cast_dims(b, v, &k);

  /* the view's dimensions by ascending stride (stable), and how far they reach */
  int64_t reach = v->offset, count = 1;
  bool bad = v->offset < 0 || v->ndim > VIEW_MAX_DIMS || v->ndim < 0, past = false;
  for (int i = bad ? -1 : v->ndim - 1; i >= 0; i--) {
    int64_t n = v->sizes[i], s = v->strides[i], far;
    if (n == 1) continue;
    bad |= n < 0 || s < 0;
    if (n <= 0) {
      count = 0;
      continue;
    }
    if (s == 0) {
      out->overlaps = true;
      continue;
    }
    past |= __builtin_mul_overflow(n - 1, s, &far) || __builtin_add_overflow(reach, far, &reach);
    int at = k.nv++;
    for (; at > 0 && k.s[at - 1] > s; at--) {
      k.n[at] = k.n[at - 1];
      k.s[at] = k.s[at - 1];
      k.dim[at] = k.dim[at - 1];
    }
    k.n[at] = n;
    k.s[at] = s;
    k.dim[at] = (uint8_t)i;
  }
  if (bad) return bad_shape(v);
  if (count == 0) {
    out->words[0] = PLAN_EMPTY;
    out->overlaps = false;
    return NULL;
  }
  if (past || reach >= k.total) return past_end(b, v, k.total);
  if (!match(&k, v->offset)) {
    out->nwords = 1;
    out->nstarts = 0;
    k.nfactors = 0;
    k.take = false;
    match_flat(&k, v->offset);
  }
  if (k.take && pair_overlaps(&k)) out->overlaps = true;
  int64_t w = PLAN_FACTORS | (int64_t)k.nfactors << PLAN_FACTOR_SHIFT;
  if (k.total > INT32_MAX) {
    out->start_dtype = TPU_I64;
    w |= PLAN_START64;
  }
  if (!out->overlaps && !k.take) { /* no element twice: the product is at most total */
    for (int i = 0; i < k.nv; i++) count *= k.n[i];
    if (count == k.total && k.total * (int64_t)size == base_total * (int64_t)base_size) w |= PLAN_COVERS;
  }
  out->words[0] = w;
  return NULL;
}

bool view_covers(const view_plan *p) { return (p->words[0] & PLAN_COVERS) != 0; }
