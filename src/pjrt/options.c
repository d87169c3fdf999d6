/* Compile options of programs with many partitions: a CompileOptionsProto (openxla/xla,
 * xla/pjrt/proto/compile_options.proto) written by hand, for its few fields are all that is needed. */
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "pjrt/pjrt.h"

static void put_varint(buf *b, uint64_t v) {
  for (; v > 127; v >>= 7) buf_char(b, (char)((v & 127) | 128));
  buf_char(b, (char)v);
}

static void put_number(buf *b, int field, uint64_t v) {
  put_varint(b, (uint64_t)field << 3);
  put_varint(b, v);
}

static void put_message(buf *b, int field, const buf *message) {
  put_varint(b, (uint64_t)field << 3 | 2);
  put_varint(b, message->len);
  if (message->len) buf_bytes(b, message->data, message->len);
}

tpu_err *pjrt_partition_options(const int *devices, int n, char **out, size_t *len) {
  enum {
    REPLICAS = 4,
    PARTITIONS = 5,
    USE_SPMD = 6,
    ASSIGNMENT = 9,
    FREE_RESULTS = 12,
    FREE_PARAMETERS = 18,
    SHARDY = 19
  };
  buf one, assignment, build, all;
  buf_init(&one);
  buf_init(&assignment);
  buf_init(&build);
  buf_init(&all);
  put_number(&assignment, 1, 1); /* DeviceAssignmentProto: replicas, computations, and the device of each */
  put_number(&assignment, 2, (uint64_t)n);
  bool failed = false;
  for (int i = 0; i < n; i++) {
    buf_clear(&one);
    put_number(&one, 1, (uint64_t)devices[i]);
    failed |= one.failed; /* which the next buf_clear forgets */
    put_message(&assignment, 3, &one);
  }
  put_number(&build, REPLICAS, 1);
  put_number(&build, PARTITIONS, (uint64_t)n);
  put_number(&build, USE_SPMD, 1);
  put_message(&build, ASSIGNMENT, &assignment);
  put_number(&build, FREE_RESULTS, 1); /* those without a place: the partitioner finds one */
  put_number(&build, FREE_PARAMETERS, 1);
  put_number(&build, SHARDY, 1);
  put_message(&all, 3, &build);
  failed |= assignment.failed || build.failed || all.failed;
  char *bytes = failed ? NULL : mem_alloc(all.len);
  if (bytes) memcpy(bytes, all.data, all.len);
  *out = bytes;
  *len = all.len;
  buf_free(&one);
  buf_free(&assignment);
  buf_free(&build);
  buf_free(&all);
  return bytes ? NULL : err_nomem();
}
