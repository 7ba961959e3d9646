// The account of live bytes per device.
//
// Every figure is exact at any time, whatever threads do: what does not fit is never counted, not even for a moment. Lock-free; a
// reserve or release costs a few atomic operations on one cache line per device.
#ifndef KOILA_RUNTIME_LEDGER_H_
#define KOILA_RUNTIME_LEDGER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "runtime/abi.h"

namespace koila {

constexpr int kCudaDevices = 16;

// From KOILA_CPU to the last CUDA ordinal.
constexpr bool is_device(int device) { return device >= KOILA_CPU && device < kCudaDevices; }

class alignas(64) Account {
 public:
  // Counts a request, fitting or not, and answers with its number, from 1.
  std::int64_t count_request() { return requests_.fetch_add(1, std::memory_order_relaxed) + 1; }

  // Counts `bytes` live if live bytes stay within the budget.
  bool try_reserve(std::int64_t bytes);
  void release(std::int64_t bytes);

  // 0: none. Bytes already live stay live, even beyond the budget.
  void set_budget(std::int64_t bytes) { budget_.store(bytes, std::memory_order_relaxed); }
  std::int64_t budget() const { return budget_.load(std::memory_order_relaxed); }

  std::int64_t live() const { return live_.load(std::memory_order_relaxed); }
  std::int64_t peak() const { return peak_.load(std::memory_order_relaxed); }
  std::int64_t requests() const { return requests_.load(std::memory_order_relaxed); }
  std::int64_t allocations() const { return allocations_.load(std::memory_order_relaxed); }
  std::int64_t frees() const { return frees_.load(std::memory_order_relaxed); }

  // peak() starts again from what is live; run_peak() is the highest of all.
  void reset_peak();
  std::int64_t run_peak() const;

  // In the child of a fork: the parent's bytes are still there to be freed, but shared, so that they do not count against the
  // child's budget. Every other figure starts anew.
  void start_anew_after_fork();

 private:
  void raise_peak(std::int64_t live);

  std::atomic<std::int64_t> live_{0};
  std::atomic<std::int64_t> peak_{0};
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
  Account& of(int device) { return accounts_[device - KOILA_CPU]; }
  const Account& of(int device) const { return accounts_[device - KOILA_CPU]; }

  void start_anew_after_fork() {
    for (Account& account : accounts_) account.start_anew_after_fork();
  }

 private:
  Account accounts_[kCudaDevices - KOILA_CPU];
};

}  // namespace koila

#endif  // KOILA_RUNTIME_LEDGER_H_
