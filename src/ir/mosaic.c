/* mosaic.c - prints kernels. The generic form of MLIR, each operation with the prefix of the stable dialect, whose
 * version says how the attributes are to be read (jax-ml/jax, jaxlib/mosaic: serde and tpu.td). */
#include "ir/mosaic.h"

#include "ir/node.h"

enum { STABLE_VERSION = 11 }; /* of libtpu 0.0.52; a newer compiler reads older versions */

typedef struct {
  mval ref;
  mosaic_at at; /* NULL: scratch */
  const void *ctx;
} memory;

struct mosaic {
  ir_graph *g;
  const char *name;
  int ngrid, parallel, nrefs, nids, depth;
  int64_t grid[MOSAIC_MAX_GRID];
  mval point[MOSAIC_MAX_GRID];
  memory refs[MOSAIC_MAX_REFS];
  buf text; /* of the function that is being written */
};

/* ---- text ------------------------------------------------------------------------------------------------------ */

static const char *element(const mval *a) { return a->dtype == TPU_I64 ? "index" : node_mlir((tpu_dtype)a->dtype); }

static void put_type(buf *b, const mval *a) {
  if (a->where == MOSAIC_VALUE && !a->ndim) {
    buf_str(b, element(a));
    return;
  }
  buf_str(b, a->where == MOSAIC_VALUE ? "vector<" : "memref<");
  for (int i = 0; i < a->ndim; i++) buf_printf(b, "%lldx", (long long)a->dims[i]);
  buf_str(b, element(a));
  if (a->where != MOSAIC_VALUE) buf_printf(b, ", #tpu.memory_space<%s>", a->where == MOSAIC_VMEM ? "vmem" : "smem");
  buf_char(b, '>');
}

static void put_list(buf *b, const mval *v, int n, bool types) {
  for (int i = 0; i < n; i++) {
    if (i) buf_str(b, ", ");
    if (types) put_type(b, &v[i]);
    else buf_printf(b, "%%%c%d", v[i].prefix, (int)v[i].id);
  }
}

static mval typed(mosaic *m, tpu_dtype d, int ndim, const int64_t *dims) {
  mval r = {.prefix = 'v', .dtype = (uint8_t)d, .where = MOSAIC_VALUE, .ndim = ndim};
  if (ndim < 0 || ndim > MOSAIC_RANK) {
    ir_fail(m->g, TPU_ERR_RUNTIME, "mosaic: expected at most %d dims, got %d", MOSAIC_RANK, ndim);
    r.ndim = 0;
  }
  for (int i = 0; i < r.ndim; i++) r.dims[i] = dims[i];
  return r;
}

static bool same_type(mval a, mval b) {
  if (a.dtype != b.dtype || a.ndim != b.ndim || a.where != b.where) return false;
  for (int i = 0; i < a.ndim; i++)
    if (a.dims[i] != b.dims[i]) return false;
  return true;
}

static void expect(mosaic *m, bool holds, const char *op, const char *what) {
  if (!holds) ir_fail(m->g, TPU_ERR_RUNTIME, "mosaic: %s: expected %s", op, what);
}

static void indent(mosaic *m) {
  for (int i = 0; i < m->depth + 2; i++) buf_str(&m->text, "  ");
}

/* One operation. result: its type, or NULL for none. */
static mval put(mosaic *m, const char *op, const mval *in, int n, const char *attrs, const mval *result) {
  mval r = result ? *result : (mval){0};
  buf *b = &m->text;
  indent(m);
  if (result) {
    r.id = ++m->nids;
    r.prefix = 'v';
    r.where = MOSAIC_VALUE;
    buf_printf(b, "%%v%d = ", (int)r.id);
  }
  buf_printf(b, "\"stable_mosaic.%s\"(", op);
  put_list(b, in, n, false);
  buf_printf(b, ") {%s} : (", attrs);
  put_list(b, in, n, true);
  buf_str(b, ") -> ");
  if (result) put_type(b, &r);
  else buf_str(b, "()");
  buf_char(b, '\n');
  return r;
}

#define ATTRS(...) arena_printf(ir_arena(m->g), __VA_ARGS__)

/* ---- operations ------------------------------------------------------------------------------------------------- */

static mval number(mosaic *m, tpu_dtype d, const char *text) {
  mval t = typed(m, d, 0, NULL);
  return put(m, "arith.constant", NULL, 0, ATTRS("value = %s : %s", text, element(&t)), &t);
}
mval mosaic_int(mosaic *m, int64_t v) { return number(m, TPU_I32, ATTRS("%lld", (long long)v)); }
mval mosaic_index(mosaic *m, int64_t v) { return number(m, TPU_I64, ATTRS("%lld", (long long)v)); }
static const char *bits_of(mosaic *m, double v) {
  return ATTRS("0x%08llX", (unsigned long long)ir_float_bits(TPU_F32, v));
}
mval mosaic_float(mosaic *m, double v) { return number(m, TPU_F32, bits_of(m, v)); }

/* A vector of one number. */
static mval dense(mosaic *m, double v, int ndim, const int64_t *dims) {
  mval t = typed(m, TPU_F32, ndim, dims);
  buf *b = attr_begin(m->g);
  put_type(b, &t);
  return put(m, "arith.constant", NULL, 0, ATTRS("value = dense<%s> : %s", bits_of(m, v), attr_end(m->g)), &t);
}

mval mosaic_to_index(mosaic *m, mval a) {
  mval t = typed(m, TPU_I64, 0, NULL);
  return put(m, "arith.index_cast", &a, 1, "", &t);
}

static const char fast[] = "fastmath = #arith.fastmath<none>", wrap[] = "overflowFlags = #arith.overflow<none>";

mval mosaic_binary(mosaic *m, mosaic_op op, mval a, mval b) {
  static const char *const floats[] = {"arith.addf", "arith.subf", "arith.mulf", "arith.divf", "arith.maximumf", NULL};
  static const char *const ints[] = {"arith.addi", "arith.subi", "arith.muli", "arith.divsi", NULL, "arith.andi"};
  bool f = ir_is_float((tpu_dtype)a.dtype);
  const char *name = f ? floats[op] : ints[op];
  expect(m, name && same_type(a, b), name ? name : "an operation", "operands of one type, which it has");
  return put(m, name ? name : "?", (mval[]){a, b}, 2, f ? fast : op <= MOSAIC_MUL ? wrap : "", &a);
}

mval mosaic_compare(mosaic *m, ir_cmp c, mval a, mval b) {
  static const int predicates[] = {[IR_EQ] = 0, [IR_NE] = 1, [IR_LT] = 2, [IR_LE] = 3, [IR_GT] = 4, [IR_GE] = 5};
  expect(m, a.dtype == TPU_I32 && same_type(a, b), "compare", "two int32 of one shape");
  mval t = typed(m, TPU_BOOL, a.ndim, a.dims);
  return put(m, "arith.cmpi", (mval[]){a, b}, 2, ATTRS("predicate = %d : i64", predicates[c]), &t);
}

mval mosaic_select(mosaic *m, mval cond, mval a, mval b) {
  expect(m, same_type(a, b) && cond.dtype == TPU_BOOL, "select", "a condition and two values of one type");
  return put(m, "arith.select", (mval[]){cond, a, b}, 3, "", &a);
}

mval mosaic_exp2(mosaic *m, mval a) { return put(m, "math.exp2", &a, 1, fast, &a); }
mval mosaic_log2(mosaic *m, mval a) { return put(m, "math.log2", &a, 1, fast, &a); }
mval mosaic_bf16(mosaic *m, mval a) {
  mval t = typed(m, TPU_BF16, a.ndim, a.dims);
  return put(m, "arith.truncf", &a, 1, "", &t);
}
mval mosaic_broadcast(mosaic *m, mval a, int ndim, const int64_t *dims) {
  mval t = typed(m, (tpu_dtype)a.dtype, ndim, dims);
  return put(m, "vector.broadcast", &a, 1, "", &t);
}
mval mosaic_reshape(mosaic *m, mval a, int ndim, const int64_t *dims) {
  mval t = typed(m, (tpu_dtype)a.dtype, ndim, dims);
  return put(m, "vector.shape_cast", &a, 1, "", &t);
}
mval mosaic_transpose(mosaic *m, mval a) {
  mval t = typed(m, (tpu_dtype)a.dtype, 2, (const int64_t[]){a.dims[1], a.dims[0]});
  return put(m, "tpu.transpose", &a, 1, "permutation = array<i64: 1, 0>", &t);
}
mval mosaic_iota(mosaic *m, int ndim, const int64_t *dims, int dim) {
  mval t = typed(m, TPU_I32, ndim, dims);
  return put(m, "tpu.iota", NULL, 0, ATTRS("dimensions = array<i32: %d>", dim), &t);
}

mval mosaic_reduce(mosaic *m, mosaic_op op, mval a, double init) {
  expect(m, a.ndim == 2 && a.dtype == TPU_F32 && (op == MOSAIC_ADD || op == MOSAIC_MAX), "reduce",
         "the sum or largest of float32 of rank 2");
  mval in[2] = {a, dense(m, init, 1, &a.dims[1])}, t = typed(m, TPU_F32, 1, &a.dims[1]);
  const char *attrs =
      ATTRS("kind = #vector.kind<%s>, reduction_dims = array<i64: 0>", op == MOSAIC_ADD ? "add" : "maximumf");
  return mosaic_reshape(m, put(m, "vector.multi_reduction", in, 2, attrs, &t), 2, (const int64_t[]){1, a.dims[1]});
}

mval mosaic_matmul(mosaic *m, mval a, int ka, mval b, int kb) {
  expect(m, a.ndim == 2 && b.ndim == 2 && a.dims[ka] == b.dims[kb] && a.dtype == b.dtype, "matmul",
         "two matrices of one dtype with equal inner sizes");
  const int64_t dims[2] = {a.dims[1 - ka], b.dims[1 - kb]};
  mval in[3] = {a, b, dense(m, 0, 2, dims)}, t = typed(m, TPU_F32, 2, dims);
  const char *attrs = ATTRS(
      "dimension_numbers = #tpu.dot_dimension_numbers<[%d], [%d], [%d], [%d], [0, %d, 1, %d], [], []>, transpose_lhs = "
      "false, transpose_rhs = false",
      ka, kb, 1 - ka, 1 - kb, 1 - ka, 1 - kb);
  return put(m, "tpu.matmul", in, 3, attrs, &t);
}

/* ---- memory ----------------------------------------------------------------------------------------------------- */

mval mosaic_load(mosaic *m, mval ref, const mval *at, int ndim, const int64_t *dims) {
  mval in[1 + MOSAIC_RANK] = {ref}, t = typed(m, (tpu_dtype)ref.dtype, ndim, dims);
  expect(m, ref.where == (ndim ? MOSAIC_VMEM : MOSAIC_SMEM) && (!ndim || ndim == ref.ndim), "load",
         "a vector of the memory's rank, or a scalar of SMEM");
  for (int i = 0; i < ref.ndim; i++) in[1 + i] = at[i];
  return put(m, ndim ? "vector.load" : "memref.load", in, 1 + ref.ndim, "", &t);
}

void mosaic_store(mosaic *m, mval v, mval ref, const mval *at) {
  mval in[2 + MOSAIC_RANK] = {v, ref};
  expect(m, ref.where == MOSAIC_VMEM && v.ndim == ref.ndim && v.dtype == ref.dtype, "store",
         "a vector of the memory's rank and dtype");
  for (int i = 0; i < ref.ndim; i++) in[2 + i] = at[i];
  const char *attrs =
      ATTRS("add = false, operandSegmentSizes = array<i32: 1, 1, %d, 0>, strides = array<i32>", ref.ndim);
  put(m, "tpu.vector_store", in, 2 + ref.ndim, attrs, NULL);
}

void mosaic_if(mosaic *m, mval cond) {
  indent(m);
  buf_str(&m->text, "\"stable_mosaic.scf.if\"(");
  put_list(&m->text, &cond, 1, false);
  buf_str(&m->text, ") ({\n");
  m->depth++;
}

void mosaic_endif(mosaic *m) {
  put(m, "scf.yield", NULL, 0, "", NULL);
  m->depth--;
  indent(m);
  buf_str(&m->text, "}, {\n");
  m->depth++;
  put(m, "scf.yield", NULL, 0, "", NULL);
  m->depth--;
  indent(m);
  buf_str(&m->text, "}) : (i1) -> ()\n");
}

/* ---- the kernel ------------------------------------------------------------------------------------------------- */

mosaic *mosaic_begin(ir_graph *g, const char *name, int ngrid, const int64_t *grid, int parallel) {
  mosaic *m = node_ok(g) ? arena_alloc(ir_arena(g), sizeof *m) : NULL;
  if (!m) return NULL;
  if (ngrid < 1 || ngrid > MOSAIC_MAX_GRID) {
    ir_fail(g, TPU_ERR_RUNTIME, "mosaic: expected a grid of 1 to %d dims, got %d", MOSAIC_MAX_GRID, ngrid);
    return NULL;
  }
  *m = (mosaic){.g = g, .name = name, .ngrid = ngrid, .parallel = parallel};
  buf_init(&m->text);
  for (int i = 0; i < ngrid; i++) {
    m->grid[i] = grid[i];
    m->point[i] = typed(m, TPU_I32, 0, NULL);
    m->point[i].prefix = 'g';
    m->point[i].id = i;
  }
  return m;
}

const mval *mosaic_grid(mosaic *m) { return m->point; }

static mval memory_of(mosaic *m, int where, tpu_dtype d, int ndim, const int64_t *dims, mosaic_at at, const void *ctx) {
  mval r = typed(m, d, ndim, dims);
  r.where = where;
  r.prefix = 'r';
  r.id = m->nrefs;
  if (m->nrefs == MOSAIC_MAX_REFS || m->nids || (at && m->nrefs && !m->refs[m->nrefs - 1].at)) {
    ir_fail(m->g, TPU_ERR_RUNTIME, "mosaic: expected at most %d windows, then scratch memory, then operations",
            MOSAIC_MAX_REFS);
    return r;
  }
  m->refs[m->nrefs++] = (memory){r, at, ctx};
  return r;
}

mval mosaic_window(mosaic *m, int where, tpu_dtype d, int ndim, const int64_t *block, mosaic_at at, const void *ctx) {
  return memory_of(m, where, d, ndim, block, at, ctx);
}
mval mosaic_scratch(mosaic *m, tpu_dtype d, int ndim, const int64_t *dims) {
  return memory_of(m, MOSAIC_VMEM, d, ndim, dims, NULL, NULL);
}

/* "%g0: i32, ...", or the types alone. */
static void put_args(mosaic *m, buf *b, bool refs, bool names) {
  int n = m->ngrid + (refs ? m->nrefs : 0);
  for (int i = 0; i < n; i++) {
    const mval *a = i < m->ngrid ? &m->point[i] : &m->refs[i - m->ngrid].ref;
    if (i) buf_str(b, ", ");
    if (names) buf_printf(b, "%%%c%d: ", a->prefix, (int)a->id);
    put_type(b, a);
  }
}

static void put_body(mosaic *m, buf *out, bool refs) {
  buf_str(out, "  \"stable_mosaic.func.func\"() ({\n  ^bb0(");
  put_args(m, out, refs, true);
  buf_str(out, "):\n");
  if (m->text.len) buf_bytes(out, m->text.data, m->text.len);
  if (m->text.failed) out->failed = true;
  buf_str(out, "  }) {function_type = (");
  put_args(m, out, refs, false);
  buf_clear(&m->text);
  m->nids = 0;
}

/* What says where window i is: a function of the point. */
static void put_window(mosaic *m, buf *out, int i) {
  const memory *w = &m->refs[i];
  mval at[MOSAIC_RANK];
  w->at(m, m->point, w->ctx, at);
  put(m, "func.return", at, w->ref.ndim, "", NULL);
  put_body(m, out, false);
  buf_str(out, ") -> (");
  for (int k = 0; k < w->ref.ndim; k++) buf_str(out, k ? ", i32" : "i32");
  buf_printf(out, "), sym_name = \"window_%d\"} : () -> ()\n", i);
}

static void put_kernel(mosaic *m, buf *out) {
  int windows = 0;
  while (windows < m->nrefs && m->refs[windows].at) windows++;
  put(m, "func.return", NULL, 0, "", NULL);
  buf_printf(out, "module attributes {stable_mosaic.version = %d : i64} {\n", STABLE_VERSION);
  put_body(m, out, true);
  buf_str(out, ") -> (), dimension_semantics = [");
  for (int i = 0; i < m->ngrid; i++)
    buf_printf(out, "%s#tpu.dimension_semantics<%s>", i ? ", " : "", i < m->parallel ? "parallel" : "arbitrary");
  buf_str(out, "], iteration_bounds = array<i64: ");
  for (int i = 0; i < m->ngrid; i++) buf_printf(out, "%s%lld", i ? ", " : "", (long long)m->grid[i]);
  buf_printf(out,
             ">, scalar_prefetch = 0 : i64, scratch_operands = %d : i64, sym_name = \"%s\", tpu.core_type = "
             "#tpu.core_type<tc>, window_params = [",
             m->nrefs - windows, m->name);
  for (int i = 0; i < windows; i++) {
    buf_printf(out, "%s{transform_indices = @window_%d, window_bounds = array<i64: ", i ? ", " : "", i);
    for (int k = 0; k < m->refs[i].ref.ndim; k++)
      buf_printf(out, "%s%lld", k ? ", " : "", (long long)m->refs[i].ref.dims[k]);
    buf_str(out, ">}");
  }
  buf_str(out, "]} : () -> ()\n");
  for (int i = 0; i < windows; i++) put_window(m, out, i);
  buf_str(out, "}\n");
}

static void put_base64(buf *out, const char *text, size_t n) {
  static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const unsigned char *p = (const unsigned char *)text;
  for (size_t i = 0; i < n; i += 3) {
    uint32_t x = (uint32_t)p[i] << 16 | (i + 1 < n ? (uint32_t)p[i + 1] << 8 : 0) | (i + 2 < n ? p[i + 2] : 0);
    char four[4] = {digits[x >> 18], digits[x >> 12 & 63], i + 1 < n ? digits[x >> 6 & 63] : '=',
                    i + 2 < n ? digits[x & 63] : '='};
    buf_bytes(out, four, 4);
  }
}

/* Row-major, for each of n values of the given ranks. */
static void put_layouts(buf *out, const char *name, const int *ndims, int n) {
  buf_printf(out, ", %s = [", name);
  for (int i = 0; i < n; i++) {
    buf_str(out, i ? ", dense<[" : "dense<[");
    for (int k = ndims[i] - 1; k >= 0; k--) buf_printf(out, k ? "%d, " : "%d", k);
    buf_printf(out, "]> : tensor<%dxindex>", ndims[i]);
  }
  buf_char(out, ']');
}

/* The attributes of the custom call. Its configuration is JSON (xla: CustomCallBackendConfig of a TPU). */
static const char *attributes(mosaic *m, const mosaic_cost *cost, const buf *kernel, int64_t bytes, const int *in,
                              int nin, const int *out, int nout) {
  buf *b = attr_begin(m->g);
  buf_str(b, "backend_config = \"{\\22custom_call_config\\22: {\\22body\\22: \\22");
  put_base64(b, kernel->data, kernel->len);
  buf_printf(b,
             "\\22, \\22serialization_format\\22: 1, \\22needs_layout_passes\\22: true, \\22cost_estimate\\22: "
             "{\\22flops\\22: "
             "%.0f, \\22transcendentals\\22: %.0f, \\22bytes_accessed\\22: %lld}}",
             cost->flops, cost->exps, (long long)bytes);
  if (cost->vmem)
    buf_printf(b, ", \\22scoped_memory_configs\\22: [{\\22memory_space\\22: 1, \\22offset\\22: 0, \\22size\\22: %lld}]",
               (long long)cost->vmem);
  buf_printf(b, "}\", kernel_name = \"%s\"", m->name);
  put_layouts(b, "operand_layouts", in, nin);
  put_layouts(b, "result_layouts", out, nout);
  return attr_end(m->g);
}

void mosaic_end(mosaic *m, const mosaic_cost *cost, const val *in, int nin, int nout, const tpu_dtype *dtypes,
                const int *ndims, const int64_t *const *dims, val *out) {
  ir_graph *g = m->g;
  buf kernel;
  buf_init(&kernel);
  put_kernel(m, &kernel);
  buf_free(&m->text);
  if (kernel.failed) ir_fail(g, TPU_ERR_OOM, "out of memory");
  int *ranks = arena_alloc(ir_arena(g), (size_t)nin * sizeof *ranks);
  const char *attrs = "";
  if (node_ok(g) && ranks) {
    int64_t bytes = 0;
    for (int i = 0; i < nin; i++) {
      ranks[i] = in[i]->ndim;
      bytes += ir_numel(in[i]) * (int64_t)tpu_dtype_size((tpu_dtype)in[i]->dtype);
    }
    for (int i = 0; i < nout; i++) {
      int64_t n = (int64_t)tpu_dtype_size(dtypes[i]);
      for (int k = 0; k < ndims[i]; k++) n *= dims[i][k];
      bytes += n;
    }
    attrs = attributes(m, cost, &kernel, bytes, ranks, nin, ndims, nout);
  }
  buf_free(&kernel);
  ir_custom_call(g, "tpu_custom_call", attrs, in, nin, nout, dtypes, ndims, dims, out);
  g->kernel = true;
}
