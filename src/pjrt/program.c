#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
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

/* ---- options at the end of a text ---- */

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

static void put_varint(buf *b, uint64_t v) {
  for (; v > 127; v >>= 7) buf_char(b, (char)((v & 127) | 128));
  buf_char(b, (char)v);
}

static void put_field(buf *b, int key, const char *bytes, size_t n) {
  put_varint(b, (uint64_t)key);
  put_varint(b, n);
  buf_bytes(b, bytes, n);
}

/* OptionOverrideProto { string (1) | bool (2) | int64 (3) | double (4) } */
static bool put_value(buf *b, const char *s, size_t n) {
  char number[64], *end;
  if (n >= 2 && s[0] == '"' && s[n - 1] == '"') return put_field(b, 0x0a, s + 1, n - 2), true;
  if (n == 4 && !memcmp(s, "true", 4)) return buf_bytes(b, "\x10\x01", 2), true;
  if (n == 5 && !memcmp(s, "false", 5)) return buf_bytes(b, "\x10\x00", 2), true;
  if (!n || n >= sizeof number) return false;
  memcpy(number, s, n);
  number[n] = 0;
  errno = 0;
  long long i = strtoll(number, &end, 10);
  if (!*end && !errno) return buf_char(b, 0x18), put_varint(b, (uint64_t)i), true;
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
  while (line < end && !e) {
    const char *stop = memchr(line, '\n', (size_t)(end - line)), *name = line + sizeof mark - 1;
    const char *equals = memchr(name, ' ', (size_t)(stop - name));
    buf_clear(&entry);
    buf_clear(&value);
    if (!equals || stop - equals < 4 || memcmp(equals, " = ", 3) != 0 ||
        !put_value(&value, equals + 3, (size_t)(stop - equals - 3))) {
      e = err_new(TPU_ERR_VALUE, "an option of XLA: expected NAME = VALUE, got %.*s", (int)(stop - name), name);
    } else {
      put_field(&entry, 0x0a, name, (size_t)(equals - name));
      put_field(&entry, 0x12, value.data, value.len);
      put_field(b, 0x3a, entry.data, entry.len);
    }
    line = stop + 1;
  }
  if (!e && (entry.failed || value.failed || b->failed)) e = err_nomem();
  buf_free(&entry);
  buf_free(&value);
  return e;
}

tpu_err *pjrt_compile(pjrt_client *c, const char *text, size_t len, const char *options, size_t options_len,
                      pjrt_exec **out) {
  *out = NULL;
  buf own;
  buf_init(&own);
  if (!options) {
    options = pjrt_default_options(c, &options_len);
    const char *more = options_at(text, text + len);
    if (more < text + len) {
      buf_bytes(&own, options, options_len);
      tpu_err *e = put_options(&own, more, text + len);
      if (e) {
        buf_free(&own);
        return e;
      }
      options = own.data;
      options_len = own.len;
    }
  }
  PJRT_Program p = door_program(text, len);
  PJRT_Client_Compile_Args a = {
      .client = c->client, .program = &p, .compile_options = options, .compile_options_size = options_len};
  tpu_err *e = PJRT_CALL(c->api, PJRT_Client_Compile, &a);
  buf_free(&own);
  if (e) return e;
  if (!a.executable) return door_no_result(c->api, "PJRT_Client_Compile");
  *out = a.executable;
  return NULL;
}

/* The part of an executable that is not tied to devices; given back with executable_drop. */
static tpu_err *get_executable(pjrt_client *c, pjrt_exec *e, PJRT_Executable **out) {
  PJRT_LoadedExecutable_GetExecutable_Args a = {.loaded_executable = e};
  TPU_TRY(PJRT_CALL(c->api, PJRT_LoadedExecutable_GetExecutable, &a));
  if (!a.executable) return door_no_result(c->api, "PJRT_LoadedExecutable_GetExecutable");
  *out = a.executable;
  return NULL;
}

static void executable_drop(pjrt_client *c, PJRT_Executable *x) {
  PJRT_Executable_Destroy_Args a = {.executable = x};
  PJRT_DROP(c->api, PJRT_Executable_Destroy, &a);
}

tpu_err *door_serialize(pjrt_api *api, PJRT_Executable *x, char **out, size_t *out_len) {
  PJRT_Executable_Serialize_Args a = {.executable = x};
  TPU_TRY(PJRT_CALL(api, PJRT_Executable_Serialize, &a));
  tpu_err *e = NULL;
  if (!a.serialized_bytes || !a.serialized_bytes_size) {
    e = door_no_result(api, "PJRT_Executable_Serialize");
  } else if (!(*out = mem_alloc(a.serialized_bytes_size))) {
    e = err_nomem();
  } else {
    memcpy(*out, a.serialized_bytes, a.serialized_bytes_size);
    *out_len = a.serialized_bytes_size;
  }
  if (a.serialized_executable && a.serialized_executable_deleter)
    a.serialized_executable_deleter(a.serialized_executable);
  return e;
}

tpu_err *pjrt_exec_serialize(pjrt_client *c, pjrt_exec *e, char **out, size_t *out_len) {
  *out = NULL;
  *out_len = 0;
  PJRT_Executable *x;
  TPU_TRY(get_executable(c, e, &x));
  tpu_err *err = door_serialize(c->api, x, out, out_len);
  executable_drop(c, x);
  return err;
}

tpu_err *door_optimized(const pjrt_api *api, PJRT_Executable *x, char **out, size_t *out_len, char format[32]) {
  *out = NULL;
  *out_len = 0;
  format[0] = 0;
  PJRT_Program p = {.struct_size = PJRT_END_OF(PJRT_Program, format_size)};
  PJRT_Executable_OptimizedProgram_Args a = {.executable = x, .program = &p};
  TPU_TRY(PJRT_CALL(api, PJRT_Executable_OptimizedProgram, &a)); /* asks for the size */
  if (!p.code_size) return door_no_result(api, "PJRT_Executable_OptimizedProgram");
  char *code = mem_alloc(p.code_size);
  if (!code) return err_nomem();
  p.code = code;
  tpu_err *e = PJRT_CALL(api, PJRT_Executable_OptimizedProgram, &a);
  if (e) {
    mem_free(code);
    return e;
  }
  size_t n = p.format && p.format_size < 31 ? p.format_size : 0;
  if (n) memcpy(format, p.format, n);
  format[n] = 0;
  *out = code;
  *out_len = p.code_size;
  return NULL;
}

tpu_err *pjrt_exec_optimized(pjrt_client *c, pjrt_exec *e, char **out, size_t *out_len, char format[32]) {
  PJRT_Executable *x;
  *out = NULL;
  TPU_TRY(get_executable(c, e, &x));
  tpu_err *err = door_optimized(c->api, x, out, out_len, format);
  executable_drop(c, x);
  return err;
}

tpu_err *pjrt_exec_load(pjrt_client *c, const char *bytes, size_t len, pjrt_exec **out) {
  *out = NULL;
  PJRT_Executable_DeserializeAndLoad_Args a = {
      .client = c->client, .serialized_executable = bytes, .serialized_executable_size = len};
  TPU_TRY(PJRT_CALL(c->api, PJRT_Executable_DeserializeAndLoad, &a));
  if (!a.loaded_executable) return door_no_result(c->api, "PJRT_Executable_DeserializeAndLoad");
  *out = a.loaded_executable;
  return NULL;
}

tpu_err *pjrt_exec_num_outputs(pjrt_client *c, pjrt_exec *e, size_t *out) {
  *out = 0;
  PJRT_Executable *x;
  TPU_TRY(get_executable(c, e, &x));
  PJRT_Executable_NumOutputs_Args a = {.executable = x};
  tpu_err *err = PJRT_CALL(c->api, PJRT_Executable_NumOutputs, &a);
  executable_drop(c, x);
  if (!err) *out = a.num_outputs;
  return err;
}

tpu_err *door_memory(const pjrt_api *api, PJRT_Executable *x, pjrt_memory *out) {
  *out = (pjrt_memory){0};
  PJRT_Executable_GetCompiledMemoryStats_Args a = {.executable = x};
  TPU_TRY(PJRT_CALL(api, PJRT_Executable_GetCompiledMemoryStats, &a));
  *out = (pjrt_memory){.arguments = a.argument_size_in_bytes,
                       .outputs = a.output_size_in_bytes,
                       .aliased = a.alias_size_in_bytes,
                       .temporaries = a.temp_size_in_bytes,
                       .code = a.generated_code_size_in_bytes,
                       .peak = a.peak_memory_in_bytes};
  return NULL;
}

tpu_err *door_cost(const pjrt_api *api, PJRT_Executable *x, door_cost_fn fn, void *ctx) {
  PJRT_Executable_GetCostAnalysis_Args a = {.executable = x};
  TPU_TRY(PJRT_CALL(api, PJRT_Executable_GetCostAnalysis, &a));
  for (size_t i = 0; i < a.num_properties; i++) { /* they live as long as the executable */
    const PJRT_NamedValue *v = &a.properties[i];
    if (v->type != PJRT_VALUE_FLOAT && v->type != PJRT_VALUE_INT64) continue;
    fn(ctx, v->name, v->name_size, v->type == PJRT_VALUE_FLOAT ? (double)v->u.float_value : (double)v->u.int64_value);
  }
  return NULL;
}

static void keep_accessed(void *ctx, const char *name, size_t n, double value) {
  static const char wanted[] = "bytes accessed";
  if (n == sizeof wanted - 1 && !memcmp(name, wanted, n)) *(int64_t *)ctx = (int64_t)value;
}

int64_t pjrt_exec_traffic(pjrt_client *c, pjrt_exec *e) {
  PJRT_Executable *x;
  tpu_err *err = get_executable(c, e, &x);
  if (err) {
    tpu_err_free(err);
    return -1;
  }
  int64_t bytes = -1;
  tpu_err_free(door_cost(c->api, x, keep_accessed, &bytes));
  pjrt_memory m;
  if (bytes < 0 && !(err = door_memory(c->api, x, &m))) bytes = m.arguments + m.outputs + 2 * m.temporaries;
  tpu_err_free(err);
  executable_drop(c, x);
  return bytes;
}

void pjrt_exec_free(pjrt_client *c, pjrt_exec *e) {
  if (!e) return;
  PJRT_LoadedExecutable_Destroy_Args a = {.executable = e};
  PJRT_DROP(c->api, PJRT_LoadedExecutable_Destroy, &a);
}

tpu_err *pjrt_execute(pjrt_client *c, pjrt_exec *e, int device, pjrt_buffer *const *args, size_t nargs,
                      const int64_t *keep, size_t nkeep, pjrt_buffer **outs, pjrt_event **done) {
  if (done) *done = NULL;
  if (DOOR_RARE(device < 0 || device >= c->device_count)) return door_check_device(c, device);
  PJRT_ExecuteOptions options = {.struct_size = PJRT_END_OF(PJRT_ExecuteOptions, num_hlo_output_callbacks),
                                 .non_donatable_input_indices = keep,
                                 .num_non_donatable_input_indices = nkeep};
  pjrt_buffer *const *const arg_lists[1] = {args};
  pjrt_buffer **const out_lists[1] = {outs};
  PJRT_LoadedExecutable_Execute_Args a = {.executable = e,
                                          .options = &options,
                                          .argument_lists = arg_lists,
                                          .num_devices = 1,
                                          .num_args = nargs,
                                          .output_lists = out_lists,
                                          .device_complete_events = done,
                                          .execute_device = c->devices[device]};
  return PJRT_CALL(c->api, PJRT_LoadedExecutable_Execute, &a);
}
