/* What the builders refuse, and that a refusal sticks. */
#include "ir_t.h"

/* Parameters that every case may use. */
static val f23, f3, f1, i2, i23, b2, c2, s, i0, b0, u64_2, f8;

static ir_graph *fresh(void) {
  ir_graph *g = ir_new();
  f23 = ir_param(g, TPU_F32, DIMS(2, 3));
  f3 = ir_param(g, TPU_F32, DIMS(3));
  f1 = ir_param(g, TPU_F32, DIMS(1));
  i2 = ir_param(g, TPU_I32, DIMS(2));
  i23 = ir_param(g, TPU_I32, DIMS(2, 3));
  b2 = ir_param(g, TPU_BOOL, DIMS(2));
  c2 = ir_param(g, TPU_C64, DIMS(2));
  s = ir_param(g, TPU_F32, SCALAR);
  i0 = ir_param(g, TPU_I32, SCALAR);
  b0 = ir_param(g, TPU_BOOL, SCALAR);
  u64_2 = ir_param(g, TPU_U64, DIMS(2));
  f8 = ir_param(g, TPU_F8E5M2, DIMS(4));
  return g;
}

/* Runs `code` on a fresh graph g: it must record an error that holds `part`. */
#define REFUSES(part, ...)                              \
  do {                                                  \
    ir_graph *g = fresh();                              \
    __VA_ARGS__;                                        \
    CHECK_ERR(ir_take_error(g), TPU_ERR_RUNTIME, part); \
    CHECK(ir_failed(g));                                \
    ir_free(g);                                         \
  } while (0)

#define ACCEPTS(...)            \
  do {                          \
    ir_graph *g = fresh();      \
    __VA_ARGS__;                \
    CHECK_OK(ir_take_error(g)); \
    ir_free(g);                 \
  } while (0)

static ir_graph *on_a_mesh(val *x) {
  ir_graph *g = ir_new();
  ir_set_mesh(g, 2, (const char *const[]){"a", "b"}, I64(2, 3));
  *x = ir_param(g, TPU_F32, DIMS(4, 6));
  return g;
}

#define REFUSES_ON_A_MESH(kind, part, ...)   \
  do {                                       \
    val x;                                   \
    ir_graph *g = on_a_mesh(&x);             \
    __VA_ARGS__;                             \
    CHECK_ERR(ir_take_error(g), kind, part); \
    ir_free(g);                              \
  } while (0)

TEST(meshes_and_places) {
  REFUSES("a program without a mesh has no places", ir_place_param(g, f23, I64(0)));
  REFUSES("a program without a mesh has no places", ir_constrain(g, f23, I64(0)));
  REFUSES("expected a graph without a mesh and parameters", ir_set_mesh(g, 1, (const char *const[]){"a"}, I64(2)));
  REFUSES_ON_A_MESH(
      TPU_ERR_VALUE,
      "dim 0 of float32[4, 6] has the size 4, which cannot be divided into 6 equal parts (mesh axes: a, b)",
      ir_place_param(g, x, I64(0, 0)));
  REFUSES_ON_A_MESH(TPU_ERR_INDEX, "expected a dim from 0 to 1 to split over mesh axis b, got 2",
                    ir_constrain(g, x, I64(0, 2)));
  REFUSES_ON_A_MESH(TPU_ERR_INDEX, "got -2", ir_constrain(g, x, I64(-2, 1)));
  REFUSES_ON_A_MESH(TPU_ERR_RUNTIME, "expected one of 0 results, got 0", ir_place_output(g, 0, I64(0, 1)));
  REFUSES_ON_A_MESH(TPU_ERR_RUNTIME, "expected a parameter, got a result of stablehlo.negate",
                    ir_place_param(g, ir_unary(g, IR_NEG, x), I64(0, 1)));
  REFUSES_ON_A_MESH(TPU_ERR_RUNTIME, "expected a graph without a mesh",
                    ir_set_mesh(g, 1, (const char *const[]){"a"}, I64(2)));
  ir_graph *g = ir_new();
  ir_set_mesh(g, 2, (const char *const[]){"a", "b"}, I64(2, 0));
  CHECK_ERR(ir_take_error(g), TPU_ERR_VALUE, "axis b of the mesh has the size 0");
  ir_free(g);
  val x;
  g = on_a_mesh(&x);
  ir_place_param(g, x, I64(0, 1));
  CHECK_OK(ir_take_error(g));
  ir_free(g);
}

TEST(parameters_and_outputs) {
  REFUSES("sizes >= 0, got [2, -1]", ir_param(g, TPU_F32, DIMS(2, -1)));
  REFUSES("99 is no dtype", ir_param(g, (tpu_dtype)99, DIMS(2)));
  REFUSES("too large", ir_param(g, TPU_F32, DIMS(INT64_MAX / 2)));
  REFUSES("too large", ir_param(g, TPU_F32, DIMS(1LL << 40, 0, 1LL << 40)));
  REFUSES("rank from 0 to 64, got 65", ir_param(g, TPU_F32, 65, (int64_t[65]){0}));
  REFUSES("rank from 0 to 64, got -1", ir_param(g, TPU_F32, -1, NULL));
  REFUSES("one of 12 parameters, got 12", ir_output(g, s, 12));
  REFUSES("sizes in bytes differ", ir_output(g, s, 0));
  REFUSES("already reused by result 0", ir_output(g, f23, 0); ir_output(g, f23, 0));
  REFUSES("operand 0 is NULL", ir_output(g, NULL, -1));
  ACCEPTS(int64_t d[64]; for (int i = 0; i < 64; i++) d[i] = 1; val v = ir_param(g, TPU_F32, 64, d);
          CHECK_INT(ir_transpose(g, v, (int[64]){63, 1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                                 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31,
                                                 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47,
                                                 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 0})
                        ->ndim,
                    64));
}

TEST(elementwise) {
  REFUSES("stablehlo.add (C1): expected operands of equal dtype and shape, got float32[2, 3] and float32[3]",
          ir_binary(g, IR_ADD, f23, f3));
  REFUSES("float32[2, 3] and int32[2, 3]", ir_binary(g, IR_ADD, f23, i23));
  REFUSES("stablehlo.add takes 2 operands, got 1", ir_unary(g, IR_ADD, f3));
  REFUSES("takes 0 operands", ir_unary(g, (ir_opcode)-1, f3));
  REFUSES("expected a floating-point or complex dtype, got int32", ir_unary(g, IR_SQRT, i2));
  REFUSES("expected a bool or integer dtype, got float32", ir_binary(g, IR_AND, f3, f3));
  REFUSES("expected a signed integer, floating-point or complex dtype, got uint64", ir_unary(g, IR_ABS, u64_2));
  REFUSES("expected a bool, integer or floating-point dtype, got complex64", ir_binary(g, IR_MAX, c2, c2));
  REFUSES("expected float32 or float64, got float8_e5m2", ir_binary(g, IR_COMPLEX, f8, f8));
  REFUSES("complex numbers have no order", ir_compare(g, IR_LT, c2, c2));
  REFUSES("is no direction", ir_compare(g, (ir_cmp)6, f3, f3));
  REFUSES("TOTALORDER is for floating-point", ir_compare_total(g, IR_LT, i2, i2));
  REFUSES("expected a bool predicate, got int32[2]", ir_select(g, i2, c2, c2));
  REFUSES("scalar predicate or one of shape [3]", ir_select(g, b2, f3, f3));
  REFUSES("stablehlo.clamp (C3)", ir_clamp(g, i0, f3, i0));
  REFUSES("stablehlo.clamp (C1, C2)", ir_clamp(g, f1, f3, s));
  REFUSES("exponent_bits >= 1", ir_reduce_precision(g, f3, 0, 3));
  ACCEPTS(CHECK_INT(ir_unary(g, IR_ABS, c2)->dtype, TPU_F32); CHECK_INT(ir_unary(g, IR_IS_FINITE, f3)->dtype, TPU_BOOL);
          CHECK_INT(ir_binary(g, IR_COMPLEX, f3, f3)->dtype, TPU_C64));
}

TEST(constants) {
  REFUSES("got bool", ir_iota(g, TPU_BOOL, DIMS(2), 0));
  REFUSES("0 <= iota_dimension < rank 1, got 1", ir_iota(g, TPU_I32, DIMS(2), 1));
  REFUSES("complex64 has no lowest value", ir_const_min(g, TPU_C64, SCALAR));
  REFUSES("sizes >= 0", ir_const_f(g, TPU_F32, 1, DIMS(-2)));
  REFUSES("no dtype", ir_const_max(g, (tpu_dtype)8, SCALAR));
  REFUSES("no dtype", ir_const_ints(g, (tpu_dtype)200, I64(1), DIMS(1)));
}

TEST(shapes) {
  REFUSES("stablehlo.reshape (C2): expected the number of elements of float32[2, 3], got shape [4]",
          ir_reshape(g, f23, DIMS(4)));
  REFUSES("stablehlo.reshape: expected sizes >= 0, got [-2, -3]", ir_reshape(g, f23, DIMS(-2, -3)));
  REFUSES("(C5): expected dim 0 of float32[3] to be 1 or 2", ir_broadcast(g, f3, DIMS(2), INTS(0)));
  REFUSES("(C3)", ir_broadcast(g, f3, DIMS(3), INTS(1)));
  REFUSES("dim 0 is named twice", ir_broadcast(g, f23, DIMS(2, 3), INTS(0, 0)));
  REFUSES("expected a scalar, got float32[3]", ir_splat(g, f3, DIMS(3)));
  REFUSES("expected a permutation of 2 dims, got 0 at place 1", ir_transpose(g, f23, INTS(0, 0)));
  REFUSES("(C2, C3)", ir_reverse(g, f23, 2, INTS(1, 1)));
  REFUSES("(C3): expected 0 <= start <= limit <= 3 in dim 0, got 1 and 4", ir_slice(g, f3, I64(1), I64(4), NULL));
  REFUSES("stride > 0 in dim 0, got 0", ir_slice(g, f3, I64(0), I64(3), I64(0)));
  REFUSES("scalars of one integer dtype, got float32[]", ir_dynamic_slice(g, f3, &s, I64(1)));
  REFUSES("0 <= size <= 3 in dim 0, got 4", ir_dynamic_slice(g, f3, &i0, I64(4)));
  REFUSES("expected an update of dtype float32, got int32", ir_dynamic_update_slice(g, f3, i2, &i0));
  REFUSES("update float32[3] is larger than float32[1]", ir_dynamic_update_slice(g, f1, f3, &i0));
  REFUSES("expected a scalar of dtype float32, got int32[]", ir_pad(g, f3, i0, I64(0), I64(0), NULL));
  REFUSES("does not fit dim 0", ir_pad(g, f3, s, I64(-2), I64(-2), NULL));
  REFUSES("does not fit dim 0", ir_pad(g, f3, s, I64(INT64_MAX), I64(INT64_MAX), NULL));
  REFUSES("interior padding >= 0", ir_pad(g, f3, s, I64(1), I64(0), I64(-1)));
  REFUSES("does not fit dim 0", ir_pad(g, f3, s, I64(0), I64(0), I64(INT64_MAX)));
  REFUSES("at least one operand", ir_concat(g, NULL, 0, 0));
  REFUSES("operand 1 is int32[2], expected float32[3] but for dim 0", ir_concat(g, (val[]){f3, i2}, 2, 0));
  REFUSES("0 <= dimension < 1, got 1", ir_concat(g, (val[]){f3, f1}, 2, 1));
  REFUSES("both or neither complex", ir_bitcast(g, c2, TPU_F32));
  REFUSES("bool has one bit", ir_bitcast(g, b2, TPU_U8));
  REFUSES("expected a last dim of size 2 to make float64", ir_bitcast(g, f3, TPU_F64));
  REFUSES("is no dtype", ir_convert(g, f3, (tpu_dtype)12));
  ACCEPTS(CHECK(ir_reshape(g, f3, DIMS(3)) == f3); CHECK(ir_convert(g, f3, TPU_F32) == f3);
          CHECK(ir_transpose(g, f23, INTS(0, 1)) == f23); CHECK(ir_broadcast(g, f23, DIMS(2, 3), INTS(0, 1)) == f23);
          CHECK(ir_slice(g, f3, I64(0), I64(3), NULL) == f3); CHECK(ir_concat(g, &f3, 1, 0) == f3);
          CHECK(ir_reverse(g, f3, 0, NULL) == f3); CHECK(ir_splat(g, s, SCALAR) == s));
}

TEST(reductions) {
  REFUSES("scalar init value of dtype float32, got int32[]", ir_reduce(g, IR_ADD, f3, i0, 1, INTS(0)));
  REFUSES("different dims of float32[3], got 1 at place 0", ir_reduce(g, IR_ADD, f3, s, 1, INTS(1)));
  REFUSES("got 0 at place 1", ir_reduce(g, IR_ADD, f23, s, 2, INTS(0, 0)));
  REFUSES("takes 1 operands, got 2", ir_reduce(g, IR_EXP, f3, s, 1, INTS(0)));
  REFUSES("at least one input, got 0", val a[1]; ir_reduce_begin(g, NULL, NULL, 0, 0, NULL, a));
  REFUSES("inputs of one shape", val a[4]; ir_reduce_begin(g, (val[]){f23, f3}, (val[]){s, s}, 2, 1, INTS(0), a));
  REFUSES("expected body result 0 to be a scalar of dtype float32, got bool[]", val a[2]; val r;
          ir_reduce_begin(g, &f3, &s, 1, 1, INTS(0), a); r = ir_compare(g, IR_LT, a[0], a[1]);
          ir_reduce_end(g, &r, &r));
  REFUSES("expected reduce to be open, got nothing", val r; ir_reduce_end(g, &s, &r));
  REFUSES("window size, stride and dilations > 0 in dim 0, got 0",
          ir_reduce_window(g, IR_ADD, f3, s, &(ir_window){.size = I64(0)}));
  REFUSES("too large", ir_reduce_window(g, IR_ADD, f3, s, &(ir_window){.base_dilation = I64(INT64_MAX)}));
  REFUSES("expected a source of shape [2], got float32[3]",
          ir_select_and_scatter(g, f3, f3, s, IR_GE, false, &(ir_window){.size = I64(2)}));
  REFUSES("select IR_GE or IR_LE", ir_select_and_scatter(g, f3, f3, s, IR_LT, false, &(ir_window){.size = I64(1)}));
  REFUSES("no dilation", ir_select_and_scatter(g, f3, f3, s, IR_GE, false, &(ir_window){.window_dilation = I64(2)}));
  ACCEPTS(CHECK_INT(ir_reduce_window(g, IR_ADD, f3, s, &(ir_window){.size = I64(4)})->dims[0], 0));
}

TEST(products) {
  REFUSES("operands of one dtype", ir_dot(g, f3, i2, 0, NULL, NULL, 0, NULL, NULL, TPU_F32, 0));
  REFUSES("a product of float32 cannot have dtype int32",
          ir_dot(g, f3, f3, 0, NULL, NULL, 1, INTS(0), INTS(0), TPU_I32, 0));
  REFUSES("(C10): contracting dims 0 of float32[2, 3] and 0 of float32[3] differ",
          ir_dot(g, f23, f3, 0, NULL, NULL, 1, INTS(0), INTS(0), TPU_F32, 0));
  REFUSES("(C9): batching dims", ir_dot(g, f23, f3, 1, INTS(0), INTS(0), 0, NULL, NULL, TPU_F32, 0));
  REFUSES("lhs contracting dims, got 0", ir_dot(g, f3, f3, 1, INTS(0), INTS(0), 1, INTS(0), INTS(0), TPU_F32, 0));
  REFUSES("of one rank >= 2", ir_conv(g, f3, f3, &nchw, NULL, NULL, NULL, NULL, NULL, NULL, 1, 1, TPU_F32, 0));
#define X4 ir_param(g, TPU_F32, DIMS(1, 2, 3, 3))
#define CONV(x, w, d, stride, fg, bg) ir_conv(g, x, w, d, stride, NULL, NULL, NULL, NULL, NULL, fg, bg, TPU_F32, 0)
  REFUSES("1 groups of 1 features", CONV(X4, ir_param(g, TPU_F32, DIMS(2, 1, 1, 1)), &nchw, NULL, 1, 1));
  REFUSES("groups > 0, one of them 1, got 2 and 2",
          CONV(X4, ir_param(g, TPU_F32, DIMS(2, 1, 1, 1)), &nchw, NULL, 2, 2));
  REFUSES("do not divide", CONV(X4, ir_param(g, TPU_F32, DIMS(3, 1, 1, 1)), &nchw, NULL, 2, 1));
  REFUSES("stride and dilations > 0 in spatial dim 1",
          CONV(X4, ir_param(g, TPU_F32, DIMS(2, 2, 1, 1)), &nchw, I64(1, 0), 1, 1));
  ir_conv_dims twice = nchw;
  twice.feature = 0;
  REFUSES("input dims are no permutation", CONV(X4, X4, &twice, NULL, 1, 1));
}

TEST(indexing) {
  const ir_gather_dims row = {.noffset = 1,
                              .offset_dims = INTS(1),
                              .ncollapsed = 1,
                              .collapsed_dims = INTS(0),
                              .nstart = 1,
                              .start_index_map = INTS(0),
                              .index_vector_dim = 1};
  ir_gather_dims d = row;
  ACCEPTS(val r = ir_gather(g, f23, i2, &row, I64(1, 3), false); CHECK_INT(r->dims[0], 2); CHECK_INT(r->dims[1], 3));
  REFUSES("integer indices, got float32[3]", ir_gather(g, f23, f3, &row, I64(1, 3), false));
  REFUSES("0 <= slice size <= 3 in dim 1, got 4", ir_gather(g, f23, i2, &row, I64(1, 4), false));
  REFUSES("slice size 1 in dropped dim 0, got 2", ir_gather(g, f23, i2, &row, I64(2, 3), false));
  d.index_vector_dim = 0;
  REFUSES("index vectors of length 1 along dim 0, got indices int32[2]", ir_gather(g, f23, i2, &d, I64(1, 3), false));
  d.index_vector_dim = 3;
  REFUSES("index_vector_dim in [0, 1], got 3", ir_gather(g, f23, i2, &d, I64(1, 3), false));
  d = row, d.start_index_map = INTS(2);
  REFUSES("start_index_map (C14, C15)", ir_gather(g, f23, i2, &d, I64(1, 3), false));
  d = row, d.offset_dims = INTS(2);
  REFUSES("offset_dims (C4, C5)", ir_gather(g, f23, i2, &d, I64(1, 3), false));
  d = row, d.noffset = 0;
  REFUSES("expected 1 offset_dims, got 0", ir_gather(g, f23, i2, &d, I64(1, 3), false));
  d = row, d.ncollapsed = 0, d.nbatching = 1, d.operand_batching = INTS(1), d.indices_batching = INTS(0);
  REFUSES("batching dims 1 of float32[2, 3] and 0 of indices int32[2] do not fit",
          ir_gather(g, f23, i2, &d, I64(1, 1), false));

  const ir_scatter_dims put = {.ninserted = 1,
                               .inserted_window_dims = INTS(0),
                               .nscatter = 1,
                               .scatter_dims_to_operand = INTS(0),
                               .index_vector_dim = 1};
  REFUSES("updates of rank 1", ir_scatter(g, f3, i2, f23, &put, -1, false, false));
  REFUSES("does not fit indices", ir_scatter(g, f3, i2, f3, &put, -1, false, false));
  REFUSES("updates of dtype float32", ir_scatter(g, f3, i2, i2, &put, -1, false, false));
  REFUSES("expected 2 window, inserted and batching dims", ir_scatter(g, f23, i2, f3, &put, -1, false, false));
  REFUSES("a body or -1", ir_scatter(g, f3, i2, f3, &put, -2, false, false));
  REFUSES("a dim of float32[3], got 1", val a[2]; ir_sort_begin(g, &f3, 1, 1, true, a));
  REFUSES("expected the comparator to compare", val a[2]; ir_sort_begin(g, &b2, 1, 0, true, a);
          ir_sort_end(g, a[0], a));
  REFUSES("a bool scalar, got float32[]", val a[2]; ir_sort_begin(g, &f3, 1, 0, true, a); ir_sort_end(g, a[0], a));
}

TEST(control_flow) {
  REFUSES("condition to be a bool scalar", val a[1]; ir_while_begin(g, &s, 1, a); ir_while_body(g, a[0], a));
  REFUSES("expected body result 0 to be float32[], got int32[]", val a[1]; ir_while_begin(g, &s, 1, a);
          ir_while_body(g, b0, a); ir_while_end(g, &i0, a));
  REFUSES("expected while to be open, got nothing", val a[1]; ir_while_body(g, b0, a));
  REFUSES("expected if to be open, got while", val a[1]; ir_while_begin(g, &s, 1, a); ir_if_else(g, a, 1));
  REFUSES("expected a bool scalar, got bool[2]", ir_if_begin(g, b2));
  REFUSES("true branch gives 1 results, the false branch 2", val r[2]; ir_if_begin(g, b0); ir_if_else(g, &s, 1);
          ir_if_end(g, (val[]){s, s}, 2, r));
  REFUSES("result 0 is float32[] in the true branch, int32[] in the false branch", val r[1]; ir_if_begin(g, b0);
          ir_if_else(g, &s, 1); ir_if_end(g, &i0, 1, r));
  /* A value made inside of a branch does not exist outside, nor in the other branch. */
  REFUSES("belongs to a region that is closed", ir_if_begin(g, b0); val x = ir_unary(g, IR_NEG, s);
          ir_if_else(g, &x, 1); ir_if_end(g, &x, 1, &x));
  REFUSES("belongs to a region that is closed", val a[1]; ir_while_begin(g, &s, 1, a); val old = a[0];
          ir_while_body(g, b0, a); ir_unary(g, IR_NEG, old));
  REFUSES("no open region, but if is being built", ir_if_begin(g, b0); ir_output(g, s, -1));
  REFUSES("nested more than 64 deep", for (int i = 0; i < 65; i++) ir_if_begin(g, b0));
  ir_graph *g = fresh();
  ir_if_begin(g, b0);
  buf b;
  buf_init(&b);
  CHECK_ERR(ir_print(g, &b), TPU_ERR_RUNTIME, "open region (if)");
  ir_free(g);
}

TEST(the_rest) {
  val a, b;
  REFUSES("uint64[2] or uint64[3], got int32[2]", ir_rng_philox(g, i2, TPU_U32, DIMS(2), &a, &b));
  REFUSES("uint32 or uint64, got float32", ir_rng_philox(g, u64_2, TPU_F32, DIMS(2), &a, &b));
  REFUSES("expected float32 or float64 for RFFT, got complex64", ir_fft(g, c2, IR_RFFT, 1, I64(2)));
  REFUSES("expected size 3 in dim 0 for length 4, got complex64[2]", ir_fft(g, c2, IR_IRFFT, 1, I64(4)));
  REFUSES("1 to 3 lengths", ir_fft(g, c2, IR_FFT, 2, I64(2, 2)));
  REFUSES("square matrices, got float32[2, 3]", ir_cholesky(g, f23, true));
  REFUSES("square matrices and a right side that fits", ir_triangular_solve(g, f23, f23, true, true, false, 0));
  REFUSES("transpose 0, 1 or 2", ir_triangular_solve(g, f23, f23, true, true, false, 3));
  REFUSES("quotes or control characters", ir_custom_call(g, "a\"b", NULL, &s, 1, 0, NULL, NULL, NULL, NULL));
}

/* The first error stays; what comes later is harmless and gives a poison value. */
TEST(errors_stick) {
  int64_t live = mem_live();
  ir_graph *g = fresh();
  val bad = ir_binary(g, IR_ADD, f23, f3);
  CHECK(bad && bad->ndim == 0);
  for (kind *k = kind_first; k; k = k->next) k->build(g);
  CHECK(ir_reshape(g, f3, DIMS(7)) == bad);
  CHECK(ir_fail(g, TPU_ERR_VALUE, "another") == bad);
  buf b;
  buf_init(&b);
  CHECK_ERR(ir_print(g, &b), TPU_ERR_RUNTIME, "stablehlo.add (C1)");
  CHECK(!ir_take_error(g));
  CHECK(ir_failed(g));
  CHECK_ERR(ir_print(g, &b), TPU_ERR_RUNTIME, "was taken before");
  CHECK_INT(b.len, 0);
  ir_free(g);
  g = ir_new();
  ir_fail(g, TPU_ERR_INDEX, "index %d", 7);
  CHECK_ERR(ir_take_error(g), TPU_ERR_INDEX, "index 7");
  ir_free(g);
  CHECK_INT(mem_live(), live);
}

/* After an error each begin and end fills what it promises. */
TEST(regions_after_an_error) {
  for (int when = 0; when < 3; when++) {
    ir_graph *g = fresh();
    val xs[3] = {f3, f3, f3}, inits[3] = {s, s, s}, a[6] = {NULL}, r[3] = {NULL}, poison = NULL;
    if (when == 0) poison = ir_fail(g, TPU_ERR_RUNTIME, "before");
    ir_reduce_begin(g, xs, inits, 3, 1, INTS(0), a);
    if (when == 1) poison = ir_fail(g, TPU_ERR_RUNTIME, "inside");
    val c[2] = {NULL}, w[2] = {NULL}, so[2] = {NULL}, f[1] = {NULL}, p[4] = {NULL};
    ir_while_begin(g, (val[]){a[0], a[1]}, 2, c);
    if (when == 2) poison = ir_fail(g, TPU_ERR_RUNTIME, "deep inside");
    CHECK(c[0] && c[1]);
    memset(c, 0, sizeof c);
    ir_while_body(g, b0, c);
    CHECK(c[0] == poison && c[1] == poison);
    ir_sort_begin(g, xs, 2, 0, true, p);
    CHECK(p[0] == poison && p[3] == poison);
    ir_sort_end(g, p[0], so);
    CHECK(so[0] == poison && so[1] == poison);
    ir_if_begin(g, b0);
    ir_if_else(g, c, 1);
    ir_if_end(g, c, 1, f);
    CHECK(f[0] == poison);
    ir_while_end(g, c, w);
    CHECK(w[0] == poison && w[1] == poison);
    ir_reduce_end(g, a, r);
    CHECK(r[0] == poison && r[2] == poison);
    memset(p, 0, sizeof p);
    ir_reduce_window_begin(g, xs, inits, 2, &(ir_window){.size = I64(1)}, p);
    ir_reduce_window_end(g, p, w);
    CHECK(p[3] == poison && w[1] == poison);
    tpu_err_free(ir_take_error(g));
    ir_free(g);
  }
}

/* A value of one graph is not one of another. */
TEST(graphs_do_not_mix) {
  ir_graph *h = ir_new();
  val x = ir_param(h, TPU_F32, DIMS(3)), y = ir_unary(h, IR_EXP, x);
  REFUSES("belongs to a region that is closed, or to another graph", ir_unary(g, IR_EXP, x));
  REFUSES("another graph", ir_unary(g, IR_EXP, y));
  ir_free(h);
}

T_MAIN()
