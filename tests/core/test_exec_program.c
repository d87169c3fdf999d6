/* Programs: one a text, whatever their hashes; and what a folder may hold under a program's name. On the fake plugin.
 */
#include <dirent.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/env.h"
#include "base/hash.h"
#include "base/mem.h"
#include "core/exec_t.h"
#include "exec/disk.h"
#include "exec/exec.h"
#include "fake/fake.h"

static fake_control fake;
static char folder[] = "/tmp/torch_tpu_program.XXXXXX";

static void use(const char *dir, const char *check) {
  setenv("TORCH_TPU_CACHE_DIR", dir ? dir : "", 1);
  setenv("TORCH_TPU_CACHE_SIZE", dir ? "1000000" : "0", 1);
  setenv("TORCH_TPU_CHECK_PROGRAMS", check, 1);
  env_reset();
  ex_forget();
}

TEST(start) {
  if (!CHECK(fake_open(t_arg(1), &fake) && mkdtemp(folder))) exit(1);
  setenv("TORCH_TPU_PJRT_PLUGIN", t_arg(1), 1);
  use(NULL, "0");
  if (!CHECK_OK(tpu_init())) exit(1);
}

/* x + x of n elements */
static void text_of(int n, buf *text) {
  const int64_t dims[] = {n};
  ir_graph *g = ir_new();
  val x = ir_param(g, TPU_F32, 1, dims);
  ir_output(g, ir_binary(g, IR_ADD, x, x), -1);
  buf_init(text);
  CHECK_OK(ir_print(g, text));
  ir_free(g);
}

static program *get(int n) {
  buf text;
  program *p = NULL;
  text_of(n, &text);
  CHECK_OK(program_of_text(&text, "test", &p));
  buf_free(&text);
  return p;
}

static program *known(int n) {
  buf text;
  text_of(n, &text);
  program *p = program_known(&text);
  buf_free(&text);
  return p;
}

TEST(equal_text_is_one_program) {
  for (int check = 0; check < 2; check++) {
    use(NULL, check ? "1" : "0");
    int64_t before = xt_compiles();
    program *a = get(3), *b = get(3), *c = get(4), *k = known(3);
    CHECK(a && a == b && a == k && a != c);
    CHECK_INT(xt_compiles() - before, 2);
    CHECK(!known(5));
    program_release(a), program_release(b), program_release(c), program_release(k);
  }
  use(NULL, "0");
}

/* No two texts with one 128-bit hash are known, so the test takes the hash away. */
TEST(texts_are_compared_where_hashes_are_not_trusted) {
  program_hash_mask = 0;
  use(NULL, "1");
  int64_t before = xt_compiles(), live = mem_live();
  program *a = get(3), *b = get(4), *again = get(3), *k = known(4);
  CHECK(a && b && a != b && a == again && k == b);
  CHECK(!known(5));
  CHECK_INT(xt_compiles() - before, 2);
  program_release(a), program_release(b), program_release(again), program_release(k);
  use(NULL, "0");
  CHECK_INT(mem_live(), live);
#ifdef NDEBUG /* debug builds compare always; here it shows that the test would see it */
  a = get(3), b = get(4);
  CHECK(a == b);
  program_release(a), program_release(b);
#endif
  program_hash_mask = UINT64_MAX;
  use(NULL, "0");
}

TEST(memory_that_runs_out_where_texts_are_kept) {
  use(NULL, "1");
  buf text;
  text_of(3, &text);
  int64_t live = mem_live(), nth = 1;
  for (;; nth++) {
    program *p = NULL;
    mem_fault_at(nth, false);
    tpu_err *e = program_of_text(&text, "test", &p);
    bool fired = mem_fault_count() >= nth;
    mem_fault_at(0, false);
    if (!e) program_release(p);
    CHECK(!e || tpu_err_get_kind(e) == TPU_ERR_OOM);
    tpu_err_free(e);
    ex_forget();
    CHECK_INT(fake.live("exec"), 0);
    if (!fired) break;
  }
  CHECK(nth > 3);
  CHECK(mem_live() <= live);
  buf_free(&text);
  use(NULL, "0");
}

/* ---- entries of the folder ------------------------------------------------------------------------------------- */

/* The key of the folder's one entry; gives its length. */
static size_t key_of_entry(char out[4096]) {
  DIR *dir = opendir(folder);
  uint64_t lens[2] = {0, 0};
  int n = 0;
  for (struct dirent *e; dir && (e = readdir(dir));) {
    if (!strstr(e->d_name, ".tpux")) continue;
    int fd = openat(dirfd(dir), e->d_name, O_RDONLY);
    CHECK(pread(fd, lens, 16, 16) == 16 && lens[0] < 4096);
    CHECK(pread(fd, out, (size_t)lens[0], 48) == (ssize_t)lens[0]);
    close(fd);
    n++;
  }
  if (dir) closedir(dir);
  CHECK_INT(n, 1);
  return (size_t)lens[0];
}

static int64_t compiles_of_one(void) {
  int64_t before = xt_compiles();
  program_release(get(3));
  ex_forget();
  return xt_compiles() - before;
}

static void put_entry(const char *key, size_t len, const char *data, size_t n) {
  disk *d;
  if (!CHECK_OK(disk_open(folder, 0, false, &d))) return;
  CHECK(disk_put(d, key, len, data, n));
  disk_close(d);
}

/* The key is this text, all of it, and before it what else its executable depends on: nothing of torch or of ourselves.
 * So whatever torch, or version of this library, asks for a program: equal keys are equal programs. */
TEST(the_key_holds_the_whole_text_and_no_version_of_ours) {
  char key[4096] = {0};
  buf text;
  use(folder, "0");
  CHECK_INT(compiles_of_one(), 1);
  CHECK_INT(compiles_of_one(), 0);
  size_t n = key_of_entry(key);
  text_of(3, &text);
  if (!CHECK(n > text.len && !memcmp(key + n - text.len, text.data, text.len))) return;
  key[n - text.len] = 0;
  static const char *const lines[] = {
      "torch_tpu program 1\n", "platform ", "version ", "pjrt ", "plugin ", "devices ", "options "};
  const char *at = key;
  for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
    CHECK(!strncmp(at, lines[i], strlen(lines[i])));
    at = strchr(at, '\n') + 1;
  }
  CHECK_STR(at, "");
  buf_free(&text);
}

TEST(an_executable_that_the_plugin_does_not_take_is_made_again) {
  char key[4096];
  static const char *const data[] = {"", "rubbish", "an executable of another plugin, with a right checksum"};
  use(folder, "0");
  CHECK_INT(compiles_of_one(), 0);
  size_t n = key_of_entry(key);
  for (size_t i = 0; i < sizeof data / sizeof *data; i++) {
    put_entry(key, n, data[i], strlen(data[i]));
    CHECK_INT(compiles_of_one(), 1);
    CHECK_INT(compiles_of_one(), 0);
  }
}

/* Another plugin version, kind of device, number of devices, or set of flags is another key, even if somebody renames
 * the file. */
TEST(an_entry_of_another_world_is_not_taken) {
  char key[4096], other[4096];
  use(folder, "0");
  size_t n = key_of_entry(key);
  setenv("XLA_FLAGS", "--xla_something=true", 1);
  use(folder, "0");
  CHECK_INT(compiles_of_one(), 1); /* its own, beside the first */
  unsetenv("XLA_FLAGS");
  use(folder, "0");
  CHECK_INT(compiles_of_one(), 0);
  static const char *const lines[] = {"platform ", "version ", "pjrt ", "plugin ", "devices ", "options "};
  char command[64], own[64], names[2][160];
  for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
    snprintf(command, sizeof command, "rm -f %s/*", folder);
    CHECK_INT(system(command), 0);
    memcpy(other, key, n);
    other[n - 1] = 0; /* for strstr */
    char *at = strstr(other, lines[i]);
    if (!CHECK(at)) continue;
    at[strlen(lines[i])] ^= 1;
    other[n - 1] = key[n - 1];
    put_entry(other, n, "of another world", 16);
    CHECK_INT(compiles_of_one(), 1); /* it is not found */
    hash128_hex(hash128_of(other, n), own);
    snprintf(names[0], sizeof names[0], "%s/%s.tpux", folder, own);
    hash128_hex(hash128_of(key, n), own);
    snprintf(names[1], sizeof names[1], "%s/%s.tpux", folder, own);
    CHECK(!rename(names[0], names[1]));
    CHECK_INT(compiles_of_one(), 1); /* nor under the name of ours */
    CHECK_INT(compiles_of_one(), 0);
  }
}

TEST(clean_up) {
  char command[64];
  use(NULL, "0");
  snprintf(command, sizeof command, "rm -r %s", folder);
  CHECK_INT(system(command), 0);
}

T_MAIN()
