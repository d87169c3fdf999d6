// guard.cpp - current device, streams and events for c10. All streams of a device run in order, so a stream is an id
// and waiting for one waits for its device; between devices PJRT orders work by its data.
#include "adapter/common.h"

namespace torch_tpu {
namespace {

struct Event {
  tpu_event *mark;
  c10::DeviceIndex device;
  bool timed;
};

thread_local std::array<int64_t, 256> current_stream{};
std::atomic<int64_t> next_stream{1};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static c10::Device real(c10::Device d) { return d.has_index() ? d : device_at(tpu_get_device()); }
  static int64_t &current(c10::DeviceIndex i) { return current_stream[static_cast<uint8_t>(i)]; }
  static c10::Stream stream(c10::Device d, int64_t id) { return c10::Stream(c10::Stream::UNSAFE, d, id); }
  static void check(c10::Device d) {
    TORCH_CHECK(d.is_privateuseone(), "tpu: expected a tpu device, got ", d);
    const int n = tpu_device_count();
    TORCH_CHECK(!d.has_index() || d.index() < n, "tpu: device index ", static_cast<int>(d.index()),
                " is out of range, there are ", n, " device(s)");
  }

  c10::DeviceType type() const override { return kTPU; }
  c10::Device exchangeDevice(c10::Device d) const override {
    const c10::Device old = getDevice();
    if (d.has_index() && d.index() != old.index()) setDevice(d);
    return old;
  }
  c10::Device getDevice() const override { return device_at(tpu_get_device()); }
  void setDevice(c10::Device d) const override {
    check(d);
    if (d.has_index()) tpu_set_device(d.index());
  }
  void uncheckedSetDevice(c10::Device d) const noexcept override {
    if (d.has_index()) tpu_set_device(d.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(std::min(tpu_device_count(), 127));
  }
  // Every dtype but the quantized ones; the bits stand in c10's order.
  c10::DeviceCapability getDeviceCapability(c10::Device) const override { return {}; }

  c10::Stream getStream(c10::Device d) const override {
    d = real(d);
    return stream(d, current(d.index()));
  }
  c10::Stream getDefaultStream(c10::Device d) const override { return stream(real(d), 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device d, bool) const override { return getNewStream(d, 0); }
  c10::Stream getNewStream(c10::Device d, int) const override {
    check(d);
    return stream(real(d), next_stream.fetch_add(1));
  }
  c10::Stream exchangeStream(c10::Stream s) const override {
    int64_t &now = current(s.device_index());
    const int64_t old = now;
    now = s.id();
    return stream(s.device(), old);
  }
  void *getStreamNativeHandle(const c10::Stream s) const override { return reinterpret_cast<void *>(s.id()); }
  bool queryStream(const c10::Stream &s) const override {
    tpu_event *e = nullptr;
    throw_if(tpu_event_record(s.device_index(), &e));
    const bool done = tpu_event_done(e);
    tpu_event_release(e);
    return done;
  }
  void synchronizeStream(const c10::Stream &s) const override { throw_if(tpu_synchronize(s.device_index())); }
  void synchronizeDevice(c10::DeviceIndex d) const override { throw_if(tpu_synchronize(d)); }

  void destroyEvent(void *event, c10::DeviceIndex) const noexcept override {
    auto *e = static_cast<Event *>(event);
    if (!e) return;
    tpu_event_release(e->mark);
    delete e;
  }
  void record(void **event, const c10::Stream &s, c10::DeviceIndex device, c10::EventFlag flag) const override {
    TORCH_CHECK(device == -1 || device == s.device_index(), "Event device ", static_cast<int>(device),
                " does not match recording stream's device ", static_cast<int>(s.device_index()), ".");
    tpu_event *mark = nullptr;
    throw_if(tpu_event_record(s.device_index(), &mark));
    auto *e = static_cast<Event *>(*event);
    if (!e) *event = e = new Event{nullptr, s.device_index(), flag == c10::EventFlag::BACKEND_DEFAULT};
    tpu_event_release(e->mark);
    e->mark = mark;
  }
  // Later work of the same device runs later anyway; work of another device that reads its results waits for their
  // buffers.
  void block(void *, const c10::Stream &) const override {}
  bool queryEvent(void *event) const override {
    auto *e = static_cast<Event *>(event);
    return !e || !e->mark || tpu_event_done(e->mark);
  }
  void synchronizeEvent(void *event) const override {
    auto *e = static_cast<Event *>(event);
    if (e && e->mark) throw_if(tpu_event_wait(e->mark));
  }
  double elapsedTime(void *first, void *second, c10::DeviceIndex) const override {
    auto *a = static_cast<Event *>(first), *b = static_cast<Event *>(second);
    TORCH_CHECK(a && b && a->mark && b->mark, "Both events must be recorded before calculating elapsed time.");
    TORCH_CHECK(a->timed && b->timed, "Both events must be created with argument 'enable_timing=True'.");
    double ms = 0;
    throw_if(tpu_event_elapsed(a->mark, b->mark, &ms));
    return ms;
  }
};

}  // namespace

void register_guard() {
  static auto *guard = new Guard;
  c10::impl::registerDeviceGuard(kTPU, guard);
  c10::SetAllocator(kTPU, device_allocator());
}

}  // namespace torch_tpu
