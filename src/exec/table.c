#include "exec/table.h"

#include "base/mem.h"

static tpu_err *grow(table *t) {
  size_t n = t->nslots ? t->nslots * 2 : 256;
  tnode **slots = mem_calloc(n * sizeof *slots);
  if (!slots) return t->slots ? NULL : err_nomem(); /* a full table still works */
  for (tnode *e = t->oldest; e; e = e->newer) {
    tnode **s = &slots[e->hash & (n - 1)];
    e->next = *s;
    *s = e;
  }
  mem_free(t->slots);
  t->slots = slots;
  t->nslots = n;
  return NULL;
}

tpu_err *table_add(table *t, tnode *n) {
  if (t->count >= t->nslots) TPU_TRY(grow(t));
  tnode **s = &t->slots[n->hash & (t->nslots - 1)];
  n->next = *s;
  *s = n;
  n->older = t->newest;
  n->newer = NULL;
  if (t->newest) t->newest->newer = n;
  else t->oldest = n;
  t->newest = n;
  t->count++;
  return NULL;
}

static void unlink_age(table *t, tnode *n) {
  if (n->newer) n->newer->older = n->older;
  else t->newest = n->older;
  if (n->older) n->older->newer = n->newer;
  else t->oldest = n->newer;
}

void table_remove(table *t, tnode *n) {
  for (tnode **s = &t->slots[n->hash & (t->nslots - 1)]; *s; s = &(*s)->next)
    if (*s == n) {
      *s = n->next;
      break;
    }
  unlink_age(t, n);
  t->count--;
}

tnode *table_evict(table *t) {
  if (t->count <= t->limit) return NULL;
  for (size_t tries = t->count; tries && t->oldest->used; tries--) {
    tnode *n = t->oldest;
    n->used = false;
    unlink_age(t, n);
    n->older = t->newest;
    n->newer = NULL;
    t->newest->newer = n;
    t->newest = n;
  }
  tnode *n = t->oldest;
  table_remove(t, n);
  return n;
}

void table_free(table *t) {
  mem_free(t->slots);
  *t = (table){.limit = t->limit};
}
