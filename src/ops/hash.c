/* torch.hash_tensor: the XOR of the elements' bits, floats as those of the same float64, integers as int64. */
#include "ops/along.h"
#include "ops/pointwise.h"

static val u64(op_ctx *c, val x) { return ir_convert(G, x, TPU_U64); }
static val moved(op_ctx *c, ir_opcode shift, val x, double by) { return ir_binary(G, shift, x, t_like(c, x, by)); }

/* The bits of float32 x as a float64, made of integers: not every plugin takes a float64 apart. */
static val wide_bits(op_ctx *c, val x) {
  val b = ir_bitcast(G, x, TPU_U32), sign = moved(c, IR_SHR_L, b, 31);
  val e = P_AND(moved(c, IR_SHR_L, b, 23), t_like(c, b, 255)), m = P_AND(b, t_like(c, b, 0x7fffff));
  val small = P_CMPC(EQ, e, 0), zero = P_AND(small, P_CMPC(EQ, m, 0)), special = P_CMPC(EQ, e, 255);
  val lead = ir_unary(G, IR_CLZ, m); /* a subnormal number: its highest bit becomes the hidden one */
  val up = P_SEL(small, P_SUB(P_MAX(lead, t_like(c, lead, 8)), t_like(c, lead, 8)), t_like(c, lead, 0));
  m = P_AND(ir_binary(G, IR_SHL, m, up), t_like(c, m, 0x7fffff));
  val exponent = P_SUB(P_ADDC(P_SEL(small, t_like(c, e, 1), e), 1023 - 127), up);
  exponent = P_SEL(special, t_like(c, e, 2047), P_SEL(zero, t_like(c, e, 0), exponent));
  val high = P_OR(moved(c, IR_SHL, u64(c, sign), 63), moved(c, IR_SHL, u64(c, exponent), 52));
  return P_OR(high, moved(c, IR_SHL, u64(c, m), 29));
}

/* (self, dim, keepdim, mode) -> uint64 */
OP(hash_tensor, "aten::hash_tensor") {
  val x = T(0), bits;
  int dims[T_MAX_DIMS], n = t_dims_arg(c, 1, x->ndim, dims);
  if (INT_OR(3, 0) != 0) op_fail(c, TPU_ERR_RUNTIME, "hash_tensor: mode has to be 0, not %lld", (long long)INT(3));
  if (t_is_complex(x)) p_no_kernel(c, "xor_sum_cpu", x);
  if (ir_failed(G)) return;
  if (x->dtype == TPU_F64) bits = ir_bitcast(G, x, TPU_U64);
  else if (t_is_float(x)) bits = wide_bits(c, t_cast(c, x, TPU_F32));
  else bits = u64(c, ir_is_unsigned((tpu_dtype)x->dtype) ? x : ir_convert(G, x, TPU_I64));
  RET(t_reduce(c, IR_XOR, bits, dims, n, INT_OR(2, 0)));
}
