// The driver's virtual memory: address ranges, physical memory, and maps from one to the other. All physical memory is one sparse file, so a
// handle may be mapped twice and both maps show the same bytes. Bytes count against the device from cuMemCreate until the last handle is
// released and the last map is gone.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <optional>

namespace sim {

constexpr std::size_t vmm_granularity = std::size_t{2} << 20;

CUresult CUDAAPI mem_address_reserve(CUdeviceptr* address, size_t size, size_t alignment, CUdeviceptr hint, unsigned long long flags);
CUresult CUDAAPI mem_address_free(CUdeviceptr address, size_t size);
CUresult CUDAAPI mem_create(CUmemGenericAllocationHandle* handle, size_t size, const CUmemAllocationProp* properties, unsigned long long flags);
CUresult CUDAAPI mem_release(CUmemGenericAllocationHandle handle);
CUresult CUDAAPI mem_map(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags);
CUresult CUDAAPI mem_unmap(CUdeviceptr address, size_t size);
CUresult CUDAAPI mem_set_access(CUdeviceptr address, size_t size, const CUmemAccessDesc* wanted, size_t count);
CUresult CUDAAPI mem_get_allocation_granularity(size_t* bytes, const CUmemAllocationProp* properties, CUmemAllocationGranularity_flags flags);
CUresult CUDAAPI mem_export_to_shareable_handle(void* shared, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                                                unsigned long long flags);
CUresult CUDAAPI mem_import_from_shareable_handle(CUmemGenericAllocationHandle* handle, void* shared, CUmemAllocationHandleType type);
CUresult CUDAAPI mem_retain_allocation_handle(CUmemGenericAllocationHandle* handle, void* address);
CUresult CUDAAPI mem_get_allocation_properties_from_handle(CUmemAllocationProp* properties, CUmemGenericAllocationHandle handle);

struct MappedRange {
  CUdeviceptr address;
  std::size_t size;
};
std::optional<MappedRange> range_mapped_at(CUdeviceptr address);
std::optional<int> device_mapped_at(const void* address);

// Unmaps and frees all physical memory of the device.
void release_physical_memory(int device);
void release_address_ranges();

}  // namespace sim
