/* node.h - what a graph is made of; only the files of src/ir include it. */
#ifndef TPU_IR_NODE_H
#define TPU_IR_NODE_H
#include <string.h>

#include "ir/ir.h"

enum { IR_MAX_RANK = 64, IR_MAX_DEPTH = 64, IR_MAX_NEST = 128 };

typedef struct ir_op ir_op;
typedef struct ir_block ir_block;

/* A list of operations with arguments: the program, or one region of an operation. */
struct ir_block {
  ir_block *up; /* the block around it; NULL for the program */
  ir_op *first, *last;
  val *args;
  int nargs;
  val *results; /* of a region, when it is finished */
  int nresults;
  ir_op *print_first, *print_last; /* the live operations, in canonical order (print.c) */
};

struct ir_op {
  const char *name;  /* "stablehlo.add" */
  const char *attrs; /* inside of {...}; "" if none */
  const char *loc;   /* MLIR location; NULL if none */
  const int64_t *at; /* of a sharding constraint: the place (shard.c) */
  val *in;
  ir_value *out;
  ir_block **regions;
  ir_block *block; /* where it stands; NULL while its regions are being built */
  ir_op *prev, *next;
  int nin, nout, nregions;
  uint32_t live; /* the epoch of the last print that reached it */
  int cursor;    /* print.c: dependencies done; who asked; what follows in print order */
  ir_op *asker, *print_next;
};

/* A parameter or region argument: a value without operation still knows its block. */
typedef struct {
  ir_value v;
  ir_block *block;
  const char *place; /* of a parameter: its sharding as attribute text (shard.c); NULL: none was given */
  const int64_t *at; /* the same as numbers */
} ir_arg;

/* An operation whose regions are being built; they nest. */
typedef struct ir_open {
  struct ir_open *up;
  ir_op *op;
  const char *what; /* "reduce", "sort", ...: which end function must close it */
  ir_block *outer;
  int stage; /* region that is being built */
} ir_open;

typedef struct {
  val v;
  int alias;
  const char *place; /* as of ir_arg */
} ir_result;

/* A begin function that waits for its end function; kept also after an error, when there is no ir_open any more: the
 * end function must know how many poison values to give. */
typedef struct {
  const char *what;
  int n; /* results */
} ir_nest;

struct ir_graph {
  arena mem;
  tpu_err *err; /* the first one, until taken */
  bool failed;
  bool cpu;        /* ir_set_cpu */
  bool vary;       /* ir_set_sizes_vary */
  bool kernels;    /* ir_set_kernels */
  bool kernel;     /* it holds one (mosaic.c) */
  const char *loc; /* ir_set_location; NULL: none */
  ir_block top;
  ir_block *at; /* where operations are appended */
  ir_open *open;
  int depth;
  ir_nest nest[IR_MAX_NEST]; /* beyond that, end functions give nothing after an error */
  int nnest;
  int param_cap;
  ir_result *outputs;
  int noutputs, output_cap;
  const char *mesh; /* its operation as text (shard.c); NULL: the program is for one device */
  const char **axis_names;
  int64_t *axis_sizes;
  int naxes;
  uint32_t epoch;
  buf scratch;
  ir_arg poison; /* in no block */
};

/* False once something went wrong. */
static inline bool node_ok(ir_graph *g) { return !g->failed && !g->mem.failed; }
static inline val node_poison(ir_graph *g) { return &g->poison.v; }

/* Checks that values may be used where the graph stands now (not NULL, in scope); else records an error. */
bool node_usable(ir_graph *g, const char *op, const val *in, int n);
/* Checks rank, sizes and their product times the element size; else records an error. */
bool node_type_ok(ir_graph *g, const char *op, tpu_dtype dtype, int ndim, const int64_t *dims);

/* An operation that is not in a block yet, with operands checked; NULL after an error. attrs lives as long as g. */
ir_op *node_op(ir_graph *g, const char *name, const char *attrs, const val *in, int nin, int nout, int nregions);
/* Gives result i its type. dims is copied unless it is the array of an operand. */
void node_type(ir_graph *g, ir_op *op, int i, tpu_dtype dtype, int ndim, const int64_t *dims);
/* Appends op to the current block. */
void node_append(ir_graph *g, ir_op *op);
/* All of it for one result. */
val node_make(ir_graph *g, const char *name, const char *attrs, const val *in, int nin, tpu_dtype dtype, int ndim,
              const int64_t *dims);

/* Gives the operations that outputs need the next epoch; parameters that they need get the id 1, others 0. */
void node_mark_live(ir_graph *g);

/* Regions: begins the first one of op, with arguments of the given types. */
bool node_open(ir_graph *g, ir_op *op, const char *what);
void node_region(ir_graph *g, int nargs);
val node_region_arg(ir_graph *g, int i, tpu_dtype dtype, int ndim, const int64_t *dims);
/* The open operation, if it is of the kind `what` and its region number `stage` is being built; else an error and NULL.
 */
ir_op *node_opened(ir_graph *g, const char *what, int stage);
/* Ends the current region with results; the next region may begin. */
bool node_region_end(ir_graph *g, const val *results, int n);
/* Closes the operation after its last region and appends it. */
void node_close(ir_graph *g);
/* A region of one operation on two scalars; body -1: gives its second argument back; -2 - c: compares by ir_cmp c. */
bool node_simple_region(ir_graph *g, int body, tpu_dtype dtype);
/* Every begin function calls this first, every end function the other, whatever happened; it gives n again. */
void node_nest(ir_graph *g, const char *what, int n);
int node_unnest(ir_graph *g, const char *what);
int node_nested(const ir_graph *g, const char *what); /* n without ending */
void node_poison_all(ir_graph *g, val *out, int n);

/* In a program with kernels: a barrier between each product and the reshape that divides its last dim (apart.c). */
void node_set_products_apart(ir_graph *g);

/* Attribute text: buf of the graph, then a copy in the arena. */
buf *attr_begin(ir_graph *g);
const char *attr_end(ir_graph *g);
/* Reads attribute text again: what stands behind "name = " (NULL: nothing does), and its numbers: how many. */
const char *attr_text(const char *attrs, const char *name);
int attr_numbers(const char *attrs, const char *name, int64_t *out);
void attr_i64s(buf *b, const char *name, const int64_t *v, int n); /* name = array<i64: 1, 2> */
void attr_ints(buf *b, const char *name, const int *v, int n);
void attr_bracket(buf *b, const char *name, const int *v, int n); /* name = [1, 2]; nothing for n = 0 */
void attr_precision(buf *b, int precision);                       /* ", precision_config = ..."; nothing for default */

void attr_quoted(buf *b, const char *s, size_t n);                         /* as a string of MLIR */
void attr_padding(buf *b, const int64_t *low, const int64_t *high, int n); /* ", padding = dense<...>" */

/* How many windows fit into a padded, dilated dim; false if it is too large. */
bool node_window_size(int64_t size, int64_t window, int64_t stride, int64_t base_dilation, int64_t window_dilation,
                      int64_t low, int64_t high, int64_t *out);

/* "float32[2, 3]", for messages. */
const char *node_text(ir_graph *g, val v);
const char *node_dims_text(ir_graph *g, int ndim, const int64_t *dims);

/* The MLIR name of an element type; "?" for a number that is no dtype. */
const char *node_mlir(tpu_dtype d);
void node_put_type(buf *b, tpu_dtype dtype, int ndim, const int64_t *dims);

/* bits.c: conversion of numbers to element bits. */
uint64_t bits_of_double(tpu_dtype d, double v); /* d: a float dtype; nearest, ties to even */
double bits_to_double(tpu_dtype d, uint64_t bits);
double bits_int_odd(int64_t v); /* rounded to odd: rounding it once more to a narrower format is exact */
int64_t bits_double_to_int(tpu_dtype d,
                           double v); /* cut toward zero; saturates, NaN is 0; bits of an unsigned result */

/* Runs of checks that return poison. */
#define CHECK_OR(cond, ...)                                       \
  do {                                                            \
    if (!(cond)) return ir_fail(g, TPU_ERR_RUNTIME, __VA_ARGS__); \
  } while (0)
#define USABLE_OR_POISON(name, in, n)                        \
  do {                                                       \
    if (!node_usable(g, name, in, n)) return node_poison(g); \
  } while (0)
#endif
