/* control.c - while and if. */
#include "ir/node.h"

static bool same_type(val a, val b) { return a->dtype == b->dtype && ir_same_dims(a, b); }

/* A region with one argument for each operand of the open operation. */
static void loop_region(ir_graph *g, ir_op *op, val *args) {
  node_region(g, op->nin);
  for (int i = 0; i < op->nin; i++) args[i] = node_region_arg(g, i, op->in[i]->dtype, op->in[i]->ndim, op->in[i]->dims);
}

void ir_while_begin(ir_graph *g, const val *init, int n, val *cond_args) {
  node_nest(g, "while", n);
  ir_op *op = node_op(g, "stablehlo.while", "", init, n, n, 2);
  for (int i = 0; op && i < n; i++) node_type(g, op, i, init[i]->dtype, init[i]->ndim, init[i]->dims);
  if (op && node_ok(g) && node_open(g, op, "while")) loop_region(g, op, cond_args);
  if (!node_ok(g)) node_poison_all(g, cond_args, n);
}

void ir_while_body(ir_graph *g, val cond, val *body_args) {
  int n = node_nested(g, "while");
  ir_op *op = node_opened(g, "while", 0);
  if (op && node_usable(g, op->name, &cond, 1) && (cond->ndim || cond->dtype != TPU_BOOL))
    ir_fail(g, TPU_ERR_RUNTIME, "%s (C1): expected the condition to be a bool scalar, got %s", op->name,
            node_text(g, cond));
  if (op && node_ok(g) && node_region_end(g, &cond, 1)) loop_region(g, op, body_args);
  if (!node_ok(g)) node_poison_all(g, body_args, n);
}

void ir_while_end(ir_graph *g, const val *body_results, val *out) {
  int n = node_unnest(g, "while");
  ir_op *op = node_opened(g, "while", 1);
  if (op && node_usable(g, op->name, body_results, n))
    for (int i = 0; i < n; i++)
      if (!same_type(body_results[i], op->in[i]))
        ir_fail(g, TPU_ERR_RUNTIME, "%s (C2): expected body result %d to be %s, got %s", op->name, i,
                node_text(g, op->in[i]), node_text(g, body_results[i]));
  if (!op || !node_ok(g) || !node_region_end(g, body_results, n)) {
    node_poison_all(g, out, n);
    return;
  }
  node_close(g);
  for (int i = 0; i < n; i++) out[i] = &op->out[i];
}

/* The number of results of an if is known when its first branch ends: the operation is remade then. */
void ir_if_begin(ir_graph *g, val pred) {
  const char *name = "stablehlo.if";
  node_nest(g, "if", 0);
  if (node_usable(g, name, &pred, 1) && (pred->ndim || pred->dtype != TPU_BOOL))
    ir_fail(g, TPU_ERR_RUNTIME, "%s (I1): expected a bool scalar, got %s", name, node_text(g, pred));
  if (!node_ok(g)) return;
  ir_op *op = node_op(g, name, "", &pred, 1, 0, 2);
  if (op && node_open(g, op, "if")) node_region(g, 0);
}

void ir_if_else(ir_graph *g, const val *results, int n) {
  ir_op *op = node_opened(g, "if", 0);
  if (!op || !node_region_end(g, results, n)) return;
  ir_op *full = node_op(g, op->name, op->attrs, op->in, op->nin, n, 2);
  if (!full) return;
  for (int i = 0; i < n; i++) node_type(g, full, i, results[i]->dtype, results[i]->ndim, results[i]->dims);
  full->regions[0] = op->regions[0];
  g->open->op = full;
  if (node_ok(g)) node_region(g, 0);
}

void ir_if_end(ir_graph *g, const val *results, int n, val *out) {
  node_unnest(g, "if");
  ir_op *op = node_opened(g, "if", 1);
  if (!op) {
    node_poison_all(g, out, n);
    return;
  }
  if (n != op->nout)
    ir_fail(g, TPU_ERR_RUNTIME, "%s (C2): the true branch gives %d results, the false branch %d", op->name, op->nout,
            n);
  if (node_usable(g, op->name, results, n))
    for (int i = 0; i < n; i++)
      if (!same_type(results[i], &op->out[i]))
        ir_fail(g, TPU_ERR_RUNTIME, "%s (C2): result %d is %s in the true branch, %s in the false branch", op->name, i,
                node_text(g, &op->out[i]), node_text(g, results[i]));
  if (!node_ok(g) || !node_region_end(g, results, n)) {
    node_poison_all(g, out, n);
    return;
  }
  node_close(g);
  for (int i = 0; i < n; i++) out[i] = &op->out[i];
}
