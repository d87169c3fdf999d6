/* exec_t.h - calls operators on stores without PyTorch: a tiny stand-in for the adapter. */
#ifndef TPU_TEST_EXEC_T_H
#define TPU_TEST_EXEC_T_H
#include "core/t.h"

enum { XT_DIMS = 8 };
typedef struct {
  tpu_store *store;
  int64_t sizes[XT_DIMS], strides[XT_DIMS];
  int64_t offset;
  int ndim;
  tpu_dtype dtype;
} xt;

static inline tpu_tensor xt_tensor(const xt *x) {
  return (tpu_tensor){.store = x->store,
                      .sizes = x->sizes,
                      .strides = x->strides,
                      .offset = x->offset,
                      .ndim = x->ndim,
                      .dtype = (uint8_t)x->dtype,
                      .device = (int16_t)(x->store ? tpu_store_device(x->store) : -1)};
}

static inline void xt_dense(xt *x, int ndim, const int64_t *sizes) {
  int64_t stride = 1;
  x->ndim = ndim;
  for (int i = ndim - 1; i >= 0; i--) {
    x->sizes[i] = sizes[i];
    x->strides[i] = stride;
    stride *= sizes[i];
  }
}

/* A dense tensor with no value yet. */
static inline tpu_err *xt_empty(xt *x, tpu_dtype dtype, int ndim, const int64_t *sizes, int device) {
  memset(x, 0, sizeof *x);
  x->dtype = dtype;
  xt_dense(x, ndim, sizes);
  size_t n = tpu_dtype_size(dtype);
  for (int i = 0; i < ndim; i++) n *= (size_t)sizes[i];
  return tpu_store_new(n, device, &x->store);
}

static inline tpu_err *xt_from(xt *x, tpu_dtype dtype, int ndim, const int64_t *sizes, const void *host) {
  tpu_err *e = xt_empty(x, dtype, ndim, sizes, 0);
  if (e) return e;
  tpu_tensor t = xt_tensor(x);
  return tpu_copy_from_host(&t, host);
}

static inline tpu_err *xt_read(const xt *x, void *host) {
  tpu_tensor t = xt_tensor(x);
  return tpu_copy_to_host(&t, host);
}

static inline void xt_free(xt *x) {
  tpu_store_release(x->store);
  x->store = NULL;
}

/* The schema of a binary operator with a Scalar alpha: add(self, other, *, alpha). In-place: the result is self. */
static inline tpu_op *xt_op(const char *name, const char *overload, const char *functional, int nargs,
                            const char *const *types, bool inplace) {
  tpu_schema_arg args[8] = {{0}}, ret = {.name = "", .type = "Tensor", .alias = inplace ? 0 : -1};
  for (int i = 0; i < nargs; i++) args[i] = (tpu_schema_arg){"alpha", types[i], -1, inplace && i == 0};
  tpu_schema s = {name, overload, nargs, 1, args, &ret};
  tpu_op *op = NULL;
  CHECK_OK(tpu_op_find(&s, functional, &op));
  return op;
}

static inline tpu_err *xt_result(tpu_call *c, int ret, int elem, tpu_store *take_store, const int64_t *sizes,
                                 const int64_t *strides, int ndim, tpu_dtype dtype) {
  (void)ret, (void)elem;
  xt *x = c->ctx;
  *x = (xt){.store = take_store, .ndim = ndim, .dtype = dtype};
  memcpy(x->sizes, sizes, (size_t)ndim * 8);
  memcpy(x->strides, strides, (size_t)ndim * 8);
  return NULL;
}

static inline tpu_value xt_arg(const tpu_tensor *t) { return (tpu_value){.tag = TPU_TENSOR, .u.tensor = t}; }
static inline tpu_value xt_double(double d) { return (tpu_value){.tag = TPU_DOUBLE, .u.d = d}; }
static inline tpu_value xt_int(int64_t i) { return (tpu_value){.tag = TPU_INT, .u.i = i}; }

/* out = a + alpha * b (or a += alpha * b with the in-place op; then out is not touched) */
static inline tpu_err *xt_add(tpu_op *op, const xt *a, const xt *b, double alpha, xt *out) {
  tpu_tensor ta = xt_tensor(a), tb = xt_tensor(b);
  tpu_value args[3] = {xt_arg(&ta), xt_arg(&tb), xt_double(alpha)};
  tpu_call c = {.op = op, .args = args, .nargs = 3, .device = 0, .result = xt_result, .ctx = out};
  return tpu_call_run(&c);
}

static const char *const xt_add_types[] = {"Tensor", "Tensor", "Scalar"};
static inline int64_t xt_compiles(void) {
  tpu_stats s;
  tpu_get_stats(&s);
  return s.compiles;
}
#endif
