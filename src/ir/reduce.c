/* reduce.c - reductions and windows. */
#include "ir/node.h"

/* ---- reduce ---------------------------------------------------------------------------------------------------- */

/* Inputs of one shape, each with a scalar init of its dtype. */
static bool inputs_ok(ir_graph *g, const char *name, const val *xs, const val *inits, int n) {
  if (!node_ok(g)) return false;
  if (n < 1) {
    ir_fail(g, TPU_ERR_RUNTIME, "%s (C3): expected at least one input, got %d", name, n);
    return false;
  }
  if (!node_usable(g, name, xs, n) || !node_usable(g, name, inits, n)) return false;
  for (int i = 0; i < n; i++) {
    if (!ir_same_dims(xs[i], xs[0])) {
      ir_fail(g, TPU_ERR_RUNTIME, "%s (C1): expected inputs of one shape, got %s and %s", name, node_text(g, xs[0]),
              node_text(g, xs[i]));
      return false;
    }
    if (inits[i]->ndim || inits[i]->dtype != xs[i]->dtype) {
      ir_fail(g, TPU_ERR_RUNTIME, "%s (C2): expected a scalar init value of dtype %s, got %s", name,
              tpu_dtype_name(xs[i]->dtype), node_text(g, inits[i]));
      return false;
    }
  }
  return true;
}

/* Operands xs, inits; results of shape dims. */
static ir_op *reducer(ir_graph *g, const char *name, const val *xs, const val *inits, int n, int ndim,
                      const int64_t *dims, const char *attrs) {
  val *in = arena_alloc(&g->mem, 2 * (size_t)n * sizeof *in);
  if (!in) return NULL;
  memcpy(in, xs, (size_t)n * sizeof *in);
  memcpy(in + n, inits, (size_t)n * sizeof *in);
  ir_op *op = node_op(g, name, attrs, in, 2 * n, n, 1);
  for (int i = 0; op && i < n; i++) node_type(g, op, i, xs[i]->dtype, ndim, i ? op->out[0].dims : dims);
  return node_ok(g) ? op : NULL;
}

static ir_op *reduce_op(ir_graph *g, const val *xs, const val *inits, int n, int ndims, const int *dims) {
  const char *name = "stablehlo.reduce";
  if (!inputs_ok(g, name, xs, inits, n)) return NULL;
  bool gone[IR_MAX_RANK] = {false};
  int64_t left[IR_MAX_RANK];
  int rank = xs[0]->ndim, nleft = 0, sorted[IR_MAX_RANK], nsorted = 0;
  for (int i = 0; i < ndims; i++) {
    if (dims[i] < 0 || dims[i] >= rank || gone[dims[i]]) {
      ir_fail(g, TPU_ERR_RUNTIME, "%s (C4, C5): expected different dims of %s, got %d at place %d", name,
              node_text(g, xs[0]), dims[i], i);
      return NULL;
    }
    gone[dims[i]] = true;
  }
  for (int i = 0; i < rank; i++) {
    if (gone[i]) sorted[nsorted++] = i;
    else left[nleft++] = xs[0]->dims[i];
  }
  buf *b = attr_begin(g);
  attr_ints(b, "dimensions", sorted, nsorted);
  return reducer(g, name, xs, inits, n, nleft, left, attr_end(g));
}

/* Opens the body: n accumulators, then n elements. */
static void open_body(ir_graph *g, ir_op *op, const char *what, int n, val *body_args) {
  if (op && node_open(g, op, what)) {
    node_region(g, 2 * n);
    for (int i = 0; i < 2 * n; i++) body_args[i] = node_region_arg(g, i, op->in[i % n]->dtype, 0, node_poison(g)->dims);
  }
  if (!node_ok(g)) node_poison_all(g, body_args, 2 * n);
}

static void close_body(ir_graph *g, const char *what, const val *results, val *out) {
  int n = node_unnest(g, what);
  ir_op *op = node_opened(g, what, 0);
  if (op && node_usable(g, op->name, results, n))
    for (int i = 0; i < n; i++)
      if (results[i]->ndim || results[i]->dtype != op->in[i]->dtype)
        ir_fail(g, TPU_ERR_RUNTIME, "%s (C6): expected body result %d to be a scalar of dtype %s, got %s", op->name, i,
                tpu_dtype_name(op->in[i]->dtype), node_text(g, results[i]));
  if (!op || !node_ok(g) || !node_region_end(g, results, n)) {
    node_poison_all(g, out, n);
    return;
  }
  node_close(g);
  for (int i = 0; i < n; i++) out[i] = &op->out[i];
}

/* A body of one operation, and the result. */
static val close_simple(ir_graph *g, ir_op *op, const char *what, int body) {
  if (!op || !node_open(g, op, what) || !node_simple_region(g, body, op->in[0]->dtype)) return node_poison(g);
  node_close(g);
  return &op->out[0];
}

val ir_reduce(ir_graph *g, ir_opcode body, val x, val init, int n, const int *dims) {
  return close_simple(g, reduce_op(g, &x, &init, 1, n, dims), "reduce", (int)body);
}

void ir_reduce_begin(ir_graph *g, const val *xs, const val *inits, int n, int ndims, const int *dims, val *body_args) {
  node_nest(g, "reduce", n);
  open_body(g, reduce_op(g, xs, inits, n, ndims, dims), "reduce", n, body_args);
}

void ir_reduce_end(ir_graph *g, const val *body_results, val *out) { close_body(g, "reduce", body_results, out); }

/* ---- windows --------------------------------------------------------------------------------------------------- */

/* Size of a dim after putting d - 1 gaps of `dilation`; 0 stays 0. False if too large. */
static bool dilated(int64_t size, int64_t dilation, int64_t *out) {
  int64_t r = 0;
  if (size && (__builtin_mul_overflow(size - 1, dilation, &r) || __builtin_add_overflow(r, 1, &r))) return false;
  *out = r;
  return true;
}

bool node_window_size(int64_t size, int64_t window, int64_t stride, int64_t base_dilation, int64_t window_dilation,
                      int64_t low, int64_t high, int64_t *out) {
  int64_t base = 0, win = 0;
  if (!dilated(size, base_dilation, &base) || !dilated(window, window_dilation, &win) ||
      __builtin_add_overflow(base, low, &base) || __builtin_add_overflow(base, high, &base))
    return false;
  *out = base <= 0 || base < win ? 0 : (base - win) / stride + 1;
  return true;
}

/* The sizes of windows over x; attributes of w that are not the default go to b. */
static bool window_dims(ir_graph *g, const char *name, val x, const ir_window *w, buf *b, int64_t *out) {
  int n = x->ndim;
  int64_t ones[IR_MAX_RANK], zeros[IR_MAX_RANK] = {0};
  for (int i = 0; i < n; i++) ones[i] = 1;
  const int64_t *size = w->size ? w->size : ones, *stride = w->stride ? w->stride : ones;
  const int64_t *bd = w->base_dilation ? w->base_dilation : ones, *wd = w->window_dilation ? w->window_dilation : ones;
  const int64_t *low = w->pad_low ? w->pad_low : zeros, *high = w->pad_high ? w->pad_high : zeros;
  for (int i = 0; i < n; i++) {
    if (size[i] < 1 || stride[i] < 1 || bd[i] < 1 || wd[i] < 1) {
      ir_fail(g, TPU_ERR_RUNTIME,
              "%s (C5-C11): expected window size, stride and dilations > 0 in dim %d, got %lld, %lld, %lld and %lld",
              name, i, (long long)size[i], (long long)stride[i], (long long)bd[i], (long long)wd[i]);
      return false;
    }
    if (!node_window_size(x->dims[i], size[i], stride[i], bd[i], wd[i], low[i], high[i], &out[i])) {
      ir_fail(g, TPU_ERR_RUNTIME, "%s: the padded and dilated size of dim %d of %s is too large", name, i,
              node_text(g, x));
      return false;
    }
  }
  attr_i64s(b, "window_dimensions", size, n);
  attr_i64s(b, ", window_strides", stride, n);
  if (w->base_dilation) attr_i64s(b, ", base_dilations", bd, n);
  if (w->window_dilation) attr_i64s(b, ", window_dilations", wd, n);
  attr_padding(b, low, high, n);
  return true;
}

static ir_op *window_op(ir_graph *g, const val *xs, const val *inits, int n, const ir_window *w) {
  const char *name = "stablehlo.reduce_window";
  if (!inputs_ok(g, name, xs, inits, n)) return NULL;
  int64_t dims[IR_MAX_RANK];
  buf *b = attr_begin(g);
  if (!window_dims(g, name, xs[0], w, b, dims)) return NULL;
  return reducer(g, name, xs, inits, n, xs[0]->ndim, dims, attr_end(g));
}

val ir_reduce_window(ir_graph *g, ir_opcode body, val x, val init, const ir_window *w) {
  return close_simple(g, window_op(g, &x, &init, 1, w), "reduce_window", (int)body);
}

void ir_reduce_window_begin(ir_graph *g, const val *xs, const val *inits, int n, const ir_window *w, val *body_args) {
  node_nest(g, "reduce_window", n);
  open_body(g, window_op(g, xs, inits, n, w), "reduce_window", n, body_args);
}

void ir_reduce_window_end(ir_graph *g, const val *body_results, val *out) {
  close_body(g, "reduce_window", body_results, out);
}

/* Whether the first of two scalars stays picked. */
static bool select_region(ir_graph *g, ir_cmp select, bool nan, tpu_dtype dtype) {
  if (!nan || !ir_is_float(dtype)) return node_simple_region(g, -2 - (int)select, dtype);
  node_region(g, 2);
  val a = node_region_arg(g, 0, dtype, 0, g->poison.v.dims), b = node_region_arg(g, 1, dtype, 0, g->poison.v.dims);
  val only = ir_binary(g, IR_AND, ir_compare(g, IR_NE, a, a), ir_compare(g, IR_EQ, b, b));
  val r = ir_binary(g, IR_OR, ir_compare(g, select, a, b), only);
  return node_ok(g) && node_region_end(g, &r, 1);
}

val ir_select_and_scatter(ir_graph *g, val x, val source, val init, ir_cmp select, bool nan, const ir_window *w) {
  const char *name = "stablehlo.select_and_scatter";
  val in[3] = {x, source, init};
  USABLE_OR_POISON(name, in, 3);
  CHECK_OR(select == IR_GE || select == IR_LE, "%s: expected select IR_GE or IR_LE, got %d", name, (int)select);
  CHECK_OR(source->dtype == x->dtype && init->dtype == x->dtype && !init->ndim,
           "%s (C1, C3): expected a source and a scalar init value of dtype %s, got %s and %s", name,
           tpu_dtype_name(x->dtype), node_text(g, source), node_text(g, init));
  for (int i = 0; i < x->ndim; i++)
    CHECK_OR((!w->base_dilation || w->base_dilation[i] == 1) && (!w->window_dilation || w->window_dilation[i] == 1),
             "%s: expected no dilation in dim %d", name, i);
  int64_t dims[IR_MAX_RANK];
  ir_window plain = *w;
  plain.base_dilation = plain.window_dilation = NULL;
  buf *b = attr_begin(g);
  if (!window_dims(g, name, x, &plain, b, dims)) return node_poison(g);
  ir_value want = {.ndim = x->ndim, .dims = dims};
  CHECK_OR(ir_same_dims(source, &want), "%s (C2): expected a source of shape %s, got %s", name,
           node_dims_text(g, x->ndim, dims), node_text(g, source));
  ir_op *op = node_op(g, name, attr_end(g), in, 3, 1, 2);
  if (!op) return node_poison(g);
  node_type(g, op, 0, x->dtype, x->ndim, x->dims);
  if (!node_open(g, op, "select_and_scatter") || !select_region(g, select, nan, x->dtype) ||
      !node_simple_region(g, IR_ADD, x->dtype))
    return node_poison(g);
  node_close(g);
  return &op->out[0];
}
