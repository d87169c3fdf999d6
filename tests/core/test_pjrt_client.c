#include "pjrt_t.h"

TEST(what_a_client_says) {
  pjrt_client *c = t_client("cpu");
  if (!c) return;
  CHECK_STR(pjrt_platform(c), "cpu");
  CHECK_STR(pjrt_platform_version(c), "fake 1");
  CHECK_INT(pjrt_device_count(c), 4);
  CHECK_STR(pjrt_device_kind(c, 3), "fake device");
  CHECK_STR(pjrt_device_kind(c, 4), "");
  CHECK_STR(pjrt_device_kind(c, -1), "");
  fake.device_memory(12345);
  CHECK_INT(pjrt_device_memory(c, 0), 12345);
  CHECK_INT(pjrt_device_memory(c, 9), 0);
  pjrt_client_free(c);
  pjrt_client_free(NULL);
  t_nothing_left();
}

TEST(a_plugin_that_knows_no_memory_size) {
  pjrt_client *c = t_client("cpu");
  if (!c) return;
  fake.fail_call(1);
  CHECK_INT(pjrt_device_memory(c, 0), 0);
  fake.fail_call(0);
  pjrt_client_free(c);
  t_nothing_left();
}

TEST(options_have_the_right_type) {
  pjrt_api *api;
  pjrt_client *c = NULL;
  if (!CHECK(t_open_fake())) return;
  CHECK_OK(pjrt_load(t_arg(1), &api));
  CHECK_ERR(pjrt_client_new(api, (pjrt_option[]){{"colour", 7}}, 1, &c), TPU_ERR_RUNTIME,
            "could be made: PJRT_Client_Create: fake: unknown create option colour of type 1");
  CHECK(!c);
  CHECK_OK(pjrt_client_new(api, NULL, 0, &c));
  if (c) CHECK_INT(pjrt_device_count(c), 1);
  pjrt_client_free(c);
  CHECK_ERR(pjrt_client_new(api, (pjrt_option[]){{"cpu_device_count", 0}}, 1, &c), TPU_ERR_RUNTIME, "shows 0 devices");
  t_nothing_left();
}

static const pjrt_option options[] = {{"cpu_device_count", 3}, {"asynchronous", 1}};

TEST(every_allocation_may_fail) {
  pjrt_api *api;
  if (!CHECK(t_open_fake())) return;
  CHECK_OK(pjrt_load(t_arg(1), &api));
  for (int sticky = 0; sticky < 2; sticky++)
    for (int64_t nth = 1;; nth++) {
      pjrt_client *c = NULL;
      mem_fault_at(nth, sticky);
      tpu_err *e = pjrt_client_new(api, options, 2, &c);
      bool fired = mem_fault_count() >= nth;
      mem_fault_at(0, false);
      CHECK(fired == !!e && fired == !c);
      if (e) CHECK_INT(tpu_err_get_kind(e), TPU_ERR_OOM);
      tpu_err_free(e);
      pjrt_client_free(c);
      t_nothing_left();
      if (!fired) break;
    }
}

TEST(every_call_may_fail) {
  pjrt_api *api;
  if (!CHECK(t_open_fake())) return;
  CHECK_OK(pjrt_load(t_arg(1), &api));
  for (int ours = 0; ours < 2; ours++)
    for (int64_t nth = 1;; nth++) {
      pjrt_client *c = NULL;
      ours ? pjrt_fault_at(nth) : fake.fail_call(nth);
      tpu_err *e = pjrt_client_new(api, options, 2, &c);
      bool fired = (ours ? pjrt_fault_count() : fake.fail_count()) >= nth;
      ours ? pjrt_fault_at(0) : fake.fail_call(0);
      CHECK(fired == !!e && fired == !c);
      tpu_err_free(e);
      pjrt_client_free(c);
      t_nothing_left();
      if (!fired) break;
    }
}

T_MAIN()
