// What libtorch_cpu asks of a CUDA build at run time, answered for the simulated device.

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>
#include <new>

#include "generator.h"
#include "start.h"

namespace sim {
namespace {

// ---- page-locked memory, without a cache -------------------------------------------------------------------------------------

void free_pinned(void* pointer) { (void)cudaFreeHost(pointer); }

class PinnedAllocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* pointer = nullptr;
    if (bytes > 0) C10_CUDA_CHECK(cudaHostAlloc(&pointer, bytes, cudaHostAllocDefault));
    return {pointer, pointer, &free_pinned, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_pinned; }
  void copy_data(void* to, const void* from, size_t count) const override { default_copy_data(to, from, count); }
  bool record_event(void*, void*, c10::Stream) override { return true; }
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
};

PinnedAllocator& pinned_allocator() {
  static auto& made = *new PinnedAllocator;
  return made;
}

bool is_pinned(const void* data) {
  cudaPointerAttributes attributes;
  if (cudaPointerGetAttributes(&attributes, data) == cudaSuccess) return attributes.type == cudaMemoryTypeHost;
  (void)cudaGetLastError();
  return false;
}

// ---- hooks -------------------------------------------------------------------------------------------------------------------

using at::Allocator;
using c10::Device;
using c10::DeviceIndex;

struct SimulatedCudaHooks final : at::CUDAHooksInterface {
  void init() const override { TORCH_CHECK(sim_cuda_start() == 0, sim_cuda_error()); }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return c10::cuda::device_count() > 0; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  const at::Generator& getDefaultGenerator(DeviceIndex device) const override { return sim::default_generator(device); }
  at::Generator getNewGenerator(DeviceIndex device) const override { return sim::new_generator(device); }
  Device getDeviceFromPtr(void* data) const override {
    cudaPointerAttributes attributes;
    C10_CUDA_CHECK(cudaPointerGetAttributes(&attributes, data));
    return Device(c10::kCUDA, static_cast<DeviceIndex>(attributes.device));
  }
  bool isPinnedPtr(const void* data) const override { return sim::is_pinned(data); }
  Allocator* getPinnedMemoryAllocator() const override { return &sim::pinned_allocator(); }
  Allocator* getCUDADeviceAllocator() const override { return c10::cuda::CUDACachingAllocator::get(); }

  bool hasCUDA() const override { return isAvailable(); }
  bool hasCUDART() const override { return true; }
  long versionCUDART() const override { return CUDART_VERSION; }
  std::string showConfig() const override { return "simulated CUDA"; }
  int getNumGPUs() const override { return c10::cuda::device_count(); }
  DeviceIndex deviceCount() const override { return c10::cuda::device_count(); }
  DeviceIndex current_device() const override { return c10::cuda::current_device(); }
  DeviceIndex getCurrentDevice() const override { return c10::cuda::current_device(); }
  void setCurrentDevice(DeviceIndex device) const override { c10::cuda::set_device(device); }
  DeviceIndex exchangeDevice(DeviceIndex device) const override { return c10::cuda::ExchangeDevice(device); }
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override { return c10::cuda::MaybeExchangeDevice(device); }
  void deviceSynchronize(DeviceIndex) const override { c10::cuda::device_synchronize(); }
};

// PyTorch makes its hooks while it is imported, before this library is loaded: a class in CUDAHooksRegistry would never be asked for. So the
// object that there is becomes another one. It has no members, and everybody calls it through its virtual functions.
[[maybe_unused]] const bool seated = [] {
  static_assert(sizeof(SimulatedCudaHooks) == sizeof(at::CUDAHooksInterface));
  new (const_cast<at::CUDAHooksInterface*>(&at::detail::getCUDAHooks())) SimulatedCudaHooks;
  return true;
}();

}  // namespace
}  // namespace sim

REGISTER_HOST_ALLOCATOR(at::kCUDA, &sim::pinned_allocator())
