// Which edges of the regions' nodes a backward pass goes along.
#pragma once

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function_hook.h>

#include <memory>
#include <utility>
#include <vector>

#include "torchglue/compat/node.h"

namespace koila {

class Region;

// Note [Edges that a pass does not need]
// The engine visits every edge of a node that it runs, with an undefined gradient where none flows. From a region's node it would so come to graphs
// that only other results of the region hang on (the generator behind a discriminator's first loss), free them, and call hooks with None.
// For the duration of a pass such edges are taken away; and with them the hooks of the node's outputs that the pass does not come by, which plain PyTorch would not
// call: a node of the region has many outputs, where the program's own had one. A pass that a hook runs has its own, and the outer pass takes its own again after it. The
// engine may be going along a node's list of hooks then: a hook that is taken leaves one in its place that does nothing.
// Hooks of several outputs are called as PyTorch would call them, which runs what was made last first.
class PassEdges {
 public:
  // `targets`: what the pass is for, where that is not everything behind its roots. PyTorch comes by nothing that does not lead there.
  explicit PassEdges(const torch::autograd::edge_list& roots, const torch::autograd::edge_list& targets = {});
  ~PassEdges();
  PassEdges(const PassEdges&) = delete;
  PassEdges& operator=(const PassEdges&) = delete;

  // Whether a pass has any now of the step that this thread works for.
  static bool taken();
  static bool is_within_another();

 private:
  struct Taken {
    NodePtr node;
    std::vector<std::pair<size_t, torch::autograd::Edge>> edges;
    std::vector<std::pair<size_t, std::unique_ptr<torch::autograd::FunctionPreHook>>> hooks;           // by their place in the node's list
    std::vector<std::pair<size_t, std::unique_ptr<torch::autograd::FunctionPreHook>>> retains_grad;  // by output
  };
  // Takes what is there for what is kept, or back: what is kept changes places with what is there.
  void exchange();

  std::vector<Taken> taken_;
  PassEdges* outer_;
};

// Whether the engine comes by all of the gradient, in a pass from these roots, that flows to a value of a region, whose node `inner` leads to: none of it flows within the region.
bool comes_whole(const torch::autograd::edge_list& roots, const torch::autograd::Edge& inner);

// Whether a pass from these roots calls a hook of the program's on a tensor of a region.
bool calls_hooks(const torch::autograd::edge_list& roots, const torch::autograd::edge_list& targets);

// The regions whose nodes a pass from these roots comes to.
std::vector<std::shared_ptr<Region>> regions_behind(const torch::autograd::edge_list& roots);

}  // namespace koila
