/* tpu.h - the one public header of the core (libtorchtpu). What the adapter, the Python module and the tests see.
 *
 * Ownership. Three lives: process (the client, devices, rows), arena (graphs, nodes, text), counted (store, buffer,
 * executable, event). x_new / x_retain / x_release; release takes NULL. A parameter `take_x` is consumed, everything
 * else is lent. Accessors lend.
 *
 * Errors. A fallible function returns `tpu_err *`; NULL is success. Results come last. The caller owns the error and
 * frees it with tpu_err_free. Nothing here aborts, exits, prints, or waits for the device unless it says so.
 *
 * Threads. Every function may be called from any thread.
 */
#ifndef TPU_H
#define TPU_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TPU_API __attribute__((visibility("default")))
#define TPU_MUST __attribute__((warn_unused_result))

/* ---- errors --------------------------------------------------------------------------------------------------- */

typedef struct tpu_err tpu_err;

/* The kinds map one to one to PyTorch's exception types; the adapter's throw_if is the only place that throws. */
#define TPU_ERR_KINDS(X)                    \
  X(RUNTIME, "RuntimeError")                \
  X(NOT_IMPLEMENTED, "NotImplementedError") \
  X(OOM, "OutOfMemoryError")                \
  X(INDEX, "IndexError")                    \
  X(VALUE, "ValueError")                    \
  X(TYPE, "TypeError")

typedef enum {
#define X(name, text) TPU_ERR_##name,
  TPU_ERR_KINDS(X)
#undef X
      TPU_ERR_KIND_COUNT
} tpu_err_kind;

TPU_API tpu_err_kind tpu_err_get_kind(const tpu_err *e);
TPU_API const char *tpu_err_message(const tpu_err *e);
TPU_API void tpu_err_free(tpu_err *e);
/* For callbacks (tpu_call.meta, tpu_call.result) that must say no: an error with a copy of the message. Never NULL. */
TPU_API TPU_MUST tpu_err *tpu_err_new(tpu_err_kind kind, const char *message);

/* ---- dtypes: the numbers are PyTorch's c10::ScalarType, so no table is needed between the two ------------------- */

/* X(number, name, PyTorch's name, StableHLO element type, bytes an element, PJRT_Buffer_Type, class);
 * class: b bool, u unsigned, i signed, f float, c complex. */
#define TPU_DTYPES(X)                                            \
  X(0, U8, "uint8", "ui8", 1, 6, 'u')                            \
  X(1, I8, "int8", "i8", 1, 2, 'i')                              \
  X(2, I16, "int16", "i16", 2, 3, 'i')                           \
  X(3, I32, "int32", "i32", 4, 4, 'i')                           \
  X(4, I64, "int64", "i64", 8, 5, 'i')                           \
  X(5, F16, "float16", "f16", 2, 10, 'f')                        \
  X(6, F32, "float32", "f32", 4, 11, 'f')                        \
  X(7, F64, "float64", "f64", 8, 12, 'f')                        \
  X(9, C64, "complex64", "complex<f32>", 8, 14, 'c')             \
  X(10, C128, "complex128", "complex<f64>", 16, 15, 'c')         \
  X(11, BOOL, "bool", "i1", 1, 1, 'b')                           \
  X(15, BF16, "bfloat16", "bf16", 2, 13, 'f')                    \
  X(23, F8E5M2, "float8_e5m2", "f8E5M2", 1, 16, 'f')             \
  X(24, F8E4M3FN, "float8_e4m3fn", "f8E4M3FN", 1, 17, 'f')       \
  X(25, F8E5M2FNUZ, "float8_e5m2fnuz", "f8E5M2FNUZ", 1, 19, 'f') \
  X(26, F8E4M3FNUZ, "float8_e4m3fnuz", "f8E4M3FNUZ", 1, 20, 'f') \
  X(27, U16, "uint16", "ui16", 2, 7, 'u')                        \
  X(28, U32, "uint32", "ui32", 4, 8, 'u')                        \
  X(29, U64, "uint64", "ui64", 8, 9, 'u')                        \
  X(44, F8E8M0FNU, "float8_e8m0fnu", "f8E8M0FNU", 1, 28, 'f')

typedef enum {
#define X(num, name, torch, mlir, bytes, pjrt, cls) TPU_##name = num,
  TPU_DTYPES(X)
#undef X
      TPU_DTYPE_LIMIT = 64,
  TPU_NO_DTYPE = 255
} tpu_dtype;

/* Bytes an element; 0 for a number that is no dtype of ours. */
TPU_API size_t tpu_dtype_size(tpu_dtype d);
/* PyTorch's name ("float32"), or "?" */
TPU_API const char *tpu_dtype_name(tpu_dtype d);

/* ---- the runtime: plugin, devices ------------------------------------------------------------------------------ */

typedef struct {
  const char *path;     /* of the plugin in use, or "" */
  const char *why;      /* one sentence: how it was found; or, when there is none, what was looked for */
  const char *platform; /* PJRT platform name: "cpu", "tpu", ... */
  const char *platform_version;
  int pjrt_major, pjrt_minor;
  const char *stablehlo_version; /* "1.13.7", newest that the plugin reads; "" if it does not say */
  int device_count;
} tpu_plugin_info;

/* A list of places where an XLA CPU plugin may lie, searched last; called once before tpu_init by the Python package.
 * paths: colon separated. */
TPU_API void tpu_set_plugin_candidates(const char *paths);
/* Loads the plugin and makes the client; done once a process (a failure is kept and returned again). */
TPU_API TPU_MUST tpu_err *tpu_init(void);
/* The first environment flag of ours whose value is not accepted. */
TPU_API TPU_MUST tpu_err *tpu_check_environment(void);
/* True once tpu_init has succeeded. Never loads anything. */
TPU_API bool tpu_is_initialized(void);
/* Finds (without making a client, and without waiting) whether some plugin could be used. */
TPU_API bool tpu_is_available(void);
/* Devices of the client; without a client, how many it would have (1 or TORCH_TPU_CPU_DEVICES; 0 if unavailable). */
TPU_API int tpu_device_count(void);
/* Lent for the process. Fields are "" and 0 before tpu_init. */
TPU_API const tpu_plugin_info *tpu_get_plugin_info(void);
/* Kind of the device, e.g. "TPU v5e" or "cpu". */
TPU_API const char *tpu_device_kind(int device);
/* The thread's current device. */
TPU_API int tpu_get_device(void);
TPU_API void tpu_set_device(int device);
/* Waits until everything enqueued on the device is done (-1: all devices); gives the first error kept there. Blocks. */
TPU_API TPU_MUST tpu_err *tpu_synchronize(int device);
/* Called in the child after fork: from then on every use is an error that says so. */
TPU_API void tpu_mark_forked(void);
TPU_API bool tpu_in_bad_fork(void);

/* ---- stores: what an ATen storage holds ------------------------------------------------------------------------ */

typedef struct tpu_store tpu_store;

/* A storage of nbytes with no value yet (reads give zeros); OOM when nbytes is more than the device can hold. */
TPU_API TPU_MUST tpu_err *tpu_store_new(size_t nbytes, int device, tpu_store **out);
TPU_API tpu_store *tpu_store_retain(tpu_store *s);
TPU_API void tpu_store_release(tpu_store *s);
/* The address that stands for the storage: from a reserved range, never readable; NULL for 0 bytes. */
TPU_API void *tpu_store_address(const tpu_store *s);
/* True when all of its value are integers that the host gave, with their least and greatest. */
TPU_API bool tpu_store_range(const tpu_store *s, int64_t *least, int64_t *most);
TPU_API size_t tpu_store_nbytes(const tpu_store *s);
TPU_API int tpu_store_device(const tpu_store *s);
/* The store keeps its first min(old, new) bytes; its address changes. */
TPU_API TPU_MUST tpu_err *tpu_store_resize(tpu_store *s, size_t nbytes);
/* Raw bytes, for storage copies: [offset, offset + n) <- host; blocks until host may be reused. */
TPU_API TPU_MUST tpu_err *tpu_store_write_bytes(tpu_store *s, size_t offset, const void *host, size_t n);
/* host <- [offset, offset + n). Blocks. */
TPU_API TPU_MUST tpu_err *tpu_store_read_bytes(tpu_store *s, size_t offset, void *host, size_t n);
/* dst <- src, n bytes from the start of both (same device or not). */
TPU_API TPU_MUST tpu_err *tpu_store_copy_bytes(tpu_store *dst, tpu_store *src, size_t n);
/* The live store that an address belongs to (for raw pointer interfaces; slow), lent, and the byte offset in it; NULL.
 */
TPU_API tpu_store *tpu_store_from_address(const void *p, size_t *offset);
/* True if p lies in the reserved range: an address of some store. */
TPU_API bool tpu_is_device_address(const void *p);

/* ---- calls: one ATen operator on tensors ------------------------------------------------------------------------ */

enum { TPU_TENSOR_CONJ = 1, TPU_TENSOR_NEG = 2, TPU_TENSOR_WRAPPED = 4, TPU_TENSOR_UNDEFINED = 8 };

/* A tensor as an op sees it; everything is lent for the call. */
typedef struct {
  tpu_store *store; /* NULL: a tensor on the CPU, then `host` is the address of its first element */
  const void *host;
  const int64_t *sizes, *strides; /* ndim numbers, in elements */
  int64_t offset;                 /* storage offset in elements */
  int32_t ndim;
  uint8_t dtype;  /* tpu_dtype */
  uint8_t flags;  /* TPU_TENSOR_* */
  int16_t device; /* -1: CPU */
} tpu_tensor;

typedef enum {
  TPU_NONE,
  TPU_TENSOR,
  TPU_INT,
  TPU_UINT, /* a number above INT64_MAX: u.i has its bits */
  TPU_DOUBLE,
  TPU_BOOLEAN,
  TPU_COMPLEX,
  TPU_STR,
  TPU_DEVICE,
  TPU_GENERATOR,
  TPU_INTS, /* also bool lists */
  TPU_DOUBLES,
  TPU_TENSORS,
  TPU_SCALARS /* Scalar[]: u.vals, each TPU_INT, TPU_UINT, TPU_DOUBLE, TPU_BOOLEAN or TPU_COMPLEX */
} tpu_tag;

/* One argument. ints: TPU_INT holds ints, dtypes, layouts and memory formats (PyTorch's numbers). */
typedef struct tpu_value {
  uint8_t tag; /* tpu_tag */
  uint32_t n;  /* length of a list or string */
  union {
    int64_t i;
    double d;
    const char *s;
    const int64_t *ints;
    const double *doubles;
    const tpu_tensor *tensor; /* TPU_TENSOR: one; TPU_TENSORS: n, an undefined one has flag UNDEFINED */
    const struct tpu_value *vals;
  } u;
  double imag; /* of TPU_COMPLEX */
} tpu_value;

/* What PyTorch's schema says of one argument or return. */
typedef struct {
  const char *name; /* "self" */
  const char *type; /* PyTorch's text: "Tensor", "Tensor?", "Scalar", "int[]", "Tensor[]", "float?", ... */
  int16_t alias;    /* returns: the argument that is returned, or -1 for a new value */
  bool written;     /* arguments: marked (a!) */
} tpu_schema_arg;

typedef struct {
  const char *name;     /* "aten::add" */
  const char *overload; /* "Tensor", "" if none */
  int nargs, nrets;
  const tpu_schema_arg *args, *rets;
} tpu_schema;

typedef struct tpu_op tpu_op; /* an operator overload joined with its row; lives for the process */

/* Finds the row that serves a schema (see docs/add-an-op.md); *out is NULL when there is none. `functional` names the
 * functional twin: for an in-place or out= overload, the overload with the same arguments that returns new values
 * ("aten::sum.dim_IntList" for aten::sum.IntList_out); NULL when the schema is functional or has no twin. The row
 * named exactly like the schema comes first, then the twin's, then the one without an overload.
 * schema and its strings are copied. */
TPU_API TPU_MUST tpu_err *tpu_op_find(const tpu_schema *schema, const char *functional, tpu_op **out);

/* Every row's ATen name ("aten::add.Tensor"), for registration; NULL past the end. */
TPU_API const char *tpu_row_name(int i);

/* Shape, dtype and strides of one result. */
typedef struct {
  int64_t sizes[64], strides[64];
  int32_t ndim;
  uint8_t dtype;
  bool defined;
} tpu_meta;

/* One call. The adapter fills it, on its stack. */
typedef struct tpu_call {
  const tpu_op *op;
  const tpu_value *args;
  int nargs;
  int device;    /* where results are made: the device of the first tensor argument, else the current one */
  uint64_t *rng; /* {seed, offset} of the generator argument or of the device's default one; the call moves offset on */
  /* Called when the call key is new: fills the metadata of every result as PyTorch's meta kernel gives it (with
   * PyTorch's own errors). *known is false when no meta kernel exists. outs: room for `cap`; *n: how many. */
  tpu_err *(*meta)(struct tpu_call *c, tpu_meta *outs, int cap, int *n, bool *known);
  /* Receives result `ret` (`elem`: index in a Tensor[] result, else 0). take_store is consumed. Lent arrays. */
  tpu_err *(*result)(struct tpu_call *c, int ret, int elem, tpu_store *take_store, const int64_t *sizes,
                     const int64_t *strides, int ndim, tpu_dtype dtype);
  void *ctx; /* the adapter's */
} tpu_call;

/* Runs one operator. Written arguments get their new value; new results go to call->result in order; results that are
 * arguments (alias >= 0) are the adapter's to return. Does not wait for the device (except in Debug mode). */
TPU_API TPU_MUST tpu_err *tpu_call_run(tpu_call *c);

/* From begin to end the thread's calls are recorded and run as one program at the end (or earlier, when a value is
 * read): for an operator that is made of others. Nests. After an error of a call inside, values made inside hold that
 * error. */
TPU_API TPU_MUST tpu_err *tpu_record_begin(int device);
TPU_API TPU_MUST tpu_err *tpu_record_end(void);

/* ---- graphs: many calls as one program, kept ------------------------------------------------------------------- */

typedef struct tpu_graph tpu_graph;

/* Begins a capture: until it ends, the thread's calls are built into a graph and none of them runs. What was on the
 * device before becomes a constant of the graph, except for its inputs; reading a value is an error. */
TPU_API TPU_MUST tpu_err *tpu_capture_begin(int device);
TPU_API bool tpu_capturing(void); /* this thread */
/* The next input: gives the store that stands for it. like: sizes, strides and dtype. *out is NULL, and there is no
 * such input, when the strides are not dense in some order. */
TPU_API TPU_MUST tpu_err *tpu_capture_input(const tpu_tensor *like, tpu_store **out);
/* Ends the capture and compiles. Results are the outputs (device tensors, without conj and neg bits); inputs that were
 * written get their new value at each run. op, for errors of a run, lives for the process; name is copied. */
TPU_API TPU_MUST tpu_err *tpu_capture_end(const tpu_tensor *outputs, int noutputs, const char *op, const char *name,
                                          tpu_graph **out);
/* One graph for all sizes of a bucket. The same is captured for several values of the sizes that change (symbols): all
 * but the last end as samples, the last one, with the largest values, as the graph. Its inputs are then: those of the
 * capture, where one whose size changes is flat (1-D: as many elements as it has when padded; those of the true size
 * stand in front, densely); and behind them each symbol's value, a 0-d int64 on the CPU. Results whose size changes are
 * flat too, or padded as they are; none may be an input or a view of one. What cannot be padded, or makes another
 * program for other sizes, is an error that says what it is. */
typedef struct {
  int nsymbols, nsamples; /* up to 4 symbols */
  tpu_graph *const *samples;
  const int64_t *values;         /* [nsamples + 1][nsymbols]: of this capture, then of each sample */
  const int64_t *const *layouts; /* of each input: what tpu_graph_layout gave, when it comes padded; else NULL */
  const bool *flat;              /* of each output: whether it is to be flat when its size changes */
} tpu_bucket;
/* This capture is one of them: operators are built in forms that are the same for all sizes. Right after
 * tpu_capture_begin. */
TPU_API TPU_MUST tpu_err *tpu_capture_sizes_vary(void);
TPU_API TPU_MUST tpu_err *tpu_capture_end_sample(const tpu_tensor *outputs, int noutputs, tpu_graph **out);
TPU_API TPU_MUST tpu_err *tpu_capture_end_bucket(const tpu_tensor *outputs, int noutputs, const char *op,
                                                 const char *name, const tpu_bucket *bucket, tpu_graph **out);
/* How a padded result lies in its storage: numbers for `layouts`, lent; NULL (and *n 0) when its size does not change.
 */
TPU_API const int64_t *tpu_graph_layout(const tpu_graph *g, int result, int *n);
/* Gives the capture up. True when something was asked in it that no graph can do (a read, an operator on the CPU). */
TPU_API bool tpu_capture_drop(void);
/* Notes that the capture cannot do `what` ("reads a value on the host"), and gives the error that says so. */
TPU_API TPU_MUST tpu_err *tpu_capture_refuse(const char *what);

/* XLA's compile options for the program of this capture: lines `// xla: NAME = VALUE`, where a value is true, false, an
 * integer, a number with a point or an exponent, or text in quotation marks. They become the end of the program's text,
 * and so of its name in every cache. */
TPU_API TPU_MUST tpu_err *tpu_capture_xla(const char *lines);

/* A store that holds the generator's state, two uint64, as it will be at this place of the run; and from now on draws
 * with such a state, which does not move on (NULL: with the generator's own again). For recomputing what was drawn. */
TPU_API TPU_MUST tpu_err *tpu_capture_rng_state(tpu_store **out);
TPU_API TPU_MUST tpu_err *tpu_capture_use_rng(const tpu_tensor *state);

/* Control flow: an `if` (IF with the predicate, the true branch, ELSE with its results, the false branch, END_IF with
 * its) and a `while` (WHILE with what is carried, the condition, BODY with its result, the body, END_WHILE with its).
 * Tensors are dense and each all of its store; `out` gets nout stores: what a region of a while starts from, or the
 * results; IF and ELSE give none. Random numbers inside are refused. */
typedef enum { TPU_IF, TPU_ELSE, TPU_END_IF, TPU_WHILE, TPU_BODY, TPU_END_WHILE } tpu_region_step;
TPU_API TPU_MUST tpu_err *tpu_capture_region(tpu_region_step step, const tpu_tensor *in, int n, tpu_store **out,
                                             int nout);

/* One result: a view of the new store number `store`, or of the storage of input number `input`; the other is -1. */
typedef struct {
  int store, input;
  uint8_t dtype;
  int32_t ndim;
  int64_t offset;
  const int64_t *sizes, *strides;
} tpu_graph_result;
typedef struct {
  int device, ninputs, nstores, nresults;
  bool random; /* it draws from the generator */
} tpu_graph_info;
TPU_API void tpu_graph_describe(const tpu_graph *g, tpu_graph_info *out);
TPU_API const tpu_graph_result *tpu_graph_get_result(const tpu_graph *g, int i);
typedef enum {
  TPU_FIT_YES,
  TPU_FIT_COPY,   /* not laid out as it was captured: wants a copy of tpu_graph_get_input's strides */
  TPU_FIT_WRITTEN /* the same, and what the graph writes to the copy has to be copied back */
} tpu_fit;
/* The sizes and strides that input i was captured with (lent). */
TPU_API void tpu_graph_get_input(const tpu_graph *g, int i, tpu_tensor *out);
/* Runs the graph. inputs: device tensors, or 0-d ones on the CPU. rng: {seed, offset}, moved on. made: room for
 * nstores, receives the new stores. When an input does not fit, nothing is run: *fit says so, with the input's number
 * in *which. Does not wait for the device (except in Debug mode). */
TPU_API TPU_MUST tpu_err *tpu_graph_run(tpu_graph *g, const tpu_tensor *inputs, int n, uint64_t *rng, tpu_store **made,
                                        tpu_fit *fit, int *which);
TPU_API void tpu_graph_release(tpu_graph *g);
/* A graph for another process: as bytes (to tpu_bytes_free), and back. Only one that tpu_capture_end_text made, of
 * known sizes, that holds no tensors. They are good for the version that wrote them, on a device of the same kind. */
TPU_API TPU_MUST tpu_err *tpu_graph_store(const tpu_graph *g, char **bytes, size_t *n);
TPU_API void tpu_bytes_free(char *bytes);
TPU_API TPU_MUST tpu_err *tpu_graph_stored(const char *bytes, size_t n, const char *op, tpu_graph **out);
/* Compiles what tpu_capture_end_text or tpu_graph_stored made, or finds it in a cache, and forgets its text. Before the
 * first run, and not beside another call with this graph. */
TPU_API TPU_MUST tpu_err *tpu_graph_compile(tpu_graph *g);

/* ---- ahead of time: programs for devices that are not here ------------------------------------------------------ */

/* Until the capture ends, rows build what suits a TPU, whatever the plugin in use is, and each operation carries the
 * operator and the line of the user's program (tpu_set_where) that it comes from. Right after tpu_capture_begin. */
TPU_API TPU_MUST tpu_err *tpu_capture_for_tpu(void);
/* Like tpu_capture_end, but compiles nothing: the graph keeps its text. It is compiled when it is run. */
TPU_API TPU_MUST tpu_err *tpu_capture_end_text(const tpu_tensor *outputs, int noutputs, const char *op,
                                               const char *name, tpu_graph **out);
/* Its StableHLO, lent; "" when it has no outputs, or was made by tpu_capture_end. */
TPU_API const char *tpu_graph_text(const tpu_graph *g);
/* What the program's parameter i is: the number of an input; -1 the generator's state; -2 a tensor that was on the
 * device before. -3 past the end. */
TPU_API int tpu_graph_parameter(const tpu_graph *g, int i);
/* Where the program's output i goes: the number of the input that it is written to; -1: a new store. -3 past the end.
 */
TPU_API int tpu_graph_output(const tpu_graph *g, int i);

/* Its output i as the program gives it: dtype, and sizes in the order of memory (lent). False past the end. */
TPU_API bool tpu_graph_get_output(const tpu_graph *g, int i, tpu_tensor *out);
/* Its new store k: bytes, and which output of the program is its value; -1: none. False past the end. */
TPU_API bool tpu_graph_get_store(const tpu_graph *g, int k, size_t *nbytes, int *output);
/* Whether an output may take the place of parameter i. */
TPU_API bool tpu_graph_donated(const tpu_graph *g, int i);

/* A program that somebody gives as StableHLO, instead of a capture: text, or what else the plugin reads, with one
 * function @main. Tensors: their sizes and dtypes; all are dense and row-major, unless inputs have strides. */
typedef struct {
  int device;
  const char *text;
  size_t len;
  bool executable;          /* text is none: it is what the plugin serialized (tpu_aot_serialize), and is loaded */
  const tpu_tensor *inputs; /* what tpu_graph_run gets; strides: NULL, or dense in some order */
  const int *parameters;    /* of @main: numbers of inputs, or -1: the generator's state */
  const tpu_tensor *outputs;
  const int *places; /* where they go: the number of the input that is written, or -1: a new store */
  int ninputs, nparameters, noutputs;
  int64_t blocks; /* by how much a run moves the generator on; tpu_graph_blocks */
  /* What a run gives: views of new stores (numbered in order of the outputs that go to one; behind them `nempty` stores
   * without a value) and of inputs. NULL: each new store, dense. */
  const tpu_graph_result *results;
  int nresults, nempty;
  const size_t *empty; /* bytes of those */
} tpu_given;
/* Compiles it, or finds it in a cache. op lives for the process; all else is copied. */
TPU_API TPU_MUST tpu_err *tpu_graph_given(const tpu_given *given, const char *op, const char *name, tpu_graph **out);
TPU_API int64_t tpu_graph_blocks(const tpu_graph *g);
/* The hash that the files of TORCH_TPU_DUMP are named by, 32 digits; "" when nothing runs. */
TPU_API void tpu_graph_hash(const tpu_graph *g, char out[33]);
/* The name of its executable in a cache folder, without the suffix ".tpux"; "" when there is none. */
TPU_API void tpu_graph_entry(const tpu_graph *g, char out[33]);

/* A capture of a program for all devices of a mesh, which the compiler divides into equal partitions. Names and sizes
 * of its axes, outermost first. Right after tpu_capture_begin. */
TPU_API TPU_MUST tpu_err *tpu_capture_mesh(int naxes, const char *const *names, const int64_t *sizes);
/* Where input i is: for each axis of the mesh the dim that is split over it, or -1 when all devices along the axis hold
 * the same. What the graph writes to the input has the same place. Inputs without a place are the compiler's choice. */
TPU_API TPU_MUST tpu_err *tpu_capture_place(int i, const int64_t *place);
/* A store for the value of a dense tensor, which is to be at this place. */
TPU_API TPU_MUST tpu_err *tpu_capture_constrain(const tpu_tensor *in, const int64_t *place, tpu_store **out);

typedef struct tpu_topology tpu_topology; /* lives for the process */
typedef struct {
  const char *name, *platform, *platform_version;
  const char *kind; /* of a device: "TPU v5 lite" */
  int device_count;
  int pjrt_major, pjrt_minor;
  const char *stablehlo_version;
} tpu_topology_info;
/* The topology `name` ("v5e:2x2") of the plugin at this path, which is loaded beside the one in use. Kept: the second
 * time costs nothing. */
TPU_API TPU_MUST tpu_err *tpu_topology_get(const char *plugin, const char *name, tpu_topology **out);
TPU_API void tpu_topology_describe(const tpu_topology *t, tpu_topology_info *out);

typedef struct {
  int id;            /* as compile options name it */
  int ncoords;       /* 0: nothing is known of where it is */
  int64_t coords[6]; /* of its chip in the torus, then its number on the chip */
} tpu_topology_place;
TPU_API TPU_MUST tpu_err *tpu_topology_device(const tpu_topology *t, int i, tpu_topology_place *out);
/* The id of the device at each position of a mesh over all devices, row-major (room for device_count): its axes follow
 * the links between devices. */
TPU_API TPU_MUST tpu_err *tpu_topology_assign(const tpu_topology *t, int naxes, const int64_t *sizes, int *out);

/* The devices of the plugin in use, as the topology "here": of programs that are compiled for one of them. */
TPU_API TPU_MUST tpu_err *tpu_topology_here(tpu_topology **out);

typedef struct tpu_aot tpu_aot; /* a compiled program; used by one thread at a time */
/* Compiles StableHLO text for one device of the topology. options: a serialized CompileOptionsProto, NULL: those of
 * programs that run on a TPU.
 * Blocks. Any number of threads may compile at once. */
TPU_API TPU_MUST tpu_err *tpu_aot_compile(tpu_topology *t, const char *text, size_t len, const char *options,
                                          size_t options_len, tpu_aot **out);
/* Compiles a program with a mesh (tpu_capture_mesh) for all devices of the topology: partition i is on the device with
 * the id devices[i]. Figures are of one device. */
TPU_API TPU_MUST tpu_err *tpu_aot_compile_partitions(tpu_topology *t, const char *text, size_t len, const int *devices,
                                                     tpu_aot **out);
typedef struct {
  int64_t arguments, outputs, aliased, temporaries, code, peak; /* bytes on one device, as the compiler says */
} tpu_aot_memory_stats;
TPU_API TPU_MUST tpu_err *tpu_aot_memory(tpu_aot *a, tpu_aot_memory_stats *out);
typedef void (*tpu_aot_cost_fn)(void *ctx, const char *name, double value);
TPU_API TPU_MUST tpu_err *tpu_aot_cost(tpu_aot *a, tpu_aot_cost_fn fn, void *ctx);
/* Lent, until the next of these two calls. format: "hlo_with_config". */
TPU_API TPU_MUST tpu_err *tpu_aot_program(tpu_aot *a, const char **bytes, size_t *n, const char **format);
TPU_API TPU_MUST tpu_err *tpu_aot_serialize(tpu_aot *a, const char **bytes, size_t *n);
/* Which processes can load the executable: lines "NAME VALUE" (platform, version, plugin, device), lent like the bytes.
 * The second: those of this process. */
TPU_API TPU_MUST tpu_err *tpu_aot_host(tpu_aot *a, const char **text);
TPU_API TPU_MUST tpu_err *tpu_aot_host_here(const char **text); /* for the process */
TPU_API void tpu_aot_release(tpu_aot *a);
/* Writes the executable, which was compiled from this text with options NULL, to an executable cache folder, under the
 * name by which a process with this plugin on such devices looks for it. */
TPU_API TPU_MUST tpu_err *tpu_aot_keep(tpu_aot *a, const char *text, size_t len, const char *folder);

/* From now on the text of each program, and how often it runs, is kept. */
TPU_API void tpu_watch_begin(void);
typedef struct {
  const char *text; /* StableHLO; all lent for the process */
  size_t len;
  const char *op, *where; /* what it was first made for: operators, and file:line or "" */
  int64_t runs;
} tpu_watched;
typedef void (*tpu_watch_fn)(void *ctx, const tpu_watched *w);
/* Calls fn for each program, from number `from` on, in order of their first use. */
TPU_API void tpu_watch_each(int from, tpu_watch_fn fn, void *ctx);

/* host (dense, row-major, C-contiguous) -> tensor, and back. The write returns when host may be reused; the read
 * blocks until the value is there and raises an error that an earlier asynchronous call left. nbytes of host =
 * number of elements * element size. */
TPU_API TPU_MUST tpu_err *tpu_copy_from_host(const tpu_tensor *dst, const void *host);
TPU_API TPU_MUST tpu_err *tpu_copy_to_host(const tpu_tensor *src, void *host);
/* dst <- src on another device; same sizes and dtype. */
TPU_API TPU_MUST tpu_err *tpu_copy_across(const tpu_tensor *dst, const tpu_tensor *src);

/* ---- modes, events, counters ------------------------------------------------------------------------------------ */

typedef enum { TPU_STRICT = 0, TPU_DEBUG = 1, TPU_DEFER_AND_FUSE = 2 } tpu_eager_mode;
TPU_API tpu_eager_mode tpu_get_eager_mode(void);
TPU_API void tpu_set_eager_mode(tpu_eager_mode m);

/* float32 matmul and convolution: 0 "highest" (float32), 1 "high" (bf16_3x), 2 "medium"/default passes (bf16). */
TPU_API void tpu_set_matmul_precision(int p);
TPU_API int tpu_get_matmul_precision(void);
/* PyTorch's default floating dtype (torch.get_default_dtype); part of the call key. */
TPU_API void tpu_set_default_dtype(tpu_dtype d);

typedef struct tpu_event tpu_event;
/* Marks what has been enqueued on the device so far. */
TPU_API TPU_MUST tpu_err *tpu_event_record(int device, tpu_event **out);
TPU_API bool tpu_event_done(tpu_event *e);
TPU_API TPU_MUST tpu_err *tpu_event_wait(tpu_event *e); /* blocks */
/* Milliseconds between two completed events, by host clock at completion. Blocks until both are done. */
TPU_API TPU_MUST tpu_err *tpu_event_elapsed(tpu_event *a, tpu_event *b, double *ms);
TPU_API void tpu_event_release(tpu_event *e);

typedef struct {
  int64_t calls;    /* tpu_call_run */
  int64_t compiles; /* programs compiled by the plugin */
  int64_t compile_ns;
  int64_t executions;                 /* programs run */
  int64_t key_hits, key_misses;       /* call keys */
  int64_t program_hits;               /* a new call key whose program was known */
  int64_t number_hits, number_misses; /* device buffers of Python numbers and view starts */
  int64_t host_reads;
  int64_t key_entries, program_entries, number_entries; /* held now */
  int64_t build_ns;                                     /* building graphs and printing them, for new call keys */
  int64_t disk_hits, disk_misses;                       /* programs looked for in the cache folders */
  int64_t disk_ns;                                      /* reading and loading those that were found */
  int64_t deferred, fused; /* calls that waited; those that ran in one program with others */
  int64_t flushes[7];      /* by reason: read, sync, event, mode, ops, bytes, repeat */
} tpu_stats;
TPU_API void tpu_get_stats(tpu_stats *out);

typedef struct {
  int64_t allocated, allocated_peak; /* bytes of live stores */
  int64_t stores, stores_peak;       /* live stores */
  int64_t total_allocated;           /* bytes, since the start */
  int64_t limit;                     /* bytes that the device can hold */
  int64_t ooms;
} tpu_memory_stats;
TPU_API void tpu_get_memory_stats(int device, tpu_memory_stats *out);
TPU_API void tpu_reset_peak_memory(int device);
/* Drops cached number buffers; keeps programs. */
TPU_API void tpu_empty_cache(void);

/* ---- seeing what happens --------------------------------------------------------------------------------------- */

typedef enum {
  TPU_EXPLAIN_FLUSH,   /* deferred calls were handed on; detail: the reason, as in tpu_stats.flushes */
  TPU_EXPLAIN_RUN,     /* a program was given to the plugin; calls: how many calls it stands for */
  TPU_EXPLAIN_COMPILE, /* text: the operators */
  TPU_EXPLAIN_LOAD,    /* a program came from disk */
  TPU_EXPLAIN_READ,    /* the host read a value; text: where, file:line */
  TPU_EXPLAIN_FALLBACK /* text: the operator */
} tpu_explain_kind;
typedef struct {
  tpu_explain_kind kind;
  int detail;
  int64_t calls, start_ns, duration_ns; /* by the monotonic clock */
  int64_t bytes; /* RUN: read and written, by the plugin's analysis of the program; -1: unknown, or not asked for */
  const char *text;
} tpu_explained;
typedef void (*tpu_explain_fn)(void *ctx, const tpu_explained *e);
/* From begin to end everything of these kinds is kept; end gives it to fn (may be NULL), in order. Nests. traffic: the
 * bytes of each program too, which costs an analysis of it. */
TPU_API void tpu_explain_begin(bool traffic);
TPU_API void tpu_explain_end(bool traffic, tpu_explain_fn fn, void *ctx);
TPU_API void tpu_explain_note(tpu_explain_kind kind, const char *text);

/* Who knows which line of the user's program is running: writes "file:line", or "", to out. Called without locks, for
 * explain and for errors in Debug mode. */
typedef void (*tpu_where_fn)(char *out, size_t n);
TPU_API void tpu_set_where(tpu_where_fn fn);
TPU_API const char *tpu_where(char *out, size_t n); /* asks it; gives out */

/* What a program that has to be compiled is: 0 nothing special, 1 a warning, 2 an error. */
TPU_API void tpu_set_compile_policy(int policy);
TPU_API int tpu_get_compile_policy(void);
/* Debug mode: a floating result with a NaN (1), or a NaN or an infinity (2), is an error; 0: not looked for. */
TPU_API void tpu_set_debug_nan(int level);
TPU_API int tpu_get_debug_nan(void);

/* ---- the executable cache on disk ------------------------------------------------------------------------------ */

/* The user's folder (shared: the one for all hosts of a job), by the environment; "" when there is none. */
TPU_API const char *tpu_cache_folder(bool shared);
/* Calls fn for each entry of a folder: name, bytes, seconds since 1970 of the last use, and whether the entry is whole
 * (read only when `verify`, else true). fn gives false to have it removed. An error when the folder is refused. */
typedef bool (*tpu_cache_entry_fn)(void *ctx, const char *name, int64_t nbytes, int64_t used, bool good);
TPU_API TPU_MUST tpu_err *tpu_cache_each(const char *folder, bool verify, tpu_cache_entry_fn fn, void *ctx);
/* Opens a file that holds an executable, unless somebody else could have written it (docs/cache.md). */
TPU_API TPU_MUST tpu_err *tpu_cache_open_file(const char *path, int *fd);
/* Removes the least recently used entries until `limit` bytes are left; below 0: TORCH_TPU_CACHE_SIZE. */
TPU_API TPU_MUST tpu_err *tpu_cache_prune(const char *folder, int64_t limit);

#ifdef __cplusplus
}
#endif
#endif
