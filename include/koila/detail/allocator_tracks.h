// What PyTorch's caching allocator tells of a device, and peaks of its memory for any number of stretches of the program. Not for programs to call.
#ifndef KOILA_DETAIL_ALLOCATOR_TRACKS_H_
#define KOILA_DETAIL_ALLOCATOR_TRACKS_H_

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Device.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "koila/detail/abi.h"
#include "koila/detail/memory.h"

namespace koila::detail {

// Nothing where there is no such allocator in use, and where it does not tell.
inline std::optional<c10::CachingDeviceAllocator::DeviceStats> allocator_stats(c10::Device device) {
  c10::DeviceAllocator* allocator = device_allocator(device.type());
  if (allocator == nullptr) return std::nullopt;
  try {
    return allocator->getDeviceStats(with_index(device).index());
  } catch (const c10::Error&) {
    return std::nullopt;  // one that does not tell
  }
}

// Note [Many peaks over one mark]
// A caching allocator has one mark for its peak, that anybody may reset. Whenever a track begins, ends or is asked, what the mark has seen since the last
// time counts for every track that is open, and the mark starts again. What it would have shown without that is kept.
class AllocatorTracks {
 public:
  struct Track {
    c10::Device device;
    std::int64_t peak = 0;
  };

  // Null where no allocator counts. `live` becomes what is alive.
  static Track* begin(c10::Device device, std::int64_t& live) {
    const std::lock_guard<std::mutex> lock(all().mutex);
    const auto now = take(device);
    if (!now) return nullptr;
    live = *now;
    auto* track = new Track{device, live};
    all().open.push_back(track);
    return track;
  }
  static std::int64_t peak(Track* track) {
    const std::lock_guard<std::mutex> lock(all().mutex);
    take(track->device);
    return track->peak;
  }
  static std::int64_t end(Track* track) {
    const std::lock_guard<std::mutex> lock(all().mutex);
    take(track->device);
    const std::int64_t peak = track->peak;
    auto& open = all().open;
    open.erase(std::find(open.begin(), open.end(), track));
    delete track;
    return peak;
  }

  // The highest since reset_peak() that the mark does not show any more, for a track has made it start again. Asking changes nothing.
  struct Peak {
    std::int64_t allocated = 0;
    std::int64_t reserved = 0;
  };
  static Peak before_the_mark(c10::Device device) {
    const std::lock_guard<std::mutex> lock(all().mutex);
    return mark(device);
  }
  static void reset_peak(c10::Device device) {
    const std::lock_guard<std::mutex> lock(all().mutex);
    take(device);
    mark(device) = {};  // the next look sees what is alive by now
  }

 private:
  struct All {
    std::mutex mutex;
    std::vector<Track*> open;
    std::vector<std::pair<c10::Device, Peak>> marks;
  };
  static All& all() {
    static All* all = new All;  // never destroyed: a thread may outlive the statics
    return *all;
  }

  static Peak& mark(c10::Device device) {
    auto& marks = all().marks;
    const auto found = std::find_if(marks.begin(), marks.end(), [&](const auto& m) { return m.first == device; });
    return found != marks.end() ? found->second : marks.emplace_back(device, Peak()).second;
  }

  // Returns what is alive; nothing where that is not told.
  static std::optional<std::int64_t> take(c10::Device device) {
    constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    const auto stats = allocator_stats(device);
    if (!stats) return std::nullopt;
    for (Track* track : all().open) {
      if (track->device == device) track->peak = std::max(track->peak, stats->allocated_bytes[kAll].peak);
    }
    Peak& peak = mark(device);
    peak.allocated = std::max(peak.allocated, stats->allocated_bytes[kAll].peak);
    peak.reserved = std::max(peak.reserved, stats->reserved_bytes[kAll].peak);
    try {
      device_allocator(device.type())->resetPeakStats(device.index());
    } catch (const c10::Error&) {
      return std::nullopt;
    }
    return stats->allocated_bytes[kAll].current;
  }
};

}  // namespace koila::detail

#endif  // KOILA_DETAIL_ALLOCATOR_TRACKS_H_
