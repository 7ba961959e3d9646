// Who made a node of a graph, going by its type.
#pragma once

#include <cstdint>

namespace torch::autograd {
struct Node;
}

namespace koila {

enum class NodeKind : uint8_t {
  kOther,       // what Python and C++ users define
  kOperator,    // an operator of PyTorch's
  kLeaf,        // the AccumulateGrad of a leaf
  kCopySlices,  // PyTorch's too: what a base becomes when something differentiable is written into a view of it
  kRegion,      // a region's: it never hangs on a graph of the live tape
};

// Looks the type up, and calls nothing of the node's: the name of one in Python takes Python's lock.
NodeKind kind_of(const torch::autograd::Node& node);

inline bool is_builtin(NodeKind kind) { return kind == NodeKind::kOperator || kind == NodeKind::kCopySlices; }

}  // namespace koila
