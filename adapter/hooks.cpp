// hooks.cpp - the accelerator hooks and the random generator. The numbers are made by the core from {seed, offset}.
#include <ATen/core/GeneratorForPrivateuseone.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>

#include "adapter/tensor.h"

namespace torch_tpu {
namespace {

struct Generator final : c10::GeneratorImpl {
  uint64_t state[2] = {c10::default_rng_seed_val, 0};  // seed, offset: the layout that the core and DTensor read

  explicit Generator(c10::DeviceIndex i)
      : GeneratorImpl(device_at(i), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}
  void set_current_seed(uint64_t seed) override {
    state[0] = seed;
    state[1] = 0;
  }
  void set_offset(uint64_t offset) override { state[1] = offset; }
  uint64_t get_offset() const override { return state[1]; }
  uint64_t current_seed() const override { return state[0]; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return state[0];
  }
  void set_state(const c10::TensorImpl &t) override {
    TORCH_CHECK_TYPE(t.device_type() == c10::kCPU && t.dtype() == caffe2::TypeMeta::Make<uint8_t>(),
                     "RNG state must be a torch.ByteTensor");
    TORCH_CHECK(t.numel() == sizeof state && t.is_contiguous(),
                "RNG state is wrong size: expected a contiguous tensor of ", sizeof state, " bytes, got ", t.numel());
    std::memcpy(state, t.data(), sizeof state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    auto t = at::detail::empty_cpu({sizeof state}, c10::kByte, std::nullopt, std::nullopt, std::nullopt, std::nullopt);
    std::memcpy(t.mutable_data_ptr(), state, sizeof state);
    return t.getIntrusivePtr();
  }
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl> &other) override {
    auto *g = dynamic_cast<Generator *>(other.get());
    TORCH_CHECK(g, "expected the state of a tpu generator");
    std::memcpy(state, g->state, sizeof state);
  }
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override {
    return c10::intrusive_ptr<c10::GeneratorImpl>::reclaim(clone_impl());
  }
  Generator *clone_impl() const override {
    auto *g = new Generator(device_.index());
    std::memcpy(g->state, state, sizeof state);
    return g;
  }
};

struct Defaults {
  std::mutex lock;
  std::array<std::atomic<uint64_t *>, 128> state{};
  std::array<at::Generator, 128> made;
};
Defaults &defaults() {
  static auto *d = new Defaults;
  return *d;
}

}  // namespace

const at::Generator &default_generator(int device) {
  if (device < 0) device = tpu_get_device();
  TORCH_CHECK(device < 128, "tpu: device index ", device, " is out of range");
  auto &d = defaults();
  std::lock_guard<std::mutex> g(d.lock);
  at::Generator &out = d.made[device];
  if (!out.defined()) {
    out = at::make_generator<Generator>(static_cast<c10::DeviceIndex>(device));
    d.state[device].store(static_cast<Generator *>(out.unsafeGetGeneratorImpl())->state);
  }
  return out;
}

namespace {

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return tpu_is_available(); }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return tpu_is_initialized(); }
  void init() const override { throw_if(tpu_init()); }
  c10::DeviceIndex deviceCount() const override {
    return static_cast<c10::DeviceIndex>(std::min(tpu_device_count(), 127));
  }
  void setCurrentDevice(c10::DeviceIndex d) const override {
    c10::impl::getDeviceGuardImpl(kTPU)->setDevice(device_at(d));
  }
  c10::DeviceIndex getCurrentDevice() const override { return static_cast<c10::DeviceIndex>(tpu_get_device()); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex d) const override {
    const auto old = getCurrentDevice();
    if (d >= 0) setCurrentDevice(d);
    return old;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex d) const override { return exchangeDevice(d); }
  const at::Generator &getDefaultGenerator(c10::DeviceIndex d) const override { return default_generator(d); }
  at::Generator getNewGenerator(c10::DeviceIndex d) const override {
    return at::make_generator<Generator>(d < 0 ? getCurrentDevice() : d);
  }
  at::Device getDeviceFromPtr(void *p) const override {
    size_t offset = 0;
    tpu_store *s = tpu_store_from_address(p, &offset);
    TORCH_CHECK(s, "tpu: the pointer belongs to no tpu storage");
    return device_at(tpu_store_device(s));
  }
  bool isPinnedPtr(const void *p) const override { return is_pinned(p); }
  at::Allocator *getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  void resizePrivateUse1Bytes(const c10::Storage &s, size_t n) const override {
    resize_storage(s.unsafeGetStorageImpl(), n);
  }
};

}  // namespace

uint64_t *default_rng(int device) {
  uint64_t *s = device >= 0 && device < 128 ? defaults().state[device].load(std::memory_order_acquire) : nullptr;
  return C10_LIKELY(s != nullptr) ? s
                                  : static_cast<Generator *>(default_generator(device).unsafeGetGeneratorImpl())->state;
}

uint64_t *rng_of(const at::Generator &g) {
  TORCH_CHECK(g.device().is_privateuseone(), "Expected a 'tpu' device type for generator but found '",
              g.device().type(), "'");
  return static_cast<Generator *>(g.unsafeGetGeneratorImpl())->state;
}

std::mutex &rng_mutex(const at::Generator *generator, int device) {
  return (generator ? *generator : default_generator(device)).unsafeGetGeneratorImpl()->mutex_;
}

void register_hooks() {
  static auto *hooks = new Hooks;
  at::RegisterPrivateUse1HooksInterface(hooks);
}

}  // namespace torch_tpu
