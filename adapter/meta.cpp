// meta.cpp - the cold path: sizes, strides, dtype and PyTorch's own errors from the same operator on meta tensors.
//
// Meta tensors share meta storages as the real ones share theirs, so that PyTorch's overlap checks see what they
// should.
#include <ATen/MemoryOverlap.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TypeProperties.h>

#include "adapter/kernel.h"

namespace torch_tpu {

// PyTorch keeps the kernels that were put behind another one, but shows only the first. Naming a private member as a
// template argument is the one way that C++ leaves to read them; it is checked at compile time for each torch version.
const c10::impl::OperatorEntry &entry_of(const c10::OperatorHandle &h);
template <auto Member>
struct RevealEntry {
  friend const c10::impl::OperatorEntry &entry_of(const c10::OperatorHandle &h) { return (h.*Member)->op; }
};
template struct RevealEntry<&c10::OperatorHandle::operatorDef_>;

using KernelList = std::list<c10::impl::AnnotatedKernel>;
const KernelList *kernels_of(const c10::impl::OperatorEntry &e, c10::DispatchKey k);
template <auto Member>
struct RevealKernels {
  friend const KernelList *kernels_of(const c10::impl::OperatorEntry &e, c10::DispatchKey k) {
    return (e.*Member).count(k) ? &(e.*Member).at(k) : nullptr;
  }
};
template struct RevealKernels<&c10::impl::OperatorEntry::kernels_>;

const c10::KernelFunction *cpp_meta_kernel(const c10::OperatorHandle &h) {
  const KernelList *l = kernels_of(entry_of(h), c10::DispatchKey::Meta);
  if (l)
    for (const auto &k : *l)
      if (k.kernel.isValidUnboxed()) return &k.kernel;
  return nullptr;
}

namespace {

struct MetaArgs {
  std::vector<std::pair<const c10::TensorImpl *, at::Tensor>> tensors;
  std::vector<std::pair<const c10::StorageImpl *, c10::Storage>> storages;

  at::Tensor convert(const at::Tensor &t) {
    if (!t.defined()) return t;
    const c10::TensorImpl *impl = t.unsafeGetTensorImpl();
    if (impl->is_wrapped_number() && t.is_cpu())
      return t;  // a number that Python wrapped: meta kernels take it as it is
    for (auto &p : tensors)
      if (p.first == impl) return p.second;
    const c10::StorageImpl *real = impl->unsafe_storage().unsafeGetStorageImpl();
    c10::Storage storage;
    for (auto &p : storages)
      if (p.first == real) storage = p.second;
    if (!storage) {
      storage = c10::Storage(c10::Storage::use_byte_size_t(), static_cast<int64_t>(real->nbytes()),
                             c10::DataPtr(nullptr, c10::Device(c10::kMeta)), c10::GetAllocator(c10::kMeta),
                             /*resizable=*/true);
      storages.emplace_back(real, storage);
    }
    auto m = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::Meta),
                                                      impl->dtype());
    m.unsafeGetTensorImpl()->set_sizes_and_strides(impl->sizes(), impl->strides(), impl->storage_offset());
    tensors.emplace_back(impl, m);
    return m;
  }

  c10::IValue convert(const c10::IValue &x, Kind kind) {
    switch (kind) {
      case Kind::tensor: return x.isTensor() ? c10::IValue(convert(x.toTensor())) : x;
      case Kind::device:
        return x.isNone() ? c10::IValue(c10::Device(c10::kMeta)) : c10::IValue(c10::Device(c10::kMeta));
      case Kind::generator: return c10::IValue();
      case Kind::tensors: {
        if (x.isNone()) return x;
        if (x.isTensorList()) {
          c10::List<at::Tensor> l;
          for (const c10::IValue &e : x.toListRef()) l.push_back(convert(e.toTensor()));
          return l;
        }
        c10::List<std::optional<at::Tensor>> l;
        for (const c10::IValue &e : x.toListRef())
          l.push_back(e.isTensor() ? std::optional<at::Tensor>(convert(e.toTensor())) : std::nullopt);
        return l;
      }
      default: return x;
    }
  }
};

bool fill(const at::Tensor &t, tpu_meta &m) {
  m.defined = t.defined();
  if (!t.defined()) return true;
  TORCH_CHECK_TYPE(tpu_dtype_size(static_cast<tpu_dtype>(t.scalar_type())) != 0, "tpu: tensors of dtype ",
                   t.scalar_type(), " are not supported on this device");
  if (t.dim() > 64 || t.layout() != c10::kStrided) return false;
  m.ndim = static_cast<int32_t>(t.dim());
  m.dtype = static_cast<uint8_t>(t.scalar_type());
  std::copy(t.sizes().begin(), t.sizes().end(), m.sizes);
  std::copy(t.strides().begin(), t.strides().end(), m.strides);
  return true;
}

// Whether an exception only says that PyTorch has no meta kernel for this.
bool says_no_meta(const std::string &text) {
  for (const char *s :
       {"'Meta' backend", "Meta tensor", "meta tensor", "fake impl", "Meta device", "meta device", "on device meta"})
    if (text.find(s) != std::string::npos) return true;
  // A mistake inside one of PyTorch's Python meta kernels (such as taking .device of a bias that is None), not the
  // user's.
  return text.compare(0, 14, "AttributeError") == 0;
}

enum class Outcome { known, unknown };

// PyTorch's meta kernel of index_add and index_reduce looks at the source's first slice, which may not be there; its
// devices take such a source.
bool adds_no_slice(const Frame &f) {
  const std::string &name = f.kernel->handle.schema().name();
  if (name.compare(0, 15, "aten::index_add") != 0 && name.compare(0, 18, "aten::index_reduce") != 0) return false;
  if (!f.args[2].isTensor() || !f.args[3].isTensor()) return false;
  const at::Tensor &self = f.args[0].toTensor(), &source = f.args[3].toTensor();
  return f.args[2].toTensor().numel() == 0 && source.numel() == 0 && source.dim() == self.dim();
}

// PyTorch's shape function is that of its CUDA kernel and refuses what other devices take; the row says it all.
bool speaks_for_cuda(const Frame &f) { return f.kernel->handle.schema().name() == "aten::_grouped_mm"; }

// Runs the operator on meta tensors; the results are left on `stack`. Real errors are thrown.
Outcome run_meta(Frame &f, MetaArgs &m, torch::jit::Stack &stack) {
  const Kernel &k = *f.kernel;
  if (!k.meta && !k.handle.hasComputedKernelForDispatchKey(c10::DispatchKey::Meta)) return Outcome::unknown;
  if (adds_no_slice(f) || speaks_for_cuda(f)) return Outcome::unknown;
  for (size_t i = 0; i < k.args.size(); i++) stack.push_back(m.convert(f.args[i], k.args[i].kind));
  at::AutoDispatchBelowADInplaceOrView below;
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  try {
    if (k.meta) k.meta->callBoxed(k.handle, c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
    else k.handle.callBoxed(&stack);
  } catch (const std::exception &e) {
    if (says_no_meta(e.what())) return Outcome::unknown;
    throw;
  }
  return Outcome::known;
}

// An out tensor of another dtype than the result without it would have. PyTorch rounds an element-wise result to the
// dtype that its operands promote to before it goes into a wider `out`, while a row rounds once, at the end; and a sum
// or a mean is taken in the dtype of `out`. Both come of the functional form, which is given that dtype if it takes
// one.
bool out_changes_result(const Frame &f) {
  const Kernel &k = *f.kernel;
  if (!k.has_out || !k.twin) return false;
  at::native::ResultTypeState operands = {};
  at::ScalarType out = at::ScalarType::Undefined, first = out;
  for (size_t i = 0; i < k.args.size(); i++) {
    if (k.args[i].kind != Kind::tensor || !f.args[i].isTensor() || !f.args[i].toTensor().defined()) continue;
    const at::Tensor &t = f.args[i].toTensor();
    if (k.args[i].out) {
      if (out == at::ScalarType::Undefined) out = t.scalar_type();
      continue;
    }
    if (first == at::ScalarType::Undefined) first = t.scalar_type();
    operands = at::native::update_result_type_state(t, operands);
  }
  if (!at::isFloatingType(out) && !at::isComplexType(out)) return false;
  if (k.twin->hasTag(at::Tag::pointwise))
    return at::isReducedFloatingType(at::native::result_type(operands)) && !at::isReducedFloatingType(out);
  const auto dtype = k.handle.schema().argumentIndexWithName("dtype");
  return dtype && f.args[*dtype].isNone() && out != first;
}

// What TensorIterator would refuse, for operators that have no meta kernel.
void check_written(const Frame &f) {
  for (size_t i = 0; i < f.kernel->args.size(); i++)
    if (f.kernel->args[i].written && f.kernel->args[i].kind == Kind::tensor && f.args[i].isTensor() &&
        f.args[i].toTensor().defined())
      at::assert_no_internal_overlap(f.args[i].toTensor());
}

// In eval mode PyTorch's devices save no statistics; its meta kernel says that they do.
bool saves_no_statistics(const Frame &f) {
  const std::string &name = f.kernel->handle.schema().name();
  return (name == "aten::native_batch_norm" || name == "aten::_native_batch_norm_legit") && f.args[5].isBool() &&
         !f.args[5].toBool();
}

// geqrf has no meta kernel. LAPACK and cuSOLVER leave the reflections with columns first in memory.
bool geqrf_meta(const Frame &f, tpu_meta *outs, int *n) {
  const at::Tensor &x = f.args[0].toTensor();
  if (f.kernel->has_out || x.dim() < 2) return false;
  auto sizes = x.sizes().vec();
  const auto options = at::TensorOptions().device(c10::kMeta).dtype(x.dtype());
  const at::Tensor reflections = at::empty(x.mT().sizes(), options).mT();
  sizes.pop_back();
  sizes.back() = std::min(x.size(-2), x.size(-1));
  *n = 2;
  return fill(reflections, outs[0]) && fill(at::empty(sizes, options), outs[1]);
}

// The 3-d pooling keeps the order of an image without a batch too; its meta kernel looks at those with one only.
bool pools_channels_last_volume(const Frame &f) {
  if (f.kernel->handle.schema().name() != "aten::max_pool3d_with_indices") return false;
  const at::Tensor &x = f.args[0].toTensor();
  return x.dim() == 4 && !x.is_contiguous() && x.unsqueeze(0).is_contiguous(at::MemoryFormat::ChannelsLast3d);
}

// These keep an image's order on the CPU; their meta kernels forget it. In what order the first result lies.
at::MemoryFormat kept_order(const Frame &f) {
  static const std::unordered_map<std::string, int> image_of = {{"aten::reflection_pad2d", 0},
                                                                {"aten::reflection_pad3d", 0},
                                                                {"aten::replication_pad2d", 0},
                                                                {"aten::replication_pad3d", 0},
                                                                {"aten::max_unpool2d", 0},
                                                                {"aten::reflection_pad2d_backward", 1},
                                                                {"aten::reflection_pad3d_backward", 1},
                                                                {"aten::replication_pad2d_backward", 1},
                                                                {"aten::replication_pad3d_backward", 1}};
  const auto it = image_of.find(f.kernel->handle.schema().name());
  if (it == image_of.end() || f.kernel->has_out || !f.args[it->second].isTensor()) return at::MemoryFormat::Contiguous;
  return f.args[it->second].toTensor().suggest_memory_format();
}

}  // namespace

tpu_err *meta_callback(tpu_call *c, tpu_meta *outs, int cap, int *n, bool *known) {
  auto &f = *static_cast<Frame *>(c->ctx);
  const Kernel &k = *f.kernel;
  *n = 0;
  *known = false;
  try {
    if (k.has_out) check_out_dtype(f);
    MetaArgs m;
    torch::jit::Stack stack;
    if (run_meta(f, m, stack) == Outcome::unknown) {
      if (k.has_out && k.twin) {
        f.through_twin = true;
        return tpu_err_new(TPU_ERR_RUNTIME, "the functional form is used");
      }
      check_written(f);
      *known = k.handle.schema().name() == "aten::geqrf" && geqrf_meta(f, outs, n);
      return nullptr;
    }
    check_written(f);
    if (out_changes_result(f)) {
      f.through_twin = true;
      return tpu_err_new(TPU_ERR_RUNTIME, "the functional form is used");
    }
    for (size_t i = 0; i < k.args.size(); i++) {
      if (!k.args[i].out || k.args[i].kind != Kind::tensor || !f.args[i].isTensor()) continue;
      const at::Tensor &real = f.args[i].toTensor();
      if (!real.defined()) continue;
      at::Tensor meta = m.convert(real);
      if (saves_no_statistics(f) && i + 2 >= k.args.size()) meta = at::empty({0}, meta.options());
      if (meta.sizes() != real.sizes())
        f.resizes.push_back({static_cast<int>(i), meta.sizes().vec(), meta.strides().vec()});
    }
    if (!f.resizes.empty()) return tpu_err_new(TPU_ERR_RUNTIME, "an out tensor needs other sizes first");
    const auto put = [&](const at::Tensor &t) { return *n < cap && fill(t, outs[(*n)++]); };
    if (const auto order = kept_order(f); order != at::MemoryFormat::Contiguous)
      stack[0] = stack[0].toTensor().contiguous(order);
    for (const c10::IValue &r : stack) {
      bool ok = true;
      if (r.isTensor()) {
        ok = put(r.toTensor());
      } else if (r.isList()) {
        for (const c10::IValue &e : r.toListRef()) ok = ok && put(e.isTensor() ? e.toTensor() : at::Tensor());
      }
      if (!ok) {
        *n = 0;
        return nullptr;
      }
    }
    // one row without a batch has a loss of rank 0; the meta kernel says [1]
    if (*n == 2 && k.handle.schema().name() == "aten::multilabel_margin_loss_forward" && f.args[0].toTensor().dim() < 2)
      outs[0].ndim = 0;
    if (*n == 2 && pools_channels_last_volume(f))
      for (int i = 0; i < 2; i++) {
        const int64_t *d = outs[i].sizes;
        const int64_t s[4] = {1, d[2] * d[3] * d[0], d[3] * d[0], d[0]};
        std::copy(s, s + 4, outs[i].strides);
      }
    // of a batch of none the meta kernel forgets the order
    if (*n == 3 && f.args[0].isTensor() && f.args[0].toTensor().numel() == 0 && !k.has_out &&
        k.handle.schema().name().find("native_batch_norm") != std::string::npos &&
        k.handle.schema().name().find("backward") == std::string::npos) {
      const auto strides = f.args[0].toTensor().strides();
      std::copy(strides.begin(), strides.end(), outs[0].strides);
    }
    if (*n == 3 && saves_no_statistics(f))
      for (int i = 1; i < 3; i++) outs[i].ndim = 1, outs[i].sizes[0] = 0, outs[i].strides[0] = 1;
    *known = true;
    return nullptr;
  } catch (...) {
    f.error = std::current_exception();
    return tpu_err_new(TPU_ERR_RUNTIME, "PyTorch's meta kernel refused the call");
  }
}

void check_with_meta(Frame &f) {
  MetaArgs m;
  torch::jit::Stack stack;
  run_meta(f, m, stack);
}

void run_through_twin(const Kernel &k, torch::jit::Stack *stack, size_t base) {
  const auto &mine = k.handle.schema(), &theirs = k.twin->schema();
  std::vector<at::Tensor> outs;
  for (size_t i = 0; i < k.args.size(); i++)
    if (k.args[i].out) outs.push_back((*stack)[base + i].toTensor());
  torch::jit::Stack call;
  for (const auto &a : theirs.arguments()) {
    const auto i = mine.argumentIndexWithName(a.name());
    if (i && !(a.name() == "dtype" && (*stack)[base + *i].isNone())) call.push_back((*stack)[base + *i]);
    else if (a.name() == "dtype" && !outs.empty()) call.emplace_back(static_cast<int64_t>(outs[0].scalar_type()));
    else if (a.name() == "device" && !outs.empty()) call.emplace_back(outs[0].device());
    else call.emplace_back(a.default_value() ? *a.default_value() : c10::IValue());
  }
  k.twin->callBoxed(&call);
  TORCH_CHECK(call.size() == outs.size(), "tpu: ", mine.name(), " gave ", call.size(), " results for ", outs.size(),
              " out tensors");
  for (size_t i = 0; i < outs.size(); i++) {
    const at::Tensor r = call[i].toTensor();
    if (at::native::resize_output_check(outs[i], r.sizes())) resize_to(outs[i], r.sizes(), {});
    copy_any(outs[i], r);
  }
  stack->resize(base);
  for (auto &o : outs) stack->emplace_back(std::move(o));
}

}  // namespace torch_tpu
