#include "torchglue/rescue/backward.h"

#include <ATen/ops/empty.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <c10/util/flat_hash_map.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <exception>
#include <optional>

#include "torchglue/base/graph_walk.h"
#include "torchglue/facts/step_accounts.h"
#include "torchglue/oom/events.h"
#include "torchglue/oom/oom.h"
#include "torchglue/oom/oom_watch.h"
#include "torchglue/oom/python_error.h"
#include "torchglue/plan/seeds.h"
#include "torchglue/region/boundary_store.h"
#include "torchglue/region/deferred.h"
#include "torchglue/region/node.h"
#include "torchglue/region/pass_edges.h"
#include "torchglue/region/raw_memory.h"
#include "torchglue/rescue/convert.h"
#include "torchglue/rescue/engine_callbacks.h"
#include "torchglue/rescue/interrupted.h"
#include "torchglue/sizing/sizing.h"
#include "torchglue/step/ladder.h"
#include "torchglue/step/session.h"
#include "torchglue/step/step_owner.h"

namespace koila {

using torch::autograd::AccumulateGrad;
using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Engine;
using torch::autograd::Node;
using torch::autograd::variable_list;

namespace {

ExecuteFn real_execute = nullptr;

// Which value on the tape each root of the pass is. Undefined where it is none.
std::vector<at::Tensor> root_tensors(const Tape& tape, const Plan& plan, const edge_list& roots) {
  std::vector<at::Tensor> tensors(roots.size());
  for (TapeValueId v = 0; v < tape.values().size(); ++v) {
    const TapeValue& value = tape.values()[v];
    if (value.is_capture() || !plan.descends[v]) continue;
    const at::Tensor t = value.lock();
    if (!t.defined() || node_of(t) == nullptr) continue;
    for (size_t r = 0; r < roots.size(); ++r) {
      if (node_of(t) == roots[r].function.get() && t.output_nr() == roots[r].input_nr) tensors[r] = t;
    }
  }
  return tensors;
}

// Lets the old graph's saved tensors go: the caller's edges still own it. Stops at leaves, and at `outside` and what that hangs on.
void release_graph(const edge_list& roots, std::vector<Node*> outside) {
  ska::flat_hash_set<Node*> keep;
  walk_graph(std::move(outside), [&](Node* node) { return keep.insert(node).second; });
  walk_graph(nodes_of(roots), [&](Node* node) {
    if (keep.count(node) || dynamic_cast<AccumulateGrad*>(node) != nullptr || dynamic_cast<RegionNode*>(node) != nullptr) return false;
    node->release_variables();
    return true;
  });
}

// How the pass can be split. Throws CannotConvert; reads only.
Plan plan_pass(const edge_list& roots, const edge_list& outputs, bool create_graph, Graphs graphs) {
  Session& s = session();
  if (!may(KOILA_RUNG_SPLIT)) throw CannotConvert(kMayNotSplit);
  check_raw_memory();
  s.tape.let_go_of_leaves();
  if (create_graph) throw CannotConvert("create_graph=True asks for a graph of the backward pass, which micro-batches do not have.");
  const auto serves = [&](const Plan& p) {
    const auto tensors = root_tensors(s.tape, p, roots);
    return std::all_of(tensors.begin(), tensors.end(), [](const at::Tensor& t) { return t.defined(); });
  };
  const auto check = [&](const Plan& p) {
    if (p.bytes == 0) throw CannotConvert("nothing that the step has computed can be split along a dimension of its inputs.");
    if (!serves(p)) throw CannotConvert("backward starts from a tensor that the split part of the step did not make.");
    if (first_micro_batch(p.batch) >= p.batch) throw CannotConvert("the batch is one row, or smaller than KOILA_MICROBATCH.");
    for (TapeValueId v = 0; v < s.tape.values().size(); ++v) {
      const at::Tensor t = p.descends[v] && !s.tape.values()[v].is_capture() ? s.tape.values()[v].lock() : at::Tensor();
      if (!t.defined() || node_of(t) == nullptr) continue;
      for (const Edge& output : outputs) {
        if (output.function.get() == node_of(t)) throw CannotConvert("autograd.grad asks for the gradient of a tensor inside the step.");
      }
    }
  };
  return find_plan(s.tape, serves, check, s.batch_in_use(), graphs);
}

// Turns the step into a region. Returns the pass's roots in the new graph.
edge_list split_step(const edge_list& roots, const edge_list& outputs, bool create_graph, const OutOfMemory* oom) {
  Session& s = session();
  const Graphs graphs = oom != nullptr ? Graphs::kUsedUp : Graphs::kWhole;
  const Plan plan = plan_pass(roots, outputs, create_graph, graphs);
  const std::vector<at::Tensor> tensors = root_tensors(s.tape, plan, roots);
  std::vector<Node*> outside;  // graphs that the region will hang on
  for (TapeValueId v = 0; v < s.tape.values().size(); ++v) {
    const TapeValue& value = s.tape.values()[v];
    const at::Tensor t = value.lock();
    if (t.defined() && (value.is_capture() || !plan.descends[v])) add_nodes_behind(t, outside);
  }
  // The graph that is let go may be all that holds what the step must be made from again.
  std::vector<at::Tensor> kept;
  for (TapeValueId v = 0; v < s.tape.values().size(); ++v) {
    const TapeValue& value = s.tape.values()[v];
    if (value.is_capture() || !value.differentiable() || !plan.descends[v]) kept.push_back(value.lock());
    if (auto written = value.is_copied() ? value.weak.lock() : nullptr) kept.emplace_back(std::move(written));
  }
  release_graph(roots, std::move(outside));
  const int64_t in_use = convert(s.tape, plan, graphs);
  if (oom != nullptr) report_rescue(*oom, in_use, plan.batch);
  edge_list split;
  for (const at::Tensor& t : tensors) split.push_back(torch::autograd::impl::gradient_edge(t));
  return split;
}

void end_step() {
  Session& s = session();
  s.forget_step();
  s.live_regions();
  if (s.engine_depth > 0) return;
  for (const auto& region : s.live_regions()) region->let_go_of_graphs();
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

class Depth {
 public:
  explicit Depth(int& depth) : depth_(depth) { ++depth_; }
  ~Depth() { --depth_; }

 private:
  int& depth_;
};

variable_list run_pass(Engine* engine, const edge_list& roots, const variable_list& inputs, bool keep_graph, bool create_graph, bool accumulate_grad,
                       const edge_list& outputs) {
  for (const at::Tensor& t : inputs) materialise_tensor(t);
  Session& s = session();
  std::optional<PassEdges> edges;
  if (!s.live_regions().empty()) edges.emplace(roots);
  s.functions = (s.functions || s.tape.saw_functions()) && !create_graph;
  if (s.functions) {
    const StepWithin within;
    return real_execute(engine, roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
  }
  // While deferred tensors exist, hooks and backward functions written in Python may read them: then the interceptor stays in.
  if (deferred_registry().any()) return real_execute(engine, roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
  const NoInterceptGuard no_intercept;
  return real_execute(engine, roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
}

// A pass that ended by an error leaves the nodes that were ready, with the gradients that they were to be given, in the queue of the thread that called it, until that thread's next pass comes by
// them. A pass over nothing does. (Threads of the engine's own look into their queues all the time.)
void empty_queue(Engine* engine) {
  const NoInterceptGuard no_intercept;
  const at::Tensor nothing = at::empty({0}).set_requires_grad(true);
  real_execute(engine, {torch::autograd::impl::gradient_edge(nothing)}, {at::empty({0})}, false, false, true, {});
}

bool asks_for_inner_gradient(const edge_list& outputs) {
  return std::any_of(outputs.begin(), outputs.end(), [](const Edge& e) { return dynamic_cast<RegionNode*>(e.function.get()) != nullptr; });
}

variable_list outermost(Engine* engine, const edge_list& roots, const variable_list& inputs, bool keep_graph, bool create_graph,
                        bool accumulate_grad, const edge_list& outputs) {
  Session& s = session();
  if (asks_for_inner_gradient(outputs)) {
    refuse_split_step(describe_out_of_memory("autograd.grad"), "autograd.grad asks for the gradient of a tensor inside the step, which runs in micro-batches.", 0);
  }
  const int depth = s.engine_depth - 1;
  if (!s.live_regions().empty()) {
    for (const auto& region : regions_behind(roots)) {
      if (region->depth() == depth) region->check_hooks();
    }
  }
  const bool lazy = std::any_of(roots.begin(), roots.end(), [](const Edge& e) { return dynamic_cast<RegionNode*>(e.function.get()) != nullptr; });
  if (s.forced_micro_batch() > 0 && !lazy && !s.tape.empty()) {
    edge_list split;
    try {
      split = split_step(roots, outputs, create_graph, nullptr);
    } catch (const CannotConvert& why) {
      // Where something of it was split from its first operator on, the rest is what a stage's collective left to do.
      if (s.live_regions().empty()) s.runtime->on_note((std::string("KOILA_MICROBATCH: a step ran whole: ") + why.what()).c_str());
    }
    if (!split.empty()) {
      const Offload::Backward split_already(s.offload, [] { return false; });
      return run_pass(engine, split, inputs, keep_graph, create_graph, accumulate_grad, outputs);
    }
  }

  EngineCallbacks callbacks;
  std::optional<InterruptedPass> pass;
  if (!s.tape.empty()) pass.emplace(s.tape, roots, keep_graph, s.functions || s.tape.saw_functions(), accumulate_grad);
  const auto can_be_split = [&] {
    try {
      plan_pass(roots, outputs, create_graph, Graphs::kUsedUp);
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
    return run_pass(engine, roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
  } catch (const std::exception& error) {
    if (!is_out_of_memory(error)) throw;
    in_function = s.functions && ran_out_in_python(error);
    ran_out = in_function ? std::current_exception() : kept_exception(error);
  }
  const OutOfMemory oom = describe_out_of_memory("backward");
  if (!pass) {  // everything was split already, down to one row; or a region has refused, and said why
    if (refusals_told() == told) report_refusal(oom, "one row of the batch does not fit, or what ran out is outside the split part of the step.", 0);
    std::rethrow_exception(ran_out);
  }

  pass->stop_watching();
  std::string reason;
  try {
    if (in_function) throw CannotConvert("it happened in the backward of an autograd.Function, which may have done part of its work.");
    if (callbacks.begun()) throw CannotConvert("it happened in a callback that a hook had queued for the end of the backward pass.");
    empty_queue(engine);
    const auto remaining = pass->remaining(roots, outputs);
    const edge_list split = split_step(roots, outputs, create_graph, &oom);
    callbacks.pass_over();
    variable_list gradients;
    if (remaining) {
      const Offload::Backward split_already(s.offload, [] { return false; });
      gradients = run_pass(engine, split, inputs, keep_graph, create_graph, accumulate_grad, *remaining);
    }
    run_callbacks(callbacks.take(), [&](const edge_list& from, const variable_list& with) { real_execute(engine, from, with, false, false, true, {}); });
    return gradients;
  } catch (const CannotConvert& why) {
    reason = why.what();
  } catch (const std::exception& error) {
    if (!is_out_of_memory(error)) throw;
    reason = reason_of(error);
  }
  if (refusals_told() == told) report_refusal(oom, reason, 0);
  std::rethrow_exception(ran_out);
}

}  // namespace

void set_real_execute(ExecuteFn real) { real_execute = real; }

variable_list execute(Engine* engine, const edge_list& roots, const variable_list& inputs, bool keep_graph, bool create_graph, bool accumulate_grad,
                      const edge_list& outputs) {
  Session& s = session();
  if (is_traced()) return real_execute(engine, roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
  const NoRawAccess koila;
  std::optional<StepAccounts> accounts;
  if (torch::autograd::get_current_graph_task_id() == -1 && (s.engine_depth == 0 || std::this_thread::get_id() != s.owner)) accounts.emplace(roots);
  // koila's own passes leave the interceptor out.
  if (const int task = torch::autograd::get_current_graph_task_id(); task != -1) note_pass_within(task);
  const bool within = s.functions && !c10::impl::tls_is_dispatch_key_excluded(kInterceptorKey);
  if ((s.engine_depth > 0 && !within) || !s.rescue || s.capturing() || !take_steps()) {
    std::optional<PassOfAnother> not_followed;
    if (!works_for_owner()) not_followed.emplace();
    return real_execute(engine, roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
  }
  struct EndOfStep {
    ~EndOfStep() { end_step(); }
  } end;
  const Depth depth(s.engine_depth);
  static const std::string name = "backward";
  return watched(name, "what ran out is outside the split part of the step.",
                 [&] { return outermost(engine, roots, inputs, keep_graph, create_graph, accumulate_grad, outputs); });
}

}  // namespace koila
