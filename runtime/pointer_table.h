// Which block of memory lies at an address.
//
// Thread-safe. The table is cut into shards by address, each behind a lock of its own that is held for a look-up and nothing else.
#ifndef KOILA_RUNTIME_POINTER_TABLE_H_
#define KOILA_RUNTIME_POINTER_TABLE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/spin_lock.h"

namespace koila {

struct Block {
  std::int64_t bytes = 0;
  std::int16_t place = 0;    // device number, or a pseudo-device (abi.h)
  std::uint16_t source = 0;  // number in DeviceMemory
};

class PointerTable {
 public:
  PointerTable();

  // False when there is a block at that address already; then nothing changes.
  bool insert(std::uintptr_t address, const Block& block);

  // Takes the block out. Nothing when there is none.
  std::optional<Block> take(std::uintptr_t address);

  // Takes out every block that `which` accepts.
  using Taken = std::vector<std::pair<std::uintptr_t, Block>>;
  Taken take_all(const std::function<bool(const Block&)>& which);

  std::int64_t size() const;

 private:
  static constexpr std::size_t kShards = 64;

  struct Entry {
    std::uintptr_t address = 0;  // 0: free
    Block block;
  };

  // Open addressing, linear probing; what follows a removed entry moves up, so that there are no tombstones.
  struct alignas(64) Shard {
    mutable SpinLock lock;
    std::vector<Entry> entries;
    std::size_t used = 0;

    std::size_t slot_of(std::uintptr_t address) const;  // where it is, or the free entry where it would be
    void grow();
    void remove(std::size_t slot);
  };

  static std::uint64_t hash(std::uintptr_t address);
  Shard& shard_of(std::uintptr_t address) { return shards_[hash(address) >> 58]; }

  Shard shards_[kShards];
};

}  // namespace koila

#endif  // KOILA_RUNTIME_POINTER_TABLE_H_
