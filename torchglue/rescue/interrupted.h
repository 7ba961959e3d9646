// A backward pass that may stop in the middle, and what of it is then still to be done.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "torchglue/compat/node.h"
#include "torchglue/rescue/hooks_in_pass.h"
#include "torchglue/rescue/past_bridges.h"
#include "torchglue/tape/tape.h"

namespace koila {

// Note [No roll-back]
// In one backward pass each leaf receives its gradient once, and whole: the engine runs an AccumulateGrad when everything that
// feeds it is done. So when a pass runs out of memory in the middle, the leaves that have theirs are finished (and their hooks have rightly
// fired), and only the others are still to be served. Nothing is undone; the second pass is limited to them.
// Whether a leaf has been served shows in its .grad, except where hooks may put that back as it was (they step an optimizer, offload the
// gradient): such a leaf is watched by a hook of our own, in front of the program's.
// Graphs from before the tape, other regions' among them, are not made anew, and the first pass may have used them up. They are watched
// where the tape's graph hangs on them.
//
// Note [Passes within a pass]
// A hook, or the backward of a Function, may run a pass of its own, which comes by the same nodes and leaves (an adjoint method differentiates the step's function once more; a re-entrant checkpoint
// accumulates into a weight that is tied to one outside of it). What it does there is not the outer pass's: it has brought nothing past a bridge, and what it adds to a leaf's gradient is
// what the leaf had before the pass.
class InterruptedPass {
 public:
  // Before the pass. Watches until stop_watching(). `functions`: there are autograd.Functions in the graph that the tape knows of.
  InterruptedPass(const Tape& tape, const torch::autograd::edge_list& roots, bool keep_graph, bool functions, bool accumulate_grad);
  ~InterruptedPass() { stop_watching(); }
  InterruptedPass(const InterruptedPass&) = delete;
  InterruptedPass& operator=(const InterruptedPass&) = delete;

  void stop_watching();

  // The outputs that a second pass is for, of the `outputs` that the first was for (none: all leaves); nothing when there is nothing left to
  // do. Throws CannotConvert when that cannot be told, or when the second pass would need a graph that the first has used up.
  std::optional<torch::autograd::edge_list> remaining(const torch::autograd::edge_list& roots, const torch::autograd::edge_list& outputs) const;

  const PastBridges& past() const { return past_; }
  const HooksInPass& hooks() const { return hooks_; }

  // A pass of the program's within the one that is under way, from any thread of the engine's that works for the step.
  class Within {
   public:
    Within();
    ~Within();
    Within(const Within&) = delete;
    Within& operator=(const Within&) = delete;

   private:
    InterruptedPass* outer_;
    std::vector<char> served_;  // by leaf of the outer pass: what has changed before this one
    std::vector<char> hooked_;  // by node with hooks: what the outer pass had come by
  };

 private:
  struct Leaf {
    at::Tensor variable;
    const c10::TensorImpl* gradient;  // before the pass
    uint32_t version;
    std::shared_ptr<bool> reached;   // null: not watched
    std::shared_ptr<bool> finished;  // whether its last hook has returned; null: it has none behind the accumulation
    bool shares_version = false;    // its gradient is a view: another leaf's accumulation shows in it
  };
  struct Outside {
    NodePtr node;
    std::shared_ptr<bool> ran;
  };

  void note(const at::Tensor& variable);
  void watch_last_hook(Leaf& leaf);
  const Leaf* find(const at::Tensor& variable) const;
  static bool served(const Leaf& leaf);
  static bool changed(const Leaf& leaf);
  static void take_as_before(Leaf& leaf);
  bool runs_checkpoint_again(const torch::autograd::edge_list& roots) const;

  bool keep_graph_;
  bool used_up_;  // a graph is, by its pass: it is freed, or has Functions in it, whose backward may have effects
  bool accumulate_grad_;
  static std::atomic<InterruptedPass*> under_way_;
  InterruptedPass* outer_ = nullptr;
  bool watching_ = true;
  std::vector<Leaf> leaves_;
  std::vector<Outside> outside_;
  PastBridges past_;
  HooksInPass hooks_;
  std::vector<std::pair<at::Tensor, torch::autograd::FunctionPreHook*>> leaf_hooks_;
  std::vector<std::pair<NodePtr, uintptr_t>> node_hooks_;
};

// Whether there are autograd.Functions in the graph, those of earlier steps whose graph was kept included.
bool has_functions(const torch::autograd::edge_list& roots);
// What is said of memory that ran out in one of them; some are those of torch.compile.
std::string ran_out_in_functions(const torch::autograd::edge_list& roots);

// A leaf that the program has frozen since the forward pass gets no gradient in this pass; a later pass along the same graph, in which it is trained again, would find no edge to it. Throws
// CannotConvert where there is one.
void check_not_frozen(const torch::autograd::edge_list& roots);

}  // namespace koila
