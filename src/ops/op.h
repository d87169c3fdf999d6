/* op.h - what a row is written with.
 *
 * A row says how one ATen operator is built, as an expression on values; it knows no tensor, store, device or mode:
 *
 *   OP(addcdiv, "aten::addcdiv") {
 *     RET(t_add(c, T(0), t_mul(c, S(3), t_div(c, T(1), T(2)))));
 *   }
 *
 * The name is an ATen name with or without overload ("aten::sum.dim_IntList"). Without one the row serves every
 * functional overload of that name that has no row of its own. In-place (`add_`) and `out=` forms are served by
 * the row of the functional form with the same arguments: the result is written where PyTorch's schema says.
 * The result is converted to the dtype that PyTorch's meta kernel gives and must have its sizes (checked); a row
 * computes in whatever dtype is right.
 *
 * Arguments by position in the schema. Python numbers (Scalar, float, Scalar[], float[]) are runtime operands (S, SL);
 * reading one as a constant (S_CONST, ...) makes its value part of the program and of the call key: only for what
 * changes the shape or the algorithm. int, bool, str, int[], dtype arguments are always constants.
 *
 * Errors: op_fail(c, TPU_ERR_X, "...") sticks; later calls are harmless. No return is needed for safety.
 */
#ifndef TPU_OPS_OP_H
#define TPU_OPS_OP_H
#include "ir/ir.h"

typedef struct op_ctx op_ctx;
typedef void (*op_build)(op_ctx *c);
typedef struct {
  const char *name;
  op_build build;
  const char *file;
} op_row;

/* The linker collects the rows (section tpu_rows); no list, header or build file is edited. */
#define OP(id, aten)                                                                                \
  static void op_##id(op_ctx *c);                                                                   \
  static const op_row op_row_##id = {aten, op_##id, __FILE__};                                      \
  static const op_row *const op_ref_##id __attribute__((used, section("tpu_rows"))) = &op_row_##id; \
  static void op_##id(op_ctx *c)

/* ---- arguments ------------------------------------------------------------------------------------------------- */

ir_graph *op_graph(op_ctx *c);
int op_nargs(op_ctx *c);
tpu_tag op_tag(op_ctx *c, int i);            /* what argument i is; TPU_NONE for None and for missing ones */
val op_tensor(op_ctx *c, int i);             /* the tensor's value (views, conj and neg bits resolved) */
int op_list_len(op_ctx *c, int i);           /* of Tensor[], int[], Scalar[], float[] */
val op_list_tensor(op_ctx *c, int i, int k); /* element k of Tensor[] ; check op_list_defined for Tensor?[] */
bool op_list_defined(op_ctx *c, int i, int k);
val op_number(op_ctx *c,
              int i); /* Scalar or float as a weak operand of rank 0 (bool, i64, f64 or c128 until promoted) */
val op_list_number(op_ctx *c, int i, int k);
/* x is a number of the call (S, SL, a 0-d CPU tensor): the same number as an operand of dtype d, converted on the host;
 * else NULL. t_cast asks this first, so that no program takes a float64 operand that it does not want. */
val op_cast_number(op_ctx *c, val x, tpu_dtype d);
int64_t op_int(op_ctx *c, int i); /* int, bool, dtype, ...; error when absent */
int64_t op_int_or(op_ctx *c, int i, int64_t absent);
const int64_t *op_ints(op_ctx *c, int i, int *n); /* int[], bool[]; an int is a list of one; None: n = 0 */
const char *op_str(op_ctx *c, int i);             /* "" when None */
double op_const(op_ctx *c, int i); /* a Scalar or float as a constant: its value becomes part of the key */
double op_const_or(op_ctx *c, int i, double absent);
/* 0 or 1 when the number is exactly that, else -1. Only this, not the value, becomes part of the key: so alpha = 1
 * costs no multiplication, beta = 0 drops its operand, and any other value is an operand of one program. */
int op_number_class(op_ctx *c, int i);
/* x times number i, promoted as t_mul does; x itself when the number is exactly 1. */
val t_scale(op_ctx *c, val x, int i);
bool op_const_is_int(op_ctx *c, int i); /* the number is a Python int or bool */
/* Philox state of the call's generator, tensor<2xui64>. words: how many 32-bit numbers the op draws at most; the
 * generator's offset moves on by ceil(words / 4), so that no number is used twice. */
val op_rng(op_ctx *c, int64_t words);
tpu_dtype op_default_dtype(op_ctx *c); /* torch.get_default_dtype() */
bool op_for_tpu(op_ctx *c); /* whether a TPU runs this, and no size varies: the form that suits its compiler */
int op_precision(op_ctx *c, tpu_dtype d); /* precision for ir_dot / ir_conv: the user's choice for float32, else 0 */

#define T(i) op_tensor(c, i)
#define TL(i, k) op_list_tensor(c, i, k)
#define S(i) op_number(c, i)
#define SL(i, k) op_list_number(c, i, k)
#define INT(i) op_int(c, i)
#define INT_OR(i, d) op_int_or(c, i, d)
#define HAS(i) (op_tag(c, i) != TPU_NONE)
#define G op_graph(c)

/* ---- results --------------------------------------------------------------------------------------------------- */

void op_ret(op_ctx *c, int ret, val v);                /* result number `ret` */
void op_ret_list(op_ctx *c, int ret, int elem, val v); /* element of a Tensor[] result */
/* For an argument that the schema marks as written but does not return (running_mean, foreach lists, found_inf). */
void op_write(op_ctx *c, int arg, int elem, val v);
/* dtype and sizes of result `ret` as PyTorch's meta kernel gives them; NULL when unknown. For factories and whatever
 * would otherwise compute shapes again. */
const tpu_meta *op_meta(op_ctx *c, int ret);
/* PyTorch's shape function does not say it: the results of rank 4 and 5 are channels_last in memory when tensor
 * argument a or b is, as on CUDA. */
void op_keep_channels_last(op_ctx *c, int a, int b);
#define RET(v) op_ret(c, 0, v)
#define RETN(i, v) op_ret(c, i, v)

val op_fail(op_ctx *c, tpu_err_kind kind, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* ---- helpers that promote and broadcast as PyTorch does (helpers.c) -----------------------------------------------
 */

/* PyTorch's result_type of the values: tensors with dims over 0-d tensors over Python numbers. */
tpu_dtype t_result_type(op_ctx *c, const val *v, int n);
val t_cast(op_ctx *c, val x, tpu_dtype d);
/* dtype of x if floating or complex, else PyTorch's default dtype: what sin, div, mean compute in. */
tpu_dtype t_float_dtype(op_ctx *c, val x);
/* The dtype to compute in: float32 for float16, bfloat16 and float8; else itself. */
tpu_dtype t_opmath(tpu_dtype d);
val t_float(op_ctx *c, val x); /* cast to t_opmath(t_float_dtype(x)) */

val t_scalar(op_ctx *c, tpu_dtype d, double v); /* rank-0 constant */
val t_like(op_ctx *c, val x, double v);         /* constant of x's dtype and dims */
val t_zeros(op_ctx *c, tpu_dtype d, int ndim, const int64_t *dims);
/* Broadcasts (PyTorch's rules) to a given shape; to the common shape of n values, in place. */
val t_broadcast_to(op_ctx *c, val x, int ndim, const int64_t *dims);
void t_broadcast(op_ctx *c, val *v, int n);
/* Promotes to the common dtype and broadcasts, in place. */
void t_prepare(op_ctx *c, val *v, int n);

/* Element-wise with promotion and broadcasting. Reduced floats compute in float32 and come back. */
val t_add(op_ctx *c, val a, val b);
val t_sub(op_ctx *c, val a, val b);
val t_mul(op_ctx *c, val a, val b);
val t_div(op_ctx *c, val a, val b); /* true division: integers become the default dtype */
val t_max(op_ctx *c, val a, val b); /* NaN wins */
val t_min(op_ctx *c, val a, val b);
val t_pow(op_ctx *c, val a, val b);
val t_and(op_ctx *c, val a, val b);
val t_or(op_ctx *c, val a, val b);
val t_xor(op_ctx *c, val a, val b);
val t_not(op_ctx *c, val a);
val t_neg(op_ctx *c, val a);
val t_abs(op_ctx *c, val a);
val t_cmp(op_ctx *c, ir_cmp k, val a, val b); /* bool result */
val t_where(op_ctx *c, val cond, val a, val b);
val t_binary(op_ctx *c, ir_opcode op, val a, val b); /* promoted, computed in opmath, result in the promoted dtype */
val t_unary(op_ctx *c, ir_opcode op, val x);         /* computed in opmath of x's own dtype, result in x's dtype */
val t_unary_float(op_ctx *c, ir_opcode op, val x);   /* integers become the default dtype first */

/* Shape helpers. dim may be negative (PyTorch's wrap; an IndexError in PyTorch's words when out of range). */
int t_dim(op_ctx *c, int64_t dim, int ndim);
val t_unsqueeze(op_ctx *c, val x, int dim);
val t_squeeze(op_ctx *c, val x, int dim);
val t_reshape(op_ctx *c, val x, int ndim, const int64_t *dims);
val t_flatten(op_ctx *c, val x);
val t_transpose(op_ctx *c, val x, int a, int b); /* swaps two dims */
val t_permute(op_ctx *c, val x, const int *perm);
val t_narrow(op_ctx *c, val x, int dim, int64_t start, int64_t length, int64_t step);
val t_concat(op_ctx *c, const val *v, int n, int dim);
val t_iota(op_ctx *c, tpu_dtype d, int ndim, const int64_t *dims, int dim);

/* Reductions over dims (n = 0 and dims NULL: all), with or without keeping them as size 1. Result in x's dtype; sums
 * and products of reduced floats accumulate in float32. */
val t_reduce(op_ctx *c, ir_opcode body, val x, const int *dims, int n, bool keep);
val t_sum(op_ctx *c, val x, const int *dims, int n, bool keep);
val t_mean(op_ctx *c, val x, const int *dims, int n, bool keep);
val t_amax(op_ctx *c, val x, const int *dims, int n, bool keep); /* NaN wins */
val t_amin(op_ctx *c, val x, const int *dims, int n, bool keep);
/* Reads an int[]? dims argument: None or empty means all dims (sorted, wrapped, checked for repeats). Returns the
 * count. */
int t_dims_arg(op_ctx *c, int arg, int ndim, int *out);
/* Matmul of [..., m, k] x [..., k, n] with equal batch dims; result in a's dtype, accumulated in float32 or wider. */
val t_matmul(op_ctx *c, val a, val b);
/* Uniform bits and numbers from the call's generator. */
val t_philox(op_ctx *c, val state, tpu_dtype bits, int ndim, const int64_t *dims); /* uint32 or uint64 */
val t_random_bits(op_ctx *c, tpu_dtype bits, int ndim, const int64_t *dims);
val t_random_uniform(op_ctx *c, tpu_dtype d, int ndim, const int64_t *dims); /* [0, 1) */
val t_random_normal(op_ctx *c, tpu_dtype d, int ndim, const int64_t *dims);

/* Families of one shape, one line each. */
#define OP_UNARY(id, aten, fn) \
  OP(id, aten) { RET(fn(c, T(0))); }
#define OP_BINARY(id, aten, fn) \
  OP(id, aten) { RET(fn(c, op_tag(c, 0) == TPU_TENSOR ? T(0) : S(0), op_tag(c, 1) == TPU_TENSOR ? T(1) : S(1))); }

/* Argument i as a value, be it a tensor or a number. */
static inline val op_any(op_ctx *c, int i) { return op_tag(c, i) == TPU_TENSOR ? T(i) : S(i); }
#endif
