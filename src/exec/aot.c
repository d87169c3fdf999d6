/* Ahead of time: programs compiled for devices that are not here, by a second plugin beside the one in use. */
#include <stdlib.h>
#include <string.h>

#include "exec/exec.h"

struct tpu_topology {
  tpu_topology *next;
  pjrt_api *api;
  pjrt_topology *t;
  tpu_topology_info info;
  const char *plugin; /* its path */
  char text[];        /* plugin and name */
};

struct tpu_aot {
  tpu_topology *topology;
  pjrt_aot *x;
  char *bytes; /* lent by the last call */
  char format[32];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static tpu_topology *topologies, *here;

/* Without a TPU, libtpu waits for a metadata server that is not there, and lets only one process in. Who set these
 * variables knows better. */
static void calm_libtpu(const char *plugin) {
  const char *file = strrchr(plugin, '/');
  if (strcmp(file ? file + 1 : plugin, "libtpu.so") != 0 || pjrt_tpu_attached("/sys")) return;
  setenv("TPU_SKIP_MDS_QUERY", "1", 0);
  setenv("TPU_WORKER_ID", "0", 0);
  setenv("TPU_WORKER_HOSTNAMES", "localhost", 0);
  setenv("ALLOW_MULTIPLE_LIBTPU_LOAD", "1", 0);
}

static void describe(tpu_topology *t) {
  t->info.platform = pjrt_topology_platform(t->t);
  t->info.platform_version = pjrt_topology_platform_version(t->t);
  t->info.kind = pjrt_topology_kind(t->t);
  t->info.device_count = pjrt_topology_device_count(t->t);
}

static tpu_err *make(const char *plugin, const char *name, tpu_topology **out) {
  size_t np = strlen(plugin) + 1, nn = strlen(name) + 1;
  tpu_topology *t = mem_calloc(sizeof *t + np + nn);
  if (!t) return err_nomem();
  t->plugin = memcpy(t->text, plugin, np);
  t->info.name = memcpy(t->text + np, name, nn);
  calm_libtpu(plugin);
  tpu_err *e = pjrt_load(plugin, &t->api);
  if (!e) e = pjrt_topology_new(t->api, name, &t->t);
  if (e) {
    mem_free(t);
    return e;
  }
  describe(t);
  t->info.stablehlo_version = pjrt_stablehlo_version(t->api);
  pjrt_api_version(t->api, &t->info.pjrt_major, &t->info.pjrt_minor);
  *out = t;
  return NULL;
}

tpu_err *tpu_topology_here(tpu_topology **out) {
  *out = NULL;
  TPU_TRY(ex_ready());
  pthread_mutex_lock(&lock);
  tpu_err *e = NULL;
  if (!here) {
    const tpu_plugin_info *p = tpu_get_plugin_info();
    tpu_topology *t = mem_calloc(sizeof *t);
    e = t ? pjrt_topology_of(ex.client, &t->t) : err_nomem();
    if (e) {
      mem_free(t);
    } else {
      t->plugin = p->path;
      t->info = (tpu_topology_info){.name = "here",
                                    .pjrt_major = p->pjrt_major,
                                    .pjrt_minor = p->pjrt_minor,
                                    .stablehlo_version = p->stablehlo_version};
      describe(t);
      here = t;
    }
  }
  *out = here;
  pthread_mutex_unlock(&lock);
  return e;
}

tpu_err *tpu_topology_get(const char *plugin, const char *name, tpu_topology **out) {
  pthread_mutex_lock(&lock);
  tpu_topology *t = topologies;
  while (t && (strcmp(t->plugin, plugin) != 0 || strcmp(t->info.name, name) != 0)) t = t->next;
  tpu_err *e = NULL;
  if (!t && !(e = make(plugin, name, &t))) {
    t->next = topologies;
    topologies = t;
  }
  pthread_mutex_unlock(&lock);
  *out = e ? NULL : t;
  return e;
}

void tpu_topology_describe(const tpu_topology *t, tpu_topology_info *out) { *out = t->info; }

tpu_err *tpu_topology_device(const tpu_topology *t, int i, tpu_topology_place *out) {
  *out = (tpu_topology_place){0};
  if (i < 0 || i >= t->info.device_count)
    return err_new(TPU_ERR_INDEX, "topology %s has %d devices, and none with the number %d", t->info.name,
                   t->info.device_count, i);
  pjrt_place p;
  TPU_TRY(pjrt_topology_device(t->t, i, &p));
  out->id = p.id;
  out->ncoords = p.ncoords;
  _Static_assert(sizeof out->coords == sizeof p.coords, "the same number of coordinates");
  memcpy(out->coords, p.coords, sizeof p.coords);
  return NULL;
}

tpu_err *tpu_topology_assign(const tpu_topology *t, int naxes, const int64_t *sizes, int *out) {
  int n = t->info.device_count;
  pjrt_place *places = mem_alloc((size_t)n * sizeof *places);
  tpu_err *e = places ? NULL : err_nomem();
  for (int i = 0; !e && i < n; i++) e = pjrt_topology_device(t->t, i, &places[i]);
  if (!e) e = mesh_assign(places, n, naxes, sizes, out);
  mem_free(places);
  return e;
}

tpu_err *tpu_aot_compile_partitions(tpu_topology *t, const char *text, size_t len, const int *devices, tpu_aot **out) {
  char *options;
  size_t n;
  *out = NULL;
  if (t == here)
    return err_new(
        TPU_ERR_NOT_IMPLEMENTED,
        "a program over a mesh is compiled for a topology that is named, such as v5e:2x2, not for what is here");
  TPU_TRY(pjrt_partition_options(devices, t->info.device_count, &options, &n));
  tpu_err *e = tpu_aot_compile(t, text, len, options, n, out);
  mem_free(options);
  return e;
}

tpu_err *tpu_aot_compile(tpu_topology *t, const char *text, size_t len, const char *options, size_t options_len,
                         tpu_aot **out) {
  *out = NULL;
  tpu_aot *a = mem_calloc(sizeof *a);
  if (!a) return err_nomem();
  a->topology = t;
  tpu_err *e = program_refused(pjrt_topology_compile(t->t, text, len, options, options_len, &a->x), text);
  if (e) mem_free(a);
  else *out = a;
  return e;
}

tpu_err *tpu_aot_memory(tpu_aot *a, tpu_aot_memory_stats *out) {
  pjrt_memory m;
  tpu_err *e = pjrt_aot_memory(a->topology->t, a->x, &m);
  *out = (tpu_aot_memory_stats){m.arguments, m.outputs, m.aliased, m.temporaries, m.code, m.peak};
  return e;
}

tpu_err *tpu_aot_cost(tpu_aot *a, tpu_aot_cost_fn fn, void *ctx) {
  return pjrt_aot_cost(a->topology->t, a->x, fn, ctx);
}

static void drop_bytes(tpu_aot *a) {
  mem_free(a->bytes);
  a->bytes = NULL;
}

tpu_err *tpu_aot_program(tpu_aot *a, const char **bytes, size_t *n, const char **format) {
  drop_bytes(a);
  tpu_err *e = pjrt_aot_program(a->topology->t, a->x, &a->bytes, n, a->format);
  *bytes = a->bytes;
  *format = a->format;
  return e;
}

tpu_err *tpu_aot_serialize(tpu_aot *a, const char **bytes, size_t *n) {
  drop_bytes(a);
  tpu_err *e = pjrt_aot_serialize(a->topology->t, a->x, &a->bytes, n);
  *bytes = a->bytes;
  return e;
}

static tpu_plugin_info plugin_of(const tpu_topology *t) {
  return (tpu_plugin_info){.path = t->plugin,
                           .platform = t->info.platform,
                           .platform_version = t->info.platform_version,
                           .pjrt_major = t->info.pjrt_major,
                           .pjrt_minor = t->info.pjrt_minor,
                           .device_count = t->info.device_count};
}

static tpu_err *host_of(const tpu_plugin_info *p, const char *kind, char **out) {
  buf b;
  buf_init(&b);
  cache_describe_host(&b, p, p->device_count, kind);
  buf_char(&b, 0);
  *out = b.failed ? NULL : mem_alloc(b.len);
  if (*out) memcpy(*out, b.data, b.len);
  buf_free(&b);
  return *out ? NULL : err_nomem();
}

tpu_err *tpu_aot_host(tpu_aot *a, const char **text) {
  drop_bytes(a);
  const tpu_plugin_info p = plugin_of(a->topology);
  tpu_err *e = host_of(&p, a->topology->info.kind, &a->bytes);
  *text = a->bytes;
  return e;
}

tpu_err *tpu_aot_host_here(const char **text) {
  static char *kept;
  *text = NULL;
  TPU_TRY(ex_ready());
  pthread_mutex_lock(&lock);
  tpu_err *e = kept ? NULL : host_of(tpu_get_plugin_info(), tpu_device_kind(0), &kept);
  *text = kept;
  pthread_mutex_unlock(&lock);
  return e;
}

tpu_err *tpu_aot_keep(tpu_aot *a, const char *text, size_t len, const char *folder) {
  const char *bytes;
  size_t n;
  const tpu_topology *t = a->topology;
  const tpu_plugin_info plugin = plugin_of(t);
  TPU_TRY(tpu_aot_serialize(a, &bytes, &n));
  return cache_keep(folder, &plugin, t->info.kind, text, len, bytes, n);
}

void tpu_aot_release(tpu_aot *a) {
  if (!a) return;
  pjrt_aot_free(a->topology->t, a->x);
  drop_bytes(a);
  mem_free(a);
}
