/* graph.c - graph, parameters, outputs, operations, regions. */
#include <stdlib.h>
#include "base/mem.h"

#include "ir/node.h"

ir_graph *ir_new(void) {
  ir_graph *g = mem_calloc(sizeof *g);
  if (!g) return NULL;
  arena_init(&g->mem);
  buf_init(&g->scratch);
  g->at = &g->top;
  g->poison.v.dtype = TPU_F32;
  static const int64_t no_dims[1];
  g->poison.v.dims = no_dims;
  return g;
}

void ir_free(ir_graph *g) {
  if (!g) return;
  tpu_err_free(g->err);
  buf_free(&g->scratch);
  arena_free(&g->mem);
  mem_free(g);
}

arena *ir_arena(ir_graph *g) { return &g->mem; }

tpu_err *ir_take_error(ir_graph *g) {
  tpu_err *e = g->err;
  g->err = NULL;
  if (e) return e;
  return g->mem.failed && !g->failed ? err_nomem() : NULL;
}

bool ir_failed(const ir_graph *g) { return g->failed || g->mem.failed; }

val ir_fail(ir_graph *g, tpu_err_kind kind, const char *fmt, ...) {
  if (node_ok(g)) {
    va_list ap;
    va_start(ap, fmt);
    g->err = err_newv(kind, fmt, ap);
    va_end(ap);
    g->failed = true;
  }
  return node_poison(g);
}

void ir_set_sizes_vary(ir_graph *g) { g->vary = true; }
bool ir_sizes_vary(const ir_graph *g) { return g->vary; }
void ir_set_kernels(ir_graph *g) { g->kernels = true; }
bool ir_kernels(const ir_graph *g) { return g->kernels; }

/* ---- parameters and outputs ------------------------------------------------------------------------------------ */

/* Room for one more item; the old array stays in the arena. */
static void *grown(ir_graph *g, void *old, int n, int *cap, size_t item) {
  if (n < *cap) return old;
  if (n > INT32_MAX / 4) {
    ir_fail(g, TPU_ERR_RUNTIME, "a program has more than %d parameters or results", n);
    return NULL;
  }
  int more = *cap ? 2 * *cap : 8;
  void *p = arena_alloc(&g->mem, (size_t)more * item);
  if (!p) return NULL;
  if (n) memcpy(p, old, (size_t)n * item);
  *cap = more;
  return p;
}

static val new_arg(ir_graph *g, ir_block *block, tpu_dtype dtype, int ndim, const int64_t *dims) {
  ir_arg *a = arena_alloc(&g->mem, sizeof *a);
  if (!a) return NULL;
  a->v.dims = arena_copy(&g->mem, dims, (size_t)ndim * sizeof *dims);
  if (!a->v.dims) return NULL;
  a->v.dtype = (uint8_t)dtype;
  a->v.ndim = (int16_t)ndim;
  a->block = block;
  return &a->v;
}

val ir_param(ir_graph *g, tpu_dtype dtype, int ndim, const int64_t *dims) {
  if (!node_ok(g) || !node_type_ok(g, "ir_param", dtype, ndim, dims)) return node_poison(g);
  void *args = grown(g, g->top.args, g->top.nargs, &g->param_cap, sizeof(val));
  val v = args ? new_arg(g, &g->top, dtype, ndim, dims) : NULL;
  if (!v) return node_poison(g);
  g->top.args = args;
  g->top.args[g->top.nargs++] = v;
  return v;
}

int ir_param_count(const ir_graph *g) { return g->top.nargs; }

val ir_param_value(const ir_graph *g, int i) {
  return i >= 0 && i < g->top.nargs ? g->top.args[i] : (val)(uintptr_t)&g->poison.v;
}

void ir_output(ir_graph *g, val v, int alias) {
  if (!node_usable(g, "ir_output", &v, 1)) return;
  if (g->open) {
    ir_fail(g, TPU_ERR_RUNTIME, "ir_output: expected no open region, but %s is being built", g->open->what);
    return;
  }
  if (alias < -1 || alias >= g->top.nargs) {
    ir_fail(g, TPU_ERR_RUNTIME, "ir_output: expected alias -1 or one of %d parameters, got %d", g->top.nargs, alias);
    return;
  }
  if (alias >= 0) {
    val p = g->top.args[alias];
    int64_t have = ir_numel(p) * (int64_t)tpu_dtype_size(p->dtype),
            want = ir_numel(v) * (int64_t)tpu_dtype_size(v->dtype);
    if (have != want) {
      ir_fail(g, TPU_ERR_RUNTIME,
              "ir_output: a result %s cannot reuse the buffer of parameter %d, %s: sizes in bytes differ",
              node_text(g, v), alias, node_text(g, p));
      return;
    }
    for (int i = 0; i < g->noutputs; i++) {
      if (g->outputs[i].alias != alias) continue;
      ir_fail(g, TPU_ERR_RUNTIME, "ir_output: parameter %d is already reused by result %d", alias, i);
      return;
    }
  }
  void *p = grown(g, g->outputs, g->noutputs, &g->output_cap, sizeof(ir_result));
  if (!p) return;
  g->outputs = p;
  g->outputs[g->noutputs++] = (ir_result){v, alias, NULL};
}

int ir_output_count(const ir_graph *g) { return g->noutputs; }

val ir_output_value(const ir_graph *g, int i) {
  return i >= 0 && i < g->noutputs ? g->outputs[i].v : (val)(uintptr_t)&g->poison.v;
}

/* ---- small questions ------------------------------------------------------------------------------------------- */

int64_t ir_numel(val v) {
  int64_t n = 1;
  for (int i = 0; i < v->ndim; i++) n *= v->dims[i];
  return n;
}

bool ir_same_dims(val a, val b) {
  if (a->ndim != b->ndim) return false;
  return a->dims == b->dims || !a->ndim || !memcmp(a->dims, b->dims, (size_t)a->ndim * sizeof *a->dims);
}

/* ---- checks ---------------------------------------------------------------------------------------------------- */

static bool in_scope(ir_graph *g, val v) {
  const ir_block *home = v->op ? v->op->block : ((const ir_arg *)(const void *)v)->block;
  for (const ir_block *b = g->at; b; b = b->up)
    if (b == home) return true;
  return false;
}

bool node_usable(ir_graph *g, const char *op, const val *in, int n) {
  if (!node_ok(g)) return false;
  for (int i = 0; i < n; i++) {
    if (!in[i]) {
      ir_fail(g, TPU_ERR_RUNTIME, "%s: operand %d is NULL", op, i);
      return false;
    }
    if (in[i] == node_poison(g) || !in_scope(g, in[i])) {
      ir_fail(g, TPU_ERR_RUNTIME, "%s: operand %d belongs to a region that is closed, or to another graph", op, i);
      return false;
    }
  }
  return true;
}

bool node_type_ok(ir_graph *g, const char *op, tpu_dtype dtype, int ndim, const int64_t *dims) {
  size_t item = tpu_dtype_size(dtype);
  if (!item) {
    ir_fail(g, TPU_ERR_RUNTIME, "%s: %d is no dtype", op, (int)dtype);
    return false;
  }
  if (ndim < 0 || ndim > IR_MAX_RANK) {
    ir_fail(g, TPU_ERR_RUNTIME, "%s: expected a rank from 0 to %d, got %d", op, IR_MAX_RANK, ndim);
    return false;
  }
  int64_t bytes = (int64_t)item; /* of all dims but those of size 0, so that no product of them can overflow later */
  for (int i = 0; i < ndim; i++) {
    if (dims[i] < 0) {
      ir_fail(g, TPU_ERR_RUNTIME, "%s: expected sizes >= 0, got %s", op, node_dims_text(g, ndim, dims));
      return false;
    }
    if (dims[i] && __builtin_mul_overflow(bytes, dims[i], &bytes)) {
      ir_fail(g, TPU_ERR_RUNTIME, "%s: a tensor of shape %s and dtype %s is too large", op,
              node_dims_text(g, ndim, dims), tpu_dtype_name(dtype));
      return false;
    }
  }
  return true;
}

/* ---- operations ------------------------------------------------------------------------------------------------ */

ir_op *node_op(ir_graph *g, const char *name, const char *attrs, const val *in, int nin, int nout, int nregions) {
  if (!node_usable(g, name, in, nin)) return NULL;
  if (nout > UINT16_MAX) {
    ir_fail(g, TPU_ERR_RUNTIME, "%s: expected at most %d results, got %d", name, UINT16_MAX, nout);
    return NULL;
  }
  size_t out_at = sizeof(ir_op), in_at = out_at + (size_t)nout * sizeof(ir_value),
         regions_at = in_at + (size_t)nin * sizeof(val);
  char *p = arena_alloc(&g->mem, regions_at + (size_t)nregions * sizeof(ir_block *));
  if (!p) return NULL;
  ir_op *op = (ir_op *)(void *)p;
  op->name = name;
  op->attrs = attrs;
  op->loc = g->loc;
  op->out = (ir_value *)(void *)(p + out_at);
  op->in = (val *)(void *)(p + in_at);
  op->regions = (ir_block **)(void *)(p + regions_at);
  op->nin = nin;
  op->nout = nout;
  op->nregions = nregions;
  if (nin) memcpy(op->in, in, (size_t)nin * sizeof *in);
  for (int i = 0; i < nout; i++) {
    op->out[i].op = op;
    op->out[i].index = (uint16_t)i;
  }
  return op;
}

void node_type(ir_graph *g, ir_op *op, int i, tpu_dtype dtype, int ndim, const int64_t *dims) {
  ir_value *v = &op->out[i];
  v->dims = NULL;
  for (int k = 0; k < op->nin && !v->dims; k++)
    if (op->in[k]->dims == dims) v->dims = dims;
  if (!v->dims) {
    if (!node_type_ok(g, op->name, dtype, ndim, dims)) ndim = 0;
    v->dims = arena_copy(&g->mem, dims, (size_t)ndim * sizeof *dims);
    if (!v->dims) {
      v->dims = g->poison.v.dims;
      ndim = 0;
    }
  } else if (tpu_dtype_size(dtype) > 1) {
    node_type_ok(g, op->name, dtype, ndim, dims); /* a wider dtype may be too large */
  }
  v->dtype = (uint8_t)dtype;
  v->ndim = (int16_t)ndim;
}

void ir_set_location(ir_graph *g, const char *op, const char *where) {
  buf *b = attr_begin(g);
  const char *colon = strrchr(where, ':');
  buf_str(b, "loc(");
  attr_quoted(b, op, strlen(op));
  if (colon && colon[1] && strspn(colon + 1, "0123456789") == strlen(colon + 1)) {
    buf_char(b, '(');
    attr_quoted(b, where, (size_t)(colon - where));
    buf_printf(b, "%s:0)", colon);
  }
  buf_char(b, ')');
  const char *text = attr_end(g);
  if (!g->loc || strcmp(g->loc, text) != 0) g->loc = text;
}

void node_append(ir_graph *g, ir_op *op) {
  ir_block *b = g->at;
  op->block = b;
  op->prev = b->last;
  if (b->last) b->last->next = op;
  else b->first = op;
  b->last = op;
}

val node_make(ir_graph *g, const char *name, const char *attrs, const val *in, int nin, tpu_dtype dtype, int ndim,
              const int64_t *dims) {
  ir_op *op = node_op(g, name, attrs, in, nin, 1, 0);
  if (!op) return node_poison(g);
  node_type(g, op, 0, dtype, ndim, dims);
  if (!node_ok(g)) return node_poison(g);
  node_append(g, op);
  return &op->out[0];
}

/* ---- regions --------------------------------------------------------------------------------------------------- */

bool node_open(ir_graph *g, ir_op *op, const char *what) {
  if (g->depth >= IR_MAX_DEPTH) {
    ir_fail(g, TPU_ERR_RUNTIME, "%s: regions are nested more than %d deep", op->name, IR_MAX_DEPTH);
    return false;
  }
  ir_open *o = arena_alloc(&g->mem, sizeof *o);
  if (!o) return false;
  *o = (ir_open){.up = g->open, .op = op, .what = what, .outer = g->at, .stage = -1};
  g->open = o;
  g->depth++;
  return true;
}

void node_region(ir_graph *g, int nargs) {
  ir_open *o = g->open;
  ir_block *b = arena_alloc(&g->mem, sizeof *b);
  val *args = arena_alloc(&g->mem, (size_t)nargs * sizeof *args);
  if (!b || !args) return;
  b->up = o->outer;
  b->args = args;
  b->nargs = nargs;
  o->stage++;
  o->op->regions[o->stage] = b;
  g->at = b;
}

val node_region_arg(ir_graph *g, int i, tpu_dtype dtype, int ndim, const int64_t *dims) {
  if (!node_ok(g)) return node_poison(g);
  val v = new_arg(g, g->at, dtype, ndim, dims);
  if (!v) return node_poison(g);
  return g->at->args[i] = v;
}

ir_op *node_opened(ir_graph *g, const char *what, int stage) {
  if (!node_ok(g)) return NULL;
  if (!g->open || strcmp(g->open->what, what) || g->open->stage != stage) {
    ir_fail(g, TPU_ERR_RUNTIME, "begin and end functions are out of order: expected %s to be open, got %s", what,
            g->open ? g->open->what : "nothing");
    return NULL;
  }
  return g->open->op;
}

bool node_region_end(ir_graph *g, const val *results, int n) {
  if (!node_usable(g, g->open->op->name, results, n)) return false;
  g->at->results = arena_copy(&g->mem, results, (size_t)n * sizeof *results);
  g->at->nresults = n;
  g->at = g->open->outer;
  return node_ok(g);
}

void node_close(ir_graph *g) {
  ir_op *op = g->open->op;
  g->at = g->open->outer;
  g->open = g->open->up;
  g->depth--;
  node_append(g, op);
}

bool node_simple_region(ir_graph *g, int body, tpu_dtype dtype) {
  node_region(g, 2);
  val a = node_region_arg(g, 0, dtype, 0, g->poison.v.dims), b = node_region_arg(g, 1, dtype, 0, g->poison.v.dims);
  val r = body == -1 ? b : body < -1 ? ir_compare(g, (ir_cmp)(-2 - body), a, b) : ir_binary(g, (ir_opcode)body, a, b);
  if (!node_ok(g)) return false;
  return node_region_end(g, &r, 1);
}

void node_nest(ir_graph *g, const char *what, int n) {
  if (g->nnest < IR_MAX_NEST) g->nest[g->nnest] = (ir_nest){what, n};
  g->nnest++;
}

int node_nested(const ir_graph *g, const char *what) {
  if (!g->nnest || g->nnest > IR_MAX_NEST || strcmp(g->nest[g->nnest - 1].what, what) != 0) return 0;
  return g->nest[g->nnest - 1].n;
}

int node_unnest(ir_graph *g, const char *what) {
  int n = node_nested(g, what);
  if (n || g->nnest > IR_MAX_NEST || (g->nnest && !strcmp(g->nest[g->nnest - 1].what, what))) g->nnest--;
  return n;
}

void node_poison_all(ir_graph *g, val *out, int n) {
  for (int i = 0; i < n; i++) out[i] = node_poison(g);
}

/* ---- attribute text -------------------------------------------------------------------------------------------- */

buf *attr_begin(ir_graph *g) {
  buf_clear(&g->scratch);
  return &g->scratch;
}

const char *attr_end(ir_graph *g) {
  if (!g->scratch.failed && !g->scratch.len) return "";
  const char *s = g->scratch.failed ? NULL : arena_copy(&g->mem, g->scratch.data, g->scratch.len + 1);
  if (!s) g->mem.failed = true;
  return s ? s : "";
}

void attr_quoted(buf *b, const char *s, size_t n) {
  buf_char(b, '"');
  for (size_t i = 0; i < n; i++) {
    if ((unsigned char)s[i] < ' ' || s[i] == '"' || s[i] == '\\') buf_printf(b, "\\%02X", (unsigned char)s[i]);
    else buf_char(b, s[i]);
  }
  buf_char(b, '"');
}

void attr_i64s(buf *b, const char *name, const int64_t *v, int n) {
  buf_str(b, name);
  buf_str(b, n ? " = array<i64: " : " = array<i64");
  for (int i = 0; i < n; i++) {
    if (i) buf_str(b, ", ");
    buf_int(b, v[i]);
  }
  buf_char(b, '>');
}

void attr_ints(buf *b, const char *name, const int *v, int n) {
  buf_str(b, name);
  buf_str(b, n ? " = array<i64: " : " = array<i64");
  for (int i = 0; i < n; i++) {
    if (i) buf_str(b, ", ");
    buf_int(b, v[i]);
  }
  buf_char(b, '>');
}

void attr_bracket(buf *b, const char *name, const int *v, int n) {
  if (!n) return;
  if (b->len && b->data[b->len - 1] != '<') buf_str(b, ", ");
  buf_str(b, name);
  buf_str(b, " = [");
  for (int i = 0; i < n; i++) {
    if (i) buf_str(b, ", ");
    buf_int(b, v[i]);
  }
  buf_char(b, ']');
}

void attr_padding(buf *b, const int64_t *low, const int64_t *high, int n) {
  if (!n) {
    buf_str(b, ", padding = dense<> : tensor<0x2xi64>");
    return;
  }
  buf_str(b, ", padding = dense<[");
  for (int i = 0; i < n; i++) {
    buf_str(b, i ? ", [" : "[");
    buf_int(b, low[i]);
    buf_bytes(b, ", ", 2);
    buf_int(b, high[i]);
    buf_char(b, ']');
  }
  buf_printf(b, "]> : tensor<%dx2xi64>", n);
}

void attr_precision(buf *b, int precision) {
  if (precision >= 2) return;
  const char *p = precision == 1 ? "#stablehlo<precision HIGH>" : "#stablehlo<precision HIGHEST>";
  buf_str(b, ", precision_config = [");
  buf_str(b, p);
  buf_str(b, ", ");
  buf_str(b, p);
  buf_char(b, ']');
}

/* ---- text of types --------------------------------------------------------------------------------------------- */

const char *node_mlir(tpu_dtype d) {
  switch ((int)d) {
#define X(num, name, torch, mlir, bytes, pjrt, cls) \
  case num: return mlir;
    TPU_DTYPES(X)
#undef X
    default: return "?";
  }
}

void node_put_type(buf *b, tpu_dtype dtype, int ndim, const int64_t *dims) {
  buf_bytes(b, "tensor<", 7);
  for (int i = 0; i < ndim; i++) {
    buf_int(b, dims[i]);
    buf_char(b, 'x');
  }
  buf_str(b, node_mlir(dtype));
  buf_char(b, '>');
}

/* The text is for a message that is about to be written: a failure to make it must not hide the error itself. */
const char *node_dims_text(ir_graph *g, int ndim, const int64_t *dims) {
  buf b;
  buf_init(&b);
  buf_char(&b, '[');
  for (int i = 0; i < ndim; i++) {
    if (i) buf_str(&b, ", ");
    buf_int(&b, dims[i]);
  }
  buf_char(&b, ']');
  const char *s = b.failed ? NULL : arena_copy(&g->mem, b.data, b.len + 1);
  if (!s) g->mem.failed = true;
  buf_free(&b);
  return s ? s : "";
}

const char *node_text(ir_graph *g, val v) {
  return arena_printf(&g->mem, "%s%s", tpu_dtype_name(v->dtype), node_dims_text(g, v->ndim, v->dims));
}

/* The text behind "NAME = "; NULL if there is no such attribute. */
const char *attr_text(const char *attrs, const char *name) {
  size_t n = strlen(name);
  for (const char *p = attrs; (p = strstr(p, name)); p += n) {
    bool starts = p == attrs || p[-1] == ' ' || p[-1] == '<';
    if (starts && !strncmp(p + n, " = ", 3)) return p + n + 3;
  }
  return NULL;
}

/* The numbers of an attribute: [1, 2], array<i64: 1, 2>, dense<[[1, 2], [3, 4]]> : tensor<...>, 1 : i64. */
int attr_numbers(const char *attrs, const char *name, int64_t *out) {
  const char *p = attr_text(attrs, name);
  int n = 0, depth = 0;
  if (!p) return 0;
  if (!strncmp(p, "array<i64", 9)) p += 9;
  if (!strncmp(p, "dense<", 6)) p += 6;
  for (; *p && *p != '>'; p++) {
    if (*p == '[') depth++;
    if (*p == ']' && !--depth) break;
    if (*p == ':' && n) break;
    if (*p != '-' && (*p < '0' || *p > '9')) continue;
    if (n == 2 * IR_MAX_RANK) return n;
    char *end;
    out[n++] = strtoll(p, &end, 10);
    p = end - 1;
  }
  return n;
}
