/* Channels to pixels and back; channels in another order. */
#include <string.h>

#include "ops/along.h"

/* [.., C, H, W] taken apart to `split` (rank n), permuted, joined to `joined` (three sizes); leading dims stay. */
static val rearrange(op_ctx *c, val x, int tail, int n, const int64_t *split, const int *order, const int64_t *joined) {
  int64_t dims[T_MAX_DIMS];
  int perm[T_MAX_DIMS], lead = x->ndim - tail;
  memcpy(dims, x->dims, (size_t)lead * sizeof *dims);
  memcpy(dims + lead, split, (size_t)n * sizeof *dims);
  for (int i = 0; i < lead; i++) perm[i] = i;
  for (int i = 0; i < n; i++) perm[lead + i] = lead + order[i];
  val y = t_permute(c, t_reshape(c, x, lead + n, dims), perm);
  memcpy(dims + lead, joined, (size_t)tail * sizeof *dims);
  return t_reshape(c, y, x->ndim, dims);
}

static bool image(op_ctx *c, val x, int64_t factor) {
  if (ir_failed(G)) return false;
  if (x->ndim >= 3 && factor > 0) return true;
  op_fail(c, TPU_ERR_RUNTIME, "expected an input with at least 3 dimensions and a factor above 0, got %d and %lld",
          x->ndim, (long long)factor);
  return false;
}

OP(pixel_shuffle, "aten::pixel_shuffle") {
  val x = T(0);
  int64_t r = INT(1);
  if (!image(c, x, r)) return;
  const int64_t *s = x->dims + x->ndim - 3, k = s[0] / (r * r);
  RET(rearrange(c, x, 3, 5, (int64_t[]){k, r, r, s[1], s[2]}, (int[]){0, 3, 1, 4, 2},
                (int64_t[]){k, s[1] * r, s[2] * r}));
}

OP(pixel_unshuffle, "aten::pixel_unshuffle") {
  val x = T(0);
  int64_t r = INT(1);
  if (!image(c, x, r)) return;
  const int64_t *s = x->dims + x->ndim - 3, h = s[1] / r, w = s[2] / r;
  RET(rearrange(c, x, 3, 5, (int64_t[]){s[0], h, r, w, r}, (int[]){0, 2, 4, 1, 3}, (int64_t[]){s[0] * r * r, h, w}));
}

/* [N, C, ..] */
static void channel_shuffle(op_ctx *c) {
  val x = T(0);
  int64_t g = INT(1);
  if (!image(c, x, g)) return;
  if (x->dims[1] % g) {
    op_fail(c, TPU_ERR_RUNTIME, "Number of channels must be divisible by groups. Got %lld channels and %lld groups.",
            (long long)x->dims[1], (long long)g);
    return;
  }
  int64_t split[T_MAX_DIMS], order_dims = x->ndim - 1;
  int order[T_MAX_DIMS];
  split[0] = g;
  split[1] = x->dims[1] / g;
  memcpy(split + 2, x->dims + 2, (size_t)(x->ndim - 2) * sizeof *split);
  for (int i = 0; i <= order_dims; i++) order[i] = i < 2 ? 1 - i : i;
  RET(rearrange(c, x, x->ndim - 1, x->ndim, split, order, x->dims + 1));
}
OP(channel_shuffle, "aten::channel_shuffle") { channel_shuffle(c); }
