#include <string.h>

#include "base/mem.h"
#include "pjrt/door.h"

/* ---- events ---------------------------------------------------------------------------------------------------- */

bool pjrt_event_ready(pjrt_client *c, pjrt_event *e) {
  PJRT_Event_IsReady_Args a = {.event = e};
  tpu_err *err = PJRT_CALL(c->api, PJRT_Event_IsReady, &a);
  if (!err) return a.is_ready;
  tpu_err_free(err); /* a wait will tell */
  return true;
}

tpu_err *pjrt_event_wait(pjrt_client *c, pjrt_event *e) {
  PJRT_Event_Await_Args a = {.event = e};
  return PJRT_CALL(c->api, PJRT_Event_Await, &a);
}

void pjrt_event_free(pjrt_client *c, pjrt_event *e) {
  if (!e) return;
  PJRT_Event_Destroy_Args a = {.event = e};
  PJRT_DROP(c->api, PJRT_Event_Destroy, &a);
}

typedef struct {
  const pjrt_api *api;
  void (*fn)(void *arg);
  void *arg;
} callback;

static void on_ready(PJRT_Error *take_error, void *user_arg) {
  callback cb = *(callback *)user_arg;
  mem_free(user_arg);
  if (take_error) door_error_drop(cb.api, take_error);
  cb.fn(cb.arg);
}

tpu_err *pjrt_event_on_ready(pjrt_client *c, pjrt_event *e, void (*fn)(void *arg), void *arg) {
  callback *cb = mem_alloc(sizeof *cb);
  if (!cb) return err_nomem();
  *cb = (callback){c->api, fn, arg};
  PJRT_Event_OnReady_Args a = {.event = e, .callback = on_ready, .user_arg = cb};
  tpu_err *err = PJRT_CALL(c->api, PJRT_Event_OnReady, &a);
  if (err) mem_free(cb);
  return err;
}

tpu_err *pjrt_buffer_event(pjrt_client *c, pjrt_buffer *b, pjrt_event **out) {
  *out = NULL;
  PJRT_Buffer_ReadyEvent_Args a = {.buffer = b};
  TPU_TRY(PJRT_CALL(c->api, PJRT_Buffer_ReadyEvent, &a));
  if (!a.event) return door_no_result(c->api, "PJRT_Buffer_ReadyEvent");
  *out = a.event;
  return NULL;
}

/* ---- buffers --------------------------------------------------------------------------------------------------- */

tpu_err *pjrt_buffer_wait(pjrt_client *c, pjrt_buffer *b) {
  pjrt_event *e;
  TPU_TRY(pjrt_buffer_event(c, b, &e));
  tpu_err *err = pjrt_event_wait(c, e);
  pjrt_event_free(c, e);
  return err;
}

bool pjrt_buffer_ready(pjrt_client *c, pjrt_buffer *b) {
  pjrt_event *e;
  tpu_err *err = pjrt_buffer_event(c, b, &e);
  if (err) {
    tpu_err_free(err); /* nothing to wait for; a read will tell */
    return true;
  }
  bool ready = pjrt_event_ready(c, e);
  pjrt_event_free(c, e);
  return ready;
}

void pjrt_buffer_free(pjrt_client *c, pjrt_buffer *b) {
  if (!b) return;
  PJRT_Buffer_Destroy_Args a = {.buffer = b};
  PJRT_DROP(c->api, PJRT_Buffer_Destroy, &a);
}

tpu_err *pjrt_buffer_from_host(pjrt_client *c, int device, const void *host, int pjrt_type, const int64_t *dims,
                               int ndim, pjrt_buffer **out) {
  static const int64_t nothing[2]; /* some plugins refuse NULL for no dimensions or no elements */
  *out = NULL;
  if (DOOR_RARE(device < 0 || device >= c->device_count)) return door_check_device(c, device);
  PJRT_Client_BufferFromHostBuffer_Args a = {.client = c->client,
                                             .data = host ? host : nothing,
                                             .type = (uint32_t)pjrt_type,
                                             .dims = ndim ? dims : nothing,
                                             .num_dims = (size_t)ndim,
                                             .host_buffer_semantics = PJRT_HOST_IMMUTABLE_ONLY_DURING_CALL,
                                             .device = c->devices[device]};
  TPU_TRY(PJRT_CALL(c->api, PJRT_Client_BufferFromHostBuffer, &a));
  pjrt_event_free(c, a.done_with_host_buffer);
  if (!a.buffer) return door_no_result(c->api, "PJRT_Client_BufferFromHostBuffer");
  *out = a.buffer;
  return NULL;
}

static tpu_err *size_error(size_t have, size_t nbytes) {
  return err_new(TPU_ERR_RUNTIME, "a read of a device buffer expected %zu bytes, but the buffer has %zu", nbytes, have);
}

/* The plugin converts from whatever layout the device has to the one asked for here. */
static tpu_err *read_through_plugin(pjrt_client *c, pjrt_buffer *b, void *host, size_t nbytes) {
  enum { MAX_DIMS = 64 };
  PJRT_Buffer_Dimensions_Args d = {.buffer = b};
  TPU_TRY(PJRT_CALL(c->api, PJRT_Buffer_Dimensions, &d));
  if (d.num_dims > MAX_DIMS)
    return err_new(TPU_ERR_RUNTIME, "a device buffer has %zu dimensions, expected at most %d", d.num_dims, MAX_DIMS);
  int64_t minor_to_major[MAX_DIMS];
  for (size_t i = 0; i < d.num_dims; i++) minor_to_major[i] = (int64_t)(d.num_dims - 1 - i);
  PJRT_Buffer_MemoryLayout layout = {.struct_size = PJRT_END_OF(PJRT_Buffer_MemoryLayout, type),
                                     .u.tiled = {.struct_size = PJRT_END_OF(PJRT_Buffer_MemoryLayout_Tiled, num_tiles),
                                                 .minor_to_major = minor_to_major,
                                                 .minor_to_major_size = d.num_dims},
                                     .type = PJRT_LAYOUT_TILED};
  PJRT_Buffer_ToHostBuffer_Args a = {.src = b, .host_layout = &layout, .dst = host, .dst_size = nbytes};
  TPU_TRY(PJRT_CALL(c->api, PJRT_Buffer_ToHostBuffer, &a));
  if (!a.event) return door_no_result(c->api, "PJRT_Buffer_ToHostBuffer");
  tpu_err *err = pjrt_event_wait(c, a.event);
  pjrt_event_free(c, a.event);
  return err;
}

/* On the CPU device memory is host memory in dense row-major order; one copy is several times faster than a transfer
 * that hops through the plugin's threads. */
static tpu_err *read_in_place(pjrt_client *c, pjrt_buffer *b, void *host, size_t nbytes) {
  TPU_TRY(pjrt_buffer_wait(c, b));
  PJRT_Buffer_OnDeviceSizeInBytes_Args s = {.buffer = b};
  TPU_TRY(PJRT_CALL(c->api, PJRT_Buffer_OnDeviceSizeInBytes, &s));
  if (s.on_device_size_in_bytes != nbytes) return size_error(s.on_device_size_in_bytes, nbytes);
  PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args p = {.buffer = b};
  TPU_TRY(PJRT_CALL(c->api, PJRT_Buffer_OpaqueDeviceMemoryDataPointer, &p));
  if (!p.device_memory_ptr) return read_through_plugin(c, b, host, nbytes);
  memcpy(host, p.device_memory_ptr, nbytes);
  return NULL;
}

tpu_err *pjrt_buffer_to_host(pjrt_client *c, pjrt_buffer *b, void *host, size_t nbytes) {
  if (nbytes == 0) return pjrt_buffer_wait(c, b);
  if (c->host_is_device && c->api->PJRT_Buffer_OnDeviceSizeInBytes && c->api->PJRT_Buffer_OpaqueDeviceMemoryDataPointer)
    return read_in_place(c, b, host, nbytes);
  return read_through_plugin(c, b, host, nbytes);
}

tpu_err *pjrt_buffer_copy_to_device(pjrt_client *c, pjrt_buffer *b, int device, pjrt_buffer **out) {
  *out = NULL;
  TPU_TRY(door_check_device(c, device));
  PJRT_Buffer_CopyToDevice_Args a = {.buffer = b, .dst_device = c->devices[device]};
  TPU_TRY(PJRT_CALL(c->api, PJRT_Buffer_CopyToDevice, &a));
  if (!a.dst_buffer) return door_no_result(c->api, "PJRT_Buffer_CopyToDevice");
  *out = a.dst_buffer;
  return NULL;
}
