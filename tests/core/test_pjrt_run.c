/* src/pjrt/program.c and buffer.c, with the fake plugin. */
#include <pthread.h>
#include <unistd.h>

#include "pjrt_t.h"

static pjrt_exec *compile(pjrt_client *c, const char *text) {
  pjrt_exec *e = NULL;
  CHECK_OK(pjrt_compile(c, text, strlen(text), NULL, 0, &e));
  return e;
}

TEST(compile_and_its_errors) {
  pjrt_client *c = t_client("fake");
  if (!c) return;
  pjrt_exec *e = compile(c, t_add);
  size_t n = 0;
  CHECK_OK(pjrt_exec_num_outputs(c, e, &n));
  CHECK_INT(n, 2);
  pjrt_exec_free(c, e);
  CHECK_ERR(pjrt_compile(c, "nonsense", 8, NULL, 0, &e), TPU_ERR_RUNTIME,
            "PJRT_Client_Compile: fake: the program cannot be read: there is no function @main");
  CHECK(!e);
  static const char *const bad[] = {"@main(",
                                    "@main() -> ",
                                    "@main(%a: f32) {",
                                    "@main(%a: tensor<2xq7>) {",
                                    "@main(%a: tensor<2x) {",
                                    "@main() -> (tensor<f32>, {",
                                    "@main() -> tensor<f32>"};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
    CHECK_ERR(pjrt_compile(c, bad[i], strlen(bad[i]), NULL, 0, &e), TPU_ERR_RUNTIME, "cannot be read");
  CHECK_ERR(pjrt_compile(c, t_add, strlen(t_add), "x", 0, &e), TPU_ERR_RUNTIME, "no compile options");
  pjrt_exec_free(c, NULL);
  pjrt_client_free(c);
  t_nothing_left();
}

/* Both ways of reading: through the plugin, and in place. */
static void round_trip(const char *platform) {
  pjrt_client *c = t_client(platform);
  if (!c) return;
  float got[6] = {0};
  int64_t reads = fake.count("to_host");
  pjrt_buffer *b = t_put(c, 2);
  CHECK_OK(pjrt_buffer_to_host(c, b, got, sizeof got));
  CHECK(got[0] == 1 && got[5] == 6);
  CHECK_INT(fake.count("to_host") - reads, strcmp(platform, "cpu") ? 1 : 0);
  tpu_err *e = pjrt_buffer_to_host(c, b, got, 20);
  CHECK(e);
  tpu_err_free(e);
  pjrt_buffer *d = NULL;
  CHECK_OK(pjrt_buffer_copy_to_device(c, b, 3, &d));
  memset(got, 0, sizeof got);
  CHECK_OK(pjrt_buffer_to_host(c, d, got, sizeof got));
  CHECK(got[5] == 6);
  pjrt_buffer_free(c, d);
  CHECK_ERR(pjrt_buffer_copy_to_device(c, b, 4, &d), TPU_ERR_RUNTIME, "invalid device 4");
  CHECK(!d);
  pjrt_buffer_free(c, b);
  CHECK_ERR(pjrt_buffer_from_host(c, -1, got, T_F32, NULL, 0, &b), TPU_ERR_RUNTIME, "invalid device -1");
  CHECK_OK(pjrt_buffer_from_host(c, 0, NULL, T_F32, (int64_t[]){0, 5}, 2, &b));
  CHECK_OK(pjrt_buffer_to_host(c, b, NULL, 0));
  pjrt_buffer_free(c, b);
  CHECK_OK(pjrt_buffer_from_host(c, 0, got, T_F32, NULL, 0, &b));
  CHECK_OK(pjrt_buffer_to_host(c, b, got, 4));
  pjrt_buffer_free(c, b);
  pjrt_buffer_free(c, NULL);
  pjrt_client_free(c);
  t_nothing_left();
}

TEST(round_trip_through_the_plugin) { round_trip("fake"); }
TEST(round_trip_in_place) { round_trip("cpu"); }

TEST(execute_donates_and_keeps) {
  pjrt_client *c = t_client("fake");
  if (!c) return;
  pjrt_exec *e = compile(c, t_add);
  pjrt_buffer *args[2] = {t_put(c, 1), t_put(c, 1)}, *outs[2];
  float got[6] = {7, 7, 7, 7, 7, 7};
  int64_t number = 7;
  for (int keep = 1; keep >= 0; keep--) {
    pjrt_event *done = NULL;
    CHECK_OK(pjrt_execute(c, e, 1, args, 2, (int64_t[]){0}, (size_t)keep, outs, &done));
    CHECK_OK(pjrt_event_wait(c, done));
    CHECK_OK(pjrt_buffer_to_host(c, outs[0], got, sizeof got));
    CHECK_OK(pjrt_buffer_to_host(c, outs[1], &number, sizeof number));
    CHECK(got[5] == 0 && number == 0);
    pjrt_event_free(c, done);
    pjrt_buffer_free(c, outs[0]);
    pjrt_buffer_free(c, outs[1]);
    tpu_err *gone = pjrt_buffer_wait(c, args[0]);
    CHECK((gone == NULL) == keep);
    tpu_err_free(gone);
  }
  CHECK(pjrt_buffer_ready(c, args[0]));
  CHECK_ERR(pjrt_execute(c, e, 1, args, 2, NULL, 0, outs, NULL), TPU_ERR_RUNTIME, "deleted or donated");
  CHECK_ERR(pjrt_execute(c, e, 1, args, 1, NULL, 0, outs, NULL), TPU_ERR_RUNTIME, "1 arguments given, expected 2");
  CHECK_ERR(pjrt_execute(c, e, 4, args, 2, NULL, 0, outs, NULL), TPU_ERR_RUNTIME, "invalid device 4: ");
  pjrt_buffer_free(c, args[0]);
  pjrt_buffer_free(c, args[1]);
  pjrt_exec_free(c, e);
  pjrt_client_free(c);
  t_nothing_left();
}

TEST(serialize_and_load) {
  pjrt_client *c = t_client("fake");
  if (!c) return;
  pjrt_exec *e = compile(c, t_add), *loaded = NULL;
  char *bytes = NULL;
  CHECK_INT(pjrt_exec_traffic(c, e), 80); /* two arguments and two results, 24, 24, 24 and 8 bytes */
  size_t len = 0, n = 0;
  CHECK_OK(pjrt_exec_serialize(c, e, &bytes, &len));
  pjrt_exec_free(c, e);
  CHECK_OK(pjrt_exec_load(c, bytes, len, &loaded));
  CHECK_OK(pjrt_exec_num_outputs(c, loaded, &n));
  CHECK_INT(n, 2);
  pjrt_exec_free(c, loaded);
  CHECK_ERR(pjrt_exec_load(c, "junk", 4, &loaded), TPU_ERR_RUNTIME, "no serialized executable");
  CHECK(!loaded);
  mem_free(bytes);
  pjrt_client_free(c);
  t_nothing_left();
}

TEST(traffic_where_the_plugin_says_less) {
  pjrt_client *c = t_client("fake");
  if (!c) return;
  pjrt_exec *e = compile(c, t_add);
  pjrt_fault_at(1); /* no executable: nothing is known */
  CHECK_INT(pjrt_exec_traffic(c, e), -1);
  pjrt_fault_at(2); /* no cost analysis: by memory, with 64 bytes between arguments and results */
  CHECK_INT(pjrt_exec_traffic(c, e), 80 + 2 * 64);
  pjrt_fault_at(0);
  pjrt_exec_free(c, e);
  pjrt_client_free(c);
  t_nothing_left();
}

static void count_up(void *arg) { ++*(_Atomic int *)arg; }

TEST(nothing_waits_that_need_not) {
  pjrt_client *c = t_client("fake");
  if (!c) return;
  pjrt_exec *e = compile(c, t_add);
  pjrt_buffer *args[2] = {t_put(c, 0), t_put(c, 0)}, *outs[2];
  pjrt_event *done, *ready;
  _Atomic int calls = 0;
  fake.hold();
  CHECK_OK(pjrt_execute(c, e, 0, args, 2, NULL, 0, outs, &done));
  CHECK_OK(pjrt_buffer_event(c, outs[0], &ready));
  CHECK_OK(pjrt_event_on_ready(c, done, count_up, &calls));
  CHECK(!pjrt_event_ready(c, done) && !pjrt_event_ready(c, ready) && !pjrt_buffer_ready(c, outs[0]));
  CHECK_INT(calls, 0);
  fake.release();
  CHECK_INT(calls, 1);
  CHECK(pjrt_event_ready(c, done) && pjrt_event_ready(c, ready) && pjrt_buffer_ready(c, outs[0]));
  CHECK_OK(pjrt_event_on_ready(c, done, count_up, &calls));
  CHECK_INT(calls, 2);
  CHECK_OK(pjrt_event_wait(c, ready));
  pjrt_event_free(c, done);
  pjrt_event_free(c, ready);
  pjrt_event_free(c, NULL);
  for (int i = 0; i < 2; i++) {
    pjrt_buffer_free(c, args[i]);
    pjrt_buffer_free(c, outs[i]);
  }
  pjrt_exec_free(c, e);
  pjrt_client_free(c);
  t_nothing_left();
}

static void read_waits(const char *platform) {
  pjrt_client *c = t_client(platform);
  if (!c) return;
  pjrt_exec *e = compile(c, t_add);
  pjrt_buffer *args[2] = {t_put(c, 0), t_put(c, 0)}, *outs[2];
  float got[6];
  fake.delay(30);
  CHECK_OK(pjrt_execute(c, e, 0, args, 2, NULL, 0, outs, NULL));
  CHECK(!pjrt_buffer_ready(c, outs[0]));
  CHECK_OK(pjrt_buffer_to_host(c, outs[0], got, sizeof got));
  CHECK(pjrt_buffer_ready(c, outs[0]));
  fake.delay(0);
  for (int i = 0; i < 2; i++) {
    pjrt_buffer_free(c, args[i]);
    pjrt_buffer_free(c, outs[i]);
  }
  pjrt_exec_free(c, e);
  pjrt_client_free(c);
  t_nothing_left();
}

TEST(a_read_waits_through_the_plugin) { read_waits("fake"); }
TEST(a_read_waits_in_place) { read_waits("cpu"); }

/* A run that fails later: every reader gets the error, users of the result fail too, and the process goes on. */
static void failed_run(const char *platform) {
  pjrt_client *c = t_client(platform);
  if (!c) return;
  pjrt_exec *e = compile(c, t_add);
  pjrt_buffer *args[2] = {t_put(c, 0), t_put(c, 0)}, *outs[2], *more[2];
  pjrt_event *done;
  _Atomic int calls = 0;
  float got[6] = {7};
  fake.fail_execution(1, T_OUT_OF_MEMORY);
  fake.hold();
  CHECK_OK(pjrt_execute(c, e, 0, args, 2, NULL, 0, outs, &done));
  CHECK_OK(pjrt_event_on_ready(c, done, count_up, &calls));
  fake.release();
  CHECK_INT(calls, 1);
  CHECK_ERR(pjrt_event_wait(c, done), TPU_ERR_OOM, "the run failed");
  CHECK_ERR(pjrt_buffer_to_host(c, outs[0], got, sizeof got), TPU_ERR_OOM, "the run failed");
  CHECK_ERR(pjrt_buffer_to_host(c, outs[0], got, 0), TPU_ERR_OOM, "the run failed");
  CHECK(got[0] == 7);
  CHECK_ERR(pjrt_buffer_wait(c, outs[1]), TPU_ERR_OOM, "the run failed");
  CHECK(pjrt_buffer_ready(c, outs[0]));
  pjrt_buffer *args2[2] = {args[1], outs[0]};
  CHECK_OK(pjrt_execute(c, e, 0, args2, 2, NULL, 0, more, NULL));
  CHECK_ERR(pjrt_buffer_wait(c, more[0]), TPU_ERR_OOM, "the run failed");
  pjrt_event_free(c, done);
  for (int i = 0; i < 2; i++) {
    pjrt_buffer_free(c, args[i]);
    pjrt_buffer_free(c, outs[i]);
    pjrt_buffer_free(c, more[i]);
  }
  pjrt_exec_free(c, e);
  pjrt_client_free(c);
  t_nothing_left();
}

TEST(a_failed_run_read_through_the_plugin) { failed_run("fake"); }
TEST(a_failed_run_read_in_place) { failed_run("cpu"); }

TEST(error_kinds) {
  pjrt_client *c = t_client("fake");
  if (!c) return;
  pjrt_buffer *b = NULL;
  float host[6] = {0};
  fake.device_memory(10);
  CHECK_ERR(pjrt_buffer_from_host(c, 0, host, T_F32, (int64_t[]){6}, 1, &b), TPU_ERR_OOM, "out of device memory");
  CHECK(!b);
  fake.reset();
  CHECK_ERR(pjrt_buffer_from_host(c, 0, host, 22, (int64_t[]){6}, 1, &b), TPU_ERR_NOT_IMPLEMENTED, "element type 22");
  pjrt_client_free(c);
  t_nothing_left();
}

TEST(a_slot_that_the_plugin_lacks) {
  pjrt_api *api;
  pjrt_client *c = NULL;
  if (!CHECK(t_open_fake())) return;
  char path[4096]; /* another name of the same file is another plugin to us */
  snprintf(path, sizeof path, "%s/./%s", strrchr(t_arg(1), '/') ? "" : ".", t_arg(1));
  fake.table("missing:69");
  fake.platform("cpu");
  if (!CHECK_OK(pjrt_load(path, &api))) return;
  CHECK_OK(pjrt_client_new(api, NULL, 0, &c));
  pjrt_buffer *b = t_put(c, 0), *d = NULL;
  CHECK_ERR(pjrt_buffer_copy_to_device(c, b, 0, &d), TPU_ERR_NOT_IMPLEMENTED,
            "(ABI 0.110) has no PJRT_Buffer_CopyToDevice; a newer plugin");
  pjrt_buffer_free(c, b);
  pjrt_client_free(c);
  CHECK_INT(fake.live("all"), 0);
}

/* ---- several threads --------------------------------------------------------------------------------------------- */

typedef struct {
  pjrt_client *c;
  pjrt_exec *e;
  int device, failures;
} job;

static void *run_many(void *arg) {
  job *j = arg;
  static const int64_t dims[2] = {2, 3};
  const float host[6] = {1, 2, 3, 4, 5, 6};
  for (int i = 0; i < 200; i++) {
    pjrt_buffer *args[2] = {NULL, NULL}, *outs[2] = {NULL, NULL};
    float got[6];
    tpu_err *e = pjrt_buffer_from_host(j->c, j->device, host, T_F32, dims, 2, &args[0]);
    if (!e) e = pjrt_buffer_from_host(j->c, j->device, host, T_F32, dims, 2, &args[1]);
    if (!e) e = pjrt_execute(j->c, j->e, j->device, args, 2, NULL, 0, outs, NULL);
    if (!e) e = pjrt_buffer_to_host(j->c, outs[0], got, sizeof got);
    j->failures += e != NULL;
    tpu_err_free(e);
    for (int k = 0; k < 2; k++) {
      pjrt_buffer_free(j->c, args[k]);
      pjrt_buffer_free(j->c, outs[k]);
    }
  }
  return NULL;
}

TEST(four_threads_run_one_executable) {
  pjrt_client *c = t_client("fake");
  if (!c) return;
  pjrt_exec *e = compile(c, t_add);
  pthread_t t[4];
  job jobs[4];
  for (int i = 0; i < 4; i++) {
    jobs[i] = (job){c, e, i, 0};
    CHECK(!pthread_create(&t[i], NULL, run_many, &jobs[i]));
  }
  for (int i = 0; i < 4; i++) {
    pthread_join(t[i], NULL);
    CHECK_INT(jobs[i].failures, 0);
  }
  pjrt_exec_free(c, e);
  pjrt_client_free(c);
  CHECK_INT(fake.live("all"), 0);
}

TEST(a_client_that_executes_nothing) {
  pjrt_api *api = NULL;
  pjrt_client *c = NULL;
  CHECK_OK(pjrt_dry(&api));
  CHECK_OK(pjrt_client_new(api, NULL, 0, &c));
  if (!c) return;
  CHECK_STR(pjrt_platform(c), "dry");
  CHECK_INT(pjrt_device_count(c), 1);
  pjrt_buffer *args[2], *outs[3] = {NULL, NULL, NULL};
  float host[6] = {1, 2, 3, 4, 5, 6};
  const int64_t huge[2] = {1 << 20, 1 << 20};
  CHECK_OK(pjrt_buffer_from_host(c, 0, host, 11, huge, 2, &args[0]));
  args[1] = args[0];
  pjrt_exec *e = compile(c, t_add);
  CHECK_OK(pjrt_execute(c, e, 0, args, 2, NULL, 0, outs, NULL));
  CHECK(outs[0] && outs[1] && !outs[2]);
  CHECK(pjrt_buffer_ready(c, outs[0]));
  CHECK_OK(pjrt_buffer_to_host(c, outs[1], host, sizeof host));
  for (int i = 0; i < 6; i++) CHECK(host[i] == 0);
  for (int i = 0; i < 2; i++) pjrt_buffer_free(c, outs[i]);
  pjrt_exec_free(c, e);
  pjrt_client_free(c);
  mem_free(api);
}

T_MAIN()
