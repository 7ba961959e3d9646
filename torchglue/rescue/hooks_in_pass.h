// Which hooks on tensors inside a step a backward pass has come by.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "torchglue/compat/node.h"
#include "torchglue/rescue/past_bridges.h"
#include "torchglue/tape/tape.h"

namespace koila {

// A pass that is run again must not call a hook a second time. What retain_grad() has kept is put back, and kept again.
class HooksInPass {
 public:
  ~HooksInPass() { stop_watching(); }

  // Before the pass.
  void watch(const Tape& tape, torch::autograd::Node& node) {
    if (!node.tensor_pre_hooks().empty() || !node.retains_grad_hooks().empty()) begin(tape, node);
  }
  void stop_watching();

  // Which watched nodes the pass has come by; and what a pass within it came by is forgotten, see Note [Passes within a pass].
  std::vector<char> reached() const;
  void forget_pass_within(const std::vector<char>& reached);

  // Throws CannotConvert where what has run cannot be run again. `runs_again`: whether the second pass comes by the node.
  void check(const std::function<bool(torch::autograd::Node&)>& runs_again, const PastBridges& past) const;
  // Right before the second pass: nothing is retained of the first where the second comes by.
  void put_back(const PastBridges& past) const;

 private:
  struct Watched {
    NodePtr node;
    std::shared_ptr<bool> reached;
    torch::autograd::FunctionPreHook* watch;  // one of the node's
    bool has_hooks;
    std::vector<std::pair<at::Tensor, at::Tensor>> retaining;  // tensors, and the gradients that they had before the pass
  };
  void begin(const Tape& tape, torch::autograd::Node& node);

  std::vector<Watched> watched_;
};

}  // namespace koila
