/* graph.h - the inside of a tpu_graph: a program and where its inputs come from and its outputs go. Made by capture.c
 * from what was captured, or by given.c from a text. */
#ifndef TPU_EXEC_GRAPH_H
#define TPU_EXEC_GRAPH_H
#include "exec/exec.h"

typedef struct {
  tpu_store *s; /* only in the capture */
  dbuf *value;
  int32_t ndim;
  uint8_t dtype;
  bool used, written; /* it is read or returned; the graph gives it a new value */
  size_t nbytes;      /* 0: no elements, and no parameter */
  const int64_t *sizes, *strides, *dims;
  const int64_t *place; /* on the mesh, of its dims in memory; NULL: none was given */
} graph_input;

/* Where an output of the program goes: to a new store, or to an input. */
typedef struct {
  int32_t store, input; /* the other is -1 */
  int32_t output;       /* -1: a store without a value */
  size_t nbytes;
} graph_place;

struct tpu_graph {
  call_entry *e;
  arena mem;
  const char *op;
  int device, ninputs, nstores, nresults, nplaces, nconstants;
  graph_input *inputs;
  graph_place *places;
  tpu_graph_result *results;
  dbuf **constants;
  int64_t **layouts; /* of each result, NULL: its size does not change; the first number: how many follow */
  ir_graph *sample;  /* tpu_capture_end_sample: this is all it is for */
  int64_t blocks;    /* of a sample: drawn by it */
};

/* Gives the graph its program, and makes room for it. */
void graph_set_program(tpu_graph *g, program *take_p);
#endif
