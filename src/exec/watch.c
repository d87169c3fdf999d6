/* Watching programs: their text and how often they run, for compiling them for TPUs that are not here
 * (TORCH_TPU_TOPOLOGY). Off unless it is asked for. */
#include <string.h>

#include "exec/exec.h"

struct watched {
  watched *next; /* newer */
  hash128 name;
  _Atomic int64_t runs;
  const char *op, *where;
  size_t len;
  char text[];
};

static atomic_bool on;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static watched *first, *last;

void tpu_watch_begin(void) { atomic_store(&on, true); }

static char *copy(char **at, const char *s) {
  size_t n = strlen(s) + 1;
  char *p = memcpy(*at, s, n);
  *at += n;
  return p;
}

watched *watch_program(const buf *text, hash128 name, const char *op, bool mine) {
  if (!atomic_load_explicit(&on, memory_order_relaxed)) return NULL;
  char where[1024] = "";
  if (mine) tpu_where(where, sizeof where); /* not on the queue's thread, for which the caller may wait */
  pthread_mutex_lock(&lock);
  watched *w = first;
  while (w && (w->name.hi != name.hi || w->name.lo != name.lo)) w = w->next;
  if (!w) {
    w = mem_alloc(sizeof *w + text->len + 1 + strlen(op) + 1 + strlen(where) + 1);
    if (w) { /* else it is not watched */
      char *at = w->text;
      w->next = NULL;
      w->name = name;
      w->len = text->len;
      atomic_init(&w->runs, 0);
      memcpy(at, text->data, text->len);
      at += text->len;
      *at++ = 0;
      w->op = copy(&at, op);
      w->where = copy(&at, where);
      if (last) last->next = w;
      else first = w;
      last = w;
    }
  }
  pthread_mutex_unlock(&lock);
  return w;
}

void watch_run(watched *w) { atomic_fetch_add_explicit(&w->runs, 1, memory_order_relaxed); }

void tpu_watch_each(int from, tpu_watch_fn fn, void *ctx) {
  pthread_mutex_lock(&lock);
  watched *w = first;
  pthread_mutex_unlock(&lock);
  for (int i = 0; w; i++) { /* they stay for the process, and are only added at the end */
    tpu_watched out = {w->text, w->len, w->op, w->where, atomic_load(&w->runs)};
    if (i >= from) fn(ctx, &out);
    pthread_mutex_lock(&lock);
    w = w->next;
    pthread_mutex_unlock(&lock);
  }
}
