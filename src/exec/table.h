/* table.h - a bounded hash table with intrusive nodes and second-chance eviction: call keys, programs, numbers. */
#ifndef TPU_EXEC_TABLE_H
#define TPU_EXEC_TABLE_H
#include "base/err.h"

typedef struct tnode {
  uint64_t hash;
  struct tnode *next;          /* in the slot */
  struct tnode *newer, *older; /* in order of insertion */
  bool used;                   /* set by a hit; gives one more round before eviction */
} tnode;

typedef struct {
  tnode **slots;
  size_t nslots, count, limit;
  tnode *newest, *oldest;
} table;

/* First node of this hash's slot; walk with ->next and compare hash and content. */
static inline tnode *table_slot(const table *t, uint64_t hash) {
  return t->slots ? t->slots[hash & (t->nslots - 1)] : NULL;
}
TPU_MUST tpu_err *table_add(table *t, tnode *n);
void table_remove(table *t, tnode *n);
/* When the table is over its limit: takes one node out that was not used lately, for the caller to free; else NULL. */
tnode *table_evict(table *t);
void table_free(table *t); /* the slots only */
#endif
