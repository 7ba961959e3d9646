// What comes first in every operator call of a thread of the program.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "torchglue/op_traits.h"

namespace koila {

// The call, by its arguments on the stack; its results take their place. On the interceptor's dispatch key.
void intercept(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

// Whether intercept() would do nothing with the call but run it eagerly, and nothing about it is to be looked after but memory: no part of a step is split or
// put off, nobody's hooks are on, no pointers are about. So it is with all operators of a program while nothing runs out.
bool is_ordinary(c10::DispatchKeySet keys, const OpTraits& traits, at::ArrayRef<c10::IValue> arguments);

}  // namespace koila
