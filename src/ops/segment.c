/* torch.segment_reduce: runs of neighbours along a dim, given by their lengths or by where they begin. */
#include <math.h>
#include <string.h>

#include "ops/along.h"
#include "ops/pointwise.h"

typedef struct {
  int axis;
  int64_t count; /* of segments */
  val length;    /* [leading.., segments], int64 */
  val number;    /* of the segment that each place of the axis is in; the count for those in none [leading.., n] */
} segments;

/* lengths [leading.., segments] or offsets [leading.., segments + 1], whose last dim is the axis */
static bool read_segments(op_ctx *c, segments *s, val x, int lengths_arg, int offsets_arg) {
  bool by_length = HAS(lengths_arg);
  if (!by_length && !HAS(offsets_arg))
    op_fail(c, TPU_ERR_RUNTIME, "segment_reduce(): Either lengths or offsets must be defined.");
  if (ir_failed(G)) return false;
  val given = t_cast(c, T(by_length ? lengths_arg : offsets_arg), TPU_I64);
  int axis = s->axis = given->ndim - 1;
  if (axis < 0 || x->ndim <= axis || memcmp(x->dims, given->dims, (size_t)axis * sizeof *x->dims) ||
      (!by_length && given->dims[axis] < 1)) {
    op_fail(c, TPU_ERR_RUNTIME, "segment_reduce(): the lengths or offsets do not fit the data's dimensions");
    return false;
  }
  int64_t n = x->dims[axis], dims[T_MAX_DIMS], low[T_MAX_DIMS] = {0}, zero[T_MAX_DIMS] = {0};
  memcpy(dims, given->dims, (size_t)given->ndim * sizeof *dims);
  s->count = dims[axis] - !by_length;
  val start = given;
  if (by_length) {
    s->length = given;
    low[axis] = 1;
    start = ir_pad(G, t_cumsum(c, given, axis), t_scalar(c, TPU_I64, 0), low, zero, zero);
  } else {
    s->length = P_SUB(t_narrow(c, given, axis, 1, s->count, 1), t_narrow(c, given, axis, 0, s->count, 1));
  }
  dims[axis] = n;
  val first = t_scatter(c, t_zeros(c, TPU_I64, axis + 1, dims), axis, start, t_like(c, start, 1), IR_ADD);
  val number = P_ADDC(t_cumsum(c, first, axis), -1);
  s->number = P_SEL(P_CMPC(LT, number, 0), t_like(c, number, (double)s->count), number);
  return !ir_failed(G);
}

/* v [leading.., k] as wide as x, whose dims after the axis it lacks; k stays. */
static val spread(op_ctx *c, const segments *s, val v, val x) {
  int64_t dims[T_MAX_DIMS];
  if (ir_failed(G)) return v;
  memcpy(dims, x->dims, (size_t)x->ndim * sizeof *dims);
  dims[s->axis] = v->dims[s->axis];
  while (!ir_failed(G) && v->ndim < x->ndim) v = t_unsqueeze(c, v, v->ndim);
  return t_broadcast_to(c, v, x->ndim, dims);
}

/* x joined into out [leading.., segments, rest..] */
static val join(op_ctx *c, const segments *s, val out, val x, ir_opcode body) {
  if (ir_failed(G)) return out;
  if (s->axis == 0) return t_scatter_slices(c, out, 0, s->number, x, (int)body);
  return t_scatter(c, out, s->axis, spread(c, s, s->number, x), x, (int)body);
}

/* Each place's value of its segment; that of the last one for places that are in none. */
static val back(op_ctx *c, const segments *s, val v, val x) {
  if (ir_failed(G)) return v;
  if (s->count == 0) return t_like(c, t_cast(c, x, (tpu_dtype)v->dtype), 0);
  val at = P_SEL(P_CMPC(EQ, s->number, (double)s->count), P_ADDC(s->number, -1), s->number);
  return s->axis == 0 ? t_take(c, v, 0, at) : t_gather(c, v, s->axis, spread(c, s, at, x));
}

static val segments_like(op_ctx *c, const segments *s, val x, tpu_dtype d, val fill) {
  int64_t dims[T_MAX_DIMS];
  if (ir_failed(G)) return x;
  memcpy(dims, x->dims, (size_t)x->ndim * sizeof *dims);
  dims[s->axis] = s->count;
  return ir_splat(G, t_cast(c, fill, d), x->ndim, dims);
}

typedef enum { R_SUM, R_MEAN, R_PROD, R_MAX, R_MIN, R_NONE } kind;
static kind read_kind(op_ctx *c, int arg) {
  static const char *const names[] = {"sum", "mean", "prod", "max", "min"};
  for (int i = 0; i < R_NONE; i++)
    if (!strcmp(op_str(c, arg), names[i])) return (kind)i;
  op_fail(c, TPU_ERR_RUNTIME, "reduce argument must be either sum, prod, mean, amax or amin, got %s", op_str(c, arg));
  return R_NONE;
}

/* (data, reduce, lengths, indices, offsets, axis, unsafe, initial); the adapter has checked the lengths */
OP(segment_reduce, "aten::segment_reduce") {
  val x = p_only_float(c, "_segment_reduce_cpu", T(0));
  kind k = read_kind(c, 1);
  segments s;
  if (!read_segments(c, &s, x, 2, 4)) return;
  tpu_dtype d = (tpu_dtype)x->dtype;
  static const ir_opcode bodies[] = {IR_ADD, IR_ADD, IR_MUL, IR_MAX, IR_MIN};
  const double starts[] = {0, 0, 1, -INFINITY, INFINITY};
  val start = HAS(7) ? S(7) : t_scalar(c, d, starts[k]);
  val r = join(c, &s, segments_like(c, &s, x, d, start), x, bodies[k]);
  if (k == R_MAX || k == R_MIN) { /* XLA's maximum may drop a NaN */
    val nan = join(c, &s, segments_like(c, &s, x, TPU_BOOL, t_scalar(c, TPU_BOOL, 0)), p_isnan(c, x), IR_OR);
    if (ir_failed(G)) return;
    r = P_SEL(nan, P_NUM(r, NAN), r);
  } else if (k == R_MEAN) {
    val n = spread(c, &s, s.length, r), none = P_CMPC(LE, n, 0);
    if (ir_failed(G)) return;
    r = P_SEL(none, HAS(7) ? r : P_NUM(r, NAN), P_DIV(r, t_cast(c, n, d)));
  }
  RET(r);
}

/* Of a product of segments (with `initial`), the gradient of each factor x: the product of the others, which is the
 * product over x unless x is 0 or NaN. */
static val product_gradient(op_ctx *c, const segments *s, val x, val g, val out, val initial) {
  tpu_dtype d = (tpu_dtype)x->dtype;
  val one = P_NUM(x, 1), zero = P_NUM(x, 0), nan = p_isnan(c, x), none = P_CMPC(EQ, x, 0), odd = P_OR(nan, none);
  val rest = join(c, s, segments_like(c, s, x, d, initial), P_SEL(odd, one, x), IR_MUL);
  val counts[2] = {P_SEL(nan, one, zero), P_SEL(none, one, zero)}, others[2];
  for (int i = 0; i < 2; i++) {
    val sum = join(c, s, segments_like(c, s, x, d, t_scalar(c, d, 0)), counts[i], IR_ADD);
    others[i] = P_CMPC(GT, P_SUB(back(c, s, sum, x), counts[i]), 0);
  }
  rest = back(c, s, rest, x);
  val exclusive = P_SEL(others[0], P_NUM(x, NAN), P_SEL(others[1], P_MUL(rest, zero), rest));
  return P_SEL(odd, P_MUL(g, exclusive), P_DIV(P_MUL(g, back(c, s, out, x)), x));
}

/* (grad, output, data, reduce, lengths, offsets, axis, initial) */
OP(segment_reduce_backward, "aten::_segment_reduce_backward") {
  val x = p_only_float(c, "_segment_reduce_cpu", T(2));
  kind k = read_kind(c, 3);
  segments s;
  if (!read_segments(c, &s, x, 4, 5)) return;
  tpu_dtype d = (tpu_dtype)x->dtype;
  val out = t_cast(c, T(1), d), g = back(c, &s, t_cast(c, T(0), d), x), r = g;
  val inside = spread(c, &s, P_CMPC(LT, s.number, (double)s.count), x);
  if (ir_failed(G)) return;
  if (k == R_MAX || k == R_MIN) {
    val hit = P_AND(inside, P_OR(p_isnan(c, x), P_CMP(EQ, x, back(c, &s, out, x)))), zero = P_NUM(x, 0);
    val n = join(c, &s, segments_like(c, &s, x, d, t_scalar(c, d, 0)), ir_convert(G, hit, d), IR_ADD);
    /* equals share; as in PyTorch, only a gradient above 0 */
    r = P_SEL(hit, P_SEL(P_CMPC(GT, g, 0), P_DIV(g, P_MAX(back(c, &s, n, x), P_NUM(x, 1))), g), zero);
  } else if (k == R_MEAN) {
    r = P_DIV(g, t_cast(c, back(c, &s, spread(c, &s, s.length, out), x), d));
  } else if (k == R_PROD) {
    r = product_gradient(c, &s, x, g, out, HAS(7) ? S(7) : t_scalar(c, d, 1));
  }
  RET(P_SEL(inside, r, P_NUM(r, 0)));
}
