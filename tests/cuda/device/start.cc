#include "start.h"

#include <ATen/core/Generator.h>
#include <ATen/EmptyTensor.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/PeerToPeerAccess.h>
#include <cstring>
#include <mutex>
#include <string>

#include "generator.h"

namespace c10::cuda::_internal {
void setHasPrimaryContext(bool (*function)(DeviceIndex));  // in no header of PyTorch's
}

namespace {

namespace caching = c10::cuda::CUDACachingAllocator;

std::string& error() {
  static auto& text = *new std::string;
  return text;
}

int start() {
  try {
    // Expandable segments would ask NVML whether handles can be shared between processes.
    setenv("TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC", "0", 0);
    const c10::DeviceIndex devices = c10::cuda::device_count_ensure_non_zero();
    c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
    caching::init(devices);
    c10::cuda::detail::init_p2p_access_cache(devices);
    return 0;
  } catch (const std::exception& reason) {
    error() = reason.what();
    return -1;
  }
}

const c10::CachingAllocator::Stat& stat(const caching::DeviceStats& stats, int figure) {
  const c10::CachingAllocator::StatArray* arrays[] = {&stats.allocated_bytes, &stats.reserved_bytes, &stats.requested_bytes,
                                                      &stats.active_bytes};
  return figure < 4 ? (*arrays[figure])[0] : figure == 6 ? stats.allocation[0] : stats.segment[0];
}

}  // namespace

extern "C" {

int sim_cuda_start() {
  static const int status = start();
  return status;
}

const char* sim_cuda_error() { return error().c_str(); }

int sim_cuda_devices() { return c10::cuda::device_count(); }

int sim_cuda_current_device() { return c10::cuda::current_device(); }

void sim_cuda_set_device(int device) { c10::cuda::set_device(static_cast<c10::DeviceIndex>(device)); }

void sim_cuda_empty_cache() { caching::emptyCache(); }

int64_t sim_cuda_stat(int device, int figure, int which) {
  const caching::DeviceStats stats = caching::getDeviceStats(static_cast<c10::DeviceIndex>(device));
  if (figure == 4) return stats.num_ooms;
  if (figure == 5) return stats.num_alloc_retries;
  const c10::CachingAllocator::Stat& found = stat(stats, figure);
  return which == 0 ? found.current : which == 1 ? found.peak : which == 2 ? found.allocated : found.freed;
}

void sim_cuda_reset_peak(int device) { caching::resetPeakStats(static_cast<c10::DeviceIndex>(device)); }

void sim_cuda_set_fraction(int device, double fraction) { caching::setMemoryFraction(fraction, static_cast<c10::DeviceIndex>(device)); }

void sim_cuda_memory(int device, int64_t* free_bytes, int64_t* total_bytes) {
  const auto [free, total] = caching::get()->getMemoryInfo(static_cast<c10::DeviceIndex>(device));
  *free_bytes = static_cast<int64_t>(free), *total_bytes = static_cast<int64_t>(total);
}

void sim_cuda_get_generator(int device, void* state) {
  std::memcpy(state, sim::default_generator(static_cast<c10::DeviceIndex>(device)).get_state().const_data_ptr(), 16);
}

void sim_cuda_set_generator(int device, const void* state) {
  at::Tensor bytes = at::detail::empty_cpu({16}, c10::kByte);
  std::memcpy(bytes.mutable_data_ptr(), state, 16);
  at::Generator generator = sim::default_generator(static_cast<c10::DeviceIndex>(device));
  std::lock_guard lock(generator.mutex());
  generator.set_state(bytes);
}

void sim_cuda_seed(int device, uint64_t seed) {
  at::Generator generator = sim::default_generator(static_cast<c10::DeviceIndex>(device));
  std::lock_guard lock(generator.mutex());
  generator.set_current_seed(seed);
}

}  // extern "C"
