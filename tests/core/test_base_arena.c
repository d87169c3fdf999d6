#include "base/arena.h"

#include <stdint.h>

#include "base/mem.h"
#include "t.h"

TEST(memory_is_zeroed_aligned_and_apart) {
  arena a;
  arena_init(&a);
  CHECK_INT(mem_live(), 0);
  unsigned char *at[300];
  for (int i = 0; i < 300; i++) {
    size_t n = (size_t)i * 7 % 113;
    at[i] = arena_alloc(&a, n);
    if (!CHECK(at[i] && (uintptr_t)at[i] % 16 == 0)) return;
    for (size_t k = 0; k < n; k++)
      if (at[i][k]) CHECK(!"zeroed");
    memset(at[i], i, n);
  }
  for (int i = 0; i < 300; i++)
    for (size_t k = 0; k < (size_t)i * 7 % 113; k++)
      if (at[i][k] != (unsigned char)i) CHECK(!"apart");
  arena_free(&a);
  CHECK_INT(mem_live(), 0);
}

TEST(big_blocks_do_not_end_the_current_one) {
  arena a;
  arena_init(&a);
  char *p = arena_alloc(&a, 16);
  char *big = arena_alloc(&a, 1 << 22);
  char *q = arena_alloc(&a, 16);
  CHECK(p && big && q == p + 16);
  big[(1 << 22) - 1] = 1;
  CHECK_INT(mem_live(), 2);
  CHECK(arena_alloc(&a, SIZE_MAX - 3) == NULL);
  CHECK(a.failed);
  arena_free(&a);
  CHECK(!a.failed);
  CHECK(arena_alloc(&a, 1));
  arena_free(&a);
  CHECK_INT(mem_live(), 0);
}

TEST(copy_and_printf) {
  arena a;
  arena_init(&a);
  const int64_t dims[2] = {3, 4};
  int64_t *copy = arena_copy(&a, dims, sizeof dims);
  CHECK(copy && copy[1] == 4);
  CHECK(arena_copy(&a, NULL, 0));
  CHECK_STR(arena_printf(&a, "tensor<%dx%s>", 3, "f32"), "tensor<3xf32>");
  char text[10001];
  memset(text, 'y', 10000);
  text[10000] = 0;
  for (int n = 10000; n > 9000; n -= 7) {
    const char *s = arena_printf(&a, "%.*s", n, text);
    if (!CHECK_INT(strlen(s), n)) break;
  }
  for (int n = 0; n < 300; n++) {
    const char *s = arena_printf(&a, "%.*s", n, text);
    if (!CHECK_INT(strlen(s), n)) break;
  }
  arena_free(&a);
  CHECK_INT(mem_live(), 0);
}

TEST(every_allocation_may_fail) {
  for (int64_t nth = 1;; nth++) {
    arena a;
    arena_init(&a);
    mem_fault_at(nth, false);
    for (int i = 0; i < 50; i++) {
      void *p = arena_alloc(&a, 500);
      CHECK(!p == a.failed);
    }
    const char *s = arena_printf(&a, "text");
    CHECK_STR(s, a.failed ? "" : "text");
    bool fired = mem_fault_count() >= nth;
    mem_fault_at(0, false);
    CHECK(fired == a.failed);
    arena_free(&a);
    CHECK_INT(mem_live(), 0);
    if (!fired) break;
  }
}

T_MAIN()
