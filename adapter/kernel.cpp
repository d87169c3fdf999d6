// kernel.cpp - the hot path.
#include "adapter/kernel.h"

#include <ATen/Context.h>
#include <ATen/MemoryOverlap.h>

namespace torch_tpu {
namespace {

enum { ROOM_ARGS = 24, ROOM_TENSORS = 12, ROOM_INTS = 48, ROOM_LIST_NUMBERS = 8 };

// Fixed room on the stack; heap only above it. Elements are not initialised.
template <typename T, size_t N>
struct Room {
  explicit Room(size_t n)
      : data(n <= N ? reinterpret_cast<T *>(inline_room) : static_cast<T *>(std::malloc(n * sizeof(T)))) {
    TORCH_CHECK_WITH(OutOfMemoryError, data, "tpu: out of host memory");
  }
  ~Room() {
    if (data != reinterpret_cast<T *>(inline_room)) std::free(data);
  }
  Room(const Room &) = delete;
  Room &operator=(const Room &) = delete;
  T *data;
  alignas(T) unsigned char inline_room[N * sizeof(T)];
};

[[noreturn]] void mixed_devices(c10::Device a, c10::Device b) {
  TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ", a, " and ", b,
              "!");
}

inline void set_number(tpu_value &v, const c10::IValue &x) {
  if (x.isInt()) {
    v.tag = TPU_INT;
    v.u.i = x.toInt();
  } else if (x.isDouble()) {
    v.tag = TPU_DOUBLE;
    v.u.d = x.toDouble();
  } else if (x.isBool()) {
    v.tag = TPU_BOOLEAN;
    v.u.i = x.toBool();
  } else if (x.isNone()) {
    v.tag = TPU_NONE;
  } else if (x.isComplexDouble()) {
    const auto c = x.toComplexDouble();
    v.tag = TPU_COMPLEX;
    v.u.d = c.real();
    v.imag = c.imag();
  } else if (x.isSymInt()) {
    v.tag = TPU_INT;
    v.u.i = x.toSymInt().guard_int(__FILE__, __LINE__);
  } else if (x.isSymFloat()) {
    v.tag = TPU_DOUBLE;
    v.u.d = x.toSymFloat().guard_float(__FILE__, __LINE__);
  } else if (x.isSymBool()) {
    v.tag = TPU_BOOLEAN;
    v.u.i = x.toSymBool().guard_bool(__FILE__, __LINE__);
  } else if (x.isUnsigned()) {
    v.tag = TPU_UINT;
    v.u.i = static_cast<int64_t>(x.toUInt());
  } else {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "tpu: cannot pass an argument of kind ", x.tagKind(), " to the device");
  }
}

// Follows the devices of a call: all device tensors on one device; on the CPU only 0-d ones, and none that is written.
struct Devices {
  int found = -1;
  const at::Tensor *on_cpu = nullptr;
  inline void see(const at::Tensor &t, tpu_tensor &out, bool written) {
    if (C10_LIKELY(t.is_privateuseone())) {
      lend_device(out, t.unsafeGetTensorImpl());
      if (found < 0) found = out.device;
      else if (C10_UNLIKELY(found != out.device)) mixed_devices(device_at(found), device_at(out.device));
    } else {
      see_other(t, out, written);
    }
  }
  C10_NOINLINE void see_other(const at::Tensor &t, tpu_tensor &out, bool written) {
    if (!t.defined()) {
      out = tpu_tensor{};
      out.flags = TPU_TENSOR_UNDEFINED;
      out.device = -1;
      return;
    }
    if (!t.is_cpu() || t.layout() != c10::kStrided) {
      TORCH_CHECK_NOT_IMPLEMENTED(t.layout() == c10::kStrided, "tpu: no kernel for a tensor of layout ", t.layout());
      mixed_devices(device_at(std::max(found, 0)), t.device());
    }
    if (t.dim() > 0 || written) on_cpu = &t;
    lend_host(out, t);
  }
  void check() const {
    if (C10_UNLIKELY(on_cpu != nullptr))
      mixed_devices(device_at(found < 0 ? tpu_get_device() : found), on_cpu->device());
  }
};

tpu_err *result_callback(tpu_call *c, int ret, int elem, tpu_store *take_store, const int64_t *sizes,
                         const int64_t *strides, int ndim, tpu_dtype dtype) {
  auto *f = static_cast<Frame *>(c->ctx);
  try {
    at::Tensor t = make_tensor(take_store, {sizes, static_cast<size_t>(ndim)}, {strides, static_cast<size_t>(ndim)},
                               static_cast<c10::ScalarType>(dtype));
    if (C10_LIKELY(f->kernel->returns[ret] == -1)) {
      f->results[ret] = std::move(t);
    } else {
      size_t list = 0;
      for (int i = 0; i < ret; i++) list += f->kernel->returns[i] == -2;
      auto &l = f->lists[list];
      if (l.size() <= static_cast<size_t>(elem)) l.resize(elem + 1);
      l[elem] = std::move(t);
    }
    return nullptr;
  } catch (...) {
    f->error = std::current_exception();
    return tpu_err_new(TPU_ERR_RUNTIME, "a result tensor could not be made");
  }
}

// The user's choice for float32 products, asked for only by kernels that multiply matrices.
void pass_precision() {
  const int over = precision_override.load(std::memory_order_relaxed);
  int p = over;
  if (over < 0) {
    switch (at::globalContext().float32MatmulPrecision()) {
      case at::Float32MatmulPrecision::HIGHEST: p = 0; break;
      case at::Float32MatmulPrecision::HIGH: p = 1; break;
      default: p = 2; break;
    }
  }
  if (p != tpu_get_matmul_precision()) tpu_set_matmul_precision(p);
}

// PyTorch's default dtype is one number of the process; the core is told when it changed.
inline void pass_default_dtype() {
  static std::atomic<int> told{-1};
  const int now = static_cast<int>(c10::get_default_dtype_as_scalartype());
  if (C10_UNLIKELY(told.load(std::memory_order_relaxed) != now)) {
    tpu_set_default_dtype(static_cast<tpu_dtype>(now));
    told.store(now, std::memory_order_relaxed);
  }
}

// A written tensor that shares its storage with another argument in part is PyTorch's error, which meta kernels raise;
// the call key does not hold where views start, so a known key does not answer it.
void check_overlap(Frame &f) {
  const auto &k = *f.kernel;
  for (size_t i = 0; i < k.args.size(); i++) {
    if (!k.args[i].written || k.args[i].kind != Kind::tensor || !f.args[i].isTensor()) continue;
    const at::Tensor &w = f.args[i].toTensor();
    if (!on_tpu(w)) continue;
    for (size_t j = 0; j < k.args.size(); j++) {
      if (j == i || k.args[j].kind != Kind::tensor || !f.args[j].isTensor()) continue;
      const at::Tensor &x = f.args[j].toTensor();
      if (!on_tpu(x) || x.is_same(w) ||
          x.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() !=
              w.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl())
        continue;
      const auto s = at::get_overlap_status(w, x);
      if (s == at::MemOverlapStatus::Partial || s == at::MemOverlapStatus::TooHard) return check_with_meta(f);
    }
  }
}

// A factory such as ones_like whose result belongs on another device than its argument: PyTorch's own composition of
// it.
void run_composite(const Kernel &k, torch::jit::Stack *stack) {
  TORCH_CHECK_NOT_IMPLEMENTED(k.handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd),
                              "tpu: ", k.handle.schema().name(),
                              " cannot make its result on another device than its arguments'");
  k.handle.callBoxedForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd, *stack);
}

// "aten::gather(float32[3, 4], 0, int64[3, 1]), called at train.py:12": for errors in Debug mode.
std::string describe(const Kernel &k, const torch::jit::Stack &stack, size_t base) {
  std::ostringstream out;
  out << "in " << k.handle.operator_name() << '(';
  for (size_t i = base; i < stack.size() && i < base + k.args.size(); i++) {
    const c10::IValue &v = stack[i];
    if (i > base) out << ", ";
    if (v.isTensor() && v.toTensor().defined()) out << v.toTensor().scalar_type() << v.toTensor().sizes();
    else if (v.isTensorList()) out << v.toListRef().size() << " tensors";
    else if (v.isTensor() || v.isNone()) out << "None";
    else if (v.isScalar() || v.isBool()) out << v.toScalar();
    else if (v.isIntList()) out << v.toDimVector();
    else out << v.tagKind();
  }
  char line[512];
  out << ')';
  if (tpu_where(line, sizeof line)[0]) out << ", called at " << line;
  return out.str();
}

void own_written(const Kernel &k, const c10::IValue *in) {
  for (size_t i = 0; i < k.args.size(); i++) {
    if (!k.args[i].written) continue;
    if (in[i].isTensor()) before_write(in[i].toTensor());
    else if (in[i].isTensorList())
      for (const c10::IValue &e : in[i].toListRef()) before_write(e.toTensor());
  }
}

// Fills and draws in place work element by element, so on tensors of any rank; StableHLO's shapes end at 64 dims.
bool writes_in_any_shape(const Frame &f) {
  const Kernel &k = *f.kernel;
  if (!f.args[0].isTensor() || f.args[0].toTensor().dim() <= 64 || !k.args[0].written || k.args[0].out) return false;
  for (size_t i = 1; i < k.args.size(); i++)
    if (k.args[i].kind != Kind::number && k.args[i].kind != Kind::generator) return false;
  const auto &h = k.handle;
  return (h.hasTag(at::Tag::pointwise) || h.hasTag(at::Tag::nondeterministic_seeded) ||
          h.schema().name() == "aten::zero_" || h.schema().name() == "aten::fill_") &&
         f.args[0].toTensor().is_contiguous();
}

inline bool shares_written_storage(const Kernel &k, const tpu_value *v) {
  const tpu_store *seen = nullptr;
  for (size_t i = 0; i < k.args.size(); i++)
    if (k.args[i].written && v[i].tag == TPU_TENSOR) seen = v[i].u.tensor->store;
  if (!seen) return false;
  int n = 0;
  for (size_t i = 0; i < k.args.size(); i++) n += v[i].tag == TPU_TENSOR && v[i].u.tensor->store == seen;
  return n > 1;
}

}  // namespace

void Kernel::run(torch::jit::Stack *stack) {
  if (C10_LIKELY(tpu_get_eager_mode() != TPU_DEBUG)) return call(stack);
  static thread_local int depth;  // only the outermost call is the user's
  const size_t base = stack->size() - args.size();
  depth++;
  try {
    call(stack);
    depth--;
  } catch (c10::Error &e) {
    if (--depth == 0) e.add_context(describe(*this, *stack, base));
    throw;
  } catch (...) {
    depth--;
    throw;
  }
}

void Kernel::call(torch::jit::Stack *stack) {
  const size_t nargs = args.size(), base = stack->size() - nargs;
  if (C10_UNLIKELY(index) && prepare_index(*this, stack, base)) return;
  c10::IValue *in = stack->data() + base;
  if (C10_UNLIKELY(before != nullptr)) before(in);
  std::exception_ptr out_of_range;
  if (C10_UNLIKELY(bound != nullptr) && !tpu_capturing()) {
    try {
      bound->check(*this, in);
    } catch (const c10::Error &) { out_of_range = std::current_exception(); }
  }

  if (C10_UNLIKELY(any_lazy_clone.load(std::memory_order_relaxed)) && writes) own_written(*this, in);

  size_t ntensors = nargs, nints = 0, nvals = 0;
  if (C10_UNLIKELY(has_lists)) {
    for (size_t i = 0; i < nargs; i++) {
      if (!in[i].isList()) continue;
      const size_t n = in[i].toListRef().size();
      switch (args[i].kind) {
        case Kind::tensors: ntensors += n; break;
        case Kind::scalars: nvals += n; break;
        default: nints += n; break;
      }
    }
  }
  Room<tpu_value, ROOM_ARGS> values(nargs);
  Room<tpu_tensor, ROOM_TENSORS> tensors(ntensors);
  Room<int64_t, ROOM_INTS> ints(nints);
  Room<tpu_value, ROOM_LIST_NUMBERS> numbers(nvals);
  size_t t = 0, n = 0, s = 0;
  Devices devices;
  const at::Generator *generator = nullptr;
  std::optional<at::Generator> held;
  c10::Device where(kTPU, -1);

  for (size_t i = 0; i < nargs; i++) {
    tpu_value &v = values.data[i];
    const c10::IValue &x = in[i];
    v.n = 0;
    v.imag = 0;
    switch (args[i].kind) {
      case Kind::tensor:
        if (C10_LIKELY(x.isTensor())) {
          const at::Tensor &a = x.toTensor();
          tpu_tensor &out = tensors.data[t];
          devices.see(a, out, args[i].written);
          if (C10_UNLIKELY(out.flags & TPU_TENSOR_UNDEFINED)) {
            v.tag = TPU_NONE;
          } else {
            v.tag = TPU_TENSOR;
            v.u.tensor = &out;
            t++;
          }
        } else {
          v.tag = TPU_NONE;
        }
        break;
      case Kind::number: set_number(v, x); break;
      case Kind::tensors: {
        if (x.isNone()) {
          v.tag = TPU_NONE;
          break;
        }
        const auto l = x.toListRef();
        v.tag = TPU_TENSORS;
        v.n = static_cast<uint32_t>(l.size());
        v.u.tensor = tensors.data + t;
        for (const c10::IValue &e : l) {
          static const at::Tensor none;
          devices.see(e.isTensor() ? e.toTensor() : none, tensors.data[t++], args[i].written);
        }
        break;
      }
      case Kind::ints: {
        if (x.isNone()) {
          v.tag = TPU_NONE;
          break;
        }
        v.tag = TPU_INTS;
        v.u.ints = ints.data + n;
        if (!x.isList()) {  // a lone int where a list of one size is meant
          tpu_value one;
          set_number(one, x);
          v.tag = one.tag;
          v.u = one.u;
          break;
        }
        const auto l = x.toListRef();
        v.n = static_cast<uint32_t>(l.size());
        for (const c10::IValue &e : l)
          ints.data[n++] = e.isInt() ? e.toInt() : e.isBool() ? e.toBool() : e.toSymInt().guard_int(__FILE__, __LINE__);
        break;
      }
      case Kind::doubles: {
        if (x.isNone()) {
          v.tag = TPU_NONE;
          break;
        }
        v.tag = TPU_DOUBLES;
        static_assert(sizeof(double) == sizeof(int64_t));
        auto *d = reinterpret_cast<double *>(ints.data + n);
        v.u.doubles = d;
        const auto l = x.toListRef();
        v.n = static_cast<uint32_t>(l.size());
        for (const c10::IValue &e : l) *d++ = e.isInt() ? static_cast<double>(e.toInt()) : e.toDouble();
        n += l.size();
        break;
      }
      case Kind::scalars: {
        const auto l = x.toListRef();
        v.tag = TPU_SCALARS;
        v.n = static_cast<uint32_t>(l.size());
        v.u.vals = numbers.data + s;
        for (const c10::IValue &e : l) {
          numbers.data[s].n = 0;
          numbers.data[s].imag = 0;
          set_number(numbers.data[s++], e);
        }
        break;
      }
      case Kind::text:
        if (x.isNone()) {
          v.tag = TPU_NONE;
        } else {
          v.tag = TPU_STR;
          v.u.s = x.toStringRef().c_str();
          v.n = static_cast<uint32_t>(x.toStringRef().size());
        }
        break;
      case Kind::device:
        v.tag = TPU_NONE;
        if (!x.isNone()) {
          where = x.toDevice();
          if (C10_UNLIKELY(!where.is_privateuseone() ||
                           (devices.found >= 0 && where.has_index() && where.index() != devices.found)))
            return run_composite(*this, stack);
          v.tag = TPU_DEVICE;
          v.u.i = where.index();
        }
        break;
      case Kind::generator:
        v.tag = TPU_GENERATOR;
        if (!x.isNone()) {
          held = x.toGenerator();
          if (held->defined()) generator = &*held;
        }
        break;
      case Kind::other:
        TORCH_CHECK_NOT_IMPLEMENTED(x.isNone(), "tpu: cannot pass an argument of kind ", x.tagKind(), " to the device");
        v.tag = TPU_NONE;
        break;
    }
  }
  // An operator on the CPU comes here when its generator is of the device; what needs no numbers takes none.
  if (C10_UNLIKELY(devices.on_cpu && devices.found < 0 && random && !generator))
    return handle.callBoxedForDispatchKey(c10::DispatchKey::CPU, *stack);
  TORCH_CHECK(!generator || devices.found >= 0 || !devices.on_cpu,
              "Expected a 'cpu' device type for generator but found '", generator->device().type(), "'");
  devices.check();

  Frame f;
  f.kernel = this;
  f.args = in;
  f.results.resize(returns.size());
  for (int16_t r : returns)
    if (r == -2) f.lists.emplace_back();
  tpu_call &c = f.call;
  if (C10_UNLIKELY(out_of_range != nullptr)) {
    check_with_meta(f);  // sizes that do not fit are the first thing to say
    std::rethrow_exception(out_of_range);
  }
  c.op = op;
  c.args = values.data;
  c.nargs = static_cast<int>(nargs);
  c.device = devices.found >= 0 ? devices.found : where.has_index() ? where.index() : tpu_get_device();
  c.meta = &meta_callback;
  c.result = &result_callback;
  c.ctx = &f;
  if (matmul) pass_precision();
  pass_default_dtype();
  if (C10_UNLIKELY(writes) && shares_written_storage(*this, values.data)) check_overlap(f);

  if (C10_UNLIKELY(generator != nullptr) && tpu_capturing() && rng_of(*generator) != default_rng(c.device))
    throw_if(tpu_capture_refuse("draws from a generator of its own"));
  std::unique_lock<std::mutex> rng_lock;
  if (C10_UNLIKELY(random)) rng_lock = std::unique_lock<std::mutex>(rng_mutex(generator, c.device));
  c.rng = generator ? rng_of(*generator) : default_rng(c.device);
  tpu_err *e = tpu_call_run(&c);
  if (C10_UNLIKELY(random)) rng_lock.unlock();

  if (C10_UNLIKELY(e != nullptr)) {
    if (f.error) {
      tpu_err_free(e);
      std::rethrow_exception(f.error);
    }
    if (f.through_twin) {
      tpu_err_free(e);
      return run_through_twin(*this, stack, base);
    }
    if (writes_in_any_shape(f)) {
      tpu_err_free(e);
      const at::Tensor self = in[0].toTensor();
      in[0] = self.view({-1});
      call(stack);
      stack->back() = self;
      return;
    }
    if (f.resizes.empty()) throw_error(e);
    tpu_err_free(e);
    for (const auto &r : f.resizes) resize_to(in[r.arg].toTensor(), r.sizes, r.strides);
    return call(stack);
  }

  if (C10_LIKELY(returns.size() == 1 && returns[0] >= -1)) {
    c10::IValue out = returns[0] < 0 ? c10::IValue(std::move(f.results[0])) : std::move(in[returns[0]]);
    stack->resize(base);
    stack->push_back(std::move(out));
    return;
  }
  c10::SmallVector<c10::IValue, 4> outs;
  size_t list = 0;
  for (size_t i = 0; i < returns.size(); i++) {
    if (returns[i] >= 0) outs.emplace_back(in[returns[i]]);
    else if (returns[i] == -1) outs.emplace_back(std::move(f.results[i]));
    else outs.emplace_back(c10::List<at::Tensor>(f.lists[list++]));
  }
  stack->resize(base);
  for (auto &o : outs) stack->push_back(std::move(o));
}

std::vector<at::Tensor> call_kernel_all(Kernel *k, std::initializer_list<c10::IValue> args) {
  torch::jit::Stack stack(args);
  k->run(&stack);
  std::vector<at::Tensor> out;
  for (c10::IValue &v : stack) out.push_back(std::move(v).toTensor());
  return out;
}

at::Tensor call_kernel(Kernel *k, std::initializer_list<c10::IValue> args) {
  torch::jit::Stack stack(args);
  k->run(&stack);
  return stack.empty() || !stack.front().isTensor() ? at::Tensor() : std::move(stack.front()).toTensor();
}

}  // namespace torch_tpu
