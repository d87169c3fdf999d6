/* Opening a plugin. A plugin stays loaded for the process: its threads and its registrations cannot be taken back. */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/log.h"
#include "base/mem.h"
#include "pjrt/door.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pjrt_api *loaded;

#define WHAT_TO_DO "set TORCH_TPU_PJRT_PLUGIN to the path of a PJRT plugin (a shared library), or unset it"

static tpu_err *check_file(const char *path) {
  struct stat st;
  if (stat(path, &st) != 0)
    return err_new(TPU_ERR_RUNTIME, "the PJRT plugin %s cannot be opened: %s; " WHAT_TO_DO, path, strerror(errno));
  if (!S_ISREG(st.st_mode)) return err_new(TPU_ERR_RUNTIME, "the PJRT plugin %s is not a file; " WHAT_TO_DO, path);
  FILE *f = fopen(path, "rb");
  if (!f) return err_new(TPU_ERR_RUNTIME, "the PJRT plugin %s cannot be read: %s; " WHAT_TO_DO, path, strerror(errno));
  char magic[4] = {0};
  size_t n = fread(magic, 1, sizeof magic, f);
  fclose(f);
  if (n != sizeof magic || memcmp(magic, "\177ELF", 4) != 0)
    return err_new(TPU_ERR_RUNTIME, "the PJRT plugin %s is not a shared library (no ELF header); " WHAT_TO_DO, path);
  return NULL;
}

static tpu_err *open_table(const char *path, const PJRT_Api **out) {
  TPU_TRY(check_file(path));
  /* XLA logs much at its default level; who wants it sets the variable. */
  setenv("TF_CPP_MIN_LOG_LEVEL", "3", 0);
  void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!lib) {
    const char *why = dlerror();
    return err_new(TPU_ERR_RUNTIME, "the PJRT plugin %s cannot be loaded: %s; " WHAT_TO_DO, path,
                   why ? why : "no reason given");
  }
  const PJRT_Api *(*get)(void) = (const PJRT_Api *(*)(void))(uintptr_t)dlsym(lib, "GetPjrtApi");
  if (!get) {
    dlclose(lib);
    return err_new(TPU_ERR_RUNTIME,
                   "%s is a shared library but no PJRT plugin: it has no function GetPjrtApi; " WHAT_TO_DO, path);
  }
  *out = get();
  if (!*out) return err_new(TPU_ERR_RUNTIME, "GetPjrtApi of the PJRT plugin %s gave NULL; " WHAT_TO_DO, path);
  return NULL;
}

static size_t slot_count(const PJRT_Api *t) {
  return t->struct_size < sizeof *t ? 0 : (t->struct_size - sizeof *t) / sizeof t->slots[0];
}

static tpu_err *check_table(const char *path, const PJRT_Api *t) {
  if (t->struct_size < sizeof *t)
    return err_new(TPU_ERR_RUNTIME,
                   "the function table of the PJRT plugin %s has %zu bytes, expected at least %zu; "
                   "it is damaged or not a PJRT plugin",
                   path, t->struct_size, sizeof *t);
  if (t->version.major_version != PJRT_MAJOR)
    return err_new(TPU_ERR_RUNTIME,
                   "the PJRT plugin %s has ABI version %d.%d, expected %d.%d to %d.%d; use a plugin of that age", path,
                   t->version.major_version, t->version.minor_version, PJRT_MAJOR, PJRT_OLDEST_MINOR_TRIED, PJRT_MAJOR,
                   PJRT_NEWEST_MINOR_TRIED);
  static const struct {
    int slot;
    const char *name;
  } needed[] = {{PJRT_SLOT_Error_Destroy, "PJRT_Error_Destroy"},
                {PJRT_SLOT_Error_Message, "PJRT_Error_Message"},
#define X(slot, name, last, need) {need ? slot : -1, #name},
                PJRT_CALLS(X)
#undef X
  };
  for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++) {
    int s = needed[i].slot;
    if (s >= 0 && ((size_t)s >= slot_count(t) || !t->slots[s]))
      return err_new(TPU_ERR_RUNTIME,
                     "the PJRT plugin %s (ABI %d.%d, %zu functions) has no %s, which is needed; use a newer plugin",
                     path, t->version.major_version, t->version.minor_version, slot_count(t), needed[i].name);
  }
  return NULL;
}

static void take_slots(pjrt_api *api, const PJRT_Api *t) {
  size_t n = slot_count(t);
  api->error_destroy = (void (*)(PJRT_Error_Destroy_Args *))t->slots[PJRT_SLOT_Error_Destroy];
  api->error_message = (void (*)(PJRT_Error_Message_Args *))t->slots[PJRT_SLOT_Error_Message];
#define X(slot, name, last, need) \
  if (slot < n) api->name = (PJRT_Error * (*)(name##_Args *)) t->slots[slot];
  PJRT_CALLS(X)
#undef X
  api->major = t->version.major_version;
  api->minor = t->version.minor_version;
}

/* The StableHLO version is a convenience: a plugin that does not say it is as good as another. */
static void read_stablehlo_version(pjrt_api *api) {
  PJRT_Plugin_Attributes_Args a = {0};
  tpu_err *e = PJRT_CALL(api, PJRT_Plugin_Attributes, &a);
  if (e) {
    log_line(LOG_DEBUG, "%s", tpu_err_message(e));
    tpu_err_free(e);
    return;
  }
  static const char want[] = "stablehlo_current_version";
  for (size_t i = 0; i < a.num_attributes; i++) {
    const PJRT_NamedValue *v = &a.attributes[i];
    if (v->name_size != sizeof want - 1 || memcmp(v->name, want, v->name_size) != 0) continue;
    if (v->type != PJRT_VALUE_INT64_LIST || v->value_size != 3) return;
    const int64_t *n = v->u.int64_array_value;
    snprintf(api->stablehlo_version, sizeof api->stablehlo_version, "%d.%d.%d", (int)n[0], (int)n[1], (int)n[2]);
  }
}

static tpu_err *load(const char *path, pjrt_api **out) {
  const PJRT_Api *table;
  TPU_TRY(open_table(path, &table));
  TPU_TRY(check_table(path, table));
  size_t len = strlen(path);
  pjrt_api *api = mem_calloc(sizeof *api + len + 1);
  if (!api) return err_nomem();
  memcpy(api->path, path, len);
  take_slots(api, table);
  PJRT_Plugin_Initialize_Args init = {0};
  tpu_err *e = PJRT_CALL(api, PJRT_Plugin_Initialize, &init);
  if (e) {
    e = err_wrap(e, "the PJRT plugin %s cannot be initialized", path);
    mem_free(api);
    return e;
  }
  read_stablehlo_version(api);
  if (api->minor < PJRT_OLDEST_MINOR_TRIED || api->minor > PJRT_NEWEST_MINOR_TRIED)
    log_line(LOG_INFO, "the PJRT plugin %s has ABI %d.%d; tried are %d.%d to %d.%d", path, api->major, api->minor,
             PJRT_MAJOR, PJRT_OLDEST_MINOR_TRIED, PJRT_MAJOR, PJRT_NEWEST_MINOR_TRIED);
  *out = api;
  return NULL;
}

tpu_err *pjrt_load(const char *path, pjrt_api **out) {
  *out = NULL;
  if (!path || !*path) return err_new(TPU_ERR_RUNTIME, "no path of a PJRT plugin was given; " WHAT_TO_DO);
  pthread_mutex_lock(&lock);
  tpu_err *e = NULL;
  pjrt_api *api = loaded;
  while (api && strcmp(api->path, path) != 0) api = api->next;
  if (!api) {
    e = load(path, &api);
    if (!e) {
      api->next = loaded;
      loaded = api;
    }
  }
  pthread_mutex_unlock(&lock);
  *out = api;
  return e;
}

void pjrt_api_version(const pjrt_api *api, int *major, int *minor) {
  *major = api->major;
  *minor = api->minor;
}

const char *pjrt_stablehlo_version(const pjrt_api *api) { return api->stablehlo_version; }
