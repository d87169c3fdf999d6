#include "base/mem.h"

#include <stdatomic.h>
#include <stdlib.h>

static _Atomic int64_t live;

/* `armed` alone is read on the ordinary path; the rest only while a test injects faults. */
static _Atomic bool armed;
static _Atomic int64_t fault_nth, fault_count;
static _Atomic bool fault_sticky;

void mem_fault_at(int64_t nth, bool sticky) {
  atomic_store(&armed, false);
  if (nth <= 0) return;
  atomic_store(&fault_count, 0);
  atomic_store(&fault_nth, nth);
  atomic_store(&fault_sticky, sticky);
  atomic_store(&armed, true);
}

int64_t mem_fault_count(void) { return atomic_load(&fault_count); }

int64_t mem_live(void) { return atomic_load(&live); }

static __attribute__((noinline, cold)) bool fault_now(void) {
  int64_t n = atomic_fetch_add(&fault_count, 1) + 1, nth = atomic_load(&fault_nth);
  return n == nth || (n > nth && atomic_load(&fault_sticky));
}

static inline bool fails(void) {
  return __builtin_expect(atomic_load_explicit(&armed, memory_order_relaxed), 0) && fault_now();
}

static inline void *counted(void *p) {
  if (p) atomic_fetch_add_explicit(&live, 1, memory_order_relaxed);
  return p;
}

void *mem_alloc(size_t n) { return fails() ? NULL : counted(malloc(n ? n : 1)); }

void *mem_calloc(size_t n) { return fails() ? NULL : counted(calloc(1, n ? n : 1)); }

void *mem_realloc(void *p, size_t n) {
  if (!p) return mem_alloc(n);
  return fails() ? NULL : realloc(p, n ? n : 1);
}

void mem_free(void *p) {
  if (!p) return;
  atomic_fetch_sub_explicit(&live, 1, memory_order_relaxed);
  free(p);
}
