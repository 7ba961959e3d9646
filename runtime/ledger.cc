#include "runtime/ledger.h"

#include <algorithm>

namespace koila {

bool Account::try_reserve(std::int64_t bytes) {
  const std::int64_t budget = this->budget();
  std::int64_t live;
  if (budget == 0) {
    live = live_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  } else {
    const std::int64_t limit = budget + inherited_.load(std::memory_order_relaxed);
    std::int64_t before = live_.load(std::memory_order_relaxed);
    do {
      live = before + bytes;
      if (live > limit) return false;
    } while (!live_.compare_exchange_weak(before, live, std::memory_order_relaxed));
  }
  allocations_.fetch_add(1, std::memory_order_relaxed);
  if (live > lowest_peak()) raise_peak(live);
  return true;
}

bool Account::hold(std::int64_t bytes) {
  // A request of more bytes than there are numbers for is CUDA's to refuse, unless there is a budget.
  if (const std::int64_t limit = budget(); limit > 0 && (bytes < 0 || bytes > limit - held_.load(std::memory_order_relaxed))) return false;
  add_locked(held_, bytes);
  return true;
}

void Account::settle(std::int64_t held, std::int64_t came) {
  add_locked(held_, came - held);
  add_locked(allocations_, 1);
  if (const std::int64_t live = add_locked(live_, came); live > lowest_peak()) raise_peak(live);
}

void Account::give_back(std::int64_t bytes) {
  add_locked(held_, -bytes);
  add_locked(live_, -bytes);
  add_locked(frees_, 1);
}

void Account::release(std::int64_t bytes) {
  live_.fetch_sub(bytes, std::memory_order_relaxed);
  frees_.fetch_add(1, std::memory_order_relaxed);
}

// What is no higher than this raises none.
std::int64_t Account::lowest_peak() const {
  const auto of = [](const std::atomic<std::int64_t>& peak) { return peak.load(std::memory_order_relaxed); };
  return std::min(std::min(of(peak_), of(marked_peak_)), std::min(of(step_peak_), of(track_peak_)));
}

void Account::raise_peak(std::int64_t live) {
  for (std::atomic<std::int64_t>* highest : {&peak_, &marked_peak_, &step_peak_, &track_peak_}) {
    std::int64_t peak = highest->load(std::memory_order_relaxed);
    while (live > peak && !highest->compare_exchange_weak(peak, live, std::memory_order_relaxed)) {
    }
  }
}

std::int64_t Account::take_track_peak() {
  const std::int64_t peak = track_peak_.exchange(live());
  // What came between the two was put into the peak that is taken: it is live from here on as well.
  const std::int64_t live = this->live();
  std::int64_t now = track_peak_.load();
  while (live > now && !track_peak_.compare_exchange_weak(now, live)) {
  }
  return peak;
}

void Account::reset_peak() {
  const std::int64_t old = peak_.exchange(live(), std::memory_order_relaxed);
  std::int64_t earlier = earlier_peak_.load(std::memory_order_relaxed);
  while (old > earlier && !earlier_peak_.compare_exchange_weak(earlier, old, std::memory_order_relaxed)) {
  }
}

std::int64_t Account::run_peak() const { return std::max(peak(), earlier_peak_.load(std::memory_order_relaxed)); }

void Account::start_anew_after_fork() {
  const std::int64_t live = this->live();
  inherited_.store(live, std::memory_order_relaxed);
  peak_.store(live, std::memory_order_relaxed);
  step_peak_.store(live, std::memory_order_relaxed);
  earlier_peak_.store(0, std::memory_order_relaxed);
  requests_.store(0, std::memory_order_relaxed);
  allocations_.store(0, std::memory_order_relaxed);
  frees_.store(0, std::memory_order_relaxed);
}

}  // namespace koila
