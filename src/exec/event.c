/* Events and synchronisation. An event waits for what was made last on its device; a device runs its programs in the
 * order in which they were enqueued. */
#include <time.h>

#include "exec/exec.h"

struct tpu_event {
  atomic_int refs;
  dbuf *buf; /* NULL: nothing had been enqueued */
  atomic_llong done_ns;
};

static void unref(tpu_event *e) {
  if (atomic_fetch_sub_explicit(&e->refs, 1, memory_order_acq_rel) != 1) return;
  dbuf_release(e->buf);
  mem_free(e);
}

static void stamp(void *arg) { /* on a plugin's thread, or at once */
  tpu_event *e = arg;
  atomic_store(&e->done_ns, clock_ns());
  unref(e);
}

/* On the queue's thread, when the event's buffer has been given to the plugin. */
static void reached(void *arg) {
  tpu_event *e = arg;
  pjrt_event *ready = NULL;
  tpu_err *err = NULL;
  if (!e->buf || dbuf_done(e->buf)) {
    stamp(e);
    return;
  }
  pjrt_buffer *b;
  err = dbuf_buffer(e->buf, &b);
  if (!err) err = pjrt_buffer_event(ex.client, b, &ready);
  if (!err) err = pjrt_event_on_ready(ex.client, ready, stamp, e);
  pjrt_event_free(ex.client, ready);
  if (err) stamp(e); /* the error itself comes from the buffer, when the event is waited for */
  tpu_err_free(err);
}

tpu_err *tpu_event_record(int device, tpu_event **out) {
  *out = NULL;
  TPU_TRY(ex_ready());
  tpu_event *e = mem_calloc(sizeof *e);
  if (!e) return err_nomem();
  atomic_init(&e->refs, 2); /* the caller's, and the stamp's */
  ex_lock();
  defer_flush_locked(device, FLUSH_EVENT);
  e->buf = device >= 0 && device < ex.ndevices && ex.last[device] ? dbuf_retain(ex.last[device]) : NULL;
  ex_unlock();
  queue_mark(reached, e);
  *out = e;
  return NULL;
}

bool tpu_event_done(tpu_event *e) { return !e->buf || dbuf_done(e->buf); }

tpu_err *tpu_event_wait(tpu_event *e) {
  if (!e->buf) return NULL;
  bool async;
  tpu_err *err = dbuf_wait(e->buf, &async);
  return async_error(e->buf, err, async);
}

tpu_err *tpu_event_elapsed(tpu_event *a, tpu_event *b, double *ms) {
  *ms = 0;
  TPU_TRY(tpu_event_wait(a));
  TPU_TRY(tpu_event_wait(b));
  /* the stamp may come a moment after the wait returns */
  for (int i = 0; i < 1000 && !(atomic_load(&a->done_ns) && atomic_load(&b->done_ns)); i++)
    nanosleep(&(struct timespec){0, 100000}, NULL);
  long long ta = atomic_load(&a->done_ns), tb = atomic_load(&b->done_ns);
  if (!ta || !tb) return err_new(TPU_ERR_RUNTIME, "tpu: the plugin did not report when an event was reached");
  *ms = (double)(tb - ta) * 1e-6;
  return NULL;
}

void tpu_event_release(tpu_event *e) {
  if (e) unref(e);
}

tpu_err *tpu_synchronize(int device) {
  if (!tpu_is_initialized()) return NULL; /* nothing can be pending */
  TPU_TRY(ex_ready());
  size_t n = 0, cap = 0;
  ex_lock();
  defer_flush_locked(device, FLUSH_SYNC);
  for (tpu_store *s = ex.stores; s; s = s->next) cap += s->buf != NULL;
  dbuf **bufs = mem_alloc((cap + EX_MAX_DEVICES) * sizeof *bufs);
  if (bufs) {
    for (tpu_store *s = ex.stores; s; s = s->next)
      if (s->buf && (device < 0 || s->device == device)) bufs[n++] = dbuf_retain(s->buf);
    for (int i = 0; i < ex.ndevices; i++)
      if (ex.last[i] && (device < 0 || i == device)) bufs[n++] = dbuf_retain(ex.last[i]);
  }
  ex_unlock();
  if (!bufs) return err_nomem();
  queue_drain();
  tpu_err *first = NULL;
  for (size_t i = 0; i < n; i++) {
    bool async;
    tpu_err *e = dbuf_wait(bufs[i], &async);
    if (e && !first && !bufs[i]->reported) first = async_error(bufs[i], e, async);
    else tpu_err_free(e);
    dbuf_release(bufs[i]);
  }
  mem_free(bufs);
  return first;
}
