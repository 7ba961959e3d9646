// Values in a file that one process writes while it may be killed at any instruction, and that others read meanwhile or afterwards.
//
// Each value stands beside a check of its bytes: who reads one that is half written, never written or damaged sees that it is none. What is
// written over is there twice, and the older one is written over: of a value that was there before, one is whole at any time.
//
// Writers of one value take turns by a lock of theirs. Readers have a copy of the file. T is plain data, of any bytes.
#ifndef KOILA_RUNTIME_RECORD_CHECKED_H_
#define KOILA_RUNTIME_RECORD_CHECKED_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace koila::record {

// Never 0, which is what a file holds where nothing was written. `bytes` is a multiple of 8.
inline std::uint64_t check_of(const void* data, std::size_t bytes) {
  std::uint64_t check = 0x9e3779b97f4a7c15 + bytes;
  const char* from = static_cast<const char*>(data);
  for (std::size_t i = 0; i < bytes; i += 8) {
    std::uint64_t word;
    std::memcpy(&word, from + i, 8);
    check = (check ^ word) * 0xff51afd7ed558ccd;
    check ^= check >> 32;
  }
  return check != 0 ? check : 1;
}

template <class T>
struct Checked {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % 8 == 0 && alignof(T) <= 8);

  std::uint64_t check = 0;
  T value;

  void write(const T& from) {
    // The bytes that are checked are the bytes that are written, holes between members and all.
    alignas(8) char bytes[sizeof(T)];
    std::memcpy(bytes, &from, sizeof(T));
    __atomic_store_n(&check, 0, __ATOMIC_RELAXED);
    std::atomic_thread_fence(std::memory_order_release);
    std::memcpy(static_cast<void*>(&value), bytes, sizeof(T));
    __atomic_store_n(&check, check_of(bytes, sizeof(T)), __ATOMIC_RELEASE);
  }

  // Never written, or cut off in the middle of that.
  bool is_blank() const { return check == 0; }
  bool is_whole() const { return check == check_of(&value, sizeof(T)); }
  bool is_damaged() const { return !is_blank() && !is_whole(); }
};

template <class T>
struct Twin {
  struct Numbered {
    std::uint64_t number = 0;
    T value;
  };
  Checked<Numbered> of[2];

  void write(const T& from) {
    const std::uint64_t first = of[0].value.number, second = of[1].value.number;
    Numbered next;
    next.number = (first > second ? first : second) + 1;
    next.value = from;
    of[first > second ? 1 : 0].write(next);
  }

  bool is_blank() const { return of[0].is_blank() && of[1].is_blank(); }
  bool is_damaged() const { return of[0].is_damaged() || of[1].is_damaged(); }
  // The latest; null where there is none.
  const T* read() const {
    const bool first = of[0].is_whole(), second = of[1].is_whole();
    if (!first && !second) return nullptr;
    if (first && second) return &of[of[0].value.number > of[1].value.number ? 0 : 1].value.value;
    return &of[first ? 0 : 1].value.value;
  }
};

// A list that grows, and that is now and then written anew: then into the other of two places.
template <class T, std::size_t N>
struct List {
  static constexpr std::size_t kMost = N;
  struct Extent {
    std::uint64_t place = 0;
    std::uint64_t count = 0;
  };
  Twin<Extent> extent;
  Checked<T> of[2][N];

  Extent now() const {
    const Extent* found = extent.read();
    return found != nullptr && found->place < 2 && found->count <= N ? *found : Extent{};
  }
};

// Entries that are written over one by one.
template <class T, std::size_t N>
struct Table {
  static constexpr std::size_t kMost = N;
  Twin<T> of[N];
};

}  // namespace koila::record

#endif  // KOILA_RUNTIME_RECORD_CHECKED_H_
