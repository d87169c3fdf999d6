/* Writes along one dim: scatter, index_add and their kin; backward of embeddings. */
#include <string.h>

#include "ops/along.h"
#include "ops/pointwise.h"

/* ---- reductions into indexed places ---------------------------------------------------------------------------- */

typedef struct {
  val x, index, src;
  int dim;
  bool slices; /* index has rank 1 and names whole slices (index_add); else it has src's rank (scatter) */
} scatter_args;

static val scatter_into(op_ctx *c, const scatter_args *a, val x, val src, int body) {
  return a->slices ? t_scatter_slices(c, x, a->dim, a->index, src, body) : t_scatter(c, x, a->dim, a->index, src, body);
}

static int body_of(op_ctx *c, const char *name) {
  static const struct {
    const char *name;
    int body;
  } bodies[] = {{"sum", IR_ADD},      {"add", IR_ADD},  {"mean", IR_ADD}, {"prod", IR_MUL},
                {"multiply", IR_MUL}, {"amax", IR_MAX}, {"amin", IR_MIN}};
  for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++)
    if (!strcmp(name, bodies[i].name)) return bodies[i].body;
  op_fail(c, TPU_ERR_RUNTIME, "reduce argument must be either sum, prod, mean, amax or amin, got %s", name);
  return IR_ADD;
}

/* scatter_reduce and index_reduce: places that no index names keep their value. */
static val scatter_reduce(op_ctx *c, const scatter_args *a, const char *reduce, bool include_self) {
  int body = body_of(c, reduce);
  bool mean = !strcmp(reduce, "mean");
  tpu_dtype d = (tpu_dtype)a->x->dtype, m = body == IR_ADD || body == IR_MUL ? t_opmath(d) : d;
  val x = t_cast(c, a->x, m), src = t_cast(c, a->src, m);
  if (!include_self) {
    val start = body == IR_MAX   ? ir_const_min(G, m, src->ndim, src->dims)
                : body == IR_MIN ? ir_const_max(G, m, src->ndim, src->dims)
                                 : t_like(c, src, body == IR_MUL);
    x = scatter_into(c, a, x, start, T_REPLACE);
  }
  x = scatter_into(c, a, x, src, body);
  if (mean) {
    val count = scatter_into(c, a, t_like(c, x, include_self), t_like(c, src, 1), IR_ADD);
    count = ir_select(G, ir_compare(G, IR_EQ, count, t_like(c, count, 0)), t_like(c, count, 1), count);
    val q = ir_binary(G, IR_DIV, x, count);
    if (ir_is_int(m) && !ir_is_unsigned(m)) { /* rounds down */
      val rest = ir_binary(G, IR_REM, x, count), zero = t_like(c, x, 0);
      q = ir_binary(G, IR_SUB, q, ir_select(G, ir_compare(G, IR_LT, rest, zero), t_like(c, x, 1), zero));
    }
    x = q;
  }
  return t_cast(c, x, d);
}

static scatter_args read_scatter(op_ctx *c, bool slices, int source) {
  scatter_args a = {.slices = slices, .x = t_at_least_1d(c, T(0)), .index = t_at_least_1d(c, T(2))};
  a.dim = t_dim(c, INT(1), a.x->ndim);
  if (source < 0) return a;
  a.src = op_any(c, source);
  a.src = t_cast(c, a.src, (tpu_dtype)a.x->dtype);
  if (op_tag(c, source) != TPU_TENSOR) { /* a number */
    a.src = t_broadcast_to(c, a.src, a.index->ndim, a.index->dims);
  } else if (slices && a.src->ndim < a.x->ndim) { /* one slice, or a number for 0-d */
    int64_t dims[T_MAX_DIMS];
    for (int d = 0; d < a.x->ndim; d++) dims[d] = d == a.dim ? t_size(a.index, 0) : a.x->dims[d];
    a.src = t_reshape(c, a.src, a.x->ndim, dims);
  } else {
    a.src = t_at_least_1d(c, a.src);
  }
  return a;
}

static void ret_self(op_ctx *c, val v) {
  val x = T(0);
  RET(t_reshape(c, v, x->ndim, x->dims));
}

static void scatter(op_ctx *c, int body) {
  scatter_args a = read_scatter(c, false, 3);
  ret_self(c, scatter_into(c, &a, a.x, a.src, body));
}

OP(scatter_src, "aten::scatter.src") { scatter(c, T_REPLACE); }
OP(scatter_value, "aten::scatter.value") { scatter(c, T_REPLACE); }
OP(scatter_reduce_src, "aten::scatter.reduce") { scatter(c, body_of(c, op_str(c, 4))); }
OP(scatter_reduce_value, "aten::scatter.value_reduce") { scatter(c, body_of(c, op_str(c, 4))); }
OP(scatter_add, "aten::scatter_add") { scatter(c, IR_ADD); }

OP(scatter_reduce_two, "aten::scatter_reduce.two") {
  scatter_args a = read_scatter(c, false, 3);
  ret_self(c, scatter_reduce(c, &a, op_str(c, 4), INT_OR(5, 1)));
}

OP(index_reduce, "aten::index_reduce") {
  scatter_args a = read_scatter(c, true, 3);
  /* PyTorch reduces whole slices of bool, not elements. */
  bool by_element = T(0)->ndim == 1 || !INT_OR(5, 1) || !strcmp(op_str(c, 4), "mean");
  if (!ir_failed(G) && by_element && ir_numel(a.index) && !p_need_no_bool(c, "index_func_", a.x)) return;
  ret_self(c, scatter_reduce(c, &a, op_str(c, 4), INT_OR(5, 1)));
}

OP(index_add, "aten::index_add") {
  scatter_args a = read_scatter(c, true, 3);
  val src = HAS(4) ? t_cast(c, t_mul(c, a.src, S(4)), (tpu_dtype)a.x->dtype) : a.src;
  ret_self(c, scatter_into(c, &a, a.x, src, IR_ADD));
}

OP(index_copy, "aten::index_copy") {
  scatter_args a = read_scatter(c, true, 3);
  ret_self(c, scatter_into(c, &a, a.x, a.src, T_REPLACE));
}

/* By a mask: one compare is cheaper than a scatter, and the value may be anything. */
static void index_fill(op_ctx *c, val value) {
  scatter_args a = read_scatter(c, true, -1);
  int64_t n = t_size(a.x, a.dim);
  val hit = t_zeros(c, TPU_BOOL, 1, &n), index = t_wrap_index(c, a.index, n);
  hit = t_scatter(c, hit, 0, index, ir_const_i(G, TPU_BOOL, 1, 1, index->dims), T_REPLACE);
  int64_t dims[T_MAX_DIMS];
  for (int d = 0; d < a.x->ndim; d++) dims[d] = d == a.dim ? n : 1;
  ret_self(c, t_where(c, t_reshape(c, hit, a.x->ndim, dims), t_cast(c, value, (tpu_dtype)a.x->dtype), a.x));
}

OP(index_fill, "aten::index_fill.int_Scalar") { index_fill(c, S(3)); }
OP(index_fill_tensor, "aten::index_fill.int_Tensor") { index_fill(c, T(3)); }

/* ---- embeddings ------------------------------------------------------------------------------------------------ */

OP(embedding, "aten::embedding") { RET(t_take(c, T(0), 0, T(1))); }

/* The rows of g summed in g's dtype into zeros of dtype `out`, dims [rows, width], without a table of all rows in g's:
 * each row is added to the first one of its index, and that one is put in its place. Indices out of range are dropped.
 */
static val embedding_sums(op_ctx *c, val index, val g, tpu_dtype out, const int64_t *dims) {
  int64_t n = g->dims[0];
  val place = ir_iota(G, TPU_I32, 1, &n, 0), none = ir_const_i(G, TPU_I32, n, 1, &n);
  val outside = t_or(c, ir_compare(G, IR_LT, index, t_like(c, index, 0)),
                     ir_compare(G, IR_GE, index, t_like(c, index, (double)dims[0])));
  val first = t_take(c, t_scatter(c, ir_const_i(G, TPU_I32, n, 1, dims), 0, index, place, IR_MIN), 0, index);
  first = ir_select(G, outside, none, first);
  val sum = t_scatter_slices(c, t_like(c, g, 0), 0, first, g, IR_ADD);
  val is_first = ir_compare(G, IR_EQ, first, place);
  index = ir_select(G, is_first, index, t_like(c, index, (double)dims[0]));
  return t_scatter_slices(c, t_zeros(c, out, 2, dims), 0, index, t_cast(c, sum, out), T_REPLACE);
}

/* grad [..., D] summed into [rows, D] by index [...]; the padding row gets nothing. */
OP(embedding_dense_backward, "aten::embedding_dense_backward") {
  val grad = T(0), index = t_flatten(c, T(1));
  int64_t rows = INT(2), padding = INT(3), n = t_size(index, 0), width = t_size(grad, grad->ndim - 1);
  tpu_dtype d = t_opmath((tpu_dtype)grad->dtype), di = t_index_dtype(rows);
  index = ir_convert(G, index, di);
  if (padding >= 0) {
    val skip = ir_compare(G, IR_EQ, index, ir_const_i(G, di, padding, 1, index->dims));
    index = ir_select(G, skip, ir_const_i(G, di, rows, 1, index->dims), index); /* out of range: dropped */
  }
  val g = t_cast(c, t_reshape(c, grad, 2, (const int64_t[]){n, width}), d);
  if (INT(4)) {
    val count = t_scatter(c, t_zeros(c, d, 1, &rows), 0, index, ir_const_f(G, d, 1, 1, index->dims), IR_ADD);
    g = t_div(c, g, t_unsqueeze(c, t_take(c, count, 0, index), 1));
  }
  const int64_t dims[2] = {rows, width};
  if (!ir_is_cpu(G) && d != (tpu_dtype)grad->dtype && n < rows && n > 0 && width > 0) {
    RET(embedding_sums(c, index, t_cast(c, g, d), (tpu_dtype)grad->dtype, dims));
    return;
  }
  RET(t_scatter_slices(c, t_zeros(c, d, 2, dims), 0, index, g, IR_ADD));
}
