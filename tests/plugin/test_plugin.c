/* Conformance of a real PJRT plugin, given as the first argument, as far as the product relies on it. */
#include <stdatomic.h>
#include <unistd.h>

#include "../core/t.h"
#include "base/mem.h"
#include "pjrt/pjrt.h"

enum { F32 = 11, S32 = 4, F64 = 12, PRED = 1, DEVICES = 4 };

static pjrt_client *the_client;

/* The product makes one client a process; so does this program. */
static pjrt_client *client(void) {
  if (the_client) return the_client;
  pjrt_api *api;
  const char *path = t_arg(1);
  if (!CHECK(path) || !CHECK_OK(pjrt_load(path, &api))) return NULL;
  const pjrt_option opts[] = {{"cpu_device_count", DEVICES}, {"asynchronous", t_arg(2) ? atoi(t_arg(2)) : 1}};
  CHECK_OK(pjrt_client_new(api, opts, 2, &the_client));
  return the_client;
}

static pjrt_exec *compile(const char *text) {
  pjrt_exec *e = NULL;
  if (client()) CHECK_OK(pjrt_compile(client(), text, strlen(text), NULL, 0, &e));
  return e;
}

static pjrt_buffer *put(int device, const float *host, int64_t n) {
  pjrt_buffer *b = NULL;
  CHECK_OK(pjrt_buffer_from_host(client(), device, host, F32, &n, 1, &b));
  return b;
}

static const char add_text[] =
    "module @m { func.func public @main(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {\n"
    "  %0 = stablehlo.add %a, %b : tensor<4xf32>\n  return %0 : tensor<4xf32>\n} }\n";

static const char donate_text[] =
    "module @m { func.func public @main(%a: tensor<4xf32> {tf.aliasing_output = 0 : i32}, %b: tensor<4xf32>)"
    " -> tensor<4xf32> {\n  %0 = stablehlo.add %a, %b : tensor<4xf32>\n  return %0 : tensor<4xf32>\n} }\n";

static const float one_to_four[4] = {1, 2, 3, 4};

/* out = a + b on a device; the executable may donate a unless it is in keep. */
static pjrt_buffer *add(pjrt_exec *e, int device, pjrt_buffer *a, pjrt_buffer *b, bool keep_a) {
  pjrt_buffer *args[2] = {a, b}, *out = NULL;
  const int64_t keep[1] = {0};
  CHECK_OK(pjrt_execute(client(), e, device, args, 2, keep, keep_a, &out, NULL));
  return out;
}

static bool holds(pjrt_buffer *b, float scale) {
  float got[4] = {-1, -1, -1, -1};
  if (!CHECK_OK(pjrt_buffer_to_host(client(), b, got, sizeof got))) return false;
  bool ok = true;
  for (int i = 0; i < 4; i++) ok &= got[i] == scale * one_to_four[i];
  if (!ok) printf("got %g %g %g %g, expected %g times 1 2 3 4\n", got[0], got[1], got[2], got[3], scale);
  return ok;
}

TEST(what_the_client_says) {
  pjrt_client *c = client();
  if (!c) return;
  CHECK(*pjrt_platform(c));
  CHECK(pjrt_device_count(c) >= 1);
  CHECK(*pjrt_device_kind(c, 0));
  CHECK_STR(pjrt_device_kind(c, 9999), "");
  CHECK(pjrt_device_memory(c, 0) >= 0);
  pjrt_api *api;
  CHECK_OK(pjrt_load(t_arg(1), &api));
  int major, minor;
  pjrt_api_version(api, &major, &minor);
  printf("platform %s (%s), ABI %d.%d, stablehlo %s, %d x %s, %" PRId64 " bytes\n", pjrt_platform(c),
         pjrt_platform_version(c), major, minor, pjrt_stablehlo_version(api), pjrt_device_count(c),
         pjrt_device_kind(c, 0), pjrt_device_memory(c, 0));
  CHECK(strchr(pjrt_stablehlo_version(api), '.'));
}

/* An old plugin (0.106) ignores what it does not know; a newer one must name it. */
TEST(unknown_create_option_is_named) {
  pjrt_api *api;
  pjrt_client *c = NULL;
  if (!client() || strcmp(pjrt_platform(client()), "cpu") != 0) SKIP("a second client is made only on a CPU");
  CHECK_OK(pjrt_load(t_arg(1), &api));
  int major, minor;
  pjrt_api_version(api, &major, &minor);
  tpu_err *e = pjrt_client_new(api, (pjrt_option[]){{"no_such_option", 1}}, 1, &c);
  if (minor > 106) CHECK(e && !c);
  if (e) CHECK_HAS(tpu_err_message(e), "no_such_option");
  tpu_err_free(e);
  pjrt_client_free(c);
}

TEST(one_executable_on_every_device) {
  pjrt_client *c = client();
  pjrt_exec *e = compile(add_text);
  if (!e) return;
  size_t n = 0;
  CHECK_OK(pjrt_exec_num_outputs(c, e, &n));
  CHECK_INT(n, 1);
  for (int d = 0; d < pjrt_device_count(c); d++) {
    pjrt_buffer *a = put(d, one_to_four, 4), *out = add(e, d, a, a, false);
    if (out) CHECK(holds(out, 2));
    pjrt_buffer_free(c, out);
    pjrt_buffer_free(c, a);
  }
  CHECK_ERR(pjrt_execute(c, e, 99, NULL, 0, NULL, 0, NULL, NULL), TPU_ERR_RUNTIME, "invalid device 99");
  pjrt_exec_free(c, e);
}

TEST(the_same_executable_donates_and_keeps) {
  pjrt_client *c = client();
  pjrt_exec *e = compile(donate_text);
  if (!e) return;
  pjrt_buffer *a = put(0, one_to_four, 4), *b = put(0, one_to_four, 4);
  pjrt_buffer *kept = add(e, 0, a, b, true);
  CHECK(holds(kept, 2));
  CHECK(holds(a, 1)); /* still there */
  pjrt_buffer *donated = add(e, 0, a, b, false);
  CHECK(holds(donated, 2));
  float host[4];
  tpu_err *gone = pjrt_buffer_to_host(c, a, host, sizeof host);
  CHECK(gone); /* a was given away */
  tpu_err_free(gone);
  pjrt_buffer *args[2] = {a, b}, *out = NULL;
  tpu_err *used = pjrt_execute(c, e, 0, args, 2, NULL, 0, &out, NULL);
  CHECK(used);
  tpu_err_free(used);
  CHECK(pjrt_buffer_ready(c, a)); /* a gone buffer makes no one wait */
  pjrt_buffer_free(c, kept);
  pjrt_buffer_free(c, donated);
  pjrt_buffer_free(c, a);
  pjrt_buffer_free(c, b);
  pjrt_exec_free(c, e);
}

TEST(donation_chain) {
  pjrt_client *c = client();
  pjrt_exec *e = compile(donate_text);
  if (!e) return;
  pjrt_buffer *x = put(0, one_to_four, 4), *b = put(0, one_to_four, 4);
  for (int i = 0; i < 100; i++) {
    pjrt_buffer *y = add(e, 0, x, b, false);
    pjrt_buffer_free(c, x); /* while the run may still use it */
    x = y;
  }
  CHECK(holds(x, 101));
  pjrt_buffer_free(c, x);
  pjrt_buffer_free(c, b);
  pjrt_exec_free(c, e);
}

TEST(zero_elements) {
  pjrt_client *c = client();
  pjrt_exec *e = compile(
      "func.func public @main(%a: tensor<0x3xf32>) -> (tensor<3x0xf32>, tensor<3xf32>) {\n"
      "  %0 = stablehlo.transpose %a, dims = [1, 0] : (tensor<0x3xf32>) -> tensor<3x0xf32>\n"
      "  %z = stablehlo.constant dense<7.0> : tensor<f32>\n"
      "  %1 = stablehlo.broadcast_in_dim %z, dims = [] : (tensor<f32>) -> tensor<3xf32>\n"
      "  return %0, %1 : tensor<3x0xf32>, tensor<3xf32>\n}\n");
  if (!e) return;
  const int64_t dims[2] = {0, 3};
  pjrt_buffer *a = NULL, *outs[2] = {NULL, NULL};
  CHECK_OK(pjrt_buffer_from_host(c, 0, NULL, F32, dims, 2, &a));
  CHECK_OK(pjrt_execute(c, e, 0, &a, 1, NULL, 0, outs, NULL));
  CHECK_OK(pjrt_buffer_to_host(c, outs[0], NULL, 0));
  float got[3] = {0};
  CHECK_OK(pjrt_buffer_to_host(c, outs[1], got, sizeof got));
  CHECK(got[0] == 7 && got[2] == 7);
  pjrt_buffer_free(c, outs[0]);
  pjrt_buffer_free(c, outs[1]);
  pjrt_buffer_free(c, a);
  pjrt_exec_free(c, e);
}

TEST(no_arguments) {
  pjrt_client *c = client();
  pjrt_exec *e = compile(
      "func.func public @main() -> (tensor<i32>, tensor<i32>) {\n"
      "  %0 = stablehlo.constant dense<5> : tensor<i32>\n"
      "  return %0, %0 : tensor<i32>, tensor<i32>\n}\n");
  if (!e) return;
  pjrt_buffer *outs[2] = {NULL, NULL};
  int32_t got[2] = {0, 0};
  CHECK_OK(pjrt_execute(c, e, 0, NULL, 0, NULL, 0, outs, NULL));
  for (int i = 0; i < 2; i++) {
    CHECK_OK(pjrt_buffer_to_host(c, outs[i], &got[i], sizeof got[i]));
    CHECK_INT(got[i], 5);
    pjrt_buffer_free(c, outs[i]);
  }
  pjrt_exec_free(c, e);
}

TEST(scalars_and_small_types) {
  pjrt_client *c = client();
  if (!c) return;
  const int32_t seven = 7;
  pjrt_buffer *b = NULL;
  CHECK_OK(pjrt_buffer_from_host(c, 0, &seven, S32, NULL, 0, &b));
  int32_t got = 0;
  CHECK_OK(pjrt_buffer_to_host(c, b, &got, sizeof got));
  CHECK_INT(got, 7);
  pjrt_buffer_free(c, b);
  const unsigned char flags[5] = {1, 0, 1, 1, 0};
  unsigned char back[5] = {9, 9, 9, 9, 9};
  CHECK_OK(pjrt_buffer_from_host(c, 0, flags, PRED, (int64_t[]){5}, 1, &b));
  CHECK_OK(pjrt_buffer_to_host(c, b, back, sizeof back));
  CHECK(!memcmp(flags, back, sizeof flags));
  pjrt_buffer_free(c, b);
}

TEST(host_memory_is_free_on_return) {
  pjrt_client *c = client();
  if (!c) return;
  enum { N = 1 << 18 };
  float *host = malloc(N * sizeof *host), *back = malloc(N * sizeof *back);
  for (int i = 0; i < N; i++) host[i] = (float)i;
  pjrt_buffer *b = put(0, host, N);
  memset(host, 0xff, N * sizeof *host);
  CHECK_OK(pjrt_buffer_to_host(c, b, back, N * sizeof *back));
  bool ok = true;
  for (int i = 0; i < N; i++) ok &= back[i] == (float)i;
  CHECK(ok);
  pjrt_buffer_free(c, b);
  free(host);
  free(back);
}

TEST(a_transposed_result_comes_back_row_major) {
  pjrt_client *c = client();
  pjrt_exec *e = compile(
      "func.func public @main(%a: tensor<2x3x4xf32>) -> tensor<4x2x3xf32> {\n"
      "  %0 = stablehlo.transpose %a, dims = [2, 0, 1] : (tensor<2x3x4xf32>) -> tensor<4x2x3xf32>\n"
      "  return %0 : tensor<4x2x3xf32>\n}\n");
  if (!e) return;
  float host[24], got[24];
  for (int i = 0; i < 24; i++) host[i] = (float)i;
  pjrt_buffer *a = NULL, *out = NULL;
  CHECK_OK(pjrt_buffer_from_host(c, 0, host, F32, (int64_t[]){2, 3, 4}, 3, &a));
  CHECK_OK(pjrt_execute(c, e, 0, &a, 1, NULL, 0, &out, NULL));
  CHECK_OK(pjrt_buffer_to_host(c, out, got, sizeof got));
  bool ok = true;
  for (int i = 0; i < 2; i++)
    for (int j = 0; j < 3; j++)
      for (int k = 0; k < 4; k++) ok &= got[(k * 2 + i) * 3 + j] == host[(i * 3 + j) * 4 + k];
  CHECK(ok);
  pjrt_buffer_free(c, a);
  pjrt_buffer_free(c, out);
  pjrt_exec_free(c, e);
}

TEST(a_read_of_the_wrong_size_is_an_error) {
  pjrt_client *c = client();
  if (!c) return;
  pjrt_buffer *b = put(0, one_to_four, 4);
  float got[8];
  tpu_err *e = pjrt_buffer_to_host(c, b, got, 4);
  CHECK(e);
  tpu_err_free(e);
  pjrt_buffer_free(c, b);
}

TEST(copy_to_every_device) {
  pjrt_client *c = client();
  if (!c) return;
  pjrt_buffer *a = put(0, one_to_four, 4);
  for (int d = 0; d < pjrt_device_count(c); d++) {
    pjrt_buffer *b = NULL;
    if (!CHECK_OK(pjrt_buffer_copy_to_device(c, a, d, &b))) continue;
    CHECK(holds(b, 1));
    pjrt_buffer_free(c, b);
  }
  pjrt_buffer *b = NULL;
  CHECK_ERR(pjrt_buffer_copy_to_device(c, a, -1, &b), TPU_ERR_RUNTIME, "invalid device -1");
  pjrt_buffer_free(c, a);
}

TEST(malformed_programs_are_errors) {
  pjrt_client *c = client();
  if (!c) return;
  static const char *const bad[] = {
      "",
      "not mlir at all",
      "module {",
      "func.func public @main(%a: tensor<4xf32>) -> tensor<4xf32> { return %b : tensor<4xf32> }",
      "func.func public @main(%a: tensor<4xf32>) -> tensor<5xf32> {\n"
      "  %0 = stablehlo.add %a, %a : tensor<5xf32>\n  return %0 : tensor<5xf32>\n}",
      "func.func public @main(%a: tensor<4xf32>) -> tensor<4xf32> {\n"
      "  %0 = stablehlo.no_such_op %a : tensor<4xf32>\n  return %0 : tensor<4xf32>\n}"};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    pjrt_exec *e = NULL;
    tpu_err *err = pjrt_compile(c, bad[i], strlen(bad[i]), NULL, 0, &e);
    if (!CHECK(err)) printf("this text was accepted: %s\n", bad[i]);
    if (err) CHECK_HAS(tpu_err_message(err), "PJRT_Client_Compile: ");
    tpu_err_free(err);
    pjrt_exec_free(c, e);
  }
  pjrt_exec *e = compile(add_text); /* and life goes on */
  pjrt_exec_free(c, e);
}

TEST(wrong_arguments_are_errors) {
  pjrt_client *c = client();
  pjrt_exec *e = compile(add_text);
  if (!e) return;
  pjrt_buffer *a = put(0, one_to_four, 4), *big = put(0, (float[8]){0}, 8), *out = NULL;
  tpu_err *err = pjrt_execute(c, e, 0, &a, 1, NULL, 0, &out, NULL);
  CHECK(err);
  tpu_err_free(err);
  pjrt_buffer *args[2] = {a, big};
  err = pjrt_execute(c, e, 0, args, 2, NULL, 0, &out, NULL);
  if (!err) { /* some plugins find out while they run; then the result holds the error */
    err = pjrt_buffer_wait(c, out);
    pjrt_buffer_free(c, out);
  }
  CHECK(err);
  tpu_err_free(err);
  pjrt_buffer_free(c, a);
  pjrt_buffer_free(c, big);
  pjrt_exec_free(c, e);
}

TEST(serialize_and_load) {
  pjrt_client *c = client();
  pjrt_exec *e = compile(donate_text), *loaded = NULL;
  if (!e) return;
  char *bytes = NULL;
  size_t len = 0;
  if (CHECK_OK(pjrt_exec_serialize(c, e, &bytes, &len)) && CHECK(len > 0) &&
      CHECK_OK(pjrt_exec_load(c, bytes, len, &loaded))) {
    size_t n = 0;
    CHECK_OK(pjrt_exec_num_outputs(c, loaded, &n));
    CHECK_INT(n, 1);
    for (int d = 0; d < pjrt_device_count(c); d++) {
      pjrt_buffer *a = put(d, one_to_four, 4), *b = put(d, one_to_four, 4);
      pjrt_buffer *kept = add(loaded, d, a, b, true), *out = add(loaded, d, a, b, false);
      CHECK(holds(kept, 2) && holds(out, 2));
      float host[4];
      tpu_err *gone = pjrt_buffer_to_host(c, a, host, sizeof host);
      CHECK(gone);
      tpu_err_free(gone);
      pjrt_buffer_free(c, kept);
      pjrt_buffer_free(c, out);
      pjrt_buffer_free(c, a);
      pjrt_buffer_free(c, b);
    }
  }
  pjrt_exec_free(c, loaded);
  loaded = NULL;
  tpu_err *err = pjrt_exec_load(c, "garbage", 7, &loaded);
  CHECK(err && !loaded);
  tpu_err_free(err);
  mem_free(bytes);
  pjrt_exec_free(c, e);
}

static void set_flag(void *arg) { atomic_store((_Atomic int *)arg, 1); }

static bool flag_comes(_Atomic int *flag) {
  for (int ms = 0; ms < 5000 && !atomic_load(flag); ms++) usleep(1000);
  return atomic_load(flag);
}

TEST(events) {
  pjrt_client *c = client();
  pjrt_exec *e = compile(add_text);
  if (!e) return;
  pjrt_buffer *a = put(0, one_to_four, 4), *args[2] = {a, a}, *out = NULL;
  pjrt_event *done = NULL, *ready = NULL;
  CHECK_OK(pjrt_execute(c, e, 0, args, 2, NULL, 0, &out, &done));
  if (CHECK(done)) {
    static _Atomic int flag;
    CHECK_OK(pjrt_event_on_ready(c, done, set_flag, &flag));
    CHECK_OK(pjrt_event_wait(c, done));
    CHECK(pjrt_event_ready(c, done));
    CHECK(flag_comes(&flag));
  }
  CHECK_OK(pjrt_buffer_event(c, out, &ready));
  CHECK_OK(pjrt_event_wait(c, ready));
  CHECK(pjrt_event_ready(c, ready));
  CHECK(pjrt_buffer_ready(c, out));
  CHECK_OK(pjrt_buffer_wait(c, out));
  pjrt_event_free(c, ready);
  pjrt_event_free(c, done);
  pjrt_buffer_free(c, out);
  pjrt_buffer_free(c, a);
  pjrt_exec_free(c, e);
}

/* A long run: 'execute' must return before it is over where the plugin is asynchronous, and a read must wait. */
TEST(a_read_waits_for_a_long_run) {
  pjrt_client *c = client();
  pjrt_exec *e = compile(
      "func.func public @main(%a: tensor<512x512xf32>) -> tensor<512x512xf32> {\n"
      "  %n = stablehlo.constant dense<0> : tensor<i32>\n"
      "  %r:2 = stablehlo.while(%i = %n, %x = %a) : tensor<i32>, tensor<512x512xf32>\n"
      "  cond {\n    %l = stablehlo.constant dense<10> : tensor<i32>\n"
      "    %p = stablehlo.compare LT, %i, %l : (tensor<i32>, tensor<i32>) -> tensor<i1>\n"
      "    stablehlo.return %p : tensor<i1>\n  } do {\n"
      "    %one = stablehlo.constant dense<1> : tensor<i32>\n"
      "    %j = stablehlo.add %i, %one : tensor<i32>\n"
      "    %y = stablehlo.dot_general %x, %a, contracting_dims = [1] x [0]"
      " : (tensor<512x512xf32>, tensor<512x512xf32>) -> tensor<512x512xf32>\n"
      "    stablehlo.return %j, %y : tensor<i32>, tensor<512x512xf32>\n  }\n"
      "  return %r#1 : tensor<512x512xf32>\n}\n");
  if (!e) return;
  enum { N = 512 };
  float *host = calloc(N * N, sizeof *host);
  for (int i = 0; i < N; i++) host[i * N + i] = 2; /* 2 I, to the power of 11 */
  pjrt_buffer *a = NULL, *out = NULL;
  CHECK_OK(pjrt_buffer_from_host(c, 0, host, F32, (int64_t[]){N, N}, 2, &a));
  CHECK_OK(pjrt_execute(c, e, 0, &a, 1, NULL, 0, &out, NULL));
  printf("ready right after execute: %s\n", pjrt_buffer_ready(c, out) ? "yes" : "no");
  pjrt_buffer_free(c, a); /* lives on in the run */
  CHECK_OK(pjrt_buffer_to_host(c, out, host, N * N * sizeof *host));
  CHECK(host[0] == 2048 && host[1] == 0 && host[N * N - 1] == 2048);
  pjrt_buffer_free(c, out);
  pjrt_exec_free(c, e);
  free(host);
}

TEST(out_of_device_memory_is_an_error) {
  pjrt_client *c = client();
  if (!c) return;
  /* 2^50 bytes: more than any device has. */
  pjrt_exec *e = NULL;
  const char *text =
      "func.func public @main(%a: tensor<f32>) -> tensor<281474976710656xf32> {\n"
      "  %0 = stablehlo.broadcast_in_dim %a, dims = [] : (tensor<f32>) -> tensor<281474976710656xf32>\n"
      "  return %0 : tensor<281474976710656xf32>\n}\n";
  tpu_err *err = pjrt_compile(c, text, strlen(text), NULL, 0, &e);
  if (!err) {
    const float x = 1;
    pjrt_buffer *a = NULL, *out = NULL;
    CHECK_OK(pjrt_buffer_from_host(c, 0, &x, F32, NULL, 0, &a));
    err = pjrt_execute(c, e, 0, &a, 1, NULL, 0, &out, NULL);
    if (!err) err = pjrt_buffer_wait(c, out);
    pjrt_buffer_free(c, out);
    pjrt_buffer_free(c, a);
    pjrt_exec_free(c, e);
  }
  if (CHECK(err)) printf("kind %d: %.100s\n", (int)tpu_err_get_kind(err), tpu_err_message(err));
  CHECK_INT(tpu_err_get_kind(err), TPU_ERR_OOM);
  tpu_err_free(err);
}

/* The temporary memory of this program (2^48 bytes) is asked for when it runs. */
static const char greedy_text[] =
    "func.func public @main(%a: tensor<4xf32>) -> tensor<4xf32> {\n"
    "  %0 = stablehlo.broadcast_in_dim %a, dims = [0] : (tensor<4xf32>) -> tensor<4x17592186044416xf32>\n"
    "  %1 = \"stablehlo.sort\"(%0) ({\n  ^bb0(%x: tensor<f32>, %y: tensor<f32>):\n"
    "    %p = stablehlo.compare LT, %x, %y : (tensor<f32>, tensor<f32>) -> tensor<i1>\n"
    "    stablehlo.return %p : tensor<i1>\n  }) {dimension = 1 : i64} : (tensor<4x17592186044416xf32>)"
    " -> tensor<4x17592186044416xf32>\n"
    "  %2 = stablehlo.slice %1 [0:4, 5:6] : (tensor<4x17592186044416xf32>) -> tensor<4x1xf32>\n"
    "  %3 = stablehlo.reshape %2 : (tensor<4x1xf32>) -> tensor<4xf32>\n  return %3 : tensor<4xf32>\n}\n";

TEST(a_failed_run_gives_its_error_to_every_reader) {
  pjrt_client *c = client();
  if (!c) return;
  pjrt_exec *e = NULL, *plus = compile(add_text);
  tpu_err *err = pjrt_compile(c, greedy_text, sizeof greedy_text - 1, NULL, 0, &e);
  if (err) {
    tpu_err_free(err);
    pjrt_exec_free(c, plus);
    SKIP("this plugin finds out already when it compiles");
  }
  pjrt_buffer *a = put(0, one_to_four, 4), *bad = NULL;
  pjrt_event *done = NULL;
  err = pjrt_execute(c, e, 0, &a, 1, NULL, 0, &bad, &done);
  printf("the error comes from %s\n", err ? "execute" : "the buffer");
  if (err) {
    CHECK_INT(tpu_err_get_kind(err), TPU_ERR_OOM);
    tpu_err_free(err);
  } else {
    float got[4];
    CHECK_ERR(pjrt_event_wait(c, done), TPU_ERR_OOM, "");
    CHECK_ERR(pjrt_buffer_to_host(c, bad, got, sizeof got), TPU_ERR_OOM, "");
    CHECK_ERR(pjrt_buffer_wait(c, bad), TPU_ERR_OOM, "");
    CHECK(pjrt_buffer_ready(c, bad));
    pjrt_buffer *args[2] = {bad, a}, *out = NULL; /* who uses it fails as well */
    err = pjrt_execute(c, plus, 0, args, 2, NULL, 0, &out, NULL);
    if (!err) err = pjrt_buffer_to_host(c, out, got, sizeof got);
    if (CHECK(err)) CHECK_HAS(tpu_err_message(err), "emory"); /* its kind may differ, the reason is told */
    tpu_err_free(err);
    pjrt_buffer_free(c, out);
    pjrt_event_free(c, done);
    pjrt_buffer_free(c, bad);
  }
  pjrt_buffer *sum = add(plus, 0, a, a, false); /* and life goes on */
  CHECK(holds(sum, 2));
  pjrt_buffer_free(c, sum);
  pjrt_buffer_free(c, a);
  pjrt_exec_free(c, e);
  pjrt_exec_free(c, plus);
}

TEST(nothing_is_left) {
  pjrt_client *c = client();
  if (!c || strcmp(pjrt_platform(c), "cpu") != 0) SKIP("the client of a device that others may hold is kept");
  pjrt_client_free(c);
  CHECK_INT(mem_live(), 1); /* the loaded plugin */
}

T_MAIN()
