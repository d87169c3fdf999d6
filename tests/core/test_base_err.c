#include "base/err.h"

#include "base/mem.h"
#include "t.h"

TEST(new_says_what_it_was_told) {
  tpu_err *e = err_new(TPU_ERR_INDEX, "expected %d, but got %s", 3, "four");
  CHECK_INT(tpu_err_get_kind(e), TPU_ERR_INDEX);
  CHECK_STR(tpu_err_message(e), "expected 3, but got four");
  tpu_err_free(e);
  CHECK_INT(mem_live(), 0);
}

TEST(long_messages_are_whole) {
  char text[5001];
  memset(text, 'x', 5000);
  text[5000] = 0;
  tpu_err *e = err_wrap(err_new(TPU_ERR_VALUE, "%s", text), "%s", text);
  CHECK_INT(strlen(tpu_err_message(e)), 10002);
  tpu_err_free(e);
}

TEST(wrap_puts_words_before) {
  tpu_err *e = err_wrap(err_new(TPU_ERR_TYPE, "inner"), "outer %d", 1);
  CHECK_STR(tpu_err_message(e), "outer 1: inner");
  CHECK_INT(tpu_err_get_kind(e), TPU_ERR_TYPE);
  tpu_err_free(e);
  CHECK(!err_wrap(NULL, "nothing"));
  CHECK_INT(mem_live(), 0);
}

TEST(a_copy_is_a_second_owner) {
  tpu_err *e = err_new(TPU_ERR_VALUE, "shared"), *f = err_copy(e);
  tpu_err_free(e);
  CHECK_STR(tpu_err_message(f), "shared");
  tpu_err *w = err_wrap(err_copy(f), "more");
  CHECK_STR(tpu_err_message(w), "more: shared");
  CHECK_STR(tpu_err_message(f), "shared");
  tpu_err_free(w);
  tpu_err_free(f);
  CHECK(!err_copy(NULL));
  CHECK_INT(mem_live(), 0);
}

TEST(out_of_memory_needs_no_memory) {
  mem_fault_at(1, true);
  tpu_err *e = err_new(TPU_ERR_VALUE, "there is no room for this");
  CHECK_INT(tpu_err_get_kind(e), TPU_ERR_OOM);
  CHECK_HAS(tpu_err_message(e), "out of host memory");
  tpu_err *f = err_copy(e), *w = err_wrap(err_nomem(), "prefix");
  mem_fault_at(0, false);
  tpu_err_free(e);
  tpu_err_free(f);
  tpu_err_free(w);
  tpu_err_free(err_nomem());
  tpu_err_free(NULL);
  CHECK_STR(tpu_err_message(err_nomem()), "out of host memory");
  CHECK_INT(mem_live(), 0);
}

TEST(a_wrap_without_memory_keeps_the_cause) {
  tpu_err *e = err_new(TPU_ERR_VALUE, "cause");
  mem_fault_at(1, false);
  e = err_wrap(e, "prefix");
  mem_fault_at(0, false);
  CHECK_STR(tpu_err_message(e), "cause");
  tpu_err_free(e);
  CHECK_INT(mem_live(), 0);
}

T_MAIN()
