// Calls that do not run by micro-batch, in a step that does.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <vector>

#include "torchglue/lazy/question.h"
#include "torchglue/op_traits.h"

namespace koila {

// On arguments that have their values. What kept the split dimension of an argument is marked.
void run_at_full_batch(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack, const std::vector<SplitArgument>& split);

// The operator looks at sizes and the like, and at no value.
void run_on_metadata(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

// Its inner operators come back here one by one, each with a rule of its own. False, and nothing done, when there is one that reads a tensor's
// memory on its way (a loss that wants to know its lengths).
bool decompose(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack, const OpTraits& traits);

}  // namespace koila
