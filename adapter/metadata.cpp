// metadata.cpp - factories, views and resizing: what changes a tensor's metadata or storage and computes nothing.
#include <ATen/Context.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_nested_tensor_size_native.h>
#include <ATen/ops/_nested_tensor_storage_offsets_native.h>
#include <ATen/ops/_nested_tensor_strides_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>

#include "adapter/tensor.h"

namespace torch_tpu {
namespace {

using at::Tensor;
using c10::IntArrayRef;
using c10::SymIntArrayRef;

IntArrayRef ints(SymIntArrayRef s) { return C10_AS_INTARRAYREF_SLOW(s); }

c10::ScalarType checked_dtype(std::optional<c10::ScalarType> d) {
  const auto t = d.value_or(c10::get_default_dtype_as_scalartype());
  TORCH_CHECK_TYPE(tpu_dtype_size(static_cast<tpu_dtype>(t)) != 0, "tpu: tensors of dtype ", t,
                   " are not supported on this device");
  return t;
}

struct OnDevice {
  int old = tpu_get_device(), now;
  explicit OnDevice(std::optional<c10::Device> d) : now(d && d->has_index() ? d->index() : old) {
    if (now != old) c10::impl::getDeviceGuardImpl(kTPU)->setDevice(device_at(now));
  }
  ~OnDevice() {
    if (now != old) tpu_set_device(old);
  }
};

void check_options(std::optional<c10::Layout> layout, std::optional<bool> pin) {
  TORCH_CHECK_NOT_IMPLEMENTED(!layout || *layout == c10::kStrided, "tpu: expected a strided layout, got ", *layout);
  TORCH_CHECK(!pin || !*pin, "Only dense CPU tensors can be pinned");
}

// With deterministic algorithms PyTorch fills memory that nobody has written with NaN or the largest integer: all of
// the storage from byte `start` on, which a view may not reach.
const Tensor &fill_unwritten(const Tensor &t, size_t start) {
  if (C10_LIKELY(!at::globalContext().deterministicAlgorithms()) ||
      !at::globalContext().deterministicFillUninitializedMemory())
    return t;
  const auto size = static_cast<int64_t>(t.itemsize()), from = static_cast<int64_t>(start) / size,
             n = static_cast<int64_t>(t.storage().nbytes()) / size - from;
  const int64_t one = 1;
  if (n <= 0) return t;
  const at::AutoDispatchBelowADInplaceOrView below;
  Tensor rest = at::native::as_strided_tensorimpl(t, IntArrayRef(&n, 1), IntArrayRef(&one, 1), from);
  if (t.scalar_type() == c10::kUInt64) rest.view(c10::kLong).fill_(-1);  // a Scalar of its own kind
  else at::native::fill_empty_deterministic_(rest);
  return t;
}

Tensor empty(SymIntArrayRef sizes, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
             std::optional<c10::Device> device, std::optional<bool> pin, std::optional<c10::MemoryFormat> format) {
  check_options(layout, pin);
  const auto t = checked_dtype(dtype);
  const OnDevice on(device);
  return fill_unwritten(at::detail::empty_generic(ints(sizes), device_allocator(),
                                                  c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), t, format),
                        0);
}

Tensor empty_strided(SymIntArrayRef sizes, SymIntArrayRef strides, std::optional<c10::ScalarType> dtype,
                     std::optional<c10::Layout> layout, std::optional<c10::Device> device, std::optional<bool> pin) {
  check_options(layout, pin);
  const auto t = checked_dtype(dtype);
  const OnDevice on(device);
  return fill_unwritten(at::detail::empty_strided_generic(ints(sizes), ints(strides), device_allocator(),
                                                          c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), t),
                        0);
}

Tensor view(const Tensor &x, SymIntArrayRef s) { return at::native::view(x, ints(s)); }
Tensor reshape_alias(const Tensor &x, SymIntArrayRef s, SymIntArrayRef t) {
  return at::native::_reshape_alias(x, ints(s), ints(t));
}
Tensor as_strided(const Tensor &x, SymIntArrayRef s, SymIntArrayRef t, std::optional<c10::SymInt> offset) {
  return at::native::as_strided_tensorimpl(
      x, ints(s), ints(t), offset ? std::optional<int64_t>(offset->guard_int(__FILE__, __LINE__)) : std::nullopt);
}

const Tensor &resize_(const Tensor &x, SymIntArrayRef s, std::optional<c10::MemoryFormat> format) {
  const size_t before = x.storage().nbytes();
  resize_to(x, ints(s), {});
  if (format) {
    TORCH_CHECK(*format != c10::MemoryFormat::Preserve, "Unsupported memory format ", *format);
    x.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  }
  return fill_unwritten(x, before);
}

Tensor &set_storage(Tensor &self, at::Storage source, c10::SymInt offset, SymIntArrayRef sizes,
                    SymIntArrayRef strides) {
  const int64_t start = offset.guard_int(__FILE__, __LINE__);
  at::native::checkSetStorage(self, std::move(source), start, ints(sizes), ints(strides),
                              /*check_offset_in_bounds=*/false);
  auto *t = self.unsafeGetTensorImpl();
  t->set_storage_offset(start);
  at::native::resize_impl_cpu_(t, ints(sizes), strides.data() ? at::OptionalIntArrayRef(ints(strides)) : std::nullopt,
                               /*resize_storage=*/false);
  grow_storage(t);
  return self;
}
Tensor &set_storage_whole(Tensor &self, at::Storage source) {
  const auto n = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  const int64_t one = 1;
  return set_storage(self, std::move(source), 0, c10::fromIntArrayRefSlow(IntArrayRef(&n, 1)),
                     c10::fromIntArrayRefSlow(IntArrayRef(&one, 1)));
}
Tensor &set_empty(Tensor &self) {
  at::Storage fresh(c10::Storage::use_byte_size_t(), 0, device_allocator(), /*resizable=*/true);
  const int64_t zero = 0, one = 1;
  return set_storage(self, std::move(fresh), 0, c10::fromIntArrayRefSlow(IntArrayRef(&zero, 1)),
                     c10::fromIntArrayRefSlow(IntArrayRef(&one, 1)));
}

Tensor copy_from_and_resize(const Tensor &src, const Tensor &dst) {
  resize_to(dst, src.sizes(), {});
  copy_any(dst, src);
  return dst;
}

// PyTorch's own rule does not know PrivateUse1 as a dense backend, so `p.data = x` and Module.to would be refused.
bool compatible_shallow_copy(const Tensor &self, const Tensor &from) {
  const auto dense = [](const Tensor &t) {
    return t.layout() == c10::kStrided && !t.is_quantized() && (t.is_cpu() || t.is_privateuseone() || t.is_cuda());
  };
  const auto coo = [](const Tensor &t) { return t.is_sparse(); };
  const auto compressed = [](const Tensor &t) { return at::sparse_csr::is_sparse_compressed(t); };
  return (dense(self) && dense(from)) || (coo(self) && coo(from)) || (compressed(self) && compressed(from));
}

void record_stream(Tensor &, c10::Stream) {}  // all streams of a device run in order

}  // namespace

void resize_storage(c10::StorageImpl *s, size_t nbytes) {
  TORCH_CHECK(s->resizable(), "Trying to resize storage that is not resizable");
  before_write(s);
  tpu_store *store = store_of(s);
  throw_if(tpu_store_resize(store, nbytes));
  s->set_data_ptr_noswap(
      c10::DataPtr(tpu_store_address(store), tpu_store_retain(store), g_release, device_at(tpu_store_device(store))));
  s->set_nbytes(nbytes);
}

void grow_storage(c10::TensorImpl *t) {
  if (t->numel() == 0) return;
  const size_t need =
      at::detail::computeStorageNbytes(t->sizes(), t->strides(), t->dtype().itemsize(), t->storage_offset());
  c10::StorageImpl *s = t->unsafe_storage().unsafeGetStorageImpl();
  if (need > s->nbytes()) resize_storage(s, need);
}

void resize_to(const Tensor &x, IntArrayRef sizes, IntArrayRef strides) {
  auto *t = x.unsafeGetTensorImpl();
  if (!x.is_privateuseone()) {
    x.resize_(sizes);
    return;
  }
  if (strides.data() && strides.size() == sizes.size() && !sizes.empty())
    at::native::resize_impl_cpu_(t, sizes, strides, /*resize_storage=*/false);
  else at::native::resize_impl_cpu_(t, sizes, std::nullopt, /*resize_storage=*/false);
  grow_storage(t);
}

// nn.TransformerEncoder asks this before it makes nested tensors of what a padding mask leaves; the device has none,
// and "not left aligned" makes it go on with the mask.
bool nested_tensor_fits_mask(const Tensor &, const Tensor &) { return false; }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_nested_tensor_from_mask_left_aligned", TORCH_FN(nested_tensor_fits_mask));
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("view", TORCH_FN(view));
  m.impl("_reshape_alias", TORCH_FN(reshape_alias));
  m.impl("as_strided", TORCH_FN(as_strided));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  m.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
  m.impl("is_set_to", TORCH_FN(at::native::is_set_to));
  m.impl("resize_", TORCH_FN(resize_));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage));
  m.impl("set_.source_Storage", TORCH_FN(set_storage_whole));
  m.impl("set_.source_Tensor", TORCH_FN(at::native::set_tensor_));
  m.impl("set_", TORCH_FN(set_empty));
  m.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  m.impl("record_stream", TORCH_FN(record_stream));
  m.impl("_has_compatible_shallow_copy_type", TORCH_FN(compatible_shallow_copy));
}
// Autograd asks for the sizes where no error may leave: without these, the first operator on a nested tensor that needs
// a gradient ends the process.
TORCH_LIBRARY_IMPL(aten, NestedTensorPrivateUse1, m) {
  m.impl("_nested_tensor_size", TORCH_FN(at::native::_nested_tensor_size));
  m.impl("_nested_tensor_strides", TORCH_FN(at::native::_nested_tensor_strides));
  m.impl("_nested_tensor_storage_offsets", TORCH_FN(at::native::_nested_tensor_storage_offsets));
}
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("_has_compatible_shallow_copy_type", TORCH_FN(compatible_shallow_copy));
}

}  // namespace torch_tpu
