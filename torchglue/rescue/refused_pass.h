// What a backward pass that is refused leaves behind.
#pragma once

#include <torch/csrc/autograd/edge.h>

#include <cstdint>
#include <vector>

namespace koila {

class Region;

// Lives as long as a pass of the program's. Where that is refused and was to use up its graph, its regions let go of the graphs that they hang on: see Note [What a region may own]. A pass
// that was to keep the graph may be tried again.
class RefusedPass {
 public:
  RefusedPass(const torch::autograd::edge_list& roots, bool keep_graph);
  ~RefusedPass();
  RefusedPass(const RefusedPass&) = delete;
  RefusedPass& operator=(const RefusedPass&) = delete;

 private:
  const torch::autograd::edge_list& roots_;
  const bool keep_graph_;
  const int64_t told_;
  std::vector<const Region*> before_;  // those that lived when it began
};

}  // namespace koila
