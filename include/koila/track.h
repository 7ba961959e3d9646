// What a part of a program does to a device's memory:
//
//     koila::ScopedTrack track(torch::kCUDA);
//     model->forward(x);
//     std::cout << track.peak().value_or(0) - track.at_begin().value_or(0) << " bytes on top, " << track.growth().value_or(0) << " still there\n";
//
// With koila on the CPU and CUDA devices; without it wherever PyTorch's caching allocator counts. Any number at once, within and across each other.
// C++17; header-only over LibTorch.
#ifndef KOILA_TRACK_H_
#define KOILA_TRACK_H_

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "koila/detail/abi.h"
#include "koila/detail/allocator_tracks.h"
#include "koila/detail/memory.h"

namespace koila {

// From its making until stop() or its end. Bytes of tensors, as Memory::live has them; std::nullopt where nobody counts: on the CPU without koila, and on a device that
// is not in use yet.
//
// Without koila it resets the peak that the allocator keeps (torch.cuda.max_memory_allocated), and when others than koila::reset_peak() reset it, a peak before that may be
// missed.
// Threads: what all threads of the process do is counted; one object is for one thread at a time.
class ScopedTrack {
 public:
  // Without a device: the current one of the accelerator in use, or the CPU.
  explicit ScopedTrack(std::optional<c10::Device> device = std::nullopt)
      : device_(detail::with_index(device ? *device : detail::current_device())), number_(detail::device_number(device_)) {
    const detail::Abi& koila = detail::Abi::get();
    if (koila && number_) koilas_ = koila.begin_track(*number_);
    if (koilas_ != 0) {
      at_begin_ = live();
    } else if (std::int64_t live = 0; (allocators_ = detail::AllocatorTracks::begin(device_, live)) != nullptr) {
      at_begin_ = live;
    }
  }
  ~ScopedTrack() {
    if (koilas_ != 0) detail::Abi::get().end_track(koilas_);
    if (allocators_ != nullptr) detail::AllocatorTracks::end(allocators_);
  }
  ScopedTrack(const ScopedTrack&) = delete;
  ScopedTrack& operator=(const ScopedTrack&) = delete;

  c10::Device device() const { return device_; }
  // What was alive when it began.
  std::optional<std::int64_t> at_begin() const { return at_begin_; }
  // The most that was alive since, or until stop().
  std::optional<std::int64_t> peak() const {
    if (koilas_ != 0) return detail::Abi::get().track_peak(koilas_);
    if (allocators_ != nullptr) return detail::AllocatorTracks::peak(allocators_);
    return peak_;
  }
  // What is alive now, or was at stop(), less what was alive when it began; below 0 where more went than came.
  std::optional<std::int64_t> growth() const {
    const auto now = is_open() ? live() : at_end_;
    return at_begin_ && now ? std::optional<std::int64_t>(*now - *at_begin_) : std::nullopt;
  }

  // The figures stay what they are now.
  void stop() {
    if (!is_open()) return;
    at_end_ = live();
    if (koilas_ != 0) peak_ = detail::Abi::get().end_track(std::exchange(koilas_, 0));
    if (allocators_ != nullptr) peak_ = detail::AllocatorTracks::end(std::exchange(allocators_, nullptr));
  }

 private:
  bool is_open() const { return koilas_ != 0 || allocators_ != nullptr; }
  // Of who counts for this track.
  std::optional<std::int64_t> live() const {
    if (koilas_ != 0) {
      koila_memory_figures figures = {};
      figures.size = sizeof figures;
      if (detail::Abi::get().memory(*number_, &figures) == 0) return figures.live_bytes;
      return std::nullopt;
    }
    constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    const auto stats = detail::allocator_stats(device_);
    return stats ? std::optional<std::int64_t>(stats->allocated_bytes[kAll].current) : std::nullopt;
  }

  const c10::Device device_;
  const std::optional<int> number_;
  std::uint64_t koilas_ = 0;
  detail::AllocatorTracks::Track* allocators_ = nullptr;
  std::optional<std::int64_t> at_begin_, at_end_, peak_;
};

}  // namespace koila

#endif  // KOILA_TRACK_H_
