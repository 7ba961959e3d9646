// How much memory a device has left, and how to get more of it: what koila/batch.h asks of the machine. Not for programs to call.
//
// C++17; header-only over LibTorch. Nothing is linked to CUDA or to koila: a device's allocator is asked through c10's interface, and koila,
// where it is preloaded or linked, through its C ABI. Every function may be called from any thread.
#ifndef KOILA_DETAIL_MEMORY_H_
#define KOILA_DETAIL_MEMORY_H_

#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fcntl.h>
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "koila/detail/abi.h"

namespace koila::detail {

// The number behind `name` in a file of /proc whose lines are "Name:   12345 kB", in bytes; 0 when it is not there.
inline std::int64_t proc_bytes(const char* path, const char* name) {
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  char text[4096];
  const ssize_t length = read(file, text, sizeof text - 1);
  close(file);
  if (length <= 0) return 0;
  text[length] = '\0';
  const char* at = std::strstr(text, name);
  return at != nullptr ? std::strtoll(at + std::strlen(name), nullptr, 10) * 1024 : 0;
}

// The caching allocator of a kind of device, once it is in use; null for the CPU, and where there is none that c10 can ask.
inline c10::DeviceAllocator* device_allocator(c10::DeviceType type) {
  if (type == c10::DeviceType::CPU || !c10::impl::hasDeviceGuardImpl(type)) return nullptr;
  try {
    auto* allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(type));
    return allocator != nullptr && allocator->initialized() ? allocator : nullptr;
  } catch (const c10::Error&) {
    return nullptr;  // none is registered
  }
}

// Where a call runs that names no device: the current device of the accelerator in use, else the CPU.
inline c10::Device current_device() {
  const std::optional<c10::DeviceType> type = at::getAccelerator();
  if (!type || device_allocator(*type) == nullptr) return c10::DeviceType::CPU;
  return c10::impl::VirtualGuardImpl(*type).getDevice();
}

// Bytes that a call may still get. On a device: what is free there, with what PyTorch's allocator has cached. On the CPU: what koila's budget
// leaves, where there is one, else what the kernel can give without swapping. 0 where that cannot be known.
inline std::int64_t available_memory(c10::Device device) {
  if (device.is_cpu()) {
    const Abi& koila = Abi::get();
    const std::int64_t budget = koila ? koila.budget_bytes(Abi::kCpu) : 0;
    if (budget > 0) return std::max<std::int64_t>(budget - koila.live_bytes(Abi::kCpu), 0);
    return proc_bytes("/proc/meminfo", "MemAvailable:");
  }
  c10::DeviceAllocator* allocator = device_allocator(device.type());
  if (allocator == nullptr) return 0;
  try {
    constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    const c10::DeviceIndex index = device.has_index() ? device.index() : c10::impl::VirtualGuardImpl(device.type()).getDevice().index();
    const auto stats = allocator->getDeviceStats(index);
    return static_cast<std::int64_t>(allocator->getMemoryInfo(index).first) + stats.reserved_bytes[kAll].current - stats.allocated_bytes[kAll].current;
  } catch (const c10::Error&) {
    return 0;  // an allocator that does not tell (cudaMallocAsync)
  }
}

// `bytes` in steps that are coarse at every scale, four to each doubling: 1.00, 1.25, 1.50, 1.75, 2.00 GiB and so on; the lower end of the step.
// 0 below one MiB.
inline std::int64_t memory_step(std::int64_t bytes) {
  int shift = 0;
  while ((bytes >> shift) >= 8) ++shift;
  return bytes < (std::int64_t{1} << 20) ? 0 : (bytes >> shift) << shift;
}

inline void trim_heap() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

// After an out-of-memory: what allocators keep for later goes back, on all devices of that kind.
inline void free_caches(c10::DeviceType type) {
  const std::optional<c10::DeviceType> accelerator = at::getAccelerator();
  if (type == c10::DeviceType::CPU && accelerator) type = *accelerator;
  if (c10::DeviceAllocator* allocator = device_allocator(type); allocator != nullptr) allocator->emptyCache();
  trim_heap();
}

// While it lives, this process' CPU memory may grow by at most so many bytes: by koila's budget where koila counts CPU tensors, else by the
// kernel's limit for the process' data (RLIMIT_DATA), which every allocation meets. Several at once: the smallest holds. When the last has gone, what
// held before holds again.
class CpuLimit {
 public:
  explicit CpuLimit(std::int64_t bytes) {
    if (bytes <= 0) return;
    start_threads();
    if (const Abi& koila = Abi::get()) budget_ = koila.begin_budget(Abi::kCpu, koila.live_bytes(Abi::kCpu) + bytes);  // 0 where it counts no CPU tensors
    if (budget_ != 0) return;
    const std::lock_guard<std::mutex> lock(state().mutex);
    State& now = state();
    if (now.limits.empty()) getrlimit(RLIMIT_DATA, &now.before);
    trim_heap();  // as much as can be: what malloc keeps for later comes on top of the limit
    mine_ = now.limits.insert(proc_bytes("/proc/self/status", "VmData:") + bytes);
    now.apply();
  }
  ~CpuLimit() {
    if (budget_ != 0) Abi::get().end_budget(budget_);
    if (!mine_) return;
    const std::lock_guard<std::mutex> lock(state().mutex);
    state().limits.erase(*mine_);
    state().apply();
  }
  CpuLimit(const CpuLimit&) = delete;
  CpuLimit& operator=(const CpuLimit&) = delete;

 private:
  // Of the kernel's.
  struct State {
    std::mutex mutex;
    std::multiset<std::int64_t> limits;
    rlimit before = {};

    void apply() const {
      rlimit now = before;
      if (!limits.empty()) now.rlim_cur = std::min(before.rlim_cur, static_cast<rlim_t>(*limits.begin()));
      setrlimit(RLIMIT_DATA, &now);
    }
  };
  static State& state() {
    static State* state = new State;  // never destroyed: a thread may outlive the statics
    return *state;
  }

  // A thread that cannot get its stack ends the process: those that operators on this thread will use are there first.
  static void start_threads() {
    thread_local bool started = false;
    constexpr std::int64_t kShare = 1 << 16;  // enough that each thread has a part
    if (!std::exchange(started, true)) at::empty({at::get_num_threads() * kShare}, at::kByte).fill_(1);
  }

  std::uint64_t budget_ = 0;  // koila's; 0: none
  std::optional<std::multiset<std::int64_t>::iterator> mine_;
};

}  // namespace koila::detail

#endif  // KOILA_DETAIL_MEMORY_H_
