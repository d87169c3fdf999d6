/* A call: key, lookup, run. The path of a call that was seen before builds no graph and allocates only its results.
 *
 * The call key is a list of 64-bit words: the operator, what the process has set (precision, default dtype), and for
 * each argument what the program depends on: for a tensor dtype, sizes, the form of its view and of its store's value;
 * for a constant its value; for an operand (Python numbers) only its kind. Where a view starts is no part of it. */
#include <string.h>

#include "base/env.h"
#include "exec/exec.h"

/* ---- scratch: one a thread, reused ------------------------------------------------------------------------------ */

static pthread_key_t scratch_key;
static pthread_once_t scratch_once = PTHREAD_ONCE_INIT;

static __thread call_state *mine;

static void scratch_free(void *p) {
  call_state *cs = p;
  if (!cs) return;
  if (cs == mine) mine = NULL; /* the thread ends; what ends after this may still make a call */
  for (int i = 0; i < cs->cap_plans; i++) mem_free(cs->plans[i]);
  mem_free(cs->plans);
  mem_free(cs->words);
  mem_free(cs->tensors);
  mem_free(cs->stores);
  mem_free(cs->dims);
  mem_free(cs->bufs);
  mem_free(cs);
}

static void scratch_init(void) { pthread_key_create(&scratch_key, scratch_free); }

static call_state *scratch_take(void) {
  if (mine && !mine->busy) {
    mine->busy = true;
    return mine;
  }
  call_state *cs = mem_calloc(sizeof *cs);
  if (!cs) return NULL;
  if (!mine) {
    pthread_once(&scratch_once, scratch_init);
    if (!pthread_setspecific(scratch_key, cs)) mine = cs;
  }
  cs->busy = true;
  return cs;
}

static void scratch_give(call_state *cs) {
  cs->busy = false;
  if (pthread_getspecific(scratch_key) != cs) scratch_free(cs);
}

/* Grows an array to hold n elements. */
#define ENSURE(array, cap, n)                                     \
  do {                                                            \
    if (__builtin_expect((size_t)(n) > (size_t)(cap), 0)) {       \
      size_t want_ = (size_t)(n) * 2 < 16 ? 16 : (size_t)(n) * 2; \
      void *p_ = mem_realloc(array, want_ * sizeof *(array));     \
      if (!p_) return err_nomem();                                \
      array = p_;                                                 \
      cap = (__typeof__(cap))want_;                               \
    }                                                             \
  } while (0)

/* ---- the key --------------------------------------------------------------------------------------------------- */

static uint64_t stamps; /* under ex.lock */

static tpu_err *put_words(call_state *cs, const void *p, size_t n) {
  ENSURE(cs->words, cs->cap_words, cs->nwords + n);
  memcpy(cs->words + cs->nwords, p, n * sizeof *cs->words);
  cs->nwords += n;
  return NULL;
}

static tpu_err *put(call_state *cs, uint64_t w) {
  ENSURE(cs->words, cs->cap_words, cs->nwords + 1);
  cs->words[cs->nwords++] = w;
  return NULL;
}

/* What the program depends on of number `arg`: its kind, and if a row asked for it its class or its value. */
static tpu_err *put_number(call_state *cs, const tpu_op *op, const tpu_value *v, int arg, int elem) {
  op_host_number n;
  if (!op_read_number(v, elem, &n)) return put(cs, 0xff);
  bool constant = arg < 64 && atomic_load_explicit(&((tpu_op *)op)->constants, memory_order_relaxed) >> arg & 1;
  bool class = arg < 64 && atomic_load_explicit(&((tpu_op *)op)->classes, memory_order_relaxed) >> arg & 1;
  TPU_TRY(put(cs, (uint64_t)0x100 | ((uint64_t)n.dtype << 16) | ((uint64_t)n.weak << 24) | ((uint64_t)constant << 25) |
                      ((uint64_t)class << 26) | (uint64_t)(class ? op_class_of(&n) + 1 : 0) << 32));
  if (!constant) return NULL;
  uint64_t bits[3] = {(uint64_t)n.i};
  memcpy(&bits[1], &n.re, 8);
  memcpy(&bits[2], &n.im, 8);
  return put_words(cs, bits, 3);
}

/* Dims of the base as this tensor sees it: the store's own, or chosen when there is no value yet. */
static tpu_err *choose_base(call_state *cs, call_tensor *ct, const tpu_store *s) {
  const tpu_tensor *t = ct->t;
  size_t want = cs->ndims + (size_t)(s->buf ? s->ndim : t->ndim) + 1;
  if (want > cs->cap_dims) return err_new(TPU_ERR_RUNTIME, "tpu: too many dimensions in one call");
  int64_t *d = cs->dims + cs->ndims;
  ct->base.dims = d;
  if (s->buf) {
    ct->base.dtype = (tpu_dtype)s->dtype;
    ct->base.ndim = s->ndim;
    memcpy(d, s->dims, (size_t)s->ndim * sizeof *d);
  } else if (store_natural_dims(t, s->nbytes, d)) {
    ct->base.dtype = (tpu_dtype)t->dtype;
    ct->base.ndim = t->ndim;
  } else {
    ct->base.dtype = (tpu_dtype)t->dtype;
    ct->base.ndim = 1;
    d[0] = (int64_t)(s->nbytes / tpu_dtype_size(ct->base.dtype));
  }
  cs->ndims += (size_t)ct->base.ndim;
  return NULL;
}

/* A dim of one element may have any stride, and so may all dims of a tensor without elements. No view depends on it,
 * but PyTorch's shape functions do: they take the order of the results' dims from it. So it is part of the key, unless
 * it is what a contiguous tensor has. */
static tpu_err *put_shape(call_state *cs, uint64_t head, const tpu_tensor *t, bool empty) {
  uint64_t odd = 0;
  int64_t natural = 1;
  for (int i = t->ndim - 1; i >= 0; i--) {
    odd |= (empty || t->sizes[i] <= 1) && t->strides[i] != natural;
    natural *= t->sizes[i] ? t->sizes[i] : 1;
  }
  TPU_TRY(put(cs, head | odd << 37));
  TPU_TRY(put_words(cs, t->sizes, (size_t)t->ndim));
  return odd ? put_words(cs, t->strides, (size_t)t->ndim) : NULL;
}

static tpu_err *add_tensor(tpu_call *c, call_state *cs, const tpu_value *v, const tpu_tensor *t, int arg, int elem) {
  ENSURE(cs->tensors, cs->cap_tensors, cs->ntensors + 1);
  call_tensor *ct = &cs->tensors[cs->ntensors++];
  *ct = (call_tensor){.t = t, .arg = (int16_t)arg, .elem = elem, .store = -1, .plan = -1};
  uint64_t head = TPU_TENSOR | ((uint64_t)t->dtype << 8) | ((uint64_t)t->ndim << 16) | ((uint64_t)t->flags << 24);
  if (t->flags & TPU_TENSOR_UNDEFINED) return put(cs, TPU_TENSOR | ((uint64_t)TPU_TENSOR_UNDEFINED << 24));
  tpu_store *s = t->store;
  if (!s) {
    if (t->ndim == 0) return put_number(cs, c->op, v, arg, elem);
    TPU_TRY(put(cs, head | (uint64_t)1 << 34));
    return put_words(cs, t->sizes, (size_t)t->ndim);
  }
  if (s->stamp != stamps) {
    ENSURE(cs->stores, cs->cap_stores, cs->nstores + 1);
    s->stamp = stamps;
    s->number = cs->nstores;
    int64_t *d = cs->dims + cs->ndims;
    if (s->buf) {
      memcpy(d, s->dims, (size_t)s->ndim * sizeof *d);
      cs->ndims += (size_t)s->ndim;
    }
    cs->stores[cs->nstores++] = (call_store){s, s->buf, {(tpu_dtype)s->dtype, s->ndim, d}};
  }
  ct->store = s->number;
  head |= (uint64_t)!s->buf << 33 | (uint64_t)(uint32_t)s->number << 40;
  for (int i = 0; i < t->ndim; i++) ct->empty |= t->sizes[i] == 0;
  if (ct->empty) return put_shape(cs, head | (uint64_t)1 << 35, t, true);
  view_shape shape = {(tpu_dtype)t->dtype, t->ndim, t->sizes, t->strides, t->offset};
  if (s->buf) {
    view_base own = {(tpu_dtype)s->dtype, s->ndim, s->dims};
    if (view_is_whole(&own, &shape)) {
      ct->whole = true;
      ct->base = (view_base){own.dtype, own.ndim, t->sizes};
      return put_shape(cs, head | (uint64_t)1 << 32, t, false);
    }
  }
  TPU_TRY(choose_base(cs, ct, s));
  if (view_is_whole(&ct->base, &shape)) {
    ct->whole = true;
    return put_shape(cs, head | (uint64_t)1 << 32, t, false);
  }
  if (s->buf) {
    int64_t have = 1;
    for (int i = 0; i < ct->base.ndim; i++) have *= ct->base.dims[i];
    if (view_needs(ct->base.dtype, &shape) > have) { /* the storage grew after its value was made */
      ct->grown = true;
      cs->ndims -= (size_t)ct->base.ndim;
      int64_t *d = cs->dims + cs->ndims;
      d[0] = (int64_t)(s->nbytes / tpu_dtype_size(ct->base.dtype));
      ct->base.ndim = 1;
      ct->base.dims = d;
      cs->ndims++;
    }
  }
  if (cs->nplans == cs->cap_plans) {
    int had = cs->cap_plans;
    ENSURE(cs->plans, cs->cap_plans, cs->nplans + 1);
    for (int i = had; i < cs->cap_plans; i++) cs->plans[i] = NULL;
  }
  view_plan **p = &cs->plans[cs->nplans];
  if (!*p && !(*p = mem_alloc(sizeof **p))) return err_nomem();
  TPU_TRY(view_solve(&ct->base, &shape, *p));
  ct->plan = cs->nplans++;
  TPU_TRY(put_shape(cs, head | (uint64_t)ct->grown << 36, t, false));
  TPU_TRY(put(cs, ct->base.dtype | (uint64_t)ct->base.ndim << 8 | (uint64_t)(*p)->nwords << 24 |
                      (uint64_t)(*p)->start_dtype << 56));
  TPU_TRY(put_words(cs, ct->base.dims, (size_t)ct->base.ndim));
  if (ct->grown) { /* what the program's parameter looks like */
    TPU_TRY(put(cs, (uint64_t)s->ndim));
    TPU_TRY(put_words(cs, s->dims, (size_t)s->ndim));
  }
  return put_words(cs, (*p)->words, (size_t)(*p)->nwords);
}

static tpu_err *add_value(tpu_call *c, call_state *cs, const tpu_value *v, int arg) {
  const tpu_op *op = c->op;
  bool number = arg < op->nargs && op->number[arg];
  switch (v->tag) {
    case TPU_TENSOR: return add_tensor(c, cs, v, v->u.tensor, arg, 0);
    case TPU_TENSORS:
      TPU_TRY(put(cs, TPU_TENSORS | (uint64_t)v->n << 8));
      for (uint32_t k = 0; k < v->n; k++) TPU_TRY(add_tensor(c, cs, v, &v->u.tensor[k], arg, (int)k));
      return NULL;
    case TPU_INT:
    case TPU_UINT:
    case TPU_BOOLEAN:
    case TPU_DOUBLE:
    case TPU_COMPLEX:
      if (number) return put_number(cs, op, v, arg, 0);
      TPU_TRY(put(cs, v->tag));
      return put(cs, (uint64_t)v->u.i);
    case TPU_INTS: TPU_TRY(put(cs, TPU_INTS | (uint64_t)v->n << 8)); return put_words(cs, v->u.ints, v->n);
    case TPU_DOUBLES:
    case TPU_SCALARS:
      TPU_TRY(put(cs, v->tag | (uint64_t)v->n << 8));
      for (uint32_t k = 0; k < v->n; k++) TPU_TRY(put_number(cs, op, v, arg, (int)k));
      return NULL;
    case TPU_STR: {
      TPU_TRY(put(cs, TPU_STR | (uint64_t)v->n << 8));
      for (uint32_t k = 0; k < v->n; k += 8) {
        uint64_t w = 0;
        memcpy(&w, v->u.s + k, v->n - k < 8 ? v->n - k : 8);
        TPU_TRY(put(cs, w));
      }
      return NULL;
    }
    default: return put(cs, v->tag); /* None, device, generator: not the program's business */
  }
}

/* Dims that a tensor and its store may need in cs->dims. */
static size_t room_for(const tpu_tensor *t) {
  return 1 + (size_t)t->ndim + (t->store ? 2 * (size_t)t->store->ndim : 0);
}

/* Under ex.lock. */
tpu_err *call_key(tpu_call *c, call_state *cs) {
  cs->nwords = cs->ndims = 0;
  cs->ntensors = cs->nstores = cs->nplans = 0;
  stamps++;
  size_t ndims = 64;
  for (int i = 0; i < c->nargs; i++) {
    const tpu_value *v = &c->args[i];
    if (v->tag == TPU_TENSOR) ndims += room_for(v->u.tensor);
    else if (v->tag == TPU_TENSORS)
      for (uint32_t k = 0; k < v->n; k++) ndims += room_for(&v->u.tensor[k]);
  }
  ENSURE(cs->dims, cs->cap_dims, ndims); /* before anything points into it */
  TPU_TRY(put(cs, (uint64_t)(uintptr_t)c->op));
  TPU_TRY(put(cs, (uint64_t)atomic_load_explicit(&ex.precision, memory_order_relaxed) |
                      (uint64_t)atomic_load_explicit(&ex.default_dtype, memory_order_relaxed) << 8 |
                      (uint64_t)c->nargs << 16));
  for (int i = 0; i < c->nargs; i++) TPU_TRY(add_value(c, cs, &c->args[i], i));
  return NULL;
}

uint64_t words_hash(const uint64_t *words, size_t n) {
  uint64_t h = 0x9e3779b97f4a7c15ull;
  for (size_t i = 0; i < n; i++) h = hash_mix(h, words[i]);
  return h;
}

call_entry *entry_find_locked(const table *keys, const uint64_t *words, size_t n, uint64_t hash) {
  for (tnode *t = table_slot(keys, hash); t; t = t->next) {
    call_entry *e = (call_entry *)t;
    if (t->hash == hash && e->nwords == n && !memcmp(e->words, words, n * sizeof *words)) {
      t->used = true;
      return e;
    }
  }
  return NULL;
}

static uint64_t key_hash(const call_state *cs) { return words_hash(cs->words, cs->nwords); }
static call_entry *find_locked(const call_state *cs, uint64_t hash) {
  return entry_find_locked(&ex.keys, cs->words, cs->nwords, hash);
}

void entry_release(call_entry *e) {
  if (!e || atomic_fetch_sub_explicit(&e->refs, 1, memory_order_acq_rel) != 1) return;
  program_release(atomic_load(&e->prog));
  buf_free(&e->text);
  arena_free(&e->mem);
  mem_free(e);
}

static void forget_entries(table *keys) {
  while (keys->oldest) {
    tnode *t = keys->oldest;
    table_remove(keys, t);
    entry_release((call_entry *)t);
  }
  table_free(keys);
}

void ex_forget(void) {
  defer_flush(-1, FLUSH_SYNC);
  queue_drain();
  tpu_empty_cache();
  ex_lock();
  forget_entries(&ex.keys);
  forget_entries(&ex.segments);
  defer_forget_locked();
  while (ex.programs.oldest) {
    tnode *t = ex.programs.oldest;
    table_remove(&ex.programs, t);
    program_release((program *)t);
  }
  for (int i = 0; i < ex.ndevices; i++) {
    dbuf_release(ex.last[i]);
    ex.last[i] = NULL;
  }
  table_free(&ex.programs);
  ex_unlock();
  cache_close();
}

/* ---- running --------------------------------------------------------------------------------------------------- */

tpu_err *call_rng(int device, uint64_t *rng, uint64_t blocks, dbuf **out) {
  if (!rng) return err_new(TPU_ERR_RUNTIME, "no generator was given");
  pjrt_buffer *b;
  TPU_TRY(pjrt_buffer_from_host(ex.client, device, rng, dtype_pjrt(TPU_U64), (const int64_t[]){2}, 1, &b));
  TPU_TRY(dbuf_new(b, device, NULL, out));
  rng[1] += blocks;
  return NULL;
}

/* Fills cs->bufs with the program's inputs and pending outputs, a reference each. Under ex.lock. *n: how many there
 * are, also on failure. */
static tpu_err *gather_locked(tpu_call *c, call_state *cs, const call_entry *e, int *n) {
  ENSURE(cs->bufs, cs->cap_bufs, e->nparams + e->noutputs);
  for (int i = 0; i < e->nparams; i++) {
    const param_spec *p = &e->params[i];
    dbuf *d = NULL;
    switch (p->kind) {
      case PARAM_STORE: d = dbuf_retain(cs->stores[p->elem].buf); break;
      case PARAM_NUMBER: {
        op_host_number num;
        if (!op_read_number(&c->args[p->arg], p->elem, &num))
          return err_new(TPU_ERR_RUNTIME, "argument %d is no number", p->arg);
        TPU_TRY(number_check(c->op, p->arg, &num, (tpu_dtype)p->dtype));
        TPU_TRY(number_get_locked(&num, (tpu_dtype)p->dtype, c->device, &d));
        break;
      }
      case PARAM_START: {
        op_host_number num = {
            .dtype = TPU_I64, .is_int = true, .i = cs->plans[cs->tensors[p->elem].plan]->starts[p->k]};
        TPU_TRY(number_get_locked(&num, (tpu_dtype)p->dtype, c->device, &d));
        break;
      }
      default: TPU_TRY(call_rng(c->device, c->rng, e->rng_blocks, &d));
    }
    cs->bufs[(*n)++] = d;
  }
  for (int i = 0; i < e->noutputs; i++) {
    TPU_TRY(dbuf_pending(c->device, c->op->name, &cs->bufs[*n]));
    ++*n;
  }
  return NULL;
}

/* Puts the pending outputs where they belong. Under ex.lock. made: the new stores, NULL where there is none. */
tpu_err *call_bind(tpu_call *c, call_state *cs, const call_entry *e, tpu_store **made) {
  for (int i = 0; i < e->nouts; i++) made[i] = NULL;
  for (int i = 0; i < e->nouts; i++) { /* what can fail for want of memory comes first: then no store was changed */
    const out_spec *o = &e->outs[i];
    if (o->kind != OUT_STORE) TPU_TRY(store_new_locked(o->nbytes, c->device, &made[i]));
  }
  for (int i = 0; i < e->nouts; i++) {
    const out_spec *o = &e->outs[i];
    if (o->output < 0) continue;
    dbuf *d = cs->bufs[e->nparams + o->output];
    tpu_store *s = o->kind == OUT_STORE ? cs->stores[o->elem].s : made[i];
    TPU_TRY(store_set_locked(s, dbuf_retain(d), (tpu_dtype)o->base_dtype, o->base_ndim, o->base_dims));
  }
  return NULL;
}

void ex_made_last_locked(int device, dbuf *d) {
  dbuf *last = ex.last[device];
  ex.last[device] = dbuf_retain(d);
  dbuf_release(last);
}

/* A value that another thread is recording is not in the queue yet. A program that needs it must not enter the queue
 * before it: the queue keeps its order, so it would wait for ever. */
dbuf *call_foreign_locked(const call_state *cs, const trace *own) {
  for (int i = 0; i < cs->nstores; i++) {
    dbuf *d = cs->stores[i].buf;
    if (d && d->trace && d->trace != own) return dbuf_retain(d);
  }
  return NULL;
}

void call_wait_foreign(dbuf *take_d) {
  pjrt_buffer *b;
  tpu_err_free(dbuf_buffer(take_d, &b)); /* who reads the value meets the error again */
  dbuf_release(take_d);
}

tpu_err *call_results(tpu_call *c, const call_entry *e, tpu_store **made) {
  tpu_err *err = NULL;
  for (int i = 0; i < e->nouts; i++) {
    const out_spec *o = &e->outs[i];
    if (!made[i]) continue;
    if (err) tpu_store_release(made[i]);
    else err = c->result(c, o->ret, o->elem, made[i], o->sizes, o->strides, o->ndim, (tpu_dtype)o->dtype);
  }
  return err;
}

tpu_err *call_debug_wait(const call_entry *e, dbuf *const *outs) {
  tpu_err *err = NULL;
  for (int i = 0; i < e->noutputs && !err; i++) {
    bool async;
    err = dbuf_wait(outs[i], &async);
    err = async_error(outs[i], err, async);
  }
  for (int i = 0; i < e->nouts && !err; i++) {
    const out_spec *o = &e->outs[i];
    if (o->output >= 0) err = finite_check(outs[o->output], (tpu_dtype)o->base_dtype, o->base_ndim, o->base_dims);
  }
  for (int i = 0; i < e->noutputs; i++) dbuf_release(outs[i]);
  return err;
}

/* Runs a known call; called with ex.lock held, returns without it. */
static tpu_err *run_locked(tpu_call *c, call_state *cs, call_entry *e, bool defer) {
  tpu_store *few[8], **made = few;
  int nbufs = 0;
  tpu_err *err = NULL;
  bool debug = atomic_load_explicit(&ex.mode, memory_order_relaxed) == TPU_DEBUG, runs = e->noutputs > 0;
  ex.stats.calls++;
  if (!defer) defer_flush_locked(c->device, FLUSH_MODE);
  if (e->nouts > 8 && !(made = mem_alloc((size_t)e->nouts * sizeof *made))) err = err_nomem();
  dbuf **waits = NULL;
  if (!err && debug && e->noutputs && !(waits = mem_calloc((size_t)e->noutputs * sizeof *waits))) err = err_nomem();
  if (!err && runs) err = gather_locked(c, cs, e, &nbufs);
  if (!err) {
    err = call_bind(c, cs, e, made);
    if (!err && runs && !defer) {
      ex.stats.executions++;
      ex_made_last_locked(c->device, cs->bufs[e->nparams + e->noutputs - 1]);
    }
  } else if (made) {
    for (int i = 0; i < e->nouts; i++) made[i] = NULL;
  }
  atomic_fetch_add_explicit(&e->refs, 1, memory_order_relaxed);
  for (int i = 0; waits && !err && i < e->noutputs; i++) waits[i] = dbuf_retain(cs->bufs[e->nparams + i]);
  if (!err && runs && defer) {
    defer_call_locked(e, c->device, cs->bufs);
    ex_unlock();
  } else if (!err && runs) {
    queue_run(e, c->device, cs->bufs); /* under the lock: the queue has the order in which stores were bound */
    ex_unlock();
  } else {
    ex_unlock();
    for (int i = 0; i < nbufs; i++) {
      if (i >= e->nparams) dbuf_fill(cs->bufs[i], NULL, err_new(TPU_ERR_RUNTIME, "the call failed before it ran"));
      dbuf_release(cs->bufs[i]);
    }
  }
  if (waits && !err) err = call_debug_wait(e, waits);
  mem_free(waits);
  if (err && made) {
    for (int i = 0; i < e->nouts; i++) tpu_store_release(made[i]);
  } else if (!err) {
    err = call_results(c, e, made);
  }
  if (made != few) mem_free(made);
  entry_release(e);
  return err;
}

/* Keeps a new entry under the key that cs holds. Consumes it. */
static tpu_err *insert(call_state *cs, call_entry *take_e) {
  call_entry *dropped[16];
  int ndropped = 0;
  take_e->words = arena_copy(&take_e->mem, cs->words, cs->nwords * sizeof *cs->words);
  take_e->nwords = cs->nwords;
  take_e->node.hash = key_hash(cs);
  if (!take_e->words) {
    entry_release(take_e);
    return err_nomem();
  }
  ex_lock();
  tpu_err *e = NULL;
  ex.stats.key_misses++;
  call_entry *old = find_locked(cs, take_e->node.hash);
  if (old && take_e->text.len && !old->text.len) { /* known, but not in a way that can be fused */
    table_remove(&ex.keys, &old->node);
    dropped[ndropped++] = old;
    old = NULL;
  }
  if (old) dropped[ndropped++] = take_e; /* another thread was faster */
  else if ((e = table_add(&ex.keys, &take_e->node))) dropped[ndropped++] = take_e;
  for (tnode *t; ndropped < 15 && (t = table_evict(&ex.keys));) dropped[ndropped++] = (call_entry *)t;
  tnode *programs, *entries;
  program_trim_locked(&programs, &entries);
  ex_unlock();
  for (int i = 0; i < ndropped; i++) entry_release(dropped[i]);
  program_dropped(programs, entries);
  return e;
}

tpu_err *tpu_call_run(tpu_call *c) {
  TPU_TRY(ex_ready());
  if (c->device < 0 || c->device >= ex.ndevices)
    return err_new(TPU_ERR_RUNTIME, "tpu: device index %d is out of range: there are %d devices", c->device,
                   ex.ndevices);
  call_state *cs = scratch_take();
  if (!cs) return err_nomem();
  tpu_err *err = NULL;
  trace *t = trace_current();
  if (t) {
    err = trace_call(t, c, cs);
    scratch_give(cs);
    return err;
  }
  for (int tries = 0;; tries++) {
    ex_lock();
    err = call_key(c, cs);
    if (err) {
      ex_unlock();
      break;
    }
    dbuf *foreign = call_foreign_locked(cs, NULL);
    if (foreign) {
      ex_unlock();
      call_wait_foreign(foreign);
      tries--;
      continue;
    }
    bool defer = atomic_load_explicit(&ex.mode, memory_order_relaxed) == TPU_DEFER_AND_FUSE;
    call_entry *e = find_locked(cs, key_hash(cs));
    if (e && !(defer && e->noutputs && !e->text.len)) {
      ex.stats.key_hits += tries == 0;
      err = run_locked(c, cs, e, defer);
      if (err) err = err_wrap(err, "%s", c->op->name);
      break;
    }
    ex_unlock();
    if (tries == 8) {
      err = err_new(TPU_ERR_RUNTIME, "%s: its arguments changed while it was built (another thread writes to them)",
                    c->op->name);
      break;
    }
    tpu_op *op = (tpu_op *)c->op;
    uint64_t constants = atomic_load(&op->constants), classes = atomic_load(&op->classes);
    err = entry_build(c, cs, defer, &e);
    if (err) break;
    if (atomic_load(&op->constants) != constants || atomic_load(&op->classes) != classes) {
      entry_release(e); /* the row asked for a number's value: the key was too weak; the program itself is known now */
      continue;
    }
    err = insert(cs, e);
    if (err) break;
  }
  scratch_give(cs);
  return err;
}
