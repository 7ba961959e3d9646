// The account of what programs and their libraries get from CUDA: per device, per kind of memory, per library that asked.
//
// Thread-safe; the exact figures are in the ledger, and each block's size is kept by address. A block is forgotten before it is given back, for
// its address may be another thread's before the call that frees it returns.
#ifndef KOILA_RUNTIME_DEVICE_MEMORY_H_
#define KOILA_RUNTIME_DEVICE_MEMORY_H_

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/ledger.h"
#include "runtime/pointer_table.h"
#include "runtime/spin_lock.h"

namespace koila {

enum class MemoryKind : std::uint8_t { kDevice, kPool, kArray, kVirtual, kManaged, kPinned };
constexpr int kMemoryKinds = 6;
const char* memory_kind_name(MemoryKind kind);

constexpr std::size_t kMaxSources = 128;
constexpr int kSizeClasses = 48;  // class k: from 2^k to below 2^(k+1) bytes

// Whoever gets memory, as the report names it.
struct SourceFigures {
  int place = 0;
  MemoryKind kind = MemoryKind::kDevice;
  std::string library;
  std::int64_t live_bytes = 0;
  std::int64_t peak_bytes = 0;
  std::int64_t allocations = 0;
  std::int64_t frees = 0;
};

class DeviceMemory {
 public:
  // In the child of a fork it takes the place of the parent's, whose locks may be held for ever: callers keep the numbers of sources.
  explicit DeviceMemory(Ledger& ledger, const DeviceMemory* parents = nullptr);

  // To be called after each change of a place's account, under none of the locks here. To be set before the first of them.
  void set_watcher(void (*watcher)(int place)) { watcher_ = watcher; }

  // The number of a source. Takes a lock: to be kept by the caller. Beyond kMaxSources all are one, named "others".
  std::uint16_t source(MemoryKind kind, const std::string& library);

  // The bytes of a request, off the budget until add(), count() or cancel(): see Account::hold. `fails` is asked, with the request's number on
  // its device, whether it is to fail on purpose. 0: held; 1: over the budget; 2: made to fail.
  template <class Fails>
  int hold(int place, std::int64_t bytes, Fails&& fails) {
    Account& account = ledger_.of(place);
    const std::lock_guard lock(lock_of(place));
    if (fails(account.start_request())) return 2;
    return account.hold(bytes) ? 0 : 1;
  }
  void cancel(int place, std::int64_t held);

  // A block that came, at `address`. count() is for one whose owner keeps it itself, and release()s it.
  void add(std::uintptr_t address, const Block& block, std::int64_t held);
  void count(const Block& block, std::int64_t held);

  // To be called before the memory is given back; nothing when the address is none of ours. put_back() if it was not given back after all,
  // else release().
  std::optional<Block> forget(std::uintptr_t address) { return blocks_.take(address); }
  void put_back(std::uintptr_t address, const Block& block);
  void release(const Block& block);

  // The same for everything that a reset of the device takes.
  PointerTable::Taken forget_all(int place);

  std::vector<SourceFigures> sources() const;
  // Allocations by size on a device, by class.
  std::vector<std::int64_t> sizes(int place) const;

 private:
  // Written under the lock of the place, read at any time.
  struct Figures {
    std::atomic<std::int64_t> live{0};
    std::atomic<std::int64_t> peak{0};
    std::atomic<std::int64_t> allocations{0};
    std::atomic<std::int64_t> frees{0};
  };
  struct alignas(64) Place {
    SpinLock lock;
    Figures of[kMaxSources];
    std::atomic<std::int64_t> sizes[kSizeClasses] = {};
  };
  struct Source {
    MemoryKind kind = MemoryKind::kDevice;
    std::string library;
  };

  Place& place(int device) { return places_[device - kFirstPlace]; }
  SpinLock& lock_of(int device) { return place(device).lock; }

  Ledger& ledger_;
  void (*watcher_)(int place) = nullptr;
  PointerTable blocks_;
  Place places_[kPlaces];

  std::mutex mutex_;  // of adding a source; those below known_ stay as they are
  Source sources_[kMaxSources];
  std::atomic<std::size_t> known_{0};
};

}  // namespace koila

#endif  // KOILA_RUNTIME_DEVICE_MEMORY_H_
