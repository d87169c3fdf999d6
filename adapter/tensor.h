// tensor.h - at::Tensor to tpu_tensor and back. A storage's DataPtr holds the store as its context and the address that
// stands for it as its data.
#pragma once
#include "adapter/common.h"

namespace torch_tpu {

inline void release_store(void *store) { tpu_store_release(static_cast<tpu_store *>(store)); }
using store_deleter = void (*)(void *);
extern const store_deleter g_release;  // one address for the whole library, compared in store_of

// The store of a storage whose data pointer is not one of ours (a tensor from DLPack stands on another's storage);
// throws when there is none. *offset: bytes from the store's start to the storage's.
tpu_store *foreign_store(const c10::StorageImpl *s, size_t *offset);
inline tpu_store *store_of(const c10::StorageImpl *s) {
  const c10::DataPtr &p = s->data_ptr();
  if (C10_LIKELY(p.get_deleter() == g_release)) return static_cast<tpu_store *>(p.get_context());
  size_t offset = 0;
  tpu_store *found = foreign_store(s, &offset);
  TORCH_CHECK(offset == 0, "tpu: this storage is a part of another one and cannot be used alone");
  return found;
}

// Storages that share a store until one of them is written (lazy_clone.cpp). Whoever lets the core write a storage asks
// before_write first.
extern std::atomic<bool> any_lazy_clone;  // whether there ever was one
void own_storage(c10::StorageImpl *s);
bool is_own_data_ptr(const c10::DataPtr &p);
bool is_lazy_data_ptr(const c10::DataPtr &p);  // of a simple pointer, in PyTorch's words
inline void before_write(c10::StorageImpl *s) {
  if (C10_UNLIKELY(any_lazy_clone.load(std::memory_order_relaxed))) own_storage(s);
}

inline bool on_tpu(const at::TensorBase &t) { return t.defined() && t.is_privateuseone(); }

// Lends sizes, strides and store of a device tensor. flags: TPU_TENSOR_*.
inline void lend_device(tpu_tensor &out, const c10::TensorImpl *t) {
  const auto sizes = t->sizes(), strides = t->strides();
  const c10::StorageImpl *storage = t->unsafe_storage().unsafeGetStorageImpl();
  const c10::DataPtr &data = storage->data_ptr();
  out.host = nullptr;
  out.sizes = sizes.data();
  out.strides = strides.data();
  out.offset = t->storage_offset();
  if (C10_LIKELY(data.get_deleter() == g_release)) {
    out.store = static_cast<tpu_store *>(data.get_context());
  } else {
    size_t offset = 0;
    out.store = foreign_store(storage, &offset);
    out.offset += static_cast<int64_t>(offset / t->dtype().itemsize());
  }
  out.ndim = static_cast<int32_t>(sizes.size());
  out.dtype = static_cast<uint8_t>(c10::typeMetaToScalarType(t->dtype()));
  const auto keys = t->key_set();
  out.flags = 0;
  if (C10_UNLIKELY(keys.has_any(c10::DispatchKeySet({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative})))) {
    if (keys.has(c10::DispatchKey::Conjugate)) out.flags |= TPU_TENSOR_CONJ;
    if (keys.has(c10::DispatchKey::Negative)) out.flags |= TPU_TENSOR_NEG;
  }
  if (t->is_wrapped_number()) out.flags |= TPU_TENSOR_WRAPPED;
  out.device = static_cast<int16_t>(t->device().index());
}
void lend_host(tpu_tensor &out, const at::TensorBase &t);
inline tpu_tensor lend(const at::TensorBase &t) {
  tpu_tensor out;
  lend_device(out, t.unsafeGetTensorImpl());
  return out;
}

inline void before_write(const at::TensorBase &t) {
  if (C10_UNLIKELY(any_lazy_clone.load(std::memory_order_relaxed)) && on_tpu(t) && t.has_storage())
    own_storage(t.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
}

// A device tensor over a store (consumed).
inline at::Tensor make_tensor(tpu_store *take_store, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                              c10::ScalarType dtype) {
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), tpu_store_nbytes(take_store),
      c10::DataPtr(tpu_store_address(take_store), take_store, g_release, device_at(tpu_store_device(take_store))),
      device_allocator(), /*resizable=*/true);
  auto t = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(storage)),
                                                    c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                                    c10::scalarTypeToTypeMeta(dtype));
  if (sizes.size() != 1 || sizes[0] != 0) t.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return t;
}
// A new dense tensor with no value yet.
at::Tensor new_tensor(c10::IntArrayRef sizes, c10::ScalarType dtype, int device);

}  // namespace torch_tpu
