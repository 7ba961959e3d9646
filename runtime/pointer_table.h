// What lies at an address.
//
// Thread-safe. The table is cut into shards by address, each behind a lock of its own that is held for a look-up and nothing else.
#ifndef KOILA_RUNTIME_POINTER_TABLE_H_
#define KOILA_RUNTIME_POINTER_TABLE_H_

#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/spin_lock.h"

namespace koila {

// Value: small and trivially copyable, for it is moved about under a lock.
template <class Value>
class PointerTable {
 public:
  PointerTable() {
    static_assert(kShards == std::size_t{1} << (64 - 58));
    for (Shard& shard : shards_) shard.entries.resize(16);
  }

  // False when there is something at that address already; then nothing changes.
  bool insert(std::uintptr_t address, const Value& value) {
    Shard& shard = shard_of(address);
    const std::lock_guard lock(shard.lock);
    if (4 * (shard.used + 1) > 3 * shard.entries.size()) shard.grow();
    Entry& entry = shard.entries[shard.slot_of(address)];
    if (entry.address != 0) return false;
    entry = {address, value};
    ++shard.used;
    return true;
  }

  // Takes it out. Nothing when there is nothing.
  std::optional<Value> take(std::uintptr_t address) {
    Shard& shard = shard_of(address);
    const std::lock_guard lock(shard.lock);
    const std::size_t slot = shard.slot_of(address);
    if (shard.entries[slot].address == 0) return std::nullopt;
    const Value value = shard.entries[slot].value;
    shard.remove(slot);
    return value;
  }

  // Takes out every value that `which` accepts.
  using Taken = std::vector<std::pair<std::uintptr_t, Value>>;
  template <class F>
  Taken take_all(F&& which) {
    Taken taken;
    for (Shard& shard : shards_) {
      const std::lock_guard lock(shard.lock);
      for (std::size_t slot = 0; slot < shard.entries.size();) {
        const Entry& entry = shard.entries[slot];
        if (entry.address == 0 || !which(entry.value)) {
          ++slot;
          continue;
        }
        taken.emplace_back(entry.address, entry.value);
        shard.remove(slot);  // another entry may have moved here
      }
    }
    return taken;
  }

  // Calls f(value) with what lies there, which it may change, under the lock. False when there is nothing.
  template <class F>
  bool with(std::uintptr_t address, F&& f) {
    Shard& shard = shard_of(address);
    const std::lock_guard lock(shard.lock);
    Entry& entry = shard.entries[shard.slot_of(address)];
    if (entry.address == 0) return false;
    f(entry.value);
    return true;
  }

  // Calls f(address, value) for each, shard by shard under its lock: what other threads do meanwhile may be seen or not. f may change the value, and must
  // not call the table.
  template <class F>
  void for_each(F&& f) {
    for (Shard& shard : shards_) {
      const std::lock_guard lock(shard.lock);
      for (Entry& entry : shard.entries)
        if (entry.address != 0) f(entry.address, entry.value);
    }
  }

  std::int64_t size() const {
    std::int64_t size = 0;
    for (const Shard& shard : shards_) {
      const std::lock_guard lock(shard.lock);
      size += static_cast<std::int64_t>(shard.used);
    }
    return size;
  }

 private:
  static constexpr std::size_t kShards = 64;

  struct Entry {
    std::uintptr_t address = 0;  // 0: free
    Value value;
  };

  // Open addressing, linear probing; what follows a removed entry moves up, so that there are no tombstones.
  struct alignas(64) Shard {
    mutable SpinLock lock;
    std::vector<Entry> entries;
    std::size_t used = 0;

    // Where it is, or the free entry where it would be.
    std::size_t slot_of(std::uintptr_t address) const {
      const std::size_t mask = entries.size() - 1;
      std::size_t slot = static_cast<std::size_t>(hash(address) >> 20) & mask;
      while (entries[slot].address != 0 && entries[slot].address != address) slot = (slot + 1) & mask;
      return slot;
    }
    void grow() {
      std::vector<Entry> old(2 * entries.size());
      old.swap(entries);
      for (const Entry& entry : old) {
        if (entry.address != 0) entries[slot_of(entry.address)] = entry;
      }
    }
    void remove(std::size_t slot) {
      const std::size_t mask = entries.size() - 1;
      entries[slot].address = 0;
      --used;
      for (std::size_t next = (slot + 1) & mask; entries[next].address != 0; next = (next + 1) & mask) {
        const Entry moved = entries[next];
        entries[next].address = 0;
        entries[slot_of(moved.address)] = moved;
      }
    }
  };

  // Addresses end in many zeros: the product's high bits are what differs.
  static std::uint64_t hash(std::uintptr_t address) { return static_cast<std::uint64_t>(address) * 0x9e3779b97f4a7c15U; }
  Shard& shard_of(std::uintptr_t address) { return shards_[hash(address) >> 58]; }

  Shard shards_[kShards];
};

}  // namespace koila

#endif  // KOILA_RUNTIME_POINTER_TABLE_H_
