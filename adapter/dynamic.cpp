// dynamic.cpp - operators whose result's size depends on the data: the size is read on the host, once, and the rest
// stays on the device with a known size.
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/index.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "adapter/kernel.h"

namespace torch_tpu {
namespace {

using at::Tensor;

[[noreturn]] void refuse_dtype(const char *kernel, const Tensor &x) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "\"", kernel, "\" not implemented for '", x.scalar_type(), "'");
}

void nonzero(const c10::OperatorHandle &op, torch::jit::Stack *stack) {
  static Kernel *fixed = find_kernel("aten::nonzero_static");
  const Tensor self = stack->back().toTensor();
  if (!fixed) return fallback(op, stack);
  const int64_t n = self.numel() ? self.ne(0).sum().item<int64_t>() : 0;
  Tensor out = n && self.dim() ? call_kernel(fixed, {self, n, -1})
                               : new_tensor({n, self.dim()}, c10::kLong, self.device().index());
  stack->pop_back();
  stack->emplace_back(std::move(out));
}

void repeat_interleave(const c10::OperatorHandle &op, torch::jit::Stack *stack) {
  static Kernel *sized = find_kernel("aten::repeat_interleave.Tensor");
  if (!sized) return fallback(op, stack);
  const Tensor repeats = (*stack)[stack->size() - 2].toTensor();
  if (stack->back().isNone()) {
    TORCH_CHECK(repeats.dim() == 1, "repeat_interleave only accept 1D vector as repeat");
    if (repeats.scalar_type() != c10::kLong && repeats.scalar_type() != c10::kInt)
      refuse_dtype("repeat_interleave_cpu", repeats);
    int64_t n = 0;
    if (repeats.numel()) {
      const auto [least, most] = at::aminmax(repeats);
      const Tensor read = at::stack({least.to(c10::kLong), repeats.sum()}).cpu();
      const int64_t *v = read.const_data_ptr<int64_t>();
      TORCH_CHECK(v[0] >= 0, "repeats can not be negative");
      n = v[1];
    }
    stack->back() = n;
  }
  sized->run(stack);
}

Tensor masked_select(const Tensor &self, const Tensor &mask) {
  TORCH_CHECK(mask.scalar_type() == c10::kBool, "masked_select: expected BoolTensor for mask");
  TORCH_CHECK(mask.device() == self.device(),
              "Expected all tensors to be on the same device, but found at least two devices, ", self.device(), " and ",
              mask.device(), "!");
  auto [m, s] = at::expand_outplace(mask, self);
  const Tensor flat = s->reshape({-1});
  return flat.index({std::optional<Tensor>(m->reshape({-1}))});
}

struct Runs {
  Tensor values, number, counts;  // number: of the run that each element belongs to
};

// The runs of equal elements of a 1-d tensor that is not empty.
Runs runs_of(const Tensor &x) {
  const auto longs = x.options().dtype(c10::kLong);
  const Tensor first =
      at::cat({at::ones({1}, x.options().dtype(c10::kBool)), x.slice(0, 1).ne(x.slice(0, 0, x.numel() - 1))});
  const Tensor starts = at::nonzero(first).select(1, 0);
  const Tensor ends = at::cat({starts.slice(0, 1), at::full({1}, x.numel(), longs)});
  return {x.index_select(0, starts), first.to(c10::kLong).cumsum(0).sub(1), ends.sub(starts)};
}

// Writes a result to an out= argument of any size.
Tensor &give_out(const Tensor &result, Tensor &out) {
  TORCH_CHECK(result.device() == out.device(), "Expected all tensors to be on the same device, but found at least two ",
              "devices, ", result.device(), " and ", out.device(), "!");
  at::native::resize_output(out, result.sizes());
  return out.copy_(result);
}

std::tuple<Tensor, Tensor, Tensor> none_unique(const Tensor &self, bool inverse, bool) {
  const auto longs = self.options().dtype(c10::kLong);
  return {at::empty({0}, self.options()), at::empty(inverse ? self.sizes() : c10::IntArrayRef({0}), longs),
          at::empty({0}, longs)};
}

std::tuple<Tensor, Tensor, Tensor> unique(const Tensor &self, bool, bool inverse, bool counts) {
  if (!self.numel()) return none_unique(self, inverse, counts);
  if (self.is_complex()) refuse_dtype("unique", self);
  const auto longs = self.options().dtype(c10::kLong);
  auto [sorted, order] = self.reshape({-1}).sort();
  Runs r = runs_of(sorted);
  Tensor number = at::empty({0}, longs);
  if (inverse) number = at::empty({self.numel()}, longs).scatter_(0, order, r.number).view(self.sizes());
  return {r.values, number, counts ? r.counts : at::empty({0}, longs)};
}

using Three = std::tuple<Tensor, Tensor, Tensor>;

std::tuple<Tensor, Tensor> unique_without_counts(const Tensor &self, bool sorted, bool inverse) {
  auto [values, number, counts] = torch_tpu::unique(self, sorted, inverse, false);
  return {values, number};
}

// What PyTorch says of sizes of 0. True: self has no slice along dim.
bool no_slices(const Tensor &self, int64_t dim) {
  const auto zeros = std::count(self.sizes().begin(), self.sizes().end(), 0);
  if (self.size(dim) == 0) {
    TORCH_CHECK(zeros == 1, "Number of zero sized dimensions is more than one, so unique cannot be applied ");
    return true;
  }
  TORCH_CHECK(zeros == 0, "There are 0 sized dimensions, and they aren't selected, so unique cannot be applied");
  return false;
}

Three no_unique_slices(const Tensor &self) {
  const auto longs = self.options().dtype(c10::kLong);
  return {at::empty(self.sizes(), self.options()), at::empty({0}, longs), at::empty({0}, longs)};
}

// Of a [n, ..] matrix: where a row differs from the one before it. [n]
Tensor row_starts(const Tensor &x) {
  const Tensor differs = x.slice(0, 1).ne(x.slice(0, 0, x.size(0) - 1)).any(1);
  return at::cat({at::ones({1}, differs.options()), differs});
}

// The runs that begin where `first` is true, of the slices of self along dim in the order given (or as they stand).
Three slice_runs(const Tensor &self, int64_t dim, const Tensor &first, const Tensor &order) {
  const auto longs = self.options().dtype(c10::kLong);
  Tensor starts = at::nonzero(first).select(1, 0), number = first.to(c10::kLong).cumsum(0).sub(1);
  const Tensor ends = at::cat({starts.slice(0, 1), at::full({1}, self.size(dim), longs)}), counts = ends.sub(starts);
  if (order.defined()) {
    starts = order.index_select(0, starts);
    number = at::empty({self.size(dim)}, longs).scatter_(0, order, number);
  }
  return {self.index_select(dim, starts), number, counts};
}

Three unique_dim_consecutive(const Tensor &self, int64_t dim, bool, bool) {
  if (no_slices(self, dim)) return no_unique_slices(self);
  const int64_t n = self.size(dim);
  return slice_runs(self, dim, row_starts(self.movedim(dim, 0).reshape({n, -1})), Tensor());
}

// Numbers that order the rows of x [n, k] as their elements do, from left to right: each column's elements are numbered
// in order, then columns join in pairs until one is left. Work is k sorts of n, in log2(k) steps.
Tensor row_ranks(Tensor x) {
  const int64_t n = x.size(0);
  for (;;) {
    auto [sorted, order] = x.sort(std::optional<bool>(true), 0);
    const Tensor up = sorted.slice(0, 1).ne(sorted.slice(0, 0, n - 1)).to(c10::kLong);
    const Tensor number = at::cat({at::zeros({1, x.size(1)}, up.options()), up}).cumsum(0);
    x = at::empty_like(number).scatter_(0, order, number);
    const int64_t k = x.size(1);
    if (k == 1) return x.select(1, 0);
    const Tensor even = x.slice(1, 0, k / 2 * 2).reshape({n, k / 2, 2});
    const Tensor joined = even.select(2, 0).mul(n).add(even.select(2, 1));
    x = k % 2 ? at::cat({joined, x.slice(1, k - 1).mul(n)}, 1) : joined;
  }
}

Three unique_dim(const Tensor &self, int64_t dim, bool, bool, bool) {
  if (no_slices(self, dim)) return no_unique_slices(self);
  const int64_t n = self.size(dim);
  auto [sorted, order] = row_ranks(self.movedim(dim, 0).reshape({n, -1})).sort(std::optional<bool>(true), 0);
  return slice_runs(self, dim, row_starts(sorted.unsqueeze(1)), order);
}

Three unique_consecutive(const Tensor &self, bool inverse, bool counts, std::optional<int64_t> dim) {
  if (dim && !(*dim == 0 && self.dim() == 1)) return torch_tpu::unique_dim_consecutive(self, *dim, inverse, counts);
  if (!self.numel()) return none_unique(self, inverse, counts);
  if (self.is_complex()) refuse_dtype("unique", self);
  const auto longs = self.options().dtype(c10::kLong);
  Runs r = runs_of(self.reshape({-1}));
  return {r.values, inverse ? r.number.view(self.sizes()) : at::empty({0}, longs),
          counts ? r.counts : at::empty({0}, longs)};
}

Tensor &masked_select_out(const Tensor &self, const Tensor &mask, Tensor &out) {
  TORCH_CHECK(self.scalar_type() == out.scalar_type(),
              "masked_select(): self and result must have the same scalar type");
  at::assert_no_internal_overlap(out);
  at::assert_no_overlap(out, self);
  at::assert_no_overlap(out, mask);
  return give_out(torch_tpu::masked_select(self, mask), out);
}

Tensor &nonzero_out(const Tensor &self, Tensor &out) {
  TORCH_CHECK(out.scalar_type() == c10::kLong,
              "nonzero: Expected out tensor to have scalar type Long but got scalar type", out.scalar_type());
  TORCH_CHECK(self.device() == out.device(), "expected self and out to be on the same device, but got out on ",
              out.device(), " and self on ", self.device());
  TORCH_CHECK(self.dim() <= 64, "nonzero is not supported for tensor with more than 64 dimensions");
  at::assert_no_internal_overlap(out);
  at::assert_no_overlap(out, self);
  return give_out(at::nonzero(self), out);
}

Tensor bincount(const Tensor &self, const std::optional<Tensor> &weights, c10::SymInt minlength) {
  const int64_t least = minlength.guard_int(__FILE__, __LINE__);
  TORCH_CHECK(least >= 0, "minlength should be >= 0");
  const bool weighted = weights && weights->defined();
  TORCH_CHECK(self.dim() == 1, "bincount only supports 1-d non-negative integral inputs.");
  if (!c10::isIntegralType(self.scalar_type(), /*includeBool=*/false)) refuse_dtype("bincount_cpu", self);
  TORCH_CHECK(!weighted || (weights->dim() == 1 && weights->size(0) == self.size(0)),
              "weights should be 1-d and have the same length as input");
  const auto dtype = !weighted ? c10::kLong : weights->scalar_type() == c10::kFloat ? c10::kFloat : c10::kDouble;
  int64_t n = least;
  if (self.numel()) {
    const auto [low, high] = at::aminmax(self);
    const Tensor read = at::stack({low, high}).to(c10::kLong).cpu();
    const int64_t *v = read.const_data_ptr<int64_t>();
    TORCH_CHECK(v[0] >= 0, "bincount only supports 1-d non-negative integral inputs.");
    n = std::max(n, v[1] + 1);
  }
  Tensor out = at::zeros({n}, self.options().dtype(dtype));
  if (!self.numel()) return out;
  const Tensor index = self.to(c10::kLong);
  return out.index_add_(0, index, weighted ? weights->to(dtype) : at::ones_like(index));
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("nonzero", torch::CppFunction::makeFromBoxedFunction<&nonzero>());
  m.impl("repeat_interleave.Tensor", torch::CppFunction::makeFromBoxedFunction<&repeat_interleave>());
  m.impl("masked_select", TORCH_FN(masked_select));
  m.impl("_unique2", TORCH_FN(unique));
  m.impl("_unique", TORCH_FN(unique_without_counts));
  m.impl("unique_dim", TORCH_FN(unique_dim));
  m.impl("unique_dim_consecutive", TORCH_FN(unique_dim_consecutive));
  m.impl("unique_consecutive", TORCH_FN(unique_consecutive));
  m.impl("masked_select.out", TORCH_FN(masked_select_out));
  m.impl("nonzero.out", TORCH_FN(nonzero_out));
  m.impl("bincount", TORCH_FN(bincount));
}

}  // namespace torch_tpu
