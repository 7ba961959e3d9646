// What every simulated function does first: count itself, fail if a test said so, and on its way out sleep if a test said so.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string_view>
#include <vector>

#define SIM_EXPORT extern "C" __attribute__((visibility("default")))

namespace sim {

// One per function name, never destroyed: functions are called from exit handlers too.
class Hook {
 public:
  // Counts the call; returns the code to fail with, or 0.
  int enter() {
    const std::uint64_t number = calls_.fetch_add(1, std::memory_order_relaxed) + 1;
    return armed_.load(std::memory_order_relaxed) ? failure_of(number) : 0;
  }
  void leave() const {
    if (const int microseconds = delay_.load(std::memory_order_relaxed)) sleep(microseconds);
  }

  std::uint64_t calls() const { return calls_.load(std::memory_order_relaxed); }
  void fail(int nth_from_now, int count, int code);
  void delay(int microseconds) { delay_.store(microseconds, std::memory_order_relaxed); }
  void reset();

 private:
  struct Rule {
    std::uint64_t first, last;
    int code;
  };

  int failure_of(std::uint64_t number);
  static void sleep(int microseconds);

  std::atomic<std::uint64_t> calls_{0};
  std::atomic<bool> armed_{false};
  std::atomic<int> delay_{0};
  std::mutex mutex_;
  std::vector<Rule> rules_;
};

Hook& hook(std::string_view function);
void reset_hooks();

class Call {
 public:
  explicit Call(Hook& hook) : hook_(hook), injected_(hook.enter()) {}
  ~Call() { hook_.leave(); }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  int injected() const { return injected_; }

 private:
  Hook& hook_;
  const int injected_;
};

// Sets this thread's last error, unless it is cudaSuccess, and returns it.
cudaError_t result(cudaError_t error);
void clear_last_error();

// The text of a code; null when there is none. cudaError_t and CUresult share their numbers.
const char* text_of(int code);

}  // namespace sim

// The first line of a function: any lock taken after it is given back before the delay.
#define SIM_CALL()                                 \
  static ::sim::Hook& hook_ = ::sim::hook(__func__); \
  const ::sim::Call call_(hook_);                  \
  if (call_.injected() != 0) return ::sim::result(static_cast<cudaError_t>(call_.injected()))

#define SIM_DRIVER_CALL(name)                    \
  static ::sim::Hook& hook_ = ::sim::hook(name); \
  const ::sim::Call call_(hook_);                \
  if (call_.injected() != 0) return static_cast<CUresult>(call_.injected())

// The variant for programs compiled with a default stream per thread; a function of its own, so that a test sees which of the two was called.
#define SIM_TWIN(twin, original, parameters, arguments) \
  SIM_EXPORT cudaError_t twin parameters {              \
    SIM_CALL();                                         \
    return original arguments;                          \
  }
