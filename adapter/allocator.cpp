// allocator.cpp - device memory (stores of the core) and pinned host memory.
#include <map>
#include <mutex>

#include "adapter/tensor.h"

namespace torch_tpu {
namespace {

using c10::CachingDeviceAllocator::DeviceStats;

struct DeviceMemory final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t n) override {
    tpu_store *s = nullptr;
    throw_if(tpu_store_new(n, tpu_get_device(), &s));
    return {tpu_store_address(s), s, g_release, device_at(tpu_store_device(s))};
  }
  // Raw interfaces hand out the address, which is not the store: there is no raw deleter.
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  bool is_simple_data_ptr(const c10::DataPtr &p) const override { return is_lazy_data_ptr(p); }
  void copy_data(void *dst, const void *src, size_t n) const override {
    if (!n) return;
    size_t to = 0, from = 0;
    tpu_store *d = tpu_store_from_address(dst, &to), *s = tpu_store_from_address(src, &from);
    TORCH_CHECK(d && s && !to && !from, "tpu: copy_data needs the start addresses of two device allocations");
    throw_if(tpu_store_copy_bytes(d, s, n));
  }
  bool initialized() override { return tpu_is_initialized(); }
  void emptyCache(c10::MempoolId_t = {0, 0}) override { tpu_empty_cache(); }
  void recordStream(const c10::DataPtr &, c10::Stream) override {}  // all streams of a device run in order
  DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    tpu_memory_stats m{};
    tpu_get_memory_stats(device, &m);
    DeviceStats out;
    const auto put = [](c10::CachingAllocator::StatArray &a, int64_t now, int64_t peak, int64_t total) {
      auto &s = a[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
      s.current = now;
      s.peak = peak;
      s.allocated = total;
      s.freed = total - now;
    };
    for (auto *a : {&out.allocated_bytes, &out.reserved_bytes, &out.active_bytes, &out.requested_bytes})
      put(*a, m.allocated, m.allocated_peak, m.total_allocated);
    for (auto *a : {&out.allocation, &out.segment, &out.active}) put(*a, m.stores, m.stores_peak, m.stores);
    out.num_ooms = m.ooms;
    return out;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex device) override { tpu_reset_peak_memory(device); }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    throw_if(tpu_init());
    tpu_memory_stats m{};
    tpu_get_memory_stats(device, &m);
    const int64_t left = std::max<int64_t>(m.limit - m.allocated, 0);
    return {static_cast<size_t>(left), static_cast<size_t>(m.limit)};
  }
};

// Host memory that transfers may read directly. A plugin offers no page locking, so pinned means: aligned, ours, and
// known by address.
struct PinnedMemory final : c10::Allocator {
  static std::mutex &lock() {
    static auto *m = new std::mutex;
    return *m;
  }
  static std::map<uintptr_t, size_t> &ranges() {
    static auto *r = new std::map<uintptr_t, size_t>;
    return *r;
  }
  static void free_range(void *p) {
    {
      std::lock_guard<std::mutex> g(lock());
      ranges().erase(reinterpret_cast<uintptr_t>(p));
    }
    std::free(p);
  }
  c10::DataPtr allocate(size_t n) override {
    if (!n) return {nullptr, nullptr, &free_range, c10::Device(c10::kCPU)};
    void *p = nullptr;
    TORCH_CHECK_WITH(OutOfMemoryError, posix_memalign(&p, 4096, n) == 0, "tpu: cannot allocate ", n,
                     " bytes of pinned host memory");
    std::lock_guard<std::mutex> g(lock());
    ranges()[reinterpret_cast<uintptr_t>(p)] = n;
    return {p, p, &free_range, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_range; }
  void copy_data(void *dst, const void *src, size_t n) const override { default_copy_data(dst, src, n); }
};

}  // namespace

c10::DeviceAllocator *device_allocator() {
  static auto *a = new DeviceMemory;
  return a;
}

c10::Allocator *pinned_allocator() {
  static auto *a = new PinnedMemory;
  return a;
}

bool is_pinned(const void *p) {
  std::lock_guard<std::mutex> g(PinnedMemory::lock());
  auto &r = PinnedMemory::ranges();
  auto it = r.upper_bound(reinterpret_cast<uintptr_t>(p));
  if (it == r.begin()) return false;
  --it;
  return reinterpret_cast<uintptr_t>(p) < it->first + it->second;
}

}  // namespace torch_tpu
