#include "torchglue/rescue/graph_pass.h"

#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>
#include <vector>

#include "torchglue/operators/gradient.h"
#include "torchglue/tape/node_kind.h"

namespace koila {

using torch::autograd::AccumulateGrad;
using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::variable_list;

at::Tensor tensor_on_edge(const Tape& tape, const Edge& edge) {
  if (edge.function && kind_of(*edge.function) == NodeKind::kLeaf) return static_cast<AccumulateGrad*>(edge.function.get())->variable;
  for (TapeValueId v = 0; v < tape.values().size(); ++v) {
    const TapeValue& value = tape.values()[v];
    if (value.is_capture() || !value.known_node(edge.function.get()) || !tape.is_current(v)) continue;
    const at::Tensor t = value.lock();
    if (t.defined() && node_of(t) == edge.function.get() && t.output_nr() == edge.input_nr) return t;
  }
  return {};
}

TapedPass::TapedPass(Tape& tape, torch::jit::Stack arguments, size_t results) : tape_(&tape), arguments_(std::move(arguments)), results_(results) {}

std::optional<TapedPass> TapedPass::of(Tape& tape, const edge_list& roots, const variable_list& gradients, const edge_list& outputs) {
  if (outputs.empty() || roots.size() != gradients.size()) return std::nullopt;
  c10::List<at::Tensor> from, to;
  c10::List<std::optional<at::Tensor>> with;
  for (size_t i = 0; i < roots.size(); ++i) {
    at::Tensor root = tensor_on_edge(tape, roots[i]);
    if (!root.defined() || root.is_leaf() || !gradients[i].defined()) return std::nullopt;
    from.push_back(std::move(root));
    with.push_back(gradients[i]);
  }
  for (const Edge& output : outputs) {
    at::Tensor input = tensor_on_edge(tape, output);
    if (!input.defined()) return std::nullopt;
    to.push_back(std::move(input));
  }
  torch::jit::Stack arguments{std::move(from), std::move(with), std::move(to), c10::List<bool>()};
  return TapedPass(tape, std::move(arguments), outputs.size());
}

void TapedPass::begin() { tape_->begin(gradient_operator(results_), arguments_); }

void TapedPass::commit(const variable_list& results) {
  const std::vector<c10::IValue> made(results.begin(), results.end());
  tape_->commit(arguments_, made);
}

}  // namespace koila
