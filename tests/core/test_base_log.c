#include "base/log.h"

#include <unistd.h>

#include "base/env.h"
#include "t.h"

static char got[4096];

/* What the lines of all levels leave on stderr when TORCH_TPU_LOG is `level`. */
static const char *written(const char *level) {
  setenv("TORCH_TPU_LOG", level, 1);
  env_reset();
  FILE *f = tmpfile();
  int keep = dup(2);
  fflush(stderr);
  dup2(fileno(f), 2);
  log_line(LOG_ERROR, "e%d", 1);
  log_line(LOG_WARN, "w%d", 2);
  log_line(LOG_INFO, "i");
  log_line(LOG_DEBUG, "d");
  fflush(stderr);
  dup2(keep, 2);
  close(keep);
  rewind(f);
  got[fread(got, 1, sizeof got - 1, f)] = 0;
  fclose(f);
  return got;
}

TEST(levels) {
  CHECK_STR(written("off"), "");
  CHECK_STR(written("error"), "torch_tpu: error: e1\n");
  CHECK_STR(written("warn"), "torch_tpu: error: e1\ntorch_tpu: warning: w2\n");
  CHECK(!log_on(LOG_INFO) && log_on(LOG_WARN));
  CHECK_STR(written("debug"),
            "torch_tpu: error: e1\ntorch_tpu: warning: w2\ntorch_tpu: info: i\ntorch_tpu: debug: d\n");
}

T_MAIN()
