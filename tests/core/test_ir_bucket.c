/* ir_bucket: what becomes of a program for one size. Its numbers are in tests/torch/test_buckets.py. */
#include "ir_t.h"

/* Programs of a size s; each must be padded. */
typedef void builder(ir_graph *g, int64_t s);

static val zero(ir_graph *g) { return ir_const_f(g, TPU_F32, 0, SCALAR); }

static void scores(ir_graph *g, int64_t s) { /* softmax(x x^T) x */
  const int at[1] = {1}, last[1] = {2}, batch[1] = {0}, rows[2] = {0, 1};
  val x = ir_param(g, TPU_F32, DIMS(2, s, 4));
  val p = ir_dot(g, x, x, 1, batch, batch, 1, last, last, TPU_F32, 0);
  val top = ir_reduce(g, IR_MAX, p, ir_const_min(g, TPU_F32, SCALAR), 1, last);
  p = ir_unary(g, IR_EXP, ir_binary(g, IR_SUB, p, ir_broadcast(g, top, DIMS(2, s, s), rows)));
  val sum = ir_reduce(g, IR_ADD, p, zero(g), 1, last);
  p = ir_binary(g, IR_DIV, p, ir_broadcast(g, sum, DIMS(2, s, s), rows));
  out(g, ir_dot(g, p, x, 1, batch, batch, 1, last, at, TPU_F32, 0));
}

static void joined(ir_graph *g, int64_t s) { /* two dims seen as one, and a flat input beside it */
  const int all[1] = {0};
  val x = ir_param(g, TPU_F32, DIMS(3, s, 2)), y = ir_param(g, TPU_F32, DIMS(3 * s, 2));
  val both = ir_binary(g, IR_ADD, ir_reshape(g, x, DIMS(3 * s, 2)), y);
  out(g, ir_reshape(g, both, DIMS(3, s, 2)));
  val sum = ir_reduce(g, IR_ADD, both, zero(g), 1, all);
  out(g, ir_binary(g, IR_DIV, sum, ir_const_f(g, TPU_F32, (double)(3 * s), DIMS(2))));
}

static void parts(ir_graph *g, int64_t s) {
  const int rev[1] = {0};
  val x = ir_param(g, TPU_F32, DIMS(s)), y = ir_param(g, TPU_F32, DIMS(2));
  out(g, ir_slice(g, x, I64(s - 1), I64(s), NULL));
  out(g, ir_slice(g, x, I64(1), I64(s), NULL));
  out(g, ir_concat(g, (const val[]){x, y, x}, 3, 0));
  out(g, ir_pad(g, x, zero(g), I64(1), I64(2), NULL));
  out(g, ir_pad(g, y, zero(g), I64(s - 2), I64(0), NULL));
  out(g, ir_reverse(g, x, 1, rev));
  val at[1] = {ir_const_i(g, TPU_I32, 1, SCALAR)};
  out(g, ir_dynamic_update_slice(g, ir_const_f(g, TPU_F32, 1, DIMS(40)), x, at));
  val back = ir_bitcast(g, ir_iota(g, TPU_I32, DIMS(s), 0), TPU_U32);
  out(g, back);
}

static void indexed(ir_graph *g, int64_t s) {
  const int dim0[1] = {0};
  val x = ir_param(g, TPU_F32, DIMS(s, 3)), i = ir_param(g, TPU_I32, DIMS(s, 1));
  const ir_gather_dims rows = {.noffset = 1,
                               .offset_dims = (const int[]){1},
                               .ncollapsed = 1,
                               .collapsed_dims = dim0,
                               .nstart = 1,
                               .start_index_map = dim0,
                               .index_vector_dim = 1};
  out(g, ir_gather(g, x, i, &rows, I64(1, 3), false));
  const ir_scatter_dims into = {.nwindow = 1,
                                .update_window_dims = (const int[]){1},
                                .ninserted = 1,
                                .inserted_window_dims = dim0,
                                .nscatter = 1,
                                .scatter_dims_to_operand = dim0,
                                .index_vector_dim = 1};
  out(g, ir_scatter(g, ir_const_f(g, TPU_F32, 0, DIMS(5, 3)), i, x, &into, IR_ADD, true, true));
  val body[2], sorted[1], flat = ir_reshape(g, i, DIMS(s)), values, places;
  ir_sort_begin(g, &flat, 1, 0, true, body);
  ir_sort_end(g, ir_compare(g, IR_LT, body[0], body[1]), sorted);
  out(g, sorted[0]);
  ir_top_k(g, ir_transpose(g, x, INTS(1, 0)), 2, &values, &places);
  out(g, values);
}

static void windows(ir_graph *g, int64_t s) {
  val x = ir_param(g, TPU_F32, DIMS(1, 2, s)), w = ir_param(g, TPU_F32, DIMS(3, 2, 3));
  const ir_window sum = {.size = I64(1, 1, s), .pad_low = I64(0, 0, s - 1)};
  out(g, ir_reduce_window(g, IR_ADD, x, zero(g), &sum));
  const ir_conv_dims d = {0, 1, INTS(2), 1, 0, INTS(2), 0, 1, INTS(2)};
  out(g, ir_conv(g, x, w, &d, NULL, I64(1), I64(1), NULL, NULL, NULL, 1, 1, TPU_F32, 0));
}

static builder *const builders[] = {scores, joined, parts, indexed, windows};
enum { NBUILDERS = sizeof builders / sizeof *builders, SAMPLES = 2 };
static const int64_t sizes[SAMPLES + 1] = {32, 31, 17};

/* The program for the bucket, printed; NULL: *error says why. */
static char *bucketed(builder *build, tpu_err **error, ir_graph **keep) {
  ir_graph *graphs[SAMPLES + 1] = {NULL};
  char *text = NULL;
  *error = NULL;
  for (int r = 0; r <= SAMPLES; r++) {
    if (!(graphs[r] = ir_new())) goto done;
    ir_set_sizes_vary(graphs[r]);
    build(graphs[r], sizes[r]);
    if (ir_failed(graphs[r])) goto done;
  }
  ir_graph *g = graphs[0];
  int n = ir_output_count(g), m = ir_param_count(g);
  ir_extent **params = arena_alloc(ir_arena(g), (size_t)(m + 1) * sizeof *params);
  ir_extent **outputs = arena_alloc(ir_arena(g), (size_t)(n + 1) * sizeof *outputs);
  bool *pack = arena_alloc(ir_arena(g), (size_t)(n + 1)), *written = arena_alloc(ir_arena(g), (size_t)(n + 1));
  if (!params || !outputs || !pack || !written) goto done;
  for (int i = 0; i < n; i++) pack[i] = true;
  ir_bucket_spec spec = {.nsymbols = 1,
                         .nsamples = SAMPLES,
                         .samples = graphs + 1,
                         .sizes = sizes,
                         .params = params,
                         .pack = pack,
                         .written = written,
                         .outputs = outputs};
  *error = ir_bucket(g, &spec);
  buf b;
  buf_init(&b);
  if (!*error) *error = ir_print(g, &b);
  if (!*error && !b.failed) text = b.data;
  else buf_free(&b);
done:
  for (int r = SAMPLES; r >= 0; r--)
    if (graphs[r] && !(keep && !r)) ir_free(graphs[r]);
  if (keep) *keep = graphs[0];
  return text;
}

TEST(programs_of_a_size_become_programs_of_a_bucket) {
  for (int i = 0; i < NBUILDERS; i++) {
    tpu_err *e;
    char *text = bucketed(builders[i], &e, NULL);
    if (!CHECK_OK(e)) printf("  builder %d\n", i);
    if (text) CHECK(strstr(text, "tensor<i64>") != NULL); /* the size is a parameter */
    mem_free(text);
  }
}

TEST(inputs_and_outputs_are_flat) {
  tpu_err *e;
  ir_graph *g;
  char *text = bucketed(scores, &e, &g);
  if (!CHECK_OK(e)) return;
  CHECK_INT(ir_param_count(g), 2);
  CHECK_INT(ir_param_value(g, 0)->ndim, 1);
  CHECK_INT(ir_param_value(g, 0)->dims[0], 2 * 32 * 4);
  CHECK_INT(ir_output_value(g, 0)->ndim, 1);
  CHECK_INT(ir_output_value(g, 0)->dims[0], 2 * 32 * 4);
  mem_free(text);
  ir_free(g);
}

/* ---- what is refused -------------------------------------------------------------------------------------------- */

static void every_second(ir_graph *g, int64_t s) {
  out(g, ir_slice(g, ir_param(g, TPU_F32, DIMS(s)), I64(0), I64(s), I64(2)));
}
static void table(ir_graph *g, int64_t s) {
  out(g, ir_binary(g, IR_ADD, ir_param(g, TPU_F32, DIMS(2)),
                   ir_const_floats(g, TPU_F32, (const double[]){1, (double)s}, DIMS(2))));
}
static void root(ir_graph *g, int64_t s) {
  out(g, ir_binary(g, IR_ADD, ir_param(g, TPU_F32, DIMS(2)), ir_const_f(g, TPU_F32, sqrt((double)s), DIMS(2))));
}
static void looped(ir_graph *g, int64_t s) {
  val x = ir_param(g, TPU_F32, DIMS(s)), now[1], made[1];
  ir_while_begin(g, &x, 1, now);
  ir_while_body(g, ir_const_i(g, TPU_BOOL, 0, SCALAR), now);
  ir_while_end(g, now, made);
  out(g, made[0]);
}
static void branching(ir_graph *g, int64_t s) {
  val x = ir_param(g, TPU_F32, DIMS(s));
  out(g, s > 31 ? ir_unary(g, IR_EXP, x) : x);
}
static void cut(ir_graph *g, int64_t s) { /* 6 s elements in rows of 4 */
  out(g, ir_reshape(g, ir_param(g, TPU_F32, DIMS(2 * s, 6)), DIMS(3 * s, 4)));
}

TEST(what_cannot_be_padded_is_refused) {
  static const struct {
    builder *build;
    const char *why;
  } bad[] = {{every_second, "slice steps through a dim that changes"},
             {table, "constant holds a table that depends on sizes"},
             {root, "constant is a number that depends on sizes in a way that is not understood"},
             {looped, "while"},
             {branching, "the program is another one for other sizes"},
             {cut, "reshape splits a dim that changes"}};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    tpu_err *e;
    CHECK(!bucketed(bad[i].build, &e, NULL));
    if (bad[i].build == looped) CHECK_ERR(e, TPU_ERR_RUNTIME, "sizes");
    else CHECK_ERR(e, TPU_ERR_RUNTIME, bad[i].why);
  }
}

TEST(every_allocation_may_fail) {
  for (int i = 0; i < NBUILDERS; i++)
    for (int sticky = 0; sticky < 2; sticky++) {
      int64_t live = mem_live();
      int n = 0;
      for (bool ok = false; !ok && ++n < 3000;) {
        tpu_err *e;
        mem_fault_at(n, sticky);
        char *text = bucketed(builders[i], &e, NULL);
        mem_fault_at(0, false);
        ok = text != NULL;
        if (e) CHECK_INT(tpu_err_get_kind(e), TPU_ERR_OOM);
        tpu_err_free(e);
        mem_free(text);
        if (!CHECK_INT(mem_live(), live)) return;
      }
      CHECK(n > 8 && n < 3000);
    }
}

T_MAIN()
