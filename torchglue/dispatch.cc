#include "torchglue/dispatch.h"

#include <c10/core/AutogradState.h>

#include <algorithm>

#include "torchglue/base/saved_hooks.h"
#include "torchglue/base/tensor_memory.h"
#include "torchglue/collectives.h"
#include "torchglue/lazy/begin.h"
#include "torchglue/lazy/full_batch.h"
#include "torchglue/lazy/index_bounds.h"
#include "torchglue/lazy/metadata.h"
#include "torchglue/lazy/question.h"
#include "torchglue/lazy/writes.h"
#include "torchglue/oom/error_text.h"
#include "torchglue/oom/events.h"
#include "torchglue/oom/oom.h"
#include "torchglue/op_traits.h"
#include "torchglue/operators/saved.h"
#include "torchglue/placement/creation.h"
#include "torchglue/placement/user_rules.h"
#include "torchglue/plan/decide.h"
#include "torchglue/region/deferred.h"
#include "torchglue/region/node.h"
#include "torchglue/region/quiet_writes.h"
#include "torchglue/region/real_values.h"
#include "torchglue/rescue/eager.h"
#include "torchglue/rescue/guess.h"
#include "torchglue/rescue/named_in_call.h"
#include "torchglue/stages/staged.h"
#include "torchglue/step/session.h"

namespace koila {

namespace {

// In place of the arguments.
void put_results(torch::jit::Stack* stack, size_t arguments, std::vector<c10::IValue> results) {
  torch::jit::drop(*stack, arguments);
  for (c10::IValue& result : results) stack->push_back(std::move(result));
}

// By which dimension: as an earlier step has taught, or by one as long as the batch. Rows come first: of a last dimension of that length, behind a multiple of it, only what is written to it will tell.
std::optional<Placement> way_to_create(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments, const OpCall& call) {
  if (const auto* seeds = session().signatures.find(op, arguments)) {
    for (const LearnedSeed& seed : *seeds) {
      if (seed.argument < 0 && seed.batch() == call.batch()) return seed.placement.is_shard() ? std::make_optional(seed.placement) : std::nullopt;
    }
  }
  const std::vector<Placement> ways = creatable(call);
  if (ways.empty() || ways[0].inner > 1) return std::nullopt;
  const bool is_last = ways[0].dim + 1 == static_cast<int64_t>(call.integers(op_traits(op).creates)->size());
  if (is_last && std::any_of(ways.begin(), ways.end(), [&](const Placement& p) { return p.dim < ways[0].dim; })) return std::nullopt;
  return ways[0];
}

// A constant that this step's region can make in parts.
bool create_lazily(const c10::OperatorHandle& op, const OpTraits& traits, torch::jit::Stack* stack, Question& q) {
  const auto region = session().current;
  if (!region || !region->open() || !c10::AutogradState::get_tls_state().get_grad_mode()) return false;
  const size_t count = op.schema().arguments().size();
  const auto arguments = torch::jit::last(*stack, count);
  if (device_asked_for(op, arguments) != region->device() || would_cycle(*region, arguments)) return false;
  OpCall call(op.schema(), region->batch());
  call.args() = std::move(q.call.args());
  const auto sizes = call.integers(traits.creates);
  int64_t entries = call.tensor(0).defined && op.schema().name() == "aten::repeat" ? arguments[0].toTensor().numel() : 1;
  if (sizes) for (int64_t size : *sizes) entries *= size;
  if (!sizes || entries * 4 < static_cast<int64_t>(kCreatedAtLeast)) return false;
  Context context{traits};
  context.creates = way_to_create(op, arguments, call);
  if (!context.creates || decide(call, context).way != Way::kJoin) return false;
  try {
    put_results(stack, count, region->add({op, call, arguments, /*random=*/false}));
    return true;
  } catch (const CannotJoin&) {
    return false;
  }
}

void trace(const c10::OperatorHandle& op, Way way, const Question& q, const Region& region) {
  if (session().runtime->settings->log_level != KOILA_LOG_TRACE) return;
  std::string text = "lazy " + op.schema().name() + " verdict " + std::to_string(static_cast<int>(way)) + " batch " + std::to_string(region.batch());
  for (const SplitArgument& a : q.split) text += " " + to_string(a.placement) + (a.region == nullptr ? " real" : a.region == &region ? "" : " elsewhere");
  session().log(KOILA_LOG_TRACE, text);
}

// Whether something outside of the region hands a gradient to the value, or to a view of it. A write in the region would come between: what the value was before has no place there.
// An autograd.Function does not say so, but holds the region's node, which only the region's own tensors do otherwise.
bool may_be_read_outside(const Region& region, ValueId value) {
  const auto node = region.node();
  if (node == nullptr || !c10::AutogradState::get_tls_state().get_grad_mode()) return false;
  const auto& outputs = static_cast<const RegionNode&>(*node).outputs();
  const auto its = [&](ValueId v) { return region.value(v).group == region.value(value).group && region.value(v).consumed; };
  if (std::any_of(outputs.begin(), outputs.end(), its)) return true;
  const bool known = std::any_of(outputs.begin(), outputs.end(), [&](ValueId v) { return region.value(v).consumed; });
  const auto alive = std::count_if(outputs.begin(), outputs.end(), [&](ValueId v) { return region.value(v).impl != nullptr; });
  return (!known || session().functions) && static_cast<int64_t>(node.use_count()) > alive + 1;
}

// How the value that the call writes to is split; nothing where it is none of the region's, or may not be written to by the row.
std::optional<Placement> written_in(const Region& region, const Question& q) {
  const auto written = std::find_if(q.split.begin(), q.split.end(), [&](const SplitArgument& a) { return a.region == &region && a.at == OpCall::ArgRef{0}; });
  if (written == q.split.end() || !region.may_write(written->value) || may_be_read_outside(region, written->value)) return std::nullopt;
  return written->placement;
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
    for_each_tensor(torch::jit::last(*stack, op.schema().returns().size()), [&](const at::Tensor& t, int result, int element) {
      const Placement p = call.output_at(static_cast<size_t>(result), element);
      if (p.is_shard()) session().marks.add(t, p, region.batch(), region.micro_batch());
    });
    return true;
  } catch (const CannotJoin& why) {
    if (dynamic_cast<const RuleMismatch*>(&why) != nullptr) user_rule_broken(*op_traits(op).rule, call);
    session().log(KOILA_LOG_DEBUG, op.schema().name() + " runs at full batch: " + why.what());
    return false;
  }
}

// One call, asked about until its arguments are as the answer wants them.
class LazyCall {
 public:
  LazyCall(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack)
      : op_(op), keys_(keys), stack_(stack), arguments_(torch::jit::last(*stack, op.schema().arguments().size())), traits_(op_traits(op)) {}

  // False: an ordinary call, left untouched.
  bool dispatch() {
    begin();
    constexpr int kRoundsAtMost = 32;  // arguments change from round to round, and each only a few times
    for (int round = 0;; ++round) {
      if (round > 4 * kRoundsAtMost) {  // never expected; a program that waits for ever would be worse than one that ends
        refuse_split_step(describe_out_of_memory(op_.schema().name()), "an argument of " + op_.schema().name() + " cannot be given its value.", 0);
      }
      switch (try_once(/*held_whole=*/under_foreign_hooks_ || round >= kRoundsAtMost)) {
        case Outcome::kDone:
          return true;
        case Outcome::kOrdinary:
          if (traits_.writes && !traits_.metadata) take_written_out(op_, arguments_);  // what it writes to may have got its value for it
          return false;
        case Outcome::kAskAgain:
          break;
      }
    }
  }

 private:
  enum class Outcome { kDone, kOrdinary, kAskAgain };

  void begin() {
    Session& s = session();
    if (c10::AutogradState::get_tls_state().get_grad_mode()) check_quiet_writes();
    if (s.in_checkpoint != nullptr && s.tape.has_effect(op_, arguments_, *s.in_checkpoint)) refuse_split_step(describe_out_of_memory(op_.schema().name()), kEffectInCheckpoint, s.batch_in_use());
    if (traits_.writes || traits_.silent_effect) settle_writes(op_, arguments_);
    const int64_t named = s.named.any() ? take_named_seeds(op_, arguments_) : 0;
    const bool runs_again = NoSavedTensorHooksGuard::active() && s.tape.effects_under_hooks();  // with what follows: see Note [Effects in a checkpoint]
    if (s.lazy() && !runs_again) guess_seed(op_, arguments_);
    if (!s.signatures.empty() && !traits_.writes && !runs_again) mark_learned_seeds(op_, arguments_, named);
    under_foreign_hooks_ = c10::AutogradState::get_tls_state().get_grad_mode() && foreign_saved_tensor_hooks();
  }

  Outcome try_once(bool held_whole) {
    Session& s = session();
    Question q = question_about(op_, arguments_);
    if (settle_outsider(op_, q)) return Outcome::kAskAgain;
    if (traits_.reads_value || (s.engine_depth > 0 && !s.forward_again)) {  // in backward (a hook, an autograd.Function): full values, and no new regions
      const bool step_within = s.replays() && !traits_.reads_value;  // but for its own
      const bool changed = materialise_split(q.split, step_within);
      if (!step_within) return Outcome::kOrdinary;
      if (changed) return Outcome::kAskAgain;
    }
    if (q.split.empty()) {
      if (traits_.creates >= 0 && create_lazily(op_, traits_, stack_, q)) return Outcome::kDone;
      if (!traits_.makes_zeros) return Outcome::kOrdinary;
      run_eagerly(op_, keys_, stack_);
      session().fresh_zeros.note(stack_->back().toTensor());
      return Outcome::kDone;
    }
    if (end_stage_at_hook(q)) return Outcome::kAskAgain;
    if (op_.schema().name() == "aten::detach_") {
      hand_over_all(q);  // a leaf is none of a region's tensors
      run_eagerly(op_, keys_, stack_);
      return Outcome::kDone;
    }
    if (traits_.metadata && traits_.in_place) {
      change_metadata(op_, keys_, stack_);
      return Outcome::kDone;
    }
    const auto region = choose_region(q);
    if (!region) return Outcome::kAskAgain;
    return try_in(region, q, held_whole);
  }

  Outcome try_in(const std::shared_ptr<Region>& region, Question& q, bool held_whole) {
    MasksOfCall masks(q, arguments_, region->batch());
    OpCall call = call_for(*region, op_, q, masks);
    if (call.first_split() == nullptr) return Outcome::kOrdinary;
    std::optional<OpCall> asked;  // before it is answered
    if (traits_.in_place && arguments_[0].isTensor() && session().fresh_zeros.has(arguments_[0].toTensor())) asked = call;
    const auto takes_gradient = [&](int argument) {
      const SplitArgument* read = deferred_at(q, argument);
      return read != nullptr && read->tensor.requires_grad();
    };
    Context context{traits_};
    context.held_whole = held_whole;
    context.draws_whole = session().draws_whole();
    if (traits_.writes) context.written = written_in(*region, q);
    context.takes_gradient = takes_gradient;
    const Decision decision = decide(call, context);
    const Way way = decision.way != Way::kWhole && has_index_outside(op_, arguments_) ? Way::kWhole : decision.way;  // it raises, or what it is composed of does
    if (q.mask.defined() && !q.mask.requires_grad()) {
      materialise_tensor(q.mask);
      return Outcome::kAskAgain;
    }
    trace(op_, way, q, *region);
    switch (way) {
      case Way::kReal:
        run_on_metadata(op_, keys_, stack_);
        if (traits_.makes_zeros) session().fresh_zeros.note(stack_->back().toTensor());
        return Outcome::kDone;
      case Way::kStage:
        if (!call.whole().empty()) {
          if (writes_to_deferred(q)) break;  // one by one they would come out of their region without what shares their memory
          gather(call, q, *region);
          return Outcome::kAskAgain;
        }
        if (!make_ready(call, q, *region)) return Outcome::kAskAgain;
        if (run_staged(op_, stack_, call, region)) return Outcome::kDone;
        break;
      case Way::kJoin:
        if (!make_ready(call, q, *region)) return Outcome::kAskAgain;
        if (join(op_, keys_, stack_, call, q, *region)) return Outcome::kDone;
        break;
      case Way::kWhole:
        if (decision.wants_sum && region->take_zeros(arguments_[0].toTensor(), Placement::partial())) return Outcome::kAskAgain;
        if (asked && take_zeros_by_the_row(*region, *asked, context)) return Outcome::kAskAgain;
        break;
    }
    if (!traits_.composite || under_foreign_hooks_ || !decompose(op_, keys_, stack_, traits_)) run_at_full_batch(op_, keys_, stack_, q.split);
    return Outcome::kDone;
  }

  // The call writes to zeros that nobody has looked at, and would be of the region if these were split.
  bool take_zeros_by_the_row(Region& region, const OpCall& asked, Context context) const {
    for (const Placement& way : parts_of_constant(arguments_[0].toTensor().sizes(), region.batch())) {
      OpCall call = asked;
      call.args()[0].tensors[0].placement = way;
      context.written = way;
      if (decide(call, context).way == Way::kJoin) return region.take_zeros(arguments_[0].toTensor(), way);
    }
    return false;
  }

  // Whether the call writes to a tensor whose value a region has.
  bool writes_to_deferred(const Question& q) const {
    const auto& arguments = op_.schema().arguments();
    return traits_.writes && std::any_of(q.split.begin(), q.split.end(), [&](const SplitArgument& a) {
      const c10::AliasInfo* alias = arguments[a.at.arg].alias_info();
      return a.region != nullptr && alias != nullptr && alias->isWrite();
    });
  }

  // What the answer reads at full size has its value, and nothing that hangs on the region feeds it. False: something was done about it, and the answer is old.
  bool make_ready(const OpCall& call, const Question& q, Region& region) const {
    bool read = false;
    for (int argument : call.real_arguments()) {
      const SplitArgument* a = deferred_at(q, argument);
      if (a == nullptr) continue;
      region.materialise({a->value});
      read = true;
    }
    if (read) return false;
    if (!would_cycle(region, arguments_)) return true;
    region.end_stage();
    return false;
  }

  const c10::OperatorHandle& op_;
  const c10::DispatchKeySet keys_;
  torch::jit::Stack* const stack_;
  const at::ArrayRef<c10::IValue> arguments_;
  const OpTraits& traits_;
  bool under_foreign_hooks_ = false;
};

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
  const bool with_graph = grad_mode && any_requires_grad(arguments);
  for_each_written(op.schema(), arguments, [&](const at::Tensor& t, int) {
    const auto entry = deferred_registry().find(t.unsafeGetTensorImpl());
    if (entry.region != nullptr) entry.region->shared_from_this()->hand_out_group(entry.value, with_graph);
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
    return LazyCall(op, keys, stack).dispatch();
  } catch (const std::exception& error) {
    if (depth == 1 && !in_rescue() && !session().converting && is_out_of_memory(error) && refusals_told() == told) {
      const bool says_why = error_text(error).find(kUnderKoila) != std::string::npos;
      report_refusal(describe_out_of_memory(op.schema().name()), says_why ? reason_of(error) : "one row of the batch, or a full-size result that the program reads, does not fit.", 0);
    }
    throw;
  }
}

}  // namespace koila
