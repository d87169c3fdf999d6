/* Compile options: CompileOptionsProto (openxla/xla, xla/pjrt/proto/compile_options.proto), written by hand, for its
 * few fields are all that is needed. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "pjrt/door.h"

/* CompileOptionsProto { executable_build_options (3) { num_replicas (4): 1, num_partitions (5): 1 },
 *                       compile_portable_executable (4): true } */
static const char portable_options[] = "\x1a\x04\x20\x01\x28\x01\x20\x01";
/* XLA's CPU backend has "fast" maximum and minimum switched on, which lose NaN; PyTorch's keep it. The same bytes, and
 * env_option_overrides (7) { "xla_cpu_enable_fast_min_max": false }. */
static const char cpu_options[] =
    "\x1a\x04\x20\x01\x28\x01\x20\x01"
    "\x3a\x21\x0a\x1b"
    "xla_cpu_enable_fast_min_max"
    "\x12\x02\x10\x00";

const char *pjrt_portable_options(size_t *len) {
  *len = sizeof portable_options - 1;
  return portable_options;
}

const char *pjrt_default_options(pjrt_client *c, size_t *len) {
  bool cpu = !strcmp(pjrt_platform(c), "cpu");
  *len = cpu ? sizeof cpu_options - 1 : sizeof portable_options - 1;
  return cpu ? cpu_options : portable_options;
}

static void put_varint(buf *b, uint64_t v) {
  for (; v > 127; v >>= 7) buf_char(b, (char)((v & 127) | 128));
  buf_char(b, (char)v);
}

static void put_number(buf *b, int field, uint64_t v) {
  put_varint(b, (uint64_t)field << 3);
  put_varint(b, v);
}

/* A string or a message. */
static void put_field(buf *b, int field, const char *bytes, size_t n) {
  put_varint(b, (uint64_t)field << 3 | 2);
  put_varint(b, n);
  if (n) buf_bytes(b, bytes, n);
}

/* ---- options at the end of a text ------------------------------------------------------------------------------ */

static const char mark[] = "// xla: ";

/* Where the lines begin that a text ends with; its end when there are none. */
static const char *options_at(const char *text, const char *end) {
  while (end - text > (ptrdiff_t)sizeof mark && end[-1] == '\n') {
    const char *line = end - 1;
    while (line > text && line[-1] != '\n') line--;
    if ((size_t)(end - line) < sizeof mark || memcmp(line, mark, sizeof mark - 1) != 0) break;
    end = line;
  }
  return end;
}

/* OptionOverrideProto { string (1) | bool (2) | int64 (3) | double (4) } */
static bool put_value(buf *b, const char *s, size_t n) {
  char number[64], *end;
  if (n >= 2 && s[0] == '"' && s[n - 1] == '"') return put_field(b, 1, s + 1, n - 2), true;
  if (n == 4 && !memcmp(s, "true", 4)) return put_number(b, 2, 1), true;
  if (n == 5 && !memcmp(s, "false", 5)) return put_number(b, 2, 0), true;
  if (!n || n >= sizeof number) return false;
  memcpy(number, s, n);
  number[n] = 0;
  errno = 0;
  long long i = strtoll(number, &end, 10);
  if (!*end && !errno) return put_number(b, 3, (uint64_t)i), true;
  double d = strtod(number, &end);
  if (*end) return false;
  uint64_t bits;
  memcpy(&bits, &d, sizeof bits);
  buf_char(b, 0x21);
  for (int k = 0; k < 8; k++) buf_char(b, (char)(bits >> 8 * k));
  return true;
}

/* CompileOptionsProto.env_option_overrides (7): a map entry { name (1), OptionOverrideProto (2) } */
static tpu_err *put_options(buf *b, const char *line, const char *end) {
  buf entry, value;
  buf_init(&entry);
  buf_init(&value);
  tpu_err *e = NULL;
  bool failed = false; /* which a buf_clear forgets */
  while (line < end && !e) {
    const char *stop = memchr(line, '\n', (size_t)(end - line)), *name = line + sizeof mark - 1;
    const char *equals = memchr(name, ' ', (size_t)(stop - name));
    buf_clear(&entry);
    buf_clear(&value);
    if (!equals || stop - equals < 4 || memcmp(equals, " = ", 3) != 0 ||
        !put_value(&value, equals + 3, (size_t)(stop - equals - 3))) {
      e = err_new(TPU_ERR_VALUE, "an option of XLA: expected NAME = VALUE, got %.*s", (int)(stop - name), name);
    } else {
      put_field(&entry, 1, name, (size_t)(equals - name));
      put_field(&entry, 2, value.data, value.len);
      put_field(b, 7, entry.data, entry.len);
    }
    failed |= entry.failed || value.failed;
    line = stop + 1;
  }
  if (!e && (failed || b->failed)) e = err_nomem();
  buf_free(&entry);
  buf_free(&value);
  return e;
}

tpu_err *door_options(pjrt_client *c, const char *text, size_t len, buf *out) {
  size_t n;
  const char *own = pjrt_default_options(c, &n);
  buf_bytes(out, own, n);
  return put_options(out, options_at(text, text + len), text + len);
}

/* ---- many partitions ------------------------------------------------------------------------------------------- */

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
    put_field(&assignment, 3, one.data, one.len);
  }
  put_number(&build, REPLICAS, 1);
  put_number(&build, PARTITIONS, (uint64_t)n);
  put_number(&build, USE_SPMD, 1);
  put_field(&build, ASSIGNMENT, assignment.data, assignment.len);
  put_number(&build, FREE_RESULTS, 1); /* those without a place: the partitioner finds one */
  put_number(&build, FREE_PARAMETERS, 1);
  put_number(&build, SHARDY, 1);
  put_field(&all, 3, build.data, build.len);
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
