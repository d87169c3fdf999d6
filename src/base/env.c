#include "base/env.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { KIND_STR, KIND_INT, KIND_BOOL, KIND_ENUM };

/* What a kind in env.def stands for: kind, least, greatest, names, words for the docs and the errors. */
#define STR KIND_STR, 0, 0, NULL, "text"
#define INT(lo, hi) KIND_INT, lo, hi, NULL, "an integer from " #lo " to " #hi
#define BOOL KIND_BOOL, 0, 1, NULL, "0 or 1"
#define ENUM(s) KIND_ENUM, 0, 0, s, "one of " s

static const struct {
  const char *name, *def, *help;
  int kind;
  int64_t lo, hi;
  const char *names, *words;
} rows[] = {
#define X(id, name, kind, def, help) {name, def, help, kind},
#include "base/env.def"
#undef X
};

enum { TEXT_CAP = 4096 };

typedef struct {
  char text[TEXT_CAP];
  int64_t number; /* INT, BOOL: the value; ENUM: the index */
} value;

/* Static, so that reading a flag can neither fail nor leak. */
static value values[ENV_COUNT];
static char bad_text[128];
static int bad_flag;
static bool bad_too_long;
static _Atomic bool parsed;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static bool parse_names(const char *names, const char *text, int64_t *out) {
  size_t n = strlen(text);
  int64_t i = 0;
  for (const char *at = names; *at; i++) {
    size_t len = strcspn(at, "|");
    if (len == n && memcmp(at, text, n) == 0) {
      *out = i;
      return true;
    }
    at += len + (at[len] == '|');
  }
  return false;
}

static bool parse(env_flag f, const char *text, int64_t *out) {
  switch (rows[f].kind) {
    case KIND_ENUM: return parse_names(rows[f].names, text, out);
    case KIND_BOOL:
      if (!strcmp(text, "true")) text = "1";
      if (!strcmp(text, "false")) text = "0";
      __attribute__((fallthrough));
    case KIND_INT: {
      char *end;
      errno = 0;
      long long v = strtoll(text, &end, 10);
      if (errno || end == text || *end || v < rows[f].lo || v > rows[f].hi) return false;
      *out = v;
      return true;
    }
    default: return true;
  }
}

static void set(env_flag f, const char *text) {
  int64_t number = 0;
  bool too_long = strlen(text) >= TEXT_CAP;
  if (too_long || !parse(f, text, &number)) {
    if (bad_flag < 0) {
      bad_flag = (int)f;
      bad_too_long = too_long;
      strncpy(bad_text, text, sizeof bad_text - 1);
    }
    text = rows[f].def;
    parse(f, text, &number);
  }
  memcpy(values[f].text, text, strlen(text) + 1);
  values[f].number = number;
}

static void ensure_parsed(void) {
  if (atomic_load_explicit(&parsed, memory_order_acquire)) return;
  pthread_mutex_lock(&lock);
  if (!atomic_load_explicit(&parsed, memory_order_relaxed)) {
    bad_flag = -1;
    memset(bad_text, 0, sizeof bad_text);
    for (int f = 0; f < ENV_COUNT; f++) {
      const char *text = getenv(rows[f].name);
      set((env_flag)f, text && *text ? text : rows[f].def);
    }
    atomic_store_explicit(&parsed, true, memory_order_release);
  }
  pthread_mutex_unlock(&lock);
}

tpu_err *env_check(void) {
  ensure_parsed();
  if (__builtin_expect(bad_flag < 0, 1)) return NULL;
  if (bad_too_long)
    return err_new(TPU_ERR_VALUE, "the environment variable %s is longer than %d bytes; it starts with \"%s\"",
                   rows[bad_flag].name, TEXT_CAP - 1, bad_text);
  return err_new(TPU_ERR_VALUE, "the environment variable %s must be %s, but it is \"%s\"; correct or unset it",
                 rows[bad_flag].name, rows[bad_flag].words, bad_text);
}

const char *env_str(env_flag f) {
  ensure_parsed();
  return values[f].text;
}

int64_t env_int(env_flag f) {
  ensure_parsed();
  return values[f].number;
}

int env_choice(env_flag f) {
  ensure_parsed();
  return (int)values[f].number;
}

bool tpu_env_describe(int i, const char **name, const char **kind, const char **def, const char **help) {
  if (i < 0 || i >= ENV_COUNT) return false;
  *name = rows[i].name;
  *kind = rows[i].words;
  *def = rows[i].def;
  *help = rows[i].help;
  return true;
}

void env_reset(void) { atomic_store_explicit(&parsed, false, memory_order_release); }
