#include "torchglue/lazy/writes.h"

#include <c10/core/AutogradState.h>

#include <algorithm>

#include "torchglue/base/tensor_memory.h"
#include "torchglue/base/tls.h"
#include "torchglue/compat/hooks.h"
#include "torchglue/compat/node.h"
#include "torchglue/oom/events.h"
#include "torchglue/op_traits.h"
#include "torchglue/region/constant_views.h"
#include "torchglue/region/deferred.h"
#include "torchglue/region/node.h"
#include "torchglue/region/quiet_writes.h"
#include "torchglue/region/raw_memory.h"
#include "torchglue/region/region.h"
#include "torchglue/statistics/running_arguments.h"
#include "torchglue/step/session.h"
#include "torchglue/tape/node_kind.h"

namespace koila {

void note_write_behind(const at::Tensor& t) {
  for (const auto& region : session().live_regions()) {
    if (storage_of(t) != nullptr && region->is_behind(t)) return raw_memory().note(*t.unsafeGetTensorImpl(), /*unseen=*/true);
  }
}

namespace {

// Whether the value has left its region, and something that shares its memory there is alive: PyTorch does not know that the two do, and would give the graph of a write to the one alone.
bool is_parted(const at::Tensor& t, const RegionNode& node) {
  if (deferred_registry().find(t.unsafeGetTensorImpl()).region != nullptr || node.region()->released()) return false;
  const ValueId value = node.value_of(t);
  return t.storage().use_count() > 1 && node.is_there(value) && node.region()->shares_memory(value);
}

// A view that was made of a value when that had its memory: the graph of a write to it becomes the value's, as PyTorch has it. Whether something else of the region that is alive, and no view to
// PyTorch, shares that memory and would not get it.
bool is_view_of_a_part(const at::Tensor& t) {
  const at::Tensor base = t.is_view() ? at::Tensor(t._base()) : at::Tensor();
  const RegionNode* its = base.defined() ? region_node_of(base) : nullptr;
  if (its == nullptr || its->region()->released()) return false;
  const uint32_t group = its->region()->value(its->value_of(base)).group;
  return std::any_of(its->outputs().begin(), its->outputs().end(), [&](ValueId v) {
    const Value& other = its->region()->value(v);
    return its->is_there(v) && other.group == group && other.impl != nullptr && !are_related(at::Tensor(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(other.impl)), base);
  });
}

}  // namespace

void refuse_write_to_a_part(const at::Tensor& t) {
  if (!c10::AutogradState::get_tls_state().get_grad_mode()) return;
  bool part = is_view_of_a_part(t);
  if (const RegionNode* node = region_node_of(t); node != nullptr && !part) {
    const auto regions = session().live_regions();
    part = is_parted(t, *node) || std::any_of(regions.begin(), regions.end(), [&](const auto& region) { return region->is_behind(t); });
  }
  TORCH_CHECK_WITH(OutOfMemoryError, !part, kUnderKoila, "an operator writes in place to a view of a tensor of the step, which it cannot split.");
}

// Note [Writes that backward finds]
// PyTorch's backward pass raises where a value that it has saved was written to since. A value that has its memory is written to outside of its region, which would go on with what it
// makes again. So the region is told of the write by an instruction that leaves everything as it is (the value is copied to itself), and that no pass needs; what is saved
// of a micro-batch's part then counts as written to (see Region::BackwardPass).
void tell_of_write(const at::Tensor& t) {
  static const auto copy = c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "");
  if (session().engine_depth > 0) return;
  at::Tensor written = t;
  auto entry = deferred_registry().find(t.unsafeGetTensorImpl());
  if (entry.region == nullptr && t.is_view()) {  // made when the value had its memory already
    written = t._base();
    entry = deferred_registry().find(written.unsafeGetTensorImpl());
  }
  if (entry.region == nullptr || entry.region->released() || !entry.region->differentiable() || !entry.region->materialised(entry.value)) return;
  const Value& value = entry.region->value(entry.value);
  // Where a micro-batch's part may be a view of what is a copy at the full batch, one write says nothing of the other.
  if (entry.region->group(value.group).uncertain || !entry.region->lies_in(entry.value, storage_of(written))) return;
  const torch::jit::Stack arguments{written, written, false};
  OpCall call = call_of(copy, arguments, entry.region->batch());
  call.args()[0].tensors[0].placement = call.args()[1].tensors[0].placement = value.placement;
  call.output(0, value.placement);
  OpState state = OpState::current();
  state.grad_mode = false;
  Region::KnownOutput same;
  same.handed_back = written;
  const auto region = entry.region->shared_from_this();
  region->add_known({copy, call, arguments, /*random=*/false, &state}, {same});
  if (ToldOfWrites::current_ != nullptr) ToldOfWrites::current_->told_.push_back({region, region->operators()});
}

thread_local ToldOfWrites* ToldOfWrites::current_ = nullptr;

ToldOfWrites::~ToldOfWrites() {
  current_ = outer_;
  if (std::uncaught_exceptions() <= exceptions_) return;
  for (auto it = told_.rbegin(); it != told_.rend(); ++it) {
    if (!it->region->released() && it->region->operators() == it->instructions) it->region->take_back_told();
  }
}

namespace {

// Hands the gradient on to the region's node.
class OfOneValue final : public torch::autograd::Node {
 public:
  OfOneValue(torch::autograd::Edge region, const at::Tensor& tensor) {
    add_input_metadata(tensor);
    add_next_edge(std::move(region));
  }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override { return std::move(gradients); }
  std::string name() const override { return "KoilaOfOneValue"; }
};

// PyTorch looks for what retain_grad() has put on a tensor under the first output of its node when the tensor is written to in place. A region's node has many outputs: such a tensor gets a node of its own.
void give_own_node(const at::Tensor& t) {
  auto* meta = torch::autograd::impl::get_autograd_meta(t);
  if (meta == nullptr || !meta->retains_grad_ || meta->output_nr_ == 0 || !meta->grad_fn_ || kind_of(*meta->grad_fn_) != NodeKind::kRegion) return;
  if (const auto entry = deferred_registry().find(t.unsafeGetTensorImpl()); entry.region != nullptr) entry.region->shared_from_this()->hand_over(entry.value, t);
  const torch::autograd::Edge region(meta->grad_fn_, meta->output_nr_);
  auto retaining = region.function->pop_retains_grad_hook(region.input_nr);
  set_output_of(*retaining, 0);
  NodePtr own = make_node<OfOneValue>(region, t);
  own->add_retains_grad_hook(std::move(retaining), 0);
  torch::autograd::impl::set_gradient_edge(t, torch::autograd::Edge(std::move(own), 0));
}

// PyTorch gives a view that is written to another node, whichever tensor of the same memory the write names, and what hooks there are stay with the old one, which nothing leads to any more. A
// region has one node for both.
void refuse_hooked_view(const Region& region, c10::function_ref<bool(const Value&)> is_written) {
  const NodePtr owner = region.node();
  if (owner == nullptr) return;
  const auto& node = static_cast<const RegionNode&>(*owner);
  for (ValueId v : node.outputs()) {
    if (!node.is_there(v)) continue;
    const Value& value = region.value(v);
    if (value.impl == nullptr || !is_written(value) || (region.group(value.group).base == v && !value.hidden_base)) continue;
    const bool hooked = is_hooked(at::Tensor(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(value.impl)));
    TORCH_CHECK_WITH(OutOfMemoryError, !hooked, kUnderKoila, "a view that has a hook (register_hook, retain_grad) is written to in place.");
  }
}

void refuse_write_to_hooked_view(const at::Tensor& t) {
  const auto entry = deferred_registry().find(t.unsafeGetTensorImpl());
  if (entry.region != nullptr) {
    const uint32_t group = entry.region->value(entry.value).group;
    return refuse_hooked_view(*entry.region, [&](const Value& value) { return value.group == group; });
  }
  if (t.unsafeGetTensorImpl()->version_counter().unique()) return;  // by `.data`: the write counts for nobody else
  for (const auto& region : session().live_regions()) {
    refuse_hooked_view(*region, [&](const Value& value) {
      const Group& group = region->group(value.group);
      return group.has_its_value_in(storage_of(t));
    });
  }
}

}  // namespace

void take_written_out(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments) {
  if (!c10::AutogradState::get_tls_state().get_grad_mode() || !any_requires_grad(arguments)) return;
  for_each_written(op.schema(), arguments, [&](const at::Tensor& t, int) {
    const auto entry = deferred_registry().find(t.unsafeGetTensorImpl());
    if (entry.region == nullptr) return refuse_write_to_a_part(t);
    entry.region->shared_from_this()->hand_out_group(entry.value, /*with_graph=*/true);
  });
}

void settle_writes(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments) {
  Session& s = session();
  if (s.live_regions().empty()) return;
  for_each_written(op.schema(), arguments, [&](const at::Tensor& t, int) {
    TORCH_CHECK_WITH(OutOfMemoryError, !s.saved_results.has(storage_of(t)), kUnderKoila,
                     "an operator writes in place to a result along the batch, which plain PyTorch has saved for backward.");
    refuse_write_to_hooked_view(t);
    note_quiet_write(t);
    note_write_behind(t);
    // A write through a view gives its base another node; and one without gradients may be a Function's, which says so afterwards (mark_dirty).
    give_own_node(t.is_view() ? at::Tensor(t._base()) : t);
    if (!op_traits(op).metadata) {
      refuse_write_to_a_part(t);
      tell_of_write(t);
    }
    s.before_write(storage_of(t));
  });
  if (!op_traits(op).silent_effect || !uses_batch_statistics(op.schema(), arguments)) return;
  for (const at::Tensor& t : running_statistics(op.schema(), arguments)) s.before_write(storage_of(t));
}

}  // namespace koila
