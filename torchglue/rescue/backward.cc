#include "torchglue/rescue/backward.h"

#include <c10/util/flat_hash_map.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "torchglue/plan/seeds.h"
#include "torchglue/region/deferred.h"
#include "torchglue/region/node.h"
#include "torchglue/rescue/convert.h"
#include "torchglue/rescue/events.h"
#include "torchglue/rescue/oom.h"
#include "torchglue/rescue/sizing.h"
#include "torchglue/session.h"

namespace koila {

using torch::autograd::AccumulateGrad;
using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Engine;
using torch::autograd::Node;
using torch::autograd::variable_list;

namespace {

ExecuteFn real_execute = nullptr;

// Note [No roll-back]
// In one backward pass each leaf receives its gradient once, and whole: the engine runs an AccumulateGrad when everything that
// feeds it is done. So when a pass runs out of memory in the middle, the leaves that have theirs are finished (and their hooks have rightly
// fired), and only the others are still to be served. Nothing is undone; the second pass is limited to them.
// Whether a leaf has been served shows in its .grad, except where hooks may put that back as it was (they step an optimizer, offload the
// gradient): such a leaf is watched by a hook of our own, in front of the program's.
struct Leaf {
  at::Tensor variable;
  const c10::TensorImpl* gradient;  // before the pass
  uint32_t version;
  std::shared_ptr<bool> reached;  // null: not watched
};

class Watch final : public torch::autograd::FunctionPreHook {
 public:
  explicit Watch(std::shared_ptr<bool> reached) : reached_(std::move(reached)) {}
  variable_list operator()(const variable_list& gradients) override {
    *reached_ |= !gradients.empty() && gradients[0].defined();
    return gradients;
  }

 private:
  std::shared_ptr<bool> reached_;
};

bool has_hooks(const at::Tensor& leaf) {
  if (!torch::autograd::impl::hooks(leaf).empty() || torch::autograd::impl::post_acc_grad_hooks(leaf) != nullptr) return true;
  const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(leaf);
  return accumulator && (!accumulator->post_hooks().empty() || !accumulator->pre_hooks().empty());
}

std::vector<AccumulateGrad*> leaves_of(const edge_list& roots) {
  std::vector<AccumulateGrad*> leaves;
  std::vector<Node*> stack;
  for (const Edge& root : roots) stack.push_back(root.function.get());
  ska::flat_hash_set<Node*> seen;
  while (!stack.empty()) {
    Node* node = stack.back();
    stack.pop_back();
    if (node == nullptr || !seen.insert(node).second) continue;
    if (auto* leaf = dynamic_cast<AccumulateGrad*>(node)) leaves.push_back(leaf);
    for (const Edge& edge : node->next_edges()) stack.push_back(edge.function.get());
  }
  return leaves;
}

// The leaves that the tape knows, as they are before the pass.
std::vector<Leaf> note_leaves(const Tape& tape) {
  std::vector<Leaf> leaves;
  for (const TapeValue& value : tape.values()) {
    const at::Tensor variable = value.is_capture() && value.requires_grad && value.grad_fn == nullptr ? value.lock() : at::Tensor();
    if (!variable.defined() || !variable.is_leaf()) continue;
    const at::Tensor& gradient = variable.grad();
    leaves.push_back({variable, gradient.defined() ? gradient.unsafeGetTensorImpl() : nullptr, gradient.defined() ? version_of(gradient) : 0, nullptr});
  }
  return leaves;
}

// Watches for as long as it lives.
class Watching {
 public:
  explicit Watching(std::vector<Leaf>& leaves) {
    for (Leaf& leaf : leaves) {
      if (!has_hooks(leaf.variable)) continue;
      leaf.reached = std::make_shared<bool>(false);
      auto& hooks = torch::autograd::impl::hooks(leaf.variable);
      hooks_.emplace_back(leaf.variable, hooks.insert(hooks.begin(), std::make_unique<Watch>(leaf.reached))->get());
    }
  }
  ~Watching() {
    for (const auto& [variable, watch] : hooks_) {
      auto& hooks = torch::autograd::impl::hooks(variable);
      const auto ours = std::find_if(hooks.begin(), hooks.end(), [w = watch](const auto& hook) { return hook.get() == w; });
      if (ours != hooks.end()) hooks.erase(ours);
    }
  }
  Watching(const Watching&) = delete;
  Watching& operator=(const Watching&) = delete;

 private:
  std::vector<std::pair<at::Tensor, torch::autograd::FunctionPreHook*>> hooks_;
};

bool served(const Leaf& leaf) {
  const at::Tensor& gradient = leaf.variable.grad();
  const c10::TensorImpl* impl = gradient.defined() ? gradient.unsafeGetTensorImpl() : nullptr;
  const bool changed = impl != leaf.gradient || (impl != nullptr && version_of(gradient) != leaf.version);
  if (!changed && leaf.reached && *leaf.reached) throw CannotConvert("a hook on a parameter has seen its gradient already, and may have used it.");
  return changed;
}

// Which value on the tape each root of the pass is. Undefined where it is none.
std::vector<at::Tensor> root_tensors(const Tape& tape, const Plan& plan, const edge_list& roots) {
  std::vector<at::Tensor> tensors(roots.size());
  for (TapeValueId v = 0; v < tape.values().size(); ++v) {
    const TapeValue& value = tape.values()[v];
    if (value.is_capture() || !plan.descends[v]) continue;
    const at::Tensor t = value.lock();
    if (!t.defined() || !t.grad_fn()) continue;
    for (size_t r = 0; r < roots.size(); ++r) {
      if (t.grad_fn().get() == roots[r].function.get() && t.output_nr() == roots[r].input_nr) tensors[r] = t;
    }
  }
  return tensors;
}

// Lets the old graph's saved tensors go: the caller's edges still own it. Stops at leaves and at graphs from before the tape.
void release_graph(const edge_list& roots, ska::flat_hash_set<Node*> keep) {
  std::vector<Node*> stack(keep.begin(), keep.end());
  while (!stack.empty()) {  // what is kept needs all that it hangs on, which other paths lead to as well
    Node* node = stack.back();
    stack.pop_back();
    for (const Edge& edge : node->next_edges()) {
      if (edge.function && keep.insert(edge.function.get()).second) stack.push_back(edge.function.get());
    }
  }
  for (const Edge& root : roots) stack.push_back(root.function.get());
  ska::flat_hash_set<Node*> seen;
  while (!stack.empty()) {
    Node* node = stack.back();
    stack.pop_back();
    if (node == nullptr || keep.count(node) || !seen.insert(node).second) continue;
    if (dynamic_cast<AccumulateGrad*>(node) != nullptr || dynamic_cast<RegionNode*>(node) != nullptr) continue;
    node->release_variables();
    for (const Edge& edge : node->next_edges()) stack.push_back(edge.function.get());
  }
}

// Turns the step into a region. Returns the pass's roots in the new graph.
edge_list split_step(const edge_list& roots, const edge_list& outputs, bool create_graph, const OutOfMemory* oom) {
  Session& s = session();
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
      if (!t.defined() || !t.grad_fn()) continue;
      for (const Edge& output : outputs) {
        if (output.function.get() == t.grad_fn().get()) throw CannotConvert("autograd.grad asks for the gradient of a tensor inside the step.");
      }
    }
  };
  const Plan plan = find_plan(s.tape, serves, check, s.batch_in_use());
  const std::vector<at::Tensor> tensors = root_tensors(s.tape, plan, roots);
  ska::flat_hash_set<Node*> outside;  // graphs that the region will hang on
  for (TapeValueId v = 0; v < s.tape.values().size(); ++v) {
    const TapeValue& value = s.tape.values()[v];
    const at::Tensor t = value.lock();
    if (t.defined() && t.grad_fn() && (value.is_capture() || !plan.descends[v])) outside.insert(t.grad_fn().get());
  }
  // The graph that is let go may be all that holds what the step must be made from again.
  std::vector<at::Tensor> kept;
  for (TapeValueId v = 0; v < s.tape.values().size(); ++v) {
    const TapeValue& value = s.tape.values()[v];
    if (value.is_capture() || !value.differentiable() || !plan.descends[v]) kept.push_back(value.lock());
  }
  release_graph(roots, outside);
  const int64_t in_use = convert(s.tape, plan, first_micro_batch(plan.batch));
  if (oom != nullptr) report_rescue(*oom, in_use, plan.batch);
  edge_list split;
  for (const at::Tensor& t : tensors) split.push_back(torch::autograd::impl::gradient_edge(t));
  return split;
}

void end_step() {
  Session& s = session();
  s.tape.cut();
  s.marks.clear();
  s.current.reset();
  s.live_regions();
  s.runtime->on_step();
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
  // While deferred tensors exist, hooks and backward functions written in Python may read them: then the interceptor stays in.
  if (deferred_registry().any()) return real_execute(engine, roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
  const NoInterceptGuard no_intercept;
  return real_execute(engine, roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
}

bool asks_for_inner_gradient(const edge_list& outputs) {
  return std::any_of(outputs.begin(), outputs.end(), [](const Edge& e) { return dynamic_cast<RegionNode*>(e.function.get()) != nullptr; });
}

variable_list outermost(Engine* engine, const edge_list& roots, const variable_list& inputs, bool keep_graph, bool create_graph,
                        bool accumulate_grad, const edge_list& outputs) {
  Session& s = session();
  if (asks_for_inner_gradient(outputs)) {
    const std::string reason = "autograd.grad asks for the gradient of a tensor inside the step, which runs in micro-batches.";
    report_refusal(describe_out_of_memory("autograd.grad"), reason, 0);
    TORCH_CHECK_WITH(OutOfMemoryError, false, "out of memory: this step runs in micro-batches under koila, and ", reason);
  }
  for (const auto& region : s.live_regions()) region->check_hooks();
  const bool lazy = std::any_of(roots.begin(), roots.end(), [](const Edge& e) { return dynamic_cast<RegionNode*>(e.function.get()) != nullptr; });
  if (s.forced_micro_batch() > 0 && !lazy && !s.tape.empty()) {
    edge_list split;
    try {
      split = split_step(roots, outputs, create_graph, nullptr);
    } catch (const CannotConvert& why) {
      s.runtime->on_note((std::string("KOILA_MICROBATCH: a step ran whole: ") + why.what()).c_str());
    }
    if (!split.empty()) return run_pass(engine, split, inputs, keep_graph, create_graph, accumulate_grad, outputs);
  }

  std::vector<Leaf> leaves = accumulate_grad && !s.tape.empty() ? note_leaves(s.tape) : std::vector<Leaf>();
  std::exception_ptr ran_out;
  try {
    const Watching watching(leaves);
    return run_pass(engine, roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
  } catch (const std::exception& error) {
    if (!is_out_of_memory(error)) throw;
    ran_out = std::current_exception();
  }
  const OutOfMemory oom = describe_out_of_memory("backward");
  if (s.tape.empty()) {  // everything was split already, down to one row
    report_refusal(oom, "one row of the batch does not fit, or what ran out is outside the split part of the step.", 0);
    std::rethrow_exception(ran_out);
  }

  edge_list remaining = outputs;
  edge_list split;
  std::string reason;
  try {
    if (accumulate_grad && outputs.empty()) {
      for (AccumulateGrad* leaf : leaves_of(roots)) {
        const auto noted = std::find_if(leaves.begin(), leaves.end(), [&](const Leaf& l) { return l.variable.is_same(leaf->variable); });
        if (noted == leaves.end()) throw CannotConvert("backward reaches a leaf that this step did not read.");
        if (!served(*noted)) remaining.push_back(torch::autograd::impl::gradient_edge(leaf->variable));
      }
    } else if (accumulate_grad) {
      remaining.clear();
      for (const Edge& output : outputs) {
        const auto noted = std::find_if(leaves.begin(), leaves.end(), [&](const Leaf& l) {
          auto* leaf = dynamic_cast<AccumulateGrad*>(output.function.get());
          return leaf != nullptr && l.variable.is_same(leaf->variable);
        });
        if (noted == leaves.end()) throw CannotConvert("backward(inputs=...) names a tensor that is no leaf of this step.");
        if (!served(*noted)) remaining.push_back(output);
      }
    }
    split = split_step(roots, outputs, create_graph, &oom);
    if (accumulate_grad && remaining.empty()) return {};
    return run_pass(engine, split, inputs, keep_graph, create_graph, accumulate_grad, remaining);
  } catch (const CannotConvert& why) {
    reason = why.what();
  } catch (const std::exception& error) {
    if (!is_out_of_memory(error)) throw;
    reason = "one row of the batch does not fit.";
  }
  report_refusal(oom, reason, 0);
  std::rethrow_exception(ran_out);
}

}  // namespace

void set_real_execute(ExecuteFn real) { real_execute = real; }

variable_list execute(Engine* engine, const edge_list& roots, const variable_list& inputs, bool keep_graph, bool create_graph, bool accumulate_grad,
                      const edge_list& outputs) {
  Session& s = session();
  if (s.engine_depth > 0 || !s.rescue || std::this_thread::get_id() != s.owner) {
    return real_execute(engine, roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
  }
  struct EndOfStep {
    ~EndOfStep() { end_step(); }
  } end;
  const Depth depth(s.engine_depth);
  return outermost(engine, roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
}

}  // namespace koila
