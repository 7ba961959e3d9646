// An operator at the full batch, and what is done when it runs out of memory.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace koila {

// Runs the call as PyTorch would, the interceptor left out. No tape.
void run_plainly(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

// The same, on the tape; and when it runs out of memory, the step so far becomes a region and the call is made again. Throws the
// operator's own error when that cannot be done.
void run_eagerly(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

// Makes an operator of a step that is being converted again, with these arguments, which its results replace. What runs out is tried again once there is room, see
// Note [An operator that is made again]; throws out of memory when there is none to be had.
void call_again(const c10::OperatorHandle& op, torch::jit::Stack& stack);

// Whether this thread runs an operator again that ran out of memory: what fails within is the rescue's affair.
bool in_rescue();

}  // namespace koila
