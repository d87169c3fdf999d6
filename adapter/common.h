// common.h - what the adapter's files share. The adapter is what PyTorch offers only in C++; everything else is in the
// C core behind tpu.h.
//
// Errors: throw_if is the only place where a core error becomes an exception.
#pragma once
#include "adapter/pch.h"
#include "tpu.h"

namespace torch_tpu {

constexpr c10::DeviceType kTPU = c10::DeviceType::PrivateUse1;
inline c10::Device device_at(int index) { return c10::Device(kTPU, static_cast<c10::DeviceIndex>(index)); }

[[noreturn]] void throw_error(tpu_err *take_e);
inline void throw_if(tpu_err *take_e) {
  if (C10_UNLIKELY(take_e != nullptr)) throw_error(take_e);
}

// The process-lived singletons; registered by tpu_adapter_load.
c10::DeviceAllocator *device_allocator();
c10::Allocator *pinned_allocator();
bool is_pinned(const void *p);
void register_guard();
void register_hooks();
void register_rows();

// A device's default generator, made at its first use, and its {seed, offset} state.
const at::Generator &default_generator(int device);
uint64_t *default_rng(int device);
// The state of a generator of ours; throws when it belongs to another device type.
uint64_t *rng_of(const at::Generator &g);
// What guards the state while a call draws from it; generator NULL: the device's default one.
std::mutex &rng_mutex(const at::Generator *generator, int device);

// Grows the storage of a device tensor so that its sizes, strides and offset fit; contents stay.
void grow_storage(c10::TensorImpl *t);
// resize_ and, when strides is not empty, the strides.
void resize_to(const at::Tensor &t, c10::IntArrayRef sizes, c10::IntArrayRef strides);
void resize_storage(c10::StorageImpl *s, size_t nbytes);

// dst <- src where at least one is on the device: sizes broadcast, dtypes convert.
void copy_any(const at::Tensor &dst, const at::Tensor &src);

// Runs an operator that has no row: PyTorch's kernels on the CPU, counted by name.
void fallback(const c10::OperatorHandle &op, torch::jit::Stack *stack);

// Number of the float32 precision that torch.tpu.precision chose, or -1.
extern std::atomic<int> precision_override;

}  // namespace torch_tpu
