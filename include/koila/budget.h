// A budget for a part of a program:
//
//     {
//       koila::ScopedBudget budget(torch::kCUDA, 4LL << 30);
//       train(model);  // as on a GPU of 4 GiB: beyond that memory runs out, and koila rescues
//     }                // the budget of before
//
// It takes koila to keep one. C++17; header-only over LibTorch.
#ifndef KOILA_BUDGET_H_
#define KOILA_BUDGET_H_

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <cstdint>

#include "koila/detail/abi.h"

namespace koila {

// While it lives, tensors of the CPU, or all memory that CUDA gives on the device, may be `bytes` in all, what is alive already counted: what would go beyond that
// does not fit. Of several at once, of the device's own (KOILA_CPU_MEMORY, KOILA_DEVICE_MEMORY, koila_set_budget) and of BatchOptions::cpu_memory the smallest
// holds, in whatever order they end: so one tightens what holds and never loosens it.
//
// Throws c10::ValueError for less than one byte, and c10::Error where koila is not in the process or does not count on that device; ends without a word.
// Threads: the budget is the process', whichever thread makes it, and may end on another.
class ScopedBudget {
 public:
  ScopedBudget(c10::Device device, std::int64_t bytes) {
    TORCH_CHECK_VALUE(bytes >= 1, "koila::ScopedBudget: the budget is ", bytes, "; it is a number of bytes, 1 or more");
    const detail::Abi& koila = detail::need_koila("koila::ScopedBudget");
    if (const auto number = detail::device_number(device)) budget_ = koila.begin_budget(*number, bytes);
    if (budget_ == 0) detail::throw_not_counted("koila::ScopedBudget", device);
  }
  ~ScopedBudget() { detail::Abi::get().end_budget(budget_); }
  ScopedBudget(const ScopedBudget&) = delete;
  ScopedBudget& operator=(const ScopedBudget&) = delete;

 private:
  std::uint64_t budget_ = 0;
};

}  // namespace koila

#endif  // KOILA_BUDGET_H_
