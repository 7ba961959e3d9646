// Hooks of the program's on tensors inside a step that is split: register_hook(), retain_grad().
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/flat_hash_map.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "torchglue/plan/plan.h"
#include "torchglue/tape/tape.h"

namespace koila {

// Note [Hooked tensors]
// The engine calls the hooks of a tensor with its full gradient, before the node that made the tensor runs. A region has one node, which runs once, when the gradients of all of its outputs are
// there: what an operator of the region itself adds to a gradient, micro-batch by micro-batch, no hook would see. So an operator that reads a hooked tensor ends the stage that made it, and belongs to another
// region (LazyCall); then the hook is called as it is without koila. A tensor that is hooked after it was read is refused (Region::check_hooks).
// A hook hangs on the node that made its tensor, by the number of its output there, whether or not the tensor is still alive. A conversion gives the value another node, and takes the hooks to it. One that
// belongs to what the tensor was before a later write in place stays behind without koila as well, where a region has no place for it: such a step is refused.

// Throws CannotConvert where a node of the old graph has hooks that cannot go on with their tensors. Reads only.
void check_tensor_hooks(const Tape& tape, const Plan& plan, Graphs graphs, const torch::autograd::Node& node);

// Throws CannotConvert where gradients with a graph (koila::gradient) that are made again come by a hooked tensor. Its hook has run for them already, and what a gradient of theirs adds to that tensor's
// gradient flows within a region, where no hook sees it. Reads only.
void check_hooks_of_gradients(const Tape& tape, const std::vector<char>& needed);
// Throws CannotConvert where a hook would go to what is made again (`made`, see MadeAgain::makes), and an autograd.Function, which stays as it is, sends its gradient by the tensor that is there. Reads only.
void check_hooks_behind_functions(const Tape& tape, const Plan& plan, const std::vector<char>& made);
// As check_hooks_of_gradients(), of such a pass that is under way, from these roots.
void check_hooks_on_the_way(const torch::autograd::edge_list& roots);
inline constexpr const char* kGradientComesByHook = "autograd.grad(..., create_graph=True) comes by a tensor inside the step that has a hook (register_hook, retain_grad).";

// The hooks of values that a conversion makes again.
class TensorHooks {
 public:
  // Takes them off the old graph. `needed`: the operators that are brought over. `real`: the values that are made again whole, beside the program's own tensors (MadeAgain::makes).
  TensorHooks(const Tape& tape, const Plan& plan, const std::vector<char>& needed, const std::vector<char>& real);
  // Whether an operator had read a tensor before it was hooked: a step that began in micro-batches could not do that.
  bool any_was_late(const Tape& tape) const;
  // Whether it ends the stage that makes the value.
  bool has(TapeValueId value) const {
    const auto found = taken_.find(value);
    return found != taken_.end() && !found->second.real;
  }
  // The tensor stands for the value from now on, and has its node.
  void put_on(TapeValueId value, const at::Tensor& tensor);

 private:
  using Hooks = std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>>;
  struct Taken {
    Hooks of_node;
    std::unique_ptr<torch::autograd::FunctionPreHook> retains_grad;
    // What the tensor itself knows of its hooks, and has of its gradient.
    Hooks of_tensor;
    std::shared_ptr<torch::autograd::hooks_list> list;
    bool says_retains_grad = false;
    bool real = false;
    at::Tensor gradient;
  };
  void take_from_node(const Tape& tape, const std::function<bool(TapeValueId)>& made_again, torch::autograd::Node& node);
  void take_from_tensor(TapeValueId value, const at::Tensor& tensor);

  ska::flat_hash_map<TapeValueId, Taken> taken_;
};

}  // namespace koila
