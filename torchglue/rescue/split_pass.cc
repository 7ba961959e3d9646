#include "torchglue/rescue/split_pass.h"

#include <c10/util/flat_hash_map.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "torchglue/base/graph_walk.h"
#include "torchglue/base/process.h"
#include "torchglue/oom/events.h"
#include "torchglue/plan/seeds.h"
#include "torchglue/rescue/convert.h"
#include "torchglue/rescue/graph_pass.h"
#include "torchglue/rescue/old_graph.h"
#include "torchglue/rescue/rewiring.h"
#include "torchglue/step/ladder.h"
#include "torchglue/step/session.h"
#include "torchglue/tape/node_kind.h"

namespace koila {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;

namespace {

// A micro-batch has to be smaller than the batch.
void check_size(int64_t batch) {
  if (batch <= 1) throw CannotConvert("the batch is one row.");
  const int64_t forced = process().forced_micro_batch();
  if (forced >= batch) throw CannotConvert("KOILA_MICROBATCH asks for " + std::to_string(forced) + " rows at a time, and the batch has no more (" + std::to_string(batch) + " rows).");
}

// Throws CannotConvert; reads only.
Plan plan_for(const edge_list& outputs, bool create_graph, Graphs graphs, const std::function<bool(const Plan&)>& serves) {
  Session& s = session();
  if (!may(KOILA_RUNG_SPLIT)) throw CannotConvert(kMayNotSplit);
  check_raw_memory();
  s.tape.let_go_of_leaves();
  if (create_graph) throw CannotConvert(kAccumulatesGraphs);
  const auto check = [&](const Plan& p) {
    if (p.bytes == 0) throw CannotConvert("nothing that the step has computed can be split along a dimension of its inputs.");
    if (!serves(p)) throw CannotConvert("backward starts from a tensor that the split part of the step did not make.");
    check_size(p.batch);
  };
  ska::flat_hash_set<const c10::TensorImpl*> asked_for;
  for (const Edge& output : outputs) {
    if (const at::Tensor t = tensor_on_edge(s.tape, output); t.defined()) asked_for.insert(t.unsafeGetTensorImpl());
  }
  return find_plan(s.tape, serves, check, s.batch_in_use(), graphs, asked_for);
}

// Whether a conversion gives the tensor another graph.
bool is_put_anew(const Tape& tape, const Plan& plan, const at::Tensor& t) {
  const TapeValueId v = tape.find(t.unsafeGetTensorImpl());
  return v != kNoTapeValue && !tape.values()[v].is_capture() && !is_as_it_is(plan, v);
}

// Graphs that the region will hang on.
std::vector<Node*> graphs_that_stay(const Tape& tape, const Plan& plan) {
  std::vector<Node*> nodes;
  for (TapeValueId v = 0; v < tape.values().size(); ++v) {
    const TapeValue& value = tape.values()[v];
    const at::Tensor t = value.lock();
    if (!t.defined() || (!value.is_capture() && plan.descends[v])) continue;
    // A view that an autograd.Function gave of what it was given has the step's value for its base.
    const auto* view = torch::autograd::impl::get_view_autograd_meta(t);
    if (view != nullptr && view->has_bw_view() && is_put_anew(tape, plan, view->get_backward_view().base_)) {
      nodes.push_back(torch::autograd::impl::get_autograd_meta(t)->grad_fn_.get());
    } else {
      add_nodes_behind(t, nodes);
    }
  }
  add_bridges(tape, nodes);
  return nodes;
}

// Splits the step by the plan.
void split_by(const Plan& plan, const edge_list& roots, Graphs graphs, const OutOfMemory* oom) {
  Session& s = session();
  std::vector<Node*> outside = graphs_that_stay(s.tape, plan);
  // The graph that is let go may be all that holds what the step must be made from again.
  std::vector<at::Tensor> kept;
  for (TapeValueId v = 0; v < s.tape.values().size(); ++v) {
    const TapeValue& value = s.tape.values()[v];
    if (value.is_capture() || !value.differentiable() || !plan.descends[v]) kept.push_back(value.lock());
    if (auto written = value.is_copied() ? value.weak.lock() : nullptr) kept.emplace_back(std::move(written));
  }
  release_graph(s.tape, plan, roots, std::move(outside));
  const int64_t in_use = convert(s.tape, plan, graphs);
  if (oom != nullptr) report_rescue(*oom, in_use, plan.batch);
}

}  // namespace

Plan plan_pass(const edge_list& roots, const edge_list& outputs, bool create_graph, Graphs graphs) {
  const Tape& tape = session().tape;
  return plan_for(outputs, create_graph, graphs, [&](const Plan& p) {
    const auto tensors = root_tensors(tape, p, roots);
    return std::all_of(tensors.begin(), tensors.end(), [](const at::Tensor& t) { return t.defined(); });
  });
}

edge_list split_step(const edge_list& roots, const edge_list& outputs, bool create_graph, Graphs graphs, const OutOfMemory* oom) {
  Session& s = session();
  const Plan plan = plan_pass(roots, outputs, create_graph, graphs);
  const std::vector<at::Tensor> tensors = root_tensors(s.tape, plan, roots);
  split_by(plan, roots, graphs, oom);
  edge_list split;
  for (const at::Tensor& t : tensors) split.push_back(torch::autograd::impl::gradient_edge(t));
  return split;
}

edge_list split_rest(Node& beginning, uint64_t done_from, const edge_list& outputs, Graphs graphs, const OutOfMemory* oom) {
  Session& s = session();
  if (!s.tape.forget_from(done_from) || !s.tape.bridge(&beginning)) {
    throw CannotConvert("backward has come by an autograd.Function, and goes on to a tensor that was written to in place.");
  }
  const auto serves = [&](const Plan& p) {
    const auto& ends = s.tape.bridge_of(beginning)->ends;
    return std::all_of(ends.begin(), ends.end(), [&](const Bridge::End& end) { return !is_as_it_is(p, end.value); });
  };
  split_by(plan_for(outputs, /*create_graph=*/false, graphs, serves), {}, graphs, oom);
  return beginning.next_edges();
}

std::vector<at::Tensor> inner_tensors(const edge_list& outputs) {
  std::vector<at::Tensor> tensors;
  for (const Edge& output : outputs) {
    const bool leaf = output.function && kind_of(*output.function) == NodeKind::kLeaf;
    tensors.push_back(leaf ? at::Tensor() : tensor_on_edge(session().tape, output));
  }
  return tensors;
}

edge_list edges_now(edge_list outputs, const std::vector<at::Tensor>& inner) {
  for (size_t i = 0; i < inner.size(); ++i) {
    if (inner[i].defined()) outputs[i] = torch::autograd::impl::gradient_edge(inner[i]);
  }
  return outputs;
}

}  // namespace koila
