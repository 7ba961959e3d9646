// Keeps tensors for as long as a graph lives, and no longer.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "torchglue/base/own_hook.h"

namespace koila {

// What a graph on the tape would need to be made again, whoever else lets go of it: a tensor, or all that it can be made from.
struct Hold {
  at::Tensor tensor;
  std::vector<std::shared_ptr<Hold>> origins;
};

// Hangs on a node of the program's graph, and does nothing but own.
class HoldHook final : public OwnHook {
 public:
  explicit HoldHook(std::vector<std::shared_ptr<Hold>> holds) : holds_(std::move(holds)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients) override { return gradients; }
 private:
  std::vector<std::shared_ptr<Hold>> holds_;
};

}  // namespace koila
