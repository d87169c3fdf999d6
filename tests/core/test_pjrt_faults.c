/* One session that uses every function of pjrt.h, with the Nth allocation and the Nth plugin call failing, for every
 * N: each failure comes out as an error, nothing leaks, nothing crashes. */
#include "pjrt_t.h"

typedef struct {
  pjrt_client *c;
  pjrt_exec *exec, *loaded;
  pjrt_buffer *args[2], *outs[2], *copy;
  pjrt_event *done, *ready;
  char *bytes;
  _Atomic int calls;
  bool asked; /* on_ready succeeded */
} session;

static void called(void *arg) { ++*(_Atomic int *)arg; }

static tpu_err *put(session *s, int i) {
  static const int64_t dims[2] = {2, 3};
  static const float host[6] = {1, 2, 3, 4, 5, 6};
  return pjrt_buffer_from_host(s->c, 1, host, T_F32, dims, 2, &s->args[i]);
}

static tpu_err *run(session *s) {
  const pjrt_option opts[] = {{"cpu_device_count", 2}, {"asynchronous", 0}};
  pjrt_api *api;
  float got[6];
  size_t n = 0, len = 0;
  TPU_TRY(pjrt_load(t_arg(1), &api));
  TPU_TRY(pjrt_client_new(api, opts, 2, &s->c));
  pjrt_device_memory(s->c, 0);
  TPU_TRY(pjrt_compile(s->c, t_add, strlen(t_add), NULL, 0, &s->exec));
  TPU_TRY(pjrt_exec_num_outputs(s->c, s->exec, &n));
  int64_t traffic = pjrt_exec_traffic(s->c, s->exec); /* a failure is no error: it is not known then */
  CHECK(traffic == 80 || traffic == 80 + 2 * 64 || traffic == -1);
  TPU_TRY(pjrt_exec_serialize(s->c, s->exec, &s->bytes, &len));
  TPU_TRY(pjrt_exec_load(s->c, s->bytes, len, &s->loaded));
  TPU_TRY(put(s, 0));
  TPU_TRY(put(s, 1));
  TPU_TRY(pjrt_execute(s->c, s->loaded, 1, s->args, 2, NULL, 0, s->outs, &s->done));
  TPU_TRY(pjrt_event_on_ready(s->c, s->done, called, &s->calls));
  s->asked = true;
  pjrt_event_ready(s->c, s->done);
  pjrt_buffer_ready(s->c, s->outs[0]);
  TPU_TRY(pjrt_buffer_event(s->c, s->outs[0], &s->ready));
  TPU_TRY(pjrt_event_wait(s->c, s->ready));
  TPU_TRY(pjrt_buffer_wait(s->c, s->outs[1]));
  TPU_TRY(pjrt_buffer_copy_to_device(s->c, s->outs[0], 0, &s->copy));
  return pjrt_buffer_to_host(s->c, s->copy, got, sizeof got);
}

static void clean(session *s) {
  if (!s->c) return;
  for (int i = 0; i < 2; i++) {
    pjrt_buffer_free(s->c, s->args[i]);
    pjrt_buffer_free(s->c, s->outs[i]);
  }
  pjrt_buffer_free(s->c, s->copy);
  pjrt_event_free(s->c, s->done);
  pjrt_event_free(s->c, s->ready);
  pjrt_exec_free(s->c, s->exec);
  pjrt_exec_free(s->c, s->loaded);
  mem_free(s->bytes);
  pjrt_client_free(s->c);
}

/* True while the fault still hit something. must_fail: no failure may be swallowed. */
static bool session_with_fault(const char *platform, bool must_fail, int64_t (*count)(void), int64_t nth) {
  fake.platform(platform);
  session s = {0};
  tpu_err *e = run(&s);
  bool fired = count() >= nth;
  t_no_faults();
  if (!fired) CHECK_OK(err_copy(e));
  if (fired && must_fail) CHECK(e);
  CHECK_INT(s.calls, s.asked);
  tpu_err_free(e);
  clean(&s);
  t_nothing_left();
  return fired;
}

static void each_allocation(const char *platform, bool sticky) {
  pjrt_api *api;
  if (!CHECK(t_open_fake()) || !CHECK_OK(pjrt_load(t_arg(1), &api))) return;
  int64_t nth = 1;
  for (bool fired = true; fired; nth++) {
    mem_fault_at(nth, sticky);
    fired = session_with_fault(platform, true, mem_fault_count, nth);
  }
  CHECK(nth > 8); /* there is something to fail */
}

/* Failed calls for the memory size or readiness are not errors: a wait or a read tells. */
static void each_call(const char *platform, bool ours) {
  pjrt_api *api;
  if (!CHECK(t_open_fake()) || !CHECK_OK(pjrt_load(t_arg(1), &api))) return;
  int64_t nth = 1;
  for (bool fired = true; fired; nth++) {
    ours ? pjrt_fault_at(nth) : fake.fail_call(nth);
    fired = session_with_fault(platform, false, ours ? pjrt_fault_count : fake.fail_count, nth);
  }
  CHECK(nth > 25);
}

TEST(each_allocation_once) { each_allocation("fake", false); }
TEST(each_allocation_for_good) { each_allocation("cpu", true); }
TEST(each_call_at_the_door) { each_call("fake", true); }
TEST(each_call_at_the_door_cpu) { each_call("cpu", true); }
TEST(each_call_in_the_plugin) { each_call("fake", false); }
TEST(each_call_in_the_plugin_cpu) { each_call("cpu", false); }

T_MAIN()
