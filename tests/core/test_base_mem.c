#include "base/mem.h"

#include <pthread.h>

#include "t.h"

TEST(live_blocks_are_counted) {
  CHECK_INT(mem_live(), 0);
  void *a = mem_alloc(10), *b = mem_calloc(10), *z = mem_alloc(0), *r = mem_realloc(NULL, 5);
  CHECK(a && b && z && r);
  CHECK_INT(mem_live(), 4);
  CHECK(!((char *)b)[9]);
  r = mem_realloc(r, 5000);
  CHECK_INT(mem_live(), 4);
  mem_free(a);
  mem_free(b);
  mem_free(z);
  mem_free(r);
  mem_free(NULL);
  CHECK_INT(mem_live(), 0);
}

TEST(the_nth_allocation_fails_once) {
  mem_fault_at(2, false);
  void *a = mem_alloc(1), *b = mem_calloc(1), *c = mem_alloc(1);
  CHECK(a && !b && c);
  CHECK_INT(mem_fault_count(), 3);
  mem_fault_at(0, false);
  mem_free(mem_alloc(1));
  CHECK_INT(mem_fault_count(), 3);
  mem_free(a);
  mem_free(c);
  CHECK_INT(mem_live(), 0);
}

TEST(the_nth_allocation_fails_for_good) {
  void *kept = mem_alloc(4);
  mem_fault_at(2, true);
  void *a = mem_alloc(1), *b = mem_alloc(1), *c = mem_realloc(kept, 100);
  CHECK(a && !b && !c);
  mem_fault_at(0, false);
  mem_free(a);
  mem_free(kept); /* a failed realloc leaves the block */
  CHECK_INT(mem_live(), 0);
}

static void *churn(void *arg) {
  (void)arg;
  for (int i = 0; i < 10000; i++) mem_free(mem_alloc(16));
  return NULL;
}

TEST(counting_is_right_on_many_threads) {
  pthread_t t[4];
  for (int i = 0; i < 4; i++) CHECK(!pthread_create(&t[i], NULL, churn, NULL));
  for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
  CHECK_INT(mem_live(), 0);
}

T_MAIN()
