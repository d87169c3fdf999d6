/* Copies and conversions. */
#include "ops/pointwise.h"

/* src, broadcast to self's sizes and converted to self's dtype. self's value is not read. */
OP(copy, "aten::copy") {
  val self = T(0);
  RET(t_broadcast_to(c, t_cast(c, T(1), (tpu_dtype)self->dtype), self->ndim, self->dims));
}

static void converted(op_ctx *c) {
  const tpu_meta *m = op_meta(c, 0);
  val x = T(0);
  RET(m ? t_cast(c, x, (tpu_dtype)m->dtype) : x);
}
OP(to_copy, "aten::_to_copy") { converted(c); }
OP(clone, "aten::clone") { converted(c); }
