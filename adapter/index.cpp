// index.cpp - index and index_put take masks and CPU indices; the core takes index tensors on the device.
#include <ATen/ExpandUtils.h>
#include <ATen/ops/masked_fill.h>
#include <ATen/ops/nonzero.h>

#include "adapter/kernel.h"

namespace torch_tpu {
namespace {

using at::Tensor;

bool is_mask(const Tensor &t) { return t.scalar_type() == c10::kBool || t.scalar_type() == c10::kByte; }

// The only index, when it is a mask over dims of self that it fits: a write through it is a select, of fixed shape.
// first: the dim that it begins at.
Tensor single_mask(const Tensor &self, const c10::ArrayRef<c10::IValue> &indices, int64_t *first) {
  Tensor mask;
  for (size_t k = 0; k < indices.size(); k++) {
    const Tensor i = indices[k].isTensor() ? indices[k].toTensor() : Tensor();
    if (!i.defined()) continue;
    if (mask.defined() || !is_mask(i) || i.device() != self.device()) return {};
    mask = i;
    *first = static_cast<int64_t>(k);
  }
  if (!mask.defined() || *first + mask.dim() > self.dim()) return {};
  for (int64_t d = 0; d < mask.dim(); d++)
    if (mask.size(d) != self.size(*first + d)) return {};
  return mask;
}

// The same with the dims that follow it, to broadcast against self.
Tensor spread(const Tensor &self, Tensor mask, int64_t first) {
  for (int64_t d = first + mask.dim(); d < self.dim(); d++) mask = mask.unsqueeze(-1);
  return mask.scalar_type() == c10::kByte ? mask.to(c10::kBool) : mask;
}

void warn_of_bytes(const Tensor &mask) {
  if (mask.scalar_type() != c10::kByte) return;
  TORCH_WARN("indexing with dtype torch.uint8 is now deprecated, please use a dtype torch.bool instead.");
}

// How many elements along the mask's true ones the values bring: 1 when they broadcast.
int64_t values_along_mask(const Tensor &self, const Tensor &mask, int64_t first, const Tensor &values) {
  const int64_t at = values.dim() - (self.dim() - first - mask.dim()) - 1;
  return at < 0 ? 1 : values.size(at);
}

// The shapes of self[indices] = source, none of them a mask.
void check_put_shapes(const Tensor &self, const c10::ArrayRef<c10::IValue> &indices, const Tensor &source) {
  const auto indexed = [&](size_t d) {
    return d < indices.size() && indices[d].isTensor() && indices[d].toTensor().defined();
  };
  std::vector<int64_t> shape, result;
  std::vector<c10::IntArrayRef> sizes;
  size_t first = 0, last = 0;
  for (size_t d = 0; d < indices.size(); d++) {
    if (!indexed(d)) continue;
    if (sizes.empty()) first = d;
    last = d;
    sizes.push_back(indices[d].toTensor().sizes());
  }
  if (sizes.empty() || static_cast<int64_t>(indices.size()) > self.dim()) return;
  for (const c10::IntArrayRef s : sizes) {
    if (s.size() > shape.size()) shape.insert(shape.begin(), s.size() - shape.size(), 1);
    for (size_t d = 0; d < s.size(); d++) {
      int64_t &to = shape[shape.size() - s.size() + d];
      TORCH_CHECK_INDEX(to == s[d] || to == 1 || s[d] == 1,
                        "shape mismatch: indexing tensors could not be broadcast together with shapes ",
                        c10::Join(", ", sizes));
      if (to == 1) to = s[d];
    }
  }
  const size_t place = last - first + 1 == sizes.size() ? first : 0;
  for (size_t d = 0; d < static_cast<size_t>(self.dim()); d++) {
    if (d == place) result.insert(result.end(), shape.begin(), shape.end());
    if (!indexed(d)) result.push_back(self.size(static_cast<int64_t>(d)));
  }
  c10::IntArrayRef values = source.sizes(); /* it may have more leading dims of size 1 */
  while (values.size() > result.size() && values[0] == 1) values = values.slice(1);
  TORCH_CHECK(at::is_expandable_to(values, result), "shape mismatch: value tensor of shape ", source.sizes(),
              " cannot be broadcast to indexing result of shape ", c10::IntArrayRef(result));
}

// PyTorch's errors about the shapes come before the one about the dtypes, which the row never sees.
void refuse_dtype(const Tensor &self, const c10::ArrayRef<c10::IValue> &indices, const Tensor &source) {
  check_put_shapes(self, indices, source);
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
  for (const c10::IValue &e : l) {
    if (!e.isTensor() || !e.toTensor().defined()) continue;
    const Tensor &i = e.toTensor();
    TORCH_CHECK(i.is_cpu() || i.device() == self.device(), "indices should be either on ", c10::kCPU,
                " or on the same device as the indexed tensor (", self.device(), ")");
    if (is_mask(i) || !i.is_privateuseone()) plain = false;
  }
  if (plain) {
    if (other_dtype) refuse_dtype(self, l, (*stack)[base + 2].toTensor());
    return false;
  }
  TORCH_CHECK_INDEX(static_cast<int64_t>(l.size()) <= self.dim(), "too many indices for tensor of dimension ",
                    self.dim(), " (got ", l.size(), ")");

  int64_t first = 0;
  const Tensor mask = puts && !k.has_out ? single_mask(self, l, &first) : Tensor();
  if (mask.defined() && !(*stack)[base + 3].toBool()) {
    Tensor value = (*stack)[base + 2].toTensor();
    if (value.numel() == 1 && value.dim() != 0 && value.device() == self.device()) value = value.reshape({});
    if (value.dim() == 0) {
      const Tensor m = spread(self, mask, first), v = value.is_cpu() ? value : value.to(self.scalar_type());
      Tensor out = k.writes ? const_cast<Tensor &>(self).masked_fill_(m, v) : at::masked_fill(self, m, v);
      stack->resize(base);
      stack->emplace_back(std::move(out));
      return true;
    }
  }

  if (mask.defined() && !other_dtype) {
    warn_of_bytes(mask);
    const Tensor &values = (*stack)[base + 2].toTensor();
    const int64_t n = values_along_mask(self, mask, first, values);
    const bool never = n != 1 && n > mask.numel();
    // Whether as many elements are true as there are values only the data tell: read in Debug mode.
    if (never || (n != 1 && tpu_get_eager_mode() == TPU_DEBUG)) {
      const int64_t have = never ? mask.numel() : mask.sum().item<int64_t>();
      TORCH_CHECK(n == have, "shape mismatch: value tensor of shape ", values.sizes(),
                  " cannot be broadcast to indexing result: the mask has ", never ? "at most " : "", have,
                  " true elements");
    }
    return false;
  }

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
    warn_of_bytes(i);
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
  if (other_dtype) refuse_dtype(self, (*stack)[base + 1].toListRef(), (*stack)[base + 2].toTensor());
  return false;
}

}  // namespace torch_tpu
