#include "torchglue/lazy/question.h"

#include <c10/core/AutogradState.h>

#include <algorithm>
#include <utility>

#include "torchglue/base/tensor_memory.h"
#include "torchglue/compat/hooks.h"
#include "torchglue/lazy/writes.h"
#include "torchglue/oom/events.h"
#include "torchglue/op_traits.h"
#include "torchglue/region/deferred.h"
#include "torchglue/region/real_values.h"
#include "torchglue/step/session.h"

namespace koila {

namespace {

// Puts a value that another region gives up under a mark, so that what follows can be split again.
void hand_over(const SplitArgument& argument) {
  session().log(KOILA_LOG_TRACE, "a value of another region, or one with a graph from outside, is materialised");
  argument.region->shared_from_this()->hand_over(argument.value, argument.tensor);
}

}  // namespace

Question question_about(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments) {
  Session& s = session();
  DeferredRegistry& registry = deferred_registry();
  const bool grad_mode = c10::AutogradState::get_tls_state().get_grad_mode();
  Question q{call_of(op, arguments, 0), {}, {}, {}, {}};
  for_each_tensor(arguments, [&](const at::Tensor& t, int i, int j) {
    if (q.must_read.defined()) return;
    SplitArgument split;
    split.tensor = t;
    split.at = {i, j};
    const auto entry = registry.find(t.unsafeGetTensorImpl());
    if (entry.region != nullptr) {
      const bool real = entry.region->materialised(entry.value);
      if (!entry.region->lies_in(entry.value, storage_of(t))) {
        refuse_split_step(describe_out_of_memory(op.schema().name()), "a tensor inside the step was given other memory (.data = ...).", entry.region->batch());
      }
      if (is_outsider(t, entry)) {
        q.opaque = t;
        return;
      }
      // A value that exists is as good as any real tensor, unless its gradient must reach the region, or the region has ended: then another goes on from it, as from a marked one.
      if (real && !(grad_mode && t.requires_grad()) && entry.region->open()) return;
      if (!real || entry.region->open()) {
        split.region = entry.region;
        split.value = entry.value;
      } else if (t.requires_grad()) {  // another region may go on from it
        entry.region->consume(entry.value);
      }
      split.placement = entry.region->value(entry.value).placement;
      split.batch = entry.region->batch();
      split.micro_batch = entry.region->micro_batch();
    } else if (registry.any() && registry.awaits_value(storage_of(t))) {
      q.must_read = t;
      return;
    } else if (const Mark* mark = s.marks.find(t.unsafeGetTensorImpl())) {
      split.placement = mark->placement;
      split.batch = mark->batch;
      split.micro_batch = mark->micro_batch;
    } else {
      return;
    }
    if (split.region == nullptr && !split.placement.is_shard()) return;
    q.call.args()[i].tensors[j < 0 ? 0 : j].placement = split.placement;
    q.split.push_back(std::move(split));
  });
  return q;
}

at::Tensor MasksOfCall::read(OpCall::ArgRef ref) {
  const at::Tensor t = argument(ref);
  for (const SplitArgument& a : q_.split) {
    if (a.region != nullptr && a.tensor.is_same(t)) {  // its value is needed
      q_.mask = a.tensor;
      return {};
    }
  }
  return t;
}

OpCall call_for(const Region& region, const c10::OperatorHandle& op, Question& q, MasksOfCall& masks) {
  OpCall call(op.schema(), region.batch());
  call.set_counter(masks);
  call.args() = std::move(q.call.args());
  for (OpCall::Arg& arg : call.args()) {
    for (TensorSpec& t : arg.tensors) {
      if (t.placement.is_shard() && t.sizes[t.placement.dim] != t.placement.extent(region.batch())) t.placement = Placement::replicate();
    }
  }
  return call;
}

std::shared_ptr<Region> choose_region(Question& q) {
  Session& s = session();
  Region* chosen = nullptr;
  for (const SplitArgument& a : q.split) {
    if (a.region == nullptr || !a.region->open()) continue;
    if (chosen == nullptr || a.region == s.current.get()) chosen = a.region;
  }
  bool changed = false;
  for (const SplitArgument& a : q.split) {
    if (a.region != nullptr && a.region != chosen) {
      hand_over(a);
      changed = true;
    }
  }
  if (changed) return nullptr;
  if (chosen != nullptr) return chosen->shared_from_this();
  const SplitArgument& seed = q.split.front();
  return s.region_for(seed.batch, seed.micro_batch, seed.tensor.device());
}

void hand_over_all(const Question& q) {
  for (const SplitArgument& a : q.split) {
    if (a.region != nullptr) hand_over(a);
  }
}

bool settle_outsider(const c10::OperatorHandle& op, const Question& q) {
  if (q.must_read.defined()) {
    session().log(KOILA_LOG_TRACE, "lazy " + op.schema().name() + " reads an alias that no region knows");
    materialise_tensor(q.must_read);
    if (op_traits(op).writes) {
      note_write_behind(q.must_read);
      session().before_write(storage_of(q.must_read));
    }
    return true;
  }
  if (!q.opaque.defined()) return false;
  session().functions = true;
  const auto entry = deferred_registry().find(q.opaque.unsafeGetTensorImpl());
  const Value& value = entry.region->value(entry.value);
  hand_over({q.opaque, entry.region, entry.value, value.placement, entry.region->batch(), entry.region->micro_batch()});
  return true;
}

bool end_stage_at_hook(const Question& q) {
  if (!c10::AutogradState::get_tls_state().get_grad_mode()) return false;
  const auto hooked = std::find_if(q.split.begin(), q.split.end(), [](const SplitArgument& a) { return a.region != nullptr && a.tensor.requires_grad() && is_hooked(a.tensor); });
  if (hooked == q.split.end()) return false;
  hooked->region->shared_from_this()->end_stage();
  return true;
}

bool materialise_split(const std::vector<SplitArgument>& split, bool but_for_the_step_within) {
  std::vector<std::pair<std::shared_ptr<Region>, std::vector<ValueId>>> by_region;
  for (const SplitArgument& a : split) {
    if (a.region == nullptr || (but_for_the_step_within && a.region->depth() == session().engine_depth)) continue;
    auto its = std::find_if(by_region.begin(), by_region.end(), [&](const auto& entry) { return entry.first.get() == a.region; });
    if (its == by_region.end()) its = by_region.insert(its, {a.region->shared_from_this(), {}});
    its->second.push_back(a.value);
  }
  for (const auto& [region, values] : by_region) region->materialise(values);
  return !by_region.empty();
}

void gather(const OpCall& call, const Question& q, Region& region) {
  region.end_stage();
  for (const SplitArgument& a : q.split) {
    const bool gathered = call.is_whole(a.at);
    // A value of a closed region is known to be split by its entry, any other real tensor by its mark.
    const auto entry = deferred_registry().find(a.tensor.unsafeGetTensorImpl());
    if (entry.region != nullptr && (a.region != nullptr || gathered)) entry.region->shared_from_this()->hand_over(entry.value, a.tensor, gathered);
    if (gathered) session().marks.remove(a.tensor.unsafeGetTensorImpl());
  }
}

const SplitArgument* deferred_at(const Question& q, int argument) {
  const auto found = std::find_if(q.split.begin(), q.split.end(), [&](const SplitArgument& a) { return a.region != nullptr && a.at == OpCall::ArgRef{argument}; });
  return found == q.split.end() ? nullptr : &*found;
}

bool would_cycle(const Region& region, at::ArrayRef<c10::IValue> arguments) {
  bool cycle = false;
  for_each_tensor(arguments, [&](const at::Tensor& t, int, int) {
    if (deferred_registry().find(t.unsafeGetTensorImpl()).region != &region) cycle |= region.would_cycle(t);
  });
  return cycle;
}

}  // namespace koila
