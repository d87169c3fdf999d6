#include <unistd.h>

#include "pjrt/door.h"
#include "pjrt_t.h"

static char folder[64];

static const char *file(const char *name, const char *content) {
  static char path[128];
  if (!*folder) {
    strcpy(folder, "/tmp/test_pjrt_load_XXXXXX");
    CHECK(mkdtemp(folder));
  }
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *f = content ? fopen(path, "wb") : NULL;
  if (f) {
    fputs(content, f);
    fclose(f);
  }
  return path;
}

/* The error names the path, says what is wrong, and what to do. */
static void refused(const char *path, const char *part) {
  pjrt_api *api = NULL;
  tpu_err *e = pjrt_load(path, &api);
  if (CHECK(e)) {
    CHECK_HAS(tpu_err_message(e), path);
    CHECK_HAS(tpu_err_message(e), part);
    CHECK_INT(tpu_err_get_kind(e), TPU_ERR_RUNTIME);
  }
  tpu_err_free(e);
  CHECK(!api);
}

TEST(files_that_are_no_plugin) {
  refused(file("none.so", NULL), "No such file or directory; set TORCH_TPU_PJRT_PLUGIN");
  refused(file("text.so", "int main(void);\n"), "is not a shared library");
  refused(file("empty.so", ""), "is not a shared library");
  refused(file("short.so", "\177ELF and no more"), "cannot be loaded: ");
  refused(folder, "is not a file");
  pjrt_api *api;
  CHECK_ERR(pjrt_load("", &api), TPU_ERR_RUNTIME, "no path");
  CHECK_ERR(pjrt_load(NULL, &api), TPU_ERR_RUNTIME, "no path");
  unlink(file("text.so", NULL));
  unlink(file("empty.so", NULL));
  unlink(file("short.so", NULL));
  rmdir(folder);
}

TEST(a_library_that_is_no_plugin) {
  char line[1024], *path = NULL; /* the C library itself */
  FILE *maps = fopen("/proc/self/maps", "r");
  if (!maps) SKIP("there is no /proc");
  while (!path && fgets(line, sizeof line, maps))
    if (strstr(line, "/libc.so") || strstr(line, "/libc-")) path = strchr(line, '/');
  fclose(maps);
  if (!path) SKIP("the C library is not a shared library");
  path[strcspn(path, "\n")] = 0;
  refused(path, "no function GetPjrtApi");
}

TEST(tables_that_cannot_be_used) {
  if (!CHECK(t_open_fake())) return;
  fake.table("null");
  refused(t_arg(1), "gave NULL");
  fake.table("tiny");
  refused(t_arg(1), "has 8 bytes, expected at least 40");
  fake.table("short");
  refused(t_arg(1), "(ABI 0.110, 50 functions) has no PJRT_LoadedExecutable_Destroy, which is needed");
  fake.table("major");
  refused(t_arg(1), "has ABI version 7.1, expected 0.106 to 0.117");
  fake.table("missing:0");
  refused(t_arg(1), "has no PJRT_Error_Destroy");
  fake.table("stub:3");
  pjrt_api *api;
  CHECK_ERR(pjrt_load(t_arg(1), &api), TPU_ERR_NOT_IMPLEMENTED,
            "cannot be initialized: PJRT_Plugin_Initialize: fake: this call is not implemented");
  CHECK(!api);
  CHECK_INT(mem_live(), 0);
}

/* Every slot that we need is asked for; every other may be missing. */
TEST(missing_slots) {
  if (!CHECK(t_open_fake())) return;
  static const struct {
    int slot, need;
    const char *name;
  } rows[] = {
#define X(slot, name, last, need) {slot, need, #name},
      PJRT_CALLS(X)
#undef X
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    if (!rows[i].need) continue;
    char kind[32];
    snprintf(kind, sizeof kind, "missing:%d", rows[i].slot);
    fake.table(kind);
    refused(t_arg(1), rows[i].name);
  }
  CHECK_INT(mem_live(), 0);
}

TEST(every_allocation_and_call_may_fail) {
  pjrt_api *api = NULL;
  if (!CHECK(t_open_fake())) return;
  fake.fail_call(1); /* Initialize */
  CHECK_ERR(pjrt_load(t_arg(1), &api), TPU_ERR_RUNTIME, "PJRT_Plugin_Initialize failed because");
  fake.fail_call(0);
  pjrt_fault_at(1);
  CHECK_ERR(pjrt_load(t_arg(1), &api), TPU_ERR_RUNTIME, "PJRT_Plugin_Initialize: failed because");
  pjrt_fault_at(0);
  mem_fault_at(1, false);
  CHECK_ERR(pjrt_load(t_arg(1), &api), TPU_ERR_OOM, "out of host memory");
  mem_fault_at(0, false);
  CHECK_INT(mem_live(), 0);
  CHECK_INT(fake.live("all"), 0);
}

TEST(a_plugin_that_does_not_say_its_stablehlo_version) {
  if (!CHECK(t_open_fake())) return;
  fake.table("missing:4");
  char path[4096]; /* another name of the same file is another plugin to us */
  snprintf(path, sizeof path, "%s/./%s", strrchr(t_arg(1), '/') ? "" : ".", t_arg(1));
  pjrt_api *api = NULL;
  if (CHECK_OK(pjrt_load(path, &api))) CHECK_STR(pjrt_stablehlo_version(api), "");
}

TEST(a_good_plugin_is_loaded_once) {
  pjrt_api *api = NULL, *again = NULL;
  if (!CHECK(t_open_fake())) return;
  unsetenv("TF_CPP_MIN_LOG_LEVEL");
  int64_t before = mem_live();
  CHECK_OK(pjrt_load(t_arg(1), &api));
  CHECK_OK(pjrt_load(t_arg(1), &again));
  if (!CHECK(api && api == again)) return;
  CHECK_INT(mem_live(), before + 1);
  CHECK_STR(pjrt_stablehlo_version(api), "1.2.3");
  int major = -1, minor = -1;
  pjrt_api_version(api, &major, &minor);
  CHECK_INT(major, 0);
  CHECK_INT(minor, 110);
  CHECK_STR(getenv("TF_CPP_MIN_LOG_LEVEL"), "3");
  CHECK_INT(fake.live("error"), 0);
}

T_MAIN()
