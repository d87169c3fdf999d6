/* print.c - the graph as MLIR text in generic form: one way of writing for every operation. */
#include "ir/node.h"

typedef struct {
  ir_graph *g;
  buf *b;
  int32_t next; /* the next free number for a value */
} printer;

/* ---- which operations are needed, and in which order ----------------------------------------------------------- */

/* Dependency i of an operation: its operands, then the results of its regions. False past the end. */
static bool dependency(const ir_op *op, int i, val *out) {
  if (i < op->nin) {
    *out = op->in[i];
    return true;
  }
  i -= op->nin;
  for (int r = 0; r < op->nregions; r++) {
    if (i < op->regions[r]->nresults) {
      *out = op->regions[r]->results[i];
      return true;
    }
    i -= op->regions[r]->nresults;
  }
  return false;
}

/* Appends what v needs, and v's operation, to the print order of their blocks: dependencies first, left to right. So
 * the order depends on the program alone, and not on when (or in which order of evaluation) its parts were built.
 * An operation in a region may need one of an outer block: that one then stands before the region's owner. No
 * recursion: chains may be long. */
static void reach(ir_graph *g, val v) {
  ir_op *op = v->op, *asker = NULL;
  while (op || asker) {
    if (op && op->live != g->epoch) { /* enter */
      op->live = g->epoch;
      op->cursor = 0;
      op->asker = asker;
      for (int i = 0; i < op->nregions; i++) op->regions[i]->print_first = op->regions[i]->print_last = NULL;
      asker = op;
    }
    if (!asker) return; /* a root that was reached before */
    val next;
    if (dependency(asker, asker->cursor++, &next)) {
      op = next->op;
      continue;
    }
    ir_block *b = asker->block; /* all done: leave */
    asker->print_next = NULL;
    if (b->print_last) b->print_last->print_next = asker;
    else b->print_first = asker;
    b->print_last = asker;
    asker = asker->asker;
    op = NULL;
  }
}

/* ---- text ------------------------------------------------------------------------------------------------------ */

static void put_value(printer *p, val v) {
  if (v->id < 0) {
    buf_str(p->b, "%arg");
    buf_int(p->b, -1 - (int64_t)v->id);
    return;
  }
  buf_char(p->b, '%');
  buf_int(p->b, v->id);
  if (v->op && v->op->nout > 1) {
    buf_char(p->b, '#');
    buf_int(p->b, v->index);
  }
}

static void put_values(printer *p, const val *v, int n) {
  for (int i = 0; i < n; i++) {
    if (i) buf_bytes(p->b, ", ", 2);
    put_value(p, v[i]);
  }
}

static void put_type(printer *p, val v) { node_put_type(p->b, v->dtype, v->ndim, v->dims); }

static void put_types(printer *p, const val *v, int n) {
  for (int i = 0; i < n; i++) {
    if (i) buf_bytes(p->b, ", ", 2);
    put_type(p, v[i]);
  }
}

static void indent(printer *p, int level) {
  for (int i = 0; i < level; i++) buf_bytes(p->b, "  ", 2);
}

static void put_ops(printer *p, ir_block *b, int level);

static void put_region(printer *p, ir_block *r, const char *end, int level) {
  buf_bytes(p->b, "{\n", 2);
  if (r->nargs) {
    indent(p, level);
    buf_str(p->b, "^bb0(");
    for (int i = 0; i < r->nargs; i++) {
      if (i) buf_bytes(p->b, ", ", 2);
      r->args[i]->id = p->next++;
      put_value(p, r->args[i]);
      buf_bytes(p->b, ": ", 2);
      put_type(p, r->args[i]);
    }
    buf_bytes(p->b, "):\n", 3);
  }
  put_ops(p, r, level + 1);
  indent(p, level + 1);
  buf_printf(p->b, "\"%s\"(", end);
  put_values(p, r->results, r->nresults);
  buf_str(p->b, ") : (");
  put_types(p, r->results, r->nresults);
  buf_str(p->b, ") -> ()\n");
  indent(p, level);
  buf_char(p->b, '}');
}

static void put_op(printer *p, ir_op *op, int level) {
  indent(p, level);
  int32_t id = p->next++;
  for (int i = 0; i < op->nout; i++) op->out[i].id = id;
  buf_char(p->b, '%');
  buf_int(p->b, id);
  if (op->nout != 1) {
    buf_char(p->b, ':');
    buf_int(p->b, op->nout);
  }
  buf_bytes(p->b, " = \"", 4);
  buf_str(p->b, op->name);
  buf_bytes(p->b, "\"(", 2);
  put_values(p, op->in, op->nin);
  buf_char(p->b, ')');
  if (op->nregions) {
    buf_bytes(p->b, " (", 2);
    for (int i = 0; i < op->nregions; i++) {
      if (i) buf_bytes(p->b, ", ", 2);
      put_region(p, op->regions[i], strncmp(op->name, "sdy.", 4) ? "stablehlo.return" : "sdy.return", level);
    }
    buf_char(p->b, ')');
  }
  if (op->attrs[0]) {
    buf_bytes(p->b, " {", 2);
    buf_str(p->b, op->attrs);
    buf_char(p->b, '}');
  }
  buf_bytes(p->b, " : (", 4);
  put_types(p, op->in, op->nin);
  buf_bytes(p->b, ") -> ", 5);
  if (op->nout == 1) {
    put_type(p, &op->out[0]);
  } else {
    buf_char(p->b, '(');
    for (int i = 0; i < op->nout; i++) {
      if (i) buf_bytes(p->b, ", ", 2);
      put_type(p, &op->out[i]);
    }
    buf_char(p->b, ')');
  }
  if (op->loc) {
    buf_char(p->b, ' ');
    buf_str(p->b, op->loc);
  }
  buf_char(p->b, '\n');
}

static void put_ops(printer *p, ir_block *b, int level) {
  for (ir_op *op = b->print_first; op; op = op->print_next) put_op(p, op, level);
}

/* Of a parameter or result: where it is on the mesh, and which result reuses its buffer (-1: none). */
static void put_attributes(printer *p, const char *place, int output) {
  if (!place && output < 0) return;
  buf_str(p->b, " {");
  if (place) buf_printf(p->b, "sdy.sharding = %s%s", place, output >= 0 ? ", " : "");
  if (output >= 0) buf_printf(p->b, "tf.aliasing_output = %d : i32", output);
  buf_char(p->b, '}');
}

static void put_signature(printer *p) {
  ir_graph *g = p->g;
  for (int i = 0; i < g->top.nargs; i++) {
    if (i) buf_bytes(p->b, ", ", 2);
    val v = g->top.args[i];
    v->id = -1 - i;
    put_value(p, v);
    buf_bytes(p->b, ": ", 2);
    put_type(p, v);
    int output = -1;
    for (int k = 0; k < g->noutputs; k++)
      if (g->outputs[k].alias == i) output = k;
    put_attributes(p, ((const ir_arg *)(const void *)v)->place, output);
  }
  buf_str(p->b, ") -> (");
  for (int i = 0; i < g->noutputs; i++) {
    if (i) buf_bytes(p->b, ", ", 2);
    put_type(p, g->outputs[i].v);
    put_attributes(p, g->outputs[i].place, -1);
  }
}

const char *ir_type_text(arena *a, val v) {
  buf b;
  buf_init(&b);
  node_put_type(&b, v->dtype, v->ndim, v->dims);
  const char *s = b.failed ? NULL : arena_copy(a, b.data, b.len + 1);
  buf_free(&b);
  return s;
}

tpu_err *ir_print(ir_graph *g, buf *out) {
  if (ir_failed(g)) {
    tpu_err *e = ir_take_error(g);
    return e ? e : err_new(TPU_ERR_RUNTIME, "this graph had an error, which was taken before; it cannot be printed");
  }
  if (g->open) return err_new(TPU_ERR_RUNTIME, "a graph with an open region (%s) cannot be printed", g->open->what);
  if (g->kernel) {
    node_set_products_apart(g);
    if (ir_failed(g)) return ir_take_error(g);
  }
  g->epoch++;
  g->top.print_first = g->top.print_last = NULL;
  for (int i = 0; i < g->noutputs; i++) reach(g, g->outputs[i].v);
  printer p = {.g = g, .b = out};
  buf_str(out, "module @tpu ");
  if (g->mesh) buf_str(out, g->mesh);
  buf_str(out, g->mesh ? "  func.func public @main(" : "{\n  func.func public @main(");
  put_signature(&p);
  buf_str(out, ") {\n");
  put_ops(&p, &g->top, 2);
  buf_str(out, "    return");
  for (int i = 0; i < g->noutputs; i++) {
    buf_str(out, i ? ", " : " ");
    put_value(&p, g->outputs[i].v);
  }
  for (int i = 0; i < g->noutputs; i++) {
    buf_str(out, i ? ", " : " : ");
    put_type(&p, g->outputs[i].v);
  }
  buf_str(out, "\n  }\n}\n");
  return out->failed ? err_nomem() : NULL;
}
