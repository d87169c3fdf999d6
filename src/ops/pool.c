/* Pooling over the last two or three dims, batch or no batch.
 *
 * Small windows are spelled out: one strided slice for each place in the window, joined element by element, which XLA
 * fuses into one loop; the gradient is the same backwards. Large ones are a reduce_window, and a scatter backwards. */
#include <string.h>

#include "ops/along.h"

enum { MAX_SPATIAL = 3, SPELLED_OUT = 64 };

typedef struct {
  int n, first; /* spatial dims, and the first of them in x */
  int64_t k[MAX_SPATIAL], stride[MAX_SPATIAL], pad[MAX_SPATIAL], dilation[MAX_SPATIAL];
  int64_t in[MAX_SPATIAL], out[MAX_SPATIAL];
  int64_t places; /* in a window */
} window;

static bool read_list(op_ctx *c, int arg, int64_t *out, int want, const int64_t *absent) {
  int n;
  const int64_t *v = op_ints(c, arg, &n);
  if (n == 0 && absent) {
    memcpy(out, absent, (size_t)want * sizeof *out);
    return true;
  }
  if (n != 1 && n != want) {
    op_fail(c, TPU_ERR_RUNTIME, "pooling: expected one number or %d in argument %d, got %d", want, arg, n);
    return false;
  }
  for (int i = 0; i < want; i++) out[i] = v[n == 1 ? 0 : i];
  return true;
}

/* kernel_size, stride, padding (and dilation if dilation_arg >= 0) from argument `at` on. */
static bool read_window(op_ctx *c, val x, int n, int at, int dilation_arg, bool ceil_mode, window *q) {
  if (ir_failed(G)) return false;
  if (x->ndim < n + 1) {
    op_fail(c, TPU_ERR_RUNTIME, "pooling over %d dims: expected at least %d dimensions, got %d", n, n + 1, x->ndim);
    return false;
  }
  static const int64_t ones[MAX_SPATIAL] = {1, 1, 1};
  q->n = n;
  q->first = x->ndim - n;
  q->places = 1;
  if (!read_list(c, at, q->k, n, NULL) || !read_list(c, at + 1, q->stride, n, q->k) ||
      !read_list(c, at + 2, q->pad, n, NULL))
    return false;
  if (dilation_arg < 0) memcpy(q->dilation, ones, sizeof ones);
  else if (!read_list(c, dilation_arg, q->dilation, n, ones)) return false;
  for (int i = 0; i < n; i++) {
    if (q->k[i] < 1 || q->stride[i] < 1 || q->dilation[i] < 1 || q->pad[i] < 0 ||
        q->pad[i] > (q->dilation[i] * (q->k[i] - 1) + 1) / 2) {
      op_fail(c, TPU_ERR_RUNTIME,
              "pad should be at most half of effective kernel size, and sizes, strides and dilations above 0");
      return false;
    }
    int64_t in = q->in[i] = x->dims[q->first + i], s = q->stride[i];
    int64_t left = in + 2 * q->pad[i] - q->dilation[i] * (q->k[i] - 1) - 1 + (ceil_mode ? s - 1 : 0);
    q->out[i] = (left >= 0 ? left / s : -((-left + s - 1) / s)) + 1;
    if (ceil_mode && (q->out[i] - 1) * s >= in + q->pad[i]) q->out[i]--;
    if (q->out[i] < 1) {
      op_fail(c, TPU_ERR_RUNTIME, "pooling: Output size is too small: %lld from %lld", (long long)q->out[i],
              (long long)in);
      return false;
    }
    q->places *= q->k[i];
  }
  return true;
}

/* x's dims with the spatial ones replaced. */
static void with_spatial(val x, const window *q, const int64_t *spatial, int64_t *dims) {
  memcpy(dims, x->dims, (size_t)x->ndim * sizeof *dims);
  for (int i = 0; i < q->n; i++) dims[q->first + i] = spatial[i];
}

/* x with `value` around it, so that every place of every window exists. */
static val padded(op_ctx *c, val x, const window *q, val value) {
  int64_t low[T_MAX_DIMS] = {0}, high[T_MAX_DIMS] = {0}, inside[T_MAX_DIMS] = {0};
  for (int i = 0; i < q->n; i++) {
    int64_t need = (q->out[i] - 1) * q->stride[i] + q->dilation[i] * (q->k[i] - 1) + 1 - q->pad[i] - q->in[i];
    low[q->first + i] = q->pad[i];
    high[q->first + i] = need > 0 ? need : 0;
  }
  return ir_pad(G, x, value, low, high, inside);
}

/* The elements at place `at` of every window of a padded x. */
static val place(op_ctx *c, val x, const window *q, const int64_t *at) {
  int64_t start[T_MAX_DIMS], limit[T_MAX_DIMS], step[T_MAX_DIMS];
  for (int d = 0; d < x->ndim; d++) {
    start[d] = 0;
    limit[d] = x->dims[d];
    step[d] = 1;
  }
  for (int i = 0; i < q->n; i++) {
    int d = q->first + i;
    start[d] = at[i] * q->dilation[i];
    step[d] = q->stride[i];
    limit[d] = start[d] + (q->out[i] - 1) * step[d] + 1;
  }
  return ir_slice(G, x, start, limit, step);
}

/* Gradients of window places put back: g[o] goes to o * stride - pad + at * dilation; the rest is 0. */
static val put_back(op_ctx *c, val g, const window *q, const int64_t *at) {
  int64_t low[T_MAX_DIMS] = {0}, high[T_MAX_DIMS] = {0}, inside[T_MAX_DIMS] = {0};
  for (int i = 0; i < q->n; i++) {
    int d = q->first + i;
    low[d] = at[i] * q->dilation[i] - q->pad[i];
    inside[d] = q->stride[i] - 1;
    high[d] = q->in[i] - low[d] - ((q->out[i] - 1) * q->stride[i] + 1);
  }
  return ir_pad(G, g, t_scalar(c, (tpu_dtype)g->dtype, 0), low, high, inside);
}

/* Place number p of the window, row-major. */
static void place_of(const window *q, int64_t p, int64_t *at) {
  for (int i = q->n - 1; i >= 0; i--) {
    at[i] = p % q->k[i];
    p /= q->k[i];
  }
}

/* ---- positions --------------------------------------------------------------------------------------------------- */

static tpu_dtype position_dtype(const window *q) {
  int64_t n = 1;
  for (int i = 0; i < q->n; i++) n *= q->in[i] + 2 * (q->pad[i] + q->k[i] * q->dilation[i]);
  return t_index_dtype(n);
}

/* Where the windows start along spatial dim i (pads counted), with size 1 in x's other dims. */
static val starts(op_ctx *c, val x, const window *q, int i, tpu_dtype d) {
  val o = t_iota_dim(c, d, x->ndim, q->first + i, q->out[i]);
  o = t_mul(c, o, ir_const_i(G, d, q->stride[i], o->ndim, o->dims));
  return t_sub(c, o, ir_const_i(G, d, q->pad[i], o->ndim, o->dims));
}

/* The position in the plane of coordinates v[0..n), which broadcast. */
static val position(op_ctx *c, const window *q, const val *v) {
  val p = v[0];
  for (int i = 1; i < q->n && !ir_failed(G); i++)
    p = t_add(c, t_mul(c, p, ir_const_i(G, (tpu_dtype)p->dtype, q->in[i], p->ndim, p->dims)), v[i]);
  return p;
}

/* The position of place `at` of every window. */
static val place_position(op_ctx *c, val x, const window *q, const int64_t *at, tpu_dtype d) {
  val v[MAX_SPATIAL];
  for (int i = 0; i < q->n; i++) {
    v[i] = starts(c, x, q, i, d);
    v[i] = t_add(c, v[i], ir_const_i(G, d, at[i] * q->dilation[i], v[i]->ndim, v[i]->dims));
  }
  return position(c, q, v);
}

/* The first position inside x of every window. */
static val first_position(op_ctx *c, val x, const window *q, tpu_dtype d) {
  val v[MAX_SPATIAL];
  for (int i = 0; i < q->n && !ir_failed(G); i++) {
    val s = starts(c, x, q, i, d), zero = t_like(c, s, 0), step = ir_const_i(G, d, q->dilation[i], s->ndim, s->dims);
    val short_by = t_max(c, t_neg(c, s), zero); /* up to the next multiple of the dilation */
    val skip = t_mul(
        c, t_binary(c, IR_DIV, t_add(c, short_by, ir_const_i(G, d, q->dilation[i] - 1, s->ndim, s->dims)), step), step);
    v[i] = t_add(c, s, skip);
  }
  return position(c, q, v);
}

/* ---- max --------------------------------------------------------------------------------------------------------- */

static val lowest(op_ctx *c, val x) { return ir_const_min(G, (tpu_dtype)x->dtype, 0, NULL); }

/* Value and position of the largest: the first one, but the last NaN. */
static void max_spelled_out(op_ctx *c, val x, const window *q, val *value, val *index) {
  int64_t dims[T_MAX_DIMS], at[MAX_SPATIAL];
  tpu_dtype d = position_dtype(q);
  with_spatial(x, q, q->out, dims);
  val p = padded(c, x, q, lowest(c, x));
  val best = ir_const_min(G, (tpu_dtype)x->dtype, x->ndim, dims),
      where = t_broadcast_to(c, first_position(c, x, q, d), x->ndim, dims);
  for (int64_t k = 0; k < q->places && !ir_failed(G); k++) {
    place_of(q, k, at);
    val y = place(c, p, q, at), take = ir_compare(G, IR_GT, y, best), nan = t_is_nan(c, y);
    if (nan) take = t_or(c, take, nan);
    best = ir_select(G, take, y, best);
    where = ir_select(G, take, t_broadcast_to(c, place_position(c, x, q, at, d), x->ndim, dims), where);
  }
  *value = best;
  *index = where;
}

static void max_window(op_ctx *c, val x, const window *q, val *value, val *index) {
  tpu_dtype d = position_dtype(q);
  int64_t size[T_MAX_DIMS], step[T_MAX_DIMS], dilation[T_MAX_DIMS], total = 1;
  val v[MAX_SPATIAL];
  for (int i = 0; i < x->ndim; i++) size[i] = step[i] = dilation[i] = 1;
  for (int i = 0; i < q->n; i++) {
    size[q->first + i] = q->k[i];
    step[q->first + i] = q->stride[i];
    dilation[q->first + i] = q->dilation[i];
    v[i] = t_iota_dim(c, d, x->ndim, q->first + i, q->in[i]);
    total *= q->in[i];
  }
  val none = ir_const_i(G, d, total, 0, NULL), low = lowest(c, x);
  val xs[2] = {padded(c, x, q, low), padded(c, t_broadcast_to(c, position(c, q, v), x->ndim, x->dims), q, none)};
  ir_window w = {.size = size, .stride = step, .window_dilation = dilation};
  val b[4], out[2];
  ir_reduce_window_begin(G, xs, (const val[]){low, none}, 2, &w, b);
  val nan0 = t_is_nan(c, b[0]), nan2 = t_is_nan(c, b[2]);
  val earlier = ir_compare(G, IR_LT, b[3], b[1]), tie = ir_binary(G, IR_AND, ir_compare(G, IR_EQ, b[2], b[0]), earlier);
  val take = ir_binary(G, IR_OR, ir_compare(G, IR_GT, b[2], b[0]), tie);
  if (nan0) { /* the later NaN wins, and any NaN over a number */
    val later = ir_binary(G, IR_OR, ir_unary(G, IR_NOT, nan0), ir_unary(G, IR_NOT, earlier));
    take = ir_select(G, nan2, later, ir_binary(G, IR_AND, take, ir_unary(G, IR_NOT, nan0)));
  }
  ir_reduce_window_end(G, (const val[]){ir_select(G, take, b[2], b[0]), ir_select(G, take, b[3], b[1])}, out);
  *value = out[0];
  *index = out[1];
}

/* The windows for XLA; the rank's numbers are in `room`, which holds five lists. Padding is what it makes of x's edges.
 */
static ir_window xla_window(val x, const window *q, int64_t (*room)[T_MAX_DIMS]) {
  for (int d = 0; d < x->ndim; d++) {
    room[0][d] = room[1][d] = room[2][d] = 1;
    room[3][d] = room[4][d] = 0;
  }
  for (int i = 0; i < q->n; i++) {
    int d = q->first + i;
    room[0][d] = q->k[i];
    room[1][d] = q->stride[i];
    room[2][d] = q->dilation[i];
    room[3][d] = q->pad[i];
    room[4][d] = (q->out[i] - 1) * q->stride[i] + q->dilation[i] * (q->k[i] - 1) + 1 - q->pad[i] - q->in[i];
  }
  return (ir_window){
      .size = room[0], .stride = room[1], .window_dilation = room[2], .pad_low = room[3], .pad_high = room[4]};
}

/* On a TPU the values are a reduction of windows of their own, and the gradient picks the largest again: a program that
 * has the forward pass and its gradient then never makes the places, which take several passes over HBM. */
static val window_max(op_ctx *c, val x, const window *q) {
  int64_t room[5][T_MAX_DIMS];
  val low = lowest(c, x);
  if (ir_failed(G)) return x;
  const ir_window w = xla_window(x, q, room);
  return ir_reduce_window(G, IR_MAX, x, low,
                          &w); /* one operation: libtpu 0.0.52 aborts on other bodies that it fuses */
}

/* Gradients g to the first largest element of each window, or its last NaN. */
static val window_max_back(op_ctx *c, val g, val x, const window *q) {
  int64_t room[5][T_MAX_DIMS];
  if (ir_failed(G)) return x;
  const ir_window w = xla_window(x, q, room);
  for (int d = 0; d < x->ndim; d++)
    if (room[4][d] < 0) room[4][d] = 0; /* what no window reaches */
  return ir_select_and_scatter(G, t_cast(c, x, (tpu_dtype)g->dtype), g, t_scalar(c, (tpu_dtype)g->dtype, 0), IR_GE,
                               true, &w);
}

/* Values and positions of the largest, of x that is not empty. */
static void max_of_windows(op_ctx *c, val x, const window *q, val *value, val *index) {
  if (q->places <= SPELLED_OUT) max_spelled_out(c, x, q, value, index);
  else max_window(c, x, q, value, index);
  if (op_for_tpu(c)) *value = window_max(c, x, q);
}

/* (self, kernel_size, stride, padding, dilation, ceil_mode) */
static void max_pool(op_ctx *c, int n) {
  val x = T(0), value = NULL, index = NULL;
  window q;
  if (!read_window(c, x, n, 1, 4, INT_OR(5, 0), &q)) return;
  if (ir_numel(x) == 0) {
    int64_t dims[T_MAX_DIMS];
    with_spatial(x, &q, q.out, dims);
    value = t_zeros(c, (tpu_dtype)x->dtype, x->ndim, dims);
    index = t_zeros(c, TPU_I64, x->ndim, dims);
  } else {
    max_of_windows(c, x, &q, &value, &index);
  }
  RETN(0, value);
  RETN(1, t_cast(c, index, TPU_I64));
}
OP(max_pool2d, "aten::max_pool2d_with_indices") { max_pool(c, 2); }
OP(max_pool3d, "aten::max_pool3d_with_indices") { max_pool(c, 3); }

/* v's spatial dims joined to one, all others to another. */
static val planes(op_ctx *c, val v, int n) {
  int64_t dims[2] = {1, 1};
  for (int d = 0; d < v->ndim; d++) dims[d >= v->ndim - n] *= v->dims[d];
  return t_reshape(c, v, 2, dims);
}

/* Gradients g added up at their positions in x's planes. */
static val scatter_back(op_ctx *c, val g, val index, val x, int n, tpu_dtype m) {
  if (ir_failed(G)) return g;
  val zero = planes(c, t_zeros(c, m, x->ndim, x->dims), n);
  val sum = t_scatter(c, zero, 1, planes(c, index, n), planes(c, t_cast(c, g, m), n), IR_ADD);
  return t_reshape(c, sum, x->ndim, x->dims);
}

static bool not_dilated(const window *q) {
  for (int i = 0; i < q->n; i++)
    if (q->dilation[i] != 1) return false;
  return true;
}

/* (grad_output, self, kernel_size, stride, padding, dilation, ceil_mode, indices) */
static void max_pool_backward(op_ctx *c, int n) {
  val g0 = T(0), x = T(1), index = T(7);
  window q;
  if (!read_window(c, x, n, 2, 5, INT_OR(6, 0), &q)) return;
  tpu_dtype m = t_opmath((tpu_dtype)x->dtype), d = position_dtype(&q);
  val g = t_cast(c, g0, m);
  if (ir_numel(g) == 0) {
    RET(t_zeros(c, m, x->ndim, x->dims));
  } else if (op_for_tpu(c) && not_dilated(&q)) {
    RET(window_max_back(c, g, x, &q));
  } else if (q.places > SPELLED_OUT) {
    RET(scatter_back(c, g, index, x, n, m));
  } else {
    val sum = NULL, zero = t_like(c, g, 0);
    int64_t at[MAX_SPATIAL];
    index = t_cast(c, index, d);
    for (int64_t k = 0; k < q.places && !ir_failed(G); k++) {
      place_of(&q, k, at);
      val here = ir_compare(G, IR_EQ, index, t_broadcast_to(c, place_position(c, x, &q, at, d), g->ndim, g->dims));
      val part = put_back(c, ir_select(G, here, g, zero), &q, at);
      sum = sum ? ir_binary(G, IR_ADD, sum, part) : part;
    }
    if (sum) RET(sum);
  }
}
OP(max_pool2d_backward, "aten::max_pool2d_with_indices_backward") { max_pool_backward(c, 2); }
OP(max_pool3d_backward, "aten::max_pool3d_with_indices_backward") { max_pool_backward(c, 3); }

/* ---- average ----------------------------------------------------------------------------------------------------- */

/* How many elements each window divides by, int32; size 1 in the other dims. */
static val divisors(op_ctx *c, val x, const window *q, bool include_pad) {
  val count = NULL;
  for (int i = 0; i < q->n && !ir_failed(G); i++) {
    val s = starts(c, x, q, i, TPU_I32);
    val end = t_add(c, s, ir_const_i(G, TPU_I32, q->k[i], s->ndim, s->dims));
    end = t_min(c, end, ir_const_i(G, TPU_I32, q->in[i] + (include_pad ? q->pad[i] : 0), s->ndim, s->dims));
    val n = t_sub(c, end, include_pad ? s : t_max(c, s, t_like(c, s, 0)));
    count = count ? t_mul(c, count, n) : n;
  }
  return count;
}

static val divide(op_ctx *c, val sum, val count) {
  val n = t_broadcast_to(c, t_cast(c, count, (tpu_dtype)sum->dtype), sum->ndim, sum->dims);
  return ir_binary(G, IR_DIV, sum, n);
}

/* Sums over windows of size q->k of x (padded already), with the given strides. */
static val window_sum(op_ctx *c, val x, const window *q, const int64_t *stride) {
  int64_t size[T_MAX_DIMS], step[T_MAX_DIMS];
  for (int d = 0; d < x->ndim; d++) size[d] = step[d] = 1;
  for (int i = 0; i < q->n; i++) {
    size[q->first + i] = q->k[i];
    if (stride) step[q->first + i] = stride[i];
  }
  ir_window w = {.size = size, .stride = step};
  return ir_reduce_window(G, IR_ADD, x, t_scalar(c, (tpu_dtype)x->dtype, 0), &w);
}

static val avg_divisor(op_ctx *c, val x, const window *q, int include_arg, int override_arg) {
  if (!HAS(override_arg)) return divisors(c, x, q, INT_OR(include_arg, 1));
  int64_t n = INT(override_arg);
  if (n == 0) op_fail(c, TPU_ERR_RUNTIME, "divisor must be not zero");
  return ir_const_i(G, TPU_I64, n, 0, NULL);
}

/* (self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override) */
static void avg_pool(op_ctx *c, int n) {
  val x = T(0);
  window q;
  if (!read_window(c, x, n, 1, -1, INT_OR(4, 0), &q)) return;
  tpu_dtype m = t_opmath((tpu_dtype)x->dtype);
  val count = avg_divisor(c, x, &q, 5, 6);
  if (ir_numel(x) == 0) {
    int64_t dims[T_MAX_DIMS];
    with_spatial(x, &q, q.out, dims);
    RET(t_zeros(c, m, x->ndim, dims));
    return;
  }
  val p = padded(c, t_cast(c, x, m), &q, t_scalar(c, m, 0));
  if (ir_failed(G)) return;
  for (int i = 0; i < q.n; i++) /* drop what no window reaches, or one window too many comes out */
    p = t_narrow(c, p, q.first + i, 0, (q.out[i] - 1) * q.stride[i] + q.k[i], 1);
  RET(divide(c, window_sum(c, p, &q, q.stride), count));
}
OP(avg_pool2d, "aten::avg_pool2d") { avg_pool(c, 2); }
OP(avg_pool3d, "aten::avg_pool3d") { avg_pool(c, 3); }

/* Every input gets the sum of the gradients of the windows that hold it: g spread out by the stride, then sums of
 * windows. */
static val spread_back(op_ctx *c, val g, const window *q) {
  int64_t low[T_MAX_DIMS] = {0}, high[T_MAX_DIMS] = {0}, inside[T_MAX_DIMS] = {0};
  if (ir_failed(G)) return g;
  for (int i = 0; i < q->n; i++) {
    int d = q->first + i;
    low[d] = q->k[i] - 1 - q->pad[i];
    inside[d] = q->stride[i] - 1;
    high[d] = q->in[i] + q->k[i] - 1 - low[d] - ((q->out[i] - 1) * q->stride[i] + 1);
  }
  return window_sum(c, ir_pad(G, g, t_scalar(c, (tpu_dtype)g->dtype, 0), low, high, inside), q, NULL);
}

/* (grad_output, self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override) */
static void avg_pool_backward(op_ctx *c, int n) {
  val g = T(0), x = T(1);
  window q;
  if (!read_window(c, x, n, 2, -1, INT_OR(5, 0), &q)) return;
  tpu_dtype m = t_opmath((tpu_dtype)x->dtype);
  if (ir_numel(g) == 0) {
    RET(t_zeros(c, m, x->ndim, x->dims));
    return;
  }
  RET(spread_back(c, divide(c, t_cast(c, g, m), avg_divisor(c, x, &q, 6, 7)), &q));
}
OP(avg_pool2d_backward, "aten::avg_pool2d_backward") { avg_pool_backward(c, 2); }
OP(avg_pool3d_backward, "aten::avg_pool3d_backward") { avg_pool_backward(c, 3); }

/* ---- adaptive: window o of n covers [floor(o * in / n), ceil((o + 1) * in / n)) ------------------------------------
 */

static int64_t window_start(int64_t o, int64_t in, int64_t n) { return o * in / n; }
static int64_t window_end(int64_t o, int64_t in, int64_t n) { return ((o + 1) * in + n - 1) / n; }

static int64_t longest(int64_t in, int64_t n) {
  int64_t most = 1;
  for (int64_t o = 0; o < n; o++) {
    int64_t len = window_end(o, in, n) - window_start(o, in, n);
    if (len > most) most = len;
  }
  return most;
}

/* First element of each of n windows over `in`, int32 [n, 1]; and how many. */
static void adaptive_windows(op_ctx *c, int64_t in, int64_t n, val *start, val *length) {
  const int64_t dims[2] = {n, 1};
  int64_t *v = arena_alloc(ir_arena(G), 2 * (size_t)n * sizeof *v + 1);
  if (!v) {
    *start = *length = op_fail(c, TPU_ERR_RUNTIME, "out of memory");
    return;
  }
  for (int64_t o = 0; o < n; o++) {
    v[o] = window_start(o, in, n);
    v[n + o] = window_end(o, in, n) - v[o];
  }
  *start = ir_const_ints(G, TPU_I32, v, 2, dims);
  *length = ir_const_ints(G, TPU_I32, v + n, 2, dims);
}

/* x's dim `d` taken apart into [n windows, longest]; places past a window's end hold `fill`. */
static val take_windows(op_ctx *c, val x, int d, int64_t n, val fill) {
  int64_t in = t_size(x, d), most = longest(in, n);
  val start, length;
  adaptive_windows(c, in, n, &start, &length);
  const int64_t dims[2] = {n, most};
  val k = t_iota(c, TPU_I32, 2, dims, 1);
  val at = t_min(c, t_add(c, start, k), ir_const_i(G, TPU_I32, in - 1, 0, NULL));
  val y = t_take(c, x, d, at), inside = t_cmp(c, IR_LT, k, length);
  if (ir_failed(G)) return y;
  int64_t mask[T_MAX_DIMS];
  for (int i = 0; i < y->ndim; i++) mask[i] = i == d ? n : i == d + 1 ? most : 1;
  return t_where(c, t_reshape(c, inside, y->ndim, mask), y, fill);
}

/* Along dim d: sums over n windows. */
static val adaptive_sum(op_ctx *c, val x, int d, int64_t n) {
  if (ir_failed(G)) return x;
  int64_t in = t_size(x, d);
  if (in == n) return x;
  if (in % n == 0) { /* equal windows side by side */
    int64_t dims[T_MAX_DIMS];
    memcpy(dims, x->dims, (size_t)d * sizeof *dims);
    dims[d] = n;
    dims[d + 1] = in / n;
    memcpy(dims + d + 2, x->dims + d + 1, (size_t)(x->ndim - d - 1) * sizeof *dims);
    return t_sum(c, t_reshape(c, x, x->ndim + 1, dims), (int[]){d + 1}, 1, false);
  }
  return t_sum(c, take_windows(c, x, d, n, t_scalar(c, (tpu_dtype)x->dtype, 0)), (int[]){d + 1}, 1, false);
}

/* x / the length of window o of n over `in`, along dim d (of size n). */
static val over_length(op_ctx *c, val x, int d, int64_t in, int64_t n) {
  val start, length;
  adaptive_windows(c, in, n, &start, &length);
  int64_t dims[T_MAX_DIMS];
  for (int i = 0; i < x->ndim; i++) dims[i] = i == d ? n : 1;
  return t_div(c, x, t_cast(c, t_reshape(c, length, x->ndim, dims), (tpu_dtype)x->dtype));
}

/* The n last dims of x in windows of one size, side by side, out[] of them; false when they are of several sizes. */
static bool equal_windows(val x, int n, const int64_t *out, window *q) {
  *q = (window){.n = n, .first = x->ndim - n, .places = 1};
  for (int i = 0; i < n; i++) {
    int64_t in = x->dims[q->first + i];
    if (out[i] < 1 || in < out[i] || in % out[i]) return false;
    q->in[i] = in;
    q->out[i] = out[i];
    q->k[i] = q->stride[i] = in / out[i];
    q->dilation[i] = 1;
    q->places *= q->k[i];
  }
  return true;
}

static void adaptive_avg(op_ctx *c, int n) {
  val x = T(0);
  int64_t out[MAX_SPATIAL], dims[T_MAX_DIMS];
  if (!read_list(c, 1, out, n, NULL) || ir_failed(G)) return;
  tpu_dtype m = t_opmath((tpu_dtype)x->dtype);
  int first = x->ndim - n;
  memcpy(dims, x->dims, (size_t)x->ndim * sizeof *dims);
  for (int i = 0; i < n; i++) dims[first + i] = out[i];
  bool empty = ir_numel(x) == 0;
  for (int i = 0; i < n; i++) empty |= out[i] == 0;
  val y = t_cast(c, x, m);
  if (empty) {
    RET(t_zeros(c, m, x->ndim, dims));
    return;
  }
  window q;
  if (op_for_tpu(c) && equal_windows(x, n, out, &q)) y = window_sum(c, y, &q, q.stride);
  else
    for (int i = 0; i < n; i++) y = adaptive_sum(c, y, first + i, out[i]);
  for (int i = 0; i < n && !ir_failed(G); i++) y = over_length(c, y, first + i, x->dims[first + i], out[i]);
  RET(y);
}
OP(adaptive_avg_pool2d, "aten::_adaptive_avg_pool2d") { adaptive_avg(c, 2); }
OP(adaptive_avg_pool3d, "aten::_adaptive_avg_pool3d") { adaptive_avg(c, 3); }

/* The windows that hold input i are those from floor(i * n / in) up to ceil((i + 1) * n / in): the same rule backwards.
 */
static void adaptive_avg_backward(op_ctx *c, int n) {
  val g0 = T(0), x = T(1);
  if (ir_failed(G)) return;
  tpu_dtype m = t_opmath((tpu_dtype)x->dtype);
  int first = x->ndim - n;
  if (ir_numel(g0) == 0 || ir_numel(x) == 0) {
    RET(t_zeros(c, m, x->ndim, x->dims));
    return;
  }
  val g = t_cast(c, g0, m);
  for (int i = 0; i < n; i++) g = over_length(c, g, first + i, x->dims[first + i], g0->dims[first + i]);
  window q;
  if (op_for_tpu(c) && equal_windows(x, n, g0->dims + first, &q)) {
    RET(spread_back(c, g, &q));
    return;
  }
  for (int i = 0; i < n; i++) {
    int d = first + i;
    int64_t in = x->dims[d], out = g0->dims[d];
    if (ir_failed(G)) return;
    if (in % out == 0 && in != out) { /* each input is in one window */
      int64_t dims[T_MAX_DIMS];
      int map[T_MAX_DIMS];
      for (int k = 0; k < g->ndim; k++) {
        map[k] = k > d ? k + 1 : k;
        dims[map[k]] = g->dims[k];
      }
      dims[d + 1] = in / out;
      val wide = ir_broadcast(G, g, g->ndim + 1, dims, map);
      memcpy(dims, g->dims, (size_t)g->ndim * sizeof *dims);
      dims[d] = in;
      g = t_reshape(c, wide, g->ndim, dims);
    } else {
      g = adaptive_sum(c, g, d, in);
    }
  }
  RET(g);
}
OP(adaptive_avg_pool2d_backward, "aten::_adaptive_avg_pool2d_backward") { adaptive_avg_backward(c, 2); }
OP(adaptive_avg_pool3d_backward, "aten::_adaptive_avg_pool3d_backward") { adaptive_avg_backward(c, 3); }
OP(adaptive_avg_pool3d_backward_out, "aten::adaptive_avg_pool3d_backward.grad_input") { adaptive_avg_backward(c, 3); }

static void adaptive_max(op_ctx *c, int n) {
  val x = T(0);
  int64_t out[MAX_SPATIAL], dims[T_MAX_DIMS], most[MAX_SPATIAL], total = 1;
  if (!read_list(c, 1, out, n, NULL) || ir_failed(G)) return;
  int first = x->ndim - n, perm[T_MAX_DIMS];
  bool empty = ir_numel(x) == 0;
  for (int i = 0; i < n; i++) empty |= out[i] == 0;
  memcpy(dims, x->dims, (size_t)x->ndim * sizeof *dims);
  for (int i = 0; i < n; i++) dims[first + i] = out[i];
  if (empty) {
    RETN(0, t_zeros(c, (tpu_dtype)x->dtype, x->ndim, dims));
    RETN(1, t_zeros(c, TPU_I64, x->ndim, dims));
    return;
  }
  window q;
  if (op_for_tpu(c) && equal_windows(x, n, out, &q)) {
    val value = NULL, index = NULL;
    max_of_windows(c, x, &q, &value, &index);
    RETN(0, value);
    RETN(1, t_cast(c, index, TPU_I64));
    return;
  }
  val y = x, low = ir_const_min(G, (tpu_dtype)x->dtype, 0, NULL);
  for (int i = 0; i < n; i++) {
    y = take_windows(c, y, first + 2 * i, out[i], low);
    most[i] = longest(x->dims[first + i], out[i]);
    total *= most[i];
  }
  if (ir_failed(G)) return;
  /* [.., o0, k0, o1, k1, ..] -> [.., o0, o1, .., k0 * k1 * ..] */
  for (int d = 0; d < first; d++) perm[d] = d;
  for (int i = 0; i < n; i++) {
    perm[first + i] = first + 2 * i;
    perm[first + n + i] = first + 2 * i + 1;
  }
  dims[x->ndim] = total;
  y = t_reshape(c, t_permute(c, y, perm), x->ndim + 1, dims);
  val value, k;
  t_arg_reduce(c, y, x->ndim, true, false, &value, &k);
  if (ir_failed(G)) return;
  /* place in the window -> position in the plane */
  int64_t plane = 1;
  for (int i = 0; i < n; i++) plane *= x->dims[first + i];
  tpu_dtype d = t_index_dtype(plane);
  val at[MAX_SPATIAL], position_of = NULL;
  k = t_cast(c, k, d);
  for (int i = n - 1; i >= 0; i--) {
    val start, length, size = ir_const_i(G, d, most[i], 0, NULL);
    adaptive_windows(c, x->dims[first + i], out[i], &start, &length);
    int64_t shape[T_MAX_DIMS];
    for (int j = 0; j < x->ndim; j++) shape[j] = j == first + i ? out[i] : 1;
    at[i] = t_add(c, t_cast(c, t_reshape(c, start, x->ndim, shape), d), t_binary(c, IR_REM, k, size));
    k = t_binary(c, IR_DIV, k, size);
  }
  for (int i = 0; i < n; i++)
    position_of =
        position_of ? t_add(c, t_mul(c, position_of, ir_const_i(G, d, x->dims[first + i], 0, NULL)), at[i]) : at[i];
  RETN(0, value);
  RETN(1, t_cast(c, position_of, TPU_I64));
}
OP(adaptive_max_pool2d, "aten::adaptive_max_pool2d") { adaptive_max(c, 2); }
OP(adaptive_max_pool3d, "aten::adaptive_max_pool3d") { adaptive_max(c, 3); }

/* (grad_output, self, indices) */
static void adaptive_max_backward(op_ctx *c, int n) {
  val g = T(0), x = T(1);
  window q;
  if (op_for_tpu(c) && !ir_failed(G) && ir_numel(g) && equal_windows(x, n, g->dims + g->ndim - n, &q)) {
    RET(window_max_back(c, t_cast(c, g, t_opmath((tpu_dtype)x->dtype)), x, &q));
    return;
  }
  RET(scatter_back(c, T(0), T(2), x, n, t_opmath((tpu_dtype)x->dtype)));
}
OP(adaptive_max_pool2d_backward, "aten::adaptive_max_pool2d_backward") { adaptive_max_backward(c, 2); }
OP(adaptive_max_pool3d_backward, "aten::adaptive_max_pool3d_backward") { adaptive_max_backward(c, 3); }

/* ---- unpooling: (self, indices, output_size, ...) ------------------------------------------------------------------
 */

static void max_unpool(op_ctx *c, int n) {
  val x = T(0), index = T(1);
  int64_t out[MAX_SPATIAL], dims[T_MAX_DIMS];
  if (!read_list(c, 2, out, n, NULL) || ir_failed(G)) return;
  memcpy(dims, x->dims, (size_t)x->ndim * sizeof *dims);
  for (int i = 0; i < n; i++) dims[x->ndim - n + i] = out[i];
  val zero = t_zeros(c, (tpu_dtype)x->dtype, x->ndim, dims);
  if (ir_numel(x) && ir_numel(zero))
    zero = t_reshape(c, t_scatter(c, planes(c, zero, n), 1, planes(c, index, n), planes(c, x, n), T_REPLACE), x->ndim,
                     dims);
  RET(zero);
}
OP(max_unpool2d, "aten::max_unpool2d") { max_unpool(c, 2); }
OP(max_unpool3d, "aten::max_unpool3d") { max_unpool(c, 3); }

/* ---- fractional: windows of one size at places that a random number of each plane decides --------------------------
 */

/* Computed in float32, but each result rounded to `as`. */
static val rounded(op_ctx *c, val v, tpu_dtype as) {
  if (as == TPU_BF16) return ir_reduce_precision(G, v, 8, 7);
  return as == TPU_F16 ? ir_reduce_precision(G, v, 5, 10) : v;
}

/* int32 [planes, out]: floor((i + u) * a) - floor(u * a), a = (in - k) / (out - 1); the last one ends with the input.
 * PyTorch computes in the samples' dtype `as`, and a place is not to move by one. */
static val fractional_starts(op_ctx *c, val u, tpu_dtype as, int64_t in, int64_t k, int64_t out) {
  const int64_t planes_out[2] = {u->dims[0], out};
  tpu_dtype d = (tpu_dtype)u->dtype;
  val last = ir_const_i(G, TPU_I32, in - k, 2, planes_out);
  if (out < 2 || ir_failed(G)) return last;
  val i = ir_iota(G, TPU_I32, 2, planes_out, 1);
  val a = rounded(c, t_scalar(c, d, (double)(in - k) / (double)(out - 1)), as);
  val from = rounded(c, t_mul(c, rounded(c, t_add(c, t_cast(c, i, d), u), as), a), as);
  val zero = rounded(c, t_mul(c, u, a), as);
  val s = t_sub(c, t_cast(c, from, TPU_I32), t_cast(c, zero, TPU_I32));
  return t_where(c, t_cmp(c, IR_EQ, i, ir_const_i(G, TPU_I32, out - 1, 0, NULL)), last, s);
}

/* (self, kernel_size, output_size, random_samples [N, C, n]) */
static void fractional_max(op_ctx *c, int n) {
  val x = T(0), u = T(3);
  int64_t k[MAX_SPATIAL], out[MAX_SPATIAL], dims[T_MAX_DIMS], windows = 1, places = 1;
  if (!read_list(c, 1, k, n, NULL) || !read_list(c, 2, out, n, NULL) || ir_failed(G)) return;
  int first = x->ndim - n, rank = 1 + 2 * n;
  memcpy(dims, x->dims, (size_t)x->ndim * sizeof *dims);
  for (int i = 0; i < n; i++) {
    dims[first + i] = out[i];
    windows *= out[i];
    places *= k[i];
  }
  val p = planes(c, x, n);
  if (ir_failed(G)) return;
  if (ir_numel(x) == 0 || windows == 0) {
    RETN(0, t_zeros(c, (tpu_dtype)x->dtype, x->ndim, dims));
    RETN(1, t_zeros(c, TPU_I64, x->ndim, dims));
    return;
  }
  int64_t np = p->dims[0], shape[2 * MAX_SPATIAL + 1];
  tpu_dtype as = (tpu_dtype)u->dtype;
  u = t_cast(c, t_flatten(c, u), t_opmath(as));
  if (t_size(u, 0) > np * n) u = t_narrow(c, u, 0, 0, np * n, 1); /* more than are needed: the first ones */
  u = t_reshape(c, u, 2, (const int64_t[]){np, n});
  val at = NULL; /* int32 [planes, out.., k..]: where each place of each window is */
  for (int i = 0; i < n && !ir_failed(G); i++) {
    val one = t_narrow(c, u, 1, n == 2 ? 1 - i : i, 1, 1); /* PyTorch's order: width first for images */
    val s = fractional_starts(c, one, as, x->dims[first + i], k[i], out[i]);
    for (int j = 0; j < rank; j++) shape[j] = j == 0 ? np : j == 1 + i ? out[i] : 1;
    val q = t_add(c, t_reshape(c, s, rank, shape), t_iota_dim(c, TPU_I32, rank, 1 + n + i, k[i]));
    at = at ? t_add(c, t_mul(c, at, ir_const_i(G, TPU_I32, x->dims[first + i], 0, NULL)), q) : q;
  }
  if (ir_failed(G)) return;
  at = t_reshape(c, at, 2, (const int64_t[]){np, windows * places});
  const int64_t split[3] = {np, windows, places};
  val value, best;
  t_arg_reduce(c, t_reshape(c, t_gather(c, p, 1, at), 3, split), 2, true, true, &value, &best);
  RETN(0, t_reshape(c, value, x->ndim, dims));
  RETN(1, t_cast(c, t_reshape(c, t_gather(c, t_reshape(c, at, 3, split), 2, best), x->ndim, dims), TPU_I64));
}
OP(fractional_max_pool2d, "aten::fractional_max_pool2d") { fractional_max(c, 2); }
OP(fractional_max_pool3d, "aten::fractional_max_pool3d") { fractional_max(c, 3); }

/* (grad_output, self, kernel_size, output_size, indices) */
OP(fractional_max_pool2d_backward, "aten::fractional_max_pool2d_backward") {
  val x = T(1);
  RET(scatter_back(c, T(0), T(4), x, 2, t_opmath((tpu_dtype)x->dtype)));
}
OP(fractional_max_pool3d_backward, "aten::fractional_max_pool3d_backward") {
  val x = T(1);
  RET(scatter_back(c, T(0), T(4), x, 3, t_opmath((tpu_dtype)x->dtype)));
}
