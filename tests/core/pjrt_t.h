/* pjrt_t.h - what the tests of src/pjrt share: the fake plugin (argv[1]), its control, a client. */
#ifndef TPU_TEST_PJRT_T_H
#define TPU_TEST_PJRT_T_H
#include "../fake/fake.h"
#include "base/mem.h"
#include "pjrt/pjrt.h"
#include "t.h"

enum { T_F32 = 11, T_OUT_OF_MEMORY = 8 /* PJRT error codes */, T_INTERNAL = 13 };

static fake_control fake;

static inline bool t_open_fake(void) {
  static bool done;
  if (!done) done = fake_open(t_arg(1), &fake);
  if (!done) printf("the first argument must be the path of libfake_pjrt.so\n");
  if (done) fake.reset();
  return done;
}

/* A client of the fake plugin with 4 devices; platform "cpu" reads device memory in place, others do not. */
static inline pjrt_client *t_client(const char *platform) {
  pjrt_api *api;
  pjrt_client *c = NULL;
  if (!t_check(t_open_fake(), __FILE__, __LINE__, "the fake plugin")) return NULL;
  fake.platform(platform);
  const pjrt_option opts[] = {{"cpu_device_count", 4}, {"asynchronous", 0}};
  if (CHECK_OK(pjrt_load(t_arg(1), &api))) CHECK_OK(pjrt_client_new(api, opts, 2, &c));
  return c;
}

static const char t_add[] =
    "module @m {\n  func.func public @main(%arg0: tensor<2x3xf32> {tf.aliasing_output = 0 : i32},"
    " %arg1: tensor<2x3xf32>) -> (tensor<2x3xf32> {jax.result_info = \"a, (b\"}, tensor<i64>) {\n"
    "    return %0, %1\n  }\n}\n";

static inline pjrt_buffer *t_put(pjrt_client *c, int device) {
  static const float host[6] = {1, 2, 3, 4, 5, 6};
  static const int64_t dims[2] = {2, 3};
  pjrt_buffer *b = NULL;
  CHECK_OK(pjrt_buffer_from_host(c, device, host, T_F32, dims, 2, &b));
  return b;
}

static inline void t_no_faults(void) {
  mem_fault_at(0, false);
  pjrt_fault_at(0);
  fake.fail_call(0);
}

/* Nothing of the plugin is alive, and of ours only the loaded table. */
static inline void t_nothing_left(void) {
  CHECK_INT(fake.live("all"), 0);
  CHECK_INT(mem_live(), 1);
}
#endif
