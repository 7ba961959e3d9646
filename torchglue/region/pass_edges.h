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
// call: a node of the region has many outputs, where the program's own had one.
class PassEdges {
 public:
  explicit PassEdges(const torch::autograd::edge_list& roots);
  ~PassEdges();
  PassEdges(const PassEdges&) = delete;
  PassEdges& operator=(const PassEdges&) = delete;

 private:
  struct Taken {
    NodePtr node;
    std::vector<std::pair<size_t, torch::autograd::Edge>> edges;
    std::vector<std::pair<size_t, std::unique_ptr<torch::autograd::FunctionPreHook>>> hooks;           // by their place in the node's list
    std::vector<std::pair<size_t, std::unique_ptr<torch::autograd::FunctionPreHook>>> retains_grad;  // by output
  };
  std::vector<Taken> taken_;
};

// Whether the engine comes by all of the gradient, in a pass from these roots, that flows to a value of a region, whose node `inner` leads to: none of it flows within the region.
bool comes_whole(const torch::autograd::edge_list& roots, const torch::autograd::Edge& inner);

// The regions whose nodes a pass from these roots comes to.
std::vector<std::shared_ptr<Region>> regions_behind(const torch::autograd::edge_list& roots);

}  // namespace koila
