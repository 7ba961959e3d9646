// The driver's functions, found by name through the runtime. They are not exported: no libcuda is simulated, and a program that loads one finds none.
#include <algorithm>
#include <cstring>
#include <string_view>

#include "tests/cuda/sim/devices.h"
#include "tests/cuda/sim/memory.h"
#include "tests/cuda/sim/pools.h"
#include "tests/cuda/sim/vmm.h"

namespace sim {
namespace {

CUresult driver(cudaError_t error) { return static_cast<CUresult>(error); }

void** pointer(CUdeviceptr* address) { return reinterpret_cast<void**>(address); }

void* pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

CUresult CUDAAPI init(unsigned int) { return device_count() == 0 ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS; }

CUresult CUDAAPI driver_get_version(int* version) {
  *version = 13000;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI get_error_string(CUresult error, const char** text) {
  *text = text_of(error);
  return *text == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult CUDAAPI device_get(CUdevice* device, int ordinal) {
  SIM_DRIVER_CALL("cuDeviceGet");
  if (!valid_device(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI device_get_count(int* count) {
  SIM_DRIVER_CALL("cuDeviceGetCount");
  *count = device_count();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI device_get_attribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  SIM_DRIVER_CALL("cuDeviceGetAttribute");
  if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  *value = attribute_of(attribute);
  return CUDA_SUCCESS;
}

// A primary context is the number of its device plus one; there are no other contexts.
CUcontext context_of(int device) { return reinterpret_cast<CUcontext>(static_cast<std::intptr_t>(device) + 1); }

CUresult CUDAAPI primary_context_state(CUdevice device, unsigned int* flags, int* active) {
  SIM_DRIVER_CALL("cuDevicePrimaryCtxGetState");
  if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (flags != nullptr) *flags = 0;
  if (active != nullptr) *active = device_active(device);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI primary_context_retain(CUcontext* context, CUdevice device) {
  SIM_DRIVER_CALL("cuDevicePrimaryCtxRetain");
  if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  *context = context_of(device);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI primary_context_release(CUdevice device) {
  SIM_DRIVER_CALL("cuDevicePrimaryCtxRelease");
  return valid_device(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult CUDAAPI context_get_current(CUcontext* context) {
  SIM_DRIVER_CALL("cuCtxGetCurrent");
  int device;
  if (const cudaError_t error = use_device(&device)) return driver(error);
  *context = context_of(device);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI context_set_current(CUcontext context) {
  SIM_DRIVER_CALL("cuCtxSetCurrent");
  return context == nullptr ? CUDA_SUCCESS : driver(set_device(static_cast<int>(reinterpret_cast<std::intptr_t>(context)) - 1));
}

CUresult CUDAAPI context_get_device(CUdevice* device) {
  SIM_DRIVER_CALL("cuCtxGetDevice");
  return driver(use_device(device));
}

CUresult CUDAAPI mem_get_info(size_t* free, size_t* total) {
  SIM_DRIVER_CALL("cuMemGetInfo");
  return driver(memory_info(free, total));
}

// Unlike the runtime's, the driver's functions refuse an empty request.
CUresult allocated(CUdeviceptr* address, Kind kind, std::size_t bytes) {
  return bytes == 0 ? CUDA_ERROR_INVALID_VALUE : driver(allocate(pointer(address), kind, bytes));
}

CUresult CUDAAPI mem_alloc(CUdeviceptr* address, size_t bytes) {
  SIM_DRIVER_CALL("cuMemAlloc");
  return allocated(address, linear, bytes);
}

CUresult CUDAAPI mem_alloc_managed(CUdeviceptr* address, size_t bytes, unsigned int) {
  SIM_DRIVER_CALL("cuMemAllocManaged");
  return allocated(address, managed, bytes);
}

CUresult CUDAAPI mem_alloc_pitch(CUdeviceptr* address, size_t* pitch, size_t width, size_t height, unsigned int) {
  SIM_DRIVER_CALL("cuMemAllocPitch");
  if (width == 0 || height == 0) return CUDA_ERROR_INVALID_VALUE;
  return driver(allocate_pitched(pointer(address), pitch, width, height));
}

CUresult CUDAAPI mem_free(CUdeviceptr address) {
  SIM_DRIVER_CALL("cuMemFree");
  return driver(release(pointer(address), freed_by_cuda_free));
}

CUresult CUDAAPI mem_alloc_async(CUdeviceptr* address, size_t bytes, CUstream) {
  SIM_DRIVER_CALL("cuMemAllocAsync");
  return bytes == 0 ? CUDA_ERROR_INVALID_VALUE : driver(allocate_from_pool(pointer(address), bytes, nullptr));
}

CUresult CUDAAPI mem_alloc_from_pool_async(CUdeviceptr* address, size_t bytes, CUmemoryPool pool, CUstream) {
  SIM_DRIVER_CALL("cuMemAllocFromPoolAsync");
  return bytes == 0 || pool == nullptr ? CUDA_ERROR_INVALID_VALUE : driver(allocate_from_pool(pointer(address), bytes, pool));
}

CUresult CUDAAPI mem_free_async(CUdeviceptr address, CUstream) {
  SIM_DRIVER_CALL("cuMemFreeAsync");
  return driver(release(pointer(address), linear | pooled));
}

CUresult CUDAAPI mem_alloc_host(void** address, size_t bytes) {
  SIM_DRIVER_CALL("cuMemAllocHost");
  return bytes == 0 ? CUDA_ERROR_INVALID_VALUE : driver(allocate(address, pinned, bytes));
}

CUresult CUDAAPI mem_host_alloc(void** address, size_t bytes, unsigned int) {
  SIM_DRIVER_CALL("cuMemHostAlloc");
  return bytes == 0 ? CUDA_ERROR_INVALID_VALUE : driver(allocate(address, pinned, bytes));
}

CUresult CUDAAPI mem_free_host(void* address) {
  SIM_DRIVER_CALL("cuMemFreeHost");
  return driver(release(address, pinned));
}

CUresult CUDAAPI mem_host_register(void* address, size_t bytes, unsigned int) {
  SIM_DRIVER_CALL("cuMemHostRegister");
  return driver(register_host(address, bytes));
}

CUresult CUDAAPI mem_host_unregister(void* address) {
  SIM_DRIVER_CALL("cuMemHostUnregister");
  return driver(unregister_host(address));
}

CUresult CUDAAPI mem_get_address_range(CUdeviceptr* base, size_t* size, CUdeviceptr address) {
  SIM_DRIVER_CALL("cuMemGetAddressRange");
  MappedRange range;
  if (const auto block = heap().around(pointer(address))) {
    range = {block->address, block->requested};
  } else if (const auto mapped = range_mapped_at(address)) {
    range = *mapped;
  } else {
    return CUDA_ERROR_NOT_FOUND;
  }
  if (base != nullptr) *base = range.address;
  if (size != nullptr) *size = range.size;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI memset_d32_async(CUdeviceptr address, unsigned int value, size_t count, CUstream) {
  SIM_DRIVER_CALL("cuMemsetD32Async");
  std::fill_n(static_cast<unsigned int*>(pointer(address)), count, value);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI stream_write_value32(CUstream, CUdeviceptr address, cuuint32_t value, unsigned int) {
  SIM_DRIVER_CALL("cuStreamWriteValue32");
  std::memcpy(pointer(address), &value, sizeof value);
  return CUDA_SUCCESS;
}

// Whatever its arguments: they are in registers, or the caller's to take off its stack.
CUresult CUDAAPI not_supported() { return CUDA_ERROR_NOT_SUPPORTED; }

struct EntryPoint {
  std::string_view name;
  void* function;
};

template <typename Function>
void* erase(Function* function) {
  return reinterpret_cast<void*>(function);
}

const EntryPoint entry_points[] = {
    {"cuInit", erase(init)},
    {"cuDriverGetVersion", erase(driver_get_version)},
    {"cuGetErrorString", erase(get_error_string)},
    {"cuDeviceGet", erase(device_get)},
    {"cuDeviceGetCount", erase(device_get_count)},
    {"cuDeviceGetAttribute", erase(device_get_attribute)},
    {"cuDevicePrimaryCtxGetState", erase(primary_context_state)},
    {"cuDevicePrimaryCtxRetain", erase(primary_context_retain)},
    {"cuDevicePrimaryCtxRelease", erase(primary_context_release)},
    {"cuCtxGetCurrent", erase(context_get_current)},
    {"cuCtxSetCurrent", erase(context_set_current)},
    {"cuCtxGetDevice", erase(context_get_device)},
    {"cuMemGetInfo", erase(mem_get_info)},
    {"cuMemAlloc", erase(mem_alloc)},
    {"cuMemAllocManaged", erase(mem_alloc_managed)},
    {"cuMemAllocPitch", erase(mem_alloc_pitch)},
    {"cuMemFree", erase(mem_free)},
    {"cuMemAllocAsync", erase(mem_alloc_async)},
    {"cuMemAllocFromPoolAsync", erase(mem_alloc_from_pool_async)},
    {"cuMemFreeAsync", erase(mem_free_async)},
    {"cuMemAllocHost", erase(mem_alloc_host)},
    {"cuMemHostAlloc", erase(mem_host_alloc)},
    {"cuMemFreeHost", erase(mem_free_host)},
    {"cuMemHostRegister", erase(mem_host_register)},
    {"cuMemHostUnregister", erase(mem_host_unregister)},
    {"cuMemGetAddressRange", erase(mem_get_address_range)},
    {"cuMemsetD32Async", erase(memset_d32_async)},
    {"cuStreamWriteValue32", erase(stream_write_value32)},
    {"cuMemAddressReserve", erase(mem_address_reserve)},
    {"cuMemAddressFree", erase(mem_address_free)},
    {"cuMemCreate", erase(mem_create)},
    {"cuMemRelease", erase(mem_release)},
    {"cuMemMap", erase(mem_map)},
    {"cuMemUnmap", erase(mem_unmap)},
    {"cuMemSetAccess", erase(mem_set_access)},
    {"cuMemGetAllocationGranularity", erase(mem_get_allocation_granularity)},
    {"cuMemExportToShareableHandle", erase(mem_export_to_shareable_handle)},
    {"cuMemImportFromShareableHandle", erase(mem_import_from_shareable_handle)},
    {"cuMemRetainAllocationHandle", erase(mem_retain_allocation_handle)},
    {"cuMemGetAllocationPropertiesFromHandle", erase(mem_get_allocation_properties_from_handle)},
    {"cuCtxFromGreenCtx", erase(not_supported)},
    {"cuCtxPopCurrent", erase(not_supported)},
    {"cuCtxPushCurrent", erase(not_supported)},
    {"cuGreenCtxCreate", erase(not_supported)},
    {"cuGreenCtxDestroy", erase(not_supported)},
    {"cuGreenCtxStreamCreate", erase(not_supported)},
    {"cuDevSmResourceSplitByCount", erase(not_supported)},
    {"cuDeviceGetDevResource", erase(not_supported)},
    {"cuDevResourceGenerateDesc", erase(not_supported)},
    {"cuMulticastAddDevice", erase(not_supported)},
    {"cuMulticastBindMem", erase(not_supported)},
    {"cuMulticastCreate", erase(not_supported)},
    {"cuMulticastUnbind", erase(not_supported)},
};

cudaError_t find(const char* symbol, void** function, cudaDriverEntryPointQueryResult* status) {
  if (symbol == nullptr || function == nullptr) return cudaErrorInvalidValue;
  std::string_view name = symbol;
  if (name.ends_with("_v2")) name.remove_suffix(3);
  const EntryPoint* end = std::end(entry_points);
  const EntryPoint* found = std::find_if(std::begin(entry_points), end, [&](const EntryPoint& entry) { return entry.name == name; });
  const bool known = found != end;
  *function = known ? found->function : nullptr;
  if (status != nullptr) *status = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

}  // namespace
}  // namespace sim

using namespace sim;

SIM_EXPORT cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long, cudaDriverEntryPointQueryResult* status) {
  SIM_CALL();
  return result(find(symbol, function, status));
}

SIM_EXPORT cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned int, unsigned long long,
                                                        cudaDriverEntryPointQueryResult* status) {
  SIM_CALL();
  return result(find(symbol, function, status));
}

// One of the two is deprecated, and its twin calls it.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
SIM_TWIN(cudaGetDriverEntryPoint_ptsz, cudaGetDriverEntryPoint,
         (const char* symbol, void** function, unsigned long long flags, cudaDriverEntryPointQueryResult* status), (symbol, function, flags, status))
SIM_TWIN(cudaGetDriverEntryPointByVersion_ptsz, cudaGetDriverEntryPointByVersion,
         (const char* symbol, void** function, unsigned int version, unsigned long long flags, cudaDriverEntryPointQueryResult* status),
         (symbol, function, version, flags, status))
