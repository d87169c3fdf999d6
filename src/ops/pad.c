/* Padding by a constant, by reflection and by the border, with the gradients. */
#include <string.h>

#include "ops/along.h"

/* pad: pairs (low, high) from the last dim on; may be negative. */
static bool read_pads(op_ctx *c, int arg, val x, int64_t *low, int64_t *high) {
  int n;
  const int64_t *pad = op_ints(c, arg, &n);
  memset(low, 0, T_MAX_DIMS * sizeof *low);
  memset(high, 0, T_MAX_DIMS * sizeof *high);
  if (n % 2 || n / 2 > x->ndim || ir_failed(G)) {
    op_fail(c, TPU_ERR_RUNTIME, "padding has %d numbers, expected an even number up to %d", n, 2 * x->ndim);
    return false;
  }
  for (int i = 0; i < n / 2; i++) {
    low[x->ndim - 1 - i] = pad[2 * i];
    high[x->ndim - 1 - i] = pad[2 * i + 1];
  }
  return true;
}

static val zero_pad(op_ctx *c, val x, int dim, int64_t low, int64_t high) {
  if (low == 0 && high == 0) return x;
  int64_t lows[T_MAX_DIMS] = {0}, highs[T_MAX_DIMS] = {0}, none[T_MAX_DIMS] = {0};
  lows[dim] = low;
  highs[dim] = high;
  return ir_pad(G, x, t_scalar(c, (tpu_dtype)x->dtype, 0), lows, highs, none);
}

OP(constant_pad, "aten::constant_pad_nd") {
  val x = T(0);
  int64_t low[T_MAX_DIMS], high[T_MAX_DIMS], none[T_MAX_DIMS] = {0};
  if (!read_pads(c, 1, x, low, high)) return;
  tpu_dtype d = (tpu_dtype)x->dtype;
  RET(ir_pad(G, x, HAS(2) ? t_cast(c, S(2), d) : t_scalar(c, d, 0), low, high, none));
}

typedef enum { REFLECT, REPLICATE } border;

static int64_t positive(int64_t n) { return n > 0 ? n : 0; }

/* The n elements beyond one end (low: before the first). */
static val beyond(op_ctx *c, val x, int dim, bool low, int64_t n, border kind) {
  int64_t size = t_size(x, dim);
  if (kind == REFLECT) return ir_reverse(G, t_narrow(c, x, dim, low ? 1 : size - 1 - n, n, 1), 1, &dim);
  int64_t dims[T_MAX_DIMS];
  memcpy(dims, x->dims, (size_t)x->ndim * sizeof *dims);
  dims[dim] = n;
  return t_broadcast_to(c, t_narrow(c, x, dim, low ? 0 : size - 1, 1, 1), x->ndim, dims);
}

static val pad_dim(op_ctx *c, val x, int dim, int64_t low, int64_t high, border kind) {
  val parts[3];
  int n = 0;
  if (low > 0) parts[n++] = beyond(c, x, dim, true, low, kind);
  parts[n++] = x;
  if (high > 0) parts[n++] = beyond(c, x, dim, false, high, kind);
  x = t_concat(c, parts, n, dim);
  int64_t first = positive(-low), last = positive(-high);
  return t_narrow(c, x, dim, first, t_size(x, dim) - first - last, 1);
}

/* Gradient of pad_dim for an input of size n along dim. */
static val unpad_dim(op_ctx *c, val g, int dim, int64_t n, int64_t low, int64_t high, border kind) {
  g = zero_pad(c, g, dim, positive(-low), positive(-high));
  low = positive(low);
  high = positive(high);
  val sum = t_narrow(c, g, dim, low, n, 1);
  for (int side = 0; side < 2; side++) {
    int64_t k = side ? high : low;
    if (k == 0) continue;
    val part = t_narrow(c, g, dim, side ? low + n : 0, k, 1);
    if (kind == REFLECT) {
      part = ir_reverse(G, part, 1, &dim);
      part = zero_pad(c, part, dim, side ? n - 1 - k : 1, side ? 1 : n - 1 - k);
    } else {
      part = t_sum(c, part, &dim, 1, true);
      part = zero_pad(c, part, dim, side ? n - 1 : 0, side ? 0 : n - 1);
    }
    sum = t_add(c, sum, part);
  }
  return sum;
}

static void pad(op_ctx *c, border kind) {
  val x = T(0);
  int64_t low[T_MAX_DIMS], high[T_MAX_DIMS];
  if (!read_pads(c, 1, x, low, high)) return;
  for (int d = x->ndim - 1; d >= 0 && !ir_failed(G); d--)
    if (low[d] || high[d]) x = pad_dim(c, x, d, low[d], high[d], kind);
  RET(x);
}

static void pad_backward(op_ctx *c, border kind) {
  val g = T(0), x = T(1);
  int64_t low[T_MAX_DIMS], high[T_MAX_DIMS];
  if (!read_pads(c, 2, x, low, high)) return;
  tpu_dtype d0 = (tpu_dtype)g->dtype;
  g = t_cast(c, g, t_opmath(d0));
  for (int d = 0; d < x->ndim && !ir_failed(G); d++)
    if (low[d] || high[d]) g = unpad_dim(c, g, d, x->dims[d], low[d], high[d], kind);
  RET(t_cast(c, g, d0));
}

OP(reflection_pad1d, "aten::reflection_pad1d") { pad(c, REFLECT); }
OP(reflection_pad2d, "aten::reflection_pad2d") { pad(c, REFLECT); }
OP(reflection_pad3d, "aten::reflection_pad3d") { pad(c, REFLECT); }
OP(replication_pad1d, "aten::replication_pad1d") { pad(c, REPLICATE); }
OP(replication_pad2d, "aten::replication_pad2d") { pad(c, REPLICATE); }
OP(replication_pad3d, "aten::replication_pad3d") { pad(c, REPLICATE); }
OP(reflection_pad1d_backward, "aten::reflection_pad1d_backward") { pad_backward(c, REFLECT); }
OP(reflection_pad2d_backward, "aten::reflection_pad2d_backward") { pad_backward(c, REFLECT); }
OP(reflection_pad3d_backward, "aten::reflection_pad3d_backward") { pad_backward(c, REFLECT); }
OP(replication_pad1d_backward, "aten::replication_pad1d_backward") { pad_backward(c, REPLICATE); }
OP(replication_pad2d_backward, "aten::replication_pad2d_backward") { pad_backward(c, REPLICATE); }
OP(replication_pad3d_backward, "aten::replication_pad3d_backward") { pad_backward(c, REPLICATE); }
