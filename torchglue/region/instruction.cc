// What a region notes of an operator that joins, and the captures that it reads.
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/variable.h>

#include <functional>
#include <thread>

#include "torchglue/base/foreign_memory.h"
#include "torchglue/base/source_line.h"
#include "torchglue/base/tensor_memory.h"
#include "torchglue/memory/origin.h"
#include "torchglue/op_traits.h"
#include "torchglue/proof/invariants.h"
#include "torchglue/proof/key.h"
#include "torchglue/proof/proof.h"
#include "torchglue/region/boundary_store.h"
#include "torchglue/region/deferred.h"
#include "torchglue/region/half_sums.h"
#include "torchglue/region/node.h"
#include "torchglue/region/random_scope.h"
#include "torchglue/region/real_values.h"
#include "torchglue/region/region.h"
#include "torchglue/step/session.h"
#include "torchglue/tape/written_since.h"

namespace koila {

namespace {

// contiguous() of one row may find nothing to do where the full batch is copied: then micro-batches clone, which takes the same arguments.
bool copies_at_full_size(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments) {
  if (op.schema().name() != "aten::contiguous") return false;
  const auto format = arguments[1].isNone() ? c10::MemoryFormat::Contiguous : arguments[1].toMemoryFormat();
  return !arguments[0].toTensor().is_contiguous(format);
}

// A view holds its base, and the base may be a value of the region that reads the view: the two would hold each other. A view that takes no gradient is
// read through a handle that has no base.
at::Tensor without_base(const at::Tensor& tensor) {
  return tensor.requires_grad() || torch::autograd::impl::get_view_autograd_meta(tensor) == nullptr ? tensor : handle_of(tensor);
}

}  // namespace

// Note [Captures that are moved]
// `parameter.data = other` gives a tensor other memory, and no version tells: averaged weights that a teacher's pass reads, adapters that are merged into them. Operators read what lay there when they joined, and
// hold it. What plain's backward pass reads of a leaf is what it is by then: see Region::check_captures(). What a region has made gets its memory in other ways.
void note_memory(Capture& capture) {
  capture.data = memory_of(capture.tensor);
  const c10::StorageImpl* storage = storage_of(capture.tensor);
  const bool is_made = storage == nullptr || boundaries().is_one(storage) || deferred_registry().awaits_value(storage);
  if (is_made || session().fresh_zeros.has(capture.tensor)) {
    capture.there.reset();
  } else {
    capture.there = handle_of(capture.tensor);
  }
}

uint32_t Region::capture(const at::Tensor& tensor) {
  if (tensor.requires_grad()) tensor.grad_fn();  // which a view of what was written to makes anew when it is asked for
  const uint32_t version = version_of(tensor);
  auto it = capture_index_.find(tensor.unsafeGetTensorImpl());
  if (it != capture_index_.end()) {
    const Capture& known = captures_[it->second];
    const bool moved = !known.before.defined() && known.is_moved();
    if (known.version == version && known.requires_grad == tensor.requires_grad() && known.graph == koila::node_of(tensor) && !moved && !differs_from(known.foreign, tensor)) return it->second;
  }
  // The tape must not make something else of it, or of the graph that it hangs on, now that this region reads it.
  if (!session().converting) session().tape.settle(tensor);
  let_go_of_region(tensor);
  const auto id = static_cast<uint32_t>(captures_.size());
  capture_index_.insert_or_assign(tensor.unsafeGetTensorImpl(), id);
  captures_.push_back({without_base(tensor), version, memory_of(tensor), tensor.requires_grad(), -1, {}, koila::node_of(tensor),
                       c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr()), foreign_digest(tensor), false, {}});
  if (const at::Tensor written = written_since().original_of(tensor); written.defined()) {
    let_go_of_region(written);
    captures_[id].before = tensor;
    captures_[id].tensor = without_base(written);
  }
  note_memory(captures_[id]);
  if (captures_[id].requires_grad && node_ != nullptr) static_cast<RegionNode*>(node_)->add_capture(captures_[id]);
  return id;
}

uint32_t Region::use(uint32_t capture, const Placement& placement) {
  for (uint32_t u = 0; u < uses_.size(); ++u) {
    if (uses_[u].capture == capture && uses_[u].placement == placement) return u;
  }
  uses_.push_back({capture, placement});
  return static_cast<uint32_t>(uses_.size() - 1);
}

// Where an operator is called, for what is said if a check finds it wrong; looked for as long as that may be.
uint32_t Region::line_to_tell_of(const c10::OperatorHandle& op) const {
  Session& s = session();
  constexpr int kTimes = 3;  // that a step like this one may still be a new one to the check
  if (!s.verifies() || s.owner != std::this_thread::get_id()) return 0;
  if (!s.verifies_always() && ++s.proven.lines[combined(combined(std::hash<const void*>()(&op.schema()), instructions_.size()), static_cast<size_t>(batch_))] > kTimes) return 0;
  return python_line_now();
}

namespace {

OpState state_of(const Region::Call& call, const OpTraits& traits) {
  if (call.state != nullptr) return *call.state;
  OpState state = OpState::current();
  state.saves_by_hook |= state.grad_mode && session().in_checkpoint != nullptr;
  if (traits.attention) state.attention = kinds_of_attention();
  return state;
}

}  // namespace

Instruction Region::instruction_for(const Call& call) {
  const OpTraits& traits = op_traits(call.op);
  const auto& instead = call.answer.instead();
  const bool copies = copies_at_full_size(call.op, call.arguments);
  Instruction in{copies ? c10::Dispatcher::singleton().findSchemaOrThrow("aten::clone", "") : instead ? c10::Dispatcher::singleton().findSchemaOrThrow(instead->name.c_str(), instead->overload.c_str()) : call.op, {}, {}, state_of(call, traits)};
  if (instead) in.state.excluded = in.state.excluded | c10::autocast_dispatch_keyset;  // autocast does with aten::sum what it does not do with aten::mean
  in.in_place = traits.in_place;
  in.random = call.random;
  in.by_user = traits.rule != nullptr && traits.rule->fn.user() != nullptr;
  if (in.random) in.seed = fresh_seed(device_);
  in.place = place_in_progress();
  in.line = in.place != 0 || session().converting ? in.place : line_to_tell_of(in.op);
  in.scale_by_rows = call.answer.outputs_scaled_by_rows();
  in.keeps_float = (traits.may_view || traits.in_place) && !converts(in.op) && gives_partial(call);
  const auto& asked = call.answer.args();
  in.arguments.resize(call.arguments.size());
  // Parameters get their gradients in the order of an operator's arguments, but for the weight of a linear layer, which it transposes. The
  // last to be captured is served first, see Note [Leaves in their turn].
  const size_t last = call.arguments.size() - 1;
  const bool forwards = call.op.schema().name() == "aten::linear";
  for (size_t n = 0; n < call.arguments.size(); ++n) {
    const size_t i = forwards ? n : last - n;
    Argument& argument = in.arguments[i];
    argument.is_tensor = asked[i].is_tensor;
    argument.is_list = asked[i].is_tensor_list;
    if (!argument.is_tensor && !argument.is_list) {
      argument.constant = call.arguments[i];
      continue;
    }
    argument.is_optional_list = call.arguments[i].isOptionalTensorList();
    argument.operands.resize(asked[i].tensors.size());
    const auto join = [&](const at::Tensor& t, int element) {
      const size_t j = element < 0 ? 0 : static_cast<size_t>(element);
      Operand& operand = argument.operands[j];
      Placement placement = asked[i].tensors[j].placement;
      for (const OpCall::Slice& s : call.answer.slices()) {
        if (s.arg.arg == static_cast<int>(i) && (s.arg.element < 0 ? 0u : static_cast<size_t>(s.arg.element)) == j) placement = s.placement;
      }
      const auto entry = deferred_registry().find(t.unsafeGetTensorImpl());
      if (entry.region == this && placement == values_[entry.value].placement) {
        operand = {Operand::Kind::kValue, entry.value, false};
        return;
      }
      // A value of the region that exists, and was taken for the whole that it is: a constant, like any other.
      const NoInterceptGuard no_intercept;
      const at::Tensor read = entry.region == this ? t.detach() : t;
      operand = {Operand::Kind::kUse, use(capture(read), placement), false};
      const Capture& captured = captures_[uses_[operand.id].capture];
      if (captured.requires_grad != read.requires_grad() || captured.graph != koila::node_of(read)) broken(invariant::kCapturesKeepTheirGraph, "an operand of " + call.op.schema().name());
    };
    const c10::IValue& v = call.arguments[i];
    if (v.isTensor()) {
      if (v.toTensor().defined()) join(v.toTensor(), -1);
    } else if (v.isList()) {
      const auto elements = v.toListRef();
      for (size_t j = 0; j < elements.size(); ++j) {
        if (elements[j].isTensor() && elements[j].toTensor().defined()) join(elements[j].toTensor(), static_cast<int>(j));
      }
    }
  }
  for (const auto& [arg, value] : call.answer.replaced()) in.arguments[arg].constant = value;
  for (const OpCall::Literal& literal : call.answer.literals()) {
    in.arguments[literal.arg].literals.push_back(literal);
  }
  if (instead) {
    for (const c10::IValue& value : instead->more) in.arguments.emplace_back().constant = value;
  }
  for (int arg : call.answer.weighted()) {
    in.arguments[arg].weighted = true;
    for (Operand& operand : in.arguments[arg].operands) operand.weighted = true;
  }
  if (call.answer.denominator()) {
    const std::vector<c10::IValue> full(call.arguments.begin(), call.arguments.end());
    NoInterceptGuard no_intercept;
    at::AutoDispatchBelowADInplaceOrView no_autograd;
    in.denominator = static_cast<int32_t>(use(capture(call.answer.denominator()(full)), Placement::replicate()));
  }
  return in;
}

}  // namespace koila
