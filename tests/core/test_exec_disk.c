/* The folder of the executable cache: damaged, foreign and half-written entries, owners that die, folders that others
 * can write. Whatever happens, what comes back is what was put in, or nothing. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "core/t.h"
#include "exec/disk.h"

static char folder[256];
static const char key[] = "the key of a program", data[] = "an executable\0with zeros";

/* In place of the C library's: a file system that has no locks says so with this error. */
static int no_locks;
int flock(int fd, int operation) {
  if (!no_locks) return (int)syscall(SYS_flock, fd, operation);
  errno = no_locks;
  return -1;
}

static disk *open_folder(int64_t limit) {
  disk *d = NULL;
  CHECK_OK(disk_open(folder, limit, false, &d));
  if (!d) exit(1);
  return d;
}

/* fn in a process of its own; gives how it ended (0: well, and all its checks held). */
static int in_child(void (*fn)(void)) {
  int status = -1;
  fflush(stdout);
  pid_t child = fork();
  if (!child) {
    fn();
    fflush(stdout);
    _exit(t_failed_checks ? 1 : 0);
  }
  CHECK(waitpid(child, &status, 0) == child);
  return status;
}

/* What was logged since say_begin. */
static int real_stderr;
static FILE *caught;
static void say_begin(void) {
  fflush(stderr);
  real_stderr = dup(2);
  caught = tmpfile();
  dup2(fileno(caught), 2);
}
static const char *say_end(int *lines) {
  static char text[4096];
  fflush(stderr);
  dup2(real_stderr, 2);
  close(real_stderr);
  rewind(caught);
  text[fread(text, 1, sizeof text - 1, caught)] = 0;
  fclose(caught);
  *lines = 0;
  for (const char *c = text; *c; c++) *lines += *c == '\n';
  return text;
}

/* Files whose name begins with this, and the size of one of them. */
static int files(const char *begin, int64_t *size) {
  DIR *dir = opendir(folder);
  int n = 0;
  for (struct dirent *e; dir && (e = readdir(dir));) {
    struct stat st;
    if (strncmp(e->d_name, begin, strlen(begin)) != 0 || e->d_name[0] == '.') continue;
    n++;
    if (size && !fstatat(dirfd(dir), e->d_name, &st, 0)) *size = (int64_t)st.st_size;
  }
  if (dir) closedir(dir);
  return n;
}

/* Makes all files of the folder two hours old. */
static void grow_old(void) {
  DIR *dir = opendir(folder);
  struct timespec old[2] = {{.tv_sec = time(NULL) - 7200}, {.tv_sec = time(NULL) - 7200}};
  for (struct dirent *e; dir && (e = readdir(dir));)
    if (e->d_name[0] != '.') CHECK(!utimensat(dirfd(dir), e->d_name, old, AT_SYMLINK_NOFOLLOW));
  if (dir) closedir(dir);
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
  seen s = {0};
  disk_each(d, true, count, &s); /* nor looking through the folder */
  CHECK(s.n == 1 && s.bad == 1);
  unlink(path);
  struct sockaddr_un at = {.sun_family = AF_UNIX};
  if (!CHECK(strlen(path) < sizeof at.sun_path)) return;
  memcpy(at.sun_path, path, strlen(path));
  int sock = socket(AF_UNIX, SOCK_STREAM, 0);
  CHECK(!bind(sock, (struct sockaddr *)&at, sizeof at));
  CHECK(!gives(d, key, data, sizeof data));
  close(sock);
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
  unlink(other);
}

/* Each refusal is one line that says what is wrong with which file. */
TEST(a_refusal_says_why) {
  static const char *const why[] = {"somebody else can write it (mode 0622)", "it is a symbolic link",
                                    "it is no plain file", "it is no plain file",
                                    "somebody else owns it (user 12345; you are 0)"};
  for (int i = 0; i < (geteuid() ? 4 : 5); i++) {
    char path[512], other[512];
    int lines;
    disk *d = open_folder(0);
    disk_prune(d, 0);
    CHECK(disk_put(d, key, sizeof key - 1, data, sizeof data));
    path_of(d, path);
    snprintf(other, sizeof other, "%s/elsewhere", folder);
    if (i == 0) CHECK(!chmod(path, 0622));
    else if (i == 4) CHECK(!chown(path, 12345, (gid_t)-1));
    else {
      CHECK(!rename(path, other));
      CHECK(!(i == 1 ? symlink(other, path) : i == 2 ? mkfifo(path, 0600) : mkdir(path, 0700)));
    }
    say_begin();
    for (int turn = 0; turn < 3; turn++) CHECK(!gives(d, key, data, sizeof data));
    const char *said = say_end(&lines);
    CHECK_INT(lines, 1);
    CHECK_HAS(said, why[i]);
    CHECK_HAS(said, strrchr(path, '/') + 1);
    CHECK(i == 3 ? !rmdir(path) : !unlink(path));
    unlink(other);
    disk_close(d);
  }
  disk *refused;
  if (geteuid()) return;
  CHECK(!chown(folder, 12345, (gid_t)-1));
  CHECK_ERR(disk_open(folder, 0, false, &refused), TPU_ERR_RUNTIME, "somebody else owns it (user 12345; you are 0)");
  CHECK(!chown(folder, 0, (gid_t)-1));
}

static void as_nobody(uid_t uid) { CHECK(geteuid() || !setuid(uid)); }

static void write_trusted(void) {
  disk *d;
  as_nobody(12345);
  if (!CHECK_OK(disk_open(folder, 0, true, &d))) return;
  CHECK(disk_put(d, key, sizeof key - 1, data, sizeof data));
  int lock = disk_lock(d, "left", 4);
  CHECK(lock >= 0);
  disk_close(d); /* dies with the lock's file in place */
}

static void read_trusted(void) {
  disk *d;
  as_nobody(12346);
  if (!CHECK_OK(disk_open(folder, 0, true, &d))) return;
  CHECK(gives(d, key, data, sizeof data));
  int lock = disk_lock(d, "left", 4);
  CHECK(lock >= 0);
  disk_unlock(d, "left", 4, lock);
  disk_close(d);
}

TEST(a_folder_that_a_team_trusts_serves_all_of_it) {
  if (geteuid()) SKIP("only root can act as two users");
  char kept[256], team[] = "/tmp/torch_tpu_team.XXXXXX", command[64];
  strcpy(kept, folder);
  if (!CHECK(mkdtemp(team) && !chmod(team, 0777))) return;
  strcpy(folder, team);
  CHECK_INT(in_child(write_trusted), 0);
  CHECK_INT(in_child(read_trusted), 0);
  strcpy(folder, kept);
  snprintf(command, sizeof command, "rm -r %s", team);
  CHECK_INT(system(command), 0);
}

static void use_read_only(void) {
  int lines;
  as_nobody(12345);
  say_begin();
  disk *d = open_folder(1000);
  CHECK(gives(d, key, data, sizeof data));
  CHECK(!disk_put(d, "another key", 11, data, sizeof data));
  CHECK(!disk_put(d, "a third key", 11, data, sizeof data));
  CHECK_INT(disk_lock(d, "another key", 11), -1); /* goes on without */
  disk_prune(d, 0);
  disk_drop(d, key, sizeof key - 1);
  CHECK(gives(d, key, data, sizeof data));
  disk_close(d);
  CHECK_HAS(say_end(&lines), "cannot write");
  CHECK_INT(lines, 1);
}

TEST(a_read_only_folder_is_read) {
  char kept[256], root[] = "/tmp/torch_tpu_ro.XXXXXX", command[64];
  strcpy(kept, folder);
  if (!CHECK(mkdtemp(root))) return;
  strcpy(folder, root);
  disk *d = open_folder(0);
  CHECK(disk_put(d, key, sizeof key - 1, data, sizeof data));
  char path[512];
  path_of(d, path);
  disk_close(d);
  if (!geteuid()) CHECK(!chown(path, 12345, 12345) && !chown(folder, 12345, 12345));
  CHECK(!chmod(folder, 0500));
  CHECK_INT(in_child(use_read_only), 0);
  CHECK(!chmod(folder, 0700));
  strcpy(folder, kept);
  snprintf(command, sizeof command, "rm -r %s", root);
  CHECK_INT(system(command), 0);
}

static void fill_a_small_disk(void) {
  static char big[100000];
  int lines, put = 0;
  /* valgrind wants a type and data even where the kernel reads none */
  if (unshare(CLONE_NEWNS) || mount("none", "/", "none", MS_REC | MS_PRIVATE, "") ||
      mount("tmpfs", folder, "tmpfs", 0, "size=256k,mode=0700"))
    _exit(77);
  say_begin();
  disk *d = open_folder(1 << 20);
  for (char k[2] = "a"; *k < 'k'; ++*k) {
    put += disk_put(d, k, 1, big, sizeof big);
    CHECK(gives(d, "a", big, sizeof big));
  }
  CHECK_INT(put, 2); /* and then there is no space left */
  CHECK_INT(files("tmp.", NULL), 0);
  seen s = {0};
  disk_each(d, true, count, &s);
  CHECK(s.n == 2 && !s.bad);
  disk_close(d);
  CHECK_HAS(say_end(&lines), "No space left on device");
  CHECK_INT(lines, 1);
}

TEST(a_full_disk_costs_one_line) {
  char kept[256], mine[] = "/tmp/torch_tpu_full.XXXXXX";
  strcpy(kept, folder);
  if (!CHECK(mkdtemp(mine))) return;
  strcpy(folder, mine);
  int status = in_child(fill_a_small_disk);
  strcpy(folder, kept);
  rmdir(mine);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) SKIP("no file system can be mounted here");
  CHECK_INT(status, 0);
}

TEST(where_locks_fail_it_goes_on_without) {
  disk *d = open_folder(0);
  static const int errors[] = {ENOLCK, ENOSYS, EOPNOTSUPP, EINVAL};
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
    no_locks = errors[i];
    int lock = disk_lock(d, key, sizeof key - 1);
    CHECK_INT(lock, -1);
    CHECK(disk_put(d, key, sizeof key - 1, data, sizeof data));
    CHECK(gives(d, key, data, sizeof data));
    disk_unlock(d, key, sizeof key - 1, lock);
  }
  grow_old();
  disk_prune(d, 0); /* a lock's file stays where nobody can tell whether it is held */
  CHECK_INT(files("", NULL), 1);
  no_locks = 0;
  disk_prune(d, 0);
  CHECK_INT(files("", NULL), 0);
  disk_close(d);
}

TEST(a_lock_that_is_no_file_of_ours_is_no_lock) {
  disk *d = open_folder(0);
  char path[512], hex[33];
  hash128_hex(hash128_of(key, sizeof key - 1), hex);
  snprintf(path, sizeof path, "%s/%s.lock", folder, hex);
  CHECK(!symlink("/tmp/torch_tpu_no_such_file", path));
  CHECK_INT(disk_lock(d, key, sizeof key - 1), -1);
  unlink(path);
  CHECK(!mkdir(path, 0700));
  CHECK_INT(disk_lock(d, key, sizeof key - 1), -1);
  rmdir(path);
  CHECK(!mkfifo(path, 0600)); /* does not wait */
  int lock = disk_lock(d, key, sizeof key - 1);
  disk_unlock(d, key, sizeof key - 1, lock);
  unlink(path);
  disk_close(d);
}

TEST(an_entry_larger_than_the_limit_is_not_kept) {
  static char big[6000];
  disk *d = open_folder(5000);
  disk_prune(d, 0);
  CHECK(disk_put(d, key, sizeof key - 1, data, sizeof data));
  CHECK(!disk_put(d, "another key", 11, big, sizeof big));
  CHECK(gives(d, key, data, sizeof data)); /* nor does it push out the others */
  disk_close(d);
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

/* Each of several writers sees the others' entries before they are far above the limit together. */
TEST(several_writers_keep_one_limit) {
  enum { LIMIT = 64000, WRITERS = 4 };
  disk *d[WRITERS];
  char k[32], body[500] = {0};
  for (int i = 0; i < WRITERS; i++) d[i] = open_folder(LIMIT);
  disk_prune(d[0], 0);
  for (int i = 0; i < 600; i++) {
    snprintf(k, sizeof k, "key %d", i);
    CHECK(disk_put(d[i % WRITERS], k, strlen(k), body, sizeof body));
    seen s = {0};
    disk_each(d[0], false, count, &s);
    if (!CHECK(s.bytes <= LIMIT + WRITERS * LIMIT / 16 + WRITERS * 600)) break;
  }
  for (int i = 0; i < WRITERS; i++) disk_close(d[i]);
}

static void write_as_a_host(int host) {
  char k[32], body[3000];
  pid_t inner;
  int status = -1;
  if (unshare(CLONE_NEWPID)) _exit(77);
  if (!(inner = fork())) { /* process number 1 */
    CHECK_INT(getpid(), 1);
    for (int i = 0; i < 600; i++) {
      disk *d = open_folder(0); /* as if each were the first that it writes */
      snprintf(k, sizeof k, "key %d of %d", i, host);
      memset(body, i, sizeof body);
      CHECK(disk_put(d, k, strlen(k), body, sizeof body));
      CHECK(gives(d, k, body, sizeof body));
      disk_drop(d, k, strlen(k));
      disk_close(d);
    }
    fflush(stdout);
    _exit(t_failed_checks ? 1 : 0);
  }
  CHECK(waitpid(inner, &status, 0) == inner && status == 0);
}

/* As containers on several hosts do, in which each rank has the same process number. */
TEST(processes_of_one_number_share_a_folder) {
  char kept[256], mine[] = "/tmp/torch_tpu_host.XXXXXX";
  pid_t child[2];
  bool skip = false;
  strcpy(kept, folder);
  if (!CHECK(mkdtemp(mine))) return;
  strcpy(folder, mine);
  fflush(stdout);
  for (int i = 0; i < 2; i++)
    if (!(child[i] = fork())) {
      write_as_a_host(i);
      fflush(stdout);
      _exit(t_failed_checks ? 1 : 0);
    }
  for (int i = 0, status; i < 2; i++) {
    CHECK(waitpid(child[i], &status, 0) == child[i]);
    skip |= WIFEXITED(status) && WEXITSTATUS(status) == 77;
    CHECK(skip || status == 0);
  }
  CHECK_INT(files("", NULL), 0);
  strcpy(folder, kept);
  rmdir(mine);
  if (skip) SKIP("no process numbers of one's own can be had here");
}

static void prune_only(void) {
  disk *d = open_folder(0);
  for (int i = 0; i < 300; i++) disk_prune(d, i % 3 * 1000);
  disk_close(d);
}

static void write_only(void) {
  disk *d = open_folder(0);
  char k[32], body[300];
  for (int i = 0; i < 600; i++) {
    snprintf(k, sizeof k, "key %d", i % 20);
    memset(body, i % 20, sizeof body);
    CHECK(disk_put(d, k, strlen(k), body, sizeof body));
    gives(d, k, body, sizeof body);
  }
  disk_close(d);
}

TEST(two_processes_prune_at_once) {
  void (*const work[])(void) = {prune_only, prune_only, write_only};
  pid_t child[3];
  int lines;
  say_begin();
  for (int i = 0; i < 3; i++)
    if (!(child[i] = fork())) {
      work[i]();
      _exit(t_failed_checks ? 1 : 0);
    }
  for (int i = 0, status; i < 3; i++) CHECK(waitpid(child[i], &status, 0) == child[i] && status == 0);
  say_end(&lines);
  CHECK_INT(lines, 0); /* what the other one removed is no fault */
  disk *d = open_folder(0);
  seen s = {0};
  disk_each(d, true, count, &s);
  CHECK_INT(s.bad, 0);
  disk_prune(d, 0);
  CHECK_INT(files("", NULL), 0);
  disk_close(d);
}

static rlim_t cut_at;
static void write_and_die(void) {
  static char body[5000];
  CHECK(!setrlimit(RLIMIT_FSIZE, &(struct rlimit){cut_at, cut_at}) && !setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0}));
  signal(SIGXFSZ, SIG_DFL);
  disk *d = open_folder(0);
  disk_put(d, key, sizeof key - 1, body, sizeof body);
}

/* The system ends a process that writes past its limit: so a writer dies at exactly this byte. */
TEST(a_writer_that_dies_at_any_byte_leaves_no_half_entry) {
  static const rlim_t at[] = {1, 7, 39, 40, 41, 63, 64, 1000, 4999, 5060};
  disk *d = open_folder(0);
  disk_prune(d, 0);
  for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
    cut_at = at[i];
    int status = in_child(write_and_die);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGXFSZ);
    int64_t size = -1;
    CHECK(files("tmp.", &size) == (int)i + 1);
    CHECK(!gives(d, key, "", 0));
    seen s = {0};
    disk_each(d, true, count, &s);
    CHECK_INT(s.n, 0);
  }
  disk_prune(d, 1 << 20);
  CHECK_INT(files("tmp.", NULL), sizeof at / sizeof *at); /* somebody may be at it */
  grow_old();
  disk_prune(d, 1 << 20);
  CHECK_INT(files("tmp.", NULL), 0);
  disk_close(d);
}

static void write_for_ever(void) {
  static char big[8 << 20];
  disk *d = open_folder(0);
  for (;;) disk_put(d, key, sizeof key - 1, big, sizeof big);
}

TEST(a_writer_that_is_killed_leaves_no_half_entry) {
  static char big[8 << 20];
  disk *d = open_folder(0);
  disk_prune(d, 0);
  int half = 0;
  for (int turn = 0; turn < 400 && half < 5; turn++) {
    pid_t child = fork();
    if (!child) write_for_ever();
    int64_t size = 0;
    nanosleep(&(struct timespec){0, turn * 100000}, NULL);
    while (size <= 0 && files("tmp.", &size) < 100) continue; /* until it is in the middle of one */
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    size = 0;
    files("tmp.", &size);
    half += size > 0 && size < (int64_t)sizeof big;
    gives(d, key, big, sizeof big); /* whole or none: gives() checks */
    grow_old();
    disk_prune(d, 1 << 30);
    CHECK_INT(files("tmp.", NULL), 0);
  }
  CHECK(half > 0);
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
  CHECK_INT(files("", NULL), 0);
  mine = disk_lock(d, key, sizeof key - 1);
  grow_old();
  disk_prune(d, 0);
  CHECK_INT(files("", NULL), 1); /* old, but held */
  close(mine);                   /* as if its holder died */
  disk_prune(d, 0);
  CHECK_INT(files("", NULL), 0);
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
