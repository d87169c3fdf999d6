/* The text of every kind of operation (ir_golden.h), and what makes two texts equal. With the argument "golden" the
 * program prints ir_golden.h anew; look at the difference before you keep it. */
#include "ir_t.h"

static const char *const golden[][2] = {
#include "ir_golden.h"
};

enum { GOLDEN = sizeof golden / sizeof *golden };

TEST(every_kind_has_its_text) {
  int n = 0;
  for (kind *k = kind_first; k; k = k->next) {
    const char *want = NULL;
    for (int i = 0; i < GOLDEN; i++)
      if (!strcmp(golden[i][0], k->name)) want = golden[i][1];
    ir_graph *g = ir_new();
    k->build(g);
    char *have = text_of(g);
    CHECK_STR(have, want);
    mem_free(have);
    ir_free(g);
    n++;
  }
  CHECK_INT(n, GOLDEN);
}

/* Only a graph that was told where it is built says so. */
TEST(locations_are_written_when_they_were_given) {
  char *plain, *located;
  for (int k = 0; k < 2; k++) {
    ir_graph *g = ir_new();
    val x = ir_param(g, TPU_F32, DIMS(4));
    if (k) ir_set_location(g, "aten::exp", "/a \"b\"/c.py:12");
    x = ir_unary(g, IR_EXP, x);
    if (k) ir_set_location(g, "aten::neg", "");
    ir_output(g, ir_unary(g, IR_NEG, x), -1);
    *(k ? &located : &plain) = text_of(g);
    ir_free(g);
  }
  CHECK(!strstr(plain, "loc("));
  CHECK(strstr(located, "-> tensor<4xf32> loc(\"aten::exp\"(\"/a \\22b\\22/c.py\":12:0))\n"));
  CHECK(strstr(located, "-> tensor<4xf32> loc(\"aten::neg\")\n"));
  mem_free(plain);
  mem_free(located);
}

/* A mesh, and where parameters, results and values in between are on it. */
TEST(places_on_a_mesh_are_written) {
  ir_graph *g = ir_new();
  ir_set_mesh(g, 2, (const char *const[]){"data", "a \"b\""}, I64(2, 4));
  CHECK_INT(ir_mesh_axes(g), 2);
  val x = ir_param(g, TPU_F32, DIMS(4, 8)), y = ir_param(g, TPU_F32, DIMS(8));
  ir_place_param(g, x, I64(0, 1));
  ir_place_param(g, y, I64(0, 0));
  val z = ir_constrain(g, ir_unary(g, IR_NEG, x), I64(-1, 0));
  ir_output(g, z, 0);
  ir_output(g, y, -1);
  ir_place_output(g, 0, I64(0, 1));
  char *text = text_of(g);
  CHECK_STR(
      text,
      "module @tpu attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {\n"
      "  sdy.mesh @mesh = <[\"data\"=2, \"a \\22b\\22\"=4]>\n"
      "  func.func public @main(%arg0: tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{\"data\"}, {\"a "
      "\\22b\\22\"}]>, tf.aliasing_output = 0 : i32}, %arg1: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, "
      "[{\"data\", \"a \\22b\\22\"}]>}) -> (tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{\"data\"}, {\"a "
      "\\22b\\22\"}]>}, tensor<8xf32>) {\n"
      "    %0 = \"stablehlo.negate\"(%arg0) : (tensor<4x8xf32>) -> tensor<4x8xf32>\n"
      "    %1 = \"sdy.sharding_constraint\"(%0) {sharding = #sdy.sharding<@mesh, [{\"a \\22b\\22\"}, {}]>} : "
      "(tensor<4x8xf32>) -> tensor<4x8xf32>\n"
      "    return %1, %arg1 : tensor<4x8xf32>, tensor<8xf32>\n"
      "  }\n"
      "}\n");
  mem_free(text);
  ir_free(g);
}

/* Built twice, or with other operations in between that nobody needs: the same bytes. */
TEST(equal_graphs_have_equal_text) {
  char *texts[2];
  for (int dead = 0; dead < 2; dead++) {
    ir_graph *g = ir_new();
    val x = ir_param(g, TPU_F32, DIMS(4)), r[2];
    if (dead) {
      ir_unary(g, IR_EXP, x);
      ir_rng_philox(g, ir_const_i(g, TPU_U64, 3, DIMS(2)), TPU_U32, DIMS(2), &r[0], &r[1]);
    }
    val y = ir_binary(g, IR_ADD, x, ir_const_f(g, TPU_F32, 1, DIMS(4)));
    if (dead) {
      ir_while_begin(g, &y, 1, r);
      ir_while_body(g, ir_const_i(g, TPU_BOOL, 0, SCALAR), r);
      ir_while_end(g, r, r);
      ir_reduce(g, IR_ADD, y, ir_const_f(g, TPU_F32, 0, SCALAR), 1, INTS(0));
    }
    ir_if_begin(g, ir_const_i(g, TPU_BOOL, 1, SCALAR));
    if (dead) ir_unary(g, IR_COS, y);
    val z = ir_unary(g, IR_NEG, y);
    ir_if_else(g, &z, 1);
    if (dead) ir_unary(g, IR_COS, x);
    ir_if_end(g, &y, 1, &z);
    ir_output(g, z, -1);
    texts[dead] = text_of(g);
    char *again = text_of(g);
    CHECK_STR(again, texts[dead]);
    mem_free(again);
    ir_free(g);
  }
  CHECK_STR(texts[1], texts[0]);
  CHECK(!strstr(texts[1], "cosine") && !strstr(texts[1], "while") && strstr(texts[1], "negate"));
  mem_free(texts[0]);
  mem_free(texts[1]);
}

/* The order in which the parts are built does not show, in regions and in operands that several share. */
TEST(the_order_of_building_does_not_show) {
  char *texts[2];
  for (int swap = 0; swap < 2; swap++) {
    ir_graph *g = ir_new();
    val x = ir_param(g, TPU_F32, DIMS(4)), one, e, r[1], a[1];
    if (swap) e = ir_unary(g, IR_EXP, x), one = ir_const_f(g, TPU_F32, 1, DIMS(4));
    else one = ir_const_f(g, TPU_F32, 1, DIMS(4)), e = ir_unary(g, IR_EXP, x);
    ir_while_begin(g, &e, 1, a);
    ir_while_body(g, ir_const_i(g, TPU_BOOL, 0, SCALAR), a);
    val l = NULL;
    if (swap) l = ir_unary(g, IR_COS, one);
    val s = ir_unary(g, IR_SIN, a[0]);
    if (!swap) l = ir_unary(g, IR_COS, one);
    r[0] = ir_binary(g, IR_SUB, s, l);
    ir_while_end(g, r, r);
    ir_output(g, ir_binary(g, IR_MUL, r[0], ir_binary(g, IR_ADD, e, one)), -1);
    texts[swap] = text_of(g);
    ir_free(g);
  }
  CHECK_STR(texts[1], texts[0]);
  mem_free(texts[0]);
  mem_free(texts[1]);
}

TEST(other_graphs_have_other_text) {
  char *texts[4];
  for (int i = 0; i < 4; i++) {
    ir_graph *g = ir_new();
    val x = ir_param(g, TPU_F32, DIMS(4)), y = ir_param(g, TPU_F32, DIMS(4));
    val z = ir_binary(g, IR_SUB, i == 1 ? y : x, i == 1 ? x : y);
    ir_output(g,
              i == 2   ? ir_binary(g, IR_ADD, z, ir_const_f(g, TPU_F32, -0.0, DIMS(4)))
              : i == 3 ? z
                       : z,
              i == 3 ? 0 : -1);
    texts[i] = text_of(g);
    for (int k = 0; k < i; k++) CHECK(strcmp(texts[k], texts[i]) != 0);
    ir_free(g);
  }
  for (int i = 0; i < 4; i++) mem_free(texts[i]);
}

/* Unused parameters stay, unless they are pruned; then numbers and aliases follow. */
TEST(parameters_that_nobody_needs) {
  ir_graph *g = ir_new();
  val a = ir_param(g, TPU_F32, DIMS(1)), b = ir_param(g, TPU_I32, DIMS(2)), c = ir_param(g, TPU_F32, DIMS(1));
  (void)b;
  ir_unary(g, IR_NOT, b);
  ir_output(g, ir_binary(g, IR_ADD, c, a), 2);
  char *t = text_of(g);
  CHECK_HAS(t, "%arg1: tensor<2xi32>, %arg2: tensor<1xf32> {tf.aliasing_output = 0 : i32}");
  CHECK_HAS(t, "\"stablehlo.add\"(%arg2, %arg0)");
  CHECK(!strstr(t, "stablehlo.not"));
  mem_free(t);
  int kept[3];
  CHECK_INT(ir_prune_params(g, kept), 2);
  CHECK_INT(kept[0], 0);
  CHECK_INT(kept[1], 2);
  t = text_of(g);
  CHECK_HAS(t, "(%arg0: tensor<1xf32>, %arg1: tensor<1xf32> {tf.aliasing_output = 0 : i32}) -> (tensor<1xf32>)");
  CHECK_HAS(t, "\"stablehlo.add\"(%arg1, %arg0)");
  mem_free(t);
  ir_free(g);
}

TEST(no_outputs) {
  ir_graph *g = ir_new();
  ir_unary(g, IR_EXP, ir_param(g, TPU_F32, DIMS(1)));
  char *t = text_of(g);
  CHECK_STR(t, "module @tpu {\n  func.func public @main(%arg0: tensor<1xf32>) -> () {\n    return\n  }\n}\n");
  mem_free(t);
  ir_free(g);
}

/* Operands stand before users however long the chain is: no recursion over operands. */
TEST(long_chains) {
  ir_graph *g = ir_new();
  val x = ir_param(g, TPU_F32, DIMS(1));
  for (int i = 0; i < 200000; i++) x = ir_unary(g, IR_NEG, x);
  ir_output(g, x, -1);
  char *t = text_of(g);
  CHECK_HAS(t, "%199999 = \"stablehlo.negate\"(%199998)");
  mem_free(t);
  ir_free(g);
}

static void print_golden(void) {
  for (kind *k = kind_first; k; k = k->next) {
    ir_graph *g = ir_new();
    k->build(g);
    char *t = text_of(g);
    printf("{\"%s\",\n \"", k->name);
    for (const char *c = t ? t : ""; *c; c++) {
      if (*c == '\n') printf(c[1] ? "\\n\"\n \"" : "\\n");
      else if (*c == '"') printf("\\\"");
      else putchar(*c);
    }
    printf("\"},\n");
    mem_free(t);
    ir_free(g);
  }
}

int main(int argc, char **argv) {
  if (argc > 1 && !strcmp(argv[1], "golden")) {
    puts("// clang-format off");
    print_golden();
    return 0;
  }
  return t_main(argc, argv);
}
