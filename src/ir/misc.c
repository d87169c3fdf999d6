/* misc.c - random bits, Fourier transform, linear algebra, custom calls. */
#include "ir/node.h"

void ir_rng_philox(ir_graph *g, val state, tpu_dtype bits, int ndim, const int64_t *dims, val *new_state, val *out) {
  const char *name = "stablehlo.rng_bit_generator";
  *new_state = *out = node_poison(g);
  if (!node_usable(g, name, &state, 1) || !node_type_ok(g, name, bits, ndim, dims)) return;
  if (state->dtype != TPU_U64 || state->ndim != 1 || (state->dims[0] != 2 && state->dims[0] != 3)) {
    ir_fail(g, TPU_ERR_RUNTIME, "%s (C2): expected a PHILOX state uint64[2] or uint64[3], got %s", name,
            node_text(g, state));
    return;
  }
  if (bits != TPU_U32 && bits != TPU_U64) {
    ir_fail(g, TPU_ERR_RUNTIME, "%s: expected bits as uint32 or uint64, got %s", name, tpu_dtype_name(bits));
    return;
  }
  ir_op *op = node_op(g, name, "rng_algorithm = #stablehlo<rng_algorithm PHILOX>", &state, 1, 2, 0);
  if (!op) return;
  node_type(g, op, 0, TPU_U64, 1, state->dims);
  node_type(g, op, 1, bits, ndim, dims);
  if (!node_ok(g)) return;
  node_append(g, op);
  *new_state = &op->out[0];
  *out = &op->out[1];
}

val ir_fft(ir_graph *g, val x, ir_fft_kind kind, int n, const int64_t *lengths) {
  const char *name = "stablehlo.fft";
  static const char *const kinds[] = {"FFT", "IFFT", "RFFT", "IRFFT"};
  USABLE_OR_POISON(name, &x, 1);
  CHECK_OR((unsigned)kind <= IR_IRFFT, "%s: %d is no kind", name, (int)kind);
  CHECK_OR(n >= 1 && n <= 3 && n <= x->ndim, "%s (C1, C3): expected 1 to 3 lengths and a rank as high, got %d for %s",
           name, n, node_text(g, x));
  bool fits = kind == IR_RFFT ? x->dtype == TPU_F32 || x->dtype == TPU_F64 : ir_is_complex(x->dtype);
  CHECK_OR(fits, "%s (C2): expected %s for %s, got %s", name,
           kind == IR_RFFT ? "float32 or float64" : "a complex dtype", kinds[kind], tpu_dtype_name(x->dtype));
  int64_t dims[IR_MAX_RANK];
  memcpy(dims, x->dims, (size_t)x->ndim * sizeof *dims);
  int first = x->ndim - n;
  for (int i = 0; i < n; i++) {
    int64_t want = kind == IR_IRFFT && i == n - 1 && lengths[i] > 0 ? lengths[i] / 2 + 1 : lengths[i];
    CHECK_OR(lengths[i] >= 0 && x->dims[first + i] == want,
             "%s (C4, C5): expected size %lld in dim %d for length %lld, got %s", name, (long long)want, first + i,
             (long long)lengths[i], node_text(g, x));
  }
  int last = x->ndim - 1;
  tpu_dtype out = x->dtype;
  if (kind == IR_RFFT) {
    dims[last] = lengths[n - 1] ? lengths[n - 1] / 2 + 1 : 0;
    out = x->dtype == TPU_F32 ? TPU_C64 : TPU_C128;
  } else if (kind == IR_IRFFT) {
    dims[last] = lengths[n - 1];
    out = ir_real_dtype(out);
  }
  buf *b = attr_begin(g);
  buf_printf(b, "fft_type = #stablehlo<fft_type %s>, ", kinds[kind]);
  attr_i64s(b, "fft_length", lengths, n);
  return node_make(g, name, attr_end(g), &x, 1, out, x->ndim, dims);
}

static bool square(val a) { return a->ndim >= 2 && a->dims[a->ndim - 1] == a->dims[a->ndim - 2]; }

val ir_cholesky(ir_graph *g, val x, bool lower) {
  const char *name = "stablehlo.cholesky";
  USABLE_OR_POISON(name, &x, 1);
  CHECK_OR(ir_is_float(x->dtype) || ir_is_complex(x->dtype),
           "%s (I1): expected a floating-point or complex dtype, got %s", name, tpu_dtype_name(x->dtype));
  CHECK_OR(square(x), "%s (C2, C3): expected square matrices, got %s", name, node_text(g, x));
  return node_make(g, name, lower ? "lower = true" : "lower = false", &x, 1, x->dtype, x->ndim, x->dims);
}

val ir_triangular_solve(ir_graph *g, val a, val b, bool left, bool lower, bool unit, int transpose) {
  const char *name = "stablehlo.triangular_solve";
  static const char *const kinds[] = {"NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"};
  val in[2] = {a, b};
  USABLE_OR_POISON(name, in, 2);
  CHECK_OR(transpose >= 0 && transpose <= 2, "%s: expected transpose 0, 1 or 2, got %d", name, transpose);
  CHECK_OR(a->dtype == b->dtype && (ir_is_float(a->dtype) || ir_is_complex(a->dtype)),
           "%s (C1): expected operands of one floating-point or complex dtype, got %s and %s", name, node_text(g, a),
           node_text(g, b));
  int r = a->ndim;
  CHECK_OR(square(a) && b->ndim == r && !memcmp(a->dims, b->dims, (size_t)(r - 2) * sizeof *a->dims) &&
               b->dims[left ? r - 2 : r - 1] == a->dims[r - 1],
           "%s (C2, C3): expected square matrices and a right side that fits, got %s and %s", name, node_text(g, a),
           node_text(g, b));
  const char *attrs =
      arena_printf(&g->mem, "left_side = %s, lower = %s, unit_diagonal = %s, transpose_a = #stablehlo<transpose %s>",
                   left ? "true" : "false", lower ? "true" : "false", unit ? "true" : "false", kinds[transpose]);
  return node_make(g, name, attrs, in, 2, b->dtype, b->ndim, b->dims);
}

/* Appends a typed operation and gives its results; poison after an error. `out` may be the array of operands. */
static void finish(ir_graph *g, ir_op *op, int nout, val *out) {
  if (!op || !node_ok(g)) {
    node_poison_all(g, out, nout);
    return;
  }
  node_append(g, op);
  for (int i = 0; i < nout; i++) out[i] = &op->out[i];
}

void ir_top_k(ir_graph *g, val x, int64_t k, val *values, val *places) {
  const char *name = "chlo.top_k";
  val out[2];
  int last = x->ndim - 1;
  if (last < 0 || k < 0 || k > x->dims[last])
    ir_fail(g, TPU_ERR_RUNTIME, "%s: expected 0 <= k <= the last dim, got %lld of %s", name, (long long)k,
            node_text(g, x));
  ir_op *op = node_op(g, name, arena_printf(&g->mem, "k = %lld : i64", (long long)k), &x, 1, 2, 0);
  if (op && last >= 0) {
    int64_t *dims = arena_copy(&g->mem, x->dims, (size_t)x->ndim * sizeof *dims);
    if (dims) dims[last] = k;
    else ir_fail(g, TPU_ERR_OOM, "out of memory");
    node_type(g, op, 0, x->dtype, x->ndim, dims);
    node_type(g, op, 1, TPU_I32, x->ndim, dims);
  }
  finish(g, op, 2, out);
  *values = out[0];
  *places = out[1];
}

/* A name inside quotes: what MLIR would read as an escape is an error. */
static bool plain(const char *s) {
  for (; *s; s++)
    if (*s == '"' || *s == '\\' || (unsigned char)*s < ' ') return false;
  return true;
}

void ir_custom_call(ir_graph *g, const char *target, const char *attrs, const val *in, int nin, int nout,
                    const tpu_dtype *dtypes, const int *ndims, const int64_t *const *dims, val *out) {
  const char *name = "stablehlo.custom_call";
  if (!plain(target))
    ir_fail(g, TPU_ERR_RUNTIME, "%s: the target name \"%s\" holds quotes or control characters", name, target);
  const char *comma = attrs && *attrs ? ", " : "";
  const char *text = arena_printf(&g->mem, "call_target_name = \"%s\"%s%s", target, comma, attrs ? attrs : "");
  ir_op *op = node_op(g, name, text, in, nin, nout, 0);
  for (int i = 0; op && i < nout; i++) node_type(g, op, i, dtypes[i], ndims[i], dims[i]);
  finish(g, op, nout, out);
}

void ir_barrier(ir_graph *g, const val *in, int n, val *out) {
  ir_op *op = node_op(g, "stablehlo.optimization_barrier", "", in, n, n, 0);
  for (int i = 0; op && i < n; i++) node_type(g, op, i, in[i]->dtype, in[i]->ndim, in[i]->dims);
  finish(g, op, n, out);
}
