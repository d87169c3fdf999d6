// tensor.cpp - errors, and the parts of tensor.h that are not on the hot path.
#include "adapter/tensor.h"

namespace torch_tpu {

const store_deleter g_release = &release_store;
std::atomic<int> precision_override{-1};

void throw_error(tpu_err *take_e) {
  const std::string text = tpu_err_message(take_e);
  const tpu_err_kind kind = tpu_err_get_kind(take_e);
  tpu_err_free(take_e);
  switch (kind) {
    case TPU_ERR_NOT_IMPLEMENTED: TORCH_CHECK_NOT_IMPLEMENTED(false, text);
    case TPU_ERR_OOM: TORCH_CHECK_WITH(OutOfMemoryError, false, text);
    case TPU_ERR_INDEX: TORCH_CHECK_INDEX(false, text);
    case TPU_ERR_VALUE: TORCH_CHECK_VALUE(false, text);
    case TPU_ERR_TYPE: TORCH_CHECK_TYPE(false, text);
    default: TORCH_CHECK(false, text);
  }
  __builtin_unreachable();
}

tpu_store *foreign_store(const c10::StorageImpl *s, size_t *offset) {
  tpu_store *found = tpu_store_from_address(s->data(), offset);
  TORCH_CHECK(found, "tpu: a tensor on device ", s->device(),
              " has a storage that this device did not allocate (expected one made by torch_tpu)");
  return found;
}

void lend_host(tpu_tensor &out, const at::TensorBase &t) {
  c10::TensorImpl *impl = t.unsafeGetTensorImpl();
  out.store = nullptr;
  out.host = t.numel() ? impl->data() : nullptr;
  out.sizes = impl->sizes().data();
  out.strides = impl->strides().data();
  out.offset = 0;
  out.ndim = static_cast<int32_t>(impl->dim());
  out.dtype = static_cast<uint8_t>(t.scalar_type());
  out.flags = (t.is_conj() ? TPU_TENSOR_CONJ : 0) | (t.is_neg() ? TPU_TENSOR_NEG : 0) |
              (impl->is_wrapped_number() ? TPU_TENSOR_WRAPPED : 0);
  out.device = -1;
}

at::Tensor new_tensor(c10::IntArrayRef sizes, c10::ScalarType dtype, int device) {
  std::vector<int64_t> strides(sizes.size());
  int64_t n = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = n;
    n *= std::max<int64_t>(sizes[i], 1);
  }
  const size_t nbytes = c10::multiply_integers(sizes) * c10::elementSize(dtype);
  tpu_store *store = nullptr;
  throw_if(tpu_store_new(nbytes, device, &store));
  return make_tensor(store, sizes, strides, dtype);
}

}  // namespace torch_tpu
