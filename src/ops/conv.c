/* Convolution of any spatial rank, and its gradients. Each of the three is one convolution:
 *   forward      x [N, C, s], w [O, C/g, k]                   -> [N, O, s']
 *   input        the same with x dilated by the stride and w flipped, features and outputs of w exchanged
 *   weight       x as [C, N, s] with the output's gradient as kernel, stride and dilation exchanged
 * A transposed convolution is the input gradient of a plain one, so its gradients are the other two. */
#include "ops/along.h"
#include "ops/pointwise.h"

enum { MAX_SPATIAL = 8 };

typedef struct {
  int n; /* spatial dims */
  int64_t stride[MAX_SPATIAL], pad[MAX_SPATIAL], dilation[MAX_SPATIAL], out_pad[MAX_SPATIAL];
  bool transposed;
  int64_t groups;
} geometry;

static bool read_list(op_ctx *c, int arg, const char *what, int64_t *out, int want) {
  int n;
  const int64_t *v = op_ints(c, arg, &n);
  if (n != 1 && n != want) {
    op_fail(c, TPU_ERR_RUNTIME,
            "expected %s to be a single integer value or a list of %d values to match the convolution dimensions, but "
            "got %d",
            what, want, n);
    return false;
  }
  for (int i = 0; i < want; i++) out[i] = v[n == 1 ? 0 : i];
  return true;
}

/* stride, padding, dilation, transposed, output_padding, groups from argument `at` on. */
static bool read_geometry(op_ctx *c, val x, val w, int at, geometry *q) {
  if (ir_failed(G)) return false;
  q->n = w->ndim - 2;
  if (q->n < 1 || q->n > MAX_SPATIAL || x->ndim != w->ndim) {
    op_fail(c, TPU_ERR_RUNTIME,
            "Expected %dD input to a convolution with a weight of %d dimensions, but got %d dimensions", w->ndim,
            w->ndim, x->ndim);
    return false;
  }
  q->transposed = INT(at + 3);
  q->groups = INT(at + 5);
  if (!read_list(c, at, "stride", q->stride, q->n) || !read_list(c, at + 1, "padding", q->pad, q->n) ||
      !read_list(c, at + 2, "dilation", q->dilation, q->n) || !read_list(c, at + 4, "output_padding", q->out_pad, q->n))
    return false;
  if (q->groups < 1) op_fail(c, TPU_ERR_RUNTIME, "non-positive groups is not supported");
  for (int i = 0; i < q->n; i++) {
    if (q->stride[i] < 1) op_fail(c, TPU_ERR_RUNTIME, "non-positive stride is not supported");
    if (q->dilation[i] < 1) op_fail(c, TPU_ERR_RUNTIME, "dilation should be greater than zero");
    if (q->pad[i] < 0) op_fail(c, TPU_ERR_RUNTIME, "negative padding is not supported");
  }
  int64_t want = q->transposed ? w->dims[0] : w->dims[1] * q->groups;
  if (x->dims[1] != want)
    op_fail(c, TPU_ERR_RUNTIME,
            "Given groups=%lld, expected the input to have %lld channels, but got %lld channels instead",
            (long long)q->groups, (long long)want, (long long)x->dims[1]);
  if (x->dtype != w->dtype)
    op_fail(c, TPU_ERR_RUNTIME, "Input type (%s) and weight type (%s) should be the same", tpu_dtype_name(x->dtype),
            tpu_dtype_name(w->dtype));
  return !ir_failed(G);
}

/* [N, C, s...] x [O, I, k...] with the places of features given by number; zero-size operands give zeros. */
static val conv(op_ctx *c, val x, int batch, int feature, val w, int k_in, int k_out, int out_batch, int out_feature,
                const int64_t *stride, const int64_t *low, const int64_t *high, const int64_t *x_dilation,
                const int64_t *w_dilation, bool flip, int64_t fgroups, int64_t bgroups) {
  int spatial[MAX_SPATIAL];
  bool reversal[MAX_SPATIAL];
  for (int i = 0; i < MAX_SPATIAL; i++) {
    spatial[i] = i + 2;
    reversal[i] = flip;
  }
  ir_conv_dims d = {batch, feature, spatial, k_in, k_out, spatial, out_batch, out_feature, spatial};
  tpu_dtype t = (tpu_dtype)x->dtype;
  return ir_conv(G, x, w, &d, stride, low, high, x_dilation, w_dilation, reversal, fgroups, bgroups, t_opmath(t),
                 op_precision(c, t));
}

/* ---- filters of one channel, on a CPU --------------------------------------------------------------------------
 * XLA's CPU backend runs a convolution of as many groups as channels 30 times slower than it need be. There is a term
 * for each tap of the filter: a strided slice of the padded input by the tap's weight. Of several filters a channel
 * each has a copy of it, which XLA reads in place. */

enum { MAX_TAPS = 64, MAX_FILTERS = 8 };

static bool by_taps(op_ctx *c, const geometry *q, val x, int64_t out_channels, int64_t group_channels,
                    const int64_t *k) {
  int64_t taps = 1;
  for (int i = 0; i < q->n; i++) taps *= k[i];
  return ir_is_cpu(G) && ir_is_float((tpu_dtype)x->dtype) && q->groups > 1 && group_channels == 1 &&
         out_channels <= MAX_FILTERS * q->groups && taps <= MAX_TAPS;
}

/* [N, C, s] with each channel `times` times */
static val repeat_channels(op_ctx *c, val x, int64_t times) {
  int64_t dims[MAX_SPATIAL + 3];
  int map[MAX_SPATIAL + 2];
  if (ir_failed(G) || times == 1) return x;
  for (int i = 0; i < x->ndim; i++) {
    map[i] = i + (i > 1);
    dims[map[i]] = x->dims[i];
  }
  dims[2] = times;
  val wide = ir_broadcast(G, x, x->ndim + 1, dims, map);
  dims[1] *= times;
  for (int i = 2; i < x->ndim; i++) dims[i] = x->dims[i];
  return t_reshape(c, wide, x->ndim, dims);
}

static val pad_space(op_ctx *c, val x, int n, const int64_t *low, const int64_t *high, const int64_t *dilation) {
  int64_t l[MAX_SPATIAL + 2] = {0}, h[MAX_SPATIAL + 2] = {0}, between[MAX_SPATIAL + 2] = {0};
  for (int i = 0; i < n; i++) {
    l[i + 2] = low[i];
    h[i + 2] = high[i];
    between[i + 2] = dilation ? dilation[i] - 1 : 0;
  }
  if (ir_failed(G)) return x;
  return ir_pad(G, x, t_scalar(c, (tpu_dtype)x->dtype, 0), l, h, between);
}

/* Moves on to the next place of a filter of sizes k; false after the last. */
static bool next_tap(int n, const int64_t *k, int64_t *at) {
  for (int i = n - 1; i >= 0; i--) {
    if (++at[i] < k[i]) return true;
    at[i] = 0;
  }
  return false;
}

/* The part of padded x that meets the filter's place `at`: [N, C, out]. */
static val meets(op_ctx *c, val x, int n, const int64_t *at, const int64_t *out, const int64_t *stride,
                 const int64_t *dilation) {
  int64_t start[MAX_SPATIAL + 2] = {0}, limit[MAX_SPATIAL + 2], step[MAX_SPATIAL + 2] = {1, 1};
  if (ir_failed(G)) return x;
  for (int i = 0; i < 2; i++) limit[i] = x->dims[i];
  for (int i = 0; i < n; i++) {
    step[i + 2] = stride ? stride[i] : 1;
    start[i + 2] = at[i] * dilation[i];
    limit[i + 2] = start[i + 2] + (out[i] - 1) * step[i + 2] + 1;
  }
  return ir_slice(G, x, start, limit, step);
}

/* padded x [N, C, s], w [C, 1, k] -> [N, C, out] in the dtype that sums are taken in */
static val conv_by_taps(op_ctx *c, int n, val x, val w, const int64_t *out, const int64_t *stride,
                        const int64_t *dilation, bool flip) {
  tpu_dtype m = t_opmath((tpu_dtype)x->dtype);
  if (ir_failed(G)) return x;
  int64_t at[MAX_SPATIAL] = {0}, channels = w->dims[0], columns[2] = {channels, ir_numel(w) / channels}, tap = 0;
  val taps = t_cast(c, t_reshape(c, w, 2, columns), m), sum = NULL;
  do {
    val part = t_cast(c, meets(c, x, n, at, out, stride, dilation), m);
    if (ir_failed(G)) return x;
    int64_t column = flip ? columns[1] - 1 - tap : tap;
    int map = 1;
    val weight = ir_slice(G, taps, (int64_t[]){0, column}, (int64_t[]){channels, column + 1}, (int64_t[]){1, 1});
    weight = ir_broadcast(G, t_reshape(c, weight, 1, &channels), part->ndim, part->dims, &map);
    val term = ir_binary(G, IR_MUL, part, weight);
    sum = sum ? ir_binary(G, IR_ADD, sum, term) : term;
    tap++;
  } while (next_tap(n, w->dims + 2, at));
  return sum;
}

/* Each n-th of x along dim, from k on. */
static val every(op_ctx *c, val x, int dim, int64_t k, int64_t n) {
  return ir_failed(G) ? x : t_narrow(c, x, dim, k, (x->dims[dim] - k + n - 1) / n, n);
}

static val forward(op_ctx *c, const geometry *q, val x, val w, const int64_t *out) {
  int64_t high[MAX_SPATIAL];
  for (int i = 0; i < q->n; i++) /* what the windows reach, no more: the gradient's x may be larger */
    high[i] = (out[i] - 1) * q->stride[i] + q->dilation[i] * (w->dims[i + 2] - 1) + 1 - x->dims[i + 2] - q->pad[i];
  if (by_taps(c, q, x, w->dims[0], w->dims[1], w->dims + 2))
    return conv_by_taps(c, q->n, repeat_channels(c, pad_space(c, x, q->n, q->pad, high, NULL), w->dims[0] / q->groups),
                        w, out, q->stride, q->dilation, false);
  return conv(c, x, 0, 1, w, 1, 0, 0, 1, q->stride, q->pad, high, NULL, q->dilation, false, q->groups, 1);
}

/* Weights [O, C/g, k] as [O/g, C, k]. */
static val exchange_groups(op_ctx *c, val w, int64_t g) {
  if (g == 1) return w;
  int64_t split[MAX_SPATIAL + 3], joined[MAX_SPATIAL + 2];
  int perm[MAX_SPATIAL + 3];
  for (int i = 0; i < w->ndim; i++) split[i + 1] = joined[i] = w->dims[i];
  split[0] = g;
  split[1] = joined[0] = w->dims[0] / g;
  joined[1] = w->dims[1] * g;
  for (int i = 0; i <= w->ndim; i++) perm[i] = i;
  perm[0] = 1;
  perm[1] = 0;
  val s = t_reshape(c, w, w->ndim + 1, split);
  return t_reshape(c, t_permute(c, s, perm), w->ndim, joined);
}

/* The sum over the filters of a channel. */
static val input_gradient_by_taps(op_ctx *c, const geometry *q, val padded, val w, const int64_t *in) {
  val sum = NULL;
  if (ir_failed(G)) return w;
  for (int64_t times = w->dims[0] / q->groups, k = 0; k < times; k++) {
    val part = every(c, padded, 1, k, times), filter = every(c, w, 0, k, times);
    part = conv_by_taps(c, q->n, part, filter, in, NULL, q->dilation, true);
    sum = sum ? t_add(c, sum, part) : part;
  }
  return sum;
}

/* The gradient of a plain convolution with respect to its input of spatial sizes `in`. */
static val input_gradient(op_ctx *c, const geometry *q, val gy, val w, const int64_t *in) {
  int64_t low[MAX_SPATIAL], high[MAX_SPATIAL];
  for (int i = 0; i < q->n; i++) {
    int64_t reach = q->dilation[i] * (w->dims[i + 2] - 1), dilated = (gy->dims[i + 2] - 1) * q->stride[i] + 1;
    low[i] = reach - q->pad[i];
    high[i] = in[i] + reach - low[i] - dilated;
  }
  if (by_taps(c, q, gy, w->dims[0], w->dims[1], w->dims + 2))
    return input_gradient_by_taps(c, q, pad_space(c, gy, q->n, low, high, q->stride), w, in);
  return conv(c, gy, 0, 1, exchange_groups(c, w, q->groups), 0, 1, 0, 1, NULL, low, high, q->stride, q->dilation, true,
              q->groups, 1);
}

/* [N, C, s] as [C/g, g * N, s]: each group's images as features. */
static val groups_to_batch(op_ctx *c, val x, int64_t g) {
  int64_t split[MAX_SPATIAL + 3], joined[MAX_SPATIAL + 2];
  int perm[MAX_SPATIAL + 3];
  if (ir_failed(G)) return x;
  for (int i = 2; i < x->ndim; i++) split[i + 1] = joined[i] = x->dims[i];
  split[0] = x->dims[0];
  split[1] = g;
  split[2] = joined[0] = x->dims[1] / g;
  joined[1] = g * x->dims[0];
  for (int i = 0; i <= x->ndim; i++) perm[i] = i;
  perm[0] = 2;
  perm[2] = 0;
  return t_reshape(c, t_permute(c, t_reshape(c, x, x->ndim + 1, split), perm), x->ndim, joined);
}

/* The gradient of a plain convolution with respect to its weight of spatial sizes `k`: [O, C/g, k]. */
static val weight_gradient(op_ctx *c, const geometry *q, val x, val gy, const int64_t *k) {
  int64_t high[MAX_SPATIAL];
  for (int i = 0; i < q->n; i++)
    high[i] = (k[i] - 1) * q->dilation[i] + (gy->dims[i + 2] - 1) * q->stride[i] + 1 - x->dims[i + 2] - q->pad[i];
  if (by_taps(c, q, x, gy->dims[1], x->dims[1] / q->groups, k)) {
    tpu_dtype m = t_opmath((tpu_dtype)x->dtype);
    int64_t filters = gy->dims[1], at[MAX_SPATIAL] = {0}, column[2] = {filters, 1},
            dims[MAX_SPATIAL + 2] = {filters, 1};
    val padded = repeat_channels(c, pad_space(c, x, q->n, q->pad, high, NULL), filters / q->groups), taps[MAX_TAPS];
    int over[MAX_SPATIAL + 1] = {0}, n = 0;
    for (int i = 0; i < q->n; i++) {
      over[i + 1] = i + 2;
      dims[i + 2] = k[i];
    }
    gy = t_cast(c, gy, m);
    do {
      val part = t_cast(c, meets(c, padded, q->n, at, gy->dims + 2, q->stride, q->dilation), m);
      if (ir_failed(G)) return x;
      taps[n++] = t_reshape(c, t_sum(c, ir_binary(G, IR_MUL, part, gy), over, q->n + 1, false), 2, column);
    } while (next_tap(q->n, k, at));
    return ir_failed(G) ? x : t_reshape(c, ir_concat(G, taps, n, 1), q->n + 2, dims);
  }
  if (ir_is_cpu(G) && q->groups > 1) /* XLA has a fast convolution of groups of features, none of groups of a batch */
    return conv(c, groups_to_batch(c, x, q->groups), 0, 1, gy, 0, 1, 1, 0, q->dilation, q->pad, high, NULL, q->stride,
                false, q->groups, 1);
  return conv(c, x, 1, 0, gy, 0, 1, 1, 0, q->dilation, q->pad, high, NULL, q->stride, false, 1, q->groups);
}

static bool empty(val x) { return ir_numel(x) == 0; }

/* (input, weight, bias, stride, padding, dilation, transposed, output_padding, groups) */
static void convolution(op_ctx *c) {
  val x = T(0), w = T(1);
  geometry q;
  op_keep_channels_last(c, 0, 1);
  if (!read_geometry(c, x, w, 3, &q)) return;
  if (q.transposed && ir_is_int((tpu_dtype)x->dtype) && x->dtype != TPU_I64) {
    p_no_kernel(c, q.n == 3 ? "slow_conv_transpose3d_out_cpu" : "slow_conv_transpose2d_out_cpu", x);
    return;
  }
  int64_t out[MAX_SPATIAL + 2];
  out[0] = x->dims[0];
  out[1] = q.transposed ? w->dims[1] * q.groups : w->dims[0];
  for (int i = 0; i < q.n; i++) {
    int64_t in = x->dims[i + 2], reach = q.dilation[i] * (w->dims[i + 2] - 1) + 1;
    int64_t left = in + 2 * q.pad[i] - reach;
    if (q.transposed) {
      out[i + 2] = (in - 1) * q.stride[i] - 2 * q.pad[i] + reach + q.out_pad[i];
    } else {
      if (left < 0)
        op_fail(c, TPU_ERR_RUNTIME,
                "Calculated padded input size per channel: (%lld). Kernel size: (%lld). Kernel size can't be greater "
                "than actual input size",
                (long long)(in + 2 * q.pad[i]), (long long)w->dims[i + 2]);
      out[i + 2] = left / q.stride[i] + 1;
    }
  }
  if (ir_failed(G)) return;
  tpu_dtype m = t_opmath((tpu_dtype)x->dtype);
  if (!q.transposed && x->dims[1] == 0) { /* without channels in, PyTorch gives none out */
    out[1] = 0;
    RET(t_zeros(c, m, q.n + 2, out));
    return;
  }
  val y;
  if (empty(x) || empty(w)) y = t_zeros(c, m, q.n + 2, out);
  else y = q.transposed ? input_gradient(c, &q, x, w, out + 2) : forward(c, &q, x, w, out + 2);
  if (HAS(2)) {
    int64_t dims[MAX_SPATIAL + 1] = {ir_numel(T(2))};
    for (int i = 0; i < q.n; i++) dims[i + 1] = 1;
    y = t_add(c, y, t_cast(c, t_reshape(c, T(2), q.n + 1, dims), m));
  }
  RET(y);
}

OP(convolution, "aten::convolution") { convolution(c); }
OP(convolution_inner, "aten::_convolution") { convolution(c); }
OP(convolution_overrideable, "aten::convolution_overrideable") { convolution(c); }

/* (grad_output, input, weight, [bias_sizes,] stride, padding, dilation, transposed, output_padding, groups,
 * output_mask) */
static void convolution_backward(op_ctx *c, int at) {
  val gy = T(0), x = T(1), w = T(2);
  geometry q;
  int nmask;
  const int64_t *mask = op_ints(c, at + 6, &nmask);
  op_keep_channels_last(c, 1, 2);
  if (!read_geometry(c, x, w, at, &q) || nmask != 3) return;
  tpu_dtype m = t_opmath((tpu_dtype)x->dtype);
  bool none = empty(gy) || empty(x) || empty(w);
  if (mask[0]) {
    if (none) RETN(0, t_zeros(c, m, x->ndim, x->dims));
    else RETN(0, q.transposed ? forward(c, &q, gy, w, x->dims + 2) : input_gradient(c, &q, gy, w, x->dims + 2));
  }
  if (mask[1]) {
    if (none) RETN(1, t_zeros(c, m, w->ndim, w->dims));
    else
      RETN(1, q.transposed ? weight_gradient(c, &q, gy, x, w->dims + 2) : weight_gradient(c, &q, x, gy, w->dims + 2));
  }
  if (mask[2] && !q.transposed && x->dims[1] == 0) {
    RETN(2, t_zeros(c, m, 1, w->dims));
  } else if (mask[2]) {
    int dims[MAX_SPATIAL + 1] = {0};
    for (int i = 0; i < q.n; i++) dims[i + 1] = i + 2;
    RETN(2, t_sum(c, t_cast(c, gy, m), dims, q.n + 1, false));
  }
}

OP(convolution_backward, "aten::convolution_backward") { convolution_backward(c, 4); }
OP(convolution_backward_overrideable, "aten::convolution_backward_overrideable") { convolution_backward(c, 3); }
