// The budget of every place: its own, and those that hold for a while besides. The smallest is in force in the ledger.
//
// Thread-safe.
#ifndef KOILA_RUNTIME_BUDGETS_H_
#define KOILA_RUNTIME_BUDGETS_H_

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "runtime/ledger.h"

namespace koila {

class Budgets {
 public:
  explicit Budgets(Ledger& ledger) : ledger_(ledger) {}

  // The device's own budget; 0: none. From then on it is settled.
  void set(int device, std::int64_t bytes);

  // Whether the device's own budget is settled, so that the configuration has no say in it any more.
  bool settled(int device) const { return settled_[device - kFirstPlace].load(std::memory_order_acquire); }

  // The configuration's word; nothing: it has none. False when it came too late.
  bool configure(int device, std::optional<std::int64_t> bytes);

  // A budget until end(), of 1 byte or more. Returns its number, from 1.
  std::uint64_t begin(int device, std::int64_t bytes);
  // Nothing when there is none of that number.
  void end(std::uint64_t number);

  // Around a fork, so that the child finds it whole.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  struct Passing {
    std::uint64_t number = 0;
    int device = KOILA_CPU;
    std::int64_t bytes = 0;
  };

  void apply(int device);

  Ledger& ledger_;
  std::mutex mutex_;
  std::int64_t own_[kPlaces] = {};
  std::atomic<bool> settled_[kPlaces] = {};  // set under the lock, with the budget in force
  std::vector<Passing> passing_;
  std::uint64_t last_number_ = 0;
};

}  // namespace koila

#endif  // KOILA_RUNTIME_BUDGETS_H_
