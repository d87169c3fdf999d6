/* Dtype promotion, casts, constants and broadcasting as PyTorch does them. */
#include <string.h>

#include "ops/op.h"

enum { MAX_DIMS = 64 };

static bool is_f8(tpu_dtype d) { return ir_is_float(d) && tpu_dtype_size(d) == 1; }
static bool is_new_unsigned(tpu_dtype d) { return d == TPU_U16 || d == TPU_U32 || d == TPU_U64; }

static tpu_dtype to_complex(tpu_dtype d) { return d == TPU_F64 || d == TPU_C128 ? TPU_C128 : TPU_C64; }

/* torch.promote_types */
static tpu_dtype promote(op_ctx *c, tpu_dtype a, tpu_dtype b) {
  if (a == b || b == TPU_NO_DTYPE) return a;
  if (a == TPU_NO_DTYPE) return b;
  if (is_f8(a) || is_f8(b)) {
    op_fail(c, TPU_ERR_RUNTIME, "Promotion for Float8 Types is not supported, attempted to promote %s and %s",
            tpu_dtype_name(a), tpu_dtype_name(b));
    return a;
  }
  bool ca = ir_is_complex(a), cb = ir_is_complex(b), fa = ir_is_float(a), fb = ir_is_float(b);
  if (ca || cb) {
    tpu_dtype ra = ca || fa ? to_complex(a) : TPU_C64, rb = cb || fb ? to_complex(b) : TPU_C64;
    return ra == TPU_C128 || rb == TPU_C128 ? TPU_C128 : TPU_C64;
  }
  if (fa && fb) {
    if (a == TPU_F64 || b == TPU_F64) return TPU_F64;
    return TPU_F32; /* float16 with bfloat16, or float32 with either */
  }
  if (fa) return a;
  if (fb) return b;
  if (a == TPU_BOOL) return b;
  if (b == TPU_BOOL) return a;
  if (is_new_unsigned(a) || is_new_unsigned(b)) {
    op_fail(c, TPU_ERR_RUNTIME,
            "Promotion for uint16, uint32, uint64 types is not supported, attempted to promote %s and %s",
            tpu_dtype_name(a), tpu_dtype_name(b));
    return a;
  }
  if (a == TPU_U8 || b == TPU_U8) {
    tpu_dtype s = a == TPU_U8 ? b : a;
    return s == TPU_I8 ? TPU_I16 : s;
  }
  return tpu_dtype_size(a) > tpu_dtype_size(b) ? a : b;
}

static tpu_dtype combine(op_ctx *c, tpu_dtype high, tpu_dtype low) {
  if (high == TPU_NO_DTYPE) return low;
  if (low == TPU_NO_DTYPE || ir_is_complex(high)) return high;
  if (ir_is_float(high)) return ir_is_complex(low) ? to_complex(high) : high;
  if (high == TPU_BOOL || ir_is_float(low) || ir_is_complex(low)) return promote(c, high, low);
  return high;
}

tpu_dtype t_result_type(op_ctx *c, const val *v, int n) {
  tpu_dtype dim = TPU_NO_DTYPE, zero = TPU_NO_DTYPE, weak = TPU_NO_DTYPE;
  for (int i = 0; i < n; i++) {
    tpu_dtype d = v[i]->dtype;
    if (v[i]->weak) {
      if (ir_is_complex(d)) d = to_complex(op_default_dtype(c));
      else if (ir_is_float(d)) d = op_default_dtype(c);
    }
    tpu_dtype *at = v[i]->ndim > 0 ? &dim : v[i]->weak ? &weak : &zero;
    *at = promote(c, *at, d);
  }
  return combine(c, dim, combine(c, zero, weak));
}

static val cast(op_ctx *c, val x, tpu_dtype d) {
  tpu_dtype s = x->dtype;
  if (ir_is_complex(s)) {
    if (d == TPU_BOOL) return ir_compare(G, IR_NE, x, ir_const_c(G, s, 0, 0, x->ndim, x->dims));
    val re = ir_unary(G, IR_REAL, x);
    if (!ir_is_complex(d)) return t_cast(c, re, d);
    tpu_dtype r = ir_real_dtype(d);
    return ir_binary(G, IR_COMPLEX, ir_convert(G, re, r), ir_convert(G, ir_unary(G, IR_IMAG, x), r));
  }
  if (ir_is_complex(d)) {
    tpu_dtype r = ir_real_dtype(d);
    return ir_binary(G, IR_COMPLEX, ir_convert(G, x, r), ir_const_f(G, r, 0, x->ndim, x->dims));
  }
  /* PyTorch's narrow integers take a float through a wider one and wrap; a direct conversion would saturate. */
  if (ir_is_float(s) && ir_is_int(d) && (tpu_dtype_size(d) < 4 || ir_is_unsigned(d)) && d != TPU_U64)
    return ir_convert(G, ir_convert(G, x, ir_is_unsigned(d) ? TPU_I64 : TPU_I32), d);
  return ir_convert(G, x, d);
}

val t_cast(op_ctx *c, val x, tpu_dtype d) {
  if (x->dtype == d || ir_failed(G)) return x;
  val n = op_cast_number(c, x, d);
  if (n) return n;
  n = cast(c, x, d);
  if (x->weak && !ir_failed(G)) n->weak = 1;
  return n;
}

tpu_dtype t_float_dtype(op_ctx *c, val x) {
  tpu_dtype d = x->dtype;
  if (x->weak && x->ndim == 0 && ir_is_float(d)) return op_default_dtype(c);
  return ir_is_float(d) || ir_is_complex(d) ? d : op_default_dtype(c);
}

tpu_dtype t_opmath(tpu_dtype d) { return ir_is_float(d) && d != TPU_F64 ? TPU_F32 : d; }

val t_float(op_ctx *c, val x) { return t_cast(c, x, t_opmath(t_float_dtype(c, x))); }

/* ---- constants ------------------------------------------------------------------------------------------------- */

static val constant(op_ctx *c, tpu_dtype d, double v, int ndim, const int64_t *dims) {
  if (ir_is_complex(d)) return ir_const_c(G, d, v, 0, ndim, dims);
  if (ir_is_float(d)) return ir_const_f(G, d, v, ndim, dims);
  return ir_const_i(G, d, d == TPU_BOOL ? v != 0 : (int64_t)v, ndim, dims);
}

val t_scalar(op_ctx *c, tpu_dtype d, double v) { return constant(c, d, v, 0, NULL); }
val t_like(op_ctx *c, val x, double v) { return constant(c, (tpu_dtype)x->dtype, v, x->ndim, x->dims); }
val t_zeros(op_ctx *c, tpu_dtype d, int ndim, const int64_t *dims) { return constant(c, d, 0, ndim, dims); }

/* ---- broadcasting ---------------------------------------------------------------------------------------------- */

val t_broadcast_to(op_ctx *c, val x, int ndim, const int64_t *dims) {
  if (ir_failed(G)) return x;
  if (x->ndim == ndim && !memcmp(x->dims, dims, (size_t)ndim * sizeof *dims)) return x;
  int map[MAX_DIMS];
  if (x->ndim > ndim || ndim > MAX_DIMS)
    return op_fail(c, TPU_ERR_RUNTIME, "cannot broadcast %d dimensions to %d", x->ndim, ndim);
  for (int i = 0; i < x->ndim; i++) {
    map[i] = ndim - x->ndim + i;
    if (x->dims[i] != 1 && x->dims[i] != dims[map[i]])
      return op_fail(c, TPU_ERR_RUNTIME,
                     "The size of tensor a (%lld) must match the size of tensor b (%lld) at non-singleton dimension %d",
                     (long long)x->dims[i], (long long)dims[map[i]], map[i]);
  }
  return ir_broadcast(G, x, ndim, dims, map);
}

void t_broadcast(op_ctx *c, val *v, int n) {
  int64_t dims[MAX_DIMS];
  int ndim = 0;
  for (int i = 0; i < n; i++)
    if (v[i]->ndim > ndim) ndim = v[i]->ndim;
  if (ir_failed(G)) return;
  if (ndim > MAX_DIMS) {
    op_fail(c, TPU_ERR_RUNTIME, "%d dimensions are more than %d", ndim, MAX_DIMS);
    return;
  }
  for (int i = 0; i < ndim; i++) dims[i] = 1;
  for (int k = 0; k < n; k++)
    for (int i = 0; i < v[k]->ndim; i++) {
      int64_t *d = &dims[ndim - v[k]->ndim + i];
      if (*d == 1) *d = v[k]->dims[i];
    }
  for (int i = 0; i < n; i++) v[i] = t_broadcast_to(c, v[i], ndim, dims);
}

void t_prepare(op_ctx *c, val *v, int n) {
  bool numbers = true;
  for (int i = 0; i < n; i++) numbers &= v[i]->weak && v[i]->ndim == 0;
  tpu_dtype d;
  if (numbers) { /* arithmetic of Python numbers keeps their full precision */
    d = TPU_NO_DTYPE;
    for (int i = 0; i < n; i++) d = promote(c, d, (tpu_dtype)v[i]->dtype);
  } else {
    d = t_result_type(c, v, n);
  }
  for (int i = 0; i < n; i++) v[i] = t_cast(c, v[i], d);
  t_broadcast(c, v, n);
}
