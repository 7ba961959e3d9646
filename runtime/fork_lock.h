// A mutex that the child of a fork finds free, and what it guards whole.
#ifndef KOILA_RUNTIME_FORK_LOCK_H_
#define KOILA_RUNTIME_FORK_LOCK_H_

#include <pthread.h>

#include <atomic>
#include <mutex>

namespace koila {

// Note [Locks and forks]
// A forked child has the one thread that forked. A lock that another thread held at that moment is held there for ever, and what it guards is half
// changed: a lock made anew would let the child in to that. So a thread that forks takes all these locks first, and parent and child give them back.
// It may have to wait for one while it has others that the holder of that one waits for: then it gives back what it has, and begins with that one.
//
// For locks that live as long as the process, and under which nobody forks. Each library takes its own.
class ForkLock {
 public:
  ForkLock() {
    static const int registered = pthread_atfork(&lock_all, &unlock_all, &unlock_all);
    (void)registered;
    next_ = all_.load(std::memory_order_relaxed);
    while (!all_.compare_exchange_weak(next_, this, std::memory_order_release, std::memory_order_relaxed)) {
    }
  }
  ForkLock(const ForkLock&) = delete;
  ForkLock& operator=(const ForkLock&) = delete;

  void lock() { mutex_.lock(); }
  bool try_lock() { return mutex_.try_lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  static void lock_all() {
    taken_ = all_.load(std::memory_order_acquire);
    for (ForkLock* first = nullptr;;) {
      if (first != nullptr) first->lock();
      ForkLock* held = taken_;
      while (held != nullptr && (held == first || held->try_lock())) held = held->next_;
      if (held == nullptr) return;
      for (ForkLock* lock = taken_; lock != held; lock = lock->next_) {
        if (lock != first) lock->unlock();
      }
      if (first != nullptr) first->unlock();
      first = held;
    }
  }
  // Those that lock_all() took: another thread may have made one since.
  static void unlock_all() {
    for (ForkLock* lock = taken_; lock != nullptr; lock = lock->next_) lock->unlock();
  }

  std::mutex mutex_;
  ForkLock* next_;
  static inline std::atomic<ForkLock*> all_{nullptr};
  static inline ForkLock* taken_ = nullptr;  // by the thread that forks: one at a time does
};

}  // namespace koila

#endif  // KOILA_RUNTIME_FORK_LOCK_H_
