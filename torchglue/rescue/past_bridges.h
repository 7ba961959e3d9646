// What a backward pass has brought past nodes that cannot run again.
#pragma once

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "torchglue/compat/node.h"
#include "torchglue/step/spare.h"
#include "torchglue/tape/tape.h"

namespace koila {

inline constexpr const char* kHasRun = "an autograd.Function or a hook in the middle of the step has run already, and cannot be run again.";

// Note [Past a bridge]
// A pass that runs out below a bridge (see Note [Bridges]) cannot begin again at its roots: the bridge's node has run. But the engine runs a thread's nodes from the last made to the first, so
// what was made after the bridge is done, and has given its gradients along edges that lead below. These gradients are kept until the pass has come by the next bridge: from them the rest of the pass can be
// made. Leaves, and graphs from before the tape, take their gradients when all that leads to them is done: for them it is the first made of those nodes that counts.
// A hook on a tensor (register_hook) is such a bridge as well, just before the node that made the tensor: that one may run again, with what the hook has made of the gradient.
class PastBridges {
 public:
  // The rest of the pass: a node that no pass runs, with the edges where it begins, and the gradients for these.
  struct Rest {
    NodePtr from;
    torch::autograd::variable_list gradients;
  };

  // Before the pass. `outside`: nodes that the tape has not made, where its graph ends. `hooked`: those that it has made, and that have hooks on their tensors.
  void watch(const Tape& tape, const torch::autograd::edge_list& roots, const std::vector<torch::autograd::Node*>& outside, const std::vector<torch::autograd::Node*>& hooked);
  void stop_watching();

  // A pass begins within this one, or is over. What it comes by has brought nothing past a bridge, see Note [Passes within a pass].
  void pass_within(bool begins) {
    if (state_ != nullptr) state_->within += begins ? 1 : -1;
  }

  // Whether a bridge's node, or a hook, has run.
  bool any() const { return state_ != nullptr && state_->cut != UINT64_MAX; }
  // The sequence number from which on nodes are done.
  uint64_t number() const { return state_->cut; }
  // Whether the node's hooks are not to be called any more.
  bool is_past(const torch::autograd::Node& node) const { return any() && (node.sequence_nr() >= state_->cut || &node == state_->hooked.get()); }
  // Throws CannotConvert where the leaf, which has no gradient yet, is none of the rest.
  void check(const torch::autograd::AccumulateGrad& leaf) const;
  // Throws CannotConvert where not all is known that the rest begins with. The hook that the pass has come by last is gone then.
  Rest rest() const;

 private:
  struct Crossing {
    uint32_t edge;
    uint64_t level;  // of what it leads to
    at::Tensor gradient;
    bool spared = false;  // there was one
  };
  struct Source {
    NodePtr node;
    uint64_t number;
    bool is_bridge;
    std::vector<Crossing> crossings;
    bool ran = false;
  };
  struct State {
    std::vector<Source> sources;
    uint64_t cut = UINT64_MAX;  // the number of the last bridge that has run, or the one above that of the last node with hooks
    NodePtr hooked;             // that node, where it was hooks;
    torch::autograd::variable_list entering;  // and what they have made of its gradients
    bool spared = false;                      // they had their memory taken
    std::atomic<int> within = 0;              // passes within the one that is watched
    void come_by(uint64_t number);
    bool spare(int64_t lacking);
  };
  friend bool spare_gradients(int64_t lacking);
  class Watch;
  class HookWatch;

  static thread_local State* under_way_;

  std::shared_ptr<State> state_;
  State* outer_ = nullptr;  // of the pass that this one is within
  ska::flat_hash_map<const torch::autograd::Node*, uint64_t> leaves_;  // by the first made of the nodes that lead there
  std::vector<std::pair<NodePtr, uintptr_t>> hooks_;
  std::vector<std::pair<NodePtr, torch::autograd::FunctionPreHook*>> before_;
};

}  // namespace koila
