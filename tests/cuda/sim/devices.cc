#include "tests/cuda/sim/devices.h"

#include <cstdio>
#include <cstring>
#include <string>

#include "tests/cuda/sim/heap.h"
#include "tests/cuda/sim/pools.h"
#include "tests/cuda/sim/vmm.h"

namespace sim {
namespace {

std::atomic<int> count_of_devices{1};
std::atomic<bool> active[max_devices];
thread_local int current = 0;

struct Attribute {
  int number, value;
};

constexpr Attribute attributes[] = {
    {cudaDevAttrMaxThreadsPerBlock, 1024},
    {cudaDevAttrMaxBlockDimX, 1024},
    {cudaDevAttrMaxBlockDimY, 1024},
    {cudaDevAttrMaxBlockDimZ, 64},
    {cudaDevAttrMaxGridDimX, 2147483647},
    {cudaDevAttrMaxGridDimY, 65535},
    {cudaDevAttrMaxGridDimZ, 65535},
    {cudaDevAttrMaxSharedMemoryPerBlock, 49152},
    {cudaDevAttrMaxSharedMemoryPerBlockOptin, 232448},
    {cudaDevAttrMaxSharedMemoryPerMultiprocessor, 233472},
    {cudaDevAttrTotalConstantMemory, 65536},
    {cudaDevAttrWarpSize, 32},
    {cudaDevAttrMaxPitch, 2147483647},
    {cudaDevAttrMaxRegistersPerBlock, 65536},
    {cudaDevAttrMaxRegistersPerMultiprocessor, 65536},
    {cudaDevAttrTextureAlignment, 512},
    {cudaDevAttrTexturePitchAlignment, 32},
    {cudaDevAttrMultiProcessorCount, 132},
    {cudaDevAttrCanMapHostMemory, 1},
    {cudaDevAttrConcurrentKernels, 1},
    {cudaDevAttrAsyncEngineCount, 3},
    {cudaDevAttrUnifiedAddressing, 1},
    {cudaDevAttrGlobalMemoryBusWidth, 5120},
    {cudaDevAttrL2CacheSize, 50 << 20},
    {cudaDevAttrMaxThreadsPerMultiProcessor, 2048},
    {cudaDevAttrMaxBlocksPerMultiprocessor, 32},
    {cudaDevAttrComputeCapabilityMajor, 9},
    {cudaDevAttrComputeCapabilityMinor, 0},
    {cudaDevAttrStreamPrioritiesSupported, 1},
    {cudaDevAttrManagedMemory, 1},
    {cudaDevAttrConcurrentManagedAccess, 1},
    {cudaDevAttrComputePreemptionSupported, 1},
    {cudaDevAttrCanUseHostPointerForRegisteredMem, 1},
    {cudaDevAttrCooperativeLaunch, 1},
    {cudaDevAttrHostRegisterSupported, 1},
    {cudaDevAttrMemoryPoolsSupported, 1},
    {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1},
};

}  // namespace

int device_count() { return count_of_devices.load(std::memory_order_relaxed); }

void set_device_count(int count) { count_of_devices.store(count < 0 ? 0 : count > max_devices ? max_devices : count, std::memory_order_relaxed); }

bool valid_device(int device) { return device >= 0 && device < device_count(); }

cudaError_t set_device(int device) {
  if (device_count() == 0) return cudaErrorNoDevice;
  if (!valid_device(device)) return cudaErrorInvalidDevice;
  current = device;
  active[device].store(true, std::memory_order_relaxed);
  return cudaSuccess;
}

cudaError_t use_device(int* device) {
  *device = current;
  if (!valid_device(current)) return device_count() == 0 ? cudaErrorNoDevice : cudaErrorInvalidDevice;
  if (!active[current].load(std::memory_order_relaxed)) active[current].store(true, std::memory_order_relaxed);
  return cudaSuccess;
}

void forget_current_device() { current = 0; }

bool device_active(int device) { return active[device].load(std::memory_order_relaxed); }

void deactivate_devices() {
  for (auto& flag : active) flag.store(false, std::memory_order_relaxed);
}

int attribute_of(int attribute) {
  for (const Attribute& known : attributes) {
    if (known.number == attribute) return known.value;
  }
  return 0;
}

}  // namespace sim

using namespace sim;

SIM_EXPORT cudaError_t cudaGetDeviceCount(int* count) {
  SIM_CALL();
  if (count == nullptr) return result(cudaErrorInvalidValue);
  *count = device_count();
  return result(*count == 0 ? cudaErrorNoDevice : cudaSuccess);
}

SIM_EXPORT cudaError_t cudaGetDevice(int* device) {
  SIM_CALL();
  if (device == nullptr) return result(cudaErrorInvalidValue);
  if (device_count() == 0) return result(cudaErrorNoDevice);
  *device = current;
  return cudaSuccess;
}

SIM_EXPORT cudaError_t cudaSetDevice(int device) {
  SIM_CALL();
  return result(set_device(device));
}

SIM_EXPORT cudaError_t cudaInitDevice(int device, unsigned int, unsigned int) {
  SIM_CALL();
  if (!valid_device(device)) return result(cudaErrorInvalidDevice);
  active[device].store(true, std::memory_order_relaxed);
  return cudaSuccess;
}

SIM_EXPORT cudaError_t cudaSetDeviceFlags(unsigned int) {
  SIM_CALL();
  return cudaSuccess;
}

SIM_EXPORT cudaError_t cudaGetDeviceFlags(unsigned int* flags) {
  SIM_CALL();
  *flags = 0;
  return cudaSuccess;
}

SIM_EXPORT cudaError_t cudaSetValidDevices(int*, int) {
  SIM_CALL();
  return cudaSuccess;
}

SIM_EXPORT cudaError_t cudaChooseDevice(int* device, const cudaDeviceProp*) {
  SIM_CALL();
  *device = 0;
  return cudaSuccess;
}

SIM_EXPORT cudaError_t cudaDeviceSynchronize() {
  SIM_CALL();
  int device;
  return result(use_device(&device));
}

SIM_EXPORT cudaError_t cudaDeviceReset() {
  SIM_CALL();
  int device;
  if (const cudaError_t error = use_device(&device)) return result(error);
  release_physical_memory(device);
  heap().release_device(device);
  forget_pools(device);
  active[device].store(false, std::memory_order_relaxed);
  return cudaSuccess;
}

SIM_EXPORT cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  SIM_CALL();
  if (properties == nullptr) return result(cudaErrorInvalidValue);
  if (!valid_device(device)) return result(cudaErrorInvalidDevice);
  cudaDeviceProp& p = *properties;
  p = cudaDeviceProp{};
  std::snprintf(p.name, sizeof p.name, "Simulated GPU %d", device);
  std::snprintf(p.uuid.bytes, sizeof p.uuid.bytes, "sim-%d", device);
  p.totalGlobalMem = heap().usage(device).capacity;
  p.sharedMemPerBlock = 49152;
  p.sharedMemPerBlockOptin = 232448;
  p.sharedMemPerMultiprocessor = 233472;
  p.regsPerBlock = p.regsPerMultiprocessor = 65536;
  p.warpSize = 32;
  p.memPitch = 2147483647;
  p.maxThreadsPerBlock = 1024;
  p.maxThreadsDim[0] = p.maxThreadsDim[1] = 1024;
  p.maxThreadsDim[2] = 64;
  p.maxGridSize[0] = 2147483647;
  p.maxGridSize[1] = p.maxGridSize[2] = 65535;
  p.totalConstMem = 65536;
  p.major = 9;
  p.minor = 0;
  p.textureAlignment = 512;
  p.texturePitchAlignment = 32;
  p.multiProcessorCount = 132;
  p.canMapHostMemory = 1;
  p.concurrentKernels = 1;
  p.pciBusID = device + 1;
  p.asyncEngineCount = 3;
  p.unifiedAddressing = 1;
  p.memoryBusWidth = 5120;
  p.l2CacheSize = 50 << 20;
  p.maxThreadsPerMultiProcessor = 2048;
  p.maxBlocksPerMultiProcessor = 32;
  p.streamPrioritiesSupported = 1;
  p.managedMemory = p.concurrentManagedAccess = 1;
  p.canUseHostPointerForRegisteredMem = p.hostRegisterSupported = 1;
  p.cooperativeLaunch = 1;
  p.memoryPoolsSupported = 1;
  return cudaSuccess;
}

SIM_EXPORT cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  SIM_CALL();
  if (value == nullptr) return result(cudaErrorInvalidValue);
  if (!valid_device(device)) return result(cudaErrorInvalidDevice);
  *value = attribute == cudaDevAttrPciBusId ? device + 1 : attribute_of(attribute);
  return cudaSuccess;
}

SIM_EXPORT cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  SIM_CALL();
  if (!valid_device(device)) return result(cudaErrorInvalidDevice);
  std::snprintf(text, static_cast<std::size_t>(length), "0000:%02X:00.0", device + 1);
  return cudaSuccess;
}

SIM_EXPORT cudaError_t cudaDeviceGetByPCIBusId(int* device, const char* text) {
  SIM_CALL();
  unsigned bus = 0;
  if (std::sscanf(text, "%*x:%x:", &bus) != 1 || !valid_device(static_cast<int>(bus) - 1)) return result(cudaErrorInvalidValue);
  *device = static_cast<int>(bus) - 1;
  return cudaSuccess;
}

SIM_EXPORT cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  SIM_CALL();
  if (!valid_device(device) || !valid_device(peer)) return result(cudaErrorInvalidDevice);
  *can = device != peer;
  return cudaSuccess;
}

SIM_EXPORT cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int) {
  SIM_CALL();
  return result(valid_device(peer) ? cudaSuccess : cudaErrorInvalidDevice);
}

SIM_EXPORT cudaError_t cudaDeviceDisablePeerAccess(int peer) {
  SIM_CALL();
  return result(valid_device(peer) ? cudaSuccess : cudaErrorInvalidDevice);
}

SIM_EXPORT cudaError_t cudaDeviceGetP2PAttribute(int* value, cudaDeviceP2PAttr attribute, int from, int to) {
  SIM_CALL();
  if (!valid_device(from) || !valid_device(to) || from == to) return result(cudaErrorInvalidDevice);
  *value = attribute == cudaDevP2PAttrAccessSupported;
  return cudaSuccess;
}

SIM_EXPORT cudaError_t cudaDeviceSetLimit(cudaLimit, size_t) {
  SIM_CALL();
  return cudaSuccess;
}

SIM_EXPORT cudaError_t cudaDeviceGetLimit(size_t* value, cudaLimit) {
  SIM_CALL();
  *value = 0;
  return cudaSuccess;
}

SIM_EXPORT cudaError_t cudaDriverGetVersion(int* version) {
  SIM_CALL();
  *version = 13000;
  return cudaSuccess;
}

SIM_EXPORT cudaError_t cudaRuntimeGetVersion(int* version) {
  SIM_CALL();
  *version = 13000;
  return cudaSuccess;
}
