#include "torchglue/rescue/backward.h"

#include <ATen/ops/empty.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <c10/util/ScopeExit.h>
#include <c10/util/flat_hash_map.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <exception>
#include <optional>

#include "torchglue/base/engine_queue.h"
#include "torchglue/base/engine_task.h"
#include "torchglue/base/graph_walk.h"
#include "torchglue/base/process.h"
#include "torchglue/facts/step_accounts.h"
#include "torchglue/oom/events.h"
#include "torchglue/oom/oom.h"
#include "torchglue/oom/oom_watch.h"
#include "torchglue/oom/python_error.h"
#include "torchglue/operators/own_functions.h"
#include "torchglue/region/boundary_store.h"
#include "torchglue/region/deferred.h"
#include "torchglue/region/node.h"
#include "torchglue/region/pass_edges.h"
#include "torchglue/region/quiet_writes.h"
#include "torchglue/region/raw_memory.h"
#include "torchglue/region/spent_nodes.h"
#include "torchglue/region/successors.h"
#include "torchglue/rescue/convert.h"
#include "torchglue/rescue/engine_callbacks.h"
#include "torchglue/rescue/graph_pass.h"
#include "torchglue/rescue/interrupted.h"
#include "torchglue/rescue/pass_number.h"
#include "torchglue/rescue/refused_pass.h"
#include "torchglue/rescue/split_pass.h"
#include "torchglue/rescue/tensor_hooks.h"
#include "torchglue/sizing/sizing.h"
#include "torchglue/step/ladder.h"
#include "torchglue/step/session.h"
#include "torchglue/step/step_owner.h"
#include "torchglue/tape/node_kind.h"

namespace koila {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Engine;
using torch::autograd::Node;
using torch::autograd::variable_list;

namespace {

ExecuteFn real_execute = nullptr;

// What the program asks of the engine.
struct Pass {
  Engine* engine;
  const edge_list& roots;
  const variable_list& inputs;
  bool keep_graph, create_graph, accumulate_grad;
  const edge_list& outputs;

  // Whether it is a part of the forward pass, see Note [Gradients that have a graph].
  bool goes_on() const { return create_graph && !accumulate_grad; }
  variable_list run(const edge_list& from, const edge_list& to) const;
};

// The engine leaves out what lies behind the first of the targets, going by numbers that nodes got when they were made. A region's are high, and a node that hangs on it by now may have a low one
// (see Rewiring); where the target hangs on a region itself, another region has a lower number whatever hangs on it. A target that nothing leads to has the lowest there is.
variable_list Pass::run(const edge_list& from, const edge_list& to) const {
  if (std::none_of(to.begin(), to.end(), [](const Edge& e) { return e.function != nullptr && e.function->topological_nr() >= RegionNode::kTopologicalNumber; })) {
    return real_execute(engine, from, inputs, keep_graph, create_graph, accumulate_grad, to);
  }
  edge_list unpruned = to;
  unpruned.push_back(torch::autograd::impl::gradient_edge(at::empty({0}).set_requires_grad(true)));
  variable_list results = real_execute(engine, from, inputs, keep_graph, create_graph, accumulate_grad, unpruned);
  if (results.size() > to.size()) results.resize(to.size());
  return results;
}

// `kept`: the pass has kept its graph.
void end_step(const edge_list& roots, bool kept) {
  Session& s = session();
  const bool goes_on = std::uncaught_exceptions() == 0 && s.engine_depth == 0 && !s.tape.empty() && s.live_regions().empty() && !s.functions && !s.tape.saw_functions();
  if (goes_on) s.tape.pass_over(nodes_of(roots), kept);
  s.forget_step(/*but_for_tape=*/goes_on);
  s.live_regions();
  if (s.engine_depth > 0) return;
  for (const auto& region : s.live_regions()) {
    if (region->node() == nullptr) region->let_go_of_graphs();
  }
  spent_nodes().let_go();
  if (s.live_regions().empty() || std::uncaught_exceptions() > 0) raw_memory().clear();
  s.sizes.end();
  s.offload.end();
  s.size_file.step_over(s.signatures);
  s.had_backward = true;
  s.updated.clear();
  s.tape.forget_functions();
  s.functions = false;
  boundaries().step();
}

// A tape of its own for what the pass runs of the program, see Note [A step within a backward pass].
class StepWithin {
 public:
  StepWithin() {
    Session& s = session();
    s.outer_tapes.push_back(std::move(s.tape));
    s.tape = Tape(/*replay=*/true);
    s.current.reset();
  }
  ~StepWithin() {
    Session& s = session();
    s.tape = std::move(s.outer_tapes.back());
    s.outer_tapes.pop_back();
    s.current.reset();
  }
  StepWithin(const StepWithin&) = delete;
  StepWithin& operator=(const StepWithin&) = delete;
};

// torch.compile and torch.export run backward passes over tensors that are none, to record them: these are no steps of the program's.
bool is_traced() {
  using c10::impl::TorchDispatchModeKey;
  using c10::impl::TorchDispatchModeTLS;
  return TorchDispatchModeTLS::stack_len() > 0 && (TorchDispatchModeTLS::get_mode(TorchDispatchModeKey::FAKE) || TorchDispatchModeTLS::get_mode(TorchDispatchModeKey::PROXY));
}

// Counts the passes that this thread is within. A pass that makes a graph continues the forward pass, and is not counted.
class Depth {
 public:
  Depth(int& depth, int by) : depth_(depth), by_(by) { depth_ += by_; }
  ~Depth() { depth_ -= by_; }

 private:
  int& depth_;
  int by_;
};

variable_list run_pass(const Pass& pass, const edge_list& roots, const edge_list& outputs) {
  for (const at::Tensor& t : pass.inputs) materialise_tensor(t);
  Session& s = session();
  std::optional<PassEdges> edges;
  if (!s.live_regions().empty()) edges.emplace(roots, outputs);
  s.functions = (s.functions || s.tape.saw_functions()) && !pass.create_graph;
  if (s.functions) {
    const StepWithin within;
    return pass.run(roots, outputs);
  }
  // While deferred tensors exist, hooks and backward functions written in Python may read them: then the interceptor stays in. A pass that makes a graph makes such tensors.
  if (deferred_registry().any() || (pass.goes_on() && !s.live_regions().empty())) return pass.run(roots, outputs);
  const NoInterceptGuard no_intercept;
  return pass.run(roots, outputs);
}

// A pass at the full batch that goes on with the step: the tape knows it, or the step ends here.
variable_list run_on_tape(const Pass& pass, bool& over) {
  Tape& tape = session().tape;
  std::optional<TapedPass> taped;
  if (pass.goes_on() && !tape.empty() && regions_behind(pass.roots).empty()) taped = TapedPass::of(tape, pass.roots, pass.inputs, pass.outputs);
  if (!taped) return run_pass(pass, pass.roots, pass.outputs);
  taped->begin();
  const auto left_open = c10::make_scope_exit([&] { tape.discard(); });
  const NoInterceptGuard no_intercept;
  variable_list results = run_pass(pass, pass.roots, pass.outputs);
  taped->commit(results);
  over = false;
  return results;
}

// The error is PyTorch's: the program's own function, run again, raises what it would have raised.
constexpr const char* kRunsOnceMore =
    "torch.utils.checkpoint cannot run its function once more, or in micro-batches: selective activation checkpointing and debug=True allow one run, and what a checkpoint makes again must be what it made.";

// A pass to values inside of a region, which the engine cannot be asked for. Nothing where there are none such. Throws where that region cannot give them.
std::optional<variable_list> run_inside(const Pass& pass) {
  const auto inner = [&](const Edge& e) { return dynamic_cast<RegionNode*>(e.function.get()) != nullptr && !comes_whole(pass.roots, e); };
  const auto found = std::find_if(pass.outputs.begin(), pass.outputs.end(), inner);
  if (found == pass.outputs.end()) return std::nullopt;
  std::optional<variable_list> gradients;
  if (!pass.accumulate_grad) gradients = static_cast<RegionNode*>(found->function.get())->region()->differentiate_inside(pass.roots, pass.inputs, pass.outputs);
  if (!gradients) refuse_split_step(describe_out_of_memory("autograd.grad"), "autograd.grad asks for the gradient of a tensor inside the step, which runs in micro-batches.", 0);
  if (pass.create_graph) return gradients;
  for (at::Tensor& gradient : *gradients) {
    if (gradient.defined()) gradient = gradient.detach();
  }
  return gradients;
}

void check_split_pass(const Pass& pass, int depth) {
  if (session().live_regions().empty()) return;
  if (pass.create_graph && calls_hooks(pass.roots, pass.outputs)) refuse_split_step(describe_out_of_memory("autograd.grad"), kGradientComesByHook, 0);
  for (const auto& region : regions_behind(pass.roots)) {
    region->check_saved();
    if (region->depth() == depth) region->check_hooks();
    if (pass.create_graph && pass.accumulate_grad) refuse_split_step(describe_out_of_memory("backward"), kAccumulatesGraphs, region->batch());
    if (pass.create_graph && !pass.keep_graph) {
      refuse_split_step(describe_out_of_memory("autograd.grad"), "create_graph=True with retain_graph=False asks for a graph of a graph that is let go of.", region->batch());
    }
  }
}

// The pass along the graph of a step that has been split just now.
variable_list run_split(const Pass& pass, const edge_list& roots, const variable_list& gradients, const edge_list& outputs) {
  const Offload::Backward split_already(session().offload, [] { return false; });
  const Pass split{pass.engine, roots, gradients, pass.keep_graph, pass.create_graph, pass.accumulate_grad, outputs};
  if (auto gradients = run_inside(split)) return *std::move(gradients);
  return run_pass(split, roots, outputs);
}

// Whether all the autograd.Functions there are operators to the tape, whose backward methods have no effects.
bool has_only_operators(const edge_list& roots, const Tape& tape) {
  ska::flat_hash_set<const void*> known;
  for (const TapeOp& op : tape.ops()) {
    if (!is_function_operator(op.op)) continue;
    for (const TapeValueId out : op.outputs) {
      if (out != kNoTapeValue) known.insert(tape.values()[out].grad_fn);
    }
  }
  bool only = true;
  walk_graph(nodes_of(roots), [&](Node* node) { return only &= kind_of(*node) != NodeKind::kOther || known.count(node) > 0; });
  return only;
}

// At the full batch first; what runs out goes on in micro-batches.
variable_list rescued(const Pass& pass, bool accumulates_graphs, bool& over) {
  Session& s = session();
  const Graphs graphs = pass.goes_on() ? Graphs::kWhole : Graphs::kUsedUp;
  EngineCallbacks callbacks;
  std::optional<InterruptedPass> interrupted;
  s.tape.widen_bridges();
  if (!s.tape.empty()) interrupted.emplace(s.tape, pass.roots, pass.keep_graph, s.functions || s.tape.saw_functions(), pass.accumulate_grad);
  const auto can_be_split = [&] {
    try {
      plan_pass(pass.roots, pass.outputs, accumulates_graphs, graphs);
      return true;
    } catch (const CannotConvert&) {
      return false;
    }
  };
  bool in_function = false;
  std::exception_ptr ran_out;
  const int64_t told = refusals_told();
  try {
    const Offload::Backward backward(s.offload, can_be_split);
    return run_on_tape(pass, over);
  } catch (const std::exception& error) {
    if (!is_out_of_memory(error)) throw;
    in_function = ran_out_in_python(error) && (s.functions || has_functions(pass.roots)) && !has_only_operators(pass.roots, s.tape);
    ran_out = in_function ? std::current_exception() : kept_exception(error);
  }
  const OutOfMemory oom = describe_out_of_memory(pass.goes_on() ? "autograd.grad" : "backward");
  if (!interrupted) {  // everything was split already, down to one row; or a region has refused, and said why
    if (refusals_told() == told) report_refusal(oom, kOneRowDoesNotFit, 0);
    std::rethrow_exception(ran_out);
  }

  interrupted->stop_watching();
  std::string reason;
  try {
    if (in_function) throw CannotConvert(ran_out_in_functions(pass.roots));
    if (callbacks.begun()) throw CannotConvert("it happened in a callback that a hook had queued for the end of the backward pass.");
    empty_queue([&](const edge_list& nothing, const variable_list& none) { real_execute(pass.engine, nothing, none, false, false, true, {}); });
    if (pass.keep_graph) check_not_frozen(pass.roots);
    if (pass.create_graph) check_hooks_on_the_way(pass.roots);
    const auto remaining = interrupted->remaining(pass.roots, pass.outputs);
    const std::vector<at::Tensor> inner = remaining ? inner_tensors(*remaining) : std::vector<at::Tensor>();
    const PastBridges& past = interrupted->past();
    const PastBridges::Rest rest = past.any() ? past.rest() : PastBridges::Rest{{}, pass.inputs};
    const edge_list split = past.any() ? split_rest(*rest.from, past.number(), pass.outputs, graphs, &oom) : split_step(pass.roots, pass.outputs, accumulates_graphs, graphs, &oom);
    callbacks.pass_over();
    variable_list gradients;
    if (remaining) {
      interrupted->hooks().put_back(past);
      gradients = run_split(pass, split, rest.gradients, edges_now(*remaining, inner));
    }
    over = !pass.goes_on();
    run_callbacks(callbacks.take(), [&](const edge_list& from, const variable_list& with) { real_execute(pass.engine, from, with, false, false, true, {}); });
    return gradients;
  } catch (const CannotConvert& why) {
    reason = why.what();
  } catch (const std::exception& error) {
    if (is_out_of_memory(error)) {
      reason = reason_of(error);
    } else if (is_checkpoints_own(error)) {
      forget_python_error(error);
      reason = kRunsOnceMore;
    } else {
      throw;
    }
  }
  if (refusals_told() == told) report_refusal(oom, reason, 0);
  std::rethrow_exception(ran_out);
}

// `over` is set to false where the step goes on.
variable_list outermost(const Pass& pass, bool& over) {
  Session& s = session();
  check_split_pass(pass, s.engine_depth - (pass.goes_on() ? 0 : 1));
  if (auto gradients = run_inside(pass)) {
    over = false;
    return *std::move(gradients);
  }
  const bool accumulates_graphs = pass.create_graph && pass.accumulate_grad;
  const bool lazy = std::any_of(pass.roots.begin(), pass.roots.end(), [](const Edge& e) { return dynamic_cast<RegionNode*>(e.function.get()) != nullptr; });
  if (pass.goes_on() && !s.live_regions().empty() && !regions_behind(pass.roots).empty()) over = false;
  if (s.forced_micro_batch() > 0 && !lazy && !s.tape.empty()) {
    edge_list split;
    std::vector<at::Tensor> inner;
    try {
      check_not_frozen(pass.roots);
      if (pass.create_graph) check_hooks_on_the_way(pass.roots);
      inner = inner_tensors(pass.outputs);
      split = split_step(pass.roots, pass.outputs, accumulates_graphs, Graphs::kWhole, nullptr);
    } catch (const CannotConvert& why) {
      // Where something of it was split from its first operator on, the rest is what a stage's collective left to do.
      if (s.live_regions().empty()) s.runtime->on_note((std::string("KOILA_MICROBATCH: a step ran whole: ") + why.what()).c_str());
    }
    if (!split.empty()) {
      over = !pass.goes_on();
      return run_split(pass, split, pass.inputs, edges_now(pass.outputs, inner));
    }
  }
  return rescued(pass, accumulates_graphs, over);
}

}  // namespace

void set_real_execute(ExecuteFn real) { real_execute = real; }

variable_list execute(Engine* engine, const edge_list& roots, const variable_list& inputs, bool keep_graph, bool create_graph, bool accumulate_grad,
                      const edge_list& outputs) {
  Session& s = session();
  if (is_traced()) return real_execute(engine, roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
  const NoRawAccess koila;
  follow_successors(roots);
  std::optional<StepAccounts> accounts;
  const Pass pass{engine, roots, inputs, keep_graph, create_graph, accumulate_grad, outputs};
  if (engine_task() == -1 && !pass.goes_on() && (s.engine_depth == 0 || std::this_thread::get_id() != s.owner)) accounts.emplace(roots);
  // koila's own passes leave the interceptor out.
  std::optional<InterruptedPass::Within> in_another;
  if (const int task = engine_task(); task != -1) {
    note_pass_within(task);
    in_another.emplace();
  }
  const bool within = s.functions && !c10::impl::tls_is_dispatch_key_excluded(kInterceptorKey);
  if (s.converting) {  // a pass of the program's that is run again, or one that a region is made of
    const PassOfOwner again;
    std::optional<PassEdges> edges;
    if (works_for_owner() && !s.live_regions().empty()) edges.emplace(roots, outputs);  // another thread may be in a pass of its own
    std::optional<variable_list> gradients;
    if (!c10::impl::tls_is_dispatch_key_excluded(kInterceptorKey)) gradients = run_inside(pass);
    return gradients ? *std::move(gradients) : pass.run(roots, outputs);
  }
  const PassOfProgram one;
  if ((s.engine_depth > 0 && !within) || !s.rescue || s.capturing() || !take_steps()) {
    std::optional<PassOfAnother> not_followed;
    if (!works_for_owner()) not_followed.emplace();
    std::optional<PassEdges> edges;
    if (PassEdges::taken() && !regions_behind(roots).empty()) edges.emplace(roots, outputs);  // a hook's
    return pass.run(roots, outputs);
  }
  bool over = true;
  const auto end = c10::make_scope_exit([&] {
    if (over || std::uncaught_exceptions() > 0) end_step(roots, keep_graph);
  });
  const Depth depth(s.engine_depth, pass.goes_on() ? 0 : 1);
  std::optional<PassOfOwner> goes_on;
  if (pass.goes_on()) goes_on.emplace();
  static const std::string name = "backward";
  const RefusedPass refused(roots, keep_graph);
  if (!outputs.empty()) spent_nodes().put_back();
  return watched(name, "what ran out is outside the split part of the step.", [&] {
    check_quiet_writes();
    const bool split = !s.live_regions().empty();
    try {
      return outermost(pass, over);
    } catch (const std::exception& error) {
      if (!split || !is_checkpoints_own(error)) throw;
      forget_python_error(error);
    }
    refuse_split_step(describe_out_of_memory(name), kRunsOnceMore, 0);
  });
}

}  // namespace koila
