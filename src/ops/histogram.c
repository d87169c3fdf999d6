/* Histograms over given edges, in any number of dims. The adapter makes edges from a number of bins. */
#include "ops/along.h"
#include "ops/pointwise.h"

enum { MAX_HISTOGRAM_DIMS = 32 };

/* x [points] in one dim: its bin (0 for those outside), and whether it is in one. The last bin holds both its edges. */
static val bin_of(op_ctx *c, val x, val edges, val *inside) {
  int64_t n = t_size(edges, 0);
  val low = t_narrow(c, edges, 0, 0, 1, 1), high = t_narrow(c, edges, 0, n - 1, 1, 1);
  *inside = t_and(c, t_cmp(c, IR_GE, x, low), t_cmp(c, IR_LE, x, high));
  val at = P_ADDC(t_search(c, edges, x, true), -1);
  if (ir_failed(G)) return x;
  return P_SEL(*inside, P_MIN(at, t_like(c, at, (double)(n - 2))), t_like(c, at, 0));
}

/* x [points, dims] -> counts or sums of weights [bins of each dim] in x's dtype */
static val histogram(op_ctx *c, val x, const val *edges, int dims, val weight, bool density) {
  int64_t sizes[MAX_HISTOGRAM_DIMS], all = 1, points = t_size(x, 0);
  tpu_dtype d = (tpu_dtype)x->dtype;
  val inside = NULL, place = NULL;
  for (int i = 0; i < dims; i++) all *= sizes[i] = t_size(edges[i], 0) - 1;
  tpu_dtype di = t_index_dtype(all);
  for (int i = 0; i < dims && !ir_failed(G); i++) {
    val in, at = t_cast(c, bin_of(c, t_squeeze(c, t_narrow(c, x, 1, i, 1, 1), 1), edges[i], &in), di);
    inside = inside ? t_and(c, inside, in) : in;
    place = place ? t_add(c, t_mul(c, place, t_scalar(c, di, (double)sizes[i])), at) : at;
  }
  val hist = t_zeros(c, d, 1, &all);
  if (ir_failed(G)) return hist;
  if (place && points) {
    val w = weight ? weight : ir_const_f(G, d, 1, 1, &points);
    hist = t_scatter(c, hist, 0, place, P_SEL(inside, w, P_NUM(w, 0)), IR_ADD);
  }
  hist = t_reshape(c, hist, dims, sizes);
  if (!density) return hist;
  hist = t_div(c, hist, t_sum(c, hist, NULL, 0, false));
  for (int i = 0; i < dims && !ir_failed(G); i++) {
    int64_t n = sizes[i];
    val width = t_sub(c, t_narrow(c, edges[i], 0, 1, n, 1), t_narrow(c, edges[i], 0, 0, n, 1));
    while (!ir_failed(G) && width->ndim < dims - i) width = t_unsqueeze(c, width, width->ndim);
    hist = t_div(c, hist, width);
  }
  return hist;
}

static val check_edges(op_ctx *c, val edges, val x, int dim) {
  if (ir_failed(G)) return edges;
  if (edges->dtype != x->dtype)
    op_fail(c, TPU_ERR_RUNTIME,
            "torch.histogramdd: input tensor and bins tensors should have the same dtype, but got input with dtype %s "
            "and bins for dimension %d with dtype %s",
            tpu_dtype_name((tpu_dtype)x->dtype), dim, tpu_dtype_name((tpu_dtype)edges->dtype));
  else if (edges->ndim != 1)
    op_fail(c, TPU_ERR_RUNTIME,
            "torch.histogramdd: bins tensor should have one dimension, but got %d dimensions in the bins tensor for "
            "dimension %d",
            edges->ndim, dim);
  else if (edges->dims[0] == 0)
    op_fail(c, TPU_ERR_RUNTIME,
            "torch.histogramdd: bins tensor should have at least 1 element, but got 0 elements in the bins tensor for "
            "dimension %d",
            dim);
  else if (edges->dims[0] == 1)
    op_fail(c, TPU_ERR_RUNTIME, "torch.histogram(): bins must be > 0, but got 0 for dimension %d", dim);
  return t_cast(c, edges, t_opmath((tpu_dtype)edges->dtype));
}

/* The weights of the points, flat; NULL for None. */
static val read_weight(op_ctx *c, int arg, val x, int64_t points) {
  if (!HAS(arg)) return NULL;
  val w = T(arg);
  if (w->dtype != x->dtype)
    op_fail(c, TPU_ERR_RUNTIME,
            "torch.histogramdd: if weight tensor is provided, input tensor and weight tensor should have the same "
            "dtype, but got input(%s), and weight(%s)",
            tpu_dtype_name((tpu_dtype)x->dtype), tpu_dtype_name((tpu_dtype)w->dtype));
  else if (ir_numel(w) != points)
    op_fail(c, TPU_ERR_RUNTIME,
            "torch.histogramdd: if weight tensor is provided it should have the same shape as the input tensor "
            "excluding its innermost dimension");
  return t_cast(c, t_flatten(c, w), t_opmath((tpu_dtype)w->dtype));
}

/* (self [.., dims], bins: the edges of each dim, weight [..], density) */
OP(histogramdd, "aten::_histogramdd_from_bin_tensors") {
  val in = T(0), edges[MAX_HISTOGRAM_DIMS], x = p_only_float(c, "histogram_cpu", in);
  if (ir_failed(G)) return;
  int64_t dims = t_size(in, in->ndim - 1), points = dims ? ir_numel(in) / dims : 0;
  if (in->ndim < 2)
    op_fail(c, TPU_ERR_RUNTIME, "torch.histogramdd: input tensor should have at least 2 dimensions, but got %d",
            in->ndim);
  else if (dims != op_list_len(c, 1))
    op_fail(c, TPU_ERR_RUNTIME,
            "torch.histogramdd: expected %lld sequences of bin edges for a %lld-dimensional histogram but got %d",
            (long long)dims, (long long)dims, op_list_len(c, 1));
  else if (dims < 1 || dims > MAX_HISTOGRAM_DIMS)
    op_fail(c, TPU_ERR_NOT_IMPLEMENTED, "histograms of 1 to %d dimensions are implemented on tpu, not of %lld",
            MAX_HISTOGRAM_DIMS, (long long)dims);
  if (ir_failed(G)) return;
  for (int i = 0; i < dims; i++) edges[i] = check_edges(c, TL(1, i), in, i);
  val w = read_weight(c, 2, in, points);
  if (ir_failed(G)) return;
  x = t_reshape(c, x, 2, (const int64_t[]){points, dims});
  RET(t_cast(c, histogram(c, x, edges, (int)dims, w, INT_OR(3, 0)), (tpu_dtype)in->dtype));
}

/* (self, bins: edges, weight, density) -> (counts, edges) */
OP(histogram, "aten::histogram.bins_tensor") {
  val in = T(0), given = T(1), x = p_only_float(c, "histogram_cpu", in), edges = check_edges(c, given, in, 0);
  if (ir_failed(G)) return;
  val w = read_weight(c, 2, in, ir_numel(in));
  x = t_reshape(c, x, 2, (const int64_t[]){ir_numel(in), 1});
  if (ir_failed(G)) return;
  RETN(0, t_cast(c, histogram(c, x, &edges, 1, w, INT_OR(3, 0)), (tpu_dtype)in->dtype));
  RETN(1, given);
}
