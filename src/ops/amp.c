/* What torch.amp.GradScaler asks of a device. */
#include "ops/along.h"

/* self: gradients, multiplied by 1 / scale; found_inf becomes 1 when one of them holds an infinity or NaN. */
OP(amp_unscale, "aten::_amp_foreach_non_finite_check_and_unscale") {
  val found = T(1), inv = T(2), bad = NULL;
  for (int k = 0; k < op_list_len(c, 0); k++) {
    val g = TL(0, k), x = t_float(c, g);
    if (ir_failed(G)) return;
    val finite = t_reduce(c, IR_AND, ir_unary(G, IR_IS_FINITE, x), NULL, 0, false);
    bad = bad ? t_and(c, bad, finite) : finite;
    val s = t_reshape(c, t_cast(c, inv, (tpu_dtype)x->dtype), 0, NULL);
    val one = t_cmp(c, IR_EQ, s, t_like(c, s, 1));
    op_ret_list(c, 0, k, t_where(c, one, x, t_mul(c, x, s)));
  }
  RETN(1, bad ? t_where(c, bad, found, t_like(c, found, 1)) : found);
}

static void update_scale(op_ctx *c, val *scale, val *tracker) {
  val s = T(0), t = T(1), found = T(2);
  tpu_dtype d = (tpu_dtype)s->dtype;
  val skip = t_cmp(c, IR_NE, t_reshape(c, found, s->ndim, s->dims), t_scalar(c, (tpu_dtype)found->dtype, 0));
  val good = t_add(c, t_reshape(c, t, s->ndim, s->dims), t_scalar(c, (tpu_dtype)t->dtype, 1));
  val full = t_cmp(c, IR_EQ, good, ir_const_i(G, (tpu_dtype)t->dtype, INT(5), 0, NULL));
  val grown = t_mul(c, s, t_cast(c, S(3), d));
  if (ir_failed(G)) return;
  val larger = t_and(c, full, ir_unary(G, IR_IS_FINITE, grown));
  *scale = t_where(c, skip, t_mul(c, s, t_cast(c, S(4), d)), t_where(c, larger, grown, s));
  *tracker = t_reshape(c, t_where(c, t_or(c, skip, full), t_like(c, good, 0), good), t->ndim, t->dims);
}

OP(amp_update_scale, "aten::_amp_update_scale") {
  val scale = NULL, tracker = NULL;
  update_scale(c, &scale, &tracker);
  if (!scale) return;
  RETN(0, scale);
  RETN(1, tracker);
}
OP(amp_update_scale_, "aten::_amp_update_scale_") {
  val scale = NULL, tracker = NULL;
  update_scale(c, &scale, &tracker);
  if (!scale) return;
  RETN(0, scale);
  op_write(c, 1, 0, tracker);
}
