// prepare.cpp - operators that PyTorch wants checked or brought into shape on the host around their row: CTC loss and
// segment_reduce (lengths), least squares (ranks), histograms (ranges), and a gradient that may be sparse. What is read
// from the device is read at once.
#include <ATen/core/List.h>
#include <ATen/ops/_embedding_bag_sparse_backward.h>
#include <ATen/ops/_histogramdd_from_bin_tensors.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/histogram.h>
#include <ATen/ops/isin.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "adapter/kernel.h"

namespace torch_tpu {
namespace {

using at::Tensor;

// Numbers of the host as an int64 tensor on x's device.
Tensor uploaded(c10::IntArrayRef v, const Tensor &x) { return at::tensor(v, c10::kLong).to(x.device()); }

// ---- CTC loss ------------------------------------------------------------------------------------------------------

std::vector<int64_t> lengths_of(const Tensor &t, const char *name) {
  TORCH_CHECK(c10::isIntegralType(t.scalar_type(), /*includeBool=*/false), name, " must be integral");
  const Tensor host = t.to(c10::kCPU, c10::kLong).contiguous();
  return {host.const_data_ptr<int64_t>(), host.const_data_ptr<int64_t>() + host.numel()};
}

constexpr const char *kCtc = " (while checking arguments for ctc_loss_allocate_outputs)";

void check_lengths(c10::IntArrayRef v, const char *name, int64_t batch, int64_t most) {
  TORCH_CHECK(static_cast<int64_t>(v.size()) == batch, name, " must be of size batch_size");
  for (const int64_t n : v) {
    TORCH_CHECK(n >= 0, "Expected ", name, " to have value at least 0, but got value ", n, kCtc);
    TORCH_CHECK(n <= most, "Expected ", name, " to have value at most ", most, ", but got value ", n, kCtc);
  }
}

// What the row takes: targets [batch, widest], and both lengths on the device. Targets that come as a matrix keep its
// width, so that log_alpha does too and one program serves batches of any lengths.
struct Ctc {
  Tensor targets, input_lengths, target_lengths;
};

Ctc prepare_ctc(const Tensor &log_probs, const Tensor &targets, c10::IntArrayRef input, c10::IntArrayRef target,
                int64_t blank) {
  TORCH_CHECK(log_probs.dim() == 3, "Expected 3-dimensional tensor, but got ", log_probs.dim(),
              "-dimensional tensor for argument #1 'log_probs'", kCtc);
  TORCH_CHECK(log_probs.numel() > 0, "log_probs tensor must not be empty");
  TORCH_CHECK(c10::isFloatingType(log_probs.scalar_type()), "\"ctc_loss\" not implemented for '",
              log_probs.scalar_type(), "'");
  TORCH_CHECK(targets.scalar_type() == c10::kLong || targets.scalar_type() == c10::kInt,
              "Expected tensor for argument #2 'targets' to have scalar type Int; but got ", targets.toString(),
              " instead", kCtc);
  TORCH_CHECK(targets.device() == log_probs.device(),
              "Expected all tensors to be on the same device, but found at least two devices, ", log_probs.device(),
              " and ", targets.device(), "!");
  TORCH_CHECK(targets.dim() == 1 || targets.dim() == 2, "Expected 1 to 2 dimensions, but got ", targets.dim(),
              "-dimensional tensor for argument #2 'targets'", kCtc);
  const int64_t batch = log_probs.size(1);
  TORCH_CHECK(0 <= blank && blank < log_probs.size(2), "blank must be in label range");
  check_lengths(input, "input_lengths", batch, log_probs.size(0));
  check_lengths(target, "target_lengths", batch, std::numeric_limits<int64_t>::max());
  int64_t longest = 0, all = 0;
  for (const int64_t n : target) {
    longest = std::max(longest, n);
    all += n;
  }
  Ctc out{targets, uploaded(input, log_probs), uploaded(target, log_probs)};
  if (targets.dim() == 2) {
    TORCH_CHECK(targets.size(0) == batch, "Expected tensor to have size ", batch, " at dimension 0, but got size ",
                targets.size(0), " for argument #2 'targets'", kCtc);
    TORCH_CHECK(targets.size(1) >= longest, "Expected tensor to have size at least ", longest,
                " at dimension 1, but got size ", targets.size(1), " for argument #2 'targets'", kCtc);
    return out;
  }
  TORCH_CHECK(targets.size(0) == all, "Expected tensor to have size ", all, " at dimension 0, but got size ",
              targets.size(0), " for argument #2 'targets'", kCtc);
  if (longest == 0) {
    out.targets = at::zeros({batch, 0}, targets.options());
    return out;
  }
  std::vector<int64_t> places(batch * longest, 0);
  for (int64_t b = 0, start = 0; b < batch; start += target[b++])
    for (int64_t i = 0; i < target[b]; i++) places[b * longest + i] = start + i;
  out.targets = targets.index_select(0, uploaded(places, log_probs)).view({batch, longest});
  return out;
}

std::tuple<Tensor, Tensor> ctc_loss(const Tensor &log_probs, const Tensor &targets, c10::IntArrayRef input,
                                    c10::IntArrayRef target, int64_t blank, bool zero_infinity) {
  static Kernel *k = need_kernel("aten::_ctc_loss.Tensor");
  const Ctc p = prepare_ctc(log_probs, targets, input, target, blank);
  const auto r = call_kernel_all(k, {log_probs, p.targets, p.input_lengths, p.target_lengths, blank, zero_infinity});
  return {r[0], r[1]};
}

std::tuple<Tensor, Tensor> ctc_loss_tensors(const Tensor &log_probs, const Tensor &targets, const Tensor &input,
                                            const Tensor &target, int64_t blank, bool zero_infinity) {
  return ctc_loss(log_probs, targets, lengths_of(input, "input_lengths"), lengths_of(target, "target_lengths"), blank,
                  zero_infinity);
}

Tensor ctc_loss_backward(const Tensor &grad, const Tensor &log_probs, const Tensor &targets, c10::IntArrayRef input,
                         c10::IntArrayRef target, const Tensor &nll, const Tensor &log_alpha, int64_t blank,
                         bool zero_infinity) {
  static Kernel *k = need_kernel("aten::_ctc_loss_backward.Tensor");
  const Ctc p = prepare_ctc(log_probs, targets, input, target, blank);
  return call_kernel(
      k, {grad, log_probs, p.targets, p.input_lengths, p.target_lengths, nll, log_alpha, blank, zero_infinity});
}

Tensor ctc_loss_backward_tensors(const Tensor &grad, const Tensor &log_probs, const Tensor &targets,
                                 const Tensor &input, const Tensor &target, const Tensor &nll, const Tensor &log_alpha,
                                 int64_t blank, bool zero_infinity) {
  return ctc_loss_backward(grad, log_probs, targets, lengths_of(input, "input_lengths"),
                           lengths_of(target, "target_lengths"), nll, log_alpha, blank, zero_infinity);
}

// ---- segment_reduce ------------------------------------------------------------------------------------------------

// (data, reduce, lengths, indices, offsets, axis, unsafe, initial)
void segment_reduce(const c10::OperatorHandle &, torch::jit::Stack *stack) {
  static Kernel *k = need_kernel("aten::segment_reduce");
  const c10::IValue *args = stack->data() + stack->size() - 8;
  const Tensor data = args[0].toTensor();
  const int64_t axis = c10::maybe_wrap_dim(args[5].toInt(), data.dim());
  TORCH_CHECK(args[3].isNone(), "segment_reduce(): indices based reduction is not supported yet.");
  TORCH_CHECK(!args[2].isNone() || !args[4].isNone(), "segment_reduce(): Either lengths or offsets must be defined.");
  const bool by_length = !args[2].isNone();
  const Tensor given = args[by_length ? 2 : 4].toTensor();
  const char *name = by_length ? "lengths" : "offsets";
  TORCH_CHECK(given.device() == data.device(), "segment_reduce(): Expected ", name,
              " to be on the device of the data, ", data.device(), ", but got ", given.device());
  TORCH_CHECK(given.scalar_type() == c10::kLong || given.scalar_type() == c10::kInt, "segment_reduce(): expected ",
              name, " of dtype int32 or int64, but got ", given.scalar_type());
  TORCH_CHECK(data.dim() >= given.dim(), "segment_reduce(): Expected data.dim() >= ", name, ".dim()");
  TORCH_CHECK(axis == given.dim() - 1, "segment_reduce(): Expected axis to be the last dimension of ", name,
              " but got ", axis, ".");
  if (by_length && !args[6].toBool()) {
    const Tensor sums = given.sum(-1).eq(data.size(axis)).all();
    const Tensor read = at::stack({given.min().to(c10::kLong), sums.to(c10::kLong)}).cpu();
    const int64_t *v = read.const_data_ptr<int64_t>();
    TORCH_CHECK(v[0] >= 0, "lengths contains negative value!");
    TORCH_CHECK(v[1], "segment_reduce(): Expected all rows of lengths along axis to sum to data.size(lengths.dim()-1) ",
                "when !unsafe.");
  }
  k->run(stack);
}

// ---- least squares -------------------------------------------------------------------------------------------------

using Four = std::tuple<Tensor, Tensor, Tensor, Tensor>;

// What is returned depends on the driver, the sizes and the rank.
Four lstsq(const Tensor &self, const Tensor &b, std::optional<double> rcond, std::optional<c10::string_view> driver) {
  static Kernel *k = need_kernel("aten::linalg_lstsq");
  TORCH_CHECK(self.dim() >= 2, "torch.linalg.lstsq: input must have at least 2 dimensions.");
  TORCH_CHECK(b.dim() >= 1, "torch.linalg.lstsq: other must have at least 1 dimension.");
  TORCH_CHECK(self.scalar_type() == b.scalar_type(),
              "torch.linalg.lstsq: Expected input and other to have the same dtype, but got input's dtype ",
              self.scalar_type(), " and other's dtype ", b.scalar_type());
  TORCH_CHECK(self.device() == b.device(), "torch.linalg.lstsq: Expected input and other to be on the same device, ",
              "but got input on ", self.device(), " and other on ", b.device());
  TORCH_CHECK_NOT_IMPLEMENTED(
      self.scalar_type() == c10::kFloat || self.scalar_type() == c10::kDouble || self.is_complex(),
      "\"linalg_lstsq\" not implemented for '", self.scalar_type(), "'");
  const int64_t gap = self.dim() - b.dim();
  TORCH_CHECK(0 <= gap && gap <= 1, "torch.linalg.lstsq: input.dim() must be greater or equal to other.dim() and ",
              "(input.dim() - other.dim()) <= 1");
  const bool vector = gap == 1;
  const Tensor right = vector ? b.unsqueeze(-1) : b;
  TORCH_CHECK(self.size(-2) == right.size(-2), "torch.linalg.lstsq: input.size(-2) should match other.size(-",
              vector ? 1 : 2, ")");
  const std::string name = driver ? std::string(*driver) : "gelsy";
  TORCH_CHECK(name == "gels" || name == "gelsy" || name == "gelsd" || name == "gelss",
              "torch.linalg.lstsq: parameter `driver` should be one of (gels, gelsy, gelsd, gelss)");
  const auto r = call_kernel_all(k, {self, right, rcond, name});
  Tensor solution = r[0], residuals = r[1], rank = r[2], values = r[3];
  const int64_t m = self.size(-2), n = self.size(-1);
  const Tensor none = residuals.new_empty({0});
  solution = solution.mT().contiguous().mT();  // columns first in memory, as LAPACK and cuSOLVER leave it
  if (vector) solution = solution.squeeze(-1);
  if (name == "gels") {
    if (rank.numel() && self.numel())
      TORCH_CHECK_LINALG(rank.min().item<int64_t>() == std::min(m, n),
                         "torch.linalg.lstsq: The least squares solution could not be computed because the input ",
                         "matrix does not have full rank.");
    rank = rank.new_empty({0});
  } else if (m > n && name != "gelsy" && rank.numel() && rank.min().item<int64_t>() != n) {
    residuals = none;
  }
  return {solution, m > n && name != "gelsy" ? residuals : none, rank,
          name == "gels" || name == "gelsy" ? none : values};
}

std::tuple<Tensor &, Tensor &, Tensor &, Tensor &> lstsq_out(const Tensor &self, const Tensor &b,
                                                             std::optional<double> rcond,
                                                             std::optional<c10::string_view> driver, Tensor &solution,
                                                             Tensor &residuals, Tensor &rank, Tensor &values) {
  const auto [x, r, k, s] = lstsq(self, b, rcond, driver);
  const std::tuple<const Tensor &, Tensor &, const char *> all[] = {
      {x, solution, "solution"}, {r, residuals, "residuals"}, {k, rank, "rank"}, {s, values, "singular_values"}};
  for (const auto &[from, to, what] : all) {
    TORCH_CHECK(c10::canCast(from.scalar_type(), to.scalar_type()), "torch.linalg.lstsq: Expected ", what,
                " to be safely castable from ", from.scalar_type(), " dtype, but got ", what, " with dtype ",
                to.scalar_type());
    at::native::resize_output(to, from.sizes());
    to.copy_(from);
  }
  return {solution, residuals, rank, values};
}

// ---- histograms ----------------------------------------------------------------------------------------------------

// Equal bins for each dim of points [.., dims], over `range` or over what the points take up.
std::vector<Tensor> bin_edges(const Tensor &self, c10::IntArrayRef bins, std::optional<c10::ArrayRef<double>> range) {
  TORCH_CHECK(self.dim() >= 2, "torch.histogramdd: input tensor should have at least 2 dimensions");
  const int64_t dims = self.size(-1);
  TORCH_CHECK(static_cast<int64_t>(bins.size()) == dims,
              "histogramdd: The size of bins must be equal to the innermost dimension of the input.");
  TORCH_CHECK_NOT_IMPLEMENTED(c10::isFloatingType(self.scalar_type()), "\"histogramdd\" not implemented for '",
                              self.scalar_type(), "'");
  std::vector<double> low(dims, 0.0), high(dims, 1.0);
  if (range) {
    TORCH_CHECK(static_cast<int64_t>(range->size()) == 2 * dims, "torch.histogramdd: for a ", dims,
                "-dimensional histogram range should have ", 2 * dims, " elements, but got ", range->size());
    for (int64_t i = 0; i < dims; i++) {
      low[i] = (*range)[2 * i];
      high[i] = (*range)[2 * i + 1];
    }
  } else if (self.numel() > 0) {
    const auto [least, most] = at::aminmax(self.reshape({-1, dims}), 0);
    const Tensor read = at::stack({least, most}).cpu().to(c10::kDouble);
    const double *v = read.const_data_ptr<double>();
    low.assign(v, v + dims);
    high.assign(v + dims, v + 2 * dims);
  }
  std::vector<Tensor> out;
  for (int64_t i = 0; i < dims; i++) {
    TORCH_CHECK(std::isfinite(low[i]) && std::isfinite(high[i]), "torch.histogramdd: dimension ", i, "'s range [",
                low[i], ", ", high[i], "] is not finite");
    TORCH_CHECK(low[i] <= high[i], "torch.histogramdd: min should not exceed max, but got min ", low[i], " max ",
                high[i], " for dimension ", i);
    TORCH_CHECK(bins[i] > 0, "torch.histogram(): bins must be > 0, but got ", bins[i], " for dimension ", i);
    const double wider = low[i] == high[i] ? 0.5 : 0;
    out.push_back(at::linspace(low[i] - wider, high[i] + wider, bins[i] + 1, self.options()));
  }
  return out;
}

std::vector<Tensor> histogramdd_bin_edges(const Tensor &self, c10::IntArrayRef bins,
                                          std::optional<c10::ArrayRef<double>> range, const std::optional<Tensor> &,
                                          bool) {
  return bin_edges(self, bins, range);
}

Tensor histogramdd_from_bin_cts(const Tensor &self, c10::IntArrayRef bins, std::optional<c10::ArrayRef<double>> range,
                                const std::optional<Tensor> &weight, bool density) {
  return at::_histogramdd_from_bin_tensors(self, bin_edges(self, bins, range), weight, density);
}

std::tuple<Tensor, Tensor> histogram(const Tensor &self, int64_t bins, std::optional<c10::ArrayRef<double>> range,
                                     const std::optional<Tensor> &weight, bool density) {
  const std::vector<Tensor> edges = bin_edges(self.reshape({-1, 1}), {bins}, range);
  return at::histogram(self, edges[0], weight, density);
}

std::tuple<Tensor &, Tensor &> histogram_out(const Tensor &self, int64_t bins,
                                             std::optional<c10::ArrayRef<double>> range,
                                             const std::optional<Tensor> &weight, bool density, Tensor &hist,
                                             Tensor &edges) {
  TORCH_CHECK(self.dtype() == hist.dtype(), "torch.histogram: input tensor and hist tensor should",
              " have the same dtype, but got input ", self.dtype(), " and hist ", hist.dtype());
  TORCH_CHECK(self.dtype() == edges.dtype(), "torch.histogram: input tensor and bin_edges tensor should",
              " have the same dtype, but got input ", self.dtype(), " and bin_edges ", edges.dtype(),
              " for dimension 0");
  const auto [h, e] = torch_tpu::histogram(self, bins, range, weight, density);
  at::native::resize_output(hist, h.sizes());
  at::native::resize_output(edges, e.sizes());
  hist.copy_(h);
  edges.copy_(e);
  return {hist, edges};
}

// ---- sequences -----------------------------------------------------------------------------------------------------

// arange, range, linspace and logspace fill an out tensor of any shape that holds as many elements, in row-major order,
// and resize another one; the shape functions know one dimension only.
template <const char *const *name, bool warns>
void sequence_out(const c10::OperatorHandle &, torch::jit::Stack *stack) {
  static Kernel *k = need_kernel(*name);
  const Tensor out = stack->back().toTensor();
  if (out.numel() == 0) return k->run(stack);
  stack->back() = at::empty({0}, out.options());
  k->run(stack);
  const Tensor r = stack->back().toTensor();
  if (out.numel() != r.numel()) {
    if (warns)
      TORCH_WARN("The number of elements in the out tensor of shape ", out.sizes(), " is ", out.numel(),
                 " which does not match the computed number of elements ", r.numel(),
                 ". Note that this may occur as a result of rounding error. The out tensor will be resized to a tensor "
                 "of shape (",
                 r.numel(), ",).");
    out.resize_(r.sizes());
  }
  out.copy_(r.view(out.sizes()));
  stack->back() = out;
}
constexpr const char *kArangeOut = "aten::arange.out", *kArangeStartOut = "aten::arange.start_out",
                     *kRangeOut = "aten::range.out", *kLinspaceOut = "aten::linspace.out",
                     *kLogspaceOut = "aten::logspace.out";

// ---- fill ----------------------------------------------------------------------------------------------------------

// Elements may lie on one another: some dimension steps over less than what the dimensions inside it take up.
bool may_overlap(const Tensor &t) {
  if (C10_LIKELY(t.is_contiguous()) || t.is_non_overlapping_and_dense()) return false;
  c10::SmallVector<std::pair<int64_t, int64_t>, 8> dims;
  for (int64_t d = 0; d < t.dim(); d++)
    if (t.size(d) > 1) dims.emplace_back(t.stride(d), t.size(d));
  std::sort(dims.begin(), dims.end());
  int64_t reach = 0;
  for (const auto &[stride, size] : dims) {
    if (stride <= reach) return true;
    reach += (size - 1) * stride;
  }
  return false;
}

// All of the memory that t's elements take up, as one row, and the place of each element in it.
struct Memory {
  Tensor flat, places;
  explicit Memory(const Tensor &t) {
    int64_t reach = 1;
    for (int64_t d = 0; d < t.dim(); d++) reach += (t.size(d) - 1) * t.stride(d);
    flat = t.as_strided({reach}, {1});
    places = at::arange(reach, t.options().dtype(c10::kLong)).as_strided(t.sizes(), t.strides(), 0).reshape({-1});
  }
};

// Every element gets the same value, so that elements may lie on one another: what of the memory they take up is filled
// then.
template <const char *const *name>
void fill(const c10::OperatorHandle &op, torch::jit::Stack *stack) {
  static Kernel *k = need_kernel(*name);
  const size_t self = stack->size() - op.schema().arguments().size();
  const Tensor whole = (*stack)[self].toTensor();
  if (C10_LIKELY(whole.numel() == 0 || !may_overlap(whole))) return k->run(stack);
  Tensor part = whole;
  for (int64_t d = 0; d < part.dim(); d++)
    if (part.stride(d) == 0 && part.size(d) > 1) part = part.narrow(d, 0, 1);
  if (!may_overlap(part)) {
    (*stack)[self] = part;
    k->run(stack);
    stack->back() = whole;
    return;
  }
  const auto [flat, places] = Memory(part);
  Tensor filled = at::zeros(flat.sizes(), part.options().dtype(c10::kBool));
  filled.index_fill_(0, places, true);
  if (op.schema().arguments().size() == 1) flat.masked_fill_(filled, 0);
  else if ((*stack)[self + 1].isTensor()) flat.masked_fill_(filled, (*stack)[self + 1].toTensor().to(flat.dtype()));
  else flat.masked_fill_(filled, (*stack)[self + 1].toScalar());
  stack->resize(self);
  stack->emplace_back(whole);
}
constexpr const char *kFillScalar = "aten::fill_.Scalar", *kFillTensor = "aten::fill_.Tensor", *kZero = "aten::zero_";

constexpr const char *kMaskedFillScalar = "aten::masked_fill_.Scalar", *kMaskedFillTensor = "aten::masked_fill_.Tensor",
                     *kIndexFillScalar = "aten::index_fill_.int_Scalar",
                     *kIndexFillTensor = "aten::index_fill_.int_Tensor", *kIndexPut = "aten::index_put_",
                     *kThreshold = "aten::threshold_";

// masked_fill_, index_fill_ and index_put_ may write elements that lie on one another, with a warning. Where several
// values go to one place it gets one of them, or their sum. threshold_ may too, and gives elements in one place one
// value.
template <const char *const *name>
void write_any(const c10::OperatorHandle &op, torch::jit::Stack *stack) {
  static Kernel *k = need_kernel(*name);
  const size_t self = stack->size() - op.schema().arguments().size();
  const Tensor whole = (*stack)[self].toTensor();
  const bool puts = *name == kIndexPut;  // (self, indices, values, accumulate)
  if (C10_LIKELY(whole.numel() == 0 || !may_overlap(whole))) return k->run(stack);
  const std::string_view full = op.schema().name();
  const bool everywhere = *name == kThreshold;
  if (!everywhere)
    TORCH_WARN("Use of ", full.substr(full.rfind(':') + 1),
               " on expanded tensors is deprecated. Please clone() the tensor before performing this operation. This "
               "also applies to advanced indexing e.g. tensor[mask] = value");
  if (puts && (*stack)[self + 3].toBool()) {  // a place gets the sum of what its elements get
    const Tensor sums = at::zeros_like(whole, at::MemoryFormat::Contiguous);
    torch::jit::Stack on_sums(stack->begin() + self, stack->end());
    on_sums[0] = sums;
    k->run(&on_sums);
    const auto [flat, places] = Memory(whole);
    flat.index_add_(0, places, sums.reshape({-1}));
    stack->resize(self);
    stack->emplace_back(whole);
    return;
  }
  const Tensor values = whole.clone(at::MemoryFormat::Contiguous);
  const Tensor hit = everywhere ? at::ones_like(values, c10::kBool) : at::zeros_like(values, c10::kBool);
  torch::jit::Stack on_values(stack->begin() + self, stack->end()), on_hit = on_values;
  on_values[0] = values;
  on_hit[0] = hit;
  c10::IValue &written = on_hit[puts ? 2 : on_hit.size() - 1];
  if (written.isTensor()) written = at::ones({}, hit.options());
  else written = true;
  k->run(&on_values);
  if (!everywhere) k->run(&on_hit);

  const auto [flat, places] = Memory(whole);
  const Tensor count = at::arange(values.numel(), places.options());
  const Tensor from =
      at::full(flat.sizes(), -1, count.options())
          .scatter_reduce(0, places, at::where(hit.reshape({-1}), count, at::full_like(count, -1)), "amax");
  flat.copy_(at::where(from.ge(0), values.reshape({-1}).index_select(0, from.clamp_min(0)), flat));
  stack->resize(self);
  stack->emplace_back(whole);
}

// ---- factorizations that raise
// ------------------------------------------------------------------------------------------

// With check_errors the call waits for `info`, its last result, and raises what that says.
struct Checked {
  const char *op, *api;
};
constexpr Checked kInv = {"aten::linalg_inv_ex", "linalg.inv_ex"},
                  kInvOut = {"aten::linalg_inv_ex.inverse", "linalg.inv_ex"},
                  kCholesky = {"aten::linalg_cholesky_ex", "linalg.cholesky_ex"},
                  kCholeskyOut = {"aten::linalg_cholesky_ex.L", "linalg.cholesky_ex"},
                  kLu = {"aten::linalg_lu_factor_ex", "torch.linalg.lu_factor_ex"},
                  kLuOut = {"aten::linalg_lu_factor_ex.out", "torch.linalg.lu_factor_ex"},
                  kSolve = {"aten::_linalg_solve_ex", "torch.linalg.solve_ex"},
                  kSolveOut = {"aten::_linalg_solve_ex.result", "torch.linalg.solve_ex"},
                  kLdl = {"aten::linalg_ldl_factor_ex", "torch.linalg.ldl_factor_ex"},
                  kLdlOut = {"aten::linalg_ldl_factor_ex.out", "torch.linalg.ldl_factor_ex"};
template <const Checked *what>
void checked(const c10::OperatorHandle &op, torch::jit::Stack *stack) {
  static Kernel *k = need_kernel(what->op);
  static const auto check = static_cast<size_t>(*op.schema().argumentIndexWithName("check_errors"));
  const size_t base = stack->size() - op.schema().arguments().size();
  const bool wanted = (*stack)[base + check].toBool() && !tpu_capturing();
  const bool is_matrix = (*stack)[base].toTensor().dim() == 2;
  k->run(stack);
  if (wanted) at::_linalg_check_errors(stack->back().toTensor(), what->api, is_matrix);
}

// ---- the gradient of a bag ------------------------------------------------------------------------------------------

// (grad, indices, offsets, offset2bag, bag_size, maximum_indices, num_weights, scale_grad_by_freq, mode, sparse,
// per_sample_weights, padding_idx)
void embedding_bag_backward(const c10::OperatorHandle &, torch::jit::Stack *stack) {
  static Kernel *k = need_kernel("aten::_embedding_bag_backward");
  const size_t base = stack->size() - 12;
  const c10::IValue *a = stack->data() + base;
  if (!a[9].toBool()) return k->run(stack);
  Tensor r = at::_embedding_bag_sparse_backward_symint(a[0].toTensor(), a[1].toTensor(), a[2].toTensor(),
                                                       a[3].toTensor(), a[4].toTensor(), a[6].toSymInt(), a[7].toBool(),
                                                       a[8].toInt(), a[10].toOptional<Tensor>(), a[11].toInt());
  stack->resize(base);
  stack->emplace_back(std::move(r));
}

// ---- isin of a number ----------------------------------------------------------------------------------------------

// PyTorch's shape function says one dim of size 0; its kernel gives a tensor without dims.
Tensor isin_of_number(const at::Scalar &element, const Tensor &test, bool assume_unique, bool invert) {
  return at::isin(at::scalar_tensor(element, test.options().dtype(element.type())), test, assume_unique, invert);
}

Tensor &isin_of_number_out(const at::Scalar &element, const Tensor &test, bool assume_unique, bool invert,
                           Tensor &out) {
  const Tensor r = isin_of_number(element, test, assume_unique, invert);
  TORCH_CHECK(c10::canCast(r.scalar_type(), out.scalar_type()), "Expected out tensor to have dtype ", r.scalar_type(),
              ", but got ", out.scalar_type(), " instead");
  at::native::resize_output(out, r.sizes());
  out.copy_(r);
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("fill_.Scalar", torch::CppFunction::makeFromBoxedFunction<&fill<&kFillScalar>>());
  m.impl("fill_.Tensor", torch::CppFunction::makeFromBoxedFunction<&fill<&kFillTensor>>());
  m.impl("zero_", torch::CppFunction::makeFromBoxedFunction<&fill<&kZero>>());
  m.impl("masked_fill_.Scalar", torch::CppFunction::makeFromBoxedFunction<&write_any<&kMaskedFillScalar>>());
  m.impl("masked_fill_.Tensor", torch::CppFunction::makeFromBoxedFunction<&write_any<&kMaskedFillTensor>>());
  m.impl("index_fill_.int_Scalar", torch::CppFunction::makeFromBoxedFunction<&write_any<&kIndexFillScalar>>());
  m.impl("index_fill_.int_Tensor", torch::CppFunction::makeFromBoxedFunction<&write_any<&kIndexFillTensor>>());
  m.impl("threshold_", torch::CppFunction::makeFromBoxedFunction<&write_any<&kThreshold>>());
  m.impl("index_put_", torch::CppFunction::makeFromBoxedFunction<&write_any<&kIndexPut>>());
  m.impl("linalg_inv_ex", torch::CppFunction::makeFromBoxedFunction<&checked<&kInv>>());
  m.impl("linalg_inv_ex.inverse", torch::CppFunction::makeFromBoxedFunction<&checked<&kInvOut>>());
  m.impl("linalg_cholesky_ex", torch::CppFunction::makeFromBoxedFunction<&checked<&kCholesky>>());
  m.impl("linalg_cholesky_ex.L", torch::CppFunction::makeFromBoxedFunction<&checked<&kCholeskyOut>>());
  m.impl("linalg_lu_factor_ex", torch::CppFunction::makeFromBoxedFunction<&checked<&kLu>>());
  m.impl("linalg_lu_factor_ex.out", torch::CppFunction::makeFromBoxedFunction<&checked<&kLuOut>>());
  m.impl("_linalg_solve_ex", torch::CppFunction::makeFromBoxedFunction<&checked<&kSolve>>());
  m.impl("_linalg_solve_ex.result", torch::CppFunction::makeFromBoxedFunction<&checked<&kSolveOut>>());
  m.impl("linalg_ldl_factor_ex", torch::CppFunction::makeFromBoxedFunction<&checked<&kLdl>>());
  m.impl("linalg_ldl_factor_ex.out", torch::CppFunction::makeFromBoxedFunction<&checked<&kLdlOut>>());
  m.impl("arange.out", torch::CppFunction::makeFromBoxedFunction<&sequence_out<&kArangeOut, true>>());
  m.impl("arange.start_out", torch::CppFunction::makeFromBoxedFunction<&sequence_out<&kArangeStartOut, true>>());
  m.impl("range.out", torch::CppFunction::makeFromBoxedFunction<&sequence_out<&kRangeOut, false>>());
  m.impl("linspace.out", torch::CppFunction::makeFromBoxedFunction<&sequence_out<&kLinspaceOut, false>>());
  m.impl("logspace.out", torch::CppFunction::makeFromBoxedFunction<&sequence_out<&kLogspaceOut, false>>());
  m.impl("_embedding_bag_backward", torch::CppFunction::makeFromBoxedFunction<&embedding_bag_backward>());
  m.impl("isin.Scalar_Tensor", TORCH_FN(isin_of_number));
  m.impl("isin.Scalar_Tensor_out", TORCH_FN(isin_of_number_out));
  m.impl("_ctc_loss", TORCH_FN(ctc_loss));
  m.impl("_ctc_loss.Tensor", TORCH_FN(ctc_loss_tensors));
  m.impl("_ctc_loss_backward", TORCH_FN(ctc_loss_backward));
  m.impl("_ctc_loss_backward.Tensor", TORCH_FN(ctc_loss_backward_tensors));
  m.impl("segment_reduce", torch::CppFunction::makeFromBoxedFunction<&segment_reduce>());
  m.impl("linalg_lstsq", TORCH_FN(lstsq));
  m.impl("linalg_lstsq.out", TORCH_FN(lstsq_out));
  m.impl("_histogramdd_bin_edges", TORCH_FN(histogramdd_bin_edges));
  m.impl("_histogramdd_from_bin_cts", TORCH_FN(histogramdd_from_bin_cts));
  m.impl("histogram.bin_ct", TORCH_FN(histogram));
  m.impl("histogram.bin_ct_out", TORCH_FN(histogram_out));
}

}  // namespace torch_tpu
