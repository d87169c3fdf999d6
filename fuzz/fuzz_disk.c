/* fuzz_disk.c - the reader of the executable cache's entries against files that are not what they should be.
 *
 * fuzz_disk [cases] [first seed]: puts an entry, spoils its file (bits, lengths, cuts, splices of another entry; also
 * with a checksum that is right), and reads it. What comes back is what was put in, or, where the file is a whole entry
 * of the same key, what that one holds, or nothing. Prints the first failing case and exits 1. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "exec/disk.h"

enum { MOST = 4096, HEAD = 48 };

/* The format, written down a second time. */
typedef struct {
  char magic[8];
  uint32_t format, zero;
  uint64_t key_len, data_len;
  hash128 sum;
} head;
_Static_assert(sizeof(head) == HEAD, "the header of an entry");

static uint64_t state;
static uint64_t next(void) {
  state ^= state << 13;
  state ^= state >> 7;
  return state ^= state << 17;
}
static size_t below(size_t n) { return n ? (size_t)(next() % n) : 0; }

static char folder[] = "/tmp/torch_tpu_fuzz.XXXXXX";
static long hits, misses, removed, changed;

static size_t read_file(const char *path, char *out) {
  int fd = open(path, O_RDONLY);
  ssize_t n = fd < 0 ? -1 : read(fd, out, MOST * 2);
  if (fd >= 0) close(fd);
  return n < 0 ? 0 : (size_t)n;
}

static void write_file(const char *path, const char *p, size_t n) {
  unlink(path); /* cutting the old one makes some file systems wait for the disk */
  int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
  if (fd < 0 || write(fd, p, n) != (ssize_t)n) exit(2);
  close(fd);
}

static void sign(char *file, size_t n) {
  head h;
  if (n < HEAD) return;
  memcpy(&h, file, HEAD);
  hash128 parts[2] = {hash128_of(file + HEAD, n - HEAD), {h.key_len, h.data_len}};
  h.sum = hash128_of(parts, sizeof parts);
  memcpy(file, &h, HEAD);
}

static uint64_t odd_length(size_t n) {
  static const uint64_t far[] = {0, 1, UINT64_MAX, UINT64_MAX - HEAD, (uint64_t)1 << 32, (uint64_t)1 << 63, UINT32_MAX};
  return below(3) ? n + below(9) - 4 : far[below(sizeof far / sizeof *far)];
}

static size_t spoil(char *file, size_t n) {
  head h;
  memcpy(&h, file, HEAD);
  switch (below(9)) {
    case 0: return below(n + 1);
    case 1:
      for (size_t i = 0, more = 1 + below(16); i < more; i++) file[n++] = (char)next();
      return n;
    case 2: file[below(n)] ^= (char)(1 << below(8)); return n;
    case 3: file[below(HEAD)] = (char)next(); return n;
    case 4: h.key_len = odd_length(h.key_len); break;
    case 5: h.data_len = odd_length(h.data_len); break;
    case 6: { /* the border between key and data moves: the sum of lengths stays */
      uint64_t by = below(20);
      h.key_len += by;
      h.data_len -= by;
      break;
    }
    case 7: { /* a run of bytes is copied over another */
      size_t len = below(n / 2), from = below(n - len), to = below(n - len);
      memmove(file + to, file + from, len);
      return n;
    }
    default: return n;
  }
  memcpy(file, &h, HEAD);
  return n;
}

/* What an entry file stands for, by a second reader: the data of this key, or NULL. */
static const char *expect(const char *file, size_t n, const char *key, size_t key_len, size_t *len) {
  head h;
  if (n < HEAD) return NULL;
  memcpy(&h, file, HEAD);
  if (memcmp(h.magic, "TPUCACHE", 8) != 0 || h.format != 1 || h.zero) return NULL;
  if (h.key_len != key_len || n - HEAD < key_len || h.data_len != n - HEAD - key_len) return NULL;
  if (memcmp(file + HEAD, key, key_len) != 0) return NULL;
  char copy[MOST * 2];
  memcpy(copy, file, n);
  sign(copy, n);
  if (memcmp(copy, file, HEAD) != 0) return NULL;
  *len = (size_t)h.data_len;
  return file + HEAD + key_len;
}

static const char *one(disk *d, uint64_t seed) {
  state = seed * 0x9e3779b97f4a7c15ull + 1;
  for (int i = 0; i < 4; i++) next();
  char key[256], data[1024], file[MOST * 2], path[128], hex[33], *have;
  size_t key_len = below(sizeof key), data_len = below(4) ? below(sizeof data) : below(3), len = 0, got;
  for (size_t i = 0; i < key_len; i++) key[i] = (char)next();
  for (size_t i = 0; i < data_len; i++) data[i] = (char)next();
  if (!disk_put(d, key, key_len, data, data_len)) return "an entry cannot be put";
  hash128_hex(hash128_of(key, key_len), hex);
  snprintf(path, sizeof path, "%s/%s.tpux", folder, hex);
  size_t n = read_file(path, file);
  if (n != HEAD + key_len + data_len) return "an entry is not as long as it should be";
  for (size_t turns = below(4); turns; turns--) n = spoil(file, n);
  if (below(2)) sign(file, n);
  write_file(path, file, n);
  const char *want = expect(file, n, key, key_len, &len);
  bool found = disk_get(d, key, key_len, &have, &got);
  bool good = found == (want != NULL) && (!found || (got == len && !memcmp(have, want, len)));
  if (found) {
    hits++;
    changed += got != data_len || memcmp(have, data, got) != 0;
    mem_free(have);
  } else {
    misses++;
    removed += access(path, F_OK) != 0;
  }
  unlink(path);
  return good    ? NULL
         : found ? "it gives what is not in the file, or what nobody put in"
                 : "it does not give a whole entry";
}

int main(int argc, char **argv) {
  long cases = argc > 1 ? atol(argv[1]) : 20000, first = argc > 2 ? atol(argv[2]) : 1;
  disk *d;
  if (!mkdtemp(folder)) return 2;
  tpu_err *e = disk_open(folder, 0, false, &d);
  if (e) {
    printf("%s\n", tpu_err_message(e));
    return 2;
  }
  int64_t live = mem_live();
  const char *bad = NULL;
  for (long i = first; i < first + cases && !bad; i++)
    if ((bad = one(d, (uint64_t)i))) printf("seed %ld: %s\n", i, bad);
  if (!bad && mem_live() != live) printf("%s\n", bad = "memory leaks");
  disk_close(d);
  rmdir(folder);
  printf("%ld hits (%ld of a whole entry with other data), %ld misses, %ld of them damaged and removed\n", hits,
         changed, misses, removed);
  return bad || !hits || !misses || !removed || (cases >= 1000 && !changed);
}
