// module.cpp - what the Python package calls through ctypes. No libtorch_python is linked, so one binary serves every
// CPython. Exceptions end here: a function that may fail returns a tpu_err.
#include <mutex>

#include "adapter/common.h"

namespace torch_tpu {
std::string fallback_json();
void fallback_reset();
}  // namespace torch_tpu

extern "C" {

TPU_API tpu_err *tpu_adapter_load(void);
TPU_API char *tpu_adapter_fallback_counts(void);
TPU_API void tpu_adapter_fallback_reset(void);
TPU_API void tpu_adapter_free(void *p);
TPU_API void tpu_adapter_set_precision(int p);
TPU_API int tpu_adapter_get_precision(void);
TPU_API tpu_err *tpu_adapter_event_elapsed(int64_t first, int64_t second, double *ms);
TPU_API const void *tpu_adapter_default_generator(int device);
TPU_API tpu_err *tpu_adapter_get_rng(int device, uint64_t *out);
TPU_API tpu_err *tpu_adapter_set_rng(int device, uint64_t seed, uint64_t offset);

// Registers guard, hooks, allocator and every row. Called once.
tpu_err *tpu_adapter_load(void) {
  try {
    torch_tpu::register_guard();
    torch_tpu::register_hooks();
    torch_tpu::register_rows();
    return nullptr;
  } catch (const std::exception &e) { return tpu_err_new(TPU_ERR_RUNTIME, e.what()); }
}

// JSON: {"aten::op.overload": count}. The caller frees it with tpu_adapter_free.
char *tpu_adapter_fallback_counts(void) { return strdup(torch_tpu::fallback_json().c_str()); }
void tpu_adapter_fallback_reset(void) { torch_tpu::fallback_reset(); }
void tpu_adapter_free(void *p) { std::free(p); }
// -1: as torch.set_float32_matmul_precision says.
void tpu_adapter_set_precision(int p) { torch_tpu::precision_override.store(p); }
// Milliseconds between two events, by torch.Event.event_id.
tpu_err *tpu_adapter_event_elapsed(int64_t first, int64_t second, double *ms) {
  try {
    *ms = c10::impl::getDeviceGuardImpl(torch_tpu::kTPU)
              ->elapsedTime(reinterpret_cast<void *>(first), reinterpret_cast<void *>(second), -1);
    return nullptr;
  } catch (const c10::Error &e) { return tpu_err_new(TPU_ERR_RUNTIME, e.what_without_backtrace()); }
}
// The at::Generator of the device, lent for the process; for THPGenerator_Wrap. NULL when there is no such device.
const void *tpu_adapter_default_generator(int device) {
  try {
    return &torch_tpu::default_generator(device);
  } catch (const c10::Error &) { return nullptr; }
}
// The default generator's {seed, offset}.
tpu_err *tpu_adapter_get_rng(int device, uint64_t *out) {
  try {
    std::lock_guard<std::mutex> g(torch_tpu::rng_mutex(nullptr, device));
    std::memcpy(out, torch_tpu::default_rng(device), 2 * sizeof *out);
    return nullptr;
  } catch (const c10::Error &e) { return tpu_err_new(TPU_ERR_RUNTIME, e.what_without_backtrace()); }
}
tpu_err *tpu_adapter_set_rng(int device, uint64_t seed, uint64_t offset) {
  try {
    std::lock_guard<std::mutex> g(torch_tpu::rng_mutex(nullptr, device));
    uint64_t *state = torch_tpu::default_rng(device);
    state[0] = seed;
    state[1] = offset;
    return nullptr;
  } catch (const c10::Error &e) { return tpu_err_new(TPU_ERR_RUNTIME, e.what_without_backtrace()); }
}
int tpu_adapter_get_precision(void) { return torch_tpu::precision_override.load(); }
}
