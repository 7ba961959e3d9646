// What one release of torch asks CUDA's caching allocator in one way, and another in another.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

namespace koila {

// What the allocator holds. Releases that can leave out the history of the blocks (2.12, not yet 2.10) are asked to.
template <class Allocator>
auto snapshot_of(Allocator& allocator) {
  if constexpr (requires { allocator.snapshot({0, 0}, false); }) {
    return allocator.snapshot({0, 0}, /*include_traces=*/false);
  } else {
    return allocator.snapshot({0, 0});
  }
}

// What the device itself has left. None: the allocator of this torch does not tell (2.8; 2.10 does).
template <class Allocator>
std::optional<int64_t> free_bytes_of(Allocator& allocator, c10::DeviceIndex device) {
  if constexpr (requires { allocator.getMemoryInfo(device); }) {
    return static_cast<int64_t>(allocator.getMemoryInfo(device).first);
  } else {
    return std::nullopt;
  }
}

}  // namespace koila
