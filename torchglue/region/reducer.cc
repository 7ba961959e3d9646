#include "torchglue/region/reducer.h"

#include <torch/csrc/autograd/variable.h>

#include <optional>

#include "torchglue/region/pass_edges.h"
#include "torchglue/region/region.h"
#include "torchglue/step/session.h"

namespace koila {

namespace {

PrepareForBackwardFn real_prepare_for_backward = nullptr;

}  // namespace

void set_real_prepare_for_backward(PrepareForBackwardFn real) { real_prepare_for_backward = real; }

// Note [Unused parameters]
// The reducer (find_unused_parameters=True) walks the graph behind the outputs, and waits for the gradient of every parameter that it meets. A region is one node, with the
// edges of all that joined it: those of a head whose output the program has dropped as well. For the search it has the edges behind these outputs.
void prepare_for_backward(void* reducer, const std::vector<at::Tensor>& outputs) {
  Session& s = session();
  std::optional<PassEdges> edges;
  if (s.rescue && std::this_thread::get_id() == s.owner && !s.live_regions().empty()) {
    torch::autograd::edge_list roots;
    for (const at::Tensor& output : outputs) {
      if (output.defined() && output.grad_fn()) roots.push_back(torch::autograd::impl::gradient_edge(output));
    }
    edges.emplace(roots);
  }
  real_prepare_for_backward(reducer, outputs);
}

}  // namespace koila
