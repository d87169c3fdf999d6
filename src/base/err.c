#include "base/err.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

struct tpu_err {
  _Atomic int refs; /* STATIC_REFS: never freed */
  tpu_err_kind kind;
  char message[];
};

enum { STATIC_REFS = -1 };

/* The same layout as tpu_err with room for the text: a flexible array member cannot be initialised portably. */
static struct {
  _Atomic int refs;
  tpu_err_kind kind;
  char message[64];
} nomem = {STATIC_REFS, TPU_ERR_OOM, "out of host memory"};

_Static_assert(offsetof(struct tpu_err, message) == 8, "the static error must have the layout of tpu_err");

static bool is_static(const tpu_err *e) { return (const void *)e == (const void *)&nomem; }

tpu_err *err_nomem(void) { return (tpu_err *)(void *)&nomem; }

static tpu_err *err_with_room(tpu_err_kind kind, size_t text_len) {
  tpu_err *e = mem_alloc(sizeof *e + text_len + 1);
  if (!e) return NULL;
  atomic_init(&e->refs, 1);
  e->kind = kind;
  return e;
}

tpu_err *err_newv(tpu_err_kind kind, const char *fmt, va_list ap) {
  va_list again;
  va_copy(again, ap);
  int n = vsnprintf(NULL, 0, fmt, ap);
  tpu_err *e = n < 0 ? NULL : err_with_room(kind, (size_t)n);
  if (e) vsnprintf(e->message, (size_t)n + 1, fmt, again);
  va_end(again);
  return e ? e : err_nomem();
}

tpu_err *err_new(tpu_err_kind kind, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  tpu_err *e = err_newv(kind, fmt, ap);
  va_end(ap);
  return e;
}

/* When memory is out the error is given back as it came: the cause says more than a prefix. */
tpu_err *err_wrap(tpu_err *take_e, const char *fmt, ...) {
  if (!take_e || is_static(take_e)) return take_e;
  va_list ap, again;
  va_start(ap, fmt);
  va_copy(again, ap);
  int n = vsnprintf(NULL, 0, fmt, ap);
  size_t old = strlen(take_e->message);
  tpu_err *e = n < 0 ? NULL : err_with_room(take_e->kind, (size_t)n + 2 + old);
  if (e) {
    vsnprintf(e->message, (size_t)n + 1, fmt, again);
    memcpy(e->message + n, ": ", 2);
    memcpy(e->message + n + 2, take_e->message, old + 1);
    tpu_err_free(take_e);
  }
  va_end(again);
  va_end(ap);
  return e ? e : take_e;
}

tpu_err *err_dtype(int dtype) {
  const int complex_half = 8; /* complex numbers of half precision: neither StableHLO nor a TPU has them */
  if (dtype == complex_half)
    return err_new(TPU_ERR_TYPE, "tpu: tensors of dtype ComplexHalf are not supported on this device");
  return err_new(TPU_ERR_TYPE, "tpu: tensors of PyTorch's dtype number %d are not supported on this device", dtype);
}

tpu_err *err_copy(const tpu_err *e) {
  if (!e) return NULL;
  tpu_err *m = (tpu_err *)e;
  if (!is_static(e)) atomic_fetch_add_explicit(&m->refs, 1, memory_order_relaxed);
  return m;
}

tpu_err *tpu_err_new(tpu_err_kind kind, const char *message) { return err_new(kind, "%s", message); }

tpu_err_kind tpu_err_get_kind(const tpu_err *e) { return e ? e->kind : TPU_ERR_RUNTIME; }

const char *tpu_err_message(const tpu_err *e) { return e ? e->message : ""; }

void tpu_err_free(tpu_err *e) {
  if (!e || is_static(e)) return;
  if (atomic_fetch_sub_explicit(&e->refs, 1, memory_order_acq_rel) == 1) mem_free(e);
}
