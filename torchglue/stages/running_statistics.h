// Running statistics: what batch and instance norm update without saying so in their schema.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string>
#include <vector>

namespace koila {

bool is_running_statistic(const std::string& argument);

// Whether a call of such an operator uses the batch's statistics, and so neither needs nor leaves alone the running ones. Of the arguments only
// those that are no tensors are read.
bool uses_batch_statistics(const c10::FunctionSchema& schema, at::ArrayRef<c10::IValue> arguments);

// The running statistics among the arguments; undefined ones left out.
std::vector<at::Tensor> running_statistics(const c10::FunctionSchema& schema, at::ArrayRef<c10::IValue> arguments);

// Takes them out of the call: it computes the same, and updates nothing.
void drop_running_statistics(const c10::FunctionSchema& schema, torch::jit::Stack& arguments);

// running = (1 - momentum) running + momentum value, for each that is defined, as silently: no version counter moves. Regions that have read
// one keep what they read. All or, when memory runs out, none. `counted`: a version counter does move, as an instance norm's.
struct RunningUpdate {
  at::Tensor running, value;
};
void update_running_statistics(const std::vector<RunningUpdate>& updates, double momentum, bool counted = false);

// What a call that fails on its way may have done to them is undone.
class SavedStatistics {
 public:
  SavedStatistics(const c10::FunctionSchema& schema, at::ArrayRef<c10::IValue> arguments);
  // False, and nothing done, when there was no room to save them.
  bool restore() const;

 private:
  struct Saved {
    at::Tensor tensor;
    std::vector<char> bytes;  // of a CPU tensor: no allocation of the program's
    at::Tensor copy;
  };
  std::vector<Saved> saved_;
  bool complete_ = true;
};

}  // namespace koila
