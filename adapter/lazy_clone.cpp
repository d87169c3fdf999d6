// lazy_clone.cpp - _lazy_clone: two storages that share one store until one of them is written (PyTorch's copy-on-write
// storages). A value on the device is never written in place, so even the copy at the first write moves no bytes: the
// new store takes the old one's value.
#include <ATen/ops/_lazy_clone_native.h>
#include <ATen/ops/clone.h>
#include <c10/core/impl/COW.h>
#include <c10/core/impl/COWDeleter.h>

#include "adapter/tensor.h"

namespace torch_tpu {

std::atomic<bool> any_lazy_clone{false};

namespace {

// PyTorch's copy-on-write wants a data pointer whose context is the address itself.
void release_at(void *address) {
  size_t offset = 0;
  tpu_store_release(tpu_store_from_address(address, &offset));
}

c10::DataPtr pointer_to(tpu_store *take_store, bool by_address) {
  void *address = tpu_store_address(take_store);
  const c10::Device device = device_at(tpu_store_device(take_store));
  return by_address ? c10::DataPtr(address, address, &release_at, device)
                    : c10::DataPtr(address, take_store, g_release, device);
}

// The copy is allocated on the storage's device, whichever is the current one.
void materialize(c10::StorageImpl *s) {
  const c10::DeviceGuard guard(s->device());
  c10::impl::cow::materialize_cow(s);
}

at::Tensor lazy_clone(const at::Tensor &self) {
  c10::StorageImpl *s = self.storage().unsafeGetStorageImpl();
  const bool marked = c10::impl::cow::is_cow_data_ptr(s->data_ptr());
  // no bytes, a storage that is a part of another library's, a graph: an ordinary clone, which shares the value too
  if (!s->nbytes() || tpu_capturing() || !(marked || is_own_data_ptr(s->data_ptr()))) return at::clone(self);
  any_lazy_clone.store(true, std::memory_order_relaxed);
  if (!marked) s->set_data_ptr_noswap(pointer_to(tpu_store_retain(store_of(s)), true));
  at::Tensor clone = at::native::_lazy_clone(self);
  for (c10::StorageImpl *x : {s, clone.storage().unsafeGetStorageImpl()}) {
    x->clear_materializer();
    x->set_materializer(&materialize);
  }
  return clone;
}

}  // namespace

bool is_own_data_ptr(const c10::DataPtr &p) { return p.get_deleter() == g_release || p.get_deleter() == &release_at; }
bool is_lazy_data_ptr(const c10::DataPtr &p) { return p.get_deleter() == &release_at; }

void own_storage(c10::StorageImpl *s) {
  if (s->has_materializer()) s->mutable_data();
  if (is_lazy_data_ptr(s->data_ptr())) s->set_data_ptr_noswap(pointer_to(tpu_store_retain(store_of(s)), false));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("_lazy_clone", TORCH_FN(lazy_clone)); }

}  // namespace torch_tpu
