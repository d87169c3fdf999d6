/* The fused LSTM and GRU cells that PyTorch calls on devices other than the CPU: everything after the two products. */
#include "ops/op.h"

static val sigmoid(op_ctx *c, val x) { return ir_unary(G, IR_LOGISTIC, x); }
static val tanh_of(op_ctx *c, val x) { return ir_unary(G, IR_TANH, x); }
static val optional(op_ctx *c, int i) { return HAS(i) ? t_float(c, T(i)) : NULL; }

/* Gate number i of n in [batch, n * hidden] (or in a bias [n * hidden]). */
static val gate(op_ctx *c, val x, int i, int n) {
  int64_t hidden = x->dims[x->ndim - 1] / n;
  return t_narrow(c, x, x->ndim - 1, i * hidden, hidden, 1);
}

static val plus(op_ctx *c, val x, val bias) { return bias ? t_add(c, x, bias) : x; }
static val one_minus(op_ctx *c, val x) { return t_sub(c, t_scalar(c, (tpu_dtype)x->dtype, 1), x); }
/* Gradients through a sigmoid and a tanh, by their results y. */
static val through_sigmoid(op_ctx *c, val g, val y) { return t_mul(c, g, t_mul(c, one_minus(c, y), y)); }
static val through_tanh(op_ctx *c, val g, val y) { return t_mul(c, g, one_minus(c, t_mul(c, y, y))); }
/* Result in the dtype of argument 0: PyTorch has no meta kernel for some of these that would say it. */
static void ret_like_first(op_ctx *c, int ret, val x) { RETN(ret, t_cast(c, x, (tpu_dtype)T(0)->dtype)); }
static val over_batch(op_ctx *c, val x) { return t_sum(c, x, (int[]){0}, 1, false); }

/* Workspace: the gates after their activations: input, forget, cell, output. */
OP(lstm_cell, "aten::_thnn_fused_lstm_cell") {
  val x = t_add(c, t_float(c, T(0)), t_float(c, T(1))), cx = t_float(c, T(2));
  x = plus(c, plus(c, x, optional(c, 3)), optional(c, 4));
  val g[4];
  for (int i = 0; i < 4; i++) g[i] = i == 2 ? tanh_of(c, gate(c, x, i, 4)) : sigmoid(c, gate(c, x, i, 4));
  val cy = t_add(c, t_mul(c, g[1], cx), t_mul(c, g[0], g[2]));
  ret_like_first(c, 0, t_mul(c, g[3], tanh_of(c, cy)));
  ret_like_first(c, 1, cy);
  ret_like_first(c, 2, t_concat(c, g, 4, 1));
}

/* (grad_hy?, grad_cy?, cx, cy, workspace, has_bias) */
OP(lstm_cell_backward, "aten::_thnn_fused_lstm_cell_backward_impl") {
  val grad_hy = optional(c, 0), grad_cy = optional(c, 1);
  if (!grad_hy && !grad_cy) return;
  val cx = t_float(c, T(2)), cy = t_float(c, T(3)), w = t_float(c, T(4));
  if (!grad_hy) grad_hy = t_like(c, cx, 0);
  if (!grad_cy) grad_cy = t_like(c, cx, 0);
  val in = gate(c, w, 0, 4), forget = gate(c, w, 1, 4), cell = gate(c, w, 2, 4), out = gate(c, w, 3, 4);
  val t = tanh_of(c, cy);
  val gc = t_add(c, through_tanh(c, t_mul(c, grad_hy, out), t), grad_cy);
  val g[4] = {through_sigmoid(c, t_mul(c, gc, cell), in), through_sigmoid(c, t_mul(c, gc, cx), forget),
              through_tanh(c, t_mul(c, gc, in), cell), through_sigmoid(c, t_mul(c, grad_hy, t), out)};
  val gates = t_concat(c, g, 4, 1);
  RETN(0, t_cast(c, gates, (tpu_dtype)T(2)->dtype));
  RETN(1, t_cast(c, t_mul(c, gc, forget), (tpu_dtype)T(2)->dtype));
  if (op_int(c, 5)) RETN(2, t_cast(c, over_batch(c, gates), (tpu_dtype)T(2)->dtype));
}

/* Workspace: reset, update and new gates after their activations, hx, and the hidden part of the new gate. */
OP(gru_cell, "aten::_thnn_fused_gru_cell") {
  val x = plus(c, t_float(c, T(0)), optional(c, 3)), h = plus(c, t_float(c, T(1)), optional(c, 4)),
      hx = t_float(c, T(2));
  val reset = sigmoid(c, t_add(c, gate(c, x, 0, 3), gate(c, h, 0, 3)));
  val update = sigmoid(c, t_add(c, gate(c, x, 1, 3), gate(c, h, 1, 3)));
  val hidden = gate(c, h, 2, 3);
  val fresh = tanh_of(c, t_add(c, gate(c, x, 2, 3), t_mul(c, reset, hidden)));
  ret_like_first(c, 0, t_add(c, fresh, t_mul(c, update, t_sub(c, hx, fresh))));
  ret_like_first(c, 1, t_concat(c, (val[]){reset, update, fresh, hx, hidden}, 5, 1));
}

/* (grad_hy, workspace, has_bias) */
OP(gru_cell_backward, "aten::_thnn_fused_gru_cell_backward") {
  val g = t_float(c, T(0)), w = t_float(c, T(1));
  val reset = gate(c, w, 0, 5), update = gate(c, w, 1, 5), fresh = gate(c, w, 2, 5), hx = gate(c, w, 3, 5),
      hidden = gate(c, w, 4, 5);
  val g_update = through_sigmoid(c, t_mul(c, g, t_sub(c, hx, fresh)), update);
  val g_fresh = through_tanh(c, t_mul(c, g, one_minus(c, update)), fresh);
  val g_reset = through_sigmoid(c, t_mul(c, g_fresh, hidden), reset);
  val to_input = t_concat(c, (val[]){g_reset, g_update, g_fresh}, 3, 1);
  val to_hidden = t_concat(c, (val[]){g_reset, g_update, t_mul(c, g_fresh, reset)}, 3, 1);
  ret_like_first(c, 0, to_input);
  ret_like_first(c, 1, to_hidden);
  ret_like_first(c, 2, t_mul(c, g, update));
  if (!op_int(c, 2)) return;
  ret_like_first(c, 3, over_batch(c, to_input));
  ret_like_first(c, 4, over_batch(c, to_hidden));
}
