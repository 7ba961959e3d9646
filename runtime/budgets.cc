#include "runtime/budgets.h"

#include <algorithm>

namespace koila {

void Budgets::set(int device, std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  own_[device - kFirstPlace] = bytes;
  apply(device);
  settled_[device - kFirstPlace].store(true, std::memory_order_release);
}

bool Budgets::configure(int device, std::optional<std::int64_t> bytes) {
  const std::lock_guard lock(mutex_);
  if (settled(device)) return false;  // another thread was here, or the program has set one
  if (bytes) own_[device - kFirstPlace] = *bytes;
  apply(device);
  settled_[device - kFirstPlace].store(true, std::memory_order_release);
  return true;
}

std::uint64_t Budgets::begin(int device, std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  passing_.push_back({last_number_ + 1, device, bytes});
  apply(device);
  return ++last_number_;
}

void Budgets::end(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(passing_.begin(), passing_.end(), [&](const Passing& p) { return p.number == number; });
  if (found == passing_.end()) return;
  const int device = found->device;
  passing_.erase(found);
  apply(device);
}

void Budgets::apply(int device) {
  std::int64_t least = own_[device - kFirstPlace];
  for (const Passing& p : passing_) {
    if (p.device == device && (least == 0 || p.bytes < least)) least = p.bytes;
  }
  ledger_.of(device).set_budget(least);
}

}  // namespace koila
