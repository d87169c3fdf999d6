/* The executable cache: what a program's name on disk is made of, and which folders are asked.
 *
 * The key is the program's text and all that its executable depends on besides: compile options, plugin, topology, and
 * for a CPU the machine's instruction set. Our own version is no part of it. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/env.h"
#include "base/log.h"
#include "exec/disk.h"
#include "exec/exec.h"

enum { MINE, SHARED, FOLDERS };

static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;
static bool opened;
static disk *folders[FOLDERS];
static buf world; /* the key without the text */

/* ---- what an executable depends on --------------------------------------------------------------------------------
 */

/* A file that is too large to read: its size and 64 pages spread over it. */
static hash128 file_identity(const char *path) {
  enum { PAGES = 64, PAGE = 4096 };
  struct stat st = {0};
  hash128 sums[PAGES + 1] = {{0, 0}};
  char page[PAGE];
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd >= 0 && fstat(fd, &st) == 0)
    for (int i = 0; i < PAGES; i++) {
      ssize_t n = pread(fd, page, PAGE, st.st_size / PAGES * i);
      sums[i] = hash128_of(page, n > 0 ? (size_t)n : 0);
    }
  if (fd >= 0) close(fd);
  sums[PAGES].lo = (uint64_t)st.st_size;
  return hash128_of(sums, sizeof sums);
}

/* The instruction set of this machine: code for a newer CPU must not reach an older one. */
static hash128 cpu_identity(void) {
  char line[8192];
  hash128 sums[2] = {{0, 0}, {0, 0}};
  FILE *f = fopen("/proc/cpuinfo", "r");
  for (int found = 0; f && found < 2 && fgets(line, sizeof line, f);) {
    int which = !strncmp(line, "model name", 10)                              ? 0
                : !strncmp(line, "flags", 5) || !strncmp(line, "Features", 8) ? 1
                                                                              : -1;
    if (which < 0 || sums[which].hi) continue;
    sums[which] = hash128_of(line, strlen(line));
    found++;
  }
  if (f) fclose(f);
  return hash128_of(sums, sizeof sums);
}

static void put_hash(buf *b, const char *name, hash128 h) {
  char hex[33];
  hash128_hex(h, hex);
  buf_printf(b, "%s %s\n", name, hex);
}

/* Which processes an executable can be loaded by. */
void cache_describe_host(buf *b, const tpu_plugin_info *info, int devices, const char *kind) {
  bool tpu = !strcmp(info->platform, "tpu");
  buf_str(b, "torch_tpu program 1\n");
  buf_printf(b, "platform %s\n", info->platform);
  /* On a TPU the plugin's contents say it all, and a program runs on one device whatever their number: so an executable
   * that was made without a TPU has the name that one with a TPU looks for. */
  if (!tpu) buf_printf(b, "version %s\n", info->platform_version);
  buf_printf(b, "pjrt %d.%d\n", info->pjrt_major, info->pjrt_minor);
  put_hash(b, "plugin", file_identity(info->path));
  if (tpu) buf_printf(b, "device %s\n", kind);
  else buf_printf(b, "devices %d %s\n", devices, kind);
  if (!strcmp(info->platform, "cpu")) put_hash(b, "cpu", cpu_identity());
}

/* path, platform and versions of the plugin; devices: "4 cpu"; options: of its programs. */
static void describe(buf *b, const tpu_plugin_info *info, int devices, const char *kind, const char *options,
                     size_t noptions) {
  cache_describe_host(b, info, devices, kind);
  put_hash(b, "options", hash128_of(options, noptions));
  /* flags that XLA reads for itself change what it makes of the same text */
  static const char *const flags[] = {"XLA_FLAGS", "LIBTPU_INIT_ARGS"};
  for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
    const char *text = getenv(flags[i]);
    if (text && text[0]) put_hash(b, flags[i], hash128_of(text, strlen(text)));
  }
}

static void describe_world(buf *b) {
  size_t n;
  const char *options = pjrt_default_options(ex.client, &n);
  describe(b, tpu_get_plugin_info(), ex.ndevices, tpu_device_kind(0), options, n);
}

tpu_err *cache_keep(const char *folder, const tpu_plugin_info *plugin, const char *kind, const char *text, size_t len,
                    const char *bytes, size_t n) {
  disk *d;
  size_t noptions;
  const char *options = pjrt_portable_options(&noptions);
  TPU_TRY(env_check());
  TPU_TRY(disk_open(folder, 0, env_int(ENV_CACHE_TRUST), &d));
  buf key;
  buf_init(&key);
  describe(&key, plugin, plugin->device_count, kind, options, noptions);
  buf_bytes(&key, text, len);
  if (!key.failed) disk_put(d, key.data, key.len, bytes, n);
  tpu_err *e = key.failed ? err_nomem() : NULL;
  buf_free(&key);
  disk_close(d);
  return e;
}

/* ---- folders ------------------------------------------------------------------------------------------------------
 */

static void default_folder(char *out, size_t n) {
  const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
  int k = xdg && xdg[0] == '/'     ? snprintf(out, n, "%s/torch_tpu", xdg)
          : home && home[0] == '/' ? snprintf(out, n, "%s/.cache/torch_tpu", home)
                                   : 0;
  if (k <= 0 || (size_t)k >= n) out[0] = 0;
}

const char *tpu_cache_folder(bool shared) {
  static char path[4096];
  const char *asked = env_str(shared ? ENV_CACHE_SHARED : ENV_CACHE_DIR);
  if (asked[0] || shared) return asked;
  pthread_mutex_lock(&open_lock);
  if (!path[0]) default_folder(path, sizeof path);
  pthread_mutex_unlock(&open_lock);
  return path;
}

tpu_err *tpu_cache_each(const char *folder, bool verify, tpu_cache_entry_fn fn, void *ctx) {
  disk *d;
  TPU_TRY(env_check());
  TPU_TRY(disk_open(folder, 0, env_int(ENV_CACHE_TRUST), &d));
  disk_each(d, verify, fn, ctx);
  disk_close(d);
  return NULL;
}

tpu_err *tpu_cache_prune(const char *folder, int64_t limit) {
  disk *d;
  TPU_TRY(env_check());
  TPU_TRY(disk_open(folder, 0, env_int(ENV_CACHE_TRUST), &d));
  disk_prune(d, limit < 0 ? env_int(ENV_CACHE_SIZE) : limit);
  disk_close(d);
  return NULL;
}

tpu_err *tpu_cache_open_file(const char *path, int *fd) {
  *fd = -1;
  TPU_TRY(env_check());
  return disk_open_file(path, env_int(ENV_CACHE_TRUST), fd);
}

static disk *open_folder(const char *path, int64_t limit, bool asked_for) {
  disk *d = NULL;
  tpu_err *e = path[0] ? disk_open(path, limit, env_int(ENV_CACHE_TRUST), &d) : NULL;
  if (e) /* that the default folder cannot be made is nothing to tell everybody in a read-only container */
    log_line(asked_for || access(path, F_OK) == 0 ? LOG_WARN : LOG_INFO, "executable cache is not used: %s",
             tpu_err_message(e));
  tpu_err_free(e);
  return d;
}

/* Where a program is locked while it is compiled; NULL: there is no cache. */
static disk *first_folder(void) { return folders[MINE] ? folders[MINE] : folders[SHARED]; }

static void open_once(void) {
  const char *mine = tpu_cache_folder(false);
  pthread_mutex_lock(&open_lock);
  if (!opened) {
    int64_t limit = env_int(ENV_CACHE_SIZE);
    if (limit && !env_int(ENV_DRY)) { /* a dry client has nothing to keep */
      folders[MINE] = open_folder(mine, limit, env_str(ENV_CACHE_DIR)[0] != 0);
      folders[SHARED] = open_folder(tpu_cache_folder(true), 0, true);
    }
    buf_init(&world);
    if (first_folder()) describe_world(&world);
    opened = true;
  }
  pthread_mutex_unlock(&open_lock);
}

void cache_close(void) {
  pthread_mutex_lock(&open_lock);
  for (int i = 0; i < FOLDERS; i++) {
    disk_close(folders[i]);
    folders[i] = NULL;
  }
  if (opened) buf_free(&world);
  opened = false;
  pthread_mutex_unlock(&open_lock);
}

/* ---- programs -----------------------------------------------------------------------------------------------------
 */

static pjrt_exec *load(const buf *key, const char *op_name) {
  for (int i = 0; i < FOLDERS; i++) {
    disk *d = folders[i];
    char *bytes;
    size_t n;
    pjrt_exec *x;
    if (!d || !disk_get(d, key->data, key->len, &bytes, &n)) continue;
    tpu_err *e = pjrt_exec_load(ex.client, bytes, n, &x);
    if (!e && i == SHARED && folders[MINE]) disk_put(folders[MINE], key->data, key->len, bytes, n);
    mem_free(bytes);
    if (!e) return x;
    log_line(
        LOG_WARN,
        "executable cache %s: the plugin does not load a program of %s that it once made (%s); it is compiled again",
        disk_path(d), op_name, tpu_err_message(e));
    tpu_err_free(e);
    disk_drop(d, key->data, key->len);
  }
  return NULL;
}

pjrt_exec *cache_find(const buf *text, const char *op_name, cache_ticket *t) {
  buf_init(&t->key);
  t->lock = -1;
  open_once();
  if (!first_folder()) return NULL;
  buf_bytes(&t->key, world.data, world.len);
  buf_bytes(&t->key, text->data, text->len);
  if (t->key.failed || world.failed) {
    buf_free(&t->key);
    buf_init(&t->key);
    return NULL;
  }
  int64_t start = clock_ns();
  pjrt_exec *x = load(&t->key, op_name);
  if (!x) {
    t->lock = disk_lock(first_folder(), t->key.data, t->key.len);
    if (t->lock >= 0) x = load(&t->key, op_name); /* somebody else may have compiled it while we waited */
  }
  pthread_mutex_lock(&ex.program_lock);
  if (x) {
    ex.stats.disk_hits++;
    ex.stats.disk_ns += clock_ns() - start;
  } else {
    ex.stats.disk_misses++;
  }
  pthread_mutex_unlock(&ex.program_lock);
  return x;
}

void cache_done(cache_ticket *t, pjrt_exec *compiled) {
  char *bytes;
  size_t n;
  if (compiled && t->key.len) {
    tpu_err *e = pjrt_exec_serialize(ex.client, compiled, &bytes, &n);
    for (int i = 0; i < FOLDERS && !e; i++)
      if (folders[i]) disk_put(folders[i], t->key.data, t->key.len, bytes, n);
    if (e && log_on(LOG_INFO)) log_line(LOG_INFO, "executable cache: a program cannot be kept: %s", tpu_err_message(e));
    if (!e) mem_free(bytes);
    tpu_err_free(e);
  }
  if (t->lock >= 0) disk_unlock(first_folder(), t->key.data, t->key.len, t->lock);
  buf_free(&t->key);
}
