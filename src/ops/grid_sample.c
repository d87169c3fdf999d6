/* grid_sampler_2d and _3d: every output point reads a few places of its image ("taps") and sums them by weight. */
#include <string.h>

#include "ops/along.h"
#include "ops/pointwise.h"

enum { BILINEAR, NEAREST, BICUBIC };
enum { ZEROS, BORDER, REFLECTION };
enum { MAX_SPATIAL = 3, MAX_TAPS = 4 };

typedef struct {
  int n, mode, padding;
  bool align;
  int64_t batch, channels, points, size[MAX_SPATIAL]; /* size: spatial dims of the input, first one first */
  tpu_dtype m;
  val x;    /* [batch, channels, all of the plane] */
  val grid; /* [batch, points, n], last coordinate first */
} sampler;

/* Along one spatial dim: places, their weights and the weights' derivatives, each [batch, points]. */
typedef struct {
  int taps;
  val place[MAX_TAPS]; /* whole numbers, maybe outside */
  val weight[MAX_TAPS], slope[MAX_TAPS];
  val grad; /* of the (padded) coordinate with respect to the grid's number */
} axis;

static bool read_args(op_ctx *c, sampler *s, int n, int input, int grid, int at) {
  val x = T(input), g = T(grid);
  if (ir_failed(G)) return false;
  if (x->ndim != n + 2 || g->ndim != n + 2 || g->dims[n + 1] != n || g->dims[0] != x->dims[0]) {
    op_fail(c, TPU_ERR_RUNTIME,
            "grid_sampler(): expected input and grid to have %d dimensions, the same batch size, and %d coordinates",
            n + 2, n);
    return false;
  }
  *s = (sampler){.n = n,
                 .mode = (int)INT(at),
                 .padding = (int)INT(at + 1),
                 .align = INT(at + 2),
                 .batch = x->dims[0],
                 .channels = x->dims[1]};
  int64_t plane = 1;
  s->points = 1;
  for (int i = 0; i < n; i++) {
    s->size[i] = x->dims[i + 2];
    plane *= x->dims[i + 2];
    s->points *= g->dims[i + 1];
  }
  if (n == 3 && s->mode == BICUBIC)
    op_fail(c, TPU_ERR_RUNTIME, "grid_sampler(): bicubic interpolation only supports 4D input");
  s->m = t_opmath((tpu_dtype)x->dtype);
  s->x = t_reshape(c, t_cast(c, x, s->m), 3, (const int64_t[]){s->batch, s->channels, plane});
  s->grid = t_reshape(c, t_cast(c, g, s->m), 3, (const int64_t[]){s->batch, s->points, n});
  return !ir_failed(G);
}

static bool nothing(const sampler *s) { return s->batch * s->channels * s->points == 0; }

/* ---- coordinates ---------------------------------------------------------------------------------------------------
 */

/* Clamped to [0, size - 1]; NaN goes to 0. *grad becomes 0 where it is clamped. */
static val clip(op_ctx *c, val x, int64_t size, val *grad) {
  val zero = P_NUM(x, 0), top = P_NUM(x, (double)(size - 1));
  val inside = P_AND(P_CMP(GT, x, zero), P_CMP(LT, x, top));
  if (grad) *grad = P_SEL(inside, *grad, zero);
  return P_SEL(P_CMP(GT, x, zero), P_SEL(P_CMP(LT, x, top), x, top), zero);
}

static val reflect(op_ctx *c, val x, int64_t twice_low, int64_t twice_high, val *grad) {
  if (twice_low == twice_high) {
    if (grad) *grad = P_NUM(x, 0);
    return P_NUM(x, 0);
  }
  double low = (double)twice_low / 2, span = (double)(twice_high - twice_low) / 2;
  val moved = P_ADDC(x, -low), negative = P_CMPC(LT, moved, 0), a = P_UN(ABS, moved);
  val extra = ir_binary(G, IR_REM, a, P_NUM(a, span)), flips = P_UN(FLOOR, P_MULC(a, 1 / span));
  val half = P_MULC(flips, 0.5), odd = P_CMP(NE, half, P_UN(FLOOR, half));
  if (grad) *grad = P_SEL(P_CMP(NE, negative, odd), P_UN(NEG, *grad), *grad);
  return P_ADDC(P_SEL(odd, P_SUB(P_NUM(a, span), extra), extra), low);
}

static val pad_coordinate(op_ctx *c, const sampler *s, val x, int64_t size, val *grad) {
  if (s->padding == BORDER) return clip(c, x, size, grad);
  if (s->padding != REFLECTION) return x;
  x = s->align ? reflect(c, x, 0, 2 * (size - 1), grad) : reflect(c, x, -1, 2 * size - 1, grad);
  return clip(c, x, size, grad);
}

/* Keys' kernel with a = -0.75 and its derivative, at distance x of tap t */
static val cubic(op_ctx *c, val x, bool near, bool slope) {
  const double a = -0.75;
  const double w[2][4] = {{-4 * a, 8 * a, -5 * a, a}, {1, 0, -(a + 3), a + 2}};
  const double d[2][3] = {{8 * a, -10 * a, 3 * a}, {0, -2 * (a + 3), 3 * (a + 2)}};
  return slope ? p_poly(c, x, d[near], 3) : p_poly(c, x, w[near], 4);
}

static void make_axis(op_ctx *c, const sampler *s, int dim, axis *q) {
  int64_t size = s->size[dim];
  double scale = s->align ? (double)(size - 1) / 2 : (double)size / 2;
  val g = t_squeeze(c, t_narrow(c, s->grid, 2, s->n - 1 - dim, 1, 1), 2);
  if (ir_failed(G)) return;
  val x = P_MULC(P_ADDC(g, 1), scale);
  if (!s->align) x = P_ADDC(x, -0.5);
  q->grad = P_NUM(x, scale);
  if (s->mode == BICUBIC) {
    val base = P_UN(FLOOR, x), f = P_SUB(x, base), back = P_SUB(P_NUM(f, 1), f);
    q->taps = 4;
    for (int t = 0; t < 4; t++) {
      val d = t == 0 ? P_ADDC(f, 1) : t == 1 ? f : t == 2 ? back : P_ADDC(back, 1);
      bool near = t == 1 || t == 2;
      q->place[t] = pad_coordinate(c, s, P_ADDC(base, t - 1), size, NULL);
      q->weight[t] = cubic(c, d, near, false);
      q->slope[t] = t < 2 ? cubic(c, d, near, true) : P_UN(NEG, cubic(c, d, near, true));
    }
    return;
  }
  x = pad_coordinate(c, s, x, size, &q->grad);
  if (s->mode == NEAREST) {
    q->taps = 1;
    q->place[0] = P_UN(ROUND_EVEN, x);
    q->weight[0] = P_NUM(x, 1);
    q->slope[0] = P_NUM(x, 0);
    return;
  }
  val base = P_UN(FLOOR, x), f = P_SUB(x, base);
  q->taps = 2;
  q->place[0] = base;
  q->place[1] = P_ADDC(base, 1);
  q->weight[0] = P_SUB(P_NUM(f, 1), f);
  q->weight[1] = f;
  q->slope[0] = P_NUM(f, -1);
  q->slope[1] = P_NUM(f, 1);
}

/* ---- taps ----------------------------------------------------------------------------------------------------------
 */

typedef struct {
  val index;              /* int32 [batch, points] in the plane, inside it */
  val inside;             /* whether the place exists */
  val weight;             /* product over the axes */
  val slope[MAX_SPATIAL]; /* its derivative along each axis */
} tap;

static int count_taps(const sampler *s, const axis *q) {
  int n = 1;
  for (int i = 0; i < s->n; i++) n *= q[i].taps;
  return n;
}

static void make_tap(op_ctx *c, const sampler *s, const axis *q, int k, tap *t) {
  int at[MAX_SPATIAL];
  for (int i = s->n - 1; i >= 0; i--) {
    at[i] = k % q[i].taps;
    k /= q[i].taps;
  }
  memset(t, 0, sizeof *t);
  for (int i = 0; i < s->n && !ir_failed(G); i++) {
    val p = q[i].place[at[i]], top = P_NUM(p, (double)(s->size[i] - 1)), zero = P_NUM(p, 0);
    val ok = P_AND(P_CMP(GE, p, zero), P_CMP(LE, p, top));
    val j = ir_convert(G, P_SEL(ok, p, zero), TPU_I32);
    t->inside = t->inside ? P_AND(t->inside, ok) : ok;
    t->index = t->index ? P_ADD(P_MULC(t->index, (double)s->size[i]), j) : j;
    t->weight = t->weight ? P_MUL(t->weight, q[i].weight[at[i]]) : q[i].weight[at[i]];
    for (int d = 0; d < s->n; d++) {
      val w = d == i ? q[i].slope[at[i]] : q[i].weight[at[i]];
      t->slope[d] = t->slope[d] ? P_MUL(t->slope[d], w) : w;
    }
  }
}

static const int batch_dim = 0, plane_dim = 2, channel_dim = 1;

/* The inputs at a tap: [batch, channels, points] */
static val read_tap(op_ctx *c, const sampler *s, const tap *t) {
  ir_gather_dims g = {.noffset = 1,
                      .offset_dims = &channel_dim,
                      .ncollapsed = 1,
                      .collapsed_dims = &plane_dim,
                      .nbatching = 1,
                      .operand_batching = &batch_dim,
                      .indices_batching = &batch_dim,
                      .nstart = 1,
                      .start_index_map = &plane_dim,
                      .index_vector_dim = 2};
  return ir_gather(G, s->x, t->index, &g, (const int64_t[]){1, s->channels, 1}, false);
}

/* [batch, points] as [batch, channels, points] */
static val over_channels(op_ctx *c, const sampler *s, val v) {
  return ir_broadcast(G, v, 3, (const int64_t[]){s->batch, s->channels, s->points}, (const int[]){0, 2});
}

/* (input, grid, interpolation_mode, padding_mode, align_corners) */
static void sample(op_ctx *c, int n) {
  sampler s;
  axis q[MAX_SPATIAL];
  int64_t dims[MAX_SPATIAL + 2];
  if (!read_args(c, &s, n, 0, 1, 2)) return;
  dims[0] = s.batch;
  dims[1] = s.channels;
  for (int i = 0; i < n; i++) dims[i + 2] = T(1)->dims[i + 1];
  if (nothing(&s)) {
    RET(t_zeros(c, s.m, n + 2, dims));
    return;
  }
  for (int i = 0; i < n; i++) make_axis(c, &s, i, &q[i]);
  if (ir_failed(G)) return;
  val sum = NULL;
  for (int k = 0; k < count_taps(&s, q) && !ir_failed(G); k++) {
    tap t;
    make_tap(c, &s, q, k, &t);
    val w = over_channels(c, &s, t.weight), in = over_channels(c, &s, t.inside), zero = t_zeros(c, s.m, 3, w->dims);
    val part = ir_select(G, in, P_MUL(read_tap(c, &s, &t), w), zero);
    sum = sum ? P_ADD(sum, part) : part;
  }
  if (sum) RET(t_reshape(c, sum, n + 2, dims));
}
OP(grid_sampler_2d, "aten::grid_sampler_2d") { sample(c, 2); }
OP(grid_sampler_3d, "aten::grid_sampler_3d") { sample(c, 3); }

/* (grad_output, input, grid, interpolation_mode, padding_mode, align_corners, output_mask) */
static void sample_backward(op_ctx *c, int n) {
  sampler s;
  axis q[MAX_SPATIAL];
  int nmask;
  const int64_t *mask = op_ints(c, 6, &nmask);
  if (!read_args(c, &s, n, 1, 2, 3)) return;
  bool for_input = nmask < 1 || mask[0], for_grid = nmask < 2 || mask[1];
  val x = T(1), grid = T(2);
  if (nothing(&s)) {
    if (for_input) RETN(0, t_zeros(c, s.m, x->ndim, x->dims));
    if (for_grid) RETN(1, t_zeros(c, s.m, grid->ndim, grid->dims));
    return;
  }
  val g = t_reshape(c, t_cast(c, T(0), s.m), 3, (const int64_t[]){s.batch, s.channels, s.points});
  for (int i = 0; i < n; i++) make_axis(c, &s, i, &q[i]);
  if (ir_failed(G)) return;
  val gx = t_like(c, s.x, 0), gg[MAX_SPATIAL] = {NULL};
  for (int k = 0; k < count_taps(&s, q) && !ir_failed(G); k++) {
    tap t;
    make_tap(c, &s, q, k, &t);
    if (for_input) {
      ir_scatter_dims d = {.nwindow = 1,
                           .update_window_dims = &channel_dim,
                           .ninserted = 1,
                           .inserted_window_dims = &plane_dim,
                           .nbatching = 1,
                           .operand_batching = &batch_dim,
                           .indices_batching = &batch_dim,
                           .nscatter = 1,
                           .scatter_dims_to_operand = &plane_dim,
                           .index_vector_dim = 2};
      val part =
          ir_select(G, over_channels(c, &s, t.inside), P_MUL(g, over_channels(c, &s, t.weight)), t_like(c, g, 0));
      gx = ir_scatter(G, gx, t.index, part, &d, IR_ADD, false, false);
    }
    if (!for_grid) continue;
    val along = t_sum(c, P_MUL(g, read_tap(c, &s, &t)), (int[]){1}, 1, false); /* [batch, points] */
    for (int i = 0; i < n && !ir_failed(G); i++) {
      val part = ir_select(G, t.inside, P_MUL(along, t.slope[i]), t_like(c, along, 0));
      gg[i] = gg[i] ? P_ADD(gg[i], part) : part;
    }
  }
  if (for_input) RETN(0, t_reshape(c, gx, x->ndim, x->dims));
  if (!for_grid || ir_failed(G)) return;
  val parts[MAX_SPATIAL];
  for (int i = 0; i < n; i++) parts[n - 1 - i] = t_unsqueeze(c, P_MUL(gg[i], q[i].grad), 2);
  RETN(1, t_reshape(c, t_concat(c, parts, n, 2), grid->ndim, grid->dims));
}
OP(grid_sampler_2d_backward, "aten::grid_sampler_2d_backward") { sample_backward(c, 2); }
OP(grid_sampler_3d_backward, "aten::grid_sampler_3d_backward") { sample_backward(c, 3); }
