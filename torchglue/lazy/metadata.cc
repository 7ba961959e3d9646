#include "torchglue/lazy/metadata.h"

#include <optional>

#include "torchglue/op_traits.h"
#include "torchglue/region/deferred.h"
#include "torchglue/rescue/eager.h"
#include "torchglue/step/session.h"

namespace koila {

namespace {

// How the view of a real tensor that is marked as split is split itself. No region reads the tensor for that: it is about to be another.
std::optional<Mark> mark_of_view(const c10::OperatorHandle& view, at::ArrayRef<c10::IValue> arguments, const at::Tensor& x) {
  const Mark* mark = session().marks.find(x.unsafeGetTensorImpl());
  if (mark == nullptr) return std::nullopt;
  OpCall call = call_of(view, arguments, mark->batch);
  call.args()[0].tensors[0].placement = mark->placement;
  if (ask(op_traits(view).rule, call) != Verdict::kLocal || call.outputs().empty() || !call.outputs()[0].is_shard()) return std::nullopt;
  Mark seen = *mark;
  seen.placement = call.outputs()[0];
  return seen;
}

// In place of the arguments.
void put_result(torch::jit::Stack* stack, size_t arguments, const at::Tensor& result) {
  torch::jit::drop(*stack, arguments);
  stack->emplace_back(result);
}

}  // namespace

void change_metadata(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
  const at::Tensor x = arguments[0].toTensor();
  const auto entry = deferred_registry().find(x.unsafeGetTensorImpl());
  const auto view = view_instead(op);
  if (view && entry.region != nullptr && !entry.region->materialised(entry.value)) {
    torch::jit::Stack made(arguments.begin(), arguments.end());
    view->callBoxed(made);
    const at::Tensor seen = made[0].toTensor();
    const auto as_view = deferred_registry().find(seen.unsafeGetTensorImpl());
    if (as_view.region == entry.region && !entry.region->materialised(entry.value)) {
      if (seen.is_same(x)) return put_result(stack, arguments.size(), x);
      c10::TensorImpl* impl = x.unsafeGetTensorImpl();
      impl->set_sizes_and_strides(seen.sizes(), seen.strides(), seen.storage_offset());
      impl->bump_version();
      entry.region->shared_from_this()->rebind(as_view.value, x);
      return put_result(stack, arguments.size(), x);
    }
  }
  const std::optional<Mark> mark = view ? mark_of_view(*view, arguments, x) : std::nullopt;
  if (entry.region != nullptr) entry.region->shared_from_this()->hand_over(entry.value, x, /*whole=*/true);
  session().marks.remove(x.unsafeGetTensorImpl());
  run_eagerly(op, keys, stack);
  if (mark) session().marks.add(x, mark->placement, mark->batch, mark->micro_batch);
}

}  // namespace koila
