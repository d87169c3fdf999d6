/* env.h - the environment flags. One table (env.def); parsed once, at first use. */
#ifndef TPU_BASE_ENV_H
#define TPU_BASE_ENV_H
#include "base/err.h"

typedef enum {
#define INT(lo, hi) 0
#define ENUM(s) 0
#define X(id, name, kind, def, help) ENV_##id,
#include "base/env.def"
#undef X
#undef INT
#undef ENUM
  ENV_COUNT
} env_flag;

/* Parses all flags; the first bad one is the error (VALUE). Cheap after the first call. env_str / env_int give the
 * defaults of flags that did not parse. */
TPU_MUST tpu_err *env_check(void);
const char *env_str(env_flag f);
int64_t env_int(env_flag f); /* INT, BOOL */
int env_choice(env_flag f);  /* ENUM: index in the list */
/* Name, kind, default and help of flag i, for the generated docs; false past the end. */
TPU_API bool tpu_env_describe(int i, const char **name, const char **kind, const char **def, const char **help);
/* Forgets the parsed values, for tests. */
TPU_API void env_reset(void);
#endif
