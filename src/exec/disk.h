/* disk.h - named byte strings in a folder: what the executable cache keeps between processes. Knows nothing of
 * programs.
 *
 * An entry is one file, named by the 128-bit hash of its key: a header, the key, the data, all under a checksum. It is
 * written to a temporary file and renamed, so a reader sees a whole entry or none; a file that is not what it should be
 * is reported once, removed, and missed. An executable is code: a folder or an entry that somebody else owns or may
 * write, a symbolic link, or anything that is no regular file is refused, unless the user trusts the folder.
 * Nothing here is an error for the caller: the worst is a miss. */
#ifndef TPU_EXEC_DISK_H
#define TPU_EXEC_DISK_H
#include <stdbool.h>

#include "base/err.h"
#include "base/hash.h"

typedef struct disk disk;

/* Opens a folder, making it (mode 0700) if need be. limit: bytes of all entries, above which the least recently used
 * ones go; 0: no limit. trust: others may own or write it. The error says why a folder is refused. */
TPU_MUST tpu_err *disk_open(const char *path, int64_t limit, bool trust, disk **out);
void disk_close(disk *d);
const char *disk_path(const disk *d);

/* Opens a file that holds an executable, under the rules of an entry. *fd is -1 when it is refused; the error says why.
 */
TPU_MUST tpu_err *disk_open_file(const char *path, bool trust, int *fd);

/* The data kept under this key, to mem_free; false when there is none. */
bool disk_get(disk *d, const void *key, size_t key_len, char **data, size_t *len);
/* Keeps it; false (and a warning, once) when it cannot be written. */
bool disk_put(disk *d, const void *key, size_t key_len, const void *data, size_t len);
/* Forgets it, as it turned out to be of no use. */
void disk_drop(disk *d, const void *key, size_t key_len);

/* One at a time among threads, processes and, where the file system can, hosts: waits until nobody else holds the lock
 * of this key, which ends with its holder, whatever its end. -1: no lock could be had; go on without. */
int disk_lock(disk *d, const void *key, size_t key_len);
void disk_unlock(disk *d, const void *key, size_t key_len, int lock);

/* tpu_cache_each of tpu.h, on an open folder. */
void disk_each(disk *d, bool verify, tpu_cache_entry_fn fn, void *ctx);
/* Removes the least recently used entries until `limit` bytes are left. */
void disk_prune(disk *d, int64_t limit);
#endif
