#include "torchglue/rescue/refused_pass.h"

#include <algorithm>
#include <exception>
#include <memory>

#include "torchglue/oom/events.h"
#include "torchglue/region/pass_edges.h"
#include "torchglue/region/region.h"
#include "torchglue/step/session.h"

namespace koila {

RefusedPass::RefusedPass(const torch::autograd::edge_list& roots, bool keep_graph) : roots_(roots), keep_graph_(keep_graph), told_(refusals_told()) {
  for (const auto& region : session().live_regions()) before_.push_back(region.get());
}

RefusedPass::~RefusedPass() {
  if (keep_graph_ || refusals_told() == told_ || std::uncaught_exceptions() == 0) return;
  const auto regions = session().live_regions();
  const auto behind = regions_behind(roots_);
  for (const auto& region : regions) {
    const bool is_new = std::find(before_.begin(), before_.end(), region.get()) == before_.end();
    if (is_new || std::find(behind.begin(), behind.end(), region) != behind.end()) region->end_refused();
  }
}

}  // namespace koila
