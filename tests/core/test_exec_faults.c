/* The executor on the fake plugin: the Nth allocation and the Nth plugin call fail, for every N; executions fail later.
 * Each failure is an error, the process goes on, nothing leaks. The fake plugin's results are zeros. */
#include "base/env.h"
#include "base/mem.h"
#include "core/exec_t.h"
#include "exec/exec.h"
#include "fake/fake.h"

static fake_control fake;
static tpu_op *add, *add_;

TEST(start) {
  if (!CHECK(fake_open(t_arg(1), &fake))) exit(1);
  fake.reset();
  setenv("TORCH_TPU_PJRT_PLUGIN", t_arg(1), 1);
  setenv("FAKE_PJRT_DEVICES", "2", 1);
  if (!CHECK_OK(tpu_init())) exit(1);
  add = xt_op("aten::add", "Tensor", NULL, 3, xt_add_types, false);
  add_ = xt_op("aten::add_", "Tensor", "aten::add.Tensor", 3, xt_add_types, true);
  if (!CHECK(add && add_)) exit(1);
}

/* Copies in, a call, an in-place call through a view, copies out, an event, a copy to another device. */
static tpu_err *session(int n) {
  const int64_t sizes[] = {3, n};
  xt a = {0}, b = {0}, r = {0}, there = {0};
  float host[512] = {1};
  double ms = 0;
  tpu_event *before = NULL, *after = NULL;
  tpu_err *e = xt_from(&a, TPU_F32, 2, sizes, host);
  if (!e) e = xt_from(&b, TPU_F32, 2, sizes, host);
  if (!e) e = tpu_event_record(0, &before);
  if (!e) e = xt_add(add, &a, &b, 2.5, &r);
  xt column = a;
  column.sizes[1] = 1;
  column.offset = 1;
  if (!e) e = xt_add(add_, &column, &column, 1, NULL);
  if (!e) e = tpu_event_record(0, &after);
  if (!e) e = tpu_event_elapsed(before, after, &ms);
  if (!e) e = xt_read(&column, host);
  if (!e) e = xt_read(&r, host);
  if (!e) e = tpu_store_resize(a.store, 4096);
  if (!e) e = xt_empty(&there, TPU_F32, 2, sizes, 1);
  if (!e) {
    tpu_tensor dst = xt_tensor(&there), src = xt_tensor(&b);
    e = tpu_copy_across(&dst, &src);
  }
  tpu_err *s = tpu_synchronize(-1);
  if (e) tpu_err_free(s);
  else e = s;
  tpu_event_release(before);
  tpu_event_release(after);
  xt_free(&a), xt_free(&b), xt_free(&r), xt_free(&there);
  return e;
}

static const char given_text[] =
    "module @m {\n  func.func public @main(%arg0: tensor<2x3xf32>, %arg1: tensor<i64>) -> (tensor<2x3xf32>, "
    "tensor<i64>) {\n"
    "    return %arg0, %arg1\n  }\n}\n// xla: xla_some = 3\n// xla: xla_other = \"a b\"\n";
static const int64_t given_sizes[] = {2, 3};

/* A program of two inputs and two outputs, of these types. */
static tpu_given given_of(const char *text, const tpu_tensor *in, const tpu_tensor *out, const int *parameters,
                          const int *places) {
  return (tpu_given){.text = text,
                     .len = strlen(text),
                     .inputs = in,
                     .parameters = parameters,
                     .outputs = out,
                     .places = places,
                     .ninputs = 2,
                     .nparameters = 2,
                     .noutputs = 2};
}

/* A program of what the plugin serialized: two results that are views of its first output, one of an input, and a store
 * without a value; its second output is written to its second input. */
static tpu_err *executable_session(int n) {
  (void)n;
  const int64_t turned[2] = {1, 2}, part[1] = {2}, one[1] = {1};
  const tpu_tensor in_types[2] = {{.sizes = given_sizes, .strides = turned, .ndim = 2, .dtype = TPU_F32},
                                  {.dtype = TPU_I64}};
  const int64_t memory[2] = {3, 2};
  const tpu_tensor out_types[2] = {{.sizes = memory, .ndim = 2, .dtype = TPU_F32}, {.dtype = TPU_I64}};
  const int order[2] = {0, 1}, places[2] = {-1, 1};
  const tpu_graph_result results[] = {
      {.store = 0, .input = -1, .dtype = TPU_F32, .ndim = 2, .sizes = memory, .strides = (const int64_t[]){2, 1}},
      {.store = 0, .input = -1, .dtype = TPU_F32, .ndim = 1, .offset = 4, .sizes = part, .strides = one},
      {.store = -1, .input = 0, .dtype = TPU_F32, .ndim = 2, .sizes = given_sizes, .strides = turned},
      {.store = 1, .input = -1, .dtype = TPU_F32, .ndim = 1, .sizes = (const int64_t[]){0}, .strides = one}};
  const size_t empty[1] = {0};
  static const char text[] =
      "module @m {\n  func.func public @main(%arg0: tensor<3x2xf32>, %arg1: tensor<i64>) -> (tensor<3x2xf32>, "
      "tensor<i64>) {\n    return %arg0, %arg1\n  }\n}\n";
  tpu_topology *t;
  tpu_aot *a = NULL;
  const char *bytes = NULL, *host, *mine;
  size_t len = 0;
  tpu_graph *g = NULL;
  tpu_store *made[2] = {NULL, NULL};
  tpu_fit fit;
  int which;
  xt x = {0}, y = {0};
  float values[6] = {1};
  int64_t number = 5;
  tpu_err *e = tpu_topology_here(&t);
  if (!e) e = tpu_aot_compile(t, text, sizeof text - 1, NULL, 0, &a);
  if (!e) e = tpu_aot_host(a, &host);
  if (!e) e = tpu_aot_host_here(&mine);
  if (!e && strcmp(host, mine) != 0) e = tpu_err_new(TPU_ERR_RUNTIME, "the hosts differ");
  if (!e) e = tpu_aot_serialize(a, &bytes, &len);
  const tpu_given given = {.text = bytes,
                           .len = len,
                           .executable = true,
                           .inputs = in_types,
                           .parameters = order,
                           .outputs = out_types,
                           .places = places,
                           .ninputs = 2,
                           .nparameters = 2,
                           .noutputs = 2,
                           .results = results,
                           .nresults = 4,
                           .nempty = 1,
                           .empty = empty};
  if (!e) e = tpu_graph_given(&given, "given", "given program", &g);
  tpu_aot_release(a);
  if (!e) e = xt_from(&x, TPU_F32, 2, memory, values);
  if (!e) e = xt_from(&y, TPU_I64, 0, NULL, &number);
  tpu_tensor in[2] = {xt_tensor(&x), xt_tensor(&y)};
  in[0].sizes = given_sizes;
  in[0].strides = turned;
  if (!e) e = tpu_graph_run(g, in, 2, NULL, made, &fit, &which);
  if (!e && fit != TPU_FIT_YES) e = tpu_err_new(TPU_ERR_RUNTIME, "does not fit");
  if (!e) e = xt_read(&y, &number);
  tpu_err *s = tpu_synchronize(-1);
  if (e) tpu_err_free(s);
  else e = s;
  tpu_store_release(made[0]);
  tpu_store_release(made[1]);
  xt_free(&x), xt_free(&y);
  tpu_graph_release(g);
  return e;
}

/* A program that was given as text: its first output is a result, its second is written to its second input. */
static tpu_err *given_session(int n) {
  (void)n;
  const tpu_tensor types[2] = {{.sizes = given_sizes, .ndim = 2, .dtype = TPU_F32}, {.dtype = TPU_I64}};
  const int order[2] = {0, 1}, places[2] = {-1, 1};
  const tpu_given given = given_of(given_text, types, types, order, places);
  xt a = {0}, b = {0};
  float host[6] = {1};
  int64_t number = 5;
  tpu_graph *g = NULL;
  tpu_store *made = NULL;
  tpu_fit fit;
  int which;
  tpu_err *e = tpu_graph_given(&given, "given", "given program", &g);
  if (!e) e = xt_from(&a, TPU_F32, 2, given_sizes, host);
  if (!e) e = xt_from(&b, TPU_I64, 0, NULL, &number);
  const tpu_tensor in[2] = {xt_tensor(&a), xt_tensor(&b)};
  if (!e) e = tpu_graph_run(g, in, 2, NULL, &made, &fit, &which);
  if (!e && fit != TPU_FIT_YES) e = tpu_err_new(TPU_ERR_RUNTIME, "does not fit");
  if (!e) e = xt_read(&b, &number);
  tpu_err *s = tpu_synchronize(-1);
  if (e) tpu_err_free(s);
  else e = s;
  tpu_store_release(made);
  xt_free(&a), xt_free(&b);
  tpu_graph_release(g);
  return e;
}

static tpu_err *(*what)(int) = session;

/* What is alive when all caches are dropped: the same after every session. */
static int64_t left(int64_t *buffers) {
  ex_forget();
  *buffers = fake.live("all");
  return mem_live();
}

static void with_faults(void (*arm)(int64_t), void (*off)(void), int64_t (*count)(void), int *runs) {
  int64_t buffers, buffers_now;
  CHECK_OK(what(5));
  int64_t live = left(&buffers);
  for (int64_t nth = 1; nth < 3000; nth++, ++*runs) {
    arm(nth);
    tpu_err *e = what(5);
    queue_drain();
    bool fired = count() >= nth;
    off();
    tpu_err_free(e);
    int64_t now = left(&buffers_now);
    CHECK_INT(now, live);
    CHECK_INT(buffers_now, buffers);
    if (now != live || buffers_now != buffers) {
      printf("  at failure number %d\n", (int)nth);
      return;
    }
    if (!fired) {
      CHECK_OK(what(5));
      left(&buffers_now);
      return;
    }
  }
  CHECK(!"the session never ended without a fault");
}

static void arm_mem(int64_t n) { mem_fault_at(n, false); }
static void arm_mem_for_good(int64_t n) { mem_fault_at(n, true); }
static void off_mem(void) { mem_fault_at(0, false); }
static void off_pjrt(void) { pjrt_fault_at(0); }

TEST(every_allocation_fails_once) {
  int runs = 0;
  with_faults(arm_mem, off_mem, mem_fault_count, &runs);
  CHECK(runs > 60);
}

TEST(every_allocation_fails_for_good) {
  int runs = 0;
  with_faults(arm_mem_for_good, off_mem, mem_fault_count, &runs);
  CHECK(runs > 50);
}

TEST(every_plugin_call_fails) {
  int runs = 0;
  with_faults(pjrt_fault_at, off_pjrt, pjrt_fault_count, &runs);
  CHECK(runs > 15);
}

/* How many runs there were of this session. */
static int with_all_faults(tpu_err *(*of)(int)) {
  int runs = 0;
  what = of;
  with_faults(arm_mem, off_mem, mem_fault_count, &runs);
  with_faults(arm_mem_for_good, off_mem, mem_fault_count, &runs);
  with_faults(pjrt_fault_at, off_pjrt, pjrt_fault_count, &runs);
  what = session;
  return runs;
}

TEST(every_failure_of_calls_that_wait) {
  tpu_stats before, after;
  tpu_get_stats(&before);
  tpu_set_eager_mode(TPU_DEFER_AND_FUSE);
  int runs = with_all_faults(session);
  tpu_set_eager_mode(TPU_STRICT);
  tpu_get_stats(&after);
  CHECK(runs > 130);
  CHECK(after.fused > before.fused);
}

TEST(every_failure_of_a_given_program) { CHECK(with_all_faults(given_session) > 40); }

TEST(every_failure_of_a_loaded_program) { CHECK(with_all_faults(executable_session) > 40); }

TEST(what_is_no_given_program) {
  static const int64_t large[] = {INT64_MAX / 2, 16}, none[] = {0, 3};
  const tpu_tensor f = {.sizes = given_sizes, .ndim = 2, .dtype = TPU_F32}, i = {.dtype = TPU_I64};
  static const struct {
    int parameter, place;
    const int64_t *in, *out;
    const char *text, *error;
  } cases[] = {
      {0, 1, given_sizes, given_sizes, "nonsense", "cannot be read"},
      {2, 1, given_sizes, given_sizes, given_text, "parameter 0 of a given program: there is no input 2"},
      {-1, 1, given_sizes, given_sizes, given_text, "parameter 0 of a given program: there is no input -1"},
      {0, 2, given_sizes, given_sizes, given_text, "output 1 of a given program cannot be written to input 2"},
      {0, 0, given_sizes, given_sizes, given_text, "output 1 of a given program cannot be written to input 0"},
      {0, 1, large, given_sizes, given_text, "input 0 of a given program has more elements than memory can hold"},
      {0, 1, none, given_sizes, given_text, "parameter 0 of a given program has no elements"},
      {0, 1, given_sizes, none, given_text, "output 0 of a given program has no elements"},
      {0, 1, given_sizes, given_sizes, "module @m { }\n// xla: xla_some\n", "expected NAME = VALUE, got xla_some"},
      {0, 1, given_sizes, given_sizes, "module @m { }\n// xla: a = 1.5x\n", "expected NAME = VALUE, got a = 1.5x"},
      {0, 1, given_sizes, given_sizes, "module @m { }\n// xla: a = \n", "expected NAME = VALUE, got a = "},
  };
  for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
    tpu_tensor in[2] = {f, i}, out[2] = {f, i};
    in[0].sizes = cases[k].in;
    out[0].sizes = cases[k].out;
    const int order[2] = {cases[k].parameter, 1}, places[2] = {-1, cases[k].place};
    const tpu_given given = given_of(cases[k].text, in, out, order, places);
    tpu_graph *g = NULL;
    CHECK_ERR(tpu_graph_given(&given, "given", "given program", &g),
              strstr(cases[k].error, "cannot be read") ? TPU_ERR_RUNTIME : TPU_ERR_VALUE, cases[k].error);
    CHECK(!g);
  }
  ex_forget();
}

/* The same, with programs that come from a folder (after the first session) or are written to it. */
TEST(every_failure_with_the_cache_on_disk) {
  char folder[] = "/tmp/torch_tpu_faults.XXXXXX", command[64];
  tpu_stats before, after;
  int runs = 0;
  if (!CHECK(mkdtemp(folder))) return;
  setenv("TORCH_TPU_CACHE_DIR", folder, 1);
  setenv("TORCH_TPU_CACHE_SIZE", "1000000", 1);
  env_reset();
  CHECK_OK(session(5));
  tpu_get_stats(&before);
  int64_t buffers;
  left(&buffers);
  CHECK_OK(session(5));
  tpu_get_stats(&after);
  CHECK_INT(after.compiles, before.compiles);
  CHECK(after.disk_hits > before.disk_hits);
  with_faults(arm_mem, off_mem, mem_fault_count, &runs);
  with_faults(arm_mem_for_good, off_mem, mem_fault_count, &runs);
  with_faults(pjrt_fault_at, off_pjrt, pjrt_fault_count, &runs);
  CHECK(runs > 130);
  setenv("TORCH_TPU_CACHE_SIZE", "0", 1);
  env_reset();
  ex_forget();
  snprintf(command, sizeof command, "rm -r %s", folder);
  CHECK_INT(system(command), 0);
}

TEST(an_execution_that_fails_later_is_raised_at_the_read_with_the_operator_s_name) {
  const int64_t sizes[] = {3, 7};
  xt a, r, s;
  float host[21] = {0};
  CHECK_OK(xt_from(&a, TPU_F32, 2, sizes, host));
  CHECK_OK(xt_add(add, &a, &a, 1, &r));
  CHECK_OK(tpu_synchronize(0));
  xt_free(&r);
  fake.fail_execution(1, 13);
  CHECK_OK(xt_add(add, &a, &a, 1, &r)); /* the call itself succeeds */
  CHECK_OK(xt_add(add, &r, &a, 1, &s)); /* and what depends on it */
  CHECK_ERR(xt_read(&r, host), TPU_ERR_RUNTIME, "aten::add.Tensor");
  CHECK_ERR(xt_read(&s, host), TPU_ERR_RUNTIME, "aten::add.Tensor");
  CHECK_OK(xt_read(&a, host)); /* the input is not lost */
  xt_free(&r), xt_free(&s);
  fake.fail_execution(1, 13);
  CHECK_OK(xt_add(add, &a, &a, 1, &r));
  CHECK_ERR(tpu_synchronize(-1), TPU_ERR_RUNTIME, "aten::add.Tensor");
  CHECK_OK(tpu_synchronize(-1)); /* told once */
  CHECK_OK(xt_add(add, &a, &a, 1, &s));
  CHECK_OK(xt_read(&s, host));
  xt_free(&a), xt_free(&r), xt_free(&s);
  fake.reset();
}

TEST(debug_mode_raises_at_the_call) {
  const int64_t sizes[] = {3, 7};
  xt a, r;
  float host[21] = {0};
  CHECK_OK(xt_from(&a, TPU_F32, 2, sizes, host));
  tpu_set_eager_mode(TPU_DEBUG);
  CHECK_OK(xt_add(add, &a, &a, 1, &r));
  xt_free(&r);
  fake.fail_execution(1, 13);
  CHECK_ERR(xt_add(add, &a, &a, 1, &r), TPU_ERR_RUNTIME, "aten::add.Tensor");
  tpu_set_eager_mode(TPU_STRICT);
  xt_free(&a);
  fake.reset();
}

TEST(the_caller_does_not_wait_for_the_device) {
  const int64_t sizes[] = {3, 7};
  xt a, r[50];
  float host[21] = {0};
  CHECK_OK(xt_from(&a, TPU_F32, 2, sizes, host));
  CHECK_OK(xt_add(add, &a, &a, 1, &r[0]));
  xt_free(&r[0]);
  fake.hold();
  for (int i = 0; i < 50; i++) CHECK_OK(xt_add(add, &a, &a, 1, &r[i]));
  tpu_event *e;
  CHECK_OK(tpu_event_record(0, &e));
  CHECK(!tpu_event_done(e));
  fake.release();
  CHECK_OK(tpu_event_wait(e));
  CHECK(tpu_event_done(e));
  tpu_event_release(e);
  for (int i = 0; i < 50; i++) xt_free(&r[i]);
  xt_free(&a);
}

static void *hammer(void *arg) {
  const int64_t sizes[] = {2, 3 + (int)(intptr_t)arg % 3};
  float host[16] = {0};
  for (int i = 0; i < 200; i++) {
    xt a, r;
    if (!CHECK_OK(xt_from(&a, TPU_F32, 2, sizes, host))) return NULL;
    CHECK_OK(xt_add(add_, &a, &a, i, NULL));
    CHECK_OK(xt_add(add, &a, &a, i, &r));
    CHECK_OK(xt_read(&r, host));
    xt_free(&a), xt_free(&r);
  }
  return NULL;
}

TEST(threads) {
  pthread_t t[6];
  for (int i = 0; i < 6; i++) CHECK(!pthread_create(&t[i], NULL, hammer, (void *)(intptr_t)i));
  for (int i = 0; i < 6; i++) pthread_join(t[i], NULL);
  tpu_memory_stats m;
  tpu_get_memory_stats(0, &m);
  CHECK_INT(m.stores, 0);
}

T_MAIN()
