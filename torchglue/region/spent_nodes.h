// Nodes of regions that are over.
#pragma once

#include <torch/csrc/autograd/edge.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "torchglue/compat/node.h"

namespace koila {

class Region;

// Note [Rings of graphs]
// A Function of the program's may keep a graph of its own in its context, and differentiate it in its backward. Where that graph and the Function's result lie in one region, the region's node leads to
// the Function's, which holds the graph, which leads to the region's node: a ring that nothing frees, which plain PyTorch, with a node for each operator, has not. What a released region
// hung on is held for nothing: whoever comes by its node is told that it has been used up. So from the step's end on its node holds leaves alone. Where a pass
// asks for the gradients of given tensors, PyTorch first looks for the ways that lead to them, and raises another error where it finds none. Before such a pass, the edges whose ends still live are put back.
class SpentNodes {
 public:
  // A pass comes by the region's node.
  void add(std::shared_ptr<Region> region) { nodes_.push_back({std::move(region), {}}); }
  // Those whose regions are released, that is. No pass is under way.
  void let_go();
  void put_back();

 private:
  // An edge that was let go of. A region tells by its destructor when its node is gone, which a reference to it, be it a weak one, would put off.
  struct Way {
    size_t index;
    uint32_t input;
    NodeWeak to;
    std::weak_ptr<Region> to_region;

    torch::autograd::Edge edge() const;
  };
  struct Spent {
    std::weak_ptr<Region> region;
    std::vector<Way> ways;
  };
  std::vector<Spent> nodes_;
};

// Of the steps of the owner.
SpentNodes& spent_nodes();

}  // namespace koila
