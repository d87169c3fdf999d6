/* arena.h - memory that is freed all at once: graphs, nodes, text. Out of memory sticks: `failed` is set, arena_alloc
 * returns NULL from then on, and the owner asks once at the end. */
#ifndef TPU_BASE_ARENA_H
#define TPU_BASE_ARENA_H
#include <stdbool.h>
#include <stddef.h>

typedef struct arena_block arena_block;
typedef struct {
  arena_block *head;
  char *at, *end;
  bool failed;
} arena;

void arena_init(arena *a); /* allocates nothing */
/* Zeroed, 16-byte aligned; NULL once memory was out. */
void *arena_alloc(arena *a, size_t n);
void *arena_copy(arena *a, const void *p, size_t n);
/* printf into the arena; "" once memory was out. */
const char *arena_printf(arena *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Frees everything; the arena can be used again. */
void arena_free(arena *a);
#endif
