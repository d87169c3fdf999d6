/* Connectionist temporal classification: the recursions over time of Graves et al., in logarithms, for all of a batch
 * and all of its labels at once. The adapter brings targets to [batch, longest] and lengths to the device. */
#include <math.h>

#include "ops/along.h"
#include "ops/pointwise.h"

typedef struct {
  int64_t time, batch, classes, places; /* places: 2 * longest + 1, labels with blanks around each */
  val lp;                               /* [time, batch, classes] */
  val label, at;                        /* [batch, places], and broadcast to [time, batch, places] */
  val emit;                             /* the log probability of each place's label, [time, batch, places] */
  val place;                            /* 0, 1, .. [batch, places] */
  val steps, end;                       /* input length and last place of each sequence, [batch, 1], int32 */
} ctc;

static bool ctc_read(op_ctx *c, ctc *k, val lp, val targets, val steps, val lengths, int64_t blank) {
  if (ir_failed(G)) return false;
  if (lp->ndim != 3 || targets->ndim != 2 || steps->ndim != 1 || lengths->ndim != 1) {
    op_fail(c, TPU_ERR_RUNTIME, "ctc_loss: expected log_probs of 3 dimensions, targets of 2 and lengths of 1");
    return false;
  }
  int64_t n = t_size(targets, 1), dims[3];
  *k = (ctc){.time = lp->dims[0], .batch = lp->dims[1], .classes = lp->dims[2], .places = 2 * n + 1};
  k->lp = t_cast(c, lp, t_opmath((tpu_dtype)lp->dtype));
  dims[0] = k->time, dims[1] = k->batch, dims[2] = k->places;
  val b = ir_const_i(G, TPU_I32, blank, 0, NULL);
  if (n == 0) {
    k->label = ir_splat(G, b, 2, dims + 1);
  } else {
    const int64_t side[2] = {0, 1};
    k->label = ir_pad(G, t_cast(c, targets, TPU_I32), b, side, side, side);
  }
  k->at = t_broadcast_to(c, k->label, 3, dims);
  k->emit = t_gather(c, k->lp, 2, k->at);
  k->place = ir_iota(G, TPU_I32, 2, dims + 1, 1);
  val len = t_unsqueeze(c, t_cast(c, lengths, TPU_I32), 1);
  k->steps = t_unsqueeze(c, t_cast(c, steps, TPU_I32), 1);
  k->end = t_add(c, len, len);
  return !ir_failed(G);
}

static val never(op_ctx *c, val like) { return t_like(c, like, -INFINITY); }
static val wide(op_ctx *c, val v, val like) { return t_broadcast_to(c, v, like->ndim, like->dims); }

/* v [batch, places] moved by k places; fill comes in. */
static val moved(op_ctx *c, val v, int64_t k, val fill) {
  const int64_t low[2] = {0, k}, high[2] = {0, -k}, inside[2] = {0, 0};
  return ir_pad(G, v, fill, low, high, inside);
}

/* log(exp a + exp b + exp c) */
static val log_sum(op_ctx *c, const val *v) {
  val m = P_MAX(P_MAX(v[0], v[1]), v[2]), sum = NULL;
  m = P_SEL(P_CMP(EQ, m, never(c, m)), P_NUM(m, 0), m);
  for (int i = 0; i < 3; i++) {
    val e = P_UN(EXP, P_SUB(v[i], m));
    sum = sum ? P_ADD(sum, e) : e;
  }
  return P_ADD(P_UN(LOG, sum), m);
}

/* From v at one time: what reaches each place in a step of 0, 1 or 2 places (way: 1 upwards, -1 downwards). Two are
 * allowed between labels that differ. */
static val reach(op_ctx *c, const ctc *k, val v, int64_t way) {
  val none = t_scalar(c, (tpu_dtype)v->dtype, -INFINITY), other = moved(c, k->label, 2 * way, t_scalar(c, TPU_I32, -1));
  val inside = way > 0 ? P_CMPC(GE, k->place, 2) : P_CMPC(LT, k->place, (double)k->places - 2);
  val two = P_AND(inside, P_CMP(NE, other, k->label)), by_two = moved(c, v, 2 * way, none);
  const val from[3] = {v, moved(c, v, way, none), P_SEL(two, by_two, never(c, v))};
  return log_sum(c, from);
}

static val row_of(op_ctx *c, val x, val t) { /* x[t] of [time, batch, places] */
  const val start[3] = {t, t_scalar(c, TPU_I32, 0), t_scalar(c, TPU_I32, 0)};
  const int64_t size[3] = {1, x->dims[1], x->dims[2]};
  return ir_reshape(G, ir_dynamic_slice(G, x, start, size), 2, size + 1);
}
static val with_row(op_ctx *c, val x, val row, val t) {
  const val start[3] = {t, t_scalar(c, TPU_I32, 0), t_scalar(c, TPU_I32, 0)};
  return ir_dynamic_update_slice(G, x, t_unsqueeze(c, row, 0), start);
}

/* log_alpha or log_beta [time, batch, places]: the probability of all ways from the beginning (forward) to a place at a
 * time, or from there to the end, emissions at both ends counted. -inf outside of a sequence. */
static val recursion(op_ctx *c, const ctc *k, bool forward) {
  val all = never(c, k->emit);
  if (ir_failed(G) || ir_numel(all) == 0) return all;
  const int64_t dims[2] = {k->batch, k->places};
  val first = ir_const_i(G, TPU_I32, forward ? 0 : k->time - 1, 0, NULL);
  const val init[3] = {first, ir_const_f(G, (tpu_dtype)all->dtype, -INFINITY, 2, dims), all};
  val at[3], out[3];
  ir_while_begin(G, init, 3, at);
  ir_while_body(G, forward ? P_CMPC(LT, at[0], (double)k->time) : P_CMPC(GE, at[0], 0), at);
  val t = at[0], emit = row_of(c, k->emit, t), last = P_ADDC(k->steps, -1), place = k->place;
  val ends = wide(c, k->end, place); /* the sequence's last place, a blank; its last label is one before */
  val edge = forward ? P_CMPC(LE, place, 1) : P_CMP(GE, place, P_ADDC(ends, -1)), valid = P_CMP(LE, place, ends);
  val begins = forward ? t_cmp(c, IR_EQ, t, t_scalar(c, TPU_I32, 0)) : t_cmp(c, IR_EQ, last, t);
  val start = P_SEL(edge, P_NUM(emit, 0), never(c, emit)), next = reach(c, k, at[1], forward ? 1 : -1);
  val v = P_ADD(P_SEL(wide(c, begins, valid), start, next), emit);
  v = P_SEL(P_AND(valid, wide(c, t_cmp(c, IR_LE, t, last), valid)), v, never(c, v));
  const val body[3] = {P_ADDC(t, forward ? 1 : -1), v, with_row(c, at[2], v, t)};
  ir_while_end(G, body, out);
  return out[2];
}

/* (log_probs [T, N, C], targets [N, S], input_lengths [N], target_lengths [N], blank, zero_infinity) ->
 * (negative log likelihood [N], log_alpha [N, T, 2S + 1]) */
OP(ctc_loss, "aten::_ctc_loss.Tensor") {
  ctc k;
  if (!ctc_read(c, &k, T(0), T(1), T(2), T(3), INT_OR(4, 0))) return;
  val alpha = t_permute(c, recursion(c, &k, true), (int[]){1, 0, 2});
  const int64_t flat[2] = {k.batch, k.time * k.places};
  val x = t_reshape(c, alpha, 2, flat), final = P_ADD(P_MULC(P_ADDC(k.steps, -1), (double)k.places), k.end);
  val zero = P_NUM(final, 0), no_label = P_CMPC(EQ, k.end, 0), no_time = P_CMPC(EQ, k.steps, 0);
  if (ir_failed(G)) return;
  val l[3];
  for (int i = 0; i < 2 && flat[1]; i++) l[i] = t_gather(c, x, 1, P_MAX(P_ADDC(final, -i), zero));
  if (flat[1] == 0) l[0] = l[1] = ir_const_f(G, (tpu_dtype)x->dtype, -INFINITY, 2, final->dims);
  l[1] = P_SEL(no_label, never(c, l[1]), l[1]);
  l[2] = never(c, l[0]);
  val nll = P_UN(NEG, log_sum(c, l)), empty = P_SEL(no_label, P_NUM(nll, 0), P_NUM(nll, INFINITY));
  RETN(0, t_squeeze(c, P_SEL(no_time, empty, nll), 1));
  RETN(1, alpha);
}

/* (grad [N], log_probs, targets, input_lengths, target_lengths, negative log likelihood, log_alpha, blank,
 * zero_infinity) -> [T, N, C]: what each class should have been less what it was, from the places' posteriors. */
OP(ctc_loss_backward, "aten::_ctc_loss_backward.Tensor") {
  ctc k;
  if (!ctc_read(c, &k, T(1), T(2), T(3), T(4), INT_OR(7, 0))) return;
  tpu_dtype d = (tpu_dtype)k.lp->dtype;
  val nll = t_unsqueeze(c, t_unsqueeze(c, t_cast(c, T(5), d), 0), 2), grad = t_cast(c, T(0), d);
  grad = t_unsqueeze(c, t_unsqueeze(c, grad, 0), 2); /* both [1, batch, 1] */
  val alpha = t_permute(c, t_cast(c, T(6), d), (int[]){1, 0, 2}), beta = recursion(c, &k, false);
  if (ir_failed(G)) return;
  /* PyTorch leaves alpha's other elements as they are: only beta says where a sequence is */
  val outside = P_CMP(EQ, beta, never(c, beta)), log_p = P_SUB(P_ADD(P_ADD(alpha, beta), wide(c, nll, beta)), k.emit);
  val p = P_SEL(outside, P_NUM(log_p, 0), P_UN(EXP, log_p));
  p = t_scatter(c, t_like(c, k.lp, 0), 2, k.at, p, IR_ADD);
  val impossible = t_cmp(c, IR_EQ, nll, t_like(c, nll, INFINITY));
  val lost = P_OR(impossible, p_isnan(c, nll)); /* then no class has a gradient */
  p = P_SEL(wide(c, lost, p), P_NUM(p, NAN), p);
  val r = t_mul(c, P_SUB(P_UN(EXP, k.lp), p), grad), t = t_iota_dim(c, TPU_I32, 3, 0, k.time);
  val on = t_cmp(c, IR_LT, t, t_unsqueeze(c, k.steps, 0));
  if (INT_OR(8, 0)) on = t_and(c, on, t_not(c, impossible));
  RET(P_SEL(wide(c, on, r), r, P_NUM(r, 0)));
}
