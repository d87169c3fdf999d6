/* buf.h - a growing byte buffer, for text and keys. Out of memory sticks in `failed`; appends are then harmless. */
#ifndef TPU_BASE_BUF_H
#define TPU_BASE_BUF_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
  char *data; /* NUL-terminated whenever not NULL */
  size_t len, cap;
  bool failed;
} buf;

void buf_init(buf *b); /* allocates nothing */
void buf_free(buf *b);
void buf_clear(buf *b);
void buf_bytes(buf *b, const void *p, size_t n);
void buf_str(buf *b, const char *s);
void buf_char(buf *b, char c);
void buf_int(buf *b, int64_t v); /* decimal */
void buf_printf(buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
#endif
