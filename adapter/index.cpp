// index.cpp - index and index_put take masks and CPU indices; the core takes index tensors on the device.
#include <ATen/ops/masked_fill.h>
#include <ATen/ops/nonzero.h>

#include "adapter/kernel.h"

namespace torch_tpu {
namespace {

using at::Tensor;

bool is_mask(const Tensor &t) { return t.scalar_type() == c10::kBool || t.scalar_type() == c10::kByte; }

// One mask over leading dims and a value of one element: no index list is needed.
std::optional<Tensor> single_mask(const Tensor &self, const c10::ArrayRef<c10::IValue> &indices) {
  Tensor mask;
  int64_t dims = 0;
  for (const c10::IValue &e : indices) {
    const Tensor i = e.isTensor() ? e.toTensor() : Tensor();
    if (!i.defined()) {
      if (!mask.defined()) dims++;
    } else {
      if (mask.defined() || !is_mask(i) || i.device() != self.device()) return {};
      for (int64_t d = 0; d < i.dim(); d++)
        if (dims + d >= self.dim() || i.size(d) != self.size(dims + d)) return {};
      mask = i;
      dims += i.dim();
    }
  }
  if (!mask.defined()) return {};
  for (int64_t d = dims; d < self.dim(); d++) mask = mask.unsqueeze(-1);
  return mask.scalar_type() == c10::kByte ? mask.to(c10::kBool) : mask;
}

void refuse_dtype(const Tensor &self, const Tensor &source) {
  TORCH_CHECK(false, "Index put requires the source and destination dtypes match, got ", self.scalar_type(),
              " for the destination and ", source.scalar_type(), " for the source.");
}

}  // namespace

bool prepare_index(const Kernel &k, torch::jit::Stack *stack, size_t base) {
  c10::IValue &self_value = (*stack)[base], &list = (*stack)[base + 1];
  if (!self_value.isTensor() || !list.isList()) return false;
  const Tensor self = self_value.toTensor();
  const auto l = list.toListRef();
  const bool puts = k.args.size() >= 4 && (*stack)[base + 2].isTensor() && (*stack)[base + 3].isBool();
  const bool other_dtype = puts && (*stack)[base + 2].toTensor().scalar_type() != self.scalar_type();
  bool plain = true;
  for (const c10::IValue &e : l)
    if (e.isTensor() && e.toTensor().defined() && (is_mask(e.toTensor()) || !e.toTensor().is_privateuseone()))
      plain = false;
  if (plain) {
    if (other_dtype) refuse_dtype(self, (*stack)[base + 2].toTensor());
    return false;
  }
  TORCH_CHECK_INDEX(static_cast<int64_t>(l.size()) <= self.dim(), "too many indices for tensor of dimension ",
                    self.dim(), " (got ", l.size(), ")");

  if (puts && !k.has_out && !(*stack)[base + 3].toBool()) {
    Tensor value = (*stack)[base + 2].toTensor();
    if (value.numel() == 1 && value.dim() != 0 && value.device() == self.device()) value = value.reshape({});
    if (value.dim() == 0)
      if (auto mask = single_mask(self, l)) {
        const Tensor v = value.is_cpu() ? value : value.to(self.scalar_type());
        Tensor out = k.writes ? const_cast<Tensor &>(self).masked_fill_(*mask, v) : at::masked_fill(self, *mask, v);
        stack->resize(base);
        stack->emplace_back(std::move(out));
        return true;
      }
  }

  if (other_dtype) refuse_dtype(self, (*stack)[base + 2].toTensor());

  c10::List<std::optional<Tensor>> out;
  for (const c10::IValue &e : l) {
    if (!e.isTensor() || !e.toTensor().defined()) {
      out.push_back(std::nullopt);
      continue;
    }
    const Tensor i = e.toTensor();
    if (!is_mask(i)) {
      out.push_back(i.is_privateuseone() ? i : i.to(self.device()));
      continue;
    }
    if (i.scalar_type() == c10::kByte) {
      TORCH_WARN_ONCE("indexing with dtype torch.uint8 is now deprecated, please use a dtype torch.bool instead.");
    }
    const auto at = static_cast<int64_t>(out.size());
    for (int64_t d = 0; d < i.dim(); d++)
      TORCH_CHECK_INDEX(at + d < self.dim() && i.size(d) == self.size(at + d), "The shape of the mask ", i.sizes(),
                        " at index ", d, " does not match the shape of the indexed tensor ", self.sizes(), " at index ",
                        at + d);
    // On the CPU the count costs no wait for the device.
    const Tensor found = i.is_privateuseone() ? at::nonzero(i) : at::nonzero(i).to(self.device());
    for (int64_t d = 0; d < i.dim(); d++) out.push_back(found.select(1, d));
  }
  (*stack)[base + 1] = std::move(out);
  return false;
}

}  // namespace torch_tpu
