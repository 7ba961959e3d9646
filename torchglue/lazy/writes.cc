#include "torchglue/lazy/writes.h"

#include "torchglue/base/tensor_memory.h"
#include "torchglue/op_traits.h"
#include "torchglue/region/raw_memory.h"
#include "torchglue/region/region.h"
#include "torchglue/statistics/running_arguments.h"
#include "torchglue/step/session.h"

namespace koila {

void note_write_behind(const at::Tensor& t) {
  for (const auto& region : session().live_regions()) {
    if (storage_of(t) != nullptr && region->is_behind(t)) return raw_memory().note(*t.unsafeGetTensorImpl(), /*unseen=*/true);
  }
}

void settle_writes(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments) {
  Session& s = session();
  if (s.live_regions().empty()) return;
  for_each_written(op.schema(), arguments, [&](const at::Tensor& t, int) {
    note_write_behind(t);
    s.before_write(storage_of(t));
  });
  if (!op_traits(op).silent_effect || !uses_batch_statistics(op.schema(), arguments)) return;
  for (const at::Tensor& t : running_statistics(op.schema(), arguments)) s.before_write(storage_of(t));
}

}  // namespace koila
