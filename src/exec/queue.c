/* The queue: programs leave the calling thread and are given to the plugin by one thread, in order. A plugin may run a
 * small program on the thread that calls it, and takes its time to take one in any case; the caller only pays for a
 * slot in a ring. While the thread sleeps and programs are short and few, the caller runs them itself: waking a thread
 * costs more than such a program. */
#include <sched.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "exec/exec.h"

enum {
  SLOTS = 1024,      /* how far the caller may run ahead */
  SLOT_BUFS = 12,    /* buffers kept in the slot itself */
  SPIN_NS = 60000,   /* how long the thread looks for work before it sleeps */
  INLINE_NS = 20000, /* the longest program that a caller runs itself */
  INLINE_RUN = 4,    /* how many in a row, before the thread is woken */
  WAIT_SPINS = 4000
};

typedef struct {
  call_entry *e; /* NULL: a mark */
  int device;
  void (*fn)(void *);
  void *arg;
  dbuf **bufs; /* few, or a block of its own */
  dbuf *few[SLOT_BUFS];
} slot;

static slot ring[SLOTS];
static atomic_size_t head, tail; /* next to fill (under ex.lock), next to run */
static atomic_bool asleep = true, started;
static atomic_int waiters;
static int inline_run; /* under ex.lock */
static pthread_mutex_t wake_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER, filled = PTHREAD_COND_INITIALIZER;
static pthread_mutex_t filled_lock = PTHREAD_MUTEX_INITIALIZER;

static void relax(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  __asm__ __volatile__("" ::: "memory");
#endif
}

/* ---- waiting for a value --------------------------------------------------------------------------------------- */

void dbuf_fill(dbuf *d, pjrt_buffer *take_b, tpu_err *take_err) {
  d->b = take_b;
  d->err = take_err;
  atomic_store(&d->state, take_b ? DBUF_FILLED : DBUF_FAILED);
  if (atomic_load(&waiters)) {
    pthread_mutex_lock(&filled_lock);
    pthread_cond_broadcast(&filled);
    pthread_mutex_unlock(&filled_lock);
  }
}

tpu_err *dbuf_buffer(dbuf *d, pjrt_buffer **out) {
  trace *t = trace_current();
  if (t && d->trace == t) TPU_TRY(trace_flush(t));
  if (atomic_load_explicit(&d->deferred, memory_order_acquire)) {
    ex_lock();
    if (atomic_load(&d->deferred)) defer_flush_locked(d->device, FLUSH_READ);
    ex_unlock();
  }
  for (int i = 0; i < WAIT_SPINS && atomic_load_explicit(&d->state, memory_order_acquire) == DBUF_PENDING; i++) relax();
  if (atomic_load(&d->state) == DBUF_PENDING) {
    pthread_mutex_lock(&filled_lock);
    atomic_fetch_add(&waiters, 1);
    while (atomic_load(&d->state) == DBUF_PENDING) pthread_cond_wait(&filled, &filled_lock);
    atomic_fetch_sub(&waiters, 1);
    pthread_mutex_unlock(&filled_lock);
  }
  *out = d->b;
  if (d->b) return NULL;
  tpu_err *e = err_copy(d->err);
  return e ? e : err_nomem();
}

/* ---- running --------------------------------------------------------------------------------------------------- */

static void run(call_entry *e, int device, dbuf **bufs) {
  int np = e->nparams, no = e->noutputs;
  pjrt_buffer *few_args[32], *few_outs[16], **args = few_args, **outs = few_outs;
  int64_t few_keep[32], *keep = few_keep;
  void *block = NULL;
  tpu_err *err = NULL;
  if (np > 32 || no > 16) {
    block = mem_alloc((size_t)(2 * np + no) * sizeof(void *));
    if (!block) err = err_nomem();
    else {
      args = block;
      outs = args + np;
      keep = (int64_t *)(outs + no);
    }
  }
  size_t nkeep = 0;
  program *prog = NULL;
  if (!err) err = entry_program(e, e->name ? e->name : no ? bufs[np]->op : "?", &prog);
  for (int i = 0; i < np && !err; i++) {
    err = dbuf_buffer(bufs[i], &args[i]);
    /* an input that somebody else holds must stay: the program could otherwise put its result there */
    if (!err && e->params[i].donated && atomic_load_explicit(&bufs[i]->refs, memory_order_acquire) > 1)
      keep[nkeep++] = i;
  }
  int64_t start = clock_ns();
  if (!err) {
    err = pjrt_execute(ex.client, prog->exec, device, args, (size_t)np, keep, nkeep, outs, NULL);
    if (err && no) err = err_wrap(err, "%s", bufs[np]->op);
  }
  int64_t took = clock_ns() - start;
  if (!err && prog->watched) watch_run(prog->watched);
  if (!err && explain_on())
    explain_run(e->calls ? e->calls : 1, explain_traffic() ? program_traffic(prog) : -1, start, took,
                no ? bufs[np]->op : "");
  if (log_on(LOG_DEBUG))
    log_line(LOG_DEBUG, "%s: given to the plugin in %.1f us", no ? bufs[np]->op : "?", (double)took * 1e-3);
  atomic_store_explicit(&e->cost_ns, took > 1000000000 ? 1000000000 : (int)took + 1, memory_order_relaxed);
  for (int i = 0; i < no; i++) dbuf_fill(bufs[np + i], err ? NULL : outs[i], err ? err_copy(err) : NULL);
  tpu_err_free(err);
  for (int i = 0; i < np + no; i++) dbuf_release(bufs[i]);
  mem_free(block);
  entry_release(e);
}

static __thread bool here;
bool queue_is_here(void) { return here; }

static void *serve(void *unused) {
  (void)unused;
  here = true;
  for (;;) {
    size_t t = atomic_load_explicit(&tail, memory_order_relaxed);
    if (atomic_load_explicit(&head, memory_order_acquire) != t) {
      slot *s = &ring[t % SLOTS];
      if (s->e) {
        run(s->e, s->device, s->bufs);
        if (s->bufs != s->few) mem_free(s->bufs);
      } else {
        s->fn(s->arg);
      }
      atomic_store(&tail, t + 1);
      continue;
    }
    int64_t until = clock_ns() + SPIN_NS;
    bool found = false;
    while (!found && clock_ns() < until)
      for (int i = 0; i < 64 && !(found = atomic_load_explicit(&head, memory_order_acquire) != t); i++) relax();
    if (found) continue;
    pthread_mutex_lock(&wake_lock);
    atomic_store(&asleep, true);
    while (atomic_load(&head) == t) pthread_cond_wait(&wake, &wake_lock);
    atomic_store(&asleep, false);
    pthread_mutex_unlock(&wake_lock);
  }
  return NULL;
}

static bool start(void) { /* under ex.lock */
  if (atomic_load(&started)) return true;
  pthread_t thread;
  pthread_attr_t attr;
  if (pthread_attr_init(&attr)) return false;
  pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
  bool ok = !pthread_create(&thread, &attr, serve, NULL);
  pthread_attr_destroy(&attr);
  if (!ok) log_line(LOG_WARN, "tpu: no thread for the queue could be made; programs run on the calling thread");
  atomic_store(&started, ok);
  return ok;
}

/* A free slot; waits while the ring is full. Under ex.lock. */
static slot *next_slot(void) {
  size_t h = atomic_load_explicit(&head, memory_order_relaxed);
  while (h - atomic_load_explicit(&tail, memory_order_acquire) >= SLOTS) sched_yield();
  return &ring[h % SLOTS];
}

static void publish(void) {
  atomic_store(&head, atomic_load_explicit(&head, memory_order_relaxed) + 1);
  if (!atomic_load(&asleep)) return;
  pthread_mutex_lock(&wake_lock);
  pthread_cond_signal(&wake);
  pthread_mutex_unlock(&wake_lock);
}

static bool queue_empty(void) { return atomic_load(&head) == atomic_load(&tail); }

void queue_run(call_entry *e, int device, dbuf **take_bufs) {
  size_t n = (size_t)(e->nparams + e->noutputs);
  atomic_fetch_add_explicit(&e->refs, 1, memory_order_relaxed);
  int cost = atomic_load_explicit(&e->cost_ns, memory_order_relaxed);
  bool idle = atomic_load_explicit(&asleep, memory_order_acquire) && queue_empty();
  if (idle && cost && cost < INLINE_NS && inline_run < INLINE_RUN) {
    inline_run++;
    run(e, device, take_bufs);
    return;
  }
  if (!start()) {
    run(e, device, take_bufs);
    return;
  }
  inline_run = 0;
  slot *s = next_slot();
  s->bufs = s->few;
  if (n > SLOT_BUFS) {
    s->bufs = mem_alloc(n * sizeof *s->bufs);
    if (!s->bufs) { /* in order, without the ring */
      while (!queue_empty()) sched_yield();
      run(e, device, take_bufs);
      return;
    }
  }
  memcpy(s->bufs, take_bufs, n * sizeof *s->bufs);
  s->e = e;
  s->device = device;
  publish();
}

void queue_mark(void (*fn)(void *arg), void *arg) {
  ex_lock();
  if (queue_empty() || !start()) {
    ex_unlock();
    fn(arg);
    return;
  }
  slot *s = next_slot();
  s->e = NULL;
  s->fn = fn;
  s->arg = arg;
  publish();
  ex_unlock();
}

void queue_drain(void) {
  for (int i = 0; i < WAIT_SPINS && !queue_empty(); i++) relax();
  while (!queue_empty()) nanosleep(&(struct timespec){0, 20000}, NULL);
}
