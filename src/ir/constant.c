/* constant.c - constants, exact in text: floats as hexadecimal bits. */
#include <math.h>

#include "ir/node.h"

/* One number in both forms; which one counts depends on the dtype. */
typedef struct {
  uint64_t re, im; /* float bits; integers as they are */
} number;

static void put_hex(buf *b, uint64_t bits, int digits) {
  static const char hex[] = "0123456789ABCDEF";
  char s[18] = "0x";
  for (int i = 0; i < digits; i++) s[2 + i] = hex[bits >> (4 * (digits - 1 - i)) & 15];
  buf_bytes(b, s, (size_t)digits + 2);
}

static void put_number(buf *b, tpu_dtype d, number x) {
  if (d == TPU_BOOL) {
    buf_str(b, x.re ? "true" : "false");
  } else if (ir_is_complex(d)) {
    int digits = (int)tpu_dtype_size(d);
    buf_char(b, '(');
    put_hex(b, x.re, digits);
    buf_bytes(b, ", ", 2);
    put_hex(b, x.im, digits);
    buf_char(b, ')');
  } else if (ir_is_float(d)) {
    put_hex(b, x.re, 2 * (int)tpu_dtype_size(d));
  } else if (d == TPU_U64 && (int64_t)x.re < 0) {
    buf_int(b, (int64_t)(x.re / 10));
    buf_int(b, (int64_t)(x.re % 10));
  } else {
    buf_int(b, (int64_t)x.re);
  }
}

static number from_double(tpu_dtype d, double re, double im) {
  if (d == TPU_BOOL) return (number){re != 0 || im != 0, 0};
  if (ir_is_complex(d)) return (number){bits_of_double(ir_real_dtype(d), re), bits_of_double(ir_real_dtype(d), im)};
  if (ir_is_float(d)) return (number){bits_of_double(d, re), 0};
  return (number){(uint64_t)bits_double_to_int(d, re), 0};
}

/* Cut to the width of d, as a C cast does. */
static uint64_t wrapped(tpu_dtype d, int64_t v) {
  switch ((int)d) {
    case TPU_U8: return (uint8_t)v;
    case TPU_I8: return (uint64_t)(int64_t)(int8_t)v;
    case TPU_U16: return (uint16_t)v;
    case TPU_I16: return (uint64_t)(int64_t)(int16_t)v;
    case TPU_U32: return (uint32_t)v;
    case TPU_I32: return (uint64_t)(int64_t)(int32_t)v;
    case TPU_BOOL: return v != 0;
    default: return (uint64_t)v;
  }
}

static number from_int(tpu_dtype d, int64_t v) {
  if (d == TPU_F64 || d == TPU_C128) return from_double(d, (double)v, 0);
  if (ir_is_float(d) || ir_is_complex(d)) return from_double(d, bits_int_odd(v), 0);
  return (number){wrapped(d, v), 0};
}

static bool is_empty(int ndim, const int64_t *dims) {
  for (int i = 0; i < ndim; i++)
    if (!dims[i]) return true;
  return false;
}

static val finish(ir_graph *g, buf *b, tpu_dtype d, int ndim, const int64_t *dims) {
  buf_bytes(b, "> : ", 4);
  node_put_type(b, d, ndim, dims);
  return node_make(g, "stablehlo.constant", attr_end(g), NULL, 0, d, ndim, dims);
}

static val splat(ir_graph *g, tpu_dtype d, number x, int ndim, const int64_t *dims) {
  if (!node_ok(g) || !node_type_ok(g, "stablehlo.constant", d, ndim, dims)) return node_poison(g);
  buf *b = attr_begin(g);
  buf_str(b, "value = dense<");
  if (!is_empty(ndim, dims)) put_number(b, d, x);
  return finish(g, b, d, ndim, dims);
}

val ir_const_f(ir_graph *g, tpu_dtype dtype, double v, int ndim, const int64_t *dims) {
  return splat(g, dtype, from_double(dtype, v, 0), ndim, dims);
}

val ir_const_i(ir_graph *g, tpu_dtype dtype, int64_t v, int ndim, const int64_t *dims) {
  return splat(g, dtype, from_int(dtype, v), ndim, dims);
}

val ir_const_c(ir_graph *g, tpu_dtype dtype, double re, double im, int ndim, const int64_t *dims) {
  return splat(g, dtype, from_double(dtype, re, im), ndim, dims);
}

/* The formats without infinity end in their largest finite number. */
static double largest_float(tpu_dtype d) {
  switch ((int)d) {
    case TPU_F8E4M3FN: return 448;
    case TPU_F8E4M3FNUZ: return 240;
    case TPU_F8E5M2FNUZ: return 57344;
    case TPU_F8E8M0FNU: return ldexp(1, 127);
    default: return INFINITY;
  }
}

val ir_const_min(ir_graph *g, tpu_dtype d, int ndim, const int64_t *dims) {
  if (ir_is_complex(d)) return ir_fail(g, TPU_ERR_RUNTIME, "%s has no lowest value", tpu_dtype_name(d));
  if (ir_is_float(d)) return ir_const_f(g, d, d == TPU_F8E8M0FNU ? 0 : -largest_float(d), ndim, dims);
  int bits = 8 * (int)tpu_dtype_size(d);
  return ir_const_i(g, d, d == TPU_BOOL || ir_is_unsigned(d) || !bits ? 0 : INT64_MIN >> (64 - bits), ndim, dims);
}

val ir_const_max(ir_graph *g, tpu_dtype d, int ndim, const int64_t *dims) {
  if (ir_is_complex(d)) return ir_fail(g, TPU_ERR_RUNTIME, "%s has no highest value", tpu_dtype_name(d));
  if (ir_is_float(d)) return ir_const_f(g, d, largest_float(d), ndim, dims);
  if (d == TPU_BOOL || ir_is_unsigned(d)) return ir_const_i(g, d, -1, ndim, dims);
  return ir_const_i(g, d, tpu_dtype_size(d) ? INT64_MAX >> (64 - 8 * tpu_dtype_size(d)) : 0, ndim, dims);
}

/* ---- dense constants ------------------------------------------------------------------------------------------- */

static val dense(ir_graph *g, tpu_dtype d, const int64_t *ints, const double *doubles, int ndim, const int64_t *dims) {
  if (!node_ok(g) || !node_type_ok(g, "stablehlo.constant", d, ndim, dims)) return node_poison(g);
  buf *b = attr_begin(g);
  buf_str(b, "value = dense<");
  if (!is_empty(ndim, dims)) {
    int64_t n = 1, inner[IR_MAX_RANK]; /* inner[k]: numbers in one item of dim k's list */
    for (int k = ndim - 1; k >= 0; k--) inner[k] = n *= dims[k];
    for (int64_t i = 0; i < n && !b->failed; i++) {
      if (i) buf_bytes(b, ", ", 2);
      for (int k = 0; k < ndim; k++)
        if (i % inner[k] == 0) buf_char(b, '[');
      put_number(b, d, ints ? from_int(d, ints[i]) : from_double(d, doubles[i], 0));
      for (int k = 0; k < ndim; k++)
        if ((i + 1) % inner[k] == 0) buf_char(b, ']');
    }
  }
  return finish(g, b, d, ndim, dims);
}

val ir_const_ints(ir_graph *g, tpu_dtype dtype, const int64_t *v, int ndim, const int64_t *dims) {
  return dense(g, dtype, v, NULL, ndim, dims);
}

val ir_const_floats(ir_graph *g, tpu_dtype dtype, const double *v, int ndim, const int64_t *dims) {
  return dense(g, dtype, NULL, v, ndim, dims);
}

val ir_iota(ir_graph *g, tpu_dtype dtype, int ndim, const int64_t *dims, int dim) {
  if (!node_ok(g) || !node_type_ok(g, "stablehlo.iota", dtype, ndim, dims)) return node_poison(g);
  CHECK_OR(dtype != TPU_BOOL, "stablehlo.iota: expected an integer, floating-point or complex dtype, got bool");
  CHECK_OR(dim >= 0 && dim < ndim, "stablehlo.iota (C1): expected 0 <= iota_dimension < rank %d, got %d", ndim, dim);
  const char *attrs = arena_printf(&g->mem, "iota_dimension = %d : i64", dim);
  return node_make(g, "stablehlo.iota", attrs, NULL, 0, dtype, ndim, dims);
}
