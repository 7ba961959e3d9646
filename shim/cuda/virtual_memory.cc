#include "shim/cuda/virtual_memory.h"

namespace koila::cuda {

void VirtualMemory::created(AllocationHandle handle, const Block& block) {
  const std::lock_guard lock(mutex());
  physical_.insert_or_assign(handle, Physical{block, 1});
}

void VirtualMemory::retained(AllocationHandle handle) {
  const std::lock_guard lock(mutex());
  if (const auto it = physical_.find(handle); it != physical_.end()) ++it->second.references;
}

void VirtualMemory::mapped(DevicePointer address, AllocationHandle handle) {
  const std::lock_guard lock(mutex());
  const auto it = physical_.find(handle);
  if (it == physical_.end()) return;  // imported: another process has it on its account
  ++it->second.references;
  mappings_.insert_or_assign(address, handle);
}

std::optional<Block> VirtualMemory::drop(AllocationHandle handle) {
  const auto it = physical_.find(handle);
  if (it == physical_.end() || --it->second.references > 0) return std::nullopt;
  const Block block = it->second.block;
  physical_.erase(it);
  return block;
}

}  // namespace koila::cuda
