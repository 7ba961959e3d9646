// What an operator shows of the step it is in, for the report's advice (facts/facts.h). Any thread.
#pragma once

#include <atomic>

namespace koila {

struct SeenInStep {
  std::atomic<bool> autocast{false};
  std::atomic<bool> checkpoint{false};

  static void note(std::atomic<bool>& seen) {
    if (!seen.load(std::memory_order_relaxed)) seen.store(true, std::memory_order_relaxed);
  }
};
inline SeenInStep seen_in_step;

}  // namespace koila
