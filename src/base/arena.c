#include "base/arena.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

enum { ALIGN = 16, FIRST_BLOCK = 4096 - 64, LARGEST_STEP = 1 << 20 };

struct arena_block {
  arena_block *next;
  size_t size; /* of data */
  _Alignas(ALIGN) char data[];
};

void arena_init(arena *a) { memset(a, 0, sizeof *a); }

static arena_block *new_block(size_t size) {
  if (size > SIZE_MAX - sizeof(arena_block)) return NULL;
  arena_block *b = mem_alloc(sizeof *b + size);
  if (b) b->size = size;
  return b;
}

/* Makes a block of at least n bytes and gives its start; a big request gets its own block behind the current one, so
 * that the rest of the current one is not lost. */
static char *grow(arena *a, size_t n) {
  size_t step = !a->head ? FIRST_BLOCK : a->head->size < LARGEST_STEP ? 2 * a->head->size : LARGEST_STEP;
  bool own = a->head && n > step / 4;
  if (step < n || own) step = n;
  arena_block *b = new_block(step);
  if (!b) {
    a->failed = true;
    return NULL;
  }
  if (own) {
    b->next = a->head->next;
    a->head->next = b;
    return b->data;
  }
  b->next = a->head;
  a->head = b;
  a->at = b->data + n;
  a->end = b->data + step;
  return b->data;
}

static char *take(arena *a, size_t n) {
  if (a->failed) return NULL;
  if (n > SIZE_MAX - ALIGN) {
    a->failed = true;
    return NULL;
  }
  n = (n + ALIGN - 1) & ~(size_t)(ALIGN - 1);
  if (!a->head || n > (size_t)(a->end - a->at)) return grow(a, n);
  char *p = a->at;
  a->at += n;
  return p;
}

void *arena_alloc(arena *a, size_t n) {
  void *p = take(a, n);
  return p ? memset(p, 0, n) : NULL;
}

void *arena_copy(arena *a, const void *p, size_t n) {
  void *q = take(a, n);
  if (q && n) memcpy(q, p, n);
  return q;
}

const char *arena_printf(arena *a, const char *fmt, ...) {
  va_list ap, again;
  va_start(ap, fmt);
  va_copy(again, ap);
  const char *text = "";
  /* Most text fits into what the block has left: print there, then keep the part that was used. */
  size_t room = a->failed || !a->head ? 0 : (size_t)(a->end - a->at);
  int n = vsnprintf(room ? a->at : NULL, room, fmt, ap);
  if (n < 0) {
    a->failed = true;
  } else {
    char *p = take(a, (size_t)n + 1);
    if (p) {
      if ((size_t)n >= room) vsnprintf(p, (size_t)n + 1, fmt, again);
      text = p;
    }
  }
  va_end(again);
  va_end(ap);
  return text;
}

void arena_free(arena *a) {
  for (arena_block *b = a->head, *next; b; b = next) {
    next = b->next;
    mem_free(b);
  }
  arena_init(a);
}
