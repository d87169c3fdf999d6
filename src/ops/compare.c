/* Comparisons and logic: bool results. */
#include "ops/pointwise.h"

#define COMPARISON(id, aten, k) \
  OP(id, aten) { RET(t_cmp(c, k, op_any(c, 0), op_any(c, 1))); }

COMPARISON(eq, "aten::eq", IR_EQ)
COMPARISON(ne, "aten::ne", IR_NE)
COMPARISON(lt, "aten::lt", IR_LT)
COMPARISON(le, "aten::le", IR_LE)
COMPARISON(gt, "aten::gt", IR_GT)
COMPARISON(ge, "aten::ge", IR_GE)

static val logical(op_ctx *c, ir_opcode op) {
  return t_binary(c, op, t_cast(c, T(0), TPU_BOOL), t_cast(c, T(1), TPU_BOOL));
}
OP(logical_and, "aten::logical_and") { RET(logical(c, IR_AND)); }
OP(logical_or, "aten::logical_or") { RET(logical(c, IR_OR)); }
OP(logical_xor, "aten::logical_xor") { RET(logical(c, IR_XOR)); }
