#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

void buf_init(buf *b) { memset(b, 0, sizeof *b); }

void buf_free(buf *b) {
  mem_free(b->data);
  buf_init(b);
}

void buf_clear(buf *b) {
  b->len = 0;
  b->failed = false;
  if (b->data) b->data[0] = 0;
}

/* Room for n more bytes and the NUL. */
static bool reserve(buf *b, size_t n) {
  if (b->failed) return false;
  if (b->cap - b->len > n) return true;
  size_t need = b->len + n + 1, cap = b->cap ? b->cap : 64;
  if (need > n && need < SIZE_MAX / 2) {
    while (cap < need) cap *= 2;
    char *p = mem_realloc(b->data, cap);
    if (p) {
      b->data = p;
      b->cap = cap;
      return true;
    }
  }
  b->failed = true;
  return false;
}

void buf_bytes(buf *b, const void *p, size_t n) {
  if (!reserve(b, n)) return;
  if (n) memcpy(b->data + b->len, p, n);
  b->len += n;
  b->data[b->len] = 0;
}

void buf_str(buf *b, const char *s) { buf_bytes(b, s, strlen(s)); }

void buf_char(buf *b, char c) { buf_bytes(b, &c, 1); }

void buf_int(buf *b, int64_t v) {
  char digits[24], *at = digits + sizeof digits;
  uint64_t u = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
  do *--at = (char)('0' + u % 10);
  while (u /= 10);
  if (v < 0) *--at = '-';
  buf_bytes(b, at, (size_t)(digits + sizeof digits - at));
}

void buf_printf(buf *b, const char *fmt, ...) {
  if (b->failed) return;
  va_list ap, again;
  va_start(ap, fmt);
  va_copy(again, ap);
  size_t room = b->cap - b->len;
  int n = vsnprintf(room ? b->data + b->len : NULL, room, fmt, ap);
  if (n < 0) {
    b->failed = true;
  } else if ((size_t)n < room) {
    b->len += (size_t)n;
  } else if (reserve(b, (size_t)n)) {
    vsnprintf(b->data + b->len, (size_t)n + 1, fmt, again);
    b->len += (size_t)n;
  }
  if (b->failed && b->data) b->data[b->len] = 0;
  va_end(again);
  va_end(ap);
}
