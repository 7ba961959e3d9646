#include "torchglue/memory/cuda_allocator.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <dlfcn.h>
#include <link.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>

#include "torchglue/base/process.h"
#include "torchglue/compat/cuda_allocator.h"
#include "torchglue/memory/origin.h"
#include "torchglue/oom/allocation_failure.h"

namespace koila {

namespace {

using c10::CachingAllocator::StatType;
using c10::cuda::CUDACachingAllocator::CUDAAllocator;
using c10::cuda::CUDACachingAllocator::TraceEntry;

// libc10_cuda.so, which this library is not linked with: the CPU build of torch has none.
CUDAAllocator* find_allocator() {
  std::string path;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        const char* slash = info->dlpi_name == nullptr ? nullptr : std::strrchr(info->dlpi_name, '/');
        if (slash == nullptr || std::strcmp(slash, "/libc10_cuda.so") != 0) return 0;
        *static_cast<std::string*>(data) = info->dlpi_name;
        return 1;
      },
      &path);
  void* library = path.empty() ? nullptr : dlopen(path.c_str(), RTLD_NOLOAD | RTLD_LAZY);
  if (library == nullptr) return nullptr;
  auto* allocator = static_cast<std::atomic<CUDAAllocator*>*>(dlsym(library, "_ZN3c104cuda20CUDACachingAllocator9allocatorE"));
  return allocator == nullptr ? nullptr : allocator->load();
}

// Called under the allocator's lock: nothing of PyTorch's may be called here.
void on_trace(const TraceEntry& entry) {
  const auto bytes = static_cast<int64_t>(entry.size_);
  const auto address = static_cast<uintptr_t>(entry.addr_);
  if (entry.action_ == TraceEntry::ALLOC) process().runtime->on_tensor(entry.device_, address, bytes, origin_now(/*with_place=*/false));
  if (entry.action_ == TraceEntry::FREE_COMPLETED) process().runtime->on_tensor_gone(entry.device_, address, bytes);
}

void note_fragmentation(int64_t device, int64_t requested);

// Called without the lock, when all retries have failed.
void on_out_of_memory(int64_t device, size_t requested, size_t /*total*/, size_t /*free*/) {
  note_fragmentation(device, static_cast<int64_t>(requested));
  note_allocation_failure({static_cast<int>(device), static_cast<int64_t>(requested), process().runtime->live_bytes(static_cast<int>(device))});
}

// Tensors that were there before anybody looked; and what the device gave for them, where koila itself came late (an expandable segment is no one piece of memory, and
// goes uncounted).
void count_what_is_there(CUDAAllocator& allocator) {
  const bool came_late = __atomic_load_n(process().runtime->torch_uses_cuda, __ATOMIC_ACQUIRE) == 0;
  const auto held = snapshot_of(allocator);
  for (const auto& segment : held.segments) {
    if (came_late && !segment.is_expandable) process().runtime->on_earlier_segment(segment.device, segment.address, segment.total_size);
    uintptr_t address = segment.address;
    for (const auto& block : segment.blocks) {
      if (block.active) process().runtime->on_tensor(segment.device, address, static_cast<int64_t>(block.requested_size), {KOILA_SETUP, 0, 0});
      address += block.size;
    }
  }
}

void attach_to(CUDAAllocator& allocator) {
  const koila_runtime& runtime = *process().runtime;
  try {
    allocator.attachOutOfMemoryObserver(on_out_of_memory);
    // Between this and the tracker an allocation on another thread may be missed; the program has just begun.
    if (allocator.initialized()) count_what_is_there(allocator);
    allocator.attachAllocatorTraceTracker(on_trace);
  } catch (const std::exception&) {
    runtime.on_note(("tensors on CUDA devices are not counted one by one: the allocator in use, " + allocator.name() + ", takes no observers.").c_str());
  }
}

std::atomic<CUDAAllocator*> attached{nullptr};

// Whole blocks that nobody used are gone by then: what is cached still lies between others.
void note_fragmentation(int64_t device, int64_t requested) {
  const auto room = cuda_room(c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(device)));
  if (room && room->cached >= requested) process().runtime->on_fact(KOILA_FACT_FRAGMENTED_BYTES, room->cached);
}

// Going by the variables, of which the first is the older name.
bool expandable_segments() {
  for (const char* name : {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"}) {
    const char* value = std::getenv(name);
    if (value != nullptr && std::strstr(value, "expandable_segments:True") != nullptr) return true;
  }
  return false;
}

}  // namespace

void attach_cuda_allocator() {
  static std::atomic<bool> busy{false};
  if (attached.load(std::memory_order_acquire) != nullptr || busy.exchange(true)) return;
  if (CUDAAllocator* allocator = find_allocator(); allocator != nullptr && allocator->initialized()) {
    attach_to(*allocator);
    if (expandable_segments()) process().runtime->on_fact(KOILA_FACT_EXPANDABLE_SEGMENTS, 1);
    attached.store(allocator, std::memory_order_release);
    process().cuda_waits = false;
  }
  busy.store(false);
}

void release_cached_blocks(c10::Device device) {
  CUDAAllocator* allocator = attached.load(std::memory_order_acquire);
  if (device.is_cuda() && allocator != nullptr) allocator->emptyCache();
}

std::optional<CudaRoom> cuda_room(c10::Device device) {
  CUDAAllocator* allocator = attached.load(std::memory_order_acquire);
  if (!device.is_cuda() || allocator == nullptr) return std::nullopt;
  try {
    const auto stats = allocator->getDeviceStats(device.index());
    const auto all = static_cast<size_t>(StatType::AGGREGATE);
    const std::optional<int64_t> free = free_bytes_of(*allocator, device.index());
    if (!free) return std::nullopt;
    return CudaRoom{*free, stats.reserved_bytes[all].current - stats.allocated_bytes[all].current};
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

}  // namespace koila
