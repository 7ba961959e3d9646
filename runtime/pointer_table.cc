#include "runtime/pointer_table.h"

#include <mutex>

namespace koila {

// Device addresses end in many zeros: the product's high bits are what differs.
std::uint64_t PointerTable::hash(std::uintptr_t address) { return static_cast<std::uint64_t>(address) * 0x9e3779b97f4a7c15U; }

PointerTable::PointerTable() {
  static_assert(kShards == std::size_t{1} << (64 - 58));
  for (Shard& shard : shards_) shard.entries.resize(16);
}

std::size_t PointerTable::Shard::slot_of(std::uintptr_t address) const {
  const std::size_t mask = entries.size() - 1;
  std::size_t slot = static_cast<std::size_t>(hash(address) >> 20) & mask;
  while (entries[slot].address != 0 && entries[slot].address != address) slot = (slot + 1) & mask;
  return slot;
}

void PointerTable::Shard::grow() {
  std::vector<Entry> old(2 * entries.size());
  old.swap(entries);
  for (const Entry& entry : old) {
    if (entry.address != 0) entries[slot_of(entry.address)] = entry;
  }
}

void PointerTable::Shard::remove(std::size_t slot) {
  const std::size_t mask = entries.size() - 1;
  entries[slot].address = 0;
  --used;
  for (std::size_t next = (slot + 1) & mask; entries[next].address != 0; next = (next + 1) & mask) {
    const Entry moved = entries[next];
    entries[next].address = 0;
    entries[slot_of(moved.address)] = moved;
  }
}

bool PointerTable::insert(std::uintptr_t address, const Block& block) {
  Shard& shard = shard_of(address);
  const std::lock_guard lock(shard.lock);
  if (4 * (shard.used + 1) > 3 * shard.entries.size()) shard.grow();
  Entry& entry = shard.entries[shard.slot_of(address)];
  if (entry.address != 0) return false;
  entry = {address, block};
  ++shard.used;
  return true;
}

std::optional<Block> PointerTable::take(std::uintptr_t address) {
  Shard& shard = shard_of(address);
  const std::lock_guard lock(shard.lock);
  const std::size_t slot = shard.slot_of(address);
  if (shard.entries[slot].address == 0) return std::nullopt;
  const Block block = shard.entries[slot].block;
  shard.remove(slot);
  return block;
}

PointerTable::Taken PointerTable::take_all(const std::function<bool(const Block&)>& which) {
  Taken taken;
  for (Shard& shard : shards_) {
    const std::lock_guard lock(shard.lock);
    for (std::size_t slot = 0; slot < shard.entries.size();) {
      const Entry& entry = shard.entries[slot];
      if (entry.address == 0 || !which(entry.block)) {
        ++slot;
        continue;
      }
      taken.emplace_back(entry.address, entry.block);
      shard.remove(slot);  // another entry may have moved here
    }
  }
  return taken;
}

std::int64_t PointerTable::size() const {
  std::int64_t size = 0;
  for (const Shard& shard : shards_) {
    const std::lock_guard lock(shard.lock);
    size += static_cast<std::int64_t>(shard.used);
  }
  return size;
}

}  // namespace koila
