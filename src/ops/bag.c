/* EmbeddingBag: rows of a table summed, averaged or maximised over the bags that offsets mark. */
#include "ops/along.h"

enum { BAG_SUM = 0, BAG_MEAN = 1, BAG_MAX = 2 };

typedef struct {
  val weight, index, bag, valid, size; /* bag [n]: of every index; valid [n]: no padding; size [bags]: valid ones */
  int64_t n, bags, width;
  tpu_dtype d; /* to compute in */
} bags;

static val valid_rows(op_ctx *c, val index, int padding_arg) {
  int64_t padding = INT_OR(padding_arg, -1);
  if (padding < 0) return ir_const_i(G, TPU_BOOL, 1, index->ndim, index->dims);
  return ir_compare(G, IR_NE, index, ir_const_i(G, (tpu_dtype)index->dtype, padding, index->ndim, index->dims));
}

/* rows where valid, else a bag that does not exist: scatters drop it. */
static val valid_or(op_ctx *c, val valid, val index, int64_t none) {
  return ir_select(G, valid, index, ir_const_i(G, (tpu_dtype)index->dtype, none, index->ndim, index->dims));
}

static bags read_bags(op_ctx *c) {
  bags b = {.weight = T(0), .index = t_cast(c, T(1), TPU_I64)};
  val offsets = t_cast(c, T(2), TPU_I64);
  b.n = t_size(b.index, 0);
  b.bags = t_size(offsets, 0);
  if (INT_OR(7, 0) && b.bags > 0) offsets = t_narrow(c, offsets, 0, 0, --b.bags, 1);
  b.width = t_size(b.weight, 1);
  b.d = t_opmath((tpu_dtype)b.weight->dtype);
  val starts = t_zeros(c, TPU_I64, 1, &b.n);
  if (b.bags) starts = t_scatter(c, starts, 0, offsets, ir_const_i(G, TPU_I64, 1, 1, &b.bags), IR_ADD);
  val bag = t_cumsum(c, starts, 0);
  b.bag = ir_binary(G, IR_SUB, bag, t_like(c, bag, 1));
  b.valid = valid_rows(c, b.index, 8);
  b.size = t_scatter(c, t_zeros(c, TPU_I64, 1, &b.bags), 0, b.bag, ir_convert(G, b.valid, TPU_I64), IR_ADD);
  return b;
}

/* The first place of every bag that holds its maximum, column by column, as an index into the table. */
static val max_rows(op_ctx *c, const bags *b, val rows, val target, val out) {
  int64_t dims[2] = {b->n, b->width}, result[2] = {b->bags, b->width};
  if (b->n == 0) return t_zeros(c, TPU_I64, 2, result);
  val best = t_take(c, out, 0, b->bag);
  val hit = t_or(c, t_cmp(c, IR_EQ, rows, best), ir_compare(G, IR_NE, rows, rows));
  val place = ir_select(G, hit, ir_iota(G, TPU_I64, 2, dims, 0), ir_const_i(G, TPU_I64, b->n, 2, dims));
  val first = t_scatter_slices(c, ir_const_i(G, TPU_I64, b->n, 2, result), 0, target, place, IR_MIN);
  val row = t_take(c, b->index, 0, t_min(c, first, t_like(c, first, (double)(b->n - 1))));
  return t_where(c, t_cmp(c, IR_LT, first, t_like(c, first, (double)b->n)), row, t_like(c, row, 0));
}

static void embedding_bag(op_ctx *c) {
  bags b = read_bags(c);
  int64_t mode = INT_OR(4, 0), dims[2] = {b.bags, b.width}, none = 0;
  val rows = t_cast(c, t_take(c, b.weight, 0, b.index), b.d), target = valid_or(c, b.valid, b.bag, b.bags);
  if (HAS(6)) rows = t_mul(c, rows, t_unsqueeze(c, t_cast(c, T(6), b.d), 1));
  val size = t_unsqueeze(c, b.size, 1), out, at = t_zeros(c, TPU_I64, 1, &none);
  if (mode == BAG_MAX) {
    out = t_scatter_slices(c, ir_const_min(G, b.d, 2, dims), 0, target, rows, IR_MAX);
    out = t_where(c, t_cmp(c, IR_EQ, size, t_like(c, size, 0)), t_like(c, out, 0), out);
    at = max_rows(c, &b, rows, target, out);
  } else {
    out = t_scatter_slices(c, t_zeros(c, b.d, 2, dims), 0, target, rows, IR_ADD);
    if (mode == BAG_MEAN) out = t_div(c, out, t_cast(c, t_max(c, size, t_like(c, size, 1)), b.d));
  }
  RETN(0, out);
  RETN(1, b.bag);
  const tpu_meta *m = op_meta(c, 2);
  int64_t all = m && m->defined && m->ndim == 1 ? m->sizes[0] : b.bags;
  val padded = ir_pad(G, b.size, t_scalar(c, TPU_I64, 0), (const int64_t[]){0}, (const int64_t[]){all - b.bags},
                      (const int64_t[]){0});
  RETN(2, padded);
  RETN(3, at);
}

OP(embedding_bag, "aten::_embedding_bag") { embedding_bag(c); }
OP(embedding_bag_forward, "aten::_embedding_bag_forward_only") { embedding_bag(c); }

typedef struct {
  int bag, size, max, rows, scale, mode, weights, padding; /* argument numbers */
} bag_grad_args;

static void bag_backward(op_ctx *c, bag_grad_args a) {
  val grad = T(0), index = t_cast(c, T(1), TPU_I64), bag = t_cast(c, T(a.bag), TPU_I64), size = T(a.size);
  tpu_dtype d = t_opmath((tpu_dtype)grad->dtype);
  int64_t rows = INT(a.rows), mode = INT(a.mode), bag_count = t_size(grad, 0), dims[2] = {rows, t_size(grad, 1)};
  val g = t_cast(c, grad, d), out = t_zeros(c, d, 2, dims);
  size = t_cast(c, t_narrow(c, size, 0, 0, bag_count, 1), d);
  if (mode == BAG_MAX) {
    val filled = t_unsqueeze(c, t_cmp(c, IR_GT, size, t_like(c, size, 0)), 1);
    g = t_where(c, filled, g, t_like(c, g, 0));
    RET(t_scatter(c, out, 0, T(a.max), g, IR_ADD));
    return;
  }
  val each = t_take(c, g, 0, bag);
  if (mode == BAG_MEAN) each = t_div(c, each, t_unsqueeze(c, t_max(c, t_take(c, size, 0, bag), t_scalar(c, d, 1)), 1));
  if (HAS(a.weights)) each = t_mul(c, each, t_unsqueeze(c, t_cast(c, T(a.weights), d), 1));
  if (INT_OR(a.scale, 0)) {
    val count = t_scatter(c, t_zeros(c, d, 1, &rows), 0, index, ir_const_f(G, d, 1, 1, index->dims), IR_ADD);
    each = t_div(c, each, t_unsqueeze(c, t_take(c, count, 0, index), 1));
  }
  RET(t_scatter_slices(c, out, 0, valid_or(c, valid_rows(c, index, a.padding), index, rows), each, IR_ADD));
}

OP(embedding_bag_backward, "aten::_embedding_bag_backward") {
  bag_backward(c, (bag_grad_args){3, 4, 5, 6, 7, 8, 10, 11});
}
OP(embedding_bag_dense_backward, "aten::_embedding_bag_dense_backward") {
  bag_backward(c, (bag_grad_args){2, 3, 4, 5, 6, 7, 8, 9});
}

OP(embedding_bag_weights_backward, "aten::_embedding_bag_per_sample_weights_backward") {
  val grad = t_float(c, T(0)), weight = t_float(c, T(1)), index = T(2), bag = T(4);
  int dim = 1;
  val r = t_sum(c, t_mul(c, t_take(c, grad, 0, bag), t_take(c, weight, 0, index)), &dim, 1, false);
  RET(t_where(c, valid_rows(c, index, 6), r, t_like(c, r, 0)));
}
