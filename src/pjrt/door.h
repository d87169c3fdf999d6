/* door.h - how a call goes through the door: inside src/pjrt only. */
#ifndef TPU_PJRT_DOOR_H
#define TPU_PJRT_DOOR_H
#include <stdatomic.h>

#include "base/buf.h"
#include "pjrt/abi.h"
#include "pjrt/pjrt.h"

/* The slots that we use, typed; NULL where the plugin has none. Immutable once loaded. */
struct pjrt_api {
#define X(slot, name, last, need) PJRT_Error *(*name)(name##_Args *);
  PJRT_CALLS(X)
#undef X
  void (*error_destroy)(PJRT_Error_Destroy_Args *);
  void (*error_message)(PJRT_Error_Message_Args *);
  int major, minor;
  char stablehlo_version[32];
  pjrt_api *next; /* in the list of loaded plugins */
  char path[];
};

struct pjrt_client {
  pjrt_api *api;
  PJRT_Client *client;
  PJRT_Device *const *devices; /* the plugin's array */
  int device_count;
  bool host_is_device; /* platform "cpu": device memory is ours to read once it is ready */
  char *platform, *platform_version;
  char **kinds; /* [device_count] */
};

extern _Atomic bool door_armed; /* a test injects faults */
bool door_fault(void);
TPU_MUST tpu_err *door_injected(const char *call);
TPU_MUST tpu_err *door_missing(const pjrt_api *api, const char *call);
/* Turns a plugin's error into ours and destroys it. */
TPU_MUST tpu_err *door_error(const pjrt_api *api, PJRT_Error *take_e, const char *call);
void door_error_drop(const pjrt_api *api, PJRT_Error *take_e);

#define DOOR_RARE(x) __builtin_expect(!!(x), 0)

/* tpu_err *: calls a slot. args: a pointer to its args struct, zeroed but for the inputs; struct_size is set here. */
#define PJRT_CALL(api, name, args)                                                                   \
  __extension__({                                                                                    \
    tpu_err *door_err_ = NULL;                                                                       \
    name##_Args *door_args_ = (args);                                                                \
    door_args_->struct_size = name##_SIZE;                                                           \
    if (DOOR_RARE(!(api)->name)) {                                                                   \
      door_err_ = door_missing((api), #name);                                                        \
    } else if (DOOR_RARE(atomic_load_explicit(&door_armed, memory_order_relaxed)) && door_fault()) { \
      door_err_ = door_injected(#name);                                                              \
    } else {                                                                                         \
      PJRT_Error *door_e_ = (api)->name(door_args_);                                                 \
      if (DOOR_RARE(door_e_)) door_err_ = door_error((api), door_e_, #name);                         \
    }                                                                                                \
    door_err_;                                                                                       \
  })

/* Destroys an object of the plugin: its error has no one to go to. */
#define PJRT_DROP(api, name, args)                           \
  do {                                                       \
    name##_Args *door_args_ = (args);                        \
    door_args_->struct_size = name##_SIZE;                   \
    PJRT_Error *door_e_ = (api)->name(door_args_);           \
    if (DOOR_RARE(door_e_)) door_error_drop((api), door_e_); \
  } while (0)

/* The plugin said yes but gave no object. */
TPU_MUST tpu_err *door_no_result(const pjrt_api *api, const char *call);

/* Serialized options for a program of one device: the client's own, and those that the text ends with. */
TPU_MUST tpu_err *door_options(pjrt_client *c, const char *text, size_t len, buf *out);
/* The part of an executable that is not tied to devices; it goes first. */
TPU_MUST tpu_err *door_executable(pjrt_client *c, pjrt_exec *e, PJRT_Executable **out);
/* What the compiler made of the program (*out: mem_free), and what it is written as: "hlo_with_config". */
TPU_MUST tpu_err *door_optimized(const pjrt_api *api, PJRT_Executable *x, char **out, size_t *out_len, char format[32]);
/* mem_free(*out) */
TPU_MUST tpu_err *door_serialize(pjrt_api *api, PJRT_Executable *x, char **out, size_t *out_len);
TPU_MUST tpu_err *door_memory(const pjrt_api *api, PJRT_Executable *x, pjrt_memory *out);
/* fn gets each figure that is a number; its name has n characters and no NUL. */
typedef void (*door_cost_fn)(void *ctx, const char *name, size_t n, double value);
TPU_MUST tpu_err *door_cost(const pjrt_api *api, PJRT_Executable *x, door_cost_fn fn, void *ctx);
/* StableHLO text, lent. */
static inline PJRT_Program door_program(const char *text, size_t len) {
  return (PJRT_Program){.struct_size = PJRT_END_OF(PJRT_Program, format_size),
                        .code = text,
                        .code_size = len,
                        .format = "mlir",
                        .format_size = 4};
}
/* A NUL-terminated copy of a plugin's text; NULL: out of memory. mem_free */
char *door_text(const char *s, size_t n);
TPU_MUST tpu_err *door_check_device(const pjrt_client *c, int device);
#endif
