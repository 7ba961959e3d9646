// Looks from time to time at what outlives its step, and has what adds up put into the report.
//
// Thread-safe. A look goes through every block that is alive; looks become rarer as the run goes on, so that a run of any length has a few hundred.
#ifndef KOILA_RUNTIME_LEAK_WATCH_H_
#define KOILA_RUNTIME_LEAK_WATCH_H_

#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <vector>

#include "runtime/findings.h"
#include "runtime/leaks.h"
#include "runtime/tensor_book.h"

namespace koila {

class LeakWatch {
 public:
  LeakWatch(TensorBook& book, Findings& findings) : book_(book), findings_(findings) {}

  // So many steps have ended.
  void step_over(std::int64_t steps);

  // A leak that nobody was asked about, to be asked about once: who knows Python can say what holds it.
  std::optional<Leak> to_name();

 private:
  TensorBook& book_;
  Findings& findings_;
  std::mutex mutex_;
  std::int64_t next_look_ = 1;
  std::vector<LeakLook> history_;  // kLeakLooks at most
  std::vector<Leak> told_;         // in the report
  std::deque<Leak> to_name_;
};

}  // namespace koila

#endif  // KOILA_RUNTIME_LEAK_WATCH_H_
