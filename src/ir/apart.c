/* apart.c - keeps products and what reads their heads in loops of their own, in programs with kernels.
 *
 * A kernel wants its operands row by row; what stands before it, a norm of each head say, rather lies the other way.
 * The TPU's compiler (libtpu 0.0.52) then writes a projection's result out twice, in two layouts and with its last dim
 * divided into heads, from the loop that computes it, and where that loop's blocks do not divide the dim its process
 * aborts ("split of a padded window dim is not supported"). Behind a barrier the loop writes one result, as it is. */
#include "ir/node.h"

static bool named(const ir_op *op, const char *name) { return !strcmp(op->name, name); }

/* Whether v is a product, or a part of one, but for a bias, its dtype, its place on the mesh and leading dims. */
static bool is_product(val v, int steps) {
  const ir_op *op = v->op;
  if (!op || !steps) return false;
  if (named(op, "stablehlo.dot_general")) return true;
  if (named(op, "stablehlo.reshape") && op->in[0]->ndim && v->ndim &&
      op->in[0]->dims[op->in[0]->ndim - 1] != v->dims[v->ndim - 1])
    return false;
  if (named(op, "stablehlo.add") && is_product(op->in[1], steps - 1)) return true;
  return (named(op, "stablehlo.add") || named(op, "stablehlo.convert") || named(op, "stablehlo.reshape") ||
          named(op, "stablehlo.slice") || named(op, "sdy.sharding_constraint")) &&
         is_product(op->in[0], steps - 1);
}

/* Whether a reshape divides its operand's last dim. */
static bool divides_last(const ir_op *op) {
  const val in = op->in[0], out = &op->out[0];
  if (in->ndim < 2 || out->ndim < 2) return false;
  const int64_t whole = in->dims[in->ndim - 1], part = out->dims[out->ndim - 1];
  return part > 1 && part < whole && whole % part == 0;
}

void node_set_products_apart(ir_graph *g) {
  enum { STEPS = 8 };
  for (ir_op *op = g->top.first; op && node_ok(g); op = op->next) {
    if (!named(op, "stablehlo.reshape") || !divides_last(op) || !is_product(op->in[0], STEPS)) continue;
    const val in = op->in[0];
    ir_op *bar = node_op(g, "stablehlo.optimization_barrier", "", op->in, 1, 1, 0);
    if (!bar) return;
    node_type(g, bar, 0, in->dtype, in->ndim, in->dims);
    bar->loc = op->loc;
    bar->block = &g->top;
    bar->prev = op->prev;
    bar->next = op;
    if (op->prev) op->prev->next = bar;
    else g->top.first = bar;
    op->prev = bar;
    op->in[0] = &bar->out[0];
  }
}
