/* flash.h - attention as kernels of a TPU's core: scores are made block by block and never reach memory. */
#ifndef TPU_OPS_FLASH_H
#define TPU_OPS_FLASH_H
#include "ops/op.h"

typedef struct {
  int64_t b, h, kh, s, t, d, e; /* query [b, h, s, d], key [b, kh, t, d], value [b, kh, t, e]; kh divides h */
  bool causal;                  /* s == t, and query i sees the keys up to i */
  const int64_t
      *place; /* in a sharded program: where [b, h, ...] is on the mesh; b, h and kh are then those of a part */
} flash_shape;

/* Whether the kernels serve this shape of bfloat16 tensors without a bias: sizes in whole blocks, large enough to be
 * worth it. In a sharded program also: whether batch and heads are what it divides, as far as the graph tells; f is
 * then a part's. */
bool flash_fits(op_ctx *c, flash_shape *f, val q, val k, val v);

/* output [b, h, s, e] bfloat16; logsumexp [b, h, s] float32. scale: a float32 scalar. */
void flash_forward(op_ctx *c, const flash_shape *f, val q, val k, val v, val scale, val *out, val *lse);
/* Gradients of query, key and value, float32, of the operands' shapes. g: of the output, bfloat16. delta [b, h, s]:
 * sums of g * output over the last dim, float32. */
void flash_backward(op_ctx *c, const flash_shape *f, val g, val q, val k, val v, val lse, val delta, val scale, val *dq,
                    val *dk, val *dv);
#endif
