#include "base/env.h"

#include "base/mem.h"
#include "t.h"

static void set(const char *name, const char *text) {
  if (text) setenv(name, text, 1);
  else unsetenv(name);
  env_reset();
}

TEST(defaults) {
  const char *name, *kind, *def, *help;
  for (int i = 0; tpu_env_describe(i, &name, &kind, &def, &help); i++) unsetenv(name);
  env_reset();
  CHECK_OK(env_check());
  CHECK_STR(env_str(ENV_PJRT_PLUGIN), "");
  CHECK_INT(env_int(ENV_CPU_DEVICES), 1);
  CHECK_INT(env_int(ENV_LAUNCH_BLOCKING), 0);
  CHECK_INT(env_choice(ENV_FALLBACK), 0);
  CHECK_STR(env_str(ENV_FALLBACK), "warn");
  CHECK_INT(env_choice(ENV_LOG), 2);
}

TEST(values_are_parsed_once) {
  set("TORCH_TPU_CPU_DEVICES", "8");
  set("TORCH_TPU_PJRT_PLUGIN", "/some/where.so");
  set("TORCH_TPU_FALLBACK", "error");
  set("TORCH_TPU_LAUNCH_BLOCKING", "true");
  CHECK_OK(env_check());
  setenv("TORCH_TPU_CPU_DEVICES", "9", 1);
  CHECK_INT(env_int(ENV_CPU_DEVICES), 8);
  CHECK_STR(env_str(ENV_PJRT_PLUGIN), "/some/where.so");
  CHECK_INT(env_choice(ENV_FALLBACK), 2);
  CHECK_INT(env_int(ENV_LAUNCH_BLOCKING), 1);
  set("TORCH_TPU_PJRT_PLUGIN", NULL);
  set("TORCH_TPU_LAUNCH_BLOCKING", NULL);
  set("TORCH_TPU_FALLBACK", "");
  set("TORCH_TPU_CPU_DEVICES", "");
  CHECK_OK(env_check()); /* empty is unset */
  CHECK_INT(env_int(ENV_CPU_DEVICES), 1);
}

static void refused(const char *name, const char *text, const char *part) {
  set(name, text);
  tpu_err *e = env_check();
  if (CHECK(e)) {
    CHECK_INT(tpu_err_get_kind(e), TPU_ERR_VALUE);
    CHECK_HAS(tpu_err_message(e), name);
    CHECK_HAS(tpu_err_message(e), part);
  }
  tpu_err_free(e);
  set(name, NULL);
  CHECK_OK(env_check());
}

TEST(what_does_not_parse_is_an_error) {
  refused("TORCH_TPU_CPU_DEVICES", "many", "an integer from 1 to 256, but it is \"many\"");
  refused("TORCH_TPU_CPU_DEVICES", "0", "\"0\"");
  refused("TORCH_TPU_CPU_DEVICES", "257", "\"257\"");
  refused("TORCH_TPU_CPU_DEVICES", "4x", "\"4x\"");
  refused("TORCH_TPU_CPU_DEVICES", "99999999999999999999", "an integer");
  refused("TORCH_TPU_LAUNCH_BLOCKING", "maybe", "0 or 1");
  refused("TORCH_TPU_FALLBACK", "warns", "one of warn|silent|error");
  refused("TORCH_TPU_FALLBACK", "war", "one of");
  char *text = calloc(1, 6000);
  memset(text, 'p', 5999);
  refused("TORCH_TPU_PJRT_PLUGIN", text, "longer than");
  free(text);
}

TEST(a_bad_value_gives_the_default) {
  set("TORCH_TPU_KEY_CACHE", "3");
  CHECK_INT(env_int(ENV_KEY_CACHE), 65536);
  set("TORCH_TPU_KEY_CACHE", NULL);
}

TEST(describe_names_every_flag) {
  const char *name, *kind, *def, *help;
  int n = 0;
  while (tpu_env_describe(n, &name, &kind, &def, &help)) {
    CHECK(*name && *kind && def && *help);
    n++;
  }
  CHECK_INT(n, ENV_COUNT);
  CHECK(!tpu_env_describe(-1, &name, &kind, &def, &help));
  CHECK_INT(mem_live(), 0);
}

T_MAIN()
