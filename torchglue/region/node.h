// The autograd node that stands for a region, and the sinks that collect its captures' gradients.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "torchglue/compat/node.h"
#include "torchglue/region/region.h"
#include "torchglue/tape/tape.h"

namespace koila {

// Note [A node that grows]
// Captures and deferred tensors join while the program runs, after the node may have become somebody's next edge. Autograd assigns a
// node's topological number when it gets a parent, and asserts that no edge is added later; so the number is set high once, and
// edges are appended directly. Numbers only prune searches: a high one prunes nothing that could matter.
class RegionNode : public torch::autograd::Node {
 public:
  static constexpr uint64_t kTopologicalNumber = uint64_t{1} << 40;

  explicit RegionNode(std::shared_ptr<Region> region);
  ~RegionNode() override;

  // The capture's gradient will be delivered through an edge of its own; sets capture.edge.
  void add_capture(Capture& capture);
  // Puts another edge there; returns what was there.
  torch::autograd::Edge exchange_edge(size_t i, torch::autograd::Edge edge) { return std::exchange(next_edges_[i], std::move(edge)); }
  static bool stands_for_leaf(const torch::autograd::Node& node);  // that a capture's edge leads to
  // Returns the input number of the node that stands for the deferred tensor.
  int64_t add_output(const at::Tensor& deferred, ValueId value);
  const std::vector<ValueId>& outputs() const { return outputs_; }
  // False of an output whose operator could not join after all.
  bool is_there(ValueId output) const;
  // The value that a tensor with this node stands for.
  ValueId value_of(const at::Tensor& tensor) const { return outputs_[tensor.output_nr()]; }
  const std::shared_ptr<Region>& region() const { return region_; }
  // Whether a pass that brings gradients for these outputs comes by the operator that made the value of `output`: then PyTorch calls the hooks of all of its results.
  bool comes_by_maker(uint32_t output, const std::set<uint32_t>& reached) const;

  // PyTorch runs what was made last first; so their hooks are in this order.
  void order_hooks();
  // A hook may hold what it is called for: a value of this region, whose node holds the hook. Drops those of values that no gradient passes any more.
  void let_go_of_hooks();

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;
  void release_variables() override;
  std::string name() const override { return "KoilaRegion"; }

  static NodePtr owner(torch::autograd::Node* node);

 private:
  std::shared_ptr<Region> region_;
  std::vector<ValueId> outputs_;  // by input number
};

// The region's node that the tensor has; null: it has none, or another one.
const RegionNode* region_node_of(const at::Tensor& tensor);

// Where a micro-batch's gradient of one use of a capture ends.
class GradientSink : public torch::autograd::Node {
 public:
  GradientSink(Region* region, uint32_t use, Rows rows) : Node(/*sequence_nr=*/UINT64_MAX), region_(region), use_(use), rows_(rows) {}
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;
  std::string name() const override { return "KoilaGradientSink"; }

 private:
  Region* region_;  // the sink lives in a micro-batch's graph, which its region owns
  uint32_t use_;
  Rows rows_;
};

}  // namespace koila
