/* The runtime: one plugin and one client a process, started at the first use of a device. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/env.h"
#include "base/log.h"
#include "exec/exec.h"

ex_state ex = {.lock = PTHREAD_MUTEX_INITIALIZER, .program_lock = PTHREAD_MUTEX_INITIALIZER, .default_dtype = TPU_F32};

static pthread_mutex_t start_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool started;
static tpu_err *start_error; /* kept, copied to each caller */
static const char *candidates = "";
static tpu_plugin_info info = {"", "", "", "", 0, 0, "", 0};

int64_t clock_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int dtype_pjrt(tpu_dtype d) {
  switch (d) {
#define X(num, name, torch, mlir, bytes, pjrt, cls) \
  case TPU_##name: return pjrt;
    TPU_DTYPES(X)
#undef X
    default: return 0;
  }
}

void tpu_set_plugin_candidates(const char *paths) {
  pthread_mutex_lock(&start_lock);
  if (!atomic_load(&started)) {
    char *copy = mem_alloc(strlen(paths) + 1);
    if (copy) candidates = strcpy(copy, paths); /* process-lived */
  }
  pthread_mutex_unlock(&start_lock);
}

/* The mode that a process starts in; once, and before anybody asks for it or sets another. */
static void mode_from_env(void) {
  static atomic_bool done;
  if (atomic_load_explicit(&done, memory_order_acquire) || atomic_exchange(&done, true))
    return;                 /* asked by each call */
  tpu_err *e = env_check(); /* a bad value is raised by tpu_init */
  if (!e && env_int(ENV_LAUNCH_BLOCKING)) atomic_store(&ex.mode, TPU_DEBUG);
  else if (!e && env_int(ENV_DEFER_AND_FUSE)) atomic_store(&ex.mode, TPU_DEFER_AND_FUSE);
  tpu_err_free(e);
}

static int64_t host_memory(void) {
  FILE *f = fopen("/proc/meminfo", "r");
  long long kb = 0;
  if (f) {
    char line[256];
    while (fgets(line, sizeof line, f) && sscanf(line, "MemTotal: %lld kB", &kb) != 1) {}
    fclose(f);
  }
  return kb * 1024;
}

static void find_plugin(const char **path, const char **why) {
  if (env_int(ENV_DRY)) {
    *path = "dry";
    *why = "TORCH_TPU_AOT_DRY is set: nothing is executed";
  } else {
    pjrt_find(candidates, path, why);
  }
}

static tpu_err *start(void) {
  TPU_TRY(env_check());
  find_plugin(&info.path, &info.why);
  if (!info.path[0]) return err_new(TPU_ERR_RUNTIME, "tpu: no PJRT plugin: %s", info.why);
  if (env_int(ENV_DRY) && !env_str(ENV_TOPOLOGY)[0])
    return err_new(TPU_ERR_VALUE,
                   "tpu: TORCH_TPU_AOT_DRY=1 computes nothing; it is for TORCH_TPU_TOPOLOGY, which is not set");
  pjrt_api *api;
  TPU_TRY(env_int(ENV_DRY) ? pjrt_dry(&api) : pjrt_load(info.path, &api));
  pjrt_api_version(api, &info.pjrt_major, &info.pjrt_minor);
  info.stablehlo_version = pjrt_stablehlo_version(api);
  const char *file = strrchr(info.path, '/');
  bool is_cpu = strstr(file ? file : info.path, "cpu") != NULL;
  pjrt_option options[] = {{"cpu_device_count", env_int(ENV_CPU_DEVICES)}, {"asynchronous", 0}};
  tpu_err *e = pjrt_client_new(api, options, is_cpu ? 2 : 0, &ex.client);
  if (e) { /* whatever the plugin calls it: there is no device */
    tpu_err *plain = err_new(TPU_ERR_RUNTIME, "%s", tpu_err_message(e));
    tpu_err_free(e);
    return plain;
  }
  ex.ndevices = pjrt_device_count(ex.client);
  if (ex.ndevices > EX_MAX_DEVICES) ex.ndevices = EX_MAX_DEVICES;
  info.platform = pjrt_platform(ex.client);
  info.platform_version = pjrt_platform_version(ex.client);
  info.device_count = ex.ndevices;
  ex.is_cpu = !strcmp(info.platform, "cpu");
  ex.cpu_rows = ex.is_cpu && !env_str(ENV_TOPOLOGY)[0];
  ex.kernels = !strcmp(info.platform, "tpu") || env_int(ENV_DRY);
  if (env_str(ENV_TOPOLOGY)[0]) tpu_watch_begin();
  for (int i = 0; i < ex.ndevices; i++) {
    int64_t limit = pjrt_device_memory(ex.client, i);
    ex.memory[i].limit = limit ? limit : is_cpu ? host_memory() : 0;
  }
  ex.keys.limit = (size_t)env_int(ENV_KEY_CACHE);
  mode_from_env();
  return NULL;
}

tpu_err *tpu_check_environment(void) { return env_check(); }

tpu_err *tpu_init(void) {
  if (atomic_load(&ex.forked)) return ex_ready();
  if (atomic_load_explicit(&started, memory_order_acquire)) return NULL;
  pthread_mutex_lock(&start_lock);
  if (!atomic_load(&started) && !start_error) {
    start_error = start();
    if (!start_error) atomic_store_explicit(&started, true, memory_order_release);
  }
  tpu_err *e = start_error ? err_copy(start_error) : NULL;
  pthread_mutex_unlock(&start_lock);
  return e;
}

tpu_err *ex_ready(void) {
  if (atomic_load_explicit(&ex.forked, memory_order_relaxed))
    return err_new(TPU_ERR_RUNTIME,
                   "Cannot re-initialize tpu in forked subprocess. To use tpu with multiprocessing, you must use the "
                   "'spawn' start method");
  if (atomic_load_explicit(&started, memory_order_acquire)) return NULL;
  return tpu_init();
}

bool tpu_is_initialized(void) { return atomic_load(&started); }

bool tpu_is_available(void) {
  if (atomic_load(&started)) return ex.ndevices > 0;
  if (atomic_load(&ex.forked)) return false;
  pthread_mutex_lock(&start_lock);
  const char *path = "", *why = "";
  if (!start_error) find_plugin(&path, &why);
  if (!atomic_load(&started)) {
    info.path = path;
    if (!start_error) info.why = why;
  }
  pthread_mutex_unlock(&start_lock);
  return path[0] != 0;
}

int tpu_device_count(void) {
  if (atomic_load(&started)) return ex.ndevices;
  if (!tpu_is_available()) return 0;
  const char *file = strrchr(info.path, '/');
  if (strstr(file ? file : info.path, "cpu")) return (int)env_int(ENV_CPU_DEVICES);
  tpu_err_free(tpu_init()); /* only the plugin knows how many; an error is kept and comes at the first use */
  return ex.ndevices;
}

const tpu_plugin_info *tpu_get_plugin_info(void) { return &info; }

const char *tpu_device_kind(int device) {
  return atomic_load(&started) && device >= 0 && device < ex.ndevices ? pjrt_device_kind(ex.client, device) : "";
}

static __thread int current_device;
int tpu_get_device(void) { return current_device; }
void tpu_set_device(int device) { current_device = device; }

void tpu_mark_forked(void) {
  if (atomic_load(&started)) atomic_store(&ex.forked, true);
}
bool tpu_in_bad_fork(void) { return atomic_load(&ex.forked); }

/* ---- modes and counters ---------------------------------------------------------------------------------------- */

tpu_eager_mode tpu_get_eager_mode(void) {
  mode_from_env();
  return (tpu_eager_mode)atomic_load(&ex.mode);
}
void tpu_set_eager_mode(tpu_eager_mode m) {
  mode_from_env();
  atomic_store(&ex.mode, (int)m);
  if (m != TPU_DEFER_AND_FUSE && tpu_is_initialized()) defer_flush(-1, FLUSH_MODE);
}
void tpu_set_compile_policy(int policy) { atomic_store(&ex.compile_policy, policy); }
int tpu_get_compile_policy(void) { return atomic_load(&ex.compile_policy); }
void tpu_set_debug_nan(int level) { atomic_store(&ex.debug_nan, level); }
int tpu_get_debug_nan(void) { return atomic_load(&ex.debug_nan); }
void tpu_set_matmul_precision(int p) { atomic_store_explicit(&ex.precision, p, memory_order_relaxed); }
int tpu_get_matmul_precision(void) { return atomic_load_explicit(&ex.precision, memory_order_relaxed); }
void tpu_set_default_dtype(tpu_dtype d) { atomic_store_explicit(&ex.default_dtype, (int)d, memory_order_relaxed); }

void tpu_get_stats(tpu_stats *out) {
  ex_lock();
  pthread_mutex_lock(&ex.program_lock);
  *out = ex.stats;
  out->program_entries = (int64_t)ex.programs.count;
  pthread_mutex_unlock(&ex.program_lock);
  out->key_entries = (int64_t)ex.keys.count;
  out->number_entries = (int64_t)ex.numbers.count;
  ex_unlock();
}

void tpu_get_memory_stats(int device, tpu_memory_stats *out) {
  memset(out, 0, sizeof *out);
  if (device < 0 || device >= ex.ndevices) return;
  ex_lock();
  *out = ex.memory[device];
  ex_unlock();
}

void tpu_reset_peak_memory(int device) {
  if (device < 0 || device >= ex.ndevices) return;
  ex_lock();
  ex.memory[device].allocated_peak = ex.memory[device].allocated;
  ex.memory[device].stores_peak = ex.memory[device].stores;
  ex_unlock();
}
