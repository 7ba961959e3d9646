#include "tests/cuda/sim/vmm.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include "tests/cuda/sim/call.h"
#include "tests/cuda/sim/devices.h"
#include "tests/cuda/sim/heap.h"

namespace sim {
namespace {

struct Physical {
  CUmemAllocationProp properties{};
  std::size_t size = 0;
  off_t offset = 0;
  int handles = 1;
  int maps = 0;
};

struct Mapping {
  std::size_t size;
  CUmemGenericAllocationHandle handle;
};

struct Vmm {
  std::mutex mutex;
  int file = -1;
  off_t file_end = 0;
  CUmemGenericAllocationHandle last_handle = 0;
  std::unordered_map<CUmemGenericAllocationHandle, Physical> physical;
  std::map<std::size_t, std::vector<off_t>> holes;
  std::map<CUdeviceptr, Mapping> mappings;
  std::map<CUdeviceptr, std::size_t> reserved;

  bool open() {
    constexpr off_t sparse_size = off_t{1} << 44;
    if (file >= 0) return true;
    file = memfd_create("simulated device memory", MFD_CLOEXEC);
    return file >= 0 && ftruncate(file, sparse_size) == 0;
  }

  auto mapping_around(CUdeviceptr address) {
    auto after = mappings.upper_bound(address);
    if (after == mappings.begin()) return mappings.end();
    auto before = std::prev(after);
    return address - before->first < before->second.size ? before : mappings.end();
  }

  bool is_reserved(CUdeviceptr address, std::size_t size) const {
    auto after = reserved.upper_bound(address);
    if (after == reserved.begin()) return false;
    auto before = std::prev(after);
    return address - before->first <= before->second && size <= before->second - (address - before->first);
  }

  // Whether whole mappings, one beside the other, make up the range.
  bool is_mapped(CUdeviceptr address, std::size_t size) const {
    const CUdeviceptr end = address + size;
    for (auto at = mappings.find(address); at != mappings.end() && at->first == address; ++at) {
      address += at->second.size;
      if (address >= end) return address == end;
    }
    return false;
  }

  void drop_if_unused(CUmemGenericAllocationHandle handle) {
    auto found = physical.find(handle);
    Physical& memory = found->second;
    if (memory.handles > 0 || memory.maps > 0) return;
    fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, memory.offset, static_cast<off_t>(memory.size));
    holes[memory.size].push_back(memory.offset);
    heap().discharge(memory.properties.location.id, memory.size);
    physical.erase(found);
  }

  auto unmap(std::map<CUdeviceptr, Mapping>::iterator at) {
    mmap(reinterpret_cast<void*>(at->first), at->second.size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    const CUmemGenericAllocationHandle handle = at->second.handle;
    --physical.at(handle).maps;
    at = mappings.erase(at);
    drop_if_unused(handle);
    return at;
  }
};

Vmm& vmm() {
  static Vmm& leaked = *new Vmm;
  return leaked;
}

bool whole(std::size_t size) { return size != 0 && size % vmm_granularity == 0; }

}  // namespace

CUresult CUDAAPI mem_address_reserve(CUdeviceptr* address, size_t size, size_t alignment, CUdeviceptr, unsigned long long) {
  SIM_DRIVER_CALL("cuMemAddressReserve");
  if (address == nullptr || !whole(size) || (alignment & (alignment - 1)) != 0) return CUDA_ERROR_INVALID_VALUE;
  const std::size_t to = std::max(alignment, vmm_granularity);
  if (size > (std::size_t{1} << 46) || to > (std::size_t{1} << 46)) return CUDA_ERROR_OUT_OF_MEMORY;
  void* raw = mmap(nullptr, size + to, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  const auto start = reinterpret_cast<CUdeviceptr>(raw);
  const CUdeviceptr aligned = (start + to - 1) / to * to;
  if (aligned != start) munmap(raw, aligned - start);
  if (start + to != aligned) munmap(reinterpret_cast<void*>(aligned + size), start + to - aligned);
  const std::lock_guard lock(vmm().mutex);
  vmm().reserved[aligned] = size;
  *address = aligned;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI mem_address_free(CUdeviceptr address, size_t size) {
  SIM_DRIVER_CALL("cuMemAddressFree");
  const std::lock_guard lock(vmm().mutex);
  auto found = vmm().reserved.find(address);
  if (found == vmm().reserved.end() || found->second != size) return CUDA_ERROR_INVALID_VALUE;
  auto mapped = vmm().mappings.lower_bound(address);
  if (mapped != vmm().mappings.end() && mapped->first < address + size) return CUDA_ERROR_INVALID_VALUE;
  vmm().reserved.erase(found);
  munmap(reinterpret_cast<void*>(address), size);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI mem_create(CUmemGenericAllocationHandle* handle, size_t size, const CUmemAllocationProp* properties, unsigned long long) {
  SIM_DRIVER_CALL("cuMemCreate");
  if (handle == nullptr || properties == nullptr || !whole(size)) return CUDA_ERROR_INVALID_VALUE;
  if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
  if (!valid_device(properties->location.id)) return CUDA_ERROR_INVALID_DEVICE;
  const std::lock_guard lock(vmm().mutex);
  if (!vmm().open()) return CUDA_ERROR_OPERATING_SYSTEM;
  if (!heap().charge(properties->location.id, size)) return CUDA_ERROR_OUT_OF_MEMORY;
  Physical memory{*properties, size};
  if (auto& hole = vmm().holes[size]; !hole.empty()) {
    memory.offset = hole.back();
    hole.pop_back();
  } else {
    memory.offset = vmm().file_end;
    vmm().file_end += static_cast<off_t>(size);
  }
  *handle = ++vmm().last_handle;
  vmm().physical.emplace(*handle, memory);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI mem_release(CUmemGenericAllocationHandle handle) {
  SIM_DRIVER_CALL("cuMemRelease");
  const std::lock_guard lock(vmm().mutex);
  auto found = vmm().physical.find(handle);
  if (found == vmm().physical.end() || found->second.handles == 0) return CUDA_ERROR_INVALID_VALUE;
  --found->second.handles;
  vmm().drop_if_unused(handle);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI mem_map(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long) {
  SIM_DRIVER_CALL("cuMemMap");
  const std::lock_guard lock(vmm().mutex);
  auto found = vmm().physical.find(handle);
  if (found == vmm().physical.end() || found->second.handles == 0) return CUDA_ERROR_INVALID_VALUE;
  Physical& memory = found->second;
  if (!whole(size) || address % vmm_granularity != 0 || offset % vmm_granularity != 0) return CUDA_ERROR_INVALID_VALUE;
  if (offset > memory.size || size > memory.size - offset || !vmm().is_reserved(address, size)) return CUDA_ERROR_INVALID_VALUE;
  auto next = vmm().mappings.lower_bound(address);
  if (vmm().mapping_around(address) != vmm().mappings.end() || (next != vmm().mappings.end() && next->first < address + size)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const off_t at = memory.offset + static_cast<off_t>(offset);
  void* mapped = mmap(reinterpret_cast<void*>(address), size, PROT_NONE, MAP_SHARED | MAP_FIXED, vmm().file, at);
  if (mapped == MAP_FAILED) return CUDA_ERROR_OPERATING_SYSTEM;
  vmm().mappings[address] = {size, handle};
  ++memory.maps;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI mem_unmap(CUdeviceptr address, size_t size) {
  SIM_DRIVER_CALL("cuMemUnmap");
  const std::lock_guard lock(vmm().mutex);
  if (!vmm().is_mapped(address, size)) return CUDA_ERROR_INVALID_VALUE;
  for (auto at = vmm().mappings.find(address); at != vmm().mappings.end() && at->first < address + size;) at = vmm().unmap(at);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI mem_set_access(CUdeviceptr address, size_t size, const CUmemAccessDesc* wanted, size_t count) {
  SIM_DRIVER_CALL("cuMemSetAccess");
  if (wanted == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  int protection = PROT_NONE;
  for (std::size_t i = 0; i < count; ++i) {
    if (wanted[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE && !valid_device(wanted[i].location.id)) return CUDA_ERROR_INVALID_DEVICE;
    if (wanted[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE) protection |= PROT_READ;
    if (wanted[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE) protection |= PROT_WRITE;
  }
  const std::lock_guard lock(vmm().mutex);
  if (!vmm().is_mapped(address, size)) return CUDA_ERROR_INVALID_VALUE;
  return mprotect(reinterpret_cast<void*>(address), size, protection) == 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

CUresult CUDAAPI mem_get_allocation_granularity(size_t* bytes, const CUmemAllocationProp* properties, CUmemAllocationGranularity_flags) {
  SIM_DRIVER_CALL("cuMemGetAllocationGranularity");
  if (bytes == nullptr || properties == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *bytes = vmm_granularity;
  return CUDA_SUCCESS;
}

// A file that holds the handle's number: it can be passed around and closed as the real one, but means something in this process only.
CUresult CUDAAPI mem_export_to_shareable_handle(void* shared, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                                                unsigned long long) {
  SIM_DRIVER_CALL("cuMemExportToShareableHandle");
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  const std::lock_guard lock(vmm().mutex);
  if (shared == nullptr || !vmm().physical.contains(handle)) return CUDA_ERROR_INVALID_VALUE;
  const int file = memfd_create("simulated shareable handle", MFD_CLOEXEC);
  if (file < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  if (write(file, &handle, sizeof handle) != sizeof handle) {
    close(file);
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  *static_cast<int*>(shared) = file;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI mem_import_from_shareable_handle(CUmemGenericAllocationHandle* handle, void* shared, CUmemAllocationHandleType type) {
  SIM_DRIVER_CALL("cuMemImportFromShareableHandle");
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  CUmemGenericAllocationHandle number = 0;
  const int file = static_cast<int>(reinterpret_cast<std::intptr_t>(shared));
  if (handle == nullptr || pread(file, &number, sizeof number, 0) != sizeof number) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(vmm().mutex);
  auto found = vmm().physical.find(number);
  if (found == vmm().physical.end()) return CUDA_ERROR_INVALID_VALUE;
  ++found->second.handles;
  *handle = number;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI mem_retain_allocation_handle(CUmemGenericAllocationHandle* handle, void* address) {
  SIM_DRIVER_CALL("cuMemRetainAllocationHandle");
  const std::lock_guard lock(vmm().mutex);
  auto found = vmm().mapping_around(reinterpret_cast<CUdeviceptr>(address));
  if (handle == nullptr || found == vmm().mappings.end()) return CUDA_ERROR_INVALID_VALUE;
  *handle = found->second.handle;
  ++vmm().physical.at(*handle).handles;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI mem_get_allocation_properties_from_handle(CUmemAllocationProp* properties, CUmemGenericAllocationHandle handle) {
  SIM_DRIVER_CALL("cuMemGetAllocationPropertiesFromHandle");
  const std::lock_guard lock(vmm().mutex);
  auto found = vmm().physical.find(handle);
  if (properties == nullptr || found == vmm().physical.end()) return CUDA_ERROR_INVALID_VALUE;
  *properties = found->second.properties;
  return CUDA_SUCCESS;
}

std::optional<MappedRange> range_mapped_at(CUdeviceptr address) {
  const std::lock_guard lock(vmm().mutex);
  auto found = vmm().mapping_around(address);
  if (found == vmm().mappings.end()) return std::nullopt;
  return MappedRange{found->first, found->second.size};
}

std::optional<int> device_mapped_at(const void* address) {
  const std::lock_guard lock(vmm().mutex);
  auto found = vmm().mapping_around(reinterpret_cast<CUdeviceptr>(address));
  if (found == vmm().mappings.end()) return std::nullopt;
  return vmm().physical.at(found->second.handle).properties.location.id;
}

void release_physical_memory(int device) {
  const std::lock_guard lock(vmm().mutex);
  std::vector<CUmemGenericAllocationHandle> gone;
  for (auto& [handle, memory] : vmm().physical) {
    if (memory.properties.location.id == device) gone.push_back(handle);
  }
  for (auto at = vmm().mappings.begin(); at != vmm().mappings.end();) {
    const bool mine = vmm().physical.at(at->second.handle).properties.location.id == device;
    at = mine ? vmm().unmap(at) : std::next(at);
  }
  for (const CUmemGenericAllocationHandle handle : gone) {
    if (auto found = vmm().physical.find(handle); found != vmm().physical.end()) {
      found->second.handles = 0;
      vmm().drop_if_unused(handle);
    }
  }
}

void release_address_ranges() {
  const std::lock_guard lock(vmm().mutex);
  for (const auto& [address, size] : vmm().reserved) munmap(reinterpret_cast<void*>(address), size);
  vmm().reserved.clear();
}

}  // namespace sim
