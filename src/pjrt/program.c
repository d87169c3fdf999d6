#include <string.h>

#include "base/mem.h"
#include "pjrt/door.h"

tpu_err *pjrt_compile(pjrt_client *c, const char *text, size_t len, const char *options, size_t options_len,
                      pjrt_exec **out) {
  *out = NULL;
  buf own;
  buf_init(&own);
  if (!options) {
    tpu_err *e = door_options(c, text, len, &own);
    if (e) {
      buf_free(&own);
      return e;
    }
    options = own.data;
    options_len = own.len;
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

tpu_err *door_executable(pjrt_client *c, pjrt_exec *e, PJRT_Executable **out) {
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
  TPU_TRY(door_executable(c, e, &x));
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
  TPU_TRY(door_executable(c, e, &x));
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
  TPU_TRY(door_executable(c, e, &x));
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
  tpu_err *err = door_executable(c, e, &x);
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
