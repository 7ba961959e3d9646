#include "torchglue/operators/gradient.h"

#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/fork_lock.h"
#include "torchglue/base/engine_queue.h"

namespace koila {

namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::variable_list;

constexpr std::string_view kName = "koila::gradient";

// What the engine is asked: gradients of those outputs that have a graph.
struct Pass {
  edge_list roots;
  variable_list gradients;
};

Pass pass_from(const std::vector<at::Tensor>& outputs, c10::ArrayRef<c10::IValue> gradients) {
  Pass pass;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Edge root = torch::autograd::impl::gradient_edge(outputs[i]);
    if (!outputs[i].requires_grad() || !root.is_valid() || !gradients[i].isTensor() || !gradients[i].toTensor().defined()) continue;
    const at::Tensor gradient = gradients[i].toTensor();
    pass.roots.push_back(root);
    pass.gradients.push_back(gradient.scalar_type() == outputs[i].scalar_type() ? gradient : gradient.to(outputs[i].scalar_type()));
  }
  return pass;
}

}  // namespace

void run_gradient(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::List<bool> used = torch::jit::pop(*stack).toBoolList();
  const std::vector<at::Tensor> inputs = torch::jit::pop(*stack).toTensorVector();
  const c10::IValue gradients = torch::jit::pop(*stack);
  const std::vector<at::Tensor> outputs = torch::jit::pop(*stack).toTensorVector();
  TORCH_CHECK(inputs.size() == op.schema().returns().size(), kName, ": ", inputs.size(), " inputs, and ", op.schema().returns().size(), " results");
  const Pass pass = pass_from(outputs, gradients.toListRef());
  edge_list wanted;
  std::vector<size_t> asked;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].requires_grad()) continue;
    wanted.push_back(torch::autograd::impl::gradient_edge(inputs[i]));
    asked.push_back(i);
  }
  variable_list results(inputs.size());
  if (!pass.roots.empty() && !wanted.empty()) {
    variable_list found = run_engine(pass.roots, pass.gradients, /*keep_graph=*/true, /*create_graph=*/true, /*accumulate_grad=*/false, wanted);
    for (size_t i = 0; i < asked.size(); ++i) results[asked[i]] = std::move(found[i]);
  }
  for (size_t i = 0; i < results.size(); ++i) {
    const bool missing = !results[i].defined() && i < used.size() && used.get(i);
    torch::jit::push(*stack, missing ? at::zeros_like(inputs[i].detach()) : std::move(results[i]));
  }
}

c10::OperatorHandle gradient_operator(size_t results) {
  static ForkLock mutex;
  static auto* library = new torch::Library(torch::Library::FRAGMENT, "koila", std::nullopt, __FILE__, __LINE__);  // never destroyed: operators are called while the process ends
  static auto* known = new std::unordered_map<size_t, c10::OperatorHandle>;
  const std::lock_guard lock(mutex);
  if (const auto found = known->find(results); found != known->end()) return found->second;
  const std::string overload = "of_" + std::to_string(results);
  std::string returns;
  for (size_t i = 0; i < results; ++i) returns += i == 0 ? "Tensor" : ", Tensor";
  const std::string name = std::string("gradient.") + overload;
  library->def((name + "(Tensor[] outputs, Tensor?[] gradients, Tensor[] inputs, bool[] used) -> (" + returns + ")").c_str());
  library->impl(name.c_str(), torch::dispatch(c10::DispatchKey::CompositeImplicitAutograd, torch::CppFunction::makeFromBoxedFunction<&run_gradient>()));
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(kName.data(), overload.c_str());
  known->emplace(results, op);
  return op;
}

bool is_gradient(const c10::OperatorHandle& op) { return op.operator_name().name == kName; }

}  // namespace koila
