/* Stores: what an ATen storage holds. A store is a variable; its value is a counted device buffer. */
#include <string.h>

#include "exec/exec.h"

/* ---- device buffers -------------------------------------------------------------------------------------------- */

tpu_err *dbuf_pending(int device, const char *op, dbuf **out) {
  dbuf *d = mem_alloc(sizeof *d);
  *out = d;
  if (!d) return err_nomem();
  atomic_init(&d->refs, 1);
  atomic_init(&d->state, DBUF_PENDING);
  d->device = device;
  d->reported = d->has_range = false;
  d->op = op;
  static _Atomic uint64_t made;
  d->seq = atomic_fetch_add_explicit(&made, 1, memory_order_relaxed);
  d->trace = NULL;
  d->value = NULL;
  atomic_init(&d->deferred, 0);
  d->bound = 0;
  d->input_of = 0;
  d->b = NULL;
  d->err = NULL;
  return NULL;
}

tpu_err *dbuf_new(pjrt_buffer *take_b, int device, const char *op, dbuf **out) {
  tpu_err *e = dbuf_pending(device, op, out);
  if (e) {
    pjrt_buffer_free(ex.client, take_b);
    return e;
  }
  (*out)->b = take_b;
  atomic_store_explicit(&(*out)->state, DBUF_FILLED, memory_order_release);
  return NULL;
}

void dbuf_release(dbuf *d) {
  if (!d || atomic_fetch_sub_explicit(&d->refs, 1, memory_order_acq_rel) != 1) return;
  if (d->b) pjrt_buffer_free(ex.client, d->b);
  tpu_err_free(d->err);
  mem_free(d);
}

tpu_err *dbuf_wait(dbuf *d, bool *async) {
  pjrt_buffer *b;
  *async = false;
  TPU_TRY(dbuf_buffer(d, &b));
  *async = true;
  return pjrt_buffer_wait(ex.client, b);
}

tpu_err *async_error(dbuf *d, tpu_err *take_e, bool async) {
  if (!take_e) return NULL;
  d->reported = true;
  if (!async) return take_e; /* the queue has named it */
  dbuf *first = dbuf_retain(d);
  size_t n = 0, cap = 0;
  ex_lock();
  for (tpu_store *s = ex.stores; s; s = s->next) cap += s->buf != NULL;
  dbuf **live = mem_alloc((cap + 1) * sizeof *live);
  for (tpu_store *s = ex.stores; s && live; s = s->next)
    if (s->buf && !s->buf->trace && !atomic_load(&s->buf->deferred)) live[n++] = dbuf_retain(s->buf);
  ex_unlock();
  for (size_t i = 0; i < n; i++) {
    bool unused;
    tpu_err *e = dbuf_done(live[i]) ? dbuf_wait(live[i], &unused) : NULL;
    if (e) {
      live[i]->reported = true;
      if (live[i]->seq < first->seq) {
        dbuf_release(first);
        first = dbuf_retain(live[i]);
      }
    }
    tpu_err_free(e);
    dbuf_release(live[i]);
  }
  mem_free(live);
  if (first->op) take_e = err_wrap(take_e, "%s", first->op);
  dbuf_release(first);
  return take_e;
}

bool dbuf_done(dbuf *d) {
  int state = atomic_load_explicit(&d->state, memory_order_acquire);
  return state == DBUF_FAILED || (state == DBUF_FILLED && pjrt_buffer_ready(ex.client, d->b));
}

/* ---- life ------------------------------------------------------------------------------------------------------ */

tpu_err *store_new_locked(size_t nbytes, int device, tpu_store **out) {
  *out = NULL;
  tpu_memory_stats *m = &ex.memory[device];
  bool uncounted = tpu_capturing();
  if (!uncounted && m->limit && (int64_t)nbytes > m->limit - m->allocated) {
    m->ooms++;
    return err_new(
        TPU_ERR_OOM,
        "tpu: out of memory: tried to allocate %zu bytes on tpu:%d, which holds %lld bytes of which %lld are "
        "allocated; free tensors, use smaller ones, or shard them over devices",
        nbytes, device, (long long)m->limit, (long long)m->allocated);
  }
  tpu_store *s = mem_alloc(sizeof *s);
  if (!s) return err_nomem();
  s->address = nbytes ? address_take(nbytes) : NULL;
  if (nbytes && !s->address) {
    mem_free(s);
    m->ooms++;
    return err_new(TPU_ERR_OOM, "tpu: out of memory: no address range of %zu bytes is left", nbytes);
  }
  atomic_init(&s->refs, 1);
  s->device = device;
  s->nbytes = nbytes;
  s->buf = NULL;
  s->ndim = 0;
  s->dtype = TPU_U8;
  s->dims = s->inline_dims;
  s->uncounted = uncounted;
  s->stamp = 0;
  s->prev = NULL;
  s->next = ex.stores;
  if (ex.stores) ex.stores->prev = s;
  ex.stores = s;
  *out = s;
  if (uncounted) return NULL;
  m->allocated += (int64_t)nbytes;
  m->total_allocated += (int64_t)nbytes;
  m->stores++;
  if (m->allocated > m->allocated_peak) m->allocated_peak = m->allocated;
  if (m->stores > m->stores_peak) m->stores_peak = m->stores;
  return NULL;
}

tpu_err *tpu_store_new(size_t nbytes, int device, tpu_store **out) {
  *out = NULL;
  TPU_TRY(ex_ready());
  if (device < 0 || device >= ex.ndevices)
    return err_new(TPU_ERR_RUNTIME, "tpu: device index %d is out of range: there are %d devices", device, ex.ndevices);
  ex_lock();
  tpu_err *e = store_new_locked(nbytes, device, out);
  ex_unlock();
  return e;
}

tpu_store *tpu_store_retain(tpu_store *s) {
  if (s) atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
  return s;
}

void tpu_store_release(tpu_store *s) {
  if (!s || atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) != 1) return;
  ex_lock();
  if (s->prev) s->prev->next = s->next;
  else ex.stores = s->next;
  if (s->next) s->next->prev = s->prev;
  address_give(s->address, s->nbytes);
  if (!s->uncounted) {
    ex.memory[s->device].allocated -= (int64_t)s->nbytes;
    ex.memory[s->device].stores--;
  }
  dbuf *d = s->buf;
  if (d) d->bound--;
  ex_unlock();
  dbuf_release(d);
  if (s->dims != s->inline_dims) mem_free(s->dims);
  mem_free(s);
}

bool tpu_store_range(const tpu_store *s, int64_t *least, int64_t *most) {
  ex_lock();
  const dbuf *d = s->buf;
  bool known = d && d->has_range;
  if (known) {
    *least = d->least;
    *most = d->most;
  }
  ex_unlock();
  return known;
}

void *tpu_store_address(const tpu_store *s) { return s->address; }
size_t tpu_store_nbytes(const tpu_store *s) { return s->nbytes; }
int tpu_store_device(const tpu_store *s) { return s->device; }

tpu_store *tpu_store_from_address(const void *p, size_t *offset) {
  if (!tpu_is_device_address(p)) return NULL;
  tpu_store *found = NULL;
  ex_lock();
  for (tpu_store *s = ex.stores; s && !found; s = s->next)
    if (s->nbytes && (const char *)p >= (const char *)s->address &&
        (const char *)p < (const char *)s->address + s->nbytes) {
      found = s;
      *offset = (size_t)((const char *)p - (const char *)s->address);
    }
  ex_unlock();
  return found;
}

/* ---- value ----------------------------------------------------------------------------------------------------- */

void store_clear_locked(tpu_store *s) {
  if (s->buf) s->buf->bound--;
  dbuf_release(s->buf);
  s->buf = NULL;
}

tpu_err *store_set_locked(tpu_store *s, dbuf *take_value, tpu_dtype dtype, int ndim, const int64_t *dims) {
  if (ndim > STORE_INLINE_DIMS && (s->dims == s->inline_dims || s->ndim < ndim)) {
    int64_t *d = mem_alloc((size_t)ndim * sizeof *d);
    if (!d) {
      dbuf_release(take_value);
      return err_nomem();
    }
    if (s->dims != s->inline_dims) mem_free(s->dims);
    s->dims = d;
  }
  if (s->dims != dims) memcpy(s->dims, dims, (size_t)ndim * sizeof *dims);
  s->dtype = (uint8_t)dtype;
  s->ndim = (int16_t)ndim;
  take_value->bound++; /* first: it may be the one that goes */
  store_clear_locked(s);
  s->buf = take_value;
  return NULL;
}

int store_memory_order(const tpu_tensor *t, int *order) {
  /* insertion sort by stride, largest first; dims of size 1 stay where they are */
  int k = 0;
  for (int i = 0; i < t->ndim; i++) {
    int j = k++;
    for (; j > 0 && t->strides[order[j - 1]] < t->strides[i] && t->sizes[order[j - 1]] != 1 && t->sizes[i] != 1; j--)
      order[j] = order[j - 1];
    order[j] = i;
  }
  return k;
}

bool store_natural_dims(const tpu_tensor *t, size_t nbytes, int64_t *dims) {
  size_t size = tpu_dtype_size((tpu_dtype)t->dtype);
  int64_t n = 1;
  for (int i = 0; i < t->ndim; i++) n *= t->sizes[i];
  if (t->offset || (size_t)n * size != nbytes) return false;
  int64_t stride = 1;
  if (t->ndim > VIEW_MAX_DIMS) { /* in the usual order only */
    for (int i = t->ndim - 1; i >= 0; i--) {
      if (t->sizes[i] != 1 && t->strides[i] != stride) return false;
      stride *= dims[i] = t->sizes[i];
    }
    return true;
  }
  int order[VIEW_MAX_DIMS], k = store_memory_order(t, order);
  for (int j = k - 1; j >= 0; j--) {
    if (t->sizes[order[j]] != 1 && t->strides[order[j]] != stride) return false;
    stride *= t->sizes[order[j]];
  }
  for (int j = 0; j < k; j++) dims[j] = t->sizes[order[j]];
  return true;
}

tpu_err *tpu_store_resize(tpu_store *s, size_t nbytes) {
  TPU_TRY(ex_ready());
  ex_lock();
  tpu_memory_stats *m = &ex.memory[s->device];
  tpu_err *e = NULL;
  void *address = NULL;
  if (!s->uncounted && nbytes > s->nbytes && m->limit && (int64_t)(nbytes - s->nbytes) > m->limit - m->allocated) {
    m->ooms++;
    e = err_new(TPU_ERR_OOM,
                "tpu: out of memory: tried to resize a storage to %zu bytes on tpu:%d, which holds %lld bytes of which "
                "%lld are allocated",
                nbytes, s->device, (long long)m->limit, (long long)m->allocated);
  } else if (nbytes && !(address = address_take(nbytes))) {
    e = err_new(TPU_ERR_OOM, "tpu: out of memory: no address range of %zu bytes is left", nbytes);
  } else {
    address_give(s->address, s->nbytes);
    if (!s->uncounted) m->allocated += (int64_t)nbytes - (int64_t)s->nbytes;
    if (m->allocated > m->allocated_peak) m->allocated_peak = m->allocated;
    s->address = address;
    s->nbytes = nbytes;
    if (!nbytes) store_clear_locked(s); /* FSDP frees a parameter's memory this way */
  }
  ex_unlock();
  return e;
}
