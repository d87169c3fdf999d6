/* Which plugin to use. Looks at names, files and sysfs; loads nothing, waits for nothing. */
#include "pjrt/find.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/env.h"
#include "base/mem.h"
#include "pjrt/pjrt.h"

/* ---- the PCI bus ------------------------------------------------------------------------------------------------ */

enum { VENDOR_GOOGLE = 0x1ae0 };

/* TPU v2 and v3, v4, v5p, v5e, v6e, 7x. Google's vendor id alone says nothing: virtual network cards have it too. */
static const long tpu_devices[] = {0x0027, 0x005e, 0x0062, 0x0063, 0x006f, 0x0076};

/* A sysfs attribute that holds one number, or -1. */
static long read_number(const char *folder, const char *name, const char *attribute) {
  char path[1024], text[32] = {0};
  if (snprintf(path, sizeof path, "%s/%s/%s", folder, name, attribute) >= (int)sizeof path) return -1;
  FILE *f = fopen(path, "r");
  if (!f) return -1;
  size_t n = fread(text, 1, sizeof text - 1, f);
  fclose(f);
  char *end;
  long v = strtol(text, &end, 16);
  return n && end != text ? v : -1;
}

bool pjrt_tpu_attached(const char *sysfs_root) {
  char folder[512];
  if (snprintf(folder, sizeof folder, "%s/bus/pci/devices", sysfs_root) >= (int)sizeof folder) return false;
  DIR *d = opendir(folder);
  if (!d) return false;
  bool found = false;
  for (struct dirent *e; !found && (e = readdir(d));) {
    if (e->d_name[0] == '.' || read_number(folder, e->d_name, "vendor") != VENDOR_GOOGLE) continue;
    long id = read_number(folder, e->d_name, "device");
    for (size_t i = 0; i < sizeof tpu_devices / sizeof tpu_devices[0]; i++) found |= id == tpu_devices[i];
  }
  closedir(d);
  return found;
}

/* ---- text that lives for the process ---------------------------------------------------------------------------- */

typedef struct text {
  struct text *next;
  char s[];
} text;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static text *texts;

/* Equal text is kept once, so that asking again costs no memory. */
static const char *keep_text(const char *s) {
  if (!*s) return "";
  pthread_mutex_lock(&lock);
  text *t = texts;
  while (t && strcmp(t->s, s) != 0) t = t->next;
  if (!t) {
    size_t n = strlen(s) + 1;
    t = mem_alloc(sizeof *t + n);
    if (t) {
      memcpy(t->s, s, n);
      t->next = texts;
      texts = t;
    }
  }
  pthread_mutex_unlock(&lock);
  return t ? t->s : NULL;
}

/* ---- the search -------------------------------------------------------------------------------------------------- */

typedef struct {
  buf path, why;
} choice;

static bool usable(const char *path) {
  struct stat st;
  return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, R_OK) == 0;
}

static const char *reason(const char *path) {
  struct stat st;
  if (stat(path, &st) != 0) return strerror(errno);
  if (!S_ISREG(st.st_mode)) return "it is not a file";
  return access(path, R_OK) == 0 ? "it is there" : strerror(errno);
}

/* An explicit wish is obeyed or refused, never replaced by something else. */
static void choose_named(choice *ch, const char *variable, const char *path) {
  if (usable(path)) {
    buf_str(&ch->path, path);
    buf_printf(&ch->why, "%s names %s", variable, path);
  } else {
    buf_printf(&ch->why,
               "%s names %s, which cannot be used (%s); set it to the path of a PJRT plugin (a shared library), or "
               "unset it",
               variable, path, reason(path));
  }
}

static bool is_libtpu(const char *path) {
  const char *name = strrchr(path, '/');
  return !strcmp(name ? name + 1 : path, "libtpu.so");
}

/* The first usable candidate of a kind goes to `out`; `seen` lists those that are not there. */
static void first_candidate(const char *candidates, bool libtpu, buf *out, buf *seen) {
  buf one;
  buf_init(&one);
  for (const char *at = candidates; at && *at && !out->len;) {
    size_t n = strcspn(at, ":");
    buf_clear(&one);
    buf_bytes(&one, at, n);
    at += n + (at[n] == ':');
    seen->failed |= one.failed;
    if (!n || !one.data || is_libtpu(one.data) != libtpu) continue;
    if (usable(one.data)) {
      buf_str(out, one.data);
    } else {
      if (seen->len) buf_str(seen, ", ");
      buf_str(seen, one.data);
    }
  }
  buf_free(&one);
}

static void choose(choice *ch, const char *sysfs_root, const char *candidates, buf *seen) {
  const char *named = env_str(ENV_PJRT_PLUGIN), *libtpu = env_str(ENV_TPU_LIBRARY_PATH);
  if (*named) {
    choose_named(ch, "TORCH_TPU_PJRT_PLUGIN", named);
    return;
  }
  if (*libtpu) {
    choose_named(ch, "TPU_LIBRARY_PATH", libtpu);
    return;
  }
  if (pjrt_tpu_attached(sysfs_root)) {
    first_candidate(candidates, true, &ch->path, seen);
    if (ch->path.len) buf_printf(&ch->why, "a TPU is on the PCI bus and %s is its plugin", ch->path.data);
    else /* running on the CPU in silence would be the worst answer */
      buf_printf(&ch->why,
                 "a TPU is on the PCI bus but its plugin libtpu.so was not found (looked for: %s); install the "
                 "package libtpu, or set TPU_LIBRARY_PATH to its path, or set TORCH_TPU_PJRT_PLUGIN to another plugin",
                 seen->len ? seen->data : "no place was given");
    return;
  }
  first_candidate(candidates, false, &ch->path, seen);
  if (ch->path.len) buf_printf(&ch->why, "no TPU is on the PCI bus, so the XLA CPU plugin %s is used", ch->path.data);
  else
    buf_printf(&ch->why,
               "no PJRT plugin was found: TORCH_TPU_PJRT_PLUGIN and TPU_LIBRARY_PATH are not set, no TPU is on the PCI "
               "bus, and no package with an XLA CPU plugin is installed%s%s; install one (for example: pip install "
               "--no-deps lammps-jax-pjrt-cpu) or set TORCH_TPU_PJRT_PLUGIN to the path of a PJRT plugin",
               seen->len ? ", looked for: " : "", seen->len ? seen->data : "");
}

void pjrt_find_in(const char *sysfs_root, const char *candidates, const char **out_path, const char **out_why) {
  choice ch;
  buf seen;
  buf_init(&ch.path);
  buf_init(&ch.why);
  buf_init(&seen);
  choose(&ch, sysfs_root, candidates, &seen);
  const char *path = NULL, *why = NULL;
  if (!ch.path.failed && !ch.why.failed && !seen.failed) {
    path = keep_text(ch.path.len ? ch.path.data : "");
    why = keep_text(ch.why.data);
  }
  *out_path = path && why ? path : "";
  *out_why = path && why ? why : "out of host memory while looking for a PJRT plugin";
  buf_free(&seen);
  buf_free(&ch.path);
  buf_free(&ch.why);
}

void pjrt_find(const char *candidates, const char **out_path, const char **out_why) {
  pjrt_find_in("/sys", candidates, out_path, out_why);
}
