#include "tests/cuda/sim/heap.h"

#include <sys/mman.h>

#include <algorithm>

namespace sim {
namespace {

constexpr std::size_t page = 4096;
constexpr std::size_t chunk_size = std::size_t{64} << 20;
constexpr std::size_t largest_carved = std::size_t{1} << 20;
constexpr std::size_t largest = std::size_t{1} << 46;

constexpr std::size_t round_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

std::uintptr_t map(std::size_t bytes) {
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return address == MAP_FAILED ? 0 : reinterpret_cast<std::uintptr_t>(address);
}

int place(int device, bool host) { return 2 * device + (host ? 1 : 0); }

}  // namespace

Heap& heap() {
  static Heap& leaked = *new Heap;
  return leaked;
}

void* Heap::allocate(int device, Kind kind, std::size_t bytes, PoolUsage* pool) {
  if (bytes > largest) return nullptr;
  const std::size_t size = round_up(std::max<std::size_t>(bytes, 1), granule);
  const std::lock_guard lock(mutex_);
  const bool limited = kind != managed && kind != pinned;
  if (limited && size > devices_[device].capacity - std::min(devices_[device].used, devices_[device].capacity)) return nullptr;
  if (pool != nullptr && pool->maximum != 0 && pool->used + size > pool->maximum) return nullptr;
  Block* block = take_slot(device, kind == pinned, size);
  if (block == nullptr) return nullptr;
  block->requested = bytes;
  block->device = device;
  block->kind = kind;
  block->pool = pool;
  block->live = true;
  count(*block, true);
  return reinterpret_cast<void*>(block->address);
}

bool Heap::release(const void* address, unsigned kinds) {
  const std::lock_guard lock(mutex_);
  auto found = slots_.find(reinterpret_cast<std::uintptr_t>(address));
  if (found == slots_.end() || !found->second.live || (found->second.kind & kinds) == 0) return false;
  give_back(found->second);
  return true;
}

std::optional<Block> Heap::around(const void* address) {
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  const std::lock_guard lock(mutex_);
  auto after = slots_.upper_bound(wanted);
  if (after == slots_.begin()) return std::nullopt;
  const Block& block = std::prev(after)->second;
  if (!block.live || wanted - block.address >= block.size) return std::nullopt;
  return block;
}

bool Heap::charge(int device, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  Usage& usage = devices_[device];
  if (bytes > usage.capacity - std::min(usage.used, usage.capacity)) return false;
  usage.used += bytes;
  usage.peak = std::max(usage.peak, usage.used);
  ++usage.blocks;
  return true;
}

void Heap::discharge(int device, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  devices_[device].used -= bytes;
  --devices_[device].blocks;
}

void Heap::release_device(int device) {
  const std::lock_guard lock(mutex_);
  for (auto& [address, block] : slots_) {
    if (block.live && block.device == device) give_back(block);
  }
}

void Heap::release_all() {
  const std::lock_guard lock(mutex_);
  for (auto& [address, block] : slots_) {
    if (block.live) give_back(block);
  }
  for (Usage& usage : devices_) usage.peak = usage.used;
}

Usage Heap::usage(int device) {
  const std::lock_guard lock(mutex_);
  return devices_[device];
}

PoolUsage Heap::usage(const PoolUsage& pool) {
  const std::lock_guard lock(mutex_);
  return pool;
}

void Heap::reset_peak(PoolUsage& pool) {
  const std::lock_guard lock(mutex_);
  pool.peak = pool.used;
}

std::size_t Heap::pinned_bytes() {
  const std::lock_guard lock(mutex_);
  return pinned_;
}

void Heap::set_capacity(int device, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  devices_[device].capacity = bytes;
}

void Heap::reuse_addresses(bool on) {
  const std::lock_guard lock(mutex_);
  reuse_ = on;
  if (!on) free_.clear();
}

Block* Heap::take_slot(int device, bool host, std::size_t size) {
  // Sizes are multiples of the granule, which leaves the low bits to say whose list it is.
  const std::size_t key = size | static_cast<std::size_t>(place(device, host));
  static_assert(2 * max_devices <= granule);
  if (reuse_) {
    if (auto found = free_.find(key); found != free_.end() && found->second != nullptr) {
      Block* block = found->second;
      found->second = block->next;
      return block;
    }
  }
  const std::uintptr_t address = carve(device, host, size);
  if (address == 0) return nullptr;
  Block& block = slots_[address];
  block.address = address;
  block.size = size;
  return &block;
}

std::uintptr_t Heap::carve(int device, bool host, std::size_t size) {
  if (size > largest_carved) return map(round_up(size, page));
  Chunk& chunk = chunks_[place(device, host)];
  if (chunk.left < size) {
    const std::uintptr_t address = map(chunk_size);
    if (address == 0) return 0;
    chunk = {address, chunk_size};
  }
  const std::uintptr_t address = chunk.at;
  chunk.at += size;
  chunk.left -= size;
  return address;
}

void Heap::give_back(Block& block) {
  count(block, false);
  block.live = false;
  // The host's memory is worth more than the time of one system call, but only for a large block.
  if (block.size > largest_carved) madvise(reinterpret_cast<void*>(block.address), round_up(block.size, page), MADV_DONTNEED);
  if (!reuse_) return;
  Block*& head = free_[block.size | static_cast<std::size_t>(place(block.device, block.kind == pinned))];
  block.next = head;
  head = &block;
}

void Heap::count(const Block& block, bool up) {
  const std::size_t change = up ? block.size : -block.size;
  Usage& usage = devices_[block.device];
  if (block.kind == managed) {
    usage.managed += change;
  } else if (block.kind == pinned) {
    pinned_ += change;
  } else {
    usage.used += change;
    usage.peak = std::max(usage.peak, usage.used);
    usage.blocks += up ? 1 : std::size_t(-1);
  }
  if (block.pool != nullptr) {
    block.pool->used += change;
    block.pool->peak = std::max(block.pool->peak, block.pool->used);
  }
}

}  // namespace sim
