// copy.cpp - values across the host border and between devices: copy_, _copy_from, _local_scalar_dense, equal,
// _to_copy.
#include <ATen/MemoryOverlap.h>
#include <ATen/ops/_to_copy_native.h>
#include <ATen/ops/all.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/real.h>

#include "adapter/kernel.h"

namespace torch_tpu {
namespace {

using at::Tensor;

// dst and src with the same sizes and strides: both as they lie in memory, so that neither side is transposed on the
// host.
struct InMemoryOrder {
  c10::SmallVector<int64_t, 8> sizes, strides;
  bool dense = false;
  explicit InMemoryOrder(const Tensor &t) {
    const size_t n = static_cast<size_t>(t.dim());
    c10::SmallVector<size_t, 8> order(n);
    for (size_t i = 0; i < n; i++) order[i] = i;
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return t.stride(a) > t.stride(b); });
    for (size_t i : order) {
      sizes.push_back(t.size(i));
      strides.push_back(t.stride(i));
    }
    int64_t want = 1;
    dense = true;
    for (size_t i = n; i-- > 0;) {
      if (sizes[i] != 1 && strides[i] != want) dense = false;
      want *= sizes[i];
    }
  }
};

void upload(const Tensor &dst, const Tensor &src) {  // same dtype and sizes
  if (!dst.numel()) return;
  before_write(dst);
  tpu_tensor d = lend(dst);
  if (src.strides() == dst.strides() && !src.is_contiguous()) {
    const InMemoryOrder m(dst);
    if (m.dense) {
      d.sizes = m.sizes.data();
      d.strides = m.strides.data();
      return throw_if(tpu_copy_from_host(&d, src.const_data_ptr()));
    }
  }
  throw_if(tpu_copy_from_host(&d, src.contiguous().const_data_ptr()));
}

void download(const Tensor &dst, const Tensor &src) {  // same dtype and sizes; no conj or neg bit
  if (!src.numel()) return;
  tpu_tensor s = lend(src);
  if (dst.is_contiguous()) return throw_if(tpu_copy_to_host(&s, dst.mutable_data_ptr()));
  if (dst.strides() == src.strides()) {
    const InMemoryOrder m(src);
    if (m.dense) {
      s.sizes = m.sizes.data();
      s.strides = m.strides.data();
      return throw_if(tpu_copy_to_host(&s, dst.mutable_data_ptr()));
    }
  }
  Tensor dense = at::detail::empty_cpu(src.sizes(), src.scalar_type());
  throw_if(tpu_copy_to_host(&s, dense.mutable_data_ptr()));
  dst.copy_(dense);
}

// dst <- src on one device, by the row of aten::copy.
void copy_on_device(const Tensor &dst, const Tensor &src) {
  at::assert_no_internal_overlap(dst);
  at::assert_no_partial_overlap(dst, src);
  if (!dst.numel()) return;
  static Kernel *kernel = find_kernel("aten::copy_");
  TORCH_CHECK_NOT_IMPLEMENTED(kernel, "tpu: the core has no row aten::copy");
  call_kernel(kernel, {dst, src, false});
}

void check_expand(const Tensor &dst, const Tensor &src) {
  if (dst.sizes() != src.sizes()) (void)src.expand(dst.sizes());  // PyTorch's error
}

void copy_in(const Tensor &dst, Tensor src) {
  check_expand(dst, src);
  src = src.resolve_conj().resolve_neg();
  // The smaller of the two crosses: fewer bytes, and the device converts and broadcasts.
  const bool widen = src.scalar_type() != dst.scalar_type() && src.element_size() <= dst.element_size() &&
                     !src.is_complex() && tpu_dtype_size(static_cast<tpu_dtype>(src.scalar_type()));
  if (src.scalar_type() != dst.scalar_type() && !widen) src = src.to(dst.scalar_type());
  if (src.scalar_type() == dst.scalar_type() && src.sizes() == dst.sizes() &&
      at::has_internal_overlap(dst) == at::MemOverlap::No)
    return upload(dst, src);
  const Tensor t = new_tensor(src.sizes(), src.scalar_type(), dst.device().index());
  upload(t, src);
  copy_on_device(dst, t);
}

void copy_out(const Tensor &dst, const Tensor &src) {
  check_expand(dst, src);
  if (src.dtype() == dst.dtype() && src.sizes() == dst.sizes() && !dst.is_conj() && !dst.is_neg())
    return download(dst, src);
  Tensor dense = at::detail::empty_cpu(src.sizes(), src.scalar_type());
  download(dense, src);
  dst.copy_(dense);
}

void copy_between(const Tensor &dst, Tensor src) {
  check_expand(dst, src);
  if (src.dtype() != dst.dtype() || !src.is_contiguous() || src.is_conj() || src.is_neg()) {
    const Tensor dense = new_tensor(src.sizes(), dst.scalar_type(), src.device().index());
    copy_on_device(dense, src);
    src = dense;
  }
  const auto across = [&](const Tensor &to) {
    before_write(to);
    const tpu_tensor d = lend(to), s = lend(src);
    throw_if(tpu_copy_across(&d, &s));
  };
  if (src.sizes() == dst.sizes()) return across(dst);
  const Tensor t = new_tensor(src.sizes(), src.scalar_type(), dst.device().index());
  across(t);
  copy_on_device(dst, t);
}

Tensor copy_from(const Tensor &src, const Tensor &dst, bool) {
  copy_any(dst, src);
  return dst;
}
Tensor &copy_(Tensor &self, const Tensor &src, bool) {
  if (!self.is_same(src)) copy_any(self, src);
  return self;
}

template <typename T>
c10::Scalar scalar_at(const void *p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return c10::Scalar(v);
}

c10::Scalar local_scalar(const Tensor &self) {
  TORCH_CHECK(self.numel() > 0, "_local_scalar_dense: Empty tensor not supported");
  TORCH_CHECK(self.numel() == 1, "a Tensor with ", self.numel(), " elements cannot be converted to Scalar");
  const bool conj = self.is_conj(), neg = self.is_neg();
  tpu_tensor t = lend(self);
  t.flags &= static_cast<uint8_t>(~(TPU_TENSOR_CONJ | TPU_TENSOR_NEG));
  alignas(16) unsigned char raw[16] = {0};
  throw_if(tpu_copy_to_host(&t, raw));
  if (C10_UNLIKELY(conj || neg)) {
    Tensor host = at::detail::empty_cpu({}, self.scalar_type());
    std::memcpy(host.mutable_data_ptr(), raw, self.element_size());
    if (conj) host = host.conj();
    if (neg) host = host.neg();
    return host.item();
  }
  switch (self.scalar_type()) {
#define CASE(T, name) \
  case c10::ScalarType::name: return scalar_at<T>(raw);
    AT_FORALL_SCALAR_TYPES_WITH_COMPLEX_EXCEPT_COMPLEX_HALF_F8NZ(CASE)
#undef CASE
    default: break;
  }
  Tensor host = at::detail::empty_cpu({}, self.scalar_type());
  std::memcpy(host.mutable_data_ptr(), raw, self.element_size());
  return host.item();
}

// As on CUDA, dtypes may differ.
bool equal(const Tensor &a, const Tensor &b) {
  TORCH_CHECK(a.device() == b.device(),
              "Expected all tensors to be on the same device, but found at least two devices, ", a.device(), " and ",
              b.device(), "!");
  if (a.sizes() != b.sizes()) return false;
  if (!a.numel()) return true;
  return at::all(at::eq(a, b)).item<bool>();
}

bool same_place(const Tensor &self, const std::optional<c10::Device> &device, const std::optional<c10::Layout> &layout,
                const std::optional<bool> &pin) {
  const bool here =
      !device || (device->is_privateuseone() &&
                  (!device->has_index() ? tpu_get_device() == self.device().index() : *device == self.device()));
  return self.is_privateuseone() && here && (!layout || *layout == c10::kStrided) && (!pin || !*pin) &&
         self.layout() == c10::kStrided;
}

// A cast on one device is one program when the core has a row for it; everything else is PyTorch's empty + copy_.
Tensor to_copy(const Tensor &self, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
               std::optional<c10::Device> device, std::optional<bool> pin, bool non_blocking,
               std::optional<c10::MemoryFormat> format) {
  static Kernel *kernel = find_kernel("aten::_to_copy");
  if (kernel && same_place(self, device, layout, pin))
    return call_kernel(kernel,
                       {self, dtype ? c10::IValue(*dtype) : c10::IValue(), c10::IValue(), c10::IValue(self.device()),
                        c10::IValue(), non_blocking, format ? c10::IValue(*format) : c10::IValue()});
  return at::native::_to_copy(self, dtype, layout, device, pin, non_blocking, format);
}

}  // namespace

void copy_any(const Tensor &dst, const Tensor &src) {
  TORCH_CHECK(dst.defined() && src.defined(), "copy_: expected two defined tensors");
  if (!on_tpu(src) && !on_tpu(dst)) {
    dst.copy_(src);
    return;
  }
  if (C10_UNLIKELY(dst.is_conj())) return copy_any(dst.conj(), src.conj());
  if (C10_UNLIKELY(dst.is_neg())) return copy_any(dst._neg_view(), src.neg());
  if (on_tpu(dst) && on_tpu(src)) {
    if (dst.device() != src.device()) return copy_between(dst, src);
    return copy_on_device(dst, src);
  }
  if (on_tpu(dst)) {
    TORCH_CHECK_NOT_IMPLEMENTED(src.is_cpu() && src.layout() == c10::kStrided, "tpu: cannot copy from a ", src.layout(),
                                " tensor on ", src.device());
    at::assert_no_internal_overlap(dst);
    return copy_in(dst, src);
  }
  TORCH_CHECK_NOT_IMPLEMENTED(dst.is_cpu() && dst.layout() == c10::kStrided, "tpu: cannot copy to a ", dst.layout(),
                              " tensor on ", dst.device());
  if (src.is_conj() || src.is_neg()) {
    const Tensor plain = src.resolve_conj().resolve_neg();
    return copy_out(dst, plain);
  }
  copy_out(dst, src);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("copy_", TORCH_FN(copy_));
  m.impl("_copy_from", TORCH_FN(copy_from));
  m.impl("_local_scalar_dense", TORCH_FN(local_scalar));
  m.impl("equal", TORCH_FN(equal));
  m.impl("_to_copy", TORCH_FN(to_copy));
}
// Without these conj().clone() would call itself until the stack ends: the fallback of both keys resolves by copying.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

}  // namespace torch_tpu
