#include "torchglue/region/quiet_writes.h"

#include <c10/core/AutogradState.h>
#include <c10/util/Exception.h>

#include <utility>
#include <vector>

#include "torchglue/oom/events.h"
#include "torchglue/region/deferred.h"
#include "torchglue/region/node.h"
#include "torchglue/region/region.h"
#include "torchglue/tape/tape.h"

namespace koila {

namespace {

struct QuietWrite {
  at::Tensor written;
  const torch::autograd::Node* node;  // that it had then; for comparison only
};

std::vector<QuietWrite>& quiet_writes() {
  thread_local auto* writes = new std::vector<QuietWrite>;  // never destroyed: operators run while a thread ends
  return *writes;
}

// Whether the tensor is a value of a region, or was one, and shares its memory with another.
bool is_one_of_several(const at::Tensor& t) {
  const auto entry = deferred_registry().find(t.unsafeGetTensorImpl());
  if (entry.region != nullptr) return entry.region->value(entry.value).requires_grad && entry.region->shares_memory(entry.value);
  const RegionNode* its = region_node_of(t);
  return its != nullptr && !its->region()->released() && its->region()->shares_memory(its->value_of(t));
}

}  // namespace

void note_quiet_write(const at::Tensor& t) {
  if (!c10::AutogradState::get_tls_state().get_grad_mode() && is_one_of_several(t)) quiet_writes().push_back({t, node_of(t)});
}

void check_quiet_writes() {
  if (quiet_writes().empty()) return;
  for (const auto& [t, node] : std::exchange(quiet_writes(), {})) {
    const auto entry = deferred_registry().find(t.unsafeGetTensorImpl());
    const bool marked = node_of(t) != (entry.region != nullptr ? entry.region->node_of(entry.value) : node);
    TORCH_CHECK_WITH(OutOfMemoryError, !marked, kUnderKoila, "an autograd.Function has written in place to a view of a tensor of the step.");
  }
}

}  // namespace koila
