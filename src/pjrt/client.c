#include <limits.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "pjrt/door.h"

/* A create option is checked for its type by the plugin. These are known to be of type bool; all others are int64. */
static const char *const bool_options[] = {"asynchronous"};

static bool is_bool_option(const char *name) {
  for (size_t i = 0; i < sizeof bool_options / sizeof bool_options[0]; i++)
    if (!strcmp(name, bool_options[i])) return true;
  return false;
}

static tpu_err *create(pjrt_api *api, const pjrt_option *opts, int nopts, PJRT_Client **out) {
  PJRT_NamedValue *values = nopts > 0 ? mem_calloc((size_t)nopts * sizeof *values) : NULL;
  if (nopts > 0 && !values) return err_nomem();
  for (int i = 0; i < nopts; i++) {
    bool is_bool = is_bool_option(opts[i].name);
    values[i] = (PJRT_NamedValue){.struct_size = sizeof values[i],
                                  .name = opts[i].name,
                                  .name_size = strlen(opts[i].name),
                                  .type = is_bool ? PJRT_VALUE_BOOL : PJRT_VALUE_INT64,
                                  .value_size = 1};
    if (is_bool) values[i].u.bool_value = opts[i].value != 0;
    else values[i].u.int64_value = opts[i].value;
  }
  PJRT_Client_Create_Args a = {.create_options = values, .num_options = nopts > 0 ? (size_t)nopts : 0};
  tpu_err *e = PJRT_CALL(api, PJRT_Client_Create, &a);
  mem_free(values);
  if (!e && !a.client) e = door_no_result(api, "PJRT_Client_Create");
  *out = a.client;
  return e;
}

static tpu_err *read_platform(pjrt_client *c) {
  PJRT_Client_PlatformName_Args n = {.client = c->client};
  TPU_TRY(PJRT_CALL(c->api, PJRT_Client_PlatformName, &n));
  if (!(c->platform = door_text(n.platform_name, n.platform_name_size))) return err_nomem();
  PJRT_Client_PlatformVersion_Args v = {.client = c->client};
  if (c->api->PJRT_Client_PlatformVersion) TPU_TRY(PJRT_CALL(c->api, PJRT_Client_PlatformVersion, &v));
  if (!(c->platform_version = door_text(v.platform_version, v.platform_version_size))) return err_nomem();
  c->host_is_device = !strcmp(c->platform, "cpu");
  return NULL;
}

static tpu_err *read_kind(pjrt_client *c, int i) {
  PJRT_DeviceDescription_Kind_Args k = {0};
  if (c->api->PJRT_Device_GetDescription && c->api->PJRT_DeviceDescription_Kind) {
    PJRT_Device_GetDescription_Args d = {.device = c->devices[i]};
    TPU_TRY(PJRT_CALL(c->api, PJRT_Device_GetDescription, &d));
    k.device_description = d.device_description;
    TPU_TRY(PJRT_CALL(c->api, PJRT_DeviceDescription_Kind, &k));
  }
  c->kinds[i] = door_text(k.device_kind, k.device_kind_size);
  return c->kinds[i] ? NULL : err_nomem();
}

static tpu_err *read_devices(pjrt_client *c) {
  PJRT_Client_AddressableDevices_Args a = {.client = c->client};
  TPU_TRY(PJRT_CALL(c->api, PJRT_Client_AddressableDevices, &a));
  size_t n = a.num_addressable_devices;
  if (n == 0 || n > INT16_MAX || !a.addressable_devices)
    return err_new(TPU_ERR_RUNTIME, "the PJRT plugin %s shows %zu devices, expected 1 to %d", c->api->path, n,
                   INT16_MAX);
  c->kinds = mem_calloc(n * sizeof *c->kinds);
  if (!c->kinds) return err_nomem();
  c->devices = a.addressable_devices;
  c->device_count = (int)n;
  for (int i = 0; i < c->device_count; i++) TPU_TRY(read_kind(c, i));
  return NULL;
}

tpu_err *pjrt_client_new(pjrt_api *api, const pjrt_option *opts, int nopts, pjrt_client **out) {
  *out = NULL;
  pjrt_client *c = mem_calloc(sizeof *c);
  if (!c) return err_nomem();
  c->api = api;
  tpu_err *e = create(api, opts, nopts, &c->client);
  if (!e) e = read_platform(c);
  if (!e) e = read_devices(c);
  if (e) {
    e = err_wrap(e, "no client of the PJRT plugin %s could be made", api->path);
    pjrt_client_free(c);
    return e;
  }
  *out = c;
  return NULL;
}

void pjrt_client_free(pjrt_client *c) {
  if (!c) return;
  if (c->client) {
    PJRT_Client_Destroy_Args a = {.client = c->client};
    PJRT_DROP(c->api, PJRT_Client_Destroy, &a);
  }
  if (c->kinds)
    for (int i = 0; i < c->device_count; i++) mem_free(c->kinds[i]);
  mem_free(c->kinds);
  mem_free(c->platform);
  mem_free(c->platform_version);
  mem_free(c);
}

const char *pjrt_platform(const pjrt_client *c) { return c->platform; }

const char *pjrt_platform_version(const pjrt_client *c) { return c->platform_version; }

int pjrt_device_count(const pjrt_client *c) { return c->device_count; }

const char *pjrt_device_kind(const pjrt_client *c, int device) {
  return device >= 0 && device < c->device_count ? c->kinds[device] : "";
}

int64_t pjrt_device_memory(const pjrt_client *c, int device) {
  if (device < 0 || device >= c->device_count || !c->api->PJRT_Device_MemoryStats) return 0;
  PJRT_Device_MemoryStats_Args a = {.device = c->devices[device]};
  tpu_err *e = PJRT_CALL(c->api, PJRT_Device_MemoryStats, &a);
  if (e) {
    log_line(LOG_DEBUG, "%s", tpu_err_message(e));
    tpu_err_free(e);
    return 0;
  }
  return a.bytes_limit_is_set ? a.bytes_limit : 0;
}
