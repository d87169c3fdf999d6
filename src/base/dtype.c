#include "tpu.h"

size_t tpu_dtype_size(tpu_dtype d) {
  switch ((int)d) {
#define X(num, name, torch, mlir, bytes, pjrt, cls) \
  case num: return bytes;
    TPU_DTYPES(X)
#undef X
    default: return 0;
  }
}

const char *tpu_dtype_name(tpu_dtype d) {
  switch ((int)d) {
#define X(num, name, torch, mlir, bytes, pjrt, cls) \
  case num: return torch;
    TPU_DTYPES(X)
#undef X
    default: return "?";
  }
}
