/* mosaic.h - kernels for a TPU's core, written as the text that its compiler takes: Mosaic (the language under Pallas),
 * in its versioned "stable" form, inside a custom call of the program.
 *
 * A kernel runs once for each point of a grid, the last dim fastest, in order. It sees windows: blocks of the operands
 * and results, which are brought into the core's memory before a point and, of results, taken out after the last of the
 * points in a row that name the same block. A result's block is not brought in: it holds nothing until it is written,
 * and must not be named again later. Scratch memory keeps what is written from point to point.
 *
 * Values are scalars and vectors of float32, bfloat16, int32 and bool. Vectors are kept in registers and in the core's
 * memory as the compiler sees fit. Errors stick in the graph, as everywhere in src/ir. */
#ifndef TPU_IR_MOSAIC_H
#define TPU_IR_MOSAIC_H
#include "ir/ir.h"

enum { MOSAIC_RANK = 4, MOSAIC_MAX_GRID = 5, MOSAIC_MAX_REFS = 16 };

typedef struct mosaic mosaic;

typedef struct {
  int32_t id;
  char prefix;                                           /* how it is named in the text: %v7 */
  uint8_t dtype;                                         /* TPU_F32, TPU_BF16, TPU_I32, TPU_BOOL; TPU_I64: an index */
  enum { MOSAIC_VALUE, MOSAIC_VMEM, MOSAIC_SMEM } where; /* SMEM: memory of scalars */
  int ndim;                                              /* of a value: 0 is a scalar */
  int64_t dims[MOSAIC_RANK];
} mval;

/* Where a window is at a point of the grid: for each dim an int32, counted in blocks. */
typedef void (*mosaic_at)(mosaic *m, const mval *grid, const void *ctx, mval *out);

/* parallel: so many dims of the grid, the first ones, may be divided among cores. */
mosaic *mosaic_begin(ir_graph *g, const char *name, int ngrid, const int64_t *grid, int parallel);
/* Windows in the order of operands, then results; then scratch memory; then operations. ctx lives until mosaic_end. */
mval mosaic_window(mosaic *m, int where, tpu_dtype d, int ndim, const int64_t *block, mosaic_at at, const void *ctx);
mval mosaic_scratch(mosaic *m, tpu_dtype d, int ndim, const int64_t *dims);
const mval *mosaic_grid(mosaic *m); /* int32 scalars: the point */

typedef struct {
  double flops, exps; /* what the kernel computes, for the compiler's schedule and for estimates */
  int64_t vmem;       /* bytes of the core's memory that it may use; 0: as many as the compiler gives by default */
} mosaic_cost;
/* Writes the kernel into the program: a custom call on `in`, with nout results. */
void mosaic_end(mosaic *m, const mosaic_cost *cost, const val *in, int nin, int nout, const tpu_dtype *dtypes,
                const int *ndims, const int64_t *const *dims, val *out);

mval mosaic_int(mosaic *m, int64_t v); /* int32 */
mval mosaic_index(mosaic *m, int64_t v);
mval mosaic_float(mosaic *m, double v);
mval mosaic_to_index(mosaic *m, mval a);
typedef enum { MOSAIC_ADD, MOSAIC_SUB, MOSAIC_MUL, MOSAIC_DIV, MOSAIC_MAX, MOSAIC_AND } mosaic_op;
mval mosaic_binary(mosaic *m, mosaic_op op, mval a, mval b); /* equal types; MAX: floats, AND: bools */
mval mosaic_compare(mosaic *m, ir_cmp c, mval a, mval b);    /* int32 */
mval mosaic_select(mosaic *m, mval cond, mval a, mval b);
mval mosaic_exp2(mosaic *m, mval a);
mval mosaic_log2(mosaic *m, mval a);
mval mosaic_bf16(mosaic *m, mval a); /* from float32 */
mval mosaic_broadcast(mosaic *m, mval a, int ndim, const int64_t *dims);
mval mosaic_reshape(mosaic *m, mval a, int ndim, const int64_t *dims);
mval mosaic_transpose(mosaic *m, mval a);                            /* of rank 2 */
mval mosaic_iota(mosaic *m, int ndim, const int64_t *dims, int dim); /* int32 */
mval mosaic_reduce(mosaic *m, mosaic_op op, mval a, double init);    /* over dim 0 of rank 2: float32 [1, columns] */
/* Product of matrices over dim ka of a and kb of b, float32. */
mval mosaic_matmul(mosaic *m, mval a, int ka, mval b, int kb);
mval mosaic_load(mosaic *m, mval ref, const mval *at, int ndim, const int64_t *dims); /* ndim 0: a scalar, of SMEM */
void mosaic_store(mosaic *m, mval v, mval ref, const mval *at);
void mosaic_if(mosaic *m, mval cond); /* what follows, up to mosaic_endif, happens only then */
void mosaic_endif(mosaic *m);
#endif
