// Which edges of the regions' nodes a backward pass goes along.
#pragma once

#include <torch/csrc/autograd/edge.h>

#include <utility>
#include <vector>

#include "torchglue/compat/node.h"

namespace koila {

// Note [Edges that a pass does not need]
// The engine visits every edge of a node that it runs, with an undefined gradient where none flows. From a region's node it would so come to graphs
// that only other results of the region hang on (the generator behind a discriminator's first loss), free them, and call hooks with None.
// For the duration of a pass such edges are taken away.
class PassEdges {
 public:
  explicit PassEdges(const torch::autograd::edge_list& roots);
  ~PassEdges();
  PassEdges(const PassEdges&) = delete;
  PassEdges& operator=(const PassEdges&) = delete;

 private:
  std::vector<std::pair<NodePtr, std::vector<std::pair<size_t, torch::autograd::Edge>>>> taken_;
};

}  // namespace koila
