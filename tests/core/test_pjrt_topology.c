/* Compiling for a topology: what comes out, what is refused, and one session with every allocation and every plugin
 * call failing in turn. */
#include "pjrt_t.h"

static const char four[] = "fake:2x2";

typedef struct {
  pjrt_topology *t;
  pjrt_aot *x;
  char *program, *bytes, *options;
  int figures;
  double flops;
} session;

static void figure(void *ctx, const char *name, double value) {
  session *s = ctx;
  s->figures++;
  if (!strcmp(name, "flops")) s->flops = value;
}

static tpu_err *run(session *s) {
  pjrt_api *api;
  pjrt_memory m;
  size_t n;
  char format[32];
  TPU_TRY(pjrt_load(t_arg(1), &api));
  TPU_TRY(pjrt_topology_new(api, four, &s->t));
  TPU_TRY(pjrt_topology_compile(s->t, t_add, strlen(t_add), NULL, 0, &s->x));
  TPU_TRY(pjrt_aot_memory(s->t, s->x, &m));
  TPU_TRY(pjrt_aot_cost(s->t, s->x, figure, s));
  TPU_TRY(pjrt_aot_program(s->t, s->x, &s->program, &n, format));
  pjrt_place p;
  TPU_TRY(pjrt_topology_device(s->t, 3, &p));
  TPU_TRY(pjrt_partition_options((const int[]){10, 300}, 2, &s->options, &n));
  return pjrt_aot_serialize(s->t, s->x, &s->bytes, &n);
}

static void clean(session *s) {
  mem_free(s->program);
  mem_free(s->bytes);
  mem_free(s->options);
  if (s->t) pjrt_aot_free(s->t, s->x);
  pjrt_topology_free(s->t);
}

TEST(what_a_topology_and_its_program_say) {
  session s = {0};
  if (!CHECK(t_open_fake())) return;
  fake.platform("fake");
  CHECK_OK(run(&s));
  CHECK_INT(pjrt_topology_device_count(s.t), 4);
  CHECK_STR(pjrt_topology_kind(s.t), "fake chip");
  CHECK_STR(pjrt_topology_platform(s.t), "fake");
  CHECK_STR(pjrt_topology_platform_version(s.t), "fake 1");
  pjrt_memory m;
  CHECK_OK(pjrt_aot_memory(s.t, s.x, &m));
  CHECK_INT(m.arguments, 48); /* two float32[2, 3] */
  CHECK_INT(m.outputs, 32);   /* one of them and an int64 */
  CHECK_INT(m.temporaries, 64);
  CHECK_INT(m.peak, 144);
  CHECK_INT(s.figures, 2); /* a text is no figure */
  CHECK(s.flops == 12);
  char format[32], *program;
  size_t n;
  CHECK_OK(pjrt_aot_program(s.t, s.x, &program, &n, format));
  CHECK_INT((int64_t)n, (int64_t)strlen(t_add));
  CHECK(!memcmp(program, t_add, n));
  CHECK_STR(format, "mlir");
  mem_free(program);
  clean(&s);
  t_nothing_left();
}

/* Field numbers and kinds as in what JAX 0.10.2 serializes for such options. */
TEST(options_of_partitions) {
  static const char want[] =
      "\x1a\x1d\x20\x01\x28\x02\x30\x01\x4a\x0d\x08\x01\x10\x02\x1a\x02\x08\x0a\x1a\x03\x08\xac\x02"
      "\x60\x01\x90\x01\x01\x98\x01\x01";
  char *options;
  size_t n;
  CHECK_OK(pjrt_partition_options((const int[]){10, 300}, 2, &options, &n));
  CHECK_INT((int64_t)n, (int64_t)sizeof want - 1);
  CHECK(n == sizeof want - 1 && !memcmp(options, want, n));
  mem_free(options);
}

TEST(where_devices_are) {
  session s = {0};
  pjrt_place p;
  if (!CHECK(t_open_fake()) || !CHECK_OK(run(&s))) return;
  CHECK_OK(pjrt_topology_device(s.t, 2, &p));
  CHECK_INT(p.id, 12);
  CHECK_INT(p.ncoords, 3); /* two of the chip, and the device on it */
  CHECK_INT(p.coords[0], 0);
  CHECK_INT(p.coords[1], 1);
  CHECK_INT(p.coords[2], 0);
  clean(&s);
  t_nothing_left();
}

TEST(an_unknown_topology_and_a_bad_program) {
  pjrt_api *api;
  pjrt_topology *t;
  pjrt_aot *x;
  if (!CHECK(t_open_fake()) || !CHECK_OK(pjrt_load(t_arg(1), &api))) return;
  CHECK_ERR(pjrt_topology_new(api, "v5e:2x2", &t), TPU_ERR_RUNTIME, "unknown topology v5e:2x2");
  CHECK(!t);
  CHECK_OK(pjrt_topology_new(api, four, &t));
  CHECK_ERR(pjrt_topology_compile(t, "nonsense", 8, NULL, 0, &x), TPU_ERR_RUNTIME, "cannot be read");
  CHECK(!x);
  pjrt_topology_free(t);
  t_nothing_left();
}

/* True while the fault still hit something. No failure may be swallowed. */
static bool session_with_fault(int64_t (*count)(void), int64_t nth) {
  session s = {0};
  tpu_err *e = run(&s);
  bool fired = count() >= nth;
  t_no_faults();
  CHECK_INT(e != NULL, fired);
  tpu_err_free(e);
  clean(&s);
  t_nothing_left();
  return fired;
}

static void each(void (*arm)(int64_t), int64_t (*count)(void), int64_t least) {
  pjrt_api *api;
  if (!CHECK(t_open_fake()) || !CHECK_OK(pjrt_load(t_arg(1), &api))) return;
  int64_t nth = 1;
  for (bool fired = true; fired; nth++) {
    arm(nth);
    fired = session_with_fault(count, nth);
  }
  CHECK(nth > least);
}

static void allocation(int64_t nth) { mem_fault_at(nth, false); }
static void plugin_call(int64_t nth) { fake.fail_call(nth); }
static int64_t plugin_count(void) { return fake.fail_count(); }

TEST(each_allocation_fails) { each(allocation, mem_fault_count, 6); }
TEST(each_call_at_the_door_fails) { each(pjrt_fault_at, pjrt_fault_count, 10); }
TEST(each_call_in_the_plugin_fails) { each(plugin_call, plugin_count, 10); }

TEST(the_public_functions) {
  tpu_topology *t = NULL, *again = NULL;
  tpu_topology_info info;
  tpu_aot *a = NULL;
  tpu_aot_memory_stats m;
  const char *bytes, *format;
  size_t n;
  if (!CHECK(t_open_fake())) return;
  CHECK_OK(tpu_topology_get(t_arg(1), four, &t));
  CHECK_OK(tpu_topology_get(t_arg(1), four, &again));
  CHECK(t == again);
  tpu_topology_describe(t, &info);
  CHECK_STR(info.name, four);
  CHECK_INT(info.device_count, 4);
  CHECK_STR(info.stablehlo_version, "1.2.3");
  CHECK_ERR(tpu_topology_get("/no/such/libtpu.so", four, &again), TPU_ERR_RUNTIME, "cannot be opened");
  CHECK_ERR(tpu_aot_compile(t, "nonsense", 8, NULL, 0, &a), TPU_ERR_RUNTIME, "cannot be read");
  tpu_topology_place place;
  int ids[4];
  CHECK_OK(tpu_topology_device(t, 1, &place));
  CHECK_INT(place.id, 11);
  CHECK_ERR(tpu_topology_device(t, 4, &place), TPU_ERR_INDEX, "has 4 devices, and none with the number 4");
  CHECK_OK(tpu_topology_assign(t, 1, (const int64_t[]){4}, ids));
  CHECK_OK(tpu_aot_compile_partitions(t, t_add, strlen(t_add), ids, &a));
  tpu_aot_release(a);
  a = NULL;
  CHECK(!a);
  if (!CHECK_OK(tpu_aot_compile(t, t_add, strlen(t_add), NULL, 0, &a))) return;
  CHECK_OK(tpu_aot_memory(a, &m));
  CHECK_INT(m.arguments, 48);
  CHECK_OK(tpu_aot_program(a, &bytes, &n, &format));
  CHECK_INT((int64_t)n, (int64_t)strlen(t_add));
  CHECK_OK(tpu_aot_serialize(a, &bytes, &n));
  CHECK_INT((int64_t)n, (int64_t)strlen(t_add) + 8);
  tpu_aot_release(a);
  tpu_aot_release(NULL);
  CHECK_INT(fake.live("executable"), 0);
}

T_MAIN()
