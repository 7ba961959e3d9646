// What the account of tensors learns from a step: which of them are parameters, and which gradients.
#pragma once

#include <c10/core/TensorImpl.h>
#include <torch/csrc/autograd/edge.h>

#include <exception>
#include <vector>

#include "torchglue/memory/origin.h"

namespace koila {

// While it lives an outermost backward pass of the program runs. On the thread that runs it.
class StepAccounts {
 public:
  explicit StepAccounts(const torch::autograd::edge_list& roots);
  ~StepAccounts();
  StepAccounts(const StepAccounts&) = delete;
  StepAccounts& operator=(const StepAccounts&) = delete;

 private:
  const NoWatchInBackward no_watch_;
  const int exceptions_ = std::uncaught_exceptions();
};

// Leaves of the graph of this thread's last step that was looked at closely: they seldom change.
const std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>>& leaves_of_step();
void forget_leaves_of_step();

}  // namespace koila
