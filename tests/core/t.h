/* t.h - a test program: TEST(name) { CHECK(...); } ... T_MAIN(). Tests run in the order of the file; the exit status is
 * 1 if one fails. argv[1], where a program takes it, is t_arg(1). T_ONLY=name in the environment runs one test. */
#ifndef TPU_TEST_T_H
#define TPU_TEST_T_H
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tpu.h"

typedef struct t_case {
  const char *name;
  void (*fn)(void);
  struct t_case *next;
} t_case;

static t_case *t_first, **t_last = &t_first;
static int t_failed_checks, t_argc;
static char **t_argv;
static const char *t_skip_reason;

static inline const char *t_arg(int i) { return i < t_argc ? t_argv[i] : NULL; }

static inline bool t_check(bool ok, const char *file, int line, const char *text) {
  if (!ok) {
    t_failed_checks++;
    printf("%s:%d: expected %s\n", file, line, text);
  }
  return ok;
}

static inline bool t_check_int(int64_t have, int64_t want, const char *file, int line, const char *text) {
  if (have != want) {
    t_failed_checks++;
    printf("%s:%d: %s is %" PRId64 ", expected %" PRId64 "\n", file, line, text, have, want);
  }
  return have == want;
}

static inline bool t_check_str(const char *have, const char *want, const char *file, int line, const char *text) {
  bool ok = have && want && !strcmp(have, want);
  if (!ok) {
    t_failed_checks++;
    printf("%s:%d: %s is\n  \"%s\", expected\n  \"%s\"\n", file, line, text, have ? have : "(null)",
           want ? want : "(null)");
  }
  return ok;
}

static inline bool t_check_has(const char *have, const char *want, const char *file, int line, const char *text) {
  bool ok = have && strstr(have, want);
  if (!ok) {
    t_failed_checks++;
    printf("%s:%d: %s is\n  \"%s\", expected it to hold\n  \"%s\"\n", file, line, text, have ? have : "(null)", want);
  }
  return ok;
}

static inline bool t_check_ok(tpu_err *e, const char *file, int line, const char *text) {
  if (!e) return true;
  t_failed_checks++;
  printf("%s:%d: %s failed: %s\n", file, line, text, tpu_err_message(e));
  tpu_err_free(e);
  return false;
}

static inline bool t_check_err(tpu_err *e, int kind, const char *want, const char *file, int line, const char *text) {
  bool ok = t_check(e != NULL, file, line, text);
  if (ok)
    ok = t_check_int((int64_t)tpu_err_get_kind(e), kind, file, line, "the error's kind") &
         t_check_has(tpu_err_message(e), want, file, line, "the error's message");
  tpu_err_free(e);
  return ok;
}

/* Each gives whether it held, so that a test can stop: if (!CHECK(p)) return; */
#define CHECK(x) t_check(!!(x), __FILE__, __LINE__, #x)
#define CHECK_INT(have, want) t_check_int((int64_t)(have), (int64_t)(want), __FILE__, __LINE__, #have)
#define CHECK_STR(have, want) t_check_str(have, want, __FILE__, __LINE__, #have)
#define CHECK_HAS(have, want) t_check_has(have, want, __FILE__, __LINE__, #have)
/* x gives a tpu_err *; the error is consumed. */
#define CHECK_OK(x) t_check_ok(x, __FILE__, __LINE__, #x)
#define CHECK_ERR(x, kind, part) t_check_err(x, kind, part, __FILE__, __LINE__, #x " to fail")
/* Ends the test as skipped; a skip always has a reason. */
#define SKIP(reason)        \
  do {                      \
    t_skip_reason = reason; \
    return;                 \
  } while (0)

#define TEST(id)                                              \
  static void t_fn_##id(void);                                \
  __attribute__((constructor)) static void t_add_##id(void) { \
    static t_case c = {#id, t_fn_##id, NULL};                 \
    *t_last = &c;                                             \
    t_last = &c.next;                                         \
  }                                                           \
  static void t_fn_##id(void)

static inline int t_main(int argc, char **argv) {
  t_argc = argc;
  t_argv = argv;
  setvbuf(stdout, NULL, _IOLBF, 0);
  const char *only = getenv("T_ONLY");
  int passed = 0, failed = 0, skipped = 0;
  for (t_case *c = t_first; c; c = c->next) {
    if (only && strcmp(only, c->name) != 0) continue;
    t_failed_checks = 0;
    t_skip_reason = NULL;
    c->fn();
    if (t_failed_checks) {
      failed++;
      printf("FAIL %s\n", c->name);
    } else if (t_skip_reason) {
      skipped++;
      printf("skip %s: %s\n", c->name, t_skip_reason);
    } else {
      passed++;
    }
  }
  printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
  return failed || passed + skipped == 0;
}

#define T_MAIN() \
  int main(int argc, char **argv) { return t_main(argc, argv); }
#endif
