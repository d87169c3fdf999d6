/* trace.h - the inside of a recording, for record.c and capture.c. */
#ifndef TPU_EXEC_TRACE_H
#define TPU_EXEC_TRACE_H
#include "exec/exec.h"

typedef struct capture capture;

struct trace {
  int depth, device;
  ir_graph *g;
  dbuf **params, **made;
  int nparams, cap_params, nmade, cap_made;
  val *param_vals;
  tpu_err *err; /* what went wrong while recording; goes into all that was made */
  bool for_tpu; /* of a capture: tpu_capture_for_tpu */
  capture *cap; /* the recording is kept as a graph (capture.c): nothing of it runs; else NULL */
};

TPU_MUST tpu_err *trace_new(int device, trace **out);
void trace_free(trace *t); /* forgets what was recorded first */
void trace_set_current(trace *t);
/* Makes d, which has the value v in the graph, the recording's next parameter. */
TPU_MUST tpu_err *trace_add_param(trace *t, dbuf *d, val v);
/* Keeps d, which has its value in the graph, until the recording ends. */
TPU_MUST tpu_err *trace_add_made(trace *t, dbuf *d);
/* Why a capture cannot do what was asked; remembered, so that its owner knows what the error was about. */
TPU_MUST tpu_err *capture_refuse(trace *t, const char *what);
/* The store's value in the graph; one that was on the device before becomes a parameter. */
val trace_value(trace *t, const tpu_store *s);
/* Values of dense tensors that are each all of their store, in the shapes of the tensors; and new stores for values. */
TPU_MUST tpu_err *capture_values(trace *t, const tpu_tensor *in, int n, val **out);
TPU_MUST tpu_err *capture_stores(trace *t, const val *v, int n, tpu_store **out);
/* by: 1 where a region of control flow begins, -1 where it ends. */
void capture_enter(trace *t, int by);
/* The generator's state for a call that is captured: what earlier calls drew is added. */
val capture_rng(trace *t);
void capture_drew(trace *t, int64_t blocks);
#endif
