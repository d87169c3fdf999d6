/* The log of what the executor does, for torch.tpu.explain(): kept only while somebody asked for it. Its lock is the
 * last of all, and nothing is called under it. */
#include <stdio.h>
#include <string.h>

#include "exec/exec.h"

typedef struct {
  tpu_explained e;
  size_t text; /* where its text begins in `texts` */
} entry;

enum { MOST = 1 << 20 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_int users, traffic_users;
static entry *entries;
static int count, cap;
static buf texts;
static _Atomic(tpu_where_fn) where;

bool explain_on(void) { return atomic_load_explicit(&users, memory_order_relaxed) > 0; }

bool explain_traffic(void) { return atomic_load_explicit(&traffic_users, memory_order_relaxed) > 0; }

static void add(tpu_explained what, const char *text) {
  pthread_mutex_lock(&lock);
  if (count == cap && count < MOST) {
    int want = cap ? cap * 2 : 256;
    entry *p = mem_realloc(entries, (size_t)want * sizeof *p);
    if (p) {
      entries = p;
      cap = want;
    }
  }
  if (count < cap) {
    entries[count++] = (entry){what, texts.len};
    buf_str(&texts, text);
    buf_char(&texts, 0);
  }
  pthread_mutex_unlock(&lock);
}

void explain_add(tpu_explain_kind kind, int detail, int64_t calls, int64_t start_ns, const char *text) {
  if (!explain_on()) return;
  int64_t now = clock_ns();
  add((tpu_explained){.kind = kind,
                      .detail = detail,
                      .calls = calls,
                      .start_ns = start_ns ? start_ns : now,
                      .duration_ns = start_ns ? now - start_ns : 0,
                      .bytes = -1},
      text);
}

void explain_run(int64_t calls, int64_t bytes, int64_t start_ns, int64_t took_ns, const char *text) {
  add(
      (tpu_explained){
          .kind = TPU_EXPLAIN_RUN, .calls = calls, .start_ns = start_ns, .duration_ns = took_ns, .bytes = bytes},
      text);
}

void tpu_explain_begin(bool traffic) {
  atomic_fetch_add(&users, 1);
  if (traffic) atomic_fetch_add(&traffic_users, 1);
}

void tpu_explain_end(bool traffic, tpu_explain_fn fn, void *ctx) {
  if (traffic) atomic_fetch_sub(&traffic_users, 1);
  pthread_mutex_lock(&lock);
  int n = count;
  for (int i = 0; i < n && fn; i++) {
    entries[i].e.text = texts.failed ? "" : texts.data + entries[i].text;
    fn(ctx, &entries[i].e);
  }
  if (atomic_fetch_sub(&users, 1) == 1) {
    mem_free(entries);
    entries = NULL;
    count = cap = 0;
    buf_free(&texts);
    buf_init(&texts);
  }
  pthread_mutex_unlock(&lock);
}

void tpu_explain_note(tpu_explain_kind kind, const char *text) { explain_add(kind, 0, 0, 0, text); }

void tpu_set_where(tpu_where_fn fn) { atomic_store(&where, fn); }

const char *tpu_where(char *out, size_t n) {
  tpu_where_fn fn = atomic_load(&where);
  out[0] = 0;
  if (fn) fn(out, n);
  out[n - 1] = 0;
  return out;
}
