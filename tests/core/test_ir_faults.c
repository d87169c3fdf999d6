/* Memory that runs out while graphs are built and printed: always the error, never a crash or a leak. */
#include "ir_t.h"

/* Builds and prints; true if it went well. */
static bool once(kind *k) {
  ir_graph *g = ir_new();
  if (!g) return false;
  k->build(g);
  buf b;
  buf_init(&b);
  tpu_err *e = ir_print(g, &b);
  bool ok = !e;
  if (e) {
    CHECK_INT(tpu_err_get_kind(e), TPU_ERR_OOM);
    CHECK(ir_failed(g) || b.failed);
    tpu_err_free(e);
  }
  buf_free(&b);
  ir_free(g);
  return ok;
}

TEST(every_allocation_may_fail) {
  for (kind *k = kind_first; k; k = k->next)
    for (int sticky = 0; sticky < 2; sticky++) {
      int64_t live = mem_live(), n = 0;
      bool ok = false;
      while (!ok && ++n < 200) {
        mem_fault_at(n, sticky);
        ok = once(k);
        mem_fault_at(0, false);
        if (!CHECK_INT(mem_live(), live)) {
          printf("  %s leaks when allocation %d fails\n", k->name, (int)n);
          return;
        }
      }
      if (!CHECK(ok && n >= 3)) printf("  %s\n", k->name);
    }
}

/* All kinds one after the other in one graph: more blocks of the arena, and growing lists. */
static void build_all(ir_graph *g) {
  for (kind *k = kind_first; k; k = k->next)
    if (strcmp(k->name, "donate") != 0) k->build(g);
}

TEST(every_allocation_of_a_large_graph_may_fail) {
  kind all = {"all", build_all, NULL, 0, NULL};
  int64_t live = mem_live();
  int n = 0;
  for (bool ok = false; !ok && ++n < 1000;) {
    mem_fault_at(n, n % 2);
    ok = once(&all);
    mem_fault_at(0, false);
    CHECK_INT(mem_live(), live);
  }
  CHECK(n > 8 && n < 1000);
}

/* A failed check makes texts and an error: those may fail too. */
TEST(allocations_of_an_error_may_fail) {
  for (int n = 1; n < 40; n++) {
    int64_t live = mem_live();
    mem_fault_at(n, true);
    ir_graph *g = ir_new();
    if (g) {
      ir_binary(g, IR_ADD, ir_param(g, TPU_F32, DIMS(2)), ir_param(g, TPU_F32, DIMS(3)));
      tpu_err *e = ir_take_error(g);
      CHECK(e != NULL);
      tpu_err_free(e);
    }
    ir_free(g);
    mem_fault_at(0, false);
    CHECK_INT(mem_live(), live);
  }
}

T_MAIN()
