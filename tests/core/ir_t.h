/* ir_t.h - one small program for each builder of ir.h, with inputs and the numbers that it must give. Used to print
 * them (goldens), to fail allocations, and to run them on real plugins. */
#ifndef TPU_TEST_IR_T_H
#define TPU_TEST_IR_T_H
#include <math.h>

#include "base/mem.h"
#include "ir/ir.h"
#include "t.h"

#define DIMS(...) \
  (int)(sizeof((int64_t[]){__VA_ARGS__}) / 8), (const int64_t[]) { __VA_ARGS__ }
#define I64(...) \
  (const int64_t[]) { __VA_ARGS__ }
#define INTS(...) \
  (const int[]) { __VA_ARGS__ }
#define NUMS(...) \
  (const double[]) { __VA_ARGS__ }
#define SCALAR 0, NULL

enum { KIND_MAX_PARAMS = 10, KIND_MAX_NUMBERS = 256 };

typedef struct kind {
  const char *name;
  void (*build)(ir_graph *g);
  const double *want; /* all numbers of all results in order; complex: real, imaginary */
  int nwant;
  struct kind *next;
} kind;

static kind *kind_first, **kind_last = &kind_first;
/* What the parameters of the program that was built last hold. */
static double kind_inputs[KIND_MAX_PARAMS][KIND_MAX_NUMBERS];

#define KIND(id, ...)                                                                                  \
  static void kind_fn_##id(ir_graph *g);                                                               \
  static const double kind_want_##id[] = {__VA_ARGS__};                                                \
  __attribute__((constructor)) static void kind_add_##id(void) {                                       \
    static kind k = {#id, kind_fn_##id, kind_want_##id, sizeof kind_want_##id / sizeof(double), NULL}; \
    *kind_last = &k;                                                                                   \
    kind_last = &k.next;                                                                               \
  }                                                                                                    \
  static void kind_fn_##id(ir_graph *g)

static inline val in(ir_graph *g, tpu_dtype d, int ndim, const int64_t *dims, const double *values) {
  int i = ir_param_count(g);
  val p = ir_param(g, d, ndim, dims);
  int64_t n = ir_numel(p) * (ir_is_complex(d) ? 2 : 1);
  if (i < KIND_MAX_PARAMS && n <= KIND_MAX_NUMBERS) memcpy(kind_inputs[i], values, (size_t)n * sizeof *values);
  return p;
}

static inline void out(ir_graph *g, val v) { ir_output(g, v, -1); }

/* The text of a graph, owned by the caller (mem_free). */
static inline char *text_of(ir_graph *g) {
  buf b;
  buf_init(&b);
  if (!CHECK_OK(ir_print(g, &b))) {
    buf_free(&b);
    return NULL;
  }
  return b.data;
}

KIND(add, 11, 22) {
  val x = in(g, TPU_F32, DIMS(2), NUMS(1, 2)), y = in(g, TPU_F32, DIMS(2), NUMS(10, 20));
  out(g, ir_binary(g, IR_ADD, x, y));
}

KIND(donate, 11, 22) {
  val x = in(g, TPU_F32, DIMS(2), NUMS(1, 2)), y = in(g, TPU_F32, DIMS(2), NUMS(10, 20));
  ir_output(g, ir_binary(g, IR_ADD, x, y), 0);
}

KIND(parameter_is_result, 1, 2, 1, 2) {
  val x = in(g, TPU_F32, DIMS(2), NUMS(1, 2));
  out(g, x);
  out(g, x);
}

KIND(is_finite_abs, 1, 0, 0, 5, 13) {
  out(g, ir_unary(g, IR_IS_FINITE, in(g, TPU_F32, DIMS(3), NUMS(1, INFINITY, NAN))));
  out(g, ir_unary(g, IR_ABS, in(g, TPU_C64, DIMS(2), NUMS(3, 4, 5, 12))));
}

KIND(binary_float, M_SQRT2, -1, 2.356194490192345, 1.6449340668482264, 1.6449340668482264, NAN, NAN, -3, 1065353217) {
  val one = in(g, TPU_F32, SCALAR, NUMS(1)), two = in(g, TPU_F32, SCALAR, NUMS(2)),
      nan = in(g, TPU_F32, SCALAR, NUMS(NAN));
  val neg = in(g, TPU_F32, SCALAR, NUMS(-7)), half = ir_const_f(g, TPU_F32, 0.5, SCALAR);
  out(g, ir_binary(g, IR_POW, two, half));
  out(g, ir_binary(g, IR_REM, neg, two));
  out(g, ir_binary(g, IR_ATAN2, one, ir_unary(g, IR_NEG, one)));
  out(g, ir_binary(g, IR_POLYGAMMA, one, one));
  out(g, ir_binary(g, IR_ZETA, two, one));
  out(g, ir_binary(g, IR_MAX, nan, one));
  out(g, ir_binary(g, IR_MIN, one, nan));
  out(g, ir_unary(g, IR_CEIL, ir_binary(g, IR_DIV, neg, two)));
  out(g, ir_bitcast(g, ir_binary(g, IR_NEXT_AFTER, one, two), TPU_I32));
}

KIND(binary_int, -3, -1, -1, 2147483648.0, 0, -4, 2147483644, 4, 13, 9, 8, 24, -6, 1, 0, 1) {
  val a = in(g, TPU_I32, SCALAR, NUMS(-7)), two = in(g, TPU_I32, SCALAR, NUMS(2)),
      zero = in(g, TPU_I32, SCALAR, NUMS(0));
  val low = in(g, TPU_I32, SCALAR, NUMS(INT32_MIN)), many = in(g, TPU_I32, SCALAR, NUMS(40)),
      one = ir_const_i(g, TPU_I32, 1, SCALAR);
  val eight = ir_const_i(g, TPU_I32, -8, SCALAR), x = in(g, TPU_U8, SCALAR, NUMS(12)),
      y = in(g, TPU_U8, SCALAR, NUMS(5));
  out(g, ir_binary(g, IR_DIV, a, two));
  out(g, ir_binary(g, IR_REM, a, two));
  out(g, ir_binary(g, IR_DIV, a, zero)); /* by zero: all bits */
  val neg = ir_binary(g, IR_DIV, low, ir_unary(g, IR_NEG, one));
  out(g, ir_bitcast(g, neg, TPU_U32));
  out(g, ir_binary(g, IR_SHL, two, many));
  out(g, ir_binary(g, IR_SHR_A, eight, one));
  out(g, ir_binary(g, IR_SHR_L, eight, one));
  out(g, ir_binary(g, IR_AND, x, y));
  out(g, ir_binary(g, IR_OR, x, y));
  out(g, ir_binary(g, IR_XOR, x, y));
  out(g, ir_unary(g, IR_POPCNT, in(g, TPU_U8, SCALAR, NUMS(255))));
  out(g, ir_unary(g, IR_CLZ, ir_const_i(g, TPU_I32, 255, SCALAR)));
  out(g, ir_unary(g, IR_NOT, ir_const_i(g, TPU_I32, 5, SCALAR)));
  val t = ir_const_i(g, TPU_BOOL, 1, SCALAR);
  out(g, ir_binary(g, IR_ADD, t, t));
  out(g, ir_binary(g, IR_XOR, t, t));
  out(g, ir_binary(g, IR_MAX, t, ir_unary(g, IR_NOT, t)));
}

KIND(complex_parts, 1, 3, 2, 4, 1, 2, 3, 4) {
  val re = in(g, TPU_F32, DIMS(2), NUMS(1, 2)), im = in(g, TPU_F32, DIMS(2), NUMS(3, 4)),
      c = ir_binary(g, IR_COMPLEX, re, im);
  out(g, c);
  out(g, ir_unary(g, IR_REAL, c));
  out(g, ir_unary(g, IR_IMAG, c));
}

KIND(constants, 0.5, 0.5, -7, -7, 1, 1.5, -2.5, 255, -INFINITY, 127, 1, 2, 3, 4, 5, 6, 0.25, 0.5, 1,
     18446744073709551615.0) {
  out(g, ir_const_f(g, TPU_F32, 0.5, DIMS(2)));
  out(g, ir_const_i(g, TPU_I64, -7, DIMS(2)));
  out(g, ir_const_i(g, TPU_BOOL, 5, SCALAR));
  out(g, ir_const_c(g, TPU_C64, 1.5, -2.5, SCALAR));
  out(g, ir_const_max(g, TPU_U8, SCALAR));
  out(g, ir_const_min(g, TPU_BF16, SCALAR));
  out(g, ir_const_max(g, TPU_I8, SCALAR));
  out(g, ir_const_ints(g, TPU_I32, I64(1, 2, 3, 4, 5, 6), DIMS(2, 3)));
  out(g, ir_const_floats(g, TPU_F16, NUMS(0.25, 0.5), DIMS(2)));
  out(g, ir_const_max(g, TPU_BOOL, SCALAR));
  out(g, ir_const_max(g, TPU_U64, SCALAR));
}

KIND(constants_f8, 0.5, 448, 0.5, 57344, 0.5, 1.5, 240, 0.5, 4) {
  out(g, ir_convert(g, ir_const_f(g, TPU_F8E5M2, 0.5, SCALAR), TPU_F32));
  out(g, ir_convert(g, ir_const_max(g, TPU_F8E4M3FN, SCALAR), TPU_F32));
  out(g, ir_convert(g, ir_const_f(g, TPU_F8E5M2FNUZ, 0.5, SCALAR), TPU_F32));
  out(g, ir_convert(g, ir_const_max(g, TPU_F8E5M2FNUZ, SCALAR), TPU_F32));
  out(g, ir_convert(g, ir_const_floats(g, TPU_F8E4M3FNUZ, NUMS(0.5, 1.5, 240), DIMS(3)), TPU_F32));
  out(g, ir_convert(g, ir_const_floats(g, TPU_F8E8M0FNU, NUMS(0.5, 3), DIMS(2)), TPU_F32));
}

KIND(empty, 0, 0) {
  val e = ir_const_f(g, TPU_F32, 1, DIMS(0, 3)), p = in(g, TPU_F32, DIMS(1), NUMS(0));
  val wide = ir_broadcast(g, ir_reshape(g, p, SCALAR), DIMS(3, 0), NULL);
  out(g, e);
  out(g, ir_const_ints(g, TPU_BOOL, NULL, DIMS(0)));
  out(g, ir_const_c(g, TPU_C64, 1, 1, DIMS(0)));
  out(g, ir_reduce(g, IR_ADD, ir_concat(g, (val[]){e, ir_transpose(g, wide, INTS(1, 0))}, 2, 0),
                   ir_const_f(g, TPU_F32, 0, SCALAR), 2, INTS(0, 1)));
  out(g, p);
}

KIND(iota, 0, 0, 1, 1, 2, 2) { out(g, ir_iota(g, TPU_I32, DIMS(3, 2), 0)); }

KIND(convert, 1, 0, 1, 1, 0, 2, -3, 1, 3, 0, 7, 0, 1, 1, 0) {
  val f = in(g, TPU_F32, DIMS(3), NUMS(0.5, 0, NAN)), b = in(g, TPU_BOOL, DIMS(2), NUMS(1, 0));
  out(g, ir_convert(g, f, TPU_BOOL));
  out(g, ir_convert(g, b, TPU_F32));
  out(g, ir_convert(g, in(g, TPU_F32, DIMS(2), NUMS(2.9, -3.9)), TPU_I32));
  val c = in(g, TPU_C64, DIMS(2), NUMS(1, 2, 3, 4));
  out(g, ir_convert(g, c, TPU_I64));
  out(g, ir_convert(g, ir_const_i(g, TPU_I32, 0, SCALAR), TPU_F64));
  out(g, ir_convert(g, in(g, TPU_I8, DIMS(1), NUMS(7)), TPU_C64));
  out(g, ir_convert(g, in(g, TPU_C64, DIMS(3), NUMS(1, 0, 0, 2, 0, 0)), TPU_BOOL));
}

KIND(bitcast, 1065353216, 0, 0, 128, 63, 1) {
  val x = in(g, TPU_F32, DIMS(1), NUMS(1)), bytes = ir_bitcast(g, x, TPU_U8);
  out(g, ir_bitcast(g, x, TPU_I32));
  out(g, bytes);
  out(g, ir_bitcast(g, bytes, TPU_F32));
}

KIND(shape_ops, 1, 2, 1, 2, 5, 5, 1, 4, 2, 5, 3, 6, 3, 2, 1, 6, 5, 4, 2, 5) {
  val x = in(g, TPU_F32, DIMS(2, 3), NUMS(1, 2, 3, 4, 5, 6)), y = in(g, TPU_F32, DIMS(2), NUMS(1, 2));
  out(g, ir_broadcast(g, ir_reshape(g, y, DIMS(1, 2)), DIMS(2, 2), INTS(0, 1)));
  out(g, ir_splat(g, ir_const_f(g, TPU_F32, 5, SCALAR), DIMS(2)));
  out(g, ir_transpose(g, x, INTS(1, 0)));
  out(g, ir_reverse(g, x, 1, INTS(1)));
  out(g, ir_slice(g, x, I64(0, 1), I64(2, 3), I64(1, 2)));
}

KIND(dynamic_slices, 5, 6, 1, 2, 3, 4, 9, 6) {
  val x = in(g, TPU_F32, DIMS(2, 3), NUMS(1, 2, 3, 4, 5, 6)), one = in(g, TPU_I32, SCALAR, NUMS(1)),
      u = in(g, TPU_F32, DIMS(1, 1), NUMS(9));
  out(g, ir_dynamic_slice(g, x, (val[]){one, one}, I64(1, 2)));
  out(g, ir_dynamic_update_slice(g, x, u, (val[]){one, one}));
}

KIND(pad_concat, 0, 1, 0, 2, 0, 0, 2, 3, 1, 2, 3, 1, 2, 3) {
  val x = in(g, TPU_I32, DIMS(3), NUMS(1, 2, 3)), zero = ir_const_i(g, TPU_I32, 0, SCALAR);
  out(g, ir_pad(g, ir_slice(g, x, I64(0), I64(2), NULL), zero, I64(1), I64(2), I64(1)));
  out(g, ir_pad(g, x, zero, I64(-1), I64(0), NULL));
  out(g, ir_concat(g, (val[]){x, x}, 2, 0));
}

KIND(compare_select, 1, 0, 0, 0, 1, 1, 1, 0, 0, 3, 2, 2, 1, 2, 2.5) {
  val a = in(g, TPU_F32, DIMS(3), NUMS(1, 2, 3)), b = in(g, TPU_F32, DIMS(3), NUMS(3, 2, 1)),
      p = ir_compare(g, IR_LT, a, b);
  out(g, p);
  out(g, ir_compare(g, IR_GE, in(g, TPU_U8, DIMS(3), NUMS(1, 200, 3)), ir_const_i(g, TPU_U8, 3, DIMS(3))));
  out(g, ir_compare_total(g, IR_LT, in(g, TPU_F32, DIMS(1), NUMS(-0.0)), ir_const_f(g, TPU_F32, 0.0, DIMS(1))));
  out(g, ir_compare(g, IR_EQ, ir_const_i(g, TPU_BOOL, 1, DIMS(1)), ir_const_i(g, TPU_BOOL, 0, DIMS(1))));
  out(g, ir_compare(g, IR_NE, ir_const_c(g, TPU_C64, 1, 1, DIMS(1)), ir_const_c(g, TPU_C64, 1, 1, DIMS(1))));
  out(g, ir_select(g, p, b, ir_const_f(g, TPU_F32, 2, DIMS(3))));
  out(g, ir_clamp(g, ir_const_f(g, TPU_F32, 0, SCALAR), a, ir_const_f(g, TPU_F32, 2.5, SCALAR)));
}

KIND(reduce_precision, 1) { out(g, ir_reduce_precision(g, in(g, TPU_F32, SCALAR, NUMS(1.001)), 8, 7)); }

KIND(reduce, 6, 15, 4, 5, 6, 1, 1) {
  val x = in(g, TPU_F32, DIMS(2, 3), NUMS(1, 2, 3, 4, 5, 6));
  out(g, ir_reduce(g, IR_ADD, x, ir_const_f(g, TPU_F32, 0, SCALAR), 1, INTS(1)));
  out(g, ir_reduce(g, IR_MAX, x, ir_const_min(g, TPU_F32, SCALAR), 1, INTS(0)));
  out(g, ir_reduce(g, IR_OR, in(g, TPU_BOOL, DIMS(2), NUMS(0, 1)), ir_const_i(g, TPU_BOOL, 0, SCALAR), 1, INTS(0)));
  out(g, ir_reduce(g, IR_AND, in(g, TPU_BOOL, DIMS(2), NUMS(1, 1)), ir_const_i(g, TPU_BOOL, 1, SCALAR), 1, INTS(0)));
}

/* Two inputs: the largest value and where it stands. */
static inline void pick_larger(ir_graph *g, const val *a, val *r) {
  val p = ir_compare(g, IR_GE, a[0], a[2]);
  r[0] = ir_select(g, p, a[0], a[2]);
  r[1] = ir_select(g, p, a[1], a[3]);
}

KIND(reduce_argmax, 3, 6, 1, 2) {
  val x = in(g, TPU_F32, DIMS(2, 3), NUMS(1, 3, 2, 4, 5, 6)), xs[2] = {x, ir_iota(g, TPU_I32, DIMS(2, 3), 1)}, a[4],
      r[2];
  val inits[2] = {ir_const_min(g, TPU_F32, SCALAR), ir_const_i(g, TPU_I32, 0, SCALAR)};
  ir_reduce_begin(g, xs, inits, 2, 1, INTS(1), a);
  pick_larger(g, a, r);
  ir_reduce_end(g, r, r);
  out(g, r[0]);
  out(g, r[1]);
}

KIND(reduce_window, 3, 5, 7, 1, 3, 6, 10) {
  val x = in(g, TPU_F32, DIMS(4), NUMS(1, 2, 3, 4)), zero = ir_const_f(g, TPU_F32, 0, SCALAR);
  out(g, ir_reduce_window(g, IR_ADD, x, zero, &(ir_window){.size = I64(2)}));
  out(g, ir_reduce_window(g, IR_ADD, x, zero, &(ir_window){.size = I64(4), .pad_low = I64(3)}));
}

KIND(max_pool_indices, 6, 8, 1, 3) {
  val x = in(g, TPU_F32, DIMS(1, 4), NUMS(5, 6, 7, 8)), xs[2] = {x, ir_iota(g, TPU_I64, DIMS(1, 4), 1)}, a[4], r[2];
  val inits[2] = {ir_const_min(g, TPU_F32, SCALAR), ir_const_i(g, TPU_I64, 0, SCALAR)};
  ir_reduce_window_begin(g, xs, inits, 2, &(ir_window){.size = I64(1, 2), .stride = I64(1, 2)}, a);
  pick_larger(g, a, r);
  ir_reduce_window_end(g, r, r);
  out(g, r[0]);
  out(g, r[1]);
}

KIND(select_and_scatter, 0, 10, 0, 20) {
  val x = in(g, TPU_F32, DIMS(4), NUMS(1, 2, 3, 4)), source = in(g, TPU_F32, DIMS(2), NUMS(10, 20));
  out(g, ir_select_and_scatter(g, x, source, ir_const_f(g, TPU_F32, 0, SCALAR), IR_GE, false,
                               &(ir_window){.size = I64(2), .stride = I64(2)}));
}

KIND(dot, 19, 22, 43, 50, 23, 4, 6, 8, 12) {
  val a = in(g, TPU_F32, DIMS(1, 2, 2), NUMS(1, 2, 3, 4)), b = in(g, TPU_F32, DIMS(1, 2, 2), NUMS(5, 6, 7, 8));
  out(g, ir_dot(g, a, b, 1, INTS(0), INTS(0), 1, INTS(2), INTS(1), TPU_F32, 0));
  val v = in(g, TPU_I8, DIMS(2), NUMS(2, 3)), w = in(g, TPU_I8, DIMS(2), NUMS(4, 5));
  out(g, ir_dot(g, v, w, 0, NULL, NULL, 1, INTS(0), INTS(0), TPU_I32, 2));
  val h = in(g, TPU_BF16, DIMS(2), NUMS(2, 3)), k = in(g, TPU_BF16, DIMS(2), NUMS(2, 4));
  out(g,
      ir_reshape(g, ir_transpose(g, ir_dot(g, h, k, 0, NULL, NULL, 0, NULL, NULL, TPU_F32, 1), INTS(1, 0)), DIMS(4)));
}

static const ir_conv_dims nchw = {.batch = 0,
                                  .feature = 1,
                                  .spatial = (const int[]){2, 3},
                                  .k_in = 1,
                                  .k_out = 0,
                                  .k_spatial = (const int[]){2, 3},
                                  .out_batch = 0,
                                  .out_feature = 1,
                                  .out_spatial = (const int[]){2, 3}};

KIND(conv, 14, 22, 38, 46, 1, 0, 2, 0, 0, 0, 3, 0, 4) {
  val x = in(g, TPU_F32, DIMS(1, 1, 3, 3), NUMS(1, 2, 3, 4, 5, 6, 7, 8, 9)),
      w = in(g, TPU_F32, DIMS(1, 1, 2, 2), NUMS(4, 3, 1, 0));
  val flipped = ir_conv(g, x, w, &nchw, NULL, NULL, NULL, NULL, NULL, (const bool[]){false, false}, 1, 1, TPU_F32, 0);
  out(g, flipped);
  val y = in(g, TPU_F32, DIMS(1, 1, 2, 2), NUMS(1, 2, 3, 4)), one = ir_const_f(g, TPU_F32, 1, DIMS(1, 1, 1, 1));
  out(g, ir_conv(g, y, one, &nchw, I64(1, 1), I64(0, 0), I64(0, 0), I64(2, 2), I64(1, 1), NULL, 1, 1, TPU_F32, 2));
}

KIND(conv_reversed_groups, 17, 53) {
  val x = in(g, TPU_F32, DIMS(1, 2, 1, 2), NUMS(1, 2, 3, 4)),
      w = in(g, TPU_F32, DIMS(2, 1, 1, 2), NUMS(8.0, 0.5, 0.5, 17.5));
  val y = ir_conv(g, x, w, &nchw, NULL, NULL, NULL, NULL, NULL, (const bool[]){false, true}, 2, 1, TPU_F32, 0);
  out(g, ir_binary(g, IR_ADD, ir_reshape(g, y, DIMS(2)), ir_const_floats(g, TPU_F32, NUMS(0.5, -1.5), DIMS(2))));
}

KIND(gather, 5, 6, 1, 2, 4, 1, 6) {
  val x = in(g, TPU_F32, DIMS(3, 2), NUMS(1, 2, 3, 4, 5, 6)), i = in(g, TPU_I64, DIMS(2, 1), NUMS(2, 0));
  out(g, ir_gather(g, x, i,
                   &(ir_gather_dims){.noffset = 1,
                                     .offset_dims = INTS(1),
                                     .ncollapsed = 1,
                                     .collapsed_dims = INTS(0),
                                     .nstart = 1,
                                     .start_index_map = INTS(0),
                                     .index_vector_dim = 1},
                   I64(1, 2), false));
  val k = in(g, TPU_I32, DIMS(3), NUMS(1, 0, 1)); /* take_along_dim */
  val y = ir_slice(g, x, I64(0, 0), I64(3, 2), NULL), picked = ir_gather(g, y, k,
                                                                         &(ir_gather_dims){.ncollapsed = 1,
                                                                                           .collapsed_dims = INTS(1),
                                                                                           .nbatching = 1,
                                                                                           .operand_batching = INTS(0),
                                                                                           .indices_batching = INTS(0),
                                                                                           .nstart = 1,
                                                                                           .start_index_map = INTS(1),
                                                                                           .index_vector_dim = 1},
                                                                         I64(1, 1), false);
  out(g, ir_binary(g, IR_SUB, picked, ir_const_floats(g, TPU_F32, NUMS(-2, 2, 0), DIMS(3))));
}

KIND(scatter, 1, 12, 1, 31, 9, 1, 8) {
  val x = ir_const_f(g, TPU_F32, 1, DIMS(4)), i = in(g, TPU_I32, DIMS(3, 1), NUMS(3, 1, 3)),
      u = in(g, TPU_F32, DIMS(3), NUMS(10, 11, 20));
  const ir_scatter_dims d = {.ninserted = 1,
                             .inserted_window_dims = INTS(0),
                             .nscatter = 1,
                             .scatter_dims_to_operand = INTS(0),
                             .index_vector_dim = 1};
  out(g, ir_scatter(g, x, i, u, &d, IR_ADD, false, false));
  val y = ir_const_f(g, TPU_F32, 1, DIMS(3)), j = in(g, TPU_I32, DIMS(2, 1), NUMS(2, 0)),
      w = in(g, TPU_F32, DIMS(2), NUMS(8, 9));
  out(g, ir_scatter(g, y, j, w, &d, -1, false, true));
}

KIND(sort, 1, 2, 3, 2, 0, 1) {
  val x = in(g, TPU_F32, DIMS(3), NUMS(2, 3, 1)), xs[2] = {x, ir_iota(g, TPU_I32, DIMS(3), 0)}, a[4], r[2];
  ir_sort_begin(g, xs, 2, 0, true, a);
  ir_sort_end(g, ir_compare_total(g, IR_LT, a[0], a[1]), r);
  out(g, r[0]);
  out(g, r[1]);
}

/* Doubles x until the counter reaches n; the body sees an outer value. */
KIND(loop, 5, 96) {
  val n = in(g, TPU_I32, SCALAR, NUMS(5)), two = ir_const_f(g, TPU_F32, 2, SCALAR);
  val init[2] = {ir_const_i(g, TPU_I32, 0, SCALAR), in(g, TPU_F32, SCALAR, NUMS(3))}, a[2], r[2];
  ir_while_begin(g, init, 2, a);
  ir_while_body(g, ir_compare(g, IR_LT, a[0], n), a);
  r[0] = ir_binary(g, IR_ADD, a[0], ir_const_i(g, TPU_I32, 1, SCALAR));
  r[1] = ir_binary(g, IR_MUL, a[1], two);
  ir_while_end(g, r, r);
  out(g, r[0]);
  out(g, r[1]);
}

KIND(branch, 7, 1) {
  val p = in(g, TPU_BOOL, SCALAR, NUMS(0)), x = in(g, TPU_F32, SCALAR, NUMS(6)),
      one = ir_const_f(g, TPU_F32, 1, SCALAR), r[2];
  ir_if_begin(g, p);
  r[0] = ir_binary(g, IR_SUB, x, one);
  r[1] = x;
  ir_if_else(g, r, 2);
  r[0] = ir_binary(g, IR_ADD, x, one);
  r[1] = one;
  ir_if_end(g, r, 2, r);
  out(g, r[0]);
  out(g, r[1]);
}

KIND(fft, 10, 0, -2, 2, -2, 0, 1, 2, 3, 4, 1, 0, 2, 0) {
  val x = in(g, TPU_F32, DIMS(4), NUMS(1, 2, 3, 4)), f = ir_fft(g, x, IR_RFFT, 1, I64(4));
  out(g, f);
  out(g, ir_fft(g, f, IR_IRFFT, 1, I64(4)));
  val c = in(g, TPU_C64, DIMS(2), NUMS(1, 0, 2, 0));
  out(g, ir_fft(g, ir_fft(g, c, IR_FFT, 1, I64(2)), IR_IFFT, 1, I64(2)));
}

KIND(cholesky_solve, 2, 1, 2, 3, 1) {
  val x = in(g, TPU_F32, DIMS(2, 2), NUMS(4, 2, 2, 5)), l = ir_cholesky(g, x, true),
      b = in(g, TPU_F32, DIMS(2, 1), NUMS(6, 5));
  val z = ir_iota(g, TPU_I32, DIMS(2, 2), 0), y = ir_iota(g, TPU_I32, DIMS(2, 2), 1);
  val kept = ir_select(g, ir_compare(g, IR_GE, z, y), l, ir_const_f(g, TPU_F32, 0, DIMS(2, 2)));
  val flat = ir_reshape(g, kept, DIMS(4));
  out(g, ir_concat(g, (val[]){ir_slice(g, flat, I64(0), I64(1), NULL), ir_slice(g, flat, I64(2), I64(4), NULL)}, 2, 0));
  out(g, ir_triangular_solve(g, l, b, true, true, false, 0));
}

/* Philox 4x32-10 with key (1, 0) and counters (4, 0, 1, 0), (5, 0, 1, 0): the words of a block stand in a row. */
KIND(philox, 1, 6, 433598563, 2511543348, 3408178465, 3374076784, 578703075, 2627772353) {
  val state = in(g, TPU_U64, DIMS(2), NUMS(1, 4)), next, bits;
  ir_rng_philox(g, state, TPU_U32, DIMS(6), &next, &bits);
  out(g, next);
  out(g, bits);
}

KIND(custom_call, 3, 4, 1, 0) {
  val x = in(g, TPU_F32, DIMS(4), NUMS(3, 1, 4, 2)), r[2];
  const int64_t two[] = {2};
  ir_custom_call(g, "mhlo.topk", "mhlo.attributes = {k = 2 : i64, largest = true}, mhlo.version = 1 : i64", &x, 1, 2,
                 (const tpu_dtype[]){TPU_F32, TPU_I32}, INTS(1, 1), (const int64_t *[]){two, two}, r);
  r[0] = ir_reverse(g, r[0], 1, INTS(0));
  r[1] = ir_binary(g, IR_MUL, r[1], ir_const_i(g, TPU_I32, 0, DIMS(2)));
  ir_barrier(g, r, 2, r);
  out(g, r[0]);
  out(g, ir_binary(g, IR_ADD, r[1], ir_const_ints(g, TPU_I32, I64(1, 0), DIMS(2))));
}
#endif
