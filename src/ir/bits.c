/* bits.c - numbers to the bits of an element type, and back. */
#include <math.h>

#include "ir/node.h"

/* What a value beyond the largest becomes, and which bits are NaN. */
typedef enum { IEEE, FN, FNUZ } flavor;

typedef struct {
  int exponent, mantissa, bias;
  flavor flavor;
} format;

static bool format_of(tpu_dtype d, format *f) {
  switch ((int)d) {
    case TPU_F16: *f = (format){5, 10, 15, IEEE}; return true;
    case TPU_BF16: *f = (format){8, 7, 127, IEEE}; return true;
    case TPU_F32: *f = (format){8, 23, 127, IEEE}; return true;
    case TPU_F8E5M2: *f = (format){5, 2, 15, IEEE}; return true;
    case TPU_F8E4M3FN: *f = (format){4, 3, 7, FN}; return true;
    case TPU_F8E5M2FNUZ: *f = (format){5, 2, 16, FNUZ}; return true;
    case TPU_F8E4M3FNUZ: *f = (format){4, 3, 8, FNUZ}; return true;
    default: return false;
  }
}

static uint64_t double_bits(double v) {
  uint64_t u;
  memcpy(&u, &v, sizeof u);
  return u;
}

/* A power of two without sign: nearest, ties up, never below 2^-127; NaN beyond 2^127. */
static uint64_t e8m0_of(double v) {
  if (isnan(v) || isinf(v)) return 0xff;
  int e;
  double m = frexp(fabs(v), &e); /* m in [0.5, 1) or 0 */
  if (m == 0) return 0;
  e += m >= 0.75 ? 0 : -1;
  if (e < -127) return 0;
  return e > 127 ? 0xff : (uint64_t)(e + 127);
}

uint64_t bits_of_double(tpu_dtype d, double v) {
  if (d == TPU_F64) return double_bits(v);
  if (d == TPU_F8E8M0FNU) return e8m0_of(v);
  format f;
  if (!format_of(d, &f)) return 0;
  int width = f.exponent + f.mantissa;
  uint64_t u = double_bits(v), sign = (u >> 63) << width, all = ((uint64_t)1 << f.exponent) - 1;
  uint64_t nan = f.flavor == FNUZ ? (uint64_t)1 << width
                 : f.flavor == FN ? sign | (((uint64_t)1 << width) - 1)
                                  : sign | all << f.mantissa | (uint64_t)1 << (f.mantissa - 1);
  uint64_t beyond = f.flavor == IEEE ? sign | all << f.mantissa : nan;
  if (isnan(v)) return nan;
  if (isinf(v)) return beyond;
  int e = (int)(u >> 52 & 0x7ff);
  uint64_t m = u & (((uint64_t)1 << 52) - 1);
  uint64_t zero = f.flavor == FNUZ ? 0 : sign;
  if (!e) return zero; /* a subnormal double is far below half of the least value of any narrower format */
  m |= (uint64_t)1 << 52;
  int be = e - 1023 + f.bias; /* exponent field of the result, if normal */
  int drop = 52 - f.mantissa; /* bits to round away */
  if (be < 1) {
    drop += 1 - be;
    be = 1;
  }
  if (drop > 54) return zero;
  uint64_t half = (uint64_t)1 << (drop - 1), rest = m & ((half << 1) - 1);
  m >>= drop;
  if (rest > half || (rest == half && (m & 1))) m++;
  /* m holds the leading one of a normal number: adding puts a carry into the exponent, and a subnormal has be - 1 = 0.
   */
  uint64_t r = ((uint64_t)(be - 1) << f.mantissa) + m;
  if (!r) return zero;
  uint64_t top = (uint64_t)1 << width;
  uint64_t most = f.flavor == IEEE ? (all << f.mantissa) - 1 : f.flavor == FN ? top - 2 : top - 1;
  return r > most ? beyond : sign | r;
}

double bits_to_double(tpu_dtype d, uint64_t bits) {
  if (d == TPU_F64) {
    double v;
    memcpy(&v, &bits, sizeof v);
    return v;
  }
  if (d == TPU_F8E8M0FNU) return bits == 0xff ? NAN : ldexp(1.0, (int)bits - 127);
  format f;
  if (!format_of(d, &f)) return NAN;
  int width = f.exponent + f.mantissa;
  uint64_t m = bits & (((uint64_t)1 << f.mantissa) - 1), all = ((uint64_t)1 << f.exponent) - 1;
  uint64_t e = bits >> f.mantissa & all;
  bool neg = bits >> width & 1;
  if (f.flavor == FNUZ && neg && !e && !m) return NAN;
  if (f.flavor == FN && e == all && m == ((uint64_t)1 << f.mantissa) - 1) return NAN;
  if (f.flavor == IEEE && e == all) return m ? NAN : neg ? -INFINITY : INFINITY;
  double v = e ? ldexp((double)(m | (uint64_t)1 << f.mantissa), (int)e - f.bias - f.mantissa)
               : ldexp((double)m, 1 - f.bias - f.mantissa);
  return neg ? -v : v;
}

double bits_int_odd(int64_t v) {
  uint64_t u = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
  int over = u >> 53 ? 64 - 53 - __builtin_clzll(u) : 0;
  if (over) u = (u >> over | ((u & (((uint64_t)1 << over) - 1)) != 0)) << over;
  return v < 0 ? -(double)u : (double)u;
}

int64_t bits_double_to_int(tpu_dtype d, double v) {
  int width = 8 * (int)tpu_dtype_size(d);
  if (isnan(v) || !width) return 0;
  v = trunc(v);
  if (ir_is_unsigned(d)) {
    if (v <= 0) return 0;
    if (v >= ldexp(1, width)) return (int64_t)(UINT64_MAX >> (64 - width));
    return (int64_t)(uint64_t)v;
  }
  if (v >= ldexp(1, width - 1)) return INT64_MAX >> (64 - width);
  if (v <= -ldexp(1, width - 1)) return INT64_MIN >> (64 - width);
  return (int64_t)v;
}

uint64_t ir_float_bits(tpu_dtype d, double v) { return bits_of_double(d, v); }
