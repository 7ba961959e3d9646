#include "torchglue/dispatch.h"

#include <c10/core/AutogradState.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "torchglue/collectives.h"
#include "torchglue/followed.h"
#include "torchglue/kept_arguments.h"
#include "torchglue/op_traits.h"
#include "torchglue/placement/creation.h"
#include "torchglue/placement/user_rules.h"
#include "torchglue/region/deferred.h"
#include "torchglue/region/raw_memory.h"
#include "torchglue/region/real_values.h"
#include "torchglue/rescue/eager.h"
#include "torchglue/rescue/events.h"
#include "torchglue/rescue/guess.h"
#include "torchglue/rescue/named_seeds.h"
#include "torchglue/rescue/oom.h"
#include "torchglue/session.h"
#include "torchglue/stages/running_statistics.h"
#include "torchglue/stages/staged.h"
#include "torchglue/tensor_memory.h"

namespace koila {

namespace {

// One tensor among the arguments that is split, or whose value does not exist.
struct SplitArgument {
  at::Tensor tensor;
  Region* region = nullptr;  // null: real, marked
  ValueId value = kNoValue;
  Placement placement;
  int64_t batch = 0;
  int64_t micro_batch = 0;
  OpCall::ArgRef at{0};
};

// The arguments as the rules see them, and the split ones among them.
struct Question {
  OpCall call;
  std::vector<SplitArgument> split;
  at::Tensor opaque;     // computed in a region, and then given a graph from outside
  at::Tensor mask;       // that the answer depends on, and that has no value yet
  at::Tensor must_read;  // shares a deferred storage in a way that no region knows: it has to be materialised
};

Question ask(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments) {
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
      if (node_of(t) != entry.region->node_of(entry.value) || (t.requires_grad() && !entry.region->value(entry.value).requires_grad)) {
        // An autograd.Function gave it a graph of its own, or the program made it a leaf: to the region it is a tensor from outside.
        q.opaque = t;
        return;
      }
      // A value that exists is as good as any real tensor, unless its gradient must reach the region.
      if (real && !(grad_mode && t.requires_grad())) return;
      if (!real || entry.region->open()) {
        split.region = entry.region;
        split.value = entry.value;
      } else {  // another region may go on from it
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

// Puts a value that another region gives up under a mark, so that what follows can be split again.
void hand_over(const SplitArgument& argument) {
  session().log(KOILA_LOG_TRACE, "a value of another region, or one with a graph from outside, is materialised");
  argument.region->shared_from_this()->hand_over(argument.value, argument.tensor);
}

// The region that the call joins; null when arguments changed and must be looked at again.
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

// Where a constant is to be made: on its own device argument, else beside its first tensor, else on the CPU.
at::Device device_asked_for(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!arguments[i].isDevice() || op.schema().arguments()[i].name() != "device") continue;
    const at::Device device = arguments[i].toDevice();
    return device.is_cpu() || device.has_index() ? device : c10::impl::VirtualGuardImpl(device.type()).getDevice();  // "cuda": the current one
  }
  for (const c10::IValue& v : arguments) {
    if (v.isTensor() && v.toTensor().defined()) return v.toTensor().device();
  }
  return at::kCPU;
}

// Makes the region of a learned seed the current one. The same call again, for another batch: a new step has begun, whether or not there
// was a backward pass between. False when the step is to run whole.
bool begin_with(const LearnedSeed& seed, at::Device device) {
  Session& s = session();
  // What an evaluation has left behind, all of it read, is no part of this step.
  if (s.current && s.current->holds_first_frame() && !s.current->differentiable() && !s.current->has_deferred()) s.current.reset();
  const bool joins = s.current && s.current->open() && s.current->batch() == seed.batch() && s.current->begin_with(seed.key, seed.times);
  const bool goes_on = s.sizes.goes_on(*seed.policy, seed.key, seed.times, c10::AutogradState::get_tls_state().get_grad_mode());
  if (joins) return true;
  if (!goes_on) {
    s.sizes.begin(seed.policy, device);
    s.sizes.goes_on(*seed.policy, seed.key, seed.times, /*with_gradients=*/false);
  }
  if (s.sizes.runs_whole(*seed.policy)) return false;
  s.current.reset();
  s.region_for(seed.batch(), seed.policy->rows(), device)->begin_with(seed.key, seed.times);
  return true;
}

// `named`: rows of the batch, where the program has said so of a tensor that the call reads; else 0.
void mark_learned_seeds(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments, int64_t named) {
  Session& s = session();
  const auto* seeds = s.signatures.find(op, arguments);
  if (seeds == nullptr) return;
  for (const LearnedSeed& seed : *seeds) {
    if ((named > 0 && seed.batch() != named) || s.named.excludes(seed.batch())) continue;
    if (seed.argument < 0) begin_with(seed, device_asked_for(op, arguments));
    for_each_tensor(arguments, [&](const at::Tensor& t, int arg, int element) {
      if (arg != seed.argument || element != seed.element) return;
      if (s.marks.find(t.unsafeGetTensorImpl()) != nullptr || deferred_registry().find(t.unsafeGetTensorImpl()).region != nullptr) return;
      if (begin_with(seed, t.device())) s.marks.add(t, seed.placement, seed.batch(), seed.policy->rows());
    });
  }
}

// A write through `.data` to a value of the step: what was saved of it for backward changes with it, and would not where it is made again.
void note_write_behind(const at::Tensor& t) {
  for (const auto& region : session().live_regions()) {
    if (storage_of(t) != nullptr && region->is_behind(t)) return raw_memory().note(*t.unsafeGetTensorImpl(), /*unseen=*/true);
  }
}

// Regions that read what the call writes to must do so before.
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

// Marks results that kept the split dimension of an argument: what follows can then be split again. A guess, and only that: whether
// it can be is for the rules to say.
void mark_results(const std::vector<SplitArgument>& split, at::ArrayRef<c10::IValue> results) {
  for_each_tensor(results, [&](const at::Tensor& t, int, int) {
    if (!follows(*t.unsafeGetTensorImpl())) return;
    for (const SplitArgument& a : split) {
      if (!a.placement.is_shard() || a.placement.dim >= t.dim() || t.device() != a.tensor.device()) continue;
      if (t.size(a.placement.dim) != a.placement.extent(a.batch)) continue;
      if (deferred_registry().find(t.unsafeGetTensorImpl()).region != nullptr) return;
      session().marks.add(t, a.placement, a.batch, a.micro_batch);
      return;
    }
  });
}

void run_at_full_batch(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack, const std::vector<SplitArgument>& split) {
  const OpTraits& traits = op_traits(op);
  const bool grad_mode = c10::AutogradState::get_tls_state().get_grad_mode();
  int64_t bytes = 0;
  bool deferred = false;
  for (const SplitArgument& a : split) {
    if (a.region == nullptr) continue;
    const auto region = a.region->shared_from_this();
    deferred = true;
    bytes += static_cast<int64_t>(a.tensor.nbytes());
    region->materialise({a.value});
    if (grad_mode && a.tensor.requires_grad()) region->consume(a.value);
  }
  if (deferred && traits.tensor_result) {
    constexpr size_t kNamesAtMost = 64;
    session().runtime->on_full_batch(op.schema().name().c_str(), bytes);
    if (session().run_whole.size() < kNamesAtMost) session().run_whole.push_back(op.schema().name());
  }
  if (traits.writes) {
    for_each_written(op.schema(), torch::jit::last(*stack, op.schema().arguments().size()), [&](const at::Tensor& t, int) {
      const auto entry = deferred_registry().find(t.unsafeGetTensorImpl());
      if (entry.region != nullptr) entry.region->shared_from_this()->hand_out_group(entry.value);
    });
  }
  run_eagerly(op, keys, stack);
  mark_results(split, torch::jit::last(*stack, op.schema().returns().size()));
}

// In place of the arguments.
void put_results(torch::jit::Stack* stack, size_t arguments, std::vector<c10::IValue> results) {
  torch::jit::drop(*stack, arguments);
  for (c10::IValue& result : results) stack->push_back(std::move(result));
}

// A constant that this step's region can make in parts.
bool create_lazily(const c10::OperatorHandle& op, const OpTraits& traits, torch::jit::Stack* stack, Question& q) {
  const auto region = session().current;
  if (!region || !region->open() || !c10::AutogradState::get_tls_state().get_grad_mode()) return false;
  const size_t count = op.schema().arguments().size();
  const auto arguments = torch::jit::last(*stack, count);
  if (device_asked_for(op, arguments) != region->device()) return false;
  OpCall call(op.schema(), region->batch());
  call.args() = std::move(q.call.args());
  const auto sizes = call.integers(traits.creates);
  int64_t entries = call.tensor(0).defined && op.schema().name() == "aten::repeat" ? arguments[0].toTensor().numel() : 1;
  if (sizes) for (int64_t size : *sizes) entries *= size;
  if (!sizes || entries * 4 < static_cast<int64_t>(kCreatedAtLeast) || !create_split(call)) return false;
  try {
    put_results(stack, count, region->add({op, call, arguments, /*random=*/false}));
    return true;
  } catch (const CannotJoin&) {
    return false;
  }
}

// The operator looks at sizes and the like, and at no value.
void run_on_metadata(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const RegionWork no_access;
  const NoInterceptGuard no_intercept;
  op.redispatchBoxed(keys & kBelowInterceptor, stack);
}

// Its inner operators come back here one by one, each with a rule of its own. False, and nothing done, when there is one that reads a tensor's
// memory on its way (a loss that wants to know its lengths).
bool decompose(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack, const OpTraits& traits) {
  if (traits.writes || traits.random) {
    op.redispatchBoxed(keys & kBelowInterceptor, stack);
    return true;
  }
  const KeptArguments arguments(*stack, op.schema().arguments().size());
  try {
    const RegionWork no_access;  // who takes a pointer here is to have all of its arguments as they are, and makes its results by itself
    op.redispatchBoxed(keys & kBelowInterceptor, stack);
    return true;
  } catch (const c10::Error& error) {
    if (!is_raw_access(error)) throw;
  }
  arguments.put_back(*stack);
  return false;
}

// An argument that no rule can be asked about becomes an ordinary tensor. False when there is none.
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

// Full values for all split arguments, or for those that are not of the step within this backward pass. False when there is none.
bool materialise_split(const Question& q, bool but_for_the_step_within) {
  bool any = false;
  for (const SplitArgument& a : q.split) {
    if (a.region == nullptr || (but_for_the_step_within && a.region->depth() == session().engine_depth)) continue;
    a.region->shared_from_this()->materialise({a.value});
    any = true;
  }
  return any;
}

// Reads the masks among a call's arguments. One that has no value yet is noted instead.
class MasksOfCall final : public OpCall::RowCounter {
 public:
  MasksOfCall(Question& q, at::ArrayRef<c10::IValue> arguments, int64_t batch) : q_(q), arguments_(arguments), batch_(batch) {}

  std::shared_ptr<const Ragged> rows_under(OpCall::ArgRef ref, int64_t) override {
    const c10::IValue& argument = arguments_[ref.arg];
    const at::Tensor mask = ref.element < 0 ? argument.toTensor() : argument.toListRef()[ref.element].toTensor();
    for (const SplitArgument& a : q_.split) {
      if (a.region != nullptr && a.tensor.is_same(mask)) {  // its value is needed
        q_.mask = a.tensor;
        return nullptr;
      }
    }
    return session().masks.rows_under(mask, batch_);
  }

 private:
  Question& q_;
  at::ArrayRef<c10::IValue> arguments_;
  int64_t batch_;
};

// The question again, for the region's batch: marks of other batches are real tensors like any other.
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

void trace(const c10::OperatorHandle& op, Verdict verdict, const Question& q, const Region& region) {
  if (session().runtime->settings->log_level != KOILA_LOG_TRACE) return;
  std::string text = "lazy " + op.schema().name() + " verdict " + std::to_string(static_cast<int>(verdict)) + " batch " + std::to_string(region.batch());
  for (const SplitArgument& a : q.split) text += " " + to_string(a.placement) + (a.region == nullptr ? " real" : a.region == &region ? "" : " elsewhere");
  session().log(KOILA_LOG_TRACE, text);
}

// Ends the stage. What the answer wants whole is an ordinary tensor from here on, and the call is to be asked about again.
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

// The split arguments whose full values the answer reads.
std::vector<const SplitArgument*> read_at_full_size(const OpCall& call, const Question& q) {
  std::vector<const SplitArgument*> read;
  for (int arg : call.real_arguments()) {
    for (const SplitArgument& a : q.split) {
      if (a.region != nullptr && a.at == OpCall::ArgRef{arg}) read.push_back(&a);
    }
  }
  return read;
}

// Whether an argument from outside hangs on the region.
bool would_cycle(const Region& region, at::ArrayRef<c10::IValue> arguments) {
  bool cycle = false;
  for_each_tensor(arguments, [&](const at::Tensor& t, int, int) {
    if (deferred_registry().find(t.unsafeGetTensorImpl()).region != &region) cycle |= region.would_cycle(t);
  });
  return cycle;
}

// Only a value of the region may be written to inside it, and it must stay split as it was.
bool may_write(const OpTraits& traits, const OpCall& call, const Question& q, const Region& region) {
  const auto written = std::find_if(q.split.begin(), q.split.end(), [&](const SplitArgument& a) { return a.region == &region && a.at == OpCall::ArgRef{0}; });
  return traits.in_place && written != q.split.end() && !call.outputs().empty() && call.outputs()[0] == written->placement &&
         region.may_write(written->value);
}

// The call becomes part of the region. False, and nothing done, when it turns out that it cannot.
bool join(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack, const OpCall& call, const Question& q, Region& region) {
  const size_t count = op.schema().arguments().size();
  try {
    put_results(stack, count, region.add({op, call, torch::jit::last(*stack, count), draws(op_traits(op).rule, call)}));
    return true;
  } catch (const AliasOfCapture&) {
    // A view of a seed alone: it costs no memory, so it is made for real, and is split like the seed.
    if (std::any_of(q.split.begin(), q.split.end(), [](const SplitArgument& a) { return a.region != nullptr; })) return false;
    run_eagerly(op, keys, stack);
    for_each_tensor(torch::jit::last(*stack, op.schema().returns().size()), [&](const at::Tensor& t, int result, int) {
      const Placement& p = call.outputs()[result];
      if (p.is_shard()) session().marks.add(t, p, region.batch(), region.micro_batch());
    });
    return true;
  } catch (const CannotJoin& why) {
    if (dynamic_cast<const RuleMismatch*>(&why) != nullptr) user_rule_broken(*op_traits(op).rule, call);
    session().log(KOILA_LOG_DEBUG, op.schema().name() + " runs at full batch: " + why.what());
    return false;
  }
}

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

// Note [Changes of metadata]
// squeeze_, unsqueeze_ and t_ write nothing to memory: the program's tensor looks at it in another way from then on. What a region would write to its
// own tensor shows nowhere, so the view is made instead, split as its rule says, and the program's tensor takes its place.
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
      if (seen.is_same(x)) return put_results(stack, arguments.size(), {x});
      c10::TensorImpl* impl = x.unsafeGetTensorImpl();
      impl->set_sizes_and_strides(seen.sizes(), seen.strides(), seen.storage_offset());
      impl->bump_version();
      entry.region->shared_from_this()->rebind(as_view.value, x);
      return put_results(stack, arguments.size(), {x});
    }
  }
  const std::optional<Mark> mark = view ? mark_of_view(*view, arguments, x) : std::nullopt;
  if (entry.region != nullptr) entry.region->shared_from_this()->hand_over(entry.value, x, /*whole=*/true);
  session().marks.remove(x.unsafeGetTensorImpl());
  run_eagerly(op, keys, stack);
  if (mark) session().marks.add(x, mark->placement, mark->batch, mark->micro_batch);
}

bool try_dispatch_lazily(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const OpTraits& traits = op_traits(op);
  const auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
  if (traits.writes || traits.silent_effect) settle_writes(op, arguments);
  const int64_t named = session().named.any() ? take_named_seeds(op, arguments) : 0;
  if (session().lazy()) guess_seed(op, arguments);
  if (!session().signatures.empty() && !traits.writes) mark_learned_seeds(op, arguments, named);
  const bool under_foreign_hooks = c10::AutogradState::get_tls_state().get_grad_mode() && foreign_saved_tensor_hooks();

  constexpr int kRoundsAtMost = 32;  // arguments change from round to round, and each only a few times
  for (int round = 0;; ++round) {
    if (round > 4 * kRoundsAtMost) {  // never expected; a program that waits for ever would be worse than one that ends
      refuse_split_step(describe_out_of_memory(op.schema().name()), "an argument of " + op.schema().name() + " cannot be given its value.", 0);
    }
    Question q = ask(op, arguments);
    if (settle_outsider(op, q)) continue;
    if (traits.reads_value || (session().engine_depth > 0 && !session().forward_again)) {  // in backward (a hook, an autograd.Function): full values, and no new regions
      const bool step_within = session().replays() && !traits.reads_value;  // but for its own
      const bool changed = materialise_split(q, step_within);
      if (!step_within) return false;
      if (changed) continue;
    }
    if (q.split.empty()) return traits.creates >= 0 && create_lazily(op, traits, stack, q);
    if (traits.metadata && traits.in_place && op.schema().name() != "aten::detach_") {
      change_metadata(op, keys, stack);
      return true;
    }
    const auto region = choose_region(q);
    if (!region) continue;

    MasksOfCall masks(q, arguments, region->batch());
    OpCall call = call_for(*region, op, q, masks);
    if (call.first_split() == nullptr) return false;
    Verdict verdict = ask(traits.rule, call);
    if (q.mask.defined() && !q.mask.requires_grad()) {
      materialise_tensor(q.mask);
      continue;
    }
    if (under_foreign_hooks || round >= kRoundsAtMost) verdict = Verdict::kNo;
    trace(op, verdict, q, *region);
    if (splits(verdict) && draws(traits.rule, call) && session().draws_whole()) verdict = Verdict::kNo;

    if (verdict == Verdict::kReal) {
      run_on_metadata(op, keys, stack);
      return true;
    }
    if (verdict == Verdict::kStaged && !call.whole().empty()) {
      gather(call, q, *region);
      continue;
    }
    if (splits(verdict)) {
      const auto read = read_at_full_size(call, q);
      for (const SplitArgument* a : read) region->materialise({a->value});
      if (std::any_of(read.begin(), read.end(), [](const SplitArgument* a) { return !a->tensor.requires_grad(); })) continue;
      if (!read.empty()) verdict = Verdict::kNo;
      // Nothing that hangs on the region may feed it.
      if (would_cycle(*region, arguments)) {
        region->end_stage();
        continue;
      }
    }
    if (verdict == Verdict::kStaged && run_staged(op, stack, call, region)) return true;
    if (verdict == Verdict::kLocal && (!traits.writes || may_write(traits, call, q, *region)) && join(op, keys, stack, call, q, *region)) return true;

    if (traits.composite && !under_foreign_hooks && decompose(op, keys, stack, traits)) return true;
    run_at_full_batch(op, keys, stack, q.split);
    return true;
  }
}

}  // namespace

bool lazy_possible() {
  const Session& s = session();
  return s.marks.any() || DeferredRegistry::any() || !s.signatures.empty() || s.named.any() || s.lazy() || !s.regions.empty();
}

void before_call_elsewhere(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments) {
  Session& s = session();
  const bool in_step = s.engine_depth == 0 || s.replays();  // else the pass is the engine's, and tape and graph are not touched
  const bool grad_mode = c10::AutogradState::get_tls_state().get_grad_mode();
  if (in_step && op_traits(op).writes) settle_writes(op, arguments);
  for_each_tensor(arguments, [&](const at::Tensor& t, int, int) {
    const auto entry = deferred_registry().find(t.unsafeGetTensorImpl());
    if (entry.region != nullptr) {
      const auto region = entry.region->shared_from_this();
      region->materialise({entry.value});
      if (in_step && grad_mode && t.requires_grad()) region->consume(entry.value);
    } else if (deferred_registry().any()) {
      materialise_tensor(t);
    }
    if (in_step) s.tape.settle(t);
  });
  if (!in_step || !op_traits(op).writes) return;
  for_each_written(op.schema(), arguments, [&](const at::Tensor& t, int) {
    const auto entry = deferred_registry().find(t.unsafeGetTensorImpl());
    if (entry.region != nullptr) entry.region->shared_from_this()->hand_out_group(entry.value);
  });
}

bool dispatch_lazily(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (op_traits(op).collective) {
    run_collective(op, keys, stack);
    return true;
  }
  static thread_local int depth = 0;  // decomposed operators come back here
  struct Depth {
    Depth() { ++depth; }
    ~Depth() { --depth; }
  } const guard;
  const int64_t told = refusals_told();
  try {
    return try_dispatch_lazily(op, keys, stack);
  } catch (const std::exception& error) {
    if (depth == 1 && !in_rescue() && !session().converting && is_out_of_memory(error) && refusals_told() == told) {
      report_refusal(describe_out_of_memory(op.schema().name()), "one row of the batch, or a full-size result that the program reads, does not fit.", 0);
    }
    throw;
  }
}

}  // namespace koila
