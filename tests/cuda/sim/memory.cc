// Linear memory of a device, managed memory, and questions about pointers.
#include "tests/cuda/sim/memory.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "tests/cuda/sim/devices.h"
#include "tests/cuda/sim/vmm.h"

namespace sim {

cudaError_t allocate(void** address, Kind kind, std::size_t bytes) {
  if (address == nullptr) return cudaErrorInvalidValue;
  int device;
  if (const cudaError_t error = use_device(&device)) return error;
  if (bytes == 0) {
    *address = nullptr;
    return cudaSuccess;
  }
  void* block = heap().allocate(device, kind, bytes);
  if (block == nullptr) return cudaErrorMemoryAllocation;
  *address = block;
  return cudaSuccess;
}

cudaError_t allocate_pitched(void** address, std::size_t* pitch, std::size_t width, std::size_t height) {
  if (pitch == nullptr) return cudaErrorInvalidValue;
  if (width > (std::size_t{1} << 46)) return cudaErrorMemoryAllocation;
  const std::size_t row = (width + granule - 1) / granule * granule;
  std::size_t bytes;
  if (__builtin_mul_overflow(row, height, &bytes)) return cudaErrorMemoryAllocation;
  const cudaError_t error = allocate(address, linear, bytes);
  if (error == cudaSuccess) *pitch = row;
  return error;
}

cudaError_t release(const void* address, unsigned kinds) {
  if (address == nullptr || heap().release(address, kinds)) return cudaSuccess;
  return cudaErrorInvalidValue;
}

cudaError_t memory_info(std::size_t* free, std::size_t* total) {
  int device;
  if (const cudaError_t error = use_device(&device)) return error;
  const Usage usage = heap().usage(device);
  if (free != nullptr) *free = usage.capacity - std::min(usage.used, usage.capacity);
  if (total != nullptr) *total = usage.capacity;
  return cudaSuccess;
}

namespace {

// The address is all that another part of this process needs to open the memory.
struct IpcHandle {
  pid_t process;
  void* address;
};
static_assert(sizeof(IpcHandle) <= sizeof(cudaIpcMemHandle_t));

}  // namespace
}  // namespace sim

using namespace sim;

SIM_EXPORT cudaError_t cudaMalloc(void** address, size_t bytes) {
  SIM_CALL();
  return result(allocate(address, linear, bytes));
}

SIM_EXPORT cudaError_t cudaFree(void* address) {
  SIM_CALL();
  int device;
  // cudaFree(nullptr) is how programs ask for a context.
  if (const cudaError_t error = use_device(&device)) return result(error);
  return result(release(address, freed_by_cuda_free));
}

SIM_EXPORT cudaError_t cudaMallocManaged(void** address, size_t bytes, unsigned int) {
  SIM_CALL();
  if (bytes == 0) return result(cudaErrorInvalidValue);
  return result(allocate(address, managed, bytes));
}

SIM_EXPORT cudaError_t cudaMallocPitch(void** address, size_t* pitch, size_t width, size_t height) {
  SIM_CALL();
  return result(allocate_pitched(address, pitch, width, height));
}

SIM_EXPORT cudaError_t cudaMalloc3D(cudaPitchedPtr* pitched, cudaExtent extent) {
  SIM_CALL();
  std::size_t rows;
  if (pitched == nullptr) return result(cudaErrorInvalidValue);
  if (__builtin_mul_overflow(extent.height, extent.depth, &rows)) return result(cudaErrorMemoryAllocation);
  void* address = nullptr;
  std::size_t pitch = 0;
  if (const cudaError_t error = allocate_pitched(&address, &pitch, extent.width, rows)) return result(error);
  *pitched = {address, pitch, extent.width, extent.height};
  return cudaSuccess;
}

SIM_EXPORT cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  SIM_CALL();
  return result(memory_info(free, total));
}

SIM_EXPORT cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  SIM_CALL();
  if (attributes == nullptr) return result(cudaErrorInvalidValue);
  *attributes = {};
  void* address = const_cast<void*>(pointer);
  const auto block = heap().around(pointer);
  if (block && block->kind == pinned) {
    attributes->type = cudaMemoryTypeHost;
    attributes->device = block->device;
  } else if (block) {
    attributes->type = block->kind == managed ? cudaMemoryTypeManaged : cudaMemoryTypeDevice;
    attributes->device = block->device;
  } else if (const auto device = device_mapped_at(pointer)) {
    attributes->type = cudaMemoryTypeDevice;
    attributes->device = *device;
  } else if (is_registered(pointer)) {
    attributes->type = cudaMemoryTypeHost;
  } else {
    attributes->type = cudaMemoryTypeUnregistered;
    attributes->device = cudaInvalidDeviceId;
    return cudaSuccess;
  }
  attributes->devicePointer = address;
  if (attributes->type != cudaMemoryTypeDevice) attributes->hostPointer = address;
  return cudaSuccess;
}

SIM_EXPORT cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* address) {
  SIM_CALL();
  const auto block = heap().around(address);
  if (handle == nullptr || !block || block->kind != linear) return result(cudaErrorInvalidValue);
  const IpcHandle contents{getpid(), reinterpret_cast<void*>(block->address)};
  *handle = {};
  std::memcpy(handle, &contents, sizeof contents);
  return cudaSuccess;
}

SIM_EXPORT cudaError_t cudaIpcOpenMemHandle(void** address, cudaIpcMemHandle_t handle, unsigned int) {
  SIM_CALL();
  IpcHandle contents;
  std::memcpy(&contents, &handle, sizeof contents);
  if (contents.process != getpid()) return result(cudaErrorNotSupported);
  if (address == nullptr || !heap().around(contents.address)) return result(cudaErrorInvalidValue);
  *address = contents.address;
  return cudaSuccess;
}

SIM_EXPORT cudaError_t cudaIpcCloseMemHandle(void* address) {
  SIM_CALL();
  return result(heap().around(address) ? cudaSuccess : cudaErrorInvalidValue);
}
