/* Kernels (mosaic.h), and programs of one device inside sharded ones: their text, what is refused, memory that runs
 * out. */
#include "ir/mosaic.h"

#include "ir_t.h"

static void at_block(mosaic *m, const mval *grid, const void *ctx, mval *out) {
  (void)ctx;
  out[0] = grid[0];
  out[1] = mosaic_int(m, 0);
}

static const int64_t block[2] = {8, 128};

/* y = 2 ^ x, a block of rows at a time; the first one is stored as it is. */
static val powers(ir_graph *g, val x) {
  const int64_t grid[1] = {x->dims[0] / block[0]};
  mosaic *m = mosaic_begin(g, "powers", 1, grid, 1);
  val out = x;
  if (!m) return out;
  mval in = mosaic_window(m, MOSAIC_VMEM, TPU_F32, 2, block, at_block, NULL);
  mval to = mosaic_window(m, MOSAIC_VMEM, TPU_F32, 2, block, at_block, NULL);
  mval zero = mosaic_index(m, 0), at[2] = {zero, zero}, v = mosaic_load(m, in, at, 2, block);
  mosaic_store(m, mosaic_exp2(m, v), to, at);
  mosaic_if(m, mosaic_compare(m, IR_EQ, mosaic_grid(m)[0], mosaic_int(m, 0)));
  mosaic_store(m, v, to, at);
  mosaic_endif(m);
  mosaic_end(m, &(mosaic_cost){1, 2, 1 << 20}, &x, 1, 1, (const tpu_dtype[]){TPU_F32}, INTS(2),
             (const int64_t *const[]){x->dims}, &out);
  return out;
}

static void program(ir_graph *g) { ir_output(g, powers(g, ir_param(g, TPU_F32, DIMS(32, 128))), -1); }

static char *text_of_program(void (*build)(ir_graph *)) {
  ir_graph *g = ir_new();
  build(g);
  buf b;
  buf_init(&b);
  CHECK_OK(ir_print(g, &b));
  ir_free(g);
  return b.data;
}

TEST(a_kernel_is_a_custom_call) {
  char *text = text_of_program(program);
  CHECK(strstr(
      text,
      "call_target_name = \"tpu_custom_call\", backend_config = \"{\\22custom_call_config\\22: {\\22body\\22: "
      "\\22bW9kdWxlIGF0dHJpYnV0ZXMge3N0YWJsZV9tb3NhaWMudmVyc2lvbiA9IDExIDogaTY0fSB7C")); /* "module attributes" */
  CHECK(
      strstr(text,
             "\\22cost_estimate\\22: {\\22flops\\22: 1, \\22transcendentals\\22: 2, \\22bytes_accessed\\22: 32768}}, "
             "\\22scoped_memory_configs\\22: [{\\22memory_space\\22: 1, \\22offset\\22: 0, \\22size\\22: 1048576}]}\", "
             "kernel_name = \"powers\", operand_layouts = [dense<[1, 0]> : tensor<2xindex>], "
             "result_layouts = [dense<[1, 0]> : tensor<2xindex>]} : (tensor<32x128xf32>) -> tensor<32x128xf32>"));
  mem_free(text);
}

static const char *const names[] = {"data", "model"};

static void sharded(ir_graph *g) {
  ir_set_mesh(g, 2, names, I64(2, 4));
  val x = ir_param(g, TPU_F32, DIMS(64, 512)), part, out;
  const int64_t *places[1] = {I64(0, 1)};
  ir_manual_begin(g, &x, 1, places, &part);
  val y = powers(g, part);
  ir_manual_end(g, &y, 1, places, &out);
  ir_output(g, out, -1);
}

TEST(one_device_inside_a_sharded_program) {
  char *text = text_of_program(sharded);
  CHECK(strstr(text, "\"sdy.manual_computation\"(%arg0) ({\n    ^bb0(%1: tensor<32x128xf32>):"));
  CHECK(
      strstr(text,
             "\"sdy.return\"(%2) : (tensor<32x128xf32>) -> ()\n    }) {in_shardings = "
             "#sdy.sharding_per_value<[<@mesh, [{\"data\"}, {\"model\"}]>]>, manual_axes = #sdy<manual_axes{\"data\", "
             "\"model\"}>, out_shardings = #sdy.sharding_per_value<[<@mesh, [{\"data\"}, {\"model\"}]>]>} : "
             "(tensor<64x512xf32>) -> tensor<64x512xf32>"));
  mem_free(text);
}

/* The place of what a value is made of, in the value's own dims. */
TEST(places_are_found_through_what_moves_no_dims) {
  ir_graph *g = ir_new();
  ir_set_mesh(g, 2, names, I64(2, 4));
  val x = ir_param(g, TPU_F32, DIMS(4, 16, 32)), w = ir_param(g, TPU_F32, DIMS(4, 16, 32)), s;
  int64_t place[2];
  CHECK(!ir_find_place(g, x, place)); /* nobody said */
  ir_place_param(g, w, I64(0, -1));
  s = ir_constrain(g, x, I64(0, 2));
  val heads = ir_transpose(g, ir_reshape(g, s, DIMS(4, 16, 8, 4)), INTS(0, 2, 1, 3)); /* [4, 8, 16, 4] */
  val y = ir_binary(g, IR_MUL, ir_unary(g, IR_NEG, heads), ir_const_f(g, TPU_F32, 2, DIMS(4, 8, 16, 4)));
  CHECK(ir_find_place(g, y, place) && place[0] == 0 && place[1] == 1);
  val half = ir_slice(g, y, I64(0, 0, 0, 0), I64(4, 4, 16, 4), I64(1, 1, 1, 1)); /* the heads are no longer all there */
  CHECK(ir_find_place(g, half, place) && place[0] == 0 && place[1] == -1);
  CHECK(ir_find_place(g, ir_reshape(g, s, DIMS(4, 512)), place) && place[0] == 0 && place[1] == -1);
  CHECK(ir_find_place(g, w, place) && place[0] == 0 && place[1] == -1);
  ir_free(g);
}

/* A product: what the left operand divides, and of the other axes what the right one does. */
TEST(places_are_found_through_products) {
  ir_graph *g = ir_new();
  ir_set_mesh(g, 2, names, I64(2, 4));
  val x = ir_constrain(g, ir_param(g, TPU_F32, DIMS(4, 16, 32)), I64(0, -1));
  val w = ir_param(g, TPU_F32, DIMS(64, 32)), u = ir_param(g, TPU_F32, DIMS(4, 32, 8));
  ir_place_param(g, w, I64(0, 0));
  ir_place_param(g, u, I64(0, 2));
  int64_t place[2];
  int two = 2, one = 1, zero = 0;
  val y = ir_dot(g, x, w, 0, NULL, NULL, 1, &two, &one, TPU_F32, 0); /* [4, 16, 64] */
  CHECK(ir_find_place(g, y, place) && place[0] == 0 && place[1] == 2);
  val z = ir_dot(g, x, u, 1, &zero, &zero, 1, &two, &one, TPU_F32, 0); /* [4, 16, 8] */
  CHECK(ir_find_place(g, z, place) && place[0] == 0 && place[1] == 2);
  val t = ir_dot(g, w, x, 0, NULL, NULL, 1, &one, &two, TPU_F32, 0); /* [64, 4, 16] */
  CHECK(ir_find_place(g, t, place) && place[0] == 0 && place[1] == 0);
  ir_free(g);
}

/* Heads of a product: a barrier stands before the reshape that divides it, in a program with a kernel. */
static int barriers(bool kernel, bool part) {
  ir_graph *g = ir_new();
  val x = ir_param(g, TPU_BF16, DIMS(32, 128)), w = ir_param(g, TPU_BF16, DIMS(256, 128));
  int one = 1;
  val y = ir_convert(g, ir_dot(g, x, w, 0, NULL, NULL, 1, &one, &one, TPU_BF16, 0), TPU_F32);
  if (part) y = ir_slice(g, y, I64(0, 0), I64(32, 128), I64(1, 1));
  ir_output(g, ir_reshape(g, y, DIMS(1, 32, 2, part ? 64 : 128)), -1);
  ir_output(g, ir_reshape(g, y, DIMS(2, 16, part ? 128 : 256)), -1); /* divides no heads */
  if (kernel) ir_output(g, powers(g, ir_param(g, TPU_F32, DIMS(32, 128))), -1);
  buf b;
  buf_init(&b);
  CHECK_OK(ir_print(g, &b));
  ir_free(g);
  int n = 0;
  for (const char *p = b.data; (p = strstr(p, "optimization_barrier")) != NULL; p++) n++;
  mem_free(b.data);
  return n;
}

TEST(products_stand_apart_from_their_heads) {
  CHECK(barriers(true, false) == 1);
  CHECK(barriers(true, true) == 1);
  CHECK(barriers(false, false) == 0);
}

#define REFUSED(kind, words, ...)             \
  do {                                        \
    ir_graph *g = ir_new();                   \
    __VA_ARGS__;                              \
    CHECK_ERR(ir_take_error(g), kind, words); \
    ir_free(g);                               \
  } while (0)

static void misuse(ir_graph *g, int what) {
  val x = ir_param(g, TPU_F32, DIMS(32, 128)), out;
  mosaic *m = mosaic_begin(g, "k", 1, I64(4), 1);
  mval in = mosaic_window(m, MOSAIC_VMEM, TPU_F32, 2, block, at_block, NULL), zero = mosaic_index(m, 0),
       at[2] = {zero, zero};
  mval v = mosaic_load(m, in, at, 2, block), one = mosaic_int(m, 1);
  if (what == 0) mosaic_binary(m, MOSAIC_ADD, v, one);
  if (what == 1) mosaic_binary(m, MOSAIC_MAX, one, one);
  if (what == 2) mosaic_matmul(m, v, 1, v, 0);
  if (what == 3) mosaic_window(m, MOSAIC_VMEM, TPU_F32, 2, block, at_block, NULL);
  if (what == 4) mosaic_store(m, one, in, at);
  if (what == 5) mosaic_load(m, in, at, 0, NULL);
  if (what == 6) mosaic_broadcast(m, v, 5, I64(1, 1, 1, 8, 128));
  mosaic_end(m, &(mosaic_cost){0}, &x, 1, 1, (const tpu_dtype[]){TPU_F32}, INTS(2), (const int64_t *const[]){x->dims},
             &out);
}

TEST(misuse_is_an_error) {
  static const char *const words[] = {"operands of one type",
                                      "operands of one type",
                                      "equal inner sizes",
                                      "windows, then scratch memory, then operations",
                                      "a vector of the memory's rank",
                                      "or a scalar of SMEM",
                                      "expected at most 4 dims, got 5"};
  for (int i = 0; i < 7; i++) REFUSED(TPU_ERR_RUNTIME, words[i], misuse(g, i));
  REFUSED(TPU_ERR_RUNTIME, "expected a grid of 1 to 5 dims, got 6",
          CHECK(!mosaic_begin(g, "k", 6, I64(1, 1, 1, 1, 1, 1), 1)));
  val x, y;
  REFUSED(TPU_ERR_RUNTIME, "without a mesh", x = ir_param(g, TPU_F32, DIMS(4));
          ir_manual_begin(g, &x, 1, (const int64_t *const[]){I64(0)}, &y);
          ir_manual_end(g, &y, 1, (const int64_t *const[]){I64(0)}, &x));
  REFUSED(TPU_ERR_VALUE, "cannot be divided into 4 equal parts", ir_set_mesh(g, 2, names, I64(2, 4));
          x = ir_param(g, TPU_F32, DIMS(6)); ir_manual_begin(g, &x, 1, (const int64_t *const[]){I64(-1, 0)}, &y);
          ir_manual_end(g, &y, 1, (const int64_t *const[]){I64(-1, 0)}, &x));
}

TEST(every_allocation_may_fail) {
  void (*const builds[])(ir_graph *) = {program, sharded};
  for (int k = 0; k < 2; k++)
    for (int sticky = 0; sticky < 2; sticky++) {
      const int64_t live = mem_live();
      bool done = false;
      int n = 0;
      while (!done && ++n < 500) {
        mem_fault_at(n, sticky);
        ir_graph *g = ir_new();
        buf b;
        buf_init(&b);
        if (g) builds[k](g);
        tpu_err *e = g ? ir_print(g, &b) : NULL;
        mem_fault_at(0, false);
        done = g && !e;
        if (e) CHECK_INT(tpu_err_get_kind(e), TPU_ERR_OOM);
        tpu_err_free(e);
        buf_free(&b);
        if (g) ir_free(g);
        if (!CHECK_INT(mem_live(), live)) return;
      }
      CHECK(done && n > 3);
    }
}

T_MAIN()
