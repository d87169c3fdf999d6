/* The folder of the executable cache: damaged, foreign and half-written entries, owners that die, folders that others
 * can write. Whatever happens, what comes back is what was put in, or nothing. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "core/t.h"
#include "exec/disk.h"

static char folder[256];
static const char key[] = "the key of a program", data[] = "an executable\0with zeros";

static disk *open_folder(int64_t limit) {
  disk *d = NULL;
  CHECK_OK(disk_open(folder, limit, false, &d));
  if (!d) exit(1);
  return d;
}

static bool gives(disk *d, const char *k, const void *want, size_t n) {
  char *have;
  size_t len;
  bool found = disk_get(d, k, strlen(k), &have, &len), same = found && len == n && !memcmp(have, want, n);
  CHECK(!found || same);
  if (found) mem_free(have);
  return found;
}

typedef struct {
  int n, bad;
  int64_t bytes;
  char name[80];
} seen;
static bool count(void *ctx, const char *name, int64_t nbytes, int64_t used, bool good) {
  seen *s = ctx;
  s->n++;
  s->bad += !good;
  s->bytes += nbytes;
  CHECK(used > 0);
  snprintf(s->name, sizeof s->name, "%s", name);
  return true;
}

static void path_of(disk *d, char out[512]) {
  seen s = {0};
  disk_each(d, false, count, &s);
  CHECK_INT(s.n, 1);
  snprintf(out, 512, "%s/%s", folder, s.name);
}

TEST(start) {
  snprintf(folder, sizeof folder, "/tmp/torch_tpu_disk.XXXXXX");
  if (!CHECK(mkdtemp(folder))) exit(1);
  strcat(folder, "/a/b"); /* made on the way */
}

TEST(what_was_put_in_comes_back) {
  disk *d = open_folder(0);
  struct stat st;
  CHECK(!stat(folder, &st) && (st.st_mode & 0777) == 0700);
  CHECK(!gives(d, key, data, sizeof data));
  CHECK(disk_put(d, key, sizeof key - 1, data, sizeof data));
  CHECK(gives(d, key, data, sizeof data));
  CHECK(!gives(d, "another key", data, sizeof data));
  CHECK(disk_put(d, key, sizeof key - 1, "new", 3)); /* over the old one */
  CHECK(gives(d, key, "new", 3));
  disk *again = open_folder(0);
  CHECK(gives(again, key, "new", 3));
  disk_close(again);
  disk_drop(d, key, sizeof key - 1);
  CHECK(!gives(d, key, "new", 3));
  CHECK(disk_put(d, "", 0, "", 0));
  CHECK(gives(d, "", "", 0));
  disk_drop(d, "", 0);
  disk_close(d);
}

TEST(a_damaged_entry_is_missed_and_removed) {
  disk *d = open_folder(0);
  char path[512], whole[4096];
  unsigned seed = 7;
  CHECK(disk_put(d, key, sizeof key - 1, data, sizeof data));
  path_of(d, path);
  int fd = open(path, O_RDONLY);
  ssize_t n = read(fd, whole, sizeof whole);
  close(fd);
  if (!CHECK(n > 60)) return;
  int removed = 0;
  for (int turn = 0; turn < 3000; turn++) {
    char bad[4096 + 8] = {0};
    memcpy(bad, whole, (size_t)n);
    size_t len = (size_t)n;
    seed = seed * 1664525u + 1013904223u;
    unsigned r = seed >> 8;
    if (turn < n) len = (size_t)turn;                             /* cut off at every length */
    else if (turn < 2 * n) bad[turn - n] ^= (char)(1 << (r % 8)); /* every byte, one bit */
    else if (r % 4 == 0) len += 1 + r / 4 % 8;
    else
      for (unsigned k = 0; k <= r / 4 % 6; k++) bad[(r >> 7) * (k + 1) % (unsigned)n] = (char)(r >> (k + 5));
    bool same = len == (size_t)n && !memcmp(bad, whole, len);
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    CHECK(write(fd, bad, len) == (ssize_t)len);
    close(fd);
    bool found = gives(d, key, data, sizeof data);
    CHECK_INT(found, same);
    removed += access(path, F_OK) != 0;
    if (found != same) break;
  }
  CHECK(removed > 2000);
  disk_drop(d, key, sizeof key - 1);
  disk_close(d);
}

TEST(an_entry_under_the_name_of_another_is_no_hit) {
  disk *d = open_folder(0);
  char path[512], other[512];
  CHECK(disk_put(d, key, sizeof key - 1, data, sizeof data));
  path_of(d, path);
  snprintf(other, sizeof other, "%s/moved", folder);
  CHECK(!rename(path, other));
  CHECK(disk_put(d, "another key", 11, data, sizeof data));
  path_of(d, path);
  CHECK(!rename(other, path)); /* whole, but of the first key */
  CHECK(!gives(d, "another key", data, sizeof data));
  seen s = {0};
  disk_each(d, true, count, &s);
  CHECK_INT(s.bad, 1);
  unlink(path);
  disk_close(d);
}

TEST(what_others_could_have_put_there_is_refused) {
  disk *d = open_folder(0), *refused;
  char path[512], other[512];
  CHECK(disk_put(d, key, sizeof key - 1, data, sizeof data));
  path_of(d, path);
  CHECK(!chmod(path, 0622));
  CHECK(!gives(d, key, data, sizeof data));
  CHECK(!chmod(path, 0600));
  CHECK(gives(d, key, data, sizeof data));
  snprintf(other, sizeof other, "%s/elsewhere", folder);
  CHECK(!rename(path, other) && !symlink(other, path));
  CHECK(!gives(d, key, data, sizeof data));
  unlink(path);
  CHECK(!mkfifo(path, 0600)); /* reading it must not wait */
  CHECK(!gives(d, key, data, sizeof data));
  unlink(path);
  CHECK(!mkdir(path, 0700));
  CHECK(!gives(d, key, data, sizeof data));
  CHECK(!disk_put(d, key, sizeof key - 1, data, sizeof data)); /* nothing to rename over; a warning */
  rmdir(path);
  disk_close(d);

  CHECK(!chmod(folder, 0777));
  CHECK_ERR(disk_open(folder, 0, false, &refused), TPU_ERR_RUNTIME, "TORCH_TPU_CACHE_TRUST");
  CHECK_OK(disk_open(folder, 0, true, &refused));
  disk_close(refused);
  CHECK(!chmod(folder, 0700));
  snprintf(other, sizeof other, "%s.link", folder);
  CHECK(!symlink(folder, other));
  CHECK_ERR(disk_open(other, 0, false, &refused), TPU_ERR_RUNTIME, "symbolic link");
  unlink(other);
  snprintf(other, sizeof other, "%s/file", folder);
  close(open(other, O_CREAT | O_WRONLY, 0600));
  CHECK_ERR(disk_open(other, 0, false, &refused), TPU_ERR_RUNTIME, "no folder");
}

TEST(the_least_recently_used_go_first) {
  disk *d = open_folder(5000);
  char k[32], body[500] = {0};
  for (int i = 0; i < 30; i++) {
    snprintf(k, sizeof k, "key %d", i);
    CHECK(disk_put(d, k, strlen(k), body, sizeof body));
    seen s = {0};
    disk_each(d, true, count, &s);
    CHECK(s.bytes <= 5000 && s.bad == 0 && s.n > 0);
  }
  CHECK(gives(d, "key 29", body, sizeof body));
  disk_prune(d, 0);
  seen s = {0};
  disk_each(d, false, count, &s);
  CHECK_INT(s.n, 0);
  disk_close(d);
}

static void *put_many(void *arg) {
  char k[32], body[300];
  for (int i = 0; i < 200; i++) {
    int which = i % 10;
    snprintf(k, sizeof k, "key %d", which);
    memset(body, which, sizeof body);
    disk_put(arg, k, strlen(k), body, sizeof body);
    gives(arg, k, body, sizeof body);
    if (i % 50 == 49) disk_prune(arg, 1000);
  }
  return NULL;
}

TEST(threads_and_processes_write_and_prune_at_once) {
  disk *d = open_folder(2000);
  pid_t child[3];
  for (int i = 0; i < 3; i++)
    if (!(child[i] = fork())) {
      put_many(d);
      disk_close(d);
      _exit(t_failed_checks ? 1 : 0);
    }
  pthread_t t[3];
  for (int i = 0; i < 3; i++) CHECK(!pthread_create(&t[i], NULL, put_many, d));
  for (int i = 0; i < 3; i++) pthread_join(t[i], NULL);
  for (int i = 0, status; i < 3; i++) CHECK(waitpid(child[i], &status, 0) == child[i] && status == 0);
  disk_close(d);
}

TEST(a_writer_that_is_killed_leaves_no_half_entry) {
  static char big[1 << 20];
  disk *d = open_folder(0);
  disk_prune(d, 0);
  for (int turn = 0; turn < 20; turn++) {
    pid_t child = fork();
    if (!child) {
      for (;;) disk_put(d, key, sizeof key - 1, big, sizeof big);
    }
    nanosleep(&(struct timespec){0, 300000 + turn * 200000}, NULL);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    gives(d, key, big, sizeof big); /* whole or none: gives() checks */
  }
  seen s = {0};
  disk_each(d, true, count, &s);
  CHECK_INT(s.bad, 0);
  disk_prune(d, 0);
  disk_close(d);
}

TEST(a_lock_ends_with_its_holder) {
  disk *d = open_folder(0);
  int pipe_fd[2];
  char c;
  CHECK(!pipe(pipe_fd));
  pid_t child = fork();
  if (!child) {
    int held = disk_lock(d, key, sizeof key - 1);
    if (write(pipe_fd[1], "x", 1) != 1 || held < 0) {
      disk_close(d);
      _exit(1);
    }
    pause();
  }
  CHECK(read(pipe_fd[0], &c, 1) == 1);
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
  int mine = disk_lock(d, key, sizeof key - 1);
  CHECK(mine >= 0);
  int other = disk_lock(d, "another key", 11); /* does not wait */
  CHECK(other >= 0);
  disk_unlock(d, "another key", 11, other);
  disk_unlock(d, key, sizeof key - 1, mine);
  close(pipe_fd[0]), close(pipe_fd[1]);
  disk_close(d);
}

TEST(memory_that_runs_out_is_a_miss) {
  disk *d = open_folder(0);
  CHECK(disk_put(d, key, sizeof key - 1, data, sizeof data));
  int64_t live = mem_live();
  for (int64_t nth = 1; nth < 6; nth++) {
    mem_fault_at(nth, false);
    disk_put(d, "another key", 11, data, sizeof data);
    gives(d, key, data, sizeof data);
    disk_prune(d, 1 << 20);
    mem_fault_at(0, false);
  }
  CHECK_INT(mem_live(), live);
  disk *none;
  for (int64_t nth = 1; nth < 3; nth++) {
    mem_fault_at(nth, false);
    CHECK_ERR(disk_open(folder, 0, false, &none), TPU_ERR_OOM, "");
    mem_fault_at(0, false);
  }
  disk_close(d);
}

TEST(clean_up) {
  char command[400];
  *strstr(folder, "/a/b") = 0;
  snprintf(command, sizeof command, "rm -r %s", folder);
  CHECK_INT(system(command), 0);
  CHECK_INT(mem_live(), 0);
}

T_MAIN()
