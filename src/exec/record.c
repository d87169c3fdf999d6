/* Recording: the calls of one thread as one graph, run as one program. A recorded call binds its results at once, as
 * futures that know their value in the graph; a later recorded call takes that value, anything else becomes a
 * parameter. When the recording is flushed, the values that somebody still holds become the program's outputs. */
#include <string.h>

#include "exec/trace.h"

static __thread trace *current;
static __thread int
    deferring; /* how deep in recordings that were begun in DeferAndFuse mode, where calls wait anyway */

trace *trace_current(void) { return current; }
void trace_set_current(trace *t) { current = t; }
bool tpu_capturing(void) { return current && current->cap; }
ir_graph *trace_graph(trace *t) { return t->g; }
bool trace_for_tpu(const trace *t) { return t->for_tpu; }

static bool room(dbuf ***list, int n, int *cap) {
  if (n < *cap) return true;
  int want = *cap ? *cap * 2 : 32;
  dbuf **p = mem_realloc(*list, (size_t)want * sizeof *p);
  if (!p) return false;
  *list = p;
  *cap = want;
  return true;
}

tpu_err *trace_add_param(trace *t, dbuf *d, val v) {
  int cap = t->cap_params;
  if (!room(&t->params, t->nparams, &t->cap_params)) return err_nomem();
  if (cap != t->cap_params) {
    val *more = mem_realloc(t->param_vals, (size_t)t->cap_params * sizeof *more);
    if (!more) {
      t->cap_params = cap;
      return err_nomem();
    }
    t->param_vals = more;
  }
  t->params[t->nparams] = dbuf_retain(d);
  t->param_vals[t->nparams++] = v;
  return NULL;
}

tpu_err *trace_add_made(trace *t, dbuf *d) {
  if (!room(&t->made, t->nmade, &t->cap_made)) return err_nomem();
  t->made[t->nmade++] = dbuf_retain(d);
  return NULL;
}

val trace_param(trace *t, dbuf *d, tpu_dtype dtype, int ndim, const int64_t *dims) {
  if (d->trace == t) return d->value;
  for (int i = 0; i < t->nparams; i++)
    if (t->params[i] == d) return t->param_vals[i];
  val v = ir_param(t->g, dtype, ndim, dims);
  tpu_err *e = trace_add_param(t, d, v);
  if (!e) return v;
  tpu_err_free(e);
  return ir_fail(t->g, TPU_ERR_OOM, "out of host memory");
}

static void let_go(trace *t, dbuf *d, const tpu_err *why) {
  ex_lock();
  bool unfilled = d->trace == t;
  if (unfilled) {
    d->reported = t->cap != NULL; /* what only a capture has seen is nobody's error */
    d->trace = NULL;
    d->value = NULL;
  }
  ex_unlock();
  if (unfilled)
    dbuf_fill(d, NULL,
              why ? err_copy(why) : err_new(TPU_ERR_RUNTIME, "the recording that makes this value was given up"));
  dbuf_release(d);
}

/* Forgets what was recorded; values that were not filled get the error (copied). */
static void drop(trace *t, const tpu_err *why) {
  for (int i = 0; i < t->nmade; i++) let_go(t, t->made[i], why);
  for (int i = 0; i < t->nparams; i++) let_go(t, t->params[i], why); /* those of a capture are unfilled too */
  t->nmade = t->nparams = 0;
  ir_free(t->g);
  t->g = NULL;
}

static tpu_err *run(trace *t) {
  if (t->err) return err_copy(t->err);
  call_entry *e;
  TPU_TRY(entry_new(&e));
  int n = ir_param_count(t->g), live = 0;
  int *kept = arena_alloc(&e->mem, (size_t)(n + 1) * sizeof *kept);
  e->params = arena_alloc(&e->mem, (size_t)(n + 1) * sizeof *e->params);
  dbuf **bufs = mem_alloc((size_t)(n + t->nmade + 1) * sizeof *bufs);
  bool *wanted = arena_alloc(&e->mem, (size_t)t->nmade + 1);
  tpu_err *err = kept && e->params && bufs && wanted ? NULL : err_nomem();
  for (int i = 0; i < t->nmade && !err; i++)
    if ((wanted[i] = atomic_load(&t->made[i]->refs) > 1)) {
      ir_output(t->g, t->made[i]->value, -1);
      live++;
    }
  if (!err && live) {
    if (ir_failed(t->g)) err = ir_take_error(t->g);
    if (!err) e->nparams = ir_prune_params(t->g, kept);
    e->noutputs = live;
    program *p;
    if (!err) err = program_get(t->g, NULL, "recorded program", &p);
    if (!err) {
      atomic_store(&e->prog, p);
      tnode *programs, *entries;
      ex_lock();
      program_trim_locked(&programs, &entries);
      ex_unlock();
      program_dropped(programs, entries);
    }
    if (!err) {
      ex_lock();
      int k = 0;
      for (int i = 0; i < e->nparams; i++) bufs[k++] = dbuf_retain(t->params[kept[i]]);
      for (int i = 0; i < t->nmade; i++) {
        dbuf *d = t->made[i];
        if (wanted[i]) bufs[k++] = dbuf_retain(d);
        d->trace = NULL;
        d->value = NULL;
      }
      ex.stats.executions++;
      ex_made_last_locked(t->device, bufs[k - 1]);
      queue_run(e, t->device, bufs);
      ex_unlock();
    }
  }
  mem_free(bufs);
  entry_release(e);
  return err;
}

tpu_err *trace_flush(trace *t) {
  if (!t->g) return NULL;
  if (t->cap) return capture_refuse(t, "reads a value on the host");
  tpu_err *e = run(t);
  drop(t, e);
  t->g = ir_new();
  if (!t->g && !e) e = err_nomem();
  return e;
}

/* Where what is built from now on comes from. */
static void locate(trace *t, const char *op_name) {
  char where[1024];
  ir_set_location(t->g, op_name, tpu_where(where, sizeof where));
}

tpu_err *trace_call(trace *t, tpu_call *c, call_state *cs) {
  if (t->err) return err_copy(t->err);
  if (c->device != t->device) TPU_TRY(t->cap ? capture_refuse(t, "uses another device") : trace_flush(t));
  t->device = c->device;
  if (!t->g) return err_nomem();
  tpu_err *err;
  for (;;) {
    ex_lock();
    defer_flush_locked(c->device, FLUSH_MODE); /* the mode has changed since */
    err = call_key(c, cs);
    dbuf *foreign = err ? NULL : call_foreign_locked(cs, t);
    if (!foreign) break;
    ex_unlock();
    err = t->cap ? NULL : trace_flush(t); /* the other recording may wait for this one */
    call_wait_foreign(foreign);
    if (err) return err;
  }
  int held = err ? 0 : cs->nstores;
  for (int i = 0; i < held; i++)
    if (cs->stores[i].buf) dbuf_retain(cs->stores[i].buf);
  ex.stats.calls++;
  ex_unlock();
  call_entry *e = NULL;
  val *outs = NULL;
  tpu_store **made = NULL;
  if (!err) err = entry_new(&e);
  if (e && t->for_tpu) locate(t, c->op->name);
  if (e) err = entry_record(c, cs, t, e, &outs);
  if (!err) {
    dbuf **bufs = mem_alloc((size_t)(e->noutputs + 1) * sizeof *bufs), **scratch = cs->bufs;
    made = mem_calloc((size_t)(e->nouts + 1) * sizeof *made);
    if (!bufs || !made) err = err_nomem();
    int n = 0;
    for (; !err && n < e->noutputs; n++) {
      if (!room(&t->made, t->nmade, &t->cap_made)) err = err_nomem();
      if (!err) err = dbuf_pending(c->device, c->op->name, &bufs[n]);
      if (err) break;
      bufs[n]->trace = t;
      bufs[n]->value = outs[n];
      t->made[t->nmade++] = bufs[n]; /* the recording's reference */
    }
    if (!err) {
      cs->bufs = bufs;
      ex_lock();
      err = call_bind(c, cs, e, made);
      ex_unlock();
      cs->bufs = scratch;
      if (err)
        for (int i = 0; i < e->nouts; i++) tpu_store_release(made[i]);
      else err = call_results(c, e, made);
    }
    mem_free(bufs);
    mem_free(made);
  }
  for (int i = 0; i < held; i++) dbuf_release(cs->stores[i].buf);
  entry_release(e);
  return err;
}

tpu_err *tpu_record_begin(int device) {
  TPU_TRY(ex_ready());
  if (current) {
    current->depth++;
    return NULL;
  }
  if (deferring || atomic_load_explicit(&ex.mode, memory_order_relaxed) == TPU_DEFER_AND_FUSE) {
    deferring++;
    return NULL;
  }
  return trace_new(device, &current);
}

tpu_err *trace_new(int device, trace **out) {
  *out = NULL;
  trace *t = mem_calloc(sizeof *t);
  if (!t) return err_nomem();
  t->depth = 1;
  t->device = device;
  t->g = ir_new();
  if (!t->g) {
    mem_free(t);
    return err_nomem();
  }
  *out = t;
  return NULL;
}

void trace_free(trace *t) {
  if (t->g) drop(t, t->err);
  tpu_err_free(t->err);
  mem_free(t->params);
  mem_free(t->param_vals);
  mem_free(t->made);
  mem_free(t);
}

tpu_err *tpu_record_end(void) {
  trace *t = current;
  if (!t && deferring) {
    deferring--;
    return NULL;
  }
  if (!t) return err_new(TPU_ERR_RUNTIME, "tpu_record_end without tpu_record_begin");
  if (--t->depth) return NULL;
  tpu_err *e = t->g ? run(t) : NULL;
  if (t->g) drop(t, e);
  current = NULL;
  trace_free(t);
  return e;
}
