/* Threads against the executor, on the fake plugin: shared stores that are written, read and dropped while the queue
 * runs; numbers, views with moving starts, events, recordings, modes that change. Built to be run under ThreadSanitizer
 * too (`./dev tsan`): what it checks by itself is that everything succeeds and nothing is left. */
#include <pthread.h>
#include <stdatomic.h>

#include "base/mem.h"
#include "core/exec_t.h"
#include "exec/exec.h"
#include "fake/fake.h"

enum { THREADS = 4, SHARED = 3 };

static fake_control fake;
static tpu_op *add, *add_, *uniform_;
static xt shared[SHARED];
static atomic_uint_fast64_t drawn;
static int turns;

TEST(start) {
  if (!CHECK(fake_open(t_arg(1), &fake))) exit(1);
  setenv("TORCH_TPU_PJRT_PLUGIN", t_arg(1), 1);
  if (!CHECK_OK(tpu_init())) exit(1);
  turns = getenv("THREADS_TURNS") ? atoi(getenv("THREADS_TURNS")) : 400;
  add = xt_op("aten::add", "Tensor", NULL, 3, xt_add_types, false);
  add_ = xt_op("aten::add_", "Tensor", "aten::add.Tensor", 3, xt_add_types, true);
  static const char *const types[] = {"Tensor", "float", "float", "Generator?"};
  uniform_ = xt_op("aten::uniform_", "", "aten::uniform", 4, types, true);
  if (!CHECK(add && add_ && uniform_)) exit(1);
}

static unsigned next(unsigned *seed) { return *seed = *seed * 1664525u + 1013904223u, *seed >> 16; }

static tpu_err *draw(const xt *x) {
  uint64_t rng[2] = {1, atomic_fetch_add(&drawn, 64)};
  tpu_tensor t = xt_tensor(x);
  tpu_value args[4] = {xt_arg(&t), xt_double(0), xt_double(1), {.tag = TPU_NONE}};
  tpu_call c = {.op = uniform_, .args = args, .nargs = 4, .device = 0, .rng = rng, .result = xt_result};
  return tpu_call_run(&c);
}

static tpu_err *turn(unsigned *seed, int i) {
  const int64_t sizes[] = {2, 3};
  float host[6] = {0};
  xt *s = &shared[next(seed) % SHARED], r = {0}, own = {0};
  tpu_err *e = NULL;
  switch (next(seed) % 9) {
    case 0: e = xt_add(add, s, &shared[0], i, &r); break;
    case 1: e = xt_add(add_, s, s, 1, NULL); break;
    case 2: { /* a row, its start an operand */
      xt row = *s;
      row.ndim = 1;
      row.sizes[0] = 3;
      row.strides[0] = 1;
      row.offset = 3 * (i % 2);
      e = xt_add(add_, &row, &row, 0.5, NULL);
      break;
    }
    case 3: e = xt_read(s, host); break;
    case 4: { /* dropped while the queue still holds its value */
      e = xt_from(&own, TPU_F32, 2, sizes, host);
      for (int k = 0; k < 5 && !e; k++) {
        xt_free(&r);
        e = xt_add(add, &own, s, k, &r);
      }
      break;
    }
    case 5: e = draw(s); break;
    case 6: {
      tpu_event *ev = NULL;
      e = tpu_event_record(0, &ev);
      if (!e) e = tpu_event_wait(ev);
      tpu_event_release(ev);
      break;
    }
    case 7: { /* one program for several calls */
      e = tpu_record_begin(0);
      if (e) break;
      e = xt_add(add, s, s, 1, &own);
      if (!e) e = xt_add(add, &own, s, 2, &r);
      tpu_err *end = tpu_record_end();
      if (e) tpu_err_free(end);
      else e = end;
      if (!e) e = xt_read(&r, host);
      break;
    }
    default: {
      static const tpu_eager_mode modes[] = {TPU_STRICT, TPU_DEBUG, TPU_DEFER_AND_FUSE, TPU_DEFER_AND_FUSE};
      tpu_set_eager_mode(modes[next(seed) % 4]);
    }
  }
  xt_free(&r), xt_free(&own);
  return e;
}

static void *work(void *arg) {
  unsigned seed = 1 + (unsigned)(uintptr_t)arg;
  for (int i = 0; i < turns; i++) {
    tpu_err *e = turn(&seed, i);
    bool ok = !e;
    if (!CHECK_OK(e) || !ok) break;
  }
  return NULL;
}

static void all_threads(void) {
  pthread_t t[THREADS];
  for (int i = 0; i < THREADS; i++) CHECK(!pthread_create(&t[i], NULL, work, (void *)(intptr_t)i));
  for (int i = 0; i < THREADS; i++) pthread_join(t[i], NULL);
  tpu_set_eager_mode(TPU_STRICT);
}

TEST(threads_share_stores) {
  const int64_t sizes[] = {2, 3};
  float host[6] = {0};
  for (int i = 0; i < SHARED; i++) CHECK_OK(xt_from(&shared[i], TPU_F32, 2, sizes, host));
  all_threads();
  CHECK_OK(tpu_synchronize(-1));
  all_threads(); /* everything is known now: the path that builds nothing */
  for (int i = 0; i < SHARED; i++) xt_free(&shared[i]);
  CHECK_OK(tpu_synchronize(-1));
  tpu_memory_stats m;
  tpu_get_memory_stats(0, &m);
  CHECK_INT(m.stores, 0);
  CHECK_INT(m.allocated, 0);
  ex_forget();
  CHECK_INT(fake.live("buffer"), 0);
}

T_MAIN()
