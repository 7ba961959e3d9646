// Running statistics of batch and instance norms: their update, and its undoing.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <vector>

#include "torchglue/statistics/running_arguments.h"

namespace koila {

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
