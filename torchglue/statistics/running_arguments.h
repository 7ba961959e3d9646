// Which arguments of batch and instance norms are running statistics: what they update without saying so in their schema.
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

}  // namespace koila
