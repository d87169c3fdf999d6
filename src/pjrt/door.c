#include "pjrt/door.h"

#include <stdint.h>
#include <string.h>

#include "base/mem.h"

_Atomic bool door_armed;
static _Atomic int64_t fault_nth, fault_count;

void pjrt_fault_at(int64_t nth) {
  atomic_store(&door_armed, false);
  if (nth <= 0) return;
  atomic_store(&fault_count, 0);
  atomic_store(&fault_nth, nth);
  atomic_store(&door_armed, true);
}

int64_t pjrt_fault_count(void) { return atomic_load(&fault_count); }

bool door_fault(void) { return atomic_fetch_add(&fault_count, 1) + 1 == atomic_load(&fault_nth); }

tpu_err *door_injected(const char *call) {
  return err_new(TPU_ERR_RUNTIME, "%s: failed because a test asked for it", call);
}

tpu_err *door_missing(const pjrt_api *api, const char *call) {
  return err_new(TPU_ERR_NOT_IMPLEMENTED, "the PJRT plugin %s (ABI %d.%d) has no %s; a newer plugin may have it",
                 api->path, api->major, api->minor, call);
}

tpu_err *door_no_result(const pjrt_api *api, const char *call) {
  return err_new(TPU_ERR_RUNTIME, "%s of the PJRT plugin %s reported success but gave no result", call, api->path);
}

void door_error_drop(const pjrt_api *api, PJRT_Error *take_e) {
  PJRT_Error_Destroy_Args a = {.struct_size = PJRT_Error_Destroy_SIZE, .error = take_e};
  api->error_destroy(&a);
}

static tpu_err_kind kind_of(const pjrt_api *api, const PJRT_Error *e) {
  PJRT_Error_GetCode_Args a = {.struct_size = PJRT_Error_GetCode_SIZE, .error = e};
  PJRT_Error *second = api->PJRT_Error_GetCode(&a);
  if (second) {
    door_error_drop(api, second);
    return TPU_ERR_RUNTIME;
  }
  switch (a.code) {
    case PJRT_CODE_RESOURCE_EXHAUSTED: return TPU_ERR_OOM;
    case PJRT_CODE_UNIMPLEMENTED: return TPU_ERR_NOT_IMPLEMENTED;
    default: return TPU_ERR_RUNTIME;
  }
}

tpu_err *door_error(const pjrt_api *api, PJRT_Error *take_e, const char *call) {
  PJRT_Error_Message_Args m = {.struct_size = PJRT_Error_Message_SIZE, .error = take_e};
  api->error_message(&m);
  int len = !m.message ? 0 : m.message_size > INT32_MAX ? INT32_MAX : (int)m.message_size;
  tpu_err *e = err_new(kind_of(api, take_e), "%s: %.*s", call, len, m.message ? m.message : "");
  door_error_drop(api, take_e);
  return e;
}

tpu_err *door_check_device(const pjrt_client *c, int device) {
  if (device >= 0 && device < c->device_count) return NULL;
  return err_new(TPU_ERR_RUNTIME, "invalid device %d: the PJRT plugin %s shows %d device%s, numbered from 0", device,
                 c->api->path, c->device_count, c->device_count == 1 ? "" : "s");
}

char *door_text(const char *s, size_t n) {
  if (!s) n = 0;
  char *p = mem_alloc(n + 1);
  if (!p) return NULL;
  if (n) memcpy(p, s, n);
  p[n] = 0;
  return p;
}
