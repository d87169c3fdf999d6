#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/env.h"

int log_on(log_level level) { return env_choice(ENV_LOG) >= (int)level; }

/* One write a line, so that lines of several threads do not mix. Longer lines are cut. */
void log_line(log_level level, const char *fmt, ...) {
  static const char *const names[] = {"", "error", "warning", "info", "debug"};
  if (level < LOG_ERROR || level > LOG_DEBUG || !log_on(level)) return;
  char line[2048];
  int head = snprintf(line, sizeof line, "torch_tpu: %s: ", names[level]);
  va_list ap;
  va_start(ap, fmt);
  int n = vsnprintf(line + head, sizeof line - 1 - (size_t)head, fmt, ap);
  va_end(ap);
  if (n < 0) return;
  size_t len = strlen(line);
  line[len++] = '\n';
  fwrite(line, 1, len, stderr);
}
