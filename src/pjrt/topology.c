/* Compiling for devices that are not here: a topology is a plugin's description of some, by name. It needs no client,
 * and what is compiled for it cannot be run by this process: it is looked at, and written away. */
#include <string.h>

#include "base/mem.h"
#include "pjrt/door.h"

struct pjrt_topology {
  pjrt_api *api;
  pjrt_client *c; /* of devices that are here; it has no t, and devices that no program names */
  PJRT_TopologyDescription *t;
  char *platform, *platform_version, *kind;
  PJRT_DeviceDescription *const *devices; /* the plugin's array */
  int device_count;
};

struct pjrt_aot {
  PJRT_Executable *x;
  pjrt_exec *loaded; /* of a client's devices: what x is a part of */
};

static tpu_err *create(pjrt_topology *t, const char *name) {
  PJRT_TopologyDescription_Create_Args a = {.topology_name = name, .topology_name_size = strlen(name)};
  TPU_TRY(PJRT_CALL(t->api, PJRT_TopologyDescription_Create, &a));
  if (!a.topology) return door_no_result(t->api, "PJRT_TopologyDescription_Create");
  t->t = a.topology;
  return NULL;
}

static tpu_err *describe(pjrt_topology *t) {
  PJRT_TopologyDescription_PlatformName_Args n = {.topology = t->t};
  TPU_TRY(PJRT_CALL(t->api, PJRT_TopologyDescription_PlatformName, &n));
  if (!(t->platform = door_text(n.platform_name, n.platform_name_size))) return err_nomem();
  PJRT_TopologyDescription_PlatformVersion_Args v = {.topology = t->t};
  TPU_TRY(PJRT_CALL(t->api, PJRT_TopologyDescription_PlatformVersion, &v));
  if (!(t->platform_version = door_text(v.platform_version, v.platform_version_size))) return err_nomem();
  PJRT_TopologyDescription_GetDeviceDescriptions_Args d = {.topology = t->t};
  TPU_TRY(PJRT_CALL(t->api, PJRT_TopologyDescription_GetDeviceDescriptions, &d));
  if (!d.num_descriptions || d.num_descriptions > INT32_MAX || !d.descriptions)
    return err_new(TPU_ERR_RUNTIME, "it has %zu devices", d.num_descriptions);
  t->device_count = (int)d.num_descriptions;
  t->devices = d.descriptions;
  PJRT_DeviceDescription_Kind_Args k = {.device_description = d.descriptions[0]};
  TPU_TRY(PJRT_CALL(t->api, PJRT_DeviceDescription_Kind, &k));
  return (t->kind = door_text(k.device_kind, k.device_kind_size)) ? NULL : err_nomem();
}

tpu_err *pjrt_topology_new(pjrt_api *api, const char *name, pjrt_topology **out) {
  *out = NULL;
  if (!api->PJRT_TopologyDescription_Destroy) return door_missing(api, "PJRT_TopologyDescription_Destroy");
  pjrt_topology *t = mem_calloc(sizeof *t);
  if (!t) return err_nomem();
  t->api = api;
  tpu_err *e = create(t, name);
  if (!e) e = describe(t);
  if (e) {
    pjrt_topology_free(t);
    return err_wrap(e, "topology %s of the PJRT plugin %s", name, api->path);
  }
  *out = t;
  return NULL;
}

tpu_err *pjrt_topology_of(pjrt_client *c, pjrt_topology **out) {
  *out = NULL;
  pjrt_topology *t = mem_calloc(sizeof *t);
  if (!t) return err_nomem();
  *t = (pjrt_topology){.api = c->api,
                       .c = c,
                       .platform = door_text(c->platform, strlen(c->platform)),
                       .platform_version = door_text(c->platform_version, strlen(c->platform_version)),
                       .kind = door_text(c->kinds[0], strlen(c->kinds[0])),
                       .device_count = c->device_count};
  if (!t->platform || !t->platform_version || !t->kind) {
    pjrt_topology_free(t);
    return err_nomem();
  }
  *out = t;
  return NULL;
}

void pjrt_topology_free(pjrt_topology *t) {
  if (!t) return;
  if (t->t) {
    PJRT_TopologyDescription_Destroy_Args a = {.topology = t->t};
    PJRT_DROP(t->api, PJRT_TopologyDescription_Destroy, &a);
  }
  mem_free(t->platform);
  mem_free(t->platform_version);
  mem_free(t->kind);
  mem_free(t);
}

const char *pjrt_topology_platform(const pjrt_topology *t) { return t->platform; }

const char *pjrt_topology_platform_version(const pjrt_topology *t) { return t->platform_version; }

const char *pjrt_topology_kind(const pjrt_topology *t) { return t->kind; }

int pjrt_topology_device_count(const pjrt_topology *t) { return t->device_count; }

static void read_place(const PJRT_NamedValue *v, pjrt_place *out, int64_t *core) {
#define NAMED(text) (v->name_size == sizeof text - 1 && !memcmp(v->name, text, sizeof text - 1))
  if (NAMED("coords") && v->type == PJRT_VALUE_INT64_LIST && v->value_size < PJRT_MAX_COORDS) {
    out->ncoords = (int)v->value_size;
    memcpy(out->coords, v->u.int64_array_value, v->value_size * sizeof *out->coords);
  } else if (NAMED("core_on_chip") && v->type == PJRT_VALUE_INT64) {
    *core = v->u.int64_value;
  }
#undef NAMED
}

tpu_err *pjrt_topology_device(const pjrt_topology *t, int i, pjrt_place *out) {
  *out = (pjrt_place){0};
  if (t->c) {
    out->id = i;
    return NULL;
  }
  PJRT_DeviceDescription_Id_Args id = {.device_description = t->devices[i]};
  TPU_TRY(PJRT_CALL(t->api, PJRT_DeviceDescription_Id, &id));
  out->id = id.id;
  PJRT_DeviceDescription_Attributes_Args a = {.device_description = t->devices[i]};
  TPU_TRY(PJRT_CALL(t->api, PJRT_DeviceDescription_Attributes, &a));
  int64_t core = 0;
  for (size_t k = 0; k < a.num_attributes; k++) read_place(&a.attributes[k], out, &core);
  if (out->ncoords) out->coords[out->ncoords++] = core;
  return NULL;
}

static tpu_err *compile(pjrt_topology *t, const char *text, size_t len, const char *options, size_t options_len,
                        pjrt_aot *out) {
  if (t->c) {
    TPU_TRY(pjrt_compile(t->c, text, len, options, options_len, &out->loaded));
    return door_executable(t->c, out->loaded, &out->x);
  }
  if (!options) options = pjrt_portable_options(&options_len);
  PJRT_Program p = door_program(text, len);
  PJRT_Compile_Args a = {
      .topology = t->t, .program = &p, .compile_options = options, .compile_options_size = options_len};
  TPU_TRY(PJRT_CALL(t->api, PJRT_Compile, &a));
  out->x = a.executable;
  return out->x ? NULL : door_no_result(t->api, "PJRT_Compile");
}

tpu_err *pjrt_topology_compile(pjrt_topology *t, const char *text, size_t len, const char *options, size_t options_len,
                               pjrt_aot **out) {
  *out = NULL;
  pjrt_aot *x = mem_calloc(sizeof *x);
  if (!x) return err_nomem();
  tpu_err *e = compile(t, text, len, options, options_len, x);
  if (e) pjrt_aot_free(t, x);
  else *out = x;
  return e;
}

tpu_err *pjrt_aot_memory(pjrt_topology *t, pjrt_aot *x, pjrt_memory *out) { return door_memory(t->api, x->x, out); }

typedef struct {
  pjrt_cost_fn fn;
  void *ctx;
  bool failed;
} receiver;

static void give_text(void *ctx, const char *name, size_t n, double value) {
  receiver *r = ctx;
  char *text = r->failed ? NULL : door_text(name, n);
  if (text) r->fn(r->ctx, text, value);
  else r->failed = true;
  mem_free(text);
}

tpu_err *pjrt_aot_cost(pjrt_topology *t, pjrt_aot *x, pjrt_cost_fn fn, void *ctx) {
  receiver r = {fn, ctx, false};
  TPU_TRY(door_cost(t->api, x->x, give_text, &r));
  return r.failed ? err_nomem() : NULL;
}

tpu_err *pjrt_aot_program(pjrt_topology *t, pjrt_aot *x, char **out, size_t *out_len, char format[32]) {
  return door_optimized(t->api, x->x, out, out_len, format);
}

tpu_err *pjrt_aot_serialize(pjrt_topology *t, pjrt_aot *x, char **out, size_t *out_len) {
  *out = NULL;
  *out_len = 0;
  return door_serialize(t->api, x->x, out, out_len);
}

void pjrt_aot_free(pjrt_topology *t, pjrt_aot *x) {
  if (!x) return;
  PJRT_Executable_Destroy_Args a = {.executable = x->x};
  if (x->x) PJRT_DROP(t->api, PJRT_Executable_Destroy, &a);
  if (t->c) pjrt_exec_free(t->c, x->loaded);
  mem_free(x);
}
