/* ir.h - the graph: StableHLO values built by functions that infer and check types, printed as canonical MLIR text.
 *
 * A value (`val`) has one tensor type. Everything lives in the graph's arena. The first error sticks in the graph
 * (`ir_error`); later calls are harmless and give a poison value of rank 0, never NULL; the owner asks once.
 * Functions check what StableHLO's specification asks (the constraint is named in the message) and infer the result.
 * Operands of element-wise functions must have equal shapes and dtypes: promotion and broadcasting as PyTorch does
 * them live one room up, in src/ops/.
 *
 * Dead operations are not printed. Ids are given in order of appearance, so equal graphs give equal text.
 */
#ifndef TPU_IR_IR_H
#define TPU_IR_IR_H
#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/hash.h"

typedef struct ir_graph ir_graph;
typedef struct ir_value ir_value;
typedef ir_value *val;

struct ir_value {
  struct ir_op *op;    /* the operation that makes it; NULL for a parameter or region argument */
  const int64_t *dims; /* ndim sizes */
  uint8_t dtype;       /* tpu_dtype */
  uint8_t weak;        /* 1: a Python number (takes part in promotion as PyTorch's wrapped number); set by src/ops */
  uint16_t index;      /* which result of op */
  int16_t ndim;
  int32_t id; /* set while printing */
};

/* The element-wise operations and others without attributes, one row each in ops.def: X(ID, "stablehlo.name", arity).
 */
typedef enum {
#define X(id, name, arity) IR_##id,
#include "ir/ops.def"
#undef X
  IR_OP_COUNT
} ir_opcode;

/* ---- graph ----------------------------------------------------------------------------------------------------- */

ir_graph *ir_new(void); /* NULL: out of memory */
void ir_free(ir_graph *g);
arena *ir_arena(ir_graph *g);
/* The program is for XLA's CPU backend: some operations are then written in another, equal way that it runs faster. */
void ir_set_cpu(ir_graph *g);
bool ir_is_cpu(const ir_graph *g);
/* The graph is one of several that ir_bucket compares: forms of operations must not depend on how large something is.
 */
void ir_set_sizes_vary(ir_graph *g);
bool ir_sizes_vary(const ir_graph *g);
/* The program is for a compiler that takes kernels (mosaic.h). */
void ir_set_kernels(ir_graph *g);
bool ir_kernels(const ir_graph *g);
/* Operations made from now on carry this operator's name and place ("file:line", or "") as their MLIR location. A graph
 * for which this is never called has none, and its text does not depend on where it was built. */
void ir_set_location(ir_graph *g, const char *op, const char *where);
/* The first error, owned by the caller from now on; NULL if all is well (out of memory included). */
TPU_MUST tpu_err *ir_take_error(ir_graph *g);
bool ir_failed(const ir_graph *g);
/* Records an error (if it is the first) and gives the poison value. */
val ir_fail(ir_graph *g, tpu_err_kind kind, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* A parameter of the program, in order of the calls. */
val ir_param(ir_graph *g, tpu_dtype dtype, int ndim, const int64_t *dims);
int ir_param_count(const ir_graph *g);
val ir_param_value(const ir_graph *g, int i);
/* Adds a result of the program. alias: the parameter whose buffer the result may reuse (donation), or -1. */
void ir_output(ir_graph *g, val v, int alias);
int ir_output_count(const ir_graph *g);
val ir_output_value(const ir_graph *g, int i);
/* "tensor<4x5xf32>", in a's memory; NULL when that is full. */
const char *ir_type_text(arena *a, val v);

/* Sharded programs: one program for all devices of a mesh, a partition each, which the compiler divides. Call it first.
 * names and sizes of the axes: outermost first. */
void ir_set_mesh(ir_graph *g, int naxes, const char *const *names, const int64_t *sizes);
int ir_mesh_axes(const ir_graph *g); /* 0: no mesh */
/* A place says for each axis of the mesh which dim of the tensor is split over it, or -1: all devices along the axis
 * hold the same. The first axis of a dim is the outermost. A parameter or result without one is the compiler's choice.
 */
void ir_place_param(ir_graph *g, val param, const int64_t *place);
void ir_place_output(ir_graph *g, int i, const int64_t *place);
val ir_constrain(ir_graph *g, val v, const int64_t *place); /* v, which is to be at this place */
int64_t ir_axis_size(const ir_graph *g, int axis);
/* Where v is likely to be: the place of the nearest value with one among those that it is made of. False: none was
 * found; the compiler may choose otherwise, so this is only for what is right anywhere. */
bool ir_find_place(ir_graph *g, val v, int64_t *place);
/* What is built in between is one device's program on its parts: args, of the divided sizes. Results (at most 16) are
 * parts too; out are the whole ones. The compiler brings operands to their places. */
void ir_manual_begin(ir_graph *g, const val *in, int n, const int64_t *const *places, val *args);
void ir_manual_end(ir_graph *g, const val *results, int n, const int64_t *const *places, val *out);

/* Drops the parameters that no output needs. kept[i]: the old number of parameter i (room for ir_param_count before).
 * Gives how many are left. To be called once, before ir_print; aliases of outputs follow. */
int ir_prune_params(ir_graph *g, int *kept);

/* The module's text ("module @tpu { func.func public @main ... }"), dead operations left out. Parameters that are not
 * used stay (so that positions hold) unless ir_prune_params dropped them. */
TPU_MUST tpu_err *ir_print(ir_graph *g, buf *out);

/* ---- one program for all sizes of a bucket ---------------------------------------------------------------------- */

/* Symbols are sizes (or other numbers) that change from run to run. A number that depends on them: c + k[i] * symbol i.
 */
enum { IR_MAX_SYMBOLS = 4 };
typedef struct {
  int64_t c, k[IR_MAX_SYMBOLS];
} ir_linear;
/* How many elements of a dim count. A dim is a product of atoms, the outermost first: (4, s) seen as 4 * s has two. */
typedef struct {
  int64_t size;    /* with padding */
  ir_linear count; /* the first `count` of them count */
  bool dynamic;    /* count depends on symbols */
  bool uniform;    /* all elements are equal along it */
  bool known;      /* count is known; else the size is no linear function (and uniform) */
} ir_atom;
typedef struct {
  int natoms;
  ir_atom *atoms;
} ir_extent;
typedef struct {
  int nsymbols, nsamples;
  ir_graph *const *samples; /* the same program, made for other values of the symbols */
  const int64_t *sizes;     /* values of the symbols: those of g, then of each sample */
  ir_extent *const *params; /* of each parameter that comes padded: an extent for each dim; else NULL */
  const bool *pack;         /* of each output: whether it is to leave flat */
  const bool *written;      /* of each output: whether it is the new value of an input */
  ir_extent **outputs;      /* out: an extent for each dim of an output that depends on symbols; else NULL */
  uint32_t *epochs;         /* inside only */
} ir_bucket_spec;
/* Makes of g, whose sizes are the largest of a bucket, a program for all values of the symbols between those of the
 * samples. A new parameter for each symbol, an int64 scalar, comes behind the others. A parameter whose size changes
 * becomes flat, [number of elements when padded]: the elements of the true size stand in front, densely; a packed
 * output likewise. The samples give for each symbol two values, and one sample where all are the smallest when there
 * are several symbols. An error: the program cannot be padded, or is another one for other sizes. g and the samples are
 * used up. */
TPU_MUST tpu_err *ir_bucket(ir_graph *g, ir_bucket_spec *spec);
/* The extents of a value of `nin` dims seen with other dims (as a reshape); false if one would cut what counts. */
bool ir_regroup(arena *mem, const ir_extent *in, int nin, const int64_t *dims, int ndim, ir_extent *out);

/* ---- small questions ------------------------------------------------------------------------------------------- */

int64_t ir_numel(val v);
bool ir_same_dims(val a, val b);
static inline bool ir_is_float(tpu_dtype d) {
  return d == TPU_F32 || d == TPU_BF16 || d == TPU_F16 || d == TPU_F64 || (d >= TPU_F8E5M2 && d <= TPU_F8E4M3FNUZ) ||
         d == TPU_F8E8M0FNU;
}
static inline bool ir_is_complex(tpu_dtype d) { return d == TPU_C64 || d == TPU_C128; }
static inline bool ir_is_unsigned(tpu_dtype d) { return d == TPU_U8 || d == TPU_U16 || d == TPU_U32 || d == TPU_U64; }
static inline bool ir_is_int(tpu_dtype d) { return d <= TPU_I64 || ir_is_unsigned(d); } /* not bool */
static inline tpu_dtype ir_real_dtype(tpu_dtype d) { return d == TPU_C64 ? TPU_F32 : d == TPU_C128 ? TPU_F64 : d; }

/* The element's bits of a floating dtype of at most 64 bits, rounded to nearest even, as PyTorch converts a number. */
uint64_t ir_float_bits(tpu_dtype d, double v);

/* ---- constants and shapes -------------------------------------------------------------------------------------- */

/* Splat constants of any shape; the value is converted to dtype exactly as C does (bool: value != 0). */
val ir_const_f(ir_graph *g, tpu_dtype dtype, double v, int ndim, const int64_t *dims);
val ir_const_i(ir_graph *g, tpu_dtype dtype, int64_t v, int ndim, const int64_t *dims);
val ir_const_c(ir_graph *g, tpu_dtype dtype, double re, double im, int ndim, const int64_t *dims);
/* The lowest / highest value of dtype: -inf / +inf for floats, the extremes for integers, false / true for bool. */
val ir_const_min(ir_graph *g, tpu_dtype dtype, int ndim, const int64_t *dims);
val ir_const_max(ir_graph *g, tpu_dtype dtype, int ndim, const int64_t *dims);
/* A dense constant: numel numbers, row-major. dtype integer or bool / float. */
val ir_const_ints(ir_graph *g, tpu_dtype dtype, const int64_t *v, int ndim, const int64_t *dims);
val ir_const_floats(ir_graph *g, tpu_dtype dtype, const double *v, int ndim, const int64_t *dims);
val ir_iota(ir_graph *g, tpu_dtype dtype, int ndim, const int64_t *dims, int dim);

val ir_convert(ir_graph *g, val x, tpu_dtype dtype); /* stablehlo.convert; same dtype: x itself; to bool: x != 0 */
val ir_bitcast(ir_graph *g, val x, tpu_dtype dtype); /* bitcast_convert; changes the last dim as the spec says */
val ir_reshape(ir_graph *g, val x, int ndim, const int64_t *dims); /* same dims: x itself */
/* map[i]: which dim of the result dim i of x becomes; x's size there must be 1 or equal. */
val ir_broadcast(ir_graph *g, val x, int ndim, const int64_t *dims, const int *map);
val ir_splat(ir_graph *g, val scalar, int ndim, const int64_t *dims); /* rank 0 -> any shape */
val ir_transpose(ir_graph *g, val x, const int *perm); /* result dim i is x's dim perm[i]; identity: x itself */
val ir_reverse(ir_graph *g, val x, int n, const int *rev);
val ir_slice(ir_graph *g, val x, const int64_t *start, const int64_t *limit, const int64_t *step);
val ir_dynamic_slice(ir_graph *g, val x, const val *starts, const int64_t *sizes); /* starts: ndim scalars */
val ir_dynamic_update_slice(ir_graph *g, val x, val update, const val *starts);
/* low, high may be negative; interior >= 0 */
val ir_pad(ir_graph *g, val x, val scalar, const int64_t *low, const int64_t *high, const int64_t *interior);
val ir_concat(ir_graph *g, const val *xs, int n, int dim);

/* ---- element-wise ---------------------------------------------------------------------------------------------- */

val ir_unary(ir_graph *g, ir_opcode op,
             val x); /* result dtype as the op has it (ABS, REAL, IMAG of complex: the real dtype; IS_FINITE: bool) */
val ir_binary(ir_graph *g, ir_opcode op, val a, val b); /* COMPLEX: two reals -> complex */
typedef enum { IR_EQ, IR_NE, IR_LT, IR_LE, IR_GT, IR_GE } ir_cmp;
val ir_compare(ir_graph *g, ir_cmp c, val a,
               val b); /* compare_type by dtype: FLOAT, SIGNED, UNSIGNED; EQ, NE only for complex */
val ir_compare_total(ir_graph *g, ir_cmp c, val a, val b);       /* TOTALORDER, floats */
val ir_select(ir_graph *g, val pred, val on_true, val on_false); /* pred: rank 0 or the same shape */
val ir_clamp(ir_graph *g, val lo, val x, val hi);                /* lo, hi: rank 0 or the same shape */
val ir_reduce_precision(ir_graph *g, val x, int exponent_bits, int mantissa_bits);

/* ---- reductions and windows ------------------------------------------------------------------------------------ */

/* Bodies: IR_ADD, IR_MUL, IR_MAX, IR_MIN, IR_AND, IR_OR, IR_XOR on scalars of x's dtype. init: rank 0. The reduced dims
 * go. */
val ir_reduce(ir_graph *g, ir_opcode body, val x, val init, int n, const int *dims);
/* Any body: between begin and end, build on the 2*n scalar arguments (accumulators, then elements). */
void ir_reduce_begin(ir_graph *g, const val *xs, const val *inits, int n, int ndims, const int *dims, val *body_args);
void ir_reduce_end(ir_graph *g, const val *body_results, val *out);
typedef struct {
  const int64_t *size, *stride, *base_dilation, *window_dilation, *pad_low,
      *pad_high; /* rank numbers each; NULL: 1 (pads: 0) */
} ir_window;
val ir_reduce_window(ir_graph *g, ir_opcode body, val x, val init, const ir_window *w);
/* Any body, n inputs of equal shape (max pooling with indices: values and indices). */
void ir_reduce_window_begin(ir_graph *g, const val *xs, const val *inits, int n, const ir_window *w, val *body_args);
void ir_reduce_window_end(ir_graph *g, const val *body_results, val *out);
/* select: IR_GE or IR_LE picks the element, scatter adds. nan: a NaN is picked before a number, the last of several.
 * base/window dilation must be 1. */
val ir_select_and_scatter(ir_graph *g, val x, val source, val init, ir_cmp select, bool nan, const ir_window *w);

/* ---- matmul, convolution --------------------------------------------------------------------------------------- */

/* Result dims: batch, then lhs free, then rhs free. out: result dtype (accumulation type). precision: 0 highest,
 * 1 high, 2 default. */
val ir_dot(ir_graph *g, val a, val b, int nbatch, const int *a_batch, const int *b_batch, int ncontract,
           const int *a_contract, const int *b_contract, tpu_dtype out, int precision);
/* x: [N, C, spatial...], w: [O, C/groups, spatial...] -> [N, O, spatial...]; pads may be negative; x_dilation is the
 * base dilation (transposed convolution). Other dimension orders: ir_conv_general. */
typedef struct {
  int batch, feature; /* dims of x */
  const int *spatial; /* of x, rank - 2 numbers */
  int k_in, k_out;    /* dims of w: input feature, output feature */
  const int *k_spatial;
  int out_batch, out_feature;
  const int *out_spatial;
} ir_conv_dims;
val ir_conv(ir_graph *g, val x, val w, const ir_conv_dims *d, const int64_t *stride, const int64_t *pad_low,
            const int64_t *pad_high, const int64_t *x_dilation, const int64_t *w_dilation, const bool *w_reversal,
            int64_t feature_groups, int64_t batch_groups, tpu_dtype out, int precision);

/* ---- indexing -------------------------------------------------------------------------------------------------- */

typedef struct {
  int noffset;
  const int *offset_dims;
  int ncollapsed;
  const int *collapsed_dims;
  int nbatching;
  const int *operand_batching, *indices_batching;
  int nstart;
  const int *start_index_map;
  int index_vector_dim;
} ir_gather_dims;
val ir_gather(ir_graph *g, val x, val indices, const ir_gather_dims *d, const int64_t *slice_sizes, bool sorted);
typedef struct {
  int nwindow;
  const int *update_window_dims;
  int ninserted;
  const int *inserted_window_dims;
  int nbatching;
  const int *operand_batching, *indices_batching;
  int nscatter;
  const int *scatter_dims_to_operand;
  int index_vector_dim;
} ir_scatter_dims;
/* body: IR_ADD, IR_MUL, IR_MAX, IR_MIN, IR_AND, IR_OR; or -1: the update replaces. unique: no index twice. */
val ir_scatter(ir_graph *g, val x, val indices, val updates, const ir_scatter_dims *d, int body, bool sorted,
               bool unique);

/* Sorts n values of equal shape along dim by a comparator built between begin and end on 2*n scalars
 * (a0, b0, a1, b1, ...): `less` is a bool scalar. */
void ir_sort_begin(ir_graph *g, const val *xs, int n, int dim, bool stable, val *body_args);
void ir_sort_end(ir_graph *g, val less, val *out);

/* The k largest along the last dim, in order, and their places (int32): chlo.top_k. NaN with the sign bit clear is the
 * largest. */
void ir_top_k(ir_graph *g, val x, int64_t k, val *values, val *places);

/* ---- control flow ---------------------------------------------------------------------------------------------- */

void ir_while_begin(ir_graph *g, const val *init, int n, val *cond_args); /* build the condition on cond_args */
void ir_while_body(ir_graph *g, val cond, val *body_args);                /* then the body on body_args */
void ir_while_end(ir_graph *g, const val *body_results, val *out);
void ir_if_begin(ir_graph *g, val pred);                 /* build the true branch; regions see outer values */
void ir_if_else(ir_graph *g, const val *results, int n); /* then the false branch */
void ir_if_end(ir_graph *g, const val *results, int n, val *out);

/* ---- the rest -------------------------------------------------------------------------------------------------- */

/* Philox 4x32 on state tensor<2xui64>; gives the new state and ui32 or ui64 bits. */
void ir_rng_philox(ir_graph *g, val state, tpu_dtype bits, int ndim, const int64_t *dims, val *new_state, val *out);
typedef enum { IR_FFT, IR_IFFT, IR_RFFT, IR_IRFFT } ir_fft_kind;
val ir_fft(ir_graph *g, val x, ir_fft_kind kind, int n, const int64_t *lengths); /* the last n dims */
val ir_cholesky(ir_graph *g, val x, bool lower);
val ir_triangular_solve(ir_graph *g, val a, val b, bool left, bool lower, bool unit,
                        int transpose /* 0 no, 1 T, 2 adjoint */);
/* custom_call; attrs: extra attribute text such as `backend_config = "..."`, or NULL. Result types are given. */
void ir_custom_call(ir_graph *g, const char *target, const char *attrs, const val *in, int nin, int nout,
                    const tpu_dtype *dtypes, const int *ndims, const int64_t *const *dims, val *out);
void ir_barrier(ir_graph *g, const val *in, int n, val *out);
#endif
