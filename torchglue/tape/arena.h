// Memory for many small things that come one after another and go all at once.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace koila {

// Gives memory out in order, from chunks that stay: after the first steps nothing is asked of the heap. What lies in it stays where it is until
// reset(), which calls no destructors.
class Arena {
 public:
  // Room for `count` of T, not yet constructed.
  template <class T>
  T* room_for(size_t count) {
    static_assert(alignof(T) <= kAlignment);
    return static_cast<T*>(take((count * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment));
  }

  template <class T>
  std::span<T> copy_of(const std::vector<T>& things) {
    return copy_of(std::span<const T>(things));
  }
  template <class T>
  std::span<T> copy_of(std::span<const T> things) {
    static_assert(std::is_trivially_copyable_v<T>);
    T* room = room_for<T>(things.size());
    std::uninitialized_copy(things.begin(), things.end(), room);
    return {room, things.size()};
  }

  // Nothing lies in it any more. It keeps its memory.
  void reset() {
    chunk_ = 0;
    used_ = 0;
  }

 private:
  static constexpr size_t kAlignment = 16;
  static constexpr size_t kChunk = size_t{32} << 10;

  struct Chunk {
    std::unique_ptr<std::byte[]> memory;
    size_t size = 0;
  };

  void* take(size_t bytes) {
    while (chunk_ < chunks_.size() && used_ + bytes > chunks_[chunk_].size) {
      ++chunk_;
      used_ = 0;
    }
    if (chunk_ == chunks_.size()) {
      const size_t size = bytes > kChunk ? bytes : kChunk;
      chunks_.push_back({std::make_unique_for_overwrite<std::byte[]>(size), size});
    }
    void* room = chunks_[chunk_].memory.get() + used_;
    used_ += bytes;
    return room;
  }

  std::vector<Chunk> chunks_;
  size_t chunk_ = 0;  // that is being filled
  size_t used_ = 0;   // of it, bytes
};

}  // namespace koila
