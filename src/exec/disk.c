#include "exec/disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"

enum {
  FORMAT = 1,
  NAME_MAX_LEN = 64,      /* "0123...ef.tpux" and the like */
  TOUCH_AFTER_S = 3600,   /* a use is written down at most so often */
  STALE_S = 3600,         /* a temporary file older than this belongs to nobody */
  LOCK_STEP_NS = 2000000, /* between two looks at a lock */
  LOCK_TELL_S = 30,       /* then one line says what the process waits for */
  LOCK_MAX_S = 1800,      /* then without: the holder may be stopped */
  WHY_LEN = 160
};
#define MAX_BYTES ((uint64_t)1 << 32) /* of one entry */

typedef struct {
  char magic[8];
  uint32_t format, zero;
  uint64_t key_len, data_len;
  hash128 sum; /* of both lengths, the key and the data */
} header;

struct disk {
  char *path;
  int fd;
  int64_t limit, total; /* total: -1 until it was counted */
  int64_t since;        /* bytes written since then: others write too */
  bool trust;
  pthread_mutex_t lock;
  atomic_uint serial;
  uint64_t token; /* of this process on this host: hosts that share a folder give out the same process numbers */
  atomic_bool complained;
};

static void __attribute__((format(printf, 2, 3))) complain(disk *d, const char *format, ...) {
  char text[512];
  if (atomic_exchange(&d->complained, true)) return;
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  log_line(LOG_WARN, "executable cache %s: %s; programs that it cannot give are compiled again", d->path, text);
}

/* ---- folders ---------------------------------------------------------------------------------------------------- */

/* Whether nobody else can have put it there; `why` says who could. */
static bool ours(const struct stat *st, bool trust, char why[WHY_LEN]) {
  if (trust) return true;
  if (st->st_uid != geteuid()) {
    snprintf(why, WHY_LEN, "somebody else owns it (user %ld; you are %ld)", (long)st->st_uid, (long)geteuid());
    return false;
  }
  if (!(st->st_mode & (S_IWGRP | S_IWOTH))) return true;
  snprintf(why, WHY_LEN, "somebody else can write it (mode %04o)", (unsigned)(st->st_mode & 07777));
  return false;
}

static const char *what_is(int at, const char *name) {
  struct stat st;
  if (fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW)) return NULL;
  if (S_ISLNK(st.st_mode)) return "it is a symbolic link";
  if (at == AT_FDCWD) return S_ISDIR(st.st_mode) ? NULL : "it is no folder";
  return S_ISREG(st.st_mode) ? NULL : "it is no plain file";
}

/* mkdir -p with mode 0700 for what is new. */
static int make_folders(char *path) {
  for (char *s = path + 1; *s; s++) {
    if (*s != '/') continue;
    *s = 0;
    int bad = mkdir(path, 0700) && errno != EEXIST;
    *s = '/';
    if (bad) return -1;
  }
  return mkdir(path, 0700) && errno != EEXIST ? -1 : 0;
}

tpu_err *disk_open(const char *path, int64_t limit, bool trust, disk **out) {
  *out = NULL;
  disk *d = mem_calloc(sizeof *d);
  if (!d || !(d->path = mem_alloc(strlen(path) + 1))) {
    mem_free(d);
    return err_nomem();
  }
  strcpy(d->path, path);
  d->limit = limit;
  d->total = -1;
  d->trust = trust;
  pthread_mutex_init(&d->lock, NULL);
  if (getrandom(&d->token, sizeof d->token, GRND_NONBLOCK) != sizeof d->token) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    d->token = hash128_of(&now, sizeof now).lo;
  }
  struct stat st;
  char why[WHY_LEN];
  tpu_err *e = NULL;
  d->fd = make_folders(d->path) ? -1 : open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | (trust ? 0 : O_NOFOLLOW));
  if (d->fd < 0) {
    int err = errno;
    const char *what = what_is(AT_FDCWD, path);
    e = err_new(TPU_ERR_RUNTIME, "%s: %s", path, what && !(trust && err == ENOENT) ? what : strerror(err));
  } else if (fstat(d->fd, &st) || !ours(&st, trust, why)) {
    e = err_new(TPU_ERR_RUNTIME,
                "%s: %s, and an executable is code; make the folder yours alone (chmod go-w), or set "
                "TORCH_TPU_CACHE_TRUST=1 if all who can write it may run code as you",
                path, why);
  }
  if (e) disk_close(d);
  else *out = d;
  return e;
}

void disk_close(disk *d) {
  if (!d) return;
  if (d->fd >= 0) close(d->fd);
  pthread_mutex_destroy(&d->lock);
  mem_free(d->path);
  mem_free(d);
}

const char *disk_path(const disk *d) { return d->path; }

/* ---- entries ---------------------------------------------------------------------------------------------------- */

static void name_of(const void *key, size_t key_len, const char *suffix, char out[NAME_MAX_LEN]) {
  char hex[33];
  hash128_hex(hash128_of(key, key_len), hex);
  snprintf(out, NAME_MAX_LEN, "%s%s", hex, suffix);
}

static hash128 sum_of(const header *h, const char *body, size_t n) {
  hash128 parts[2] = {hash128_of(body, n), {h->key_len, h->data_len}};
  return hash128_of(parts, sizeof parts);
}

static bool read_all(int fd, char *p, size_t n) {
  while (n) {
    ssize_t k = read(fd, p, n);
    if (k < 0 && errno == EINTR) continue;
    if (k <= 0) return false;
    p += k;
    n -= (size_t)k;
  }
  return true;
}

static bool write_all(int fd, const void *data, size_t n) {
  for (const char *p = data; n;) {
    ssize_t k = write(fd, p, n);
    if (k < 0 && errno == EINTR) continue;
    if (k <= 0) return false;
    p += k;
    n -= (size_t)k;
  }
  return true;
}

tpu_err *disk_open_file(const char *path, bool trust, int *out) {
  struct stat st;
  char why[WHY_LEN] = "";
  *out = -1;
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | (trust ? 0 : O_NOFOLLOW));
  if (fd < 0) {
    int err = errno;
    return err_new(TPU_ERR_RUNTIME, "%s: %s", path, err == ELOOP ? "it is a symbolic link" : strerror(err));
  }
  if (fstat(fd, &st) || !S_ISREG(st.st_mode)) snprintf(why, sizeof why, "it is no plain file");
  else if (ours(&st, trust, why)) why[0] = 0;
  if (!why[0]) {
    *out = fd;
    return NULL;
  }
  close(fd);
  return err_new(TPU_ERR_RUNTIME,
                 "%s: %s, and an executable is code; make the file yours alone (chmod go-w), or set "
                 "TORCH_TPU_CACHE_TRUST=1 if all who can write it may run code as you",
                 path, why);
}

typedef enum { ENTRY_NONE, ENTRY_GOOD, ENTRY_BAD, ENTRY_REFUSED } entry_state;

/* Reads an entry whole: *body is the key and the data after it, to mem_free. REFUSED: `why` says why. */
static entry_state read_entry(disk *d, const char *name, header *h, char **body, char why[WHY_LEN]) {
  *body = NULL;
  int fd = openat(d->fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) {
    int err = errno;
    if (err == ENOENT) return ENTRY_NONE;
    const char *what = what_is(d->fd, name);
    snprintf(why, WHY_LEN, "%s", what ? what : strerror(err));
    return ENTRY_REFUSED;
  }
  struct stat st;
  entry_state s = ENTRY_BAD;
  if (fstat(fd, &st) || !S_ISREG(st.st_mode)) {
    snprintf(why, WHY_LEN, "it is no plain file");
    s = ENTRY_REFUSED;
  } else if (!ours(&st, d->trust, why)) {
    s = ENTRY_REFUSED;
  } else if (st.st_size >= (off_t)sizeof *h && read_all(fd, (char *)h, sizeof *h) && !memcmp(h->magic, "TPUCACHE", 8) &&
             h->format == FORMAT && !h->zero && h->key_len <= MAX_BYTES && h->data_len <= MAX_BYTES - h->key_len &&
             (uint64_t)st.st_size == sizeof *h + h->key_len + h->data_len) {
    size_t n = (size_t)(h->key_len + h->data_len);
    *body = mem_alloc(n + 1);
    if (!*body) {
      s = ENTRY_NONE;
    } else if (read_all(fd, *body, n)) {
      hash128 sum = sum_of(h, *body, n);
      if (sum.hi == h->sum.hi && sum.lo == h->sum.lo) s = ENTRY_GOOD;
    }
    if (s != ENTRY_GOOD) {
      mem_free(*body);
      *body = NULL;
    } else if (time(NULL) - st.st_mtime > TOUCH_AFTER_S) {
      futimens(fd, NULL); /* read-only folders: no matter */
    }
  }
  close(fd);
  return s;
}

bool disk_get(disk *d, const void *key, size_t key_len, char **data, size_t *len) {
  *data = NULL;
  *len = 0;
  char name[NAME_MAX_LEN], why[WHY_LEN], *body;
  name_of(key, key_len, ".tpux", name);
  header h;
  switch (read_entry(d, name, &h, &body, why)) {
    case ENTRY_NONE: return false;
    case ENTRY_REFUSED: complain(d, "refuses %s: %s", name, why); return false;
    case ENTRY_BAD:
      complain(d, "removes a damaged entry, %s", name);
      unlinkat(d->fd, name, 0);
      return false;
    default: break;
  }
  if (h.key_len != key_len || memcmp(body, key, key_len) != 0) { /* another key with the same hash */
    mem_free(body);
    return false;
  }
  memmove(body, body + key_len, (size_t)h.data_len);
  *data = body;
  *len = (size_t)h.data_len;
  return true;
}

void disk_drop(disk *d, const void *key, size_t key_len) {
  char name[NAME_MAX_LEN];
  name_of(key, key_len, ".tpux", name);
  unlinkat(d->fd, name, 0);
}

/* ---- writing ---------------------------------------------------------------------------------------------------- */

static void grow(disk *d, int64_t n);

/* In a folder that is trusted, others are to read what we write, as far as the umask allows. */
static mode_t file_mode(const disk *d) { return d->trust ? 0666 : 0600; }

bool disk_put(disk *d, const void *key, size_t key_len, const void *data, size_t len) {
  char name[NAME_MAX_LEN], tmp[NAME_MAX_LEN];
  header h = {.magic = "TPUCACHE", .format = FORMAT, .key_len = key_len, .data_len = len};
  if (key_len > MAX_BYTES || len > MAX_BYTES - key_len) return false;
  int64_t whole = (int64_t)(sizeof h + key_len + len);
  if (d->limit && whole > d->limit) return false; /* it would push out all others, and go itself */
  char *body = mem_alloc(key_len + len + 1);
  if (!body) return false;
  memcpy(body, key, key_len);
  memcpy(body + key_len, data, len);
  h.sum = sum_of(&h, body, key_len + len);
  name_of(key, key_len, ".tpux", name);
  snprintf(tmp, sizeof tmp, "tmp.%016llx.%ld.%u", (unsigned long long)d->token, (long)getpid(),
           atomic_fetch_add(&d->serial, 1));
  int fd = openat(d->fd, tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, file_mode(d));
  /* No fsync: an entry that a power cut left half written fails its checksum. */
  bool ok = fd >= 0 && write_all(fd, &h, sizeof h) && write_all(fd, body, key_len + len);
  int err = errno;
  if (fd >= 0 && close(fd) && ok) {
    ok = false;
    err = errno;
  }
  if (ok && renameat(d->fd, tmp, d->fd, name)) {
    ok = false;
    err = errno;
  }
  mem_free(body);
  if (ok) {
    grow(d, whole);
    return true;
  }
  if (fd >= 0) unlinkat(d->fd, tmp, 0);
  complain(d, "cannot write %s: %s", name, strerror(err));
  return false;
}

/* ---- locks ------------------------------------------------------------------------------------------------------ */

int disk_lock(disk *d, const void *key, size_t key_len) {
  char name[NAME_MAX_LEN];
  name_of(key, key_len, ".lock", name);
  time_t begin = time(NULL);
  bool told = false;
  while (time(NULL) - begin < LOCK_MAX_S) {
    int fd = openat(d->fd, name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, file_mode(d));
    if (fd < 0 && errno == EACCES) fd = openat(d->fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) return -1;
    struct stat st;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
      /* its last holder may have removed the file between our open and our lock */
      if (fstat(fd, &st) == 0 && st.st_nlink > 0) return fd;
      close(fd);
      continue;
    }
    int err = errno;
    close(fd);
    if (err != EWOULDBLOCK && err != EINTR) return -1; /* a file system without locks */
    if (!told && time(NULL) - begin >= LOCK_TELL_S) {
      told = true;
      log_line(LOG_WARN, "executable cache %s: since %d s another process compiles a program that this one needs (%s)",
               d->path, LOCK_TELL_S, name);
    }
    nanosleep(&(struct timespec){0, LOCK_STEP_NS}, NULL);
  }
  return -1;
}

void disk_unlock(disk *d, const void *key, size_t key_len, int lock) {
  if (lock < 0) return;
  char name[NAME_MAX_LEN];
  name_of(key, key_len, ".lock", name);
  unlinkat(d->fd, name, 0);
  close(lock);
}

/* ---- the whole folder ---------------------------------------------------------------------------------------------
 */

typedef struct {
  char name[NAME_MAX_LEN];
  int64_t nbytes, used_ns;
} item;

static bool has_suffix(const char *s, const char *suffix) {
  size_t n = strlen(s), k = strlen(suffix);
  return n > k && !strcmp(s + n - k, suffix);
}

/* The lock of a program whose compiler was killed, and which nobody compiled since. Who waits for it sees that its file
 * is gone. */
static void drop_stale_lock(disk *d, const char *name) {
  int fd = openat(d->fd, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return;
  if (flock(fd, LOCK_EX | LOCK_NB) == 0) unlinkat(d->fd, name, 0);
  close(fd);
}

/* All entries, to mem_free; NULL with *n = 0 when there are none or they cannot be read. Clears away what the dead
 * left. */
static item *list(disk *d, size_t *n) {
  *n = 0;
  size_t cap = 0;
  item *items = NULL;
  int fd = openat(d->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *dir = fd < 0 ? NULL : fdopendir(fd);
  if (!dir && fd >= 0) close(fd);
  for (struct dirent *e; dir && (e = readdir(dir));) {
    struct stat st;
    if (strlen(e->d_name) >= NAME_MAX_LEN || fstatat(d->fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW)) continue;
    bool old = time(NULL) - st.st_mtime > STALE_S;
    if (old && !strncmp(e->d_name, "tmp.", 4)) unlinkat(d->fd, e->d_name, 0);
    if (old && has_suffix(e->d_name, ".lock")) drop_stale_lock(d, e->d_name);
    if (!has_suffix(e->d_name, ".tpux") || S_ISDIR(st.st_mode)) continue;
    if (*n == cap) {
      item *more = mem_realloc(items, (cap = cap * 2 + 64) * sizeof *items);
      if (!more) break;
      items = more;
    }
    strcpy(items[*n].name, e->d_name);
    items[*n].nbytes = S_ISREG(st.st_mode) ? (int64_t)st.st_size : 0;
    items[(*n)++].used_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
  }
  if (dir) closedir(dir);
  return items;
}

static int by_use(const void *a, const void *b) {
  int64_t x = ((const item *)a)->used_ns, y = ((const item *)b)->used_ns;
  return (x > y) - (x < y);
}

/* Removes the oldest until `limit` bytes are left; gives what is left. */
static int64_t prune_to(disk *d, int64_t limit) {
  size_t n;
  item *items = list(d, &n);
  int64_t total = 0;
  for (size_t i = 0; i < n; i++) total += items[i].nbytes;
  if (total > limit) qsort(items, n, sizeof *items, by_use);
  for (size_t i = 0; i < n && total > limit; i++) {
    /* several processes may prune at once: what is gone already counts as removed */
    if (unlinkat(d->fd, items[i].name, 0) && errno != ENOENT) continue;
    total -= items[i].nbytes;
  }
  mem_free(items);
  return total;
}

/* n more bytes were written. What other processes write is seen when all is counted again: when it would be too much
 * with ours, and after each sixteenth of the limit. */
static void grow(disk *d, int64_t n) {
  if (!d->limit) return;
  pthread_mutex_lock(&d->lock);
  bool first = d->total < 0;
  d->total += n;
  d->since += n;
  bool full = !first && d->total > d->limit;
  if (first || full || d->since > d->limit / 16) {
    d->total = prune_to(d, full ? d->limit - d->limit / 10 : d->limit);
    d->since = 0;
  }
  pthread_mutex_unlock(&d->lock);
}

void disk_prune(disk *d, int64_t limit) {
  pthread_mutex_lock(&d->lock);
  d->total = prune_to(d, limit);
  d->since = 0;
  pthread_mutex_unlock(&d->lock);
}

void disk_each(disk *d, bool verify, tpu_cache_entry_fn fn, void *ctx) {
  size_t n;
  item *items = list(d, &n);
  for (size_t i = 0; i < n; i++) {
    bool good = true;
    if (verify) {
      header h;
      char *body, why[WHY_LEN];
      entry_state s = read_entry(d, items[i].name, &h, &body, why);
      char name[NAME_MAX_LEN];
      if (s == ENTRY_GOOD) name_of(body, (size_t)h.key_len, ".tpux", name);
      good = s == ENTRY_GOOD && !strcmp(name, items[i].name);
      mem_free(body);
      if (s == ENTRY_NONE) continue; /* gone meanwhile */
    }
    if (!fn(ctx, items[i].name, items[i].nbytes, items[i].used_ns / 1000000000, good))
      unlinkat(d->fd, items[i].name, 0);
  }
  mem_free(items);
}
