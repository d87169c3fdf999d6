/* Resizing the last one to three dims: nearest, nearest-exact, linear, cubic, and the antialiased filters.
 *
 * Every method is separable, and along one dim each output is a weighted sum of a few inputs, `taps` of them. Places
 * and weights are computed here, in the precision that PyTorch computes them in (float; double for float64), and go
 * into the program as small constants. Forward takes the taps; backward is a product with the same weights as a matrix.
 *
 * Images of bytes in two dims are computed in whole numbers, as PyTorch's CPU kernels do: weights from doubles, made
 * multiples of 2^-shift that fit 16 bits, and each dim's result rounded to a byte before the next.
 */
#include <math.h>

#include "ops/along.h"

typedef enum { NEAREST, NEAREST_EXACT, LINEAR, CUBIC, AA_LINEAR, AA_CUBIC, AA_LANCZOS } method;

/* Output o of n is the sum over t of weight[o * taps + t] * input[place[o * taps + t]]. */
typedef struct {
  int64_t in, n;
  int taps;
  int shift; /* > 0: the weights are whole numbers, to be divided by 2^shift */
  int64_t *place;
  double *weight;
} plan;

static double rounded(bool wide, double x) { return wide ? x : (double)(float)x; }
#define R(x) rounded(wide, x)

static double linear(double x) {
  x = fabs(x);
  return x < 1 ? 1 - x : 0;
}

/* Keys' kernel */
static double cubic(double x, double a) {
  x = fabs(x);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return (((x - 5) * x + 8) * x - 4) * a;
  return 0;
}

static double sinc(double x) { return x == 0 ? 1 : sin(M_PI * x) / (M_PI * x); }
static double lanczos3(double x) { return x > -3 && x < 3 ? sinc(x) * sinc(x / 3) : 0; }

static double filter(method k, double x) {
  return k == AA_LINEAR ? linear(x) : k == AA_CUBIC ? cubic(x, -0.5) : lanczos3(x);
}

static bool allocate(op_ctx *c, plan *p) {
  size_t n = (size_t)p->n * (size_t)p->taps;
  p->place = arena_alloc(ir_arena(G), n * sizeof *p->place + 1);
  p->weight = arena_alloc(ir_arena(G), n * sizeof *p->weight + 1);
  if (p->place && p->weight) return true;
  op_fail(c, TPU_ERR_RUNTIME, "out of memory");
  return false;
}

/* The step between source coordinates; scale: what the user gave, 0 for nothing. */
static double step_of(bool wide, int64_t in, int64_t n, bool align, double scale) {
  if (align) return n > 1 ? R(R((double)(in - 1)) / (double)(n - 1)) : 0;
  return scale > 0 ? R(1.0 / scale) : R(R((double)in) / (double)n);
}

static void nearest(plan *p, bool exact, double scale) {
  const bool wide = false; /* PyTorch has float here for every dtype */
  double step = step_of(wide, p->in, p->n, false, scale);
  for (int64_t o = 0; o < p->n; o++) {
    int64_t at;
    if (!exact && p->n == p->in) at = o;
    else if (!exact && p->n == 2 * p->in) at = o >> 1;
    else at = (int64_t)floor(R(R((double)o + (exact ? 0.5 : 0)) * step));
    p->place[o] = at < p->in ? at : p->in - 1;
    p->weight[o] = 1;
  }
}

static void antialiased(op_ctx *c, plan *p, method k, bool wide, bool align, double scale) {
  double step = step_of(wide, p->in, p->n, align, scale);
  double half = k == AA_LINEAR ? 1 : k == AA_CUBIC ? 2 : 3, support = step >= 1 ? R(half * step) : half;
  double inverse = step >= 1 ? R(1 / step) : 1;
  p->taps = (int)ceil(support) * 2 + 1;
  if (!allocate(c, p)) return;
  for (int64_t o = 0; o < p->n; o++) {
    double center = R(step * ((double)o + 0.5)), total = 0;
    int64_t low = (int64_t)R(R(center - support) + 0.5), high = (int64_t)R(R(center + support) + 0.5);
    if (low < 0) low = 0;
    if (high > p->in) high = p->in;
    for (int t = 0; t < p->taps; t++) {
      bool there = low + t < high;
      double w = there ? R(filter(k, R(R((double)(t + low) - center + 0.5) * inverse))) : 0;
      p->place[o * p->taps + t] = low + t < p->in ? low + t : p->in - 1;
      p->weight[o * p->taps + t] = w;
      total += w;
    }
    for (int t = 0; t < p->taps && total != 0; t++) p->weight[o * p->taps + t] = R(p->weight[o * p->taps + t] / total);
  }
}

static void interpolated(plan *p, method k, bool wide, bool align, double scale) {
  double step = step_of(wide, p->in, p->n, align, scale);
  for (int64_t o = 0; o < p->n; o++) {
    double x = align ? R(step * (double)o) : R(R(step * ((double)o + 0.5)) - 0.5);
    int64_t *at = p->place + o * p->taps;
    double *w = p->weight + o * p->taps;
    if (k == LINEAR) {
      if (x < 0) x = 0;
      if (p->n == p->in) x = (double)o;
      int64_t i = (int64_t)x;
      if (i > p->in - 1) i = p->in - 1;
      double f = R(x - (double)i);
      if (f > 1) f = 1;
      at[0] = i;
      at[1] = i + (i < p->in - 1);
      w[0] = R(1 - f);
      w[1] = f;
      continue;
    }
    double i = floor(x), f = R(x - i);
    for (int t = 0; t < 4; t++) {
      int64_t j = (int64_t)i + t - 1;
      at[t] = j < 0 ? 0 : j >= p->in ? p->in - 1 : j;
      w[t] = R(cubic(t == 0 ? f + 1 : t == 1 ? f : t == 2 ? 1 - f : 2 - f, -0.75));
    }
  }
}

static bool make_plan(op_ctx *c, plan *p, method k, bool wide, int64_t in, int64_t n, bool align, double scale) {
  *p = (plan){.in = in, .n = n, .taps = k == LINEAR ? 2 : k == CUBIC ? 4 : 1};
  if (k >= AA_LINEAR) {
    antialiased(c, p, k, wide, align, scale);
    return !ir_failed(G);
  }
  if (!allocate(c, p)) return false;
  if (k == NEAREST || k == NEAREST_EXACT) nearest(p, k == NEAREST_EXACT, scale);
  else interpolated(p, k, wide, align, scale);
  return true;
}

/* Makes the weights whole. Taps that the border brought to one place are one weight first. */
static void make_whole(plan *p) {
  double most = 0;
  for (int64_t o = 0; o < p->n; o++) {
    const int64_t *at = p->place + o * p->taps;
    double *w = p->weight + o * p->taps;
    for (int t = 1; t < p->taps; t++)
      for (int s = 0; s < t; s++)
        if (at[s] == at[t]) {
          w[s] += w[t];
          w[t] = 0;
          break;
        }
    for (int t = 0; t < p->taps; t++) most = fmax(most, w[t]);
  }
  while (p->shift < 22 && (int)(0.5 + most * (double)(1 << (p->shift + 1))) < 1 << 15) p->shift++;
  for (int64_t i = 0; i < p->n * p->taps; i++) p->weight[i] = round(p->weight[i] * (double)(1 << p->shift));
}

/* Places or weights of tap t as a constant of n numbers. */
static val tap_places(op_ctx *c, const plan *p, int t) {
  int64_t *v = arena_alloc(ir_arena(G), (size_t)p->n * sizeof *v + 1);
  for (int64_t o = 0; v && o < p->n; o++) v[o] = p->place[o * p->taps + t];
  return v ? ir_const_ints(G, TPU_I32, v, 1, &p->n) : op_fail(c, TPU_ERR_RUNTIME, "out of memory");
}
static val tap_weights(op_ctx *c, const plan *p, int t, tpu_dtype d) {
  double *v = arena_alloc(ir_arena(G), (size_t)p->n * sizeof *v + 1);
  for (int64_t o = 0; v && o < p->n; o++) v[o] = p->weight[o * p->taps + t];
  if (v && p->shift) {
    int64_t *whole = arena_alloc(ir_arena(G), (size_t)p->n * sizeof *whole + 1);
    for (int64_t o = 0; whole && o < p->n; o++) whole[o] = (int64_t)v[o];
    if (whole) return ir_const_ints(G, d, whole, 1, &p->n);
  }
  return v ? ir_const_floats(G, d, v, 1, &p->n) : op_fail(c, TPU_ERR_RUNTIME, "out of memory");
}

static val along(op_ctx *c, val v, int ndim, int d) {
  int64_t dims[T_MAX_DIMS];
  for (int i = 0; i < ndim; i++) dims[i] = i == d ? ir_numel(v) : 1;
  return t_reshape(c, v, ndim, dims);
}

/* n / in when every input stands for that many outputs in a row, else 0. */
static int64_t repeats(const plan *p) {
  if (p->taps != 1 || p->n % p->in) return 0;
  int64_t r = p->n / p->in;
  for (int64_t o = 0; o < p->n; o++)
    if (p->place[o] != o / r) return 0;
  return r;
}

/* x's dim d split in [in, r] */
static void split_dims(val x, int d, int64_t in, int64_t r, int64_t *dims) {
  for (int i = 0; i < x->ndim; i++) dims[i > d ? i + 1 : i] = x->dims[i];
  dims[d] = in;
  dims[d + 1] = r;
}

/* The weights as a matrix [n, in]. */
static val matrix(op_ctx *c, const plan *p, tpu_dtype d) {
  const int64_t dims[2] = {p->n, p->in};
  val column = t_iota(c, TPU_I32, 2, dims, 1), sum = NULL;
  for (int t = 0; t < p->taps && !ir_failed(G); t++) {
    val here = ir_compare(G, IR_EQ, column, t_broadcast_to(c, t_unsqueeze(c, tap_places(c, p, t), 1), 2, dims));
    val w = t_broadcast_to(c, t_unsqueeze(c, tap_weights(c, p, t, d), 1), 2, dims);
    val part = ir_select(G, here, w, t_zeros(c, d, 2, dims));
    sum = sum ? ir_binary(G, IR_ADD, sum, part) : part;
  }
  return sum ? sum : column;
}

/* x's dim d times the matrix: over its outputs (forward) or its inputs. Always in full precision: these are
 * coordinates. */
static val product(op_ctx *c, const plan *p, val x, int d, bool forward) {
  val m = matrix(c, p, (tpu_dtype)x->dtype);
  if (ir_failed(G)) return x;
  int k = forward ? 1 : 0, perm[T_MAX_DIMS];
  val y = ir_dot(G, x, m, 0, NULL, NULL, 1, &d, &k, (tpu_dtype)x->dtype, 0); /* the new dim comes last */
  for (int i = 0; i < x->ndim; i++) perm[i] = i < d ? i : i == d ? x->ndim - 1 : i - 1;
  return t_permute(c, y, perm);
}

/* On a TPU a dim of r beside another one is a copy of padded tiles; sums of windows do without it. Forward: of x with
 * r - 1 holes between its elements, so that each window has one element (-0 changes none); backward: of r neighbours.
 */
static bool by_windows(op_ctx *c, val x) { return op_for_tpu(c) && x->dtype != TPU_BOOL && !ir_failed(G); }
static val repeated(op_ctx *c, val x, int first, int n, const int64_t *r, bool forward) {
  int64_t size[T_MAX_DIMS], step[T_MAX_DIMS], around[T_MAX_DIMS] = {0};
  for (int d = 0; d < x->ndim; d++) {
    size[d] = step[d] = d >= first && d < first + n ? r[d - first] : 1;
    around[d] = size[d] - 1;
  }
  const ir_window w = {.size = size,
                       .stride = forward ? NULL : step,
                       .base_dilation = forward ? step : NULL,
                       .pad_low = forward ? around : NULL,
                       .pad_high = forward ? around : NULL};
  tpu_dtype t = (tpu_dtype)x->dtype;
  return ir_reduce_window(G, IR_ADD, x, ir_is_float(t) ? ir_const_f(G, t, -0.0, 0, NULL) : t_scalar(c, t, 0), &w);
}

static val resize(op_ctx *c, const plan *p, val x, int d) {
  int64_t r = repeats(p);
  if (r == 1) return x;
  if (r && by_windows(c, x)) return repeated(c, x, d, 1, &r, true);
  if (r) {
    int64_t dims[T_MAX_DIMS];
    int map[T_MAX_DIMS];
    split_dims(x, d, p->in, r, dims);
    for (int i = 0; i < x->ndim; i++) map[i] = i > d ? i + 1 : i;
    val wide = ir_broadcast(G, x, x->ndim + 1, dims, map);
    for (int i = 0; i < x->ndim; i++) dims[i] = i == d ? p->n : x->dims[i];
    return t_reshape(c, wide, x->ndim, dims);
  }
  if (p->taps == 1) return t_take(c, x, d, tap_places(c, p, 0));
  if (p->taps > 4) return product(c, p, x, d, true);
  val sum = NULL;
  for (int t = 0; t < p->taps && !ir_failed(G); t++) {
    val w = along(c, tap_weights(c, p, t, (tpu_dtype)x->dtype), x->ndim, d),
        part = t_mul(c, t_take(c, x, d, tap_places(c, p, t)), w);
    sum = sum ? t_add(c, sum, part) : part;
  }
  return sum;
}

/* x: int32. The weights' sum times x, rounded to a byte. */
static val resize_whole(op_ctx *c, const plan *p, val x, int d) {
  val y = resize(c, p, x, d);
  if (ir_failed(G)) return y;
  y = ir_binary(G, IR_SHR_A, t_add(c, y, t_like(c, y, 1 << (p->shift - 1))), t_like(c, y, p->shift));
  return t_min(c, t_max(c, y, t_like(c, y, 0)), t_like(c, y, 255));
}

static val resize_back(op_ctx *c, const plan *p, val g, int d) {
  int64_t r = repeats(p), dims[T_MAX_DIMS];
  if (r == 1) return g;
  if (!r) return product(c, p, g, d, false);
  split_dims(g, d, p->in, r, dims);
  return t_sum(c, t_reshape(c, g, g->ndim + 1, dims), (int[]){d + 1}, 1, false);
}

static bool is_nearest(method k) { return k == NEAREST || k == NEAREST_EXACT; }

/* (self, output_size, [align_corners,] scales...) */
static void upsample(op_ctx *c, int n, method k) {
  val x = T(0), y;
  int count, at = is_nearest(k) ? 2 : 3;
  const int64_t *size = op_ints(c, 1, &count);
  if (ir_failed(G) || count != n || x->ndim != n + 2) {
    op_fail(c, TPU_ERR_RUNTIME, "It is expected input_size equals to %d, but got size %d", n + 2, x->ndim);
    return;
  }
  bool align = at == 3 && INT(2), whole = x->dtype == TPU_U8 && n == 2 && !is_nearest(k);
  bool wide = x->dtype == TPU_F64 || whole;
  tpu_dtype d = (tpu_dtype)x->dtype, m = is_nearest(k) ? d : ir_is_float(d) ? t_opmath(d) : whole ? TPU_I32 : TPU_F32;
  y = t_cast(c, x, m);
  bool empty = ir_numel(x) == 0;
  int64_t dims[T_MAX_DIMS] = {x->dims[0], x->dims[1]};
  for (int i = n - 1; i >= 0; i--) {
    plan p;
    dims[i + 2] = size[i];
    if (size[i] < 1 || x->dims[i + 2] < 1)
      op_fail(c, TPU_ERR_RUNTIME, "Input and output sizes should be greater than 0");
    if (ir_failed(G) || !make_plan(c, &p, k, wide, x->dims[i + 2], size[i], align, op_const_or(c, at + i, 0))) return;
    if (empty) continue;
    if (whole) make_whole(&p);
    y = whole ? resize_whole(c, &p, y, i + 2) : resize(c, &p, y, i + 2);
  }
  if (empty) y = t_zeros(c, m, n + 2, dims);
  if (!ir_is_float(d) && m == TPU_F32) { /* 8-bit images: rounded and kept in range */
    y = ir_unary(G, IR_ROUND_EVEN, y);
    if (d == TPU_U8) y = t_min(c, t_max(c, y, t_like(c, y, 0)), t_like(c, y, 255));
  }
  RET(y);
}

/* (grad_output, output_size, input_size, [align_corners,] scales...) */
static void upsample_backward(op_ctx *c, int n, method k) {
  val g = T(0);
  int count, at = is_nearest(k) ? 3 : 4;
  const int64_t *in = op_ints(c, 2, &count);
  if (ir_failed(G) || count != n + 2 || g->ndim != n + 2) {
    op_fail(c, TPU_ERR_RUNTIME, "Expected grad_output and input_size to have %d dimensions", n + 2);
    return;
  }
  bool align = at == 4 && INT(3), wide = g->dtype == TPU_F64;
  tpu_dtype m = ir_is_float((tpu_dtype)g->dtype) ? t_opmath((tpu_dtype)g->dtype) : TPU_F32;
  if (ir_numel(g) == 0) {
    RET(t_zeros(c, m, count, in));
    return;
  }
  val y = t_cast(c, g, m);
  plan p[3];
  int64_t r[3];
  bool repeats_all = true;
  for (int i = 0; i < n; i++) {
    if (ir_failed(G) || !make_plan(c, &p[i], k, wide, in[i + 2], g->dims[i + 2], align, op_const_or(c, at + i, 0)))
      return;
    r[i] = repeats(&p[i]);
    repeats_all &= r[i] > 0;
  }
  if (repeats_all && by_windows(c, y)) y = repeated(c, y, 2, n, r, false);
  else
    for (int i = 0; i < n; i++) y = resize_back(c, &p[i], y, i + 2);
  RET(y);
}

#define UPSAMPLE(id, name, n, k)               \
  OP(id, "aten::" name) { upsample(c, n, k); } \
  OP(id##_backward, "aten::" name "_backward") { upsample_backward(c, n, k); }

UPSAMPLE(nearest1d, "upsample_nearest1d", 1, NEAREST)
UPSAMPLE(nearest2d, "upsample_nearest2d", 2, NEAREST)
UPSAMPLE(nearest3d, "upsample_nearest3d", 3, NEAREST)
UPSAMPLE(nearest_exact1d, "_upsample_nearest_exact1d", 1, NEAREST_EXACT)
UPSAMPLE(nearest_exact2d, "_upsample_nearest_exact2d", 2, NEAREST_EXACT)
UPSAMPLE(nearest_exact3d, "_upsample_nearest_exact3d", 3, NEAREST_EXACT)
UPSAMPLE(linear1d, "upsample_linear1d", 1, LINEAR)
UPSAMPLE(bilinear2d, "upsample_bilinear2d", 2, LINEAR)
UPSAMPLE(trilinear3d, "upsample_trilinear3d", 3, LINEAR)
UPSAMPLE(bicubic2d, "upsample_bicubic2d", 2, CUBIC)
UPSAMPLE(bilinear2d_aa, "_upsample_bilinear2d_aa", 2, AA_LINEAR)
UPSAMPLE(bicubic2d_aa, "_upsample_bicubic2d_aa", 2, AA_CUBIC)
UPSAMPLE(lanczos2d_aa, "_upsample_lanczos2d_aa", 2, AA_LANCZOS)
