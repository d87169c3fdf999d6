/* Copies between host and device, and between devices. Whole values move as they are; views go through the rows
 * aten::copy and aten::clone of a small internal call. */
#include <string.h>

#include "exec/exec.h"

static tpu_op op_copy, op_contiguous;

static tpu_err *internal_op(tpu_op *op, const char *name) {
  if (op->row) return NULL;
  const op_row *r;
  for (int i = 0; (r = op_row_at(i)); i++)
    if (!strcmp(r->name, name)) break;
  if (!r) return err_new(TPU_ERR_RUNTIME, "tpu: row %s is missing", name);
  static int16_t to_self[1] = {0}, fresh[1] = {-1};
  static bool self_written[3] = {true}, none[3];
  op->nargs = 3;
  op->nrets = 1;
  op->number = none;
  op->name = "aten::copy_";
  op->ret_alias = op == &op_copy ? to_self : fresh;
  op->written = op == &op_copy ? self_written : none;
  op->row = r;
  return NULL;
}

static pthread_once_t ops_once = PTHREAD_ONCE_INIT;
static tpu_err *ops_error;
static void ops_init(void) {
  ops_error = internal_op(&op_copy, "aten::copy");
  if (!ops_error) ops_error = internal_op(&op_contiguous, "aten::copy");
}

static tpu_err *take_store(tpu_call *c, int ret, int elem, tpu_store *s, const int64_t *sizes, const int64_t *strides,
                           int ndim, tpu_dtype dtype) {
  (void)ret, (void)elem, (void)sizes, (void)strides, (void)ndim, (void)dtype;
  *(tpu_store **)c->ctx = s;
  return NULL;
}

/* aten::copy(self, src): with op_copy written to self, with op_contiguous a new dense tensor. */
static tpu_err *call_copy(tpu_op *op, const tpu_tensor *self, const tpu_tensor *src, tpu_store **made) {
  pthread_once(&ops_once, ops_init);
  if (ops_error) return err_copy(ops_error);
  tpu_value args[3] = {
      {.tag = TPU_TENSOR, .u.tensor = self}, {.tag = TPU_TENSOR, .u.tensor = src}, {.tag = TPU_BOOLEAN}};
  tpu_call c = {.op = op, .args = args, .nargs = 3, .device = src->device, .result = take_store, .ctx = made};
  return tpu_call_run(&c);
}

static int64_t numel(const tpu_tensor *t) {
  int64_t n = 1;
  for (int i = 0; i < t->ndim; i++) n *= t->sizes[i];
  return n;
}

static bool dense(const tpu_tensor *t) {
  int64_t stride = 1;
  for (int i = t->ndim - 1; i >= 0; i--) {
    if (t->sizes[i] != 1 && t->strides[i] != stride) return false;
    stride *= t->sizes[i];
  }
  return true;
}

/* The range of integers that pass by here: an index out of range can then be an error at once, with nothing read back.
 * Only where looking is cheap beside the copy. */
static void note_range(dbuf *d, const void *host, tpu_dtype dtype, int ndim, const int64_t *dims) {
  enum { MOST = 1 << 16 };
  int64_t n = 1;
  for (int i = 0; i < ndim; i++) n *= dims[i];
  if ((dtype != TPU_I64 && dtype != TPU_I32) || n == 0 || n > MOST) return;
  int64_t least = INT64_MAX, most = INT64_MIN;
  for (int64_t i = 0; i < n; i++) {
    int64_t v = dtype == TPU_I64 ? ((const int64_t *)host)[i] : ((const int32_t *)host)[i];
    if (v < least) least = v;
    if (v > most) most = v;
  }
  d->has_range = true;
  d->least = least;
  d->most = most;
}

static tpu_err *upload(tpu_store *s, const void *host, tpu_dtype dtype, int ndim, const int64_t *dims) {
  pjrt_buffer *b;
  TPU_TRY(pjrt_buffer_from_host(ex.client, s->device, host, dtype_pjrt(dtype), dims, ndim, &b));
  dbuf *d;
  TPU_TRY(dbuf_new(b, s->device, NULL, &d));
  note_range(d, host, dtype, ndim, dims);
  ex_lock();
  tpu_err *e = store_set_locked(s, d, dtype, ndim, dims);
  ex_unlock();
  return e;
}

static tpu_err *check_dtype(const tpu_tensor *t) {
  if (dtype_pjrt((tpu_dtype)t->dtype)) return NULL;
  return err_dtype(t->dtype);
}

tpu_err *tpu_copy_from_host(const tpu_tensor *dst, const void *host) {
  TPU_TRY(ex_ready());
  TPU_TRY(check_dtype(dst));
  int64_t n = numel(dst);
  if (!n) return NULL;
  if (dense(dst) && dst->offset == 0 && (size_t)n * tpu_dtype_size((tpu_dtype)dst->dtype) == dst->store->nbytes &&
      !(dst->flags & (TPU_TENSOR_CONJ | TPU_TENSOR_NEG)))
    return upload(dst->store, host, (tpu_dtype)dst->dtype, dst->ndim, dst->sizes);
  /* a part of the storage, or other strides: upload, then write through the view */
  tpu_store *tmp;
  TPU_TRY(tpu_store_new((size_t)n * tpu_dtype_size((tpu_dtype)dst->dtype), dst->store->device, &tmp));
  tpu_err *e = upload(tmp, host, (tpu_dtype)dst->dtype, dst->ndim, dst->sizes);
  if (!e) {
    int64_t strides[VIEW_MAX_DIMS], stride = 1;
    for (int i = dst->ndim - 1; i >= 0; i--) {
      strides[i] = stride;
      stride *= dst->sizes[i] > 1 ? dst->sizes[i] : 1;
    }
    tpu_tensor src = {.store = tmp,
                      .sizes = dst->sizes,
                      .strides = strides,
                      .ndim = dst->ndim,
                      .dtype = dst->dtype,
                      .device = dst->device};
    e = call_copy(&op_copy, dst, &src, NULL);
  }
  tpu_store_release(tmp);
  return e;
}

/* Reads a store's whole value. */
static tpu_err *download(tpu_store *s, void *host, size_t nbytes) {
  ex_lock();
  dbuf *d = s->buf ? dbuf_retain(s->buf) : NULL;
  ex.stats.host_reads++;
  ex_unlock();
  if (!d) {
    memset(host, 0, nbytes);
    return NULL;
  }
  pjrt_buffer *b;
  char line[512];
  int64_t start = explain_on() ? clock_ns() : 0;
  tpu_err *e = dbuf_buffer(d, &b);
  bool async = !e;
  if (!e) e = pjrt_buffer_to_host(ex.client, b, host, nbytes);
  if (start) explain_add(TPU_EXPLAIN_READ, 0, 0, start, tpu_where(line, sizeof line));
  e = async_error(d, e, async);
  dbuf_release(d);
  return e;
}

/* A part of a value of at most so many bytes is read with all of it. */
enum { SMALL_VALUE = 1 << 16 };

static int64_t value_bytes(tpu_store *s) {
  int64_t n = (int64_t)tpu_dtype_size((tpu_dtype)s->dtype);
  for (int i = 0; i < s->ndim; i++) n *= s->dims[i];
  return n;
}

tpu_err *tpu_copy_to_host(const tpu_tensor *src, void *host) {
  TPU_TRY(ex_ready());
  TPU_TRY(check_dtype(src));
  int64_t n = numel(src);
  if (!n) return NULL;
  tpu_store *s = src->store;
  size_t nbytes = (size_t)n * tpu_dtype_size((tpu_dtype)src->dtype);
  ex_lock();
  bool plain = dense(src) && src->offset == 0 && !(src->flags & (TPU_TENSOR_CONJ | TPU_TENSOR_NEG)) &&
               (!s->buf || (s->dtype == src->dtype && value_bytes(s) == (int64_t)nbytes));
  size_t all = s->buf ? (size_t)value_bytes(s) : 0, at = (size_t)src->offset * tpu_dtype_size((tpu_dtype)src->dtype);
  bool inside =
      dense(src) && !(src->flags & (TPU_TENSOR_CONJ | TPU_TENSOR_NEG)) && all == s->nbytes && at + nbytes <= all;
  ex_unlock();
  if (plain) return download(s, host, nbytes);
  if (inside &&
      (all <= SMALL_VALUE || nbytes >= all / 4)) { /* all of it is read, for no program needs to be compiled */
    char *value = mem_alloc(all);
    if (!value) return err_nomem();
    tpu_err *e = download(s, value, all);
    if (!e) memcpy(host, value + at, nbytes);
    mem_free(value);
    return e;
  }
  tpu_store *tmp = NULL;
  TPU_TRY(call_copy(&op_contiguous, src, src, &tmp));
  if (!tmp) return err_new(TPU_ERR_RUNTIME, "tpu: copy to the host gave no value");
  tpu_err *e = download(tmp, host, nbytes);
  tpu_store_release(tmp);
  return e;
}

tpu_err *tpu_copy_across(const tpu_tensor *dst, const tpu_tensor *src) {
  TPU_TRY(ex_ready());
  int64_t n = numel(src);
  if (!n) return NULL;
  tpu_store *tmp = NULL; /* dense on the source's device */
  TPU_TRY(call_copy(&op_contiguous, src, src, &tmp));
  if (!tmp) return err_new(TPU_ERR_RUNTIME, "tpu: copy between devices gave no value");
  dbuf *d = NULL;
  tpu_store *there = NULL;
  pjrt_buffer *from, *b;
  tpu_err *e = dbuf_buffer(tmp->buf, &from);
  if (!e) e = pjrt_buffer_copy_to_device(ex.client, from, dst->store->device, &b);
  if (!e) e = dbuf_new(b, dst->store->device, "copy between devices", &d);
  if (!e) e = tpu_store_new(tmp->nbytes, dst->store->device, &there);
  if (!e) {
    ex_lock();
    e = store_set_locked(there, d, (tpu_dtype)src->dtype, src->ndim, src->sizes);
    ex_unlock();
    d = NULL;
  }
  if (!e) {
    int64_t strides[VIEW_MAX_DIMS], stride = 1;
    for (int i = src->ndim - 1; i >= 0; i--) {
      strides[i] = stride;
      stride *= src->sizes[i] > 1 ? src->sizes[i] : 1;
    }
    tpu_tensor t = {.store = there,
                    .sizes = src->sizes,
                    .strides = strides,
                    .ndim = src->ndim,
                    .dtype = src->dtype,
                    .device = dst->device};
    e = call_copy(&op_copy, dst, &t, NULL);
  }
  dbuf_release(d);
  tpu_store_release(there);
  tpu_store_release(tmp);
  return e;
}

/* ---- raw bytes: a storage seen as uint8 ------------------------------------------------------------------------- */

static tpu_tensor bytes_of(tpu_store *s, const int64_t *n, size_t offset) {
  static const int64_t one[1] = {1};
  return (tpu_tensor){.store = s,
                      .sizes = n,
                      .strides = one,
                      .offset = (int64_t)offset,
                      .ndim = 1,
                      .dtype = TPU_U8,
                      .device = (int16_t)s->device};
}

static tpu_err *check_range(tpu_store *s, size_t offset, size_t n) {
  if (offset <= s->nbytes && n <= s->nbytes - offset) return NULL;
  return err_new(TPU_ERR_RUNTIME, "tpu: bytes [%zu, %zu) are outside of a storage of %zu bytes", offset, offset + n,
                 s->nbytes);
}

tpu_err *tpu_store_write_bytes(tpu_store *s, size_t offset, const void *host, size_t n) {
  TPU_TRY(check_range(s, offset, n));
  int64_t count = (int64_t)n;
  tpu_tensor t = bytes_of(s, &count, offset);
  return tpu_copy_from_host(&t, host);
}

tpu_err *tpu_store_read_bytes(tpu_store *s, size_t offset, void *host, size_t n) {
  TPU_TRY(check_range(s, offset, n));
  if (!n) return NULL;
  ex_lock();
  bool all = offset == 0 && (!s->buf || value_bytes(s) == (int64_t)n);
  ex_unlock();
  if (all) return download(s, host, n);
  int64_t count = (int64_t)n;
  tpu_tensor t = bytes_of(s, &count, offset);
  return tpu_copy_to_host(&t, host);
}

tpu_err *tpu_store_copy_bytes(tpu_store *dst, tpu_store *src, size_t n) {
  TPU_TRY(ex_ready());
  TPU_TRY(check_range(dst, 0, n));
  TPU_TRY(check_range(src, 0, n));
  if (!n) return NULL;
  if (dst->device == src->device && dst->nbytes == n) { /* the value itself can be shared: values never change */
    ex_lock();
    dbuf *d = src->buf ? dbuf_retain(src->buf) : NULL;
    bool fits = !d || value_bytes(src) <= (int64_t)n;
    tpu_err *e = NULL;
    if (fits && d) e = store_set_locked(dst, d, (tpu_dtype)src->dtype, src->ndim, src->dims);
    else if (fits) store_clear_locked(dst);
    ex_unlock();
    if (fits) return e;
    dbuf_release(d);
  }
  int64_t count = (int64_t)n;
  tpu_tensor a = bytes_of(dst, &count, 0), b = bytes_of(src, &count, 0);
  return dst->device == src->device ? call_copy(&op_copy, &a, &b, NULL) : tpu_copy_across(&a, &b);
}
