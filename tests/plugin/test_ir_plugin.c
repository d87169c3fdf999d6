/* Every builder of ir.h, run on a real PJRT plugin (first argument): the text is accepted and the numbers are right. */
#include <complex.h>

#include "../core/ir_t.h"
#include "pjrt/pjrt.h"

enum { MAX_NUMBERS = 256, MAX_OUTPUTS = 128 };

static pjrt_client *the_client;

static pjrt_client *client(void) {
  pjrt_api *api;
  const char *path = t_arg(1);
  if (the_client || !CHECK(path) || !CHECK_OK(pjrt_load(path, &api))) return the_client;
  CHECK_OK(pjrt_client_new(api, (const pjrt_option[]){{"cpu_device_count", 1}}, 1, &the_client));
  return the_client;
}

static int pjrt_type(tpu_dtype d) {
  switch ((int)d) {
#define X(num, name, torch, mlir, bytes, pjrt, cls) \
  case num: return pjrt;
    TPU_DTYPES(X)
#undef X
    default: return 0;
  }
}

/* ---- numbers to element bytes and back, by the compiler's own types -------------------------------------------- */

// clang-format off
#define EACH_PLAIN(X)                                                                                     \
  X(TPU_BOOL, uint8_t) X(TPU_U8, uint8_t) X(TPU_I8, int8_t) X(TPU_U16, uint16_t) X(TPU_I16, int16_t)      \
  X(TPU_U32, uint32_t) X(TPU_I32, int32_t) X(TPU_U64, uint64_t) X(TPU_I64, int64_t) X(TPU_F32, float)     \
  X(TPU_F64, double) X(TPU_F16, _Float16)
// clang-format on

static void to_bytes(tpu_dtype d, const double *v, int64_t n, void *bytes) {
  for (int64_t i = 0; i < n; i++) switch ((int)d) {
#define X(id, type) \
  case id: ((type *)bytes)[i] = (type)v[i]; break;
      EACH_PLAIN(X)
#undef X
      case TPU_BF16: {
        float f = (float)v[i];
        memcpy((char *)bytes + 2 * i, (char *)&f + 2, 2);
        break;
      }
      case TPU_C64: ((float *)bytes)[2 * i] = (float)v[2 * i], ((float *)bytes)[2 * i + 1] = (float)v[2 * i + 1]; break;
      case TPU_C128: ((double *)bytes)[2 * i] = v[2 * i], ((double *)bytes)[2 * i + 1] = v[2 * i + 1]; break;
    }
}

/* Appends to v; gives how many. */
static int from_bytes(tpu_dtype d, const void *bytes, int64_t n, double *v) {
  int k = 0;
  for (int64_t i = 0; i < n; i++) switch ((int)d) {
#define X(id, type) \
  case id: v[k++] = (double)((const type *)bytes)[i]; break;
      EACH_PLAIN(X)
#undef X
      case TPU_BF16: {
        float f = 0;
        memcpy((char *)&f + 2, (const char *)bytes + 2 * i, 2);
        v[k++] = f;
        break;
      }
      case TPU_C64: v[k++] = ((const float *)bytes)[2 * i], v[k++] = ((const float *)bytes)[2 * i + 1]; break;
      case TPU_C128: v[k++] = ((const double *)bytes)[2 * i], v[k++] = ((const double *)bytes)[2 * i + 1]; break;
    }
  return k;
}

/* ---- running --------------------------------------------------------------------------------------------------- */

/* Compiles and runs; numbers of all outputs into v. Gives how many, or -1. The types are asked of g. */
static int run(ir_graph *g, double (*inputs)[KIND_MAX_NUMBERS], double *v, tpu_err **err) {
  static _Alignas(16) char bytes[16 * MAX_NUMBERS];
  pjrt_exec *e = NULL;
  pjrt_buffer *args[KIND_MAX_PARAMS] = {NULL}, *outs[MAX_OUTPUTS] = {NULL};
  int n = 0, np = ir_param_count(g), no = ir_output_count(g);
  buf b;
  buf_init(&b);
  *err = ir_print(g, &b);
  if (!*err) *err = pjrt_compile(client(), b.data, b.len, NULL, 0, &e);
  for (int i = 0; i < np && !*err; i++) {
    val p = ir_param_value(g, i);
    to_bytes(p->dtype, inputs[i], ir_numel(p), bytes);
    *err = pjrt_buffer_from_host(client(), 0, bytes, pjrt_type(p->dtype), p->dims, p->ndim, &args[i]);
  }
  if (!*err) *err = pjrt_execute(client(), e, 0, args, (size_t)np, NULL, 0, outs, NULL);
  for (int i = 0; i < no && !*err; i++) {
    val o = ir_output_value(g, i);
    *err = pjrt_buffer_to_host(client(), outs[i], bytes, (size_t)ir_numel(o) * tpu_dtype_size(o->dtype));
    if (!*err) n += from_bytes(o->dtype, bytes, ir_numel(o), v + n);
  }
  if (*err && b.data) printf("%s", b.data);
  for (int i = 0; i < np; i++) pjrt_buffer_free(client(), args[i]);
  for (int i = 0; i < no; i++) pjrt_buffer_free(client(), outs[i]);
  pjrt_exec_free(client(), e);
  buf_free(&b);
  return *err ? -1 : n;
}

static bool close_to(double have, double want, double tolerance) {
  if (isnan(want)) return isnan(have);
  if (isinf(want)) return have == want;
  return fabs(have - want) <= tolerance * (1 + fmin(fabs(want), 100)); /* large numbers are integers */
}

TEST(every_builder_runs) {
  if (!client()) return;
  for (kind *k = kind_first; k; k = k->next) {
    if (t_arg(2) && strcmp(t_arg(2), k->name) != 0) continue;
    ir_graph *g = ir_new();
    k->build(g);
    double v[4 * MAX_NUMBERS];
    tpu_err *err = NULL;
    int n = run(g, kind_inputs, v, &err);
    bool ok = !err && n == k->nwant;
    for (int i = 0; ok && i < n; i++) ok = close_to(v[i], k->want[i], 1e-6);
    if (!CHECK(ok)) {
      printf("  %s: %s\n  got", k->name, err ? tpu_err_message(err) : "other numbers");
      for (int i = 0; i < n; i++) printf(" %.10g", v[i]);
      printf("\n");
    }
    tpu_err_free(err);
    ir_free(g);
  }
}

/* ---- every row of ops.def on every dtype that it takes ---------------------------------------------------------- */

static const struct {
  const char *name;
  int arity;
} ops[] = {
#define X(id, name, arity) {name, arity},
#include "ir/ops.def"
#undef X
};

static const tpu_dtype dtypes[] = {TPU_F32, TPU_F64, TPU_F16, TPU_BF16, TPU_C64, TPU_C128, TPU_BOOL, TPU_U8,
                                   TPU_I8,  TPU_I16, TPU_U16, TPU_I32,  TPU_U32, TPU_I64,  TPU_U64};

static bool compiles(int op, tpu_dtype d, bool *taken) {
  ir_graph *g = ir_new();
  val x = ir_param(g, d, DIMS(4)), y = ir_param(g, d, DIMS(4));
  ir_output(g, ops[op].arity == 1 ? ir_unary(g, (ir_opcode)op, x) : ir_binary(g, (ir_opcode)op, x, y), -1);
  tpu_err *err = ir_take_error(g);
  *taken = !err;
  if (!err) {
    buf b;
    buf_init(&b);
    pjrt_exec *e = NULL;
    err = ir_print(g, &b);
    if (!err) err = pjrt_compile(client(), b.data, b.len, NULL, 0, &e);
    if (err) printf("%s of %s: %.200s\n", ops[op].name, tpu_dtype_name(d), tpu_err_message(err));
    pjrt_exec_free(client(), e);
    buf_free(&b);
  }
  bool ok = !err;
  tpu_err_free(err);
  ir_free(g);
  return ok;
}

/* All operations of one dtype in one program; only if that does not compile, one by one. */
static void one_dtype(tpu_dtype d) {
  int n = 0;
  buf b;
  buf_init(&b);
  ir_graph *g = ir_new();
  val x = ir_param(g, d, DIMS(4)), y = ir_param(g, d, DIMS(4));
  for (int op = 0; op < IR_OP_COUNT; op++) {
    ir_graph *probe = ir_new();
    val p = ir_param(probe, d, DIMS(4));
    if (ops[op].arity == 1) ir_unary(probe, (ir_opcode)op, p);
    else ir_binary(probe, (ir_opcode)op, p, p);
    bool taken = !ir_failed(probe);
    ir_free(probe);
    if (!taken) continue;
    ir_output(g, ops[op].arity == 1 ? ir_unary(g, (ir_opcode)op, x) : ir_binary(g, (ir_opcode)op, x, y), -1);
    n++;
  }
  CHECK(n > 3);
  pjrt_exec *e = NULL;
  tpu_err *err = ir_print(g, &b);
  if (!err) err = pjrt_compile(client(), b.data, b.len, NULL, 0, &e);
  if (err) {
    CHECK_STR(tpu_err_message(err), tpu_dtype_name(d));
    for (int op = 0; op < IR_OP_COUNT; op++) {
      bool taken;
      compiles(op, d, &taken);
    }
  }
  tpu_err_free(err);
  pjrt_exec_free(client(), e);
  buf_free(&b);
  ir_free(g);
}

TEST(every_operation_compiles) {
  if (!client()) return;
  for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) one_dtype(dtypes[i]);
}

/* ---- accuracy of the functions --------------------------------------------------------------------------------- */

static double logistic(double x) { return 1 / (1 + exp(-x)); }
static double rsqrt(double x) { return 1 / sqrt(x); }
static double sign(double x) { return (x > 0) - (x < 0); }
static double negate(double x) { return -x; }
/* Inverse of erf by Newton's steps. */
static double erf_inv(double y) {
  double x = 0;
  for (int i = 0; i < 60; i++) x -= (erf(x) - y) / (2 / sqrt(acos(-1)) * exp(-x * x));
  return x;
}
static double digamma(double x) {
  double r = 0;
  for (; x < 20; x++) r -= 1 / x;
  double q = 1 / (x * x);
  return r + log(x) - 0.5 / x - q * (1.0 / 12 - q * (1.0 / 120 - q * (1.0 / 252 - q / 240)));
}
/* exp(-x) * I1(x), x >= 0, by its series. */
static double bessel_i1e(double x) {
  double term = x / 2, sum = 0;
  for (int k = 1; k < 60; k++) {
    sum += term;
    term *= x * x / 4 / k / (k + 1);
  }
  return sum * exp(-x);
}

static const struct {
  ir_opcode op;
  double (*fn)(double), lo, hi, tolerance32, tolerance64; /* 0: 4e-7 and 1e-15 */
} functions[] = {
    {IR_ABS, fabs, -9, 9, 0, 0},
    {IR_CBRT, cbrt, -9, 9, 0, 0},
    {IR_CEIL, ceil, -3, 3, 0, 0},
    {IR_COS, cos, -9, 9, 0, 0},
    {IR_EXP, exp, -9, 3, 0, 0},
    {IR_EXPM1, expm1, -3, 3, 0, 0},
    {IR_FLOOR, floor, -3, 3, 0, 0},
    {IR_LOG, log, 0.1, 9, 0, 0},
    {IR_LOG1P, log1p, -0.9, 9, 0, 2e-14},
    {IR_LOGISTIC, logistic, -9, 9, 0, 0},
    {IR_NEG, negate, -9, 9, 0, 0},
    {IR_ROUND, round, -3.5, 3.5, 0, 0},
    {IR_ROUND_EVEN, rint, -3.5, 3.5, 0, 0},
    {IR_RSQRT, rsqrt, 0.1, 9, 0, 0},
    {IR_SIGN, sign, -9, 9, 0, 0},
    {IR_SIN, sin, -9, 9, 0, 0},
    {IR_SQRT, sqrt, 0.1, 9, 0, 0},
    {IR_TAN, tan, -1.5, 1.5, 0, 0},
    {IR_TANH, tanh, -9, 9, 0, 0},
    {IR_ACOS, acos, -1, 1, 0, 0},
    {IR_ACOSH, acosh, 1, 9, 0, 0},
    {IR_ASIN, asin, -1, 1, 0, 0},
    {IR_ASINH, asinh, -9, 9, 0, 0},
    {IR_ATAN, atan, -9, 9, 0, 0},
    {IR_ATANH, atanh, -0.9, 0.9, 0, 2e-14},
    {IR_COSH, cosh, -3, 3, 0, 0},
    {IR_SINH, sinh, -3, 3, 0, 0},
    {IR_DIGAMMA, digamma, 2, 9, 2e-6, 1e-14},
    {IR_LGAMMA, lgamma, 2.5, 9, 1e-5, 1e-14},
    {IR_ERF, erf, -3, 3, 0, 0},
    {IR_ERFC, erfc, -3, 3, 1e-6, 0},
    {IR_ERFINV, erf_inv, -0.95, 0.95, 0, 1e-14},
    {IR_BESSEL_I1E, bessel_i1e, 0, 9, 1e-6, 3e-15},
};

enum { POINTS = 256 }; /* vector code, unrolled */

static void check_functions(tpu_dtype d) {
  for (size_t k = 0; k < sizeof functions / sizeof *functions; k++) {
    ir_graph *g = ir_new();
    double x[POINTS], v[POINTS];
    for (int i = 0; i < POINTS; i++) {
      x[i] = functions[k].lo + (functions[k].hi - functions[k].lo) * i / (POINTS - 1);
      if (d == TPU_F32) x[i] = (float)x[i];
    }
    in(g, d, DIMS(POINTS), x);
    ir_output(g, ir_unary(g, functions[k].op, ir_param_value(g, 0)), -1);
    tpu_err *err = NULL;
    if (run(g, kind_inputs, v, &err) != POINTS) {
      CHECK_OK(err);
    } else {
      double worst = 0, at = 0, tolerance = d == TPU_F32 ? functions[k].tolerance32 : functions[k].tolerance64;
      if (tolerance == 0) tolerance = d == TPU_F32 ? 4e-7 : 1e-15;
      for (int i = 0; i < POINTS; i++) {
        double want = functions[k].fn(x[i]), e = fabs(v[i] - want) / (1e-3 + fabs(want));
        if (!(e <= worst)) worst = e, at = x[i];
      }
      if (!CHECK(worst <= tolerance))
        printf("  %s of %s at %.17g: relative error %.3g\n", ops[functions[k].op].name, tpu_dtype_name(d), at, worst);
    }
    ir_free(g);
  }
}

static const struct {
  ir_opcode op;
  double (*fn)(double, double), lo, hi, tolerance32, tolerance64;
} functions2[] = {
    {IR_POW, pow, 0.1, 9, 2e-6, 1e-14}, {IR_ATAN2, atan2, -9, 9, 4e-7, 1e-15}, {IR_REM, fmod, -9, 9, 1e-6, 1e-15},
    {IR_MAX, fmax, -9, 9, 0, 0},        {IR_MIN, fmin, -9, 9, 0, 0},
};

static void check_functions2(tpu_dtype d) {
  for (size_t k = 0; k < sizeof functions2 / sizeof *functions2; k++) {
    ir_graph *g = ir_new();
    double x[POINTS], y[POINTS], v[POINTS];
    for (int i = 0; i < POINTS; i++) {
      x[i] = functions2[k].lo + (functions2[k].hi - functions2[k].lo) * i / (POINTS - 1);
      y[i] = 0.37 + 4 * sin(i);
      if (d == TPU_F32) x[i] = (float)x[i], y[i] = (float)y[i];
    }
    val a = in(g, d, DIMS(POINTS), x), b = in(g, d, DIMS(POINTS), y);
    out(g, ir_binary(g, functions2[k].op, a, b));
    tpu_err *err = NULL;
    if (run(g, kind_inputs, v, &err) != POINTS) {
      CHECK_OK(err);
    } else {
      double worst = 0, at = 0;
      for (int i = 0; i < POINTS; i++) {
        double want = functions2[k].fn(x[i], y[i]), e = fabs(v[i] - want) / (1e-3 + fabs(want));
        if (!(e <= worst)) worst = e, at = x[i];
      }
      if (!CHECK(worst <= (d == TPU_F32 ? functions2[k].tolerance32 : functions2[k].tolerance64)))
        printf("  %s of %s at %.17g: relative error %.3g\n", ops[functions2[k].op].name, tpu_dtype_name(d), at, worst);
    }
    ir_free(g);
  }
}

static double _Complex complex_sign(double _Complex z) { return z / cabs(z); }
static double _Complex complex_rsqrt(double _Complex z) { return 1 / csqrt(z); }
static double _Complex complex_logistic(double _Complex z) { return 1 / (1 + cexp(-z)); }
static double _Complex complex_expm1(double _Complex z) { return cexp(z) - 1; }
static double _Complex complex_log1p(double _Complex z) { return clog(1 + z); }

static const struct {
  ir_opcode op;
  double _Complex (*fn)(double _Complex);
} complex_functions[] = {
    {IR_EXP, cexp},
    {IR_LOG, clog},
    {IR_SQRT, csqrt},
    {IR_SIN, csin},
    {IR_COS, ccos},
    {IR_TAN, ctan},
    {IR_TANH, ctanh},
    {IR_SINH, csinh},
    {IR_COSH, ccosh},
    {IR_ASIN, casin},
    {IR_ACOS, cacos},
    {IR_ATAN, catan},
    {IR_ASINH, casinh},
    {IR_ACOSH, cacosh},
    {IR_ATANH, catanh},
    {IR_SIGN, complex_sign},
    {IR_RSQRT, complex_rsqrt},
    {IR_LOGISTIC, complex_logistic},
    {IR_EXPM1, complex_expm1},
    {IR_LOG1P, complex_log1p},
};

TEST(complex_functions_are_accurate) {
  if (!client()) return;
  for (size_t k = 0; k < sizeof complex_functions / sizeof *complex_functions; k++)
    for (int wide = 0; wide < 2; wide++) {
      enum { N = POINTS / 2 };
      ir_graph *g = ir_new();
      double x[2 * N], v[2 * N], worst = 0;
      for (int i = 0; i < 2 * N; i++) x[i] = (float)(2 * sin(3 * i + 1));
      val p = in(g, wide ? TPU_C128 : TPU_C64, DIMS(N), x);
      out(g, ir_unary(g, complex_functions[k].op, p));
      tpu_err *err = NULL;
      int at = 0;
      if (run(g, kind_inputs, v, &err) != 2 * N) {
        CHECK_OK(err);
      } else {
        for (int i = 0; i < N; i++) {
          double _Complex z = x[2 * i] + x[2 * i + 1] * I, want = complex_functions[k].fn(z),
                          have = v[2 * i] + v[2 * i + 1] * I;
          double e = cabs(have - want) / (1e-1 + cabs(want));
          if (!(e <= worst)) worst = e, at = i;
        }
        if (!CHECK(worst <= (wide ? 1e-14 : 3e-6)))
          printf("  %s of %s at %g + %gi: %.3g\n", ops[complex_functions[k].op].name, wide ? "complex128" : "complex64",
                 x[2 * at], x[2 * at + 1], worst);
      }
      ir_free(g);
    }
}

TEST(functions_are_accurate_float32) {
  if (!client()) return;
  check_functions(TPU_F32);
  check_functions2(TPU_F32);
}

TEST(functions_are_accurate_float64) {
  if (!client()) return;
  check_functions(TPU_F64);
  check_functions2(TPU_F64);
}

T_MAIN()
