/* elementwise.c - operations on equal shapes. */
#include "ir/node.h"

/* Which operand dtypes an operation takes. */
enum { B = 1, I = 2, U = 4, F = 8, C = 16, INT = I | U, NUM = INT | F | C, FC = F | C };

typedef struct {
  const char *name;
  uint8_t arity, takes; /* takes 0: everything */
} op_info;

static const op_info infos[IR_OP_COUNT] = {
#define X(id, mlir, n) [IR_##id].name = mlir, [IR_##id].arity = n,
#include "ir/ops.def"
#undef X
#define T(id, mask) [IR_##id].takes = mask
    T(ABS, I | FC),   T(CBRT, F),       T(CEIL, F),          T(COS, FC),          T(CLZ, INT),     T(EXP, FC),
    T(EXPM1, FC),     T(FLOOR, F),      T(IMAG, FC),         T(IS_FINITE, F),     T(LOG, FC),      T(LOG1P, FC),
    T(LOGISTIC, FC),  T(NEG, NUM),      T(NOT, B | INT),     T(POPCNT, INT),      T(REAL, FC),     T(ROUND, F),
    T(ROUND_EVEN, F), T(RSQRT, FC),     T(SIGN, I | FC),     T(SIN, FC),          T(SQRT, FC),     T(TAN, FC),
    T(TANH, FC),      T(ACOS, FC),      T(ACOSH, FC),        T(ASIN, FC),         T(ASINH, FC),    T(ATAN, FC),
    T(ATANH, FC),     T(COSH, FC),      T(SINH, FC),         T(DIGAMMA, F),       T(LGAMMA, F),    T(ERF, F),
    T(ERFC, F),       T(ERFINV, F),     T(BESSEL_I1E, F),    T(ADD, B | NUM),     T(AND, B | INT), T(ATAN2, FC),
    T(COMPLEX, F),    T(DIV, NUM),      T(MAX, B | INT | F), T(MIN, B | INT | F), T(MUL, B | NUM), T(OR, B | INT),
    T(POW, NUM),      T(REM, INT | F),  T(SHL, INT),         T(SHR_A, INT),       T(SHR_L, INT),   T(SUB, NUM),
    T(XOR, B | INT),  T(NEXT_AFTER, F), T(POLYGAMMA, F),     T(ZETA, F),
#undef T
};

static int class_of(tpu_dtype d) {
  if (d == TPU_BOOL) return B;
  return ir_is_unsigned(d) ? U : ir_is_int(d) ? I : ir_is_complex(d) ? C : F;
}

static const char *takes_text(int mask) {
  switch (mask) {
    case F: return "floating-point";
    case FC: return "floating-point or complex";
    case INT: return "integer";
    case B | INT: return "bool or integer";
    case I | FC: return "signed integer, floating-point or complex";
    case INT | F: return "integer or floating-point";
    case B | INT | F: return "bool, integer or floating-point";
    default: return "integer, floating-point or complex";
  }
}

static bool op_ok(ir_graph *g, ir_opcode op, int arity, val x) {
  if ((unsigned)op >= IR_OP_COUNT || infos[op].arity != arity) {
    ir_fail(g, TPU_ERR_RUNTIME, "%s takes %d operands, got %d", (unsigned)op < IR_OP_COUNT ? infos[op].name : "?",
            (unsigned)op < IR_OP_COUNT ? infos[op].arity : 0, arity);
    return false;
  }
  if (infos[op].takes && !(infos[op].takes & class_of(x->dtype))) {
    ir_fail(g, TPU_ERR_RUNTIME, "%s (I1): expected a %s dtype, got %s", infos[op].name, takes_text(infos[op].takes),
            tpu_dtype_name(x->dtype));
    return false;
  }
  return true;
}

/* Operands of equal dtype and shape. */
static bool alike(ir_graph *g, const char *name, val a, val b) {
  if (a->dtype == b->dtype && ir_same_dims(a, b)) return true;
  ir_fail(g, TPU_ERR_RUNTIME, "%s (C1): expected operands of equal dtype and shape, got %s and %s", name,
          node_text(g, a), node_text(g, b));
  return false;
}

/* As chlo.atan does, but the compiler must not see the 1: one XLA CPU plugin (PJRT 0.115) turns atan2(x, 1) into a
 * vector function that gives wrong numbers from 64 elements on. */
static val atan_of(ir_graph *g, val x) {
  val one = ir_const_i(g, x->dtype, 1, 0, NULL);
  ir_barrier(g, &one, 1, &one);
  return ir_binary(g, IR_ATAN2, x, ir_splat(g, one, x->ndim, x->dims));
}

val ir_unary(ir_graph *g, ir_opcode op, val x) {
  USABLE_OR_POISON((unsigned)op < IR_OP_COUNT ? infos[op].name : "?", &x, 1);
  if (!op_ok(g, op, 1, x)) return node_poison(g);
  if (op == IR_ATAN && ir_is_float(x->dtype)) return atan_of(g, x);
  tpu_dtype d = op == IR_IS_FINITE                               ? TPU_BOOL
                : op == IR_ABS || op == IR_REAL || op == IR_IMAG ? ir_real_dtype(x->dtype)
                                                                 : (tpu_dtype)x->dtype;
  return node_make(g, infos[op].name, "", &x, 1, d, x->ndim, x->dims);
}

val ir_binary(ir_graph *g, ir_opcode op, val a, val b) {
  val in[2] = {a, b};
  USABLE_OR_POISON((unsigned)op < IR_OP_COUNT ? infos[op].name : "?", in, 2);
  if (!op_ok(g, op, 2, a) || !alike(g, infos[op].name, a, b)) return node_poison(g);
  tpu_dtype d = a->dtype;
  /* The specification says so; XLA's CPU compiler adds bools modulo 2. */
  if (d == TPU_BOOL && op == IR_ADD) op = IR_OR;
  if (d == TPU_BOOL && op == IR_MUL) op = IR_AND;
  if (op == IR_COMPLEX) {
    CHECK_OR(d == TPU_F32 || d == TPU_F64, "%s (I1): expected float32 or float64, got %s", infos[op].name,
             tpu_dtype_name(d));
    d = d == TPU_F32 ? TPU_C64 : TPU_C128;
  }
  return node_make(g, infos[op].name, "", in, 2, d, a->ndim, a->dims);
}

/* All attribute texts of compare: direction by kind. */
#define DIRECTION(dir, kind) \
  "comparison_direction = #stablehlo<comparison_direction " dir ">, compare_type = #stablehlo<comparison_type " kind ">"
#define KINDS(dir) \
  {DIRECTION(dir, "FLOAT"), DIRECTION(dir, "SIGNED"), DIRECTION(dir, "UNSIGNED"), DIRECTION(dir, "TOTALORDER")}
static const char *const compare_attrs[6][4] = {KINDS("EQ"), KINDS("NE"), KINDS("LT"),
                                                KINDS("LE"), KINDS("GT"), KINDS("GE")};

static val compare(ir_graph *g, ir_cmp c, int kind, val a, val b) {
  val in[2] = {a, b};
  return node_make(g, "stablehlo.compare", compare_attrs[c][kind], in, 2, TPU_BOOL, a->ndim, a->dims);
}

val ir_compare(ir_graph *g, ir_cmp c, val a, val b) {
  const char *name = "stablehlo.compare";
  val in[2] = {a, b};
  USABLE_OR_POISON(name, in, 2);
  CHECK_OR((unsigned)c <= IR_GE, "%s: %d is no direction", name, (int)c);
  if (!alike(g, name, a, b)) return node_poison(g);
  CHECK_OR(!ir_is_complex(a->dtype) || c == IR_EQ || c == IR_NE, "%s (C4): complex numbers have no order", name);
  int cls = class_of(a->dtype);
  return compare(g, c, cls & FC ? 0 : cls == I ? 1 : 2, a, b);
}

val ir_compare_total(ir_graph *g, ir_cmp c, val a, val b) {
  const char *name = "stablehlo.compare";
  val in[2] = {a, b};
  USABLE_OR_POISON(name, in, 2);
  CHECK_OR((unsigned)c <= IR_GE, "%s: %d is no direction", name, (int)c);
  if (!alike(g, name, a, b)) return node_poison(g);
  CHECK_OR(ir_is_float(a->dtype), "%s (C3): TOTALORDER is for floating-point numbers, got %s", name,
           tpu_dtype_name(a->dtype));
  return compare(g, c, 3, a, b);
}

val ir_select(ir_graph *g, val pred, val on_true, val on_false) {
  const char *name = "stablehlo.select";
  val in[3] = {pred, on_true, on_false};
  USABLE_OR_POISON(name, in, 3);
  CHECK_OR(pred->dtype == TPU_BOOL, "%s (I1): expected a bool predicate, got %s", name, node_text(g, pred));
  CHECK_OR(!pred->ndim || ir_same_dims(pred, on_true),
           "%s (C1): expected a scalar predicate or one of shape %s, got %s", name,
           node_dims_text(g, on_true->ndim, on_true->dims), node_text(g, pred));
  if (!alike(g, name, on_true, on_false)) return node_poison(g);
  return node_make(g, name, "", in, 3, on_true->dtype, on_true->ndim, on_true->dims);
}

val ir_clamp(ir_graph *g, val lo, val x, val hi) {
  const char *name = "stablehlo.clamp";
  val in[3] = {lo, x, hi};
  USABLE_OR_POISON(name, in, 3);
  CHECK_OR(!ir_is_complex(x->dtype), "%s: complex numbers have no order", name);
  CHECK_OR(lo->dtype == x->dtype && hi->dtype == x->dtype, "%s (C3): expected bounds of dtype %s, got %s and %s", name,
           tpu_dtype_name(x->dtype), node_text(g, lo), node_text(g, hi));
  CHECK_OR((!lo->ndim || ir_same_dims(lo, x)) && (!hi->ndim || ir_same_dims(hi, x)),
           "%s (C1, C2): expected bounds that are scalars or of the shape of %s, got %s and %s", name, node_text(g, x),
           node_text(g, lo), node_text(g, hi));
  return node_make(g, name, "", in, 3, x->dtype, x->ndim, x->dims);
}

val ir_reduce_precision(ir_graph *g, val x, int exponent_bits, int mantissa_bits) {
  const char *name = "stablehlo.reduce_precision";
  USABLE_OR_POISON(name, &x, 1);
  CHECK_OR(ir_is_float(x->dtype), "%s (I1): expected a floating-point dtype, got %s", name, tpu_dtype_name(x->dtype));
  CHECK_OR(exponent_bits >= 1 && mantissa_bits >= 0,
           "%s (C2, C3): expected exponent_bits >= 1 and mantissa_bits >= 0, got %d and %d", name, exponent_bits,
           mantissa_bits);
  const char *attrs =
      arena_printf(&g->mem, "exponent_bits = %d : i32, mantissa_bits = %d : i32", exponent_bits, mantissa_bits);
  return node_make(g, name, attrs, &x, 1, x->dtype, x->ndim, x->dims);
}
