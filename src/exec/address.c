/* Addresses that stand for storages: unreadable, unique while the storage lives, aligned to 64 bytes, with nbytes of
 * room, so that data_ptr arithmetic and overlap tests of PyTorch stay right. Four size classes a power of two; freed
 * addresses are used again. All under ex.lock. */
#include <sys/mman.h>

#include "exec/exec.h"

enum { CLASSES = 64 * 4 };
typedef struct {
  uintptr_t *free;
  size_t n, cap;
} class_list;
static class_list classes[CLASSES];
static uintptr_t range_start, range_end, range_at;

static int class_of(size_t nbytes, size_t *rounded) {
  size_t n = nbytes < 64 ? 64 : nbytes;
  int top = 63 - __builtin_clzll(n);
  size_t quarter = (size_t)1 << (top - 2);
  size_t q = (n - ((size_t)1 << top) + quarter - 1) / quarter; /* 0..4 */
  *rounded = ((size_t)1 << top) + q * quarter;
  return top * 4 + (int)q;
}

static bool reserve(void) {
  for (size_t n = (size_t)1 << 45; n >= (size_t)1 << 32; n >>= 1) {
    void *p = mmap(NULL, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) continue;
    range_start = (uintptr_t)p;
    range_at = (range_start + 4095) & ~(uintptr_t)4095;
    range_end = range_start + n;
    return true;
  }
  return false;
}

void *address_take(size_t nbytes) {
  size_t rounded;
  int k = class_of(nbytes, &rounded);
  class_list *c = &classes[k < CLASSES ? k : CLASSES - 1];
  if (c->n) return (void *)c->free[--c->n];
  if (!range_start && !reserve()) return NULL;
  if (rounded > range_end - range_at) return NULL;
  uintptr_t p = range_at;
  range_at += (rounded + 63) & ~(size_t)63;
  return (void *)p;
}

void address_give(void *p, size_t nbytes) {
  if (!p) return;
  size_t rounded;
  int k = class_of(nbytes, &rounded);
  class_list *c = &classes[k < CLASSES ? k : CLASSES - 1];
  if (c->n == c->cap) {
    size_t cap = c->cap ? c->cap * 2 : 16;
    uintptr_t *f = mem_realloc(c->free, cap * sizeof *f);
    if (!f) return; /* the address is not used again, nothing else is lost */
    c->free = f;
    c->cap = cap;
  }
  c->free[c->n++] = (uintptr_t)p;
}

bool tpu_is_device_address(const void *p) {
  return range_start && (uintptr_t)p >= range_start && (uintptr_t)p < range_end;
}
