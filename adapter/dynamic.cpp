// dynamic.cpp - operators whose result's size depends on the data: the size is read on the host, once, and the rest
// stays on the device with a known size.
#include <ATen/ExpandUtils.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
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

void unique_consecutive(const c10::OperatorHandle &op, torch::jit::Stack *stack) {
  if (!stack->back().isNone()) return fallback(op, stack);  // along a dim: rows are compared as a whole
  const size_t base = stack->size() - 4;
  const Tensor self = (*stack)[base].toTensor();
  const bool inverse = (*stack)[base + 1].toBool(), counts = (*stack)[base + 2].toBool();
  std::tuple<Tensor, Tensor, Tensor> out;
  if (!self.numel()) {
    out = none_unique(self, inverse, counts);
  } else {
    if (self.is_complex()) refuse_dtype("unique", self);
    const auto longs = self.options().dtype(c10::kLong);
    Runs r = runs_of(self.reshape({-1}));
    out = {r.values, inverse ? r.number.view(self.sizes()) : at::empty({0}, longs),
           counts ? r.counts : at::empty({0}, longs)};
  }
  stack->resize(base);
  stack->emplace_back(std::get<0>(out));
  stack->emplace_back(std::get<1>(out));
  stack->emplace_back(std::get<2>(out));
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
  m.impl("unique_consecutive", torch::CppFunction::makeFromBoxedFunction<&unique_consecutive>());
  m.impl("bincount", TORCH_FN(bincount));
}

}  // namespace torch_tpu
