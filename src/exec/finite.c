/* Debug mode: looks for NaN and infinities in what a call made. */
#include <string.h>

#include "exec/exec.h"

/* How many of n elements are NaN or infinite; *first: the first that the level forbids. */
static void scan(const uint8_t *p, int64_t n, size_t size, uint64_t exponent, uint64_t mantissa, int64_t *nans,
                 int64_t *infs, int64_t *first, bool inf_too) {
  for (int64_t i = 0; i < n; i++) {
    uint64_t w = 0;
    memcpy(&w, p + (size_t)i * size, size); /* little-endian, as every host of a plugin */
    if ((w & exponent) != exponent) continue;
    bool nan = (w & mantissa) != 0;
    *(nan ? nans : infs) += 1;
    if (*first < 0 && (nan || inf_too)) *first = i;
  }
}

tpu_err *finite_check(dbuf *d, tpu_dtype dtype, int ndim, const int64_t *dims) {
  int level = atomic_load_explicit(&ex.debug_nan, memory_order_relaxed);
  uint64_t exponent, mantissa;
  size_t size, parts = 1;
  switch (dtype) {
    case TPU_C64: parts = 2; __attribute__((fallthrough));
    case TPU_F32: size = 4, exponent = 0x7f800000u, mantissa = 0x7fffffu; break;
    case TPU_C128: parts = 2; __attribute__((fallthrough));
    case TPU_F64: size = 8, exponent = 0x7ffull << 52, mantissa = (1ull << 52) - 1; break;
    case TPU_F16: size = 2, exponent = 0x7c00, mantissa = 0x3ff; break;
    case TPU_BF16: size = 2, exponent = 0x7f80, mantissa = 0x7f; break;
    default: return NULL;
  }
  if (!level) return NULL;
  int64_t n = (int64_t)parts, nans = 0, infs = 0, first = -1;
  for (int i = 0; i < ndim; i++) n *= dims[i];
  uint8_t *host = mem_alloc((size_t)n * size + 1);
  if (!host) return err_nomem();
  pjrt_buffer *b;
  tpu_err *e = dbuf_buffer(d, &b);
  if (!e) e = pjrt_buffer_to_host(ex.client, b, host, (size_t)n * size);
  if (!e) scan(host, n, size, exponent, mantissa, &nans, &infs, &first, level > 1);
  mem_free(host);
  if (e || first < 0) return e;
  return err_new(
      TPU_ERR_RUNTIME,
      "%s: of %lld elements of its result (%s), %lld are NaN and %lld are infinite; the first is element %lld "
      "in memory (torch.tpu.set_debug)",
      d->op ? d->op : "?", (long long)(n / (int64_t)parts), tpu_dtype_name(dtype), (long long)nans, (long long)infs,
      (long long)(first / (int64_t)parts));
}
