// Operators that talk to other processes.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace koila {

// Note [Collectives]
// Every process of a group has to issue the same operations in the same order, so a collective operation runs exactly once, when the program calls it: it is on no tape
// and in no region, and one that fails is not tried again. Its tensors have their values, and keep their memory, before it begins: it may go on reading and writing on
// a thread of its own until the program waits for it. Few of these operators declare what they write to, and none of them counts a version up. What they wrote to
// is an ordinary tensor from then on, and what they return is another input of the step: a stage ends there, and nothing else does.

// Runs one. Throws what it throws.
void run_collective(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

}  // namespace koila
