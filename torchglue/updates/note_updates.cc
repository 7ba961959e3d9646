#include "torchglue/updates/note_updates.h"

#include "torchglue/base/tensor_memory.h"
#include "torchglue/facts/facts.h"
#include "torchglue/step/session.h"

namespace koila {

void note_updates(const c10::OperatorHandle& op, const OpTraits& traits, at::ArrayRef<c10::IValue> arguments) {
  Session& s = session();
  if (!s.had_backward || s.engine_depth > 0) return;
  if (traits.fused) facts().on_fused_update();
  for_each_written(op.schema(), arguments, [&](const at::Tensor& t, int) {
    if (t.is_leaf() && t.requires_grad()) s.updated.insert(t.unsafeGetTensorImpl());
  });
}

}  // namespace koila
