// An operator call of a step that runs lazily.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace koila {

// Whether any tensor can be deferred or marked, or any call be known: else no call needs the questions below.
bool lazy_possible();

// Takes the call if one of its arguments is deferred or marked as split: it joins a region, or its inputs are materialised and it runs
// at the full batch. Results replace the arguments on the stack. False: an ordinary call, left untouched.
// Throws what the operator throws, and out of memory when not even one row fits.
bool dispatch_lazily(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

// Before a call that koila leaves alone, see Note [Where koila works]: its arguments are ordinary tensors from here on.
void before_call_elsewhere(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments);

}  // namespace koila
