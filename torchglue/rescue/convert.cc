#include "torchglue/rescue/convert.h"

#include <c10/util/flat_hash_map.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "torchglue/base/graph_walk.h"
#include "torchglue/base/tensor_memory.h"
#include "torchglue/memory/cuda_allocator.h"
#include "torchglue/memory/origin.h"
#include "torchglue/op_traits.h"
#include "torchglue/placement/creation.h"
#include "torchglue/proof/conversion.h"
#include "torchglue/region/deferred.h"
#include "torchglue/region/node.h"
#include "torchglue/region/real_values.h"
#include "torchglue/rescue/eager.h"
#include "torchglue/sizing/sizing.h"
#include "torchglue/statistics/running_arguments.h"
#include "torchglue/step/offload.h"
#include "torchglue/step/session.h"
#include "torchglue/tape/written_since.h"

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

std::string describe(const TapeValue& v) {
  std::string text = std::string(c10::toString(v.dtype)) + " [";
  for (size_t i = 0; i < v.sizes.size(); ++i) text += (i ? ", " : "") + std::to_string(v.sizes[i]);
  return text + "]";
}

// Running statistics that the operator updated when it ran first. It is not to do so again, and does not need them.
bool is_dropped(const TapeOp& op, const TapeRef& ref) {
  return op_traits(op.op).silent_effect && is_running_statistic(op.op.schema().arguments()[ref.arg].name()) && uses_batch_statistics(op.op.schema(), op.args);
}

// Run again, it would save nothing through the program's hooks.
void check_hooks(const Tape& tape, const TapeOp& op) {
  if (tape.state(op.state).foreign_hooks) throw CannotConvert("the program's own saved-tensor hooks may change what the backward pass of " + op.op.schema().name() + " sees.");
}

// Full values of tensors that are not split: alive, or made again from what is.
class RealValues {
 public:
  RealValues(const Tape& tape, const Plan& plan, Graphs graphs) : tape_(tape), plan_(plan), graphs_(graphs) {}

  void check(TapeValueId v, uint32_t version, int depth = 0) const {
    const TapeValue& value = tape_.values()[v];
    if (const at::Tensor t = value.lock(); t.defined() && version_of(t) == version && !anew(value)) return;
    if (tape_.pinned(value.group)) throw CannotConvert("a tensor that the step read (" + describe(value) + ") may have been written to through NumPy.");
    if (value.is_capture()) {
      throw CannotConvert("a tensor that the step read (" + describe(value) + ") has been changed in place or freed since.");
    }
    const TapeOp& op = tape_.ops()[value.producer];
    check_hooks(tape_, op);
    if (op.in_place || version != value.version || depth > kRunAgainAtMost) throw CannotConvert("a tensor that the step read (" + describe(value) + ") was written to in place after " + op.op.schema().name() + " had made it.");
    if (drew(op)) {
      throw CannotConvert("random draws of " + op.op.schema().name() + " that do not belong to the batch are gone.");
    }
    for (const TapeRef& ref : op.refs) {
      if (!is_dropped(op, ref)) check(ref.value, ref.version, depth + 1);
    }
  }

  // Keeps what get() of the value will need: the graphs that hold it may go on the way.
  void keep(TapeValueId v) {
    const TapeValue& value = tape_.values()[v];
    if (!kept_.emplace(v, value.lock()).second || value.is_capture() || (kept_.at(v).defined() && !anew(value))) return;
    const TapeOp& op = tape_.ops()[value.producer];
    for (const TapeRef& ref : op.refs) {
      if (!is_dropped(op, ref)) keep(ref.value);
    }
  }

  at::Tensor get(TapeValueId v, uint32_t version) {
    if (auto it = made_.find(v); it != made_.end()) return it->second;
    const TapeValue& value = tape_.values()[v];
    if (at::Tensor t = value.lock(); t.defined() && version_of(t) == version && !anew(value)) {
      if (!value.is_capture() || value.requires_grad || !t.requires_grad()) return t;
      const NoInterceptGuard no_intercept;
      return made_[v] = t.detach();  // trained from here on, and frozen when the step read it
    }
    if (value.is_capture()) throw CannotConvert("a tensor that the step read (" + describe(value) + ") has been changed in place or freed since.");
    const TapeOp& op = tape_.ops()[value.producer];
    torch::jit::Stack stack = arguments(op, [&](const TapeRef& ref) { return is_dropped(op, ref) ? at::Tensor() : get(ref.value, ref.version); });
    {
      const OpStateGuard state(tape_.state(op.state), /*allow_grad=*/true);
      const OpInProgress in_progress(op.op, op.place);
      make_real(stack);
      const WrittenSince::Call call(op.op, stack);
      call_again(op.op, stack);
    }
    size_t flat = 0;
    for_each_result(stack, [&](const at::Tensor& t) {
      const TapeValueId out = op.outputs[flat++];
      if (out == kNoTapeValue) return;
      made_[out] = t;
      if (!t.requires_grad() && !is_split_by_now(tape_.values()[out])) written_since().note(t, tape_.values()[out]);
    });
    return made_.at(v);
  }

  template <class F>
  static torch::jit::Stack arguments(const TapeOp& op, F&& tensor_of) {
    const OpTraits& traits = op_traits(op.op);
    torch::jit::Stack stack;
    std::vector<std::vector<at::Tensor>> lists(op.args.size());
    std::vector<at::Tensor> singles(op.args.size());
    for (size_t i = 0; i < op.args.size(); ++i) {
      if (traits.kinds[i] == ArgumentKind::kTensorList && op.args[i].isInt()) lists[i].resize(std::max<int64_t>(0, op.args[i].toInt()));
    }
    for (const TapeRef& ref : op.refs) {
      (ref.element < 0 ? singles[ref.arg] : lists[ref.arg][ref.element]) = tensor_of(ref);
    }
    for (size_t i = 0; i < op.args.size(); ++i) {
      switch (traits.kinds[i]) {
        case ArgumentKind::kTensor:
          stack.push_back(singles[i].defined() ? c10::IValue(singles[i]) : c10::IValue());
          break;
        case ArgumentKind::kTensorList: {
          if (!op.args[i].isInt() || op.args[i].toInt() < 0) {
            stack.emplace_back();
          } else if (holds_optionals(op.op.schema().arguments()[i].type())) {
            c10::List<std::optional<at::Tensor>> list;
            for (at::Tensor& t : lists[i]) list.push_back(t.defined() ? std::make_optional(t) : std::nullopt);
            stack.emplace_back(std::move(list));
          } else {
            stack.emplace_back(c10::List<at::Tensor>(lists[i]));
          }
          break;
        }
        case ArgumentKind::kOther:
          stack.push_back(op.args[i]);
          break;
      }
    }
    return stack;
  }

  template <class F>
  static void for_each_result(const torch::jit::Stack& results, F&& f) {
    for (const c10::IValue& r : results) {
      if (r.isTensor()) {
        f(r.toTensor());
      } else if (r.isList()) {
        for (const c10::IValue& element : r.toListRef()) f(element.toTensor());
      }
    }
  }

 private:
  bool anew(const TapeValue& value) const { return graphs_ == Graphs::kUsedUp && !value.is_capture() && value.differentiable(); }

  static bool holds_optionals(const c10::TypePtr& type) {
    if (type->kind() == c10::TypeKind::OptionalType) return holds_optionals(type->containedType(0));
    return type->kind() == c10::TypeKind::ListType && type->containedType(0)->kind() == c10::TypeKind::OptionalType;
  }

  // What has been written into it is a region's to make, and the tensor with it.
  bool is_split_by_now(const TapeValue& value) const {
    const TapeValueId now = tape_.find(value.weak._unsafe_get_target());
    return now != kNoTapeValue && plan_.descends[now];
  }

  const Tape& tape_;
  const Plan& plan_;
  Graphs graphs_;
  ska::flat_hash_map<TapeValueId, at::Tensor> made_, kept_;
};

// The storage of a dead value that an alias keeps alive, or none.
at::Storage storage_of_group(const Tape& tape, uint32_t group) {
  for (const TapeValue& value : tape.values()) {
    if (value.group != group || value.weak.expired()) continue;
    if (const at::Tensor t = value.lock(); t.defined() && storage_of(t) != nullptr) return t.storage();
  }
  return {};
}

// A view stays one of the same base: what is written through it is the base's graph, too.
std::unique_ptr<torch::autograd::AutogradMeta> view_meta_of(const at::Tensor& made, c10::TensorImpl* impl) {
  using torch::autograd::ViewInfo;
  const auto* meta = torch::autograd::impl::get_view_autograd_meta(made);
  if (meta == nullptr || !meta->has_bw_view()) return std::make_unique<torch::autograd::AutogradMeta>();
  const ViewInfo& view = meta->get_backward_view();
  ViewInfo same(view.base_, view.has_view_fn() ? view.view_fn().clone_and_set() : nullptr, view.has_view_fn() ? view.rev_view_fn() : nullptr);
  return std::make_unique<torch::autograd::DifferentiableViewMeta>(impl, std::move(same), std::nullopt, /*shared_view_info=*/true, meta->get_creation_meta());
}

// Note [Tensors that changed their look]
// After h.unsqueeze_(0) the program's tensor stands for the view that this made, and the value that an operator had given before is nobody's: it gets a tensor of the region's own, with
// the sizes that it had then. A conversion makes the view (view_instead()) and gives it to the program's tensor.
at::Tensor alive_as(const TapeValue& value) {
  const at::Tensor t = value.weak.expired() ? at::Tensor() : value.lock();
  if (!t.defined() || t.layout() != at::kStrided) return t;
  const bool same = t.sizes() == at::IntArrayRef(value.sizes) && t.strides() == at::IntArrayRef(value.strides) && t.storage_offset() == value.storage_offset;
  return same ? t : at::Tensor();
}

// `made` is what a live tensor is now: the program's tensor takes over its value, its split and its gradient.
at::Tensor take_place(const at::Tensor& made, const at::Tensor& alive) {
  if (made.is_same(alive) || storage_of(alive) == nullptr) return alive;  // a sparse tensor, which check_convertible() let pass, is what it was
  const auto entry = deferred_registry().find(made.unsafeGetTensorImpl());
  if (entry.region == nullptr && made.is_view() && made._base().is_same(alive)) return alive;  // t_() of one dimension, or for a second time: it looks as it did before
  c10::TensorImpl* impl = alive.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(made.storage());
  impl->set_sizes_and_strides(made.sizes(), made.strides(), made.storage_offset());
  if (entry.region != nullptr) {
    entry.region->shared_from_this()->rebind(entry.value, alive);
    return alive;
  }
  impl->set_autograd_meta(view_meta_of(made, impl));
  if (made.requires_grad()) torch::autograd::impl::set_gradient_edge(alive, torch::autograd::impl::gradient_edge(made));
  if (const Mark* mark = session().marks.find(made.unsafeGetTensorImpl())) {
    session().marks.add(alive, mark->placement, mark->batch, mark->micro_batch);
  }
  return alive;
}

// Hooks that the old graph carries would be lost with it.
void check_old_graph(const Tape& tape, const Plan& plan, Graphs graphs) {
  std::vector<torch::autograd::Node*> stack;
  for (TapeValueId v = 0; v < tape.values().size(); ++v) {
    const TapeValue& value = tape.values()[v];
    if (value.is_capture() || (!plan.descends[v] && graphs == Graphs::kWhole)) continue;
    const at::Tensor t = value.lock();
    if (!t.defined()) continue;
    if (tape.find(t.unsafeGetTensorImpl()) == v && !value.known_node(node_of(t))) {
      throw CannotConvert("an autograd.Function or a compiled region made a tensor of the step (" + describe(value) + ").");
    }
    add_nodes_behind(t, stack);
  }
  walk_graph(std::move(stack), [](torch::autograd::Node* node) {
    if (dynamic_cast<torch::autograd::AccumulateGrad*>(node) != nullptr || dynamic_cast<RegionNode*>(node) != nullptr) return false;
    const auto& before = node->pre_hooks();
    const bool hooked = std::any_of(before.begin(), before.end(), [](const auto& hook) { return dynamic_cast<const HoldHook*>(hook.get()) == nullptr; });
    if (hooked || !node->tensor_pre_hooks().empty() || !node->retains_grad_hooks().empty() || !node->post_hooks().empty()) {
      throw CannotConvert("a hook (register_hook, retain_grad) hangs on a tensor inside the step, and would need that tensor's full gradient.");
    }
    return true;
  });
}

// By `.data = ...`, which no operator shows. A copy that the tape made lies elsewhere by nature.
bool given_other_memory(const TapeValue& value) {
  if (value.storage == nullptr || value.is_copied()) return false;
  const at::Tensor t = value.lock();
  return t.defined() && value.storage != storage_of(t);
}

// Whether the operator joins the region, so that its live result keeps its memory where that is pinned.
bool stays_where_it_is(const Tape& tape, const Plan& plan, const TapeOp& op) {
  if (!reads_split(plan, op)) return false;
  OpCall call = call_on_tape(tape, op, plan.batch, [&](TapeValueId v) { return plan.placements[v]; });
  return ask(op_traits(op.op).rule, call) == Verdict::kLocal && call.real_arguments().empty();
}

// The groups whose memory the conversion leaves as it is: what seeds and values that are taken as they are look at, and their views; what NumPy may look at; and what a
// tensor looks at that the tape knows apart from it (`h.data`), and reads as it is.
class Staying {
 public:
  Staying(const Tape& tape, const Plan& plan) : tape_(tape) {
    ska::flat_hash_set<const c10::StorageImpl*> storages;
    for (TapeValueId v = 0; v < tape.values().size(); ++v) {
      if (plan.descends[v] && !is_seed(plan, v)) continue;
      stays_.insert(tape.values()[v].group);
      if (const at::Tensor t = tape.values()[v].lock(); t.defined() && storage_of(t) != nullptr) storages.insert(storage_of(t));
    }
    for (const TapeValue& value : tape.values()) {
      if (stays_.count(value.group)) continue;
      if (const at::Tensor t = value.lock(); t.defined() && storages.count(storage_of(t))) shared_.insert(value.group);
    }
  }

  bool has(uint32_t group) const { return stays_.count(group) > 0 || keeps_data(group) || tape_.on_capture(group); }
  // Whether a value of the group is made again, beside the data that is there.
  bool keeps_data(uint32_t group) const { return tape_.pinned(group) || shared_.count(group) > 0; }

 private:
  const Tape& tape_;
  ska::flat_hash_set<uint32_t> stays_, shared_;
};

// Whether conversion can succeed; throws CannotConvert when not. Reads only.
void check_convertible(const Tape& tape, const Plan& plan, Graphs graphs) {
  if (tape.effects_under_hooks()) {
    throw CannotConvert("the step updates running statistics, or another buffer, inside a checkpoint or other saved-tensor hooks, which would do so again in backward.");
  }
  check_old_graph(tape, plan, graphs);
  const RealValues real(tape, plan, graphs);
  const auto needed = needed_ops(tape, plan);
  const Staying staying(tape, plan);
  for (size_t i = 0; i < tape.ops().size(); ++i) {
    if (!needed[i]) continue;
    const TapeOp& op = tape.ops()[i];
    const OpTraits& traits = op_traits(op.op);
    check_hooks(tape, op);
    for (const TapeRef& ref : op.refs) {
      if (given_other_memory(tape.values()[ref.value])) {
        throw CannotConvert("a tensor of the step (" + describe(tape.values()[ref.value]) + ") was given other memory since (.data = ...).");
      }
    }
    for (TapeValueId out : op.outputs) {
      if (out == kNoTapeValue || !tape.values()[out].differentiable()) continue;
      if (const at::Tensor t = tape.values()[out].lock(); t.defined() && storage_of(t) == nullptr) throw CannotConvert("a sparse tensor inside the step has a gradient.");
    }
    for (const Seed& seed : plan.seeds) {
      const TapeValue& whole = tape.values()[seed.value];
      if (seed.created || whole.is_capture() || whole.producer <= static_cast<int32_t>(i)) continue;
      for (TapeValueId out : op.outputs) {
        if (out != kNoTapeValue && tape.values()[out].group == whole.group) throw CannotConvert("a tensor that the step read (" + describe(whole) + ") was written to in place after " + op.op.schema().name() + " had made it.");
      }
    }
    for (TapeValueId out : op.outputs) {
      if (out != kNoTapeValue && tape.values()[out].exchanged && !stays_where_it_is(tape, plan, op)) {
        throw CannotConvert("a tensor of the step (" + describe(tape.values()[out]) + ") was written to by a collective operation.");
      }
    }
    if (traits.writes) {
      // Made again, it writes into what was made again before; what is there as the program has it has been written to already.
      const TapeValue* written = op.refs.empty() || op.refs[0].arg != 0 ? nullptr : &tape.values()[op.refs[0].value];
      if (written == nullptr || written->is_capture() || !needed[written->producer] || is_seed(plan, op.refs[0].value)) {
        throw CannotConvert(op.op.schema().name() + " writes in place to a tensor that is not made again.");
      }
      const bool looks = view_instead(op.op).has_value();  // the memory stays as it is
      if (traits.metadata && !looks && op.op.schema().name() != "aten::detach_") throw CannotConvert(op.op.schema().name() + " changes in place how a tensor of the step (" + describe(*written) + ") looks at its memory.");
      if (!looks && staying.keeps_data(written->group) && !stays_where_it_is(tape, plan, op)) {
        throw CannotConvert(op.op.schema().name() + " has written in place to a tensor (" + describe(*written) + ") that NumPy or .data may look at, and would write to it again.");
      }
      OpCall call = call_on_tape(tape, op, plan.batch, [&](TapeValueId v) { return plan.placements[v]; });
      // Rules are asked only of calls that read something split.
      const Verdict verdict = reads_split(plan, op) && traits.in_place ? ask(traits.rule, call) : Verdict::kNo;
      if (!looks && (plan.frozen[i] || !writes_per_row(plan, op, call, verdict))) throw CannotConvert("an operator without a placement rule, " + op.op.schema().name() + ", writes in place to a tensor of the batch.");
    }
    for (const TapeRef& ref : tape.ops()[i].refs) {
      if (is_dropped(op, ref)) continue;
      const TapeValue& read = tape.values()[ref.value];
      if (graphs == Graphs::kUsedUp && !plan.descends[ref.value] && !read.is_capture() && read.differentiable() && drew(tape.ops()[read.producer])) {
        throw CannotConvert("random draws of " + tape.ops()[read.producer].op.schema().name() + " are made for the whole batch, and its part of the graph is used up.");
      }
      if (!plan.descends[ref.value] || tape.values()[ref.value].is_capture() || is_seed(plan, ref.value)) real.check(ref.value, ref.version);
    }
  }
}

// Notes by which calls a like step begins. Reads the tape.
std::vector<LearnedSeed> learn(const Tape& tape, const Plan& plan) {
  std::map<uint64_t, int> times;
  std::vector<std::tuple<const TapeOp*, uint64_t, LearnedSeed>> found;
  std::shared_ptr<SizePolicy> policy;
  for (const Seed& seed : plan.seeds) {
    const TapeOp* reader = nullptr;
    if (seed.created) reader = &tape.ops()[tape.values()[seed.value].producer];
    for (const TapeOp& op : tape.ops()) {
      if (reader == nullptr && std::any_of(op.refs.begin(), op.refs.end(), [&](const TapeRef& r) { return r.value == seed.value; })) {
        reader = &op;
        break;
      }
    }
    if (reader == nullptr) reader = tape.pending();
    if (reader == nullptr) continue;
    uint64_t key = Signatures::start_key(reader->op, tape.state(reader->state).grad_mode);
    const TapeRef* at = nullptr;
    for (const TapeRef& ref : reader->refs) {
      const TapeValue& v = tape.values()[ref.value];
      key = Signatures::add_to_key(key, {v.sizes, v.dtype, v.requires_grad});
      if (ref.value == seed.value && at == nullptr) at = &ref;
    }
    if (const int sizes = op_traits(reader->op).creates; sizes >= 0 && reader->args[sizes].isList()) key = Signatures::add_to_key(key, reader->args[sizes]);
    if (at == nullptr && !seed.created) continue;
    LearnedSeed learned;
    learned.argument = seed.created ? -1 : at->arg;
    learned.element = seed.created ? -1 : at->element;
    learned.placement = seed.placement;
    learned.device = tape.values()[seed.value].device.type();
    if (policy == nullptr) policy = session().signatures.find_policy(key, plan.batch);
    ++times[key];
    found.emplace_back(reader, key, std::move(learned));
  }
  std::vector<LearnedSeed> seeds;
  if (policy == nullptr) policy = make_policy(plan.batch, tape.values()[plan.seeds[0].value].device);
  for (auto& [reader, key, seed] : found) {
    seed.key = key;
    seed.op = c10::toString(reader->op.operator_name());
    seed.policy = policy;
    seed.times = times[key];
    session().signatures.learn(seed);
    seeds.push_back(std::move(seed));
  }
  return seeds;
}

// Rows at a time for the step, now that the activations that are split are gone.
int64_t begin_step(const std::vector<LearnedSeed>& seeds, int64_t batch, at::Device device) {
  return seeds.empty() ? first_micro_batch(batch) : session().sizes.split(seeds.front().policy, device);
}

}  // namespace

void check_raw_memory() {
  Session& s = session();
  const bool changed = raw_memory().changed([&](const c10::StorageImpl* storage) {
    return std::any_of(s.tape.values().begin(), s.tape.values().end(), [&](const TapeValue& value) { return value.storage == storage; }) ||
           (s.current && s.current->concerns_storage(storage));
  });
  if (changed) throw CannotConvert(kWrittenUnseen);
}

Plan find_plan(const Tape& tape, const std::function<bool(const Plan&)>& serves, const std::function<void(const Plan&)>& check, int64_t usual_batch,
               Graphs graphs) {
  // Parameters, constants and data, what is written to them in place, and views of them, are made from nothing that could be split.
  const bool computed = std::any_of(tape.ops().begin(), tape.ops().end(), [&](const TapeOp& op) {
    const auto makes = [&](TapeValueId out) { return out != kNoTapeValue && !tape.values()[out].is_view; };
    return !op.refs.empty() && !op.in_place && std::any_of(op.outputs.begin(), op.outputs.end(), makes);
  });
  std::string reason = "nothing that the step has computed can be split along a dimension of its inputs.";
  if (!computed) reason = "the step has computed nothing yet that could be split: what is there is the model, or the data.";
  bool first = true;
  const auto feasible = [&](const Plan& plan) {
    try {
      check(plan);
      check_convertible(tape, plan, graphs);
      return true;
    } catch (const CannotConvert& why) {
      session().log(KOILA_LOG_DEBUG, "cannot split " + describe(tape.values()[plan.seeds[0].value]) + " into " + std::to_string(plan.batch) + " rows: " + why.what());
      if (std::exchange(first, false)) reason = why.what();
      return false;
    }
  };
  std::optional<Plan> plan = choose_seeds(tape, {serves, feasible, usual_batch});
  if (!plan) throw CannotConvert(reason);
  return *std::move(plan);
}

namespace {

// A conversion ended on its way, before the operator `from`. What it took the memory of and has not filled again is lost, and so is what it has filled with a value that a later operator
// would have written over: who reads these gets the program's out-of-memory error, and never another value.
void lose_the_rest(const Tape& tape, const Plan& plan, const std::vector<char>& needed, size_t from) {
  for (size_t i = from; i < tape.ops().size(); ++i) {
    if (!needed[i]) continue;
    for (TapeValueId out : tape.ops()[i].outputs) {
      if (out == kNoTapeValue || !plan.descends[out] || is_seed(plan, out)) continue;
      const at::Tensor t = tape.values()[out].lock();
      if (!t.defined() || storage_of(t) == nullptr || tape.on_capture(tape.values()[out].group)) continue;
      if (deferred_registry().awaits_value(storage_of(t))) continue;
      const bool filled = memory_of(t) != nullptr && !tape.ops()[i].in_place;
      if (!filled) deferred_registry().lose(t.storage());
    }
  }
}

}  // namespace

int64_t convert(Tape& tape, const Plan& plan, Graphs graphs) {
  const NoInferenceMode no_inference;
  Session& s = session();
  const auto seeds = learn(tape, plan);
  const auto needed = needed_ops(tape, plan);
  BeforeConversion before(tape, plan, needed);
  struct Converting {
    Session& s;
    Tape& tape;
    const Plan& plan;
    const std::vector<char>& needed;
    BeforeConversion& before;
    size_t at = 0;  // operator
    bool done = false;
    ~Converting() {
      s.converting = s.forward_again = false;
      written_since().end();
      if (done) return;
      lose_the_rest(tape, plan, needed, at);
      before.compare(tape, s.current.get());
      tape.cut();
    }
  } converting{s, tape, plan, needed, before};
  s.converting = true;
  written_since().begin(tape);
  s.forward_again = graphs == Graphs::kUsedUp && !c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode);
  const at::Device device = tape.values()[plan.seeds[0].value].device;
  // What a region of this step can go on from joins it.
  if (s.current && (!s.current->open() || s.current->batch() != plan.batch || s.current->device() != device)) s.current.reset();

  RealValues real(tape, plan, graphs);
  ska::flat_hash_map<TapeValueId, at::Tensor> handles;  // tensors that stand for split values
  const auto tensor_of = [&](const TapeRef& ref) {
    if (auto it = handles.find(ref.value); it != handles.end()) return it->second;
    return real.get(ref.value, ref.version);
  };
  const auto entry_of = [](const at::Tensor& t) { return deferred_registry().find(t.unsafeGetTensorImpl()); };

  const c10::DispatchKeySet keys = tape.values()[plan.seeds[0].value].lock().key_set();

  for (size_t i = 0; i < tape.ops().size(); ++i) {
    if (!needed[i]) continue;
    const TapeOp& op = tape.ops()[i];
    for (const TapeRef& ref : op.refs) {
      if (!is_dropped(op, ref) && (!plan.descends[ref.value] || tape.values()[ref.value].is_capture() || is_seed(plan, ref.value))) real.keep(ref.value);
    }
  }

  // Memory first. Every live activation that is split gives up its own in place: whatever else shares the storage object (a graph's
  // saved tensor, a view) lets go of it too.
  const Staying staying(tape, plan);
  for (size_t i = 0; i < tape.ops().size(); ++i) {
    if (!needed[i]) continue;
    for (TapeValueId out : tape.ops()[i].outputs) {
      if (out == kNoTapeValue || plan.placements[out].is_replicate() || staying.has(tape.values()[out].group)) continue;
      const TapeValue& value = tape.values()[out];
      if (value.is_capture()) continue;
      const at::Tensor t = value.lock();
      if (!t.defined() || storage_of(t) == nullptr) continue;
      c10::StorageImpl& storage = *t.storage().unsafeGetStorageImpl();
      storage.set_data_ptr_noswap(at::DataPtr(nullptr, device));
      refuse_raw_access(storage);
    }
  }

  release_cached_blocks(device);

  // Note [No way back]
  // From here on tensors of the program have no memory, so nothing that can be refused is found out any more: that is what check_convertible() is for. What
  // turns out otherwise than planned (an operator that does not join after all) runs as if the program called it now, which is always right. What there
  // is no room for at the full batch is served from outside, where rung 2 may; else the whole step is refused.
  const Offload::MustNotFail no_way_back;

  const int64_t micro_batch = s.current ? s.current->micro_batch() : begin_step(seeds, plan.batch, device);
  for (const Seed& seed : plan.seeds) {
    if (!seed.created) s.marks.add(tape.values()[seed.value].lock(), seed.placement, plan.batch, micro_batch);
  }
  auto region = s.region_for(plan.batch, micro_batch, device);

  for (size_t i = 0; i < tape.ops().size(); ++i) {
    if (!needed[i]) continue;
    // An operator that runs again may write to what the region has read, which ends a region without gradients.
    if (!region->open()) region = s.region_for(plan.batch, micro_batch, device);
    converting.at = i;
    const TapeOp& op = tape.ops()[i];
    const OpTraits& traits = op_traits(op.op);
    const auto tensor_or_none = [&](const TapeRef& ref) { return is_dropped(op, ref) ? at::Tensor() : tensor_of(ref); };
    torch::jit::Stack stack = RealValues::arguments(op, tensor_or_none);

    // The rule's answer for the placements as they came out, which may differ from the plan's guess after an operator without a rule.
    ska::flat_hash_map<TapeValueId, Placement> placements;
    bool any = false;
    bool elsewhere = false;
    for (const TapeRef& ref : op.refs) {
      if (is_dropped(op, ref)) continue;
      const at::Tensor t = tensor_of(ref);
      Placement p;
      if (const auto entry = entry_of(t); entry.region != nullptr) {
        p = entry.region->value(entry.value).placement;
        elsewhere |= entry.region != region.get() || !region->open();
      } else if (const Mark* mark = s.marks.find(t.unsafeGetTensorImpl()); mark != nullptr && mark->batch == plan.batch) {
        p = mark->placement;
      }
      elsewhere |= region->would_cycle(t) && entry_of(t).region != region.get();
      any |= !p.is_replicate();
      placements[ref.value] = p;
    }
    OpCall call = call_on_tape(tape, op, plan.batch, [&](TapeValueId v) { return placements[v]; });
    const bool created = !any && !op.outputs.empty() && op.outputs[0] != kNoTapeValue && is_created(plan, op.outputs[0]);
    Verdict verdict = any ? ask(traits.rule, call) : Verdict::kNo;
    if (created && create_split(call)) verdict = Verdict::kLocal;
    bool known = verdict == Verdict::kLocal && !elsewhere && call.real_arguments().empty();
    if (verdict == Verdict::kLocal && !call.real_arguments().empty() && !elsewhere) {
      known = true;
      for (int arg : call.real_arguments()) {
        if (stack[arg].isTensor() && stack[arg].toTensor().defined() && entry_of(stack[arg].toTensor()).region != nullptr) known = false;
      }
    }
    const auto view = view_instead(op.op);
    const bool on_kept_data = traits.writes && !view && !op.outputs.empty() && op.outputs[0] != kNoTapeValue && staying.keeps_data(tape.values()[op.outputs[0]].group);
    if (view) known = false;
    if (known && traits.writes) {
      const auto entry = stack[0].isTensor() ? entry_of(stack[0].toTensor()) : DeferredRegistry::Entry{};
      known = traits.in_place && entry.region == region.get() && !call.outputs().empty() &&
              call.outputs()[0] == region->value(entry.value).placement && region->may_write(entry.value, on_kept_data);
    }
    if (on_kept_data && !known) {
      TORCH_CHECK_WITH(OutOfMemoryError, false, kUnderKoila, "an operator would write in place for a second time to a tensor that NumPy or .data may look at.");
    }

    std::vector<Region::KnownOutput> outputs;
    bool view_of_capture = false;
    bool same_storage = true;
    if (known) {
      const bool list = op.op.schema().returns().size() == 1 && op.outputs.size() > 1;
      for (size_t o = 0; o < op.outputs.size(); ++o) {
        const TapeValueId out = op.outputs[o];
        Region::KnownOutput& k = outputs.emplace_back();
        if (out == kNoTapeValue) {
          known = false;
          break;
        }
        const TapeValue& value = tape.values()[out];
        const at::Tensor alive = alive_as(value);
        for (const TapeRef& ref : op.refs) {
          const TapeValue& in = tape.values()[ref.value];
          const bool same = ref.value == out || (op.in_place && in.group == value.group && ref.arg == 0);
          if (same) k.handed_back = tensor_of(ref);
          if (value.is_view && in.group == value.group) {
            const auto entry = entry_of(tensor_of(ref));
            if (entry.region == region.get()) {
              k.alias_of = entry.value;
            } else {
              view_of_capture = true;
              // The program's own view will do, unless what it is a view of has been made anew.
              same_storage &= alive.defined() && storage_of(alive) == storage_of(tensor_of(ref));
            }
          }
        }
        k.placement = (list ? 0 : o) < call.outputs().size() ? call.outputs()[list ? 0 : o] : Placement::replicate();
        k.requires_grad = value.differentiable();
        if (k.handed_back.defined()) continue;
        if (k.placement.is_replicate() || c10::isQIntType(value.dtype)) known = false;
        k.tensor = alive;
        k.sizes = value.sizes;
        k.strides = value.strides;
        k.storage_offset = value.storage_offset;
        k.dtype = value.dtype;
        k.keep_data = staying.keeps_data(value.group);
        k.keys = alive.defined() ? alive.key_set() : keys;
        if (!alive.defined() && value.conjugated) k.keys = k.keys.add(c10::DispatchKey::Conjugate);
        if (!alive.defined() && value.negated) k.keys = k.keys.add(c10::DispatchKey::Negative);
        if (!alive.defined() && k.alias_of == kNoValue) k.storage = storage_of_group(tape, value.group);
      }
    }
    // Views of a seed and of a split value from one call (broadcast_tensors): its inner operators tell them apart.
    if (view_of_capture && std::any_of(outputs.begin(), outputs.end(), [&](const auto& k) { return k.alias_of != kNoValue || (k.handed_back.defined() && entry_of(k.handed_back).region != nullptr); })) known = view_of_capture = false;
    s.log(KOILA_LOG_TRACE, "convert " + op.op.schema().name() + (known && !view_of_capture ? ": joins" : view_of_capture ? ": view of a seed" : ": runs again"));
    if (known && !view_of_capture) {
      const OpState& state = tape.state(op.state);
      auto tensors = region->add_known({op.op, call, stack, draws(traits.rule, call), &state}, std::move(outputs));
      for (size_t o = 0; o < op.outputs.size(); ++o) handles[op.outputs[o]] = tensors[o];
      continue;
    }
    if (view_of_capture) {
      // A view of a seed is real; the program's own when it is alive.
      bool all_alive = same_storage;
      for (TapeValueId out : op.outputs) all_alive &= out != kNoTapeValue && alive_as(tape.values()[out]).defined();
      if (all_alive) {
        const bool list = op.op.schema().returns().size() == 1 && op.outputs.size() > 1;
        for (size_t o = 0; o < op.outputs.size(); ++o) {
          const at::Tensor t = alive_as(tape.values()[op.outputs[o]]);
          handles[op.outputs[o]] = t;
          const Placement& p = call.outputs()[list ? 0 : o];
          if (p.is_shard()) s.marks.add(t, p, plan.batch, micro_batch);
        }
        continue;
      }
    }
    // As if the program called it now: it is materialised, decomposed, or made real, and its results take the old ones' place.
    {
      const ProgramStateGuard state(tape.state(op.state));
      const PlaceScope place(op.place);
      call_again(view ? *view : op.op, stack);
    }
    size_t flat = 0;
    RealValues::for_each_result(stack, [&](const at::Tensor& t) {
      const TapeValueId out = flat < op.outputs.size() ? op.outputs[flat] : kNoTapeValue;
      ++flat;
      if (out == kNoTapeValue || !t.defined()) return;
      if (tape.values()[out].exchanged) throw CannotConvert("a tensor of the step was written to by a collective operation.");
      const at::Tensor alive = alive_as(tape.values()[out]);
      handles[out] = alive.defined() ? take_place(t, alive) : t;
    });
  }
  for (const TapeValue& value : tape.values()) {
    const at::Tensor t = value.exchanged ? value.lock() : at::Tensor();
    if (const auto entry = t.defined() ? entry_of(t) : DeferredRegistry::Entry{}; entry.region != nullptr) entry.region->hand_out_exchanged(entry.value);
  }
  region->catch_up();
  before.compare(tape, region.get());
  region->check_sound();
  tape.keep_apart(plan.descends, [&](const at::Tensor& t) {
    return std::any_of(region->captures().begin(), region->captures().end(), [&](const Capture& c) { return c.is_of(t); });
  });
  converting.done = true;
  if (!s.current) return micro_batch;
  for (const LearnedSeed& seed : seeds) {
    s.current->begin_with(seed.key, seed.times);
    s.sizes.goes_on(*seed.policy, seed.key, seed.times, /*with_gradients=*/false);
  }
  return s.current->micro_batch();
}

}  // namespace koila
