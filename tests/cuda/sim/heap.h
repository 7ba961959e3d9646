// Every address that the simulation hands out, and what is counted for it. Device memory is host memory mapped without backing, so that the CPU
// can read and write it and an untouched gigabyte costs nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>

namespace sim {

constexpr int max_devices = 16;
constexpr std::size_t granule = 512;

enum Kind : unsigned { linear = 1, pooled = 2, array = 4, mipmapped = 8, managed = 16, pinned = 32 };

// What a memory pool counts; `maximum` 0 means none.
struct PoolUsage {
  std::size_t used = 0, peak = 0, maximum = 0;
};

// An address range carved once for one size, alive or waiting to be handed out again.
struct Block {
  std::uintptr_t address = 0;
  std::size_t size = 0;
  std::size_t requested = 0;
  int device = 0;
  Kind kind = linear;
  bool live = false;
  PoolUsage* pool = nullptr;
  Block* next = nullptr;
};

struct Usage {
  std::size_t capacity = 0, used = 0, peak = 0, blocks = 0, managed = 0;
};

// Thread-safe. No function of it calls back, so its lock is always the last one taken.
class Heap {
 public:
  // Null when the device's capacity, the pool's maximum or the address space does not suffice.
  void* allocate(int device, Kind kind, std::size_t bytes, PoolUsage* pool = nullptr);

  // False when no block of one of these kinds (or-ed) starts there. The address may be handed out again before this returns.
  bool release(const void* address, unsigned kinds);

  // The live block that holds this address.
  std::optional<Block> around(const void* address);

  // For memory that lives elsewhere: the physical handles of the driver.
  bool charge(int device, std::size_t bytes);
  void discharge(int device, std::size_t bytes);

  void release_device(int device);
  void release_all();

  Usage usage(int device);
  PoolUsage usage(const PoolUsage& pool);
  void reset_peak(PoolUsage& pool);
  std::size_t pinned_bytes();
  void set_capacity(int device, std::size_t bytes);
  void reuse_addresses(bool on);

 private:
  struct Chunk {
    std::uintptr_t at = 0;
    std::size_t left = 0;
  };

  // Private functions expect the lock to be held.
  Block* take_slot(int device, bool host, std::size_t size);
  std::uintptr_t carve(int device, bool host, std::size_t size);
  void count(const Block& block, bool up);
  void give_back(Block& block);

  std::mutex mutex_;
  Usage devices_[max_devices];
  std::size_t pinned_ = 0;
  bool reuse_ = true;
  std::map<std::uintptr_t, Block> slots_;
  std::unordered_map<std::size_t, Block*> free_;
  Chunk chunks_[2 * max_devices];
};

Heap& heap();

}  // namespace sim
