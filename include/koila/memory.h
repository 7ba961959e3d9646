// How much memory a device's tensors take, and what of it is for what.
//
//     const koila::Memory now = koila::memory(torch::kCPU);
//     if (now.by_category) std::cout << now.by_category->activations << " bytes of activations\n";
//
// With koila, every figure of the CPU and of CUDA devices. Without it PyTorch's caching allocator is asked, where the device has one that is in use, and what
// that does not know is std::nullopt; of the CPU nothing is known then.
//
// Threads: any. Each figure is exact; together they are of one moment only while no other thread allocates. C++17; header-only over LibTorch.
#ifndef KOILA_MEMORY_H_
#define KOILA_MEMORY_H_

#include <c10/core/Device.h>

#include <algorithm>
#include <cstdint>
#include <optional>

#include "koila/category.h"
#include "koila/detail/abi.h"
#include "koila/detail/allocator_tracks.h"
#include "koila/detail/memory.h"

namespace koila {

struct Memory {
  enum class Source { kNobody, kAllocator, kKoila };

  c10::Device device = c10::DeviceType::CPU;
  Source source = Source::kNobody;  // who told

  // Bytes. With koila tensors count with what they asked for, else with what the allocator gave them, which is up to a block more.
  std::optional<std::int64_t> live;           // of tensors
  std::optional<std::int64_t> peak;           // the highest of that since reset_peak()
  std::optional<std::int64_t> run_peak;       // and of the whole run
  std::optional<std::int64_t> reserved;       // what the device gave, with what the caching allocator keeps for later. On the CPU the same as live
  std::optional<std::int64_t> reserved_peak;  // the highest of that since reset_peak()
  std::optional<std::int64_t> budget;         // what `reserved` is held to; 0: no budget
  std::optional<std::int64_t> outside;        // of the device's tensors, kept by koila outside its memory for now
  std::optional<std::int64_t> outside_peak;   // the most of that in the whole run
  std::optional<ByCategory> by_category;      // of `live`

  std::optional<std::int64_t> allocations;  // of tensors' memory so far: a number
};

// Of a device; without one, of the current device of the accelerator in use, or of the CPU.
inline Memory memory(std::optional<c10::Device> device = std::nullopt) {
  Memory now;
  now.device = detail::with_index(device ? *device : detail::current_device());
  const std::optional<int> number = detail::device_number(now.device);
  const detail::Abi& koila = detail::Abi::get();
  koila_memory_figures figures = {};
  figures.size = sizeof figures;
  if (koila && number && koila.memory(*number, &figures) == 0) {
    now.source = Memory::Source::kKoila;
    now.live = figures.live_bytes;
    now.peak = figures.peak_bytes;
    now.run_peak = figures.run_peak_bytes;
    now.reserved = figures.reserved_bytes;
    now.reserved_peak = figures.reserved_peak_bytes;
    now.budget = figures.budget_bytes;
    now.outside = figures.outside_bytes;
    now.outside_peak = figures.outside_peak_bytes;
    const std::int64_t* of = figures.by_category;
    now.by_category = ByCategory{of[KOILA_PARAMETERS],  of[KOILA_GRADIENTS], of[KOILA_OPTIMIZER_STATE], of[KOILA_INPUTS],
                                 of[KOILA_ACTIVATIONS], of[KOILA_WORKSPACE], of[KOILA_OTHER]};
    now.allocations = figures.allocations;
  } else if (const auto stats = detail::allocator_stats(now.device)) {
    constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    now.source = Memory::Source::kAllocator;
    now.live = stats->allocated_bytes[kAll].current;
    const detail::AllocatorTracks::Peak before = detail::AllocatorTracks::before_the_mark(now.device);
    now.peak = std::max(stats->allocated_bytes[kAll].peak, before.allocated);
    now.reserved = stats->reserved_bytes[kAll].current;
    now.reserved_peak = std::max(stats->reserved_bytes[kAll].peak, before.reserved);
    now.allocations = stats->allocation[kAll].allocated;
  }
  return now;
}

// Memory::peak starts again from what is alive; both the allocator's figure, which others may read, and koila's. A ScopedTrack needs none of this.
inline void reset_peak(std::optional<c10::Device> device = std::nullopt) {
  const c10::Device where = detail::with_index(device ? *device : detail::current_device());
  const std::optional<int> number = detail::device_number(where);
  if (const detail::Abi& koila = detail::Abi::get(); koila && number) koila.reset_peak(*number);
  detail::AllocatorTracks::reset_peak(where);
}

}  // namespace koila

#endif  // KOILA_MEMORY_H_
