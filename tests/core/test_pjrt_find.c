#include "pjrt/find.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/env.h"
#include "base/mem.h"
#include "pjrt/pjrt.h"
#include "t.h"

static char root[64];

static char *at(const char *name) {
  static char paths[8][256];
  static int next;
  char *p = paths[next++ % 8];
  snprintf(p, sizeof paths[0], "%s/%s", root, name);
  return p;
}

static void folder(const char *name) { CHECK(mkdir(at(name), 0700) == 0 || errno == EEXIST); }

static void write_file(const char *name, const char *text) {
  FILE *f = fopen(at(name), "w");
  if (!CHECK(f)) return;
  fputs(text, f);
  fclose(f);
}

static void device(const char *sys, const char *name, const char *vendor, const char *id) {
  char path[128];
  const char *parts[] = {"", "/bus", "/bus/pci", "/bus/pci/devices"};
  for (int i = 0; i < 4; i++) {
    snprintf(path, sizeof path, "%s%s", sys, parts[i]);
    folder(path);
  }
  snprintf(path, sizeof path, "%s/bus/pci/devices/%s", sys, name);
  folder(path);
  snprintf(path, sizeof path, "%s/bus/pci/devices/%s/vendor", sys, name);
  write_file(path, vendor);
  snprintf(path, sizeof path, "%s/bus/pci/devices/%s/device", sys, name);
  write_file(path, id);
}

static void flags(const char *plugin, const char *libtpu) {
  plugin ? setenv("TORCH_TPU_PJRT_PLUGIN", plugin, 1) : unsetenv("TORCH_TPU_PJRT_PLUGIN");
  libtpu ? setenv("TPU_LIBRARY_PATH", libtpu, 1) : unsetenv("TPU_LIBRARY_PATH");
  env_reset();
}

static void found(const char *sys, const char *candidates, const char *want_path, const char *want_why) {
  const char *path = NULL, *why = NULL;
  pjrt_find_in(sys, candidates, &path, &why);
  CHECK_STR(path, want_path);
  CHECK_HAS(why, want_why);
}

TEST(set_up) {
  strcpy(root, "/tmp/test_pjrt_find_XXXXXX");
  if (!CHECK(mkdtemp(root))) exit(1);
  device("none", "0000:00:04.0", "0x1ae0\n", "0x0042\n"); /* Google's network card */
  device("none", "0000:00:05.0", "0x8086\n", "0x0063\n");
  device("v5e", "0000:00:04.0", "0x8086\n", "0x1237\n");
  device("v5e", "0000:00:05.0", "0x1ae0\n", "0x0063\n");
  folder("libtpu");
  write_file("libtpu/libtpu.so", "x");
  write_file("cpu.so", "x");
  write_file("other.so", "x");
}

TEST(the_pci_bus) {
  CHECK(!pjrt_tpu_attached(at("none")));
  CHECK(pjrt_tpu_attached(at("v5e")));
  CHECK(!pjrt_tpu_attached(at("missing")));
  static const char *const ids[] = {"0x0027\n", "0x005e\n", "0x0062\n", "0x0063\n", "0x006f\n", "0x0076\n"};
  for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
    device("each", "0000:00:01.0", "0x1ae0\n", ids[i]);
    CHECK(pjrt_tpu_attached(at("each")));
  }
  device("each", "0000:00:01.0", "0x1ae0\n", "\n");
  CHECK(!pjrt_tpu_attached(at("each")));
  device("each", "0000:00:01.0", "", "0x0063");
  CHECK(!pjrt_tpu_attached(at("each")));
}

TEST(an_explicit_path_is_obeyed_or_refused) {
  char list[600];
  snprintf(list, sizeof list, "%s:%s", at("cpu.so"), at("libtpu/libtpu.so"));
  flags(at("other.so"), at("cpu.so"));
  found(at("v5e"), list, at("other.so"), "TORCH_TPU_PJRT_PLUGIN names ");
  flags(at("gone.so"), at("cpu.so"));
  found(at("v5e"), list, "", "gone.so, which cannot be used (No such file or directory); set it");
  flags(root, NULL);
  found(at("none"), list, "", "(it is not a file)");
  flags(NULL, at("other.so"));
  found(at("none"), list, at("other.so"), "TPU_LIBRARY_PATH names ");
  flags(NULL, at("gone.so"));
  found(at("none"), list, "", "TPU_LIBRARY_PATH names ");
}

TEST(with_a_tpu) {
  char list[600];
  flags(NULL, NULL);
  snprintf(list, sizeof list, "%s:%s", at("cpu.so"), at("libtpu/libtpu.so"));
  found(at("v5e"), list, at("libtpu/libtpu.so"), "a TPU is on the PCI bus");
  found(at("v5e"), at("cpu.so"), "", "libtpu.so was not found (looked for: no place was given); install");
  snprintf(list, sizeof list, "%s:%s", at("cpu.so"), at("gone/libtpu.so"));
  found(at("v5e"), list, "", "gone/libtpu.so); install the package libtpu");
}

TEST(without_a_tpu) {
  char list[900];
  flags(NULL, NULL);
  snprintf(list, sizeof list, ":%s:%s::%s:%s", at("libtpu/libtpu.so"), at("gone.so"), at("cpu.so"), at("other.so"));
  found(at("none"), list, at("cpu.so"), "no TPU is on the PCI bus, so the XLA CPU plugin");
  snprintf(list, sizeof list, "%s:%s", at("gone.so"), at("gone2.so"));
  found(at("none"), list, "", "gone2.so; install one (for example: pip install");
  found(at("none"), "", "", "an XLA CPU plugin is installed; install one");
  found(at("none"), NULL, "", "an XLA CPU plugin is installed; install one");
}

TEST(asking_again_costs_no_memory) {
  const char *path, *why, *path2, *why2;
  flags(NULL, NULL);
  pjrt_find_in(at("none"), at("cpu.so"), &path, &why);
  int64_t before = mem_live();
  pjrt_find_in(at("none"), at("cpu.so"), &path2, &why2);
  CHECK(path == path2 && why == why2);
  CHECK_INT(mem_live(), before);
  pjrt_find("", &path, &why); /* this machine's own bus */
  CHECK_STR(path, "");
}

TEST(every_allocation_may_fail) {
  char list[600];
  snprintf(list, sizeof list, "%s:%s", at("gone3.so"), at("gone4.so"));
  for (int64_t nth = 1;; nth++) {
    const char *path = NULL, *why = NULL;
    mem_fault_at(nth, false);
    pjrt_find_in(at("none"), list, &path, &why);
    bool fired = mem_fault_count() >= nth;
    mem_fault_at(0, false);
    CHECK_STR(path, "");
    CHECK_HAS(why, fired ? "out of host memory" : "gone4.so");
    if (!fired) break;
  }
}

TEST(clean_up) {
  char command[128];
  snprintf(command, sizeof command, "rm -r '%s'", root);
  CHECK(system(command) == 0);
}

T_MAIN()
