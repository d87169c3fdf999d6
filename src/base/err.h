/* err.h - errors: NULL is success, the message says what was expected, what came, and what to do. */
#ifndef TPU_BASE_ERR_H
#define TPU_BASE_ERR_H
#include <stdarg.h>

#include "tpu.h"

/* Makes an error. Never returns NULL: when memory is out, a static out-of-memory error is given. */
TPU_MUST tpu_err *err_new(tpu_err_kind kind, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
TPU_MUST tpu_err *err_newv(tpu_err_kind kind, const char *fmt, va_list ap);
/* Puts "prefix: " before the message; consumes and returns the error (NULL stays NULL). */
TPU_MUST tpu_err *err_wrap(tpu_err *take_e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The error for a failed host allocation (static, no memory needed). */
TPU_MUST tpu_err *err_nomem(void);
/* The error for a dtype of PyTorch's that the device has not. */
TPU_MUST tpu_err *err_dtype(int dtype);
/* A second owner of the same error. */
TPU_MUST tpu_err *err_copy(const tpu_err *e);

#define TPU_TRY(expr)              \
  do {                             \
    tpu_err *try_err_ = (expr);    \
    if (try_err_) return try_err_; \
  } while (0)
#endif
