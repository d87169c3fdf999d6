/* Python numbers and view starts as device buffers of rank 0, cached by value, so that a changed number never compiles
 * and a known one costs no copy. */
#include <math.h>
#include <string.h>

#include "base/env.h"
#include "exec/exec.h"

typedef struct {
  tnode node;
  uint8_t bits[16];
  uint8_t dtype;
  int16_t device;
  dbuf *buf;
} number_entry;

/* Its real part; an integer is rounded once. */
static double number_f64(const op_host_number *n) {
  return !n->is_int ? n->re : n->dtype == TPU_U64 ? (double)(uint64_t)n->i : (double)n->i;
}
static float number_f32(const op_host_number *n) {
  return !n->is_int ? (float)n->re : n->dtype == TPU_U64 ? (float)(uint64_t)n->i : (float)n->i;
}

size_t number_bits(const op_host_number *n, tpu_dtype dtype, uint8_t out[16]) {
  memset(out, 0, 16);
  /* float -> integer: what C leaves undefined is made the extremes, NaN is 0 */
  int64_t i = n->is_int          ? n->i
              : isnan(n->re)     ? 0
              : n->re >= 0x1p63  ? INT64_MAX
              : n->re <= -0x1p63 ? INT64_MIN
                                 : (int64_t)n->re;
  double re = number_f64(n);
  float f[2] = {number_f32(n), (float)n->im};
  switch (dtype) {
    case TPU_BOOL: out[0] = n->is_int ? n->i != 0 : n->re != 0 || n->im != 0; return 1;
    case TPU_U8:
    case TPU_I8: memcpy(out, &i, 1); return 1;
    case TPU_U16:
    case TPU_I16: memcpy(out, &i, 2); return 2;
    case TPU_U32:
    case TPU_I32: memcpy(out, &i, 4); return 4;
    case TPU_U64:
    case TPU_I64: memcpy(out, &i, 8); return 8;
    case TPU_F32: memcpy(out, f, 4); return 4;
    case TPU_F64: memcpy(out, &re, 8); return 8;
    case TPU_C64: memcpy(out, f, 8); return 8;
    case TPU_C128:
      memcpy(out, &re, 8);
      memcpy(out + 8, &n->im, 8);
      return 16;
    case TPU_BF16: re = f[0]; __attribute__((fallthrough)); /* PyTorch goes through float32 */
    default: {
      if (!ir_is_float(dtype)) return 0;
      uint64_t u = ir_float_bits(dtype, re);
      memcpy(out, &u, tpu_dtype_size(dtype));
      return tpu_dtype_size(dtype);
    }
  }
}

val number_constant(ir_graph *g, const op_host_number *n, tpu_dtype dtype) {
  uint8_t bits[16];
  int64_t i = 0;
  double re = number_f64(n);
  if (ir_is_complex(dtype)) return ir_const_c(g, dtype, re, n->im, 0, NULL);
  if (dtype == TPU_F32 || dtype == TPU_BF16) return ir_const_f(g, dtype, number_f32(n), 0, NULL);
  if (ir_is_float(dtype)) return ir_const_f(g, dtype, re, 0, NULL);
  if (!number_bits(n, dtype, bits))
    return ir_fail(g, TPU_ERR_NOT_IMPLEMENTED, "tpu: a number cannot be given as %s", tpu_dtype_name(dtype));
  memcpy(&i, bits, 8); /* ir_const_i cuts it to the dtype's width */
  return ir_const_i(g, dtype, i, 0, NULL);
}

/* The largest finite value of a float dtype. */
static double float_max(tpu_dtype d) {
  switch (d) {
    case TPU_F64:
    case TPU_C128: return 0x1.fffffffffffffp1023;
    case TPU_F16: return 65504;
    case TPU_BF16: return 0x1.fep127;
    case TPU_F32:
    case TPU_C64: return 0x1.fffffep127;
    default: return INFINITY; /* 8 bits: conversion saturates or has its own NaN rules */
  }
}

tpu_err *number_check(const tpu_op *op, int arg, const op_host_number *n, tpu_dtype d) {
  if (arg >= 64 || !(op->strict_numbers >> arg & 1) || d == TPU_BOOL) return NULL;
  bool ok = ir_is_complex(d) || n->im == 0;
  if (ir_is_float(d) || ir_is_complex(d)) {
    double re = number_f64(n);
    ok &= !(isfinite(re) && fabs(re) > float_max(d)) && !(isfinite(n->im) && fabs(n->im) > float_max(d));
  } else {
    int bits = (int)tpu_dtype_size(d) * 8;
    bool is_signed = d == TPU_I8 || d == TPU_I16 || d == TPU_I32 || d == TPU_I64;
    double top = ldexp(1, bits - is_signed); /* one above the largest */
    if (n->dtype == TPU_U64 && n->i < 0) {   /* above INT64_MAX */
      ok &= d == TPU_U64;
    } else if (n->is_int && bits < 64) {
      int64_t high = ((int64_t)1 << (bits - is_signed)) - 1, low = is_signed ? -high - 1 : -high; /* -1 is 255 */
      ok &= n->i >= low && n->i <= high;
    } else if (!n->is_int) {
      ok &= n->re < top && n->re > (is_signed ? -top - 1 : -top);
    }
  }
  if (ok) return NULL;
  const char *name = tpu_dtype_name(d);
  if (n->im != 0)
    return err_new(TPU_ERR_RUNTIME, "value (%g, %g) cannot be converted to type %s without overflow", n->re, n->im,
                   name);
  if (n->is_int && n->dtype == TPU_U64)
    return err_new(TPU_ERR_RUNTIME, "value %llu cannot be converted to type %s without overflow",
                   (unsigned long long)n->i, name);
  if (n->is_int)
    return err_new(TPU_ERR_RUNTIME, "value %lld cannot be converted to type %s without overflow", (long long)n->i,
                   name);
  return err_new(TPU_ERR_RUNTIME, "value %g cannot be converted to type %s without overflow", n->re, name);
}

tpu_err *number_get_locked(const op_host_number *n, tpu_dtype dtype, int device, dbuf **out) {
  uint8_t bits[16];
  *out = NULL;
  size_t size = number_bits(n, dtype, bits);
  if (!size) return err_new(TPU_ERR_NOT_IMPLEMENTED, "tpu: a number cannot be given as %s", tpu_dtype_name(dtype));
  uint64_t w[2];
  memcpy(w, bits, 16);
  uint64_t h = (w[0] * 0x9e3779b97f4a7c15ull) ^ (w[1] + (uint64_t)dtype * 0xff51afd7ed558ccdull + (uint64_t)device);
  h ^= h >> 29;
  h *= 0xbf58476d1ce4e5b9ull;
  h ^= h >> 32;
  for (tnode *t = table_slot(&ex.numbers, h); t; t = t->next) {
    number_entry *e = (number_entry *)t;
    if (t->hash == h && e->dtype == dtype && e->device == device && !memcmp(e->bits, bits, 16)) {
      t->used = true;
      ex.stats.number_hits++;
      *out = dbuf_retain(e->buf);
      return NULL;
    }
  }
  ex.stats.number_misses++;
  pjrt_buffer *b;
  TPU_TRY(pjrt_buffer_from_host(ex.client, device, bits, dtype_pjrt(dtype), NULL, 0, &b));
  dbuf *d;
  TPU_TRY(dbuf_new(b, device, NULL, &d));
  number_entry *e = mem_calloc(sizeof *e);
  if (!e) {
    dbuf_release(d);
    return err_nomem();
  }
  e->node.hash = h;
  memcpy(e->bits, bits, 16);
  e->dtype = (uint8_t)dtype;
  e->device = (int16_t)device;
  e->buf = dbuf_retain(d);
  ex.numbers.limit = (size_t)env_int(ENV_NUMBER_CACHE);
  tpu_err *err = table_add(&ex.numbers, &e->node);
  if (err) {
    dbuf_release(d);
    dbuf_release(d);
    mem_free(e);
    return err;
  }
  for (tnode *t; (t = table_evict(&ex.numbers));) {
    dbuf_release(((number_entry *)t)->buf);
    mem_free(t);
  }
  *out = d;
  return NULL;
}

void tpu_empty_cache(void) {
  ex_lock();
  while (ex.numbers.oldest) {
    tnode *t = ex.numbers.oldest;
    table_remove(&ex.numbers, t);
    dbuf_release(((number_entry *)t)->buf);
    mem_free(t);
  }
  ex_unlock();
}
