/* Control flow in a capture: what is recorded between these calls becomes the regions of an `if` or a `while`. The
 * tensors that go in and come out are dense and the only ones of their stores, which is the adapter's part. Values from
 * outside are seen inside; what is made inside is seen outside only as a result. */
#include <string.h>

#include "exec/trace.h"

/* Room for n values, for as long as the capture. */
static val *room(trace *t, int n) { return arena_alloc(ir_arena(t->g), (size_t)(n + 1) * sizeof(val)); }

tpu_err *capture_values(trace *t, const tpu_tensor *in, int n, val **out) {
  if (!(*out = room(t, n))) return err_nomem();
  for (int i = 0; i < n; i++) {
    const tpu_store *s = in[i].store;
    if (!s || !s->buf || s->dtype != in[i].dtype || in[i].offset || in[i].flags)
      return capture_refuse(t, "takes a tensor that is not dense where only dense ones are taken");
    val v = trace_value(t, s);
    (*out)[i] = ir_reshape(t->g, v, in[i].ndim, in[i].sizes);
  }
  return ir_failed(t->g) ? ir_take_error(t->g) : NULL;
}

static tpu_err *store_of(trace *t, val v, tpu_store **out) {
  dbuf *d;
  TPU_TRY(dbuf_pending(t->device, "a value inside of control flow", &d));
  d->trace = t;
  d->value = v;
  tpu_err *e = trace_add_made(t, d);
  ex_lock();
  if (!e) e = store_new_locked((size_t)ir_numel(v) * tpu_dtype_size((tpu_dtype)v->dtype), t->device, out);
  if (!e) e = store_set_locked(*out, dbuf_retain(d), (tpu_dtype)v->dtype, v->ndim, v->dims);
  ex_unlock();
  dbuf_release(d);
  return e;
}

tpu_err *capture_stores(trace *t, const val *v, int n, tpu_store **out) {
  for (int i = 0; i < n; i++) out[i] = NULL;
  tpu_err *e = ir_failed(t->g) ? ir_take_error(t->g) : NULL;
  for (int i = 0; !e && i < n; i++) e = store_of(t, v[i], &out[i]);
  for (int i = 0; e && i < n; i++) {
    tpu_store_release(out[i]);
    out[i] = NULL;
  }
  return e;
}

tpu_err *tpu_capture_region(tpu_region_step step, const tpu_tensor *in, int n, tpu_store **out, int nout) {
  if (!tpu_capturing()) return err_new(TPU_ERR_RUNTIME, "tpu: no capture has begun");
  trace *t = trace_current();
  val *v, *made;
  TPU_TRY(capture_values(t, in, n, &v));
  if (!(made = room(t, nout))) return err_nomem();
  switch (step) {
    case TPU_IF: ir_if_begin(t->g, v[0]); break;
    case TPU_ELSE: ir_if_else(t->g, v, n); break;
    case TPU_END_IF: ir_if_end(t->g, v, n, made); break;
    case TPU_WHILE: ir_while_begin(t->g, v, n, made); break;
    case TPU_BODY: ir_while_body(t->g, v[0], made); break;
    case TPU_END_WHILE: ir_while_end(t->g, v, made); break;
  }
  if (step == TPU_IF || step == TPU_WHILE) capture_enter(t, 1);
  if (step == TPU_END_IF || step == TPU_END_WHILE) capture_enter(t, -1);
  return capture_stores(t, made, nout, out);
}
