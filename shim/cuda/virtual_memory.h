// Physical memory behind the driver's virtual addresses (cuMemCreate, cuMemMap), as expandable segments use it.
//
// A handle's memory goes when the handle has been released as often as it was created and retained, and nothing is mapped to it any more.
// Thread-safe; one lock, for these calls are rare and slow.
#ifndef KOILA_SHIM_CUDA_VIRTUAL_MEMORY_H_
#define KOILA_SHIM_CUDA_VIRTUAL_MEMORY_H_

#include <map>
#include <mutex>
#include <optional>

#include "runtime/device_memory.h"
#include "runtime/fork_lock.h"
#include "shim/cuda/types.h"

namespace koila::cuda {

class VirtualMemory {
 public:
  void created(AllocationHandle handle, const Block& block);
  void retained(AllocationHandle handle);
  void mapped(DevicePointer address, AllocationHandle handle);

  // A reference to the handle's memory goes: its own, or that of each mapping that begins in the range. `last` is called with each block that goes.
  template <class F>
  void released(AllocationHandle handle, F&& last) {
    const std::lock_guard lock(mutex());
    if (const auto gone = drop(handle)) last(*gone);
  }
  template <class F>
  void unmapped(DevicePointer address, std::size_t bytes, F&& last) {
    const std::lock_guard lock(mutex());
    const auto begin = mappings_.lower_bound(address);
    const auto end = mappings_.lower_bound(address + bytes);
    for (auto it = begin; it != end; ++it) {
      if (const auto gone = drop(it->second)) last(*gone);
    }
    mappings_.erase(begin, end);
  }

 private:
  struct Physical {
    Block block;
    int references = 1;
  };

  std::optional<Block> drop(AllocationHandle handle);

  // There from the first call on: most processes that this library is loaded into have no such memory.
  static ForkLock& mutex() {
    static auto* mutex = new ForkLock;
    return *mutex;
  }

  std::map<AllocationHandle, Physical> physical_;
  std::map<DevicePointer, AllocationHandle> mappings_;
};

}  // namespace koila::cuda

#endif  // KOILA_SHIM_CUDA_VIRTUAL_MEMORY_H_
