// A lock for critical sections of some twenty instructions, in code where a mutex would be most of the cost.
#ifndef KOILA_RUNTIME_SPIN_LOCK_H_
#define KOILA_RUNTIME_SPIN_LOCK_H_

#include <sched.h>

#include <atomic>
#include <cstdint>

namespace koila {

// For a figure that is written by whoever holds its lock, and read at any time: the sum.
inline std::int64_t add_locked(std::atomic<std::int64_t>& figure, std::int64_t n) {
  const std::int64_t sum = figure.load(std::memory_order_relaxed) + n;
  figure.store(sum, std::memory_order_relaxed);
  return sum;
}

class SpinLock {
 public:
  void lock() {
    // A waiter that gets nowhere has caught its holder off the processor.
    for (int spins = 0; locked_.test_and_set(std::memory_order_acquire); ++spins) {
      if (spins > 100) sched_yield();
    }
  }
  void unlock() { locked_.clear(std::memory_order_release); }

 private:
  std::atomic_flag locked_ = ATOMIC_FLAG_INIT;
};

}  // namespace koila

#endif  // KOILA_RUNTIME_SPIN_LOCK_H_
