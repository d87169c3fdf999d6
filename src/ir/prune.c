/* prune.c - drops the parameters that no output needs, so that a program takes only what it reads. */
#include "ir/node.h"

static void need(ir_graph *g, val v) {
  if (v->op) v->op->live = g->epoch;
  else v->id = 1;
}

static void walk(ir_graph *g, ir_block *b) {
  for (int i = 0; i < b->nresults; i++) need(g, b->results[i]);
  for (ir_op *op = b->last; op; op = op->prev) {
    if (op->live != g->epoch) continue;
    for (int i = 0; i < op->nin; i++) need(g, op->in[i]);
    for (int i = 0; i < op->nregions; i++) walk(g, op->regions[i]);
  }
}

void node_mark_live(ir_graph *g) {
  for (int i = 0; i < g->top.nargs; i++) g->top.args[i]->id = 0;
  g->epoch++;
  for (int i = 0; i < g->noutputs; i++) need(g, g->outputs[i].v);
  walk(g, &g->top);
}

int ir_prune_params(ir_graph *g, int *kept) {
  int n = g->top.nargs;
  node_mark_live(g);
  int left = 0;
  for (int i = 0; i < n; i++) {
    if (!g->top.args[i]->id) {
      for (int k = 0; k < g->noutputs; k++)
        if (g->outputs[k].alias == i) g->outputs[k].alias = -1;
      continue;
    }
    for (int k = 0; k < g->noutputs; k++)
      if (g->outputs[k].alias == i) g->outputs[k].alias = left;
    kept[left] = i;
    g->top.args[left++] = g->top.args[i];
  }
  g->top.nargs = left;
  return left;
}
