/* dot.c - matrix products and convolution. */
#include "ir/node.h"

/* Dims of one operand that a product names: in range, no dim twice. */
static bool dims_ok(ir_graph *g, const char *name, const char *which, val x, int n, const int *dims, bool *used) {
  for (int i = 0; i < n; i++) {
    if (dims[i] < 0 || dims[i] >= x->ndim || used[dims[i]]) {
      ir_fail(g, TPU_ERR_RUNTIME, "%s (C3-C8): expected different dims of %s as %s, got %d", name, node_text(g, x),
              which, dims[i]);
      return false;
    }
    used[dims[i]] = true;
  }
  return true;
}

static bool is_f8(tpu_dtype d) { return ir_is_float(d) && tpu_dtype_size(d) == 1; }

static bool operands_ok(ir_graph *g, const char *name, val a, val b, tpu_dtype out) {
  if (a->dtype != b->dtype && !(is_f8(a->dtype) && is_f8(b->dtype)))
    ir_fail(g, TPU_ERR_RUNTIME, "%s: expected operands of one dtype, got %s and %s", name, node_text(g, a),
            node_text(g, b));
  else if (ir_is_complex(a->dtype) != ir_is_complex(out) || ir_is_float(a->dtype) != ir_is_float(out))
    ir_fail(g, TPU_ERR_RUNTIME, "%s: a product of %s cannot have dtype %s", name, tpu_dtype_name(a->dtype),
            tpu_dtype_name(out));
  return node_ok(g);
}

void ir_set_cpu(ir_graph *g) { g->cpu = true; }
bool ir_is_cpu(const ir_graph *g) { return g->cpu; }

/* XLA's CPU backend folds a transpose into the product and then runs it 1.2 to 1.4 times slower than a transpose and a
 * product of two plain operands (768x256x256 float32: 690 against 590 us); a barrier keeps the two apart. */
static val keep_transposed(ir_graph *g, val a) {
  if (!g->cpu || !a->op || strcmp(a->op->name, "stablehlo.transpose") != 0) return a;
  if (ir_numel(a) < 4096 && !g->vary) return a;
  ir_barrier(g, &a, 1, &a);
  return a;
}

val ir_dot(ir_graph *g, val a, val b, int nbatch, const int *a_batch, const int *b_batch, int ncontract,
           const int *a_contract, const int *b_contract, tpu_dtype out, int precision) {
  const char *name = "stablehlo.dot_general";
  val in[2] = {a, b};
  USABLE_OR_POISON(name, in, 2);
  if (!operands_ok(g, name, a, b, out)) return node_poison(g);
  in[0] = keep_transposed(g, a);
  bool a_used[IR_MAX_RANK] = {false}, b_used[IR_MAX_RANK] = {false};
  if (!dims_ok(g, name, "lhs batching dims", a, nbatch, a_batch, a_used) ||
      !dims_ok(g, name, "rhs batching dims", b, nbatch, b_batch, b_used) ||
      !dims_ok(g, name, "lhs contracting dims", a, ncontract, a_contract, a_used) ||
      !dims_ok(g, name, "rhs contracting dims", b, ncontract, b_contract, b_used))
    return node_poison(g);
  int64_t dims[2 * IR_MAX_RANK];
  int n = 0;
  for (int i = 0; i < nbatch; i++) {
    CHECK_OR(a->dims[a_batch[i]] == b->dims[b_batch[i]], "%s (C9): batching dims %d of %s and %d of %s differ in size",
             name, a_batch[i], node_text(g, a), b_batch[i], node_text(g, b));
    dims[n++] = a->dims[a_batch[i]];
  }
  for (int i = 0; i < ncontract; i++)
    CHECK_OR(a->dims[a_contract[i]] == b->dims[b_contract[i]],
             "%s (C10): contracting dims %d of %s and %d of %s differ in size", name, a_contract[i], node_text(g, a),
             b_contract[i], node_text(g, b));
  for (int i = 0; i < a->ndim; i++)
    if (!a_used[i]) dims[n++] = a->dims[i];
  for (int i = 0; i < b->ndim; i++)
    if (!b_used[i]) dims[n++] = b->dims[i];
  buf *t = attr_begin(g);
  buf_str(t, "dot_dimension_numbers = #stablehlo.dot<");
  attr_bracket(t, "lhs_batching_dimensions", a_batch, nbatch);
  attr_bracket(t, "rhs_batching_dimensions", b_batch, nbatch);
  attr_bracket(t, "lhs_contracting_dimensions", a_contract, ncontract);
  attr_bracket(t, "rhs_contracting_dimensions", b_contract, ncontract);
  buf_char(t, '>');
  attr_precision(t, precision);
  return node_make(g, name, attr_end(g), in, 2, out, n, dims);
}

/* Fills names[dim] for one of the three lists of a convolution; false if a dim is out of range or named twice. */
static bool conv_names(int rank, int first, int second, const int *spatial, int *names) {
  for (int i = 0; i < rank; i++) names[i] = -1;
  for (int i = 0; i < rank; i++) {
    int d = i == 0 ? first : i == 1 ? second : spatial[i - 2];
    if (d < 0 || d >= rank || names[d] != -1) return false;
    names[d] = i;
  }
  return true;
}

static void put_conv_names(buf *t, const char *letters, int rank, const int *names) {
  buf_char(t, '[');
  for (int i = 0; i < rank; i++) {
    if (i) buf_bytes(t, ", ", 2);
    if (names[i] < 2) buf_char(t, letters[names[i]]);
    else buf_int(t, names[i] - 2);
  }
  buf_char(t, ']');
}

val ir_conv(ir_graph *g, val x, val w, const ir_conv_dims *d, const int64_t *stride, const int64_t *pad_low,
            const int64_t *pad_high, const int64_t *x_dilation, const int64_t *w_dilation, const bool *w_reversal,
            int64_t feature_groups, int64_t batch_groups, tpu_dtype out, int precision) {
  const char *name = "stablehlo.convolution";
  val in[2] = {x, w};
  USABLE_OR_POISON(name, in, 2);
  if (!operands_ok(g, name, x, w, out)) return node_poison(g);
  int rank = x->ndim, ns = rank - 2, x_names[IR_MAX_RANK], w_names[IR_MAX_RANK], out_names[IR_MAX_RANK];
  CHECK_OR(rank == w->ndim && rank >= 2, "%s (C1): expected operands of one rank >= 2, got %s and %s", name,
           node_text(g, x), node_text(g, w));
  CHECK_OR(conv_names(rank, d->batch, d->feature, d->spatial, x_names), "%s (C13): input dims are no permutation",
           name);
  CHECK_OR(conv_names(rank, d->k_out, d->k_in, d->k_spatial, w_names), "%s (C18): kernel dims are no permutation",
           name);
  CHECK_OR(conv_names(rank, d->out_batch, d->out_feature, d->out_spatial, out_names),
           "%s (C20): output dims are no permutation", name);
  int64_t fg = feature_groups, bg = batch_groups, batch = x->dims[d->batch], features = x->dims[d->feature];
  int64_t k_in = w->dims[d->k_in], k_out = w->dims[d->k_out];
  CHECK_OR(fg > 0 && bg > 0 && (fg == 1 || bg == 1),
           "%s (C21-C23): expected groups > 0, one of them 1, got %lld and %lld", name, (long long)fg, (long long)bg);
  CHECK_OR(features % fg == 0 && features / fg == k_in, "%s (C11, C14): expected %lld groups of %lld features, got %s",
           name, (long long)fg, (long long)k_in, node_text(g, x));
  CHECK_OR(k_out % fg == 0 && k_out % bg == 0 && batch % bg == 0,
           "%s (C10, C15, C16): groups do not divide the features or the batch of %s and %s", name, node_text(g, x),
           node_text(g, w));
  int64_t dims[IR_MAX_RANK], ones[IR_MAX_RANK], zeros[IR_MAX_RANK] = {0};
  for (int i = 0; i < ns; i++) ones[i] = 1;
  if (!stride) stride = ones;
  if (!pad_low) pad_low = zeros;
  if (!pad_high) pad_high = zeros;
  if (!x_dilation) x_dilation = ones;
  if (!w_dilation) w_dilation = ones;
  /* Not the attribute window_reversal: XLA's CPU compiler forgets it where a convolution becomes a dot (window as large
   * as the input). */
  int rev[IR_MAX_RANK], nrev = 0;
  for (int i = 0; w_reversal && i < ns; i++)
    if (w_reversal[i]) rev[nrev++] = d->k_spatial[i];
  in[1] = ir_reverse(g, w, nrev, rev);
  dims[d->out_batch] = batch / bg;
  dims[d->out_feature] = k_out;
  for (int i = 0; i < ns; i++) {
    CHECK_OR(stride[i] > 0 && x_dilation[i] > 0 && w_dilation[i] > 0,
             "%s (C3, C6, C8): expected stride and dilations > 0 in spatial dim %d", name, i);
    CHECK_OR(node_window_size(x->dims[d->spatial[i]], w->dims[d->k_spatial[i]], stride[i], x_dilation[i], w_dilation[i],
                              pad_low[i], pad_high[i], &dims[d->out_spatial[i]]),
             "%s: the padded and dilated size of spatial dim %d is too large", name, i);
  }
  buf *t = attr_begin(g);
  buf_printf(t, "batch_group_count = %lld : i64, dimension_numbers = #stablehlo.conv<", (long long)bg);
  put_conv_names(t, "bf", rank, x_names);
  buf_char(t, 'x');
  put_conv_names(t, "oi", rank, w_names);
  buf_str(t, "->");
  put_conv_names(t, "bf", rank, out_names);
  buf_printf(t, ">, feature_group_count = %lld : i64", (long long)fg);
  attr_i64s(t, ", window_strides", stride, ns);
  attr_padding(t, pad_low, pad_high, ns);
  attr_i64s(t, ", lhs_dilation", x_dilation, ns);
  attr_i64s(t, ", rhs_dilation", w_dilation, ns);
  attr_precision(t, precision);
  return node_make(g, name, attr_end(g), in, 2, out, rank, dims);
}
