/* ctx.h - the build context behind op.h: joins a row to the call that it is built for. The executor fills it; rows see
 * only the functions of op.h. */
#ifndef TPU_OPS_CTX_H
#define TPU_OPS_CTX_H
#include "ops/op.h"

/* What the executor does for a row. Each gives a value, or the graph's poison after an error. */
typedef struct {
  val (*tensor)(op_ctx *c, int arg, int elem); /* a device tensor's value */
  val (*number)(op_ctx *c, int arg, int elem, tpu_dtype d,
                bool weak); /* an operand filled from the host at each call */
  val (*rng)(op_ctx *c, int64_t words);
  void (*constant)(op_ctx *c, int arg); /* the number's value joins the key */
  void (*classify)(op_ctx *c, int arg); /* whether it is 0 or 1 joins the key */
  int (*precision)(op_ctx *c);
  tpu_dtype (*default_dtype)(op_ctx *c);
} op_env;

typedef struct op_number_use {
  struct op_number_use *next;
  val v;
  int arg, elem;
  tpu_dtype dtype;
} op_number_use;

typedef struct op_result {
  struct op_result *next;
  int index, elem; /* result or argument number; element of a list */
  bool write;      /* op_write: index is an argument */
  val v;
} op_result;

struct op_ctx {
  ir_graph *g;
  const char *name; /* "aten::add.Tensor", for messages */
  const tpu_value *args;
  int nargs;
  const tpu_meta *metas; /* nmetas; NULL when PyTorch gave none */
  int nmetas;
  const op_env *env;
  void *owner; /* the executor's */
  op_number_use *numbers;
  op_result *results, **results_end;
  bool channels_last; /* op_keep_channels_last found one */
};

void op_ctx_init(op_ctx *c, ir_graph *g, const char *name, const tpu_value *args, int nargs, const op_env *env,
                 void *owner);

/* Row i of the linker's table; NULL past the end. */
const op_row *op_row_at(int i);
/* dtype and value of a 0-d tensor on the CPU, or of a number argument, for the host side of operands. */
typedef struct {
  tpu_dtype dtype; /* BOOL, I64, F64 or C128 for Python numbers */
  bool weak;       /* Python number */
  bool is_int;
  int64_t i;
  double re, im;
} op_host_number;
bool op_read_number(const tpu_value *v, int elem, op_host_number *out);
/* 0 or 1 when the number is exactly that, else -1. */
int op_class_of(const op_host_number *n);
#endif
