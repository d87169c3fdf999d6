/* Matrix products. Operands keep their dtype (bfloat16 goes to the matrix unit as it is); sums are kept in float32 or
 * wider until the last rounding; integers multiply as integers. */
#include <math.h>

#include "ops/along.h"

static const char *cpp_name(val x) {
  switch (x->dtype) {
    case TPU_F32: return "float";
    case TPU_F64: return "double";
    case TPU_F16: return "c10::Half";
    case TPU_BF16: return "c10::BFloat16";
    case TPU_I64: return "long int";
    case TPU_I32: return "int";
    case TPU_C64: return "c10::complex<float>";
    case TPU_C128: return "c10::complex<double>";
    default: return tpu_dtype_name(x->dtype);
  }
}

/* The same for 64-bit integers, whose matrices a TPU cannot multiply: products of all pairs, summed. */
static val contract_pairs(op_ctx *c, val a, val b, bool batch, int n, const int *ka, const int *kb) {
  const val in[2] = {a, b};
  const int *k[2] = {ka, kb};
  val wide[2];
  int free_dims[2] = {a->ndim - n - batch, b->ndim - n - batch}, rank = batch + free_dims[0] + free_dims[1] + n,
      last[2];
  for (int j = 0; j < 2; j++) { /* [batch, free of a, free of b, contracted] with size 1 where this one has none */
    int map[8], at = batch + (j ? free_dims[0] : 0);
    int64_t dims[8];
    for (int d = 0; d < 8; d++) dims[d] = 1;
    for (int d = 0; d < in[j]->ndim; d++) {
      map[d] = batch && d == 0 ? 0 : -1;
      for (int i = 0; i < n; i++)
        if (k[j][i] == d) map[d] = rank - n + i;
      if (map[d] < 0) map[d] = at++;
      dims[map[d]] = in[j]->dims[d];
    }
    wide[j] = ir_broadcast(G, in[j], rank, dims, map);
  }
  for (int i = 0; i < n; i++) last[i] = rank - n + i;
  return t_sum(c, t_mul(c, wide[0], wide[1]), last, n, false);
}

/* Contracts n dims of a with n dims of b; `batch`: the first dim of both is a batch. Result in a's opmath. */
static val contract(op_ctx *c, val a, val b, bool batch, int n, const int *ka, const int *kb) {
  tpu_dtype d = (tpu_dtype)a->dtype;
  if (ir_failed(G)) return a;
  if (a->dtype != b->dtype)
    return op_fail(c, TPU_ERR_RUNTIME, "expected m1 and m2 to have the same dtype, but got: %s != %s", cpp_name(a),
                   cpp_name(b));
  if (d == TPU_BOOL) return op_fail(c, TPU_ERR_NOT_IMPLEMENTED, "\"addmm_impl_tpu_\" not implemented for 'Bool'");
  if ((d == TPU_I64 || d == TPU_U64) && !ir_is_cpu(G)) return contract_pairs(c, a, b, batch, n, ka, kb);
  int first = 0;
  return ir_dot(G, a, b, batch, &first, &first, n, ka, kb, t_opmath(d), op_precision(c, d));
}

static bool ranks(op_ctx *c, val a, int na, val b, int nb) {
  if (ir_failed(G)) return false;
  if (a->ndim == na && b->ndim == nb) return true;
  op_fail(c, TPU_ERR_RUNTIME, "expected tensors of %d and %d dimensions, got %d and %d", na, nb, a->ndim, b->ndim);
  return false;
}

static val mm(op_ctx *c, val a, val b) {
  return ranks(c, a, 2, b, 2) ? contract(c, a, b, false, 1, (int[]){1}, (int[]){0}) : a;
}
static val bmm(op_ctx *c, val a, val b) {
  return ranks(c, a, 3, b, 3) ? contract(c, a, b, true, 1, (int[]){2}, (int[]){1}) : a;
}
static val mv(op_ctx *c, val a, val b) {
  return ranks(c, a, 2, b, 1) ? contract(c, a, b, false, 1, (int[]){1}, (int[]){0}) : a;
}
static val dot(op_ctx *c, val a, val b) {
  return ranks(c, a, 1, b, 1) ? contract(c, a, b, false, 1, (int[]){0}, (int[]){0}) : a;
}

static val conjugate(op_ctx *c, val x) {
  if (!t_is_complex(x)) return x;
  return ir_binary(G, IR_COMPLEX, ir_unary(G, IR_REAL, x), ir_unary(G, IR_NEG, ir_unary(G, IR_IMAG, x)));
}

OP(mm, "aten::mm") { RET(mm(c, T(0), T(1))); }
OP(bmm, "aten::bmm") { RET(bmm(c, T(0), T(1))); }
OP(mv, "aten::mv") { RET(mv(c, T(0), T(1))); }
OP(dot, "aten::dot") { RET(dot(c, T(0), T(1))); }
OP(vdot, "aten::vdot") { RET(dot(c, conjugate(c, T(0)), T(1))); }

/* beta * self + alpha * p, self broadcast to p's sizes. With beta = 0 self does not count, be it NaN. */
static val add_scaled(op_ctx *c, val self, val p, int beta, int alpha) {
  if (ir_failed(G)) return p;
  tpu_dtype m = (tpu_dtype)p->dtype;
  if (op_number_class(c, alpha) != 1) p = t_mul(c, p, t_cast(c, S(alpha), m));
  int b = op_number_class(c, beta);
  if (b == 0) return p;
  self = t_broadcast_to(c, t_cast(c, self, m), p->ndim, p->dims);
  return t_add(c, b == 1 ? self : t_mul(c, self, t_cast(c, S(beta), m)), p);
}

/* The usual arguments: self first, alpha after beta. */
static val add_to(op_ctx *c, val p, int beta) { return add_scaled(c, T(0), p, beta, beta + 1); }

OP(addmm, "aten::addmm") { RET(add_to(c, mm(c, T(1), T(2)), 3)); }
OP(addmm_dtype, "aten::addmm.dtype") { RET(add_to(c, mm(c, T(1), T(2)), 4)); }
OP(baddbmm, "aten::baddbmm") { RET(add_to(c, bmm(c, T(1), T(2)), 3)); }
OP(baddbmm_dtype, "aten::baddbmm.dtype") { RET(add_to(c, bmm(c, T(1), T(2)), 4)); }
OP(addmv, "aten::addmv") { RET(add_to(c, mv(c, T(1), T(2)), 3)); }

/* The batch is summed over too: one product with two contracted dims. */
OP(addbmm, "aten::addbmm") {
  val a = T(1), b = T(2);
  if (ranks(c, a, 3, b, 3)) RET(add_to(c, contract(c, a, b, false, 2, (int[]){0, 2}, (int[]){0, 1}), 3));
}

OP(addr, "aten::addr") {
  val v[3] = {T(0), T(1), T(2)};
  if (ir_failed(G)) return;
  tpu_dtype d = t_opmath(t_result_type(c, v, 3));
  if (d == TPU_BOOL) d = TPU_I64;
  val a = t_cast(c, v[1], d), b = t_cast(c, v[2], d);
  if (ranks(c, a, 1, b, 1)) RET(add_to(c, t_mul(c, t_unsqueeze(c, a, 1), t_unsqueeze(c, b, 0)), 3));
}

OP(addmm_activation, "aten::_addmm_activation") {
  val x = add_to(c, mm(c, T(1), T(2)), 3);
  if (ir_failed(G)) return;
  if (!INT_OR(5, 0)) {
    RET(t_max(c, x, t_like(c, x, 0)));
    return;
  }
  val e = ir_unary(G, IR_ERF, t_mul(c, x, t_like(c, x, M_SQRT1_2)));
  RET(t_mul(c, t_mul(c, x, t_like(c, x, 0.5)), t_add(c, e, t_like(c, e, 1))));
}

OP(int_mm, "aten::_int_mm") {
  val a = T(0), b = T(1);
  if (!ranks(c, a, 2, b, 2)) return;
  RET(ir_dot(G, a, b, 0, NULL, NULL, 1, (int[]){1}, (int[]){0}, TPU_I32, 0));
}

/* Weights in int8, [n, k], with one scale for each of n. */
OP(weight_int8pack_mm, "aten::_weight_int8pack_mm") {
  val a = T(0), w = t_cast(c, T(1), (tpu_dtype)a->dtype);
  if (!ranks(c, a, 2, w, 2)) return;
  val p = contract(c, a, w, false, 1, (int[]){1}, (int[]){1});
  RET(t_mul(c, p, t_cast(c, T(2), (tpu_dtype)p->dtype)));
}

/* float8 numbers are exact in bfloat16; scales are one number each, or one for each row of a and column of b. */
OP(scaled_mm, "aten::_scaled_mm") {
  val a = t_cast(c, T(0), TPU_BF16), b = t_cast(c, T(1), TPU_BF16), sa = T(2), sb = T(3);
  if (!ranks(c, a, 2, b, 2)) return;
  val p = contract(c, a, b, false, 1, (int[]){1}, (int[]){0});
  if (sa->dtype != TPU_F32 || sb->dtype != TPU_F32 ||
      (ir_numel(sa) != 1 && (sa->ndim != 2 || sa->dims[0] != a->dims[0] || sa->dims[1] != 1)) ||
      (ir_numel(sb) != 1 && (sb->ndim != 2 || sb->dims[0] != 1 || sb->dims[1] != b->dims[1]))) {
    op_fail(c, TPU_ERR_NOT_IMPLEMENTED,
            "_scaled_mm on tpu takes float32 scales: one number, or [rows, 1] and [1, columns]");
    return;
  }
  if (ir_numel(sa) == 1) sa = t_reshape(c, sa, 0, NULL);
  if (ir_numel(sb) == 1) sb = t_reshape(c, sb, 0, NULL);
  p = t_mul(c, p, t_mul(c, sa, sb));
  if (HAS(4)) p = t_add(c, p, t_cast(c, T(4), TPU_F32));
  if (HAS(5)) p = t_mul(c, p, t_reshape(c, T(5), 0, NULL));
  RET(p);
}

/* The sum over `sumdim` of the product of three tensors, each with size-1 dims put in at `expand`. */
OP(trilinear, "aten::_trilinear") {
  val v[3];
  int nsum;
  const int64_t *sum = op_ints(c, 6, &nsum);
  for (int i = 0; i < 3; i++) {
    int n;
    const int64_t *at = op_ints(c, 3 + i, &n);
    v[i] = t_float(c, T(i));
    int64_t dims[T_MAX_DIMS];
    int rank = v[i]->ndim + n;
    if (ir_failed(G) || rank > T_MAX_DIMS) return;
    for (int k = 0, from = 0; k < rank; k++) {
      bool put = false;
      for (int j = 0; j < n; j++) put |= at[j] == k;
      dims[k] = put || from >= v[i]->ndim ? 1 : v[i]->dims[from++];
    }
    v[i] = t_reshape(c, v[i], rank, dims);
  }
  int over[T_MAX_DIMS];
  if (nsum > T_MAX_DIMS) return;
  for (int k = 0; k < nsum; k++) over[k] = (int)sum[k];
  val p = t_mul(c, t_mul(c, v[0], v[1]), v[2]);
  RET(nsum ? t_sum(c, p, over, nsum, false) : p);
}

/* Which of n places belong to each group; groups end at `ends`: [groups, n] */
static val groups(op_ctx *c, val ends, int64_t n) {
  if (ir_failed(G)) return ends;
  int64_t count = ends->dims[0], dims[2] = {count, n}, low[1] = {1}, high[1] = {-1}, zero[1] = {0};
  const int map[1] = {0};
  val begins = ir_pad(G, ends, t_scalar(c, (tpu_dtype)ends->dtype, 0), low, high, zero);
  val at = t_iota(c, (tpu_dtype)ends->dtype, 2, dims, 1);
  return t_and(c, ir_compare(G, IR_GE, at, ir_broadcast(G, begins, 2, dims, map)),
               ir_compare(G, IR_LT, at, ir_broadcast(G, ends, 2, dims, map)));
}

/* x where the mask [groups, n] says so, else 0. at: the dims of x that the mask's are. */
static val where(op_ctx *c, val mask, val x, const int *at) {
  if (ir_failed(G)) return x;
  return ir_select(G, ir_broadcast(G, mask, x->ndim, x->dims, at), x, t_like(c, x, 0));
}

/* x [..] once for each group, first: [groups, ..] */
static val repeated(op_ctx *c, val x, int64_t count) {
  if (ir_failed(G)) return x;
  return ir_broadcast(G, x, 3, (const int64_t[]){count, x->dims[0], x->dims[1]}, (const int[]){1, 2});
}

/* Products of groups, which end at offsets along the dim that only the 2-d operands have: rows of a ([n, k] x
 * [groups, k, m] -> [n, m]), columns of b ([groups, n, k] x [k, m] -> [n, m]), or what is summed over ([n, k] x [k, m]
 * -> [groups, n, m]). Places past the last offset are in no group: zeros. */
OP(grouped_mm, "aten::_grouped_mm") {
  val a = T(0), b = T(1), out;
  if (ir_failed(G)) return;
  if (a->ndim < 2 || a->ndim > 3 || b->ndim < 2 || b->ndim > 3) {
    op_fail(c, TPU_ERR_RUNTIME, "Multiplicands must be 2D or 3D but got mat_a.dim()=%d and mat_b.dim()=%d", a->ndim,
            b->ndim);
    return;
  }
  bool rows = a->ndim == 2, columns = b->ndim == 2;
  const char *wrong = NULL;
  if (!ir_is_float((tpu_dtype)a->dtype) || a->dtype != b->dtype || a->dtype == TPU_F64)
    wrong = "Expected inputs of one dtype of bfloat16, float16 and float32";
  else if ((rows || columns) != HAS(2))
    wrong = HAS(2) ? "Offsets tensor provided, but is not needed for 3D/3D multiplicand layouts."
                   : "Offsets tensor not provided, but is needed for 2D multiplicand layouts.";
  else if (HAS(3)) wrong = "Bias not supported yet";
  else if (a->dims[a->ndim - 1] != b->dims[b->ndim - 2]) wrong = "contraction dimension of mat_a and mat_b must match";
  else if (!rows && !columns && a->dims[0] != b->dims[0]) wrong = "batched dimension has to match";
  if (wrong) {
    op_fail(c, TPU_ERR_RUNTIME, "%s", wrong);
    return;
  }
  if (!rows && !columns) {
    out = bmm(c, a, b);
  } else {
    val ends = T(2);
    if (ir_failed(G)) return;
    if (ends->ndim != 1 || ends->dtype != TPU_I32) wrong = "Offsets have to be 1-D and int32";
    else if ((!rows && ends->dims[0] != a->dims[0]) || (!columns && ends->dims[0] != b->dims[0]))
      wrong = "matrix batch sizes have to match";
    if (wrong) {
      op_fail(c, TPU_ERR_RUNTIME, "%s", wrong);
      return;
    }
    int64_t count = ends->dims[0];
    if (rows && columns) {
      val mask = groups(c, ends, a->dims[1]);
      out = bmm(c, where(c, mask, repeated(c, a, count), (const int[]){0, 2}),
                where(c, mask, repeated(c, b, count), (const int[]){0, 1}));
    } else if (rows) {
      const int64_t flat[2] = {b->dims[1], count * b->dims[2]}, split[3] = {a->dims[0], count, b->dims[2]};
      out = t_reshape(c, mm(c, a, t_reshape(c, t_transpose(c, b, 0, 1), 2, flat)), 3, split); /* [n, groups, m] */
      out = where(c, t_transpose(c, groups(c, ends, a->dims[0]), 0, 1), out, (const int[]){0, 1});
      out = t_sum(c, out, (const int[]){1}, 1, false);
    } else {
      const int64_t flat[2] = {count * a->dims[1], a->dims[2]}, split[3] = {count, a->dims[1], b->dims[1]};
      out = t_reshape(c, mm(c, t_reshape(c, a, 2, flat), b), 3, split); /* [groups, n, m] */
      out = where(c, groups(c, ends, b->dims[1]), out, (const int[]){0, 2});
      out = t_sum(c, out, (const int[]){0}, 1, false);
    }
  }
  RET(t_cast(c, out, (tpu_dtype)INT_OR(4, a->dtype)));
}
