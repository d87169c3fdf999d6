/* fake_signature.h - reads "@main(types) -> types" out of StableHLO text. */
#ifndef TPU_TEST_FAKE_SIGNATURE_H
#define TPU_TEST_FAKE_SIGNATURE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FAKE_MAX_DIMS = 16, FAKE_MAX_VALUES = 4096 };

typedef struct {
  int64_t dims[FAKE_MAX_DIMS];
  int ndim;
  int type;     /* PJRT_Buffer_Type */
  size_t bytes; /* of the whole; SIZE_MAX when it does not fit */
  int alias;    /* arguments: the result that reuses it, or -1 */
} fake_type;

typedef struct {
  fake_type *args, *results;
  size_t nargs, nresults;
} fake_signature;

/* NULL on success, else what is wrong. */
const char *fake_signature_read(const char *text, size_t len, fake_signature *out);
void fake_signature_free(fake_signature *s);
#endif
