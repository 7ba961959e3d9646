#include "torchglue/region/quiet_writes.h"

#include <c10/util/Exception.h>

#include <utility>
#include <vector>

#include "torchglue/oom/events.h"
#include "torchglue/region/deferred.h"
#include "torchglue/region/region.h"
#include "torchglue/tape/tape.h"

namespace koila {

namespace {

std::vector<at::Tensor>& quiet_writes() {
  thread_local auto* tensors = new std::vector<at::Tensor>;  // never destroyed: operators run while a thread ends
  return *tensors;
}

}  // namespace

void note_quiet_write(const at::Tensor& t) {
  const auto entry = deferred_registry().find(t.unsafeGetTensorImpl());
  if (entry.region != nullptr && entry.region->value(entry.value).requires_grad && entry.region->shares_memory(entry.value)) quiet_writes().push_back(t);
}

void check_quiet_writes() {
  if (quiet_writes().empty()) return;
  for (const at::Tensor& t : std::exchange(quiet_writes(), {})) {
    const auto entry = deferred_registry().find(t.unsafeGetTensorImpl());
    const bool marked = entry.region != nullptr && node_of(t) != entry.region->node_of(entry.value);
    TORCH_CHECK_WITH(OutOfMemoryError, !marked, kUnderKoila, "an autograd.Function has written in place to a view of a tensor of the step.");
  }
}

}  // namespace koila
