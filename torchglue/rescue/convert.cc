#include "torchglue/rescue/convert.h"

#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "torchglue/base/tensor_memory.h"
#include "torchglue/base/tls.h"
#include "torchglue/memory/cuda_allocator.h"
#include "torchglue/memory/origin.h"
#include "torchglue/op_traits.h"
#include "torchglue/operators/gradient.h"
#include "torchglue/plan/infer.h"
#include "torchglue/plan/on_tape.h"
#include "torchglue/region/deferred.h"
#include "torchglue/region/node.h"
#include "torchglue/rescue/call_of_tape.h"
#include "torchglue/rescue/converting.h"
#include "torchglue/rescue/eager.h"
#include "torchglue/rescue/give_up.h"
#include "torchglue/rescue/learn.h"
#include "torchglue/rescue/made_again.h"
#include "torchglue/rescue/out_of_sight.h"
#include "torchglue/rescue/places.h"
#include "torchglue/rescue/real_masks.h"
#include "torchglue/rescue/rewiring.h"
#include "torchglue/rescue/staying.h"
#include "torchglue/rescue/tensor_hooks.h"
#include "torchglue/rescue/trained_again.h"
#include "torchglue/step/offload.h"
#include "torchglue/step/session.h"

namespace koila {

namespace {

// Puts the recorded state in force, the interceptor with it: operators run here as if the program called them.
class ProgramStateGuard {
 public:
  explicit ProgramStateGuard(const OpState& state) : guard_(state, true), include_(state.included.add(kInterceptorKey), state.excluded.remove(kInterceptorKey)) {}

 private:
  OpStateGuard guard_;
  c10::impl::ForceDispatchKeyGuard include_;
};

DeferredRegistry::Entry entry_of(const at::Tensor& t) { return deferred_registry().find(t.unsafeGetTensorImpl()); }

class Conversion {
 public:
  Conversion(Tape& tape, const Plan& plan, Graphs graphs)
      : tape_(tape), plan_(plan), converting_(tape, plan, graphs), device_(tape.values()[plan.seeds[0].value].device),
        keys_(tape.values()[plan.seeds[0].value].lock().key_set()), real_(tape, plan, graphs), hooks_(tape, plan, converting_.needed, real_.makes(converting_.needed)), seeds_(learn(tape, plan, hooks_.any_was_late(tape))), staying_(tape, plan), out_of_sight_(tape), graphs_(graphs) { real_.bring(hooks_); }

  int64_t convert() {
    Session& s = session();
    const bool ends = s.current && (!s.current->open() || s.current->batch() != plan_.batch || s.current->device() != device_);
    if (ends || !tape_.bridges().empty()) s.current.reset();  // else what a region of this step can go on from joins it; what lies behind a bridge may be a region's already, and must not
    keep_what_is_read();
    note_last_reads();
    give_up_memory(tape_, plan_, converting_.needed, staying_, device_);
    if (graphs_ == Graphs::kWhole) give_up_graphs(tape_, plan_, converting_.needed, staying_);
    release_cached_blocks(device_);

    // Note [No way back]
    // From here on tensors of the program have no memory, so nothing that can be refused is found out any more: that is what check_convertible() is for. What turns out otherwise than planned (an
    // operator that does not join after all) runs as if the program called it now, which is always right. What there is no room for is served from outside, where rung 2 may; else the whole step is refused.
    const Offload::MustNotFail no_way_back;
    const TrainedAgain trained(tape_);
    begin_region();
    for (size_t i = 0; i < tape_.ops().size(); ++i) {
      if (!converting_.needed[i]) continue;
      converting_.at = i;
      bring_over(tape_.ops()[i]);
      for (TapeValueId v : last_read_[i]) handles_.erase(v);
    }
    return finish();
  }

 private:
  // An operator that is brought over.
  struct Call {
    const TapeOp& op;
    const OpTraits& traits;
    const std::optional<c10::OperatorHandle> view;  // see Note [Changes of metadata]
    torch::jit::Stack stack;                        // its arguments
    OpCall answer;
    bool joins = false;
    bool view_of_capture = false;  // its results look at something real: a seed, or what stays
    bool as_they_are = true;       // and the program's own results do, still, and hang on the graph that there is now
  };

  // A value that a later operator ends a stage for is put together if anybody holds it. What only the conversion would hold is let go of with its last reader, as a program does that has not run out.
  void note_last_reads() {
    std::vector<size_t> last(tape_.values().size(), SIZE_MAX);
    for (size_t i = 0; i < tape_.ops().size(); ++i) {
      if (!converting_.needed[i]) continue;
      for (TapeValueId out : tape_.ops()[i].outputs) {
        if (out != kNoTapeValue) last[out] = i;
      }
      for (const TapeRef& ref : tape_.ops()[i].refs) last[ref.value] = i;
    }
    last_read_.resize(tape_.ops().size());
    for (TapeValueId v = 0; v < last.size(); ++v) {
      if (last[v] != SIZE_MAX) last_read_[last[v]].push_back(v);
    }
  }

  void keep_what_is_read() {
    for (size_t i = 0; i < tape_.ops().size(); ++i) {
      if (!converting_.needed[i]) continue;
      const TapeOp& op = tape_.ops()[i];
      for (const TapeRef& ref : op.refs) {
        if (is_read_as_it_is(tape_, plan_, op, ref)) real_.keep(ref.value);
      }
    }
  }

  void begin_region() {
    Session& s = session();
    micro_batch_ = s.current ? s.current->micro_batch() : begin_step(seeds_, plan_.batch, device_);
    for (const Seed& seed : plan_.seeds) {
      if (!seed.created) s.marks.add(tape_.values()[seed.value].lock(), seed.placement, plan_.batch, micro_batch_);
    }
    region_ = s.region_for(plan_.batch, micro_batch_, device_);
  }

  void bring_over(const TapeOp& op) {
    // An operator that runs again may write to what the region has read, which ends a region without gradients.
    if (!region_->open()) region_ = session().region_for(plan_.batch, micro_batch_, device_);
    torch::jit::Stack stack = arguments_of(op, [&](const TapeRef& ref) { return is_dropped(op, ref) ? at::Tensor() : tensor_of(op, ref); });
    if (is_gradient(op.op)) return differentiate_again(op, std::move(stack));
    Call call{op, op_traits(op.op), view_instead(op.op), std::move(stack), OpCall(op.op.schema(), plan_.batch)};
    decide_again(call);
    auto outputs = call.joins ? describe_outputs(call) : std::vector<Region::KnownOutput>();
    // Views of a seed and of a split value from one call (broadcast_tensors): its inner operators tell them apart.
    if (call.view_of_capture && std::any_of(outputs.begin(), outputs.end(), [&](const auto& k) { return k.alias_of != kNoValue || (k.handed_back.defined() && entry_of(k.handed_back).region != nullptr); })) call.joins = call.view_of_capture = false;
    session().log(KOILA_LOG_TRACE, "convert " + op.op.schema().name() + (call.joins && !call.view_of_capture ? ": joins" : call.view_of_capture ? ": view of a seed" : ": runs again"));
    if (call.joins && !call.view_of_capture) {
      const OpState& state = tape_.state(op.state);
      auto tensors = region_->add_known({op.op, call.answer, call.stack, draws(call.traits.rule, call.answer), &state}, std::move(outputs));
      for (size_t o = 0; o < op.outputs.size(); ++o) put_anew(op.outputs[o], tensors[o]);
      if (op.in_place) spread_gradient(tape_.values()[op.outputs[0]].group);
    } else if (!call.view_of_capture || !take_views_as_they_are(call)) {
      run_again(call);
    }
  }

  // By the placements as they came out, which may differ from the plan's guess after an operator without a rule.
  void decide_again(Call& call) {
    const TapeOp& op = call.op;
    ska::flat_hash_map<TapeValueId, Placement> placements;
    bool any = false;
    bool elsewhere = false;
    for (const TapeRef& ref : op.refs) {
      if (is_dropped(op, ref)) continue;
      const at::Tensor t = tensor_of(op, ref);
      Placement p;
      if (const auto entry = entry_of(t); entry.region != nullptr) {
        p = entry.region->value(entry.value).placement;
        elsewhere |= entry.region != region_.get() || !region_->open() || written_.count({entry.region, entry.region->value(entry.value).group}) > 0;
      } else if (const Mark* mark = session().marks.find(t.unsafeGetTensorImpl()); mark != nullptr && mark->batch == plan_.batch) {
        p = mark->placement;
      }
      elsewhere |= hooks_.has(ref.value) || (region_->would_cycle(t) && entry_of(t).region != region_.get());
      any |= !p.is_replicate();
      placements[ref.value] = p;
    }
    call.answer = call_on_tape(tape_, op, plan_.batch, [&](TapeValueId v) { return placements[v]; });
    MasksBroughtOver masks(call.stack, plan_.batch);
    call.answer.set_counter(masks);
    const bool is_made = !op.outputs.empty() && op.outputs[0] != kNoTapeValue && is_created(plan_, op.outputs[0]);
    const bool as_sum = is_made && plan_.placements[op.outputs[0]].is_partial();
    const bool created = is_made && (as_sum || !any);
    const bool on_kept_data = call.traits.writes && !call.view && !op.outputs.empty() && op.outputs[0] != kNoTapeValue && staying_.keeps_data(tape_.values()[op.outputs[0]].group);
    const auto is_deferred = [&](int arg) { return call.stack[arg].isTensor() && call.stack[arg].toTensor().defined() && entry_of(call.stack[arg].toTensor()).region != nullptr; };
    const auto as_said = [&](const OpCall& answered) { return came_as_said(tape_, op, answered); };
    const auto takes_gradient = [&](int arg) { return is_deferred(arg) && call.stack[arg].toTensor().requires_grad(); };
    Context context{call.traits, /*creates=*/created && !as_sum ? std::make_optional(plan_.placements[op.outputs[0]]) : std::nullopt, /*creates_sum=*/as_sum};
    context.draws_whole = tape_.draws_whole(op);
    context.came_as_said = as_said;
    context.takes_gradient = takes_gradient;
    if (call.traits.writes) {
      const auto entry = call.stack[0].isTensor() ? entry_of(call.stack[0].toTensor()) : DeferredRegistry::Entry{};
      if (entry.region == region_.get() && region_->may_write(entry.value, on_kept_data)) context.written = region_->value(entry.value).placement;
    }
    const auto& real = call.answer.real_arguments();
    call.joins = (any || created) && decide(call.answer, context).way == Way::kJoin && !elsewhere && !call.view && std::none_of(real.begin(), real.end(), is_deferred);
    if (on_kept_data && !call.joins) {
      TORCH_CHECK_WITH(OutOfMemoryError, false, kUnderKoila, "an operator would write in place for a second time to a tensor that NumPy or .data may look at.");
    }
  }

  // A write of something differentiable makes the base and its views differentiable as well. What was recorded as the plan had it knows that from its start; what ran again does not.
  void spread_gradient(uint32_t group) {
    for (TapeValueId v = 0; v < tape_.values().size(); ++v) {
      const TapeValue& value = tape_.values()[v];
      if (value.group != group || !converting_.differentiable[v]) continue;
      const auto handle = handles_.find(v);
      const at::Tensor t = handle != handles_.end() ? handle->second : alive_as(value);
      const auto entry = t.defined() ? entry_of(t) : DeferredRegistry::Entry{};
      if (entry.region == region_.get() && !region_->value(entry.value).requires_grad) region_->attach_gradient(entry.value, t);
    }
  }

  // What the region is to know of the results; the call does not join if it turns out that it cannot.
  std::vector<Region::KnownOutput> describe_outputs(Call& call) {
    const TapeOp& op = call.op;
    std::vector<Region::KnownOutput> outputs;
    for (size_t o = 0; o < op.outputs.size(); ++o) {
      Region::KnownOutput& k = outputs.emplace_back();
      if (op.outputs[o] == kNoTapeValue) {
        call.joins = false;
        break;
      }
      describe_output(call, o, k);
    }
    return outputs;
  }

  // A result that the operator gives for the whole batch, beside what is split: how many rows each step of a packed sequence has.
  static at::Tensor given_whole(const Call& call, size_t o, const at::Tensor& alive) {
    const OpCall::Aside* aside = call.op.outputs.size() == call.op.op.schema().returns().size() ? call.answer.aside(static_cast<int>(o)) : nullptr;
    if (aside == nullptr) return {};
    return alive.defined() || !aside->numbers ? alive : at::tensor(*aside->numbers, at::kLong);
  }

  void describe_output(Call& call, size_t o, Region::KnownOutput& k) {
    const TapeOp& op = call.op;
    const TapeValueId out = op.outputs[o];
    const TapeValue& value = tape_.values()[out];
    const at::Tensor alive = alive_as(value);
    for (const TapeRef& ref : op.refs) {
      const TapeValue& in = tape_.values()[ref.value];
      const bool same = ref.value == out || (op.in_place && in.group == value.group && ref.arg == 0);
      if (same) k.handed_back = tensor_of(op, ref);
      if (!value.is_view || in.group != value.group) continue;
      const auto entry = entry_of(tensor_of(op, ref));
      if (entry.region == region_.get()) {
        k.alias_of = entry.value;
      } else {
        call.view_of_capture = true;
        // The program's own view will do, unless what it is a view of has been made anew: with other memory, or in a region that has ended, whose graph is another one.
        call.as_they_are &= alive.defined() && storage_of(alive) == storage_of(tensor_of(op, ref)) && anew_.count(ref.value) == 0;
      }
    }
    k.placement = placement_of_result(call.answer, op, o);
    k.requires_grad = value.differentiable();
    if (!k.handed_back.defined()) k.handed_back = given_whole(call, o, alive);
    if (k.handed_back.defined()) return;
    if (k.placement.is_replicate() || c10::isQIntType(value.dtype)) call.joins = false;
    k.tensor = alive;
    k.sizes = value.sizes;
    k.strides = value.strides;
    k.storage_offset = value.storage_offset;
    k.dtype = value.dtype;
    k.keys = alive.defined() ? alive.key_set() : keys_;
    if (!alive.defined() && value.conjugated) k.keys = k.keys.add(c10::DispatchKey::Conjugate);
    if (!alive.defined() && value.negated) k.keys = k.keys.add(c10::DispatchKey::Negative);
    if (!alive.defined() && k.alias_of == kNoValue) k.storage = storage_of_group(tape_, value.group);
    k.keep_data = staying_.keeps_data(value.group) && (alive.defined() || k.alias_of != kNoValue || k.storage);
  }

  // A view of a seed is real; the program's own when it is alive. False: it is not.
  bool take_views_as_they_are(const Call& call) {
    const TapeOp& op = call.op;
    bool all_alive = call.as_they_are;
    for (TapeValueId out : op.outputs) all_alive &= out != kNoTapeValue && alive_as(tape_.values()[out]).defined();
    if (!all_alive) return false;
    for (size_t o = 0; o < op.outputs.size(); ++o) {
      const at::Tensor t = alive_as(tape_.values()[op.outputs[o]]);
      handles_[op.outputs[o]] = t;
      hooks_.put_on(op.outputs[o], t);
      const Placement p = placement_of_result(call.answer, op, o);
      if (p.is_shard()) session().marks.add(t, p, plan_.batch, micro_batch_);
    }
    return true;
  }

  // As if the program called it now: it is materialised, decomposed, or made real, and its results take the old ones' place.
  void run_again(Call& call) {
    const TapeOp& op = call.op;
    {
      const ProgramStateGuard state(tape_.state(op.state));
      const PlaceScope place(op.place);
      call_again(call.view ? *call.view : op.op, call.stack);
    }
    if (call.traits.in_place && !call.view && !call.stack.empty() && call.stack[0].isTensor()) note_written(call.stack[0].toTensor());
    take_places(op, call.stack);
  }

  // The pass as the program ran it, through the graphs that there are now: see Note [Gradients that have a graph].
  void differentiate_again(const TapeOp& op, torch::jit::Stack stack) {
    {
      const ProgramStateGuard state(tape_.state(op.state));
      const PlaceScope place(op.place);
      run_gradient(op.op, &stack);
    }
    for (size_t i = 0; i < op.outputs.size(); ++i) {
      TORCH_CHECK_WITH(OutOfMemoryError, op.outputs[i] == kNoTapeValue || stack[i].toTensor().defined(), kUnderKoila, "a gradient that has a graph (create_graph=True) cannot be made again.");
    }
    take_places(op, stack);
  }

  void take_places(const TapeOp& op, const torch::jit::Stack& results) {
    size_t flat = 0;
    for_each_result(results, [&](const at::Tensor& t) {
      const TapeValueId out = flat < op.outputs.size() ? op.outputs[flat++] : kNoTapeValue;
      if (out == kNoTapeValue || !t.defined()) return;
      if (tape_.values()[out].exchanged) throw CannotConvert("a tensor of the step was written to by a collective operation.");
      const at::Tensor alive = looks_at_copy(tape_, out) ? at::Tensor() : alive_as(tape_.values()[out]);
      const auto entry = entry_of(t);  // who has captured it goes on to find a value there; and a Function within the operator gives it a graph of its own
      if ((alive.defined() && staying_.keeps_data(tape_.values()[out].group)) || (entry.region != nullptr && is_outsider(t, entry))) give_value(t);
      put_anew(out, alive.defined() ? take_place(t, alive) : t);
    });
  }

  void put_anew(TapeValueId v, const at::Tensor& t) {
    handles_[v] = t;
    anew_.insert(v);
    hooks_.put_on(v, t);
    rewire(tape_, v, t);
  }

  // An operator that ran whole has written to a value of a region that has its memory. The region would make again what it was before: who reads it runs whole as well.
  void note_written(const at::Tensor& t) {
    const auto entry = entry_of(t);
    if (entry.region != nullptr && entry.region->materialised(entry.value)) written_.emplace(entry.region, entry.region->value(entry.value).group);
    if (t.is_view()) note_written(at::Tensor(t._base()));
  }

  int64_t finish() {
    for (const TapeValue& value : tape_.values()) {
      const at::Tensor t = value.exchanged ? value.lock() : at::Tensor();
      if (const auto entry = t.defined() ? entry_of(t) : DeferredRegistry::Entry{}; entry.region != nullptr) entry.region->hand_out_exchanged(entry.value);
    }
    region_->catch_up();
    converting_.before.compare(tape_, region_.get(), tape_.ops().size());
    region_->check_sound();
    out_of_sight_.tell(tape_);
    Session& s = session();
    const auto& regions = s.live_regions();  // an operator that ran again may have begun several
    tape_.keep_apart(plan_.descends, [&](const at::Tensor& t) {
      const auto captures = [&](const auto& region) { return std::any_of(region->captures().begin(), region->captures().end(), [&](const Capture& c) { return c.is_of(t); }); };
      return real_.hangs_on(t) || std::any_of(regions.begin(), regions.end(), captures);
    });
    converting_.done = true;
    if (!s.current) return micro_batch_;
    for (const LearnedSeed& seed : seeds_) {
      s.current->begin_with(seed.key, seed.times);
      s.sizes.goes_on(*seed.policy, seed.key, seed.times, /*with_gradients=*/false);
    }
    return s.current->micro_batch();
  }

  at::Tensor tensor_of(const TapeOp& op, const TapeRef& ref) {
    if (auto it = handles_.find(ref.value); it != handles_.end()) return it->second;
    at::Tensor t = real_.get(ref.value, version_to_read(tape_, plan_, op, ref));
    // What a seed was before has the rows that the seed has.
    if (is_earlier(tape_, plan_, op, ref) && is_seed(plan_, ref.value)) session().marks.add(t, plan_.placements[ref.value], plan_.batch, micro_batch_);
    return t;
  }

  const NoInferenceMode no_inference_;
  Tape& tape_;
  const Plan& plan_;
  Converting converting_;
  const at::Device device_;
  const c10::DispatchKeySet keys_;
  MadeAgain real_;
  TensorHooks hooks_;
  const std::vector<LearnedSeed> seeds_;
  ska::flat_hash_map<TapeValueId, at::Tensor> handles_;  // tensors that stand for split values, while operators are still to read them
  ska::flat_hash_set<TapeValueId> anew_;                 // values that hang on a graph of the conversion's own, or of a region
  std::vector<std::vector<TapeValueId>> last_read_;      // by operator: values that no later one reads
  const Staying staying_;
  const OutOfSight out_of_sight_;
  const Graphs graphs_;
  std::set<std::pair<const Region*, uint32_t>> written_;  // groups, see note_written()
  int64_t micro_batch_ = 0;
  std::shared_ptr<Region> region_;
};

}  // namespace

int64_t convert(Tape& tape, const Plan& plan, Graphs graphs) { return Conversion(tape, plan, graphs).convert(); }

}  // namespace koila
