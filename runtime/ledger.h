// The account of live bytes per device.
//
// Every figure is exact at any time, whatever threads do: what does not fit is never counted, not even for a moment. Reading, reserve and
// release are lock-free; the latter two cost a few atomic operations on one cache line per device.
#ifndef KOILA_RUNTIME_LEDGER_H_
#define KOILA_RUNTIME_LEDGER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "runtime/abi.h"
#include "runtime/spin_lock.h"

namespace koila {

constexpr int kCudaDevices = KOILA_CUDA_DEVICES;

constexpr int kFirstPlace = KOILA_MANAGED;
constexpr int kPlaces = kCudaDevices - kFirstPlace;

// From kFirstPlace to the last CUDA ordinal.
constexpr bool is_device(int device) { return device >= kFirstPlace && device < kCudaDevices; }

class alignas(64) Account {
 public:
  // Counts a request, fitting or not, and answers with its number, from 1.
  std::int64_t count_request() { return requests_.fetch_add(1, std::memory_order_relaxed) + 1; }

  // Counts `bytes` live if live bytes stay within the budget.
  bool try_reserve(std::int64_t bytes);
  void release(std::int64_t bytes);

  // Where memory is somebody else's to give, it comes in two moves, so that what does not come never shows: hold() takes bytes off the
  // budget, then settle() counts live what came (which may be more), or cancel() says that nothing did. give_back() is their release().
  // They and start_request() are for one thread at a time, under a lock of the caller's (DeviceMemory has one per place), and not for an account
  // that anybody try_reserve()s of: so each figure is a plain addition, where it would be an atomic one several times a call.
  std::int64_t start_request() { return add_locked(requests_, 1); }
  bool hold(std::int64_t bytes);
  void settle(std::int64_t held, std::int64_t came);
  void cancel(std::int64_t held) { add_locked(held_, -held); }
  void give_back(std::int64_t bytes);

  // 0: none. Bytes already live stay live, even beyond the budget.
  void set_budget(std::int64_t bytes) { budget_.store(bytes, std::memory_order_relaxed); }
  std::int64_t budget() const { return budget_.load(std::memory_order_relaxed); }

  std::int64_t live() const { return live_.load(std::memory_order_relaxed); }
  std::int64_t peak() const { return peak_.load(std::memory_order_relaxed); }
  std::int64_t requests() const { return requests_.load(std::memory_order_relaxed); }
  std::int64_t allocations() const { return allocations_.load(std::memory_order_relaxed); }
  std::int64_t frees() const { return frees_.load(std::memory_order_relaxed); }

  // Peaks of their own, beside the one above: of what was live since mark_peak() was called last, and since begin_step() was.
  void mark_peak() { marked_peak_.store(live(), std::memory_order_relaxed); }
  std::int64_t marked_peak() const { return marked_peak_.load(std::memory_order_relaxed); }
  void begin_step() { step_peak_.store(live(), std::memory_order_relaxed); }
  std::int64_t step_peak() const { return step_peak_.load(std::memory_order_relaxed); }

  // The most since it was last called; from then on it starts again from what is live. For one thread at a time (PeakTracks).
  std::int64_t take_track_peak();

  // peak() starts again from what is live; run_peak() is the highest of all.
  void reset_peak();
  std::int64_t run_peak() const;

  // In the child of a fork: the parent's bytes are still there to be freed, but shared, so that they do not count against the
  // child's budget. Every other figure starts anew.
  void start_anew_after_fork();
  void forget_all() {
    live_.store(0, std::memory_order_relaxed);
    held_.store(0, std::memory_order_relaxed);
  }

 private:
  std::int64_t lowest_peak() const;
  void raise_peak(std::int64_t live);

  std::atomic<std::int64_t> live_{0};
  std::atomic<std::int64_t> held_{0};  // live, and on its way
  std::atomic<std::int64_t> peak_{0};
  std::atomic<std::int64_t> marked_peak_{0};
  std::atomic<std::int64_t> step_peak_{0};
  std::atomic<std::int64_t> track_peak_{0};
  std::atomic<std::int64_t> budget_{0};
  std::atomic<std::int64_t> requests_{0};
  std::atomic<std::int64_t> allocations_{0};
  std::atomic<std::int64_t> frees_{0};
  std::atomic<std::int64_t> earlier_peak_{0};
  std::atomic<std::int64_t> inherited_{0};
};

class Ledger {
 public:
  // `device` must be one of is_device.
  Account& of(int device) { return accounts_[device - kFirstPlace]; }
  const Account& of(int device) const { return accounts_[device - kFirstPlace]; }

  // CUDA does not work in the child of a fork: what the parent has of it is none of the child's.
  void start_anew_after_fork() {
    for (int device = kFirstPlace; device < kCudaDevices; ++device) {
      if (device != KOILA_CPU) of(device).forget_all();
      of(device).start_anew_after_fork();
    }
  }

 private:
  Account accounts_[kPlaces];
};

}  // namespace koila

#endif  // KOILA_RUNTIME_LEDGER_H_
