/* exec.h - the executor's inside: what its files share.
 *
 * One lock (`ex.lock`) guards the tables, the list of stores and every store's value. It is held for short sections
 * only: never across a call that compiles, runs or waits. A device buffer is counted, so a value that is being
 * replaced stays alive for those who read it.
 */
#ifndef TPU_EXEC_EXEC_H
#define TPU_EXEC_EXEC_H
#include <pthread.h>
#include <stdatomic.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/hash.h"
#include "base/mem.h"
#include "exec/table.h"
#include "ops/ctx.h"
#include "pjrt/pjrt.h"
#include "view/view.h"

enum { EX_MAX_DEVICES = 256, STORE_INLINE_DIMS = 6 };

/* ---- device buffers -------------------------------------------------------------------------------------------- */

/* A value on a device: a future, filled once. A store that is written gets a new dbuf at once, while the program that
 * will fill it still waits in the queue; a value never changes after that, so order needs no other care. */
typedef struct {
  atomic_int refs;
  atomic_int state; /* DBUF_* */
  int device;
  bool reported;  /* its error was given to the user already */
  bool has_range; /* integers that came from the host: all are in [least, most] */
  int64_t least, most;
  uint64_t seq;   /* in order of creation */
  const char *op; /* the operator that makes it, process-lived; NULL: a copy from the host */
  struct trace
      *trace; /* when PENDING: the recording that will make it, and its value there; else NULL; under ex.lock */
  val value;
  atomic_int deferred; /* when PENDING: 1 + its number among the values of its device's segment (defer.c); else 0 */
  int bound;           /* how many stores have it as their value; under ex.lock */
  uint32_t input_of;   /* the segment that takes it as input number `input`; under ex.lock */
  int32_t input;
  pjrt_buffer *b; /* when FILLED */
  tpu_err *err;   /* when FAILED: the program could not be enqueued, or one of its inputs had failed */
} dbuf;
enum { DBUF_PENDING, DBUF_FILLED, DBUF_FAILED };

TPU_MUST tpu_err *dbuf_pending(int device, const char *op, dbuf **out);
/* A filled one. Consumes b (also on failure). */
TPU_MUST tpu_err *dbuf_new(pjrt_buffer *take_b, int device, const char *op, dbuf **out);
static inline dbuf *dbuf_retain(dbuf *d) {
  atomic_fetch_add_explicit(&d->refs, 1, memory_order_relaxed);
  return d;
}
void dbuf_release(dbuf *d);
/* Fills d, once, with a buffer (consumed) or an error (consumed), and wakes who waits. */
void dbuf_fill(dbuf *d, pjrt_buffer *take_b, tpu_err *take_err);
/* Waits until d is filled (not until the device is done) and lends its buffer; or gives its error with the op's name.
 */
TPU_MUST tpu_err *dbuf_buffer(dbuf *d, pjrt_buffer **out);
/* Blocks until the value is there; async: the error came from a program that had been enqueued, so it has no name yet.
 */
TPU_MUST tpu_err *dbuf_wait(dbuf *d, bool *async);
/* Names the operator that an asynchronous error began with (as far as its result is still held), and marks what failed
 * with it as reported. d: where it was met. Consumes and returns the error. */
TPU_MUST tpu_err *async_error(dbuf *d, tpu_err *take_e, bool async);
bool dbuf_done(dbuf *d); /* filled and ready (or failed) */

/* ---- stores ---------------------------------------------------------------------------------------------------- */

struct tpu_store {
  atomic_int refs;
  int device;
  size_t nbytes;
  void *address;
  dbuf *buf; /* the value: dense, row-major, dims of dtype; NULL: none yet, reads give zeros */
  uint8_t dtype;
  int16_t ndim;
  int64_t *dims; /* inline_dims or a block of its own */
  int64_t inline_dims[STORE_INLINE_DIMS];
  bool uncounted; /* made in a capture, where it takes no memory */
  uint64_t stamp; /* the last call that saw it, and its number in that call */
  int32_t number;
  tpu_store *prev, *next;
};

/* All under ex.lock. */
TPU_MUST tpu_err *store_new_locked(size_t nbytes, int device, tpu_store **out);
void store_clear_locked(tpu_store *s); /* no value */
TPU_MUST tpu_err *store_set_locked(tpu_store *s, dbuf *take_value, tpu_dtype dtype, int ndim, const int64_t *dims);
/* The address range (address.c). */
void *address_take(size_t nbytes);
void address_give(void *p, size_t nbytes);

/* The tensor's dims in the order in which they lie in memory, outermost first; gives how many there are. */
int store_memory_order(const tpu_tensor *t, int *order);
/* How a store would be kept if it held this tensor alone: its dims in the order of memory. False when the tensor does
 * not cover the whole store densely. dims: room for ndim. */
bool store_natural_dims(const tpu_tensor *t, size_t nbytes, int64_t *dims);

/* ---- programs -------------------------------------------------------------------------------------------------- */

typedef struct watched watched; /* watch.c */
typedef struct {
  tnode node;
  hash128 name;
  hash128 entry; /* the name of its file in the executable cache; 0: there is no cache */
  atomic_int refs;
  pjrt_exec *exec;
  bool evicted;            /* no longer in the table; under ex.program_lock */
  buf text;                /* with TORCH_TPU_CHECK_PROGRAMS */
  _Atomic int64_t traffic; /* bytes a run reads and writes; 0: not asked for yet */
  watched *watched;        /* NULL: not watched */
} program;
extern uint64_t program_hash_mask; /* for tests: the bits of a program's hash that count */

/* The program of a graph, or of its text: from memory, from disk, else compiled. Blocks while compiling; takes
 * ex.program_lock only. Gives a reference. xla: lines of XLA's options (pjrt_compile) that become part of the text, or
 * NULL. */
TPU_MUST tpu_err *program_get(ir_graph *g, const char *xla, const char *op_name, program **out);
/* What the compiler said of a text, with what to do where the text holds a kernel that it may not know. */
TPU_MUST tpu_err *program_refused(tpu_err *e, const char *text);
TPU_MUST tpu_err *program_of_text(const buf *text, const char *op_name, program **out);
/* The program of an executable that the plugin once serialized; found again when it was given before. */
TPU_MUST tpu_err *program_of_executable(const char *bytes, size_t n, const char *op_name, program **out);
/* The same if it is in memory (a reference), else NULL. */
program *program_known(const buf *text);
void program_release(program *p);
int64_t program_traffic(program *p); /* bytes that one run reads and writes; -1: the plugin does not say */
/* When too many programs are held: takes those that were not used lately out of the table, and the entries that lead to
 * them out of theirs. Under ex.lock; what comes back is released by program_dropped, without it. */
void program_trim_locked(tnode **programs, tnode **entries);
void program_dropped(tnode *programs, tnode *entries);

/* NULL when nobody watches. mine: on the thread that asked for the program, whose line is known. */
watched *watch_program(const buf *text, hash128 name, const char *op, bool mine);
void watch_run(watched *w);

/* The executable cache on disk (cache.c): the user's folder, then a shared one. */
typedef struct {
  buf key;
  int lock;
} cache_ticket;
/* The loaded program of this text, or NULL: then it is this caller's to compile, while others wait for it. Either way
 * the ticket goes to cache_done, with what was compiled, or NULL. */
pjrt_exec *cache_find(const buf *text, const char *op_name, cache_ticket *t);
void cache_done(cache_ticket *t, pjrt_exec *compiled);
void cache_close(void);
/* Lines "NAME VALUE" that say by which processes an executable of this plugin can be loaded. */
void cache_describe_host(buf *b, const tpu_plugin_info *info, int devices, const char *kind);
/* Puts an executable into a folder under the name by which a process with this plugin, on devices of this kind, looks
 * for the program of this text. */
TPU_MUST tpu_err *cache_keep(const char *folder, const tpu_plugin_info *plugin, const char *kind, const char *text,
                             size_t len, const char *bytes, size_t n);

/* ---- numbers --------------------------------------------------------------------------------------------------- */

/* The device buffer of a number in dtype's representation: cached. Gives a reference. Under ex.lock. */
TPU_MUST tpu_err *number_get_locked(const op_host_number *n, tpu_dtype dtype, int device, dbuf **out);
/* A Scalar argument that dtype cannot hold is PyTorch's error, except where PyTorch makes a tensor of it, which wraps
 * around. */
TPU_MUST tpu_err *number_check(const tpu_op *op, int arg, const op_host_number *n, tpu_dtype dtype);
/* Host representation; gives its size in bytes (at most 16), 0 when the dtype is unknown. */
size_t number_bits(const op_host_number *n, tpu_dtype dtype, uint8_t out[16]);
/* The same as a constant of a graph. */
val number_constant(ir_graph *g, const op_host_number *n, tpu_dtype dtype);

/* ---- operators ------------------------------------------------------------------------------------------------- */

struct tpu_op {
  const op_row *row;
  char *name; /* "aten::add.Tensor" */
  int nargs, nrets;
  int16_t *ret_alias;         /* nrets: the argument returned, or -1 */
  bool *ret_list;             /* nrets: a Tensor[] */
  bool *written;              /* nargs */
  bool *number;               /* nargs: a Scalar or float, so an operand */
  uint64_t strict_numbers;    /* bit i: argument i is a Scalar that must fit its dtype */
  _Atomic uint64_t constants; /* bit i: the value of number i is part of the key (a row read it with op_const) */
  _Atomic uint64_t classes;   /* bit i: whether number i is 0, 1 or neither is (op_number_class) */
};

/* ---- state ----------------------------------------------------------------------------------------------------- */

typedef struct {
  pthread_mutex_t lock;
  pjrt_client *client;
  int ndevices;
  bool is_cpu;   /* the plugin is XLA's CPU backend */
  bool kernels;  /* the programs that it gets are for a TPU's compiler alone: they may hold kernels */
  bool cpu_rows; /* rows build what suits it; not so while programs are also compiled for a TPU */
  atomic_int mode, precision, default_dtype, compile_policy, debug_nan;
  atomic_bool forked;
  tpu_store *stores;          /* all live ones */
  dbuf *last[EX_MAX_DEVICES]; /* made last on each device: what an event waits for */
  tpu_memory_stats memory[EX_MAX_DEVICES];
  tpu_stats stats; /* what is counted where programs are made is under program_lock */
  table keys, numbers;
  table segments;               /* deferred calls that ran as one program */
  pthread_mutex_t program_lock; /* the last of the locks: the queue's thread takes it, which never takes ex.lock */
  table programs;               /* under program_lock */
  int64_t programs_made;        /* compiled or loaded since the start; under program_lock */
} ex_state;
extern ex_state ex;

static inline void ex_lock(void) { pthread_mutex_lock(&ex.lock); }
static inline void ex_unlock(void) { pthread_mutex_unlock(&ex.lock); }
/* NULL when the runtime is up (starts it at the first call). */
TPU_MUST tpu_err *ex_ready(void);

/* The argument that result `ret` of the row is written to, or -1 when it is a new value. */
int op_target(const tpu_op *op, int ret);
int64_t clock_ns(void);      /* monotonic */
int dtype_pjrt(tpu_dtype d); /* PJRT_Buffer_Type, 0 if none */

/* ---- the call -------------------------------------------------------------------------------------------------- */

/* One tensor argument (or list element) of the call at hand. */
typedef struct {
  const tpu_tensor *t;
  int16_t arg;
  int32_t elem;
  int32_t store;     /* number in call_state.stores; -1: a number on the CPU, or undefined, or empty */
  bool whole, empty; /* the view is the base itself; no elements */
  bool grown;        /* the base is taken as flat, over all of the storage (a view past the value's end) */
  int32_t plan;      /* index in call_state.plans, -1 when whole or empty */
  view_base base;    /* as this call sees it (dims lent from the store or from base_dims) */
} call_tensor;

typedef struct {
  tpu_store *s;
  dbuf *buf; /* NULL: no value yet */
  view_base base;
} call_store;

typedef struct call_state {
  uint64_t *words;
  size_t nwords, cap_words;
  call_tensor *tensors;
  int ntensors, cap_tensors;
  call_store *stores;
  int nstores, cap_stores;
  view_plan **plans;
  int nplans, cap_plans;
  int64_t *dims; /* room for base dims that no store owns */
  size_t ndims, cap_dims;
  dbuf **bufs; /* the program's inputs, then its outputs */
  size_t cap_bufs;
  bool busy;
} call_state;

typedef enum { PARAM_STORE, PARAM_NUMBER, PARAM_START, PARAM_RNG, PARAM_CONSTANT } param_kind;
typedef struct {
  uint8_t kind, dtype;
  bool donated; /* an output may reuse it */
  int16_t arg;  /* NUMBER */
  int32_t elem; /* NUMBER: list element; STORE: number of the store (of a graph: of the input); START: number of the
                   tensor; CONSTANT: number of the graph's constant */
  int32_t k;    /* START: which start */
} param_spec;

typedef enum { OUT_NEW, OUT_EMPTY, OUT_STORE } out_kind;
typedef struct {
  uint8_t kind, dtype;
  int16_t ret, ndim;
  int32_t elem;                   /* NEW, EMPTY: element of a list result; STORE: number of the store */
  int32_t output;                 /* the program's output, -1 for EMPTY */
  const int64_t *sizes, *strides; /* of the tensor */
  int16_t base_ndim;
  const int64_t *base_dims; /* as the store keeps it */
  uint8_t base_dtype;
  size_t nbytes;
} out_spec;

typedef struct {
  tnode node;
  atomic_int refs;
  arena mem;
  const uint64_t *words;
  size_t nwords;
  _Atomic(program *) prog; /* NULL: nothing to run, or (with text) not compiled yet */
  buf text;                /* the program's text, kept for calls that may be fused; empty: not kept */
  const char **types;      /* with text: MLIR types of the parameters, then of the outputs */
  uint64_t serial;         /* of entries with text: never used twice */
  uint64_t text_hash;      /* of its text */
  bool known;              /* had a program when it was built, or was given to the queue; under ex.lock */
  uint8_t segments;        /* new ones in which it counted as not known; under ex.lock */
  uint32_t counted;        /* the segment that counted it as not known; under ex.lock */
  int64_t *bytes;          /* of the same values */
  const char *name;        /* of a segment: its operators */
  param_spec *params;
  int nparams, ndonated;
  out_spec *outs;
  int nouts, noutputs;
  uint64_t rng_blocks; /* how far the generator's offset moves */
  int64_t calls;       /* how many it stands for: 0 is one */
  atomic_int cost_ns;  /* how long the plugin took to take the last run; 0: not run yet */
} call_entry;

/* Where a recorded call's operands come from (record.c); NULL fields: a call of its own, operands are filled at each
 * run. */
typedef struct trace trace;

/* Builds the entry for a call that was not seen before (build.c). cs describes the arguments. Compiles; blocks. With
 * `defer` it keeps the text and leaves compiling to whoever runs it. */
TPU_MUST tpu_err *entry_build(tpu_call *c, call_state *cs, bool defer, call_entry **out);
TPU_MUST tpu_err *entry_new(call_entry **out);
/* The entry's program, compiled now if it is not yet; lent. */
TPU_MUST tpu_err *entry_program(call_entry *e, const char *op_name, program **out);
void entry_release(call_entry *e);
/* The entry kept under these words in a table of entries, or NULL. Under ex.lock. */
call_entry *entry_find_locked(const table *keys, const uint64_t *words, size_t n, uint64_t hash);
uint64_t words_hash(const uint64_t *words, size_t n);
static inline uint64_t hash_mix(uint64_t h, uint64_t w) {
  h = (h ^ w) * 0xff51afd7ed558ccdull;
  return h ^ h >> 32;
}
/* Builds a call into a recording: outs gets one value a program output, in order of e->outs[].output. e: an entry with
 * nothing but mem and refs set. */
TPU_MUST tpu_err *entry_record(tpu_call *c, call_state *cs, trace *t, call_entry *e, val **outs);
/* Drops all call keys, programs and numbers; for tests, when nothing runs. */
void ex_forget(void);

/* Shared by calls that run and calls that are recorded (call.c). */
TPU_MUST tpu_err *call_key(tpu_call *c, call_state *cs);                                         /* under ex.lock */
TPU_MUST tpu_err *call_bind(tpu_call *c, call_state *cs, const call_entry *e, tpu_store **made); /* under ex.lock */
/* The value that events wait for from now on; its program enters the queue under the same lock. */
void ex_made_last_locked(int device, dbuf *d);
/* The value of an argument's store that another thread's recording will make (a reference), or NULL. */
dbuf *call_foreign_locked(const call_state *cs, const trace *own);
/* Waits until it is filled. Consumes the reference. */
void call_wait_foreign(dbuf *take_d);
TPU_MUST tpu_err *call_results(tpu_call *c, const call_entry *e, tpu_store **made);
/* The device buffer of a generator's state, which moves on by `blocks`. */
TPU_MUST tpu_err *call_rng(int device, uint64_t *rng, uint64_t blocks, dbuf **out);
/* Debug mode: waits for the outputs of e (a reference each; consumed); the first error. */
TPU_MUST tpu_err *call_debug_wait(const call_entry *e, dbuf *const *take_outs);

/* ---- recording (record.c) ---------------------------------------------------------------------------------------- */

/* The thread's recording, NULL when calls run one by one. */
trace *trace_current(void);
ir_graph *trace_graph(trace *t);
bool trace_for_tpu(const trace *t); /* rows build for a TPU, not for the plugin in use */
/* The recording's parameter for a value; one a dbuf. */
val trace_param(trace *t, dbuf *d, tpu_dtype dtype, int ndim, const int64_t *dims);
TPU_MUST tpu_err *trace_call(trace *t, tpu_call *c, call_state *cs);
/* Runs what was recorded so far; afterwards every live value is filled or failed. */
TPU_MUST tpu_err *trace_flush(trace *t);

/* Debug mode (finite.c): an error when d, which is filled, holds what torch.tpu.set_debug forbids. */
TPU_MUST tpu_err *finite_check(dbuf *d, tpu_dtype dtype, int ndim, const int64_t *dims);

/* ---- explaining (explain.c) -------------------------------------------------------------------------------------- */

bool explain_on(void);
bool explain_traffic(void); /* the bytes of each run are wanted too */
/* start_ns: 0: now, and it took no time. */
void explain_add(tpu_explain_kind kind, int detail, int64_t calls, int64_t start_ns, const char *text);
void explain_run(int64_t calls, int64_t bytes, int64_t start_ns, int64_t took_ns, const char *text);

/* ---- deferring (defer.c) ----------------------------------------------------------------------------------------- */

typedef enum { FLUSH_READ, FLUSH_SYNC, FLUSH_EVENT, FLUSH_MODE, FLUSH_OPS, FLUSH_BYTES, FLUSH_REPEAT } flush_reason;
/* Keeps a call for later. bufs: inputs and pending outputs, bound already; consumed. Under ex.lock. */
void defer_call_locked(call_entry *e, int device, dbuf **take_bufs);
/* Hands what was deferred on a device (below 0: on all) to the queue. Under ex.lock. */
void defer_flush_locked(int device, flush_reason why);
void defer_flush(int device, flush_reason why);
void defer_forget_locked(void); /* gives its memory back; nothing may wait */

/* ---- meshes (mesh.c) --------------------------------------------------------------------------------------------- */

/* out: for each position of the mesh, row-major, the id of the device of a topology that stands there. */
TPU_MUST tpu_err *mesh_assign(const pjrt_place *places, int n, int naxes, const int64_t *sizes, int *out);

/* ---- the queue (queue.c) ----------------------------------------------------------------------------------------- */

/* Runs a program: at once on this thread, or on the queue's thread, which keeps the order. bufs: nparams inputs
 * and noutputs pending outputs, one reference each; consumed. Never fails: an error goes into the outputs. */
void queue_run(call_entry *e, int device, dbuf **take_bufs);
/* Calls fn(arg) on the queue's thread, or now, when all that was enqueued before was given to the plugin. */
void queue_mark(void (*fn)(void *arg), void *arg);
bool queue_is_here(void); /* on the queue's own thread */
/* Waits until the queue is empty. */
void queue_drain(void);
#endif
