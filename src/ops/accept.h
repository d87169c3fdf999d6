/* accept.h - which dtypes an operator takes. PyTorch's kernels refuse dtypes that a row would compute with, to no use
 * or to nonsense (softmax of int64 rounds to zeros); here they are refused too, with the same kind of error. */
#ifndef TPU_OPS_ACCEPT_H
#define TPU_OPS_ACCEPT_H
#include "base/err.h"

/* NULL when the operator takes these arguments' dtypes, else PyTorch's error. op: "aten::clamp_.Tensor"; row: the name
 * of its row. An operator without an entry takes all. */
TPU_MUST tpu_err *accept_check(const char *op, const char *row, const tpu_value *args, int nargs);
/* As PyTorch's messages name it: "ComplexFloat". */
const char *accept_dtype_name(tpu_dtype d);
#endif
