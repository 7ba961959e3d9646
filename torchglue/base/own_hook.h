// Hooks of koila's own, which hang beside the program's.
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <algorithm>
#include <optional>

#include "torchglue/compat/hooks.h"

namespace koila {

struct OwnHook : torch::autograd::FunctionPreHook {
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const override {}
};

// Stands in a node's list where a hook was.
struct NoHook final : OwnHook {
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients) override { return gradients; }
};

inline bool is_own(const torch::autograd::FunctionPreHook& hook) { return dynamic_cast<const OwnHook*>(&hook) != nullptr; }

// Whether the program has put a hook on a tensor that the node made.
inline bool has_hooks(torch::autograd::Node& node) {
  const auto& hooks = node.tensor_pre_hooks();
  return std::any_of(hooks.begin(), hooks.end(), [](const auto& hook) { return !is_own(*hook); });
}

// f(output): a hook of the program's hangs on that output of the node's, or its gradient is retained. None: a hook of a kind that is not known.
template <class F>
void for_each_hooked_output(torch::autograd::Node& node, F&& f) {
  for (const auto& hook : node.tensor_pre_hooks()) {
    if (!is_own(*hook)) f(output_of(*hook));
  }
  for (const auto& [output, hook] : node.retains_grad_hooks()) f(std::optional<size_t>(output));
}

// The same, or has asked for such a tensor's gradient (retain_grad).
inline bool has_hooks_or_retains(torch::autograd::Node& node) { return has_hooks(node) || !node.retains_grad_hooks().empty(); }

}  // namespace koila
