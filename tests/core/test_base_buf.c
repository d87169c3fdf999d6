#include "base/buf.h"

#include "base/mem.h"
#include "t.h"

TEST(appends) {
  buf b;
  buf_init(&b);
  CHECK(!b.data);
  buf_str(&b, "add ");
  buf_char(&b, '%');
  buf_int(&b, 0);
  buf_char(&b, ' ');
  buf_int(&b, INT64_MIN);
  buf_char(&b, ' ');
  buf_int(&b, INT64_MAX);
  buf_printf(&b, " %s=%g", "x", 0.5);
  buf_bytes(&b, "\0!", 2);
  CHECK_STR(b.data, "add %0 -9223372036854775808 9223372036854775807 x=0.5");
  CHECK_INT(b.len, strlen(b.data) + 2);
  CHECK(b.data[b.len - 1] == '!' && !b.data[b.len]);
  buf_clear(&b);
  CHECK_STR(b.data, "");
  buf_free(&b);
  CHECK_INT(mem_live(), 0);
}

TEST(growing_at_every_length) {
  buf b, c;
  buf_init(&b);
  buf_init(&c);
  for (int i = 0; i < 3000; i++) {
    buf_printf(&b, "%d,", i);
    buf_int(&c, i);
    buf_char(&c, ',');
  }
  CHECK_INT(b.len, c.len);
  CHECK_STR(b.data, c.data);
  buf_bytes(&b, "", SIZE_MAX - 10);
  CHECK(b.failed);
  buf_str(&b, "harmless");
  CHECK_STR(b.data, c.data);
  buf_free(&b);
  buf_free(&c);
  CHECK_INT(mem_live(), 0);
}

TEST(every_allocation_may_fail) {
  for (int64_t nth = 1;; nth++) {
    buf b;
    buf_init(&b);
    mem_fault_at(nth, false);
    for (int i = 0; i < 100; i++) {
      buf_printf(&b, "%d: ", i);
      buf_str(&b, "some text");
    }
    bool fired = mem_fault_count() >= nth;
    mem_fault_at(0, false);
    CHECK(fired == b.failed);
    if (b.data) CHECK_INT(strlen(b.data), b.len);
    buf_free(&b);
    CHECK_INT(mem_live(), 0);
    if (!fired) break;
  }
}

T_MAIN()
