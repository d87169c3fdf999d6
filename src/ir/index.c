/* index.c - gather, scatter, sort. */
#include "ir/node.h"

/* n dims, each in [0, limit), rising or just different; marks them. */
static bool list_ok(ir_graph *g, const char *name, const char *list, int n, const int *dims, int limit, bool rising,
                    bool *used) {
  for (int i = 0; i < n; i++) {
    bool ok = dims[i] >= 0 && dims[i] < limit && !(used && used[dims[i]]) && !(rising && i && dims[i] <= dims[i - 1]);
    if (!ok) {
      ir_fail(g, TPU_ERR_RUNTIME, "%s: expected %s to be different%s dims in [0, %d), got %d at place %d", name, list,
              rising ? ", rising" : "", limit, dims[i], i);
      return false;
    }
    if (used) used[dims[i]] = true;
  }
  return true;
}

/* Index vectors: how long they are. indices of rank r has them along index_vector_dim, or is scalars if that is r. */
static int vector_length(val indices, int index_vector_dim) {
  int64_t n = index_vector_dim == indices->ndim ? 1 : indices->dims[index_vector_dim];
  return n > IR_MAX_RANK ? IR_MAX_RANK + 1 : (int)n;
}

static bool indices_ok(ir_graph *g, const char *name, val indices, int index_vector_dim, int nmap) {
  if (!ir_is_int(indices->dtype)) {
    ir_fail(g, TPU_ERR_RUNTIME, "%s: expected integer indices, got %s", name, node_text(g, indices));
  } else if (index_vector_dim < 0 || index_vector_dim > indices->ndim) {
    ir_fail(g, TPU_ERR_RUNTIME, "%s: expected index_vector_dim in [0, %d], got %d", name, indices->ndim,
            index_vector_dim);
  } else if (vector_length(indices, index_vector_dim) != nmap) {
    ir_fail(g, TPU_ERR_RUNTIME, "%s: expected index vectors of length %d along dim %d, got indices %s", name, nmap,
            index_vector_dim, node_text(g, indices));
  }
  return node_ok(g);
}

/* Batching dims: equal sizes in operand and indices, none of them in `skip` lists. */
static bool batching_ok(ir_graph *g, const char *name, val x, val indices, int n, const int *of_x,
                        const int *of_indices, int index_vector_dim) {
  bool used[IR_MAX_RANK] = {false};
  if (!list_ok(g, name, "indices batching dims", n, of_indices, indices->ndim, false, used)) return false;
  for (int i = 0; i < n; i++) {
    if (of_indices[i] != index_vector_dim && x->dims[of_x[i]] == indices->dims[of_indices[i]]) continue;
    ir_fail(g, TPU_ERR_RUNTIME, "%s: batching dims %d of %s and %d of indices %s do not fit", name, of_x[i],
            node_text(g, x), of_indices[i], node_text(g, indices));
    return false;
  }
  return true;
}

val ir_gather(ir_graph *g, val x, val indices, const ir_gather_dims *d, const int64_t *slice_sizes, bool sorted) {
  const char *name = "stablehlo.gather";
  val in[2] = {x, indices};
  USABLE_OR_POISON(name, in, 2);
  if (!indices_ok(g, name, indices, d->index_vector_dim, d->nstart)) return node_poison(g);
  bool dropped[IR_MAX_RANK] = {false}, started[IR_MAX_RANK] = {false};
  if (!list_ok(g, name, "collapsed_slice_dims (C6-C8)", d->ncollapsed, d->collapsed_dims, x->ndim, true, dropped) ||
      !list_ok(g, name, "operand_batching_dims (C9-C11)", d->nbatching, d->operand_batching, x->ndim, true, dropped))
    return node_poison(g);
  for (int i = 0; i < d->nbatching; i++) started[d->operand_batching[i]] = true;
  if (!list_ok(g, name, "start_index_map (C14, C15)", d->nstart, d->start_index_map, x->ndim, false, started) ||
      !batching_ok(g, name, x, indices, d->nbatching, d->operand_batching, d->indices_batching, d->index_vector_dim))
    return node_poison(g);
  int noffset = 0;
  int64_t offset_sizes[IR_MAX_RANK];
  for (int i = 0; i < x->ndim; i++) {
    CHECK_OR(slice_sizes[i] >= 0 && slice_sizes[i] <= x->dims[i],
             "%s (C20): expected 0 <= slice size <= %lld in dim %d, got %lld", name, (long long)x->dims[i], i,
             (long long)slice_sizes[i]);
    CHECK_OR(!dropped[i] || slice_sizes[i] <= 1, "%s (C8, C12): expected slice size 1 in dropped dim %d, got %lld",
             name, i, (long long)slice_sizes[i]);
    if (!dropped[i]) offset_sizes[noffset++] = slice_sizes[i];
  }
  CHECK_OR(noffset == d->noffset, "%s (C1): expected %d offset_dims, got %d", name, noffset, d->noffset);
  int nbatch = indices->ndim - (d->index_vector_dim < indices->ndim), n = nbatch + noffset;
  CHECK_OR(n <= IR_MAX_RANK, "%s: the result has rank %d, more than %d", name, n, IR_MAX_RANK);
  bool is_offset[IR_MAX_RANK] = {false};
  if (!list_ok(g, name, "offset_dims (C4, C5)", noffset, d->offset_dims, n, true, is_offset)) return node_poison(g);
  int64_t dims[IR_MAX_RANK];
  for (int i = 0, o = 0, s = 0; i < n; i++) {
    if (is_offset[i]) {
      dims[i] = offset_sizes[o++];
      continue;
    }
    if (s == d->index_vector_dim) s++;
    dims[i] = indices->dims[s++];
  }
  buf *b = attr_begin(g);
  buf_str(b, "dimension_numbers = #stablehlo.gather<");
  attr_bracket(b, "offset_dims", d->offset_dims, d->noffset);
  attr_bracket(b, "collapsed_slice_dims", d->collapsed_dims, d->ncollapsed);
  attr_bracket(b, "operand_batching_dims", d->operand_batching, d->nbatching);
  attr_bracket(b, "start_indices_batching_dims", d->indices_batching, d->nbatching);
  attr_bracket(b, "start_index_map", d->start_index_map, d->nstart);
  buf_printf(b, "%sindex_vector_dim = %d>, indices_are_sorted = %s, ", b->len && b->data[b->len - 1] != '<' ? ", " : "",
             d->index_vector_dim, sorted ? "true" : "false");
  attr_i64s(b, "slice_sizes", slice_sizes, x->ndim);
  return node_make(g, name, attr_end(g), in, 2, x->dtype, n, dims);
}

val ir_scatter(ir_graph *g, val x, val indices, val updates, const ir_scatter_dims *d, int body, bool sorted,
               bool unique) {
  const char *name = "stablehlo.scatter";
  val in[3] = {x, indices, updates};
  USABLE_OR_POISON(name, in, 3);
  if (!indices_ok(g, name, indices, d->index_vector_dim, d->nscatter)) return node_poison(g);
  CHECK_OR(x->dtype == updates->dtype, "%s (C6): expected updates of dtype %s, got %s", name, tpu_dtype_name(x->dtype),
           node_text(g, updates));
  CHECK_OR(body >= -1 && body < IR_OP_COUNT, "%s: expected a body or -1, got %d", name, body);
  bool dropped[IR_MAX_RANK] = {false}, scattered[IR_MAX_RANK] = {false}, is_window[IR_MAX_RANK] = {false};
  if (!list_ok(g, name, "inserted_window_dims (C9, C10)", d->ninserted, d->inserted_window_dims, x->ndim, true,
               dropped) ||
      !list_ok(g, name, "input_batching_dims (C11-C13)", d->nbatching, d->operand_batching, x->ndim, true, dropped))
    return node_poison(g);
  for (int i = 0; i < d->nbatching; i++) scattered[d->operand_batching[i]] = true;
  if (!list_ok(g, name, "scatter_dims_to_operand_dims (C19-C21)", d->nscatter, d->scatter_dims_to_operand, x->ndim,
               false, scattered) ||
      !batching_ok(g, name, x, indices, d->nbatching, d->operand_batching, d->indices_batching, d->index_vector_dim) ||
      !list_ok(g, name, "update_window_dims (C7, C8)", d->nwindow, d->update_window_dims, updates->ndim, true,
               is_window))
    return node_poison(g);
  CHECK_OR(x->ndim == d->nwindow + d->ninserted + d->nbatching,
           "%s (C2): expected %d window, inserted and batching dims, got %d + %d + %d", name, x->ndim, d->nwindow,
           d->ninserted, d->nbatching);
  int nbatch = indices->ndim - (d->index_vector_dim < indices->ndim);
  CHECK_OR(updates->ndim == nbatch + d->nwindow, "%s (C4): expected updates of rank %d, got %s", name,
           nbatch + d->nwindow, node_text(g, updates));
  for (int i = 0, o = 0, s = 0; i < updates->ndim; i++) {
    if (is_window[i]) {
      while (dropped[o]) o++;
      CHECK_OR(updates->dims[i] <= x->dims[o], "%s (C4): update window dim %d of %s is larger than dim %d of %s", name,
               i, node_text(g, updates), o, node_text(g, x));
      o++;
      continue;
    }
    if (s == d->index_vector_dim) s++;
    CHECK_OR(updates->dims[i] == indices->dims[s], "%s (C4): dim %d of updates %s does not fit indices %s", name, i,
             node_text(g, updates), node_text(g, indices));
    s++;
  }
  buf *b = attr_begin(g);
  buf_printf(b, "indices_are_sorted = %s, unique_indices = %s, scatter_dimension_numbers = #stablehlo.scatter<",
             sorted ? "true" : "false", unique ? "true" : "false");
  attr_bracket(b, "update_window_dims", d->update_window_dims, d->nwindow);
  attr_bracket(b, "inserted_window_dims", d->inserted_window_dims, d->ninserted);
  attr_bracket(b, "input_batching_dims", d->operand_batching, d->nbatching);
  attr_bracket(b, "scatter_indices_batching_dims", d->indices_batching, d->nbatching);
  attr_bracket(b, "scatter_dims_to_operand_dims", d->scatter_dims_to_operand, d->nscatter);
  buf_printf(b, "%sindex_vector_dim = %d>", b->len && b->data[b->len - 1] != '<' ? ", " : "", d->index_vector_dim);
  ir_op *op = node_op(g, name, attr_end(g), in, 3, 1, 1);
  if (!op) return node_poison(g);
  node_type(g, op, 0, x->dtype, x->ndim, x->dims);
  if (!node_open(g, op, "scatter") || !node_simple_region(g, body, x->dtype)) return node_poison(g);
  node_close(g);
  return &op->out[0];
}

void ir_sort_begin(ir_graph *g, const val *xs, int n, int dim, bool stable, val *body_args) {
  const char *name = "stablehlo.sort";
  ir_op *op = NULL;
  node_nest(g, "sort", n);
  if (n < 1) {
    ir_fail(g, TPU_ERR_RUNTIME, "%s (C1): expected at least one input, got %d", name, n);
  } else if (node_usable(g, name, xs, n)) {
    for (int i = 0; i < n; i++)
      if (!ir_same_dims(xs[0], xs[i]))
        ir_fail(g, TPU_ERR_RUNTIME, "%s (C3): expected inputs of one shape, got %s and %s", name, node_text(g, xs[0]),
                node_text(g, xs[i]));
    if (dim < 0 || dim >= xs[0]->ndim)
      ir_fail(g, TPU_ERR_RUNTIME, "%s (C4): expected a dim of %s, got %d", name, node_text(g, xs[0]), dim);
    if (node_ok(g)) {
      const char *attrs = arena_printf(&g->mem, "dimension = %d : i64, is_stable = %s", dim, stable ? "true" : "false");
      op = node_op(g, name, attrs, xs, n, n, 1);
    }
  }
  for (int i = 0; op && i < n; i++) node_type(g, op, i, xs[i]->dtype, xs[i]->ndim, xs[i]->dims);
  if (op && node_ok(g) && node_open(g, op, "sort")) {
    node_region(g, 2 * n);
    for (int i = 0; i < 2 * n; i++) body_args[i] = node_region_arg(g, i, xs[i / 2]->dtype, 0, node_poison(g)->dims);
  }
  if (!node_ok(g)) node_poison_all(g, body_args, n < 0 ? 0 : 2 * n);
}

void ir_sort_end(ir_graph *g, val less, val *out) {
  int n = node_unnest(g, "sort");
  ir_op *op = node_opened(g, "sort", 0);
  if (op && node_usable(g, op->name, &less, 1) && (less->ndim || less->dtype != TPU_BOOL))
    ir_fail(g, TPU_ERR_RUNTIME, "%s (C5): expected the comparator to give a bool scalar, got %s", op->name,
            node_text(g, less));
  /* Such a comparator is no order, and XLA's compiler ends the process on one. */
  if (op && node_ok(g) && !less->op)
    ir_fail(g, TPU_ERR_RUNTIME, "%s: expected the comparator to compare, but it gives an argument back", op->name);
  if (!op || !node_ok(g) || !node_region_end(g, &less, 1)) {
    node_poison_all(g, out, n);
    return;
  }
  node_close(g);
  for (int i = 0; i < n; i++) out[i] = &op->out[i];
}
