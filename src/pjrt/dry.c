/* A client that executes nothing, for programs that are only looked at: buffers hold no bytes and read as zeros, a
 * program is compiled by counting its results. It stands where a loaded plugin would, so that no other room knows. */
#define _GNU_SOURCE /* memmem */
#include <string.h>

#include "base/mem.h"
#include "pjrt/door.h"

typedef struct {
  size_t noutputs;
} dry_exec;

static char nothing; /* every client, device, buffer and event */
static PJRT_Device *const device[1] = {(PJRT_Device *)&nothing};
static const char name[] = "dry";

static PJRT_Error *client_create(PJRT_Client_Create_Args *a) {
  a->client = (PJRT_Client *)&nothing;
  return NULL;
}

static PJRT_Error *client_destroy(PJRT_Client_Destroy_Args *a) {
  (void)a;
  return NULL;
}

static PJRT_Error *platform_name(PJRT_Client_PlatformName_Args *a) {
  a->platform_name = name;
  a->platform_name_size = sizeof name - 1;
  return NULL;
}

static PJRT_Error *devices(PJRT_Client_AddressableDevices_Args *a) {
  a->addressable_devices = device;
  a->num_addressable_devices = 1;
  return NULL;
}

/* The results of @main: the types after its arrow. Without one there is none. */
static size_t count_results(const char *text, size_t len) {
  static const char main_[] = "@main(";
  const char *at = memmem(text, len, main_, sizeof main_ - 1);
  if (!at) return 0;
  const char *end = memchr(at, '\n', len - (size_t)(at - text));
  if (!end) end = text + len;
  const char *arrow = memmem(at, (size_t)(end - at), " -> ", 4);
  size_t n = 0;
  static const char type[] = "tensor<";
  for (const char *p = arrow; p && (p = memmem(p, (size_t)(end - p), type, sizeof type - 1)); p++) n++;
  return n;
}

static PJRT_Error *compile(PJRT_Client_Compile_Args *a) { /* without memory it gives none, which is an error there */
  dry_exec *x = mem_alloc(sizeof *x);
  if (x) x->noutputs = count_results(a->program->code, a->program->code_size);
  a->executable = (PJRT_LoadedExecutable *)x;
  return NULL;
}

static PJRT_Error *exec_destroy(PJRT_LoadedExecutable_Destroy_Args *a) {
  mem_free(a->executable);
  return NULL;
}

static PJRT_Error *execute(PJRT_LoadedExecutable_Execute_Args *a) {
  const dry_exec *x = (const dry_exec *)a->executable;
  for (size_t i = 0; i < x->noutputs; i++) a->output_lists[0][i] = (PJRT_Buffer *)&nothing;
  if (a->device_complete_events) a->device_complete_events[0] = (PJRT_Event *)&nothing;
  return NULL;
}

static PJRT_Error *from_host(PJRT_Client_BufferFromHostBuffer_Args *a) {
  a->buffer = (PJRT_Buffer *)&nothing;
  return NULL;
}

static PJRT_Error *to_host(PJRT_Buffer_ToHostBuffer_Args *a) {
  memset(a->dst, 0, a->dst_size);
  a->event = (PJRT_Event *)&nothing;
  return NULL;
}

static PJRT_Error *dimensions(PJRT_Buffer_Dimensions_Args *a) {
  a->num_dims = 0;
  return NULL;
}

static PJRT_Error *to_device(PJRT_Buffer_CopyToDevice_Args *a) {
  a->dst_buffer = (PJRT_Buffer *)&nothing;
  return NULL;
}

static PJRT_Error *buffer_destroy(PJRT_Buffer_Destroy_Args *a) {
  (void)a;
  return NULL;
}

static PJRT_Error *ready_event(PJRT_Buffer_ReadyEvent_Args *a) {
  a->event = (PJRT_Event *)&nothing;
  return NULL;
}

static PJRT_Error *event_is_ready(PJRT_Event_IsReady_Args *a) {
  a->is_ready = true;
  return NULL;
}

static PJRT_Error *event_await(PJRT_Event_Await_Args *a) {
  (void)a;
  return NULL;
}

static PJRT_Error *event_on_ready(PJRT_Event_OnReady_Args *a) {
  a->callback(NULL, a->user_arg);
  return NULL;
}

static PJRT_Error *event_destroy(PJRT_Event_Destroy_Args *a) {
  (void)a;
  return NULL;
}

tpu_err *pjrt_dry(pjrt_api **out) {
  *out = mem_calloc(sizeof **out + sizeof name);
  if (!*out) return err_nomem();
  pjrt_api *api = *out;
  memcpy(api->path, name, sizeof name);
  api->PJRT_Client_Create = client_create;
  api->PJRT_Client_Destroy = client_destroy;
  api->PJRT_Client_PlatformName = platform_name;
  api->PJRT_Client_AddressableDevices = devices;
  api->PJRT_Client_Compile = compile;
  api->PJRT_LoadedExecutable_Destroy = exec_destroy;
  api->PJRT_LoadedExecutable_Execute = execute;
  api->PJRT_Client_BufferFromHostBuffer = from_host;
  api->PJRT_Buffer_ToHostBuffer = to_host;
  api->PJRT_Buffer_Dimensions = dimensions;
  api->PJRT_Buffer_CopyToDevice = to_device;
  api->PJRT_Buffer_Destroy = buffer_destroy;
  api->PJRT_Buffer_ReadyEvent = ready_event;
  api->PJRT_Event_IsReady = event_is_ready;
  api->PJRT_Event_Await = event_await;
  api->PJRT_Event_OnReady = event_on_ready;
  api->PJRT_Event_Destroy = event_destroy;
  api->major = PJRT_MAJOR;
  api->minor = PJRT_NEWEST_MINOR_TRIED;
  return NULL;
}
