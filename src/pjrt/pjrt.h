/* pjrt.h - the one door to a PJRT plugin. Everything that a plugin may answer badly (missing slot, old table, error
 * object, NULL) is handled here once and comes out as a tpu_err. Knows nothing of graphs or tensors.
 *
 * Handles: pjrt_client is process-lived. pjrt_buffer, pjrt_exec, pjrt_event are the plugin's own objects behind opaque
 * types: made here, freed here, NULL is allowed. Counting is the owner's job (exec room).
 */
#ifndef TPU_PJRT_PJRT_H
#define TPU_PJRT_PJRT_H
#include "base/err.h"

typedef struct pjrt_api pjrt_api;       /* a loaded plugin: its table, its library */
typedef struct pjrt_client pjrt_client; /* one client and its devices */
typedef struct PJRT_Buffer pjrt_buffer;
typedef struct PJRT_LoadedExecutable pjrt_exec;
typedef struct PJRT_Event pjrt_event;
typedef struct pjrt_topology pjrt_topology; /* devices that need not be here */
typedef struct pjrt_aot pjrt_aot;           /* a program compiled for a topology: to be looked at and written away */

/* ---- loading --------------------------------------------------------------------------------------------------- */

/* Opens the shared library, calls GetPjrtApi and checks table size, ABI major version, and that the slots that we
 * cannot do without are there. Errors say what was expected and what was found. */
TPU_MUST tpu_err *pjrt_load(const char *path, pjrt_api **out);
/* In place of a plugin: a client that executes nothing. Its buffers hold no bytes and read as zeros. */
TPU_MUST tpu_err *pjrt_dry(pjrt_api **out);
/* Which plugin file to load, in the order of docs/plugins.md: TORCH_TPU_PJRT_PLUGIN, TPU_LIBRARY_PATH, libtpu when a
 * TPU is on the PCI bus, then `candidates` (colon separated). out_path is "" when there is none; out_why is one
 * sentence that names what was chosen and why, or all that was looked for and what to install. Both are
 * process-lived strings. Loads nothing. */
void pjrt_find(const char *candidates, const char **out_path, const char **out_why);
/* True if a Google TPU is on the PCI bus (vendor 1ae0). Reads sysfs only. `root`: "/sys" or a test folder. */
bool pjrt_tpu_attached(const char *sysfs_root);

typedef struct {
  const char *name;
  int64_t value;
} pjrt_option; /* create option of type int64 or bool */

/* Makes the client. Options that the plugin rejects are an error. */
TPU_MUST tpu_err *pjrt_client_new(pjrt_api *api, const pjrt_option *opts, int nopts, pjrt_client **out);
void pjrt_client_free(pjrt_client *c); /* tests only; the product keeps its client for the process's life */
void pjrt_api_version(const pjrt_api *api, int *major, int *minor);
/* "1.13.7", or "" when the plugin does not say (attribute stablehlo_current_version). */
const char *pjrt_stablehlo_version(const pjrt_api *api);
const char *pjrt_platform(const pjrt_client *c);
const char *pjrt_platform_version(const pjrt_client *c);
int pjrt_device_count(const pjrt_client *c); /* addressable devices */
const char *pjrt_device_kind(const pjrt_client *c, int device);
/* Bytes that the device can hold, from its memory stats; 0 when the plugin does not say. */
int64_t pjrt_device_memory(const pjrt_client *c, int device);

/* ---- programs -------------------------------------------------------------------------------------------------- */

/* text: StableHLO (MLIR text, or bytecode). The program is portable: it runs on any one device of the client. Blocks.
 * options: a serialized CompileOptionsProto, or NULL for ours and those that the text ends with (tpu_capture_xla). */
TPU_MUST tpu_err *pjrt_compile(pjrt_client *c, const char *text, size_t len, const char *options, size_t options_len,
                               pjrt_exec **out);
/* The options that pjrt_compile takes when it is given none. */
const char *pjrt_default_options(pjrt_client *c, size_t *len);
const char *pjrt_portable_options(size_t *len); /* the same for any plugin but XLA's CPU backend */
/* What the compiler made of it, to mem_free, and its format: "hlo_with_config", "mlir". */
TPU_MUST tpu_err *pjrt_exec_optimized(pjrt_client *c, pjrt_exec *e, char **out, size_t *out_len, char format[32]);
TPU_MUST tpu_err *pjrt_exec_serialize(pjrt_client *c, pjrt_exec *e, char **out, size_t *out_len); /* mem_free(*out) */
TPU_MUST tpu_err *pjrt_exec_load(pjrt_client *c, const char *bytes, size_t len, pjrt_exec **out);
TPU_MUST tpu_err *pjrt_exec_num_outputs(pjrt_client *c, pjrt_exec *e, size_t *out);
/* Bytes that one run reads and writes: by the plugin's analysis of what it compiled, or else by the memory that it set
 * aside for arguments, results and what lies between; -1: it says neither. */
int64_t pjrt_exec_traffic(pjrt_client *c, pjrt_exec *e);
void pjrt_exec_free(pjrt_client *c, pjrt_exec *e);

/* Enqueues a run on `device`. keep: the indices of arguments that must stay valid although the program could reuse
 * them (tf.aliasing_output). outs: room for the program's outputs. done: if not NULL, receives an event that is
 * ready when the run is over (and holds its error). Does not wait for the device. */
TPU_MUST tpu_err *pjrt_execute(pjrt_client *c, pjrt_exec *e, int device, pjrt_buffer *const *args, size_t nargs,
                               const int64_t *keep, size_t nkeep, pjrt_buffer **outs, pjrt_event **done);

/* ---- topologies: compiling for devices that are not here --------------------------------------------------------- */

/* name: the plugin's own ("v5e:2x2"). A plugin that has no topologies gives NOT_IMPLEMENTED. */
TPU_MUST tpu_err *pjrt_topology_new(pjrt_api *api, const char *name, pjrt_topology **out);
/* The devices of a client, which are here: programs are compiled for one of them. */
TPU_MUST tpu_err *pjrt_topology_of(pjrt_client *c, pjrt_topology **out);
void pjrt_topology_free(pjrt_topology *t);
const char *pjrt_topology_platform(const pjrt_topology *t);
const char *pjrt_topology_platform_version(const pjrt_topology *t);
const char *pjrt_topology_kind(const pjrt_topology *t); /* of its first device, "TPU v5 lite" */
int pjrt_topology_device_count(const pjrt_topology *t);

enum { PJRT_MAX_COORDS = 6 };
typedef struct {
  int id;                          /* as compile options name it */
  int ncoords;                     /* 0: the plugin does not say where its devices are */
  int64_t coords[PJRT_MAX_COORDS]; /* of the chip, then the number of the device on the chip */
} pjrt_place;
TPU_MUST tpu_err *pjrt_topology_device(const pjrt_topology *t, int i, pjrt_place *out);
/* Serialized options for a program of n partitions, with a mesh and places (src/ir/shard.c): partition i is on the
 * device with the id devices[i]. mem_free(*out) */
TPU_MUST tpu_err *pjrt_partition_options(const int *devices, int n, char **out, size_t *len);

/* text: StableHLO. options: a serialized CompileOptionsProto, or NULL for those that a client on such devices
 * would take. Blocks. */
TPU_MUST tpu_err *pjrt_topology_compile(pjrt_topology *t, const char *text, size_t len, const char *options,
                                        size_t options_len, pjrt_aot **out);
/* Bytes on one device. */
typedef struct {
  int64_t arguments, outputs, aliased, temporaries, code, peak; /* aliased: outputs that take the place of arguments */
} pjrt_memory;
TPU_MUST tpu_err *pjrt_aot_memory(pjrt_topology *t, pjrt_aot *x, pjrt_memory *out);
/* Calls fn for each figure of the plugin's own cost analysis that is a number ("flops", "bytes accessed", ...). */
typedef void (*pjrt_cost_fn)(void *ctx, const char *name, double value);
TPU_MUST tpu_err *pjrt_aot_cost(pjrt_topology *t, pjrt_aot *x, pjrt_cost_fn fn, void *ctx);
/* The program as the plugin's compiler left it, and in which format ("hlo_with_config": a serialized
 * HloModuleProtoWithConfig). mem_free(*out) */
TPU_MUST tpu_err *pjrt_aot_program(pjrt_topology *t, pjrt_aot *x, char **out, size_t *out_len, char format[32]);
TPU_MUST tpu_err *pjrt_aot_serialize(pjrt_topology *t, pjrt_aot *x, char **out, size_t *out_len); /* mem_free(*out) */
void pjrt_aot_free(pjrt_topology *t, pjrt_aot *x);

/* ---- buffers --------------------------------------------------------------------------------------------------- */

/* Copies dense row-major host bytes to the device; `host` may be reused on return. pjrt_type: PJRT_Buffer_Type. */
TPU_MUST tpu_err *pjrt_buffer_from_host(pjrt_client *c, int device, const void *host, int pjrt_type,
                                        const int64_t *dims, int ndim, pjrt_buffer **out);
/* Copies to the host, dense row-major; blocks; gives the buffer's own error if its program failed. */
TPU_MUST tpu_err *pjrt_buffer_to_host(pjrt_client *c, pjrt_buffer *b, void *host, size_t nbytes);
TPU_MUST tpu_err *pjrt_buffer_copy_to_device(pjrt_client *c, pjrt_buffer *b, int device, pjrt_buffer **out);
TPU_MUST tpu_err *pjrt_buffer_wait(pjrt_client *c, pjrt_buffer *b); /* blocks */
bool pjrt_buffer_ready(pjrt_client *c, pjrt_buffer *b);             /* true also when it holds an error */
void pjrt_buffer_free(pjrt_client *c, pjrt_buffer *b);

/* ---- events ---------------------------------------------------------------------------------------------------- */

/* An event that is ready when the buffer is. */
TPU_MUST tpu_err *pjrt_buffer_event(pjrt_client *c, pjrt_buffer *b, pjrt_event **out);
bool pjrt_event_ready(pjrt_client *c, pjrt_event *e);
TPU_MUST tpu_err *pjrt_event_wait(pjrt_client *c, pjrt_event *e); /* blocks; the event's own error */
void pjrt_event_free(pjrt_client *c, pjrt_event *e);
/* Calls fn(arg) once, on any thread, when the event is ready. fn may only set flags or queue. */
TPU_MUST tpu_err *pjrt_event_on_ready(pjrt_client *c, pjrt_event *e, void (*fn)(void *arg), void *arg);

/* Test hook: makes plugin call number nth from now fail (1 = next; 0 = off). */
TPU_API void pjrt_fault_at(int64_t nth);
TPU_API int64_t pjrt_fault_count(void);
#endif
