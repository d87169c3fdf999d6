/* fake.h - how a test steers libfake_pjrt.so, a PJRT plugin that runs nothing: results are zeros of the shapes in the
 * program's signature. It checks what it is given as a real plugin does (struct sizes, counts, shapes, devices, donated
 * buffers) and counts what is alive.
 *
 *   fake_control f;
 *   if (!fake_open(path, &f)) ...
 *   f.fail_call(3);                  the third plugin call from now gives an error
 *   CHECK_INT(f.live("buffer"), 0);
 *
 * The environment sets the same for a process that a test does not link with: FAKE_PJRT_PLATFORM (default "fake"),
 * FAKE_PJRT_TABLE, FAKE_PJRT_DEVICE_MEMORY, FAKE_PJRT_DELAY_MS, FAKE_PJRT_FAIL_CALL, FAKE_PJRT_FAIL_EXECUTION,
 * FAKE_PJRT_DEVICES, FAKE_PJRT_KIND (of a client's devices, default "fake device"; those of a topology are "fake
 * chip"). */
#ifndef TPU_TEST_FAKE_H
#define TPU_TEST_FAKE_H
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>

/* X(result, name, arguments) */
#define FAKE_CONTROL(X)                                                                                            \
  /* Objects alive: "client", "buffer", "event", "exec" (loaded), "executable", "serialized", "topology", "error", \
   * "all". */                                                                                                     \
  X(int64_t, live, (const char *what))                                                                             \
  /* Since the start: "calls" (that can fail), "compile", "execute", "from_host", "to_host", "copy", "load". */    \
  X(int64_t, count, (const char *what))                                                                            \
  /* Call number nth from now gives an INTERNAL error; 0: off. */                                                  \
  X(void, fail_call, (int64_t nth))                                                                                \
  /* Calls counted since fail_call. */                                                                             \
  X(int64_t, fail_count, (void))                                                                                   \
  /* Execution number nth from now succeeds at once and fails later, with this PJRT error code; 0: off. */         \
  X(void, fail_execution, (int64_t nth, int code))                                                                 \
  /* Executions from now on become ready only after release(). */                                                  \
  X(void, hold, (void))                                                                                            \
  X(void, release, (void))                                                                                         \
  /* Executions from now on become ready after so many milliseconds. */                                            \
  X(void, delay, (int ms))                                                                                         \
  /* Of clients made from now on. */                                                                               \
  X(void, platform, (const char *name))                                                                            \
  /* Bytes a device can hold; more is RESOURCE_EXHAUSTED. */                                                       \
  X(void, device_memory, (int64_t bytes))                                                                          \
  /* What GetPjrtApi gives from now on: "good", "null", "tiny" (no slots), "short" (old: 50 slots),                \
   * "major" (ABI 7.1), "missing:<slot>", "stub:<slot>" (answers UNIMPLEMENTED). */                                \
  X(void, table, (const char *kind))                                                                               \
  /* Everything above back to its default; releases what is held. */                                               \
  X(void, reset, (void))

typedef struct {
#define X(result, name, args) result(*name) args;
  FAKE_CONTROL(X)
#undef X
} fake_control;

static inline bool fake_open(const char *path, fake_control *f) {
  void *lib = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : 0;
  if (!lib) return false;
#define X(result, name, args) f->name = (result(*) args)(uintptr_t)dlsym(lib, "fake_" #name);
  FAKE_CONTROL(X)
#undef X
  return f->live && f->reset;
}
#endif
