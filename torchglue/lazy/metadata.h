// Operators that change in place how a tensor looks at its memory.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace koila {

// Note [Changes of metadata]
// squeeze_, unsqueeze_ and t_ write nothing to memory: the program's tensor looks at it in another way from then on. What a region would write to its
// own tensor shows nowhere, so the view is made instead, split as its rule says, and the program's tensor takes its place.
void change_metadata(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

}  // namespace koila
